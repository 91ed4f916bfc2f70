//! Right sides, op bodies and the `given` of tests: expressions from which graphs are built.
//!
//! In: an expression over bound variables. Out: a [`Build`]. Invariant: arithmetic on attributes
//! and literals only is one number, computed when the node is built; everything else is a node.

use crate::ast::{Arg, BinaryOp, Expr, ExprKind, Name, Path, UnaryOp};
use crate::builtin::{BuiltinOp, BuiltinScalar, SECOND, view};
use crate::diag::Diagnostic;
use crate::dtype::{DType, Kind};
use crate::ir::{
    AExpr, AFn, AttrType, AttrValue, Build, BuildArg, BuildNode, DTypePat, Fact, Head, OpBody, OpId, Param, ParamKind,
    ScalarId, Sort, TypePat, VarId,
};
use crate::source::Span;
use crate::spell::closest;

use super::args::Argument;
use super::code;
use super::context::{Callee, Cx, Definition, ValueSort};
use super::patterns::{literal, operator};
use super::types::{element_type_hint, single};

const FROZEN: &str = "build";

impl<'a> Cx<'a> {
    /// A right side.
    pub(super) fn build(&mut self, e: &'a Expr, sort: ValueSort) -> Option<Build> {
        self.enter(e.span)?;
        let r = self.build_inner(e, sort);
        self.leave();
        if let (Some(b @ Build::Node(_)), ValueSort::Tensor) = (&r, sort) {
            self.nodes.push((b.clone(), e.span));
        }
        r
    }

    fn build_inner(&mut self, e: &'a Expr, sort: ValueSort) -> Option<Build> {
        if let Some(v) = literal(e) {
            return Some(Build::Number(AExpr::Value(AttrValue::Float(v))));
        }
        if !matches!(e.kind, ExprKind::Path(_)) && self.is_attribute(e) {
            return Some(Build::Number(self.aexpr(e)?));
        }
        match &e.kind {
            ExprKind::Path(p) => self.build_path(p, sort),
            ExprKind::Call { callee, optional: false, types, args } => {
                self.build_call(e, callee, types, args, sort, None)
            }
            ExprKind::Result(inner, n) => match &self.written_out(inner).kind {
                ExprKind::Call { callee, optional: false, types, args } => {
                    self.build_call(inner, callee, types, args, sort, Some((*n, e.span)))
                }
                _ => self.misplaced(inner, "in front of a result number"),
            },
            ExprKind::Unary(UnaryOp::Neg, a) => self.scalar_build(BuiltinScalar::Neg, &[a], sort, e.span),
            ExprKind::Unary(UnaryOp::Not, a) => self.scalar_build(BuiltinScalar::Not, &[a], sort, e.span),
            ExprKind::Binary(BinaryOp::Ne, a, b) => {
                let eq = self.scalar_build(BuiltinScalar::Eq, &[a, b], sort, e.span)?;
                let not = self.builtin(BuiltinScalar::Not, e.span)?;
                Some(node(Head::Scalar(not), vec![eq]))
            }
            ExprKind::Binary(op, a, b) => match operator(*op) {
                Some((s, false)) => self.scalar_build(s, &[a, b], sort, e.span),
                Some((s, true)) => self.scalar_build(s, &[b, a], sort, e.span),
                None => self.misplaced(e, "on a right side"),
            },
            ExprKind::Else(a, b) => self.build_else(a, b, sort),
            ExprKind::If(c, ..) if let Some(name) = self.compared_tensor(c) => {
                let said = format!("`if` chooses by attributes, but `{name}` is a tensor");
                let d = Diagnostic::error(code::SORT, said, c.span).label("has a value for each element");
                self.report(
                    d.hint("to choose for each element, write `select(c, a, b)`, such as `select(x > 0, x, 0)`"),
                )
            }
            ExprKind::If(c, a, b) => {
                let (c, a, b) = (self.guard(c), self.build(a, sort), self.build(b, sort));
                Some(Build::If(Box::new(c?), Box::new(a?), Box::new(b?)))
            }
            _ => self.misplaced(e, "on a right side"),
        }
    }

    /// A tensor whose elements a condition compares.
    fn compared_tensor(&self, e: &Expr) -> Option<String> {
        match &e.kind {
            ExprKind::Path(_) => single(e)
                .map(|n| n.node.clone())
                .filter(|n| matches!(self.definition(n), Some(Definition::Var(v)) if self.sort(*v) == Sort::Tensor)),
            ExprKind::Unary(_, a) => self.compared_tensor(a),
            ExprKind::Binary(_, a, b) => self.compared_tensor(a).or_else(|| self.compared_tensor(b)),
            _ => None,
        }
    }

    /// True if an expression uses attributes and numbers only.
    fn is_attribute(&self, e: &Expr) -> bool {
        match &e.kind {
            ExprKind::Number { .. } => true,
            ExprKind::Path(_) => single(e).is_some_and(|n| match self.definition(&n.node) {
                Some(Definition::Var(v)) => matches!(self.sort(*v), Sort::Attr | Sort::Shape),
                Some(Definition::Param { expr, .. }) => self.is_attribute(expr),
                None => false,
            }),
            ExprKind::Unary(UnaryOp::Neg, a) => self.is_attribute(a),
            ExprKind::Binary(op, a, b) => {
                matches!(
                    op,
                    BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div | BinaryOp::Rem | BinaryOp::Pow
                ) && self.is_attribute(a)
                    && self.is_attribute(b)
            }
            ExprKind::Index(a, b) => self.is_attribute(a) && self.is_attribute(b),
            ExprKind::Call { callee, optional: false, types, args } if types.is_empty() => {
                let name = callee.text();
                if self.binders.contains_key(&name) {
                    return false;
                }
                let given = |a: &Expr| self.is_attribute(a) || self.is_element_type(a);
                let of_attributes = !args.is_empty() && args.iter().all(|a| a.name.is_none() && given(&a.value));
                if AFn::from_name(&name).is_some() && of_attributes {
                    return true;
                }
                let is_fact = matches!(
                    Fact::from_name(&name),
                    Some(Fact::Value | Fact::Rank | Fact::Numel | Fact::Count | Fact::Shape)
                ) || name == "dim";
                is_fact && callee.parts.first().is_some_and(|n| !self.is_function(n))
            }
            _ => false,
        }
    }

    /// True for an element type, or a variable that stands for one: `finfo_max(T)`.
    fn is_element_type(&self, e: &Expr) -> bool {
        single(e).is_some_and(|n| match self.definition(&n.node) {
            Some(Definition::Var(v)) => self.sort(*v) == Sort::DType,
            Some(Definition::Param { .. }) => false,
            None => DType::from_name(&n.node).is_some(),
        })
    }

    /// The expression that a `let` bound to this name, or the expression itself.
    fn written_out(&self, e: &'a Expr) -> &'a Expr {
        match single(e).and_then(|n| self.definition(&n.node)) {
            Some(Definition::Param { expr, .. }) => expr,
            _ => e,
        }
    }

    /// True if the expression of a `let` is a tensor and not an attribute: it applies an op or a
    /// scalar, or it is a bare tensor.
    pub(super) fn is_tensor(&self, e: &Expr) -> bool {
        match &e.kind {
            ExprKind::Path(_) => single(e).is_some_and(|n| match self.definition(&n.node) {
                Some(Definition::Var(v)) => self.sort(*v) == Sort::Tensor,
                Some(Definition::Param { expr, .. }) => self.is_tensor(expr),
                None => false,
            }),
            ExprKind::Unary(_, a) | ExprKind::Result(a, _) => self.is_tensor(a),
            ExprKind::Binary(_, a, b) => self.is_tensor(a) || self.is_tensor(b),
            ExprKind::Else(..) => true,
            ExprKind::Call { callee, args, .. } => {
                let name = callee.text();
                if Fact::from_name(&name).is_some() || name == "dim" || name == "same_accumulator" {
                    return false;
                }
                let tensors = args.iter().any(|a| self.is_tensor(&a.value));
                let several = |e: &Expr| matches!(e.kind, ExprKind::Spread(_) | ExprKind::Comprehension { .. });
                let is_function = || callee.parts.first().is_some_and(|n| self.is_function(n));
                match AFn::from_name(&name) {
                    // Functions of attributes take no named arguments, but `sum(x, axes = a)` does.
                    Some(_) => tensors || args.iter().any(|a| a.name.is_some()) && is_function(),
                    None => {
                        name == FROZEN
                            || tensors
                            || args.iter().any(|a| several(&a.value))
                            || self.binders.contains_key(&name)
                            || is_function()
                    }
                }
            }
            _ => false,
        }
    }

    /// Result `n` of an application of an op.
    pub(super) fn build_result(&mut self, e: &'a Expr, n: u32) -> Option<Build> {
        match &e.kind {
            ExprKind::Call { callee, types, args, .. } => {
                self.build_call(e, callee, types, args, ValueSort::Tensor, Some((n, e.span)))
            }
            _ => self.build(e, ValueSort::Tensor),
        }
    }

    fn build_path(&mut self, p: &'a Path, sort: ValueSort) -> Option<Build> {
        let [one] = p.parts.as_slice() else {
            self.callee(p)?;
            return self.needs_arguments(p);
        };
        let name = one.node.as_str();
        if sort == ValueSort::Term && name == "acc" {
            return Some(node(Head::Acc, vec![]));
        }
        if sort == ValueSort::Term && name == SECOND {
            return Some(node(Head::Second, vec![node(Head::Acc, vec![])]));
        }
        let v = match self.definition(name).cloned() {
            Some(Definition::Var(v)) => v,
            Some(Definition::Param { expr, scope, .. }) => {
                let here = std::mem::replace(&mut self.scope, scope);
                let r = self.build(expr, sort);
                self.scope = here;
                return r;
            }
            None => return self.unbound(one, p, sort),
        };
        match (self.sort(v), sort) {
            (Sort::Tensor, ValueSort::Tensor) if self.info[v.index()].optional => {
                let mut d = Diagnostic::error(code::OPTIONAL, format!("`{name}` may be absent"), p.span)
                    .label("needs a default for when it is absent")
                    .hint(format!("write `({name} else 0)`"));
                if let Some(s) = self.info[v.index()].span {
                    d = d.also(s, format!("`{name}` is optional"));
                }
                self.report(d)
            }
            (Sort::Tensor, ValueSort::Tensor) | (Sort::Term, ValueSort::Term) => Some(Build::Var(v)),
            (Sort::Attr, _) => Some(Build::Number(AExpr::Var(v))),
            _ => self.wrong_sort(name, v, sort.into(), p.span),
        }
    }

    fn needs_arguments<T>(&mut self, p: &Path) -> Option<T> {
        let d =
            Diagnostic::error(code::WRONG_KIND, format!("`{}` is a function and needs arguments", p.text()), p.span)
                .hint(format!("write `{}(...)`", p.text()));
        self.report(d)
    }

    fn unbound(&mut self, one: &Name, p: &Path, sort: ValueSort) -> Option<Build> {
        if self.binders.contains_key(&one.node) || self.is_function(one) {
            if sort == ValueSort::Term {
                let said = format!("`{}` is a function; the result of the product is `acc` in a term", one.node);
                let d = Diagnostic::error(code::WRONG_KIND, said, p.span).label("expected a term");
                return self.report(d.hint("write `acc`, such as `gemm(a, b, exp(acc), to = d)`"));
            }
            return self.needs_arguments(p);
        }
        if one.node == "acc" || one.node == SECOND {
            let text = format!("`{}` is the accumulator inside an epilogue term", one.node);
            let d = Diagnostic::error(code::SORT, text, p.span).label("expected a tensor");
            return self.report(d);
        }
        if let Some(d) = self.bound_later(one) {
            return self.report(d);
        }
        let near = closest(&one.node, self.scopes[self.scope].names.keys().map(String::as_str)).map(str::to_string);
        let mut d = Diagnostic::error(code::UNBOUND, format!("`{}` is not bound", one.node), p.span)
            .label("no value is bound to this name");
        d = match near {
            _ if ["None", "null", "nil", "NULL"].contains(&one.node.as_str()) => {
                d.hint("an operand that is absent is written `none`")
            }
            Some(s) => d.hint(format!("did you mean `{s}`?")),
            None => d.hint(self.bind_hint.replace("{}", &one.node)),
        };
        self.report(d)
    }

    fn build_else(&mut self, a: &'a Expr, b: &'a Expr, sort: ValueSort) -> Option<Build> {
        if let Some(name) = single(a)
            && let Some(Definition::Var(v)) = self.definition(&name.node).cloned()
        {
            if !self.info[v.index()].optional {
                let mut d = Diagnostic::error(code::OPTIONAL, format!("`{}` is never absent", name.node), a.span)
                    .label("this `else` is never used");
                if let Some(s) = self.info[v.index()].span {
                    d = d.also(s, "declared without `?`");
                }
                return self
                    .report(d.hint(format!("write `{}` without `else`, or make it optional with `?`", name.node)));
            }
            let other = self.build(b, sort)?;
            return Some(Build::Else(v, Box::new(other)));
        }
        let d = Diagnostic::error(code::OPTIONAL, "`else` must follow an optional operand", a.span)
            .label("not an optional variable");
        self.report(d)
    }

    fn build_call(
        &mut self,
        e: &'a Expr,
        callee: &'a Path,
        types: &'a [Name],
        args: &'a [Arg],
        sort: ValueSort,
        output: Option<(u32, Span)>,
    ) -> Option<Build> {
        if callee.text() == FROZEN {
            let [arg] = args else {
                return self.error(code::ARITY, "`build` takes one expression", e.span);
            };
            if sort == ValueSort::Term {
                return self.misplaced(e, "in an epilogue term");
            }
            return Some(Build::Frozen(Box::new(self.build(&arg.value, sort)?)));
        }
        if sort == ValueSort::Term
            && let Some(b) = self.term_build(e, callee, types, args)
        {
            return b;
        }
        match self.callee(callee)? {
            Callee::Pattern(_) => {
                let d = Diagnostic::error(
                    code::WRONG_KIND,
                    format!("`{}` is a pattern and cannot be built", callee.text()),
                    callee.span,
                )
                .label("a right side consists of scalars and ops");
                self.report(d)
            }
            Callee::Head(Head::Scalar(id)) => {
                self.plain_call(callee, types, output)?;
                let args = self.scalar_args(id, args, e.span)?;
                self.scalar_build_id(id, &args, sort)
            }
            Callee::Head(Head::Region(v)) => {
                self.region_args(v, e, callee, (types, args))?;
                let built: Vec<Option<Build>> = args.iter().map(|a| self.build(&a.value, sort)).collect();
                Some(node(Head::Region(v), built.into_iter().collect::<Option<_>>()?))
            }
            Callee::Head(Head::Op(id)) if sort == ValueSort::Term => self.op_in_term(id, callee),
            Callee::Head(Head::Op(id)) => self.op_build(id, e, callee, types, args, output),
            Callee::Head(_) => None,
        }
    }

    /// `in(t)`, `row(v)`, `cast<T>(e)`; `None` for anything else.
    fn term_build(
        &mut self,
        e: &'a Expr,
        callee: &'a Path,
        types: &'a [Name],
        args: &'a [Arg],
    ) -> Option<Option<Build>> {
        let [name] = callee.parts.as_slice() else { return None };
        if let Some(v) = view(&name.node) {
            let [arg] = args else {
                return Some(self.error(code::ARITY, format!("`{}` reads one tensor", name.node), e.span));
            };
            return Some(self.build(&arg.value, ValueSort::Tensor).map(|b| node(Head::In(v), vec![b])));
        }
        if let Some(arg) = self.over_second(e, name, args) {
            return Some(arg.and_then(|a| self.build(a, ValueSort::Term)).map(|b| node(Head::Second, vec![b])));
        }
        let (arg, ty) = self.term_cast(&name.node, types, args)?;
        let attr = match ty {
            Ok(t) => self.dtype_name_build(t),
            Err(e) => self.aexpr(e).and_then(|x| self.attr_value(x, AttrType::DType, e.span)),
        };
        let inner = self.build(arg, ValueSort::Term);
        Some(match (inner, attr) {
            (Some(b), Some(a)) => Some(Build::Node(BuildNode {
                head: Head::TermCast,
                args: vec![BuildArg::One(b)],
                attrs: vec![a],
                output: 0,
            })),
            _ => None,
        })
    }

    /// Reports a second accumulator in the term of an op that has one product.
    fn has_accumulators(&mut self, op: OpId, term: &Build, span: Span) -> bool {
        let def = self.s.program.op(op);
        if !matches!(def.body, OpBody::Builtin(b) if !b.is_pair()) || !reads_second(term) {
            return true;
        }
        let text = format!("`{SECOND}` is the accumulator of a second product, but `{}` has one product", def.name);
        let d = Diagnostic::error(code::SORT, text, span).label("reads a second accumulator");
        self.report::<()>(d.hint("write `gemm2(a, b, c, e, to = d)`, whose products are `a b` and `a c`"));
        false
    }

    fn dtype_name_build(&mut self, t: &'a Name) -> Option<AExpr> {
        if let Some(d) = self.dtype_named(&t.node) {
            return Some(AExpr::Value(AttrValue::DType(d)));
        }
        match self.definition(&t.node).cloned() {
            Some(Definition::Var(v)) if self.sort(v) == Sort::DType => Some(AExpr::Var(v)),
            Some(Definition::Var(v)) => self.wrong_sort(&t.node, v, Sort::DType, t.span),
            _ => {
                let d = Diagnostic::error(code::BAD_TYPE, format!("there is no element type `{}`", t.node), t.span);
                self.report(element_type_hint(d, &t.node))
            }
        }
    }

    fn scalar_build(&mut self, s: BuiltinScalar, args: &[&'a Expr], sort: ValueSort, span: Span) -> Option<Build> {
        let id = self.builtin(s, span)?;
        self.scalar_build_id(id, args, sort)
    }

    fn scalar_build_id(&mut self, id: ScalarId, args: &[&'a Expr], sort: ValueSort) -> Option<Build> {
        let out = self.read_scalar_args(id, args, |cx, arg| {
            let b = cx.build(arg, sort)?;
            let kind = cx.build_kind(&b);
            Some((b, kind))
        })?;
        Some(node(Head::Scalar(id), out))
    }

    fn build_kind(&self, b: &Build) -> Option<Kind> {
        match b {
            Build::Number(_) => Some(Kind::Number),
            Build::Node(n) => self.head_kind(n.head),
            Build::Frozen(b) => self.build_kind(b),
            Build::If(_, a, _) => self.build_kind(a),
            _ => None,
        }
    }

    /// The application of an op.
    fn op_build(
        &mut self,
        id: OpId,
        e: &'a Expr,
        callee: &'a Path,
        types: &'a [Name],
        args: &'a [Arg],
        output: Option<(u32, Span)>,
    ) -> Option<Build> {
        let given = self.given(id, callee, types, args, e.span)?;
        let def = self.s.program.op(id);
        let (mut operands, mut attrs) = (Vec::new(), Vec::new());
        let mut good = true;
        for (p, g) in def.params.iter().zip(given) {
            match (&p.kind, g) {
                (ParamKind::Attr { ty, default }, g) => {
                    let a = match g {
                        Argument::One(e) => self.aexpr(e).and_then(|x| self.attr_value(x, *ty, e.span)),
                        Argument::Type(t) => self.dtype_name_build(t),
                        _ => match default {
                            Some(v) => Some(AExpr::Value(v.clone())),
                            None => self.missing_attribute(&p.name, id, e.span),
                        },
                    };
                    good &= a.is_some();
                    attrs.extend(a);
                }
                (_, g) => good &= self.operand_build(id, p, g, &mut operands),
            }
        }
        let output = self.output(id, callee, output, e.span);
        if !good {
            return None;
        }
        Some(Build::Node(BuildNode { head: Head::Op(id), args: operands, attrs, output: output? }))
    }

    /// Adds what a parameter that is no attribute is given to `operands`; false if it is refused.
    fn operand_build(&mut self, id: OpId, p: &Param, given: Argument<'a>, operands: &mut Vec<BuildArg>) -> bool {
        match (&p.kind, given) {
            (ParamKind::Tensor { optional: true, .. }, g) => {
                let a = match g {
                    Argument::One(e) => self.optional_build(e),
                    _ => Some(Build::Absent),
                };
                let good = a.is_some();
                operands.extend(a.map(BuildArg::One));
                good
            }
            (ParamKind::Tensor { .. }, Argument::Many(list)) => {
                let before = operands.len();
                operands.extend(list.iter().filter_map(|e| self.variadic_build(e)));
                operands.len() == before + list.len()
            }
            (ParamKind::Tensor { ty, .. }, Argument::One(e)) if self.integer_literal(id, ty, e).is_some() => {
                operands.extend(self.integer_literal(id, ty, e).map(BuildArg::One));
                true
            }
            (ParamKind::Tensor { .. }, Argument::One(e)) if matches!(e.kind, ExprKind::Absent) => {
                self.never_absent::<()>(self.s.program.op(id), &p.name, e.span);
                false
            }
            (kind, Argument::One(e)) => {
                let sort = if matches!(kind, ParamKind::Term) { ValueSort::Term } else { ValueSort::Tensor };
                let a = self.build(e, sort);
                let good = a.as_ref().is_some_and(|a| sort != ValueSort::Term || self.has_accumulators(id, a, e.span));
                operands.extend(a.map(BuildArg::One));
                good
            }
            _ => false,
        }
    }

    /// A whole number in the place of an integer tensor is a constant of that type, or i64 if any
    /// integer type is allowed: no other operand determines the type.
    fn integer_literal(&self, op: OpId, ty: &TypePat, e: &Expr) -> Option<Build> {
        let value = literal(e).filter(|v| v.fract() == 0.0)?;
        let dtype = match &ty.dtype {
            DTypePat::Is(d) => Some(*d),
            DTypePat::Var(v) => {
                let bounds = &self.s.program.op(op).bounds;
                let allowed = bounds.iter().find(|(b, _)| b == v).map(|(_, l)| l)?;
                (allowed.iter().all(|d| d.is_int()) && allowed.contains(&DType::I64)).then_some(DType::I64)
            }
            _ => None,
        };
        let dtype = dtype.filter(|d| d.is_int())?;
        let full = self.s.program.builtin_op(BuiltinOp::Full)?;
        let attrs = [AttrValue::List(Vec::new()), AttrValue::Float(value), AttrValue::DType(dtype)];
        let attrs = attrs.into_iter().map(AExpr::Value).collect();
        Some(Build::Node(BuildNode { head: Head::Op(full), args: Vec::new(), attrs, output: 0 }))
    }

    fn missing_attribute<T>(&mut self, attr: &str, op: OpId, span: Span) -> Option<T> {
        let def = self.s.program.op(op);
        let d =
            Diagnostic::error(code::MISSING_ATTRIBUTE, format!("`{}` needs its attribute `{attr}`", def.name), span)
                .label(format!("expected {}", super::args::signature(def)))
                .hint(format!("add `{attr} = ...`"));
        self.with_declaration(d, def)
    }

    /// An optional operand: an optional variable is passed on as it is.
    fn optional_build(&mut self, e: &'a Expr) -> Option<Build> {
        if let ExprKind::Absent = e.kind {
            return Some(Build::Absent);
        }
        if let Some(v) = self.optional_var(e) {
            return Some(Build::Var(v));
        }
        self.build(e, ValueSort::Tensor)
    }

    fn optional_var(&self, e: &Expr) -> Option<VarId> {
        let name = match &e.kind {
            ExprKind::Optional(name) => name,
            _ => single(e)?,
        };
        match self.definition(&name.node) {
            Some(Definition::Var(v)) if self.sort(*v) == Sort::Tensor && self.info[v.index()].optional => Some(*v),
            _ => None,
        }
    }

    /// `x`, `..xs`, `[f(x) for x in xs]` among the operands of a variadic op.
    fn variadic_build(&mut self, e: &'a Expr) -> Option<BuildArg> {
        match &e.kind {
            ExprKind::Spread(Some(inner)) => match &inner.kind {
                ExprKind::Comprehension { .. } => self.variadic_build(inner),
                _ => Some(BuildArg::Spread(self.tensors(inner)?)),
            },
            ExprKind::Comprehension { element, name, over, condition } => {
                if let Some(c) = condition {
                    let d = Diagnostic::error(code::MISPLACED, "a condition cannot filter operands", c.span)
                        .hint("use every operand, or match the needed operands one by one");
                    return self.report(d);
                }
                let over = self.tensors(over)?;
                let item = self.fresh(name.node.clone(), Sort::Tensor, Some(name.span));
                let scope = self.scope;
                let hidden = self.scopes[scope].names.insert(name.node.clone(), Definition::Var(item));
                let element = self.build(element, ValueSort::Tensor);
                match hidden {
                    Some(before) => self.scopes[scope].names.insert(name.node.clone(), before),
                    None => self.scopes[scope].names.remove(&name.node),
                };
                Some(BuildArg::Each { element: element?, item, over })
            }
            ExprKind::Path(_) => {
                // A variable for several tensors needs `..`: a single tensor is expected here.
                if let Some(name) = single(e)
                    && let Some(Definition::Var(v)) = self.definition(&name.node).cloned()
                    && self.sort(v) == Sort::Tensors
                {
                    return self.wrong_sort(&name.node, v, Sort::Tensor, e.span);
                }
                Some(BuildArg::One(self.build(e, ValueSort::Tensor)?))
            }
            _ => Some(BuildArg::One(self.build(e, ValueSort::Tensor)?)),
        }
    }

    /// Looks up a variable that stands for several tensors.
    fn tensors(&mut self, e: &'a Expr) -> Option<VarId> {
        let Some(name) = single(e) else {
            return self.error(code::SORT, "`..` must be followed by a variadic operand", e.span);
        };
        match self.definition(&name.node).cloned() {
            Some(Definition::Var(v)) if self.sort(v) == Sort::Tensors => Some(v),
            Some(Definition::Var(v)) => self.wrong_sort(&name.node, v, Sort::Tensors, e.span),
            _ => {
                let d = Diagnostic::error(code::UNBOUND, format!("`{}` is not bound", name.node), e.span)
                    .label("no value is bound to this name")
                    .hint(format!("bind it on the left side: `..{}`", name.node));
                self.report(d)
            }
        }
    }
}

/// Whether a term reads the second accumulator. What variables stand for is not known.
fn reads_second(term: &Build) -> bool {
    match term {
        Build::Node(n) => {
            n.head == Head::Second || n.args.iter().any(|a| matches!(a, BuildArg::One(b) if reads_second(b)))
        }
        Build::Frozen(b) | Build::Else(_, b) => reads_second(b),
        Build::If(_, a, b) => reads_second(a) || reads_second(b),
        Build::Var(_) | Build::Number(_) | Build::Absent => false,
    }
}

pub(super) fn node(head: Head, args: Vec<Build>) -> Build {
    Build::Node(BuildNode { head, args: args.into_iter().map(BuildArg::One).collect(), attrs: vec![], output: 0 })
}
