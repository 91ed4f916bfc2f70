//! Derives row-wise and pointwise kernels from the bodies of ops.
//!
//! In: a defined op, its attribute values and the types of its operands. Out: the reductions over
//! rows and the outputs that a generated kernel computes, or the reason why there is no such
//! kernel. The iteration space is `[rows, n]`: the reduced axes make up a row, and the other axes
//! number the rows. The body determines which axes are which. Invariant: input `i` of the kernel is
//! the `i`-th operand that is present; a reduction is computed once for each row, and rows do not
//! recompute a shared reduction.

use crate::dtype::DType;
use crate::ir::{AttrValue, OpBody, OpId, Program};
use crate::scalar::{Term, TermBuilder, TermId, TermNode, prune};
use crate::shape::{Dim, show_shape};
use crate::typing::TensorType;

use super::body::{Body, Derived, NOT_TOGETHER, STEP, Val};
use super::space::{Axes, Axis};
use super::{Access, Groups, Operand, PointwiseKernel, RowAccess, RowSpace, RowwiseKernel};

/// The row-wise kernel of a defined op. `attrs` has one value for each attribute, `operands` one
/// type for each tensor operand (`None` for an absent optional one), and `results` the op's result
/// types. The error is the end of a sentence such as "it is not row-wise: ".
pub fn derive_rowwise(
    program: &Program,
    op: OpId,
    attrs: &[AttrValue],
    operands: &[Option<TensorType>],
    results: &[TensorType],
) -> Result<RowwiseKernel, String> {
    derive_rowwise_over(program, op, attrs, operands, results).map(|(kernel, _)| kernel)
}

/// Like [`derive_rowwise`], and also returns the axes that number the rows and the axes that make
/// up a row.
pub fn derive_rowwise_over(
    program: &Program,
    op: OpId,
    attrs: &[AttrValue],
    operands: &[Option<TensorType>],
    results: &[TensorType],
) -> Result<(RowwiseKernel, RowSpace), String> {
    derive(program, op, attrs, operands, results, true)
}

/// The pointwise kernel of a defined op whose body has no reductions. Arguments and error are those
/// of [`derive_rowwise`].
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
    let (kernel, space) = derive(program, op, attrs, operands, results, false)?;
    let mut terms = TermBuilder::new();
    let roots = kernel.outputs.iter().map(|(_, _, t)| copy(t, &mut terms)).collect();
    let inputs: Vec<Operand> = kernel
        .inputs
        .iter()
        .zip(&space.tensors)
        .map(|((dtype, _), axes)| Operand { dtype: *dtype, access: space.flat_access(axes) })
        .collect();
    let strided = inputs.iter().any(|i| i.access == Access::Strided);
    Ok(PointwiseKernel {
        name: kernel.name,
        doc: kernel.doc,
        inputs,
        outputs: kernel.outputs.iter().map(|o| o.0).collect(),
        rank: if strided { space.sizes.len().max(1) } else { 2 },
        term: terms.finish(roots),
        acc: None,
    })
}

/// Copies the nodes of a single-rooted term into `terms` and returns the root.
fn copy(term: &Term, terms: &mut TermBuilder) -> TermId {
    let mut map: Vec<TermId> = Vec::with_capacity(term.nodes.len());
    for node in &term.nodes {
        map.push(terms.add(node.map_args(|a| map[a.0 as usize])));
    }
    map[term.root().0 as usize]
}

fn derive(
    program: &Program,
    op: OpId,
    attrs: &[AttrValue],
    operands: &[Option<TensorType>],
    results: &[TensorType],
    reduces: bool,
) -> Derived<(RowwiseKernel, RowSpace)> {
    let def = program.op(op);
    let OpBody::Defined(_) = def.body else { return Err(format!("`{}` has no body", def.name)) };
    // Operands usually broadcast with each other. If a body uses them otherwise, it determines
    // which axes meet.
    let attempt = |aligned: bool| {
        let (body, values) = Body::of(program, op, attrs, operands, aligned)?;
        match (body.steps.is_empty(), reduces) {
            (true, true) => return Err("it reduces nothing, so it is pointwise".into()),
            (false, false) => return Err("it reduces over an axis".into()),
            _ => {}
        }
        let doc = format!("`{}` of {}:{}", def.name, def.origin.file, def.origin.line);
        finish(&body, (&values, &[]), results, &def.name, doc)
    };
    attempt(true).or_else(|why| {
        // That operands do not broadcast together is no fault of a body that uses them otherwise.
        attempt(false).map_err(|other| if why == NOT_TOGETHER { other } else { why })
    })
}

/// The axes of a kernel, final once the whole body has been walked.
pub(super) struct Shape {
    /// The axes that number the rows.
    pub lead: Vec<Axis>,
    /// The axes that make up a row.
    pub row: Vec<Axis>,
    /// How many of these, from the first on, number the groups of a row.
    pub of_groups: usize,
}

/// A sum over all rows.
#[derive(Clone, Debug)]
pub(super) struct Summed {
    /// What is added up.
    pub value: Val,
    /// The type of the result.
    pub ty: TensorType,
    /// The axes of the result, which make up a row.
    pub axes: Vec<Axes>,
}

/// The kernel that computes these values of a body, and sums over all rows.
pub(super) fn finish(
    body: &Body<'_>,
    (values, sums): (&[Val], &[Summed]),
    results: &[TensorType],
    name: &str,
    doc: String,
) -> Derived<(RowwiseKernel, RowSpace)> {
    if values.len() != results.len() {
        return Err(format!("its body gives {} results, not {}", values.len(), results.len()));
    }
    let shape = shape_of(body, values, results, sums)?;
    let (order, groups) = ordered(body)?;
    if groups.is_some() && !sums.is_empty() {
        return Err("it reduces groups of a row, and adds up rows".into());
    }
    let steps: Vec<_> =
        order.iter().map(|i| &body.steps[*i]).map(|s| (s.kind, extract(body, s.value, &order))).collect();
    let terms: Vec<Term> = values.iter().map(|v| extract(body, v.id, &order)).collect();
    let summands: Vec<Term> = sums.iter().map(|s| extract(body, s.value.id, &order)).collect();
    let all: Vec<&Term> = terms.iter().chain(&summands).chain(steps.iter().map(|(_, t)| t)).collect();
    let mut tensors = placed_inputs(body, &shape, &all)?;
    for (value, ty) in values.iter().zip(results) {
        tensors.push(placed(body, &shape, &value.axes, ty)?);
    }
    for sum in sums {
        tensors.push(placed(body, &shape, &sum.axes, &sum.ty)?);
    }
    let sizes = shape.lead.iter().chain(&shape.row).map(|a| body.space.size(*a)).collect();
    let space = RowSpace { sizes, outer: shape.lead.len(), tensors };
    let inputs = accesses(body, &space)?;
    let mut outputs = Vec::new();
    for ((ty, axes), term) in results.iter().zip(&space.tensors[body.inputs.len()..]).zip(terms) {
        outputs.push((ty.dtype, space.output_access(axes, shape.of_groups)?, term));
    }
    let of_sums = &space.tensors[body.inputs.len() + results.len()..];
    let kept =
        of_sums.first().map_or(0, |axes| space.order(axes).len().saturating_sub(space.sizes.len() - space.outer));
    let along =
        |axes: &Vec<Vec<usize>>| space.order(axes).into_iter().eq((0..kept).chain(space.outer..space.sizes.len()));
    if !of_sums.iter().all(along) {
        return Err("a sum over rows does not lie along a row, or sums are over different rows".into());
    }
    let mut kernel = RowwiseKernel {
        name: name.to_string(),
        doc,
        inputs,
        steps,
        outputs,
        sums: sums.iter().map(|s| s.ty.dtype).zip(summands).collect(),
        axes: [1, 1],
        gathers: body.gathers.clone(),
        groups,
    };
    kernel.read_indexes_apart();
    if kernel.strided() {
        kernel.axes = [space.outer, space.sizes.len() - space.outer];
    }
    if kept > 0 && !kernel.adds_up_elements() {
        return Err("it adds up groups of rows of what is computed of whole rows".into());
    }
    Ok((kernel, space))
}

/// The axes of each input; none for an input that no term reads and that picks no rows.
fn placed_inputs(body: &Body<'_>, shape: &Shape, terms: &[&Term]) -> Derived<Vec<Vec<Vec<usize>>>> {
    let inputs = body.inputs.iter().enumerate().map(|(i, (ty, axes))| {
        let reads = |t: &&Term| t.nodes.iter().any(|n| matches!(n, TermNode::In { input, .. } if *input == i as u32));
        let picks = body.gathers.iter().any(|g| g.index == i);
        let used = picks || terms.iter().any(reads);
        if used { placed(body, shape, axes, ty) } else { Ok(vec![Vec::new(); axes.len()]) }
    });
    inputs.collect()
}

/// The element type and the access of each input.
fn accesses(body: &Body<'_>, space: &RowSpace) -> Derived<Vec<(DType, RowAccess)>> {
    let inputs = body.inputs.iter().zip(&space.tensors).map(|((ty, _), axes)| (ty.dtype, space.access(axes)));
    let mut inputs: Vec<(DType, RowAccess)> = inputs.collect();
    for gathered in &body.gathers {
        let whole_rows = space.order(&space.tensors[gathered.table]).iter().copied().eq(space.outer..space.sizes.len());
        let one_each = space.order(&space.tensors[gathered.index]).iter().copied().eq(0..space.outer);
        inputs[gathered.table].1 = if whole_rows && one_each { RowAccess::Gathered } else { RowAccess::Picked };
    }
    Ok(inputs)
}

/// The axes that number the rows, in the order of the first output that has most of them, and the
/// axes that make up a row.
pub(super) fn shape_of(body: &Body<'_>, values: &[Val], results: &[TensorType], sums: &[Summed]) -> Derived<Shape> {
    let now = |axes: &[Axes]| -> Vec<Axis> { body.space.now(&axes.iter().flatten().copied().collect::<Vec<_>>()) };
    let mut row = body.space.now(body.row.as_deref().unwrap_or_default());
    let group = body.space.now(body.group.as_deref().unwrap_or_default());
    let mut lead: Vec<Axis> = Vec::new();
    let summed = sums.iter().map(|s| (&s.value, &s.value.ty));
    for (value, ty) in values.iter().zip(results).chain(summed.clone()) {
        if value.ty.shape != ty.shape {
            return Err(format!("a result is not of shape {}", show_shape(&ty.shape)));
        }
        let axes = now(&value.axes);
        let own: Vec<Axis> = axes.iter().filter(|a| !row.contains(a)).copied().collect();
        if own.len() > lead.len() {
            lead = own;
        }
    }
    let mut ordered = false;
    for (value, ty) in values.iter().zip(results).chain(summed) {
        let (of_row, own): (Vec<Axis>, Vec<Axis>) = now(&value.axes).iter().partition(|a| row.contains(a));
        let of_groups = row.len() - group.len();
        let whole = of_row.is_empty() || of_row.len() == row.len() || of_row == row[..of_groups];
        if !whole || own.len() != lead.len() || !own.iter().all(|a| lead.contains(a)) {
            let shape = show_shape(&ty.shape);
            return Err(format!(
                "a result of shape {shape} has neither one value per element nor one per row or group"
            ));
        }
        // The order of elements in a row comes from the first result that has all row axes.
        if !ordered && of_row.len() == row.len() {
            (row, ordered) = (of_row, true);
        }
    }
    if !row.ends_with(&group) {
        return Err("the elements of a group do not lie side by side".into());
    }
    for step in &body.steps {
        let axes = body.space.now(&step.axes);
        if let Some(missing) = lead.iter().find(|a| !axes.contains(a)) {
            let size = body.space.size(*missing);
            return Err(format!(
                "a reduction does not depend on an axis of size {size} of the result: it would be computed again \
                 for each"
            ));
        }
    }
    let of_groups = if group.is_empty() { 0 } else { row.len() - group.len() };
    Ok(Shape { lead, row, of_groups })
}

/// The steps in an order in which those over groups come last, and what is known of groups.
fn ordered(body: &Body<'_>) -> Derived<(Vec<usize>, Option<Groups>)> {
    let (over_rows, over_groups): (Vec<usize>, Vec<usize>) =
        (0..body.steps.len()).partition(|i| !body.steps[*i].grouped);
    let Some(group) = body.group.as_ref().filter(|_| !over_groups.is_empty()) else {
        return Ok((over_rows, None));
    };
    let order: Vec<usize> = over_rows.iter().chain(&over_groups).copied().collect();
    let first = over_rows.len();
    for i in &over_rows {
        let term = extract(body, body.steps[*i].value, &order);
        let reads =
            |n: &TermNode| matches!(n, TermNode::In { input, .. } if *input as usize >= body.inputs.len() + first);
        if term.nodes.iter().any(reads) {
            return Err("it reduces a row of what was reduced over groups".into());
        }
    }
    let sizes = body.space.now(group).into_iter().map(|a| body.space.size(a).as_const());
    let size = sizes.into_iter().try_fold(1i64, |n, d| n.checked_mul(d?)).and_then(|n| usize::try_from(n).ok());
    let size = size.filter(|n| *n > 0).ok_or("the size of a group is unknown")?;
    Ok((order, Some(Groups { first, size })))
}

/// The kernel axes, as indices, that each axis of a tensor is made of.
fn placed(body: &Body<'_>, shape: &Shape, axes: &[Axes], ty: &TensorType) -> Derived<Vec<Vec<usize>>> {
    let index = |a: &Axis| shape.lead.iter().chain(&shape.row).position(|b| a == b);
    let places = |p: &Axes| body.space.now(p).iter().map(index).collect::<Option<Vec<usize>>>();
    axes.iter().map(places).collect::<Option<_>>().ok_or_else(|| {
        let sizes = |axes: &[Axis]| show_shape(&axes.iter().map(|a| body.space.size(*a)).collect::<Vec<Dim>>());
        format!(
            "an operand of shape {} does not lie along rows of {}, {} of them",
            show_shape(&ty.shape),
            sizes(&shape.row),
            sizes(&shape.lead)
        )
    })
}

/// The term of one value. Renumbers results of steps, which were numbered from `STEP` on while the
/// number of inputs was unknown, in the given order.
fn extract(body: &Body<'_>, root: TermId, order: &[usize]) -> Term {
    let base = body.inputs.len() as u32;
    let place = |step: u32| order.iter().position(|i| *i as u32 == step).unwrap_or(order.len()) as u32;
    let mut out = TermBuilder::new();
    let mut map: Vec<TermId> = Vec::with_capacity(body.terms.len());
    for i in 0..body.terms.len() as u32 {
        let node = match body.terms.node(TermId(i)) {
            TermNode::In { input, view } if *input >= STEP => {
                TermNode::In { input: base + place(input - STEP), view: *view }
            }
            node => node.map_args(|a| map[a.0 as usize]),
        };
        map.push(out.add(node));
    }
    prune(&out.finish(vec![map[root.0 as usize]]))
}

impl RowSpace {
    /// The kernel axes along which a tensor varies, in its memory order.
    fn order(&self, axes: &[Vec<usize>]) -> Vec<usize> {
        axes.iter().flatten().copied().collect()
    }

    /// The access mode of a row-major tensor.
    pub(super) fn access(&self, axes: &[Vec<usize>]) -> RowAccess {
        let (order, all) = (self.order(axes), self.sizes.len());
        if order.iter().copied().eq(0..all) && all > 0 {
            RowAccess::Full
        } else if order.is_empty() {
            RowAccess::Splat
        } else if order.iter().copied().eq(self.outer..all) {
            RowAccess::PerColumn
        } else if order.iter().copied().eq(0..self.outer) {
            RowAccess::PerRow
        } else {
            RowAccess::Strided
        }
    }

    fn output_access(&self, axes: &[Vec<usize>], of_groups: usize) -> Derived<RowAccess> {
        let (order, all) = (self.order(axes), self.sizes.len());
        if order.len() == all {
            return Ok(if order.iter().copied().eq(0..all) { RowAccess::Full } else { RowAccess::Strided });
        }
        if order.iter().copied().eq(0..self.outer) {
            return Ok(RowAccess::PerRow);
        }
        if of_groups > 0 && order.iter().copied().eq(0..self.outer + of_groups) {
            return Ok(RowAccess::PerGroup);
        }
        Err("two results have their rows in different orders".into())
    }

    /// The access mode of a row-major tensor in a pointwise kernel.
    fn flat_access(&self, axes: &[Vec<usize>]) -> Access {
        let (order, all) = (self.order(axes), self.sizes.len());
        if order.iter().copied().eq(0..all) {
            Access::Full
        } else if order.is_empty() {
            Access::Splat
        } else if order.iter().copied().eq(all - 1..all) {
            Access::Row
        } else if order.iter().copied().eq(0..all - 1) {
            Access::Col
        } else {
            Access::Strided
        }
    }
}
