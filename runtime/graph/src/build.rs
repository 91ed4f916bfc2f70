//! Builder methods of a [`Graph`].
//!
//! In: ops and scalars of the graph's Program, values of the graph. Out: nodes whose types come
//! from the typing rules. Invariant: a method that fails leaves the graph unchanged, so a graph
//! built by these methods alone is valid.

use std::sync::Arc;

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, InView, OpBody, OpId, ParamKind, Program, ScalarId};
use hypatia_dsl::scalar::{Term, TermNode};
use hypatia_dsl::shape::{Dim, Shape};
use hypatia_dsl::typing::{TensorType, apply_op, apply_scalar, normalise_attrs};

use super::{Graph, Kernels, Node, NodeId, NodeKind, Value, check_stored, check_term};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

impl Graph {
    /// A graph without nodes.
    pub fn new(program: Arc<Program>) -> Graph {
        Graph { program, nodes: Vec::new(), inputs: Vec::new(), outputs: Vec::new() }
    }

    /// Adds an input.
    pub fn input(&mut self, name: impl Into<String>, ty: TensorType) -> Value {
        let name = name.into();
        let value = self.push(NodeKind::Input { name: name.clone() }, Vec::new(), vec![ty]);
        self.nodes[value.node.index()].name = name;
        self.inputs.push(value.node);
        value
    }

    /// Adds a constant.
    pub fn constant(&mut self, tensor: impl Into<Arc<Tensor>>) -> Value {
        let tensor = tensor.into();
        let shape = tensor.shape().iter().map(|&d| Dim::from(d as i64)).collect();
        let ty = TensorType { dtype: tensor.dtype(), shape };
        self.push(NodeKind::Const(tensor), Vec::new(), vec![ty])
    }

    /// Adds a constant of rank 0: the number, rounded once to the dtype.
    pub fn number(&mut self, dtype: DType, value: f64) -> Result<Value> {
        let tensor = Tensor::from_f64(dtype, &[], &[value])
            .ok_or_else(|| Error::Internal("a tensor of rank 0 could not be made".into()))?;
        Ok(self.constant(tensor))
    }

    /// Adds an application of an op and returns its results. `operands` are the tensor operands in
    /// declaration order (`None` for an absent optional one, variadic ones at the end). If the op
    /// has a term, the tensors that the term reads follow. Axes among the attributes are
    /// normalised.
    pub fn op(
        &mut self,
        op: OpId,
        operands: &[Option<Value>],
        attrs: Vec<AttrValue>,
        term: Option<Term>,
    ) -> Result<Vec<Value>> {
        let (attrs, results) = self.type_op(op, operands, &attrs, term.as_ref())?;
        self.push_op(op, attrs, term, operands.to_vec(), results)
    }

    /// Adds an application whose types and attributes are known to be right. A term that reads a
    /// column (`col(v)`) gets `v` with a last axis of size 1 instead, which broadcasts as any
    /// operand does: no other part of Hypatia knows columns.
    pub(super) fn push_op(
        &mut self,
        op: OpId,
        attrs: Vec<AttrValue>,
        mut term: Option<Term>,
        mut operands: Vec<Option<Value>>,
        results: Vec<TensorType>,
    ) -> Result<Vec<Value>> {
        if let Some(term) = &mut term {
            let first = tensor_params(self.program.op(op)).min(operands.len());
            let columns = columns(term);
            for &input in &columns {
                let Some(v) = operands.get(first + input as usize).copied().flatten() else { continue };
                let wide: Shape = self.ty(v).shape.iter().cloned().chain([Dim::from(1)]).collect();
                let wide = self.builtin(BuiltinOp::Reshape, &[v], vec![wide.into()])?;
                let at = (operands.len() - first) as u32;
                operands.extend(wide.first().copied().map(Some));
                for node in &mut term.nodes {
                    if *node == (TermNode::In { input, view: InView::Col }) {
                        *node = TermNode::In { input: at, view: InView::Broadcast };
                    }
                }
            }
            if !columns.is_empty() {
                drop_unread(term, &mut operands, first);
            }
        }
        let first = self.push(NodeKind::Op { op, attrs, term }, operands, results);
        Ok(self.results(first.node))
    }

    /// Normalised attributes and result types of an application, without adding it.
    pub fn type_op(
        &self,
        op: OpId,
        operands: &[Option<Value>],
        attrs: &[AttrValue],
        term: Option<&Term>,
    ) -> Result<(Vec<AttrValue>, Vec<TensorType>)> {
        self.check_values(operands)?;
        let program = &self.program;
        let Some(def) = program.ops.get(op.index()) else {
            return Err(Error::Internal(format!("the program has no op number {}", op.0)));
        };
        let has_term = def.params.iter().any(|p| p.kind == ParamKind::Term);
        let split = if has_term { tensor_params(def).min(operands.len()) } else { operands.len() };
        let types: Vec<Option<TensorType>> = operands[..split].iter().map(|v| v.map(|v| self.ty(v).clone())).collect();
        let given: Vec<Option<AttrValue>> = attrs.iter().cloned().map(Some).collect();
        let rank = types.iter().flatten().next().map(|t| t.shape.len());
        let attrs = normalise_attrs(def, &given, rank).map_err(Error::from)?;
        let results = apply_op(program, op, &attrs, &types).map_err(Error::from)?;
        if results.is_empty() {
            return Err(Error::Type(format!("`{}` has no result with these attributes", def.name).into()));
        }
        match (has_term, term) {
            (true, Some(term)) => {
                let reads: Vec<TensorType> =
                    operands[split..].iter().map(|v| v.map(|v| self.ty(v).clone())).collect::<Option<_>>().ok_or_else(
                        || Error::Type(format!("`{}`: an operand of the term is absent", def.name).into()),
                    )?;
                let shape = def.terms_read_results().then(|| results[0].shape.as_slice());
                let pair = !matches!(def.body, OpBody::Builtin(b) if !b.is_pair());
                check_term(program, term, pair, shape, &reads).map_err(|e| Error::Type(e.at(&def.name)))?;
                if matches!(def.body, OpBody::Builtin(_)) && types[0].as_ref().is_some_and(|t| t.dtype.is_byte()) {
                    let reads: Vec<DType> = reads.iter().map(|t| t.dtype).collect();
                    let stored = check_stored(program, term, &reads, results[0].dtype);
                    stored.map_err(|e| Error::Type(e.at(&def.name)))?;
                }
            }
            (true, None) => return Err(Error::Type(format!("`{}` needs an epilogue term", def.name).into())),
            (false, Some(_)) => return Err(Error::Type(format!("`{}` takes no epilogue term", def.name).into())),
            (false, None) => {}
        }
        Ok((attrs, results))
    }

    /// Adds an element-wise scalar function, with broadcasting.
    pub fn scalar(&mut self, scalar: ScalarId, operands: &[Value]) -> Result<Value> {
        let operands: Vec<Option<Value>> = operands.iter().copied().map(Some).collect();
        self.check_values(&operands)?;
        let types: Vec<TensorType> = operands.iter().flatten().map(|v| self.ty(*v).clone()).collect();
        let result = apply_scalar(&self.program, scalar, &types).map_err(Error::from)?;
        Ok(self.push(NodeKind::Scalar(scalar), operands, vec![result]))
    }

    /// Adds an application of a builtin op; attributes in the order that [`BuiltinOp`] lists.
    pub fn builtin(&mut self, op: BuiltinOp, operands: &[Value], attrs: Vec<AttrValue>) -> Result<Vec<Value>> {
        let id = self
            .program
            .builtin_op(op)
            .ok_or_else(|| Error::Input(format!("the rules do not declare the builtin op `{}`", op.name())))?;
        let operands: Vec<Option<Value>> = operands.iter().copied().map(Some).collect();
        self.op(id, &operands, attrs, None)
    }

    /// Adds an application of a builtin scalar.
    pub fn builtin_scalar(&mut self, scalar: BuiltinScalar, operands: &[Value]) -> Result<Value> {
        let id = self
            .program
            .builtin_scalar(scalar)
            .ok_or_else(|| Error::Input(format!("the rules do not declare the builtin scalar `{}`", scalar.name())))?;
        self.scalar(id, operands)
    }

    /// Adds an application of the op or scalar of that name. Attributes are passed by name; omitted
    /// ones take their defaults. Returns all results.
    pub fn call(&mut self, name: &str, operands: &[Value], attrs: &[(&str, AttrValue)]) -> Result<Vec<Value>> {
        if let Some(op) = self.program.find_op(name) {
            let attrs = self.named_attrs(op, attrs)?;
            let operands: Vec<Option<Value>> = operands.iter().copied().map(Some).collect();
            return self.op(op, &operands, attrs, None);
        }
        let Some(scalar) = self.program.find_scalar(name) else {
            return Err(Error::Input(format!("no op and no scalar is called `{name}`")));
        };
        if let Some((attr, _)) = attrs.first() {
            return Err(Error::Input(format!("the scalar `{name}` has no attribute `{attr}`")));
        }
        Ok(vec![self.scalar(scalar, operands)?])
    }

    /// Adds an application of the op of that name; operands may be absent.
    pub fn named_op(
        &mut self,
        name: &str,
        operands: &[Option<Value>],
        attrs: &[(&str, AttrValue)],
        term: Option<Term>,
    ) -> Result<Vec<Value>> {
        let missing =
            || Error::Input(format!("the graph's program has no op `{name}`: build it with `Graph::new(program())`"));
        let op = self.program.find_op(name).ok_or_else(missing)?;
        let attrs = self.named_attrs(op, attrs)?;
        self.op(op, operands, attrs, term)
    }

    /// The attributes of an op in declaration order, from named ones and defaults.
    pub fn named_attrs(&self, op: OpId, attrs: &[(&str, AttrValue)]) -> Result<Vec<AttrValue>> {
        let def = self.program.op(op);
        if let Some((name, _)) = attrs.iter().find(|(n, _)| !def.attrs().any(|(_, p)| p.name == *n)) {
            return Err(Error::Input(format!("the op `{}` has no attribute `{name}`", def.name)));
        }
        def.attrs()
            .map(|(_, p)| {
                let given = attrs.iter().find(|(n, _)| *n == p.name).map(|(_, v)| v.clone());
                let default = match &p.kind {
                    ParamKind::Attr { default, .. } => default.clone(),
                    _ => None,
                };
                given.or(default).ok_or_else(|| {
                    Error::Input(format!("the op `{}` needs a value for its attribute `{}`", def.name, p.name))
                })
            })
            .collect()
    }

    /// Adds an output.
    pub fn output(&mut self, name: impl Into<String>, value: Value) {
        self.outputs.push((name.into(), value));
    }

    /// Names the node of a value, for messages.
    pub fn name_node(&mut self, value: Value, name: impl Into<String>) {
        self.nodes[value.node.index()].name = name.into();
    }

    /// The input of that name.
    pub fn input_named(&self, name: &str) -> Option<Value> {
        let named = |id: &&NodeId| matches!(&self.node(**id).kind, NodeKind::Input { name: n } if n == name);
        self.inputs.iter().find(named).map(|id| Value { node: *id, output: 0 })
    }

    /// The type of a value.
    pub fn ty(&self, value: Value) -> &TensorType {
        &self.nodes[value.node.index()].results[value.output as usize]
    }

    /// The node of that id.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// All results of a node.
    pub fn results(&self, node: NodeId) -> Vec<Value> {
        (0..self.nodes[node.index()].results.len() as u32).map(|output| Value { node, output }).collect()
    }

    /// The number of a node's tensor operands; the remaining operands belong to its term.
    pub fn tensor_operands(&self, node: &Node) -> usize {
        match &node.kind {
            NodeKind::Op { op, term: Some(_), .. } => tensor_params(self.program.op(*op)).min(node.operands.len()),
            _ => node.operands.len(),
        }
    }

    /// The users of each node, deduplicated and in order; outputs do not count.
    pub fn users(&self) -> Vec<Vec<NodeId>> {
        let mut users: Vec<Vec<NodeId>> = vec![Vec::new(); self.nodes.len()];
        for (i, node) in self.nodes.iter().enumerate() {
            for operand in node.operands.iter().flatten() {
                let list = &mut users[operand.node.index()];
                if list.last() != Some(&NodeId(i as u32)) {
                    list.push(NodeId(i as u32));
                }
            }
        }
        users
    }

    /// For each node, whether an output depends on it. Inputs count as if one did.
    pub fn live(&self) -> Vec<bool> {
        let mut live = vec![false; self.nodes.len()];
        for id in self.outputs.iter().map(|(_, v)| v.node).chain(self.inputs.iter().copied()) {
            live[id.index()] = true;
        }
        for (i, node) in self.nodes.iter().enumerate().rev() {
            if live[i] {
                node.operands.iter().flatten().for_each(|v| live[v.node.index()] = true);
            }
        }
        live
    }

    /// The graph without dead nodes. Inputs stay.
    pub fn pruned(&self) -> Graph {
        let live = self.live();
        let mut map = vec![NodeId(0); self.nodes.len()];
        let mut out = Graph::new(self.program.clone());
        for (i, node) in self.nodes.iter().enumerate().filter(|(i, _)| live[*i]) {
            map[i] = NodeId(out.nodes.len() as u32);
            let mut node = node.clone();
            node.operands.iter_mut().flatten().for_each(|v| v.node = map[v.node.index()]);
            out.nodes.push(node);
        }
        out.inputs = self.inputs.iter().map(|i| map[i.index()]).collect();
        let moved = |v: &Value| Value { node: map[v.node.index()], output: v.output };
        out.outputs = self.outputs.iter().map(|(n, v)| (n.clone(), moved(v))).collect();
        out
    }

    pub(super) fn push(&mut self, kind: NodeKind, operands: Vec<Option<Value>>, results: Vec<TensorType>) -> Value {
        let node = NodeId(self.nodes.len() as u32);
        self.nodes.push(Node { kind, operands, results, name: String::new(), kernels: Kernels::default() });
        Value { node, output: 0 }
    }

    fn check_values(&self, values: &[Option<Value>]) -> Result<()> {
        for v in values.iter().flatten() {
            let known = self.nodes.get(v.node.index()).is_some_and(|n| (v.output as usize) < n.results.len());
            if !known {
                return Err(Error::Internal(format!("value {}.{} is not in the graph", v.node.0, v.output)));
            }
        }
        Ok(())
    }
}

/// The operands that a term reads as columns.
fn columns(term: &Term) -> Vec<u32> {
    let column = |n: &TermNode| match n {
        TermNode::In { input, view: InView::Col } => Some(*input),
        _ => None,
    };
    let mut found: Vec<u32> = term.nodes.iter().filter_map(column).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Drops the operands of a term, those from `first` on, that it does not read.
fn drop_unread(term: &mut Term, operands: &mut Vec<Option<Value>>, first: usize) {
    let reads = |i: usize| term.nodes.iter().any(|n| matches!(n, TermNode::In { input, .. } if *input as usize == i));
    let kept: Vec<usize> = (0..operands.len() - first).filter(|i| reads(*i)).collect();
    if kept.len() + first == operands.len() {
        return;
    }
    *operands = operands[..first].iter().copied().chain(kept.iter().map(|i| operands[first + i])).collect();
    for node in &mut term.nodes {
        if let TermNode::In { input, .. } = node {
            *input = kept.iter().position(|i| *i == *input as usize).unwrap_or_default() as u32;
        }
    }
}

/// Number of tensor operands of an op that has a term (such an op has no variadic operand).
pub(super) fn tensor_params(def: &hypatia_dsl::ir::OpDef) -> usize {
    def.params.iter().filter(|p| matches!(p.kind, ParamKind::Tensor { .. })).count()
}
