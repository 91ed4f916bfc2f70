//! Written gradients of ops against the derivatives of their bodies.
//!
//! In: an instance of an op with `grad`. Out: how many elements were compared, or what is wrong.
//! Invariant: an element whose derivative is not finite proves nothing; nor does one where the
//! body's derivative and finite differences disagree, since the function is not smooth there.
//!
//! Both are computed with twice the digits of f64, so that only errors of the formula are left.

use hypatia_dsl::dtype::DType;
use hypatia_eval::{Double, Mode, Number, RefTensor, evaluate, evaluate_in};
use hypatia_graph::{Graph, show_number};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::differ::position;
use super::generate::Instance;

/// Relative to the larger of 1 and the element: formulas of two kinds, and sums of some elements.
const TOLERANCE: f64 = 1e-7;
/// Finite differences have fewer digits.
const BY_DIFFERENCES: f64 = 1e-4;
/// More elements of an operand are not shown.
const SHOWN: usize = 12;

/// Compares the gradients of all float operands. Returns the number of elements that were
/// compared, or a sentence that says what is wrong.
pub(super) fn compare(made: &Instance, seed: u64) -> Result<std::result::Result<usize, String>> {
    let narrow = |(_, t): &(String, Tensor)| matches!(t.dtype(), DType::F16 | DType::BF16);
    if made.inputs.iter().any(narrow) {
        // Their numbers are rounded in the body, but not in the gradient.
        return Ok(Ok(0));
    }
    let Some(case) = Case::new(made, seed)? else { return Ok(Ok(0)) };
    let (written, derived) = (case.gradients(&case.graph)?, case.gradients(&case.graph.inlined()?)?);
    let mut compared = 0;
    for (i, name) in case.by.iter().enumerate() {
        for (j, (w, d)) in written[i].iter().zip(&derived[i]).enumerate() {
            if !d.is_finite() {
                continue;
            }
            compared += 1;
            let far = |x: f64, tolerance: f64| w.is_nan() || (w - x).abs() > tolerance * x.abs().max(1.0);
            if far(*d, TOLERANCE) && case.difference(name, j)?.is_some_and(|x| far(x, BY_DIFFERENCES)) {
                let tensor = case.input(name)?;
                return Ok(Err(format!(
                    "`grad` by `{name}` gives {} at {}, the body's derivative is {}{}",
                    show_number(*w),
                    position(j, tensor.shape()),
                    show_number(*d),
                    case.shown()
                )));
            }
        }
    }
    Ok(Ok(compared))
}

/// An op over inputs, and gradients of its results.
struct Case {
    graph: Graph,
    inputs: Vec<(String, Tensor)>,
    /// Names of the results that are floats.
    of: Vec<String>,
    /// Their gradients.
    given: Vec<(String, Tensor)>,
    /// Names of the inputs that are floats.
    by: Vec<String>,
}

impl Case {
    /// `None` if there is nothing to compare.
    fn new(made: &Instance, seed: u64) -> Result<Option<Case>> {
        let mut graph = made.graph.clone();
        graph.outputs.clear();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (mut of, mut given) = (Vec::new(), Vec::new());
        let values: Vec<_> = made.left.iter().flat_map(|v| graph.results(v.node)).collect();
        for (i, v) in values.into_iter().enumerate() {
            let ty = graph.ty(v).clone();
            let sizes: Option<Vec<usize>> = ty.shape.iter().map(|d| d.as_const()?.try_into().ok()).collect();
            let (true, Some(sizes)) = (ty.dtype.computes_in_floats(), sizes) else { continue };
            let numbers: Vec<f64> = (0..sizes.iter().product()).map(|_| rng.random_range(-1.0..1.0)).collect();
            let Some(gradient) = Tensor::from_f64(ty.dtype, &sizes, &numbers) else { continue };
            let name = format!("result{i}");
            graph.output(name.clone(), v);
            given.push((format!("{name}.grad"), gradient));
            of.push(name);
        }
        let is_float = |(_, t): &&(String, Tensor)| t.dtype().computes_in_floats();
        let by: Vec<String> = made.inputs.iter().filter(is_float).map(|(n, _)| n.clone()).collect();
        let some = !of.is_empty() && !by.is_empty();
        Ok(some.then(|| Case { graph, inputs: made.inputs.clone(), of, given, by }))
    }

    fn input(&self, name: &str) -> Result<&Tensor> {
        let found = self.inputs.iter().find(|(n, _)| n == name).map(|(_, t)| t);
        found.ok_or_else(|| Error::Internal(format!("an instance has no input `{name}`")))
    }

    /// The gradients by all float inputs.
    fn gradients(&self, graph: &Graph) -> Result<Vec<Vec<f64>>> {
        let of: Vec<&str> = self.of.iter().map(String::as_str).collect();
        let by: Vec<&str> = self.by.iter().map(String::as_str).collect();
        let joint = graph.vjp(&of, &by)?;
        let inputs: Vec<(String, Tensor)> = self.inputs.iter().chain(&self.given).cloned().collect();
        let results: Vec<RefTensor<Double>> = evaluate_in(&joint, &inputs, Mode::Exact)?;
        let to_f64 = |t: &RefTensor<Double>| (0..t.len()).map(|i| t.at(i).f().near()).collect();
        Ok(results[of.len()..].iter().map(to_f64).collect())
    }

    /// The slope by one element, from differences of two widths; `None` if these disagree, or if
    /// both sides of the point do.
    fn difference(&self, name: &str, element: usize) -> Result<Option<f64>> {
        let at = |by: f64| -> Result<f64> {
            let mut inputs = self.inputs.clone();
            for (_, t) in inputs.iter_mut().filter(|(n, _)| n == name) {
                let mut values = t.to_f64();
                values[element] += by;
                // The step is smaller than what f32 resolves.
                let moved = Tensor::from_f64(t.dtype(), t.shape(), &values);
                *t = moved.ok_or_else(|| Error::Internal("a moved point is no tensor".into()))?;
            }
            let results = evaluate(&self.graph, &inputs, Mode::Exact)?;
            let weighed =
                |r: &RefTensor, g: &Tensor| -> f64 { r.to_f64().iter().zip(g.to_f64()).map(|(r, g)| r * g).sum() };
            Ok(results.iter().zip(&self.given).map(|(r, (_, g))| weighed(r, g)).sum())
        };
        // Powers of 2, which f32 adds without rounding to numbers of about 1.
        let h = 1.0 / 1024.0;
        let (centre, near, far) = (at(0.0)?, [at(-h)?, at(h)?], [at(-2.0 * h)?, at(2.0 * h)?]);
        let (left, right) = ((centre - near[0]) / h, (near[1] - centre) / h);
        let (fine, wide) = ((left + right) / 2.0, (far[1] - far[0]) / (4.0 * h));
        let better = (4.0 * fine - wide) / 3.0;
        let within = |a: f64, b: f64, tolerance: f64| (a - b).abs() <= tolerance * better.abs().max(1.0);
        Ok((within(left, right, 1e-2) && within(wide, fine, 1e-3)).then_some(better))
    }

    /// The operands and the gradients of the results, if they are small.
    fn shown(&self) -> String {
        let small = |(name, t): &(String, Tensor)| {
            let values = t.to_f64();
            let numbers: Vec<String> = values.iter().take(SHOWN).map(|v| show_number(*v)).collect();
            let rest = if values.len() > SHOWN { ", .." } else { "" };
            format!("\n  {name}: {}{:?} = [{}{rest}]", t.dtype(), t.shape(), numbers.join(", "))
        };
        self.inputs.iter().chain(&self.given).map(small).collect()
    }
}
