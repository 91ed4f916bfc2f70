//! Launches of generated kernels: the entry point, the grid and the arguments.
//!
//! In: a source of `hypatia_templates` and the views that a step reads and writes. Out: a
//! [`KernelLaunch`] with symbolic addresses, so that it serves every instance of a plan. Invariant:
//! each argument's value follows from its role and its kind in the source's own list, never from a
//! position fixed elsewhere; an argument that the work does not know is an error.

use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaStream, sys};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::WindowBounds;
use hypatia_templates::cuda::{Arg, ArgKind, ArgRole, CudaSource, FEW_ELEMENTS, Geometry, MANY_ROWS, SizeName};

use super::address::{Bases, Location, REPORT, REPORTS};
use super::driver::failed;
use super::memory::{DeviceMemory, bind};
use super::tensor_map;
use crate::lowering::Work;
use crate::lowering::map_shape::MapShape;
use hypatia_tensor::error::{Error, Result};

/// An argument.
#[derive(Clone)]
pub enum Argument {
    /// A pointer.
    Address(Location),
    /// A pointer to memory of the launch's own.
    Own(Arc<DeviceMemory>),
    /// A pointer into the workspace, this many bytes from its start.
    Workspace(usize),
    /// A pointer into what products and comparisons exchange, this many bytes from its start.
    Sums(usize),
    /// A pointer into the memory of reports, this many bytes from its start.
    Report(usize),
    /// A 64-bit integer.
    Size(i64),
    /// Several 64-bit integers, by value.
    Sizes(Vec<i64>),
    /// A descriptor of a tensor for the copy engine, by value.
    Map {
        /// Its first element.
        at: Location,
        /// Element type.
        dtype: DType,
        /// True if what is loaded is rounded to TF32.
        tf32: bool,
        /// Sizes and strides.
        shape: MapShape,
        /// Elements of a box along the two inner axes; of an image, channels and windows.
        inner: [u32; 2],
        /// Where the windows of an image begin, if the copy engine reads these.
        windows: Option<WindowBounds>,
    },
}

/// A launch that lacks only the base addresses.
pub struct KernelLaunch {
    function: CudaFunction,
    grid: [u32; 3],
    block: [u32; 3],
    /// Dynamic shared memory per block, in bytes.
    shared: u32,
    arguments: Vec<Argument>,
    /// Where a launch computes several problems: how many at most, and the arguments of the others.
    problems: Option<(usize, Vec<Vec<Argument>>)>,
    /// Bytes that the product and its comparison exchange.
    exchanged: usize,
    /// True if its source waits for earlier work itself, as ours do.
    awaits: bool,
}

/// The index of the entry point for that work, with grid and block.
pub fn entry(source: &CudaSource, work: &Work) -> Result<(usize, [u32; 3], [u32; 3])> {
    if let Some(declared) = &work.declared {
        return Ok((0, declared.grid, declared.block));
    }
    let n = work.n as u64;
    let fits = |g: &Geometry| !matches!(g, Geometry::Rows { up_to: Some(most), .. } if n > *most);
    let columns = source.entries.iter().position(|e| matches!(e.geometry, Geometry::Columns { .. }));
    let columns = columns.filter(|_| by_columns(work.rows, work));
    let at = columns.or_else(|| source.entries.iter().position(|e| fits(&e.geometry)));
    let at = at.ok_or_else(|| Error::Internal(format!("kernel {} has no entry point", source.name)))?;
    let (grid, block) = source.entries[at].geometry.launch(work.rows as u64, n);
    Ok((at, grid, block))
}

/// True if a kernel over strided operands uses one thread per row, for so many rows.
pub fn by_columns(rows: usize, work: &Work) -> bool {
    rows >= MANY_ROWS && (work.n < FEW_ELEMENTS || rows_are_strided(work))
}

/// True if no strided operand has contiguous rows.
pub fn rows_are_strided(work: &Work) -> bool {
    let elements = work.strides.iter().filter(|(role, _)| !work.indexes.contains(role));
    elements.into_iter().all(|(_, strides)| strides.last() != Some(&1))
}

/// The arguments of a source, in its order. `own` is memory that holds the work's own data, by
/// role.
pub fn arguments(
    source: &CudaSource,
    work: &Work,
    own: &[(ArgRole, Arc<DeviceMemory>)],
    pointer: &dyn Fn(&Arg) -> Option<Location>,
) -> Result<Vec<Argument>> {
    let unknown = |name: &str| Error::Internal(format!("kernel {} has an unknown argument `{name}`", source.name));
    let sizes = |name: SizeName| work.sizes.iter().find(|(n, _)| *n == name).map(|(_, v)| v);
    let argument = |a: &Arg| match (a.kind, a.role) {
        (ArgKind::Input(_) | ArgKind::Output(_), _) => {
            let own = own.iter().find(|(role, _)| *role == a.role).map(|(_, memory)| Argument::Own(memory.clone()));
            let room = || work.rooms.iter().find(|(role, _)| *role == a.role).map(|(_, at)| Argument::Workspace(*at));
            let sums = || work.sums.iter().find(|(role, _)| *role == a.role).map(|(_, at)| Argument::Sums(*at));
            let report = || work.reports.iter().find(|(role, _)| *role == a.role).map(|(_, at)| Argument::Report(*at));
            own.or_else(room).or_else(sums).or_else(report).or_else(|| pointer(a).map(Argument::Address))
        }
        (ArgKind::Size(_), ArgRole::RowLength) => Some(Argument::Size(work.n as i64)),
        (ArgKind::Size(_), ArgRole::Rows) => Some(Argument::Size(work.rows as i64)),
        (ArgKind::Size(name), _) => sizes(name).and_then(|v| v.first().copied()).map(Argument::Size),
        (ArgKind::Map { dtype, tf32, inner, windows, .. }, _) => {
            let shape = work.maps.iter().find(|(role, _)| *role == a.role).map(|(_, shape)| *shape);
            pointer(a).zip(shape).map(|(at, shape)| Argument::Map { at, dtype, tf32, shape, inner, windows })
        }
        (ArgKind::Sizes { name, count }, _) => sizes(name).filter(|v| v.len() == count).cloned().map(Argument::Sizes),
        (ArgKind::Strides { of, axes }, _) => {
            let strides = work.strides.iter().find(|(role, _)| *role == of).map(|(_, v)| v);
            strides.filter(|v| v.len() == axes).cloned().map(Argument::Sizes)
        }
    };
    source.args.iter().map(|a| argument(a).ok_or_else(|| unknown(&a.name))).collect()
}

impl KernelLaunch {
    /// A launch of an entry point with that geometry over a grid of blocks, each with `shared`
    /// bytes of dynamic memory. If each cluster processes several rows, the grid has no more
    /// clusters than the device can run at once.
    pub fn new(
        function: CudaFunction,
        geometry: Geometry,
        ([mut grid, block], shared): ([[u32; 3]; 2], u32),
        arguments: Vec<Argument>,
    ) -> Result<KernelLaunch> {
        let blocks = match geometry {
            Geometry::Clusters { blocks, .. } => Some(blocks),
            Geometry::Tiles { cluster, .. } => Some(cluster),
            _ => None,
        };
        if shared > 0 {
            let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            function.set_attribute(most, shared as i32).map_err(|e| failed("cuFuncSetAttribute", e))?;
        }
        if let Some(blocks) = blocks.filter(|_| shared > 0) {
            let resident = match blocks {
                // GPUs before Hopper have no clusters.
                1 => resident_blocks(&function, block[0], shared)?,
                _ => resident_clusters(&function, [blocks, block[0]], shared)?,
            };
            grid[0] = grid[0].min(resident.max(1) * blocks);
        }
        let problems = match geometry {
            Geometry::Problems { at_once, .. } => Some((at_once, Vec::new())),
            _ => None,
        };
        // A geometry that is declared is that of somebody else's source.
        let awaits = !matches!(geometry, Geometry::Declared);
        Ok(KernelLaunch { function, grid, block, shared, arguments, problems, exchanged: 0, awaits })
    }

    /// The same launch, which compares what takes that many bytes beside the operands.
    pub fn exchanging(self, bytes: usize) -> KernelLaunch {
        KernelLaunch { exchanged: bytes, ..self }
    }

    /// Bytes that a product and this comparison of it exchange.
    pub fn exchanged(&self) -> usize {
        self.exchanged
    }

    /// Takes another problem of the same kernel into this launch, or gives it back.
    pub fn join(&mut self, other: KernelLaunch) -> Option<KernelLaunch> {
        let same = self.function.cu_function() == other.function.cu_function() && self.block == other.block;
        match (&mut self.problems, other.problems.as_ref()) {
            (Some((at_once, others)), Some((_, of_other)))
                if same
                    && others.len() + of_other.len() + 2 <= *at_once
                    && self.grid[0].checked_add(other.grid[0]).is_some() =>
            {
                self.grid[0] += other.grid[0];
                let (_, more) = other.problems.unwrap_or_default();
                others.extend([vec![other.arguments], more].concat());
                None
            }
            _ => Some(other),
        }
    }

    /// Its grid, its block, and the dynamic shared memory of a block in bytes.
    pub fn shape(&self) -> ([u32; 3], [u32; 3], u32) {
        (self.grid, self.block, self.shared)
    }

    /// Its arguments in order; those of its first problem if there are several.
    pub fn arguments(&self) -> &[Argument] {
        &self.arguments
    }

    /// The arguments of all problems.
    fn all_arguments(&self) -> impl Iterator<Item = &Argument> {
        self.arguments.iter().chain(self.problems.iter().flat_map(|(_, others)| others).flatten())
    }

    /// The locations that its arguments name.
    pub fn locations(&self) -> impl Iterator<Item = &Location> {
        self.all_arguments().filter_map(|a| match a {
            Argument::Address(at) | Argument::Map { at, .. } => Some(at),
            Argument::Own(_)
            | Argument::Workspace(_)
            | Argument::Sums(_)
            | Argument::Report(_)
            | Argument::Size(_)
            | Argument::Sizes(_) => None,
        })
    }

    /// True if it reports what it finds.
    pub fn reports(&self) -> bool {
        self.arguments.iter().any(|a| matches!(a, Argument::Report(at) if *at >= REPORTS))
    }

    /// Reports of it are those of that step from now on.
    pub fn reports_as(&mut self, step: usize) {
        for a in &mut self.arguments {
            if let Argument::Report(at) = a
                && *at >= REPORTS
            {
                *at = REPORTS + step * REPORT;
            }
        }
    }

    /// What it exchanges with other launches lies that many bytes further on.
    pub fn move_sums(&mut self, by: usize) {
        for a in &mut self.arguments {
            if let Argument::Sums(at) = a {
                *at += by;
            }
        }
    }

    /// Launches the kernel on a stream. `early`: while the stream's last work still runs, if its
    /// source waits for that; the last work is then a kernel.
    ///
    /// # Safety
    /// The bases must be those of memory that is as large as the plan says, valid until the stream
    /// is done.
    pub unsafe fn launch(&self, stream: &CudaStream, bases: &Bases, early: bool) -> Result<()> {
        bind(stream)?;
        // All values in one array; the driver reads each through its pointer.
        let mut values: Vec<u64> = Vec::with_capacity(self.arguments.len() * tensor_map::WORDS);
        let mut starts = Vec::with_capacity(self.arguments.len());
        for a in &self.arguments {
            starts.push(values.len());
            a.put(bases, &mut values)?;
        }
        if let Some((at_once, others)) = &self.problems {
            // All problems are one structure.
            let words = values.len();
            others.iter().flatten().try_for_each(|a| a.put(bases, &mut values))?;
            values.resize(words * at_once, 0);
            values.push(others.len() as u64 + 1);
            starts = vec![0];
        }
        let mut pointers: Vec<*mut std::ffi::c_void> = starts.iter().map(|at| (&raw mut values[*at]).cast()).collect();
        let ([gx, gy, gz], [bx, by, bz]) = (self.grid, self.block);
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: gx,
            gridDimY: gy,
            gridDimZ: gz,
            blockDimX: bx,
            blockDimY: by,
            blockDimZ: bz,
            sharedMemBytes: self.shared,
            hStream: stream.cu_stream(),
            attrs: &raw mut attribute,
            numAttrs: u32::from(early && self.awaits),
        };
        // SAFETY: the function takes these arguments, as its source lists them; the driver copies
        // them and the configuration before it returns. The caller guarantees the addresses.
        let status = unsafe {
            let (function, nothing) = (self.function.cu_function(), std::ptr::null_mut());
            sys::cuLaunchKernelEx(&raw const config, function, pointers.as_mut_ptr(), nothing)
        };
        status.result().map_err(|e| failed("cuLaunchKernelEx", e))
    }
}

impl Argument {
    /// Appends its value.
    fn put(&self, bases: &Bases, values: &mut Vec<u64>) -> Result<()> {
        match self {
            Argument::Address(at) => values.push(bases.address(at)),
            Argument::Own(memory) => values.push(memory.address()),
            Argument::Workspace(at) => values.push(bases.workspace + *at as u64),
            Argument::Sums(at) => values.push(bases.sums + *at as u64),
            Argument::Report(at) => values.push(bases.reports + *at as u64),
            Argument::Size(v) => values.push(*v as u64),
            Argument::Sizes(v) => values.extend(v.iter().map(|v| *v as u64)),
            Argument::Map { at, dtype, tf32, shape, inner, windows } => {
                let address = bases.address(at);
                values.extend(match windows {
                    Some(windows) => tensor_map::encode_windows(address, *dtype, shape, *inner, windows)?,
                    None => tensor_map::encode(address, (*dtype, *tf32), shape, *inner)?,
                });
            }
        }
        Ok(())
    }
}

/// Number of blocks of `threads` threads that the device runs at once.
fn resident_blocks(function: &CudaFunction, threads: u32, shared: u32) -> Result<u32> {
    let of_one = function.occupancy_max_active_blocks_per_multiprocessor(threads, shared as usize, None);
    let of_one = of_one.map_err(|e| failed("cuOccupancyMaxActiveBlocksPerMultiprocessor", e))?;
    let (mut device, mut multiprocessors) = (0, 0);
    // SAFETY: the function's context is current, since the attribute above was set in it; both
    // calls write one integer.
    let status = unsafe { sys::cuCtxGetDevice(&raw mut device) };
    status.result().map_err(|e| failed("cuCtxGetDevice", e))?;
    let count = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
    // SAFETY: as above.
    let status = unsafe { sys::cuDeviceGetAttribute(&raw mut multiprocessors, count, device) };
    status.result().map_err(|e| failed("cuDeviceGetAttribute", e))?;
    Ok(of_one * multiprocessors.max(0) as u32)
}

/// Number of clusters of `blocks` blocks of `threads` threads that the device runs at once.
fn resident_clusters(function: &CudaFunction, [blocks, threads]: [u32; 2], shared: u32) -> Result<u32> {
    let dimension = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: blocks, y: 1, z: 1 };
    let mut size = sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue { clusterDim: dimension },
    };
    let config = sys::CUlaunchConfig {
        gridDimX: blocks,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: shared,
        hStream: std::ptr::null_mut(),
        attrs: &raw mut size,
        numAttrs: 1,
    };
    let mut clusters = 0;
    // SAFETY: the function is loaded, the configuration and its one attribute live until the call
    // returns.
    let status =
        unsafe { sys::cuOccupancyMaxActiveClusters(&raw mut clusters, function.cu_function(), &raw const config) };
    status.result().map_err(|e| failed("cuOccupancyMaxActiveClusters", e))?;
    Ok(clusters.max(0) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_the_work_lacks_is_an_error() {
        let args = vec![Arg::size(SizeName::Depth, "terms of a sum")];
        let (name, text) = ("product".to_string(), String::new());
        let source = CudaSource { name, formula: String::new(), text, entries: Vec::new(), args, launch: None };
        let bound = |name| {
            let work = Work { sizes: vec![(name, vec![3])], ..Work::default() };
            arguments(&source, &work, &[], &|_| None).map(|found| found.len())
        };
        assert_eq!(bound(SizeName::Depth).unwrap(), 1);
        let error = bound(SizeName::K).unwrap_err().to_string();
        assert!(error.contains("`depth`"), "{error}");
    }
}
