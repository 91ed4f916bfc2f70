//! When the products of a plan are held against checksums.
//!
//! In: a plan on a GPU that is checked. Out: the step after which each step's products are
//! compared. Invariant: what a comparison reads is kept until then, since [`super::arena`] counts
//! it as used there.
//!
//! A comparison is a small launch that waits for memory most of its time, so several of them run at
//! once.

use super::buffer::Storage;
use super::options::Checks;
use super::plan::Plan;
use super::step::{Action, Called, Step};
use super::view::View;

/// Steps whose products are compared at once, at most.
const AT_ONCE: usize = 8;
/// Bytes that are kept for one comparison of several steps, at most.
const KEPT: usize = 64 << 20;

impl Plan {
    /// For each step, the step after which its products are compared: itself or a later one.
    pub fn compared_behind(&self) -> Vec<usize> {
        let mut behind: Vec<usize> = (0..self.steps.len()).collect();
        if self.checks == Checks::Off {
            return behind;
        }
        let (mut group, mut kept) = (Vec::new(), 0);
        for (at, step) in self.steps.iter().enumerate().filter(|(_, step)| multiplies(step)) {
            let own: usize = operands(step).map(|view| self.arena_bytes(view)).sum();
            if group.len() == AT_ONCE || kept + own > KEPT {
                group.clear();
                kept = 0;
            }
            group.push(at);
            kept += own;
            group.iter().for_each(|member| behind[*member] = at);
        }
        behind
    }

    /// The steps whose operands are kept for comparisons, each with the step until which they are.
    pub(super) fn kept_for_checks(&self) -> impl Iterator<Item = (&Step, usize)> {
        self.steps
            .iter()
            .zip(self.compared_behind())
            .enumerate()
            .filter(|(at, (_, behind))| at < behind)
            .map(|(_, s)| s)
    }

    fn arena_bytes(&self, view: &View) -> usize {
        let buffer = &self.buffers[view.buffer.index()];
        if matches!(buffer.storage, Storage::Arena(_)) { buffer.len * buffer.dtype.size() } else { 0 }
    }
}

/// What comparisons may read.
pub(super) fn operands(step: &Step) -> impl Iterator<Item = &View> {
    step.reads.iter().chain(&step.writes)
}

/// True for products; those within attention are not worth keeping its scores for.
fn multiplies(step: &Step) -> bool {
    match &step.action {
        Action::Gemm(g) => g.acc.is_float(),
        Action::Call(call) => !matches!(call.called, Called::Attention(_) | Called::AttentionGrad(_) | Called::Rows(_)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use hypatia_dsl::builtin::BuiltinOp;
    use hypatia_dsl::dtype::DType;
    use hypatia_graph::Graph;
    use hypatia_target::device::Device;
    use hypatia_testing::ty;

    use crate::testing::planned;
    use crate::{Checks, Options, Plan};

    /// So many products of 256 rows, each by a weight that is an input.
    fn products(count: usize, rows: usize, checks: Checks) -> Plan {
        let mut g = Graph::new(hypatia_testing::program());
        let mut x = g.input("x", ty(DType::BF16, &[rows, 256]));
        for i in 0..count {
            let w = g.input(format!("w{i}"), ty(DType::BF16, &[256, 256]));
            x = g.builtin(BuiltinOp::Matmul, &[x, w], vec![]).unwrap()[0];
        }
        g.output("y", x);
        planned(&g, &Options { checks, ..Options::new(Device::named("h200").unwrap()) }).unwrap()
    }

    #[test]
    fn several_products_are_compared_at_once() {
        let behind = products(11, 256, Checks::On).compared_behind();
        assert_eq!(behind, [7, 7, 7, 7, 7, 7, 7, 7, 10, 10, 10]);
        assert_eq!(products(3, 256, Checks::Off).compared_behind(), [0, 1, 2]);
        // 32 MiB each: what the second product reads and writes is all that may be kept.
        let behind = products(4, 64 << 10, Checks::On).compared_behind();
        assert_eq!(behind, [0, 1, 2, 3]);
    }

    #[test]
    fn what_comparisons_read_is_kept() {
        let checked = products(6, 256, Checks::On);
        checked.validate().unwrap();
        let mut freed = products(6, 256, Checks::Off);
        assert!(freed.arena < checked.arena);
        freed.validate().unwrap();
        freed.checks = Checks::On;
        let error = freed.validate().unwrap_err().to_string();
        assert!(error.contains("overlaps"), "{error}");
    }
}
