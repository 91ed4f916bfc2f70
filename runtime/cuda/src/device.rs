//! One GPU: its context, its library handle, and the memory and modules that all plans on it share.
//!
//! In: an ordinal. Out: an open [`Gpu`], one per device and process. Invariant: no function of the
//! driver or of cuBLASLt is called before both libraries are found and the driver is new enough, so
//! that a machine without them gets an error and not a panic; an error names the failing call.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::{CudaContext, CudaModule, CudaStream, result, sys};

use super::driver::{failed, missing, started};
use super::find::open_first;
use super::lt::Lt;
use super::memory::DeviceMemory;
use super::transpose::transpose;
use hypatia_target::device::Device;
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

/// An open GPU.
pub struct Gpu {
    ordinal: usize,
    context: Arc<CudaContext>,
    /// The stream for uploads.
    stream: Arc<CudaStream>,
    name: String,
    sm: u32,
    threads: u64,
    driver: i32,
    lt: Lt,
    modules: Mutex<HashMap<[u8; 32], Arc<CudaModule>>>,
    /// Machine code that was compiled ahead of time, until its module is loaded.
    codes: Mutex<HashMap<[u8; 32], Vec<u8>>>,
    /// By the address of the tensor, and whether it is transposed.
    weights: Mutex<HashMap<(usize, bool), Weak<Weight>>>,
}

/// A constant on the device. It keeps the host tensor alive, since the tensor's address is its key.
pub struct Weight {
    /// Its elements in the tensor's order, or, for a matrix, transposed.
    pub memory: DeviceMemory,
    _tensor: Arc<Tensor>,
}

/// The profile of a GPU without opening it: opening takes twice as long as the query.
///
/// # Errors
/// If there is no driver, or no such GPU.
pub fn profile(ordinal: usize) -> Result<Device> {
    started()?;
    let asked = |e| failed("cuDeviceGet", e);
    let device = result::device::get(i32::try_from(ordinal).unwrap_or(i32::MAX)).map_err(asked)?;
    let name = result::device::get_name(device).map_err(asked)?;
    use sys::CUdevice_attribute::*;
    // SAFETY: the device is one that the driver has just given.
    let number = |attribute| unsafe { result::device::get_attribute(device, attribute) }.map_err(asked);
    let major = number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok(profile_of(&name, capability(major, minor)))
}

/// 90 for 9.0.
fn capability(major: i32, minor: i32) -> u32 {
    (major * 10 + minor).unsigned_abs()
}

/// The profile of the same name, else that of the nearest older generation.
fn profile_of(name: &str, sm: u32) -> Device {
    let known = ["h200", "a100"].into_iter().find(|p| name.to_lowercase().contains(p));
    let known = known.unwrap_or(if sm >= 90 { "h200" } else { "a100" });
    let mut device = Device::named(known).unwrap_or_else(Device::cpu);
    device.sm = sm;
    device
}

impl Gpu {
    /// The GPU of that ordinal, opened once per process.
    pub fn open(ordinal: usize) -> Result<Arc<Gpu>> {
        static OPEN: Mutex<Vec<(usize, Weak<Gpu>)>> = Mutex::new(Vec::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = open.iter().find(|(o, _)| *o == ordinal).and_then(|(_, g)| g.upgrade()) {
            return Ok(gpu);
        }
        let gpu = Arc::new(Gpu::new(ordinal)?);
        open.retain(|(o, _)| *o != ordinal);
        open.push((ordinal, Arc::downgrade(&gpu)));
        Ok(gpu)
    }

    fn new(ordinal: usize) -> Result<Gpu> {
        let version = started()?;
        // The library loads while the context is created, which takes twice as long. In parallel
        // with the driver's initialisation it would delay that, which loads libraries too.
        let (library, context) = std::thread::scope(|scope| {
            let library = scope.spawn(|| {
                let found = open_first(&["libcublasLt.so.13", "libcublasLt.so.12"], &["libcublas.so."], &[]);
                found.map_err(|t| missing("cuBLASLt (libcublasLt.so.13 or .12)", &t))
            });
            let context = CudaContext::new(ordinal);
            (library.join(), context)
        });
        library.map_err(|_| Error::Internal("the thread that opens cuBLASLt was lost".into()))??;
        let context = context.map_err(|e| failed(&format!("opening GPU {ordinal}"), e))?;
        // SAFETY: it only tries to open the library.
        if !unsafe { cudarc::cublaslt::sys::is_culib_present() } {
            return Err(Error::Device("cuBLASLt was found but cannot be loaded by name".into()));
        }
        // SAFETY: this module orders all work itself: every buffer is used on one stream, or after
        // a synchronisation.
        unsafe { context.disable_event_tracking() };
        let name = context.name().map_err(|e| failed("cuDeviceGetName", e))?;
        let (major, minor) = context.compute_capability().map_err(|e| failed("cuDeviceGetAttribute", e))?;
        use sys::CUdevice_attribute::*;
        let count = |attribute| context.attribute(attribute).map_err(|e| failed("cuDeviceGetAttribute", e));
        let processors = count(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let threads = count(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?;
        let stream = context.new_stream().map_err(|e| failed("cuStreamCreate", e))?;
        let lt = Lt::new()?;
        Ok(Gpu {
            ordinal,
            context,
            stream,
            name,
            sm: capability(major, minor),
            threads: u64::from(processors.unsigned_abs()) * u64::from(threads.unsigned_abs()),
            driver: version,
            lt,
            modules: Mutex::default(),
            codes: Mutex::default(),
            weights: Mutex::default(),
        })
    }

    /// Its number according to the driver, from 0.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// Its name according to the driver.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Compute capability: 90 for 9.0.
    pub fn sm(&self) -> u32 {
        self.sm
    }

    /// Number of resident threads.
    pub fn threads(&self) -> u64 {
        self.threads
    }

    /// The CUDA version that the driver supports: 13000 is 13.0.
    pub fn driver(&self) -> i32 {
        self.driver
    }

    /// NVRTC's name of the architecture: the variant with architecture-specific instructions on
    /// Hopper and Blackwell.
    pub fn arch(&self) -> String {
        format!("sm_{}{}", self.sm, if self.sm >= 90 { "a" } else { "" })
    }

    /// Number of multiprocessors.
    pub fn multiprocessors(&self) -> usize {
        (self.threads / 2048).max(1) as usize
    }

    /// Whether the GPU supports thread block clusters with distributed shared memory.
    pub fn runs_clusters(&self) -> bool {
        self.sm >= 90
    }

    /// The profile for cost estimates: the one of the same name, else that of the nearest older
    /// generation.
    pub fn profile(&self) -> Device {
        profile_of(&self.name, self.sm)
    }

    /// Driver, compute capability and name as text.
    pub fn describe(&self) -> String {
        format!("{} (sm_{})", self.name, self.sm)
    }

    pub(super) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    pub(super) fn lt(&self) -> &Lt {
        &self.lt
    }

    /// A loaded module; `cubin` supplies the machine code if it is not loaded yet.
    pub(super) fn module(&self, key: [u8; 32], cubin: impl FnOnce() -> Result<Vec<u8>>) -> Result<Arc<CudaModule>> {
        if let Some(m) = self.modules.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(m.clone());
        }
        let image = cudarc::nvrtc::Ptx::from_binary(cubin()?);
        let module = self.context.load_module(image).map_err(|e| failed("cuModuleLoadData", e))?;
        self.modules.lock().unwrap_or_else(PoisonError::into_inner).insert(key, module.clone());
        Ok(module)
    }

    /// Takes machine code that was compiled ahead of time.
    pub(super) fn code(&self, key: &[u8; 32]) -> Option<Vec<u8>> {
        self.codes.lock().unwrap_or_else(PoisonError::into_inner).remove(key)
    }

    /// Keeps machine code for the plan that needs it.
    pub(super) fn keep_code(&self, key: [u8; 32], code: Vec<u8>) {
        self.codes.lock().unwrap_or_else(PoisonError::into_inner).insert(key, code);
    }

    /// True if that module is loaded.
    pub(super) fn has_module(&self, key: &[u8; 32]) -> bool {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner).contains_key(key)
    }

    /// A constant on the device, uploaded once and shared by all plans that use the same tensor.
    /// `transposed` requests the transpose of a matrix. The upload is complete once
    /// [`Gpu::uploaded`] returns.
    pub(super) fn weight(&self, tensor: &Arc<Tensor>, transposed: bool) -> Result<Arc<Weight>> {
        let key = |transposed| (Arc::as_ptr(tensor) as usize, transposed);
        let mut weights = self.weights.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(w) = weights.get(&key(transposed)).and_then(Weak::upgrade) {
            return Ok(w);
        }
        let memory = match (transposed, weights.get(&key(false)).and_then(Weak::upgrade)) {
            (false, _) => self.upload(tensor)?,
            (true, Some(given)) => self.transposed(tensor, &given.memory)?,
            (true, None) => self.transposed(tensor, &self.upload(tensor)?)?,
        };
        let weight = Arc::new(Weight { memory, _tensor: tensor.clone() });
        weights.retain(|_, w| w.strong_count() > 0);
        weights.insert(key(transposed), Arc::downgrade(&weight));
        Ok(weight)
    }

    fn upload(&self, tensor: &Tensor) -> Result<DeviceMemory> {
        let memory = DeviceMemory::new(&self.stream, tensor.bytes().len())?;
        memory.upload(tensor.bytes())?;
        Ok(memory)
    }

    /// Transposes a matrix in device memory.
    fn transposed(&self, tensor: &Tensor, given: &DeviceMemory) -> Result<DeviceMemory> {
        let &[rows, columns] = tensor.shape() else {
            return Err(Error::Internal(format!("a weight of shape {:?} is transposed", tensor.shape())));
        };
        let memory = DeviceMemory::new(&self.stream, tensor.bytes().len())?;
        let addresses = [given.address(), memory.address()];
        // SAFETY: both are as large as the tensor, and are freed on this stream, behind this
        // work.
        unsafe { transpose(&self.lt, &self.stream, tensor.dtype(), [rows, columns], addresses)? };
        Ok(memory)
    }

    /// Waits for the requested uploads of constants.
    pub(super) fn uploaded(&self) -> Result<()> {
        self.stream.synchronize().map_err(|e| failed("uploading the weights", e))
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gpu({})", self.describe())
    }
}
