//! Names that other frameworks use, and what to write for them.
//!
//! In: a name of PyTorch, NumPy, TensorFlow or ONNX that is not declared. Out: a hint. Invariant:
//! what a hint tells to write is a builtin.

use crate::dtype::DType;

/// Modules of other frameworks, by the names that programs give them.
const MODULES: [&str; 13] =
    ["F", "aten", "functional", "jax", "jnp", "keras", "math", "nn", "np", "numpy", "tf", "torch", "self"];

/// Functions, and the builtins that compute the same.
const FUNCTIONS: &[(&str, &str)] = &[
    ("absolute", "abs(x)"),
    ("addmm", "c + matmul(a, b)"),
    ("arange", "iota(shape = [n], axis = 0, to = i64)"),
    ("astype", "cast(x, to = f16)"),
    ("bmm", "matmul(a, b)"),
    ("broadcast_to", "expand(x, shape = s)"),
    ("cat", "concat(x, y, axis = a)"),
    ("chunk", "split(x, axis = a, sizes = s).0"),
    ("concatenate", "concat(x, y, axis = a)"),
    ("conv1d", "conv(x, w, ...)"),
    ("conv2d", "conv(x, w, ...)"),
    ("conv3d", "conv(x, w, ...)"),
    ("divide", "x / y"),
    ("dot", "matmul(a, b)"),
    ("einsum", "matmul(a, b)"),
    ("exp2", "2.0 ** x"),
    ("embedding", "gather(w, i, axis = 0)"),
    ("fabs", "abs(x)"),
    ("flatten", "reshape(x, shape = s)"),
    ("full_like", "full(shape = shape(x), value = v, to = dtype(x))"),
    ("index_select", "gather(x, i, axis = a)"),
    ("ln", "log(x)"),
    ("log10", "log(x) * 0.4342944819032518"),
    ("log2", "log(x) * 1.4426950408889634"),
    ("logical_and", "x and y"),
    ("logical_not", "not x"),
    ("logical_or", "x or y"),
    ("maximum", "max(x, y)"),
    ("minimum", "min(x, y)"),
    ("mm", "matmul(a, b)"),
    ("multiply", "x * y"),
    ("mv", "matmul(a, b)"),
    ("ndim", "rank(x)"),
    ("nelement", "numel(x)"),
    ("narrow", "slice(x, axis = a, start = i, stop = j)"),
    ("negative", "-x"),
    ("ones", "full(shape = s, value = 1.0, to = f32)"),
    ("ones_like", "full(shape = shape(x), value = 1.0, to = dtype(x))"),
    ("permute", "transpose(x, perm = p)"),
    ("power", "x ** y"),
    ("reciprocal", "1.0 / x"),
    ("reduce_max", "amax(x, axes = [-1])"),
    ("reduce_mean", "mean(x, axes = [-1])"),
    ("reduce_min", "amin(x, axes = [-1])"),
    ("reduce_sum", "sum(x, axes = [-1])"),
    ("square", "x * x"),
    ("squeeze", "reshape(x, shape = s)"),
    ("stack", "concat(x, y, axis = a)"),
    ("subtract", "x - y"),
    ("tile", "concat(x, x, axis = a)"),
    ("to", "cast(x, to = f16)"),
    ("topk", "argsort(x, axis = -1, descending = true)"),
    ("unsqueeze", "reshape(x, shape = s)"),
    ("view", "reshape(x, shape = s)"),
    ("where", "select(c, x, y)"),
    ("zeros", "full(shape = s, value = 0.0, to = f32)"),
    ("zeros_like", "full(shape = shape(x), value = 0.0, to = dtype(x))"),
];

/// Constants, and how they are written.
const CONSTANTS: &[(&str, &str)] = &[
    ("infinity", "inf"),
    ("inf", "inf"),
    ("nan", "nan"),
    ("pi", "3.141592653589793"),
    ("e", "2.718281828459045"),
    ("none", "none"),
    ("null", "none"),
];

/// Calls that change nothing when a model runs.
const NOTHING: [&str; 7] = ["alpha_dropout", "clone", "contiguous", "detach", "dropout", "identity", "stop_gradient"];

/// Parameters, and the names of ours that they may stand for.
const PARAMETERS: &[(&str, &[&str])] = &[
    ("dim", &["axis", "axes"]),
    ("dims", &["axes", "perm"]),
    ("axis", &["axes"]),
    ("axes", &["axis", "perm"]),
    ("order", &["perm"]),
    ("permutation", &["perm"]),
    ("dtype", &["to"]),
    ("type", &["to"]),
    ("padding", &["before"]),
    ("pads", &["before"]),
    ("epsilon", &["eps"]),
    ("newshape", &["shape"]),
    ("size", &["shape", "sizes"]),
    ("split_size_or_sections", &["sizes"]),
];

/// What to write for a function of another framework.
pub fn function(name: &str) -> Option<String> {
    if NOTHING.contains(&name) {
        return Some(format!("`{name}` changes nothing when a model runs: write its operand alone"));
    }
    if DType::from_name(name).is_some() {
        return Some(format!("write a conversion as `cast(x, to = {name})`"));
    }
    let (_, ours) = FUNCTIONS.iter().find(|(theirs, _)| *theirs == name)?;
    Some(format!("what others call `{name}` is written `{ours}` here"))
}

/// How another language's constant is written.
pub fn constant(name: &str) -> Option<String> {
    let (_, ours) = CONSTANTS.iter().find(|(theirs, ours)| theirs.eq_ignore_ascii_case(name) && *ours != name)?;
    Some(format!("write `{ours}`"))
}

/// How a constant is written that stands in a module of another language.
pub fn number(name: &str) -> Option<String> {
    let own = ["inf", "nan"].contains(&name).then(|| format!("write `{name}`"));
    own.or_else(|| constant(name))
}

/// The parameter among ours that another framework's name stands for.
pub fn parameter<'a>(name: &str, ours: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (_, candidates) = PARAMETERS.iter().find(|(theirs, _)| *theirs == name)?;
    let ours: Vec<&str> = ours.collect();
    candidates.iter().find_map(|c| ours.iter().find(|o| *o == c)).copied()
}

/// Whether programs call a module of another framework so.
pub fn is_module(name: &str) -> bool {
    MODULES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_are_explained() {
        assert!(function("mm").is_some_and(|hint| hint.contains("`matmul(a, b)`")));
        assert!(function("dropout").is_some_and(|hint| hint.contains("its operand alone")));
        assert_eq!(function("matmul"), None);
        assert!(function("bf16").is_some_and(|hint| hint.contains("`cast(x, to = bf16)`")));
        assert_eq!(constant("Infinity").as_deref(), Some("write `inf`"));
        assert_eq!(constant("inf"), None);
        assert_eq!(parameter("dim", ["x", "axis"].into_iter()), Some("axis"));
        assert_eq!(parameter("dim", ["x"].into_iter()), None);
    }
}
