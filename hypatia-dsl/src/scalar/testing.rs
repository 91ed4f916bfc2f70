//! What the tests of this folder share: the scalars of core.hyp and nn.hyp, and terms from text.
#![allow(clippy::unwrap_used)]

use super::{Term, TermBuilder, TermId, TermNode};
use crate::ast::{BinaryOp, Expr, ExprKind, ItemKind, UnaryOp};
use crate::builtin::BuiltinScalar;
use crate::dtype::{DType, Kind};
use crate::ir::{Origin, Program, ScalarBody, ScalarDef, ScalarId};
use crate::source::{SourceFile, SourceMap};

/// The standard library's scalars.
pub fn library() -> Program {
    static LIBRARY: std::sync::LazyLock<Program> = std::sync::LazyLock::new(|| {
        let mut program = Program::default();
        for text in [include_str!("../../../rules/core.hyp"), include_str!("../../../rules/nn.hyp")] {
            add(&mut program, text);
        }
        program
    });
    LIBRARY.clone()
}

fn parse(text: &str) -> crate::ast::File {
    let mut sources = SourceMap::new();
    let id = sources.add(SourceFile { name: "test.hyp".into(), path: None, text: text.into(), embedded: false });
    let (file, diagnostics) = crate::parse::parse(&sources, id);
    assert!(diagnostics.is_empty(), "{text}: {diagnostics:?}");
    file
}

/// Adds the scalars of a file.
pub fn add(program: &mut Program, text: &str) {
    for item in parse(text).items {
        let ItemKind::Scalar(s) = item.kind else { continue };
        let kind = |n: &Option<crate::ast::Name>| match n {
            Some(n) if n.node == "bool" => Kind::Bool,
            _ => Kind::Number,
        };
        let params: Vec<(String, Kind)> = s.params.iter().map(|p| (p.name.node.clone(), kind(&p.kind))).collect();
        let names: Vec<&str> = params.iter().map(|(n, _)| n.as_str()).collect();
        let body = match &s.body {
            None => ScalarBody::Builtin(BuiltinScalar::from_name(&s.name.node).unwrap()),
            Some(e) => ScalarBody::Term(lower(program, &names, e)),
        };
        program.scalars.push(ScalarDef {
            name: s.name.node.clone(),
            doc: String::new(),
            origin: Origin::default(),
            params: params.clone(),
            result: kind(&s.result),
            body,
            grads: Vec::new(),
        });
        let at = program.scalars.len() - 1;
        // A builtin's `grad` may name builtins that come later in the file.
        program.scalars[at].doc = text.to_string();
    }
    for item in parse(text).items {
        let ItemKind::Scalar(s) = item.kind else { continue };
        let id = program.find_scalar(&s.name.node).unwrap();
        let names: Vec<String> = s.params.iter().map(|p| p.name.node.clone()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let grads = s.grads.iter().map(|g| lower(program, &names, g)).collect();
        program.scalars[id.index()].grads = grads;
        program.scalars[id.index()].doc.clear();
    }
}

/// The term that a text means, over those parameters.
pub fn term(program: &Program, params: &[&str], text: &str) -> Term {
    let names = params.join(", ");
    let file = parse(&format!("edition 1;\nscalar f({names}) = {text};"));
    let ItemKind::Scalar(s) = &file.items[0].kind else { panic!("no scalar") };
    lower(program, params, s.body.as_ref().unwrap())
}

fn lower(program: &Program, params: &[&str], e: &Expr) -> Term {
    let mut b = TermBuilder::new();
    let root = expr(program, params, e, &mut b);
    b.finish(vec![root])
}

fn expr(program: &Program, params: &[&str], e: &Expr, b: &mut TermBuilder) -> TermId {
    let go = |e: &Expr, b: &mut TermBuilder| expr(program, params, e, b);
    let find = |f: BuiltinScalar| program.builtin_scalar(f).unwrap();
    match &e.kind {
        ExprKind::Number { value, .. } => b.lit(*value),
        ExprKind::Path(p) => {
            let at = params.iter().position(|n| *n == p.text());
            b.add(TermNode::Param(at.unwrap_or_else(|| panic!("unknown {}", p.text())) as u32))
        }
        ExprKind::Unary(UnaryOp::Neg, a) => match go(a, b) {
            id if matches!(b.node(id), TermNode::Lit(_)) => {
                let TermNode::Lit(l) = b.node(id) else { unreachable!() };
                let negated = -l.0;
                b.lit(negated)
            }
            id => b.call(find(BuiltinScalar::Neg), vec![id]),
        },
        ExprKind::Unary(UnaryOp::Not, a) => {
            let a = go(a, b);
            b.call(find(BuiltinScalar::Not), vec![a])
        }
        ExprKind::Binary(op, x, y) => {
            let (x, y) = (go(x, b), go(y, b));
            let (f, args) = match op {
                BinaryOp::Add => (BuiltinScalar::Add, vec![x, y]),
                BinaryOp::Sub => (BuiltinScalar::Sub, vec![x, y]),
                BinaryOp::Mul => (BuiltinScalar::Mul, vec![x, y]),
                BinaryOp::Div => (BuiltinScalar::Div, vec![x, y]),
                BinaryOp::Rem => (BuiltinScalar::Fmod, vec![x, y]),
                BinaryOp::Pow => (BuiltinScalar::Pow, vec![x, y]),
                BinaryOp::Eq | BinaryOp::Ne => (BuiltinScalar::Eq, vec![x, y]),
                BinaryOp::Lt => (BuiltinScalar::Lt, vec![x, y]),
                BinaryOp::Le => (BuiltinScalar::Le, vec![x, y]),
                BinaryOp::Gt => (BuiltinScalar::Lt, vec![y, x]),
                BinaryOp::Ge => (BuiltinScalar::Le, vec![y, x]),
                BinaryOp::And => (BuiltinScalar::And, vec![x, y]),
                BinaryOp::Or => (BuiltinScalar::Or, vec![x, y]),
                BinaryOp::In | BinaryOp::NotIn => panic!("no such term"),
            };
            let id = b.call(find(f), args);
            if *op == BinaryOp::Ne { b.call(find(BuiltinScalar::Not), vec![id]) } else { id }
        }
        ExprKind::Call { callee, types, args, .. } => {
            let ids: Vec<TermId> = args.iter().map(|a| go(&a.value, b)).collect();
            match types.first() {
                Some(t) => b.add(TermNode::Cast { to: DType::from_name(&t.node).unwrap(), arg: ids[0] }),
                None => {
                    let id: ScalarId =
                        program.find_scalar(&callee.text()).unwrap_or_else(|| panic!("unknown {}", callee.text()));
                    b.call(id, ids)
                }
            }
        }
        other => panic!("no such term: {other:?}"),
    }
}
