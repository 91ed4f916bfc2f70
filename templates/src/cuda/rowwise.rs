//! Row-wise kernels: reductions over rows, then values that may use their results.
//!
//! In: a [`RowwiseKernel`]. Out: its source, with one entry point for short rows (one warp per row)
//! and others for longer rows (one block per row); or, if the row length is known, one entry point
//! for that length alone. Invariant: an entry point of the first kind is correct for rows of any
//! length, and `Geometry::Rows::up_to` only says where it is the fastest; one of the second kind is
//! correct for its length. Steps over groups of a row are computed with the results, by the lanes
//! that hold a group.

use minijinja::value::merge_maps;
use minijinja::{Value, context};

use super::carry;
use super::passes::{passes, reads_once};
use super::pointwise::{declarations, reachable};
use super::row_values::{KEPT_BYTES, Values, dtypes, union};
use super::teams::{Stream, Team};
use super::term::{compute_name, formula};
use super::{
    Arg, ArgKind, ArgRole, CudaSource, EmitError, Entry, Geometry, Header, SizeName, common, identifier, render,
    render_part, storage, vector_width,
};
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{GatheredRows, ROWS_OF_SLICES, Reduction, RowAccess, RowsPart, RowwiseKernel, SumSplit};
use hypatia_dsl::scalar::TermNode;

/// Suffix, threads per block, threads that share a row, and the most elements that each of them
/// keeps (the passes are unrolled over them, so more elements make larger code).
const SHAPES: [(&str, u32, u32, usize); 4] =
    [("_lanes", 128, 8, 16), ("_warp", 128, 32, 32), ("_block", 256, 256, 32), ("_wide", 1024, 1024, 32)];

/// Elements of a row from which on it is not kept if it is read once.
const FEW_KEPT: u64 = 1 << 13;

/// The most elements of a pack where rows lie along several axes.
const MOST_ALONG_AXES: usize = 4;

/// Threads per block of the entry point with one thread per row.
const COLUMN_BLOCK: u32 = 256;

/// How many threads should share adjacent rows of `n` strided elements, so that a device with
/// `threads` resident threads is half full; none if one suffices, or the kernel cannot share rows.
pub fn slices(kernel: &RowwiseKernel, [rows, n]: [u64; 2], threads: u64) -> Option<RowTarget> {
    if !kernel.strided() || rows == 0 {
        return None;
    }
    let most = kernel.most_slices(rows as usize, n as usize) as u64;
    let wanted = (threads / 2).div_ceil(rows).min(most);
    (wanted > 1).then(|| RowTarget::Slices(1 << wanted.ilog2()))
}

/// The rows that a kernel is specialised for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowTarget {
    /// One thread per row: many short rows, or adjacent rows whose elements are strided.
    Columns,
    /// Fewer adjacent rows whose elements are strided: so many threads share each, one of each warp
    /// of a block.
    Slices(u32),
    /// Rows of that length.
    Length {
        /// The number of rows, used to choose how many threads share a row; the kernel is correct
        /// for any number.
        rows: u64,
        /// Elements of a row.
        n: u64,
        /// Whether the device supports clusters of blocks (compute capability 9.0), so that several
        /// blocks may share a row.
        clusters: bool,
    },
    /// Rows of that length, in a launch with others.
    Part {
        /// The number of rows.
        rows: u64,
        /// Elements of a row.
        n: u64,
        /// Threads per block.
        block: u32,
    },
    /// Rows of that length whose columns are added up.
    Sums {
        /// Elements of a row.
        n: u64,
        /// How blocks share the rows.
        split: SumSplit,
    },
}

/// How threads share a row.
struct Sharing {
    /// Elements of a pack, which is read at once.
    vector: usize,
    /// Bytes of a pack of all operands.
    pack: usize,
    /// Some operand has one element a column.
    per_column: bool,
    /// All floats are of 16 bits.
    narrow: bool,
    /// The row length, if it is known.
    fixed: Option<u64>,
    team: Option<Team>,
    stream: Option<Stream>,
}

impl Sharing {
    fn of(kernel: &RowwiseKernel, used: &[usize], target: Option<RowTarget>, once: bool) -> Sharing {
        let floats = dtypes(kernel).filter(|d| d.is_float());
        let narrow = floats.clone().next().is_some() && floats.clone().all(|d| d.size() == 2);
        let wide = |a: RowAccess| !matches!(a, RowAccess::PerRow | RowAccess::Splat | RowAccess::Position);
        // What is picked is read element by element.
        let picks = |i: usize| {
            let of =
                |g: &GatheredRows| kernel.inputs[g.table].1 == RowAccess::Picked && [g.table, g.index].contains(&i);
            kernel.gathers.iter().any(of)
        };
        let read = used.iter().filter(|i| !picks(**i)).map(|i| &kernel.inputs[*i]);
        let read = read.filter(|i| wide(i.1)).map(|i| i.0);
        let written = kernel.outputs.iter().filter(|o| is_along(o.1)).map(|o| o.0);
        let mut vector = vector_width(read.chain(written).collect::<Vec<_>>().into_iter());
        // Elements along several axes are read one by one, each with a division for every axis: a
        // wider pack would only make the code longer.
        if kernel.strided() && kernel.axes[1] > 1 {
            vector = vector.min(MOST_ALONG_AXES);
        }
        // A pack lies in one group.
        while !kernel.groups.is_none_or(|g| g.size.is_multiple_of(vector)) {
            vector /= 2;
        }
        let length = match target {
            Some(RowTarget::Length { n, .. } | RowTarget::Part { n, .. } | RowTarget::Sums { n, .. }) => Some(n),
            _ => None,
        };
        // The vector width must divide the row length, so that every row begins at a pack boundary.
        while length.is_some_and(|n| !n.is_multiple_of(vector as u64)) {
            vector /= 2;
        }
        let fixed = match target {
            Some(RowTarget::Length { rows, n, clusters }) => Some(([rows, n], clusters)),
            Some(RowTarget::Part { rows, n, .. }) => Some(([rows, n], false)),
            Some(RowTarget::Sums { n, split }) => {
                let team = Some(Team::of_sums(n, vector as u64, split));
                let pack = pack_bytes(kernel, used, vector);
                return Sharing { vector, pack, per_column: true, narrow: false, fixed: Some(n), team, stream: None };
            }
            _ => None,
        };
        let pack = pack_bytes(kernel, used, vector);
        let per_column = used.iter().any(|i| kernel.inputs[*i].1 == RowAccess::PerColumn);
        let team = fixed.map(|(sizes, clusters)| {
            let most = (KEPT_BYTES / (pack / vector).max(1)) as u64;
            // Packs of narrow floats take half as many registers as they have elements.
            let dense = (narrow && vector > 1).then_some(if per_column { 2 } else { 3 });
            let team = match once && sizes[1] >= FEW_KEPT {
                true => Team::unkept(sizes, vector as u64, clusters),
                false => Team::of(sizes, vector as u64, most, dense, clusters),
            };
            match target {
                Some(RowTarget::Part { n, block, .. }) => team.in_blocks(block, n, vector as u64),
                _ => team,
            }
        });
        let long = fixed.filter(|_| team.as_ref().is_some_and(|t| t.cluster > 1 && t.chunks.is_some()));
        let (stream, team) = match long.and_then(|(sizes, _)| Stream::of(kernel, used, sizes, vector as u64)) {
            Some((stream, team)) => (Some(stream), Some(team)),
            None => (None, team),
        };
        // Where the lanes of a group do not hold it at once, elements do not stay where they are.
        let whole = |t: &Team| kernel.groups.is_none_or(|g| holds_group(g.size / vector, t.threads));
        let (stream, team) = match team {
            Some(team) if !whole(&team) => (None, Some(Team { chunks: None, ..team })),
            team => (stream, team),
        };
        Sharing { vector, pack, per_column, narrow, fixed: fixed.map(|([_, n], _)| n), team, stream }
    }

    /// Elements that a thread keeps from pass to pass.
    fn kept(&self) -> Option<usize> {
        self.team.as_ref().and_then(|t| t.chunks).map(|c| c as usize * self.vector)
    }

    /// The entry points, and what the template knows of them.
    fn entries(&self, kernel: &RowwiseKernel, target: Option<RowTarget>) -> (Vec<Entry>, Value) {
        match (target, &self.team) {
            (Some(RowTarget::Sums { n, split }), Some(team)) => sums_entry(kernel, n, team, split),
            (Some(RowTarget::Length { n, .. } | RowTarget::Part { n, .. }), Some(team)) => {
                fixed_entry(kernel, n, team, self.stream.as_ref())
            }
            (Some(RowTarget::Slices(slices)), _) => slices_entry(kernel, slices),
            (Some(_), _) => columns_entry(kernel),
            (None, _) => entry_points(kernel, self.pack, self.vector),
        }
    }

    /// What the template wants to know of it.
    fn context(&self, kernel: &RowwiseKernel, target: Option<RowTarget>) -> Value {
        let team = self.team.as_ref();
        context! {
            vector => self.vector,
            known => self.fixed.is_some(),
            fixed => self.fixed,
            minblocks => team.map(|t| t.blocks).filter(|n| *n > 0),
            streamed => streamed(kernel, self.stream.as_ref()),
            block => team.map_or(0, |t| t.block),
            // With per-column operands, the freed registers go to keeping more of those and do not
            // suffice.
            whole_block => !self.per_column && team.is_some_and(|t| t.block as u64 == t.threads),
            keep => team.is_some_and(|t| t.chunks.is_some()),
            cluster => team.map_or(1, |t| t.cluster),
            slices => matches!(target, Some(RowTarget::Slices(_))),
            // With one barrier per row, the wait for stores is hidden by other rows, and it keeps
            // them from crowding memory.
            tells => kernel.steps.len() > 1,
        }
    }
}

/// A row-wise kernel as a part of another source.
pub(super) struct Part {
    /// Its functions, the last one for all rows.
    pub text: String,
    /// Its pointers.
    pub args: Vec<Arg>,
    /// Threads that share a row, and the packs that each keeps.
    pub team: [u64; 2],
    /// Threads per block, and the blocks for all rows.
    pub grid: [u64; 2],
    /// Blocks per multiprocessor that registers are reserved for, if any are.
    pub reserved: u32,
    /// What it computes.
    pub formula: Vec<String>,
    /// The headers that it needs.
    pub includes: Vec<String>,
}

/// A kernel for these rows as a part of a source whose blocks have at least so many threads. Its
/// sizes are constants.
pub(super) fn part(program: &Program, of: &RowsPart, block: u32) -> Result<Part, EmitError> {
    let kernel = &of.kernel;
    check(kernel)?;
    if !kernel.sums.is_empty() {
        return Err(EmitError::Malformed(format!("kernel `{}`: sums over rows as a part", kernel.name)));
    }
    let target = RowTarget::Part { rows: of.rows as u64, n: of.n as u64, block };
    let Printed { ctx, args, formula, sharing, .. } = printed(program, kernel, Some(target))?;
    let args: Vec<Arg> =
        args.into_iter().filter(|a| matches!(a.kind, ArgKind::Input(_) | ArgKind::Output(_))).collect();
    let strides = args
        .iter()
        .zip(&of.layout.strides)
        .map(|(a, own)| context! { name => format!("{}_strides", a.name), values => own });
    let sizes = std::iter::once(context! { name => "sizes", values => of.layout.sizes.clone() });
    let constants: Vec<Value> = if kernel.strided() { sizes.chain(strides).collect() } else { Vec::new() };
    let about = context! { rows => of.rows, constants => constants };
    let own = context! { part => about, args => declarations(&args, &[]) };
    let fail = |e: minijinja::Error| EmitError::Template(format!("{e:#}"));
    let includes = ctx.get_attr("includes").and_then(|v| v.try_iter().map(|all| all.map(|i| i.to_string()).collect()));
    let team = sharing.team.ok_or_else(|| EmitError::Malformed(format!("kernel `{}`: no team", kernel.name)))?;
    let together = u64::from(team.block) / team.threads.max(1);
    Ok(Part {
        text: render_part("rowwise.cu.j2", merge_maps([ctx, own]))?,
        args,
        team: [team.threads, team.chunks.unwrap_or(1)],
        grid: [u64::from(team.block), (of.rows as u64).div_ceil(together.max(1))],
        reserved: team.blocks,
        formula,
        includes: includes.map_err(fail)?,
    })
}

/// What a source is rendered from.
struct Printed {
    ctx: Value,
    args: Vec<Arg>,
    entries: Vec<Entry>,
    formula: Vec<String>,
    sharing: Sharing,
}

/// The source of a kernel, for those rows or for any.
pub(super) fn emit(
    program: &Program,
    kernel: &RowwiseKernel,
    target: Option<RowTarget>,
) -> Result<CudaSource, EmitError> {
    check(kernel)?;
    if kernel.sums.is_empty() == matches!(target, Some(RowTarget::Sums { n: 1.., .. })) {
        let what = "sums over all rows need a split of the rows, and a split needs sums";
        return Err(EmitError::Malformed(format!("kernel `{}`: {what}", kernel.name)));
    }
    let Printed { ctx, args, entries, formula, .. } = printed(program, kernel, target)?;
    let text = render("rowwise.cu.j2", &format!("{}.cu", identifier("", &kernel.name)), ctx)?;
    Ok(CudaSource { name: kernel.name.clone(), formula: formula.join("; "), text, entries, args, launch: None })
}

/// What the source of a kernel is rendered from, for those rows or for any.
fn printed(program: &Program, kernel: &RowwiseKernel, target: Option<RowTarget>) -> Result<Printed, EmitError> {
    let mut values = Values::of(program, kernel)?;
    let read = values.used();
    let once = reads_once(program, kernel, &values.steps, &values.step_types);
    let sharing = Sharing::of(kernel, &read, target, once);
    let used = with_places(kernel, read);
    let carried = match sharing.kept().filter(|_| sharing.narrow) {
        Some(elements) => values.carry(elements)?,
        None => Vec::new(),
    };
    let mut args = arguments(kernel);
    args.retain(|a| sharing.fixed.is_none() || a.name != "n");
    if kernel.strided() {
        values.functions.need("quotient");
        values.functions.need("axes");
    }
    let (entries, entry_points) = sharing.entries(kernel, target);
    let formula = describe(program, kernel);
    let header = Header {
        name: &kernel.name,
        kind: "a row-wise kernel",
        doc: &kernel.doc,
        formula: &formula,
        args: &args,
        entries: &entries,
        in_place: false,
    };
    let streams = sharing.stream.is_some();
    let (row_passes, group_passes) = passes(program, &mut values, kernel, &carried, streams)?;
    let of_kernel = context! {
        args => declarations(&args, &[]),
        arg_names => args.iter().map(|a| a.name.as_str()).collect::<Vec<_>>().join(", "),
        passes => row_passes,
        group_passes => group_passes,
        entry_points => entry_points,
        ..common(header, &values.functions, dtypes(kernel), &values.bodies)?
    };
    let ctx = merge_maps([of_kernel, rows(kernel, &values, &used, carried, streams), sharing.context(kernel, target)]);
    Ok(Printed { ctx, args, entries, formula, sharing })
}

/// These operands, and those that say where they are read.
fn with_places(kernel: &RowwiseKernel, mut used: Vec<usize>) -> Vec<usize> {
    let picked = |g: &&GatheredRows| kernel.inputs[g.table].1 == RowAccess::Picked && used.contains(&g.table);
    let places: Vec<usize> = kernel.gathers.iter().filter(picked).map(|g| g.index).collect();
    used.extend(places);
    used.sort_unstable();
    used.dedup();
    used
}

/// What the template knows of a row's operands and results.
fn rows(kernel: &RowwiseKernel, values: &Values<'_, '_>, used: &[usize], carried: Vec<usize>, streams: bool) -> Value {
    let out_inputs = values.read_by_rows(&carried);
    let in_rows = union(values.steps.iter()).into_iter().chain(out_inputs.iter().copied());
    let in_rows: Vec<usize> = used.iter().copied().filter(|i| in_rows.clone().any(|r| r == *i)).collect();
    context! {
        row_params => row_params(kernel, used, streams),
        row_args => row_args(kernel, used, streams),
        kept => per_element(kernel, &in_rows),
        carried => carried,
        gathers => !kernel.gathers.is_empty(),
        outer => kernel.axes[0],
        inner => kernel.axes[1],
        strided => strided(kernel, used),
        splats => of_access(kernel, used, RowAccess::Splat),
        group => kernel.groups.map(|g| g.size),
        out_loads => loads(kernel, &out_inputs, streams).iter().map(Load::statement).collect::<Value>(),
        full_outputs => values.results(&[RowAccess::Full, RowAccess::Strided]),
        group_outputs => values.results(&[RowAccess::PerGroup]),
        row_outputs => values.results(&[RowAccess::PerRow]),
        sums => values.summands(),
        sum_type => kernel.sum_type().map(compute_name),
        alignment => alignment(kernel, used),
    }
}

fn check(kernel: &RowwiseKernel) -> Result<(), EmitError> {
    let bad = |what: &str| Err(EmitError::Malformed(format!("kernel `{}`: {what}", kernel.name)));
    if kernel.outputs.is_empty() && kernel.sums.is_empty() {
        return bad("no outputs");
    }
    for (_, access, term) in &kernel.outputs {
        if term.roots.len() != 1 {
            return bad("an output with several values");
        }
        match access {
            RowAccess::Full => {}
            RowAccess::Strided => {}
            RowAccess::PerGroup if kernel.groups.is_some() => {}
            RowAccess::PerRow => {
                let varies = term.nodes.iter().zip(reachable(term)).any(|(n, r)| match n {
                    TermNode::In { input, .. } => {
                        r && kernel.inputs.get(*input as usize).is_some_and(|i| {
                            matches!(
                                i.1,
                                RowAccess::Full | RowAccess::PerColumn | RowAccess::Gathered | RowAccess::Position
                            )
                        })
                    }
                    _ => false,
                });
                if varies {
                    return bad("an output of one element a row reads a whole row");
                }
            }
            _ => return bad("an output is neither full nor one element a row or a group"),
        }
    }
    if kernel.groups.is_some_and(|g| g.size == 0 || g.first > kernel.steps.len()) {
        return bad("groups of nothing");
    }
    if kernel.strided() && (kernel.axes[0] + kernel.axes[1] > 16 || kernel.axes[1] == 0) {
        return bad("more than 16 axes, or a row of none");
    }
    if kernel.steps.iter().any(|(_, t)| t.roots.len() != 1) {
        return bad("a step with several values");
    }
    let known = carry::operand(kernel, 0) as u32;
    let summands = kernel.sums.iter().map(|s| &s.1);
    let mut terms = kernel.steps.iter().map(|s| &s.1).chain(kernel.outputs.iter().map(|o| &o.2)).chain(summands);
    if terms.any(|t| t.nodes.iter().any(|n| matches!(n, TermNode::In { input, .. } if *input >= known))) {
        return bad("an operand that is neither an input nor a step");
    }
    Ok(())
}

/// True for results along the row.
fn is_along(access: RowAccess) -> bool {
    !matches!(access, RowAccess::PerRow | RowAccess::PerGroup)
}

/// Whether lanes of `threads` that share a row hold a group of this many packs, one each.
fn holds_group(packs: usize, threads: u64) -> bool {
    packs.is_power_of_two() && packs as u64 <= threads.min(32)
}

/// How a pack of elements at `col` is read.
pub(super) struct Load {
    input: usize,
    read: String,
}

impl Load {
    /// The statement that reads it.
    pub fn statement(&self) -> String {
        format!("const auto in{}_v = {};", self.input, self.read)
    }

    /// What the template knows of it.
    pub fn pack(&self, kernel: &RowwiseKernel) -> Value {
        let ty = storage(kernel.inputs[self.input].0);
        context! { name => format!("in{}", self.input), type => ty, read => self.read.clone() }
    }
}

/// How the elements at `col` are read into packs.
pub(super) fn loads(kernel: &RowwiseKernel, inputs: &[usize], streamed: bool) -> Vec<Load> {
    let read = |i: usize| match kernel.inputs[i].1 {
        RowAccess::Full | RowAccess::Strided | RowAccess::Gathered | RowAccess::Picked => {
            Some(format!("in{i}_at(c, col)"))
        }
        RowAccess::PerColumn if streamed => Some(format!("in{i}_at(c, col)")),
        RowAccess::PerColumn => Some(own_read(kernel, i)),
        _ => None,
    };
    inputs.iter().filter_map(|i| Some(Load { input: *i, read: read(*i)? })).collect()
}

/// The elements of a pack of an operand. Rows that are added up stay in registers even where their
/// memory is not aligned.
fn own_read(kernel: &RowwiseKernel, i: usize) -> String {
    match kernel.sums.is_empty() {
        true => format!("load<V>(in{i} + col)"),
        false => format!("fetch<V>(packed, in{i} + col)"),
    }
}

fn of_access(kernel: &RowwiseKernel, used: &[usize], access: RowAccess) -> Value {
    used.iter()
        .filter(|i| kernel.inputs[**i].1 == access)
        .map(|i| context! { name => format!("in{i}"), type => storage(kernel.inputs[*i].0) })
        .collect()
}

/// The operands that are streamed through shared memory or stay there; none if rows are not
/// streamed.
fn streamed(kernel: &RowwiseKernel, stream: Option<&Stream>) -> Value {
    let operands = stream.iter().flat_map(|s| &s.operands);
    operands
        .map(|(i, at)| {
            let (dtype, access) = kernel.inputs[*i];
            let column = access == RowAccess::PerColumn;
            context! { name => format!("in{i}"), type => storage(dtype), column => column, at => at }
        })
        .collect()
}

/// Per-element operands that a thread may keep.
fn per_element(kernel: &RowwiseKernel, used: &[usize]) -> Value {
    use RowAccess::{Full, Gathered, Picked, Strided};
    let is_own = |a: RowAccess| matches!(a, Full | Strided | Gathered | Picked);
    let own = used.iter().filter(|i| is_own(kernel.inputs[**i].1));
    own.map(|i| {
        let (dtype, access) = kernel.inputs[*i];
        let read = match access {
            RowAccess::Strided => format!("gather<V>(in{i}, sizes, in{i}_strides, col)"),
            RowAccess::Gathered => format!("picked<V>(in{i}, col)"),
            RowAccess::Picked => pick(kernel, *i, "V", "col"),
            _ => own_read(kernel, *i),
        };
        context! { name => format!("in{i}"), type => storage(dtype), read => read }
    })
    .collect()
}

/// A pack of elements of a table, each at the place that its index says.
pub(super) fn pick(kernel: &RowwiseKernel, table: usize, pack: &str, column: &str) -> String {
    let Some(GatheredRows { index, rows, width, .. }) = kernel.gathers.iter().find(|g| g.table == table) else {
        return format!("in{table}");
    };
    format!(
        "pick<{pack}>(in{table}, in{table}_strides, in{index}, in{index}_strides, sizes, {rows}, {width}, {column})"
    )
}

/// The operands and results with strides.
fn strided(kernel: &RowwiseKernel, used: &[usize]) -> Value {
    let has_strides = |i: &&usize| matches!(kernel.inputs[**i].1, RowAccess::Strided | RowAccess::Picked);
    let inputs = used.iter().filter(has_strides).map(|i| {
        context! { name => format!("in{i}"), type => format!("const {}", storage(kernel.inputs[*i].0)) }
    });
    let outputs = kernel.outputs.iter().enumerate().filter(|(_, o)| o.1 == RowAccess::Strided);
    let outputs = outputs.map(|(i, o)| context! { name => format!("out{i}"), type => storage(o.0) });
    inputs.chain(outputs).collect()
}

/// The operands of these that are read: places in a row are not.
fn read(kernel: &RowwiseKernel, used: &[usize]) -> Vec<usize> {
    used.iter().copied().filter(|i| kernel.inputs[*i].1 != RowAccess::Position).collect()
}

fn row_params(kernel: &RowwiseKernel, used: &[usize], streamed: bool) -> Value {
    let used = read(kernel, used);
    let axes = ArgKind::Sizes { name: SizeName::Axes, count: kernel.axes[0] + kernel.axes[1] }.c_type();
    let inputs = used.iter().map(|i| {
        let ty = storage(kernel.inputs[*i].0);
        match kernel.inputs[*i].1 {
            RowAccess::Full | RowAccess::PerColumn | RowAccess::Gathered => {
                format!("const {ty}* __restrict__ const in{i}")
            }
            RowAccess::Strided | RowAccess::Picked => {
                format!("const {ty}* __restrict__ const in{i}, const {axes}& in{i}_strides")
            }
            RowAccess::PerRow | RowAccess::PerGroup | RowAccess::Splat => format!("const {ty} in{i}"),
            RowAccess::Position => String::new(),
        }
    });
    let outputs = kernel.outputs.iter().enumerate().map(|(i, o)| {
        let strides = if o.1 == RowAccess::Strided { format!(", const {axes}& out{i}_strides") } else { String::new() };
        format!("{}* __restrict__ const out{i}{strides}", storage(o.0))
    });
    let sizes = kernel.strided().then(|| format!("const {axes}& sizes"));
    let room = streamed.then(|| "unsigned char* const room, const long long ahead".to_string());
    inputs.chain(outputs).chain(sizes).chain(room).collect()
}

fn row_args(kernel: &RowwiseKernel, used: &[usize], streamed: bool) -> String {
    let used = read(kernel, used);
    let inputs = used.iter().map(|i| match kernel.inputs[*i].1 {
        RowAccess::Full => format!("in{i} + row * n"),
        RowAccess::PerColumn => format!("in{i}"),
        RowAccess::PerRow | RowAccess::PerGroup => format!("in{i}[row]"),
        RowAccess::Splat => format!("in{i}_all"),
        RowAccess::Position => String::new(),
        RowAccess::Strided | RowAccess::Picked => format!("in{i}_row, in{i}_strides"),
        RowAccess::Gathered => {
            let gathered = kernel.gathers.iter().find(|g| g.table == *i);
            let (index, rows) = gathered.map_or((*i, 0), |g| (g.index, g.rows));
            format!("picked_row(in{i}, in{index}[row], {rows}, n)")
        }
    });
    let outputs = kernel.outputs.iter().enumerate().map(|(i, o)| match o.1 {
        RowAccess::Full => format!("out{i} + row * n"),
        RowAccess::Strided => format!("out{i}_row, out{i}_strides"),
        RowAccess::PerGroup => format!("out{i} + row * (n / {})", kernel.groups.map_or(1, |g| g.size)),
        _ => format!("out{i} + row"),
    });
    let sizes = kernel.strided().then(|| "sizes".to_string());
    let room = streamed.then(|| "room, ahead".to_string());
    inputs.chain(outputs).chain(sizes).chain(room).collect::<Vec<_>>().join(", ")
}

pub(super) fn alignment(kernel: &RowwiseKernel, used: &[usize]) -> Vec<String> {
    let read = used
        .iter()
        .filter(|i| matches!(kernel.inputs[**i].1, RowAccess::Full | RowAccess::PerColumn | RowAccess::Gathered))
        .map(|i| format!("aligned<V>(in{i})"));
    let written = kernel.outputs.iter().enumerate().filter(|(_, o)| o.1 == RowAccess::Full);
    read.chain(written.map(|(i, _)| format!("aligned<V>(out{i})"))).collect()
}

pub(super) fn arguments(kernel: &RowwiseKernel) -> Vec<Arg> {
    let about = |a: RowAccess| match a {
        RowAccess::Full => "rows x n, row-major",
        RowAccess::PerColumn => "n elements, one a column",
        RowAccess::PerRow => "one element a row",
        RowAccess::PerGroup => "one element a group of a row",
        RowAccess::Splat => "one element",
        RowAccess::Strided => "one element each, with the strides of that name",
        RowAccess::Gathered => "a table of rows of n elements, row-major",
        RowAccess::Position => "0, 1, 2 and so on, not read",
        RowAccess::Picked => "a table, whose place along its first axis another operand says for each element",
    };
    let mut out = Vec::new();
    for (i, (d, a)) in kernel.inputs.iter().enumerate() {
        out.push(Arg::read(i, *d, about(*a)));
    }
    for (i, (d, a, _)) in kernel.outputs.iter().enumerate() {
        out.push(Arg::written(i, *d, about(*a)));
    }
    if let Some(ty) = kernel.sum_type() {
        let about = format!("blocks x {} x n: each block's sums over its rows", kernel.sums.len());
        out.push(Arg::memory(ArgRole::Sums, ArgKind::Output(ty), about));
    }
    if !kernel.strided() {
        out.push(Arg::rows("number of rows"));
        out.push(Arg::row_length("length of a row"));
        return out;
    }
    let [outer, inner] = kernel.axes;
    let about = format!("sizes: of the axes that number the rows ({outer}), then of those that make a row ({inner})");
    out.push(Arg::axes(outer + inner, about));
    let inputs = kernel.inputs.iter().enumerate().map(|(i, (_, a))| (ArgRole::Read(i), *a));
    let outputs = kernel.outputs.iter().enumerate().map(|(i, o)| (ArgRole::Written(i), o.1));
    for (role, _) in inputs.chain(outputs).filter(|(_, a)| matches!(a, RowAccess::Strided | RowAccess::Picked)) {
        let name = role.tensor_name();
        let about = format!("elements between neighbours along each of these axes of {name}, 0 where it is repeated");
        out.push(Arg::strides(role, outer + inner, about));
    }
    out
}

/// Bytes of the packs of all operands that a thread keeps.
fn pack_bytes(kernel: &RowwiseKernel, used: &[usize], vector: usize) -> usize {
    used.iter()
        .filter(|i| {
            use RowAccess::{Full, Gathered, Picked, Strided};
            matches!(kernel.inputs[**i].1, Full | Strided | Gathered | Picked)
        })
        .map(|i| kernel.inputs[*i].0.size() * vector)
        .sum()
}

/// The entry point for rows of `n` elements.
fn fixed_entry(kernel: &RowwiseKernel, n: u64, team: &Team, stream: Option<&Stream>) -> (Vec<Entry>, Value) {
    let name = identifier("hypatia_", &kernel.name);
    let who = match (team.threads, team.cluster) {
        (_, 2..) => format!("{} blocks", team.cluster),
        (threads, _) if threads <= 32 => format!("{threads} lanes"),
        _ => "One block".to_string(),
    };
    let kept = match (stream, team.chunks) {
        (Some(_), _) => "which stay in registers while the next row is on its way to shared memory",
        (None, Some(_)) => "which stay in registers",
        (None, None) => "which each pass reads again",
    };
    let value = context! {
        name => name.clone(),
        about => format!("{who} a row of {n} elements, {kept}."),
        block => team.block,
        threads => team.threads,
        chunks => team.chunks.unwrap_or(1),
    };
    let geometry = match team.cluster {
        1 => Geometry::Rows { block: team.block, threads: team.threads as u32, up_to: None },
        cluster => {
            let shared = stream.map_or(0, |s| s.shared);
            Geometry::Clusters { block: team.block, blocks: cluster as u32, shared }
        }
    };
    (vec![Entry { name, geometry }], std::iter::once(value).collect())
}

/// The entry point whose blocks add up columns.
fn sums_entry(kernel: &RowwiseKernel, n: u64, team: &Team, split: SumSplit) -> (Vec<Entry>, Value) {
    let name = identifier("hypatia_", &kernel.name);
    let who = if split.together() == 1 { "A block".to_string() } else { format!("{} lanes", split.threads) };
    let value = context! {
        name => name.clone(),
        about => format!("{who} a row of {n} elements; each block adds up every {}th row or so.", split.parts),
        block => team.block,
        threads => team.threads,
        chunks => team.chunks.unwrap_or(1),
    };
    let geometry = Geometry::Parts { block: team.block, parts: split.parts as u32 };
    (vec![Entry { name, geometry }], std::iter::once(value).collect())
}

/// The entry point with one thread per row.
fn columns_entry(kernel: &RowwiseKernel) -> (Vec<Entry>, Value) {
    let name = format!("{}_column", identifier("hypatia_", &kernel.name));
    let value = context! {
        name => name.clone(),
        about => "One thread a row, for many rows whose elements lie apart while the rows lie side by side.",
        block => COLUMN_BLOCK,
        threads => 1,
        chunks => 1,
    };
    (vec![Entry { name, geometry: Geometry::Columns { block: COLUMN_BLOCK } }], std::iter::once(value).collect())
}

/// The entry point with a thread of each warp per row.
fn slices_entry(kernel: &RowwiseKernel, slices: u32) -> (Vec<Entry>, Value) {
    let name = format!("{}_slices", identifier("hypatia_", &kernel.name));
    let block = slices * ROWS_OF_SLICES as u32;
    let value = context! {
        name => name.clone(),
        about => format!("{slices} threads a row, for rows whose elements lie apart while the rows lie side by side."),
        block => block,
        threads => slices,
        chunks => 1,
    };
    let geometry = Geometry::Rows { block, threads: slices, up_to: None };
    (vec![Entry { name, geometry }], std::iter::once(value).collect())
}

/// Entry points for rows of any length.
fn entry_points(kernel: &RowwiseKernel, pack: usize, vector: usize) -> (Vec<Entry>, Value) {
    let mut entries = Vec::new();
    let mut values: Vec<Value> = Vec::new();
    for (i, (suffix, block, threads, most)) in SHAPES.iter().enumerate() {
        let chunks = (KEPT_BYTES / pack.max(1)).min(most / vector).max(1);
        let capacity = *threads as u64 * chunks as u64 * vector as u64;
        let last = i + 1 == SHAPES.len();
        let name = format!("{}{suffix}", identifier("hypatia_", &kernel.name));
        let who = match threads {
            8 => "Eight lanes",
            32 => "One warp",
            _ => "One block",
        };
        values.push(context! {
            name => name.clone(),
            about => format!("{who} a row; rows of up to {capacity} elements stay in registers."),
            block => *block,
            threads => *threads,
            chunks => chunks,
        });
        let geometry = Geometry::Rows { block: *block, threads: *threads, up_to: (!last).then_some(capacity) };
        entries.push(Entry { name, geometry });
    }
    if kernel.strided() {
        let (entry, value) = columns_entry(kernel);
        entries.extend(entry);
        values.extend(value.try_iter().into_iter().flatten());
    }
    (entries, values.into_iter().collect())
}

pub(super) fn describe(program: &Program, kernel: &RowwiseKernel) -> Vec<String> {
    let n_in = kernel.inputs.len();
    let named = |n: &TermNode| match n {
        TermNode::In { input, .. } if *input as usize >= n_in => Some(format!("r{}", *input as usize - n_in)),
        _ => None,
    };
    let mut out = Vec::new();
    for (i, (kind, term)) in kernel.steps.iter().enumerate() {
        let word = match kind {
            Reduction::Sum => "sum",
            Reduction::Mean => "mean",
            Reduction::Max => "max",
            Reduction::Min => "min",
            Reduction::Prod => "product",
        };
        let of = match kernel.groups.filter(|g| i >= g.first) {
            Some(g) => format!("a group of {}", g.size),
            None => "a row".to_string(),
        };
        out.push(format!("r{i} = {word} over {of} of {}", formula(program, term, term.root(), &named)));
    }
    for (i, (_, _, term)) in kernel.outputs.iter().enumerate() {
        out.push(format!("out{i} = {}", formula(program, term, term.root(), &named)));
    }
    for (i, (_, term)) in kernel.sums.iter().enumerate() {
        out.push(format!("sums[{i}] = sum over rows of {}", formula(program, term, term.root(), &named)));
    }
    out
}
