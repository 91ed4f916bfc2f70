//! Source files and positions in them.
//!
//! In: text with a name. Out: `Span`s that are valid across several files. Invariant: a `Span`'s
//! offsets are on character boundaries inside its file.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

/// A file in a [`SourceMap`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct FileId(pub u32);

/// A range of bytes in one file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Span {
    /// The file.
    pub file: FileId,
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

impl Span {
    /// The smallest span that contains both; `self` if they are in different files.
    pub fn to(self, other: Span) -> Span {
        if self.file != other.file {
            return self;
        }
        Span { file: self.file, start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

/// One source text.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// The name shown to the user: a path as the user wrote it, or `<inline>`.
    pub name: String,
    /// The file's path, if it is on disk; `use` looks in its folder.
    pub path: Option<PathBuf>,
    /// The whole text.
    pub text: Arc<str>,
    /// True for the embedded standard library.
    pub embedded: bool,
}

/// Opens a regular file for reading. Every file that a user's file, model or folder names is opened
/// here. A folder, a device or a named pipe is an error, because reading those, or even opening
/// them, may never end.
pub fn open_regular(path: &Path) -> std::io::Result<std::fs::File> {
    let not_a_file = || std::io::Error::new(std::io::ErrorKind::InvalidInput, "this is not a file");
    // Check before opening: opening a named pipe waits for a writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(not_a_file());
    }
    let file = std::fs::File::open(path)?;
    // Check again: another file may have replaced it.
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_a_file()) }
}

/// The bytes of a regular file of at most `most` bytes.
pub fn read_regular(path: &Path, most: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = open_regular(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if read as u64 > most {
        let why = format!("this file is too large: the limit is {most} bytes");
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, why));
    }
    Ok(bytes)
}

/// Maximum size of a file in bytes.
pub const MAX_FILE: usize = 1 << 20;

/// What the names of the embedded library's files begin with.
const LIBRARY: &str = "<library>/";

/// True for the name of a file of the embedded library.
pub fn is_embedded(name: &str) -> bool {
    name.starts_with(LIBRARY)
}

impl SourceFile {
    /// A file of the embedded library: `<library>/core.hyp`.
    pub fn library(module: &str, text: &str) -> SourceFile {
        SourceFile { name: format!("{LIBRARY}{module}.hyp"), path: None, text: text.into(), embedded: true }
    }

    /// The module name of a file of the embedded library, such as `core`.
    pub fn library_module(&self) -> Option<&str> {
        self.name.strip_prefix(LIBRARY)?.strip_suffix(".hyp").filter(|_| self.embedded)
    }

    /// Reads a file from disk. Reads at most a little over [`MAX_FILE`] bytes and replaces bytes
    /// that are not UTF-8 by U+FFFD: the parser reports both.
    ///
    /// A folder, a device or a named pipe is an error, because reading those may never end. The
    /// pipe of a shell's `<(...)` is an exception and is read.
    pub fn read(path: &Path) -> std::io::Result<SourceFile> {
        let name = path.display().to_string();
        let streams = ["/dev/stdin", "/dev/fd/", "/proc/self/fd/"];
        let stream = streams.iter().any(|s| name.starts_with(s));
        let file = if stream { std::fs::File::open(path)? } else { open_regular(path)? };
        SourceFile::read_from(file, name, Some(path.to_path_buf()))
    }

    /// Like `read`, from any reader.
    pub fn read_from(reader: impl std::io::Read, name: String, path: Option<PathBuf>) -> std::io::Result<SourceFile> {
        let mut bytes = Vec::new();
        reader.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes)?;
        Ok(SourceFile { name, path, text: String::from_utf8_lossy(&bytes).into(), embedded: false })
    }
}

/// All files of one compilation.
#[derive(Clone, Debug, Default)]
pub struct SourceMap {
    files: Vec<SourceFile>,
    /// The line starts of each file, computed on first use.
    lines: Vec<OnceLock<Vec<u32>>>,
}

impl SourceMap {
    /// An empty map.
    pub fn new() -> SourceMap {
        SourceMap::default()
    }

    /// Adds a file and returns its id.
    pub fn add(&mut self, file: SourceFile) -> FileId {
        self.files.push(file);
        self.lines.push(OnceLock::new());
        FileId(self.files.len() as u32 - 1)
    }

    /// The file with that id, which must come from this map.
    pub fn file(&self, id: FileId) -> &SourceFile {
        &self.files[id.0 as usize]
    }

    /// All files with their ids, in insertion order.
    pub fn files(&self) -> impl Iterator<Item = (FileId, &SourceFile)> {
        self.files.iter().enumerate().map(|(i, f)| (FileId(i as u32), f))
    }

    /// The file with that path, if any.
    pub fn find(&self, path: &Path) -> Option<FileId> {
        self.files().find(|(_, f)| f.path.as_deref() == Some(path)).map(|(id, _)| id)
    }

    /// The text of a span.
    pub fn slice(&self, span: Span) -> &str {
        &self.file(span.file).text[span.start as usize..span.end as usize]
    }

    /// Line and column of a span's start, both counted from 1, the column in characters.
    pub fn line_column(&self, span: Span) -> (usize, usize) {
        let text = &self.file(span.file).text;
        let starts = self.lines[span.file.0 as usize].get_or_init(|| {
            let ends = text.bytes().enumerate().filter(|(_, b)| *b == b'\n');
            std::iter::once(0).chain(ends.map(|(i, _)| i as u32 + 1)).collect()
        });
        let line = starts.partition_point(|s| *s <= span.start);
        let start = starts.get(line.wrapping_sub(1)).copied().unwrap_or(0);
        let column = text[start as usize..span.start as usize].chars().count() + 1;
        (line, column)
    }
}
