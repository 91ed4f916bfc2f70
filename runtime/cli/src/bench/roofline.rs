//! Peak rates that this machine reaches: a matrix product of a favourable size, and a copy of
//! memory.

use std::sync::Arc;
use std::time::Instant;

use hypatia::device::OnGpu;
use hypatia::session::Executor;
use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::typing::TensorType;
use hypatia_graph::Graph;
use hypatia_library as library;
use hypatia_pipeline as pipeline;
use hypatia_plan::{Action, Options, Plan};
use hypatia_target::device::Device;
use hypatia_tensor::Tensor;
use hypatia_tensor::error::{Error, Result};

use super::suite::noise;

/// The size of the product.
const SIDE: usize = 768;
/// Bytes of the copy: larger than all caches.
const COPY: usize = 1 << 27;
/// The same sizes for a GPU.
const GPU_SIDE: usize = 8192;
const GPU_COPY: usize = 1 << 28;
/// The number of tries: the best counts; on a GPU, the median.
const TRIES: usize = 5;

/// Measured rates.
pub struct Roofline {
    /// Operations per second of a product, with the executor's own kernel.
    pub flops: f64,
    /// The element type of that product.
    pub dtype: DType,
    /// Bytes per second of a copy, read and written.
    pub bytes: f64,
}

impl Roofline {
    /// Measures with this many threads.
    pub fn measure(threads: usize) -> Result<Roofline> {
        Ok(Roofline { flops: product(threads)?, dtype: DType::F32, bytes: copy(threads) })
    }

    /// Measures on a GPU, with a product like most of this plan's.
    pub fn on_gpu(on: &OnGpu, plan: &Plan) -> Result<Roofline> {
        let products = plan.steps.iter().filter(|s| matches!(s.action, Action::Gemm(_)));
        let dtype = products.filter_map(|s| s.reads.first()).map(|v| v.dtype).next().unwrap_or(DType::F32);
        let mut graph = Graph::new(plan.program.clone());
        let square = [GPU_SIDE, GPU_SIDE];
        let (a, b) = (noise(dtype, &square)?, noise(dtype, &square)?);
        let (x, y) = (graph.input("a", ty(dtype, &square)), graph.input("b", ty(dtype, &square)));
        let z = graph.builtin(BuiltinOp::Matmul, &[x, y], vec![])?;
        graph.output("y", *z.first().ok_or_else(|| Error::Internal("a product".into()))?);
        let us = replayed(on, &graph, &[a, b], plan.device.tf32)?;
        let flops = 2.0 * (GPU_SIDE as f64).powi(3) / us * 1e6;
        let line = [GPU_COPY / 4];
        let mut graph = Graph::new(plan.program.clone());
        let x = graph.input("x", ty(DType::F32, &line));
        let abs = plan.program.builtin_scalar(BuiltinScalar::Abs);
        let y = graph.scalar(abs.ok_or_else(|| Error::Internal("no magnitude".into()))?, &[x])?;
        graph.output("y", y);
        let us = replayed(on, &graph, &[noise(DType::F32, &line)?], false)?;
        Ok(Roofline { flops, dtype, bytes: 2.0 * GPU_COPY as f64 / us * 1e6 })
    }
}

fn ty(dtype: DType, shape: &[usize]) -> TensorType {
    TensorType { dtype, shape: shape.iter().map(|d| (*d as i64).into()).collect() }
}

/// Microseconds of a graph on a GPU.
fn replayed(on: &OnGpu, graph: &Graph, inputs: &[Tensor], tf32: bool) -> Result<f64> {
    let options = Options { memory: usize::MAX, ..Options::new(on.gpu.profile().with_tf32(tf32)) };
    let executor = Executor::new(Arc::new(pipeline::plan(graph, &options)?), Some(on), 1)?;
    let mut timer = executor.timer(inputs)?.ok_or_else(|| Error::Internal("a GPU has timers".into()))?;
    timer.replays(TRIES)?;
    let mut times = (0..TRIES).map(|_| timer.replays(TRIES)).collect::<Result<Vec<f64>>>()?;
    times.sort_by(f64::total_cmp);
    Ok(times[TRIES / 2])
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
    let plan = pipeline::plan(&graph, &Options::new(Device::cpu()))?;
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
