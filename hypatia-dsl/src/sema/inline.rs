//! Inlines defined ops in bodies: replaces each op by its own body, except ops that own a kernel.
//!
//! In: the body of an op. Out: the same body over builtin ops, scalars and ops with a kernel, which
//! have derived rules of their own; or why there is none. The sizes of an inlined op are those of
//! its operands: where an operand is a variable of the caller, or element-wise work on one, they
//! are read from its shape. Invariant: the result has at most `MAX_NODES` nodes.

use std::collections::HashMap;

use crate::ast::BinaryOp;
use crate::ir::{
    AExpr, AFn, AttrValue, Build, BuildArg, BuildNode, DTypePat, DimPat, Fact, Head, OpBody, OpDef, OpId, ParamKind,
    Program, RestPat, TypePat, VarId,
};
use crate::neutral::without_absent;

use super::tensor_param;
use super::walk::expr_vars;

/// Maximum number of nodes in an inlined body.
const MAX_NODES: usize = 2_000;

/// Inlines all defined ops in a body except those in `kept`.
pub(super) fn inline(program: &Program, body: &Build, kept: &[OpId]) -> Result<Build, String> {
    let mut inliner = Inliner { program, kept, size: 0, why: None };
    let inlined = inliner.build(body, 0);
    inlined.ok_or_else(|| inliner.why.unwrap_or_else(|| "it is too large, or uses lists of operands".to_string()))
}

/// The arguments of an inlined op's parameters.
#[derive(Default)]
struct Values {
    operands: HashMap<VarId, Build>,
    /// Attributes, sizes and element types.
    attrs: HashMap<VarId, AExpr>,
}

struct Inliner<'p> {
    program: &'p Program,
    kept: &'p [OpId],
    size: usize,
    /// Why there is no inlined body.
    why: Option<String>,
}

impl Inliner<'_> {
    fn build(&mut self, b: &Build, depth: usize) -> Option<Build> {
        self.size += 1;
        if self.size > MAX_NODES || depth > 150 {
            return None;
        }
        Some(match b {
            Build::Var(_) | Build::Number(_) | Build::Absent => b.clone(),
            Build::Else(v, other) => Build::Else(*v, Box::new(self.build(other, depth + 1)?)),
            Build::Frozen(b) => Build::Frozen(Box::new(self.build(b, depth + 1)?)),
            Build::If(c, x, y) => {
                Build::If(c.clone(), Box::new(self.build(x, depth + 1)?), Box::new(self.build(y, depth + 1)?))
            }
            Build::Node(n) => {
                let args = n
                    .args
                    .iter()
                    .map(|a| match a {
                        BuildArg::One(b) => self.build(b, depth + 1).map(BuildArg::One),
                        BuildArg::Spread(_) | BuildArg::Each { .. } => Some(a.clone()),
                    })
                    .collect::<Option<Vec<_>>>()?;
                let node = BuildNode { args, ..n.clone() };
                match n.head {
                    Head::Op(id) if self.inlines(id) => {
                        let inner = self.inline(&node)?;
                        self.build(&inner, depth + 1)?
                    }
                    _ => Build::Node(node),
                }
            }
        })
    }

    fn inlines(&self, id: OpId) -> bool {
        matches!(self.program.op(id).body, OpBody::Defined(_)) && !self.kept.contains(&id)
    }

    /// Instantiates the body of the op that a node applies with the node's operands and attributes.
    fn inline(&mut self, n: &BuildNode) -> Option<Build> {
        let Head::Op(id) = n.head else { return None };
        let def = self.program.op(id);
        let OpBody::Defined(bodies) = &def.body else { return None };
        let body = bodies.get(n.output as usize)?;
        let mut values = Values::default();
        if def.params.iter().any(|p| matches!(p.kind, ParamKind::Tensor { variadic: true, .. } | ParamKind::Term)) {
            return None;
        }
        for ((i, _), a) in def.operands().zip(&n.args) {
            let BuildArg::One(b) = a else { return None };
            values.operands.insert(VarId(i as u32), b.clone());
        }
        for ((i, _), a) in def.attrs().zip(&n.attrs) {
            values.attrs.insert(VarId(i as u32), a.clone());
        }
        read_sizes(def, &mut values);
        let inlined = substitute(self.program, body, &values);
        if inlined.is_none() {
            let why = format!("it calls `{}`, whose attributes depend on sizes that no operand has", def.name);
            self.why.get_or_insert(why);
        }
        inlined
    }
}

/// Adds the sizes and element types of an op that its operands determine.
fn read_sizes(def: &OpDef, values: &mut Values) {
    for (i, p) in def.operands() {
        let Some(ty) = tensor_param(p) else { continue };
        let Some(operand) = values.operands.get(&VarId(i as u32)) else { continue };
        let Some(of) = shaped_like(operand) else { continue };
        let mut known = sizes(ty, of);
        // Element-wise work may give another element type: a comparison does.
        if let (DTypePat::Var(v), Build::Var(_)) = (&ty.dtype, operand) {
            known.push((*v, AExpr::Fact(Fact::DType, of)));
        }
        for (v, size) in known {
            values.attrs.entry(v).or_insert(size);
        }
    }
}

/// The variable whose shape a value has: the variable itself, or element-wise work on it and on
/// numbers.
fn shaped_like(b: &Build) -> Option<VarId> {
    match b {
        Build::Var(v) => Some(*v),
        Build::Node(BuildNode { head: Head::Scalar(_), args, .. }) => {
            let mut of = None;
            for arg in args {
                let BuildArg::One(arg) = arg else { return None };
                match (arg, of) {
                    (Build::Number(_), _) => {}
                    (arg, None) => of = Some(shaped_like(arg)?),
                    (arg, Some(v)) if shaped_like(arg) == Some(v) => {}
                    _ => return None,
                }
            }
            of
        }
        _ => None,
    }
}

/// The variables of a type as formulas over the shape of an operand.
fn sizes(ty: &TypePat, of: VarId) -> Vec<(VarId, AExpr)> {
    let shape = || AExpr::Fact(Fact::Shape, of);
    let number = |n: usize| AExpr::Value(AttrValue::from(n as i64));
    let at = |i: i64| AExpr::Index(Box::new(shape()), Box::new(AExpr::Value(AttrValue::from(i))));
    let mut out = Vec::new();
    let indices = (0..ty.prefix.len() as i64).chain(-(ty.suffix.len() as i64)..0);
    for (dim, i) in ty.prefix.iter().chain(&ty.suffix).zip(indices) {
        if let DimPat::Var(v) = dim {
            out.push((*v, at(i)));
        }
    }
    if let Some(RestPat::Var(v)) = ty.rest {
        let rank = AExpr::Call(AFn::Len, vec![shape()]);
        let end = AExpr::Binary(BinaryOp::Sub, Box::new(rank), Box::new(number(ty.suffix.len())));
        out.push((v, AExpr::Call(AFn::Slice, vec![shape(), number(ty.prefix.len()), end])));
    }
    out
}

fn substitute(program: &Program, b: &Build, values: &Values) -> Option<Build> {
    Some(match b {
        Build::Var(v) => values.operands.get(v)?.clone(),
        Build::Number(e) => Build::Number(attr(e, values)?),
        Build::Absent => Build::Absent,
        Build::Else(v, other) => match values.operands.get(v)? {
            Build::Absent => substitute(program, other, values)?,
            // An optional operand of the caller: if it is absent there, it is absent here.
            Build::Var(w) => Build::Else(*w, Box::new(substitute(program, other, values)?)),
            there => there.clone(),
        },
        Build::Frozen(b) => Build::Frozen(Box::new(substitute(program, b, values)?)),
        Build::If(..) => return None,
        Build::Node(n) => {
            let absent = |v: VarId| values.operands.get(&v) == Some(&Build::Absent);
            if let Some(rest) = without_absent(program, n, &absent) {
                return substitute(program, rest, values);
            }
            let args = n
                .args
                .iter()
                .map(|a| match a {
                    BuildArg::One(b) => substitute(program, b, values).map(BuildArg::One),
                    BuildArg::Spread(_) | BuildArg::Each { .. } => None,
                })
                .collect::<Option<Vec<_>>>()?;
            let attrs = n.attrs.iter().map(|e| attr(e, values)).collect::<Option<Vec<_>>>()?;
            Build::Node(BuildNode { args, attrs, ..n.clone() })
        }
    })
}

/// Rewrites an attribute over the caller's variables.
fn attr(e: &AExpr, values: &Values) -> Option<AExpr> {
    Some(match e {
        AExpr::Var(v) => values.attrs.get(v)?.clone(),
        AExpr::Value(_) | AExpr::Device(_) => e.clone(),
        AExpr::Fact(f @ (Fact::Shape | Fact::Rank | Fact::Numel), v) => {
            AExpr::Fact(*f, shaped_like(values.operands.get(v)?)?)
        }
        AExpr::Spread(a) => AExpr::Spread(Box::new(attr(a, values)?)),
        AExpr::List(l) => AExpr::List(l.iter().map(|e| attr(e, values)).collect::<Option<_>>()?),
        AExpr::Call(f, l) => AExpr::Call(*f, l.iter().map(|e| attr(e, values)).collect::<Option<_>>()?),
        AExpr::Neg(a) => AExpr::Neg(Box::new(attr(a, values)?)),
        AExpr::Index(a, b) => AExpr::Index(Box::new(attr(a, values)?), Box::new(attr(b, values)?)),
        AExpr::Binary(op, a, b) => AExpr::Binary(*op, Box::new(attr(a, values)?), Box::new(attr(b, values)?)),
        other => {
            let mut any = false;
            expr_vars(other, &mut |_| any = true);
            if any {
                return None;
            }
            other.clone()
        }
    })
}
