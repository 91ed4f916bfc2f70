//! Device profiles: the few figures by which work is costed.
//!
//! In: a target's name. Out: peak rates, bandwidth and launch cost. The profiles are built in, so that
//! `opt`, `explain`, `test ... on` and `gen` need no device. Holds always: every figure is positive, and the
//! doc comment of each profile says where its figures come from.

use crate::dtype::DType;

/// What the cost model knows of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// The name by which it is asked for.
    pub name: &'static str,
    /// Compute capability as a number, 90 for sm_90; 0 where there is none.
    pub sm: u32,
    /// Bytes a second between memory and the processor.
    pub bandwidth: f64,
    /// Seconds from one kernel's end to the next one's start.
    pub launch: f64,
    /// Operations a second outside of matrix units, in f32.
    pub vector: f64,
    /// Operations a second of a matrix product, by the dtype of its operands.
    matrix: [(DType, f64); 6],
}

/// Every profile, in the order in which they are listed.
static PROFILES: [Device; 3] = [CPU, H200, A100];

/// One NVIDIA H200 SXM. Measured: 8192-cubed products at 790 (bf16, f16) and 51 (f32) TFLOP/s, a copy at 4.24
/// TB/s, a launch inside a CUDA graph 1 us. From the data sheet: f64 (67, tensor cores), int8 (1979), and
/// 67 TFLOP/s of f32 outside of the tensor cores.
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

/// One NVIDIA A100 SXM 80 GB, from NVIDIA's A100 data sheet: 312 TFLOP/s (bf16, f16), 19.5 (f32; f64 on tensor
/// cores), 624 TOP/s (int8), 2.04 TB/s. The launch cost is taken to be the H200's.
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

/// A small host: two cores with AVX2 at 3 GHz (2 x 32 flop a cycle for f32, half for f64, f16 and bf16 widened
/// to f32), 20 GB/s. A "launch" is the hand-over of a step to the threads.
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

    /// The host.
    pub fn cpu() -> Device {
        CPU
    }

    /// Names of all profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PROFILES.iter().map(|d| d.name)
    }

    /// Operations a second of a matrix product over operands of that type.
    pub fn matrix_rate(&self, dtype: DType) -> f64 {
        self.matrix.iter().find(|(d, _)| *d == dtype).map_or(self.vector, |(_, rate)| *rate)
    }

    /// True if epilogues are run by an interpreter that takes any term.
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
