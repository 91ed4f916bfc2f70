//! Scalars: the written derivative against the derived one and against finite differences.
//!
//! In: a scalar with `grad`. Out: an entry. Invariant: a point where the function is not smooth
//! (the one-sided differences disagree) proves nothing and is skipped; builtin scalars, which have
//! no body to derive from, are compared with finite differences alone.

use std::sync::Arc;

use hypatia_dsl::dtype::Kind;
use hypatia_dsl::ir::{Program, ScalarBody, ScalarDef, ScalarId};
use hypatia_dsl::scalar::{Term, TermNode, derived_gradients, eval_f64, show_term};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::constants::literals_of;
use super::options::{Options, seed_of};
use super::report::{Counterexample, Entry, Status, Subject};
use hypatia_graph::show_number;

/// Checks the derivative of scalar number `index`; returns nothing if it has none, or is a truth
/// value.
pub(super) fn verify_scalar(program: &Arc<Program>, index: usize, options: &Options) -> Vec<Entry> {
    let id = ScalarId(index as u32);
    let def = program.scalar(id);
    if def.grads.is_empty() || def.result == Kind::Bool {
        return Vec::new();
    }
    let gradients = Gradients::of(program, id);
    let mut rng = ChaCha8Rng::seed_from_u64(seed_of(options, &def.name));
    let literals = literals_of(program, id);
    let (mut cases, mut status) = (0, Status::Verified);
    for _ in 0..options.cases * 4 {
        if cases >= options.cases {
            break;
        }
        let kinds = def.params.iter().map(|(_, kind)| match kind {
            Kind::Bool => rng.random_range(0..2) as f64,
            Kind::Number => coordinate(&mut rng, &literals),
        });
        let point: Vec<f64> = kinds.collect();
        match gradients.at(&point) {
            AtPoint::Rough => {}
            AtPoint::Right => cases += 1,
            AtPoint::Wrong(counterexample) => {
                status = Status::False(counterexample);
                cases += 1;
                break;
            }
        }
    }
    if cases == 0 {
        let reason = "no point was found where the function is finite and smooth".to_string();
        status = Status::NotExercised { reason };
    }
    let (name, origin) = (def.name.clone(), def.origin.clone());
    vec![Entry {
        subject: Subject::Scalar,
        name,
        origin,
        cases,
        classes: Vec::new(),
        status,
        note: None,
        warnings: Vec::new(),
        proved: None,
        derived: false,
    }]
}

/// The derivatives of a scalar: as declared, as they follow from its body, and by finite
/// differences.
struct Gradients<'p> {
    program: &'p Program,
    def: &'p ScalarDef,
    /// A call of the scalar.
    call: Term,
    /// The derivative by each parameter that follows from the body, if it has one.
    derived: Option<Vec<Term>>,
}

/// What a point shows of the derivatives.
enum AtPoint {
    /// The function is not finite and smooth there.
    Rough,
    Right,
    Wrong(Box<Counterexample>),
}

impl<'p> Gradients<'p> {
    fn of(program: &'p Program, id: ScalarId) -> Gradients<'p> {
        let def = program.scalar(id);
        let derived = match &def.body {
            ScalarBody::Term(t) => derived_gradients(program, t, def.params.len() as u32).ok(),
            ScalarBody::Builtin(_) => None,
        };
        Gradients { program, def, call: call(id, def.params.len()), derived }
    }

    /// Compares all derivatives at a point.
    fn at(&self, point: &[f64]) -> AtPoint {
        let mut smooth = false;
        for (i, (_, kind)) in self.def.params.iter().enumerate() {
            let slope = if *kind == Kind::Bool { None } else { slope(self.program, &self.call, point, i) };
            let Some(slope) = slope else { continue };
            smooth = true;
            if let Some(wrong) = self.wrong(i, point, slope) {
                return AtPoint::Wrong(Box::new(wrong));
            }
        }
        if smooth { AtPoint::Right } else { AtPoint::Rough }
    }

    /// How the declared derivative by parameter `i` differs from the slope there.
    fn wrong(&self, i: usize, point: &[f64], slope: f64) -> Option<Counterexample> {
        let at = |t: &Term| eval_f64(self.program, t, point).ok();
        let derived = self.derived.as_ref().and_then(|d| d.get(i));
        let (written, other) = (self.def.grads.get(i).and_then(at), derived.and_then(at));
        let wrong = |g: Option<f64>, exact: f64, tolerance: f64| {
            !g.is_some_and(|g| (g - exact).abs() <= tolerance * (1.0 + exact.abs()))
        };
        let against_derived = other.is_some_and(|d| wrong(written, d, 1e-9) && d.is_finite());
        let differs = wrong(written, slope, 1e-4) || against_derived && wrong(written, slope, 1e-6);
        if !differs {
            return None;
        }
        let name = &self.def.params[i].0;
        let coordinates = self.def.params.iter().zip(point).map(|((n, _), v)| format!("{n} = {}", show_number(*v)));
        let message = format!(
            "`grad` by `{name}` gives {} at {}, finite differences give {}{}",
            written.map_or("nothing".to_string(), show_number),
            coordinates.collect::<Vec<_>>().join(", "),
            show_number(slope),
            other.map_or(String::new(), |d| format!(", the body's derivative is {}", show_number(d))),
        );
        let test = match (self.def.grads.get(i), derived) {
            (Some(written), Some(derived)) => block(self.program, self.def, name, point, written, derived),
            _ => String::new(),
        };
        Some(Counterexample { message, kind: "gradient", test })
    }
}

/// A coordinate of a point: usually moderate; sometimes of any magnitude, or on either side of a
/// literal of the scalar.
fn coordinate(rng: &mut ChaCha8Rng, literals: &[f64]) -> f64 {
    let near: f64 = rng.random_range(-4.0..4.0);
    match rng.random_range(0..10) {
        0 => near.signum() * 10f64.powf(rng.random_range(-2.0..4.0)),
        1..4 if !literals.is_empty() => {
            let at = literals[rng.random_range(0..literals.len())];
            // Beyond this, finite differences are meaningless.
            if at.abs() > 1e6 { near } else { at + near * f64::max(1.0, at.abs() / 8.0) }
        }
        _ => near,
    }
}

/// A test that fails because the written derivative is not the body's.
fn block(program: &Program, def: &ScalarDef, by: &str, point: &[f64], written: &Term, derived: &Term) -> String {
    let names: Vec<String> = def.params.iter().map(|p| p.0.clone()).collect();
    let (written, derived) = (show_term(program, written, &names), show_term(program, derived, &names));
    let mut out = format!("test \"the derivative of {} by {by}\" {{\n", def.name);
    for ((name, kind), v) in def.params.iter().zip(point) {
        let ty = if *kind == Kind::Bool { "bool" } else { "f64" };
        out.push_str(&format!("  input {name}: {ty}[] = {};\n", show_number(*v)));
    }
    out.push_str(&format!("  given {written};\n  // as it follows from the body\n  expect equal {derived};\n}}\n"));
    out
}

fn call(scalar: ScalarId, params: usize) -> Term {
    let mut t = Term::empty();
    let args = (0..params as u32).map(|i| t.add(TermNode::Param(i))).collect();
    let root = t.add(TermNode::Call { scalar, args });
    t.roots.push(root);
    t
}

/// The slope with respect to parameter `i`, from central differences of two widths, if they agree
/// (the function is smooth there).
fn slope(program: &Program, body: &Term, point: &[f64], i: usize) -> Option<f64> {
    let at = |dx: f64| {
        let mut p = point.to_vec();
        p[i] += dx;
        eval_f64(program, body, &p).ok().filter(|v| v.is_finite() && v.abs() < 1e8)
    };
    let h = 1e-4;
    let (m2, m1, p1, p2) = (at(-2.0 * h)?, at(-h)?, at(h)?, at(2.0 * h)?);
    let centre = at(0.0)?;
    // One-sided slopes that disagree: a kink or a jump.
    let (left, right) = ((centre - m1) / h, (p1 - centre) / h);
    if (left - right).abs() > 1e-2 * (1.0 + left.abs().max(right.abs())) {
        return None;
    }
    // Fourth order, so that the difference is accurate to about 1e-10 for well-behaved functions.
    let fine = (8.0 * (p1 - m1) - (p2 - m2)) / (12.0 * h);
    let coarse = (p1 - m1) / (2.0 * h);
    ((fine - coarse).abs() <= 1e-3 * (1.0 + fine.abs())).then_some(fine)
}
