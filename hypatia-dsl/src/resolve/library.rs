//! What the embedded library declares, for hints about names of files that are not in use.
//!
//! In: the library's trees. Out: the module that declares a name. Invariant: nothing is read before
//! the first question, since most compilations ask none.

use std::sync::OnceLock;

use crate::ast::{self, ItemKind};
use crate::loader::Embedded;
use crate::source::FileId;

use super::{Space, declared};

/// The declarations of the embedded library.
#[derive(Debug, Default)]
pub struct LibraryNames {
    embedded: Embedded,
    read: OnceLock<Vec<Entry>>,
}

/// A declaration of the library.
#[derive(Debug)]
struct Entry {
    module: &'static str,
    name: String,
    /// `None` for a rule, whose name is `ruleset::name`.
    space: Option<Space>,
}

impl LibraryNames {
    pub(super) fn of(embedded: Embedded) -> LibraryNames {
        LibraryNames { embedded, read: OnceLock::new() }
    }

    /// The module that declares a name.
    pub fn module_of(&self, space: Space, name: &str) -> Option<&'static str> {
        self.find(Some(space), name)
    }

    /// The module that declares a rule, named as it is written.
    pub fn module_of_rule(&self, name: &str) -> Option<&'static str> {
        self.find(None, name)
    }

    /// The rules of the library, as they are written.
    pub fn rules(&self) -> impl Iterator<Item = &str> {
        let entries = self.read.get_or_init(|| entries(self.embedded));
        entries.iter().filter(|e| e.space.is_none()).map(|e| e.name.as_str())
    }

    /// True for a module of the library.
    pub fn has_module(&self, name: &str) -> bool {
        self.embedded.texts.iter().any(|(module, _)| *module == name)
    }

    fn find(&self, space: Option<Space>, name: &str) -> Option<&'static str> {
        let entries = self.read.get_or_init(|| entries(self.embedded));
        entries.iter().find(|e| e.space == space && e.name == name).map(|e| e.module)
    }
}

fn entries(embedded: Embedded) -> Vec<Entry> {
    let mut out = Vec::new();
    for (module, text) in embedded.texts {
        let bytes = embedded.trees.iter().find(|(name, _)| name == module).map(|(_, bytes)| *bytes);
        let Some(Ok(file)) = bytes.map(|b| ast::File::from_bytes(b, text, FileId(0))) else { continue };
        out.extend(file.items.iter().filter_map(|item| {
            let (name, space) = match &item.kind {
                ItemKind::Rule(rule) => (rule.path.text(), None),
                kind => declared(kind).map(|(name, space)| (name.node.clone(), Some(space)))?,
            };
            Some(Entry { module, name, space })
        }));
    }
    out
}
