//! Restrictions on users' templates that bound the memory of rendering.
//!
//! In: a template's text. Out: the text to render, with the same lines. Invariant: a template's
//! values grow only through `cat(...)`, which counts the bytes it makes. minijinja bounds steps,
//! not bytes, and thirty steps that each double a text make a gigabyte. So `~` is refused, `+` and
//! `*` are rewritten to fail on strings, statements that capture output are refused, and only
//! functions and filters with small results are available
//! (docs/adr/0016-templates-grow-by-one-function.md).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, Value, filters, functions, tests};

use super::limits::{MAX_SETS, MAX_SOURCE, MAX_TEXT};
use super::problem::{Problem, Wrong};

/// Statements of minijinja that are refused: they read other templates, or capture output as a
/// string.
const REFUSED: &[&str] = &[
    "include",
    "import",
    "from",
    "extends",
    "block",
    "endblock",
    "macro",
    "endmacro",
    "call",
    "endcall",
    "filter",
    "endfilter",
    "autoescape",
    "endautoescape",
    "raw",
    "endraw",
    "endset",
];

/// The text to render, with operators that fail on strings.
pub(super) fn bounded(text: &str) -> Result<String, Wrong> {
    let mut scan =
        Scan { text, at: 0, out: String::with_capacity(text.len() + text.len() / 8), sets: 0, blocks: Vec::new() };
    scan.all()?;
    Ok(scan.out)
}

/// An environment with the functions and filters that a template may use.
pub(super) fn environment<'a>() -> Environment<'a> {
    let mut env = Environment::empty();
    env.add_function("range", functions::range);
    let made = Arc::new(AtomicUsize::new(0));
    let budget = made.clone();
    env.add_function("cat", move |parts: Rest<Value>| concatenated(&parts, &budget));
    env.add_filter("abs", filters::abs);
    env.add_filter("int", filters::int);
    env.add_filter("float", filters::float);
    env.add_filter("round", filters::round);
    env.add_filter("length", filters::length);
    env.add_filter("count", filters::length);
    env.add_filter("first", filters::first);
    env.add_filter("last", filters::last);
    env.add_filter("min", filters::min);
    env.add_filter("max", filters::max);
    env.add_filter("default", filters::default);
    let budget = made.clone();
    env.add_filter("upper", move |text: &str| charged(text.to_uppercase(), &budget));
    env.add_filter("lower", move |text: &str| charged(text.to_lowercase(), &made));
    env.add_test("defined", tests::is_defined);
    env.add_test("undefined", tests::is_undefined);
    env.add_test("none", tests::is_none);
    env.add_test("odd", tests::is_odd);
    env.add_test("even", tests::is_even);
    env.add_test("divisibleby", tests::is_divisibleby);
    env.add_test("number", tests::is_number);
    env.add_test("string", tests::is_string);
    env.add_test("sequence", tests::is_sequence);
    env
}

/// `cat("in", i, "[col]")`: concatenates strings and numbers.
fn concatenated(parts: &[Value], budget: &AtomicUsize) -> Result<Value, Error> {
    let mut out = String::new();
    for part in parts {
        match part.kind() {
            ValueKind::String => out.push_str(part.as_str().unwrap_or_default()),
            ValueKind::Number | ValueKind::Bool => out.push_str(&part.to_string()),
            other => return Err(Problem::Cat(other.to_string()).raise()),
        }
        // Check while appending: an intermediate string must not be too large either.
        if out.len() > MAX_SOURCE {
            break;
        }
    }
    charged(out, budget)
}

/// The string, unless all strings together are too large.
fn charged(text: String, budget: &AtomicUsize) -> Result<Value, Error> {
    let made = budget.fetch_add(text.len(), Ordering::Relaxed).saturating_add(text.len());
    if made > MAX_SOURCE {
        return Err(Problem::StringsTooLarge.raise());
    }
    Ok(text.into())
}

/// A scanner over a template.
struct Scan<'a> {
    text: &'a str,
    at: usize,
    out: String,
    sets: usize,
    /// Open blocks: the word of each, and where its statement starts.
    blocks: Vec<(&'a str, usize)>,
}

impl<'a> Scan<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Copies this many bytes unchanged.
    fn copy(&mut self, bytes: usize) {
        let end = (self.at + bytes).min(self.text.len());
        self.out.push_str(&self.text[self.at..end]);
        self.at = end;
    }

    /// Copies through the end of that mark.
    fn copy_through(&mut self, mark: &str) {
        let rest = self.rest();
        self.copy(rest.find(mark).map_or(rest.len(), |n| n + mark.len()));
    }

    fn wrong<T>(&self, at: usize, problem: Problem) -> Result<T, Wrong> {
        Err(Wrong { line: Some(self.text[..at].matches('\n').count() + 1), problem })
    }

    fn all(&mut self) -> Result<(), Wrong> {
        let mut line_begins = true;
        while let Some(c) = self.rest().chars().next() {
            let rest = self.rest();
            if line_begins && rest.starts_with("//%") {
                self.statement(3, "\n")?;
            } else if line_begins && rest.starts_with("//#") {
                self.copy_through("\n");
            } else if rest.starts_with("/*%") {
                self.statement(3, "%*/")?;
                self.copy(3);
                line_begins = false;
            } else if rest.starts_with("/*#") {
                self.copy_through("#*/");
                line_begins = false;
            } else if rest.starts_with("${") {
                self.copy(2);
                self.code("}", false)?;
                self.copy(1);
                line_begins = false;
            } else {
                line_begins = c == '\n' || line_begins && c.is_whitespace();
                self.copy(c.len_utf8());
            }
        }
        match self.blocks.pop() {
            Some((word, at)) => self.wrong(at, Problem::Unclosed(word.into())),
            None => Ok(()),
        }
    }

    /// Opens or closes the block of a statement that starts at `start`.
    fn block(&mut self, word: &'a str, start: usize) -> Result<(), Wrong> {
        if matches!(word, "for" | "if" | "with") {
            self.blocks.push((word, start));
        }
        let Some(closed) = word.strip_prefix("end").filter(|w| matches!(*w, "for" | "if" | "with")) else {
            return Ok(());
        };
        match self.blocks.pop() {
            Some((open, _)) if open == closed => Ok(()),
            Some((open, at)) => self.wrong(at, Problem::Unclosed(open.into())),
            None => self.wrong(start, Problem::Unopened(closed.into())),
        }
    }

    /// Reads a statement from its opening mark to its closing mark, which is not consumed.
    fn statement(&mut self, open: usize, close: &str) -> Result<(), Wrong> {
        let start = self.at;
        self.copy(open);
        let rest = self.rest().trim_start_matches(['-', '+', ' ', '\t']);
        let word = &rest[..rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())];
        let keeps = matches!(word, "set" | "with");
        self.sets += usize::from(keeps);
        if self.sets > MAX_SETS {
            return self.wrong(start, Problem::TooManyValues);
        }
        if matches!(word, "include" | "import" | "from" | "extends") {
            return self.wrong(start, Problem::OtherTemplate(word.into()));
        }
        if REFUSED.contains(&word) {
            return self.wrong(start, Problem::Statement(word.into()));
        }
        self.block(word, start)?;
        let from = self.out.len();
        self.code(close, keeps)?;
        let said = &self.out[from..];
        if word == "set" && !said.contains('=') {
            return self.wrong(start, Problem::CapturedOutput);
        }
        if word == "for" && said.trim_end().ends_with("recursive") {
            return self.wrong(start, Problem::Recursive);
        }
        Ok(())
    }

    /// Reads expressions up to the closing mark, which is not consumed.
    fn code(&mut self, close: &str, keeps: bool) -> Result<(), Wrong> {
        // Open brackets: true for a list, false for an index, a call or a group.
        let mut open: Vec<bool> = Vec::new();
        let mut operand = false;
        while let Some(c) = self.rest().chars().next() {
            let rest = self.rest();
            if open.is_empty() && rest.starts_with(close) {
                break;
            }
            match c {
                '"' | '\'' => {
                    let length = quoted(rest, c);
                    if length > MAX_TEXT {
                        return self.wrong(self.at, Problem::LongString);
                    }
                    self.copy(length);
                    operand = true;
                }
                '~' => return self.wrong(self.at, Problem::Tilde),
                '+' if operand && !rest[1..].starts_with(close) => self.replace(1, "- 0 +", &mut operand),
                '*' if rest.starts_with("**") => {
                    self.copy(2);
                    operand = false;
                }
                '*' if operand => self.replace(1, "** 1 * - -", &mut operand),
                '(' | '[' | '{' => {
                    let list = c == '{' || c == '[' && !operand;
                    if list && keeps && c == '{' {
                        return self.wrong(self.at, Problem::Dictionary);
                    }
                    open.push(list);
                    self.copy(1);
                    operand = false;
                }
                ')' | ']' | '}' => {
                    open.pop();
                    self.copy(1);
                    operand = true;
                }
                _ if c.is_alphanumeric() || c == '_' => {
                    let length = word(rest);
                    if keeps && open.contains(&true) && !c.is_ascii_digit() {
                        return self.wrong(self.at, Problem::ListElement);
                    }
                    self.copy(length);
                    operand = true;
                }
                _ => {
                    operand &= c.is_whitespace();
                    self.copy(c.len_utf8());
                }
            }
        }
        Ok(())
    }

    fn replace(&mut self, bytes: usize, by: &str, operand: &mut bool) {
        self.out.push_str(by);
        self.at += bytes;
        *operand = false;
    }
}

/// Length of a string literal with its quotes.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (i, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return i + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Length of a name or a number; a number may have a point and an exponent.
fn word(rest: &str) -> usize {
    let number = rest.starts_with(|c: char| c.is_ascii_digit());
    let mut before = ' ';
    let end = rest.find(|c: char| {
        let part = c.is_alphanumeric()
            || c == '_'
            || number && (c == '.' || matches!(c, '+' | '-') && matches!(before, 'e' | 'E') && !rest.starts_with("0x"));
        before = c;
        !part
    });
    end.unwrap_or(rest.len())
}

#[cfg(test)]
mod tests_of_growth {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The rendered template, or its error.
    fn filled(text: &str) -> Result<String, String> {
        let text = bounded(text).map_err(|w| format!("{}: {}", w.line.unwrap(), w.problem))?;
        let mut env = environment();
        super::super::configure(&mut env).unwrap();
        env.set_fuel(Some(100_000));
        let values = minijinja::context! { n => 3, name => "abc", rank => 2, list => vec![1, 2, 3] };
        let made = env.template_from_named_str("t", &text).and_then(|t| t.render(values));
        made.map_err(|e| e.to_string())
    }

    #[test]
    fn numbers_are_computed_as_they_were() {
        for (text, value) in [
            ("${ n + 1 }", "4"),
            ("${ 2 + n * 4 - 1 }", "13"),
            ("${ -n * 2 + n ** 2 * 2 }", "12"),
            ("${ n * -2 }", "-6"),
            ("${ (n + 1) * (n + 2) // 4 % 3 }", "2"),
            ("${ list[1 + 1] + list[0] * 1e+1 }", "13.0"),
            ("${ 1.5 * 2 }", "3.0"),
            ("${ n|int + 1 }", "4"),
            ("${ cat(name, \"[\", n * 2, \"]\") }", "abc[6]"),
            ("//% set m = n * 2 + 1\n${ m }", "7"),
            ("//% for i in range(n + 1)\n${ i }${ \"+\" if not loop.last }\n//% endfor", "0+\n1+\n2+\n3\n"),
            ("x + y * z /*% if n == 3 %*/ /*# ~ #*/ yes /*% endif %*/\n//# a ~ b\n", "x + y * z   yes"),
            ("${- n + 1 -}", "4"),
        ] {
            assert_eq!(filled(text).as_deref().map(str::trim_end), Ok(value.trim_end()), "{text}");
        }
    }

    #[test]
    fn texts_do_not_grow() {
        for (text, why) in [
            ("\n${ name ~ name }", "2: `~` cannot join strings"),
            ("//% set x = name + name\n${ x }", "unsupported types"),
            ("${ 1 + name }", "unsupported types"),
            ("${ name * 1000000 }", "unsupported types"),
            ("${ 1000000 * name }", "invalid operation"),
            ("//% set x = [list, list]\n", "only numbers and strings in quotes"),
            ("//% set x = {\"a\": list}\n", "no dictionaries"),
            ("//% set x\n${ name }\n//% endset\n", "cannot keep output"),
            ("//% macro f()\n//% endmacro\n", "no statement `macro`"),
            ("/*% include \"x\" %*/", "cannot include other templates"),
            ("//% for x in list recursive\n//% endfor\n", "recursive loops"),
            ("x\n//% for x in list\n", "2: this `for` has no `endfor`"),
            ("//% if n\n//% endfor\n", "1: this `if` has no `endif`"),
            ("x\n/*% endif %*/", "2: this `endif` has no `if`"),
            ("${ list|join(name) }", "unknown filter"),
            ("${ name|replace(\"a\", name) }", "unknown filter"),
            ("${ dict(a=1) }", "unknown"),
        ] {
            let said = filled(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
        // Doubling through `cat`, the only way to grow, soon hits the limit.
        let lines = "//% set x = cat(x, x, x, x)\n".repeat(20);
        let said = filled(&format!("//% set x = \"abcdefgh\"\n{lines}${{ x }}")).unwrap_err();
        assert!(said.contains("larger than 4 MiB"), "{said}");
        let many = "//% set x = 1\n".repeat(MAX_SETS + 1);
        assert!(filled(&many).unwrap_err().contains("1000 values"));
    }
}
