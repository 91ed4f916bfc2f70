//! The executor: runs a plan's steps in order.
//!
//! In: a plan for the CPU, then tensors for its inputs. Out: tensors for its outputs. Holds always: a run
//! allocates its outputs and nothing else (memory of finished runs is used again); runs may overlap, each
//! with an arena of its own, all with the same weights.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use hypatia_dsl::dtype::DType;
use smallvec::SmallVec;

use super::gemm_step::GemmCode;
use super::interp::{Banks, Code, Dst, read};
use super::memory::{Bytes, Carved, carve};
use super::moves::{self, Source};
use super::pointwise::{Acc, Input, Memory, Work, Workers};
use super::reduce;
use super::rowwise::RowCode;
use crate::error::{Error, Result};
use crate::plan::{Action, Buffer, Place, Plan, PointwiseStep, Step, View};
use crate::tensor::Tensor;

/// What a step needs beside the plan.
enum Ready {
    Gemm(Box<GemmCode>),
    Pointwise(Code),
    Rowwise(RowCode),
    Nothing,
}

/// Memory of one run.
struct Instance {
    arena: Bytes,
    scratch: Bytes,
    workers: Workers,
}

/// Runs a plan on the CPU.
pub struct Executor {
    plan: Arc<Plan>,
    ready: Vec<Ready>,
    /// Constants of narrow floats that are multiplied, widened to f32, by their index in the plan.
    wide: HashMap<usize, Vec<f32>>,
    scratch: usize,
    threads: usize,
    pool: Option<rayon::ThreadPool>,
    idle: Mutex<Vec<Instance>>,
    poison: bool,
}

impl Executor {
    /// Prepares a plan for so many threads; 0 means one for each core.
    pub fn new(plan: Arc<Plan>, threads: usize) -> Result<Executor> {
        let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
        let threads = if threads == 0 { cores() } else { threads.min(1024) };
        let pool = match threads {
            1 => None,
            n => {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(n).build();
                Some(pool.map_err(|e| Error::Limit(format!("cannot start {n} threads: {e}")))?)
            }
        };
        let ready = plan.steps.iter().map(|s| prepare(&plan, s)).collect::<Result<Vec<_>>>()?;
        let mut e = Executor {
            plan,
            ready,
            wide: HashMap::new(),
            scratch: 0,
            threads,
            pool,
            idle: Mutex::new(Vec::new()),
            poison: false,
        };
        e.widen_constants();
        let needs = e.plan.steps.iter().zip(&e.ready).map(|(s, r)| e.scratch_parts(s, r).iter().sum::<usize>());
        e.scratch = needs.max().unwrap_or(0);
        Ok(e)
    }

    /// Fills the arena with NaN before each run, so that reading what was not written shows.
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

    /// Runs once. The inputs stand in the plan's order.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.check(inputs)?;
        let mut instance = match self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            Some(instance) => instance,
            None => self.instance()?,
        };
        if self.poison {
            instance.arena.poison(0xff);
            instance.scratch.poison(0xff);
        }
        let result = match &self.pool {
            Some(pool) => pool.install(|| self.steps(&mut instance, inputs)),
            None => self.steps(&mut instance, inputs),
        };
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(instance);
        result
    }

    fn instance(&self) -> Result<Instance> {
        let banks = (0..self.threads).map(|_| Mutex::new(Banks::default())).collect();
        let (arena, scratch) = (Bytes::new(self.plan.arena)?, Bytes::new(self.scratch)?);
        Ok(Instance { arena, scratch, workers: Workers { banks } })
    }

    fn check(&self, inputs: &[Tensor]) -> Result<()> {
        if inputs.len() != self.plan.inputs.len() {
            let (got, wanted) = (inputs.len(), self.plan.inputs.len());
            return Err(Error::Input(format!("{got} inputs were given, the plan has {wanted}")));
        }
        for (t, i) in inputs.iter().zip(&self.plan.inputs) {
            if t.dtype() != i.dtype || t.shape() != i.shape {
                let got = format!("{}{:?}", t.dtype(), t.shape());
                return Err(Error::Input(format!("input `{}` must be {}{:?}, but is {got}", i.name, i.dtype, i.shape)));
            }
        }
        Ok(())
    }

    fn steps(&self, instance: &mut Instance, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        for (step, ready) in self.plan.steps.iter().zip(&self.ready) {
            self.step(step, ready, instance, inputs).map_err(|e| match e {
                Error::Input(m) => Error::Input(format!("node `{}`: {m}", step.name)),
                Error::Internal(m) => Error::Internal(format!("step `{}`: {m}", step.name)),
                e => e,
            })?;
        }
        let rest = carve(instance.arena.as_mut(), &[])?;
        let output = |view: &View| {
            let bytes = self.bytes(view, &rest, inputs)?;
            let size = view.dtype.size();
            let bytes = bytes.get(view.offset * size..(view.offset + view.len()) * size);
            let tensor = bytes.and_then(|b| Tensor::from_bytes(view.dtype, &view.shape, b));
            tensor.ok_or_else(|| Error::Internal(format!("an output of shape {:?} was not written", view.shape)))
        };
        self.plan.outputs.iter().map(|(_, view)| output(view)).collect()
    }

    fn buffer(&self, view: &View) -> &Buffer {
        &self.plan.buffers[view.buffer.index()]
    }

    /// The whole buffer that a view looks at.
    fn bytes<'a>(&'a self, view: &View, carved: &Carved<'a>, inputs: &'a [Tensor]) -> Result<&'a [u8]> {
        let buffer = self.buffer(view);
        match buffer.place {
            Place::Input(i) => Ok(inputs[i].bytes()),
            Place::Constant(i) => Ok(self.plan.constants[i].bytes()),
            Place::Arena(offset) => carved.read(offset, buffer.len * buffer.dtype.size()),
        }
    }

    fn step(&self, step: &Step, ready: &Ready, instance: &mut Instance, inputs: &[Tensor]) -> Result<()> {
        let range = |v: &View| match self.buffer(v).place {
            Place::Arena(offset) => Ok((offset, self.buffer(v).len * v.dtype.size())),
            _ => Err(Error::Internal("a write outside of the arena".into())),
        };
        let writes = step.writes.iter().map(range).collect::<Result<SmallVec<[(usize, usize); 4]>>>()?;
        let mut carved = carve(instance.arena.as_mut(), &writes)?;
        let mut outs = std::mem::take(&mut carved.outs);
        let mut reads: SmallVec<[&[u8]; 8]> = SmallVec::new();
        for (i, v) in step.reads.iter().enumerate() {
            let in_place = step.in_place.contains(&Some(i));
            reads.push(if in_place { &[] } else { self.bytes(v, &carved, inputs)? });
        }
        let source = |i: usize| Source { bytes: reads[i], view: &step.reads[i] };
        let shape = step.writes.first().map_or(&[] as &[usize], |v| &v.shape);
        match (&step.action, ready) {
            (Action::Gemm(_), Ready::Gemm(g)) => {
                let parts = self.scratch_parts(step, ready);
                let (a, rest) = instance.scratch.as_mut().split_at_mut(parts[0]);
                let (b, panel) = rest.split_at_mut(parts[1]);
                let a = self.operand(g, step, 0, reads[0], a);
                let b = self.operand(g, step, 1, reads[1], b);
                g.run(&instance.workers, [a, b], &step.reads[2..], &reads[2..], outs[0], panel)?;
            }
            (Action::Pointwise(p), Ready::Pointwise(code)) => {
                pointwise(p, code, step, &reads, &instance.workers, &mut outs);
            }
            (Action::Rowwise(r), Ready::Rowwise(code)) => {
                let mut own: SmallVec<[&[u8]; 8]> = SmallVec::new();
                for (bytes, v) in reads.iter().zip(&step.reads) {
                    own.push(&bytes[v.offset * v.dtype.size()..]);
                }
                code.run(&instance.workers, &own, &mut outs, 0, r.rows);
            }
            (Action::Copy, _) => moves::copy(source(0), outs[0]),
            (Action::Concat(axis), _) => {
                let xs: SmallVec<[Source<'_>; 8]> = (0..reads.len()).map(source).collect();
                moves::concat(&xs, *axis, shape, outs[0]);
            }
            (Action::Pad(before), _) => moves::pad(source(0), source(1), before, shape, outs[0]),
            (Action::Gather(axis), _) => moves::gather(source(0), source(1), *axis, outs[0])?,
            (Action::GatherElements(axis), _) => moves::gather_elements(source(0), source(1), *axis, outs[0])?,
            (Action::GatherNd(batch), _) => moves::gather_nd(source(0), source(1), *batch, outs[0])?,
            (Action::Reduce(kind, axes), _) => reduce::reduce(source(0), *kind, axes, outs[0]),
            (Action::Argmax(axis, last), _) => reduce::argmax(source(0), *axis, *last, outs[0]),
            _ => return Err(Error::Internal("a step that was not prepared".into())),
        }
        Ok(())
    }

    /// An operand of a product in the type that is multiplied: as it lies, widened before, or widened now.
    fn operand<'a>(
        &'a self,
        g: &GemmCode,
        step: &Step,
        side: usize,
        bytes: &'a [u8],
        scratch: &'a mut [u8],
    ) -> &'a [u8] {
        let buffer = self.buffer(&step.reads[side]);
        if !g.widens(side) {
            return bytes;
        }
        if let Place::Constant(i) = buffer.place
            && let Some(wide) = self.wide.get(&i)
        {
            return bytemuck::cast_slice(wide);
        }
        let wide: &mut [f32] = bytemuck::cast_slice_mut(&mut scratch[..buffer.len * 4]);
        read(bytes, buffer.dtype, 0, 1, Dst::F32(wide));
        bytemuck::cast_slice(wide)
    }

    fn widen_constants(&mut self) {
        let mut wide = HashMap::new();
        for (step, ready) in self.plan.steps.iter().zip(&self.ready) {
            let Ready::Gemm(g) = ready else { continue };
            for side in 0..2 {
                let buffer = self.buffer(&step.reads[side]);
                let Place::Constant(i) = buffer.place else { continue };
                if g.widens(side) && !wide.contains_key(&i) {
                    let mut values = vec![0f32; buffer.len];
                    read(self.plan.constants[i].bytes(), buffer.dtype, 0, 1, Dst::F32(&mut values));
                    wide.insert(i, values);
                }
            }
        }
        self.wide = wide;
    }

    /// Bytes of scratch memory for the two operands of a product and its accumulators.
    fn scratch_parts(&self, step: &Step, ready: &Ready) -> [usize; 3] {
        let Ready::Gemm(g) = ready else { return [0; 3] };
        let side = |i: usize| {
            let buffer = self.buffer(&step.reads[i]);
            let constant = matches!(buffer.place, Place::Constant(_));
            if g.widens(i) && !constant { (buffer.len * 4).next_multiple_of(64) } else { 0 }
        };
        [side(0), side(1), g.panel_bytes().next_multiple_of(64)]
    }
}

fn prepare(plan: &Plan, step: &Step) -> Result<Ready> {
    let program = &plan.program;
    Ok(match &step.action {
        Action::Gemm(g) => Ready::Gemm(Box::new(GemmCode::new(program, g, &step.reads, &step.writes[0])?)),
        Action::Pointwise(p) => {
            let inputs: Vec<DType> = p.kernel.inputs.iter().map(|o| o.dtype).collect();
            Ready::Pointwise(Code::new(program, &p.kernel.term, p.kernel.acc, &inputs, &p.kernel.outputs)?)
        }
        Action::Rowwise(r) => Ready::Rowwise(RowCode::new(program, &r.kernel, r.n)?),
        _ => Ready::Nothing,
    })
}

fn pointwise(p: &PointwiseStep, code: &Code, step: &Step, reads: &[&[u8]], workers: &Workers, outs: &mut [&mut [u8]]) {
    let len = step.writes.first().map_or(0, View::len);
    // The accumulator of a pass behind a gemm is the last read.
    let count = p.kernel.inputs.len();
    let inputs = step.reads[..count].iter().enumerate().map(|(i, v)| Input {
        memory: match step.in_place.iter().position(|r| *r == Some(i)) {
            Some(out) => Memory::Out(out),
            None => Memory::Bytes(reads[i]),
        },
        dtype: v.dtype,
        offset: v.offset,
        strides: &p.strides[i],
    });
    let acc_in_place = step.in_place.iter().position(|r| *r == Some(count));
    let acc = match (p.kernel.acc, acc_in_place) {
        (None, _) => Acc::None,
        (Some(_), Some(_)) => Acc::InPlace,
        (Some(_), None) => Acc::Bytes(reads[count], 0),
    };
    let work = Work {
        code,
        shape: &p.shape,
        inputs: inputs.collect(),
        acc: p.kernel.acc.unwrap_or(DType::F32),
        sizes: p.kernel.outputs.iter().map(|d| d.size()).collect(),
    };
    work.run(workers, acc, outs, 0, len);
}
