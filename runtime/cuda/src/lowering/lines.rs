//! Steps over lines and places: products of integers, running sums, sorts, scatters.
//!
//! In: such a step, with the memory that its plan gave it to work in. Out: its kernels in the order in which they are
//! launched, each with its work. Holds always: every element that a kernel reads was written by one before it, in this
//! step or an earlier one.

use hypatia_dsl::builtin::Joining;
use hypatia_dsl::kernel::{CumsumKernel, ProductKernel, Running, SORT_TILE, ScatterKernel, SortKernel, Sorting};

use hypatia_templates::instances::Body;

use super::{Work, copy};
use hypatia_graph::prim::Cumsum;
use hypatia_plan::{GemmStep, Parting, Step, View, collapse, row_major};

/// Rows and columns that a block of a product computes; as in `templates/product.cu.j2`.
use hypatia_templates::cuda::PRODUCT_TILE;

type Kernels = Option<Vec<(Body, Work)>>;

/// A product of integers.
pub(super) fn product(step: &Step, g: &GemmStep) -> Kernels {
    let [a, b, ..] = step.reads.as_slice() else { return None };
    let lead = g.batch.len();
    let (axes, strides) =
        collapse(&g.batch, &[a.strides[..lead].to_vec(), b.strides[..lead].to_vec(), row_major(&g.batch)]);
    let dtype = a.dtype;
    let kernel = ProductKernel { name: "product".into(), doc: String::new(), dtype, batch: axes.len() };
    let tiles = axes.iter().product::<usize>() * g.m.div_ceil(PRODUCT_TILE) * g.n.div_ceil(PRODUCT_TILE);
    let work = Work::new(tiles, g.k)
        .sizes("sizes", &[axes.as_slice(), &[g.m, g.n]].concat())
        .sizes("k", &[g.k])
        .strides("in0_strides", &[&strides[0][..], &a.strides[lead..]].concat())
        .strides("in1_strides", &[&strides[1][..], &b.strides[lead..]].concat());
    Some(vec![(Body::Product(kernel), work)])
}

/// A running sum: in one kernel, or the sums of chunks first.
pub(super) fn cumsum(step: &Step, how: Cumsum) -> Kernels {
    let out = step.writes.first()?;
    let parting = Parting::new(&out.shape, how.axis);
    let part = |part: Running| {
        let kernel = CumsumKernel {
            name: "cumsum".into(),
            doc: String::new(),
            dtype: out.dtype,
            exclusive: how.exclusive && part != Running::Sums,
            reverse: how.reverse,
            part,
            columns: parting.columns,
        };
        let chunks = match part {
            Running::Whole => 1,
            Running::Sums => parting.chunks - 1,
            Running::Chunks => parting.chunks,
        };
        let mut work = Work::new(parting.lines() * chunks, parting.length);
        for (name, size) in ["outer", "size", "inner"].into_iter().zip(parting.sizes) {
            work = work.sizes(name, &[size]);
        }
        let work = work.sizes("chunks", &[parting.chunks]).sizes("length", &[parting.length]);
        (Body::Cumsum(kernel), work)
    };
    let bound = |(body, work): (Body, Work), sums: &View| (body, work.view("sums", sums));
    Some(match step.workspace().first() {
        Some(sums) => vec![bound(part(Running::Sums), sums), bound(part(Running::Chunks), sums)],
        None => vec![part(Running::Whole)],
    })
}

/// What is sorted, and where its order goes.
struct Sort<'a> {
    /// The elements.
    of: &'a View,
    /// The axis that is sorted.
    axis: usize,
    descending: bool,
    /// They are indices into an axis of that size.
    indices: Option<usize>,
    /// The order.
    to: &'a View,
    /// Room for another order of so many elements, if the lines are long.
    room: Option<&'a View>,
}

impl Sort<'_> {
    /// The kernels: tiles, then merges that go back and forth between the order and the room, to end in the order.
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
        // What pass `i` writes: the last one the order.
        let written = |i: usize| if (merges - i).is_multiple_of(2) { to } else { other };
        let work = |rows: usize, part: Sorting, (view, strides): (&View, &Vec<isize>)| {
            let kernel = SortKernel {
                name: "sort".into(),
                doc: String::new(),
                dtype: self.of.dtype,
                outer,
                descending: self.descending,
                indices: self.indices.is_some(),
                part,
            };
            let work = Work::new(rows, n).view("in0", self.of).view("to", view).sizes("sizes", &sizes);
            let work = work.strides("in0_strides", of_x).strides("to_strides", strides);
            (Body::Sort(kernel), work.sizes("size", &[self.indices.unwrap_or(0)]))
        };
        let mut out = vec![work(lines * n.div_ceil(SORT_TILE), Sorting::Tiles, written(0))];
        for i in 0..merges {
            let (body, merge) = work(lines, Sorting::Merge, written(i + 1));
            let (view, strides) = written(i);
            out.push((body, merge.view("from", view).strides("from_strides", strides).sizes("run", &[SORT_TILE << i])));
        }
        Some(out)
    }
}

/// Positions in order.
pub(super) fn argsort(step: &Step, axis: usize, descending: bool) -> Kernels {
    let (of, to, room) = (step.reads.first()?, step.writes.first()?, step.workspace().first());
    Sort { of, axis, descending, indices: None, to, room }.kernels()
}

/// Rows joined with others: a copy, the order in which the indices lead, then each row with all that come to it.
pub(super) fn scatter(step: &Step, how: Joining) -> Kernels {
    let ([x, ids, updates], Some(out)) = (step.reads.as_slice(), step.writes.first()) else { return None };
    let mut kernels = vec![copy(x)];
    let Some(order) = step.workspace().first() else { return Some(kernels) };
    let size = *x.shape.first()?;
    let room = step.workspace().get(1);
    kernels.extend(Sort { of: ids, axis: 0, descending: false, indices: Some(size), to: order, room }.kernels()?);
    let (name, doc) = ("scatter".into(), String::new());
    let kernel = ScatterKernel { name, doc, dtype: out.dtype, index: ids.dtype, how };
    let work = Work::new(ids.len(), updates.shape[1..].iter().product()).sizes("size", &[size]);
    kernels.push((Body::Scatter(kernel), work.view("order", order)));
    Some(kernels)
}
