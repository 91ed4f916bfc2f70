//! Items to documents: where lines may break.
//!
//! In: the tokens of a file with their roles. Out: a [`Doc`]. Invariant: every token and comment
//! occurs in it once, in the order of the file.

use std::ops::Range;

use super::doc::Doc;
use super::source::{Leading, Source, is_keyword};
use crate::parse::scan::Kind;

/// A token, or a bracket with its content.
enum Node {
    Token(usize),
    Bracket { open: usize, inner: Vec<Node>, close: usize },
}

impl Node {
    fn first(&self) -> usize {
        match self {
            Node::Token(i) => *i,
            Node::Bracket { open, .. } => *open,
        }
    }

    fn last(&self) -> usize {
        match self {
            Node::Token(i) => *i,
            Node::Bracket { close, .. } => *close,
        }
    }
}

/// The whole file.
pub(super) fn file(source: &Source<'_>) -> Doc {
    let layout = Layout { source };
    let mut all = Vec::new();
    for range in &source.items {
        all.extend(layout.separated(range.start));
        all.push(layout.item(range.clone()));
        all.extend(layout.trailing(range.end - 1));
    }
    for comment in &source.rest {
        all.extend(leading(comment));
    }
    Doc::Concat(all)
}

fn leading(comment: &Leading<'_>) -> [Doc; 3] {
    [if comment.blank { Doc::Blank } else { Doc::Hard }, Doc::text(comment.text), Doc::Hard]
}

struct Layout<'a> {
    source: &'a Source<'a>,
}

impl Layout<'_> {
    fn text(&self, i: usize) -> &str {
        self.source.pieces[i].text
    }

    /// The comments and empty lines before the first token of an item or statement. Inside a
    /// statement, comments are kept but empty lines are not.
    fn separated(&self, i: usize) -> Vec<Doc> {
        let piece = &self.source.pieces[i];
        let mut all: Vec<Doc> = piece.leading.iter().flat_map(leading).collect();
        all.push(if piece.blank { Doc::Blank } else { Doc::Hard });
        all
    }

    fn nodes(&self, range: Range<usize>) -> Vec<Node> {
        let mut stack: Vec<(usize, Vec<Node>)> = Vec::new();
        let mut current = Vec::new();
        for i in range {
            let piece = &self.source.pieces[i];
            match piece.text {
                "(" | "[" | "{" => stack.push((i, std::mem::take(&mut current))),
                "<" if piece.angle => stack.push((i, std::mem::take(&mut current))),
                ")" | "]" | "}" => close(i, &mut stack, &mut current),
                ">" if piece.angle => close(i, &mut stack, &mut current),
                _ => current.push(Node::Token(i)),
            }
        }
        // Brackets match in a file without errors; keep all tokens even if they do not.
        while let Some((open, mut outer)) = stack.pop() {
            outer.push(Node::Token(open));
            outer.append(&mut current);
            current = outer;
        }
        current
    }

    /// An item without its leading comments.
    fn item(&self, range: Range<usize>) -> Doc {
        let head = self.text(range.start).to_string();
        let (last, end) = (self.text(range.end - 1).to_string(), range.end);
        let nodes = self.nodes(range);
        if last == "}"
            && let Some((Node::Bracket { open, inner, close }, before)) = nodes.split_last()
            && *close == end - 1
        {
            return self.block(&head, before, *open, inner, *close);
        }
        match head.as_str() {
            "rule" => self.rule(&nodes),
            "op" => self.body(&nodes, &["let", "grad"]),
            "pattern" => self.body(&nodes, &[]),
            "scalar" => self.body(&nodes, &["device", "grad"]),
            _ => Doc::group(vec![self.element(&nodes, true)]),
        }
    }

    /// `... { a; b; }`
    fn block(&self, head: &str, before: &[Node], open: usize, inner: &[Node], close: usize) -> Doc {
        let before_doc = if head == "op" {
            self.body(before, &["let", "grad"])
        } else {
            Doc::group(vec![self.element(before, true)])
        };
        let mut statements = Vec::new();
        for statement in inner.split_inclusive(|n| matches!(n, Node::Token(i) if self.text(*i) == ";")) {
            let Some(first) = statement.first().map(Node::first) else { continue };
            let piece = &self.source.pieces[first];
            if statements.is_empty() {
                statements.extend(self.comments(first));
                statements.push(Doc::Line);
            } else if piece.leading.is_empty() && !piece.blank {
                statements.push(Doc::Line);
            } else {
                statements.extend(self.separated(first));
            }
            statements.push(Doc::group(vec![self.element(statement, true)]));
            statements.extend(statement.last().into_iter().flat_map(|n| self.trailing(n.last())));
        }
        if head == "test" {
            statements.insert(0, Doc::Hard);
        }
        statements.extend(self.comments(close));
        let empty = statements.is_empty();
        let mut all = vec![before_doc, Doc::text(" "), self.token(open), Doc::nest(statements)];
        all.push(if empty { Doc::text(" ") } else { Doc::Line });
        all.push(self.closing(close));
        Doc::group(all)
    }

    /// `head = body` and then clauses, for scalars and ops: the clauses break first, each onto a
    /// line of its own, then the body moves to its own line.
    fn body(&self, nodes: &[Node], clauses: &[&str]) -> Doc {
        let is = |n: &Node, word: &str| matches!(n, Node::Token(i) if self.text(*i) == word);
        let clause = nodes.iter().skip(2).position(|n| clauses.iter().any(|c| is(n, c))).map_or(nodes.len(), |p| p + 2);
        let (main, clause) = nodes.split_at(clause);
        let doc = match main.iter().position(|n| is(n, "=")) {
            Some(at) => Doc::group(vec![
                self.element(&main[..at], true),
                Doc::nest(vec![Doc::Line, self.token(main[at].first()), Doc::text(" "), self.value(&main[at + 1..])]),
            ]),
            None => self.element(main, true),
        };
        let mut all = vec![doc];
        let mut rest = clause;
        while let Some((_, behind)) = rest.split_first() {
            let starts = |n: &Node| clauses.iter().any(|c| is(n, c));
            let (one, others) = rest.split_at(1 + behind.iter().position(starts).unwrap_or(behind.len()));
            all.push(Doc::nest(vec![Doc::Line, Doc::group(vec![self.element(one, true)])]));
            rest = others;
        }
        Doc::group(all)
    }

    /// `rule name: left => right`, broken before `=>`; each clause is on its own line.
    fn rule(&self, nodes: &[Node]) -> Doc {
        let token = |n: &Node, words: &[&str]| matches!(n, Node::Token(i) if words.contains(&self.text(*i)));
        let colon = nodes.iter().position(|n| token(n, &[":"])).map_or(0, |c| c + 1);
        let arrow = nodes.iter().position(|n| token(n, &["=>", "<=>"])).unwrap_or(nodes.len());
        let is_clause = |n: &Node| token(n, &["where", "requires", "prefer", "saves", "class", "let"]);
        let clauses = nodes.iter().position(is_clause).unwrap_or(nodes.len()).max(arrow);
        let mut main = vec![self.sequence(&nodes[..colon]), Doc::text(" "), self.value(&nodes[colon..arrow])];
        if let Some((sign, right)) = nodes[arrow..clauses].split_first() {
            let right = self.value(right);
            main.push(Doc::nest(vec![Doc::Line, self.token(sign.first()), Doc::text(" "), right]));
        }
        let mut all = vec![Doc::group(main)];
        let mut rest = &nodes[clauses..];
        while let Some((_, behind)) = rest.split_first() {
            let length = 1 + behind.iter().position(is_clause).unwrap_or(behind.len());
            all.push(Doc::nest(self.clause(&rest[..length])));
            rest = &rest[length..];
        }
        Doc::Concat(all)
    }

    /// A clause of a rule on its line. Comments in front of it stand outside of its group, so that
    /// their line breaks do not break the clause.
    fn clause(&self, nodes: &[Node]) -> Vec<Doc> {
        let word = nodes[0].first();
        let comments = &self.source.pieces[word].leading;
        let mut all: Vec<Doc> = comments.iter().flat_map(|c| [Doc::Hard, Doc::text(c.text)]).collect();
        all.push(Doc::Hard);
        if comments.is_empty() {
            all.push(Doc::group(vec![self.element(nodes, true)]));
            return all;
        }
        let mut parts = vec![Doc::text(self.text(word))];
        parts.extend(self.after(word));
        parts.extend([Doc::text(" "), self.element(&nodes[1..], true)]);
        all.push(Doc::group(parts));
        all
    }

    /// An element whose breaks are independent of its surroundings.
    fn value(&self, nodes: &[Node]) -> Doc {
        Doc::group(vec![self.element(nodes, true)])
    }

    /// Comma-separated elements; breaks after commas and before loose operators. `nested` indents
    /// what follows a break.
    fn element(&self, nodes: &[Node], nested: bool) -> Doc {
        let commas = nodes.iter().any(|n| self.is_comma(n));
        if !commas {
            return self.expression(nodes, nested);
        }
        let class = nodes.first().is_some_and(|n| self.text(n.first()) == "class");
        let mut all = Vec::new();
        for part in nodes.split_inclusive(|n| self.is_comma(n)) {
            if !all.is_empty() {
                all.push(if class { Doc::Fill(self.width(part)) } else { Doc::Line });
            }
            all.push(self.expression(part, false));
        }
        if nested { Doc::nest(all) } else { Doc::Concat(all) }
    }

    fn is_comma(&self, node: &Node) -> bool {
        matches!(node, Node::Token(i) if self.text(*i) == ",")
    }

    /// Approximate columns of a sequence of nodes on one line.
    fn width(&self, nodes: &[Node]) -> usize {
        match (nodes.first(), nodes.last()) {
            (Some(a), Some(b)) => (a.first()..=b.last()).map(|i| self.text(i).chars().count() + 1).sum(),
            _ => 0,
        }
    }

    /// One element: broken before its loosest operators, or after its `=`.
    fn expression(&self, nodes: &[Node], nested: bool) -> Doc {
        let token = |n: &Node, word: &str| matches!(n, Node::Token(i) if self.text(*i) == word);
        if let Some(at) = nodes.iter().position(|n| token(n, "=")) {
            let (name, value) = nodes.split_at(at + 1);
            return Doc::Concat(vec![
                self.sequence(name),
                Doc::text(" "),
                Doc::group(vec![self.expression(value, true)]),
            ]);
        }
        let Some(level) = nodes.iter().filter_map(|n| self.level(n)).min() else {
            return self.sequence(nodes);
        };
        let mut parts = Vec::new();
        let mut rest = nodes;
        while !rest.is_empty() {
            let next = rest.iter().skip(1).position(|n| self.level(n) == Some(level)).map_or(rest.len(), |p| p + 1);
            let (part, behind) = rest.split_at(next);
            if parts.is_empty() {
                parts.push(Doc::group(vec![self.expression_of(part, false)]));
            } else {
                parts.push(Doc::Line);
                parts.push(self.expression_of(part, true));
            }
            rest = behind;
        }
        if nested { Doc::nest(parts) } else { Doc::group(vec![Doc::nest(parts)]) }
    }

    /// A part of an expression; a leading operator stays in front.
    fn expression_of(&self, nodes: &[Node], operator: bool) -> Doc {
        let signs = match nodes {
            // `not in` is two tokens.
            [Node::Token(a), Node::Token(b), ..] if operator && self.text(*a) == "not" && self.text(*b) == "in" => 2,
            _ => usize::from(operator),
        };
        let (sign, operand) = nodes.split_at(signs.min(nodes.len()));
        if sign.is_empty() {
            return self.expression(operand, false);
        }
        if operand.is_empty() {
            return self.sequence(sign);
        }
        Doc::Concat(vec![self.sequence(sign), Doc::text(" "), Doc::group(vec![self.expression(operand, true)])])
    }

    /// The precedence level of a binary operator; breaks go before the loosest of an expression.
    fn level(&self, node: &Node) -> Option<u8> {
        let Node::Token(i) = node else { return None };
        let piece = &self.source.pieces[*i];
        let after_operand = *i > 0 && self.source.pieces[i - 1].operand;
        if piece.angle || piece.prefix || piece.operand || !after_operand {
            return None;
        }
        Some(match piece.text {
            "|" => 0,
            "for" => 1,
            "if" => 2,
            "then" | "else" => 3,
            "or" => 4,
            "and" => 5,
            "==" | "!=" | "<" | "<=" | ">" | ">=" | "in" | "not" => 6,
            "+" | "-" => 7,
            "*" | "/" | "%" => 8,
            _ => return None,
        })
    }

    /// A sequence of nodes; lines break only inside brackets.
    fn sequence(&self, nodes: &[Node]) -> Doc {
        let mut all = Vec::new();
        for (k, node) in nodes.iter().enumerate() {
            // `grad(y, dy) = ...` names values; `grad (a + b), c` has derivatives.
            let names = matches!(nodes.get(k + 1), Some(Node::Token(i)) if self.text(*i) == "=");
            if k > 0 && self.space(node.first()) && !(names && self.text(node.first()) == "(") {
                all.push(Doc::text(" "));
            }
            all.push(match node {
                Node::Token(i) => self.token(*i),
                Node::Bracket { open, inner, close } => self.bracket(*open, inner, *close),
            });
        }
        Doc::Concat(all)
    }

    fn bracket(&self, open: usize, inner: &[Node], close: usize) -> Doc {
        // Types, indices and binders are not broken: `T[..s, n]`, `p[i]`, `[g in unary]`.
        let tight =
            self.text(open) == "<" || self.text(open) == "[" && open > 0 && self.source.pieces[open - 1].operand;
        let mut parts = vec![Doc::Soft];
        let elements: Vec<&[Node]> = inner.split_inclusive(|n| self.is_comma(n)).collect();
        // Lists of names and numbers are filled like a paragraph; other lists have one element per
        // line.
        let short = |e: &&[Node]| e.len() <= 2 && e.iter().all(|n| matches!(n, Node::Token(_)));
        let fill = self.text(open) != "(" && elements.len() > 4 && elements.iter().all(short);
        for (k, element) in elements.iter().enumerate() {
            if k > 0 {
                parts.push(if fill { Doc::Fill(self.width(element)) } else { Doc::Line });
            }
            parts.push(Doc::group(vec![self.expression(element, elements.len() > 1)]));
        }
        parts.extend(self.comments(close));
        let all = vec![self.token(open), Doc::nest(parts), Doc::Soft, self.closing(close)];
        if tight { Doc::Flat(Box::new(Doc::Concat(all))) } else { Doc::group(all) }
    }

    /// The comments on lines of their own before a token.
    fn comments(&self, i: usize) -> impl Iterator<Item = Doc> {
        self.source.pieces[i].leading.iter().flat_map(|c| [Doc::Hard, Doc::text(c.text), Doc::Hard])
    }

    /// A closing bracket; the comments before it stay inside.
    fn closing(&self, i: usize) -> Doc {
        Doc::Concat(vec![Doc::text(self.text(i)), Doc::Concat(self.after(i).collect())])
    }

    fn after(&self, i: usize) -> impl Iterator<Item = Doc> {
        let skip = self.source.pieces[i].ends;
        self.trailing(i).filter(move |_| !skip)
    }

    /// A token with its comments. Those before an item or statement are printed by
    /// [`Layout::separated`].
    fn token(&self, i: usize) -> Doc {
        let piece = &self.source.pieces[i];
        let mut all = Vec::new();
        if !piece.opens {
            all.extend(self.comments(i));
        }
        all.push(Doc::text(piece.text));
        all.extend(self.after(i));
        Doc::Concat(all)
    }

    /// The comment after a token. After the last token of a statement it is outside the statement's
    /// group, so that the comment's line break does not break the statement.
    fn trailing(&self, i: usize) -> impl Iterator<Item = Doc> {
        let comment = self.source.pieces[i].trailing;
        comment.into_iter().flat_map(|c| [Doc::text(format!(" {c}")), Doc::Hard])
    }

    /// True if there is a space between a token and the one before it.
    fn space(&self, i: usize) -> bool {
        let (before, piece) = (&self.source.pieces[i - 1], &self.source.pieces[i]);
        if matches!(piece.text, "," | ";" | ":" | "?" | "::" | "." | ")" | "]" | "}") || piece.angle {
            return false;
        }
        if matches!(before.text, "(" | "[" | "{" | "::" | "." | "..") || before.prefix {
            return false;
        }
        if before.angle {
            return before.text == ">" && piece.text != "(";
        }
        let word = before.kind == Kind::Word;
        match piece.text {
            "(" | "[" => {
                let statement = word && before.opens && matches!(before.text, "given" | "expect");
                let keyword = word && is_keyword(before.text) && !before.operand;
                let compared = matches!(before.text, "equal" | "becomes") && i > 1 && self.text(i - 2) == "expect";
                statement || compared || keyword || !(before.operand || before.text == "?")
            }
            _ => true,
        }
    }
}

fn close(i: usize, stack: &mut Vec<(usize, Vec<Node>)>, current: &mut Vec<Node>) {
    match stack.pop() {
        Some((open, mut outer)) => {
            outer.push(Node::Bracket { open, inner: std::mem::take(current), close: i });
            *current = outer;
        }
        None => current.push(Node::Token(i)),
    }
}
