//! Loading rules at run time: the embedded standard library plus the user's files, as one Program.
//!
//! In: paths or texts of `.hyp` files. Out: a [`Program`], or the rendered diagnostics. Invariant:
//! the embedded library is read in the parsed form that its build made, never parsed again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hypatia_dsl::compile::{Compilation, Embedded, FileLoader, Loader, compile};
use hypatia_dsl::ir::Program;
use hypatia_dsl::render::{Format, render, summary};
use hypatia_dsl::source::SourceFile;
use hypatia_templates::Checker;

use hypatia_tensor::error::{Error, Result};

/// The loader that knows the embedded library.
pub fn loader() -> FileLoader {
    FileLoader { embedded: hypatia_rules::FILES, trees: hypatia_rules::TREES }
}

/// Compiles the whole embedded library together with these files; diagnostics are in the result. If
/// one of the files is the library's own (its `core.hyp`), these files are compiled alone: they
/// `use` each other from their own folder.
pub fn compile_files(paths: &[PathBuf]) -> Result<Compilation> {
    let mut users = Vec::new();
    for path in paths {
        if path.is_dir() {
            let message = "this is a folder; name the .hyp files in it, each with --rules";
            return Err(Error::Input(format!("{}: {message}", path.display())));
        }
        users.push(SourceFile::read(path).map_err(|source| Error::Io { path: path.clone(), source })?);
    }
    if paths.iter().any(|p| is_library_folder(p.parent().unwrap_or(Path::new("")))) {
        return Ok(compile(users, &loader(), &Checker));
    }
    Ok(compile_sources(users))
}

/// Compiles the whole embedded library together with these texts.
pub fn compile_sources(users: Vec<SourceFile>) -> Compilation {
    compile(users, &Whole { loader: loader(), checked: false }, &Checker)
}

/// Compiles and checks the whole embedded library, its tests included.
pub fn check_library() -> Compilation {
    compile(Vec::new(), &Whole { loader: loader(), checked: true }, &Checker)
}

/// A loader that makes every embedded file part of the program.
struct Whole {
    loader: FileLoader,
    /// Whether these are checked too.
    checked: bool,
}

impl Loader for Whole {
    fn load(&self, module: &str, from: Option<&Path>) -> Result<Option<SourceFile>, String> {
        self.loader.load(module, from)
    }

    fn always(&self, _first: Option<&Path>) -> Vec<SourceFile> {
        self.loader.embedded.iter().filter_map(|(name, _)| self.loader.load(name, None).ok()?).collect()
    }

    fn wants_tests(&self) -> bool {
        self.checked
    }

    fn tree(&self, file: &SourceFile) -> Option<&'static [u8]> {
        self.loader.tree(file)
    }
}

/// A loader that keeps the tests of the library's files where others use these.
struct WithTests(FileLoader);

impl Loader for WithTests {
    fn load(&self, module: &str, from: Option<&Path>) -> Result<Option<SourceFile>, String> {
        self.0.load(module, from)
    }

    fn wants_tests(&self) -> bool {
        true
    }

    fn library(&self) -> Embedded {
        self.0.library()
    }

    fn tree(&self, file: &SourceFile) -> Option<&'static [u8]> {
        self.0.tree(file)
    }
}

/// As [`check`]; the tests of the library's files that these use are in the program too.
pub fn check_with_tests(files: Vec<SourceFile>) -> Compilation {
    compile(files, &WithTests(loader()), &Checker)
}

/// True for a folder that holds a `core.hyp` of its own: a copy of the library, embedded or edited.
fn is_library_folder(folder: &Path) -> bool {
    folder.join("core.hyp").is_file()
}

/// Checks these files and what they use, without the rest of the embedded library.
pub fn check(files: Vec<SourceFile>) -> Compilation {
    compile(files, &loader(), &Checker)
}

/// The embedded library and these files as a Program, or the rendered errors.
pub fn load(paths: &[PathBuf]) -> Result<Arc<Program>> {
    let c = compile_files(paths)?;
    match c.program {
        Some(p) => Ok(Arc::new(p)),
        None => Err(rejected(&c)),
    }
}

/// The embedded library and these files as a Program, in which the ops of each file of `domains`
/// are what the nodes of its custom ONNX domain mean.
///
/// # Errors
/// As [`load`]; and a domain that is empty or standard, or whose file declares no op.
pub fn load_with_domains(paths: &[PathBuf], domains: &[(String, PathBuf)]) -> Result<Arc<Program>> {
    let mut files = paths.to_vec();
    files.extend(domains.iter().map(|(_, file)| file.clone()).filter(|file| !paths.contains(file)));
    files.dedup();
    let mut program = load(&files)?;
    let own = Arc::make_mut(&mut program);
    for (domain, file) in domains {
        if matches!(domain.as_str(), "" | "ai.onnx") {
            return Err(Error::Input(format!("--domain: `{domain}` is ONNX's own domain, which no file can replace")));
        }
        if own.set_domain(&file.display().to_string(), domain) == 0 {
            let file = file.display();
            return Err(Error::Input(format!("--domain {domain}: {file} declares no op; nodes become ops by name")));
        }
    }
    Ok(program)
}

/// The error that holds a compilation's rendered diagnostics and their summary, without colours.
pub fn rejected(c: &Compilation) -> Error {
    let report = render(&c.sources, &c.diagnostics, Format::Full { color: false });
    let json = render(&c.sources, &c.diagnostics, Format::Json);
    Error::Rules { rendered: format!("{report}{}", summary(&c.diagnostics)), json }
}
