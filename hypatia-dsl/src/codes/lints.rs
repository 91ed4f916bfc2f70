//! H05xx: warnings.

use super::Row;

/// In the order of their codes.
pub(super) const ROWS: &[Row] = &[
    Row::new(
        501,
        "an unused variable",
        "The left side or a `let` binds a variable that is not used anywhere else. Often it is a misspelling of
another variable. Write `_` to match any tensor. Sizes in types are exempt, because they document the
type. The same of an attribute of an op that neither its body nor a type or guard reads.",
        "ruleset r { until = fixpoint; }\nrule r::a: matmul(a, exp(log(b))) => matmul(b, b) requires rank(b) == 2, \
         dim(b, 0) == dim(b, 1);",
        "ruleset r { until = fixpoint; }\nrule r::a: matmul(a, exp(log(b))) => matmul(a, b);",
    ),
    Row::new(
        502,
        "a duplicate rule",
        "Another rule of the same ruleset has the same left side, right side and guards, except for the names of
variables. One of the two only costs search time.",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x;\nrule r::b: exp(log(y)) => y;",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x;",
    ),
    Row::new(
        503,
        "a redundant rule",
        "A more general rule of the same ruleset already performs every rewrite of this rule. Remove it. If you
wrote it because the general rule did not fire, `hypatia explain --why-not` shows the reason.",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x;\nrule r::b: exp(log(neg(y))) => neg(y);",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x;",
    ),
    Row::new(
        504,
        "a guard that never holds",
        "A condition is false for all values of its variables or has no value, or two conditions contradict each
other, so the rule or kernel never applies, and an op accepts nothing.",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x requires rank(x) == 2, rank(x) > 2;",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x requires rank(x) >= 2;",
    ),
    Row::new(
        505,
        "an unused op",
        "The op has a body, but no kernel implements it, and no rule, test or other body uses it. If models
contain the body, declare a kernel, so that the compiler searches for it. If the op is meant only for the
builder methods of the macro, add a test.",
        "op twice(x: T[..s]) -> T[..s] = x + x;",
        "op twice(x: T[..s]) -> T[..s] = x + x;\ntest \"twice\" { input x: f32[2]; given twice(x); expect launches \
         == 1; }",
    ),
    Row::new(
        506,
        "a rule that applies without end",
        "The left side matches part of the rule's own right side, so each application enables the next one, and
the ruleset stops at its budget instead of a fixpoint. Reverse the rule, so that it makes expressions
smaller, or add a condition that is false for its own result. Several rules can form such a cycle; the
warning lists them in order.",
        "ruleset r { until = fixpoint; }\nrule r::a: softplus(x) => softplus(softplus(x) - x);\nscalar softplus(x) \
         = log1p(exp(x));",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x;",
    ),
    Row::new(
        507,
        "a pattern that cannot match",
        "The left side uses an op that no graph contains. A defined op is replaced by its body when a model is
imported, and only an op with a kernel is restored. Match the body instead, or give the op a kernel.",
        "ruleset r { until = fixpoint; }\nop twice(x: T[..s]) -> T[..s] = x + x;\nrule r::a: neg(twice(x)) => \
         twice2(neg(x));\nop twice2(x: T[..s]) -> T[..s] = x * 2;",
        "ruleset r { until = fixpoint; }\nop twice(x: T[..s]) -> T[..s] = x + x;\nkernel k for twice(x) { \
         pointwise; }\nrule r::a: neg(twice(x)) => twice(neg(x));",
    ),
    Row::new(
        508,
        "an unused pattern",
        "No rule, kernel or other pattern uses the named pattern, so it has no effect. Use it on a left side, or
remove it. Uses in other files count too.",
        "pattern sq(x) = mul(x, x) | pow(x, 2.0);",
        "ruleset r { until = fixpoint; }\npattern sq(x) = mul(x, x) | pow(x, 2.0);\nrule r::a: sqrt(sq(x)) => abs(x);",
    ),
    Row::new(
        509,
        "a declaration that shadows an imported one",
        "The file declares a name that a `use ...::*` also imports, or that is predefined (`unary`). In this file,
the declaration takes precedence; rules of other files, and the importer of models, still use the other one.
That is seldom intended.",
        "scalar exp(x) = x + 1;",
        "scalar next(x) = x + 1;",
    ),
    Row::new(
        510,
        "an element type for which the body is undefined",
        "The declaration of an op admits element types for which its body is undefined, such as integers for
`exp(x)`; or the left side of a rule matches integers, but the right side is undefined for them. A caller of
the op then gets an error about its body instead of its signature, the rule is not applied, and `verify`
skips these types. Add a bound, `op f<T: float>(x: T[..s])`, or guard the rule with
`requires is_float(dtype(x))`. There is no warning if only `bool` is affected.",
        "op scaled(x: T[..s]) -> T[..s] = x * 0.5;\ntest \"t\" { input x: f32[2]; given scaled(x); expect launches \
         == 1; }",
        "op scaled<T: float>(x: T[..s]) -> T[..s] = x * 0.5;\ntest \"t\" { input x: f32[2]; given scaled(x); expect \
         launches == 1; }",
    ),
    Row::new(
        511,
        "a cost that is negative or no number",
        "A formula `flops`, `read` or `write` gives a negative number, an infinity or NaN for usual sizes. The cost
of the op then follows from its types, as if the formula were not written. `flops` counts operations, `read`
and `write` count bytes. The same goes for what a rule `saves`: there, the estimate counts.",
        "op f<T: float>(x: T[..s, n]) -> T[..s, n] = x / sum(x, axes = [-1]) { flops = n - 100; }
kernel k for f(x) { rowwise; }",
        "op f<T: float>(x: T[..s, n]) -> T[..s, n] = x / sum(x, axes = [-1]) { flops = 2 * prod(out); }
kernel k for f(x) { rowwise; }",
    ),
    Row::new(
        512,
        "a rule that changes nothing",
        "The right side is the left side, as written, so the rule adds nothing to any graph. Often one side was
copied and not edited. The operands of commutative functions need no rule of their own: a pattern matches
them in both orders.",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => exp(log(x));",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x;",
    ),
];
