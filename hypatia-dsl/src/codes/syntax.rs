//! H01xx: syntax.

use super::Row;

/// In the order of their codes.
pub(super) const ROWS: &[Row] = &[
    Row::new(
        101,
        "unexpected text",
        "The text does not follow the grammar here. The message shows what was found and what was expected.
The actual mistake is often a little earlier: check the end of the previous line too. Only this item
is skipped; the rest of the file is still checked. docs/language.md shows every kind of item.",
        "scalar f(x) = x + ;",
        "scalar f(x) = x + 1;",
    ),
    Row::new(
        102,
        "the edition is missing",
        "The first item of every file declares the edition of the language that it is written in. The language
can then change without breaking existing files: an old file keeps its meaning. Only comments can
come before the edition.",
        "// no edition here\nscalar f(x) = x + 1;",
        "edition 1;\nscalar f(x) = x + 1;",
    ),
    Row::new(
        103,
        "unknown edition",
        "This version of Hypatia does not know the edition that the file declares. The only edition so far is 1.
If the file was written for a newer Hypatia, update Hypatia; otherwise correct the number.",
        "edition 2;\nscalar f(x) = x + 1;",
        "edition 1;\nscalar f(x) = x + 1;",
    ),
    Row::new(
        104,
        "brackets do not match",
        "A bracket is never closed, is closed by a bracket of another kind, or has no opening bracket. The
underlined bracket is the one without a partner. `( )` surround arguments and groups, `[ ]` shapes,
lists and binders, `{ }` sets and the bodies of items.",
        "scalar f(x) = (x + 1;",
        "scalar f(x) = (x + 1);",
    ),
    Row::new(
        105,
        "malformed string",
        "A string in double quotes must end on the line on which it starts. It can contain only these escapes:
\\\\ (a backslash), \\\" (a quote), \\n (a new line) and \\t (a tab). Strings name tests, template
files, device functions and nodes of a model, and are values of some attributes; names of the language are
written without quotes.",
        "test \"adds two numbers {\n  given 1;\n}",
        "test \"adds two numbers\" {\n  given 1;\n}",
    ),
    Row::new(
        106,
        "unknown symbol",
        "These characters are not part of the language. They often come from another language: write `and` for
`&&`, `or` for `||`, `not` for `!`, `**` for `^`, and start every line of a comment with `//`. Use
straight quotes. Names consist of the letters a to z and A to Z, digits and `_`; other letters are
allowed in comments and strings only.",
        "scalar f(a: bool, b: bool) -> bool = a && b;",
        "scalar f(a: bool, b: bool) -> bool = a and b;",
    ),
    Row::new(
        107,
        "nested too deeply",
        "One expression nests too many brackets and operators. The limit protects the compiler's stack and
memory from damaged or generated files; rules written by hand do not reach it. Give parts of the
expression a name, with a `scalar`, an `op`, or a `let` in a rule. The length of lists, arguments and
alternatives does not count.",
        "scalar f(x) = \
         ((((((((((((((((((((((((((((((((((((((((((((((((((x))))))))))))))))))))))))))))))))))))))))))))))))));",
        "scalar f(x) = x;",
    ),
    Row::new(
        108,
        "file, item or name too large",
        "A `.hyp` file can have at most one mebibyte, an item 50,000 tokens, and a name or string 256 bytes. A
scalar, op or pattern can declare 64 parameters, and an op 64 element types. The limits keep a wrong
file, such as a model's weights, from costing time and memory. If you generate rules, split them into
several files and join these with `use`.",
        "",
        "scalar f(x) = x;",
    ),
    Row::new(
        109,
        "malformed number",
        "Numbers are written in decimal: `2`, `0.5`, `1e-5`, `2.5e3`. An integer can have up to 53 bits, because
numbers are computed in double precision, which would silently change a larger one. A number with a
point can be as large as a double. Write infinity as `inf`. A product needs its operator: `2 * x`, not
`2x`. A number needs a digit on each side of its point.",
        "scalar f(x) = 2x;",
        "scalar f(x) = 2 * x;",
    ),
    Row::new(
        110,
        "chained comparison",
        "Comparisons cannot be chained. Some languages read `a < b < c` as two comparisons, others compare the
result of the first one with `c`. Write the one that you mean, with `and` or with parentheses.",
        "scalar f(x) -> bool = 0 < x < 1;",
        "scalar f(x) -> bool = 0 < x and x < 1;",
    ),
    Row::new(
        111,
        "unknown kind of item",
        "A file is a list of items, and each starts with a keyword: `use`, `ruleset`, `scalar`, `op`, `pattern`,
`rule`, `kernel`, `test`, `family` or `contract`, after the `edition`. This one starts with something
else. Either the keyword is misspelled, or the previous item ended too early, at an extra `;` or `}`.",
        "scaler f(x) = x + 1;",
        "scalar f(x) = x + 1;",
    ),
    Row::new(
        112,
        "missing semicolon",
        "Items without a block, and all statements in a block, end with `;`. The error points at the end of the
text that lacks it. A line break does not end a statement, so a long rule can span several lines.",
        "scalar f(x) = x + 1\nscalar g(x) = x + 2;",
        "scalar f(x) = x + 1;\nscalar g(x) = x + 2;",
    ),
    Row::new(
        113,
        "wrong symbol",
        "Another symbol is expected here. `=` gives a name a value, `==` compares. `=>` separates the two sides of
a rule, `->` precedes the type of a result, `>=` compares. `:` precedes a type. `|` separates
alternatives of a pattern; `or` joins conditions.",
        "op f(x: T[n]) => T[n] = x;",
        "op f(x: T[n]) -> T[n] = x;",
    ),
    Row::new(
        114,
        "not UTF-8",
        "A `.hyp` file must be UTF-8 text. This one contains other bytes, or the replacement character U+FFFD
that a failed conversion leaves behind. The file may not be text at all, or an editor saved it as
UTF-16 or in an old code page: choose UTF-8 when you save it.",
        "scalar f(x) = x; // \u{fffd}",
        "scalar f(x) = x; // ok",
    ),
    Row::new(
        115,
        "unreadable file",
        "A file that the command line names cannot be read. The message gives the system's reason: the file does
not exist, you have no permission, it is a folder without `.hyp` files, or it is a device. The other
files of the command are still processed.",
        "",
        "scalar f(x) = x;",
    ),
];
