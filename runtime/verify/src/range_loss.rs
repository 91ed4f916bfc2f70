//! Constants that a right side computes before a run: those that would lose precision or range, and
//! those that did.
//!
//! In: a rule and an instance. Out: why the optimiser would not apply the rule there; and, for
//! instances whose constants lie near the ends of the range, elements that the left side keeps and
//! the right side lost. Invariant: the optimiser's own test (`hypatia_optimize::range_loss`) runs
//! on the same operands, so an instance is rejected exactly where the optimiser does not apply the
//! rule.

use std::sync::Arc;

use hypatia_dsl::ir::{AttrValue, Build, BuildArg, Head, Rule};
use hypatia_dsl::typing::eval;

use super::differ::Difference;
use super::folded_call::{folded, is_product, product_loss};
use super::generate::Instance;
use super::noise::Noise;
use super::range::{leaves_range_outside, needed_for};
use super::scatter::{FACTOR, Scatter};
use super::sides::Sides;
use hypatia_eval::RefTensor;
use hypatia_graph::{GraphFacts, Instantiator, NodeKind, Value, splat};
use hypatia_optimize::range_loss::{OperandRole, is_of_values, number_loss, smallest_normal};
use hypatia_tensor::error::Result;
use hypatia_tensor::tensor::Tensor;

/// What a constant computed by the right side would lose.
pub(super) fn loss(rule: &Rule, instance: &Instance) -> Option<String> {
    rule.rhs.iter().find_map(|b| Walk { rule, instance, frozen: false }.build(b, OperandRole::Factor))
}

#[derive(Clone, Copy)]
struct Walk<'a> {
    rule: &'a Rule,
    instance: &'a Instance,
    frozen: bool,
}

impl Walk<'_> {
    fn build(self, build: &Build, place: OperandRole) -> Option<String> {
        match build {
            Build::Var(_) | Build::Absent => None,
            Build::Number(e) => {
                let (graph, env) = (&self.instance.graph, &self.instance.env);
                let number = match eval(e, &env.attrs, &GraphFacts { graph, env }) {
                    Some(AttrValue::Float(v)) if is_of_values(self.rule, e) => v,
                    _ => return None,
                };
                let known = |v: &Value| match &graph.node(v.node).kind {
                    NodeKind::Const(t) => Some((t.dtype(), splat(t)?)),
                    _ => None,
                };
                let constants: Vec<_> = env.tensors.values().filter_map(known).collect();
                let dtype = graph.ty(*self.instance.left.first()?).dtype;
                number_loss(dtype, number, &constants)
            }
            Build::Else(v, other) if !self.instance.env.tensors.contains_key(v) => self.build(other, place),
            Build::Else(..) => None,
            Build::Frozen(inner) => Walk { frozen: true, ..self }.build(inner, place),
            Build::If(_, a, b) => self.build(a, place).or_else(|| self.build(b, place)),
            Build::Node(node) => {
                let within = place.under(&self.instance.graph.program, node.head);
                let inside = node.args.iter().find_map(|a| match a {
                    BuildArg::One(b) => self.build(b, within),
                    BuildArg::Each { .. } | BuildArg::Spread(_) => None,
                });
                let computes = matches!(node.head, Head::Scalar(_) | Head::Op(_));
                inside.or_else(|| if self.frozen && computes { self.function(build, place) } else { None })
            }
        }
    }

    /// What one function of constants would lose.
    fn function(self, build: &Build, place: OperandRole) -> Option<String> {
        let mut graph = self.instance.graph.clone();
        let value = Instantiator::new(&mut graph).build(build, &self.instance.env).ok()?;
        match is_product(&graph, value) {
            true => product_loss(&graph, value),
            false => folded(&graph, value, |folded| folded.loss(place))?,
        }
    }
}

/// Whether a number of the right side alone leaves the range of its type: it is 0 or infinite
/// there, and is neither as it is written.
pub(super) fn number_vanishes(sides: &Sides) -> bool {
    let graph = &sides.graph;
    let vanishes = |kind: &NodeKind| {
        let NodeKind::Const(t) = kind else { return false };
        let number = sides.numbers.get(&(Arc::as_ptr(t) as usize)).filter(|v| v.is_finite() && **v != 0.0);
        number.is_some() && t.dtype().is_float() && splat(t).is_some_and(|v| v == 0.0 || !v.is_finite())
    };
    if !graph.nodes.iter().any(|n| vanishes(&n.kind)) {
        return false;
    }
    let left = needed_for(graph, sides.left.iter().copied());
    let among = |of_left: bool| (0..left.len()).any(|i| left[i] == of_left && vanishes(&graph.nodes[i].kind));
    among(false) && !among(true)
}

/// An element of a root that the left side computes to within a few per cent of the real number and
/// that the right side has lost, although only a constant left the range of its type.
pub(super) fn spoiled(
    sides: &Sides,
    inputs: &[(String, Tensor)],
    epsilon: f64,
    root: usize,
    [exact, left, right]: [&RefTensor; 3],
) -> Result<Option<Difference>> {
    let mut scatter: Option<Scatter> = None;
    for (index, x) in exact.to_f64().into_iter().enumerate().filter(|_| left.dtype.is_float()) {
        let (l, r) = (left.at(index).f(), right.at(index).f());
        let kept = x.is_finite() && x.abs() >= smallest_normal(left.dtype) && (l - x).abs() <= 0.05 * x.abs();
        // A NaN is a loss too.
        if !kept || (r - x).abs() < 0.5 * x.abs() {
            continue;
        }
        let s = match &scatter {
            Some(s) => s,
            None => scatter.insert(Scatter::run(&sides.graph, &sides.numbers, inputs, Noise::of_results(epsilon))?),
        };
        // Where the computation cancels, either side may be far off.
        let spread = s.spread(root, index) + s.spread(root + sides.left.len(), index);
        let explained = (r - x).abs() <= FACTOR * spread;
        if !explained && !leaves_range_outside(&sides.graph, inputs, sides.left.len())? {
            return Ok(Some(Difference::between(root, index, left, right, Some(x))));
        }
    }
    Ok(None)
}
