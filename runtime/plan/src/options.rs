//! Settings of planning.
//!
//! In: a device, and what the caller allows. Out: what `prepare` and `lower` read. Invariant: the
//! defaults let no result differ from the rounding that the rules claim.

use hypatia_dsl::numerics::Allowed;

use hypatia_target::device::Device;
use hypatia_tensor::memory;

/// How products on a GPU are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Checks {
    /// Not at all.
    #[default]
    Off,
    /// Each is held against checksums. Kernels that hide their accumulators are not used.
    On,
    /// Likewise, and a test may disturb them.
    Disturbed,
}

/// Settings of planning.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The target device.
    pub device: Device,
    /// Cluster pointwise work, rows and products in turn; otherwise every scalar node and every
    /// product is a launch of its own.
    pub cluster: bool,
    /// Limit in bytes of the arena and the outputs; a plan that needs more is an error.
    pub memory: usize,
    /// On a GPU, hold products against checksums.
    pub checks: Checks,
    /// Which approximations generated kernels may use.
    pub allowed: Allowed,
}

impl Options {
    /// Clustered, for that device, within [`memory::budget`].
    pub fn new(device: Device) -> Options {
        Options { device, cluster: true, memory: memory::budget(), checks: Checks::Off, allowed: Allowed::default() }
    }
}
