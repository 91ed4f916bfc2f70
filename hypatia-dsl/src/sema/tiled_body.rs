//! Bodies of which no `tiled` kernel can be generated.
//!
//! In: a checked kernel for an op with a body. Out: why its body is neither attention nor the
//! gradients of attention. Invariant: what this reports is certain; whether a kernel is generated
//! in the end is known once the body has been optimised for given types.

use std::collections::HashSet;

use crate::builtin::{BuiltinOp, BuiltinScalar};
use crate::ir::{
    Backend, Build, BuildArg, BuildNode, Head, Kernel, NodePat, OpBody, OpId, Pat, Program, ScalarBody, ScalarId,
    walk_build,
};
use crate::scalar::TermNode;

/// Products that gradients of attention have at least: those of the results.
const GRADIENTS: usize = 3;

/// What the body of an op computes.
#[derive(Default)]
struct Found {
    products: usize,
    exponential: bool,
    sum: bool,
    /// Scalars whose bodies have been read.
    scalars: HashSet<ScalarId>,
}

/// Why no tiled kernel can be generated for the op of a kernel; `None` if one may.
pub(crate) fn not_generated(program: &Program, kernel: &Kernel) -> Option<String> {
    let op = op(&kernel.pattern).filter(|_| kernel.backend == Backend::Tiled)?;
    let OpBody::Defined(results) = &program.op(op).body else { return None };
    let mut found = Found::default();
    results.iter().for_each(|b| found.read(program, b));
    let gradients = results.len() == GRADIENTS;
    let products = if gradients { GRADIENTS } else { 2 };
    let softmax = found.exponential && found.sum;
    let lacks = match found.products {
        0 => "no product",
        1 => "one product",
        n if n < products => "too few products",
        _ if !gradients && !softmax => "products, but no softmax",
        _ if !gradients && results.first().is_some_and(|b| works_on_weights(program, b)) => {
            "work between the softmax and the second product"
        }
        _ => return None,
    };
    Some(format!("its body has {lacks}; `tiled` generates attention, `matmul(softmax(..), v)`, and its gradients"))
}

/// True for a product whose left factor is arithmetic on what an op with a softmax gives. What
/// chooses among such results may be the guard of a mask.
fn works_on_weights(program: &Program, product: &Build) -> bool {
    let Build::Node(BuildNode { args, .. }) = product else { return false };
    let Some(BuildArg::One(weights)) = args.first() else { return false };
    matches!(weights, Build::Node(n) if matches!(n.head, Head::Scalar(_))) && computes_on_softmax(program, weights)
}

/// True for an op whose body has a softmax, and for arithmetic on what one gives.
fn computes_on_softmax(program: &Program, b: &Build) -> bool {
    let Build::Node(n) = b else { return false };
    match n.head {
        Head::Op(id) => {
            let OpBody::Defined(results) = &program.op(id).body else { return false };
            let mut found = Found::default();
            results.iter().for_each(|b| found.read(program, b));
            found.exponential && found.sum && found.products == 0
        }
        Head::Scalar(id) if program.scalar(id).body != ScalarBody::Builtin(BuiltinScalar::Select) => {
            n.args.iter().any(|a| matches!(a, BuildArg::One(b) if computes_on_softmax(program, b)))
        }
        _ => false,
    }
}

/// The op at the top of a pattern.
fn op(pattern: &Pat) -> Option<OpId> {
    match pattern {
        Pat::Node(NodePat { head: Head::Op(op), .. }) => Some(*op),
        Pat::Bind(_, inner) | Pat::Typed(inner, _) => op(inner),
        _ => None,
    }
}

impl Found {
    /// Reads an expression, with the bodies of what it applies.
    fn read(&mut self, program: &Program, b: &Build) {
        let mut heads = Vec::new();
        let mut add = |b: &Build, _| {
            if let Build::Node(n) = b {
                heads.push(n.head);
            }
        };
        walk_build(b, &mut add, true);
        for head in heads {
            match head {
                Head::Scalar(id) => self.scalar(program, id),
                Head::Op(id) => match &program.op(id).body {
                    OpBody::Builtin(b) => {
                        self.products += usize::from(b.multiplies());
                        self.sum |= *b == BuiltinOp::Sum;
                    }
                    OpBody::Defined(results) => results.iter().for_each(|b| self.read(program, b)),
                },
                _ => {}
            }
        }
    }

    fn scalar(&mut self, program: &Program, id: ScalarId) {
        if !self.scalars.insert(id) {
            return;
        }
        match &program.scalar(id).body {
            ScalarBody::Builtin(b) => self.exponential |= matches!(b, BuiltinScalar::Exp | BuiltinScalar::Pow),
            ScalarBody::Term(term) => {
                for node in &term.nodes {
                    if let TermNode::Call { scalar, .. } = node {
                        self.scalar(program, *scalar);
                    }
                }
            }
        }
    }
}
