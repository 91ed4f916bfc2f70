//! NVRTC: compiles CUDA C++ to machine code for one architecture, with or without a GPU.
//!
//! In: a source of `hypatia-templates` and an architecture such as `sm_90a`. Out: a cubin and the
//! compiler's log. Invariant: loading never panics and never links; a failure names every place
//! that was tried. Sources come from our templates and may include only the headers cuda_fp16.h and
//! cuda_bf16.h.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use hypatia_templates::cuda::NVRTC_OPTIONS;

use super::find::{Library, Tried, open_first};
use hypatia_cache::{HEADERS, cache_folder, children, is_sealed, private_folder, seal};

/// Why there is no cubin.
#[derive(Clone, Debug)]
pub enum NvrtcError {
    /// The library was not found.
    NotFound(Vec<Tried>),
    /// The library was found, but is not a supported NVRTC.
    Unusable {
        /// The library.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The headers that half-precision kernels need were not found.
    NoHeaders(String),
    /// An architecture that this NVRTC does not support.
    UnknownArch {
        /// The requested architecture.
        arch: String,
        /// The supported architectures.
        known: Vec<String>,
    },
    /// The source does not compile.
    Compile {
        /// The file.
        name: String,
        /// The architecture.
        arch: String,
        /// The compiler's log.
        log: String,
    },
    /// A call failed.
    Call {
        /// The function.
        function: &'static str,
        /// NVRTC's name for the error.
        error: String,
    },
}

impl fmt::Display for NvrtcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NvrtcError::NotFound(tried) => {
                writeln!(f, "NVRTC (libnvrtc.so.13 or .12) was not found. Tried:")?;
                for t in tried {
                    writeln!(f, "  {}: {}", t.location, t.reason)?;
                }
                write!(
                    f,
                    "Install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc`, and name the folder in \
                     HYPATIA_CUDA_PATH"
                )
            }
            NvrtcError::Unusable { path, reason } => write!(f, "{}: {reason}", path.display()),
            NvrtcError::NoHeaders(why) => write!(f, "cuda_fp16.h and cuda_bf16.h were not found: {why}"),
            NvrtcError::UnknownArch { arch, known } => {
                write!(f, "this NVRTC does not know the architecture {arch}; it knows {}", known.join(", "))
            }
            NvrtcError::Compile { name, arch, log } => write!(f, "{name} does not compile for {arch}:\n{log}"),
            NvrtcError::Call { function, error } => write!(f, "{function}: {error}"),
        }
    }
}

impl std::error::Error for NvrtcError {}

impl From<NvrtcError> for hypatia_tensor::error::Error {
    fn from(e: NvrtcError) -> hypatia_tensor::error::Error {
        hypatia_tensor::error::Error::Device(e.to_string())
    }
}

/// Machine code for one architecture.
#[derive(Clone, Debug)]
pub struct Cubin {
    /// The ELF file.
    pub bytes: Vec<u8>,
    /// Warnings; usually empty.
    pub log: String,
}

/// `nvrtcProgram`.
type Program = *mut c_void;
/// `nvrtcResult`.
type Status = c_int;

/// The functions of nvrtc.h that are used, with their types.
struct Api {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status,
    error_string: unsafe extern "C" fn(Status) -> *const c_char,
    num_archs: unsafe extern "C" fn(*mut c_int) -> Status,
    archs: unsafe extern "C" fn(*mut c_int) -> Status,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    destroy: unsafe extern "C" fn(*mut Program) -> Status,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Status,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    log: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    /// Since 13.3.
    install_headers: Option<unsafe extern "C" fn(*const c_char, c_uint, *mut *const c_char) -> Status>,
}

/// The oldest version that supports all instructions of the kernels: `st.async` (PTX 8.1).
const OLDEST: (i32, i32) = (12, 1);

/// The loaded compiler. All functions are thread-safe.
pub struct Nvrtc {
    library: Library,
    api: Api,
    version: (i32, i32),
    archs: Vec<i32>,
    headers: OnceLock<Result<PathBuf, String>>,
}

impl Nvrtc {
    /// The compiler of this process, loaded once and never unloaded.
    pub fn get() -> Result<Arc<Nvrtc>, NvrtcError> {
        static SHARED: OnceLock<Result<Arc<Nvrtc>, NvrtcError>> = OnceLock::new();
        SHARED.get_or_init(|| Nvrtc::find(&[]).map(Arc::new)).clone()
    }

    /// Searches these folders, then the usual places of CUDA.
    pub fn find(first: &[PathBuf]) -> Result<Nvrtc, NvrtcError> {
        let library = open_first(&["libnvrtc.so.13", "libnvrtc.so.12"], &["libnvrtc-builtins.so."], first)
            .map_err(NvrtcError::NotFound)?;
        let unusable = |reason: String| NvrtcError::Unusable { path: library.path.clone(), reason };
        let api = Api::load(&library).map_err(unusable)?;
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: both functions write through the given pointers to integers, which are valid.
        unsafe {
            api.check("nvrtcVersion", (api.version)(&mut major, &mut minor))?;
            api.check("nvrtcGetNumSupportedArchs", (api.num_archs)(&mut count))?;
        }
        if (major, minor) < OLDEST {
            let (needed, lacking) = OLDEST;
            return Err(unusable(format!("it is NVRTC {major}.{minor}, and {needed}.{lacking} or newer is needed")));
        }
        let mut archs = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: the array has as many entries as the library said that it writes.
        unsafe { api.check("nvrtcGetSupportedArchs", (api.archs)(archs.as_mut_ptr()))? };
        Ok(Nvrtc { library, api, version: (major, minor), archs, headers: OnceLock::new() })
    }

    /// Major and minor version.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The library's file, and why its folder was searched.
    pub fn library(&self) -> (&Path, &'static str) {
        (&self.library.path, self.library.origin)
    }

    /// The supported architectures: 80, 90, ...
    pub fn archs(&self) -> &[i32] {
        &self.archs
    }

    /// The folder with cuda_fp16.h and cuda_bf16.h: beside the library, in a toolkit, or extracted
    /// from the library into the user's cache folder.
    pub fn headers(&self) -> Result<&Path, NvrtcError> {
        let found = self
            .headers
            .get_or_init(|| toolkit_headers(&self.library.path).map(Ok).unwrap_or_else(|| self.bundled_headers()));
        match found {
            Ok(path) => Ok(path),
            Err(why) => Err(NvrtcError::NoHeaders(why.clone())),
        }
    }

    /// Compiles a source to a cubin. `name` is the file name in the log.
    pub fn compile(&self, source: &str, name: &str, arch: &str) -> Result<Cubin, NvrtcError> {
        let (program, log) = self.program(source, name, arch)?;
        Ok(Cubin { bytes: program.cubin()?, log })
    }

    /// A compiled program and its log.
    fn program(&self, source: &str, name: &str, arch: &str) -> Result<(Handle<'_>, String), NvrtcError> {
        let known = arch.strip_prefix("sm_").and_then(|a| a.trim_end_matches(['a', 'f']).parse().ok());
        if !known.is_some_and(|a: i32| self.archs.contains(&a)) {
            let known = self.archs.iter().map(|a| format!("sm_{a}")).collect();
            return Err(NvrtcError::UnknownArch { arch: arch.into(), known });
        }
        let mut options = vec![format!("--gpu-architecture={arch}")];
        options.extend(NVRTC_OPTIONS.iter().map(|o| o.to_string()));
        if source.contains("#include") {
            options.push(format!("--include-path={}", self.headers()?.display()));
        }
        let text = |s: &str| {
            CString::new(s)
                .map_err(|_| NvrtcError::Call { function: "nvrtcCreateProgram", error: "a NUL in the text".into() })
        };
        let (source, c_name) = (text(source)?, text(name)?);
        let options: Vec<CString> = options.iter().map(|o| text(o)).collect::<Result<_, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let program = Handle::create(&self.api, &source, &c_name)?;
        // SAFETY: the program is alive, and the array holds as many valid C strings as stated.
        let status = unsafe { (self.api.compile)(program.raw, pointers.len() as c_int, pointers.as_ptr()) };
        let log = program.log()?;
        if status != 0 {
            return Err(NvrtcError::Compile { name: name.into(), arch: arch.into(), log });
        }
        Ok((program, log))
    }

    /// Extracts the headers that the library contains, once per version. The folder is private to
    /// the user, and appears complete or not at all.
    fn bundled_headers(&self) -> Result<PathBuf, String> {
        self.headers_in(&cache_folder()?)
    }

    fn headers_in(&self, cache: &Path) -> Result<PathBuf, String> {
        let Some(install) = self.api.install_headers else {
            return Err("no toolkit is installed, and this NVRTC carries no headers (13.3 and later do)".into());
        };
        let folder = cache.join(format!("{HEADERS}{}.{}", self.version.0, self.version.1));
        if std::fs::symlink_metadata(&folder).is_ok() {
            // The contents are compiled, so they must be private to the user, like the cache, and
            // unmodified.
            private_folder(&folder)?;
            if is_sealed(&folder) {
                return Ok(folder);
            }
            let _ = std::fs::remove_dir_all(&folder);
        }
        remove_leftovers(cache);
        let temporary = cache.join(format!(".{HEADERS}{}-{}", std::process::id(), thread_tag()));
        private_folder(&temporary)?;
        let path = CString::new(temporary.display().to_string()).map_err(|e| e.to_string())?;
        let mut log: *const c_char = std::ptr::null();
        // SAFETY: the path is a valid C string; the log pointer may be written and, if it is not
        // null, points to a string that the library owns.
        let (status, log) = unsafe {
            let status = install(path.as_ptr(), 0, &mut log);
            (status, if log.is_null() { String::new() } else { CStr::from_ptr(log).to_string_lossy().into_owned() })
        };
        let done = if status != 0 {
            Err(format!("NVRTC could not write its headers to {}: {log}", temporary.display()))
        } else if let Err(e) = seal(&temporary) {
            Err(format!("{}: {e}", temporary.display()))
        } else if std::fs::rename(&temporary, &folder).is_ok() || is_sealed(&folder) {
            Ok(folder)
        } else {
            Err(format!("cannot rename {} to {}", temporary.display(), folder.display()))
        };
        if temporary.exists() {
            // Another process was faster, or the rename failed: the temporary folder is useless.
            let _ = std::fs::remove_dir_all(&temporary);
        }
        done
    }
}

impl fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NVRTC {}.{} ({})", self.version.0, self.version.1, self.library.path.display())
    }
}

impl Api {
    fn load(l: &Library) -> Result<Api, String> {
        // SAFETY: each field has the type that nvrtc.h declares for the function of that name, and
        // they have been the same since CUDA 11.1.
        unsafe {
            Ok(Api {
                version: l.function("nvrtcVersion")?,
                error_string: l.function("nvrtcGetErrorString")?,
                num_archs: l.function("nvrtcGetNumSupportedArchs")?,
                archs: l.function("nvrtcGetSupportedArchs")?,
                create: l.function("nvrtcCreateProgram")?,
                destroy: l.function("nvrtcDestroyProgram")?,
                compile: l.function("nvrtcCompileProgram")?,
                log_size: l.function("nvrtcGetProgramLogSize")?,
                log: l.function("nvrtcGetProgramLog")?,
                cubin_size: l.function("nvrtcGetCUBINSize")?,
                cubin: l.function("nvrtcGetCUBIN")?,
                install_headers: l.function("nvrtcInstallBundledHeaders").ok(),
            })
        }
    }

    fn check(&self, function: &'static str, status: Status) -> Result<(), NvrtcError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the function takes any status and returns a static string.
        let error = unsafe {
            let text = (self.error_string)(status);
            if text.is_null() { format!("error {status}") } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
        };
        Err(NvrtcError::Call { function, error })
    }
}

/// An NVRTC program; destroyed on drop.
struct Handle<'a> {
    api: &'a Api,
    raw: Program,
}

impl<'a> Handle<'a> {
    fn create(api: &'a Api, source: &CStr, name: &CStr) -> Result<Handle<'a>, NvrtcError> {
        let mut raw: Program = std::ptr::null_mut();
        // SAFETY: both strings end with NUL and outlive the call (NVRTC copies them); no headers
        // are given, so their arrays may be null.
        let status =
            unsafe { (api.create)(&mut raw, source.as_ptr(), name.as_ptr(), 0, std::ptr::null(), std::ptr::null()) };
        api.check("nvrtcCreateProgram", status)?;
        Ok(Handle { api, raw })
    }

    fn log(&self) -> Result<String, NvrtcError> {
        let mut size = 0usize;
        // SAFETY: the program is alive and the pointer valid.
        self.api.check("nvrtcGetProgramLogSize", unsafe { (self.api.log_size)(self.raw, &mut size) })?;
        let mut bytes = vec![0u8; size.max(1)];
        // SAFETY: the buffer has the size that was asked for.
        self.api.check("nvrtcGetProgramLog", unsafe { (self.api.log)(self.raw, bytes.as_mut_ptr().cast()) })?;
        let text = CStr::from_bytes_until_nul(&bytes).map(|c| c.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(text.trim_end().to_string())
    }

    fn cubin(&self) -> Result<Vec<u8>, NvrtcError> {
        let mut size = 0usize;
        // SAFETY: the program is alive and the pointer valid.
        self.api.check("nvrtcGetCUBINSize", unsafe { (self.api.cubin_size)(self.raw, &mut size) })?;
        let mut bytes = vec![0u8; size];
        // SAFETY: the buffer has the size that was asked for.
        self.api.check("nvrtcGetCUBIN", unsafe { (self.api.cubin)(self.raw, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        // SAFETY: the program was created and is destroyed once, here. A failure leaks it.
        let _ = unsafe { (self.api.destroy)(&mut self.raw) };
    }
}

/// The folder with the headers of the library's toolkit, or of any other toolkit.
fn toolkit_headers(library: &Path) -> Option<PathBuf> {
    let mut folders: Vec<PathBuf> = library.ancestors().skip(1).take(4).map(|a| a.join("include")).collect();
    for folder in super::find::search_folders() {
        folders.extend(folder.path.ancestors().take(4).map(|a| a.join("include")));
        // Python wheels keep the headers in a separate package.
        folders.extend(folder.path.ancestors().nth(2).map(|a| a.join("cuda_runtime/include")));
    }
    folders.into_iter().find(|f| f.join("cuda_fp16.h").is_file() && f.join("cuda_bf16.h").is_file())
}

/// Removes leftovers of processes that were killed while they wrote headers: folders older than any
/// such write can take.
fn remove_leftovers(cache: &Path) {
    for path in children(cache, &format!(".{HEADERS}")) {
        let age = std::fs::symlink_metadata(&path).and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
        if age.is_some_and(|age| age.as_secs() > 3600) {
            // Another process may have removed it first.
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

fn thread_tag() -> String {
    format!("{:?}", std::thread::current().id()).chars().filter(char::is_ascii_digit).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use hypatia_dsl::dtype::DType;
    use hypatia_templates::cuda::ArgKind;

    use super::*;
    use crate::lowering::step_kernels;
    use crate::steps::elementwise;
    use hypatia_graph::Graph;
    use hypatia_plan::Options;
    use hypatia_target::device::Device;
    use hypatia_testing::ty;

    /// The compiler that `tools/fetch_nvrtc.sh` installs, or any other. `None` is reported, and the
    /// test is skipped.
    fn compiler() -> Option<Nvrtc> {
        let local = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/nvrtc");
        match Nvrtc::find(&[local]) {
            Ok(n) => Some(n),
            Err(e) => {
                eprintln!("SKIPPED: {e}");
                None
            }
        }
    }

    #[test]
    fn compiles_with_and_without_headers() {
        let Some(n) = compiler() else { return };
        for source in [
            "extern \"C\" __global__ void k(float* p) { p[0] = erff(p[1]); }",
            "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n\
             extern \"C\" __global__ void k(__half* p) { p[0] = __float2half_rn(1.5f); }",
        ] {
            let cubin = n.compile(source, "k.cu", "sm_80").unwrap();
            assert_eq!(&cubin.bytes[..4], b"\x7fELF");
            assert_eq!(cubin.bytes, n.compile(source, "k.cu", "sm_80").unwrap().bytes, "not reproducible");
        }
    }

    /// The PTX of a source.
    fn ptx(n: &Nvrtc, source: &str) -> String {
        type Size = unsafe extern "C" fn(Program, *mut usize) -> Status;
        type Text = unsafe extern "C" fn(Program, *mut c_char) -> Status;
        let (program, _) = n.program(source, "k.cu", "sm_90a").unwrap();
        let mut size = 0;
        // SAFETY: both functions have the types that nvrtc.h declares; the buffer is as large as
        // the first one says.
        unsafe {
            let (get_size, get) =
                (n.library.function::<Size>("nvrtcGetPTXSize"), n.library.function::<Text>("nvrtcGetPTX"));
            assert_eq!(get_size.unwrap()(program.raw, &mut size), 0);
            let mut bytes = vec![0u8; size];
            assert_eq!(get.unwrap()(program.raw, bytes.as_mut_ptr().cast()), 0);
            CStr::from_bytes_until_nul(&bytes).unwrap().to_string_lossy().into_owned()
        }
    }

    /// The compiler splits vector accesses into elements if it cannot prove alignment. A pass then
    /// takes three times as long.
    #[test]
    fn packs_of_pointwise_kernels_are_read_and_written_whole() {
        let Some(n) = compiler() else { return };
        let program = hypatia_library::load(&[]).unwrap();
        // `ld.global.v4.u32`; for 8-byte words, vectors of two.
        let packs = |ptx: &str, what: &str| {
            let is_pack =
                |l: &&str| l.contains(".v4.") || l.contains(".v2.") && l.split_whitespace().any(|w| w.ends_with("64"));
            ptx.lines().filter(|l| l.contains(what)).filter(is_pack).count()
        };
        let mut kernels = BTreeSet::new();
        // With a bias, rows and columns, otherwise one flat array; one vector per thread, and two.
        let variants = [(true, 1), (false, 1), (false, 2)];
        for (dtype, (biased, share)) in
            [DType::F32, DType::F16, DType::BF16, DType::F64].map(|d| variants.map(|v| (d, v))).concat()
        {
            let rows = 4096;
            let threads = (rows * 2048 * dtype.size() / 16 / share) as u64;
            let mut g = Graph::new(program.clone());
            let [x, y, bias] = [&[rows, 2048][..], &[rows, 2048], &[2048]].map(|s| g.input("x", ty(dtype, s)));
            let one = g.call("silu", &[x], &[]).unwrap()[0];
            let two = g.call("mul", &[one, y], &[]).unwrap()[0];
            let last = if biased { g.call("add", &[two, bias], &[]).unwrap()[0] } else { two };
            [one, last].into_iter().enumerate().for_each(|(i, v)| g.output(format!("o{i}"), v));
            let options = Options::new(Device::named("h200").unwrap());
            let plan = hypatia_pipeline::plan(&g, &options).unwrap();
            for (body, work) in plan.steps.iter().flat_map(step_kernels) {
                let source = elementwise(&plan.program, &body, &work, threads).unwrap();
                let ptx = ptx(&n, &source.text);
                let args = |test: fn(&ArgKind) -> bool| source.args.iter().filter(|a| test(&a.kind)).count();
                let [read, written] =
                    [args(|k| matches!(k, ArgKind::Input(_))), args(|k| matches!(k, ArgKind::Output(_)))];
                let whole = packs(&ptx, "ld.global") >= read && packs(&ptx, "st.global") >= written;
                assert!(whole, "{dtype}, {biased}, {share} packs:\n{}\n{ptx}", source.text);
                kernels.insert(source.text);
            }
        }
        assert!(kernels.iter().any(|k| k.contains("U = 2;")) && kernels.len() >= 12, "{} kernels", kernels.len());
    }

    /// Modified headers in the cache are rewritten before any compilation uses them.
    #[test]
    fn changed_headers_are_written_again() {
        let Some(n) = compiler() else { return };
        if n.api.install_headers.is_none() {
            return eprintln!("SKIPPED: this NVRTC carries no headers");
        }
        let cache = tempfile::tempdir().unwrap();
        let folder = n.headers_in(cache.path()).unwrap();
        let header = folder.join("cuda_bf16.h");
        let good = std::fs::read(&header).unwrap();
        let left = cache.path().join(format!(".{HEADERS}1-1"));
        std::fs::create_dir(&left).unwrap();
        std::fs::write(&header, [&good[..], b"\n"].concat()).unwrap();
        assert_eq!(n.headers_in(cache.path()).unwrap(), folder);
        assert_eq!(std::fs::read(&header).unwrap(), good);
        assert!(left.exists(), "a young one may be another process's");
        let old = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
        std::fs::File::open(&left).unwrap().set_modified(old).unwrap();
        std::fs::remove_file(&header).unwrap();
        assert!(n.headers_in(cache.path()).is_ok() && header.is_file() && !left.exists());
    }

    #[test]
    fn errors_name_the_users_line_and_the_known_architectures() {
        let Some(n) = compiler() else { return };
        let e = n.compile("#line 7 \"my.hyp\"\n!", "k.cu", "sm_90a").unwrap_err().to_string();
        assert!(e.contains("my.hyp(7)"), "{e}");
        let e = n.compile("", "k.cu", "sm_12345").unwrap_err().to_string();
        assert!(e.contains("sm_80"), "{e}");
    }
}
