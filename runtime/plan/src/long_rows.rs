//! Splits reductions of few long rows, which leave most of a GPU idle.
//!
//! In: a plan for a GPU whose buffers are not placed yet. Out: the same plan, in which reductions
//! of few long rows are two steps: of pieces of the rows, then of the pieces' results. The first
//! stores results of single elements. Invariant: the results of pieces are kept in the type in
//! which a row is reduced, so nothing is rounded in between; what needs whole rows for anything
//! else stays one step (`RowwiseKernel::folds`).
//!
//! The loss over a batch, the norm of all gradients, the largest magnitude of a tensor: one row of
//! millions of elements is read by one block.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::InView;
use hypatia_dsl::kernel::{LONG_ROW, RowAccess, RowLayout, RowwiseKernel};
use hypatia_dsl::scalar::{Term, TermNode};

use super::buffer::{Buffer, Storage};
use super::{Action, BufferId, Plan, RowwiseStep, Step, View};

/// Rows that keep a large GPU busy.
const ENOUGH: usize = 128;
/// Elements of a piece, as a rule and at least; and pieces of all rows at most.
const PIECE: usize = 16_384;
const SHORTEST: usize = 2048;
const MOST: usize = 4096;

/// Splits the reductions of a plan.
pub(super) fn split(plan: &mut Plan) {
    // Each adds up in one order, however many rows there are.
    if plan.allowed.is_exact() || plan.allowed.batch_invariant {
        return;
    }
    let mut at = 0;
    while at < plan.steps.len() {
        if let Some((first, second)) = halves(plan, at) {
            plan.steps.splice(at..=at, [first, second]);
            at += 1;
        }
        at += 1;
    }
}

/// The reduction of dense rows that a step is, as a row-wise one.
fn of_rows(step: &Step) -> Option<RowwiseStep> {
    let (kind, axes) = match &step.action {
        Action::Rowwise(r) => return Some(r.clone()),
        Action::Reduce(kind, axes) => (*kind, axes),
        _ => return None,
    };
    let ([from], [to]) = (step.reads.as_slice(), step.writes.as_slice()) else { return None };
    let first = (0..from.shape.len()).find(|axis| axes.contains(axis))?;
    if !(first..from.shape.len()).all(|axis| axes.contains(&axis)) || !from.is_contiguous() || !to.is_contiguous() {
        return None;
    }
    let (rows, n) = (from.shape[..first].iter().product(), from.shape[first..].iter().product());
    let kernel = RowwiseKernel {
        name: "reduce".into(),
        doc: step.name.clone(),
        inputs: vec![(from.dtype, RowAccess::Full)],
        steps: vec![(kind, leaf(0))],
        outputs: vec![(to.dtype, RowAccess::PerRow, leaf(1))],
        sums: Vec::new(),
        axes: [1, 1],
        gathers: Vec::new(),
        groups: None,
    };
    let layout = RowLayout::flat(&kernel, rows, n);
    Some(RowwiseStep { kernel, rows, n, layout, lookups: Vec::new() })
}

/// The two steps of a reduction of few long rows.
fn halves(plan: &mut Plan, at: usize) -> Option<(Step, Step)> {
    let step = &plan.steps[at];
    let r = of_rows(step)?;
    let whole = &r.kernel;
    let few = r.rows > 0 && r.rows < ENOUGH && r.n >= LONG_ROW;
    if !few || !whole.folds() || !r.lookups.is_empty() {
        return None;
    }
    let pieces = pieces(r.rows, r.n)?;
    let (operands, steps) = (whole.inputs.len(), whole.steps.len());
    let wide = if whole.inputs.iter().any(|i| i.0 == DType::F64) { DType::F64 } else { DType::F32 };
    let count = r.rows * pieces;
    let of_pieces = |i: usize| (wide, RowAccess::PerRow, leaf(operands + i));
    let is_of_row = |output: &&(DType, RowAccess, Term)| output.1 == RowAccess::PerRow;
    let of_elements = whole.outputs.iter().filter(|o| !is_of_row(o)).cloned();
    let first = RowwiseKernel { outputs: (0..steps).map(of_pieces).chain(of_elements).collect(), ..whole.clone() };
    let joined = |(dtype, access, term): &(DType, RowAccess, Term)| (*dtype, *access, of_joined(term, operands, steps));
    let second = RowwiseKernel {
        name: format!("{}_joined", whole.name),
        inputs: vec![(wide, RowAccess::Full); steps],
        steps: whole.steps.iter().enumerate().map(|(i, (kind, _))| (*kind, leaf(i))).collect(),
        outputs: whole.outputs.iter().filter(is_of_row).map(joined).collect(),
        ..whole.clone()
    };
    let (rows, n, step) = (r.rows, r.n, step.clone());
    let of = |kernel: RowwiseKernel, rows: usize, n: usize| {
        let layout = RowLayout::flat(&kernel, rows, n);
        Action::Rowwise(RowwiseStep { kernel, rows, n, layout, lookups: Vec::new() })
    };
    let between: Vec<View> = (0..steps)
        .map(|_| {
            let buffer = BufferId(plan.buffers.len() as u32);
            plan.buffers.push(Buffer { dtype: wide, len: count, storage: Storage::Arena(0) });
            View::whole(buffer, wide, &[count])
        })
        .collect();
    let (of_rows, of_elements): (Vec<_>, Vec<_>) =
        step.writes.iter().zip(&whole.outputs).partition(|(_, output)| is_of_row(output));
    let views = |of: Vec<(&View, _)>| of.into_iter().map(|(v, _): (&View, _)| v.clone()).collect::<Vec<View>>();
    let (of_rows, of_elements) = (views(of_rows), views(of_elements));
    let (first, second) = (of(first, count, n / pieces), of(second, rows, pieces));
    let first = Step { action: first, writes: [&between[..], &of_elements].concat(), ..step.clone() };
    Some((first, Step { action: second, reads: between, writes: of_rows, ..step }))
}

/// Into how many pieces of one length rows are cut: about [`PIECE`] elements each, fewer if that
/// leaves a GPU idle. `None` if no such number divides the rows.
fn pieces(rows: usize, n: usize) -> Option<usize> {
    let wanted = (n / PIECE).max(2 * ENOUGH / rows).min(n / SHORTEST).min(MOST / rows).max(2);
    let fits = |p: &usize| n.is_multiple_of(*p) && n / p >= SHORTEST;
    // The nearest that divides a row, up to twice as many or half as few.
    (0..=wanted).flat_map(|d| [wanted + d, wanted - d.min(wanted - 1)]).find(|p| *p >= wanted.div_ceil(2) && fits(p))
}

/// An operand alone.
fn leaf(input: usize) -> Term {
    let mut term = Term::empty();
    let root = term.add(TermNode::In { input: input as u32, view: InView::Broadcast });
    term.roots.push(root);
    term
}

/// What becomes of a reduced row, where the operands are not read again, but one for each step.
fn of_joined(term: &Term, operands: usize, steps: usize) -> Term {
    let mut term = term.clone();
    for node in &mut term.nodes {
        if let TermNode::In { input, .. } = node {
            *input = *input - operands as u32 + steps as u32;
        }
    }
    term
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_divide_rows_and_fill_a_gpu() {
        assert_eq!(pieces(1, 1 << 24), Some(1024));
        assert_eq!(pieces(8, 1 << 20), Some(64));
        for (rows, n) in [(1, 50_257 * 512), (1, 100_000), (100, 40_000), (1, 32_768), (127, 1 << 22)] {
            let p = pieces(rows, n).unwrap_or_else(|| panic!("{rows} x {n}"));
            assert!(n % p == 0 && n / p >= SHORTEST && p >= 2, "{rows} x {n}: {p}");
        }
        // A prime.
        assert_eq!(pieces(1, 1_000_003), None);
    }
}
