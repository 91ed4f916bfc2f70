//! Scalar terms as straight lines of builtin functions, every value typed.
//!
//! In: a term, the element types of its accumulator and inputs, and the Program whose scalars it calls.
//! Out: a [`Flat`]: all calls inlined, literals given the type of their siblings. The reference evaluator
//! and the block interpreter run it. Holds always: a step's arguments stand before it, and the lanes of
//! its number arguments are equal.

use std::collections::HashMap;

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::{DType, Kind};
use hypatia_dsl::ir::{Program, ScalarBody, ScalarId};
use hypatia_dsl::scalar::{Term, TermNode};

use crate::error::{Error, Result};

/// Steps at most: a chain of definitions that doubles at each link would otherwise fill the memory.
const MAX_STEPS: usize = 1 << 16;
/// Calls inside calls at most.
const MAX_DEPTH: usize = 200;

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The accumulator of a gemm.
    Acc,
    /// Operand of that index.
    In(u32),
}

/// What a step does. Numbers are indices of earlier steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FlatOp {
    /// Reads an element and widens it to the lane.
    Load(Source),
    /// A number.
    Lit(f64),
    /// A builtin function; unused arguments are 0.
    Apply(BuiltinScalar, [u32; 3]),
    /// To the lane from another lane.
    Convert(u32),
    /// Rounds a float to that narrower type, and stays in its lane.
    Round(DType, u32),
}

/// A step. `lane` is the type of its result: f64, f32, an integer type, or bool; f16 and bf16 compute in
/// f32 lanes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlatStep {
    /// Type of the result.
    pub lane: DType,
    /// What it does.
    pub op: FlatOp,
}

/// What tells steps apart.
pub type StepKey = (DType, u8, u64, [u32; 3]);

impl FlatStep {
    /// Equal for steps that compute the same.
    pub fn key(&self) -> StepKey {
        let lane = self.lane;
        match self.op {
            FlatOp::Load(Source::Acc) => (lane, 0, 0, [0; 3]),
            FlatOp::Load(Source::In(i)) => (lane, 1, i as u64, [0; 3]),
            FlatOp::Lit(v) => (lane, 2, v.to_bits(), [0; 3]),
            FlatOp::Apply(f, args) => (lane, 3, f as u64, args),
            FlatOp::Convert(a) => (lane, 4, 0, [a, 0, 0]),
            FlatOp::Round(to, a) => (lane, 5, to as u64, [a, 0, 0]),
        }
    }
}

/// A term without calls.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Flat {
    /// In order.
    pub steps: Vec<FlatStep>,
    /// The steps that are results.
    pub roots: Vec<u32>,
}

/// The type that values of `dtype` have while they are computed with.
pub fn lane(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        d => d,
    }
}

/// A value while a term is lowered: a literal waits for a sibling that gives it a type.
#[derive(Clone, Copy)]
enum Val {
    Lit(f64),
    Step(u32),
}

struct Lower<'a> {
    program: &'a Program,
    acc: Option<DType>,
    inputs: &'a [DType],
    default: DType,
    out: Flat,
    known: HashMap<StepKey, u32>,
}

/// Lowers a term. `acc` and `inputs` are the element types in memory.
pub fn lower(program: &Program, term: &Term, acc: Option<DType>, inputs: &[DType]) -> Result<Flat> {
    let numbers = || acc.iter().chain(inputs).copied().filter(|d| d.kind() == Kind::Number);
    let default = numbers().next().map_or(DType::F32, lane);
    let mut l = Lower { program, acc, inputs, default, out: Flat::default(), known: HashMap::new() };
    let values = l.term(term, &[], 0)?;
    for root in &term.roots {
        let v =
            values.get(root.0 as usize).copied().ok_or_else(|| Error::Internal("a term without its root".into()))?;
        let step = l.typed(v, l.default)?;
        l.out.roots.push(step);
    }
    Ok(l.out)
}

/// One after the other, what is computed twice once; also how many steps there are behind each.
pub fn merged(flats: &[Flat]) -> (Flat, Vec<usize>) {
    let (mut out, mut ends) = (Flat::default(), Vec::new());
    let mut known: HashMap<StepKey, u32> = HashMap::new();
    for flat in flats {
        let mut map: Vec<u32> = Vec::with_capacity(flat.steps.len());
        for step in &flat.steps {
            let at = |i: &u32| map.get(*i as usize).copied().unwrap_or(0);
            let op = match step.op {
                // Arguments that a function does not have are 0, and stay so.
                FlatOp::Apply(f, args) => {
                    let mut ids = [0; 3];
                    ids.iter_mut().zip(&args).take(f.params().len()).for_each(|(id, arg)| *id = at(arg));
                    FlatOp::Apply(f, ids)
                }
                FlatOp::Convert(a) => FlatOp::Convert(at(&a)),
                FlatOp::Round(to, a) => FlatOp::Round(to, at(&a)),
                op => op,
            };
            let step = FlatStep { lane: step.lane, op };
            map.push(*known.entry(step.key()).or_insert_with(|| {
                out.steps.push(step);
                out.steps.len() as u32 - 1
            }));
        }
        out.roots.extend(flat.roots.iter().map(|r| map.get(*r as usize).copied().unwrap_or(0)));
        ends.extend(flat.roots.iter().map(|_| out.steps.len()));
    }
    (out, ends)
}

/// The term of one scalar applied to inputs 0, 1, ...
pub fn call_term(scalar: ScalarId, arity: usize) -> Term {
    let mut t = Term::empty();
    let args = (0..arity as u32)
        .map(|input| t.add(TermNode::In { input, view: hypatia_dsl::ir::InView::Broadcast }))
        .collect();
    let root = t.add(TermNode::Call { scalar, args });
    t.roots.push(root);
    t
}

/// The term that converts input 0.
pub fn cast_term(to: DType) -> Term {
    let mut t = Term::empty();
    let arg = t.add(TermNode::In { input: 0, view: hypatia_dsl::ir::InView::Broadcast });
    let root = t.add(TermNode::Cast { to, arg });
    t.roots.push(root);
    t
}

impl Lower<'_> {
    fn push(&mut self, lane: DType, op: FlatOp) -> Result<u32> {
        let key = FlatStep { lane, op }.key();
        if let Some(i) = self.known.get(&key) {
            return Ok(*i);
        }
        if self.out.steps.len() >= MAX_STEPS {
            return Err(Error::Limit(format!(
                "a scalar function unfolds to more than {MAX_STEPS} operations; name parts of it with kernels of their own"
            )));
        }
        self.out.steps.push(FlatStep { lane, op });
        let i = self.out.steps.len() as u32 - 1;
        self.known.insert(key, i);
        Ok(i)
    }

    fn lane_of(&self, step: u32) -> DType {
        self.out.steps[step as usize].lane
    }

    /// The value as a step of that lane if it is a literal, else as it is.
    fn typed(&mut self, v: Val, lane: DType) -> Result<u32> {
        match v {
            Val::Step(s) => Ok(s),
            Val::Lit(x) => self.push(lane, FlatOp::Lit(x)),
        }
    }

    fn load(&mut self, source: Source, dtype: DType) -> Result<Val> {
        Ok(Val::Step(self.push(lane(dtype), FlatOp::Load(source))?))
    }

    fn term(&mut self, term: &Term, params: &[Val], depth: usize) -> Result<Vec<Val>> {
        if depth > MAX_DEPTH {
            return Err(Error::Limit(format!("scalar functions call each other more than {MAX_DEPTH} levels deep")));
        }
        let missing = |what: &str| Error::Internal(format!("a term names {what} that is not there"));
        let mut values: Vec<Val> = Vec::with_capacity(term.nodes.len());
        for node in &term.nodes {
            let value = match node {
                TermNode::Param(i) => *params.get(*i as usize).ok_or_else(|| missing("a parameter"))?,
                TermNode::Acc => self.load(Source::Acc, self.acc.ok_or_else(|| missing("an accumulator"))?)?,
                TermNode::In { input, .. } => {
                    let dtype = *self.inputs.get(*input as usize).ok_or_else(|| missing("an input"))?;
                    self.load(Source::In(*input), dtype)?
                }
                TermNode::Lit(l) => Val::Lit(l.0),
                TermNode::Cast { to, arg } => {
                    let v = *values.get(arg.0 as usize).ok_or_else(|| missing("a value"))?;
                    self.cast(v, *to)?
                }
                TermNode::Call { scalar, args } => {
                    let args = args.iter().map(|a| values.get(a.0 as usize).copied());
                    let args: Vec<Val> = args.collect::<Option<_>>().ok_or_else(|| missing("a value"))?;
                    let program = self.program;
                    match &program.scalar(*scalar).body {
                        ScalarBody::Builtin(f) => self.apply(*f, &args)?,
                        ScalarBody::Term(body) => {
                            let inner = self.term(body, &args, depth + 1)?;
                            let root = body.roots.first().and_then(|r| inner.get(r.0 as usize));
                            *root.ok_or_else(|| missing("a root"))?
                        }
                    }
                }
            };
            values.push(value);
        }
        Ok(values)
    }

    fn cast(&mut self, v: Val, to: DType) -> Result<Val> {
        let s = self.typed(v, if to == DType::Bool { DType::Bool } else { lane(to) })?;
        let from = self.lane_of(s);
        let mut s = s;
        // A narrower float is a rounding of the wide value, straight from the lane it is in.
        if matches!(to, DType::F16 | DType::BF16) && from.is_float() {
            s = self.push(from, FlatOp::Round(to, s))?;
        }
        if from != lane(to) {
            s = self.push(lane(to), FlatOp::Convert(s))?;
            if matches!(to, DType::F16 | DType::BF16) && !from.is_float() {
                s = self.push(lane(to), FlatOp::Round(to, s))?;
            }
        }
        Ok(Val::Step(s))
    }

    fn apply(&mut self, f: BuiltinScalar, args: &[Val]) -> Result<Val> {
        let kinds = f.params();
        if kinds.len() != args.len() {
            return Err(Error::Internal(format!("{} with {} arguments", f.name(), args.len())));
        }
        let mut number: Option<DType> = None;
        for (kind, v) in kinds.iter().zip(args) {
            if let (Kind::Number, Val::Step(s)) = (kind, v) {
                let l = self.lane_of(*s);
                number = match number {
                    None => Some(l),
                    Some(n) if n == l => Some(n),
                    // Both are floats: the wider one holds the other exactly.
                    Some(n) if n.is_float() && l.is_float() => Some(DType::F64),
                    Some(n) => {
                        let message = format!("{} of {n} and {l}: insert a cast, there is no implicit one", f.name());
                        return Err(Error::Type(message.into()));
                    }
                };
            }
        }
        let number = number.unwrap_or(self.default);
        let mut ids = [0u32; 3];
        for ((slot, kind), v) in ids.iter_mut().zip(kinds).zip(args) {
            let wanted = if *kind == Kind::Bool { DType::Bool } else { number };
            let s = self.typed(*v, wanted)?;
            *slot = if self.lane_of(s) == wanted { s } else { self.push(wanted, FlatOp::Convert(s))? };
        }
        let lane = if f.result() == Kind::Bool { DType::Bool } else { number };
        Ok(Val::Step(self.push(lane, FlatOp::Apply(f, ids))?))
    }
}
