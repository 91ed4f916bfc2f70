//! The generated kernels of a step, and their arguments.
//!
//! In: a step of a plan that is not a library call. Out: the kernel descriptions that
//! `hypatia-templates` prints, in launch order, and the values of their sizes and strides.
//! Invariant: equal work gives equal descriptions, whatever the step's name, so that it is printed
//! and compiled once. Memory, strides and maps go by the role of what they belong to, sizes by
//! their [`SizeName`].

pub mod attention;
pub mod attention_grad;
mod batched;
pub mod chain;
pub mod checksum;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod gemv;
mod horizontal;
mod intervals;
mod irregular;
pub mod map_shape;
pub mod product;
mod prologue;
pub mod template;
pub mod tiled;
pub mod tiled_attention;
pub mod timed;
pub mod warp_attention;
pub mod warp_tiled;
mod windows;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::InView;
use hypatia_dsl::kernel::{
    Access, ArgmaxKernel, HorizontalKernel, JoinSumsKernel, JointRowsKernel, Move, MoveKernel, Operand,
    PointwiseKernel, PoolKernel, Reduction, RowAccess, RowLayout, RowSumsKernel, RowsPart, RowwiseKernel, SumSplit,
    UnfoldKernel,
};
use hypatia_dsl::scalar::{Term, TermNode};
use hypatia_templates::cuda::{ArgRole, JOIN_COLUMNS, SizeName};
use hypatia_templates::instances::Body;

use hypatia_graph::DeclaredLaunch;
use hypatia_plan::{
    Action, CallStep, Called, PointwiseStep, PoolStep, RowwiseStep, Step, UnfoldStep, View, collapse, row_major,
    rows_and_columns,
};

/// The work of a kernel, without its pointers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub n: usize,
    /// Values of arguments that are sizes, by name.
    pub sizes: Vec<(SizeName, Vec<i64>)>,
    /// Strides that are arguments, by the role of their tensor.
    pub strides: Vec<(ArgRole, Vec<i64>)>,
    /// Operands among these that say where others are read: neighbours share them.
    pub indexes: Vec<ArgRole>,
    /// The views of arguments that the step's reads and writes do not give: those of other roles,
    /// and those whose position is another one in the step.
    pub views: Vec<(ArgRole, View)>,
    /// The shapes of tensors that the copy engine moves, by their role.
    pub maps: Vec<(ArgRole, map_shape::MapShape)>,
    /// Byte offsets into the workspace, by role: results that the next launch of the step reads.
    pub rooms: Vec<(ArgRole, usize)>,
    /// Byte offsets into what a product and its comparison exchange, by role.
    pub sums: Vec<(ArgRole, usize)>,
    /// True for a launch that compares, or that only a comparison needs: it may run later.
    pub compares: bool,
    /// Bytes that the product and this comparison of it exchange.
    pub exchanged: usize,
    /// Integers that the kernel reads from memory, by role.
    pub data: Vec<(ArgRole, Vec<i32>)>,
    /// Byte offsets into the memory of reports, by role.
    pub reports: Vec<(ArgRole, usize)>,
    /// Memory that outlives a run.
    pub kept: Option<Kept>,
    /// True for a launch that is done once for all runs: it computes what is kept.
    pub once: bool,
    /// The launch, if the kernel declares it itself.
    pub declared: Option<DeclaredLaunch>,
}

/// Memory that launches of several steps share, and that outlives a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// The role of the argument that points to it.
    pub role: ArgRole,
    /// What it holds: equal names share memory.
    pub name: String,
    /// Its size.
    pub bytes: usize,
}

impl Work {
    fn new(rows: usize, n: usize) -> Work {
        Work { rows, n, ..Work::default() }
    }

    fn view(mut self, role: ArgRole, view: &View) -> Work {
        self.views.push((role, view.clone()));
        self
    }

    fn size(self, name: SizeName, value: usize) -> Work {
        self.sizes(name, &[value])
    }

    fn each_size<const N: usize>(self, sizes: [(SizeName, usize); N]) -> Work {
        sizes.into_iter().fold(self, |work, (name, value)| work.size(name, value))
    }

    fn sizes(mut self, name: SizeName, values: &[usize]) -> Work {
        self.sizes.push((name, values.iter().map(|v| *v as i64).collect()));
        self
    }

    fn strides(mut self, of: ArgRole, values: &[isize]) -> Work {
        self.strides.push((of, values.iter().map(|v| *v as i64).collect()));
        self
    }
}

/// Tilings in the order of their predicted time.
fn fastest_first<T: Copy>(tilings: impl Iterator<Item = T>, cycles: impl Fn(&T) -> f64) -> Vec<T> {
    let mut found: Vec<(f64, T)> = tilings.map(|t| (cycles(&t), t)).collect();
    found.sort_by(|x, y| x.0.total_cmp(&y.0));
    found.into_iter().map(|(_, t)| t).collect()
}

/// The kernels of a step and their work, in launch order; empty for floating-point products, and
/// for convolutions that are not on planes.
pub fn step_kernels(step: &Step) -> Vec<(Body, Work)> {
    let many = match &step.action {
        Action::Gemm(g) if g.acc.is_int() => irregular::product(step, g),
        Action::Cumsum(how) => irregular::cumsum(step, *how),
        Action::Argsort(axis, descending) => irregular::argsort(step, *axis, *descending),
        Action::Scatter(reduction) => irregular::scatter(step, *reduction),
        Action::Rowwise(r) if !r.kernel.sums.is_empty() => row_sums(step, r),
        _ => return step_kernel(step).into_iter().collect(),
    };
    many.unwrap_or_default()
}

/// The kernel of a step with a single kernel.
fn step_kernel(step: &Step) -> Option<(Body, Work)> {
    match &step.action {
        Action::Call(CallStep { called: Called::Rows(parts), .. }) => Some(joint_rows(parts)),
        Action::Gemm(_) | Action::Call(_) | Action::Scatter(_) => None,
        Action::Conv(c) if c.channels_last => {
            windows::channel_windows(step, c).or_else(|| windows::group_windows(step, c))
        }
        Action::Conv(c) => windows::windows(step, c),
        Action::Argsort(..) | Action::Cumsum(_) => None,
        Action::Pointwise(p) => Some(pointwise(p, step)),
        Action::Horizontal(h) => Some(horizontal::horizontal(h, step)),
        Action::Rowwise(r) => Some(rowwise(r)),
        Action::Copy => Some(copy(step.reads.first()?, step.writes.first()?)),
        Action::Concat(axis) => concat(step, *axis),
        Action::Pad(before) => pad(step, before),
        Action::Unfold(how) => unfold(step, how),
        Action::Pool(how) => pool(step, how),
        Action::Gather(axis) => gather(step, *axis),
        Action::GatherElements(axis) => gather_elements(step, *axis),
        Action::GatherNd(batch) => gather_nd(step, *batch),
        Action::Reduce(kind, axes) => reduce(step, *kind, axes),
        Action::Argmax(axis, last) => argmax(step, *axis, *last),
    }
}

fn pointwise(p: &PointwiseStep, step: &Step) -> (Body, Work) {
    let kernel = PointwiseKernel { name: "pointwise".into(), doc: String::new(), ..p.kernel.clone() };
    let shared = step.shared();
    let named = PointwiseStep { kernel: kernel.clone(), ..p.clone() };
    if let Some((part, work)) = horizontal::strided(&named, [&step.reads, &step.writes]) {
        return (Body::Horizontal(HorizontalKernel { in_place: !shared.is_empty(), ..part }), work);
    }
    let work = pointwise_work(&kernel, &p.shape, &p.strides);
    (if shared.is_empty() { Body::Pointwise(kernel) } else { Body::InPlace(kernel, shared) }, work)
}

fn pointwise_work(kernel: &PointwiseKernel, shape: &[usize], strides: &[Vec<isize>]) -> Work {
    let (n, lead) = shape.split_last().map_or((1, &[] as &[usize]), |(n, lead)| (*n, lead));
    let rows: usize = lead.iter().product();
    let mut work =
        if kernel.is_flat() { Work::new(1, rows * n) } else { Work::new(rows, n) }.sizes(SizeName::Axes, shape);
    for (i, (operand, strides)) in kernel.inputs.iter().zip(strides).enumerate() {
        if operand.access == Access::Strided {
            work = work.strides(ArgRole::Read(i), strides);
        }
    }
    work
}

fn rowwise(r: &RowwiseStep) -> (Body, Work) {
    let kernel = RowwiseKernel { name: "rowwise".into(), doc: String::new(), ..r.kernel.clone() };
    let mut work = Work::new(r.rows, r.n).sizes(SizeName::Axes, &r.layout.sizes);
    let inputs = (0..kernel.inputs.len()).map(ArgRole::Read);
    let outputs = (0..kernel.outputs.len()).map(ArgRole::Written);
    for (of, strides) in inputs.chain(outputs).zip(&r.layout.strides) {
        work = work.strides(of, strides);
    }
    let picked = kernel.gathers.iter().filter(|g| kernel.inputs[g.table].1 == RowAccess::Picked);
    work.indexes = picked.map(|g| ArgRole::Read(g.index)).collect();
    (Body::Rowwise(kernel), work)
}

/// Row-wise work of several tensors.
fn joint_rows(parts: &[RowwiseStep]) -> (Body, Work) {
    let part = |r: &RowwiseStep| RowsPart { kernel: r.kernel.clone(), rows: r.rows, n: r.n, layout: r.layout.clone() };
    let work = Work::new(parts.iter().map(|r| r.rows).sum(), 1);
    let parts = parts.iter().map(part).collect();
    (Body::JointRows(JointRowsKernel { name: "rows".into(), doc: String::new(), parts }), work)
}

/// Rows whose columns are added up: by blocks, then over all blocks.
fn row_sums(step: &Step, r: &RowwiseStep) -> Option<Vec<(Body, Work)>> {
    let (Body::Rowwise(kernel), work) = rowwise(r) else { return None };
    let [sums] = step.workspace() else { return None };
    let groups = r.layout.groups_of_sums();
    let split = SumSplit::of(&kernel, r.rows, r.n, groups)?;
    let outputs: Vec<DType> = kernel.sums.iter().map(|s| s.0).collect();
    let columns = groups * r.n;
    let tiles = (outputs.len() * columns).div_ceil(JOIN_COLUMNS);
    let mut joined = Work::new(tiles, columns)
        .size(SizeName::Parts, split.parts)
        .size(SizeName::Columns, columns)
        .view(ArgRole::Sums, sums);
    for (i, result) in step.writes.iter().skip(kernel.outputs.len()).take(outputs.len()).enumerate() {
        joined = joined.view(ArgRole::Written(i), result);
    }
    let kind = Reduction::Sum;
    let join = JoinSumsKernel { name: "join_sums".into(), doc: String::new(), sums: sums.dtype, outputs, kind };
    let rows = RowSumsKernel { kernel, n: r.n, groups, split };
    Some(vec![(Body::RowSums(rows), work.view(ArgRole::Sums, sums)), (Body::JoinSums(join), joined)])
}

/// A copy of a view to a result of the same shape.
fn copy(view: &View, to: &View) -> (Body, Work) {
    let (shape, strides) = collapse(&view.shape, &[view.strides.clone(), row_major(&view.shape)]);
    let mut term = Term::empty();
    let root = term.add(TermNode::In { input: 0, view: InView::Broadcast });
    term.roots.push(root);
    let kernel = PointwiseKernel {
        name: "copy".into(),
        doc: String::new(),
        inputs: vec![Operand { dtype: view.dtype, access: Access::Strided }],
        outputs: vec![view.dtype],
        rank: shape.len(),
        term,
        acc: None,
    };
    let p = PointwiseStep { kernel, shape, strides: strides[..1].to_vec() };
    if let Some((part, work)) = horizontal::strided(&p, [std::slice::from_ref(view), std::slice::from_ref(to)]) {
        return (Body::Horizontal(part), work);
    }
    let work = pointwise_work(&p.kernel, &p.shape, &p.strides);
    (Body::Pointwise(p.kernel), work)
}

fn move_body(name: &str, moves: Move, dtype: DType) -> Body {
    Body::Move(MoveKernel { name: name.into(), doc: String::new(), moves, dtype })
}

/// Treats a result of rank 0 as one of rank 1 and size 1.
fn ranked<T: Copy>(values: &[T], scalar: T) -> Vec<T> {
    if values.is_empty() { vec![scalar] } else { values.to_vec() }
}

/// Rows and columns of a row-major result.
fn rows_of(shape: &[usize]) -> (usize, usize) {
    shape.split_last().map_or((1, 1), |(n, lead)| (lead.iter().product(), *n))
}

fn concat(step: &Step, axis: usize) -> Option<(Body, Work)> {
    let out = step.writes.first()?;
    // As few axes as possible before and after the one along which the operands lie: the place of
    // an element takes a division for each.
    let part = |axes: std::ops::Range<usize>| {
        let sides: Vec<Vec<isize>> = step.reads.iter().map(|v| v.strides[axes.clone()].to_vec()).collect();
        collapse(&out.shape[axes], &sides)
    };
    let (mut shape, mut strides) = part(0..axis);
    let (behind, steps) = part(axis + 1..out.shape.len());
    let inner: usize = behind.iter().product();
    let dense = |(v, steps): (&View, &Vec<isize>)| {
        behind.len() == 1 && inner > 1 && steps == &[1] && (v.shape[axis] <= 1 || v.strides[axis] == inner as isize)
    };
    let place = shape.len();
    let whole = step.reads.iter().zip(&steps).all(dense);
    // What follows densely is part of the axis.
    let each = if whole { inner } else { 1 };
    for ((own, view), steps) in strides.iter_mut().zip(&step.reads).zip(&steps) {
        own.push(if whole { 1 } else { view.strides[axis] });
        own.extend(steps.iter().filter(|_| !whole && inner != 1));
    }
    let ends: Vec<usize> = step
        .reads
        .iter()
        .scan(0, |at, v| {
            *at += v.shape[axis] * each;
            Some(*at)
        })
        .collect();
    shape.push(ends.last().copied().unwrap_or(0));
    shape.extend(behind.iter().filter(|_| !whole && inner != 1));
    let (rows, n) = rows_of(&shape);
    let mut work = Work::new(rows, n).sizes(SizeName::Axes, &shape).sizes(SizeName::Ends, &ends);
    for (i, own) in strides.iter().enumerate() {
        work = work.strides(ArgRole::Read(i), own);
    }
    let moves = Move::Concat { count: step.reads.len(), axis: place, rank: shape.len() };
    Some((move_body("concat", moves, out.dtype), work))
}

/// A pad with each last axis that nothing is added to as part of the axis before it: short rows, as
/// those of channels that lie last, leave threads idle.
fn with_long_rows(x: &View, out: &[usize], before: &[i64]) -> (View, Vec<usize>, Vec<i64>) {
    let (mut x, mut out, mut before) = (x.clone(), out.to_vec(), before.to_vec());
    while let ([.., rows, row], [.., apart, 1]) = (x.shape.as_slice(), x.strides.as_slice()) {
        let (rows, row) = (*rows, *row);
        if out.last() != Some(&row) || before.last() != Some(&0) || *apart != row as isize {
            break;
        }
        for sizes in [&mut x.shape, &mut out] {
            sizes.pop();
            sizes.iter_mut().last().into_iter().for_each(|size| *size *= row);
        }
        before.pop();
        before.iter_mut().last().into_iter().for_each(|b| *b *= row as i64);
        x.strides.pop();
        x.strides.iter_mut().last().into_iter().for_each(|s| *s = 1);
        debug_assert_eq!(x.shape.last(), Some(&(rows * row)));
    }
    (x, out, before)
}

fn pad(step: &Step, before: &[i64]) -> Option<(Body, Work)> {
    let ([x, _], [out]) = (step.reads.as_slice(), step.writes.as_slice()) else { return None };
    let (x, out, before) = with_long_rows(x, &out.shape, before);
    let (rows, n) = rows_of(&out);
    let shape = ranked(&out, 1);
    let mut work = Work::new(rows, n).sizes(SizeName::Axes, &shape).sizes(SizeName::Data, &ranked(&x.shape, 1));
    work.sizes.push((SizeName::Before, ranked(&before, 0)));
    let work = work.strides(ArgRole::Read(0), &ranked(&x.strides, 0));
    Some((move_body("pad", Move::Pad { rank: shape.len() }, x.dtype), work))
}

fn unfold(step: &Step, how: &UnfoldStep) -> Option<(Body, Work)> {
    let ([x], [out]) = (step.reads.as_slice(), step.writes.as_slice()) else { return None };
    let ([image, _, windows], [channels, _]) = (how.axes(), how.channels([x.shape.len(), out.shape.len()]));
    let (axes, _) = rows_and_columns(&how.windows, &x.shape[image], &out.shape[windows])?;
    let channels = how.channels_last.then_some(x.shape[channels]);
    let kernel = UnfoldKernel { name: "unfold".into(), doc: String::new(), dtype: x.dtype, axes, channels };
    Some((Body::Unfold(kernel), Work::new(1, out.len())))
}

fn pool(step: &Step, how: &PoolStep) -> Option<(Body, Work)> {
    let ([x], [out]) = (step.reads.as_slice(), step.writes.as_slice()) else { return None };
    let ([_, image @ .., channels], [_, counts @ .., _]) = (x.shape.as_slice(), out.shape.as_slice()) else {
        return None;
    };
    let (axes, _) = rows_and_columns(&how.windows, image, counts)?;
    let (name, kind) = ("pool".to_string(), how.kind);
    let kernel = PoolKernel { name, doc: String::new(), dtype: x.dtype, axes, channels: *channels, kind };
    PoolKernel::fits(axes, *channels, x.dtype, kind).then(|| (Body::Pool(kernel), Work::new(1, out.len())))
}

fn gather(step: &Step, axis: usize) -> Option<(Body, Work)> {
    let ([x, ids], [out]) = (step.reads.as_slice(), step.writes.as_slice()) else { return None };
    let (outer, inner): (usize, usize) = (x.shape[..axis].iter().product(), x.shape[axis + 1..].iter().product());
    let count = ids.len();
    let work = Work::new(outer * count, inner)
        .sizes(SizeName::Axes, &[outer, count, inner])
        .size(SizeName::Size, x.shape[axis]);
    Some((move_body("gather", Move::Gather { index: ids.dtype }, out.dtype), work))
}

fn gather_elements(step: &Step, axis: usize) -> Option<(Body, Work)> {
    let ([x, ids], [out]) = (step.reads.as_slice(), step.writes.as_slice()) else { return None };
    let (rows, n) = rows_of(&out.shape);
    let work = Work::new(rows, n).sizes(SizeName::Axes, &out.shape).size(SizeName::Size, x.shape[axis]);
    let work = work.strides(ArgRole::Read(0), &x.strides);
    let moves = Move::GatherElements { index: ids.dtype, axis, rank: out.shape.len() };
    Some((move_body("gather_elements", moves, out.dtype), work))
}

fn gather_nd(step: &Step, batch: usize) -> Option<(Body, Work)> {
    let ([x, ids], [out]) = (step.reads.as_slice(), step.writes.as_slice()) else { return None };
    let (width, lead) = ids.shape.split_last()?;
    let (outer, tuples): (usize, usize) = (lead[..batch].iter().product(), lead[batch..].iter().product());
    let inner: usize = x.shape[batch + width..].iter().product();
    let strides = row_major(&x.shape);
    let mut work = Work::new(outer * tuples, inner)
        .sizes(SizeName::Axes, &[outer, tuples, inner])
        .size(SizeName::Batch, x.shape[batch..].iter().product())
        .sizes(SizeName::Dims, &x.shape[batch..batch + width]);
    work.sizes.push((SizeName::Steps, strides[batch..batch + width].iter().map(|s| *s as i64).collect()));
    Some((move_body("gather_nd", Move::GatherNd { index: ids.dtype, width: *width }, out.dtype), work))
}

/// A layout whose rows run along the given axes: the remaining axes, then the given ones, each
/// group collapsed, and their strides.
fn row_layout(view: &View, axes: &[usize]) -> RowLayout {
    let part = |inside: bool| {
        let chosen = (0..view.shape.len()).filter(|a| axes.contains(a) == inside);
        let (shape, strides): (Vec<usize>, Vec<isize>) = chosen.map(|a| (view.shape[a], view.strides[a])).unzip();
        let (shape, strides) = collapse(&shape, &[strides]);
        (shape, strides.into_iter().next().unwrap_or_default())
    };
    let ((mut sizes, mut strides), (row, of_row)) = (part(false), part(true));
    let outer = sizes.len();
    sizes.extend(row);
    strides.extend(of_row);
    RowLayout { sizes, outer, strides: vec![strides] }
}

fn reduce(step: &Step, kind: Reduction, axes: &[usize]) -> Option<(Body, Work)> {
    let ([x], [out]) = (step.reads.as_slice(), step.writes.as_slice()) else { return None };
    let input = |i: u32| {
        let mut t = Term::empty();
        let root = t.add(TermNode::In { input: i, view: InView::Broadcast });
        t.roots.push(root);
        t
    };
    let mut layout = row_layout(x, axes);
    let mut of_out = row_major(&layout.sizes[..layout.outer]);
    of_out.resize(layout.sizes.len(), 0);
    layout.strides.push(of_out);
    let access = match layout.access(0) {
        access @ (RowAccess::Full | RowAccess::Strided) => access,
        // A repeated row is read with strides.
        _ => RowAccess::Strided,
    };
    let mut kernel = RowwiseKernel {
        name: format!("{kind:?}").to_lowercase(),
        doc: String::new(),
        inputs: vec![(x.dtype, access)],
        steps: vec![(kind, input(0))],
        outputs: vec![(out.dtype, RowAccess::PerRow, input(1))],
        axes: [1, 1],
        gathers: Vec::new(),
        sums: Vec::new(),
        groups: None,
    };
    if kernel.strided() {
        kernel.axes = [layout.outer, layout.sizes.len() - layout.outer];
    }
    let step = RowwiseStep { rows: layout.rows(), n: layout.n(), kernel, layout, lookups: Vec::new() };
    Some(rowwise(&step))
}

fn argmax(step: &Step, axis: usize, last: bool) -> Option<(Body, Work)> {
    let x = step.reads.first()?;
    let layout = row_layout(x, &[axis]);
    let kernel = ArgmaxKernel { name: "argmax".into(), doc: String::new(), dtype: x.dtype, outer: layout.outer, last };
    let work = Work::new(layout.rows(), layout.n()).sizes(SizeName::Axes, &layout.sizes);
    Some((Body::Argmax(kernel), work.strides(ArgRole::Read(0), &layout.strides[0])))
}
