//! H01xx: syntax.

use super::Row;

/// In the order of their codes.
pub(super) const ROWS: &[Row] = &[
    Row::new(
        101,
        "unexpected text",
        "The file does not follow the grammar at this place. The message says what was found and what could
have stood there; the real mistake is often a little earlier, so look at the end of the line before
too. Only this item is skipped: the rest of the file is still checked, and its errors are reported.
The language's reference, docs/language.md, shows every kind of item.",
        "scalar f(x) = x + ;",
        "scalar f(x) = x + 1;",
    ),
    Row::new(
        102,
        "the edition is missing",
        "Every file says as its first item which edition of the language it is written in. The language can
then change without breaking files that exist: an old file keeps its old meaning. Only comments may
stand before it.",
        "// no edition here\nscalar f(x) = x + 1;",
        "edition 1;\nscalar f(x) = x + 1;",
    ),
    Row::new(
        103,
        "unknown edition",
        "The file asks for an edition of the language that this version of Hypatia does not know. There is
one edition so far, 1. If the file was written for a newer Hypatia, update Hypatia; otherwise
correct the number.",
        "edition 2;\nscalar f(x) = x + 1;",
        "edition 1;\nscalar f(x) = x + 1;",
    ),
    Row::new(
        104,
        "brackets do not match",
        "A bracket is never closed, is closed by one of another kind, or closes nothing. The place that is
underlined is the bracket without a partner. The kinds are `( )` around arguments and groups, `[ ]`
around shapes, lists and binders, and `{ }` around sets and the bodies of items.",
        "scalar f(x) = (x + 1;",
        "scalar f(x) = (x + 1);",
    ),
    Row::new(
        105,
        "malformed text in quotes",
        "A text in double quotes must end on the line on which it begins, and may hold these escapes only:
\\\\ (a backslash), \\\" (a quote), \\n (a new line) and \\t (a tabulator). Text in quotes names tests and
template files; everything else is written without quotes.",
        "test \"adds two numbers {\n  given 1;\n}",
        "test \"adds two numbers\" {\n  given 1;\n}",
    ),
    Row::new(
        106,
        "text that means nothing",
        "These characters are not part of the language. Often they come from another language: `&&` is
`and`, `||` is `or`, `!` is `not`, `^` is `**`, and comments start with `//`, also where they go over several
lines. Quotes that a word processor made curly must be straight. Names are made of the letters a to
z and A to Z, digits and `_`; other letters may stand in comments and quotes only.",
        "scalar f(a: bool, b: bool) -> bool = a && b;",
        "scalar f(a: bool, b: bool) -> bool = a and b;",
    ),
    Row::new(
        107,
        "nested too deeply",
        "One expression holds too many brackets and operators in each other. The limit keeps every stage of
the compiler from running out of memory on a damaged or generated file; no rule that a person can
read comes near it. Give parts of the expression a name: as a `scalar`, as an `op`, or with `let`
in a rule. Lists, arguments and alternatives do not count, however long they are.",
        "scalar f(x) = ((((((((((((((((((((((((((((((((((((((((((((((((((x))))))))))))))))))))))))))))))))))))))))))))))))));",
        "scalar f(x) = x;",
    ),
    Row::new(
        108,
        "file, item or name too large",
        "A `.hyp` file may be one mebibyte at most, one item 50,000 words and signs, and one name or string 256
bytes; a scalar, op or pattern may declare 64 parameters, and an op 64 element types. What is larger is not
written by people; the limits keep a wrong file name (a model's weights, say) from costing time and
memory. If you generate rules, write them into several files and join these with `use`.",
        "",
        "scalar f(x) = x;",
    ),
    Row::new(
        109,
        "malformed number",
        "Numbers are written in decimal: `2`, `0.5`, `1e-5`, `2.5e3`. A whole number may have up to 53 bits,
because numbers are computed with in double precision and would silently change beyond that; a
number with a point may be as large as a double can be. Infinity is written `inf`. A product needs
its operator: `2 * x`, not `2x`. A number needs a digit before and behind its point.",
        "scalar f(x) = 2x;",
        "scalar f(x) = 2 * x;",
    ),
    Row::new(
        110,
        "chained comparison",
        "Comparisons cannot be written in a row: some languages read `a < b < c` as two comparisons of
neighbours, some compare the truth value of the first with `c`. Say which one you mean, with `and`
or with brackets.",
        "scalar f(x) -> bool = 0 < x < 1;",
        "scalar f(x) -> bool = 0 < x and x < 1;",
    ),
    Row::new(
        111,
        "unknown kind of item",
        "A file is a row of items, and each begins with a word that says what it is: `use`, `ruleset`,
`scalar`, `op`, `pattern`, `rule`, `kernel`, `test` or `family`, behind `edition`. This one begins
with something else. Either the word is misspelled, or the item before it ended too early, at a `;`
or a `}` that should not be there.",
        "scaler f(x) = x + 1;",
        "scalar f(x) = x + 1;",
    ),
    Row::new(
        112,
        "missing semicolon",
        "Items without a block, and all statements inside a block, end with `;`. The error points at the
last thing before the place where it is missing. Nothing else ends a statement, also not the end of
a line, so long rules can be written over as many lines as they need.",
        "scalar f(x) = x + 1\nscalar g(x) = x + 2;",
        "scalar f(x) = x + 1;\nscalar g(x) = x + 2;",
    ),
    Row::new(
        113,
        "wrong sign",
        "A sign stands here that means something else than what is expected. `=` gives something a name or a
value, `==` compares; `=>` separates the two sides of a rule, `->` precedes the type of a result,
`>=` compares; `:` precedes a type; `|` separates alternatives of a pattern, and `or` joins conditions.",
        "op f(x: T[n]) => T[n] = x;",
        "op f(x: T[n]) -> T[n] = x;",
    ),
    Row::new(
        114,
        "not UTF-8",
        "A `.hyp` file is text in UTF-8. This one holds bytes that are not, or the replacement character
U+FFFD that a failed conversion leaves behind. Often the file is no text at all, or an editor saved
it as UTF-16 or in an old code page: choose UTF-8 when you save it.",
        "scalar f(x) = x; // \u{fffd}",
        "scalar f(x) = x; // ok",
    ),
    Row::new(
        115,
        "unreadable file",
        "A file that was named on the command line could not be read. The message gives the system's reason:
it does not exist, it may not be read by you, it is a folder without any `.hyp` file, or a device.
The other files of the same command are still looked at.",
        "",
        "scalar f(x) = x;",
    ),
];
