//! Reads and decodes ONNX files, with the checks that precede any use.
//!
//! In: a path or bytes. Out: a [`proto::ModelProto`] whose weights share the file's buffer.
//! Invariant: the decoded size of a file is estimated (see [`weigh`]) before it is decoded, so
//! decoding cannot ask for much more memory than the file's size.

#[allow(missing_docs)]
pub mod proto;
mod weigh;

use std::io::Read;
use std::path::Path;

use hypatia_dsl::source::open_regular;
use prost::Message;
use prost::bytes::Bytes;

use hypatia_tensor::error::{Error, Result};

/// Minimum size of a file that is mapped instead of read.
const MAP_FROM: u64 = 16 << 20;

/// Maximum size of a protobuf message.
const LARGEST: u64 = i32::MAX as u64;

/// Reads and decodes a model file.
pub fn read(path: &Path) -> Result<proto::ModelProto> {
    let io = |source| Error::Io { path: path.to_path_buf(), source };
    let damaged = |message: &str| Error::Model { file: path.display().to_string(), message: message.into() };
    let mut file = open_regular(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::InvalidInput => damaged("this is not a file; give the path of an .onnx file"),
        _ => io(e),
    })?;
    let length = file.metadata().map_err(io)?.len();
    if length > LARGEST {
        return Err(damaged(
            "the file is larger than 2 GiB, which ONNX does not allow; save the weights as external data",
        ));
    }
    let bytes = if length < MAP_FROM {
        let mut bytes = Vec::with_capacity(length as usize);
        file.by_ref().take(MAP_FROM).read_to_end(&mut bytes).map_err(io)?;
        Bytes::from(bytes)
    } else {
        // SAFETY: the map is private to this process and only read. Another process may still
        // change the file meanwhile: then the import reads other bytes (each use checks what it
        // reads) or is stopped by the system, as for every mapped file.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
        Bytes::from_owner(map)
    };
    decode(bytes, &path.display().to_string())
}

/// The other file format that these bytes begin, if it is recognised.
fn other_format(bytes: &[u8]) -> Option<&'static str> {
    let known: [(&[u8], &str); 3] = [
        (b"PK\x03\x04", "a zip archive, such as an .npz file of arrays (pass those with --inputs) or a PyTorch file"),
        (b"\x93NUMPY", "an .npy file, an array"),
        (b"\x89HDF\r\n", "an HDF5 file"),
    ];
    known.iter().find(|(start, _)| bytes.starts_with(start)).map(|(_, what)| *what)
}

/// Decodes a model from bytes; `file` is for messages.
pub fn decode(bytes: Bytes, file: &str) -> Result<proto::ModelProto> {
    let damaged = |message: String| Error::Model { file: file.into(), message };
    if bytes.is_empty() {
        return Err(damaged("the file is empty; an ONNX model was expected".into()));
    }
    if let Some(what) = other_format(&bytes) {
        return Err(damaged(format!("this is {what}, not an ONNX model")));
    }
    weigh::check(&bytes).map_err(damaged)?;
    let model = proto::ModelProto::decode(bytes)
        .map_err(|e| damaged(format!("this is not an ONNX model, or it is damaged ({e})")))?;
    if model.graph.is_none() {
        return Err(damaged("this is not an ONNX model: it contains no graph".into()));
    }
    Ok(model)
}
