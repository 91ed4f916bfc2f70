//! The `.hyp` files that a command was given.
//!
//! In: paths, folders, `-` for stdin. Out: files that could be read, and a diagnostic for each
//! that could not, so that one bad name does not hide what the other files have to say.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hypatia::error::{Error, Result};
use hypatia::library;
use hypatia_dsl::diag::{Code, Diagnostic};
use hypatia_dsl::ir::Program;
use hypatia_dsl::source::{SourceFile, SourceMap, Span};

/// The Program of files that a command was given, with their names; that of the library if there are none. A file that
/// cannot be read is an error.
pub fn program(paths: &[PathBuf]) -> Result<(Arc<Program>, Vec<String>)> {
    program_with(paths, false)
}

/// As [`program`]; with `tests`, those of the library's files that these use are in it too.
pub fn program_with(paths: &[PathBuf], tests: bool) -> Result<(Arc<Program>, Vec<String>)> {
    let files = Files::read(paths);
    if let Some((name, reason)) = files.unreadable.first() {
        return Err(Error::Input(format!("cannot read {name}: {reason}")));
    }
    let names = files.read.iter().map(|f| f.name.clone()).collect();
    if paths.is_empty() {
        return Ok((library::load(&[])?, names));
    }
    let mut compilation = if tests { library::check_with_tests(files.read) } else { library::check(files.read) };
    match compilation.program.take() {
        Some(program) => Ok((Arc::new(program), names)),
        None => Err(library::rejected(&compilation)),
    }
}

/// What the paths led to.
#[derive(Default)]
pub struct Files {
    /// The files, each once, in the order given.
    pub read: Vec<SourceFile>,
    /// What could not be read, with the reason.
    pub unreadable: Vec<(String, String)>,
}

impl Files {
    /// Reads all. A folder stands for the `.hyp` files below it, in alphabetical order.
    pub fn read(paths: &[PathBuf]) -> Files {
        let mut files = Files::default();
        let mut seen = Vec::new();
        for path in paths {
            if path.as_os_str() == "-" {
                match SourceFile::read_from(std::io::stdin().lock(), "<stdin>".into(), None) {
                    Ok(file) => files.read.push(file),
                    Err(e) => files.unreadable.push(("<stdin>".into(), e.to_string())),
                }
            } else if path.is_dir() {
                let mut below = Vec::new();
                if let Err(e) = hyp_files(path, &mut below, 0) {
                    files.unreadable.push((path.display().to_string(), e.to_string()));
                } else if below.is_empty() {
                    files.unreadable.push((path.display().to_string(), "no .hyp files in this folder".into()));
                }
                below.iter().for_each(|p| files.add(p, &mut seen));
            } else {
                files.add(path, &mut seen);
            }
        }
        files
    }

    fn add(&mut self, path: &Path, seen: &mut Vec<PathBuf>) {
        let id = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        if seen.contains(&id) {
            return;
        }
        seen.push(id);
        match SourceFile::read(path) {
            Ok(file) => self.read.push(file),
            Err(e) => self.unreadable.push((path.display().to_string(), e.to_string())),
        }
    }

    /// A diagnostic for each unreadable file, which becomes an empty file of the map.
    pub fn report(&self, sources: &mut SourceMap) -> Vec<Diagnostic> {
        let unreadable = self.unreadable.iter();
        unreadable
            .map(|(name, reason)| {
                let file = SourceFile { name: name.clone(), path: None, text: "".into(), embedded: false };
                let span = Span { file: sources.add(file), start: 0, end: 0 };
                let hint = match reason.contains("No such file") {
                    true => "give the path of a `.hyp` file, a folder of them, or `-` for stdin",
                    false => "give a `.hyp` file that may be read, a folder of them, or `-` for stdin",
                };
                Diagnostic::error(Code(115), format!("cannot read {name}: {reason}"), span).hint(hint)
            })
            .collect()
    }
}

/// The `.hyp` files below a folder, hidden folders left out.
fn hyp_files(folder: &Path, out: &mut Vec<PathBuf>, depth: usize) -> std::io::Result<()> {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
    entries.sort();
    for path in entries {
        let hidden = path.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
        if path.is_dir() && !path.is_symlink() && !hidden && depth < 32 {
            hyp_files(&path, out, depth + 1)?;
        } else if path.extension().is_some_and(|e| e == "hyp") {
            out.push(path);
        }
    }
    Ok(())
}
