//! Profiles of GPUs that no profile is built in for.
//!
//! In: what the driver says of a GPU. Out: peaks, from the operations that a multiprocessor of its
//! generation does in a cycle. Invariant: `None` if a figure is missing; then the profile of the
//! nearest older generation has to do.
//!
//! Source: NVIDIA's whitepapers of the generations, without sparsity, f32 accumulators.

use super::{CACHE_OVER_MEMORY, Device, Figures, RAMP, matrix};

/// What the driver says of a GPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Properties {
    /// Compute capability: 90 for 9.0.
    pub sm: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Highest clock of the multiprocessors, in Hz.
    pub clock: f64,
    /// Highest clock of the memory, in Hz; it moves data twice in a cycle.
    pub memory_clock: f64,
    /// Bits of the path to the memory.
    pub bus: u32,
}

/// Operations of a multiprocessor in a cycle: of f32 outside of matrix units, and of matrix
/// products in f16 and bf16, in f64 and in 8-bit integers. From that compute capability on.
const GENERATIONS: [(u32, f64, [f64; 3]); 6] = [
    (120, 256.0, [512.0, 4.0, 2048.0]),
    (100, 256.0, [8192.0, 128.0, 16384.0]),
    (90, 256.0, [4096.0, 256.0, 8192.0]),
    (86, 256.0, [512.0, 4.0, 2048.0]),
    (80, 128.0, [2048.0, 128.0, 4096.0]),
    (0, 128.0, [1024.0, 4.0, 2048.0]),
];

impl Properties {
    /// The profile of a GPU with these properties.
    ///
    /// # Example
    /// ```
    /// # use hypatia_target::device::Properties;
    /// let (clock, memory_clock) = (2.04e9, 6.251e9);
    /// let l4 = Properties { sm: 89, multiprocessors: 58, clock, memory_clock, bus: 192 };
    /// let profile = l4.profile().expect("all figures are there");
    /// assert!((profile.bandwidth - 300e9).abs() < 1e9); // as in its data sheet
    /// ```
    pub fn profile(&self) -> Option<Device> {
        let known = self.multiprocessors > 0 && self.clock > 0.0 && self.memory_clock > 0.0 && self.bus > 0;
        let (_, vector, [half, double, byte]) = GENERATIONS.into_iter().find(|(from, ..)| self.sm >= *from)?;
        let cycles = f64::from(self.multiprocessors) * self.clock;
        let bandwidth = 2.0 * self.memory_clock * f64::from(self.bus) / 8.0;
        known.then(|| Device {
            name: "gpu",
            figures: Figures::Properties,
            sm: self.sm,
            bandwidth,
            // How much the cache holds is not asked for.
            cache: 0.0,
            cache_bandwidth: bandwidth * CACHE_OVER_MEMORY,
            launch: 1.0e-6,
            ramp: RAMP,
            units: f64::from(self.multiprocessors),
            tf32: false,
            vector: vector * cycles,
            matrix: matrix([half * cycles, vector * cycles, double * cycles, byte * cycles]),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::dtype::DType;

    /// The properties of GPUs with a profile give figures near those of the profile.
    #[test]
    fn properties_agree_with_data_sheets() {
        let of = |sm, multiprocessors, clock, memory_clock, bus| Properties {
            sm,
            multiprocessors,
            clock,
            memory_clock,
            bus,
        };
        for (name, properties) in [
            ("a100", of(80, 108, 1.41e9, 1.593e9, 5120)),
            ("h100", of(90, 132, 1.83e9, 2.619e9, 5120)),
            ("rtx4090", of(89, 128, 2.52e9, 10.501e9, 384)),
        ] {
            let (found, sheet) = (properties.profile().unwrap(), Device::named(name).unwrap());
            let near = |what: &str, a: f64, b: f64| assert!((a / b - 1.0).abs() < 0.1, "{name} {what}: {a:e}, {b:e}");
            near("bandwidth", found.bandwidth, sheet.bandwidth);
            near("vector", found.vector, sheet.vector);
            for dtype in [DType::BF16, DType::I8] {
                near(dtype.name(), found.matrix_rate(dtype), sheet.matrix_rate(dtype));
            }
        }
        assert_eq!(of(90, 132, 0.0, 2.6e9, 5120).profile(), None);
    }
}
