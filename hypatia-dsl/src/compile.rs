//! The whole pipeline on one page: text -> tree -> names -> types -> lints -> Program.
//!
//! In: the files the user named, a loader that finds the files they `use`, and a checker that knows
//! which kernels can be generated. Out: a [`Program`] if there was no error, and all diagnostics in
//! either case. The run-time loader, the macro and `hypatia gen` all use this module.

use crate::ast;
use crate::checker::KernelChecker;
use crate::diag::{Diagnostic, Severity, has_errors};
use crate::ir::Program;
use crate::lint::lint;
pub use crate::loader::{Embedded, FileLoader, Loader};
use crate::resolve::resolve;
use crate::sema::{self, analyse};
use crate::source::{SourceFile, SourceMap};
use crate::templates;

/// The result of a compilation.
pub struct Compilation {
    /// All files that were read.
    pub sources: SourceMap,
    /// Their trees, in reading order.
    pub files: Vec<ast::File>,
    /// The program; `None` if there was an error.
    pub program: Option<Program>,
    /// Errors and warnings, in file order.
    pub diagnostics: Vec<Diagnostic>,
}

/// Compiles the given files and all files that they use.
pub fn compile(roots: Vec<SourceFile>, loader: &dyn Loader, checker: &dyn KernelChecker) -> Compilation {
    let mut sources = SourceMap::new();
    let mut diagnostics = Vec::new();
    let resolved = resolve(roots, loader, &mut sources, &mut diagnostics);
    let (mut program, found) = analyse(&resolved, &sources);
    // Report lints only if there are no errors.
    let (found, warnings): (Vec<_>, Vec<_>) = found.into_iter().partition(|d| d.severity == Severity::Error);
    diagnostics.extend(found);
    templates::attach(&mut program, &mut sources, checker, &mut diagnostics);
    if !has_errors(&diagnostics) {
        for i in 0..program.kernels.len() {
            let kernel = &program.kernels[i];
            if !resolved.trusts(kernel.origin.span) {
                let body = || sema::tiled_body::not_generated(&program, kernel);
                program.kernels[i].not_generated = checker.not_generated(&program, kernel).or_else(body);
            }
        }
        diagnostics.extend(warnings);
        diagnostics.extend(lint(&program, &resolved, &sources, checker));
    }
    diagnostics.sort_by_key(|d| (d.primary.span, d.code));
    diagnostics.dedup();
    let program = (!has_errors(&diagnostics)).then_some(program);
    Compilation { sources, files: resolved.files, program, diagnostics }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::checker::Unchecked;

    /// A "library" whose second file has a type error and a test.
    const FILES: &[(&str, &str)] = &[
        ("core", include_str!("../../rules/core.hyp")),
        (
            "broken",
            "edition 1;\nuse core::*;\nruleset r { until = fixpoint; }\n\
             rule r::squeeze: x * 1.0 => transpose(x, perm = [0, 1])\n  requires rank(x) == 3;\n\
             test \"t\" { input x: f32[2]; given x * 2.0; expect not fires r::squeeze; }\n",
        ),
    ];

    struct Shipped {
        checked: bool,
    }

    impl Loader for Shipped {
        fn load(&self, module: &str, from: Option<&Path>) -> Result<Option<SourceFile>, String> {
            FileLoader { embedded: FILES, trees: &[] }.load(module, from)
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
        let used = compile(user(), &Shipped { checked: false }, &Unchecked);
        assert_eq!(errors(&used), 0, "{:?}", used.diagnostics);
        let program =
            used.program.as_ref().map(|p| (p.rules.iter().any(|r| r.base_name == "r::squeeze"), p.tests.len()));
        assert_eq!(program, Some((true, 0)));
        // The error is reported if the library's tests are requested, if the file itself is
        // compiled, or if a user's file has the same error.
        let asked = compile(user(), &Shipped { checked: true }, &Unchecked);
        let itself =
            compile(vec![file("<library>/broken.hyp", FILES[1].1, true)], &Shipped { checked: false }, &Unchecked);
        let users = compile(vec![file("mine.hyp", FILES[1].1, false)], &Shipped { checked: false }, &Unchecked);
        for c in [asked, itself, users] {
            assert!(errors(&c) > 0 && c.program.is_none(), "{:?}", c.diagnostics);
        }
    }
}
