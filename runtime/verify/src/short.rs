//! Rules that put a device's short functions into generated kernels: compares the function that is
//! actually used with the left side's meaning.
//!
//! In: such a rule. Out: an entry. Invariant: the left side is computed in f64, the right side in
//! f32 as the device does, with the largest error that its instructions may have.

use std::sync::Arc;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{Build, BuildArg, Class, Head, Pat, Program, Rule, ScalarBody, ScalarId};
use hypatia_dsl::kernel::short::claim;
use hypatia_dsl::scalar::device::{MOST_OFF, device_function};
use hypatia_dsl::scalar::{Leaves, Precision, Term, TermNode, Value, eval, float};
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
    let bound = if let Class::Approx { rel, abs } = claimed { (rel, abs) } else { (0.0, 0.0) };
    let mut rng = ChaCha8Rng::seed_from_u64(seed_of(options, &rule.name));
    let special = SPECIAL.len().pow(rule.vars.len().min(3) as u32);
    let (mut cases, mut worst) = (0, 0.0f64);
    let mut status = None;
    for at in 0..special + options.cases * POINTS {
        let point: Vec<f32> = (0..rule.vars.len() as u32)
            .map(|v| match at < special {
                true => SPECIAL[at / SPECIAL.len().pow(v) % SPECIAL.len()],
                false => coordinate(&mut rng),
            })
            .collect();
        let Some(seen) = compare(program, rule, &point, bound) else { continue };
        cases += 1;
        worst = worst.max(seen.apart);
        if seen.beyond > 0.0 {
            let place: Vec<String> = rule
                .vars
                .iter()
                .zip(&point)
                .map(|(v, x)| format!("{} = {}", v.name, show_number(f64::from(*x))))
                .collect();
            let message = format!(
                "claims `{}` for f32, but at {} the device's function gives {}: the exact value is {}",
                show_class(claimed),
                place.join(", "),
                show_number(f64::from(seen.right)),
                show_number(seen.left)
            );
            status = Some(Status::False(Box::new(Counterexample { message, kind: "kernel", test: String::new() })));
            break;
        }
    }
    let none = || Status::NotExercised { reason: "both sides must be made of scalars, variables and numbers".into() };
    let status = status.unwrap_or_else(|| if cases == 0 { none() } else { Status::Verified });
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
fn compare(program: &Program, rule: &Rule, point: &[f32], (rel, abs): (f64, f64)) -> Option<Seen> {
    let wide: Vec<f64> = point.iter().map(|x| f64::from(*x)).collect();
    let left = left(program, rule.lhs.first()?, &wide)?;
    if left.is_finite() && left.abs() > 0.99 * f64::from(f32::MAX) {
        return None;
    }
    let mut seen = Seen { left, right: 0.0, apart: 0.0, beyond: f64::NEG_INFINITY };
    for off in [0, -MOST_OFF, MOST_OFF] {
        let right = right(program, rule.rhs.first()?, point, off)?;
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

/// The left side in f64.
fn left(program: &Program, pat: &Pat, point: &[f64]) -> Option<f64> {
    Some(match pat {
        Pat::Var(v) => *point.get(v.index())?,
        Pat::Lit { value, .. } => *value,
        Pat::Node(node) => {
            let Head::Scalar(scalar) = node.head else { return None };
            let args = node.args.iter().map(|a| left(program, a, point)).collect::<Option<Vec<f64>>>()?;
            apply(program, scalar, &args, Precision::F64)?
        }
        _ => return None,
    })
}

/// The right side as the device computes it.
fn right(program: &Program, build: &Build, point: &[f32], off: i32) -> Option<f32> {
    match build {
        Build::Var(v) => point.get(v.index()).copied(),
        Build::Node(node) => {
            let Head::Scalar(scalar) = node.head else { return None };
            let args = node.args.iter().map(|arg| match arg {
                BuildArg::One(b) => right(program, b, point, off),
                _ => None,
            });
            let args = args.collect::<Option<Vec<f32>>>()?;
            match &program.scalar(scalar).device {
                Some(name) => Some((device_function(name)?.emulate)(&args, off)),
                None => {
                    let wide: Vec<f64> = args.iter().map(|a| f64::from(*a)).collect();
                    apply(program, scalar, &wide, Precision::F32).map(|v| v as f32)
                }
            }
        }
        _ => None,
    }
}

fn apply(program: &Program, scalar: ScalarId, args: &[f64], precision: Precision) -> Option<f64> {
    if let (ScalarBody::Builtin(f), Precision::F64) = (&program.scalar(scalar).body, precision) {
        return Some(float(*f, *args.first()?, args.get(1).copied().unwrap_or(0.0)));
    }
    let mut term = Term::empty();
    let params = (0..args.len() as u32).map(|i| term.add(TermNode::Param(i))).collect();
    let root = term.add(TermNode::Call { scalar, args: params });
    term.roots.push(root);
    let params: Vec<Value> = args.iter().map(|a| Value::F(*a)).collect();
    let values = eval(program, &term, Leaves { params: &params, ..Leaves::default() }, precision).ok()?;
    values.first().map(|v| v.to_f64())
}
