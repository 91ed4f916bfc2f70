//! Parsing: text to syntax tree.
//!
//! In: a file of the source map. Out: its tree and the syntax errors. The scanner (`scan`, `cut`)
//! splits a file into items, and checks each for lexical errors and depth (`limits`). The grammar
//! (`hypatia-grammar`) parses each item, on all cores, and the result is built into a tree
//! (`items`, `expr`). An item with an error is explained (`explain`) and left out; the others are
//! kept. Invariant: no input makes this panic, overflow the stack or take more than linear time.

mod cut;
mod explain;
mod expr;
mod items;
mod limits;
pub(crate) mod scan;

use std::cell::RefCell;

use hypatia_grammar::Rule;
use pest::iterators::{Pair, Pairs};

pub use limits::{MAX_BRACKETS, MAX_DEPTH};

use crate::ast::{File, Item, Name, Spanned, UNKNOWN_ITEM};
use crate::diag::{Code, Diagnostic};
use crate::parallel::side_by_side;
use crate::source::{FileId, MAX_FILE, SourceMap, Span};
use cut::{CutFile, Piece};
use scan::Token;

/// The edition that this version supports.
pub const EDITION: u32 = 1;

/// The grammar and the tree builder disagree about this rule: a bug of Hypatia, never of the user.
#[derive(Debug)]
pub(crate) struct Bug(Rule);
type Built<T> = Result<T, Bug>;

/// Stack for the grammar's recursion: some 60 KiB per level of brackets in an unoptimised build,
/// times [`MAX_BRACKETS`], with a wide margin. Untouched pages cost nothing.
const STACK: usize = 32 << 20;

/// Minimum number of items per thread: about a millisecond of work.
const PIECES_A_THREAD: usize = 20;

/// Parses a file. The tree holds the items without errors.
pub fn parse(sources: &SourceMap, file: FileId) -> (File, Vec<Diagnostic>) {
    parse_all(sources, &[file]).pop().unwrap_or_else(|| (File::empty(file), Vec::new()))
}

/// What a piece of a file turned out to be.
enum Parsed {
    /// An item of the tree.
    Item(Box<Item>),
    /// `edition N;`
    Edition(Spanned<u32>),
    /// An item with an error.
    Broken,
}

/// Parses files in parallel, each as [`parse`] does.
///
/// The work runs on threads of its own, because the caller's stack may be small.
pub fn parse_all(sources: &SourceMap, files: &[FileId]) -> Vec<(File, Vec<Diagnostic>)> {
    let cut = side_by_side(files, 1, None, |file| {
        let text = &sources.file(*file).text;
        unreadable(text, *file).map_or_else(|| Ok(CutFile::of(text, *file)), |d| Err(Box::new(d)))
    });
    let pieces: Vec<(&CutFile<'_>, &Piece)> =
        cut.iter().flatten().flat_map(|f| f.pieces.iter().map(move |p| (f, p))).collect();
    let mut parsed = side_by_side(&pieces, PIECES_A_THREAD, Some(STACK), |(f, p)| parse_piece(f, p)).into_iter();
    let join = |(file, cut): (&FileId, &Result<CutFile<'_>, Box<Diagnostic>>)| match cut {
        Ok(cut) => joined(cut, parsed.by_ref().take(cut.pieces.len())),
        Err(unreadable) => (File::empty(*file), vec![(**unreadable).clone()]),
    };
    files.iter().zip(&cut).map(join).collect()
}

/// Parses one piece of a file, and explains its errors.
fn parse_piece(cut: &CutFile<'_>, piece: &Piece) -> (Parsed, Vec<Diagnostic>) {
    if let Some(d) = &piece.lexical {
        return (Parsed::Broken, vec![d.clone()]);
    }
    let span = piece.span;
    let diagnostics = RefCell::default();
    let builder = Builder { file: cut.file, text: cut.text, tokens: &cut.tokens, base: span.start, diagnostics };
    let parsed = match hypatia_grammar::parse(&cut.text[span.start as usize..span.end as usize]) {
        Err(error) => {
            let following = cut.tokens.get(piece.tokens.end);
            builder.report(explain::syntax_error(&error, cut.tokens_of(piece), following, &builder));
            Parsed::Broken
        }
        Ok(pairs) => build(&builder, pairs, piece).unwrap_or_else(|bug| {
            let message = format!("internal error: the parser did not recognise a {:?}", bug.0);
            let d = Diagnostic::error(Code(101), message, span);
            builder.report(d.note("please report this error, with the file"));
            Parsed::Broken
        }),
    };
    (parsed, builder.diagnostics.into_inner())
}

/// Builds the tree of a piece, unless it declares too much.
fn build(builder: &Builder<'_>, mut pairs: Pairs<'_, Rule>, piece: &Piece) -> Built<Parsed> {
    let pair = Children(pairs.next().ok_or(Bug(Rule::item))?.into_inner()).first()?;
    if pair.as_rule() == Rule::edition {
        let number = Children::of(pair).first()?;
        let span = builder.span(&number);
        let edition = Spanned { node: number.as_str().parse().unwrap_or(u32::MAX), span };
        if edition.node != EDITION {
            let number = explain::shorten(number.as_str());
            let d = Diagnostic::error(Code(103), format!("edition {number} does not exist"), span);
            builder.report(d.label("unknown edition").hint(format!("write `edition {EDITION};`")));
        }
        return Ok(Parsed::Edition(edition));
    }
    let kind = builder.item(pair)?;
    Ok(match limits::too_many(&kind) {
        Some(d) => {
            builder.report(d);
            Parsed::Broken
        }
        None => Parsed::Item(Box::new(Item { doc: piece.doc.clone(), kind, span: piece.span })),
    })
}

/// Joins the parsed pieces of a file to its tree, and checks that there is one edition, at the top.
fn joined(cut: &CutFile<'_>, parsed: impl Iterator<Item = (Parsed, Vec<Diagnostic>)>) -> (File, Vec<Diagnostic>) {
    let mut out = File { doc: cut.doc.clone(), comments: cut.comments.clone(), ..File::empty(cut.file) };
    let mut diagnostics = Vec::new();
    let mut misplaced = None;
    for (piece, (parsed, found)) in cut.pieces.iter().zip(parsed) {
        diagnostics.extend(found);
        match parsed {
            Parsed::Item(item) => out.items.push(*item),
            Parsed::Broken if piece.lexical.is_some() => {}
            Parsed::Broken => out.broken.extend(declared_name(cut.tokens_of(piece), cut.text)),
            Parsed::Edition(edition) => {
                if out.edition.is_some() || !out.items.is_empty() {
                    misplaced = Some(piece.span);
                }
                out.edition.get_or_insert(edition);
            }
        }
    }
    diagnostics.extend(lonely_doc(cut));
    diagnostics.extend(edition_error(cut, out.edition.is_some(), misplaced));
    (out, diagnostics)
}

/// The error about a doc comment behind the last item.
fn lonely_doc(cut: &CutFile<'_>) -> Option<Diagnostic> {
    let end = cut.tokens.last()?.end;
    let doc = cut.comments.iter().find(|c| c.span.start >= end && c.node.starts_with("///"))?;
    // Behind an item, on its line, it is a remark.
    let line = cut.text.get(end as usize..doc.span.start as usize)?;
    let d = Diagnostic::error(Code(101), "expected an item after the doc comment", doc.span);
    let d = d.label("there is none that it describes");
    line.contains('\n').then(|| d.hint("write `//` for a remark, or move it in front of what it describes"))
}

/// The name that an item with an error would have declared; a rule's is its path.
fn declared_name(tokens: &[Token], text: &str) -> Option<String> {
    let mut words = tokens.iter().map(|t| t.text(text));
    match (words.next()?, words.next()) {
        ("use", _) => Some("*".to_string()),
        ("scalar" | "op" | "pattern" | "family" | "ruleset" | "kernel" | "contract", Some(name)) => {
            Some(name.to_string())
        }
        ("rule", Some(set)) => {
            let path = words.take_while(|w| !matches!(*w, ":" | "["));
            Some(std::iter::once(set).chain(path).collect())
        }
        ("edition" | "test", _) => None,
        // A misspelt keyword: the item may declare anything.
        _ => Some(UNKNOWN_ITEM.to_string()),
    }
}

/// The error about an edition that is missing or stands elsewhere than at the top.
fn edition_error(cut: &CutFile<'_>, present: bool, misplaced: Option<Span>) -> Option<Diagnostic> {
    if let Some(span) = misplaced {
        let d = Diagnostic::error(Code(102), "`edition` must be the first item, and may appear only once", span);
        return Some(d.hint("move it to the top of the file"));
    }
    if present || cut.tokens.iter().any(|t| t.text(cut.text) == "edition") {
        return None;
    }
    let (start, end) = cut.tokens.first().map_or((0, 0), |t| (t.start, t.end));
    let span = Span { file: cut.file, start, end };
    let d = Diagnostic::error(Code(102), "this file does not declare its edition", span);
    let d = d.label(format!("expected `edition {EDITION};` before this"));
    Some(d.hint(format!("write `edition {EDITION};` as the first line of the file")))
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
