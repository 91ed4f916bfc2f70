//! Autotuning: measures which cuBLASLt algorithm is the fastest for a product on this device.
//!
//! In: products and the library's candidates. Out: the candidates with the fastest first. A
//! [`Tuner`] caches the results. Invariant: a choice applies only to the device, driver, library
//! and Hypatia version of its measurement; before a cached algorithm runs, the library is asked
//! whether it still accepts it.
//!
//! Method: the operands are random (power depends on the data), the launches run in a CUDA graph as
//! in production, and events time them. If the plan does not fit into the L2 cache, the operands
//! rotate through several copies. All candidates are timed in a few rounds, the best of them in
//! more rounds; the median counts.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use cudarc::driver::{CudaEvent, CudaStream, result, sys};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::parallel::side_by_side;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use super::address::WORKSPACE;
use super::capture::{Graph, holding_host};
use super::device::Gpu;
use super::driver::failed;
use super::lt::{Algorithm, Matmul, Pointers, Product};
use super::memory::DeviceMemory;
pub use crate::tuner::Tuner;
use crate::tuner::{Effort, Measured, Source};
use crate::tuning::{Choice, Machine, PACKED};
use hypatia_plan::Plan;
use hypatia_tensor::error::Result;

/// Total bytes of the rotated operands: several times the L2 cache of current devices, which does
/// not evict in the order of use.
const ROTATED: usize = 192 << 20;
/// Maximum number of copies of the operands.
const MAX_COPIES: usize = 16;
/// Maximum operand bytes of one copy. For a larger product only the library's first candidates are
/// timed.
pub(super) const MAX_OPERANDS: usize = 4 << 30;
/// A plan that touches fewer bytes than this finds its operands in the L2 cache again.
pub(super) const WARM: usize = 24 << 20;
/// The effort of a comparison: the number of algorithms requested from the library, the rounds that
/// time all of them, the rounds that time only the best, and the number of the best.
struct Rounds {
    candidates: usize,
    rounds: usize,
    final_rounds: usize,
    finalists: usize,
}

/// The effort before a first result.
const QUICK: Rounds = Rounds { candidates: 32, rounds: 3, final_rounds: 9, finalists: 4 };
/// The effort before a first result, for the transposed weight.
const TRANSPOSED: Rounds = Rounds { candidates: 32, rounds: 2, final_rounds: 9, finalists: 2 };
/// The effort for a tuning file.
const THOROUGH: Rounds = Rounds { candidates: 128, rounds: 7, final_rounds: 31, finalists: 8 };

fn rounds_for(effort: Effort, rival: bool) -> &'static Rounds {
    match (effort, rival) {
        (Effort::Everything, _) => &THOROUGH,
        (_, true) => &TRANSPOSED,
        (_, false) => &QUICK,
    }
}
/// A weight is transposed if that takes less than this fraction of the time. Smaller differences
/// vary from one comparison to the next.
const WORTH: f64 = 0.97;
/// Target time of one graph's launches in microseconds, and the maximum number of launches.
const GRAPH_US: f64 = 600.0;
const MAX_LAUNCHES: usize = 64;

/// The device and versions that a choice applies to.
pub fn machine(gpu: &Gpu) -> Machine {
    Machine {
        device: gpu.describe(),
        driver: gpu.driver(),
        library: gpu.lt().version(),
        hypatia: env!("CARGO_PKG_VERSION").into(),
    }
}

/// Bytes that a plan touches.
pub(super) fn footprint(plan: &Plan) -> usize {
    let inputs = plan.inputs.iter().map(|i| i.shape.iter().product::<usize>() * i.dtype.size());
    plan.arena + inputs.sum::<usize>() + plan.constants.iter().map(|t| t.bytes().len()).sum::<usize>()
}

/// Copies of operands of that many bytes that launches rotate through, if a run of the plan evicts
/// them from the L2 cache, and at most so many.
pub(super) fn copies(cold: bool, bytes: usize, most: usize) -> usize {
    if cold { ROTATED.div_ceil(bytes.max(1)).min(most) } else { 1 }
}

/// Asks the library for the algorithms of the products that are chosen next, on several threads.
/// Each answer takes milliseconds and is cached. Errors are reported to the later caller.
pub(super) fn query_ahead(gpu: &Gpu, effort: Effort, products: &[(Product, bool)]) {
    let mut seen = HashSet::new();
    let distinct: Vec<_> = products.iter().filter(|p| seen.insert(**p)).collect();
    side_by_side(&distinct, 1, None, |(product, other_order)| {
        gpu.context().bind_to_thread().ok()?;
        let matmul = Matmul::new(*product).ok()?;
        matmul.algorithms(gpu.lt(), rounds_for(effort, *other_order).candidates).ok()
    });
}

/// The algorithms that can run a product, the best one first, and how it was chosen if there was a
/// choice. `footprint` is the number of bytes that the plan touches.
pub(super) fn order(
    tuner: &mut Tuner,
    gpu: &Arc<Gpu>,
    matmul: &mut Matmul,
    footprint: usize,
) -> Result<(Vec<Algorithm>, Option<Choice>)> {
    compare(tuner, gpu, matmul, None, footprint)
}

/// The algorithms of a product over the transposed weight, the best one first, if that is measured
/// to be faster than the best algorithm of the product over the weight as stored.
pub(super) fn faster_than(
    tuner: &mut Tuner,
    gpu: &Arc<Gpu>,
    matmul: &mut Matmul,
    rival: (&mut Matmul, &Algorithm),
    footprint: usize,
) -> Result<Option<Vec<Algorithm>>> {
    let (algorithms, choice) = compare(tuner, gpu, matmul, Some(rival), footprint)?;
    Ok(choice.filter(pays).map(|_| algorithms))
}

/// True if the measurement shows that the transpose pays off. Both times are of one comparison.
fn pays(choice: &Choice) -> bool {
    matches!((choice.us, choice.first_us), (Some(us), Some(rival)) if us < rival * WORTH)
}

/// The algorithms that can run a product, the best one first, and how it was chosen, with or
/// without a rival.
fn compare(
    tuner: &mut Tuner,
    gpu: &Arc<Gpu>,
    matmul: &mut Matmul,
    rival: Option<(&mut Matmul, &Algorithm)>,
    footprint: usize,
) -> Result<(Vec<Algorithm>, Option<Choice>)> {
    let settings = rounds_for(tuner.effort(), rival.is_some());
    let mut candidates = matmul.algorithms(gpu.lt(), settings.candidates)?;
    let Some(first) = candidates.first() else { return Ok((candidates, None)) };
    let guess = Measured {
        algorithm: first.to_words(),
        workspace: first.workspace,
        us: None,
        first_us: None,
        candidates: candidates.len(),
    };
    let cold = footprint > WARM;
    let packed = if rival.is_some() { format!("{PACKED}, ") } else { String::new() };
    let problem = packed + &problem(matmul.product(), cold);
    // The heuristics borrow the product immutably and the timing borrows it mutably, one after the
    // other.
    let matmul = std::cell::RefCell::new(matmul);
    // A tuning file is untrusted: only algorithms that the library itself offers are passed to it.
    let offered = |choice: &Choice| {
        let wanted = |a: &&Algorithm| a.to_words() == choice.algorithm && a.workspace == choice.workspace;
        candidates.iter().find(wanted).copied().or_else(|| {
            let all = matmul.borrow().algorithms(gpu.lt(), THOROUGH.candidates).ok()?;
            all.iter().find(wanted).copied()
        })
    };
    let accepts = |choice: &Choice, _: Source| offered(choice).is_some();
    let measure = || tune(gpu, &mut matmul.borrow_mut(), &candidates, rival, cold, settings);
    let choice = tuner.choose(&machine(gpu), &problem, guess, accepts, measure)?;
    if let Some(best) = choice.as_ref().and_then(offered) {
        candidates.retain(|c| c.to_words() != best.to_words());
        candidates.insert(0, best);
    }
    Ok((candidates, choice))
}

/// The key of a choice: the product, and whether its operands are cold.
pub(super) fn problem(p: &Product, cold: bool) -> String {
    let side = |l: &super::lt::Layout| {
        let outer = if p.uses_pointer_arrays() { format!("+{}", l.outer_stride) } else { String::new() };
        format!("{}{}{outer}+{}@{}", if l.transposed { "t" } else { "n" }, l.ld, l.batch_stride, l.alignment)
    };
    format!(
        "{}x{}x{} batch {}{} {}{}->{} {:?}({}) a {} b {} d {}{}{}{}{}",
        p.m,
        p.n,
        p.k,
        if p.uses_pointer_arrays() { format!("{}x", p.outer) } else { String::new() },
        p.batch,
        p.dtype,
        if p.tf32 { " as tf32" } else { "" },
        p.out,
        p.epilogue,
        p.bias,
        side(&p.a),
        side(&p.b),
        if p.is_dense() { format!("@{}", p.d.alignment) } else { side(&p.d) },
        if p.workspace == 0 { ", no workspace" } else { "" },
        if p.in_order { ", in order" } else { "" },
        p.added.map_or(String::new(), |alignment| format!(", added to @{alignment}")),
        if cold { ", cold" } else { ", warm" },
    )
}

/// Elements from the first to the last one of an operand, over all matrices of all batches.
fn span(rows: usize, columns: usize, l: &super::lt::Layout, [outer, batch]: [usize; 2]) -> usize {
    let (lines, along) = if l.transposed { (columns, rows) } else { (rows, columns) };
    let far = |count: usize, stride: i64| (count.max(1) - 1) * usize::try_from(stride).unwrap_or(0);
    far(lines, l.ld) + along + far(batch, l.batch_stride) + far(outer, l.outer_stride)
}

/// The spans of A, B and D.
fn spans(p: &Product) -> [usize; 3] {
    let batches = [p.outer, p.batch];
    [span(p.m, p.k, &p.a, batches), span(p.k, p.n, &p.b, batches), span(p.m, p.n, &p.d, batches)]
}

/// Elements of a block of random numbers.
const BLOCK: usize = 1 << 16;

/// A block of random numbers of that type, N(0, 1), as bytes. The block is cached: generating it
/// takes milliseconds, and a product with many copies would need dozens.
fn noise(dtype: DType) -> Arc<Vec<u8>> {
    static MADE: LazyLock<Mutex<HashMap<DType, Arc<Vec<u8>>>>> = LazyLock::new(Mutex::default);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let block = made.entry(dtype).or_insert_with(|| {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut next = || {
            // The sum of twelve uniform numbers is close enough to a normal distribution to load
            // the device.
            (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0
        };
        let values: Vec<f64> = (0..BLOCK).map(|_| next()).collect();
        let tensor = hypatia_tensor::tensor::Tensor::from_f64(dtype, &[BLOCK], &values);
        Arc::new(tensor.map_or_else(Vec::new, |t| t.bytes().to_vec()))
    });
    block.clone()
}

/// Memory filled with random numbers, one block of them repeated.
pub(super) fn random(stream: &Arc<CudaStream>, dtype: DType, elements: usize) -> Result<DeviceMemory> {
    let bytes = elements * dtype.size();
    let memory = DeviceMemory::new(stream, bytes)?;
    let block = noise(dtype);
    let mut done = block.len().min(bytes);
    memory.upload(&block[..done])?;
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
    aux: Vec<DeviceMemory>,
    /// The matrices that the product is added to.
    added: Vec<DeviceMemory>,
    /// Address lists, if the product uses them.
    lists: Vec<DeviceMemory>,
    bias: DeviceMemory,
    workspace: DeviceMemory,
    /// Bytes of one operand's list.
    list: u64,
}

impl Operands {
    fn new(stream: &Arc<CudaStream>, p: &Product, copies: usize) -> Result<Operands> {
        let take = |dtype: DType, elements: usize| {
            (0..copies).map(|_| random(stream, dtype, elements)).collect::<Result<Vec<_>>>()
        };
        let [a, b, d] = spans(p);
        let (a, b, d) = (take(p.dtype, a)?, take(p.dtype, b)?, take(p.out, d)?);
        let mut lists = Vec::new();
        for ((a, b), d) in a.iter().zip(&b).zip(&d).filter(|_| p.uses_pointer_arrays()) {
            let list = p.addresses([a, b, d].map(DeviceMemory::address));
            let memory = DeviceMemory::new(stream, list.len() * size_of::<u64>())?;
            memory.upload(bytemuck::cast_slice(&list))?;
            lists.push(memory);
        }
        Ok(Operands {
            a,
            b,
            d,
            lists,
            list: (p.outer * p.batch * size_of::<u64>()) as u64,
            added: if p.added.is_some() { take(p.out, spans(p)[2])? } else { Vec::new() },
            aux: if p.epilogue.has_aux() { take(p.out, p.batch * p.m * p.n)? } else { Vec::new() },
            bias: random(stream, p.bias, p.n.max(p.m))?,
            workspace: DeviceMemory::new(stream, WORKSPACE)?,
        })
    }

    fn at(&self, i: usize) -> Pointers {
        let address = |all: &[DeviceMemory]| all.get(i % all.len().max(1)).map_or(0, DeviceMemory::address);
        let operands = match self.lists.is_empty() {
            true => [address(&self.a), address(&self.b), address(&self.d)],
            false => [0, 1, 2].map(|side| address(&self.lists) + side * self.list),
        };
        let [a, b, d] = operands;
        let (c, aux) = (address(&self.added), address(&self.aux));
        Pointers { a, b, d, c, bias: self.bias.address(), aux, workspace: self.workspace.address() }
    }
}

/// Times work on a stream with events.
struct Stopwatch {
    stream: Arc<CudaStream>,
    start: CudaEvent,
    stop: CudaEvent,
}

impl Stopwatch {
    fn new(gpu: &Gpu) -> Result<Stopwatch> {
        let stream = gpu.context().new_stream().map_err(|e| failed("cuStreamCreate", e))?;
        let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let event = || gpu.context().new_event(flags).map_err(|e| failed("cuEventCreate", e));
        Ok(Stopwatch { stream, start: event()?, stop: event()? })
    }

    /// Time in microseconds.
    fn time(&self, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        self.start.record(&self.stream).map_err(|e| failed("cuEventRecord", e))?;
        work()?;
        self.stop.record(&self.stream).map_err(|e| failed("cuEventRecord", e))?;
        self.stream.synchronize().map_err(|e| failed("timing a product", e))?;
        Ok(f64::from(self.start.elapsed_ms(&self.stop).map_err(|e| failed("cuEventElapsedTime", e))?) * 1e3)
    }
}

/// A candidate with a captured graph.
struct CapturedCandidate {
    algorithm: Algorithm,
    graph: Graph,
    /// Number of launches in the graph.
    launches: usize,
    times: Vec<f64>,
}

impl CapturedCandidate {
    /// Captures that many launches of `launch`, which gets the index of the operands' copy.
    fn new(
        stream: &Arc<CudaStream>,
        algorithm: &Algorithm,
        launches: usize,
        mut launch: impl FnMut(&Algorithm, usize) -> Result<()>,
    ) -> Result<CapturedCandidate> {
        let graph = Graph::capture(stream, || (0..launches).try_for_each(|i| launch(algorithm, i)))?;
        graph.launch()?;
        Ok(CapturedCandidate { algorithm: *algorithm, graph, launches, times: Vec::new() })
    }

    fn run(&mut self, watch: &Stopwatch) -> Result<()> {
        self.times.push(watch.time(|| self.graph.launch())? / self.launches as f64);
        Ok(())
    }

    fn median(&self) -> f64 {
        let mut times = self.times.clone();
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied().unwrap_or(f64::INFINITY)
    }
}

/// Times the candidates of a product; `None` if there is no choice. A rival, which reads and writes
/// as many bytes, takes part in all rounds; its time replaces that of the first candidate.
fn tune(
    gpu: &Arc<Gpu>,
    matmul: &mut Matmul,
    candidates: &[Algorithm],
    rival: Option<(&mut Matmul, &Algorithm)>,
    cold: bool,
    settings: &Rounds,
) -> Result<Option<Measured>> {
    let p = *matmul.product();
    let [a, b, d] = spans(&p);
    let results = d * if p.epilogue.has_aux() { 2 } else { 1 };
    let bytes = (a + b) * p.dtype.size() + results * p.out.size();
    // With a negative batch stride the matrices extend to addresses before the first one.
    let back = [&p.a, &p.b, &p.d].iter().any(|side| side.batch_stride < 0);
    if candidates.len() + usize::from(rival.is_some()) < 2 || bytes > MAX_OPERANDS || back {
        return Ok(None);
    }
    let copies = copies(cold, bytes, MAX_COPIES);
    let watch = Stopwatch::new(gpu)?;
    let stream = &watch.stream;
    let operands = Operands::new(stream, &p, copies)?;
    let mut launch = |algorithm: &Algorithm, i: usize| {
        // SAFETY: the operands are as large as the product says, and live until the stream is done.
        unsafe { matmul.launch(gpu.lt(), stream, algorithm, &operands.at(i)) }
    };
    watch.time(|| launch(&candidates[0], 0))?;
    let once = watch.time(|| launch(&candidates[0], 1))?.max(1.0);
    let launches = ((GRAPH_US / once) as usize).clamp(2, MAX_LAUNCHES);
    // The first launch of a kernel loads its code, which is not allowed during a capture.
    candidates.iter().try_for_each(|algorithm| launch(algorithm, 0))?;
    let candidate = |algorithm| CapturedCandidate::new(stream, algorithm, launches, &mut launch);
    let mut captured = holding_host(|| candidates.iter().map(candidate).collect::<Result<Vec<_>>>())?;
    let mut rival = rival
        .map(|(matmul, algorithm)| {
            let mut launch = |algorithm: &Algorithm, i: usize| {
                // SAFETY: as above: the other order of an operand has as many elements.
                unsafe { matmul.launch(gpu.lt(), stream, algorithm, &operands.at(i)) }
            };
            // The first launch of a kernel loads its code.
            launch(algorithm, 0)?;
            CapturedCandidate::new(stream, algorithm, launches, launch)
        })
        .transpose()?;
    let mut compare = |captured: &mut [CapturedCandidate], rounds: usize| -> Result<Option<f64>> {
        let mut all: Vec<&mut CapturedCandidate> = captured.iter_mut().chain(&mut rival).collect();
        (0..rounds).try_for_each(|_| all.iter_mut().try_for_each(|candidate| candidate.run(&watch)))?;
        Ok(rival.as_ref().map(CapturedCandidate::median))
    };
    compare(&mut captured, settings.rounds)?;
    let first_us = captured.first().map_or(f64::INFINITY, CapturedCandidate::median);
    captured.sort_by(|a, b| a.median().total_cmp(&b.median()));
    captured.truncate(settings.finalists);
    let rival_us = compare(&mut captured, settings.final_rounds)?;
    captured.sort_by(|a, b| a.median().total_cmp(&b.median()));
    Ok(captured.first().map(|best| Measured {
        algorithm: best.algorithm.to_words(),
        workspace: best.algorithm.workspace,
        us: Some(best.median()),
        first_us: rival_us.or(Some(first_us)),
        candidates: candidates.len(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_order_is_taken_where_it_is_faster_by_more_than_noise() {
        let choice = |us: Option<f64>, rival: Option<f64>| Choice {
            machine: Machine { device: String::new(), driver: 0, library: 0, hypatia: String::new() },
            problem: String::new(),
            algorithm: [0; 8],
            workspace: 0,
            us,
            first_us: rival,
            candidates: 8,
        };
        assert!(pays(&choice(Some(9.2), Some(10.1))));
        assert!(pays(&choice(Some(96.9), Some(100.0))));
        for not in [(97.1, 100.0), (100.0, 100.0), (110.0, 100.0), (f64::INFINITY, f64::INFINITY)] {
            assert!(!pays(&choice(Some(not.0), Some(not.1))), "{not:?}");
        }
        // Never true unless both are measured.
        assert!(!pays(&choice(None, Some(10.0))) && !pays(&choice(Some(9.0), None)) && !pays(&choice(None, None)));
    }

    #[test]
    fn spans_reach_the_last_element() {
        let side = |transposed, batch_stride, outer_stride| crate::lt::Layout {
            transposed,
            ld: 10,
            batch_stride,
            outer_stride,
            alignment: 64,
        };
        assert_eq!(span(3, 4, &side(false, 100, 0), [1, 2]), 2 * 10 + 4 + 100);
        assert_eq!(span(3, 4, &side(true, 0, 0), [1, 5]), 3 * 10 + 3);
        assert_eq!(span(3, 4, &side(false, 4, 300), [3, 2]), 2 * 10 + 4 + 4 + 600);
    }
}
