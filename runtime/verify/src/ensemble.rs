//! Precision as a quantity: the errors of both sides over ensembles of values.
//!
//! In: a rule, an element type, the class that it claims there. Out: how the right side is worse,
//! if it is. Invariant: one sample decides nothing. A sum in another order is better on one element
//! and worse on the next, so only statistics over thousands of elements tell it from a loss.
//!
//! The truth is the left side without rounding, for f64 in twice its digits. For each kind of
//! values, the median, the 99th percentile and the maximum of the right side's errors, in units of
//! the result, are at most [`FACTOR`] times those of the left side plus [`UNITS`]. And results that
//! are not finite, where the truth is representable, are no more frequent than on the left side. A
//! unit of the result is a unit in the last place of the element, or a larger one: see `units`.

use std::sync::Arc;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{Class, OpBody, Program, Rule, Sort};
use hypatia_eval::{Double, Mode, Number, RefTensor, evaluate};
use hypatia_graph::{Graph, Node, NodeKind, Value};
use hypatia_tensor::error::Result;

use super::differ::{Difference, ulp};
use super::generate::{Effort, Focus, Instance, elements, instance, is_rare, solved};
use super::hints::Hints;
use super::inside::as_kernels;
use super::range_loss;
use super::scatter::{evaluate_exactly, exactly_in, underflows};
use super::sides::{Sides, sides};
use super::source::Source;
use super::units::Units;
use super::values::Ensemble;

/// The right side's errors may be this many times the left side's, plus [`UNITS`].
pub(super) const FACTOR: f64 = 4.0;
/// Units in the last place of the result.
pub(super) const UNITS: f64 = 2.0;
/// The element types whose precision is a quantity.
pub(super) const TYPES: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

const SEEDS: u64 = 5;
/// The same where the right side seems to lose results, and chance is not ruled out.
const MOST_SEEDS: u64 = 20;
/// Elements for each seed, and how many instances they come from.
const ELEMENTS: usize = 4096;
const INSTANCES: std::ops::Range<usize> = 4..10;
/// Attempts for each instance.
const TRIES: u64 = 60;
/// The limit of the elements that one seed computes, in all values of all instances.
const WORK: usize = 1 << 18;
/// The number of results that vary together, when losses are counted.
const CHUNK: usize = 64;
/// The number of instances in which the bound of the maximum must be exceeded.
const UNLUCKY: usize = 5;
/// The same for the median and the 99th percentile.
const FEW: usize = 3;

/// How the right side is worse.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Worse {
    /// The kind of values.
    pub kind: Ensemble,
    /// `median`, `99th percentile`, `maximum`; or `share` of results that are not finite.
    pub what: &'static str,
    /// The left side's number, in units in the last place or as a share.
    pub left: f64,
    /// The right side's.
    pub right: f64,
    /// The element type of the operands.
    pub main: DType,
}

impl Worse {
    /// The statement in reports.
    pub fn message(&self, dtype: DType) -> String {
        let numbers = |v: f64| match v {
            v if v >= 1e4 => format!("{v:.0e}"),
            v => format!("{v:.1}"),
        };
        match self.what {
            "share" => format!(
                "the right side loses results in {dtype}: for {}, {:.1} % of them are not finite where the truth is \
                 representable, {:.1} % on the left",
                self.kind.name(),
                100.0 * self.right,
                100.0 * self.left
            ),
            what => format!(
                "the right side is less precise in {dtype}: for {}, the {what} of its errors is {} units in the last \
                 place, and {} on the left (at most {FACTOR} times as many and {UNITS} more are allowed)",
                self.kind.name(),
                numbers(self.right),
                numbers(self.left)
            ),
        }
    }
}

/// Both sides' errors at each element of one instance.
pub(super) struct Measured {
    sides: Sides,
    /// In units, where both results are finite.
    errors: Vec<(f64, f64)>,
    /// The largest errors, in units of the mean magnitude.
    largest: (f64, f64),
    /// Where the errors are: root and index.
    places: Vec<(usize, usize)>,
    /// For each chunk: elements whose truth is representable, and how many of them each side loses.
    chunks: Vec<(usize, usize, usize)>,
    /// The largest error beyond rounding, as a part of 1 and of the truth.
    beyond: f64,
    same: bool,
}

/// Measures one instance; nothing if the rule is not applied to it.
pub(super) fn measure(rule: &Rule, made: &Instance, class: Class) -> Option<Measured> {
    if range_loss::loss(rule, made).is_some() {
        return None;
    }
    let sides = sides(rule, made).ok()?;
    let roots = sides.left.len();
    let truth = Truth::of(&sides, made).ok()?;
    let rounded = rounded(&sides.graph, made)?;
    let (left, right) = rounded.split_at(roots);
    let (rel, abs) = if let Class::Approx { rel, abs } = class { (rel, abs) } else { (0.0, 0.0) };
    let mut out = Measured {
        errors: Vec::new(),
        largest: (0.0, 0.0),
        places: Vec::new(),
        chunks: Vec::new(),
        beyond: 0.0,
        same: true,
        sides,
    };
    for root in (0..roots).filter(|r| left[*r].dtype.is_float()) {
        let dtype = left[root].dtype;
        let (x, l, r) = (&truth.values[root], left[root].to_f64(), right[root].to_f64());
        let units = Units::of(&out.sides, made, root, x).ok()?;
        for (i, truth) in x.iter().copied().enumerate() {
            let x = truth.near();
            if i % CHUNK == 0 {
                out.chunks.push((0, 0, 0));
            }
            let (l, r) = (l[i], r[i]);
            out.same &= l.to_bits() == r.to_bits() || (l.is_nan() && r.is_nan());
            // The truth is representable if it does not round to an infinity.
            if !x.is_finite() || !dtype.round(x).is_finite() {
                continue;
            }
            if let Some(chunk) = out.chunks.last_mut() {
                *chunk = (chunk.0 + 1, chunk.1 + usize::from(!l.is_finite()), chunk.2 + usize::from(!r.is_finite()));
            }
            if l.is_finite() && r.is_finite() {
                let (unit, usual) = units.at(dtype, i);
                let (own, other) = (distance(l, truth), distance(r, truth));
                out.beyond = out.beyond.max((other - FACTOR * own - UNITS * unit) / (1.0 + x.abs()));
                let claimed = (other - rel * x.abs() - abs).max(0.0);
                out.errors.push((own / unit, claimed / unit));
                out.largest = (out.largest.0.max(own / usual), out.largest.1.max(claimed / usual));
                out.places.push((root, i));
            }
        }
    }
    Some(out)
}

/// Both sides as a device computes them.
fn rounded(graph: &Graph, made: &Instance) -> Option<Vec<RefTensor>> {
    let kernels = as_kernels(graph).ok();
    evaluate(kernels.as_ref().unwrap_or(graph), &made.inputs, Mode::Accumulated).ok()
}

/// The left side's results as real numbers; NaN where they are not known.
struct Truth {
    values: Vec<Vec<Double>>,
}

impl Truth {
    /// f64 is the truth of narrower types where both sides agree in it; elsewhere, and for f64
    /// itself, numbers of twice its digits are: `exp(x) - 1` at 1e-20 has none in f64.
    fn of(sides: &Sides, made: &Instance) -> Result<Truth> {
        let roots = sides.left.len();
        if sides.left.iter().any(|v| sides.graph.ty(*v).dtype == DType::F64) {
            return Truth::in_double(sides, made);
        }
        let exact = evaluate_exactly(&sides.graph, &sides.numbers, &made.inputs)?;
        let agree = |root: usize| {
            let dtype = sides.graph.ty(sides.left[root]).dtype;
            let near = |(l, r): (f64, f64)| {
                !((l - r).abs() > 0.125 * ulp(dtype, l) && l.is_finite() && r.is_finite() && dtype.is_float())
            };
            exact[root].to_f64().into_iter().zip(exact[root + roots].to_f64()).all(near)
        };
        if !(0..roots).all(agree) {
            return Truth::in_double(sides, made);
        }
        let of = |t: &RefTensor| t.to_f64().into_iter().map(Double::of).collect();
        Ok(Truth { values: exact[..roots].iter().map(of).collect() })
    }

    fn in_double(sides: &Sides, made: &Instance) -> Result<Truth> {
        let roots = sides.left.len();
        let found = exactly_in::<Double>(&sides.graph, &sides.numbers, &made.inputs)?;
        let (left, right) = found.split_at(roots);
        let mut lost: Option<bool> = None;
        let mut values: Vec<Vec<Double>> = Vec::with_capacity(roots);
        for (l, r) in left.iter().zip(right) {
            let mut truth = floats(l);
            for (x, r) in truth.iter_mut().zip(floats(r)) {
                let near = distance(r.near(), *x) <= 0.125 * ulp(DType::F64, x.near());
                // NaN is apart from everything.
                let apart = !near;
                if apart && lost.is_none() {
                    lost = Some(underflows(&sides.graph, &sides.numbers, &made.inputs)?);
                }
                // The left side may have lost what the right side still has, or the reverse.
                if apart && lost == Some(true) {
                    *x = Double::of(f64::NAN);
                }
            }
            values.push(truth);
        }
        Ok(Truth { values })
    }
}

fn floats(t: &RefTensor<Double>) -> Vec<Double> {
    (0..t.len()).map(|i| t.at(i).f()).collect()
}

/// The distance of a result from the truth.
fn distance(from: f64, truth: Double) -> f64 {
    (Double::of(from) + -truth).near().abs()
}

impl Measured {
    /// The first element whose error on the right exceeds the bound on its own.
    pub(super) fn clear(&self) -> Option<usize> {
        (0..self.errors.len()).find(|i| self.errors[*i].1 > FACTOR * self.errors[*i].0 + 4.0 * UNITS)
    }

    /// An element with an error, or one that the right side loses, as a difference.
    pub(super) fn difference(&self, made: &Instance) -> Option<Difference> {
        let rounded = rounded(&self.sides.graph, made)?;
        let truth = Truth::of(&self.sides, made).ok()?;
        let (left, right) = rounded.split_at(self.sides.left.len());
        let worst = match self.clear() {
            Some(i) => self.places[i],
            None => (0..left.len()).find_map(|root| {
                let (x, l, r) = (&truth.values[root], left[root].to_f64(), right[root].to_f64());
                let lost = |i: &usize| {
                    left[root].dtype.round(x[*i].near()).is_finite() && l[*i].is_finite() && !r[*i].is_finite()
                };
                (0..x.len()).find(lost).map(|i| (root, i))
            })?,
        };
        let (root, index) = worst;
        let x = Some(truth.values[root][index].near());
        Some(Difference::between(root, index, &left[root], &right[root], x))
    }
}

/// The errors of one kind of values.
#[derive(Default)]
struct Sample {
    left: Vec<f64>,
    right: Vec<f64>,
    chunks: Vec<(usize, usize, usize)>,
    /// The shares that each side loses, for each instance.
    lost: Vec<(f64, f64)>,
    /// The largest error on the right, for each instance.
    worst: Vec<f64>,
    /// The largest errors of both sides, for each instance, in units of the mean magnitude.
    largest: Vec<(f64, f64)>,
    same: bool,
    /// It has more instances than usual.
    long: bool,
}

/// What was found for one element type.
#[derive(Default)]
pub(super) struct Found {
    /// The first kind of values for which the right side is worse.
    pub worse: Option<Worse>,
    /// The class that holds: the largest error beyond `rounds`.
    pub beyond: f64,
    /// The number of results that were compared.
    pub elements: usize,
    /// Some of them have different bits.
    pub apart: bool,
}

/// A rule with what its instances need.
pub(super) struct Ensembles<'a> {
    pub program: &'a Arc<Program>,
    pub rule: &'a Rule,
    pub hints: &'a Hints<'a>,
    pub dtype: DType,
    /// The element type of the operands; often the same.
    pub main: DType,
    pub class: Class,
    pub seed: u64,
    /// What the searches for instances of this type have cost and found.
    pub effort: Effort,
}

impl Ensembles<'_> {
    /// Compares both sides on all kinds of values.
    pub(super) fn run(&self) -> Found {
        let mut found = Found::default();
        let numbers = !self.hints.constants.centres.is_empty();
        let attributes = self.rule.vars.iter().any(|v| v.sort == Sort::Attr);
        let says_something = |k: &Ensemble| match k {
            Ensemble::Near => numbers,
            Ensemble::Scaled => attributes,
            _ => true,
        };
        for kind in Ensemble::ALL.into_iter().filter(says_something) {
            let sample = self.sample(kind, &mut found.beyond);
            found.elements += sample.right.len();
            found.apart |= !sample.same;
            if let Some(worse) = Self::judge(kind, sample) {
                found.worse = Some(Worse { main: self.main, ..worse });
                break;
            }
        }
        found
    }

    /// An instance by chance, or, if it is `rare`, one that is searched for.
    fn made(&self, kind: Ensemble, seed: u64, rare: bool) -> Option<Instance> {
        let mut source = Source::random(seed);
        let focus = Focus { dtype: Some(self.main), ensemble: Some(kind), ..Focus::default() };
        let made = instance(self.program, self.rule, self.hints, &mut source, focus, &|_, _| None).ok();
        let sought = || solved(self.program, self.rule, self.hints, &mut source, focus, &self.effort);
        let made = if rare { made.or_else(sought) } else { made };
        // The rule may be about another type than the main one.
        let fits = |i: &Instance| self.main == self.dtype || operand_type(i) == Some(self.main);
        made.filter(|i| i.left.iter().all(|v| i.graph.ty(*v).dtype == self.dtype) && fits(i))
    }

    fn sample(&self, kind: Ensemble, beyond: &mut f64) -> Sample {
        let mut sample = Sample { same: true, ..Sample::default() };
        for seed in 0..MOST_SEEDS {
            if seed >= SEEDS && !sample.seems_to_lose() {
                break;
            }
            sample.long = seed >= SEEDS;
            let first =
                self.seed ^ (1 + seed % 8 + 8 * (kind as u64 + 8 * (seed / 8))).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let (mut instances, mut results, mut work) = (0, 0, 0);
            for attempt in 0..TRIES * INSTANCES.end as u64 {
                let enough = instances >= INSTANCES.start && results >= ELEMENTS;
                if enough || instances >= INSTANCES.end || work > WORK || (instances == 0 && attempt >= 10 * TRIES) {
                    break;
                }
                let at = first.wrapping_add(attempt);
                let Some(made) = self.made(kind, at, is_rare(attempt as usize, instances)) else { continue };
                // Small tensors only where the search finds no others.
                if operands(&made) < 64 && attempt < TRIES {
                    continue;
                }
                let Some(measured) = measure(self.rule, &made, self.class) else { continue };
                instances += 1;
                results += measured.errors.len();
                work += work_of(&measured.sides.graph);
                *beyond = beyond.max(measured.beyond);
                sample.add(&measured);
            }
            // The same bits on thousands of elements: nothing is rounded differently.
            if sample.same && sample.left.len() >= ELEMENTS {
                break;
            }
        }
        sample
    }

    fn judge(kind: Ensemble, mut sample: Sample) -> Option<Worse> {
        let worse = |what, left, right| Some(Worse { kind, what, left, right, main: DType::F32 });
        let bound = |left: f64| FACTOR * left + UNITS;
        let n = sample.left.len();
        if n > 0 {
            let at = |v: &mut [f64], part: f64| {
                *v.select_nth_unstable_by(((n - 1) as f64 * part) as usize, f64::total_cmp).1
            };
            for (what, part, fewest) in [("median", 0.5, 100), ("99th percentile", 0.99, 2000)] {
                let (left, right) = (at(&mut sample.left, part), at(&mut sample.right, part));
                // An instance of an unlucky scale has many bad elements.
                let several = sample.worst.iter().filter(|w| **w > bound(left)).count() >= FEW;
                if right > bound(left) && n >= fewest && several {
                    return worse(what, left, right);
                }
            }
            let (left, right) = sample.largest.iter().fold((0.0f64, 0.0f64), |m, e| (m.0.max(e.0), m.1.max(e.1)));
            // Errors that grow without bound where results approach 0 have no steady maximum: the
            // larger of two such maxima is four times the other in a fifth of all cases.
            if sample.largest.iter().filter(|e| e.1 > bound(left)).count() >= UNLUCKY {
                return worse("maximum", left, right);
            }
        }
        let (left, right) = sample.shares()?;
        worse("share", left, right)
    }
}

impl Sample {
    fn add(&mut self, measured: &Measured) {
        self.same &= measured.same;
        self.left.extend(measured.errors.iter().map(|e| e.0));
        self.right.extend(measured.errors.iter().map(|e| e.1));
        self.largest.push(measured.largest);
        self.worst.push(measured.errors.iter().fold(0.0, |m, e| e.1.max(m)));
        let sum = measured.chunks.iter().fold((0, 0, 0), |a, c| (a.0 + c.0, a.1 + c.1, a.2 + c.2));
        let share = |lost: usize| lost as f64 / sum.0.max(1) as f64;
        self.lost.push((share(sum.1), share(sum.2)));
        self.chunks.extend(&measured.chunks);
    }

    /// Whether the right side loses more, by chance or not.
    fn seems_to_lose(&self) -> bool {
        let (left, right) = self.lost.iter().fold((0.0, 0.0), |(l, r), lost| (l + lost.0, r + lost.1));
        right > 2.0 * left + 0.01 * self.lost.len() as f64
    }

    /// The shares that both sides lose, if the right side loses more than chance explains.
    fn shares(&self) -> Option<(f64, f64)> {
        let differences = self.chunks.iter().map(|c| (c.2 as f64 - c.1 as f64) / c.0.max(1) as f64);
        let (sum, squares) = differences.fold((0.0, 0.0), |(s, q), d| (s + d, q + d * d));
        if sum <= 4.0 * f64::sqrt(squares) {
            return None;
        }
        // One instance of an unlucky scale loses all of its elements together.
        let (sum, squares) = self.lost.iter().map(|l| l.1 - l.0).fold((0.0, 0.0), |(s, q), d| (s + d, q + d * d));
        // A longer sample was chosen because of what it seemed to say.
        let (fewest, sigmas) = if self.long { (12, 3.0) } else { (5, 2.5) };
        let lossy = self.lost.iter().filter(|l| l.1 > 0.02).count();
        let only_right = self.lost.iter().all(|l| l.0 == 0.0) && lossy >= fewest;
        let all =
            |side: fn(&(f64, f64)) -> f64| self.lost.iter().map(side).sum::<f64>() / self.lost.len().max(1) as f64;
        (only_right || sum > sigmas * f64::sqrt(squares)).then(|| (all(|l| l.0), all(|l| l.1)))
    }
}

/// The number of elements that a graph computes; those of products count once for each summand.
fn work_of(graph: &Graph) -> usize {
    let size = |v: &Value| elements(graph.ty(*v));
    let node = |n: &Node| {
        let results = n.results.iter().map(elements).sum::<usize>();
        let summands = match &n.kind {
            NodeKind::Op { op, .. } => match graph.program.op(*op).body {
                OpBody::Builtin(b) if b.multiplies() => n.operands.iter().flatten().map(size).max().unwrap_or(1) / 8,
                // The body of an op computes several values for each element.
                OpBody::Defined(_) => 16,
                _ => 1,
            },
            _ => 1,
        };
        results * summands.max(1)
    };
    graph.nodes.iter().map(node).sum()
}

/// The element type of the first operand that is a float.
pub(super) fn operand_type(made: &Instance) -> Option<DType> {
    let leaf = |k: &NodeKind| matches!(k, NodeKind::Input { .. } | NodeKind::Const(_));
    let nodes = made.graph.nodes.iter().filter(|n| leaf(&n.kind));
    nodes.flat_map(|n| &n.results).map(|t| t.dtype).find(|d| d.is_float())
}

/// The number of elements of the largest operand.
fn operands(made: &Instance) -> usize {
    let leaf = |k: &NodeKind| matches!(k, NodeKind::Input { .. } | NodeKind::Const(_));
    let nodes = made.graph.nodes.iter().filter(|n| leaf(&n.kind));
    nodes.flat_map(|n| &n.results).map(elements).max().unwrap_or(0)
}
