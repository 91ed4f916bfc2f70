//! Mangles users' names into identifiers of generated code.
//!
//! Invariant: an identifier from here is `[A-Za-z0-9_]+`, at most 64 characters, and its prefix
//! keeps it from being a keyword or a macro of any compiler.

/// Maximum length of the part of a user's name that is kept.
const KEEP: usize = 48;

/// The user's name after a prefix that no keyword and no macro begins with.
pub fn identifier(prefix: &str, name: &str) -> String {
    let mut out = String::from(prefix);
    out.extend(name.chars().take(KEEP).map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }));
    if name.chars().count() > KEEP {
        // A hash keeps truncated names distinct.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ b as u64).wrapping_mul(0x0100_0000_01b3));
        out.push_str(&format!("_{:08x}", hash as u32));
    }
    out
}
