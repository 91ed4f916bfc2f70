//! The kernel checks for the front end: which kernels cannot be generated, and the errors in users'
//! templates.
//!
//! In: a checked kernel. Out: reasons and faults, worded for the user. Invariant: a template
//! without a fault can be rendered for each element type that its kernel allows.

use hypatia_dsl::checker::{KernelChecker, TemplateFault};
use hypatia_dsl::ir::{Backend, Kernel, Program, TemplateFile};
use hypatia_dsl::spell::closest;

use crate::cuda::template;
use crate::instances::template::problem;

/// Checks the kernels that this crate generates.
pub struct Checker;

impl KernelChecker for Checker {
    fn not_generated(&self, program: &Program, kernel: &Kernel) -> Option<String> {
        crate::instances::not_generated(program, kernel)
    }

    fn template_faults(&self, program: &Program, kernel: &Kernel, sound: bool) -> Vec<TemplateFault> {
        let Backend::Template(template) = &kernel.backend else { return Vec::new() };
        let faults = by_name(program, kernel, template);
        match faults.is_empty() && sound {
            true => problem(program, kernel).map(|w| fault(&template.text, w.line, w.message)).into_iter().collect(),
            false => faults,
        }
    }
}

/// Checks that need no rendering: a template's syntax, and the names it uses.
fn by_name(program: &Program, kernel: &Kernel, TemplateFile { file, text }: &TemplateFile) -> Vec<TemplateFault> {
    if let Err((line, why)) = template::safe_includes(text) {
        return vec![fault(text, Some(line), why)];
    }
    let used = match template::variables(file, text) {
        Ok(used) => used,
        Err(e) => return vec![fault(text, e.line, e.message)],
    };
    let known = template::known_variables(program, kernel);
    let unknown = used.into_iter().filter(|u| !known.contains(u));
    unknown
        .map(|u| {
            let line = text.lines().position(|l| mentions(l, &u)).map(|l| l + 1);
            let mut fault = fault(text, line, format!("the template uses `{u}`, which nothing defines"));
            fault.notes.push(format!("it may use {}", known.join(", ")));
            fault.hints.push(match closest(&u, known.iter().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("declare a tuning parameter with `tune {u} in {{...}};`"),
            });
            fault
        })
        .collect()
}

/// A fault in a line, with hints.
fn fault(text: &str, line: Option<usize>, message: String) -> TemplateFault {
    let (mut notes, mut hints) = (Vec::new(), Vec::new());
    match line.and_then(|l| text.lines().nth(l - 1)).and_then(misspelt_part) {
        Some((of, part, known)) => {
            notes.push(format!("`{of}` has {}, no `{part}`", known.join(", ")));
            hints.extend(closest(part, known.iter().copied()).map(|near| format!("did you mean `{of}.{near}`?")));
        }
        None => hints.extend(hint(&message).map(str::to_string)),
    }
    TemplateFault { line, message, notes, hints }
}

/// A hint for a message of the template language.
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

/// Finds `acc.typ` in a line: the variable, the unknown field, and the fields that exist.
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

/// True if a line contains the name as a whole word.
fn mentions(line: &str, name: &str) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(name).any(|(i, _)| {
        !line[..i].chars().next_back().is_some_and(word) && !line[i + name.len()..].chars().next().is_some_and(word)
    })
}
