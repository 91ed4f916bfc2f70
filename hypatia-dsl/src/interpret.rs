//! The interpreter of [`Build`] expressions: right sides, op bodies, and expressions in tests.
//!
//! In: an expression and a [`Host`], which says what variables stand for and how nodes are made.
//! Hosts are a graph, an e-graph, a proof, a kernel that is derived from a body, which has no terms
//! of its own, and a rule about terms, which has no tensors. Out: a tensor or a scalar term of the
//! host. Invariant: a number takes the element type of the first sibling operand that holds
//! numbers, else the element type of what the expression replaces. Operands are built from left to
//! right: first those with an element type of their own, the term last.

use std::ops::Deref;

use crate::dtype::{DType, Kind};
use crate::ir::{
    AExpr, AttrValue, Build, BuildArg, BuildNode, Head, InView, OpId, ParamKind, Program, ScalarId, VarId,
};
use crate::neutral::without_absent;
use crate::typing::show_value;

/// The value of a comprehension variable while its comprehension is built.
pub type Item<V> = (VarId, V);

/// A target in which expressions are built.
pub trait Host: Sized {
    /// A tensor, or an absent operand.
    type Value: Copy;
    /// A node of a scalar term.
    type Term: Copy;
    /// A whole term, as an op's operand.
    type Epilogue;
    /// Why something cannot be built.
    type Error;

    /// A reference to a program.
    type Program: Deref<Target = Program> + Clone;
    /// The program of the expression.
    fn program(&self) -> &Self::Program;
    /// The error for an ill-typed expression.
    fn ill_typed(message: String) -> Self::Error;
    /// Goes one level deeper into expressions; an error if the depth limit is exceeded.
    fn descend(&mut self) -> Result<(), Self::Error>;
    /// Undoes [`Host::descend`].
    fn ascend(&mut self);

    /// What a variable of sort Tensor stands for.
    fn variable(&mut self, v: VarId) -> Result<Self::Value, Self::Error>;
    /// Whether a variable of sort Tensor is bound to an absent operand.
    fn is_absent(&self, v: VarId) -> bool;
    /// What a variable of sort Tensors stands for.
    fn variables(&self, v: VarId) -> Result<Vec<Self::Value>, Self::Error>;
    /// What a variable of sort Term stands for, inside the current term; `None` if it is absent.
    fn term_variable(&mut self, _v: VarId) -> Result<Option<Self::Term>, Self::Error> {
        Err(Self::without_terms())
    }
    /// The value of an attribute expression; `None` if it is unknown.
    fn eval(&self, expr: &AExpr, items: &[Item<Self::Value>]) -> Option<AttrValue>;
    /// The element type of a tensor that is present.
    fn dtype(&self, value: Self::Value) -> Option<DType>;

    /// An absent operand.
    fn absent(&mut self) -> Result<Self::Value, Self::Error>;
    /// A constant of rank 0 with the value of that expression.
    fn number(&mut self, expr: &AExpr, value: f64, dtype: DType) -> Result<Self::Value, Self::Error>;
    /// A scalar function applied to tensors.
    fn scalar(&mut self, scalar: ScalarId, operands: &[Self::Value]) -> Result<Self::Value, Self::Error>;
    /// A result of an op, or of its body.
    fn op(&mut self, application: Application<'_, Self>) -> Result<Self::Value, Self::Error>;
    /// Applies the pointwise region that a variable is bound to, to these tensors.
    fn region(&mut self, _v: VarId, _operands: &[Self::Value]) -> Result<Self::Value, Self::Error> {
        Err(Self::ill_typed("it applies work that is not known here".into()))
    }

    /// The error of a host without terms, which implements none of the functions that follow.
    fn without_terms() -> Self::Error {
        Self::ill_typed("it is a term".into())
    }

    /// Starts a term: the nodes made from here on belong to it.
    fn begin_term(&mut self) {}
    /// Ends a term that is complete, or that failed.
    fn end_term(&mut self, root: Result<Self::Term, Self::Error>) -> Result<Self::Epilogue, Self::Error> {
        root.and_then(|_| Err(Self::without_terms()))
    }
    /// The accumulator.
    fn acc(&mut self) -> Result<Self::Term, Self::Error> {
        Err(Self::without_terms())
    }
    /// A term with the second accumulator in place of the first.
    fn second(&mut self, _arg: Self::Term) -> Result<Self::Term, Self::Error> {
        Err(Self::without_terms())
    }
    /// A tensor that the term reads.
    fn read(&mut self, _view: InView, _value: Self::Value) -> Result<Self::Term, Self::Error> {
        Err(Self::without_terms())
    }
    /// A number with the value of that expression.
    fn literal(&mut self, _expr: &AExpr, _value: f64) -> Result<Self::Term, Self::Error> {
        Err(Self::without_terms())
    }
    /// A scalar function inside a term.
    fn call(&mut self, _scalar: ScalarId, _args: &[Self::Term]) -> Result<Self::Term, Self::Error> {
        Err(Self::without_terms())
    }
    /// A cast inside a term.
    fn cast(&mut self, _to: DType, _arg: Self::Term) -> Result<Self::Term, Self::Error> {
        Err(Self::without_terms())
    }
    /// Applies the pointwise region that a variable is bound to, inside a term.
    fn region_term(&mut self, _v: VarId, _args: &[Self::Term]) -> Result<Self::Term, Self::Error> {
        Err(Self::without_terms())
    }

    /// Starts the operands of a head; [`Host::leave`] ends them.
    fn enter(&mut self, _head: Head) {}
    /// Ends the operands of a head.
    fn leave(&mut self) {}
    /// Starts the contents of `build(...)`; [`Host::thaw`] ends them.
    fn freeze(&mut self) {}
    /// Ends the contents of `build(...)`.
    fn thaw(&mut self, value: Self::Value) -> Result<Self::Value, Self::Error> {
        Ok(value)
    }
}

/// An application of an op.
pub struct Application<'a, H: Host> {
    /// The op.
    pub op: OpId,
    /// Which result is requested.
    pub output: u32,
    /// Tensors, in the order of the declaration.
    pub operands: &'a [H::Value],
    /// The evaluated attributes, one value each.
    pub attrs: Vec<AttrValue>,
    /// Its term, and the number of operands declared before it.
    pub term: Option<(usize, H::Epilogue)>,
}

/// Builds a tensor. A number that stands alone takes the element type `hint`.
pub fn build_tensor<H: Host>(host: &mut H, build: &Build, hint: Option<DType>) -> Result<H::Value, H::Error> {
    Interpreter { host, items: Vec::new() }.tensor(build, hint)
}

/// The value of a number expression.
pub fn build_number<H: Host>(host: &mut H, expr: &AExpr) -> Result<f64, H::Error> {
    Interpreter { host, items: Vec::new() }.number(expr)
}

/// Builds a term.
pub fn build_term<H: Host>(host: &mut H, build: &Build) -> Result<H::Epilogue, H::Error> {
    Interpreter { host, items: Vec::new() }.epilogue(build)
}

struct Interpreter<'h, H: Host> {
    host: &'h mut H,
    /// Variables of comprehensions over operands, innermost last.
    items: Vec<Item<H::Value>>,
}

/// An operand to be built.
enum Argument<'b, V> {
    Build(&'b Build, Option<Item<V>>),
    Built(V),
}

fn failure<H: Host, T>(message: impl Into<String>) -> Result<T, H::Error> {
    Err(H::ill_typed(message.into()))
}

impl<H: Host> Interpreter<'_, H> {
    fn tensor(&mut self, build: &Build, hint: Option<DType>) -> Result<H::Value, H::Error> {
        self.host.descend()?;
        let result = self.tensor_inner(build, hint);
        self.host.ascend();
        result
    }

    fn tensor_inner(&mut self, build: &Build, hint: Option<DType>) -> Result<H::Value, H::Error> {
        match build {
            Build::Var(v) => self.variable(*v),
            Build::Absent => self.host.absent(),
            Build::Number(expr) => {
                let value = self.number(expr)?;
                let Some(dtype) = hint else {
                    return failure::<H, _>(format!(
                        "the number {value} has no element type here: combine it with a tensor, whose type it takes"
                    ));
                };
                self.host.number(expr, value, dtype)
            }
            Build::Else(v, other) if self.is_absent(*v) => self.tensor(other, hint),
            Build::Else(v, _) => self.variable(*v),
            Build::Frozen(inner) => {
                self.host.freeze();
                let value = self.tensor(inner, hint)?;
                self.host.thaw(value)
            }
            Build::If(guard, a, b) => {
                let branch = if self.truth(guard)? { a } else { b };
                self.tensor(branch, hint)
            }
            Build::Node(node) => {
                let program = self.host.program().clone();
                if let Some(rest) = without_absent(&program, node, &|v| self.is_absent(v)) {
                    return self.tensor(rest, hint);
                }
                match node.head {
                    Head::Op(op) => self.op(op, node, hint),
                    Head::Scalar(scalar) => self.scalar(scalar, node, hint),
                    Head::Region(v) => {
                        let args = single_args::<H>(node)?;
                        let args = args.into_iter().map(|b| self.tensor(b, hint)).collect::<Result<Vec<_>, _>>()?;
                        self.host.region(v, &args)
                    }
                    Head::Acc | Head::Second | Head::In(_) | Head::TermCast => {
                        failure::<H, _>("an epilogue term is used outside of an epilogue")
                    }
                }
            }
        }
    }

    fn variable(&mut self, v: VarId) -> Result<H::Value, H::Error> {
        match self.items.iter().rev().find(|(w, _)| *w == v) {
            Some((_, value)) => Ok(*value),
            None => self.host.variable(v),
        }
    }

    fn is_absent(&self, v: VarId) -> bool {
        !self.items.iter().any(|(w, _)| *w == v) && self.host.is_absent(v)
    }

    fn eval(&self, expr: &AExpr) -> Option<AttrValue> {
        self.host.eval(expr, &self.items)
    }

    fn number(&self, expr: &AExpr) -> Result<f64, H::Error> {
        match self.eval(expr) {
            Some(AttrValue::Float(v)) => Ok(v),
            Some(AttrValue::Bool(b)) => Ok(f64::from(u8::from(b))),
            Some(AttrValue::Dim(d)) => match d.as_const() {
                Some(c) => Ok(c as f64),
                None => failure::<H, _>(format!("the size `{d}` is not known, so it cannot be used as a number")),
            },
            Some(other) => failure::<H, _>(format!("{} is not a number", show_value(&other))),
            None => failure::<H, _>("a number of the expression cannot be computed here"),
        }
    }

    fn truth(&self, guard: &AExpr) -> Result<bool, H::Error> {
        match self.eval(guard) {
            Some(AttrValue::Bool(b)) => Ok(b),
            _ => failure::<H, _>("the condition of an `if` cannot be decided here"),
        }
    }

    /// True if the expression takes its element type from outside: it contains no tensor.
    fn needs_hint(&self, build: &Build) -> bool {
        match build {
            Build::Number(_) => true,
            Build::Var(_) | Build::Absent => false,
            Build::Else(v, other) => self.is_absent(*v) && self.needs_hint(other),
            Build::Frozen(inner) => self.needs_hint(inner),
            Build::If(guard, a, b) => match self.truth(guard) {
                Ok(true) => self.needs_hint(a),
                Ok(false) => self.needs_hint(b),
                Err(_) => false,
            },
            Build::Node(node) => {
                let program = self.host.program();
                let (is_number, of_numbers) = match node.head {
                    Head::Scalar(s) => {
                        let def = program.scalar(s);
                        (def.result == Kind::Number, Some(&def.params))
                    }
                    Head::Op(_) => (true, None),
                    Head::Acc | Head::Second | Head::In(_) | Head::TermCast | Head::Region(_) => return false,
                };
                let decides =
                    |i: usize| of_numbers.is_none_or(|params| params.get(i).is_some_and(|p| p.1 == Kind::Number));
                let mut args = node.args.iter().enumerate().filter(|(i, _)| decides(*i)).peekable();
                let waits = |a: &BuildArg| matches!(a, BuildArg::One(b) if self.needs_hint(b));
                is_number && args.peek().is_some() && args.all(|(_, a)| waits(a))
            }
        }
    }

    fn scalar(&mut self, scalar: ScalarId, node: &BuildNode, hint: Option<DType>) -> Result<H::Value, H::Error> {
        let program = self.host.program().clone();
        let def = program.scalar(scalar);
        let Ok(args) = single_args::<H>(node) else {
            return failure::<H, _>(format!("`{}` is a scalar: it takes no list of operands", def.name));
        };
        let is_number = |i: usize| def.params.get(i).is_none_or(|p| p.1 == Kind::Number);
        let outer = if def.result == Kind::Number { hint } else { None };
        let mut values: Vec<Option<H::Value>> = vec![None; args.len()];
        let mut dtype = None;
        self.host.enter(node.head);
        for (i, arg) in args.iter().enumerate().filter(|(_, a)| !self.needs_hint(a)).collect::<Vec<_>>() {
            let value = self.tensor(arg, None)?;
            values[i] = Some(value);
            if is_number(i) {
                dtype = dtype.or(self.host.dtype(value));
            }
        }
        for (i, arg) in args.iter().enumerate() {
            if values[i].is_none() {
                let hint = if is_number(i) { dtype.or(outer) } else { Some(DType::Bool) };
                values[i] = Some(self.tensor(arg, hint)?);
            }
        }
        self.host.leave();
        let values: Vec<H::Value> = values.into_iter().flatten().collect();
        self.host.scalar(scalar, &values)
    }

    fn op(&mut self, op: OpId, node: &BuildNode, hint: Option<DType>) -> Result<H::Value, H::Error> {
        let program = self.host.program().clone();
        let def = program.op(op);
        let params: Vec<&ParamKind> = def.operands().map(|(_, p)| &p.kind).collect();
        let (mut term, mut args) = (None, Vec::new());
        for (i, arg) in node.args.iter().enumerate() {
            match (arg, params.get(i).or(params.last())) {
                (BuildArg::One(b), Some(ParamKind::Term)) => term = Some((args.len(), b)),
                (BuildArg::One(b), _) => args.push(Argument::Build(b, None)),
                (BuildArg::Spread(v), _) => args.extend(self.host.variables(*v)?.into_iter().map(Argument::Built)),
                (BuildArg::Each { element, item, over }, _) => {
                    let values = self.host.variables(*over)?;
                    args.extend(values.into_iter().map(|v| Argument::Build(element, Some((*item, v)))));
                }
            }
        }
        self.host.enter(node.head);
        let operands = self.operands(&args, hint)?;
        let mut attrs = Vec::with_capacity(node.attrs.len());
        for (expr, (_, param)) in node.attrs.iter().zip(def.attrs()) {
            let Some(value) = self.eval(expr) else {
                return failure::<H, _>(format!(
                    "attribute `{}` of `{}` cannot be computed here",
                    param.name, def.name
                ));
            };
            attrs.push(value);
        }
        let term = match term {
            Some((at, build)) => Some((at, self.epilogue(build)?)),
            None => None,
        };
        self.host.leave();
        self.host.op(Application { op, output: node.output, operands: &operands, attrs, term })
    }

    /// Builds the tensor operands: first those with an element type of their own, then numbers.
    fn operands(&mut self, args: &[Argument<'_, H::Value>], hint: Option<DType>) -> Result<Vec<H::Value>, H::Error> {
        let mut values: Vec<Option<H::Value>> = vec![None; args.len()];
        // Booleans determine the type of sibling numbers only if there is no other operand.
        let (mut dtype, mut truth) = (None, None);
        for waiting in [false, true] {
            for (i, arg) in args.iter().enumerate() {
                if values[i].is_some() {
                    continue;
                }
                let value = match arg {
                    Argument::Built(value) => *value,
                    Argument::Build(build, item) => {
                        self.items.extend(*item);
                        let due = waiting || !self.needs_hint(build);
                        let hint = if waiting { dtype.or(truth).or(hint) } else { None };
                        let value = if due { Some(self.tensor(build, hint)) } else { None };
                        self.items.truncate(self.items.len() - usize::from(item.is_some()));
                        let Some(value) = value else { continue };
                        value?
                    }
                };
                values[i] = Some(value);
                match self.host.dtype(value).filter(|_| !waiting) {
                    Some(DType::Bool) => truth = truth.or(Some(DType::Bool)),
                    other => dtype = dtype.or(other),
                }
            }
        }
        Ok(values.into_iter().flatten().collect())
    }

    fn epilogue(&mut self, build: &Build) -> Result<H::Epilogue, H::Error> {
        self.host.begin_term();
        let root = self.term(build);
        self.host.end_term(root)
    }

    fn term(&mut self, build: &Build) -> Result<H::Term, H::Error> {
        self.host.descend()?;
        let result = self.term_inner(build);
        self.host.ascend();
        result
    }

    fn term_inner(&mut self, build: &Build) -> Result<H::Term, H::Error> {
        match build {
            Build::Var(v) => match self.host.term_variable(*v)? {
                Some(term) => Ok(term),
                None => failure::<H, _>("an epilogue uses an absent operand"),
            },
            Build::Else(v, other) => match self.host.term_variable(*v)? {
                Some(term) => Ok(term),
                None => self.term(other),
            },
            Build::Number(expr) => {
                let value = self.number(expr)?;
                self.host.literal(expr, value)
            }
            Build::Frozen(inner) => self.term(inner),
            Build::If(guard, a, b) => {
                let branch = if self.truth(guard)? { a } else { b };
                self.term(branch)
            }
            Build::Absent => failure::<H, _>("an epilogue uses an absent operand"),
            Build::Node(node) => self.term_node(node),
        }
    }

    fn term_node(&mut self, node: &BuildNode) -> Result<H::Term, H::Error> {
        let args = single_args::<H>(node)?;
        let one = || match args.first() {
            Some(b) => Ok(*b),
            None => failure::<H, _>("a function in an epilogue lacks its argument"),
        };
        match node.head {
            Head::Acc => self.host.acc(),
            Head::Second => {
                let arg = self.term(one()?)?;
                self.host.second(arg)
            }
            Head::In(view) => {
                let value = self.tensor(one()?, None)?;
                self.host.read(view, value)
            }
            Head::TermCast => {
                let Some(AttrValue::DType(to)) = node.attrs.first().and_then(|a| self.eval(a)) else {
                    return failure::<H, _>("the type of a cast in an epilogue cannot be computed here");
                };
                let arg = self.term(one()?)?;
                self.host.cast(to, arg)
            }
            Head::Scalar(scalar) => {
                let args = args.into_iter().map(|b| self.term(b)).collect::<Result<Vec<_>, _>>()?;
                self.host.call(scalar, &args)
            }
            Head::Region(v) => {
                let args = args.into_iter().map(|b| self.term(b)).collect::<Result<Vec<_>, _>>()?;
                self.host.region_term(v, &args)
            }
            Head::Op(op) => {
                let name = &self.host.program().op(op).name;
                failure::<H, _>(format!("an epilogue calls the op `{name}`, but may call scalars only"))
            }
        }
    }
}

/// The operands of an op that takes no list.
fn single_args<H: Host>(node: &BuildNode) -> Result<Vec<&Build>, H::Error> {
    let single = node.args.iter().map(|arg| match arg {
        BuildArg::One(build) => Ok(build),
        _ => failure::<H, _>("a function takes no list of operands"),
    });
    single.collect()
}
