//! Scalar terms in which every value has a type, and every conversion and rounding is a separate
//! step.
//!
//! In: a term, the types of its leaves, and the Program whose scalars it calls. Out: a [`Typed`].
//! The CPU interpreter, the f64 reference and the plan use it with all scalars inlined
//! ([`inlined`]), the CUDA printer with calls of defined scalars kept ([`with_calls`]). Invariant:
//! a step's arguments precede it; all number arguments of a function have one type; equal steps are
//! deduped; there are no dead steps.
//!
//! A literal takes the type of the other operands. Arithmetic on literals alone takes the type that
//! its user needs.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::hash::Hash;

use crate::builtin::BuiltinScalar;
use crate::dtype::{DType, Kind};
use crate::ir::{Program, ScalarBody, ScalarDef, ScalarId};

use super::{Literal, Term, TermId, TermNode};

/// Maximum number of steps: a chain of definitions that doubles at each link would otherwise fill
/// memory.
const MAX_STEPS: usize = 1 << 16;
/// Maximum depth of nested calls.
const MAX_DEPTH: usize = 200;

/// The source of a leaf's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The accumulator of a gemm.
    Acc,
    /// The operand with that index; in the body of a scalar, the parameter.
    In(u32),
}

/// A call of a defined scalar.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The scalar.
    pub scalar: ScalarId,
    /// The type of its number arguments.
    pub number: DType,
    /// Its arguments.
    pub args: Vec<u32>,
}

/// The operation of a step. Numbers are indices of earlier steps. `C` is the call of a defined
/// scalar: [`Infallible`] if all are inlined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TypedOp<C = Infallible> {
    /// Reads an element and widens it.
    Load(Source),
    /// A literal.
    Lit(Literal),
    /// A builtin function; unused argument slots are 0.
    Apply(BuiltinScalar, [u32; 3]),
    /// A call of a defined scalar.
    Call(C),
    /// Converts to the step's type from another.
    Convert(u32),
    /// Rounds or wraps to that narrower type, then widens to the step's type again.
    Round(DType, u32),
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TypedNode<C = Infallible> {
    /// Type of the result.
    pub ty: DType,
    /// Its operation.
    pub op: TypedOp<C>,
}

/// A term whose values have types.
#[derive(Clone, Debug, PartialEq)]
pub struct Typed<C = Infallible> {
    /// The steps in order.
    pub nodes: Vec<TypedNode<C>>,
    /// The result steps.
    pub roots: Vec<u32>,
}

impl<C> Default for Typed<C> {
    fn default() -> Typed<C> {
        Typed { nodes: Vec::new(), roots: Vec::new() }
    }
}

/// Why a term cannot be typed.
#[derive(Clone, Debug, PartialEq)]
pub enum Untypable {
    /// Operand types that need an explicit cast.
    Mixed {
        /// The function.
        function: String,
        /// The types.
        types: [DType; 2],
    },
    /// The term is too large or too deep.
    TooLarge(String),
    /// The term is not valid in this Program.
    Malformed(String),
}

impl fmt::Display for Untypable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Untypable::Mixed { function, types: [a, b] } => {
                write!(f, "{function} of {a} and {b}: insert a cast, there is no implicit one")
            }
            Untypable::TooLarge(why) | Untypable::Malformed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Untypable {}

fn malformed<T>(why: impl Into<String>) -> Result<T, Untypable> {
    Err(Untypable::Malformed(why.into()))
}

/// The type in which a host computes with values of `dtype`: f32 for narrower floats, else `dtype`
/// itself.
pub fn lane(dtype: DType) -> DType {
    if dtype.is_float() { dtype.compute() } else { dtype }
}

/// Why a term over products of bytes that gives `given` does not give what is stored as `to`, if it
/// does not: floats are rounded at the store, integers need a cast.
pub fn not_stored(given: Option<DType>, to: DType) -> Option<String> {
    let given = given.filter(|given| *given != to && (given.is_int() || to.is_int()))?;
    Some(format!("{SUMS_OF_BYTES}, and the term gives {given}, but {to} is stored"))
}

/// What messages say of products of bytes.
pub const SUMS_OF_BYTES: &str = "products of i8 and u8 are summed in i32";

/// The element type of a leaf (`Acc`, `In`, `Param`); `None` if the leaf is not allowed in the
/// term.
pub type LeafType<'a> = &'a dyn Fn(&TermNode) -> Option<DType>;

/// The term with all scalars inlined. Each integer type is computed in its own width. `acc` and
/// `inputs` are the element types in memory.
pub fn inlined(program: &Program, term: &Term, acc: Option<DType>, inputs: &[DType]) -> Result<Typed, Untypable> {
    let mut numbers = acc.iter().chain(inputs).copied().filter(|d| d.kind() == Kind::Number);
    let number = numbers.next().map_or(DType::F32, lane);
    let leaf = |node: &TermNode| match node {
        TermNode::Acc => acc,
        TermNode::In { input, .. } => inputs.get(*input as usize).copied(),
        _ => None,
    };
    Lower::<Infallible>::new(program, lane, None).all(term, number, &leaf)
}

/// The term with calls of defined scalars kept. Integers are computed in 64 bits. `number` is the
/// type of literals that take none from an operand.
pub fn with_calls(program: &Program, term: &Term, number: DType, leaf: LeafType<'_>) -> Result<Typed<Call>, Untypable> {
    Lower::new(program, DType::compute, Some(|call| call)).all(term, number, leaf)
}

impl Typed {
    /// Concatenates typed terms and dedupes equal steps. Also returns the number of steps after
    /// each result.
    pub fn merged(parts: &[Typed]) -> (Typed, Vec<usize>) {
        let (mut out, mut ends) = (Typed::default(), Vec::new());
        let mut known: HashMap<TypedNode, u32> = HashMap::new();
        for part in parts {
            let mut map: Vec<u32> = Vec::with_capacity(part.nodes.len());
            for node in &part.nodes {
                let at = |i: u32| map.get(i as usize).copied().unwrap_or(0);
                let op = match node.op {
                    // Unused argument slots are 0 and stay 0.
                    TypedOp::Apply(f, args) => {
                        let mut ids = [0; 3];
                        ids.iter_mut().zip(args).take(f.params().len()).for_each(|(id, arg)| *id = at(arg));
                        TypedOp::Apply(f, ids)
                    }
                    TypedOp::Convert(a) => TypedOp::Convert(at(a)),
                    TypedOp::Round(to, a) => TypedOp::Round(to, at(a)),
                    op => op,
                };
                let node = TypedNode { ty: node.ty, op };
                map.push(*known.entry(node).or_insert_with(|| {
                    out.nodes.push(node);
                    out.nodes.len() as u32 - 1
                }));
            }
            out.roots.extend(part.roots.iter().map(|r| map.get(*r as usize).copied().unwrap_or(0)));
            ends.extend(part.roots.iter().map(|_| out.nodes.len()));
        }
        (out, ends)
    }
}

impl Typed<Call> {
    /// The arguments of a step.
    pub fn args(&self, node: &TypedNode<Call>) -> Vec<u32> {
        match &node.op {
            TypedOp::Load(_) | TypedOp::Lit(_) => Vec::new(),
            TypedOp::Apply(f, args) => args[..f.params().len()].to_vec(),
            TypedOp::Call(call) => call.args.clone(),
            TypedOp::Convert(a) | TypedOp::Round(_, a) => vec![*a],
        }
    }
}

/// The compute type of numbers whose type nothing determines: that of the widest float, else
/// integers.
pub fn default_type(dtypes: impl Iterator<Item = DType>) -> DType {
    let mut out = DType::Bool;
    for d in dtypes.map(DType::compute) {
        out = match (out, d) {
            (DType::F64, _) | (_, DType::F64) => DType::F64,
            (DType::F32, _) | (_, DType::F32) => DType::F32,
            _ => DType::I64,
        };
    }
    out
}

/// The type in which kernels compute each node of a term, with 64-bit integers; `None` for literals
/// and for dead nodes.
pub fn types(
    program: &Program,
    term: &Term,
    number: DType,
    leaf: LeafType<'_>,
) -> Result<Vec<Option<DType>>, Untypable> {
    Lower::<Call>::new(program, DType::compute, None).types(term, &live(term)?, Leaves::Types(leaf), number)
}

/// The source of a leaf's value; `None` if the node is not a leaf.
pub fn source(node: &TermNode) -> Option<Source> {
    match node {
        TermNode::Acc => Some(Source::Acc),
        TermNode::In { input, .. } | TermNode::Param(input) => Some(Source::In(*input)),
        _ => None,
    }
}

/// What replaces the leaves of a term: sources of these types or, for an inlined body, existing
/// steps.
#[derive(Clone, Copy)]
enum Leaves<'l> {
    Types(LeafType<'l>),
    Steps(&'l [u32]),
}

struct Lower<'a, C> {
    program: &'a Program,
    /// The compute type of an element type.
    compute: fn(DType) -> DType,
    /// How calls of defined scalars are kept; `None` inlines them.
    keep: Option<fn(Call) -> C>,
    out: Typed<C>,
    known: HashMap<TypedNode<C>, u32>,
}

impl<'a, C: Clone + Eq + Hash> Lower<'a, C> {
    fn new(program: &'a Program, compute: fn(DType) -> DType, keep: Option<fn(Call) -> C>) -> Lower<'a, C> {
        Lower { program, compute, keep, out: Typed::default(), known: HashMap::new() }
    }

    fn all(mut self, term: &Term, number: DType, leaf: LeafType<'_>) -> Result<Typed<C>, Untypable> {
        self.out.roots = self.term(term, Leaves::Types(leaf), number, 0)?;
        Ok(self.out)
    }

    /// The results of a term.
    fn term(&mut self, term: &Term, leaves: Leaves<'_>, number: DType, depth: usize) -> Result<Vec<u32>, Untypable> {
        if depth > MAX_DEPTH {
            let why = format!("scalar calls are nested more than {MAX_DEPTH} levels deep");
            return Err(Untypable::TooLarge(why));
        }
        let live = live(term)?;
        let types = self.types(term, &live, leaves, number)?;
        let mut steps: Vec<Option<u32>> = vec![None; term.nodes.len()];
        for (i, node) in term.nodes.iter().enumerate().filter(|(i, _)| live[*i]) {
            steps[i] = match node {
                // Added at its use, in the type that the use needs.
                TermNode::Lit(_) => None,
                TermNode::Param(_) | TermNode::Acc | TermNode::Second | TermNode::In { .. } => {
                    Some(self.leaf(node, leaves)?)
                }
                TermNode::Cast { to, arg } => {
                    let arg = self.operand(term, &steps, *arg, types[arg.0 as usize].unwrap_or(DType::F64))?;
                    Some(self.cast(arg, *to)?)
                }
                TermNode::Call { scalar, args } => {
                    let def = self.scalar(*scalar, args.len())?;
                    let own = types[i].filter(|t| *t != DType::Bool);
                    let ty = self.joined(def, args, &types)?.or(own).unwrap_or(number);
                    let mut operands = Vec::with_capacity(args.len());
                    for (arg, (_, kind)) in args.iter().zip(&def.params) {
                        let want = if *kind == Kind::Bool { DType::Bool } else { ty };
                        operands.push(self.operand(term, &steps, *arg, want)?);
                    }
                    Some(self.call(*scalar, ty, operands, depth)?)
                }
            };
        }
        let roots = term.roots.iter();
        roots.map(|r| self.operand(term, &steps, *r, types[r.0 as usize].unwrap_or(number))).collect()
    }

    /// The type of each node; `None` for literals, which take the type that their use needs.
    fn types(
        &self,
        term: &Term,
        live: &[bool],
        leaves: Leaves<'_>,
        number: DType,
    ) -> Result<Vec<Option<DType>>, Untypable> {
        let mut types: Vec<Option<DType>> = vec![None; term.nodes.len()];
        for (i, node) in term.nodes.iter().enumerate().filter(|(i, _)| live[*i]) {
            types[i] = match node {
                TermNode::Lit(_) => None,
                TermNode::Param(_) | TermNode::Acc | TermNode::Second | TermNode::In { .. } => match leaves {
                    Leaves::Types(leaf) => leaf(node).map(self.compute),
                    Leaves::Steps(_) => Some(self.out.nodes[self.given(node, leaves)? as usize].ty),
                },
                TermNode::Cast { to, .. } => Some((self.compute)(*to)),
                TermNode::Call { scalar, args } => {
                    let def = self.scalar(*scalar, args.len())?;
                    let joined = self.joined(def, args, &types)?;
                    match (&def.body, def.result) {
                        (_, Kind::Bool) => Some(DType::Bool),
                        (ScalarBody::Builtin(_), Kind::Number) => joined,
                        (ScalarBody::Term(_), Kind::Number) => Some(joined.unwrap_or(number)),
                    }
                }
            };
        }
        // Arithmetic on literals alone takes the type that its user needs.
        let mut asked: Vec<Option<DType>> = vec![None; term.nodes.len()];
        for (i, node) in term.nodes.iter().enumerate().rev().filter(|(i, _)| live[*i]) {
            if types[i].is_none() && !matches!(node, TermNode::Lit(_)) {
                types[i] = Some(asked[i].unwrap_or(number));
            }
            if let TermNode::Call { scalar, args } = node {
                let def = self.scalar(*scalar, args.len())?;
                let want = self.joined(def, args, &types)?.or(types[i].filter(|t| *t != DType::Bool));
                for (a, _) in args.iter().zip(&def.params).filter(|(_, (_, kind))| *kind == Kind::Number) {
                    let slot = &mut asked[a.0 as usize];
                    *slot = match (*slot, want) {
                        (Some(a), Some(b)) => Some(wider(a, b)),
                        (a, b) => a.or(b),
                    };
                }
            }
        }
        Ok(types)
    }

    /// The common type of all number operands; `None` if all are literals.
    fn joined(&self, def: &ScalarDef, args: &[TermId], types: &[Option<DType>]) -> Result<Option<DType>, Untypable> {
        let mut joined: Option<DType> = None;
        for (a, _) in args.iter().zip(&def.params).filter(|(_, (_, kind))| *kind == Kind::Number) {
            let Some(ty) = types[a.0 as usize] else { continue };
            joined = Some(match joined {
                Some(before) if before.is_float() != ty.is_float() || self.needs_cast(before, ty) => {
                    return Err(Untypable::Mixed { function: def.name.clone(), types: [before, ty] });
                }
                Some(before) => wider(before, ty),
                None => ty,
            });
        }
        // With 64-bit integers, booleans used as numbers are integers too.
        let counted =
            |t: DType| if t == DType::Bool && (self.compute)(DType::I32) == DType::I64 { DType::I64 } else { t };
        Ok(joined.map(counted))
    }

    /// True for two integer or boolean types that need an explicit cast to be combined.
    fn needs_cast(&self, a: DType, b: DType) -> bool {
        a != b && !a.is_float() && (self.compute)(DType::I32) != DType::I64
    }

    fn scalar(&self, id: ScalarId, arguments: usize) -> Result<&'a ScalarDef, Untypable> {
        let Some(def) = self.program.scalars.get(id.index()) else { return malformed(format!("no scalar {}", id.0)) };
        if def.params.len() != arguments {
            return malformed(format!("`{}` with {arguments} arguments", def.name));
        }
        Ok(def)
    }

    fn push(&mut self, ty: DType, op: TypedOp<C>) -> Result<u32, Untypable> {
        let node = TypedNode { ty, op };
        if let Some(i) = self.known.get(&node) {
            return Ok(*i);
        }
        if self.out.nodes.len() >= MAX_STEPS {
            return Err(Untypable::TooLarge(format!(
                "a scalar function has more than {MAX_STEPS} operations once inlined; move parts of it into ops \
                 with kernels of their own"
            )));
        }
        self.out.nodes.push(node.clone());
        let i = self.out.nodes.len() as u32 - 1;
        self.known.insert(node, i);
        Ok(i)
    }

    /// The step that replaces a leaf of an inlined body.
    fn given(&self, node: &TermNode, leaves: Leaves<'_>) -> Result<u32, Untypable> {
        match (node, leaves) {
            (TermNode::Param(i), Leaves::Steps(steps)) if (*i as usize) < steps.len() => Ok(steps[*i as usize]),
            _ => malformed(format!("{node:?} does not belong in this term")),
        }
    }

    fn leaf(&mut self, node: &TermNode, leaves: Leaves<'_>) -> Result<u32, Untypable> {
        let Leaves::Types(leaf) = leaves else { return self.given(node, leaves) };
        match (leaf(node), source(node)) {
            (Some(dtype), Some(source)) => self.push((self.compute)(dtype), TypedOp::Load(source)),
            _ => malformed(format!("{node:?} does not belong in this term")),
        }
    }

    /// A node's step, converted to the wanted type.
    fn operand(&mut self, term: &Term, steps: &[Option<u32>], id: TermId, want: DType) -> Result<u32, Untypable> {
        match (&term.nodes[id.0 as usize], steps[id.0 as usize]) {
            (TermNode::Lit(v), _) => self.push(want, TypedOp::Lit(*v)),
            (_, Some(step)) => self.convert(step, want),
            _ => malformed("an argument comes after its use"),
        }
    }

    fn convert(&mut self, step: u32, to: DType) -> Result<u32, Untypable> {
        if self.type_of(step) == to { Ok(step) } else { self.push(to, TypedOp::Convert(step)) }
    }

    fn type_of(&self, step: u32) -> DType {
        self.out.nodes[step as usize].ty
    }

    /// The value rounded or converted to an element type, in the compute type of that element type.
    fn cast(&mut self, step: u32, to: DType) -> Result<u32, Untypable> {
        let (from, ty) = (self.type_of(step), (self.compute)(to));
        let narrow = to != ty;
        if !narrow || from == DType::Bool {
            // Booleans are 0 and 1 in every type.
            return self.convert(step, ty);
        }
        if matches!(self.out.nodes[step as usize].op, TypedOp::Round(done, _) if done == to) {
            return Ok(step);
        }
        if to.is_float() {
            // Round once, in the value's own type; integers have no fraction.
            let wide = if from.is_float() { step } else { self.convert(step, ty)? };
            let rounded = self.push(self.type_of(wide), TypedOp::Round(to, wide))?;
            return self.convert(rounded, ty);
        }
        self.push(ty, TypedOp::Round(to, step))
    }

    /// A call of a function whose operands have one type.
    fn call(&mut self, id: ScalarId, ty: DType, args: Vec<u32>, depth: usize) -> Result<u32, Untypable> {
        let def = self.scalar(id, args.len())?;
        let result = if def.result == Kind::Bool { DType::Bool } else { ty };
        match (&def.body, self.keep) {
            (ScalarBody::Builtin(f), _) => {
                let mut ids = [0; 3];
                ids.iter_mut().zip(args).for_each(|(id, arg)| *id = arg);
                self.push(result, TypedOp::Apply(*f, ids))
            }
            (ScalarBody::Term(_), Some(keep)) => {
                let call = keep(Call { scalar: id, number: ty, args });
                self.push(result, TypedOp::Call(call))
            }
            (ScalarBody::Term(body), None) => match self.term(body, Leaves::Steps(&args), ty, depth + 1)?[..] {
                [root, ..] => self.convert(root, result),
                [] => malformed(format!("`{}` has no value", def.name)),
            },
        }
    }
}

/// The wider of two types that can be combined.
fn wider(a: DType, b: DType) -> DType {
    let rank = |t: DType| match t {
        DType::Bool => 0,
        DType::I64 => 2,
        DType::F32 => 3,
        DType::F64 => 4,
        _ => 1,
    };
    if rank(b) > rank(a) { b } else { a }
}

/// The live nodes: those that the results need.
fn live(term: &Term) -> Result<Vec<bool>, Untypable> {
    let mut live = vec![false; term.nodes.len()];
    for r in &term.roots {
        match live.get_mut(r.0 as usize) {
            Some(slot) => *slot = true,
            None => return malformed("a result is not a node"),
        }
    }
    for (i, node) in term.nodes.iter().enumerate().rev() {
        if !live[i] {
            continue;
        }
        for a in node.args() {
            if a.0 as usize >= i {
                return malformed("a node's argument comes after it");
            }
            live[a.0 as usize] = true;
        }
    }
    Ok(live)
}

impl<C: fmt::Debug> fmt::Display for Typed<C> {
    /// One step per line: `%2: f32 = add %0 %1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, node) in self.nodes.iter().enumerate() {
            write!(f, "%{i}: {} = ", node.ty)?;
            match &node.op {
                TypedOp::Load(Source::Acc) => writeln!(f, "acc")?,
                TypedOp::Load(Source::In(i)) => writeln!(f, "in{i}")?,
                TypedOp::Lit(v) => writeln!(f, "{}", super::show_number(v.0))?,
                TypedOp::Apply(b, args) => {
                    let args: Vec<String> = args[..b.params().len()].iter().map(|a| format!("%{a}")).collect();
                    writeln!(f, "{} {}", b.name(), args.join(" "))?;
                }
                TypedOp::Call(call) => writeln!(f, "{call:?}")?,
                TypedOp::Convert(a) => writeln!(f, "convert %{a}")?,
                TypedOp::Round(to, a) => writeln!(f, "round {to} %{a}")?,
            }
        }
        let roots: Vec<String> = self.roots.iter().map(|r| format!("%{r}")).collect();
        writeln!(f, "-> {}", roots.join(" "))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::testing::{library, term};
    use super::*;
    use crate::ir::InView;

    /// The expression over operands `x`, `y`, `z`.
    fn over(text: &str) -> (Program, Term) {
        let p = library();
        let t = term(&p, &["x", "y", "z"], text);
        let mut b = super::super::TermBuilder::new();
        let leaves: Vec<TermId> = (0..3).map(|input| b.add(TermNode::In { input, view: InView::Full })).collect();
        let roots = b.append(&t, &leaves);
        (p, b.finish(roots))
    }

    #[track_caller]
    fn lanes(text: &str, inputs: [DType; 3]) -> String {
        let (p, t) = over(text);
        inlined(&p, &t, None, &inputs).unwrap().to_string()
    }

    #[track_caller]
    fn calls(text: &str, inputs: [DType; 3]) -> String {
        let (p, t) = over(text);
        let leaf = |n: &TermNode| match n {
            TermNode::In { input, .. } => Some(inputs[*input as usize]),
            _ => None,
        };
        with_calls(&p, &t, DType::F32, &leaf).unwrap().to_string()
    }

    use DType::*;

    #[test]
    fn literals_take_the_type_beside_them() {
        assert_eq!(lanes("x + 2", [F16, F32, F32]), "%0: f32 = in0\n%1: f32 = 2\n%2: f32 = add %0 %1\n-> %2\n");
        assert_eq!(lanes("x * (2 + 3)", [F64, F32, F32]).lines().nth(3).unwrap(), "%3: f64 = add %1 %2");
        assert_eq!(calls("x + 2", [I32, F32, F32]), "%0: i64 = in0\n%1: i64 = 2\n%2: i64 = add %0 %1\n-> %2\n");
    }

    #[test]
    fn scalars_are_inlined_or_called() {
        let silu = lanes("silu(x)", [F32; 3]);
        assert!(silu.contains("exp") && !silu.contains("Call"), "{silu}");
        // A common subexpression becomes one step.
        assert_eq!(lanes("silu(x) + silu(x)", [F32; 3]).lines().count(), silu.lines().count() + 1);
        let silu = calls("silu(x)", [BF16; 3]);
        assert!(silu.contains("Call") && silu.lines().count() == 3, "{silu}");
    }

    #[test]
    fn floats_meet_and_integers_do_not() {
        assert!(lanes("x + y", [F32, F64, F32]).contains("%2: f64 = convert %0"));
        let (p, t) = over("x + y");
        let mixed = |a, b| inlined(&p, &t, None, &[a, b, F32]).unwrap_err();
        assert_eq!(mixed(I32, F32), Untypable::Mixed { function: "add".into(), types: [I32, F32] });
        assert!(matches!(mixed(I32, I64), Untypable::Mixed { .. }));
        assert!(calls("x + y", [I32, U8, F32]).contains("i64 = add"));
    }

    #[test]
    fn casts_round_once() {
        let (p, mut t) = over("x + y");
        let root = t.root();
        let half = t.add(TermNode::Cast { to: F16, arg: root });
        let again = t.add(TermNode::Cast { to: F16, arg: half });
        t.roots = vec![again];
        let text = inlined(&p, &t, None, &[F64, F64, F64]).unwrap().to_string();
        assert!(
            text.ends_with("%3: f64 = round f16 %2\n%4: f32 = convert %3\n%5: f32 = round f16 %4\n-> %5\n"),
            "{text}"
        );
        let text = inlined(&p, &t, None, &[F32, F32, F32]).unwrap().to_string();
        assert!(text.ends_with("%3: f32 = round f16 %2\n-> %3\n"), "{text}");
    }

    #[test]
    fn what_is_no_term_is_an_error() {
        let (p, mut t) = over("x + y");
        t.roots = vec![TermId(99)];
        assert!(matches!(inlined(&p, &t, None, &[F32; 3]), Err(Untypable::Malformed(_))));
        let (p, t) = over("x + y");
        assert!(matches!(inlined(&p, &t, None, &[F32]), Err(Untypable::Malformed(_))));
    }
}
