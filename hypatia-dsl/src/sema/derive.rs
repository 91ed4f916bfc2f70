//! The rules that the compiler makes: a body becomes the name of what it computes.
//!
//! In: scalars with a body of two operations or more, and defined ops that own a kernel. Out: rules
//! of the ruleset `fold`. Holds always: a rule for an op demands every type that the op demands, so
//! that nothing is given a name that it does not deserve.

use crate::ast::BinaryOp;
use crate::builtin::BuiltinScalar;
use crate::dtype::DType;
use crate::ir::{
    AExpr, AttrPat, AttrValue, Build, BuildArg, BuildNode, Claim, Class, DimPat, Fact, Head, NodePat, OpBody, OpDef,
    OpId, ParamKind, Pat, RestPat, Rule, ScalarBody, ScalarId, Sort, TypePat, Var, VarId,
};
use crate::scalar::{Term, TermId, TermNode};

use super::walk::pat_vars;
use super::{Sema, ops, rulesets, tensor_param};

/// Nodes of a derived pattern at most; a larger body gets no rule.
const MAX_NODES: usize = 2_000;
/// Optional operands of an op at most: one rule for each choice.
const MAX_OPTIONAL: usize = 6;

pub(super) fn derive(s: &mut Sema<'_>) {
    let mut out = Vec::new();
    for i in 0..s.program.scalars.len() {
        let id = ScalarId(i as u32);
        if !s.poisoned_scalars.contains(&id) {
            out.extend(scalar_rule(s, id));
        }
    }
    let mut with_kernel: Vec<OpId> = Vec::new();
    for k in &s.program.kernels {
        if let Some(id) = kernel_op(&k.pattern)
            && !with_kernel.contains(&id)
        {
            with_kernel.push(id);
        }
    }
    for id in with_kernel {
        if !s.poisoned_ops.contains(&id) {
            out.extend(op_rules(s, id));
        }
    }
    s.program.rules.splice(0..0, out);
}

fn kernel_op(p: &Pat) -> Option<OpId> {
    match p {
        Pat::Node(NodePat { head: Head::Op(id), .. }) => Some(*id),
        Pat::Bind(_, p) | Pat::Typed(p, _) => kernel_op(p),
        _ => None,
    }
}

/// `max(x, 0) * ... => name(x)`, if the body is worth it.
fn scalar_rule(s: &Sema<'_>, id: ScalarId) -> Option<Rule> {
    let def = s.program.scalar(id);
    let ScalarBody::Term(term) = &def.body else { return None };
    let operations = term.nodes.iter().filter(|n| matches!(n, TermNode::Call { .. })).count();
    // A cast inside has no counterpart that is the same on tensors and on terms.
    if operations < 2 || term.roots.len() != 1 || term.nodes.iter().any(|n| matches!(n, TermNode::Cast { .. })) {
        return None;
    }
    let mut t = FromTerm {
        term,
        vars: def.params.iter().map(|p| Var { name: p.0.clone(), sort: Sort::Tensor }).collect(),
        shared: vec![None; term.nodes.len()],
        uses: uses(term),
        size: 0,
    };
    let lhs = t.pat(term.root())?;
    let vars = t.vars;
    let mut seen = vec![false; def.params.len()];
    pat_vars(&lhs, &mut |v| {
        if let Some(x) = seen.get_mut(v.index()) {
            *x = true;
        }
    });
    if seen.contains(&false) {
        return None; // a parameter that does not matter cannot be found again
    }
    let args = (0..def.params.len()).map(|i| BuildArg::One(Build::Var(VarId(i as u32)))).collect();
    let rhs = Build::Node(BuildNode { head: Head::Scalar(id), args, attrs: vec![], output: 0 });
    Some(Rule {
        name: format!("fold::{}", def.name),
        base_name: format!("fold::{}", def.name),
        ruleset: rulesets::FOLD,
        doc: format!("The body of `{}` is `{}`.", def.name, def.name),
        origin: def.origin.clone(),
        vars,
        lhs: vec![lhs],
        rhs: vec![rhs],
        lets: Vec::new(),
        requires: Vec::new(),
        prefer: Vec::new(),
        claims: vec![
            Claim { class: Class::Exact, dtypes: vec![DType::F64, DType::F32] },
            Claim { class: Class::Rounds, dtypes: vec![DType::F16, DType::BF16] },
        ],
        pointwise: true,
        derived: true,
    })
}

/// The shape that a result type says, as a list; `None` if it leaves a part open.
fn shape_expr(t: &TypePat) -> Option<AExpr> {
    let dim = |d: &DimPat| match d {
        DimPat::Any => None,
        DimPat::Var(v) => Some(AExpr::Var(*v)),
        DimPat::Expr(e) => Some(e.clone()),
    };
    let rest = match &t.rest {
        None => Vec::new(),
        Some(RestPat::Any) => return None,
        Some(RestPat::Var(v)) => vec![AExpr::Spread(Box::new(AExpr::Var(*v)))],
        Some(RestPat::Expr(e)) => vec![AExpr::Spread(Box::new(e.clone()))],
    };
    let mut items: Vec<AExpr> = t.prefix.iter().map(dim).collect::<Option<_>>()?;
    items.extend(rest);
    items.extend(t.suffix.iter().map(dim).collect::<Option<Vec<_>>>()?);
    Some(AExpr::List(items))
}

fn uses(t: &Term) -> Vec<usize> {
    let mut n = vec![0; t.nodes.len()];
    for node in &t.nodes {
        if let TermNode::Call { args, .. } = node {
            args.iter().for_each(|a| n[a.0 as usize] += 1);
        }
    }
    n
}

struct FromTerm<'t> {
    term: &'t Term,
    vars: Vec<Var>,
    /// The variable of an inner node that is used several times, once it was matched.
    shared: Vec<Option<VarId>>,
    uses: Vec<usize>,
    size: usize,
}

impl FromTerm<'_> {
    fn pat(&mut self, id: TermId) -> Option<Pat> {
        self.size += 1;
        if self.size > MAX_NODES {
            return None;
        }
        let i = id.0 as usize;
        match self.term.nodes.get(i)? {
            TermNode::Param(p) => Some(Pat::Var(VarId(*p))),
            TermNode::Lit(l) => Some(Pat::Lit { value: l.0, near: None }),
            TermNode::Call { scalar, args } => {
                if let Some(v) = self.shared[i] {
                    return Some(Pat::Var(v));
                }
                let args = args.iter().map(|a| self.pat(*a)).collect::<Option<Vec<_>>>()?;
                let node = super::patterns::scalar_node(*scalar, args);
                if self.uses[i] < 2 {
                    return Some(node);
                }
                self.vars.push(Var { name: format!("_s{i}"), sort: Sort::Tensor });
                let v = VarId(self.vars.len() as u32 - 1);
                self.shared[i] = Some(v);
                Some(Pat::Bind(v, Box::new(node)))
            }
            TermNode::Acc | TermNode::In { .. } | TermNode::Cast { .. } => None,
        }
    }
}

/// `body => op`, for each choice of which optional operands are there.
fn op_rules(s: &Sema<'_>, id: OpId) -> Vec<Rule> {
    let def = s.program.op(id);
    let OpBody::Defined(body) = &def.body else { return Vec::new() };
    let [body] = body.as_slice() else { return Vec::new() };
    // Ops inside the body are unfolded too: the graph holds no other form of them for certain.
    let Some(body) = super::unfold::unfold(&s.program, body) else { return Vec::new() };
    let variadic =
        def.params.iter().any(|p| matches!(p.kind, ParamKind::Tensor { variadic: true, .. } | ParamKind::Term));
    let optional: Vec<usize> = (0..def.params.len())
        .filter(|i| matches!(def.params[*i].kind, ParamKind::Tensor { optional: true, .. }))
        .collect();
    if variadic || optional.len() > MAX_OPTIONAL {
        return Vec::new();
    }
    let mut out: Vec<Rule> = Vec::new();
    for mask in 0..1usize << optional.len() {
        let absent: Vec<VarId> =
            optional.iter().enumerate().filter(|(b, _)| mask >> b & 1 == 1).map(|(_, i)| VarId(*i as u32)).collect();
        // With an operand absent, `y + 0` is also written `y`.
        for plain in if absent.is_empty() { vec![false] } else { vec![false, true] } {
            let mut f = FromBuild::new(s, def, &absent, plain);
            let Some(lhs) = f.pat(&body) else { continue };
            if !matches!(lhs, Pat::Node(_)) || !f.complete(&lhs) {
                continue;
            }
            let rule = f.rule(id, lhs, out.len());
            if !out.iter().any(|r| r.lhs == rule.lhs && r.rhs == rule.rhs) {
                out.push(rule);
            }
        }
    }
    out
}

struct FromBuild<'s> {
    s: &'s Sema<'s>,
    def: &'s OpDef,
    absent: &'s [VarId],
    /// Leave out additions of 0 and products with 1.
    plain: bool,
    vars: Vec<Var>,
    bound: Vec<VarId>,
    lets: Vec<(VarId, AExpr)>,
    requires: Vec<AExpr>,
    size: usize,
}

impl<'s> FromBuild<'s> {
    fn new(s: &'s Sema<'s>, def: &'s OpDef, absent: &'s [VarId], plain: bool) -> FromBuild<'s> {
        FromBuild {
            s,
            def,
            absent,
            plain,
            vars: def.vars.clone(),
            bound: Vec::new(),
            lets: Vec::new(),
            requires: Vec::new(),
            size: 0,
        }
    }

    /// True if the pattern found every operand and attribute.
    fn complete(&self, lhs: &Pat) -> bool {
        let mut have = self.bound.clone();
        pat_vars(lhs, &mut |v| have.push(v));
        have.extend(self.lets.iter().map(|l| l.0));
        let operands = self.def.operands().map(|(i, _)| VarId(i as u32)).filter(|v| !self.absent.contains(v));
        operands.chain(ops::attr_vars(self.def)).all(|v| have.contains(&v))
    }

    fn pat(&mut self, b: &Build) -> Option<Pat> {
        self.size += 1;
        if self.size > MAX_NODES {
            return None;
        }
        match b {
            Build::Var(v) if self.absent.contains(v) => Some(Pat::Absent),
            Build::Var(v) => Some(self.operand(*v)),
            Build::Else(v, other) if self.absent.contains(v) => self.pat(other),
            Build::Else(v, _) => Some(self.operand(*v)),
            Build::Number(e) => self.number(e),
            Build::Absent => Some(Pat::Absent),
            Build::Frozen(b) => self.pat(b),
            Build::If(..) => None,
            Build::Node(n) => {
                if self.plain
                    && let Some(p) = self.neutral(n)
                {
                    return Some(p);
                }
                self.node(n)
            }
        }
    }

    /// An operand: at its first mention with its type.
    fn operand(&mut self, v: VarId) -> Pat {
        if self.bound.contains(&v) {
            return Pat::Var(v);
        }
        self.bound.push(v);
        match self.def.params.get(v.index()).and_then(tensor_param) {
            Some(t) => Pat::Typed(Box::new(Pat::Var(v)), t.clone()),
            None => Pat::Var(v),
        }
    }

    /// A number in the body: a literal, or an attribute whose value the constant gives.
    fn number(&mut self, e: &AExpr) -> Option<Pat> {
        match e {
            AExpr::Value(AttrValue::Float(v)) => return Some(Pat::Lit { value: *v, near: None }),
            AExpr::Value(AttrValue::Dim(d)) => return Some(Pat::Lit { value: d.as_const()? as f64, near: None }),
            _ => {}
        }
        self.vars.push(Var { name: format!("_c{}", self.vars.len()), sort: Sort::Tensor });
        let t = VarId(self.vars.len() as u32 - 1);
        let value = AExpr::Fact(Fact::Value, t);
        match e {
            AExpr::Var(v) if v.index() < self.def.params.len() && !self.bound.contains(v) => {
                self.bound.push(*v);
                self.lets.push((*v, value));
            }
            _ => self.requires.push(AExpr::Binary(BinaryOp::Eq, Box::new(value), Box::new(e.clone()))),
        }
        Some(Pat::Var(t))
    }

    /// `p + 0` as `p`, where the 0 stands for an absent operand.
    fn neutral(&mut self, n: &BuildNode) -> Option<Pat> {
        let Head::Scalar(id) = n.head else { return None };
        let (unit, both) = match self.s.program.scalar(id).body {
            ScalarBody::Builtin(BuiltinScalar::Add) => (0.0, true),
            ScalarBody::Builtin(BuiltinScalar::Mul) => (1.0, true),
            ScalarBody::Builtin(BuiltinScalar::Sub) => (0.0, false),
            ScalarBody::Builtin(BuiltinScalar::Div) => (1.0, false),
            _ => return None,
        };
        let [BuildArg::One(a), BuildArg::One(b)] = n.args.as_slice() else { return None };
        if self.stands_for(b, unit) {
            return self.pat(a);
        }
        if both && self.stands_for(a, unit) {
            return self.pat(b);
        }
        None
    }

    fn stands_for(&self, b: &Build, unit: f64) -> bool {
        match b {
            Build::Else(v, other) if self.absent.contains(v) => match &**other {
                Build::Number(AExpr::Value(AttrValue::Float(x))) => *x == unit,
                Build::Number(AExpr::Value(AttrValue::Dim(d))) => d.as_const() == Some(unit as i64),
                _ => false,
            },
            _ => false,
        }
    }

    fn node(&mut self, n: &BuildNode) -> Option<Pat> {
        let mut args = Vec::new();
        for a in &n.args {
            match a {
                BuildArg::One(b) => args.push(self.pat(b)?),
                BuildArg::Spread(_) | BuildArg::Each { .. } => return None,
            }
        }
        let attrs = n.attrs.iter().map(|a| self.attr(a)).collect();
        Some(Pat::Node(NodePat { head: n.head, args, rest: None, attrs, output: n.output }))
    }

    fn attr(&mut self, e: &AExpr) -> AttrPat {
        match e {
            AExpr::Var(v) => {
                self.bound.push(*v);
                AttrPat::Var(*v)
            }
            AExpr::List(items) if items.iter().all(|i| matches!(i, AExpr::Var(_) | AExpr::Value(_))) => {
                AttrPat::List(items.iter().map(|i| self.attr(i)).collect())
            }
            other => AttrPat::Is(other.clone()),
        }
    }

    fn rule(mut self, id: OpId, lhs: Pat, n: usize) -> Rule {
        let def = self.def;
        // A constant inside may be of a shape that makes the whole larger than the op's result.
        self.vars.push(Var { name: "_out".into(), sort: Sort::Tensor });
        let out = VarId(self.vars.len() as u32 - 1);
        if let Some(shape) = def.results.first().and_then(shape_expr) {
            let have = AExpr::Fact(Fact::Shape, out);
            self.requires.push(AExpr::Binary(BinaryOp::Eq, Box::new(have), Box::new(shape)));
        }
        let lhs = Pat::Bind(out, Box::new(lhs));
        let args = def
            .operands()
            .map(|(i, _)| {
                let v = VarId(i as u32);
                BuildArg::One(if self.absent.contains(&v) { Build::Absent } else { Build::Var(v) })
            })
            .collect();
        let attrs = ops::attr_vars(def).into_iter().map(AExpr::Var).collect();
        let rhs = Build::Node(BuildNode { head: Head::Op(id), args, attrs, output: 0 });
        let mut requires = self.requires;
        for (v, dtypes) in &def.bounds {
            let list = dtypes.iter().map(|d| AttrValue::DType(*d)).collect();
            requires.push(AExpr::Binary(
                BinaryOp::In,
                Box::new(AExpr::Var(*v)),
                Box::new(AExpr::Value(AttrValue::List(list))),
            ));
        }
        requires.extend(def.requires.iter().cloned());
        let name = if n == 0 { format!("fold::{}", def.name) } else { format!("fold::{}.{}", def.name, n + 1) };
        Rule {
            base_name: format!("fold::{}", def.name),
            name,
            ruleset: rulesets::FOLD,
            doc: format!("The body of `{}` is `{}`.", def.name, def.name),
            origin: def.origin.clone(),
            vars: self.vars,
            lhs: vec![lhs],
            rhs: vec![rhs],
            lets: self.lets,
            requires,
            prefer: Vec::new(),
            claims: Vec::new(),
            pointwise: false,
            derived: true,
        }
    }
}
