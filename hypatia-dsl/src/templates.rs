//! Users' own kernel templates: finding, confining, reading and checking their files.
//!
//! In: a Program whose kernels name templates, the files it came from, and a checker of templates.
//! Out: the same Program with the templates' texts, and the errors in them. Invariant: a template
//! is in the folder of the file that names it, or below, after symbolic links are resolved; it is
//! at most [`MAX_FILE`] bytes of UTF-8; it is a source file like any other, so that diagnostics
//! point into it and cargo watches it.

use std::path::Path;

use crate::checker::{KernelChecker, TemplateFault};
use crate::code;
use crate::diag::{Diagnostic, has_errors};
use crate::ir::{Backend, Kernel, Program};
use crate::source::{FileId, MAX_FILE, SourceFile, SourceMap, Span, open_regular};

/// Reads the template of each kernel that has one. Templates of files that are not on disk cannot
/// be found: their kernels stay without text.
pub(crate) fn attach(
    program: &mut Program,
    sources: &mut SourceMap,
    checker: &dyn KernelChecker,
    diagnostics: &mut Vec<Diagnostic>,
) {
    // If there are other errors, a kernel's types may be unknown.
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
                diagnostics.push(d.hint("put the template in the folder of the file that names it, or below"));
                continue;
            }
        };
        let text = file.text.to_string();
        let known = file.path.as_deref().and_then(|p| sources.find(p));
        let id = known.unwrap_or_else(|| sources.add(file));
        if let Backend::Template(slot) = &mut program.kernels[i].backend {
            slot.text.clone_from(&text);
        }
        let kernel = &program.kernels[i];
        let faults = checker.template_faults(program, kernel, sound);
        diagnostics.extend(faults.into_iter().map(|f| diagnostic(f, kernel, id, &text, at)));
    }
}

/// The file, if it is in the folder; the error completes the sentence "the template ...".
fn read(folder: &Path, name: &str) -> Result<SourceFile, String> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let path = folder.join(name);
    let real = |p: &Path| std::fs::canonicalize(p);
    let (base, target) = match (real(folder), real(&path)) {
        (Ok(base), Ok(target)) => (base, target),
        (_, Err(e)) | (Err(e), _) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(format!("does not exist: looked for {}", path.display()));
        }
        (_, Err(e)) | (Err(e), _) => return Err(format!("cannot be read: {e}")),
    };
    if !target.starts_with(&base) {
        return Err(format!("is outside of {}", folder.display()));
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

/// A diagnostic that points at the line of the template, or else at the kernel, whose span is `at`.
fn diagnostic(fault: TemplateFault, kernel: &Kernel, file: FileId, text: &str, at: Span) -> Diagnostic {
    let span = fault.line.and_then(|l| line_span(file, text, l)).unwrap_or(at);
    let d = Diagnostic::error(code::TEMPLATE, fault.message, span);
    let d = d.also(at, format!("the template of `{}`", kernel.name));
    Diagnostic { notes: fault.notes, hints: fault.hints, ..d }
}

/// The span of a line, counted from 1, without leading and trailing blanks.
fn line_span(file: FileId, text: &str, line: usize) -> Option<Span> {
    let content = text.split('\n').nth(line.checked_sub(1)?)?;
    let start = content.as_ptr() as usize - text.as_ptr() as usize;
    let lead = content.len() - content.trim_start().len();
    let end = start + content.trim_end().len().max(lead);
    Some(Span { file, start: (start + lead) as u32, end: end as u32 })
}
