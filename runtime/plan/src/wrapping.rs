//! Terms on narrow integers for devices that compute integers in 64 bits.
//!
//! In: a term, and the element types of its accumulator and operands. Out: the same in builtin
//! functions, with each result wrapped to its width in the reference. Invariant: a term without
//! arithmetic on narrow integers is unchanged, so that specialised kernels for it are still found.

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::{DType, Kind};
use hypatia_dsl::ir::{InView, Program};
use hypatia_dsl::scalar::typed::{Source, Typed, TypedNode, TypedOp, inlined};
use hypatia_dsl::scalar::{Term, TermId, TermNode};

use hypatia_tensor::error::{Error, Result};

/// True if a step's result may be wider than its type.
fn overflows(step: &TypedNode) -> bool {
    let narrow = step.ty.is_int() && step.ty != DType::I64;
    narrow && matches!(step.op, TypedOp::Apply(f, _) if f.result() == Kind::Number)
}

/// The term with every narrow integer result wrapped.
pub(super) fn wrap_integers(program: &Program, term: &Term, acc: DType, inputs: &[DType]) -> Result<Term> {
    if acc.is_float() && inputs.iter().all(|d| d.is_float()) {
        return Ok(term.clone());
    }
    let typed = inlined(program, term, Some(acc), inputs)?;
    if typed.nodes.iter().any(overflows) { rebuilt(program, &typed) } else { Ok(term.clone()) }
}

fn rebuilt(program: &Program, typed: &Typed) -> Result<Term> {
    let mut out = Term::empty();
    let mut ids: Vec<TermId> = Vec::with_capacity(typed.nodes.len());
    let scalar = |f: BuiltinScalar| {
        program.builtin_scalar(f).ok_or_else(|| Error::Internal(format!("the program has no `{}`", f.name())))
    };
    for step in typed.nodes.iter().copied() {
        let at = |i: u32| ids.get(i as usize).copied().ok_or_else(|| Error::Internal("a step before its time".into()));
        let node = match step.op {
            TypedOp::Load(Source::Acc) => TermNode::Acc,
            TypedOp::Load(Source::In(input)) => TermNode::In { input, view: InView::Broadcast },
            TypedOp::Lit(number) => TermNode::Lit(number),
            TypedOp::Apply(f, args) => {
                let args = args.into_iter().take(f.params().len()).map(at).collect::<Result<_>>()?;
                TermNode::Call { scalar: scalar(f)?, args }
            }
            TypedOp::Convert(arg) => TermNode::Cast { to: step.ty, arg: at(arg)? },
            TypedOp::Round(to, arg) => TermNode::Cast { to, arg: at(arg)? },
        };
        let id = out.add(node);
        ids.push(if overflows(&step) { out.add(TermNode::Cast { to: step.ty, arg: id }) } else { id });
    }
    out.roots = typed.roots.iter().filter_map(|r| ids.get(*r as usize).copied()).collect();
    Ok(out)
}
