//! Right sides, op bodies and test expressions as nodes of a graph.
//!
//! In: a [`Build`] expression and an [`Env`] that says what its variables stand for. Out: nodes in
//! a graph, deduplicated (hash-consing). With `inlining`, every defined op is replaced by its
//! body. Invariant: numbers become constants of rank 0 in the dtype of their sibling operand. Depth
//! and number of nodes are bounded, so no expression in a user's file can exhaust the stack or
//! memory.

use std::collections::HashMap;
use std::sync::Arc;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::interpret::{self, Application, Host, Item, build_tensor};
use hypatia_dsl::ir::{
    AExpr, AttrType, AttrValue, Build, InView, OpBody, OpId, ParamKind, Program, ScalarId, TypePat, VarId,
};
use hypatia_dsl::scalar::{Literal, Term, TermId, TermNode};
use hypatia_dsl::typing::{Bindings, TensorType, TypeError, codes, eval, match_type};

use super::build::tensor_params;
use super::env::{BoundTerm, Env};
use super::{Graph, GraphFacts, NodeKind, Value};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

/// Maximum depth of nested expressions and op bodies. Deeper nesting is an error, not a stack
/// overflow.
const MAX_DEPTH: usize = 400;

/// Maximum number of nodes that one instantiator may add; [`Graph::inlined`] scales it with the
/// graph.
const MAX_NODES: usize = 100_000;

/// Which defined ops are replaced by their bodies.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Inline {
    /// None.
    Nothing,
    /// All.
    All,
    /// Those that do not write their gradients.
    WithoutGradients,
}

/// Builds expressions into a graph.
pub struct Instantiator<'g> {
    /// The graph to which nodes are added.
    pub graph: &'g mut Graph,
    shared: HashMap<Key, Vec<Value>>,
    inline: Inline,
    depth: usize,
    limit: usize,
    /// The unrounded numbers of the constants made from numbers.
    pub numbers: Numbers,
}

/// For constants that stand for a number of a rule or body: the number before it was rounded to the
/// constant's element type. The key is the address of the constant's tensor.
pub type Numbers = HashMap<usize, f64>;

/// The dedupe key: nodes with equal keys are equal.
#[derive(PartialEq, Eq, Hash)]
enum Key {
    Number(DType, u64),
    Const(usize),
    Scalar(ScalarId, Vec<Value>),
    Op(OpId, Vec<Option<Value>>, Vec<AttrValue>, Option<Term>),
}

impl<'g> Instantiator<'g> {
    /// Builds nodes as written.
    pub fn new(graph: &'g mut Graph) -> Instantiator<'g> {
        let limit = graph.nodes.len() + MAX_NODES;
        Instantiator {
            graph,
            shared: HashMap::new(),
            inline: Inline::Nothing,
            depth: 0,
            limit,
            numbers: Numbers::new(),
        }
    }

    /// Builds nodes with every defined op replaced by its body.
    pub fn inlining(graph: &'g mut Graph) -> Instantiator<'g> {
        Instantiator::with(graph, Inline::All)
    }

    /// Builds nodes with some defined ops replaced by their bodies.
    pub(super) fn with(graph: &'g mut Graph, inline: Inline) -> Instantiator<'g> {
        Instantiator { inline, ..Instantiator::new(graph) }
    }

    /// Allows this many more nodes than the default.
    pub(super) fn allow(&mut self, nodes: usize) {
        self.limit = self.limit.saturating_add(nodes);
    }

    /// The value of an expression; an error if it is an absent operand.
    pub fn build(&mut self, build: &Build, env: &Env) -> Result<Value> {
        let mut expression = Expression { into: self, env, terms: Vec::new() };
        let value = build_tensor(&mut expression, build, env.number)?;
        value.ok_or_else(|| Error::Type("an absent operand has no value".into()))
    }

    /// The term of an expression of sort Term, with the tensors it reads.
    pub fn build_term(&mut self, build: &Build, env: &Env) -> Result<BoundTerm> {
        interpret::build_term(&mut Expression { into: self, env, terms: Vec::new() }, build)
    }

    /// The value of an attribute expression of a given type.
    pub fn attr(&self, expr: &AExpr, env: &Env) -> Option<AttrValue> {
        eval(expr, &env.attrs, &GraphFacts { graph: self.graph, env })
    }

    /// A constant; the same tensor gives the same node.
    pub fn constant(&mut self, tensor: &Arc<Tensor>) -> Result<Value> {
        let key = Key::Const(Arc::as_ptr(tensor) as usize);
        self.share(key, |this| Ok(vec![this.graph.constant(tensor.clone())])).map(|v| v[0])
    }

    /// A constant of rank 0; the same bits give the same node. An integer type must represent the
    /// number exactly.
    pub fn number(&mut self, dtype: DType, value: f64) -> Result<Value> {
        if dtype.is_int() && dtype.round(value) != value {
            let message =
                format!("{dtype} cannot represent the number {value}, which takes the type of its sibling operand");
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

    /// An op, or its body if it has one and the instantiator inlines. Returns all results.
    pub fn op(
        &mut self,
        op: OpId,
        operands: &[Option<Value>],
        attrs: &[AttrValue],
        term: Option<Term>,
    ) -> Result<Vec<Value>> {
        let (attrs, results) = self.graph.type_op(op, operands, attrs, term.as_ref())?;
        let key = Key::Op(op, operands.to_vec(), attrs.clone(), term.clone());
        self.share(key, |this| {
            let program = this.graph.program.clone();
            match &program.op(op).body {
                OpBody::Defined(body) if this.inlines(op) => this.expand(op, operands, &attrs, term, body, &results),
                _ => this.graph.push_op(op, attrs, term, operands.to_vec(), results),
            }
        })
    }

    fn inlines(&self, op: OpId) -> bool {
        match self.inline {
            Inline::Nothing => false,
            Inline::All => true,
            Inline::WithoutGradients => self.graph.program.op(op).grad.is_none(),
        }
    }

    fn share(&mut self, key: Key, make: impl FnOnce(&mut Self) -> Result<Vec<Value>>) -> Result<Vec<Value>> {
        if let Some(values) = self.shared.get(&key) {
            return Ok(values.clone());
        }
        if self.graph.nodes.len() >= self.limit {
            return Err(Error::Limit(format!("the graph exceeds {} nodes while ops are inlined", self.limit)));
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

    /// The bindings of an op's variables in one application of it.
    pub fn op_env(&self, op: OpId, operands: &[Option<Value>], attrs: &[AttrValue], term: Option<Term>) -> Result<Env> {
        let program = self.graph.program.clone();
        let def = program.op(op);
        let mut env = Env::default();
        // The types of operands may contain formulas over attributes, and over what later operands
        // bind.
        env.attrs.values.extend(def.attrs().zip(attrs).map(|((i, _), value)| (VarId(i as u32), value.clone())));
        let (mut next, mut unsure) = (0, Vec::new());
        let reads_from = if term.is_some() { tensor_params(def) } else { operands.len() };
        for (i, param) in def.params.iter().enumerate() {
            let var = VarId(i as u32);
            match &param.kind {
                ParamKind::Attr { .. } => {}
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
                        if !self.bind_type(ty, *v, &mut env.attrs) {
                            unsure.push((ty, *v));
                        }
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
        for (ty, v) in unsure {
            self.bind_type(ty, v, &mut env.attrs);
        }
        Ok(env)
    }

    /// Binds the variables of an operand's type pattern. The typing rules have already checked that
    /// it matches. False if it contains what is not known yet.
    fn bind_type(&self, pat: &TypePat, value: Value, bindings: &mut Bindings) -> bool {
        let mut trial = bindings.clone();
        let matches = match_type(pat, self.graph.ty(value), &mut trial);
        if matches != Some(false) {
            *bindings = trial;
        }
        matches == Some(true)
    }
}

/// One expression while it is built into a graph.
struct Expression<'i, 'g, 'e> {
    into: &'i mut Instantiator<'g>,
    env: &'e Env,
    /// The terms that are being built, innermost last.
    terms: Vec<BoundTerm>,
}

impl Expression<'_, '_, '_> {
    fn add(&mut self, node: TermNode) -> Result<TermId> {
        self.terms.last_mut().map(|t| t.term.add(node)).ok_or_else(|| Error::Internal("no term is begun".into()))
    }
}

impl Host for Expression<'_, '_, '_> {
    type Value = Option<Value>;
    type Term = TermId;
    type Epilogue = BoundTerm;
    type Error = Error;

    type Program = Arc<Program>;

    fn program(&self) -> &Arc<Program> {
        &self.into.graph.program
    }

    fn ill_typed(message: String) -> Error {
        Error::Type(message.into())
    }

    fn descend(&mut self) -> Result<()> {
        if self.into.depth >= MAX_DEPTH {
            return Err(Error::Limit(format!("an expression is nested more than {MAX_DEPTH} deep")));
        }
        self.into.depth += 1;
        Ok(())
    }

    fn ascend(&mut self) {
        self.into.depth -= 1;
    }

    fn variable(&mut self, v: VarId) -> Result<Option<Value>> {
        match self.env.tensors.get(&v) {
            Some(value) => Ok(Some(*value)),
            None if self.env.absent.contains(&v) => Ok(None),
            None => Err(Error::Internal(format!("variable {} stands for no tensor", v.0))),
        }
    }

    fn is_absent(&self, v: VarId) -> bool {
        !self.env.tensors.contains_key(&v)
    }

    fn variables(&self, v: VarId) -> Result<Vec<Option<Value>>> {
        Ok(self.env.variadics.get(&v).into_iter().flatten().map(|v| Some(*v)).collect())
    }

    fn term_variable(&mut self, v: VarId) -> Result<Option<TermId>> {
        let (Some(bound), Some(into)) = (self.env.terms.get(&v), self.terms.last_mut()) else { return Ok(None) };
        splice(bound, into).map(Some)
    }

    fn eval(&self, expr: &AExpr, items: &[Item<Option<Value>>]) -> Option<AttrValue> {
        if items.is_empty() {
            return self.into.attr(expr, self.env);
        }
        let mut env = self.env.clone();
        env.tensors.extend(items.iter().filter_map(|(var, value)| value.map(|value| (*var, value))));
        self.into.attr(expr, &env)
    }

    fn dtype(&self, value: Option<Value>) -> Option<DType> {
        value.map(|v| self.into.graph.ty(v).dtype)
    }

    fn absent(&mut self) -> Result<Option<Value>> {
        Ok(None)
    }

    fn number(&mut self, _: &AExpr, value: f64, dtype: DType) -> Result<Option<Value>> {
        self.into.number(dtype, value).map(Some)
    }

    fn scalar(&mut self, scalar: ScalarId, operands: &[Option<Value>]) -> Result<Option<Value>> {
        let present = |(i, v): (usize, &Option<Value>)| {
            let name = &self.into.graph.program.scalar(scalar).name;
            v.ok_or_else(|| Error::Type(format!("operand {} of `{name}` is absent", i + 1).into()))
        };
        let operands = operands.iter().enumerate().map(present).collect::<Result<Vec<_>>>()?;
        self.into.scalar(scalar, &operands).map(Some)
    }

    fn op(
        &mut self,
        Application { op, output, operands, attrs, term }: Application<'_, Self>,
    ) -> Result<Option<Value>> {
        let def = self.into.graph.program.op(op);
        let coerced = def.attrs().zip(attrs).map(|((_, param), value)| match &param.kind {
            ParamKind::Attr { ty, .. } => coerce(*ty, value),
            _ => value,
        });
        let attrs: Vec<AttrValue> = coerced.collect();
        let mut operands = operands.to_vec();
        let term = term.map(|(_, bound)| {
            operands.resize(tensor_params(def), None);
            operands.extend(bound.reads.into_iter().map(Some));
            bound.term
        });
        let results = self.into.op(op, &operands, &attrs, term)?;
        let asked =
            || Error::Type(format!("result {output} is requested of an op with {} results", results.len()).into());
        results.get(output as usize).copied().map(Some).ok_or_else(asked)
    }

    fn region(&mut self, _: VarId, _: &[Option<Value>]) -> Result<Option<Value>> {
        Err(Error::Type("a pointwise region has no value here".into()))
    }

    fn begin_term(&mut self) {
        self.terms.push(BoundTerm { term: Term::empty(), reads: Vec::new() });
    }

    fn end_term(&mut self, root: Result<TermId>) -> Result<BoundTerm> {
        let bound = self.terms.pop();
        let mut bound = bound.ok_or_else(|| Error::Internal("no term is begun".into()))?;
        bound.term.roots = vec![root?];
        Ok(bound)
    }

    fn acc(&mut self) -> Result<TermId> {
        self.add(TermNode::Acc)
    }

    fn second(&mut self, arg: TermId) -> Result<TermId> {
        let into = self.terms.last_mut().ok_or_else(|| Error::Internal("no term is begun".into()))?;
        Ok(into.term.over_second(arg))
    }

    fn read(&mut self, view: InView, value: Option<Value>) -> Result<TermId> {
        let value = value.ok_or_else(|| Error::Type("an epilogue reads an absent operand".into()))?;
        let into = self.terms.last_mut().ok_or_else(|| Error::Internal("no term is begun".into()))?;
        let input = read_index(value, into);
        self.add(TermNode::In { input, view })
    }

    fn literal(&mut self, _: &AExpr, value: f64) -> Result<TermId> {
        self.add(TermNode::Lit(Literal(value)))
    }

    fn call(&mut self, scalar: ScalarId, args: &[TermId]) -> Result<TermId> {
        self.add(TermNode::Call { scalar, args: args.to_vec() })
    }

    fn cast(&mut self, to: DType, arg: TermId) -> Result<TermId> {
        self.add(TermNode::Cast { to, arg })
    }

    fn region_term(&mut self, _: VarId, _: &[TermId]) -> Result<TermId> {
        Err(Error::Type("a pointwise region has no value here".into()))
    }
}

/// The index of a tensor among a term's operands, adding it if it is new.
pub fn read_index(value: Value, into: &mut BoundTerm) -> u32 {
    let at = into.reads.iter().position(|v| *v == value).unwrap_or_else(|| {
        into.reads.push(value);
        into.reads.len() - 1
    });
    at as u32
}

/// Copies a term into another and returns its root there.
pub fn splice(bound: &BoundTerm, into: &mut BoundTerm) -> Result<TermId> {
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
            leaf @ (TermNode::Param(_) | TermNode::Acc | TermNode::Second | TermNode::Lit(_)) => leaf.clone(),
        };
        map.push(into.term.add(moved));
    }
    bound.term.roots.first().and_then(|r| map.get(r.0 as usize)).copied().ok_or_else(broken)
}

/// Converts an integer to a number where a number is expected. A single axis where a list is
/// expected stays unchanged (the typing rules report it).
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
