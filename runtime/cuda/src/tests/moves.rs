//! Padding and concatenation against the reference: rows that are not whole accesses, fewer
//! elements than an access, cut edges, empty results, transposed operands.
#![allow(clippy::unwrap_used)]

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_graph::Graph;
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::{int, list, ty};

use super::emulated::{self, Case};
use super::{agrees, gpu};
use hypatia_eval::{Mode, evaluate};

/// A shape, and what is put before and behind each axis: less than 0 cuts off.
type Padded = (&'static [usize], &'static [i64], &'static [i64]);
const PADS: [Padded; 10] = [
    (&[2, 3, 7, 9], &[0, 0, 1, 1], &[0, 0, 1, 1]),
    (&[2, 3, 14, 14], &[0, 0, 1, 1], &[0, 0, 0, 0]),
    (&[2, 3, 16, 13], &[0, 0, 3, 3], &[0, 0, 3, 0]),
    (&[5, 30], &[1, 2], &[0, 0]),
    (&[3, 40], &[-1, -3], &[1, 0]),
    (&[1, 3, 300], &[0, 0, 1], &[0, 0, 0]),
    (&[7], &[2], &[3]),
    (&[4, 0], &[0, 1], &[0, 2]),
    (&[3, 5], &[0, -5], &[0, 0]),
    (&[1, 1], &[0, 0], &[0, 0]),
];

fn cases() -> Vec<Case> {
    let program = hypatia_library::load(&[]).unwrap();
    let types = [DType::F32, DType::BF16, DType::I8];
    let mut out = Vec::new();
    for (at, (shape, before, after)) in PADS.into_iter().enumerate() {
        let dtype = types[at % 3];
        let count: usize = shape.iter().product();
        let values: Vec<f64> = (0..count).map(|i| (i % 97) as f64 - 40.0).collect();
        let mut g = Graph::new(program.clone());
        // Every other operand lies with its axes reversed.
        let reversed: Vec<usize> = shape.iter().rev().copied().collect();
        let lies: Vec<usize> = if at % 2 == 0 { shape.to_vec() } else { reversed };
        let mut inputs = vec![("x".to_string(), Tensor::from_f64(dtype, &lies, &values).unwrap())];
        let mut x = g.input("x", ty(dtype, &lies));
        if at % 2 == 1 {
            let order: Vec<usize> = (0..shape.len()).rev().collect();
            x = g.builtin(BuiltinOp::Transpose, &[x], vec![list(&order)]).unwrap()[0];
        }
        inputs.push(("value".into(), Tensor::from_f64(dtype, &[], &[5.0]).unwrap()));
        let value = g.input("value", ty(dtype, &[]));
        let ints = |values: &[i64]| AttrValue::List(values.iter().map(|v| int(*v)).collect());
        let attrs = vec![ints(before), ints(after)];
        let y = g.builtin(BuiltinOp::Pad, &[x, value], attrs).unwrap()[0];
        g.output("y", y);
        out.push(Case { what: format!("{dtype}{shape:?}, {before:?} before, {after:?} behind"), graph: g, inputs });
    }
    out
}

#[test]
fn emulated_pads_agree_with_the_reference() {
    let cases = cases();
    let results = match emulated::run(&cases) {
        Ok(results) => results,
        Err(why) => return eprintln!("SKIPPED: {why}"),
    };
    let mut ran = 0;
    for (case, ran_case) in cases.iter().zip(results) {
        // What has no element is no launch.
        let Some((_, made)) = ran_case else { continue };
        let want = evaluate(&case.graph, &case.inputs, Mode::Rounded).unwrap()[0].to_tensor().unwrap();
        assert_eq!((made[0].shape(), made[0].bytes()), (want.shape(), want.bytes()), "{}", case.what);
        ran += 1;
    }
    assert!(ran >= PADS.len() - 2, "{ran}");
}

#[test]
fn pads_agree_with_the_reference_on_a_gpu() {
    let Some(gpu) = gpu(PADS.len()) else { return };
    for case in cases() {
        agrees(&gpu, &case.graph, &case.inputs, &case.what).unwrap();
    }
}
