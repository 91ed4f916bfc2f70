//! Applies a match: adds the right side of a rule to the e-graph.
//!
//! In: a match. Out: new nodes, merged with the classes of the roots, or the reason for rejection.
//! Invariant: nothing is merged unless the rule's rounding class covers the dtype, every `requires`
//! is known to be true, every node that is built type-checks, both sides have the same type, and
//! folded constants keep their meaning in their element type (`range_loss`). The limit on the
//! e-graph's size is checked before every node.

mod builder;

use egg::Id;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AExpr, AttrValue, Head, OpId, Pat, Rule, RuleId, ScalarId, VarId};
use hypatia_dsl::numerics::Numerics;
use hypatia_dsl::typing;

use self::builder::Builder;
use super::analysis::EGraph;
use super::analysis::{Sort, class_type, conflict, is_term, node_types, rounded_apart, term_kind};
use super::candidate::Candidate;
use super::language::{Node, Payload};
use super::matcher::{Binding, Match, MatchFacts, Target};
use super::savings::{Claimed, Saving};
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
    /// A budget of the ruleset is spent.
    Budget,
}

/// The result of applying a match.
#[derive(Clone, Debug, Default)]
pub struct Applied {
    /// True if the e-graph changed.
    pub changed: bool,
    /// For each root that is not just a variable, the node built for it, as it was at that time.
    pub built: Vec<Node>,
    /// If the rule says what it saves, that, and the nodes that it built.
    pub saves: Option<(Claimed, Vec<Node>)>,
}

impl Applied {
    /// What the rule says that this application of it saves.
    pub fn saving(&self, rule: RuleId, m: &Match) -> Option<Saving> {
        let (claimed, made) = self.saves.clone()?;
        Some(Saving { rule, claimed, matched: m.nodes.clone(), made })
    }
}

/// Computes the `let`s of a match, and checks its rounding class and guards.
pub fn check(
    egraph: &EGraph,
    candidate: &Candidate,
    rule: &Rule,
    m: &mut Match,
    numerics: Numerics,
) -> Result<(), Reject> {
    for root in &m.roots {
        match egraph[*root].data.sort {
            Sort::Tensor(t) => {
                let dtype = egraph.analysis.ty(t).dtype;
                if !numerics.allows_rule(rule, dtype) {
                    return Err(Reject::Claim(dtype));
                }
            }
            // Terms are shared by products of all dtypes, and compute in f32 or f64.
            Sort::Term(_) => {
                for dtype in [DType::F32, DType::F64] {
                    if !numerics.allows_rule(rule, dtype) {
                        return Err(Reject::Claim(dtype));
                    }
                }
            }
            _ => return Err(Reject::Type("the root is no tensor".to_string())),
        }
    }
    if numerics == Numerics::Exact
        && rule.derived
        && let Some(dtype) = rounded_inside(egraph, m)
    {
        return Err(Reject::Claim(dtype));
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

/// An element type of a matched value that is narrower than what kernels compute it in: a kernel
/// for the whole would not round there.
fn rounded_inside(egraph: &EGraph, m: &Match) -> Option<DType> {
    let classes = m.nodes.iter().filter_map(|n| egraph.lookup(n.clone()));
    let types = classes.filter_map(|c| class_type(egraph, c)).map(|t| t.dtype);
    types.into_iter().find(|d| d.is_float() && d.compute() != *d)
}

/// Builds the sums that a match needs, and binds its variables and its root to them, so that the
/// match becomes one of the left side as written. A part of a longer sum gets a class of its own,
/// and the longer sum also becomes the sum of that class and the rest. The e-graph may grow to
/// `limit` nodes.
pub fn build_sums(egraph: &mut EGraph, m: &mut Match, limit: usize) -> Result<(), Reject> {
    for virtual_sum in std::mem::take(&mut m.virtual_sums) {
        let sum = chain(egraph, virtual_sum.head, &virtual_sum.operands, None, limit)?;
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
fn chain(egraph: &mut EGraph, head: ScalarId, operands: &[Id], first: Option<Id>, limit: usize) -> Result<Id, Reject> {
    let mut sum = first;
    for operand in operands {
        let operand = egraph.find(*operand);
        sum = Some(match sum {
            None => operand,
            Some(sum) => {
                let sum = egraph.find(sum);
                add_checked(egraph, Node::new(Payload::Scalar(head), [sum, operand]), limit)?
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
    let claimed = if terms { None } else { Claimed::of(egraph, rule, m) };
    let mut made = claimed.is_some().then(Vec::new);
    for (build, root) in rule.rhs.iter().zip(&m.roots) {
        let mut builder = Builder::of_rule(egraph, m, rule, limit);
        builder.made = made.take();
        let id = if terms { build_term(&mut builder, build)?.root } else { builder.root(build, *root)? };
        built.extend(builder.last);
        made = builder.made;
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
    Ok(Applied { changed, built, saves: claimed.zip(made) })
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
