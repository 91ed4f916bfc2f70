//! The kernel templates of Hypatia, embedded: every `.cu.j2` file of this folder.

/// Name and text of each template.
pub const TEMPLATES: &[(&str, &str)] = &[];
