//! `.npz` files: numpy's archives of named tensors.
//!
//! In and out: names with [`Tensor`]s, in the file's order. Arrays may be stored or deflated, in C
//! or Fortran order, of either byte order. numpy has no bfloat16: like its `ml_dtypes` extension,
//! this module writes it as two opaque bytes (`<V2`) and reads such arrays as bfloat16. Invariant:
//! the size that an entry claims is compared with the size that it can hold before anything is
//! allocated; an error names the file and the entry.

use std::io::{Read, Seek, Write};
use std::path::Path;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::source::open_regular;
use zip::result::ZipError;

use crate::error::{Error, Result};
use crate::file;
use crate::tensor::Tensor;

/// Maximum header size of an array; no valid header is longer.
const LONGEST_HEADER: usize = 64 << 10;

/// Maximum length of a name: with `.npy`, what an archive can hold.
const LONGEST_NAME: usize = u16::MAX as usize - 4;

/// Deflated arrays larger than this may be at most [`RATIO`] times their compressed size.
const SUSPICIOUS: u64 = 256 << 20;
const RATIO: u64 = 100;

/// Reads all arrays of a file.
pub fn read(path: &Path) -> Result<Vec<(String, Tensor)>> {
    let io = |source| Error::Io { path: path.to_path_buf(), source };
    let file = open_regular(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::InvalidInput => Error::Input(format!("{}: {e}; give an .npz file", path.display())),
        _ => io(e),
    })?;
    read_from(std::io::BufReader::new(file)).map_err(|m| Error::Input(format!("{}: {m}", path.display())))
}

/// Reads all arrays of an archive; the error is a message.
pub fn read_from<R: Read + Seek>(mut reader: R) -> Result<Vec<(String, Tensor)>, String> {
    let mut start = [0u8; 6];
    if reader.read_exact(&mut start).is_ok() && &start == b"\x93NUMPY" {
        return Err("this is one array (.npy); save it under its name: np.savez(\"FILE.npz\", NAME=array)".into());
    }
    reader.rewind().map_err(|e| format!("it could not be read ({e})"))?;
    let open = |reader| {
        zip::ZipArchive::new(reader).map_err(|e| match e {
            ZipError::Io(e) => format!("it could not be read ({e})"),
            e => format!("this is not an .npz file, or it is damaged ({e})"),
        })
    };
    // If several entries have the same name, the archive silently keeps the last.
    let archive = open(reader)?;
    let start = archive.central_directory_start();
    let mut reader = archive.into_inner();
    if let Some(name) = listed_twice(&mut reader, start).map_err(|e| format!("it could not be read ({e})"))? {
        return Err(format!("`{}` occurs twice", name.strip_suffix(".npy").unwrap_or(&name)));
    }
    let mut archive = open(reader)?;
    let mut out: Vec<(String, Tensor)> = Vec::new();
    for i in 0..archive.len() {
        let mut entry = archive.by_index(i).map_err(|e| format!("entry {i}: {e}"))?;
        let file = String::from_utf8_lossy(entry.name_raw()).into_owned();
        if entry.is_dir() {
            continue;
        }
        let name = file.strip_suffix(".npy").unwrap_or(&file).to_string();
        if out.iter().any(|(n, _)| *n == name) {
            return Err(format!("`{name}` occurs twice"));
        }
        let (size, packed) = (entry.size(), entry.compressed_size());
        if size > SUSPICIOUS && size / RATIO > packed {
            return Err(format!(
                "`{name}`: {packed} bytes unpack to {size}, which is refused; save without compression"
            ));
        }
        let tensor = array(&mut entry, size).map_err(|m| format!("`{name}`: {m}"))?;
        out.push((name, tensor));
    }
    Ok(out)
}

/// A name that occurs twice in the archive's directory, which begins at `start`.
fn listed_twice<R: Read + Seek>(reader: &mut R, start: u64) -> std::io::Result<Option<String>> {
    reader.seek(std::io::SeekFrom::Start(start))?;
    let mut seen = std::collections::HashSet::new();
    let mut entry = [0u8; 46];
    // Each entry begins with the same four bytes; what follows the last entry does not.
    while reader.read_exact(&mut entry).is_ok() && entry.starts_with(b"PK\x01\x02") {
        let length = |at: usize| u64::from(u16::from_le_bytes([entry[at], entry[at + 1]]));
        let mut name = Vec::new();
        reader.by_ref().take(length(28)).read_to_end(&mut name)?;
        reader.seek_relative((length(30) + length(32)) as i64)?;
        let name = String::from_utf8_lossy(&name).into_owned();
        if !seen.insert(name.clone()) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Writes arrays uncompressed, as [`file::write`] does: the file appears whole or not at all.
///
/// # Errors
/// If a name cannot be that of an entry, or if writing fails.
pub fn write(path: &Path, tensors: &[(String, Tensor)]) -> Result<()> {
    check_names(tensors.iter().map(|(name, _)| name.as_str()))?;
    file::write(path, |out| write_to(out, tensors))
}

/// Fails if one of the names cannot be that of an entry. Programs that unpack the archive make
/// files of these names: no name may lead out of their folder.
pub fn check_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<()> {
    for name in names {
        let wrong = if name.split(['/', '\\']).any(|part| part == "..") {
            "contains `..`"
        } else if name.chars().any(char::is_control) {
            "contains a control character"
        } else if name.len() > LONGEST_NAME {
            "is too long"
        } else {
            continue;
        };
        let shown: String = name.chars().take(100).collect();
        return Err(Error::Input(format!(
            "{shown:?} cannot be the name of an array in an .npz file, because it {wrong}: rename the output in the \
             model"
        )));
    }
    Ok(())
}

/// Writes arrays as an archive.
pub fn write_to<W: Write + Seek>(out: W, tensors: &[(String, Tensor)]) -> std::io::Result<()> {
    let mut archive = zip::ZipWriter::new(out);
    for (name, tensor) in tensors {
        let options = zip::write::SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Stored)
            .large_file(tensor.bytes().len() >= u32::MAX as usize - LONGEST_HEADER);
        archive.start_file(format!("{name}.npy"), options).map_err(std::io::Error::from)?;
        archive.write_all(&header(tensor))?;
        archive.write_all(tensor.bytes())?;
    }
    archive.finish().map_err(std::io::Error::from)?;
    Ok(())
}

/// numpy's little-endian code of an element type, as it writes those of `ml_dtypes` too.
fn code(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "<f8",
        DType::F32 => "<f4",
        DType::F16 => "<f2",
        DType::BF16 => "<V2",
        DType::F8E4M3 => "<V1",
        DType::F8E5M2 => "<f1",
        DType::I64 => "<i8",
        DType::I32 => "<i4",
        DType::I8 => "|i1",
        DType::U8 => "|u1",
        DType::Bool => "|b1",
    }
}

/// Magic, version 1.0, and the dictionary, padded so that the data is aligned to 64 bytes.
fn header(tensor: &Tensor) -> Vec<u8> {
    let dims: Vec<String> = tensor.shape().iter().map(usize::to_string).collect();
    let comma = if dims.len() == 1 { "," } else { "" };
    let mut text = format!(
        "{{'descr': '{}', 'fortran_order': False, 'shape': ({}{comma}), }}",
        code(tensor.dtype()),
        dims.join(", ")
    );
    while (10 + text.len() + 1) % 64 != 0 {
        text.push(' ');
    }
    text.push('\n');
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend((text.len() as u16).to_le_bytes());
    out.extend(text.as_bytes());
    out
}

/// The content of an array's dictionary.
#[derive(Debug, PartialEq)]
struct Header {
    descr: String,
    fortran: bool,
    shape: Vec<usize>,
}

/// One `.npy` stream of `size` bytes.
fn array(reader: &mut impl Read, size: u64) -> Result<Tensor, String> {
    let cut = |e: std::io::Error| format!("the array is damaged or cut short ({e})");
    let mut fixed = [0u8; 8];
    reader.read_exact(&mut fixed).map_err(cut)?;
    if &fixed[..6] != b"\x93NUMPY" {
        return Err("this is not a numpy array".into());
    }
    let (prefix, length) = match fixed[6] {
        1 => {
            let mut b = [0u8; 2];
            reader.read_exact(&mut b).map_err(cut)?;
            (10, usize::from(u16::from_le_bytes(b)))
        }
        2 | 3 => {
            let mut b = [0u8; 4];
            reader.read_exact(&mut b).map_err(cut)?;
            (12, u32::from_le_bytes(b) as usize)
        }
        v => return Err(format!("version {v} of numpy's format is unknown")),
    };
    if length > LONGEST_HEADER {
        return Err(format!("its header of {length} bytes is too long"));
    }
    let mut text = vec![0u8; length];
    reader.read_exact(&mut text).map_err(cut)?;
    let text = String::from_utf8(text).map_err(|_| "its header is not UTF-8 text")?;
    let header = parse(&text)?;
    let (dtype, swap) = element(&header.descr)?;
    let bytes = header
        .shape
        .iter()
        .try_fold(dtype.size(), |a, d| a.checked_mul(*d))
        .ok_or_else(|| format!("the shape {:?} is too large", header.shape))?;
    let there = size.saturating_sub((prefix + length) as u64);
    if bytes as u64 != there {
        return Err(format!("{dtype} of shape {:?} needs {bytes} bytes, but there are {there}", header.shape));
    }
    let mut data = Vec::new();
    // The vector grows with the data read, not with the claimed size.
    let read = reader.take(bytes as u64).read_to_end(&mut data).map_err(cut)?;
    if read != bytes {
        return Err(format!("{bytes} bytes expected, but only {read} found"));
    }
    if swap {
        data.chunks_exact_mut(dtype.size()).for_each(<[u8]>::reverse);
    }
    if header.fortran {
        data = from_fortran(&data, &header.shape, dtype.size());
    }
    Tensor::from_bytes(dtype, &header.shape, &data).ok_or_else(|| "a bool is neither 0 nor 1".into())
}

/// The element type of a numpy code, and whether the bytes must be swapped.
fn element(descr: &str) -> Result<(DType, bool), String> {
    let (order, rest) = match descr.as_bytes().first() {
        Some(b'<' | b'>' | b'=' | b'|') => descr.split_at(1),
        _ => ("|", descr),
    };
    let dtype = match rest {
        "f8" => DType::F64,
        "f4" => DType::F32,
        "f2" => DType::F16,
        "V2" => DType::BF16,
        "V1" => DType::F8E4M3,
        "f1" => DType::F8E5M2,
        "i8" => DType::I64,
        "i4" => DType::I32,
        "i1" => DType::I8,
        "u1" => DType::U8,
        "b1" => DType::Bool,
        _ => {
            return Err(format!(
                "element type `{descr}` is not supported (float64, float32, float16, bfloat16 as two raw bytes, \
                 float8_e4m3fn and float8_e5m2 of ml_dtypes, int64, int32, int8, uint8 and bool are); convert it \
                 with `astype`"
            ));
        }
    };
    Ok((dtype, order == ">" && dtype.size() > 1))
}

/// Reorders column-major elements to row-major.
fn from_fortran(data: &[u8], shape: &[usize], size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len());
    let mut index = vec![0usize; shape.len()];
    for _ in 0..data.len() / size {
        let at = index.iter().zip(shape).rev().fold(0, |acc, (i, d)| acc * d + i);
        out.extend_from_slice(&data[at * size..(at + 1) * size]);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    out
}

/// Reads `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`.
fn parse(text: &str) -> Result<Header, String> {
    let bad = |what: &str| format!("its header {what}: {}", text.trim().chars().take(100).collect::<String>());
    let body =
        text.trim().strip_prefix('{').and_then(|t| t.strip_suffix('}')).ok_or_else(|| bad("is not a dictionary"))?;
    let (mut descr, mut fortran, mut shape) = (None, None, None);
    let mut rest = body.trim();
    while !rest.is_empty() {
        let (key, after) = quoted(rest).ok_or_else(|| bad("has a key that is not a string"))?;
        rest = after.trim_start().strip_prefix(':').ok_or_else(|| bad("has no colon"))?.trim_start();
        match key {
            "descr" => {
                let (value, after) = quoted(rest).ok_or_else(|| bad("has a structured element type"))?;
                descr = Some(value.to_string());
                rest = after;
            }
            "fortran_order" => {
                let (value, after) = rest.split_at(rest.find([',', '}']).unwrap_or(rest.len()));
                fortran = match value.trim() {
                    "True" => Some(true),
                    "False" => Some(false),
                    _ => return Err(bad("has a `fortran_order` that is neither True nor False")),
                };
                rest = after;
            }
            "shape" => {
                let inner = rest.strip_prefix('(').ok_or_else(|| bad("has a shape that is not a tuple"))?;
                let (inner, after) = inner.split_once(')').ok_or_else(|| bad("has a shape that does not end"))?;
                let sizes = inner.split(',').map(str::trim).filter(|s| !s.is_empty());
                let sizes = sizes.map(|s| s.trim_end_matches('L').parse::<usize>());
                shape = Some(sizes.collect::<Result<Vec<_>, _>>().map_err(|_| bad("has a size that is not a number"))?);
                rest = after;
            }
            _ => return Err(bad("has an unknown key")),
        }
        rest = rest.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    match (descr, fortran, shape) {
        (Some(descr), Some(fortran), Some(shape)) => Ok(Header { descr, fortran, shape }),
        _ => Err(bad("lacks descr, fortran_order or shape")),
    }
}

/// A quoted string, and the text after it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| ['\'', '"'].contains(c))?;
    text[1..].split_once(quote)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Cursor;

    fn pack(tensors: &[(String, Tensor)]) -> Vec<u8> {
        let mut out = Cursor::new(Vec::new());
        write_to(&mut out, tensors).unwrap();
        out.into_inner()
    }

    /// An archive with one entry of these bytes.
    fn raw(bytes: &[u8], deflate: bool) -> Vec<u8> {
        let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
        let method = if deflate { zip::CompressionMethod::Deflated } else { zip::CompressionMethod::Stored };
        let options = zip::write::SimpleFileOptions::default().compression_method(method);
        archive.start_file("x.npy", options).unwrap();
        archive.write_all(bytes).unwrap();
        archive.finish().unwrap().into_inner()
    }

    fn npy(dict: &str, data: &[u8]) -> Vec<u8> {
        let mut out = b"\x93NUMPY\x01\x00".to_vec();
        out.extend((dict.len() as u16).to_le_bytes());
        out.extend(dict.as_bytes());
        out.extend(data);
        out
    }

    #[test]
    fn one_array_alone_is_told_from_damage() {
        let e = read_from(Cursor::new(npy("{}", &[]))).unwrap_err();
        assert!(e.contains("np.savez"), "{e}");
    }

    fn one(bytes: &[u8]) -> Result<Tensor, String> {
        read_from(Cursor::new(bytes)).map(|mut v| v.remove(0).1)
    }

    #[test]
    fn a_name_that_comes_twice_is_refused() {
        let one = Tensor::from_f64(DType::F32, &[1], &[1.0]).unwrap();
        let mut bytes = pack(&[("first".into(), one.clone()), ("other".into(), one)]);
        assert_eq!(read_from(Cursor::new(&bytes)).unwrap().len(), 2);
        for at in 0..bytes.len() - 5 {
            if &bytes[at..at + 5] == b"other" {
                bytes[at..at + 5].copy_from_slice(b"first");
            }
        }
        assert_eq!(read_from(Cursor::new(&bytes)).unwrap_err(), "`first` occurs twice");
    }

    #[test]
    fn names_that_lead_out_of_a_folder_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let one = Tensor::from_f64(DType::F32, &[1], &[1.0]).unwrap();
        let file = folder.path().join("out.npz");
        let put = |name: &str| write(&file, &[(name.to_string(), one.clone())]);
        for good in ["y", "/model/Add_output_0", "a..b", "..c", "größe", "a\\b", ""] {
            put(good).unwrap();
            assert_eq!(read(&file).unwrap()[0].0, good);
        }
        let long = "n".repeat(LONGEST_NAME + 1);
        for (bad, says) in [
            ("../y", "`..`"),
            ("a/../../y", "`..`"),
            ("..\\y", "`..`"),
            ("..", "`..`"),
            ("y\0z", "control"),
            ("y\n", "control"),
            (&long, "too long"),
        ] {
            let error = put(bad).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("rename the output"), "{error}");
        }
        assert_eq!(read(&file).unwrap()[0].0, "", "a refused name leaves the file as it was");
    }

    #[test]
    fn every_dtype_and_shape_round_trips() {
        let mut tensors = Vec::new();
        for dtype in DType::ALL {
            for shape in [&[][..], &[0], &[3], &[2, 3], &[1, 0, 2]] {
                let len: usize = shape.iter().product();
                let values: Vec<f64> = (0..len).map(|i| (i % 2) as f64).collect();
                let name = format!("{dtype}/{shape:?}");
                tensors.push((name, Tensor::from_f64(dtype, shape, &values).unwrap()));
            }
        }
        let back = read_from(Cursor::new(pack(&tensors))).unwrap();
        assert_eq!(back.len(), tensors.len());
        for ((n, t), (m, u)) in tensors.iter().zip(&back) {
            assert_eq!((n, t.dtype(), t.shape(), t.bytes()), (m, u.dtype(), u.shape(), u.bytes()));
        }
    }

    #[test]
    fn reads_what_numpy_may_write() {
        let c = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n";
        let data: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        for deflate in [false, true] {
            assert_eq!(one(&raw(&npy(c, &data), deflate)).unwrap().to_f64(), [1.5, -2.0]);
        }
        let big: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|v| v.to_be_bytes()).collect();
        let dict = c.replace('<', ">");
        assert_eq!(one(&raw(&npy(&dict, &big), false)).unwrap().to_f64(), [1.5, -2.0]);
        // [[0, 1, 2], [3, 4, 5]] in Fortran order is 0 3 1 4 2 5.
        let dict = "{'descr': '|i1', 'fortran_order': True, 'shape': (2, 3)}";
        assert_eq!(one(&raw(&npy(dict, &[0, 3, 1, 4, 2, 5]), true)).unwrap().to_f64(), [0., 1., 2., 3., 4., 5.]);
        let dict = "{\"shape\": (), \"descr\": \"<i8\", \"fortran_order\": False}";
        assert_eq!(one(&raw(&npy(dict, &7i64.to_le_bytes()), false)).unwrap().to_f64(), [7.0]);
    }

    #[test]
    fn bad_files_are_told_of_with_the_entry() {
        let dict = |d: &str, s: &str| format!("{{'descr': '{d}', 'fortran_order': False, 'shape': {s}}}");
        for (bytes, says) in [
            (npy(&dict("<f4", "(3,)"), &[0; 8]), "needs 12 bytes, but there are 8"),
            (npy(&dict("<f4", "(999999999999,)"), &[0; 8]), "needs 3999999999996 bytes"),
            (npy(&dict("<f4", "(4294967296, 4294967296)"), &[0; 8]), "too large"),
            (npy(&dict("<f4", "(-1,)"), &[0; 8]), "not a number"),
            (npy(&dict("<u2", "(4,)"), &[0; 8]), "convert it with `astype`"),
            (npy(&dict("|O", "(1,)"), &[0; 8]), "not supported"),
            (npy(&dict("|b1", "(2,)"), &[0, 2]), "neither 0 nor 1"),
            (
                npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", &[0; 4]),
                "structured element type",
            ),
            (b"\x93NUMPY\x09\x00".to_vec(), "version 9"),
            (b"\x93NUMPY\x02\x00\xff\xff\xff\xff".to_vec(), "too long"),
            (b"hello".to_vec(), "cut short"),
        ] {
            let error = one(&raw(&bytes, false)).unwrap_err();
            assert!(error.starts_with("`x`: ") && error.contains(says), "{error}");
        }
        assert!(one(b"no zip at all").is_err());
    }

    #[test]
    fn a_bomb_is_refused() {
        let size = SUSPICIOUS as usize + 1;
        let mut bytes = npy(&format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({size},)}}"), &[]);
        bytes.resize(bytes.len() + size, 0);
        assert!(one(&raw(&bytes, true)).unwrap_err().contains("save without compression"));
    }

    #[test]
    fn cut_and_flipped_files_never_panic() {
        use rand::{Rng, SeedableRng};
        let t = Tensor::from_f64(DType::F32, &[5, 4], &[1.0; 20]).unwrap();
        let good = pack(&[("a".into(), t.clone()), ("b".into(), t)]);
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
        for cut in 0..good.len() {
            let _ = read_from(Cursor::new(&good[..cut]));
        }
        for _ in 0..3000 {
            let mut bad = good.clone();
            for _ in 0..rng.random_range(1..4) {
                let at = rng.random_range(0..bad.len());
                bad[at] ^= 1 << rng.random_range(0..8);
            }
            let _ = read_from(Cursor::new(&bad));
        }
    }
}
