//! Cuts a file into items before the grammar reads them.
//!
//! In: the text of a file. Out: its tokens, its comments, and one [`Piece`] for each item, with the
//! doc comment that stands before it and the lexical error in it. Invariant: a piece is complete in
//! itself, so that pieces can be parsed in any order; no comment is lost.

use std::ops::Range;

use super::limits;
use super::scan::{self, Kind, Token};
use crate::ast::Spanned;
use crate::diag::Diagnostic;
use crate::source::{FileId, Span};

/// A file that is cut into items.
pub(super) struct CutFile<'a> {
    /// Which file.
    pub file: FileId,
    /// Its text.
    pub text: &'a str,
    /// Its tokens without comments.
    pub tokens: Vec<Token>,
    /// The items, in file order.
    pub pieces: Vec<Piece>,
    /// `//!` lines at the top, joined, without the marker.
    pub doc: String,
    /// All ordinary comments.
    pub comments: Vec<Spanned<String>>,
}

/// An item that is not parsed yet.
pub(super) struct Piece {
    /// Its tokens, in [`CutFile::tokens`].
    pub tokens: Range<usize>,
    /// Where it stands.
    pub span: Span,
    /// `///` lines before it, joined, without the marker.
    pub doc: String,
    /// Why the grammar need not read it: an error in its brackets, quotes or depth.
    pub lexical: Option<Diagnostic>,
}

impl<'a> CutFile<'a> {
    /// Cuts a text into items.
    pub fn of(text: &'a str, file: FileId) -> CutFile<'a> {
        let (comments, tokens): (Vec<Token>, Vec<Token>) = scan::tokens(text).into_iter().partition(Token::is_comment);
        let mut cutter = Cutter {
            out: CutFile { file, text, tokens, pieces: Vec::new(), doc: String::new(), comments: Vec::new() },
            comments: &comments,
            lexical_error: false,
            at_the_top: true,
        };
        for range in scan::items(&cutter.out.tokens, text) {
            cutter.item(range);
        }
        cutter.place(u32::MAX);
        cutter.out
    }

    /// The tokens of a piece.
    pub fn tokens_of(&self, piece: &Piece) -> &[Token] {
        &self.tokens[piece.tokens.clone()]
    }
}

/// A file being cut.
struct Cutter<'a, 'c> {
    out: CutFile<'a>,
    /// The comments that are not placed yet.
    comments: &'c [Token],
    /// The previous item had a lexical error, so its end was a guess.
    lexical_error: bool,
    /// No item but the edition stands before.
    at_the_top: bool,
}

impl Cutter<'_, '_> {
    fn item(&mut self, range: Range<usize>) {
        let (file, text) = (self.out.file, self.out.text);
        let tokens = &self.out.tokens[range.clone()];
        let (Some(first), Some(last)) = (tokens.first(), tokens.last()) else { return };
        if tokens.len() == 1 && first.text(text) == ";" {
            return; // A redundant `;` after a block.
        }
        // The remainder of an item with broken brackets or quotes is not a second error.
        let leftover = self.lexical_error
            && !scan::opens_item(tokens, 0, text)
            && crate::spell::closest(first.text(text), scan::ITEM_WORDS.into_iter()).is_none();
        let lexical = if leftover { None } else { limits::check(tokens, text, file) };
        let (start, end, edition) = (first.start, last.end, first.text(text) == "edition");
        let previous_end = range.start.checked_sub(1).map_or(0, |i| self.out.tokens[i].end);
        let doc = self.docs(start, previous_end);
        self.comments_until(end);
        if leftover {
            return;
        }
        self.lexical_error = lexical.is_some();
        self.at_the_top &= edition;
        self.out.pieces.push(Piece { tokens: range, span: Span { file, start, end }, doc, lexical });
    }

    /// Takes the doc comments before an item that starts at `start`, after the end of the previous
    /// token. Other comments before it are kept as comments.
    fn docs(&mut self, start: u32, previous_end: u32) -> String {
        let docs = self.comments.iter().take_while(|c| c.start < start);
        let docs = docs.filter(|c| c.kind == Kind::Doc && c.first && c.start >= previous_end);
        let doc: Vec<String> = docs.map(|c| doc_line(c.text(self.out.text))).collect();
        self.place_unless(start, |c| c.kind == Kind::Doc && c.first && c.start >= previous_end);
        doc.join("\n")
    }

    /// Keeps the comments inside of an item, of whatever kind.
    fn comments_until(&mut self, end: u32) {
        while let Some(c) = self.next_comment(end) {
            self.comment(&c);
        }
    }

    /// Places the comments before an offset.
    fn place(&mut self, before: u32) {
        self.place_unless(before, |_| false);
    }

    /// Places the comments before an offset as what they are, and drops those that are `taken`.
    fn place_unless(&mut self, before: u32, taken: impl Fn(&Token) -> bool) {
        while let Some(c) = self.next_comment(before) {
            match c.kind {
                _ if taken(&c) => {}
                Kind::ModuleDoc if self.at_the_top => self.module_doc(&c),
                _ => self.comment(&c),
            }
        }
    }

    fn next_comment(&mut self, before: u32) -> Option<Token> {
        let (first, rest) = self.comments.split_first()?;
        (first.start < before).then(|| {
            self.comments = rest;
            *first
        })
    }

    fn module_doc(&mut self, token: &Token) {
        if !self.out.doc.is_empty() {
            self.out.doc.push('\n');
        }
        self.out.doc.push_str(&doc_line(token.text(self.out.text)));
    }

    fn comment(&mut self, token: &Token) {
        let span = Span { file: self.out.file, start: token.start, end: token.end };
        self.out.comments.push(Spanned { node: token.text(self.out.text).to_string(), span });
    }
}

/// The text of a `/// words` line.
fn doc_line(text: &str) -> String {
    let words = &text[3..];
    words.strip_prefix(' ').unwrap_or(words).trim_end().to_string()
}
