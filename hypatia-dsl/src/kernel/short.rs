//! Shortens generated kernels: rules that replace scalars in their terms by functions that a device
//! computes in fewer instructions.
//!
//! In: the description of a kernel, once its inputs and outputs are known, and the approximations
//! that are allowed. Out: the same description with scalars that name a device function
//! (`device "..."`) where a rule inserts them, and the rules that fired. Invariant: a rule fires
//! only if its claim is allowed for the digits that the kernel's results keep. `rule` reads the
//! rules, `subject` finds their left sides in a term, `rewrite` puts in their right sides.

mod rewrite;
mod rule;
mod subject;
#[cfg(test)]
mod tests;

use crate::builtin::BuiltinScalar;
use crate::dtype::DType;
use crate::ir::{Build, Class, Head, Program, Rule, RuleId, walk_build};
use crate::numerics::{Allowed, Numerics, TF32_BITS, mantissa_bits};
use crate::scalar::typed::{default_type, types};
use crate::scalar::{Term, TermBuilder, TermNode};

use self::rewrite::Rewriter;
use self::subject::Leaves;
use super::{PICKED, PointwiseKernel, RowAccess, RowwiseKernel};

pub use self::rule::TermRule;

/// The number of elements that guards assume for a row, as costs do for symbolic sizes.
const ROW: i64 = 8;

/// True for a rule about terms of generated kernels: its right side contains a scalar with a device
/// function.
pub fn is_short(program: &Program, rule: &Rule) -> bool {
    let named = |head: Head| matches!(head, Head::Scalar(s) if program.scalar(s).device.is_some());
    let mut found = false;
    let mut look = |b: &Build, _root: bool| found |= matches!(b, Build::Node(n) if named(n.head));
    rule.rhs.iter().for_each(|b| walk_build(b, &mut look, true));
    found
}

/// The rules of a Program that may shorten kernels.
pub struct Shortener<'p> {
    program: &'p Program,
    /// Each with its sides read.
    rules: Vec<(RuleId, TermRule<'p>)>,
    numerics: Numerics,
}

impl<'p> Shortener<'p> {
    /// Collects the allowed rules. A rule with a side that is not one term never fires.
    pub fn new(program: &'p Program, allowed: &Allowed) -> Shortener<'p> {
        let rules = program.rules.iter().enumerate();
        let rules = rules.filter(|(_, r)| is_short(program, r) && !allowed.is_off(program, r));
        let rules = rules.filter_map(|(i, r)| Some((RuleId(i as u32), TermRule::of(program, r).ok()?))).collect();
        Shortener { program, rules, numerics: allowed.numerics }
    }

    /// Shortens a pointwise kernel. With `tf32` it follows products that keep 10 bits of their
    /// operands.
    pub fn pointwise(&self, kernel: &mut PointwiseKernel, tf32: bool) -> Vec<RuleId> {
        self.part(kernel, &[], tf32)
    }

    /// The same of a part of a launch, whose picks are from the operands `tables`.
    pub fn part(&self, kernel: &mut PointwiseKernel, tables: &[usize], tf32: bool) -> Vec<RuleId> {
        let kept = kernel.outputs.iter().map(|d| mantissa_bits(*d)).max().unwrap_or(52);
        let Some(rules) = self.allowed(if tf32 { TF32_BITS } else { kept }) else { return Vec::new() };
        let (acc, inputs) = (kernel.acc, &kernel.inputs);
        let number = default_type(inputs.iter().map(|o| o.dtype).chain(acc).chain(kernel.outputs.iter().copied()));
        let leaf = |node: &TermNode| match node {
            TermNode::Acc => acc,
            TermNode::In { input, .. } => {
                let at = match input.checked_sub(PICKED) {
                    Some(pick) => *tables.get(pick as usize)?,
                    None => *input as usize,
                };
                inputs.get(at).map(|o| o.dtype)
            }
            _ => None,
        };
        rules.rewrite(&mut kernel.term, number, &Leaves { types: &leaf, elements: &|_| None })
    }

    /// Shortens the epilogue of a product with f32 accumulators, whose operands have these types.
    /// Of the types of the results, the finest determines how many digits count.
    pub fn product(&self, term: &mut Term, inputs: &[DType], outputs: &[DType]) -> Vec<RuleId> {
        let kept = outputs.iter().map(|d| mantissa_bits(*d)).max().unwrap_or(52);
        self.keeping(kept, (term, inputs, outputs))
    }

    /// Shortens work on the result of a tiled kernel, as a pass over that would be: in TF32 it
    /// keeps 10 bits.
    pub fn finish(&self, term: &mut Term, inputs: &[DType], output: DType, tf32: bool) -> Vec<RuleId> {
        let kept = if tf32 { TF32_BITS } else { mantissa_bits(output) };
        self.keeping(kept, (term, inputs, &[output]))
    }

    fn keeping(&self, kept: i32, (term, inputs, outputs): (&mut Term, &[DType], &[DType])) -> Vec<RuleId> {
        let Some(rules) = self.allowed(kept) else { return Vec::new() };
        let number = default_type(inputs.iter().chain(outputs).copied().chain([DType::F32]));
        let leaf = |node: &TermNode| match node {
            TermNode::Acc | TermNode::Second => Some(DType::F32),
            TermNode::In { input, .. } => inputs.get(*input as usize).copied(),
            _ => None,
        };
        rules.rewrite(term, number, &Leaves { types: &leaf, elements: &|_| None })
    }

    /// Whether a rule replaces the exponential of an f32 value in kernels with results of that
    /// type.
    pub fn exponential(&self, output: DType) -> bool {
        let mut terms = TermBuilder::new();
        let acc = terms.add(TermNode::Acc);
        let Some(exp) = terms.builtin(self.program, BuiltinScalar::Exp, vec![acc]) else { return false };
        !self.product(&mut terms.finish(vec![exp]), &[], &[output]).is_empty()
    }

    /// Shortens a row-wise kernel. The types of its outputs and of its large inputs determine how
    /// many digits count: what has one element a row or a column only scales or shifts others.
    pub fn rowwise(&self, kernel: &mut RowwiseKernel) -> Vec<RuleId> {
        let made = || kernel.outputs.iter().map(|o| o.0).chain(kernel.sums.iter().map(|s| s.0));
        let all = || kernel.inputs.iter().map(|i| i.0).chain(made());
        let small = |a: RowAccess| matches!(a, RowAccess::PerColumn | RowAccess::PerRow | RowAccess::Splat);
        let large = kernel.inputs.iter().filter(|i| !small(i.1)).map(|i| i.0).chain(made());
        let Some(kept) = large.filter(|d| d.is_float()).map(mantissa_bits).max() else { return Vec::new() };
        let Some(rules) = self.allowed(kept) else { return Vec::new() };
        let number = default_type(all());
        let mut leaves: Vec<DType> = kernel.inputs.iter().map(|i| i.0).collect();
        let inputs = leaves.len() as u32;
        let elements = |node: &TermNode| match node {
            // The layout of an operand is chosen later; assume an element for each element of the
            // row.
            TermNode::In { input, .. } => Some(if *input < inputs { ROW } else { 1 }),
            _ => None,
        };
        let mut fired = Vec::new();
        for (_, term) in &mut kernel.steps {
            fired.extend(rules.rewrite(term, number, &Leaves { types: &of(&leaves), elements: &elements }));
            let known = types(self.program, term, number, &of(&leaves)).ok();
            let ty = known.and_then(|t| t.get(term.root().0 as usize).copied().flatten()).unwrap_or(number);
            leaves.push(if ty == DType::Bool { DType::I64 } else { ty });
        }
        let stored = kernel.outputs.iter_mut().map(|(_, _, term)| term);
        for term in stored.chain(kernel.sums.iter_mut().map(|(_, term)| term)) {
            fired.extend(rules.rewrite(term, number, &Leaves { types: &of(&leaves), elements: &elements }));
        }
        fired
    }

    /// The rules that may fire if results keep this many bits; `None` if there are none.
    fn allowed(&self, kept: i32) -> Option<Rewriter<'_, 'p>> {
        let allowed = |r: &TermRule<'_>| claim(r.rule).is_some_and(|c| self.numerics.allows(c, kept));
        let rules: Vec<_> = self.rules.iter().filter(|(_, r)| allowed(r)).collect();
        (!rules.is_empty()).then_some(Rewriter { program: self.program, rules })
    }
}

/// The rounding class that a rule claims for f32.
pub fn claim(rule: &Rule) -> Option<Class> {
    let named = rule.claims.iter().find(|c| c.dtypes.contains(&DType::F32));
    let any = || rule.claims.iter().find(|c| c.dtypes.is_empty());
    named.or_else(any).map(|c| c.class)
}

fn of(leaves: &[DType]) -> impl Fn(&TermNode) -> Option<DType> + '_ {
    |node| match node {
        TermNode::In { input, .. } => leaves.get(*input as usize).copied(),
        _ => None,
    }
}
