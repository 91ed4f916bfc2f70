//! Constant folding: expressions over constants are computed before a run, once for all plans of a
//! model.
//!
//! In: graphs, and a [`ConstantFolder`], which computes the values. Out: the same graphs with
//! constant expressions replaced by their values. Invariant: a value has the same bits that the
//! host's executor produces when it computes the expression from inputs, so rounding happens at the
//! same places. Views stay views, so a transposed weight is not copied. Equal expressions over the
//! same weights share one value.
//!
//! The importer, the optimiser and the planner all fold constants, but must not depend on an
//! executor. They therefore receive the executor as a trait object.

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

/// Computes what depends on constants alone, with the same bits as the host's executor.
pub trait ConstantFolder: Sync {
    /// The outputs of a graph of builtin ops that has no inputs. With `cluster`, neighbouring
    /// pointwise nodes are computed in one launch, and therefore in a type wider than their own.
    /// Without it, every node rounds its result.
    fn fold(&self, graph: &Graph, cluster: bool) -> Result<Vec<Tensor>>;

    /// A builtin function of one or two numbers of a float type, rounded to that type. A function
    /// of one number ignores the second.
    fn scalar(&self, f: BuiltinScalar, dtype: DType, args: [f64; 2]) -> f64;
}

/// Cache of the values of constant expressions. Keep one per model, so that plans for other input
/// shapes reuse them.
pub struct Constants {
    /// Computes the values.
    folder: &'static dyn ConstantFolder,
    /// Ids of expressions.
    ids: HashMap<Key, usize>,
    values: HashMap<usize, Arc<Tensor>>,
    /// Weights in other layouts, by their address.
    layouts: HashMap<(usize, Layout), Arc<Tensor>>,
    /// Weights that are identified by address: they must live as long as their keys.
    weights: Vec<Arc<Tensor>>,
}

/// Offset, sizes and strides of a view.
pub type Layout = (usize, Vec<usize>, Vec<isize>);

/// An expression: its head, and the results of other expressions that it reads.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    head: Head,
    types: Vec<TensorType>,
    /// True if it is rounded together with others, in one launch.
    wider: bool,
    operands: Vec<Option<(usize, u32)>>,
}

/// The head of an expression.
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
        Constants { folder, ids: HashMap::new(), values: HashMap::new(), layouts: HashMap::new(), weights: Vec::new() }
    }

    /// The folder that computes the values.
    pub fn folder(&self) -> &'static dyn ConstantFolder {
        self.folder
    }

    /// Computes what depends on constants alone and is read by something that does not. With
    /// `cluster`, values are computed as in one launch of pointwise work.
    pub fn fold(&mut self, graph: Graph, cluster: bool) -> Result<Graph> {
        self.fold_except(graph, cluster, &|_| false)
    }

    /// [`Constants::fold`], but nodes that are `kept` are computed by the plan. Nodes keep their
    /// places.
    pub fn fold_except(&mut self, mut graph: Graph, cluster: bool, kept: &dyn Fn(usize) -> bool) -> Result<Graph> {
        let mut constant = constant_nodes(&graph);
        constant.iter_mut().enumerate().for_each(|(i, constant)| *constant &= !kept(i));
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

    /// A constant that holds a view of another one, made at most once for all plans.
    pub fn laid_out(
        &mut self,
        source: &Arc<Tensor>,
        layout: Layout,
        make: &dyn Fn() -> Option<Tensor>,
    ) -> Option<Arc<Tensor>> {
        // A plan makes its own single numbers, which no other plan has.
        if source.len() <= 1 {
            return make().map(Arc::new);
        }
        let key = (Arc::as_ptr(source) as usize, layout);
        if let Some(known) = self.layouts.get(&key) {
            return Some(known.clone());
        }
        let made = Arc::new(make()?);
        self.weights.push(source.clone());
        self.layouts.insert(key, made.clone());
        Some(made)
    }

    /// An id for each constant node. Equal expressions share an id, unless they round at different
    /// places.
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

/// True for pointwise work that runs in a type wider than its own when it shares a launch with
/// other such work.
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
    folder.fold(&part.pruned().inlined()?, cluster).map_err(|e| match e {
        Error::Limit(m) => Error::Limit(format!("computing the model's constants: {m}")),
        e => e,
    })
}

/// Which nodes depend on constants alone. A node that depends on a size not known yet does not.
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

/// Values to compute now: those read by nodes that are not constant, or by constant views that are
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
