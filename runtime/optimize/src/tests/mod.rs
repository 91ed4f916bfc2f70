//! Tests of the optimiser's invariants, on graphs built in code.
#![allow(clippy::unwrap_used)]

mod adapter;
mod applied;
mod fates;
mod handmade;
mod incremental;
mod index;
mod kernels;
mod laws;
mod library;
mod live;
mod near;
mod regions;
mod savings;
mod sums;
mod work;
