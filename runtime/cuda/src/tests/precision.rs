//! Products with long sums in parts. On integers, which f32 adds exactly in any order, all
//! algorithms give the exact sum.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hypatia_dsl::dtype::DType;
use hypatia_target::cublaslt::Epilogue;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::{cases, gpu};
use crate::Gpu;
use crate::address::WORKSPACE;
use crate::lt::{Layout, Matmul, Pointers, Product};
use crate::memory::DeviceMemory;

/// Row-major and column-major operands.
const ORDERS: [[bool; 2]; 4] = [[false, false], [false, true], [true, false], [true, true]];

/// Products with long sums of small integers, which f32 adds exactly in any order: row-major and
/// column-major, batched, with and without epilogue, by every algorithm, over memory poisoned with
/// NaN.
#[test]
fn sums_in_parts_are_those_of_the_whole_on_a_gpu() {
    let sizes = [[2, 540, 1000, 1553], [1, 1030, 1024, 3077], [1, 1024, 1024, 4096]];
    let Some(gpu) = gpu(sizes.len() * ORDERS.len()) else { return };
    // One case is enough for a sanitizer.
    let count = if cases(100) < 100 { 1 } else { sizes.len() };
    for size in sizes.into_iter().take(count) {
        for order in ORDERS {
            for epilogue in [Epilogue::Default, Epilogue::ReluBias] {
                whole_numbers(&gpu, size, order, epilogue);
            }
        }
    }
}

fn whole_numbers(gpu: &Arc<Gpu>, [batch, m, n, k]: [usize; 4], order: [bool; 2], epilogue: Epilogue) {
    let mut rng = ChaCha8Rng::seed_from_u64(k as u64);
    let mut numbers = |len: usize| (0..len).map(|_| rng.random_range(-2i8..=2).into()).collect::<Vec<f32>>();
    let (a, b, bias) = (numbers(batch * m * k), numbers(batch * k * n), numbers(n));
    let side = |transposed: bool, rows: usize, columns: usize| Layout {
        transposed,
        ld: if transposed { rows } else { columns } as i64,
        batch_stride: (rows * columns) as i64,
        outer_stride: 0,
        alignment: 16,
    };
    let product = Product {
        m,
        n,
        k,
        batch,
        outer: 1,
        dtype: DType::F32,
        out: DType::F32,
        tf32: false,
        a: side(order[0], m, k),
        b: side(order[1], k, n),
        d: side(false, m, n),
        epilogue,
        bias: DType::F32,
        workspace: WORKSPACE,
        in_order: false,
        added: None,
    };
    let stream = gpu.context().new_stream().unwrap();
    let put = |values: &[f32]| {
        let memory = DeviceMemory::new(&stream, values.len() * 4).unwrap();
        memory.upload(bytemuck::cast_slice(values)).unwrap();
        memory
    };
    let (da, db, dbias) = (put(&a), put(&b), put(&bias));
    let d = DeviceMemory::new(&stream, batch * m * n * 4).unwrap();
    let workspace = DeviceMemory::new(&stream, WORKSPACE).unwrap();
    let mut matmul = Matmul::new(product).unwrap();
    let algorithms = matmul.algorithms(gpu.lt(), 32).unwrap();
    assert!(algorithms.iter().any(|a| a.is_split()), "{product:?}: no algorithm for parts");
    for algorithm in &algorithms {
        d.fill(0xff).unwrap();
        let at = Pointers {
            a: da.address(),
            b: db.address(),
            d: d.address(),
            c: 0,
            bias: dbias.address(),
            aux: 0,
            workspace: workspace.address(),
        };
        // SAFETY: the operands are as large as the product says, and live until the result is read.
        unsafe { matmul.launch(gpu.lt(), &stream, algorithm, &at) }.unwrap();
        let mut got = vec![0f32; batch * m * n];
        d.download(0, bytemuck::cast_slice_mut(&mut got)).unwrap();
        for (i, row) in [0, 1, m / 2, m - 1].into_iter().flat_map(|row| (0..batch).map(move |i| (i, row))) {
            let left = |l: usize| a[i * m * k + if order[0] { l * m + row } else { row * k + l }];
            let right = |l: usize, c: usize| b[i * k * n + if order[1] { c * k + l } else { l * n + c }];
            for c in 0..n {
                let sum = (0..k).map(|l| left(l) * right(l, c)).sum::<f32>();
                let want = if epilogue == Epilogue::Default { sum } else { (sum + bias[c]).max(0.0) };
                let seen = got[(i * m + row) * n + c];
                assert!(seen == want, "{product:?} by {algorithm:?}: {seen} at {i}, {row}, {c}, not {want}");
            }
        }
    }
}
