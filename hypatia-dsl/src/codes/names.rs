//! H02xx: names and files.

use super::Row;

/// In the order of their codes.
pub(super) const ROWS: &[Row] = &[
    Row::new(
        201,
        "unknown name",
        "No declaration of this name is visible in this file. A file sees its own declarations and those that it
imports with `use`: `use core::*;` imports everything from a file, `use nn::gelu;` one name. Check the
spelling first. If another file declares the name, the message says which `use` to add.",
        "scalar f(x) = exq(x);",
        "scalar f(x) = exp(x);",
    ),
    Row::new(
        202,
        "declared twice",
        "Two declarations of one file have the same name. Scalars, ops, patterns and families share one namespace;
rulesets and kernels have one each, and so have tests. Rules are named `ruleset::name`, and a rule's name
must be unique in the program. Rename one of the two.",
        "scalar f(x) = exp(x);\nscalar f(x) = log(x);",
        "scalar f(x) = exp(x);\nscalar g(x) = log(x);",
    ),
    Row::new(
        203,
        "module not found",
        "`use a::b::*;` reads the file a/b.hyp beside this file. If that file does not exist, the embedded library
is searched (`core`, `nn`, `fuse`). Neither has a module of this name. File names are case-sensitive. The
path is relative to the file that contains the `use`, not to the working directory.",
        "use coer::*;\nscalar f(x) = x + 1;",
        "scalar f(x) = x + 1;",
    ),
    Row::new(
        204,
        "import cycle",
        "Each of these files imports the next, and the last one imports the first; the message shows the whole
cycle. Move the declarations that both sides need into a third file that imports neither, and import
that file from both.",
        "",
        "scalar f(x) = x + 1;",
    ),
    Row::new(
        205,
        "ambiguous name",
        "Two `use ...::*` import different declarations of the same name, and this file uses the name. Qualify it,
`nn::gelu(x)`, or import the one that you mean by name: `use nn::gelu;` takes precedence over any `*`.",
        "",
        "scalar f(x) = x + 1;",
    ),
    Row::new(
        206,
        "file cannot be read",
        "The file that a `use` names exists, but the system cannot read it, it is not UTF-8 text, or the program
has too many files. The note gives the system's reason.",
        "",
        "scalar f(x) = x + 1;",
    ),
    Row::new(
        208,
        "wrong kind of name",
        "The name exists, but is of the wrong kind here: a family where one function is expected, a pattern on a
right side, or a function without its arguments. A family is a list of functions: a rule binds each of
its members with `[g in family]`, and applies `g`.",
        "family two = {exp, log};\nscalar f(x) = two(x);",
        "scalar f(x) = exp(x);",
    ),
    Row::new(
        209,
        "circular definition",
        "The definition of a scalar, op, pattern or family uses itself, directly or through others; the message
shows the cycle. Definitions are inlined where they are used, so this would never end. The `grad` of a
scalar or an op can use it, because it does not define it.",
        "scalar f(x) = g(x) + 1;\nscalar g(x) = f(x) * 2;",
        "scalar f(x) = x + 1;\nscalar g(x) = f(x) * 2;",
    ),
    Row::new(
        210,
        "unknown or malformed setting",
        "A ruleset has the settings `until = fixpoint`, `iterations = 30`, `nodes = 20000 + 50 * graph`,
`steps = 500000 + 2000 * graph` and `after = other_ruleset`. The block of an op has `builtin`, `requires`,
`flops`, `read` and `write`. Anything else is an error, because a misspelled setting must not be ignored.
No ruleset can run before or after itself, directly or through others.",
        "ruleset tidy { rounds = 30; }",
        "ruleset tidy { iterations = 30; }",
    ),
    Row::new(
        211,
        "reserved name",
        "The name is reserved: `acc` and `acc1` are the accumulators of products, `second(e)` is a term over the
second one, `build` computes a constant once, `out` is the shape of an op's result, and f32, bf16 and so on
are element types. The ruleset `fold` contains the rules that the compiler derives. Choose another name.",
        "scalar acc(x) = x + 1;",
        "scalar add_one(x) = x + 1;",
    ),
];
