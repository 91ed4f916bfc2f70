//! Applies a match: adds the right side of a rule to the e-graph.
//!
//! In: a match. Out: new nodes, merged with the classes of the roots, or the reason for rejection.
//! Invariant: nothing is merged unless the rule's rounding class covers the dtype, every `requires`
//! is known to be true, every node that is built type-checks, both sides have the same type, and
//! folded constants keep their meaning in their element type (`range_loss`). The limit on the
//! e-graph's size is checked before every node.

mod builder;

use egg::Id;
use hypatia_dsl::approx::{Approx, mantissa_bits};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AExpr, AttrValue, Class, Head, OpId, Pat, Rule, ScalarId, VarId};
use hypatia_dsl::typing;

use self::builder::Builder;
use super::analysis::EGraph;
use super::analysis::{Sort, conflict, is_term, node_types, rounded_apart, term_kind};
use super::candidate::Candidate;
use super::language::{Node, Payload};
use super::matcher::{Binding, Match, MatchFacts, Target};
use hypatia_dsl::interpret::build_term;

/// Why a match was not applied.
#[derive(Clone, Debug, PartialEq)]
pub enum Reject {
    /// The rule makes no claim for that dtype, or claims only an approximation.
    Claim(DType),
    /// That `requires` is not known to be true.
    Requires(usize),
    /// That `prefer` is not true.
    Prefer(usize),
    /// That `let` has no value.
    Let(VarId),
    /// The right side does not type-check, or its type differs from the left side's.
    Type(String),
    /// `build(...)` of a value that is not constant.
    NotConstant,
    /// A constant or a number that it computes would lose its meaning in its element type.
    Lost(String),
    /// A limit of the stage.
    Budget,
}

/// The result of applying a match.
#[derive(Clone, Debug, Default)]
pub struct Applied {
    /// True if the e-graph changed.
    pub changed: bool,
    /// For each root that is not just a variable, the node built for it, as it was at that time.
    pub built: Vec<Node>,
}

/// Settings of application, such as whether approximations are allowed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Policy {
    /// Which rules that claim no more than `approx` may fire.
    pub approx: Approx,
}

/// Whether a rule may fire for values of that dtype.
pub fn claimed(rule: &Rule, dtype: DType, policy: Policy) -> bool {
    let strongest = |c: &Class| policy.approx.allows(*c, mantissa_bits(dtype));
    if rule.claims.is_empty() {
        return true;
    }
    rule.claims.iter().any(|c| (c.dtypes.is_empty() || c.dtypes.contains(&dtype)) && strongest(&c.class))
}

/// Computes the `let`s of a match, and checks its rounding class and guards.
pub fn check(egraph: &EGraph, candidate: &Candidate, rule: &Rule, m: &mut Match, policy: Policy) -> Result<(), Reject> {
    for root in &m.roots {
        match egraph[*root].data.sort {
            Sort::Tensor(t) => {
                let dtype = egraph.analysis.ty(t).dtype;
                if !claimed(rule, dtype, policy) {
                    return Err(Reject::Claim(dtype));
                }
            }
            // Terms are shared by products of all dtypes, and compute in f32 or f64.
            Sort::Term(_) => {
                for dtype in [DType::F32, DType::F64] {
                    if !claimed(rule, dtype, policy) {
                        return Err(Reject::Claim(dtype));
                    }
                }
            }
            _ => return Err(Reject::Type("the root is no tensor".to_string())),
        }
    }
    for (var, expr) in &rule.lets {
        let facts = MatchFacts { egraph, bindings: &m.bindings, device: None, candidate };
        let value = typing::eval(expr, &m.values, &facts).ok_or(Reject::Let(*var))?;
        m.values.values.insert(*var, value);
    }
    let facts = MatchFacts { egraph, bindings: &m.bindings, device: None, candidate };
    let holds = |g: &AExpr| typing::eval(g, &m.values, &facts) == Some(AttrValue::Bool(true));
    if let Some(i) = rule.requires.iter().position(|g| !holds(g)) {
        return Err(Reject::Requires(i));
    }
    if let Some(i) = rule.prefer.iter().position(|g| !holds(g)) {
        return Err(Reject::Prefer(i));
    }
    Ok(())
}

/// Builds the sums that a match needs, and binds its variables and its root to them, so that the
/// match becomes one of the left side as written. A part of a longer sum gets a class of its own,
/// and the longer sum also becomes the sum of that class and the rest. The e-graph may grow to
/// `limit` nodes.
pub fn settle(egraph: &mut EGraph, m: &mut Match, limit: usize) -> Result<(), Reject> {
    for virtual_sum in std::mem::take(&mut m.virtual_sums) {
        let sum = chain(egraph, virtual_sum.head, &virtual_sum.parts, None, limit)?;
        match virtual_sum.target {
            Target::Variable(v) => {
                if let Some(binding) = m.bindings.get_mut(v.index()) {
                    *binding = Binding::Class(sum);
                }
            }
            Target::Root { rest, named } => {
                let whole = chain(egraph, virtual_sum.head, &rest, Some(sum), limit)?;
                let Some(root) = m.roots.first_mut() else { continue };
                if let Some(why) = conflict(egraph, whole, *root) {
                    return Err(ill_typed(format!("a sum in another association is of another type: {why}")));
                }
                egraph.union(*root, whole);
                *root = sum;
                for v in named {
                    if let Some(binding) = m.bindings.get_mut(v.index()) {
                        *binding = Binding::Class(sum);
                    }
                }
            }
        }
    }
    Ok(())
}

/// The sum of these classes, associated to the left.
fn chain(egraph: &mut EGraph, head: ScalarId, parts: &[Id], first: Option<Id>, limit: usize) -> Result<Id, Reject> {
    let mut sum = first;
    for part in parts {
        let part = egraph.find(*part);
        sum = Some(match sum {
            None => part,
            Some(sum) => {
                let sum = egraph.find(sum);
                add_checked(egraph, Node::new(Payload::Scalar(head), [sum, part]), limit)?
            }
        });
    }
    sum.ok_or_else(|| ill_typed("a sum has no terms"))
}

pub(super) fn ill_typed(message: impl Into<String>) -> Reject {
    Reject::Type(message.into())
}

/// Adds a node after type-checking it, within the limit.
pub(super) fn add_checked(egraph: &mut EGraph, node: Node, limit: usize) -> Result<Id, Reject> {
    if let Some(id) = egraph.lookup(node.clone()) {
        return Ok(id);
    }
    if egraph.total_size() >= limit {
        return Err(Reject::Budget);
    }
    let checked = match node.payload {
        Payload::Absent | Payload::Acc => Ok(()),
        p if is_term(p) => term_kind(egraph, &node).map(drop),
        _ => node_types(egraph, &node).map(drop),
    };
    checked.map_err(Reject::Type)?;
    Ok(egraph.add(node))
}

/// Builds the right side of a checked match and merges it with the left side. The e-graph may grow
/// to `limit` nodes.
pub fn apply(egraph: &mut EGraph, rule: &Rule, terms: bool, m: &Match, limit: usize) -> Result<Applied, Reject> {
    let mut ids = Vec::with_capacity(rule.rhs.len());
    let mut built = Vec::new();
    for (build, root) in rule.rhs.iter().zip(&m.roots) {
        let mut builder = Builder::of_rule(egraph, m, rule, limit);
        let id = if terms { build_term(&mut builder, build)?.root } else { builder.root(build, *root)? };
        built.extend(builder.last);
        ids.push(id);
    }
    for (id, root) in ids.iter().zip(&m.roots) {
        if rounded_apart(egraph, *id, *root) {
            return Ok(Applied::default());
        }
        if let Some(why) = conflict(egraph, *id, *root) {
            return Err(Reject::Type(format!("its two sides differ: {why}")));
        }
    }
    let mut changed = false;
    for (id, root) in ids.iter().zip(&m.roots) {
        changed |= egraph.union(*root, *id);
    }
    Ok(Applied { changed, built })
}

/// True if the pattern is that op.
pub fn implements(pattern: &Pat, op: OpId) -> bool {
    match pattern {
        Pat::Node(n) => n.head == Head::Op(op),
        Pat::Bind(_, p) | Pat::Typed(p, _) => implements(p, op),
        Pat::OneOf(ps) => ps.iter().any(|p| implements(p, op)),
        _ => false,
    }
}
