//! Parsing: text to syntax tree.
//!
//! In: a file of the source map. Out: its tree and the syntax errors. The scanner (`scan`) splits a
//! file into items. Each item is checked for lexical errors and depth (`limits`) and parsed by the
//! grammar (`hypatia-grammar`). The result is built into a tree (`items`, `expr`). An item with an
//! error is explained (`explain`) and left out; the others are kept. Invariant: no input makes this
//! panic, overflow the stack or take more than linear time.

mod explain;
mod expr;
mod items;
mod limits;
pub(crate) mod scan;

use std::cell::RefCell;
use std::ops::Range;

use hypatia_grammar::Rule;
use pest::iterators::{Pair, Pairs};

pub use limits::{MAX_BRACKETS, MAX_DEPTH};

use crate::ast::{File, Item, Name, Spanned, UNKNOWN_ITEM};
use crate::diag::{Code, Diagnostic};
use crate::parallel::side_by_side;
use crate::source::{FileId, MAX_FILE, SourceMap, Span};
use scan::{Kind, Token};

/// The edition that this version supports.
pub const EDITION: u32 = 1;

/// The grammar and the tree builder disagree about this rule: a bug of Hypatia, never of the user.
#[derive(Debug)]
pub(crate) struct Bug(Rule);
type Built<T> = Result<T, Bug>;

/// Stack for the grammar's recursion: some 60 KiB per level of brackets in an unoptimised build,
/// times [`MAX_BRACKETS`], with a wide margin. Untouched pages cost nothing.
const STACK: usize = 32 << 20;

/// Parses a file. The tree holds the items without errors.
pub fn parse(sources: &SourceMap, file: FileId) -> (File, Vec<Diagnostic>) {
    match parse_all(sources, &[file]).pop() {
        Some(parsed) => parsed,
        None => parse_text(&sources.file(file).text, file),
    }
}

/// Parses files in parallel, each as [`parse`] does.
///
/// The work runs on threads of its own, because the caller's stack may be small.
pub fn parse_all(sources: &SourceMap, files: &[FileId]) -> Vec<(File, Vec<Diagnostic>)> {
    side_by_side(files, 1, Some(STACK), |file| parse_text(&sources.file(*file).text, *file))
}

fn parse_text(text: &str, file: FileId) -> (File, Vec<Diagnostic>) {
    let mut out = File::empty(file);
    if let Some(d) = unreadable(text, file) {
        return (out, vec![d]);
    }
    let all = scan::tokens(text);
    let significant: Vec<Token> = all.iter().filter(|t| !t.is_comment()).copied().collect();
    let comments: Vec<Token> = all.iter().filter(|t| t.is_comment()).copied().collect();
    let builder = Builder { file, text, tokens: &significant, base: 0, diagnostics: RefCell::default() };
    let mut parser = FileParser {
        builder,
        tokens: &significant,
        comments: &comments,
        next_comment: 0,
        lexical_error: false,
        misplaced: None,
        out: &mut out,
    };
    for range in scan::items(&significant, text) {
        parser.item(range);
    }
    parser.finish();
    let diagnostics = parser.builder.diagnostics.into_inner();
    (out, diagnostics)
}

/// Why a file is not parsed: it is too large or not text.
fn unreadable(text: &str, file: FileId) -> Option<Diagnostic> {
    if text.len() > MAX_FILE {
        let message = format!("this file is too large: the limit is {MAX_FILE} bytes");
        let d = Diagnostic::error(Code(108), message, Span { file, start: 0, end: 0 });
        return Some(d.hint("split it into several files and join them with `use`"));
    }
    let at = text.find('\u{fffd}')? as u32;
    let d = Diagnostic::error(Code(114), "this file is not UTF-8 text", Span { file, start: at, end: at + 3 });
    let d = d.label("not a UTF-8 character").hint("save the file as UTF-8");
    Some(if text.contains('\0') { d.note("it contains NUL bytes: it is UTF-16, or not text") } else { d })
}

/// Parses the items of one file.
struct FileParser<'a> {
    builder: Builder<'a>,
    tokens: &'a [Token],
    comments: &'a [Token],
    /// The first comment that is not yet placed.
    next_comment: usize,
    /// The previous item had a lexical error, so its end was a guess.
    lexical_error: bool,
    /// An edition that is not the first item.
    misplaced: Option<Span>,
    out: &'a mut File,
}

impl FileParser<'_> {
    fn item(&mut self, range: Range<usize>) {
        let (file, text) = (self.builder.file, self.builder.text);
        let tokens = &self.tokens[range.clone()];
        let (Some(first), Some(last)) = (tokens.first(), tokens.last()) else { return };
        if tokens.len() == 1 && first.text(text) == ";" {
            return; // A redundant `;` after a block.
        }
        let span = Span { file, start: first.start, end: last.end };
        let doc = self.docs(first.start, range.start);
        self.comments_until(last.end);
        // The remainder of an item with broken brackets or quotes is not a second error.
        let leftover = self.lexical_error
            && !scan::opens_item(tokens, 0, text)
            && crate::spell::closest(first.text(text), scan::ITEM_WORDS.into_iter()).is_none();
        if leftover {
            return;
        }
        self.lexical_error = false;
        if let Some(d) = limits::check(tokens, text, file) {
            self.lexical_error = true;
            return self.builder.report(d);
        }
        self.builder.base = first.start;
        let source = &text[first.start as usize..last.end as usize];
        let following = self.tokens.get(range.end);
        match hypatia_grammar::parse(source) {
            Err(error) => {
                self.broken(tokens);
                self.builder.report(explain::syntax_error(&error, tokens, following, &self.builder));
            }
            Ok(pairs) => {
                if let Err(bug) = self.built(pairs, span, doc, tokens) {
                    let message = format!("internal error: the parser did not recognise a {:?}", bug.0);
                    self.builder.report(
                        Diagnostic::error(Code(101), message, span).note("please report this error, with the file"),
                    );
                }
            }
        }
    }

    /// Records the names that an item with an error would have declared; a rule by its path.
    fn broken(&mut self, tokens: &[Token]) {
        let text = self.builder.text;
        let mut words = tokens.iter().map(|t| t.text(text));
        match (words.next(), words.next()) {
            (Some("use"), _) => self.out.broken.push("*".to_string()),
            (Some("scalar" | "op" | "pattern" | "family" | "ruleset" | "kernel" | "contract"), Some(name)) => {
                self.out.broken.push(name.to_string());
            }
            (Some("rule"), Some(set)) => {
                let path = words.take_while(|w| !matches!(*w, ":" | "["));
                self.out.broken.push(std::iter::once(set).chain(path).collect());
            }
            (Some("edition" | "test"), _) | (None, _) => {}
            // A misspelt keyword: the item may declare anything.
            _ => self.out.broken.push(UNKNOWN_ITEM.to_string()),
        }
    }

    fn built(&mut self, mut pairs: Pairs<'_, Rule>, span: Span, doc: String, tokens: &[Token]) -> Built<()> {
        let pair = Children(pairs.next().ok_or(Bug(Rule::item))?.into_inner()).first()?;
        if pair.as_rule() == Rule::edition {
            let number = Children::of(pair).first()?;
            let at = self.builder.span(&number);
            let edition = Spanned { node: number.as_str().parse().unwrap_or(u32::MAX), span: at };
            if edition.node != EDITION {
                let d = Diagnostic::error(
                    Code(103),
                    format!("edition {} does not exist", explain::shorten(number.as_str())),
                    at,
                );
                self.builder.report(d.label("unknown edition").hint(format!("write `edition {EDITION};`")));
            }
            if self.out.edition.is_some() || !self.out.items.is_empty() {
                self.misplaced = Some(span);
            }
            self.out.edition.get_or_insert(edition);
            return Ok(());
        }
        let kind = self.builder.item(pair)?;
        self.keep(Item { doc, kind, span }, tokens);
        Ok(())
    }

    /// Adds an item to the tree, unless it declares too much.
    fn keep(&mut self, item: Item, tokens: &[Token]) {
        match limits::too_many(&item.kind) {
            Some(d) => {
                self.broken(tokens);
                self.builder.report(d);
            }
            None => self.out.items.push(item),
        }
    }

    /// Takes the doc comments before an item that starts at `start`. Other comments before it are
    /// kept as comments.
    fn docs(&mut self, start: u32, item: usize) -> String {
        let text = self.builder.text;
        let previous_end = item.checked_sub(1).map_or(0, |i| self.tokens[i].end);
        let mut doc = Vec::new();
        while let Some(c) = self.comments.get(self.next_comment).filter(|c| c.start < start) {
            self.next_comment += 1;
            match c.kind {
                Kind::Doc if c.first && c.start >= previous_end => doc.push(doc_line(c.text(text))),
                Kind::ModuleDoc if self.out.items.is_empty() => self.module_doc(c),
                _ => self.comment(c),
            }
        }
        doc.join("\n")
    }

    fn module_doc(&mut self, token: &Token) {
        if !self.out.doc.is_empty() {
            self.out.doc.push('\n');
        }
        self.out.doc.push_str(&doc_line(token.text(self.builder.text)));
    }

    fn comment(&mut self, token: &Token) {
        let span = Span { file: self.builder.file, start: token.start, end: token.end };
        self.out.comments.push(Spanned { node: token.text(self.builder.text).to_string(), span });
    }

    fn comments_until(&mut self, end: u32) {
        while let Some(c) = self.comments.get(self.next_comment).filter(|c| c.start < end) {
            self.next_comment += 1;
            self.comment(c);
        }
    }

    /// Handles what follows the last item, and checks that there was an edition.
    fn finish(&mut self) {
        while let Some(c) = self.comments.get(self.next_comment) {
            self.next_comment += 1;
            match c.kind {
                Kind::ModuleDoc if self.out.items.is_empty() => self.module_doc(c),
                _ => self.comment(c),
            }
        }
        let file = self.builder.file;
        if let Some(span) = self.misplaced {
            let d = Diagnostic::error(Code(102), "`edition` must be the first item, and may appear only once", span);
            self.builder.report(d.hint("move it to the top of the file"));
        } else if self.out.edition.is_none() && !self.tokens.iter().any(|t| t.text(self.builder.text) == "edition") {
            let (start, end) = self.tokens.first().map_or((0, 0), |t| (t.start, t.end));
            let d = Diagnostic::error(Code(102), "this file does not declare its edition", Span { file, start, end });
            let d = d.label(format!("expected `edition {EDITION};` before this"));
            self.builder.report(d.hint(format!("write `edition {EDITION};` as the first line of the file")));
        }
    }
}

/// The text of a `/// words` line.
fn doc_line(text: &str) -> String {
    let words = &text[3..];
    words.strip_prefix(' ').unwrap_or(words).trim_end().to_string()
}

/// Builds the tree of one item from pairs, and collects its errors.
pub(crate) struct Builder<'a> {
    file: FileId,
    /// The whole file.
    text: &'a str,
    /// Its tokens without comments.
    tokens: &'a [Token],
    /// Where the item starts; offsets of pairs are relative to it.
    base: u32,
    diagnostics: RefCell<Vec<Diagnostic>>,
}

impl Builder<'_> {
    fn report(&self, d: Diagnostic) {
        self.diagnostics.borrow_mut().push(d);
    }

    fn span(&self, pair: &Pair<'_, Rule>) -> Span {
        let s = pair.as_span();
        let (start, end) = (self.base + s.start() as u32, self.base + s.end() as u32);
        // The grammar includes white space and comments after a rule's last token.
        let last = self.tokens.partition_point(|t| t.end <= end);
        let end = last.checked_sub(1).map_or(end, |i| self.tokens[i].end).max(start);
        Span { file: self.file, start, end }
    }

    fn name(&self, pair: Pair<'_, Rule>) -> Name {
        Spanned { node: pair.as_str().to_string(), span: self.span(&pair) }
    }
}

/// The significant pairs inside a pair: no keywords, brackets or separators.
pub(crate) struct Children<'a>(Pairs<'a, Rule>);

impl<'a> Children<'a> {
    fn of(pair: Pair<'a, Rule>) -> Children<'a> {
        Children(pair.into_inner())
    }

    fn first(&mut self) -> Built<Pair<'a, Rule>> {
        self.next().ok_or(Bug(Rule::EOI))
    }
}

impl<'a> Iterator for Children<'a> {
    type Item = Pair<'a, Rule>;

    fn next(&mut self) -> Option<Pair<'a, Rule>> {
        self.0.find(|p| !explain::is_fixed_text(p.as_rule()))
    }
}

#[cfg(test)]
mod tests;
