//! The public names of the package `hypatia`: a name is added or removed on purpose.
//!
//! In: `runtime/src/lib.rs` and the modules that it declares. Out: the names at the root and in its
//! public modules, compared with those on record. Invariant: each item is named by itself, so that
//! no crate appears whole, and nothing that a crate adds appears unnoticed.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;

use syn::{Attribute, File, Item, UseTree, Visibility};

/// What a module shows: names of items, and what was re-exported without being named.
#[derive(Default)]
struct Shown {
    names: Vec<String>,
    unnamed: Vec<String>,
}

/// What the module of these items shows, and its public modules, whose files are in this folder.
fn shown(items: &[Item], path: &str, folder: &Path) -> Shown {
    let mut out = Shown::default();
    for item in items {
        let Some((name, attributes)) = public(item, &mut out, path) else { continue };
        let hidden = if is_hidden(attributes) { " (hidden)" } else { "" };
        out.names.push(format!("{path}{name}{hidden}"));
        let Item::Mod(module) = item else { continue };
        let inner = match &module.content {
            Some((_, items)) => items.clone(),
            None => parsed(&std::fs::read_to_string(folder.join(format!("{name}.rs"))).unwrap()).items,
        };
        let below = shown(&inner, &format!("{path}{name}::"), &folder.join(&name));
        out.names.extend(below.names);
        out.unnamed.extend(below.unnamed);
    }
    out
}

/// The name of a public item, and its attributes. Names of a `use` are added at once.
fn public<'a>(item: &'a Item, out: &mut Shown, path: &str) -> Option<(String, &'a [Attribute])> {
    let (visibility, name, attributes) = match item {
        Item::Const(i) => (&i.vis, &i.ident, &i.attrs),
        Item::Enum(i) => (&i.vis, &i.ident, &i.attrs),
        Item::Fn(i) => (&i.vis, &i.sig.ident, &i.attrs),
        Item::Mod(i) => (&i.vis, &i.ident, &i.attrs),
        Item::Static(i) => (&i.vis, &i.ident, &i.attrs),
        Item::Struct(i) => (&i.vis, &i.ident, &i.attrs),
        Item::Trait(i) => (&i.vis, &i.ident, &i.attrs),
        Item::Type(i) => (&i.vis, &i.ident, &i.attrs),
        Item::Use(i) if matches!(i.vis, Visibility::Public(_)) => {
            used(&i.tree, 0, path, out);
            return None;
        }
        Item::Macro(i) if i.attrs.iter().any(|a| a.path().is_ident("macro_export")) => {
            return Some((i.ident.as_ref().unwrap().to_string(), &i.attrs));
        }
        _ => return None,
    };
    matches!(visibility, Visibility::Public(_)).then(|| (name.to_string(), attributes.as_slice()))
}

/// Adds the names of a `use`, which stands `depth` steps below a crate.
fn used(tree: &UseTree, depth: usize, path: &str, out: &mut Shown) {
    match tree {
        UseTree::Path(p) => used(&p.tree, depth + 1, path, out),
        UseTree::Group(g) => g.items.iter().for_each(|t| used(t, depth, path, out)),
        UseTree::Name(n) if depth > 0 => out.names.push(format!("{path}{}", n.ident)),
        UseTree::Rename(r) if depth > 0 => out.names.push(format!("{path}{}", r.rename)),
        UseTree::Name(n) => out.unnamed.push(format!("{path}{}: a whole crate", n.ident)),
        UseTree::Rename(r) => out.unnamed.push(format!("{path}{}: a whole crate", r.rename)),
        UseTree::Glob(_) => out.unnamed.push(format!("{path}*: whatever it holds")),
    }
}

fn is_hidden(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|a| a.path().is_ident("doc") && a.parse_args::<syn::Ident>().is_ok_and(|i| i == "hidden"))
}

fn parsed(source: &str) -> File {
    syn::parse_file(source).unwrap()
}

#[test]
fn the_package_shows_the_names_on_record() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtime/src");
    let Shown { mut names, unnamed } =
        shown(&parsed(&std::fs::read_to_string(folder.join("lib.rs")).unwrap()).items, "", &folder);
    assert!(unnamed.is_empty(), "name each item:\n{}", unnamed.join("\n"));
    names.sort();
    insta::assert_snapshot!(names.join("\n"));
}

#[test]
fn whole_crates_and_globs_are_found() {
    let source = "
        pub use some_crate; pub use some_crate as other; pub use a::*; pub use a::b::{C, D as E}; use a::Private;
        #[doc(hidden)] pub mod inner { pub fn f() {} fn g() {} pub(crate) fn h() {} pub struct S; }
        mod private { pub fn i() {} }
    ";
    let Shown { names, unnamed } = shown(&parsed(source).items, "", Path::new(""));
    assert_eq!(names, ["C", "E", "inner (hidden)", "inner::f", "inner::S"]);
    assert_eq!(unnamed, ["some_crate: a whole crate", "other: a whole crate", "*: whatever it holds"]);
}
