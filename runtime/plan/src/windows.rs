//! Convolutions of single channels, as a GPU's kernels compute them: windows on planes, or of
//! channels that lie last.
//!
//! In: a [`ConvStep`] and the views of its operands. Out: how its windows lie on rows and columns,
//! and how blocks share the planes; none if no kernel computes it. Invariant: the planner leaves a
//! convolution as it is exactly if this says that it is one on planes or on channels.

use hypatia_dsl::kernel::{ChannelWindowsKernel, WindowAxis, WindowTile};

use super::step::ConvStep;
use super::view::View;
use hypatia_graph::prim::Window;

/// A convolution on planes.
#[derive(Clone, Debug, PartialEq)]
pub struct OnPlanes {
    /// How windows lie along rows and columns.
    pub axes: [WindowAxis; 2],
    /// The axes of the result that are its rows and columns; `None` for an axis of one element.
    pub places: [Option<usize>; 2],
    /// Planes of the result.
    pub planes: usize,
    /// How blocks share the planes.
    pub tile: WindowTile,
}

/// A convolution of single channels that lie last.
#[derive(Clone, Debug, PartialEq)]
pub struct OnChannels {
    /// How windows lie along rows and columns.
    pub axes: [WindowAxis; 2],
    /// Images.
    pub images: usize,
    /// Channels.
    pub channels: usize,
}

/// The axes of windows as rows and columns, and which axes these are, behind batch and channels;
/// `None` if there are more than two.
pub fn rows_and_columns(
    windows: &[Window],
    image: &[usize],
    counts: &[usize],
) -> Option<([WindowAxis; 2], [Option<usize>; 2])> {
    let axis = |i: usize| {
        let w = windows.get(i)?;
        let (image, out) = (*image.get(i)?, *counts.get(i)?);
        let (size, stride, dilation, before) = (w.size, w.stride, w.dilation, w.before);
        Some(WindowAxis { image, out, size, stride, dilation, before }.plain())
    };
    // Columns of one element leave threads idle.
    match windows.len() {
        1 => Some(([WindowAxis::ONE, axis(0)?], [None, Some(2)])),
        2 if axis(1)? == WindowAxis::ONE => Some(([WindowAxis::ONE, axis(0)?], [None, Some(2)])),
        2 => Some(([axis(0)?, axis(1)?], [Some(2), Some(3)])),
        _ => None,
    }
}

impl ConvStep {
    /// The convolution as one of single channels that lie last; `None` if it is none, or has
    /// windows that a kernel does not hold.
    pub fn on_channels(&self, x: &View, w: &View, out: &View) -> Option<OnChannels> {
        let ([images, counts @ .., all], [filters, 1, ..], [_, image @ .., channels]) =
            (out.shape.as_slice(), w.shape.as_slice(), x.shape.as_slice())
        else {
            return None;
        };
        if !self.channels_last || self.windows.len() != 2 || [filters, all] != [channels; 2] {
            return None;
        }
        let (axes, _) = rows_and_columns(&self.windows, image, counts)?;
        let float = w.dtype.is_float() && !w.dtype.only_stored() && self.acc.is_float();
        let fits = float && ChannelWindowsKernel::fits(axes, *channels, x.dtype);
        fits.then_some(OnChannels { axes, images: *images, channels: *channels })
    }

    /// The convolution as one on planes; `None` if it is none, or has windows that a block does not
    /// hold.
    pub fn on_planes(&self, x: &View, w: &View, out: &View) -> Option<OnPlanes> {
        let ([batch, all, counts @ ..], [_, 1, ..], [_, _, image @ ..]) =
            (out.shape.as_slice(), w.shape.as_slice(), x.shape.as_slice())
        else {
            return None;
        };
        let (axes, places) = rows_and_columns(&self.windows, image, counts)?;
        let planes = batch * all;
        let float = w.dtype.is_float() && !w.dtype.only_stored() && self.acc.is_float();
        let tile = WindowTile::of(axes, [x.dtype, self.acc], planes).filter(|_| float && !self.channels_last)?;
        Some(OnPlanes { axes, places, planes, tile })
    }
}
