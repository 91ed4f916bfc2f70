//! Measured choice: which of cuBLASLt's algorithms is the fastest for a product on this device.
//!
//! In: products and the library's candidates. Out: the candidates with the fastest first, and a [`Tunings`] file that
//! keeps what was found. Holds always: an entry counts only for the device, driver, library and version of Hypatia that
//! it was measured with; a file that is damaged or of another version is empty, never trusted; the library is asked
//! again whether it accepts a remembered algorithm before it runs.
//!
//! Method: random data (power depends on it), launches in a CUDA graph, timed by events, as they will run. Operands are
//! rotated through several copies where the plan they stand in does not fit into the L2 cache either. All candidates are
//! timed in a few rounds, the best of them in more; the median counts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaStream, result, sys};
use hypatia_dsl::dtype::DType;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::capture::Graph;
use super::device::{Gpu, failed};
use super::lt::{Algorithm, Matmul, Pointers, Product, WORKSPACE};
use super::memory::DeviceMemory;
use crate::cache::cache_folder;
use crate::error::{Error, Result};

/// Version of the file's form.
const SCHEMA: u32 = 2;
/// Bytes that the rotated operands take together: more than the L2 caches of today's devices.
const ROTATED: usize = 128 << 20;
/// Copies of the operands at most.
const MAX_COPIES: usize = 16;
/// Bytes of operands of one copy at most; a larger product is timed on the library's first candidates alone.
const MAX_OPERANDS: usize = 4 << 30;
/// A plan that touches less than this finds its operands in the L2 cache again.
const WARM: usize = 24 << 20;
/// Rounds in which all candidates are timed, then those in which the best ones are, and how many of these there are.
const ROUNDS: usize = 3;
const FINAL_ROUNDS: usize = 9;
const FINALISTS: usize = 4;
/// Microseconds that the launches of one graph should take, and how many they are at most.
const GRAPH_US: f64 = 600.0;
const MAX_LAUNCHES: usize = 64;

/// What was measured, in a file that can be committed.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Tunings {
    schema: u32,
    /// By device and product.
    entries: BTreeMap<String, Entry>,
}

/// The fastest algorithm of a product.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Entry {
    /// cuBLASLt's own words for it.
    algorithm: [u64; 8],
    workspace: usize,
    /// Microseconds.
    pub us: f64,
    /// Microseconds of the library's first candidate.
    pub first_us: f64,
    /// How many were timed.
    pub candidates: usize,
}

impl Tunings {
    /// Reads a file. One that is not there is empty; one that cannot be used is empty with a reason.
    pub fn read(path: &Path) -> (Tunings, Option<String>) {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return (Tunings::default(), None),
            Err(e) => return (Tunings::default(), Some(format!("{}: {e}", path.display()))),
        };
        match serde_json::from_str::<Tunings>(&text) {
            Ok(t) if t.schema == SCHEMA => (t, None),
            Ok(t) => {
                let why = format!("{}: tunings of schema {}, not {SCHEMA}: not used", path.display(), t.schema);
                (Tunings::default(), Some(why))
            }
            Err(e) => (Tunings::default(), Some(format!("{}: no tunings: {e}: not used", path.display()))),
        }
    }

    /// Writes a file: beside, then renamed.
    pub fn write(&self, path: &Path) -> Result<()> {
        let io = |source| Error::Io { path: path.into(), source };
        let text = serde_json::to_string_pretty(&Tunings { schema: SCHEMA, entries: self.entries.clone() });
        let text = text.map_err(|e| Error::Internal(e.to_string()))? + "\n";
        let beside = path.with_extension(format!("{}.part", std::process::id()));
        let done = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
        if done.is_err() {
            // Half a file beside it is of no use.
            let _ = std::fs::remove_file(&beside);
        }
        done.map_err(io)
    }

    /// Entries, by what they are for.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// What is known of a product on this device.
    pub fn find(&self, gpu: &Gpu, product: &Product, cold: bool) -> Option<&Entry> {
        self.entries.get(&key(gpu, product, cold))
    }

    /// Keeps what was measured.
    pub fn insert(&mut self, gpu: &Gpu, product: &Product, cold: bool, entry: Entry) {
        self.entries.insert(key(gpu, product, cold), entry);
    }
}

impl Entry {
    /// The algorithm, if the library takes it for that product.
    pub fn algorithm(&self, gpu: &Gpu, matmul: &Matmul) -> Option<Algorithm> {
        let algorithm = Algorithm::from_words(self.algorithm, self.workspace);
        matmul.accepts(gpu.lt(), &algorithm).then_some(algorithm)
    }
}

/// Chooses algorithms: from what is known, by measuring while there is time for it, else as the library guesses.
#[derive(Debug)]
pub struct Tuner {
    tunings: Tunings,
    /// Where to keep what is found.
    path: Option<PathBuf>,
    /// Time left for measuring.
    budget: Duration,
    /// What is worth telling: a file that could not be used.
    pub warning: Option<String>,
    changed: bool,
}

impl Tuner {
    /// With the tunings of that file, which also gets what is found.
    pub fn with_file(path: &Path, budget: Duration) -> Tuner {
        let (tunings, warning) = Tunings::read(path);
        Tuner { tunings, path: Some(path.into()), budget, warning, changed: false }
    }

    /// With the tunings of the user's cache folder.
    pub fn of_user(budget: Duration) -> Tuner {
        match cache_folder() {
            Ok(folder) => Tuner::with_file(&folder.join("tunings.json"), budget),
            Err(warning) => Tuner { warning: Some(warning), ..Tuner::forgetful(budget) },
        }
    }

    /// Without any file.
    pub fn forgetful(budget: Duration) -> Tuner {
        Tuner { tunings: Tunings::default(), path: None, budget, warning: None, changed: false }
    }

    /// What is known.
    pub fn tunings(&self) -> &Tunings {
        &self.tunings
    }

    /// The candidates, the best one first. `footprint` is how many bytes the plan touches.
    pub(super) fn order(
        &mut self,
        gpu: &Arc<Gpu>,
        matmul: &mut Matmul,
        mut candidates: Vec<Algorithm>,
        footprint: usize,
    ) -> Result<Vec<Algorithm>> {
        let product = *matmul.product();
        let cold = footprint > WARM;
        let known = self.tunings.find(gpu, &product, cold).and_then(|e| e.algorithm(gpu, matmul));
        let best = match known {
            Some(algorithm) => Some(algorithm),
            None if self.budget.is_zero() => None,
            None => {
                let start = Instant::now();
                let entry = tune(gpu, matmul, &candidates, cold)?;
                self.budget = self.budget.saturating_sub(start.elapsed());
                entry.and_then(|entry| {
                    let algorithm = entry.algorithm(gpu, matmul);
                    self.tunings.insert(gpu, &product, cold, entry);
                    self.changed = true;
                    algorithm
                })
            }
        };
        if let Some(best) = best {
            candidates.retain(|c| *c != best);
            candidates.insert(0, best);
        }
        Ok(candidates)
    }

    /// Writes what was found, together with what other processes have written since.
    pub fn save(&mut self) -> Result<()> {
        let (Some(path), true) = (&self.path, self.changed) else { return Ok(()) };
        let (theirs, _) = Tunings::read(path);
        for (key, entry) in theirs.entries {
            self.tunings.entries.entry(key).or_insert(entry);
        }
        self.tunings.write(path)?;
        self.changed = false;
        Ok(())
    }
}

/// What an entry is for: device, driver, library, version, product, whether its operands are cold.
fn key(gpu: &Gpu, p: &Product, cold: bool) -> String {
    let side = |l: &super::lt::Layout| {
        format!("{}{}+{}@{}", if l.transposed { "t" } else { "n" }, l.ld, l.batch_stride, l.alignment)
    };
    format!(
        "{}; driver {}; cuBLASLt {}; Hypatia {}; {}x{}x{} batch {} {}{}->{} {:?}({}) a {} b {} d @{}{}{}",
        gpu.describe(),
        gpu.driver(),
        gpu.lt().version(),
        env!("CARGO_PKG_VERSION"),
        p.m,
        p.n,
        p.k,
        p.batch,
        p.dtype,
        if p.tf32 { " as tf32" } else { "" },
        p.out,
        p.epilogue,
        p.bias,
        side(&p.a),
        side(&p.b),
        p.d_alignment,
        if p.workspace == 0 { ", no workspace" } else { "" },
        if cold { ", cold" } else { ", warm" },
    )
}

/// Elements from the first to the last one of an operand, over all matrices of the batch.
fn span(rows: usize, columns: usize, l: &super::lt::Layout, batch: usize) -> usize {
    let (lines, along) = if l.transposed { (columns, rows) } else { (rows, columns) };
    let stride = usize::try_from(l.batch_stride).unwrap_or(0);
    (lines.max(1) - 1) * usize::try_from(l.ld).unwrap_or(0) + along + (batch.max(1) - 1) * stride
}

/// Random numbers of that type, N(0, 1), as bytes.
fn noise(dtype: DType, elements: usize) -> Vec<u8> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut next = || {
        // Twelve uniform numbers make a bell that is good enough to heat a device.
        (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0
    };
    let values: Vec<f64> = (0..elements.min(1 << 16)).map(|_| next()).collect();
    crate::tensor::Tensor::from_f64(dtype, &[values.len()], &values).map_or_else(Vec::new, |t| t.bytes().to_vec())
}

/// Memory filled with random numbers, a block of them over and over.
fn random(stream: &Arc<CudaStream>, dtype: DType, elements: usize) -> Result<DeviceMemory> {
    let bytes = elements * dtype.size();
    let memory = DeviceMemory::new(stream, bytes)?;
    let block = noise(dtype, elements);
    memory.upload(&block)?;
    let mut done = block.len();
    while done > 0 && done < bytes {
        let now = done.min(bytes - done);
        // SAFETY: both ranges lie within the memory and do not overlap.
        unsafe { result::memcpy_dtod_async(memory.address() + done as u64, memory.address(), now, stream.cu_stream()) }
            .map_err(|e| failed("cuMemcpyDtoDAsync", e))?;
        done += now;
    }
    Ok(memory)
}

/// Operands of a product, several copies of each.
struct Operands {
    a: Vec<DeviceMemory>,
    b: Vec<DeviceMemory>,
    d: Vec<DeviceMemory>,
    bias: DeviceMemory,
    workspace: DeviceMemory,
}

impl Operands {
    fn new(stream: &Arc<CudaStream>, p: &Product, copies: usize) -> Result<Operands> {
        let take = |dtype: DType, elements: usize| {
            (0..copies).map(|_| random(stream, dtype, elements)).collect::<Result<Vec<_>>>()
        };
        Ok(Operands {
            a: take(p.dtype, span(p.m, p.k, &p.a, p.batch))?,
            b: take(p.dtype, span(p.k, p.n, &p.b, p.batch))?,
            d: take(p.out, p.batch * p.m * p.n)?,
            bias: random(stream, p.bias, p.n)?,
            workspace: DeviceMemory::new(stream, WORKSPACE)?,
        })
    }

    fn at(&self, i: usize) -> Pointers {
        let address = |all: &[DeviceMemory]| all.get(i % all.len().max(1)).map_or(0, DeviceMemory::address);
        Pointers {
            a: address(&self.a),
            b: address(&self.b),
            d: address(&self.d),
            bias: self.bias.address(),
            workspace: self.workspace.address(),
        }
    }
}

/// A candidate whose launches were captured.
struct Racer {
    algorithm: Algorithm,
    graph: Graph,
    times: Vec<f64>,
}

impl Racer {
    fn median(&self) -> f64 {
        let mut times = self.times.clone();
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied().unwrap_or(f64::INFINITY)
    }
}

/// Times the candidates of a product; `None` if there is nothing to choose.
pub fn tune(gpu: &Arc<Gpu>, matmul: &mut Matmul, candidates: &[Algorithm], cold: bool) -> Result<Option<Entry>> {
    let p = *matmul.product();
    let elements = span(p.m, p.k, &p.a, p.batch) + span(p.k, p.n, &p.b, p.batch);
    let bytes = elements * p.dtype.size() + p.batch * p.m * p.n * p.out.size();
    if candidates.len() < 2 || bytes > MAX_OPERANDS {
        return Ok(None);
    }
    let copies = if cold { (ROTATED / bytes.max(1)).clamp(1, MAX_COPIES) } else { 1 };
    let stream = gpu.context().new_stream().map_err(|e| failed("cuStreamCreate", e))?;
    let operands = Operands::new(&stream, &p, copies)?;
    let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let event = || gpu.context().new_event(flags).map_err(|e| failed("cuEventCreate", e));
    let (start, stop) = (event()?, event()?);
    let timed = |work: &mut dyn FnMut() -> Result<()>| -> Result<f64> {
        start.record(&stream).map_err(|e| failed("cuEventRecord", e))?;
        work()?;
        stop.record(&stream).map_err(|e| failed("cuEventRecord", e))?;
        stream.synchronize().map_err(|e| failed("timing a product", e))?;
        Ok(f64::from(start.elapsed_ms(&stop).map_err(|e| failed("cuEventElapsedTime", e))?) * 1e3)
    };
    let mut launch = |algorithm: &Algorithm, i: usize| {
        // SAFETY: the operands are as large as the product says, and live until the stream is done.
        unsafe { matmul.launch(gpu.lt(), &stream, algorithm, &operands.at(i)) }
    };
    timed(&mut || launch(&candidates[0], 0))?;
    let once = timed(&mut || launch(&candidates[0], 1))?.max(1.0);
    let launches = ((GRAPH_US / once) as usize).clamp(2, MAX_LAUNCHES);
    let mut racers = Vec::with_capacity(candidates.len());
    for algorithm in candidates {
        let graph = Graph::capture(&stream, || (0..launches).try_for_each(|i| launch(algorithm, i)))?;
        graph.launch()?;
        racers.push(Racer { algorithm: *algorithm, graph, times: Vec::new() });
    }
    let race = |racers: &mut [Racer], rounds: usize| -> Result<()> {
        for _ in 0..rounds {
            for racer in racers.iter_mut() {
                racer.times.push(timed(&mut || racer.graph.launch())? / launches as f64);
            }
        }
        Ok(())
    };
    race(&mut racers, ROUNDS)?;
    let first_us = racers.first().map_or(f64::INFINITY, Racer::median);
    racers.sort_by(|a, b| a.median().total_cmp(&b.median()));
    racers.truncate(FINALISTS);
    race(&mut racers, FINAL_ROUNDS)?;
    racers.sort_by(|a, b| a.median().total_cmp(&b.median()));
    Ok(racers.first().map(|best| Entry {
        algorithm: best.algorithm.to_words(),
        workspace: best.algorithm.workspace,
        us: best.median(),
        first_us,
        candidates: candidates.len(),
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn files_come_back_and_damaged_ones_are_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tunings.json");
        assert_eq!(Tunings::read(&path), (Tunings::default(), None));
        let entry = Entry { algorithm: [7; 8], workspace: 1, us: 2.5, first_us: 3.0, candidates: 4 };
        let mut t = Tunings::default();
        t.entries.insert("k".into(), entry);
        t.write(&path).unwrap();
        assert_eq!(Tunings::read(&path).0.entries, t.entries);
        let text = std::fs::read_to_string(&path).unwrap();
        for bad in [&text[..text.len() / 2], "", "[]", &text.replace("\"schema\": 2", "\"schema\": 1")] {
            std::fs::write(&path, bad).unwrap();
            let (t, why) = Tunings::read(&path);
            assert!(t.entries.is_empty() && why.is_some(), "{bad}");
        }
    }

    #[test]
    fn spans_reach_the_last_element() {
        let l = super::super::lt::Layout { transposed: false, ld: 10, batch_stride: 100, alignment: 64 };
        assert_eq!(span(3, 4, &l, 2), 2 * 10 + 4 + 100);
        let t = super::super::lt::Layout { transposed: true, ld: 10, batch_stride: 0, alignment: 64 };
        assert_eq!(span(3, 4, &t, 5), 3 * 10 + 3);
    }
}
