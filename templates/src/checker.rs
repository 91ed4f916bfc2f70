//! The kernel checks for the front end: which kernels cannot be generated, and the errors in users'
//! templates.
//!
//! In: a checked kernel. Out: reasons and faults, worded for the user. Invariant: a template
//! without a fault can be rendered for each element type that its kernel allows.

use hypatia_dsl::checker::{KernelChecker, TemplateFault};
use hypatia_dsl::ir::{Backend, Kernel, Program, TemplateFile};
use hypatia_dsl::spell::closest;

use crate::cuda::problem::Wrong;
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
            true => problem(program, kernel).map(|w| fault(&template.text, w)).into_iter().collect(),
            false => faults,
        }
    }
}

/// Checks that need no rendering: a template's syntax, and the names it uses.
fn by_name(program: &Program, kernel: &Kernel, TemplateFile { file, text }: &TemplateFile) -> Vec<TemplateFault> {
    if let Err(wrong) = template::safe_includes(text) {
        return vec![fault(text, wrong)];
    }
    let used = match template::variables(file, text) {
        Ok(used) => used,
        Err(wrong) => return vec![fault(text, wrong)],
    };
    let known = template::known_variables(program, kernel);
    let unknown = used.into_iter().filter(|u| !known.contains(u));
    unknown
        .map(|u| {
            let line = text.lines().position(|l| mentions(l, &u)).map(|l| l + 1);
            let hint = match closest(&u, known.iter().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("declare a tuning parameter with `tune {u} in {{...}};`"),
            };
            TemplateFault {
                line,
                message: format!("the template uses the undefined name `{u}`"),
                notes: vec![format!("the defined names are {}", known.join(", "))],
                hints: vec![hint],
            }
        })
        .collect()
}

/// A fault in a line, with hints.
fn fault(text: &str, Wrong { line, problem }: Wrong) -> TemplateFault {
    let (mut notes, mut hints) = (Vec::new(), Vec::new());
    match line.and_then(|l| text.lines().nth(l - 1)).and_then(misspelt_field) {
        Some((of, field, known)) => {
            notes.push(format!("`{of}` has the fields {}, but not `{field}`", known.join(", ")));
            hints.extend(closest(field, known.iter().copied()).map(|near| format!("did you mean `{of}.{near}`?")));
        }
        None => hints.extend(problem.hint().map(str::to_string)),
    }
    TemplateFault { line, message: problem.to_string(), notes, hints }
}

/// Finds `acc.typ` in a line: the variable, the unknown field, and the fields that exist.
fn misspelt_field(line: &str) -> Option<(&'static str, &str, &'static [&'static str])> {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let inside = line.match_indices("${").filter_map(|(i, _)| line[i + 2..].split('}').next());
    inside.into_iter().find_map(|expression| {
        template::FIELDS.iter().find_map(|(of, known)| {
            let mut found = expression.match_indices(of).filter_map(|(i, _)| {
                let alone = !expression[..i].chars().next_back().is_some_and(|c| word(c) || c == '.' || c == '"');
                let rest = expression[i + of.len()..].strip_prefix('.').filter(|_| alone)?;
                Some(&rest[..rest.find(|c| !word(c)).unwrap_or(rest.len())])
            });
            found.find(|field| !known.contains(field)).map(|field| (*of, field, *known))
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
