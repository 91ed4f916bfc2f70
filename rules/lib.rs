//! The standard library of Hypatia, embedded: every `.hyp` file of this folder, as text and as a
//! tree.
//!
//! Compilations read the trees; messages quote the texts. The build script makes both tables.

include!(concat!(env!("OUT_DIR"), "/library.rs"));
