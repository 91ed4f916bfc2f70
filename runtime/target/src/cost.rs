//! What builtin scalar functions cost.
//!
//! In: the name of a builtin. Out: its [`Cost`]. Holds always: a function that is not listed costs 1.

/// What one application costs, in three ways that do not follow from each other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Operations of a device, very roughly: what the optimiser weighs.
    pub operations: f64,
    /// Instructions in the source of a kernel: where printing an expression twice is dearer than keeping it.
    pub instructions: u64,
    /// Time on the host, in additions: what the CPU executor splits work by.
    pub host: usize,
}

/// A function that is one instruction everywhere.
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

/// What the builtin of that name costs.
pub fn of(builtin: &str) -> Cost {
    COSTS.iter().find(|(name, _)| *name == builtin).map_or(PLAIN, |(_, cost)| *cost)
}
