//! The arithmetic and memory traffic of steps, with which measured times are compared.
//!
//! In: a step, or a plan. Out: its operations and bytes. Invariant: they depend on the plan alone,
//! never on a device.

use hypatia_dsl::scalar::{Term, TermNode};

use super::{Action, CallStep, Called, GemmStep, HorizontalPart, Plan, Step, View};

/// Arithmetic and memory traffic of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepWork {
    /// Operations: two for each multiply-add, one for each call of a scalar function.
    pub flops: f64,
    /// Bytes read and written, counting each element once.
    pub bytes: f64,
}

/// Calls in a term.
fn calls(term: &Term) -> f64 {
    term.nodes.iter().filter(|n| matches!(n, TermNode::Call { .. })).count() as f64
}

/// Bytes of the distinct elements of a view.
fn bytes(view: &View) -> f64 {
    let sizes = view.shape.iter().zip(&view.strides).filter(|(size, stride)| **size == 0 || **stride != 0);
    sizes.map(|(size, _)| *size as f64).product::<f64>() * view.dtype.size() as f64
}

impl Step {
    /// The work of the step.
    pub fn work(&self) -> StepWork {
        let len = self.writes.first().map_or(0, View::len) as f64;
        let flops = match &self.action {
            Action::Gemm(g) | Action::Call(CallStep { called: Called::Product(g) | Called::Sum(g), .. }) => {
                len * (2.0 * g.k as f64 + calls(&g.term))
            }
            Action::Call(CallStep { called: Called::Pair(g), .. }) => len * (4.0 * g.k as f64 + calls(&g.term)),
            Action::Call(CallStep { called: Called::Rows(_), fallback, .. }) => {
                fallback.iter().map(|s| s.work().flops).sum()
            }
            Action::Call(CallStep { called: Called::Template(t), fallback, .. }) => match &t.product {
                Some(g) => len * (2.0 * g.k as f64 + calls(&g.term)),
                None => fallback.iter().map(|s| s.work().flops).sum(),
            },
            Action::Call(CallStep { called: Called::Chain(layers), .. }) => {
                let rows = layers.last().map_or(0.0, |l| len / l.product.n.max(1) as f64);
                let of = |g: &GemmStep| rows * g.n as f64 * (2.0 * g.k as f64 + calls(&g.term));
                layers.iter().map(|l| of(&l.product)).sum()
            }
            Action::Call(CallStep { called: Called::Prologue(p), .. }) => {
                let (g, rights) = (&p.product, (p.factors.len() - 1) as f64);
                let of_factors = p.factors.iter().enumerate().map(|(i, f)| {
                    let size = if i == 0 { len / g.n.max(1) as f64 } else { g.n as f64 } * g.k as f64;
                    f.term().map_or(0.0, |f| size * calls(&f.term))
                });
                len * (2.0 * rights * g.k as f64 + calls(&g.term)) + of_factors.sum::<f64>()
            }
            Action::Call(CallStep { called: Called::Attention(a), .. }) => {
                let scores = len / (a.value.max(1) as f64) * a.keys as f64;
                // Besides the score: the maximum, the exponential, the sum.
                scores * (2.0 * (a.head + a.value) as f64 + calls(&a.term) + 4.0) + len * calls(&a.finish)
            }
            Action::Call(CallStep { called: Called::AttentionGrad(a), .. }) => {
                let scores = len / (a.head.max(1) as f64) * a.keys as f64;
                scores * (2.0 * (3 * a.head + 2 * a.value) as f64 + calls(&a.weight) + calls(&a.slope))
            }
            Action::Conv(c) => {
                let terms: usize = self.reads.get(1).map_or(0, |w| w.shape[1..].iter().product());
                len * (2.0 * terms as f64 + calls(&c.term))
            }
            Action::Pointwise(p) => len * calls(&p.kernel.term),
            Action::Horizontal(h) => {
                let of = |p: &HorizontalPart| -> f64 {
                    calls(&p.step.kernel.term) + p.picks.iter().map(|pick| calls(&pick.index)).sum::<f64>()
                };
                h.parts.iter().map(|p| p.len() as f64 * of(p)).sum()
            }
            Action::Rowwise(r) => {
                let elements = (r.rows * r.n) as f64;
                let steps: f64 = r.kernel.steps.iter().map(|(_, t)| calls(t) + 1.0).sum();
                let outputs: f64 = r.kernel.outputs.iter().map(|(_, _, t)| calls(t)).sum();
                let sums: f64 = r.kernel.sums.iter().map(|(_, t)| calls(t) + 1.0).sum();
                elements * (steps + outputs + sums)
            }
            Action::Pool(p) => len * p.windows.iter().map(|w| w.size).product::<usize>() as f64,
            Action::Reduce(..) | Action::Argmax(..) | Action::Cumsum(_) => {
                self.reads.first().map_or(0, View::len) as f64
            }
            _ => 0.0,
        };
        // Gathers read as much of their source as they write.
        let tables: Vec<usize> = match &self.action {
            Action::Horizontal(h) => h.tables().collect(),
            Action::Rowwise(r) => r.kernel.gathers.iter().map(|g| g.table).collect(),
            Action::Gather(_) | Action::GatherElements(_) | Action::GatherNd(_) => vec![0],
            _ => Vec::new(),
        };
        let of_table = |i: usize, v: &View| match &self.action {
            Action::Rowwise(r) => r.picked(i) as f64,
            Action::Horizontal(_) => v.len() as f64,
            _ => len,
        };
        let touched = |(i, v): (usize, &View)| match tables.contains(&i) {
            true => of_table(i, v) * v.dtype.size() as f64,
            false => bytes(v),
        };
        // Memory traffic of only the fallback is not counted.
        let (reads, writes) = match &self.action {
            Action::Call(e) => (e.reads, e.writes),
            _ => (self.reads.len(), self.writes.len()),
        };
        let read: f64 = self.reads.iter().take(reads).enumerate().map(touched).sum();
        StepWork { flops, bytes: read + self.writes.iter().take(writes).map(bytes).sum::<f64>() }
    }

    /// The product that the step computes, if it is a single one.
    pub(super) fn product(&self) -> Option<&GemmStep> {
        match &self.action {
            Action::Gemm(g) => Some(g),
            Action::Call(call) => match &call.called {
                Called::Product(g) | Called::Sum(g) | Called::Pair(g) => Some(g),
                Called::Template(t) => t.product.as_ref(),
                Called::Prologue(p) => Some(&p.product),
                Called::Chain(_) | Called::Rows(_) | Called::Attention(_) | Called::AttentionGrad(_) => None,
            },
            _ => None,
        }
    }

    /// The sizes that decide the step's time: matrices, rows, columns and the length of the sums of
    /// a product; else the first result's shape.
    pub fn sizes(&self) -> Vec<usize> {
        match self.product() {
            Some(g) => vec![g.batch.iter().product(), g.m, g.n, g.k],
            None => self.writes.first().map_or_else(Vec::new, |v| v.shape.clone()),
        }
    }

    /// The kind of work, in a word.
    pub fn kind(&self) -> &'static str {
        match &self.action {
            Action::Call(CallStep { called: Called::Attention(_) | Called::AttentionGrad(_), .. }) => "tiled attention",
            Action::Call(CallStep { called: Called::Template(_), .. }) => "template",
            Action::Call(CallStep { called: Called::Rows(_), .. }) => "row-wise",
            Action::Gemm(_) | Action::Call(_) => "gemm",
            Action::Conv(_) => "conv",
            Action::Pointwise(_) => "pointwise",
            Action::Horizontal(_) => "horizontal",
            Action::Rowwise(_) => "row-wise",
            Action::Copy => "copy",
            Action::Concat(_) => "concat",
            Action::Pad(_) => "pad",
            Action::Unfold(_) => "unfold",
            Action::Pool(_) => "pool",
            Action::Gather(_) | Action::GatherElements(_) | Action::GatherNd(_) => "gather",
            Action::Reduce(..) => "reduce",
            Action::Argmax(..) => "argmax",
            Action::Cumsum(_) => "cumsum",
            Action::Scatter(_) => "scatter",
            Action::Argsort(..) => "argsort",
        }
    }
}

impl Plan {
    /// The work of all steps.
    pub fn work(&self) -> StepWork {
        self.steps
            .iter()
            .map(Step::work)
            .fold(StepWork::default(), |a, b| StepWork { flops: a.flops + b.flops, bytes: a.bytes + b.bytes })
    }
}
