//! Names of users made identifiers of generated code.
//!
//! Holds always: an identifier from here is `[A-Za-z0-9_]+`, at most 64 characters, and by its prefix
//! neither a keyword nor a macro of any compiler.

/// Longest part of a user's name that is kept.
const KEEP: usize = 48;

/// The user's name behind a prefix that no keyword and no macro begins with.
pub fn identifier(prefix: &str, name: &str) -> String {
    let mut out = String::from(prefix);
    out.extend(name.chars().take(KEEP).map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }));
    if name.chars().count() > KEEP {
        // What was cut off still tells two names apart.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ b as u64).wrapping_mul(0x0100_0000_01b3));
        out.push_str(&format!("_{:08x}", hash as u32));
    }
    out
}
