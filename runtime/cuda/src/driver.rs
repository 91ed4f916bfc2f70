//! NVIDIA's driver: finds and starts it, and describes its failures.
//!
//! In: nothing. Out: the driver's version, or an error that says what is missing and what to do.
//! Invariant: no function of the driver is called before its library is found; an error names the
//! failing call.

use cudarc::driver::{DriverError, result, sys};

use super::find::{Tried, open_first};
use hypatia_tensor::error::{Error, Result};

/// The oldest driver that can run the output of the oldest supported NVRTC: CUDA 12.1, driver
/// 530.30.
pub const MINIMUM_DRIVER: i32 = 12_010;

/// The error of a failing driver call.
pub(super) fn failed(call: &str, e: DriverError) -> Error {
    let name = e.error_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_else(|_| format!("{:?}", e.0));
    let text = e.error_string().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    use sys::cudaError_enum::*;
    let advice = match e.0 {
        CUDA_ERROR_OUT_OF_MEMORY => "; free memory on the device, use a smaller batch, or --device cpu",
        CUDA_ERROR_ILLEGAL_ADDRESS
        | CUDA_ERROR_LAUNCH_FAILED
        | CUDA_ERROR_MISALIGNED_ADDRESS
        | CUDA_ERROR_ILLEGAL_INSTRUCTION
        | CUDA_ERROR_ECC_UNCORRECTABLE => "; the device's context is lost: this process can no longer use the GPU",
        CUDA_ERROR_NO_DEVICE => "; no NVIDIA GPU is visible (CUDA_VISIBLE_DEVICES may hide it)",
        _ => "",
    };
    Error::Device(format!("{call}: {name}: {text}{advice}"))
}

pub(super) fn missing(what: &str, tried: &[Tried]) -> Error {
    let mut text = format!("{what} was not found. Tried:");
    for t in tried {
        text.push_str(&format!("\n  {}: {}", t.location, t.reason));
    }
    text.push_str("\nName its folder in HYPATIA_CUDA_PATH, or use --device cpu");
    Error::Device(text)
}

/// Initialises the driver, which must already be loaded. Returns the CUDA version that it supports.
fn driver() -> Result<i32> {
    // SAFETY: it only tries to open the library.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::Device("the driver was found but cannot be loaded by name".into()));
    }
    let mut version = 0;
    // SAFETY: the pointer is valid; the call needs no context.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(|e| failed("cuDriverGetVersion", e))?;
    if version < MINIMUM_DRIVER {
        let say = |v: i32| format!("{}.{}", v / 1000, v % 1000 / 10);
        return Err(Error::Device(format!(
            "the driver supports CUDA {}, Hypatia needs {} or newer (driver 530.30): update it, or use --device cpu",
            say(version),
            say(MINIMUM_DRIVER)
        )));
    }
    result::init().map_err(|e| failed("cuInit", e))?;
    Ok(version)
}

/// Loads and initialises the driver, unless that was already done. Returns the CUDA version that it
/// supports.
pub(super) fn started() -> Result<i32> {
    // The library is never closed and its symbols are global: cudarc finds it by its soname.
    open_first(&["libcuda.so.1"], &[], &[]).map_err(|t| missing("NVIDIA's driver (libcuda.so.1)", &t))?;
    driver()
}
