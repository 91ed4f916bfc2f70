//! Attributes and applications of ops over symbolic sizes.
//!
//! In: an op of a pattern, of a right side or of a body, with its operands. Out: a tensor.
//! Invariant: on a left side, the choices cover every attribute that the op accepts; on a right
//! side and in a body nothing is chosen or solved.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::interpret::{Application, Host, Item, build_tensor};
use hypatia_dsl::ir::{
    AExpr, AttrPat, AttrType, AttrValue, NodePat, OpBody, OpId, ParamKind, Program, ScalarId, Sort, VarId,
};
use hypatia_dsl::shape::{Dim, Symbol, product};
use hypatia_dsl::typing::{TensorType, apply_op, eval, match_dims};

use super::super::place::Kind;
use super::{Made, Maker, Scope, ShapeFacts, Stop, dim, holds, list, minus, plus, symbol, symbols_of_product};

impl Maker<'_> {
    pub(super) fn attrs(
        &mut self,
        op: OpId,
        builtin: Option<BuiltinOp>,
        node: &NodePat,
        operands: &[Option<usize>],
    ) -> Made<Vec<AttrValue>> {
        let shape =
            |maker: &Self| operands.iter().flatten().next().map_or(Vec::new(), |o| maker.tensors[*o].shape.clone());
        let mut out = Vec::with_capacity(node.attrs.len());
        for (i, (pat, (_, param))) in node.attrs.iter().zip(self.program.op(op).attrs()).enumerate() {
            let ParamKind::Attr { ty, .. } = &param.kind else { return Err(Stop::Fail) };
            let rank = shape(self).len();
            let value = match pat {
                AttrPat::Is(e) => self.eval(e).ok_or(Stop::Fail)?,
                AttrPat::Var(v) if self.scope.attrs.values.contains_key(v) => {
                    self.scope.attrs.values.get(v).cloned().ok_or(Stop::Fail)?
                }
                AttrPat::Var(v) => {
                    let made = self.any_attr(builtin, i, *ty, &shape(self))?;
                    self.scope.attrs.values.insert(*v, made.clone());
                    made
                }
                AttrPat::Any => self.any_attr(builtin, i, *ty, &shape(self))?,
                AttrPat::List(items) if builtin == Some(BuiltinOp::Transpose) => self.order(items, rank)?,
                AttrPat::List(items) => self.list(items, *ty)?,
                AttrPat::Rest(_) => return Err(Stop::Fail),
            };
            out.push(normal(*ty, value, rank)?);
        }
        Ok(out)
    }

    fn any_attr(&mut self, builtin: Option<BuiltinOp>, index: usize, ty: AttrType, shape: &[Dim]) -> Made<AttrValue> {
        Ok(match (builtin, index, ty) {
            (Some(BuiltinOp::Transpose), ..) => {
                let mut left: Vec<i64> = (0..shape.len() as i64).collect();
                let mut order = Vec::new();
                while !left.is_empty() {
                    let taken = self.choose(left.len())?;
                    order.push(left.remove(taken));
                }
                AttrValue::from(order.as_slice())
            }
            (Some(BuiltinOp::Reshape), ..) => {
                let rank = self.choose(self.axes + 1)?;
                AttrValue::from(self.symbols(rank))
            }
            (Some(BuiltinOp::Expand), ..) => {
                let more = self.choose(self.axes + 1 - shape.len().min(self.axes))?;
                let mut out = self.symbols(more);
                for size in shape {
                    let grows = size.as_const() == Some(1) || self.choose(2)? == 1;
                    if grows {
                        self.one(size)?;
                    }
                    out.push(if grows { self.symbol() } else { size.clone() });
                }
                AttrValue::from(out)
            }
            (_, _, AttrType::Axis) => AttrValue::from(self.choose(shape.len())? as i64),
            (_, _, AttrType::Axes) => {
                let taken = self.choose(1 << shape.len())?;
                let axes: Vec<i64> = (0..shape.len() as i64).filter(|a| taken >> a & 1 == 1).collect();
                AttrValue::from(axes.as_slice())
            }
            (_, _, AttrType::Bool) => AttrValue::Bool(self.choose(2)? == 1),
            (_, _, AttrType::Dim) => AttrValue::Dim(self.symbol()),
            _ => return Err(Stop::Fail),
        })
    }

    /// A permutation that matches a list of patterns.
    fn order(&mut self, items: &[AttrPat], rank: usize) -> Made<AttrValue> {
        let rest = items.iter().any(|i| matches!(i, AttrPat::Rest(_)));
        if rest {
            return Err(Stop::Fail);
        }
        if items.len() != rank {
            return Err(Stop::Skip);
        }
        let mut out: Vec<AttrValue> = Vec::new();
        for item in items {
            let value = match item {
                AttrPat::Is(e) => self.eval(e).ok_or(Stop::Fail)?,
                AttrPat::Var(v) => {
                    if !self.scope.attrs.values.contains_key(v) {
                        let axis = self.choose(rank)?;
                        self.scope.attrs.values.insert(*v, AttrValue::from(axis as i64));
                    }
                    self.scope.attrs.values.get(v).cloned().ok_or(Stop::Fail)?
                }
                AttrPat::Any => AttrValue::from(self.choose(rank)? as i64),
                _ => return Err(Stop::Fail),
            };
            if out.contains(&value) {
                return Err(Stop::Skip);
            }
            out.push(value);
        }
        Ok(AttrValue::List(out))
    }

    /// A list that matches patterns of its elements.
    fn list(&mut self, items: &[AttrPat], ty: AttrType) -> Made<AttrValue> {
        if ty != AttrType::Dims {
            let known = items.iter().map(|i| match i {
                AttrPat::Is(e) => self.eval(e),
                AttrPat::Var(v) => self.scope.attrs.values.get(v).cloned(),
                _ => None,
            });
            return known.collect::<Option<Vec<_>>>().map(AttrValue::List).ok_or(Stop::Fail);
        }
        let mut out = Vec::new();
        for item in items {
            match item {
                AttrPat::Is(e) => out.push(self.eval(e).ok_or(Stop::Fail)?),
                AttrPat::Any => out.push(AttrValue::Dim(self.symbol())),
                AttrPat::Var(v) => {
                    if !self.scope.attrs.values.contains_key(v) {
                        let made = AttrValue::Dim(self.symbol());
                        self.scope.attrs.values.insert(*v, made);
                    }
                    out.push(self.scope.attrs.values.get(v).cloned().ok_or(Stop::Fail)?);
                }
                AttrPat::Rest(v) => {
                    let bound = v.and_then(|v| self.scope.attrs.values.get(&v).cloned());
                    match bound {
                        Some(AttrValue::List(l)) => out.extend(l),
                        Some(_) => return Err(Stop::Fail),
                        None => {
                            let n = self.choose(self.axes)?;
                            let made = AttrValue::from(self.symbols(n));
                            let AttrValue::List(l) = &made else { return Err(Stop::Fail) };
                            out.extend(l.clone());
                            if let Some(v) = v {
                                self.scope.attrs.values.insert(*v, made);
                            }
                        }
                    }
                }
                AttrPat::List(_) => return Err(Stop::Fail),
            }
        }
        Ok(AttrValue::List(out))
    }

    /// Solves what an op of the left side requires of its sizes. What cannot be solved is left
    /// open: then more is proved than the op allows.
    pub(super) fn make_legal(&mut self, op: BuiltinOp, kept: usize, operands: &[Option<usize>]) -> Made<()> {
        let attrs = self.kept(kept);
        let Some(Some(x)) = operands.first().copied() else { return Ok(()) };
        match op {
            BuiltinOp::Slice => {
                let axis = attrs.first().and_then(|a| axis_of(a, self.tensors[x].shape.len())).ok_or(Stop::Skip)?;
                if attrs.get(3) != Some(&AttrValue::from(1i64)) {
                    return Err(Stop::Fail);
                }
                let bounds = [dim(&attrs[1])?, dim(&attrs[2])?];
                let solved = match self.choose(2)? {
                    0 => self.at_most(&bounds[0], &bounds[1])?,
                    _ => {
                        let next = plus(&bounds[1], &Dim::from(1))?;
                        self.at_most(&next, &bounds[0])?
                    }
                };
                for i in [1, 2] {
                    let bound = dim(&self.kept(kept)[i])?;
                    let size = self.tensors[x].shape[axis].clone();
                    self.at_most(&bound, &size)?;
                }
                if solved { Ok(()) } else { Err(Stop::Fail) }
            }
            BuiltinOp::Split => {
                let axis = attrs.first().and_then(|a| axis_of(a, self.tensors[x].shape.len())).ok_or(Stop::Skip)?;
                let pieces = list(&attrs[1])?;
                let sum = pieces.iter().try_fold(Dim::from(0), |sum, d| plus(&sum, d))?;
                let size = self.tensors[x].shape[axis].clone();
                self.equal(&size, &sum).map(drop)
            }
            BuiltinOp::Expand => {
                let (rank, wide) = (self.tensors[x].shape.len(), list(&attrs[0])?.len());
                let skipped = wide.checked_sub(rank).ok_or(Stop::Skip)?;
                for axis in 0..rank {
                    let own = self.tensors[x].shape[axis].clone();
                    let size = list(&self.kept(kept)[0])?[skipped + axis].clone();
                    if own.as_const() == Some(1) || own.known_eq(&size) == Some(true) {
                        continue;
                    }
                    match self.choose(2)? {
                        0 if self.equal(&own, &size)? => {}
                        0 => return Err(Stop::Fail),
                        _ => self.one(&own)?,
                    }
                }
                Ok(())
            }
            BuiltinOp::Reshape => self.solve_reshape(x, &list(&attrs[0])?),
            _ => Ok(()),
        }
    }

    /// The attributes that a tensor keeps.
    pub(super) fn kept(&self, at: usize) -> Vec<AttrValue> {
        match &self.tensors[at].kind {
            Kind::Op(_, attrs, ..) => attrs.clone(),
            _ => Vec::new(),
        }
    }

    /// The size that a reshape leaves open, if there is one: `p` in `reshape(x: T[..s, m], shape =
    /// [p, m])`. Where m is 0 it may be anything.
    fn solve_reshape(&mut self, x: usize, to: &[Dim]) -> Made<()> {
        let Some(from) = product(&self.tensors[x].shape) else { return Err(Stop::Fail) };
        let Some(whole) = product(to) else { return Err(Stop::Fail) };
        if from.known_eq(&whole) == Some(true) {
            return Ok(());
        }
        let known = from.symbols();
        let open: Vec<Symbol> = to.iter().filter_map(symbol).filter(|s| !known.contains(s)).collect();
        let [open] = &open[..] else { return Ok(()) };
        let others = whole.div_exact(&Dim::symbol(open.clone())).ok_or(Stop::Fail)?;
        let Some(size) = from.div_exact(&others).filter(|_| !others.symbols().contains(open)) else { return Ok(()) };
        let Some(factors) = symbols_of_product(&others) else { return Ok(()) };
        match self.choose(1 + factors.len())? {
            0 => self.substitute(open, &size),
            i => self.substitute(&factors[i - 1], &Dim::from(0)),
        }
    }

    /// An application: of a builtin, or of an op's body.
    pub(super) fn apply(
        &mut self,
        op: OpId,
        operands: &[Option<usize>],
        attrs: &[AttrValue],
        output: u32,
    ) -> Made<usize> {
        let def = self.program.op(op);
        let builtin = match &def.body {
            OpBody::Builtin(b) => *b,
            OpBody::Defined(_) => return self.body(op, operands, attrs, output),
        };
        let first = operands.iter().flatten().next().map_or(0, |o| self.tensors[*o].shape.len());
        let normals = def.attrs().zip(attrs).map(|((_, p), v)| match &p.kind {
            ParamKind::Attr { ty, .. } => normal(*ty, v.clone(), first),
            _ => Err(Stop::Fail),
        });
        let attrs = normals.collect::<Made<Vec<_>>>()?;
        let shape = self.result(op, builtin, operands, &attrs, output)?;
        let operands = operands.iter().copied().collect::<Option<Vec<_>>>().ok_or(Stop::Fail)?;
        Ok(self.add(shape, Kind::Op(builtin, attrs, operands, output)))
    }

    fn result(
        &self,
        op: OpId,
        builtin: BuiltinOp,
        operands: &[Option<usize>],
        attrs: &[AttrValue],
        output: u32,
    ) -> Made<Vec<Dim>> {
        let shape = |i: usize| operands.get(i).copied().flatten().map(|o| self.tensors[o].shape.clone());
        match builtin {
            BuiltinOp::Reshape => list(attrs.first().ok_or(Stop::Fail)?),
            BuiltinOp::Cast => shape(0).ok_or(Stop::Fail),
            BuiltinOp::Full | BuiltinOp::Expand => list(attrs.first().ok_or(Stop::Fail)?),
            BuiltinOp::Split => {
                let mut out = shape(0).ok_or(Stop::Fail)?;
                let axis = axis_of(&attrs[0], out.len()).ok_or(Stop::Fail)?;
                out[axis] = list(&attrs[1])?.get(output as usize).cloned().ok_or(Stop::Fail)?;
                Ok(out)
            }
            BuiltinOp::Slice => {
                let mut out = shape(0).ok_or(Stop::Fail)?;
                let axis = axis_of(&attrs[0], out.len()).ok_or(Stop::Fail)?;
                let count = minus(&dim(&attrs[2])?, &dim(&attrs[1])?)?;
                let none = holds(&minus(&dim(&attrs[1])?, &dim(&attrs[2])?)?);
                if attrs.get(3) != Some(&AttrValue::from(1i64)) || !(holds(&count) || none) {
                    return Err(Stop::Fail);
                }
                out[axis] = if none { Dim::from(0) } else { count };
                Ok(out)
            }
            _ => {
                let types: Vec<Option<TensorType>> = (0..operands.len())
                    .map(|i| shape(i).map(|shape| TensorType { dtype: DType::F32, shape }))
                    .collect();
                let results = apply_op(self.program, op, attrs, &types).map_err(|_| Stop::Fail)?;
                results.get(output as usize).map(|t| t.shape.clone()).ok_or(Stop::Fail)
            }
        }
    }

    fn body(&mut self, op: OpId, operands: &[Option<usize>], attrs: &[AttrValue], output: u32) -> Made<usize> {
        let def = self.program.op(op);
        let OpBody::Defined(body) = &def.body else { return Err(Stop::Fail) };
        let mut scope = Scope::default();
        for ((i, param), operand) in def.operands().zip(operands) {
            let var = VarId(i as u32);
            match (&param.kind, operand) {
                (ParamKind::Tensor { ty, variadic: false, .. }, Some(at)) => {
                    match_dims(ty, &self.tensors[*at].shape, &mut scope.attrs).map_err(|_| Stop::Fail)?;
                    scope.tensors.insert(var, *at);
                }
                (ParamKind::Tensor { variadic: false, .. }, None) => drop(scope.absent.insert(var)),
                _ => return Err(Stop::Fail),
            }
        }
        if operands.len() != def.operands().count() {
            return Err(Stop::Fail);
        }
        let rank = operands.iter().flatten().next().map_or(0, |o| self.tensors[*o].shape.len());
        for ((i, param), value) in def.attrs().zip(attrs) {
            let ParamKind::Attr { ty, .. } = &param.kind else { return Err(Stop::Fail) };
            scope.attrs.values.insert(VarId(i as u32), normal(*ty, value.clone(), rank)?);
        }
        for (i, var) in def.vars.iter().enumerate() {
            if var.sort == Sort::DType {
                scope.attrs.values.insert(VarId(i as u32), AttrValue::Str("element type".into()));
            }
        }
        let build = body.get(output as usize).ok_or(Stop::Fail)?;
        let mut builder = Builder::new(self, scope);
        build_tensor(&mut builder, build, Some(DType::F32))?.ok_or(Stop::Fail)
    }
}

pub(super) fn axis_of(value: &AttrValue, rank: usize) -> Option<usize> {
    let AttrValue::Dim(d) = value else { return None };
    let axis = d.as_const()?;
    usize::try_from(if axis < 0 { axis + rank as i64 } else { axis }).ok().filter(|a| *a < rank)
}

/// An attribute with its axes counted from the front.
fn normal(ty: AttrType, value: AttrValue, rank: usize) -> Made<AttrValue> {
    let one = |v: &AttrValue| axis_of(v, rank).map(|a| AttrValue::from(a as i64)).ok_or(Stop::Skip);
    match (ty, &value) {
        (AttrType::Axis, v) => one(v),
        (AttrType::Axes, AttrValue::List(l)) => Ok(AttrValue::List(l.iter().map(one).collect::<Made<_>>()?)),
        _ => Ok(value),
    }
}

/// Builds right sides and bodies.
pub(super) struct Builder<'m, 'a> {
    maker: &'m mut Maker<'a>,
    scope: Scope,
    depth: usize,
}

impl<'m, 'a> Builder<'m, 'a> {
    pub(super) fn new(maker: &'m mut Maker<'a>, scope: Scope) -> Builder<'m, 'a> {
        Builder { maker, scope, depth: 0 }
    }
}

/// The limit of nested expressions.
const MOST_DEPTH: usize = 100;

impl<'a> Host for Builder<'_, 'a> {
    type Value = Option<usize>;
    type Term = ();
    type Epilogue = ();
    type Error = Stop;
    type Program = &'a Program;

    fn program(&self) -> &&'a Program {
        &self.maker.program
    }

    fn ill_typed(_: String) -> Stop {
        Stop::Fail
    }

    fn descend(&mut self) -> Made<()> {
        self.depth += 1;
        if self.depth > MOST_DEPTH || self.maker.tensors.len() > 2_000 { Err(Stop::Fail) } else { Ok(()) }
    }

    fn ascend(&mut self) {
        self.depth -= 1;
    }

    fn variable(&mut self, v: VarId) -> Made<Option<usize>> {
        match self.scope.tensors.get(&v) {
            Some(made) => Ok(Some(*made)),
            None if self.scope.absent.contains(&v) => Ok(None),
            None => Err(Stop::Fail),
        }
    }

    fn is_absent(&self, v: VarId) -> bool {
        self.scope.absent.contains(&v)
    }

    fn variables(&self, v: VarId) -> Made<Vec<Option<usize>>> {
        self.scope.lists.get(&v).map(|l| l.iter().map(|v| Some(*v)).collect()).ok_or(Stop::Fail)
    }

    fn eval(&self, expr: &AExpr, items: &[Item<Option<usize>>]) -> Option<AttrValue> {
        let facts = ShapeFacts { tensors: &self.maker.tensors, scope: &self.scope, items };
        eval(expr, &self.scope.attrs, &facts)
    }

    fn dtype(&self, value: Option<usize>) -> Option<DType> {
        value.map(|_| DType::F32)
    }

    fn absent(&mut self) -> Made<Option<usize>> {
        Ok(None)
    }

    fn number(&mut self, _: &AExpr, value: f64, _: DType) -> Made<Option<usize>> {
        Ok(Some(self.maker.add(Vec::new(), Kind::Number(value))))
    }

    fn scalar(&mut self, scalar: ScalarId, operands: &[Option<usize>]) -> Made<Option<usize>> {
        let shape = self.maker.joint(operands)?;
        let args = operands.iter().copied().collect::<Option<Vec<_>>>().ok_or(Stop::Fail)?;
        Ok(Some(self.maker.add(shape, Kind::Scalar(scalar, args))))
    }

    fn op(&mut self, application: Application<'_, Self>) -> Made<Option<usize>> {
        let Application { op, output, operands, attrs, term } = application;
        if term.is_some() {
            return Err(Stop::Fail);
        }
        self.maker.apply(op, operands, &attrs, output).map(Some).map_err(|_| Stop::Fail)
    }
}
