//! The table of imported ONNX ops: their versions, their handlers, and the names they use in the
//! library.
//!
//! This and `hypatia_dsl::builtin` are the only places in Rust that contain names of ops and
//! scalars.
//!
//! Invariant: a row's versions are those of ONNX's own schema, from the one that applies at opset
//! 13 on (checked against a list that the `onnx` package wrote), and its target handles all of
//! them.

use super::context::{Ctx, Out};
use super::ops::{
    attention, einsum, index, linear, make, norm, order, pointwise, quantize, quantized, reduce, resize, sample, views,
    window,
};

/// An ONNX op.
pub(super) struct Row {
    /// Its name in the default domain.
    pub op: &'static str,
    /// The opsets that defined or changed it, starting with the definition that applies at opset
    /// 13.
    pub since: &'static [i64],
    /// What it becomes.
    pub target: Target,
    /// Names from the library that the target uses.
    pub names: &'static [&'static str],
}

/// What an ONNX op becomes.
pub(super) enum Target {
    /// The scalar `names[0]` applied to all operands.
    Scalar,
    /// The scalar `names[0]` applied to the operands in reverse order.
    Swapped,
    /// The scalar `names[0]` applied to the operands and to these attributes with their defaults.
    With(&'static [(&'static str, f32)]),
    /// The binary scalar `names[0]`, folded over any number of operands.
    Fold,
    /// A handler function.
    Run(fn(&mut Ctx) -> Out),
}

impl Target {
    /// Imports a node.
    pub fn apply(&self, ctx: &mut Ctx) -> Out {
        match self {
            Target::Scalar => pointwise::scalar(ctx, false),
            Target::Swapped => pointwise::scalar(ctx, true),
            Target::With(attrs) => pointwise::with(ctx, attrs),
            Target::Fold => pointwise::fold(ctx),
            Target::Run(f) => f(ctx),
        }
    }
}

const fn scalar(op: &'static str, since: &'static [i64], names: &'static [&'static str]) -> Row {
    Row { op, since, target: Target::Scalar, names }
}
const fn swapped(op: &'static str, since: &'static [i64], names: &'static [&'static str]) -> Row {
    Row { op, since, target: Target::Swapped, names }
}
const fn with(
    op: &'static str,
    since: &'static [i64],
    names: &'static [&'static str],
    attrs: &'static [(&'static str, f32)],
) -> Row {
    Row { op, since, target: Target::With(attrs), names }
}
const fn fold(op: &'static str, since: &'static [i64], names: &'static [&'static str]) -> Row {
    Row { op, since, target: Target::Fold, names }
}
const fn run(op: &'static str, since: &'static [i64], f: fn(&mut Ctx) -> Out, names: &'static [&'static str]) -> Row {
    Row { op, since, target: Target::Run(f), names }
}

/// All rows, by name.
#[rustfmt::skip]
pub(super) static ROWS: &[Row] = &[
    scalar("Abs", &[13], &["abs"]),
    scalar("Acos", &[7, 22], &["acos"]),
    scalar("Acosh", &[9, 22], &["acosh"]),
    scalar("Add", &[13, 14], &["add"]),
    scalar("And", &[7], &["and"]),
    run("ArgMax", &[13], reduce::arg_max, &[]),
    run("ArgMin", &[13], reduce::arg_min, &[]),
    scalar("Asin", &[7, 22], &["asin"]),
    scalar("Asinh", &[9, 22], &["asinh"]),
    scalar("Atan", &[7, 22], &["atan"]),
    scalar("Atanh", &[9, 22], &["atanh"]),
    run("Attention", &[23, 24, 25], attention::attention, &["softmax"]),
    run("AveragePool", &[11, 19, 22], window::average, &[]),
    run("BatchNormalization", &[9, 14, 15], norm::batch, &[]),
    run("BitShift", &[11, 28], pointwise::bit_shift, &[]),
    run("Cast", &[13, 19, 21, 23, 24, 25, 28], pointwise::cast, &[]),
    run("CastLike", &[15, 19, 21, 23, 24, 25], pointwise::cast_like, &[]),
    scalar("Ceil", &[13], &["ceil"]),
    with("Celu", &[12, 28], &["celu"], &[("alpha", 1.0)]),
    run("CenterCropPad", &[18], order::center_crop_pad, &[]),
    run("Clip", &[13], pointwise::clip, &[]),
    run("Compress", &[11, 28], order::compress, &[]),
    run("Concat", &[13], views::concat, &[]),
    run("Constant", &[13, 19, 21, 23, 24, 25], make::constant, &[]),
    run("ConstantOfShape", &[9, 20, 21, 23, 24, 25], make::constant_of_shape, &[]),
    run("Conv", &[11, 22], window::conv, &[]),
    run("ConvInteger", &[10], quantized::conv_integer, &[]),
    run("ConvTranspose", &[11, 22], window::conv_transpose, &[]),
    scalar("Cos", &[7, 22], &["cos"]),
    scalar("Cosh", &[9, 22], &["cosh"]),
    run("CumProd", &[26], index::cumulative_product, &[]),
    run("CumSum", &[11, 14], index::cumulative_sum, &[]),
    run("DepthToSpace", &[13, 28], views::depth_to_space, &[]),
    run("DequantizeLinear", &[13, 19, 21, 23, 24, 25, 28], quantize::dequantize, &[]),
    scalar("Div", &[13, 14], &["div"]),
    run("Dropout", &[13, 22], make::dropout, &[]),
    run("DynamicQuantizeLinear", &[11], quantize::dynamic, &[]),
    run("Einsum", &[12, 28], einsum::einsum, &[]),
    with("Elu", &[6, 22], &["elu"], &[("alpha", 1.0)]),
    run("Equal", &[13, 19], pointwise::equal, &[]),
    scalar("Erf", &[13], &["erf"]),
    scalar("Exp", &[13], &["exp"]),
    run("Expand", &[13], views::expand, &[]),
    run("EyeLike", &[9, 22], order::eye_like, &[]),
    run("Flatten", &[13, 21, 23, 24, 25], views::flatten, &[]),
    scalar("Floor", &[13], &["floor"]),
    run("Gather", &[13], index::gather, &[]),
    run("GatherElements", &[13], index::gather_elements, &[]),
    run("GatherND", &[13], index::gather_nd, &[]),
    run("Gelu", &[20], pointwise::gelu, &["gelu", "gelu_tanh"]),
    run("Gemm", &[13], linear::gemm, &[]),
    run("GlobalAveragePool", &[1, 22], reduce::global_average, &[]),
    run("GlobalLpPool", &[2, 22], window::global_lp, &[]),
    run("GlobalMaxPool", &[1, 22], reduce::global_max, &[]),
    swapped("Greater", &[13], &["lt"]),
    swapped("GreaterOrEqual", &[12, 16], &["le"]),
    run("GridSample", &[16, 20, 22], sample::grid_sample, &[]),
    run("GroupNormalization", &[18, 21], norm::group, &[]),
    with("HardSigmoid", &[6, 22], &["hard_sigmoid"], &[("alpha", 0.2), ("beta", 0.5)]),
    scalar("HardSwish", &[14, 22], &["hardswish"]),
    run("Hardmax", &[13], norm::hardmax, &[]),
    run("Identity", &[13, 14, 16, 19, 21, 23, 24, 25], make::identity, &[]),
    run("InstanceNormalization", &[6, 22], norm::instance, &[]),
    run("IsInf", &[10, 20], pointwise::is_inf, &[]),
    scalar("IsNaN", &[13, 20], &["isnan"]),
    run("LRN", &[13], norm::local_response, &[]),
    run("LayerNormalization", &[17], norm::layer, &["layer_norm"]),
    with("LeakyRelu", &[6, 16], &["leaky_relu"], &[("alpha", 0.01)]),
    scalar("Less", &[13], &["lt"]),
    scalar("LessOrEqual", &[12, 16], &["le"]),
    scalar("Log", &[13], &["log"]),
    run("LogSoftmax", &[13], norm::softmax, &["log_softmax"]),
    run("LpNormalization", &[1, 22], norm::lp_norm, &[]),
    run("LpPool", &[11, 18, 22], window::lp, &[]),
    run("MatMul", &[13], linear::matmul, &[]),
    run("MatMulInteger", &[10], quantized::matmul_integer, &[]),
    fold("Max", &[13], &["max"]),
    run("MaxPool", &[12, 22], window::max, &[]),
    run("Mean", &[13], pointwise::mean, &["add"]),
    run("MeanVarianceNormalization", &[13], norm::mean_variance, &[]),
    fold("Min", &[13], &["min"]),
    scalar("Mish", &[18, 22], &["mish"]),
    run("Mod", &[13, 28], pointwise::modulo, &["remainder"]),
    scalar("Mul", &[13, 14], &["mul"]),
    scalar("Neg", &[13], &["neg"]),
    run("NonZero", &[13], order::non_zero, &[]),
    scalar("Not", &[1], &["not"]),
    run("OneHot", &[11, 28], index::one_hot, &[]),
    scalar("Or", &[7], &["or"]),
    run("PRelu", &[9, 16], pointwise::prelu, &["leaky_relu"]),
    run("Pad", &[13, 18, 19, 21, 23, 24, 25], views::pad, &[]),
    run("Pow", &[13, 15], pointwise::pow, &[]),
    run("QLinearConv", &[10], quantized::conv_linear, &[]),
    run("QLinearMatMul", &[10, 21], quantized::matmul_linear, &[]),
    run("QuantizeLinear", &[13, 19, 21, 23, 24, 25, 28], quantize::quantize, &[]),
    run("RMSNormalization", &[23], norm::rms, &["rms_norm"]),
    run("Range", &[11, 27], make::range, &[]),
    scalar("Reciprocal", &[13], &["recip"]),
    run("ReduceL1", &[13, 18], reduce::l1, &[]),
    run("ReduceL2", &[13, 18], reduce::l2, &[]),
    run("ReduceLogSum", &[13, 18, 28], reduce::log_sum, &[]),
    run("ReduceLogSumExp", &[13, 18, 28], reduce::log_sum_exp, &["logsumexp"]),
    run("ReduceMax", &[13, 18, 20], reduce::max, &[]),
    run("ReduceMean", &[13, 18], reduce::mean, &[]),
    run("ReduceMin", &[13, 18, 20], reduce::min, &[]),
    run("ReduceProd", &[13, 18], reduce::prod, &[]),
    run("ReduceSum", &[13], reduce::sum, &[]),
    run("ReduceSumSquare", &[13, 18], reduce::sum_square, &[]),
    scalar("Relu", &[13, 14], &["relu"]),
    run("Reshape", &[13, 14, 19, 21, 23, 24, 25], views::reshape, &[]),
    run("Resize", &[13, 18, 19], resize::resize, &[]),
    run("ReverseSequence", &[10, 28], order::reverse_sequence, &[]),
    run("RotaryEmbedding", &[23], attention::rotary, &[]),
    scalar("Round", &[11, 22], &["round"]),
    run("ScatterElements", &[13, 16, 18], order::scatter_elements, &[]),
    run("ScatterND", &[13, 16, 18], order::scatter_nd, &[]),
    with("Selu", &[6, 22], &["selu"], &[("alpha", 1.673_263_2), ("gamma", 1.050_701)]),
    run("Shape", &[13, 15, 19, 21, 23, 24, 25], views::shape, &[]),
    with("Shrink", &[9], &["shrink"], &[("lambd", 0.5), ("bias", 0.0)]),
    scalar("Sigmoid", &[13], &["sigmoid"]),
    scalar("Sign", &[13], &["sign"]),
    scalar("Sin", &[7, 22], &["sin"]),
    scalar("Sinh", &[9, 22], &["sinh"]),
    run("Size", &[13, 19, 21, 23, 24, 25], views::size, &[]),
    run("Slice", &[13], views::slice, &[]),
    run("Softmax", &[13], norm::softmax, &["softmax"]),
    scalar("Softplus", &[1, 22], &["softplus"]),
    scalar("Softsign", &[1, 22], &["softsign"]),
    run("SpaceToDepth", &[13, 28], views::space_to_depth, &[]),
    run("Split", &[13, 18], views::split, &[]),
    scalar("Sqrt", &[13], &["sqrt"]),
    run("Squeeze", &[13, 21, 23, 24, 25], views::squeeze, &[]),
    scalar("Sub", &[13, 14], &["sub"]),
    fold("Sum", &[13], &["add"]),
    run("SwiGLU", &[28], pointwise::swiglu, &["silu", "swish"]),
    run("Swish", &[24], pointwise::swish, &["silu", "swish"]),
    scalar("Tan", &[7, 22], &["tan"]),
    scalar("Tanh", &[13], &["tanh"]),
    with("ThresholdedRelu", &[10, 22], &["thresholded_relu"], &[("alpha", 1.0)]),
    run("Tile", &[13], views::tile, &[]),
    run("TopK", &[11, 24], order::top_k, &[]),
    run("Transpose", &[13, 21, 23, 24, 25], views::transpose, &[]),
    run("Trilu", &[14], index::trilu, &[]),
    run("Unsqueeze", &[13, 21, 23, 24, 25], views::unsqueeze, &[]),
    run("Where", &[9, 16], pointwise::select, &[]),
    scalar("Xor", &[7], &["xor"]),
];

/// The row of an op, and the version of its definition that applies; an error says why there is
/// none.
pub(super) fn find(domain: &str, op: &str, opset: i64) -> Result<(&'static Row, i64), String> {
    if !domain.is_empty() {
        return Err(format!(
            "the operator domain `{domain}` is unknown; declare its ops in a .hyp file and give \
             `--domain {domain}=FILE.hyp`, or export the model with standard ops only"
        ));
    }
    let Ok(i) = ROWS.binary_search_by(|r| r.op.cmp(op)) else {
        return Err(match op {
            "If" | "Loop" | "Scan" => "control flow is not imported; export the model with fixed control flow".into(),
            "" => "the node names no op".into(),
            _ => "export the model without it; docs/onnx-ops.md lists the supported ops".into(),
        });
    };
    let row = &ROWS[i];
    match row.since.iter().rev().find(|v| **v <= opset) {
        Some(v) => Ok((row, *v)),
        None if row.since[0] > 13 => Err(format!("this op exists only from opset {} on", row.since[0])),
        None => Err(format!(
            "only its definitions from opset {} on are known; convert the model with onnx.version_converter",
            row.since[0]
        )),
    }
}

/// A supported ONNX op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supported {
    /// Its domain; empty for the default one.
    pub domain: &'static str,
    /// Its name.
    pub op: &'static str,
    /// The opsets that defined or changed it, starting with the definition that applies at opset
    /// 13.
    pub since: &'static [i64],
}

/// Every supported ONNX op, by name.
pub fn supported() -> Vec<Supported> {
    ROWS.iter().map(|r| Supported { domain: "", op: r.op, since: r.since }).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rows_are_sorted_and_found_by_version() {
        assert!(ROWS.windows(2).all(|w| w[0].op < w[1].op));
        assert!(ROWS.iter().all(|r| r.since.windows(2).all(|w| w[0] < w[1])));
        assert_eq!(find("", "Split", 17).unwrap().1, 13);
        assert_eq!(find("", "Split", 28).unwrap().1, 18);
        assert!(find("", "Relu", 12).is_err_and(|m| m.contains("from opset 13 on")));
        assert!(find("", "Gelu", 19).is_err_and(|m| m.contains("from opset 20")));
        assert!(find("com.microsoft", "Gelu", 20).is_err());
        assert!(find("", "Loop", 20).is_err_and(|m| m.contains("control flow")));
    }
}
