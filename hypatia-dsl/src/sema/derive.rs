//! Derived rules: each rewrites a body to the op or scalar that it defines.
//!
//! In: scalars whose body has at least two operations, and defined ops that own a kernel. Out:
//! rules of the ruleset `fold`. Invariant: a rule for an op requires all the types that the op
//! requires, so that it never matches anything that the op would reject.

use crate::ast::BinaryOp;
use crate::diag::Diagnostic;
use crate::dtype::{DType, Kind};
use crate::ir::{
    AExpr, AFn, AttrPat, AttrType, AttrValue, Build, BuildArg, BuildNode, Claim, Class, DimPat, Fact, Head, NodePat,
    OpBody, OpDef, OpId, Param, ParamKind, Pat, RestPat, Rule, ScalarBody, ScalarId, Sort, TypePat, Var, VarId,
    walk_build,
};
use crate::neutral::without_absent;
use crate::scalar::{Term, TermId, TermNode};
use crate::shape::Dim;

use super::walk::pat_vars;
use super::{Sema, code, ops, rulesets, tensor_param};

/// Maximum number of nodes in a derived pattern; a larger body gets no rule.
const MAX_NODES: usize = 2_000;
/// Maximum number of optional operands of an op: each choice of absent operands gets a rule.
const MAX_OPTIONAL: usize = 6;

pub(super) fn derive(s: &mut Sema<'_>) {
    let mut out = Vec::new();
    for i in 0..s.program.scalars.len() {
        let id = ScalarId(i as u32);
        if !s.poisoned_scalars.contains(&id) {
            out.extend(scalar_rule(s, id));
        }
    }
    let with_kernel = ops_with_kernel(s);
    let mut warnings = Vec::new();
    for &id in &with_kernel {
        if s.poisoned_ops.contains(&id) {
            continue;
        }
        match op_rules(s, id, &with_kernel) {
            Ok(rules) => out.extend(rules),
            Err(why) => warnings.extend(not_folded(s, id, &why)),
        }
    }
    s.diags.extend(warnings);
    s.program.rules.splice(0..0, out);
}

/// The ops that have a kernel, in the order of the kernels.
fn ops_with_kernel(s: &Sema<'_>) -> Vec<OpId> {
    let mut ops: Vec<OpId> = Vec::new();
    for id in s.program.kernels.iter().filter_map(|k| kernel_op(&k.pattern)) {
        if !ops.contains(&id) {
            ops.push(id);
        }
    }
    ops
}

/// Why no rule is derived from the body of an op, in words that say what to do.
pub(super) fn why_not_folded(s: &Sema<'_>, id: OpId) -> String {
    let (name, with_kernel) = (&s.program.op(id).name, ops_with_kernel(s));
    if !with_kernel.contains(&id) {
        return format!("an op has a fold rule only if it has a kernel: declare one, `kernel k for {name}(...)`");
    }
    let why = op_rules(s, id, &with_kernel).err().map_or(String::new(), |why| format!(": {why}"));
    format!(
        "no rule can be derived from the body of `{name}`{why}; write one, `rule mine::form: PATTERN => {name}(...)`"
    )
}

/// The warning that no rule finds an op with a kernel, unless a rule builds it.
fn not_folded(s: &Sema<'_>, id: OpId, why: &str) -> Option<Diagnostic> {
    let def = s.program.op(id);
    let span = def.origin.span.filter(|span| !s.resolved.trusts(Some(*span)))?;
    let is_built = s.program.rules.iter().flat_map(|r| &r.rhs).any(|b| {
        let mut found = false;
        walk_build(b, &mut |b, _| found |= matches!(b, Build::Node(n) if n.head == Head::Op(id)), true);
        found
    });
    let message = format!("no rule finds `{}` in a model", def.name);
    let d = Diagnostic::warning(code::NOT_FOLDED, message, span)
        .label(format!("no rule can be derived from its body: {why}"))
        .note("its kernels are used only where a model or a rule names the op")
        .hint(format!("write a rule that ends in it: `rule mine::form: PATTERN => {}(...)`", def.name));
    (!is_built).then_some(d)
}

fn kernel_op(p: &Pat) -> Option<OpId> {
    match p {
        Pat::Node(NodePat { head: Head::Op(id), .. }) => Some(*id),
        Pat::Bind(_, p) | Pat::Typed(p, _) => kernel_op(p),
        _ => None,
    }
}

/// `max(x, 0) * ... => name(x)`, if the body is large enough.
fn scalar_rule(s: &Sema<'_>, id: ScalarId) -> Option<Rule> {
    let def = s.program.scalar(id);
    let ScalarBody::Term(term) = &def.body else { return None };
    if def.device.is_some() {
        return None; // kernel rules insert this scalar; it is not another name for its body
    }
    let operations = term.nodes.iter().filter(|n| matches!(n, TermNode::Call { .. })).count();
    // A cast in the body has no equivalent that is the same on tensors and on terms.
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
        return None; // an unused parameter cannot be recovered from a match
    }
    // A boolean result may come from operands of any type.
    let truth = (def.result == Kind::Bool).then_some(DType::Bool);
    let rounded = [DType::F16, DType::BF16].into_iter().chain(truth).collect();
    let args = (0..def.params.len()).map(|i| BuildArg::One(Build::Var(VarId(i as u32)))).collect();
    let rhs = Build::Node(BuildNode { head: Head::Scalar(id), args, attrs: vec![], output: 0 });
    Some(Rule {
        name: Rule::derived_name(&def.name),
        base_name: Rule::derived_name(&def.name),
        ruleset: rulesets::FOLD,
        doc: format!("The body of `{}` is `{}`.", def.name, def.name),
        origin: def.origin.clone(),
        vars,
        lhs: vec![lhs],
        rhs: vec![rhs],
        lets: Vec::new(),
        requires: Vec::new(),
        prefer: Vec::new(),
        saves: None,
        claims: vec![
            Claim { class: Class::Exact, dtypes: vec![DType::F64, DType::F32] },
            Claim { class: Class::Rounds, dtypes: rounded },
        ],
        pointwise: true,
        derived: true,
    })
}

/// The shape of a result type as a list expression; `None` if part of it is open.
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
    /// The variable of an inner node with several uses, once it has matched.
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
            TermNode::Acc | TermNode::Second | TermNode::In { .. } | TermNode::Cast { .. } => None,
        }
    }
}

/// `body => op`, for each choice of absent optional operands; or why there is no such rule.
fn op_rules(s: &Sema<'_>, id: OpId, with_kernel: &[OpId]) -> Result<Vec<Rule>, String> {
    let def = s.program.op(id);
    let OpBody::Defined(bodies) = &def.body else { return Ok(Vec::new()) };
    if bodies.is_empty() {
        return Ok(Vec::new()); // its errors have been reported
    }
    // Ops in the body are inlined too, as on insertion. Those with a kernel are found by their own
    // derived rules.
    let inlined = bodies.iter().map(|b| super::inline::inline(&s.program, b, with_kernel));
    let bodies = inlined.collect::<Result<Vec<Build>, String>>()?;
    let open = |p: &&Param| matches!(p.kind, ParamKind::Tensor { variadic: true, .. } | ParamKind::Term);
    if let Some(p) = def.params.iter().find(open) {
        let what = if p.kind == ParamKind::Term { "an epilogue term" } else { "any number of operands" };
        return Err(format!("`{}` stands for {what}", p.name));
    }
    let optional: Vec<usize> = (0..def.params.len())
        .filter(|i| matches!(def.params[*i].kind, ParamKind::Tensor { optional: true, .. }))
        .collect();
    if optional.len() > MAX_OPTIONAL {
        return Err(format!("it has more than {MAX_OPTIONAL} optional operands"));
    }
    let mut out: Vec<Rule> = Vec::new();
    let mut why: Option<String> = None;
    for mask in 0..1usize << optional.len() {
        let absent: Vec<VarId> =
            optional.iter().enumerate().filter(|(b, _)| mask >> b & 1 == 1).map(|(_, i)| VarId(*i as u32)).collect();
        // If an operand is absent, so is its addition; models may still write `y + 0`.
        for plain in if absent.is_empty() { vec![false] } else { vec![false, true] } {
            let mut f = FromBuild::new(s, def, &absent, plain);
            let Some(mut lhs) = f.patterns(&bodies) else {
                why = why.or(f.why);
                continue;
            };
            // A number that also occurs as an attribute is compared with it, in whatever order they
            // match.
            if f.lets.iter().any(|(v, _)| f.read.contains(v)) {
                f = FromBuild { numbers: false, read: f.read, ..FromBuild::new(s, def, &absent, plain) };
                let Some(again) = f.patterns(&bodies) else { continue };
                lhs = again;
            }
            // A result that is an operand, or equal to another result, cannot be told from it.
            let told = |p: &Pat| matches!(p, Pat::Node(_)) && lhs.iter().filter(|q| *q == p).count() == 1;
            if !lhs.iter().all(told) {
                why.get_or_insert_with(|| "a result is an operand, or equal to another result".to_string());
                continue;
            }
            if let Some(lost) = f.incomplete(&lhs) {
                why.get_or_insert_with(|| format!("its body does not determine `{lost}`"));
                continue;
            }
            let rule = f.rule(id, lhs, out.len());
            if !out.iter().any(|r| r.lhs == rule.lhs && r.rhs == rule.rhs) {
                out.push(rule);
            }
        }
    }
    match (out.is_empty(), why) {
        (true, Some(why)) => Err(why),
        _ => Ok(out),
    }
}

/// The number of nodes in a pattern.
fn pat_size(p: &Pat) -> usize {
    match p {
        Pat::Bind(_, p) | Pat::Typed(p, _) => pat_size(p),
        Pat::Node(n) => 1 + n.args.iter().map(pat_size).sum::<usize>(),
        _ => 1,
    }
}

struct FromBuild<'s> {
    s: &'s Sema<'s>,
    def: &'s OpDef,
    absent: &'s [VarId],
    /// True if additions of 0 and multiplications by 1 are omitted.
    plain: bool,
    vars: Vec<Var>,
    bound: Vec<VarId>,
    /// Attributes of the op that occur as attributes in the body.
    read: Vec<VarId>,
    /// True if numbers in the body also bind the attributes in `read`.
    numbers: bool,
    lets: Vec<(VarId, AExpr)>,
    requires: Vec<AExpr>,
    size: usize,
    /// Why there is no pattern.
    why: Option<String>,
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
            read: Vec::new(),
            numbers: true,
            lets: Vec::new(),
            requires: Vec::new(),
            size: 0,
            why: None,
        }
    }

    /// No pattern, for a reason.
    fn fail<T>(&mut self, why: impl Into<String>) -> Option<T> {
        self.why.get_or_insert_with(|| why.into());
        None
    }

    /// One pattern for each result.
    fn patterns(&mut self, bodies: &[Build]) -> Option<Vec<Pat>> {
        bodies.iter().map(|b| self.pat(b)).collect()
    }

    /// An operand or attribute that the pattern does not bind.
    fn incomplete(&self, lhs: &[Pat]) -> Option<&'s str> {
        let mut have = self.bound.clone();
        lhs.iter().for_each(|p| pat_vars(p, &mut |v| have.push(v)));
        have.extend(self.lets.iter().map(|l| l.0));
        let operands = self.def.operands().map(|(i, _)| VarId(i as u32)).filter(|v| !self.absent.contains(v));
        let lost = operands.chain(ops::attr_vars(self.def)).find(|v| !have.contains(v))?;
        self.def.params.get(lost.index()).map(|p| p.name.as_str())
    }

    fn pat(&mut self, b: &Build) -> Option<Pat> {
        self.size += 1;
        if self.size > MAX_NODES {
            return self.fail(format!("its body has more than {MAX_NODES} parts"));
        }
        match b {
            Build::Var(v) if self.absent.contains(v) => Some(Pat::Absent),
            Build::Var(v) => Some(self.operand(*v)),
            Build::Else(v, other) if self.absent.contains(v) => self.pat(other),
            Build::Else(v, _) => Some(self.operand(*v)),
            Build::Number(e) => self.number(e),
            Build::Absent => Some(Pat::Absent),
            Build::Frozen(b) => self.pat(b),
            Build::If(..) => self.fail("it chooses by `if`"),
            Build::Node(n) => {
                let absent = |v: VarId| self.absent.contains(&v);
                match without_absent(&self.s.program, n, &absent).filter(|_| self.plain) {
                    Some(rest) => self.pat(rest),
                    None => self.node(n),
                }
            }
        }
    }

    /// An operand: typed at its first occurrence.
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

    /// A number in the body: a literal, or an attribute that the constant's value binds.
    fn number(&mut self, e: &AExpr) -> Option<Pat> {
        match e {
            AExpr::Value(AttrValue::Float(v)) => return Some(Pat::Lit { value: *v, near: None }),
            AExpr::Value(AttrValue::Dim(d)) => return Some(Pat::Lit { value: d.as_const()? as f64, near: None }),
            _ => {}
        }
        self.vars.push(Var { name: format!("_c{}", self.vars.len()), sort: Sort::Tensor });
        let t = VarId(self.vars.len() as u32 - 1);
        let value = AExpr::Fact(Fact::Value, t);
        if let AExpr::Var(v) = e
            && let Some(ParamKind::Attr { ty, .. }) = self.def.params.get(v.index()).map(|p| &p.kind)
            && !self.bound.contains(v)
            && (self.numbers || !self.read.contains(v))
        {
            self.bound.push(*v);
            if *ty == AttrType::Float {
                self.lets.push((*v, value));
                return Some(Pat::Var(t));
            }
            // The other number attributes are integers, and sizes are not negative.
            self.lets.push((*v, AExpr::Call(AFn::Floor, vec![value.clone()])));
            if *ty == AttrType::Dim {
                let zero = AExpr::Value(AttrValue::Dim(Dim::from(0)));
                self.requires.push(AExpr::Binary(BinaryOp::Le, Box::new(zero), Box::new(e.clone())));
            }
        }
        self.requires.push(AExpr::Binary(BinaryOp::Eq, Box::new(value), Box::new(e.clone())));
        Some(Pat::Var(t))
    }

    fn node(&mut self, n: &BuildNode) -> Option<Pat> {
        let mut args = Vec::new();
        for a in &n.args {
            match a {
                BuildArg::One(b) => args.push(self.pat(b)?),
                BuildArg::Spread(_) | BuildArg::Each { .. } => return self.fail("it uses a list of operands"),
            }
        }
        let attrs = n.attrs.iter().map(|a| self.attr(a)).collect();
        Some(Pat::Node(NodePat { head: n.head, args, rest: None, attrs, output: n.output }))
    }

    fn attr(&mut self, e: &AExpr) -> AttrPat {
        match e {
            AExpr::Var(v) => {
                self.bound.push(*v);
                self.read.push(*v);
                AttrPat::Var(*v)
            }
            AExpr::List(items) if items.iter().all(|i| matches!(i, AExpr::Var(_) | AExpr::Value(_))) => {
                AttrPat::List(items.iter().map(|i| self.attr(i)).collect())
            }
            // An attribute among formulas, such as `groups` in `[n, groups, c / groups]`, is read
            // from the list. The formulas are compared once everything is bound.
            AExpr::List(items) if self.reads_attribute(items) => {
                AttrPat::List(items.iter().map(|i| self.list_item(i)).collect())
            }
            other => AttrPat::Is(other.clone()),
        }
    }

    /// True for a list with at most one `..` in which an attribute of the op occurs by itself.
    fn reads_attribute(&self, items: &[AExpr]) -> bool {
        let attribute = |e: &AExpr| matches!(e, AExpr::Var(v) if v.index() < self.def.params.len());
        items.iter().any(attribute) && items.iter().filter(|e| matches!(e, AExpr::Spread(_))).count() <= 1
    }

    fn list_item(&mut self, e: &AExpr) -> AttrPat {
        if let AExpr::Var(_) | AExpr::Value(_) = e {
            return self.attr(e);
        }
        self.vars.push(Var { name: format!("_a{}", self.vars.len()), sort: Sort::Attr });
        let v = VarId(self.vars.len() as u32 - 1);
        let (pat, whole) = match e {
            AExpr::Spread(list) => (AttrPat::Rest(Some(v)), list.as_ref()),
            e => (AttrPat::Var(v), e),
        };
        self.requires.push(AExpr::Binary(BinaryOp::Eq, Box::new(AExpr::Var(v)), Box::new(whole.clone())));
        pat
    }

    /// One root for each result, the largest first: the other roots are then searched for near its
    /// variables.
    fn rule(mut self, id: OpId, lhs: Vec<Pat>, n: usize) -> Rule {
        let def = self.def;
        let mut roots: Vec<(usize, Pat)> = lhs.into_iter().enumerate().collect();
        roots.sort_by_key(|(_, p)| std::cmp::Reverse(pat_size(p)));
        let args: Vec<BuildArg> = def
            .operands()
            .map(|(i, _)| {
                let v = VarId(i as u32);
                BuildArg::One(if self.absent.contains(&v) { Build::Absent } else { Build::Var(v) })
            })
            .collect();
        let attrs: Vec<AExpr> = ops::attr_vars(def).into_iter().map(AExpr::Var).collect();
        let (mut lhs, mut rhs) = (Vec::new(), Vec::new());
        for (output, pat) in roots {
            // A constant inside may have a shape that broadcasts the whole to more than the op's
            // result.
            self.vars.push(Var {
                name: if output == 0 { "_out".into() } else { format!("_out{output}") },
                sort: Sort::Tensor,
            });
            let out = VarId(self.vars.len() as u32 - 1);
            if let Some(shape) = def.results.get(output).and_then(shape_expr) {
                let have = AExpr::Fact(Fact::Shape, out);
                self.requires.push(AExpr::Binary(BinaryOp::Eq, Box::new(have), Box::new(shape)));
            }
            lhs.push(Pat::Bind(out, Box::new(pat)));
            let (args, attrs) = (args.clone(), attrs.clone());
            rhs.push(Build::Node(BuildNode { head: Head::Op(id), args, attrs, output: output as u32 }));
        }
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
        let name =
            if n == 0 { Rule::derived_name(&def.name) } else { format!("{}.{}", Rule::derived_name(&def.name), n + 1) };
        Rule {
            base_name: Rule::derived_name(&def.name),
            name,
            ruleset: rulesets::FOLD,
            doc: format!("The body of `{}` is `{}`.", def.name, def.name),
            origin: def.origin.clone(),
            vars: self.vars,
            lhs,
            rhs,
            lets: self.lets,
            requires,
            prefer: Vec::new(),
            saves: None,
            claims: Vec::new(),
            pointwise: false,
            derived: true,
        }
    }
}
