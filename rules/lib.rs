//! The standard library of Hypatia, embedded: every `.hyp` file of this folder.

/// Module name and text of each file, in the order in which they build on each other.
pub const FILES: &[(&str, &str)] = &[
    ("core", include_str!("core.hyp")),
    ("nn", include_str!("nn.hyp")),
    ("onnx", include_str!("onnx.hyp")),
    ("fuse", include_str!("fuse.hyp")),
];
