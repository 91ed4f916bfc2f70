//! Kernels from users' templates for the operands of a step.
//!
//! In: a step whose kernel is a template, and its views. Out: for each launch that the kernel
//! declares, its description and its [`Work`]. Invariant: arguments have the names that
//! docs/language.md promises; no operand is copied, so a template sees any strides.

use hypatia_dsl::ir::Kernel;
use hypatia_dsl::kernel::{Access, Operand};
use hypatia_dsl::typing::TensorType;
use hypatia_templates::cuda::{ArgRole, SizeName, identifier};
use hypatia_templates::instances::Body;
use hypatia_templates::instances::template::{Filled, of_gemm, of_tensors};

use super::Work;
use super::batched::{Strides, batched};
use super::tiled::access;
use hypatia_graph::DeclaredLaunch;
use hypatia_plan::{GemmStep, TemplateStep, View};

/// The kernel for each launch that is declared; none if the batch of a product cannot be expressed,
/// or the template does not fit.
pub fn variants(kernel: &Kernel, step: &TemplateStep, reads: &[View], writes: &[View]) -> Vec<(Body, Work)> {
    let variant = |launch: &DeclaredLaunch| {
        let tune: Vec<(&str, i64)> = launch.tune.iter().map(|(n, v)| (n.as_str(), *v)).collect();
        let (filled, work) = match &step.product {
            Some(g) => product(kernel, g, reads, writes, &tune)?,
            None => tensors(kernel, step, reads, writes, &tune)?,
        };
        let filled = filled.with_block(launch.block.iter().product());
        Some((Body::Template(Box::new(filled)), Work { declared: Some(launch.clone()), ..work }))
    };
    step.launches.iter().filter_map(variant).collect()
}

fn product(
    kernel: &Kernel,
    g: &GemmStep,
    reads: &[View],
    writes: &[View],
    tune: &[(&str, i64)],
) -> Option<(Filled, Work)> {
    let ([a, b, beside @ ..], [out]) = (reads, writes) else { return None };
    let all: Vec<&View> = [a, b, out].into_iter().chain(beside).collect();
    let (sizes, strides) = batched(g, &all)?;
    let operands: Vec<(Operand, Strides)> = beside
        .iter()
        .zip(&strides[3..])
        .map(|(v, s)| (Operand { dtype: v.dtype, access: access(*s, sizes) }, *s))
        .collect();
    let of_term: Vec<Operand> = operands.iter().map(|(o, _)| o.clone()).collect();
    let types = [a.dtype, b.dtype, g.acc, out.dtype];
    let name = identifier("", &kernel.name);
    let filled = of_gemm(kernel, name, &g.term, &of_term, types, tune).ok()?;
    let mut work = Work::new(sizes[0] * sizes[1], sizes[2])
        .view(ArgRole::Factor(0), a)
        .view(ArgRole::Factor(1), b)
        .view(ArgRole::Written(0), out);
    for (name, size) in [SizeName::Batch, SizeName::M, SizeName::N, SizeName::K].into_iter().zip(sizes) {
        work = work.size(name, size);
    }
    work = work.strides(ArgRole::Factor(0), &strides[0]).strides(ArgRole::Factor(1), &strides[1]);
    for (i, ((operand, strides), view)) in operands.iter().zip(beside).enumerate() {
        work = work.view(ArgRole::Read(i), view);
        if operand.access == Access::Strided {
            work = work.strides(ArgRole::Read(i), strides);
        }
    }
    Some((filled, work))
}

fn tensors(
    kernel: &Kernel,
    step: &TemplateStep,
    reads: &[View],
    writes: &[View],
    tune: &[(&str, i64)],
) -> Option<(Filled, Work)> {
    let types = |views: &[View]| -> Vec<TensorType> {
        let ty = |v: &View| TensorType { dtype: v.dtype, shape: v.shape.iter().map(|n| (*n as i64).into()).collect() };
        views.iter().map(ty).collect()
    };
    let (inputs, outputs) = (types(reads), types(writes));
    let name = identifier("", &kernel.name);
    let filled = of_tensors(kernel, name, (&inputs, &outputs), step.attrs.clone(), tune).ok()?;
    let read = reads.iter().enumerate().map(|(i, v)| (ArgRole::Read(i), v));
    let written = writes.iter().enumerate().map(|(i, v)| (ArgRole::Written(i), v));
    let mut work = Work::new(1, 1);
    for (role, view) in read.chain(written) {
        // A value of rank 0 has one size, as the arguments have.
        let (sizes, strides) = match view.shape.is_empty() {
            true => (vec![1], vec![0]),
            false => (view.shape.clone(), view.strides.clone()),
        };
        work = work.view(role, view).sizes(SizeName::Tensor(role), &sizes);
        work = work.strides(role, &strides);
    }
    Some((filled, work))
}
