//! The README's program: a layer with a custom rule file, on a GPU if there is one.
//!
//! `cargo run --release -p hypatia-examples --bin gated`

use std::time::Duration;

use hypatia::cuda::{Effort, Gpu, Tuner};
use hypatia::{DType, Error, GraphBuilder, Model, Options, Tensor, shape};

hypatia::hypatia_rules!("rules/gated.hyp");
use gated::Formulas;

/// The first GPU, with up to five seconds for autotuning its products; the CPU if there is no GPU.
fn device() -> Options {
    match Gpu::open(0) {
        Ok(gpu) => Options::default().on(gpu, Tuner::of_user(Duration::from_secs(5), Effort::Unknown)),
        Err(_) => Options::default(),
    }
}

fn main() -> Result<(), Error> {
    let g = GraphBuilder::new(gated::program());
    let x = g.input("x", DType::F32, shape!["batch", 2]);
    let w = g.tensor(&[2, 2], &[1.0f32, 0.0, 0.0, -1.0]);
    let y = x.matmul(w) + 0.5;
    g.output("z", y * g.gate(y));
    let model = Model::new(g.finish()?, device());
    let batch = Tensor::from_slice(&[1, 2], &[0.5f32, 1.5]).expect("as many numbers as the shape holds");
    let z = model.run(&[("x".to_string(), batch)])?;
    println!("{:?} {:?}", z[0].shape(), z[0].to_f64()); // [1, 2] [0.75, -0.25]
    Ok(())
}
