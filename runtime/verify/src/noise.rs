//! A graph decomposed into single operations, with a little noise after each.
//!
//! In: a concrete graph, a noise size, a seed. Out: a graph over f64 in which gemm epilogues and
//! defined scalars are separate nodes. Every result and number that a device would round is
//! multiplied by 1 + u * r, with r random in [-1, -1/3] or [1/3, 1]. The scatter of its outputs
//! shows how much of a difference rounding explains (stochastic arithmetic). Sums and products of
//! whole numbers get no noise: no type rounds them while they are small. Invariant: with u = 0 it
//! computes what the graph computes in Exact mode.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::{DType, Kind};
use hypatia_dsl::ir::{AttrValue, OpBody, ScalarBody, ScalarId};
use hypatia_dsl::scalar::{Term, TermId, TermNode};
use hypatia_dsl::typing::TensorType;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::folded_call::{beside_product, folded, is_product};
use hypatia_graph::instantiate::Numbers;
use hypatia_graph::{Graph, Node, NodeId, NodeKind, Value, constant_nodes, is_exact, rounds};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

/// What noise a graph gets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Noise {
    /// Relative to each result.
    pub size: f64,
    /// Sums and products also get noise of that size of the sum of their terms' absolute values:
    /// each partial sum is rounded, and terms may cancel.
    pub in_sums: bool,
}

impl Noise {
    /// After each operation, of that size.
    pub fn of_results(size: f64) -> Noise {
        Noise { size, in_sums: false }
    }
}

/// A noisy graph of f64 nodes, with the same inputs (converted to f64) and outputs. A constant that
/// stands for a literal holds the unrounded number.
pub fn noisy_graph(graph: &Graph, numbers: &Numbers, noise: Noise, seed: u64) -> Result<Graph> {
    let (graph, mut more) = graph.inlined_with_numbers()?;
    more.extend(numbers);
    let out = Graph::new(graph.program.clone());
    let rng = ChaCha8Rng::seed_from_u64(seed);
    let mut e = NoisyGraph {
        from: &graph,
        out,
        noise,
        rng,
        map: Vec::new(),
        numbers: more,
        in_f64: false,
        whole: HashSet::new(),
    };
    let compared = only_compared(&graph);
    let weights = computed_weights(&graph);
    for (i, node) in graph.nodes.iter().enumerate() {
        let mut results = e.node(node, compared[i])?;
        if let (Some(v), true) = (results.first_mut(), weights[i]) {
            *v = e.weight(Value { node: NodeId(i as u32), output: 0 }, *v)?;
        }
        e.map.push(results);
    }
    let NoisyGraph { mut out, map, .. } = e;
    for (name, v) in &graph.outputs {
        out.output(name.clone(), map[v.node.index()][v.output as usize]);
    }
    Ok(out)
}

/// The tensor converted to f64 if it holds floats.
pub fn widened(t: &Tensor) -> Tensor {
    if t.dtype().is_float() {
        Tensor::from_f64(DType::F64, t.shape(), &t.to_f64()).unwrap_or_else(|| t.clone())
    } else {
        t.clone()
    }
}

/// For each node, whether only comparisons use it.
fn only_compared(graph: &Graph) -> Vec<bool> {
    let mut other = vec![false; graph.nodes.len()];
    let mut compared = vec![false; graph.nodes.len()];
    for node in &graph.nodes {
        let to = match &node.kind {
            NodeKind::Scalar(s) if compares(graph, *s) => &mut compared,
            _ => &mut other,
        };
        node.operands.iter().flatten().for_each(|v| to[v.node.index()] = true);
    }
    graph.outputs.iter().for_each(|(_, v)| other[v.node.index()] = true);
    compared.into_iter().zip(other).map(|(c, o)| c && !o).collect()
}

/// For each node, whether it is a function of constants that becomes a weight: an operand of a
/// product.
fn computed_weights(graph: &Graph) -> Vec<bool> {
    let constant = constant_nodes(graph);
    let mut weight = vec![false; graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        let multiplies = match &node.kind {
            NodeKind::Op { op, .. } => matches!(graph.program.op(*op).body, OpBody::Builtin(b) if b.multiplies()),
            _ => false,
        };
        if multiplies || weight[i] {
            node.operands.iter().flatten().for_each(|v| weight[v.node.index()] |= constant[v.node.index()]);
        }
    }
    let computes = |i: usize| {
        matches!(graph.nodes[i].kind, NodeKind::Scalar(_))
            || is_product(graph, Value { node: NodeId(i as u32), output: 0 })
    };
    weight.into_iter().enumerate().map(|(i, w)| w && constant[i] && computes(i)).collect()
}

fn compares(graph: &Graph, scalar: ScalarId) -> bool {
    use BuiltinScalar::*;
    matches!(graph.program.scalar(scalar).body, ScalarBody::Builtin(Eq | Lt | Le))
}

struct NoisyGraph<'a> {
    from: &'a Graph,
    out: Graph,
    noise: Noise,
    rng: ChaCha8Rng,
    map: Vec<Vec<Value>>,
    numbers: Numbers,
    /// The current node works in f64, which holds every number unrounded.
    in_f64: bool,
    /// Floats of the new graph that are whole numbers.
    whole: HashSet<Value>,
}

fn wide(d: DType) -> DType {
    if d.is_float() { DType::F64 } else { d }
}

impl NoisyGraph<'_> {
    /// `compared`: only comparisons use the node.
    fn node(&mut self, node: &Node, compared: bool) -> Result<Vec<Value>> {
        let operands: Vec<Option<Value>> =
            node.operands.iter().map(|v| v.map(|v| self.map[v.node.index()][v.output as usize])).collect();
        self.in_f64 = node.operands.iter().flatten().any(|v| self.from.ty(*v).dtype == DType::F64);
        match &node.kind {
            NodeKind::Input { name } => {
                let ty = &node.results[0];
                let ty = TensorType { dtype: wide(ty.dtype), shape: ty.shape.clone() };
                Ok(vec![self.out.input(name.clone(), ty)])
            }
            NodeKind::Const(t) => {
                let number = self.numbers.get(&(Arc::as_ptr(t) as usize)).filter(|_| t.dtype().is_float());
                let exact = number.and_then(|v| Tensor::from_f64(DType::F64, t.shape(), &vec![*v; t.len()]));
                let rounded = number.is_some_and(|v| t.dtype().round(*v) != *v || (!is_short(*v) && !compared));
                let value = self.out.constant(exact.unwrap_or_else(|| widened(t)));
                if number.is_none_or(|v| v.fract() == 0.0) && t.to_f64().iter().all(|v| v.fract() == 0.0) {
                    self.whole.insert(value);
                }
                // Every device rounds a number that its type cannot hold, and a number with many
                // digits was rounded when it was written. But `x == 0.3` in f64 means exactly that
                // f64: noise on it would excuse any behaviour of a rule there.
                Ok(vec![if rounded { self.noisy(value)? } else { value }])
            }
            NodeKind::Scalar(s) => {
                let args: Vec<Value> = operands.into_iter().flatten().collect();
                Ok(vec![self.call(*s, &args)?])
            }
            NodeKind::Op { op, attrs, term } => {
                let builtin = match self.from.program.op(*op).body {
                    OpBody::Builtin(b) => b,
                    OpBody::Defined(_) => return Err(Error::Internal("a defined op was not inlined".into())),
                };
                let mut attrs: Vec<AttrValue> = attrs
                    .iter()
                    .map(|a| match a {
                        AttrValue::DType(d) => AttrValue::DType(wide(*d)),
                        a => a.clone(),
                    })
                    .collect();
                match (term, builtin.accumulator()) {
                    (Some(term), Some(accumulator)) => {
                        attrs.pop();
                        Ok(vec![self.carrier(node, (accumulator, attrs), term, &operands)?])
                    }
                    _ => {
                        let results = self.out.op(*op, &operands, attrs.clone(), None)?;
                        if !rounds(builtin, &attrs) {
                            let whole = |e: &Self, v: &Value| !e.out.ty(*v).dtype.is_float() || e.whole.contains(v);
                            if operands.iter().flatten().all(|v| whole(self, v)) {
                                self.whole.extend(&results);
                            }
                            return Ok(results);
                        }
                        let terms = operands.into_iter().flatten().collect::<Vec<_>>();
                        let summed = |e: &mut Self, v| e.summed(v, builtin, &terms, &attrs).and_then(|v| e.noisy(v));
                        results.into_iter().map(|v| summed(self, v)).collect()
                    }
                }
            }
        }
    }

    /// The bare accumulator, then its epilogue.
    fn carrier(
        &mut self,
        node: &Node,
        (accumulator, attrs): (BuiltinOp, Vec<AttrValue>),
        term: &Term,
        operands: &[Option<Value>],
    ) -> Result<Value> {
        let split = self.from.tensor_operands(node);
        let mut product: Vec<Value> = operands[..split].iter().flatten().copied().collect();
        // Integers of 8 bits are summed in i32.
        for factor in &mut product {
            let dtype = self.out.ty(*factor).dtype;
            *factor = self.cast(*factor, wide(dtype.accumulator()))?;
        }
        let mut reads: Vec<Value> = operands[split..].iter().flatten().copied().collect();
        let mut term = Cow::Borrowed(term);
        if self.from.is_pair(node)
            && let Some(right) = product.pop()
        {
            let of = [product[0], right];
            let second = self.out.builtin(accumulator, &of, attrs.clone())?[0];
            let second = self.summed(second, accumulator, &of, &attrs)?;
            term = Cow::Owned(term.reading_second(reads.len() as u32));
            reads.push(self.noisy(second)?);
        }
        let acc = self.out.builtin(accumulator, &product, attrs.clone())?[0];
        let acc = self.summed(acc, accumulator, &product, &attrs)?;
        let acc = self.noisy(acc)?;
        let result = self.term(&term, &[], Some(acc), &reads)?;
        // The shape of a term without `acc` may be smaller than the result's.
        let wanted = &node.results[0];
        let mut result = self.cast(result, wide(wanted.dtype))?;
        if self.out.ty(result).shape != wanted.shape {
            let shape = wanted.shape.iter().cloned().map(AttrValue::Dim).collect();
            result = self.out.builtin(BuiltinOp::Expand, &[result], vec![AttrValue::List(shape)])?[0];
        }
        self.noisy(result)
    }

    fn call(&mut self, scalar: ScalarId, args: &[Value]) -> Result<Value> {
        let program = self.from.program.clone();
        match &program.scalar(scalar).body {
            ScalarBody::Builtin(f) => {
                let v = self.out.scalar(scalar, args)?;
                use BuiltinScalar::{Add, Ceil, Floor, Mul, Round, Sub, Trunc};
                let float = |v: &Value| self.out.ty(*v).dtype.is_float();
                let all = args.iter().all(|v| !float(v) || self.whole.contains(v));
                match f {
                    Add | Sub | Mul if all && self.is_noisy(v) => {
                        // Noise stays where numbers are too large to be whole.
                        let v = self.noisy(v)?;
                        let v = self.out.builtin_scalar(Round, &[v])?;
                        self.whole.insert(v);
                        Ok(v)
                    }
                    f if is_exact(*f) => {
                        if all || matches!(f, Round | Floor | Ceil | Trunc) {
                            self.whole.insert(v);
                        }
                        Ok(v)
                    }
                    _ => self.noisy(v),
                }
            }
            ScalarBody::Term(term) => self.term(term, args, None, &[]),
        }
    }

    fn term(&mut self, term: &Term, params: &[Value], acc: Option<Value>, reads: &[Value]) -> Result<Value> {
        let broken = || Error::Internal("a term is not in order".into());
        let of = self.types_in(term, params, acc, reads);
        let mut values: Vec<Value> = Vec::with_capacity(term.nodes.len());
        let mut numbers: HashMap<(u64, DType), Value> = HashMap::new();
        let compared = self.compared_in(term);
        for (i, node) in term.nodes.iter().enumerate() {
            let at = |id: &hypatia_dsl::scalar::TermId| values.get(id.0 as usize).copied().ok_or_else(broken);
            let value = match node {
                TermNode::Param(i) => *params.get(*i as usize).ok_or_else(broken)?,
                TermNode::Acc => acc.ok_or_else(broken)?,
                TermNode::Second => return Err(broken()),
                TermNode::In { input, .. } => *reads.get(*input as usize).ok_or_else(broken)?,
                TermNode::Lit(l) if compared[i] && self.in_f64 => self.out.number(of[i], l.0)?,
                TermNode::Lit(l) => match numbers.get(&(l.0.to_bits(), of[i])) {
                    Some(v) => *v,
                    None => {
                        let v = self.out.number(of[i], l.0)?;
                        if l.0.fract() == 0.0 {
                            self.whole.insert(v);
                        }
                        let v = if is_short(l.0) { v } else { self.noisy(v)? };
                        numbers.insert((l.0.to_bits(), of[i]), v);
                        v
                    }
                },
                TermNode::Call { scalar, args } => {
                    let args: Vec<Value> = args.iter().map(at).collect::<Result<_>>()?;
                    self.call(*scalar, &args)?
                }
                TermNode::Cast { to, arg } => {
                    let v = at(arg)?;
                    let v = self.cast(v, wide(*to))?;
                    self.noisy(v)?
                }
            };
            values.push(value);
        }
        term.roots.first().and_then(|r| values.get(r.0 as usize)).copied().ok_or_else(broken)
    }

    /// The element type of each node of a term. A number has that of what it is combined with.
    fn types_in(&self, term: &Term, params: &[Value], acc: Option<Value>, reads: &[Value]) -> Vec<DType> {
        let of = |v: Option<&Value>| v.map(|v| self.out.ty(*v).dtype);
        let is_number = |d: &DType| d.kind() == Kind::Number;
        let mut types: Vec<Option<DType>> = Vec::with_capacity(term.nodes.len());
        for node in &term.nodes {
            let arg = |id: &TermId| types.get(id.0 as usize).copied().flatten();
            types.push(match node {
                TermNode::Param(i) => of(params.get(*i as usize)),
                TermNode::Acc => of(acc.as_ref()),
                TermNode::In { input, .. } => of(reads.get(*input as usize)),
                TermNode::Call { scalar, .. } if self.from.program.scalar(*scalar).result == Kind::Bool => {
                    Some(DType::Bool)
                }
                TermNode::Call { args, .. } => args.iter().filter_map(arg).find(is_number),
                TermNode::Cast { to, .. } => Some(wide(*to)),
                TermNode::Lit(_) | TermNode::Second => None,
            });
        }
        // From each function to its arguments, the last one first.
        for node in term.nodes.iter().enumerate().rev() {
            let (i, TermNode::Call { args, .. }) = node else { continue };
            let own = args.iter().filter_map(|a| types[a.0 as usize]).find(is_number);
            let Some(own) = own.or(types[i].filter(is_number)) else { continue };
            args.iter().for_each(|a| {
                types[a.0 as usize].get_or_insert(own);
            });
        }
        let default = params.iter().chain(&acc).chain(reads).map(|v| self.out.ty(*v).dtype).find(is_number);
        types.into_iter().map(|t| t.or(default).unwrap_or(DType::F64)).collect()
    }

    /// For each node of a term, whether only comparisons use it.
    fn compared_in(&self, term: &Term) -> Vec<bool> {
        let mut other = vec![false; term.nodes.len()];
        let mut compared = other.clone();
        for node in &term.nodes {
            match node {
                TermNode::Call { scalar, args } if compares(self.from, *scalar) => {
                    args.iter().for_each(|a| compared[a.0 as usize] = true)
                }
                TermNode::Call { args, .. } => args.iter().for_each(|a| other[a.0 as usize] = true),
                TermNode::Cast { arg, .. } => other[arg.0 as usize] = true,
                _ => {}
            }
        }
        term.roots.iter().for_each(|r| other[r.0 as usize] = true);
        compared.into_iter().zip(other).map(|(c, o)| c && !o).collect()
    }

    fn cast(&mut self, v: Value, to: DType) -> Result<Value> {
        if self.out.ty(v).dtype == to {
            return Ok(v);
        }
        Ok(self.out.builtin(BuiltinOp::Cast, &[v], vec![AttrValue::DType(to)])?[0])
    }

    /// Weights that are computed before a run are only as precise as the largest weight that they
    /// are summed with (`hypatia_optimize::range_loss`). `of` is the value that `v` was made from.
    fn weight(&mut self, of: Value, v: Value) -> Result<Value> {
        if !self.is_noisy(v) {
            return Ok(v);
        }
        let beside = folded(self.from, of, |f| f.beside()).or_else(|| beside_product(self.from, of));
        let Some(beside) = beside else { return Ok(v) };
        self.add_noise(v, BuiltinScalar::Add, |i, r| beside.get(i).map_or(0.0, |b| b * r))
    }

    fn noisy(&mut self, v: Value) -> Result<Value> {
        if self.is_noisy(v) { self.add_noise(v, BuiltinScalar::Mul, |_, r| 1.0 + r) } else { Ok(v) }
    }

    /// A sum of products of these operands, with the noise of its partial sums.
    fn summed(&mut self, sum: Value, op: BuiltinOp, operands: &[Value], attrs: &[AttrValue]) -> Result<Value> {
        let sums =
            op.multiplies() || matches!(op, BuiltinOp::Sum | BuiltinOp::Mean | BuiltinOp::Cumsum | BuiltinOp::Scatter);
        if !self.noise.in_sums || !sums || !self.is_noisy(sum) {
            return Ok(sum);
        }
        let mut size = |v: &Value| match self.out.ty(*v).dtype.is_float() {
            true => self.out.builtin_scalar(BuiltinScalar::Abs, &[*v]),
            // Indices.
            false => Ok(*v),
        };
        let sizes: Vec<Value> = operands.iter().map(&mut size).collect::<Result<_>>()?;
        let all = self.out.builtin(op, &sizes, attrs.to_vec())?[0];
        let all = self.add_noise(all, BuiltinScalar::Mul, |_, r| r)?;
        self.out.builtin_scalar(BuiltinScalar::Add, &[sum, all])
    }

    fn is_noisy(&self, v: Value) -> bool {
        self.noise.size != 0.0 && self.out.ty(v).dtype == DType::F64
    }

    /// Combines a value with independent noise for each element, using this function.
    fn add_noise(&mut self, v: Value, by: BuiltinScalar, noise: impl Fn(usize, f64) -> f64) -> Result<Value> {
        let shape: Option<Vec<usize>> = self.out.ty(v).shape.iter().map(|d| d.as_const().map(|c| c as usize)).collect();
        let shape = shape.ok_or_else(|| Error::Internal("noise on a symbolic size".into()))?;
        let n = shape.iter().product();
        // Of either sign and never close to zero: a limit may hide one sign, and there are few
        // runs.
        let mut random = || {
            let r: f64 = self.rng.random_range(-1.0..=1.0);
            self.noise.size * (r + 0.5f64.copysign(r)) / 1.5
        };
        let noise: Vec<f64> = (0..n).map(|i| noise(i, random())).collect();
        let noise =
            Tensor::from_f64(DType::F64, &shape, &noise).ok_or_else(|| Error::Limit("a tensor is too large".into()))?;
        let noise = self.out.constant(Arc::new(noise));
        self.out.builtin_scalar(by, &[v, noise])
    }
}

/// True if a number in the graph's functions is none of those: it was rounded when it was written.
pub(super) fn has_long_numbers(graph: &Graph, numbers: &Numbers) -> bool {
    fn long_in(graph: &Graph, term: &Term) -> bool {
        term.nodes.iter().any(|n| match n {
            TermNode::Lit(l) => !is_short(l.0),
            TermNode::Call { scalar, .. } => long_of(graph, *scalar),
            _ => false,
        })
    }
    fn long_of(graph: &Graph, scalar: ScalarId) -> bool {
        matches!(&graph.program.scalar(scalar).body, ScalarBody::Term(t) if long_in(graph, t))
    }
    let Ok((graph, more)) = graph.inlined_with_numbers() else { return true };
    let long = |n: &Node| match &n.kind {
        NodeKind::Scalar(s) => long_of(&graph, *s),
        NodeKind::Op { term: Some(term), .. } => long_in(&graph, term),
        _ => false,
    };
    numbers.values().chain(more.values()).any(|v| !is_short(*v)) || graph.nodes.iter().any(long)
}

/// True for exact numbers: short binary fractions.
pub(super) fn is_short(v: f64) -> bool {
    v.is_infinite() || (v.abs() < 1048576.0 && (v * 1048576.0).fract() == 0.0)
}
