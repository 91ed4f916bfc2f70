//! The e-graph as a host of the interpreter of right sides.
//!
//! In: a match, and the requests of the interpreter for nodes of the rule's right side. Out: new
//! nodes. Invariant: every node that is built type-checks. The limit on the e-graph's size is
//! checked before every node. Folded constants keep their meaning in their element type
//! (`range_loss`).
//! An op without a kernel for the whole op is inlined.

use std::sync::Arc;

use egg::Id;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{
    AExpr, AttrValue, Build, Head, InView, OpBody, OpDef, ParamKind, Program, Rule, ScalarId, VarId,
};
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::{self, Bindings, TensorType};

use super::super::analysis::EGraph;
use super::super::analysis::{class_type, has_several_results, node_types};
use super::super::candidate::Candidate;
use super::super::known;
use super::super::language::{Node, Payload};
use super::super::matcher::{Binding, Match, MatchFacts, Region, Step};
use super::super::range_loss::{Fold, Folded, OperandRole, is_of_values, number_loss};
use super::{Reject, add_checked, ill_typed, implements};
use hypatia_dsl::interpret::{Application, Host, Item, build_number, build_tensor};
use hypatia_graph::check_view;

/// Maximum depth of inlining.
const MAX_INLINED: usize = 16;
/// Maximum nesting of expressions; deeper ones are rejected before they overflow the stack.
const MAX_DEPTH: usize = 400;

type Built = Result<Id, Reject>;

/// A term, and its reads that are not plain broadcasts.
pub(super) struct Epilogue {
    pub root: Id,
    views: Vec<(InView, Id)>,
}

/// Builds one right side.
pub(super) struct Builder<'a> {
    egraph: &'a mut EGraph,
    m: &'a Match,
    /// Maximum number of nodes of the e-graph.
    limit: usize,
    /// The rule whose right side is built; `None` in bodies of ops.
    rule: Option<&'a Rule>,
    /// Depth of inlining so far.
    inlined: usize,
    /// Nesting of expressions so far.
    depth: usize,
    /// The node added last.
    pub last: Option<Node>,
    /// Every node added, if somebody asks for them.
    pub made: Option<Vec<Node>>,
    /// For each open term, its reads that are not plain broadcasts.
    views: Vec<Vec<(InView, Id)>>,
    /// The places of the open expressions, innermost last.
    roles: Vec<OperandRole>,
    /// Number of enclosing `build(...)`.
    frozen: usize,
}

impl<'a> Builder<'a> {
    /// A builder for the right side of a rule.
    pub fn of_rule(egraph: &'a mut EGraph, m: &'a Match, rule: &'a Rule, limit: usize) -> Builder<'a> {
        Builder { rule: Some(rule), ..Builder::of_body(egraph, m, limit, 0) }
    }

    /// A builder for the body of an op.
    fn of_body(egraph: &'a mut EGraph, m: &'a Match, limit: usize, inlined: usize) -> Builder<'a> {
        Builder {
            egraph,
            m,
            limit,
            rule: None,
            inlined,
            depth: 0,
            last: None,
            made: None,
            views: Vec::new(),
            roles: Vec::new(),
            frozen: 0,
        }
    }

    /// Builds the whole right side. A single number is broadcast to the type of the value that it
    /// replaces.
    pub fn root(&mut self, build: &Build, replaced: Id) -> Built {
        if let Build::Number(expr) = build {
            let ty = class_type(self.egraph, replaced).cloned().ok_or_else(|| ill_typed("no tensor"))?;
            let value = build_number(self, expr)?;
            self.keep_number(expr, value, ty.dtype)?;
            return self.splat(ty, value);
        }
        let hint = class_type(self.egraph, replaced).map(|t| t.dtype);
        build_tensor(self, build, hint)
    }

    fn role(&self) -> OperandRole {
        self.roles.last().copied().unwrap_or(OperandRole::Factor)
    }

    /// Adds a node known to be well-typed, within the limits.
    fn add(&mut self, node: Node) -> Built {
        self.last = Some(node.clone());
        if let Some(made) = &mut self.made {
            made.push(node.clone());
        }
        add_checked(self.egraph, node, self.limit)
    }

    /// An error if a number computed from constants loses digits in that type.
    fn keep_number(&self, expr: &AExpr, value: f64, dtype: DType) -> Result<(), Reject> {
        if !self.rule.is_some_and(|r| is_of_values(r, expr)) {
            return Ok(());
        }
        let known = |binding: &Binding| match binding {
            Binding::Class(id) => {
                let of = class_type(self.egraph, *id).map_or(dtype, |t| t.dtype);
                self.egraph[*id].data.value().map(|v| (of, v))
            }
            _ => None,
        };
        let constants: Vec<(DType, f64)> = self.m.bindings.iter().filter_map(known).collect();
        number_loss(dtype, value, &constants).map_or(Ok(()), |lost| Err(Reject::Lost(lost)))
    }

    /// A splat constant.
    fn splat(&mut self, ty: TensorType, value: f64) -> Built {
        // An integer type must hold the number exactly: 0.5 beside integers is an error, not 0.
        if ty.dtype.is_int() && ty.dtype.round(value) != value {
            return Err(ill_typed(format!("the number {value} stands beside {}, which does not hold it", ty.dtype)));
        }
        let bits = ty.dtype.round(value).to_bits();
        let ty = self.egraph.analysis.type_id(ty);
        self.add(Node::leaf(Payload::Splat(ty, bits)))
    }

    /// An error if rounding destroys the meaning of a function of constants. If it cannot be
    /// computed now, this is an error too.
    fn keep(&self, function: Folded, node: &Node) -> Result<(), Reject> {
        if !node.children.iter().all(|c| self.egraph[*c].data.constant) {
            return Err(Reject::NotConstant);
        }
        let types = node_types(self.egraph, node).map_err(Reject::Type)?;
        let Some(ty) = types.first().filter(|t| t.dtype.is_float()) else { return Ok(()) };
        let size = |d: &Dim| d.as_const().and_then(|c| usize::try_from(c).ok());
        let shape = ty.shape.iter().map(size).collect::<Option<Vec<_>>>();
        let Some(shape) = shape else {
            return Err(Reject::Lost("what `build(...)` computes is not known".to_string()));
        };
        let operands = node.children.iter().map(|c| self.egraph.find(*c)).collect();
        let fold = Fold { function, operands, dtype: ty.dtype, shape, role: self.role() };
        let loss = known::loss(&fold, self.egraph, &|l| self.egraph.analysis.leaf(l).tensor.clone());
        self.egraph.analysis.note(fold, loss.is_none());
        loss.map_or(Ok(()), |lost| Err(Reject::Lost(lost)))
    }

    /// An error if the op's term reads an operand as row, column or full, and its shape does not
    /// fit the result.
    fn check_views(&self, node: &Node, views: &[(InView, Id)]) -> Result<(), Reject> {
        let program = &self.egraph.analysis.program;
        let elsewhere = matches!(node.payload, Payload::Op(op, _) if !program.op(op).terms_read_results());
        if views.is_empty() || elsewhere {
            return Ok(());
        }
        let types = node_types(self.egraph, node).map_err(Reject::Type)?;
        let Some(result) = types.first() else { return Ok(()) };
        for (view, id) in views {
            if let Some(ty) = class_type(self.egraph, *id) {
                check_view(*view, ty, &result.shape).map_err(Reject::Type)?;
            }
        }
        Ok(())
    }

    /// Inlines the body of an op that has no kernel for the whole op.
    fn inline(&mut self, def: &OpDef, body: &Build, children: &[Id], attrs: Vec<AttrValue>) -> Built {
        if self.inlined >= MAX_INLINED {
            return Err(ill_typed(format!("`{}` is defined by itself", def.name)));
        }
        let m = operands_of(self.egraph, def, children, attrs);
        let hint = children.iter().find_map(|c| class_type(self.egraph, *c)).map(|t| t.dtype);
        let made = self.made.take();
        let mut inner = Builder { made, ..Builder::of_body(self.egraph, &m, self.limit, self.inlined + 1) };
        let id = build_tensor(&mut inner, body, hint)?;
        (self.last, self.made) = (inner.last, inner.made);
        Ok(id)
    }

    /// The pointwise work bound to a variable.
    fn work(&self, v: VarId) -> Result<&'a Region, Reject> {
        match self.m.bindings.get(v.index()) {
            Some(Binding::Region(region)) => Ok(region),
            _ => Err(ill_typed("a variable stands for no pointwise work")),
        }
    }

    /// Builds pointwise work on these operands, as tensors or inside a term.
    fn steps(&mut self, v: VarId, args: &[Id], term: bool) -> Built {
        let mut made: Vec<Id> = Vec::new();
        for step in &self.work(v)?.steps {
            let id = match step {
                Step::Argument(i) => *args.get(*i).ok_or_else(|| ill_typed("pointwise work lacks an operand"))?,
                Step::Operand(id) if term => {
                    let id = self.egraph.find(*id);
                    self.read(InView::Broadcast, id)?
                }
                Step::Operand(id) => self.egraph.find(*id),
                Step::Call(s, of) => {
                    let children: Vec<Id> = of.iter().map(|i| made[*i]).collect();
                    let payload = if term { Payload::Call(*s) } else { Payload::Scalar(*s) };
                    self.add(Node::new(payload, children))?
                }
            };
            made.push(id);
        }
        made.last().copied().ok_or_else(|| ill_typed("pointwise work without a step"))
    }
}

/// The bindings of an op's variables in one application of it.
fn operands_of(egraph: &EGraph, def: &OpDef, children: &[Id], attrs: Vec<AttrValue>) -> Match {
    let mut m = Match {
        roots: Vec::new(),
        bindings: vec![Binding::Unbound; def.vars.len()],
        values: Bindings::default(),
        nodes: Vec::new(),
        virtual_sums: Vec::new(),
    };
    let mut attrs = attrs.into_iter();
    let mut next = children.iter();
    for (i, param) in def.params.iter().enumerate() {
        match &param.kind {
            ParamKind::Attr { .. } => m.values.values.extend(attrs.next().map(|v| (VarId(i as u32), v))),
            ParamKind::Tensor { variadic: true, .. } => {
                m.bindings[i] = Binding::Classes(next.by_ref().copied().collect())
            }
            ParamKind::Term => m.bindings[i] = next.next().map_or(Binding::Absent, |id| Binding::Class(*id)),
            ParamKind::Tensor { ty, .. } => {
                let Some(id) = next.next() else { continue };
                m.bindings[i] = match class_type(egraph, *id) {
                    Some(have) => {
                        let _ = typing::match_type(ty, have, &mut m.values);
                        Binding::Class(*id)
                    }
                    None => Binding::Absent,
                };
            }
        }
    }
    m
}

impl Host for Builder<'_> {
    type Value = Id;
    type Term = Id;
    type Epilogue = Epilogue;
    type Error = Reject;

    type Program = Arc<Program>;

    fn program(&self) -> &Arc<Program> {
        &self.egraph.analysis.program
    }

    fn ill_typed(message: String) -> Reject {
        Reject::Type(message)
    }

    fn descend(&mut self) -> Result<(), Reject> {
        if self.depth >= MAX_DEPTH {
            return Err(ill_typed(format!("an expression is nested more than {MAX_DEPTH} deep")));
        }
        self.depth += 1;
        Ok(())
    }

    fn ascend(&mut self) {
        self.depth -= 1;
    }

    fn variable(&mut self, v: VarId) -> Built {
        match self.m.bindings.get(v.index()) {
            Some(Binding::Class(id)) => Ok(self.egraph.find(*id)),
            Some(Binding::Absent) => self.absent(),
            _ => Err(ill_typed("a variable stands for no tensor")),
        }
    }

    fn is_absent(&self, v: VarId) -> bool {
        matches!(self.m.bindings.get(v.index()), Some(Binding::Absent) | None)
    }

    fn variables(&self, v: VarId) -> Result<Vec<Id>, Reject> {
        match self.m.bindings.get(v.index()) {
            Some(Binding::Classes(ids)) => Ok(ids.clone()),
            _ => Err(ill_typed("a variable stands for no list of operands")),
        }
    }

    fn term_variable(&mut self, v: VarId) -> Result<Option<Id>, Reject> {
        if self.is_absent(v) { Ok(None) } else { self.variable(v).map(Some) }
    }

    fn eval(&self, expr: &AExpr, items: &[Item<Id>]) -> Option<AttrValue> {
        let (egraph, candidate) = (&*self.egraph, Candidate::none());
        if items.is_empty() {
            let facts = MatchFacts { egraph, bindings: &self.m.bindings, device: None, candidate };
            return typing::eval(expr, &self.m.values, &facts);
        }
        let mut bindings = self.m.bindings.clone();
        for (v, id) in items {
            if let Some(binding) = bindings.get_mut(v.index()) {
                *binding = Binding::Class(*id);
            }
        }
        typing::eval(expr, &self.m.values, &MatchFacts { egraph, bindings: &bindings, device: None, candidate })
    }

    fn dtype(&self, value: Id) -> Option<DType> {
        class_type(self.egraph, value).map(|t| t.dtype)
    }

    fn absent(&mut self) -> Built {
        self.add(Node::leaf(Payload::Absent))
    }

    fn number(&mut self, expr: &AExpr, value: f64, dtype: DType) -> Built {
        self.keep_number(expr, value, dtype)?;
        self.splat(TensorType { dtype, shape: Vec::new() }, value)
    }

    fn scalar(&mut self, scalar: ScalarId, operands: &[Id]) -> Built {
        let node = Node::new(Payload::Scalar(scalar), operands.iter().copied());
        if self.frozen > 0 {
            self.keep(Folded::Scalar(scalar), &node)?;
        }
        self.add(node)
    }

    fn op(&mut self, Application { op, output, operands, attrs, term }: Application<'_, Self>) -> Built {
        let program = self.egraph.analysis.program.clone();
        let def = program.op(op);
        let mut children = operands.to_vec();
        let (at, views) = match term {
            Some((at, term)) => {
                children.insert(at, term.root);
                (Some(at), term.views)
            }
            None => (None, Vec::new()),
        };
        let first = if at == Some(0) { None } else { children.first() };
        let rank = first.and_then(|c| class_type(self.egraph, *c)).map(|t| t.shape.len());
        let attrs: Vec<Option<AttrValue>> = attrs.into_iter().map(Some).collect();
        let attrs = typing::normalise_attrs(def, &attrs, rank).map_err(|e| Reject::Type(e.to_string()))?;
        if let OpBody::Defined(bodies) = &def.body
            && !program.kernels.iter().any(|k| implements(&k.pattern, op))
        {
            let body = bodies.get(output as usize).ok_or_else(|| ill_typed("there is no such result"))?;
            return self.inline(def, body, &children, attrs);
        }
        let attrs = self.egraph.analysis.attrs_id(attrs);
        let node = Node::new(Payload::Op(op, attrs), children);
        self.check_views(&node, &views)?;
        if self.frozen > 0 && at.is_none() && matches!(def.body, OpBody::Builtin(b) if b.multiplies()) {
            self.keep(Folded::Product(op, attrs), &node)?;
        }
        let id = self.add(node)?;
        if has_several_results(def) { self.add(Node::new(Payload::Output(output), [id])) } else { Ok(id) }
    }

    fn region(&mut self, v: VarId, operands: &[Id]) -> Built {
        self.steps(v, operands, false)
    }

    fn begin_term(&mut self) {
        self.views.push(Vec::new());
    }

    fn end_term(&mut self, root: Built) -> Result<Epilogue, Reject> {
        let views = self.views.pop().unwrap_or_default();
        Ok(Epilogue { root: root?, views })
    }

    fn acc(&mut self) -> Built {
        self.add(Node::leaf(Payload::Acc))
    }

    fn second(&mut self, arg: Id) -> Built {
        self.add(Node::new(Payload::Second, [arg]))
    }

    /// A constant number becomes part of the term instead of a read.
    fn read(&mut self, view: InView, value: Id) -> Built {
        let data = self.egraph[value].data;
        match (data.splat, self.egraph.analysis.data_type(&data)) {
            (Some(bits), Some(t)) if t.dtype.is_float() => self.add(Node::leaf(Payload::Lit(bits))),
            _ => {
                if view != InView::Broadcast
                    && let Some(views) = self.views.last_mut()
                {
                    views.push((view, value));
                }
                self.add(Node::new(Payload::In(view), [value]))
            }
        }
    }

    /// Terms compute in f32, or in f64, which is wider.
    fn literal(&mut self, expr: &AExpr, value: f64) -> Built {
        self.keep_number(expr, value, DType::F32)?;
        self.add(Node::leaf(Payload::Lit(value.to_bits())))
    }

    fn call(&mut self, scalar: ScalarId, args: &[Id]) -> Built {
        self.add(Node::new(Payload::Call(scalar), args.iter().copied()))
    }

    fn cast(&mut self, to: DType, arg: Id) -> Built {
        self.add(Node::new(Payload::TermCast(to), [arg]))
    }

    fn region_term(&mut self, v: VarId, args: &[Id]) -> Built {
        self.steps(v, args, true)
    }

    fn enter(&mut self, head: Head) {
        let within = self.role().under(&self.egraph.analysis.program, head);
        self.roles.push(within);
    }

    fn leave(&mut self) {
        self.roles.pop();
    }

    fn freeze(&mut self) {
        self.frozen += 1;
    }

    fn thaw(&mut self, value: Id) -> Built {
        self.frozen -= 1;
        if self.egraph[value].data.constant { Ok(value) } else { Err(Reject::NotConstant) }
    }
}
