//! The builder: the graphs it makes, and the mistakes it reports.
#![allow(clippy::unwrap_used, missing_docs)]

use hypatia_dsl::dtype::DType;
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::*;
use hypatia_library as library;
use hypatia_tensor::*;

#[test]
fn formulas_compute_what_they_say() {
    let g = GraphBuilder::new(library::load(&[]).unwrap());
    let x = g.input("x", DType::F64, shape!["n", 2]);
    let total = x.sum(&[-1], true);
    g.output("y", 1.0 - (x * x + 0.5) / total.abs() % 3.0);
    g.output("z", g.concat(&[-x, x.exp().log()], 1).slice(1, 1, 3).transpose(&[1, 0]));
    let graph = g.finish().unwrap();
    let x = Tensor::from_slice(&[2, 2], &[1.0, 2.0, -3.0, 0.5]).unwrap();
    let out = evaluate(&graph, &[("x".into(), x)], Mode::Exact).unwrap();
    let y: Vec<f64> = [(1.0, 3.0), (2.0, 3.0), (-3.0, 2.5), (0.5, 2.5)]
        .iter()
        .map(|(x, t): &(f64, f64)| 1.0 - ((x * x + 0.5) / t) % 3.0)
        .collect();
    assert_eq!(out[0].to_tensor().unwrap().to_f64(), y);
    let z = out[1].to_tensor().unwrap();
    assert_eq!(z.shape(), [2, 2]);
    for (got, want) in z.to_f64().iter().zip([-2.0, -0.5, 1.0, -3.0]) {
        assert!((got - want).abs() < 1e-12);
    }
}

#[test]
fn every_mistake_is_told_once_with_its_line() {
    let g = GraphBuilder::new(library::load(&[]).unwrap());
    let x = g.input("x", DType::F32, shape![4, 8]);
    let y = g.input("y", DType::F32, shape![5]);
    let wrong = x + y;
    // What depends on a mistake is not reported as a mistake of its own.
    let further = wrong.exp() * 2.0;
    g.output("further", further);
    let unknown = g.call("gelo", &[x], &[]);
    g.output("unknown", unknown);
    let _ = g.tensor(&[2, 2], &[1.0f32; 3]);
    let text = g.finish().unwrap_err().to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines.iter().all(|l| l.contains("builder.rs:")), "{text}");
    assert!(lines[0].contains("f32[4, 8]") && lines[0].contains("f32[5]"), "{text}");
    assert!(lines[1].contains("did you mean `gelu`?"), "{text}");
    assert!(lines[2].contains("3 elements"), "{text}");
}
