//! The values of a row-wise kernel: what is reduced, and what is stored.
//!
//! In: a [`RowwiseKernel`]. Out: a device function for each of its values, what the function reads,
//! and its calls. Invariant: a function reads an element of each operand, the results of earlier
//! reductions, and elements that a pass carries.

use minijinja::{Value, context};

use super::carry;
use super::online::Below;
use super::pointwise::{default_type, reachable};
use super::rowwise::pick;
use super::term::{Functions, compute_name, inlining, widen};
use super::{EmitError, storage};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{RowAccess, RowwiseKernel};
use hypatia_dsl::scalar::{Term, TermNode};

/// Bytes of a row's operands that one thread keeps in registers.
pub(super) const KEPT_BYTES: usize = 128;
/// Approximate cost in instructions from which a value is kept for a later pass rather than
/// recomputed.
const WORTH_KEEPING: u64 = 8;

/// Approximate number of copies of a value function in the entry points.
const COPIES: u64 = 90;

/// A printed function: its needs and its call.
pub(super) struct Piece {
    pub inputs: Vec<usize>,
    pub steps: Vec<usize>,
    /// Steps whose elements it reads as carried by the pass over them.
    carried: Vec<usize>,
    ty: DType,
    function: String,
    /// Approximate number of instructions.
    size: u64,
}

/// The functions of a kernel's values.
pub(super) struct Values<'p, 'k> {
    kernel: &'k RowwiseKernel,
    pub functions: Functions<'p>,
    /// The type of numbers without a type of their own.
    number: DType,
    pub step_types: Vec<DType>,
    pub steps: Vec<Piece>,
    outputs: Vec<Piece>,
    /// What is added up over all rows.
    sums: Vec<Piece>,
    /// The text of all functions: those of the steps and sums, then those of the outputs.
    pub bodies: Vec<String>,
}

impl<'p, 'k> Values<'p, 'k> {
    pub fn of(program: &'p Program, kernel: &'k RowwiseKernel) -> Result<Values<'p, 'k>, EmitError> {
        let mut values = Values {
            kernel,
            functions: Functions::new(program),
            number: default_type(dtypes(kernel)),
            step_types: Vec::new(),
            steps: Vec::new(),
            outputs: Vec::new(),
            sums: Vec::new(),
            bodies: Vec::new(),
        };
        for (i, (_, term)) in kernel.steps.iter().enumerate() {
            let piece = values.print(term, &format!("step{i}"), None)?;
            values.step_types.push(if piece.ty == DType::Bool { DType::I64 } else { piece.ty });
            values.steps.push(piece);
        }
        for (i, (_, term)) in kernel.sums.iter().enumerate() {
            let piece = values.print(term, &format!("sum{i}"), None)?;
            values.sums.push(piece);
        }
        values.print_outputs(&kernel.outputs)?;
        Ok(values)
    }

    /// Prints the function of a value.
    fn print(&mut self, term: &Term, name: &str, stored: Option<DType>) -> Result<Piece, EmitError> {
        let (functions, types) = (&mut self.functions, &self.step_types);
        let (piece, text) = value_function(functions, self.kernel, term, types, self.number, name, stored)?;
        self.bodies.push(text);
        Ok(piece)
    }

    /// Prints the functions of these outputs, in place of those printed before.
    fn print_outputs(&mut self, outputs: &[(DType, RowAccess, Term)]) -> Result<(), EmitError> {
        self.bodies.truncate(self.steps.len() + self.sums.len());
        self.outputs.clear();
        for (i, (dtype, _, term)) in outputs.iter().enumerate() {
            let piece = self.print(term, &format!("value{i}"), Some(*dtype))?;
            self.outputs.push(piece);
        }
        Ok(())
    }

    /// Lets the outputs read elements of steps that a pass carries, where a thread keeps that many
    /// elements. Returns those steps.
    pub fn carry(&mut self, elements: usize) -> Result<Vec<usize>, EmitError> {
        // The compiler keeps wider values in registers itself, and those of groups.
        let over_row = |i: usize| i < self.kernel.row_steps();
        let worth = |i: usize| over_row(i) && self.steps[i].ty == DType::F32 && self.steps[i].size >= WORTH_KEEPING;
        let (with, carried) = carry::carry(self.kernel, worth, KEPT_BYTES / elements);
        self.print_outputs(&with.outputs)?;
        Ok(carried)
    }

    /// Prints what scales a sum below a largest element where a larger one is found.
    pub fn print_factor(&mut self, program: &Program, step: usize, below: &Below) -> Result<(), EmitError> {
        let term = below.factor(program).ok_or_else(|| EmitError::Malformed("no subtraction".into()))?;
        let leaf = |node: &TermNode| match node {
            TermNode::In { input: 0, .. } => Some(("from".to_string(), DType::F32)),
            TermNode::In { .. } => Some(("to".to_string(), DType::F32)),
            _ => None,
        };
        let lowered = self.functions.lower(&term, DType::F32, &leaf)?;
        let root = lowered.roots.first().cloned().ok_or_else(|| EmitError::Malformed("a factor".into()))?;
        let value = self.functions.store(&root, DType::F32);
        let lines: String = lowered.statements.iter().map(|s| format!("  {s}\n")).collect();
        self.bodies.push(format!(
            "// What a sum below `from` is multiplied by where it becomes one below `to`.\n\
             static __device__ __forceinline__ float below{step}(const float from, const float to) {{\n\
             {lines}  return {value};\n}}\n"
        ));
        Ok(())
    }

    /// The operands that some value reads.
    pub fn used(&self) -> Vec<usize> {
        let all = || self.steps.iter().chain(&self.sums).chain(&self.outputs);
        let reads = |i: &usize| all().any(|p| p.inputs.contains(i));
        (0..self.kernel.inputs.len()).filter(reads).collect()
    }

    /// The operands that outputs along the row read, those of groups and sums over rows among them,
    /// or steps that are carried to them.
    pub fn read_by_rows(&self, carried: &[usize]) -> Vec<usize> {
        let outputs = self.outputs.iter().zip(&self.kernel.outputs);
        let along = outputs.filter(|(_, o)| o.1 != RowAccess::PerRow).map(|(p, _)| p);
        union(along.chain(&self.sums).chain(carried.iter().map(|s| &self.steps[*s])))
    }

    /// What is added up over all rows, as the template sees it.
    pub fn summands(&self) -> Value {
        let shown = self.sums.iter().enumerate().map(|(i, p)| {
            context! { name => format!("sum{i}"), at => i, value => call(self.kernel, p, &self.steps) }
        });
        shown.collect()
    }

    /// The outputs with these access modes, as the template sees them.
    pub fn results(&self, accesses: &[RowAccess]) -> Value {
        let outputs = self.kernel.outputs.iter().zip(&self.outputs).enumerate();
        let wanted = outputs.filter(|(_, (o, _))| accesses.contains(&o.1));
        let shown = wanted.map(|(i, (o, p))| {
            context! {
                name => format!("out{i}"),
                type => storage(o.0),
                value => call_on(self.kernel, p, &self.steps, o.1 == RowAccess::PerRow),
                strided => o.1 == RowAccess::Strided,
            }
        });
        shown.collect()
    }
}

/// Element types of all operands and outputs.
pub(super) fn dtypes(kernel: &RowwiseKernel) -> impl Iterator<Item = DType> + Clone + '_ {
    let sums = kernel.sum_type().into_iter();
    kernel.inputs.iter().map(|i| i.0).chain(kernel.outputs.iter().map(|o| o.0)).chain(sums)
}

/// The inputs, the results of steps and the carried values that a term reads, each once, in order.
fn read_by(kernel: &RowwiseKernel, term: &Term) -> [Vec<usize>; 3] {
    let (n_in, first_carried) = (kernel.inputs.len(), carry::operand(kernel, 0));
    let mut read: [Vec<usize>; 3] = Default::default();
    for (node, live) in term.nodes.iter().zip(&reachable(term)) {
        if let (TermNode::In { input, .. }, true) = (node, live) {
            match *input as usize {
                i if i < n_in => read[0].push(i),
                i if i < first_carried => read[1].push(i - n_in),
                i => read[2].push(i - first_carried),
            }
        }
    }
    for list in &mut read {
        list.sort_unstable();
        list.dedup();
    }
    read
}

/// Prints the function of a step or output. Its parameters have storage types; its result has the
/// compute type (or the output's storage type).
fn value_function(
    functions: &mut Functions<'_>,
    kernel: &RowwiseKernel,
    term: &Term,
    step_types: &[DType],
    number: DType,
    name: &str,
    store: Option<DType>,
) -> Result<(Piece, String), EmitError> {
    let (n_in, first_carried) = (kernel.inputs.len(), carry::operand(kernel, 0));
    let [inputs, steps, carried] = read_by(kernel, term);
    let local = |i: usize| {
        let d = kernel.inputs[i].0;
        if d == d.compute() { format!("in{i}") } else { format!("x{i}") }
    };
    let leaf = |node: &TermNode| match node {
        TermNode::In { input, .. } if (*input as usize) < n_in => {
            Some((local(*input as usize), kernel.inputs[*input as usize].0.compute()))
        }
        TermNode::In { input, .. } if (*input as usize) < first_carried => {
            let s = *input as usize - n_in;
            step_types.get(s).map(|t| (format!("r{s}"), *t))
        }
        TermNode::In { input, .. } => {
            let s = *input as usize - first_carried;
            step_types.get(s).map(|t| (format!("e{s}"), *t))
        }
        _ => None,
    };
    let lowered = functions.lower(term, number, &leaf)?;
    let Some(root) = lowered.roots.first().cloned() else {
        return Err(EmitError::Malformed(format!("{name} has no value")));
    };
    let mut ty = root.ty;
    if ty == DType::Bool && store.is_none() {
        ty = DType::I64;
    }
    let value = match store {
        Some(d) => functions.store(&root, d),
        None => functions.store(&root, ty),
    };
    let params: Vec<String> = inputs
        .iter()
        .map(|i| format!("const {} in{i}", storage(kernel.inputs[*i].0)))
        .chain(steps.iter().map(|s| format!("const {} r{s}", compute_name(step_types[*s]))))
        .chain(carried.iter().map(|s| format!("const {} e{s}", compute_name(step_types[*s]))))
        .collect();
    let result = store.map_or(compute_name(ty), storage);
    let what = if store.is_some() { "One element of an output." } else { "What is reduced, of one element." };
    let inline = inlining(lowered.size, COPIES);
    let mut text = format!("// {what}\nstatic __device__ {inline} {result} {name}({}) {{\n", params.join(", "));
    for i in &inputs {
        let d = kernel.inputs[*i].0;
        if d != d.compute() {
            text.push_str(&format!("  const {} x{i} = {};\n", compute_name(d), widen(&format!("in{i}"), d)));
        }
    }
    for s in &lowered.statements {
        text.push_str(&format!("  {s}\n"));
    }
    text.push_str(&format!("  return {value};\n}}\n"));
    Ok((Piece { inputs, steps, carried, ty, function: name.into(), size: lowered.size }, text))
}

pub(super) fn union<'a>(pieces: impl Iterator<Item = &'a Piece>) -> Vec<usize> {
    let mut out: Vec<usize> = pieces.flat_map(|p| p.inputs.iter().copied()).collect();
    out.sort_unstable();
    out.dedup();
    out
}

/// The call of a step's or output's function on element `k` of the loaded packs.
pub(super) fn call(kernel: &RowwiseKernel, piece: &Piece, steps: &[Piece]) -> String {
    call_on(kernel, piece, steps, false)
}

/// Like `call`; with `row`, for a result of one element per row, whose strided operands have one
/// element per row too.
pub(super) fn call_on(kernel: &RowwiseKernel, piece: &Piece, pieces: &[Piece], row: bool) -> String {
    let inputs = piece.inputs.iter().map(|i| match kernel.inputs[*i].1 {
        RowAccess::Strided if row => format!("in{i}[0]"),
        RowAccess::Picked if row => format!("{}.v[0]", pick(kernel, *i, "1", "0")),
        RowAccess::Full | RowAccess::PerColumn | RowAccess::Strided | RowAccess::Gathered | RowAccess::Picked => {
            format!("in{i}_v.v[k]")
        }
        RowAccess::PerRow | RowAccess::PerGroup | RowAccess::Splat => format!("in{i}"),
        RowAccess::Position => "(col + k)".to_string(),
    });
    let carried = piece.carried.iter().map(|s| {
        let again = call(kernel, &pieces[*s], pieces);
        format!("KEEP ? e{s}_kept[c].v[k] : {again}")
    });
    let steps = piece.steps.iter().map(|s| format!("r{s}"));
    let all: Vec<String> = inputs.chain(steps).chain(carried).collect();
    format!("{}({})", piece.function, all.join(", "))
}
