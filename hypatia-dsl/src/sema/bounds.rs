//! Bounds of element types: the body of an op must be well-typed for every element type that its
//! declaration allows.
//!
//! In: an op whose body has the declared type for one element type. Out: a warning that names the
//! missing bound. Invariant: an element type is reported only if the body has no type for it
//! whatever the ranks are. A declaration without a bound means numbers to compute with, so it gets
//! no warning because of `bool` or of types that are only stored, or because a number does not fit
//! into the narrow integer types.

use crate::ast;
use crate::diag::Diagnostic;
use crate::dtype::DType;
use crate::ir::{AttrType, AttrValue, Build, OpDef, ParamKind, Program, Sort, VarId};
use crate::source::Span;
use crate::typing::{TypeError, codes, one_of, show_bound};

use super::code;
use super::infer::Infer;
use super::instances::{describe, instances, locate};

/// A value for number attributes that no integer type can represent.
const NO_INTEGER: f64 = 1.5;

/// A type error of a body, its location, and the operands.
type Failure = (TypeError, Span, String);

/// Checks every element type of every type variable.
pub(super) fn check(
    program: &Program,
    def: &OpDef,
    op: &ast::Op,
    bodies: &[Build],
    nodes: &[(Build, Span)],
) -> Option<Diagnostic> {
    let vars = def.vars.iter().enumerate().skip(def.params.len()).filter(|(_, v)| v.sort == Sort::DType);
    vars.map(|(i, _)| VarId(i as u32)).find_map(|var| {
        let bound = def.bounds.iter().find(|(v, _)| *v == var).map(|(_, list)| list.clone());
        // `any` is the same as no bound.
        let bound = bound.filter(|list| DType::ALL.iter().any(|d| !list.contains(d)));
        let every = || DType::ALL.into_iter().filter(|d| !d.only_stored()).collect();
        let let_in: Vec<DType> = bound.clone().unwrap_or_else(every);
        let mut fails: Vec<(DType, Failure)> = Vec::new();
        for dtype in &let_in {
            fails.extend(failure(program, def, op, bodies, nodes, (var, *dtype)).map(|f| (*dtype, f)));
        }
        let right: Vec<DType> = let_in.into_iter().filter(|d| !fails.iter().any(|(f, _)| f == d)).collect();
        let wrong: Vec<DType> = fails.iter().map(|f| f.0).collect();
        if bound.is_none() && !wrong.contains(&DType::I64) {
            return None;
        }
        let (_, (error, span, with)) = fails.into_iter().next()?;
        let (name, t) = (&op.name.node, &def.vars[var.index()].name);
        let message = match bound {
            None => format!("`{name}` takes any element type, but its body is undefined for {}", one_of(&wrong)),
            Some(_) => format!("the bound of `{t}` admits {}, for which the body is undefined", one_of(&wrong)),
        };
        Some(
            Diagnostic::warning(code::BOUND, message, span)
                .label(error.message)
                .also(op.name.span, "declared here")
                .note(format!("with {with}"))
                .hint(format!("add a bound: `op {name}<{t}: {}>(...)`", show_bound(&right))),
        )
    })
}

/// Why the body has no type for an element type, if it has none for any ranks.
fn failure(
    program: &Program,
    def: &OpDef,
    op: &ast::Op,
    bodies: &[Build],
    nodes: &[(Build, Span)],
    wanted: (VarId, DType),
) -> Option<Failure> {
    let mut first = None;
    // A number attribute may be a non-integer.
    let floats: Vec<VarId> = def
        .attrs()
        .filter(|(_, p)| matches!(p.kind, ParamKind::Attr { ty: AttrType::Float, .. }))
        .map(|(i, _)| VarId(i as u32))
        .collect();
    for inst in instances(def, Some(wanted)) {
        let lookup = |v: VarId| inst.types.get(&v).cloned();
        let mut infer = Infer::new(program, &lookup);
        infer.absent.clone_from(&inst.absent);
        infer.bindings.clone_from(&inst.bindings);
        // Instances that the op's requirements reject prove nothing.
        let refuses = |infer: &Infer<'_>| def.requires.iter().any(|g| infer.holds(g) == Some(false));
        if refuses(&infer) {
            return None;
        }
        let mut with = describe(&def.vars, &inst.types, &inst.absent);
        let mut error = bodies.iter().find_map(|b| infer.build(b).err());
        if error.is_none() {
            for v in &floats {
                infer.bindings.values.insert(*v, AttrValue::Float(NO_INTEGER));
                with = format!("{with}, {} = {NO_INTEGER}", def.vars[v.index()].name);
            }
            error = bodies.iter().find_map(|b| infer.build(b).err()).filter(|_| !refuses(&infer));
        }
        match error {
            Some(e) if e.code == codes::DTYPE => {
                let (e, span) =
                    locate(&infer, nodes).unwrap_or_else(|| (e, op.body.as_ref().map_or(op.name.span, |b| b.span)));
                first.get_or_insert((e, span, with));
            }
            Some(_) => {}
            None => return None,
        }
    }
    first
}
