//! Two right sides that are equal for every value that their operands can have.
//!
//! In: an instance, and the right sides of a rule and of its mutant on it. Out: whether both give
//! the same results for all values of all operands. Invariant: operands have 8 bits or less and no
//! others count, and each element of a result is a function of the elements at its place; so the
//! values that are tried are all.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_eval::{Data, RefTensor};
use hypatia_graph::{Graph, NodeKind, builtin};
use hypatia_tensor::tensor::Tensor;

use super::super::generate::Instance;
use super::super::scatter::evaluate_exactly;
use super::super::sides::Sides;
use super::differ;

/// Runs of each graph at most.
const MOST_RUNS: usize = 1 << 12;

/// Whether the right sides give the same for all values; false where that is not known.
pub(super) fn same_for_every_value(own: &Sides, other: &Sides, made: &Instance) -> bool {
    let right = |s: &Sides| {
        let mut graph = s.graph.clone();
        graph.outputs.drain(..s.left.len());
        graph.pruned()
    };
    let graphs = [right(own), right(other)];
    let all = graphs.iter().all(elementwise) && made.constants.is_empty();
    let values: Option<Vec<Vec<i64>>> = made.inputs.iter().map(|(_, t)| values(t.dtype())).collect();
    let Some(values) = values.filter(|_| all) else { return false };
    let Some((_, first)) = made.inputs.first() else { return false };
    if first.is_empty() || made.inputs.iter().any(|(_, t)| t.shape() != first.shape()) {
        return false;
    }
    let (elements, combinations) = (first.len(), values.iter().map(Vec::len).product::<usize>());
    let runs = combinations.div_ceil(elements);
    runs <= MOST_RUNS
        && (0..runs).all(|run| {
            let inputs = combined(made, &values, run * elements);
            let results = [(&graphs[0], own), (&graphs[1], other)]
                .map(|(g, s)| inputs.as_ref().and_then(|i| evaluate_exactly(g, &s.numbers, i).ok()));
            match &results {
                [Some(a), Some(b)] => a.iter().zip(b).all(|(a, b)| !differ(a, b)),
                _ => false,
            }
        })
}

/// The inputs with the combinations of values from this one on, an element each.
fn combined(made: &Instance, values: &[Vec<i64>], from: usize) -> Option<Vec<(String, Tensor)>> {
    let mut step = 1;
    let mut inputs = Vec::new();
    for ((name, tensor), values) in made.inputs.iter().zip(values) {
        let at = |i: usize| values[(from + i) / step % values.len()];
        let numbers = (0..tensor.len()).map(at);
        let (dtype, shape) = (tensor.dtype(), tensor.shape().to_vec());
        let tensor = match dtype {
            DType::Bool => Tensor::from_f64(dtype, &shape, &numbers.map(|v| v as f64).collect::<Vec<_>>())?,
            _ => RefTensor::<f64> { dtype, shape, data: Data::I(numbers.collect()) }.to_tensor().ok()?,
        };
        inputs.push((name.clone(), tensor));
        step *= values.len();
    }
    Some(inputs)
}

/// All values of a type of few bits.
fn values(dtype: DType) -> Option<Vec<i64>> {
    match dtype {
        DType::Bool => Some(vec![0, 1]),
        DType::I8 => Some((-128..128).collect()),
        DType::U8 => Some((0..256).collect()),
        _ => None,
    }
}

/// Whether each element of the results is a function of the elements of the operands at its place.
fn elementwise(graph: &Graph) -> bool {
    graph.nodes.iter().all(|n| match n.kind {
        NodeKind::Op { .. } => builtin(graph, n) == Some(BuiltinOp::Cast),
        NodeKind::Input { .. } | NodeKind::Const(_) | NodeKind::Scalar(_) => true,
    })
}
