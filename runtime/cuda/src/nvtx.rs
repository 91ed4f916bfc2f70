//! NVTX ranges: names on the host's timeline for NVIDIA's profilers.
//!
//! In: [`enable`], once, at the user's request; names. Out: [`Range`]s, which end on drop.
//! Invariant: without `enable` a range costs one load and does nothing; the ranges of a thread are
//! nested, since they cannot leave it.

use std::ffi::{CString, c_char, c_int};
use std::marker::PhantomData;
use std::sync::OnceLock;

use super::find::open_first;
use hypatia_tensor::error::{Error, Result};

/// The interop library for languages other than C, and its predecessor up to CUDA 12.
const NAMES: [&str; 2] = ["libnvtx3interop.so.1", "libnvToolsExt.so.1"];

struct Nvtx {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
}

static NVTX: OnceLock<Nvtx> = OnceLock::new();

/// Loads NVTX. From now on, ranges are reported to an attached profiler.
///
/// # Errors
/// If NVTX is not found.
pub fn enable() -> Result<()> {
    if NVTX.get().is_some() {
        return Ok(());
    }
    let library = open_first(&NAMES, &[], &[]).map_err(|tried| {
        let locations: Vec<String> = tried.iter().map(|t| format!("{}: {}", t.location, t.reason)).collect();
        Error::Device(format!(
            "NVTX ({}) was not found; it comes with the CUDA toolkit and the Python package nvidia-nvtx. Tried:\n  {}",
            NAMES.join(" or "),
            locations.join("\n  ")
        ))
    })?;
    let wrong = |reason| Error::Device(format!("{}: {reason}", library.path.display()));
    // SAFETY: the types are those of nvToolsExt.h for these names.
    let (push, pop) = unsafe {
        (library.function("nvtxRangePushA").map_err(wrong)?, library.function("nvtxRangePop").map_err(wrong)?)
    };
    // Another thread may have been faster, with the same library.
    let _ = NVTX.set(Nvtx { push, pop });
    Ok(())
}

/// A named range; it ends on drop.
#[must_use = "a range ends when it is dropped"]
pub struct Range {
    nvtx: Option<&'static Nvtx>,
    /// A range must end on the thread on which it began.
    _here: PhantomData<*const ()>,
}

/// Begins a range of this name, if [`enable`] was called.
pub fn range(name: &str) -> Range {
    let begin = |nvtx: &'static Nvtx| {
        let name = CString::new(name.replace('\0', " ")).unwrap_or_default();
        // SAFETY: the name ends with a NUL and lives through the call, which copies it.
        unsafe { (nvtx.push)(name.as_ptr()) };
        nvtx
    };
    Range { nvtx: NVTX.get().map(begin), _here: PhantomData }
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Some(nvtx) = self.nvtx {
            // SAFETY: it takes nothing; this thread has a range open, the one begun last, since
            // ranges are dropped in the reverse order of their scopes, and a surplus call is
            // defined to do nothing but return an error.
            unsafe { (nvtx.pop)() };
        }
    }
}
