//! What kernels of tiles share: their term as a device function, their operands, their header.
//!
//! In: a term over an accumulator and operands, and what a template wants to know besides. Out: the
//! source. Invariant: the term is one inlined function of the accumulator and its operands, in the
//! compute types, which rounds nothing.

use std::borrow::Cow;

use minijinja::value::merge_maps;
use minijinja::{Value, context};

use super::pointwise::default_type;
use super::term::{Functions, compute_name, inlining, widen};
use super::{Arg, ArgKind, CudaSource, EmitError, Entry, Geometry, Header, common, identifier, render, storage};
use hypatia_dsl::builtin::SECOND;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{Access, Operand};
use hypatia_dsl::scalar::{Term, TermId, TermNode};

/// A kernel of tiles, but for what only its template knows.
pub(super) struct Tiles<'a> {
    pub name: &'a str,
    pub doc: &'a str,
    /// What it is, as a noun.
    pub kind: &'static str,
    /// What it computes.
    pub formula: String,
    pub args: Vec<Arg>,
    pub geometry: Geometry,
    /// The device functions of its terms.
    pub bodies: Vec<String>,
    /// The file of its template.
    pub template: &'static str,
}

impl Tiles<'_> {
    /// The source, from the template and its own values.
    pub fn render(self, functions: &Functions<'_>, own: Value) -> Result<CudaSource, EmitError> {
        let entries = vec![Entry { name: identifier("hypatia_", self.name), geometry: self.geometry }];
        let header = Header {
            name: self.name,
            kind: self.kind,
            doc: self.doc,
            formula: std::slice::from_ref(&self.formula),
            args: &self.args,
            entries: &entries,
            in_place: false,
        };
        let of_all = context! {
            entry => entries[0].name.clone(),
            params => self.args.iter().map(parameter).collect::<Value>(),
            ..common(header, functions, std::iter::empty(), &self.bodies)?
        };
        let ctx = merge_maps([own, of_all]);
        let text = render(self.template, &format!("{}.cu", identifier("", self.name)), ctx)?;
        let name = self.name.to_string();
        Ok(CudaSource { name, formula: self.formula, text, entries, args: self.args, launch: None })
    }
}

/// A parameter of the kernel.
fn parameter(a: &Arg) -> String {
    match a.kind {
        ArgKind::Map { .. } => format!("const __grid_constant__ TensorMap {}", a.name),
        ArgKind::Input(t) => format!("const {}* __restrict__ {}", plain_storage(t), a.name),
        ArgKind::Output(t) => format!("{}* __restrict__ {}", plain_storage(t), a.name),
        kind => format!("const {} {}", kind.c_type(), a.name),
    }
}

/// The type in memory, without the headers of 16-bit types.
pub(super) fn plain_storage(dtype: DType) -> &'static str {
    if matches!(dtype, DType::F16 | DType::BF16) { "unsigned short" } else { storage(dtype) }
}

/// The compute value of an element.
pub(super) fn loaded(dtype: DType, text: &str) -> String {
    match dtype {
        DType::F16 | DType::BF16 => format!("widened({text})"),
        _ => widen(text, dtype),
    }
}

/// What an argument says of an operand of the term that is read in this way.
pub(super) fn about(access: &Access, whole: &'static str) -> &'static str {
    match access {
        Access::Full => whole,
        Access::Row => "one element a column",
        Access::Col => "one element a row",
        Access::Splat => "one element",
        Access::Strided => "read with its strides",
    }
}

/// The structure that a term of several values returns.
const RESULTS: &str = "Results";

/// A term over an accumulator, or two, and operands, which come after the factors.
#[derive(Clone, Copy)]
pub(super) struct OnTiles<'a> {
    pub term: &'a Term,
    /// True if there are two accumulators.
    pub pair: bool,
    pub inputs: &'a [Operand],
    pub factors: usize,
    /// Element types of the accumulators and of what the function returns: f32 or i32.
    pub types: [DType; 2],
}

/// The types of a product of floats.
pub(super) const FLOATS: [DType; 2] = [DType::F32; 2];

impl OnTiles<'_> {
    /// The term as text.
    pub fn formula(&self, program: &Program) -> String {
        self.formula_of(program, self.term.root())
    }

    /// The values of the term as text.
    pub fn formulas(&self, program: &Program) -> Vec<String> {
        self.term.roots.iter().map(|root| self.formula_of(program, *root)).collect()
    }

    /// A value for each result, as text.
    pub fn results(&self, program: &Program) -> String {
        let of = |(i, formula): (usize, String)| format!("out{i} = {formula}");
        self.formulas(program).into_iter().enumerate().map(of).collect::<Vec<_>>().join(", ")
    }

    fn formula_of(&self, program: &Program, root: TermId) -> String {
        super::term::formula(program, self.term, root, &|node| match node {
            TermNode::In { input, .. } => Some(format!("in{}", *input as usize + self.factors)),
            TermNode::Second => Some(SECOND.to_string()),
            _ => None,
        })
    }

    /// The device function of the term, which is called `copies` times. Numbers without a type of
    /// their own have the widest of the operands and of `outputs`. It returns a number or, of
    /// several values, a structure of them.
    pub fn function(
        &self,
        functions: &mut Functions<'_>,
        (name, comment): (&str, &str),
        outputs: &[DType],
        copies: u64,
    ) -> Result<String, EmitError> {
        let [acc, value] = self.types;
        let number =
            default_type(self.inputs.iter().map(|o| o.dtype).chain(outputs.iter().copied()).chain([DType::F32]));
        // For the function, the second accumulator is one more operand.
        let second = self.inputs.len() as u32;
        let term = if self.pair { Cow::Owned(self.term.reading_second(second)) } else { Cow::Borrowed(self.term) };
        let leaf = |node: &TermNode| match node {
            TermNode::Acc => Some(("acc".to_string(), acc.compute())),
            TermNode::In { input, .. } if self.pair && *input == second => Some((SECOND.to_string(), acc.compute())),
            TermNode::In { input, .. } => {
                let o = self.inputs.get(*input as usize)?;
                Some((format!("in{}", *input as usize + self.factors), o.dtype.compute()))
            }
            _ => None,
        };
        let lowered = functions.lower(&term, number, &leaf)?;
        let of_acc = compute_name(acc);
        let mut params = vec![format!("const {of_acc} acc")];
        params.extend(self.pair.then(|| format!("const {of_acc} {SECOND}")));
        let operand = |(i, o): (usize, &Operand)| format!("const {} in{}", compute_name(o.dtype), i + self.factors);
        params.extend(self.inputs.iter().enumerate().map(operand));
        let inline = inlining(lowered.size, copies);
        let params = params.join(", ");
        // Integers saturate at their own type.
        let whole = |i: usize| outputs.get(i).copied().filter(|o| o.is_int());
        let stored = |(i, root)| functions.store(root, whole(i).unwrap_or(value));
        let values: Vec<String> = lowered.roots.iter().enumerate().map(stored).collect();
        let of_value = storage(value);
        let (result, values) = match values.as_slice() {
            [] => return Err(EmitError::Malformed(format!("{name}: a term without a value"))),
            [value] => (of_value, value.clone()),
            all => (RESULTS, format!("{{{{{}}}}}", all.join(", "))),
        };
        let mut text = String::new();
        if let count @ 2.. = lowered.roots.len() {
            text.push_str(&format!("struct {RESULTS} {{\n  {of_value} v[{count}];\n}};\n"));
        }
        text.push_str(&format!("// {comment}\nstatic __device__ {inline} {result} {name}({params}) {{\n"));
        for s in &lowered.statements {
            text.push_str(&format!("  {s}\n"));
        }
        text.push_str(&format!("  return {values};\n}}\n"));
        Ok(text)
    }
}
