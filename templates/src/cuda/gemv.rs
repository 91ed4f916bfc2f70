//! Matrix products of few rows with an epilogue on their accumulators, for GPUs from Ampere on.
//!
//! In: a [`GemvKernel`] whose tiling fits. Out: its source. Invariant: the epilogue is one inlined
//! function of the accumulator and its operands, in the compute types; the template calls it once
//! for each element of the result and rounds once.

use minijinja::{Value, context};

use super::gemm::EPILOGUE;
use super::gemm_sm80::{STRIDES, product_arguments};
use super::term::{Functions, compute_name};
use super::tiles::{OnTiles, Tiles, loaded, plain_storage};
use super::{CudaSource, EmitError, Geometry};
use hypatia_dsl::builtin::SECOND;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{Access, GEMV_STEP, GemvKernel, Operand};

pub(super) fn emit(program: &Program, kernel: &GemvKernel) -> Result<CudaSource, EmitError> {
    let malformed = |what: &str| EmitError::Malformed(format!("product of few rows {}: {what}", kernel.name));
    if let Some(why) = kernel.refusal() {
        return Err(malformed(why));
    }
    if !kernel.fits() {
        return Err(malformed("its tiling does not fit"));
    }
    let t = &kernel.tiling;
    let rows = kernel.padded_rows();
    let mut functions = Functions::new(program);
    // The second right factor is read as the first one is.
    let [a, b] = kernel.factors;
    let factors = [a, b, b];
    let factors = &factors[..1 + kernel.rights()];
    let first = factors.len();
    let term = OnTiles { term: &kernel.term, pair: kernel.pair, inputs: &kernel.inputs, factors: first };
    let parts = (rows * t.columns).div_ceil(t.threads());
    let body = term.function(&mut functions, EPILOGUE, kernel.output, parts as u64)?;
    functions.need("axes");
    let tiles = Tiles {
        name: &kernel.name,
        doc: &kernel.doc,
        kind: if kernel.pair {
            "two matrix products of few rows with their epilogue"
        } else {
            "a matrix product of few rows with its epilogue"
        },
        formula: format!(
            "out0 = {}, where acc = in0 in1{}",
            term.formula(program),
            if kernel.pair { format!(" and {SECOND} = in0 in2") } else { String::new() }
        ),
        args: product_arguments(factors, kernel.output, &kernel.inputs),
        geometry: Geometry::Tiles {
            block: t.threads() as u32,
            cluster: 1,
            rows: rows as u32,
            columns: t.columns as u32,
            shared: kernel.shared() as u32,
        },
        bodies: vec![body],
        template: "gemv.cu.j2",
    };
    let own = context! {
        half => kernel.half().name(),
        unit => kernel.half().name(),
        size => kernel.half().size(),
        rows => rows,
        columns => t.columns,
        warps => t.warps,
        unroll => t.unroll,
        step => GEMV_STEP,
        pair => kernel.pair,
        b_by_k => b.dense_k,
        out_type => plain_storage(kernel.output),
        out_size => kernel.output.size(),
        inputs => kernel.inputs.iter().enumerate().map(|(i, o)| input(i + first, o)).collect::<Value>(),
    };
    tiles.render(&functions, own)
}

/// An operand of the epilogue as the template sees it: how an element is read, and its value.
fn input(at: usize, o: &Operand) -> Value {
    let name = format!("in{at}");
    let stride = |axis: usize| format!("{name}_strides.at[{axis}]");
    let of_row = format!("outer_at * {} + inner_at * {} + q_row * {}", stride(0), stride(1), stride(2));
    let load = |index: &str| loaded(o.dtype, &format!("{name}[{index}]"));
    let (kind, load, value) = match o.access {
        Access::Splat => ("splat", load("0"), format!("{name}_all")),
        Access::Row => ("each", load("q_col"), format!("each{at}[e]")),
        Access::Col => ("each", load(&of_row), format!("each{at}[e]")),
        Access::Full => ("each", load(&format!("{of_row} + q_col")), format!("each{at}[e]")),
        Access::Strided => {
            ("each", load(&format!("{of_row} + q_col * {}", stride(STRIDES - 1))), format!("each{at}[e]"))
        }
    };
    context! { index => at, kind => kind, compute => compute_name(o.dtype), load => load, value => value }
}
