//! Device profiles: the figures of the cost model.
//!
//! In: a target's name, or a GPU's own properties. Out: peak rates, bandwidth and launch cost. The
//! profiles are built in, so that `opt`, `explain`, `test ... on` and `gen` need no device.
//! Invariant: every figure is positive, and the doc comment of each profile gives the sources of
//! its figures.

mod properties;

pub use properties::Properties;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::dtype::DType;

/// The compute capability of Hopper: no other GPU has its matrix instructions and its copy engine.
pub const HOPPER: u32 = 90;

/// The compute capability of Ampere, from which on GPUs multiply in TF32.
pub const AMPERE: u32 = 80;

/// Where the figures of a profile come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figures {
    /// Measured on such a device.
    Measured,
    /// Peaks of the maker's data sheet: no kernel reaches all of them.
    DataSheet,
    /// Peaks computed from the clocks and the units of the GPU that is there.
    Properties,
    /// Measured on this very device by `hypatia calibrate`.
    Calibrated,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Figures::Measured => "measured",
            Figures::DataSheet => "from its data sheet",
            Figures::Properties => "from the properties of this GPU",
            Figures::Calibrated => "calibrated on this device",
        })
    }
}

/// What the cost model knows about a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// The target's name.
    pub name: &'static str,
    /// Where its figures come from.
    pub figures: Figures,
    /// Compute capability as a number, 90 for sm_90; 0 for a host.
    pub sm: u32,
    /// Memory bandwidth in bytes per second.
    pub bandwidth: f64,
    /// Bytes that the last cache keeps from one kernel to the next; 0 if that is not counted.
    pub cache: f64,
    /// Bandwidth of what that cache holds, in bytes per second.
    pub cache_bandwidth: f64,
    /// Seconds from the end of one kernel to the start of the next.
    pub launch: f64,
    /// Seconds that a product's pipeline takes to fill and to empty; 0 on a host.
    pub ramp: f64,
    /// Multiprocessors, which share the tiles of a product; 1 for a host.
    pub units: f64,
    /// f32 operations per second outside of matrix units.
    pub vector: f64,
    /// Whether products round their f32 operands to TF32: 10 bits of mantissa, for up to seven
    /// times the speed. A run asks for that.
    pub tf32: bool,
    /// Operations per second of a matrix product, by the dtype of its operands.
    matrix: [(DType, f64); 6],
}

/// All profiles, in listing order.
static PROFILES: [Device; 7] = [CPU, H200, A100, H100, L40S, RTX4090, B200];

/// Rates of matrix products: of bf16 and f16, f32, f64, and of 8-bit integers.
const fn matrix([half, single, double, byte]: [f64; 4]) -> [(DType, f64); 6] {
    [
        (DType::BF16, half),
        (DType::F16, half),
        (DType::F32, single),
        (DType::F64, double),
        (DType::I8, byte),
        (DType::U8, byte),
    ]
}

/// Measured on one H200, and assumed for other GPUs.
const RAMP: f64 = 1.2e-6;

/// One NVIDIA H200 SXM. Measured: 8192-cubed products at 790 (bf16, f16) and 51 (f32) TFLOP/s, a
/// copy at 4.24 TB/s, a launch inside a CUDA graph 1 us, row-wise kernels on what the last cache
/// holds at 5.5 TB/s. From the data sheet: f64 (67, tensor cores), int8 (1979), and 67 TFLOP/s of
/// f32 outside of the tensor cores, 50 MB of cache, of which four fifths count.
const H200: Device = Device {
    name: "h200",
    figures: Figures::Measured,
    sm: 90,
    bandwidth: 4.24e12,
    cache: 40e6,
    cache_bandwidth: 5.5e12,
    launch: 1.0e-6,
    ramp: RAMP,
    units: 132.0,
    vector: 67e12,
    tf32: false,
    matrix: matrix([790e12, 51e12, 67e12, 1979e12]),
};

/// One NVIDIA A100 SXM 80 GB, from NVIDIA's A100 data sheet: 312 TFLOP/s (bf16, f16), 19.5 (f32;
/// f64 on tensor cores), 624 TOP/s (int8), 2.04 TB/s. The launch cost is assumed to equal the
/// H200's, as in all profiles from data sheets, and the cache to be as much faster than memory.
const A100: Device = Device {
    name: "a100",
    figures: Figures::DataSheet,
    sm: 80,
    bandwidth: 2.04e12,
    cache: 32e6,
    cache_bandwidth: 2.6e12,
    launch: 1.0e-6,
    ramp: RAMP,
    units: 108.0,
    vector: 19.5e12,
    tf32: false,
    matrix: matrix([312e12, 19.5e12, 19.5e12, 624e12]),
};

/// One NVIDIA H100 SXM, from NVIDIA's H100 data sheet, without sparsity: 989 TFLOP/s (bf16, f16),
/// 67 (f32; f64 on tensor cores), 1979 TOP/s (int8), 3.35 TB/s.
const H100: Device = Device {
    name: "h100",
    figures: Figures::DataSheet,
    sm: 90,
    bandwidth: 3.35e12,
    cache: 40e6,
    cache_bandwidth: 4.3e12,
    launch: 1.0e-6,
    ramp: RAMP,
    units: 132.0,
    vector: 67e12,
    tf32: false,
    matrix: matrix([989e12, 67e12, 67e12, 1979e12]),
};

/// One NVIDIA L40S, from NVIDIA's L40S data sheet, without sparsity: 362 TFLOP/s (bf16, f16), 91.6
/// (f32), 733 TOP/s (int8), 864 GB/s. f64 has a 64th of the rate of f32.
const L40S: Device = Device {
    name: "l40s",
    figures: Figures::DataSheet,
    sm: 89,
    bandwidth: 8.64e11,
    cache: 77e6,
    cache_bandwidth: 1.1e12,
    launch: 1.0e-6,
    ramp: RAMP,
    units: 142.0,
    vector: 91.6e12,
    tf32: false,
    matrix: matrix([362e12, 91.6e12, 1.43e12, 733e12]),
};

/// One NVIDIA GeForce RTX 4090, from NVIDIA's Ada whitepaper, without sparsity: 165 TFLOP/s (bf16,
/// f16, f32 accumulators), 82.6 (f32), 661 TOP/s (int8), 1.01 TB/s. f64 has a 64th of the rate of
/// f32.
const RTX4090: Device = Device {
    name: "rtx4090",
    figures: Figures::DataSheet,
    sm: 89,
    bandwidth: 1.008e12,
    cache: 58e6,
    cache_bandwidth: 1.3e12,
    launch: 1.0e-6,
    ramp: RAMP,
    units: 128.0,
    vector: 82.6e12,
    tf32: false,
    matrix: matrix([165e12, 82.6e12, 1.29e12, 661e12]),
};

/// One NVIDIA B200, from NVIDIA's data sheet of HGX B200, without sparsity: 2250 TFLOP/s (bf16,
/// f16), 75 (f32), 37 (f64 on tensor cores), 4500 TOP/s (int8), 7.7 TB/s.
const B200: Device = Device {
    name: "b200",
    figures: Figures::DataSheet,
    sm: 100,
    bandwidth: 7.7e12,
    cache: 100e6,
    cache_bandwidth: 10e12,
    launch: 1.0e-6,
    ramp: RAMP,
    units: 148.0,
    vector: 75e12,
    tf32: false,
    matrix: matrix([2250e12, 75e12, 37e12, 4500e12]),
};

/// A small host: two cores with AVX2 at 3 GHz (2 x 32 flop a cycle for f32, half for f64, f16 and
/// bf16 widened to f32), 20 GB/s. A "launch" is the handover of a step to the threads.
const CPU: Device = Device {
    name: "cpu",
    figures: Figures::Measured,
    sm: 0,
    bandwidth: 2.0e10,
    cache: 0.0,
    cache_bandwidth: 2.0e10,
    launch: 1.0e-6,
    ramp: 0.0,
    units: 1.0,
    vector: 5.0e10,
    tf32: false,
    matrix: matrix([1.0e11, 1.9e11, 9.6e10, 1.0e11]),
};

/// Rates that were measured on a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Memory bandwidth in bytes per second.
    pub bandwidth: f64,
    /// That of what the last cache holds; none on a host.
    #[serde(default)]
    pub cache_bandwidth: Option<f64>,
    /// Seconds of a launch.
    pub launch: f64,
    /// Seconds that a product takes besides; none on a host.
    #[serde(default)]
    pub ramp: Option<f64>,
    /// f32 operations per second outside of matrix units.
    pub vector: f64,
    /// Operations per second of a matrix product, by the dtype of its operands.
    pub matrix: Vec<(DType, f64)>,
}

/// How much faster than memory the last cache is, on an H200.
pub(crate) const CACHE_OVER_MEMORY: f64 = 1.3;

impl Device {
    /// Whether it is Hopper, whose matrix instructions (wgmma) multiply generated products of that
    /// type: of f32 only those that a run rounds to TF32.
    pub fn has_wgmma_of(&self, dtype: DType) -> bool {
        self.sm == HOPPER && (dtype != DType::F32 || self.tf32)
    }

    /// Bytes per second of that much traffic.
    pub fn bandwidth_of(&self, bytes: f64) -> f64 {
        if bytes <= self.cache { self.cache_bandwidth } else { self.bandwidth }
    }

    /// The same device with figures that were measured on it; those that were not measured stay.
    ///
    /// # Errors
    /// If a figure is not a positive number.
    pub fn calibrated(&self, rates: &Rates) -> Result<Device, String> {
        let all = [("bandwidth", rates.bandwidth), ("launch", rates.launch), ("vector", rates.vector)];
        let on_gpu = [("cache_bandwidth", rates.cache_bandwidth), ("ramp", rates.ramp)];
        let all = all.into_iter().chain(on_gpu.into_iter().filter_map(|(name, rate)| Some((name, rate?))));
        let named = rates.matrix.iter().map(|(dtype, rate)| (dtype.name(), *rate));
        if let Some((name, value)) = all.chain(named).find(|(_, v)| !(v.is_finite() && *v > 0.0)) {
            return Err(format!("the figure `{name}` must be a positive number, not {value}"));
        }
        let mut out = Device {
            figures: Figures::Calibrated,
            bandwidth: rates.bandwidth,
            cache_bandwidth: rates.cache_bandwidth.unwrap_or(self.cache_bandwidth),
            launch: rates.launch,
            ramp: rates.ramp.unwrap_or(self.ramp),
            vector: rates.vector,
            ..self.clone()
        };
        for (dtype, rate) in &mut out.matrix {
            if let Some((_, measured)) = rates.matrix.iter().find(|(d, _)| d == dtype) {
                *rate = *measured;
            }
        }
        Ok(out)
    }

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

    /// The profile that a GPU's name says: of its model, in the form whose figures are known.
    pub fn of_gpu(name: &str) -> Option<Device> {
        let plain: String = name.to_lowercase().chars().filter(char::is_ascii_alphanumeric).collect();
        // Slower forms of the same model.
        if ["pcie", "laptop", "maxq", "nvl", "mig"].iter().any(|form| plain.contains(form)) {
            return None;
        }
        PROFILES.iter().find(|d| !d.is_host() && plain.contains(d.name)).cloned()
    }

    /// The same device, whose products round f32 operands to TF32 if that is wanted and it can.
    #[must_use]
    pub fn with_tf32(self, wanted: bool) -> Device {
        Device { tf32: wanted && self.sm >= AMPERE, ..self }
    }

    /// Operations per second of a matrix product over operands of that type.
    pub fn matrix_rate(&self, dtype: DType) -> f64 {
        let rate = |dtype: DType| self.matrix.iter().find(|(d, _)| *d == dtype).map_or(self.vector, |(_, rate)| *rate);
        // TF32 has half the rate of 16 bits.
        if self.tf32 && dtype == DType::F32 { rate(dtype).max(rate(DType::BF16) / 2.0) } else { rate(dtype) }
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
            assert!(d.bandwidth > 0.0 && d.launch > 0.0 && d.vector > 0.0 && d.cache_bandwidth > 0.0);
            assert!(d.units >= 1.0 && d.ramp >= 0.0);
            assert!(DType::ALL.iter().all(|t| d.matrix_rate(*t) > 0.0));
        }
        assert!(Device::named("tpu").is_none());
        assert_eq!(Device::named("h200").unwrap().sm, 90);
    }

    #[test]
    fn measured_rates_replace_those_of_a_profile() {
        let h200 = Device::named("h200").unwrap();
        let rates = Rates {
            bandwidth: 4e12,
            cache_bandwidth: Some(6e12),
            launch: 2e-6,
            ramp: None,
            vector: 5e13,
            matrix: vec![(DType::F16, 7e14)],
        };
        let found = h200.calibrated(&rates).unwrap();
        assert_eq!((found.name, found.figures, found.launch), ("h200", Figures::Calibrated, 2e-6));
        assert_eq!((found.matrix_rate(DType::F16), found.matrix_rate(DType::BF16)), (7e14, 790e12));
        assert_eq!((found.bandwidth_of(1e6), found.bandwidth_of(1e9), found.ramp), (6e12, 4e12, h200.ramp));
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let why = h200.calibrated(&Rates { vector: bad, ..rates.clone() }).unwrap_err();
            assert!(why.contains("`vector`"), "{why}");
        }
    }

    #[test]
    fn a_gpus_name_says_its_profile() {
        let of = |name: &str| Device::of_gpu(name).map(|d| d.name);
        for (name, profile) in [
            ("NVIDIA H200", "h200"),
            ("NVIDIA H100 80GB HBM3", "h100"),
            ("NVIDIA A100-SXM4-80GB", "a100"),
            ("NVIDIA GeForce RTX 4090", "rtx4090"),
            ("NVIDIA L40S", "l40s"),
            ("NVIDIA B200", "b200"),
        ] {
            assert_eq!(of(name), Some(profile));
        }
        for other in ["NVIDIA H100 PCIe", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA L4", "NVIDIA H100 NVL", "cpu"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
