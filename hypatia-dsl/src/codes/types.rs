//! H03xx: types and shapes.

use super::Row;

/// In the order of their codes.
pub(super) const ROWS: &[Row] = &[
    Row::new(
        301,
        "wrong number of axes",
        "An operand has too few or too many axes: a matrix product needs at least two on both sides, and all
operands of `concat` must have the same number. The message names the operand, what it must be and what it
is. Add or remove axes of size 1 with `reshape`. Only pointwise functions broadcast, as numpy does.",
        "test \"a vector\" {\n  input v: f32[256]; input w: f32[256, 10];\n  given matmul(v, w);\n  expect launches \
         == 1;\n}",
        "test \"a row\" {\n  input v: f32[1, 256]; input w: f32[256, 10];\n  given matmul(v, w);\n  expect launches \
         == 1;\n}",
    ),
    Row::new(
        302,
        "element types do not fit",
        "Operands that must have the same element type differ, or the op does not accept the element type: `exp`
is undefined for integers, indices must be integers, `and` needs bool. There is no implicit promotion,
because the place where a value is rounded decides what a fusion may do. Convert with
`cast(x, to = f32)`.",
        "test \"mixed\" {\n  input x: f32[4]; input y: f16[4];\n  given x + y;\n  expect launches == 1;\n}",
        "test \"converted\" {\n  input x: f32[4]; input y: f16[4];\n  given x + cast(y, to = f32);\n  expect \
         launches == 1;\n}",
    ),
    Row::new(
        303,
        "an attribute does not fit",
        "The value of an attribute is missing, has the wrong type, or is out of range. Axes count from 0, or from
the end with -1 for the last, and must exist. A permutation names each axis once. Sizes are at least 0;
-1 does not mean \"infer this size\". The positions of `slice` lie inside the axis.",
        "test \"an axis twice\" {\n  input x: f32[4, 8];\n  given exp(transpose(x, perm = [0, 0]));\n  expect \
         launches == 1;\n}",
        "test \"each axis once\" {\n  input x: f32[4, 8];\n  given exp(transpose(x, perm = [1, 0]));\n  expect \
         launches == 1;\n}",
    ),
    Row::new(
        304,
        "sizes that must agree do not",
        "Two sizes must be equal, but differ, or one is a symbol such as `batch` and they are not equal for every
value of it. This concerns the inner sizes of a matrix product, the number of elements before and after
a `reshape`, the sizes beside the axis of a `concat`, and every size variable that occurs twice in an
op's types. The message shows both types and both sizes. Often an operand must be transposed.",
        "test \"inner sizes\" {\n  input x: f32[128, 256]; input w: f32[512, 256];\n  given matmul(x, w);\n  expect \
         launches == 1;\n}",
        "test \"inner sizes\" {\n  input x: f32[128, 256]; input w: f32[512, 256];\n  given matmul(x, transpose(w, \
         perm = [1, 0]));\n  expect launches == 1;\n}",
    ),
    Row::new(
        305,
        "shapes do not broadcast",
        "Pointwise functions, the leading axes of a matrix product and `expand` broadcast as numpy does: shapes
are aligned at the last axis, and two sizes are compatible if they are equal or one of them is 1. A
symbolic size is compatible only with itself and 1, because anything else fails for some value of the
symbol. A vector along the first axis needs a following axis of size 1.",
        "test \"a column\" {\n  input x: f32[128, 256]; input b: f32[128];\n  given x + b;\n  expect launches == 1;\n}",
        "test \"a column\" {\n  input x: f32[128, 256]; input b: f32[128];\n  given x + reshape(b, shape = [128, \
         1]);\n  expect launches == 1;\n}",
    ),
    Row::new(
        306,
        "a requirement of the op does not hold",
        "The declaration of the op has a `requires` that is false for these operands and attributes, or that
depends on the value of a symbol. A requirement must be known to hold: a rule or kernel that relies on
it could otherwise compute wrong numbers. The message shows the requirement as declared.",
        "op halves<T: float>(x: T[n]) -> T[n] = exp(x) { requires n % 2 == 0; }\ntest \"odd\" {\n  input x: \
         f32[3];\n  given halves(x);\n  expect launches == 1;\n}",
        "op halves<T: float>(x: T[n]) -> T[n] = exp(x) { requires n % 2 == 0; }\ntest \"even\" {\n  input x: \
         f32[4];\n  given halves(x);\n  expect launches == 1;\n}",
    ),
    Row::new(
        307,
        "wrong number of operands",
        "The op or scalar takes more or fewer tensors than are given. Operands marked `?` in the declaration can
be omitted, `*xs` stands for any number of operands, and all others are required. If a node of a model
has this error, the message names the node.",
        "test \"no operand\" { input x: f32[4]; given concat(axis = 0); expect launches == 0; }",
        "test \"two operands\" { input x: f32[4]; given concat(x, x, axis = 0); expect launches == 1; }",
    ),
    Row::new(
        308,
        "the type of a result cannot be computed",
        "The operands match, but a size or the element type of the result cannot be computed: a formula divides
by zero, overflows, depends on an unknown value while sizes are symbolic, or gives a negative size. Write
the size in the result's type as a formula of the operands' sizes that is defined for all of them, or
replace the symbolic sizes with numbers.",
        "op joined(*xs: T[..s]) -> T[..s] = concat(..xs, axis = 0);\n\
         test \"of what?\" { input x: f32[4]; given joined(); expect launches == 0; }",
        "op joined(*xs: T[m, k]) -> T[2 * m, k] = concat(..xs, axis = 0);\n\
         test \"of x\" { input x: f32[4, 2]; given joined(x, x); expect launches == 1; }",
    ),
    Row::new(
        309,
        "the epilogue of a product of bytes gives another type",
        "Products of i8 and u8 are summed in i32, so `acc` is an i32 in their epilogues. What is stored as an
integer is one of that type: write `cast(.., to = i8)`, which wraps an i32 and saturates a float. Operands
that meet `acc` are i32, or `acc` is cast first: `cast(acc, to = f32) * row(scale)`. A rule whose right side
would be such a product is not applied.",
        "use core::*;\ntest \"narrow\" {\n  input x: i8[4, 8]; input w: i8[8, 4];\n  given gemm(x, w, acc, \
         to = i8);\n  expect launches == 1;\n}",
        "use core::*;\ntest \"narrow\" {\n  input x: i8[4, 8]; input w: i8[8, 4];\n  given gemm(x, w, \
         cast(acc, to = i8), to = i8);\n  expect launches == 1;\n}",
    ),
    Row::new(
        320,
        "wrong number of arguments",
        "An op, scalar, pattern or attribute function is given more or fewer arguments than it declares, or a
result is used that it does not have. The message shows the declaration. Optional operands, marked `?`,
and attributes with a default can be omitted. If an op has several results, `.0` selects the first.",
        "scalar f(x) = max(x);",
        "scalar f(x) = max(x, 0);",
    ),
    Row::new(
        321,
        "argument names",
        "An argument name does not occur in the declaration, or an argument is given twice, once by position and
once by name. Operands and attributes can both be named; scalars take their arguments by position only.",
        "ruleset r { until = fixpoint; }\nrule r::a: transpose(x, perms = p) => transpose(x, perm = p) class exact;",
        "ruleset r { until = fixpoint; }\nrule r::a: transpose(transpose(x, perm = p), perm = q) => transpose(x, \
         perm = [p[i] for i in q]);",
    ),
    Row::new(
        322,
        "an attribute has no value",
        "On a right side, in a body and in a test, every attribute needs a value unless its declaration has a
default. The compiler cannot infer it.",
        "test \"turned\" {\n  input x: f32[2, 3];\n  given transpose(x);\n  expect launches == 1;\n}",
        "test \"turned\" {\n  input x: f32[2, 3];\n  given transpose(x, perm = [1, 0]);\n  expect launches == 1;\n}",
    ),
    Row::new(
        323,
        "wrong sort",
        "The language distinguishes tensors, lists of tensors, epilogue terms, attributes and sizes, and element
types. An expression of one sort occurs where another is expected. `in(t)` reads a tensor in a term,
`value(t)` gives the number in a tensor of one element, `shape(t)` and `dim(t, i)` give its sizes, and
`..xs` passes a variadic operand.",
        "ruleset r { until = fixpoint; }\nrule r::a: add(gemm(a, b, e, to = d), t) => gemm(a, b, add(e, t), to = d);",
        "ruleset r { until = fixpoint; }\nrule r::a: add(y @ gemm(a, b, e, to = d), t) => gemm(a, b, add(e, in(t)), \
         to = d)\n  requires broadcast(shape(y), shape(t)) == shape(y);",
    ),
    Row::new(
        324,
        "wrong type of an attribute",
        "The value of an attribute, or an operand of an operator on attributes, has the wrong type: a list instead
of a number, a boolean in arithmetic, a comparison of values that are never equal. The declaration of
the op shows the type of each attribute.",
        "test \"turned\" {\n  input x: f32[2, 3];\n  given transpose(x, perm = 1);\n  expect launches == 1;\n}",
        "test \"turned\" {\n  input x: f32[2, 3];\n  given transpose(x, perm = [1, 0]);\n  expect launches == 1;\n}",
    ),
    Row::new(
        325,
        "malformed type",
        "The type of a tensor consists of an element type and sizes, `T[..s, m, k]`: at most one `..` for several
sizes, element types by name or as a variable that starts with a capital, and in a result only names that
an operand binds. The types of attributes are int, ints, axis, axes, float, floats, bool, dtype, dim,
dims and string.",
        "op twice(x: fp32[..s]) -> f32[..s] = x + x;\ntest \"t\" { input x: f32[2]; given twice(x); expect launches \
         == 1; }",
        "op twice(x: f32[..s]) -> f32[..s] = x + x;\ntest \"t\" { input x: f32[2]; given twice(x); expect launches \
         == 1; }",
    ),
    Row::new(
        326,
        "the body does not have the declared type",
        "An op declares the type of its result, but its body has another type. Callers rely on the declaration, so
both must agree for all sizes. The note shows operands for which they differ, with the names of the
declaration.",
        "op total(x: T[..s, n]) -> T[..s, n] = sum(x, axes = [-1]);\ntest \"t\" { input x: f32[2, 3]; given \
         total(x); expect launches == 1; }",
        "op total(x: T[..s, n]) -> T[..s, 1] = sum(x, axes = [-1]);\ntest \"t\" { input x: f32[2, 3]; given \
         total(x); expect launches == 1; }",
    ),
    Row::new(
        327,
        "not built in",
        "`builtin` means that Hypatia itself defines the function. Only a short list of functions is built in, and
`core` declares them all; another declaration must match the one in `core`. Everything else needs a body.
A body is enough: shapes, reference, gradient and cost follow from it.",
        "scalar softsign(x) builtin;",
        "scalar softsign(x) = x / (1 + abs(x));",
    ),
    Row::new(
        328,
        "a number where a boolean is needed",
        "Scalars compute with numbers and with booleans, and there is no implicit conversion. Comparisons, `not`,
`and`, `or` and `isnan` return booleans; arithmetic needs numbers. `select(c, 1, 0)` converts a boolean
to a number, and `x != 0` a number to a boolean.",
        "scalar step(x) = (x > 0) * x;",
        "scalar step(x) = select(x > 0, x, 0);",
    ),
    Row::new(
        329,
        "an operand that may be absent",
        "An operand marked `?` can be absent, but the body or right side uses it as if it were always present; or
`else` follows an operand that is always present. Write the default: `(b else 0)`. To pass an optional
operand to an optional operand of another op, no `else` is needed.",
        "op shift(x: T[..s, n], b: T[n]?) -> T[..s, n] = x + b;\ntest \"t\" { input x: f32[2, 3]; given shift(x); \
         expect launches == 1; }",
        "op shift(x: T[..s, n], b: T[n]?) -> T[..s, n] = x + (b else 0);\ntest \"t\" { input x: f32[2, 3]; given \
         shift(x); expect launches == 1; }",
    ),
    Row::new(
        330,
        "not allowed here",
        "The expression is well-formed, but not allowed here: alternatives or `_` on a right side, a tuple inside
an operand, a set outside `in`. Left sides describe graphs, right sides build them, and guards compute
with attributes. Each uses its own part of the language.",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x | neg(neg(x));",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x;",
    ),
    Row::new(
        331,
        "wrong number of derivatives",
        "`grad` lists the derivatives of a scalar by its parameters, in their order, so it needs one for each
parameter. `grad` of an op, `grad(y, dy) = ...`, names each result and then the gradient of each, and has
one expression for each operand whose elements can be floats. `grad` can be omitted: derivatives are
then computed from the body. A written derivative is checked against the body.",
        "scalar scaled(x, s) = x * s grad s;",
        "scalar scaled(x, s) = x * s grad s, x;",
    ),
    Row::new(
        332,
        "a division by zero",
        "A size or integer is divided by 0, or is taken modulo 0. The result is undefined, so the type would
match nothing and the guard would never hold.",
        "op halves(x: T[..s, n]) -> T[..s, n / 0] = slice(x, axis = -1, start = 0, stop = n / 2);\ntest \"t\" { \
         input x: f32[2, 6]; given halves(x); expect launches == 1; }",
        "op halves(x: T[..s, n]) -> T[..s, n / 2] = slice(x, axis = -1, start = 0, stop = n / 2);\ntest \"t\" { \
         input x: f32[2, 6]; given halves(x); expect launches == 1; }",
    ),
];
