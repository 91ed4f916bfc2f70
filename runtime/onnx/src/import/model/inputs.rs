//! The initializers and inputs of a graph, and the sizes that inputs name.
//!
//! In: the main graph, and what the caller specifies. Out: definitions in its scope, with types.
//! Invariant: equal names are equal sizes, and every number that the caller gives belongs to an
//! existing dynamic size.

use std::collections::HashSet;

use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::TensorType;
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

use super::{Definition, Importer, Scope};
use crate::import::Options;
use crate::import::context::{Bound, Fail};
use crate::import::onnx::proto::GraphProto;
use crate::import::symbolic::Sym;
use crate::import::types::{Declared, Size, contradiction, declared};

/// The size of that name: the caller's number, else a symbol.
fn named(name: &str, options: &Options) -> Dim {
    options.dims.get(name).map_or_else(|| Dim::symbol(name), |v| Dim::from(*v))
}

impl<'a> Importer<'a> {
    pub(super) fn initializers(&mut self, graph: &'a GraphProto, scope: &mut Scope<'a>) -> Result<()> {
        if let Some(s) = graph.sparse_initializer.first() {
            let name = s.values.as_ref().map_or("", |v| v.name());
            let fail = Fail::Unsupported("a sparse tensor; store it dense".into());
            return Err(self.fail(fail, name, "initializer", scope.opset));
        }
        for t in &graph.initializer {
            if t.name().is_empty() {
                return Err(self.damaged("an initializer has no name"));
            }
            scope.constants.insert(t.name());
            if scope.values.insert(t.name(), Definition::Initializer(t)).is_some() {
                return Err(self.damaged(format!("the initializer `{}` is given twice", t.name())));
            }
        }
        Ok(())
    }

    /// Adds the inputs. An input that names an initializer takes its value from there.
    pub(super) fn inputs(&mut self, graph: &'a GraphProto, scope: &mut Scope<'a>, options: &Options) -> Result<()> {
        let mut types = Vec::new();
        let mut names = HashSet::new();
        for input in &graph.input {
            if input.name().is_empty() || !names.insert(input.name()) {
                return Err(self.damaged(format!("the input `{}` has no name, or occurs twice", input.name())));
            }
            if scope.values.contains_key(input.name()) {
                continue;
            }
            let ty =
                declared(input.r#type.as_ref()).map_err(|b| self.fail(b.into(), input.name(), "input", scope.opset))?;
            if let Some(t) = options.constants.get(input.name()) {
                self.constant_input(input.name(), &ty, t, scope)?;
                continue;
            }
            types.push((input.name(), ty));
        }
        if let Some(name) = options.shapes.keys().filter(|n| !types.iter().any(|(t, _)| t == n)).min() {
            let have: Vec<_> = types.iter().map(|(n, _)| *n).collect();
            return Err(Error::Input(format!("the model has no input `{name}`; its inputs are: {}", have.join(", "))));
        }
        self.bind_symbols(&types, options)?;
        let mut shapes = Vec::with_capacity(types.len());
        for (name, ty) in &types {
            shapes.push(self.input_shape(name, ty, options, scope.opset)?);
        }
        self.check_dims(&types, &shapes, options)?;
        for ((name, ty), shape) in types.into_iter().zip(shapes) {
            let ty = TensorType { dtype: ty.dtype, shape };
            self.types.push((name.into(), ty.clone()));
            let value = self.builder.graph.input(name, ty);
            scope.values.insert(name, Definition::Bound(value.into()));
        }
        Ok(())
    }

    /// An input for which the caller gives a constant value.
    fn constant_input(&mut self, name: &'a str, ty: &Declared, t: &Tensor, scope: &mut Scope<'a>) -> Result<()> {
        let shape = t.shape().iter().map(|d| Dim::from(*d as i64)).collect();
        let given = TensorType { dtype: t.dtype(), shape };
        if let Some(found) = contradiction(ty, &given, &|_| None) {
            return Err(Error::Input(format!("the constant for input `{name}` {}", found.message)));
        }
        let value = self.builder.graph.constant(t.clone());
        let bound = Bound { value: Some(value), sym: Sym::from_tensor(t) };
        self.types.push((name.into(), given));
        scope.values.insert(name, Definition::Bound(bound));
        Ok(())
    }

    /// Binds each named size of an input: to a symbol, or to the number in a given shape.
    fn bind_symbols(&mut self, types: &[(&str, Declared)], options: &Options) -> Result<()> {
        for (name, ty) in types {
            let given = options.shapes.get(*name);
            let Some(sizes) = &ty.shape else { continue };
            if let Some(given) = given
                && given.len() != sizes.len()
            {
                return Err(Error::Input(format!(
                    "input `{name}` should have rank {}, but is given the shape {given:?}",
                    sizes.len()
                )));
            }
            for (axis, size) in sizes.iter().enumerate() {
                let actual = given.map(|g| Dim::from(g[axis] as i64));
                match (size, actual) {
                    (Size::Is(v), Some(a)) if a != Dim::from(*v) => {
                        return Err(Error::Input(format!("input `{name}`: axis {axis} has size {v}, not {a}")));
                    }
                    (Size::Named(n), actual) => {
                        let known = self.symbols.get(n).cloned();
                        match (known, actual) {
                            (Some(k), Some(a)) if k.as_const().is_some() && k != a => {
                                return Err(Error::Input(format!(
                                    "input `{name}`: axis {axis} is `{n}`, which is {k} in another input, but {a} here"
                                )));
                            }
                            (_, Some(a)) => drop(self.symbols.insert(n.clone(), a)),
                            (None, None) => drop(self.symbols.insert(n.clone(), named(n, options))),
                            (Some(_), None) => {}
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn input_shape(&self, name: &str, ty: &Declared, options: &Options, opset: i64) -> Result<Vec<Dim>> {
        let given = options.shapes.get(name);
        let Some(sizes) = &ty.shape else {
            return match given {
                Some(g) => Ok(g.iter().map(|d| Dim::from(*d as i64)).collect()),
                None => {
                    let fail = Fail::Unsupported("its rank is not declared; declare a shape, or give the input".into());
                    Err(self.fail(fail, name, "input", opset))
                }
            };
        };
        let dim = |(axis, size): (usize, &Size)| match (size, given) {
            (_, Some(g)) => Dim::from(g[axis] as i64),
            (Size::Is(v), None) => Dim::from(*v),
            (Size::Named(n), None) => self.symbols.get(n).cloned().unwrap_or_else(|| Dim::symbol(n.as_str())),
            (Size::Unknown, None) => {
                // A fresh name that no other size has.
                let mut fresh = format!("{name}_{axis}");
                while self.symbols.contains_key(&fresh) {
                    fresh.push('_');
                }
                named(&fresh, options)
            }
        };
        Ok(sizes.iter().enumerate().map(dim).collect())
    }

    /// Checks that every number the caller gives belongs to an existing dynamic size.
    fn check_dims(&self, types: &[(&str, Declared)], shapes: &[Vec<Dim>], options: &Options) -> Result<()> {
        let mut names: Vec<String> = self.symbols.keys().cloned().collect();
        for ((input, ty), shape) in types.iter().zip(shapes) {
            let sizes = ty.shape.iter().flatten().enumerate();
            names.extend(sizes.filter(|(_, s)| **s == Size::Unknown).map(|(axis, _)| format!("{input}_{axis}")));
            names.extend(shape.iter().flat_map(Dim::symbols).map(|s| s.to_string()));
        }
        names.sort();
        names.dedup();
        match options.dims.keys().filter(|n| !names.contains(n)).min() {
            Some(n) => {
                let have = if names.is_empty() { "none".to_string() } else { names.join(", ") };
                Err(Error::Input(format!("the model has no dynamic size `{n}`; it has {have}")))
            }
            None => Ok(()),
        }
    }
}
