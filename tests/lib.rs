//! Random graphs that several whole-product tests share.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{Program, ScalarBody, ScalarId};
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::TensorType;
use hypatia_graph::Graph;
use hypatia_graph::Value;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

/// A random graph of products, ops and scalars; the same seed gives the same graph on every host.
/// Ops that the program lacks are left out.
pub fn random_graph(program: &Arc<Program>, seed: u64) -> Graph {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut g = Graph::new(program.clone());
    let n = [2i64, 3, 8][rng.random_range(0..3)];
    let ty = TensorType { dtype: DType::F32, shape: vec![Dim::from(n), Dim::from(n)] };
    let mut values: Vec<Value> = (0..3).map(|i| g.input(format!("x{i}"), ty.clone())).collect();
    let scalars: Vec<ScalarId> = (0..program.scalars.len() as u32)
        .map(ScalarId)
        .filter(|s| {
            let def = program.scalar(*s);
            matches!(def.body, ScalarBody::Term(_)) || def.params.len() == 2
        })
        .collect();
    for _ in 0..rng.random_range(3..12) {
        let pick = |rng: &mut ChaCha8Rng| values[rng.random_range(0..values.len())];
        let made = match rng.random_range(0..6) {
            0 | 1 => g.call("matmul", &[pick(&mut rng), pick(&mut rng)], &[]).map(|v| v[0]),
            2 => g.call("cubed", &[pick(&mut rng), pick(&mut rng)], &[]).map(|v| v[0]),
            3 => g.call("softmax", &[pick(&mut rng)], &[]).map(|v| v[0]),
            _ => {
                let s = scalars[rng.random_range(0..scalars.len())];
                let args: Vec<Value> = program.scalar(s).params.iter().map(|_| pick(&mut rng)).collect();
                g.scalar(s, &args)
            }
        };
        // Functions of truth values do not accept these operands.
        if let Ok(v) = made
            && *g.ty(v) == ty
        {
            values.push(v);
        }
    }
    let last = values.len() - 1;
    g.output("y", values[last]);
    g.output("z", values[last / 2]);
    g
}
