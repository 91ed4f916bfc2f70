//! Row-wise kernels from the bodies of ops.
//!
//! In: a defined op, its attribute values and the types of its operands. Out: the reductions over
//! rows and the outputs that a generated kernel computes, or why the op is not row-wise. The work is
//! `[rows, n]`: `n` is the product of the trailing axes that are reduced, all reductions over the
//! same ones. Holds always: input `i` of the kernel is the `i`-th operand that is present; equal
//! subexpressions are one, so that a mean that occurs three times is one step.

use std::collections::HashMap;

use crate::builtin::BuiltinOp;
use crate::dtype::DType;
use crate::ir::{
    AExpr, AttrValue, Build, BuildArg, BuildNode, Fact, Head, InView, OpBody, OpDef, OpId, ParamKind, Program, VarId,
};
use crate::scalar::{Term, TermBuilder, TermId, TermNode, prune};
use crate::shape::{Dim, Shape, broadcast, show_shape};
use crate::typing::{Bindings, Facts, TensorType, apply_op, apply_scalar, bind_op, eval, normalise_attrs, type_fact};

use super::{Access, Operand, PointwiseKernel, Reduction, RowAccess, RowwiseKernel};

/// Ops inside ops at most.
const MAX_DEPTH: u32 = 32;
/// Applications at most when the body is written out.
const MAX_STEPS: u32 = 10_000;

/// The row-wise kernel of a defined op. `attrs` has one value for each attribute, `operands` one
/// type for each tensor operand (`None` where an optional one is absent), `results` the op's result
/// types. The error is the end of a sentence such as "it is not row-wise: ".
pub fn derive_rowwise(
    program: &Program,
    op: OpId,
    attrs: &[AttrValue],
    operands: &[Option<TensorType>],
    results: &[TensorType],
) -> Result<RowwiseKernel, String> {
    derive_rowwise_over(program, op, attrs, operands, results).map(|(kernel, _, _)| kernel)
}

/// As [`derive_rowwise`], with the shape that rows are cut from, and how many of its trailing axes make a row.
pub fn derive_rowwise_over(
    program: &Program,
    op: OpId,
    attrs: &[AttrValue],
    operands: &[Option<TensorType>],
    results: &[TensorType],
) -> Result<(RowwiseKernel, Shape, usize), String> {
    let def = program.op(op);
    let OpBody::Defined(_) = def.body else { return Err(format!("`{}` has no body", def.name)) };
    let mut full: Vec<Dim> = Vec::new();
    for ty in operands.iter().flatten() {
        full = broadcast(&full, &ty.shape)
            .ok_or_else(|| format!("{} does not broadcast with the other operands", show_shape(&ty.shape)))?;
    }
    // The rows are what the reductions reduce: try the last axis, then the last two, and so on.
    let mut reason = "it has no axis".to_string();
    for k in 1..=full.len() {
        match Derivation::new(program, &full, k).run(op, attrs, operands, results) {
            Ok(kernel) => return Ok((kernel, full.clone(), k)),
            Err(why) if k == 1 => reason = why,
            Err(_) => {}
        }
    }
    Err(reason)
}

/// The pointwise kernel of a defined op whose body reduces nothing; arguments and error as for
/// [`derive_rowwise`].
pub fn derive_pointwise(
    program: &Program,
    op: OpId,
    attrs: &[AttrValue],
    operands: &[Option<TensorType>],
    results: &[TensorType],
) -> Result<PointwiseKernel, String> {
    let full = results.iter().map(|r| &r.shape).max_by_key(|s| s.len()).ok_or("it has no result")?;
    if results.iter().any(|r| r.shape != *full) {
        return Err("its results differ in shape".into());
    }
    let mut derivation = Derivation::new(program, full, full.len().min(1));
    derivation.pointwise = true;
    let kernel = derivation.run(op, attrs, operands, results)?;
    let mut terms = TermBuilder::new();
    let nodes = |term: &Term, terms: &mut TermBuilder| {
        let mut map: Vec<TermId> = Vec::with_capacity(term.nodes.len());
        for node in &term.nodes {
            map.push(terms.add(node.map_args(|a| map[a.0 as usize])));
        }
        map[term.root().0 as usize]
    };
    let roots = kernel.outputs.iter().map(|(_, _, t)| nodes(t, &mut terms)).collect();
    let access = |a: &RowAccess| match a {
        RowAccess::Full => Access::Full,
        RowAccess::PerColumn => Access::Row,
        RowAccess::PerRow => Access::Col,
        RowAccess::Splat => Access::Splat,
    };
    Ok(PointwiseKernel {
        name: kernel.name,
        doc: kernel.doc,
        inputs: kernel.inputs.iter().map(|(dtype, a)| Operand { dtype: *dtype, access: access(a) }).collect(),
        outputs: kernel.outputs.iter().map(|o| o.0).collect(),
        rank: 2,
        term: terms.finish(roots),
        acc: None,
    })
}

/// How a value varies over `[rows, n]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Layout {
    Full,
    PerColumn,
    /// One value a row, the reduced axes kept with size 1.
    PerRow,
    /// One value a row, the reduced axes gone.
    PerRowSqueezed,
    Splat,
}

/// A tensor while the body is walked.
#[derive(Clone, Debug)]
struct Val {
    id: TermId,
    /// `None` for a number, which takes the type of what it meets.
    ty: Option<TensorType>,
    layout: Layout,
}

struct Derivation<'a> {
    program: &'a Program,
    full: &'a [Dim],
    /// How many trailing axes make a row.
    k: usize,
    terms: TermBuilder,
    inputs: Vec<(DType, RowAccess)>,
    steps: Vec<(Reduction, TermId)>,
    known: HashMap<(Reduction, TermId), u32>,
    left: u32,
    /// Whether the body must reduce nothing, or something.
    pointwise: bool,
}

/// The variables of one op whose body is walked.
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

type Derived<T> = Result<T, String>;

impl<'a> Derivation<'a> {
    fn new(program: &'a Program, full: &'a [Dim], k: usize) -> Derivation<'a> {
        Derivation {
            program,
            full,
            k,
            terms: TermBuilder::new(),
            inputs: Vec::new(),
            steps: Vec::new(),
            known: HashMap::new(),
            left: MAX_STEPS,
            pointwise: false,
        }
    }

    fn run(
        mut self,
        op: OpId,
        attrs: &[AttrValue],
        operands: &[Option<TensorType>],
        results: &[TensorType],
    ) -> Derived<RowwiseKernel> {
        let mut values = Vec::with_capacity(operands.len());
        for ty in operands {
            values.push(match ty {
                None => None,
                Some(ty) => Some(self.operand(ty)?),
            });
        }
        let def = self.program.op(op);
        let outputs = self.op_body(def, attrs, &values, 0)?;
        match (self.steps.is_empty(), self.pointwise) {
            (true, false) => return Err("it reduces nothing, so it is pointwise".into()),
            (false, true) => return Err("it reduces over an axis".into()),
            _ => {}
        }
        if outputs.len() != results.len() {
            return Err(format!("its body gives {} results, not {}", outputs.len(), results.len()));
        }
        let base = self.inputs.len() as u32;
        let term = |root: TermId| self.extract(root, base);
        let mut kernel_outputs = Vec::new();
        for (value, ty) in outputs.iter().zip(results) {
            let access = self.output_access(value, ty)?;
            kernel_outputs.push((ty.dtype, access, term(value.id)));
        }
        Ok(RowwiseKernel {
            name: def.name.clone(),
            doc: format!("`{}` of {}:{}", def.name, def.origin.file, def.origin.line),
            steps: self.steps.iter().map(|(r, id)| (*r, term(*id))).collect(),
            outputs: kernel_outputs,
            inputs: self.inputs,
        })
    }

    fn output_access(&self, value: &Val, ty: &TensorType) -> Derived<RowAccess> {
        let lead = &self.full[..self.full.len() - self.k];
        let one_row = lead.iter().all(|d| *d == Dim::from(1));
        match (value.layout, self.classify(&ty.shape)) {
            (Layout::PerRowSqueezed, _) if ty.shape == lead => Ok(RowAccess::PerRow),
            (Layout::PerRowSqueezed, _) => Err(self.foreign(ty)),
            (_, Some(Layout::Full)) => Ok(RowAccess::Full),
            (Layout::PerRow | Layout::Splat, Some(Layout::PerRow)) => Ok(RowAccess::PerRow),
            (Layout::PerRow, Some(Layout::Splat)) if one_row => Ok(RowAccess::PerRow),
            _ => Err(format!(
                "a result of shape {} has neither a value for each element nor one a row",
                show_shape(&ty.shape)
            )),
        }
    }

    /// The term of one value. Results of steps were numbered from `STEP` on while the number of inputs
    /// was still unknown.
    fn extract(&self, root: TermId, base: u32) -> Term {
        let mut out = TermBuilder::new();
        let mut map: Vec<TermId> = Vec::with_capacity(self.terms.len());
        for i in 0..self.terms.len() as u32 {
            let node = match self.terms.node(TermId(i)) {
                TermNode::In { input, view } if *input >= STEP => {
                    TermNode::In { input: base + (input - STEP), view: *view }
                }
                node => node.map_args(|a| map[a.0 as usize]),
            };
            map.push(out.add(node));
        }
        prune(&out.finish(vec![map[root.0 as usize]]))
    }

    fn operand(&mut self, ty: &TensorType) -> Derived<Val> {
        let layout = self.classify(&ty.shape).ok_or_else(|| {
            let (lead, row) = self.full.split_at(self.full.len() - self.k);
            format!(
                "an operand of shape {} is none of {}, {} and {} per row",
                show_shape(&ty.shape),
                show_shape(self.full),
                show_shape(row),
                show_shape(lead)
            )
        })?;
        let access = match layout {
            Layout::Full => RowAccess::Full,
            Layout::PerColumn => RowAccess::PerColumn,
            Layout::PerRow | Layout::PerRowSqueezed => RowAccess::PerRow,
            Layout::Splat => RowAccess::Splat,
        };
        let input = self.inputs.len() as u32;
        self.inputs.push((ty.dtype, access));
        let id = self.terms.add(TermNode::In { input, view: InView::Broadcast });
        Ok(Val { id, ty: Some(ty.clone()), layout })
    }

    /// How a tensor of that shape, broadcast against the full one, varies.
    fn classify(&self, shape: &[Dim]) -> Option<Layout> {
        let (full, one) = (self.full, Dim::from(1));
        let lead = full.len() - self.k;
        let skip = full.len().checked_sub(shape.len())?;
        let at = |i: usize| i.checked_sub(skip).map_or(&one, |j| &shape[j]);
        let same = |range: std::ops::Range<usize>| range.into_iter().all(|i| *at(i) == full[i]);
        let ones = |range: std::ops::Range<usize>| range.into_iter().all(|i| *at(i) == one);
        if ones(0..full.len()) {
            // With a row of one element this is also one value a row, which the full shape decides.
            return Some(if same(0..full.len()) && shape.len() == full.len() { Layout::Full } else { Layout::Splat });
        }
        if lead > 0 && shape.len() <= self.k && same(lead..full.len()) {
            return Some(Layout::PerColumn);
        }
        if same(0..full.len()) {
            return Some(Layout::Full);
        }
        if same(lead..full.len()) && ones(0..lead) {
            return Some(Layout::PerColumn);
        }
        (same(0..lead) && ones(lead..full.len())).then_some(Layout::PerRow)
    }

    fn op_body(
        &mut self,
        def: &'a OpDef,
        attrs: &[AttrValue],
        operands: &[Option<Val>],
        depth: u32,
    ) -> Derived<Vec<Val>> {
        if depth > MAX_DEPTH {
            return Err(format!("ops are defined by each other more than {MAX_DEPTH} levels deep"));
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

    /// A value of a body; `sibling` is the type that a number takes.
    fn build(&mut self, build: &'a Build, scope: &Scope, sibling: Option<&TensorType>, depth: u32) -> Derived<Val> {
        self.left = self.left.checked_sub(1).ok_or("its body is too large")?;
        match build {
            Build::Var(v) => match scope.tensors.get(v) {
                Some(Some(value)) => Ok(value.clone()),
                Some(None) => Err("it uses an operand that is absent".into()),
                None => Err("it uses a variable that is no tensor".into()),
            },
            Build::Number(e) => self.number(e, scope, sibling),
            Build::Node(node) => self.node(node, scope, depth),
            Build::Else(v, other) => match scope.tensors.get(v) {
                Some(Some(value)) => Ok(value.clone()),
                _ => self.build(other, scope, sibling, depth),
            },
            Build::Frozen(inner) => self.build(inner, scope, sibling, depth),
            Build::If(guard, a, b) => match eval(guard, &scope.bindings, scope) {
                Some(AttrValue::Bool(true)) => self.build(a, scope, sibling, depth),
                Some(AttrValue::Bool(false)) => self.build(b, scope, sibling, depth),
                _ => Err("a condition in its body cannot be decided".into()),
            },
            Build::Absent => Err("an operand that must be there is absent".into()),
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
        Ok(Val { id, ty, layout: Layout::Splat })
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
                    // A function of numbers alone is a number.
                    let ids = values.iter().map(|v| v.id).collect();
                    let id = self.terms.call(s, ids);
                    return Ok(Val { id, ty: None, layout: Layout::Splat });
                };
                let ty = apply_scalar(self.program, s, &types).map_err(|e| e.message)?;
                let layout = join(&values)?;
                let id = self.terms.call(s, values.iter().map(|v| v.id).collect());
                Ok(Val { id, ty: Some(ty), layout })
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
            Head::Acc | Head::In(_) | Head::TermCast => Err("it is a term".into()),
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
        let supported = matches!(b, BuiltinOp::Cast | BuiltinOp::Reshape | BuiltinOp::Expand | BuiltinOp::Full);
        if reduction.is_none() && !supported {
            return Err(format!("it uses `{name}`"));
        }
        let result = apply_op(self.program, op, attrs, &types).map_err(|e| e.message)?;
        let ty = result.into_iter().next().ok_or_else(|| format!("`{name}` has no result"))?;
        if b == BuiltinOp::Full {
            let Some(AttrValue::Float(value)) = attrs.get(1) else { return Err("a constant is unknown".into()) };
            let layout = if self.classify(&ty.shape).is_some() { Layout::Splat } else { return Err(self.foreign(&ty)) };
            return Ok(Val { id: self.terms.lit(*value), ty: Some(ty), layout });
        }
        let Some(Some(x)) = args.into_iter().next() else { return Err(format!("`{name}` lacks its operand")) };
        let Some(from) = x.ty.clone() else { return Err(format!("`{name}` is applied to a number")) };
        if let Some(reduction) = reduction {
            return self.reduce(reduction, x, &from, attrs, ty);
        }
        if b == BuiltinOp::Cast {
            let id =
                if from.dtype == ty.dtype { x.id } else { self.terms.add(TermNode::Cast { to: ty.dtype, arg: x.id }) };
            return Ok(Val { id, ty: Some(ty), layout: x.layout });
        }
        let layout = self.viewed(&x, &ty)?;
        Ok(Val { id: x.id, ty: Some(ty), layout })
    }

    fn foreign(&self, ty: &TensorType) -> String {
        format!("a value of shape {} does not lie along rows of {}", show_shape(&ty.shape), show_shape(self.full))
    }

    /// The layout behind a `reshape` or `expand` that moves no element out of its row.
    fn viewed(&self, x: &Val, to: &TensorType) -> Derived<Layout> {
        let lead = &self.full[..self.full.len() - self.k];
        let target = self.classify(&to.shape);
        let squeezed = to.shape == lead;
        let ok = match (x.layout, target) {
            (Layout::Splat, Some(_)) => return Ok(Layout::Splat),
            // Broadcast to the full shape, or a reshape that changes nothing.
            (Layout::PerRow, Some(Layout::Full | Layout::PerRow)) => Some(Layout::PerRow),
            (Layout::PerColumn, Some(Layout::Full | Layout::PerColumn)) => Some(Layout::PerColumn),
            (Layout::Full, Some(Layout::Full)) => Some(Layout::Full),
            (Layout::PerRow | Layout::PerRowSqueezed, _) if squeezed => Some(Layout::PerRowSqueezed),
            (Layout::PerRowSqueezed, Some(Layout::PerRow)) => Some(Layout::PerRow),
            _ => None,
        };
        ok.ok_or_else(|| self.foreign(to))
    }

    fn reduce(
        &mut self,
        reduction: Reduction,
        x: Val,
        from: &TensorType,
        attrs: &[AttrValue],
        ty: TensorType,
    ) -> Derived<Val> {
        let rank = from.shape.len();
        let Some(AttrValue::List(axes)) = attrs.first() else { return Err("reduced axes are unknown".into()) };
        let trailing = (rank.saturating_sub(self.k)..rank).map(|a| AttrValue::Dim(Dim::from(a as i64)));
        if rank < self.k || !trailing.eq(axes.iter().cloned()) {
            let shown = crate::typing::show_value(&AttrValue::List(axes.clone()));
            return Err(format!("it reduces axes {shown} of {}, which are not its last ones", show_shape(&from.shape)));
        }
        if x.layout != Layout::Full {
            return Err(format!(
                "it reduces a value of shape {}, which is not {}",
                show_shape(&from.shape),
                show_shape(self.full)
            ));
        }
        if !from.dtype.is_float() {
            return Err(format!("it reduces {}", from.dtype));
        }
        let step = match self.known.get(&(reduction, x.id)) {
            Some(step) => *step,
            None => {
                let step = self.steps.len() as u32;
                self.steps.push((reduction, x.id));
                self.known.insert((reduction, x.id), step);
                step
            }
        };
        let id = self.terms.add(TermNode::In { input: STEP + step, view: InView::Broadcast });
        let keep = matches!(attrs.get(1), Some(AttrValue::Bool(true)));
        Ok(Val { id, ty: Some(ty), layout: if keep { Layout::PerRow } else { Layout::PerRowSqueezed } })
    }
}

/// Results of steps are numbered from here on until the number of inputs is known.
const STEP: u32 = 1 << 30;

/// The layout of a pointwise function of these values.
fn join(values: &[Val]) -> Derived<Layout> {
    use Layout::*;
    let mut out = Splat;
    for v in values {
        out = match (out, v.layout) {
            (a, b) if a == b => a,
            (Splat, b) => b,
            (a, Splat) => a,
            (PerRowSqueezed, _) | (_, PerRowSqueezed) => {
                return Err("a reduction without keepdims meets a value that still has the reduced axes".into());
            }
            _ => Full,
        };
    }
    Ok(out)
}
