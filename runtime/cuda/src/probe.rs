//! Detects the parts of CUDA on this machine: the driver and its devices, NVRTC, cuBLASLt.
//!
//! In: nothing. Out: for each library its path and version, or why it is unusable. Invariant:
//! probing creates no context and never panics.

use std::ffi::{CStr, c_char, c_int};

use super::find::{Library, Tried, open_first};
use super::nvrtc::Nvrtc;

/// A library that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its file, or the name that the system's loader resolved.
    pub path: String,
    /// Why its folder was searched.
    pub origin: &'static str,
    /// Its version.
    pub version: String,
    /// Details: devices of the driver, architectures of NVRTC.
    pub details: Vec<String>,
}

/// Why a library is unusable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The reason, as one sentence.
    pub reason: String,
    /// Every place that was tried.
    pub tried: Vec<Tried>,
}

/// A library, or why it is unusable.
pub type Probe = Result<Found, Missing>;

fn missing(reason: impl Into<String>) -> Missing {
    Missing { reason: reason.into(), tried: Vec::new() }
}

fn not_found(what: &str, tried: Vec<Tried>) -> Missing {
    Missing { reason: format!("{what} was not found"), tried }
}

/// NVIDIA's driver and its devices.
pub fn driver() -> Probe {
    type Init = unsafe extern "C" fn(u32) -> c_int;
    type Count = unsafe extern "C" fn(*mut c_int) -> c_int;
    type Name = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
    type Attribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;
    let lib = open_first(&["libcuda.so.1"], &[], &[]).map_err(|t| not_found("NVIDIA's driver (libcuda.so.1)", t))?;
    // SAFETY: the types are those of cuda.h for these names.
    let (init, version, count, name, attribute) = unsafe {
        (
            lib.function::<Init>("cuInit").map_err(missing)?,
            lib.function::<Count>("cuDriverGetVersion").map_err(missing)?,
            lib.function::<Count>("cuDeviceGetCount").map_err(missing)?,
            lib.function::<Name>("cuDeviceGetName").map_err(missing)?,
            lib.function::<Attribute>("cuDeviceGetAttribute").map_err(missing)?,
        )
    };
    let mut number = 0;
    // SAFETY: both take no pointers but a valid one to an integer.
    let started = unsafe {
        version(&mut number);
        init(0)
    };
    if started != 0 {
        return Err(missing(format!(
            "the driver is at {}, but does not start (cuInit returned {started}{})",
            lib.path.display(),
            if started == 100 { ": no device" } else { "" }
        )));
    }
    let mut devices = 0;
    // SAFETY: the pointer is valid; the driver has started.
    unsafe { count(&mut devices) };
    let details = (0..devices)
        .map(|device| {
            let mut text = [0u8; 128];
            let (mut major, mut minor) = (0, 0);
            // SAFETY: the buffer has the given size, one byte is kept for the NUL, the device
            // exists; 75 and 76 are CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
            unsafe {
                name(text.as_mut_ptr().cast(), 127, device);
                attribute(&mut major, 75, device);
                attribute(&mut minor, 76, device);
            }
            let name = CStr::from_bytes_until_nul(&text).map(|c| c.to_string_lossy().into_owned()).unwrap_or_default();
            format!("device {device}: {name}, sm_{major}{minor}")
        })
        .collect();
    Ok(found(&lib, cuda_version(number), details))
}

/// cuBLASLt.
pub fn cublaslt() -> Probe {
    type Version = unsafe extern "C" fn() -> usize;
    let names = ["libcublasLt.so.13", "libcublasLt.so.12"];
    let lib = open_first(&names, &["libcublas.so."], &[]).map_err(|t| not_found("cuBLASLt", t))?;
    // SAFETY: the type is that of cublasLt.h.
    let version = unsafe { lib.function::<Version>("cublasLtGetVersion").map_err(missing)?() };
    // 130100 is 13.1.0; version 12 used the same scheme.
    let text = format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100);
    Ok(found(&lib, text, Vec::new()))
}

/// NVRTC.
pub fn nvrtc() -> Probe {
    use super::nvrtc::NvrtcError;
    let n = match Nvrtc::get() {
        Ok(n) => n,
        Err(NvrtcError::NotFound(tried)) => return Err(not_found("NVRTC", tried)),
        Err(e) => return Err(missing(e.to_string())),
    };
    let (path, origin) = n.library();
    let archs: Vec<String> = n.archs().iter().map(|a| format!("sm_{a}")).collect();
    let headers = match n.headers() {
        Ok(path) => format!("headers: {}", path.display()),
        Err(e) => e.to_string(),
    };
    Ok(Found {
        path: path.display().to_string(),
        origin,
        version: format!("{}.{}", n.version().0, n.version().1),
        details: vec![format!("architectures: {}", archs.join(" ")), headers],
    })
}

fn found(lib: &Library, version: String, details: Vec<String>) -> Found {
    Found { path: lib.path.display().to_string(), origin: lib.origin, version, details }
}

/// 13000 is 13.0.
fn cuda_version(number: c_int) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}
