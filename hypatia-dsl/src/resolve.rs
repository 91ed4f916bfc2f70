//! Name resolution: what `use` imports, and which declaration a name refers to.
//!
//! In: the files that the user named, and a loader. Out: every file reachable from them, parsed
//! once each, and for each file a scope from names to declarations. Invariant: a file has one
//! index, however it was reached; a declaration in the file itself shadows one that a `use ...::*`
//! imports; in `order`, every file comes after the files that it uses.

mod library;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;

use crate::ast::{self, ItemKind, Name};
use crate::builtin::{OVER_SECOND, SECOND};
use crate::code;
use crate::diag::Diagnostic;
use crate::foreign;
use crate::loader::Loader;
use crate::parse::parse_all;
use crate::source::{FileId, SourceFile, SourceMap, Span};
use crate::spell::closest;

pub use self::library::LibraryNames;

/// Maximum number of files in one compilation: a guard against generated file mazes.
const MAX_FILES: usize = 1000;

/// A declaration: item `item` of file `file`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ItemRef {
    /// Index among the files.
    pub file: usize,
    /// Index among the file's items.
    pub item: usize,
}

/// Namespaces: names in different spaces do not collide.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Space {
    /// Scalars, ops, patterns and families.
    Value,
    /// Rulesets.
    RuleSet,
    /// Kernels.
    Kernel,
    /// Contracts.
    Contract,
}

impl Space {
    fn word(self) -> &'static str {
        match self {
            Space::Value => "declaration",
            Space::RuleSet => "ruleset",
            Space::Kernel => "kernel",
            Space::Contract => "contract",
        }
    }
}

/// How a name was imported into a scope.
#[derive(Clone, Debug)]
enum ImportedBy {
    Own,
    Single,
    Glob,
}

#[derive(Clone, Debug)]
struct Binding {
    /// The possible targets: more than one only if several globs import the name.
    targets: Vec<ItemRef>,
    via: ImportedBy,
    span: Span,
}

/// The scope of a file: what its names refer to.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    names: BTreeMap<(Space, String), Binding>,
    /// Visible modules by the path in `use`: `core`, `a::b`.
    modules: BTreeMap<String, usize>,
}

/// All files and their scopes.
#[derive(Debug, Default)]
pub struct Resolved {
    /// Syntax trees, in the order in which the files were read.
    pub files: Vec<ast::File>,
    /// Module names such as `core`, `nn`: the file's name without folders and `.hyp`.
    pub names: Vec<String>,
    /// One scope for each file.
    pub scopes: Vec<Scope>,
    /// File indices in dependency order: used files first.
    pub order: Vec<usize>,
    /// Files with a failed `use`: names unknown in them may come from that `use`.
    pub incomplete: Vec<bool>,
    /// Files of the embedded library that other files use. They were checked when the library was
    /// built, so checks that can only report diagnostics about them are skipped.
    pub trusted: Vec<bool>,
    /// What the embedded library declares, in use or not.
    pub library: LibraryNames,
}

impl Resolved {
    /// Whether a span lies in a trusted file.
    pub fn trusts(&self, span: Option<Span>) -> bool {
        span.is_some_and(|s| self.files.iter().zip(&self.trusted).any(|(f, trusted)| *trusted && f.id == s.file))
    }
}

struct Edge {
    target: usize,
    span: Span,
    /// The imported name, unless the edge is a glob or a whole module.
    name: Option<Name>,
    glob: bool,
    path: String,
}

/// Reads the root files and everything that they use, and resolves every scope.
pub fn resolve(
    roots: Vec<SourceFile>,
    loader: &dyn Loader,
    sources: &mut SourceMap,
    diags: &mut Vec<Diagnostic>,
) -> Resolved {
    let mut files =
        Files { sources, loader, keys: HashMap::new(), ids: Vec::new(), parsed: Vec::new(), names: Vec::new(), diags };
    let first = roots.first().and_then(|r| r.path.clone());
    for root in roots {
        files.add(root);
    }
    let own = files.ids.len();
    for file in loader.always(first.as_deref()) {
        files.add(file);
    }
    let all = files.ids.len();
    let (edges, failed) = files.load_all();
    // Embedded files are trusted, unless the library's own tests were requested.
    let tests = loader.wants_tests();
    let trusted: Vec<bool> =
        files.ids.iter().enumerate().map(|(i, id)| i >= own && !tests && files.sources.file(*id).embedded).collect();
    let Files { mut parsed, names, .. } = files;
    for (file, _) in parsed.iter_mut().zip(&trusted).filter(|(_, trusted)| **trusted) {
        file.items.retain(|i| !matches!(i.kind, ItemKind::Test(_)));
    }
    let incomplete =
        (0..parsed.len()).map(|f| failed.contains(&f) || parsed[f].broken.iter().any(|n| n == "*")).collect();
    let from = (own..all).chain(0..own).chain(all..parsed.len());
    let order = order(from, &names, &edges, diags);
    let mut resolved = Resolved {
        files: parsed,
        names,
        scopes: Vec::new(),
        order,
        incomplete,
        trusted,
        library: LibraryNames::of(loader.library()),
    };
    resolved.scopes = scopes(&resolved, &edges, diags);
    resolved
}

struct Files<'a> {
    sources: &'a mut SourceMap,
    loader: &'a dyn Loader,
    keys: HashMap<String, usize>,
    /// All files found, in the order of their indices.
    ids: Vec<FileId>,
    /// The syntax trees of the first of them; the others are not parsed yet.
    parsed: Vec<ast::File>,
    names: Vec<String>,
    diags: &'a mut Vec<Diagnostic>,
}

impl Files<'_> {
    /// The index of a file. A new file is parsed later.
    fn add(&mut self, source: SourceFile) -> usize {
        let key = match &source.path {
            Some(path) => std::fs::canonicalize(path).unwrap_or_else(|_| path.clone()).display().to_string(),
            None => source.name.clone(),
        };
        if let Some(&index) = self.keys.get(&key)
            && (source.path.is_some() || self.sources.file(self.ids[index]).text == source.text)
        {
            return index;
        }
        let stem = source.path.clone().unwrap_or_else(|| PathBuf::from(&source.name));
        let stem = stem.file_stem().map_or_else(|| source.name.clone(), |s| s.to_string_lossy().into_owned());
        self.ids.push(self.sources.add(source));
        self.names.push(stem);
        self.keys.insert(key, self.ids.len() - 1);
        self.ids.len() - 1
    }

    /// Follows every `use` to its file. Returns the edges of each file, in order, and the files
    /// with a `use` whose target is missing or unreadable.
    fn load_all(&mut self) -> (Vec<Vec<Edge>>, HashSet<usize>) {
        let mut edges: Vec<Vec<Edge>> = Vec::new();
        let mut failed: HashSet<usize> = HashSet::new();
        // Files that could not be read at all.
        let mut wrecked: HashSet<usize> = HashSet::new();
        while edges.len() < self.ids.len() {
            for (file, diags) in self.trees(&self.ids[self.parsed.len()..]) {
                if file.items.is_empty() && !diags.is_empty() {
                    wrecked.insert(self.parsed.len());
                }
                self.diags.extend(diags);
                self.parsed.push(file);
            }
            for from in edges.len()..self.parsed.len() {
                let uses: Vec<(ast::Use, Span)> = self.parsed[from]
                    .items
                    .iter()
                    .filter_map(|i| match &i.kind {
                        ItemKind::Use(u) => Some((u.clone(), i.span)),
                        _ => None,
                    })
                    .collect();
                let found: Vec<Option<Edge>> = uses.iter().map(|(u, span)| self.follow(from, u, *span)).collect();
                if found.iter().any(Option::is_none) {
                    failed.insert(from);
                }
                edges.push(found.into_iter().flatten().collect());
            }
        }
        failed.extend((0..edges.len()).filter(|f| edges[*f].iter().any(|e| wrecked.contains(&e.target))));
        (edges, failed)
    }

    /// The syntax trees of these files. Embedded files are already parsed; the others are parsed in
    /// parallel.
    fn trees(&self, ids: &[FileId]) -> Vec<(ast::File, Vec<Diagnostic>)> {
        let embedded = |id: &FileId| self.loader.tree(self.sources.file(*id));
        let texts: Vec<FileId> = ids.iter().filter(|id| embedded(id).is_none()).copied().collect();
        let mut parsed = parse_all(self.sources, &texts).into_iter();
        let read = |id: &FileId, bytes: &[u8]| match ast::File::from_bytes(bytes, &self.sources.file(*id).text, *id) {
            Ok(tree) => (tree, Vec::new()),
            Err(why) => {
                let message = format!("cannot read {}", self.sources.file(*id).name);
                let d = Diagnostic::error(code::UNREADABLE, message, Span { file: *id, start: 0, end: 0 });
                (ast::File::empty(*id), vec![d.note(why).hint("rebuild all of Hypatia's crates together")])
            }
        };
        ids.iter().filter_map(|id| embedded(id).map_or_else(|| parsed.next(), |bytes| Some(read(id, bytes)))).collect()
    }

    fn follow(&mut self, from: usize, u: &ast::Use, span: Span) -> Option<Edge> {
        let parts: Vec<&str> = u.path.parts.iter().map(|p| p.node.as_str()).collect();
        let whole = parts.len();
        // `use a::b;` means the name `b` of module `a`, or else the module `a/b`.
        let mut tries = vec![(whole, u.glob)];
        if !u.glob && whole > 1 {
            tries.insert(0, (whole - 1, false));
        }
        let path = self.sources.file(self.parsed[from].id).path.clone();
        for (n, glob) in tries {
            if self.ids.len() >= MAX_FILES {
                let d =
                    Diagnostic::error(code::UNREADABLE, format!("the program has more than {MAX_FILES} files"), span);
                self.diags.push(d.hint("merge some of them"));
                return None;
            }
            match self.loader.load(&parts[..n].join("/"), path.as_deref()) {
                Ok(Some(source)) => {
                    let target = self.add(source);
                    let name = (!glob && n < whole).then(|| u.path.parts[whole - 1].clone());
                    return Some(Edge { target, span: u.path.span, name, glob, path: parts[..n].join("::") });
                }
                Ok(None) => {}
                Err(why) => {
                    self.diags.push(
                        Diagnostic::error(
                            code::UNREADABLE,
                            format!("cannot read module `{}`", parts[..n].join("::")),
                            span,
                        )
                        .note(why)
                        .hint(
                            "`use` names a `.hyp` file beside this one, or in a folder there: `use folder::file::*;`",
                        ),
                    );
                    return None;
                }
            }
        }
        let module = if u.glob || whole == 1 { parts.join("/") } else { parts[..whole - 1].join("/") };
        let beside = path.as_deref().and_then(|p| p.parent()).map(|d| d.join(format!("{module}.hyp")));
        let mut d = Diagnostic::error(
            code::NO_MODULE,
            format!("there is no module `{}`", module.replace('/', "::")),
            u.path.span,
        )
        .label("not found");
        if let Some(p) = beside {
            d = d.note(format!("looked for {} and in the embedded library", p.display()));
        }
        let library: Vec<&str> = self.loader.library().texts.iter().map(|(module, _)| *module).collect();
        let known = self.names.iter().map(String::as_str).chain(library.iter().copied());
        d = d.hint(match closest(&module, known) {
            Some(s) => format!("did you mean `{s}`?"),
            None => format!("the library has {}", library.join(", ")),
        });
        self.diags.push(d);
        None
    }
}

/// The dependency order: a file comes after the files that it uses. Each cycle is reported once and
/// cut.
fn order(
    roots: impl Iterator<Item = usize>,
    names: &[String],
    edges: &[Vec<Edge>],
    diags: &mut Vec<Diagnostic>,
) -> Vec<usize> {
    let mut out = Vec::new();
    let mut state = vec![0u8; edges.len()]; // 0 new, 1 open, 2 done
    for root in roots {
        if state[root] != 0 {
            continue;
        }
        // An explicit stack of (file, next edge).
        let mut stack = vec![(root, 0usize)];
        state[root] = 1;
        while let Some(&(file, next)) = stack.last() {
            let Some(edge) = edges[file].get(next) else {
                state[file] = 2;
                out.push(file);
                stack.pop();
                continue;
            };
            if let Some(top) = stack.last_mut() {
                top.1 += 1;
            }
            match state[edge.target] {
                0 => {
                    state[edge.target] = 1;
                    stack.push((edge.target, 0));
                }
                1 => report_cycle(&stack, edge.target, edges, names, diags),
                _ => {}
            }
        }
    }
    out
}

fn report_cycle(
    stack: &[(usize, usize)],
    target: usize,
    edges: &[Vec<Edge>],
    names: &[String],
    diags: &mut Vec<Diagnostic>,
) {
    let start = stack.iter().position(|(f, _)| *f == target).unwrap_or(0);
    let circle: Vec<(usize, &Edge)> = stack[start..].iter().map(|(f, next)| (*f, &edges[*f][next - 1])).collect();
    let mut path: Vec<&str> = circle.iter().map(|(f, _)| names[*f].as_str()).collect();
    path.push(&names[target]);
    let Some((_, first)) = circle.first() else { return };
    let mut d = Diagnostic::error(code::USE_CYCLE, format!("import cycle: {}", path.join(" -> ")), first.span)
        .label(format!("`{}` uses `{}` here", names[target], names[first.target]));
    for (f, e) in &circle[1..] {
        d = d.also(e.span, format!("`{}` uses `{}` here", names[*f], names[e.target]));
    }
    diags.push(match circle.len() {
        1 => d.hint(format!(
            "`{0}` is this file, which hides a module of the library of that name: remove the `use`, or rename \
             the file",
            names[target]
        )),
        _ => d.hint("move the declarations that both need into a third file"),
    });
}

/// The name and namespace that an item declares.
pub fn declared(kind: &ItemKind) -> Option<(&Name, Space)> {
    Some(match kind {
        ItemKind::Scalar(s) => (&s.name, Space::Value),
        ItemKind::Op(s) => (&s.name, Space::Value),
        ItemKind::Pattern(s) => (&s.name, Space::Value),
        ItemKind::Family(s) => (&s.name, Space::Value),
        ItemKind::RuleSet(s) => (&s.name, Space::RuleSet),
        ItemKind::Kernel(s) => (&s.name, Space::Kernel),
        ItemKind::Contract(s) => (&s.name, Space::Contract),
        ItemKind::Use(_) | ItemKind::Rule(_) | ItemKind::Test(_) => return None,
    })
}

/// Reserved names: they have a meaning of their own wherever an expression may occur.
const RESERVED: &[&str] = &["acc", SECOND, OVER_SECOND, "build", "out"];

fn own_scope(resolved: &Resolved, file: usize, diags: &mut Vec<Diagnostic>) -> Scope {
    let mut scope = Scope::default();
    for (item, node) in resolved.files[file].items.iter().enumerate() {
        let Some((name, space)) = declared(&node.kind) else { continue };
        let reserved = match space {
            Space::Value => {
                RESERVED.contains(&name.node.as_str()) || crate::dtype::DType::from_name(&name.node).is_some()
            }
            Space::RuleSet => name.node == ast::FOLD,
            Space::Kernel | Space::Contract => false,
        };
        if reserved {
            diags.push(
                Diagnostic::error(code::RESERVED, format!("the name `{}` is reserved", name.node), name.span)
                    .label("reserved name")
                    .hint(format!("choose another name, such as `my_{}`", name.node)),
            );
        }
        let binding = Binding { targets: vec![ItemRef { file, item }], via: ImportedBy::Own, span: name.span };
        if let Some(first) = scope.names.get(&(space, name.node.clone())) {
            diags.push(
                Diagnostic::error(
                    code::DUPLICATE,
                    format!("{} `{}` is declared twice", space.word(), name.node),
                    name.span,
                )
                .label("declared again here")
                .also(first.span, "first declared here")
                .hint("rename one of them"),
            );
        } else {
            scope.names.insert((space, name.node.clone()), binding);
        }
    }
    scope
}

fn scopes(resolved: &Resolved, edges: &[Vec<Edge>], diags: &mut Vec<Diagnostic>) -> Vec<Scope> {
    let own: Vec<Scope> = (0..resolved.files.len()).map(|f| own_scope(resolved, f, diags)).collect();
    let mut out = own.clone();
    for (file, edges) in edges.iter().enumerate() {
        for edge in edges {
            let scope = &mut out[file];
            scope.modules.insert(edge.path.clone(), edge.target);
            let theirs = &own[edge.target];
            if edge.target == file {
                continue; // reported as a cycle
            }
            if edge.glob {
                glob(scope, theirs, edge, resolved, diags);
            } else if let Some(name) = &edge.name {
                single(scope, theirs, edge, name, &resolved.files[edge.target].broken, diags);
            }
        }
    }
    out
}

fn glob(scope: &mut Scope, theirs: &Scope, edge: &Edge, resolved: &Resolved, diags: &mut Vec<Diagnostic>) {
    for (key, binding) in &theirs.names {
        match scope.names.get_mut(key) {
            None => {
                let b = Binding { targets: binding.targets.clone(), via: ImportedBy::Glob, span: edge.span };
                scope.names.insert(key.clone(), b);
            }
            Some(have) if matches!(have.via, ImportedBy::Glob) => {
                for t in &binding.targets {
                    if !have.targets.contains(t) {
                        have.targets.push(*t);
                    }
                }
            }
            Some(have) => {
                if key.0 == Space::Value
                    && matches!(have.via, ImportedBy::Own)
                    && !have.targets.contains(&binding.targets[0])
                {
                    let module = &resolved.names[edge.target];
                    diags.push(
                        Diagnostic::warning(
                            code::SHADOWS,
                            format!("`{}` shadows `{module}::{}`", key.1, key.1),
                            have.span,
                        )
                        .label(format!("rules in other files still use `{module}::{}`", key.1))
                        .also(binding.span, "the shadowed declaration")
                        .hint("choose another name, or import names one by one instead of `*`"),
                    );
                }
            }
        }
    }
}

fn single(scope: &mut Scope, theirs: &Scope, edge: &Edge, name: &Name, broken: &[String], diags: &mut Vec<Diagnostic>) {
    let mut found = false;
    for space in [Space::Value, Space::RuleSet, Space::Kernel] {
        let key = (space, name.node.clone());
        let Some(b) = theirs.names.get(&key) else { continue };
        found = true;
        match scope.names.get(&key) {
            Some(have) if matches!(have.via, ImportedBy::Own) => diags.push(
                Diagnostic::error(code::DUPLICATE, format!("`{}` is both declared and imported", name.node), name.span)
                    .label("imported here")
                    .also(have.span, "declared here")
                    .hint("rename the declaration, or remove the `use`"),
            ),
            Some(have) if matches!(have.via, ImportedBy::Single) && have.targets != b.targets => diags.push(
                Diagnostic::error(code::DUPLICATE, format!("`{}` is imported twice", name.node), name.span)
                    .label("imported again here")
                    .also(have.span, "first imported here"),
            ),
            _ => {
                scope
                    .names
                    .insert(key, Binding { targets: b.targets.clone(), via: ImportedBy::Single, span: name.span });
            }
        }
    }
    if !found && !broken.contains(&name.node) {
        let mut d = Diagnostic::error(
            code::UNKNOWN_NAME,
            format!("module `{}` does not declare `{}`", edge.path, name.node),
            name.span,
        )
        .label("not found in that module");
        if let Some(s) = closest(&name.node, theirs.names.keys().map(|(_, n)| n.as_str())) {
            d = d.hint(format!("did you mean `{s}`?"));
        }
        diags.push(d);
    }
}

impl Resolved {
    /// Resolves a name in a file, if it is unambiguous. Cheaper than [`Resolved::lookup`], as it
    /// builds no diagnostic.
    pub fn find(&self, file: usize, space: Space, path: &ast::Path) -> Option<ItemRef> {
        let (last, prefix) = path.parts.split_last()?;
        let key = (space, last.node.clone());
        if prefix.is_empty() {
            return match self.scopes[file].names.get(&key)?.targets.as_slice() {
                [one] => Some(*one),
                _ => None,
            };
        }
        let binding = self.scopes[self.module(file, prefix)?].names.get(&key)?;
        matches!(binding.via, ImportedBy::Own).then_some(binding.targets[0])
    }

    /// The file of the module that a path names.
    fn module(&self, file: usize, prefix: &[Name]) -> Option<usize> {
        let module = prefix.iter().map(|p| p.node.as_str()).collect::<Vec<_>>().join("::");
        let own = self.names.get(file).is_some_and(|n| *n == module).then_some(file);
        self.scopes[file].modules.get(&module).copied().or(own)
    }

    /// Resolves a name in a file. The error is a complete diagnostic.
    pub fn lookup(&self, file: usize, space: Space, path: &ast::Path) -> Result<ItemRef, Box<Diagnostic>> {
        if let Some(found) = self.find(file, space, path) {
            return Ok(found);
        }
        let (last, prefix) = match path.parts.split_last() {
            Some(x) => x,
            None => return Err(Box::new(Diagnostic::error(code::UNKNOWN_NAME, "the name is empty", path.span))),
        };
        if prefix.is_empty() {
            return Err(Box::new(match self.scopes[file].names.get(&(space, last.node.clone())) {
                Some(several) => self.ambiguous(&several.targets, path),
                None => self.unknown(file, space, path),
            }));
        }
        let Some(target) = self.module(file, prefix) else {
            let module = prefix.iter().map(|p| p.node.as_str()).collect::<Vec<_>>().join("::");
            let mut d = Diagnostic::error(code::UNKNOWN_NAME, format!("module `{module}` is not imported"), path.span)
                .label("not imported");
            if self.names.contains(&module) || self.library.has_module(&module) {
                d = d.hint(format!("add `use {module}::*;` at the top of the file"));
            }
            return Err(Box::new(d));
        };
        Err(Box::new(self.unknown(target, space, path)))
    }

    /// True if an error that was already reported explains an unknown name: the item that declares
    /// it has a syntax error, or a `use` of this file failed.
    pub fn excused(&self, file: usize, name: &str) -> bool {
        self.incomplete[file] || self.files.iter().any(|f| f.broken.iter().any(|b| b == name))
    }

    /// True if the name is declared in that file. Reports nothing.
    pub fn is_declared(&self, file: usize, space: Space, path: &ast::Path) -> bool {
        self.find(file, space, path).is_some()
    }

    /// All names of a namespace that are visible in a file.
    pub fn visible(&self, file: usize, space: Space) -> impl Iterator<Item = &str> {
        self.scopes[file].names.keys().filter(move |(s, _)| *s == space).map(|(_, n)| n.as_str())
    }

    /// The names of a namespace that mean one declaration in a file, with it.
    pub fn in_sight(&self, file: usize, space: Space) -> impl Iterator<Item = (&str, ItemRef)> {
        let names = self.scopes[file].names.iter().filter(move |((s, _), _)| *s == space);
        names.filter_map(|((_, name), binding)| match binding.targets.as_slice() {
            [one] => Some((name.as_str(), *one)),
            _ => None,
        })
    }

    fn unknown(&self, file: usize, space: Space, path: &ast::Path) -> Diagnostic {
        let name = path.parts.last().map_or("", |p| p.node.as_str());
        let what = match space {
            Space::Value => "scalar, op or pattern",
            other => other.word(),
        };
        let mut d = Diagnostic::error(code::UNKNOWN_NAME, format!("there is no {what} `{}`", path.text()), path.span)
            .label("not found");
        let elsewhere = self
            .scopes
            .iter()
            .position(|s| s.names.get(&(space, name.to_string())).is_some_and(|b| matches!(b.via, ImportedBy::Own)));
        let module = elsewhere.map(|m| self.names[m].as_str()).or_else(|| self.library.module_of(space, name));
        if let (Some(module), 1) = (module, path.parts.len()) {
            d = d.hint(format!("module `{module}` declares it: add `use {module}::*;` at the top of the file"));
        } else if name == "in" && space == Space::Value {
            d = d
                .hint("`in(t)` reads a tensor in the term of an epilogue: `gemm(a, b, acc + in(t))`")
                .hint("between tensors its name is enough: `t`");
        } else if let Some(hint) = foreign::function(name).filter(|_| space == Space::Value) {
            d = d.hint(hint);
        } else if let Some(s) = closest(name, self.visible(file, space)) {
            d = d.hint(format!("did you mean `{s}`?"));
        } else {
            let declaration = match space {
                Space::Value => format!("`scalar {name}(x) = ...;`"),
                Space::RuleSet => format!("`ruleset {name} {{ until = fixpoint; }}`"),
                Space::Kernel => format!("`kernel {name} for ...`"),
                Space::Contract => format!("`contract {name} {{ must ...; }}`"),
            };
            d = d.hint(format!("declare it, {declaration}, or add a `use` for the file that declares it"));
        }
        d
    }

    fn ambiguous(&self, several: &[ItemRef], path: &ast::Path) -> Diagnostic {
        let mut d = Diagnostic::error(code::AMBIGUOUS, format!("the name `{}` is ambiguous", path.text()), path.span);
        for t in several {
            if let Some((name, _)) = declared(&self.files[t.file].items[t.item].kind) {
                d = d.also(name.span, format!("`{}::{}`", self.names[t.file], name.node));
            }
        }
        let first = &self.names[several[0].file];
        d.hint(format!("qualify it, for example `{first}::{}`", path.text()))
    }
}
