//! Specialization: replaces symbolic sizes by numbers.
//!
//! In: a graph with symbolic sizes, and the shapes of the tensors it runs on. Out: the values of
//! the symbols, and the graph with concrete types throughout. Invariant: a shape that contradicts
//! another shape, or the graph, is an error that names the input and the axis.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::shape::{Dim, Shape, Symbol, show_shape};
use hypatia_dsl::typing::TensorType;

use super::{Graph, Kernels, Matched, NodeId, NodeKind, Region, Strategy, Value};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

/// Values of symbolic sizes.
pub type Symbols = BTreeMap<Symbol, i64>;

impl Graph {
    /// The symbols that occur in the types of the inputs, in order of first use.
    pub fn symbols(&self) -> Vec<Symbol> {
        let mut out: Vec<Symbol> = Vec::new();
        for id in &self.inputs {
            for symbol in self.node(*id).results[0].shape.iter().flat_map(Dim::symbols) {
                if !out.contains(&symbol) {
                    out.push(symbol);
                }
            }
        }
        out
    }

    /// Values of the symbols, from the input tensors. Checks names, dtypes, ranks and sizes.
    pub fn bind_symbols(&self, inputs: &HashMap<String, Tensor>) -> Result<Symbols> {
        let wanted: Vec<(&str, &TensorType)> = self
            .inputs
            .iter()
            .filter_map(|id| match &self.node(*id).kind {
                NodeKind::Input { name } => Some((name.as_str(), &self.node(*id).results[0])),
                _ => None,
            })
            .collect();
        let mut unknown: Vec<&String> = inputs.keys().filter(|k| !wanted.iter().any(|(n, _)| n == k)).collect();
        unknown.sort();
        if let Some(name) = unknown.first() {
            let names: Vec<&str> = wanted.iter().map(|(n, _)| *n).collect();
            return Err(Error::Input(format!("there is no input `{name}`; the inputs are {}", names.join(", "))));
        }
        let mut symbols = Symbols::new();
        let mut formulas = Vec::new();
        for (name, ty) in &wanted {
            let tensor = inputs.get(*name).ok_or_else(|| Error::Input(format!("input `{name}` ({ty}) is missing")))?;
            let got = TensorType {
                dtype: tensor.dtype(),
                shape: tensor.shape().iter().map(|&d| Dim::from(d as i64)).collect(),
            };
            if got.dtype != ty.dtype || got.shape.len() != ty.shape.len() {
                let hint = convert_hint(name, got.dtype, ty.dtype);
                return Err(Error::Input(format!("input `{name}` must be {ty}, but is {got}{hint}")));
            }
            for (axis, (dim, &size)) in ty.shape.iter().zip(tensor.shape()).enumerate() {
                let plain = dim.symbols().first().filter(|s| Dim::symbol((*s).clone()) == *dim).cloned();
                match plain {
                    Some(s) if !symbols.contains_key(&s) => {
                        symbols.insert(s, size as i64);
                    }
                    _ => formulas.push((*name, axis, dim, size as i64)),
                }
            }
        }
        for (name, axis, dim, size) in formulas {
            let expected = dim.eval(&|s| symbols.get(s).copied());
            if expected != Some(size) {
                let wanted = expected.map_or(format!("`{dim}`, which no input fixes"), |e| match dim.as_const() {
                    Some(_) => format!("{e}"),
                    None => format!("`{dim}` = {e}"),
                });
                return Err(Error::Input(format!("input `{name}`: axis {axis} has size {size}, but must be {wanted}")));
            }
        }
        Ok(symbols)
    }

    /// The graph with these symbols replaced by numbers, and all types inferred again.
    pub fn specialize(&self, symbols: &Symbols) -> Result<Graph> {
        let lookup = |s: &str| symbols.get(s).map(|v| Dim::from(*v));
        let mut out = Graph::new(self.program.clone());
        let mut map: Vec<NodeId> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let move_value = |v: &Value| Value { node: map[v.node.index()], output: v.output };
            let operands: Vec<Option<Value>> = node.operands.iter().map(|v| v.as_ref().map(move_value)).collect();
            let result = match &node.kind {
                NodeKind::Input { name } => {
                    let ty = &node.results[0];
                    let shape = substitute_shape(&ty.shape, &lookup)?;
                    Ok(out.input(name.clone(), TensorType { dtype: ty.dtype, shape }))
                }
                NodeKind::Const(t) => Ok(out.constant(t.clone())),
                NodeKind::Scalar(s) => out.scalar(*s, &operands.iter().flatten().copied().collect::<Vec<_>>()),
                NodeKind::Op { op, attrs, term } => {
                    let attrs = attrs.iter().map(|a| substitute_attr(a, &lookup)).collect::<Result<Vec<_>>>()?;
                    out.op(*op, &operands, attrs, term.clone()).map(|v| v[0])
                }
            };
            let value = result.map_err(|e| match (&e, node.name.as_str()) {
                (Error::Type(m), name) if !name.is_empty() => Error::Type(m.at(format_args!("node `{name}`"))),
                _ => e,
            })?;
            out.name_node(value, node.name.clone());
            out.nodes[value.node.index()].kernels = node.kernels.specialized(symbols, &lookup)?;
            map.push(value.node);
        }
        out.inputs = self.inputs.iter().map(|id| map[id.index()]).collect();
        for (name, v) in &self.outputs {
            out.output(name.clone(), Value { node: map[v.node.index()], output: v.output });
        }
        Ok(out)
    }
}

/// A numpy hint for an input of the wrong element type.
fn convert_hint(name: &str, got: DType, wanted: DType) -> String {
    let numpy = match wanted {
        _ if got == wanted => return String::new(),
        DType::F64 => "np.float64",
        DType::F32 => "np.float32",
        DType::F16 => "np.float16",
        DType::BF16 => "ml_dtypes.bfloat16",
        DType::F8E4M3 => "ml_dtypes.float8_e4m3fn",
        DType::F8E5M2 => "ml_dtypes.float8_e5m2",
        DType::I64 => "np.int64",
        DType::I32 => "np.int32",
        DType::I8 => "np.int8",
        DType::U8 => "np.uint8",
        DType::Bool => "np.bool_",
    };
    format!("; save it as {name}.astype({numpy})")
}

fn substitute_dim(dim: &Dim, lookup: &dyn Fn(&str) -> Option<Dim>) -> Result<Dim> {
    dim.substitute(lookup)
        .ok_or_else(|| Error::Input(format!("the size `{dim}` overflows or divides by zero for these inputs")))
}

fn substitute_shape(shape: &[Dim], lookup: &dyn Fn(&str) -> Option<Dim>) -> Result<Shape> {
    let shape: Shape = shape.iter().map(|d| substitute_dim(d, lookup)).collect::<Result<_>>()?;
    if shape.iter().any(|d| d.as_const().is_some_and(|c| c < 0)) {
        return Err(Error::Input(format!("these inputs give a negative size: {}", show_shape(&shape))));
    }
    Ok(shape)
}

fn substitute_attr(attr: &AttrValue, lookup: &dyn Fn(&str) -> Option<Dim>) -> Result<AttrValue> {
    Ok(match attr {
        AttrValue::Dim(d) => AttrValue::Dim(substitute_dim(d, lookup)?),
        AttrValue::List(l) => AttrValue::List(l.iter().map(|a| substitute_attr(a, lookup)).collect::<Result<_>>()?),
        other => other.clone(),
    })
}

impl Kernels {
    /// The list for these sizes. Undecided guards stay so and are evaluated at plan time.
    fn specialized(&self, symbols: &Symbols, lookup: &dyn Fn(&str) -> Option<Dim>) -> Result<Kernels> {
        let mut kernels = self.clone();
        for candidate in &mut kernels.list {
            if let Strategy::Composed(part) = &mut candidate.strategy {
                *part = Arc::new(part.specialize(symbols)?);
            }
            if let Some(matched) = &mut candidate.matched {
                matched.substitute(lookup)?;
            }
        }
        Ok(kernels)
    }
}

impl Matched {
    fn substitute(&mut self, lookup: &dyn Fn(&str) -> Option<Dim>) -> Result<()> {
        let values = self.bindings.values.clone();
        for (var, value) in values.iter() {
            self.bindings.values.insert(*var, substitute_attr(value, lookup)?);
        }
        Ok(())
    }

    /// The same for these sizes.
    pub fn specialized(&self, symbols: &Symbols) -> Result<Matched> {
        let mut matched = self.clone();
        matched.substitute(&|s| symbols.get(s).map(|v| Dim::from(*v)))?;
        Ok(matched)
    }
}

impl Region {
    /// The region for these sizes.
    pub fn specialized(&self, symbols: &Symbols) -> Result<Region> {
        let lookup = |s: &str| symbols.get(s).map(|v| Dim::from(*v));
        let mut region = self.clone();
        if let Some(rows) = &mut region.rows {
            rows.space.sizes =
                rows.space.sizes.iter().map(|d| substitute_dim(d, &lookup)).collect::<Result<Vec<_>>>()?;
        }
        Ok(region)
    }
}
