//! Weights from safetensors files.
//!
//! In: a `.safetensors` file. Out: tensors by name. Invariant: the file is memory-mapped, and a
//! tensor is copied out of it on request; the header was checked against the file's length, so that
//! no tensor is out of bounds.

use std::path::{Path, PathBuf};

use hypatia_dsl::dtype::DType;
use hypatia_dsl::source::open_regular;
use hypatia_dsl::spell::closest;
use safetensors::SafeTensors;
use safetensors::tensor::Metadata;

use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// An open file of weights.
///
/// ```no_run
/// use std::path::Path;
/// let weights = hypatia::weights::Weights::open(Path::new("model.safetensors"))?;
/// let w = weights.tensor("encoder.layer.0.output.dense.weight")?;
/// println!("{:?}", w.shape());
/// # Ok::<(), hypatia::Error>(())
/// ```
pub struct Weights {
    path: PathBuf,
    map: memmap2::Mmap,
    /// Offset of the first tensor.
    start: usize,
    header: Metadata,
}

impl Weights {
    /// Opens a file and checks its header.
    pub fn open(path: &Path) -> Result<Weights> {
        let io = |source| Error::Io { path: path.to_path_buf(), source };
        let file = open_regular(path).map_err(io)?;
        // SAFETY: the map is private to this process and only read. What remains is that another
        // process may change the file meanwhile: then other numbers are read, or the system stops
        // this process, as for every mapped file.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
        let (length, header) = SafeTensors::read_metadata(&map).map_err(|e| Error::Model {
            file: path.display().to_string(),
            message: format!("this is not a safetensors file, or it is damaged: {e}"),
        })?;
        // The first eight bytes are the header's length.
        Ok(Weights { path: path.to_path_buf(), map, start: length + 8, header })
    }

    /// The names of all tensors.
    pub fn names(&self) -> Vec<String> {
        self.header.offset_keys()
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let damaged = |message: String| Error::Model { file: self.path.display().to_string(), message };
        let info = self.header.info(name).ok_or_else(|| {
            let names = self.names();
            let near = closest(name, names.iter().map(String::as_str));
            let near = near.map_or(String::new(), |n| format!("; did you mean `{n}`?"));
            damaged(format!("there is no tensor `{name}`{near}"))
        })?;
        let dtype = dtype(info.dtype).ok_or_else(|| {
            damaged(format!("tensor `{name}` has elements of type {:?}, which is not supported", info.dtype))
        })?;
        let (from, to) = info.data_offsets;
        let bytes = self.start.checked_add(from).zip(self.start.checked_add(to)).and_then(|(a, b)| self.map.get(a..b));
        bytes
            .and_then(|b| Tensor::from_bytes(dtype, &info.shape, b))
            .ok_or_else(|| damaged(format!("the length of tensor `{name}` does not match its shape {:?}", info.shape)))
    }
}

fn dtype(of: safetensors::Dtype) -> Option<DType> {
    use safetensors::Dtype as S;
    Some(match of {
        S::F64 => DType::F64,
        S::F32 => DType::F32,
        S::F16 => DType::F16,
        S::BF16 => DType::BF16,
        S::F8_E4M3 => DType::F8E4M3,
        S::F8_E5M2 => DType::F8E5M2,
        S::I64 => DType::I64,
        S::I32 => DType::I32,
        S::I8 => DType::I8,
        S::U8 => DType::U8,
        S::BOOL => DType::Bool,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn file(header: &str, data: &[u8]) -> tempfile::NamedTempFile {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    #[test]
    fn tensors_come_out_and_errors_say_what_is_wrong() {
        let header = concat!(
            r#"{"weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"#,
            r#""b":{"dtype":"BF16","shape":[],"data_offsets":[8,10]},"__metadata__":{"format":"pt"}}"#
        );
        let mut data = [1.5f32, -2.0].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        data.extend([0x80, 0x3f]);
        let good = file(header, &data);
        let weights = Weights::open(good.path()).unwrap();
        assert_eq!(weights.tensor("weight").unwrap().to_f64(), [1.5, -2.0]);
        assert_eq!(weights.tensor("b").unwrap().to_f64(), [1.0]);
        assert_eq!(weights.names().len(), 2);
        let e = weights.tensor("wieght").unwrap_err().to_string();
        assert!(e.contains("`wieght`") && e.contains("did you mean `weight`"), "{e}");
        for (header, data) in [(header, &data[..9]), ("{", &data[..]), (&header[..40], &data[..])] {
            let e = Weights::open(file(header, data).path()).err().unwrap().to_string();
            assert!(e.contains("safetensors"), "{e}");
        }
        let empty = tempfile::NamedTempFile::new().unwrap();
        assert!(Weights::open(empty.path()).is_err());
        assert!(Weights::open(Path::new("/nowhere.safetensors")).is_err());
    }
}
