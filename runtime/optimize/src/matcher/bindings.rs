//! Bindings of a match, and the comparisons that matching uses.
//!
//! In: classes and attributes. Out: facts about the bindings of a match, for guards, and whether a
//! value is the one that a pattern asks for. Invariant: a reported fact stays true as the e-graph
//! grows.

use std::hash::{Hash, Hasher};

use egg::Id;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrType, AttrValue, DeviceFact, Fact, InView, ParamKind, VarId};
use hypatia_dsl::shape::{Dim, product};
use hypatia_dsl::typing::{Bindings, Facts, TensorType};
use hypatia_graph::device_fact;
use rustc_hash::{FxHashSet, FxHasher};

use super::super::analysis::EGraph;
use super::super::analysis::{Sort, class_type};
use super::super::candidate::Candidate;
use super::super::language::{Node, Payload};
use super::{Region, Target, VirtualSum};
use hypatia_target::device::Device;

/// The binding of a variable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum Binding {
    /// Not bound yet; always so for attribute variables, whose values are in [`Match::values`].
    #[default]
    Unbound,
    /// A class.
    Class(Id),
    /// Variadic operands.
    Classes(Vec<Id>),
    /// An absent optional operand.
    Absent,
    /// Pointwise work.
    Region(Box<Region>),
}

impl Binding {
    /// Absent, if it is not bound once the whole pattern has matched.
    pub fn or_absent(self) -> Binding {
        if self == Binding::Unbound { Binding::Absent } else { self }
    }
}

/// A match of the left side.
#[derive(Clone, Debug)]
pub struct Match {
    /// The class of each root.
    pub roots: Vec<Id>,
    /// By variable.
    pub bindings: Vec<Binding>,
    /// Attributes, sizes, shapes and dtypes.
    pub values: Bindings,
    /// The nodes that the pattern's applications matched.
    pub nodes: Vec<Node>,
    /// Sums that the match needs, built when it is applied.
    pub virtual_sums: Vec<VirtualSum>,
}

impl Match {
    /// The class that a variable is bound to.
    pub fn class(&self, var: VarId) -> Option<Id> {
        match self.bindings.get(var.index())? {
            Binding::Class(id) => Some(*id),
            _ => None,
        }
    }

    /// A hash that is equal for equal matches.
    pub fn fingerprint(&self, egraph: &EGraph) -> u64 {
        let mut h = FxHasher::default();
        for r in &self.roots {
            egraph.find(*r).hash(&mut h);
        }
        for s in &self.bindings {
            match s {
                Binding::Class(id) => egraph.find(*id).hash(&mut h),
                Binding::Classes(ids) => ids.iter().for_each(|i| egraph.find(*i).hash(&mut h)),
                other => other.hash(&mut h),
            }
        }
        let mut values: Vec<_> = self.values.values.iter().collect();
        values.sort_by_key(|(v, _)| **v);
        for (var, value) in values {
            var.hash(&mut h);
            value.hash(&mut h);
        }
        for p in &self.virtual_sums {
            p.head.hash(&mut h);
            p.operands.iter().for_each(|id| egraph.find(*id).hash(&mut h));
            if let Target::Root { rest, .. } = &p.target {
                rest.iter().for_each(|id| egraph.find(*id).hash(&mut h));
            }
        }
        h.finish()
    }
}

/// Facts about the bindings of a match, for guards.
pub struct MatchFacts<'a> {
    /// The e-graph.
    pub egraph: &'a EGraph,
    /// The bindings of the variables.
    pub bindings: &'a [Binding],
    /// The device, if there is one.
    pub device: Option<&'a Device>,
    /// The candidate, on which uses are counted.
    pub candidate: &'a Candidate,
}

impl MatchFacts<'_> {
    /// The consumers of a class outside of the pointwise work that the match binds. Without a
    /// candidate, as under `egg`'s own runner, all users in the e-graph count.
    fn uses(&self, class: Id) -> Option<i64> {
        let all = match self.candidate.is_none() {
            true => self.egraph[class].parents().map(|p| self.egraph.find(p)).collect::<FxHashSet<Id>>().len() as i64,
            false => i64::from(self.candidate.uses(class)?),
        };
        let inside = self.bindings.iter().map(|b| match b {
            Binding::Region(region) => region.consumers(self.egraph, class) as i64,
            _ => 0,
        });
        Some((all - inside.sum::<i64>()).max(0))
    }
}

impl Facts for MatchFacts<'_> {
    fn fact(&self, fact: Fact, var: VarId) -> Option<AttrValue> {
        let id = match self.bindings.get(var.index())? {
            Binding::Class(id) => *id,
            Binding::Classes(ids) if fact == Fact::Count => return Some(AttrValue::Dim(Dim::from(ids.len() as i64))),
            Binding::Classes(ids) if fact == Fact::Shapes => {
                let shapes = ids.iter().map(|id| class_fact(self.egraph, Fact::Shape, *id));
                return shapes.collect::<Option<_>>().map(AttrValue::List);
            }
            Binding::Absent if fact == Fact::Present => return Some(AttrValue::Bool(false)),
            _ => return None,
        };
        match fact {
            Fact::Uses => Some(AttrValue::Dim(Dim::from(self.uses(self.egraph.find(id))?))),
            _ => class_fact(self.egraph, fact, id),
        }
    }

    fn same_accumulator(&self, t: VarId, a: VarId, b: VarId) -> Option<bool> {
        let class = |v: VarId| match self.bindings.get(v.index()) {
            Some(Binding::Class(id)) => Some(self.egraph.find(*id)),
            _ => None,
        };
        let (t, a, b) = (class(t)?, class(a)?, class(b)?);
        let program = &self.egraph.analysis.program;
        Some(self.egraph[t].nodes.iter().any(|n| match n.payload {
            Payload::Op(op, _) if program.op(op).params.iter().any(|p| p.kind == ParamKind::Term) => {
                n.children.len() >= 2 && self.egraph.find(n.children[0]) == a && self.egraph.find(n.children[1]) == b
            }
            _ => false,
        }))
    }

    fn device(&self, fact: DeviceFact) -> Option<AttrValue> {
        device_fact(self.device?, fact)
    }
}

/// A fact of a class that does not depend on the candidate; `None` if unknown. A property not known
/// to hold for every element is unknown, not false: facts grow.
pub fn class_fact(egraph: &EGraph, fact: Fact, id: Id) -> Option<AttrValue> {
    let data = &egraph[id].data;
    let truth = |known: bool| known.then_some(AttrValue::Bool(true));
    match fact {
        Fact::Const => return Some(AttrValue::Bool(data.constant)),
        Fact::Value => return data.value().map(AttrValue::Float),
        Fact::Uniform => return uniform(egraph, id).map(AttrValue::Bool),
        Fact::NonNegative => return truth(data.facts.nonneg),
        Fact::Positive => return truth(data.facts.positive),
        Fact::Finite => return truth(data.facts.finite),
        Fact::Present => return Some(AttrValue::Bool(data.sort != Sort::Absent)),
        _ => {}
    }
    match data.sort {
        // A term has the shape of its reads, broadcast.
        Sort::Term(_) => shape_fact(fact, egraph.analysis.shape(data.reads)?),
        _ => {
            let ty = class_type(egraph, id)?;
            if fact == Fact::DType { Some(AttrValue::DType(ty.dtype)) } else { shape_fact(fact, &ty.shape) }
        }
    }
}

/// A fact that follows from the shape alone.
fn shape_fact(fact: Fact, shape: &[Dim]) -> Option<AttrValue> {
    match fact {
        Fact::Shape => Some(AttrValue::List(shape.iter().cloned().map(AttrValue::Dim).collect())),
        Fact::Rank => Some(AttrValue::Dim(Dim::from(shape.len() as i64))),
        Fact::Numel => product(shape).map(AttrValue::Dim),
        _ => None,
    }
}

/// Whether all elements of a constant are equal, if they are known: a constant is a leaf only if
/// they differ.
fn uniform(egraph: &EGraph, id: Id) -> Option<bool> {
    if egraph[id].data.value().is_some() {
        return Some(true);
    }
    let ty = class_type(egraph, id)?;
    if !ty.dtype.is_float() || ty.shape.iter().any(|d| d.as_const().is_none_or(|c| c == 0)) {
        return None;
    }
    let leaf = |n: &Node| matches!(n.payload, Payload::Leaf(l) if egraph.analysis.leaf(l).constant);
    egraph[id].nodes.iter().any(leaf).then_some(false)
}

/// The integer of an attribute, if it is known.
fn as_int(v: &AttrValue) -> Option<i64> {
    match v {
        AttrValue::Dim(d) => d.as_const(),
        _ => None,
    }
}

/// An attribute value normalised as in graphs: non-negative axes, and numbers where numbers are
/// expected.
pub fn normal_attr(ty: AttrType, value: AttrValue, rank: Option<usize>) -> AttrValue {
    match (ty, value) {
        (AttrType::Axis, AttrValue::Dim(d)) => match (d.as_const(), rank) {
            (Some(a), Some(r)) if a < 0 => AttrValue::Dim(Dim::from(a + r as i64)),
            _ => AttrValue::Dim(d),
        },
        (AttrType::Axes, AttrValue::List(l)) => {
            // A list of axes is a set: graphs keep it sorted.
            let mut l: Vec<AttrValue> = l.into_iter().map(|v| normal_attr(AttrType::Axis, v, rank)).collect();
            l.sort_by_key(|v| as_int(v).unwrap_or(i64::MAX));
            AttrValue::List(l)
        }
        (AttrType::Float, AttrValue::Dim(d)) => match d.as_const() {
            Some(c) => AttrValue::Float(c as f64),
            None => AttrValue::Dim(d),
        },
        (AttrType::Floats, AttrValue::List(l)) => {
            AttrValue::List(l.into_iter().map(|v| normal_attr(AttrType::Float, v, None)).collect())
        }
        (_, value) => value,
    }
}

/// Whether an attribute of a graph equals the value that a pattern asks for. Models store numbers
/// in f32, so the nearest f32 of a number matches too. `None` if the sizes cannot be compared.
pub fn attr_equal(have: &AttrValue, want: &AttrValue) -> Option<bool> {
    match (have, want) {
        (AttrValue::Dim(a), AttrValue::Dim(b)) => a.known_eq(b),
        (AttrValue::Float(a), AttrValue::Float(b)) => {
            let bits = |v: f64| v.to_bits();
            Some(bits(*a) == bits(*b) || bits(*a) == bits(*b as f32 as f64))
        }
        (AttrValue::List(a), AttrValue::List(b)) if a.len() == b.len() => {
            let mut all = Some(true);
            for (x, y) in a.iter().zip(b) {
                match attr_equal(x, y) {
                    Some(false) => return Some(false),
                    None => all = None,
                    Some(true) => {}
                }
            }
            all
        }
        (AttrValue::List(_), AttrValue::List(_)) => Some(false),
        (a, b) => Some(a == b),
    }
}

/// Whether a constant is the number that a pattern asks for. An integer type must hold the number
/// exactly: 0.5 is not rounded to an integer.
pub fn literal_matches(have: f64, dtype: Option<DType>, want: f64, near: Option<f64>) -> bool {
    let bits = |v: f64| v.to_bits();
    let equal = match dtype {
        Some(t) if !t.is_float() => {
            if t.round(want) != want {
                return false;
            }
            have == want
        }
        Some(t) => bits(have) == bits(t.round(want)),
        // Inside a term, a number was rounded to the dtype of its tensor, or not at all.
        None => bits(have) == bits(want) || bits(have) == bits(DType::F32.round(want)),
    };
    equal || near.is_some_and(|tol| (have - want).abs() <= tol * want.abs())
}

/// Whether a tensor that is read as `have` can be read as `want` by a result of that shape.
pub fn view_fits(want: InView, have: InView, t: &TensorType, out: &[Dim]) -> bool {
    if !matches!(have, InView::Broadcast | InView::Full) {
        return false;
    }
    let one = Dim::from(1);
    let Some((last, before)) = t.shape.split_last() else { return false };
    match want {
        InView::Full => t.shape == out,
        InView::Row => out.last() == Some(last) && before.iter().all(|d| *d == one),
        InView::Col => *last == one && out.split_last().is_some_and(|(_, rows)| rows == before),
        InView::Broadcast => true,
    }
}
