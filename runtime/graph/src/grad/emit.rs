//! The nodes that gradients are made of.
//!
//! In: values of a graph. Out: new nodes of the same graph, deduplicated. Invariant: a method that
//! would add a node without effect (a cast to the same type, a sum over no axis) returns its
//! operand.

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::shape::{Dim, Shape, product};
use hypatia_dsl::typing::TensorType;
use hypatia_tensor::error::{Error, Result};

use crate::{Graph, Instantiator, Value};

/// Adds nodes to a graph.
pub(super) struct Emit<'g> {
    pub into: Instantiator<'g>,
}

/// A size that a polynomial holds.
pub(super) fn size(d: Option<Dim>) -> Result<Dim> {
    d.ok_or_else(|| Error::Limit("a size in a gradient is too large".into()))
}

impl<'g> Emit<'g> {
    pub fn new(graph: &'g mut Graph) -> Emit<'g> {
        let mut into = Instantiator::new(graph);
        // Each node of the graph adds a few.
        into.allow(into.graph.nodes.len().saturating_mul(100));
        Emit { into }
    }

    pub fn graph(&self) -> &Graph {
        self.into.graph
    }

    pub fn ty(&self, v: Value) -> &TensorType {
        self.into.graph.ty(v)
    }

    pub fn dtype(&self, v: Value) -> DType {
        self.ty(v).dtype
    }

    pub fn shape(&self, v: Value) -> Shape {
        self.ty(v).shape.clone()
    }

    pub fn rank(&self, v: Value) -> usize {
        self.ty(v).shape.len()
    }

    /// Names the nodes from `begin` on.
    pub fn name_from(&mut self, begin: usize, name: &str) {
        for node in self.into.graph.nodes[begin..].iter_mut().filter(|n| n.name.is_empty()) {
            name.clone_into(&mut node.name);
        }
    }

    /// A builtin scalar function.
    pub fn call(&mut self, f: BuiltinScalar, operands: &[Value]) -> Result<Value> {
        let id = self.into.graph.program.builtin_scalar(f);
        let id = id.ok_or_else(|| Error::Input(format!("the rules do not declare the scalar `{}`", f.name())))?;
        self.into.scalar(id, operands)
    }

    /// A builtin op; its first result.
    pub fn op(&mut self, op: BuiltinOp, operands: &[Value], attrs: &[AttrValue]) -> Result<Value> {
        let id = self.into.graph.program.builtin_op(op);
        let id = id.ok_or_else(|| Error::Input(format!("the rules do not declare the op `{}`", op.name())))?;
        let operands: Vec<Option<Value>> = operands.iter().copied().map(Some).collect();
        let results = self.into.op(id, &operands, attrs, None)?;
        results.first().copied().ok_or_else(|| Error::Internal(format!("{} has no result", op.name())))
    }

    pub fn number(&mut self, dtype: DType, value: f64) -> Result<Value> {
        self.into.number(dtype, value)
    }

    pub fn add(&mut self, a: Value, b: Value) -> Result<Value> {
        self.call(BuiltinScalar::Add, &[a, b])
    }

    pub fn mul(&mut self, a: Value, b: Value) -> Result<Value> {
        self.call(BuiltinScalar::Mul, &[a, b])
    }

    /// `a` where `c`, else 0.
    pub fn only_where(&mut self, c: Value, a: Value) -> Result<Value> {
        let zero = self.number(self.dtype(a), 0.0)?;
        self.call(BuiltinScalar::Select, &[c, a, zero])
    }

    /// The value of a constant everywhere.
    pub fn full(&mut self, ty: &TensorType, value: f64) -> Result<Value> {
        self.op(BuiltinOp::Full, &[], &[ty.shape.clone().into(), AttrValue::Float(value), ty.dtype.into()])
    }

    pub fn cast(&mut self, v: Value, to: DType) -> Result<Value> {
        if self.dtype(v) == to {
            return Ok(v);
        }
        self.op(BuiltinOp::Cast, &[v], &[to.into()])
    }

    pub fn reshape(&mut self, v: Value, shape: Shape) -> Result<Value> {
        if self.ty(v).shape == shape {
            return Ok(v);
        }
        self.op(BuiltinOp::Reshape, &[v], &[shape.into()])
    }

    pub fn expand(&mut self, v: Value, shape: Shape) -> Result<Value> {
        if self.ty(v).shape == shape {
            return Ok(v);
        }
        self.op(BuiltinOp::Expand, &[v], &[shape.into()])
    }

    /// Axis `i` of the result is axis `perm[i]`.
    pub fn transpose(&mut self, v: Value, perm: &[usize]) -> Result<Value> {
        if perm.iter().enumerate().all(|(i, p)| i == *p) {
            return Ok(v);
        }
        self.op(BuiltinOp::Transpose, &[v], &[axes(perm)])
    }

    /// The last two axes exchanged.
    pub fn turned(&mut self, v: Value) -> Result<Value> {
        let mut perm: Vec<usize> = (0..self.rank(v)).collect();
        let n = perm.len();
        perm.swap(n - 2, n - 1);
        self.transpose(v, &perm)
    }

    pub fn sum(&mut self, v: Value, over: &[usize], keepdims: bool) -> Result<Value> {
        if over.is_empty() {
            return Ok(v);
        }
        self.op(BuiltinOp::Sum, &[v], &[axes(over), keepdims.into()])
    }

    /// Elements `start`, `start + step`, ... before `stop`.
    pub fn slice(&mut self, v: Value, axis: usize, start: Dim, stop: Dim, step: i64) -> Result<Value> {
        let whole = start.as_const() == Some(0) && stop == self.ty(v).shape[axis] && step == 1;
        if whole {
            return Ok(v);
        }
        self.op(BuiltinOp::Slice, &[v], &[(axis as i64).into(), start.into(), stop.into(), step.into()])
    }

    /// All elements of an axis, the last one first.
    pub fn reversed(&mut self, v: Value, axis: usize) -> Result<Value> {
        let last = size(self.ty(v).shape[axis].checked_sub(&Dim::from(1)))?;
        self.slice(v, axis, last, Dim::from(-1), -1)
    }

    /// Zeros around; negative amounts cut.
    pub fn pad(&mut self, v: Value, before: Shape, after: Shape) -> Result<Value> {
        if before.iter().chain(&after).all(|d| d.as_const() == Some(0)) {
            return Ok(v);
        }
        let zero = self.number(self.dtype(v), 0.0)?;
        self.op(BuiltinOp::Pad, &[v, zero], &[before.into(), after.into()])
    }

    /// Zeros around one axis; negative amounts cut.
    pub fn pad_axis(&mut self, v: Value, axis: usize, before: Dim, after: Dim) -> Result<Value> {
        let mut amounts = [vec![Dim::from(0); self.rank(v)], vec![Dim::from(0); self.rank(v)]];
        (amounts[0][axis], amounts[1][axis]) = (before, after);
        let [before, after] = amounts;
        self.pad(v, before, after)
    }

    /// `step - 1` zeros after each element of an axis.
    pub fn spread(&mut self, v: Value, axis: usize, step: i64) -> Result<Value> {
        if step == 1 {
            return Ok(v);
        }
        let mut shape = self.shape(v);
        let whole = size(shape[axis].checked_mul(&Dim::from(step)))?;
        shape.insert(axis + 1, Dim::from(1));
        let apart = self.reshape(v, shape.clone())?;
        let apart = self.pad_axis(apart, axis + 1, Dim::from(0), Dim::from(step - 1))?;
        shape.remove(axis + 1);
        shape[axis] = whole;
        self.reshape(apart, shape)
    }

    /// The number of elements along these axes, as a number of that type.
    pub fn count(&mut self, dtype: DType, shape: &[Dim], over: &[usize]) -> Result<Value> {
        let sizes: Shape = over.iter().map(|a| shape[*a].clone()).collect();
        let count = size(product(&sizes))?;
        match count.as_const() {
            Some(n) => self.number(dtype, n as f64),
            None => {
                let number = self.op(BuiltinOp::Size, &[], &[count.into()])?;
                self.cast(number, dtype)
            }
        }
    }

    /// Sums over the axes along which a value of that shape was broadcast.
    pub fn unbroadcast(&mut self, v: Value, shape: &[Dim]) -> Result<Value> {
        let wide = self.shape(v);
        if wide == shape {
            return Ok(v);
        }
        let extra = wide.len() - shape.len();
        let one = |d: &Dim| d.as_const() == Some(1);
        let over: Vec<usize> =
            (0..wide.len()).filter(|i| *i < extra || (one(&shape[i - extra]) && !one(&wide[*i]))).collect();
        let sum = self.sum(v, &over, true)?;
        self.reshape(sum, shape.to_vec())
    }

    /// Several values side by side.
    pub fn concat(&mut self, parts: &[Value], axis: usize) -> Result<Value> {
        match parts {
            [one] => Ok(*one),
            _ => self.op(BuiltinOp::Concat, parts, &[(axis as i64).into()]),
        }
    }

    /// Zeros of shape `[rows, ..]`, with the updates added at these rows.
    pub fn scatter_add(&mut self, rows: Dim, indices: Value, updates: Value) -> Result<Value> {
        let mut ty = self.ty(updates).clone();
        ty.shape[0] = rows;
        let zeros = self.full(&ty, 0.0)?;
        self.op(BuiltinOp::Scatter, &[zeros, indices, updates], &[AttrValue::Str("add".into())])
    }

    /// One axis instead of all.
    pub fn flat(&mut self, v: Value) -> Result<Value> {
        let whole = size(product(&self.ty(v).shape))?;
        self.reshape(v, vec![whole])
    }
}

/// A list of axes.
pub(super) fn axes(list: &[usize]) -> AttrValue {
    AttrValue::List(list.iter().map(|a| AttrValue::from(*a as i64)).collect())
}
