//! ONNX files as messages: reading, decoding, and the checks that come before any use.
//!
//! In: a path or bytes. Out: a [`proto::ModelProto`] whose weights share the file's buffer. Holds
//! always: a file is weighed (see [`weigh`]) before it is decoded, so that decoding cannot ask for
//! much more memory than the file's size.

#[allow(missing_docs)]
pub mod proto;
mod weigh;

use std::path::Path;

use prost::Message;
use prost::bytes::Bytes;

use crate::error::{Error, Result};

/// Files from this size on are mapped, not read.
const MAP_FROM: u64 = 16 << 20;

/// A protobuf message cannot be larger.
const LARGEST: u64 = i32::MAX as u64;

/// Reads and decodes a model file.
pub fn read(path: &Path) -> Result<proto::ModelProto> {
    let io = |source| Error::Io { path: path.to_path_buf(), source };
    let meta = std::fs::metadata(path).map_err(io)?;
    let damaged = |message: &str| Error::Model { file: path.display().to_string(), message: message.into() };
    if !meta.is_file() {
        return Err(damaged("this is not a file; give the path of an .onnx file"));
    }
    if meta.len() > LARGEST {
        return Err(damaged(
            "the file is larger than 2 GiB, which ONNX does not allow; save the weights as external data",
        ));
    }
    let bytes = if meta.len() < MAP_FROM {
        Bytes::from(std::fs::read(path).map_err(io)?)
    } else {
        let file = std::fs::File::open(path).map_err(io)?;
        // SAFETY: the map is private to this process and only read. What remains is that another
        // process may change the file meanwhile: then the import reads other bytes (each use checks
        // what it reads) or is stopped by the system, as for every mapped file.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
        Bytes::from_owner(map)
    };
    decode(bytes, &path.display().to_string())
}

/// Decodes a model from bytes; `file` is for messages.
pub fn decode(bytes: Bytes, file: &str) -> Result<proto::ModelProto> {
    let damaged = |message: String| Error::Model { file: file.into(), message };
    if bytes.is_empty() {
        return Err(damaged("the file is empty; an ONNX model was expected".into()));
    }
    weigh::check(&bytes).map_err(damaged)?;
    let model = proto::ModelProto::decode(bytes)
        .map_err(|e| damaged(format!("this is not an ONNX model, or it is damaged ({e})")))?;
    if model.graph.is_none() {
        return Err(damaged("this is not an ONNX model: it holds no graph".into()));
    }
    Ok(model)
}
