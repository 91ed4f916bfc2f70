//! Windows of an image whose channels lie last, each channel multiplied by a filter of its own.
//!
//! In: a [`ChannelWindowsKernel`] that fits. Out: its source. Invariant: all sizes but the number
//! of images are constants of the source, so that the sum of a window is unrolled.

use minijinja::{Value, context};

use super::pointwise::declarations;
use super::term::{Functions, compute_name, widen};
use super::tiles::about;
use super::windows::{FACTORS, STRIDES, Summed, along, formula, strided, value};
use super::{Arg, ArgRole, CudaSource, EmitError, Entry, Geometry, Header, common, identifier, render, storage};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{Access, ChannelWindowsKernel, Operand};

/// The most elements of a window whose rows are all unrolled.
const UNROLLED: usize = 25;

pub(super) fn emit(program: &Program, kernel: &ChannelWindowsKernel) -> Result<CudaSource, EmitError> {
    let malformed = |what: &str| Err(EmitError::Malformed(format!("windows {}: {what}", kernel.name)));
    if !ChannelWindowsKernel::fits(kernel.axes, kernel.channels, kernel.factors[0]) {
        return malformed("they do not fit");
    }
    if kernel.inputs.iter().any(|o| o.access == Access::Col) {
        return malformed("an operand is read by rows");
    }
    let summed = Summed {
        name: &kernel.name,
        term: &kernel.term,
        inputs: &kernel.inputs,
        acc: kernel.acc,
        output: kernel.output,
        results: kernel.across() * kernel.vector(),
    };
    let mut functions = Functions::new(program);
    let value = value(&mut functions, &summed)?;
    if kernel.inputs.iter().any(strided) {
        functions.need("axes");
    }
    let args = arguments(kernel);
    let block = kernel.block() as u32;
    let name = identifier("hypatia_", &kernel.name);
    let entries = vec![Entry { name: name.clone(), geometry: Geometry::Blocks { block, shared: 0 } }];
    let formula =
        vec![format!("out0 = {}, where acc = the sum of a window of in0 times in1", formula(program, &summed))];
    let header = Header {
        name: &kernel.name,
        kind: "windows times filters, channels last",
        doc: &kernel.doc,
        formula: &formula,
        args: &args,
        entries: &entries,
        in_place: false,
    };
    let types: Vec<DType> =
        kernel.inputs.iter().map(|o| o.dtype).chain(kernel.factors).chain([kernel.output]).collect();
    let ctx = context! {
        entry => name,
        block => block,
        args => declarations(&args, &[]),
        ..context! {
            ..elements(kernel),
            ..context! { ..sizes(kernel), ..common(header, &functions, types.iter().copied(), &[value])? }
        }
    };
    let text = render("windows_last.cu.j2", &format!("{}.cu", identifier("", &kernel.name)), ctx)?;
    Ok(CudaSource { name: kernel.name.clone(), formula: formula.join("; "), text, entries, args, launch: None })
}

/// The constants of the source.
fn sizes(kernel: &ChannelWindowsKernel) -> Value {
    let [rows, columns] = kernel.axes;
    context! {
        channels => kernel.channels,
        vector => kernel.vector(),
        lanes => kernel.lanes(),
        side => kernel.side(),
        passes => kernel.passes.max(1),
        beside => kernel.beside(),
        across => kernel.across(),
        span => kernel.span(),
        rows_unrolled => if rows.size * columns.size <= UNROLLED { rows.size } else { 1 },
        ..along(kernel.axes)
    }
}

/// The types, and how elements are read and written.
fn elements(kernel: &ChannelWindowsKernel) -> Value {
    let [image, filters] = kernel.factors;
    context! {
        type => storage(image),
        acc => compute_name(kernel.acc),
        out_type => storage(kernel.output),
        fma => if kernel.acc == DType::F64 { "fma" } else { "fmaf" },
        widened => widen("pack.v[k]", image),
        widened_filter => widen("in1[(long long)channel * TAPS + tap]", filters),
        inputs => kernel.inputs.iter().enumerate().map(|(i, o)| input(i + FACTORS, o)).collect::<Value>(),
    }
}

/// An operand of the epilogue as the template sees it.
fn input(at: usize, o: &Operand) -> Value {
    let name = format!("in{at}");
    let (kind, value) = match o.access {
        Access::Splat => ("splat", format!("{name}_all")),
        Access::Full => ("full", widen(&format!("{name}_v.v[k]"), o.dtype)),
        Access::Row => ("row", widen(&format!("{name}_v.v[k]"), o.dtype)),
        Access::Col | Access::Strided => ("strided", widen(&format!("{name}_at[k * {name}_strides.at[3]]"), o.dtype)),
    };
    context! {
        name => name.clone(),
        kind => kind,
        value => value,
        type => storage(o.dtype),
        compute => compute_name(o.dtype),
        splat => widen(&format!("{name}[0]"), o.dtype),
    }
}

fn arguments(kernel: &ChannelWindowsKernel) -> Vec<Arg> {
    let [image, filters] = kernel.factors;
    let whole = "images, rows, columns, channels";
    let mut out =
        vec![Arg::read(0, image, format!("the image: {whole}")), Arg::read(1, filters, "a filter for each channel")];
    out.extend((FACTORS..).zip(&kernel.inputs).map(|(at, o)| match o.access {
        Access::Row => Arg::read(at, o.dtype, "one element a channel"),
        _ => Arg::read(at, o.dtype, about(&o.access, "as the result lies")),
    }));
    out.push(Arg::written(0, kernel.output, whole));
    let strides = |(at, _): (usize, &Operand)| {
        Arg::strides(ArgRole::Read(at), STRIDES, "elements between neighbours along batch, rows, columns, channels")
    };
    out.extend((FACTORS..).zip(&kernel.inputs).filter(|(_, o)| strided(o)).map(strides));
    out.push(Arg::rows("blocks: the tiles of all images"));
    out.push(Arg::row_length("images"));
    out
}
