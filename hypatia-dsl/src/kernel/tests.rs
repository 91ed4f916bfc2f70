//! Row-wise kernels of the library's ops and of user-defined ops, compared with hand-written
//! formulas.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::checker::Unchecked;
use crate::compile::{FileLoader, compile};
use crate::ir::{AttrValue, OpId, Program};
use crate::shape::Dim;
use crate::source::SourceFile;
use crate::typing::{TensorType, apply_op, normalise_attrs};

const LIBRARY: &[(&str, &str)] = &[
    ("core", include_str!("../../../rules/core.hyp")),
    ("nn", include_str!("../../../rules/nn.hyp")),
    ("onnx", include_str!("../../../rules/onnx.hyp")),
];

const USER: &str = "edition 1;
use core::*;
use nn::*;
use onnx::*;

/// Two results, one of them one value a row; the reduced axis is gone and comes back.
op moments<T: float>(x: T[m, n]) -> (T[m, n], T[m])
  = (x - reshape(mean(x, axes = [1], keepdims = false), shape = [m, 1]), mean(x * x, axes = [1], keepdims = false));

/// A mask, a number for each row, and attention's scale.
op masked<T: float>(x: T[..s, q, k], mask: bool[q, k], scale: float = 0.5) -> T[..s, q, k]
  = softmax(select(mask, x * scale, -inf));

/// Rows of two axes.
op group_norm<T: float>(x: T[g, c, n]) -> T[g, c, n]
  = x * rsqrt(mean(x * x, axes = [1, 2]) + 1e-6);

/// One op in another, a condition, a cast, and a value a row.
op mixed<T: float>(x: T[..s, n], r: T[..s, 1], eps: float = 0.0) -> T[..s, n]
  = if eps > 0 then x else cast(softmax(cast(x, to = f32) * 2), to = dtype(x)) * r;

/// Two extents: a row, and groups within it.
op in_groups<T: float>(x: T[m, g, c]) -> (T[m, g * c], T[m, g], T[m])
  = (
    reshape(x / mean(abs(x), axes = [1, 2]) - mean(x / mean(abs(x), axes = [1, 2]), axes = [2]), shape = [m, g * c]),
    amax(x, axes = [2], keepdims = false),
    sum(x, axes = [1, 2], keepdims = false)
  );
/// The same extents, the groups first.
op groups_first<T: float>(x: T[m, g, c]) -> T[m, g, c] = x - amax(x, axes = [2]) + amin(x, axes = [1, 2]);
/// Groups of two sizes.
op two_sizes<T: float>(x: T[m, 4, 3, 2]) -> T[m, 4, 3, 2]
  = x - amax(x, axes = [1, 2, 3]) - amax(x, axes = [2, 3]) - amax(x, axes = [3]);
/// A row of what groups gave.
op of_groups<T: float>(x: T[m, g, c]) -> T[m, g, c]
  = x - sum(x - amax(x, axes = [2]), axes = [1, 2]);
/// Not row-wise.
op product<T: float>(x: T[m, m]) -> T[m, m] = matmul(x, x) / sum(x, axes = [1]);
/// Not row-wise either: rows and columns.
op both<T: float>(x: T[m, m]) -> T[m, m] = x / sum(x, axes = [1]) / sum(x, axes = [0]);
/// A vector that lies across the rows.
op across<T: float>(x: T[m, m]) -> T[m, m] = x - expand(sum(x, axes = [1], keepdims = false), shape = [m, m]);
/// Nothing is reduced.
op plain<T: float>(x: T[m]) -> T[m] = gelu(x) + 1;
";

fn program() -> Program {
    let root = SourceFile { name: "user.hyp".into(), path: None, text: USER.into(), embedded: false };
    let c = compile(vec![root], &FileLoader { embedded: LIBRARY, trees: &[] }, &Unchecked);
    c.program.unwrap_or_else(|| panic!("{:#?}", c.diagnostics))
}

fn ty(dtype: DType, shape: &[i64]) -> TensorType {
    TensorType { dtype, shape: shape.iter().map(|d| Dim::from(*d)).collect() }
}

fn derive(p: &Program, name: &str, operands: &[Option<TensorType>]) -> Result<RowwiseKernel, String> {
    derive_with(p, name, &[], operands)
}

fn derive_with(
    p: &Program,
    name: &str,
    attrs: &[Option<AttrValue>],
    operands: &[Option<TensorType>],
) -> Result<RowwiseKernel, String> {
    let id: OpId = p.find_op(name).unwrap();
    let rank = operands[0].as_ref().map(|t| t.shape.len());
    let attrs = normalise_attrs(p.op(id), attrs, rank).unwrap();
    let results = apply_op(p, id, &attrs, operands).unwrap();
    derive_rowwise(p, id, &attrs, operands, &results)
}

/// Values that are neither sorted nor regular.
fn data(len: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64 * 4.0 - 2.0
        })
        .collect()
}

#[track_caller]
fn close(got: &[f64], wanted: &[f64]) {
    assert_eq!(got.len(), wanted.len());
    for (g, w) in got.iter().zip(wanted) {
        assert!((g - w).abs() <= 1e-12 * (1.0 + w.abs()) || (g.is_nan() && w.is_nan()), "{g} against {w}");
    }
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let top = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = x.iter().map(|v| (v - top).exp()).sum();
    x.iter().map(|v| (v - top).exp() / sum).collect()
}

const SIZES: [(usize, usize); 6] = [(3, 7), (1, 5), (4, 1), (5, 33), (2, 0), (0, 4)];

#[test]
fn softmax_is_two_reductions() {
    let p = program();
    for (rows, n) in SIZES {
        let x = Some(ty(DType::F32, &[rows as i64, n as i64]));
        let kernel = derive(&p, "softmax", &[x]).unwrap();
        let reductions: Vec<Reduction> = kernel.steps.iter().map(|s| s.0).collect();
        assert_eq!(reductions, [Reduction::Max, Reduction::Sum]);
        let x = data(rows * n, 1);
        let got = interpret_rowwise(&p, &kernel, &[&x], &RowLayout::flat(&kernel, rows, n)).unwrap();
        let wanted: Vec<f64> = (0..rows).flat_map(|r| softmax(&x[r * n..(r + 1) * n])).collect();
        close(&got[0], &wanted);
    }
}

#[test]
fn logarithms() {
    let p = program();
    let (rows, n) = (3usize, 7usize);
    let x = data(rows * n, 9);
    let ty = Some(ty(DType::F32, &[3, 7]));
    let sum = |r: usize| x[r * n..(r + 1) * n].iter().map(|v| v.exp()).sum::<f64>().ln();
    let kernel = derive(&p, "log_softmax", std::slice::from_ref(&ty)).unwrap();
    let got = interpret_rowwise(&p, &kernel, &[&x], &RowLayout::flat(&kernel, rows, n)).unwrap();
    close(&got[0], &x.iter().enumerate().map(|(i, v)| v - sum(i / n)).collect::<Vec<_>>());
    let axes = Some(AttrValue::List(vec![AttrValue::Dim(Dim::from(-1))]));
    let kernel = derive_with(&p, "logsumexp", &[axes], &[ty]).unwrap();
    assert_eq!(kernel.outputs[0].1, RowAccess::PerRow);
    assert_eq!(kernel.steps.len(), 2);
    let got = interpret_rowwise(&p, &kernel, &[&x], &RowLayout::flat(&kernel, rows, n)).unwrap();
    close(&got[0], &(0..rows).map(sum).collect::<Vec<_>>());
}

#[test]
fn norms() {
    let p = program();
    for (rows, n) in SIZES {
        let x = ty(DType::BF16, &[rows as i64, n as i64]);
        let v = ty(DType::BF16, &[n as i64]);
        let (xs, scale, bias) = (data(rows * n, 2), data(n, 3), data(n, 4));
        let row = |r: usize| &xs[r * n..(r + 1) * n];
        for with_bias in [true, false] {
            let kernel = derive(&p, "layer_norm", &[Some(x.clone()), Some(v.clone()), with_bias.then(|| v.clone())]);
            let kernel = kernel.unwrap();
            // The mean occurs three times and is one step.
            assert_eq!(kernel.steps.len(), 2, "{kernel:?}");
            let inputs: Vec<&[f64]> = if with_bias { vec![&xs, &scale, &bias] } else { vec![&xs, &scale] };
            assert_eq!(kernel.inputs.len(), inputs.len());
            let got = interpret_rowwise(&p, &kernel, &inputs, &RowLayout::flat(&kernel, rows, n)).unwrap();
            let mut wanted = Vec::new();
            for r in 0..rows {
                let mean = row(r).iter().sum::<f64>() / n as f64;
                let var = row(r).iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n as f64;
                for (j, v) in row(r).iter().enumerate() {
                    wanted.push((v - mean) / (var + 1e-5).sqrt() * scale[j] + if with_bias { bias[j] } else { 0.0 });
                }
            }
            close(&got[0], &wanted);
        }
        let kernel = derive(&p, "rms_norm", &[Some(x), Some(v)]).unwrap();
        let got = interpret_rowwise(&p, &kernel, &[&xs, &scale], &RowLayout::flat(&kernel, rows, n)).unwrap();
        let mut wanted = Vec::new();
        for r in 0..rows {
            let square = row(r).iter().map(|v| v * v).sum::<f64>() / n as f64;
            wanted.extend(row(r).iter().zip(&scale).map(|(v, s)| v / (square + 1e-6).sqrt() * s));
        }
        close(&got[0], &wanted);
    }
}

#[test]
fn groups_within_a_row() {
    let p = program();
    let (m, g, c) = (3usize, 4usize, 5usize);
    let x = data(m * g * c, 8);
    let of = |op: &str| derive(&p, op, &[Some(ty(DType::F32, &[3, 4, 5]))]);
    let kernel = of("in_groups").unwrap();
    let groups = Groups { first: 2, size: c };
    assert_eq!((kernel.groups, kernel.steps.len()), (Some(groups), 4), "{kernel:?}");
    let access: Vec<RowAccess> = kernel.outputs.iter().map(|o| o.1).collect();
    assert_eq!(access, [RowAccess::Full, RowAccess::PerGroup, RowAccess::PerRow]);
    let strides = vec![vec![20, 5, 1], vec![20, 5, 1], vec![4, 1, 0], vec![1, 0, 0]];
    let layout = RowLayout { sizes: vec![m, g, c], outer: 1, strides };
    let got = interpret_rowwise(&p, &kernel, &[&x], &layout).unwrap();
    let row = |i: usize| &x[i / (g * c) * g * c..(i / (g * c) + 1) * g * c];
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
    let size = |i: usize| mean(&row(i).iter().map(|v| v.abs()).collect::<Vec<_>>());
    let group = |i: usize| &x[i / c * c..(i / c + 1) * c];
    close(&got[0], &(0..x.len()).map(|i| (x[i] - mean(group(i))) / size(i)).collect::<Vec<_>>());
    let top = |v: &[f64]| v.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    close(&got[1], &(0..m * g).map(|i| top(group(i * c))).collect::<Vec<_>>());
    close(&got[2], &(0..m).map(|i| row(i * g * c).iter().sum()).collect::<Vec<_>>());

    let kernel = of("groups_first").unwrap();
    assert_eq!(kernel.groups, Some(Groups { first: 1, size: c }));
    let got = interpret_rowwise(&p, &kernel, &[&x], &RowLayout::flat(&kernel, m, g * c)).unwrap();
    let least = |i: usize| row(i).iter().copied().fold(f64::INFINITY, f64::min);
    close(&got[0], &(0..x.len()).map(|i| x[i] - top(group(i)) + least(i)).collect::<Vec<_>>());

    let why = derive(&p, "two_sizes", &[Some(ty(DType::F32, &[3, 4, 3, 2]))]).unwrap_err();
    assert_eq!(why, "it reduces groups of different sizes");
    assert_eq!(of("of_groups").unwrap_err(), "it reduces a row of what was reduced over groups");
}

#[test]
fn operands_and_outputs_of_all_kinds() {
    let p = program();
    let (m, n) = (3usize, 5usize);
    let x = data(m * n, 5);
    let mean = |r: usize| x[r * n..(r + 1) * n].iter().sum::<f64>() / n as f64;
    let kernel = derive(&p, "moments", &[Some(ty(DType::F32, &[3, 5]))]).unwrap();
    let access: Vec<RowAccess> = kernel.outputs.iter().map(|o| o.1).collect();
    assert_eq!(access, [RowAccess::Full, RowAccess::PerRow]);
    let got = interpret_rowwise(&p, &kernel, &[&x], &RowLayout::flat(&kernel, m, n)).unwrap();
    close(&got[0], &x.iter().enumerate().map(|(i, v)| v - mean(i / n)).collect::<Vec<_>>());
    let squares = |r: usize| x[r * n..(r + 1) * n].iter().map(|v| v * v).sum::<f64>() / n as f64;
    close(&got[1], &(0..m).map(squares).collect::<Vec<_>>());

    let kernel = derive(&p, "mixed", &[Some(ty(DType::BF16, &[3, 5])), Some(ty(DType::BF16, &[3, 1]))]).unwrap();
    let r = data(m, 6);
    assert_eq!(kernel.inputs[1].1, RowAccess::PerRow);
    let got = interpret_rowwise(&p, &kernel, &[&x, &r], &RowLayout::flat(&kernel, m, n)).unwrap();
    let row = |i: usize| softmax(&x[i * n..(i + 1) * n].iter().map(|v| v * 2.0).collect::<Vec<_>>());
    close(&got[0], &(0..m).flat_map(|i| row(i).into_iter().map(|v| v * r[i]).collect::<Vec<_>>()).collect::<Vec<_>>());

    let kernel = derive(&p, "group_norm", &[Some(ty(DType::F32, &[2, 3, 5]))]).unwrap();
    let x = data(30, 7);
    let got = interpret_rowwise(&p, &kernel, &[&x], &RowLayout::flat(&kernel, 2, 15)).unwrap();
    let norm = |g: usize| (x[g * 15..(g + 1) * 15].iter().map(|v| v * v).sum::<f64>() / 15.0 + 1e-6).sqrt();
    close(&got[0], &x.iter().enumerate().map(|(i, v)| v / norm(i / 15)).collect::<Vec<_>>());
}

#[test]
fn masks_are_inputs() {
    let p = program();
    // With one row per head the mask is a row vector; with more rows it is neither a row nor a
    // column vector.
    let kernel = derive(&p, "masked", &[Some(ty(DType::F32, &[1, 4])), Some(ty(DType::Bool, &[1, 4]))]).unwrap();
    let x = data(4, 8);
    let got = interpret_rowwise(&p, &kernel, &[&x, &[1.0, 0.0, 1.0, 1.0]], &RowLayout::flat(&kernel, 1, 4)).unwrap();
    let wanted = softmax(&[x[0] * 0.5, f64::NEG_INFINITY, x[2] * 0.5, x[3] * 0.5]);
    close(&got[0], &wanted);
    let kernel = derive(&p, "masked", &[Some(ty(DType::F32, &[2, 4])), Some(ty(DType::Bool, &[2, 4]))]).unwrap();
    assert_eq!(kernel.inputs[1], (DType::Bool, RowAccess::Full));
    let kernel = derive(&p, "masked", &[Some(ty(DType::F32, &[3, 2, 4])), Some(ty(DType::Bool, &[2, 4]))]).unwrap();
    assert_eq!(kernel.inputs[1], (DType::Bool, RowAccess::Strided));
    assert_eq!(kernel.axes, [2, 1]);
}

#[test]
fn symbolic_sizes() {
    let p = program();
    let (b, n) = (Dim::symbol("b"), Dim::symbol("n"));
    let x = TensorType { dtype: DType::F16, shape: vec![b, n.clone()] };
    let v = TensorType { dtype: DType::F16, shape: vec![n] };
    let kernel = derive(&p, "layer_norm", &[Some(x), Some(v.clone()), Some(v)]).unwrap();
    let access: Vec<RowAccess> = kernel.inputs.iter().map(|i| i.1).collect();
    assert_eq!(access, [RowAccess::Full, RowAccess::PerColumn, RowAccess::PerColumn]);
}

#[test]
fn what_is_not_row_wise_says_why() {
    let p = program();
    let square = || [Some(ty(DType::F32, &[4, 4]))];
    for (name, words) in [
        ("product", "it uses `matmul`"),
        ("both", "it reduces axes [0] of [4, 4]; its other reductions"),
        ("across", "a value does not lie along the rows"),
    ] {
        let why = derive(&p, name, &square()).unwrap_err();
        assert!(why.contains(words), "{name}: {why}");
    }
    let why = derive(&p, "plain", &[Some(ty(DType::F32, &[4]))]).unwrap_err();
    assert!(why.contains("reduces nothing"), "{why}");
}
