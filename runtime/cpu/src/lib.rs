//! The CPU: the reference evaluator that defines meaning, and the executor that runs plans.
//!
//! [`mod@reference`] is slow and obvious, and reads graphs; everything else here is the [`Executor`], which
//! reads plans: [`exec`] walks the steps, [`gemm`], [`conv`], [`last`], [`pointwise`], [`rowwise`], [`reduce`], [`windows`], [`cumsum`] and [`moves`]
//! compute them, [`interp`] runs scalar terms on blocks with the functions of [`math`], [`memory`] cuts
//! the arena. [`fold`] lends the executor to the stages before it, which compute constants. Both
//! executor and reference see a scalar term as `hypatia_dsl::scalar::typed` has it.

mod conv;
#[cfg(test)]
mod conv_tests;
mod cumsum;
mod exec;
mod fold;
mod gemm;
mod interp;
mod last;
mod math;
mod memory;
mod moves;
mod pointwise;
mod reduce;
mod rowwise;
#[cfg(test)]
mod rowwise_tests;
mod simd;
#[cfg(test)]
pub mod tests;
mod threads;
mod windows;

pub use exec::Executor;
pub use fold::HostFolder;
