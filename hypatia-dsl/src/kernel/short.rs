//! Shortens generated kernels: rules that replace scalars in their terms by functions that a device
//! computes in fewer instructions.
//!
//! In: the description of a kernel, once its inputs and outputs are known, and the approximations
//! that are allowed. Out: the same description with scalars that name a device function
//! (`device "..."`) where a rule inserts them, and the rules that fired. Invariant: a rule fires
//! only on f32 values, and only if its claim is allowed for the digits that the kernel's results
//! keep; other values are computed as before; a kernel without a match is unchanged; its scalars
//! stay calls.

use crate::builtin::BuiltinScalar;
use crate::dtype::DType;
use crate::ir::{
    AttrValue, Build, BuildArg, Class, Fact, Head, Pat, Program, Rule, RuleId, ScalarBody, ScalarId, VarId,
};
use crate::numerics::{Allowed, Numerics, TF32_BITS, mantissa_bits};
use crate::scalar::typed::{LeafType, default_type, types};
use crate::scalar::{Term, TermBuilder, TermId, TermNode, expand, prune};
use crate::shape::Dim;
use crate::typing::{Bindings, Facts, eval_guard};

use super::{PointwiseKernel, RowwiseKernel};

/// Maximum nesting depth of definitions.
const MAX_DEPTH: usize = 200;
/// The number of elements that guards assume for a row, as costs do for symbolic sizes.
const ROW: i64 = 8;

/// True for a rule about terms of generated kernels: its right side contains a scalar with a device
/// function.
pub fn is_short(program: &Program, rule: &Rule) -> bool {
    fn named(program: &Program, build: &Build) -> bool {
        let Build::Node(n) = build else { return false };
        let own = matches!(n.head, Head::Scalar(s) if program.scalar(s).device.is_some());
        own || n.args.iter().any(|a| matches!(a, BuildArg::One(b) if named(program, b)))
    }
    rule.rhs.iter().any(|b| named(program, b))
}

/// The rules of a Program that may shorten kernels.
pub struct Shortener<'p> {
    program: &'p Program,
    rules: Vec<(RuleId, &'p Rule)>,
    numerics: Numerics,
}

impl<'p> Shortener<'p> {
    /// Collects the allowed rules.
    pub fn new(program: &'p Program, allowed: &Allowed) -> Shortener<'p> {
        let rules = program.rules.iter().enumerate();
        let rules = rules.filter(|(_, r)| is_short(program, r) && !allowed.is_off(program, r));
        let rules = rules.map(|(i, r)| (RuleId(i as u32), r)).collect();
        Shortener { program, rules, numerics: allowed.numerics }
    }

    /// Shortens a pointwise kernel. With `tf32` it follows products that keep 10 bits of their
    /// operands.
    pub fn pointwise(&self, kernel: &mut PointwiseKernel, tf32: bool) -> Vec<RuleId> {
        let kept = kernel.outputs.iter().map(|d| mantissa_bits(*d)).max().unwrap_or(52);
        let rules = self.allowed(if tf32 { TF32_BITS } else { kept });
        if rules.is_empty() {
            return Vec::new();
        }
        let (acc, inputs) = (kernel.acc, &kernel.inputs);
        let number = default_type(inputs.iter().map(|o| o.dtype).chain(acc).chain(kernel.outputs.iter().copied()));
        let leaf = |node: &TermNode| match node {
            TermNode::Acc => acc,
            TermNode::In { input, .. } => inputs.get(*input as usize).map(|o| o.dtype),
            _ => None,
        };
        self.term(&rules, &mut kernel.term, number, &Leaves { types: &leaf, elements: &|_| None })
    }

    /// Shortens the epilogue of a product with f32 accumulators, whose operands have these types.
    /// The type of the result determines how many digits count.
    pub fn product(&self, term: &mut Term, inputs: &[DType], output: DType) -> Vec<RuleId> {
        let rules = self.allowed(mantissa_bits(output));
        if rules.is_empty() {
            return Vec::new();
        }
        let number = default_type(inputs.iter().copied().chain([DType::F32, output]));
        let leaf = |node: &TermNode| match node {
            TermNode::Acc | TermNode::Second => Some(DType::F32),
            TermNode::In { input, .. } => inputs.get(*input as usize).copied(),
            _ => None,
        };
        self.term(&rules, term, number, &Leaves { types: &leaf, elements: &|_| None })
    }

    /// Whether a rule replaces the exponential of an f32 value in kernels with results of that
    /// type.
    pub fn exponential(&self, output: DType) -> bool {
        let mut terms = TermBuilder::new();
        let acc = terms.add(TermNode::Acc);
        let Some(exp) = terms.builtin(self.program, BuiltinScalar::Exp, vec![acc]) else { return false };
        !self.product(&mut terms.finish(vec![exp]), &[], output).is_empty()
    }

    /// Shortens a row-wise kernel. The types of its inputs and outputs determine how many digits
    /// count.
    pub fn rowwise(&self, kernel: &mut RowwiseKernel) -> Vec<RuleId> {
        let made = || kernel.outputs.iter().map(|o| o.0).chain(kernel.sums.iter().map(|s| s.0));
        let all = || kernel.inputs.iter().map(|i| i.0).chain(made());
        let Some(kept) = all().filter(|d| d.is_float()).map(mantissa_bits).max() else { return Vec::new() };
        let rules = self.allowed(kept);
        if rules.is_empty() {
            return Vec::new();
        }
        let number = default_type(all());
        let mut leaves: Vec<DType> = kernel.inputs.iter().map(|i| i.0).collect();
        let inputs = leaves.len() as u32;
        let elements = |node: &TermNode| match node {
            // The layout of an operand is chosen later; assume an element for each element of the
            // row.
            TermNode::In { input, .. } => Some(if *input < inputs { ROW } else { 1 }),
            _ => None,
        };
        let mut fired = Vec::new();
        for (_, term) in &mut kernel.steps {
            fired.extend(self.row_term(&rules, term, number, &leaves, &elements));
            let known = types(self.program, term, number, &of(&leaves)).ok();
            let ty = known.and_then(|t| t.get(term.root().0 as usize).copied().flatten()).unwrap_or(number);
            leaves.push(if ty == DType::Bool { DType::I64 } else { ty });
        }
        let stored = kernel.outputs.iter_mut().map(|(_, _, term)| term);
        for term in stored.chain(kernel.sums.iter_mut().map(|(_, term)| term)) {
            fired.extend(self.row_term(&rules, term, number, &leaves, &elements));
        }
        fired
    }

    fn row_term(
        &self,
        rules: &[(RuleId, &Rule)],
        term: &mut Term,
        number: DType,
        leaves: &[DType],
        elements: &dyn Fn(&TermNode) -> Option<i64>,
    ) -> Vec<RuleId> {
        self.term(rules, term, number, &Leaves { types: &of(leaves), elements })
    }

    /// The rules that may fire if results keep this many bits.
    fn allowed(&self, kept: i32) -> Vec<(RuleId, &'p Rule)> {
        let allowed = |r: &Rule| claim(r).is_some_and(|c| self.numerics.allows(c, kept));
        self.rules.iter().copied().filter(|(_, r)| allowed(r)).collect()
    }

    /// Rewrites a term. An ill-typed term is left to the printer, which reports the error.
    fn term(&self, rules: &[(RuleId, &Rule)], term: &mut Term, number: DType, leaves: &Leaves<'_>) -> Vec<RuleId> {
        let Some(open) = self.opened(rules, term, number, leaves.types) else { return Vec::new() };
        let Some(matcher) = Matcher::of(self.program, &open, number, leaves) else { return Vec::new() };
        // From the root inwards: a node inside a match is not rewritten separately.
        let mut found: Vec<Option<(RuleId, &Rule, Bound)>> = vec![None; open.nodes.len()];
        let mut needed = vec![false; open.nodes.len()];
        open.roots.iter().for_each(|r| needed[r.0 as usize] = true);
        for (i, node) in open.nodes.iter().enumerate().rev() {
            let at = TermId(i as u32);
            if !needed[i] {
                continue;
            }
            found[i] = rules.iter().find_map(|(id, rule)| Some((*id, *rule, matcher.find(rule, at)?)));
            match &found[i] {
                Some((_, _, bound)) => bound.vars.iter().for_each(|(_, t)| needed[t.0 as usize] = true),
                None => node.args().iter().for_each(|a| needed[a.0 as usize] = true),
            }
        }
        let mut fired = Vec::new();
        let mut out = TermBuilder::new();
        let mut map: Vec<TermId> = Vec::with_capacity(open.nodes.len());
        for (i, node) in open.nodes.iter().enumerate() {
            let built = found[i].take().and_then(|(id, rule, bound)| {
                let new = build(rule.rhs.first()?, &|v| bound.of(v).map(|t| map[t.0 as usize]), &mut out)?;
                fired.push(id);
                Some(new)
            });
            map.push(built.unwrap_or_else(|| out.add(node.map_args(|a| map[a.0 as usize]))));
        }
        if !fired.is_empty() {
            *term = out.finish(open.roots.iter().map(|r| map[r.0 as usize]).collect());
        }
        fired
    }

    /// The term, with a defined scalar inlined if a rule fires in its body.
    fn opened(&self, rules: &[(RuleId, &Rule)], term: &Term, number: DType, leaf: LeafType<'_>) -> Option<Term> {
        let mut term = prune(term);
        for _ in 0..MAX_DEPTH {
            let types = types(self.program, &term, number, leaf).ok()?;
            let mut out = TermBuilder::new();
            let mut map: Vec<TermId> = Vec::with_capacity(term.nodes.len());
            let mut changed = false;
            for (node, ty) in term.nodes.iter().zip(types) {
                let body = match node {
                    TermNode::Call { scalar, .. } if ty == Some(DType::F32) => self.body_with_match(rules, *scalar),
                    _ => None,
                };
                let args: Vec<TermId> = node.args().iter().map(|a| map[a.0 as usize]).collect();
                map.push(match body {
                    Some(body) => {
                        changed = true;
                        *out.append(body, &args).first()?
                    }
                    None => out.add(node.map_args(|a| map[a.0 as usize])),
                });
            }
            if !changed {
                return Some(term);
            }
            term = out.finish(term.roots.iter().map(|r| map[r.0 as usize]).collect());
        }
        None
    }

    /// The body of a defined scalar, if a rule fires somewhere in it.
    fn body_with_match(&self, rules: &[(RuleId, &Rule)], scalar: ScalarId) -> Option<&'p Term> {
        let def = self.program.scalars.get(scalar.index()).filter(|d| d.device.is_none())?;
        let ScalarBody::Term(body) = &def.body else { return None };
        let whole = expand(self.program, body).ok()?;
        let leaf = |_: &TermNode| Some(DType::F32);
        let matcher = Matcher::of(self.program, &whole, DType::F32, &Leaves { types: &leaf, elements: &|_| None })?;
        let at =
            |i: usize| rules.iter().any(|(_, r)| r.prefer.is_empty() && matcher.find(r, TermId(i as u32)).is_some());
        (0..whole.nodes.len()).any(at).then_some(body)
    }
}

/// The rounding class that a rule claims for f32.
pub fn claim(rule: &Rule) -> Option<Class> {
    let named = rule.claims.iter().find(|c| c.dtypes.contains(&DType::F32));
    let any = || rule.claims.iter().find(|c| c.dtypes.is_empty());
    named.or_else(any).map(|c| c.class)
}

fn of(leaves: &[DType]) -> impl Fn(&TermNode) -> Option<DType> + '_ {
    |node| match node {
        TermNode::In { input, .. } => leaves.get(*input as usize).copied(),
        _ => None,
    }
}

/// Builds the right side, with variables bound as in `bound`.
fn build(side: &Build, bound: &dyn Fn(VarId) -> Option<TermId>, out: &mut TermBuilder) -> Option<TermId> {
    match side {
        Build::Var(v) => bound(*v),
        Build::Node(node) => {
            let Head::Scalar(scalar) = node.head else { return None };
            let args = node.args.iter().map(|arg| match arg {
                BuildArg::One(b) => build(b, bound, out),
                _ => None,
            });
            let args = args.collect::<Option<Vec<TermId>>>()?;
            Some(out.call(scalar, args))
        }
        _ => None,
    }
}

/// What is known of the leaves of a term.
struct Leaves<'l> {
    types: LeafType<'l>,
    /// The number of elements along a row, if it is known.
    elements: &'l dyn Fn(&TermNode) -> Option<i64>,
}

/// The bindings of a rule's variables.
#[derive(Clone, Default)]
struct Bound {
    vars: Vec<(VarId, TermId)>,
}

impl Bound {
    fn of(&self, v: VarId) -> Option<TermId> {
        self.vars.iter().find(|(var, _)| *var == v).map(|(_, t)| *t)
    }
}

/// Matches left sides in one term.
struct Matcher<'a> {
    program: &'a Program,
    term: &'a Term,
    types: Vec<Option<DType>>,
    uses: Vec<u32>,
    elements: Vec<Option<i64>>,
}

impl<'a> Matcher<'a> {
    fn of(program: &'a Program, term: &'a Term, number: DType, leaves: &Leaves<'_>) -> Option<Matcher<'a>> {
        let types = types(program, term, number, leaves.types).ok()?;
        let mut uses = vec![0u32; term.nodes.len()];
        let args = term.nodes.iter().flat_map(TermNode::args);
        args.chain(&term.roots).for_each(|a| uses[a.0 as usize] += 1);
        let mut elements: Vec<Option<i64>> = Vec::with_capacity(term.nodes.len());
        for node in &term.nodes {
            let of_args = || node.args().iter().map(|a| elements[a.0 as usize]).try_fold(1, |m, n| Some(n?.max(m)));
            elements.push(match node {
                TermNode::Lit(_) => Some(1),
                TermNode::Call { .. } | TermNode::Cast { .. } => of_args(),
                leaf => (leaves.elements)(leaf),
            });
        }
        Some(Matcher { program, term, types, uses, elements })
    }

    /// The bindings of a rule's variables, if its left side matches here and its guards hold.
    fn find(&self, rule: &Rule, at: TermId) -> Option<Bound> {
        let [side] = rule.lhs.as_slice() else { return None };
        let mut bound = Bound::default();
        if !self.matches(side, at, true, &mut bound) {
            return None;
        }
        let facts = TermFacts { matcher: self, bound: &bound };
        let holds = |g| eval_guard(g, &Bindings::default(), &facts) == Some(true);
        rule.requires.iter().chain(&rule.prefer).all(holds).then_some(bound)
    }

    fn matches(&self, pat: &Pat, at: TermId, root: bool, bound: &mut Bound) -> bool {
        let i = at.0 as usize;
        match pat {
            Pat::Any => true,
            Pat::Var(v) => match bound.of(*v) {
                Some(before) => before == at,
                None => {
                    bound.vars.push((*v, at));
                    true
                }
            },
            Pat::Lit { value, near: None } => matches!(&self.term.nodes[i], TermNode::Lit(l) if l.0 == *value),
            Pat::Node(node) => {
                let (Head::Scalar(wanted), TermNode::Call { scalar, args }) = (node.head, &self.term.nodes[i]) else {
                    return false;
                };
                // An inner node with other uses is computed in any case.
                let alone = root || self.uses[i] == 1;
                if wanted != *scalar || !alone || self.types[i] != Some(DType::F32) || node.args.len() != args.len() {
                    return false;
                }
                let before = bound.clone();
                let in_order = |args: &[TermId], bound: &mut Bound| {
                    node.args.iter().zip(args).all(|(p, a)| self.matches(p, *a, false, bound))
                };
                if in_order(args, bound) {
                    return true;
                }
                *bound = before;
                let commutes = matches!(&self.program.scalar(wanted).body, ScalarBody::Builtin(b) if b.commutes());
                match args[..] {
                    [a, b] if commutes => in_order(&[b, a], bound),
                    _ => false,
                }
            }
            _ => false,
        }
    }
}

/// Facts of the terms that a rule's variables are bound to.
struct TermFacts<'m> {
    matcher: &'m Matcher<'m>,
    bound: &'m Bound,
}

impl Facts for TermFacts<'_> {
    fn fact(&self, fact: Fact, var: VarId) -> Option<AttrValue> {
        let elements = self.matcher.elements[self.bound.of(var)?.0 as usize]?;
        (fact == Fact::Numel).then(|| AttrValue::Dim(Dim::from(elements)))
    }
}
