//! The executor: runs a plan's steps in order.
//!
//! In: a plan for the CPU, then tensors for its inputs. Out: tensors for its outputs. Invariant: a
//! run allocates only its outputs (memory of finished runs is reused); runs may overlap, each with
//! its own arena, all with the same weights and threads.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hypatia_dsl::dtype::DType;
use smallvec::SmallVec;

use super::conv::DirectCode;
use super::copies::{self, StridedCopy};
use super::cumsum;
use super::depthwise::DepthwiseCode;
use super::gemm::GemmCode;
use super::im2col::Geometry;
use super::interp::Code;
use super::memory::{Bytes, SplitArena, split_arena};
use super::operand::Operand;
use super::pointwise::{Input, Work};
use super::reduce::{self, Reduce};
use super::rowwise::RowCode;
use super::threads::{Local, Pool, Workers};
use hypatia_plan::{Action, Buffer, Plan, PointwiseStep, Step, Storage, View};
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
    Rowwise(Box<RowCode>),
    /// One copy per read, in the order of the writes.
    Copies(Vec<StridedCopy>),
    Reduce(Reduce),
    /// The nested steps of a composite step.
    Parts(Vec<PreparedStep>),
    Nothing,
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
    threads: usize,
    pool: Option<Arc<Pool>>,
    /// True if a step has enough work for several threads.
    shared: bool,
    idle: Mutex<Vec<Instance>>,
    poison: bool,
}

impl Executor {
    /// Prepares a plan for this many threads; 0 means one per core.
    pub fn new(plan: Arc<Plan>, threads: usize) -> Result<Executor> {
        let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
        let threads = if threads == 0 { cores() } else { threads.min(1024) };
        let pool = if threads == 1 { None } else { Some(Pool::of(threads)?) };
        let ready = plan.steps.iter().map(|s| prepare(&plan, s, threads)).collect::<Result<Vec<_>>>()?;
        let shared = pool.is_some() && plan.steps.iter().zip(&ready).any(|(s, r)| is_shared(s, r));
        Ok(Executor { plan, ready, threads, pool, shared, idle: Mutex::new(Vec::new()), poison: false })
    }

    /// Poisons the arena with NaN before each run, so that reads of unwritten memory show.
    pub fn poisoned(mut self) -> Executor {
        self.poison = true;
        self
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs once. The inputs are in the plan's order.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.run_with(inputs, None)
    }

    /// Runs once, and adds each step's duration to `times`.
    pub fn run_timed(&self, inputs: &[Tensor], times: &mut [Duration]) -> Result<Vec<Tensor>> {
        self.run_with(inputs, Some(times))
    }

    fn run_with(&self, inputs: &[Tensor], times: Option<&mut [Duration]>) -> Result<Vec<Tensor>> {
        self.plan.check_inputs(inputs)?;
        let mut instance = match self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            Some(instance) => instance,
            None => self.instance()?,
        };
        if self.poison {
            instance.arena.poison(0xff);
        }
        let awake = self.pool.as_deref().filter(|_| self.shared).map(Pool::awake);
        let result = self.steps(&mut instance, inputs, times);
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
        inputs: &[Tensor],
        mut times: Option<&mut [Duration]>,
    ) -> Result<Vec<Tensor>> {
        for (i, (step, ready)) in self.plan.steps.iter().zip(&self.ready).enumerate() {
            let start = times.is_some().then(Instant::now);
            self.step(step, ready, instance, inputs).map_err(|e| match e {
                Error::Input(m) => Error::Input(format!("node `{}`: {m}", step.name)),
                Error::Internal(m) => Error::Internal(format!("step `{}`: {m}", step.name)),
                e => e,
            })?;
            if let (Some(start), Some(time)) = (start, times.as_deref_mut().and_then(|t| t.get_mut(i))) {
                *time += start.elapsed();
            }
        }
        let rest = split_arena(instance.arena.as_mut(), &[])?;
        let output = |view: &View| {
            let bytes = self.bytes(view, &rest, inputs)?;
            let size = view.dtype.size();
            // The offset of an empty view may lie past the end.
            let first = if view.is_empty() { 0 } else { view.offset };
            let bytes = bytes.get(first * size..(first + view.len()) * size);
            let tensor = bytes.and_then(|b| Tensor::from_bytes(view.dtype, &view.shape, b));
            tensor.ok_or_else(|| Error::Internal(format!("an output of shape {:?} was not written", view.shape)))
        };
        self.plan.outputs.iter().map(|(_, view)| output(view)).collect()
    }

    fn buffer(&self, view: &View) -> &Buffer {
        &self.plan.buffers[view.buffer.index()]
    }

    /// The whole buffer of a view.
    fn bytes<'a>(&'a self, view: &View, arena: &SplitArena<'a>, inputs: &'a [Tensor]) -> Result<&'a [u8]> {
        let buffer = self.buffer(view);
        match buffer.storage {
            Storage::Input(i) => Ok(inputs[i].bytes()),
            Storage::Constant(i) => Ok(self.plan.constants[i].bytes()),
            Storage::Arena(offset) => arena.read(offset, buffer.len * buffer.dtype.size()),
        }
    }

    fn step(&self, step: &Step, ready: &PreparedStep, instance: &mut Instance, inputs: &[Tensor]) -> Result<()> {
        if step.writes.iter().all(View::is_empty) {
            return Ok(());
        }
        if let (Action::Call(e), PreparedStep::Parts(parts)) = (&step.action, ready) {
            return e.fallback.iter().zip(parts).try_for_each(|(s, ready)| self.step(s, ready, instance, inputs));
        }
        let range = |v: &View| match self.buffer(v).storage {
            Storage::Arena(offset) => Ok((offset, self.buffer(v).len * v.dtype.size())),
            _ => Err(Error::Internal("a write outside of the arena".into())),
        };
        let writes = step.writes.iter().map(range).collect::<Result<SmallVec<[(usize, usize); 4]>>>()?;
        let mut arena = split_arena(instance.arena.as_mut(), &writes)?;
        let mut outs = std::mem::take(&mut arena.outs);
        let mut reads: SmallVec<[&[u8]; 8]> = SmallVec::new();
        for (i, v) in step.reads.iter().enumerate() {
            let in_place = step.in_place.contains(&Some(i));
            reads.push(if in_place { &[] } else { self.bytes(v, &arena, inputs)? });
        }
        let source = |i: usize| Operand { bytes: reads[i], view: &step.reads[i] };
        let pool = self.pool.as_deref().filter(|_| self.shared);
        let workers = Workers { pool, locals: &instance.locals };
        match (&step.action, ready) {
            (Action::Gemm(_), PreparedStep::Gemm(g)) => {
                g.run(&workers, [reads[0], reads[1]], &step.reads[2..], &reads[2..], outs[0])?;
            }
            (Action::Conv(c), PreparedStep::Gemm(g)) if c.channels_last => {
                g.run(&workers, [reads[0], reads[1]], &step.reads[2..], &reads[2..], outs[0])?;
            }
            // The filters are the left operand.
            (Action::Conv(_), PreparedStep::Gemm(g)) => {
                g.run(&workers, [reads[1], reads[0]], &step.reads[2..], &reads[2..], outs[0])?;
            }
            (_, PreparedStep::Depthwise(c)) => c.run(&workers, reads[0], &step.reads[2..], &reads[2..], outs[0])?,
            (_, PreparedStep::Direct(c)) => {
                c.run(&workers, [reads[0], reads[1]], &step.reads[2..], &reads[2..], outs[0])?
            }
            (Action::Pointwise(p), PreparedStep::Pointwise(code)) => {
                pointwise(p, code, step, &reads, &workers, &mut outs)
            }
            (Action::Rowwise(r), PreparedStep::Rowwise(code)) => {
                let mut own: SmallVec<[&[u8]; 8]> = SmallVec::new();
                for (bytes, v) in reads.iter().zip(&step.reads) {
                    own.push(if v.is_empty() { bytes } else { &bytes[v.offset * v.dtype.size()..] });
                }
                code.run(&workers, &own, &mut outs, r.rows);
            }
            (Action::Scatter(how), PreparedStep::Copies(copies)) => {
                copies.iter().for_each(|w| w.run(&workers, reads[0], outs[0]));
                let shape = step.writes.first().map_or(&[] as &[usize], |v| &v.shape);
                copies::scatter(source(1), source(2), *how, shape, outs[0])?;
            }
            (Action::Argsort(axis, descending), _) => reduce::argsort(source(0), *axis, *descending, outs[0]),
            (_, PreparedStep::Copies(copies)) => {
                for (window, i) in copies.iter().zip(window_reads(&step.action, reads.len())) {
                    window.run(&workers, reads[i], outs[0]);
                }
            }
            (_, PreparedStep::Reduce(r)) => r.run(&workers, source(0), outs[0]),
            (Action::Gather(axis), _) => copies::gather(&workers, source(0), source(1), *axis, outs[0])?,
            (Action::GatherElements(axis), _) => {
                copies::gather_elements(&workers, source(0), source(1), *axis, outs[0])?;
            }
            (Action::GatherNd(batch), _) => copies::gather_nd(&workers, source(0), source(1), *batch, outs[0])?,
            (Action::Cumsum(how), _) => cumsum::cumsum(&workers, source(0), *how, outs[0]),
            (Action::Argmax(axis, last), _) => reduce::argmax(&workers, source(0), *axis, *last, outs[0]),
            _ => return Err(Error::Internal("a step that was not prepared".into())),
        }
        Ok(())
    }
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
            PreparedStep::Gemm(Box::new(GemmCode::new(program, g, &step.reads, &step.writes[0], constant, threads)?))
        }
        Action::Conv(c) => {
            let (reads, out) = (&step.reads, &step.writes[0]);
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
        Action::Rowwise(r) => PreparedStep::Rowwise(Box::new(RowCode::new(program, r)?)),
        Action::Copy | Action::Scatter(_) => PreparedStep::Copies(vec![StridedCopy::copy(&step.reads[0])]),
        Action::Concat(axis) => PreparedStep::Copies(StridedCopy::concat(&step.reads, *axis, shape)),
        Action::Pad(before) => {
            PreparedStep::Copies(StridedCopy::pad(&step.reads[0], &step.reads[1], before, shape).into())
        }
        Action::Reduce(kind, axes) => PreparedStep::Reduce(Reduce::new(&step.reads[0], *kind, axes)),
        Action::Call(e) => {
            PreparedStep::Parts(e.fallback.iter().map(|s| prepare(plan, s, threads)).collect::<Result<Vec<_>>>()?)
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
        (Action::Call(e), PreparedStep::Parts(parts)) => {
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
