//! The repository's models, and what damaged ones give.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use hypatia_dsl::ir::Program;

use super::{Options, load_with};

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models")
}

fn program() -> Arc<Program> {
    static PROGRAM: LazyLock<Arc<Program>> = LazyLock::new(|| crate::library::load(&[]).unwrap());
    PROGRAM.clone()
}

#[test]
fn models_import() {
    for name in ["digits", "ffn", "bert"] {
        let import = load_with(&models().join(name).join("model.onnx"), program(), &Options::default())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(!import.graph.nodes.is_empty(), "{name}");
    }
}
