//! The formatter: one way to write a file.
//!
//! In: a file without syntax errors. Out: its text with spaces, line breaks and indentation in
//! one form. Holds always: the tokens and comments stay the same and in the same order (only a
//! spare `;` behind a block goes), so the tree stays the same, and formatting twice gives what
//! formatting once gave.
//!
//! It works on tokens, not on the tree: so brackets, numbers and comments stay as they were
//! written. `Source` gathers tokens with their comments and roles, `Layout` turns items into
//! documents, `doc` prints these.

mod doc;
mod layout;
mod source;

/// Formats a file, which must have parsed without errors.
pub fn format(text: &str) -> String {
    let source = source::Source::new(text);
    doc::print(&layout::file(&source))
}

#[cfg(test)]
mod tests;
