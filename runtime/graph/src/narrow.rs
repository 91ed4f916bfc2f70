//! Narrowing: runs an f32 graph in f16 or bf16.
//!
//! In: a graph whose bodies are folded back into named ops, and the narrower type. Out: a graph
//! with the same input and output types, and the names of what it still computes in f32. Invariant:
//! inputs and outputs keep their types. Values that were not f32 do not change. Constants out of
//! the type's range saturate to its largest value, as exporters do for masks.
//!
//! These stay in f32: sums, means and products over axes; functions that amplify small errors
//! (exponentials, logarithms, powers); values computed from integers (positions); and what such
//! values flow into, up to the next matrix product or named op. That op reads narrow values again,
//! and its kernel computes in f32 inside.

use std::collections::{BTreeMap, HashMap};

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, OpBody, ScalarBody};

use super::{Graph, Node, NodeId, NodeKind, Value};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

/// A graph in a narrower type.
pub struct Narrowed {
    /// The graph.
    pub graph: Graph,
    /// What is still computed in f32: each op or scalar with its number of occurrences.
    pub wide: BTreeMap<String, usize>,
    /// How many nodes are computed in the narrower type instead of f32. If there are none, the
    /// graph is unchanged.
    pub narrow: usize,
}

/// The type that a node computes in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Width {
    Narrow,
    Wide,
    /// Whatever its reader uses: it depends on constants alone, so casting it costs nothing at run
    /// time.
    Any,
}

impl Graph {
    /// The graph with f32 replaced by that type, f16 or bf16.
    ///
    /// # Errors If the type is neither of the two.
    pub fn narrowed(&self, to: DType) -> Result<Narrowed> {
        if !matches!(to, DType::F16 | DType::BF16) {
            return Err(Error::Input(format!("a model is narrowed to f16 or bf16, not to {to}")));
        }
        let out = Graph::new(self.program.clone());
        let mut n = Narrower {
            given: self,
            out,
            to,
            map: Vec::new(),
            widths: Vec::new(),
            constants: Vec::new(),
            casts: HashMap::new(),
        };
        let mut inputs = Vec::new();
        let mut wide = BTreeMap::new();
        let mut narrow = 0;
        for (i, node) in self.nodes.iter().enumerate() {
            let (values, width) = match &node.kind {
                NodeKind::Input { name } => {
                    let value = n.out.input(name.clone(), node.results[0].clone());
                    inputs.push(value.node);
                    (vec![n.narrow_input(value)?], Width::Narrow)
                }
                NodeKind::Const(t) => (vec![n.out.constant(t.clone())], Width::Any),
                NodeKind::Op { .. } | NodeKind::Scalar(_) => n.node(node)?,
            };
            if width == Width::Wide && values.iter().any(|v| n.out.ty(*v).dtype == DType::F32) {
                *wide.entry(self.head_name(NodeId(i as u32)).to_string()).or_insert(0) += 1;
            }
            let input = matches!(node.kind, NodeKind::Input { .. });
            if width == Width::Narrow && !input && node.results.iter().any(|ty| ty.dtype == DType::F32) {
                narrow += 1;
            }
            if let (Some(v), false) = (values.first(), node.name.is_empty()) {
                n.out.name_node(*v, node.name.clone());
            }
            let constant = !input && n.constant(node);
            n.constants.push(constant);
            n.map.push(values);
            n.widths.push(width);
        }
        if narrow == 0 {
            // Casts to the type and back would lose digits and gain nothing.
            return Ok(Narrowed { graph: self.clone(), wide, narrow });
        }
        n.out.inputs = inputs;
        for (name, v) in &self.outputs {
            let value = n.map[v.node.index()][v.output as usize];
            let value = n.cast(value, self.ty(*v).dtype)?;
            n.out.output(name.clone(), value);
        }
        Ok(Narrowed { graph: n.out.pruned(), wide, narrow })
    }
}

struct Narrower<'g> {
    given: &'g Graph,
    out: Graph,
    to: DType,
    map: Vec<Vec<Value>>,
    widths: Vec<Width>,
    /// Nodes that depend on constants alone, of any type.
    constants: Vec<bool>,
    casts: HashMap<(Value, DType), Value>,
}

impl Narrower<'_> {
    fn narrow_input(&mut self, value: Value) -> Result<Value> {
        if self.out.ty(value).dtype == DType::F32 { self.cast(value, self.to) } else { Ok(value) }
    }

    /// Casts a value to that type, once.
    fn cast(&mut self, value: Value, to: DType) -> Result<Value> {
        if self.out.ty(value).dtype == to {
            return Ok(value);
        }
        if let Some(done) = self.casts.get(&(value, to)) {
            return Ok(*done);
        }
        let cast = match &self.out.node(value.node).kind {
            NodeKind::Const(t) => {
                let tensor = within(t, to).ok_or_else(|| Error::Internal("a constant in a narrower type".into()))?;
                self.out.constant(tensor)
            }
            _ => self.out.builtin(BuiltinOp::Cast, &[value], vec![AttrValue::DType(to)])?[0],
        };
        self.casts.insert((value, to), cast);
        Ok(cast)
    }

    /// Builds a node in its preferred width.
    fn node(&mut self, node: &Node) -> Result<(Vec<Value>, Width)> {
        let floats: Vec<Width> = node
            .operands
            .iter()
            .flatten()
            .filter(|v| self.given.ty(**v).dtype == DType::F32)
            .map(|v| self.widths[v.node.index()])
            .collect();
        if let Some(passed) = self.float_cast(node) {
            return passed;
        }
        let width = match self.required(node) {
            // A value computed without floats is exact in f32, but not always in a narrower type.
            _ if self.constant(node) => Width::Any,
            _ if floats.is_empty() => Width::Wide,
            Some(width) => width,
            None if floats.contains(&Width::Wide) => Width::Wide,
            None => Width::Narrow,
        };
        match self.build(node, width) {
            // The op does not support the narrower type.
            Err(_) if width == Width::Narrow => Ok((self.build(node, Width::Wide)?, Width::Wide)),
            built => Ok((built?, width)),
        }
    }

    /// True if it depends on constants alone.
    fn constant(&self, node: &Node) -> bool {
        node.operands.iter().flatten().all(|v| self.constants[v.node.index()])
    }

    /// A cast of a float to f32 needs no node.
    fn float_cast(&self, node: &Node) -> Option<Result<(Vec<Value>, Width)>> {
        let [Some(x)] = node.operands[..] else { return None };
        let float = self.given.ty(x).dtype == DType::F32;
        let cast = self.builtin(node) == Some(BuiltinOp::Cast) && node.results[0].dtype == DType::F32;
        (cast && float).then(|| Ok((vec![self.value(x)], self.widths[x.node.index()])))
    }

    /// The width that an op requires, whatever it reads.
    fn required(&self, node: &Node) -> Option<Width> {
        match &node.kind {
            NodeKind::Scalar(s) => {
                let ScalarBody::Builtin(b) = self.given.program.scalar(*s).body else { return None };
                use BuiltinScalar::*;
                matches!(b, Exp | Expm1 | Log | Log1p | Pow | Sin | Cos).then_some(Width::Wide)
            }
            _ => match self.builtin(node) {
                Some(op) if op.multiplies() => Some(Width::Narrow),
                Some(BuiltinOp::Sum | BuiltinOp::Mean | BuiltinOp::Prod | BuiltinOp::Cumsum) => Some(Width::Wide),
                Some(_) => None,
                // Its kernel computes in f32 between load and store.
                None => Some(Width::Narrow),
            },
        }
    }

    fn builtin(&self, node: &Node) -> Option<BuiltinOp> {
        let NodeKind::Op { op, .. } = &node.kind else { return None };
        match self.given.program.op(*op).body {
            OpBody::Builtin(b) => Some(b),
            _ => None,
        }
    }

    fn value(&self, v: Value) -> Value {
        self.map[v.node.index()][v.output as usize]
    }

    fn build(&mut self, node: &Node, width: Width) -> Result<Vec<Value>> {
        let float = if width == Width::Narrow { self.to } else { DType::F32 };
        let mut operands = Vec::with_capacity(node.operands.len());
        for v in &node.operands {
            operands.push(match v {
                Some(v) if self.given.ty(*v).dtype == DType::F32 => Some(self.cast(self.value(*v), float)?),
                Some(v) => Some(self.value(*v)),
                None => None,
            });
        }
        match &node.kind {
            NodeKind::Op { op, attrs, term } => {
                let typed = |a: &AttrValue| match a {
                    AttrValue::DType(DType::F32) if !node.operands.is_empty() => AttrValue::DType(float),
                    other => other.clone(),
                };
                self.out.op(*op, &operands, attrs.iter().map(typed).collect(), term.clone())
            }
            NodeKind::Scalar(s) => Ok(vec![self.out.scalar(*s, &operands.into_iter().flatten().collect::<Vec<_>>())?]),
            NodeKind::Input { .. } | NodeKind::Const(_) => Err(Error::Internal("a leaf is not built".into())),
        }
    }
}

/// The tensor in a narrower type; finite numbers stay finite.
fn within(t: &Tensor, to: DType) -> Option<Tensor> {
    let most = to.largest();
    let values: Vec<f64> =
        t.to_f64().into_iter().map(|v| if v.is_finite() { v.clamp(-most, most) } else { v }).collect();
    Tensor::from_f64(to, t.shape(), &values)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use hypatia_testing::{program, ty};

    fn dtypes(g: &Graph, head: &str) -> Vec<DType> {
        let of = |i: usize| g.head_name(NodeId(i as u32)) == head;
        (0..g.nodes.len()).filter(|i| of(*i)).map(|i| g.nodes[i].results[0].dtype).collect()
    }

    #[test]
    fn products_and_what_stands_between_them_are_narrow_and_sums_are_not() {
        let mut g = Graph::new(program());
        let x = g.input("x", ty(DType::F32, &[4, 8]));
        let w = g.constant(Tensor::from_f64(DType::F32, &[8, 8], &[-3.4e38; 64]).unwrap());
        let y = g.builtin(BuiltinOp::Matmul, &[x, w], vec![]).unwrap()[0];
        let z = g.builtin_scalar(BuiltinScalar::Max, &[y, x]).unwrap();
        let axes = vec![AttrValue::List(vec![AttrValue::Dim((-1).into())]), AttrValue::Bool(true)];
        let mean = g.builtin(BuiltinOp::Mean, &[z], axes).unwrap()[0];
        let centred = g.builtin_scalar(BuiltinScalar::Sub, &[z, mean]).unwrap();
        let last = g.builtin(BuiltinOp::Matmul, &[centred, w], vec![]).unwrap()[0];
        g.output("y", last);
        let n = g.narrowed(DType::BF16).unwrap();
        n.graph.validate().unwrap();
        assert_eq!(dtypes(&n.graph, "matmul"), [DType::BF16; 2]);
        assert_eq!(dtypes(&n.graph, "max"), [DType::BF16]);
        assert_eq!((dtypes(&n.graph, "mean"), dtypes(&n.graph, "sub")), (vec![DType::F32], vec![DType::F32]));
        assert_eq!(n.wide, BTreeMap::from([("mean".to_string(), 1), ("sub".to_string(), 1)]));
        // Input and output types stay, and a mask's constant stays finite.
        let (input, output) = (n.graph.node(n.graph.inputs[0]), n.graph.ty(n.graph.outputs[0].1));
        assert_eq!((input.results[0].dtype, output.dtype), (DType::F32, DType::F32));
        let weights = n.graph.nodes.iter().find_map(|n| if let NodeKind::Const(t) = &n.kind { Some(t) } else { None });
        assert_eq!(weights.unwrap().to_f64()[0], -DType::BF16.largest());
        assert!(g.narrowed(DType::F64).is_err());
    }

    #[test]
    fn where_nothing_is_f32_nothing_changes() {
        let mut g = Graph::new(program());
        let x = g.input("x", ty(DType::F16, &[4]));
        let kept = g.input("kept", ty(DType::F32, &[4]));
        let y = g.builtin_scalar(BuiltinScalar::Add, &[x, x]).unwrap();
        g.output("y", y);
        g.output("kept", kept);
        let n = g.narrowed(DType::BF16).unwrap();
        assert_eq!((n.narrow, n.wide.is_empty()), (0, true));
        assert_eq!(n.graph.to_text(), g.to_text());
        let z = g.builtin_scalar(BuiltinScalar::Max, &[kept, kept]).unwrap();
        g.output("z", z);
        assert_eq!(g.narrowed(DType::BF16).unwrap().narrow, 1);
    }

    #[test]
    fn positions_stay_exact_and_constants_are_what_reads_them() {
        let mut g = Graph::new(program());
        let at = g.input("at", ty(DType::I64, &[16]));
        let x = g.input("x", ty(DType::F32, &[16]));
        let at = g.builtin(BuiltinOp::Cast, &[at], vec![AttrValue::DType(DType::F32)]).unwrap()[0];
        let step = g.number(DType::F32, 0.1).unwrap();
        let angle = g.builtin_scalar(BuiltinScalar::Mul, &[at, step]).unwrap();
        let half = g.builtin_scalar(BuiltinScalar::Mul, &[x, step]).unwrap();
        g.output("angle", angle);
        g.output("half", half);
        let n = g.narrowed(DType::F16).unwrap();
        assert_eq!(dtypes(&n.graph, "mul"), [DType::F32, DType::F16]);
    }
}
