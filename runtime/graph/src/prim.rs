//! Builtin ops with their attributes as plain numbers.
//!
//! In: a builtin op, its attribute values, and the values of the symbols in them. Out: a [`Prim`].
//! The reference evaluator and the planner read attributes only here, so of these only this module
//! depends on the order in which `core.hyp` declares them. (`grad`, whose sizes may stay symbols,
//! reads them itself.) Invariant: axes are in range and sizes are not
//! negative.

use hypatia_dsl::builtin::{BuiltinOp, ScatterReduction, scatter_reduction};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::kernel::Reduction;
use hypatia_dsl::shape::{Dim, show_shape};

use hypatia_tensor::error::{Error, Result};

/// Windows along one axis: window `i` holds the elements `i * stride + j * dilation - before`, for
/// `j` below `size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Number of elements in a window.
    pub size: usize,
    /// Distance between windows.
    pub stride: usize,
    /// Distance between the elements of a window.
    pub dilation: usize,
    /// Zero padding before the first element of the axis.
    pub before: usize,
}

impl Window {
    /// Elements from the first one of the first window to the last one of the last of `count`
    /// windows.
    pub fn span(&self, count: usize) -> usize {
        count.saturating_sub(1) * self.stride + self.size.saturating_sub(1) * self.dilation + 1
    }
}

/// The values of symbols.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<i64>;

/// A builtin op on known sizes. It omits what the result's shape already determines.
#[derive(Clone, Debug, PartialEq)]
pub enum Prim {
    /// Matrix product.
    Matmul,
    /// Matrix product with an epilogue.
    Gemm,
    /// Two matrix products of one left operand, with an epilogue of both.
    Gemm2,
    /// Convolution, with an epilogue if the node has one.
    Conv {
        /// The windows of each spatial axis; `size` is the filter's.
        axes: Vec<Window>,
        /// Number of channel groups.
        groups: usize,
    },
    /// Windows over the last axes, one entry for each.
    Windows(Vec<Window>),
    /// Cast to this type.
    Cast(DType),
    /// Row-major reshape.
    Reshape,
    /// Transpose: axis `i` of the result is axis `perm[i]` of the operand.
    Transpose(Vec<usize>),
    /// Broadcast.
    Expand,
    /// Element `i` along `axis` is element `start + i * step`.
    Slice {
        /// The axis.
        axis: usize,
        /// First element.
        start: i64,
        /// Distance between elements.
        step: i64,
    },
    /// Concatenation along this axis.
    Concat(usize),
    /// Splits along an axis.
    Split {
        /// The axis.
        axis: usize,
        /// The sizes of the parts.
        sizes: Vec<usize>,
    },
    /// Padding before each axis (negative: crop).
    Pad(Vec<i64>),
    /// Gathers slices along this axis.
    Gather(usize),
    /// Gathers single elements along this axis.
    GatherElements(usize),
    /// Gathers slices by index tuples, after this many batch axes.
    GatherNd(usize),
    /// A reduction over these axes, in ascending order.
    Reduce(Reduction, Vec<usize>),
    /// Cumulative sums.
    Cumsum(Cumsum),
    /// Index of the largest element.
    Argmax {
        /// The axis.
        axis: usize,
        /// Among equal elements, the last instead of the first.
        last: bool,
    },
    /// Combines rows with updates, one after the other.
    Scatter(ScatterReduction),
    /// Sort order (indices) along this axis: descending if true, else ascending.
    Argsort(usize, bool),
    /// The index along this axis.
    Iota(usize),
    /// This value in every element.
    Full(f64),
    /// A number.
    Size(i64),
}

/// Options of a cumulative sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cumsum {
    /// The axis.
    pub axis: usize,
    /// Excludes the element itself.
    pub exclusive: bool,
    /// Sums the elements after each one instead of those before it.
    pub reverse: bool,
}

/// The sizes of a shape as numbers.
pub fn sizes(shape: &[Dim], lookup: Lookup) -> Result<Vec<usize>> {
    shape
        .iter()
        .map(|d| d.eval(lookup).and_then(|v| usize::try_from(v).ok()))
        .collect::<Option<Vec<usize>>>()
        .ok_or_else(|| {
            Error::Input(format!("the sizes {} are unknown or negative for these inputs", show_shape(shape)))
        })
}

/// Number of elements; an error if it overflows.
pub fn elements(shape: &[usize]) -> Result<usize> {
    shape
        .iter()
        .try_fold(1usize, |a, d| a.checked_mul(*d))
        .filter(|n| *n <= isize::MAX as usize / 8)
        .ok_or_else(|| Error::Limit(format!("a tensor of shape {shape:?} is too large")))
}

/// Reads attributes in order.
struct Attrs<'a> {
    op: BuiltinOp,
    values: &'a [AttrValue],
    lookup: Lookup<'a>,
}

impl Attrs<'_> {
    fn bad(&self, i: usize) -> Error {
        Error::Type(format!("attribute {i} of {} has no usable value: {:?}", self.op.name(), self.values.get(i)).into())
    }

    fn number(&self, v: &AttrValue) -> Option<i64> {
        match v {
            AttrValue::Dim(d) => d.eval(self.lookup),
            AttrValue::Bool(b) => Some(*b as i64),
            _ => None,
        }
    }

    fn int(&self, i: usize) -> Result<i64> {
        self.values.get(i).and_then(|v| self.number(v)).ok_or_else(|| self.bad(i))
    }

    fn ints(&self, i: usize) -> Result<Vec<i64>> {
        match self.values.get(i) {
            Some(AttrValue::List(l)) => l.iter().map(|v| self.number(v)).collect::<Option<_>>(),
            _ => None,
        }
        .ok_or_else(|| self.bad(i))
    }

    fn counts(&self, i: usize) -> Result<Vec<usize>> {
        let list = self.ints(i)?;
        list.into_iter().map(|v| usize::try_from(v).ok()).collect::<Option<_>>().ok_or_else(|| self.bad(i))
    }

    /// Windows of these sizes; `before` is the attribute that holds the padding, if the op has one.
    fn windows(&self, sizes: &[usize], strides: usize, dilations: usize, before: Option<usize>) -> Result<Vec<Window>> {
        let (strides, dilations) = (self.counts(strides)?, self.counts(dilations)?);
        let before = before.map_or(Ok(vec![0; sizes.len()]), |i| self.counts(i))?;
        if [strides.len(), dilations.len(), before.len()] != [sizes.len(); 3] {
            return Err(self.bad(0));
        }
        let window =
            |i: usize| Window { size: sizes[i], stride: strides[i], dilation: dilations[i], before: before[i] };
        Ok((0..sizes.len()).map(window).collect())
    }

    fn float(&self, i: usize) -> Result<f64> {
        match self.values.get(i) {
            Some(AttrValue::Float(f)) => Ok(*f),
            _ => self.int(i).map(|v| v as f64),
        }
    }

    fn dtype(&self, i: usize) -> Result<DType> {
        match self.values.get(i) {
            Some(AttrValue::DType(d)) => Ok(*d),
            _ => Err(self.bad(i)),
        }
    }

    fn axis_of(&self, i: usize, v: i64, rank: usize) -> Result<usize> {
        let at = if v < 0 { v + rank as i64 } else { v };
        usize::try_from(at).ok().filter(|a| *a < rank).ok_or_else(|| self.bad(i))
    }

    fn axis(&self, i: usize, rank: usize) -> Result<usize> {
        self.axis_of(i, self.int(i)?, rank)
    }

    fn axes(&self, i: usize, rank: usize) -> Result<Vec<usize>> {
        let mut axes = self.ints(i)?.into_iter().map(|v| self.axis_of(i, v, rank)).collect::<Result<Vec<_>>>()?;
        axes.sort_unstable();
        axes.dedup();
        Ok(axes)
    }

    /// A convolution with a filter of that shape.
    fn conv(&self, filter: Option<&[usize]>) -> Result<Prim> {
        let sizes = filter.and_then(|w| w.get(2..)).ok_or_else(|| self.bad(0))?;
        let groups = usize::try_from(self.int(4)?).ok().filter(|g| *g > 0).ok_or_else(|| self.bad(4))?;
        Ok(Prim::Conv { axes: self.windows(sizes, 0, 3, Some(1))?, groups })
    }

    /// A slice of an operand of shape `x`, with a result of shape `result`.
    fn slice(&self, x: &[usize], result: &[usize]) -> Result<Prim> {
        let axis = self.axis(0, x.len())?;
        let size = x.get(axis).copied().unwrap_or(0) as i64;
        let (start, step) = (self.int(1)?, self.int(3)?);
        let count = result.get(axis).copied().unwrap_or(0) as i64;
        // A start outside the axis is clamped to its end. It stays outside only if the slice has no
        // elements.
        let start = if step > 0 { start.clamp(0, size) } else { start.clamp(-1, size - 1) };
        let last = (count - 1).checked_mul(step).and_then(|d| d.checked_add(start)).ok_or_else(|| self.bad(1))?;
        if count > 0 && !((0..size).contains(&start) && (0..size).contains(&last)) {
            return Err(self.bad(1));
        }
        Ok(Prim::Slice { axis, start: if count > 0 { start } else { 0 }, step })
    }
}

impl Prim {
    /// Reads the op with those attributes. `shapes` are the shapes of the tensor operands, `result`
    /// is the shape of the first result.
    pub fn read(
        op: BuiltinOp,
        values: &[AttrValue],
        lookup: Lookup,
        shapes: &[&[usize]],
        result: &[usize],
    ) -> Result<Prim> {
        let a = Attrs { op, values, lookup };
        let first = shapes.first().copied();
        let rank = first.map_or(0, <[usize]>::len);
        let reduce = |kind| Ok(Prim::Reduce(kind, a.axes(0, rank)?));
        match op {
            BuiltinOp::Matmul => Ok(Prim::Matmul),
            BuiltinOp::Gemm => Ok(Prim::Gemm),
            BuiltinOp::Gemm2 => Ok(Prim::Gemm2),
            BuiltinOp::Conv | BuiltinOp::ConvGemm => a.conv(shapes.get(1).copied()),
            BuiltinOp::Windows => Ok(Prim::Windows(a.windows(&a.counts(0)?, 1, 2, None)?)),
            BuiltinOp::Cast => Ok(Prim::Cast(a.dtype(0)?)),
            BuiltinOp::Reshape => Ok(Prim::Reshape),
            BuiltinOp::Transpose => {
                let perm = a.ints(0)?.into_iter().map(|v| a.axis_of(0, v, rank)).collect::<Result<Vec<_>>>()?;
                Ok(Prim::Transpose(perm))
            }
            BuiltinOp::Expand => Ok(Prim::Expand),
            BuiltinOp::Slice => a.slice(first.unwrap_or_default(), result),
            BuiltinOp::Concat => Ok(Prim::Concat(a.axis(0, rank)?)),
            BuiltinOp::Split => {
                let sizes: Option<Vec<usize>> = a.ints(1)?.into_iter().map(|v| usize::try_from(v).ok()).collect();
                Ok(Prim::Split { axis: a.axis(0, rank)?, sizes: sizes.ok_or_else(|| a.bad(1))? })
            }
            BuiltinOp::Pad => {
                let before = a.ints(0)?;
                if before.len() != rank { Err(a.bad(0)) } else { Ok(Prim::Pad(before)) }
            }
            BuiltinOp::Gather => Ok(Prim::Gather(a.axis(0, rank)?)),
            BuiltinOp::GatherElements => Ok(Prim::GatherElements(a.axis(0, rank)?)),
            BuiltinOp::GatherNd => Ok(Prim::GatherNd(usize::try_from(a.int(0)?).map_err(|_| a.bad(0))?)),
            BuiltinOp::Sum => reduce(Reduction::Sum),
            BuiltinOp::Mean => reduce(Reduction::Mean),
            BuiltinOp::Amax => reduce(Reduction::Max),
            BuiltinOp::Amin => reduce(Reduction::Min),
            BuiltinOp::Prod => reduce(Reduction::Prod),
            BuiltinOp::Cumsum => {
                Ok(Prim::Cumsum(Cumsum { axis: a.axis(0, rank)?, exclusive: a.int(1)? != 0, reverse: a.int(2)? != 0 }))
            }
            BuiltinOp::Argmax => Ok(Prim::Argmax { axis: a.axis(0, rank)?, last: a.int(2)? != 0 }),
            BuiltinOp::Argsort => Ok(Prim::Argsort(a.axis(0, rank)?, a.int(1)? != 0)),
            BuiltinOp::Scatter => match values.first() {
                Some(AttrValue::Str(name)) => scatter_reduction(name).map(Prim::Scatter).ok_or_else(|| a.bad(0)),
                _ => Err(a.bad(0)),
            },
            BuiltinOp::Iota => Ok(Prim::Iota(a.axis(1, result.len())?)),
            BuiltinOp::Full => Ok(Prim::Full(a.float(1)?)),
            BuiltinOp::Size => Ok(Prim::Size(a.int(0)?)),
        }
    }
}
