//! Graphs written in Rust, as formulas.
//!
//! In: a Program, inputs, weights, ops by name or operator. Out: a [`Graph`], or every mistake with
//! its place in the caller's source. Invariant: a mistake does not panic and needs no `?` where it
//! is made. Whatever depends on it is left out, and [`GraphBuilder::finish`] reports it.

use std::cell::RefCell;
use std::ops;
use std::panic::Location;
use std::sync::Arc;

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, Program};
use hypatia_dsl::shape::{Dim, Shape};
use hypatia_dsl::spell::closest;
use hypatia_dsl::typing::TensorType;

use super::{Graph, Value};
use hypatia_tensor::error::{Error, Result, TypeFault};
use hypatia_tensor::tensor::{Element, Tensor};

/// Builds a [`Graph`] from formulas.
///
/// ```
/// use hypatia::DType;
/// use hypatia::GraphBuilder;
/// use hypatia::{Model, Options};
/// use hypatia::{Tensor, rules, shape};
///
/// let g = GraphBuilder::new(rules::load(&[])?);
/// let x = g.input("x", DType::F32, shape!["batch", 3]);
/// let w = g.tensor(&[2, 3], &[1.0f32, 0.0, 0.0, 0.0, 1.0, 1.0]);
/// let b = g.tensor(&[2], &[0.5f32, -0.5]);
/// let y = g.call("relu", &[g.call("linear", &[x, w, b], &[]) * 2.0], &[]);
/// g.output("y", y);
///
/// let model = Model::new(g.finish()?, Options::default());
/// let x = Tensor::from_slice(&[1, 3], &[1.0f32, -1.0, 0.0]).unwrap();
/// let y = model.run(&[("x".to_string(), x)])?;
/// assert_eq!(y[0].to_f64(), [3.0, 0.0]);
/// # Ok::<(), hypatia::Error>(())
/// ```
///
/// Type errors are reported at the end, with the source line of each:
///
/// ```
/// # use hypatia::DType;
/// # use hypatia::GraphBuilder;
/// # use hypatia::{rules, shape};
/// let g = GraphBuilder::new(rules::load(&[])?);
/// let x = g.input("x", DType::F32, shape![4, 128]);
/// let w = g.input("w", DType::F32, shape![127, 64]);
/// g.output("y", x.matmul(w));
/// let message = g.finish().unwrap_err().to_string();
/// assert!(message.contains("f32[4, 128]") && message.contains("f32[127, 64]"), "{message}");
/// assert!(message.contains(".rs:"), "{message}");
/// # Ok::<(), hypatia::Error>(())
/// ```
pub struct GraphBuilder {
    graph: RefCell<Graph>,
    mistakes: RefCell<Vec<String>>,
}

/// Maximum number of mistakes reported.
const MAX_MISTAKES: usize = 20;

/// A value of a graph that is being built. Formulas use `+ - * / %` (also with numbers), methods,
/// and [`GraphBuilder::call`].
#[derive(Clone, Copy)]
pub struct Var<'g> {
    builder: &'g GraphBuilder,
    /// `None` after a mistake.
    value: Option<Value>,
}

/// A size in a [`shape!`](crate::shape): a number, or the name of a dynamic size.
pub trait Size {
    /// As a dimension.
    fn dim(&self) -> Dim;
}
macro_rules! sizes {
    ($($t:ty),*) => { $(
        impl Size for $t {
            fn dim(&self) -> Dim {
                // A size beyond i64 is invalid: it fails where it is used.
                Dim::from(i64::try_from(*self).unwrap_or(-1))
            }
        }
    )* };
}
sizes!(i32, i64, u32, u64, usize);

impl Size for &str {
    fn dim(&self) -> Dim {
        Dim::symbol(*self)
    }
}
impl Size for Dim {
    fn dim(&self) -> Dim {
        self.clone()
    }
}

/// A shape of numbers, names of dynamic sizes, and formulas of other sizes.
///
/// ```
/// let n = 4;
/// let shape = hypatia::shape!["batch", 128, n * 64];
/// assert_eq!(shape.len(), 3);
/// ```
#[macro_export]
macro_rules! shape {
    ($($size:expr),* $(,)?) => { ::std::vec![$($crate::Size::dim(&$size)),*] };
}

impl GraphBuilder {
    /// An empty graph over the ops and scalars of a Program: `hypatia::rules::load(&[])`, or the
    /// `program()` of a module that `hypatia_rules!` generated.
    pub fn new(program: Arc<Program>) -> GraphBuilder {
        GraphBuilder { graph: RefCell::new(Graph::new(program)), mistakes: RefCell::default() }
    }

    /// An input; see [`shape!`](crate::shape).
    pub fn input(&self, name: &str, dtype: DType, shape: Shape) -> Var<'_> {
        let value = self.graph.borrow_mut().input(name, TensorType { dtype, shape });
        Var { builder: self, value: Some(value) }
    }

    /// A weight.
    pub fn constant(&self, tensor: impl Into<Arc<Tensor>>) -> Var<'_> {
        Var { builder: self, value: Some(self.graph.borrow_mut().constant(tensor)) }
    }

    /// A weight, given by its elements in row-major order.
    #[track_caller]
    pub fn tensor<T: Element>(&self, shape: &[usize], elements: &[T]) -> Var<'_> {
        let made = Tensor::from_slice(shape, elements).ok_or_else(|| {
            Error::Input(format!("{} elements do not fill a tensor of shape {shape:?}", elements.len()))
        });
        self.add(Location::caller(), |g| Ok(g.constant(made?)))
    }

    /// Applies the op or scalar of that name. Attributes are passed by name; omitted ones take
    /// their defaults.
    ///
    /// ```
    /// # use hypatia::DType;
    /// # use hypatia::GraphBuilder;
    /// # use hypatia::{rules, shape};
    /// # let g = GraphBuilder::new(rules::load(&[])?);
    /// let x = g.input("x", DType::F32, shape!["rows", 16]);
    /// let y = g.call("softmax", &[x], &[("axis", (-1).into())]);
    /// assert_eq!(y.ty().unwrap().to_string(), "f32[rows, 16]");
    /// # Ok::<(), hypatia::Error>(())
    /// ```
    #[track_caller]
    pub fn call<'g>(&'g self, name: &str, operands: &[Var<'g>], attrs: &[(&str, AttrValue)]) -> Var<'g> {
        self.first(self.call_all(name, operands, attrs))
    }

    /// Like [`GraphBuilder::call`], but returns all results; empty after a mistake.
    #[track_caller]
    pub fn call_all<'g>(&'g self, name: &str, operands: &[Var<'g>], attrs: &[(&str, AttrValue)]) -> Vec<Var<'g>> {
        let Some(values) = operands.iter().map(|v| v.value).collect::<Option<Vec<Value>>>() else { return Vec::new() };
        self.add_all(Location::caller(), |g| {
            let called = g.call(name, &values, attrs);
            let known = g.program.find_op(name).is_some() || g.program.find_scalar(name).is_some();
            called.map_err(|e| if known { e } else { with_closest(g, name, e) })
        })
    }

    /// Concatenates tensors along an axis.
    #[track_caller]
    pub fn concat<'g>(&'g self, parts: &[Var<'g>], axis: i64) -> Var<'g> {
        self.builtin(Location::caller(), BuiltinOp::Concat, parts, vec![axis.into()])
    }

    /// Makes a value an output.
    pub fn output(&self, name: &str, value: Var<'_>) {
        if let Some(v) = value.value {
            self.graph.borrow_mut().output(name, v);
        }
    }

    /// Returns the graph, or all mistakes.
    pub fn finish(self) -> Result<Graph> {
        let mistakes = self.mistakes.into_inner();
        if !mistakes.is_empty() {
            return Err(Error::Type(mistakes.join("\n").into()));
        }
        let graph = self.graph.into_inner();
        graph.validate()?;
        Ok(graph)
    }

    /// Applies an op by name; operands may be absent. Called by the code that `hypatia_rules!`
    /// generates.
    #[doc(hidden)]
    #[track_caller]
    pub fn apply<'g>(&'g self, name: &str, operands: &[Option<Var<'g>>], attrs: &[(&str, AttrValue)]) -> Vec<Var<'g>> {
        if operands.iter().flatten().any(|v| v.value.is_none()) {
            return Vec::new();
        }
        let operands: Vec<Option<Value>> = operands.iter().map(|v| v.and_then(|v| v.value)).collect();
        self.add_all(Location::caller(), |g| g.named_op(name, &operands, attrs, None))
    }

    /// The first of several values.
    #[doc(hidden)]
    pub fn first<'g>(&'g self, values: Vec<Var<'g>>) -> Var<'g> {
        values.first().copied().unwrap_or(Var { builder: self, value: None })
    }

    fn add(&self, at: &Location<'_>, f: impl FnOnce(&mut Graph) -> Result<Value>) -> Var<'_> {
        self.first(self.add_all(at, |g| f(g).map(|v| vec![v])))
    }

    fn add_all(&self, at: &Location<'_>, f: impl FnOnce(&mut Graph) -> Result<Vec<Value>>) -> Vec<Var<'_>> {
        match f(&mut self.graph.borrow_mut()) {
            Ok(values) => values.into_iter().map(|v| Var { builder: self, value: Some(v) }).collect(),
            Err(e) => {
                let mut mistakes = self.mistakes.borrow_mut();
                if mistakes.len() < MAX_MISTAKES {
                    mistakes.push(format!("{}:{}: {e}", at.file(), at.line()));
                }
                Vec::new()
            }
        }
    }

    fn builtin<'g>(&'g self, at: &Location<'_>, op: BuiltinOp, operands: &[Var<'g>], attrs: Vec<AttrValue>) -> Var<'g> {
        let Some(values) = operands.iter().map(|v| v.value).collect::<Option<Vec<Value>>>() else {
            return Var { builder: self, value: None };
        };
        self.first(
            self.add_all(at, |g| g.builtin(op, &values, attrs).map_err(|e| with_operands(g, op.name(), &values, e))),
        )
    }

    fn scalar<'g>(&'g self, at: &Location<'_>, f: BuiltinScalar, operands: &[Var<'g>]) -> Var<'g> {
        let Some(values) = operands.iter().map(|v| v.value).collect::<Option<Vec<Value>>>() else {
            return Var { builder: self, value: None };
        };
        self.add(at, |g| g.builtin_scalar(f, &values).map_err(|e| with_operands(g, f.name(), &values, e)))
    }
}

/// Adds the closest declared name to an error about an undeclared one.
fn with_closest(g: &Graph, name: &str, e: Error) -> Error {
    let names = g.program.ops.iter().map(|o| o.name.as_str());
    match closest(name, names.chain(g.program.scalars.iter().map(|s| s.name.as_str()))) {
        Some(near) => Error::Input(format!("{e}; did you mean `{near}`?")),
        None => e,
    }
}

/// Adds the operand types to an error about an op.
fn with_operands(g: &Graph, name: &str, values: &[Value], e: Error) -> Error {
    let types: Vec<String> = values.iter().map(|v| g.ty(*v).to_string()).collect();
    Error::Type(TypeFault { code: e.code(), message: format!("{name}({}): {e}", types.join(", ")) })
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident = $f:ident),* $(,)?) => { $(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(self) -> Var<'g> {
            self.builder.scalar(Location::caller(), BuiltinScalar::$f, &[self])
        }
    )* };
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident = $op:ident),* $(,)?) => { $(
        $(#[$doc])*
        #[track_caller]
        pub fn $name(self, axes: &[i64], keepdims: bool) -> Var<'g> {
            self.builtin(Location::caller(), BuiltinOp::$op, vec![axes.into(), keepdims.into()])
        }
    )* };
}

impl<'g> Var<'g> {
    /// Its type; `None` after a mistake.
    pub fn ty(self) -> Option<TensorType> {
        self.value.map(|v| self.builder.graph.borrow().ty(v).clone())
    }

    /// Its sizes; empty after a mistake.
    pub fn shape(self) -> Shape {
        self.ty().map_or_else(Shape::new, |t| t.shape)
    }

    /// Names the value, for messages and reports.
    pub fn named(self, name: &str) -> Var<'g> {
        if let Some(v) = self.value {
            self.builder.graph.borrow_mut().name_node(v, name);
        }
        self
    }

    fn builtin(self, at: &Location<'_>, op: BuiltinOp, attrs: Vec<AttrValue>) -> Var<'g> {
        self.builder.builtin(at, op, &[self], attrs)
    }

    /// Matrix product over the last two axes; the axes before them broadcast.
    #[track_caller]
    pub fn matmul(self, other: Var<'g>) -> Var<'g> {
        self.builder.builtin(Location::caller(), BuiltinOp::Matmul, &[self, other], Vec::new())
    }

    /// Reshape; see [`shape!`](crate::shape).
    #[track_caller]
    pub fn reshape(self, shape: Shape) -> Var<'g> {
        self.builtin(Location::caller(), BuiltinOp::Reshape, vec![shape.into()])
    }

    /// Broadcasts to that shape.
    #[track_caller]
    pub fn expand(self, shape: Shape) -> Var<'g> {
        self.builtin(Location::caller(), BuiltinOp::Expand, vec![shape.into()])
    }

    /// Transpose: axis `i` of the result is axis `perm[i]`.
    #[track_caller]
    pub fn transpose(self, perm: &[i64]) -> Var<'g> {
        self.builtin(Location::caller(), BuiltinOp::Transpose, vec![perm.into()])
    }

    /// Slice: the elements from `start` up to `stop` along an axis.
    #[track_caller]
    pub fn slice(self, axis: i64, start: impl Size, stop: impl Size) -> Var<'g> {
        let attrs = vec![axis.into(), start.dim().into(), stop.dim().into(), 1.into()];
        self.builtin(Location::caller(), BuiltinOp::Slice, attrs)
    }

    /// Gathers the slices along an axis that the indices select.
    #[track_caller]
    pub fn gather(self, indices: Var<'g>, axis: i64) -> Var<'g> {
        self.builder.builtin(Location::caller(), BuiltinOp::Gather, &[self, indices], vec![axis.into()])
    }

    /// Casts to another element type.
    #[track_caller]
    pub fn cast(self, to: DType) -> Var<'g> {
        self.builtin(Location::caller(), BuiltinOp::Cast, vec![to.into()])
    }

    reductions! {
        /// Sum over axes.
        sum = Sum,
        /// Mean over axes.
        mean = Mean,
        /// Maximum over axes.
        amax = Amax,
        /// Minimum over axes.
        amin = Amin,
    }

    unary! {
        /// e^x
        exp = Exp,
        /// Natural logarithm.
        log = Log,
        /// Square root.
        sqrt = Sqrt,
        /// 1 / sqrt(x)
        rsqrt = Rsqrt,
        /// Error function.
        erf = Erf,
        /// Hyperbolic tangent.
        tanh = Tanh,
        /// Absolute value.
        abs = Abs,
    }

    /// A scalar operand for this value, in its element type.
    fn number(self, number: f64, at: &Location<'_>) -> Var<'g> {
        match self.ty() {
            Some(ty) => self.builder.add(at, |g| g.number(ty.dtype, number)),
            None => self,
        }
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident = $f:ident),* $(,)?) => { $(
        impl<'g> ops::$trait for Var<'g> {
            type Output = Var<'g>;
            #[track_caller]
            fn $method(self, other: Var<'g>) -> Var<'g> {
                self.builder.scalar(Location::caller(), BuiltinScalar::$f, &[self, other])
            }
        }
        impl<'g> ops::$trait<f64> for Var<'g> {
            type Output = Var<'g>;
            #[track_caller]
            fn $method(self, other: f64) -> Var<'g> {
                let other = self.number(other, Location::caller());
                self.builder.scalar(Location::caller(), BuiltinScalar::$f, &[self, other])
            }
        }
        impl<'g> ops::$trait<Var<'g>> for f64 {
            type Output = Var<'g>;
            #[track_caller]
            fn $method(self, other: Var<'g>) -> Var<'g> {
                let this = other.number(self, Location::caller());
                other.builder.scalar(Location::caller(), BuiltinScalar::$f, &[this, other])
            }
        }
    )* };
}
operators!(Add add = Add, Sub sub = Sub, Mul mul = Mul, Div div = Div, Rem rem = Fmod);

impl<'g> ops::Neg for Var<'g> {
    type Output = Var<'g>;
    #[track_caller]
    fn neg(self) -> Var<'g> {
        self.builder.scalar(Location::caller(), BuiltinScalar::Neg, &[self])
    }
}
