//! H02xx: names and files.

use super::Row;

/// In the order of their codes.
pub(super) const ROWS: &[Row] = &[
    Row::new(
        201,
        "unknown name",
        "Nothing that this file can see is called that. A file sees its own declarations, and those of other
files that it names with `use`: `use core::*;` for all of a file, `use nn::gelu;` for one name. Look for a
typing mistake first; if another file declares the name, the message says which `use` to add.",
        "scalar f(x) = exq(x);",
        "scalar f(x) = exp(x);",
    ),
    Row::new(
        202,
        "declared twice",
        "Two declarations of one file have the same name, so that it would not be clear which one is meant.
Scalars, ops, patterns and families share one space of names; rulesets and kernels have one each. Rules
are named `ruleset::name`, and no two rules of a program may have the same name. Rename one of the two.",
        "scalar f(x) = exp(x);\nscalar f(x) = log(x);",
        "scalar f(x) = exp(x);\nscalar g(x) = log(x);",
    ),
    Row::new(
        203,
        "module not found",
        "`use a::b::*;` reads the file a/b.hyp beside this file; if there is none, the embedded library is
searched (`core`, `nn`, `fuse`). Neither has a module of that name. File names are case-sensitive, and the
path is relative to the file with the `use`, not to the working directory.",
        "use coer::*;\nscalar f(x) = x + 1;",
        "scalar f(x) = x + 1;",
    ),
    Row::new(
        204,
        "files use each other in a circle",
        "Each of the files needs another one to be read before it, round and round; the message shows the whole
circle. Move the declarations that both sides need into a third file which uses neither, and let both
use that one.",
        "",
        "scalar f(x) = x + 1;",
    ),
    Row::new(
        205,
        "ambiguous name",
        "Two `use ...::*` bring in different declarations of the same name, and this file uses that name without
saying which. Qualify it, `nn::gelu(x)`, or import the one that is meant by name: `use nn::gelu;` wins over
any `*`.",
        "",
        "scalar f(x) = x + 1;",
    ),
    Row::new(
        206,
        "file cannot be read",
        "The file that a `use` names exists, but the system refused to read it, it is not text in UTF-8, or the
program has more files than any sensible one. The note gives the system's own reason.",
        "",
        "scalar f(x) = x + 1;",
    ),
    Row::new(
        208,
        "wrong kind of name",
        "The name is known, but is of another kind than this place needs: a family where one function must
stand, a pattern on a right side, or a function without its arguments. A family is a list of functions: a
rule binds its members in turn with `[g in family]`, and then applies `g`.",
        "family two = {exp, log};\nscalar f(x) = two(x);",
        "scalar f(x) = exp(x);",
    ),
    Row::new(
        209,
        "defined by itself",
        "A scalar, op, pattern or family uses itself in its own definition, directly or through others; the
message shows the circle. Definitions are written out wherever they are used, so that this would never
end. The `grad` of a scalar may mention the scalar: it does not define it.",
        "scalar f(x) = g(x) + 1;\nscalar g(x) = f(x) * 2;",
        "scalar f(x) = x + 1;\nscalar g(x) = f(x) * 2;",
    ),
    Row::new(
        210,
        "unknown or malformed setting",
        "A ruleset has the settings `until = fixpoint`, `iterations = 30`, `nodes = 20000 + 50 * graph`,
`steps = 500000 + 2000 * graph` and `after = other_ruleset`. An op's block has `builtin`, `requires`,
`flops`, `read` and `write`. Anything else is a slip, and ignoring it would hide the slip.",
        "ruleset tidy { rounds = 30; }",
        "ruleset tidy { iterations = 30; }",
    ),
    Row::new(
        211,
        "reserved name",
        "The name has a meaning of its own wherever an expression may stand: `acc` is a gemm's accumulator, `build`
computes a weight once, `out` is the shape of an op's result, and f32, bf16 and so on are element types.
The ruleset `fold` holds the rules that the compiler makes. Choose another name.",
        "scalar acc(x) = x + 1;",
        "scalar add_one(x) = x + 1;",
    ),
];
