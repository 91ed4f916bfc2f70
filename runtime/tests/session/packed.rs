//! A checked session whose weights are read in the other order.

use std::sync::Arc;
use std::time::Duration;

use hypatia::session::{Checked, Model, Options};
use hypatia_cuda::tuner::Tuner;
use hypatia_cuda::tuning::{Choice, PACKED, TuningFile};
use hypatia_cuda::{Executor, Gpu};
use hypatia_dsl::dtype::DType;
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::Graph;
use hypatia_pipeline as pipeline;
use hypatia_tensor::Tensor;
use hypatia_testing::random::{coarsest, compare};
use hypatia_testing::ty;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::gpu;

fn random(rng: &mut ChaCha8Rng, dtype: DType, shape: &[usize]) -> Tensor {
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| rng.random_range(-1.0..1.0)).collect();
    Tensor::from_f64(dtype, shape, &values).unwrap()
}

/// A linear layer with tanh-GELU, and its input.
fn layer(dtype: DType, [m, k, n]: [usize; 3]) -> (Graph, Vec<(String, Tensor)>) {
    let mut rng = ChaCha8Rng::seed_from_u64(23);
    let mut g = Graph::new(hypatia_library::load(&[]).unwrap());
    let x = random(&mut rng, dtype, &[m, k]);
    let v = g.input("x", ty(dtype, &[m, k]));
    let w = g.constant(random(&mut rng, dtype, &[k, n]));
    let bias = g.constant(random(&mut rng, dtype, &[n]));
    let mut y = g.call("matmul", &[v, w], &[]).unwrap()[0];
    y = g.call("add", &[y, bias], &[]).unwrap()[0];
    y = g.call("gelu_tanh", &[y], &[]).unwrap()[0];
    g.output("y", y);
    (g, vec![("x".to_string(), x)])
}

/// What a tuner measures that has all the time, said to be faster with the other order.
fn packed_wins(gpu: &Arc<Gpu>, graph: &Graph) -> TuningFile {
    let options = hypatia_optimize::Options { device: gpu.profile(), ..Default::default() };
    let graph = pipeline::optimize(graph, &options).unwrap().graph;
    let plan = Arc::new(pipeline::plan(&graph, &hypatia_plan::Options::new(gpu.profile())).unwrap());
    let mut tuner = Tuner::without_cache(Duration::from_secs(600));
    Executor::new(plan, gpu.clone(), &mut tuner).unwrap();
    let mut file = TuningFile::default();
    for choice in tuner.choices() {
        let packed = choice.problem.starts_with(PACKED);
        file.insert(match packed {
            true => Choice { us: Some(1.0), first_us: Some(2.0), ..choice.clone() },
            false => choice.clone(),
        });
    }
    file
}

/// The fused plan with packed weights beside the unfused one and the one in f32.
#[test]
fn a_checked_session_takes_packed_weights_on_a_gpu() {
    let Some(gpu) = gpu(2) else { return };
    for dtype in [DType::BF16, DType::F32] {
        let (graph, inputs) = layer(dtype, [128, 768, 256]);
        let tuner = Tuner::without_cache(Duration::ZERO).with_file(packed_wins(&gpu, &graph));
        let options = Options { verdicts: None, ..Options::default().on(gpu.clone(), tuner) };
        let model = Model::new(graph.clone(), options);
        let compiled = model.compile(&inputs).unwrap();
        assert_eq!(compiled.warnings(), [] as [String; 0]);
        assert_eq!(compiled.checked, Checked::Now);
        assert_eq!(compiled.executor.notes().len(), 1, "{dtype}");
        let want = evaluate(&graph, &inputs, Mode::Rounded).unwrap();
        let got = model.run(&inputs).unwrap();
        compare(&got[0], &want[0].to_tensor().unwrap(), want[0].dtype, coarsest(&graph), dtype.name());
    }
}
