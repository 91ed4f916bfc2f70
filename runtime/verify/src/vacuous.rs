//! Is a verdict empty? Right sides broken on purpose, which the instances must tell apart.
//!
//! In: a verified rule and the instances that it was verified on. Out: a change of its right side
//! that no instance noticed, and what never varied in them. Invariant: a change that is provably
//! none (operands of a commutative function swapped, a sign that is squared or taken off, a
//! positive factor of what is only ordered, or what the result does not depend on) is not reported;
//! whether a change is one is decided on the graphs of both right sides, without values.

mod every_value;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::ir::{AttrType, AttrValue, Build, BuildArg, OpId, ParamKind, Program, Rule, ScalarBody, VarId};
use hypatia_dsl::typing::same_value;
use hypatia_eval::{Data, RefTensor};
use hypatia_graph::{Graph, Node, NodeKind, Value, builtin, show_attr, splat};

use self::every_value::same_for_every_value;
use super::elements::elements;
use super::generate::Instance;
use super::hints::variables;
use super::mutate::{Mutant, SWAPPED, Site, mutants};
use super::noise::{Noise, noisy_graph};
use super::scatter::evaluate_exactly;
use super::sides::{NotComparable, Sides, sides};

/// Relative differences below this are rounding of f64.
const TIGHT: f64 = 1e-11;

/// Changes of a rule's right side that no instance has told from the rule so far.
pub(super) struct Unnoticed {
    mutants: Vec<Mutant>,
    noticed: BTreeSet<String>,
    /// A `let` of several roots stands in each of them, where only a part of it counts.
    several: bool,
}

impl Unnoticed {
    /// The changes that these instances do not notice.
    pub(super) fn on(program: &Arc<Program>, rule: &Rule, instances: &[Instance]) -> Unnoticed {
        let originals: Vec<(&Instance, Sides, Vec<RefTensor>)> = instances
            .iter()
            .filter_map(|i| {
                let sides = sides(rule, i).ok()?;
                let right = right_of(&sides, i)?;
                Some((i, sides, right))
            })
            .collect();
        let mut found = Unnoticed { mutants: Vec::new(), noticed: BTreeSet::new(), several: rule.rhs.len() > 1 };
        for mutant in mutants(program, rule).into_iter().filter(|m| m.site == Site::Right) {
            if originals.iter().any(|(i, _, right)| tells(&mutant, i, right)) {
                found.noticed.insert(mutant.base);
            } else if !same(&mutant.rule, &originals) {
                found.mutants.push(mutant);
            }
        }
        found.drop_copies();
        found
    }

    fn drop_copies(&mut self) {
        if self.several {
            self.mutants.retain(|m| !self.noticed.contains(&m.base));
        }
    }

    /// Tries a further instance; true if it notices a change.
    pub(super) fn notices(&mut self, rule: &Rule, made: &Instance) -> bool {
        let right = sides(rule, made).ok().and_then(|s| right_of(&s, made));
        let Some(right) = right else { return false };
        let before = self.mutants.len();
        let (noticed, mutants) = std::mem::take(&mut self.mutants).into_iter().partition(|m| tells(m, made, &right));
        self.mutants = mutants;
        let noticed: Vec<Mutant> = noticed;
        self.noticed.extend(noticed.into_iter().map(|m| m.base));
        self.drop_copies();
        self.mutants.len() < before
    }

    /// Drops changes that are provably none: of a bound of indices that those that exist do not
    /// reach; after which the results are the same for every value; and after which every instance
    /// combines the same elements, though other tensors are made on the way: more is filled of what
    /// is cut off again, axes that are merged again change places. What never varied may be why, so
    /// then none of the last is dropped. `empty` says that there are operands without elements
    /// only: then it is none even if nothing else is made on the way.
    pub(super) fn drop_equal(&mut self, rule: &Rule, instances: &[Instance], empty: bool) {
        self.mutants.retain(|m| !m.bounds_indices);
        let everywhere = |m: &Mutant| {
            let same = |made: &Instance| match (sides(rule, made), sides(&m.rule, made)) {
                (Ok(own), Ok(other)) => same_for_every_value(&own, &other, made),
                _ => false,
            };
            let some: Vec<&Instance> = instances.iter().filter(|i| i.constants.is_empty()).collect();
            !some.is_empty() && some.into_iter().all(same)
        };
        self.mutants.retain(|m| !everywhere(m));
        if self.mutants.is_empty() || Constant::of(rule, instances).move_elements() {
            return;
        }
        let of = |rule: &Rule, made: &Instance| {
            let s = sides(rule, made).ok()?;
            let mut graph = s.graph.clone();
            graph.outputs.drain(..s.left.len());
            elements(&noisy_graph(&graph.pruned(), &s.numbers, Noise::default(), 0).ok()?)
        };
        let own: Vec<(&Instance, _)> = instances.iter().filter_map(|i| Some((i, of(rule, i)?))).collect();
        let equal = |m: &Mutant| {
            let pairs = own.iter().map(|(made, (inner, out))| {
                let (other, same_out) = of(&m.rule, made)?;
                (same_out == *out).then_some(other != *inner)
            });
            pairs.collect::<Option<Vec<bool>>>().is_some_and(|differs| empty || differs.contains(&true))
        };
        self.mutants.retain(|m| !equal(m));
    }

    /// True if every change was noticed.
    pub(super) fn is_empty(&self) -> bool {
        self.mutants.is_empty()
    }

    /// The first of them as a sentence, with what never varied in these instances.
    pub(super) fn message(&self, rule: &Rule, instances: &[Instance]) -> Option<String> {
        let found = self.mutants.first()?;
        let mut said = format!("no instance tells the rule from one with another right side ({})", found.change);
        let constant = Constant::of(rule, instances).shown(rule);
        if !constant.is_empty() {
            let _ = write!(said, ": {}", constant.join(", "));
        }
        Some(said)
    }
}

/// The right side's results as real numbers.
fn right_of(sides: &Sides, made: &Instance) -> Option<Vec<RefTensor>> {
    let mut graph = sides.graph.clone();
    graph.outputs.drain(..sides.left.len());
    evaluate_exactly(&graph.pruned(), &sides.numbers, &made.inputs).ok()
}

/// Whether the instance tells a changed rule from the original, whose right side gives `right`.
fn tells(changed: &Mutant, made: &Instance, right: &[RefTensor]) -> bool {
    let other = match sides(&changed.rule, made) {
        Ok(other) => other,
        // Operands of different types cannot change places.
        Err(NotComparable::NoMeaning(_)) if changed.base.ends_with(SWAPPED) => return true,
        // 1.25 is no integer: that says nothing about 1.
        Err(NotComparable::NoMeaning(_)) => return false,
        Err(NotComparable::Broken(_) | NotComparable::NotApplied(_)) => return true,
    };
    let Some(other) = right_of(&other, made) else { return true };
    right.iter().zip(&other).any(|(a, b)| differ(a, b))
}

pub(super) fn differ(a: &RefTensor, b: &RefTensor) -> bool {
    let (Data::F(x), Data::F(y)) = (&a.data, &b.data) else { return a.data != b.data };
    let apart = |x: f64, y: f64| match x.is_finite() && y.is_finite() {
        true => (x - y).abs() > TIGHT * x.abs().max(y.abs()),
        false => x != y && !(x.is_nan() && y.is_nan()),
    };
    x.iter().zip(y).any(|(x, y)| apart(*x, *y))
}

/// Whether both right sides are the same graph on each instance, up to the order of the operands of
/// commutative functions, though an attribute of theirs differs or operands change places.
fn same(changed: &Rule, originals: &[(&Instance, Sides, Vec<RefTensor>)]) -> bool {
    let form = |s: &Sides| -> Option<Vec<(u64, bool)>> {
        let mut graph = s.graph.clone();
        graph.outputs.drain(..s.left.len());
        Some(canonical(&noisy_graph(&graph.pruned(), &s.numbers, Noise::default(), 0).ok()?))
    };
    let together = |(made, own, _): &(&Instance, Sides, Vec<RefTensor>)| {
        let other = sides(changed, made).ok()?;
        Some((form(own)? == form(&other)?, written(own) != written(&other)))
    };
    let forms: Option<Vec<(bool, bool)>> = originals.iter().map(together).collect();
    forms.is_some_and(|f| f.iter().all(|f| f.0) && f.iter().any(|f| f.1))
}

/// The right side of an instance as text.
fn written(sides: &Sides) -> String {
    let mut graph = sides.graph.clone();
    graph.outputs.drain(..sides.left.len());
    graph.pruned().to_text()
}

/// A number for each output: a hash of what it computes, so that equal graphs have equal numbers,
/// and whether that is negated: |x - y| and |y - x| are equal.
fn canonical(graph: &Graph) -> Vec<(u64, bool)> {
    let mut numbers: Vec<(u64, bool)> = Vec::with_capacity(graph.nodes.len());
    // The same of the elements in their order, whatever axes of size 1 are between them.
    let mut flat: Vec<(u64, bool)> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        // The place of the largest and the order of elements do not depend on a positive factor.
        let orders = matches!(builtin(graph, node), Some(BuiltinOp::Argmax | BuiltinOp::Argsort));
        let mut operands: Vec<Option<(u64, bool)>> = node
            .operands
            .iter()
            .map(|v| v.map(|v| of(&numbers, if orders { unscaled(graph, v) } else { v })))
            .collect();
        let mut elements: Vec<Option<(u64, bool)>> = node.operands.iter().map(|v| v.map(|v| of(&flat, v))).collect();
        let mut negated = false;
        let name = match &node.kind {
            NodeKind::Const(t) => format!("const {:?} {:?} {:?}", t.dtype(), t.shape(), t.bytes()),
            NodeKind::Input { name } => format!("input {name}"),
            NodeKind::Scalar(s) => {
                if let ScalarBody::Builtin(b) = graph.program.scalar(*s).body {
                    negated = take_signs(b, &mut operands);
                    take_signs(b, &mut elements);
                    if b.commutes() {
                        operands.sort();
                        elements.sort();
                    }
                }
                format!("scalar {s:?}")
            }
            NodeKind::Op { op, attrs, term } => {
                let attrs = canonical_attrs(graph, node, *op, attrs, true);
                format!("op {op:?} {attrs} {term:?}")
            }
        };
        if builtin(graph, node) == Some(BuiltinOp::Reshape)
            && let [Some(operand)] = elements[..]
        {
            numbers.push((hash(&("reshape", format!("{:?}", node.results), operand.0)), operand.1));
            flat.push(operand);
            continue;
        }
        let negation = matches!(&node.kind, NodeKind::Scalar(s)
            if matches!(graph.program.scalar(*s).body, ScalarBody::Builtin(BuiltinScalar::Neg)));
        if let ([Some((operand, _))], true) = (&operands[..], negation) {
            numbers.push((*operand, negated));
            flat.push((elements.first().copied().flatten().map_or(*operand, |e| e.0), negated));
            continue;
        }
        let number = hash(&(&name, &operands));
        numbers.push((number, negated));
        let flat_number = match &node.kind {
            NodeKind::Op { op, attrs, .. } if has_keepdims(graph, *op) => {
                hash(&(canonical_attrs(graph, node, *op, attrs, false), op.0, &operands))
            }
            // One operand and numbers: the same function of each element.
            NodeKind::Scalar(_) if node.operands.iter().flatten().filter(|v| !is_number(graph, v)).count() == 1 => {
                hash(&(&name, &elements))
            }
            _ => number,
        };
        flat.push((flat_number, negated));
    }
    graph.outputs.iter().map(|(_, v)| of(&numbers, *v)).collect()
}

fn hash(what: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

fn has_keepdims(graph: &Graph, op: OpId) -> bool {
    graph.program.op(op).attrs().any(|(_, param)| param.name == "keepdims")
}

/// True for a constant of rank 0.
fn is_number(graph: &Graph, v: &Value) -> bool {
    matches!(graph.node(v.node).kind, NodeKind::Const(_)) && graph.ty(*v).shape.is_empty()
}

/// What a float value is a positive multiple of, up to a summand: numbers that are the same for all
/// elements are left out.
fn unscaled(graph: &Graph, v: Value) -> Value {
    let node = graph.node(v.node);
    let NodeKind::Scalar(s) = node.kind else { return v };
    let (ScalarBody::Builtin(f), [Some(a), Some(b)]) = (&graph.program.scalar(s).body, node.operands.as_slice()) else {
        return v;
    };
    let number = |v: &Value| match &graph.node(v.node).kind {
        NodeKind::Const(t) => splat(t).filter(|n| n.is_finite()),
        _ => None,
    };
    let of = match (f, number(a), number(b)) {
        (BuiltinScalar::Mul | BuiltinScalar::Div, _, Some(n)) if n > 0.0 => a,
        (BuiltinScalar::Mul, Some(n), _) if n > 0.0 => b,
        (BuiltinScalar::Add | BuiltinScalar::Sub, _, Some(_)) => a,
        (BuiltinScalar::Add, Some(_), _) => b,
        _ => return v,
    };
    let keeps = graph.ty(v).dtype.is_float() && graph.ty(*of).shape == graph.ty(v).shape;
    if keeps { unscaled(graph, *of) } else { v }
}

/// The attributes of a node, and the shapes of its operands. Axes are a set. Axes of size 1 in
/// front say nothing to a function that broadcasts, so `keepdims` counts only as far as it makes
/// others; where an op reads the result, the shape counts. It does not where only the elements are
/// asked for (`shaped` is false), and in front of an expansion axes of size 1 do not.
fn canonical_attrs(graph: &Graph, node: &Node, op: OpId, attrs: &[AttrValue], shaped: bool) -> String {
    let expands = builtin(graph, node) == Some(BuiltinOp::Expand);
    let shape = |v: &Value| {
        let dims = graph.ty(*v).shape.iter().skip_while(|d| expands && d.as_const() == Some(1));
        dims.cloned().collect::<Vec<_>>()
    };
    let mut out = format!("{:?}", node.operands.iter().flatten().map(shape).collect::<Vec<_>>());
    for (value, (_, param)) in attrs.iter().zip(graph.program.op(op).attrs()) {
        match (&param.kind, value) {
            (ParamKind::Attr { ty: AttrType::Axes, .. }, AttrValue::List(axes)) => {
                let mut axes: Vec<String> = axes.iter().map(show_attr).collect();
                axes.sort();
                let _ = write!(out, " {axes:?}");
            }
            (_, AttrValue::Bool(_)) if param.name == "keepdims" && !shaped => {}
            (_, AttrValue::Bool(_)) if param.name == "keepdims" => {
                let dims = node.results.iter().flat_map(|t| &t.shape);
                let _ = write!(out, " {:?}", dims.skip_while(|d| d.as_const() == Some(1)).collect::<Vec<_>>());
            }
            (_, value) => drop(write!(out, " {}", show_attr(value))),
        }
    }
    out
}

/// The number of a result of a node.
fn of(numbers: &[(u64, bool)], v: Value) -> (u64, bool) {
    let (number, negated) = numbers[v.node.index()];
    (number.wrapping_add(v.output.into()), negated)
}

/// Takes the signs off the operands of a function whose result only they change the sign of, or not
/// even that; puts a difference into one order. True if the result is negated.
fn take_signs(f: BuiltinScalar, operands: &mut [Option<(u64, bool)>]) -> bool {
    let odd = operands.iter().flatten().filter(|o| o.1).count() % 2 == 1;
    let mut without = || operands.iter_mut().flatten().for_each(|o| o.1 = false);
    match f {
        BuiltinScalar::Abs | BuiltinScalar::Cos => {
            without();
            false
        }
        BuiltinScalar::Mul | BuiltinScalar::Div => {
            without();
            odd
        }
        BuiltinScalar::Neg => {
            without();
            !odd
        }
        BuiltinScalar::Sub if operands.first() > operands.last() => {
            operands.reverse();
            true
        }
        _ => false,
    }
}

/// Attributes that the right side reads and that had one value in all instances.
pub(super) struct Constant(Vec<(VarId, AttrValue)>);

impl Constant {
    /// Those of a rule on these instances.
    pub(super) fn of(rule: &Rule, instances: &[Instance]) -> Constant {
        let mut read = BTreeSet::new();
        rule.rhs.iter().for_each(|b| attributes(b, &mut read));
        rule.lets.iter().for_each(|(_, e)| variables(e, &mut read));
        let always = |v: VarId| {
            let mut values = instances.iter().filter_map(|i| i.env.attrs.values.get(&v));
            let first = values.next()?;
            values.all(|o| same_value(first, o) == Some(true)).then(|| (v, first.clone()))
        };
        Constant(read.into_iter().filter_map(always).collect())
    }

    /// Whether one of them has another value here.
    pub(super) fn vary(&self, made: &Instance) -> bool {
        let other = |(v, value): &(VarId, AttrValue)| {
            made.env.attrs.values.get(v).is_some_and(|o| same_value(value, o) == Some(false))
        };
        self.0.iter().any(other)
    }

    /// Whether places of elements may depend on one of them; on an element type they do not.
    fn move_elements(&self) -> bool {
        self.0.iter().any(|(_, value)| !matches!(value, AttrValue::DType(_)))
    }

    fn shown(&self, rule: &Rule) -> Vec<String> {
        let one = |(v, value): &(VarId, AttrValue)| {
            Some(format!("`{}` was always {}", rule.vars.get(v.index())?.name, show_attr(value)))
        };
        self.0.iter().filter_map(one).collect()
    }
}

fn attributes(build: &Build, out: &mut BTreeSet<VarId>) {
    match build {
        Build::Number(e) => variables(e, out),
        Build::Node(n) => {
            n.attrs.iter().for_each(|e| variables(e, out));
            n.args.iter().for_each(|a| match a {
                BuildArg::One(b) | BuildArg::Each { element: b, .. } => attributes(b, out),
                BuildArg::Spread(_) => {}
            });
        }
        Build::Else(_, b) | Build::Frozen(b) => attributes(b, out),
        Build::If(c, a, b) => {
            variables(c, out);
            attributes(a, out);
            attributes(b, out);
        }
        Build::Var(_) | Build::Absent => {}
    }
}
