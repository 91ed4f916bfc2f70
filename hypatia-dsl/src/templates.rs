//! Files of users' own kernel templates: found, contained, read and checked.
//!
//! In: a Program whose kernels name templates, and the files it came from. Out: the same with the templates'
//! texts, and what is wrong with them. Holds always: a template lies in the folder of the file that names it, or
//! below, links followed; it is at most [`MAX_FILE`] bytes of UTF-8; what is read is a source file like any other,
//! so that diagnostics point into it and cargo watches it.

use std::path::Path;

use crate::diag::{Diagnostic, has_errors};
use crate::emit::cuda::template;
use crate::emit::instances::template::problem;
use crate::ir::{Backend, Kernel, Program};
use crate::sema::code;
use crate::source::{FileId, MAX_FILE, SourceFile, SourceMap, Span, open_regular};

/// Reads the template of each kernel that has one. Files that are not on disk name templates that nobody can
/// find: their kernels stay without text.
pub(crate) fn attach(program: &mut Program, sources: &mut SourceMap, diagnostics: &mut Vec<Diagnostic>) {
    // Where something else is wrong, a kernel's types may be unknown.
    let sound = !has_errors(diagnostics);
    for i in 0..program.kernels.len() {
        let Backend::Template(wanted) = &program.kernels[i].backend else { continue };
        let Some(at) = program.kernels[i].origin.span else { continue };
        let Some(folder) = sources.file(at.file).path.as_deref().and_then(Path::parent) else { continue };
        let name = wanted.file.clone();
        let file = match read(folder, &name) {
            Ok(file) => file,
            Err(why) => {
                let d = Diagnostic::error(code::TEMPLATE_FILE, format!("the template {name:?} {why}"), at);
                diagnostics.push(d.hint("a template lies beside the file that names it, or in a folder there"));
                continue;
            }
        };
        let text = file.text.to_string();
        let known = file.path.as_deref().and_then(|p| sources.find(p));
        let id = known.unwrap_or_else(|| sources.add(file));
        if let Backend::Template(slot) = &mut program.kernels[i].backend {
            slot.text.clone_from(&text);
        }
        let here = Place { kernel: &program.kernels[i], file: id, text: &text, at };
        let found = here.names(program, &name);
        match found.is_empty() && sound {
            true => diagnostics.extend(problem(program, here.kernel).map(|w| here.wrong(w.line, w.message))),
            false => diagnostics.extend(found),
        }
    }
}

/// The file, if it lies in the folder; the error is the end of a sentence.
fn read(folder: &Path, name: &str) -> Result<SourceFile, String> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let path = folder.join(name);
    let real = |p: &Path| std::fs::canonicalize(p);
    let (base, target) = match (real(folder), real(&path)) {
        (Ok(base), Ok(target)) => (base, target),
        (_, Err(e)) | (Err(e), _) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(format!("is not there: {} does not exist", path.display()));
        }
        (_, Err(e)) | (Err(e), _) => return Err(format!("cannot be read: {e}")),
    };
    if !target.starts_with(&base) {
        return Err(format!("leads out of {}", folder.display()));
    }
    let file = open_regular(&target).map_err(|e| format!("cannot be read: {e}"))?;
    let file = SourceFile::read_from(file, path.display().to_string(), Some(path.clone()))
        .map_err(|e| format!("cannot be read: {e}"))?;
    if file.text.len() > MAX_FILE {
        return Err(format!("is larger than {} KiB", MAX_FILE >> 10));
    }
    if file.text.contains('\u{fffd}') {
        return Err("is not UTF-8".into());
    }
    Ok(file)
}

/// A template, and the kernel that names it.
struct Place<'a> {
    kernel: &'a Kernel,
    file: FileId,
    text: &'a str,
    /// Where the kernel stands.
    at: Span,
}

impl Place<'_> {
    /// A diagnostic that points at a line of the template.
    fn wrong(&self, line: Option<usize>, message: String) -> Diagnostic {
        let span = line.and_then(|l| line_span(self.file, self.text, l)).unwrap_or(self.at);
        let d = Diagnostic::error(code::TEMPLATE, message, span)
            .also(self.at, format!("the template of `{}`", self.kernel.name));
        let said = line.and_then(|l| self.text.lines().nth(l - 1)).and_then(misspelt_part);
        match said {
            Some((of, part, known)) => {
                let d = d.note(format!("`{of}` has {}, no `{part}`", known.join(", ")));
                match crate::spell::closest(part, known.iter().copied()) {
                    Some(near) => d.hint(format!("did you mean `{of}.{near}`?")),
                    None => d,
                }
            }
            None => match hint(&d.message) {
                Some(hint) => d.hint(hint),
                None => d,
            },
        }
    }

    /// What can be said of a template without filling it in: its syntax, and the names it uses.
    fn names(&self, program: &Program, name: &str) -> Vec<Diagnostic> {
        if let Err(why) = template::safe_includes(self.text) {
            return vec![self.wrong(Some(why.0), why.1)];
        }
        let used = match template::variables(name, self.text) {
            Ok(used) => used,
            Err(e) => return vec![self.wrong(e.line, e.message)],
        };
        let known = template::known_variables(program, self.kernel);
        let unknown = used.into_iter().filter(|u| !known.contains(u));
        unknown
            .map(|u| {
                let line = self.text.lines().position(|l| mentions(l, &u)).map(|l| l + 1);
                let mut d = self.wrong(line, format!("the template uses `{u}`, which nothing defines"));
                d = d.note(format!("it may use {}", known.join(", ")));
                match crate::spell::closest(&u, known.iter().map(String::as_str)) {
                    Some(near) => d.hint(format!("did you mean `{near}`?")),
                    None => d.hint(format!("declare a tuning parameter with `tune {u} in {{...}};`")),
                }
            })
            .collect()
    }
}

/// What to do about a message of the template language.
fn hint(message: &str) -> Option<&'static str> {
    Some(match message {
        m if m.contains("`epilogue` takes") => "in a loop over a tile: `epilogue(\"sum\", \"row\", \"col\")`",
        m if m.contains("may be included") => "paste what you need of the file into the template",
        m if m.contains("endfor") => "close what was opened: `//% for i in range(4)` ... `//% endfor`",
        m if m.contains("endif") => "close what was opened: `//% if rank > 1` ... `//% endif`",
        m if m.starts_with("syntax error") => "statements stand on lines that begin with `//%`, values in `${ }`",
        m if m.contains("stands alone") => "paste the text of the other file here",
        m if m.contains("joined by `~`") => "write `cat(a, b)`, or print one behind the other: `${ a }${ b }`",
        m if m.contains("joined by `cat") => "numbers are added, texts are joined by `cat(a, b)`",
        m if m.contains("no statement") || m.contains("keeps no output") => {
            "repeat the lines, or write a `__device__` function in CUDA"
        }
        m if m.contains("is kept holds") || m.contains("no dictionaries") => {
            "keep each value under a name of its own: `//% set a = 1`"
        }
        m if m.contains("unknown filter") => {
            "see docs/language.md, \"Templates of your own\", for the filters that there are"
        }
        m if m.contains("texts that it makes") => "make shorter texts: what is printed need not be kept",
        m if m.contains("steps") => "make the loop shorter, or write it in CUDA: `#pragma unroll`",
        m if m.contains("becomes larger") => "print less: a kernel's source has some hundred lines",
        _ => return None,
    })
}

/// `acc.typ` in a line: the variable, what is asked of it, and what it has.
fn misspelt_part(line: &str) -> Option<(&'static str, &str, &'static [&'static str])> {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let inside = line.match_indices("${").filter_map(|(i, _)| line[i + 2..].split('}').next());
    inside.into_iter().find_map(|expression| {
        template::PARTS.iter().find_map(|(of, known)| {
            let mut found = expression.match_indices(of).filter_map(|(i, _)| {
                let alone = !expression[..i].chars().next_back().is_some_and(|c| word(c) || c == '.' || c == '"');
                let rest = expression[i + of.len()..].strip_prefix('.').filter(|_| alone)?;
                Some(&rest[..rest.find(|c| !word(c)).unwrap_or(rest.len())])
            });
            found.find(|part| !known.contains(part)).map(|part| (*of, part, *known))
        })
    })
}

/// True if a line has the name as a word of its own.
fn mentions(line: &str, name: &str) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(name).any(|(i, _)| {
        !line[..i].chars().next_back().is_some_and(word) && !line[i + name.len()..].chars().next().is_some_and(word)
    })
}

/// A line, counted from 1, without the blanks around it.
fn line_span(file: FileId, text: &str, line: usize) -> Option<Span> {
    let content = text.split('\n').nth(line.checked_sub(1)?)?;
    let start = content.as_ptr() as usize - text.as_ptr() as usize;
    let lead = content.len() - content.trim_start().len();
    let end = start + content.trim_end().len().max(lead);
    Some(Span { file, start: (start + lead) as u32, end: end as u32 })
}
