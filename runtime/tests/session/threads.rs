//! Many threads at once: one model and several, of equal and of different shapes, on the host and
//! on a GPU.

use std::collections::HashMap;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::TensorType;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use hypatia::session::{Compiled, Model, Options};
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::Graph;
use hypatia_tensor::tensor::Tensor;

use super::gpu;
use hypatia_cuda::tuner::Tuner;

const WIDTH: usize = 24;
/// Rows of an input; each number of them has a plan of its own.
const BATCHES: [usize; 5] = [1, 3, 8, 17, 64];
const THREADS: usize = 8;
const ROUNDS: usize = 10;

fn random(rng: &mut ChaCha8Rng, shape: &[usize]) -> Tensor {
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| rng.random_range(-1.0..1.0)).collect();
    Tensor::from_f64(DType::F32, shape, &values).unwrap()
}

/// Two layers, and a softmax of what they add to their input; any number of rows.
fn layers() -> Graph {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut g = Graph::new(hypatia_library::load(&[]).unwrap());
    let shape = vec![Dim::symbol("batch"), Dim::from(WIDTH as i64)];
    let x = g.input("x", TensorType { dtype: DType::F32, shape });
    let mut y = x;
    for _ in 0..2 {
        let [w, b] = [&[WIDTH, WIDTH][..], &[WIDTH]].map(|s| g.constant(random(&mut rng, s)));
        y = g.call("linear", &[y, w, b], &[]).unwrap()[0];
        y = g.call("relu", &[y], &[]).unwrap()[0];
    }
    let sum = g.call("add", &[x, y], &[]).unwrap()[0];
    let soft = g.call("softmax", &[sum], &[]).unwrap()[0];
    g.output("y", y);
    g.output("soft", soft);
    g
}

/// Eight threads on three models with these options, each with inputs of its own. All start before
/// any plan is made.
pub(crate) fn many_threads(options: &Options) {
    let graph = layers();
    let models: Vec<Model> = (0..3).map(|_| Model::new(graph.clone(), options.clone())).collect();
    let plans: Mutex<HashMap<(usize, usize), Arc<Compiled>>> = Mutex::default();
    let start = Barrier::new(THREADS);
    let thread = &|id: usize| {
        let mut rng = ChaCha8Rng::seed_from_u64(100 + id as u64);
        start.wait();
        for round in 0..ROUNDS {
            // In the first round all ask for one plan of one model, in the next one for others.
            let (at, batch) = match round {
                0 => (0, 8),
                _ => ((id + round) % models.len(), BATCHES[(id + round) % BATCHES.len()]),
            };
            let inputs = [("x".to_string(), random(&mut rng, &[batch, WIDTH]))];
            let symbols = graph.bind_symbols(&inputs.iter().cloned().collect()).unwrap();
            let want = evaluate(&graph.specialize(&symbols).unwrap(), &inputs, Mode::Exact).unwrap();
            let compiled = models[at].compile(&inputs).unwrap();
            assert_eq!(compiled.warnings(), [] as [String; 0]);
            let mut into: Vec<Tensor> =
                want.iter().map(|w| Tensor::zeros(DType::F32, w.to_tensor().unwrap().shape()).unwrap()).collect();
            compiled.executor.run_into(&inputs.clone().map(|(_, t)| t), &mut into).unwrap();
            for got in [models[at].run(&inputs).unwrap(), into] {
                for (got, want) in got.iter().zip(&want) {
                    let (got, want) = (got.to_f64(), want.to_f64());
                    let off = got.iter().zip(&want).fold(0.0f64, |m, (g, w)| m.max((g - w).abs()));
                    assert!(got.len() == want.len() && off < 2e-5, "thread {id}, round {round}: off by {off}");
                }
            }
            let mut plans = plans.lock().unwrap();
            let first = plans.entry((at, batch)).or_insert_with(|| compiled.clone());
            assert!(Arc::ptr_eq(first, &compiled), "model {at} made its plan for {batch} rows twice");
        }
    };
    std::thread::scope(|scope| {
        (0..THREADS).for_each(|id| drop(scope.spawn(move || thread(id))));
    });
    assert_eq!(plans.into_inner().unwrap().len(), models.len() * BATCHES.len());
}

#[test]
fn many_threads_share_models_and_plans_on_the_host() {
    for threads in [1, 3] {
        many_threads(&Options { threads, ..Options::default() });
    }
}

/// Threads that share models, plans and the device, as those of a server do.
#[test]
fn many_threads_share_models_and_plans_on_a_gpu() {
    let Some(gpu) = gpu(15) else { return };
    for measured in [Duration::ZERO, Duration::from_secs(5)] {
        let on = Options::default().on(gpu.clone(), Tuner::without_cache(measured));
        many_threads(&Options { verdicts: None, ..on });
    }
}
