//! Prologues of products: factors that are computed where they are read.
//!
//! In: a [`Prologue`] of a factor, and how a thread walks that factor. Out: its term as a device
//! function, and for each operand what the template reads and which element is which. Invariant:
//! the function computes in f32 and rounds nothing; the template rounds once.

use minijinja::{Value, context};

use super::term::{Functions, inlining};
use super::tiles::plain_storage;
use super::{Arg, ArgRole, EmitError};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{FactorAccess, FactorInput, Prologue, Walked};
use hypatia_dsl::scalar::{Term, TermNode};

/// Bytes of operands from which a thread computes units at a time.
const AT_ONCE: usize = 48;

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
    /// True if what is the same in each step is read once for all steps.
    pub keeps: bool,
}

/// How units of the factors of a product of tiles are computed. `dense` says of which factors k is
/// the dense axis.
pub(super) fn units(prologues: &[Option<Prologue>; 2], dense: [bool; 2], half: DType) -> [Option<Walk<'_>>; 2] {
    let first = [0, prologues[0].as_ref().map_or(1, |p| p.inputs.len())];
    [0, 1].map(|i| {
        let prologue = prologues[i].as_ref()?;
        let walked = Walked::unit(dense[i]);
        Some(Walk { name: ["left", "right"][i], prologue, first: first[i], walked, half, keeps: false })
    })
}

/// What the accumulators are, in words: the left factor times each right one, of which the first is
/// operand `first` and each has that many.
pub(super) fn factors(
    program: &Program,
    [left, right]: [Option<Walk<'_>>; 2],
    first: usize,
    accumulators: &[&str],
) -> String {
    let text = |walk: Option<Walk<'_>>, at: usize| match walk {
        Some(walk) => format!("({})", Walk { first: at, ..walk }.formula(program)),
        None => format!("in{at}"),
    };
    let count = right.map_or(1, |w| w.prologue.inputs.len());
    let left = text(left, 0);
    let acc = |(i, name): (usize, &&str)| format!("{name} = {left} {}", text(right, first + i * count));
    accumulators.iter().enumerate().map(acc).collect::<Vec<_>>().join(" and ")
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
        text(&self.prologue.term)
    }

    /// The device function of an element, which is called `copies` times.
    pub fn function(&self, functions: &mut Functions<'_>, copies: usize) -> Result<String, EmitError> {
        let term = &self.prologue.term;
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
            "// An element of the {} factor.\nstatic __device__ {inline} float {}_element({}) {{\n",
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
        let inputs: Value = prologue.read_by(&prologue.term).map(input).collect();
        let raw = prologue.unit_bytes(self.walked.by_k);
        // Units whose operands a thread may hold at a time.
        let at_once = (AT_ONCE / raw.max(1)).clamp(1, 4);
        context! {
            inputs => inputs,
            pair => pair,
            keeps => self.keeps,
            by_k => self.walked.by_k,
            raw => raw,
            at_once => at_once,
        }
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
        let kept = self.keeps && input.is_kept();
        let holder = if kept { "kept" } else { "read" };
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
            kept => kept,
            count => accesses.count,
            words => input.words(accesses.elements),
            bytes => accesses.elements * input.dtype.size(),
            // Where it lies in a thread's slots: for each thread so many bytes.
            raw => input.unit_bytes(by_k),
            raw_at => self.prologue.inputs[..i].iter().map(|i| i.unit_bytes(by_k)).sum::<usize>(),
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
