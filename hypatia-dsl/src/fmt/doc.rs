//! A small pretty printer: text, possible line breaks, and groups whose breaks are taken together.
//!
//! In: a [`Doc`]. Out: text of at most [`WIDTH`] columns where the breaks allow it. A group is
//! printed on one line if it fits; otherwise its own breaks are taken, and each inner group decides
//! for itself. Invariant: no line ends with a space, and consecutive breaks are merged.

/// Maximum columns of a formatted file.
pub(super) const WIDTH: usize = 100;
const INDENT: usize = 2;

/// A document.
#[derive(Clone, Debug)]
pub(super) enum Doc {
    /// Text without a line break.
    Text(String),
    /// A space, or a line break if the group breaks.
    Line,
    /// Nothing, or a line break if the group breaks.
    Soft,
    /// A space; if the group breaks, a line break if this many columns do not fit on the line.
    Fill(usize),
    /// Always a line break; the enclosing groups break.
    Hard,
    /// An empty line.
    Blank,
    /// A concatenation.
    Concat(Vec<Doc>),
    /// Indents by one more step after line breaks.
    Nest(Box<Doc>),
    /// Never broken, except by comments.
    Flat(Box<Doc>),
    /// All of its breaks are taken, or none.
    Group(Box<Doc>),
}

impl Doc {
    pub(super) fn text(text: impl Into<String>) -> Doc {
        Doc::Text(text.into())
    }

    pub(super) fn nest(docs: Vec<Doc>) -> Doc {
        Doc::Nest(Box::new(Doc::Concat(docs)))
    }

    pub(super) fn group(docs: Vec<Doc>) -> Doc {
        Doc::Group(Box::new(Doc::Concat(docs)))
    }

    /// True if it contains an unavoidable line break.
    fn must_break(&self) -> bool {
        match self {
            Doc::Hard | Doc::Blank => true,
            Doc::Text(_) | Doc::Line | Doc::Soft | Doc::Fill(_) => false,
            Doc::Concat(all) => all.iter().any(Doc::must_break),
            Doc::Nest(d) | Doc::Group(d) | Doc::Flat(d) => d.must_break(),
        }
    }
}

type Command<'a> = (usize, bool, &'a Doc);

/// Prints a document.
pub(super) fn print(doc: &Doc) -> String {
    let mut out = Output::default();
    // A stack of commands: indentation, whether breaks are taken, document.
    let mut stack: Vec<Command<'_>> = vec![(0, true, doc)];
    while let Some((indent, broken, doc)) = stack.pop() {
        match doc {
            Doc::Text(text) => out.text(text),
            Doc::Line if !broken => out.text(" "),
            Doc::Fill(next) if !broken || *next < out.room() => out.text(" "),
            Doc::Soft if !broken => {}
            Doc::Line | Doc::Soft | Doc::Hard | Doc::Fill(_) => out.newline(indent),
            Doc::Blank => out.blank(indent),
            Doc::Concat(all) => stack.extend(all.iter().rev().map(|d| (indent, broken, d))),
            Doc::Nest(d) => stack.push((indent + INDENT, broken, d)),
            Doc::Flat(d) => stack.push((indent, false, d)),
            Doc::Group(d) => {
                let flat = !broken || !d.must_break() && fits(out.room(), (indent, false, d), &stack);
                stack.push((indent, !flat, d));
            }
        }
    }
    out.finish()
}

/// True if a command, with what follows up to the next break, fits on the rest of the line.
fn fits(room: usize, first: Command<'_>, rest: &[Command<'_>]) -> bool {
    let mut room = room as isize;
    let mut stack = vec![first];
    let mut rest = rest.iter().rev();
    loop {
        let (indent, broken, doc) = match stack.pop() {
            Some(c) => c,
            None => match rest.next() {
                Some(c) => *c,
                None => return true,
            },
        };
        match doc {
            Doc::Text(text) => room -= text.chars().count() as isize,
            Doc::Line | Doc::Soft | Doc::Fill(_) if broken => return true,
            Doc::Hard | Doc::Blank => return true,
            Doc::Line | Doc::Fill(_) => room -= 1,
            Doc::Soft => {}
            Doc::Concat(all) => stack.extend(all.iter().rev().map(|d| (indent, broken, d))),
            Doc::Nest(d) => stack.push((indent, broken, d)),
            Doc::Flat(d) => stack.push((indent, false, d)),
            Doc::Group(d) => stack.push((indent, broken && d.must_break(), d)),
        }
        if room < 0 {
            return false;
        }
    }
}

/// The text so far. Line breaks are deferred until text follows them.
#[derive(Default)]
struct Output {
    text: String,
    column: usize,
    /// The indentation of the pending line break.
    pending: Option<usize>,
    blank: bool,
}

impl Output {
    fn room(&self) -> usize {
        WIDTH.saturating_sub(self.pending.unwrap_or(self.column))
    }

    fn text(&mut self, text: &str) {
        if let Some(indent) = self.pending {
            if text.trim().is_empty() {
                return;
            }
            self.text.truncate(self.text.trim_end_matches(' ').len());
            if !self.text.is_empty() {
                self.text.push_str(if self.blank { "\n\n" } else { "\n" });
            }
            self.text.push_str(&" ".repeat(indent));
            self.column = indent;
            (self.pending, self.blank) = (None, false);
        }
        self.text.push_str(text);
        self.column += text.chars().count();
    }

    fn newline(&mut self, indent: usize) {
        self.pending = Some(indent);
    }

    fn blank(&mut self, indent: usize) {
        self.blank = true;
        self.pending = Some(indent);
    }

    fn finish(mut self) -> String {
        self.text.truncate(self.text.trim_end().len());
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.text
    }
}
