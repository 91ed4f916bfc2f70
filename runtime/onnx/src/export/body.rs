//! A list of ONNX nodes under construction: the main graph, or the body of a function.
//!
//! In: ops by their ONNX names, operands by the names of values. Out: nodes, and names of results.
//! Invariant: every name is defined once; equal constants and equal sizes are deduplicated.

use std::collections::{HashMap, HashSet};

use hypatia_dsl::dtype::DType;
use hypatia_dsl::shape::{Dim, DimFactor, Symbol};
use prost::bytes::Bytes;

use crate::import::onnx::proto::attribute_proto::AttributeType;
use crate::import::onnx::proto::tensor_proto::DataType;
use crate::import::onnx::proto::{AttributeProto, NodeProto, TensorProto};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

/// The source of the values of sizes.
pub(super) enum Sizes {
    /// The axes of inputs.
    Inputs(HashMap<Symbol, (String, i64)>),
    /// The caller of the function: a size is a parameter, and these are the sizes it stands for.
    Parameters(Vec<Dim>),
}

/// An attribute of a node.
pub(super) enum Attr<'a> {
    Int(i64),
    Ints(&'a [i64]),
    Float(f32),
    Floats(&'a [f32]),
    Text(&'a str),
}

/// Nodes in order.
pub(super) struct Body {
    /// The nodes.
    pub nodes: Vec<NodeProto>,
    /// Sources of symbolic sizes.
    pub sizes: Sizes,
    taken: HashSet<String>,
    constants: HashMap<(i32, Vec<i64>, Vec<u8>), String>,
    dims: HashMap<Dim, String>,
    next: usize,
    /// Node names in use, and how many nodes requested each name.
    named: HashSet<String>,
    asked: HashMap<String, usize>,
    /// The name of the graph node that is being written, for the ONNX nodes that it becomes.
    pub label: String,
}

impl Body {
    /// An empty body with these names reserved.
    pub fn new(sizes: Sizes, taken: HashSet<String>) -> Body {
        Body {
            nodes: Vec::new(),
            sizes,
            taken,
            constants: HashMap::new(),
            dims: HashMap::new(),
            next: 0,
            named: HashSet::new(),
            asked: HashMap::new(),
            label: String::new(),
        }
    }

    /// A name that no other value has.
    pub fn fresh(&mut self) -> String {
        loop {
            let name = format!("v{}", self.next);
            self.next += 1;
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }

    /// The name itself if it is free, else a fresh one.
    pub fn claim(&mut self, name: &str) -> String {
        if !name.is_empty() && self.taken.insert(name.to_string()) {
            return name.to_string();
        }
        self.fresh()
    }

    /// Adds a node with one result.
    pub fn op(&mut self, op: &str, inputs: &[&str], attrs: &[(&str, Attr)]) -> String {
        let out = self.fresh();
        self.node(op, "", inputs, vec![out.clone()], attrs);
        out
    }

    /// A unique name for the next node: runtimes reject a model in which two nodes have the same
    /// name.
    fn node_name(&mut self) -> Option<String> {
        if self.label.is_empty() {
            return None;
        }
        let asked = self.asked.entry(self.label.clone()).or_insert(0);
        loop {
            let name = if *asked == 0 { self.label.clone() } else { format!("{}.{asked}", self.label) };
            *asked += 1;
            if self.named.insert(name.clone()) {
                return Some(name);
            }
        }
    }

    /// Adds a node.
    pub fn node(&mut self, op: &str, domain: &str, inputs: &[&str], outputs: Vec<String>, attrs: &[(&str, Attr)]) {
        let name = self.node_name();
        self.nodes.push(NodeProto {
            input: inputs.iter().map(|s| s.to_string()).collect(),
            output: outputs,
            name,
            op_type: Some(op.to_string()),
            domain: (!domain.is_empty()).then(|| domain.to_string()),
            attribute: attrs.iter().map(|(name, value)| attribute(name, value)).collect(),
            ..NodeProto::default()
        });
    }

    /// A constant; equal ones are deduplicated.
    pub fn constant(&mut self, tensor: &Tensor) -> String {
        let proto = tensor_proto(tensor, None);
        let key = (code(tensor.dtype()), proto.dims.clone(), tensor.bytes().to_vec());
        if let Some(name) = self.constants.get(&key) {
            return name.clone();
        }
        let name = self.op("Constant", &[], &[]);
        if let Some(node) = self.nodes.last_mut() {
            node.attribute.push(AttributeProto {
                name: Some("value".into()),
                r#type: Some(AttributeType::Tensor as i32),
                t: Some(proto),
                ..AttributeProto::default()
            });
        }
        self.constants.insert(key, name.clone());
        name
    }

    /// A constant of rank 0.
    pub fn number(&mut self, dtype: DType, value: f64) -> Result<String> {
        let tensor = Tensor::from_f64(dtype, &[], &[value]);
        Ok(self.constant(&tensor.ok_or_else(|| Error::Internal("a tensor of rank 0 could not be made".into()))?))
    }

    /// A vector of integers.
    pub fn vector(&mut self, values: &[i64]) -> Result<String> {
        let tensor = Tensor::from_slice(&[values.len()], values);
        Ok(self.constant(&tensor.ok_or_else(|| Error::Internal("a vector could not be made".into()))?))
    }

    /// A size as a vector of one element.
    pub fn dim(&mut self, dim: &Dim) -> Result<String> {
        if let Some(c) = dim.as_const() {
            return self.vector(&[c]);
        }
        if let Some(name) = self.dims.get(dim) {
            return Ok(name.clone());
        }
        let name = match &mut self.sizes {
            Sizes::Parameters(list) => {
                list.push(dim.clone());
                format!("n{}", list.len() - 1)
            }
            Sizes::Inputs(_) => self.formula(dim)?,
        };
        self.dims.insert(dim.clone(), name.clone());
        Ok(name)
    }

    /// Several sizes as one vector.
    pub fn dims(&mut self, dims: &[Dim]) -> Result<String> {
        if let Some(values) = dims.iter().map(Dim::as_const).collect::<Option<Vec<i64>>>() {
            return self.vector(&values);
        }
        let parts = dims.iter().map(|d| self.dim(d)).collect::<Result<Vec<String>>>()?;
        match parts.as_slice() {
            [one] => Ok(one.clone()),
            parts => {
                let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
                Ok(self.op("Concat", &parts, &[("axis", Attr::Int(0))]))
            }
        }
    }

    /// Computes a size from the inputs' axes.
    fn formula(&mut self, dim: &Dim) -> Result<String> {
        let mut sum: Option<String> = None;
        for (coefficient, factors) in dim.polynomial() {
            let mut product: Option<String> = None;
            for f in &factors {
                let factor = self.factor(f)?;
                product = Some(match product {
                    None => factor,
                    Some(p) => self.op("Mul", &[&p, &factor], &[]),
                });
            }
            let term = match product {
                None => self.vector(&[coefficient])?,
                Some(p) if coefficient == 1 => p,
                Some(p) => {
                    let c = self.vector(&[coefficient])?;
                    self.op("Mul", &[&p, &c], &[])
                }
            };
            sum = Some(match sum {
                None => term,
                Some(s) => self.op("Add", &[&s, &term], &[]),
            });
        }
        sum.map_or_else(|| self.vector(&[0]), Ok)
    }

    fn factor(&mut self, factor: &DimFactor) -> Result<String> {
        let (op, a, b) = match factor {
            DimFactor::Symbol(s) => {
                let Sizes::Inputs(axes) = &self.sizes else {
                    return Err(Error::Internal("a function computed a size by itself".into()));
                };
                let Some((input, axis)) = axes.get(s).cloned() else {
                    return Err(Error::Input(format!(
                        "the size `{s}` is the size of no input's axis, so that an exported model could not know it; \
                         give the inputs' shapes (--inputs)"
                    )));
                };
                let ends = [("start", Attr::Int(axis)), ("end", Attr::Int(axis + 1))];
                return Ok(self.op("Shape", &[&input], &ends));
            }
            // Sizes are not negative, so truncating and flooring are the same.
            DimFactor::Quotient(a, b) => ("Div", a, b),
            DimFactor::Remainder(a, b) => ("Mod", a, b),
        };
        let (a, b) = (self.dim(a)?, self.dim(b)?);
        Ok(self.op(op, &[&a, &b], &[]))
    }
}

fn attribute(name: &str, value: &Attr) -> AttributeProto {
    let base = AttributeProto { name: Some(name.to_string()), ..AttributeProto::default() };
    match value {
        Attr::Int(i) => AttributeProto { r#type: Some(AttributeType::Int as i32), i: Some(*i), ..base },
        Attr::Text(t) => {
            AttributeProto { r#type: Some(AttributeType::String as i32), s: Some(t.as_bytes().to_vec()), ..base }
        }
        Attr::Float(v) => AttributeProto { r#type: Some(AttributeType::Float as i32), f: Some(*v), ..base },
        Attr::Floats(l) => AttributeProto { r#type: Some(AttributeType::Floats as i32), floats: l.to_vec(), ..base },
        Attr::Ints(l) => AttributeProto { r#type: Some(AttributeType::Ints as i32), ints: l.to_vec(), ..base },
    }
}

/// The ONNX code of an element type.
pub(super) fn code(dtype: DType) -> i32 {
    let ty = match dtype {
        DType::F64 => DataType::Double,
        DType::F32 => DataType::Float,
        DType::F16 => DataType::Float16,
        DType::BF16 => DataType::Bfloat16,
        DType::F8E4M3 => DataType::Float8e4m3fn,
        DType::F8E5M2 => DataType::Float8e5m2,
        DType::I64 => DataType::Int64,
        DType::I32 => DataType::Int32,
        DType::I8 => DataType::Int8,
        DType::U8 => DataType::Uint8,
        DType::Bool => DataType::Bool,
    };
    ty as i32
}

/// A tensor in ONNX's encoding.
pub(super) fn tensor_proto(tensor: &Tensor, name: Option<String>) -> TensorProto {
    TensorProto {
        dims: tensor.shape().iter().map(|d| *d as i64).collect(),
        data_type: Some(code(tensor.dtype())),
        name,
        raw_data: Some(Bytes::copy_from_slice(tensor.bytes())),
        ..TensorProto::default()
    }
}
