//! Writes the Rust messages of ONNX:
//! `cargo run -- path/to/onnx.proto ../../runtime/onnx/src/import/onnx/proto.rs`
//!
//! The `.proto` file comes with the Python package:
//! `python -c "import onnx; print(onnx.__path__)"`. Its comments are left out: they are the ONNX
//! specification, which can be read there.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(input), Some(output)) = (args.next(), args.next()) else {
        return Err("usage: onnx-proto ONNX.PROTO OUTPUT.RS".into());
    };
    let folder = input.parent().map(PathBuf::from).unwrap_or_default();
    let mut descriptors = protox::compile([&input], [&folder])?;
    for file in &mut descriptors.file {
        file.source_code_info = None;
    }
    let temporary = std::env::temp_dir().join(format!("onnx-proto-{}", std::process::id()));
    std::fs::create_dir_all(&temporary)?;
    prost_build::Config::new()
        .out_dir(&temporary)
        // Shared with the file's buffer instead of copied: weights are most of a model.
        .bytes([".onnx.TensorProto.raw_data"])
        .compile_fds(descriptors)?;
    let text = std::fs::read_to_string(temporary.join("onnx.rs"))?;
    let head = "//! The messages of an ONNX file, generated from `onnx.proto` by `tools/onnx-proto`. Do not edit.\n\
                #![allow(missing_docs, clippy::all)]\n\n";
    std::fs::write(&output, format!("{head}{text}"))?;
    std::fs::remove_dir_all(&temporary)?;
    Ok(())
}
