//! Names of arguments that neither language reserves.
//!
//! In: an argument's name in the source. Out: a name for a parameter. Holds always: it is no
//! keyword of C, C++ or Python, and no name that a launcher uses itself.

/// Keywords of C++ cannot be names in a source; what is left are those of Python and C, and the
/// launchers' own names.
const TAKEN: &[&str] = &[
    "False",
    "None",
    "True",
    "and",
    "as",
    "assert",
    "async",
    "await",
    "def",
    "del",
    "elif",
    "except",
    "finally",
    "from",
    "global",
    "import",
    "in",
    "is",
    "lambda",
    "nonlocal",
    "not",
    "or",
    "pass",
    "raise",
    "restrict",
    "with",
    "yield",
    "kernel",
    "stream",
    "launch",
    "status",
    "values",
    "device",
    "torch",
    "ctypes",
    "math",
    "choose",
    "grid",
    "block",
    "shared",
    "shared_memory",
];

/// The name of a parameter.
pub(super) fn spelled(name: &str) -> String {
    if TAKEN.contains(&name) { format!("{name}_") } else { name.to_string() }
}
