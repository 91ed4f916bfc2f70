//! What a user's template may do: its statements, and how much it may make.
//!
//! In: nothing. Out: limits, which the scanner enforces and the messages name. Invariant: a
//! template within them renders in bounded time and memory.

/// Maximum bytes of a source, and of all strings that a template makes while rendering.
pub(super) const MAX_SOURCE: usize = 4 << 20;
/// Maximum number of values that a template keeps.
pub(super) const MAX_SETS: usize = 1_000;
/// Maximum bytes of a string literal.
pub(super) const MAX_TEXT: usize = 4 << 10;

/// The statements that templates may use.
pub(super) const STATEMENTS: &[&str] =
    &["if", "elif", "else", "endif", "for", "endfor", "set", "with", "endwith", "do"];
/// Maximum number of rendering steps.
pub(super) const FUEL: u64 = 2_000_000;
