//! The executor that runs plans on the host.
//!
//! In: a plan, and tensors. Out: tensors. Invariant: results do not depend on the number of threads
//! or on the processor's vector instructions, and agree with the f64 reference of `hypatia-eval`.
//!
//! [`exec`] runs the steps in order. [`gemm`], [`conv`], [`depthwise`], [`pointwise`], [`rowwise`],
//! [`reduce`], [`pooling`], [`cumsum`] and [`copies`] compute them; [`im2col`] gives products the
//! windows of a convolution. [`interp`] runs scalar terms on blocks with the functions of [`math`];
//! [`memory`] splits the arena. Through [`fold`], earlier stages use the [`Executor`] to compute
//! constants. Executor and reference share the scalar terms of `hypatia_dsl::scalar::typed`.

mod conv;
#[cfg(test)]
mod conv_tests;
mod copies;
mod cumsum;
mod depthwise;
mod epilogue;
mod exec;
mod fold;
mod gemm;
mod horizontal;
mod im2col;
mod interp;
mod math;
mod memory;
mod operand;
mod pointwise;
mod pool;
mod pooling;
mod reduce;
#[cfg(test)]
mod regions_tests;
mod rowwise;
#[cfg(test)]
mod rowwise_tests;
mod simd;
#[cfg(test)]
mod tests;
mod threads;
mod unfold;
mod widen;

pub use exec::Executor;
pub use fold::HostFolder;
#[doc(hidden)]
pub use gemm::guard::Fault;
pub use gemm::guard::{Cause, Mismatch};
