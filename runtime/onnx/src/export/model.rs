//! Builds the model: inputs, initializers, nodes and calls in order, functions, outputs.
//!
//! In: a graph. Out: a `ModelProto` and its fusions. Invariant: inputs and outputs have the graph's
//! names and types, and plain dynamic sizes keep their symbols. A function is written once however
//! often it is called.

use std::collections::{BTreeSet, HashMap, HashSet};

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::ir::{AttrValue, Head, OpBody, OpId, Pat};
use hypatia_dsl::shape::{Dim, Symbol};
use hypatia_dsl::typing::TensorType;
use prost::Message;

use super::body::{Body, Sizes, code, tensor_proto};
use super::custom;
use super::ops::Call;
use crate::import::onnx::proto::tensor_shape_proto::{Dimension, dimension};
use crate::import::onnx::proto::{
    FunctionProto, GraphProto, ModelProto, OperatorSetIdProto, TensorProto, TensorShapeProto, TypeProto,
    ValueInfoProto, type_proto,
};
use hypatia_graph::fusions::{Fusion, Group, groups};
use hypatia_graph::{ConstantFolder, Constants, Graph, NodeId, NodeKind, Value};
use hypatia_tensor::error::{Error, Result};

/// The opset of the standard ops that is written.
const OPSET: i64 = 20;
/// The IR version that supports functions of that opset.
const IR_VERSION: i64 = 10;
/// The domain of the functions.
const DOMAIN: &str = "hypatia";

/// A graph as an ONNX model.
pub struct Export {
    /// The model.
    pub model: ModelProto,
    /// Its functions, in the same order.
    pub fusions: Vec<Fusion>,
}

/// Exports a graph as an ONNX model.
pub fn export(graph: &Graph, folder: &'static dyn ConstantFolder) -> Result<Export> {
    let graph = Constants::new(folder).fold(graph.pruned(), false)?.pruned();
    let mut writer = Writer::new(&graph);
    for group in groups(&graph)? {
        writer.group(&group).map_err(|e| named(e, &graph, &group))?;
    }
    writer.finish()
}

/// Adds the node's name to an error.
fn named(e: Error, graph: &Graph, group: &Group) -> Error {
    let node = group.nodes.iter().map(|n| graph.nodes[*n].name.as_str()).find(|n| !n.is_empty());
    match (e, node) {
        (Error::Input(m), Some(n)) => Error::Input(format!("node `{n}`: {m}")),
        (Error::Limit(m), Some(n)) => Error::Limit(format!("node `{n}`: {m}")),
        (e, _) => e,
    }
}

/// A function that was written.
struct Function {
    proto: FunctionProto,
    fusion: Fusion,
}

struct Writer<'a> {
    graph: &'a Graph,
    main: Body,
    /// The name of each value, once it has one.
    names: HashMap<Value, String>,
    initializers: Vec<TensorProto>,
    functions: Vec<Function>,
    /// Functions by their content without names, for deduplication.
    known: HashMap<Vec<u8>, usize>,
    /// Number of functions that requested each name.
    wanted: HashMap<String, usize>,
    labels: HashSet<String>,
    /// Custom domains of nodes that were written.
    domains: BTreeSet<String>,
    /// The users of each node.
    users: Vec<Vec<NodeId>>,
    outputs: HashSet<Value>,
}

impl<'a> Writer<'a> {
    fn new(graph: &'a Graph) -> Writer<'a> {
        let mut taken: HashSet<String> = graph.outputs.iter().map(|(n, _)| n.clone()).collect();
        let mut names = HashMap::new();
        let mut axes: HashMap<Symbol, (String, i64)> = HashMap::new();
        for id in &graph.inputs {
            let node = graph.node(*id);
            let NodeKind::Input { name } = &node.kind else { continue };
            taken.insert(name.clone());
            names.insert(Value { node: *id, output: 0 }, name.clone());
            for (axis, dim) in node.results[0].shape.iter().enumerate() {
                if let Some(s) = plain_symbol(dim) {
                    axes.entry(s).or_insert_with(|| (name.clone(), axis as i64));
                }
            }
        }
        Writer {
            graph,
            main: Body::new(Sizes::Inputs(axes), taken),
            names,
            initializers: Vec::new(),
            functions: Vec::new(),
            known: HashMap::new(),
            wanted: HashMap::new(),
            labels: HashSet::new(),
            domains: BTreeSet::new(),
            users: graph.users(),
            outputs: graph.outputs.iter().map(|(_, v)| *v).collect(),
        }
    }

    /// The name of a value; a constant becomes an initializer when it is first read.
    fn name(&mut self, value: Value) -> Result<String> {
        if let Some(name) = self.names.get(&value) {
            return Ok(name.clone());
        }
        let node = self.graph.node(value.node);
        let NodeKind::Const(tensor) = &node.kind else {
            return Err(Error::Internal(format!("node `{}` is read before it is written", node.name)));
        };
        let name = self.main.claim(&node.name);
        self.initializers.push(tensor_proto(tensor, Some(name.clone())));
        self.names.insert(value, name.clone());
        Ok(name)
    }

    fn group(&mut self, group: &Group) -> Result<()> {
        let first = group.nodes.first().map(|n| &self.graph.nodes[*n]);
        if first.is_none_or(|n| matches!(n.kind, NodeKind::Input { .. } | NodeKind::Const(_))) {
            return Ok(());
        }
        let last = group.nodes.last().map_or("", |n| self.graph.nodes[*n].name.as_str());
        // Node names are unique, like value names.
        self.main.label = if self.labels.insert(last.to_string()) { last.to_string() } else { String::new() };
        if let [one] = group.nodes.as_slice()
            && let NodeKind::Op { op, .. } = self.graph.nodes[*one].kind
            && let Some(domain) = self.graph.program.op(op).domain.clone()
        {
            return self.custom(*one, &domain);
        }
        match &group.fused {
            Some((name, formula)) => self.function_call(group, name, formula),
            None => group.nodes.iter().try_for_each(|n| self.plain(*n)),
        }
    }

    /// Writes a node that is not a fusion.
    fn plain(&mut self, index: usize) -> Result<()> {
        let node = &self.graph.nodes[index];
        let operands = node
            .operands
            .iter()
            .map(|v| v.map(|v| self.name(v)).transpose())
            .collect::<Result<Vec<Option<String>>>>()?;
        let results = self.main.call(&Call { graph: self.graph, node, operands: &operands })?;
        for (output, name) in results.into_iter().enumerate() {
            self.names.insert(Value { node: NodeId(index as u32), output: output as u32 }, name);
        }
        Ok(())
    }

    /// Writes an op of a custom domain as a node of that domain.
    fn custom(&mut self, index: usize, domain: &str) -> Result<()> {
        let node = &self.graph.nodes[index];
        let NodeKind::Op { op, attrs, .. } = &node.kind else { return self.plain(index) };
        let mut operands = Vec::with_capacity(node.operands.len());
        for v in &node.operands {
            operands.push(v.map(|v| self.name(v)).transpose()?.unwrap_or_default());
        }
        while operands.last().is_some_and(String::is_empty) {
            operands.pop();
        }
        let def = self.graph.program.op(*op);
        let values = custom::Values::of(def, attrs)?;
        let results: Vec<String> = node.results.iter().map(|_| self.main.fresh()).collect();
        let operands: Vec<&str> = operands.iter().map(String::as_str).collect();
        let name = def.name.rsplit("::").next().unwrap_or(&def.name);
        self.main.node(name, domain, &operands, results.clone(), &values.attributes());
        self.domains.insert(domain.to_string());
        for (output, name) in results.into_iter().enumerate() {
            self.names.insert(Value { node: NodeId(index as u32), output: output as u32 }, name);
        }
        Ok(())
    }

    /// Writes a fusion: its function, unless an equal one exists, and the call.
    fn function_call(&mut self, group: &Group, name: &str, formula: &str) -> Result<()> {
        let inside = |v: &Value| group.nodes.binary_search(&v.node.index()).is_ok();
        let results = self.results(group);
        let mut body = Body::new(Sizes::Parameters(Vec::new()), HashSet::new());
        let mut local: HashMap<Value, String> = HashMap::new();
        let mut reads: Vec<Value> = Vec::new();
        for n in &group.nodes {
            for v in self.graph.nodes[*n].operands.iter().flatten().filter(|v| !inside(v)) {
                if local.contains_key(v) {
                    continue;
                }
                // Scalar constants become part of the function; tensors are passed as operands.
                let text = match &self.graph.node(v.node).kind {
                    NodeKind::Const(t) if t.shape().is_empty() => body.constant(t),
                    _ => {
                        reads.push(*v);
                        body.claim(&format!("x{}", reads.len() - 1))
                    }
                };
                local.insert(*v, text);
            }
        }
        for n in &group.nodes {
            self.inner(&mut body, *n, &mut local)?;
        }
        let mut outputs: Vec<String> = Vec::new();
        for v in &results {
            let made = local.get(v).ok_or_else(|| Error::Internal("a result of a fusion was not written".into()))?;
            // Each result needs a name of its own, even if it is a parameter or equals another
            // result.
            let own = body.nodes.iter().any(|n| n.output.contains(made)) && !outputs.contains(made);
            outputs.push(if own { made.clone() } else { body.op("Identity", &[made], &[]) });
        }
        let (at, sizes) = self.function(body, reads.len(), outputs, name, formula);
        let fusion = &mut self.functions[at].fusion;
        fusion.calls += 1;
        let name = fusion.name.clone();
        let mut operands = reads.iter().map(|v| self.name(*v)).collect::<Result<Vec<String>>>()?;
        for d in &sizes {
            operands.push(self.main.dim(d)?);
        }
        let given: Vec<String> = results.iter().map(|_| self.main.fresh()).collect();
        let operands: Vec<&str> = operands.iter().map(String::as_str).collect();
        self.main.node(&name, DOMAIN, &operands, given.clone(), &[]);
        self.names.extend(results.into_iter().zip(given));
        Ok(())
    }

    /// The values of a group that are read outside it.
    fn results(&self, group: &Group) -> Vec<Value> {
        let inside = |n: usize| group.nodes.binary_search(&n).is_ok();
        let values = group.nodes.iter().flat_map(|n| self.graph.results(NodeId(*n as u32)));
        let read_outside = |v: &Value| {
            let mut users = self.users[v.node.index()].iter().filter(|u| !inside(u.index()));
            self.outputs.contains(v) || users.any(|u| self.graph.node(*u).operands.contains(&Some(*v)))
        };
        values.filter(read_outside).collect()
    }

    /// Writes a node inside a function; a defined op is expanded into its body.
    fn inner(&self, body: &mut Body, index: usize, local: &mut HashMap<Value, String>) -> Result<()> {
        let node = &self.graph.nodes[index];
        let operands: Vec<Option<String>> =
            node.operands.iter().map(|v| v.and_then(|v| local.get(&v).cloned())).collect();
        let results = match &node.kind {
            NodeKind::Op { op, .. } if matches!(self.graph.program.op(*op).body, OpBody::Defined(_)) => {
                self.written_out(body, index, &operands)?
            }
            _ => body.call(&Call { graph: self.graph, node, operands: &operands })?,
        };
        for (output, name) in results.into_iter().enumerate() {
            local.insert(Value { node: NodeId(index as u32), output: output as u32 }, name);
        }
        Ok(())
    }

    /// True if a kernel computes the op: what lies between operands and results stays in f32 there.
    fn has_kernel(&self, op: OpId) -> bool {
        let computes = |p: &Pat| matches!(p, Pat::Node(n) if n.head == Head::Op(op));
        self.graph.program.kernels.iter().any(|k| computes(&k.pattern))
    }

    /// Writes the body of a defined op: in f32 where a kernel computes it so.
    fn written_out(&self, body: &mut Body, index: usize, operands: &[Option<String>]) -> Result<Vec<String>> {
        let node = &self.graph.nodes[index];
        let NodeKind::Op { op, attrs, term } = &node.kind else {
            return Err(Error::Internal("a defined op was expected".into()));
        };
        let mut part = Graph::new(self.graph.program.clone());
        let mut names: HashMap<Value, String> = HashMap::new();
        let mut given = Vec::new();
        for (i, v) in node.operands.iter().enumerate() {
            given.push(v.map(|v| {
                let input = part.input(format!("x{i}"), self.graph.ty(v).clone());
                names.extend(operands[i].clone().map(|n| (input, n)));
                input
            }));
        }
        let results = part.op(*op, &given, attrs.clone(), term.clone())?;
        results.iter().enumerate().for_each(|(i, v)| part.output(i.to_string(), *v));
        let mut part = part.inlined()?.pruned();
        // An op that takes no f32 is written as it is.
        let wide = (part.computes_narrow() && self.has_kernel(*op)).then(|| part.widened().ok()).flatten();
        if let Some(wide) = wide {
            part = wide;
            for (at, ty) in node.results.iter().enumerate() {
                let wide = part.outputs[at].1;
                if part.ty(wide).dtype != ty.dtype {
                    let narrow = part.builtin(BuiltinOp::Cast, &[wide], vec![AttrValue::DType(ty.dtype)])?;
                    part.outputs[at].1 = narrow.first().copied().unwrap_or(wide);
                }
            }
        }
        // Inputs keep their order, and come first in both graphs.
        let names: HashMap<Value, String> = part
            .inputs
            .iter()
            .zip(given.iter().flatten())
            .filter_map(|(id, old)| Some((Value { node: *id, output: 0 }, names.get(old)?.clone())))
            .collect();
        write_all(body, &part, names)
    }

    /// The function with that body, deduplicated, and the sizes that this call passes to it.
    fn function(
        &mut self,
        body: Body,
        reads: usize,
        outputs: Vec<String>,
        name: &str,
        formula: &str,
    ) -> (usize, Vec<Dim>) {
        let Body { nodes, sizes, .. } = body;
        let sizes = match sizes {
            Sizes::Parameters(sizes) => sizes,
            Sizes::Inputs(_) => Vec::new(),
        };
        let parameters = (0..reads).map(|i| format!("x{i}"));
        let mut proto = FunctionProto {
            input: parameters.chain((0..sizes.len()).map(|i| format!("n{i}"))).collect(),
            output: outputs,
            node: nodes,
            doc_string: Some(formula.to_string()),
            opset_import: vec![opset("", OPSET)],
            domain: Some(DOMAIN.into()),
            ..FunctionProto::default()
        };
        let key = proto.encode_to_vec();
        if let Some(at) = self.known.get(&key) {
            return (*at, sizes);
        }
        let count = self.wanted.entry(name.to_string()).or_insert(0);
        *count += 1;
        let name = if *count == 1 { name.to_string() } else { format!("{name}_{count}") };
        proto.name = Some(name.clone());
        let fusion = Fusion { name, formula: formula.to_string(), calls: 0 };
        let at = self.functions.len();
        self.known.insert(key, at);
        self.functions.push(Function { proto, fusion });
        (at, sizes)
    }

    fn finish(mut self) -> Result<Export> {
        let outputs = self.outputs()?;
        let inputs = self.graph.inputs.iter().filter_map(|id| {
            let node = self.graph.node(*id);
            match &node.kind {
                NodeKind::Input { name } => Some(value_info(name, &node.results[0])),
                _ => None,
            }
        });
        let graph = GraphProto {
            name: Some("hypatia".into()),
            input: inputs.collect(),
            output: outputs,
            initializer: self.initializers,
            node: self.main.nodes,
            ..GraphProto::default()
        };
        let mut opsets = vec![opset("", OPSET)];
        if !self.functions.is_empty() {
            opsets.push(opset(DOMAIN, 1));
        }
        opsets.extend(self.domains.iter().map(|domain| opset(domain, 1)));
        let (functions, fusions) = self.functions.into_iter().map(|f| (f.proto, f.fusion)).unzip();
        let model = ModelProto {
            ir_version: Some(IR_VERSION),
            opset_import: opsets,
            producer_name: Some("hypatia".into()),
            producer_version: Some(env!("CARGO_PKG_VERSION").into()),
            graph: Some(graph),
            functions,
            ..ModelProto::default()
        };
        Ok(Export { model, fusions })
    }

    /// The outputs under their names. The node that computes a value is renamed to produce it
    /// directly, the first time.
    fn outputs(&mut self) -> Result<Vec<ValueInfoProto>> {
        let mut renamed: HashMap<String, String> = HashMap::new();
        let mut infos = Vec::new();
        let made: HashSet<String> = self.main.nodes.iter().flat_map(|n| n.output.iter().cloned()).collect();
        for (name, value) in &self.graph.outputs {
            let have = self.name(*value)?;
            if made.contains(&have) && !renamed.contains_key(&have) {
                renamed.insert(have, name.clone());
            } else if have != *name {
                self.main.label = String::new();
                self.main.node("Identity", "", &[&have], vec![name.clone()], &[]);
            }
            infos.push(value_info(name, self.graph.ty(*value)));
        }
        for node in &mut self.main.nodes {
            for name in node.input.iter_mut().chain(&mut node.output) {
                if let Some(new) = renamed.get(name) {
                    name.clone_from(new);
                }
            }
        }
        Ok(infos)
    }
}

/// Writes all nodes of a graph of builtin ops and scalars; returns the names of its outputs.
fn write_all(body: &mut Body, part: &Graph, mut names: HashMap<Value, String>) -> Result<Vec<String>> {
    for (i, node) in part.nodes.iter().enumerate() {
        let id = NodeId(i as u32);
        let results = match &node.kind {
            NodeKind::Input { .. } => continue,
            NodeKind::Const(t) => vec![body.constant(t)],
            _ => {
                let operands: Vec<Option<String>> =
                    node.operands.iter().map(|v| v.and_then(|v| names.get(&v).cloned())).collect();
                body.call(&Call { graph: part, node, operands: &operands })?
            }
        };
        for (output, name) in results.into_iter().enumerate() {
            names.insert(Value { node: id, output: output as u32 }, name);
        }
    }
    let outputs = part.outputs.iter().map(|(_, v)| names.get(v).cloned()).collect::<Option<Vec<String>>>();
    outputs.ok_or_else(|| Error::Internal("an output of a body was not written".into()))
}

fn plain_symbol(dim: &Dim) -> Option<Symbol> {
    dim.symbols().into_iter().next().filter(|s| Dim::symbol(s.clone()) == *dim)
}

fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: Some(domain.into()), version: Some(version) }
}

fn value_info(name: &str, ty: &TensorType) -> ValueInfoProto {
    let dim = |d: &Dim| {
        let value = match (d.as_const(), plain_symbol(d)) {
            (Some(c), _) => Some(dimension::Value::DimValue(c)),
            (None, Some(s)) => Some(dimension::Value::DimParam(s.to_string())),
            (None, None) => None,
        };
        Dimension { value, ..Dimension::default() }
    };
    let shape = TensorShapeProto { dim: ty.shape.iter().map(dim).collect() };
    let tensor = type_proto::Tensor { elem_type: Some(code(ty.dtype)), shape: Some(shape) };
    ValueInfoProto {
        name: Some(name.to_string()),
        r#type: Some(TypeProto { value: Some(type_proto::Value::TensorType(tensor)), ..TypeProto::default() }),
        ..ValueInfoProto::default()
    }
}
