//! Applications on left sides: ops, scalars, pointwise work, and the forms of epilogue terms.
//!
//! In: a call expression. Out: a [`Pat`] with operands and attributes in declaration order.
//! Invariant: `None` means that the reason has been reported.

use crate::ast::{Arg, Expr, ExprKind, Name, Path};
use crate::builtin::{BuiltinOp, BuiltinScalar, OVER_SECOND, view};
use crate::diag::Diagnostic;
use crate::dtype::{DType, Kind};
use crate::ir::{
    AExpr, AttrPat, AttrType, AttrValue, DTypePat, Each, Head, NodePat, OpBody, OpId, ParamKind, Pat, Rest, ScalarId,
    Sort, TypePat, VarId,
};
use crate::source::Span;
use crate::typing::codes;

use super::args::Argument;
use super::code;
use super::context::{Callee, Cx, Definition, ValueSort};
use super::patterns::{head_node, scalar_node};
use super::types::single;
use super::walk::pat_vars;

/// Maximum number of operands of pointwise work.
const MAX_REGION_OPERANDS: usize = 4;

impl<'a> Cx<'a> {
    pub(super) fn pattern_call(
        &mut self,
        e: &'a Expr,
        callee: &'a Path,
        optional: bool,
        types: &'a [Name],
        args: &'a [Arg],
        sort: ValueSort,
    ) -> Option<Pat> {
        if !optional {
            return self.pattern_node(e, callee, types, args, sort, None, false);
        }
        // `cast?(x)` matches the node or its first operand.
        let before = self.bound_params();
        let with = self.pattern_node(e, callee, types, args, sort, None, true);
        self.restore_params(&before);
        let Some(first) = args.first().filter(|a| a.name.is_none()) else {
            return self.error(code::ARITY, format!("`{}?` needs an operand", callee.text()), e.span);
        };
        let without = self.pattern(&first.value, sort);
        let (with, without) = (with?, without?);
        let out = vec![(with, e.span), (without, first.value.span)];
        self.mark_params_bound(&out);
        let (a, b) = (self.named_vars(&out[0].0), self.named_vars(&out[1].0));
        if let Some(v) = a.difference(&b).next() {
            let name = self.vars[v.index()].name.clone();
            let d = Diagnostic::error(
                code::ALTERNATIVES,
                format!("`{name}` is not bound where `{}` is absent", callee.text()),
                e.span,
            )
            .label("this node may be absent")
            .hint("a node that may be absent can bind variables in its first operand only; write `_` for the others");
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

    pub(super) fn pattern_output(&mut self, e: &'a Expr, sort: ValueSort, output: Option<(u32, Span)>) -> Option<Pat> {
        match &e.kind {
            ExprKind::Call { callee, optional: false, types, args } => {
                self.enter(e.span)?;
                let r = self.pattern_node(e, callee, types, args, sort, output, false);
                self.leave();
                r
            }
            _ => self.misplaced(e, "in front of a result number"),
        }
    }

    /// The pattern of an application. `output` is the written `.n`; `loose` leaves unmentioned
    /// attributes unconstrained.
    #[allow(clippy::too_many_arguments)]
    fn pattern_node(
        &mut self,
        e: &'a Expr,
        callee: &'a Path,
        types: &'a [Name],
        args: &'a [Arg],
        sort: ValueSort,
        output: Option<(u32, Span)>,
        loose: bool,
    ) -> Option<Pat> {
        if sort == ValueSort::Term
            && let Some(p) = self.term_form(e, callee, types, args)
        {
            return p;
        }
        match self.callee(callee)? {
            Callee::Pattern(item) => self.inline(item, callee, args, sort, e.span),
            Callee::Head(Head::Scalar(id)) => {
                self.plain_call(callee, types, output)?;
                let args = self.scalar_args(id, args, e.span)?;
                self.scalar_pattern_id(id, &args, sort)
            }
            Callee::Head(Head::Op(id)) => {
                if sort == ValueSort::Term {
                    return self.op_in_term(id, callee);
                }
                self.op_pattern(id, e, callee, types, args, output, loose)
            }
            Callee::Head(Head::Region(v)) => {
                if sort == ValueSort::Term {
                    let d = Diagnostic::error(
                        code::REGION,
                        format!(
                            "on a left side, `{}` stands for operations on tensors and is not allowed in an epilogue",
                            callee.text()
                        ),
                        e.span,
                    )
                    .hint("bind the whole epilogue: `gemm(a, b, e, to = d)`");
                    return self.report(d);
                }
                self.region_args(v, e, callee, (types, args))?;
                let pats: Vec<Option<Pat>> = args.iter().map(|a| self.pattern(&a.value, ValueSort::Tensor)).collect();
                let args = pats.into_iter().collect::<Option<Vec<_>>>()?;
                self.info[v.index()].operands = Some(args.len());
                Some(Pat::Node(NodePat { head: Head::Region(v), args, rest: None, attrs: vec![], output: 0 }))
            }
            Callee::Head(_) => None,
        }
    }

    /// Checks the operands of pointwise work: plain operands, as many as on the left side.
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
        let d = Diagnostic::error(
            code::REGION,
            format!("`{name}` stands for pointwise operations and takes operands only"),
            e.span,
        )
        .label(format!("expected operands: {wanted}"));
        self.report(d)
    }

    pub(super) fn op_in_term<T>(&mut self, id: OpId, callee: &Path) -> Option<T> {
        let d = Diagnostic::error(
            code::SORT,
            format!("`{}` works on whole tensors and is not allowed in an epilogue", callee.text()),
            callee.span,
        )
        .label("an epilogue term may contain scalars, `acc`, `in(t)`, `row(v)`, `col(v)` and `full(t)`");
        let def = self.s.program.op(id);
        self.with_declaration(d, def)
    }

    /// `in(t)`, `row(v)`, `cast<T>(e)`, `round<T>(e)`; `None` for anything else.
    fn term_form(&mut self, e: &'a Expr, callee: &'a Path, types: &'a [Name], args: &'a [Arg]) -> Option<Option<Pat>> {
        let [name] = callee.parts.as_slice() else { return None };
        if let Some(v) = view(&name.node) {
            let [arg] = args else {
                return Some(self.error(code::ARITY, format!("`{}` reads one tensor", name.node), e.span));
            };
            let inner = self.pattern(&arg.value, ValueSort::Tensor);
            return Some(inner.map(|p| head_node(Head::In(v), vec![p])));
        }
        if let Some(arg) = self.over_second(e, name, args) {
            return Some(arg.and_then(|a| self.pattern(a, ValueSort::Term)).map(|p| head_node(Head::Second, vec![p])));
        }
        let (arg, ty) = self.term_cast(&name.node, types, args)?;
        let attr = match ty {
            Ok(t) => self.dtype_name_pat(t),
            Err(e) => self.attr_pat(e, AttrType::DType),
        };
        let inner = self.pattern(arg, ValueSort::Term);
        Some(match (inner, attr) {
            (Some(p), Some(a)) => {
                Some(Pat::Node(NodePat { head: Head::TermCast, args: vec![p], rest: None, attrs: vec![a], output: 0 }))
            }
            _ => None,
        })
    }

    /// The operand of `second(e)` in a term; `None` for another function.
    pub(super) fn over_second(&mut self, e: &'a Expr, name: &Name, args: &'a [Arg]) -> Option<Option<&'a Expr>> {
        if name.node != OVER_SECOND {
            return None;
        }
        Some(match args {
            [Arg { name: None, value, .. }] => Some(value),
            _ => self.error(code::ARITY, format!("`{OVER_SECOND}` takes one term"), e.span),
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

    pub(super) fn scalar_pattern(
        &mut self,
        s: BuiltinScalar,
        args: &[&'a Expr],
        sort: ValueSort,
        span: Span,
    ) -> Option<Pat> {
        let id = self.builtin(s, span)?;
        self.scalar_pattern_id(id, args, sort)
    }

    fn scalar_pattern_id(&mut self, id: ScalarId, args: &[&'a Expr], sort: ValueSort) -> Option<Pat> {
        let out = self.read_scalar_args(id, args, |cx, arg| {
            let p = cx.pattern(arg, sort)?;
            let kind = cx.pat_kind(&p);
            Some((p, kind))
        })?;
        self.check_types(id, &out, args)?;
        Some(scalar_node(id, out))
    }

    /// Reports operands of a function whose element types are known and differ: no graph has such
    /// an application.
    fn check_types(&mut self, id: ScalarId, pats: &[Pat], args: &[&'a Expr]) -> Option<()> {
        let params = &self.s.program.scalar(id).params;
        let numbers = pats.iter().zip(args).zip(params).filter(|(_, (_, kind))| *kind == Kind::Number);
        let mut known = numbers.filter_map(|((p, e), _)| Some((self.pat_dtype(p)?, e.span)));
        let Some((first, at)) = known.next() else { return Some(()) };
        let Some((other, span)) = known.find(|(d, _)| *d != first) else { return Some(()) };
        let name = &self.s.program.scalar(id).name;
        let message = format!("`{name}` takes operands of one element type, but these are {first} and {other}");
        let d = Diagnostic::error(codes::DTYPE, message, span)
            .label(format!("this is {other}"))
            .also(at, format!("this is {first}"))
            .note("no graph has such an application, so the rule would never match")
            .hint("write the cast that the graph has: `cast(y, to = f32)`");
        self.report(d)
    }

    /// The element type of what a pattern matches, if the pattern says which.
    fn pat_dtype(&self, p: &Pat) -> Option<DType> {
        match p {
            Pat::Typed(_, TypePat { dtype: DTypePat::Is(d), .. }) => Some(*d),
            Pat::Bind(_, p) | Pat::Typed(p, _) => self.pat_dtype(p),
            Pat::Node(NodePat { head: Head::Scalar(id), args, .. }) => {
                let def = self.s.program.scalar(*id);
                let numbers = args.iter().zip(&def.params).filter(|(_, (_, kind))| *kind == Kind::Number);
                let mut operands = numbers.filter_map(|(p, _)| self.pat_dtype(p));
                if def.result == Kind::Number { operands.next() } else { None }
            }
            Pat::Node(NodePat { head: Head::Op(op), attrs, .. })
                if self.s.program.op(*op).body == OpBody::Builtin(BuiltinOp::Cast) =>
            {
                match attrs.first() {
                    Some(AttrPat::Is(AExpr::Value(AttrValue::DType(d)))) => Some(*d),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// The kind of a pattern (number or boolean), if it is known.
    fn pat_kind(&self, p: &Pat) -> Option<Kind> {
        match p {
            Pat::Lit { .. } => Some(Kind::Number),
            Pat::Bind(_, p) | Pat::Typed(p, _) => self.pat_kind(p),
            Pat::Node(n) => self.head_kind(n.head),
            Pat::OneOf(l) => l.first().and_then(|p| self.pat_kind(p)),
            _ => None,
        }
    }

    /// The kind of an application (number or boolean), if it is known.
    pub(super) fn head_kind(&self, head: Head) -> Option<Kind> {
        match head {
            Head::Scalar(id) => Some(self.s.program.scalar(id).result),
            Head::Acc => Some(Kind::Number),
            _ => None,
        }
    }

    /// Reports argument `i` of a scalar if its kind is wrong.
    pub(super) fn check_kind(&mut self, id: ScalarId, i: usize, have: Option<Kind>, span: Span) -> Option<()> {
        let def = self.s.program.scalar(id);
        let (name, wanted) = def.params.get(i)?;
        let Some(have) = have else { return Some(()) };
        if have == *wanted {
            return Some(());
        }
        let word = |k: Kind| if k == Kind::Bool { "a boolean" } else { "a number" };
        let mut d = Diagnostic::error(
            code::KIND,
            format!("parameter `{name}` of `{}` is {}, but this is {}", def.name, word(*wanted), word(have)),
            span,
        )
        .label(format!("expected {}", word(*wanted)))
        .hint(match wanted {
            Kind::Bool => "compare it with a number: `x != 0`",
            _ => "convert it to a number: `if c then 1 else 0`",
        });
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
        let mut missing: Vec<&str> = Vec::new();
        for (p, g) in def.params.iter().zip(given) {
            match (&p.kind, g) {
                (ParamKind::Attr { ty, default }, g) => {
                    let a = match g {
                        Argument::One(e) => self.attr_pat(e, *ty),
                        Argument::Type(t) => self.dtype_name_pat(t),
                        _ if loose => Some(AttrPat::Any),
                        _ => match default {
                            Some(v) => Some(AttrPat::Is(AExpr::Value(v.clone()))),
                            None => {
                                missing.push(&p.name);
                                None
                            }
                        },
                    };
                    good &= a.is_some();
                    attrs.extend(a);
                }
                (ParamKind::Tensor { optional: true, .. }, g) => {
                    let a = match g {
                        Argument::One(e) => self.optional_pattern(e),
                        _ => Some(Pat::Absent),
                    };
                    good &= a.is_some();
                    operands.extend(a);
                }
                (ParamKind::Tensor { .. }, Argument::Many(list)) => match self.variadic_pattern(&list) {
                    Some((fixed, r)) => {
                        operands.extend(fixed);
                        rest = r;
                    }
                    None => good = false,
                },
                (ParamKind::Tensor { .. }, Argument::One(e)) if matches!(e.kind, ExprKind::Absent) => {
                    self.never_absent::<()>(def, &p.name, e.span);
                    good = false;
                }
                (kind, Argument::One(e)) => {
                    let sort = if matches!(kind, ParamKind::Term) { ValueSort::Term } else { ValueSort::Tensor };
                    let a = self.pattern(e, sort);
                    good &= a.is_some();
                    operands.extend(a);
                }
                _ => good = false,
            }
        }
        if !missing.is_empty() {
            self.unmentioned::<()>(&missing, &def.name, e.span);
        }
        let output = self.output(id, callee, output, e.span);
        if !good {
            return None;
        }
        Some(Pat::Node(NodePat { head: Head::Op(id), args: operands, rest, attrs, output: output? }))
    }

    /// Attributes without a default that a pattern of that op leaves out.
    fn unmentioned<T>(&mut self, attrs: &[&str], op: &str, span: Span) -> Option<T> {
        let quoted: Vec<String> = attrs.iter().map(|a| format!("`{a}`")).collect();
        let any: Vec<String> = attrs.iter().map(|a| format!("{a} = _")).collect();
        let (all, any) = (quoted.join(", "), any.join(", "));
        let (s, have, value) = match attrs {
            [_] => ("", "has", "value"),
            _ => ("s", "have", "values"),
        };
        let first = attrs.first().copied().unwrap_or_default();
        let d = Diagnostic::error(
            code::UNMENTIONED_ATTRIBUTE,
            format!("the pattern does not mention the attribute{s} {all} of `{op}`"),
            span,
        )
        .label(format!("{all} {have} no default"))
        .hint(format!("write `{any}` to match any {value}, or `{first} = p` to use it on the right side"));
        self.report(d)
    }

    /// The index of the selected result: `.n`, or 0 if the op has a single result.
    pub(super) fn output(&mut self, id: OpId, callee: &Path, output: Option<(u32, Span)>, span: Span) -> Option<u32> {
        let def = self.s.program.op(id);
        let several = def.variadic_result || def.results.len() > 1;
        match output {
            Some((n, _)) if several && (def.variadic_result || (n as usize) < def.results.len()) => Some(n),
            Some((0, _)) if !several => Some(0),
            Some((n, at)) => {
                let have = def.results.len();
                let d = Diagnostic::error(code::ARITY, format!("`{}` does not have result {n}", callee.text()), at)
                    .label(format!("it has {have} result{}, numbered from 0", if have == 1 { "" } else { "s" }));
                self.with_declaration(d, def)
            }
            // A kernel computes all results.
            None if several && self.kernel_root == Some(span) => Some(0),
            None if several => {
                let d = Diagnostic::error(code::ARITY, format!("`{}` has several results", callee.text()), span)
                    .label("does not say which result")
                    .hint(format!("write `{}(...).0` for the first result", callee.text()));
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
            _ => self.pattern(e, ValueSort::Tensor),
        }
    }

    /// `xs` or `[p for x in xs]` after `..`.
    fn rest(&mut self, e: &'a Expr) -> Option<Rest> {
        if let Some(n) = single(e) {
            return Some(Rest { var: self.bind(&n.node, Sort::Tensors, n.span)?, each: None });
        }
        let ExprKind::Comprehension { element, name, over, condition } = &e.kind else {
            return self.misplaced(e, "in `..` on a left side");
        };
        if let Some(c) = condition {
            let d = Diagnostic::error(code::MISPLACED, "a condition cannot choose operands", c.span)
                .hint("the pattern must match every operand; write the others in front: `f(y, ..[g(x) for x in xs])`");
            return self.report(d);
        }
        let Some(list) = single(over) else { return self.misplaced(over, "after `in` on a left side") };
        let item = self.fresh(name.node.clone(), Sort::Tensor, Some(name.span));
        let scope = self.scope;
        let hidden = self.scopes[scope].names.insert(name.node.clone(), Definition::Var(item));
        let element = self.pattern(element, ValueSort::Tensor);
        match hidden {
            Some(before) => self.scopes[scope].names.insert(name.node.clone(), before),
            None => self.scopes[scope].names.remove(&name.node),
        };
        let element = element?;
        let mut found = false;
        pat_vars(&element, &mut |v| found |= v == item);
        if !found {
            let d =
                Diagnostic::error(code::UNBOUND, format!("the pattern does not contain `{}`", name.node), name.span)
                    .label("stands for nothing")
                    .hint(format!(
                        "write `..[f({0}) for {0} in {1}]`, or `..{1}` to match any operands",
                        name.node, list.node
                    ));
            return self.report(d);
        }
        let var = self.bind(&list.node, Sort::Tensors, list.span)?;
        Some(Rest { var, each: Some(Box::new(Each { element, item })) })
    }

    fn variadic_pattern(&mut self, list: &[&'a Expr]) -> Option<(Vec<Pat>, Option<Rest>)> {
        let (mut fixed, mut rest) = (Vec::new(), None);
        let mut good = true;
        for (i, e) in list.iter().enumerate() {
            match &e.kind {
                ExprKind::Spread(inner) => {
                    if i + 1 != list.len() {
                        let d = Diagnostic::error(
                            code::MISPLACED,
                            "`..` matches the remaining operands and must come last",
                            e.span,
                        )
                        .label("more operands follow")
                        .hint("move it to the end");
                        good = false;
                        self.report::<()>(d);
                        continue;
                    }
                    let matched = match inner.as_deref() {
                        None => Some(Rest { var: self.fresh("_rest", Sort::Tensors, Some(e.span)), each: None }),
                        Some(x) => self.rest(x),
                    };
                    good &= matched.is_some();
                    rest = matched;
                }
                _ => match self.pattern(e, ValueSort::Tensor) {
                    Some(p) => fixed.push(p),
                    None => good = false,
                },
            }
        }
        good.then_some((fixed, rest))
    }
}
