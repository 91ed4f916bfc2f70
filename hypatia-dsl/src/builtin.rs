//! The list of builtins: ops whose shape function and reference are written in Rust, and scalar
//! functions that hardware and libm provide. Everything else is written in `.hyp`.
//!
//! In: a name from `core.hyp`. Out: the builtin, with its operands, kinds and laws. Invariant:
//! outside this file and the import tables, no op or scalar name occurs in Rust; the names here are
//! those that `core.hyp` declares with `builtin`.

use hypatia_target::cost::Cost;
use serde::{Deserialize, Serialize};

use crate::dtype::{DType, Kind};
use crate::term::InView;

macro_rules! builtins {
    ($(#[$doc:meta])* $ty:ident { $($(#[$vdoc:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
        pub enum $ty { $($(#[$vdoc])* $variant,)* }
        impl $ty {
            /// All variants in declaration order.
            pub const ALL: &'static [$ty] = &[$($ty::$variant,)*];
            /// The name that `core.hyp` declares for it.
            pub fn name(self) -> &'static str {
                match self { $($ty::$variant => $name,)* }
            }
            /// The builtin of that name.
            pub fn from_name(name: &str) -> Option<$ty> {
                match name { $($name => Some($ty::$variant),)* _ => None }
            }
        }
    };
}

builtins! {
    /// Builtin ops on tensors. Their attributes are those of `core.hyp`, in the same order.
    BuiltinOp {
        /// `matmul(a: T[..s, m, k], b: T[..t, k, n]) -> T[..broadcast(s, t), m, n]`
        Matmul = "matmul",
        /// `gemm(a: T[..s, m, k], b: T[..t, k, n], e: scalar, to: dtype)`: a matmul that applies
        /// the epilogue `e` to each accumulated element `acc` and rounds once to `to` at the store.
        Gemm = "gemm",
        /// `gemm2(a: T[..s, m, k], b: T[..t, k, n], c: T[..t, k, n], e: scalar, to: dtype)`: two
        /// matmuls of one left operand, `a b` and `a c`; `e` is a term of both accumulators, `acc`
        /// and `acc1`, and is rounded once to `to` at the store.
        Gemm2 = "gemm2",
        /// `conv(x: T[n, c, ..d], w: T[o, i, ..k], strides: ints, before: ints, after: ints,
        /// dilations: ints, groups: int = 1)`: convolution. Each list has one entry per axis after
        /// the channels.
        Conv = "conv",
        /// `conv_gemm(x, w, e: scalar, strides: ints, before: ints, after: ints, dilations: ints,
        /// groups: int = 1, to: dtype)`: a conv that applies the epilogue `e` to each accumulated
        /// element `acc`.
        ConvGemm = "conv_gemm",
        /// `cast(x, to: dtype)`
        Cast = "cast",
        /// `reshape(x, shape: dims)`
        Reshape = "reshape",
        /// `transpose(x, perm: ints)`
        Transpose = "transpose",
        /// `expand(x, shape: dims)`: broadcast to exactly that shape.
        Expand = "expand",
        /// `slice(x, axis: axis, start: dim, stop: dim, step: int = 1)`; `start` and `stop` are
        /// normalised to 0..=size (for a negative step, from size-1 down to -1).
        Slice = "slice",
        /// `windows(x, sizes: ints, strides: ints, dilations: ints)`: sliding windows over the last
        /// axes. Each list has one entry per axis; new axes of these sizes are appended after all
        /// others.
        Windows = "windows",
        /// `concat(*xs, axis: axis)`
        Concat = "concat",
        /// `split(x, axis: axis, sizes: dims) -> *`
        Split = "split",
        /// `pad(x, value: T[], before: dims, after: dims)`; negative amounts crop.
        Pad = "pad",
        /// `gather(x, indices: I[..], axis: axis)`: numpy's `take`; negative indices count from the
        /// end.
        Gather = "gather",
        /// `gather_elements(x, indices: I[..], axis: axis)`
        GatherElements = "gather_elements",
        /// `gather_nd(x, indices: I[..], batch: int = 0)`
        GatherNd = "gather_nd",
        /// `scatter(x, indices: I[m], updates, how: string = "set")`: rows of `updates` replace
        /// rows of `x`, or are combined with them by `add`, `mul`, `min` or `max`. Updates apply in
        /// order; negative indices count from the end.
        Scatter = "scatter",
        /// `sum(x, axes: axes, keepdims: bool)`
        Sum = "sum",
        /// `mean(x, axes: axes, keepdims: bool)`
        Mean = "mean",
        /// `amax(x, axes: axes, keepdims: bool)`: NaN if any is NaN.
        Amax = "amax",
        /// `amin(x, axes: axes, keepdims: bool)`
        Amin = "amin",
        /// `prod(x, axes: axes, keepdims: bool)`
        Prod = "prod",
        /// `cumsum(x, axis: axis, exclusive: bool = false, reverse: bool = false)`: running sums.
        /// `exclusive` leaves out the element itself; `reverse` starts from the end.
        Cumsum = "cumsum",
        /// `argmax(x, axis: axis, keepdims: bool, last: bool = false) -> i64`; NaN counts as the
        /// largest.
        Argmax = "argmax",
        /// `argsort(x, axis: axis, descending: bool = false) -> i64`: a stable sort; NaN counts as
        /// the largest.
        Argsort = "argsort",
        /// `iota(shape: dims, axis: int, to: dtype)`: the index along `axis`.
        Iota = "iota",
        /// `full(shape: dims, value: float, to: dtype)`
        Full = "full",
        /// `size(value: dim) -> i64[]`: a size as a tensor of rank 0.
        Size = "size",
    }
}

builtins! {
    /// Builtin scalar functions. On integers `div` truncates. Comparisons return bool.
    BuiltinScalar {
        /// `a + b`
        Add = "add",
        /// `a - b`
        Sub = "sub",
        /// `a * b`
        Mul = "mul",
        /// `a / b`
        Div = "div",
        /// `-a`
        Neg = "neg",
        /// Absolute value.
        Abs = "abs",
        /// -1, 0 or 1; keeps NaN and the sign of zero.
        Sign = "sign",
        /// The larger value; NaN if either is NaN.
        Max = "max",
        /// The smaller value; NaN if either is NaN.
        Min = "min",
        /// `a ** b`
        Pow = "pow",
        /// `a - trunc(a / b) * b` (C's fmod).
        Fmod = "fmod",
        /// e^x
        Exp = "exp",
        /// Natural logarithm.
        Log = "log",
        /// log(1 + x)
        Log1p = "log1p",
        /// e^x - 1
        Expm1 = "expm1",
        /// Square root.
        Sqrt = "sqrt",
        /// 1 / sqrt(x)
        Rsqrt = "rsqrt",
        /// Error function.
        Erf = "erf",
        /// Hyperbolic tangent.
        Tanh = "tanh",
        /// Sine.
        Sin = "sin",
        /// Cosine.
        Cos = "cos",
        /// Inverse tangent.
        Atan = "atan",
        /// Largest integer not above `x`.
        Floor = "floor",
        /// Smallest integer not below `x`.
        Ceil = "ceil",
        /// Nearest integer, ties to even.
        Round = "round",
        /// Rounds toward zero.
        Trunc = "trunc",
        /// `a == b`
        Eq = "eq",
        /// `a < b`
        Lt = "lt",
        /// `a <= b`
        Le = "le",
        /// `not a`
        Not = "not",
        /// `a and b`
        And = "and",
        /// `a or b`
        Or = "or",
        /// `a xor b`
        Xor = "xor",
        /// `c ? a : b`
        Select = "select",
        /// True for NaN.
        IsNan = "isnan",
        /// True for either infinity.
        IsInf = "isinf",
    }
}

impl BuiltinScalar {
    /// The cost of one application.
    pub fn cost(self) -> Cost {
        hypatia_target::cost::of(self.name())
    }

    /// The kinds of the parameters.
    pub fn params(self) -> &'static [Kind] {
        use BuiltinScalar::*;
        const N: Kind = Kind::Number;
        const B: Kind = Kind::Bool;
        match self {
            Add | Sub | Mul | Div | Max | Min | Pow | Fmod | Eq | Lt | Le => &[N, N],
            Neg | Abs | Sign | Exp | Log | Log1p | Expm1 | Sqrt | Rsqrt | Erf | Tanh | Sin | Cos | Atan | Floor
            | Ceil | Round | Trunc | IsNan | IsInf => &[N],
            Not => &[B],
            And | Or | Xor => &[B, B],
            Select => &[B, N, N],
        }
    }

    /// The kind of the result.
    pub fn result(self) -> Kind {
        use BuiltinScalar::*;
        match self {
            Eq | Lt | Le | Not | And | Or | Xor | IsNan | IsInf => Kind::Bool,
            _ => Kind::Number,
        }
    }

    /// True if the function is commutative to the bit (`max` of +0 and -0 is +0).
    pub fn commutes(self) -> bool {
        use BuiltinScalar::*;
        matches!(self, Add | Mul | Max | Min | Eq | And | Or | Xor)
    }

    /// True if the function is associative over the real numbers. The bits are equal too, except
    /// for sums and products of floats.
    pub fn associates(self) -> bool {
        use BuiltinScalar::*;
        matches!(self, Add | Mul | Max | Min | And | Or | Xor)
    }

    /// True if the function has no meaning on integers.
    pub fn float_only(self) -> bool {
        use BuiltinScalar::*;
        matches!(self, Exp | Log | Log1p | Expm1 | Sqrt | Rsqrt | Erf | Tanh | Sin | Cos | Atan)
    }
}

/// The reduction of `scatter`: how it combines an update with the existing element.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ScatterReduction {
    /// The update replaces it.
    Replace,
    /// This function combines the two.
    Combine(BuiltinScalar),
}

/// The reductions of `scatter`, by name.
pub const SCATTER_REDUCTIONS: &[(&str, ScatterReduction)] = &[
    ("set", ScatterReduction::Replace),
    ("add", ScatterReduction::Combine(BuiltinScalar::Add)),
    ("mul", ScatterReduction::Combine(BuiltinScalar::Mul)),
    ("min", ScatterReduction::Combine(BuiltinScalar::Min)),
    ("max", ScatterReduction::Combine(BuiltinScalar::Max)),
];

/// The reduction of that name.
pub fn scatter_reduction(name: &str) -> Option<ScatterReduction> {
    SCATTER_REDUCTIONS.iter().find(|(n, _)| *n == name).map(|(_, reduction)| *reduction)
}

impl ScatterReduction {
    /// Its name, as in the attribute of `scatter`.
    pub fn name(self) -> &'static str {
        match self {
            ScatterReduction::Replace => "set",
            ScatterReduction::Combine(f) => f.name(),
        }
    }
}

/// The dtype of a builtin's result for that operand dtype: `select` and the arithmetic ops keep the
/// dtype of their numeric operands.
pub fn scalar_result_dtype(s: BuiltinScalar, operand: DType) -> DType {
    match s.result() {
        Kind::Bool => DType::Bool,
        Kind::Number => operand,
    }
}

/// The name of the second accumulator in an epilogue of two products.
pub const SECOND: &str = "acc1";
/// `second(e)`: the term `e` with the second accumulator in place of the first.
pub const OVER_SECOND: &str = "second";

/// The ways an epilogue term can read a tensor, by name.
pub const VIEWS: &[(&str, InView)] =
    &[("in", InView::Broadcast), ("row", InView::Row), ("col", InView::Col), ("full", InView::Full)];

/// The view of that name.
pub fn view(name: &str) -> Option<InView> {
    VIEWS.iter().find(|(n, _)| *n == name).map(|(_, v)| *v)
}

impl BuiltinOp {
    /// For an op with an epilogue: the op that computes `acc`. Both have the same attributes,
    /// except that the op with the epilogue has one more at the end: the element type of its
    /// result.
    pub fn accumulator(self) -> Option<BuiltinOp> {
        match self {
            BuiltinOp::Gemm | BuiltinOp::Gemm2 => Some(BuiltinOp::Matmul),
            BuiltinOp::ConvGemm => Some(BuiltinOp::Conv),
            _ => None,
        }
    }

    /// True for two products of one left operand, whose epilogue has two accumulators.
    pub fn is_pair(self) -> bool {
        self == BuiltinOp::Gemm2
    }

    /// True for matrix products and convolutions (sums of products of two operands), which a
    /// device's matrix units compute.
    pub fn multiplies(self) -> bool {
        matches!(self.accumulator().unwrap_or(self), BuiltinOp::Matmul | BuiltinOp::Conv)
    }

    /// Number of operands (an epilogue term and a variadic operand count as one each) and of
    /// attributes.
    pub fn arity(self) -> (usize, usize) {
        use BuiltinOp::*;
        match self {
            Matmul => (2, 0),
            Gemm => (3, 1),
            Gemm2 => (4, 1),
            Conv => (2, 5),
            ConvGemm => (3, 6),
            Cast | Reshape | Transpose | Expand => (1, 1),
            Slice => (1, 4),
            Windows => (1, 3),
            Concat => (1, 1),
            Split => (1, 2),
            Pad => (2, 2),
            Gather | GatherElements | GatherNd => (2, 1),
            Sum | Mean | Amax | Amin | Prod => (1, 2),
            Scatter => (3, 1),
            Argmax => (1, 3),
            Argsort => (1, 2),
            Cumsum => (1, 3),
            Iota | Full => (0, 3),
            Size => (0, 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_costs_names_builtins() {
        for (name, cost) in hypatia_target::cost::COSTS {
            assert_eq!(BuiltinScalar::from_name(name).map(BuiltinScalar::cost), Some(*cost), "{name}");
        }
    }
}
