//! One GPU: its context, its library handle, and the memory and modules that all plans on it share.
//!
//! In: an ordinal. Out: an open [`Gpu`], one per device and process. Invariant: no function of the
//! driver or of cuBLASLt is called before both libraries are found and the driver is new enough, so
//! that a machine without them gets an error and not a panic; an error names the failing call.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::{CudaContext, CudaModule, CudaStream, DriverError, result, sys};

use super::driver::{failed, missing, started};
use super::find::open_first;
use super::lt::Lt;
use super::memory::DeviceMemory;
use super::transpose::transpose;
use hypatia_target::device::{Device, Properties};
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
    profile: Device,
    multiprocessors: usize,
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
    let device = result::device::get(i32::try_from(ordinal).unwrap_or(i32::MAX)).map_err(|e| no_such(ordinal, e))?;
    let name = result::device::get_name(device).map_err(|e| failed("cuDeviceGetName", e))?;
    Ok(profile_of(&name, &properties(device)?))
}

/// The names of the GPUs, in the driver's order.
///
/// # Errors
/// If there is no driver.
pub fn names() -> Result<Vec<String>> {
    started()?;
    let count = result::device::get_count().map_err(|e| failed("cuDeviceGetCount", e))?;
    let name = |i| result::device::get_name(result::device::get(i)?);
    (0..count).map(|i| name(i).map_err(|e| failed("cuDeviceGetName", e))).collect()
}

/// Why there is no GPU of that number.
fn no_such(ordinal: usize, e: DriverError) -> Error {
    match names() {
        Ok(all) if ordinal >= all.len() => {
            let listed: Vec<String> = all.iter().enumerate().map(|(i, name)| format!("cuda:{i} ({name})")).collect();
            Error::Device(format!("there is no GPU cuda:{ordinal}; this machine has {}", listed.join(", ")))
        }
        _ => failed(&format!("opening GPU {ordinal}"), e),
    }
}

fn properties(device: sys::CUdevice) -> Result<Properties> {
    use sys::CUdevice_attribute::*;
    let number = |attribute| {
        // SAFETY: the device is one that the driver has given.
        unsafe { result::device::get_attribute(device, attribute) }.map_err(|e| failed("cuDeviceGetAttribute", e))
    };
    let sm = capability(
        number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    // In kHz; a driver that does not tell is no reason to fail.
    let clock = |attribute| number(attribute).map_or(0.0, |kilohertz| f64::from(kilohertz) * 1e3);
    Ok(Properties {
        sm,
        multiprocessors: number(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.unsigned_abs(),
        clock: clock(CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
        memory_clock: clock(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE),
        bus: number(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH).unwrap_or(0).unsigned_abs(),
    })
}

/// 90 for 9.0.
fn capability(major: i32, minor: i32) -> u32 {
    (major * 10 + minor).unsigned_abs()
}

/// The profile of that model, else one from its properties, else that of an older generation.
fn profile_of(name: &str, properties: &Properties) -> Device {
    let older = || Device::named(if properties.sm >= 90 { "h100" } else { "a100" });
    let found = Device::of_gpu(name).or_else(|| properties.profile()).or_else(older);
    let mut device = found.unwrap_or_else(Device::cpu);
    device.sm = properties.sm;
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
        let context = context.map_err(|e| no_such(ordinal, e))?;
        // SAFETY: it only tries to open the library.
        if !unsafe { cudarc::cublaslt::sys::is_culib_present() } {
            return Err(Error::Device("cuBLASLt was found but cannot be loaded by name".into()));
        }
        // SAFETY: this module orders all work itself: every buffer is used on one stream, or after
        // a synchronisation.
        unsafe { context.disable_event_tracking() };
        let name = context.name().map_err(|e| failed("cuDeviceGetName", e))?;
        let properties = properties(context.cu_device())?;
        let profile = profile_of(&name, &properties);
        use sys::CUdevice_attribute::*;
        let count = |attribute| context.attribute(attribute).map_err(|e| failed("cuDeviceGetAttribute", e));
        let threads = count(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?;
        let stream = context.new_stream().map_err(|e| failed("cuStreamCreate", e))?;
        let lt = Lt::new()?;
        Ok(Gpu {
            ordinal,
            context,
            stream,
            profile,
            name,
            sm: properties.sm,
            multiprocessors: properties.multiprocessors.max(1) as usize,
            threads: u64::from(properties.multiprocessors) * u64::from(threads.unsigned_abs()),
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
        self.multiprocessors
    }

    /// Whether the GPU supports thread block clusters with distributed shared memory.
    pub fn runs_clusters(&self) -> bool {
        self.sm >= 90
    }

    /// Whether a kernel can be launched while the one before it still runs, in a captured graph
    /// too.
    pub fn overlaps_kernels(&self) -> bool {
        self.sm >= 90 && self.driver >= 12_030
    }

    /// The profile for cost estimates: that of its model, else one from its properties.
    pub fn profile(&self) -> Device {
        self.profile.clone()
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
        // SAFETY: both are as large as the tensor, and are freed on this stream, after this
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
