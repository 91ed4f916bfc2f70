//! Facts about a graph's values, for guards.
//!
//! In: a graph and the values that variables stand for. Out: answers to `shape(x)`, `const(x)` and
//! the like. Invariant: an answer is true of every run; an unknown fact is `None`.

use hypatia_dsl::ir::{AttrValue, Fact, VarId};
use hypatia_dsl::shape::{Dim, broadcast, product};
use hypatia_dsl::typing::Facts;

use super::{Env, Graph, NodeKind, Value};
use hypatia_tensor::tensor::Tensor;

/// The facts of the tensors that an environment binds.
pub struct GraphFacts<'a> {
    /// The graph that holds the values.
    pub graph: &'a Graph,
    /// What the variables stand for.
    pub env: &'a Env,
}

impl Facts for GraphFacts<'_> {
    fn fact(&self, fact: Fact, var: VarId) -> Option<AttrValue> {
        if fact == Fact::Count {
            return self.env.variadics.get(&var).map(|v| AttrValue::Dim(Dim::from(v.len() as i64)));
        }
        if fact == Fact::Shapes {
            let shape = |v: &Value| self.graph.fact(Fact::Shape, *v);
            return self.env.variadics.get(&var)?.iter().map(shape).collect::<Option<_>>().map(AttrValue::List);
        }
        let value = self.env.tensors.get(&var).copied();
        if fact == Fact::Present {
            return match value {
                Some(_) => Some(AttrValue::Bool(true)),
                None => self.env.absent.contains(&var).then_some(AttrValue::Bool(false)),
            };
        }
        if let Some(term) = self.env.terms.get(&var) {
            // A term has the broadcast shape of what it reads.
            let shapes = term.reads.iter().map(|v| self.graph.ty(*v).shape.clone());
            let shape = shapes.reduce(|a, b| broadcast(&a, &b).unwrap_or(a)).unwrap_or_default();
            return match fact {
                Fact::Shape => Some(AttrValue::List(shape.iter().cloned().map(AttrValue::Dim).collect())),
                Fact::Rank => Some(AttrValue::Dim(Dim::from(shape.len() as i64))),
                Fact::Numel => product(&shape).map(AttrValue::Dim),
                _ => None,
            };
        }
        self.graph.fact(fact, value?)
    }
}

impl Graph {
    /// A fact about a value; `None` if it is unknown.
    pub fn fact(&self, fact: Fact, value: Value) -> Option<AttrValue> {
        let ty = self.ty(value);
        Some(match fact {
            Fact::Shape => AttrValue::List(ty.shape.iter().cloned().map(AttrValue::Dim).collect()),
            Fact::DType => AttrValue::DType(ty.dtype),
            Fact::Rank => AttrValue::Dim(Dim::from(ty.shape.len() as i64)),
            Fact::Numel => AttrValue::Dim(product(&ty.shape)?),
            Fact::Const => AttrValue::Bool(self.is_const(value)),
            Fact::Value => AttrValue::Float(exact_splat(self.const_tensor(value)?)?),
            Fact::NonNegative => self.all_elements(value, |v| v >= 0.0)?,
            Fact::Positive => self.all_elements(value, |v| v > 0.0)?,
            Fact::Finite => self.all_elements(value, f64::is_finite)?,
            Fact::Uses => {
                let users = self.nodes.iter().filter(|n| n.operands.iter().flatten().any(|v| *v == value)).count();
                AttrValue::Dim(Dim::from(users as i64))
            }
            Fact::Present => AttrValue::Bool(true),
            Fact::Uniform => {
                let tensor = self.const_tensor(value).filter(|t| !t.shape().contains(&0))?;
                AttrValue::Bool(splat(tensor).is_some())
            }
            Fact::Count | Fact::Shapes => return None,
        })
    }

    /// The tensor of a constant node.
    pub fn const_tensor(&self, value: Value) -> Option<&Tensor> {
        match &self.nodes[value.node.index()].kind {
            NodeKind::Const(t) => Some(t),
            _ => None,
        }
    }

    /// True if the value depends on no input.
    pub fn is_const(&self, value: Value) -> bool {
        let mut seen = vec![false; value.node.index() + 1];
        let mut work = vec![value.node];
        while let Some(id) = work.pop() {
            if std::mem::replace(&mut seen[id.index()], true) {
                continue;
            }
            let node = &self.nodes[id.index()];
            if matches!(node.kind, NodeKind::Input { .. }) {
                return false;
            }
            work.extend(node.operands.iter().flatten().map(|v| v.node));
        }
        true
    }

    fn all_elements(&self, value: Value, holds: impl Fn(f64) -> bool) -> Option<AttrValue> {
        let tensor = self.const_tensor(value)?;
        Some(AttrValue::Bool(tensor.to_f64().into_iter().all(holds)))
    }
}

/// The number that all elements equal, compared bit by bit; `None` if they differ or there are no
/// elements.
pub fn splat(tensor: &Tensor) -> Option<f64> {
    let size = tensor.dtype().size();
    let mut elements = tensor.bytes().chunks_exact(size);
    let first = elements.next()?;
    if !elements.all(|e| e == first) {
        return None;
    }
    let one = Tensor::from_bytes(tensor.dtype(), &[], first)?;
    one.to_f64().first().copied()
}

/// The same, if f64 holds it: a number that is rounded may compare otherwise.
pub fn exact_splat(tensor: &Tensor) -> Option<f64> {
    let value = splat(tensor)?;
    let back = Tensor::from_f64(tensor.dtype(), &[], &[value])?;
    let first = tensor.bytes().get(..back.bytes().len())?;
    (back.bytes() == first).then_some(value)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use hypatia_dsl::dtype::DType;

    /// 2^53 is a number of f64, and 2^53 + 1 is none.
    #[test]
    fn integers_beyond_f64_have_no_value() {
        let of = |n: i64| Tensor::from_bytes(DType::I64, &[2], [n, n].map(i64::to_le_bytes).as_flattened()).unwrap();
        let near = 1i64 << 53;
        assert_eq!(exact_splat(&of(near)), Some(near as f64));
        assert_eq!(exact_splat(&of(near + 1)), None);
        assert!(splat(&of(near + 1)).is_some());
    }
}
