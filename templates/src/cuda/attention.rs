//! Attention in tiles that stores no scores, for Hopper.
//!
//! In: an [`AttentionKernel`] whose tiling fits. Out: its source, and that of the kernel that joins
//! the chunks of keys if the tiling has some; what the template of warps shares with it
//! ([`Scores`]). Invariant: the score is one inlined function of the product and of what the term
//! reads, and so is what is stored of a result; a positive factor of the whole score becomes a
//! factor of the exponent, and nothing else of the term is changed.

use minijinja::value::merge_maps;
use minijinja::{Value, context};

use super::term::{Functions, compute_name};
use super::tiles::{FLOATS, OnTiles, Tiles, loaded};
use super::{Arg, ArgKind, ArgRole, CudaSource, EmitError, Geometry, SizeName};
use hypatia_dsl::builtin::{BuiltinScalar, SECOND};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::attention::{Along, AttentionKernel, AttentionProblem, BATCH, Finish, QUERY_ROWS};
use hypatia_dsl::kernel::{Access, Operand};
use hypatia_dsl::scalar::{Literal, Term, TermId, TermNode, prune};

/// The name of the score's function, and its comment.
const SCORE: (&str, &str) = ("score", "The score of a query and a key, from their product.");
/// The name of the function of an element of the result, and its comment.
const FINISH: (&str, &str) = ("finish", "What is stored of an element of the result.");
/// Queries, keys and values, which come before what the scores read.
pub(super) const FACTORS: usize = 3;
/// Axes of the tensors that the copy engine moves: elements of a head, rows, the batch.
pub(super) const AXES: usize = 2 + BATCH;
/// The indices of a score, and of an element of the result, in the templates.
const OF_SCORES: [&str; AXES] = ["tile.b0", "tile.b1", "tile.b2", "min(q_row, m - 1)", "min(q_col, n - 1)"];
const OF_RESULTS: [&str; AXES] = ["tile.b0", "tile.b1", "tile.b2", "o_row", "o_col"];
/// Columns that the copy engine moves at a time.
const COLUMNS: usize = 64;
/// Threads of a block that joins chunks, at most.
const JOIN_BLOCK: usize = 128;

/// What a template of attention is filled in with, whatever the architecture.
pub(super) struct Scores<'p> {
    /// The functions that the score calls.
    pub functions: Functions<'p>,
    /// The functions of the terms.
    pub bodies: Vec<String>,
    /// What is computed, for people.
    pub formula: String,
    /// Values of the template.
    pub values: Value,
}

impl<'p> Scores<'p> {
    /// Of a problem whose score is called `copies` times. With `stores`, the kernel stores results,
    /// not sums of chunks.
    pub fn of(
        program: &'p Program,
        of: &AttentionProblem,
        copies: usize,
        stores: bool,
    ) -> Result<Scores<'p>, EmitError> {
        if let Some(why) = of.refusal() {
            return Err(malformed(of, why));
        }
        let (factor, term) = factored(program, &of.term);
        let mut functions = Functions::bare(program);
        let score = OnTiles { term: &term, pair: false, inputs: &of.inputs, factors: FACTORS, types: FLOATS };
        let body = score.function(&mut functions, SCORE, &[DType::F32], copies as u64)?;
        if of.inputs.iter().any(|o| o.access != Access::Splat) {
            functions.need("axes");
        }
        let written = OnTiles { term: &of.term, ..score }.formula(program);
        let Finished { body: finish, formula, values: finished } = Finished::of(&mut functions, of, stores)?;
        let formula = format!("{formula}softmax({written}) in2, where acc = in0 transpose(in1)");
        let values = context! {
            head => of.padded_head(),
            value => of.padded_value(),
            intervals => of.intervals,
            inputs => inputs(&of.inputs, &of.along, FACTORS),
            lse => of.lse,
            ..merge_maps([finished, softmax(of, factor)])
        };
        Ok(Scores { functions, bodies: std::iter::once(body).chain(finish).collect(), formula, values })
    }
}

/// What is stored of an element of the result.
struct Finished {
    /// Its function, if it is not the element itself.
    body: Option<String>,
    /// How the formula of a result begins.
    formula: String,
    /// Values of the template.
    values: Value,
}

impl Finished {
    fn of(functions: &mut Functions<'_>, of: &AttentionProblem, stores: bool) -> Result<Finished, EmitError> {
        let program = functions.program();
        let finish = of.finish.as_ref().filter(|_| stores);
        let Some(Finish { inputs, along, term }) = finish else {
            let values = context! { finish => false, finish_lse => false, finish_inputs => Vec::<Value>::new() };
            return Ok(Finished { body: None, formula: "out0 = ".into(), values });
        };
        let factors = FACTORS + of.inputs.len();
        let second = of.finish.as_ref().is_some_and(Finish::reads_lse);
        let term = OnTiles { term, pair: second, inputs, factors, types: FLOATS };
        let body = term.function(functions, FINISH, &[DType::F32], (of.padded_value() / 2) as u64)?;
        if inputs.iter().any(|o| o.access != Access::Splat) {
            functions.need("axes");
        }
        let at = |(i, (o, along)): (usize, (&Operand, &[Along; AXES]))| input(i + factors, o, along, OF_RESULTS);
        let list: Value = inputs.iter().zip(along).enumerate().map(at).collect();
        let lse = if second { format!("{SECOND} is the log-sum-exp of the scores, ") } else { String::new() };
        let formula = format!("out0 = {}, where {lse}acc = ", term.formula(program));
        Ok(Finished {
            body: Some(body),
            formula,
            values: context! { finish => true, finish_lse => second, finish_inputs => list },
        })
    }
}

pub(super) fn malformed(of: &AttentionProblem, what: &str) -> EmitError {
    EmitError::Malformed(format!("attention {}: {what}", of.name))
}

pub(super) fn flag(b: bool) -> &'static str {
    if b { "true" } else { "false" }
}

pub(super) fn emit(program: &Program, kernel: &AttentionKernel) -> Result<CudaSource, EmitError> {
    let (of, t) = (&kernel.problem, &kernel.tiling);
    // The score is called for tiles that hide keys, and for those that hide none.
    let mut scores = Scores::of(program, of, t.keys, t.chunk == 0)?;
    let stages = kernel.stages();
    let stages = stages.ok_or_else(|| malformed(of, "its tiles do not fit into shared memory or registers"))?;
    if of.lse && t.chunk == 0 {
        scores.functions.need("axes");
    }
    let tiles = Tiles {
        name: &of.name,
        doc: &of.doc,
        kind: "tiled attention",
        formula: scores.formula,
        args: arguments(kernel),
        geometry: Geometry::Tiles {
            block: t.threads() as u32,
            cluster: 1,
            rows: t.rows() as u32,
            columns: of.padded_value().next_multiple_of(COLUMNS) as u32,
            shared: kernel.shared() as u32,
        },
        bodies: scores.bodies,
        template: "attention_sm90.cu.j2",
    };
    let uses = |i: usize| of.varies[i].iter().map(|v| u8::from(*v)).collect::<Value>();
    let own = context! {
        axes => AXES,
        tile_n => t.keys,
        consumers => t.consumers,
        turns => flag(t.consumers > 1),
        stages => stages,
        value_size => of.value,
        own_staging => flag(kernel.has_staging() || t.chunk > 0),
        split => t.chunk > 0,
        lse => of.lse && t.chunk == 0,
        chunk => t.chunk / t.keys,
        k_uses => uses(0),
        v_uses => uses(1),
        ..scores.values
    };
    tiles.render(&scores.functions, own)
}

/// The kernel that joins the chunks of an attention whose keys are split.
pub(super) fn join(program: &Program, kernel: &AttentionKernel) -> Result<CudaSource, EmitError> {
    let of = &kernel.problem;
    if let Some(why) = of.refusal() {
        return Err(malformed(of, why));
    }
    let (factor, _) = factored(program, &of.term);
    let block = of.padded_value().next_multiple_of(32).min(JOIN_BLOCK);
    let mut functions = Functions::bare(program);
    functions.need("axes");
    let Finished { body, formula, values: finished } = Finished::of(&mut functions, of, true)?;
    let tiles = Tiles {
        name: &of.name,
        doc: &of.doc,
        kind: "attention's chunks of keys, joined",
        formula: formula + "sums of weights and values over all chunks, divided by the sum of the weights",
        args: join_arguments(kernel),
        geometry: Geometry::Rows { block: block as u32, threads: block as u32, up_to: None },
        bodies: body.into_iter().collect(),
        template: "attention_join.cu.j2",
    };
    let own = context! {
        width => of.value,
        sums => of.padded_value(),
        block => block,
        lse => of.lse,
        ..merge_maps([finished, softmax(of, factor)])
    };
    tiles.render(&functions, own)
}

/// What all kernels know of the softmax.
fn softmax(of: &AttentionProblem, factor: f64) -> Value {
    context! {
        half => of.dtype.name(),
        safe => flag(of.safe),
        short => of.short,
        exponent => format!("{:?}f", (factor * if of.short { std::f64::consts::LOG2_E } else { 1.0 }) as f32),
        factor => format!("{:?}f", factor as f32),
        apart => !of.inputs.is_empty(),
    }
}

/// A positive factor of a whole term, and the rest of the term.
fn factored(program: &Program, term: &Term) -> (f64, Term) {
    /// Factors beyond these would overflow or underflow scores that the term holds.
    const RANGE: std::ops::Range<f64> = 1e-9..1e9;
    let (mut factor, mut root) = (1.0, term.root());
    let node = |id: TermId| &term.nodes[id.0 as usize];
    while let TermNode::Call { scalar, args } = node(root) {
        let [a, b] = args.as_slice() else { break };
        let (number, rest) = match (node(*a), node(*b)) {
            (TermNode::Lit(Literal(n)), _) => (*n, *b),
            (_, TermNode::Lit(Literal(n))) => (*n, *a),
            _ => break,
        };
        if program.builtin_scalar(BuiltinScalar::Mul) != Some(*scalar) || !RANGE.contains(&(factor * number)) {
            break;
        }
        (factor, root) = (factor * number, rest);
    }
    (factor, prune(&Term { nodes: term.nodes.clone(), roots: vec![root] }))
}

/// The operands of the scores, which come after the factors, as the template sees them.
pub(super) fn inputs(operands: &[Operand], along: &[[Along; AXES]], factors: usize) -> Value {
    operands.iter().zip(along).enumerate().map(|(i, (o, along))| input(i + factors, o, along, OF_SCORES)).collect()
}

fn input(at: usize, o: &Operand, along: &[Along; AXES], places: [&str; AXES]) -> Value {
    let name = format!("in{at}");
    let load = |index: &str| loaded(o.dtype, &format!("{name}[{index}]"));
    let steps = places.iter().zip(along).enumerate().filter_map(|(axis, (place, along))| match along {
        Along::Same => None,
        Along::Dense => Some((*place).to_string()),
        Along::Strided => Some(format!("{place} * {name}_strides.at[{axis}]")),
    });
    let index: Vec<String> = steps.collect();
    let splat = o.access == Access::Splat;
    context! {
        index => at,
        splat => splat,
        first => load("0"),
        compute => compute_name(o.dtype),
        value => if splat { format!("{name}_all") } else { load(&index.join(" + ")) },
    }
}

/// The sums of the chunks, which one kernel writes and the other one reads.
fn sums(kernel: &AttentionKernel, kind: ArgKind) -> [Arg; 2] {
    let width = kernel.problem.padded_value();
    [
        Arg::memory(ArgRole::Sums, kind, format!("batch x queries x chunks x {width}: weights times values, summed")),
        Arg::memory(ArgRole::Tops, kind, "batch x queries x chunks x 2: the largest score, and the sum of the weights"),
    ]
}

fn join_arguments(kernel: &AttentionKernel) -> Vec<Arg> {
    let mut out = sums(kernel, ArgKind::Input(DType::F32)).to_vec();
    out.push(Arg::written(0, kernel.problem.dtype, "batch x queries x value, with its strides"));
    let about = "elements of out0 between neighbours along the batch's axes, queries and values";
    out.push(Arg::strides(ArgRole::Written(0), AXES, about));
    out.extend(lse(&kernel.problem));
    out.extend(read_behind(&kernel.problem));
    out.push(Arg::rows("queries of all heads"));
    let sizes = [
        (SizeName::Queries, "queries of each head"),
        (SizeName::Batch1, "second axis of the batch"),
        (SizeName::Batch2, "third axis of the batch"),
        (SizeName::Chunks, "chunks of keys"),
    ];
    out.extend(sizes.map(|(name, about)| Arg::size(name, about)));
    out
}

fn arguments(kernel: &AttentionKernel) -> Vec<Arg> {
    let (of, t) = (&kernel.problem, &kernel.tiling);
    let map = |name: &str, role: ArgRole, rows: usize, about: &str| {
        Arg::map(name.to_string(), role, of.dtype, [COLUMNS, rows], about)
    };
    let mut out = vec![
        map("q_map", ArgRole::Read(0), t.rows(), "batch x queries x head"),
        map("k_map", ArgRole::Read(1), t.keys, "batch x keys x head"),
        map("v_map", ArgRole::Read(2), t.keys, "batch x keys x value"),
    ];
    if t.chunk == 0 {
        out.push(map("out_map", ArgRole::Written(0), QUERY_ROWS, "batch x queries x value"));
    } else {
        out.extend(sums(kernel, ArgKind::Output(DType::F32)));
    }
    if t.chunk == 0 {
        out.extend(lse(of));
    }
    out.extend(read(&of.inputs, FACTORS));
    if t.chunk == 0 {
        out.extend(read_behind(of));
    }
    out.extend(sizes(ArgRole::TiledRows, ArgRole::Named));
    out.push(section());
    if t.chunk > 0 {
        let about = format!("chunks of {} keys, ceil(keys / {0})", t.chunk);
        out.push(Arg::size_of(ArgRole::Problems, SizeName::Chunks, &about));
    }
    out.extend(masked(of.intervals, t.rows(), t.keys));
    out
}

/// What is read where results are stored.
pub(super) fn read_behind(of: &AttentionProblem) -> Vec<Arg> {
    of.finish.as_ref().map_or_else(Vec::new, |f| read(&f.inputs, FACTORS + of.inputs.len()))
}

/// What a term reads.
pub(super) fn read(operands: &[Operand], factors: usize) -> Vec<Arg> {
    let mut out = Vec::new();
    for (i, o) in operands.iter().enumerate() {
        let at = i + factors;
        if o.access == Access::Splat {
            out.push(Arg::read(at, o.dtype, "one element"));
            continue;
        }
        out.push(Arg::read(at, o.dtype, "read with its strides"));
        let about = format!("elements of in{at} between neighbours along the batch's axes, rows and columns");
        out.push(Arg::strides(ArgRole::Read(at), AXES, about));
    }
    out
}

/// The sizes. One of queries and keys is divided into tiles.
pub(super) fn sizes(queries: ArgRole, keys: ArgRole) -> [Arg; 5] {
    [
        (queries, SizeName::Queries, "queries of each head"),
        (keys, SizeName::Keys, "keys of each head, above 0"),
        (ArgRole::Problems, SizeName::Batch0, "first axis of the batch"),
        (ArgRole::Problems, SizeName::Batch1, "second axis of the batch"),
        (ArgRole::Problems, SizeName::Batch2, "third axis of the batch"),
    ]
    .map(|(role, name, about)| Arg::size_of(role, name, about))
}

/// How many heads blocks work on at a time.
pub(super) fn section() -> Arg {
    Arg::size(SizeName::Section, "heads whose keys and values stay in the L2 cache together")
}

/// The second result, if there is one.
pub(super) fn lse(of: &AttentionProblem) -> Vec<Arg> {
    let strides = "elements of out1 between neighbours along the batch's axes and queries";
    let both = [
        Arg::written(1, DType::F32, "batch x queries: the log-sum-exp of each query's scores"),
        Arg::strides(ArgRole::Written(1), AXES, strides),
    ];
    both.into_iter().filter(|_| of.lse).collect()
}

/// The keys that queries attend to, for tiles of this many queries and keys.
pub(super) fn masked(intervals: bool, rows: usize, keys: usize) -> Vec<Arg> {
    if !intervals {
        return Vec::new();
    }
    let about = format!(
        "for each {rows} queries the tiles of {keys} keys that they attend to, [first, end), and those that \
         hide nothing"
    );
    vec![
        Arg::memory(ArgRole::Ranges, ArgKind::Input(DType::I32), about),
        Arg::memory(ArgRole::Intervals, ArgKind::Input(DType::I32), "for each query its keys, [first, end)"),
    ]
}
