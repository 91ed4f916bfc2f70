//! Gradients of graphs: reverse-mode differentiation.
//!
//! In: a graph, the names of outputs, the names of inputs. Out: the same graph, with the gradients
//! of these inputs as further outputs. Ops without `grad` are replaced by their bodies first, so an
//! op of a user has a gradient as soon as its body has one; scalars have theirs from their `grad`
//! or from their body. Invariant: a gradient has the type of the input that it belongs to, and a
//! value on which nothing depends costs no node.
//!
//! Products and sums of f16 and bf16 are rounded as in the forward direction. A derivative of more
//! than one operation is computed in f32 and rounded once, as one kernel of a framework does.
//! Source: A. Griewank and A. Walther, "Evaluating Derivatives", 2nd edition, SIAM 2008, chapter 3.

mod conv;
mod emit;
mod index;
mod products;
mod reductions;
mod scalars;
mod views;
mod written;

use std::collections::HashMap;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::ir::{AttrValue, OpBody};
use hypatia_dsl::scalar::Term;
use hypatia_dsl::spell::closest;
use hypatia_tensor::error::{Error, Result};

use self::emit::Emit;
use super::{Graph, NodeId, NodeKind, Value};

impl Graph {
    /// The graph with a further output for each of `params`, which are inputs: the gradient of the
    /// output `loss` by it, called `NAME.grad`. A loss has one element.
    ///
    /// # Errors Names that the graph lacks, a loss that is no single float, a parameter that is no
    /// float, and ops without a gradient (`scatter` with "mul", "min" or "max") where the loss
    /// depends on them.
    ///
    /// ```
    /// use hypatia::DType;
    /// use hypatia::GraphBuilder;
    /// use hypatia::{Model, Options};
    /// use hypatia::{Tensor, rules, shape};
    ///
    /// let g = GraphBuilder::new(rules::load(&[])?);
    /// let x = g.input("x", DType::F32, shape![2]);
    /// let w = g.input("w", DType::F32, shape![2]);
    /// g.output("loss", (x * w).tanh().sum(&[0], false));
    /// let graph = g.finish()?.grad("loss", &["w"])?;
    ///
    /// let of = |values: [f32; 2]| Tensor::from_slice(&[2], &values).unwrap();
    /// let inputs = [("x".to_string(), of([1.0, -2.0])), ("w".to_string(), of([0.0, 0.0]))];
    /// let results = Model::new(graph, Options::default()).run(&inputs)?;
    /// assert_eq!(results[1].to_f64(), [1.0, -2.0]);
    /// # Ok::<(), hypatia::Error>(())
    /// ```
    pub fn grad(&self, loss: &str, params: &[&str]) -> Result<Graph> {
        let mut graph = self.inlined_for_gradients()?;
        let of = output(&graph, loss)?;
        let ty = graph.ty(of).clone();
        if !ty.dtype.computes_in_floats() || ty.shape.iter().any(|d| d.as_const() != Some(1)) {
            return Err(Error::Input(format!(
                "the loss `{loss}` is {ty}: a loss is one number, for example a mean over all axes"
            )));
        }
        let by = params.iter().map(|name| parameter(&graph, name)).collect::<Result<Vec<_>>>()?;
        let mut backward = Backward::new(&mut graph, &by);
        let one = backward.emit.full(&ty, 1.0)?;
        backward.add(of, one)?;
        let found = backward.run(&by)?;
        finish(graph, params, found)
    }

    /// The graph with an input for each of `outputs`, called `NAME.grad`: the gradient of something
    /// by that output; and with a further output for each of `params`, the gradient of the same by
    /// it (a vector-Jacobian product).
    ///
    /// # Errors
    /// As [`Graph::grad`], but outputs have any shape.
    pub fn vjp(&self, outputs: &[&str], params: &[&str]) -> Result<Graph> {
        let mut graph = self.inlined_for_gradients()?;
        let of = outputs.iter().map(|name| output(&graph, name)).collect::<Result<Vec<_>>>()?;
        let by = params.iter().map(|name| parameter(&graph, name)).collect::<Result<Vec<_>>>()?;
        let mut given = Vec::with_capacity(of.len());
        for (name, value) in outputs.iter().zip(&of) {
            let ty = graph.ty(*value).clone();
            if !ty.dtype.computes_in_floats() {
                return Err(Error::Input(format!("the output `{name}` is {ty}: only floats have gradients")));
            }
            let called = format!("{name}.grad");
            if graph.input_named(&called).is_some() {
                return Err(Error::Input(format!("the graph has an input `{called}` already")));
            }
            given.push(graph.input(called, ty));
        }
        let mut backward = Backward::new(&mut graph, &by);
        for (value, gradient) in of.iter().zip(&given) {
            backward.add(*value, *gradient)?;
        }
        let found = backward.run(&by)?;
        finish(graph, params, found)
    }
}

/// The output of that name.
fn output(graph: &Graph, name: &str) -> Result<Value> {
    let found = graph.outputs.iter().find(|(n, _)| n == name);
    found.map(|(_, v)| *v).ok_or_else(|| unknown("output", name, graph.outputs.iter().map(|(n, _)| n.as_str())))
}

/// The input of that name, which has a gradient.
fn parameter(graph: &Graph, name: &str) -> Result<Value> {
    let name_of = |id: &NodeId| match &graph.node(*id).kind {
        NodeKind::Input { name } => name.as_str(),
        _ => "",
    };
    let found = graph.input_named(name);
    let Some(value) = found else { return Err(unknown("input", name, graph.inputs.iter().map(name_of))) };
    let ty = graph.ty(value);
    if !ty.dtype.computes_in_floats() {
        return Err(Error::Input(format!("the input `{name}` is {ty}: only floats have gradients")));
    }
    Ok(value)
}

fn unknown<'a>(what: &str, name: &str, names: impl Iterator<Item = &'a str> + Clone) -> Error {
    let near = closest(name, names.clone()).map_or_else(String::new, |n| format!("; did you mean `{n}`?"));
    let have: Vec<&str> = names.collect();
    Error::Input(format!("the graph has no {what} `{name}`: it has {}{near}", have.join(", ")))
}

/// Adds the gradients as outputs and drops what nothing needs.
fn finish(mut graph: Graph, params: &[&str], found: Vec<Value>) -> Result<Graph> {
    for (name, value) in params.iter().zip(found) {
        let called = format!("{name}.grad");
        if graph.outputs.iter().any(|(n, _)| *n == called) {
            return Err(Error::Input(format!("the graph has an output `{called}` already")));
        }
        graph.output(called, value);
    }
    let graph = graph.pruned();
    graph.validate()?;
    Ok(graph)
}

/// The reverse direction over the nodes that a graph has at the beginning.
struct Backward<'g> {
    emit: Emit<'g>,
    /// Whether the node depends on a parameter.
    wanted: Vec<bool>,
    /// The sum of the gradients of each value so far.
    found: HashMap<Value, Value>,
}

/// An op that is differentiated.
struct Applied {
    op: BuiltinOp,
    attrs: Vec<AttrValue>,
    term: Option<Term>,
    operands: Vec<Option<Value>>,
    /// Its results.
    results: Vec<Value>,
    /// The gradient of each result, if something depends on it.
    given: Vec<Option<Value>>,
}

impl Applied {
    /// An operand that is never absent.
    fn operand(&self, i: usize) -> Result<Value> {
        let there = self.operands.get(i).copied().flatten();
        there.ok_or_else(|| Error::Internal(format!("{} has no operand {i}", self.op.name())))
    }

    /// The gradient of the only result.
    fn gradient(&self) -> Result<Value> {
        let there = self.given.first().copied().flatten();
        there.ok_or_else(|| Error::Internal(format!("nothing depends on this {}", self.op.name())))
    }

    /// The list of whole numbers that is attribute `i`.
    fn ints(&self, i: usize) -> Result<Vec<i64>> {
        let number = |v: &AttrValue| match v {
            AttrValue::Dim(d) => d.as_const(),
            _ => None,
        };
        let list = match self.attrs.get(i) {
            Some(AttrValue::List(l)) => l.iter().map(number).collect::<Option<Vec<i64>>>(),
            Some(v) => number(v).map(|n| vec![n]),
            None => None,
        };
        list.ok_or_else(|| Error::Type(format!("attribute {i} of {} must be known", self.op.name()).into()))
    }

    /// The whole number that is attribute `i`.
    fn int(&self, i: usize) -> Result<i64> {
        let list = self.ints(i)?;
        list.first().copied().ok_or_else(|| Error::Internal(format!("{} has no attribute {i}", self.op.name())))
    }

    /// The axis that is attribute `i`.
    fn axis(&self, i: usize, rank: usize) -> Result<usize> {
        let axis = self.int(i)?;
        let at = if axis < 0 { axis + rank as i64 } else { axis };
        usize::try_from(at).map_err(|_| Error::Internal(format!("axis {axis} of rank {rank}")))
    }

    /// The flag that is attribute `i`.
    fn flag(&self, i: usize) -> bool {
        matches!(self.attrs.get(i), Some(AttrValue::Bool(true)))
    }
}

impl<'g> Backward<'g> {
    fn new(graph: &'g mut Graph, by: &[Value]) -> Backward<'g> {
        let mut wanted = vec![false; graph.nodes.len()];
        by.iter().for_each(|v| wanted[v.node.index()] = true);
        for (i, node) in graph.nodes.iter().enumerate() {
            let depends = node.operands.iter().flatten().any(|v| wanted[v.node.index()]);
            wanted[i] |= depends && node.results.iter().any(|t| t.dtype.computes_in_floats());
        }
        Backward { emit: Emit::new(graph), wanted, found: HashMap::new() }
    }

    /// True if the gradient of that value is needed.
    fn wants(&self, value: Value) -> bool {
        self.wanted.get(value.node.index()) == Some(&true) && self.emit.ty(value).dtype.computes_in_floats()
    }

    /// Adds to the gradient of a value, which has the type of that value.
    fn add(&mut self, value: Value, gradient: Value) -> Result<()> {
        if !self.wants(value) {
            return Ok(());
        }
        if self.emit.ty(value) != self.emit.ty(gradient) {
            let (have, need) = (self.emit.ty(gradient), self.emit.ty(value));
            return Err(Error::Internal(format!("a gradient {have} of a value {need}")));
        }
        let sum = match self.found.get(&value) {
            Some(before) => self.emit.add(*before, gradient)?,
            None => gradient,
        };
        self.found.insert(value, sum);
        Ok(())
    }

    /// Goes through all nodes, the last one first. Returns the gradients of `by`: zeros where
    /// nothing depends on one.
    fn run(mut self, by: &[Value]) -> Result<Vec<Value>> {
        for i in (0..self.wanted.len()).rev() {
            if !self.wanted[i] {
                continue;
            }
            let node = self.emit.graph().nodes[i].clone();
            let results = self.emit.graph().results(NodeId(i as u32));
            let given: Vec<Option<Value>> = results.iter().map(|v| self.found.get(v).copied()).collect();
            if given.iter().all(Option::is_none) {
                continue;
            }
            let begin = self.emit.graph().nodes.len();
            let done = match node.kind {
                NodeKind::Input { .. } | NodeKind::Const(_) => Ok(()),
                NodeKind::Scalar(scalar) => {
                    let operands: Vec<Value> = node.operands.iter().flatten().copied().collect();
                    given[0].map_or(Ok(()), |gradient| self.scalar(scalar, &operands, results[0], gradient))
                }
                NodeKind::Op { op, attrs, term } => match self.emit.graph().program.op(op).body {
                    OpBody::Builtin(op) => {
                        self.op(&Applied { op, attrs, term, operands: node.operands, results, given })
                    }
                    OpBody::Defined(_) => self.written(op, &node.operands, &attrs, &results, &given),
                },
            };
            done.map_err(|e| match e {
                Error::Type(m) if !node.name.is_empty() => Error::Type(m.at(format_args!("node `{}`", node.name))),
                e => e,
            })?;
            self.emit.name_from(begin, &node.name);
        }
        let mut gradients = Vec::with_capacity(by.len());
        for value in by {
            gradients.push(match self.found.get(value) {
                Some(gradient) => *gradient,
                None => {
                    let ty = self.emit.ty(*value).clone();
                    self.emit.full(&ty, 0.0)?
                }
            });
        }
        Ok(gradients)
    }

    /// The gradients of a builtin op's operands.
    fn op(&mut self, a: &Applied) -> Result<()> {
        use BuiltinOp::*;
        match a.op {
            Matmul => self.matmul(a),
            Gemm | Gemm2 | ConvGemm => self.epilogue(a),
            Conv => self.conv(a),
            Windows => self.windows(a),
            Cast => self.cast(a),
            Reshape => self.reshape(a),
            Transpose => self.transpose(a),
            Expand => self.expand(a),
            Slice => self.slice(a),
            Concat => self.concat(a),
            Split => self.split(a),
            Pad => self.pad(a),
            Gather => self.gather(a),
            GatherElements => self.gather_elements(a),
            GatherNd => self.gather_nd(a),
            Scatter => self.scatter(a),
            Sum => self.sum(a),
            Mean => self.mean(a),
            Amax | Amin => self.extreme(a),
            Prod => self.prod(a),
            Cumsum => self.cumsum(a),
            // Indices and sizes do not change with the values.
            Argmax | Argsort | Iota | Full | Size => Ok(()),
        }
    }
}
