//! The second half of a reduction: the parts that blocks or tiles made are joined.
//!
//! In: a [`JoinSumsKernel`]. Out: its source. Invariant: each result is added up in the same order
//! in every run.

use minijinja::{Value, context};

use super::expr::{Expr, identity_literal};
use super::passes::{combine, start};
use super::pointwise::declarations;
use super::term::{Functions, compute_name};
use super::{
    Arg, ArgKind, ArgRole, CudaSource, EmitError, Entry, Geometry, Header, SizeName, common, identifier, render,
    storage,
};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::JoinSumsKernel;

/// Threads per block.
const JOIN_BLOCK: u32 = 512;
/// Columns that a block adds up at a time.
pub const JOIN_COLUMNS: usize = 32;

/// Prints the kernel that adds up the sums of all blocks.
pub(super) fn emit(program: &Program, kernel: &JoinSumsKernel) -> Result<CudaSource, EmitError> {
    let count = kernel.outputs.len();
    if count == 0 || !matches!(kernel.sums, DType::F32 | DType::F64) || !kernel.outputs.iter().all(|d| d.is_float()) {
        return Err(EmitError::Malformed(format!("kernel `{}`: sums of no floats", kernel.name)));
    }
    let name = identifier("hypatia_", &kernel.name);
    let mut args = vec![Arg::memory(ArgRole::Sums, ArgKind::Input(kernel.sums), format!("parts x {count} x columns"))];
    args.extend(kernel.outputs.iter().enumerate().map(|(i, d)| Arg::written(i, *d, "one element a column")));
    args.push(Arg::size(SizeName::Parts, "sums that are added up"));
    args.push(Arg::size(SizeName::Columns, "columns of each result"));
    let geometry = Geometry::Rows { block: JOIN_BLOCK, threads: JOIN_BLOCK, up_to: None };
    let entries = vec![Entry { name: name.clone(), geometry }];
    let formula: Vec<String> =
        (0..count).map(|i| format!("out{i} = the {} over all parts of sums[{i}]", kernel.kind.name())).collect();
    let header = Header {
        name: &kernel.name,
        kind: "the second half of a reduction",
        doc: &kernel.doc,
        formula: &formula,
        args: &args,
        entries: &entries,
        in_place: false,
    };
    let mut functions = Functions::new(program);
    let compute = compute_name(kernel.sums);
    let outputs: Vec<Value> = kernel
        .outputs
        .iter()
        .enumerate()
        .map(|(at, d)| {
            context! { at, type => storage(*d), value => functions.store(&Expr::primary("total", kernel.sums), *d) }
        })
        .collect();
    let neutral = identity_literal(start(kernel.kind), kernel.sums)?;
    let join = combine(&mut functions, kernel.kind, kernel.sums, "total", "next");
    let ctx = context! {
        entry => name,
        block => JOIN_BLOCK,
        lanes => JOIN_COLUMNS,
        neutral,
        join,
        count,
        type => compute,
        outputs,
        args => declarations(&args, &[]),
        ..common(header, &functions, kernel.outputs.iter().copied().chain([kernel.sums]), &[])?
    };
    let text = render("join_sums.cu.j2", &format!("{}.cu", identifier("", &kernel.name)), ctx)?;
    Ok(CudaSource { name: kernel.name.clone(), formula: formula.join("; "), text, entries, args, launch: None })
}
