//! Instances that are sought rather than left to chance.
//!
//! In: a rule that held on all instances so far. Out: the first failure, or none. Invariant: every
//! kind of instance that is known and was not tried yet is tried: axes without elements, operands
//! that broadcast, axes of different sizes, combinations of element types, neighbouring numbers
//! where a type of fewer digits or a step is near, the ends of the types' ranges, and sizes beyond
//! the range of a type that counts or indexes.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::ir::{AttrValue, OpBody, ScalarBody, ScalarId};
use hypatia_dsl::scalar::TermNode;
use hypatia_graph::{Graph, Node};

use super::*;
use crate::generate::{Sizes, apart};
use crate::values::{Ensemble, TWINS};

/// Attempts for each kind, and for each size.
const TRIES: u64 = 150;
const TRIES_OF_A_SIZE: u64 = 240;
/// The limit of instances for each kind.
const MOST: usize = 24;
/// Instances with numbers around steps, and with numbers that are neighbours of each other.
const STEPS: usize = 2 * TWINS.len();
/// Pairs of axes that had the same size in all instances, attempts at each to make them differ, and
/// instances in which they do.
const PAIRS: usize = 24;
const TRIES_OF_A_PAIR: u64 = 12;
const MOST_ATTEMPTS: usize = 100;
const FEWEST_OF_A_PAIR: usize = 3;
/// Sizes that the rule names and that are beyond the range of a type.
const NAMED: usize = 4;
/// Instances of each combination of element types.
const FEWEST_OF_TYPES: usize = 3;
/// The limit of the elements of all values of an instance.
const WORK_OF_ONE: usize = 1 << 19;
/// Powers of two around which neighbours lie: the digits of bf16, f16, f32 and f64, and the ends of
/// integer types.
const POWERS: [u8; 5] = [8, 11, 24, 53, 63];
/// With integers of 8 bits, such a sum of products leaves the integers that f32 holds.
const LONG_PRODUCT: i64 = 2100;

/// With so many positions, a product of one with 2^20 leaves 32 bits.
const LONG_POSITIONS: i64 = 4096;

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
}

impl Aspect {
    /// True if instances count by what they were made for, not by what chance gave them.
    fn is_made(self) -> bool {
        !matches!(self, Aspect::Empty | Aspect::Broadcast | Aspect::Types)
    }
}

impl Aspect {
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
            Aspect::FewBits(_) => Some(0),
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
struct Goal {
    aspect: Aspect,
    /// Instances of what is the same in that respect, and of all together.
    each: usize,
    most: usize,
    tries: u64,
    focus: fn(Aspect, u64) -> Focus,
}

fn goal(aspect: Aspect, each: usize, most: usize, focus: fn(Aspect, u64) -> Focus) -> Goal {
    Goal { aspect, each, most, tries: TRIES, focus }
}

impl Run<'_> {
    /// Tries what chance left out; returns the number of instances.
    pub(super) fn sought(&mut self, options: &Options) -> usize {
        if self.full == 0 || self.strict || self.rule.derived || !self.any_shape.is_empty() {
            return 0;
        }
        let graphs: Vec<Graph> =
            self.kept.iter().take(MOST).filter_map(|i| sides(self.rule, i).ok()).map(|s| s.graph).collect();
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
        goals.extend(self.goals_of_sizes(&graphs));
        let mut cases = 0;
        for goal in goals {
            cases += self.seek(&goal, options);
            if self.first.is_some() {
                break;
            }
        }
        cases
    }

    /// Kinds of numbers that may make a difference in these graphs.
    fn goals_of_values(&self, graphs: &[Graph]) -> Vec<Goal> {
        let mut goals = Vec::new();
        if graphs.iter().any(rounds_to_whole) {
            goals.push(goal(Aspect::Numbers, 3 * POWERS.len(), 3 * POWERS.len(), |_, attempt| Focus {
                distribution: Some(Distribution::Neighbours(POWERS[attempt as usize % POWERS.len()])),
                ..Focus::default()
            }));
        }
        if graphs.iter().any(casts) {
            let focus = |_, _| Focus { distribution: Some(Distribution::Ends), ..Focus::default() };
            goals.push(goal(Aspect::Ends, 2 * MOST, 2 * MOST, focus));
        }
        if graphs.iter().any(has_steps) {
            let focus = |_, _| Focus { distribution: Some(Distribution::Halves), ..Focus::default() };
            goals.push(goal(Aspect::Steps, STEPS, STEPS, focus));
            let focus = |_, attempt| Focus {
                distribution: Some(Distribution::Twins((attempt % TWINS.len() as u64) as u8)),
                ..Focus::default()
            };
            goals.push(goal(Aspect::Twins, STEPS, STEPS, focus));
        }
        // Integers wrap in the middle of their range; numbers of few bits lie halfway between those
        // of a narrower type, and the smallest have no half.
        for dtype in self.exact_types(graphs) {
            let focus = |aspect, attempt: u64| match aspect {
                Aspect::FewBits(dtype) => {
                    let distribution = Some(Distribution::FewBits(u8::from(attempt.is_multiple_of(3))));
                    Focus { dtype: Some(dtype), distribution, ..Focus::default() }
                }
                _ => Focus::default(),
            };
            let most = if dtype.is_float() { MOST } else { 2 * MOST };
            goals.push(goal(Aspect::FewBits(dtype), most, most, focus));
        }
        if self.hints.folds() {
            let focus = |_, _| Focus { distribution: Some(Distribution::Far), ..Focus::default() };
            goals.push(goal(Aspect::Constants, 2 * MOST, 2 * MOST, focus));
        }
        goals
    }

    /// The types whose numbers decide about a result that is claimed to have the same bits.
    fn exact_types(&self, graphs: &[Graph]) -> BTreeSet<DType> {
        let strict = |dtype: DType| matches!(claim(self.rule, dtype), Class::Exact | Class::Finite);
        // Comparisons give truth values.
        let compared = self.seen.contains_key(&DType::Bool) && strict(DType::Bool);
        let computed = graphs.iter().flat_map(|g| &g.nodes).filter(|n| computes(n));
        let read = graphs.iter().flat_map(|g| g.nodes.iter().map(move |n| (g, n))).filter(|(_, n)| computes(n));
        let read = read.flat_map(|(g, n)| n.operands.iter().flatten().map(|v| g.ty(*v).dtype));
        let all: BTreeSet<DType> = computed.flat_map(|n| &n.results).map(|t| t.dtype).chain(read).collect();
        all.into_iter().filter(|d| *d != DType::Bool && (compared || strict(*d))).collect()
    }

    /// Sizes that may make a difference in these graphs.
    fn goals_of_sizes(&self, graphs: &[Graph]) -> Vec<Goal> {
        let mut goals = Vec::new();
        for pair in self.equal_sizes() {
            let focus = |aspect, _| match aspect {
                Aspect::Unequal(pair) => Focus { unequal: Some(pair), ..Focus::default() },
                _ => Focus::default(),
            };
            let n = FEWEST_OF_A_PAIR;
            // As many more as an instance takes at all.
            let (attempts, found) = self.attempts.get();
            let tries = TRIES_OF_A_PAIR * (attempts / found.max(1)).clamp(1, MOST_ATTEMPTS) as u64;
            goals.push(Goal { tries, ..goal(Aspect::Unequal(pair), n, n, focus) });
        }
        let named = &self.hints.constants.sizes;
        for size in graphs.iter().flat_map(|g| beyond(g, named)).collect::<BTreeSet<i64>>() {
            let focus = |aspect, attempt: u64| {
                let Aspect::Long(size) = aspect else { return Focus::default() };
                // Ties, sums without cancellation, distinct numbers, and the last place or all.
                let kinds = [
                    Distribution::Ordinary,
                    Distribution::Last(0),
                    Distribution::Neighbours(63),
                    Distribution::Last(2),
                    Distribution::Ensemble(Ensemble::Normal),
                    Distribution::Last(1),
                ];
                let distribution = Some(kinds[attempt as usize % kinds.len()]);
                // In types that chance seldom takes, and that hold few integers.
                let dtype = [None, Some(DType::I8), None, Some(DType::BF16), None][attempt as usize % 5];
                Focus { sizes: Sizes::Long(size), distribution, dtype, ..Focus::default() }
            };
            goals.push(Goal { tries: TRIES_OF_A_SIZE, ..goal(Aspect::Long(size), 6, 2 * MOST, focus) });
        }
        goals
    }

    fn seek(&mut self, goal: &Goal, options: &Options) -> usize {
        let seed = seed_of(options, &self.rule.name).wrapping_mul(31).wrapping_add(goal.tries);
        let mut cases = 0;
        for attempt in 0..goal.tries {
            if cases >= goal.most {
                break;
            }
            let mut source = Source::random(seed.wrapping_add(attempt << 12));
            let focus = (goal.focus)(goal.aspect, attempt);
            let Ok(made) = self.focused(&mut source, true, focus) else { continue };
            let work: usize = made.graph.nodes.iter().flat_map(|n| &n.results).map(elements).sum();
            let Some(shown) = goal.aspect.of(&made).filter(|_| work <= WORK_OF_ONE) else { continue };
            if self.shown.get(&(goal.aspect, shown)).is_some_and(|n| *n >= goal.each) {
                continue;
            }
            let Ok(seen) = observe(self.rule, &made) else { continue };
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

    /// Axes of operands of one rank that had one size in all instances.
    fn equal_sizes(&self) -> Vec<(VarId, VarId, usize)> {
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

/// Whether a node computes something, rather than moving it.
fn computes(node: &Node) -> bool {
    !matches!(node.kind, NodeKind::Input { .. } | NodeKind::Const(_))
}

/// Whether an attribute of a node is that size, or a list with it.
fn names_size(node: &Node, n: i64) -> bool {
    let is = |v: &AttrValue| matches!(v, AttrValue::Dim(d) if d.as_const() == Some(n));
    let NodeKind::Op { attrs, .. } = &node.kind else { return false };
    attrs.iter().any(|a| is(a) || matches!(a, AttrValue::List(l) if l.iter().any(is)))
}

/// Whether neighbouring numbers may make a difference: integers, truth values, casts.
fn rounds_to_whole(graph: &Graph) -> bool {
    let whole = |n: &Node| n.results.iter().any(|t| !t.dtype.is_float());
    graph.nodes.iter().any(|n| whole(n) || builtin(graph, n) == Some(BuiltinOp::Cast))
}

fn builtin(graph: &Graph, node: &Node) -> Option<BuiltinOp> {
    let NodeKind::Op { op, .. } = node.kind else { return None };
    match graph.program.op(op).body {
        OpBody::Builtin(b) => Some(b),
        OpBody::Defined(_) => None,
    }
}

/// Whether an element type is made from another one.
pub(super) fn casts(graph: &Graph) -> bool {
    graph.nodes.iter().any(|n| builtin(graph, n) == Some(BuiltinOp::Cast))
}

/// Whether a float decides about an integer or a truth value, or is rounded to an integer.
fn has_steps(graph: &Graph) -> bool {
    let float = |v: &Value| graph.ty(*v).dtype.is_float();
    graph.nodes.iter().any(|n| {
        let decides = n.results.iter().any(|t| !t.dtype.is_float()) && n.operands.iter().flatten().any(float);
        decides || matches!(n.kind, NodeKind::Scalar(s) if rounds(&graph.program, s))
    })
}

/// Whether a function rounds to an integer, or calls one that does.
fn rounds(program: &Program, scalar: ScalarId) -> bool {
    use BuiltinScalar::{Ceil, Floor, Round, Trunc};
    match &program.scalar(scalar).body {
        ScalarBody::Builtin(b) => matches!(b, Ceil | Floor | Round | Trunc),
        ScalarBody::Term(term) => {
            term.nodes.iter().any(|n| matches!(n, TermNode::Call { scalar, .. } if rounds(program, *scalar)))
        }
    }
}

/// Sizes for which positions, counts, indices or sums of integers leave the range of a type that
/// they pass: usual ones, and those that the rule names.
fn beyond(graph: &Graph, named: &[i64]) -> BTreeSet<i64> {
    let mut counts = vec![false; graph.nodes.len()];
    let mut sizes = BTreeSet::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        let Some(dtype) = node.results.first().map(|t| t.dtype) else { continue };
        let op = builtin(graph, node);
        let made = matches!(op, Some(BuiltinOp::Iota | BuiltinOp::Argmax | BuiltinOp::Argsort | BuiltinOp::Size));
        let operands = node.operands.iter().flatten();
        let through = operands.clone().any(|v| counts[v.node.index()]);
        counts[i] = made || through || !dtype.is_float();
        let sums =
            op.is_some_and(|b| b.multiplies() || matches!(b, BuiltinOp::Sum | BuiltinOp::Mean | BuiltinOp::Cumsum));
        // Indices that a narrow type computes.
        let indexes = matches!(
            op,
            Some(BuiltinOp::Gather | BuiltinOp::GatherElements | BuiltinOp::GatherNd | BuiltinOp::Scatter)
        );
        let index = node.operands.get(1).copied().flatten().map(|v| graph.ty(v).dtype);
        if indexes && matches!(index, Some(DType::I8 | DType::U8)) {
            sizes.extend(NARROW_INDEX);
        }
        // A size as a number: some products and quotients of it are rounded.
        if matches!(op, Some(BuiltinOp::Full | BuiltinOp::Size)) || (op == Some(BuiltinOp::Iota) && dtype.is_float()) {
            sizes.extend(ROUNDED);
            sizes.extend(first_beyond(dtype));
        }
        // Two axes of positions, of which each comparison is an element.
        if op == Some(BuiltinOp::Iota) && node.results.iter().any(|t| t.shape.len() > 1) {
            sizes.extend(first_beyond(dtype).filter(|n| *n < 300));
        }
        let wider = |v: &Value| range(graph.ty(*v).dtype) > range(dtype);
        let narrows = op == Some(BuiltinOp::Cast) && through && operands.clone().any(wider);
        if narrows || (sums && through) || op == Some(BuiltinOp::Iota) {
            sizes.extend(size_beyond(dtype));
            let outside = named.iter().filter(|n| size_beyond(dtype).is_some() && **n as f64 > range(dtype));
            sizes.extend(outside.take(NAMED));
        }
        if sums && through && dtype == DType::F32 {
            sizes.insert(LONG_PRODUCT);
        }
        // Positions that are multiplied in a narrow type leave its range.
        if through && made_narrow(graph, node, dtype) {
            sizes.insert(LONG_POSITIONS);
        }
    }
    sizes
}

/// Whether integers are multiplied in 32 bits.
fn made_narrow(graph: &Graph, node: &Node, dtype: DType) -> bool {
    let multiplies = |s: ScalarId| {
        let body = &graph.program.scalar(s).body;
        matches!(body, ScalarBody::Builtin(BuiltinScalar::Mul | BuiltinScalar::Pow))
    };
    dtype == DType::I32 && matches!(node.kind, NodeKind::Scalar(s) if multiplies(s))
}

/// The largest integer up to which a type holds all.
fn range(dtype: DType) -> f64 {
    match dtype {
        DType::Bool => 1.0,
        DType::I8 => i8::MAX.into(),
        DType::U8 => u8::MAX.into(),
        DType::I32 => i32::MAX.into(),
        DType::I64 => i64::MAX as f64,
        float => 2.0 / float.epsilon(),
    }
}

/// Sizes of axes whose places, or products of two of them, leave the range of 8 bits.
const NARROW_INDEX: [i64; 2] = [12, 200];

/// Sizes that are no small multiples of a power of two, whose quotients round either way.
const ROUNDED: [i64; 3] = [11, 22, 41];

/// The first size that a type does not hold, with an odd one.
fn first_beyond(dtype: DType) -> Option<i64> {
    match dtype {
        DType::I8 => Some(129),
        DType::U8 | DType::BF16 => Some(259),
        DType::F16 => Some(2051),
        _ => None,
    }
}

/// A size well beyond the integers that a narrow type holds: half of all positions are beyond them.
fn size_beyond(dtype: DType) -> Option<i64> {
    match dtype {
        DType::F8E5M2 => Some(20),
        DType::F8E4M3 => Some(40),
        // Sums of so many ones wrap around to 0.
        DType::I8 | DType::U8 | DType::BF16 => Some(512),
        DType::F16 => Some(5000),
        _ => None,
    }
}
