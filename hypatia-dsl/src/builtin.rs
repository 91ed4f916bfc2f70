//! The short list of what is built in: ops whose shape function and reference are Rust, and scalar
//! functions that hardware and libm provide. Everything else is written in `.hyp`.
//!
//! Holds always: no op or scalar name occurs in Rust outside this file and the import tables; the
//! names here are those that `core.hyp` declares with `builtin`.

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
            /// All of them, in the order in which they are listed.
            pub const ALL: &'static [$ty] = &[$($ty::$variant,)*];
            /// The name that `core.hyp` declares.
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
    /// Builtin ops on tensors. Their attributes, in this order, are those of `core.hyp`.
    BuiltinOp {
        /// `matmul(a: T[..s, m, k], b: T[..t, k, n]) -> T[..broadcast(s, t), m, n]`
        Matmul = "matmul",
        /// `gemm(a: T[..s, m, k], b: T[..t, k, n], e: scalar, out: dtype = dtype of a)`: a matmul
        /// whose elements `acc` pass through the term `e`, rounded once to `out` at the store.
        Gemm = "gemm",
        /// `conv(x: T[n, c, ..d], w: T[o, i, ..k], strides: ints, before: ints, after: ints, dilations:
        /// ints, groups: int = 1)`: convolution, one entry of the lists for each axis behind the channels.
        Conv = "conv",
        /// `conv_gemm(x, w, e: scalar, strides: ints, before: ints, after: ints, dilations: ints,
        /// groups: int = 1, to: dtype)`: a conv whose elements `acc` pass through the term `e`.
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
        /// normalised to 0..=size (for a negative step from size-1 down to -1).
        Slice = "slice",
        /// `windows(x, sizes: ints, strides: ints, dilations: ints)`: windows onto the last axes, one
        /// entry of the lists for each; new axes of these sizes stand behind all others.
        Windows = "windows",
        /// `concat(*xs, axis: axis)`
        Concat = "concat",
        /// `split(x, axis: axis, sizes: dims) -> *`
        Split = "split",
        /// `pad(x, value: T[], before: dims, after: dims)`; negative amounts crop.
        Pad = "pad",
        /// `gather(x, indices: I[..], axis: axis)`: numpy take; negative indices from the end.
        Gather = "gather",
        /// `gather_elements(x, indices: I[..], axis: axis)`
        GatherElements = "gather_elements",
        /// `gather_nd(x, indices: I[..], batch: int = 0)`
        GatherNd = "gather_nd",
        /// `scatter(x, indices: I[m], updates, how: string = "set")`: rows of `x` overwritten by those of
        /// `updates`, or joined with them by `add`, `mul`, `min` or `max`; in order, negative from the end.
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
        /// `cumsum(x, axis: axis, exclusive: bool = false, reverse: bool = false)`: sums of all elements up to
        /// each, without itself if `exclusive`, from the end if `reverse`.
        Cumsum = "cumsum",
        /// `argmax(x, axis: axis, keepdims: bool, last: bool = false) -> i64`; NaN is largest.
        Argmax = "argmax",
        /// `argsort(x, axis: axis, descending: bool = false) -> i64`: equal elements keep their order, NaN is
        /// largest.
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
    /// Builtin scalar functions. On integers `div` truncates; comparisons give bool.
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
        /// Larger; NaN if either is NaN.
        Max = "max",
        /// Smaller; NaN if either is NaN.
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
        /// Largest integer not above.
        Floor = "floor",
        /// Smallest integer not below.
        Ceil = "ceil",
        /// Nearest integer, ties to even.
        Round = "round",
        /// Toward zero.
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
    /// What one application costs.
    pub fn cost(self) -> Cost {
        hypatia_target::cost::of(self.name())
    }

    /// Kinds of the parameters.
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

    /// Kind of the result.
    pub fn result(self) -> Kind {
        use BuiltinScalar::*;
        match self {
            Eq | Lt | Le | Not | And | Or | Xor | IsNan | IsInf => Kind::Bool,
            _ => Kind::Number,
        }
    }

    /// True if the arguments may be swapped without changing a bit (`max` of +0 and -0 is +0).
    pub fn commutes(self) -> bool {
        use BuiltinScalar::*;
        matches!(self, Add | Mul | Max | Min | Eq | And | Or | Xor)
    }

    /// True if several operands may be grouped in any way: the result is the same real number. It has the same bits too,
    /// except for sums and products of floats.
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

/// How `scatter` joins an element with one that is there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Joining {
    /// It takes its place.
    Set,
    /// By this function.
    By(BuiltinScalar),
}

/// The ways of joining, by name.
pub const JOININGS: &[(&str, Joining)] = &[
    ("set", Joining::Set),
    ("add", Joining::By(BuiltinScalar::Add)),
    ("mul", Joining::By(BuiltinScalar::Mul)),
    ("min", Joining::By(BuiltinScalar::Min)),
    ("max", Joining::By(BuiltinScalar::Max)),
];

/// The way of joining of that name.
pub fn joining(name: &str) -> Option<Joining> {
    JOININGS.iter().find(|(n, _)| *n == name).map(|(_, j)| *j)
}

/// The result of `select` and the arithmetic ops takes the dtype of its numeric operands; this
/// says what dtype a builtin gives for that operand dtype.
pub fn scalar_result_dtype(s: BuiltinScalar, operand: DType) -> DType {
    match s.result() {
        Kind::Bool => DType::Bool,
        Kind::Number => operand,
    }
}

/// The ways in which an epilogue term reads a tensor, by name.
pub const VIEWS: &[(&str, InView)] =
    &[("in", InView::Broadcast), ("row", InView::Row), ("col", InView::Col), ("full", InView::Full)];

/// The view of that name.
pub fn view(name: &str) -> Option<InView> {
    VIEWS.iter().find(|(n, _)| *n == name).map(|(_, v)| *v)
}

impl BuiltinOp {
    /// Of an op that carries an epilogue term, the op that computes what the term calls `acc`. The two
    /// have the same attributes, but for the last one of the carrier: the element type of its result.
    pub fn accumulator(self) -> Option<BuiltinOp> {
        match self {
            BuiltinOp::Gemm => Some(BuiltinOp::Matmul),
            BuiltinOp::ConvGemm => Some(BuiltinOp::Conv),
            _ => None,
        }
    }

    /// True for sums of products of two operands, which the matrix units of a device compute.
    pub fn multiplies(self) -> bool {
        matches!(self.accumulator().unwrap_or(self), BuiltinOp::Matmul | BuiltinOp::Conv)
    }

    /// Number of operands (a term and a variadic one count one each) and of attributes.
    pub fn arity(self) -> (usize, usize) {
        use BuiltinOp::*;
        match self {
            Matmul => (2, 0),
            Gemm => (3, 1),
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
