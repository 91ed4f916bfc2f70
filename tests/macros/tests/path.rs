//! A module from a path: its Program, rewrites, builder methods, functions and kernels.
#![allow(clippy::unwrap_used, missing_docs)]
use hypatia::graph::{Dim, TensorType, Term, TermNode};
use hypatia::{DType, hypatia_rules};

hypatia_rules!(pub mod mine = "../../fusions.hyp");

use mine::Ops;

#[test]
fn a_module_from_a_path() {
    assert!(mine::program().find_scalar("cube").is_some());
    assert!(!mine::rewrites().is_empty());
    assert_eq!(mine::scalars::f64::cube(3.0), 27.0);
    assert_eq!(mine::scalars::f32::squash(5.0, 2.0), 2.0);
    let mut g = hypatia::Graph::new(mine::program());
    let ty = |a: i64, b: i64| TensorType { dtype: DType::F32, shape: vec![Dim::from(a), Dim::from(b)] };
    let (x, w) = (g.input("x", ty(2, 3)), g.input("w", ty(3, 4)));
    let y = g.cubed(x, w, None).unwrap();
    let z = g.cube(y).unwrap();
    assert_eq!(g.ty(z), &ty(2, 4));
    assert!(mine::kernels::ALL.iter().any(|(n, d, s)| *n == "cube" && *d == DType::F32 && s.contains("s_cube")));
    assert!(mine::kernels::CUBE_BIAS_BF16.contains("__nv_bfloat16"));
    let mut term = Term::empty();
    let acc = term.add(TermNode::Acc);
    term.roots.push(acc);
    let source = mine::kernels::instantiate::cube_any(&term, DType::F32, &[], DType::F16, &[]).unwrap();
    assert!(source.text.contains("__half"));
}
