//! Estimates the decoded size of a protobuf file before it is decoded.
//!
//! An empty message takes two bytes in a file and hundreds in memory, so a file of a few megabytes
//! could ask for gigabytes. This pass walks the messages without building them, and adds up what
//! they would take.
//!
//! In: the bytes. Out: an error for files that are malformed or too large. Invariant: no
//! allocation, and no recursion deeper than [`DEPTH`].

/// Maximum memory of all messages beyond the file's own size, in bytes.
const BUDGET: u64 = 512 << 20;

/// Maximum nesting of messages; prost allows 100.
const DEPTH: u32 = 64;

/// The message kinds that matter; all others contain no messages, or few.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    Function,
    ValueInfo,
    Type,
    /// A sequence or an optional: a type in field 1.
    Wrapped,
    Map,
    TensorType,
    Shape,
    Other,
}

/// Adds up the decoded size of a file.
pub fn check(bytes: &[u8]) -> Result<(), String> {
    let mut used = 0u64;
    walk(bytes, Kind::Model, 0, &mut used)
}

/// The kind of the message in a field, if the field holds one.
fn child(kind: Kind, field: u64) -> Option<Kind> {
    Some(match (kind, field) {
        (Kind::Model, 7) => Kind::Graph,
        (Kind::Model, 25) => Kind::Function,
        (Kind::Model, 8 | 14 | 20 | 26) => Kind::Other,
        (Kind::Graph | Kind::Function, 1 | 7) if (kind == Kind::Graph) == (field == 1) => Kind::Node,
        (Kind::Graph, 5) => Kind::Tensor,
        (Kind::Graph, 11..=13) | (Kind::Function, 12) => Kind::ValueInfo,
        (Kind::Graph, 14..=16) | (Kind::Function, 9 | 14) => Kind::Other,
        (Kind::Function, 11) | (Kind::Node, 5) => Kind::Attribute,
        (Kind::Node, 9 | 10) => Kind::Other,
        (Kind::Attribute, 5 | 10) => Kind::Tensor,
        (Kind::Attribute, 6 | 11) => Kind::Graph,
        (Kind::Attribute, 14 | 15) => Kind::Type,
        (Kind::Attribute, 22 | 23) => Kind::Other,
        (Kind::Tensor, 3 | 13 | 16) => Kind::Other,
        (Kind::ValueInfo, 2) => Kind::Type,
        (Kind::ValueInfo, 4) => Kind::Other,
        (Kind::Type, 1 | 8) => Kind::TensorType,
        (Kind::Type, 4 | 9) => Kind::Wrapped,
        (Kind::Type, 5) => Kind::Map,
        (Kind::Type, 7) => Kind::Other,
        (Kind::Wrapped, 1) | (Kind::Map, 2) => Kind::Type,
        (Kind::TensorType, 2) => Kind::Shape,
        (Kind::Shape, 1) => Kind::Other,
        _ => return None,
    })
}

/// Approximate memory of one message of a kind, with the slack of growing vectors.
fn size(kind: Kind) -> u64 {
    match kind {
        Kind::Attribute => 1200,
        Kind::Graph | Kind::Tensor | Kind::Function | Kind::Model => 700,
        Kind::Node => 500,
        _ => 250,
    }
}

fn walk(mut bytes: &[u8], kind: Kind, depth: u32, used: &mut u64) -> Result<(), String> {
    if depth > DEPTH {
        return Err("damaged: messages are nested too deeply".into());
    }
    while !bytes.is_empty() {
        let tag = varint(&mut bytes).ok_or("this is not an ONNX model, or it is cut short")?;
        let (field, wire) = (tag >> 3, tag & 7);
        let cut = || format!("this is not an ONNX model, or it is cut short (field {field} has no end)");
        match wire {
            // A number takes at most 8 bytes of a vector that grows by doubling.
            0 => {
                varint(&mut bytes).ok_or_else(cut)?;
                *used += 16;
            }
            1 => bytes = bytes.get(8..).ok_or_else(cut)?,
            5 => bytes = bytes.get(4..).ok_or_else(cut)?,
            2 => {
                let len = varint(&mut bytes).ok_or_else(cut)?;
                let len = usize::try_from(len).ok().filter(|l| *l <= bytes.len()).ok_or_else(cut)?;
                let (inside, rest) = bytes.split_at(len);
                bytes = rest;
                match child(kind, field) {
                    Some(inner) => {
                        *used += size(inner);
                        walk(inside, inner, depth + 1, used)?;
                    }
                    // Packed varints of tensors (int32_data, int64_data, uint64_data): up to 8
                    // bytes per byte.
                    None if kind == Kind::Tensor && matches!(field, 1 | 5 | 7 | 11) => *used += 8 * len as u64,
                    // raw_data is shared; everything else is copied, with a string header.
                    None if kind == Kind::Tensor && field == 9 => {}
                    None => *used += 48 + len as u64,
                }
            }
            _ => return Err(format!("this is not an ONNX model (field {field} has wire type {wire})")),
        }
        if *used > BUDGET {
            return Err(format!(
                "damaged or absurd: the model's description (weights apart) would take more than {} MiB; \
                 store weights as raw or external data",
                BUDGET >> 20
            ));
        }
    }
    Ok(())
}

/// A varint: a base-128 number of at most ten bytes.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for i in 0..10 {
        let byte = *bytes.get(i)?;
        value |= u64::from(byte & 0x7f).checked_shl(7 * i as u32).unwrap_or(0);
        if byte < 0x80 {
            *bytes = &bytes[i + 1..];
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_and_cut_files_are_refused() {
        // A graph of two million empty nodes: 4 MB in the file, a gigabyte in memory.
        let nodes: Vec<u8> = [0x0a, 0x00].repeat(2_000_000);
        let mut file = vec![0x3a];
        let mut n = nodes.len();
        while n >= 0x80 {
            file.push(n as u8 & 0x7f | 0x80);
            n >>= 7;
        }
        file.push(n as u8);
        file.extend(&nodes);
        assert!(check(&file).is_err_and(|e| e.contains("absurd")));
        assert!(check(&file[..100]).is_err_and(|e| e.contains("cut short")));
        // Attributes in graphs in attributes, nested too deeply.
        let mut nested = Vec::new();
        for i in 0..40 {
            let tag = [0x2a, 0x32, 0x0a][i % 3];
            let mut outer = vec![tag, nested.len() as u8];
            outer.extend(&nested);
            nested = outer;
        }
        assert!(check(&nested).is_ok());
        assert!(check(b"\x08\x0a\x12\x04test").is_ok());
    }
}
