//! Committed files mention only Hypatia: no path, home folder or private host of the machine on
//! which a file was made, and no word of the workplace.
//!
//! In: every file that git tracks, or every file of the tree without git, as raw bytes; archives
//! (`.npz`) are inflated. Out: a list of the findings, with their files. Invariant: a text is
//! forbidden everywhere, or only in binary files; no file is exempt.

#![allow(clippy::unwrap_used)]

use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Texts that no file may contain. Each is split in two, so that this file does not contain it
/// either.
const ANYWHERE: &[&str] = &[
    // Folders of machines.
    concat!("/wor", "k/"),
    concat!("/roo", "t/"),
    concat!("/hom", "e/"),
    concat!("/Use", "rs/"),
    concat!("C:\\Use", "rs"),
    concat!(".pye", "nv"),
    // Hosts that a private mirror or a lock file would name. Cargo.lock names the registry of
    // crates.io by the address of its index on GitHub.
    concat!("index.cra", "tes.io"),
    concat!("static.cra", "tes.io"),
    concat!("files.pythonho", "sted.org"),
    concat!("pypi", ".org/simple"),
    concat!("artifac", "tory"),
    concat!("registry.np", "mjs.org"),
    // The workplace.
    concat!("steer", "ing/"),
    concat!("the foun", "der"),
    concat!("suba", "gent"),
    concat!("anthro", "pic"),
    concat!("clau", "de"),
    concat!("chatg", "pt"),
    concat!("co-autho", "red-by"),
];

/// Texts that are also forbidden in binary files. Text files may name such folders: the search
/// paths of CUDA, the first line of a script.
const IN_BINARY: &[&str] = &["/tmp/", "/usr/", "/opt/", "/mnt/", "site-packages"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// The files that git tracks, or those of the tree if it is not a checkout.
fn files() -> Vec<PathBuf> {
    let git = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output();
    if let Ok(out) = git
        && out.status.success()
        && !out.stdout.is_empty()
    {
        let names = out.stdout.split(|b| *b == 0).filter(|n| !n.is_empty());
        let paths = names.map(|n| root().join(String::from_utf8_lossy(n).as_ref()));
        // A file that was deleted but not yet committed is still listed.
        return paths.filter(|p| p.is_file()).collect();
    }
    let mut found = Vec::new();
    walk(&root(), &mut found);
    found
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() && ![".git", "target", "__pycache__"].iter().any(|skipped| name == *skipped) {
            walk(&entry.path(), found);
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
}

/// The file's bytes, and those of each member if it is an archive.
fn contents(bytes: Vec<u8>) -> Vec<(String, Vec<u8>)> {
    let mut parts = Vec::new();
    if bytes.starts_with(b"PK\x03\x04")
        && let Ok(mut archive) = zip::ZipArchive::new(Cursor::new(&bytes))
    {
        for i in 0..archive.len() {
            let mut member = archive.by_index(i).unwrap();
            let mut inflated = Vec::new();
            member.read_to_end(&mut inflated).unwrap();
            parts.push((member.name().unwrap().into_owned(), inflated));
        }
    }
    parts.push((String::new(), bytes));
    parts
}

/// The forbidden texts in these bytes, ignoring case.
fn found_in(bytes: &[u8]) -> Vec<String> {
    let lower = bytes.to_ascii_lowercase();
    let binary = bytes.contains(&0) || std::str::from_utf8(bytes).is_err();
    let more = if binary { IN_BINARY } else { &[] };
    let occurs = |text: &&&str| {
        let text = text.to_ascii_lowercase();
        lower.windows(text.len()).any(|w| w == text.as_bytes())
    };
    ANYWHERE.iter().chain(more).filter(occurs).map(|text| (*text).to_string()).collect()
}

#[test]
fn files_name_no_machine_and_no_workplace() {
    let files = files();
    assert!(files.len() > 300, "only {} files were found", files.len());
    let mut findings = Vec::new();
    for path in files {
        let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
        for (member, bytes) in contents(std::fs::read(&path).unwrap()) {
            for text in found_in(&bytes) {
                findings.push(format!("{name} {member}: {text}"));
            }
        }
    }
    assert!(findings.is_empty(), "what belongs to a machine or a workplace:\n{}", findings.join("\n"));
}

/// The scan covers text, binary data and compressed members of archives.
#[test]
fn the_scan_finds_what_is_planted() {
    let path = concat!("File \"/roo", "t/a.py\"");
    assert_eq!(found_in(path.as_bytes()), [concat!("/roo", "t/")]);
    assert_eq!(found_in(path.to_ascii_uppercase().as_bytes()).len(), 1, "in any case of letters");
    let temporary = "/tmp/a";
    assert!(found_in(temporary.as_bytes()).is_empty(), "text may name such folders");
    assert_eq!(found_in(format!("\0{temporary}").as_bytes()), ["/tmp/"]);

    let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    archive.start_file("model", options).unwrap();
    std::io::Write::write_all(&mut archive, path.repeat(100).as_bytes()).unwrap();
    let bytes = archive.finish().unwrap().into_inner();
    assert!(found_in(&bytes).is_empty(), "compressed bytes do not show it");
    let all: Vec<String> = contents(bytes).iter().flat_map(|(_, bytes)| found_in(bytes)).collect();
    assert_eq!(all, [concat!("/roo", "t/")]);
}
