//! Conversion between graphs and e-graphs: insertion, and rebuilding the extracted graph.
//!
//! In: a graph whose defined ops are inlined; or an e-graph and a choice of one node for each
//! class. Out: an e-graph with a class for each value; or the extracted graph. Invariant: the
//! extracted graph has the same inputs and outputs, passes `Graph::validate`, and keeps the names
//! of the nodes whose values it still computes.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use egg::Id;
use hypatia_dsl::ir::{ParamKind, Program};
use hypatia_dsl::scalar::{Literal, Term, TermId, TermNode};
use hypatia_dsl::typing::TensorType;
use rustc_hash::{FxHashMap, FxHasher};

use super::analysis::EGraph;
use super::analysis::{Context, Leaf, Sort, has_several_results, is_term};
use super::facts::{self, NumericFacts};
use super::language::{LeafId, Node, Payload};
use hypatia_graph::{ConstantFolder, Graph, Node as GraphNode, NodeId, NodeKind, Value, exact_splat};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

/// A graph inserted into an e-graph.
pub struct Inserted {
    /// The e-graph, rebuilt.
    pub egraph: EGraph,
    /// The class of each result of each node.
    pub values: Vec<Vec<Id>>,
    /// The class of each output.
    pub outputs: Vec<Id>,
    /// The original node of each splat constant, for reuse.
    splats: FxHashMap<Payload, NodeId>,
}

/// Larger constants (weights) are not scanned for facts of their elements: guards ask about numbers
/// and vectors, and scanning all weights takes as long as a third of an optimisation.
const MAX_FACT_BYTES: usize = 64 << 10;

fn internal(message: impl Into<String>) -> Error {
    Error::Internal(message.into())
}

/// Facts of constants in place of those that their elements have.
pub(super) type StatedFacts = FxHashMap<NodeId, NumericFacts>;

/// Inserts a graph into an empty e-graph, whose constants that folder computes.
pub(super) fn insert_graph(
    graph: &Graph,
    folder: &'static dyn ConstantFolder,
    stated: &StatedFacts,
) -> Result<Inserted> {
    let mut egraph = EGraph::new(Context::new(graph.program.clone(), folder));
    let mut values: Vec<Vec<Id>> = Vec::with_capacity(graph.nodes.len());
    let mut constants = Constants { facts: facts::are_asked(&graph.program), ..Constants::default() };
    for (i, node) in graph.nodes.iter().enumerate() {
        let id = NodeId(i as u32);
        let class = match &node.kind {
            NodeKind::Input { .. } => {
                let ty = egraph.analysis.type_id(first_type(node)?);
                let facts = NumericFacts::UNKNOWN;
                leaf(&mut egraph, Leaf { ty, node: id, constant: false, facts, tensor: None })
            }
            NodeKind::Const(t) => constant(&mut egraph, node, id, t, (&mut constants, stated))?,
            NodeKind::Scalar(s) => {
                let children = operands(&mut egraph, &values, &node.operands)?;
                egraph.add(Node::new(Payload::Scalar(*s), children))
            }
            NodeKind::Op { op, attrs, term } => {
                let def = graph.program.op(*op);
                let children = op_operands(&mut egraph, graph, &values, node, term.as_ref())?;
                let attrs = egraph.analysis.attrs_id(attrs.clone());
                let class = egraph.add(Node::new(Payload::Op(*op, attrs), children));
                if has_several_results(def) {
                    let outs: Vec<Id> = (0..node.results.len())
                        .map(|k| egraph.add(Node::new(Payload::Output(k as u32), [class])))
                        .collect();
                    values.push(outs);
                    continue;
                }
                class
            }
        };
        if egraph[class].data.sort == Sort::Invalid {
            return Err(internal(format!("node {i} (`{}`) does not type-check in the e-graph", node.name)));
        }
        values.push(vec![class]);
    }
    egraph.rebuild();
    let outputs =
        graph.outputs.iter().map(|(_, v)| value(&values, *v).map(|id| egraph.find(id))).collect::<Result<_>>()?;
    Ok(Inserted { egraph, values, outputs, splats: constants.splats })
}

fn first_type(node: &GraphNode) -> Result<TensorType> {
    node.results.first().cloned().ok_or_else(|| internal("a node has no result"))
}

fn value(values: &[Vec<Id>], v: Value) -> Result<Id> {
    values
        .get(v.node.index())
        .and_then(|outs| outs.get(v.output as usize))
        .copied()
        .ok_or_else(|| internal("an operand stands after its user"))
}

fn leaf(egraph: &mut EGraph, leaf: Leaf) -> Id {
    let id = LeafId(egraph.analysis.leaves.len() as u32);
    egraph.analysis.leaves.push(leaf);
    egraph.add(Node::leaf(Payload::Leaf(id)))
}

fn operands(egraph: &mut EGraph, values: &[Vec<Id>], operands: &[Option<Value>]) -> Result<Vec<Id>> {
    operands
        .iter()
        .map(|v| match v {
            Some(v) => value(values, *v),
            None => Ok(egraph.add(Node::leaf(Payload::Absent))),
        })
        .collect()
}

/// The operands of an op in declaration order, including its term, with absent trailing optional
/// operands filled in.
fn op_operands(
    egraph: &mut EGraph,
    graph: &Graph,
    values: &[Vec<Id>],
    node: &GraphNode,
    term: Option<&Term>,
) -> Result<Vec<Id>> {
    let NodeKind::Op { op, .. } = &node.kind else { return Err(internal("an op was expected")) };
    let def = graph.program.op(*op);
    let split = graph.tensor_operands(node);
    let tensors = operands(egraph, values, &node.operands[..split])?;
    let variadic = def.params.iter().any(|p| matches!(p.kind, ParamKind::Tensor { variadic: true, .. }));
    if variadic {
        return Ok(tensors);
    }
    let mut tensors = tensors.into_iter();
    let mut out = Vec::new();
    for (_, param) in def.operands() {
        match (&param.kind, term) {
            (ParamKind::Term, Some(term)) => {
                let reads = operands(egraph, values, &node.operands[split..])?;
                out.push(enter_term(egraph, term, &reads)?);
            }
            (ParamKind::Term, None) => return Err(internal(format!("`{}` has no term", def.name))),
            _ => match tensors.next() {
                Some(id) => out.push(id),
                None => out.push(egraph.add(Node::leaf(Payload::Absent))),
            },
        }
    }
    Ok(out)
}

/// The class of a term.
fn enter_term(egraph: &mut EGraph, term: &Term, reads: &[Id]) -> Result<Id> {
    let broken = || internal("a term is not in order");
    let mut ids: Vec<Id> = Vec::with_capacity(term.nodes.len());
    for node in &term.nodes {
        let at = |t: &TermId| ids.get(t.0 as usize).copied().ok_or_else(broken);
        let node = match node {
            TermNode::Param(_) => return Err(internal("an epilogue has no parameters")),
            TermNode::Acc => Node::leaf(Payload::Acc),
            TermNode::Second => {
                let acc = egraph.add(Node::leaf(Payload::Acc));
                Node::new(Payload::Second, [acc])
            }
            TermNode::In { input, view } => {
                Node::new(Payload::In(*view), [*reads.get(*input as usize).ok_or_else(broken)?])
            }
            TermNode::Lit(l) => Node::leaf(Payload::Lit(l.0.to_bits())),
            TermNode::Call { scalar, args } => {
                Node::new(Payload::Call(*scalar), args.iter().map(at).collect::<Result<Vec<_>>>()?)
            }
            TermNode::Cast { to, arg } => Node::new(Payload::TermCast(*to), [at(arg)?]),
        };
        ids.push(egraph.add(node));
    }
    term.roots.first().and_then(|r| ids.get(r.0 as usize)).copied().ok_or_else(broken)
}

/// The constants inserted so far.
#[derive(Default)]
struct Constants {
    /// The node of each splat.
    splats: FxHashMap<Payload, NodeId>,
    /// The others, by a hash of their type and their ends.
    by_hash: HashMap<u64, Vec<(LeafId, Arc<Tensor>)>>,
    /// Whether facts of their elements are needed.
    facts: bool,
}

/// Inserts a constant: a splat by its value, any other by its content.
fn constant(
    egraph: &mut EGraph,
    node: &GraphNode,
    id: NodeId,
    tensor: &Arc<Tensor>,
    (constants, stated): (&mut Constants, &StatedFacts),
) -> Result<Id> {
    let ty = egraph.analysis.type_id(first_type(node)?);
    if let Some(bits) = splat_bits(tensor) {
        let payload = Payload::Splat(ty, bits);
        constants.splats.entry(payload).or_insert(id);
        return Ok(egraph.add(Node::leaf(payload)));
    }
    let same = constants.by_hash.entry(hash_of(tensor)).or_default();
    if let Some((leaf, _)) = same.iter().find(|(_, other)| are_equal(other, tensor)) {
        return Ok(egraph.add(Node::leaf(Payload::Leaf(*leaf))));
    }
    same.push((LeafId(egraph.analysis.leaves.len() as u32), tensor.clone()));
    let facts = stated.get(&id).copied().unwrap_or_else(|| tensor_facts(tensor, constants.facts));
    Ok(leaf(egraph, Leaf { ty, node: id, constant: true, facts, tensor: Some(tensor.clone()) }))
}

/// A hash of a tensor's type and the ends of its bytes, which distinguish most weights.
pub(super) fn hash_of(tensor: &Tensor) -> u64 {
    let mut h = FxHasher::default();
    (tensor.dtype(), tensor.shape()).hash(&mut h);
    let bytes = tensor.bytes();
    bytes[..bytes.len().min(256)].hash(&mut h);
    bytes[bytes.len() - bytes.len().min(256)..].hash(&mut h);
    h.finish()
}

/// Whether two tensors have the same type and the same bytes.
pub(super) fn are_equal(a: &Tensor, b: &Tensor) -> bool {
    std::ptr::eq(a, b) || (a.dtype() == b.dtype() && a.shape() == b.shape() && a.bytes() == b.bytes())
}

/// If all elements are equal and f64 holds them exactly, the bits as f64.
fn splat_bits(tensor: &Tensor) -> Option<u64> {
    exact_splat(tensor).map(f64::to_bits)
}

/// Facts of a constant's elements, if a rule asks for facts.
pub(super) fn tensor_facts(tensor: &Tensor, asked: bool) -> NumericFacts {
    match asked && tensor.bytes().len() <= MAX_FACT_BYTES {
        true => facts::of_tensor(tensor),
        false => NumericFacts::UNKNOWN,
    }
}

/// Rebuilds a graph from chosen nodes.
pub struct Rebuilder<'a> {
    /// The graph that was inserted.
    pub original: &'a Graph,
    /// The e-graph it was inserted into.
    pub inserted: &'a Inserted,
    /// The node of each needed class.
    pub chosen: &'a FxHashMap<Id, Node>,
    /// Needed classes, children first.
    pub order: &'a [Id],
}

/// A graph from the e-graph, and the class of each of its nodes.
pub struct Rebuilt {
    /// The graph.
    pub graph: Graph,
    /// The class of each node; of an op with several results, the class of the op.
    pub classes: Vec<Id>,
    /// The value that each class became, if it is the value of a tensor.
    pub values: FxHashMap<Id, Value>,
    /// For each node with an epilogue, the part of it that each class became.
    pub terms: FxHashMap<NodeId, FxHashMap<Id, TermId>>,
}

/// The values of a node that was built, and for its epilogue, the part that each class became.
type BuiltNode = (Vec<Value>, Option<FxHashMap<Id, TermId>>);

impl Rebuilder<'_> {
    /// Builds the graph.
    pub fn rebuild(&self) -> Result<Rebuilt> {
        let program: &Arc<Program> = &self.original.program;
        let egraph = &self.inserted.egraph;
        let mut graph = Graph::new(program.clone());
        let mut classes = Vec::new();
        let mut terms = FxHashMap::default();
        let mut values: FxHashMap<Id, Option<Vec<Value>>> = FxHashMap::default();
        // Inputs are kept in their order, used or not.
        for id in &self.original.inputs {
            let node = self.original.node(*id);
            let NodeKind::Input { name } = &node.kind else { continue };
            let v = graph.input(name.clone(), first_type(node)?);
            let class = egraph.find(value(&self.inserted.values, Value { node: *id, output: 0 })?);
            classes.resize(graph.nodes.len(), class);
            values.insert(class, Some(vec![v]));
        }
        let names = self.names();
        for class in self.order {
            if values.contains_key(class) {
                continue;
            }
            let node = self.chosen.get(class).ok_or_else(|| internal("a needed class was not chosen"))?;
            let built = match node.payload {
                Payload::Absent => None,
                payload if is_term(payload) => continue,
                Payload::Output(i) => {
                    let outs = self.operand(&values, node.children[0])?.ok_or_else(|| internal("no results"))?;
                    Some(vec![*outs.get(i as usize).ok_or_else(|| internal("no such result"))?])
                }
                _ => {
                    let (built, term) = self.node(&mut graph, &values, node)?;
                    terms.extend(built.first().map(|v| v.node).zip(term));
                    Some(built)
                }
            };
            if let Some(v) = built.as_ref().and_then(|b| b.first())
                && !matches!(node.payload, Payload::Output(_))
            {
                classes.resize(graph.nodes.len(), *class);
                if let Some(name) = names.get(class) {
                    graph.name_node(*v, name.clone());
                }
            }
            values.insert(*class, built);
        }
        for ((name, _), class) in self.original.outputs.iter().zip(&self.inserted.outputs) {
            let v = self.operand(&values, *class)?.and_then(|v| v.first().copied());
            graph.output(name.clone(), v.ok_or_else(|| internal(format!("output `{name}` was not built")))?);
        }
        let values = values.into_iter().filter_map(|(class, built)| Some((class, *built?.first()?))).collect();
        Ok(Rebuilt { graph, classes, values, terms })
    }

    fn operand(&self, values: &FxHashMap<Id, Option<Vec<Value>>>, class: Id) -> Result<Option<Vec<Value>>> {
        let class = self.inserted.egraph.find(class);
        values.get(&class).cloned().ok_or_else(|| internal("an operand was not built"))
    }

    fn node(&self, graph: &mut Graph, values: &FxHashMap<Id, Option<Vec<Value>>>, node: &Node) -> Result<BuiltNode> {
        let egraph = &self.inserted.egraph;
        let single =
            |id: Id| -> Result<Option<Value>> { Ok(self.operand(values, id)?.and_then(|v| v.first().copied())) };
        match node.payload {
            Payload::Leaf(l) => {
                let source = self.original.node(egraph.analysis.leaf(l).node);
                match &source.kind {
                    NodeKind::Const(t) => Ok((vec![graph.constant(t.clone())], None)),
                    _ => Err(internal("a leaf is no constant")),
                }
            }
            Payload::Splat(ty, bits) => {
                let made = match self.inserted.splats.get(&node.payload).map(|n| &self.original.node(*n).kind) {
                    Some(NodeKind::Const(t)) => t.clone(),
                    _ => Arc::new(splat_tensor(egraph.analysis.ty(ty), f64::from_bits(bits))?),
                };
                Ok((vec![graph.constant(made)], None))
            }
            Payload::Scalar(s) => {
                let operands: Vec<Value> = node
                    .children
                    .iter()
                    .map(|c| single(*c)?.ok_or_else(|| internal("an operand of a scalar is absent")))
                    .collect::<Result<_>>()?;
                graph.scalar(s, &operands).map(|v| (vec![v], None))
            }
            Payload::Op(op, attrs) => {
                let mut operands = Vec::new();
                let mut reads = Vec::new();
                let (mut term, mut parts) = (None, None);
                for child in &node.children {
                    match egraph[*child].data.sort {
                        Sort::Term(_) => {
                            let built = self.term(*child, values, &mut reads)?;
                            (term, parts) = (Some(built.0), Some(built.1));
                        }
                        _ => operands.push(single(*child)?),
                    }
                }
                operands.extend(reads.into_iter().map(Some));
                Ok((graph.op(op, &operands, egraph.analysis.attrs(attrs).to_vec(), term)?, parts))
            }
            _ => Err(internal("a term stands where a tensor must")),
        }
    }

    /// The chosen term of a class, with the tensors that it reads, and what became of each class.
    fn term(
        &self,
        root: Id,
        values: &FxHashMap<Id, Option<Vec<Value>>>,
        reads: &mut Vec<Value>,
    ) -> Result<(Term, FxHashMap<Id, TermId>)> {
        let egraph = &self.inserted.egraph;
        let mut term = Term::empty();
        // Over the first accumulator and, if true, over the second one in its place.
        let mut done: FxHashMap<(Id, bool), TermId> = FxHashMap::default();
        let mut stack = vec![(egraph.find(root), false)];
        while let Some((class, second)) = stack.last().copied() {
            if done.contains_key(&(class, second)) {
                stack.pop();
                continue;
            }
            let node = self.chosen.get(&class).ok_or_else(|| internal("a term was not chosen"))?;
            let over = second || node.payload == Payload::Second;
            let children: Vec<(Id, bool)> = node.children.iter().map(|c| (egraph.find(*c), over)).collect();
            let at = |c: &(Id, bool)| done.get(c).copied();
            let built = match node.payload {
                Payload::Acc if second => TermNode::Second,
                Payload::Acc => TermNode::Acc,
                Payload::Lit(bits) => TermNode::Lit(Literal(f64::from_bits(bits))),
                Payload::In(view) => {
                    let v = self.operand(values, children[0].0)?.and_then(|v| v.first().copied());
                    let v = v.ok_or_else(|| internal("a term reads an absent operand"))?;
                    let input = reads.iter().position(|r| *r == v).unwrap_or_else(|| {
                        reads.push(v);
                        reads.len() - 1
                    });
                    TermNode::In { input: input as u32, view }
                }
                Payload::Call(_) | Payload::TermCast(_) | Payload::Second => {
                    let missing: Vec<(Id, bool)> = children.iter().copied().filter(|c| at(c).is_none()).collect();
                    if !missing.is_empty() {
                        if stack.len() > 2 * egraph.number_of_classes() {
                            return Err(internal("a term contains itself"));
                        }
                        stack.extend(missing);
                        continue;
                    }
                    let args: Vec<TermId> = children.iter().filter_map(at).collect();
                    match node.payload {
                        Payload::Call(scalar) => TermNode::Call { scalar, args },
                        Payload::TermCast(to) => TermNode::Cast { to, arg: args[0] },
                        _ => term.node(args[0]).clone(),
                    }
                }
                _ => return Err(internal("a tensor stands inside a term")),
            };
            done.insert((class, second), term.add(built));
            stack.pop();
        }
        let root = done.get(&(egraph.find(root), false)).copied();
        term.roots = vec![root.ok_or_else(|| internal("a term was not built"))?];
        let own = done.into_iter().filter(|((_, second), _)| !second).map(|((class, _), at)| (class, at));
        Ok((term, own.collect()))
    }

    /// Names of the needed classes: the name of the node with that value, joined with the names of
    /// the nodes merged into it.
    fn names(&self) -> FxHashMap<Id, String> {
        let egraph = &self.inserted.egraph;
        let mut source: FxHashMap<Id, NodeId> = FxHashMap::default();
        for (i, outs) in self.inserted.values.iter().enumerate() {
            let id = NodeId(i as u32);
            let class = match outs.as_slice() {
                [one] if self.original.node(id).results.len() == 1 => egraph.find(*one),
                // The op's own class is the child of its first result.
                [first, ..] => egraph[egraph.find(*first)]
                    .nodes
                    .iter()
                    .find(|n| matches!(n.payload, Payload::Output(0)))
                    .map_or(egraph.find(*first), |n| egraph.find(n.children[0])),
                [] => continue,
            };
            // Of equal nodes the first one names the class.
            source.entry(class).or_insert(id);
        }
        self.order
            .iter()
            .filter_map(|class| source.get(class).map(|id| (*class, self.joined_name(*id))))
            .filter(|(_, name)| !name.is_empty())
            .collect()
    }

    /// The joined names of a node and of its producers whose values are no longer computed, in
    /// graph order.
    fn joined_name(&self, id: NodeId) -> String {
        const MAX_NAMES: usize = 6;
        let egraph = &self.inserted.egraph;
        let kept = |v: Value| match value(&self.inserted.values, v) {
            Ok(c) => self.chosen.contains_key(&egraph.find(c)),
            Err(_) => true,
        };
        let mut seen = vec![id];
        let mut work = vec![id];
        while let Some(n) = work.pop() {
            for v in self.original.node(n).operands.iter().flatten() {
                if seen.len() < MAX_NAMES && !seen.contains(&v.node) && !kept(*v) {
                    seen.push(v.node);
                    work.push(v.node);
                }
            }
        }
        seen.sort();
        let mut names: Vec<&str> = Vec::new();
        for n in &seen {
            let name = self.original.node(*n).name.as_str();
            if !name.is_empty() && !names.contains(&name) {
                names.push(name);
            }
        }
        names.join(" + ")
    }
}

/// Maximum size of a constant that is materialised from one number.
const MAX_SPLAT_BYTES: i64 = 1 << 28;

pub(super) fn splat_tensor(ty: &TensorType, value: f64) -> Result<Tensor> {
    let too_large = || Error::Limit(format!("a rule makes a constant of type {ty}, which is too large"));
    let mut shape = Vec::with_capacity(ty.shape.len());
    let mut bytes = ty.dtype.size() as i64;
    for d in &ty.shape {
        let n = d.as_const().filter(|n| *n >= 0).ok_or_else(too_large)?;
        bytes = bytes.checked_mul(n).filter(|b| *b <= MAX_SPLAT_BYTES).ok_or_else(too_large)?;
        shape.push(n as usize);
    }
    let len = shape.iter().product();
    Tensor::from_f64(ty.dtype, &shape, &vec![value; len]).ok_or_else(too_large)
}
