//! H04xx: rules.

use super::Row;

/// In the order of their codes.
pub(super) const ROWS: &[Row] = &[
    Row::new(
        401,
        "unbound variable",
        "A right side, a guard or an attribute uses a variable that has no value. The left side binds variables:
tensors as operands, attributes as `perm = p`, sizes in a type, `x: T[..s, k]`. A `let` binds a value
that is computed from these.",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => y;",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x;",
    ),
    Row::new(
        402,
        "a left side that matches everything",
        "The root of a left side must be an application of an op or a scalar. A bare variable or literal would
match every tensor of every graph.",
        "ruleset r { until = fixpoint; }\nrule r::a: x => neg(neg(x));",
        "ruleset r { until = fixpoint; }\nrule r::a: neg(neg(x)) => x;",
    ),
    Row::new(
        403,
        "roots without a common tensor",
        "A rule with several roots matches several nodes of the graph at once. The roots must share an operand,
such as the input of three products; otherwise every combination of nodes would match.",
        "ruleset r { until = fixpoint; }\nrule r::a: (p @ matmul(x, v), q @ matmul(y, w)) => (p, q);",
        "ruleset r { until = fixpoint; }\nrule r::a: (matmul(x, v), matmul(x, w)) => split(matmul(x, concat(v, w, \
         axis = 1)), axis = 1, sizes = [dim(v, 1), dim(w, 1)])\n  requires rank(v) == 2, rank(w) == 2;",
    ),
    Row::new(
        404,
        "unequal numbers of roots",
        "Each root of the left side is replaced by one expression of the right side, in order. One application
of an op with several results can replace all of them.",
        "ruleset r { until = fixpoint; }\nrule r::a: (exp(x), log(x)) => exp(x);",
        "ruleset r { until = fixpoint; }\nrule r::a: (neg(exp(x)), neg(log(x))) => (exp(x) * -1.0, log(x) * -1.0);",
    ),
    Row::new(
        405,
        "a condition that is not a boolean",
        "`requires`, `prefer`, `if` and `not` need a boolean. A number or a list is not one; compare it with a
value.",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x requires rank(x);",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x requires rank(x) == 2;",
    ),
    Row::new(
        406,
        "a fact in the wrong guard",
        "`requires` decides whether a rewrite is sound. It can use only facts that stay true while the graph is
rewritten: shape, element type, rank, constness, values, signs. The number of uses of a tensor changes,
so `uses` and `same_accumulator` belong in `prefer`. Facts about the device belong in kernels.",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x requires uses(x) == 1;",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x prefer uses(x) == 1;",
    ),
    Row::new(
        407,
        "alternatives that bind different variables",
        "Whichever alternative matches, the rest of the rule needs the same variables. A variable that only some
alternatives bind has no value in the others; write `_` for it if it is not needed. A node that may be
absent, `cast?(x)`, follows the same rule: only its first operand can bind variables.",
        "ruleset r { until = fixpoint; }\nrule r::a: neg(exp(x) | mul(x, y)) => neg(x);",
        "ruleset r { until = fixpoint; }\nrule r::a: neg(exp(x) | mul(x, _)) => abs(x);",
    ),
    Row::new(
        408,
        "a tensor as its own operand",
        "The right side is part of the left side, below scalar functions, so the rewrite makes a class of equal
tensors its own operand: relu(relu(x)) = relu(x) implies y = relu(y). That is true, but if the rule
applies to tensors only, a fusing rule could absorb relu into an epilogue without end. Written for
scalars, without types, the rule also applies in epilogues and terminates.",
        "ruleset r { until = fixpoint; }\nrule r::a: abs(abs(x: T[..])) => abs(x);",
        "ruleset r { until = fixpoint; }\nrule r::a: abs(abs(x)) => abs(x);",
    ),
    Row::new(
        409,
        "too large",
        "The families of a rule multiply, and named patterns are inlined at every use. Together they produce more
rules, or a larger pattern, than can be searched for. Bind fewer or smaller families, or split the rule.
Scalars are inlined too: a scalar that calls another twice, which calls another twice, and so on, doubles
with every step. Compute it as an `op` instead.",
        "ruleset r { until = fixpoint; }\nrule r::a[f in unary, g in unary, h in unary]: f(g(h(h(x)))) => f(g(h(x)));",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x;",
    ),
    Row::new(
        410,
        "a pattern does not mention an attribute",
        "An attribute that a pattern does not mention must equal its default. This attribute has no default, so
the pattern must mention it: `perm = _` matches any value, `perm = p` binds the value, and a constant
matches only itself.",
        "ruleset r { until = fixpoint; }\nrule r::a: neg(transpose(x)) => x;",
        "ruleset r { until = fixpoint; }\nrule r::a: transpose(transpose(x, perm = [1, 0]), perm = [1, 0]) => x;",
    ),
    Row::new(
        411,
        "both sides must have the same type",
        "A rule replaces a tensor by an equal one, so the element type and the shape must stay the same. Here they
differ for all ranks that were tried. Note that `keepdims` is true by default, and that `cast` changes
the element type.",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => sum(x, axes = [-1], keepdims = false);",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x;",
    ),
    Row::new(
        412,
        "malformed rounding class",
        "A rule or kernel can state its precision: `exact` (every bit), `finite` (every bit unless a NaN or an
infinity occurs), `rounds` (the same real function, as precise), `within(1)` (integers off by at most
1 where rounding decides), `ties` (the index of any element of the same value), `approx(1e-6, 0)` (off
by at most 1e-6 of the result beyond `rounds`), each for all element types or `for` some. Each element
type has one class.",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x class exat;",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => x class rounds;",
    ),
    Row::new(
        413,
        "misplaced pointwise variable",
        "A variable bound with `[f: pointwise]` stands for any pointwise operations over its operands. The left
side applies it once, to one to four tensors. The right side applies it any number of times, to the same
number of tensors or epilogue terms. It cannot occur in an epilogue term of the left side, and it cannot
be a member of a family.",
        "ruleset r { until = fixpoint; }\nrule r::a[f: pointwise]: f(f(x)) => f(x);",
        "ruleset r { until = fixpoint; }\nrule r::a[f: pointwise]: f(gemm(a, b, e, to = d)) => gemm(a, b, f(e), to \
         = d);",
    ),
    Row::new(
        414,
        "malformed family",
        "A family is a list of scalars or ops, `{exp, log}`, or the name of one. The families `unary` and `binary`
are predefined: they contain every scalar of one or two numbers, including your own. A rule over an empty
family would produce no rules.",
        "family nothing = {};\nruleset r { until = fixpoint; }\nrule r::a[f in nothing]: f(f(x)) => f(x);",
        "family whole = {floor, ceil};\nruleset r { until = fixpoint; }\nrule r::a[f in whole]: f(f(x)) => f(x);",
    ),
    Row::new(
        415,
        "malformed saving",
        "`saves E us` or `saves E bytes` says how much less the right side of a rule takes than the left side,
where the cost model cannot know it. E is a number, at least 0, and may use the sizes and attributes that
the left side binds.",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => abs(x) saves 3 ms;",
        "ruleset r { until = fixpoint; }\nrule r::a: exp(log(x)) => abs(x) saves 3 us;",
    ),
];
