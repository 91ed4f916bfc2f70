//! Kernels of products as those of convolutions.
//!
//! In: a kernel that stores the epilogue of a product. Out: its pattern over a convolution with the
//! same epilogue. Invariant: what the kernel requires of the sizes of its factors is unknown here,
//! and refutes nothing: a convolution becomes a product of other matrices, when sizes are known.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::ir::{AttrPat, AttrValue, DeviceFact, Fact, Head, Kernel, NodePat, Pat, Program, VarId};
use hypatia_dsl::typing::Facts;

use super::super::kernels::{KernelPattern, epilogue_pattern};

/// The kernel's pattern over a convolution; `None` if it is no kernel of one product.
pub(super) fn pattern(program: &Program, kernel: &Kernel) -> Option<KernelPattern> {
    let of_product = epilogue_pattern(program, kernel)?;
    let [gemm, conv] = [BuiltinOp::Gemm, BuiltinOp::ConvGemm].map(|b| program.builtin_op(b));
    let (Head::Op(op), Some(conv)) = (of_product.head, conv) else { return None };
    if Some(op) != gemm {
        return None;
    }
    let [left, right, term] = of_product.args.as_slice() else { return None };
    let args = vec![any_factor(left), any_factor(right), term.clone()];
    // The type of the result is the last attribute of both.
    let mut attrs = vec![AttrPat::Any; program.op(conv).attrs().count()];
    *attrs.last_mut()? = of_product.attrs.last()?.clone();
    let node = NodePat { head: Head::Op(conv), args, attrs, rest: None, output: 0 };
    Some(KernelPattern::of(program, &Kernel { pattern: Pat::Node(node), ..kernel.clone() }))
}

/// A factor of any shape.
fn any_factor(pat: &Pat) -> Pat {
    match pat {
        Pat::Var(v) | Pat::Bind(v, _) => Pat::Var(*v),
        Pat::Typed(inner, _) => any_factor(inner),
        _ => Pat::Any,
    }
}

/// What is known of the operands of a convolution that is a product: their element types.
pub(super) struct OfConvolution<'a>(pub(super) &'a dyn Facts);

impl Facts for OfConvolution<'_> {
    fn fact(&self, fact: Fact, var: VarId) -> Option<AttrValue> {
        if fact == Fact::DType { self.0.fact(fact, var) } else { None }
    }

    fn device(&self, fact: DeviceFact) -> Option<AttrValue> {
        self.0.device(fact)
    }
}
