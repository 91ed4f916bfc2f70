//! Tokens to tree, for items without a mistake.
//!
//! In: the tokens of one item that passed the `limits`. Out: its tree, or `None` where anything at all is amiss: the grammar
//! (`hyp.pest`) then decides, and words the error. It is some thirty times as fast as the grammar, which tries
//! its alternatives letter by letter. Holds always: what is read here, the grammar reads to the same tree with the same
//! spans; `tests` compares them on every `.hyp` file of the repository and on thousands of broken ones.

mod expr;
mod item;

use super::scan::{Kind, Token};
use crate::ast::{ItemKind, Name, Spanned};
use crate::source::{FileId, Span};

/// Words that are no names.
const RESERVED: [&str; 16] = [
    "not", "none", "nan", "inf", "in", "if", "then", "true", "for", "false", "and", "or", "else", "requires", "prefer",
    "class",
];
/// The rest of them.
const RESERVED_CLAUSES: [&str; 2] = ["grad", "let"];

/// Reads one item.
pub(super) fn item(text: &str, file: FileId, tokens: &[Token]) -> Option<ItemKind> {
    let mut r = Reader { text, file, tokens, at: 0 };
    let kind = r.item()?;
    (r.at == tokens.len()).then_some(kind)
}

/// A place among the tokens of an item.
struct Reader<'a> {
    text: &'a str,
    file: FileId,
    tokens: &'a [Token],
    at: usize,
}

impl<'a> Reader<'a> {
    /// The token so many further on.
    fn token(&self, ahead: usize) -> Option<&'a Token> {
        self.tokens.get(self.at + ahead)
    }

    /// The text of the token so many further on, empty behind the last.
    fn word(&self, ahead: usize) -> &'a str {
        self.token(ahead).map_or("", |t| t.text(self.text))
    }

    /// Whether a sign or keyword is next.
    fn is(&self, text: &str) -> bool {
        self.word(0) == text
    }

    /// Takes a sign or keyword if it is next.
    fn take(&mut self, text: &str) -> bool {
        let found = self.is(text);
        self.at += usize::from(found);
        found
    }

    /// Takes a sign or keyword that must be there.
    fn expect(&mut self, text: &str) -> Option<()> {
        self.take(text).then_some(())
    }

    /// The place of what was read since the token `from`.
    fn since(&self, from: usize) -> Span {
        let start = self.tokens.get(from).map_or(0, |t| t.start);
        let end = self.at.checked_sub(1).and_then(|i| self.tokens.get(i)).map_or(start, |t| t.end);
        Span { file: self.file, start, end }
    }

    /// Whether the token so many further on is a name.
    fn is_name(&self, ahead: usize) -> bool {
        let Some(token) = self.token(ahead).filter(|t| t.kind == Kind::Word) else { return false };
        let word = token.text(self.text);
        word != "_" && !RESERVED.contains(&word) && !RESERVED_CLAUSES.contains(&word)
    }

    fn name(&mut self) -> Option<Name> {
        if !self.is_name(0) {
            return None;
        }
        Some(self.any())
    }

    /// The next token as a name, whatever it is.
    fn any(&mut self) -> Name {
        let node = self.word(0).to_string();
        self.at += 1;
        Spanned { node, span: self.since(self.at - 1) }
    }

    /// `one, one, ...,` up to a closing sign, which is taken.
    fn listed<T>(&mut self, close: &str, one: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut out = Vec::new();
        while !self.take(close) {
            out.push(one(self)?);
            if !self.take(",") {
                self.expect(close)?;
                break;
            }
        }
        Some(out)
    }

    /// `one, one, ...` without an end of its own.
    fn several<T>(&mut self, one: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut out = vec![one(self)?];
        while self.take(",") {
            out.push(one(self)?);
        }
        Some(out)
    }

    /// A string without escapes.
    fn string(&mut self) -> Option<Spanned<String>> {
        let token = self.token(0).filter(|t| t.kind == Kind::Str)?;
        let inner = token.text(self.text).strip_prefix('"')?.strip_suffix('"')?;
        if inner.contains('\\') {
            return None;
        }
        self.at += 1;
        Some(Spanned { node: inner.to_string(), span: self.since(self.at - 1) })
    }

    /// A number, and whether it is written as a whole one.
    fn number(&mut self) -> Option<(f64, bool)> {
        let text = self.token(0).filter(|t| t.kind == Kind::Number)?.text(self.text);
        if !is_number(text) {
            return None;
        }
        self.at += 1;
        Some((text.parse().ok()?, text.bytes().all(|b| b.is_ascii_digit())))
    }
}

/// `12`, `1.5`, `1e-5`
fn is_number(text: &str) -> bool {
    let digits = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((m, e)) => (m, Some(e.strip_prefix(['+', '-']).unwrap_or(e))),
        None => (text, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((w, f)) => (w, Some(f)),
        None => (mantissa, None),
    };
    digits(whole) && fraction.is_none_or(digits) && exponent.is_none_or(digits)
}
