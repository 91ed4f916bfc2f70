//! A rule and a scalar of your own, checked when this program is compiled. Two products with the
//! same input become one, and the activation becomes its epilogue.
//!
//! `cargo run --release -p hypatia-examples --bin custom_rule`

use hypatia::optimize::{self, launches, optimize};
use hypatia::session::Comparison;
use hypatia::{DType, Error, Graph, GraphBuilder, Model, Options, Tensor, hypatia_rules, shape};

hypatia_rules!(
    mod mine = r#"
    edition 1;
    //! A low-rank adapter beside a frozen layer: x w + x (a b).
    use core::*;
    use nn::*;

    ruleset mine { until = fixpoint; nodes = 20 * graph; }

    /// x where x > 0, else a tenth of it.
    scalar tenth_relu(x) = max(x, 0.1 * x);

    /// Two products with one input are one product with the sum of the weights, which is computed
    /// once.
    rule mine::one_product: add(matmul(x, v), matmul(x, w)) => matmul(x, build(add(v, w)))
      requires const(v), const(w), shape(v) == shape(w);

    test "one launch for the layer, its adapter and the activation" {
      input x: f32[8, 64];
      const v: f32[64, 32];
      const w: f32[64, 32];
      given tenth_relu(matmul(x, v) + matmul(x, w));
      expect launches == 1;
      expect fires mine::one_product;
    }
"#
);
use mine::Formulas;

fn main() -> std::process::ExitCode {
    match example() {
        Ok(true) => std::process::ExitCode::SUCCESS,
        Ok(false) => std::process::ExitCode::FAILURE,
        Err(e) => {
            eprintln!("error: {e}");
            std::process::ExitCode::FAILURE
        }
    }
}

/// Builds the graph, optimises it with and without the rule, and runs both; false if the results
/// differ.
fn example() -> Result<bool, Error> {
    let graph = adapted_layer()?;
    println!("The graph, as it was built:\n{graph}");

    let mut library = optimize::Options::default();
    library.disabled.insert("mine".into());
    let with_rule = optimize(&graph, &optimize::Options::default())?;
    let without = optimize(&graph, &library)?;
    let count = |g: &Graph, cluster| launches(g, &library.device, cluster);
    println!("launches  {} as built", count(&graph, false)?);
    println!("          {} with the library's rules", count(&without.graph, true)?);
    println!("          {} with `mine::one_product` too", count(&with_rule.graph, true)?);
    println!("\nWhat is left:\n{}", with_rule.graph);

    let x = Tensor::from_slice(&[3, 64], &pattern(3 * 64, 5)).ok_or_else(|| Error::Input("x".into()))?;
    let inputs = [("x".to_string(), x)];
    let fused = Model::new(graph.clone(), Options::default()).run(&inputs)?;
    let mut options = Options::default();
    options.optimize.no_rules = true;
    let plain_model = Model::new(graph, options);
    let plain = plain_model.run(&inputs)?;
    let same = Comparison::of(&fused[0], &plain[0], plain_model.tolerances()[0])?;
    println!("results   {same}");
    println!("scalar    tenth_relu(-2) = {} as a Rust function", mine::scalars::f64::tenth_relu(-2.0));
    Ok(same.ok && with_rule.report.fired("mine::one_product"))
}

/// `tenth_relu(x w + x a)`, for any number of rows.
fn adapted_layer() -> Result<Graph, Error> {
    let g = GraphBuilder::new(mine::program());
    let x = g.input("x", DType::F32, shape!["rows", 64]);
    let frozen = g.tensor(&[64, 32], &pattern(64 * 32, 7)).named("frozen");
    let adapter = g.tensor(&[64, 32], &pattern(64 * 32, 11)).named("adapter");
    g.output("y", g.tenth_relu(x.matmul(frozen) + x.matmul(adapter)));
    g.finish()
}

/// Numbers between -1 and 1.
fn pattern(n: usize, step: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * step) % 31) as f32 / 15.5 - 1.0).collect()
}
