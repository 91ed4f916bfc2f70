//! docs/architecture.md against the code: which crate uses which, and inside the largest crates
//! which module uses which.
//!
//! In: the tables of the page, `cargo metadata`, and the paths in the sources that begin with
//! `crate::` or `super::`. Out: every dependency that the page does not allow, and every dependency
//! that the page allows and the code does not have. Invariant: a row uses only rows above it, so no
//! table has a cycle.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Maps a name to the names that it uses.
type Arrows = BTreeMap<String, BTreeSet<String>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn page() -> String {
    std::fs::read_to_string(root().join("docs/architecture.md")).unwrap()
}

/// The rows of the table after a heading: the name in the first column, and the names in the last.
fn table(page: &str, heading: &str) -> Vec<(String, BTreeSet<String>)> {
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_string).collect::<Vec<_>>();
    let section = page.split(heading).nth(1).unwrap_or_else(|| panic!("no heading `{heading}`"));
    let lines = section.lines().skip_while(|l| !l.starts_with('|')).take_while(|l| l.starts_with('|'));
    let cells = |l: &str| l.trim_matches('|').split('|').map(str::to_string).collect::<Vec<_>>();
    let rows = lines.map(cells).filter(|c| c[0].contains('`'));
    rows.map(|c| (names(&c[0])[0].clone(), names(c.last().unwrap()).into_iter().collect())).collect()
}

/// The differences between a table and the dependencies that were found.
fn differences(rows: &[(String, BTreeSet<String>)], found: &Arrows) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut above = BTreeSet::new();
    for (name, uses) in rows {
        let upward = uses.iter().filter(|u| !above.contains(*u));
        wrong.extend(upward.map(|u| format!("the table lets `{name}` use `{u}`, which does not stand above it")));
        let real = found.get(name).cloned().unwrap_or_default();
        wrong.extend(real.difference(uses).map(|u| format!("`{name}` uses `{u}`, which the table does not allow")));
        wrong.extend(uses.difference(&real).map(|u| format!("`{name}` does not use `{u}`, which the table allows")));
        above.insert(name.clone());
    }
    wrong.extend(found.keys().filter(|n| !above.contains(*n)).map(|n| format!("`{n}` stands in no row")));
    wrong
}

/// The crates of the workspace that users get, on crates.io or in a wheel, and for each those that
/// its build needs: including build dependencies, excluding dev-dependencies.
fn crates() -> Arrows {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let args = ["metadata", "--no-deps", "--offline", "--format-version", "1"];
    let out = Command::new(cargo).args(args).current_dir(root()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    // An empty list of registries means never published; a wheel is made of a dynamic library.
    let in_wheel = |p: &serde_json::Value| {
        p["targets"].as_array().unwrap().iter().any(|t| t["kind"].as_array().unwrap().contains(&"cdylib".into()))
    };
    let kept = packages.iter().filter(|p| p["publish"].as_array().is_none_or(|l| !l.is_empty()) || in_wheel(p));
    let name = |v: &serde_json::Value| v["name"].as_str().unwrap().to_string();
    let ours: BTreeSet<String> = packages.iter().map(name).collect();
    let needs = |p: &serde_json::Value| {
        let all = p["dependencies"].as_array().unwrap();
        all.iter().filter(|d| d["kind"] != "dev").map(name).filter(|n| ours.contains(n)).collect()
    };
    kept.map(|p| (name(p), needs(p))).collect()
}

/// A source without comments and without its tests, which are at the end.
fn code(source: &str) -> String {
    let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let source = source.split("#[cfg(test)]\n#[allow(clippy::unwrap_used)]\nmod tests {").next().unwrap_or_default();
    source.lines().map(|l| l.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The first names after each `prefix::`, including those in braces.
fn behind<'s>(source: &'s str, prefix: &str) -> Vec<&'s str> {
    fn word(s: &str) -> &str {
        &s[..s.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(s.len())]
    }
    let mut out = Vec::new();
    for (at, _) in source.match_indices(prefix) {
        let before = source[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':' || c == '$') {
            continue;
        }
        let rest = &source[at + prefix.len()..];
        let Some(list) = rest.strip_prefix('{') else {
            out.push(word(rest));
            continue;
        };
        let (mut depth, mut start) = (0, true);
        for (i, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => start = true,
                c if start && !c.is_whitespace() => {
                    out.push(word(&list[i..]));
                    start = false;
                }
                _ => {}
            }
        }
    }
    out
}

/// The top-level modules of a crate, and which of the others each uses. An item that `lib.rs`
/// re-exports at the crate's root counts as its original module.
fn modules(src: &Path) -> Arrows {
    let mut files = Vec::new();
    collect(src, &mut files);
    let module = |f: &Path| {
        let first = f.strip_prefix(src).unwrap().components().next().unwrap();
        first.as_os_str().to_string_lossy().trim_end_matches(".rs").to_string()
    };
    let is_test = |f: &Path| {
        let stem = f.file_stem().unwrap().to_string_lossy();
        let inner = f.strip_prefix(src).unwrap().components().any(|c| c.as_os_str() == "tests");
        inner || stem == "tests" || stem.ends_with("_tests") || stem.ends_with("_test") || stem == "testing"
    };
    files.retain(|f| !is_test(f));
    let names: BTreeSet<String> = files.iter().map(|f| module(f)).filter(|m| m != "lib" && m != "main").collect();
    let lib = std::fs::read_to_string(src.join("lib.rs")).unwrap();
    let lifted = lifted(&code(&lib), &names);
    let mut arrows: Arrows = names.iter().map(|n| (n.clone(), BTreeSet::new())).collect();
    for file in files {
        let own = module(&file);
        let Some(uses) = arrows.get_mut(&own) else { continue };
        let source = code(&std::fs::read_to_string(&file).unwrap());
        // The root is three steps up from `a/b/c.rs`, and two from `a/b/mod.rs`.
        let depth = file.strip_prefix(src).unwrap().components().count();
        let depth = if file.file_stem().unwrap() == "mod" { depth - 1 } else { depth };
        let up = "super::".repeat(depth);
        for prefix in ["crate::", up.as_str()] {
            for name in behind(&source, prefix) {
                let name = lifted.get(name).map_or(name, String::as_str);
                if names.contains(name) && name != own {
                    uses.insert(name.to_string());
                }
            }
        }
    }
    arrows
}

/// The original module of each name that `lib.rs` re-exports at the root.
fn lifted(lib: &str, modules: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for statement in lib.split(';').filter_map(|s| s.split("pub use ").nth(1)) {
        let statement = statement.strip_prefix("crate::").unwrap_or(statement);
        let Some((from, rest)) = statement.split_once("::") else { continue };
        if modules.contains(from) {
            let names = rest.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|n| !n.is_empty());
            out.extend(names.map(|n| (n.to_string(), from.to_string())));
        }
    }
    out
}

fn collect(folder: &Path, out: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            collect(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// The crates whose modules the page lists, with their sources.
const LISTED: [(&str, &str); 7] = [
    ("## Modules of `hypatia-dsl`", "hypatia-dsl/src"),
    ("## Modules of `hypatia-optimize`", "runtime/optimize/src"),
    ("## Modules of `hypatia-graph`", "runtime/graph/src"),
    ("## Modules of `hypatia-plan`", "runtime/plan/src"),
    ("## Modules of `hypatia-cpu`", "runtime/cpu/src"),
    ("## Modules of `hypatia-cuda`", "runtime/cuda/src"),
    ("## Modules of `hypatia-verify`", "runtime/verify/src"),
];

#[test]
fn crates_use_what_the_page_allows() {
    let wrong = differences(&table(&page(), "## Crates"), &crates());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn modules_use_what_the_page_allows() {
    for (heading, src) in LISTED {
        let wrong = differences(&table(&page(), heading), &modules(&root().join(src)));
        assert!(wrong.is_empty(), "{src}:\n{}", wrong.join("\n"));
    }
}

#[test]
fn a_planted_arrow_between_crates_is_found() {
    let rows = table(&page(), "## Crates");
    let mut found = crates();
    found.get_mut("hypatia-graph").unwrap().insert("hypatia-cpu".to_string());
    assert_eq!(differences(&rows, &found), ["`hypatia-graph` uses `hypatia-cpu`, which the table does not allow"]);
}

#[test]
fn a_planted_arrow_between_modules_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("lib.rs", "mod low;\nmod high;\npub use low::Thing;\n");
    write("low.rs", "// use crate::high::X;\npub struct Thing;\n");
    write("high/mod.rs", "use crate::Thing;\n");
    let text = "## Modules\n\n| module | may use |\n|---|---|\n| `low` | |\n| `high` | `low` |\n";
    let rows = table(text, "## Modules");
    assert_eq!(differences(&rows, &modules(folder.path())), Vec::<String>::new());
    for planted in ["use crate::high::X;", "use super::{high::X};", "fn f() -> crate::high::X {}"] {
        write("low.rs", planted);
        let wrong = differences(&rows, &modules(folder.path()));
        assert_eq!(wrong, ["`low` uses `high`, which the table does not allow"], "{planted}");
    }
    let circle = "## Modules\n\n| module | may use |\n|---|---|\n| `low` | `high` |\n| `high` | `low` |\n";
    let wrong = differences(&table(circle, "## Modules"), &modules(folder.path()));
    assert_eq!(wrong, ["the table lets `low` use `high`, which does not stand above it"]);
}
