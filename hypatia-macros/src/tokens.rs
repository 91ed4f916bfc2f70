//! Rules written as tokens between the braces of the macro: their text, and each part's span.
//!
//! In: tokens. Out: their text, and the span of each token beside its range in that text.
//! Invariant: tokens keep the lines and columns that they have in the user's file; comments between
//! them are left out. The range of an error gives the tokens that it covers, and the compiler
//! points at those.

use std::ops::Range;

use proc_macro2::{Delimiter, Group, Spacing, Span, TokenStream, TokenTree};

/// Maximum number of blank lines before a token, or of columns. Tokens that a macro put together
/// may come from anywhere.
pub const FAR: usize = 10_000;

/// A text, and the tokens that it was made of.
pub struct Text {
    /// What is compiled.
    pub text: String,
    /// Ranges of the text in their order, each with its token.
    tokens: Vec<(Range<usize>, Span)>,
    line: usize,
    column: usize,
    /// The last token must be followed by the next one directly.
    joint: bool,
}

impl Text {
    /// The text of these tokens. Without an edition it is of the first one.
    pub fn of(tokens: TokenStream) -> Text {
        let mut out = Text { text: String::new(), tokens: Vec::new(), line: 1, column: 1, joint: false };
        let mut top = tokens.clone().into_iter();
        if !top.any(|t| matches!(t, TokenTree::Ident(i) if i == "edition")) {
            out.write("edition 1;");
        }
        out.stream(tokens);
        out.text.push('\n');
        out
    }

    /// The first and the last token of a range of the text, or the token before it.
    pub fn spans(&self, range: Range<usize>) -> Option<(Span, Span)> {
        let first = self.tokens.partition_point(|(r, _)| r.end <= range.start);
        let behind = self.tokens.partition_point(|(r, _)| r.start < range.end);
        if first < behind {
            return Some((self.tokens[first].1, self.tokens[behind - 1].1));
        }
        let near = self.tokens.get(behind.max(1) - 1)?;
        Some((near.1, near.1))
    }

    fn stream(&mut self, tokens: TokenStream) {
        let mut tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Group(group) => self.group(&group),
                TokenTree::Punct(p) => match comment(p.span()) {
                    // It came as the attribute `#[doc = "..."]`, or `#![doc = "..."]`.
                    Some(text) => {
                        self.token(&text, p.span(), false);
                        self.write("\n");
                        tokens.next_if(|t| matches!(t, TokenTree::Punct(p) if p.as_char() == '!'));
                        tokens.next_if(|t| matches!(t, TokenTree::Group(_)));
                    }
                    None => self.token(&p.as_char().to_string(), p.span(), p.spacing() == Spacing::Joint),
                },
                TokenTree::Ident(i) => self.token(&i.to_string(), i.span(), false),
                TokenTree::Literal(l) => self.token(&l.to_string(), l.span(), false),
            }
        }
    }

    fn group(&mut self, group: &Group) {
        let (open, close) = match group.delimiter() {
            Delimiter::Parenthesis => ("(", ")"),
            Delimiter::Bracket => ("[", "]"),
            Delimiter::Brace => ("{", "}"),
            Delimiter::None => return self.stream(group.stream()),
        };
        self.token(open, group.span_open(), false);
        self.stream(group.stream());
        self.token(close, group.span_close(), false);
    }

    /// A token where it stands in the user's file, as far as that lies ahead.
    fn token(&mut self, text: &str, span: Span, joint: bool) {
        let start = span.unwrap().start();
        let (line, column) = (start.line(), start.column());
        let joined = std::mem::replace(&mut self.joint, joint);
        if line > self.line && line - self.line < FAR {
            self.text.push_str(&"\n".repeat(line - self.line));
            (self.line, self.column) = (line, 1);
        }
        if line == self.line && column >= self.column && column - self.column < FAR {
            self.write(&" ".repeat(column - self.column));
        } else if !joined {
            self.write(" ");
        }
        let from = self.text.len();
        self.write(text);
        self.tokens.push((from..self.text.len(), span));
    }

    fn write(&mut self, text: &str) {
        self.text.push_str(text);
        match text.rsplit_once('\n') {
            Some((before, last)) => {
                self.line += before.matches('\n').count() + 1;
                self.column = last.chars().count() + 1;
            }
            None => self.column += text.chars().count(),
        }
    }
}

/// The doc comment that a token stands for.
fn comment(span: Span) -> Option<String> {
    span.source_text().filter(|text| text.starts_with("///") || text.starts_with("//!"))
}
