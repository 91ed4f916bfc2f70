//! Kernels that are timed beside their fallback: generated products, chains of them, attentions,
//! and users' templates.
//!
//! In: a step whose kernel is one of these. Out: the ways to compute it, in a stored form, the one
//! with the best prediction first; and for each the kernels and their [`Work`]. Invariant: only
//! ways that the kernel declares are listed; those of a chain are its templates'.

use hypatia_dsl::ir::Kernel;
use hypatia_dsl::kernel::StoredTiling;
use hypatia_templates::instances::Body;

use super::Work;
use super::attention::GeneratedAttention;
use super::attention_grad::GeneratedAttentionGrad;
use super::chain::GeneratedChain;
use super::product::GeneratedProduct;
use super::template;
use hypatia_plan::{CallStep, Called, Checks, Plan, Step};

/// What a step computes in one launch, or few.
#[derive(Clone, Debug)]
pub enum Timed {
    /// A product, by a template of ours.
    Product(Box<GeneratedProduct>),
    /// Products in turn, by a template of ours.
    Chain(Box<GeneratedChain>),
    /// Attention, by a template of ours.
    Attention(Box<GeneratedAttention>),
    /// The gradients of attention, by templates of ours.
    AttentionGrad(Box<GeneratedAttentionGrad>),
    /// By a user's template: each launch that it declares.
    Template(Vec<(Body, Work)>),
}

impl Timed {
    /// `None` if no template of ours reads the operands in place.
    pub fn of(plan: &Plan, (step, call, kernel): (&Step, &CallStep, &Kernel)) -> Option<Timed> {
        let out = step.writes.first()?;
        let (reads, writes) = (&step.reads[..call.reads], &step.writes[..call.writes]);
        match &call.called {
            Called::Sum(_) | Called::Rows(_) => None,
            Called::Product(g) | Called::Pair(g) if g.k == 0 => None,
            Called::Prologue(p) => {
                GeneratedProduct::of_prologue(plan, p, reads, writes).map(|p| Timed::Product(Box::new(p)))
            }
            Called::Pair(g) => GeneratedProduct::of_pair(plan, g, reads, writes).map(|p| Timed::Product(Box::new(p))),
            Called::Product(g) => GeneratedProduct::of(plan, g, reads, writes).map(|p| Timed::Product(Box::new(p))),
            // A chain keeps its accumulators to itself.
            Called::Chain(_) if plan.checks != Checks::Off => None,
            Called::Chain(layers) => {
                GeneratedChain::of(&plan.device, layers, reads, out).map(|c| Timed::Chain(Box::new(c)))
            }
            Called::Attention(a) => {
                GeneratedAttention::of(plan, a, reads, writes).map(|a| Timed::Attention(Box::new(a)))
            }
            Called::AttentionGrad(a) => {
                GeneratedAttentionGrad::of(plan, a, reads, writes).map(|a| Timed::AttentionGrad(Box::new(a)))
            }
            Called::Template(t) => Some(Timed::Template(template::variants(kernel, t, reads, writes))),
        }
    }

    /// The tilings that a kernel declares and that fit, the one with the best prediction first.
    pub fn plausible(&self, kernel: &Kernel, multiprocessors: usize) -> Vec<StoredTiling> {
        match self {
            Timed::Product(p) => p.plausible(kernel, multiprocessors),
            Timed::Chain(c) => c.plausible(multiprocessors),
            Timed::Attention(a) => a.plausible(kernel, multiprocessors),
            Timed::AttentionGrad(a) => a.plausible(kernel, multiprocessors),
            Timed::Template(variants) => (0..variants.len() as u64).map(|i| [TEMPLATE, i, 0, 0, 0, 0, 0, 0]).collect(),
        }
    }

    /// The kernels of a stored form in launch order, and their arguments; empty if it does not fit.
    pub fn launches(&self, words: &StoredTiling) -> Vec<(Body, Work)> {
        let one = match self {
            Timed::Product(p) => return p.launches(words),
            Timed::Chain(c) => c.tiled(words),
            Timed::Attention(a) => return a.launches(words),
            Timed::AttentionGrad(a) => return a.launches(words),
            Timed::Template(variants) => usize::try_from(words[1]).ok().and_then(|i| variants.get(i).cloned()),
        };
        one.into_iter().collect()
    }

    /// What is computed, for people.
    pub fn name(&self, kernel: &Kernel) -> String {
        match self {
            Timed::Product(p) => {
                let [batches, m, n, k] = p.sizes();
                format!("{m}x{n}x{k} batch {batches}")
            }
            Timed::Chain(c) => c.name(),
            Timed::Attention(a) => {
                let [heads, queries, keys, head] = a.sizes();
                format!("attention {queries}x{keys}x{head} heads {heads}")
            }
            Timed::AttentionGrad(a) => {
                let [heads, queries, keys, head] = a.sizes();
                format!("attention gradients {queries}x{keys}x{head} heads {heads}")
            }
            Timed::Template(_) => format!("template {}", kernel.name),
        }
    }
}

/// The first word of a template's launch.
const TEMPLATE: u64 = 3;

/// The kernel of a step, if it is one that is timed beside its fallback.
pub fn kernel<'p>(plan: &'p Plan, step: &Step) -> Option<&'p Kernel> {
    let kernel = &plan.program.kernels[step.kernel?.index()];
    kernel.backend.is_timed().then_some(kernel)
}
