//! The cost of builtin scalar functions.
//!
//! In: the name of a builtin. Out: its [`Cost`]. Invariant: a function that is not listed costs 1.

/// The cost of one application, in three independent measures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Device operations, very roughly: the weight in the optimiser's cost model.
    pub operations: f64,
    /// Instructions in the source of a kernel: decides whether an expression is printed twice or
    /// kept.
    pub instructions: u64,
    /// Time on the host, in additions: the CPU executor splits work by it.
    pub host: usize,
}

/// A function that is a single instruction everywhere.
const PLAIN: Cost = Cost { operations: 1.0, instructions: 1, host: 1 };

const fn cost(operations: f64, instructions: u64, host: usize) -> Cost {
    Cost { operations, instructions, host }
}

/// The functions that cost more.
pub const COSTS: &[(&str, Cost)] = &[
    ("pow", cost(32.0, 60, 100)),
    ("fmod", cost(32.0, 60, 100)),
    ("sin", cost(8.0, 60, 100)),
    ("cos", cost(8.0, 60, 100)),
    ("log", cost(8.0, 15, 100)),
    ("exp", cost(8.0, 15, 8)),
    ("tanh", cost(8.0, 15, 8)),
    ("erf", cost(8.0, 15, 16)),
    ("log1p", cost(8.0, 15, 1)),
    ("expm1", cost(8.0, 15, 1)),
    ("atan", cost(8.0, 15, 1)),
    ("div", cost(2.0, 8, 1)),
    ("sqrt", cost(2.0, 8, 1)),
    ("rsqrt", cost(2.0, 8, 1)),
];

/// The cost of the builtin of that name.
pub fn of(builtin: &str) -> Cost {
    COSTS.iter().find(|(name, _)| *name == builtin).map_or(PLAIN, |(_, cost)| *cost)
}
