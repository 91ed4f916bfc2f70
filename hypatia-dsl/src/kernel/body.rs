//! The body of an op as terms over a space of axes.
//!
//! In: a defined op with its attribute values and operand types. Out: the values of its results,
//! each with a term and axes, and the intermediate reductions. Invariant: all reductions are over
//! the same axes of the space; equal subexpressions are deduped, so that a mean that occurs three
//! times is one step.

use std::collections::{HashMap, HashSet};

use crate::builtin::BuiltinOp;
use crate::dtype::DType;
use crate::ir::{
    AExpr, AttrValue, Build, BuildArg, BuildNode, Fact, Head, InView, OpBody, OpDef, OpId, ParamKind, Program, VarId,
};
use crate::neutral::without_absent;
use crate::scalar::{TermBuilder, TermId, TermNode};
use crate::shape::{Dim, broadcast, show_shape};
use crate::typing::{Bindings, Facts, TensorType, apply_op, apply_scalar, bind_op, eval, normalise_attrs, type_fact};

use super::Reduction;
use super::space::{Axis, Parts, Space};

/// Maximum nesting depth of ops.
const MAX_DEPTH: u32 = 32;
/// Maximum number of applications in the inlined body.
const MAX_STEPS: u32 = 10_000;

/// Until the number of inputs is known, results of steps are numbered from here.
pub(super) const STEP: u32 = 1 << 30;

/// A result, or the reason why the body has no such kernel, as the end of a sentence.
pub(super) type Derived<T> = Result<T, String>;

/// A tensor during the walk over the body.
#[derive(Clone, Debug)]
pub(super) struct Val {
    /// Its term.
    pub id: TermId,
    /// `None` for a number, which takes the type of its sibling operands.
    pub ty: Option<TensorType>,
    /// The axes of the space that each axis of its shape is made of.
    pub axes: Vec<Parts>,
}

/// A reduction and its operand.
pub(super) struct Step {
    pub kind: Reduction,
    pub value: TermId,
    /// The axes of the operand of the reduction.
    pub axes: Parts,
}

/// The state of the walk.
pub(super) struct Body<'a> {
    program: &'a Program,
    pub space: Space,
    pub terms: TermBuilder,
    /// Type and axes of each operand that is present.
    pub inputs: Vec<(TensorType, Vec<Parts>)>,
    pub steps: Vec<Step>,
    /// The reduced axes, once there is a reduction.
    pub row: Option<Parts>,
    known: HashMap<(Reduction, TermId), u32>,
    /// The axes of every value: no two axes of one value may be unified.
    values: Vec<Parts>,
    left: u32,
}

/// The variables of the op whose body is walked.
struct Scope {
    tensors: HashMap<VarId, Option<Val>>,
    bindings: Bindings,
}

impl Facts for Scope {
    fn fact(&self, fact: Fact, var: VarId) -> Option<AttrValue> {
        match (fact, self.tensors.get(&var)?) {
            (Fact::Present, v) => Some(AttrValue::Bool(v.is_some())),
            (fact, Some(Val { ty: Some(ty), .. })) => type_fact(fact, ty),
            _ => None,
        }
    }
}

impl<'a> Body<'a> {
    /// Walks the body of an op. With `aligned`, axes of operands that would meet under broadcasting
    /// are unified from the start.
    pub fn of(
        program: &'a Program,
        op: OpId,
        attrs: &[AttrValue],
        operands: &[Option<TensorType>],
        aligned: bool,
    ) -> Derived<(Body<'a>, Vec<Val>)> {
        let mut body = Body {
            program,
            space: Space::default(),
            terms: TermBuilder::new(),
            inputs: Vec::new(),
            steps: Vec::new(),
            row: None,
            known: HashMap::new(),
            values: Vec::new(),
            left: MAX_STEPS,
        };
        let values: Vec<Option<Val>> = operands.iter().map(|ty| ty.as_ref().map(|ty| body.operand(ty))).collect();
        if aligned {
            body.align()?;
        }
        let results = body.op_body(program.op(op), attrs, &values, 0)?;
        body.check()?;
        Ok((body, results))
    }

    fn operand(&mut self, ty: &TensorType) -> Val {
        let axes: Vec<Parts> = ty.shape.iter().map(|d| self.space.axis(d)).collect();
        let input = self.inputs.len() as u32;
        self.inputs.push((ty.clone(), axes.clone()));
        let id = self.terms.add(TermNode::In { input, view: InView::Broadcast });
        self.value(id, Some(ty.clone()), axes)
    }

    fn value(&mut self, id: TermId, ty: Option<TensorType>, axes: Vec<Parts>) -> Val {
        self.values.push(axes.iter().flatten().copied().collect());
        Val { id, ty, axes }
    }

    /// Unifies operand axes at the same position from the right, if all operands broadcast
    /// together.
    fn align(&mut self) -> Derived<()> {
        let mut full: Vec<Dim> = Vec::new();
        for (ty, _) in &self.inputs {
            full = broadcast(&full, &ty.shape).ok_or("its operands do not broadcast together")?;
        }
        let mut seen: Vec<Option<Parts>> = vec![None; full.len()];
        for (_, axes) in &self.inputs {
            let skip = full.len() - axes.len();
            for (slot, parts) in seen[skip..].iter_mut().zip(axes).filter(|(_, p)| !p.is_empty()) {
                match slot {
                    Some(known) => drop(self.space.unify(known, parts)),
                    None => *slot = Some(parts.clone()),
                }
            }
        }
        Ok(())
    }

    /// Checks that no value has the same axis twice.
    fn check(&self) -> Derived<()> {
        for axes in &self.values {
            let mut seen: HashSet<Axis> = HashSet::new();
            if !self.space.now(axes).into_iter().all(|a| seen.insert(a)) {
                return Err("a value does not lie along the rows of another".into());
            }
        }
        Ok(())
    }

    fn op_body(
        &mut self,
        def: &'a OpDef,
        attrs: &[AttrValue],
        operands: &[Option<Val>],
        depth: u32,
    ) -> Derived<Vec<Val>> {
        if depth > MAX_DEPTH {
            return Err(format!("op definitions are nested more than {MAX_DEPTH} levels deep"));
        }
        let OpBody::Defined(bodies) = &def.body else { return Err(format!("`{}` has no body", def.name)) };
        let types: Vec<Option<TensorType>> = operands.iter().map(|v| v.as_ref().and_then(|v| v.ty.clone())).collect();
        let bindings = bind_op(def, attrs, &types).map_err(|e| e.message)?;
        let mut tensors = HashMap::new();
        for (slot, (i, param)) in def.operands().enumerate() {
            match param.kind {
                ParamKind::Tensor { variadic: false, .. } => {}
                _ => return Err(format!("`{}` has an operand that is not a single tensor", def.name)),
            }
            tensors.insert(VarId(i as u32), operands.get(slot).cloned().flatten());
        }
        let scope = Scope { tensors, bindings };
        bodies.iter().map(|b| self.build(b, &scope, None, depth)).collect()
    }

    /// The value of an expression in a body; `sibling` is the type that a number takes.
    fn build(&mut self, build: &'a Build, scope: &Scope, sibling: Option<&TensorType>, depth: u32) -> Derived<Val> {
        self.left = self.left.checked_sub(1).ok_or("its body is too large")?;
        match build {
            Build::Var(v) => match scope.tensors.get(v) {
                Some(Some(value)) => Ok(value.clone()),
                Some(None) => Err("it uses an absent operand".into()),
                None => Err("it uses a variable that is not a tensor".into()),
            },
            Build::Number(e) => self.number(e, scope, sibling),
            Build::Node(node) => {
                let absent = |v: VarId| !matches!(scope.tensors.get(&v), Some(Some(_)));
                match without_absent(self.program, node, &absent) {
                    Some(rest) => self.build(rest, scope, sibling, depth),
                    None => self.node(node, scope, depth),
                }
            }
            Build::Else(v, other) => match scope.tensors.get(v) {
                Some(Some(value)) => Ok(value.clone()),
                _ => self.build(other, scope, sibling, depth),
            },
            Build::Frozen(inner) => self.build(inner, scope, sibling, depth),
            Build::If(guard, a, b) => match eval(guard, &scope.bindings, scope) {
                Some(AttrValue::Bool(true)) => self.build(a, scope, sibling, depth),
                Some(AttrValue::Bool(false)) => self.build(b, scope, sibling, depth),
                _ => Err("a condition in its body is unknown".into()),
            },
            Build::Absent => Err("a required operand is absent".into()),
        }
    }

    fn number(&mut self, e: &AExpr, scope: &Scope, sibling: Option<&TensorType>) -> Derived<Val> {
        let value = match eval(e, &scope.bindings, scope) {
            Some(AttrValue::Float(f)) => f,
            Some(AttrValue::Dim(d)) => d.as_const().ok_or("a number in its body is symbolic")? as f64,
            _ => return Err("a number in its body is unknown".into()),
        };
        let id = self.terms.lit(value);
        let ty = sibling.map(|t| TensorType { dtype: t.dtype, shape: Vec::new() });
        Ok(Val { id, ty, axes: Vec::new() })
    }

    fn node(&mut self, node: &'a BuildNode, scope: &Scope, depth: u32) -> Derived<Val> {
        // Numbers take the type of the first operand that has one.
        let mut args: Vec<Option<Val>> = Vec::with_capacity(node.args.len());
        let mut waiting: Vec<(usize, &'a Build)> = Vec::new();
        for (i, arg) in node.args.iter().enumerate() {
            let BuildArg::One(build) = arg else { return Err("it has a variable number of operands".into()) };
            args.push(match build {
                Build::Absent => None,
                Build::Var(v) if matches!(scope.tensors.get(v), Some(None)) => None,
                build => {
                    let value = self.build(build, scope, None, depth)?;
                    if value.ty.is_none() {
                        waiting.push((i, build));
                    }
                    Some(value)
                }
            });
        }
        let sibling = args.iter().flatten().filter_map(|v| v.ty.clone()).find(|t| t.dtype != DType::Bool);
        if let Some(sibling) = &sibling {
            for (i, build) in waiting {
                args[i] = Some(self.build(build, scope, Some(sibling), depth)?);
            }
        }
        match node.head {
            Head::Scalar(s) => {
                let values: Vec<Val> = args.into_iter().flatten().collect();
                let Some(types) = values.iter().map(|v| v.ty.clone()).collect::<Option<Vec<_>>>() else {
                    // A function of numbers only is a number.
                    let ids = values.iter().map(|v| v.id).collect();
                    let id = self.terms.call(s, ids);
                    return Ok(Val { id, ty: None, axes: Vec::new() });
                };
                let ty = apply_scalar(self.program, s, &types).map_err(|e| e.message)?;
                let axes = self.join(&values, &ty)?;
                let id = self.terms.call(s, values.iter().map(|v| v.id).collect());
                Ok(self.value(id, Some(ty), axes))
            }
            Head::Op(op) => {
                let rank = args.iter().flatten().find_map(|v| v.ty.as_ref()).map(|t| t.shape.len());
                let def = self.program.op(op);
                let given: Vec<Option<AttrValue>> =
                    node.attrs.iter().map(|a| eval(a, &scope.bindings, scope)).collect();
                if let Some(i) = given.iter().position(Option::is_none) {
                    let name = def.attrs().nth(i).map_or("?", |(_, p)| p.name.as_str());
                    return Err(format!("attribute `{name}` of `{}` is unknown", def.name));
                }
                let attrs = normalise_attrs(def, &given, rank).map_err(|e| e.message)?;
                match def.body {
                    OpBody::Defined(_) => {
                        let results = self.op_body(def, &attrs, &args, depth + 1)?;
                        let result = results.into_iter().nth(node.output as usize);
                        result.ok_or_else(|| format!("`{}` has no result {}", def.name, node.output))
                    }
                    OpBody::Builtin(b) => self.builtin(op, b, &attrs, args),
                }
            }
            Head::Acc | Head::In(_) | Head::TermCast | Head::Region(_) => Err("it is an epilogue term".into()),
        }
    }

    fn builtin(&mut self, op: OpId, b: BuiltinOp, attrs: &[AttrValue], args: Vec<Option<Val>>) -> Derived<Val> {
        let name = &self.program.op(op).name;
        let types: Vec<Option<TensorType>> = args.iter().map(|v| v.as_ref().and_then(|v| v.ty.clone())).collect();
        let reduction = match b {
            BuiltinOp::Sum => Some(Reduction::Sum),
            BuiltinOp::Mean => Some(Reduction::Mean),
            BuiltinOp::Amax => Some(Reduction::Max),
            BuiltinOp::Amin => Some(Reduction::Min),
            BuiltinOp::Prod => Some(Reduction::Prod),
            _ => None,
        };
        use BuiltinOp::{Cast, Full, Reshape, Transpose};
        if !fits_a_kernel(b) {
            return Err(format!("it uses `{name}`"));
        }
        let result = apply_op(self.program, op, attrs, &types).map_err(|e| e.message)?;
        let ty = result.into_iter().next().ok_or_else(|| format!("`{name}` has no result"))?;
        if b == Full {
            let Some(AttrValue::Float(value)) = attrs.get(1) else { return Err("a constant is unknown".into()) };
            let id = self.terms.lit(*value);
            let axes = ty.shape.iter().map(|d| self.space.axis(d)).collect();
            return Ok(self.value(id, Some(ty), axes));
        }
        let Some(Some(x)) = args.into_iter().next() else { return Err(format!("`{name}` has no operand")) };
        let Some(from) = x.ty.clone() else { return Err(format!("`{name}` is applied to a number")) };
        if let Some(reduction) = reduction {
            return self.reduce(reduction, x, &from, attrs, ty);
        }
        let (id, axes) = match b {
            Cast if from.dtype == ty.dtype => (x.id, x.axes),
            Cast => (self.terms.add(TermNode::Cast { to: ty.dtype, arg: x.id }), x.axes),
            Transpose => (x.id, permuted(&x.axes, attrs)?),
            Reshape => {
                let axes = self.space.reshape(&x.axes, &ty.shape);
                let (from, to) = (show_shape(&from.shape), show_shape(&ty.shape));
                (x.id, axes.ok_or_else(|| format!("a reshape of {from} to {to} moves elements between rows"))?)
            }
            _ => (x.id, self.expanded(&x.axes, &from.shape, &ty.shape)),
        };
        Ok(self.value(id, Some(ty), axes))
    }

    /// The axes of a value that is broadcast to a shape: new axes where it is repeated.
    fn expanded(&mut self, axes: &[Parts], from: &[Dim], to: &[Dim]) -> Vec<Parts> {
        let skip = to.len().saturating_sub(from.len());
        let mut out = Vec::with_capacity(to.len());
        for (i, size) in to.iter().enumerate() {
            let kept = i.checked_sub(skip).filter(|j| from.get(*j) == Some(size)).and_then(|j| axes.get(j));
            out.push(match kept {
                Some(parts) => parts.clone(),
                None => self.space.axis(size),
            });
        }
        out
    }

    /// The axes of a pointwise function of these values.
    fn join(&mut self, values: &[Val], ty: &TensorType) -> Derived<Vec<Parts>> {
        let mut out: Vec<Parts> = vec![Vec::new(); ty.shape.len()];
        for v in values {
            let skip = out.len().saturating_sub(v.axes.len());
            for (at, parts) in v.axes.iter().enumerate().filter(|(_, p)| !p.is_empty()) {
                let Some(slot) = out.get_mut(skip + at) else { continue };
                if slot.is_empty() {
                    slot.clone_from(parts);
                } else if !self.space.unify(slot, parts) {
                    let shape = show_shape(&ty.shape);
                    return Err(format!("two values of shape {shape} are divided into rows in different ways"));
                }
            }
        }
        Ok(out)
    }

    fn reduce(
        &mut self,
        reduction: Reduction,
        x: Val,
        from: &TensorType,
        attrs: &[AttrValue],
        ty: TensorType,
    ) -> Derived<Val> {
        let Some(AttrValue::List(axes)) = attrs.first() else { return Err("reduced axes are unknown".into()) };
        let reduced: Option<Vec<usize>> = axes
            .iter()
            .map(|a| match a {
                AttrValue::Dim(d) => d.as_const().and_then(|d| usize::try_from(d).ok()).filter(|d| *d < x.axes.len()),
                _ => None,
            })
            .collect();
        let reduced = reduced.ok_or("reduced axes are unknown")?;
        if !from.dtype.is_float() {
            return Err(format!("it reduces {}", from.dtype));
        }
        let parts: Parts = reduced.iter().flat_map(|a| x.axes[*a].clone()).collect();
        match self.row.clone() {
            None => self.row = Some(parts.clone()),
            Some(row) if self.same_axes(&row, &parts) => {}
            Some(row) => {
                if !self.space.unify(&row, &parts) || self.check().is_err() {
                    let shown = crate::typing::show_value(&AttrValue::List(axes.clone()));
                    let shape = show_shape(&from.shape);
                    return Err(format!(
                        "it reduces axes {shown} of {shape}; its other reductions reduce different axes"
                    ));
                }
            }
        }
        let step = match self.known.get(&(reduction, x.id)) {
            Some(step) => *step,
            None => {
                let step = self.steps.len() as u32;
                let axes = x.axes.iter().flatten().copied().collect();
                self.steps.push(Step { kind: reduction, value: x.id, axes });
                self.known.insert((reduction, x.id), step);
                step
            }
        };
        let id = self.terms.add(TermNode::In { input: STEP + step, view: InView::Broadcast });
        let keep = matches!(attrs.get(1), Some(AttrValue::Bool(true)));
        let mut left = Vec::with_capacity(x.axes.len());
        for (i, parts) in x.axes.into_iter().enumerate() {
            match reduced.contains(&i) {
                true if keep => left.push(Vec::new()),
                true => {}
                false => left.push(parts),
            }
        }
        Ok(self.value(id, Some(ty), left))
    }

    /// Whether both lists hold the same axes, in any order.
    fn same_axes(&self, a: &[Axis], b: &[Axis]) -> bool {
        let (a, b) = (self.space.now(a), self.space.now(b));
        a.len() == b.len() && a.iter().all(|x| b.contains(x))
    }
}

fn permuted(axes: &[Parts], attrs: &[AttrValue]) -> Derived<Vec<Parts>> {
    let Some(AttrValue::List(perm)) = attrs.first() else { return Err("the value of a permutation is unknown".into()) };
    let at = |p: &AttrValue| match p {
        AttrValue::Dim(d) => axes.get(usize::try_from(d.as_const()?).ok()?).cloned(),
        _ => None,
    };
    perm.iter().map(at).collect::<Option<Vec<_>>>().ok_or_else(|| "the value of a permutation is unknown".into())
}

/// Whether the body of an op may use this builtin op if its kernel is generated.
pub fn fits_a_kernel(op: BuiltinOp) -> bool {
    use BuiltinOp::*;
    matches!(op, Sum | Mean | Amax | Amin | Prod | Cast | Reshape | Expand | Full | Transpose)
}
