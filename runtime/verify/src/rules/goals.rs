//! Which instances are sought for a rule.
//!
//! In: both sides of a rule as graphs. Out: goals, each with what its instances are made with.
//! Invariant: a goal is about a kind of hole that chance leaves (numbers, sizes, constants and
//! attributes), never about one rule.

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::ir::{AttrPat, Head, OpBody, ScalarBody, ScalarId, Sort};
use hypatia_dsl::scalar::TermNode;
use hypatia_graph::{Graph, Node};

use super::sought::{Aspect, Goal, MOST, goal};
use super::*;
use crate::check::infinities_compared;
use crate::constants::Constants;
use crate::generate::Sizes;
use crate::range::needed_for;
use crate::sides::Sides;
use crate::values::{Ensemble, NEGATIVE, TWINS, kinds_of_overflow, stands_for_another};

/// Attempts for each size.
const TRIES_OF_A_SIZE: u64 = 240;
/// Instances with numbers around steps, and with numbers that are neighbours of each other.
const STEPS: usize = 2 * TWINS.len();
/// Attempts at each pair of axes to make their sizes differ, and instances in which they do.
const TRIES_OF_A_PAIR: u64 = 12;
const MOST_ATTEMPTS: usize = 100;
const FEWEST_OF_A_PAIR: usize = 3;
/// Sizes that the rule names and that are beyond the range of a type.
const NAMED: usize = 4;
/// Powers of two around which neighbours lie: the digits of bf16, f16, f32 and f64, and the ends of
/// integer types.
const POWERS: [u8; 5] = [8, 11, 24, 53, 63];
/// With integers of 8 bits, such a sum of products leaves the integers that f32 holds, and such a
/// sum.
const LONG_PRODUCT: i64 = 2100;
const LONG_SUM: i64 = 140_001;
/// A sum of so many products of integers of 8 bits may leave 32 bits.
const LONG_BYTES: i64 = 33_026;

/// With so many positions, a product of one with 2^20 leaves 32 bits.
const LONG_POSITIONS: i64 = 4096;
/// With so many, their sum does, and their squares, and products with 21475.
const VERY_LONG_POSITIONS: [i64; 3] = [65_539, 46_351, 100_001];
/// Axes from this size on, and instances with them: with the same ones, and all together.
pub(super) const VERY_LONG: i64 = 20_000;
const EACH_VERY_LONG: usize = 2;
const MOST_VERY_LONG: usize = 8;
/// Instances with constants at the ends of what guards allow, and attempts at them.
const MOST_OF_BOUNDS: usize = 200;
const TRIES_OF_BOUNDS: u64 = 600;
/// Instances with neighbours of each other for each type, where only one side clamps.
const MOST_OF_CLAMPS: usize = TWINS.len();
/// Instances of each kind of numbers that overflow, and such kinds.
const FEWEST_OF_A_KIND: usize = 4;
const MOST_KINDS: usize = 7;
/// Instances with numbers beyond the rule's, and of nothing but one infinity.
const MOST_OF_LEVELS: usize = 16;
/// Instances with numbers of one sign.
const MOST_OF_ONE_SIGN: usize = 6;
const MOST_OF_INFINITIES: usize = 4;
/// Instances with hidden tensors, of each type.
const MOST_HIDDEN: usize = 12;
/// Sizes that reshapes split: 2 * 2 * 2, 2 * 2 * 3, 2 * 3 * 3, 2 * 3 * 5 and the like.
const PRODUCTS: [i64; 8] = [8, 12, 18, 30, 16, 4, 24, 36];
const MOST_OF_FACTORS: usize = 4 * PRODUCTS.len();
const TRIES_OF_FACTORS: u64 = 320;
/// Instances with indices of the last places, of each type and size.
const MOST_OF_PLACES: usize = 16;

impl Run<'_> {
    /// Kinds of numbers that may make a difference in these graphs.
    pub(super) fn goals_of_values(&self, graphs: &[Graph]) -> Vec<Goal> {
        let mut goals = Vec::new();
        if graphs.iter().any(rounds_to_whole) {
            goals.push(goal(Aspect::Numbers, 3 * POWERS.len(), 3 * POWERS.len(), |_, attempt| Focus {
                distribution: Some(Distribution::Neighbours(POWERS[attempt as usize % POWERS.len()])),
                ..Focus::default()
            }));
        }
        if graphs.iter().any(casts) {
            let focus = |_, _| Focus { distribution: Some(Distribution::Ends), ..Focus::default() };
            goals.push(goal(Aspect::Ends, 3 * MOST, 3 * MOST, focus));
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
            let most = if dtype.is_float() { MOST } else { 2 * MOST };
            goals.push(goal(Aspect::FewBits(dtype), most, most, focus_of));
            // A type of fewer digits does not tell neighbours apart.
            if matches!(dtype, DType::I32 | DType::I64) && graphs.iter().any(casts) {
                goals.push(goal(Aspect::Neighbours(dtype), MOST, MOST, focus_of));
            }
        }
        for dtype in self.halfway_types(graphs) {
            goals.push(goal(Aspect::Halfway(dtype), 3 * MOST, 3 * MOST, focus_of));
        }
        if self.hints.folds() {
            let focus = |_, _| Focus { distribution: Some(Distribution::Far), ..Focus::default() };
            goals.push(goal(Aspect::Constants, 2 * MOST, 2 * MOST, focus));
        }
        goals
    }

    /// The float types with which something is computed that is claimed to have the same bits in a
    /// narrower one.
    fn halfway_types(&self, graphs: &[Graph]) -> BTreeSet<DType> {
        let floats = |g: &Graph| -> BTreeSet<DType> {
            g.nodes.iter().flat_map(|n| &n.results).map(|t| t.dtype).filter(|d| d.is_float()).collect()
        };
        let strict = |d: &DType| matches!(claim(self.rule, *d), Class::Exact | Class::Finite);
        let narrow: BTreeSet<DType> = self.seen.keys().copied().filter(|d| d.is_float() && strict(d)).collect();
        let wider = |d: &DType| narrow.iter().any(|n| n.epsilon() > d.epsilon());
        let of = graphs.iter().filter(|g| casts(g) && g.nodes.iter().any(|n| matches!(n.kind, NodeKind::Scalar(_))));
        of.flat_map(floats).filter(wider).collect()
    }

    /// What guards and attributes leave open.
    pub(super) fn goals_of_choices(&self) -> Vec<Goal> {
        let mut goals = Vec::new();
        let open = |v: &hypatia_dsl::ir::Var| v.sort == Sort::Attr;
        for dtype in self.seen.keys().copied() {
            if !self.hints.bounds.is_empty() {
                let most = MOST_OF_BOUNDS;
                goals.push(Goal { tries: TRIES_OF_BOUNDS, ..goal(Aspect::Bounds(dtype), most, most, focus_of) });
            }
            if self.rule.vars.iter().any(open) && dtype != DType::Bool {
                goals.push(goal(Aspect::Attributes(dtype), 2 * MOST, 2 * MOST, focus_of));
            }
        }
        goals
    }

    /// Magnitudes that may make a difference in these graphs. `clamped` if a side lacks a clamp or
    /// a branch of the other.
    pub(super) fn goals_of_magnitudes(&self, graphs: &[Graph], clamped: bool) -> Vec<Goal> {
        let mut goals = Vec::new();
        let numbers = &self.hints.constants.magnitudes;
        let float = |d: &DType| d.is_float() && !d.only_stored();
        let read = || graphs.iter().flat_map(|g| g.nodes.iter().flat_map(|n| &n.results)).map(|t| t.dtype);
        let floats: BTreeSet<DType> = read().filter(float).collect();
        if clamped {
            goals.extend(floats.iter().map(|d| goal(Aspect::Clamps(*d), MOST_OF_CLAMPS, MOST_OF_CLAMPS, focus_of)));
        }
        if graphs.iter().any(decides) {
            let most = FEWEST_OF_A_KIND * kinds_of_overflow(numbers).min(MOST_KINDS);
            goals.extend(floats.iter().map(|d| goal(Aspect::Overflows(*d), most, most, focus_of)));
        }
        if stands_for_another(numbers) && !floats.is_empty() {
            goals.push(goal(Aspect::Levels, MOST_OF_LEVELS, MOST_OF_LEVELS, focus_of));
        }
        if graphs.iter().any(|g| g.nodes.iter().any(|n| takes_an_end(g, n))) {
            goals.push(goal(Aspect::OneSign, MOST_OF_ONE_SIGN, MOST_OF_ONE_SIGN, focus_of));
        }
        let strict = |d: &&DType| float(d) && claim(self.rule, **d) == Class::Exact;
        for dtype in self.seen.keys().filter(strict) {
            goals.push(goal(Aspect::Infinities(*dtype), MOST_OF_INFINITIES, MOST_OF_INFINITIES, focus_of));
        }
        if graphs.iter().any(|g| !infinities_compared(g).is_empty()) {
            let floats = self.seen.keys().filter(|d| float(d));
            goals.extend(floats.map(|d| goal(Aspect::Hidden(*d), MOST_HIDDEN, MOST_HIDDEN, focus_of)));
        }
        goals
    }

    /// Sizes that are products of what a reshape of the left side leaves open.
    pub(super) fn goal_of_factors(&self) -> Option<Goal> {
        let goal = goal(Aspect::Factors, MOST_OF_FACTORS, MOST_OF_FACTORS, focus_of);
        let tries = TRIES_OF_FACTORS;
        self.splits().then_some(Goal { tries, ..goal })
    }

    fn splits(&self) -> bool {
        self.rule.lhs.iter().any(|p| splits(self.program, p))
    }

    /// What one of the instances has that are searched for a change which no other noticed: of a
    /// reshape to factors, every other one factors above 1.
    pub(super) fn focus_of_a_change(&self, attempt: u64) -> Focus {
        match attempt % 2 == 1 && self.splits() {
            true => focus_of(Aspect::Factors, attempt / 2),
            false => Focus::default(),
        }
    }

    /// Whether the left side has a view that may exchange axes.
    pub(super) fn reshapes(&self) -> bool {
        let reshapes = |i: &Instance| i.graph.nodes.iter().any(|n| builtin(&i.graph, n) == Some(BuiltinOp::Reshape));
        self.kept.iter().any(reshapes)
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
    pub(super) fn goals_of_sizes(&self, graphs: &[Graph]) -> Vec<Goal> {
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
        if graphs.iter().any(computes_indices) {
            for (dtype, size) in LAST_PLACES {
                goals.push(goal(Aspect::LastPlaces(dtype, size), MOST_OF_PLACES, MOST_OF_PLACES, focus_of));
            }
        }
        let named = &self.hints.constants;
        for size in graphs.iter().flat_map(|g| beyond(g, named)).collect::<BTreeSet<i64>>() {
            if size >= VERY_LONG {
                let goal = goal(Aspect::Long(size), EACH_VERY_LONG, MOST_VERY_LONG, focus_of);
                goals.push(Goal { tries: TRIES_OF_A_SIZE, ..goal });
                continue;
            }
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
}

/// What the instances of one element type are made with.
fn focus_of(aspect: Aspect, attempt: u64) -> Focus {
    let at = attempt as usize;
    let typed = |dtype: DType, distribution: Distribution| Focus {
        dtype: Some(dtype),
        distribution: Some(distribution),
        ..Focus::default()
    };
    match aspect {
        Aspect::FewBits(dtype) => typed(dtype, Distribution::FewBits(u8::from(attempt.is_multiple_of(3)))),
        Aspect::Neighbours(dtype) => typed(dtype, Distribution::Neighbours(POWERS[at % POWERS.len()])),
        Aspect::Halfway(dtype) => typed(dtype, Distribution::Halfway),
        Aspect::LastPlaces(dtype, size) => Focus { sizes: Sizes::All(size), ..typed(dtype, Distribution::LastPlaces) },
        Aspect::Bounds(dtype) => Focus { ends: true, ..typed(dtype, Distribution::FewBits(0)) },
        Aspect::Clamps(dtype) => typed(dtype, Distribution::Twins((attempt % TWINS.len() as u64) as u8)),
        Aspect::Overflows(dtype) => typed(dtype, Distribution::Overflowing((attempt % 256) as u8)),
        Aspect::Infinities(dtype) => typed(dtype, Distribution::Infinities((attempt % 2) as u8)),
        Aspect::Hidden(dtype) => typed(dtype, Distribution::Hidden),
        Aspect::Levels => Focus { distribution: Some(Distribution::Levels((attempt % 256) as u8)), ..Focus::default() },
        Aspect::OneSign => Focus { distribution: Some(Distribution::Last([NEGATIVE, 2][at % 2])), ..Focus::default() },
        Aspect::Long(size) => {
            let dtype = [None, Some(DType::I8), None, Some(DType::U8)][at % 4];
            let distribution =
                Some([Distribution::Last(3), Distribution::Last(4), Distribution::Neighbours(63)][at % 3]);
            Focus { sizes: Sizes::Long(size), distribution, dtype, ..Focus::default() }
        }
        Aspect::Factors => Focus { sizes: Sizes::Factors(PRODUCTS[at % PRODUCTS.len()]), ..Focus::default() },
        Aspect::Attributes(dtype) => {
            // Rows of zeros beside others: what guards against a division by zero decides there.
            let kinds = [Distribution::Ordinary, Distribution::Last(0), Distribution::Nice, Distribution::Last(0)];
            Focus { ends: true, ..typed(dtype, kinds[at % kinds.len()]) }
        }
        _ => Focus::default(),
    }
}

/// Whether a node takes the largest or the smallest of several elements.
fn takes_an_end(graph: &Graph, node: &Node) -> bool {
    matches!(builtin(graph, node), Some(BuiltinOp::Amax | BuiltinOp::Amin))
}

/// Whether a node computes something, rather than moving it.
fn computes(node: &Node) -> bool {
    !matches!(node.kind, NodeKind::Input { .. } | NodeKind::Const(_))
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

/// Whether a float decides about an integer or a truth value.
fn decides(graph: &Graph) -> bool {
    let float = |v: &Value| graph.ty(*v).dtype.is_float();
    let other = |n: &Node| n.results.iter().any(|t| !t.dtype.is_float());
    graph.nodes.iter().any(|n| other(n) && n.operands.iter().flatten().any(float))
}

/// Whether a function rounds to an integer, or calls one that does.
fn rounds(program: &Program, scalar: ScalarId) -> bool {
    use BuiltinScalar::{Ceil, Floor, Round, Trunc};
    calls(program, scalar, |b| matches!(b, Ceil | Floor | Round | Trunc))
}

/// Whether a function is such a one, or calls one.
fn calls(program: &Program, scalar: ScalarId, is: fn(BuiltinScalar) -> bool) -> bool {
    match &program.scalar(scalar).body {
        ScalarBody::Builtin(b) => is(*b),
        ScalarBody::Term(term) => {
            term.nodes.iter().any(|n| matches!(n, TermNode::Call { scalar, .. } if calls(program, *scalar, is)))
        }
    }
}

/// Whether one side subtracts and clamps or branches, and the other does so less often.
pub(super) fn clamps_differ(sides: &Sides) -> bool {
    use BuiltinScalar::{Abs, Max, Min, Neg, Select, Sub};
    let graph = &sides.graph;
    let count = |roots: &[Value], is: fn(BuiltinScalar) -> bool| {
        let needed = needed_for(graph, roots.iter().copied());
        let such = |n: &Node| matches!(n.kind, NodeKind::Scalar(s) if calls(&graph.program, s, is));
        graph.nodes.iter().zip(needed).filter(|(n, needed)| *needed && such(n)).count()
    };
    let clamp = |b| matches!(b, Abs | Max | Min | Select);
    let subtracts = count(&sides.left, |b| matches!(b, Sub | Neg)) > 0;
    subtracts && count(&sides.left, clamp) != count(&sides.right, clamp)
}

/// Whether a pattern reshapes to a list with several sizes of which nothing else is known.
fn splits(program: &Program, pat: &Pat) -> bool {
    match pat {
        Pat::Bind(_, p) | Pat::Typed(p, _) => splits(program, p),
        Pat::OneOf(pats) => pats.iter().any(|p| splits(program, p)),
        Pat::Node(node) => {
            let reshapes = matches!(node.head, Head::Op(op)
                if program.op(op).body == OpBody::Builtin(BuiltinOp::Reshape));
            let lists = node.attrs.iter().filter_map(|a| if let AttrPat::List(l) = a { Some(l) } else { None });
            let named = |l: &Vec<AttrPat>| l.iter().filter(|a| matches!(a, AttrPat::Var(_))).count() > 1;
            let open = |l: &Vec<AttrPat>| l.iter().any(|a| matches!(a, AttrPat::Rest(_)));
            let found = reshapes && lists.into_iter().any(|l| named(l) && !open(l));
            found || node.operands().any(|p| splits(program, p))
        }
        _ => false,
    }
}

/// Sizes for which positions, counts, indices or sums of integers leave the range of a type that
/// they pass: usual ones, and those that the rule names.
fn beyond(graph: &Graph, Constants { sizes: named, long, .. }: &Constants) -> BTreeSet<i64> {
    let mut counts = vec![false; graph.nodes.len()];
    let mut positions = vec![false; graph.nodes.len()];
    let bytes = graph.nodes.iter().any(|n| {
        let leaf = matches!(n.kind, NodeKind::Input { .. } | NodeKind::Const(_));
        leaf && n.results.iter().any(|t| matches!(t.dtype, DType::I8 | DType::U8))
    });
    let mut sizes = BTreeSet::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        let Some(dtype) = node.results.first().map(|t| t.dtype) else { continue };
        let op = builtin(graph, node);
        let made = matches!(op, Some(BuiltinOp::Iota | BuiltinOp::Argmax | BuiltinOp::Argsort | BuiltinOp::Size));
        let operands = node.operands.iter().flatten();
        let through = operands.clone().any(|v| counts[v.node.index()]);
        counts[i] = made || through || !dtype.is_float();
        positions[i] = op == Some(BuiltinOp::Iota) || operands.clone().any(|v| positions[v.node.index()]);
        let sums =
            op.is_some_and(|b| b.multiplies() || matches!(b, BuiltinOp::Sum | BuiltinOp::Mean | BuiltinOp::Cumsum));
        let index = indices(graph, node).map(|v| graph.ty(v).dtype);
        if matches!(index, Some(DType::I8 | DType::U8)) {
            sizes.extend(NARROW_INDEX);
        }
        // A size as a number: some products and quotients of it are rounded.
        if matches!(op, Some(BuiltinOp::Full | BuiltinOp::Size)) || (op == Some(BuiltinOp::Iota) && dtype.is_float()) {
            sizes.extend(ROUNDED);
            sizes.extend(inexact_sizes(dtype));
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
            sizes.extend(named.iter().filter(|n| (256..LONG_PRODUCT).contains(*n)).take(NAMED));
            let adds = !op.is_some_and(BuiltinOp::multiplies);
            if bytes && adds {
                sizes.insert(LONG_SUM);
                sizes.extend(long.iter().filter(|n| **n >= LONG_BYTES).take(NAMED));
            }
        }
        // Sums of products of bytes, or of bytes, leave 32 bits.
        if sums && through && bytes && dtype == DType::I32 {
            sizes.insert(LONG_SUM);
            sizes.extend(long.iter().filter(|n| **n >= LONG_BYTES).take(NAMED));
        }
        if sums && positions[i] && dtype == DType::I32 {
            sizes.insert(VERY_LONG_POSITIONS[0]);
        }
        // Positions that are multiplied in a narrow type leave its range.
        if through && made_narrow(graph, node, dtype) {
            sizes.insert(LONG_POSITIONS);
            sizes.extend(VERY_LONG_POSITIONS[1..].iter().filter(|_| positions[i]));
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

/// The indices that a node reads.
fn indices(graph: &Graph, node: &Node) -> Option<Value> {
    let indexes = matches!(
        builtin(graph, node)?,
        BuiltinOp::Gather | BuiltinOp::GatherElements | BuiltinOp::GatherNd | BuiltinOp::Scatter
    );
    node.operands.get(1).copied().flatten().filter(|_| indexes)
}

/// Whether a function computes indices, perhaps in a narrow type.
fn computes_indices(graph: &Graph) -> bool {
    let mut through = vec![false; graph.nodes.len()];
    graph.nodes.iter().filter_map(|n| indices(graph, n)).for_each(|v| through[v.node.index()] = true);
    for (i, node) in graph.nodes.iter().enumerate().rev().filter(|(_, n)| matches!(n.kind, NodeKind::Op { .. })) {
        let all = through[i];
        node.operands.iter().flatten().for_each(|v| through[v.node.index()] |= all);
    }
    graph.nodes.iter().zip(through).any(|(n, t)| t && matches!(n.kind, NodeKind::Scalar(_)))
}

/// Narrow types with sizes whose places, or products of two of them, leave their range.
const LAST_PLACES: [(DType, i64); 4] = [(DType::I8, 12), (DType::I8, 200), (DType::U8, 18), (DType::U8, 400)];

/// Sizes that are not the inverse of their quotient, in a float type.
fn inexact_sizes(dtype: DType) -> impl Iterator<Item = i64> {
    let inexact = move |n: &i64| {
        let n = *n as f64;
        dtype.is_float() && dtype.round(n) == n && dtype.round(n * dtype.round(1.0 / n)) != 1.0
    };
    (2..MOST_INEXACT).filter(inexact).take(2)
}

/// Larger ones are not looked for.
const MOST_INEXACT: i64 = 256;
