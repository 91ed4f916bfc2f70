//! Graphs that Python builds.
//!
//! In: names of ops and scalars, numbers of values. Out: a graph, as text or as a [`Model`].
//! Invariant: a value's number stays valid for the life of its graph; a call that fails adds no
//! value.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::TensorType;
use hypatia_graph::Value;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::errors::{raised, wrong_input};
use crate::memory;
use crate::model::{Model, Settings};
use crate::rules::Rules;
use crate::sizes::{size, sizes};

/// A graph that is being built. A value is a number that the methods return.
#[pyclass(module = "hypatia_core._native")]
pub struct Graph {
    graph: hypatia_graph::Graph,
    values: Vec<Value>,
    /// The name of the nodes that are added next; empty for names of their own.
    label: String,
}

#[pymethods]
impl Graph {
    /// An empty graph over the ops and scalars of these rules.
    #[new]
    fn new(rules: &Rules) -> Graph {
        Graph { graph: hypatia_graph::Graph::new(rules.program.clone()), values: Vec::new(), label: String::new() }
    }

    /// Adds an input. A size is a number, or the name of a dynamic size.
    fn input(&mut self, name: &str, dtype: &str, shape: Vec<Bound<'_, PyAny>>) -> PyResult<usize> {
        let shape = shape.iter().map(size).collect::<PyResult<Vec<Dim>>>()?;
        let value = self.graph.input(name, TensorType { dtype: memory::dtype(dtype)?, shape });
        Ok(self.add(value))
    }

    /// Adds a constant: a copy of this memory.
    fn constant(&mut self, array: &Bound<'_, PyAny>, shape: Vec<usize>) -> PyResult<usize> {
        let value = self.graph.constant(memory::tensor(array, &shape)?);
        Ok(self.add(value))
    }

    /// Adds a number of rank 0.
    fn number(&mut self, dtype: &str, value: f64) -> PyResult<usize> {
        let value = self.graph.number(memory::dtype(dtype)?, value).map_err(raised)?;
        Ok(self.add(value))
    }

    /// Names the nodes that `call` adds next: reports and `Model.fusions` say what became of them.
    fn label(&mut self, name: String) {
        self.label = name;
    }

    /// Applies the op or scalar of that name; absent operands are None. Returns all results.
    #[pyo3(signature = (name, operands, attrs = None))]
    fn call(
        &mut self,
        name: &str,
        operands: Vec<Option<usize>>,
        attrs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Vec<usize>> {
        let operands = operands.into_iter().map(|v| v.map(|v| self.value(v)).transpose());
        let operands = operands.collect::<PyResult<Vec<Option<Value>>>>()?;
        let mut named: Vec<(String, AttrValue)> = Vec::new();
        for (key, value) in attrs.into_iter().flatten() {
            named.push((key.extract()?, attr(&value)?));
        }
        let attrs: Vec<(&str, AttrValue)> = named.iter().map(|(k, v)| (k.as_str(), v.clone())).collect();
        let before = self.graph.nodes.len();
        let made = match self.graph.program.find_op(name) {
            Some(_) => self.graph.named_op(name, &operands, &attrs, None),
            None => {
                let present: Option<Vec<Value>> = operands.iter().copied().collect();
                let present = present.ok_or_else(|| wrong_input(format!("`{name}`: an operand is missing")))?;
                self.graph.call(name, &present, &attrs)
            }
        };
        let made = made.map_err(|e| {
            let types: Vec<String> = operands.iter().flatten().map(|v| self.graph.ty(*v).to_string()).collect();
            wrong_input(format!("{name}({}): {e}", types.join(", ")))
        })?;
        if !self.label.is_empty() {
            self.graph.nodes[before..].iter_mut().for_each(|node| node.name.clone_from(&self.label));
        }
        Ok(made.into_iter().map(|v| self.add(v)).collect())
    }

    /// Element type and sizes of a value; a dynamic size is a string.
    fn type_of<'py>(&self, py: Python<'py>, value: usize) -> PyResult<(&'static str, Bound<'py, PyTuple>)> {
        let ty = self.graph.ty(self.value(value)?);
        Ok((ty.dtype.name(), sizes(py, &ty.shape)?))
    }

    /// Makes a value an output.
    fn output(&mut self, name: &str, value: usize) -> PyResult<()> {
        let value = self.value(value)?;
        self.graph.output(name, value);
        Ok(())
    }

    /// The graph as text.
    fn text(&self) -> String {
        self.graph.to_text()
    }

    /// The graph as a model. `settings` are those of `Model.load`.
    #[pyo3(signature = (**settings))]
    fn model(&self, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Model> {
        let graph = self.graph.clone();
        graph.validate().map_err(raised)?;
        Model::of(graph, &Settings::of(settings)?)
    }
}

impl Graph {
    fn add(&mut self, value: Value) -> usize {
        self.values.push(value);
        self.values.len() - 1
    }

    fn value(&self, number: usize) -> PyResult<Value> {
        self.values.get(number).copied().ok_or_else(|| wrong_input(format!("there is no value {number}")))
    }
}

/// An attribute: a bool, int, float, the name of an element type, another string, or a list.
fn attr(value: &Bound<'_, PyAny>) -> PyResult<AttrValue> {
    if value.cast::<PyBool>().is_ok() {
        return Ok(AttrValue::Bool(value.extract()?));
    }
    if value.cast::<PyInt>().is_ok() {
        return Ok(AttrValue::from(value.extract::<i64>()?));
    }
    if value.cast::<PyFloat>().is_ok() {
        return Ok(AttrValue::Float(value.extract()?));
    }
    if value.cast::<PyString>().is_ok() {
        let text: String = value.extract()?;
        return Ok(DType::from_name(&text).map_or(AttrValue::Str(text), AttrValue::DType));
    }
    if value.cast::<PyList>().is_ok() || value.cast::<PyTuple>().is_ok() {
        let items = value.try_iter()?.map(|item| attr(&item?)).collect::<PyResult<Vec<_>>>()?;
        return Ok(AttrValue::List(items));
    }
    Err(wrong_input(format!("an attribute cannot be {}", value.get_type().name()?)))
}
