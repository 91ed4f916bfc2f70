//! Right sides, op bodies and tests' expressions as nodes of a graph.
//!
//! In: a [`Build`] expression and an [`Env`] that says what its variables stand for. Out: nodes in
//! a graph, equal ones shared (hash-consing), and with `unfolding` every defined op replaced by its
//! body. Holds always: numbers become constants of rank 0 in the dtype of the operand beside them;
//! work is bounded by a depth and a number of nodes, so that no expression of a user's file can
//! exhaust stack or memory.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use hypatia_dsl::dtype::{DType, Kind};
use hypatia_dsl::ir::{
    AExpr, AttrType, AttrValue, Build, BuildArg, BuildNode, Head, OpBody, OpId, ParamKind, ScalarId, TypePat, VarId,
};
use hypatia_dsl::neutral::without_absent;
use hypatia_dsl::scalar::{Literal, Term, TermId, TermNode};
use hypatia_dsl::typing::{Bindings, TensorType, TypeError, codes, eval, match_type};

use super::build::tensor_params;
use super::{Graph, GraphFacts, NodeKind, Value};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// What the variables of a rule, op or test stand for.
#[derive(Clone, Debug, Default)]
pub struct Env {
    /// Tensors.
    pub tensors: HashMap<VarId, Value>,
    /// Optional operands that are absent.
    pub absent: HashSet<VarId>,
    /// Variadic operands.
    pub variadics: HashMap<VarId, Vec<Value>>,
    /// Epilogue terms.
    pub terms: HashMap<VarId, BoundTerm>,
    /// Attributes, sizes, shapes and dtypes.
    pub attrs: Bindings,
    /// The dtype of a number that stands alone: that of the value it replaces.
    pub number: Option<DType>,
}

/// A term with the tensors that it reads.
#[derive(Clone, Debug)]
pub struct BoundTerm {
    /// The term.
    pub term: Term,
    /// Operand `i` of the term.
    pub reads: Vec<Value>,
}

/// Nested expressions and op bodies at most; deeper ones are an error, not a stack overflow.
const MAX_DEPTH: usize = 400;

/// Nodes that one instantiator may add at most; [`Graph::unfold`] scales it with the graph.
const MAX_NODES: usize = 100_000;

/// Builds expressions into a graph.
pub struct Instantiator<'g> {
    /// The graph that grows.
    pub graph: &'g mut Graph,
    shared: HashMap<Key, Vec<Value>>,
    unfold: bool,
    depth: usize,
    limit: usize,
    /// The numbers behind the constants that were made of numbers.
    pub numbers: Numbers,
}

/// For constants that stand for a number of a rule or body: the number before it was rounded to the
/// constant's element type, by the address of the constant's tensor.
pub type Numbers = HashMap<usize, f64>;

/// What makes two nodes equal.
#[derive(PartialEq, Eq, Hash)]
enum Key {
    Number(DType, u64),
    Const(usize),
    Scalar(ScalarId, Vec<Value>),
    /// Attributes and term as text: they hold floats, which have no equality.
    Op(OpId, Vec<Option<Value>>, String),
}

/// An operand that has been built.
enum Slot {
    Value(Value),
    Absent,
}

impl<'g> Instantiator<'g> {
    /// Builds nodes as they are written.
    pub fn new(graph: &'g mut Graph) -> Instantiator<'g> {
        let limit = graph.nodes.len() + MAX_NODES;
        Instantiator { graph, shared: HashMap::new(), unfold: false, depth: 0, limit, numbers: Numbers::new() }
    }

    /// Builds nodes with every defined op replaced by its body.
    pub fn unfolding(graph: &'g mut Graph) -> Instantiator<'g> {
        Instantiator { unfold: true, ..Instantiator::new(graph) }
    }

    /// Allows that many more nodes than the default.
    pub(super) fn allow(&mut self, nodes: usize) {
        self.limit = self.limit.saturating_add(nodes);
    }

    /// The value of an expression; an error if it is an absent operand.
    pub fn build(&mut self, build: &Build, env: &Env) -> Result<Value> {
        match self.slot(build, env, env.number)? {
            Slot::Value(v) => Ok(v),
            Slot::Absent => Err(Error::Type("an absent operand has no value".into())),
        }
    }

    /// The term of an expression of sort Term, with the tensors it reads.
    pub fn build_term(&mut self, build: &Build, env: &Env) -> Result<BoundTerm> {
        let mut bound = BoundTerm { term: Term::empty(), reads: Vec::new() };
        let root = self.term(build, env, &mut bound)?;
        bound.term.roots = vec![root];
        Ok(bound)
    }

    /// The value of an attribute expression of a given type.
    pub fn attr(&self, expr: &AExpr, env: &Env) -> Option<AttrValue> {
        eval(expr, &env.attrs, &GraphFacts { graph: self.graph, env })
    }

    /// A constant; the same tensor is one node.
    pub fn constant(&mut self, tensor: &Arc<Tensor>) -> Result<Value> {
        let key = Key::Const(Arc::as_ptr(tensor) as usize);
        self.share(key, |this| Ok(vec![this.graph.constant(tensor.clone())])).map(|v| v[0])
    }

    /// A constant of rank 0; the same bits are one node. An integer type must hold the number as it is.
    pub fn number(&mut self, dtype: DType, value: f64) -> Result<Value> {
        if dtype.is_int() && dtype.round(value) != value {
            let message = format!("the number {value} stands beside {dtype}, which does not hold it");
            return Err(TypeError::new(codes::DTYPE, message).into());
        }
        let key = Key::Number(dtype, value.to_bits());
        self.share(key, |this| {
            let made = this.graph.number(dtype, value)?;
            if let NodeKind::Const(t) = &this.graph.node(made.node).kind {
                this.numbers.insert(Arc::as_ptr(t) as usize, value);
            }
            Ok(vec![made])
        })
        .map(|v| v[0])
    }

    /// A scalar function of tensors.
    pub fn scalar(&mut self, scalar: ScalarId, operands: &[Value]) -> Result<Value> {
        let key = Key::Scalar(scalar, operands.to_vec());
        self.share(key, |this| Ok(vec![this.graph.scalar(scalar, operands)?])).map(|v| v[0])
    }

    /// An op, or its body where it has one and the instantiator unfolds. All results.
    pub fn op(
        &mut self,
        op: OpId,
        operands: &[Option<Value>],
        attrs: &[AttrValue],
        term: Option<Term>,
    ) -> Result<Vec<Value>> {
        let (attrs, results) = self.graph.type_op(op, operands, attrs, term.as_ref())?;
        let key = Key::Op(op, operands.to_vec(), format!("{attrs:?} {term:?}"));
        self.share(key, |this| {
            let program = this.graph.program.clone();
            match &program.op(op).body {
                OpBody::Defined(body) if this.unfold => this.expand(op, operands, &attrs, term, body, &results),
                _ => Ok(this.graph.push_op(op, attrs, term, operands, results)),
            }
        })
    }

    fn share(&mut self, key: Key, make: impl FnOnce(&mut Self) -> Result<Vec<Value>>) -> Result<Vec<Value>> {
        if let Some(values) = self.shared.get(&key) {
            return Ok(values.clone());
        }
        if self.graph.nodes.len() >= self.limit {
            return Err(Error::Limit(format!("the graph grows past {} nodes while ops are unfolded", self.limit)));
        }
        let values = make(self)?;
        self.shared.insert(key, values.clone());
        Ok(values)
    }

    /// The body of a defined op over these operands.
    fn expand(
        &mut self,
        op: OpId,
        operands: &[Option<Value>],
        attrs: &[AttrValue],
        term: Option<Term>,
        body: &[Build],
        results: &[TensorType],
    ) -> Result<Vec<Value>> {
        let program = self.graph.program.clone();
        let def = program.op(op);
        let env = self.op_env(op, operands, attrs, term)?;
        let mut values = Vec::with_capacity(body.len());
        for (build, wanted) in body.iter().zip(results) {
            let value = self.build(build, &env).map_err(|e| match e {
                Error::Type(m) => Error::Type(m.at(format_args!("in the body of `{}`", def.name))),
                e => e,
            })?;
            let got = self.graph.ty(value);
            if got != wanted {
                let message = format!("the body of `{}` gives {got}, but its declaration says {wanted}", def.name);
                return Err(Error::Type(message.into()));
            }
            values.push(value);
        }
        Ok(values)
    }

    /// What the variables of an op stand for in one application of it.
    pub fn op_env(&self, op: OpId, operands: &[Option<Value>], attrs: &[AttrValue], term: Option<Term>) -> Result<Env> {
        let program = self.graph.program.clone();
        let def = program.op(op);
        let mut env = Env::default();
        let (mut attrs, mut next) = (attrs.iter(), 0);
        let reads_from = if term.is_some() { tensor_params(def) } else { operands.len() };
        for (i, param) in def.params.iter().enumerate() {
            let var = VarId(i as u32);
            match &param.kind {
                ParamKind::Attr { .. } => {
                    if let Some(value) = attrs.next() {
                        env.attrs.values.insert(var, value.clone());
                    }
                }
                ParamKind::Term => {
                    let reads = operands.get(reads_from..).unwrap_or_default().iter().flatten().copied().collect();
                    if let Some(term) = term.clone() {
                        env.terms.insert(var, BoundTerm { term, reads });
                    }
                }
                ParamKind::Tensor { ty, variadic, .. } => {
                    let upto = if *variadic { reads_from } else { (next + 1).min(reads_from) };
                    let mine: Vec<Value> =
                        operands.get(next..upto).unwrap_or_default().iter().flatten().copied().collect();
                    next = upto;
                    for v in &mine {
                        self.bind_type(ty, *v, &mut env.attrs);
                        env.number.get_or_insert(self.graph.ty(*v).dtype);
                    }
                    match (variadic, mine.first()) {
                        (true, _) => drop(env.variadics.insert(var, mine)),
                        (false, Some(v)) => drop(env.tensors.insert(var, *v)),
                        (false, None) => drop(env.absent.insert(var)),
                    }
                }
            }
        }
        Ok(env)
    }

    /// Binds the variables of an operand's type. That it matches was checked by the typing rules.
    fn bind_type(&self, pat: &TypePat, value: Value, bindings: &mut Bindings) {
        let mut trial = bindings.clone();
        if match_type(pat, self.graph.ty(value), &mut trial) != Some(false) {
            *bindings = trial;
        }
    }

    fn slot(&mut self, build: &Build, env: &Env, hint: Option<DType>) -> Result<Slot> {
        self.depth += 1;
        let result = if self.depth > MAX_DEPTH {
            Err(Error::Limit(format!("an expression is nested more than {MAX_DEPTH} deep")))
        } else {
            self.slot_inner(build, env, hint)
        };
        self.depth -= 1;
        result
    }

    fn slot_inner(&mut self, build: &Build, env: &Env, hint: Option<DType>) -> Result<Slot> {
        match build {
            Build::Var(v) => match env.tensors.get(v) {
                Some(value) => Ok(Slot::Value(*value)),
                None if env.absent.contains(v) => Ok(Slot::Absent),
                None => Err(Error::Internal(format!("variable {} stands for no tensor", v.0))),
            },
            Build::Number(expr) => {
                let value = self.number_of(expr, env)?;
                let dtype = hint.ok_or_else(|| {
                    Error::Type(
                        format!("the number {value} needs a tensor beside it, whose element type it takes").into(),
                    )
                })?;
                Ok(Slot::Value(self.number(dtype, value)?))
            }
            Build::Else(v, other) => match env.tensors.get(v) {
                Some(value) => Ok(Slot::Value(*value)),
                None => self.slot(other, env, hint),
            },
            Build::Frozen(inner) => self.slot(inner, env, hint),
            Build::Absent => Ok(Slot::Absent),
            Build::If(guard, a, b) => {
                let branch = if self.truth(guard, env)? { a } else { b };
                self.slot(branch, env, hint)
            }
            Build::Node(node) => {
                let absent = |v: VarId| !env.tensors.contains_key(&v);
                let program = self.graph.program.clone();
                if let Some(rest) = without_absent(&program, node, &absent) {
                    return self.slot(rest, env, hint);
                }
                let results = match node.head {
                    Head::Op(op) => self.op_node(op, node, env, hint)?,
                    Head::Scalar(scalar) => vec![self.scalar_node(scalar, node, env, hint)?],
                    Head::Acc | Head::In(_) | Head::TermCast | Head::Region(_) => {
                        return Err(Error::Type("an epilogue term stands outside of an epilogue".into()));
                    }
                };
                let value = results.get(node.output as usize).ok_or_else(|| {
                    Error::Type(format!("result {} of {} is asked for", node.output, results.len()).into())
                })?;
                Ok(Slot::Value(*value))
            }
        }
    }

    fn number_of(&self, expr: &AExpr, env: &Env) -> Result<f64> {
        match self.attr(expr, env) {
            Some(AttrValue::Float(v)) => Ok(v),
            Some(AttrValue::Dim(d)) => d.as_const().map(|c| c as f64).ok_or_else(|| {
                Error::Type(format!("the size `{d}` is not known, so it cannot be used as a number").into())
            }),
            Some(AttrValue::Bool(b)) => Ok(b as u8 as f64),
            Some(other) => Err(Error::Type(format!("{} is not a number", super::print::show_attr(&other)).into())),
            None => Err(Error::Type("a number of the expression cannot be computed here".into())),
        }
    }

    fn truth(&self, guard: &AExpr, env: &Env) -> Result<bool> {
        match self.attr(guard, env) {
            Some(AttrValue::Bool(b)) => Ok(b),
            _ => Err(Error::Type("the condition of an `if` cannot be decided here".into())),
        }
    }

    /// True if the expression takes its dtype from outside: it has no tensor of its own.
    fn needs_hint(&self, build: &Build, env: &Env, depth: usize) -> bool {
        let more = |b: &Build| depth < MAX_DEPTH && self.needs_hint(b, env, depth + 1);
        match build {
            Build::Number(_) => true,
            Build::Var(_) | Build::Absent => false,
            Build::Else(v, other) => !env.tensors.contains_key(v) && more(other),
            Build::Frozen(inner) => more(inner),
            Build::If(guard, a, b) => match self.truth(guard, env) {
                Ok(true) => more(a),
                Ok(false) => more(b),
                Err(_) => false,
            },
            Build::Node(node) => {
                let operand = |i: usize| match node.head {
                    Head::Scalar(s) => self.graph.program.scalar(s).params.get(i).is_some_and(|p| p.1 == Kind::Number),
                    _ => true,
                };
                let is_number = match node.head {
                    Head::Scalar(s) => self.graph.program.scalar(s).result == Kind::Number,
                    Head::Op(_) => true,
                    Head::Acc | Head::In(_) | Head::TermCast | Head::Region(_) => false,
                };
                let mut args = node.args.iter().enumerate().filter(|(i, _)| operand(*i)).peekable();
                is_number && args.peek().is_some() && args.all(|(_, a)| matches!(a, BuildArg::One(b) if more(b)))
            }
        }
    }

    fn scalar_node(&mut self, scalar: ScalarId, node: &BuildNode, env: &Env, hint: Option<DType>) -> Result<Value> {
        let program = self.graph.program.clone();
        let def = program.scalar(scalar);
        let mut args = Vec::with_capacity(node.args.len());
        for arg in &node.args {
            match arg {
                BuildArg::One(b) => args.push(b),
                _ => {
                    return Err(Error::Type(
                        format!("`{}` is a scalar: it takes no list of operands", def.name).into(),
                    ));
                }
            }
        }
        let is_number = |i: usize| def.params.get(i).is_none_or(|p| p.1 == Kind::Number);
        let mut values: Vec<Option<Value>> = vec![None; args.len()];
        let mut dtype = None;
        for (i, arg) in args.iter().enumerate() {
            if !self.needs_hint(arg, env, 0) {
                let Slot::Value(v) = self.slot(arg, env, None)? else {
                    return Err(Error::Type(format!("operand {} of `{}` is absent", i + 1, def.name).into()));
                };
                values[i] = Some(v);
                if is_number(i) {
                    dtype = dtype.or(Some(self.graph.ty(v).dtype));
                }
            }
        }
        let outer = if def.result == Kind::Number { hint } else { None };
        for (i, arg) in args.iter().enumerate() {
            if values[i].is_none() {
                let hint = if is_number(i) { dtype.or(outer) } else { Some(DType::Bool) };
                if let Slot::Value(v) = self.slot(arg, env, hint)? {
                    values[i] = Some(v);
                }
            }
        }
        let values: Vec<Value> = values.into_iter().flatten().collect();
        self.scalar(scalar, &values)
    }

    fn op_node(&mut self, op: OpId, node: &BuildNode, env: &Env, hint: Option<DType>) -> Result<Vec<Value>> {
        let program = self.graph.program.clone();
        let def = program.op(op);
        let params: Vec<&ParamKind> = def.operands().map(|(_, p)| &p.kind).collect();
        let (mut bound, mut tensors) = (None, Vec::new());
        for (i, arg) in node.args.iter().enumerate() {
            let param = params.get(i).or(params.last()).copied();
            match (arg, param) {
                (BuildArg::One(b), Some(ParamKind::Term)) => bound = Some(b),
                (BuildArg::One(b), _) => tensors.push((b.clone(), env.clone())),
                (BuildArg::Spread(v), _) => {
                    for value in env.variadics.get(v).into_iter().flatten() {
                        let mut one = Env::default();
                        one.tensors.insert(*v, *value);
                        tensors.push((Build::Var(*v), one));
                    }
                }
                (BuildArg::Each { element, item, over }, _) => {
                    for value in env.variadics.get(over).into_iter().flatten() {
                        let mut inner = env.clone();
                        inner.tensors.insert(*item, *value);
                        tensors.push((element.clone(), inner));
                    }
                }
            }
        }
        let mut operands = self.operands(&def.name, &tensors, hint)?;
        let attrs = self.node_attrs(op, node, env)?;
        let term = match bound {
            None => None,
            Some(b) => {
                let bound = self.build_term(b, env)?;
                operands.resize(tensor_params(def), None);
                operands.extend(bound.reads.into_iter().map(Some));
                Some(bound.term)
            }
        };
        self.op(op, &operands, &attrs, term)
    }

    /// Tensor operands: first those with a dtype of their own, then numbers, which take that of the
    /// first of them.
    fn operands(&mut self, name: &str, args: &[(Build, Env)], hint: Option<DType>) -> Result<Vec<Option<Value>>> {
        let mut values: Vec<Option<Value>> = vec![None; args.len()];
        let mut waiting = Vec::new();
        let mut dtype = None;
        for (i, (arg, env)) in args.iter().enumerate() {
            if self.needs_hint(arg, env, 0) {
                waiting.push(i);
            } else if let Slot::Value(v) = self.slot(arg, env, None)? {
                values[i] = Some(v);
                dtype = dtype.or(Some(self.graph.ty(v).dtype));
            }
        }
        for i in waiting {
            let (arg, env) = &args[i];
            match self.slot(arg, env, dtype.or(hint))? {
                Slot::Value(v) => values[i] = Some(v),
                Slot::Absent => return Err(Error::Type(format!("operand {} of `{name}` is absent", i + 1).into())),
            }
        }
        Ok(values)
    }

    fn node_attrs(&self, op: OpId, node: &BuildNode, env: &Env) -> Result<Vec<AttrValue>> {
        let def = self.graph.program.op(op);
        let mut out = Vec::with_capacity(node.attrs.len());
        for (expr, (_, param)) in node.attrs.iter().zip(def.attrs()) {
            let value = self.attr(expr, env).ok_or_else(|| {
                Error::Type(format!("attribute `{}` of `{}` cannot be computed here", param.name, def.name).into())
            })?;
            out.push(match (&param.kind, value) {
                (ParamKind::Attr { ty, .. }, value) => coerce(*ty, value),
                (_, value) => value,
            });
        }
        Ok(out)
    }

    fn term(&mut self, build: &Build, env: &Env, into: &mut BoundTerm) -> Result<TermId> {
        self.depth += 1;
        let result = if self.depth > MAX_DEPTH {
            Err(Error::Limit(format!("an epilogue is nested more than {MAX_DEPTH} deep")))
        } else {
            self.term_inner(build, env, into)
        };
        self.depth -= 1;
        result
    }

    fn term_inner(&mut self, build: &Build, env: &Env, into: &mut BoundTerm) -> Result<TermId> {
        match build {
            Build::Var(v) => match env.terms.get(v) {
                Some(bound) => splice(bound, into),
                None => Err(Error::Internal(format!("variable {} stands for no epilogue term", v.0))),
            },
            Build::Number(expr) => Ok(into.term.add(TermNode::Lit(Literal(self.number_of(expr, env)?)))),
            Build::Else(v, other) => match env.terms.get(v) {
                Some(bound) => splice(bound, into),
                None => self.term(other, env, into),
            },
            Build::Frozen(inner) => self.term(inner, env, into),
            Build::If(guard, a, b) => {
                let branch = if self.truth(guard, env)? { a } else { b };
                self.term(branch, env, into)
            }
            Build::Absent => Err(Error::Type("an absent operand stands in an epilogue".into())),
            Build::Node(node) => self.term_node(node, env, into),
        }
    }

    fn term_node(&mut self, node: &BuildNode, env: &Env, into: &mut BoundTerm) -> Result<TermId> {
        let one = |i: usize| match node.args.get(i) {
            Some(BuildArg::One(b)) => Ok(b),
            _ => Err(Error::Type("a function in an epilogue lacks its argument".into())),
        };
        match node.head {
            Head::Acc => Ok(into.term.add(TermNode::Acc)),
            Head::In(view) => {
                let Slot::Value(value) = self.slot(one(0)?, env, None)? else {
                    return Err(Error::Type("an epilogue reads an absent operand".into()));
                };
                let input = read_index(value, into);
                Ok(into.term.add(TermNode::In { input, view }))
            }
            Head::Region(_) => Err(Error::Type("pointwise work stands for nothing here".into())),
            Head::TermCast => {
                let to = node.attrs.first().and_then(|a| self.attr(a, env));
                let Some(AttrValue::DType(to)) = to else {
                    return Err(Error::Type("the type of a cast in an epilogue cannot be computed here".into()));
                };
                let arg = self.term(one(0)?, env, into)?;
                Ok(into.term.add(TermNode::Cast { to, arg }))
            }
            Head::Scalar(scalar) => {
                let mut args = Vec::with_capacity(node.args.len());
                for i in 0..node.args.len() {
                    args.push(self.term(one(i)?, env, into)?);
                }
                Ok(into.term.add(TermNode::Call { scalar, args }))
            }
            Head::Op(op) => {
                let name = &self.graph.program.op(op).name;
                Err(Error::Type(format!("the op `{name}` stands in an epilogue, where only scalars may").into()))
            }
        }
    }
}

/// The index of a tensor among a term's operands.
pub(crate) fn read_index(value: Value, into: &mut BoundTerm) -> u32 {
    let at = into.reads.iter().position(|v| *v == value).unwrap_or_else(|| {
        into.reads.push(value);
        into.reads.len() - 1
    });
    at as u32
}

/// Copies a term into another and returns its root there.
pub(crate) fn splice(bound: &BoundTerm, into: &mut BoundTerm) -> Result<TermId> {
    let broken = || Error::Internal("a term is not in order".into());
    let mut map: Vec<TermId> = Vec::with_capacity(bound.term.nodes.len());
    for node in &bound.term.nodes {
        let at = |id: &TermId| map.get(id.0 as usize).copied().ok_or_else(broken);
        let moved = match node {
            TermNode::In { input, view } => {
                let value = bound.reads.get(*input as usize).ok_or_else(broken)?;
                TermNode::In { input: read_index(*value, into), view: *view }
            }
            TermNode::Call { scalar, args } => {
                TermNode::Call { scalar: *scalar, args: args.iter().map(at).collect::<Result<_>>()? }
            }
            TermNode::Cast { to, arg } => TermNode::Cast { to: *to, arg: at(arg)? },
            leaf @ (TermNode::Param(_) | TermNode::Acc | TermNode::Lit(_)) => leaf.clone(),
        };
        map.push(into.term.add(moved));
    }
    bound.term.roots.first().and_then(|r| map.get(r.0 as usize)).copied().ok_or_else(broken)
}

/// An integer where a number is wanted is that number; a single axis where a list is wanted is not
/// changed (the typing rules report it).
fn coerce(ty: AttrType, value: AttrValue) -> AttrValue {
    match (ty, value) {
        (AttrType::Float, AttrValue::Dim(d)) => match d.as_const() {
            Some(c) => AttrValue::Float(c as f64),
            None => AttrValue::Dim(d),
        },
        (AttrType::Floats, AttrValue::List(l)) => {
            AttrValue::List(l.into_iter().map(|v| coerce(AttrType::Float, v)).collect())
        }
        (_, value) => value,
    }
}

impl Graph {
    /// Adds a node whose types and attributes are known to be right.
    fn push_op(
        &mut self,
        op: OpId,
        attrs: Vec<AttrValue>,
        term: Option<Term>,
        operands: &[Option<Value>],
        results: Vec<TensorType>,
    ) -> Vec<Value> {
        let first = self.push(NodeKind::Op { op, attrs, term }, operands.to_vec(), results);
        self.results(first.node)
    }
}
