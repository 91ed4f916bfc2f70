//! The reference evaluator: what a graph means. Slow and obvious.
//!
//! In: a graph, and a tensor for each of its inputs. Out: one [`RefTensor`] for each of its
//! outputs. It reads nothing but the graph: no plan, no kernels, no blocks, so that it can judge
//! all of these. Invariant: a result has the type that the graph says; bad inputs are errors
//! that name them.
//!
//! [`Mode::Exact`] treats floats as real numbers, as well as f64 or [`Double`] can: nothing is
//! rounded, not even by a cast from one float type to another. So two graphs that are equal as real
//! functions give equal results, up to the error of that kind of numbers. A cast to an integer type
//! truncates in any mode.
//! [`Mode::Rounded`] is how a careful device computes: each scalar function in the compute type of
//! its operands (f32 for f32, f16 and bf16), sums in f64, the accumulator of a product rounded to
//! its compute type, and one rounding to the result's type at the end of each node.
//! [`Mode::Accumulated`] adds the roundings of the sums: two orders of a sum are then judged alike.

mod double;
mod matmul;
mod number;
mod ops;
mod reduce;
pub mod scalars;
mod value;
mod views;
mod window;

use std::collections::HashMap;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::OpBody;
use hypatia_dsl::scalar::{Term, TermNode};
use hypatia_dsl::shape::show_shape;

pub use double::Double;
use hypatia_graph::prim::{Prim, elements, sizes};
use hypatia_graph::{Graph, Node, NodeKind, Symbols, Value};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::memory;
use hypatia_tensor::tensor::Tensor;
pub use number::Number;
pub use value::{Data, RefTensor, Val, convert, wrap};

/// How floats are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Not at all: floats are real numbers, as well as their kind can represent them.
    Exact,
    /// As the element types say; sums are rounded once.
    Rounded,
    /// The same, but sums are rounded after each summand, to the type that they are computed in: as
    /// a device does that adds them one by one.
    Accumulated,
}

impl Mode {
    /// True if results are rounded to their element types.
    pub fn rounds(self) -> bool {
        self != Mode::Exact
    }

    /// A partial sum of elements of this type.
    fn partial<R: Number>(self, dtype: DType, sum: R) -> R {
        match self {
            Mode::Accumulated if dtype.is_float() => value::rounded(dtype.compute(), sum),
            _ => sum,
        }
    }
}

/// Evaluates a graph on these inputs, which may stand in any order.
pub fn evaluate(graph: &Graph, inputs: &[(String, Tensor)], mode: Mode) -> Result<Vec<RefTensor>> {
    evaluate_in(graph, inputs, mode)
}

/// The same in any kind of numbers.
pub fn evaluate_in<R: Number>(graph: &Graph, inputs: &[(String, Tensor)], mode: Mode) -> Result<Vec<RefTensor<R>>> {
    let by_name: HashMap<String, Tensor> = inputs.iter().cloned().collect();
    if by_name.len() != inputs.len() {
        let twice = inputs.iter().enumerate().find(|(i, (name, _))| inputs[..*i].iter().any(|(n, _)| n == name));
        let name = twice.map_or("", |(_, (n, _))| n);
        return Err(Error::Input(format!("input `{name}` is given twice")));
    }
    let symbols = graph.bind_symbols(&by_name)?;
    let defined = |n: &Node| match &n.kind {
        NodeKind::Op { op, .. } => matches!(graph.program.op(*op).body, OpBody::Defined(_)),
        _ => false,
    };
    if graph.nodes.iter().any(defined) {
        return Evaluator { graph: &graph.inlined()?, symbols, mode, live: 0 }.run(&by_name);
    }
    Evaluator { graph, symbols, mode, live: 0 }.run(&by_name)
}

struct Evaluator<'a> {
    graph: &'a Graph,
    symbols: Symbols,
    mode: Mode,
    live: usize,
}

impl Evaluator<'_> {
    fn run<R: Number>(&mut self, inputs: &HashMap<String, Tensor>) -> Result<Vec<RefTensor<R>>> {
        let graph = self.graph;
        let mut users = vec![0usize; graph.nodes.len()];
        for v in graph.nodes.iter().flat_map(|n| n.operands.iter().flatten()).chain(graph.outputs.iter().map(|o| &o.1))
        {
            if let Some(u) = users.get_mut(v.node.index()) {
                *u += 1;
            }
        }
        let mut values: Vec<Option<Vec<RefTensor<R>>>> = vec![None; graph.nodes.len()];
        for (i, node) in graph.nodes.iter().enumerate() {
            if users[i] == 0 {
                continue;
            }
            let results = self.node(node, inputs, &values).map_err(|e| in_node(e, node))?;
            self.live += results.iter().map(RefTensor::<R>::bytes).sum::<usize>();
            values[i] = Some(results);
            for v in node.operands.iter().flatten() {
                users[v.node.index()] -= 1;
                if users[v.node.index()] == 0
                    && let Some(dead) = values[v.node.index()].take()
                {
                    self.live -= dead.iter().map(RefTensor::<R>::bytes).sum::<usize>();
                }
            }
        }
        graph.outputs.iter().map(|(_, v)| operand(&values, *v).cloned()).collect()
    }

    fn types(&self, node: &Node) -> Result<Vec<(DType, Vec<usize>)>> {
        let lookup = |s: &str| self.symbols.get(s).copied();
        node.results.iter().map(|t| Ok((t.dtype, sizes(&t.shape, &lookup)?))).collect()
    }

    fn node<R: Number>(
        &self,
        node: &Node,
        inputs: &HashMap<String, Tensor>,
        values: &[Option<Vec<RefTensor<R>>>],
    ) -> Result<Vec<RefTensor<R>>> {
        let types = self.types(node)?;
        for (dtype, shape) in &types {
            let bytes = elements(shape)?.saturating_mul(8);
            let limit = memory::budget();
            if self.live.saturating_add(bytes) > limit {
                return Err(Error::Limit(format!(
                    "{dtype}{shape:?} takes more than the {} MiB that evaluation in f64 may use",
                    limit >> 20
                )));
            }
        }
        let args =
            node.operands.iter().map(|o| o.map(|v| operand(values, v)).transpose()).collect::<Result<Vec<_>>>()?;
        let results = match &node.kind {
            NodeKind::Input { name } => {
                let tensor = inputs.get(name).ok_or_else(|| Error::Internal(format!("input `{name}` is not bound")))?;
                vec![RefTensor::from_tensor(tensor)]
            }
            NodeKind::Const(t) => vec![RefTensor::from_tensor(t)],
            NodeKind::Scalar(scalar) => {
                let (dtype, shape) = first(&types)?;
                let args = present(&args)?;
                let term = Term::call(*scalar, args.len() as u32);
                vec![ops::pointwise(&self.graph.program, &term, None, &args, *dtype, shape, self.mode)?]
            }
            NodeKind::Op { op, attrs, term } => match &self.graph.program.op(*op).body {
                OpBody::Builtin(builtin) => {
                    let lookup = |s: &str| self.symbols.get(s).copied();
                    let shapes: Vec<&[usize]> = args.iter().flatten().map(|t| t.shape.as_slice()).collect();
                    let (_, result) = types.first().cloned().unwrap_or((DType::F32, Vec::new()));
                    let prim = Prim::read(*builtin, attrs, &lookup, &shapes, &result)?;
                    self.prim(&prim, term.as_ref(), &args, &types)?
                }
                OpBody::Defined(_) => return Err(Error::Internal("a defined op that was not inlined".into())),
            },
        };
        for (t, (dtype, shape)) in results.iter().zip(&types) {
            if t.dtype != *dtype || t.shape != *shape {
                let got = format!("{}{:?}", t.dtype, t.shape);
                return Err(Error::Internal(format!("evaluated to {got}, typed as {dtype}{shape:?}")));
            }
        }
        Ok(results)
    }

    /// The results of an op with these operands, of those types.
    fn prim<R: Number>(
        &self,
        prim: &Prim,
        term: Option<&Term>,
        args: &[Option<&RefTensor<R>>],
        types: &[(DType, Vec<usize>)],
    ) -> Result<Vec<RefTensor<R>>> {
        let mode = self.mode;
        let arg =
            |i: usize| args.get(i).copied().flatten().ok_or_else(|| Error::Internal(format!("operand {i} is absent")));
        if let Prim::Split { axis, sizes } = prim {
            return views::split(arg(0)?, *axis, sizes);
        }
        let (dtype, shape) = first(types)?;
        let one = match prim {
            Prim::Matmul => {
                let acc = matmul::matmul(arg(0)?, arg(1)?, *dtype, shape, mode)?;
                let mut out = rounded(rounded(acc, dtype.accumulator(), mode)?, *dtype, mode)?;
                out.dtype = *dtype;
                out
            }
            Prim::Gemm => {
                let acc = arg(0)?.dtype.accumulator();
                let acc = matmul::matmul(arg(0)?, arg(1)?, acc, shape, mode)?;
                self.epilogue(acc, term, &args[2..], *dtype)?
            }
            Prim::Gemm2 => self.pair([arg(0)?, arg(1)?, arg(2)?], term, &args[3..], (*dtype, shape))?,
            Prim::Conv { axes, groups } if term.is_some() => {
                let acc = arg(0)?.dtype.accumulator();
                let acc = window::conv(arg(0)?, arg(1)?, axes, *groups, acc, shape, mode)?;
                self.epilogue(acc, term, &args[2..], *dtype)?
            }
            Prim::Conv { axes, groups } => {
                let acc = window::conv(arg(0)?, arg(1)?, axes, *groups, *dtype, shape, mode)?;
                rounded(rounded(acc, dtype.accumulator(), mode)?, *dtype, mode)?
            }
            Prim::Windows(axes) => window::windows(arg(0)?, axes, shape)?,
            Prim::Cast(to) => ops::cast(arg(0)?, *to, mode)?,
            Prim::Reshape => views::reshape(arg(0)?, shape)?,
            Prim::Transpose(perm) => views::transpose(arg(0)?, perm)?,
            Prim::Expand => views::expand(arg(0)?, shape)?,
            Prim::Slice { axis, start, step } => views::slice(arg(0)?, *axis, *start, *step, shape[*axis])?,
            Prim::Concat(axis) => views::concat(&present(args)?, *axis, shape)?,
            Prim::Split { .. } => return Err(Error::Internal("split".into())),
            Prim::Pad(before) => {
                let fill = arg(1)?;
                let fill = if fill.is_empty() { Val::B(false) } else { fill.at(0) };
                views::pad(arg(0)?, fill, before, shape)?
            }
            Prim::Gather(axis) => views::gather(arg(0)?, arg(1)?, *axis, shape)?,
            Prim::GatherElements(axis) => views::gather_elements(arg(0)?, arg(1)?, *axis)?,
            Prim::GatherNd(batch) => views::gather_nd(arg(0)?, arg(1)?, *batch, shape)?,
            Prim::Reduce(kind, axes) => reduce::reduce(arg(0)?, *kind, axes, shape, mode)?,
            Prim::Cumsum(how) => reduce::cumsum(arg(0)?, *how, mode)?,
            Prim::Argmax { axis, last } => reduce::argmax(arg(0)?, *axis, *last, shape)?,
            Prim::Argsort(axis, descending) => reduce::argsort(arg(0)?, *axis, *descending)?,
            Prim::Scatter(reduction) => views::scatter(arg(0)?, arg(1)?, arg(2)?, *reduction, mode)?,
            Prim::Iota(axis) => ops::iota(*dtype, shape, *axis, mode)?,
            Prim::Full(value) => ops::full(*dtype, shape, *value)?,
            Prim::Size(value) => {
                let mut out = RefTensor::zeros(DType::I64, &[])?;
                out.set(0, Val::I(*value));
                out
            }
        };
        Ok(vec![one])
    }

    /// Two products of one left operand, through the term of both accumulators.
    fn pair<R: Number>(
        &self,
        [a, b, c]: [&RefTensor<R>; 3],
        term: Option<&Term>,
        reads: &[Option<&RefTensor<R>>],
        (dtype, shape): (DType, &[usize]),
    ) -> Result<RefTensor<R>> {
        let dtype_of_sums = a.dtype.accumulator();
        let acc = matmul::matmul(a, b, dtype_of_sums, shape, self.mode)?;
        let second = matmul::matmul(a, c, dtype_of_sums, shape, self.mode)?;
        let second = rounded(second, dtype_of_sums, self.mode)?;
        let term = term.map(|t| t.reading_second(reads.len() as u32));
        self.epilogue(acc, term.as_ref(), &[reads, &[Some(&second)]].concat(), dtype)
    }

    /// An accumulator, rounded to its type, through the term of its node.
    fn epilogue<R: Number>(
        &self,
        acc: RefTensor<R>,
        term: Option<&Term>,
        reads: &[Option<&RefTensor<R>>],
        dtype: DType,
    ) -> Result<RefTensor<R>> {
        let (acc_dtype, shape) = (acc.dtype, acc.shape.clone());
        let acc = rounded(acc, acc_dtype, self.mode)?;
        let plain = plain_term();
        let term = term.unwrap_or(&plain);
        ops::pointwise(&self.graph.program, term, Some(&acc), &present(reads)?, dtype, &shape, self.mode)
    }
}

/// Every element rounded once to the type, in Rounded mode.
fn rounded<R: Number>(mut t: RefTensor<R>, dtype: DType, mode: Mode) -> Result<RefTensor<R>> {
    if let (Data::F(v), true) = (&mut t.data, mode.rounds()) {
        v.iter_mut().for_each(|x| *x = value::rounded(dtype, *x));
    }
    Ok(t)
}

fn plain_term() -> Term {
    let mut t = Term::empty();
    let root = t.add(TermNode::Acc);
    t.roots.push(root);
    t
}

fn first(types: &[(DType, Vec<usize>)]) -> Result<&(DType, Vec<usize>)> {
    types.first().ok_or_else(|| Error::Internal("a node without results".into()))
}

fn present<'a, R: Number>(args: &[Option<&'a RefTensor<R>>]) -> Result<Vec<&'a RefTensor<R>>> {
    args.iter().map(|a| a.ok_or_else(|| Error::Internal("an operand is absent".into()))).collect()
}

fn operand<R: Number>(values: &[Option<Vec<RefTensor<R>>>], v: Value) -> Result<&RefTensor<R>> {
    let found = values.get(v.node.index()).and_then(|r| r.as_ref()).and_then(|r| r.get(v.output as usize));
    found.ok_or_else(|| Error::Internal(format!("a use of node {} before it was computed", v.node.0)))
}

/// Says at which node an error arose.
fn in_node(e: Error, node: &Node) -> Error {
    let shapes: Vec<String> = node.results.iter().map(|t| format!("{}{}", t.dtype, show_shape(&t.shape))).collect();
    let at = format!("node `{}` ({})", node.name, shapes.join(", "));
    match e {
        Error::Input(m) => Error::Input(format!("{at}: {m}")),
        Error::Type(m) => Error::Type(m.at(format_args!("{at}"))),
        Error::Limit(m) => Error::Limit(format!("{at}: {m}")),
        Error::Internal(m) => Error::Internal(format!("{at}: {m}")),
        e => e,
    }
}
