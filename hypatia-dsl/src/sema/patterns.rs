//! Left sides: expressions as patterns over the e-graph.
//!
//! In: an expression. Out: a [`Pat`], named patterns inlined, attributes in the declaration's order.
//! Holds always: every alternative binds the same variables, apart from those that a named pattern
//! keeps for itself (their names start with `_`).

use std::collections::{BTreeSet, HashMap};

use crate::ast::{Arg, BinaryOp, Expr, ExprKind, ItemKind, Name, Path, UnaryOp};
use crate::builtin::{BuiltinOp, BuiltinScalar, view};
use crate::diag::Diagnostic;
use crate::dtype::{DType, Kind};
use crate::ir::{AExpr, AttrPat, AttrType, AttrValue, Head, NodePat, OpId, ParamKind, Pat, ScalarId, Sort, VarId};
use crate::resolve::{ItemRef, Space};
use crate::source::Span;

use super::args::Given;
use super::code;
use super::context::{Callee, Cx, Frame, Pos, Slot};
use super::types::{TypeMode, single};
use super::walk::{pat_vars, visit_pat};

/// Operands of pointwise work at most.
const MAX_REGION_OPERANDS: usize = 4;

impl<'a> Cx<'a> {
    /// A pattern.
    pub(super) fn pattern(&mut self, e: &'a Expr, pos: Pos) -> Option<Pat> {
        self.enter(e.span)?;
        let r = self.pattern_inner(e, pos);
        self.leave();
        r
    }

    fn pattern_inner(&mut self, e: &'a Expr, pos: Pos) -> Option<Pat> {
        match &e.kind {
            ExprKind::Hole => Some(Pat::Any),
            ExprKind::Number { .. } => Some(Pat::Lit { value: literal(e)?, near: None }),
            ExprKind::Unary(UnaryOp::Neg, inner) if literal(inner).is_some() => {
                Some(Pat::Lit { value: literal(e)?, near: None })
            }
            ExprKind::Near(value, tolerance) => self.near(value, tolerance),
            ExprKind::Path(p) => self.pattern_path(p, pos),
            ExprKind::Bind(name, inner) => {
                let v = self.bind(&name.node, pos.sort(), name.span);
                let inner = self.pattern(inner, pos);
                Some(Pat::Bind(v?, Box::new(inner?)))
            }
            ExprKind::Typed(inner, ty) => {
                if pos == Pos::Term {
                    return self.misplaced(e, "an epilogue term");
                }
                let inner = self.pattern(inner, pos);
                let ty = self.type_pat(ty, TypeMode::Bind);
                Some(Pat::Typed(Box::new(inner?), ty?))
            }
            ExprKind::Alternatives(list) => self.one_of(list, pos, e.span),
            ExprKind::Optional(name) => self.maybe_bound(name, pos),
            ExprKind::Call { callee, optional, types, args } => {
                self.pattern_call(e, callee, *optional, types, args, pos)
            }
            ExprKind::Result(inner, n) => {
                let p = self.pattern_output(inner, pos, Some((*n, e.span)))?;
                Some(p)
            }
            ExprKind::Unary(UnaryOp::Neg, a) => self.scalar_pattern(BuiltinScalar::Neg, &[a], pos, e.span),
            ExprKind::Unary(UnaryOp::Not, a) => self.scalar_pattern(BuiltinScalar::Not, &[a], pos, e.span),
            ExprKind::Binary(BinaryOp::Ne, a, b) => {
                let eq = self.scalar_pattern(BuiltinScalar::Eq, &[a, b], pos, e.span)?;
                let not = self.builtin(BuiltinScalar::Not, e.span)?;
                Some(scalar_node(not, vec![eq]))
            }
            ExprKind::Binary(op, a, b) => match operator(*op) {
                Some((s, false)) => self.scalar_pattern(s, &[a, b], pos, e.span),
                Some((s, true)) => self.scalar_pattern(s, &[b, a], pos, e.span),
                None => self.misplaced(e, "a pattern"),
            },
            _ => self.misplaced(e, "a pattern"),
        }
    }

    /// `name?`: bound where this alternative holds, absent elsewhere.
    fn maybe_bound(&mut self, name: &'a Name, pos: Pos) -> Option<Pat> {
        if let Some(Slot::Param { expr, frame, .. }) = self.slot(&name.node).cloned() {
            // A parameter of a named pattern: the name that it stands for.
            let Some(given) = single(expr) else {
                return self.error(code::MISPLACED, "what may be absent is given by a name", expr.span);
            };
            let here = std::mem::replace(&mut self.frame, frame);
            let made = self.maybe_bound(given, pos);
            self.frame = here;
            return made;
        }
        let v = self.bind(&name.node, pos.sort(), name.span)?;
        self.info[v.index()].optional = true;
        Some(Pat::Optional(v))
    }

    fn near(&mut self, value: &'a Expr, tolerance: &'a Expr) -> Option<Pat> {
        let (Some(v), Some(t)) = (literal(value), literal(tolerance)) else {
            return self.error(
                code::MISPLACED,
                "`~` stands between two numbers: `2.0 ~ 1e-3`",
                value.span.to(tolerance.span),
            );
        };
        if !(t >= 0.0 && t.is_finite()) {
            return self.error(code::MISPLACED, "a tolerance is a number of at least 0", tolerance.span);
        }
        Some(Pat::Lit { value: v, near: Some(t) })
    }

    fn pattern_path(&mut self, p: &'a Path, pos: Pos) -> Option<Pat> {
        let [one] = p.parts.as_slice() else {
            // Reports an unknown name; a known one must be applied.
            self.callee(p)?;
            return self.not_applied(p);
        };
        let name = one.node.as_str();
        if pos == Pos::Term && name == "acc" {
            return Some(Pat::Node(NodePat { head: Head::Acc, args: vec![], rest: None, attrs: vec![], output: 0 }));
        }
        if self.binders.contains_key(name) {
            return self.not_applied(p);
        }
        if DType::from_name(name).is_some() {
            return self.error(code::SORT, format!("`{name}` is an element type, a tensor is needed here"), p.span);
        }
        match self.slot(name).cloned() {
            Some(Slot::Param { expr, frame, var, bound }) => self.pattern_param(name, expr, frame, var, bound, pos),
            _ => Some(Pat::Var(self.bind(name, pos.sort(), one.span)?)),
        }
    }

    fn not_applied<T>(&mut self, p: &Path) -> Option<T> {
        let d =
            Diagnostic::error(code::WRONG_KIND, format!("`{}` is a function and needs arguments", p.text()), p.span)
                .hint(format!("write `{}(...)`", p.text()));
        self.report(d)
    }

    /// A parameter of the pattern that is being inlined: the argument, remembered by a variable so
    /// that its second mention is the same class.
    fn pattern_param(
        &mut self,
        name: &str,
        expr: &'a Expr,
        frame: usize,
        var: Option<VarId>,
        bound: bool,
        pos: Pos,
    ) -> Option<Pat> {
        if let (true, Some(v)) = (bound, var) {
            return Some(Pat::Var(v));
        }
        let here = std::mem::replace(&mut self.frame, frame);
        let inner = self.pattern(expr, pos);
        self.frame = here;
        let inner = inner?;
        if let Pat::Var(_) = inner {
            return Some(inner);
        }
        let v = match var {
            Some(v) => v,
            None => self.fresh(format!("_{name}"), pos.sort(), Some(expr.span)),
        };
        if self.sort(v) != pos.sort() {
            return self.wrong_sort(name, v, pos.sort(), expr.span);
        }
        self.frames[here].names.insert(name.to_string(), Slot::Param { expr, frame, var: Some(v), bound: true });
        Some(Pat::Bind(v, Box::new(inner)))
    }

    /// Alternatives: each from the same state, and all of them binding the same names.
    fn one_of(&mut self, list: &'a [Expr], pos: Pos, span: Span) -> Option<Pat> {
        let mut out = Vec::new();
        let mut good = true;
        for e in list {
            let before = self.bound_params();
            match self.pattern(e, pos) {
                Some(Pat::OneOf(inner)) => out.extend(inner.into_iter().map(|p| (p, e.span))),
                Some(p) => out.push((p, e.span)),
                None => good = false,
            }
            self.restore_params(&before);
        }
        if !good {
            return None;
        }
        self.mark_params_bound(&out);
        let sets: Vec<BTreeSet<VarId>> = out.iter().map(|(p, _)| self.named_vars(p)).collect();
        let all: BTreeSet<VarId> = sets.iter().flatten().copied().collect();
        for (set, (_, at)) in sets.iter().zip(&out) {
            // What may be absent is absent where another alternative holds.
            if let Some(missing) = all.difference(set).find(|v| !self.info[v.index()].optional) {
                let name = self.vars[missing.index()].name.clone();
                let mut d =
                    Diagnostic::error(code::ALTERNATIVES, format!("this alternative does not bind `{name}`"), *at)
                        .label(format!("no `{name}` in here"))
                        .hint("bind the same variables in every alternative, write `_` where the value is not used, or `name?` for what \
                         may be absent");
                if let Some(first) = self.info[missing.index()].span {
                    d = d.also(first, "bound here");
                }
                return self.report(d);
            }
        }
        let mut pats: Vec<Pat> = Vec::new();
        for (p, _) in out {
            if !pats.contains(&p) {
                pats.push(p);
            }
        }
        match pats.len() {
            0 => self.error(code::MISPLACED, "no alternatives", span),
            1 => pats.pop(),
            _ => Some(Pat::OneOf(pats)),
        }
    }

    fn named_vars(&self, p: &Pat) -> BTreeSet<VarId> {
        let mut set = BTreeSet::new();
        pat_vars(p, &mut |v| {
            if !self.vars[v.index()].name.starts_with('_') {
                set.insert(v);
            }
        });
        set
    }

    /// Which parameters of inlined patterns have been matched.
    fn bound_params(&self) -> Vec<(usize, String)> {
        let mut out = Vec::new();
        for (i, f) in self.frames.iter().enumerate() {
            for (name, slot) in &f.names {
                if let Slot::Param { bound: true, .. } = slot {
                    out.push((i, name.clone()));
                }
            }
        }
        out
    }

    fn restore_params(&mut self, before: &[(usize, String)]) {
        for (i, f) in self.frames.iter_mut().enumerate() {
            for (name, slot) in &mut f.names {
                if let Slot::Param { bound, .. } = slot {
                    *bound = before.iter().any(|(b, n)| *b == i && n == name);
                }
            }
        }
    }

    /// After alternatives: a parameter that all of them matched is matched.
    fn mark_params_bound(&mut self, alternatives: &[(Pat, Span)]) {
        let mut common: Option<BTreeSet<VarId>> = None;
        for (p, _) in alternatives {
            let mut set = BTreeSet::new();
            pat_vars(p, &mut |v| {
                set.insert(v);
            });
            common = Some(match common {
                None => set,
                Some(c) => c.intersection(&set).copied().collect(),
            });
        }
        let common = common.unwrap_or_default();
        for f in &mut self.frames {
            for slot in f.names.values_mut() {
                if let Slot::Param { bound, var: Some(v), .. } = slot {
                    *bound |= common.contains(v);
                }
            }
        }
    }

    fn pattern_call(
        &mut self,
        e: &'a Expr,
        callee: &'a Path,
        optional: bool,
        types: &'a [Name],
        args: &'a [Arg],
        pos: Pos,
    ) -> Option<Pat> {
        if !optional {
            return self.pattern_node(e, callee, types, args, pos, None, false);
        }
        // `cast?(x)`: the node, or its first operand.
        let before = self.bound_params();
        let with = self.pattern_node(e, callee, types, args, pos, None, true);
        self.restore_params(&before);
        let Some(first) = args.first().filter(|a| a.name.is_none()) else {
            return self.error(code::ARITY, format!("`{}?` needs an operand", callee.text()), e.span);
        };
        let without = self.pattern(&first.value, pos);
        let (with, without) = (with?, without?);
        let out = vec![(with, e.span), (without, first.value.span)];
        self.mark_params_bound(&out);
        let (a, b) = (self.named_vars(&out[0].0), self.named_vars(&out[1].0));
        if let Some(v) = a.difference(&b).next() {
            let name = self.vars[v.index()].name.clone();
            let d = Diagnostic::error(
                code::ALTERNATIVES,
                format!("`{name}` is not bound where `{}` is missing", callee.text()),
                e.span,
            )
            .label("this node may be missing")
            .hint("a node that may be missing binds variables in its first operand only; write `_` for the others");
            return self.report(d);
        }
        let mut pats: Vec<Pat> = Vec::new();
        for (p, _) in out {
            match p {
                Pat::OneOf(inner) => pats.extend(inner),
                p => pats.push(p),
            }
        }
        Some(Pat::OneOf(pats))
    }

    fn pattern_output(&mut self, e: &'a Expr, pos: Pos, output: Option<(u32, Span)>) -> Option<Pat> {
        match &e.kind {
            ExprKind::Call { callee, optional: false, types, args } => {
                self.enter(e.span)?;
                let r = self.pattern_node(e, callee, types, args, pos, output, false);
                self.leave();
                r
            }
            _ => self.misplaced(e, "front of a result number"),
        }
    }

    /// An application. `output` is the written `.n`; `loose` lets unmentioned attributes be anything.
    #[allow(clippy::too_many_arguments)]
    fn pattern_node(
        &mut self,
        e: &'a Expr,
        callee: &'a Path,
        types: &'a [Name],
        args: &'a [Arg],
        pos: Pos,
        output: Option<(u32, Span)>,
        loose: bool,
    ) -> Option<Pat> {
        if pos == Pos::Term
            && let Some(p) = self.term_form(e, callee, types, args)
        {
            return p;
        }
        match self.callee(callee)? {
            Callee::Pattern(item) => self.inline(item, callee, args, pos, e.span),
            Callee::Head(Head::Scalar(id)) => {
                self.plain_call(callee, types, output)?;
                let args = self.scalar_args(id, args, e.span)?;
                self.scalar_pattern_id(id, &args, pos)
            }
            Callee::Head(Head::Op(id)) => {
                if pos == Pos::Term {
                    return self.op_in_term(id, callee);
                }
                self.op_pattern(id, e, callee, types, args, output, loose)
            }
            Callee::Head(Head::Region(v)) => {
                if pos == Pos::Term {
                    let d = Diagnostic::error(
                        code::REGION,
                        format!("on a left side `{}` is work on whole tensors, not inside an epilogue", callee.text()),
                        e.span,
                    )
                    .hint("bind the epilogue as a whole: `gemm(a, b, e, to = d)`");
                    return self.report(d);
                }
                self.region_args(v, e, callee, (types, args))?;
                let pats: Vec<Option<Pat>> = args.iter().map(|a| self.pattern(&a.value, Pos::Tensor)).collect();
                let args = pats.into_iter().collect::<Option<Vec<_>>>()?;
                self.info[v.index()].operands = Some(args.len());
                Some(Pat::Node(NodePat { head: Head::Region(v), args, rest: None, attrs: vec![], output: 0 }))
            }
            Callee::Head(_) => None,
        }
    }

    /// Checks the operands of pointwise work: plain ones, and as many as on the left side.
    pub(super) fn region_args(
        &mut self,
        v: VarId,
        e: &Expr,
        callee: &Path,
        (types, args): (&[Name], &[Arg]),
    ) -> Option<()> {
        let name = callee.text();
        let plain = types.is_empty() && args.iter().all(|a| a.name.is_none());
        let wanted = self.info[v.index()].operands;
        let fits = match wanted {
            Some(n) => args.len() == n,
            None => (1..=MAX_REGION_OPERANDS).contains(&args.len()),
        };
        if plain && fits {
            return Some(());
        }
        let wanted = match wanted {
            Some(n) => format!("{n}, as on the left side"),
            None => format!("one to {MAX_REGION_OPERANDS}"),
        };
        let d =
            Diagnostic::error(code::REGION, format!("`{name}` stands for pointwise work over operands alone"), e.span)
                .label(format!("expected operands: {wanted}"));
        self.report(d)
    }

    pub(super) fn op_in_term<T>(&mut self, id: OpId, callee: &Path) -> Option<T> {
        let d = Diagnostic::error(
            code::SORT,
            format!("`{}` works on whole tensors, not inside an epilogue", callee.text()),
            callee.span,
        )
        .label("an epilogue term holds scalars, `acc`, `in(t)`, `row(v)`, `col(v)` and `full(t)`");
        let def = self.s.program.op(id);
        self.with_declaration(d, def)
    }

    /// `in(t)`, `row(v)`, `cast<T>(e)`, `round<T>(e)`; `None` if it is none of them.
    fn term_form(&mut self, e: &'a Expr, callee: &'a Path, types: &'a [Name], args: &'a [Arg]) -> Option<Option<Pat>> {
        let [name] = callee.parts.as_slice() else { return None };
        if let Some(v) = view(&name.node) {
            let [arg] = args else {
                return Some(self.error(code::ARITY, format!("`{}` reads one tensor", name.node), e.span));
            };
            let inner = self.pattern(&arg.value, Pos::Tensor);
            return Some(inner.map(|p| {
                Pat::Node(NodePat { head: Head::In(v), args: vec![p], rest: None, attrs: vec![], output: 0 })
            }));
        }
        let (arg, ty) = self.term_cast(&name.node, types, args)?;
        let attr = match ty {
            Ok(t) => self.dtype_name_pat(t),
            Err(e) => self.attr_pat(e, AttrType::DType),
        };
        let inner = self.pattern(arg, Pos::Term);
        Some(match (inner, attr) {
            (Some(p), Some(a)) => {
                Some(Pat::Node(NodePat { head: Head::TermCast, args: vec![p], rest: None, attrs: vec![a], output: 0 }))
            }
            _ => None,
        })
    }

    /// The operand and the type of `cast<T>(e)`, `cast(e, to = T)` or `round<T>(e)` in a term.
    #[allow(clippy::type_complexity)]
    pub(super) fn term_cast(
        &self,
        name: &str,
        types: &'a [Name],
        args: &'a [Arg],
    ) -> Option<(&'a Expr, Result<&'a Name, &'a Expr>)> {
        match (types, args) {
            ([t], [a]) if name == BuiltinOp::Cast.name() || name == BuiltinScalar::Round.name() => {
                Some((&a.value, Ok(t)))
            }
            ([], [a, t]) if name == BuiltinOp::Cast.name() => Some((&a.value, Err(&t.value))),
            _ => None,
        }
    }

    fn dtype_name_pat(&mut self, t: &'a Name) -> Option<AttrPat> {
        if t.node == "_" {
            return Some(AttrPat::Any);
        }
        if let Some(d) = self.dtype_named(&t.node) {
            return Some(AttrPat::Is(AExpr::Value(AttrValue::DType(d))));
        }
        Some(AttrPat::Var(self.bind(&t.node, Sort::DType, t.span)?))
    }

    fn scalar_pattern(&mut self, s: BuiltinScalar, args: &[&'a Expr], pos: Pos, span: Span) -> Option<Pat> {
        let id = self.builtin(s, span)?;
        self.scalar_pattern_id(id, args, pos)
    }

    fn scalar_pattern_id(&mut self, id: ScalarId, args: &[&'a Expr], pos: Pos) -> Option<Pat> {
        let out = self.read_scalar_args(id, args, |cx, arg| {
            let p = cx.pattern(arg, pos)?;
            let kind = cx.pat_kind(&p);
            Some((p, kind))
        })?;
        Some(scalar_node(id, out))
    }

    /// Whether a pattern gives a number or a truth value, where that is known.
    fn pat_kind(&self, p: &Pat) -> Option<Kind> {
        match p {
            Pat::Lit { .. } => Some(Kind::Number),
            Pat::Bind(_, p) | Pat::Typed(p, _) => self.pat_kind(p),
            Pat::Node(n) => self.head_kind(n.head),
            Pat::OneOf(l) => l.first().and_then(|p| self.pat_kind(p)),
            _ => None,
        }
    }

    /// Whether an application gives a number or a truth value, where that is known.
    pub(super) fn head_kind(&self, head: Head) -> Option<Kind> {
        match head {
            Head::Scalar(id) => Some(self.s.program.scalar(id).result),
            Head::Acc => Some(Kind::Number),
            _ => None,
        }
    }

    /// Reports if argument `i` of a scalar is of the wrong kind.
    pub(super) fn check_kind(&mut self, id: ScalarId, i: usize, have: Option<Kind>, span: Span) -> Option<()> {
        let def = self.s.program.scalar(id);
        let (name, wanted) = def.params.get(i)?;
        let Some(have) = have else { return Some(()) };
        if have == *wanted {
            return Some(());
        }
        let word = |k: Kind| if k == Kind::Bool { "a truth value" } else { "a number" };
        let mut d = Diagnostic::error(
            code::KIND,
            format!("`{name}` of `{}` is {}, but this is {}", def.name, word(*wanted), word(have)),
            span,
        )
        .label(format!("expected {}", word(*wanted)));
        if let Some(s) = def.origin.span {
            d = d.also(s, format!("`{}` is declared here", def.name));
        }
        self.report(d)
    }

    #[allow(clippy::too_many_arguments)]
    fn op_pattern(
        &mut self,
        id: OpId,
        e: &'a Expr,
        callee: &'a Path,
        types: &'a [Name],
        args: &'a [Arg],
        output: Option<(u32, Span)>,
        loose: bool,
    ) -> Option<Pat> {
        let given = self.given(id, callee, types, args, e.span)?;
        let def = self.s.program.op(id);
        let (mut operands, mut attrs, mut rest) = (Vec::new(), Vec::new(), None);
        let mut good = true;
        for (p, g) in def.params.iter().zip(given) {
            match (&p.kind, g) {
                (ParamKind::Attr { ty, default }, g) => {
                    let a = match g {
                        Given::One(e) => self.attr_pat(e, *ty),
                        Given::Type(t) => self.dtype_name_pat(t),
                        _ if loose => Some(AttrPat::Any),
                        _ => match default {
                            Some(v) => Some(AttrPat::Is(AExpr::Value(v.clone()))),
                            None => self.unmentioned(&p.name, &def.name, e.span),
                        },
                    };
                    good &= a.is_some();
                    attrs.extend(a);
                }
                (ParamKind::Tensor { optional: true, .. }, g) => {
                    let a = match g {
                        Given::One(e) => self.optional_pattern(e),
                        _ => Some(Pat::Absent),
                    };
                    good &= a.is_some();
                    operands.extend(a);
                }
                (ParamKind::Tensor { .. }, Given::Many(list)) => match self.variadic_pattern(&list) {
                    Some((fixed, r)) => {
                        operands.extend(fixed);
                        rest = r;
                    }
                    None => good = false,
                },
                (kind, Given::One(e)) => {
                    let pos = if matches!(kind, ParamKind::Term) { Pos::Term } else { Pos::Tensor };
                    let a = self.pattern(e, pos);
                    good &= a.is_some();
                    operands.extend(a);
                }
                _ => good = false,
            }
        }
        let output = self.output(id, callee, output, e.span);
        if !good {
            return None;
        }
        Some(Pat::Node(NodePat { head: Head::Op(id), args: operands, rest, attrs, output: output? }))
    }

    fn unmentioned<T>(&mut self, attr: &str, op: &str, span: Span) -> Option<T> {
        let d = Diagnostic::error(
            code::UNMENTIONED_ATTRIBUTE,
            format!("the pattern says nothing about `{attr}` of `{op}`"),
            span,
        )
        .label(format!("`{attr}` has no default"))
        .hint(format!("write `{attr} = _` to match any, or `{attr} = p` to use it on the right side"));
        self.report(d)
    }

    /// Which result is meant: `.n`, or the only one.
    pub(super) fn output(&mut self, id: OpId, callee: &Path, output: Option<(u32, Span)>, span: Span) -> Option<u32> {
        let def = self.s.program.op(id);
        let several = def.variadic_result || def.results.len() > 1;
        match output {
            Some((n, _)) if several && (def.variadic_result || (n as usize) < def.results.len()) => Some(n),
            Some((0, _)) if !several => Some(0),
            Some((n, at)) => {
                let have = def.results.len();
                let d = Diagnostic::error(code::ARITY, format!("`{}` has no result {n}", callee.text()), at)
                    .label(format!("it has {have} result{}, counted from 0", if have == 1 { "" } else { "s" }));
                self.with_declaration(d, def)
            }
            // A kernel computes all results.
            None if several && self.kernel_root == Some(span) => Some(0),
            None if several => {
                let d = Diagnostic::error(code::ARITY, format!("`{}` has several results", callee.text()), span)
                    .label("which one?")
                    .hint(format!("write `{}(...).0` for the first", callee.text()));
                self.with_declaration(d, def)
            }
            None => Some(0),
        }
    }

    fn optional_pattern(&mut self, e: &'a Expr) -> Option<Pat> {
        match &e.kind {
            ExprKind::Absent => Some(Pat::Absent),
            ExprKind::Optional(name) => {
                let v = self.bind(&name.node, Sort::Tensor, name.span)?;
                self.info[v.index()].optional = true;
                Some(Pat::Optional(v))
            }
            _ => self.pattern(e, Pos::Tensor),
        }
    }

    fn variadic_pattern(&mut self, list: &[&'a Expr]) -> Option<(Vec<Pat>, Option<VarId>)> {
        let (mut fixed, mut rest) = (Vec::new(), None);
        let mut good = true;
        for (i, e) in list.iter().enumerate() {
            match &e.kind {
                ExprKind::Spread(inner) => {
                    if i + 1 != list.len() {
                        let d = Diagnostic::error(code::MISPLACED, "`..` matches the last operands", e.span)
                            .label("more operands follow")
                            .hint("put it last");
                        good = false;
                        self.report::<()>(d);
                        continue;
                    }
                    let v = match inner.as_deref() {
                        None => Some(self.fresh("_rest", Sort::Tensors, Some(e.span))),
                        Some(x) => match single(x) {
                            Some(n) => self.bind(&n.node, Sort::Tensors, n.span),
                            None => self.misplaced(x, "`..` of a left side"),
                        },
                    };
                    good &= v.is_some();
                    rest = v;
                }
                _ => match self.pattern(e, Pos::Tensor) {
                    Some(p) => fixed.push(p),
                    None => good = false,
                },
            }
        }
        good.then_some((fixed, rest))
    }

    /// Writes out a named pattern.
    fn inline(&mut self, item: ItemRef, callee: &Path, args: &'a [Arg], pos: Pos, span: Span) -> Option<Pat> {
        if self.s.poisoned_items.contains(&item) {
            return None;
        }
        let ItemKind::Pattern(def) = &self.s.resolved.files[item.file].items[item.item].kind else { return None };
        if args.len() != def.params.len() || args.iter().any(|a| a.name.is_some()) {
            let names: Vec<&str> = def.params.iter().map(|p| p.node.as_str()).collect();
            let d = Diagnostic::error(
                code::ARITY,
                format!("pattern `{}` takes {} arguments", callee.text(), names.len()),
                span,
            )
            .label(format!("expected {}({})", def.name.node, names.join(", ")))
            .also(def.name.span, format!("`{}` is declared here", def.name.node));
            return self.report(d);
        }
        let here = self.frame;
        let names: HashMap<String, Slot<'a>> = def
            .params
            .iter()
            .zip(args)
            .map(|(p, a)| (p.node.clone(), Slot::Param { expr: &a.value, frame: here, var: None, bound: false }))
            .collect();
        // The variable of a parameter is made before alternatives branch, so that they share it.
        self.frames.push(Frame { file: item.file, names });
        self.frame = self.frames.len() - 1;
        if let ExprKind::Alternatives(_) = def.body.kind {
            for (p, a) in def.params.iter().zip(args) {
                let needed = !matches!(a.value.kind, ExprKind::Path(_));
                if needed && mentions_as_operand(&def.body, &p.node) {
                    let v = self.fresh(format!("_{}", p.node), pos.sort(), Some(a.value.span));
                    let slot = Slot::Param { expr: &a.value, frame: here, var: Some(v), bound: false };
                    let frame = self.frame;
                    self.frames[frame].names.insert(p.node.clone(), slot);
                }
            }
        }
        let r = self.pattern(&def.body, pos);
        self.frame = here;
        r
    }

    /// Compares what was deferred, now that everything is bound.
    pub(super) fn settle_deferred(&mut self) -> Option<()> {
        let mut good = true;
        for (v, e, frame) in std::mem::take(&mut self.deferred) {
            let here = std::mem::replace(&mut self.frame, frame);
            match self.aexpr(e) {
                Some(x) => {
                    self.implied.push(AExpr::Binary(BinaryOp::Eq, Box::new(AExpr::Var(v)), Box::new(x)));
                }
                None => good = false,
            }
            self.frame = here;
        }
        good.then_some(())
    }

    /// Drops variables that only made-up names needed and that nothing mentions again.
    pub(super) fn tidy(&self, pats: Vec<Pat>) -> Vec<Pat> {
        let mut count: HashMap<VarId, usize> = HashMap::new();
        for p in &pats {
            pat_vars(p, &mut |v| *count.entry(v).or_default() += 1);
        }
        pats.into_iter()
            .map(|p| {
                visit_pat(p, &mut |p| match p {
                    Pat::Bind(v, inner)
                        if self.vars[v.index()].name.starts_with('_') && count.get(&v).copied() == Some(1) =>
                    {
                        *inner
                    }
                    other => other,
                })
            })
            .collect()
    }

    /// True if the name means something that could be applied.
    pub(super) fn is_function(&self, name: &Name) -> bool {
        let path = Path { parts: vec![name.clone()], span: name.span };
        self.s.resolved.is_declared(self.file(), Space::Value, &path)
    }
}

fn mentions_as_operand(e: &Expr, name: &str) -> bool {
    match &e.kind {
        ExprKind::Path(_) => single(e).is_some_and(|n| n.node == name),
        ExprKind::Call { args, .. } => args.iter().any(|a| a.name.is_none() && mentions_as_operand(&a.value, name)),
        ExprKind::Unary(_, x) | ExprKind::Bind(_, x) | ExprKind::Typed(x, _) | ExprKind::Result(x, _) => {
            mentions_as_operand(x, name)
        }
        ExprKind::Binary(_, a, b) => mentions_as_operand(a, name) || mentions_as_operand(b, name),
        ExprKind::Alternatives(l) | ExprKind::List(l) => l.iter().any(|x| mentions_as_operand(x, name)),
        _ => false,
    }
}

pub(super) fn scalar_node(id: ScalarId, args: Vec<Pat>) -> Pat {
    Pat::Node(NodePat { head: Head::Scalar(id), args, rest: None, attrs: vec![], output: 0 })
}

/// The number that a literal is, with its sign.
pub(super) fn literal(e: &Expr) -> Option<f64> {
    match &e.kind {
        ExprKind::Number { value, .. } => Some(*value),
        ExprKind::Unary(UnaryOp::Neg, inner) => match &inner.kind {
            ExprKind::Number { value, .. } => Some(-value),
            _ => None,
        },
        _ => None,
    }
}

/// The builtin scalar that an operator means on tensors and terms, and whether its operands swap.
/// `!=` is the negation of `==`.
pub(super) fn operator(op: BinaryOp) -> Option<(BuiltinScalar, bool)> {
    Some(match op {
        BinaryOp::Add => (BuiltinScalar::Add, false),
        BinaryOp::Sub => (BuiltinScalar::Sub, false),
        BinaryOp::Mul => (BuiltinScalar::Mul, false),
        BinaryOp::Div => (BuiltinScalar::Div, false),
        BinaryOp::Rem => (BuiltinScalar::Fmod, false),
        BinaryOp::Pow => (BuiltinScalar::Pow, false),
        BinaryOp::Eq => (BuiltinScalar::Eq, false),
        BinaryOp::Lt => (BuiltinScalar::Lt, false),
        BinaryOp::Le => (BuiltinScalar::Le, false),
        BinaryOp::Gt => (BuiltinScalar::Lt, true),
        BinaryOp::Ge => (BuiltinScalar::Le, true),
        BinaryOp::And => (BuiltinScalar::And, false),
        BinaryOp::Or => (BuiltinScalar::Or, false),
        BinaryOp::Ne | BinaryOp::In | BinaryOp::NotIn => return None,
    })
}
