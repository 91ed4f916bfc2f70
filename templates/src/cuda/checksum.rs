//! Checksums of matrix products, and what a test does to their accumulators.
//!
//! In: a [`ChecksumKernel`], a [`BlockSumsKernel`] or a [`DisturbKernel`]. Out: its source.
//! Invariant: what the product computes is only read; a sum that rounding explains is not reported.

use minijinja::{Value, context};

use super::pointwise::declarations;
use super::term::{Functions, widen};
use super::{
    Arg, ArgKind, ArgRole, CudaSource, EmitError, Entry, Geometry, Header, SizeName, common, identifier, render,
    storage,
};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{
    BlockSumsKernel, ChecksumKernel, Compared, DisturbKernel, RowSums, sum_type, sums_in_memory,
};

/// Threads per block.
const BLOCK: u32 = 256;
/// A thread for each element.
const FLAT: Geometry = Geometry::Flat { block: BLOCK, vector: 1 };
/// Rows that a block of threads compares at a time, and blocks of columns; and by matrix units.
const COMPARED: [usize; 2] = [8, 4];
const COMPARED_BY_UNITS: [usize; 2] = [16, 4];
/// Comparisons of a launch, at most: the arguments of this many are less than 4 KiB.
const AT_ONCE: usize = 8;
/// Elements of k and blocks of columns that a block of threads adds up at a time.
pub const SLICE: usize = 32;
/// How many times what rounding does to random numbers a sum may be away: a suspicion costs a run.
const UNITS: f64 = 8.0;
/// Standard deviations of the rounding of a result that a sum may be away. An element is rounded
/// by half a unit in the last place at most.
const DEVIATIONS: f64 = 3.0;

/// Rows and blocks of columns that a block of threads compares at a time, and its threads.
pub fn compared_at_a_time(kernel: &ChecksumKernel) -> ([usize; 2], u32) {
    (if kernel.by_units { COMPARED_BY_UNITS } else { COMPARED }, BLOCK)
}

/// How the templates of products know a [`RowSums`].
pub(super) fn word(row_sums: RowSums) -> Option<&'static str> {
    match row_sums {
        RowSums::Off => None,
        RowSums::Stored => Some("stored"),
        RowSums::Disturbed => Some("disturbed"),
    }
}

/// The arguments of a product that stores sums of its accumulators.
pub(super) fn row_sums_arguments(row_sums: RowSums) -> Vec<Arg> {
    let sums =
        || Arg::memory(ArgRole::RowSums, ArgKind::Output(DType::F32), "sums of accumulators: parts x products x rows");
    match row_sums {
        RowSums::Off => Vec::new(),
        RowSums::Stored => vec![sums()],
        RowSums::Disturbed => vec![sums(), fault()],
    }
}

/// What a test wants changed.
fn fault() -> Arg {
    Arg::memory(ArgRole::Fault, ArgKind::Output(DType::I32), "kind, row and column, bit or one in how many")
}

fn sizes(list: &[(SizeName, &str)]) -> Vec<Arg> {
    list.iter().map(|(name, about)| Arg::size(*name, *about)).collect()
}

fn strides(of: ArgRole, axes: &str, count: usize) -> Arg {
    Arg::strides(of, count, format!("elements of {} between {axes}", of.tensor_name()))
}

/// Prints the sums of a right factor.
pub(super) fn block_sums(program: &Program, kernel: &BlockSumsKernel) -> Result<CudaSource, EmitError> {
    let (sum, stored) = (kernel.sums, sums_in_memory(kernel.sums, kernel.by_units));
    let factors = if kernel.pair { vec![1, 2] } else { vec![1] };
    let mut args = Vec::new();
    for f in &factors {
        args.push(Arg::read(*f, kernel.factor, "products x depth x columns"));
        args.push(strides(ArgRole::Read(*f), "outer and inner products, terms and columns", 4));
    }
    args.push(Arg::memory(
        ArgRole::Sums,
        ArgKind::Output(stored),
        "sums of blocks, and sums of squares, for each term",
    ));
    args.extend(sizes(&[
        (SizeName::Depth, "length of the product's sums"),
        (SizeName::Columns, "columns of the product"),
        (SizeName::Outer, "outer products"),
        (SizeName::Inner, "inner products of each outer one"),
        (SizeName::Blocks, "blocks of columns"),
        (SizeName::Width, "columns of a block"),
    ]));
    let formula = "sums = the sums of in1 over blocks of columns".to_string();
    let description = Description {
        name: &kernel.name,
        kind: "sums of a factor, for checksums",
        doc: &kernel.doc,
        geometry: FLAT,
        formula,
        args,
    };
    let own = context! { type => storage(sum), load => load(kernel.factor), factors, parts => kernel.by_units };
    description.render(program, "block_sums.cu.j2", [kernel.factor, stored], own)
}

/// The arguments of a comparison.
fn arguments(kernel: &ChecksumKernel) -> Vec<Arg> {
    let sum = sum_type(kernel.factor);
    let mut args = vec![
        Arg::read(0, kernel.factor, "products x rows x depth"),
        strides(ArgRole::Read(0), "outer and inner products, rows and terms", 4),
        Arg::memory(
            ArgRole::Sums,
            ArgKind::Input(sums_in_memory(sum, kernel.by_units)),
            "sums of the right factor and of its squares",
        ),
        strides(ArgRole::Sums, "outer and inner products", 2),
    ];
    match kernel.compared {
        Compared::Accumulators => {
            args.push(Arg::memory(
                ArgRole::RowSums,
                ArgKind::Input(sum),
                "sums of accumulators: parts x products x rows",
            ));
            let of_parts =
                [(SizeName::Parts, "parts of a row"), (SizeName::PartsOfBlock, "parts of a row in a block of columns")];
            args.extend(sizes(&of_parts));
        }
        Compared::Result { dtype, .. } => {
            args.push(Arg { kind: ArgKind::Input(dtype), ..Arg::written(0, dtype, "products x rows x columns") });
            args.push(strides(ArgRole::Written(0), "outer and inner products, rows and columns", 4));
            args.push(Arg::size(SizeName::Columns, "columns of the product"));
        }
    }
    args.push(Arg::memory(
        ArgRole::Report,
        ArgKind::Output(DType::I32),
        "row, column, sum, expected sum, allowed difference",
    ));
    args.extend(sizes(&[
        (SizeName::Rows, "rows of each product"),
        (SizeName::Depth, "length of the sums"),
        (SizeName::Outer, "outer products"),
        (SizeName::Inner, "inner products of each outer one"),
        (SizeName::Blocks, "blocks of columns"),
        (SizeName::Width, "columns of a block"),
    ]));
    args
}

/// Prints a comparison of accumulators with their checksums.
pub(super) fn compare(program: &Program, kernel: &ChecksumKernel) -> Result<CudaSource, EmitError> {
    let sum = sum_type(kernel.factor);
    let (result, scale, width) = match kernel.compared {
        Compared::Accumulators => (None, 1.0, 0),
        Compared::Result { dtype, scale, width } => (Some(dtype), scale, width),
    };
    let formula = "a report where a sum of the product's accumulators is not in0 times sums".to_string();
    let ([rows, blocks], threads) = compared_at_a_time(kernel);
    let geometry = Geometry::Problems { block: threads, at_once: AT_ONCE };
    let description = Description {
        name: &kernel.name,
        kind: "the checksums of products",
        doc: &kernel.doc,
        geometry,
        formula,
        args: arguments(kernel),
    };
    let stored = result.unwrap_or(sum);
    let own = context! {
        type => storage(sum),
        storage => storage(kernel.factor),
        load => load(kernel.factor),
        load_result => load(stored),
        rows_at_a_time => rows,
        blocks_at_a_time => blocks,
        at_once => AT_ONCE,
        threads,
        mma => kernel.by_units,
        packs => kernel.packs,
        unroll => if kernel.packs { 3 } else { 1 },
        result => result.is_some(),
        width,
        vector => 16 / stored.size(),
        result_storage => storage(stored),
        scale => format!("{scale:?}"),
        unit => format!("{:?}", UNITS * unit(sum)),
        by_blocks => kernel.factor.size() == 2 || kernel.tf32,
        tf32 => kernel.tf32,
        tiny => format!("{:?}", if sum == DType::F64 { 1e-161 } else { 4e-23 }),
        rounding => format!("{:?}", if stored == sum { 0.0 } else { DEVIATIONS * unit(stored) }),
        smallest => format!("{:?}", if stored == DType::F16 { 6e-8 } else { 0.0 }),
        largest => format!("{:?}", largest(stored)),
    };
    description.render(program, "checksum.cu.j2", [kernel.factor, stored, sum], own)
}

/// Prints a kernel that changes elements.
pub(super) fn disturb(program: &Program, kernel: &DisturbKernel) -> Result<CudaSource, EmitError> {
    let mut args = vec![
        Arg::written(0, kernel.dtype, "products x rows x columns"),
        strides(ArgRole::Written(0), "outer and inner products, rows and columns", 4),
        fault(),
    ];
    args.extend(sizes(&[
        (SizeName::Rows, "rows of each product"),
        (SizeName::Columns, "columns of each product"),
        (SizeName::Outer, "outer products"),
        (SizeName::Inner, "inner products of each outer one"),
    ]));
    let formula = "out0, but for what a test changes".to_string();
    let description =
        Description { name: &kernel.name, kind: "a fault, for tests", doc: &kernel.doc, geometry: FLAT, formula, args };
    let bits = match kernel.dtype.size() {
        2 => "unsigned short",
        4 => "unsigned",
        _ => "unsigned long long",
    };
    description.render(program, "disturb_result.cu.j2", [kernel.dtype; 2], context! { bits })
}

/// What all of these kernels have in common.
struct Description<'a> {
    name: &'a str,
    kind: &'static str,
    doc: &'a str,
    geometry: Geometry,
    formula: String,
    args: Vec<Arg>,
}

impl Description<'_> {
    fn render<const N: usize>(
        self,
        program: &Program,
        template: &str,
        dtypes: [DType; N],
        own: Value,
    ) -> Result<CudaSource, EmitError> {
        let name = identifier("hypatia_", self.name);
        let entries = vec![Entry { name: name.clone(), geometry: self.geometry }];
        let header = Header {
            name: self.name,
            kind: self.kind,
            doc: self.doc,
            formula: std::slice::from_ref(&self.formula),
            args: &self.args,
            entries: &entries,
            in_place: false,
        };
        let mut functions = Functions::new(program);
        functions.need("axes");
        let ctx = context! {
            entry => name,
            args => declarations(&self.args, &[]),
            ..common(header, &functions, dtypes.into_iter(), &[])?
        };
        let ctx = minijinja::value::merge_maps([own, ctx]);
        let text = render(template, &format!("{}.cu", identifier("", self.name)), ctx)?;
        Ok(CudaSource { name: self.name.into(), formula: self.formula, text, entries, args: self.args, launch: None })
    }
}

/// The function that makes an element a number of the compute type.
fn load(dtype: DType) -> String {
    widen("", dtype).trim_end_matches("()").to_string()
}

/// Half the distance of 1 and the next number.
fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON / 2.0,
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        _ => 2f64.powi(-24),
    }
}

/// The largest number.
fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MAX,
        DType::F16 => 65504.0,
        _ => 3.38e38,
    }
}
