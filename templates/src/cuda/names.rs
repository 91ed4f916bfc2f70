//! Sanitises user text: identifiers, comments and file names.
//!
//! Invariant: an identifier from here is `[A-Za-z0-9_]+`, at most 64 characters, and its prefix
//! keeps it from being a keyword or a macro of any compiler; a comment line has no line break, no
//! control character, no backslash and no comment end.

pub use hypatia_dsl::ident::identifier;

/// The user's text as lines of a `//` comment: at most 20 lines of at most `width` characters.
pub fn comment_lines(text: &str, width: usize) -> Vec<String> {
    let mut out = Vec::new();
    for line in text.lines() {
        let mut current = String::new();
        for word in line.split_whitespace() {
            let word: String = word.chars().take(width).filter_map(harmless).collect();
            if !current.is_empty() && current.chars().count() + 1 + word.chars().count() > width {
                out.push(std::mem::take(&mut current));
            }
            if !current.is_empty() {
                current.push(' ');
            }
            current.push_str(&word);
        }
        if !current.is_empty() {
            out.push(current);
        }
    }
    if out.len() > 20 {
        out.truncate(19);
        out.push("...".into());
    }
    out.iter().map(|l| l.replace("*/", "* /").replace("/*", "/ *")).collect()
}

/// A backslash would continue the comment on the next line. Control and direction characters could
/// make the text look like something else.
fn harmless(c: char) -> Option<char> {
    match c {
        '\\' => Some('/'),
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' => None,
        c if c.is_control() => None,
        c => Some(c),
    }
}

/// A file name for a `#line` directive.
pub fn file_name(name: &str) -> String {
    let keep = |c: char| c.is_ascii_alphanumeric() || "._-/<> ".contains(c);
    name.chars().take(200).map(|c| if keep(c) { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_text_is_harmless() {
        assert_eq!(identifier("s_", "gelu"), "s_gelu");
        assert_eq!(identifier("s_", "a b\"*/"), "s_a_b___");
        let long = "x".repeat(10_000);
        let longer = "x".repeat(10_001);
        assert!(identifier("s_", &long).len() < 64);
        assert_ne!(identifier("s_", &long), identifier("s_", &longer));
        assert_eq!(comment_lines("a */ b\\\n#include <x>\u{202e}", 80), ["a * / b/", "#include <x>"]);
        assert_eq!(comment_lines(&"word ".repeat(9_999), 80).len(), 20);
        assert_eq!(file_name("a\"\n\\b.hyp"), "a___b.hyp");
    }
}
