//! Tiled matrix products with an epilogue on their accumulators, for Hopper.
//!
//! In: a [`GemmKernel`] whose tiling fits. Out: its source. Invariant: the epilogue is one inlined
//! function of the accumulator and its operands, in the compute types; the template calls it once
//! for each element of the result and rounds once.

use minijinja::{Value, context};

use super::expr::identity_literal;
use super::passes::{combine, start};
use super::prologue;
use super::term::{Functions, compute_name};
use super::tiles::{OnTiles, Tiles, about, loaded};
use super::{Arg, ArgKind, ArgRole, CudaSource, EmitError, Geometry, SizeName, storage};
use hypatia_dsl::builtin::SECOND;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{Access, Along, GemmKernel, ImageWindows, Operand, Reduced, TILE_K, WindowAxis};

/// The name of the epilogue's function, and its comment.
pub(super) const EPILOGUE: (&str, &str) = ("epilogue", "What becomes of an element of the product.");
/// Rows or columns of an operand or result that the copy engine moves at a time: a side of its box.
const BOX: usize = 64;
/// Bytes of k that one multiplication takes of each factor.
const STEP: usize = 32;

pub(super) fn emit(program: &Program, kernel: &GemmKernel) -> Result<CudaSource, EmitError> {
    let malformed = |what: &str| EmitError::Malformed(format!("tiled product {}: {what}", kernel.name));
    let stages = kernel.stages().ok_or_else(|| malformed("its tiles do not fit into shared memory"))?;
    if let Some(why) = kernel.refusal() {
        return Err(malformed(why));
    }
    let mut functions = Functions::bare(program);
    let t = &kernel.tiling;
    let reduced: Vec<Value> =
        (0..kernel.reduced.len()).map(|i| reduction(kernel, i, &mut functions)).collect::<Result<_, _>>()?;
    let term = OnTiles {
        term: &kernel.term,
        pair: kernel.pair,
        inputs: &kernel.inputs,
        factors: kernel.reads(),
        types: [kernel.acc(), kernel.value()],
    };
    let per_thread = t.rows * kernel.kept() / 128;
    let mut bodies = vec![term.function(&mut functions, EPILOGUE, &kernel.outputs, per_thread as u64)?];
    let walks = prologue::units(&kernel.prologues, kernel.dense_k, kernel.types[0]);
    for (walk, lines) in walks.iter().zip([t.block_rows(), t.columns]) {
        let copies = lines * TILE_K / (128 * kernel.producers());
        bodies.extend(walk.map(|w| w.function(&mut functions, copies)).transpose()?);
    }
    if kernel.computes() || kernel.inputs.iter().any(|o| o.access == Access::Strided) {
        functions.need("axes");
    }
    let rights = rights(kernel);
    let tiles = Tiles {
        name: &kernel.name,
        doc: &kernel.doc,
        kind: match (kernel.pair, kernel.windows) {
            (true, _) => "two matrix products with their epilogue",
            (_, Some(_)) => "a product of an image's windows with its epilogue",
            _ => "a matrix product with its epilogue",
        },
        formula: format!(
            "{}, where {}",
            formulas(kernel, &term, program),
            prologue::factors(program, walks, rights[0], &["acc", SECOND][..rights.len()])
        ),
        args: arguments(kernel),
        geometry: Geometry::Tiles {
            block: kernel.threads() as u32,
            cluster: t.blocks() as u32,
            rows: (t.block_rows() * t.cluster[0]) as u32,
            columns: (kernel.columns() * t.cluster[1]) as u32,
            shared: kernel.shared() as u32,
        },
        bodies,
        template: "gemm_sm90.cu.j2",
    };
    let [a, b] = kernel.dense_k;
    let [left, right] = walks;
    let registers = kernel.registers();
    let own = context! {
        half => kernel.half().unwrap_or(DType::F32).name(),
        multiplied => match kernel.types {
            [DType::F32, _] => vec!["tf32"],
            [a, b] if kernel.of_bytes() => vec![sign(a), sign(b)],
            [d, _] => vec![d.name()],
        },
        step_k => STEP / kernel.types[0].size(),
        sum => storage(kernel.acc()),
        value => storage(kernel.value()),
        tile_k => kernel.depth(),
        axes => 3,
        ranks => if kernel.parts == [None, None] { vec![3] } else { vec![3, 4] },
        shared => kernel.shared.to_vec(),
        parts => kernel.parts.iter().copied().collect::<Value>(),
        size => kernel.outputs[0].size(),
        results => kernel.outputs.len(),
        reduced => reduced,
        over_rows => over_rows(&kernel.reduced).count(),
        whole => kernel.whole(),
        in_turn => kernel.in_turn(),
        chunk => kernel.chunk(),
        tile_m => t.rows,
        tile_n => t.columns,
        consumers => t.consumers,
        pingpong => t.pingpong,
        cluster_m => t.cluster[0],
        cluster_n => t.cluster[1],
        group => t.group,
        split => t.split,
        stages => stages,
        pair => kernel.pair,
        windows => kernel.windows.map(|w| windows(&w)),
        a_by_k => a,
        b_by_k => b,
        left => left.map(|w| w.context()),
        right => right.map(|w| w.context()),
        rights => rights.iter().map(|at| format!("in{at}")).collect::<Value>(),
        ahead => kernel.ahead(),
        producers => kernel.producers(),
        of_producer => registers.map(|[producer, _]| producer),
        of_consumer => registers.map(|[_, consumer]| consumer),
        fetched => kernel.fetched().iter().map(|i| i + kernel.reads()).collect::<Value>(),
        rows => kernel.staged_rows().iter().map(|i| row(kernel, *i)).collect::<Value>(),
        row_sums => super::checksum::word(kernel.row_sums),
        inputs => kernel.inputs.iter().enumerate().map(|(i, o)| input(kernel, i, o)).collect::<Value>(),
    };
    tiles.render(&functions, own)
}

/// The reductions that run over rows.
fn over_rows(reduced: &[Reduced]) -> impl Iterator<Item = &Reduced> {
    reduced.iter().filter(|r| r.along == Along::Rows)
}

/// A reduction as the template sees it.
fn reduction(kernel: &GemmKernel, i: usize, functions: &mut Functions<'_>) -> Result<Value, EmitError> {
    let Reduced { kind, along } = kernel.reduced[i];
    Ok(context! {
        along => match along {
            Along::Rows => "rows",
            Along::Columns => "columns",
            Along::All => "all",
        },
        // Among those that run over rows.
        place => over_rows(&kernel.reduced[..i]).count(),
        neutral => identity_literal(start(kind), DType::F32)?,
        join => combine(functions, kind, DType::F32, "a", "b"),
    })
}

/// A value for each result, as text.
fn formulas(kernel: &GemmKernel, term: &OnTiles<'_>, program: &Program) -> String {
    let value =
        |(i, formula): (usize, String)| match i.checked_sub(kernel.outputs.len()).map(|i| (i, kernel.reduced[i])) {
            None => format!("out{i} = {formula}"),
            Some((i, Reduced { kind, along })) => {
                let over = match along {
                    Along::Rows => "rows",
                    Along::Columns => "columns",
                    Along::All => "all elements",
                };
                format!("part{i} = {} over {over} of a tile of {formula}", kind.name())
            }
        };
    term.formulas(program).into_iter().enumerate().map(value).collect::<Vec<_>>().join(", ")
}

/// The windows that are the rows of the left factor as the template sees them.
fn windows(w: &ImageWindows) -> Value {
    context! { slices => w.slices(), slices_of_place => w.slices_of_place(), ..window_axes(&w.axes) }
}

/// How windows lie along rows and columns: of each pair, that of rows comes first.
pub(super) fn window_axes(axes: &[WindowAxis; 2]) -> Value {
    let of = |value: fn(&WindowAxis) -> usize| axes.iter().map(value).collect::<Value>();
    context! {
        image => of(|a| a.image),
        out => of(|a| a.out),
        size => of(|a| a.size),
        stride => of(|a| a.stride),
        dilation => of(|a| a.dilation),
        before => of(|a| a.before),
    }
}

/// The instruction's name of an integer type of 8 bits.
pub(super) fn sign(dtype: DType) -> &'static str {
    if dtype == DType::I8 { "s8" } else { "u8" }
}

/// The number of the first operand of each right factor.
fn rights(kernel: &GemmKernel) -> Vec<usize> {
    let [left, right] = [0, 1].map(|i| kernel.prologues[i].as_ref().map_or(1, |p| p.inputs.len()));
    (1..kernel.factors()).map(|i| left + (i - 1) * right).collect()
}

/// An operand of a row as the template sees it.
fn row(kernel: &GemmKernel, i: usize) -> Value {
    context! { index => i + kernel.reads(), size => kernel.inputs[i].dtype.size() }
}

/// An operand of the epilogue as the template sees it.
fn input(kernel: &GemmKernel, i: usize, o: &Operand) -> Value {
    let place = |list: Vec<usize>| list.iter().position(|f| *f == i);
    let (fetched, row) = (place(kernel.fetched()), place(kernel.staged_rows()));
    let name = format!("in{}", i + kernel.reads());
    let zero = format!("({})0", compute_name(o.dtype));
    let load = |index: &str| loaded(o.dtype, &format!("{name}[{index}]"));
    let value = match (&o.access, fetched.or(row)) {
        (Access::Row, Some(at)) if o.dtype.size() == 2 => {
            format!("widened((unsigned short)(row{at}[q_half] >> (16 * e)))")
        }
        (Access::Row, Some(at)) => format!("row{at}[q_half][e]"),
        (_, Some(at)) if kernel.outputs[0].size() == 2 => {
            format!("widened((unsigned short)(fetched{at}[q] >> (16 * e)))")
        }
        (_, Some(at)) => format!("fetched{at}[e]"),
        (Access::Splat, _) => format!("{name}_all"),
        (Access::Row, None) => format!("q_col < n ? {} : {zero}", load("q_col")),
        (Access::Col, _) => {
            format!("q_row < m ? {} : {zero}", load("(long long)tile.batch * m + q_row"))
        }
        (Access::Full, _) => {
            let index = "((long long)tile.batch * m + q_row) * n + q_col";
            format!("q_row < m && q_col < n ? {} : {zero}", load(index))
        }
        (Access::Strided, _) => {
            let s = |axis: usize| format!("{name}_strides.at[{axis}]");
            let index = format!("tile.batch * {} + q_row * {} + q_col * {}", s(0), s(1), s(2));
            format!("q_row < m && q_col < n ? {} : {zero}", load(&index))
        }
    };
    context! {
        index => i + kernel.reads(),
        splat => o.access == Access::Splat,
        first => load("0"),
        compute => compute_name(o.dtype),
        value => value,
    }
}

fn arguments(kernel: &GemmKernel) -> Vec<Arg> {
    let t = &kernel.tiling;
    let [m, n] = t.cluster;
    let factor = |i: usize, side: usize, part: usize, about: &str| {
        let lead = if kernel.dense_k[side] { [kernel.depth(), part] } else { [BOX, kernel.depth()] };
        match &kernel.prologues[side] {
            Some(p) => prologue::arguments(p, i, ["rows", "columns"][side]),
            None => {
                let map = Arg::map(format!("in{i}_map"), ArgRole::Read(i), kernel.types[side], lead, about).factor();
                let own = [SizeName::Rows, SizeName::Columns][side];
                let axes = if kernel.dense_k[side] { [own, SizeName::Depth] } else { [SizeName::Depth, own] };
                // A window has channels instead.
                vec![if kernel.windows.is_none() { map.with_axes(axes) } else { map }]
            }
        }
    };
    let [a, b] = kernel.dense_k;
    // A box of each of two right factors; of one, a block of the cluster loads its part.
    let part = if kernel.pair { kernel.columns() } else { t.columns / m };
    let right = match (kernel.windows, b) {
        (None, true) if kernel.shared[1] => "columns x depth",
        (None, false) if kernel.shared[1] => "depth x columns",
        (None, true) => "batches x columns x depth",
        (None, false) => "batches x depth x columns",
        (Some(_), true) => "places of a window x columns x channels",
        (Some(_), false) => "places of a window x channels x columns",
    };
    let left = match (kernel.shared[0], a) {
        (true, true) => "rows x depth",
        (true, false) => "depth x rows",
        (false, true) => "batches x rows x depth",
        (false, false) => "batches x depth x rows",
    };
    let lines = t.block_rows() / n;
    let mut out = match (kernel.windows, kernel.parts[0]) {
        (Some(w), _) => {
            let shape = "images x rows x columns x channels; a row of the product is a window";
            vec![Arg::image("in0_map".into(), kernel.types[0], [TILE_K, lines], w.bounds(), shape)]
        }
        (None, Some(_)) => {
            let shape = "batches x parts of depth x rows x depth of a part";
            let map = Arg::map("in0_map".into(), ArgRole::Read(0), kernel.types[0], [kernel.depth(), lines], shape);
            vec![map.factor().in_parts()]
        }
        (None, None) => factor(0, 0, lines, left),
    };
    out.extend(rights(kernel).into_iter().flat_map(|at| factor(at, 1, part, right)));
    let result = [kernel.chunk(), BOX];
    let (shape, axes) = ("batches x rows x columns", [SizeName::Rows, SizeName::Columns]);
    for (i, o) in kernel.outputs.iter().enumerate() {
        let of_parts = "batches x parts of columns x rows x columns of a part";
        let about = if kernel.parts[1].is_some() { of_parts } else { shape };
        let map = Arg::map(format!("out{i}_map"), ArgRole::Written(i), *o, result, about);
        out.push(if kernel.parts[1].is_some() { map.in_parts() } else { map.with_axes(axes) });
    }
    for (i, r) in kernel.reduced.iter().enumerate() {
        let about = match r.along {
            Along::Rows => "tiles along the rows of all products x columns",
            Along::Columns => "tiles along the columns x rows of all products",
            Along::All => "four for each tile",
        };
        out.push(Arg::memory(ArgRole::Part(i), ArgKind::Output(DType::F32), about));
    }
    let fetched = kernel.fetched();
    for (i, o) in kernel.inputs.iter().enumerate() {
        let at = i + kernel.reads();
        if fetched.contains(&i) {
            out.push(Arg::map(format!("in{at}_map"), ArgRole::Read(at), o.dtype, result, shape).with_axes(axes));
            continue;
        }
        out.push(Arg::read(at, o.dtype, about(&o.access, shape)));
        if o.access == Access::Strided {
            let about = format!("elements of in{at} between neighbouring products, rows and columns");
            out.push(Arg::strides(ArgRole::Read(at), 3, about));
        }
    }
    let depth = if kernel.windows.is_some() { "length of the sums" } else { "length of the sums, above 0" };
    let sizes = [
        (ArgRole::TiledRows, SizeName::Rows, "rows of each product"),
        (ArgRole::TiledColumns, SizeName::Columns, "columns of each product"),
        (ArgRole::Named, SizeName::Depth, depth),
        (ArgRole::Problems, SizeName::Batches, "products"),
    ];
    out.extend(sizes.map(|(role, name, about)| Arg::size_of(role, name, about)));
    out.extend(super::checksum::row_sums_arguments(kernel.row_sums));
    out
}
