//! The whole pipeline on one page: text -> tree -> names -> types -> lints -> Program.
//!
//! In: the files the user named, and a loader that finds what they `use`. Out: a [`Program`] if
//! there was no error, and every diagnostic of the run either way. The run-time loader, the macro
//! and `hypatia gen` all come through here.

use std::path::Path;

use crate::ast;
use crate::diag::{Diagnostic, Severity, has_errors};
use crate::ir::Program;
use crate::lint::lint;
use crate::resolve::resolve;
use crate::sema::analyse;
use crate::source::{SourceFile, SourceMap};
use crate::templates;

/// Finds the file of a `use`.
pub trait Loader {
    /// The file that `module` (`core`, `nn/act`) names, seen from the file at `from`. `Ok(None)` if
    /// there is none; `Err` says why it could not be read.
    fn load(&self, module: &str, from: Option<&Path>) -> Result<Option<SourceFile>, String>;

    /// The files that are part of every program, seen from its first file. Operators mean builtin scalars, so the file
    /// that declares these is one: the one that the first file would `use`, so that a copy of the library stands alone.
    fn always(&self, first: Option<&Path>) -> Vec<SourceFile> {
        self.load("core", first).into_iter().flatten().collect()
    }

    /// Whether embedded files that other files use are checked too, and their tests stay in the program. Without, they are
    /// taken as checked when they were embedded: checking them takes half of the time of checking a small file.
    fn wants_tests(&self) -> bool {
        false
    }
}

/// Looks beside the using file, then among embedded files.
pub struct FileLoader {
    /// Module name and text of the embedded library's files.
    pub embedded: &'static [(&'static str, &'static str)],
}

impl Loader for FileLoader {
    fn load(&self, module: &str, from: Option<&Path>) -> Result<Option<SourceFile>, String> {
        if let Some(dir) = from.and_then(Path::parent) {
            let path = dir.join(format!("{module}.hyp"));
            match SourceFile::read(&path) {
                Ok(file) => return Ok(Some(file)),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(e) => return Err(format!("cannot read {}: {e}", path.display())),
            }
        }
        Ok(self.embedded.iter().find(|(name, _)| *name == module).map(|(name, text)| SourceFile {
            name: format!("<library>/{name}.hyp"),
            path: None,
            text: (*text).into(),
            embedded: true,
        }))
    }
}

/// What came of a compilation.
pub struct Compilation {
    /// All files that were read.
    pub sources: SourceMap,
    /// Their trees, in the order in which they were read.
    pub files: Vec<ast::File>,
    /// The program; `None` if there was an error.
    pub program: Option<Program>,
    /// Errors and warnings, in file order.
    pub diagnostics: Vec<Diagnostic>,
}

/// Compiles the given files and all that they use.
pub fn compile(roots: Vec<SourceFile>, loader: &dyn Loader) -> Compilation {
    let mut sources = SourceMap::new();
    let mut diagnostics = Vec::new();
    let resolved = resolve(roots, loader, &mut sources, &mut diagnostics);
    let (mut program, found) = analyse(&resolved, &sources);
    // What is only probably not meant is told when nothing is wrong.
    let (found, warnings): (Vec<_>, Vec<_>) = found.into_iter().partition(|d| d.severity == Severity::Error);
    diagnostics.extend(found);
    templates::attach(&mut program, &mut sources, &mut diagnostics);
    if !has_errors(&diagnostics) {
        diagnostics.extend(warnings);
        diagnostics.extend(lint(&program, &resolved, &sources));
    }
    diagnostics.sort_by_key(|d| (d.primary.span, d.code));
    diagnostics.dedup();
    let program = (!has_errors(&diagnostics)).then_some(program);
    Compilation { sources, files: resolved.files, program, diagnostics }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A "library" whose second file says what is false of types, and has a test.
    const FILES: &[(&str, &str)] = &[
        ("core", include_str!("../../rules/core.hyp")),
        (
            "broken",
            "edition 1;\nuse core::*;\nruleset r { until = fixpoint; }\n\
             rule r::squeeze: x * 1.0 => transpose(x, perm = [0, 1])\n  requires rank(x) == 3;\n\
             test \"t\" { input x: f32[2]; given x * 2.0; expect not fires r::squeeze; }\n",
        ),
    ];

    struct Embedded {
        checked: bool,
    }

    impl Loader for Embedded {
        fn load(&self, module: &str, from: Option<&Path>) -> Result<Option<SourceFile>, String> {
            FileLoader { embedded: FILES }.load(module, from)
        }

        fn wants_tests(&self) -> bool {
            self.checked
        }
    }

    fn file(name: &str, text: &str, embedded: bool) -> SourceFile {
        SourceFile { name: name.into(), path: None, text: text.into(), embedded }
    }

    #[test]
    fn embedded_files_are_taken_as_checked_where_they_are_used_and_only_there() {
        let user = || vec![file("user.hyp", "edition 1;\nuse broken::*;\n", false)];
        let errors = |c: &Compilation| c.diagnostics.iter().filter(|d| d.severity == Severity::Error).count();
        let used = compile(user(), &Embedded { checked: false });
        assert_eq!(errors(&used), 0, "{:?}", used.diagnostics);
        let program =
            used.program.as_ref().map(|p| (p.rules.iter().any(|r| r.base_name == "r::squeeze"), p.tests.len()));
        assert_eq!(program, Some((true, 0)));
        // Where their tests are asked for, where the file itself is, and where a user's file says the same.
        let asked = compile(user(), &Embedded { checked: true });
        let itself = compile(vec![file("<library>/broken.hyp", FILES[1].1, true)], &Embedded { checked: false });
        let users = compile(vec![file("mine.hyp", FILES[1].1, false)], &Embedded { checked: false });
        for c in [asked, itself, users] {
            assert!(errors(&c) > 0 && c.program.is_none(), "{:?}", c.diagnostics);
        }
    }
}
