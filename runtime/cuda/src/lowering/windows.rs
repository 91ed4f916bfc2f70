//! Convolutions on planes, or with channels last: the kernel of a step, and its arguments.
//!
//! In: a [`ConvStep`] that the planner left as it is. Out: its kernel and its [`Work`]; none if it
//! is no such convolution. Invariant: image and filters are read as they lie, without padding; only
//! operands of the epilogue have strides.

use hypatia_dsl::kernel::{Access, ChannelWindowsKernel, GroupWindowsKernel, Operand, WindowsKernel};
use hypatia_plan::{ConvStep, OnPlanes, Step, View, row_major};
use hypatia_templates::cuda::{ArgRole, SizeName};
use hypatia_templates::instances::Body;

use super::Work;

/// Operands before those of the epilogue.
const FACTORS: usize = 2;

/// The kernel of a convolution.
pub(super) fn windows(step: &Step, c: &ConvStep) -> Option<(Body, Work)> {
    let ([x, w, beside @ ..], [out]) = (step.reads.as_slice(), step.writes.as_slice()) else { return None };
    let on = c.on_planes(x, w, out)?;
    let [_, channels, ..] = out.shape[..] else { return None };
    let accesses: Vec<Access> = beside.iter().map(|v| access(v, out)).collect();
    let inputs = beside.iter().zip(&accesses).map(|(v, a)| Operand { dtype: v.dtype, access: a.clone() });
    let kernel = WindowsKernel {
        name: "windows".into(),
        doc: String::new(),
        factors: [x.dtype, w.dtype],
        axes: on.axes,
        filters: channels / c.groups.max(1),
        acc: c.acc,
        term: c.term.clone(),
        inputs: inputs.collect(),
        output: out.dtype,
        tile: on.tile,
    };
    let mut work = Work::new(kernel.blocks(on.planes), on.planes).size(SizeName::Channels, channels);
    for (i, (view, access)) in beside.iter().zip(accesses).enumerate() {
        if matches!(access, Access::Col | Access::Strided) {
            work = work.strides(ArgRole::Read(i + FACTORS), &strides(view, &on));
        }
    }
    Some((Body::Windows(kernel), work))
}

/// The kernel of a convolution of single channels that lie last.
pub(super) fn channel_windows(step: &Step, c: &ConvStep) -> Option<(Body, Work)> {
    let ([x, w, beside @ ..], [out]) = (step.reads.as_slice(), step.writes.as_slice()) else { return None };
    let on = c.on_channels(x, w, out)?;
    let accesses: Vec<Access> = beside.iter().map(|v| of_channels(v, out)).collect();
    let inputs = beside.iter().zip(&accesses).map(|(v, a)| Operand { dtype: v.dtype, access: a.clone() });
    let kernel = ChannelWindowsKernel {
        name: "windows".into(),
        doc: String::new(),
        factors: [x.dtype, w.dtype],
        axes: on.axes,
        channels: on.channels,
        acc: c.acc,
        term: c.term.clone(),
        inputs: inputs.collect(),
        output: out.dtype,
        passes: 1,
    };
    let kernel = kernel.with_passes(on.images);
    let work = Work::new(kernel.blocks(on.images), on.images);
    Some((Body::ChannelWindows(kernel), with_strides(work, beside, &accesses, on.places)))
}

/// The kernel of a convolution of groups of channels that lie last.
pub(super) fn group_windows(step: &Step, c: &ConvStep) -> Option<(Body, Work)> {
    let ([x, w, beside @ ..], [out]) = (step.reads.as_slice(), step.writes.as_slice()) else { return None };
    let on = c.on_groups(x, w, out)?;
    let accesses: Vec<Access> = beside.iter().map(|v| of_channels(v, out)).collect();
    let inputs = beside.iter().zip(&accesses).map(|(v, a)| Operand { dtype: v.dtype, access: a.clone() });
    let kernel = GroupWindowsKernel {
        name: "windows".into(),
        doc: String::new(),
        factors: x.dtype,
        axes: on.axes,
        groups: on.groups,
        term: c.term.clone(),
        inputs: inputs.collect(),
        output: out.dtype,
        tile: on.tile,
    };
    let work = Work::new(kernel.blocks(on.images), on.images);
    Some((Body::GroupWindows(kernel), with_strides(work, beside, &accesses, on.places)))
}

/// The work with the strides along batch, rows, columns and channels of operands that have any.
/// `places` are the axes of rows and columns.
fn with_strides(mut work: Work, beside: &[View], accesses: &[Access], places: [Option<usize>; 2]) -> Work {
    for (i, (view, access)) in beside.iter().zip(accesses).enumerate() {
        if let (Access::Strided, [batch, .., channel]) = (access, &view.strides[..]) {
            let [rows, columns] = places.map(|place| place.map_or(0, |axis| view.strides[axis]));
            work = work.strides(ArgRole::Read(i + FACTORS), &[*batch, rows, columns, *channel]);
        }
    }
    work
}

/// How an operand with the shape of a result with channels last is read.
fn of_channels(view: &View, out: &View) -> Access {
    let dense = row_major(&out.shape);
    let fixed = |a: usize| view.strides[a] == 0 || view.shape[a] == 1;
    let axes = 0..view.shape.len();
    match () {
        () if axes.clone().all(fixed) => Access::Splat,
        () if (0..3).all(fixed) && view.strides.get(3) == Some(&1) => Access::Row,
        () if axes.clone().all(|a| view.shape[a] == 1 || view.strides[a] == dense[a]) => Access::Full,
        () => Access::Strided,
    }
}

/// How an operand with the shape of the result is read.
fn access(view: &View, out: &View) -> Access {
    let dense = row_major(&out.shape);
    let fixed = |a: usize| view.strides[a] == 0 || view.shape[a] == 1;
    let axes = 0..view.shape.len();
    match () {
        () if axes.clone().all(fixed) => Access::Splat,
        () if axes.clone().skip(2).all(fixed) => Access::Col,
        () if axes.clone().all(|a| view.shape[a] == 1 || view.strides[a] == dense[a]) => Access::Full,
        () => Access::Strided,
    }
}

/// Strides along batch, channels, rows and columns.
fn strides(view: &View, on: &OnPlanes) -> [isize; 4] {
    let along = |place: Option<usize>| place.map_or(0, |a| view.strides[a]);
    [view.strides[0], view.strides[1], along(on.places[0]), along(on.places[1])]
}
