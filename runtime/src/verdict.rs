//! Verdicts: the cached results of comparing fused plans with unfused ones.
//!
//! In: everything that a comparison depends on. Out: its verdict, if this user's machine has one.
//! Invariant: a verdict holds for the same graph with the same weights, the same rules and
//! templates, the same build of Hypatia, the same device with the same versions, and the same
//! precision. An unreadable verdict is recomputed.
//!
//! The paths and lines of the rules' files count too, because a Program contains them. The values
//! of the inputs do not count, nor which of a library's algorithms computes a product.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use sha2::{Digest, Sha256};

use hypatia_cache::{Key, KeyMaker, Store};
use hypatia_graph::{Graph, NodeKind};
use hypatia_tensor::tensor::Tensor;

/// The result of comparing two plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Their results agree: the fused plan is used.
    Agree,
    /// They differ: why, and the rules without which the plan agrees; none if it is not known to
    /// agree without some alone.
    Differ(String, Vec<String>),
}

impl Verdict {
    fn to_bytes(&self) -> Vec<u8> {
        match self {
            Verdict::Agree => b"agree\n".to_vec(),
            Verdict::Differ(why, without) => format!("differ {}\n{why}", without.join(" ")).into_bytes(),
        }
    }

    /// Decodes a verdict.
    pub fn from_bytes(bytes: &[u8]) -> Option<Verdict> {
        let text = std::str::from_utf8(bytes).ok()?;
        match text.split_once('\n')? {
            ("agree", "") => Some(Verdict::Agree),
            (head, why) if !why.is_empty() => {
                let without = head.strip_prefix("differ ")?.split_whitespace().map(String::from).collect();
                Some(Verdict::Differ(why.to_string(), without))
            }
            _ => None,
        }
    }
}

/// What a verdict depends on.
pub struct Subject<'a> {
    /// The graph that defines the results, on concrete sizes.
    pub given: &'a Graph,
    /// The graph after the rules were applied.
    pub fused: &'a Graph,
    /// The device, and the versions of the software that runs it.
    pub machine: String,
    /// Settings of the plan that change results.
    pub settings: String,
}

impl Subject<'_> {
    /// The key; `None` if this build cannot be distinguished from others.
    pub fn key(&self) -> Option<Key> {
        let p = &self.given.program;
        let templates = hypatia_templates::TEMPLATES.iter().flat_map(|(name, text)| [name, text]);
        let key = KeyMaker::default().part("verdict 3").part(build()?).part(&self.machine).part(&self.settings);
        let key = templates.fold(key, |key, part| key.part(part));
        let key = key.debug(&(&p.scalars, &p.ops, &p.rulesets, &p.rules, &p.kernels, &p.families));
        let weights = WeightHashes::of(&[self.given, self.fused]);
        Some([self.given, self.fused].into_iter().fold(key, |key, g| weights.graph(key, g)).key())
    }
}

/// The cache entry of a verdict.
#[derive(Clone)]
pub struct VerdictEntry {
    store: Arc<Store>,
    key: Key,
}

impl VerdictEntry {
    /// The entry of the verdict on that subject.
    pub fn of(store: &Arc<Store>, subject: &Subject<'_>) -> Option<VerdictEntry> {
        subject.key().map(|key| VerdictEntry { store: store.clone(), key })
    }

    /// The verdict, if there is one.
    pub fn load(&self) -> Option<Verdict> {
        Verdict::from_bytes(&self.store.get(&self.key)?)
    }

    /// Stores a verdict.
    pub fn keep(&self, verdict: &Verdict) {
        self.store.put(&self.key, &verdict.to_bytes());
    }
}

/// The file that this code was loaded from, if it is not the program's.
static LIBRARY: OnceLock<PathBuf> = OnceLock::new();

/// Says that this code is a library which the running program has loaded from that file: the file
/// then tells builds apart. What is said first counts.
pub fn loaded_from(file: PathBuf) {
    let _ = LIBRARY.set(file);
}

/// This build: its version, and the program's file, or the library's ([`loaded_from`]).
pub(crate) fn build() -> Option<String> {
    let file = LIBRARY.get().cloned().map_or_else(std::env::current_exe, Ok).ok()?;
    let meta = std::fs::metadata(&file).ok()?;
    let written = meta.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(format!("{} {} {} {}", env!("CARGO_PKG_VERSION"), file.display(), meta.len(), written.as_nanos()))
}

/// The features of the host on which results depend.
pub fn host(threads: usize) -> String {
    #[cfg(target_arch = "x86_64")]
    let features = [
        std::arch::is_x86_feature_detected!("avx2"),
        std::arch::is_x86_feature_detected!("fma"),
        std::arch::is_x86_feature_detected!("f16c"),
        std::arch::is_x86_feature_detected!("avx512f"),
        std::arch::is_x86_feature_detected!("avx512bw"),
    ];
    #[cfg(not(target_arch = "x86_64"))]
    let features = [false; 0];
    format!("{} {features:?}, {threads} threads", std::env::consts::ARCH)
}

/// Number of bytes that are hashed at a time.
const PIECE: usize = 4 << 20;

/// Hashes of the constants of some graphs, by address: each is read once.
struct WeightHashes(HashMap<usize, [u8; 32]>);

impl WeightHashes {
    fn of(graphs: &[&Graph]) -> WeightHashes {
        let mut tensors: HashMap<usize, &Arc<Tensor>> = HashMap::new();
        for node in graphs.iter().flat_map(|g| &g.nodes) {
            if let NodeKind::Const(t) = &node.kind {
                tensors.insert(Arc::as_ptr(t) as usize, t);
            }
        }
        let pieces: Vec<(usize, &[u8])> =
            tensors.iter().flat_map(|(at, t)| t.bytes().chunks(PIECE).map(move |piece| (*at, piece))).collect();
        let next = AtomicUsize::new(0);
        let run = || {
            let mut done: Vec<(usize, [u8; 32])> = Vec::new();
            while let Some((i, (_, piece))) =
                Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, pieces.get(i)?)))
            {
                done.push((i, Sha256::digest(piece).into()));
            }
            done
        };
        let bytes: usize = pieces.iter().map(|(_, p)| p.len()).sum();
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(bytes / PIECE).max(1);
        let mut hashes: Vec<(usize, [u8; 32])> = match threads {
            1 => run(),
            _ => std::thread::scope(|scope| {
                let handles: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
                handles.into_iter().flat_map(|h| h.join().unwrap_or_default()).collect()
            }),
        };
        hashes.sort_unstable();
        let mut whole: HashMap<usize, Sha256> = tensors.keys().map(|at| (*at, Sha256::new())).collect();
        for (i, hash) in hashes {
            if let Some(sum) = pieces.get(i).and_then(|(at, _)| whole.get_mut(at)) {
                sum.update(hash);
            }
        }
        WeightHashes(whole.into_iter().map(|(at, sum)| (at, sum.finalize().into())).collect())
    }

    /// Adds a graph: its nodes, its constants, its inputs and outputs. Names of nodes do not count.
    fn graph(&self, mut key: KeyMaker, graph: &Graph) -> KeyMaker {
        for node in &graph.nodes {
            key = key.debug(&(&node.operands, &node.results));
            key = match &node.kind {
                NodeKind::Const(t) => {
                    let hash = self.0.get(&(Arc::as_ptr(t) as usize)).copied().unwrap_or_default();
                    key.part("const").part(hash).debug(&(t.dtype(), t.shape()))
                }
                kind => key.debug(kind),
            };
        }
        key.part("ends").debug(&(&graph.inputs, &graph.outputs))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hypatia_dsl::builtin::BuiltinOp;
    use hypatia_dsl::dtype::DType;

    use super::*;
    use hypatia_testing::{program, ty};

    /// `x * w` with that weight.
    fn graph(values: &[f64]) -> Graph {
        let mut g = Graph::new(program());
        let x = g.input("x", ty(DType::F32, &[3, values.len()]));
        let w = g.constant(Tensor::from_f64(DType::F32, &[values.len(), 1], values).unwrap());
        let y = g.builtin(BuiltinOp::Matmul, &[x, w], vec![]).unwrap()[0];
        g.output("y", y);
        g
    }

    fn key(given: &Graph, fused: &Graph, machine: &str, settings: &str) -> Key {
        Subject { given, fused, machine: machine.into(), settings: settings.into() }.key().unwrap()
    }

    #[test]
    fn everything_that_a_verdict_depends_on_is_in_its_key() {
        let (a, b) = (graph(&[1.0, 2.0]), graph(&[1.0, 2.0 + 2.0 * f64::from(f32::EPSILON)]));
        let base = key(&a, &a, "cpu", "f32");
        assert_eq!(base, key(&a.clone(), &graph(&[1.0, 2.0]), "cpu", "f32"), "equal graphs at other addresses");
        let mut renamed = a.clone();
        renamed.outputs[0].0 = "z".into();
        let mut turned = a.clone();
        turned.outputs[0].1 = hypatia_graph::Value { node: turned.inputs[0], output: 0 };
        let mut other_rules = a.clone();
        let mut p = (*a.program).clone();
        p.families.push(("new".into(), Vec::new()));
        other_rules.program = Arc::new(p);
        let others = [
            key(&b, &a, "cpu", "f32"),
            key(&a, &b, "cpu", "f32"),
            key(&b, &b, "cpu", "f32"),
            key(&a, &a, "gpu", "f32"),
            key(&a, &a, "cpu", "tf32"),
            key(&renamed, &a, "cpu", "f32"),
            key(&a, &turned, "cpu", "f32"),
            key(&other_rules, &a, "cpu", "f32"),
            key(&graph(&[1.0, 2.0, 3.0]), &a, "cpu", "f32"),
        ];
        for (i, k) in others.iter().enumerate() {
            assert!(*k != base && !others[..i].contains(k), "{i}");
        }
    }

    #[test]
    fn large_weights_count_to_their_last_byte() {
        let n = PIECE / 4 * 2 + 5;
        let values = vec![1.0; n];
        let mut last = values.clone();
        last[n - 1] = 2.0;
        let mut swapped = values.clone();
        swapped[0] = 2.0;
        let keys = [values, last, swapped].map(|v| {
            let g = graph(&v);
            key(&g, &g, "", "")
        });
        assert!(keys[0] != keys[1] && keys[0] != keys[2] && keys[1] != keys[2]);
    }

    #[test]
    fn verdicts_round_trip_and_other_bytes_are_rejected() {
        let differ = |without: &[&str]| {
            Verdict::Differ("output `y` differs\nby much".into(), without.iter().map(ToString::to_string).collect())
        };
        for v in [Verdict::Agree, differ(&[]), differ(&["a::b[relu]", "c::d"])] {
            assert_eq!(Verdict::from_bytes(&v.to_bytes()), Some(v));
        }
        for bad in [&b""[..], b"agree", b"agree\nmore", b"differ \n", b"differ\nwhy", b"\xff\n", b"yes\n"] {
            assert_eq!(Verdict::from_bytes(bad), None);
        }
    }
}
