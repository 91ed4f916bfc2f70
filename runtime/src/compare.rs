//! How near an output of a graph must be to its reference.
//!
//! In: a graph. Out: for each output a [`Tolerance`], from the least precise float type in which a
//! node that leads to it computes: a model that computes in f16 and casts its result to f32 is as
//! precise as f16. Invariant: inputs and constants are not computed, so they loosen nothing.

use hypatia_dsl::dtype::DType;

use hypatia_graph::{Graph, Node, NodeKind, Value};
use hypatia_tensor::compare::Tolerance;

/// For each output of a graph, from the least precise float type of the nodes that lead to it.
pub fn of_outputs(graph: &Graph) -> Vec<Tolerance> {
    let precision_paths = precision_paths(graph);
    let outputs = graph.outputs.iter();
    outputs
        .map(|(_, v)| {
            let way = precision_paths[v.node.index()];
            Tolerance::of(way.dtype.unwrap_or(graph.ty(*v).dtype), way.nodes)
        })
        .collect()
}

/// For each output of a graph, the first node that leads to it and computes in a less precise
/// type than the output's own, if there is one. It is the reason for a larger tolerance.
pub fn loosened(graph: &Graph) -> Vec<Option<Loosened>> {
    let precision_paths = precision_paths(graph);
    let of = |v: &Value| {
        let (way, own) = (precision_paths[v.node.index()], graph.ty(*v).dtype);
        let dtype = way.dtype.filter(|d| own.is_float() && d.epsilon() > own.epsilon())?;
        Some(Loosened { dtype: dtype.name(), node: graph.nodes.get(way.first)?.name.clone() })
    };
    graph.outputs.iter().map(|(_, v)| of(v)).collect()
}

/// Why the tolerance of an output is larger than that of its type.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Loosened {
    /// The least precise type of the nodes that lead to it.
    pub dtype: &'static str,
    /// The first node that computes in it.
    pub node: String,
}

impl std::fmt::Display for Loosened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "tolerance loosened by {} node `{}`", self.dtype, self.node)
    }
}

/// The precision of what leads to each node.
fn precision_paths(graph: &Graph) -> Vec<PrecisionPath> {
    let mut precision_paths: Vec<PrecisionPath> = Vec::with_capacity(graph.nodes.len());
    for (i, node) in graph.nodes.iter().enumerate() {
        let before = node.operands.iter().flatten().map(|v| precision_paths[v.node.index()]);
        let way = before.fold(PrecisionPath::default(), PrecisionPath::join);
        precision_paths.push(way.join(PrecisionPath { first: i, ..PrecisionPath::of(node, way) }));
    }
    precision_paths
}

/// The least precise float type of the nodes that lead to a node, and the longest chain of nodes
/// that compute in it.
#[derive(Clone, Copy, Default)]
struct PrecisionPath {
    dtype: Option<DType>,
    nodes: usize,
    /// The first node that computes in it.
    first: usize,
}

impl PrecisionPath {
    /// What a node adds. Inputs and constants are not computed, so reading them rounds nothing.
    fn of(node: &Node, before: PrecisionPath) -> PrecisionPath {
        let computed = matches!(node.kind, NodeKind::Op { .. } | NodeKind::Scalar(_));
        let dtype = node.results.iter().map(|t| t.dtype).find(|d| computed && d.is_float());
        let nodes = if dtype.is_some() && before.dtype == dtype { before.nodes + 1 } else { 1 };
        PrecisionPath { dtype, nodes, first: 0 }
    }

    fn join(self, other: PrecisionPath) -> PrecisionPath {
        let epsilon = |w: &PrecisionPath| w.dtype.map_or(-1.0, DType::epsilon);
        match epsilon(&self).total_cmp(&epsilon(&other)) {
            std::cmp::Ordering::Less => other,
            std::cmp::Ordering::Greater => self,
            std::cmp::Ordering::Equal => PrecisionPath {
                dtype: self.dtype,
                nodes: self.nodes.max(other.nodes),
                first: self.first.min(other.first),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use hypatia_dsl::shape::Dim;
    use hypatia_dsl::typing::TensorType;
    use hypatia_library as library;
    use hypatia_tensor::compare::{LEAST, UNITS};

    #[test]
    fn the_least_precise_type_on_the_way_counts() {
        let mut g = Graph::new(library::load(&[]).unwrap());
        let ty = |dtype| TensorType { dtype, shape: vec![Dim::from(4)] };
        let (half, single) = (g.input("h", ty(DType::F16)), g.input("s", ty(DType::F32)));
        let to =
            |g: &mut Graph, v, d| g.call("cast", &[v], &[("to", hypatia_dsl::ir::AttrValue::DType(d))]).unwrap()[0];
        let sum = g.scalar(g.program.find_scalar("add").unwrap(), &[half, half]).unwrap();
        let outs = [to(&mut g, sum, DType::F32), to(&mut g, half, DType::F32), single];
        outs.iter().enumerate().for_each(|(i, v)| g.output(format!("y{i}"), *v));
        g.name_node(sum, "twice");
        let why: Vec<Option<String>> = loosened(&g).iter().map(|l| l.as_ref().map(Loosened::to_string)).collect();
        assert_eq!(why, [Some("tolerance loosened by f16 node `twice`".into()), None, None]);
        let rtol: Vec<f64> = of_outputs(&g).iter().map(|t| t.rtol).collect();
        // An f16 input that is widened was not computed in f16.
        assert_eq!(rtol, [UNITS * DType::F16.epsilon(), LEAST, LEAST]);
    }
}
