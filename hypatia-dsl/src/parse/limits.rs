//! Limits that are checked on tokens, before anything recurses over the text.
//!
//! In: the tokens of one item. Out: the first error of brackets, strings, characters or nesting
//! depth. Invariant: an item that passes makes a tree of at most [`MAX_DEPTH`] levels, so that no
//! tree traversal can overflow the stack.

use super::scan::{Kind, Token};
use crate::ast::{ItemKind, Name};
use crate::diag::{Code, Diagnostic};
use crate::source::{FileId, Span};

/// Maximum number of tokens of an item: a normal one has some hundred, a malformed file may have a
/// million.
pub const MAX_TOKENS: usize = 50_000;
/// Maximum number of bytes of a name or a string: messages repeat them.
pub const MAX_WORD: usize = 256;
/// Maximum number of parameters, operands or element types of an item: some checks run for each
/// pair of them, and for each choice of types.
pub const MAX_PARAMETERS: usize = 64;
/// Maximum depth of an expression, counting nested brackets and operators.
pub const MAX_DEPTH: u32 = 128;
/// Maximum depth of brackets alone: the grammar recurses over them with big stack frames.
pub const MAX_BRACKETS: usize = 48;

/// The first lexical error of an item, if any.
pub(super) fn check(tokens: &[Token], text: &str, file: FileId) -> Option<Diagnostic> {
    too_long(tokens, file)
        .or_else(|| long_word(tokens, file))
        .or_else(|| strange(tokens, text, file))
        .or_else(|| brackets(tokens, text, file))
        .or_else(|| depth(tokens, text, file))
}

fn span(token: &Token, file: FileId) -> Span {
    Span { file, start: token.start, end: token.end }
}

/// An item longer than any that a person writes.
fn too_long(tokens: &[Token], file: FileId) -> Option<Diagnostic> {
    let first = tokens.first().filter(|_| tokens.len() > MAX_TOKENS)?;
    let message = format!("this item is too large: the limit is {MAX_TOKENS} tokens");
    let d = Diagnostic::error(Code(108), message, span(first, file)).label("starts here");
    Some(d.hint("split it into several items; is there a `;` missing at its end?"))
}

/// More parameters than any item needs.
pub(super) fn too_many(kind: &ItemKind) -> Option<Diagnostic> {
    let (what, names): (_, Vec<&Name>) = match kind {
        ItemKind::Scalar(s) => ("parameters", s.params.iter().map(|p| &p.name).collect()),
        ItemKind::Pattern(p) => ("parameters", p.params.iter().collect()),
        ItemKind::Op(op) if op.generics.len() > MAX_PARAMETERS => {
            ("element types", op.generics.iter().map(|g| &g.name).collect())
        }
        ItemKind::Op(op) => ("operands and attributes", op.params.iter().map(|p| &p.name).collect()),
        _ => return None,
    };
    let first = names.get(MAX_PARAMETERS)?;
    let message = format!("too many {what}: {}; the limit is {MAX_PARAMETERS}", names.len());
    let d = Diagnostic::error(Code(108), message, first.span).label("first one over the limit");
    Some(match what {
        "element types" => {
            d.hint("give operands of one element type the same name: `op f<T: float>(a: T[..s], b: T[..s])`")
        }
        "parameters" => {
            d.hint("split it into parts with names of their own, each with only the parameters that it needs")
        }
        _ => d.hint("use a variadic operand, `op f(*xs: T[..s]) -> ...`, or split the op"),
    })
}

/// A name longer than any that a person writes.
fn long_word(tokens: &[Token], file: FileId) -> Option<Diagnostic> {
    let long = |t: &&Token| matches!(t.kind, Kind::Word | Kind::Str) && t.end - t.start > MAX_WORD as u32;
    let token = tokens.iter().find(long)?;
    let what = if token.kind == Kind::Word { "name" } else { "string" };
    let message = format!("this {what} is too long: the limit is {MAX_WORD} bytes");
    let d =
        Diagnostic::error(Code(108), message, span(token, file)).label(format!("{} bytes", token.end - token.start));
    Some(d.hint(match token.kind {
        Kind::Word => "choose a shorter name; is this a `.hyp` file at all?",
        _ => "shorten it, or move the rest into a comment above: `// ...`",
    }))
}

/// Unterminated strings, block comments, unknown characters.
fn strange(tokens: &[Token], text: &str, file: FileId) -> Option<Diagnostic> {
    let token = tokens.iter().find(|t| matches!(t.kind, Kind::OpenString | Kind::BlockComment | Kind::Unknown))?;
    let at = span(token, file);
    let found = token.text(text);
    Some(match token.kind {
        Kind::OpenString => Diagnostic::error(Code(105), "this string is never closed", at)
            .label("no `\"` before the end of the line")
            .hint("add the closing `\"`; a string must end on its own line"),
        Kind::BlockComment => Diagnostic::error(Code(106), "there are no block comments", at)
            .label("`/*` is not part of the language")
            .hint("start each line of the comment with `//`"),
        _ => {
            // Quotes are shown as they are; only invisible characters are escaped.
            let visible = |c: char| if "'\"\\".contains(c) { vec![c] } else { c.escape_debug().collect() };
            let shown: String = found.chars().take(20).flat_map(visible).collect();
            let d =
                Diagnostic::error(Code(106), format!("unknown symbol `{shown}`"), at).label("not part of the language");
            match found.chars().next() {
                Some('&') => d.hint("write `and`"),
                Some('!') => d.hint("write `not`"),
                Some('^') => d.hint("write `**` for a power"),
                Some('$') => d.hint("names are written as they are: `x`"),
                Some('#') => d.hint("comments start with `//`"),
                Some('\'' | '\u{201c}' | '\u{201d}' | '\u{2018}' | '\u{2019}') => {
                    d.hint("put strings in straight double quotes: \"text\"")
                }
                Some('\0') => d.note("the file contains NUL bytes: is it a text file?"),
                Some('\u{d7}') => d.hint("write `*`"),
                Some('\u{f7}') => d.hint("write `/`"),
                Some('\u{2212}' | '\u{2013}' | '\u{2014}') => d.hint("write `-`"),
                Some('\u{2264}') => d.hint("write `<=`"),
                Some('\u{2265}') => d.hint("write `>=`"),
                Some('\u{2260}') => d.hint("write `!=`"),
                Some('\u{2192}' | '\u{21d2}') => d.hint("write `=>` in a rule, or `->` before the type of a result"),
                Some('\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}') => {
                    d.note("the symbol is invisible, and may turn the order of what is shown").hint("remove it")
                }
                Some(c) if c.is_alphabetic() => {
                    d.hint("names consist of the letters a to z and A to Z, digits and `_`")
                }
                _ => d,
            }
        }
    })
}

/// The first unmatched bracket.
fn brackets(tokens: &[Token], text: &str, file: FileId) -> Option<Diagnostic> {
    let mut open: Vec<&Token> = Vec::new();
    let unclosed = |t: &Token, close: &str| {
        let message = format!("this `{}` is never closed", t.text(text));
        let d = Diagnostic::error(Code(104), message, span(t, file)).label(format!("needs a `{close}`"));
        if close == "}" && tokens.first().is_some_and(|t| t.text(text) == "ruleset") {
            return d.hint("close it before the rules, which stand behind it: `ruleset mine { until = fixpoint; }`");
        }
        d.hint(format!("add the missing `{close}`, or remove this `{}`", t.text(text)))
    };
    for token in tokens.iter().filter(|t| t.kind == Kind::Sign) {
        let sign = token.text(text);
        match sign {
            "(" | "[" | "{" => open.push(token),
            ")" | "]" | "}" => match open.pop() {
                Some(o) if closing(o.text(text)) == sign => {}
                Some(o) => {
                    let close = closing(o.text(text));
                    return Some(
                        unclosed(o, close)
                            .also(span(token, file), format!("found `{sign}` where `{close}` was expected")),
                    );
                }
                None => {
                    let message = format!("this `{sign}` has no opening bracket");
                    return Some(
                        Diagnostic::error(Code(104), message, span(token, file))
                            .hint(format!("remove it, or add the missing `{}`", opening(sign))),
                    );
                }
            },
            ";" => {
                if let Some(o) = open.last().filter(|o| o.text(text) != "{") {
                    return Some(unclosed(o, closing(o.text(text))).also(span(token, file), "the statement ends here"));
                }
            }
            _ => {}
        }
    }
    open.last().map(|o| unclosed(o, closing(o.text(text))))
}

fn closing(open: &str) -> &'static str {
    match open {
        "(" => ")",
        "[" => "]",
        _ => "}",
    }
}

fn opening(close: &str) -> &'static str {
    match close {
        ")" => "(",
        "]" => "[",
        _ => "{",
    }
}

/// Upper bound on the tree depth of the current expression between two brackets.
#[derive(Default)]
struct Level {
    /// Operators since the last separator.
    operators: u32,
    /// Depth of the deepest bracket since the last separator.
    inner: u32,
    /// Depth of the deepest expression so far.
    deepest: u32,
}

impl Level {
    fn end_expression(&mut self) {
        self.deepest = self.deepest.max(self.operators + self.inner);
        (self.operators, self.inner) = (0, 0);
    }
}

/// Refuses items whose tree could be deeper than [`MAX_DEPTH`]. A chain of n operators makes a tree
/// of depth n, whatever its associativity, and brackets add to it.
fn depth(tokens: &[Token], text: &str, file: FileId) -> Option<Diagnostic> {
    let mut levels = vec![Level::default()];
    let mut operand_before = false;
    for token in tokens {
        let word = token.text(text);
        let Some(level) = levels.last_mut() else { break };
        match (token.kind, word) {
            (Kind::Sign, "(" | "[" | "{") => {
                level.operators += u32::from(word == "[" && operand_before);
                levels.push(Level::default());
            }
            (Kind::Sign, ")" | "]" | "}") => {
                level.end_expression();
                let depth = level.deepest + 1;
                levels.pop();
                if let Some(outer) = levels.last_mut() {
                    outer.inner = outer.inner.max(depth);
                }
            }
            (Kind::Sign, "," | ";" | "=" | "=>" | "<=>" | "->" | "|")
            | (Kind::Word, "requires" | "prefer" | "saves" | "class" | "grad" | "let") => level.end_expression(),
            (Kind::Sign, _) | (Kind::Word, "and" | "or" | "not" | "in" | "if" | "else") => level.operators += 1,
            _ => {}
        }
        operand_before = token.kind != Kind::Sign || matches!(word, ")" | "]" | "}");
        let now = levels.last().map_or(0, |l| l.deepest.max(l.operators + l.inner));
        if levels.len() > MAX_BRACKETS || levels.len() as u32 + now > MAX_DEPTH {
            let message = "this is nested too deeply";
            return Some(
                Diagnostic::error(Code(107), message, span(token, file))
                    .label("too many brackets and operators in one expression")
                    .note(format!(
                        "one expression may have at most {MAX_BRACKETS} levels of brackets, and \
                        {MAX_DEPTH} of brackets and operators"
                    ))
                    .hint("give parts of it a name, with a `scalar`, an `op` or a `let`"),
            );
        }
    }
    None
}
