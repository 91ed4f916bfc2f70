//! Comparison of both sides of a rule on one instance.
//!
//! In: an instance of a rule's left side. Out: an [`Observation`]: how the right side differs, if
//! it does. Invariant: a difference that the rounding of the element type explains, even after
//! cancellation or overflow, is not a difference of meaning.
//!
//! Meaning is compared in f64 without rounding ([`Mode::Exact`]); precision is compared with the
//! rounding of each element type ([`Mode::Rounded`]). A difference is first checked against a tight
//! bound. If it exceeds the bound, both sides are decomposed ([`noisy_graph`]) and run again with
//! noise of the size of one rounding error after every operation. Rounding explains a difference
//! within the scatter of the noisy runs.

mod excuses;

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{Class, OpBody, Rule, ScalarBody};
use hypatia_dsl::typing::{TensorType, codes};

pub(super) use excuses::infinities_compared;

use super::choice::Choice;
use super::claim::claim;
use super::differ::{Difference, ulp};
use super::generate::{Instance, Reject, Try, reject};
use super::noise::{Noise, has_long_numbers, is_short, noisy_graph};
use super::range::leaves_range;
use super::range_loss;
use super::scatter::{FACTOR, Scatter, evaluate_exactly, exactly_in, products_vanish, wide_inputs};
use super::sides::{NotComparable, sides};
use super::values::Distribution;
use hypatia_eval::{Data, Double, Mode, Number, RefTensor, Val, evaluate};
use hypatia_graph::instantiate::Numbers;
use hypatia_graph::{Graph, Node, NodeKind, Value};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

/// What was observed of a rule on one instance.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// The element type of the first root.
    pub dtype: Option<DType>,
    /// The right side is undefined for an element type of the instance: the rule is not applied
    /// there.
    pub no_meaning: Option<String>,
    /// The right side cannot be built for another reason, cannot be evaluated, or has another type.
    pub broken: Option<String>,
    /// An op accepts its operands, but its body cannot be written for them: that says nothing about
    /// the rule.
    pub no_body: Option<String>,
    /// A different value, beyond what rounding explains.
    pub value: Option<Difference>,
    /// NaN or infinite on one side only, without overflow.
    pub structure: Option<Difference>,
    /// For inputs with infinities: infinite on one side only, or with the opposite sign. The right
    /// side may define what the left side leaves undefined (NaN). No class promises this; the
    /// report notes it.
    pub infinity: Option<Difference>,
    /// Less precise than rounding of the element type explains.
    pub rounding: Option<Difference>,
    /// A different integer when every step is rounded to its element type. Rounding never explains
    /// a difference of integers, unless a class says so.
    pub integer: Option<Difference>,
    /// The largest number of steps between two such integers; of truth values, more than any.
    pub steps: u64,
    /// Indices differ, and all of them name elements of equal values.
    pub tied: bool,
    /// Different bits.
    pub bits: Option<Difference>,
    /// Different bits although no NaN, infinity or signed zero is involved.
    pub finite_bits: Option<Difference>,
    /// The largest difference of meaning, as a part of 1 and of the value.
    pub apart: f64,
}

/// How a rule fails; each is shrunk on its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Failure {
    /// See [`Observation::no_meaning`]: a failure only if the right side is undefined for every
    /// element type.
    NoMeaning,
    /// See [`Observation::broken`].
    Broken,
    /// See [`Observation::no_body`]: no failure of the rule, which nobody can judge.
    NoBody,
    /// See [`Observation::value`].
    Value,
    /// See [`Observation::structure`].
    Structure,
    /// See [`Observation::rounding`].
    Rounding,
    /// See [`Observation::integer`].
    Integer,
    /// The claim `exact` is false.
    Bits,
    /// The claim `finite` is false.
    FiniteBits,
    /// The claim `approx(rel, abs)` is false.
    Approx,
    /// No legal instance was found, or an alternative of the pattern was never covered.
    NotExercised,
}

impl Failure {
    /// The meaning is wrong, whatever the rule claims; the search stops there.
    pub(super) fn is_grave(self) -> bool {
        matches!(self, Failure::NoMeaning | Failure::Broken | Failure::NoBody | Failure::Value | Failure::Structure)
    }
}

impl Observation {
    /// How the observation contradicts a claim.
    pub fn against(&self, claim: Class) -> Option<(Failure, Option<&Difference>)> {
        if self.no_meaning.is_some() {
            return Some((Failure::NoMeaning, None));
        }
        if self.broken.is_some() {
            return Some((Failure::Broken, None));
        }
        if self.no_body.is_some() {
            return Some((Failure::NoBody, None));
        }
        // The gravest failure first: a wrong value matters more than a wrong class.
        let meaning = self.value.as_ref().map(|d| (Failure::Value, Some(d)));
        let structure = self.structure.as_ref().map(|d| (Failure::Structure, Some(d)));
        match claim {
            Class::Exact => self.bits.as_ref().map(|d| meaning.or(structure).unwrap_or((Failure::Bits, Some(d)))),
            Class::Finite => self.finite_bits.as_ref().map(|d| meaning.unwrap_or((Failure::FiniteBits, Some(d)))),
            Class::Rounds | Class::Ties => {
                let integer = self.integer.as_ref().map(|d| (Failure::Integer, Some(d)));
                meaning.or(structure).or(integer).or(self.rounding.as_ref().map(|d| (Failure::Rounding, Some(d))))
            }
            Class::Within(steps) => {
                let off = self.integer.as_ref().filter(|_| self.steps > u64::from(steps));
                let integer = off.map(|d| (Failure::Integer, Some(d)));
                meaning.or(structure).or(integer).or(self.rounding.as_ref().map(|d| (Failure::Rounding, Some(d))))
            }
            Class::Approx { .. } => {
                let lost =
                    self.rounding.as_ref().filter(|d| !d.right.is_finite()).map(|d| (Failure::Rounding, Some(d)));
                structure.or(self.value.as_ref().map(|d| (Failure::Approx, Some(d)))).or(lost)
            }
        }
    }
}

/// Compares both sides on an instance. An instance whose left side has no value is rejected.
pub fn observe(rule: &Rule, instance: &Instance) -> Try<Observation> {
    let mut seen =
        Observation { dtype: instance.left.first().map(|v| instance.graph.ty(*v).dtype), ..Default::default() };
    let sides = match sides(rule, instance) {
        Ok(s) => s,
        Err(why) => {
            left_alone(instance)?;
            match why {
                NotComparable::NoMeaning(why) => seen.no_meaning = Some(why),
                NotComparable::Broken(why) => seen.broken = Some(why),
                NotComparable::NotApplied(why) => return reject(why),
            }
            return Ok(seen);
        }
    };
    // The rule is not applied where a constant would lose precision or leave its range.
    if let Some(lost) = range_loss::loss(rule, instance) {
        return reject(lost);
    }
    let roots = sides.left.len();
    let exact = match evaluate_exactly(&sides.graph, &sides.numbers, &instance.inputs) {
        Ok(r) => r,
        Err(e) => {
            left_alone(instance)?;
            match sides.graph.inlined() {
                Err(e) if e.code() == Some(codes::DTYPE) => seen.no_meaning = Some(e.to_string()),
                Err(e) => seen.no_body = Some(e.to_string()),
                Ok(_) => seen.broken = Some(format!("the right side cannot be evaluated: {e}")),
            }
            return Ok(seen);
        }
    };
    let rounded = evaluate(&sides.graph, &instance.inputs, Mode::Rounded).map_err(|e| Reject(e.to_string()))?;
    let (exact_left, exact_right) = exact.split_at(roots);
    let (left, right) = rounded.split_at(roots);
    let mut job = Job {
        graph: &sides.graph,
        numbers: &sides.numbers,
        inputs: &instance.inputs,
        roots,
        distribution: instance.distribution,
        epsilon: coarsest(&instance.graph),
        class: instance.left.first().map_or(Class::Rounds, |v| claim(rule, instance.graph.ty(*v).dtype)),
        seen: &mut seen,
    };
    let vanishes = range_loss::number_vanishes(&sides);
    for root in 0..roots {
        if instance.distribution != Distribution::Extreme {
            job.meaning(root, left[root].dtype, &exact_left[root], &exact_right[root])
                .map_err(|e| Reject(e.to_string()))?;
        }
        if judges_rounding(instance.distribution) {
            job.rounding(root, &exact_left[root], &left[root], &right[root]).map_err(|e| Reject(e.to_string()))?;
        }
        job.narrowed(root, &exact_left[root], &left[root], &right[root]).map_err(|e| Reject(e.to_string()))?;
        if instance.distribution == Distribution::Large {
            job.vanished(root, &exact_left[root], &left[root], &right[root]).map_err(|e| Reject(e.to_string()))?;
        }
        if job.seen.rounding.is_none() && vanishes {
            job.lost_by_number(root, &exact_left[root], &left[root], &right[root]);
        }
        if instance.distribution == Distribution::Far && job.seen.rounding.is_none() {
            let values = [&exact_left[root], &left[root], &right[root]];
            let spoiled = range_loss::spoiled(&sides, &instance.inputs, job.epsilon, root, values);
            job.seen.rounding = spoiled.map_err(|e| Reject(e.to_string()))?;
        }
        job.integer(root, &exact_left[root], &left[root], &right[root]).map_err(|e| Reject(e.to_string()))?;
        job.bits(root, &exact_left[root], &left[root], &right[root]);
    }
    job.orders().map_err(|e| Reject(e.to_string()))?;
    Ok(seen)
}

/// Whether values of this kind say something about precision: cancellation and overflow would hide
/// it.
fn judges_rounding(distribution: Distribution) -> bool {
    use Distribution::{Extreme, Far, Hidden, Infinities, Large, Levels, Overflowing};
    !matches!(distribution, Extreme | Large | Far | Levels(_) | Overflowing(_) | Infinities(_) | Hidden)
}

/// Rejects an instance whose left side itself cannot be evaluated.
fn left_alone(instance: &Instance) -> Try<()> {
    let mut graph = instance.graph.clone();
    for (i, v) in instance.left.iter().enumerate() {
        graph.output(format!("left{i}"), *v);
    }
    // As both sides are evaluated: a function in an epilogue may refuse what the product gives it.
    match evaluate_exactly(&graph, &instance.numbers, &instance.inputs) {
        Ok(_) => Ok(()),
        Err(e) => reject(format!("the left side has no value: {e}")),
    }
}

/// Compares the meaning of two graphs of one test: outputs `0..roots` against the remaining ones.
/// Returns the first difference that rounding does not explain.
pub fn same_meaning(
    graph: &Graph,
    numbers: &Numbers,
    inputs: &[(String, Tensor)],
    roots: usize,
) -> Result<Option<Difference>> {
    let exact = evaluate_exactly(graph, numbers, inputs)?;
    let whole = |t: &Tensor| t.to_f64().iter().all(|v| (v * 2.0).fract() == 0.0 && v.abs() <= 64.0);
    let constants = graph.nodes.iter().filter_map(|n| match &n.kind {
        NodeKind::Const(t) => Some(&**t),
        _ => None,
    });
    let nice = inputs.iter().map(|i| &i.1).chain(constants).all(whole);
    let distribution = if nice { Distribution::Nice } else { Distribution::Ordinary };
    let mut seen = Observation::default();
    let (epsilon, class) = (coarsest(graph), Class::Rounds);
    let mut job = Job { graph, numbers, inputs, roots, distribution, epsilon, class, seen: &mut seen };
    let (left, right) = exact.split_at(roots);
    for root in 0..roots {
        let dtype = graph.ty(graph.outputs[root].1).dtype;
        job.special_values(root, &left[root], &right[root]);
        job.meaning(root, dtype, &left[root], &right[root])?;
    }
    Ok(seen.value.or(seen.structure).or(seen.infinity))
}

/// The coarsest rounding in a graph.
fn coarsest(graph: &Graph) -> f64 {
    graph.nodes.iter().flat_map(|n| &n.results).map(|t| t.dtype.epsilon()).fold(0.0, f64::max)
}

struct Job<'a> {
    graph: &'a Graph,
    numbers: &'a Numbers,
    inputs: &'a [(String, Tensor)],
    roots: usize,
    distribution: Distribution,
    /// The coarsest rounding of the left side.
    epsilon: f64,
    /// What the rule claims: how far apart the sides may be.
    class: Class,
    seen: &'a mut Observation,
}

/// Relative differences below this are rounding errors of f64 itself.
const TIGHT: f64 = 1e-9;
/// Noise that represents the rounding of f64, with a margin of a factor of 100.
const F64_NOISE: f64 = 1e-14;
/// Noise that represents the rounding of f32, where no f64 occurs: constants are often written with
/// only the digits of an f32.
const F32_NOISE: f64 = 6e-8;
/// What twice the digits leave of a difference that rounding made, at most.
const VANISHING: f64 = 1e-9;
/// The rounding of numbers of twice the digits of f64.
const DOUBLE_NOISE: f64 = 1e-31;

/// What may explain a difference, computed once for all elements of a result.
struct Explanations {
    /// True if the elements are no floats.
    discrete: bool,
    /// The size of the noise in `scatter`.
    noise: f64,
    scatter: Option<Scatter>,
    double: Option<Vec<RefTensor<Double>>>,
    choice: Option<Choice>,
}

impl Job<'_> {
    /// Records the first element of each kind that differs in what it means: not by rounding, and
    /// not by what the rule's class allows.
    fn meaning(&mut self, root: usize, dtype: DType, left: &RefTensor, right: &RefTensor) -> Result<()> {
        let noise = if self.has(DType::F64) { F64_NOISE } else { F32_NOISE };
        let choice = self.choice(root, Mode::Exact)?;
        let mut known = Explanations { discrete: !dtype.is_float(), noise, scatter: None, double: None, choice };
        for (index, (l, r)) in left.to_f64().into_iter().zip(right.to_f64()).enumerate() {
            let found = Difference::between(root, index, left, right, None);
            if l.is_finite() && r.is_finite() {
                self.finite(found, [left, right], [l, r], &mut known)?;
            } else if self.seen.structure.is_none() && self.seen.infinity.is_none() && self.other_kind(l, r) {
                self.of_other_kind(found, &mut known)?;
            }
        }
        Ok(())
    }

    /// Records a difference of two finite elements if nothing explains it.
    fn finite(
        &mut self,
        mut found: Difference,
        [left, right]: [&RefTensor; 2],
        [l, r]: [f64; 2],
        known: &mut Explanations,
    ) -> Result<()> {
        let (root, index, discrete) = (found.root, found.index, known.discrete);
        let same = match discrete {
            true => left.at(index) == right.at(index),
            false => (l - r).abs() <= TIGHT * l.abs().max(r.abs()) || l.abs().max(r.abs()) < 1e-290,
        };
        if self.seen.value.is_some() || same {
            return Ok(());
        }
        let diff = (l - r).abs();
        if let (Class::Approx { rel, abs }, false) = (self.class, discrete) {
            self.seen.apart = self.seen.apart.max(diff / (1.0 + l.abs()));
            if diff <= rel * l.abs() + abs {
                return Ok(());
            }
            found.exact = Some(l);
        }
        if known.choice.as_mut().is_some_and(|c| c.ties(index, left, right)) {
            self.seen.tied = true;
            return Ok(());
        }
        if matches!(self.class, Class::Within(_)) && self.tensors().any(infinite) {
            self.seen.infinity.get_or_insert(found);
            return Ok(());
        }
        // A value without any rounded intermediate result must match exactly, unless the class lets
        // rounding decide about it.
        let near = matches!(self.class, Class::Within(n) if apart(left, right, index) <= u64::from(n));
        let strict = (discrete && !self.has_floats())
            || (self.distribution == Distribution::Nice && !near && self.unrounded()?);
        if !strict {
            let s = self.scatter(&mut known.scatter, known.noise)?;
            let spread = FACTOR * (s.spread(root, index) + s.spread(root + self.roots, index));
            if diff <= spread && !self.differ_in_double(&mut known.double, root, index, spread / known.noise)? {
                return Ok(());
            }
        }
        // Below its normal range, f64 has few digits left.
        if discrete || !(self.underflows()? || self.vanishes_in_double(&mut known.double, root, index, diff)?) {
            self.seen.value = Some(found);
        }
        Ok(())
    }

    /// Records a difference of two elements of which one is infinite or NaN and the other is not,
    /// if neither overflow nor rounding explains it.
    fn of_other_kind(&mut self, found: Difference, known: &mut Explanations) -> Result<()> {
        if self.overflows()? || (self.sums_nothing() && self.tensors().any(special)) {
            return Ok(());
        }
        if self.distribution != Distribution::Nice {
            let s = self.scatter(&mut known.scatter, known.noise)?;
            if s.unsteady(found.root, found.index) || s.unsteady(found.root + self.roots, found.index) {
                return Ok(());
            }
        }
        match self.distribution {
            Distribution::Infinite | Distribution::Infinities(_) | Distribution::Hidden => {
                self.seen.infinity = Some(found)
            }
            _ => self.seen.structure = Some(found),
        }
        Ok(())
    }

    /// Whether an element differs in numbers of twice the digits of f64, where every number is
    /// known exactly: there, noise of size 1 explains `spread`.
    fn differ_in_double(
        &self,
        cache: &mut Option<Vec<RefTensor<Double>>>,
        root: usize,
        index: usize,
        spread: f64,
    ) -> Result<bool> {
        if has_long_numbers(self.graph, self.numbers) {
            return Ok(false);
        }
        let Some((diff, size)) = self.apart_in_double(cache, root, index)? else { return Ok(false) };
        Ok(size.is_finite() && diff > TIGHT * size && diff > DOUBLE_NOISE * spread && size > 1e-290)
    }

    /// Whether a difference in f64 all but vanishes in numbers of twice its digits: then rounding
    /// made it, even where no noise shows it, as in a sum of whole numbers times 1/3 that cancel.
    fn vanishes_in_double(
        &self,
        cache: &mut Option<Vec<RefTensor<Double>>>,
        root: usize,
        index: usize,
        diff: f64,
    ) -> Result<bool> {
        let found = self.apart_in_double(cache, root, index)?;
        Ok(found.is_some_and(|(double, _)| double <= VANISHING * diff))
    }

    /// How far apart two elements are in numbers of twice the digits of f64, and the larger one;
    /// none if they are no floats.
    fn apart_in_double(
        &self,
        cache: &mut Option<Vec<RefTensor<Double>>>,
        root: usize,
        index: usize,
    ) -> Result<Option<(f64, f64)>> {
        if !self.graph.ty(self.graph.outputs[root].1).dtype.is_float() {
            return Ok(None);
        }
        if cache.is_none() {
            *cache = Some(exactly_in(self.graph, self.numbers, self.inputs)?);
        }
        let Some(found) = cache else { return Ok(None) };
        let (l, r) = (found[root].at(index).f(), found[root + self.roots].at(index).f());
        Ok(Some(((l + -r).near().abs(), l.near().abs().max(r.near().abs()))))
    }

    /// For two elements that are not both finite: whether exactly one of them is NaN, or infinite.
    fn other_kind(&self, left: f64, right: f64) -> bool {
        match self.distribution {
            // Large values overflow and underflow, which does not concern the meaning.
            Distribution::Large | Distribution::Far => false,
            Distribution::Infinite | Distribution::Infinities(_) | Distribution::Hidden => {
                (!left.is_nan() || right.is_finite()) && left != right
            }
            _ => !(left.is_nan() && right.is_nan() || left.is_infinite() && right.is_infinite()),
        }
    }

    /// Records an infinity or NaN beside another value: where a test states what is equal, these
    /// are values like all others.
    fn special_values(&mut self, root: usize, left: &RefTensor, right: &RefTensor) {
        for (index, (left, right)) in left.to_f64().into_iter().zip(right.to_f64()).enumerate() {
            let both_nan = left.is_nan() && right.is_nan();
            if (!left.is_finite() || !right.is_finite()) && left != right && !both_nan {
                self.seen.infinity.get_or_insert(Difference { root, index, left, right, exact: None, whole: None });
            }
        }
    }

    fn rounding(&mut self, root: usize, exact: &RefTensor, left: &RefTensor, right: &RefTensor) -> Result<()> {
        if !left.dtype.is_float() || self.seen.rounding.is_some() || self.seen.value.is_some() {
            return Ok(());
        }
        let dtype = left.dtype;
        let (mut scatter, mut wide, mut sums): (Option<Scatter>, Option<Scatter>, Option<Scatter>) = (None, None, None);
        for (index, x) in exact.to_f64().into_iter().enumerate() {
            let (l, r) = (left.at(index).f(), right.at(index).f());
            // Overflow on either side does not concern precision.
            if !x.is_finite() || !r.is_finite() || !l.is_finite() {
                continue;
            }
            let error = (r - x).abs();
            if error <= 2.0 * (l - x).abs() + 4.0 * ulp(dtype, x) {
                continue;
            }
            let noise = self.epsilon;
            let s = self.scatter(&mut scatter, noise)?;
            if error <= FACTOR * s.spread(root + self.roots, index) + 8.0 * ulp(dtype, x) {
                continue;
            }
            // The left side was computed in f64: where it cancels, it is no more precise than this.
            let own = self.scatter(&mut wide, f64::EPSILON)?;
            if error <= FACTOR * (s.spread(root + self.roots, index) + own.spread(root, index)) + 8.0 * ulp(dtype, x) {
                continue;
            }
            // In f64, sums are the exact ones only by luck: both sides round each of their terms.
            // So does a scatter that adds, in any type.
            if dtype == DType::F64 || self.scatters() {
                let size = if dtype == DType::F64 { f64::EPSILON } else { self.epsilon };
                let s = self.scatter_with(&mut sums, Noise { size, in_sums: true })?;
                let spread = s.spread(root, index) + s.spread(root + self.roots, index);
                if error <= FACTOR * spread + 8.0 * ulp(dtype, x) {
                    continue;
                }
            }
            // Intermediate overflow does not concern precision either.
            if !leaves_range(self.graph, self.inputs)? {
                self.seen.rounding = Some(Difference::between(root, index, left, right, Some(x)));
            }
            return Ok(());
        }
        Ok(())
    }

    /// Reports elements that the left side keeps and the right side underflows: it computed 0 from
    /// two small constants, although the result is not small. Neither rounding nor overflow
    /// explains that.
    fn vanished(&mut self, root: usize, exact: &RefTensor, left: &RefTensor, right: &RefTensor) -> Result<()> {
        if !left.dtype.is_float() || self.seen.rounding.is_some() {
            return Ok(());
        }
        let dtype = left.dtype;
        // Normal numbers, which the type holds at full precision.
        let least = ulp(dtype, 0.0) / dtype.epsilon();
        let mut scatter: Option<Scatter> = None;
        for (index, x) in exact.to_f64().into_iter().enumerate() {
            let (l, r) = (left.at(index).f(), right.at(index).f());
            let kept = x.is_finite() && x.abs() >= least && (l - x).abs() <= 0.05 * x.abs();
            if !kept || !r.is_finite() || (r - x).abs() < 0.5 * x.abs() {
                continue;
            }
            // Where the computation cancels, either side may be far off.
            let s = self.scatter(&mut scatter, self.epsilon)?;
            let spread = s.spread(root, index) + s.spread(root + self.roots, index);
            if (r - x).abs() > FACTOR * spread && !leaves_range(self.graph, self.inputs)? {
                self.seen.rounding = Some(Difference::between(root, index, left, right, Some(x)));
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reports elements that the left side keeps, and that a cast of the right side loses because
    /// its type is too narrow: rounding explains none of them.
    fn narrowed(&mut self, root: usize, exact: &RefTensor, left: &RefTensor, right: &RefTensor) -> Result<()> {
        if !left.dtype.is_float() || self.seen.rounding.is_some() || self.seen.value.is_some() {
            return Ok(());
        }
        let exact = exact.to_f64();
        let lost = |i: &usize| exact[*i].is_finite() && left.at(*i).f().is_finite() && !right.at(*i).f().is_finite();
        if let Some(index) = (0..exact.len().min(right.len())).find(lost)
            && self.only_right_loses()?
        {
            self.seen.rounding = Some(Difference::between(root, index, left, right, Some(exact[index])));
        }
        Ok(())
    }

    /// Reports elements that the left side keeps and that the right side loses, where a number of
    /// the right side leaves the range of its type: no other value has to do with that.
    fn lost_by_number(&mut self, root: usize, exact: &RefTensor, left: &RefTensor, right: &RefTensor) {
        if !left.dtype.is_float() || self.tensors().any(special) {
            return;
        }
        let exact = exact.to_f64();
        let lost = |i: &usize| {
            let (x, l, r) = (exact[*i], left.at(*i).f(), right.at(*i).f());
            let kept = x.is_finite() && (l - x).abs() <= 0.05 * x.abs();
            kept && (r.is_nan() || (r - x).abs() > 0.5 * x.abs())
        };
        if let Some(index) = (0..exact.len().min(right.len())).find(lost) {
            self.seen.rounding = Some(Difference::between(root, index, left, right, Some(exact[index])));
        }
    }

    /// Reports integers and truth values that differ when every step is rounded. A class promises
    /// nothing for infinite inputs, or where the left side leaves the range of a type.
    fn integer(&mut self, root: usize, exact: &RefTensor, left: &RefTensor, right: &RefTensor) -> Result<()> {
        if left.dtype.is_float() || self.seen.integer.is_some() {
            return Ok(());
        }
        let mut choice = self.choice(root, Mode::Rounded)?;
        let mut found: Option<(u64, usize)> = None;
        for index in (0..left.len().min(right.len())).filter(|i| left.at(*i) != right.at(*i)) {
            if choice.as_mut().is_some_and(|c| c.ties(index, left, right)) {
                self.seen.tied = true;
                continue;
            }
            // A right side that rounds less often is nearer to the truth: then the left side is
            // off.
            let steps = match self.class {
                Class::Within(_) => apart(left, right, index).min(apart(exact, right, index)),
                _ => apart(left, right, index),
            };
            if found.is_none_or(|f| steps > f.0) {
                found = Some((steps, index));
            }
        }
        if let Some((steps, index)) = found
            && !self.operands_are_infinite()
            && (self.left_asks_for_infinities()
                || !leaves_range(self.graph, self.inputs)?
                || self.only_right_loses()?
                || self.only_right_overflows()?)
        {
            self.seen.integer = Some(Difference::between(root, index, left, right, None));
            self.seen.steps = steps;
        }
        Ok(())
    }

    /// What the indices of a root choose among, where the class lets them name equal values.
    fn choice(&self, root: usize, mode: Mode) -> Result<Option<Choice>> {
        match self.class {
            Class::Ties => Choice::of(self.graph, self.numbers, self.inputs, root, mode),
            _ => Ok(None),
        }
    }

    /// Inputs and constants.
    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let constants = self.graph.nodes.iter().filter_map(|n| match &n.kind {
            NodeKind::Const(t) => Some(&**t),
            _ => None,
        });
        self.inputs.iter().map(|i| &i.1).chain(constants)
    }

    /// True if every value of both sides is a short binary fraction: then no type rounds any of
    /// them.
    fn unrounded(&self) -> Result<bool> {
        let graph = all_values(noisy_graph(self.graph, self.numbers, Noise::default(), 0)?);
        let values = evaluate(&graph, &wide_inputs(self.inputs), Mode::Exact)?;
        Ok(values.iter().all(|t| t.to_f64().into_iter().all(|v| v.is_finite() && is_short(v))))
    }

    fn bits(&mut self, root: usize, exact: &RefTensor, left: &RefTensor, right: &RefTensor) {
        // Whether an operand excuses a difference, and whether the left side says what becomes of
        // an infinity: then the right side says the same. Most instances need neither.
        let mut excuse: Option<(bool, bool)> = None;
        for index in 0..left.len().min(right.len()) {
            let same = match (&left.data, &right.data) {
                (Data::F(a), Data::F(b)) => {
                    a[index].to_bits() == b[index].to_bits() || (a[index].is_nan() && b[index].is_nan())
                }
                _ => left.at(index) == right.at(index),
            };
            if same {
                continue;
            }
            let (l, r) = (left.at(index).f(), right.at(index).f());
            // In f64 the real number is not known more precisely than the left side.
            let real = left.dtype.is_float() && left.dtype != DType::F64;
            let x = Some(exact.at(index).f()).filter(|x| x.is_finite() && real);
            let found = Difference::between(root, index, left, right, x);
            self.seen.bits.get_or_insert_with(|| found.clone());
            // An integer is right or wrong: one that is excused is none of finite values.
            let excused = !left.dtype.is_float() && self.seen.integer.is_none() && !self.seen.tied;
            let (special_input, answered) = *excuse.get_or_insert_with(|| {
                let named = self.named_infinities();
                let excuses = |x: &f64| !x.is_finite() && !named.contains(x);
                let special_input = self.tensors().any(|t| special(t) && t.to_f64().iter().any(excuses));
                (special_input, !named.is_empty() && !special_input)
            });
            let finite = l.is_finite() && (r.is_finite() || answered) && !special_input && !excused;
            if finite && l != r {
                self.seen.finite_bits.get_or_insert(found);
            }
        }
    }

    /// Records different bits of sums that are rounded after each summand: a claim of the same
    /// bits is one about the order, too. Sums in f64 do not tell two orders apart, a device does.
    fn orders(&mut self) -> Result<()> {
        let strict = matches!(self.class, Class::Exact | Class::Finite);
        if !strict || self.seen.bits.is_some() || !self.graph.nodes.iter().any(|n| self.adds(n)) {
            return Ok(());
        }
        let found = evaluate(self.graph, self.inputs, Mode::Accumulated)?;
        let (left, right) = found.split_at(self.roots);
        for root in 0..self.roots {
            self.bits(root, &left[root], &left[root], &right[root]);
        }
        Ok(())
    }

    fn scatters(&self) -> bool {
        self.graph.nodes.iter().any(|n| hypatia_graph::builtin(self.graph, n) == Some(BuiltinOp::Scatter))
    }

    /// Whether a node may add floats.
    fn adds(&self, node: &Node) -> bool {
        let NodeKind::Op { op, .. } = node.kind else { return false };
        let float = |v: &Value| self.graph.ty(*v).dtype.is_float();
        node.operands.iter().flatten().any(float)
            && match self.graph.program.op(op).body {
                OpBody::Builtin(b) => {
                    b.multiplies() || matches!(b, BuiltinOp::Sum | BuiltinOp::Mean | BuiltinOp::Cumsum)
                }
                OpBody::Defined(_) => true,
            }
    }

    fn scatter<'c>(&self, cache: &'c mut Option<Scatter>, size: f64) -> Result<&'c Scatter> {
        self.scatter_with(cache, Noise::of_results(size))
    }

    fn scatter_with<'c>(&self, cache: &'c mut Option<Scatter>, noise: Noise) -> Result<&'c Scatter> {
        if cache.is_none() {
            *cache = Some(Scatter::run(self.graph, self.numbers, self.inputs, noise)?);
        }
        cache.as_ref().ok_or_else(|| Error::Internal("no scatter".into()))
    }

    fn has_floats(&self) -> bool {
        self.graph.nodes.iter().flat_map(|n| &n.results).any(|t| t.dtype.is_float())
    }

    fn has(&self, dtype: DType) -> bool {
        self.graph.nodes.iter().flat_map(|n| &n.results).any(|t| t.dtype == dtype)
    }

    /// True if a product has no summands: its 0 is none of a NaN or an infinity beside it.
    fn sums_nothing(&self) -> bool {
        let empty = |ty: &TensorType| ty.shape.iter().any(|d| d.as_const() == Some(0));
        self.graph.nodes.iter().any(|n| match &n.kind {
            NodeKind::Op { op, .. } => {
                matches!(self.graph.program.op(*op).body, OpBody::Builtin(b) if b.multiplies())
                    && n.operands.iter().flatten().any(|v| empty(self.graph.ty(*v)))
                    && !n.results.iter().any(empty)
            }
            _ => false,
        })
    }

    /// True if some float is so small that f64 holds it with fewer digits.
    fn underflows(&self) -> Result<bool> {
        let graph = all_values(noisy_graph(self.graph, self.numbers, Noise::default(), 0)?);
        let values = evaluate(&graph, &wide_inputs(self.inputs), Mode::Exact)?;
        let all: Vec<Value> = graph.outputs.iter().map(|o| o.1).collect();
        let small = values.iter().any(|t| t.dtype.is_float() && t.to_f64().iter().any(|x| x.is_subnormal()));
        Ok(small || products_vanish(&graph, &all, &values, f64::MIN_POSITIVE))
    }

    /// True if finite operands give an infinite result anywhere, except at a pole.
    fn overflows(&self) -> Result<bool> {
        let graph = all_values(noisy_graph(self.graph, self.numbers, Noise::default(), 0)?);
        let values = evaluate(&graph, &wide_inputs(self.inputs), Mode::Exact)?;
        let infinite = |v: &Value| {
            let at = graph.outputs.iter().position(|o| o.1 == *v);
            at.and_then(|i| values.get(i)).is_some_and(|t| t.to_f64().iter().any(|x| !x.is_finite()))
        };
        let empty = |v: &Value| graph.ty(*v).shape.iter().any(|d| d.as_const() == Some(0));
        Ok(graph.nodes.iter().enumerate().any(|(i, node)| {
            let pole = match &node.kind {
                NodeKind::Scalar(s) => matches!(
                    graph.program.scalar(*s).body,
                    ScalarBody::Builtin(
                        BuiltinScalar::Div
                            | BuiltinScalar::Fmod
                            | BuiltinScalar::Log
                            | BuiltinScalar::Log1p
                            | BuiltinScalar::Sqrt
                            | BuiltinScalar::Rsqrt
                            | BuiltinScalar::Pow
                    )
                ),
                NodeKind::Input { .. } | NodeKind::Const(_) => true,
                // A result of empty operands is no overflow: for example a mean over an empty axis.
                NodeKind::Op { .. } => node.operands.iter().flatten().any(empty),
            };
            let result = Value { node: hypatia_graph::NodeId(i as u32), output: 0 };
            !pole && infinite(&result) && !node.operands.iter().flatten().any(infinite)
        }))
    }
}

/// A graph that outputs every intermediate value.
fn all_values(mut graph: Graph) -> Graph {
    let values = (0..graph.nodes.len()).flat_map(|i| graph.results(hypatia_graph::NodeId(i as u32)));
    graph.outputs = values.enumerate().map(|(i, v)| (format!("v{i}"), v)).collect();
    graph
}

/// The steps between two integers; between truth values, more than any.
fn apart(left: &RefTensor, right: &RefTensor, index: usize) -> u64 {
    match (left.at(index), right.at(index)) {
        (Val::I(l), Val::I(r)) => l.abs_diff(r),
        (l, r) if l == r => 0,
        _ => u64::MAX,
    }
}

fn infinite(t: &Tensor) -> bool {
    t.dtype().is_float() && t.to_f64().iter().any(|v| v.is_infinite())
}

fn special(t: &Tensor) -> bool {
    t.dtype().is_float() && t.to_f64().iter().any(|v| !v.is_finite())
}
