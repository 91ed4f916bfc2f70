//! Row-wise kernels of regions: what a graph computes along one axis, node by node.
//!
//! In: the nodes of a region in order, on operands of known types. Out: its row-wise kernel, or the
//! reason why there is none. Invariant: as for the body of an op (see `derive`); moreover what is
//! computed again for each row or for each element that shares it is counted ([`SharedWork`]), and
//! no reduction is.

use std::ops::Range;

use crate::builtin::{BuiltinOp, BuiltinScalar};
use crate::dtype::DType;
use crate::interpret::Host;
use crate::ir::{AttrValue, OpBody, OpId, Program, ScalarBody, ScalarId};
use crate::scalar::TermNode;
use crate::shape::Dim;
use crate::typing::TensorType;

use super::body::{Body, Val, ValId};
use super::derive::{Summed, finish, shape_of};
use super::space::Axes;
use super::{RowAccess, RowSpace, RowwiseKernel};

/// A region under construction.
pub struct RowRegion<'p> {
    program: &'p Program,
    body: Body<'p>,
    /// The values that take work.
    computed: Vec<Computed>,
    operands: Vec<RowOperand>,
    /// Sums over all rows.
    sums: Vec<Summed>,
    /// The axes of the rows of a table that an operand picks, if there is one.
    picked_rows: Option<Axes>,
}

/// A value that takes work.
struct Computed {
    value: ValId,
    work: Work,
}

/// How much work a value takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// One instruction.
    Light,
    /// A function of more than one.
    Function,
    /// An op with a kernel of its own.
    Op,
}

/// The functions of values that rows or elements share: a kernel computes them again for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedWork {
    /// How many there are.
    pub functions: usize,
    /// True if each is one instruction.
    pub light: bool,
}

/// An operand of a region's kernel.
#[derive(Clone, Debug, PartialEq)]
pub enum RowOperand {
    /// The next one of those that were given to [`RowRegion::operand`].
    Given,
    /// 0, 1, 2 and so on along a row of that many elements, in that type.
    Positions(DType, usize),
    /// An earlier operand once more.
    Again(usize),
}

/// A value of a region.
#[derive(Clone, Copy, Debug)]
pub struct RowValue(ValId);

/// A sum over all rows of a region, one a column.
#[derive(Clone, Copy, Debug)]
pub struct ColumnSum(usize);

impl<'p> RowRegion<'p> {
    /// A region without nodes.
    pub fn new(program: &'p Program) -> RowRegion<'p> {
        let (computed, operands, sums) = (Vec::new(), Vec::new(), Vec::new());
        RowRegion { program, body: Body::new(program), computed, operands, sums, picked_rows: None }
    }

    /// The next operand of the kernel.
    pub fn operand(&mut self, ty: &TensorType) -> RowValue {
        self.operands.push(RowOperand::Given);
        RowValue(self.body.operand(ty))
    }

    /// The rows of a table, the next operand of the kernel, that an operand picks.
    pub fn gather(&mut self, table: &TensorType, index: RowValue) -> Result<RowValue, String> {
        self.operands.push(RowOperand::Given);
        let (before, made) = (self.body.val(index.0).axes.len(), self.body.gather(table, index.0)?);
        let row = self.body.val(made).axes[before..].concat();
        if !row.is_empty() {
            self.picked_rows = Some(row);
        }
        Ok(RowValue(made))
    }

    /// The operands of the kernel so far.
    pub fn operands(&self) -> &[RowOperand] {
        &self.operands
    }

    /// A number, of a type that another operand of its user has.
    pub fn number(&mut self, value: f64, dtype: DType) -> RowValue {
        let id = self.body.terms.lit(value);
        RowValue(self.body.value(id, TensorType { dtype, shape: Vec::new() }, Vec::new()))
    }

    /// A function of each element.
    pub fn scalar(&mut self, scalar: ScalarId, operands: &[RowValue]) -> Result<RowValue, String> {
        let operands: Vec<Option<ValId>> = operands.iter().map(|v| Some(v.0)).collect();
        let value = Host::scalar(&mut self.body, scalar, &operands)?.ok_or("a function without a result")?;
        let light = matches!(self.program.scalar(scalar).body, ScalarBody::Builtin(b) if b.cost().instructions == 1);
        self.computed.push(Computed { value, work: if light { Work::Light } else { Work::Function } });
        Ok(RowValue(value))
    }

    /// The value as if it were stored in its own type: integers wrap around.
    pub fn stored(&mut self, value: RowValue) -> RowValue {
        let Val { id, ty, axes } = self.body.val(value.0).clone();
        let id = self.body.terms.add(TermNode::Cast { to: ty.dtype, arg: id });
        RowValue(self.body.value(id, ty, axes))
    }

    /// The results of an op.
    pub fn op(
        &mut self,
        op: OpId,
        attrs: &[AttrValue],
        operands: &[Option<RowValue>],
    ) -> Result<Vec<RowValue>, String> {
        let operands: Vec<Option<ValId>> = operands.iter().map(|v| v.map(|v| v.0)).collect();
        let def = self.program.op(op);
        if let (OpBody::Builtin(BuiltinOp::GatherElements), [Some(x), Some(index)]) = (&def.body, operands.as_slice()) {
            return Ok(vec![self.picked(*x, *index, attrs)?]);
        }
        if let (OpBody::Builtin(BuiltinOp::Argmax), [Some(x)]) = (&def.body, operands.as_slice()) {
            return Ok(vec![self.place_of_largest(*x, attrs)?]);
        }
        let results = match def.body {
            OpBody::Defined(_) => self.body.op_body(def, attrs, &operands)?,
            OpBody::Builtin(b) => vec![self.body.builtin(op, b, attrs, &operands)?],
        };
        // A conversion takes no work that another kernel could save: its result would be stored.
        use BuiltinOp::{Cast, Expand, Full, Reshape, Transpose};
        if !matches!(def.body, OpBody::Builtin(Reshape | Transpose | Expand | Full | Cast)) {
            self.computed.extend(results.iter().map(|value| Computed { value: *value, work: Work::Op }));
        }
        Ok(results.into_iter().map(RowValue).collect())
    }

    /// The element of each row that an index names: what is computed of it, of the operands'
    /// elements at that place. NaN if the index lies outside of the row.
    fn picked(&mut self, x: ValId, index: ValId, attrs: &[AttrValue]) -> Result<RowValue, String> {
        use BuiltinScalar::{Add, And, Le, Lt, Select};
        let (of_x, of_index) = (self.body.val(x).ty.clone(), self.body.val(index).ty.clone());
        let last = of_x.shape.len().checked_sub(1).ok_or("it picks from a number")?;
        let axis = match attrs.first() {
            Some(AttrValue::Dim(axis)) => axis.as_const().ok_or("an axis is unknown")?,
            _ => return Err("an axis is unknown".into()),
        };
        let one_each = of_index.shape.len() == last + 1
            && of_index.shape[..last] == of_x.shape[..last]
            && of_index.shape[last].as_const() == Some(1);
        let size = of_x.shape[last].as_const().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
        let (Some(size), true) = (size, one_each && (axis == last as i64 || axis == -1) && of_x.dtype.is_float())
        else {
            return Err("it picks more than one element of each row".into());
        };
        self.body.index_of(x, index)?;
        let dtype = of_index.dtype;
        let (zero, count) = (self.number(0.0, dtype), self.number(size as f64, dtype));
        let index = RowValue(index);
        let (negative, from_end) = (self.function(Lt, &[index, zero])?, self.function(Add, &[index, count])?);
        let at = self.function(Select, &[negative, from_end, index])?;
        let (not_before, not_behind) = (self.function(Le, &[zero, at])?, self.function(Lt, &[at, count])?);
        let inside = self.function(And, &[not_before, not_behind])?;
        let one = self.at_place(x, (index, at), size)?;
        let nan = self.number(f64::NAN, of_x.dtype);
        self.function(Select, &[inside, one, nan])
    }

    /// A value at one place of each row, whose index is known as it is stored and counted from the
    /// first element. What it is computed of is read there alone, if that is possible.
    fn at_place(&mut self, x: ValId, (index, at): (RowValue, RowValue), size: usize) -> Result<RowValue, String> {
        let Val { id, ty, .. } = self.body.val(x).clone();
        let Some(along) = self.body.operands_along(x) else { return self.largest_at(RowValue(x), at, size) };
        let mut picked: Vec<(u32, ValId)> = Vec::new();
        for operand in &along {
            let Ok(one) = self.body.pick(*operand, index.0) else { break };
            self.operands.push(RowOperand::Again(*operand as usize));
            picked.push((*operand, one));
        }
        match along.as_slice() {
            [only] if picked.is_empty() && self.body.inputs[*only as usize].0.dtype.is_float() => {
                let whole = self.body.operand_again(*only);
                picked.push((*only, self.largest_at(RowValue(whole), at, size)?.0));
            }
            all if all.len() == picked.len() && !all.is_empty() => {}
            _ => return self.largest_at(RowValue(x), at, size),
        }
        let mut shape = ty.shape;
        if let Some(last) = shape.last_mut() {
            *last = Dim::from(1);
        }
        let axes = self.body.val(picked[0].1).axes.clone();
        let id = self.body.with_operands(id, &picked);
        Ok(RowValue(self.body.value(id, TensorType { dtype: ty.dtype, shape }, axes)))
    }

    /// A value at a computed place of each row: the largest of that one and of -inf for all others,
    /// which is exact.
    fn largest_at(&mut self, x: RowValue, at: RowValue, size: usize) -> Result<RowValue, String> {
        use BuiltinScalar::{Eq, Select};
        let ty = self.body.val(x.0).ty.clone();
        let last = ty.shape.len().checked_sub(1).filter(|_| ty.dtype.is_float()).ok_or("it picks no floats of rows")?;
        let dtype = self.body.val(at.0).ty.dtype;
        let positions = self.body.operand(&TensorType { dtype, shape: vec![ty.shape[last].clone()] });
        self.operands.push(RowOperand::Positions(dtype, size));
        let this = self.function(Eq, &[RowValue(positions), at])?;
        let nothing = self.number(f64::NEG_INFINITY, ty.dtype);
        let one = self.function(Select, &[this, x, nothing])?;
        let op = self.program.builtin_op(BuiltinOp::Amax).ok_or("a builtin op is not declared")?;
        let axes = AttrValue::List(vec![AttrValue::Dim((last as i64).into())]);
        Ok(self.op(op, &[axes, AttrValue::Bool(true)], &[Some(one)])?[0])
    }

    /// Where the largest element of each row lies: the first one of the largest, or the last, as an
    /// attribute says. A NaN counts as the largest.
    fn place_of_largest(&mut self, x: ValId, attrs: &[AttrValue]) -> Result<RowValue, String> {
        use BuiltinScalar::{Eq, IsNan, Or, Select};
        let of = self.body.val(x).ty.clone();
        let last = of.shape.len().checked_sub(1).ok_or("it searches a number")?;
        let [AttrValue::Dim(axis), AttrValue::Bool(keeps), AttrValue::Bool(latest)] = attrs else {
            return Err("an attribute is unknown".into());
        };
        let along_last = axis.as_const().is_some_and(|a| a == last as i64 || a == -1);
        let size = of.shape[last].as_const().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0 && along_last);
        let size = size.ok_or("it searches along an axis other than the last one")?;
        let positions = self.body.operand(&TensorType { dtype: DType::I64, shape: vec![of.shape[last].clone()] });
        self.operands.push(RowOperand::Positions(DType::I64, size));
        // What is compared is what another kernel would store.
        let x = self.stored(RowValue(x));
        let axes = || AttrValue::List(vec![AttrValue::Dim((last as i64).into())]);
        let builtin = |op| self.program.builtin_op(op).ok_or("a builtin op is not declared");
        let (amax, amin) = (builtin(BuiltinOp::Amax)?, builtin(BuiltinOp::Amin)?);
        let largest = self.op(amax, &[axes(), AttrValue::Bool(true)], &[Some(x)])?[0];
        let mut found = self.function(Eq, &[x, largest])?;
        if of.dtype.is_float() {
            let nan = self.function(IsNan, &[x])?;
            found = self.function(Or, &[found, nan])?;
        }
        // What no element has: in front of all places, or behind them.
        let (pick, nowhere) = if *latest { (amax, -1.0) } else { (amin, size as f64) };
        let nowhere = self.number(nowhere, DType::I64);
        let places = self.function(Select, &[found, RowValue(positions), nowhere])?;
        Ok(self.op(pick, &[axes(), AttrValue::Bool(*keeps)], &[Some(places)])?[0])
    }

    /// A builtin function of each element.
    fn function(&mut self, f: BuiltinScalar, operands: &[RowValue]) -> Result<RowValue, String> {
        let scalar = self.program.builtin_scalar(f).ok_or("a builtin function is not declared")?;
        self.scalar(scalar, operands)
    }

    /// A value over a count: what a mean adds up.
    pub fn over(&mut self, of: RowValue, count: i64) -> Result<RowValue, String> {
        let share = self.number(1.0 / count as f64, self.body.val(of.0).ty.dtype);
        self.function(BuiltinScalar::Mul, &[of, share])
    }

    /// The sum of a value over these of its axes. They and the axes before them number the rows.
    pub fn column_sum(&mut self, of: RowValue, reduced: Range<usize>, ty: &TensorType) -> Result<ColumnSum, String> {
        let value = self.body.val(of.0).clone();
        let (kept, row) = (value.axes.get(..reduced.start), value.axes.get(reduced.end..));
        let (Some(kept), Some(row), true) = (kept, row, value.ty.dtype.is_float()) else {
            return Err("it adds up integers, or axes that are not there".into());
        };
        self.body.rows_of(&row.concat())?;
        // With `keepdims`, axes of size 1 stand where the others were.
        let ones = ty.shape.len().saturating_sub(kept.len() + row.len());
        let axes = [kept, &vec![Vec::new(); ones], row].concat();
        self.sums.push(Summed { value, ty: ty.clone(), axes });
        Ok(ColumnSum(self.sums.len() - 1))
    }

    /// Such a sum in another shape, or stored in a narrower type.
    pub fn stored_sum(&mut self, sum: ColumnSum, ty: &TensorType) -> Result<ColumnSum, String> {
        let Summed { value, ty: from, axes } = self.sums[sum.0].clone();
        // Sums are added up in f32 or, for f64, in f64: a result of another type says nothing else.
        let narrower = ty.dtype.is_float() && ty.dtype.size() <= from.dtype.size() && from.dtype != DType::F64;
        if from.dtype != ty.dtype && !narrower {
            return Err("it converts a sum over all rows to a wider type, or one of f64".into());
        }
        let axes = if from.shape == ty.shape { Some(axes) } else { self.body.space.reshape(&axes, &ty.shape) };
        let axes = axes.ok_or("a sum over all rows is divided in another way")?;
        self.sums.push(Summed { value, ty: ty.clone(), axes });
        Ok(ColumnSum(self.sums.len() - 1))
    }

    /// The kernel that computes these values, and these sums over all rows, with the work that it
    /// does again.
    pub fn finish(
        self,
        name: &str,
        doc: String,
        (results, sums): (&[RowValue], &[ColumnSum]),
    ) -> Result<(RowwiseKernel, RowSpace, SharedWork), String> {
        let mut body = self.body;
        body.check()?;
        let sums: Vec<Summed> = sums.iter().map(|s| self.sums[s.0].clone()).collect();
        if body.steps.is_empty() && sums.is_empty() {
            body.rows_of(&self.picked_rows.ok_or("it reduces nothing, and looks up no rows")?)?;
        }
        let values: Vec<Val> = results.iter().map(|v| body.val(v.0).clone()).collect();
        let types: Vec<TensorType> = values.iter().map(|v| v.ty.clone()).collect();
        let shape = shape_of(&body, &values, &types, &sums)?;
        let is_shared = |c: &&Computed| {
            let axes = body.space.now(&body.val(c.value).axes.concat());
            !shape.lead.iter().all(|a| axes.contains(a))
        };
        let shared: Vec<Work> = self.computed.iter().filter(is_shared).map(|c| c.work).collect();
        if shared.contains(&Work::Op) {
            return Err("an op on what rows share would be computed again for each".into());
        }
        let again = SharedWork { functions: shared.len(), light: shared.iter().all(|w| *w == Work::Light) };
        let (mut kernel, space) = finish(&body, (&values, &sums), &types, name, doc)?;
        for (input, operand) in kernel.inputs.iter_mut().zip(&self.operands) {
            if matches!(operand, RowOperand::Positions(..)) && input.1 == RowAccess::PerColumn {
                input.1 = RowAccess::Position;
            }
        }
        Ok((kernel, space, again))
    }
}
