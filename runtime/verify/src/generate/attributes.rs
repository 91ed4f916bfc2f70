//! Attributes of random instances.
//!
//! In: an op, its operands' types and the patterns of its attributes. Out: attribute values that
//! are legal for these operands and match the patterns; variables of the patterns are bound.

use hypatia_dsl::builtin::{BuiltinOp, SCATTER_REDUCTIONS};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AExpr, AttrPat, AttrType, AttrValue, NodePat, OpBody, OpId, ParamKind, Sort, VarId};
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::{Bindings, TensorType, eval, eval_guard, same_value};

use super::open_types::OpenShape;
use super::{DTYPES, Generator, Reject, Try, ints, reject, sizes};
use crate::values::{Distribution, Ensemble};
use hypatia_graph::GraphFacts;

/// True if the expression reads the variable.
pub(super) fn reads(e: &AExpr, var: VarId) -> bool {
    let any = |l: &[AExpr]| l.iter().any(|e| reads(e, var));
    match e {
        AExpr::Var(v) => *v == var,
        AExpr::Binary(_, a, b) | AExpr::Index(a, b) => reads(a, var) || reads(b, var),
        AExpr::Neg(a) | AExpr::Not(a) | AExpr::Spread(a) => reads(a, var),
        AExpr::If(a, b, c) => [a, b, c].into_iter().any(|e| reads(e, var)),
        AExpr::List(l) | AExpr::Call(_, l) => any(l),
        AExpr::Comprehension { element, over, condition, .. } => {
            reads(element, var) || reads(over, var) || condition.as_ref().is_some_and(|c| reads(c, var))
        }
        AExpr::Value(_) | AExpr::Fact(..) | AExpr::SameAccumulator(..) | AExpr::Device(_) => false,
    }
}

/// True if the expression computes with numbers, not with lists.
fn is_of_numbers(e: &AExpr) -> bool {
    match e {
        AExpr::Var(_) | AExpr::Value(AttrValue::Dim(_)) => true,
        AExpr::Binary(_, a, b) => is_of_numbers(a) && is_of_numbers(b),
        AExpr::Neg(a) => is_of_numbers(a),
        _ => false,
    }
}

/// The longest axis that is divided into stated parts.
const MOST_DIVIDED: i64 = 1 << 16;
/// How many parts of a split a search may add to the usual ones.
const MORE_PARTS: usize = 4;

/// Steps and strides beyond the usual ones.
const MOST_STEPS: usize = 7;

/// How often another value is drawn for a variable that a guard refutes.
const TRIES_OF_A_VALUE: usize = 40;

impl Generator<'_, '_> {
    /// How often another value is drawn for a variable that a guard refutes.
    pub(super) fn redraws(&self) -> usize {
        if self.source.draws_again() { TRIES_OF_A_VALUE } else { 0 }
    }

    /// True if what is known by now refutes a guard that reads the variable.
    fn refuted(&self, var: VarId) -> bool {
        self.refuted_by(var, &self.env.attrs)
    }

    /// The same for bindings that are not part of the instance yet. The variables of an op's
    /// declaration are others than the rule's.
    pub(super) fn refuted_by(&self, var: VarId, bindings: &Bindings) -> bool {
        let facts = GraphFacts { graph: &self.graph, env: &self.env };
        let mut conditions = self.hints.atoms.iter().filter(|(e, _)| reads(e, var));
        conditions.any(|(e, holds)| eval_guard(e, bindings, &facts) == Some(!holds))
    }

    /// True if what is known by now refutes a guard that reads a variable of the list.
    fn refutes_list(&self, items: &[AttrPat]) -> bool {
        items.iter().any(|item| match item {
            AttrPat::Var(v) | AttrPat::Rest(Some(v)) => self.refuted(*v),
            _ => false,
        })
    }

    /// One value for each attribute of an op over operands of these types.
    pub(super) fn attributes(&mut self, op: OpId, node: &NodePat, types: &[Option<TensorType>]) -> Try<Vec<AttrValue>> {
        let program = self.program.clone();
        let def = program.op(op);
        let builtin = if let OpBody::Builtin(b) = def.body { Some(b) } else { None };
        let rank = types.iter().flatten().next().map(|t| t.shape.len());
        let mut out: Vec<AttrValue> = Vec::with_capacity(node.attrs.len());
        for (i, (pat, (_, param))) in node.attrs.iter().zip(def.attrs()).enumerate() {
            let ParamKind::Attr { ty, .. } = &param.kind else { continue };
            let backwards = builtin == Some(BuiltinOp::Slice)
                && node.attrs.get(3).is_some_and(
                    |p| matches!(p, AttrPat::Is(e) if self.eval(e).and_then(|v| as_int(&v)).is_some_and(|s| s < 0)),
                );
            let value = match pat {
                AttrPat::Var(v) if backwards && (1..=2).contains(&i) && !self.env.attrs.values.contains_key(v) => {
                    let value = self.backwards(i, types, &out)?;
                    self.env.attrs.values.insert(*v, value.clone());
                    value
                }
                AttrPat::Is(e) => {
                    if self.eval(e).is_none() {
                        self.bind_free(e, *ty)?;
                    }
                    self.eval(e).ok_or_else(|| Reject(format!("attribute `{}` has no value", param.name)))?
                }
                AttrPat::Var(v) if self.env.attrs.values.contains_key(v) => {
                    self.env.attrs.values.get(v).cloned().ok_or_else(|| Reject("an attribute has no value".into()))?
                }
                AttrPat::Var(v) => {
                    self.bind_what_gives(*v, *ty)?;
                    let mut tries = 0;
                    loop {
                        // The usual numbers often satisfy the guards.
                        let ranged = |g: &mut Self| if tries > 0 { g.in_range(*v, *ty) } else { None };
                        let value = match self.chosen_var(*v).or_else(|| ranged(self)) {
                            Some(value) => value,
                            None => self.random_attr(builtin, i, *ty, types, &out, node.output as usize, None)?,
                        };
                        let value = normalised(*ty, value, rank);
                        self.env.attrs.values.insert(*v, value.clone());
                        tries += 1;
                        // The guards are solved one variable at a time.
                        if tries >= self.redraws() || !self.refuted(*v) {
                            break self.spread(*v, *ty, value);
                        }
                    }
                }
                AttrPat::Any | AttrPat::Rest(_) => {
                    self.random_attr(builtin, i, *ty, types, &out, node.output as usize, None)?
                }
                AttrPat::List(items) => {
                    let fixed = items.iter().filter(|p| !matches!(p, AttrPat::Rest(_))).count();
                    let open = items.len() > fixed;
                    let length = if open { None } else { Some(fixed) };
                    let permutation = builtin == Some(BuiltinOp::Transpose);
                    self.bind_what_gives_elements(items)?;
                    let known = self.env.attrs.clone();
                    let mut tries = 0;
                    loop {
                        let factors = self.factors_of(builtin, items, types);
                        let base = match factors {
                            Some(list) => AttrValue::List(list),
                            None => self.random_attr(builtin, i, *ty, types, &out, node.output as usize, length)?,
                        };
                        let AttrValue::List(base) = base else { return reject("a list is wanted for a single value") };
                        let values = self.list(items, base, permutation, *ty, rank)?;
                        tries += 1;
                        if tries >= self.redraws() || !self.refutes_list(items) {
                            break AttrValue::List(values);
                        }
                        self.env.attrs = known.clone();
                    }
                }
            };
            out.push(value);
        }
        Ok(out)
    }

    /// The sizes of a reshape as factors of what is there, where such are wanted.
    fn factors_of(
        &mut self,
        builtin: Option<BuiltinOp>,
        items: &[AttrPat],
        types: &[Option<TensorType>],
    ) -> Option<Vec<AttrValue>> {
        // A size that stands twice in the list is hardly ever found otherwise.
        let open = |v: &VarId| !self.env.attrs.values.contains_key(v);
        let again = |i: usize| matches!(&items[i], AttrPat::Var(v) if open(v) && items[..i].contains(&items[i]));
        if !(self.factored || (0..items.len()).any(again)) || builtin != Some(BuiltinOp::Reshape) {
            return None;
        }
        let shape = sizes(types.first()?.as_ref()?).ok()?;
        self.factors(items, shape.iter().product())
    }

    /// Gives values to what a guard computes a variable from, if nothing has them yet: in
    /// `full(value = 1 / n) * full(value = n)`, the quotient comes first.
    fn bind_what_gives(&mut self, var: VarId, ty: AttrType) -> Try<()> {
        let hints = self.hints;
        match hints.equal_var.iter().find(|(v, _)| *v == var) {
            // Of two attributes that are to be equal, the first one that is drawn gives the other.
            Some((_, AExpr::Var(_))) => Ok(()),
            Some((_, e)) if self.eval(e).is_none() => self.bind_free(e, ty),
            _ => Ok(()),
        }
    }

    /// The same for the elements of a list: in `before = [2 * l]`, an `l` that comes later.
    fn bind_what_gives_elements(&mut self, items: &[AttrPat]) -> Try<()> {
        let hints = self.hints;
        let here =
            |e: &AExpr| items.iter().any(|i| matches!(i, AttrPat::Var(v) | AttrPat::Rest(Some(v)) if reads(e, *v)));
        for item in items {
            let AttrPat::Var(v) = item else { continue };
            if hints.equal_var.iter().any(|(var, e)| var == v && is_of_numbers(e) && !here(e)) {
                self.bind_what_gives(*v, AttrType::Int)?;
            }
        }
        Ok(())
    }

    /// Gives the variables of an expression values that what comes later must fit: in
    /// `scatter(x: T[n], iota(shape = [n], ..), u)`, the indices come before x.
    fn bind_free(&mut self, e: &AExpr, ty: AttrType) -> Try<()> {
        let open = |g: &Self, v: VarId| {
            reads(e, v) && !g.env.attrs.values.contains_key(&v) && !g.rule.lets.iter().any(|l| l.0 == v)
        };
        for i in 0..self.rule.vars.len() {
            let v = VarId(i as u32);
            let value = match self.rule.vars[i].sort {
                _ if !open(self, v) => continue,
                Sort::Attr if ty == AttrType::Float => self.plain(ty, &[], None)?,
                Sort::Attr => AttrValue::Dim(Dim::from(self.size())),
                Sort::Shape => {
                    let rank = self.source.pick(3);
                    AttrValue::List(self.sizes(rank).into_iter().map(|d| AttrValue::Dim(Dim::from(d))).collect())
                }
                _ => continue,
            };
            self.env.attrs.values.insert(v, value);
        }
        Ok(())
    }

    /// The length that a list pattern requires.
    pub(super) fn list_length(&self, pat: Option<&AttrPat>) -> Option<usize> {
        match pat? {
            AttrPat::List(items) if !items.iter().any(|p| matches!(p, AttrPat::Rest(_))) => Some(items.len()),
            AttrPat::Is(e) => match self.eval(e)? {
                AttrValue::List(l) => Some(l.len()),
                _ => None,
            },
            AttrPat::Var(v) => match self.env.attrs.values.get(v).cloned().or_else(|| self.hinted_var(*v))? {
                AttrValue::List(l) => Some(l.len()),
                _ => None,
            },
            _ => None,
        }
    }

    /// The shape of what is split into parts whose sizes the rule states; none if it does not, or
    /// if the shape is not open.
    pub(super) fn divided(&mut self, node: &NodePat, want: &OpenShape) -> Option<Vec<i64>> {
        let stated = |pat: &AttrPat| match pat {
            AttrPat::Is(e) => as_int(&self.eval(e)?),
            _ => None,
        };
        let axis = stated(node.attrs.first()?)?;
        let total: i64 = match node.attrs.get(1)? {
            AttrPat::List(items) => items.iter().map(stated).sum::<Option<i64>>()?,
            AttrPat::Is(e) => match self.eval(e)? {
                AttrValue::List(items) => ints(&items)?.iter().sum(),
                _ => return None,
            },
            _ => return None,
        };
        if !(0..=MOST_DIVIDED).contains(&total) {
            return None;
        }
        let least = if axis < 0 { axis.unsigned_abs() as usize } else { axis as usize + 1 };
        let rank = match want {
            OpenShape::Free => least + self.source.pick(3),
            OpenShape::Rank(rank) if *rank >= least => *rank,
            _ => return None,
        };
        let mut shape: Vec<i64> = (0..rank).map(|_| self.size_upto(4)).collect();
        let at = if axis < 0 { rank as i64 + axis } else { axis };
        shape[at as usize] = total;
        Some(shape)
    }

    /// Matches `made` against a pattern: the result is the pattern's value if it is known, else
    /// `made`.
    pub(super) fn match_or_make(&mut self, pat: &AttrPat, made: AttrValue) -> Try<AttrValue> {
        match pat {
            AttrPat::Is(e) => self.eval(e).ok_or_else(|| Reject("an attribute has no value".into())),
            AttrPat::Var(v) => Ok(self.env.attrs.values.get_or_insert(*v, made).clone()),
            _ => Ok(made),
        }
    }

    /// The value of an expression, including that of a `let` if the expression needs one.
    pub(super) fn eval(&self, e: &hypatia_dsl::ir::AExpr) -> Option<AttrValue> {
        let facts = GraphFacts { graph: &self.graph, env: &self.env };
        let found = eval(e, &self.env.attrs, &facts);
        if found.is_some() || self.rule.lets.is_empty() {
            return found;
        }
        let mut known = self.env.attrs.clone();
        for (var, e) in &self.rule.lets {
            if let Some(v) = eval(e, &known, &facts) {
                known.values.get_or_insert(*var, v);
            }
        }
        eval(e, &known, &facts)
    }

    /// The value that a guard `v == e` or `v in [..]` gives to a variable.
    pub(super) fn hinted_var(&self, var: hypatia_dsl::ir::VarId) -> Option<AttrValue> {
        let equal = self.hints.equal_var.iter().filter(|(v, _)| *v == var).find_map(|(_, e)| self.eval(e));
        equal.or_else(|| {
            self.hints.among.iter().filter(|(v, _)| *v == var).find_map(|(_, e)| match self.eval(e) {
                Some(AttrValue::List(l)) => l.first().cloned(),
                _ => None,
            })
        })
    }

    /// Like [`Self::hinted_var`], but picks any of the values that `v in [..]` allows.
    pub(super) fn chosen_var(&mut self, var: hypatia_dsl::ir::VarId) -> Option<AttrValue> {
        let hints = self.hints;
        let list = hints.among.iter().filter(|(v, _)| *v == var).find_map(|(_, e)| match self.eval(e) {
            Some(AttrValue::List(l)) if !l.is_empty() => Some(l),
            _ => None,
        });
        match list {
            Some(l) if !hints.equal_var.iter().any(|(v, _)| *v == var) => l.get(self.source.pick(l.len())).cloned(),
            _ => self.hinted_var(var),
        }
    }

    /// What a variable of a list stands for, or often what a guard says of it.
    fn element(&mut self, var: VarId) -> Option<AttrValue> {
        let bound = self.env.attrs.values.get(&var).cloned();
        if bound.is_some() || self.hinted_var(var).is_none() || self.source.pick(2) == 1 {
            return bound;
        }
        self.chosen_var(var)
    }

    /// A list that matches element patterns; elements that they leave undetermined come from
    /// `base`.
    fn list(
        &mut self,
        items: &[AttrPat],
        base: Vec<AttrValue>,
        permutation: bool,
        ty: AttrType,
        rank: Option<usize>,
    ) -> Try<Vec<AttrValue>> {
        let fixed = items.iter().filter(|p| !matches!(p, AttrPat::Rest(_))).count();
        let Some(spare) = base.len().checked_sub(fixed) else { return reject("a list is too short for its pattern") };
        if spare > 0 && fixed == items.len() {
            return reject("a list is too long for its pattern");
        }
        let element = if ty == AttrType::Axes { AttrType::Axis } else { AttrType::Int };
        let one = |v: AttrValue| normalised(element, v, rank);
        // First the fixed elements, then the undetermined ones.
        let mut slots: Vec<Option<AttrValue>> = vec![None; base.len()];
        let mut at = 0;
        let mut places = Vec::new();
        for item in items {
            places.push(at);
            match item {
                AttrPat::Is(e) => {
                    slots[at] = Some(one(self.eval(e).ok_or_else(|| Reject("a list has no value".into()))?))
                }
                AttrPat::Var(v) => slots[at] = self.element(*v),
                _ => {}
            }
            at += if matches!(item, AttrPat::Rest(_)) { spare } else { 1 };
        }
        if permutation {
            let used: Vec<AttrValue> = slots.iter().flatten().cloned().collect();
            let mut free = base.into_iter().filter(|b| !used.contains(b));
            for slot in &mut slots {
                if slot.is_none() {
                    *slot = free.next();
                }
            }
        } else {
            for (slot, b) in slots.iter_mut().zip(base) {
                slot.get_or_insert(b);
            }
        }
        let Some(values) = slots.into_iter().collect::<Option<Vec<_>>>() else {
            return reject("a list pattern cannot be a permutation");
        };
        for (item, at) in items.iter().zip(places) {
            let (var, value) = match item {
                AttrPat::Var(v) => (v, values[at].clone()),
                AttrPat::Rest(Some(v)) => (v, AttrValue::List(values[at..at + spare].to_vec())),
                _ => continue,
            };
            let bound = self.env.attrs.values.get_or_insert(*var, value.clone());
            if same_value(bound, &value) != Some(true) {
                return reject("a variable of a list stands for two values");
            }
        }
        Ok(values)
    }

    /// A legal value of attribute `index`. `before` holds the preceding attributes, `length` the
    /// required length of a list.
    #[allow(clippy::too_many_arguments)]
    fn random_attr(
        &mut self,
        builtin: Option<BuiltinOp>,
        index: usize,
        ty: AttrType,
        types: &[Option<TensorType>],
        before: &[AttrValue],
        output: usize,
        length: Option<usize>,
    ) -> Try<AttrValue> {
        let first = types.iter().flatten().next();
        let shape = match first {
            Some(t) => sizes(t)?,
            None => Vec::new(),
        };
        let axis_size = || match before.first() {
            Some(AttrValue::Dim(a)) => a.as_const().and_then(|a| {
                let a = if a < 0 { a + shape.len() as i64 } else { a };
                shape.get(a as usize).copied()
            }),
            _ => None,
        };
        let dims = |l: Vec<i64>| AttrValue::List(l.into_iter().map(|d| AttrValue::Dim(Dim::from(d))).collect());
        let int = |v: i64| AttrValue::Dim(Dim::from(v));
        Ok(match (builtin, index) {
            (Some(BuiltinOp::Transpose), 0) => dims(self.permutation(shape.len())),
            (Some(BuiltinOp::Reshape), 0) => dims(self.reshaping(&shape, length)?),
            (Some(BuiltinOp::Expand), 0) => dims(self.expansion(&shape, length)),
            (Some(BuiltinOp::Slice), 1) => int(self.upto(axis_size().unwrap_or(0))),
            (Some(BuiltinOp::Slice), 2) => {
                let start = before.get(1).and_then(as_int).unwrap_or(0);
                int(self.slice_end(start, axis_size().unwrap_or(0)))
            }
            (Some(BuiltinOp::Slice), 3) if self.ends => int(1 + self.source.pick(MOST_STEPS) as i64),
            (Some(BuiltinOp::Slice), 3) => int([1, 2, 3][self.source.weighted(&[70, 20, 10])]),
            (Some(BuiltinOp::Split), 1) => {
                let parts = length.unwrap_or_else(|| output + 1 + self.source.pick_or_beyond(2, MORE_PARTS));
                dims(self.partition(axis_size().unwrap_or(0), parts))
            }
            (Some(BuiltinOp::Pad), _) if self.ends => {
                dims(shape.iter().map(|_| self.source.pick(MOST_STEPS) as i64 - 1).collect())
            }
            (Some(BuiltinOp::Pad), _) => {
                dims(shape.iter().map(|_| self.number(&[0, 1, 2, -1], &[50, 25, 15, 10])).collect())
            }
            (Some(BuiltinOp::GatherNd), 0) => {
                let indices = types.get(1).and_then(|t| t.as_ref()).map(sizes).transpose()?.unwrap_or_default();
                // An axis of both that has one size, and one more of each behind them.
                let shared = shape.iter().zip(&indices).take_while(|(a, b)| a == b).count();
                let most = shared.min(shape.len().saturating_sub(1)).min(indices.len().saturating_sub(1));
                int(if self.source.pick(2) == 1 { self.source.pick(most + 1) as i64 } else { 0 })
            }
            (Some(BuiltinOp::Scatter), 0) => {
                AttrValue::Str(SCATTER_REDUCTIONS[self.source.pick(SCATTER_REDUCTIONS.len())].0.to_string())
            }
            (Some(BuiltinOp::Conv | BuiltinOp::ConvGemm), 0..=4) => {
                let filter = types.get(1).and_then(|t| t.as_ref()).map(sizes).transpose()?.unwrap_or_default();
                self.convolution(index, &shape, &filter, before)?
            }
            (Some(BuiltinOp::Windows), _) => dims(self.windows(index, &shape, length, before)),
            (Some(carrier), _) if carrier.accumulator().is_some() => {
                AttrValue::DType(self.stored_type(first.map_or(self.main, |t| t.dtype)))
            }
            (Some(BuiltinOp::Cast), 0) => AttrValue::DType(self.cast_type()),
            _ => self.plain(ty, &shape, length)?,
        })
    }

    /// The end of a slice from `start` on, of an axis of that size.
    fn slice_end(&mut self, start: i64, size: i64) -> i64 {
        // A slice that ends before its start is empty.
        let least = [start.clamp(0, size), 0][self.source.weighted(&[85, 15])];
        size - self.upto(size - least)
    }

    /// Sizes, strides or dilations of windows along the last axes, which have room for one.
    fn windows(&mut self, index: usize, shape: &[i64], length: Option<usize>, before: &[AttrValue]) -> Vec<i64> {
        let axes = length.unwrap_or(1 + usize::from(shape.len() > 1)).min(shape.len());
        let sides = match before.first() {
            Some(AttrValue::List(l)) => ints(l).unwrap_or_default(),
            _ => Vec::new(),
        };
        let room = shape[shape.len() - axes..].iter().enumerate();
        room.map(|(axis, d)| match (index, sides.get(axis)) {
            (0, _) => self.number(&[1, 2, 3, 4, 5, 7], &[25, 35, 20, 8, 6, 6]).min((*d).max(1)),
            (1, _) => self.number(&[1, 2, 3, 5, 7], &[40, 30, 15, 8, 7]),
            (_, Some(side)) => self.dilation(*side, *d),
            _ => 1,
        })
        .collect()
    }

    /// How far apart the elements of a window may lie along an axis: often side by side.
    fn dilation(&mut self, side: i64, room: i64) -> i64 {
        let most = if side > 1 { (room - 1) / (side - 1) } else { MOST_STEPS as i64 };
        self.number(&[1, 2, 3, 4, 5, 7], &[50, 20, 12, 8, 5, 5]).min(most.max(1))
    }

    /// What a product of elements of type `own` stores: mostly the same type.
    fn stored_type(&mut self, own: DType) -> DType {
        if own.is_byte() {
            return [DType::I32, DType::F32, own][self.source.weighted(&[3, 1, 1])];
        }
        // No device narrows an f64 product at the store.
        let narrow = own.is_float() && own != DType::F64 && self.source.weighted(&[4, 1]) == 1;
        if narrow { [DType::F32, DType::BF16][self.source.pick(2)] } else { own }
    }

    /// What a cast makes: often a float.
    fn cast_type(&mut self) -> DType {
        let float = [DType::F32, DType::F16, DType::BF16, DType::F64][self.source.pick(4)];
        let any = DTYPES[self.source.pick(DTYPES.len())];
        [self.main, float, any][self.source.weighted(&[30, 40, 30])]
    }

    /// Attributes of a convolution, in order: strides, padding that leaves room for the filter,
    /// dilations that fit, and as many groups as the channels require.
    fn convolution(&mut self, index: usize, x: &[i64], w: &[i64], before: &[AttrValue]) -> Try<AttrValue> {
        let (Some(d), Some(k)) = (x.get(2..), w.get(2..)) else { return reject("a convolution of low rank") };
        if d.len() != k.len() {
            return reject("a filter of another rank");
        }
        let int = |v: i64| AttrValue::Dim(Dim::from(v));
        let padding = |list: usize, i: usize| match before.get(list) {
            Some(AttrValue::List(l)) => l.get(i).and_then(as_int).unwrap_or(0),
            _ => 0,
        };
        if index == 4 {
            let groups = if w[1] > 0 && x[1] % w[1] == 0 { (x[1] / w[1]).max(1) } else { 1 };
            return Ok(int(groups));
        }
        let list = (0..d.len()).map(|i| match index {
            0 if self.ends => 1 + self.source.pick(MOST_STEPS) as i64,
            0 => self.number(&[1, 2, 3, 5], &[65, 25, 7, 3]),
            1 => self.number(&[0, 1, 2, 3], &[48, 30, 17, 5]),
            2 => (k[i] - d[i] - padding(1, i)).max(self.number(&[0, 1, 2, 3], &[48, 30, 17, 5])),
            _ => self.dilation(k[i], d[i] + padding(1, i) + padding(2, i)),
        });
        Ok(AttrValue::List(list.map(int).collect()))
    }

    /// A value of which only the type matters.
    fn plain(&mut self, ty: AttrType, shape: &[i64], length: Option<usize>) -> Try<AttrValue> {
        let rank = shape.len();
        let int = |v: i64| AttrValue::Dim(Dim::from(v));
        let few = |g: &mut Self| {
            length.unwrap_or_else(|| {
                let usual = 1 + g.source.pick(2);
                g.count(usual, 0)
            })
        };
        Ok(match ty {
            AttrType::Axis if rank == 0 => return reject("a tensor of rank 0 has no axis"),
            AttrType::Axis => int(self.source.pick(rank) as i64),
            AttrType::Axes => {
                let mut axes: Vec<i64> = (0..rank as i64).filter(|_| self.source.weighted(&[50, 50]) == 0).collect();
                if let Some(n) = length {
                    axes = self.permutation(rank).into_iter().take(n).collect();
                }
                AttrValue::List(axes.into_iter().map(int).collect())
            }
            AttrType::Int if self.ends => int(self.source.pick(MOST_STEPS) as i64),
            AttrType::Int => int(self.one_of(&[1, 0, 2, -1, 3])),
            AttrType::Ints => {
                let n = few(self);
                AttrValue::List((0..n).map(|_| int(self.one_of(&[1, 0, 2, -1, 3]))).collect())
            }
            AttrType::Dim => int(self.size()),
            AttrType::Dims => {
                let n = few(self);
                AttrValue::List(self.sizes(n).into_iter().map(int).collect())
            }
            AttrType::Float if self.distribution == Distribution::Ends => {
                AttrValue::Float([1.0, 300.0, -129.0, 70_000.0, 16_777_217.0, 3e9, 1e-25][self.source.pick(7)])
            }
            // A number that vanishes in f32, one that does in f16, and scales beyond its range.
            AttrType::Float if self.ends => {
                AttrValue::Float([1e-25, 1e-9, 1000.0, 3e4, 1e-25, 1.0][self.source.pick(6)])
            }
            AttrType::Float if self.distribution == Distribution::Ensemble(Ensemble::Scaled) => {
                AttrValue::Float([1000.0, 3000.0][self.source.pick(2)])
            }
            AttrType::Float if let Some(n) = self.only.filter(|_| self.source.pick(2) == 1) => {
                AttrValue::Float(n as f64)
            }
            AttrType::Float => {
                let own = self.hints.constants.elements(DType::F64);
                let n = if own.is_empty() { 0 } else { self.source.pick(2 * own.len()) };
                match own.get(n.wrapping_sub(own.len())) {
                    Some(v) => AttrValue::Float(*v),
                    None => AttrValue::Float([0.5, 1e-5, 2.0, 1e-3, -1.5][self.source.pick(5)]),
                }
            }
            AttrType::Floats => {
                let n = few(self);
                AttrValue::List((0..n).map(|_| AttrValue::Float([0.5, 2.0, -1.5][self.source.pick(3)])).collect())
            }
            AttrType::Bool => AttrValue::Bool(self.source.pick(2) == 0),
            AttrType::DType => AttrValue::DType(self.main),
            AttrType::Str => AttrValue::Str(String::new()),
        })
    }

    /// The start of a backward slice, or the element before which it stops: -1 is before the first.
    fn backwards(&mut self, index: usize, types: &[Option<TensorType>], before: &[AttrValue]) -> Try<AttrValue> {
        let Some(first) = types.iter().flatten().next() else { return reject("a slice of nothing") };
        let axis = before.first().and_then(as_int).unwrap_or(0);
        let rank = first.shape.len() as i64;
        let size = sizes(first)?.get((if axis < 0 { axis + rank } else { axis }) as usize).copied().unwrap_or(0);
        let start = before.get(1).and_then(as_int).unwrap_or(0);
        Ok(AttrValue::Dim(Dim::from(match index {
            1 => size - 1 - self.upto(size - 1),
            _ => self.upto(start) - 1,
        })))
    }

    fn upto(&mut self, n: i64) -> i64 {
        self.source.pick(n.max(0) as usize + 1) as i64
    }

    fn permutation(&mut self, rank: usize) -> Vec<i64> {
        let mut p: Vec<i64> = (0..rank as i64).collect();
        for i in 0..rank {
            let j = i + self.source.pick(rank - i);
            p.swap(i, j);
        }
        p
    }

    /// Another shape with as many elements.
    fn reshaping(&mut self, shape: &[i64], length: Option<usize>) -> Try<Vec<i64>> {
        let mut dims = shape.to_vec();
        if self.around && dims.len() > 2 && length.is_none_or(|n| n == dims.len()) {
            let first = self.source.pick(dims.len() - 2);
            dims.swap(first, first + 2);
            return Ok(dims);
        }
        for _ in 0..self.source.pick(4) {
            match self.source.pick(5) {
                // As many axes of other sizes, of which those in the middle may be the same.
                4 => dims.reverse(),
                0 if dims.len() > 1 => {
                    let at = self.source.pick(dims.len() - 1);
                    let d = dims.remove(at + 1);
                    dims[at] *= d;
                }
                1 if dims.len() < 5 => {
                    let at = self.source.pick(dims.len() + 1);
                    dims.insert(at, 1);
                }
                2 if !dims.is_empty() && dims.len() < 5 => {
                    let at = self.source.pick(dims.len());
                    let d = dims[at];
                    let factors: Vec<i64> = (2..d).filter(|f| d % f == 0).collect();
                    if !factors.is_empty() {
                        let f = factors[self.source.pick(factors.len())];
                        dims[at] = f;
                        dims.insert(at + 1, d / f);
                    }
                }
                _ => {
                    if let Some(at) = dims.iter().position(|d| *d == 1) {
                        dims.remove(at);
                    }
                }
            }
        }
        if let Some(n) = length {
            while dims.len() > n && dims.len() > 1 {
                let d = dims.remove(1);
                dims[0] *= d;
            }
            while dims.len() < n {
                let at = self.source.pick(dims.len() + 1);
                dims.insert(at, 1);
            }
            if dims.len() != n {
                return reject("no reshape of that rank");
            }
        }
        Ok(dims)
    }

    /// A shape that this one broadcasts to, of this rank if it is known.
    fn expansion(&mut self, shape: &[i64], rank: Option<usize>) -> Vec<i64> {
        let mut dims: Vec<i64> = shape.iter().map(|d| if *d == 1 { self.size() } else { *d }).collect();
        let more = match rank {
            Some(r) => r.saturating_sub(shape.len()),
            None => self.source.weighted(&[60, 30, 10]),
        };
        for _ in 0..more {
            let d = self.size();
            dims.insert(0, d);
        }
        dims
    }

    /// Sizes whose sum is `total`.
    fn partition(&mut self, total: i64, parts: usize) -> Vec<i64> {
        let mut left = total;
        let mut out = Vec::with_capacity(parts);
        for i in 0..parts {
            let d = if i + 1 == parts { left } else { self.upto(left) };
            out.push(d);
            left -= d;
        }
        out
    }
}

fn as_int(v: &AttrValue) -> Option<i64> {
    match v {
        AttrValue::Dim(d) => d.as_const(),
        _ => None,
    }
}

/// Axes counted from the front, sorted if they are a set; other values unchanged.
fn normalised(ty: AttrType, value: AttrValue, rank: Option<usize>) -> AttrValue {
    let Some(rank) = rank else { return value };
    let front = |v: AttrValue| match as_int(&v) {
        Some(a) if a < 0 => AttrValue::Dim(Dim::from(a + rank as i64)),
        _ => v,
    };
    match (ty, value) {
        (AttrType::Axis, v) => front(v),
        (AttrType::Axes, AttrValue::List(l)) => {
            let l: Vec<AttrValue> = l.into_iter().map(front).collect();
            match ints(&l) {
                Some(mut axes) => {
                    axes.sort();
                    AttrValue::List(axes.into_iter().map(|a| AttrValue::Dim(Dim::from(a))).collect())
                }
                None => AttrValue::List(l),
            }
        }
        (_, v) => v,
    }
}
