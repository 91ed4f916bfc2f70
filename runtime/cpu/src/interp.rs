//! Scalar terms on blocks of elements: a register machine whose registers are short vectors.
//!
//! In: lowered terms. Out: [`Code`], run on [`BLOCK`] elements at a time, so that every function is
//! one tight loop, compiled for this machine's vectors, and all registers stay in the L1 cache.
//! Invariant: a destination register is never one of the arguments; literals keep their registers
//! for the whole step; the bits of a result do not depend on the vector width.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::{DType, F8E4M3, F8E5M2};
use hypatia_dsl::ir::Program;
use hypatia_dsl::scalar::typed::{Source, Typed, TypedNode, TypedOp, inlined, lane};
use hypatia_dsl::scalar::{Literal, Term};

use super::math;
use super::simd::dispatch;
use hypatia_eval::{Val, convert, scalars, wrap};
use hypatia_tensor::error::Result;

/// Elements of a register.
pub const BLOCK: usize = 512;

/// An instruction; its registers are indices into the bank of their lane.
#[derive(Clone, Copy, Debug)]
struct Instr {
    op: TypedOp,
    lane: DType,
    /// Lane of the first number argument.
    from: DType,
    dst: usize,
    args: [usize; 3],
    /// True for a load whose users can read memory directly instead of the register.
    direct: bool,
}

/// Maximum number of registers that may be read directly from memory.
const DIRECT: usize = 16;

/// Memory that replaces an f32 register.
type Directs<'a> = [Option<&'a [f32]>; DIRECT];

/// A compiled term.
#[derive(Clone, Debug)]
pub struct Code {
    instrs: Vec<Instr>,
    literals: Vec<(DType, usize, f64)>,
    /// Lane and register of each result, and its storage type.
    pub roots: Vec<(DType, usize, DType)>,
    /// For each result, the number of instructions that it and the results before it need.
    ends: Vec<usize>,
    /// Registers of each bank: f32, f64, integers, bool.
    counts: [usize; 4],
}

fn bank(lane: DType) -> usize {
    match lane {
        DType::F64 => 1,
        d if d.is_float() => 0,
        DType::Bool => 3,
        _ => 2,
    }
}

/// Registers. Each thread has one set, which all steps share.
#[derive(Default)]
pub struct Registers {
    f32s: Vec<Vec<f32>>,
    f64s: Vec<Vec<f64>>,
    ints: Vec<Vec<i64>>,
    bools: Vec<Vec<u8>>,
}

/// A register to fill.
pub enum Dst<'a> {
    /// f32 and narrower floats.
    F32(&'a mut [f32]),
    /// f64.
    F64(&'a mut [f64]),
    /// Integers.
    Int(&'a mut [i64]),
    /// Truth values.
    Bool(&'a mut [u8]),
}

/// Where a term's operands come from.
pub trait Loader {
    /// Fills `dst` with the elements of the index space from `start` on.
    fn load(&self, source: Source, start: usize, dst: Dst<'_>);

    /// The elements that [`Loader::load`] would give, if they are contiguous f32 in memory.
    fn direct(&self, _source: Source, _start: usize, _len: usize) -> Option<&[f32]> {
        None
    }
}

impl Code {
    /// Compiles a term; `outs` are the storage types of its results.
    pub fn new(program: &Program, term: &Term, acc: Option<DType>, inputs: &[DType], outs: &[DType]) -> Result<Code> {
        Ok(Code::merged(&[lowered(program, term, acc, inputs, outs)?], outs))
    }

    /// Compiles terms that run one after another on the same block, each with one result. Shared
    /// subexpressions are computed once. `outs` are the types of all results.
    pub fn staged(program: &Program, terms: &[&Term], inputs: &[DType], outs: &[DType]) -> Result<Code> {
        let flats = terms.iter().zip(outs).map(|(term, out)| lowered(program, term, None, inputs, &[*out]));
        Ok(Code::merged(&flats.collect::<Result<Vec<_>>>()?, outs))
    }

    fn merged(flats: &[Typed], outs: &[DType]) -> Code {
        let (typed, ends) = Typed::merged(flats);
        allocate(&typed, &ends, outs)
    }

    /// Allocates registers for blocks of [`BLOCK`] elements, and fills those of literals.
    pub fn start(&self, registers: &mut Registers) {
        self.start_wide(registers, BLOCK);
    }

    /// As [`Code::start`], for blocks of `width` elements.
    pub fn start_wide(&self, registers: &mut Registers, width: usize) {
        fn grow<T: Copy>(bank: &mut Vec<Vec<T>>, count: usize, width: usize, zero: T) {
            if bank.len() < count {
                bank.resize_with(count, Vec::new);
            }
            for register in bank[..count].iter_mut().filter(|r| r.len() < width) {
                register.resize(width, zero);
            }
        }
        grow(&mut registers.f32s, self.counts[0], width, 0.0);
        grow(&mut registers.f64s, self.counts[1], width, 0.0);
        grow(&mut registers.ints, self.counts[2], width, 0);
        grow(&mut registers.bools, self.counts[3], width, 0);
        for (lane, reg, value) in &self.literals {
            match bank(*lane) {
                0 => registers.f32s[*reg][..width].fill(*value as f32),
                1 => registers.f64s[*reg][..width].fill(*value),
                2 => registers.ints[*reg][..width].fill(lane.round(*value) as i64),
                _ => registers.bools[*reg][..width].fill((*value != 0.0) as u8),
            }
        }
    }

    /// Minimum number of elements for a separate task: a few microseconds of work.
    pub fn grain(&self) -> usize {
        let cost = |i: &Instr| match i.op {
            TypedOp::Apply(b, _) => b.cost().host,
            _ => 1,
        };
        // Reading and writing memory costs as much as some functions.
        (1usize << 16) / (4 + self.instrs.iter().map(cost).sum::<usize>())
    }

    /// Runs on `len` elements from `start` on.
    pub fn run(&self, registers: &mut Registers, loader: &dyn Loader, start: usize, len: usize) {
        run(&self.instrs, registers, loader, start, len);
    }

    /// Runs the instructions of result `index` that did not run for the results before it.
    pub fn run_root(&self, registers: &mut Registers, loader: &dyn Loader, index: usize, start: usize, len: usize) {
        let from = if index == 0 { 0 } else { self.ends[index - 1] };
        run(&self.instrs[from..self.ends[index]], registers, loader, start, len);
    }

    /// Passes the first `len` elements of result `index` of the last run to `f` as f64.
    pub fn root_f64(&self, registers: &Registers, index: usize, len: usize, mut f: impl FnMut(f64)) {
        let (lane, reg, _) = self.roots[index];
        match bank(lane) {
            0 => registers.f32s[reg][..len].iter().for_each(|v| f(*v as f64)),
            1 => registers.f64s[reg][..len].iter().for_each(|v| f(*v)),
            2 => registers.ints[reg][..len].iter().for_each(|v| f(*v as f64)),
            _ => registers.bools[reg][..len].iter().for_each(|v| f(*v as f64)),
        }
    }

    /// Result `index` of the last run, if it is in an f32 lane.
    pub fn root_f32<'a>(&self, registers: &'a Registers, index: usize, len: usize) -> Option<&'a [f32]> {
        let (lane, reg, _) = self.roots[index];
        (bank(lane) == 0).then(|| &registers.f32s[reg][..len])
    }

    /// Result `index` of the last run, if it is in a lane of integers.
    pub fn root_int<'a>(&self, registers: &'a Registers, index: usize, len: usize) -> Option<&'a [i64]> {
        let (lane, reg, _) = self.roots[index];
        (bank(lane) == 2).then(|| &registers.ints[reg][..len])
    }

    /// Stores result `index` of the last run into elements `start..start + len` of an output.
    pub fn store(&self, registers: &Registers, index: usize, out: &mut [u8], start: usize, len: usize) {
        let size = self.roots[index].2.size();
        self.store_at(registers, index, 0, &mut out[start * size..(start + len) * size]);
    }

    /// Stores result `index` of the last run from element `from` of the block on, as many elements
    /// as `out` holds.
    pub fn store_at(&self, registers: &Registers, index: usize, from: usize, out: &mut [u8]) {
        let (_, reg, dtype) = self.roots[index];
        macro_rules! put {
            ($bank:ident, $t:ty, $f:expr) => {{
                let to: &mut [$t] = bytemuck::cast_slice_mut(out);
                to.iter_mut().zip(&registers.$bank[reg][from..]).for_each(|(o, v)| *o = $f(*v));
            }};
        }
        match dtype {
            DType::F32 => copy(&registers.f32s[reg][from..], out),
            DType::F16 => {
                let to: &mut [f16] = bytemuck::cast_slice_mut(out);
                to.convert_from_f32_slice(&registers.f32s[reg][from..from + to.len()]);
            }
            DType::BF16 => put!(f32s, bf16, bf16::from_f32),
            DType::F8E4M3 => put!(f32s, F8E4M3, F8E4M3::from_f32),
            DType::F8E5M2 => put!(f32s, F8E5M2, F8E5M2::from_f32),
            DType::F64 => copy(&registers.f64s[reg][from..], out),
            DType::I64 => copy(&registers.ints[reg][from..], out),
            DType::I32 => put!(ints, i32, |v: i64| v as i32),
            DType::I8 => put!(ints, i8, |v: i64| v as i8),
            DType::U8 => put!(ints, u8, |v: i64| v as u8),
            DType::Bool => copy(&registers.bools[reg][from..], out),
        }
    }
}

impl Code {
    /// Stores elements `which` of the last run into an output: the first at `at`, then every
    /// `stride` elements.
    pub fn store_strided(
        &self,
        registers: &Registers,
        index: usize,
        out: &mut [u8],
        which: std::ops::Range<usize>,
        at: usize,
        stride: usize,
    ) {
        let (_, reg, dtype) = self.roots[index];
        macro_rules! put {
            ($bank:ident, $t:ty, $f:expr) => {{
                let out: &mut [$t] = bytemuck::cast_slice_mut(out);
                let values = &registers.$bank[reg][which];
                out[at..].iter_mut().step_by(stride.max(1)).zip(values).for_each(|(o, v)| *o = $f(*v));
            }};
        }
        match dtype {
            DType::F32 => put!(f32s, f32, |v| v),
            DType::F16 => put!(f32s, f16, f16::from_f32),
            DType::BF16 => put!(f32s, bf16, bf16::from_f32),
            DType::F8E4M3 => put!(f32s, F8E4M3, F8E4M3::from_f32),
            DType::F8E5M2 => put!(f32s, F8E5M2, F8E5M2::from_f32),
            DType::F64 => put!(f64s, f64, |v| v),
            DType::I64 => put!(ints, i64, |v| v),
            DType::I32 => put!(ints, i32, |v: i64| v as i32),
            DType::I8 => put!(ints, i8, |v: i64| v as i8),
            DType::U8 => put!(ints, u8, |v: i64| v as u8),
            DType::Bool => put!(bools, u8, |v| v),
        }
    }
}

fn lowered(program: &Program, term: &Term, acc: Option<DType>, inputs: &[DType], outs: &[DType]) -> Result<Typed> {
    let mut typed = inlined(program, term, acc, inputs)?;
    let fits = typed.roots.clone().into_iter().zip(outs).map(|(root, out)| store_as(&mut typed, root, *out));
    typed.roots = fits.collect();
    Ok(simplified(typed))
}

/// Copies the first elements of a register without conversion.
fn copy<T: bytemuck::NoUninit>(register: &[T], out: &mut [u8]) {
    let bytes: &[u8] = bytemuck::cast_slice(register);
    out.copy_from_slice(&bytes[..out.len()]);
}

/// Converts a result to the lane of its storage type. An f64 is rounded to a narrower type
/// directly, without an intermediate f32 (no double rounding).
fn store_as(typed: &mut Typed, root: u32, out: DType) -> u32 {
    let (from, to) = (typed.nodes[root as usize].ty, lane(out));
    let mut root = root;
    let mut push = |ty, op| {
        typed.nodes.push(TypedNode { ty, op });
        typed.nodes.len() as u32 - 1
    };
    if from == DType::F64 && out.is_float() && to == DType::F32 && out != DType::F32 {
        root = push(from, TypedOp::Round(out, root));
    }
    if from != to {
        root = push(to, TypedOp::Convert(root));
    }
    root
}

/// Replaces powers of 2 by squares: bit-identical, and without a call.
fn simplified(mut typed: Typed) -> Typed {
    for i in 0..typed.nodes.len() {
        if let TypedOp::Apply(BuiltinScalar::Pow, [a, b, c]) = typed.nodes[i].op
            && typed.nodes[b as usize].op == TypedOp::Lit(Literal(2.0))
        {
            typed.nodes[i].op = TypedOp::Apply(BuiltinScalar::Mul, [a, a, c]);
        }
    }
    typed
}

fn args_of(op: TypedOp) -> ([u32; 3], usize) {
    match op {
        TypedOp::Apply(f, args) => (args, f.params().len()),
        TypedOp::Convert(a) | TypedOp::Round(_, a) => ([a, 0, 0], 1),
        TypedOp::Load(_) | TypedOp::Lit(_) => ([0; 3], 0),
    }
}

/// Linear-scan register allocation: a register is free after the last use of its value. `ends`
/// holds for each result the number of steps that it and the results before it need.
fn allocate(typed: &Typed, ends: &[usize], outs: &[DType]) -> Code {
    let mut last = vec![0usize; typed.nodes.len()];
    for (i, step) in typed.nodes.iter().enumerate() {
        let (args, n) = args_of(step.op);
        args[..n].iter().for_each(|a| last[*a as usize] = i);
    }
    typed.roots.iter().for_each(|r| last[*r as usize] = usize::MAX);
    let mut code =
        Code { instrs: Vec::new(), literals: Vec::new(), roots: Vec::new(), ends: Vec::new(), counts: [0; 4] };
    let mut free: [Vec<usize>; 4] = Default::default();
    let mut regs: Vec<usize> = Vec::with_capacity(typed.nodes.len());
    // Number of instructions before each step.
    let mut before: Vec<usize> = Vec::with_capacity(typed.nodes.len() + 1);
    for (i, step) in typed.nodes.iter().enumerate() {
        before.push(code.instrs.len());
        let b = bank(step.ty);
        let mut new = |free: &mut Vec<usize>| {
            free.pop().unwrap_or_else(|| {
                code.counts[b] += 1;
                code.counts[b] - 1
            })
        };
        if let TypedOp::Lit(Literal(v)) = step.op {
            // A literal has its own register, which is filled once, before the first block.
            let reg = new(&mut Vec::new());
            code.literals.push((step.ty, reg, v));
            regs.push(reg);
            continue;
        }
        let dst = new(&mut free[b]);
        regs.push(dst);
        let (args, n) = args_of(step.op);
        let mut registers = [0; 3];
        for (slot, a) in registers.iter_mut().zip(&args[..n]) {
            *slot = regs[*a as usize];
        }
        let from = if n > 0 { typed.nodes[args[0] as usize].ty } else { step.ty };
        let direct = dst < DIRECT && reads_memory(typed, i, last[i], ends);
        code.instrs.push(Instr { op: step.op, lane: step.ty, from, dst, args: registers, direct });
        for (k, a) in args[..n].iter().enumerate() {
            let again = args[..k].contains(a);
            let a = *a as usize;
            if last[a] == i && !again && !matches!(typed.nodes[a].op, TypedOp::Lit(_)) {
                free[bank(typed.nodes[a].ty)].push(regs[a]);
            }
        }
        // An unused result frees its register immediately.
        if last[i] == 0 {
            free[b].push(dst);
        }
    }
    before.push(code.instrs.len());
    code.ends = ends.iter().map(|e| before[*e]).collect();
    code.roots =
        typed.roots.iter().zip(outs).map(|(r, out)| (typed.nodes[*r as usize].ty, regs[*r as usize], *out)).collect();
    code
}

/// True for a load that only f32 functions of the same result read; `last` is the last of these.
fn reads_memory(typed: &Typed, load: usize, last: usize, ends: &[usize]) -> bool {
    let step = &typed.nodes[load];
    let end = ends.iter().copied().find(|end| *end > load).unwrap_or(0);
    let fits = |user: &TypedNode| {
        let (args, n) = args_of(user.op);
        !args[..n].contains(&(load as u32)) || (bank(user.ty) == 0 && matches!(user.op, TypedOp::Apply(..)))
    };
    matches!(step.op, TypedOp::Load(_)) && bank(step.ty) == 0 && last < end && typed.nodes.iter().all(fits)
}

/// The contents of an f32 register.
#[inline(always)]
fn held<'a>(registers: &'a Registers, directs: &Directs<'a>, register: usize) -> &'a [f32] {
    match directs.get(register) {
        Some(Some(memory)) => memory,
        _ => &registers.f32s[register],
    }
}

dispatch! {
    /// Runs instructions on `len` elements from `start` on.
    fn run(instrs: &[Instr], registers: &mut Registers, loader: &dyn Loader, start: usize, len: usize) {
        let mut directs: Directs<'_> = [None; DIRECT];
        for i in instrs {
            match bank(i.lane) {
                0 => {
                    if let (TypedOp::Load(source), true) = (i.op, i.direct)
                        && let Some(memory) = loader.direct(source, start, len)
                    {
                        directs[i.dst] = Some(memory);
                        continue;
                    }
                    let mut out = std::mem::take(&mut registers.f32s[i.dst]);
                    i.run_f32(registers, &directs, loader, start, &mut out[..len]);
                    registers.f32s[i.dst] = out;
                    if let Some(direct) = directs.get_mut(i.dst) {
                        *direct = None;
                    }
                }
                1 => {
                    let mut out = std::mem::take(&mut registers.f64s[i.dst]);
                    i.run_f64(registers, loader, start, &mut out[..len]);
                    registers.f64s[i.dst] = out;
                }
                2 => {
                    let mut out = std::mem::take(&mut registers.ints[i.dst]);
                    i.run_int(registers, loader, start, &mut out[..len]);
                    registers.ints[i.dst] = out;
                }
                _ => {
                    let mut out = std::mem::take(&mut registers.bools[i.dst]);
                    i.run_bool(registers, loader, start, &mut out[..len]);
                    registers.bools[i.dst] = out;
                }
            }
        }
    }
}

/// One loop over one, two or three registers.
macro_rules! map {
    ($out:expr, $f:expr, $($x:expr),+) => { map!(@ $out, $f, [a b c], [], $($x),+) };
    (@ $out:expr, $f:expr, [$name:ident $($names:ident)*], [$($done:tt)*], $x:expr $(, $rest:expr)*) => {
        map!(@ $out, $f, [$($names)*], [$($done)* ($name $x)] $(, $rest)*)
    };
    (@ $out:expr, $f:expr, [$($names:ident)*], [$(($name:ident $x:expr))+]) => {{
        // The loop indexes slices of equal length and calls nothing, so that it is inlined and
        // vectorised.
        let out = $out;
        let n = out.len();
        $(let $name = &$x[..n];)+
        let f = $f;
        for i in 0..n {
            out[i] = f($($name[i]),+);
        }
    }};
}

impl Instr {
    #[inline(always)]
    fn run_f32(
        &self,
        registers: &Registers,
        directs: &Directs<'_>,
        loader: &dyn Loader,
        start: usize,
        out: &mut [f32],
    ) {
        use BuiltinScalar::*;
        let [a, b, c] = self.args;
        let op = self.op;
        match op {
            TypedOp::Load(source) => loader.load(source, start, Dst::F32(out)),
            TypedOp::Lit(Literal(v)) => out.fill(v as f32),
            TypedOp::Convert(_) => match bank(self.from) {
                0 => out.copy_from_slice(&registers.f32s[a][..out.len()]),
                1 => map!(out, |x: f64| x as f32, registers.f64s[a]),
                2 => map!(out, |x: i64| x as f32, registers.ints[a]),
                _ => map!(out, |x: u8| x as f32, registers.bools[a]),
            },
            TypedOp::Round(DType::F16, _) => map!(out, |x: f32| f16::from_f32(x).to_f32(), registers.f32s[a]),
            TypedOp::Round(DType::BF16, _) => map!(out, |x: f32| bf16::from_f32(x).to_f32(), registers.f32s[a]),
            TypedOp::Round(DType::F8E4M3, _) => map!(out, |x: f32| F8E4M3::from_f32(x).to_f32(), registers.f32s[a]),
            TypedOp::Round(DType::F8E5M2, _) => map!(out, |x: f32| F8E5M2::from_f32(x).to_f32(), registers.f32s[a]),
            TypedOp::Round(..) => out.copy_from_slice(&registers.f32s[a][..out.len()]),
            TypedOp::Apply(Select, _) => {
                map!(
                    out,
                    |c: u8, x: f32, y: f32| if c != 0 { x } else { y },
                    registers.bools[a],
                    held(registers, directs, b),
                    held(registers, directs, c)
                );
            }
            TypedOp::Apply(f, _) => {
                let x = held(registers, directs, a);
                match f {
                    Add => map!(out, |x: f32, y: f32| x + y, x, held(registers, directs, b)),
                    Sub => map!(out, |x: f32, y: f32| x - y, x, held(registers, directs, b)),
                    Mul => map!(out, |x: f32, y: f32| x * y, x, held(registers, directs, b)),
                    Div => map!(out, |x: f32, y: f32| x / y, x, held(registers, directs, b)),
                    Max => map!(out, math::max, x, held(registers, directs, b)),
                    Min => map!(out, math::min, x, held(registers, directs, b)),
                    Pow => {
                        let n = out.len();
                        math::powers(&x[..n], &held(registers, directs, b)[..n], out);
                    }
                    Fmod => map!(out, |x: f32, y: f32| x % y, x, held(registers, directs, b)),
                    Neg => map!(out, |x: f32| -x, x),
                    Abs => map!(out, |x: f32| x.abs(), x),
                    Sign => map!(out, math::sign, x),
                    Exp => map!(out, math::exp, x),
                    Tanh => map!(out, math::tanh, x),
                    Erf => map!(out, math::erf, x),
                    Log => map!(out, |x: f32| x.ln(), x),
                    Sqrt => map!(out, |x: f32| x.sqrt(), x),
                    Rsqrt => map!(out, |x: f32| 1.0 / x.sqrt(), x),
                    Floor => map!(out, |x: f32| x.floor(), x),
                    Ceil => map!(out, |x: f32| x.ceil(), x),
                    Round => map!(out, |x: f32| x.round_ties_even(), x),
                    Trunc => map!(out, |x: f32| x.trunc(), x),
                    // The other functions are rare: they run element by element in f64.
                    f => map!(out, |x: f32| scalars::float(f, x as f64, f64::NAN) as f32, x),
                }
            }
        }
    }

    #[inline(always)]
    fn run_f64(&self, registers: &Registers, loader: &dyn Loader, start: usize, out: &mut [f64]) {
        use BuiltinScalar::*;
        let [a, b, c] = self.args;
        let op = self.op;
        match op {
            TypedOp::Load(source) => loader.load(source, start, Dst::F64(out)),
            TypedOp::Lit(Literal(v)) => out.fill(v),
            TypedOp::Convert(_) => match bank(self.from) {
                0 => map!(out, |x: f32| x as f64, registers.f32s[a]),
                1 => out.copy_from_slice(&registers.f64s[a][..out.len()]),
                2 => map!(out, |x: i64| x as f64, registers.ints[a]),
                _ => map!(out, |x: u8| x as f64, registers.bools[a]),
            },
            TypedOp::Round(to, _) => map!(out, |x: f64| to.round(x), registers.f64s[a]),
            TypedOp::Apply(Select, _) => {
                map!(
                    out,
                    |c: u8, x: f64, y: f64| if c != 0 { x } else { y },
                    registers.bools[a],
                    registers.f64s[b],
                    registers.f64s[c]
                );
            }
            TypedOp::Apply(f, _) => {
                let x = &registers.f64s[a];
                match f {
                    Add => map!(out, |x: f64, y: f64| x + y, x, registers.f64s[b]),
                    Sub => map!(out, |x: f64, y: f64| x - y, x, registers.f64s[b]),
                    Mul => map!(out, |x: f64, y: f64| x * y, x, registers.f64s[b]),
                    Div => map!(out, |x: f64, y: f64| x / y, x, registers.f64s[b]),
                    f if f.params().len() == 2 => {
                        map!(out, |x: f64, y: f64| scalars::float(f, x, y), x, registers.f64s[b])
                    }
                    f => map!(out, |x: f64| scalars::float(f, x, 0.0), x),
                }
            }
        }
    }

    #[inline(always)]
    fn run_int(&self, registers: &Registers, loader: &dyn Loader, start: usize, out: &mut [i64]) {
        use BuiltinScalar::*;
        let [a, b, c] = self.args;
        let dtype = self.lane;
        let op = self.op;
        match op {
            TypedOp::Load(source) => loader.load(source, start, Dst::Int(out)),
            TypedOp::Lit(Literal(v)) => out.fill(dtype.round(v) as i64),
            TypedOp::Convert(_) => match bank(self.from) {
                0 => map!(out, |x: f32| convert(Val::F(x as f64), dtype, true).i(), registers.f32s[a]),
                1 => map!(out, |x: f64| convert(Val::F(x), dtype, true).i(), registers.f64s[a]),
                2 => map!(out, |x: i64| wrap(dtype, x), registers.ints[a]),
                _ => map!(out, |x: u8| x as i64, registers.bools[a]),
            },
            TypedOp::Round(..) => out.copy_from_slice(&registers.ints[a][..out.len()]),
            TypedOp::Apply(Select, _) => {
                map!(
                    out,
                    |c: u8, x: i64, y: i64| if c != 0 { x } else { y },
                    registers.bools[a],
                    registers.ints[b],
                    registers.ints[c]
                );
            }
            TypedOp::Apply(f, _) => {
                let x = &registers.ints[a];
                match f {
                    Add => map!(out, |x: i64, y: i64| wrap(dtype, x.wrapping_add(y)), x, registers.ints[b]),
                    Sub => map!(out, |x: i64, y: i64| wrap(dtype, x.wrapping_sub(y)), x, registers.ints[b]),
                    Mul => map!(out, |x: i64, y: i64| wrap(dtype, x.wrapping_mul(y)), x, registers.ints[b]),
                    f if f.params().len() == 2 => {
                        map!(out, |x: i64, y: i64| scalars::int(f, dtype, x, y), x, registers.ints[b])
                    }
                    f => map!(out, |x: i64| scalars::int(f, dtype, x, 0), x),
                }
            }
        }
    }

    #[inline(always)]
    fn run_bool(&self, registers: &Registers, loader: &dyn Loader, start: usize, out: &mut [u8]) {
        use BuiltinScalar::*;
        let [a, b, c] = self.args;
        macro_rules! compare {
            ($f:expr) => {
                match bank(self.from) {
                    0 => map!(out, |x: f32, y: f32| $f(&x, &y) as u8, registers.f32s[a], registers.f32s[b]),
                    1 => map!(out, |x: f64, y: f64| $f(&x, &y) as u8, registers.f64s[a], registers.f64s[b]),
                    2 => map!(out, |x: i64, y: i64| $f(&x, &y) as u8, registers.ints[a], registers.ints[b]),
                    _ => map!(out, |x: u8, y: u8| $f(&x, &y) as u8, registers.bools[a], registers.bools[b]),
                }
            };
        }
        let op = self.op;
        match op {
            TypedOp::Load(source) => loader.load(source, start, Dst::Bool(out)),
            TypedOp::Lit(Literal(v)) => out.fill((v != 0.0) as u8),
            TypedOp::Convert(_) => match bank(self.from) {
                0 => map!(out, |x: f32| (x != 0.0) as u8, registers.f32s[a]),
                1 => map!(out, |x: f64| (x != 0.0) as u8, registers.f64s[a]),
                2 => map!(out, |x: i64| (x != 0) as u8, registers.ints[a]),
                _ => out.copy_from_slice(&registers.bools[a][..out.len()]),
            },
            TypedOp::Round(..) => out.copy_from_slice(&registers.bools[a][..out.len()]),
            TypedOp::Apply(f, _) => match f {
                Eq => compare!(PartialEq::eq),
                Lt => compare!(PartialOrd::lt),
                Le => compare!(PartialOrd::le),
                Not => map!(out, |x: u8| (x == 0) as u8, registers.bools[a]),
                And => map!(out, |x: u8, y: u8| x & y, registers.bools[a], registers.bools[b]),
                Or => map!(out, |x: u8, y: u8| x | y, registers.bools[a], registers.bools[b]),
                Xor => map!(out, |x: u8, y: u8| x ^ y, registers.bools[a], registers.bools[b]),
                IsNan | IsInf => match bank(self.from) {
                    0 if f == IsNan => map!(out, |x: f32| x.is_nan() as u8, registers.f32s[a]),
                    1 if f == IsNan => map!(out, |x: f64| x.is_nan() as u8, registers.f64s[a]),
                    0 => map!(out, |x: f32| x.is_infinite() as u8, registers.f32s[a]),
                    1 => map!(out, |x: f64| x.is_infinite() as u8, registers.f64s[a]),
                    _ => out.fill(0),
                },
                Select => {
                    map!(
                        out,
                        |c: u8, x: u8, y: u8| if c != 0 { x } else { y },
                        registers.bools[a],
                        registers.bools[b],
                        registers.bools[c]
                    );
                }
                _ => out.fill(0),
            },
        }
    }
}

/// A function of one or two numbers of a float type: the value that a step stores in a tensor of
/// that type.
pub fn of_numbers(f: BuiltinScalar, dtype: DType, args: [f64; 2]) -> f64 {
    struct Nothing;
    impl Loader for Nothing {
        fn load(&self, _: Source, _: usize, _: Dst<'_>) {}
    }
    let lane = lane(dtype);
    let instr = Instr { op: TypedOp::Apply(f, [0, 1, 0]), lane, from: lane, dst: 2, args: [0, 1, 0], direct: false };
    let mut registers = Registers::default();
    let values = [args[0], args[1], 0.0];
    registers.f64s = values.iter().map(|v| vec![*v]).collect();
    registers.f32s = values.iter().map(|v| vec![*v as f32]).collect();
    run(&[instr], &mut registers, &Nothing, 0, 1);
    dtype.round(if lane == DType::F64 { registers.f64s[2][0] } else { registers.f32s[2][0] as f64 })
}

/// Fills a register from elements `at`, `at + stride`, ... of typed memory.
pub fn read(bytes: &[u8], dtype: DType, at: isize, stride: isize, dst: Dst<'_>) {
    fn fill<T: bytemuck::Pod, U: Copy>(bytes: &[u8], at: isize, stride: isize, dst: &mut [U], f: impl Fn(T) -> U) {
        let from: &[T] = bytemuck::cast_slice(bytes);
        match stride {
            _ if dst.is_empty() => {}
            0 => dst.fill(f(from[at as usize])),
            1 => dst.iter_mut().zip(&from[at as usize..]).for_each(|(o, v)| *o = f(*v)),
            _ => {
                for (i, o) in dst.iter_mut().enumerate() {
                    *o = f(from[(at + i as isize * stride) as usize]);
                }
            }
        }
    }
    match (dtype, dst) {
        (DType::F32, Dst::F32(d)) => fill::<f32, _>(bytes, at, stride, d, |v| v),
        (DType::F16, Dst::F32(d)) if stride == 1 => {
            let from: &[f16] = bytemuck::cast_slice(bytes);
            from[at as usize..at as usize + d.len()].convert_to_f32_slice(d);
        }
        (DType::F16, Dst::F32(d)) => fill::<f16, _>(bytes, at, stride, d, f16::to_f32),
        (DType::BF16, Dst::F32(d)) => fill::<bf16, _>(bytes, at, stride, d, bf16::to_f32),
        (DType::F8E4M3, Dst::F32(d)) => fill::<F8E4M3, _>(bytes, at, stride, d, F8E4M3::to_f32),
        (DType::F8E5M2, Dst::F32(d)) => fill::<F8E5M2, _>(bytes, at, stride, d, F8E5M2::to_f32),
        // Factors of a product of bytes.
        (DType::I8, Dst::F32(d)) => fill::<i8, _>(bytes, at, stride, d, f32::from),
        (DType::U8, Dst::F32(d)) => fill::<u8, _>(bytes, at, stride, d, f32::from),
        (DType::F64, Dst::F64(d)) => fill::<f64, _>(bytes, at, stride, d, |v| v),
        (DType::I64, Dst::Int(d)) => fill::<i64, _>(bytes, at, stride, d, |v| v),
        (DType::I32, Dst::Int(d)) => fill::<i32, _>(bytes, at, stride, d, |v| v as i64),
        (DType::I8, Dst::Int(d)) => fill::<i8, _>(bytes, at, stride, d, |v| v as i64),
        (DType::U8, Dst::Int(d)) => fill::<u8, _>(bytes, at, stride, d, |v| v as i64),
        (DType::Bool, Dst::Bool(d)) => fill::<u8, _>(bytes, at, stride, d, |v| v),
        // Lanes follow from dtypes, so no other pair is compiled.
        (_, Dst::F32(d)) => d.fill(f32::NAN),
        (_, Dst::F64(d)) => d.fill(f64::NAN),
        (_, Dst::Int(d)) => d.fill(0),
        (_, Dst::Bool(d)) => d.fill(0),
    }
}

/// Fills a register by repeating its first `period` elements.
pub fn repeat(dst: Dst<'_>, period: usize) {
    fn fill<T: Copy>(all: &mut [T], period: usize) {
        let mut done = period.max(1);
        while done < all.len() {
            let count = done.min(all.len() - done);
            all.copy_within(..count, done);
            done += count;
        }
    }
    match dst {
        Dst::F32(d) => fill(d, period),
        Dst::F64(d) => fill(d, period),
        Dst::Int(d) => fill(d, period),
        Dst::Bool(d) => fill(d, period),
    }
}

/// A part of a register.
pub fn slice_of<'a>(dst: &'a mut Dst<'_>, from: usize, to: usize) -> Dst<'a> {
    match dst {
        Dst::F32(d) => Dst::F32(&mut d[from..to]),
        Dst::F64(d) => Dst::F64(&mut d[from..to]),
        Dst::Int(d) => Dst::Int(&mut d[from..to]),
        Dst::Bool(d) => Dst::Bool(&mut d[from..to]),
    }
}

impl Dst<'_> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Dst::F32(d) => d.len(),
            Dst::F64(d) => d.len(),
            Dst::Int(d) => d.len(),
            Dst::Bool(d) => d.len(),
        }
    }
}
