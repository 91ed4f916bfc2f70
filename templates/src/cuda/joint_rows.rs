//! Row-wise work of several tensors in one launch.
//!
//! In: a [`JointRowsKernel`]. Out: its source: each part as a row-wise kernel prints it, in a
//! namespace, and an entry point that divides the blocks among them. Invariant: all blocks have as
//! many threads as the largest part needs; a part has as many blocks as its rows take.

use minijinja::{Value, context};

use super::pointwise::declarations;
use super::rowwise::{self, Part};
use super::term::Functions;
use super::{Arg, ArgRole, CudaSource, EmitError, Entry, Geometry, Header, common, identifier, render};
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{JointRowsKernel, RowsPart};

pub(super) fn emit(program: &Program, kernel: &JointRowsKernel) -> Result<CudaSource, EmitError> {
    let named = |(i, p): (usize, &RowsPart)| {
        let mut part = p.clone();
        part.kernel.name = name(i);
        part
    };
    let parts: Vec<RowsPart> = kernel.parts.iter().enumerate().map(named).collect();
    let alone: Vec<Part> = parts.iter().map(|p| rowwise::part(program, p, 0)).collect::<Result<_, _>>()?;
    let block = alone.iter().map(|p| p.grid[0]).max().unwrap_or(1);
    let all: Vec<Part> = parts.iter().map(|p| rowwise::part(program, p, block as u32)).collect::<Result<_, _>>()?;
    if all.is_empty() || all.iter().any(|p| p.grid[0] != block) {
        return Err(EmitError::Malformed(format!("kernel `{}`: parts of different blocks", kernel.name)));
    }
    let args: Vec<Arg> = arguments(&parts, &all);
    let (mut start, mut first) = (0, 0);
    let mut values = Vec::new();
    for (i, part) in all.iter().enumerate() {
        let end = start + part.grid[1];
        let own = &args[first..first + part.args.len()];
        values.push(context! {
            name => name(i),
            text => part.text.clone(),
            threads => part.team[0],
            chunks => part.team[1],
            arguments => own.iter().map(|a| a.name.clone()).collect::<Value>(),
            start => start,
            end => end,
        });
        (start, first) = (end, first + part.args.len());
    }
    let parts_of_grid = u32::try_from(start)
        .map_err(|_| EmitError::Malformed(format!("kernel `{}`: more blocks than a launch has", kernel.name)))?;
    let geometry = Geometry::Parts { block: block as u32, parts: parts_of_grid.max(1) };
    let entries = vec![Entry { name: identifier("hypatia_", &kernel.name), geometry }];
    let formula: Vec<String> =
        all.iter().enumerate().map(|(i, p)| format!("{}: {}", name(i), p.formula.join("; "))).collect();
    let header = Header {
        name: &kernel.name,
        kind: "row-wise kernels of several tensors; each counts its operands from 0",
        doc: &kernel.doc,
        formula: &formula,
        args: &args,
        entries: &entries,
        in_place: false,
    };
    let mut includes: Vec<String> = all.iter().flat_map(|p| p.includes.clone()).collect();
    includes.sort();
    includes.dedup();
    // Registers are reserved as for the part that reserves the fewest blocks, if all do.
    let minblocks = all.iter().map(|p| p.reserved).min().unwrap_or(0);
    let own = context! {
        includes => includes,
        entry => entries[0].name.clone(),
        block => block,
        minblocks => (minblocks > 0).then_some(minblocks),
        parts => values.into_iter().collect::<Value>(),
        args => declarations(&args, &[]),
    };
    let base = common(header, &Functions::new(program), std::iter::empty(), &[])?;
    let ctx = minijinja::value::merge_maps([base, own]);
    let text = render("joint_rows.cu.j2", &format!("{}.cu", identifier("", &kernel.name)), ctx)?;
    Ok(CudaSource { name: kernel.name.clone(), formula: formula.join("; "), text, entries, args, launch: None })
}

/// The name of a part.
fn name(i: usize) -> String {
    format!("part{i}")
}

/// The pointers of all parts, each part's inputs before its results. They count through.
fn arguments(parts: &[RowsPart], all: &[Part]) -> Vec<Arg> {
    let (mut read, mut written) = (0, 0);
    let mut out = Vec::new();
    for (i, (part, of)) in parts.iter().zip(all).enumerate() {
        for arg in &of.args {
            let role = match arg.role {
                ArgRole::Read(at) => ArgRole::Read(read + at),
                ArgRole::Written(at) => ArgRole::Written(written + at),
                other => other,
            };
            let about = format!("{}: {}", name(i), arg.about);
            out.push(Arg { name: role.tensor_name(), role, about, ..arg.clone() });
        }
        read += part.kernel.inputs.len();
        written += part.kernel.outputs.len();
    }
    out
}
