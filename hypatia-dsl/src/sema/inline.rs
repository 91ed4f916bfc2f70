//! Inlines defined ops in bodies: replaces each op by its own body, except ops that own a kernel.
//!
//! In: the body of an op. Out: the same body over builtin ops, scalars and ops with a kernel, which
//! have derived rules of their own; `None` if that would need the sizes of something that is not a
//! variable. Invariant: the result has at most `MAX_NODES` nodes.

use std::collections::HashMap;

use crate::ir::{AExpr, Build, BuildArg, BuildNode, Head, OpBody, OpId, ParamKind, Program, VarId};

use crate::neutral::without_absent;

use super::walk::expr_vars;

/// Maximum number of nodes in an inlined body.
const MAX_NODES: usize = 2_000;

/// Inlines all defined ops in a body except those in `kept`.
pub(super) fn inline(program: &Program, body: &Build, kept: &[OpId]) -> Option<Build> {
    Inliner { program, kept, size: 0 }.build(body, 0)
}

/// The arguments of an inlined op's parameters.
#[derive(Default)]
struct Values {
    operands: HashMap<VarId, Build>,
    attrs: HashMap<VarId, AExpr>,
}

struct Inliner<'p> {
    program: &'p Program,
    kept: &'p [OpId],
    size: usize,
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
    fn inline(&self, n: &BuildNode) -> Option<Build> {
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
        substitute(self.program, body, &values)
    }
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

/// Rewrites an attribute over the caller's variables. Sizes of the inlined op have no counterpart
/// there.
fn attr(e: &AExpr, values: &Values) -> Option<AExpr> {
    Some(match e {
        AExpr::Var(v) => values.attrs.get(v)?.clone(),
        AExpr::Value(_) | AExpr::Device(_) => e.clone(),
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
