//! The scanner: splits a file into tokens and items before the grammar runs.
//!
//! In: the text. Out: tokens, with comments separate, and the ranges of items. It knows only
//! strings, comments and brackets, so it works on any malformed file. Invariant: every byte that is
//! not white space lies in exactly one token; scanning does not recurse, so a long file cannot
//! overflow the stack.

use std::ops::Range;

/// The kind of a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A name or keyword.
    Word,
    /// A number; starts with a digit.
    Number,
    /// `"..."`
    Str,
    /// An operator, bracket or separator.
    Sign,
    /// `// ...`
    Comment,
    /// `/// ...`
    Doc,
    /// `//! ...`
    ModuleDoc,
    /// An unterminated string.
    OpenString,
    /// `/* ... */`, which is not in the language.
    BlockComment,
    /// Unknown characters.
    Unknown,
}

/// A token; offsets are in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
    /// Its kind.
    pub kind: Kind,
    /// True if it is the first token on its line.
    pub first: bool,
}

impl Token {
    /// Its text.
    pub fn text<'a>(&self, source: &'a str) -> &'a str {
        &source[self.start as usize..self.end as usize]
    }

    /// True for `//`, `///` and `//!` lines.
    pub fn is_comment(&self) -> bool {
        matches!(self.kind, Kind::Comment | Kind::Doc | Kind::ModuleDoc)
    }
}

/// Signs of more than one character, longest first.
const LONG_SIGNS: [&str; 13] = ["<=>", "=>", "->", "==", "!=", "<=", ">=", "**", "::", "..", "&&", "||", "//"];
/// Signs of one character.
const SIGNS: &str = ";,:=()[]{}<>*?@~|+-/%.";

/// All tokens of a text, including comments.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let mut out = Vec::new();
    let mut at = 0;
    let mut first = true;
    while let Some(c) = text[at..].chars().next() {
        if c.is_whitespace() || (at == 0 && c == '\u{feff}') {
            first |= c == '\n';
            at += c.len_utf8();
            continue;
        }
        let (kind, mut length) = token(&text[at..], c);
        // `x.0.1` is a result of a result, not a result named 0.1.
        if kind == Kind::Number && out.last().is_some_and(|t: &Token| t.text(text) == ".") {
            length = text[at..].find(|c: char| !c.is_ascii_digit()).unwrap_or(length);
        }
        out.push(Token { start: at as u32, end: (at + length) as u32, kind, first });
        at += length;
        first = false;
    }
    out
}

/// Kind and length of the token at the start of `rest`, whose first character is `c`.
fn token(rest: &str, c: char) -> (Kind, usize) {
    let line = || rest.find('\n').map_or(rest, |n| &rest[..n]).trim_end().len();
    let while_ = |f: fn(char) -> bool| rest.find(|c| !f(c)).unwrap_or(rest.len());
    if let Some(comment) = rest.strip_prefix("//") {
        let kind = match comment.chars().next() {
            Some('!') => Kind::ModuleDoc,
            Some('/') if !rest.starts_with("////") => Kind::Doc,
            _ => Kind::Comment,
        };
        return (kind, line());
    }
    if rest.starts_with("/*") {
        return (Kind::BlockComment, rest.find("*/").map_or(rest.len(), |n| n + 2));
    }
    if c.is_ascii_alphabetic() || c == '_' {
        return (Kind::Word, while_(|c| c.is_ascii_alphanumeric() || c == '_'));
    }
    if c.is_ascii_digit() {
        return (Kind::Number, number(rest));
    }
    if c == '"' {
        return string(rest);
    }
    if let Some(sign) = LONG_SIGNS.iter().find(|s| rest.starts_with(**s)) {
        let kind = if matches!(*sign, "&&") { Kind::Unknown } else { Kind::Sign };
        return (kind, sign.len());
    }
    if SIGNS.contains(c) {
        return (Kind::Sign, 1);
    }
    // A run of unknown characters is one error, not many.
    let end = rest
        .find(|c: char| c.is_ascii_alphanumeric() || c.is_whitespace() || c == '_' || c == '"' || SIGNS.contains(c));
    (Kind::Unknown, end.unwrap_or(rest.len()).max(c.len_utf8()))
}

/// Length of a number with its point and exponent, and of any letters directly after it.
fn number(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let is = |i: usize, f: fn(&u8) -> bool| bytes.get(i).is_some_and(f);
    let word = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
    let mut i = 0;
    let mut point = false;
    while is(i, word) {
        let exponent = matches!(bytes[i], b'e' | b'E') && matches!(bytes.get(i + 1), Some(b'+' | b'-'));
        i += if exponent && is(i + 2, u8::is_ascii_digit) { 2 } else { 1 };
        if !point && is(i, |b| *b == b'.') && is(i + 1, u8::is_ascii_digit) {
            point = true;
            i += 1;
        }
    }
    i
}

/// Kind and length of a string; an unterminated one ends with its line.
fn string(rest: &str) -> (Kind, usize) {
    let mut escaped = false;
    for (i, c) in rest.char_indices().skip(1) {
        match c {
            '\n' => return (Kind::OpenString, rest[..i].trim_end().len()),
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return (Kind::Str, i + 1),
            _ => {}
        }
    }
    (Kind::OpenString, rest.trim_end().len())
}

/// The keywords that begin an item.
pub(crate) const ITEM_WORDS: [&str; 11] =
    ["edition", "use", "ruleset", "scalar", "op", "pattern", "rule", "kernel", "test", "family", "contract"];

/// Splits significant tokens (no comments) into items. A `;` or a block's `}` ends an item. If
/// those are missing, an item keyword followed by a name at the start of a line begins the next
/// item, whatever brackets are open.
pub(crate) fn items(tokens: &[Token], text: &str) -> Vec<Range<usize>> {
    let mut out = Vec::new();
    let mut start = 0;
    // Open brackets; true once a `;` was found directly inside, which only blocks contain.
    let mut open: Vec<(&str, bool)> = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        if i > start && token.first && opens_item(tokens, i, text) {
            out.push(start..i);
            start = i;
            open.clear();
        }
        if token.kind != Kind::Sign {
            continue;
        }
        let ends = match token.text(text) {
            sign @ ("(" | "[" | "{") => {
                open.push((sign, false));
                false
            }
            ")" | "]" => {
                open.pop();
                false
            }
            "}" => {
                let block = open.pop().is_some_and(|(_, block)| block);
                let head = matches!(tokens[start].text(text), "test" | "kernel" | "ruleset" | "contract");
                open.is_empty() && (block || head || i + 1 == tokens.len() || opens_item(tokens, i + 1, text))
            }
            ";" => {
                if let Some(last) = open.last_mut() {
                    last.1 = true;
                }
                open.is_empty()
            }
            _ => false,
        };
        if ends {
            out.push(start..i + 1);
            start = i + 1;
            open.clear();
        }
    }
    if start < tokens.len() {
        out.push(start..tokens.len());
    }
    out
}

/// True if an item keyword is at `i`, followed by what an item of that kind needs.
pub(crate) fn opens_item(tokens: &[Token], i: usize, text: &str) -> bool {
    let Some(next) = tokens.get(i + 1) else { return false };
    tokens[i].kind == Kind::Word
        && match tokens[i].text(text) {
            "edition" => next.kind == Kind::Number,
            "test" => matches!(next.kind, Kind::Str | Kind::OpenString),
            word => ITEM_WORDS.contains(&word) && next.kind == Kind::Word,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<&str> {
        tokens(text).iter().map(|t| t.text(text)).collect()
    }

    fn cut(text: &str) -> Vec<&str> {
        let tokens: Vec<Token> = tokens(text).into_iter().filter(|t| !t.is_comment()).collect();
        let text_of = |r: Range<usize>| &text[tokens[r.start].start as usize..tokens[r.end - 1].end as usize];
        items(&tokens, text).into_iter().map(text_of).collect()
    }

    #[test]
    fn signs_are_cut_longest_first() {
        assert_eq!(
            words("a<=>b=>c->d**e..f::g"),
            ["a", "<=>", "b", "=>", "c", "->", "d", "**", "e", "..", "f", "::", "g"]
        );
        assert_eq!(words("1e-5+2.5e+3-x.0"), ["1e-5", "+", "2.5e+3", "-", "x", ".", "0"]);
    }

    #[test]
    fn comments_and_strings_hide_their_signs() {
        assert_eq!(words("a // ; {\n\"; \\\" }\" b"), ["a", "// ; {", "\"; \\\" }\"", "b"]);
    }

    #[test]
    fn items_end_at_semicolons_and_blocks() {
        let text = "rule a: x => y requires d in {f, g}, z;\nkernel k for f(x) { pointwise; }\n\
                    op f() -> T[] { builtin; } op g<T: {a}>() -> T[] = x;";
        assert_eq!(cut(text).len(), 4);
    }

    #[test]
    fn a_broken_item_ends_where_the_next_one_opens() {
        assert_eq!(cut("rule a: f((x => y\nrule b: x => y;").len(), 2);
        assert_eq!(cut("scalar f(x) = x\nscalar g(x) = x;").len(), 2);
        assert_eq!(cut("test \"a\" {\n input x: f32[1];\ntest \"b\" { }").len(), 2);
    }
}
