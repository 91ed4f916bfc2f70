//! Result files: what `--outputs` and `-o` write.
//!
//! In: a path and its new content. Out: the file at that path. Invariant: at every moment, a
//! regular file has its old content or the whole new one, and it keeps its permissions and its
//! owner. Symbolic links stay and are followed. A file that cannot be replaced so (it has further
//! hard links, its owner cannot be given to another file, its folder takes no new file) is written
//! in place once all of its content is there. So is a stream (a pipe, a terminal, `/dev/stdout`).
//! Nothing else is written to.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{BufWriter, Cursor, ErrorKind, Seek, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// What content is written to.
pub trait Sink: Write + Seek {}
impl<W: Write + Seek> Sink for W {}

/// Links that are followed from one path.
const LINKS: usize = 40;
/// Names that are tried for a temporary file.
const NAMES: usize = 16;

/// Where content goes.
enum Target {
    /// A regular file, or a name that is free. Links are resolved.
    File(PathBuf),
    /// Something that takes bytes and keeps no file.
    Stream,
}

/// Fails if [`write()`] would: before work is spent on what cannot be stored. `inputs` are files
/// that must not be overwritten.
///
/// # Errors
/// If the path is one of the inputs, a folder or a disk, or cannot be written.
pub fn check(path: &Path, inputs: &[&Path]) -> Result<()> {
    let io = |source| Error::Io { path: path.to_path_buf(), source };
    let target = target(path)?;
    if let Some(input) = inputs.iter().find(|input| same(path, input)) {
        let (path, input) = (path.display(), input.display());
        return Err(Error::Input(format!("{path} would overwrite the input {input}: give another name")));
    }
    if let Target::File(file) = target {
        writable(&file).map_err(io)?;
        let folder = folder(&file);
        if !folder.is_dir() {
            return Err(Error::Input(format!("{}: there is no folder {}", path.display(), folder.display())));
        }
    }
    Ok(())
}

/// Writes a file whole, or not at all; or into a stream.
///
/// # Errors
/// If there is something at the path that is neither a file nor a stream, or if writing fails.
pub fn write(path: &Path, content: impl FnOnce(&mut dyn Sink) -> std::io::Result<()>) -> Result<()> {
    let written = match target(path)? {
        Target::File(file) => replace(&file, content),
        Target::Stream => in_place(path, OpenOptions::new().append(true), content),
    };
    written.map_err(|source| Error::Io { path: path.to_path_buf(), source })
}

/// True if the path leads to a stream, beside which no second file can be written.
pub fn is_stream(path: &Path) -> bool {
    matches!(target(path), Ok(Target::Stream))
}

fn target(path: &Path) -> Result<Target> {
    let refuse = |what: &str| {
        let path = path.display();
        Err(Error::Input(format!("{path} is {what}: give the name of a file, or a stream such as /dev/stdout")))
    };
    // These name open files: what they lead to may be a file that somebody is writing.
    let open = ["/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/"];
    match std::fs::metadata(path) {
        Ok(meta) if is_stream_type(&meta) || open.iter().any(|p| path.as_os_str().to_string_lossy().starts_with(p)) => {
            Ok(Target::Stream)
        }
        Ok(meta) if meta.is_dir() => refuse("a folder"),
        Ok(meta) if !meta.is_file() => refuse("neither a file nor a stream"),
        Ok(_) => Ok(Target::File(path.canonicalize().map_err(|source| Error::Io { path: path.into(), source })?)),
        Err(e) if e.kind() == ErrorKind::NotFound => match path.file_name() {
            Some(_) => Ok(Target::File(behind_links(path))),
            None => refuse("not the name of a file"),
        },
        Err(source) => Err(Error::Io { path: path.to_path_buf(), source }),
    }
}

#[cfg(unix)]
fn is_stream_type(meta: &Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    meta.file_type().is_fifo() || meta.file_type().is_char_device()
}
#[cfg(not(unix))]
fn is_stream_type(_: &Metadata) -> bool {
    false
}

/// True if both paths lead to one existing file.
fn same(a: &Path, b: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let id = |p: &Path| std::fs::metadata(p).ok().map(|m| (m.dev(), m.ino()));
        id(a).is_some() && id(a) == id(b)
    }
    #[cfg(not(unix))]
    a.canonicalize().ok().is_some_and(|a| b.canonicalize().is_ok_and(|b| a == b))
}

/// Where a path leads whose file does not exist: through links that lead nowhere yet.
fn behind_links(path: &Path) -> PathBuf {
    let mut at = path.to_path_buf();
    for _ in 0..LINKS {
        let Ok(next) = at.read_link() else { break };
        at = folder(&at).join(next);
    }
    at
}

fn folder(file: &Path) -> &Path {
    file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Fails if there is a file that this user may not write, although its folder could be written.
fn writable(file: &Path) -> std::io::Result<()> {
    match OpenOptions::new().write(true).open(file) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Writes a temporary file beside the target and renames it over the target; or writes the target
/// itself, if another file cannot take its place.
fn replace(file: &Path, content: impl FnOnce(&mut dyn Sink) -> std::io::Result<()>) -> std::io::Result<()> {
    writable(file)?;
    let old = std::fs::metadata(file).ok();
    if old.as_ref().is_some_and(has_further_names) {
        return in_place(file, OpenOptions::new().write(true).truncate(true), content);
    }
    let (part, out) = match temporary(file) {
        Err(e) if e.kind() == ErrorKind::PermissionDenied && old.is_some() => {
            return in_place(file, OpenOptions::new().write(true).truncate(true), content);
        }
        made => made?,
    };
    if old.as_ref().is_some_and(|old| give_to_owner_of(old, &out).is_err()) {
        let _ = std::fs::remove_file(&part);
        return in_place(file, OpenOptions::new().write(true).truncate(true), content);
    }
    let written = (|| {
        let mut out = BufWriter::new(out);
        content(&mut out)?;
        let out = out.into_inner()?;
        if let Some(old) = old {
            out.set_permissions(old.permissions())?;
        }
        out.sync_all()?;
        std::fs::rename(&part, file)
    })();
    if written.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&part);
    }
    written
}

#[cfg(unix)]
fn has_further_names(meta: &Metadata) -> bool {
    std::os::unix::fs::MetadataExt::nlink(meta) > 1
}
#[cfg(not(unix))]
fn has_further_names(_: &Metadata) -> bool {
    false
}

/// Gives a new file to the user and the group that an old one belongs to.
#[cfg(unix)]
fn give_to_owner_of(old: &Metadata, new: &File) -> std::io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let own = new.metadata()?;
    match (own.uid(), own.gid()) == (old.uid(), old.gid()) {
        true => Ok(()),
        false => std::os::unix::fs::fchown(new, Some(old.uid()), Some(old.gid())),
    }
}
#[cfg(not(unix))]
fn give_to_owner_of(_: &Metadata, _: &File) -> std::io::Result<()> {
    Ok(())
}

/// A new file beside the target. A name that is taken is never opened: a link that somebody put
/// there is not followed.
fn temporary(file: &Path) -> std::io::Result<(PathBuf, File)> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let mut taken = ErrorKind::AlreadyExists.into();
    for attempt in 0..NAMES {
        let part = folder(file).join(format!(".{name}.{}-{attempt}.part", std::process::id()));
        match OpenOptions::new().read(true).write(true).create_new(true).open(&part) {
            Ok(out) => return Ok((part, out)),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => taken = e,
            Err(e) => return Err(e),
        }
    }
    Err(taken)
}

/// Makes the content first, which may seek, and then writes it.
fn in_place(
    file: &Path,
    options: &OpenOptions,
    content: impl FnOnce(&mut dyn Sink) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut bytes = Cursor::new(Vec::new());
    content(&mut bytes)?;
    options.open(file)?.write_all(bytes.get_ref())
}

#[cfg(all(test, unix))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    fn put(path: &Path, text: &str) -> Result<()> {
        write(path, |out| out.write_all(text.as_bytes()))
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_whole_and_keeps_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("out.npz");
        put(&file, "old").unwrap();
        for mode in [0o640, 0o600, 0o755] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            put(&file, "new").unwrap();
            assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, mode);
        }
        let failed = write(&file, |out| out.write_all(b"half").and_then(|()| Err(ErrorKind::Other.into())));
        assert!(failed.is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(names(folder.path()), ["out.npz"]);
    }

    #[test]
    fn hard_links_and_owners_stay() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["out.npz", "link.npz"].map(|n| folder.path().join(n));
        put(&file, "old and long").unwrap();
        std::fs::hard_link(&file, &link).unwrap();
        put(&file, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&link).unwrap(), "new");
        assert!(same(&file, &link));
        let failed = write(&file, |out| out.write_all(b"half").and_then(|()| Err(ErrorKind::Other.into())));
        assert!(failed.is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");
        std::fs::remove_file(&link).unwrap();
        // Only root may give a file to others.
        if std::os::unix::fs::chown(&file, Some(12345), Some(12346)).is_ok() {
            put(&file, "newer").unwrap();
            let meta = std::fs::metadata(&file).unwrap();
            assert_eq!((meta.uid(), meta.gid()), (12345, 12346));
        }
        assert_eq!(names(folder.path()), ["out.npz"]);
    }

    #[test]
    fn a_file_in_a_folder_that_takes_no_new_one_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("out.npz");
        put(&file, "old and long").unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o555)).unwrap();
        put(&file, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_file_that_may_not_be_written_stays() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("out.npz");
        put(&file, "old").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o444)).unwrap();
        // Root may write it: then the mode stays.
        let may = OpenOptions::new().write(true).open(&file).is_ok();
        assert_eq!((check(&file, &[]).is_ok(), put(&file, "new").is_ok()), (may, may));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), if may { "new" } else { "old" });
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o444);
    }

    #[test]
    fn links_are_followed_and_stay() {
        let folder = tempfile::tempdir().unwrap();
        let (below, link) = (folder.path().join("below"), folder.path().join("link"));
        std::fs::create_dir(&below).unwrap();
        let first = folder.path().join("first");
        symlink("below/file", &link).unwrap();
        symlink("link", &first).unwrap();
        for text in ["made through links", "replaced through links"] {
            put(&first, text).unwrap();
            assert_eq!(std::fs::read_to_string(below.join("file")).unwrap(), text);
            assert!(first.is_symlink() && link.is_symlink());
        }
        assert_eq!(
            (names(folder.path()), names(&below)),
            (vec!["below".into(), "first".into(), "link".into()], vec!["file".into()])
        );
    }

    #[test]
    fn a_planted_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (file, prey) = (folder.path().join("out"), folder.path().join("prey"));
        std::fs::write(&prey, "prey").unwrap();
        let planted = folder.path().join(format!(".out.{}-0.part", std::process::id()));
        symlink(&prey, &planted).unwrap();
        put(&file, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(std::fs::read_to_string(&prey).unwrap(), "prey");
        assert!(planted.is_symlink());
    }

    #[test]
    fn what_is_no_file_is_refused_unless_it_is_a_stream() {
        let folder = tempfile::tempdir().unwrap();
        let says = |path: &Path| [check(path, &[]), put(path, "x")].map(|r| r.unwrap_err().to_string());
        for e in says(folder.path()) {
            assert!(e.contains("is a folder: give the name of a file"), "{e}");
        }
        let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
        for e in says(&folder.path().join("socket")) {
            assert!(e.contains("neither a file nor a stream"), "{e}");
        }
        assert!(check(&folder.path().join("none/out"), &[]).unwrap_err().to_string().contains("there is no folder"));

        put(Path::new("/dev/null"), "x").unwrap();
        assert!(!std::fs::metadata("/dev/null").unwrap().is_file() && is_stream(Path::new("/dev/null")));
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::read_to_string(pipe).unwrap()
        });
        put(&pipe, "through the pipe").unwrap();
        assert_eq!(reader.join().unwrap(), "through the pipe");
    }

    #[test]
    fn an_input_is_not_overwritten_whatever_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let (model, link, twin) = (folder.path().join("m.onnx"), folder.path().join("l"), folder.path().join("t"));
        put(&model, "model").unwrap();
        symlink(&model, &link).unwrap();
        std::fs::hard_link(&model, &twin).unwrap();
        for path in [&model, &link, &twin, &folder.path().join("./m.onnx")] {
            assert!(check(path, &[&model]).unwrap_err().to_string().contains("would overwrite the input"));
        }
        check(&folder.path().join("other"), &[&model]).unwrap();
    }
}
