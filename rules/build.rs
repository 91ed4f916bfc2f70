//! Parses the library when it is built, so that no program parses it again.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use hypatia_dsl::parse::parse;
use hypatia_dsl::render::{Format, render};
use hypatia_dsl::source::{SourceFile, SourceMap};

/// The files, in the order in which they build on each other.
const MODULES: [&str; 18] = [
    "core",
    "nn",
    "onnx",
    "fuse",
    "views",
    "simplify",
    "norm",
    "merge",
    "rotary",
    "attention",
    "masked",
    "grouped",
    "attention_grad",
    "sink",
    "conv",
    "train",
    "quant",
    "short",
];

fn main() {
    if let Err(message) = embed() {
        eprintln!("{message}");
        std::process::exit(1);
    }
}

/// Writes `library.rs`: `FILES` with the texts, and `TREES` with the trees that were made of them.
fn embed() -> Result<(), String> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).ok_or(format!("{name} is not set"));
    let (from, to) = (folder("CARGO_MANIFEST_DIR")?, folder("OUT_DIR")?);
    println!("cargo::rerun-if-changed={}", from.display());
    check_listed(&from)?;
    let (mut files, mut trees) = (String::new(), String::new());
    for module in MODULES {
        let path = from.join(format!("{module}.hyp"));
        let tree = to.join(format!("{module}.tree"));
        std::fs::write(&tree, bytes(module, &path)?).map_err(|e| format!("{}: {e}", tree.display()))?;
        let _ = writeln!(files, "    ({module:?}, include_str!({:?})),", path.display().to_string());
        let _ = writeln!(trees, "    ({module:?}, include_bytes!({:?})),", tree.display().to_string());
    }
    let text = format!(
        "/// Module name and text of each file, in the order in which they build on each other.\n\
         pub const FILES: &[(&str, &str)] = &[\n{files}];\n\n\
         /// Module name and tree of each, as `hypatia_dsl::ast::File::to_bytes` wrote it.\n\
         pub const TREES: &[(&str, &[u8])] = &[\n{trees}];\n"
    );
    std::fs::write(to.join("library.rs"), text).map_err(|e| format!("library.rs: {e}"))
}

/// Every file of the folder is part of the library.
fn check_listed(folder: &Path) -> Result<(), String> {
    let wrong = |e: std::io::Error| format!("{}: {e}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        let module = path.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
        if path.extension().is_some_and(|e| e == "hyp") && !MODULES.contains(&module) {
            return Err(format!("{} is not listed in rules/build.rs", path.display()));
        }
    }
    Ok(())
}

fn bytes(module: &str, path: &Path) -> Result<Vec<u8>, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut sources = SourceMap::new();
    let id = sources.add(SourceFile::library(module, &text));
    let (tree, diagnostics) = parse(&sources, id);
    if !diagnostics.is_empty() {
        return Err(render(&sources, &diagnostics, Format::Full { color: false }));
    }
    tree.to_bytes(&text)
}
