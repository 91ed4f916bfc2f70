//! Numbers elsewhere in what guards allow.
//!
//! In: a number that satisfies the guards which read it. Out: often another one that does, as far
//! away as they allow. Invariant: no guard that is known to hold is known to be broken by it.
//!
//! A guard such as `abs(e - 1e-5) < 1e-6` is satisfied by the number that it names. A rule that is
//! right there only is wrong at the ends of the tolerance.

use std::sync::Arc;

use hypatia_dsl::ir::{AExpr, AttrType, AttrValue, Fact, VarId};
use hypatia_dsl::typing::{Bindings, eval, eval_guard};
use hypatia_graph::{GraphFacts, NodeKind, Value, splat};
use hypatia_tensor::tensor::Tensor;

use super::Generator;
use super::attributes::reads;
use crate::hints::End;
use crate::values::Distribution;

/// How far away a number is tried, as a part of it: the farthest first.
const PARTS: [f64; 12] = [0.9, 0.45, 0.09, 0.03, 9e-3, 9e-4, 9e-5, 9e-6, 9e-7, 9e-8, 9e-9, 9e-10];
/// Steps between the ends of what guards allow an attribute.
const STEPS: usize = 16;

impl Generator<'_, '_> {
    /// A number between the ends that guards give an attribute, or beyond the only one.
    pub(super) fn in_range(&mut self, var: VarId, ty: AttrType) -> Option<AttrValue> {
        let hints = self.hints;
        let ranged = ty == AttrType::Float && hints.attr_ranges.iter().any(|(v, ..)| *v == var);
        if !ranged || self.source.pick(2) == 0 {
            return None;
        }
        let facts = GraphFacts { graph: &self.graph, env: &self.env };
        let end = |e: &AExpr| number(&eval(e, &self.env.attrs, &facts)?).filter(|n| n.is_finite());
        let of = |which: End| {
            let own = hints.attr_ranges.iter().filter(|(v, end, _)| *v == var && *end == which);
            own.filter_map(|(_, _, e)| end(e)).collect::<Vec<f64>>()
        };
        let least = of(End::Least).into_iter().reduce(f64::max);
        let largest = of(End::Largest).into_iter().reduce(f64::min);
        let step = self.source.pick(STEPS + 1) as f64 / STEPS as f64;
        let made = match (least, largest) {
            (Some(least), Some(largest)) => least + (largest - least) * step,
            (Some(least), None) => least + step * least.abs().max(1.0),
            (None, Some(largest)) => largest - step * largest.abs().max(1.0),
            (None, None) => return None,
        };
        Some(AttrValue::Float(made))
    }

    /// The attribute's value, or another one that the guards allow.
    pub(super) fn spread(&mut self, var: VarId, ty: AttrType, value: AttrValue) -> AttrValue {
        // Ensembles choose the scale themselves.
        let wanted = ty == AttrType::Float && !matches!(self.distribution, Distribution::Ensemble(_));
        let Some(center) = number(&value).filter(|_| wanted) else { return value };
        let met = self.met(|e| reads(e, var), &self.env.attrs);
        if met.is_empty() {
            return value;
        }
        let Some(sign) = self.sign() else { return value };
        for part in PARTS {
            let made = AttrValue::Float(center + sign * part * scale(center));
            let mut known = self.env.attrs.clone();
            known.values.insert(var, made.clone());
            if self.met(|e| reads(e, var), &known) == met {
                self.env.attrs.values.insert(var, made.clone());
                return made;
            }
        }
        value
    }

    /// Gives a constant whose value guards ask for another one that they allow.
    pub(super) fn spread_constant(&mut self, value: Value, var: Option<VarId>) {
        let Some(var) = var.filter(|v| self.hints.asks(*v, Fact::Value)) else { return };
        let NodeKind::Const(tensor) = &self.graph.nodes[value.node.index()].kind else { return };
        let (tensor, dtype) = (tensor.clone(), tensor.dtype());
        let Some(center) = splat(&tensor).filter(|c| dtype.is_float() && c.is_finite()) else { return };
        // What a `let` makes of the value counts too.
        let of =
            |e: &AExpr| reads_value(e, var) || self.rule.lets.iter().any(|(v, l)| reads_value(l, var) && reads(e, *v));
        self.bind_lets();
        let met = self.met(of, &self.env.attrs);
        if met.is_empty() {
            return;
        }
        let Some(sign) = self.sign() else { return };
        for part in PARTS {
            let made = dtype.round(center + sign * part * scale(center));
            let Some(other) = Tensor::from_f64(dtype, tensor.shape(), &vec![made; tensor.len()]) else { continue };
            self.graph.nodes[value.node.index()].kind = NodeKind::Const(Arc::new(other));
            self.bind_lets();
            if self.met(of, &self.env.attrs) == met {
                return;
            }
        }
        self.graph.nodes[value.node.index()].kind = NodeKind::Const(tensor);
        self.bind_lets();
    }

    /// The direction in which another number is sought, if one is.
    fn sign(&mut self) -> Option<f64> {
        [None, Some(1.0), Some(-1.0)][self.source.weighted(&[2, 1, 1])]
    }

    /// The conditions among these that are known to be what they are to be.
    fn met(&self, among: impl Fn(&AExpr) -> bool, known: &Bindings) -> Vec<usize> {
        let facts = GraphFacts { graph: &self.graph, env: &self.env };
        let conditions = self.hints.atoms.iter().enumerate().filter(|(_, (e, _))| among(e));
        conditions.filter(|(_, (e, holds))| eval_guard(e, known, &facts) == Some(*holds)).map(|(i, _)| i).collect()
    }
}

fn number(v: &AttrValue) -> Option<f64> {
    match v {
        AttrValue::Float(v) => Some(*v),
        AttrValue::Dim(d) => d.as_const().map(|d| d as f64),
        _ => None,
    }
}

/// What a number's parts are taken of.
fn scale(center: f64) -> f64 {
    if center == 0.0 { 1.0 } else { center.abs() }
}

/// True if the expression reads the variable's value.
fn reads_value(e: &AExpr, var: VarId) -> bool {
    let any = |l: &[AExpr]| l.iter().any(|e| reads_value(e, var));
    match e {
        AExpr::Fact(Fact::Value, v) => *v == var,
        AExpr::Binary(_, a, b) | AExpr::Index(a, b) => reads_value(a, var) || reads_value(b, var),
        AExpr::Neg(a) | AExpr::Not(a) | AExpr::Spread(a) => reads_value(a, var),
        AExpr::If(a, b, c) => [a, b, c].into_iter().any(|e| reads_value(e, var)),
        AExpr::List(l) | AExpr::Call(_, l) => any(l),
        AExpr::Comprehension { element, over, condition, .. } => {
            reads_value(element, var)
                || reads_value(over, var)
                || condition.as_ref().is_some_and(|c| reads_value(c, var))
        }
        AExpr::Value(_) | AExpr::Var(_) | AExpr::Fact(..) | AExpr::SameAccumulator(..) | AExpr::Device(_) => false,
    }
}
