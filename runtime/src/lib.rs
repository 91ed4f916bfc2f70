//! Hypatia: a declarative fusion compiler for neural networks.
//!
//! In: rules (`.hyp`), and a model or a graph. Out: results of runs, and reports of what fused.
//! Data flows one way: rules become a [`Program`]; a model becomes a [`Graph`], an e-graph, a
//! better [`Graph`], a plan, and results.
//!
//! Invariant: this crate names each item that it offers, one by one. The names at the root are
//! those that every program needs; each module has those of one task. The stages themselves are
//! crates (`hypatia-dsl`, `hypatia-optimize`, ...) for who builds tools on them.
//!
//! A scalar of your own, checked when the program is compiled, and a graph that uses it:
//!
//! ```
//! use hypatia::{DType, Error, GraphBuilder, Model, Options, Tensor, shape};
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
//! A model file is loaded by [`Model::load`], with the rules of [`rules::load`].

mod compare;
mod executor;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(not(feature = "cuda"))]
#[path = "no_gpu.rs"]
mod gpu;
mod precision;
mod race;
pub mod session;
mod verdict;

pub use hypatia_dsl::dtype::DType;
pub use hypatia_dsl::ir::Program;
pub use hypatia_graph::{Graph, GraphBuilder, shape};
pub use hypatia_macros::hypatia_rules;
pub use hypatia_tensor::{Error, Result, Tensor};
pub use session::{Compiled, Model, Options};

/// Rules that are loaded when the program runs: the library's and those of `.hyp` files.
pub mod rules {
    pub use hypatia_library::{load, load_with_domains};
}

/// What graphs are made of. [`GraphBuilder`] writes formulas of [`Var`](graph::Var); a [`Graph`]
/// has nodes.
pub mod graph {
    pub use hypatia_dsl::ir::AttrValue;
    pub use hypatia_dsl::scalar::{Term, TermId, TermNode};
    pub use hypatia_dsl::shape::{Dim, Shape};
    pub use hypatia_dsl::typing::TensorType;
    pub use hypatia_graph::{Node, NodeId, NodeKind, Size, Value, Var};
}

/// What the rules make of a graph, without a run: what fired, launches before and after, and why a
/// rule did not fire.
pub mod optimize {
    pub use hypatia_dsl::ir::Clause;
    pub use hypatia_dsl::numerics::Numerics;
    pub use hypatia_graph::fusions::Fusion;
    pub use hypatia_optimize::why_not::{Verdict, WhyNot};
    pub use hypatia_optimize::{
        CompiledRule, Doubt, EqualLayers, Firing, Launches, Optimized, Options, Outcome, Report, Site, Summary, Unmet,
    };
    pub use hypatia_pipeline::{launches, optimize, why_not};
}

/// The search for counterexamples to rules.
pub mod verify {
    pub use hypatia_verify::{Counterexample, Entry, Options, Report, Status, Subject, verify};
}

/// What a plan is made for, and where it runs.
pub mod device {
    pub use crate::gpu::OnGpu;
    pub use hypatia_target::device::{Device, Rates};
}

/// NVIDIA GPUs, and how the algorithms of products are chosen on them.
#[cfg(feature = "cuda")]
pub mod cuda {
    pub use hypatia_cuda::Gpu;
    pub use hypatia_cuda::tuner::{Effort, Tuner};
    pub use hypatia_cuda::tuning::TuningFile;
}

/// ONNX files as graphs, and back. [`Model::load`](crate::Model::load) is the shorter way to run
/// one.
#[cfg(feature = "onnx")]
pub mod onnx {
    pub use hypatia_onnx::export::{Export, write};
    pub use hypatia_onnx::import::{Import, Options};
    pub use hypatia_pipeline::{export, load};
}

/// Tensors by name in NumPy's archives.
pub mod npz {
    pub use hypatia_tensor::npz::{read, write};
}

/// Trained weights in safetensors files.
pub mod weights {
    pub use hypatia_tensor::weights::Weights;
}

/// Sources of kernels that have a term for an operand, as the modules of
/// [`hypatia_rules!`](crate::hypatia_rules) instantiate them.
pub mod kernels {
    pub use hypatia_dsl::kernel::Operand;
    pub use hypatia_templates::cuda::{CudaSource, EmitError};
    pub use hypatia_templates::instances::instantiate;
}

/// Called by the code that `hypatia_rules!` generates. Not for direct use.
#[doc(hidden)]
pub mod generated {
    pub use hypatia_dsl::builtin::BuiltinScalar;
    pub use hypatia_dsl::ir::is_of_version;
    pub use hypatia_graph::generated::{cast, of_bool, one, op, scalar, single, two};
    pub use hypatia_optimize::rewrites;
}

/// For Hypatia's own command, Python package and tests. It changes without notice.
#[doc(hidden)]
pub mod internal {
    pub use crate::precision::{deviation, is_f32};
    pub use crate::race::Race;
    pub use crate::verdict::{Verdict, host, loaded_from};
}
