//! The walk over a pattern, from the leaves up.
//!
//! In: a pattern, and what its surroundings want of its type. Out: nodes that the pattern matches;
//! its variables are bound. Invariant: what is made type-checks; a variable without a type gets one
//! that fits the operands beside it.

use std::sync::Arc;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::{DType, Kind};
use hypatia_dsl::ir::{
    AExpr, AttrValue, DTypePat, Fact, Head, NodePat, OpBody, OpDef, ParamKind, Pat, Rest, Sort, TypePat, VarId,
};
use hypatia_dsl::scalar::Term;
use hypatia_dsl::shape::{Dim, broadcast};
use hypatia_dsl::typing::{Bindings, NoFacts, TensorType, apply_op, eval, match_type};
use hypatia_graph::{BoundTerm, GraphFacts, Value};
use hypatia_tensor::tensor::Tensor;

use super::open_types::{OpenShape, OpenType};
use super::{DTYPE_WEIGHTS, DTYPES, Generator, Reject, Try, ints, known, reject, sizes};
use crate::hints::End;
use crate::values::Distribution;

/// The largest number of elements of a tensor, unless the rule names larger sizes.
const MAX_ELEMENTS: i64 = 2048;
/// The same for ensembles.
const WIDE_ELEMENTS: i64 = 2048;
const MAX_RANK: usize = 8;
/// How much larger than usual a search may make the sides of a filter.
const LARGER_SIDES: usize = 8;
/// The largest rank where the rule requires more axes.
const MOST_AXES: usize = 8;

impl Generator<'_, '_> {
    /// The value that a guard's equation gives for a fact, if it can be evaluated yet.
    pub(super) fn hinted_fact(&self, fact: Fact, var: VarId) -> Option<AttrValue> {
        self.equal_facts(fact, var).next()
    }

    fn equal_facts(&self, fact: Fact, var: VarId) -> impl Iterator<Item = AttrValue> {
        let found = self.hints.equal_fact.iter().filter(move |(f, v, _)| *f == fact && *v == var);
        found.filter_map(|(_, _, e)| eval(e, &self.env.attrs, &GraphFacts { graph: &self.graph, env: &self.env }))
    }

    /// The values that guards leave a constant to choose from: one, or those of a list.
    pub(super) fn hinted_values(&self, var: VarId) -> Vec<AttrValue> {
        let mut out: Vec<AttrValue> = self.equal_facts(Fact::Value, var).collect();
        let facts = GraphFacts { graph: &self.graph, env: &self.env };
        for (_, _, list) in self.hints.among_facts.iter().filter(|(f, v, _)| *f == Fact::Value && *v == var) {
            if let Some(AttrValue::List(items)) = eval(list, &self.env.attrs, &facts) {
                out.extend(items);
            }
        }
        out
    }

    /// The ends of what guards allow a constant, with their neighbours.
    pub(super) fn bounds(&self, var: VarId) -> Vec<AttrValue> {
        let facts = GraphFacts { graph: &self.graph, env: &self.env };
        let ends = self.hints.bounds.iter().filter(|(v, _)| *v == var);
        let ends = ends.filter_map(|(_, e)| match eval(e, &self.env.attrs, &facts)? {
            AttrValue::Float(v) => Some(v),
            AttrValue::Dim(d) => d.as_const().map(|d| d as f64),
            _ => None,
        });
        ends.flat_map(|v| [v, v, v - 1.0, v + 1.0]).map(AttrValue::Float).collect()
    }

    /// A number between the ends of what guards allow a constant; none if they leave one open.
    pub(super) fn within_range(&mut self, var: VarId) -> Option<f64> {
        /// Steps between the ends.
        const STEPS: usize = 64;
        let facts = GraphFacts { graph: &self.graph, env: &self.env };
        let number = |e: &AExpr| match eval(e, &self.env.attrs, &facts)? {
            AttrValue::Float(v) => Some(v),
            AttrValue::Dim(d) => d.as_const().map(|d| d as f64),
            _ => None,
        };
        let of = |which: End| {
            let own = self.hints.ranges.iter().filter(move |(v, end, _)| *v == var && *end == which);
            own.filter_map(|(_, _, e)| number(e)).filter(|n| n.is_finite()).collect::<Vec<f64>>()
        };
        let least = of(End::Least).into_iter().reduce(f64::max)?;
        let largest = of(End::Largest).into_iter().reduce(f64::min).filter(|end| *end >= least)?;
        let part = self.source.pick(STEPS + 1) as f64 / STEPS as f64;
        // Small numbers occur as often as large ones.
        Some(match least >= 0.0 && largest > 16.0 * least {
            true => {
                let factor = if least > 0.0 { least / largest } else { 2f64.powi(-24) };
                largest * factor.powf(1.0 - part)
            }
            false => least + (largest - least) * part,
        })
    }

    /// Sets sizes that guards equate with known sizes, or with other sizes of the same tensor. Each
    /// is set most of the time only: a rule may need a guard to be satisfied in the other
    /// direction.
    fn equate(&mut self, var: VarId, shape: &mut [i64]) {
        let hints = self.hints;
        for (_, i, e) in hints.equal_dim.iter().filter(|(v, ..)| *v == var) {
            let place = |i: &AExpr, rank: usize| match eval(i, &Bindings::default(), &NoFacts) {
                Some(AttrValue::Dim(d)) => {
                    let at = d.as_const()?;
                    usize::try_from(if at < 0 { at + rank as i64 } else { at }).ok().filter(|at| *at < rank)
                }
                _ => None,
            };
            let rank = shape.len();
            let other = match e {
                AExpr::Index(list, j) if matches!(&**list, AExpr::Fact(Fact::Shape, v) if *v == var) => {
                    place(j, rank).map(|j| shape[j])
                }
                e => {
                    let facts = GraphFacts { graph: &self.graph, env: &self.env };
                    match eval(e, &self.env.attrs, &facts) {
                        Some(AttrValue::Dim(d)) => d.as_const(),
                        _ => None,
                    }
                }
            };
            if let (Some(at), Some(size)) = (place(i, rank), other)
                && size != shape[at]
                && self.source.pick(4) > 0
            {
                shape[at] = size;
            }
        }
    }

    /// Gives an axis another size than that of an operand that it is to differ from, if that one is
    /// there.
    fn set_apart(&mut self, var: VarId, shape: &mut [i64]) {
        let Some((a, b, axis)) = self.unequal.filter(|(a, b, _)| var == *a || var == *b) else { return };
        let other = self.env.tensors.get(if var == a { &b } else { &a });
        let Some(other) = other.and_then(|v| sizes(self.graph.ty(*v)).ok()) else { return };
        if other.len() != shape.len() || other.get(axis) != shape.get(axis) {
            return;
        }
        if let Some(d) = shape.get_mut(axis) {
            // Few sizes are in the pool, and this one is one of them.
            let more = 1 + self.source.pick(4) as i64;
            *d = if self.source.pick(2) == 1 && *d > more { *d - more } else { *d + more };
        }
    }

    /// True if the pattern is a leaf whose type is not determined yet.
    pub(super) fn open(&self, pat: &Pat) -> bool {
        match pat {
            Pat::Any | Pat::Lit { .. } | Pat::Absent => true,
            Pat::Var(v) | Pat::Optional(v) => !self.env.tensors.contains_key(v) && !self.env.absent.contains(v),
            Pat::Bind(v, p) => !self.env.tensors.contains_key(v) && self.open(p),
            Pat::Typed(p, _) => self.open(p),
            Pat::Node(_) | Pat::OneOf(_) => false,
        }
    }

    pub(super) fn tensor(&mut self, pat: &Pat, want: &OpenType) -> Try<Option<Value>> {
        match pat {
            Pat::Any => self.fresh("t", None, want).map(Some),
            Pat::Absent => Ok(None),
            Pat::Var(v) | Pat::Optional(v) => {
                if let Some(value) = self.env.tensors.get(v) {
                    return Ok(Some(*value));
                }
                if self.env.absent.contains(v) {
                    return Ok(None);
                }
                if matches!(pat, Pat::Optional(_)) && self.source.pick(2) == 1 {
                    self.env.absent.insert(*v);
                    return Ok(None);
                }
                let var = self.rule.vars.get(v.index());
                if var.is_none_or(|v| v.sort != Sort::Tensor) {
                    return reject("a variable that is no tensor stands for a tensor");
                }
                let name = var.map_or("t", |v| v.name.as_str()).to_string();
                let value = self.fresh(&name, Some(*v), want)?;
                self.env.tensors.insert(*v, value);
                Ok(Some(value))
            }
            Pat::Bind(v, p) => {
                let value = self.tensor(p, want)?;
                if let Some(value) = value
                    && *self.env.tensors.entry(*v).or_insert(value) != value
                {
                    return reject("a variable stands for two values");
                }
                Ok(value)
            }
            Pat::Typed(p, ty) => {
                let want = if self.open(p) { self.typed_want(ty, want)? } else { want.clone() };
                let value = self.tensor(p, &want)?;
                if let Some(v) = value
                    && match_type(ty, self.graph.ty(v), &mut self.env.attrs) != Some(true)
                {
                    return reject("a typed pattern does not match");
                }
                Ok(value)
            }
            Pat::Lit { value, near } => self.literal(*value, *near, want).map(Some),
            Pat::OneOf(pats) => {
                let pat = self.alternative(pats);
                self.tensor(pat, want)
            }
            Pat::Node(node) => {
                let results = match node.head {
                    Head::Scalar(_) => vec![self.scalar_node(node, want)?],
                    Head::Op(_) => self.op_node(node, want)?,
                    _ => return reject("an epilogue term is used outside of an epilogue"),
                };
                match results.get(node.output as usize) {
                    Some(v) => Ok(Some(*v)),
                    None => reject("the op does not have the requested result"),
                }
            }
        }
    }

    pub(super) fn alternative<'p>(&mut self, pats: &'p [Pat]) -> &'p Pat {
        let id = pats.as_ptr() as usize;
        let i = match (self.wanted_branch)(id, pats.len()) {
            Some(b) => self.source.prefer(pats.len(), b),
            None => self.source.pick(pats.len()),
        };
        self.branches.push((id, i));
        &pats[i.min(pats.len().saturating_sub(1))]
    }

    fn literal(&mut self, value: f64, near: Option<f64>, want: &OpenType) -> Try<Value> {
        let dtype = want.dtype.unwrap_or(self.main);
        if dtype.is_int() && dtype.round(value) != value {
            return reject("a literal is no integer");
        }
        // Within its tolerance, a constant may have been rounded to a narrower type.
        let actual = near.map_or(value, |tolerance| self.within(value, tolerance));
        let shape = match &want.shape {
            // A literal matches constants that do not enlarge the result by broadcasting.
            OpenShape::With(s) | OpenShape::Into(s) => self.shape_that_broadcasts_into(s),
            OpenShape::Is(s) => s.clone(),
            OpenShape::Free | OpenShape::Rank(_) => Vec::new(),
        };
        let shape: Vec<usize> = shape.into_iter().map(|d| d as usize).collect();
        let n = shape.iter().product::<usize>();
        if n == 0 {
            return reject("a constant without elements has no value");
        }
        match Tensor::from_f64(dtype, &shape, &vec![dtype.round(actual); n]) {
            Some(t) => {
                let tensor = Arc::new(t);
                self.numbers.insert(Arc::as_ptr(&tensor) as usize, actual);
                Ok(self.graph.constant(tensor))
            }
            None => reject("a constant is too large"),
        }
    }

    /// A number that a pattern `value ~ tolerance` matches: the number itself, as narrower types
    /// round it, the ends of the tolerance, or anything between them.
    fn within(&mut self, value: f64, tolerance: f64) -> f64 {
        const STEPS: usize = 17;
        let code = self.source.pick(6 + STEPS);
        let made = match code {
            0 => value,
            1 => DType::F32.round(value),
            2 => DType::F16.round(value),
            3 => DType::BF16.round(value),
            4 => value * (1.0 + tolerance),
            5 => value * (1.0 - tolerance),
            _ => value * (1.0 + tolerance * ((code - 6) as f64 / (STEPS - 1) as f64 * 2.0 - 1.0)),
        };
        if (made - value).abs() <= tolerance * value.abs() { made } else { value }
    }

    /// A shape that broadcasts to this one: usually rank 0.
    fn shape_that_broadcasts_into(&mut self, shape: &[i64]) -> Vec<i64> {
        match self.source.weighted(&[70, 10, 10, 10]) {
            0 => Vec::new(),
            1 => vec![1; shape.len().min(1)],
            2 => shape.to_vec(),
            _ => shape.last().copied().into_iter().collect(),
        }
    }

    /// The number of axes, list elements or operands: `usual`, or occasionally a number that the
    /// rule compares such a count with, minus what is there `already`.
    pub(super) fn count(&mut self, usual: usize, already: usize) -> usize {
        let named = &self.hints.constants.counts;
        if named.is_empty() || self.source.weighted(&[50, 50]) == 0 {
            return usual;
        }
        let n = named[self.source.pick(named.len())];
        (n as usize).saturating_sub(already)
    }

    pub(super) fn fresh(&mut self, name: &str, var: Option<VarId>, want: &OpenType) -> Try<Value> {
        let mut dtype = want.dtype.unwrap_or(self.main);
        let mut shape = match &want.shape {
            OpenShape::Is(s) => s.clone(),
            OpenShape::Rank(r) => self.sizes(*r),
            OpenShape::Free if self.around => {
                let first = self.source.pick(4);
                (0..4).map(|i| self.pool[(first + i) % self.pool.len()]).collect()
            }
            OpenShape::Free => {
                // A rule that indexes single elements of a list is most likely wrong for the other
                // elements of long lists.
                let many = self.hints.indexes && self.source.pick(2) == 1;
                let weights = if many { [5, 5, 15, 0, 30, 45] } else { [37, 19, 23, 8, 9, 4] };
                let rank = [2, 1, 3, 0, 4, 5][self.source.weighted(&weights)];
                let rank = self.count(rank, 0).min(MOST_AXES);
                self.sizes(rank)
            }
            OpenShape::With(s) => self.with_shape(&s.clone()),
            OpenShape::Into(s) => self.wide_into(&s.clone()),
        };
        if let Some(v) = var {
            if let Some(AttrValue::List(dims)) = self.hinted_fact(Fact::Shape, v)
                && let Some(dims) = ints(&dims)
            {
                shape = dims;
            }
            if let Some(AttrValue::Dim(r)) = self.hinted_fact(Fact::Rank, v)
                && let Some(r) = r.as_const()
                && r as usize != shape.len()
                && (0..=MOST_AXES as i64).contains(&r)
                && !matches!(want.shape, OpenShape::Is(_))
            {
                shape = self.sizes(r as usize);
            }
            self.equate(v, &mut shape);
            self.set_apart(v, &mut shape);
            if let Some(AttrValue::DType(d)) = self.hinted_fact(Fact::DType, v) {
                dtype = d;
            }
        }
        let wide = matches!(self.distribution, Distribution::Ensemble(_));
        let room = self.hints.constants.room(if wide { WIDE_ELEMENTS } else { MAX_ELEMENTS }).max(self.long);
        let count = shape.iter().try_fold(1i64, |a, d| a.checked_mul(*d).filter(|n| *n <= room));
        let most = self.hints.constants.counts.iter().fold(MAX_RANK, |m, n| m.max(*n as usize)).min(MOST_AXES);
        if shape.len() > most || count.is_none() || shape.iter().any(|d| *d < 0) {
            return reject("a tensor is too large");
        }
        let name = self.name_for(name);
        let ty = TensorType { dtype, shape: shape.into_iter().map(Dim::from).collect() };
        let value = self.graph.input(name.clone(), ty);
        self.made.push((value, name, var));
        Ok(value)
    }

    /// A name that no other input and no declaration of the program has.
    fn name_for(&self, name: &str) -> String {
        let base = name.trim_start_matches('_');
        let base = if base.is_empty() || base.starts_with(|c: char| c.is_ascii_digit()) { "t" } else { base };
        let taken = |n: &str| {
            self.made.iter().any(|m| m.1 == n)
                || self.program.find_op(n).is_some()
                || self.program.find_scalar(n).is_some()
                || DType::from_name(n).is_some()
                || RESERVED.contains(&n)
        };
        if !taken(base) {
            return base.to_string();
        }
        (1..).map(|i| format!("{base}_{i}")).find(|n| !taken(n)).unwrap_or_default()
    }

    fn scalar_node(&mut self, node: &NodePat, want: &OpenType) -> Try<Value> {
        let Head::Scalar(scalar) = node.head else { return reject("not a scalar") };
        let program = self.program.clone();
        let def = program.scalar(scalar);
        let kind = |i: usize| def.params.get(i).map_or(Kind::Number, |p| p.1);
        let mut values: Vec<Option<Value>> = vec![None; node.args.len()];
        let mut joint: Option<Vec<Dim>> = None;
        let mut dtype = None;
        // First operands with a type of their own, then variables, then literals.
        for pass in 0..3 {
            for (i, arg) in node.args.iter().enumerate() {
                let turn = match (self.open(arg), arg) {
                    (true, Pat::Lit { .. }) => 2,
                    (true, _) => 1,
                    (false, _) => 0,
                };
                if values[i].is_some() || turn > pass {
                    continue;
                }
                let inner = match (kind(i), pass) {
                    (Kind::Bool, _) => Some(DType::Bool),
                    (_, 0) => dtype,
                    _ => dtype.or(if def.result == Kind::Number { want.dtype } else { None }).or(Some(self.main)),
                };
                if kind(i) == Kind::Number && inner == Some(DType::Bool) {
                    return reject("numbers are wanted, not truth values");
                }
                let shape = match (&joint, &want.shape) {
                    // What is there is smaller than what is wanted: this operand makes up for it.
                    (Some(s), OpenShape::Is(wanted)) if is_within(&known(s)?, wanted) => want.shape.clone(),
                    (Some(s), _) => OpenShape::With(known(s)?),
                    (None, _) => want.shape.clone(),
                };
                let Some(v) = self.tensor(arg, &OpenType { dtype: inner, shape })? else {
                    return reject("an operand of a scalar is absent");
                };
                let ty = self.graph.ty(v).clone();
                if kind(i) == Kind::Number {
                    dtype = dtype.or(Some(ty.dtype));
                }
                joint = match &joint {
                    None => Some(ty.shape),
                    Some(s) => match broadcast(s, &ty.shape) {
                        Some(s) => Some(s),
                        None => return reject("operands of a scalar do not broadcast"),
                    },
                };
                values[i] = Some(v);
            }
        }
        let values: Vec<Value> = values.into_iter().flatten().collect();
        self.graph.scalar(scalar, &values).map_err(|e| Reject(e.to_string()))
    }

    fn op_node(&mut self, node: &NodePat, want: &OpenType) -> Try<Vec<Value>> {
        let Head::Op(op) = node.head else { return reject("not an op") };
        let program = self.program.clone();
        let def = program.op(op);
        let params: Vec<&ParamKind> = def.operands().map(|(_, p)| &p.kind).collect();
        let mut scope = Bindings::default();
        let mut operands: Vec<Option<Option<Value>>> = vec![None; node.args.len()];
        let param = |i: usize| params.get(i).or(params.last()).copied();
        for pass in 0..2 {
            for (i, arg) in node.args.iter().enumerate() {
                let Some(ParamKind::Tensor { ty, optional, variadic }) = param(i) else { continue };
                if operands[i].is_some() || (pass == 0 && self.open(arg)) {
                    continue;
                }
                let beside: Vec<Value> = operands.iter().flatten().flatten().copied().collect();
                let inner = if pass == 0 {
                    let dtype = if let DTypePat::Is(d) = ty.dtype { Some(d) } else { None };
                    // Operands of any number resemble each other.
                    match beside.first().filter(|_| *variadic) {
                        Some(first) => self.beside(*first)?,
                        None if self.long > 0 && convolves(def) => {
                            self.convolved(OpenType { dtype, shape: OpenShape::Free }, &beside)?
                        }
                        None => OpenType { dtype, shape: OpenShape::Free },
                    }
                } else {
                    // The declaration's variables follow from a type that the rule states.
                    let mut own = scope.clone();
                    let scope = if is_typed(arg) { &mut own } else { &mut scope };
                    self.operand_want(node, i, (ty, *variadic), scope, &beside, def, want)?
                };
                let value = self.tensor(arg, &inner)?;
                match value {
                    None if !optional => return reject("an operand that is required is absent"),
                    None => {}
                    Some(_) if *variadic => {}
                    Some(v) => {
                        if match_type(ty, self.graph.ty(v), &mut scope) == Some(false) {
                            return reject(format!("an operand of `{}` has another type", def.name));
                        }
                    }
                }
                operands[i] = Some(value);
            }
        }
        let mut operands: Vec<Option<Value>> = operands.into_iter().flatten().collect();
        if let Some(rest) = &node.rest {
            let more = self.rest_operands(rest, &operands)?;
            operands.extend(more.into_iter().map(Some));
        }
        let types: Vec<Option<TensorType>> = operands.iter().map(|v| v.map(|v| self.graph.ty(v).clone())).collect();
        let attrs = self.attributes(op, node, &types)?;
        let term_at = params.iter().position(|p| **p == ParamKind::Term);
        let term = match term_at.and_then(|i| node.args.get(i)) {
            None => None,
            Some(pat) => {
                let results = apply_op(&program, op, &attrs, &types).map_err(|e| Reject(e.to_string()))?;
                let Some(result) = results.first() else { return reject("an op without a result") };
                let mut bound = BoundTerm { term: Term::empty(), reads: Vec::new() };
                // Terms over products of bytes compute with sums in i32, and are cast to what is
                // stored.
                let bytes = types.first().is_some_and(|t| t.as_ref().is_some_and(|t| t.dtype.is_byte()));
                self.stored = bytes.then_some(result.dtype);
                let dtype = if bytes { DType::I32 } else { result.dtype };
                let root = self.term(pat, &TensorType { dtype, shape: result.shape.clone() }, &mut bound)?;
                bound.term.roots = vec![root];
                operands.extend(bound.reads.into_iter().map(Some));
                Some(bound.term)
            }
        };
        self.graph.op(op, &operands, attrs, term).map_err(|e| Reject(e.to_string()))
    }

    /// The operands that a variadic rest matches: tensors, or a pattern applied to each of them.
    fn rest_operands(&mut self, rest: &Rest, before: &[Option<Value>]) -> Try<Vec<Value>> {
        let bound = self.env.variadics.get(&rest.var).cloned();
        let items = bound.map_or_else(|| self.rest_items(rest.var, before), Ok)?;
        let Some(each) = &rest.each else { return Ok(items) };
        let mut operands = Vec::new();
        for item in items {
            self.env.tensors.insert(each.item, item);
            let want = OpenType { dtype: Some(self.graph.ty(item).dtype), shape: OpenShape::Free };
            let Some(v) = self.tensor(&each.element, &want)? else { return reject("an operand is absent") };
            operands.push(v);
        }
        self.env.tensors.remove(&each.item);
        Ok(operands)
    }

    /// The tensors that a variadic rest binds.
    fn rest_items(&mut self, rest: VarId, before: &[Option<Value>]) -> Try<Vec<Value>> {
        let least = usize::from(before.is_empty());
        let count = least + self.source.pick(3);
        let count = self.count(count, before.len()).max(least);
        let name = self.rule.vars.get(rest.index()).map_or("t".to_string(), |v| v.name.clone());
        let mut values: Vec<Value> = Vec::new();
        for _ in 0..count {
            let first = before.iter().flatten().chain(&values).next().copied();
            let want = match first {
                None => OpenType::default(),
                Some(v) => self.beside(v)?,
            };
            values.push(self.fresh(&name, None, &want)?);
        }
        self.env.variadics.insert(rest, values.clone());
        Ok(values)
    }

    /// An operand of the same type, or one that differs in one axis, as `concat` allows.
    fn beside(&mut self, first: Value) -> Try<OpenType> {
        let ty = self.graph.ty(first).clone();
        let mut shape = sizes(&ty)?;
        if !shape.is_empty() && self.source.pick(2) == 1 {
            let at = self.source.pick(shape.len());
            shape[at] = self.size();
        }
        Ok(OpenType { dtype: Some(ty.dtype), shape: OpenShape::Is(shape) })
    }

    #[allow(clippy::too_many_arguments)]
    fn operand_want(
        &mut self,
        node: &NodePat,
        operand: usize,
        (ty, variadic): (&TypePat, bool),
        scope: &mut Bindings,
        beside: &[Value],
        def: &OpDef,
        want: &OpenType,
    ) -> Try<OpenType> {
        if variadic && let Some(first) = beside.first() {
            return self.beside(*first);
        }
        let builtin = if let OpBody::Builtin(b) = def.body { Some(b) } else { None };
        let outer = OpenType { dtype: want.dtype.filter(|_| builtin != Some(BuiltinOp::Cast)), shape: OpenShape::Free };
        let outer = match builtin {
            // What is wanted of a long sum of converted operands.
            Some(BuiltinOp::Cast) if self.long > 0 => OpenType { shape: want.shape.clone(), ..outer },
            _ => outer,
        };
        let convolves = convolves(def);
        // The sizes of a convolution are chosen below: the declaration's variables get no others.
        let mut own = scope.clone();
        let scope = if convolves { &mut own } else { scope };
        let mut inner = self.want_of(ty, scope, &def.bounds, &outer)?;
        if builtin == Some(BuiltinOp::Cast) && want.dtype.is_some() {
            inner.dtype = Some(DTYPES[self.source.weighted(&DTYPE_WEIGHTS)]);
        }
        if builtin == Some(BuiltinOp::Transpose)
            && let Some(rank) = self.list_length(node.attrs.first())
        {
            inner.shape = OpenShape::Rank(rank);
        }
        if convolves {
            inner = match beside.first() {
                Some(filter) if operand == 0 => self.convolved_by(inner, *filter)?,
                _ => self.convolved(inner, beside)?,
            };
        }
        if builtin == Some(BuiltinOp::GatherElements)
            && let Some(first) = beside.first()
        {
            inner.shape = OpenShape::Is(sizes(self.graph.ty(*first))?);
        }
        if builtin == Some(BuiltinOp::Split)
            && let Some(shape) = self.divided(node, &inner.shape)
        {
            inner.shape = OpenShape::Is(shape);
        }
        Ok(inner)
    }

    /// The operand that is convolved, for a filter that is there already: in as many groups as
    /// divide its results.
    fn convolved_by(&mut self, want: OpenType, filter: Value) -> Try<OpenType> {
        let ty = self.graph.ty(filter).clone();
        let filter = sizes(&ty)?;
        let [o, i, k @ ..] = &filter[..] else { return reject("a filter of low rank") };
        let divisors: Vec<i64> = (1..=(*o).max(1)).filter(|g| o % g == 0).collect();
        let groups = divisors[self.source.pick(divisors.len())];
        let n = if self.long > 0 { 1 } else { self.size_upto(3) };
        let sides = k.iter().map(|k| k + self.source.pick_or_beyond(3, LARGER_SIDES) as i64);
        let shape = [n, i * groups].into_iter().chain(sides).collect();
        Ok(OpenType { dtype: want.dtype.or(Some(ty.dtype)), shape: OpenShape::Is(shape) })
    }

    /// An operand of a convolution: small, and the filter's channels divide the other operand's.
    fn convolved(&mut self, want: OpenType, beside: &[Value]) -> Try<OpenType> {
        let dtype = want.dtype.filter(|d| d.is_float()).or(Some(DType::F32));
        let shape = match beside.first() {
            // A long sum: of all channels.
            None if self.long > 0 => vec![1, self.size(), 1],
            Some(x) if self.long > 0 => {
                let x = sizes(self.graph.ty(*x))?;
                let [_, c, d @ ..] = &x[..] else { return reject("a convolution of low rank") };
                [1, *c].into_iter().chain(d.iter().map(|_| 1)).collect()
            }
            None => {
                let axes = 1 + self.source.pick(2);
                let wide = matches!(self.distribution, Distribution::Ensemble(_));
                let (n, c) = (self.size_upto(3), self.size_upto(8));
                let side = if wide { 12 } else { 5 };
                [n, c].into_iter().chain((0..axes).map(|_| self.size().clamp(1, side))).collect()
            }
            Some(x) => {
                let x = sizes(self.graph.ty(*x))?;
                let [_, c, d @ ..] = &x[..] else { return reject("a convolution of low rank") };
                let divisors: Vec<i64> = (1..=(*c).max(1)).filter(|g| c % g == 0).collect();
                let groups = divisors[self.source.pick(divisors.len())];
                let o = groups * self.size_upto(3);
                let side = |d: &i64| 1 + self.source.pick_or_beyond((*d).clamp(1, 3) as usize, LARGER_SIDES) as i64;
                let filter = d.iter().map(side);
                [o, c / groups].into_iter().chain(filter).collect()
            }
        };
        Ok(OpenType { dtype, shape: OpenShape::Is(shape) })
    }
}

fn convolves(def: &OpDef) -> bool {
    matches!(def.body, OpBody::Builtin(b) if b.accumulator().unwrap_or(b) == BuiltinOp::Conv)
}

/// True if a shape broadcasts to another one.
fn is_within(shape: &[i64], wanted: &[i64]) -> bool {
    let ends = shape.iter().rev().zip(wanted.iter().rev()).all(|(d, w)| d == w || *d == 1);
    shape != wanted && shape.len() <= wanted.len() && ends
}

/// True if the pattern states a type of its own.
fn is_typed(pat: &Pat) -> bool {
    match pat {
        Pat::Typed(..) => true,
        Pat::Bind(_, p) => is_typed(p),
        _ => false,
    }
}

/// Keywords of the language, which cannot name an input.
const RESERVED: &[&str] = &[
    "acc", "acc1", "row", "col", "full", "in", "and", "or", "not", "if", "then", "else", "for", "none", "true",
    "false", "inf", "nan", "input", "const", "given", "expect", "cast", "round", "build", "let", "requires", "prefer",
    "class",
];
