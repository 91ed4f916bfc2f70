//! The body of an op as terms over a space of axes.
//!
//! In: a defined op with its attribute values and operand types. Out: the values of its results,
//! each with a term and axes, and the intermediate reductions. The walk itself is that of
//! `interpret`; here is what a node of a body becomes. Invariant: all reductions are over the same
//! axes of the space, or over the same innermost ones of these (groups of a row); equal
//! subexpressions are deduped, so that a mean that occurs three times is one step.

use std::collections::{HashMap, HashSet};

use crate::builtin::BuiltinOp;
use crate::dtype::DType;
use crate::interpret::{Application, Host, Item, build_tensor};
use crate::ir::{AExpr, AttrValue, Fact, InView, OpBody, OpDef, OpId, ParamKind, Program, ScalarId, VarId};
use crate::scalar::{TermBuilder, TermId, TermNode};
use crate::shape::{Dim, broadcast, show_shape};
use crate::typing::{Bindings, Facts, TensorType, apply_op, apply_scalar, bind_op, eval, normalise_attrs, type_fact};

use super::space::{Axes, Axis, Space};
use super::{GatheredRows, Reduction};

/// Maximum nesting depth of ops.
const MAX_DEPTH: usize = 32;
/// Maximum number of expressions in the inlined body.
const MAX_STEPS: u32 = 10_000;

/// Until the number of inputs is known, results of steps are numbered from here.
pub(super) const STEP: u32 = 1 << 30;

/// Why axes of operands cannot be unified before the body is walked.
pub(super) const NOT_TOGETHER: &str = "its operands do not broadcast together";

/// A result, or the reason why the body has no such kernel, as the end of a sentence.
pub(super) type Derived<T> = Result<T, String>;

/// A tensor during the walk over the body.
#[derive(Clone, Debug)]
pub(super) struct Val {
    /// Its term.
    pub id: TermId,
    /// Its type.
    pub ty: TensorType,
    /// The axes of the space that each axis of its shape is made of.
    pub axes: Vec<Axes>,
}

/// A reduction and its operand.
pub(super) struct Step {
    pub kind: Reduction,
    pub value: TermId,
    /// The axes of the operand of the reduction.
    pub axes: Axes,
    /// True if it is over groups of a row.
    pub grouped: bool,
}

/// The state of the walk.
pub(super) struct Body<'a> {
    program: &'a Program,
    pub space: Space,
    pub terms: TermBuilder,
    /// Type and axes of each operand that is present.
    pub inputs: Vec<(TensorType, Vec<Axes>)>,
    pub steps: Vec<Step>,
    /// Operands whose rows another one picks.
    pub gathers: Vec<GatheredRows>,
    /// The reduced axes, once there is a reduction.
    pub row: Option<Axes>,
    /// The innermost of these that make up a group, once there is a reduction over groups.
    pub group: Option<Axes>,
    known: HashMap<(Reduction, TermId, bool), u32>,
    /// Every value: no two axes of one value may be unified.
    values: Vec<Val>,
    /// The ops whose bodies are walked, innermost last.
    scopes: Vec<Scope>,
    left: u32,
}

/// The variables of the op whose body is walked.
struct Scope {
    tensors: HashMap<VarId, Option<ValId>>,
    /// The types of those that are present.
    types: HashMap<VarId, TensorType>,
    bindings: Bindings,
}

/// A value of the walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValId(usize);

impl Facts for Scope {
    fn fact(&self, fact: Fact, var: VarId) -> Option<AttrValue> {
        let present = self.tensors.get(&var)?.is_some();
        match fact {
            Fact::Present => Some(AttrValue::Bool(present)),
            _ => type_fact(fact, self.types.get(&var)?),
        }
    }
}

impl<'a> Body<'a> {
    /// Without operands.
    pub fn new(program: &'a Program) -> Body<'a> {
        Body {
            program,
            space: Space::default(),
            terms: TermBuilder::new(),
            inputs: Vec::new(),
            steps: Vec::new(),
            gathers: Vec::new(),
            row: None,
            group: None,
            known: HashMap::new(),
            values: Vec::new(),
            scopes: Vec::new(),
            left: MAX_STEPS,
        }
    }

    /// Walks the body of an op. With `aligned`, axes of operands that would meet under broadcasting
    /// are unified from the start.
    pub fn of(
        program: &'a Program,
        op: OpId,
        attrs: &[AttrValue],
        operands: &[Option<TensorType>],
        aligned: bool,
    ) -> Derived<(Body<'a>, Vec<Val>)> {
        let mut body = Body::new(program);
        let values: Vec<Option<ValId>> = operands.iter().map(|ty| ty.as_ref().map(|ty| body.operand(ty))).collect();
        if aligned {
            body.align()?;
        }
        let results = body.op_body(program.op(op), attrs, &values)?;
        body.check()?;
        let results = results.into_iter().map(|v| body.val(v).clone()).collect();
        Ok((body, results))
    }

    /// A further operand.
    pub fn operand(&mut self, ty: &TensorType) -> ValId {
        let axes: Vec<Axes> = ty.shape.iter().map(|d| self.space.axis(d)).collect();
        let input = self.inputs.len() as u32;
        self.inputs.push((ty.clone(), axes.clone()));
        let id = self.terms.add(TermNode::In { input, view: InView::Broadcast });
        self.value(id, ty.clone(), axes)
    }

    /// The rows of a further operand, a table, that another operand picks.
    pub fn gather(&mut self, table: &TensorType, index: ValId) -> Derived<ValId> {
        let Val { id, axes: of_index, ty: index_ty } = self.val(index).clone();
        let TermNode::In { input, .. } = *self.terms.node(id) else { return Err("an index is computed".into()) };
        let rows = table.shape.first().and_then(Dim::as_const).and_then(|n| usize::try_from(n).ok());
        let rows = rows.filter(|_| input < STEP).ok_or("the rows of a table are unknown")?;
        let width = table.shape[1..].iter().try_fold(1i64, |n, d| n.checked_mul(d.as_const()?));
        let width = width.and_then(|n| usize::try_from(n).ok()).ok_or("the rows of a table are of unknown length")?;
        let mut axes: Vec<Axes> = vec![Vec::new()];
        axes.extend(table.shape[1..].iter().map(|d| self.space.axis(d)));
        let at = self.inputs.len();
        self.inputs.push((table.clone(), axes.clone()));
        self.gathers.push(GatheredRows { table: at, index: input as usize, axis: 0, rows, width });
        let id = self.terms.add(TermNode::In { input: at as u32, view: InView::Broadcast });
        let shape = index_ty.shape.iter().chain(&table.shape[1..]).cloned().collect();
        let axes = of_index.into_iter().chain(axes.into_iter().skip(1)).collect();
        Ok(self.value(id, TensorType { dtype: table.dtype, shape }, axes))
    }

    /// The element of each row of an operand that an index names, read on its own: the operand once
    /// more. The index has one element a row.
    pub fn pick(&mut self, operand: u32, index: ValId) -> Derived<ValId> {
        let Val { id, axes: of_index, .. } = self.val(index).clone();
        let TermNode::In { input, .. } = *self.terms.node(id) else { return Err("an index is computed".into()) };
        let known = self.inputs.get(operand as usize).filter(|_| input < STEP).cloned();
        let (ty, mut axes) = known.ok_or("an operand is unknown")?;
        let last = ty.shape.len().checked_sub(1).ok_or("it picks from a number")?;
        let rows =
            ty.shape[last].as_const().and_then(|n| usize::try_from(n).ok()).ok_or("a row's length is unknown")?;
        axes[last] = Vec::new();
        if !self.lie_alike(&axes, &of_index) {
            return Err("an index does not lie along the rows that it picks from".into());
        }
        let at = self.inputs.len();
        self.inputs.push((ty.clone(), axes.clone()));
        self.gathers.push(GatheredRows { table: at, index: input as usize, axis: last, rows, width: 1 });
        let id = self.terms.add(TermNode::In { input: at as u32, view: InView::Broadcast });
        let mut shape = ty.shape;
        shape[last] = Dim::from(1);
        Ok(self.value(id, TensorType { dtype: ty.dtype, shape }, axes))
    }

    /// True if both are made of the same axes of the space.
    fn lie_alike(&self, a: &[Axes], b: &[Axes]) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| self.space.now(a) == self.space.now(b))
    }

    /// Unifies the axes of an index with those of a value that it picks from, but for the last.
    pub fn index_of(&mut self, x: ValId, index: ValId) -> Derived<()> {
        let (axes, of_index) = (self.val(x).axes.clone(), self.val(index).axes.clone());
        let lead = axes.len().saturating_sub(1);
        let mut both = axes[..lead].iter().zip(&of_index);
        match of_index.len() == axes.len() && both.all(|(a, b)| self.space.unify(a, b)) {
            true => Ok(()),
            false => Err("an index does not lie along the rows that it picks from".into()),
        }
    }

    /// The operands that vary along the last axis of a value, if all of these lie as it does.
    pub fn operands_along(&self, x: ValId) -> Option<Vec<u32>> {
        let Val { id, ty, axes } = self.val(x);
        let row = self.space.now(axes.last()?);
        let mut reached = vec![false; id.0 as usize + 1];
        reached[id.0 as usize] = true;
        let mut out = Vec::new();
        for i in (0..reached.len()).rev().filter(|_| self.group.is_none()) {
            if !reached[i] {
                continue;
            }
            let node = self.terms.node(TermId(i as u32));
            node.args().iter().for_each(|a| reached[a.0 as usize] = true);
            // Results of reductions are the same for a whole row.
            let TermNode::In { input, .. } = node else { continue };
            let Some((of, of_axes)) = self.inputs.get(*input as usize) else { continue };
            let varies = self.space.now(&of_axes.concat()).iter().any(|a| row.contains(a));
            let is_table = self.gathers.iter().any(|g| g.table == *input as usize);
            match (varies, of.shape == ty.shape && self.lie_alike(of_axes, axes) && !is_table) {
                (false, _) => {}
                (true, true) => out.push(*input),
                (true, false) => return None,
            }
        }
        self.group.is_none().then_some(out)
    }

    /// An operand as a value of its own.
    pub fn operand_again(&mut self, operand: u32) -> ValId {
        let (ty, axes) = self.inputs[operand as usize].clone();
        let id = self.terms.add(TermNode::In { input: operand, view: InView::Broadcast });
        self.value(id, ty, axes)
    }

    /// A term with these values in place of operands.
    pub fn with_operands(&mut self, id: TermId, values: &[(u32, ValId)]) -> TermId {
        let mut map: Vec<TermId> = Vec::with_capacity(id.0 as usize + 1);
        for i in 0..=id.0 {
            let node = self.terms.node(TermId(i)).clone();
            let instead = values.iter().find(|(o, _)| matches!(node, TermNode::In { input, .. } if input == *o));
            map.push(match instead {
                Some((_, value)) => self.val(*value).id,
                None => self.terms.add(node.map_args(|a| map[a.0 as usize])),
            });
        }
        map.last().copied().unwrap_or(id)
    }

    /// A further value.
    pub fn value(&mut self, id: TermId, ty: TensorType, axes: Vec<Axes>) -> ValId {
        self.values.push(Val { id, ty, axes });
        ValId(self.values.len() - 1)
    }

    /// What is known of a value.
    pub fn val(&self, at: ValId) -> &Val {
        &self.values[at.0]
    }

    /// Unifies operand axes at the same position from the right, if all operands broadcast
    /// together.
    fn align(&mut self) -> Derived<()> {
        let mut full: Vec<Dim> = Vec::new();
        for (ty, _) in &self.inputs {
            full = broadcast(&full, &ty.shape).ok_or(NOT_TOGETHER)?;
        }
        let mut seen: Vec<Option<Axes>> = vec![None; full.len()];
        for (_, axes) in &self.inputs {
            let skip = full.len() - axes.len();
            for (slot, own) in seen[skip..].iter_mut().zip(axes).filter(|(_, p)| !p.is_empty()) {
                match slot {
                    Some(known) => drop(self.space.unify(known, own)),
                    None => *slot = Some(own.clone()),
                }
            }
        }
        Ok(())
    }

    /// Checks that no value has the same axis twice.
    pub fn check(&self) -> Derived<()> {
        for value in &self.values {
            let mut seen: HashSet<Axis> = HashSet::new();
            let axes: Axes = value.axes.iter().flatten().copied().collect();
            if !self.space.now(&axes).into_iter().all(|a| seen.insert(a)) {
                return Err("a value does not lie along the rows of another".into());
            }
        }
        Ok(())
    }

    /// The results of an op with a body.
    pub fn op_body(&mut self, def: &'a OpDef, attrs: &[AttrValue], operands: &[Option<ValId>]) -> Derived<Vec<ValId>> {
        if self.scopes.len() > MAX_DEPTH {
            return Err(format!("op definitions are nested more than {MAX_DEPTH} levels deep"));
        }
        let OpBody::Defined(bodies) = &def.body else { return Err(format!("`{}` has no body", def.name)) };
        let ty = |v: &Option<ValId>| v.map(|v| self.val(v).ty.clone());
        let types: Vec<Option<TensorType>> = operands.iter().map(ty).collect();
        let bindings = bind_op(def, attrs, &types).map_err(|e| e.message)?;
        let mut scope = Scope { tensors: HashMap::new(), types: HashMap::new(), bindings };
        for (slot, (i, param)) in def.operands().enumerate() {
            match param.kind {
                ParamKind::Tensor { variadic: false, .. } => {}
                _ => return Err(format!("`{}` has an operand that is not a single tensor", def.name)),
            }
            let var = VarId(i as u32);
            scope.tensors.insert(var, operands.get(slot).copied().flatten());
            scope.types.extend(types.get(slot).cloned().flatten().map(|ty| (var, ty)));
        }
        self.scopes.push(scope);
        let results = bodies.iter().map(|b| present(build_tensor(self, b, None)?)).collect();
        self.scopes.pop();
        results
    }

    fn scope(&self) -> Derived<&Scope> {
        self.scopes.last().ok_or_else(|| "it is the body of no op".into())
    }

    /// The result of a builtin op.
    pub fn builtin(&mut self, op: OpId, b: BuiltinOp, attrs: &[AttrValue], args: &[Option<ValId>]) -> Derived<ValId> {
        let name = &self.program.op(op).name;
        let types: Vec<Option<TensorType>> = args.iter().map(|v| v.map(|v| self.val(v).ty.clone())).collect();
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
            return Ok(self.value(id, ty, axes));
        }
        let Some(Some(x)) = args.first() else { return Err(format!("`{name}` has no operand")) };
        let x = self.val(*x).clone();
        let from = x.ty.clone();
        if let Some(reduction) = reduction(b) {
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
        Ok(self.value(id, ty, axes))
    }

    /// The axes of a value that is broadcast to a shape: new axes where it is repeated.
    fn expanded(&mut self, axes: &[Axes], from: &[Dim], to: &[Dim]) -> Vec<Axes> {
        let skip = to.len().saturating_sub(from.len());
        let mut out = Vec::with_capacity(to.len());
        for (i, size) in to.iter().enumerate() {
            let kept = i.checked_sub(skip).filter(|j| from.get(*j) == Some(size)).and_then(|j| axes.get(j));
            out.push(match kept {
                Some(axes) => axes.clone(),
                None => self.space.axis(size),
            });
        }
        out
    }

    /// The axes of a pointwise function of these values.
    fn join(&mut self, values: &[Val], ty: &TensorType) -> Derived<Vec<Axes>> {
        let mut out: Vec<Axes> = vec![Vec::new(); ty.shape.len()];
        for v in values {
            let skip = out.len().saturating_sub(v.axes.len());
            for (at, own) in v.axes.iter().enumerate().filter(|(_, p)| !p.is_empty()) {
                let Some(slot) = out.get_mut(skip + at) else { continue };
                if slot.is_empty() {
                    slot.clone_from(own);
                } else if !self.space.unify(slot, own) {
                    let shape = show_shape(&ty.shape);
                    return Err(format!("two values of shape {shape} are divided into rows in different ways"));
                }
            }
        }
        Ok(out)
    }

    /// Learns the row, or the groups of a row, from a reduction over these axes, which `what`
    /// describes. Returns whether it reduces groups.
    fn reduces_groups(&mut self, over: Axes, what: &dyn Fn() -> String) -> Derived<bool> {
        match self.row.clone() {
            None => self.row = Some(over),
            Some(row) if self.same_axes(&row, &over) => {}
            // What was reduced so far was groups of this row.
            Some(row) if self.group.is_none() && self.ends_with(&over, &row) => {
                (self.group, self.row) = (Some(row), Some(over));
                self.steps.iter_mut().for_each(|step| step.grouped = true);
                self.known = self.known.drain().map(|((kind, id, _), step)| ((kind, id, true), step)).collect();
            }
            Some(row) if self.ends_with(&row, &over) => {
                let group = self.group.get_or_insert_with(|| over.clone()).clone();
                if !self.same_axes(&group, &over) {
                    return Err("it reduces groups of different sizes".into());
                }
                return Ok(true);
            }
            Some(row) => {
                if !self.space.unify(&row, &over) || self.check().is_err() {
                    return Err(format!("{}; its other reductions reduce different axes", what()));
                }
            }
        }
        Ok(false)
    }

    fn reduce(
        &mut self,
        reduction: Reduction,
        x: Val,
        from: &TensorType,
        attrs: &[AttrValue],
        ty: TensorType,
    ) -> Derived<ValId> {
        let Some(AttrValue::List(axes)) = attrs.first() else { return Err("reduced axes are unknown".into()) };
        let reduced: Option<Vec<usize>> = axes
            .iter()
            .map(|a| match a {
                AttrValue::Dim(d) => d.as_const().and_then(|d| usize::try_from(d).ok()).filter(|d| *d < x.axes.len()),
                _ => None,
            })
            .collect();
        let reduced = reduced.ok_or("reduced axes are unknown")?;
        // The extremes of no integers depend on their type.
        let nothing = reduced.iter().any(|a| from.shape[*a].as_const().is_none_or(|d| d == 0));
        if !from.dtype.is_float() && (nothing || reduction == Reduction::Mean) {
            return Err(format!("it reduces {}", from.dtype));
        }
        let over: Axes = reduced.iter().flat_map(|a| x.axes[*a].clone()).collect();
        let grouped = self.reduces_groups(over, &|| {
            let shown = crate::typing::show_value(&AttrValue::List(axes.clone()));
            format!("it reduces axes {shown} of {}", show_shape(&from.shape))
        })?;
        let step = match self.known.get(&(reduction, x.id, grouped)) {
            Some(step) => *step,
            None => {
                let step = self.steps.len() as u32;
                let axes = x.axes.iter().flatten().copied().collect();
                self.steps.push(Step { kind: reduction, value: x.id, axes, grouped });
                self.known.insert((reduction, x.id, grouped), step);
                step
            }
        };
        let mut id = self.terms.add(TermNode::In { input: STEP + step, view: InView::Broadcast });
        // Integers are reduced in 64 bits.
        if !from.dtype.is_float() && from.dtype != DType::I64 {
            id = self.terms.add(TermNode::Cast { to: ty.dtype, arg: id });
        }
        let keep = matches!(attrs.get(1), Some(AttrValue::Bool(true)));
        let mut left = Vec::with_capacity(x.axes.len());
        for (i, own) in x.axes.into_iter().enumerate() {
            match reduced.contains(&i) {
                true if keep => left.push(Vec::new()),
                true => {}
                false => left.push(own),
            }
        }
        Ok(self.value(id, ty, left))
    }

    /// States which axes make up a row, as a reduction over them would.
    pub fn rows_of(&mut self, axes: &[Axis]) -> Derived<()> {
        match self.row.clone() {
            None => self.row = Some(axes.to_vec()),
            Some(row) if self.same_axes(&row, axes) => {}
            Some(row) => {
                if !self.space.unify(&row, axes) || self.check().is_err() {
                    return Err("it adds up other rows than it reduces".into());
                }
            }
        }
        Ok(())
    }

    /// Whether the axes of a row are others and, after these, the given ones.
    fn ends_with(&self, row: &[Axis], group: &[Axis]) -> bool {
        let (row, group) = (self.space.now(row), self.space.now(group));
        !group.is_empty() && group.len() < row.len() && row.ends_with(&group)
    }

    /// Whether both lists hold the same axes, in any order.
    fn same_axes(&self, a: &[Axis], b: &[Axis]) -> bool {
        let (a, b) = (self.space.now(a), self.space.now(b));
        a.len() == b.len() && a.iter().all(|x| b.contains(x))
    }
}

/// The body as a host of the interpreter: a tensor is a term with axes.
impl<'a> Host for Body<'a> {
    type Value = Option<ValId>;
    type Term = ();
    type Epilogue = ();
    type Error = String;
    type Program = &'a Program;

    fn program(&self) -> &Self::Program {
        &self.program
    }

    fn ill_typed(message: String) -> String {
        message
    }

    fn descend(&mut self) -> Derived<()> {
        self.left = self.left.checked_sub(1).ok_or("its body is too large")?;
        Ok(())
    }

    fn ascend(&mut self) {}

    fn variable(&mut self, v: VarId) -> Derived<Option<ValId>> {
        let value = self.scope()?.tensors.get(&v).copied();
        value.ok_or_else(|| "it uses a variable that is not a tensor".into())
    }

    fn is_absent(&self, v: VarId) -> bool {
        self.scope().is_ok_and(|s| !matches!(s.tensors.get(&v), Some(Some(_))))
    }

    fn variables(&self, _v: VarId) -> Derived<Vec<Option<ValId>>> {
        Err("it has a variable number of operands".into())
    }

    fn eval(&self, expr: &AExpr, _items: &[Item<Option<ValId>>]) -> Option<AttrValue> {
        let scope = self.scopes.last()?;
        eval(expr, &scope.bindings, scope)
    }

    fn dtype(&self, value: Option<ValId>) -> Option<DType> {
        value.map(|v| self.val(v).ty.dtype)
    }

    fn absent(&mut self) -> Derived<Option<ValId>> {
        Ok(None)
    }

    fn number(&mut self, _expr: &AExpr, value: f64, dtype: DType) -> Derived<Option<ValId>> {
        let id = self.terms.lit(value);
        Ok(Some(self.value(id, TensorType { dtype, shape: Vec::new() }, Vec::new())))
    }

    fn scalar(&mut self, scalar: ScalarId, operands: &[Option<ValId>]) -> Derived<Option<ValId>> {
        let values: Vec<Val> = operands.iter().map(|v| Ok(self.val(present(*v)?).clone())).collect::<Derived<_>>()?;
        let types: Vec<TensorType> = values.iter().map(|v| v.ty.clone()).collect();
        let ty = apply_scalar(self.program, scalar, &types).map_err(|e| e.message)?;
        let axes = self.join(&values, &ty)?;
        let id = self.terms.call(scalar, values.iter().map(|v| v.id).collect());
        Ok(Some(self.value(id, ty, axes)))
    }

    fn op(&mut self, application: Application<'_, Self>) -> Derived<Option<ValId>> {
        let Application { op, output, operands, attrs, .. } = application;
        let def = self.program.op(op);
        let rank = operands.iter().flatten().next().map(|v| self.val(*v).ty.shape.len());
        let given: Vec<Option<AttrValue>> = attrs.into_iter().map(Some).collect();
        let attrs = normalise_attrs(def, &given, rank).map_err(|e| e.message)?;
        match def.body {
            OpBody::Defined(_) => {
                let result = self.op_body(def, &attrs, operands)?.into_iter().nth(output as usize);
                result.map(Some).ok_or_else(|| format!("`{}` has no result {output}", def.name))
            }
            OpBody::Builtin(b) => self.builtin(op, b, &attrs, operands).map(Some),
        }
    }
}

fn present(value: Option<ValId>) -> Derived<ValId> {
    value.ok_or_else(|| "a required operand is absent".into())
}

fn permuted(axes: &[Axes], attrs: &[AttrValue]) -> Derived<Vec<Axes>> {
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

/// The reduction that a builtin op is.
pub fn reduction(op: BuiltinOp) -> Option<Reduction> {
    match op {
        BuiltinOp::Sum => Some(Reduction::Sum),
        BuiltinOp::Mean => Some(Reduction::Mean),
        BuiltinOp::Amax => Some(Reduction::Max),
        BuiltinOp::Amin => Some(Reduction::Min),
        BuiltinOp::Prod => Some(Reduction::Prod),
        _ => None,
    }
}
