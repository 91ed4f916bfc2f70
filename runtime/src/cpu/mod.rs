//! See the submodules.
