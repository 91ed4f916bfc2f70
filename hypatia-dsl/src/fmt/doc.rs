//! A small pretty printer: text, places where a line may break, and groups that break as one.
//!
//! In: a [`Doc`]. Out: text of at most [`WIDTH`] columns where the breaks allow it. A group is
//! printed on one line if it fits; otherwise its own breaks are taken, and the groups inside
//! decide for themselves. Holds always: no line ends with a space, and two breaks in a row are one.

/// Columns of a formatted file.
pub(super) const WIDTH: usize = 100;
const INDENT: usize = 2;

/// A document.
#[derive(Clone, Debug)]
pub(super) enum Doc {
    /// Text without a line break.
    Text(String),
    /// A space, or a line break where the group breaks.
    Line,
    /// Nothing, or a line break where the group breaks.
    Soft,
    /// A space; where the group breaks, a line break if so many columns do not fit any more.
    Fill(usize),
    /// Always a line break; the groups around it break.
    Hard,
    /// An empty line.
    Blank,
    /// One behind the other.
    Concat(Vec<Doc>),
    /// Indented by one more step behind line breaks.
    Nest(Box<Doc>),
    /// Never broken, except by comments.
    Flat(Box<Doc>),
    /// Broken as one or not at all.
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

    /// True if a line break inside cannot be avoided.
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
    // Indentation, whether breaks are taken, document; the last one comes first.
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

/// True if a command fits on the rest of the line, with what follows up to the next break.
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

/// Text so far, with line breaks held back until something follows them.
#[derive(Default)]
struct Output {
    text: String,
    column: usize,
    /// Indentation of a line that begins with the next text.
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
