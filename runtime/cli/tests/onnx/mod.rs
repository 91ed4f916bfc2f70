//! ONNX models encoded by hand, byte by byte, with content that no exporter would write.

/// A varint.
fn varint(mut v: u64, out: &mut Vec<u8>) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

/// A field that holds bytes: text, or a message.
pub fn field(number: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint(number << 3 | 2, &mut out);
    varint(bytes.len() as u64, &mut out);
    out.extend(bytes);
    out
}

fn int(number: u64, v: i64) -> Vec<u8> {
    let mut out = Vec::new();
    varint(number << 3, &mut out);
    varint(v as u64, &mut out);
    out
}

fn text(number: u64, s: &str) -> Vec<u8> {
    field(number, s.as_bytes())
}

/// A node without attributes.
pub fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> Vec<u8> {
    let inputs = inputs.iter().flat_map(|s| text(1, s));
    inputs.chain(outputs.iter().flat_map(|s| text(2, s))).chain(text(4, op)).collect()
}

/// An initializer.
#[derive(Clone)]
pub struct Tensor {
    name: String,
    dims: Vec<i64>,
    kind: i64,
    raw: Option<Vec<u8>>,
    external: Vec<(String, String)>,
}

impl Tensor {
    /// A list of 64-bit integers.
    pub fn ints(name: &str, values: &[i64]) -> Tensor {
        let raw = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Tensor { name: name.into(), dims: vec![values.len() as i64], kind: 7, raw: Some(raw), external: Vec::new() }
    }

    /// One integer of rank 0.
    pub fn value(self, v: i64) -> Tensor {
        Tensor { dims: Vec::new(), raw: Some(v.to_le_bytes().to_vec()), ..self }
    }

    /// Floats without values.
    pub fn floats(name: &str, dims: &[i64]) -> Tensor {
        Tensor { name: name.into(), dims: dims.to_vec(), kind: 1, raw: None, external: Vec::new() }
    }

    /// This many zero bytes.
    pub fn raw(self, bytes: usize) -> Tensor {
        Tensor { raw: Some(vec![0; bytes]), ..self }
    }

    /// Sets another element type.
    pub fn kind(self, kind: i64) -> Tensor {
        Tensor { kind, ..self }
    }

    /// Stores its bytes in an external file.
    pub fn external(mut self, key: &str, value: &str) -> Tensor {
        if key != "location" {
            self.external.push(("location".into(), "weights.bin".into()));
        }
        self.external.push((key.into(), value.into()));
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out: Vec<u8> = self.dims.iter().flat_map(|d| int(1, *d)).collect();
        out.extend(int(2, self.kind));
        out.extend(text(8, &self.name));
        out.extend(self.raw.iter().flat_map(|r| field(9, r)));
        for (key, value) in &self.external {
            out.extend(field(13, &[text(1, key), text(2, value)].concat()));
        }
        if !self.external.is_empty() {
            out.extend(int(14, 1));
        }
        out
    }
}

/// A model from `x`, floats, to `y`.
pub struct Model {
    nodes: Vec<Vec<u8>>,
    shape: Vec<i64>,
    weights: Vec<Tensor>,
}

impl Model {
    /// A model of these nodes; `x` has this shape.
    pub fn new(nodes: Vec<Vec<u8>>, shape: &[i64]) -> Model {
        Model { nodes, shape: shape.to_vec(), weights: Vec::new() }
    }

    /// A model of one node.
    pub fn unary(op: &str, shape: &[i64]) -> Model {
        Model::new(vec![node(op, &["x"], &["y"])], shape)
    }

    /// Adds an initializer.
    pub fn with(mut self, tensor: Tensor) -> Model {
        self.weights.push(tensor);
        self
    }

    /// The encoded file.
    pub fn bytes(&self) -> Vec<u8> {
        let dims: Vec<u8> = self.shape.iter().flat_map(|d| field(1, &int(1, *d))).collect();
        let ty = field(1, &[int(1, 1), field(2, &dims)].concat());
        let input = [text(1, "x"), field(2, &ty)].concat();
        let mut graph: Vec<u8> = self.nodes.iter().flat_map(|n| field(1, n)).collect();
        graph.extend(text(2, "g"));
        graph.extend(self.weights.iter().flat_map(|w| field(5, &w.bytes())));
        graph.extend(field(11, &input));
        graph.extend(field(12, &text(1, "y")));
        [int(1, 8), field(7, &graph), field(8, &[text(1, ""), int(2, 17)].concat())].concat()
    }
}
