//! Terms over narrow integers on devices that count in 64 bits.
//!
//! In: a term, and the element types of its accumulator and operands. Out: the same over builtin functions, each result
//! brought to the width that it has in the reference. Holds always: a term without arithmetic of narrow integers stays as
//! it is, so that kernels which are known for it are still found.

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::{DType, Kind};
use hypatia_dsl::ir::{InView, Program};
use hypatia_dsl::scalar::{Literal, Term, TermId, TermNode};

use crate::cpu::flat::{self, Flat, FlatOp, FlatStep, Source};
use crate::error::{Error, Result};

/// True if a step's result may be wider than its type.
fn overflows(step: &FlatStep) -> bool {
    let narrow = step.lane.is_int() && step.lane != DType::I64;
    narrow && matches!(step.op, FlatOp::Apply(f, _) if f.result() == Kind::Number)
}

/// The term with each result of narrow integers wrapped.
pub(super) fn wrapped(program: &Program, term: &Term, acc: DType, inputs: &[DType]) -> Result<Term> {
    if acc.is_float() && inputs.iter().all(|d| d.is_float()) {
        return Ok(term.clone());
    }
    let flat = flat::lower(program, term, Some(acc), inputs)?;
    if flat.steps.iter().any(overflows) { rebuilt(program, &flat) } else { Ok(term.clone()) }
}

fn rebuilt(program: &Program, flat: &Flat) -> Result<Term> {
    let mut out = Term::empty();
    let mut ids: Vec<TermId> = Vec::with_capacity(flat.steps.len());
    let scalar = |f: BuiltinScalar| {
        program.builtin_scalar(f).ok_or_else(|| Error::Internal(format!("the program has no `{}`", f.name())))
    };
    for step in &flat.steps {
        let at =
            |i: &u32| ids.get(*i as usize).copied().ok_or_else(|| Error::Internal("a step before its time".into()));
        let node = match &step.op {
            FlatOp::Load(Source::Acc) => TermNode::Acc,
            FlatOp::Load(Source::In(input)) => TermNode::In { input: *input, view: InView::Broadcast },
            FlatOp::Lit(number) => TermNode::Lit(Literal(*number)),
            FlatOp::Apply(f, args) => {
                let args = args.iter().take(f.params().len()).map(at).collect::<Result<_>>()?;
                TermNode::Call { scalar: scalar(*f)?, args }
            }
            FlatOp::Convert(arg) => TermNode::Cast { to: step.lane, arg: at(arg)? },
            FlatOp::Round(to, arg) => TermNode::Cast { to: *to, arg: at(arg)? },
        };
        let id = out.add(node);
        ids.push(if overflows(step) { out.add(TermNode::Cast { to: step.lane, arg: id }) } else { id });
    }
    out.roots = flat.roots.iter().filter_map(|r| ids.get(*r as usize).copied()).collect();
    Ok(out)
}
