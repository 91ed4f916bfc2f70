//! Device profiles: the figures of the cost model.
//!
//! In: a target's name. Out: peak rates, bandwidth and launch cost. The profiles are built in, so
//! that `opt`, `explain`, `test ... on` and `gen` need no device. Invariant: every figure is
//! positive, and the doc comment of each profile gives the sources of its figures.

use crate::dtype::DType;

/// What the cost model knows about a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// The target's name.
    pub name: &'static str,
    /// Compute capability as a number, 90 for sm_90; 0 for a host.
    pub sm: u32,
    /// Memory bandwidth in bytes per second.
    pub bandwidth: f64,
    /// Seconds from the end of one kernel to the start of the next.
    pub launch: f64,
    /// f32 operations per second outside of matrix units.
    pub vector: f64,
    /// Operations per second of a matrix product, by the dtype of its operands.
    matrix: [(DType, f64); 6],
}

/// All profiles, in listing order.
static PROFILES: [Device; 3] = [CPU, H200, A100];

/// One NVIDIA H200 SXM. Measured: 8192-cubed products at 790 (bf16, f16) and 51 (f32) TFLOP/s, a
/// copy at 4.24 TB/s, a launch inside a CUDA graph 1 us. From the data sheet: f64 (67, tensor
/// cores), int8 (1979), and 67 TFLOP/s of f32 outside of the tensor cores.
const H200: Device = Device {
    name: "h200",
    sm: 90,
    bandwidth: 4.24e12,
    launch: 1.0e-6,
    vector: 67e12,
    matrix: [
        (DType::BF16, 790e12),
        (DType::F16, 790e12),
        (DType::F32, 51e12),
        (DType::F64, 67e12),
        (DType::I8, 1979e12),
        (DType::U8, 1979e12),
    ],
};

/// One NVIDIA A100 SXM 80 GB, from NVIDIA's A100 data sheet: 312 TFLOP/s (bf16, f16), 19.5 (f32;
/// f64 on tensor cores), 624 TOP/s (int8), 2.04 TB/s. The launch cost is assumed to equal the
/// H200's.
const A100: Device = Device {
    name: "a100",
    sm: 80,
    bandwidth: 2.04e12,
    launch: 1.0e-6,
    vector: 19.5e12,
    matrix: [
        (DType::BF16, 312e12),
        (DType::F16, 312e12),
        (DType::F32, 19.5e12),
        (DType::F64, 19.5e12),
        (DType::I8, 624e12),
        (DType::U8, 624e12),
    ],
};

/// A small host: two cores with AVX2 at 3 GHz (2 x 32 flop a cycle for f32, half for f64, f16 and
/// bf16 widened to f32), 20 GB/s. A "launch" is the handover of a step to the threads.
const CPU: Device = Device {
    name: "cpu",
    sm: 0,
    bandwidth: 2.0e10,
    launch: 1.0e-6,
    vector: 5.0e10,
    matrix: [
        (DType::BF16, 1.0e11),
        (DType::F16, 1.0e11),
        (DType::F32, 1.9e11),
        (DType::F64, 9.6e10),
        (DType::I8, 1.0e11),
        (DType::U8, 1.0e11),
    ],
};

impl Device {
    /// The profile of that name.
    pub fn named(name: &str) -> Option<Device> {
        PROFILES.iter().find(|d| d.name == name).cloned()
    }

    /// The host's profile.
    pub fn cpu() -> Device {
        CPU
    }

    /// Names of all profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PROFILES.iter().map(|d| d.name)
    }

    /// Operations per second of a matrix product over operands of that type.
    pub fn matrix_rate(&self, dtype: DType) -> f64 {
        self.matrix.iter().find(|(d, _)| *d == dtype).map_or(self.vector, |(_, rate)| *rate)
    }

    /// True for a host, where an interpreter runs epilogues and accepts any term.
    pub fn is_host(&self) -> bool {
        self.sm == 0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn profiles_are_found_and_sane() {
        for name in Device::names() {
            let d = Device::named(name).unwrap();
            assert!(d.bandwidth > 0.0 && d.launch > 0.0 && d.vector > 0.0);
            assert!(DType::ALL.iter().all(|t| d.matrix_rate(*t) > 0.0));
        }
        assert!(Device::named("tpu").is_none());
        assert_eq!(Device::named("h200").unwrap().sm, 90);
    }
}
