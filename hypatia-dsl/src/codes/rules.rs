//! H04xx: rules.

use super::Row;

/// In the order of their codes.
pub(super) const ROWS: &[Row] = &[
    Row::new(
        401,
        "unbound variable",
        "A right side, a guard or an attribute uses a variable that nothing gives a value. The left side
binds variables: tensors where they stand as operands, attributes as `perm = p`, sizes by a type,
`x: T[..s, k]`. A `let` binds what can be computed from these.",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => y;",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x;",
    ),
    Row::new(
        402,
        "a left side that matches everything",
        "The root of a left side must be an application of an op or a scalar. A bare variable or literal
would match every tensor of every graph, and there is nothing to rewrite in it.",
        "ruleset r { until = fixpoint; }\nrule r::a: x => neg(neg(x));",
        "ruleset r { until = fixpoint; }\nrule r::a: neg(neg(x)) => x;",
    ),
    Row::new(
        403,
        "roots without a common tensor",
        "A rule with several roots looks for several places of the graph at once. They must be held together
by an operand that they share, such as the input of three products; otherwise every place would be
combined with every other one.",
        "ruleset r { until = fixpoint; }\nrule r::a: (p @ matmul(x, v), q @ matmul(y, w)) => (p, q);",
        "ruleset r { until = fixpoint; }\nrule r::a: (matmul(x, v), matmul(x, w)) => split(matmul(x, concat(v, w, axis = 1)), axis = 1, sizes = [dim(v, 1), dim(w, 1)])\n  requires rank(v) == 2, rank(w) == 2;",
    ),
    Row::new(
        404,
        "unequal numbers of roots",
        "Each root of the left side is replaced by one expression of the right side, in order. One
application of an op with several results stands for all of them.",
        "ruleset r { until = fixpoint; }\nrule r::a: (exp(x), log(x)) => exp(x);",
        "ruleset r { until = fixpoint; }\nrule r::a: (neg(exp(x)), neg(log(x))) => (neg(exp(x)), neg(log(x)));",
    ),
    Row::new(
        405,
        "a condition that is no truth value",
        "`requires`, `prefer`, `if` and `not` need something that is true or false. A number or a list is
neither; compare it with something.",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x requires rank(x);",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x requires rank(x) == 2;",
    ),
    Row::new(
        406,
        "a fact in the wrong guard",
        "`requires` decides whether a rewrite is sound, and may ask only for facts that stay true while the
graph is rewritten: shape, dtype, rank, constness, values, signs. How often a tensor is used changes
all the time: `uses` and `same_accumulator` belong to `prefer`. Facts of the device belong to
kernels.",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x requires uses(x) == 1;",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x prefer uses(x) == 1;",
    ),
    Row::new(
        407,
        "alternatives that bind different variables",
        "Whichever alternative matches, the rest of the rule must find the same variables bound. A variable
that only some alternatives bind has no value in the others; write `_` for it where it is not
needed. The same holds for a node that may be missing, `cast?(x)`: its further operands bind
nothing.",
        "ruleset r { until = fixpoint; }\nrule r::a: neg(exp(x) | mul(x, y)) => neg(x);",
        "ruleset r { until = fixpoint; }\nrule r::a: neg(exp(x) | mul(x, _)) => abs(x);",
    ),
    Row::new(
        408,
        "a tensor that would contain itself",
        "The right side is a part of the left side, below scalar functions, so that the rewrite makes a class
of equal tensors its own operand: relu(relu(x)) = relu(x) says that y = relu(y). That is true, and
on tensors alone a fusing rule would then take relu into an epilogue without end. Stated on scalars
alone, without types, it is lifted to epilogues too, where it ends.",
        "ruleset r { until = fixpoint; }\nrule r::a: abs(abs(x: T[..])) => abs(x);",
        "ruleset r { until = fixpoint; }\nrule r::a: abs(abs(x)) => abs(x);",
    ),
    Row::new(
        409,
        "too much from one declaration",
        "The families of a rule multiply, and named patterns are written out at every use; together they come
to more rules, or to a larger pattern, than can be searched for. Bind fewer or smaller families, or
split the rule. A scalar is written out too: one that calls another twice, which calls another twice, and so
on, doubles with every step. Compute such a thing as an `op`.",
        "ruleset r { until = fixpoint; }\nrule r::a[f in unary, g in unary, h in unary]: f(g(h(h(x)))) => f(g(h(x)));",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x;",
    ),
    Row::new(
        410,
        "a pattern says nothing about an attribute",
        "An attribute that a pattern does not mention must equal its default. This one has no default, so
that the pattern must say what it means: `perm = _` for any, `perm = p` to use it elsewhere, or a
value.",
        "ruleset r { until = fixpoint; }\nrule r::a: neg(transpose(x)) => x;",
        "ruleset r { until = fixpoint; }\nrule r::a: transpose(transpose(x, perm = [1, 0]), perm = [1, 0]) => x;",
    ),
    Row::new(
        411,
        "both sides must have one type",
        "A rule replaces a tensor by an equal one, so that element type and shape must be the same. Here they
are not for any ranks that were tried. Mind `keepdims`, which is true unless said otherwise, and
element types after `cast`.",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => sum(x, axes = [-1], keepdims = false);",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x;",
    ),
    Row::new(
        412,
        "malformed rounding class",
        "A rule or kernel may claim how precise it is: `exact` (every bit), `finite` (every bit where no NaN
or infinity is), `rounds` (the same real function), `approx(4)` (within so many units in the last
place), each for all element types or `for` some. Each element type has one class.",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x class exat;",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x class rounds;",
    ),
    Row::new(
        413,
        "pointwise variable out of place",
        "A variable bound with `[f: pointwise]` stands for any pointwise work over its operands: it is applied
once on the left side, to one to four tensors, and any number of times on the right side, to as many
tensors or epilogue terms. It does not stand inside an epilogue term of the left side, and is no member
of a family.",
        "ruleset r { until = fixpoint; }\nrule r::a[f: pointwise]: f(f(x)) => f(x);",
        "ruleset r { until = fixpoint; }\nrule r::a[f: pointwise]: f(gemm(a, b, e, to = d)) => gemm(a, b, f(e), to = d);",
    ),
    Row::new(
        414,
        "malformed family",
        "A family is a list of scalars or ops, `{exp, log}`, or the name of one. The families `unary` and
`binary` are always there, and hold every scalar of one or two numbers, the user's own among them. A
family with no members would make no rule at all.",
        "family nothing = {};\nruleset r { until = fixpoint; }\nrule r::a[f in nothing]: f(f(x)) => f(x);",
        "family whole = {floor, ceil};\nruleset r { until = fixpoint; }\nrule r::a[f in whole]: f(f(x)) => f(x);",
    ),
];
