//! Short functions of the device in generated kernels, where a rule allows them.
//!
//! In: a GPU plan with final steps. Out: the same, with kernels in which rules such as those of
//! `short.hyp` have fired, and a record of where. Invariant: a plan for the host is unchanged.

use std::sync::Arc;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::short::Shortener;

use super::{Action, Called, ChainLayer, FactorFrom, HorizontalPart, Plan, PrologueStep, Shortened, Step, View};

/// Applies the rules to generated kernels.
pub(super) fn shorten(plan: &mut Plan) {
    let program = Arc::clone(&plan.program);
    let shortener = Shortener::new(&program, &plan.allowed);
    let mut fired = Vec::new();
    plan.steps.iter_mut().for_each(|step| shorten_step(&shortener, step, plan.device.tf32, &mut fired));
    plan.shortened = fired;
}

fn shorten_step(shortener: &Shortener<'_>, step: &mut Step, tf32: bool, fired: &mut Vec<Shortened>) {
    let rules = match &mut step.action {
        Action::Pointwise(p) => shortener.pointwise(&mut p.kernel, tf32),
        Action::Horizontal(h) => {
            let part = |p: &mut HorizontalPart| {
                let tables: Vec<usize> = p.picks.iter().map(|pick| pick.table).collect();
                shortener.part(&mut p.step.kernel, &tables, tf32)
            };
            h.parts.iter_mut().flat_map(part).collect()
        }
        Action::Rowwise(r) => shortener.rowwise(&mut r.kernel),
        Action::Conv(c) if !c.is_plain() => {
            let inputs: Vec<DType> = step.reads.iter().skip(2).map(|v| v.dtype).collect();
            shortener.product(&mut c.term, &inputs, &[step.writes[0].dtype])
        }
        Action::Call(e) => {
            e.fallback.iter_mut().for_each(|s| shorten_step(shortener, s, tf32, fired));
            // The fallback records the rules. Scores keep their precision: a softmax magnifies
            // their errors.
            let to = step.writes[0].dtype;
            match &mut e.called {
                Called::Attention(a) => {
                    a.short = shortener.exponential(to);
                    let beside = &step.reads[e.reads - a.beside..e.reads];
                    let inputs: Vec<DType> = beside.iter().map(|v| v.dtype).collect();
                    shortener.finish(&mut a.finish, &inputs, to, tf32);
                }
                Called::AttentionGrad(a) => a.short = shortener.exponential(to),
                Called::Rows(parts) => parts.iter_mut().for_each(|r| drop(shortener.rowwise(&mut r.kernel))),
                _ => {}
            }
            if let Called::Chain(layers) = &mut e.called {
                shorten_chain(shortener, layers, &step.reads, to);
            }
            if let Called::Prologue(p) = &mut e.called {
                let types: Vec<DType> = step.writes[..e.writes].iter().map(|v| v.dtype).collect();
                shorten_prologue(shortener, p, &step.reads[..e.reads], &types);
            }
            let of = match &mut e.called {
                Called::Product(g) if !g.is_plain() => Some((g, 2)),
                Called::Pair(g) => Some((g, 3)),
                _ => None,
            };
            if let Some((g, factors)) = of {
                let inputs: Vec<DType> = step.reads[factors..e.reads].iter().map(|v| v.dtype).collect();
                let types: Vec<DType> = step.writes[..e.writes].iter().map(|v| v.dtype).collect();
                shortener.product(&mut g.term, &inputs, &types);
            }
            return;
        }
        _ => return,
    };
    fired.extend(rules.into_iter().map(|rule| Shortened { step: step.title(), rule }));
}

/// The terms of a product's factors and of its epilogue. `reads` are those of the launch, whose
/// results have these types.
fn shorten_prologue(shortener: &Shortener<'_>, p: &mut PrologueStep, reads: &[View], types: &[DType]) {
    let mut rest = reads;
    for factor in &mut p.factors {
        let (own, others) = rest.split_at(factor.reads().min(rest.len()));
        if let FactorFrom::Term(f) = factor {
            let inputs: Vec<DType> = own.iter().map(|v| v.dtype).collect();
            shortener.product(&mut f.term, &inputs, &[f.dtype]);
        }
        rest = others;
    }
    let inputs: Vec<DType> = rest.iter().map(|v| v.dtype).collect();
    shortener.product(&mut p.product.term, &inputs, types);
}

/// The terms of a chain's products. `reads` are those of the step, whose results all have type
/// `to`.
fn shorten_chain(shortener: &Shortener<'_>, layers: &mut [ChainLayer], reads: &[View], to: DType) {
    let mut first = 1;
    for layer in layers {
        let end = first + layer.reads;
        let inputs: Vec<DType> = reads[first + 1..end].iter().map(|v| v.dtype).collect();
        shortener.product(&mut layer.product.term, &inputs, &[to]);
        first = end;
    }
}
