//! Writes one node of a graph as ONNX nodes.
//!
//! In: a builtin op or a scalar, the names of its operands. Out: nodes of a [`Body`], and the names
//! of its results. Invariant: if a standard op has other semantics (negative bounds, no axes, few
//! types), the nodes compensate for the difference.

use hypatia_dsl::builtin::{BuiltinOp, ScatterReduction, scatter_reduction};
use hypatia_dsl::dtype::{DType, Kind};
use hypatia_dsl::ir::{AttrValue, InView, OpBody, ScalarId};
use hypatia_dsl::scalar::{Term, TermId, TermNode};
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::TensorType;

use super::body::{Attr, Body};
use super::term::{Leaves, computed_in};
use hypatia_graph::{Graph, Node, NodeKind};
use hypatia_tensor::error::{Error, Result};

/// A node, and the names of its operands.
pub(super) struct Call<'a> {
    pub graph: &'a Graph,
    pub node: &'a Node,
    pub operands: &'a [Option<String>],
}

impl Body {
    /// Adds a node of a graph; returns the names of its results.
    pub fn call(&mut self, call: &Call) -> Result<Vec<String>> {
        match &call.node.kind {
            NodeKind::Scalar(s) => Ok(vec![self.lifted(call, *s)?]),
            NodeKind::Op { op, attrs, term } => match call.graph.program.op(*op).body {
                OpBody::Builtin(b) => self.builtin(call, b, attrs, term.as_ref()),
                OpBody::Defined(_) => Err(Error::Internal("a defined op was to be written out".into())),
            },
            _ => Err(Error::Internal("inputs and constants are not nodes of a model".into())),
        }
    }

    /// An element-wise scalar function of tensors.
    fn lifted(&mut self, call: &Call, scalar: ScalarId) -> Result<String> {
        let reads: Vec<(String, DType)> = (0..call.operands.len()).map(|i| call.read(i)).collect::<Result<_>>()?;
        let mut term = Term::empty();
        let args: Vec<TermId> =
            (0..reads.len() as u32).map(|input| term.add(TermNode::In { input, view: InView::Broadcast })).collect();
        let root = term.add(TermNode::Call { scalar, args });
        term.roots.push(root);
        let number = reads.iter().map(|(_, d)| *d).find(|d| d.kind() == Kind::Number);
        let result = call.node.results[0].dtype;
        let compute = computed_in(number.unwrap_or(result));
        self.term(&call.graph.program, &term, &Leaves { acc: None, reads: &reads, compute, result })
    }

    /// A builtin op as nodes of ONNX; the names of its results.
    fn builtin(&mut self, call: &Call, op: BuiltinOp, attrs: &[AttrValue], term: Option<&Term>) -> Result<Vec<String>> {
        use BuiltinOp::*;
        let a = Attrs(attrs);
        let one = |name: String| Ok(vec![name]);
        match op {
            Matmul | Gemm | Gemm2 | Conv | ConvGemm => one(self.product(call, op, &a, term)?),
            Sum => one(self.reduction(call, "ReduceSum", &a)?),
            Mean => one(self.reduction(call, "ReduceMean", &a)?),
            Amax => one(self.reduction(call, "ReduceMax", &a)?),
            Amin => one(self.reduction(call, "ReduceMin", &a)?),
            Prod => one(self.reduction(call, "ReduceProd", &a)?),
            Cumsum => one(self.cumsum(call, &a)?),
            Argmax => one(self.argmax(call, &a)?),
            Cast => {
                let (x, dtype) = call.read(0)?;
                let to = call.node.results[0].dtype;
                one(if dtype == to { self.op("Identity", &[&x], &[]) } else { self.cast(&x, dtype, to) })
            }
            Transpose => one(self.op("Transpose", &[&call.read(0)?.0], &[("perm", Attr::Ints(&a.ints(0)?))])),
            Reshape => {
                let (x, _) = call.read(0)?;
                one(self.reshape(&x, &call.node.results[0].shape)?)
            }
            Expand => {
                let shape = self.dims(&call.node.results[0].shape)?;
                one(self.op("Expand", &[&call.read(0)?.0, &shape], &[]))
            }
            Slice => one(self.slice(call, &a)?),
            Windows => one(self.windows(call, &a)?),
            Concat => {
                let reads = (0..call.operands.len()).map(|i| call.read(i)).collect::<Result<Vec<_>>>()?;
                let names: Vec<&str> = reads.iter().map(|(n, _)| n.as_str()).collect();
                one(self.op("Concat", &names, &[("axis", Attr::Int(a.int(0)?))]))
            }
            Split => {
                let sizes = self.dims(&a.dims(1)?)?;
                let outputs: Vec<String> = call.node.results.iter().map(|_| self.fresh()).collect();
                self.node("Split", "", &[&call.read(0)?.0, &sizes], outputs.clone(), &[("axis", Attr::Int(a.int(0)?))]);
                Ok(outputs)
            }
            Pad => {
                let pads = self.dims(&[a.dims(0)?, a.dims(1)?].concat())?;
                one(self.op("Pad", &[&call.read(0)?.0, &pads, &call.read(1)?.0], &[]))
            }
            Gather | GatherElements => {
                let indices = self.indices(call)?;
                let name = if op == Gather { "Gather" } else { "GatherElements" };
                one(self.op(name, &[&call.read(0)?.0, &indices], &[("axis", Attr::Int(a.int(0)?))]))
            }
            GatherNd => {
                let indices = self.indices(call)?;
                one(self.op("GatherND", &[&call.read(0)?.0, &indices], &[("batch_dims", Attr::Int(a.int(0)?))]))
            }
            Scatter => one(self.scatter(call, attrs)?),
            Argsort => one(self.argsort(call, &a)?),
            Iota | Full | Size => one(self.generated(call, op, &a)?),
        }
    }

    /// Cumulative sums, in a type that ONNX has them for.
    fn cumsum(&mut self, call: &Call, a: &Attrs) -> Result<String> {
        let (x, dtype) = call.read(0)?;
        let (wide, axis) = (computed_in(dtype), hypatia_tensor::Tensor::from_slice(&[], &[a.int(0)?]));
        let axis = self.constant(&axis.ok_or_else(|| Error::Internal("an axis".into()))?);
        let x = self.cast(&x, dtype, wide);
        let attrs = [("exclusive", Attr::Int(a.int(1)?)), ("reverse", Attr::Int(a.int(2)?))];
        let sums = self.op("CumSum", &[&x, &axis], &attrs);
        Ok(self.cast(&sums, wide, dtype))
    }

    /// Positions of maxima, of a type that ONNX has them for.
    fn argmax(&mut self, call: &Call, a: &Attrs) -> Result<String> {
        let (x, dtype) = call.read(0)?;
        let x = self.cast(&x, dtype, reducible(dtype));
        let attrs = [
            ("axis", Attr::Int(a.int(0)?)),
            ("keepdims", Attr::Int(a.int(1)?)),
            ("select_last_index", Attr::Int(a.int(2)?)),
        ];
        Ok(self.op("ArgMax", &[&x], &attrs))
    }

    /// A matrix product or a convolution, and its epilogue.
    fn product(&mut self, call: &Call, op: BuiltinOp, a: &Attrs, term: Option<&Term>) -> Result<String> {
        let (x, dtype) = call.read(0)?;
        let (w, of_w) = call.read(1)?;
        let compute = computed_in(dtype);
        let (x, w) = (self.cast(&x, dtype, compute), self.cast(&w, of_w, compute));
        let acc = if op.accumulator().unwrap_or(op) == BuiltinOp::Matmul {
            self.op("MatMul", &[&x, &w], &[])
        } else {
            let pads = [a.ints(1)?, a.ints(2)?].concat();
            let (strides, dilations) = (a.ints(0)?, a.ints(3)?);
            let attrs = [
                ("strides", Attr::Ints(&strides)),
                ("pads", Attr::Ints(&pads)),
                ("dilations", Attr::Ints(&dilations)),
                ("group", Attr::Int(a.int(4)?)),
            ];
            self.op("Conv", &[&x, &w], &attrs)
        };
        let result = call.node.results[0].dtype;
        let Some(term) = term else { return Ok(self.cast(&acc, compute, result)) };
        let factors = if op.is_pair() { 3 } else { 2 };
        let mut reads = (factors..call.operands.len()).map(|i| call.read(i)).collect::<Result<Vec<_>>>()?;
        let mut term = std::borrow::Cow::Borrowed(term);
        if op.is_pair() {
            let (w, of_w) = call.read(2)?;
            let w = self.cast(&w, of_w, compute);
            term = std::borrow::Cow::Owned(term.reading_second(reads.len() as u32));
            reads.push((self.op("MatMul", &[&x, &w], &[]), compute));
        }
        self.term(&call.graph.program, &term, &Leaves { acc: Some(acc), reads: &reads, compute, result })
    }

    fn reduction(&mut self, call: &Call, op: &str, a: &Attrs) -> Result<String> {
        let (x, dtype) = call.read(0)?;
        let x = self.cast(&x, dtype, reducible(dtype));
        let axes = a.ints(0)?;
        // With no axes, ONNX would reduce all of them.
        let noop = Attr::Int(i64::from(axes.is_empty()));
        let axes = self.vector(&axes)?;
        let attrs = [("keepdims", Attr::Int(a.int(1)?)), ("noop_with_empty_axes", noop)];
        let out = self.op(op, &[&x, &axes], &attrs);
        Ok(self.cast(&out, reducible(dtype), dtype))
    }

    fn reshape(&mut self, x: &str, shape: &[Dim]) -> Result<String> {
        let numbers: Vec<Option<i64>> = shape.iter().map(Dim::as_const).collect();
        let unknown = numbers.iter().filter(|n| n.is_none()).count();
        // A single unknown size is inferred from the others without arithmetic.
        if unknown == 1 && !numbers.contains(&Some(0)) {
            let target = self.vector(&numbers.iter().map(|n| n.unwrap_or(-1)).collect::<Vec<_>>())?;
            return Ok(self.op("Reshape", &[x, &target], &[]));
        }
        let target = self.dims(shape)?;
        // A size that may be 0 must be taken literally: without the attribute a 0 means that an
        // axis keeps its size.
        let may_be_empty = unknown > 0 || numbers.contains(&Some(0));
        let zero = [("allowzero", Attr::Int(1))];
        Ok(self.op("Reshape", &[x, &target], if may_be_empty { &zero } else { &[] }))
    }

    fn slice(&mut self, call: &Call, a: &Attrs) -> Result<String> {
        let (axis, start, stop, step) = (a.int(0)?, a.dim(1)?, a.dim(2)?, a.int(3)?);
        // Negative bounds lie outside the axis here, but ONNX counts them from its end.
        let bound = |d: Dim, from_end: i64| match d.as_const() {
            Some(c) if c < 0 => Dim::from(from_end),
            _ => d,
        };
        let (start, stop) = match step > 0 {
            true => (bound(start, 0), bound(stop, 0)),
            // No element comes before the first one, so the slice is empty.
            false if start.as_const().is_some_and(|s| s < 0) => (Dim::from(0), Dim::from(0)),
            false => (start, bound(stop, i64::MIN)),
        };
        let (starts, ends) = (self.dim(&start)?, self.dim(&stop)?);
        let (axes, steps) = (self.vector(&[axis])?, self.vector(&[step])?);
        Ok(self.op("Slice", &[&call.read(0)?.0, &starts, &ends, &axes, &steps], &[]))
    }

    /// Windows as a gather: one table of positions per axis.
    fn windows(&mut self, call: &Call, a: &Attrs) -> Result<String> {
        let (mut x, _) = call.read(0)?;
        let (sizes, strides, dilations) = (a.ints(0)?, a.ints(1)?, a.ints(2)?);
        let (n, rank) = (sizes.len(), call.ty(0)?.shape.len());
        let first = rank.checked_sub(n).ok_or_else(|| Error::Internal("windows over too many axes".into()))?;
        for i in 0..n {
            let count = call.node.results[0].shape.get(first + i).and_then(Dim::as_const).ok_or_else(|| {
                Error::Input(
                    "windows along an axis of a size that is not known cannot be written to a model; give the inputs' \
                     shapes (--inputs)"
                        .into(),
                )
            })?;
            let (size, stride, dilation) = (sizes[i], strides[i], dilations[i]);
            let at = (0..count).flat_map(|w| (0..size).map(move |j| w * stride + j * dilation));
            let table = hypatia_tensor::Tensor::from_slice(&[count as usize, size as usize], &at.collect::<Vec<i64>>());
            let table = self.constant(&table.ok_or_else(|| Error::Internal("a table of positions".into()))?);
            // Each axis before this one has become two axes by now.
            x = self.op("Gather", &[&x, &table], &[("axis", Attr::Int((first + 2 * i) as i64))]);
        }
        let pairs = |odd: usize| (0..n).map(move |i| (first + 2 * i + odd) as i64);
        let perm: Vec<i64> = (0..first as i64).chain(pairs(0)).chain(pairs(1)).collect();
        Ok(self.op("Transpose", &[&x], &[("perm", Attr::Ints(&perm))]))
    }

    /// Scatters rows by indices of one element each.
    fn scatter(&mut self, call: &Call, attrs: &[AttrValue]) -> Result<String> {
        let how = match attrs.first() {
            Some(AttrValue::Str(name)) if scatter_reduction(name) == Some(ScatterReduction::Replace) => "none",
            Some(AttrValue::Str(name)) => name,
            _ => return Err(Error::Internal("a scatter of no kind".into())),
        };
        let (indices, behind) = (self.indices(call)?, self.vector(&[1])?);
        let indices = self.op("Unsqueeze", &[&indices, &behind], &[]);
        let attrs = [("reduction", Attr::Text(how))];
        Ok(self.op("ScatterND", &[&call.read(0)?.0, &indices, &call.read(2)?.0], &attrs))
    }

    /// Sorts the whole axis with TopK and keeps the indices.
    fn argsort(&mut self, call: &Call, a: &Attrs) -> Result<String> {
        let (x, dtype) = call.read(0)?;
        let x = self.cast(&x, dtype, reducible(dtype));
        let axis = a.int(0)?;
        let size = usize::try_from(axis).ok().and_then(|i| call.node.results[0].shape.get(i).cloned());
        let size = self.dim(&size.ok_or_else(|| Error::Internal("an axis out of range".into()))?)?;
        let (values, places) = (self.fresh(), self.fresh());
        let attrs = [("axis", Attr::Int(axis)), ("largest", Attr::Int(a.int(1)?))];
        self.node("TopK", "", &[&x, &size], vec![values, places.clone()], &attrs);
        Ok(places)
    }

    fn indices(&mut self, call: &Call) -> Result<String> {
        let (indices, dtype) = call.read(1)?;
        let wide = if dtype == DType::I32 { dtype } else { DType::I64 };
        Ok(self.cast(&indices, dtype, wide))
    }

    /// Ops without operands.
    fn generated(&mut self, call: &Call, op: BuiltinOp, a: &Attrs) -> Result<String> {
        let TensorType { dtype, shape } = &call.node.results[0];
        match op {
            BuiltinOp::Full => {
                let value = self.number(*dtype, a.float(1)?)?;
                let shape = self.dims(shape)?;
                Ok(self.op("Expand", &[&value, &shape], &[]))
            }
            BuiltinOp::Size => {
                let size = self.dim(&a.dim(0)?)?;
                Ok(self.op("Squeeze", &[&size], &[]))
            }
            _ => {
                let axis = usize::try_from(a.int(1)?).ok().filter(|i| *i < shape.len());
                let axis = axis.ok_or_else(|| Error::Internal("an axis out of range".into()))?;
                let size = self.dim(&shape[axis])?;
                let size = self.op("Squeeze", &[&size], &[]);
                let (zero, one) = (self.number(DType::I64, 0.0)?, self.number(DType::I64, 1.0)?);
                let mut range = self.op("Range", &[&zero, &size, &one], &[]);
                let behind: Vec<i64> = (1..(shape.len() - axis) as i64).collect();
                if !behind.is_empty() {
                    let behind = self.vector(&behind)?;
                    range = self.op("Unsqueeze", &[&range, &behind], &[]);
                }
                let range = self.cast(&range, DType::I64, *dtype);
                let shape = self.dims(shape)?;
                Ok(self.op("Expand", &[&range, &shape], &[]))
            }
        }
    }
}

/// The type in which elements are reduced.
fn reducible(dtype: DType) -> DType {
    if dtype == DType::Bool { DType::I32 } else { computed_in(dtype) }
}

impl Call<'_> {
    /// Name and type of an operand.
    fn read(&self, i: usize) -> Result<(String, DType)> {
        let name = self.operands.get(i).cloned().flatten();
        let name = name.ok_or_else(|| Error::Internal(format!("node `{}` lacks an operand", self.node.name)))?;
        Ok((name, self.ty(i)?.dtype))
    }

    fn ty(&self, i: usize) -> Result<&TensorType> {
        let value = self.node.operands.get(i).copied().flatten();
        value.map(|v| self.graph.ty(v)).ok_or_else(|| Error::Internal("an operand is absent".into()))
    }
}

/// Attributes by position.
struct Attrs<'a>(&'a [AttrValue]);

impl Attrs<'_> {
    fn bad(&self, i: usize) -> Error {
        Error::Input(format!(
            "an attribute of the model ({:?}) is not known, so that it cannot be written; give the inputs' shapes \
             (--inputs)",
            self.0.get(i)
        ))
    }

    fn dim(&self, i: usize) -> Result<Dim> {
        match self.0.get(i) {
            Some(AttrValue::Dim(d)) => Ok(d.clone()),
            Some(AttrValue::Bool(b)) => Ok(Dim::from(i64::from(*b))),
            _ => Err(self.bad(i)),
        }
    }

    fn int(&self, i: usize) -> Result<i64> {
        self.dim(i)?.as_const().ok_or_else(|| self.bad(i))
    }

    fn dims(&self, i: usize) -> Result<Vec<Dim>> {
        let Some(AttrValue::List(l)) = self.0.get(i) else { return Err(self.bad(i)) };
        l.iter().map(|v| if let AttrValue::Dim(d) = v { Ok(d.clone()) } else { Err(self.bad(i)) }).collect()
    }

    fn ints(&self, i: usize) -> Result<Vec<i64>> {
        self.dims(i)?.iter().map(|d| d.as_const().ok_or_else(|| self.bad(i))).collect()
    }

    fn float(&self, i: usize) -> Result<f64> {
        match self.0.get(i) {
            Some(AttrValue::Float(f)) => Ok(*f),
            _ => self.int(i).map(|v| v as f64),
        }
    }
}
