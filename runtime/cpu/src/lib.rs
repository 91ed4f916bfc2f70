//! The executor that runs plans on the host.
//!
//! In: a plan, and tensors. Out: tensors. Invariant: results do not depend on the number of threads
//! or on the processor's vector instructions, and agree with the f64 reference of `hypatia-eval`.
//!
//! [`exec`] runs the steps in order; [`gemm`], [`conv`], [`last`], [`pointwise`], [`rowwise`],
//! [`reduce`], [`windows`], [`cumsum`] and [`moves`] compute them; [`interp`] runs scalar terms on
//! blocks with the functions of [`math`]; [`memory`] splits the arena. Through [`fold`], earlier
//! stages use the [`Executor`] to compute constants. Executor and reference share the scalar terms
//! of `hypatia_dsl::scalar::typed`.

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
mod tests;
mod threads;
mod windows;

pub use exec::Executor;
pub use fold::HostFolder;
