//! Windows of an image whose channels lie last, multiplied by the filters of their group by warps.
//!
//! In: a [`GroupWindowsKernel`] that fits. Out: its source, for GPUs from Ampere on. Invariant: all
//! sizes but the number of images are constants of the source, so that the sum of a window is
//! unrolled.

use minijinja::{Value, context};

use super::pointwise::declarations;
use super::term::{Functions, compute_name, widen};
use super::tiles::about;
use super::windows::{FACTORS, STRIDES, Summed, along, formula, strided, value};
use super::{Arg, ArgRole, CudaSource, EmitError, Entry, Geometry, Header, common, identifier, render, storage};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{Access, GroupWindowsKernel, Operand};

/// The most copies of a row of the image that are unrolled.
const UNROLLED: usize = 4;

pub(super) fn emit(program: &Program, kernel: &GroupWindowsKernel) -> Result<CudaSource, EmitError> {
    let malformed = |what: &str| Err(EmitError::Malformed(format!("windows {}: {what}", kernel.name)));
    if !kernel.fits() {
        return malformed("they do not fit");
    }
    if kernel.inputs.iter().any(|o| o.access == Access::Col) {
        return malformed("an operand is read by rows");
    }
    let summed = Summed {
        name: &kernel.name,
        term: &kernel.term,
        inputs: &kernel.inputs,
        acc: DType::F32,
        output: kernel.output,
        results: kernel.parts() * kernel.columns() * 4,
    };
    let mut functions = Functions::new(program);
    let value = value(&mut functions, &summed)?;
    if kernel.inputs.iter().any(strided) {
        functions.need("axes");
    }
    let args = arguments(kernel);
    let block = kernel.block() as u32;
    let [.., shared] = kernel.shared();
    let name = identifier("hypatia_", &kernel.name);
    let entries = vec![Entry { name: name.clone(), geometry: Geometry::Blocks { block, shared: shared as u32 } }];
    let formula =
        vec![format!("out0 = {}, where acc = the sum of a window of in0 times in1", formula(program, &summed))];
    let header = Header {
        name: &kernel.name,
        kind: if kernel.groups.is_few() {
            "windows of few channels times filters"
        } else {
            "windows times filters of groups, channels last"
        },
        doc: &kernel.doc,
        formula: &formula,
        args: &args,
        entries: &entries,
        in_place: false,
    };
    let types: Vec<DType> = kernel.inputs.iter().map(|o| o.dtype).chain([kernel.factors, kernel.output]).collect();
    let ctx = context! {
        entry => name,
        block => block,
        args => declarations(&args, &[]),
        ..context! {
            ..elements(kernel),
            ..context! { ..sizes(kernel), ..common(header, &functions, types.iter().copied(), &[value])? }
        }
    };
    let text = render("windows_groups.cu.j2", &format!("{}.cu", identifier("", &kernel.name)), ctx)?;
    Ok(CudaSource { name: kernel.name.clone(), formula: formula.join("; "), text, entries, args, launch: None })
}

/// The constants of the source.
fn sizes(kernel: &GroupWindowsKernel) -> Value {
    let (tile, [unit, pixel], held) = (kernel.tile, kernel.unit_and_pixel(), kernel.held());
    let [filters_at, places_at, _] = kernel.shared();
    let [rows, columns] = kernel.axes;
    context! {
        window => vec![rows.size, columns.size],
        groups => kernel.groups.count,
        depth => kernel.depth(),
        planes => kernel.groups.is_few().then_some(kernel.groups.channels),
        filters => kernel.groups.filters,
        warps => tile.warps,
        parts => kernel.parts(),
        columns => kernel.columns(),
        tile => vec![tile.images, tile.rows, tile.columns],
        held => held.to_vec(),
        unit_bytes => unit,
        pixel => pixel,
        filters_at => filters_at,
        places_at => places_at,
        beside => kernel.beside(),
        across_unrolled => UNROLLED,
        ..along(kernel.axes)
    }
}

/// The types, and how elements are read and written.
fn elements(kernel: &GroupWindowsKernel) -> Value {
    let placed = kernel.inputs.iter().any(|o| matches!(o.access, Access::Full | Access::Strided));
    context! {
        half => kernel.factors.name(),
        unit => kernel.factors.name(),
        size => kernel.factors.size(),
        type => storage(kernel.factors),
        out_type => storage(kernel.output),
        placed => placed,
        inputs => kernel.inputs.iter().enumerate().map(|(i, o)| input(i + FACTORS, o)).collect::<Value>(),
    }
}

/// An operand of the epilogue as the template sees it.
fn input(at: usize, o: &Operand) -> Value {
    let name = format!("in{at}");
    let (kind, value) = match o.access {
        Access::Splat => ("splat", format!("{name}_all")),
        Access::Row => ("row", format!("{name}_row[j][k]")),
        Access::Full => ("full", widen(&format!("{name}_v.v[k]"), o.dtype)),
        Access::Col | Access::Strided => ("strided", widen(&format!("{name}_at[k * {name}_strides.at[3]]"), o.dtype)),
    };
    context! {
        name => name.clone(),
        kind => kind,
        value => value,
        type => storage(o.dtype),
        compute => compute_name(o.dtype),
        splat => widen(&format!("{name}[0]"), o.dtype),
        row => widen(&format!("{name}[filter]"), o.dtype),
    }
}

fn arguments(kernel: &GroupWindowsKernel) -> Vec<Arg> {
    let whole = "images, rows, columns, channels";
    let of_image = if kernel.groups.is_few() { "images, channels, rows, columns" } else { whole };
    let mut out = vec![
        Arg::read(0, kernel.factors, format!("the image: {of_image}")),
        Arg::read(1, kernel.factors, "the filters: rows, columns and channels of a group for each"),
    ];
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
