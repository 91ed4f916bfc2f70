//! Plans: which kernel computes what, in which order, and where the results are stored.
//!
//! In: a graph on concrete sizes and a device. Out: a [`Plan`] that an executor runs without
//! further decisions. [`build`] runs the stages: [`prepare`] computes everything that does not
//! depend on an input and decides which ops are kept. [`mod@lower`] turns nodes into steps and
//! views, with the kernels that the optimiser listed. [`copies`] removes and merges copies,
//! [`chain`] joins products whose results have one reader, [`prologue`] and [`results`] join a
//! product with work on its factors and on its results, [`short`] puts short functions into
//! generated kernels, and [`arena`] places results in one block of memory.
//!
//! Invariant: a step reads only inputs, constants and results of earlier steps; a view costs
//! nothing; results that are live at the same time do not overlap, except where a step declares
//! that it works in place. [`Plan::validate`] checks all of it.

mod added;
mod arena;
mod beside;
mod buffer;
mod build;
pub mod chain;
mod checked;
mod concat;
mod copies;
mod dense_weights;
mod divided;
mod finish;
mod horizontal;
mod joint_rows;
mod laid_out;
mod long_rows;
mod lower;
mod narrow_weights;
mod options;
mod outside;
mod plan;
mod pool;
mod predict;
mod prepare;
mod print;
mod prologue;
mod reordered;
mod results;
mod rows;
mod short;
mod step;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod validate;
mod view;
mod whole;
mod windows;
mod work;
mod wrapping;

pub use buffer::{ALIGNMENT, Buffer, BufferId, Storage};
pub use divided::{Divided, Parts};
pub use lower::ScanSplit;
pub use options::{Checks, Options};
pub use plan::{Plan, PlanInput, Shortened};
pub use print::{Note, Noted, note};
pub use step::{
    Action, AttentionGradStep, AttentionStep, CallStep, Called, ChainLayer, ConvStep, FactorFrom, FactorTerm,
    FactorWindows, GemmStep, HorizontalPart, HorizontalStep, Pick, PointwiseStep, PoolStep, PrologueStep, RowwiseStep,
    Step, TemplateStep, UnfoldStep,
};
pub use view::{View, collapse, matrix_layout, row_major};
pub use windows::{OnChannels, OnPlanes, rows_and_columns};
pub use work::StepWork;
