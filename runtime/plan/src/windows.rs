//! Convolutions as a GPU's kernels compute them: windows on planes, or of channels that lie last,
//! single ones or groups of them, or as a factor of a product.
//!
//! In: a [`ConvStep`], or a product, and the views of its operands. Out: how its windows lie on
//! rows and columns, and how blocks share the work; none if no kernel computes it. Invariant: the
//! planner leaves a convolution as it is exactly if this says that it is one on planes, on channels
//! or on groups.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::{
    ChannelGroups, ChannelWindowsKernel, GroupTile, GroupWindowsKernel, ImageWindows, WindowAxis, WindowTile,
};

use super::step::{ConvStep, FactorWindows, GemmStep};
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
    /// The axes of the result that are its rows and columns; `None` for an axis of one element.
    pub places: [Option<usize>; 2],
    /// Images.
    pub images: usize,
    /// Channels.
    pub channels: usize,
}

/// A convolution of groups of channels that lie last.
#[derive(Clone, Debug, PartialEq)]
pub struct OnGroups {
    /// How windows lie along rows and columns.
    pub axes: [WindowAxis; 2],
    /// The axes of the result that are its rows and columns; `None` for an axis of one element.
    pub places: [Option<usize>; 2],
    /// Images.
    pub images: usize,
    /// Groups, and the channels and filters of each.
    pub groups: ChannelGroups,
    /// What a block has.
    pub tile: GroupTile,
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

impl FactorWindows {
    /// The windows of that image as that product reads them for its left factor or its right one;
    /// `None` if it has another size, or its windows are not in rows and columns.
    pub fn of_product(&self, g: &GemmStep, left: bool, image: &View) -> Option<ImageWindows> {
        let windows = &self.windows.windows;
        let places: usize = windows.iter().map(|w| w.size).product();
        let last = self.windows.channels_last;
        let (n, sizes, all) = match (last, image.shape.as_slice()) {
            (true, [n, sizes @ .., c]) | (false, [n, c, sizes @ ..]) => (*n, sizes, *c),
            _ => return None,
        };
        // The last window begins in the image or in the zeros in front of it.
        let begins = |((w, count), size): ((&Window, &usize), &usize)| {
            count.checked_sub(1).is_some_and(|last| last * w.stride < w.before + size)
        };
        let lie = sizes.len() == windows.len()
            && self.counts.len() == windows.len()
            && windows.iter().zip(&self.counts).zip(sizes).all(begins)
            && image.is_contiguous();
        let (axes, _) = rows_and_columns(windows, sizes, &self.counts).filter(|_| lie)?;
        let channels = g.k.checked_div(places)?;
        let (products, of_image) = (g.batch.iter().product::<usize>(), self.counts.iter().product::<usize>());
        let lines = if left { g.m } else { g.n };
        let fits = match last {
            true => channels == all && products * lines == n * of_image && (left || lines == of_image),
            false => products * channels == n * all && all.is_multiple_of(channels.max(1)) && lines == of_image,
        };
        (fits && g.k == places * channels).then_some(ImageWindows { axes, channels })
    }
}

/// True for a view of an image, its channels last, in whose memory they come first.
fn first_in_memory(x: &View) -> bool {
    x.shape.len() == 4 && x.transposed(&[0, 3, 1, 2]).is_contiguous()
}

/// The axes of rows and columns of a result whose channels are behind them.
fn behind_batch(places: [Option<usize>; 2]) -> [Option<usize>; 2] {
    places.map(|place| place.map(|axis| axis - 1))
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
        let (axes, places) = rows_and_columns(&self.windows, image, counts)?;
        let float = w.dtype.is_float() && !w.dtype.only_stored() && self.acc.is_float();
        let fits = float && ChannelWindowsKernel::fits(axes, *channels, x.dtype);
        fits.then(|| OnChannels { axes, places: behind_batch(places), images: *images, channels: *channels })
    }

    /// The convolution as one of groups of channels that lie last, or of few channels that come
    /// first in memory; `None` if it is none, or has groups or windows that no kernel has. The
    /// filters are views whose channels lie last.
    pub fn on_groups(&self, x: &View, w: &View, out: &View) -> Option<OnGroups> {
        let ([images, counts @ .., all], [filters, depth, ..], [_, image @ .., channels]) =
            (out.shape.as_slice(), w.shape.as_slice(), x.shape.as_slice())
        else {
            return None;
        };
        let count = self.groups;
        let groups = ChannelGroups { count, channels: *depth, filters: filters / count.max(1) };
        let split =
            filters == all && filters.is_multiple_of(count.max(1)) && depth.checked_mul(count) == Some(*channels);
        if !self.channels_last || self.windows.len() != 2 || !split {
            return None;
        }
        let (axes, places) = rows_and_columns(&self.windows, image, counts)?;
        let lies = if groups.is_few() { first_in_memory(x) } else { x.is_contiguous() };
        let last = lies && w.shape.len() == 4 && w.transposed(&[0, 2, 3, 1]).is_contiguous();
        let types = x.dtype == w.dtype && self.acc == DType::F32 && GroupWindowsKernel::stores(out.dtype);
        if !(last && types && GroupWindowsKernel::computes(axes, groups, x.dtype)) {
            return None;
        }
        let tile = GroupTile::of(axes, groups, *images)?;
        Some(OnGroups { axes, places: behind_batch(places), images: *images, groups, tile })
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
