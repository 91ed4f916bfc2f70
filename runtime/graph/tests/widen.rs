//! Widening graphs of narrow types to f32.
#![allow(clippy::unwrap_used, missing_docs)]

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::DType;
use hypatia_eval::{Mode, evaluate};
use hypatia_graph::*;
use hypatia_tensor::*;
use hypatia_testing::{program, ty};

#[test]
fn roundings_in_between_are_gone_and_inputs_stay() {
    let mut g = Graph::new(program());
    let x = g.input("x", ty(DType::BF16, &[1]));
    let one = g.constant(Tensor::from_f64(DType::BF16, &[1], &[1.0]).unwrap());
    let sum = g.builtin_scalar(BuiltinScalar::Add, &[x, one]).unwrap();
    let back = g.builtin_scalar(BuiltinScalar::Sub, &[sum, one]).unwrap();
    g.output("y", back);
    assert!(g.computes_narrow());
    let w = g.widened().unwrap();
    assert!(!w.computes_narrow());
    let small = Tensor::from_f64(DType::BF16, &[1], &[2f64.powi(-12)]).unwrap();
    let y = |g: &Graph| {
        evaluate(g, &[("x".to_string(), small.clone())], Mode::Rounded).unwrap()[0].to_tensor().unwrap().to_f64()[0]
    };
    assert_eq!(y(&g), 0.0);
    assert_eq!(y(&w), 2f64.powi(-12));
}
