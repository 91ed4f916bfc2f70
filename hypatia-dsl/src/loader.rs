//! Finds the files that a program `use`s.
//!
//! In: the module that a `use` names. Out: its file. Invariant: a file in the folder of the user's
//! file shadows an embedded one of that name.

use std::path::Path;

use crate::source::SourceFile;

/// The embedded library: module name and text of each file, and module name and tree of those that
/// need no parsing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Embedded {
    /// Module name and text.
    pub texts: &'static [(&'static str, &'static str)],
    /// Module name and tree.
    pub trees: &'static [(&'static str, &'static [u8])],
}

/// Finds the file of a `use`.
pub trait Loader {
    /// The file that `module` (`core`, `nn/act`) names, relative to the file at `from`. `Ok(None)`
    /// if there is none; `Err` says why it could not be read.
    fn load(&self, module: &str, from: Option<&Path>) -> Result<Option<SourceFile>, String>;

    /// The files that are part of every program, relative to its first file. Operators mean builtin
    /// scalars, so the file that declares those is always included. It is the one that the first
    /// file would `use`, so that a copy of the library is self-contained.
    fn always(&self, first: Option<&Path>) -> Vec<SourceFile> {
        self.load("core", first).into_iter().flatten().collect()
    }

    /// Whether embedded files that other files use are checked too, and their tests stay in the
    /// program. If false, they count as checked since they were embedded: checking them takes half
    /// of the time of checking a small file.
    fn wants_tests(&self) -> bool {
        false
    }

    /// The embedded library, for hints about what a file could `use`.
    fn library(&self) -> Embedded {
        Embedded::default()
    }

    /// The tree of an embedded file as [`File::to_bytes`](crate::ast::File::to_bytes) wrote it;
    /// `None` if its text must be parsed.
    fn tree(&self, _file: &SourceFile) -> Option<&'static [u8]> {
        None
    }
}

/// Looks in the folder of the using file, then among embedded files.
pub struct FileLoader {
    /// Module name and text of the embedded library's files.
    pub embedded: &'static [(&'static str, &'static str)],
    /// Module name and tree of those files that need no parsing.
    pub trees: &'static [(&'static str, &'static [u8])],
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
        let found = self.embedded.iter().find(|(name, _)| *name == module);
        Ok(found.map(|(name, text)| SourceFile::library(name, text)))
    }

    fn library(&self) -> Embedded {
        Embedded { texts: self.embedded, trees: self.trees }
    }

    fn tree(&self, file: &SourceFile) -> Option<&'static [u8]> {
        let module = file.library_module()?;
        self.trees.iter().find(|(name, _)| *name == module).map(|(_, tree)| *tree)
    }
}
