//! What a unit of a result is, where errors are counted in units.
//!
//! In: both sides of a rule on one instance, and the left side's true results. Out: for each
//! element, the size of a unit. Invariant: a unit is never smaller than one in the last place of
//! the element.
//!
//! An element may be near 0 by chance, and what is lost there is no loss: a unit is one in the last
//! place of the tensor's mean magnitude, where that is larger. Where each element is computed by
//! itself, that excuses too much: `exp(x)` has large and small results side by side. There a unit
//! is larger than one in the last place only as far as a change of one unit in the operands makes
//! such a difference, so that `x * c - y * c` may still lose what `(x - y) * c` keeps where `x` and
//! `y` are nearly equal. That is for the many: the largest error is judged by the mean magnitude.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_eval::{Double, Number};
use hypatia_graph::{Graph, NodeKind, builtin};
use hypatia_tensor::error::Result;
use hypatia_tensor::tensor::Tensor;

use super::differ::ulp;
use super::generate::Instance;
use super::scatter::evaluate_exactly;
use super::sides::Sides;

/// The units of the results with this index: of the left side's elements.
pub(super) struct Units<'a> {
    truth: &'a [Double],
    typical: f64,
    /// How much the elements change with the operands, where each is computed by itself.
    changes: Option<Vec<f64>>,
}

impl<'a> Units<'a> {
    /// The units of one root.
    pub fn of(sides: &Sides, made: &Instance, root: usize, truth: &'a [Double]) -> Result<Units<'a>> {
        let typical = typical(truth);
        // Elements of one magnitude have one unit either way.
        let few = |x: &Double| x.near() != 0.0 && x.near().abs() < 0.25 * typical;
        let by_itself = elementwise(&sides.graph) && truth.iter().any(few);
        let changes = if by_itself { Some(changes(sides, made, root, truth)?) } else { None };
        Ok(Units { truth, typical, changes })
    }

    /// The unit of an element, in a type that holds it; and the larger one by which extremes are
    /// judged, one in the last place of the mean magnitude.
    pub fn at(&self, dtype: DType, index: usize) -> (f64, f64) {
        let x = self.truth[index].near().abs();
        let usual = ulp(dtype, x.max(self.typical));
        match self.changes.as_ref().and_then(|c| c.get(index)) {
            Some(change) => (ulp(dtype, x).max(usual.min(*change)), usual),
            None => (usual, usual),
        }
    }
}

/// The typical magnitude of results: the mean.
fn typical(values: &[Double]) -> f64 {
    let sizes = || values.iter().map(|v| v.near().abs()).filter(|v| v.is_finite());
    // Divided first: a sum may leave the range of f64.
    let n = sizes().count() as f64;
    sizes().map(|v| v / n).sum()
}

/// Whether each element of the results is a function of the elements of the operands at its place.
fn elementwise(graph: &Graph) -> bool {
    let cast = |i: usize| builtin(graph, &graph.nodes[i]) == Some(BuiltinOp::Cast);
    (0..graph.nodes.len()).all(|i| !matches!(graph.nodes[i].kind, NodeKind::Op { .. }) || cast(i))
}

/// How much each true result changes if each operand in turn changes by one unit: the sum.
fn changes(sides: &Sides, made: &Instance, root: usize, truth: &[Double]) -> Result<Vec<f64>> {
    let mut sums = vec![0.0; truth.len()];
    let mut add = |graph: &Graph, inputs: &[(String, Tensor)]| -> Result<()> {
        let found = evaluate_exactly(graph, &sides.numbers, inputs)?;
        for ((sum, x), y) in sums.iter_mut().zip(truth).zip(found[root].to_f64()) {
            let change = (y - x.near()).abs();
            *sum += if change.is_finite() { change } else { 0.0 };
        }
        Ok(())
    };
    for at in 0..made.inputs.len() {
        let Some(moved) = moved(&made.inputs[at].1) else { continue };
        let mut inputs = made.inputs.clone();
        inputs[at].1 = moved;
        add(&sides.graph, &inputs)?;
    }
    for at in 0..sides.graph.nodes.len() {
        let NodeKind::Const(tensor) = &sides.graph.nodes[at].kind else { continue };
        let Some(moved) = moved(tensor) else { continue };
        let mut graph = sides.graph.clone();
        graph.nodes[at].kind = NodeKind::Const(moved.into());
        add(&graph, &made.inputs)?;
    }
    Ok(sums)
}

/// Floats, each one unit larger.
fn moved(tensor: &Tensor) -> Option<Tensor> {
    let dtype = tensor.dtype();
    let data = || tensor.to_f64().into_iter().map(|v| v + ulp(dtype, v)).collect::<Vec<f64>>();
    dtype.is_float().then(|| Tensor::from_f64(dtype, tensor.shape(), &data())).flatten()
}
