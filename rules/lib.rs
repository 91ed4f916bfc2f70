//! The standard library of Hypatia, embedded: every `.hyp` file of this folder.

/// Module name and text of each file, in the order in which they build on each other.
pub const FILES: &[(&str, &str)] = &[
    ("core", include_str!("core.hyp")),
    ("nn", include_str!("nn.hyp")),
    ("onnx", include_str!("onnx.hyp")),
    ("fuse", include_str!("fuse.hyp")),
    ("views", include_str!("views.hyp")),
    ("simplify", include_str!("simplify.hyp")),
    ("norm", include_str!("norm.hyp")),
    ("merge", include_str!("merge.hyp")),
    ("rotary", include_str!("rotary.hyp")),
    ("attention", include_str!("attention.hyp")),
    ("conv", include_str!("conv.hyp")),
    ("train", include_str!("train.hyp")),
    ("short", include_str!("short.hyp")),
];
