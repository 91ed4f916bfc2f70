//! Kernels with their element types chosen: what a Program asks to be generated.
//!
//! In: a Program and a scope. Out: [`Instance`]s for `cuda`, and what has none with the reason.
//! Holds always: each instance has a name of its own, and the order is that of the declarations.

mod describe;
mod epilogue;
mod op;
pub mod template;

pub use op::not_generated;

use super::cuda::{self, CudaSource, EmitError};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{Backend, Kernel, Origin, Program, RuleId};
use hypatia_dsl::kernel::attention::AttentionKernel;
use hypatia_dsl::kernel::attention_grad::AttentionGradKernel;
use hypatia_dsl::kernel::attention_sm80::WarpAttention;
use hypatia_dsl::kernel::chain::ChainKernel;
use hypatia_dsl::kernel::short::Shortener;
use hypatia_dsl::kernel::{
    ArgmaxKernel, BlockSumsKernel, ChannelWindowsKernel, ChecksumKernel, CumsumKernel, DisturbKernel, GemmKernel,
    GemvKernel, GroupWindowsKernel, HorizontalKernel, HorizontalPart, JoinSumsKernel, JointRowsKernel, MoveKernel,
    Operand, PointwiseKernel, PoolKernel, ProductKernel, RowSumsKernel, RowwiseKernel, ScatterKernel, SortKernel,
    UnfoldKernel, WarpGemm, WindowsKernel,
};
use hypatia_dsl::numerics::Allowed;
use hypatia_dsl::scalar::Term;

pub use describe::{Skipped, of_program};

/// Which declarations are generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All, the standard library included.
    All,
    /// Those of the files of these names.
    Files(Vec<String>),
}

impl Scope {
    fn holds(&self, origin: &Origin) -> bool {
        match self {
            Scope::All => true,
            Scope::Files(names) => names.contains(&origin.file),
        }
    }
}

/// A kernel with its element types chosen.
#[derive(Clone, Debug)]
pub struct Instance {
    /// The name of the declaration, or of the plan's step.
    pub kernel: String,
    /// `pointwise`, `epilogue`, `rowwise`, `move`, `search`, `product`, `cumsum`, `sort`, `scatter`
    /// or `template`.
    pub kind: &'static str,
    /// Where it is declared: `file:line`; empty for a plan's kernels.
    pub origin: String,
    /// The element type that it was made for.
    pub dtype: DType,
    /// What it computes.
    pub body: Body,
}

/// What an [`Instance`] computes.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// Element by element.
    Pointwise(PointwiseKernel),
    /// Element by element, where outputs may lie in the memory of these inputs.
    InPlace(PointwiseKernel, Vec<usize>),
    /// Element by element, in several index spaces.
    Horizontal(HorizontalKernel),
    /// Row by row.
    Rowwise(RowwiseKernel),
    /// Row by row, of several tensors.
    JointRows(JointRowsKernel),
    /// Row by row, and sums over the rows of each block.
    RowSums(RowSumsKernel),
    /// Sums over blocks.
    JoinSums(JoinSumsKernel),
    /// A matrix product with its epilogue.
    Gemm(GemmKernel),
    /// A matrix product with its epilogue, computed by warps.
    WarpGemm(WarpGemm),
    /// A matrix product of few rows with its epilogue.
    Gemv(GemvKernel),
    /// Sums of a product's right factor, for its checksums.
    BlockSums(BlockSumsKernel),
    /// The comparison of a product with its checksums.
    Checksum(ChecksumKernel),
    /// What a test does to a result.
    Disturb(DisturbKernel),
    /// A chain of matrix products with their epilogues.
    Chain(ChainKernel),
    /// Attention; the sums of each chunk of keys, if its tiling splits them.
    Attention(AttentionKernel),
    /// Attention, computed by warps.
    WarpAttention(WarpAttention),
    /// The result of an attention whose keys are split, from these sums.
    AttentionJoin(AttentionKernel),
    /// Gradients of attention: of queries, or of keys and values.
    AttentionGrad(AttentionGradKernel),
    /// Windows of each channel, reduced.
    Pool(PoolKernel),
    /// Windows as the rows of a matrix.
    Unfold(UnfoldKernel),
    /// Windows times filters.
    Windows(WindowsKernel),
    /// Windows times filters, with the channels last.
    ChannelWindows(ChannelWindowsKernel),
    /// Windows times filters of groups, with the channels last.
    GroupWindows(GroupWindowsKernel),
    /// Elements moved.
    Move(MoveKernel),
    /// Positions of largest elements.
    Argmax(ArgmaxKernel),
    /// A product of integers.
    Product(ProductKernel),
    /// Running sums.
    Cumsum(CumsumKernel),
    /// Positions in order.
    Sort(SortKernel),
    /// Rows joined with others.
    Scatter(ScatterKernel),
    /// A template of the user's.
    Template(Box<template::Filled>),
}

impl Body {
    /// Its CUDA C++.
    pub fn emit(&self, program: &Program) -> Result<CudaSource, EmitError> {
        match self {
            Body::Pointwise(k) => cuda::pointwise(program, k),
            Body::InPlace(k, shared) => cuda::pointwise_in_place(program, k, shared),
            Body::Horizontal(k) => cuda::horizontal(program, k),
            Body::Rowwise(k) => cuda::rowwise(program, k),
            Body::JointRows(k) => cuda::joint_rows(program, k),
            Body::RowSums(k) => cuda::row_sums(program, k),
            Body::JoinSums(k) => cuda::join_sums(program, k),
            Body::Gemm(k) => cuda::gemm(program, k),
            Body::WarpGemm(k) => cuda::warp_gemm(program, k),
            Body::Gemv(k) => cuda::gemv(program, k),
            Body::BlockSums(k) => cuda::block_sums(program, k),
            Body::Checksum(k) => cuda::checksum(program, k),
            Body::Disturb(k) => cuda::disturb(program, k),
            Body::Chain(k) => cuda::chain(program, k),
            Body::Attention(k) => cuda::attention(program, k),
            Body::WarpAttention(k) => cuda::warp_attention(program, k),
            Body::AttentionJoin(k) => cuda::attention_join(program, k),
            Body::AttentionGrad(k) => cuda::attention_grad(program, k),
            Body::Pool(k) => cuda::pool(program, k),
            Body::Unfold(k) => cuda::unfold(program, k),
            Body::Windows(k) => cuda::windows(program, k),
            Body::ChannelWindows(k) => cuda::channel_windows(program, k),
            Body::GroupWindows(k) => cuda::group_windows(program, k),
            Body::Move(k) => cuda::moves(program, k),
            Body::Argmax(k) => cuda::argmax(program, k),
            Body::Product(k) => cuda::product(program, k),
            Body::Cumsum(k) => cuda::cumsum(program, k),
            Body::Sort(k) => cuda::sort(program, k),
            Body::Scatter(k) => cuda::scatter(program, k),
            Body::Template(k) => k.emit(program),
        }
    }

    /// The only architecture that it compiles for, if it uses instructions of that one; `None` for
    /// all.
    pub fn only_arch(&self) -> Option<&'static str> {
        let hopper = match self {
            Body::Chain(k) => k.tiling.is_hopper(),
            body => matches!(body, Body::Gemm(_) | Body::Attention(_)),
        };
        hopper.then_some("sm_90a")
    }

    /// Puts short functions where rules allow them: see [`Shortener`]. With `tf32` it stands behind
    /// products in TF32.
    pub fn shorten(&mut self, shortener: &Shortener<'_>, tf32: bool) -> Vec<RuleId> {
        let types = |operands: &[Operand]| operands.iter().map(|o| o.dtype).collect::<Vec<DType>>();
        match self {
            Body::Pointwise(k) | Body::InPlace(k, _) => shortener.pointwise(k, tf32),
            Body::Horizontal(k) => {
                let code = |c: &mut HorizontalPart| {
                    let tables: Vec<usize> = c.picks.iter().map(|pick| pick.table).collect();
                    shortener.part(&mut c.kernel, &tables, tf32)
                };
                k.codes.iter_mut().flat_map(code).collect()
            }
            Body::Rowwise(k) => shortener.rowwise(k),
            Body::JointRows(k) => k.parts.iter_mut().flat_map(|p| shortener.rowwise(&mut p.kernel)).collect(),
            Body::RowSums(k) => shortener.rowwise(&mut k.kernel),
            Body::Gemm(k) => shortener.product(&mut k.term, &types(&k.inputs), &k.outputs),
            Body::WarpGemm(k) => shortener.product(&mut k.term, &types(&k.inputs), &k.outputs),
            Body::Gemv(k) => shortener.product(&mut k.term, &types(&k.inputs), &[k.output]),
            Body::Windows(k) => shortener.product(&mut k.term, &types(&k.inputs), &[k.output]),
            Body::ChannelWindows(k) => shortener.product(&mut k.term, &types(&k.inputs), &[k.output]),
            Body::GroupWindows(k) => shortener.product(&mut k.term, &types(&k.inputs), &[k.output]),
            _ => Vec::new(),
        }
    }

    /// Name and comment of the description.
    pub fn labels(&mut self) -> (&mut String, &mut String) {
        match self {
            Body::Pointwise(k) | Body::InPlace(k, _) => (&mut k.name, &mut k.doc),
            Body::Horizontal(k) => (&mut k.name, &mut k.doc),
            Body::Rowwise(k) => (&mut k.name, &mut k.doc),
            Body::JointRows(k) => (&mut k.name, &mut k.doc),
            Body::RowSums(k) => (&mut k.kernel.name, &mut k.kernel.doc),
            Body::JoinSums(k) => (&mut k.name, &mut k.doc),
            Body::Gemm(k) => (&mut k.name, &mut k.doc),
            Body::WarpGemm(k) => (&mut k.name, &mut k.doc),
            Body::Gemv(k) => (&mut k.name, &mut k.doc),
            Body::BlockSums(k) => (&mut k.name, &mut k.doc),
            Body::Checksum(k) => (&mut k.name, &mut k.doc),
            Body::Disturb(k) => (&mut k.name, &mut k.doc),
            Body::Chain(k) => (&mut k.name, &mut k.doc),
            Body::Attention(k) | Body::AttentionJoin(k) => (&mut k.problem.name, &mut k.problem.doc),
            Body::WarpAttention(k) => (&mut k.problem.name, &mut k.problem.doc),
            Body::AttentionGrad(k) => (&mut k.problem.name, &mut k.problem.doc),
            Body::Windows(k) => (&mut k.name, &mut k.doc),
            Body::ChannelWindows(k) => (&mut k.name, &mut k.doc),
            Body::GroupWindows(k) => (&mut k.name, &mut k.doc),
            Body::Move(k) => (&mut k.name, &mut k.doc),
            Body::Pool(k) => (&mut k.name, &mut k.doc),
            Body::Unfold(k) => (&mut k.name, &mut k.doc),
            Body::Argmax(k) => (&mut k.name, &mut k.doc),
            Body::Product(k) => (&mut k.name, &mut k.doc),
            Body::Cumsum(k) => (&mut k.name, &mut k.doc),
            Body::Sort(k) => (&mut k.name, &mut k.doc),
            Body::Scatter(k) => (&mut k.name, &mut k.doc),
            Body::Template(k) => (&mut k.name, &mut k.doc),
        }
    }
}

impl Instance {
    /// Its CUDA C++.
    pub fn emit(&self, program: &Program) -> Result<CudaSource, EmitError> {
        self.body.emit(program)
    }
}

/// The CUDA C++ of an open kernel for one epilogue: the pass after the matrix product. `acc` is
/// the element type of the product's result, `operands` are what the term's `In` leaves read,
/// `output` is the element type that is stored, and `tune` chooses values for tuning parameters,
/// the first choice for the others. A kernel from a template takes its operands a and b in the
/// result's element type; [`template::of_gemm`] says otherwise.
pub fn instantiate(
    program: &Program,
    kernel: &str,
    term: &Term,
    acc: DType,
    operands: &[Operand],
    output: DType,
    tune: &[(&str, i64)],
) -> Result<CudaSource, EmitError> {
    let found = program.kernels.iter().find(|k| k.name == kernel);
    let def = found.ok_or_else(|| EmitError::Malformed(format!("there is no kernel `{kernel}`")))?;
    check_tuning(def, tune)?;
    if let Backend::Template(_) = &def.backend {
        let types = [output, output, acc, output];
        return template::of_gemm(def, cuda::identifier("", kernel), term, operands, types, tune)?.emit(program);
    }
    let name = format!("{}_{output}", cuda::identifier("", kernel));
    let mut description = PointwiseKernel {
        name,
        doc: epilogue::doc(&format!("kernel `{kernel}`"), &def.doc, &def.origin),
        inputs: operands.to_vec(),
        outputs: vec![output],
        rank: 2,
        term: term.clone(),
        acc: Some(acc),
    };
    Shortener::new(program, &Allowed::default()).pointwise(&mut description, false);
    cuda::pointwise(program, &description)
}

/// Every choice must be one that the kernel declares.
fn check_tuning(kernel: &Kernel, tune: &[(&str, i64)]) -> Result<(), EmitError> {
    for (name, value) in tune {
        let choices = kernel.tune.iter().find(|(n, _)| n == name).map(|(_, c)| c);
        if !choices.is_some_and(|c| c.contains(value)) {
            return Err(EmitError::Malformed(format!("`{}` does not declare `tune {name}` with {value}", kernel.name)));
        }
    }
    Ok(())
}
