//! Kernels of the library on single applications: the matcher agrees with comparing terms modulo
//! commutativity and association, and decides nothing that sizes leave open.

use std::sync::Arc;

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrPat, AttrValue, Head, InView, Kernel, NodePat, OpBody, OpId, Pat, Program, Sort, VarId};
use hypatia_dsl::scalar::{Term, TermNode, TermPattern, expand, match_modulo_ac};
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::TensorType;
use hypatia_graph::Known;

use super::laws::ty;
use super::library::library;
use crate::kernels::KernelPattern;
use crate::matcher::applied::{Applied, may_be_read};
use crate::matcher::{Match, match_at};

/// Rows and columns of the product.
const SHAPE: [i64; 2] = [16, 64];

/// The epilogue of a kernel of the builtin product.
fn epilogue<'k>(program: &Program, kernel: &'k Kernel) -> Option<&'k NodePat> {
    let Pat::Node(NodePat { head: Head::Op(op), args, .. }) = &kernel.pattern else { return None };
    let gemm = program.op(*op).body == OpBody::Builtin(BuiltinOp::Gemm);
    match args.get(2) {
        Some(Pat::Node(n)) if gemm => Some(n),
        _ => None,
    }
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
        let TermPattern { term, reads, .. } = TermPattern::closed_node(pat).unwrap();
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

fn known(ty: TensorType) -> Option<Known> {
    Some(Known { ty, constant: true })
}

/// The match of a kernel with a product of these matrices and that term.
fn product(
    program: &Arc<Program>,
    kernel: &Kernel,
    [a, b]: [Option<Known>; 2],
    (term, reads): (&Term, &[TensorType]),
    out: Option<TensorType>,
) -> Option<Match> {
    let mut host = Applied::new(program);
    let (a, b) = (host.tensor(a), host.tensor(b));
    let reads = reads.iter().map(|t| host.tensor(known(t.clone()))).collect();
    let term = host.term(term.clone(), reads);
    let gemm = program.builtin_op(BuiltinOp::Gemm).unwrap();
    let out = host.op(gemm, vec![AttrValue::DType(DType::F16)], &[a, b, term], out.as_slice());
    match_at(&host, &KernelPattern::of(program, kernel).search(), out[0], 100_000).into_iter().next()
}

/// Whether the kernel's pattern matches, by the matcher.
fn by_matcher(program: &Arc<Program>, kernel: &Kernel, (term, shapes): &Sample) -> bool {
    let matrices = [known(ty(DType::F16, &[SHAPE[0], 32])), known(ty(DType::F16, &[32, SHAPE[1]]))];
    let reads: Vec<TensorType> = shapes.iter().map(|s| ty(DType::F16, s)).collect();
    product(program, kernel, matrices, (term, &reads), Some(ty(DType::F16, &SHAPE))).is_some()
}

/// The same by comparing terms.
fn by_terms(program: &Program, kernel: &Kernel, (term, shapes): &Sample) -> bool {
    let pattern = TermPattern::closed_node(epilogue(program, kernel).unwrap()).unwrap();
    let out = ty(DType::F16, &SHAPE).shape;
    let fits = |p: u32, t: u32| {
        let read = ty(DType::F16, &shapes[t as usize]);
        may_be_read(pattern.reads[p as usize].1, &read.shape, &out)
    };
    match_modulo_ac(program, &pattern.term, term, &fits).is_some()
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

fn kernel<'p>(program: &'p Program, name: &str) -> &'p Kernel {
    program.kernels.iter().find(|k| k.name == name).unwrap()
}

/// `acc + in(x)` in the order and with the sign that the program's functions give it.
fn sum(program: &Program, negated: bool) -> Term {
    let scalar = |s| program.builtin_scalar(s).unwrap();
    let mut term = Term::empty();
    let read = term.add(TermNode::In { input: 0, view: InView::Broadcast });
    let acc = term.add(TermNode::Acc);
    let read = match negated {
        true => term.add(TermNode::Call { scalar: scalar(BuiltinScalar::Neg), args: vec![read] }),
        false => read,
    };
    let root = term.add(TermNode::Call { scalar: scalar(BuiltinScalar::Add), args: vec![read, acc] });
    term.roots.push(root);
    term
}

#[test]
fn a_difference_is_a_sum_with_the_negated_operand() {
    let program = library();
    let node = |head: Head, args: Vec<Pat>, attrs: Vec<AttrPat>| {
        Pat::Node(NodePat { head, args, rest: None, attrs, output: 0 })
    };
    let mut kernel = kernel(&program, "lt_bias").clone();
    let Pat::Node(gemm) = &mut kernel.pattern else { panic!("{:?}", kernel.pattern) };
    let read = epilogue(&program, super::applied::kernel(&program, "lt_bias")).unwrap().args[1].clone();
    let sub = Head::Scalar(program.builtin_scalar(BuiltinScalar::Sub).unwrap());
    gemm.args[2] = node(sub, vec![node(Head::Acc, vec![], vec![]), read], vec![]);
    let sample = |negated| (sum(&program, negated), vec![vec![SHAPE[1]]]);
    assert!(by_matcher(&program, &kernel, &sample(true)));
    assert!(!by_matcher(&program, &kernel, &sample(false)));
}

#[test]
fn sizes_that_are_not_known_refute_no_view() {
    let program = library();
    let bias = kernel(&program, "lt_bias");
    let matches = |shape: &[Dim], out: &[Dim]| {
        let ty = |shape: &[Dim]| TensorType { dtype: DType::F16, shape: shape.to_vec() };
        let matrices = [None, None];
        product(&program, bias, matrices, (&sum(&program, false), &[ty(shape)]), Some(ty(out))).is_some()
    };
    let (m, n) = (Dim::symbol("m"), Dim::symbol("n"));
    assert!(matches(std::slice::from_ref(&n), &[m.clone(), n.clone()]));
    assert!(matches(&[1.into()], &[m.clone(), n.clone()]), "one column is a row of one element");
    assert!(!matches(&[1.into()], &[m.clone(), 64.into()]));
    assert!(matches(&[m.clone(), n.clone()], &[m.clone(), n.clone()]), "one row");
    assert!(!matches(&[16.into(), n.clone()], &[16.into(), n]));
}

/// The matrices of a convolution are made when it is planned, and so is the shape of their product.
#[test]
fn unknown_matrices_match() {
    let program = library();
    let reads = [ty(DType::F16, &[64, 1, 1])];
    let found = product(&program, kernel(&program, "lt_bias"), [None, None], (&sum(&program, false), &reads), None);
    let found = found.unwrap();
    let vars = &kernel(&program, "lt_bias").vars;
    let var = |name: &str| VarId(vars.iter().position(|v| v.name == name).unwrap() as u32);
    assert!(found.class(var("a")) != found.class(var("b")) && found.class(var("bias")).is_some());
    assert_eq!(found.values.values.get(&var("d")), Some(&AttrValue::DType(DType::F16)));
}

/// An open epilogue matches any term, even one that is huge as a tree.
#[test]
fn any_term_matches_an_open_epilogue() {
    let program = library();
    let mut open = kernel(&program, "lt_plain").clone();
    open.vars.push(hypatia_dsl::ir::Var { name: "e".into(), sort: Sort::Term });
    let Pat::Node(gemm) = &mut open.pattern else { panic!("{:?}", open.pattern) };
    gemm.args[2] = Pat::Var(VarId(open.vars.len() as u32 - 1));
    let scalar = program.builtin_scalar(BuiltinScalar::Add).unwrap();
    let mut term = Term::empty();
    let mut last = term.add(TermNode::Acc);
    for _ in 0..200 {
        last = term.add(TermNode::Call { scalar, args: vec![last, last] });
    }
    term.roots.push(last);
    let sample = (term, Vec::new());
    assert!(by_matcher(&program, &open, &sample));
    assert!(!by_matcher(&program, kernel(&program, "lt_plain"), &sample));
    assert!(!by_matcher(&program, kernel(&program, "lt_gelu_plain"), &sample));
}

/// Optional and absent operands, and attributes.
#[test]
fn operands_and_attributes_of_ops_match() {
    let program = library();
    let op = |name: &str| OpId(program.ops.iter().position(|o| o.name == name).unwrap() as u32);
    let (x, row) = (ty(DType::F32, &[4, 8]), ty(DType::F32, &[8]));
    let layer_norm = |bias: bool, kernel: &str| {
        let mut host = Applied::new(&program);
        let (a, scale) = (host.tensor(known(x.clone())), host.tensor(known(row.clone())));
        let bias = if bias { host.tensor(known(row.clone())) } else { host.absent() };
        let eps = vec![AttrValue::Float(1e-5)];
        let out = host.op(op("layer_norm"), eps, &[a, scale, bias], std::slice::from_ref(&x));
        let pattern = KernelPattern::of(&program, super::applied::kernel(&program, kernel));
        match_at(&host, &pattern.search(), out[0], 100_000)
    };
    for bias in [false, true] {
        let [m] = layer_norm(bias, "layer_norm_row").try_into().unwrap();
        assert_eq!(
            m.bindings.iter().filter(|s| matches!(s, crate::matcher::Binding::Class(_))).count(),
            2 + usize::from(bias)
        );
        assert!(m.values.values.iter().any(|(_, v)| *v == AttrValue::Float(1e-5)));
    }
    assert!(layer_norm(false, "rms_norm_row").is_empty());
    // One kernel asks for the operand, the other one for its absence.
    for (bias, with, without) in [(true, 1, 0), (false, 0, 1)] {
        let mut host = Applied::new(&program);
        let (a, b) = (host.tensor(known(ty(DType::F16, &[16, 32]))), host.tensor(known(ty(DType::F16, &[32, 64]))));
        let bias = if bias { host.tensor(known(ty(DType::F16, &[64]))) } else { host.absent() };
        let out = vec![ty(DType::F16, &SHAPE); 2];
        let out = host.op(op("gelu_layer"), Vec::new(), &[a, b, bias], &out);
        let found = |name: &str| {
            let pattern = KernelPattern::of(&program, kernel(&program, name));
            match_at(&host, &pattern.search(), out[0], 100_000).len()
        };
        assert_eq!((found("lt_gelu_aux_bias"), found("lt_gelu_aux")), (with, without));
    }
}
