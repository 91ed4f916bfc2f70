//! What this machine reaches: a matrix product at a good size, and a copy of memory.

use std::sync::Arc;
use std::time::Instant;

use hypatia::device::Device;
use hypatia::error::{Error, Result};
use hypatia::executor::Executor;
use hypatia::graph::Graph;
use hypatia::plan::{Options, Plan};
use hypatia::{Tensor, library};
use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::typing::TensorType;

/// Sizes of the product.
const SIDE: usize = 768;
/// Bytes of the copy: beyond all caches.
const COPY: usize = 1 << 27;
/// The best of so many.
const TRIES: usize = 5;

/// Rates that were reached.
pub struct Roof {
    /// Operations a second of an f32 product, by the executor's own kernel.
    pub flops: f64,
    /// Bytes a second, read and written, of a copy.
    pub bytes: f64,
}

impl Roof {
    /// Measures on so many threads.
    pub fn measure(threads: usize) -> Result<Roof> {
        Ok(Roof { flops: product(threads)?, bytes: copy(threads) })
    }
}

fn product(threads: usize) -> Result<f64> {
    let mut graph = Graph::new(library::load(&[])?);
    let shape = [SIDE, SIDE];
    let ty = TensorType { dtype: DType::F32, shape: shape.iter().map(|d| (*d as i64).into()).collect() };
    let values: Vec<f64> = (0..SIDE * SIDE).map(|i| (i % 17) as f64 / 8.0 - 1.0).collect();
    let wrong = || Error::Internal("a square of numbers".into());
    let x = Tensor::from_f64(DType::F32, &shape, &values).ok_or_else(wrong)?;
    let (a, b) = (graph.input("a", ty), graph.constant(x.clone()));
    let y = graph.builtin(BuiltinOp::Matmul, &[a, b], vec![])?;
    graph.output("y", *y.first().ok_or_else(wrong)?);
    let plan = Plan::build(&graph, &Options::new(Device::cpu()))?;
    let executor = Executor::new(Arc::new(plan), None, threads)?;
    let mut best = f64::INFINITY;
    for _ in 0..TRIES {
        let start = Instant::now();
        executor.run(std::slice::from_ref(&x))?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(2.0 * (SIDE as f64).powi(3) / best)
}

fn copy(threads: usize) -> f64 {
    let from = vec![1u8; COPY];
    let mut to = vec![0u8; COPY];
    let part = COPY.div_ceil(threads.max(1));
    let mut best = f64::INFINITY;
    for _ in 0..TRIES {
        let start = Instant::now();
        std::thread::scope(|s| {
            for (to, from) in to.chunks_mut(part).zip(from.chunks(part)) {
                s.spawn(|| to.copy_from_slice(from));
            }
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    2.0 * COPY as f64 / best
}
