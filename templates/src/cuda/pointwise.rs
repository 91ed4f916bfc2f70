//! Pointwise kernels: a region of element-wise operations, or the pass after a matrix product.
//!
//! In: a [`PointwiseKernel`]. Out: its source. Invariant: a kernel whose operands are full or
//! single elements treats its output as one flat array; any other kernel loops over rows and
//! columns, so that no index is divided per element.

use minijinja::value::merge_maps;
use minijinja::{Value, context};

use super::term::{Functions, Lowered, compute_name, inlining, widen};
use super::{
    Arg, ArgKind, ArgRole, CudaSource, EmitError, Entry, Geometry, Header, POINTWISE_BLOCK, PointTarget, common,
    identifier, render, storage, vector_width,
};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{Access, PointwiseKernel};
pub(super) use hypatia_dsl::scalar::typed::default_type;
use hypatia_dsl::scalar::{Term, TermNode};

/// An operand as the templates see it.
pub(super) struct Pointer {
    pub name: String,
    role: ArgRole,
    pub dtype: DType,
    pub access: &'static str,
}

/// The operands of a kernel: the accumulator, if there is one, then the inputs.
pub(super) fn pointers(kernel: &PointwiseKernel) -> Vec<Pointer> {
    let acc = kernel.acc.map(|dtype| Pointer { name: "acc".into(), role: ArgRole::Accumulator, dtype, access: "full" });
    let inputs = kernel.inputs.iter().enumerate().map(|(i, o)| {
        let access = match o.access {
            Access::Full => "full",
            Access::Splat => "splat",
            Access::Row => "row",
            Access::Col => "col",
            Access::Strided => "strided",
        };
        Pointer { name: format!("in{i}"), role: ArgRole::Read(i), dtype: o.dtype, access }
    });
    acc.into_iter().chain(inputs).collect()
}

/// `shared` are the inputs that an output may alias; the accumulator counts as the input after the
/// last. Such pointers must not be `__restrict__`.
pub(super) fn emit(
    program: &Program,
    kernel: &PointwiseKernel,
    shared: &[usize],
    target: Option<PointTarget>,
) -> Result<CudaSource, EmitError> {
    check(kernel)?;
    let operands = pointers(kernel);
    let outputs: Vec<(String, DType)> =
        kernel.outputs.iter().enumerate().map(|(i, d)| (format!("out{i}"), *d)).collect();
    let strided = operands.iter().any(|o| o.access == "strided");
    let flat = kernel.is_flat();

    let mut functions = Functions::new(program);
    let (body, used, _) = value_function(&mut functions, "value", kernel, &operands, &outputs)?;
    if strided {
        functions.need("axes");
    }
    if strided && kernel.rank > 1 {
        functions.need("quotient");
    }

    let moved = operands.iter().filter(|o| used.contains(&o.name) && o.access != "splat").map(|o| o.dtype);
    let dtypes: Vec<DType> = moved.chain(outputs.iter().map(|o| o.1)).collect();
    let Share { block, vector, packs } = Share::of(vector_width(dtypes.iter().copied()), dtypes.len(), flat, target);
    let args = arguments(&operands, &outputs, flat, strided, kernel.rank);
    let geometry =
        if flat { Geometry::Flat { block, vector: vector * packs } } else { Geometry::Grid { block, vector } };
    let entries = vec![Entry { name: identifier("hypatia_", &kernel.name), geometry }];
    let formula = formulas(program, kernel, &outputs, &|_| None);
    let kind = if kernel.acc.is_some() { "the pass after a matrix product" } else { "a pointwise region" };
    let header = Header {
        name: &kernel.name,
        kind,
        doc: &kernel.doc,
        formula: &formula,
        args: &args,
        entries: &entries,
        in_place: !shared.is_empty(),
    };
    let all = operands.iter().map(|o| o.dtype).chain(outputs.iter().map(|o| o.1));
    let base = common(header, &functions, all.collect::<Vec<_>>().into_iter(), &[body])?;

    let plain = unrestricted(kernel, &outputs, shared);
    let live: Vec<&Pointer> = operands.iter().filter(|o| used.contains(&o.name)).collect();
    let own = context! {
        entry => entries[0].name.clone(),
        block => block,
        vector => vector,
        packs => packs,
        loop_template => if flat { "flat.cu.j2" } else { "grid.cu.j2" },
        args => declarations(&args, &plain),
        axes => if strided { kernel.rank } else { 0 },
        strided => strided,
    };
    let ctx = merge_maps([own, elements(&live, &outputs, &plain, flat), base]);
    let template = if kernel.acc.is_some() { "epilogue.cu.j2" } else { "pointwise.cu.j2" };
    let text = render(template, &format!("{}.cu", identifier("", &kernel.name)), ctx)?;
    Ok(CudaSource { name: kernel.name.clone(), formula: formula.join("; "), text, entries, args, launch: None })
}

/// What each output is, in words. `leaf` overrides the names of operands.
pub(super) fn formulas(
    program: &Program,
    kernel: &PointwiseKernel,
    outputs: &[(String, DType)],
    leaf: &dyn Fn(&TermNode) -> Option<String>,
) -> Vec<String> {
    let formula = |r| super::term::formula(program, &kernel.term, r, leaf);
    kernel.term.roots.iter().zip(outputs).map(|(r, (name, _))| format!("{name} = {}", formula(*r))).collect()
}

/// What the template knows of the operands and results, and its calls of the function of one
/// element.
fn elements(live: &[&Pointer], outputs: &[(String, DType)], plain: &[String], flat: bool) -> Value {
    context! {
        operands => live.iter().map(|o| context! {
            name => o.name.clone(), type => storage(o.dtype), access => o.access, restrict => restrict(&o.name, plain),
        }).collect::<Value>(),
        outputs => outputs.iter().map(|(name, d)| context! {
            name => name.clone(), type => storage(*d), restrict => restrict(name, plain),
        }).collect::<Value>(),
        alignment => alignment(live, outputs),
        call_packed => call(live, outputs, true, flat),
        call_single => call(live, outputs, false, flat),
    }
}

/// The work of a thread at a time.
struct Share {
    /// Threads per block.
    block: u32,
    /// Elements per access.
    vector: u32,
    /// Accesses of each operand that are in flight together.
    packs: u32,
}

/// Maximum number of operands and results for which a thread holds two packs at a time: packs take
/// registers.
const FEW_OPERANDS: usize = 4;

impl Share {
    /// For packs of at most `widest` elements and this many operands and results. If there are few
    /// elements, they are spread over more threads, down to two per thread, until the threads are a
    /// quarter of those that the device runs at a time. If there are more packs than threads that
    /// run at a time, each thread loads two packs before it works on the first.
    ///
    /// Measured on one H200: GELU over 131,072 elements of bf16 after a product takes 5.05 us in
    /// pairs and 5.23 in packs of 8; over 33 million it takes 38 us with two packs and 43 with one;
    /// over 2 million of f32 it takes 3.4 and 3.9.
    fn of(widest: usize, operands: usize, flat: bool, target: Option<PointTarget>) -> Share {
        let mut share = Share { block: POINTWISE_BLOCK, vector: widest as u32, packs: 1 };
        let Some(PointTarget { elements, row, threads }) = target else { return share };
        // Rows are read in packs only if they are whole packs.
        while !flat && share.vector > 1 && !row.is_multiple_of(u64::from(share.vector)) {
            share.vector /= 2;
        }
        while share.vector > 2 && elements / u64::from(share.vector) < threads / 4 {
            share.vector /= 2;
        }
        if flat && operands <= FEW_OPERANDS && elements / u64::from(share.vector) > threads {
            (share.block, share.packs) = (POINTWISE_BLOCK / 2, 2);
        }
        share
    }
}

fn check(kernel: &PointwiseKernel) -> Result<(), EmitError> {
    let bad = |what: String| Err(EmitError::Malformed(format!("kernel `{}`: {what}", kernel.name)));
    if kernel.outputs.is_empty() || kernel.outputs.len() != kernel.term.roots.len() {
        return bad(format!("{} outputs for {} values", kernel.outputs.len(), kernel.term.roots.len()));
    }
    if kernel.rank == 0 || kernel.rank > 16 {
        return bad(format!("rank {}", kernel.rank));
    }
    Ok(())
}

/// The operand that a node reads.
fn name_of(node: &TermNode) -> Option<String> {
    match node {
        TermNode::Acc => Some("acc".to_string()),
        TermNode::In { input, .. } => Some(format!("in{input}")),
        _ => None,
    }
}

/// Whether the results of a kernel need each operand.
pub(super) fn used(kernel: &PointwiseKernel, operands: &[Pointer]) -> Vec<bool> {
    let reachable = reachable(&kernel.term);
    let reads =
        |name: &str| kernel.term.nodes.iter().zip(&reachable).any(|(n, r)| *r && name_of(n).as_deref() == Some(name));
    operands.iter().map(|o| reads(&o.name)).collect()
}

/// Prints the function of that name, which computes one element of each output. Also returns the
/// operands that it reads, and its number of instructions.
pub(super) fn value_function(
    functions: &mut Functions<'_>,
    function: &str,
    kernel: &PointwiseKernel,
    operands: &[Pointer],
    outputs: &[(String, DType)],
) -> Result<(String, Vec<String>, u64), EmitError> {
    let read = operands.iter().zip(used(kernel, operands)).filter(|(_, used)| *used);
    let used: Vec<String> = read.map(|(o, _)| o.name.clone()).collect();
    let number = default_type(operands.iter().map(|o| o.dtype).chain(outputs.iter().map(|o| o.1)));
    let leaf = |node: &TermNode| {
        let name = name_of(node)?;
        let o = operands.iter().find(|o| o.name == name)?;
        let widened = widen(&name, o.dtype) != name;
        Some((if widened { name.replacen("in", "x", 1) } else { name }, o.dtype.compute()))
    };
    // A widened accumulator needs a name other than `acc`.
    let leaf = |node: &TermNode| {
        let (name, ty) = leaf(node)?;
        let half = name == "acc" && kernel.acc.is_some_and(|d| d != d.compute());
        Some((if half { "x".into() } else { name }, ty))
    };
    let lowered = functions.lower(&kernel.term, number, &leaf)?;
    let params =
        operands.iter().filter(|o| used.contains(&o.name)).map(|o| format!("const {} {}", storage(o.dtype), o.name));
    let results = outputs.iter().map(|(n, d)| format!("{}& {n}", storage(*d)));
    let mut lines = Vec::new();
    for o in operands.iter().filter(|o| used.contains(&o.name) && widen(&o.name, o.dtype) != o.name) {
        let short = if o.name == "acc" { "x".into() } else { o.name.replacen("in", "x", 1) };
        lines.push(format!("const {} {short} = {};", compute_name(o.dtype), widen(&o.name, o.dtype)));
    }
    let Lowered { statements, roots, size } = lowered;
    lines.extend(statements);
    for ((name, d), root) in outputs.iter().zip(&roots) {
        lines.push(format!("{name} = {};", functions.store(root, *d)));
    }
    let list: Vec<String> = params.chain(results).collect();
    // One copy for each element of a pack, and one for single elements.
    let inline = inlining(size, 9);
    let mut text = String::from("// The value of one element.\n");
    text.push_str(&format!("static __device__ {inline} void {function}({}) {{\n", list.join(", ")));
    for l in lines {
        text.push_str(&format!("  {l}\n"));
    }
    text.push_str("}\n");
    Ok((text, used, size))
}

/// The nodes that the roots need.
pub(super) fn reachable(term: &Term) -> Vec<bool> {
    let mut out = vec![false; term.nodes.len()];
    for r in &term.roots {
        if let Some(slot) = out.get_mut(r.0 as usize) {
            *slot = true;
        }
    }
    for i in (0..term.nodes.len()).rev() {
        if !out[i] {
            continue;
        }
        let args: &[hypatia_dsl::scalar::TermId] = match &term.nodes[i] {
            TermNode::Call { args, .. } => args,
            TermNode::Cast { arg, .. } => std::slice::from_ref(arg),
            _ => &[],
        };
        for a in args {
            if let Some(slot) = out.get_mut(a.0 as usize) {
                *slot = true;
            }
        }
    }
    out
}

fn arguments(operands: &[Pointer], outputs: &[(String, DType)], flat: bool, strided: bool, rank: usize) -> Vec<Arg> {
    let full = match (flat, strided) {
        (true, _) => "n elements",
        (_, true) => "all elements in row-major order",
        _ => "rows x n, row-major",
    };
    let mut out: Vec<Arg> = operands
        .iter()
        .map(|o| {
            let about = match o.access {
                "full" if o.name == "acc" => "the product: rows x n, row-major",
                "full" => full,
                "splat" => "one element",
                "row" => "n elements, one a column",
                "col" => "one element a row",
                _ => "read with in_strides",
            };
            let about = about.replace("in_strides", &format!("{}_strides", o.name));
            Arg { name: o.name.clone(), role: o.role, kind: ArgKind::Input(o.dtype), about }
        })
        .collect();
    out.extend(outputs.iter().enumerate().map(|(i, (_, d))| Arg::written(i, *d, full)));
    if strided {
        out.push(Arg::axes(rank, format!("sizes of the {rank} axes of the outputs")));
        for o in operands.iter().filter(|o| o.access == "strided") {
            let about = format!("elements between neighbours along each axis of {}, 0 where it is repeated", o.name);
            out.push(Arg::strides(o.role, rank, about));
        }
    } else {
        if !flat {
            out.push(Arg::rows("rows of the outputs"));
        }
        out.push(Arg::row_length(if flat { "elements of an output" } else { "columns of the outputs" }));
    }
    out
}

/// The pointers that may alias.
fn unrestricted(kernel: &PointwiseKernel, outputs: &[(String, DType)], shared: &[usize]) -> Vec<String> {
    let count = kernel.inputs.len();
    let mut out: Vec<String> =
        shared.iter().map(|i| if *i == count { "acc".into() } else { format!("in{i}") }).collect();
    if !shared.is_empty() {
        out.extend(outputs.iter().map(|o| o.0.clone()));
    }
    out
}

/// The qualifier after the `*` of a pointer.
fn restrict(name: &str, plain: &[String]) -> &'static str {
    if plain.iter().any(|p| p == name) { "" } else { " __restrict__" }
}

/// Each argument as a C++ parameter. Those named in `plain` may alias each other.
pub(super) fn declarations(args: &[Arg], plain: &[String]) -> Value {
    args.iter()
        .map(|a| {
            let declaration = match a.kind {
                ArgKind::Input(_) | ArgKind::Output(_) => {
                    format!("{}{} {}", a.kind.c_type(), restrict(&a.name, plain), a.name)
                }
                _ => format!("const {} {}", a.kind.c_type(), a.name),
            };
            context! { declaration => declaration, name => a.name.clone() }
        })
        .collect()
}

fn alignment(operands: &[&Pointer], outputs: &[(String, DType)]) -> Value {
    let read = operands.iter().filter(|o| o.access == "full" || o.access == "row").map(|o| o.name.clone());
    read.chain(outputs.iter().map(|o| o.0.clone())).map(|n| format!("aligned<V>({n})")).collect()
}

fn call(operands: &[&Pointer], outputs: &[(String, DType)], packed: bool, flat: bool) -> String {
    let reads = operands.iter().map(|o| match (o.access, packed, flat) {
        ("splat", ..) => format!("{}_all", o.name),
        ("col", ..) => format!("{}_row", o.name),
        (_, true, _) => format!("{}_v.v[k]", o.name),
        (_, false, true) => format!("{}_at[i]", o.name),
        ("row", ..) => format!("{}[col]", o.name),
        ("strided", ..) => format!("{0}_row[col * {0}_step]", o.name),
        _ => format!("{}_row[col]", o.name),
    });
    let writes = outputs.iter().map(|(n, _)| match (packed, flat) {
        (true, _) => format!("{n}_v.v[k]"),
        (_, true) => format!("{n}_at[i]"),
        _ => format!("{n}_row[col]"),
    });
    format!("value({})", reads.chain(writes).collect::<Vec<_>>().join(", "))
}
