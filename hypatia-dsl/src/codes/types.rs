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
        "op halves<T: float>(x: T[n]) -> T[n] = exp(x) { requires n % 2 == 0; }\ntest \"odd\" {\n  input x: f32[3];\n  given halves(x);\n  expect launches == 1;\n}",
        "op halves<T: float>(x: T[n]) -> T[n] = exp(x) { requires n % 2 == 0; }\ntest \"even\" {\n  input x: f32[4];\n  given halves(x);\n  expect launches == 1;\n}",
    ),
    Row::new(
        307,
        "wrong number of operands",
        "More or fewer tensors are given than the op or scalar takes. Operands marked `?` in the declaration
may be left out, `*xs` stands for any number of them, all others must be there. A node of a model can
be wrong in this way too: the message then names the node.",
        "test \"no operand\" { input x: f32[4]; given concat(axis = 0); expect launches == 0; }",
        "test \"two operands\" { input x: f32[4]; given concat(x, x, axis = 0); expect launches == 1; }",
    ),
    Row::new(
        308,
        "the type of a result cannot be worked out",
        "The operands fit, but a size or the element type of the result does not follow: a formula divides by
zero, overflows, asks for something that is unknown while sizes are symbolic, or gives a negative
size. Write the size in the result's type as a formula of the operands' sizes that is defined for
all of them, or give the symbolic sizes numbers.",
        "op joined(*xs: T[..s]) -> T[..s] = concat(..xs, axis = 0);\n\
         test \"of what?\" { input x: f32[4]; given joined(); expect launches == 0; }",
        "op joined(*xs: T[m, k]) -> T[2 * m, k] = concat(..xs, axis = 0);\n\
         test \"of x\" { input x: f32[4, 2]; given joined(x, x); expect launches == 1; }",
    ),
    Row::new(
        320,
        "wrong number of arguments",
        "An op, scalar, pattern or function of attributes is given more or fewer arguments than it is
declared with, or a result is asked for that it does not have. The message shows the declaration.
Optional operands, marked `?`, and attributes with a default may be left out; of an op with several
results `.0` names the first.",
        "scalar f(x) = max(x);",
        "scalar f(x) = max(x, 0);",
    ),
    Row::new(
        321,
        "argument names",
        "An argument is given by a name that the declaration does not have, or is given twice, once by its
place and once by its name. Operands and attributes may both be named; scalars take their arguments
by place only.",
        "ruleset r { until = fixpoint; }\nrule r::a: transpose(x, perms = p) => transpose(x, perm = p) class exact;",
        "ruleset r { until = fixpoint; }\nrule r::a: transpose(transpose(x, perm = p), perm = q) => transpose(x, perm = [p[i] for i in q]);",
    ),
    Row::new(
        322,
        "an attribute has no value",
        "On a right side, in a body and in a test every attribute needs a value, unless its declaration gives
a default. There is nothing from which the compiler could guess it.",
        "test \"turned\" {\n  input x: f32[2, 3];\n  given transpose(x);\n  expect launches == 1;\n}",
        "test \"turned\" {\n  input x: f32[2, 3];\n  given transpose(x, perm = [1, 0]);\n  expect launches == 1;\n}",
    ),
    Row::new(
        323,
        "wrong sort",
        "The language keeps tensors, lists of tensors, epilogue terms, attributes with sizes, and element
types apart. Something of one sort stands where another is needed. A tensor becomes a term by
`in(t)`, its one value a number by `value(t)`, and its sizes are `shape(t)` and `dim(t, i)`; a
variadic operand is spliced by `..xs`.",
        "ruleset r { until = fixpoint; }\nrule r::a: add(gemm(a, b, e, to = d), t) => gemm(a, b, add(e, t), to = d);",
        "ruleset r { until = fixpoint; }\nrule r::a: add(y @ gemm(a, b, e, to = d), t) => gemm(a, b, add(e, in(t)), to = d)\n  requires broadcast(shape(y), shape(t)) == shape(y);",
    ),
    Row::new(
        324,
        "wrong type of an attribute",
        "The value of an attribute, or an operand of an operator on attributes, is of another type than is
needed: a list where one number must stand, a truth value in arithmetic, a comparison of things that
are never equal. The declaration of the op says what each of its attributes is.",
        "test \"turned\" {\n  input x: f32[2, 3];\n  given transpose(x, perm = 1);\n  expect launches == 1;\n}",
        "test \"turned\" {\n  input x: f32[2, 3];\n  given transpose(x, perm = [1, 0]);\n  expect launches == 1;\n}",
    ),
    Row::new(
        325,
        "malformed type",
        "A tensor's type is an element type and sizes, `T[..s, m, k]`: at most one rest of sizes with `..`,
element types by their names or a variable that starts with a capital, and in a result only names
that an operand binds. Attributes have types of their own: int, ints, axis, axes, float, floats,
bool, dtype, dim, dims, string.",
        "op twice(x: fp32[..s]) -> f32[..s] = x + x;\ntest \"t\" { input x: f32[2]; given twice(x); expect launches == 1; }",
        "op twice(x: f32[..s]) -> f32[..s] = x + x;\ntest \"t\" { input x: f32[2]; given twice(x); expect launches == 1; }",
    ),
    Row::new(
        326,
        "the body is not of the declared type",
        "An op declares the type of its result, and its body computes another one. Users of the op rely on
the declaration, so that both must agree for all sizes. The note shows operands for which they do
not; the sizes in it are the declaration's own names.",
        "op total(x: T[..s, n]) -> T[..s, n] = sum(x, axes = [-1]);\ntest \"t\" { input x: f32[2, 3]; given total(x); expect launches == 1; }",
        "op total(x: T[..s, n]) -> T[..s, 1] = sum(x, axes = [-1]);\ntest \"t\" { input x: f32[2, 3]; given total(x); expect launches == 1; }",
    ),
    Row::new(
        327,
        "not built in",
        "`builtin` says that Hypatia itself knows the meaning. That holds for a short list only, which `core`
declares; a declaration of one must be as it is there. Everything else needs a body, and a body
alone is enough: shapes, reference, gradient and cost follow from it.",
        "scalar softsign(x) builtin;",
        "scalar softsign(x) = x / (1 + abs(x));",
    ),
    Row::new(
        328,
        "a number where a truth value is needed",
        "Scalars compute with numbers and with truth values, and neither becomes the other silently.
Comparisons, `not`, `and`, `or`, `isnan` give truth values; arithmetic needs numbers. `select(c, 1,
0)` makes a number of a truth value, `x != 0` the reverse.",
        "scalar step(x) = (x > 0) * x;",
        "scalar step(x) = select(x > 0, x, 0);",
    ),
    Row::new(
        329,
        "an operand that may be absent",
        "An operand marked `?` may be missing, and the body or right side uses it as if it were always there;
or `else` stands behind something that always is. Say what takes its place: `(b else 0)`. Handing an
optional operand on to an optional operand of another op needs no `else`.",
        "op shift(x: T[..s, n], b: T[n]?) -> T[..s, n] = x + b;\ntest \"t\" { input x: f32[2, 3]; given shift(x); expect launches == 1; }",
        "op shift(x: T[..s, n], b: T[n]?) -> T[..s, n] = x + (b else 0);\ntest \"t\" { input x: f32[2, 3]; given shift(x); expect launches == 1; }",
    ),
    Row::new(
        330,
        "no meaning here",
        "The expression is well-formed, but has no meaning where it stands: alternatives or `_` on a right
side, a tuple inside an operand, a set outside `in`. Left sides describe, right sides build, guards
compute with attributes; each takes its own part of the language.",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x | neg(neg(x));",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x;",
    ),
    Row::new(
        331,
        "wrong number of derivatives",
        "`grad` gives the derivative of a scalar by each of its parameters, in their order, so that there
must be as many as parameters. It may be left out altogether: derivatives are worked out from the
body, and a written one is checked against that.",
        "scalar scaled(x, s) = x * s grad s;",
        "scalar scaled(x, s) = x * s grad s, x;",
    ),
    Row::new(
        332,
        "a division by zero",
        "A size or a whole number is divided by 0, or the rest of such a division is asked for. It has no
value, so that the type would fit nothing and the guard would never hold.",
        "op halves(x: T[..s, n]) -> T[..s, n / 0] = slice(x, axis = -1, start = 0, stop = n / 2);\ntest \"t\" { input x: f32[2, 6]; given halves(x); expect launches == 1; }",
        "op halves(x: T[..s, n]) -> T[..s, n / 2] = slice(x, axis = -1, start = 0, stop = n / 2);\ntest \"t\" { input x: f32[2, 6]; given halves(x); expect launches == 1; }",
    ),
];
