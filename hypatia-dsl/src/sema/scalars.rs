//! Scalar functions: signatures, bodies as terms, written derivatives.
//!
//! In: `scalar` items. Out: [`ScalarDef`]s. Invariant: the term of a body mentions parameters by
//! index and calls scalars only; no scalar is recursive.

use std::collections::HashMap;

use crate::ast::{self, BinaryOp, Expr, ExprKind, UnaryOp};
use crate::builtin::{BuiltinOp, BuiltinScalar};
use crate::diag::Diagnostic;
use crate::dtype::{DType, Kind};
use crate::ir::{Head, ScalarBody, ScalarDef, ScalarId};
use crate::scalar::device::{DEVICE_FUNCTIONS, device_function};
use crate::scalar::{Literal, Term, TermId, TermNode};
use crate::source::Span;
use crate::spell::closest;

use super::code;
use super::context::{Callee, Cx};
use super::patterns::operator;

/// The kind that a keyword denotes.
fn kind(name: &ast::Name) -> Result<Kind, Box<Diagnostic>> {
    match name.node.as_str() {
        "number" => Ok(Kind::Number),
        "bool" => Ok(Kind::Bool),
        other => Err(Box::new(
            Diagnostic::error(
                code::BAD_TYPE,
                format!("a scalar parameter must be a `number` or a `bool`, but this is `{other}`"),
                name.span,
            )
            .hint("scalars work on every element type: omit the type for a number"),
        )),
    }
}

/// The signature of a scalar. A body that is not builtin is an empty term for now.
pub(super) fn declare(s: &ast::Scalar, diags: &mut Vec<Diagnostic>) -> ScalarDef {
    let mut get = |n: &Option<ast::Name>| match n.as_ref().map(kind) {
        Some(Ok(k)) => k,
        Some(Err(d)) => {
            diags.push(*d);
            Kind::Number
        }
        None => Kind::Number,
    };
    let params: Vec<(String, Kind)> = s.params.iter().map(|p| (p.name.node.clone(), get(&p.kind))).collect();
    let result = get(&s.result);
    let mut seen: HashMap<&str, Span> = HashMap::new();
    for p in &s.params {
        if let Some(first) = seen.insert(&p.name.node, p.name.span) {
            let d = Diagnostic::error(
                code::DUPLICATE,
                format!("parameter `{}` is declared twice", p.name.node),
                p.name.span,
            );
            diags.push(d.also(first, "first declared here"));
        }
    }
    let body = match &s.body {
        Some(_) => ScalarBody::Term(Term::empty()),
        None => builtin(s, &params, result, diags),
    };
    if !s.grads.is_empty() && s.grads.len() != s.params.len() {
        let at = s.grads[0].span.to(s.grads[s.grads.len() - 1].span);
        diags.push(
            Diagnostic::error(
                code::GRAD,
                format!("`{}` has {} parameters, but {} derivatives", s.name.node, s.params.len(), s.grads.len()),
                at,
            )
            .label("one for each parameter, in their order")
            .hint("remove `grad`: derivatives are computed from the body"),
        );
    }
    ScalarDef {
        name: s.name.node.clone(),
        doc: String::new(),
        origin: Default::default(),
        params,
        result,
        body,
        grads: Vec::new(),
        device: device(s, diags),
    }
}

/// The device function that a scalar names.
fn device(s: &ast::Scalar, diags: &mut Vec<Diagnostic>) -> Option<String> {
    let named = s.device.as_ref()?;
    let known = device_function(&named.node).filter(|f| f.arity == s.params.len() && s.body.is_some());
    if known.is_none() {
        let names: Vec<String> = DEVICE_FUNCTIONS.iter().map(|f| format!("`{}` of {}", f.name, f.arity)).collect();
        let message = format!("there is no device function `{}` of {} numbers", named.node, s.params.len());
        let d = Diagnostic::error(code::BUILTIN, message, named.span)
            .note(format!("the known names are {}", names.join(", ")));
        diags.push(d.hint(match &s.body {
            None => "a scalar with a device function also needs a body, which defines its meaning",
            Some(_) => "use one of these with as many parameters, or leave `device` out: the body becomes CUDA code",
        }));
    }
    known.map(|f| f.name.to_string())
}

fn builtin(s: &ast::Scalar, params: &[(String, Kind)], result: Kind, diags: &mut Vec<Diagnostic>) -> ScalarBody {
    let Some(b) = BuiltinScalar::from_name(&s.name.node) else {
        let mut d =
            Diagnostic::error(code::BUILTIN, format!("there is no builtin scalar `{}`", s.name.node), s.name.span)
                .label("not built in")
                .hint("give it a body: `scalar f(x) = ...;`");
        if let Some(n) = closest(&s.name.node, BuiltinScalar::ALL.iter().map(|b| b.name())) {
            d = d.hint(format!("did you mean `{n}`?"));
        }
        diags.push(d);
        return ScalarBody::Term(Term::empty());
    };
    let have: Vec<Kind> = params.iter().map(|p| p.1).collect();
    if have != b.params() || result != b.result() {
        let word = |k: &Kind| if *k == Kind::Bool { "bool" } else { "number" };
        let wanted: Vec<&str> = b.params().iter().map(word).collect();
        diags.push(
            Diagnostic::error(
                code::BUILTIN,
                format!("the declaration of the builtin `{}` does not match it", b.name()),
                s.name.span,
            )
            .label(format!("it takes ({}) and returns a {}", wanted.join(", "), word(&b.result()))),
        );
    }
    ScalarBody::Builtin(b)
}

/// The body and the derivatives of a scalar as terms.
pub(super) fn body(cx: &mut Cx<'_>, id: ScalarId, s: &ast::Scalar) -> (Option<Term>, Option<Vec<Term>>) {
    let params: HashMap<&str, (u32, Kind)> = s
        .params
        .iter()
        .zip(&cx.s.program.scalar(id).params)
        .enumerate()
        .map(|(i, (p, (_, k)))| (p.name.node.as_str(), (i as u32, *k)))
        .collect();
    let one = |cx: &mut Cx<'_>, e: &Expr, wanted: Kind| {
        let mut t = TermBuilder { params: &params, term: Term::empty() };
        let (root, have) = t.term(cx, e)?;
        if have != wanted {
            let word = |k: Kind| if k == Kind::Bool { "a boolean" } else { "a number" };
            let mut d = Diagnostic::error(
                code::KIND,
                format!("the declaration says {1}, but this is {0}", word(have), word(wanted)),
                e.span,
            )
            .label(format!("expected {}", word(wanted)));
            if have == Kind::Bool {
                d = d.hint("declare `-> bool`, or convert it to a number: `select(c, 1, 0)`");
            }
            return cx.report(d);
        }
        t.term.roots.push(root);
        Some(t.term)
    };
    let result = cx.s.program.scalar(id).result;
    let term = s.body.as_ref().and_then(|b| one(cx, b, result));
    let mut grads = Some(Vec::new());
    for g in &s.grads {
        match one(cx, g, Kind::Number) {
            Some(t) => {
                if let Some(l) = &mut grads {
                    l.push(t);
                }
            }
            None => grads = None,
        }
    }
    (term, grads)
}

struct TermBuilder<'p> {
    params: &'p HashMap<&'p str, (u32, Kind)>,
    term: Term,
}

impl TermBuilder<'_> {
    fn term(&mut self, cx: &mut Cx<'_>, e: &Expr) -> Option<(TermId, Kind)> {
        cx.enter(e.span)?;
        let r = self.inner(cx, e);
        cx.leave();
        r
    }

    /// The term of an expression whose depth was counted.
    fn inner(&mut self, cx: &mut Cx<'_>, e: &Expr) -> Option<(TermId, Kind)> {
        if let Some(v) = super::patterns::literal(e) {
            return Some((self.term.add(TermNode::Lit(Literal(v))), Kind::Number));
        }
        match &e.kind {
            ExprKind::Path(p) => self.parameter(cx, p),
            ExprKind::Call { callee, optional: false, types, args } => {
                self.application(cx, callee, (types, args), e.span)
            }
            ExprKind::Unary(op, a) => {
                let b = if *op == UnaryOp::Neg { BuiltinScalar::Neg } else { BuiltinScalar::Not };
                let id = cx.builtin(b, e.span)?;
                self.call(cx, id, &[a])
            }
            ExprKind::Binary(BinaryOp::Ne, a, b) => {
                let id = cx.builtin(BuiltinScalar::Eq, e.span)?;
                let (eq, _) = self.call(cx, id, &[a, b])?;
                let not = cx.builtin(BuiltinScalar::Not, e.span)?;
                Some((self.term.add(TermNode::Call { scalar: not, args: vec![eq] }), Kind::Bool))
            }
            ExprKind::Binary(op, a, b) => match operator(*op) {
                Some((s, swap)) => {
                    let id = cx.builtin(s, e.span)?;
                    if swap { self.call(cx, id, &[b, a]) } else { self.call(cx, id, &[a, b]) }
                }
                None => cx.misplaced(e, "in a scalar"),
            },
            ExprKind::If(c, a, b) => {
                let id = cx.builtin(BuiltinScalar::Select, e.span)?;
                self.call(cx, id, &[c, a, b])
            }
            _ => cx.misplaced(e, "in a scalar"),
        }
    }

    /// The parameter of that name.
    fn parameter(&mut self, cx: &mut Cx<'_>, p: &ast::Path) -> Option<(TermId, Kind)> {
        let name = p.text();
        if let Some((i, k)) = self.params.get(name.as_str()) {
            return Some((self.term.add(TermNode::Param(*i)), *k));
        }
        let mut d = Diagnostic::error(code::UNBOUND, format!("`{name}` is not a parameter of this scalar"), p.span)
            .label("not bound");
        let mut names: Vec<&str> = self.params.keys().copied().collect();
        names.sort_unstable();
        if let Some(s) = closest(&name, names.iter().copied()) {
            d = d.hint(format!("did you mean `{s}`?"));
        } else if let Some(hint) = crate::foreign::constant(&name) {
            d = d.hint(hint);
        } else {
            d = d.note(format!("its parameters are {}", names.join(", ")));
        }
        cx.report(d)
    }

    /// A scalar function of arguments as written, or a conversion to an element type.
    fn application(
        &mut self,
        cx: &mut Cx<'_>,
        callee: &ast::Path,
        (types, args): (&[ast::Name], &[ast::Arg]),
        span: Span,
    ) -> Option<(TermId, Kind)> {
        if let ([t], [a]) = (types, args)
            && (callee.text() == BuiltinOp::Cast.name() || callee.text() == BuiltinScalar::Round.name())
        {
            return self.cast(cx, t, &a.value);
        }
        match cx.callee(callee)? {
            Callee::Head(Head::Scalar(id)) => {
                if args.len() != cx.s.program.scalar(id).params.len() || args.iter().any(|a| a.name.is_some()) {
                    return self.arity(cx, id, args, span);
                }
                let args: Vec<&Expr> = args.iter().map(|a| &a.value).collect();
                self.call(cx, id, &args)
            }
            _ => {
                let d = Diagnostic::error(
                    code::SORT,
                    format!("`{}` works on tensors; a scalar computes one element", callee.text()),
                    callee.span,
                )
                .label("not a scalar")
                .hint("declare an `op` if it needs whole tensors");
                cx.report(d)
            }
        }
    }

    fn cast(&mut self, cx: &mut Cx<'_>, t: &ast::Name, arg: &Expr) -> Option<(TermId, Kind)> {
        let (arg, _) = self.term(cx, arg)?;
        match DType::from_name(&t.node) {
            Some(to) => Some((self.term.add(TermNode::Cast { to, arg }), to.kind())),
            None => cx.error(code::BAD_TYPE, format!("there is no element type `{}`", t.node), t.span),
        }
    }

    fn arity<T>(&mut self, cx: &mut Cx<'_>, id: ScalarId, args: &[ast::Arg], span: Span) -> Option<T> {
        let def = cx.s.program.scalar(id);
        let names: Vec<&str> = def.params.iter().map(|p| p.0.as_str()).collect();
        let mut d = Diagnostic::error(
            code::ARITY,
            format!("`{}` takes {} arguments, not {}", def.name, names.len(), args.len()),
            span,
        )
        .label(format!("expected {}({})", def.name, names.join(", ")))
        .hint(super::args::as_many(&def.name, &names, args.len()));
        if let Some(s) = def.origin.span {
            d = d.also(s, format!("`{}` is declared here", def.name));
        }
        cx.report(d)
    }

    fn call(&mut self, cx: &mut Cx<'_>, id: ScalarId, args: &[&Expr]) -> Option<(TermId, Kind)> {
        let mut out = Vec::new();
        let mut good = true;
        for (i, a) in args.iter().enumerate() {
            match self.term(cx, a) {
                Some((t, k)) => {
                    good &= cx.check_kind(id, i, Some(k), a.span).is_some();
                    out.push(t);
                }
                None => good = false,
            }
        }
        let result = cx.s.program.scalar(id).result;
        good.then(|| (self.term.add(TermNode::Call { scalar: id, args: out }), result))
    }
}
