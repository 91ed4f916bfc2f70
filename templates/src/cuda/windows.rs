//! Windows of an image, each multiplied by a filter and added up, with an epilogue.
//!
//! In: a [`WindowsKernel`] whose tile fits. Out: its source. Invariant: all sizes but the numbers
//! of planes and channels are constants of the source, so that the sum of a window is unrolled;
//! each element of the image is read once by a tile.

use minijinja::{Value, context};

use super::pointwise::{declarations, default_type};
use super::term::{Functions, compute_name, inlining, widen};
use super::tiles::about;
use super::{
    Arg, ArgRole, CudaSource, EmitError, Entry, Geometry, Header, SizeName, common, identifier, render, storage,
};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{Access, Operand, WindowAxis, WindowsKernel};
use hypatia_dsl::scalar::{Term, TermNode};

/// Operands before those of the epilogue: the image and the filters.
pub(super) const FACTORS: usize = 2;
/// Strides of an operand: along batch, channels, rows and columns.
pub(super) const STRIDES: usize = 4;
/// The most accesses to the image that a thread has on their way.
const MOST_AHEAD: usize = 8;

pub(super) fn emit(program: &Program, kernel: &WindowsKernel) -> Result<CudaSource, EmitError> {
    let malformed = |what: &str| Err(EmitError::Malformed(format!("windows {}: {what}", kernel.name)));
    if !kernel.fits() {
        return malformed("the tile does not fit");
    }
    if kernel.inputs.iter().any(|o| o.access == Access::Row) {
        return malformed("an operand is read by columns");
    }
    let summed = Summed {
        name: &kernel.name,
        term: &kernel.term,
        inputs: &kernel.inputs,
        acc: kernel.acc,
        output: kernel.output,
        results: kernel.tile.each[0] * kernel.tile.each[1],
    };
    let mut functions = Functions::new(program);
    let value = value(&mut functions, &summed)?;
    if kernel.inputs.iter().any(strided) {
        functions.need("axes");
    }
    let args = arguments(kernel);
    let block = kernel.tile.block() as u32;
    let name = identifier("hypatia_", &kernel.name);
    let entries = vec![Entry { name: name.clone(), geometry: Geometry::Blocks { block, shared: 0 } }];
    let formula =
        vec![format!("out0 = {}, where acc = the sum of a window of in0 times in1", formula(program, &summed))];
    let header = Header {
        name: &kernel.name,
        kind: "windows times filters",
        doc: &kernel.doc,
        formula: &formula,
        args: &args,
        entries: &entries,
        in_place: false,
    };
    let types = kernel.inputs.iter().map(|o| o.dtype).chain(kernel.factors).chain([kernel.output]);
    let types: Vec<DType> = types.collect();
    let ctx = context! {
        entry => name,
        block => block,
        args => declarations(&args, &[]),
        ..context! {
            ..elements(kernel),
            ..context! { ..sizes(kernel), ..common(header, &functions, types.iter().copied(), &[value])? }
        }
    };
    let text = render("windows.cu.j2", &format!("{}.cu", identifier("", &kernel.name)), ctx)?;
    Ok(CudaSource { name: kernel.name.clone(), formula: formula.join("; "), text, entries, args, launch: None })
}

/// How windows lie along rows and columns, as constants of a source.
pub(super) fn along([rows, columns]: [WindowAxis; 2]) -> Value {
    let both = |of: fn(&WindowAxis) -> usize| vec![of(&rows), of(&columns)];
    context! {
        image => both(|a| a.image),
        out => both(|a| a.out),
        size => both(|a| a.size),
        stride => both(|a| a.stride),
        dilation => both(|a| a.dilation),
        before => both(|a| a.before),
    }
}

/// The constants of the source.
fn sizes(kernel: &WindowsKernel) -> Value {
    let [rows, columns] = kernel.axes;
    let ([high, wide], [pitch, plane]) = (kernel.needed(), kernel.pitches());
    let tiles = kernel.tiles();
    let tile = kernel.tile;
    // Of a plane in one tile, only the image itself is read; else what the tile covers.
    let whole = tiles == [1, 1];
    let begin = columns.before + kernel.shift();
    let come = match whole {
        true => [rows.image.min(high.saturating_sub(rows.before)), columns.image.min(pitch.saturating_sub(begin))],
        false => [high, wide.next_multiple_of(kernel.vector())],
    };
    let padded = |a: &WindowAxis| a.before > 0 || a.span(a.out) > a.image;
    let packs = (tile.planes * come[0] * come[1] / kernel.vector()).div_ceil(tile.block());
    context! {
        down => tile.each[0],
        across => tile.each[1],
        high => tile.threads[0],
        wide => tile.threads[1],
        planes => tile.planes,
        beside => kernel.beside(),
        tiles => tiles.to_vec(),
        pitch => pitch,
        plane => plane,
        shift => kernel.shift(),
        access => kernel.access(),
        vector => kernel.vector(),
        read => kernel.read(),
        packs => kernel.packs(),
        stored => kernel.stored(),
        come => come.to_vec(),
        at => if whole { vec![rows.before, begin] } else { vec![0, 0] },
        ahead => packs.clamp(1, MOST_AHEAD),
        whole => whole,
        fill => whole && (padded(&rows) || padded(&columns)),
        ..along(kernel.axes)
    }
}

/// The types, and how elements are read and written.
fn elements(kernel: &WindowsKernel) -> Value {
    let [image, filters] = kernel.factors;
    let filter = "in1[plane % channels * TAPS + i % TAPS]";
    context! {
        type => storage(image),
        acc => compute_name(kernel.acc),
        out_type => storage(kernel.output),
        fma => if kernel.acc == DType::F64 { "fma" } else { "fmaf" },
        widened => widen("pack.v[k]", image),
        widened_filter => widen(filter, filters),
        of_image => if kernel.filters > 1 { format!(" / {}", kernel.filters) } else { String::new() },
        strided => kernel.inputs.iter().any(strided),
        inputs => kernel.inputs.iter().enumerate().map(|(i, o)| input(i + FACTORS, o)).collect::<Value>(),
    }
}

pub(super) fn strided(o: &Operand) -> bool {
    matches!(o.access, Access::Col | Access::Strided)
}

/// An operand of the epilogue as the template sees it.
fn input(at: usize, o: &Operand) -> Value {
    let name = format!("in{at}");
    let place = format!("{name}_plane[y * {name}_strides.at[2] + (x + k) * {name}_strides.at[3]]");
    let (kind, value) = match o.access {
        Access::Splat => ("splat", format!("{name}_all")),
        Access::Col => ("col", format!("{name}_all")),
        Access::Full => ("full", widen(&format!("{name}_v.v[k]"), o.dtype)),
        Access::Row | Access::Strided => ("strided", widen(&place, o.dtype)),
    };
    context! {
        name => name.clone(),
        kind => kind,
        value => value,
        type => storage(o.dtype),
        compute => compute_name(o.dtype),
        splat => widen(&format!("{name}[0]"), o.dtype),
        col => widen(&format!("{name}_plane[0]"), o.dtype),
    }
}

fn arguments(kernel: &WindowsKernel) -> Vec<Arg> {
    let [image, filters] = kernel.factors;
    let mut out = vec![
        Arg::read(0, image, "the image: planes, rows, columns"),
        Arg::read(1, filters, "a filter for each channel of the result"),
    ];
    let whole = "as the result lies";
    out.extend((FACTORS..).zip(&kernel.inputs).map(|(at, o)| match o.access {
        Access::Col => Arg::read(at, o.dtype, "one element a plane"),
        _ => Arg::read(at, o.dtype, about(&o.access, whole)),
    }));
    out.push(Arg::written(0, kernel.output, "planes, rows, columns"));
    let strides = |(at, _): (usize, &Operand)| {
        Arg::strides(ArgRole::Read(at), STRIDES, "elements between neighbours along batch, channels, rows, columns")
    };
    out.extend((FACTORS..).zip(&kernel.inputs).filter(|(_, o)| strided(o)).map(strides));
    out.push(Arg::size(SizeName::Channels, "channels of the result"));
    out.push(Arg::rows("blocks: the tiles of all planes"));
    out.push(Arg::row_length("planes of the result"));
    out
}

/// A sum of a window with its epilogue.
pub(super) struct Summed<'k> {
    /// The kernel's name.
    pub name: &'k str,
    /// The epilogue, and what it reads.
    pub term: &'k Term,
    pub inputs: &'k [Operand],
    /// Element type of the sums, and of the result.
    pub acc: DType,
    pub output: DType,
    /// Results of a thread.
    pub results: usize,
}

/// The term as text.
pub(super) fn formula(program: &Program, of: &Summed<'_>) -> String {
    super::term::formula(program, of.term, of.term.root(), &|node| match node {
        TermNode::In { input, .. } => Some(format!("in{}", *input as usize + FACTORS)),
        _ => None,
    })
}

/// The function of a result: the epilogue of a sum and its operands, rounded once.
pub(super) fn value(functions: &mut Functions<'_>, of: &Summed<'_>) -> Result<String, EmitError> {
    let types = of.inputs.iter().map(|o| o.dtype).chain([of.acc, of.output]);
    let leaf = |node: &TermNode| match node {
        TermNode::Acc => Some(("acc".to_string(), of.acc)),
        TermNode::In { input, .. } => {
            let o = of.inputs.get(*input as usize)?;
            Some((format!("in{}", *input as usize + FACTORS), o.dtype.compute()))
        }
        _ => None,
    };
    let lowered = functions.lower(of.term, default_type(types), &leaf)?;
    let root = lowered.roots.first().cloned();
    let root = root.ok_or_else(|| EmitError::Malformed(format!("windows {}: no value", of.name)))?;
    let operand = |(i, o): (usize, &Operand)| format!("const {} in{}", compute_name(o.dtype), i + FACTORS);
    let params = std::iter::once(format!("const {} acc", compute_name(of.acc)));
    let params: Vec<String> = params.chain(of.inputs.iter().enumerate().map(operand)).collect();
    let inline = inlining(lowered.size, of.results as u64);
    let (result, params) = (storage(of.output), params.join(", "));
    let mut text = format!("// The value of one element.\nstatic __device__ {inline} {result} value({params}) {{\n");
    lowered.statements.iter().for_each(|s| text.push_str(&format!("  {s}\n")));
    text.push_str(&format!("  return {};\n}}\n", functions.store(&root, of.output)));
    Ok(text)
}
