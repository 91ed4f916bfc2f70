//! Shapes of tensors for the copy engine.
//!
//! In: a view and the sizes and strides of its axes, the dense one first. Out: what a descriptor
//! needs; `None` if the copy engine cannot move the tensor. Invariant: strides are in bytes and
//! multiples of 16.

use hypatia_plan::View;

/// Addresses and strides of what the copy engine moves are multiples of this many bytes.
const ALIGNMENT: usize = 16;
/// The largest size of an axis: coordinates are 32-bit integers.
const LARGEST: usize = 1 << 30;
/// The most axes of a tensor that the copy engine moves.
const MAX_RANK: usize = 5;

/// The shape of a tensor for the copy engine, the dense axis first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapShape {
    rank: usize,
    sizes: [u64; MAX_RANK],
    strides: [u64; MAX_RANK - 1],
}

impl MapShape {
    /// From sizes in elements, and bytes between neighbours along each axis but the dense one.
    pub(crate) fn new(sizes: &[u64], strides: &[u64]) -> MapShape {
        let mut out = MapShape { rank: sizes.len(), sizes: [1; MAX_RANK], strides: [0; MAX_RANK - 1] };
        out.sizes[..sizes.len()].copy_from_slice(sizes);
        out.strides[..strides.len()].copy_from_slice(strides);
        out
    }

    /// The shape of a view with these sizes and, but for the dense axis, strides in elements.
    /// `None` if the copy engine cannot move such a tensor.
    pub(super) fn of(view: &View, sizes: &[usize], strides: &[usize]) -> Option<MapShape> {
        let bytes = |elements: usize| elements * view.dtype.size();
        let valid = sizes.len() <= MAX_RANK && sizes.len() == strides.len() + 1;
        if !valid || !sizes.iter().all(|s| (1..LARGEST).contains(s)) || !bytes(view.offset).is_multiple_of(ALIGNMENT) {
            return None;
        }
        let mut out = Vec::with_capacity(strides.len());
        // The stride of an axis of size 1 does not matter, but it must be valid.
        let mut extent = bytes(sizes[0]).next_multiple_of(ALIGNMENT);
        for (size, stride) in sizes[1..].iter().zip(strides) {
            let step = if *size == 1 { extent } else { bytes(*stride) };
            if step == 0 || !step.is_multiple_of(ALIGNMENT) || step >= 1 << 39 {
                return None;
            }
            out.push(step as u64);
            extent = extent.max(step * size);
        }
        // Rows must not overlap.
        let row = out.first().is_none_or(|row| *row >= bytes(sizes[0]) as u64);
        let sizes: Vec<u64> = sizes.iter().map(|s| *s as u64).collect();
        row.then(|| MapShape::new(&sizes, &out))
    }

    /// Sizes in elements, the dense axis first.
    pub fn sizes(&self) -> &[u64] {
        &self.sizes[..self.rank]
    }

    /// Bytes between neighbours along each axis but the dense one.
    pub fn strides(&self) -> &[u64] {
        &self.strides[..self.rank.saturating_sub(1)]
    }
}
