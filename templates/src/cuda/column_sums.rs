//! Sums over rows of what is computed element by element.
//!
//! In: a [`RowSumsKernel`] whose blocks need no whole rows. Out: its source. Invariant: each sum is
//! added up in the same order in every run; an element is read once.

use minijinja::{Value, context};

use super::pointwise::declarations;
use super::row_values::{Values, dtypes};
use super::rowwise::{alignment, arguments, describe};
use super::term::compute_name;
use super::{CudaSource, EmitError, Entry, Geometry, Header, common, identifier, render, storage, vector_width};
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{ROWS_AHEAD, RowAccess, RowSumsKernel, RowwiseKernel};

/// Bytes of operands that a thread has on their way at a time: half of its registers.
const MOST_AHEAD: usize = 128;

/// Prints the kernel whose threads each add up a pack of columns.
pub(super) fn emit(program: &Program, sums: &RowSumsKernel) -> Result<CudaSource, EmitError> {
    let (kernel, split) = (&sums.kernel, sums.split);
    let (true, Some(sum_type)) = (kernel.adds_up_elements(), kernel.sum_type()) else {
        let what = "sums by tiles of columns need elements that depend on nothing else of their rows";
        return Err(EmitError::Malformed(format!("kernel `{}`: {what}", kernel.name)));
    };
    let mut values = Values::of(program, kernel)?;
    if kernel.strided() {
        values.functions.need("quotient");
        values.functions.need("axes");
    }
    let used = values.used();
    let vector = pack(kernel, &used, sums.n);
    let full = |i: &&usize| matches!(kernel.inputs[**i].1, RowAccess::Full | RowAccess::Strided);
    let of_row: usize = used.iter().filter(full).map(|i| kernel.inputs[*i].0.size() * vector).sum();
    let ahead = (MOST_AHEAD / of_row.max(1)).clamp(1, ROWS_AHEAD);
    let tiles = sums.n.div_ceil(split.threads * vector).max(1);
    let mut args = arguments(kernel);
    args.retain(|a| a.name != "n");
    let name = identifier("hypatia_", &kernel.name);
    let geometry = Geometry::Parts { block: split.block as u32, parts: (tiles * split.parts * sums.groups) as u32 };
    let entries = vec![Entry { name: name.clone(), geometry }];
    let formula = describe(program, kernel);
    let header = Header {
        name: &kernel.name,
        kind: "sums over rows",
        doc: &kernel.doc,
        formula: &formula,
        args: &args,
        entries: &entries,
        in_place: false,
    };
    let ctx = context! {
        entry => name,
        args => declarations(&args, &[]),
        arg_names => args.iter().map(|a| a.name.as_str()).collect::<Vec<_>>().join(", "),
        vector => vector,
        block => split.block,
        lanes => split.threads,
        tiles => tiles,
        parts => split.parts,
        groups => sums.groups,
        ahead => ahead,
        fixed => sums.n,
        sum_type => compute_name(sum_type),
        packed => [vec!["true".to_string()], alignment(kernel, &used)].concat().join(" && "),
        strided => of_access(kernel, &used, &[RowAccess::Strided]),
        by_row => of_access(kernel, &used, &[RowAccess::Full, RowAccess::Strided]),
        outer => kernel.axes[0],
        per_column => of_access(kernel, &used, &[RowAccess::PerColumn]),
        per_row => of_access(kernel, &used, &[RowAccess::PerRow]),
        splats => of_access(kernel, &used, &[RowAccess::Splat]),
        outputs => values.results(&[RowAccess::Full]),
        sums => values.summands(),
        ..common(header, &values.functions, dtypes(kernel), &values.bodies)?
    };
    let text = render("column_sums.cu.j2", &format!("{}.cu", identifier("", &kernel.name)), ctx)?;
    Ok(CudaSource { name: kernel.name.clone(), formula: formula.join("; "), text, entries, args, launch: None })
}

/// Elements that are read at once: each row begins where a pack does.
fn pack(kernel: &RowwiseKernel, used: &[usize], n: usize) -> usize {
    let along = |a: RowAccess| matches!(a, RowAccess::Full | RowAccess::PerColumn | RowAccess::Strided);
    let read = used.iter().map(|i| &kernel.inputs[*i]).filter(|i| along(i.1)).map(|i| i.0);
    let all: Vec<_> = read.chain(kernel.outputs.iter().map(|o| o.0)).collect();
    let mut vector = vector_width(all.into_iter());
    while !n.is_multiple_of(vector) {
        vector /= 2;
    }
    vector
}

/// The operands that are read in one of these ways.
fn of_access(kernel: &RowwiseKernel, used: &[usize], how: &[RowAccess]) -> Value {
    let those = used.iter().filter(|i| how.contains(&kernel.inputs[**i].1));
    let shown = those.map(|i| {
        let (dtype, access) = kernel.inputs[*i];
        context! { name => format!("in{i}"), type => storage(dtype), apart => access == RowAccess::Strided }
    });
    shown.collect()
}
