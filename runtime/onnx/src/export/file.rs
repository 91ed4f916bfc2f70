//! Writes models to disk.
//!
//! In: a model, a path. Out: the file, and a second file with the weights if the model would exceed
//! the 2 GiB that a protobuf message may have. Invariant: files are written as
//! [`file::write`] does: each appears whole or not at all.

use std::path::{Path, PathBuf};

use prost::Message;

use crate::import::onnx::proto::tensor_proto::DataLocation;
use crate::import::onnx::proto::{ModelProto, StringStringEntryProto};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::file;

/// Minimum total size of weights that go to a separate file.
const LARGEST: usize = 1 << 30;
/// Smaller weights stay in the model.
const SMALL: usize = 1 << 10;
/// Alignment of weights, so that they can be mapped.
const ALIGNMENT: usize = 4096;

/// Writes a model file, and `NAME.data` beside it if the weights are large. Returns the files that
/// were written.
pub fn write(model: ModelProto, path: &Path) -> Result<Vec<PathBuf>> {
    write_with(model, path, LARGEST)
}

/// Like [`write()`], with another limit.
pub(super) fn write_with(mut model: ModelProto, path: &Path, largest: usize) -> Result<Vec<PathBuf>> {
    let weights = model.graph.iter().flat_map(|g| &g.initializer);
    let total: usize = weights.map(|t| t.raw_data.as_ref().map_or(0, |d| d.len())).sum();
    let mut written = vec![path.to_path_buf()];
    if total > largest {
        if file::is_stream(path) {
            return Err(Error::Limit(format!(
                "{}: the weights have more than {largest} bytes, which go to a second file: give the name of a file",
                path.display()
            )));
        }
        let data = data_path(path)?;
        file::write(&data, |out| external(&mut model, &data, out))?;
        written.push(data);
    }
    if model.encoded_len() > i32::MAX as usize {
        return Err(Error::Limit(format!(
            "{}: the model is larger than 2 GiB even without its weights",
            path.display()
        )));
    }
    file::write(path, |out| out.write_all(&model.encode_to_vec()))?;
    Ok(written)
}

/// `model.onnx.data`
fn data_path(path: &Path) -> Result<PathBuf> {
    let mut name = path
        .file_name()
        .ok_or_else(|| Error::Input(format!("{}: this is not the name of a file", path.display())))?
        .to_os_string();
    name.push(".data");
    Ok(path.with_file_name(name))
}

/// Moves large weights out of the model.
fn external(model: &mut ModelProto, data: &Path, out: &mut dyn file::Sink) -> std::io::Result<()> {
    let location = data.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let mut offset = 0usize;
    for t in model.graph.iter_mut().flat_map(|g| &mut g.initializer) {
        let Some(raw) = t.raw_data.take_if(|d| d.len() >= SMALL) else { continue };
        let start = offset.next_multiple_of(ALIGNMENT);
        out.write_all(&vec![0; start - offset])?;
        out.write_all(&raw)?;
        offset = start + raw.len();
        let entry = |key: &str, value: String| StringStringEntryProto { key: Some(key.into()), value: Some(value) };
        t.external_data = vec![
            entry("location", location.clone()),
            entry("offset", start.to_string()),
            entry("length", raw.len().to_string()),
        ];
        t.data_location = Some(DataLocation::External as i32);
    }
    Ok(())
}
