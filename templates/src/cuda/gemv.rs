//! Matrix products of few rows with an epilogue on their accumulators, for GPUs from Ampere on.
//!
//! In: a [`GemvKernel`] whose tiling fits. Out: its source. Invariant: the epilogue is one inlined
//! function of the accumulator and its operands, in the compute types; the template calls it once
//! for each element of the result and rounds once.

use minijinja::{Value, context};

use super::gemm::EPILOGUE;
use super::gemm_sm80::{STRIDES, of_factors, other_arguments};
use super::prologue::{self, Walk};
use super::term::{Functions, compute_name};
use super::tiles::{FLOATS, OnTiles, Tiles, loaded, plain_storage};
use super::{Arg, CudaSource, EmitError, Geometry};
use hypatia_dsl::builtin::SECOND;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{Access, GemvKernel, Operand};

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
    let mut functions = Functions::bare(program);
    let first = kernel.reads();
    let term = OnTiles { term: &kernel.term, pair: kernel.pair, inputs: &kernel.inputs, factors: first, types: FLOATS };
    let parts = (rows * t.columns).div_ceil(t.threads());
    let mut bodies = vec![term.function(&mut functions, EPILOGUE, &[kernel.output], parts as u64)?];
    let walks = walks(kernel);
    for walk in walks.iter().flatten() {
        let of_step = walk.walked.neighbours * walk.walked.lines;
        bodies.push(walk.function(&mut functions, of_step * t.unroll)?);
    }
    functions.need("axes");
    let accumulators = &["acc", SECOND][..kernel.rights()];
    let factors = prologue::factors(program, walks, rights(kernel)[0], accumulators);
    let tiles = Tiles {
        name: &kernel.name,
        doc: &kernel.doc,
        kind: if kernel.pair {
            "two matrix products of few rows with their epilogue"
        } else {
            "a matrix product of few rows with its epilogue"
        },
        formula: format!("out0 = {}, where {factors}", term.formula(program)),
        args: arguments(kernel),
        geometry: Geometry::Tiles {
            block: t.threads() as u32,
            cluster: 1,
            rows: rows as u32,
            columns: t.columns as u32,
            shared: kernel.shared() as u32,
        },
        bodies,
        template: "gemv.cu.j2",
    };
    tiles.render(&functions, own(kernel))
}

/// What the template alone wants to know.
fn own(kernel: &GemvKernel) -> Value {
    let (t, first) = (&kernel.tiling, kernel.reads());
    let [left, right] = walks(kernel).map(|walk| walk.map(|w| w.context()));
    context! {
        half => kernel.half().name(),
        unit => kernel.half().name(),
        size => kernel.half().size(),
        rows => kernel.padded_rows(),
        columns => t.columns,
        warps => t.warps,
        unroll => t.unroll,
        step => kernel.step(),
        near => kernel.step() / 4,
        pair => kernel.pair,
        b_by_k => kernel.factors[1].dense_k,
        left => left,
        right => right,
        rights => rights(kernel).iter().map(|at| format!("in{at}")).collect::<Value>(),
        out_type => plain_storage(kernel.output),
        out_size => kernel.output.size(),
        inputs => kernel.inputs.iter().enumerate().map(|(i, o)| input(i + first, o)).collect::<Value>(),
    }
}

/// How a thread walks the factors that are computed where they are read.
fn walks(kernel: &GemvKernel) -> [Option<Walk<'_>>; 2] {
    let first = [0, kernel.prologues[0].as_ref().map_or(1, |p| p.inputs.len())];
    let walk = |factor: usize| {
        let prologue = kernel.prologues[factor].as_ref()?;
        Some(Walk {
            name: ["left", "right"][factor],
            prologue,
            first: first[factor],
            walked: kernel.walked(factor),
            half: kernel.half(),
            keeps: true,
        })
    };
    [walk(0), walk(1)]
}

/// The number of the first operand of each right factor.
fn rights(kernel: &GemvKernel) -> Vec<usize> {
    let [left, right] = [0, 1].map(|i| kernel.prologues[i].as_ref().map_or(1, |p| p.inputs.len()));
    (0..kernel.rights()).map(|i| left + i * right).collect()
}

fn arguments(kernel: &GemvKernel) -> Vec<Arg> {
    let mut out = of_factors(&kernel.prologues, &kernel.factors, kernel.rights());
    out.extend(other_arguments(kernel.reads(), &[kernel.output], &kernel.inputs));
    out
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
