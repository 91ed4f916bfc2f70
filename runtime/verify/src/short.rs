//! Rules that put a device's short functions into generated kernels: compares the function that is
//! actually used with the left side's meaning.
//!
//! In: such a rule. Out: an entry. Invariant: the left side is computed in f64, the right side in
//! f32 as the device does, with the largest error that its instructions may have.

use std::sync::Arc;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{Class, Program, Rule, ScalarId, VarId};
use hypatia_dsl::kernel::short::{TermRule, claim};
use hypatia_dsl::scalar::device::{MOST_OFF, device_function};
use hypatia_dsl::scalar::{Leaves, Precision, Term, TermNode, Value, eval, eval_f64};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::claim::approx_of;
use super::differ::ulp;
use super::ensemble::UNITS;
use super::options::{Options, seed_of};
use super::report::{Counterexample, Entry, Status, Subject, show_class};
use hypatia_graph::show_number;

/// Points per requested case: a point is almost free.
const POINTS: usize = 50;
/// Values of which every combination is tried.
const SPECIAL: [f32; 12] =
    [0.0, -0.0, 1.0, -1.0, 5.0, -5.0, 1e-40, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];

/// Verifies one rule.
pub(super) fn verify(program: &Arc<Program>, rule: &Rule, options: &Options) -> Entry {
    let claimed = claim(rule).unwrap_or(Class::Rounds);
    let (cases, worst, status) = match TermRule::of(program, rule) {
        Ok(sides) => sample(program, &sides, claimed, options),
        Err(why) => (0, 0.0, Status::NotExercised { reason: why }),
    };
    let derived = worst.is_finite().then(|| approx_of(worst));
    let (name, origin) = (rule.name.clone(), rule.origin.clone());
    let classes = vec![(DType::F32, claimed, derived)];
    Entry {
        subject: Subject::Rule,
        name,
        origin,
        cases,
        classes,
        status,
        note: None,
        warnings: Vec::new(),
        proved: None,
        derived: false,
    }
}

/// Compares both sides at many points. Returns how many they are, how far the sides are apart, and
/// what follows.
fn sample(program: &Program, sides: &TermRule<'_>, claimed: Class, options: &Options) -> (usize, f64, Status) {
    let bound = if let Class::Approx { rel, abs } = claimed { (rel, abs) } else { (0.0, 0.0) };
    let mut rng = ChaCha8Rng::seed_from_u64(seed_of(options, &sides.rule.name));
    let holes = sides.left.holes.len() as u32;
    let special = SPECIAL.len().pow(holes.min(3));
    let (mut cases, mut worst) = (0, 0.0f64);
    for at in 0..special + options.cases * POINTS {
        let point: Vec<f32> = (0..holes)
            .map(|hole| match at < special {
                true => SPECIAL[at / SPECIAL.len().pow(hole) % SPECIAL.len()],
                false => coordinate(&mut rng),
            })
            .collect();
        let Some(seen) = compare(program, sides, &point, bound) else { continue };
        cases += 1;
        worst = worst.max(seen.apart);
        if seen.beyond > 0.0 {
            let message = format!(
                "claims `{}` for f32, but at {} the device's function gives {}: the exact value is {}",
                show_class(claimed),
                place(sides, &point),
                show_number(f64::from(seen.right)),
                show_number(seen.left)
            );
            let found = Counterexample { message, kind: "kernel", test: String::new() };
            return (cases, worst, Status::False(Box::new(found)));
        }
    }
    let none = || Status::NotExercised { reason: "both sides must be made of scalars, variables and numbers".into() };
    (cases, worst, if cases == 0 { none() } else { Status::Verified })
}

/// `x = 1, y = 2`
fn place(sides: &TermRule<'_>, point: &[f32]) -> String {
    let name = |hole: &Option<VarId>| hole.and_then(|v| sides.rule.vars.get(v.index())).map_or("_", |v| &v.name);
    let values = sides.left.holes.iter().zip(point);
    let values = values.map(|(hole, x)| format!("{} = {}", name(hole), show_number(f64::from(*x))));
    values.collect::<Vec<String>>().join(", ")
}

/// Any float, one in the magnitudes where exponentials have a value, or a moderate one.
fn coordinate(rng: &mut ChaCha8Rng) -> f32 {
    match rng.random_range(0..4) {
        0 => f32::from_bits(rng.random()),
        1 => rng.random_range(-104.0..89.0),
        _ => rng.random_range(-8.0..8.0),
    }
}

/// Both sides at a point where they are farthest apart.
struct Seen {
    left: f64,
    right: f32,
    /// As a part of 1 and of the left side.
    apart: f64,
    /// How far the right side exceeds the bound.
    beyond: f64,
}

/// `None` where a side cannot be computed, or the result leaves the range of f32.
fn compare(program: &Program, sides: &TermRule<'_>, point: &[f32], (rel, abs): (f64, f64)) -> Option<Seen> {
    let wide: Vec<f64> = point.iter().map(|x| f64::from(*x)).collect();
    let left = eval_f64(program, &sides.left.term, &wide).ok()?;
    if left.is_finite() && left.abs() > 0.99 * f64::from(f32::MAX) {
        return None;
    }
    let mut seen = Seen { left, right: 0.0, apart: 0.0, beyond: f64::NEG_INFINITY };
    for off in [0, -MOST_OFF, MOST_OFF] {
        let right = right(program, &sides.right, point, off)?;
        // A device flushes what is not normal to 0, whatever the function.
        let bound = rel * left.abs() + abs + UNITS * ulp(DType::F32, left) + f64::from(f32::MIN_POSITIVE);
        let (off, beyond) = match left.is_finite() {
            true if right.is_nan() => (f64::INFINITY, f64::INFINITY),
            true => ((f64::from(right) - left).abs(), (f64::from(right) - left).abs() - bound),
            // Both are the same kind of value, or no claim holds.
            false if left.is_nan() == right.is_nan() && (left.is_nan() || f64::from(right) == left) => (0.0, -1.0),
            false => (f64::INFINITY, f64::INFINITY),
        };
        if beyond > seen.beyond {
            (seen.right, seen.beyond) = (right, beyond);
        }
        seen.apart = seen.apart.max(if left.is_finite() { off / (1.0 + left.abs()) } else { off });
    }
    Some(seen)
}

/// The right side as the device computes it.
fn right(program: &Program, term: &Term, point: &[f32], off: i32) -> Option<f32> {
    let mut values: Vec<f32> = Vec::with_capacity(term.nodes.len());
    for node in &term.nodes {
        values.push(match node {
            TermNode::Param(hole) => *point.get(*hole as usize)?,
            TermNode::Lit(l) => l.0 as f32,
            TermNode::Call { scalar, args } => {
                let args: Vec<f32> = args.iter().map(|a| values[a.0 as usize]).collect();
                match &program.scalar(*scalar).device {
                    Some(name) => (device_function(name)?.emulate)(&args, off),
                    None => call(program, *scalar, &args)?,
                }
            }
            _ => return None,
        });
    }
    values.get(term.root().0 as usize).copied()
}

/// A function that is no function of the device, in f32.
fn call(program: &Program, scalar: ScalarId, args: &[f32]) -> Option<f32> {
    let inputs: Vec<Value> = args.iter().map(|a| Value::F(f64::from(*a))).collect();
    let leaves = Leaves { inputs: &inputs, ..Leaves::default() };
    let values = eval(program, &Term::call(scalar, args.len() as u32), leaves, Precision::F32).ok()?;
    values.first().map(|v| v.to_f64() as f32)
}
