//! H03xx: types and shapes.

use super::Row;

/// In the order of their codes.
pub(super) const ROWS: &[Row] = &[
    Row::new(
        301,
        "wrong number of axes",
        "An operand has too few or too many axes for what is applied to it: a matrix product needs at least
two on both sides, `concat` the same number on all. The message names the operand, what it must look
like and what it is. Add or drop axes of size 1 with `reshape`; nothing does so silently, except that
pointwise functions broadcast as numpy does.",
        "test \"a vector\" {\n  input v: f32[256]; input w: f32[256, 10];\n  given matmul(v, w);\n  expect launches == 1;\n}",
        "test \"a row\" {\n  input v: f32[1, 256]; input w: f32[256, 10];\n  given matmul(v, w);\n  expect launches == 1;\n}",
    ),
    Row::new(
        302,
        "element types do not fit",
        "Operands that must have one element type have several, or the element type is one that the op does
not take: `exp` has no meaning on integers, indices must be integers, `and` needs bool. There is no
implicit promotion, because where a value is rounded decides what a fusion may do. Say the conversion
with `cast(x, to = f32)`.",
        "test \"mixed\" {\n  input x: f32[4]; input y: f16[4];\n  given x + y;\n  expect launches == 1;\n}",
        "test \"converted\" {\n  input x: f32[4]; input y: f16[4];\n  given x + cast(y, to = f32);\n  expect launches == 1;\n}",
    ),
    Row::new(
        303,
        "an attribute does not fit",
        "The value of an attribute is missing, of another type than is declared, or outside its range. Axes
are counted from 0, or from the end with -1 for the last, and must exist; a permutation names each
axis once; sizes are at least 0, and -1 does not stand for \"what is left\"; the positions of `slice`
lie inside the axis.",
        "test \"an axis twice\" {\n  input x: f32[4, 8];\n  given exp(transpose(x, perm = [0, 0]));\n  expect launches == 1;\n}",
        "test \"each axis once\" {\n  input x: f32[4, 8];\n  given exp(transpose(x, perm = [1, 0]));\n  expect launches == 1;\n}",
    ),
    Row::new(
        304,
        "sizes that must agree do not",
        "Two sizes must be equal and are not, or one is a symbol such as `batch` and nothing shows that they
are equal for every value of it. The inner sizes of a matrix product, the number of elements around a
`reshape`, the sizes beside the axis of a `concat`, and every size variable that occurs twice in an
op's types are such. The message shows both types and the two sizes; often an operand has to be
transposed.",
        "test \"inner sizes\" {\n  input x: f32[128, 256]; input w: f32[512, 256];\n  given matmul(x, w);\n  expect launches == 1;\n}",
        "test \"inner sizes\" {\n  input x: f32[128, 256]; input w: f32[512, 256];\n  given matmul(x, transpose(w, perm = [1, 0]));\n  expect launches == 1;\n}",
    ),
    Row::new(
        305,
        "shapes do not broadcast",
        "Pointwise functions, the leading axes of a matrix product and `expand` broadcast as numpy does:
shapes are laid against each other from the last axis, and two sizes fit if they are equal or one of
them is 1. A symbolic size fits itself and 1 only, because for some value of the symbol anything else
would be wrong. A vector that runs along the first axis needs an axis of size 1 behind it.",
        "test \"a column\" {\n  input x: f32[128, 256]; input b: f32[128];\n  given x + b;\n  expect launches == 1;\n}",
        "test \"a column\" {\n  input x: f32[128, 256]; input b: f32[128];\n  given x + reshape(b, shape = [128, 1]);\n  expect launches == 1;\n}",
    ),
    Row::new(
        306,
        "a requirement of the op does not hold",
        "The declaration of the op has a `requires`, and for these operands and attributes it is false, or
depends on the value of a symbol. A requirement must be known to hold: what is unknown is refused,
because a rule or kernel that relies on it could give wrong numbers. The message prints the
requirement as it is declared.",
        "op halves(x: T[n]) -> T[n] = exp(x) { requires n % 2 == 0; }\ntest \"odd\" {\n  input x: f32[3];\n  given halves(x);\n  expect launches == 1;\n}",
        "op halves(x: T[n]) -> T[n] = exp(x) { requires n % 2 == 0; }\ntest \"even\" {\n  input x: f32[4];\n  given halves(x);\n  expect launches == 1;\n}",
    ),
    Row::new(
        307,
        "wrong number of operands",
        "More or fewer tensors are given than the op or scalar takes. Operands marked `?` in the declaration
may be left out, `*xs` stands for any number of them, all others must be there. A node of a model can
be wrong in this way too: the message then names the node.",
        "",
        "",
    ),
    Row::new(
        308,
        "the type of a result cannot be worked out",
        "The operands fit, but a size or the element type of the result does not follow: a formula divides by
zero, overflows, asks for something that is unknown while sizes are symbolic, or gives a negative
size. Write the size in the result's type as a formula of the operands' sizes that is defined for
all of them, or give the symbolic sizes numbers.",
        "",
        "",
    ),
];
