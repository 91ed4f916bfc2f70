//! Steps along an axis or by index: integer products, cumulative sums, sorts, scatters.
//!
//! In: such a step, with its workspace from the plan. Out: its kernels in launch order, each with
//! its work. Invariant: a kernel reads only elements that an earlier kernel wrote, in this step or
//! an earlier one.

use hypatia_dsl::builtin::ScatterReduction;
use hypatia_dsl::kernel::{CumsumKernel, ProductKernel, Running, SORT_TILE, ScatterKernel, SortKernel, Sorting};

use hypatia_templates::instances::Body;

use super::{Work, copy};
use hypatia_graph::prim::Cumsum;
use hypatia_plan::{GemmStep, ScanSplit, Step, View, collapse, row_major};

/// The tile of a block of an integer product; must match `templates/product.cu.j2`.
use hypatia_templates::cuda::{ArgRole, PRODUCT_TILE, SizeName};

type Kernels = Option<Vec<(Body, Work)>>;

/// An integer product.
pub(super) fn product(step: &Step, g: &GemmStep) -> Kernels {
    let [a, b, ..] = step.reads.as_slice() else { return None };
    let lead = g.batch.len();
    let (axes, strides) =
        collapse(&g.batch, &[a.strides[..lead].to_vec(), b.strides[..lead].to_vec(), row_major(&g.batch)]);
    let (factors, dtype) = ([a.dtype, b.dtype], step.writes.first()?.dtype);
    let kernel = ProductKernel { name: "product".into(), doc: String::new(), factors, dtype, batch: axes.len() };
    let tiles = axes.iter().product::<usize>() * g.m.div_ceil(PRODUCT_TILE) * g.n.div_ceil(PRODUCT_TILE);
    let work = Work::new(tiles, g.k)
        .sizes(SizeName::Axes, &[axes.as_slice(), &[g.m, g.n]].concat())
        .size(SizeName::K, g.k)
        .strides(ArgRole::Read(0), &[&strides[0][..], &a.strides[lead..]].concat())
        .strides(ArgRole::Read(1), &[&strides[1][..], &b.strides[lead..]].concat());
    Some(vec![(Body::Product(kernel), work)])
}

/// A cumulative sum: one kernel, or the sums of chunks first.
pub(super) fn cumsum(step: &Step, how: Cumsum) -> Kernels {
    let out = step.writes.first()?;
    let parting = ScanSplit::new(&out.shape, how.axis);
    let role = |role: Running| {
        let kernel = CumsumKernel {
            name: "cumsum".into(),
            doc: String::new(),
            dtype: out.dtype,
            exclusive: how.exclusive && role != Running::Sums,
            reverse: how.reverse,
            role,
            columns: parting.columns,
        };
        let chunks = match role {
            Running::Whole => 1,
            Running::Sums => parting.chunks - 1,
            Running::Chunks => parting.chunks,
        };
        let mut work = Work::new(parting.lines() * chunks, parting.length);
        for (name, size) in [SizeName::Outer, SizeName::Size, SizeName::Inner].into_iter().zip(parting.sizes) {
            work = work.size(name, size);
        }
        let work = work.size(SizeName::Chunks, parting.chunks).size(SizeName::Length, parting.length);
        (Body::Cumsum(kernel), work)
    };
    let bound = |(body, work): (Body, Work), sums: &View| (body, work.view(ArgRole::Sums, sums));
    Some(match step.workspace().first() {
        Some(sums) => vec![bound(role(Running::Sums), sums), bound(role(Running::Chunks), sums)],
        None => vec![role(Running::Whole)],
    })
}

/// The operand of a sort, and the destination of its order.
struct Sort<'a> {
    /// The elements.
    of: &'a View,
    /// The sorted axis.
    axis: usize,
    descending: bool,
    /// If the elements are indices: the size of the axis that they index.
    indices: Option<usize>,
    /// The destination of the order.
    to: &'a View,
    /// Workspace for a second order of the same size, if the lines are long.
    room: Option<&'a View>,
}

impl Sort<'_> {
    /// The kernels: sorted tiles, then merges that alternate between the order and the workspace,
    /// so that the last one writes the order.
    fn kernels(&self) -> Kernels {
        let n = *self.of.shape.get(self.axis)?;
        let lead: Vec<usize> = (0..self.of.shape.len()).filter(|a| *a != self.axis).collect();
        let shape: Vec<usize> = lead.iter().map(|a| self.of.shape[*a]).collect();
        let steps = |strides: &[isize]| lead.iter().map(|a| strides[*a]).collect::<Vec<isize>>();
        let in_room: Vec<isize> = row_major(&shape).iter().map(|s| s * n as isize).collect();
        let (mut sizes, mut strides) = collapse(&shape, &[steps(&self.of.strides), steps(&self.to.strides), in_room]);
        let (outer, lines) = (sizes.len(), sizes.iter().product::<usize>());
        sizes.push(n);
        for (strides, along) in strides.iter_mut().zip([self.of.strides[self.axis], self.to.strides[self.axis], 1]) {
            strides.push(along);
        }
        let [of_x, of_to, of_room] = strides.as_slice() else { return None };
        let to = (self.to, of_to);
        let merges = n.div_ceil(SORT_TILE).next_power_of_two().trailing_zeros() as usize;
        let other = if merges > 0 { (self.room?, of_room) } else { to };
        // The destination of pass `i`: the last pass writes the order.
        let written = |i: usize| if (merges - i).is_multiple_of(2) { to } else { other };
        let work = |rows: usize, role: Sorting, (view, strides): (&View, &Vec<isize>)| {
            let kernel = SortKernel {
                name: "sort".into(),
                doc: String::new(),
                dtype: self.of.dtype,
                outer,
                descending: self.descending,
                indices: self.indices.is_some(),
                role,
            };
            let work = Work::new(rows, n)
                .view(ArgRole::Read(0), self.of)
                .view(ArgRole::To, view)
                .sizes(SizeName::Axes, &sizes);
            let work = work.strides(ArgRole::Read(0), of_x).strides(ArgRole::To, strides);
            (Body::Sort(kernel), work.size(SizeName::Size, self.indices.unwrap_or(0)))
        };
        let mut out = vec![work(lines * n.div_ceil(SORT_TILE), Sorting::Tiles, written(0))];
        for i in 0..merges {
            let (body, merge) = work(lines, Sorting::Merge, written(i + 1));
            let (view, strides) = written(i);
            out.push((
                body,
                merge.view(ArgRole::From, view).strides(ArgRole::From, strides).size(SizeName::Run, SORT_TILE << i),
            ));
        }
        Some(out)
    }
}

/// Argsort: the indices in sorted order.
pub(super) fn argsort(step: &Step, axis: usize, descending: bool) -> Kernels {
    let (of, to, room) = (step.reads.first()?, step.writes.first()?, step.workspace().first());
    Sort { of, axis, descending, indices: None, to, room }.kernels()
}

/// A scatter with a join: a copy, an argsort of the indices, then each row joined with all its
/// updates.
pub(super) fn scatter(step: &Step, reduction: ScatterReduction) -> Kernels {
    let ([x, ids, updates], Some(out)) = (step.reads.as_slice(), step.writes.first()) else { return None };
    let mut kernels = vec![copy(x, out)];
    let Some(order) = step.workspace().first() else { return Some(kernels) };
    let size = *x.shape.first()?;
    let room = step.workspace().get(1);
    kernels.extend(Sort { of: ids, axis: 0, descending: false, indices: Some(size), to: order, room }.kernels()?);
    let (name, doc) = ("scatter".into(), String::new());
    let kernel = ScatterKernel { name, doc, dtype: out.dtype, index: ids.dtype, reduction };
    let work = Work::new(ids.len(), updates.shape[1..].iter().product()).size(SizeName::Size, size);
    kernels.push((Body::Scatter(kernel), work.view(ArgRole::Order, order)));
    Some(kernels)
}
