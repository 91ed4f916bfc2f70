//! How far f32 is from the exact values.
//!
//! In: a test whose inputs are f32, their values, and results for them. Out: the largest difference
//! from the results of the same test in f64, where no rule is applied. Invariant: both sides start
//! from the same numbers, which f64 represents exactly. The f64 side runs where the options say, so
//! that large cases take no longer than their products do.

use std::sync::Arc;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{Program, Test, TestInput};

use crate::session::{Model, Options, Safety};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;
use hypatia_verify::test_runner::given_with;

/// How far results are from those in f64.
pub struct Deviation {
    /// The largest difference of an element; NaN if only one side is NaN.
    pub error: f64,
    /// The largest magnitude of a result in f64.
    pub largest: f64,
    /// The results in f64.
    pub exact: Vec<Tensor>,
}

/// True if all inputs of a test are f32.
pub fn is_f32(test: &Test) -> bool {
    test.inputs.iter().all(|i| i.dtype == DType::F32)
}

/// How far `got` is from the results of the test in f64, for the values that `data` makes in f32.
///
/// # Errors
/// If an input of the test is not f32, or if the test has no meaning in f64 or cannot be run.
pub fn deviation(
    program: &Arc<Program>,
    test: &Test,
    options: &Options,
    mut data: impl FnMut(&TestInput) -> Result<Tensor>,
    got: &[Tensor],
) -> Result<Deviation> {
    if !is_f32(test) {
        return Err(Error::Input(format!("test \"{}\": all inputs must be f32", test.name)));
    }
    let mut wide = test.clone();
    wide.inputs.iter_mut().for_each(|i| i.dtype = DType::F64);
    let (graph, inputs) = given_with(program, &wide, |input| {
        let narrow = data(&TestInput { dtype: DType::F32, ..input.clone() })?;
        let wrong = || Error::Internal(format!("input `{}` in f64", input.name));
        Tensor::from_f64(DType::F64, narrow.shape(), &narrow.to_f64()).ok_or_else(wrong)
    })?;
    let mut options = Options { safety: Safety::Off, ..options.clone() };
    options.optimize.no_rules = true;
    let exact = Model::new(graph, options).run(&inputs)?;
    let (mut error, mut largest) = (0.0f64, 0.0f64);
    for (got, exact) in got.iter().zip(&exact) {
        if got.shape() != exact.shape() {
            return Err(Error::Internal(format!("results of shapes {:?} and {:?}", got.shape(), exact.shape())));
        }
        for (g, e) in got.to_f64().into_iter().zip(exact.to_f64()) {
            let off = if g == e || (g.is_nan() && e.is_nan()) { 0.0 } else { (g - e).abs() };
            // `max` would ignore a NaN.
            error = if off.is_nan() || error.is_nan() { f64::NAN } else { error.max(off) };
            largest = largest.max(e.abs());
        }
    }
    Ok(Deviation { error, largest, exact })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hypatia_dsl::source::SourceFile;

    use super::*;
    use hypatia_library as library;

    #[test]
    fn deviations_are_seen_and_nothing_else() {
        let text = "edition 1; use core::*; use nn::*;
            test \"t\" { input x: f32[3, 16]; const w: f32[8, 16]; given relu(linear(x, w)); expect launches >= 1; }";
        let file = SourceFile { name: "t.hyp".into(), path: None, text: text.into(), embedded: false };
        let program = Arc::new(library::compile_sources(vec![file]).program.unwrap());
        let test = program.tests.iter().find(|t| t.origin.file == "t.hyp").unwrap();
        let data = |input: &TestInput| {
            let shape: Vec<usize> = input.shape.iter().map(|d| d.as_const().unwrap() as usize).collect();
            let values: Vec<f64> = (0..shape.iter().product()).map(|i: usize| (i as f64 * 0.7).sin()).collect();
            Ok(Tensor::from_f64(input.dtype, &shape, &values).unwrap())
        };
        let options = Options { threads: 1, ..Options::default() };
        let (graph, inputs) = given_with(&program, test, data).unwrap();
        let mut got = Model::new(graph, options.clone()).run(&inputs).unwrap();
        let seen = deviation(&program, test, &options, data, &got).unwrap();
        assert!(seen.error > 0.0 && seen.error < 2e-6 && seen.largest > 1.0, "{} of {}", seen.error, seen.largest);
        let at = seen.exact[0].to_f64().iter().position(|v| *v > 0.5).unwrap();
        got[0].as_mut_slice::<f32>().unwrap()[at] += 0.01;
        assert!((deviation(&program, test, &options, data, &got).unwrap().error - 0.01).abs() < 1e-5);
        got[0].as_mut_slice::<f32>().unwrap()[at] = f32::NAN;
        assert!(deviation(&program, test, &options, data, &got).unwrap().error.is_nan());
    }
}
