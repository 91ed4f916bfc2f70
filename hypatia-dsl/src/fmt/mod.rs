//! The formatter: one canonical layout for a file.
//!
//! In: a file without syntax errors. Out: its text with canonical spaces, line breaks and
//! indentation. Invariant: the tokens and comments stay the same and in the same order (only a
//! redundant `;` after a block is removed, and `migrate` rewrites old spellings), so the tree stays
//! the same, and formatting is idempotent.
//!
//! It works on tokens, not on the tree, so that brackets, numbers and comments stay as written.
//! `Source` collects tokens with their comments and roles, `Layout` turns items into documents,
//! `doc` prints these.

mod doc;
mod layout;
mod migrate;
mod source;

/// Formats a file, which must have parsed without errors.
pub fn format(text: &str) -> String {
    let text = migrate::migrated(text);
    let source = source::Source::new(&text);
    doc::print(&layout::file(&source))
}

#[cfg(test)]
mod tests;
