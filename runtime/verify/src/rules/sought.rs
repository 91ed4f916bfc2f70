//! Instances that are sought rather than left to chance.
//!
//! In: a rule that held on all instances so far. Out: the first failure, or none. Invariant: every
//! kind of instance that is known and was not tried yet is tried: axes without elements, operands
//! that broadcast, axes of different sizes, combinations of element types, neighbouring numbers
//! where a type of fewer digits or a step is near, the ends of the types' ranges, and sizes beyond
//! the range of a type that counts or indexes.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use hypatia_dsl::ir::AttrValue;
use hypatia_graph::{Graph, Node};

use super::goals::{VERY_LONG, clamps_differ};
use super::*;
use crate::generate::{Sizes, apart};
use crate::sides::Sides;

/// Attempts for each kind.
const TRIES: u64 = 150;
/// The limit of instances for each kind.
pub(super) const MOST: usize = 24;
/// Pairs of axes that had the same size in all instances.
const PAIRS: usize = 24;
/// Instances of each combination of element types.
const FEWEST_OF_TYPES: usize = 3;
/// The limit of the elements of all values of an instance.
const WORK_OF_ONE: usize = 1 << 19;
/// The same of both sides with the bodies of their ops, where axes are very long.
const WORK_OF_SIDES: usize = 1 << 21;
/// What an instance shows that others may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Aspect {
    /// Which axes of which operands have no elements.
    Empty,
    /// Which operands broadcast, and how.
    Broadcast,
    /// The element types of all values.
    Types,
    /// The numbers, not the shapes.
    Numbers,
    /// Constants near the ends of the range, not the shapes.
    Constants,
    /// Numbers around the ends of ranges.
    Ends,
    /// Numbers around steps of functions.
    Steps,
    /// Numbers that are neighbours of each other.
    Twins,
    /// Numbers of few bits, in that type.
    FewBits(DType),
    /// An axis has different sizes in two operands.
    Unequal((VarId, VarId, usize)),
    /// Which axes are long.
    Long(i64),
    /// Integers of that type next to a power of two.
    Neighbours(DType),
    /// Numbers of that type whose quotients lie between two neighbours of a narrower type.
    Halfway(DType),
    /// Indices of that type, of the last places of axes that are so long.
    LastPlaces(DType, i64),
    /// Constants at the ends of what guards allow, in that type.
    Bounds(DType),
    /// Attributes beyond the usual ones, with operands of that type.
    Attributes(DType),
    /// Views that exchange axes around another one.
    Around,
    /// Numbers of that type that a clamp or a branch of one side treats apart.
    Clamps(DType),
    /// Numbers of that type whose sums and products leave its range.
    Overflows(DType),
    /// Numbers beyond those of the rule and between them.
    Levels,
    /// Numbers of one sign: of many, chance makes some of either.
    OneSign,
    /// Nothing but one infinity, in that type.
    Infinities(DType),
    /// Tensors of that type that a mask hides as a whole, or in part.
    Hidden(DType),
    /// Reshapes to factors of this size.
    Factors,
}

impl Aspect {
    /// True if instances count by what they were made for, not by what chance gave them.
    fn is_made(self) -> bool {
        !matches!(self, Aspect::Empty | Aspect::Broadcast | Aspect::Types)
    }
}

impl Aspect {
    fn is_very_long(self) -> bool {
        matches!(self, Aspect::Long(n) if n >= VERY_LONG)
    }

    /// Something to add to the seed, so that goals for several types try different shapes.
    fn salt(self) -> u64 {
        let (kind, dtype) = match self {
            Aspect::Neighbours(dtype) => (1, dtype),
            Aspect::Halfway(dtype) => (2, dtype),
            Aspect::LastPlaces(dtype, size) => (size as u64, dtype),
            Aspect::Bounds(dtype) => (3, dtype),
            Aspect::Attributes(dtype) => (4, dtype),
            Aspect::Clamps(dtype) => (5, dtype),
            Aspect::Overflows(dtype) => (6, dtype),
            Aspect::Infinities(dtype) => (7, dtype),
            Aspect::Hidden(dtype) => (8, dtype),
            _ => return 0,
        };
        (kind << 8 | dtype as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// A number for what the instance shows of it; none if that is nothing.
    pub(super) fn of(self, made: &Instance) -> Option<u64> {
        let mut hasher = DefaultHasher::new();
        let axes = |v: &Value| made.graph.ty(*v).shape.iter().map(|d| d.as_const().unwrap_or(0)).collect::<Vec<i64>>();
        let leaf = |n: &Node| matches!(n.kind, NodeKind::Input { .. } | NodeKind::Const(_));
        let first = |i: usize| Value { node: hypatia_graph::NodeId(i as u32), output: 0 };
        let places = 0..made.graph.nodes.len();
        let leaves: Vec<Vec<i64>> = places.filter(|i| leaf(&made.graph.nodes[*i])).map(|i| axes(&first(i))).collect();
        let roots: Vec<Vec<i64>> = made.left.iter().map(axes).collect();
        let marked = |shapes: &[Vec<i64>], n: i64| -> Vec<Vec<bool>> {
            shapes.iter().map(|s| s.iter().map(|d| *d == n).collect()).collect()
        };
        match self {
            Aspect::Empty => {
                let empty = leaves.iter().flatten().any(|d| *d == 0);
                let moderate = !matches!(made.distribution, Distribution::Extreme | Distribution::Large);
                (marked(&leaves, 0), marked(&roots, 0)).hash(&mut hasher);
                (empty && moderate).then(|| hasher.finish())
            }
            Aspect::Broadcast => {
                let functions = made.graph.nodes.iter().filter(|n| matches!(n.kind, NodeKind::Scalar(_)));
                let mut some = false;
                for node in functions.filter(|n| n.operands.len() > 1) {
                    let operands: Vec<Vec<i64>> = node.operands.iter().flatten().map(axes).collect();
                    some |= operands.iter().any(|o| *o != operands[0]);
                    let result: Vec<i64> = node.results[0].shape.iter().map(|d| d.as_const().unwrap_or(0)).collect();
                    for operand in operands {
                        let kind = |(d, r): (&i64, &i64)| (*d == 1, *r == 1);
                        let kinds: Vec<_> = operand.iter().rev().zip(result.iter().rev()).map(kind).collect();
                        (kinds, result.len()).hash(&mut hasher);
                    }
                }
                some.then(|| hasher.finish())
            }
            Aspect::Types => {
                let types = made.graph.nodes.iter().flat_map(|n| &n.results).map(|t| t.dtype as u8);
                types.collect::<Vec<u8>>().hash(&mut hasher);
                Some(hasher.finish())
            }
            Aspect::Numbers | Aspect::Constants | Aspect::Ends | Aspect::Steps | Aspect::Twins => Some(0),
            Aspect::FewBits(_) | Aspect::Neighbours(_) | Aspect::Halfway(_) | Aspect::LastPlaces(..) => Some(0),
            Aspect::Bounds(_) | Aspect::Attributes(_) | Aspect::Around => Some(0),
            Aspect::Clamps(_) | Aspect::Overflows(_) | Aspect::Levels => Some(0),
            Aspect::Infinities(_) | Aspect::Hidden(_) | Aspect::Factors | Aspect::OneSign => Some(0),
            Aspect::Unequal(pair) => apart(&made.graph, &made.env, pair).then_some(0),
            Aspect::Long(n) => {
                let long = marked(&leaves, n);
                let any = long.iter().flatten().chain(marked(&roots, n).iter().flatten()).any(|l| *l);
                let any = any || made.graph.nodes.iter().any(|node| names_size(node, n));
                (long, marked(&roots, n), made.distribution.name()).hash(&mut hasher);
                any.then(|| hasher.finish())
            }
        }
    }
}

/// A kind of instances.
pub(super) struct Goal {
    pub(super) aspect: Aspect,
    /// Instances of what is the same in that respect, and of all together.
    pub(super) each: usize,
    pub(super) most: usize,
    pub(super) tries: u64,
    pub(super) focus: fn(Aspect, u64) -> Focus,
}

pub(super) fn goal(aspect: Aspect, each: usize, most: usize, focus: fn(Aspect, u64) -> Focus) -> Goal {
    Goal { aspect, each, most, tries: TRIES, focus }
}

impl Run<'_> {
    /// Tries what chance left out; returns the number of instances.
    pub(super) fn sought(&mut self, options: &Options) -> usize {
        if self.full == 0 || self.strict || self.rule.derived {
            return 0;
        }
        let around = goal(Aspect::Around, MOST, MOST, |_, _| Focus { sizes: Sizes::Around, ..Focus::default() });
        if !self.any_shape.is_empty() {
            return if self.reshapes() { self.seek(&around, options) } else { 0 };
        }
        let both: Vec<Sides> = self.kept.iter().filter_map(|i| sides(self.rule, i).ok()).collect();
        let clamped = both.iter().any(clamps_differ);
        let graphs: Vec<Graph> = both.into_iter().map(|s| s.graph).collect();
        let mut goals = vec![
            goal(Aspect::Empty, 1, MOST, |_, _| Focus {
                sizes: Sizes::AlsoEmpty,
                distribution: Some(Distribution::Ordinary),
                ..Focus::default()
            }),
            goal(Aspect::Broadcast, 1, MOST, |_, _| Focus { sizes: Sizes::AlsoOne, ..Focus::default() }),
            goal(Aspect::Types, FEWEST_OF_TYPES, 2 * MOST, |_, _| Focus::default()),
        ];
        goals.extend(self.goals_of_values(&graphs));
        goals.extend(self.goals_of_magnitudes(&graphs, clamped));
        goals.extend(self.goals_of_sizes(&graphs[..graphs.len().min(MOST)]));
        goals.extend(self.goals_of_choices());
        goals.extend(self.goal_of_factors());
        goals.extend(self.reshapes().then_some(around));
        let mut cases = 0;
        for goal in goals {
            cases += self.seek(&goal, options);
            if self.first.is_some() {
                break;
            }
        }
        cases
    }

    fn seek(&mut self, goal: &Goal, options: &Options) -> usize {
        let seed = seed_of(options, &self.rule.name)
            .wrapping_mul(31)
            .wrapping_add(goal.tries)
            .wrapping_add(goal.aspect.salt());
        let mut cases = 0;
        for attempt in 0..goal.tries {
            if cases >= goal.most {
                break;
            }
            let mut source = Source::random(seed.wrapping_add(attempt << 12));
            let focus = (goal.focus)(goal.aspect, attempt);
            let Ok(made) = self.focused(&mut source, true, focus) else { continue };
            let work: usize = made.graph.nodes.iter().flat_map(|n| &n.results).map(elements).sum();
            let limit = if goal.aspect.is_very_long() { WORK_OF_SIDES } else { WORK_OF_ONE };
            let Some(shown) = goal.aspect.of(&made).filter(|_| work <= limit) else { continue };
            if goal.aspect.is_very_long() && self.is_costly(&made) {
                continue;
            }
            if self.shown.get(&(goal.aspect, shown)).is_some_and(|n| *n >= goal.each) {
                continue;
            }
            let Ok(seen) = observe(self.rule, &made) else { continue };
            // The optimiser does not apply it there.
            if !self.any_shape.is_empty() && (seen.broken.is_some() || seen.no_body.is_some()) {
                continue;
            }
            // Few instances of another type say nothing about it.
            if seen.no_meaning.is_some() || !seen.dtype.is_some_and(|d| self.seen.contains_key(&d)) {
                continue;
            }
            cases += 1;
            if goal.aspect.is_made() {
                *self.shown.entry((goal.aspect, shown)).or_default() += 1;
            }
            let dtype = self.add(&made, &seen);
            if let Some((failure, _)) = seen.against(claim(self.rule, dtype)) {
                self.first = Some((source.into_choices(), failure));
                self.focus = focus;
                break;
            }
        }
        cases
    }

    /// Whether the right side, or a body, makes much more of an instance's axes.
    fn is_costly(&self, made: &Instance) -> bool {
        let Ok(sides) = sides(self.rule, made) else { return false };
        let inner = sides.graph.inlined();
        let graph = inner.as_ref().unwrap_or(&sides.graph);
        graph.nodes.iter().flat_map(|n| &n.results).map(elements).sum::<usize>() > WORK_OF_SIDES
    }

    /// Axes of operands of one rank that had one size in all instances.
    pub(super) fn equal_sizes(&self) -> Vec<(VarId, VarId, usize)> {
        let leaf =
            |i: &Instance, v: &Value| matches!(i.graph.node(v.node).kind, NodeKind::Input { .. } | NodeKind::Const(_));
        let mut pairs: BTreeSet<(VarId, VarId, usize)> = BTreeSet::new();
        for made in &self.kept {
            let leaves: Vec<(VarId, usize)> = made
                .env
                .tensors
                .iter()
                .filter(|(_, v)| leaf(made, v))
                .map(|(id, v)| (*id, made.graph.ty(*v).shape.len()))
                .collect();
            for (a, rank) in &leaves {
                for (b, _) in leaves.iter().filter(|(b, other)| b > a && other == rank) {
                    pairs.extend((0..*rank).map(|axis| (*a, *b, axis)));
                }
            }
        }
        pairs.retain(|pair| !self.kept.iter().any(|i| apart(&i.graph, &i.env, *pair)));
        pairs.into_iter().take(PAIRS).collect()
    }

    /// Records what an instance shows, for each respect in which chance may leave something out.
    pub(super) fn record(&mut self, made: &Instance) {
        for aspect in [Aspect::Empty, Aspect::Broadcast, Aspect::Types] {
            if let Some(shown) = aspect.of(made) {
                *self.shown.entry((aspect, shown)).or_default() += 1;
            }
        }
    }
}

/// Whether an attribute of a node is that size, or a list with it.
fn names_size(node: &Node, n: i64) -> bool {
    let is = |v: &AttrValue| match v {
        AttrValue::Dim(d) => d.as_const() == Some(n),
        AttrValue::Float(v) => *v == n as f64,
        _ => false,
    };
    let NodeKind::Op { attrs, .. } = &node.kind else { return false };
    attrs.iter().any(|a| is(a) || matches!(a, AttrValue::List(l) if l.iter().any(is)))
}
