//! Kernels of the library on single applications: the matcher agrees with comparing terms modulo
//! commutativity and associativity.

use std::sync::Arc;

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, Head, InView, Kernel, NodePat, OpBody, Pat, Program};
use hypatia_dsl::scalar::{Term, TermNode, expand, match_modulo_ac};

use super::laws::ty;
use super::library::library;
use crate::matcher::applied::{Applied, epilogue_term, kernel_rule};
use crate::matcher::bindings::view_fits;
use crate::matcher::prepare::Prepared;
use crate::matcher::{Searchable, match_at};

/// Rows and columns of the product.
const SHAPE: [i64; 2] = [16, 64];

/// The epilogue of a kernel of the builtin product.
fn epilogue<'k>(program: &Program, kernel: &'k Kernel) -> Option<&'k Pat> {
    let Pat::Node(NodePat { head: Head::Op(op), args, .. }) = &kernel.pattern else { return None };
    let gemm = program.op(*op).body == OpBody::Builtin(BuiltinOp::Gemm);
    args.get(2).filter(|p| gemm && !matches!(p, Pat::Var(_)))
}

/// The shape of an operand that a term reads with that view.
fn shape_of(view: InView) -> Vec<i64> {
    match view {
        InView::Row => vec![SHAPE[1]],
        InView::Col => vec![SHAPE[0], 1],
        InView::Full | InView::Broadcast => SHAPE.to_vec(),
    }
}

/// A term and the shapes of its reads.
type Sample = (Term, Vec<Vec<i64>>);

/// The term with the operands of every binary function swapped, only of commutative ones if
/// requested.
fn exchanged(program: &Program, (term, shapes): &Sample, commuting: bool) -> Sample {
    let mut term = term.clone();
    for node in &mut term.nodes {
        if let TermNode::Call { scalar, args } = node
            && args.len() == 2
            && let hypatia_dsl::ir::ScalarBody::Builtin(f) = program.scalar(*scalar).body
            && (f.commutes() || !commuting)
        {
            args.reverse();
        }
    }
    (term, shapes.clone())
}

fn samples(program: &Program) -> Vec<Sample> {
    let mut out: Vec<Sample> = Vec::new();
    for kernel in &program.kernels {
        let Some(pat) = epilogue(program, kernel) else { continue };
        let mut reads = Vec::new();
        let term = epilogue_term(pat, &mut reads).unwrap();
        let mut shapes = vec![Vec::new(); reads.len()];
        for node in &term.nodes {
            if let TermNode::In { input, view } = node {
                shapes[*input as usize] = shape_of(*view);
            }
        }
        // Models imply the view of an operand by its shape.
        let mut plain = term.clone();
        for node in &mut plain.nodes {
            if let TermNode::In { view, .. } = node {
                *view = InView::Broadcast;
            }
        }
        let plain = (plain, shapes.clone());
        let expanded = (expand(program, &plain.0).unwrap(), shapes.clone());
        let whole = (plain.0.clone(), vec![SHAPE.to_vec(); shapes.len()]);
        out.extend([exchanged(program, &expanded, true), exchanged(program, &expanded, false)]);
        out.extend([exchanged(program, &plain, true), plain, expanded, whole]);
        // One function more.
        let mut more = (term, shapes);
        let (scalar, root) = (program.builtin_scalar(BuiltinScalar::Neg).unwrap(), more.0.root());
        more.0.roots = vec![more.0.add(TermNode::Call { scalar, args: vec![root] })];
        out.push(more);
    }
    out
}

/// Whether the kernel's pattern matches, by the matcher.
fn by_matcher(program: &Arc<Program>, kernel: &Kernel, (term, shapes): &Sample) -> bool {
    let rule = kernel_rule(program, kernel);
    let prepared = Prepared::of(program, &rule, false);
    let what = Searchable { rule: &rule, terms: false, prepared: &prepared };
    let mut host = Applied::new(program);
    let a = host.tensor(ty(DType::F16, &[SHAPE[0], 32]), false, None);
    let b = host.tensor(ty(DType::F16, &[32, SHAPE[1]]), true, None);
    let reads: Vec<_> = shapes.iter().map(|s| host.tensor(ty(DType::F16, s), true, None)).collect();
    let term = host.term(term, &reads).unwrap();
    let gemm = program.builtin_op(BuiltinOp::Gemm).unwrap();
    let out = host.op(gemm, vec![AttrValue::DType(DType::F16)], &[a, b, term], &[ty(DType::F16, &SHAPE)]);
    !match_at(&host, &what, out[0], 100_000).is_empty()
}

/// The same by comparing terms.
fn by_terms(program: &Program, kernel: &Kernel, (term, shapes): &Sample) -> bool {
    let mut reads = Vec::new();
    let pattern = epilogue_term(epilogue(program, kernel).unwrap(), &mut reads).unwrap();
    let views = |p: u32| {
        pattern.nodes.iter().find_map(|n| match n {
            TermNode::In { input, view } if *input == p => Some(*view),
            _ => None,
        })
    };
    let out = ty(DType::F16, &SHAPE).shape;
    let fits = |p: u32, t: u32| {
        let read = ty(DType::F16, &shapes[t as usize]);
        views(p).is_some_and(|want| view_fits(want, InView::Broadcast, &read, &out))
    };
    match_modulo_ac(program, &pattern, term, &fits).is_some()
}

#[test]
fn kernels_match_as_terms_do() {
    let program = library();
    let kernels: Vec<&Kernel> = program.kernels.iter().filter(|k| epilogue(&program, k).is_some()).collect();
    let samples = samples(&program);
    let (mut yes, mut no) = (0, 0);
    for kernel in &kernels {
        for (i, sample) in samples.iter().enumerate() {
            let (ours, theirs) = (by_matcher(&program, kernel, sample), by_terms(&program, kernel, sample));
            assert_eq!(ours, theirs, "{} on sample {i}: {:?}", kernel.name, sample.0);
            *(if ours { &mut yes } else { &mut no }) += 1;
        }
    }
    assert!(kernels.len() >= 7 && yes >= 3 * kernels.len() && no > yes, "{} kernels, {yes} and {no}", kernels.len());
}
