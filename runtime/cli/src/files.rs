//! The `.hyp` files that a command was given.
//!
//! In: paths, folders, `-` for stdin. Out: the readable files, and a diagnostic for each unreadable
//! one, so that one bad name does not hide the diagnostics of the other files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hypatia_dsl::compile::Compilation;
use hypatia_dsl::diag::{Code, Diagnostic};
use hypatia_dsl::ir::Program;
use hypatia_dsl::source::{SourceFile, SourceMap, Span};
use hypatia_library as library;
use hypatia_tensor::error::{Error, Result};

/// The Programs for a command's paths, each with the names of its files. All files named explicitly
/// form one Program. In a folder, each file that no other file there uses is a Program, together
/// with the files it uses. Without paths it is the library's Program alone. A file belongs to the
/// first Program that reads it. An unreadable file is an error.
/// With `tests`, the library files that these use are included in the Programs.
pub fn programs(paths: &[PathBuf], tests: bool) -> Result<Vec<(Arc<Program>, Vec<String>)>> {
    if paths.is_empty() {
        return Ok(vec![(accepted(library::check_library())?, Vec::new())]);
    }
    let compile = |files: Vec<SourceFile>| match tests {
        true => library::check_with_tests(files),
        false => library::check(files),
    };
    let (folders, named): (Vec<PathBuf>, Vec<PathBuf>) = paths.iter().cloned().partition(|p| p.is_dir());
    let named = readable(&named)?;
    let mut out = Vec::new();
    if !named.is_empty() {
        let names = named.iter().map(|f| f.name.clone()).collect();
        out.push((accepted(compile(named))?, names));
    }
    for folder in folders {
        let mut names: Vec<String> = Vec::new();
        let files = readable(&[folder])?;
        let below: Vec<String> = files.iter().map(|f| f.name.clone()).collect();
        for (compilation, _) in roots(files, compile) {
            let read = compilation.sources.files().map(|(_, f)| f.name.clone());
            let own: Vec<String> = read.filter(|n| below.contains(n) && !names.contains(n)).collect();
            names.extend(own.iter().cloned());
            out.push((accepted(compilation)?, own));
        }
    }
    Ok(out)
}

/// The files, or why one of them cannot be read.
fn readable(paths: &[PathBuf]) -> Result<Vec<SourceFile>> {
    let files = Files::read(paths);
    match files.unreadable.first() {
        Some(Unreadable { name, reason, .. }) => Err(Error::Input(format!("cannot read {name}: {reason}"))),
        None => Ok(files.read),
    }
}

fn accepted(mut compilation: Compilation) -> Result<Arc<Program>> {
    match compilation.program.take() {
        Some(program) => Ok(Arc::new(program)),
        None => Err(library::rejected(&compilation)),
    }
}

/// The compilations of a folder's files: each file that no other one uses, with the files it uses.
/// Files in a cycle of uses are compiled from the first of them.
pub fn roots(files: Vec<SourceFile>, compile: impl Fn(Vec<SourceFile>) -> Compilation) -> Vec<(Compilation, String)> {
    let whole: Vec<(Compilation, String)> =
        files.into_iter().map(|f| (f.name.clone(), compile(vec![f]))).map(|(n, c)| (c, n)).collect();
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let read = |c: &Compilation| -> Vec<PathBuf> {
        c.sources.files().filter_map(|(_, f)| f.path.as_deref().map(real)).collect()
    };
    let reads: Vec<Vec<PathBuf>> = whole.iter().map(|(c, _)| read(c)).collect();
    // The first file of a compilation is its root.
    let uses = |i: usize, j: usize| reads[j].first().is_some_and(|own| reads[i].contains(own));
    let root = |j: usize| !(0..reads.len()).any(|i| i != j && uses(i, j) && (i < j || !uses(j, i)));
    let roots: Vec<bool> = (0..reads.len()).map(root).collect();
    whole.into_iter().zip(roots).filter(|(_, root)| *root).map(|(one, _)| one).collect()
}

/// The files found at the paths.
#[derive(Default)]
pub struct Files {
    /// The files without duplicates, in the given order.
    pub read: Vec<SourceFile>,
    /// Unreadable files, with the reason.
    pub unreadable: Vec<Unreadable>,
}

/// A file or folder that could not be read.
pub struct Unreadable {
    /// The path as given.
    pub name: String,
    /// The reason.
    pub reason: String,
    /// The file does not exist.
    pub missing: bool,
}

impl Unreadable {
    fn new(name: impl std::fmt::Display, e: &std::io::Error) -> Unreadable {
        let missing = e.kind() == std::io::ErrorKind::NotFound;
        Unreadable { name: name.to_string(), reason: e.to_string(), missing }
    }
}

impl Files {
    /// Reads all files. A folder stands for the `.hyp` files below it, in alphabetical order.
    pub fn read(paths: &[PathBuf]) -> Files {
        let mut files = Files::default();
        let mut seen = Vec::new();
        for path in paths {
            if path.as_os_str() == "-" {
                match SourceFile::read_from(std::io::stdin().lock(), "<stdin>".into(), None) {
                    Ok(file) => files.read.push(file),
                    Err(e) => files.unreadable.push(Unreadable::new("<stdin>", &e)),
                }
            } else if path.is_dir() {
                let mut below = Vec::new();
                if let Err(e) = hyp_files(path, &mut below, 0) {
                    files.unreadable.push(Unreadable::new(path.display(), &e));
                } else if below.is_empty() {
                    let reason = "no .hyp files in this folder".into();
                    files.unreadable.push(Unreadable { name: path.display().to_string(), reason, missing: false });
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
            Err(e) => self.unreadable.push(Unreadable::new(path.display(), &e)),
        }
    }

    /// A diagnostic for each unreadable file, which is added to the map as an empty file.
    pub fn report(&self, sources: &mut SourceMap) -> Vec<Diagnostic> {
        let unreadable = self.unreadable.iter();
        unreadable
            .map(|Unreadable { name, reason, missing }| {
                let file = SourceFile { name: name.clone(), path: None, text: "".into(), embedded: false };
                let span = Span { file: sources.add(file), start: 0, end: 0 };
                let hint = match missing {
                    true => "give the path of a `.hyp` file, a folder of them, or `-` for stdin",
                    false => "give a `.hyp` file that you can read, a folder of them, or `-` for stdin",
                };
                Diagnostic::error(Code(115), format!("cannot read {name}: {reason}"), span).hint(hint)
            })
            .collect()
    }
}

/// The `.hyp` files below a folder, except in hidden folders.
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
