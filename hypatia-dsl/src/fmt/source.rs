//! Tokens of a file with their comments, and the role of each token.
//!
//! In: the text of a file without syntax errors. Out: its tokens, each with the comments before and
//! after it. Invariant: every comment belongs to one token, or to the end of the file.

use std::ops::Range;

use crate::parse::scan::{self, Kind, Token};

/// A comment on lines of its own before a token.
pub(super) struct Leading<'a> {
    pub text: &'a str,
    /// True if an empty line precedes it.
    pub blank: bool,
}

/// A token with its comments.
pub(super) struct Piece<'a> {
    pub text: &'a str,
    pub kind: Kind,
    /// Comments on lines of their own before it.
    pub leading: Vec<Leading<'a>>,
    /// A trailing comment on its line.
    pub trailing: Option<&'a str>,
    /// True if an empty line precedes it (after its leading comments).
    pub blank: bool,
    /// `<` or `>` around types.
    pub angle: bool,
    /// The end of an operand: a name, a literal, a closing bracket.
    pub operand: bool,
    /// `-` of a negation, `*` of a variadic parameter.
    pub prefix: bool,
    /// The first token of an item, or of a statement in a block.
    pub opens: bool,
    /// The last token of an item, or of a statement in a block.
    pub ends: bool,
}

/// All tokens of a file.
pub(super) struct Source<'a> {
    pub pieces: Vec<Piece<'a>>,
    pub items: Vec<Range<usize>>,
    /// Comments after the last token.
    pub rest: Vec<Leading<'a>>,
}

impl<'a> Source<'a> {
    pub(super) fn new(text: &'a str) -> Source<'a> {
        let tokens = scan::tokens(text);
        let mut pieces: Vec<Piece<'a>> = Vec::new();
        let mut kept: Vec<Token> = Vec::new();
        let mut waiting: Vec<Leading<'a>> = Vec::new();
        let mut end = 0;
        for token in &tokens {
            let before = &text[end as usize..token.start as usize];
            let blank = before.matches('\n').count() > 1;
            let word = token.text(text);
            end = token.end;
            if token.is_comment() {
                match pieces.last_mut() {
                    Some(last) if !token.first && waiting.is_empty() => last.trailing = Some(word),
                    _ => waiting.push(Leading { text: word, blank }),
                }
                continue;
            }
            kept.push(*token);
            let leading = std::mem::take(&mut waiting);
            pieces.push(Piece {
                text: word,
                kind: token.kind,
                leading,
                trailing: None,
                blank,
                angle: false,
                operand: false,
                prefix: false,
                opens: false,
                ends: false,
            });
        }
        let items = scan::items(&kept, text);
        let mut source = Source { pieces, items, rest: waiting };
        source.drop_spare_semicolons();
        source.roles();
        source.statements();
        source
    }

    /// Drops redundant `;`; their comments move to the next token.
    fn drop_spare_semicolons(&mut self) {
        let lone = |r: &Range<usize>| r.len() == 1 && self.pieces[r.start].text == ";";
        let mut spare = vec![false; self.pieces.len()];
        self.items.iter().filter(|r| lone(r)).for_each(|r| spare[r.start] = true);
        // How many are dropped before each piece.
        let mut gone = Vec::with_capacity(spare.len() + 1);
        let mut waiting: Vec<Leading<'a>> = Vec::new();
        for (mut piece, spare) in std::mem::take(&mut self.pieces).into_iter().zip(&spare) {
            gone.push(gone.len() - self.pieces.len());
            if *spare {
                waiting.append(&mut piece.leading);
                waiting.extend(piece.trailing.map(|text| Leading { text, blank: false }));
                continue;
            }
            if !waiting.is_empty() {
                waiting.append(&mut piece.leading);
                piece.leading = std::mem::take(&mut waiting);
            }
            self.pieces.push(piece);
        }
        gone.push(gone.len() - self.pieces.len());
        waiting.append(&mut self.rest);
        self.rest = waiting;
        self.items.retain(|r| !(r.len() == 1 && spare[r.start]));
        for range in &mut self.items {
            *range = range.start - gone[range.start]..range.end - gone[range.end];
        }
    }

    fn roles(&mut self) {
        for range in self.items.clone() {
            for i in range.clone() {
                let previous = (i > range.start).then(|| &self.pieces[i - 1]);
                let after_operand = previous.is_some_and(|p| p.operand);
                let opens_angle = self.pieces[i].text == "<" && self.angle_end(i, range.clone()).is_some();
                let declared = previous.is_some_and(|p| p.text == "scalar");
                let called = self.pieces.get(i + 1).is_some_and(|p| p.text == "(");
                let piece = &mut self.pieces[i];
                piece.operand = match piece.kind {
                    Kind::Word if is_keyword(piece.text) => declared || piece.text == "in" && called && !after_operand,
                    Kind::Word | Kind::Number | Kind::Str => true,
                    _ => matches!(piece.text, ")" | "]" | "}") || piece.angle,
                };
                piece.prefix = matches!(piece.text, "-" | "*") && !after_operand;
                if opens_angle && let Some(end) = self.angle_end(i, range.clone()) {
                    self.pieces[i].angle = true;
                    self.pieces[end].angle = true;
                }
            }
        }
    }

    /// Marks the first and last tokens of items and of the statements in their blocks.
    fn statements(&mut self) {
        for range in self.items.clone() {
            self.pieces[range.start].opens = true;
            self.pieces[range.end - 1].ends = true;
            if self.pieces[range.end - 1].text != "}" {
                continue;
            }
            let mut depth = 0;
            for i in range.clone().rev() {
                match self.pieces[i].text {
                    "}" | ")" | "]" => depth += 1,
                    "{" | "(" | "[" => depth -= 1,
                    ";" if depth == 1 => {
                        self.pieces[i].ends = true;
                        self.pieces[i + 1].opens = i + 2 < range.end;
                    }
                    _ => {}
                }
                if depth == 0 {
                    self.pieces[i + 1].opens = i + 2 < range.end;
                    break;
                }
            }
        }
    }

    /// The `>` that closes the `<` at `i`, if they enclose types: after an op's name, or after a
    /// name and before the bracket of a call.
    fn angle_end(&self, i: usize, range: Range<usize>) -> Option<usize> {
        let text = |i: usize| self.pieces.get(i).filter(|_| range.contains(&i)).map_or("", |p| p.text);
        if i == range.start + 2 && text(range.start) == "op" {
            return (i..range.end).find(|j| text(*j) == ">" && text(j + 1) == "(");
        }
        let mut j = i + 1;
        loop {
            if self.pieces.get(j).is_none_or(|p| p.kind != Kind::Word) || i == range.start {
                return None;
            }
            match text(j + 1) {
                "," => j += 2,
                ">" => return (text(j + 2) == "(" && self.pieces[i - 1].kind == Kind::Word).then_some(j + 1),
                _ => return None,
            }
        }
    }
}

/// True for words that are never names.
pub(super) fn is_keyword(word: &str) -> bool {
    matches!(
        word,
        "and" | "or" | "not" | "in" | "if" | "then" | "else" | "for" | "requires" | "prefer" | "class" | "grad" | "let"
    )
}
