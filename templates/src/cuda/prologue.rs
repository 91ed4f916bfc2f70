//! Prologues of products: factors that are computed where they are read.
//!
//! In: a [`Prologue`] of a factor, and how a thread walks that factor. Out: its term as a device
//! function, and for each operand what the template reads and which element is which. Invariant:
//! the function computes in f32 and rounds nothing; the template rounds once.

use minijinja::{Value, context};

use super::term::{Functions, inlining};
use super::tiles::{loaded, plain_storage};
use super::{Arg, ArgRole, EmitError};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{FactorAccess, FactorInput, Prologue, Walked};
use hypatia_dsl::scalar::{Term, TermNode};

/// A factor of a product as a thread walks it.
#[derive(Clone, Copy)]
pub(super) struct Walk<'a> {
    /// Its name in the source: `left` or `right`.
    pub name: &'static str,
    /// How it is computed.
    pub prologue: &'a Prologue,
    /// The number of its first operand among those of the kernel.
    pub first: usize,
    /// How a thread walks it.
    pub walked: Walked,
    /// The type that is multiplied.
    pub half: DType,
}

impl Walk<'_> {
    /// The factor as text.
    pub fn formula(&self, program: &Program) -> String {
        let text = |term: &Term| {
            super::term::formula(program, term, term.root(), &|node| match node {
                TermNode::In { input, .. } => Some(format!("in{}", *input as usize + self.first)),
                _ => None,
            })
        };
        let element = text(&self.prologue.term);
        self.prologue.line.as_ref().map_or(element.clone(), |line| format!("({element}) * ({})", text(line)))
    }

    /// The device functions of an element, which is called `copies` times, and of what multiplies
    /// the sums of a line.
    pub fn functions(&self, functions: &mut Functions<'_>, copies: usize) -> Result<Vec<String>, EmitError> {
        let of_element = ("element", "An element of the", &self.prologue.term, copies);
        let of_line =
            self.prologue.line.as_ref().map(|term| ("line", "What multiplies the sums of a line of the", term, 1));
        [Some(of_element), of_line].into_iter().flatten().map(|of| self.function(functions, of)).collect()
    }

    fn function(
        &self,
        functions: &mut Functions<'_>,
        (what, about, term, copies): (&str, &str, &Term, usize),
    ) -> Result<String, EmitError> {
        let own: Vec<usize> = self.prologue.read_by(term).collect();
        let (term, numbers) = self.prologue.as_numbers(term, self.half);
        let whole = |i: usize| self.is_whole(i, &numbers);
        let name = |i: usize| format!("in{}", i + self.first);
        let leaf = |node: &TermNode| match node {
            TermNode::In { input, .. } => {
                let i = *input as usize;
                Some((name(i), if whole(i) { DType::I64 } else { DType::F32 }))
            }
            _ => None,
        };
        let lowered = functions.lower(&term, DType::F32, &leaf)?;
        let root = lowered.roots.first().cloned();
        let root = root.ok_or_else(|| EmitError::Malformed(format!("{}: a term without a value", self.name)))?;
        let param = |i: usize| format!("const {} {}", if whole(i) { "long long" } else { "float" }, name(i));
        let params: Vec<String> = own.into_iter().map(param).collect();
        let inline = inlining(lowered.size, copies as u64);
        let mut text = format!(
            "// {about} {} factor.\nstatic __device__ {inline} float {}_{what}({}) {{\n",
            self.name,
            self.name,
            params.join(", ")
        );
        lowered.statements.iter().for_each(|s| text.push_str(&format!("  {s}\n")));
        text.push_str(&format!("  return {};\n}}\n", functions.store(&root, DType::F32)));
        Ok(text)
    }

    /// True for an operand that the term uses as the integer that it is.
    fn is_whole(&self, input: usize, numbers: &[bool]) -> bool {
        let integer = |i: &FactorInput| matches!(i.dtype, DType::I8 | DType::U8);
        self.prologue.inputs.get(input).is_some_and(integer) && !numbers.get(input).copied().unwrap_or_default()
    }

    /// What the template wants to know.
    pub fn context(&self) -> Value {
        let prologue = self.prologue;
        let (term, numbers) = prologue.as_numbers(&prologue.term, self.half);
        let input = |i: usize| self.input(i, &prologue.inputs[i], &numbers);
        // A byte alone becomes a number of 16 bits without rounding.
        let pair = match term.node(term.root()) {
            TermNode::In { input: i, .. } if numbers[*i as usize] => {
                let [access, place] = self.picked(&prologue.inputs[*i as usize]);
                let function = if prologue.inputs[*i as usize].dtype == DType::U8 { "u8_pair" } else { "i8_pair" };
                Some(format!("{function}(read.in{}[{access}], {place})", *i as usize + self.first))
            }
            _ => None,
        };
        let line = prologue.line.as_ref().map(|line| {
            let (_, numbers) = prologue.as_numbers(line, self.half);
            let of = |right: usize| {
                let of_input = |i: usize| self.of_line(i, right, &numbers);
                prologue.read_by(line).map(of_input).collect::<Vec<String>>().join(", ")
            };
            vec![of(0), of(1)]
        });
        let inputs: Value = prologue.read_by(&prologue.term).map(input).collect();
        context! { inputs => inputs, pair => pair, line => line }
    }

    /// The access and the place in it of element `e` along k of line `j`.
    fn picked(&self, input: &FactorInput) -> [&'static str; 2] {
        match (input.access, self.walked.by_k) {
            (FactorAccess::Each, true) => ["j", "e"],
            (FactorAccess::Each, false) => ["e", "j"],
            (FactorAccess::Along, true) => ["0", "e"],
            (FactorAccess::Along, false) => ["e", "0"],
            (FactorAccess::Group | FactorAccess::Line, true) => ["j", "0"],
            (FactorAccess::Group | FactorAccess::Line, false) => ["0", "j"],
            (FactorAccess::Splat, _) => ["0", "0"],
        }
    }

    /// An operand's value for column `q_col` of a right factor.
    fn of_line(&self, i: usize, right: usize, numbers: &[bool]) -> String {
        let input = &self.prologue.inputs[i];
        let name = format!("in{}", i + self.first + right * self.prologue.inputs.len());
        let index =
            if input.access == FactorAccess::Splat { "0".into() } else { format!("q_col * {name}_strides.at[1]") };
        let element = format!("{name}[{index}]");
        if numbers[i] { format!("(float){element}") } else { loaded(input.dtype, &element) }
    }

    fn input(&self, i: usize, input: &FactorInput, numbers: &[bool]) -> Value {
        let accesses = input.accesses(self.walked);
        let by_k = self.walked.by_k;
        let name = format!("in{}", i + self.first);
        // Elements from the operand's first one to access `c`. `k0` is the thread's first place
        // along k, `line` and `column0` its line `c` and its first column.
        let along = if by_k { "k0" } else { "(k0 + c)" };
        let group = format!("(k0 / {})", self.prologue.group);
        let offset = |stride: &dyn Fn(usize) -> String| match (input.access, by_k) {
            (FactorAccess::Each, true) => format!("line * {} + k0", stride(1)),
            (FactorAccess::Each, false) => format!("{along} * {} + column0", stride(0)),
            (FactorAccess::Along, _) => format!("{along} * {}", stride(0)),
            (FactorAccess::Group, true) => format!("line * {} + {group} * {}", stride(1), stride(0)),
            (FactorAccess::Group, false) => format!("{group} * {} + column0", stride(0)),
            (FactorAccess::Line, true) => format!("line * {}", stride(1)),
            (FactorAccess::Line, false) => "column0".to_string(),
            (FactorAccess::Splat, _) => "0".to_string(),
        };
        let [access, place] = self.picked(input);
        let function = match input.dtype {
            DType::I8 => "i8_at",
            DType::U8 => "u8_at",
            DType::F32 => "f32_at",
            _ => "half_at",
        };
        let holder = if input.is_kept() { "kept" } else { "read" };
        let value = format!("{function}({holder}.{name}[{access}], {place})");
        let value = if self.is_whole(i, numbers) { format!("(long long){value}") } else { value };
        let of = |right: usize| {
            let own = format!("in{}", i + self.first + right * self.prologue.inputs.len());
            let offset = offset(&|axis| format!("{own}_strides.at[{axis}]"));
            context! { name => own, offset => offset }
        };
        context! {
            field => name,
            storage => plain_storage(input.dtype),
            size => input.dtype.size(),
            each => input.access == FactorAccess::Each,
            kept => input.is_kept(),
            count => accesses.count,
            words => input.words(accesses.elements),
            bytes => accesses.elements * input.dtype.size(),
            value => value,
            of => vec![of(0), of(1)],
        }
    }
}

/// The arguments of the operands of such a factor, the first of which is operand `first`.
pub(super) fn arguments(prologue: &Prologue, first: usize, lines: &str) -> Vec<Arg> {
    let mut out = Vec::new();
    for (i, input) in prologue.inputs.iter().enumerate() {
        let at = first + i;
        let about = match input.access {
            FactorAccess::Each => "one element a place of its factor",
            FactorAccess::Along => "one element a place along the depth",
            FactorAccess::Group => "one element a group along the depth, and line of its factor",
            FactorAccess::Line => "one element a line of its factor",
            FactorAccess::Splat => "one element",
        };
        out.push(Arg::read(at, input.dtype, about));
        let along = if input.access == FactorAccess::Group { "groups along the depth" } else { "places along it" };
        let about = format!("elements of in{at} between {along}, and {lines}");
        out.push(Arg::strides(ArgRole::Read(at), 2, about));
    }
    out
}
