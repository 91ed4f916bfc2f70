//! Both sides of a rule compared on one instance.
//!
//! In: an instance of a rule's left side. Out: an [`Observation`]: in which ways, if any, the right
//! side differs. Holds always: a difference that the rounding of the element type explains is no
//! difference of meaning, whatever cancellation or overflow made of it.
//!
//! Meaning is compared in f64 without rounding ([`Mode::Exact`]), precision with the rounding of each
//! element type ([`Mode::Rounded`]). A difference is first measured against a tight bound. If it is
//! larger, both sides are taken apart ([`explode`]) and run again with noise of the size of a
//! rounding behind every operation: what the noise scatters, rounding explains.

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{Class, Rule, ScalarBody};

use super::explode::{explode, widened};
use super::generate::{Instance, Reject, Try, reject};
use super::values::Flavour;
use crate::cpu::reference::{Data, Mode, RefTensor, evaluate};
use crate::error::{Error, Result};
use crate::graph::{Graph, Instantiator, NodeKind, Value};
use crate::tensor::Tensor;

/// A difference between the two sides.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Which root.
    pub root: usize,
    /// Index of the element, row-major.
    pub index: usize,
    /// The left side's element.
    pub left: f64,
    /// The right side's element.
    pub right: f64,
}

/// What was seen of a rule on one instance.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// The element type of the first root.
    pub dtype: Option<DType>,
    /// The right side cannot be built, or not evaluated, or has another type.
    pub broken: Option<String>,
    /// Another value, beyond what rounding explains.
    pub value: Option<Difference>,
    /// NaN or infinite on one side only, without overflow.
    pub structure: Option<Difference>,
    /// Less precise than rounding of the element type explains.
    pub rounding: Option<Difference>,
    /// Other bits.
    pub bits: Option<Difference>,
    /// Other bits though no NaN, no infinity and no sign of a zero is involved.
    pub finite_bits: Option<Difference>,
    /// The largest difference in units in the last place, where all is finite.
    pub ulp: f64,
    /// Where that is.
    pub ulp_at: Option<Difference>,
}

/// How a rule fails; each is shrunk on its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Failure {
    /// See [`Observation::broken`].
    Broken,
    /// See [`Observation::value`].
    Value,
    /// See [`Observation::structure`].
    Structure,
    /// See [`Observation::rounding`].
    Rounding,
    /// The claim `exact` is false.
    Bits,
    /// The claim `finite` is false.
    FiniteBits,
    /// The claim `approx(u)` is false.
    Ulp,
    /// No legal instance was found, or not of every alternative.
    NotExercised,
}

impl Observation {
    /// How the observation contradicts a claim.
    pub fn against(&self, claim: Class) -> Option<(Failure, Option<&Difference>)> {
        if self.broken.is_some() {
            return Some((Failure::Broken, None));
        }
        // The gravest first: a wrong value matters more than a wrong class.
        let meaning = self.value.as_ref().map(|d| (Failure::Value, Some(d)));
        let structure = self.structure.as_ref().map(|d| (Failure::Structure, Some(d)));
        match claim {
            Class::Exact => self.bits.as_ref().map(|d| meaning.or(structure).unwrap_or((Failure::Bits, Some(d)))),
            Class::Finite => self.finite_bits.as_ref().map(|d| meaning.unwrap_or((Failure::FiniteBits, Some(d)))),
            Class::Rounds => meaning.or(structure).or(self.rounding.as_ref().map(|d| (Failure::Rounding, Some(d)))),
            Class::Approx(u) => structure.or_else(|| (self.ulp > u).then(|| (Failure::Ulp, self.ulp_at.as_ref()))),
        }
    }
}

/// Both sides in one graph: outputs are the left roots, then the right ones.
pub struct Sides {
    /// The graph.
    pub graph: Graph,
    /// The left roots.
    pub left: Vec<Value>,
    /// The right roots.
    pub right: Vec<Value>,
}

/// Builds the right side beside the left one. The inner error says why it has no value or another
/// type than the left side.
pub fn sides(rule: &Rule, instance: &Instance) -> Result<Sides, String> {
    let mut graph = instance.graph.clone();
    let mut right = Vec::new();
    for (build, left) in rule.rhs.iter().zip(&instance.left) {
        let mut env = instance.env.clone();
        env.number = Some(graph.ty(*left).dtype);
        let value = Instantiator::new(&mut graph)
            .build(build, &env)
            .map_err(|e| format!("the right side has no value here: {e}"))?;
        let (l, r) = (graph.ty(*left), graph.ty(value));
        if l != r {
            return Err(format!("the left side is {l}, the right side is {r}"));
        }
        right.push(value);
    }
    for (i, v) in instance.left.iter().enumerate() {
        graph.output(format!("left{i}"), *v);
    }
    for (i, v) in right.iter().enumerate() {
        graph.output(format!("right{i}"), *v);
    }
    Ok(Sides { graph, left: instance.left.clone(), right })
}

/// Compares both sides on an instance. An instance whose left side has no value is rejected.
pub fn observe(rule: &Rule, instance: &Instance) -> Try<Observation> {
    let mut seen =
        Observation { dtype: instance.left.first().map(|v| instance.graph.ty(*v).dtype), ..Default::default() };
    let sides = match sides(rule, instance) {
        Ok(s) => s,
        Err(why) => {
            left_alone(instance)?;
            seen.broken = Some(why);
            return Ok(seen);
        }
    };
    let roots = sides.left.len();
    let exact = match evaluate(&sides.graph, &instance.inputs, Mode::Exact) {
        Ok(r) => r,
        Err(e) => {
            left_alone(instance)?;
            seen.broken = Some(format!("the right side cannot be evaluated: {e}"));
            return Ok(seen);
        }
    };
    let rounded = evaluate(&sides.graph, &instance.inputs, Mode::Rounded).map_err(|e| Reject(e.to_string()))?;
    let (exact_left, exact_right) = exact.split_at(roots);
    let (left, right) = rounded.split_at(roots);
    let mut job = Job { instance, sides: &sides, seen: &mut seen };
    for root in 0..roots {
        if instance.flavour != Flavour::Extreme {
            job.meaning(root, &exact_left[root], &exact_right[root]).map_err(|e| Reject(e.to_string()))?;
            job.rounding(root, &exact_left[root], &left[root], &right[root]).map_err(|e| Reject(e.to_string()))?;
        }
        job.bits(root, &left[root], &right[root]);
    }
    Ok(seen)
}

/// Rejects an instance whose left side has no value itself.
fn left_alone(instance: &Instance) -> Try<()> {
    let mut graph = instance.graph.clone();
    for (i, v) in instance.left.iter().enumerate() {
        graph.output(format!("left{i}"), *v);
    }
    match evaluate(&graph, &instance.inputs, Mode::Exact) {
        Ok(_) => Ok(()),
        Err(e) => reject(format!("the left side has no value: {e}")),
    }
}

struct Job<'a> {
    instance: &'a Instance,
    sides: &'a Sides,
    seen: &'a mut Observation,
}

/// Differences below this, relative to the larger value, are f64's own error.
const TIGHT: f64 = 1e-9;
/// Noise that stands for f64's rounding: a hundred times as large, to have some margin.
const F64_NOISE: f64 = 1e-14;
/// Noisy runs.
const RUNS: u64 = 6;
/// How many times the scatter of the noisy runs counts as explained.
const FACTOR: f64 = 4.0;

impl Job<'_> {
    fn meaning(&mut self, root: usize, left: &RefTensor, right: &RefTensor) -> Result<()> {
        let discrete = !left.dtype.is_float();
        let mut scatter: Option<Scatter> = None;
        for (index, (l, r)) in left.to_f64().into_iter().zip(right.to_f64()).enumerate() {
            let found = Difference { root, index, left: l, right: r };
            if l.is_finite() && r.is_finite() {
                let diff = (l - r).abs();
                if self.seen.value.is_some() || diff <= TIGHT * l.abs().max(r.abs()) || l.abs().max(r.abs()) < 1e-290 {
                    continue;
                }
                // Small integers make exact arithmetic: there a comparison has no excuse.
                let strict = discrete && (self.instance.flavour == Flavour::Nice || !self.has_floats());
                if !strict {
                    let s = self.scatter(&mut scatter, F64_NOISE)?;
                    if diff <= FACTOR * (s.spread(root, index) + s.spread(root + self.sides.left.len(), index)) {
                        continue;
                    }
                }
                self.seen.value = Some(found);
            } else if self.seen.structure.is_none()
                && !(l.is_nan() && r.is_nan())
                && !(l.is_infinite() && r.is_infinite())
            {
                if self.overflows()? {
                    continue;
                }
                if self.instance.flavour != Flavour::Nice {
                    let s = self.scatter(&mut scatter, F64_NOISE)?;
                    if s.unsteady(root, index) || s.unsteady(root + self.sides.left.len(), index) {
                        continue;
                    }
                }
                self.seen.structure = Some(found);
            }
        }
        Ok(())
    }

    fn rounding(&mut self, root: usize, exact: &RefTensor, left: &RefTensor, right: &RefTensor) -> Result<()> {
        if !left.dtype.is_float() || self.seen.rounding.is_some() || self.seen.value.is_some() {
            return Ok(());
        }
        let dtype = left.dtype;
        let mut scatter: Option<Scatter> = None;
        for (index, x) in exact.to_f64().into_iter().enumerate() {
            let (l, r) = (left.at(index).f(), right.at(index).f());
            // Overflow on either side is no matter of precision.
            if !x.is_finite() || !r.is_finite() || !l.is_finite() {
                continue;
            }
            let error = (r - x).abs();
            if error <= 2.0 * (l - x).abs() + 4.0 * ulp(dtype, x) {
                continue;
            }
            let noise = self.left_epsilon();
            let s = self.scatter(&mut scatter, noise)?;
            if error <= FACTOR * s.spread(root + self.sides.left.len(), index) + 8.0 * ulp(dtype, x) {
                continue;
            }
            self.seen.rounding = Some(Difference { root, index, left: l, right: r });
            return Ok(());
        }
        Ok(())
    }

    fn bits(&mut self, root: usize, left: &RefTensor, right: &RefTensor) {
        let special_input = self.instance.inputs.iter().map(|i| &i.1).any(special)
            || self.instance.graph.nodes.iter().any(|n| matches!(&n.kind, NodeKind::Const(t) if special(t)));
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
            let found = Difference { root, index, left: l, right: r };
            self.seen.bits.get_or_insert_with(|| found.clone());
            let finite = l.is_finite() && r.is_finite() && !special_input;
            if finite && l != r {
                self.seen.finite_bits.get_or_insert_with(|| found.clone());
                if self.instance.flavour != Flavour::Extreme {
                    let units = (l - r).abs() / ulp(left.dtype, l.abs().max(r.abs()));
                    if units > self.seen.ulp {
                        self.seen.ulp = units;
                        self.seen.ulp_at = Some(found);
                    }
                }
            }
        }
    }

    fn scatter<'c>(&self, cache: &'c mut Option<Scatter>, noise: f64) -> Result<&'c Scatter> {
        if cache.is_none() {
            *cache = Some(Scatter::run(&self.sides.graph, &self.instance.inputs, noise)?);
        }
        cache.as_ref().ok_or_else(|| Error::Internal("no scatter".into()))
    }

    fn has_floats(&self) -> bool {
        self.sides.graph.nodes.iter().flat_map(|n| &n.results).any(|t| t.dtype.is_float())
    }

    /// The coarsest rounding that the left side itself has.
    fn left_epsilon(&self) -> f64 {
        let nodes = self.instance.graph.nodes.iter().flat_map(|n| &n.results);
        nodes.map(|t| t.dtype.epsilon()).fold(0.0, f64::max)
    }

    /// True if a finite operand gives an infinite result anywhere, other than at a pole.
    fn overflows(&self) -> Result<bool> {
        let mut graph = explode(&self.sides.graph, 0.0, 0)?;
        let names: Vec<(String, Value)> = (0..graph.nodes.len())
            .flat_map(|i| graph.results(crate::graph::NodeId(i as u32)))
            .enumerate()
            .map(|(i, v)| (format!("v{i}"), v))
            .collect();
        graph.outputs = names;
        let values = evaluate(&graph, &wide_inputs(&self.instance.inputs), Mode::Exact)?;
        let infinite = |v: &Value| {
            let at = graph.outputs.iter().position(|o| o.1 == *v);
            at.and_then(|i| values.get(i)).is_some_and(|t| t.to_f64().iter().any(|x| !x.is_finite()))
        };
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
                NodeKind::Op { .. } => false,
            };
            let result = Value { node: crate::graph::NodeId(i as u32), output: 0 };
            !pole && infinite(&result) && !node.operands.iter().flatten().any(infinite)
        }))
    }
}

fn wide_inputs(inputs: &[(String, Tensor)]) -> Vec<(String, Tensor)> {
    inputs.iter().map(|(n, t)| (n.clone(), widened(t))).collect()
}

fn special(t: &Tensor) -> bool {
    t.dtype().is_float() && t.to_f64().iter().any(|v| !v.is_finite())
}

/// Outputs of noisy runs beside the quiet one.
struct Scatter {
    quiet: Vec<Vec<f64>>,
    noisy: Vec<Vec<Vec<f64>>>,
}

impl Scatter {
    fn run(graph: &Graph, inputs: &[(String, Tensor)], noise: f64) -> Result<Scatter> {
        let inputs = wide_inputs(inputs);
        let run = |noise, seed| -> Result<Vec<Vec<f64>>> {
            let g = explode(graph, noise, seed)?;
            Ok(evaluate(&g, &inputs, Mode::Exact)?.iter().map(RefTensor::to_f64).collect())
        };
        let quiet = run(0.0, 0)?;
        let noisy = (1..=RUNS).map(|seed| run(noise, seed)).collect::<Result<_>>()?;
        Ok(Scatter { quiet, noisy })
    }

    /// The largest distance of a noisy run from the quiet one.
    fn spread(&self, output: usize, index: usize) -> f64 {
        let at = |run: &[Vec<f64>]| run.get(output).and_then(|o| o.get(index)).copied().unwrap_or(0.0);
        let base = at(&self.quiet);
        let far = self.noisy.iter().map(|run| (at(run) - base).abs());
        far.fold(0.0, |a, b| if b.is_nan() { f64::INFINITY } else { a.max(b) })
    }

    /// True if noise changes whether the element is finite.
    fn unsteady(&self, output: usize, index: usize) -> bool {
        let at = |run: &[Vec<f64>]| run.get(output).and_then(|o| o.get(index)).copied().unwrap_or(0.0).is_finite();
        let base = at(&self.quiet);
        self.noisy.iter().any(|run| at(run) != base)
    }
}

/// The distance between neighbouring values of the type around `v`.
pub fn ulp(dtype: DType, v: f64) -> f64 {
    let (least_exponent, eps) = match dtype {
        DType::F64 => (-1022, f64::EPSILON),
        DType::F32 => (-126, f32::EPSILON as f64),
        DType::F16 => (-14, dtype.epsilon()),
        DType::BF16 => (-126, dtype.epsilon()),
        _ => return 1.0,
    };
    let v = v.abs();
    let exponent =
        if v == 0.0 || !v.is_finite() { least_exponent } else { (v.log2().floor() as i32).max(least_exponent) };
    eps * 2f64.powi(exponent)
}
