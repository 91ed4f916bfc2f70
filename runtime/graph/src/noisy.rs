//! Noise: a graph whose results are moved as far as rounding might move them.
//!
//! In: a graph, and the errors that are claimed for some of its nodes. Out: the same graph with
//! inputs of its own for noise: each result that is rounded is multiplied by 1 plus noise, and a
//! sum is moved by noise times the sum of its terms' absolute values, for terms may cancel. A
//! result with a claimed error is moved by that error. How far the outputs scatter from run to run
//! says how much of a difference rounding, and what is claimed, explains. Invariant: with noise of
//! 0 the outputs are those of the graph. Floats that hold integers are computed without rounding,
//! and are not moved: a mask, a count or a position that moved would change its meaning.

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, ScalarBody, ScalarId};
use hypatia_dsl::scalar::TermNode;
use hypatia_dsl::typing::TensorType;
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

use super::kinds::{builtin, is_exact, rounds};
use super::replace::copy;
use super::{Graph, Node, NodeId, NodeKind, Value};

/// A graph with noise.
pub struct Noisy {
    /// The graph. Its inputs are those of the graph that it was made of, then the noise.
    pub graph: Graph,
    /// The noise, in the order of its inputs.
    pub noise: Vec<Noise>,
}

/// An input for noise, of rank 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    /// Its element type.
    pub dtype: DType,
    /// How far from 0 it may be.
    pub most: f64,
    /// The claim that it stands for; `None` for rounding. Errors of one claim may all have one
    /// sign.
    pub claim: Option<usize>,
}

/// An error that the results of a node may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClaimedError {
    /// The node.
    pub node: NodeId,
    /// The error relative to an element.
    pub rel: f64,
    /// What may be added to it.
    pub abs: f64,
    /// Which claim says so.
    pub claim: usize,
}

impl Graph {
    /// The graph with noise, for inputs of which these hold integers, and for nodes whose results
    /// may have these errors.
    ///
    /// # Errors
    /// If the graph cannot be inlined.
    pub fn noisy(&self, whole_inputs: &[bool], errors: &[ClaimedError]) -> Result<Noisy> {
        let Noisy { graph, noise: claimed } = self.with_errors(errors)?;
        let from = graph.inlined()?;
        let whole = whole_nodes(&from, whole_inputs);
        let mut out = WithNoise::new(&from);
        let mut map: Vec<Vec<Value>> = Vec::with_capacity(from.nodes.len());
        let mut given = from.inputs.clone();
        for (i, node) in from.nodes.iter().enumerate() {
            let operands: Vec<Option<Value>> =
                node.operands.iter().map(|v| v.map(|v| map[v.node.index()][v.output as usize])).collect();
            let results = copy(&mut out.graph, node, &operands)?;
            if let Some(at) = from.inputs.iter().position(|id| id.index() == i) {
                given[at] = results[0].node;
            }
            map.push(if whole[i] { results } else { out.moved(&from, node, &operands, results)? });
        }
        let made = out.done(&from, given, &map);
        Ok(Noisy { graph: made.graph, noise: [claimed, made.noise].concat() })
    }

    /// The graph with noise for claimed errors alone.
    fn with_errors(&self, errors: &[ClaimedError]) -> Result<Noisy> {
        if errors.is_empty() {
            return Ok(Noisy { graph: self.clone(), noise: Vec::new() });
        }
        let mut out = WithNoise::new(self);
        let mut map: Vec<Vec<Value>> = Vec::with_capacity(self.nodes.len());
        for (i, node) in self.nodes.iter().enumerate() {
            let operands: Vec<Option<Value>> =
                node.operands.iter().map(|v| v.map(|v| map[v.node.index()][v.output as usize])).collect();
            let mut results = copy(&mut out.graph, node, &operands)?;
            for error in errors.iter().filter(|e| e.node.index() == i) {
                results = results.into_iter().map(|v| out.with_error(v, error)).collect::<Result<_>>()?;
            }
            map.push(results);
        }
        let given = self.inputs.iter().map(|id| map[id.index()][0].node).collect();
        Ok(out.done(self, given, &map))
    }
}

struct WithNoise {
    graph: Graph,
    prefix: String,
    noise: Vec<Noise>,
}

impl WithNoise {
    /// An empty one, whose inputs for noise have names that this graph has not.
    fn new(from: &Graph) -> WithNoise {
        let mut prefix = "noise".to_string();
        let named = |prefix: &str| {
            from.nodes.iter().any(|n| matches!(&n.kind, NodeKind::Input { name } if name.starts_with(prefix)))
        };
        while named(&prefix) {
            prefix.push('_');
        }
        WithNoise { graph: Graph::new(from.program.clone()), prefix, noise: Vec::new() }
    }

    /// The whole graph. `given` are the inputs that stand for those of `from`, and `map` the values
    /// that stand for its nodes' results.
    fn done(self, from: &Graph, given: Vec<NodeId>, map: &[Vec<Value>]) -> Noisy {
        let WithNoise { mut graph, noise, .. } = self;
        let made: Vec<NodeId> = graph.inputs.iter().copied().filter(|id| !given.contains(id)).collect();
        graph.inputs = [given, made].concat();
        for (name, v) in &from.outputs {
            graph.output(name.clone(), map[v.node.index()][v.output as usize]);
        }
        Noisy { graph, noise }
    }

    /// A value moved by a claimed error.
    fn with_error(&mut self, v: Value, error: &ClaimedError) -> Result<Value> {
        let dtype = self.graph.ty(v).dtype;
        if !computes(dtype) {
            return Ok(v);
        }
        let claimed = |most| Noise { dtype, most, claim: Some(error.claim) };
        let (one, rel) = (self.graph.number(dtype, 1.0)?, self.noise(claimed(error.rel)));
        let factor = self.graph.builtin_scalar(BuiltinScalar::Add, &[one, rel])?;
        let moved = self.graph.builtin_scalar(BuiltinScalar::Mul, &[v, factor])?;
        let abs = self.noise(claimed(error.abs));
        self.graph.builtin_scalar(BuiltinScalar::Add, &[moved, abs])
    }

    /// The results of a node, moved if the node rounds them.
    fn moved(
        &mut self,
        from: &Graph,
        node: &Node,
        operands: &[Option<Value>],
        results: Vec<Value>,
    ) -> Result<Vec<Value>> {
        let rounded = match &node.kind {
            NodeKind::Input { .. } => true,
            NodeKind::Const(_) => false,
            NodeKind::Scalar(s) => !all_calls(from, *s, &is_exact),
            NodeKind::Op { attrs, .. } => builtin(from, node).is_some_and(|b| rounds(b, attrs)),
        };
        if !rounded {
            return Ok(results);
        }
        results.into_iter().map(|v| self.summed(from, node, operands, v).and_then(|v| self.multiplied(v))).collect()
    }

    /// A value times 1 plus noise.
    fn multiplied(&mut self, v: Value) -> Result<Value> {
        let dtype = self.graph.ty(v).dtype;
        if !computes(dtype) {
            return Ok(v);
        }
        let (one, noise) = (self.graph.number(dtype, 1.0)?, self.rounding(dtype));
        let factor = self.graph.builtin_scalar(BuiltinScalar::Add, &[one, noise])?;
        self.graph.builtin_scalar(BuiltinScalar::Mul, &[v, factor])
    }

    /// The result of a node that sums, moved by noise of the size of its terms.
    fn summed(&mut self, from: &Graph, node: &Node, operands: &[Option<Value>], sum: Value) -> Result<Value> {
        let NodeKind::Op { op, attrs, term: None } = &node.kind else { return Ok(sum) };
        let dtype = self.graph.ty(sum).dtype;
        let sums = builtin(from, node).is_some_and(|b| {
            b.multiplies() || matches!(b, BuiltinOp::Sum | BuiltinOp::Mean | BuiltinOp::Cumsum | BuiltinOp::Scatter)
        });
        if !sums || !computes(dtype) {
            return Ok(sum);
        }
        let mut size = |v: &Option<Value>| match v {
            Some(v) if self.graph.ty(*v).dtype.is_float() => {
                self.graph.builtin_scalar(BuiltinScalar::Abs, &[*v]).map(Some)
            }
            // Indices.
            v => Ok(*v),
        };
        let sizes: Vec<Option<Value>> = operands.iter().map(&mut size).collect::<Result<_>>()?;
        let all = self.graph.op(*op, &sizes, attrs.clone(), None)?;
        let all = *all.first().ok_or_else(|| Error::Internal("a sum without a result".into()))?;
        let noise = self.rounding(dtype);
        let all = self.graph.builtin_scalar(BuiltinScalar::Mul, &[all, noise])?;
        self.graph.builtin_scalar(BuiltinScalar::Add, &[sum, all])
    }

    /// One more input for the noise of rounding.
    fn rounding(&mut self, dtype: DType) -> Value {
        self.noise(Noise { dtype, most: dtype.epsilon(), claim: None })
    }

    /// One more input for noise.
    fn noise(&mut self, noise: Noise) -> Value {
        let name = format!("{}{}", self.prefix, self.noise.len());
        self.noise.push(noise);
        self.graph.input(name, TensorType { dtype: noise.dtype, shape: Vec::new() })
    }
}

/// True for floats that are computed with; 8-bit floats are only stored.
fn computes(dtype: DType) -> bool {
    matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16)
}

/// True if all builtins that a scalar calls have that property.
fn all_calls(graph: &Graph, scalar: ScalarId, property: &dyn Fn(BuiltinScalar) -> bool) -> bool {
    match &graph.program.scalar(scalar).body {
        ScalarBody::Builtin(f) => property(*f),
        ScalarBody::Term(term) => term.nodes.iter().all(|n| match n {
            TermNode::Call { scalar, .. } => all_calls(graph, *scalar, property),
            TermNode::Lit(l) => l.0.fract() == 0.0,
            TermNode::Param(_) => true,
            _ => false,
        }),
    }
}

/// True if all elements are integers.
pub fn is_whole(t: &Tensor) -> bool {
    !t.dtype().is_float() || t.to_f64().iter().all(|v| !v.is_finite() || v.fract() == 0.0)
}

/// For each node, whether its results hold integers alone. `inputs` says so of the inputs.
fn whole_nodes(graph: &Graph, inputs: &[bool]) -> Vec<bool> {
    use BuiltinScalar::*;
    let keeps = |f: BuiltinScalar| is_exact(f) || matches!(f, Add | Sub | Mul);
    let mut whole: Vec<bool> = Vec::with_capacity(graph.nodes.len());
    for (i, node) in graph.nodes.iter().enumerate() {
        let of_operands = node.operands.iter().flatten().all(|v| whole[v.node.index()]);
        let known = match &node.kind {
            NodeKind::Input { .. } => {
                graph.inputs.iter().position(|id| id.index() == i).and_then(|at| inputs.get(at)).is_some_and(|w| *w)
            }
            NodeKind::Const(t) => is_whole(t),
            NodeKind::Scalar(s) => match &graph.program.scalar(*s).body {
                ScalarBody::Builtin(Floor | Ceil | Round | Trunc | Sign) => true,
                _ => of_operands && all_calls(graph, *s, &keeps),
            },
            NodeKind::Op { attrs, term, .. } => match builtin(graph, node) {
                Some(BuiltinOp::Iota) => true,
                Some(BuiltinOp::Full) => attrs.iter().all(|a| !matches!(a, AttrValue::Float(v) if v.fract() != 0.0)),
                Some(BuiltinOp::Mean) | None => false,
                Some(_) => of_operands && term.is_none(),
            },
        };
        whole.push(known || node.results.iter().all(|t| !t.dtype.is_float()));
    }
    whole
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use hypatia_dsl::shape::Dim;
    use hypatia_library as library;

    /// Names of the scalars and the number of inputs for noise of `f(x)`.
    fn noise_of(whole: bool, f: impl FnOnce(&mut Graph, Value) -> Value) -> usize {
        let mut g = Graph::new(library::load(&[]).unwrap());
        let x = g.input("noise", TensorType { dtype: DType::F32, shape: vec![Dim::from(4)] });
        let y = f(&mut g, x);
        g.output("y", y);
        let noisy = g.noisy(&[whole], &[]).unwrap();
        assert_eq!(noisy.graph.inputs.len(), 1 + noisy.noise.len());
        assert_eq!(noisy.graph.ty(noisy.graph.outputs[0].1), g.ty(y));
        noisy.noise.len()
    }

    #[test]
    fn what_rounds_is_moved() {
        let twice = |g: &mut Graph, x| g.builtin_scalar(BuiltinScalar::Add, &[x, x]).unwrap();
        let largest = |g: &mut Graph, x| g.builtin_scalar(BuiltinScalar::Abs, &[x]).unwrap();
        let root = |g: &mut Graph, x| g.builtin_scalar(BuiltinScalar::Sqrt, &[x]).unwrap();
        let sum =
            |g: &mut Graph, x| g.call("sum", &[x], &[("axes", AttrValue::List(vec![AttrValue::from(0)]))]).unwrap()[0];
        assert_eq!([noise_of(false, twice), noise_of(false, largest), noise_of(false, sum)], [2, 1, 3]);
        // Integers stay what they are.
        assert_eq!([noise_of(true, twice), noise_of(true, sum), noise_of(true, root)], [0, 0, 1]);
    }

    #[test]
    fn claimed_errors_move_their_node() {
        let mut g = Graph::new(library::load(&[]).unwrap());
        let x = g.input("x", TensorType { dtype: DType::F32, shape: vec![Dim::from(4)] });
        let y = g.builtin_scalar(BuiltinScalar::Abs, &[x]).unwrap();
        g.output("y", y);
        let error = ClaimedError { node: y.node, rel: 0.1, abs: 0.2, claim: 3 };
        let Noisy { graph, noise } = g.noisy(&[false], &[error]).unwrap();
        let claims: Vec<f64> = noise.iter().filter(|n| n.claim == Some(3)).map(|n| n.most).collect();
        assert_eq!(claims, [0.1, 0.2]);
        assert_eq!(graph.inputs.len(), 1 + noise.len());
        assert_eq!(&noise[..2].iter().map(|n| n.claim).collect::<Vec<_>>(), &[Some(3); 2]);
        assert!(noise[2..].iter().all(|n| n.claim.is_none() && n.most == DType::F32.epsilon()));
    }
}
