//! Trains a classifier of hand-written digits, without Python: loss, gradients and a step of the
//! optimiser are one graph, optimised as a whole.
//!
//! `cargo run --release -p hypatia-examples --bin train_digits [CURVE.svg]`
//!
//! The 1,400 images of 8 by 8 pixels, and the 397 others that judge the result, are from "Optical
//! Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, 1998, UCI Machine Learning
//! Repository, CC BY 4.0).

use std::path::{Path, PathBuf};
use std::time::Instant;

use hypatia::graph::{TensorType, Var};
use hypatia::{DType, Error, Graph, GraphBuilder, Model, Options, Result, Tensor, npz, shape};
use plotters::prelude::*;

hypatia::hypatia_rules!("rules/training.hyp");
use training::Formulas;

/// Sizes of the layers, from pixels to digits.
const WIDTHS: [usize; 4] = [64, 128, 64, 10];
const BATCH: usize = 50;
const EPOCHS: usize = 30;
/// What the test expects: the share of images that were never seen and are classified right.
const ENOUGH: f64 = 0.97;

type Named = Vec<(String, Tensor)>;

fn main() -> std::process::ExitCode {
    let curve = std::env::args().nth(1).map(PathBuf::from);
    let curve = curve.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/digits_loss.svg"));
    match train(&curve) {
        Ok(accuracy) if accuracy >= ENOUGH => std::process::ExitCode::SUCCESS,
        Ok(_) => {
            eprintln!("error: fewer than {:.0} % are right", 100.0 * ENOUGH);
            std::process::ExitCode::FAILURE
        }
        Err(e) => {
            eprintln!("error: {e}");
            std::process::ExitCode::FAILURE
        }
    }
}

/// Trains, prints the losses, draws them. Returns the accuracy on the other images.
fn train(curve: &Path) -> Result<f64> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (images, labels) = digits(&folder.join("data/digits.npz"))?;
    let step = Model::new(step()?, Options::default());
    let mut state = beginning()?;
    let begin = Instant::now();
    let mut losses = Vec::new();
    for epoch in 0..EPOCHS {
        // Each epoch begins elsewhere. Smaller steps at the end.
        let rate = if epoch < EPOCHS * 2 / 3 { 0.05 } else { 0.01 };
        for batch in 0..labels.len() / BATCH {
            let rows: Vec<usize> = (0..BATCH).map(|i| (batch * BATCH + i * 7 + epoch * 13) % labels.len()).collect();
            let mut inputs = state.clone();
            inputs.push(("x".into(), pixels(&images, &rows)?));
            let wanted: Vec<f64> = rows.iter().map(|r| labels[*r]).collect();
            let wanted = Tensor::from_f64(DType::I64, &[BATCH], &wanted);
            inputs.extend(wanted.map(|labels| ("labels".to_string(), labels)));
            inputs.push(("rate".into(), floats(&[], &[rate])?));
            if losses.is_empty() {
                describe(&step, &inputs)?;
            }
            let mut results = step.run(&inputs)?.into_iter();
            losses.extend(results.next().map(|loss| loss.to_f64()[0]));
            state = state.into_iter().map(|(name, _)| name).zip(results).collect();
        }
        let last = &losses[losses.len() - labels.len() / BATCH..];
        if epoch % 5 == 4 {
            println!("epoch {:>2}  loss {:.4}", epoch + 1, last.iter().sum::<f64>() / last.len() as f64);
        }
    }
    let steps = losses.len();
    let each = begin.elapsed().as_secs_f64() * 1e6 / steps as f64;
    println!("{steps} steps of {BATCH} images, {each:.0} us each");
    draw(&losses, curve).map_err(|e| Error::Input(format!("{}: {e}", curve.display())))?;
    let drawn = curve.canonicalize().unwrap_or_else(|_| curve.to_path_buf());
    println!("the curve of the loss is in {}", drawn.display());
    let accuracy = accuracy(&state, folder)?;
    println!("accuracy  {:.2} % of images that were not trained with", 100.0 * accuracy);
    Ok(accuracy)
}

/// Says what became of a step.
fn describe(step: &Model, inputs: &Named) -> Result<()> {
    let compiled = step.compile(inputs)?;
    let (fused, unfused) = (compiled.executor.plan().launches(), compiled.unfused()?.plan().launches());
    println!("a step is {} nodes, {unfused} launches without rules, {fused} with rules", step.graph().nodes.len());
    Ok(())
}

/// The name and the shape of each weight.
fn weights() -> Vec<(String, Vec<usize>)> {
    let layer = |i: usize| [(format!("w{i}"), vec![WIDTHS[i], WIDTHS[i + 1]]), (format!("b{i}"), vec![WIDTHS[i + 1]])];
    (0..WIDTHS.len() - 1).flat_map(layer).collect()
}

/// The logits of a batch of images.
fn forward<'g>(g: &'g GraphBuilder, x: Var<'g>) -> Var<'g> {
    let mut values = weights().into_iter().map(|(name, shape)| {
        let shape = shape.into_iter().map(|n| (n as i64).into()).collect();
        g.input(&name, DType::F32, shape)
    });
    let mut h = x;
    let mut first = true;
    while let (Some(w), Some(b)) = (values.next(), values.next()) {
        h = if first { h } else { g.call("gelu", &[h], &[]) };
        h = h.matmul(w) + b;
        first = false;
    }
    h
}

/// One step: images, labels, rate, weights and velocities to the loss, new weights and new
/// velocities.
fn step() -> Result<Graph> {
    let g = GraphBuilder::new(training::program());
    let x = g.input("x", DType::F32, shape![BATCH, WIDTHS[0]]);
    let logits = forward(&g, x);
    let labels = g.input("labels", DType::I64, shape![BATCH]);
    g.output("loss", g.cross_entropy(logits, labels));
    let names: Vec<String> = weights().into_iter().map(|(name, _)| name).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut graph = g.finish()?.grad("loss", &names)?;

    let gradients = graph.outputs.split_off(1);
    let number = TensorType { dtype: DType::F32, shape: shape![] };
    let rate = graph.input("rate", number);
    let mut velocities = Vec::new();
    for (name, (_, gradient)) in names.iter().zip(gradients) {
        let weight = graph.input_named(name).ok_or_else(|| Error::Input(format!("no weight `{name}`")))?;
        let ty = graph.ty(weight).clone();
        let velocity = graph.input(format!("{name}.velocity"), ty);
        let new = graph.call("descend", &[weight, gradient, velocity, rate], &[])?;
        graph.output(format!("{name}.new"), new[0]);
        velocities.push((format!("{name}.velocity.new"), new[1]));
    }
    graph.outputs.extend(velocities);
    Ok(graph)
}

/// Weights between the bounds of K. He et al., "Delving deep into rectifiers", 2015; everything
/// else is 0. The order is that of the step's results.
fn beginning() -> Result<Named> {
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let (mut state, mut velocities) = (Named::new(), Named::new());
    for (name, shape) in weights() {
        let bound = if shape.len() == 2 { (6.0 / shape[0] as f32).sqrt() } else { 0.0 };
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| bound * random()).collect();
        velocities.push((format!("{name}.velocity"), floats(&shape, &vec![0f32; values.len()])?));
        state.push((name, floats(&shape, &values)?));
    }
    state.extend(velocities);
    Ok(state)
}

/// Images, 64 pixels from 0 to 16 each, and the digits that they show.
fn digits(path: &Path) -> Result<(Vec<f64>, Vec<f64>)> {
    let file = npz::read(path)?;
    let entry = |name: &str| {
        let found = file.iter().find(|(n, _)| n == name).map(|(_, t)| t.to_f64());
        found.ok_or_else(|| Error::Input(format!("{} has no entry `{name}`", path.display())))
    };
    Ok((entry("images")?, entry("labels")?))
}

/// These rows of the images, from 0 to 1.
fn pixels(images: &[f64], rows: &[usize]) -> Result<Tensor> {
    let of = |row: &usize| images[row * WIDTHS[0]..(row + 1) * WIDTHS[0]].iter().map(|v| (v / 16.0) as f32);
    floats(&[rows.len(), WIDTHS[0]], &rows.iter().flat_map(of).collect::<Vec<f32>>())
}

fn floats(shape: &[usize], elements: &[f32]) -> Result<Tensor> {
    let made = Tensor::from_slice(shape, elements);
    made.ok_or_else(|| Error::Input(format!("{} elements do not fill {shape:?}", elements.len())))
}

/// The share of the images of `tests/models/digits` whose largest logit is at their label.
fn accuracy(state: &Named, folder: &Path) -> Result<f64> {
    let (images, labels) = digits(&folder.join("../tests/models/digits/labels.npz"))?;
    let images: Vec<f64> = images.iter().map(|v| v * 16.0).collect();
    let g = GraphBuilder::new(training::program());
    let x = g.input("x", DType::F32, shape!["images", WIDTHS[0]]);
    g.output("logits", forward(&g, x));
    let model = Model::new(g.finish()?, Options::default());
    let rows: Vec<usize> = (0..labels.len()).collect();
    let mut inputs: Named = state[..state.len() / 2].to_vec();
    inputs.push(("x".into(), pixels(&images, &rows)?));
    let logits = model.run(&inputs)?[0].to_f64();
    let largest = |row: &[f64]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or(0);
    let right = logits.chunks(10).zip(&labels).filter(|(row, label)| largest(row) as f64 == **label).count();
    Ok(right as f64 / labels.len() as f64)
}

/// The loss of each step, and a mean over 28 steps.
fn draw(losses: &[f64], path: &Path) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::new(path, (720, 400)).into_drawing_area();
    area.fill(&WHITE)?;
    let highest = losses.iter().copied().fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(&area)
        .caption("Loss of a digit classifier, by step", ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(32)
        .y_label_area_size(48)
        .build_cartesian_2d(0..losses.len(), 0.0..highest)?;
    chart.configure_mesh().x_desc("step").y_desc("cross-entropy").draw()?;
    chart.draw_series([PathElement::new(losses.iter().copied().enumerate().collect::<Vec<_>>(), BLUE.mix(0.3))])?;
    let mean = |(i, w): (usize, &[f64])| (i + w.len() / 2, w.iter().sum::<f64>() / w.len() as f64);
    chart.draw_series([PathElement::new(
        losses.windows(28).enumerate().map(mean).collect::<Vec<_>>(),
        BLUE.stroke_width(2),
    )])?;
    area.present()?;
    Ok(())
}
