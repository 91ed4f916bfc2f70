//! H05xx: warnings.

use super::Row;

/// In the order of their codes.
pub(super) const ROWS: &[Row] = &[
    Row::new(
        501,
        "a variable that is never used",
        "The left side or a `let` binds a variable that occurs nowhere else. That is often a slip: two
mentions of one operand that were spelled differently. Write `_` where any tensor will do. Sizes in
types are exempt, because they explain the type.",
        "ruleset r { until = fixpoint; }\nrule r::a: matmul(a, exp(log(b))) => matmul(b, b) requires rank(b) == 2, dim(b, 0) == dim(b, 1);",
        "ruleset r { until = fixpoint; }\nrule r::a: matmul(a, exp(log(b))) => matmul(a, b);",
    ),
    Row::new(
        502,
        "a rule that is there already",
        "Another rule of the same ruleset has the same left side, right side and guards, apart from the names
of variables. One of the two does nothing but cost time in every search.",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x;\nrule r::b: exp(log(y)) => y;",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x;",
    ),
    Row::new(
        503,
        "a rule inside a more general one",
        "Every rewrite of this rule is one that a more general rule does as well, in the same ruleset. It can
be removed; if it was written because the general one did not fire, `hypatia explain --why-not`
tells the reason.",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x;\nrule r::b: exp(log(neg(y))) => neg(y);",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x;",
    ),
    Row::new(
        504,
        "a guard that never holds",
        "A condition is false whatever the variables are, or two conditions exclude each other, so that the
rule or kernel never applies.",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x requires rank(x) == 2, rank(x) > 2;",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x requires rank(x) >= 2;",
    ),
    Row::new(
        505,
        "an op that nothing uses",
        "The op has a body, and neither a kernel implements it nor does a rule, a test or another body
mention it. If models contain it under another form, a kernel makes the compiler look for its body;
if it is meant for the builder methods of the macro only, a test keeps it honest.",
        "op twice(x: T[..s]) -> T[..s] = x + x;",
        "op twice(x: T[..s]) -> T[..s] = x + x;\ntest \"twice\" { input x: f32[2]; given twice(x); expect launches == 1; }",
    ),
    Row::new(
        506,
        "a rule that feeds itself",
        "The left side matches a part of its own right side, so that each application makes room for the
next, and the ruleset ends at its budget instead of a fixpoint. Turn the rule round, so that it
makes things smaller, or add a condition that its own result does not meet. Several rules may feed
each other in a circle; the warning names them in their order.",
        "ruleset r { until = fixpoint; }\nrule r::a: softplus(x) => softplus(softplus(x) - x);\nscalar softplus(x) = log1p(exp(x));",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x;",
    ),
    Row::new(
        507,
        "a pattern that nothing can meet",
        "The left side mentions an op that no graph holds. A defined op is replaced by its body when a model
enters, and only ops with a kernel get their name back. Match what the body says, or give the op a
kernel.",
        "ruleset r { until = fixpoint; }\nop twice(x: T[..s]) -> T[..s] = x + x;\nrule r::a: neg(twice(x)) => twice2(neg(x));\nop twice2(x: T[..s]) -> T[..s] = x * 2;",
        "ruleset r { until = fixpoint; }\nop twice(x: T[..s]) -> T[..s] = x + x;\nkernel k for twice(x) { pointwise; }\nrule r::a: neg(twice(x)) => twice(neg(x));",
    ),
    Row::new(
        508,
        "a pattern that nothing uses",
        "The named pattern is mentioned by no rule, kernel or other pattern, so that it changes nothing. Use it
on a left side, or remove it; uses in other files count too.",
        "pattern sq(x) = mul(x, x) | pow(x, 2.0);",
        "ruleset r { until = fixpoint; }\npattern sq(x) = mul(x, x) | pow(x, 2.0);\nrule r::a: sqrt(sq(x)) => abs(x);",
    ),
    Row::new(
        509,
        "a declaration that hides an imported one",
        "The file declares a name that a `use ...::*` brings in too. Inside this file the own declaration
wins; rules of other files, and the importer of models, keep meaning the other one. That is seldom
intended.",
        "scalar exp(x) = x + 1;",
        "scalar next(x) = x + 1;",
    ),
    Row::new(
        510,
        "an element type without a meaning",
        "The declaration of an op lets in element types for which its body has no meaning, `exp(x)` for integers
say; or the left side of a rule matches integers, and the right side has no meaning for them. Whoever
applies the op to one is told by its body instead of its signature, the rule is not applied, and
`verify` skips what has no meaning. Bound the type, `op f<T: float>(x: T[..s])`, or guard the rule with
`requires is_float(dtype(x))`. That there is no meaning for `bool` alone is not told.",
        "op scaled(x: T[..s]) -> T[..s] = x * 0.5;\ntest \"t\" { input x: f32[2]; given scaled(x); expect launches == 1; }",
        "op scaled<T: float>(x: T[..s]) -> T[..s] = x * 0.5;\ntest \"t\" { input x: f32[2]; given scaled(x); expect launches == 1; }",
    ),
];
