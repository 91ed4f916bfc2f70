//! The context of an import handler: one ONNX node, its operands, and the graph under construction.
//!
//! In: created by `model` for each node. Out: graph nodes, and the [`Bound`] values of the node's
//! outputs. Invariant: shape arithmetic stays symbolic until a graph node needs it as a tensor.
//! Every failure is a [`Fail`], to which `model` adds the node, the op and the file.

use std::collections::{BTreeSet, HashMap};

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::shape::{Dim, Shape, broadcast, show_shape};
use hypatia_dsl::typing::TensorType;

use super::attrs::Attrs;
use super::symbolic::{LARGEST, Sym};
use super::tensor::TensorFault;
use hypatia_graph::{ConstantFolder, Graph, Node, NodeId, NodeKind, Value, constant_value};
use hypatia_tensor::error::Error;
use hypatia_tensor::tensor::Tensor;

/// Maximum number of nodes in an expression over constants that is evaluated.
const FOLLOWED: usize = 256;

/// Why a node could not be imported.
pub(super) enum Fail {
    /// The model is invalid.
    Model(String),
    /// Hypatia does not support this.
    Unsupported(String),
    /// The graph builder rejected it, or a limit was exceeded.
    Other(Error),
}

impl From<String> for Fail {
    fn from(s: String) -> Fail {
        Fail::Model(s)
    }
}
impl From<Error> for Fail {
    fn from(e: Error) -> Fail {
        Fail::Other(e)
    }
}
impl From<TensorFault> for Fail {
    fn from(b: TensorFault) -> Fail {
        match b {
            TensorFault::Damaged(m) => Fail::Model(m),
            TensorFault::Unsupported(m) => Fail::Unsupported(m),
        }
    }
}

/// The result of a handler.
pub(super) type Out<T = Vec<Bound>> = Result<T, Fail>;

/// An ONNX value: in the graph, known as symbolic sizes, or both.
#[derive(Clone, Debug)]
pub(super) struct Bound {
    /// Its value in the graph, if it has been added.
    pub value: Option<Value>,
    /// Its elements, if they are sizes.
    pub sym: Option<Sym>,
}

impl From<Value> for Bound {
    fn from(value: Value) -> Bound {
        Bound { value: Some(value), sym: None }
    }
}
impl From<Sym> for Bound {
    fn from(sym: Sym) -> Bound {
        Bound { value: None, sym: Some(sym) }
    }
}

/// The graph, and the tensors made from sizes so far.
pub(super) struct Builder {
    /// The graph.
    pub graph: Graph,
    /// Folds constants.
    folder: &'static dyn ConstantFolder,
    made: HashMap<Sym, Value>,
}

impl Builder {
    pub fn new(graph: Graph, folder: &'static dyn ConstantFolder) -> Builder {
        Builder { graph, folder, made: HashMap::new() }
    }

    /// A bound value as a graph value.
    pub fn materialise(&mut self, bound: &Bound) -> Out<Value> {
        if let Some(v) = bound.value {
            return Ok(v);
        }
        let sym = bound.sym.as_ref().ok_or_else(|| internal("a value is neither a tensor nor sizes"))?;
        if let Some(v) = self.made.get(sym) {
            return Ok(*v);
        }
        let value = match sym.to_tensor() {
            Some(t) => self.graph.constant(t),
            None => self.sizes(sym)?,
        };
        self.made.insert(sym.clone(), value);
        Ok(value)
    }

    /// A tensor of symbolic sizes: each size is a node, and the nodes are concatenated.
    fn sizes(&mut self, sym: &Sym) -> Out<Value> {
        let mut parts = Vec::new();
        for d in &sym.items {
            let one = match d.as_const() {
                Some(c) => {
                    let t = Tensor::from_slice(&[1], &[c]).ok_or_else(|| internal("a constant could not be made"))?;
                    self.graph.constant(t)
                }
                None => {
                    let size = self.op(BuiltinOp::Size, &[], vec![AttrValue::Dim(d.clone())])?;
                    self.op(BuiltinOp::Reshape, &[size], vec![dims(&[Dim::from(1)])])?
                }
            };
            parts.push(one);
        }
        let all = match parts[..] {
            [one] => one,
            _ => self.op(BuiltinOp::Concat, &parts, vec![int(0)])?,
        };
        let shape: Shape = sym.shape.iter().map(|d| Dim::from(*d as i64)).collect();
        let all = self.op(BuiltinOp::Reshape, &[all], vec![dims(&shape)])?;
        if sym.dtype == DType::I64 {
            return Ok(all);
        }
        self.op(BuiltinOp::Cast, &[all], vec![AttrValue::DType(sym.dtype)])
    }

    fn op(&mut self, op: BuiltinOp, operands: &[Value], attrs: Vec<AttrValue>) -> Out<Value> {
        let results = self.graph.builtin(op, operands, attrs)?;
        results.first().copied().ok_or_else(|| internal("an op without results"))
    }

    /// The type of a bound value.
    pub fn ty(&self, bound: &Bound) -> TensorType {
        match (&bound.value, &bound.sym) {
            (Some(v), _) => self.graph.ty(*v).clone(),
            (None, Some(s)) => {
                TensorType { dtype: s.dtype, shape: s.shape.iter().map(|d| Dim::from(*d as i64)).collect() }
            }
            (None, None) => TensorType { dtype: DType::F32, shape: Vec::new() },
        }
    }

    /// The tensor of a value that is a constant, or that has few elements and is computed from
    /// constants.
    pub fn constant(&self, bound: &Bound) -> Option<std::sync::Arc<Tensor>> {
        match bound.value {
            Some(v) => match &self.graph.node(v.node).kind {
                NodeKind::Const(t) => Some(t.clone()),
                NodeKind::Input { .. } => None,
                _ => self.computed(v).map(std::sync::Arc::new),
            },
            None => bound.sym.as_ref()?.to_tensor().map(std::sync::Arc::new),
        }
    }
}

impl Builder {
    /// The value of an expression over constants in which no tensor is larger than a shape tensor.
    /// Exporters compute sizes in floats, or with ops that have no symbolic form.
    fn computed(&self, v: Value) -> Option<Tensor> {
        let few = |n: &Node| {
            let sizes = |t: &TensorType| t.shape.iter().map(Dim::as_const).try_fold(1i64, |n, d| n.checked_mul(d?));
            !matches!(n.kind, NodeKind::Input { .. })
                && n.results.iter().all(|t| sizes(t).is_some_and(|n| n <= LARGEST as i64))
        };
        let mut part = Graph::new(self.graph.program.clone());
        let mut found = BTreeSet::from([v.node]);
        let mut open = vec![v.node];
        while let Some(id) = open.pop() {
            let node = self.graph.node(id);
            if !few(node) || found.len() > FOLLOWED {
                return None;
            }
            open.extend(node.operands.iter().flatten().map(|o| o.node).filter(|n| found.insert(*n)));
        }
        // Operands come before their users.
        let moved = |o: &Value| {
            let at = found.iter().position(|n| *n == o.node)?;
            Some(Value { node: NodeId(at as u32), output: o.output })
        };
        for id in &found {
            let node = self.graph.node(*id);
            let operands = node.operands.iter().map(|o| o.as_ref().and_then(&moved)).collect();
            part.nodes.push(Node { operands, ..node.clone() });
        }
        constant_value(self.folder, &part, moved(&v)?)
    }
}

/// An internal error: a broken invariant.
pub(super) fn internal(message: &str) -> Fail {
    Fail::Other(Error::Internal(message.into()))
}

/// An attribute that is a list of sizes.
pub(super) fn dims(shape: &[Dim]) -> AttrValue {
    AttrValue::List(shape.iter().cloned().map(AttrValue::Dim).collect())
}

/// An attribute that is a list of integers.
pub(super) fn ints(values: &[i64]) -> AttrValue {
    AttrValue::List(values.iter().map(|v| int(*v)).collect())
}

/// An attribute that is an integer.
pub(super) fn int(value: i64) -> AttrValue {
    AttrValue::Dim(Dim::from(value))
}

/// One ONNX node during import.
pub(super) struct Ctx<'n> {
    /// The graph.
    pub builder: &'n mut Builder,
    /// Its operands; `None` for omitted ones.
    pub inputs: Vec<Option<Bound>>,
    /// For each input whether it is a constant of the model, rather than one computed from sizes.
    pub given: Vec<bool>,
    /// For each output whether it has a name.
    pub outputs: Vec<bool>,
    /// Its attributes.
    pub attrs: Attrs<'n>,
    /// The version of the op's definition that applies.
    pub since: i64,
    /// Ops and scalars that its handler uses, from the table.
    pub names: &'static [&'static str],
    /// The model's folder, for external data.
    pub dir: Option<&'n std::path::Path>,
}

impl Ctx<'_> {
    /// An error for an unsupported feature.
    pub fn unsupported<T>(&self, message: impl Into<String>) -> Out<T> {
        Err(Fail::Unsupported(message.into()))
    }

    /// An error for an invalid model.
    pub fn wrong<T>(&self, message: impl Into<String>) -> Out<T> {
        Err(Fail::Model(message.into()))
    }

    /// Checks the numbers of inputs and outputs.
    pub fn arity(&self, low: usize, high: usize, outputs: usize) -> Out<()> {
        let have = self.inputs.iter().rposition(Option::is_some).map_or(0, |i| i + 1);
        if have < low || have > high {
            let range = if low == high { low.to_string() } else { format!("{low} to {high}") };
            return self.wrong(format!("it has {have} inputs; {range} were expected"));
        }
        if let Some(i) = (outputs..self.outputs.len()).find(|i| self.outputs[*i]) {
            return self.wrong(format!("it has an output number {}; there are {outputs}", i + 1));
        }
        Ok(())
    }

    /// Whether an operand is present.
    pub fn has(&self, i: usize) -> bool {
        matches!(self.inputs.get(i), Some(Some(_)))
    }

    /// Whether an output is requested.
    pub fn wanted(&self, i: usize) -> bool {
        self.outputs.get(i).copied().unwrap_or(false)
    }

    /// An operand.
    pub fn bound(&self, i: usize) -> Out<Bound> {
        match self.inputs.get(i) {
            Some(Some(b)) => Ok(b.clone()),
            _ => self.wrong(format!("input {} is missing", i + 1)),
        }
    }

    /// An operand as a graph value.
    pub fn value(&mut self, i: usize) -> Out<Value> {
        let bound = self.bound(i)?;
        let value = self.builder.materialise(&bound)?;
        if let Some(Some(slot)) = self.inputs.get_mut(i) {
            slot.value = Some(value);
        }
        Ok(value)
    }

    /// An operand as a graph value, if it is present.
    pub fn maybe(&mut self, i: usize) -> Out<Option<Value>> {
        if self.has(i) { self.value(i).map(Some) } else { Ok(None) }
    }

    /// An operand as symbolic sizes, if they are known.
    pub fn sym(&self, i: usize) -> Option<Sym> {
        self.inputs.get(i)?.as_ref()?.sym.clone()
    }

    /// All operands as symbolic sizes.
    pub fn syms(&self) -> Option<Vec<Sym>> {
        (0..self.inputs.len()).map(|i| self.sym(i)).collect()
    }

    /// Rejects an integer divisor that is a constant of the model and contains a 0: the quotient is
    /// undefined, and other runtimes abort.
    pub fn divides_by(&self, i: usize) -> Out<()> {
        let constant = self.given.get(i) == Some(&true) && self.ty(i)?.dtype.is_int();
        let divisor = if constant { self.builder.constant(&self.bound(i)?) } else { None };
        match divisor {
            Some(t) if t.to_f64().contains(&0.0) => self.wrong("it divides integers by a constant that is 0"),
            _ => Ok(()),
        }
    }

    /// The type of an operand, without adding it to the graph.
    pub fn ty(&self, i: usize) -> Out<TensorType> {
        Ok(self.builder.ty(&self.bound(i)?))
    }

    /// The type of a graph value.
    pub fn type_of(&self, v: Value) -> TensorType {
        self.builder.graph.ty(v).clone()
    }

    /// The shape of a graph value.
    pub fn shape_of(&self, v: Value) -> Shape {
        self.builder.graph.ty(v).shape.clone()
    }

    /// The element type of a graph value.
    pub fn dtype_of(&self, v: Value) -> DType {
        self.builder.graph.ty(v).dtype
    }

    /// The sizes in a vector operand, which must be known at import.
    pub fn sizes(&self, i: usize, what: &str) -> Out<Vec<Dim>> {
        let ty = self.ty(i)?;
        match self.sym(i) {
            _ if !matches!(ty.dtype, DType::I64 | DType::I32) || ty.shape.len() > 1 => {
                self.wrong(format!("{what} should be a vector of i64, but is {ty}"))
            }
            Some(s) => Ok(s.items),
            None => match self.builder.constant(&self.bound(i)?).and_then(|t| Sym::from_tensor(&t)) {
                Some(s) => Ok(s.items),
                None => self.unsupported(format!(
                    "{what} must be known when the model is imported: constants, or computed from shapes; here it is \
                 computed from data"
                )),
            },
        }
    }

    /// The numbers in a vector operand, which must be known at import.
    pub fn numbers(&self, i: usize, what: &str) -> Out<Vec<i64>> {
        let sizes = self.sizes(i, what)?;
        match sizes.iter().map(Dim::as_const).collect::<Option<Vec<_>>>() {
            Some(v) => Ok(v),
            None => self.unsupported(format!("{what} must contain numbers, but is {}", show_shape(&sizes))),
        }
    }

    /// The name of an op or scalar from the table.
    pub fn name(&self, i: usize) -> Out<&'static str> {
        self.names.get(i).copied().ok_or_else(|| internal("an import handler has no name in its table"))
    }

    /// A rank-0 constant.
    pub fn number(&mut self, dtype: DType, value: f64) -> Out<Value> {
        Ok(self.builder.graph.number(dtype, value)?)
    }

    /// A builtin op with one result.
    pub fn op(&mut self, op: BuiltinOp, operands: &[Value], attrs: Vec<AttrValue>) -> Out<Value> {
        self.builder.op(op, operands, attrs)
    }

    /// A builtin scalar.
    pub fn builtin(&mut self, f: BuiltinScalar, operands: &[Value]) -> Out<Value> {
        Ok(self.builder.graph.builtin_scalar(f, operands)?)
    }

    /// A scalar by name.
    pub fn scalar(&mut self, name: &str, operands: &[Value]) -> Out<Value> {
        let Some(id) = self.builder.graph.program.find_scalar(name) else {
            return self.unsupported(format!("the rules define no scalar `{name}`"));
        };
        Ok(self.builder.graph.scalar(id, operands)?)
    }

    /// A defined op by name, with one result. Attributes are passed by name; omitted ones take
    /// their defaults.
    pub fn call(&mut self, name: &str, operands: &[Option<Value>], attrs: &[(&str, AttrValue)]) -> Out<Value> {
        let Some(id) = self.builder.graph.program.find_op(name) else {
            return self.unsupported(format!("the rules define no op `{name}`"));
        };
        let attrs = self.builder.graph.named_attrs(id, attrs)?;
        let results = self.builder.graph.op(id, operands, attrs, None)?;
        results.first().copied().ok_or_else(|| internal("an op without results"))
    }

    /// Reshapes the value; returns it unchanged if it has that shape.
    pub fn reshape(&mut self, x: Value, shape: &[Dim]) -> Out<Value> {
        if self.shape_of(x) == shape {
            return Ok(x);
        }
        self.op(BuiltinOp::Reshape, &[x], vec![dims(shape)])
    }

    /// Transposes the value; returns it unchanged for the identity permutation.
    pub fn transpose(&mut self, x: Value, perm: &[i64]) -> Out<Value> {
        if perm.iter().enumerate().all(|(i, p)| i as i64 == *p) {
            return Ok(x);
        }
        self.op(BuiltinOp::Transpose, &[x], vec![ints(perm)])
    }

    /// Casts the value; returns it unchanged if it has that type.
    pub fn cast(&mut self, x: Value, to: DType) -> Out<Value> {
        if self.dtype_of(x) == to {
            return Ok(x);
        }
        self.op(BuiltinOp::Cast, &[x], vec![AttrValue::DType(to)])
    }

    /// Broadcasts the value to a shape; returns it unchanged if it has that shape.
    pub fn expand(&mut self, x: Value, shape: &[Dim]) -> Out<Value> {
        if self.shape_of(x) == shape {
            return Ok(x);
        }
        self.op(BuiltinOp::Expand, &[x], vec![dims(shape)])
    }

    /// A reduction over axes.
    pub fn reduce(&mut self, op: BuiltinOp, x: Value, axes: &[i64], keepdims: bool) -> Out<Value> {
        self.op(op, &[x], vec![ints(axes), AttrValue::Bool(keepdims)])
    }

    /// Checks that `small` broadcasts to `large` without changing `large` (ONNX: "unidirectional").
    pub fn fits(&self, small: &[Dim], large: &[Dim], what: &str) -> Out<()> {
        if broadcast(small, large).as_deref() == Some(large) {
            return Ok(());
        }
        self.wrong(format!("{what} of shape {} does not broadcast to {}", show_shape(small), show_shape(large)))
    }

    /// Normalises an axis: a negative one counts from the end.
    pub fn axis(&self, axis: i64, rank: usize) -> Out<usize> {
        let rank = rank as i64;
        match if axis < 0 { axis.checked_add(rank) } else { Some(axis) } {
            Some(a) if (0..rank).contains(&a) => Ok(a as usize),
            _ => self.wrong(format!("the axis {axis} does not exist: the rank is {rank}")),
        }
    }

    /// Normalises axes: negative ones count from the end. Duplicates are an error.
    pub fn axes(&self, axes: &[i64], rank: usize) -> Out<Vec<usize>> {
        let mut out = Vec::with_capacity(axes.len().min(rank));
        for a in axes {
            let a = self.axis(*a, rank)?;
            if out.contains(&a) {
                return self.wrong(format!("the axis {a} is named twice"));
            }
            out.push(a);
        }
        Ok(out)
    }
}
