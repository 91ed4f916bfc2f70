//! The typed graph: what a model computes.
//!
//! In: built by `import`, by the builder methods, or by extraction from the e-graph. Out: input of
//! the optimiser, of the reference evaluator and of the planner. Invariant (checked by `validate`):
//! operands come before their users; every result type is the one that `typing::apply_op` gives.

mod attention;
mod build;
mod builder;
mod channels;
mod cone;
mod constants;
mod declared;
mod env;
mod facts;
pub mod fate;
pub mod fusions;
#[doc(hidden)]
pub mod generated;
mod grad;
mod graph;
mod im2col;
mod inline;
pub mod instantiate;
mod kinds;
mod narrow;
mod noisy;
mod pair;
pub mod prim;
mod print;
mod regions;
mod replace;
mod rows;
mod scores;
mod sliced;
mod specialize;
mod sums;
mod term;
mod validate;
mod wide;
mod widen;

pub use attention::{Attention, AttentionGrad};
pub use builder::{GraphBuilder, Size, Var};
pub use channels::{multiplies_groups, with_channels_last};
pub use cone::Cone;
pub use constants::{ConstantFolder, Constants, constant_nodes, constant_value};
pub use declared::DeclaredLaunch;
pub use env::{BoundTerm, Env};
pub use facts::{GraphFacts, exact_splat, splat};
pub use noisy::{ClaimedError, Noise, Noisy, is_whole};

pub use graph::kernels::{
    Candidate, CandidateFacts, Kernels, Known, Matched, Product, Split, Strategy, device_fact, scale,
};
pub use graph::{Graph, Node, NodeId, NodeKind, Value};
pub use im2col::ConvSizes;
pub use instantiate::Instantiator;
pub use kinds::{builtin, is_exact, is_pointwise, is_view, literal, rounds};
pub use print::show_attr;
pub use regions::cluster;
pub use replace::Replacement;
pub use rows::{Region, RowsOperand, RowwiseRegion, cluster_rows};
pub use sliced::with_work_on_slices;
pub use specialize::Symbols;
pub use sums::with_reductions_in_turn;
pub use term::check_view;
pub use term::{check_stored, check_term, show_number, show_term};
pub use wide::with_own_wide_values;
