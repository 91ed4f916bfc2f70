//! The executor: runs a plan's steps in order.
//!
//! In: a plan for the CPU, then tensors for its inputs, or memory that the caller holds. Out:
//! tensors for its outputs, or that memory filled. Invariant: a run allocates only its outputs
//! (memory of finished runs is reused); runs may overlap, each with its own arena, all with the
//! same weights and threads.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hypatia_dsl::dtype::DType;
use smallvec::SmallVec;

use super::conv::DirectCode;
use super::copies::{self, StridedCopy};
use super::cumsum;
use super::depthwise::DepthwiseCode;
use super::gemm::GemmCode;
use super::gemm::guard::{Checks, Fault, Mismatch};
use super::horizontal::{self, HorizontalCode};
use super::im2col::Geometry;
use super::interp::Code;
use super::memory::{Bytes, Outside, SplitArena, empty, split_arena};
use super::operand::Operand;
use super::pointwise::{Input, Work};
use super::pool::pool;
use super::reduce::{self, Reduce};
use super::rowwise::RowCode;
use super::threads::{Local, Pool, Workers};
use super::unfold::unfold;
use hypatia_plan::{Action, Buffer, BufferId, Plan, PointwiseStep, Step, Storage, View};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

/// The prepared state of a step, beyond the plan.
enum PreparedStep {
    Gemm(Box<GemmCode>),
    /// A convolution with few filters per group.
    Direct(Box<DirectCode>),
    /// A depthwise convolution (one filter per channel), channels last.
    Depthwise(Box<DepthwiseCode>),
    Pointwise(Code),
    Horizontal(Box<HorizontalCode>),
    Rowwise(Box<RowCode>),
    /// One copy per read, in the order of the writes.
    Copies(Vec<StridedCopy>),
    Reduce(Reduce),
    /// The nested steps of a composite step.
    Fallback(Vec<PreparedStep>),
    Nothing,
}

/// What a run records beside its results.
enum Record<'a> {
    Nothing,
    /// The duration of each step, added up.
    Times(&'a mut [Duration]),
    /// A digest of what each step wrote.
    Digests(&'a mut [u64]),
}

/// Memory of one run.
struct Instance {
    arena: Bytes,
    locals: Vec<Mutex<Local>>,
}

/// Runs a plan on the CPU.
pub struct Executor {
    plan: Arc<Plan>,
    ready: Vec<PreparedStep>,
    /// For each buffer, the output whose memory takes its place; see [`Plan::outside`].
    outside: Vec<Option<usize>>,
    threads: usize,
    pool: Option<Arc<Pool>>,
    /// True if a step has enough work for several threads.
    shared: bool,
    idle: Mutex<Vec<Instance>>,
    poison: bool,
    /// The checks of strict runs.
    checks: Option<Checks>,
}

impl Executor {
    /// Prepares a plan for this many threads; 0 means one per core.
    pub fn new(plan: Arc<Plan>, threads: usize) -> Result<Executor> {
        let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
        let threads = if threads == 0 { cores() } else { threads.min(1024) };
        let pool = if threads == 1 { None } else { Some(Pool::of(threads)?) };
        let ready = plan.steps.iter().map(|s| prepare(&plan, s, threads)).collect::<Result<Vec<_>>>()?;
        let shared = pool.is_some() && plan.steps.iter().zip(&ready).any(|(s, r)| is_shared(s, r));
        let outside = (0..plan.buffers.len()).map(|i| plan.outside(BufferId(i as u32))).collect();
        Ok(Executor {
            plan,
            ready,
            outside,
            threads,
            pool,
            shared,
            idle: Mutex::new(Vec::new()),
            poison: false,
            checks: None,
        })
    }

    /// Poisons the arena and the outputs with NaN before each run, so that reads of unwritten
    /// memory show.
    pub fn poisoned(mut self) -> Executor {
        self.poison = true;
        self
    }

    /// Checks the accumulators of each product by checksums, and computes again what is wrong.
    pub fn strict(mut self) -> Executor {
        self.checks = Some(Checks::default());
        self
    }

    /// Disturbs the runs of a strict executor as a test wants it, from now on.
    #[doc(hidden)]
    pub fn disturb(&self, faults: Vec<Fault>) {
        if let Some(checks) = &self.checks {
            *checks.faults.write().unwrap_or_else(PoisonError::into_inner) = faults;
        }
    }

    /// What checksums have found since this was last called, in a strict executor.
    pub fn mismatches(&self) -> Vec<Mismatch> {
        let found =
            self.checks.iter().map(|w| std::mem::take(&mut *w.found.lock().unwrap_or_else(PoisonError::into_inner)));
        found.flatten().collect()
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The plan, for another executor of it.
    pub fn shared_plan(&self) -> Arc<Plan> {
        self.plan.clone()
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs once. The inputs are in the plan's order.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.run_with(inputs, Record::Nothing)
    }

    /// Runs once, and adds each step's duration to `times`.
    pub fn run_timed(&self, inputs: &[Tensor], times: &mut [Duration]) -> Result<Vec<Tensor>> {
        self.run_with(inputs, Record::Times(times))
    }

    /// Runs once. For each step, a digest of what it wrote.
    pub fn digests(&self, inputs: &[Tensor]) -> Result<Vec<u64>> {
        let mut digests = vec![0; self.plan.steps.len()];
        self.run_with(inputs, Record::Digests(&mut digests))?;
        Ok(digests)
    }

    /// Runs once on memory that the caller holds: the little-endian, row-major elements of the
    /// plan's inputs and outputs, in its order. Nothing is copied but an output that is an input, a
    /// constant or an earlier output.
    ///
    /// # Errors
    /// If the number of slices or the length of one is not the plan's, or if a slice is not aligned
    /// to its element type. Bytes of a bool input must be 0 or 1, which is not checked.
    pub fn run_in_place(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        self.check_memory(inputs, outputs)?;
        // An empty slice may stand anywhere.
        let inputs: SmallVec<[&[u8]; 8]> = inputs.iter().map(|b| if b.is_empty() { empty() } else { b }).collect();
        self.run_on(&inputs, outputs, Record::Nothing)
    }

    fn check_memory(&self, inputs: &[&[u8]], outputs: &[&mut [u8]]) -> Result<()> {
        let plan = &self.plan;
        if inputs.len() != plan.inputs.len() || outputs.len() != plan.outputs.len() {
            let wanted = format!("{} inputs and {} outputs", plan.inputs.len(), plan.outputs.len());
            return Err(Error::Input(format!("the plan has {wanted}, not {} and {}", inputs.len(), outputs.len())));
        }
        let fits = |name: &str, bytes: &[u8], dtype: DType, shape: &[usize]| {
            let wanted = shape.iter().product::<usize>() * dtype.size();
            let aligned = bytes.is_empty() || bytes.as_ptr().addr().is_multiple_of(dtype.size());
            let what = match (bytes.len() == wanted, aligned) {
                (true, true) => return Ok(()),
                (false, _) => format!("has {} bytes, but {dtype}{shape:?} has {wanted}", bytes.len()),
                (true, false) => format!("is not aligned to {} bytes, the size of {dtype}", dtype.size()),
            };
            Err(Error::Input(format!("the memory of `{name}` {what}")))
        };
        for (bytes, input) in inputs.iter().zip(&plan.inputs) {
            fits(&input.name, bytes, input.dtype, &input.shape)?;
        }
        for (bytes, (name, view)) in outputs.iter().zip(&plan.outputs) {
            fits(name, bytes, view.dtype, &view.shape)?;
        }
        Ok(())
    }

    fn run_with(&self, inputs: &[Tensor], record: Record<'_>) -> Result<Vec<Tensor>> {
        self.plan.check_inputs(inputs)?;
        let zeros = |view: &View| {
            let too_large = || Error::Limit(format!("an output of shape {:?} is too large", view.shape));
            Tensor::zeros(view.dtype, &view.shape).ok_or_else(too_large)
        };
        let mut results = self.plan.outputs.iter().map(|(_, view)| zeros(view)).collect::<Result<Vec<_>>>()?;
        let inputs: SmallVec<[&[u8]; 8]> = inputs.iter().map(Tensor::bytes).collect();
        let mut outputs: SmallVec<[&mut [u8]; 4]> = results.iter_mut().map(Tensor::bytes_mut).collect();
        self.run_on(&inputs, &mut outputs, record)?;
        drop(outputs);
        Ok(results)
    }

    fn run_on(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]], record: Record<'_>) -> Result<()> {
        let mut instance = match self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            Some(instance) => instance,
            None => self.instance()?,
        };
        if self.poison {
            instance.arena.poison(0xff);
            outputs.iter_mut().for_each(|o| o.fill(0xff));
        }
        let awake = self.pool.as_deref().filter(|_| self.shared).map(Pool::awake);
        let result = self.steps(&mut instance, inputs, outputs, record);
        drop(awake);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(instance);
        result
    }

    fn instance(&self) -> Result<Instance> {
        let locals = (0..self.threads).map(|_| Mutex::default()).collect();
        Ok(Instance { arena: Bytes::new(self.plan.arena)?, locals })
    }

    fn steps(
        &self,
        instance: &mut Instance,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        mut record: Record<'_>,
    ) -> Result<()> {
        for (i, (step, ready)) in self.plan.steps.iter().zip(&self.ready).enumerate() {
            let start = matches!(record, Record::Times(_)).then(Instant::now);
            self.step(i, (step, ready), instance, inputs, outputs, &mut record).map_err(|e| match e {
                Error::Input(m) => Error::Input(format!("node `{}`: {m}", step.name)),
                Error::Internal(m) => Error::Internal(format!("step `{}`: {m}", step.name)),
                e => e,
            })?;
            if let (Some(start), Record::Times(times)) = (start, &mut record)
                && let Some(time) = times.get_mut(i)
            {
                *time += start.elapsed();
            }
        }
        for (i, (_, view)) in self.plan.outputs.iter().enumerate() {
            if self.outside[view.buffer.index()] != Some(i) {
                self.copy_output(i, view, instance, inputs, outputs)?;
            }
        }
        Ok(())
    }

    /// Writes an output that no step has written in its own memory.
    fn copy_output(
        &self,
        i: usize,
        view: &View,
        instance: &mut Instance,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) -> Result<()> {
        let arena = split_arena(instance.arena.as_mut(), &[])?;
        let mut outside = Outside::split(outputs, &[i]);
        let target = outside.take(i);
        let bytes = self.bytes(view, &arena, &outside, inputs)?;
        let size = view.dtype.size();
        // The offset of an empty view may lie past the end.
        let first = if view.is_empty() { 0 } else { view.offset };
        match (target, bytes.get(first * size..(first + view.len()) * size)) {
            (Some(target), Some(bytes)) if target.len() == bytes.len() => target.copy_from_slice(bytes),
            _ => return Err(Error::Internal(format!("an output of shape {:?} was not written", view.shape))),
        }
        Ok(())
    }

    fn buffer(&self, view: &View) -> &Buffer {
        &self.plan.buffers[view.buffer.index()]
    }

    /// The whole buffer of a view.
    fn bytes<'a>(
        &'a self,
        view: &View,
        arena: &SplitArena<'a>,
        outside: &Outside<'a>,
        inputs: &'a [&'a [u8]],
    ) -> Result<&'a [u8]> {
        if let Some(output) = self.outside[view.buffer.index()] {
            return outside.read(output);
        }
        let buffer = self.buffer(view);
        match buffer.storage {
            Storage::Input(i) => Ok(inputs[i]),
            Storage::Constant(i) => Ok(self.plan.constants[i].bytes()),
            Storage::Arena(offset) => arena.read(offset, buffer.len * buffer.dtype.size()),
        }
    }

    /// Runs a step, or a step of the fallback of the one of this index.
    fn step(
        &self,
        index: usize,
        (step, ready): (&Step, &PreparedStep),
        instance: &mut Instance,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        record: &mut Record<'_>,
    ) -> Result<()> {
        if step.writes.iter().all(View::is_empty) {
            return Ok(());
        }
        if let (Action::Call(e), PreparedStep::Fallback(parts)) = (&step.action, ready) {
            let mut steps = e.fallback.iter().zip(parts);
            return steps.try_for_each(|part| self.step(index, part, instance, inputs, outputs, record));
        }
        let (mut writes, mut direct) = (SmallVec::<[(usize, usize); 4]>::new(), SmallVec::<[usize; 4]>::new());
        for v in horizontal::buffers(step) {
            match (self.outside[v.buffer.index()], self.buffer(v).storage) {
                (Some(output), _) => direct.push(output),
                (None, Storage::Arena(offset)) => writes.push((offset, self.buffer(v).len * v.dtype.size())),
                _ => return Err(Error::Internal("a write outside of the arena".into())),
            }
        }
        let mut arena = split_arena(instance.arena.as_mut(), &writes)?;
        let mut outside = Outside::split(outputs, &direct);
        let mut inside = std::mem::take(&mut arena.outs).into_iter();
        let mut outs = SmallVec::<[&mut [u8]; 4]>::new();
        for v in horizontal::buffers(step) {
            let out = match self.outside[v.buffer.index()] {
                Some(output) => outside.take(output),
                None => inside.next(),
            };
            outs.push(out.ok_or_else(|| Error::Internal("a write without memory".into()))?);
        }
        let mut reads: SmallVec<[&[u8]; 8]> = SmallVec::new();
        for (i, v) in step.reads.iter().enumerate() {
            let in_place = step.in_place.contains(&Some(i));
            reads.push(if in_place { &[] } else { self.bytes(v, &arena, &outside, inputs)? });
        }
        let pool = self.pool.as_deref().filter(|_| self.shared);
        let checks = self.checks.as_ref().map(|checks| (index, checks));
        perform((step, ready), &Workers { pool, locals: &instance.locals }, &reads, &mut outs, checks)?;
        if let (Some(checks), Some(out), false) =
            (&self.checks, outs.first_mut(), matches!(ready, PreparedStep::Gemm(_)))
        {
            checks.disturb_result(index, step.writes[0].dtype, out);
        }
        if let Record::Digests(digests) = record
            && let Some(digest) = digests.get_mut(index)
        {
            let mut hasher = DefaultHasher::new();
            (*digest, &outs).hash(&mut hasher);
            *digest = hasher.finish();
        }
        Ok(())
    }
}

/// Does the work of a step on its memory.
fn perform(
    (step, ready): (&Step, &PreparedStep),
    workers: &Workers<'_>,
    reads: &[&[u8]],
    outs: &mut [&mut [u8]],
    checks: Option<(usize, &Checks)>,
) -> Result<()> {
    let source = |i: usize| Operand { bytes: reads[i], view: &step.reads[i] };
    match (&step.action, ready) {
        (Action::Gemm(_), PreparedStep::Gemm(g)) => {
            g.run(workers, [reads[0], reads[1]], &step.reads[2..], &reads[2..], outs[0], checks)?;
        }
        (Action::Conv(c), PreparedStep::Gemm(g)) if c.channels_last => {
            g.run(workers, [reads[0], reads[1]], &step.reads[2..], &reads[2..], outs[0], checks)?;
        }
        // The filters are the left operand.
        (Action::Conv(_), PreparedStep::Gemm(g)) => {
            g.run(workers, [reads[1], reads[0]], &step.reads[2..], &reads[2..], outs[0], checks)?;
        }
        (_, PreparedStep::Depthwise(c)) => c.run(workers, reads[0], &step.reads[2..], &reads[2..], outs[0])?,
        (_, PreparedStep::Direct(c)) => c.run(workers, [reads[0], reads[1]], &step.reads[2..], &reads[2..], outs[0])?,
        (Action::Pointwise(p), PreparedStep::Pointwise(code)) => pointwise(p, code, step, reads, workers, outs),
        (Action::Horizontal(_), PreparedStep::Horizontal(code)) => code.run(step, workers, reads, outs)?,
        (Action::Rowwise(r), PreparedStep::Rowwise(code)) => {
            for (read, count) in &r.lookups {
                copies::check(source(*read), *count)?;
            }
            let mut own: SmallVec<[&[u8]; 8]> = SmallVec::new();
            for (i, (bytes, v)) in reads.iter().zip(&step.reads).enumerate() {
                let lowest = || v.offset.saturating_sub(r.layout.before(i)) * v.dtype.size();
                own.push(if v.is_empty() { bytes } else { &bytes[lowest()..] });
            }
            code.run(workers, &own, outs, r.rows)?;
        }
        (Action::Scatter(reduction), PreparedStep::Copies(copies)) => {
            copies.iter().for_each(|w| w.run(workers, reads[0], outs[0]));
            let shape = step.writes.first().map_or(&[] as &[usize], |v| &v.shape);
            copies::scatter(source(1), source(2), *reduction, shape, outs[0])?;
        }
        (Action::Argsort(axis, descending), _) => reduce::argsort(source(0), *axis, *descending, outs[0]),
        (_, PreparedStep::Copies(copies)) => {
            for (window, i) in copies.iter().zip(window_reads(&step.action, reads.len())) {
                window.run(workers, reads[i], outs[0]);
            }
        }
        (_, PreparedStep::Reduce(r)) => r.run(workers, source(0), outs[0]),
        (Action::Gather(axis), _) => copies::gather(workers, source(0), source(1), *axis, outs[0])?,
        (Action::GatherElements(axis), _) => {
            copies::gather_elements(workers, source(0), source(1), *axis, outs[0])?;
        }
        (Action::GatherNd(batch), _) => copies::gather_nd(workers, source(0), source(1), *batch, outs[0])?,
        (Action::Unfold(how), _) => {
            let (x, result) = (&step.reads[0], &step.writes[0]);
            let image = &reads[0][x.offset * x.dtype.size()..];
            unfold(image, &x.shape, how, &result.shape, x.dtype.size(), outs[0]);
        }
        (Action::Pool(how), _) => {
            let (x, result) = (&step.reads[0], &step.writes[0]);
            let image = &reads[0][x.offset * x.dtype.size()..];
            pool(image, x.dtype, &x.shape, how, &result.shape, outs[0])?;
        }
        (Action::Cumsum(how), _) => cumsum::cumsum(workers, source(0), *how, outs[0]),
        (Action::Argmax(axis, last), _) => reduce::argmax(workers, source(0), *axis, *last, outs[0]),
        _ => return Err(Error::Internal("a step that was not prepared".into())),
    }
    Ok(())
}

/// The read of each copy of a step: a pad writes its fill first.
fn window_reads(action: &Action, reads: usize) -> impl Iterator<Item = usize> {
    let pad = matches!(action, Action::Pad(_));
    (0..reads).map(move |i| if pad { 1 - i.min(1) } else { i })
}

fn prepare(plan: &Plan, step: &Step, threads: usize) -> Result<PreparedStep> {
    let program = &plan.program;
    let shape = step.writes.first().map_or(&[] as &[usize], |v| &v.shape);
    // The right operand of a product, or the filters of a convolution.
    let constant = step.reads.get(1).and_then(|v| match plan.buffers[v.buffer.index()].storage {
        Storage::Constant(i) => plan.constants.get(i),
        _ => None,
    });
    Ok(match &step.action {
        Action::Gemm(g) => {
            let code = GemmCode::new(program, g, &step.reads, &step.writes[0], constant, threads)?;
            let in_order = plan.allowed.is_exact() || plan.allowed.batch_invariant;
            PreparedStep::Gemm(Box::new(if in_order { code } else { code.in_any_order() }))
        }
        Action::Conv(c) => {
            let (reads, out) = (&step.reads, &step.writes[0]);
            if c.channels_last && c.groups > 1 && reads.get(1).is_some_and(|w| w.shape[1] > 1) {
                return Err(Error::Internal("groups of channels that lie last are a GPU's".into()));
            }
            if c.channels_last && c.groups > 1 {
                return Ok(PreparedStep::Depthwise(Box::new(DepthwiseCode::new(program, c, reads, out, constant)?)));
            }
            if c.channels_last {
                return Ok(PreparedStep::Gemm(Box::new(GemmCode::conv_last(
                    program, c, reads, out, constant, threads,
                )?)));
            }
            let geometry = Geometry::new(c, reads, out)?;
            if geometry.is_direct() {
                PreparedStep::Direct(Box::new(DirectCode::new(program, c, geometry, reads, out)?))
            } else {
                PreparedStep::Gemm(Box::new(GemmCode::conv(program, c, geometry, reads, out, threads)?))
            }
        }
        Action::Pointwise(p) => {
            let inputs: Vec<DType> = p.kernel.inputs.iter().map(|o| o.dtype).collect();
            PreparedStep::Pointwise(Code::new(program, &p.kernel.term, p.kernel.acc, &inputs, &p.kernel.outputs)?)
        }
        Action::Horizontal(h) => PreparedStep::Horizontal(Box::new(HorizontalCode::new(program, h)?)),
        Action::Rowwise(r) => PreparedStep::Rowwise(Box::new(RowCode::new(program, r)?)),
        Action::Copy | Action::Scatter(_) => PreparedStep::Copies(vec![StridedCopy::copy(&step.reads[0])]),
        Action::Concat(axis) => PreparedStep::Copies(StridedCopy::concat(&step.reads, *axis, shape)),
        Action::Pad(before) => {
            PreparedStep::Copies(StridedCopy::pad(&step.reads[0], &step.reads[1], before, shape).into())
        }
        Action::Reduce(kind, axes) => {
            PreparedStep::Reduce(Reduce::new(&step.reads[0], *kind, axes, plan.allowed.is_exact()))
        }
        Action::Call(e) => {
            PreparedStep::Fallback(e.fallback.iter().map(|s| prepare(plan, s, threads)).collect::<Result<Vec<_>>>()?)
        }
        _ => PreparedStep::Nothing,
    })
}

/// True if a step has enough work for several threads.
fn is_shared(step: &Step, ready: &PreparedStep) -> bool {
    let len = step.writes.first().map_or(0, View::len);
    match (&step.action, ready) {
        (_, PreparedStep::Gemm(g)) => g.is_shared(),
        (_, PreparedStep::Direct(c)) => c.is_shared(),
        (_, PreparedStep::Depthwise(c)) => c.is_shared(),
        (_, PreparedStep::Pointwise(code)) => len > 2 * code.grain(),
        (Action::Rowwise(r), PreparedStep::Rowwise(code)) => code.is_shared(r.rows),
        (_, PreparedStep::Copies(copies)) => copies.iter().any(StridedCopy::is_shared),
        (_, PreparedStep::Reduce(r)) => r.is_shared(),
        (Action::Call(e), PreparedStep::Fallback(parts)) => {
            e.fallback.iter().zip(parts).any(|(s, ready)| is_shared(s, ready))
        }
        _ => len > 1 << 15,
    }
}

fn pointwise(
    p: &PointwiseStep,
    code: &Code,
    step: &Step,
    reads: &[&[u8]],
    workers: &Workers<'_>,
    outs: &mut [&mut [u8]],
) {
    let len = step.writes.first().map_or(0, View::len);
    // The accumulator of a pass after a gemm is the last read.
    let inputs = step.reads.iter().zip(reads).zip(&p.strides).map(|((v, bytes), strides)| Input {
        bytes,
        dtype: v.dtype,
        offset: v.offset,
        strides,
    });
    let work = Work {
        code,
        shape: &p.shape,
        inputs: inputs.collect(),
        in_place: (0..reads.len()).map(|i| step.in_place.iter().position(|r| *r == Some(i))).collect(),
        sizes: p.kernel.outputs.iter().map(|d| d.size()).collect(),
    };
    work.run(workers, outs, len);
}
