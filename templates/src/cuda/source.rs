//! Sources: entry points, the arguments of a launch, and its grid.
//!
//! In: nothing; the printers of kernels make them. Out: what whoever launches a kernel must know.
//! Invariant: what an argument is follows from its role and its kind, never from its name or its
//! position.

use std::fmt;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::WindowBounds;

use super::{SizeName, storage};

/// A translation unit.
#[derive(Clone, Debug, PartialEq)]
pub struct CudaSource {
    /// The kernel's name, as in its description.
    pub name: String,
    /// One line that says what is computed.
    pub formula: String,
    /// The text.
    pub text: String,
    /// Its entry points.
    pub entries: Vec<Entry>,
    /// The arguments, the same for all entry points.
    pub args: Vec<Arg>,
    /// The launch configuration, if the kernel declares one.
    pub launch: Option<String>,
}

/// An entry point of a [`CudaSource`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The `extern "C"` name.
    pub name: String,
    /// How to launch it.
    pub geometry: Geometry,
}

/// An argument of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arg {
    /// Its name in the source.
    pub name: String,
    /// What the launcher passes for it. The launcher goes by the role, not by the name.
    pub role: ArgRole,
    /// Its kind.
    pub kind: ArgKind,
    /// Its shape or meaning, in words.
    pub about: String,
}

impl Arg {
    /// The input tensor at that position.
    pub fn read(place: usize, dtype: DType, about: impl Into<String>) -> Arg {
        let role = ArgRole::Read(place);
        Arg { name: role.tensor_name(), role, kind: ArgKind::Input(dtype), about: about.into() }
    }

    /// The output tensor at that position.
    pub fn written(place: usize, dtype: DType, about: impl Into<String>) -> Arg {
        let role = ArgRole::Written(place);
        Arg { name: role.tensor_name(), role, kind: ArgKind::Output(dtype), about: about.into() }
    }

    /// A descriptor of a tensor for the copy engine, for boxes of that many elements of its two
    /// inner axes.
    pub fn map(name: String, role: ArgRole, dtype: DType, inner: [usize; 2], about: &str) -> Arg {
        let inner = inner.map(|n| n as u32);
        let kind = ArgKind::Map { dtype, tf32: false, inner, axes: None, in_parts: false, windows: None };
        Arg { name, role, kind, about: about.into() }
    }

    /// The same of a tensor whose two inner axes have these sizes, the dense one last.
    pub fn with_axes(mut self, of: [SizeName; 2]) -> Arg {
        if let ArgKind::Map { axes, .. } = &mut self.kind {
            *axes = Some(of);
        }
        self
    }

    /// The same of a tensor whose dense axis lies in parts, which are an axis more.
    pub fn in_parts(mut self) -> Arg {
        if let ArgKind::Map { in_parts, .. } = &mut self.kind {
            *in_parts = true;
        }
        self
    }

    /// The same of a factor of a product: what is loaded of f32 is rounded to TF32.
    pub fn factor(mut self) -> Arg {
        if let ArgKind::Map { dtype, tf32, .. } = &mut self.kind {
            *tf32 = *dtype == DType::F32;
        }
        self
    }

    /// A descriptor of an image whose windows the copy engine reads: that many channels of that
    /// many windows at a time.
    pub fn image(name: String, dtype: DType, inner: [usize; 2], windows: WindowBounds, about: &str) -> Arg {
        let (inner, windows) = (inner.map(|n| n as u32), Some(windows));
        let kind = ArgKind::Map { dtype, tf32: false, inner, axes: None, in_parts: false, windows };
        Arg { name, role: ArgRole::Read(0), kind, about: about.into() }
    }

    /// Memory of that role, which is no operand of the step.
    pub fn memory(role: ArgRole, kind: ArgKind, about: impl Into<String>) -> Arg {
        Arg::with(role, role.tensor_name(), kind, about)
    }

    /// An argument with that role and name.
    pub fn with(role: ArgRole, name: impl Into<String>, kind: ArgKind, about: impl Into<String>) -> Arg {
        Arg { name: name.into(), role, kind, about: about.into() }
    }

    /// A size that says nothing about the grid.
    pub fn size(name: SizeName, about: impl Into<String>) -> Arg {
        Arg::size_of(ArgRole::Named, name, about)
    }

    /// A size with that role.
    pub fn size_of(role: ArgRole, name: SizeName, about: impl Into<String>) -> Arg {
        Arg::with(role, name.name(), ArgKind::Size(name), about)
    }

    /// Several sizes.
    pub fn sizes(name: SizeName, count: usize, about: impl Into<String>) -> Arg {
        Arg::with(ArgRole::Named, name.name(), ArgKind::Sizes { name, count }, about)
    }

    /// The sizes of the axes of the work.
    pub fn axes(count: usize, about: impl Into<String>) -> Arg {
        Arg { role: ArgRole::Axes, ..Arg::sizes(SizeName::Axes, count, about) }
    }

    /// The strides of the tensor of that role, along this many axes.
    pub fn strides(of: ArgRole, axes: usize, about: impl Into<String>) -> Arg {
        Arg::with(ArgRole::Named, of.strides_name(), ArgKind::Strides { of, axes }, about)
    }

    /// The number of rows.
    pub fn rows(about: impl Into<String>) -> Arg {
        Arg::size_of(ArgRole::Rows, SizeName::Rows, about)
    }

    /// The number of elements of a row.
    pub fn row_length(about: impl Into<String>) -> Arg {
        Arg::size_of(ArgRole::RowLength, SizeName::N, about)
    }
}

/// What the launcher passes for an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgRole {
    /// The input tensor at that position.
    Read(usize),
    /// The output tensor at that position.
    Written(usize),
    /// The accumulator of an epilogue: the last input tensor.
    Accumulator,
    /// The factor at that position of the product that a user's template computes; its other inputs
    /// are counted from 0.
    Factor(usize),
    /// Partial sums that one launch of a step writes and the next one reads.
    Sums,
    /// Parts of the reduction at that place beside a product, which the next launch joins.
    Part(usize),
    /// Sums of a product's accumulators, for its checksums.
    RowSums,
    /// The largest score of each chunk of keys, and the sum of its weights.
    Tops,
    /// The tiles that each block of a masked attention visits.
    Ranges,
    /// The keys of each query of a masked attention.
    Intervals,
    /// What a comparison finds.
    Report,
    /// What a test wants changed.
    Fault,
    /// Positions in the order in which a scatter takes them.
    Order,
    /// Positions that a pass of a sort reads.
    From,
    /// Positions that a pass of a sort writes.
    To,
    /// The number of rows.
    Rows,
    /// The number of elements of a row.
    RowLength,
    /// The sizes of the axes of the work: of those that number the rows, then of those within one.
    Axes,
    /// A number of problems of one shape: all such numbers are multiplied.
    Problems,
    /// The rows of a problem, which are divided into tiles.
    TiledRows,
    /// The columns of a problem, which are divided into tiles.
    TiledColumns,
    /// A size that says nothing about the grid, or strides: the kind names them.
    Named,
}

impl ArgRole {
    /// The name of memory of this role in sources; empty if it is no memory.
    pub(super) fn tensor_name(self) -> String {
        match self {
            ArgRole::Read(place) => format!("in{place}"),
            ArgRole::Written(place) => format!("out{place}"),
            ArgRole::Accumulator => "acc".into(),
            ArgRole::Factor(0) => "a".into(),
            ArgRole::Factor(_) => "b".into(),
            ArgRole::Sums => "sums".into(),
            ArgRole::Part(place) => format!("part{place}"),
            ArgRole::RowSums => "row_sums".into(),
            ArgRole::Tops => "tops".into(),
            ArgRole::Ranges => "ranges".into(),
            ArgRole::Intervals => "intervals".into(),
            ArgRole::Report => "report".into(),
            ArgRole::Fault => "fault".into(),
            ArgRole::Order => "order".into(),
            ArgRole::From => "from".into(),
            ArgRole::To => "to".into(),
            ArgRole::Rows | ArgRole::RowLength | ArgRole::Axes | ArgRole::Problems => String::new(),
            ArgRole::TiledRows | ArgRole::TiledColumns | ArgRole::Named => String::new(),
        }
    }

    /// The name of the argument with the strides of the tensor of this role.
    pub fn strides_name(self) -> String {
        format!("{}_strides", self.tensor_name())
    }
}

/// Kinds of arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgKind {
    /// A device pointer to read from.
    Input(DType),
    /// A device pointer to write to.
    Output(DType),
    /// A 64-bit signed size.
    Size(SizeName),
    /// Several 64-bit signed integers, passed by value: sizes, outermost first.
    Sizes {
        /// Which ones.
        name: SizeName,
        /// How many.
        count: usize,
    },
    /// The same: elements between neighbours along each axis of a tensor.
    Strides {
        /// The role of the tensor.
        of: ArgRole,
        /// The number of axes.
        axes: usize,
    },
    /// A `CUtensorMap` of three axes, passed by value: for boxes of `inner` elements of the two
    /// inner axes, the densest first, in rows of 128 bytes that are swizzled; zero outside of the
    /// tensor.
    Map {
        /// Element type.
        dtype: DType,
        /// True if what is loaded is rounded to TF32.
        tf32: bool,
        /// Elements of a box along the dense axis and along the next one; of an image, channels
        /// and windows.
        inner: [u32; 2],
        /// The sizes of the two inner axes, the dense one last, where they are known: a launcher
        /// checks them.
        axes: Option<[SizeName; 2]>,
        /// True if the dense axis lies in parts, which are an axis more.
        in_parts: bool,
        /// Where the windows of an image begin, if the copy engine reads these.
        windows: Option<WindowBounds>,
    },
}

impl ArgKind {
    /// Its C++ type.
    pub fn c_type(self) -> String {
        match self {
            ArgKind::Input(t) => format!("const {}*", storage(t)),
            ArgKind::Output(t) => format!("{}*", storage(t)),
            ArgKind::Size(_) => "long long".into(),
            ArgKind::Sizes { count, .. } | ArgKind::Strides { axes: count, .. } => format!("Axes<{count}>"),
            ArgKind::Map { .. } => "CUtensorMap".into(),
        }
    }
}

/// How an entry point is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Geometry {
    /// A grid-stride loop over `n` elements, `vector` at a time.
    Flat {
        /// Threads per block.
        block: u32,
        /// Elements that a thread handles at a time, in one or two accesses.
        vector: u32,
    },
    /// A thread for every `vector` of `n` elements: no thread takes a second access.
    Accesses {
        /// Threads per block.
        block: u32,
        /// Elements per access.
        vector: u32,
    },
    /// A block covers columns along x and rows along y.
    Grid {
        /// Threads per block, over both axes.
        block: u32,
        /// Elements per access.
        vector: u32,
    },
    /// `threads` threads share a row; a block handles `block / threads` rows.
    Rows {
        /// Threads per block.
        block: u32,
        /// Threads that share a row.
        threads: u32,
        /// The longest row for which this entry point is the fastest; the widest one has no limit.
        up_to: Option<u64>,
    },
    /// A block for each row: no block takes a second one.
    Blocks {
        /// Threads per block.
        block: u32,
        /// Dynamic shared memory per block, in bytes.
        shared: u32,
    },
    /// A cluster of `blocks` blocks shares a row.
    Clusters {
        /// Threads per block.
        block: u32,
        /// Blocks that share a row.
        blocks: u32,
        /// Dynamic shared memory per block, in bytes. If it is not 0, each cluster loops over
        /// several rows; it is fastest to launch as many clusters as the device runs at a time.
        shared: u32,
    },
    /// So many blocks share all rows, whatever their number.
    Parts {
        /// Threads per block.
        block: u32,
        /// Blocks.
        parts: u32,
    },
    /// A block for every `block` of `n` threads. Several problems may be computed by one launch:
    /// their arguments are one structure, an array of problems and their number.
    Problems {
        /// Threads per block.
        block: u32,
        /// Problems of a launch, at most.
        at_once: usize,
    },
    /// As the kernel declares: `CudaSource::launch`.
    Declared,
    /// Persistent blocks that walk over tiles of a matrix, in clusters.
    Tiles {
        /// Threads per block.
        block: u32,
        /// Blocks per cluster.
        cluster: u32,
        /// Rows of a cluster's tile.
        rows: u32,
        /// Columns of a cluster's tile.
        columns: u32,
        /// Dynamic shared memory per block, in bytes.
        shared: u32,
    },
    /// One thread per row, for adjacent rows whose elements are strided.
    Columns {
        /// Threads per block.
        block: u32,
    },
}

impl Geometry {
    /// True if a kernel is correct for that grid alone.
    pub fn is_prescribed(self) -> bool {
        matches!(self, Geometry::Parts { .. } | Geometry::Blocks { .. } | Geometry::Accesses { .. })
    }

    /// Dynamic shared memory of a launch, in bytes.
    pub fn shared(self) -> u32 {
        match self {
            Geometry::Clusters { shared, .. } | Geometry::Tiles { shared, .. } | Geometry::Blocks { shared, .. } => {
                shared
            }
            _ => 0,
        }
    }

    /// Grid and block for `rows` rows of `n` elements (`rows` is 1 for flat kernels).
    pub fn launch(self, rows: u64, n: u64) -> ([u32; 3], [u32; 3]) {
        let cap = |v: u64, max: u64| v.clamp(1, max) as u32;
        match self {
            Geometry::Flat { block, vector } | Geometry::Accesses { block, vector } => {
                let total = rows.saturating_mul(n).div_ceil(vector as u64);
                ([cap(total.div_ceil(block as u64), i32::MAX as u64), 1, 1], [block, 1, 1])
            }
            Geometry::Grid { block, vector } => {
                // Rows that are not whole accesses go element by element, as many to a thread.
                let lanes = n.div_ceil(vector as u64);
                let x = cap(lanes, block as u64).next_power_of_two().min(block);
                let y = block / x;
                ([cap(lanes.div_ceil(x as u64), i32::MAX as u64), cap(rows.div_ceil(y as u64), 65_535), 1], [x, y, 1])
            }
            Geometry::Parts { block, parts } => ([parts, 1, 1], [block, 1, 1]),
            Geometry::Problems { block, .. } => ([cap(n.div_ceil(block as u64), i32::MAX as u64), 1, 1], [block, 1, 1]),
            Geometry::Declared => ([1, 1, 1], [1, 1, 1]),
            Geometry::Tiles { block, cluster, rows: of_tile, columns, .. } => {
                let tiles = rows.div_ceil(of_tile as u64).saturating_mul(n.div_ceil(columns as u64));
                ([cap(tiles, (i32::MAX as u32 / cluster) as u64) * cluster, 1, 1], [block, 1, 1])
            }
            Geometry::Clusters { block, blocks, .. } => {
                ([cap(rows, (i32::MAX as u32 / blocks) as u64) * blocks, 1, 1], [block, 1, 1])
            }
            Geometry::Blocks { block, .. } => ([cap(rows, i32::MAX as u64), 1, 1], [block, 1, 1]),
            Geometry::Columns { block } => ([cap(rows.div_ceil(block as u64), i32::MAX as u64), 1, 1], [block, 1, 1]),
            Geometry::Rows { block, threads, .. } => {
                ([cap(rows.div_ceil((block / threads) as u64), i32::MAX as u64), 1, 1], [block, 1, 1])
            }
        }
    }
}

impl fmt::Display for Geometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Geometry::Flat { block, vector } | Geometry::Accesses { block, vector } => {
                write!(f, "block ({block}), grid (ceil(n / {}))", block * vector)
            }
            Geometry::Grid { block, vector } => write!(
                f,
                "lanes = ceil(n / {vector}); x = min({block}, next power of two of lanes); y = \
                 {block} / x; \
                 block (x, y), grid (ceil(lanes / x), min(65535, ceil(rows / y)))"
            ),
            Geometry::Parts { block, parts } => write!(f, "block ({block}), grid ({parts})"),
            Geometry::Problems { block, at_once } => {
                write!(f, "block ({block}), grid (the sum of ceil(n / {block}) over at most {at_once} problems)")
            }
            Geometry::Declared => write!(f, "as the kernel declares"),
            Geometry::Tiles { block, cluster, rows, columns, shared } => write!(
                f,
                "block ({block}), grid ({cluster} * min(clusters that run at a time, batches * ceil(rows / {rows}) * \
                 ceil(columns / {columns}))), clusters of {cluster}, {shared} bytes of shared memory"
            ),
            Geometry::Clusters { block, blocks, .. } => {
                write!(f, "block ({block}), grid ({blocks} * rows), clusters of {blocks} blocks")
            }
            Geometry::Blocks { block, shared: 0 } => write!(f, "block ({block}), grid (rows)"),
            Geometry::Blocks { block, shared } => {
                write!(f, "block ({block}), grid (rows), {shared} bytes of shared memory")
            }
            Geometry::Columns { block } => {
                write!(f, "block ({block}), grid (ceil(rows / {block})); for columns of a matrix")
            }
            Geometry::Rows { block, threads, up_to } => {
                let per_block = block / threads;
                write!(f, "block ({block}), grid (")?;
                if per_block == 1 {
                    write!(f, "rows)")?
                } else {
                    write!(f, "ceil(rows / {per_block}))")?
                }
                match up_to {
                    Some(n) => write!(f, "; for n <= {n}"),
                    None => write!(f, "; for longer rows"),
                }
            }
        }
    }
}
