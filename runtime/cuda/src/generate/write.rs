//! The files of `hypatia gen`, and their manifest.
//!
//! In: kernel instances and a folder. Out: the files. Invariant: every kernel is printed and
//! compiled before anything is written; each file is written whole; the manifest is written
//! last.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::source::read_regular;
use hypatia_templates::cuda::{Arg, ArgKind, CudaSource, EmitError, Entry, Geometry, NVRTC_OPTIONS, identifier};
use hypatia_templates::launcher::{Launcher, launcher, tile_counts};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::{Instance, Skipped};
use crate::nvrtc::{Nvrtc, NvrtcError};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::file;

/// The contents of `manifest.json`. docs/manifest.md describes each field.
#[derive(Clone, Debug, Serialize)]
pub struct Manifest {
    /// Version of this schema.
    pub schema: u32,
    /// Name and version of the generator.
    pub generator: String,
    /// Compile options of every source, except the architecture.
    pub compile_options: Vec<String>,
    /// Version of the NVRTC that compiled the cubins, if there are any.
    pub nvrtc: Option<String>,
    /// One entry per kernel and element type.
    pub kernels: Vec<KernelEntry>,
    /// For a model: the launches in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepEntry>,
    /// For a model with sizes that are not known: the nodes whose kernel they decide.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<ChoiceEntry>,
    /// Declarations for which nothing was generated.
    pub skipped: Vec<SkippedEntry>,
}

/// A generated kernel.
#[derive(Clone, Debug, Serialize)]
pub struct KernelEntry {
    /// The declaration's name, as an identifier.
    pub kernel: String,
    /// What kind of kernel it is: docs/manifest.md lists them.
    pub kind: String,
    /// `file:line` of the declaration; empty for a model's kernels.
    pub origin: String,
    /// The element type.
    pub dtype: String,
    /// The formula that the kernel computes.
    pub formula: String,
    /// The CUDA C++ file.
    pub file: Option<String>,
    /// SHA-256 of the CUDA C++ text, in hex.
    pub sha256: String,
    /// The arguments of all entry points, in order.
    pub args: Vec<ArgEntry>,
    /// The entry points.
    pub entries: Vec<FunctionEntry>,
    /// Machine code, one entry per architecture.
    pub cubins: Vec<CubinEntry>,
    /// The C header that launches it, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// The Python module that launches it on PyTorch's tensors, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
}

/// An argument.
#[derive(Clone, Debug, Serialize)]
pub struct ArgEntry {
    /// Its name.
    pub name: String,
    /// `input`, `output` (device pointers), `size` (i64) or `sizes` (i64s by value).
    pub role: String,
    /// Element type of pointers, otherwise `i64`.
    pub dtype: String,
    /// Number of integers; 1 for pointers and sizes.
    pub count: usize,
    /// Its shape or meaning, as text.
    pub about: String,
}

/// An entry point.
#[derive(Clone, Debug, Serialize)]
pub struct FunctionEntry {
    /// The symbol.
    pub symbol: String,
    /// `flat`, `grid` or `rows`.
    pub geometry: String,
    /// Threads per block.
    pub block: u32,
    /// Vector width: elements per access (flat and grid).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vector: Option<u32>,
    /// Threads per row (rows).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads_per_row: Option<u32>,
    /// The longest row for which this entry point is the best (rows); absent if there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up_to: Option<u64>,
    /// Bytes of dynamic shared memory per launch.
    pub shared_memory: u32,
    /// The grid's x, y and z as C expressions over `rows`, `n` and the names of `launch`; `None` if
    /// the declaration describes the grid in words. A launch with a zero in its grid is skipped.
    pub grid: Option<[String; 3]>,
    /// The launch as formulas over the arguments.
    pub launch: String,
}

/// A launch of a model.
#[derive(Clone, Debug, Serialize)]
pub struct StepEntry {
    /// The nodes of the model that the step computes.
    pub step: String,
    /// The name of a kernel in this manifest; `None` for a library call or a step without a kernel.
    pub kernel: Option<String>,
    /// `kernel`, `library`, or `product and kernel` if a kernel post-processes the result of a
    /// library call.
    pub runs: String,
    /// Number of rows and row length, for the formulas of `grid`; `None` without a kernel.
    pub rows: Option<usize>,
    /// See `rows`.
    pub n: Option<usize>,
    /// Values of the kernel's arguments that are sizes and strides, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sizes: BTreeMap<String, Vec<i64>>,
}

/// A node of a model whose kernel depends on sizes that are not known.
#[derive(Clone, Debug, Serialize)]
pub struct ChoiceEntry {
    /// The name of the node or of its value.
    pub node: String,
    /// The kernels that may compute it, best first, with the conditions on sizes.
    pub kernels: Vec<String>,
}

/// Machine code.
#[derive(Clone, Debug, Serialize)]
pub struct CubinEntry {
    /// The architecture.
    pub arch: String,
    /// The file.
    pub file: String,
    /// SHA-256 of the file, in hex.
    pub sha256: String,
}

/// A declaration for which nothing was generated.
#[derive(Clone, Debug, Serialize)]
pub struct SkippedEntry {
    /// The declaration's name.
    pub kernel: String,
    /// The element type, if the reason concerns one.
    pub dtype: Option<String>,
    /// The reason.
    pub reason: String,
}

/// The input of [`write()`].
pub struct Request<'a> {
    /// The Program with the scalar functions that the kernels call.
    pub program: &'a Program,
    /// The kernels.
    pub instances: &'a [Instance],
    /// Declarations without kernels.
    pub skipped: Vec<Skipped>,
    /// For a model: the launches in order.
    pub steps: Vec<StepEntry>,
    /// For a model with sizes that are not known: the nodes whose kernel they decide.
    pub choices: Vec<ChoiceEntry>,
    /// Whether to write CUDA C++.
    pub cuda: bool,
    /// Whether to write launchers: a C header and a Python module for each kernel.
    pub launchers: bool,
    /// The compiler for cubins, and the architectures.
    pub cubins: Option<(&'a Nvrtc, &'a [String])>,
    /// Folder prefixes to redact: absolute paths that concern only the user, and their
    /// replacements.
    pub folders: &'a [(String, String)],
    /// Additional files: name and text.
    pub more: Vec<(String, String)>,
    /// Progress callback: the number of compiled cubins, and their total.
    pub progress: &'a (dyn Fn(usize, usize) + Sync),
}

/// The result of [`write()`].
#[derive(Clone, Debug)]
pub struct Written {
    /// The files in the order of writing.
    pub files: Vec<PathBuf>,
    /// The manifest.
    pub manifest: Manifest,
    /// Files of an earlier run that were removed.
    pub removed: Vec<PathBuf>,
}

/// The kernel files that an earlier run wrote, according to its manifest. Other files in the folder
/// are not ours.
fn earlier(folder: &Path) -> Vec<String> {
    let text = read_regular(&folder.join(MANIFEST), LARGEST_MANIFEST).unwrap_or_default();
    let Ok(json) = serde_json::from_slice::<serde_json::Value>(&text) else { return Vec::new() };
    let ours = json["generator"].as_str().is_some_and(|g| g.starts_with("hypatia "));
    let mut out = Vec::new();
    for kernel in json["kernels"].as_array().into_iter().flatten().filter(|_| ours) {
        let cubins = kernel["cubins"].as_array().into_iter().flatten();
        let files = std::iter::once(kernel).chain(cubins).map(|f| &f["file"]);
        let files = files.chain([&kernel["header"], &kernel["module"]]);
        out.extend(files.filter_map(|f| f.as_str()).map(str::to_string));
    }
    let plain = |f: &String| {
        let ours = [".cu", ".cubin", ".h", ".py"].iter().any(|end| f.ends_with(end));
        ours && Path::new(f).file_name().is_some_and(|n| n.to_str() == Some(f))
    };
    out.retain(plain);
    out
}

/// The file name of the manifest.
const MANIFEST: &str = "manifest.json";
/// Upper bound for the size of our manifests, in bytes.
const LARGEST_MANIFEST: u64 = 256 << 20;

/// Prints, compiles and writes everything. Removes kernels of an earlier run that are not generated
/// again.
pub fn write(request: Request<'_>, folder: &Path) -> Result<Written> {
    if folder.exists() && !folder.is_dir() {
        let what = "is a file; -o names a folder for the generated files";
        return Err(Error::Input(format!("{}: {what}", folder.display())));
    }
    let (sources, refused) = sources(&request)?;
    let cubins = match request.cubins {
        Some((nvrtc, archs)) => compile(nvrtc, &sources, archs, request.progress)?,
        None => Vec::new(),
    };
    let wanted = sources.iter().filter(|_| request.launchers);
    let launchers = wanted.map(|(instance, source)| launcher(&instance.body, source, &stem(instance)));
    let launchers: Vec<Launcher> =
        launchers.collect::<Result<_, EmitError>>().map_err(|e| Error::Internal(format!("a launcher: {e}")))?;

    std::fs::create_dir_all(folder).map_err(|source| Error::Io { path: folder.to_path_buf(), source })?;
    let earlier = earlier(folder);
    let mut out = Files { folder, written: Vec::new() };
    let mut kernels = Vec::new();
    for (i, (instance, source)) in sources.iter().enumerate() {
        let cubins = cubins.iter().filter(|(k, ..)| *k == i).map(|(_, arch, bytes)| (arch, bytes));
        kernels.push(out.kernel(&request, instance, source, cubins, launchers.get(i))?);
    }
    for (name, text) in &request.more {
        out.put(name, bare(text, request.folders).as_bytes())?;
    }
    let manifest = manifest(request, kernels, refused);
    let mut json = serde_json::to_string_pretty(&manifest).map_err(|e| Error::Internal(e.to_string()))?;
    json.push('\n');
    out.put(MANIFEST, json.as_bytes())?;
    let files = out.written;
    let stale = earlier.into_iter().map(|f| folder.join(f)).filter(|f| !files.contains(f));
    let removed = stale.filter(|f| std::fs::remove_file(f).is_ok()).collect();
    Ok(Written { files, manifest, removed })
}

/// Kernels with their sources.
type Emitted<'r> = Vec<(&'r Instance, CudaSource)>;

/// The source of each kernel, and what has none.
fn sources<'r>(request: &Request<'r>) -> Result<(Emitted<'r>, Vec<Skipped>)> {
    let (mut sources, mut refused) = (Vec::new(), Vec::new());
    for instance in request.instances {
        match instance.emit(request.program) {
            Ok(mut source) => {
                source.text = own_lines(&bare(&source.text, request.folders), &format!("{}.cu", stem(instance)));
                sources.push((instance, source));
            }
            // A template of the user's is invalid.
            Err(EmitError::Template(why)) if instance.kind == "template" => {
                return Err(Error::Input(format!("kernel `{}`, {why}", instance.kernel)));
            }
            Err(e) => refused.push(Skipped {
                kernel: instance.kernel.clone(),
                dtype: Some(instance.dtype),
                reason: e.to_string(),
            }),
        }
    }
    Ok((sources, refused))
}

/// The files of a folder that this run writes.
struct Files<'f> {
    folder: &'f Path,
    written: Vec<PathBuf>,
}

impl Files<'_> {
    fn put(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.folder.join(name);
        file::write(&path, |out| out.write_all(bytes))?;
        self.written.push(path);
        Ok(())
    }

    /// Writes the files of a kernel. Returns its entry in the manifest.
    fn kernel<'c>(
        &mut self,
        request: &Request<'_>,
        instance: &Instance,
        source: &CudaSource,
        cubins: impl Iterator<Item = (&'c String, &'c Vec<u8>)>,
        launcher: Option<&Launcher>,
    ) -> Result<KernelEntry> {
        let stem = stem(instance);
        let file = format!("{stem}.cu");
        if request.cuda {
            self.put(&file, source.text.as_bytes())?;
        }
        let mut of_kernel = Vec::new();
        for (arch, bytes) in cubins {
            let file = format!("{stem}.{arch}.cubin");
            self.put(&file, bytes)?;
            of_kernel.push(CubinEntry { arch: arch.clone(), file, sha256: hex(bytes) });
        }
        let mut entry = entry(instance, source, request.cuda.then_some(file), of_kernel);
        entry.origin = bare(&entry.origin, request.folders);
        entry.formula = bare(&entry.formula, request.folders);
        if let Some(launcher) = launcher {
            let (header, module) = (format!("{}.h", launcher.name), format!("{}.py", launcher.name));
            self.put(&header, bare(&launcher.header, request.folders).as_bytes())?;
            self.put(&module, bare(&launcher.module, request.folders).as_bytes())?;
            (entry.header, entry.module) = (Some(header), Some(module));
        }
        Ok(entry)
    }
}

/// What a run wrote.
fn manifest(request: Request<'_>, kernels: Vec<KernelEntry>, refused: Vec<Skipped>) -> Manifest {
    // A step knows sizes and strides that its kernel does not ask for.
    let mut steps = request.steps;
    for step in &mut steps {
        let kernel = kernels.iter().find(|k: &&KernelEntry| Some(&k.kernel) == step.kernel.as_ref());
        step.sizes.retain(|name, _| kernel.is_some_and(|k| k.args.iter().any(|a| a.name == *name)));
    }
    let entry = |s: Skipped| SkippedEntry { kernel: s.kernel, dtype: s.dtype.map(|d| d.to_string()), reason: s.reason };
    Manifest {
        schema: 1,
        generator: format!("hypatia {}", env!("CARGO_PKG_VERSION")),
        compile_options: NVRTC_OPTIONS.iter().map(|o| o.to_string()).collect(),
        nvrtc: request.cubins.map(|(n, _)| format!("{}.{}", n.version().0, n.version().1)),
        kernels,
        steps,
        choices: request.choices,
        skipped: request.skipped.into_iter().chain(refused).map(entry).collect(),
    }
}

/// The text with machine-specific folders replaced.
fn bare(text: &str, folders: &[(String, String)]) -> String {
    folders.iter().fold(text.to_string(), |text, (folder, instead)| text.replace(folder.as_str(), instead))
}

/// Rewrites the `#line` directives that refer to the source itself, so that they name its output
/// file.
fn own_lines(text: &str, file: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (i, line) in text.lines().enumerate() {
        match line.starts_with(&format!("#line {} \"", i + 2)) {
            true => out.push_str(&format!("#line {} \"{file}\"", i + 2)),
            false => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

/// `gelu.f32`
fn stem(instance: &Instance) -> String {
    format!("{}.{}", identifier("", &instance.kernel), instance.dtype)
}

/// The index of the source, the architecture, the machine code.
type Compiled = (usize, String, Vec<u8>);

/// The result of compiling one source for one architecture.
type Outcome = Result<Vec<u8>, NvrtcError>;

/// Compiles every source for every architecture on all cores; the results are in order.
fn compile(
    nvrtc: &Nvrtc,
    sources: &[(&Instance, CudaSource)],
    archs: &[String],
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Compiled>> {
    let compiles = |i: usize, arch: &str| sources[i].0.body.only_arch().is_none_or(|only| only == arch);
    let jobs = (0..sources.len()).flat_map(|i| archs.iter().map(move |a| (i, a.as_str())));
    let jobs: Vec<(usize, &str)> = jobs.filter(|(i, arch)| compiles(*i, arch)).collect();
    let results: Vec<Mutex<Option<Outcome>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(&(source, arch)) = jobs.get(at) else { return };
            let (instance, text) = &sources[source];
            let result = nvrtc.compile(&text.text, &format!("{}.cu", stem(instance)), arch).map(|c| c.bytes);
            let good = result.is_ok();
            if let Ok(mut slot) = results[at].lock() {
                *slot = Some(result);
            }
            // A failure is reported as an error and does not count as progress.
            if good {
                progress(done.fetch_add(1, Ordering::Relaxed) + 1, jobs.len());
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(jobs.len().max(1));
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let mut out = Vec::with_capacity(jobs.len());
    for ((source, arch), result) in jobs.iter().zip(results) {
        match result.into_inner().ok().flatten() {
            Some(Ok(bytes)) => out.push((*source, arch.to_string(), bytes)),
            Some(Err(e)) => return Err(e.into()),
            None => return Err(Error::Internal("a compilation was lost".into())),
        }
    }
    Ok(out)
}

/// The entry of a kernel in the list of kernels.
fn entry(instance: &Instance, source: &CudaSource, file: Option<String>, cubins: Vec<CubinEntry>) -> KernelEntry {
    KernelEntry {
        kernel: instance.kernel.clone(),
        kind: instance.kind.into(),
        origin: instance.origin.clone(),
        dtype: instance.dtype.to_string(),
        formula: source.formula.clone(),
        file,
        sha256: hex(source.text.as_bytes()),
        args: source.args.iter().map(argument).collect(),
        entries: source.entries.iter().map(|e| function(e, source)).collect(),
        cubins,
        header: None,
        module: None,
    }
}

/// The entry of an argument.
fn argument(a: &Arg) -> ArgEntry {
    let (role, dtype, count) = match a.kind {
        ArgKind::Input(d) => ("input", d, 1),
        ArgKind::Output(d) => ("output", d, 1),
        ArgKind::Size(_) => ("size", DType::I64, 1),
        ArgKind::Sizes { count: n, .. } | ArgKind::Strides { axes: n, .. } => ("sizes", DType::I64, n),
        ArgKind::Map { dtype, .. } => ("tensor_map", dtype, 1),
    };
    ArgEntry { name: a.name.clone(), role: role.into(), dtype: dtype.to_string(), count, about: a.about.clone() }
}

/// The entry of an entry point.
fn function(e: &Entry, source: &CudaSource) -> FunctionEntry {
    let (geometry, block, vector, threads_per_row, up_to) = match e.geometry {
        Geometry::Flat { block, vector } => ("flat", block, Some(vector), None, None),
        Geometry::Accesses { block, vector } => ("accesses", block, Some(vector), None, None),
        Geometry::Grid { block, vector } => ("grid", block, Some(vector), None, None),
        Geometry::Rows { block, threads, up_to } => ("rows", block, None, Some(threads), up_to),
        Geometry::Columns { block } => ("columns", block, None, None, None),
        Geometry::Blocks { block, .. } => ("blocks", block, None, None, None),
        Geometry::Clusters { block, blocks, .. } => ("clusters", block, None, Some(block * blocks), None),
        Geometry::Tiles { block, .. } => ("tiles", block, None, None, None),
        Geometry::Parts { block, .. } => ("parts", block, None, None, None),
        Geometry::Problems { block, .. } => ("problems", block, None, None, None),
        Geometry::Declared => ("declared", 0, None, None, None),
    };
    FunctionEntry {
        symbol: e.name.clone(),
        geometry: geometry.into(),
        block,
        vector,
        threads_per_row,
        up_to,
        shared_memory: e.geometry.shared(),
        grid: grid(e.geometry, source),
        launch: source.launch.clone().unwrap_or_else(|| e.geometry.to_string()),
    }
}

/// The grid as C expressions in 64-bit integers.
fn grid(geometry: Geometry, source: &CudaSource) -> Option<[String; 3]> {
    let ceil = |what: &str, by: u32| if by == 1 { what.to_string() } else { format!("({what} + {}) / {by}", by - 1) };
    let one = || "1".to_string();
    Some(match geometry {
        Geometry::Flat { block, vector } | Geometry::Accesses { block, vector } => {
            [ceil("n", block * vector), one(), one()]
        }
        Geometry::Grid { .. } => ["(lanes + x - 1) / x".into(), "min(65535, (rows + y - 1) / y)".into(), one()],
        Geometry::Rows { block, threads, .. } => [ceil("rows", block / threads), one(), one()],
        Geometry::Columns { block } => [ceil("rows", block), one(), one()],
        Geometry::Blocks { .. } => ["rows".into(), one(), one()],
        Geometry::Clusters { blocks, .. } => [format!("{blocks} * rows"), one(), one()],
        Geometry::Tiles { cluster, .. } => {
            let (batches, tiles) = tile_counts(source);
            let tiles = tiles.iter().map(|(name, size)| format!("({})", ceil(name, *size)));
            let factors: Vec<String> = batches.into_iter().chain(tiles).collect();
            [format!("{cluster} * min(clusters, {})", factors.join(" * ")), one(), one()]
        }
        Geometry::Parts { parts, .. } => [parts.to_string(), one(), one()],
        Geometry::Problems { block, .. } => [ceil("n", block), one(), one()],
        Geometry::Declared => return None,
    })
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}
