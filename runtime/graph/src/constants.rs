//! Constant folding: expressions over constants are computed before a run, each once for all plans
//! of a model.
//!
//! In: graphs, and a [`ConstantFolder`], which computes. Out: the same graphs with constant
//! expressions replaced by their values. Holds always: a value has the bits that the host's
//! executor gives where the same expression is computed from inputs, so whatever is rounded there
//! is rounded here; views stay views, so a transposed weight is not copied; equal expressions over
//! the same weights share one value.
//!
//! The importer, the optimiser and the planner all fold constants, and none of them may run an
//! executor. So the executor comes to them as a trait object.

use std::collections::HashMap;
use std::sync::Arc;

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, OpId, ScalarId};
use hypatia_dsl::scalar::Term;
use hypatia_dsl::typing::TensorType;

use super::kinds::{is_pointwise, is_view};
use super::{Graph, Kernels, Node, NodeId, NodeKind, Value};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

/// Computes what depends on constants alone, with the bits that the host's executor gives.
pub trait ConstantFolder: Sync {
    /// The outputs of a graph of builtin ops that has no inputs. With `cluster`, pointwise
    /// neighbours are computed in one launch, and so in a wider type than their own; without it
    /// every node rounds its result.
    fn fold(&self, graph: &Graph, cluster: bool) -> Result<Vec<Tensor>>;

    /// A builtin function of one or two numbers of a float type, rounded to that type. A function
    /// of one number ignores the second.
    fn scalar(&self, f: BuiltinScalar, dtype: DType, args: [f64; 2]) -> f64;
}

/// Values of constant expressions. Keep one for a model, so that plans for other input shapes find
/// them.
pub struct Constants {
    /// What computes them.
    folder: &'static dyn ConstantFolder,
    /// Numbers of expressions, by what they are.
    ids: HashMap<Key, usize>,
    values: HashMap<usize, Arc<Tensor>>,
    /// Weights whose addresses name them: they must live as long as their names.
    weights: Vec<Arc<Tensor>>,
}

/// An expression: what it applies, and the results of other expressions that it reads.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    head: Head,
    types: Vec<TensorType>,
    /// It is rounded with others, in one launch.
    wider: bool,
    operands: Vec<Option<(usize, u32)>>,
}

/// What an expression applies.
#[derive(PartialEq, Eq, Hash)]
enum Head {
    /// A weight, by its address.
    Weight(usize),
    Op(OpId, Vec<AttrValue>, Option<Term>),
    Scalar(ScalarId),
    Input(String),
}

impl Constants {
    /// No values yet.
    pub fn new(folder: &'static dyn ConstantFolder) -> Constants {
        Constants { folder, ids: HashMap::new(), values: HashMap::new(), weights: Vec::new() }
    }

    /// What computes the values.
    pub fn folder(&self) -> &'static dyn ConstantFolder {
        self.folder
    }

    /// Computes what depends on constants alone and is needed by something that does not; with
    /// `cluster`, as pointwise work in one launch computes it.
    pub fn fold(&mut self, mut graph: Graph, cluster: bool) -> Result<Graph> {
        let constant = constant_nodes(&graph);
        let frontier = frontier(&graph, &constant);
        if frontier.is_empty() {
            return Ok(graph);
        }
        let ids = self.number(&graph, &constant, cluster);
        let id = |v: &Value| ids.get(v.node.index()).copied().flatten().unwrap_or(usize::MAX);
        let missing: Vec<Value> = frontier.iter().filter(|v| !self.values.contains_key(&id(v))).copied().collect();
        if !missing.is_empty() {
            for (v, value) in missing.iter().zip(compute(self.folder, &graph, &missing, cluster)?) {
                self.values.insert(id(v), Arc::new(value));
            }
        }
        for v in &frontier {
            let value = self.values.get(&id(v)).ok_or_else(|| Error::Internal("a constant was lost".into()))?;
            let node = &mut graph.nodes[v.node.index()];
            if node.results.len() != 1 {
                return Err(Error::Internal("a constant node with several results".into()));
            }
            node.kind = NodeKind::Const(value.clone());
            node.operands.clear();
            node.kernels = Kernels::default();
        }
        Ok(graph)
    }

    /// A number for each constant node; equal expressions get the same, unless they are rounded
    /// elsewhere.
    fn number(&mut self, graph: &Graph, constant: &[bool], cluster: bool) -> Vec<Option<usize>> {
        let mut ids: Vec<Option<usize>> = Vec::with_capacity(graph.nodes.len());
        for (node, constant) in graph.nodes.iter().zip(constant) {
            if !constant {
                ids.push(None);
                continue;
            }
            let head = match &node.kind {
                NodeKind::Const(t) => Head::Weight(Arc::as_ptr(t) as usize),
                NodeKind::Input { name } => Head::Input(name.clone()),
                NodeKind::Op { op, attrs, term } => Head::Op(*op, attrs.clone(), term.clone()),
                NodeKind::Scalar(s) => Head::Scalar(*s),
            };
            let operands = node.operands.iter().map(|v| v.and_then(|v| Some((ids[v.node.index()]?, v.output))));
            let wider = cluster && computes_wider(graph, node);
            let key = Key { head, types: node.results.clone(), wider, operands: operands.collect() };
            let next = self.ids.len();
            let id = *self.ids.entry(key).or_insert(next);
            if let (true, NodeKind::Const(t)) = (id == next, &node.kind) {
                self.weights.push(t.clone());
            }
            ids.push(Some(id));
        }
        ids
    }
}

/// True for pointwise work that one launch with other such work computes in a wider type than its
/// own.
fn computes_wider(graph: &Graph, node: &Node) -> bool {
    is_pointwise(graph, node) && node.results.iter().any(|t| t.dtype.is_float() && t.dtype.compute() != t.dtype)
}

/// A value that depends on constants alone; `None` if it does not, or cannot be computed.
pub fn constant_value(folder: &dyn ConstantFolder, graph: &Graph, v: Value) -> Option<Tensor> {
    let known = constant_nodes(graph).get(v.node.index()).copied().unwrap_or(false);
    let values = if known { compute(folder, graph, &[v], false).ok()? } else { Vec::new() };
    values.into_iter().next()
}

/// Values that depend on constants alone.
fn compute(folder: &dyn ConstantFolder, graph: &Graph, wanted: &[Value], cluster: bool) -> Result<Vec<Tensor>> {
    let mut part = graph.clone();
    part.inputs.clear();
    part.outputs = wanted.iter().enumerate().map(|(i, v)| (i.to_string(), *v)).collect();
    folder.fold(&part.pruned().unfold()?, cluster).map_err(|e| match e {
        Error::Limit(m) => Error::Limit(format!("computing the model's constants: {m}")),
        e => e,
    })
}

/// Which nodes depend on constants alone. What depends on a size that is not known yet does not.
pub fn constant_nodes(graph: &Graph) -> Vec<bool> {
    let mut constant = vec![false; graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate() {
        constant[i] = match &node.kind {
            NodeKind::Input { .. } => false,
            NodeKind::Const(_) => true,
            NodeKind::Scalar(_) => node.operands.iter().flatten().all(|v| constant[v.node.index()]),
            NodeKind::Op { attrs, .. } => {
                node.operands.iter().flatten().all(|v| constant[v.node.index()])
                    && node.results.iter().flat_map(|t| &t.shape).all(|d| d.as_const().is_some())
                    && attrs.iter().all(is_known)
            }
        };
    }
    constant
}

/// True for an attribute without symbols.
fn is_known(attr: &AttrValue) -> bool {
    match attr {
        AttrValue::Dim(d) => d.as_const().is_some(),
        AttrValue::List(l) => l.iter().all(is_known),
        _ => true,
    }
}

/// Values to be computed now: read by nodes that are not constant, or by constant views that are
/// themselves read so.
fn frontier(graph: &Graph, constant: &[bool]) -> Vec<Value> {
    let mut wanted = vec![Vec::new(); graph.nodes.len()];
    let outputs: Vec<Value> = graph.outputs.iter().map(|(_, v)| *v).collect();
    for v in outputs {
        want(&mut wanted, v);
    }
    for i in (0..graph.nodes.len()).rev() {
        let node = &graph.nodes[i];
        if !constant[i] || (is_view(graph, node) && !wanted[i].is_empty()) {
            for v in node.operands.iter().flatten().copied().collect::<Vec<_>>() {
                want(&mut wanted, v);
            }
        }
    }
    (0..graph.nodes.len())
        .filter(|i| {
            constant[*i] && !matches!(graph.nodes[*i].kind, NodeKind::Const(_)) && !is_view(graph, &graph.nodes[*i])
        })
        .flat_map(|i| wanted[i].iter().map(move |output| Value { node: NodeId(i as u32), output: *output }))
        .collect()
}

fn want(wanted: &mut [Vec<u32>], v: Value) {
    let list = &mut wanted[v.node.index()];
    if !list.contains(&v.output) {
        list.push(v.output);
    }
}
