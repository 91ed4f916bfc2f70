//! Symbolic derivatives.
//!
//! In: a term and the leaf to differentiate by. Out: a term over the same leaves. A function's
//! `grad` is used if it is written (all builtins of numbers have one in `core.hyp`), otherwise its
//! body is differentiated. Invariant: a derivative that is 0 for every value is the literal 0, and
//! products with it are removed, so that 0 * inf does not arise. Casts between floats count as the
//! identity; comparisons, casts to integers and booleans have derivative 0.

use crate::builtin::BuiltinScalar;
use crate::dtype::Kind;
use crate::ir::{Program, ScalarBody, ScalarId};

use super::build::{MAX_DEPTH, MAX_NODES};
use super::eval::kinds;
use super::{Term, TermBuilder, TermId, TermNode, simplify};

/// The derivative of the only root of `term` by the leaf `by` (a `Param`, `Acc` or `In` node).
pub fn derivative(program: &Program, term: &Term, by: &TermNode) -> Result<Term, String> {
    let root = *term.roots.first().ok_or("the term has no result")?;
    let mut derive = Derive { program, out: TermBuilder::new(), depth: 0 };
    let map = derive.copy(term);
    let slopes = derive.forward(term, &map, by)?;
    let root = match slopes[root.0 as usize] {
        Some(d) => d,
        None => derive.out.lit(0.0),
    };
    Ok(simplify(program, &derive.out.finish(vec![root])))
}

/// The derivatives of a scalar by each of its parameters, written or derived from the body. They
/// are terms over the parameters; 0 for boolean parameters.
pub fn gradients(program: &Program, scalar: ScalarId) -> Result<Vec<Term>, String> {
    let def = program.scalar(scalar);
    if def.grads.len() == def.params.len() && !def.params.is_empty() {
        return Ok(def.grads.clone());
    }
    match &def.body {
        ScalarBody::Term(body) => derived_gradients(program, body, def.params.len() as u32),
        ScalarBody::Builtin(_) if def.result == Kind::Bool => Ok(vec![zero(); def.params.len()]),
        ScalarBody::Builtin(_) => Err(format!("`{}` has no derivative: write one with `grad`", def.name)),
    }
}

/// The derivatives of a body by each of its parameters, ignoring any written `grad`. A written
/// `grad` is checked against them.
pub fn derived_gradients(program: &Program, body: &Term, params: u32) -> Result<Vec<Term>, String> {
    (0..params).map(|i| derivative(program, body, &TermNode::Param(i))).collect()
}

fn zero() -> Term {
    let mut b = TermBuilder::new();
    let root = b.lit(0.0);
    b.finish(vec![root])
}

/// A derivative under construction; `None` is 0.
type Slope = Option<TermId>;

struct Derive<'a> {
    program: &'a Program,
    out: TermBuilder,
    depth: u32,
}

impl Derive<'_> {
    fn copy(&mut self, term: &Term) -> Vec<TermId> {
        let mut map: Vec<TermId> = Vec::with_capacity(term.nodes.len());
        for node in &term.nodes {
            let id = self.out.add(node.map_args(|a| map[a.0 as usize]));
            map.push(id);
        }
        map
    }

    /// The derivative of each node; `map` gives the position of the node in `out`.
    fn forward(&mut self, term: &Term, map: &[TermId], by: &TermNode) -> Result<Vec<Slope>, String> {
        let kinds = kinds(self.program, term, &[]);
        let mut slopes: Vec<Slope> = Vec::with_capacity(term.nodes.len());
        for (i, node) in term.nodes.iter().enumerate() {
            if self.out.len() > MAX_NODES {
                return Err(format!("the derivative has more than {MAX_NODES} operations"));
            }
            let slope = match node {
                node if node == by => Some(self.out.lit(1.0)),
                TermNode::Cast { to, arg } => slopes[arg.0 as usize].filter(|_| to.is_float()),
                TermNode::Call { scalar, args } if kinds[i] == Kind::Number => {
                    let inner: Vec<Slope> = args.iter().map(|a| slopes[a.0 as usize]).collect();
                    let args: Vec<TermId> = args.iter().map(|a| map[a.0 as usize]).collect();
                    self.chain(*scalar, &args, &inner)?
                }
                _ => None,
            };
            slopes.push(slope);
        }
        Ok(slopes)
    }

    /// The chain rule for one application.
    fn chain(&mut self, scalar: ScalarId, args: &[TermId], inner: &[Slope]) -> Result<Slope, String> {
        if inner.iter().all(Option::is_none) {
            return Ok(None);
        }
        let program = self.program;
        let def = program.scalars.get(scalar.index()).ok_or("a term calls a scalar that does not exist")?;
        if self.select(&def.body) {
            return self.choose(args, inner);
        }
        let written = def.grads.len() == args.len();
        if let (ScalarBody::Term(body), false) = (&def.body, written) {
            return self.through(body, args, inner);
        }
        if !written {
            return Err(format!("`{}` has no derivative: write one with `grad`", def.name));
        }
        let mut total: Slope = None;
        for ((grad, slope), (_, kind)) in def.grads.iter().zip(inner).zip(&def.params) {
            let Some(slope) = slope else { continue };
            if *kind == Kind::Bool || is_literal(grad, 0.0) {
                continue;
            }
            let partial = match self.out.append(grad, args).first() {
                Some(id) => *id,
                None => return Err(format!("a `grad` of `{}` has no result", def.name)),
            };
            let product = self.product(partial, *slope)?;
            total = Some(match total {
                None => product,
                Some(sum) => self.call(BuiltinScalar::Add, vec![sum, product])?,
            });
        }
        Ok(total)
    }

    fn select(&self, body: &ScalarBody) -> bool {
        *body == ScalarBody::Builtin(BuiltinScalar::Select)
    }

    /// `select(c, a, b)`: the derivative of the selected branch. Not `c * da + (1 - c) * db`, which
    /// would be NaN if the other branch's derivative is infinite.
    fn choose(&mut self, args: &[TermId], inner: &[Slope]) -> Result<Slope, String> {
        let (&[condition, ..], &[_, a, b]) = (args, inner) else { return Err("select takes three arguments".into()) };
        if a.is_none() && b.is_none() {
            return Ok(None);
        }
        let mut or_zero = |s: Slope| s.unwrap_or_else(|| self.out.lit(0.0));
        let (a, b) = (or_zero(a), or_zero(b));
        self.call(BuiltinScalar::Select, vec![condition, a, b]).map(Some)
    }

    /// The derivative of a definition's body at `args`: the chain rule inside the body.
    fn through(&mut self, body: &Term, args: &[TermId], inner: &[Slope]) -> Result<Slope, String> {
        if self.depth >= MAX_DEPTH {
            return Err(format!("scalar calls are nested more than {MAX_DEPTH} levels deep"));
        }
        self.depth += 1;
        let mut map: Vec<TermId> = Vec::with_capacity(body.nodes.len());
        let mut slopes: Vec<Slope> = Vec::with_capacity(body.nodes.len());
        let kinds = kinds(self.program, body, &[]);
        for (i, node) in body.nodes.iter().enumerate() {
            if self.out.len() > MAX_NODES {
                return Err(format!("the derivative has more than {MAX_NODES} operations"));
            }
            if let TermNode::Param(p) = node {
                let p = *p as usize;
                map.push(*args.get(p).ok_or("a definition reads a parameter that has no value")?);
                slopes.push(inner.get(p).copied().flatten());
                continue;
            }
            let here: Vec<TermId> = node.args().iter().map(|a| map[a.0 as usize]).collect();
            let slope = match node {
                TermNode::Cast { to, arg } => slopes[arg.0 as usize].filter(|_| to.is_float()),
                TermNode::Call { scalar, args } if kinds[i] == Kind::Number => {
                    let inner: Vec<Slope> = args.iter().map(|a| slopes[a.0 as usize]).collect();
                    self.chain(*scalar, &here, &inner)?
                }
                _ => None,
            };
            slopes.push(slope);
            map.push(self.out.add(node.map_args(|a| map[a.0 as usize])));
        }
        self.depth -= 1;
        Ok(body.roots.first().and_then(|r| slopes[r.0 as usize]))
    }

    fn product(&mut self, a: TermId, b: TermId) -> Result<TermId, String> {
        let one = |id: TermId, out: &TermBuilder| matches!(out.node(id), TermNode::Lit(l) if l.0 == 1.0);
        if one(a, &self.out) {
            return Ok(b);
        }
        if one(b, &self.out) {
            return Ok(a);
        }
        self.call(BuiltinScalar::Mul, vec![a, b])
    }

    fn call(&mut self, f: BuiltinScalar, args: Vec<TermId>) -> Result<TermId, String> {
        let program = self.program;
        self.out.builtin(program, f, args).ok_or_else(|| format!("the program does not declare `{}`", f.name()))
    }
}

fn is_literal(term: &Term, value: f64) -> bool {
    matches!(term.roots.first().map(|r| term.node(*r)), Some(TermNode::Lit(l)) if l.0 == value)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::testing::{library, term};
    use super::super::{eval_f64, show_term};
    use super::*;

    /// Fourth-order central differences.
    fn difference(f: impl Fn(f64) -> f64, x: f64) -> f64 {
        let h = 1e-3 * x.abs().max(0.1);
        (8.0 * (f(x + h) - f(x - h)) - (f(x + 2.0 * h) - f(x - 2.0 * h))) / (12.0 * h)
    }

    /// Points away from poles, kinks and steps.
    fn points(arity: usize) -> Vec<Vec<f64>> {
        let one = [0.3, 0.71, 1.27, 2.3];
        let other = [0.4, 0.85, 1.73, 2.2];
        let pairs = one.iter().flat_map(|x| other.iter().map(move |y| vec![*x, *y]));
        match arity {
            1 => one.iter().chain(&[-0.37, -1.1]).map(|x| vec![*x]).collect(),
            2 => pairs.collect(),
            _ => pairs.map(|mut p| [p.remove(0), p.remove(0), 0.23].into_iter().take(arity).collect()).collect(),
        }
    }

    fn check(p: &Program, name: &str, body: &Term, grads: &[Term], arity: usize) -> usize {
        let mut compared = 0;
        for point in points(arity) {
            for (i, grad) in grads.iter().enumerate() {
                let along = |x: f64| {
                    let mut at = point.clone();
                    at[i] = x;
                    eval_f64(p, body, &at).unwrap()
                };
                let wanted = difference(along, point[i]);
                if !wanted.is_finite() {
                    continue;
                }
                let got = eval_f64(p, grad, &point).unwrap();
                let error = (got - wanted).abs();
                assert!(error < 1e-7 * (1.0 + wanted.abs()), "d{name}/d{i} at {point:?}: {got} against {wanted}");
                compared += 1;
            }
        }
        compared
    }

    /// Calls the scalar on its parameters.
    fn call(id: ScalarId, arity: usize) -> Term {
        let mut b = TermBuilder::new();
        let args = (0..arity as u32).map(|i| b.add(TermNode::Param(i))).collect();
        let root = b.call(id, args);
        b.finish(vec![root])
    }

    #[test]
    fn every_scalar_of_the_library_against_differences() {
        let p = library();
        for (i, def) in p.scalars.iter().enumerate() {
            if def.result == Kind::Bool || def.params.iter().any(|(_, k)| *k == Kind::Bool) {
                continue;
            }
            let id = ScalarId(i as u32);
            let arity = def.params.len();
            let body = call(id, arity);
            let written = gradients(&p, id).unwrap();
            assert!(check(&p, &def.name, &body, &written, arity) > 0, "{} was not compared", def.name);
            if let ScalarBody::Term(body) = &def.body {
                let derived = derived_gradients(&p, body, arity as u32).unwrap();
                check(&p, &def.name, body, &derived, arity);
            }
        }
    }

    #[test]
    fn values_at_special_points() {
        let p = library();
        let slope = |text: &str, x: f64| {
            let d = derivative(&p, &term(&p, &["x"], text), &TermNode::Param(0)).unwrap();
            eval_f64(&p, &d, &[x]).unwrap()
        };
        assert_eq!(slope("relu(x)", 0.0), 0.0);
        assert_eq!(slope("relu(x)", 1e-300), 1.0);
        assert_eq!(slope("x * x * x", 2.0), 12.0);
        assert_eq!(slope("x ** 3", 2.0), 12.0);
        assert_eq!(slope("select(x < 1, x * x, 1 / x)", 0.5), 1.0);
        // The branch that is not selected has an infinite derivative there.
        assert_eq!(slope("select(x <= 0, x, sqrt(x))", 0.0), 1.0);
        assert_eq!(slope("floor(x) + 3", 1.5), 0.0);
        assert_eq!(slope("cast<f16>(x) * 2", 1.5), 2.0);
        assert_eq!(slope("cast<i32>(x) * x", 2.5), 2.0);
    }

    #[test]
    fn the_text_stays_readable() {
        let p = library();
        let d = derivative(&p, &term(&p, &["x"], "x * exp(x)"), &TermNode::Param(0)).unwrap();
        assert_eq!(show_term(&p, &d, &["x".into()]), "exp(x) + x * exp(x)");
        let d = derivative(&p, &term(&p, &["x", "y"], "x + y"), &TermNode::Param(1)).unwrap();
        assert_eq!(show_term(&p, &d, &[]), "1");
    }

    #[test]
    fn recursion_is_an_error() {
        let mut p = library();
        let id = p.find_scalar("relu").unwrap();
        p.scalars[id.index()].body = ScalarBody::Term(call(id, 1));
        assert!(derivative(&p, &call(id, 1), &TermNode::Param(0)).is_err());
        assert!(super::super::expand(&p, &call(id, 1)).is_err());
        assert!(eval_f64(&p, &call(id, 1), &[1.0]).is_err());
    }
}
