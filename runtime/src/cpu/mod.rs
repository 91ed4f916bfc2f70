//! The CPU: the reference evaluator that defines meaning, and the executor that runs plans.

pub mod flat;
pub mod reference;
