//! Hypatia: a declarative fusion compiler for neural networks.
//!
//! Data flows one way: rules (`.hyp`) become a [`Program`](hypatia_dsl::ir::Program); a model
//! becomes a [`graph::Graph`], an e-graph, a better [`graph::Graph`], a plan, and results.
//!
//! A scalar of your own, checked when the program is compiled, and a graph that uses it:
//!
//! ```
//! use hypatia::dsl::dtype::DType;
//! use hypatia::graph::GraphBuilder;
//! use hypatia::session::{Model, Options};
//! use hypatia::{Error, Tensor, shape};
//!
//! hypatia::hypatia_rules!(
//!     mod mine = r#"
//!     edition 1;
//!     use core::*;
//!
//!     /// x where x > 0, else a tenth of it.
//!     scalar tenth_relu(x) = max(x, 0.1 * x);
//! "#
//! );
//! use mine::Formulas;
//!
//! fn main() -> Result<(), Error> {
//!     let g = GraphBuilder::new(mine::program());
//!     let x = g.input("x", DType::F32, shape!["batch", 2]);
//!     let w = g.tensor(&[2, 2], &[1.0f32, 0.0, 0.0, -1.0]);
//!     g.output("y", g.tenth_relu(x.matmul(w) + 0.5));
//!     let model = Model::new(g.finish()?, Options::default());
//!     let batch = Tensor::from_slice(&[1, 2], &[1.5f32, 10.5]).expect("two numbers");
//!     let y = model.run(&[("x".to_string(), batch)])?;
//!     assert_eq!(y[0].to_f64(), [2.0, -1.0]);
//!     Ok(())
//! }
//! ```
//!
//! A model file is loaded by [`session::Model::load`], with the rules of [`library::load`].

mod compare;
pub mod executor;
#[cfg(feature = "cuda")]
pub mod gpu;
#[cfg(not(feature = "cuda"))]
#[path = "no_gpu.rs"]
pub mod gpu;
#[doc(hidden)]
pub mod precision;
pub mod race;
pub mod session;
#[doc(hidden)]
pub mod verdict;

#[cfg(feature = "cuda")]
#[doc(no_inline)]
pub use hypatia_cuda as cuda;
#[cfg(feature = "cuda")]
#[doc(no_inline)]
pub use hypatia_cuda::tuner;
#[doc(no_inline)]
pub use hypatia_dsl as dsl;
#[doc(no_inline)]
pub use hypatia_graph as graph;
pub use hypatia_graph::{Graph, shape};
#[doc(no_inline)]
pub use hypatia_library as library;
pub use hypatia_macros::hypatia_rules;
#[cfg(feature = "onnx")]
#[doc(no_inline)]
pub use hypatia_onnx as onnx;
#[doc(no_inline)]
pub use hypatia_optimize as optimize;
#[doc(no_inline)]
pub use hypatia_pipeline as pipeline;
#[doc(no_inline)]
pub use hypatia_target::device;
pub use hypatia_tensor::{Error, Result, Tensor};
#[doc(no_inline)]
pub use hypatia_tensor::{npz, weights};
#[doc(no_inline)]
pub use hypatia_verify as verify;

/// Called by the code that `hypatia_rules!` generates. Not for direct use.
#[doc(hidden)]
pub mod generate {
    pub use hypatia_templates::cuda::{CudaSource, EmitError};
    pub use hypatia_templates::instances::instantiate;
}
#[doc(hidden)]
pub use hypatia_graph::generated;
