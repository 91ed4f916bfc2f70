//! Random legal instances of a rule's left side.
//!
//! In: a rule and a source of choices. Out: a graph that holds the left side over small concrete
//! tensors, with the bindings of its variables; or why these choices gave no instance. Invariant:
//! an instance type-checks, and every guard of the rule is known to be true for it.
//!
//! `patterns` builds the left side from the leaves up: the inverse of matching, since there is no
//! graph yet in which the matcher could find it. `open_types` and `attributes` choose what the
//! pattern leaves open. Here, inputs get their values, and guards are evaluated. All sizes of one
//! instance come from a small pool, so that sizes that must be equal often are. Instances that
//! still do not type-check are discarded. Where chance rarely satisfies the guards, `search`
//! changes choices until they hold; `unmet` says how far they are from it.

mod attributes;
mod factors;
mod open_types;
mod patterns;
mod search;
mod terms;
mod tolerance;
mod unmet;

use std::collections::HashSet;
use std::sync::Arc;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, Fact, OpBody, Program, Rule, Sort, VarId};
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::{TensorType, eval, eval_guard};

use self::open_types::OpenType;
pub use self::search::{Effort, is_rare, solved};
use crate::constants::Constants;
use crate::hints::Hints;
use crate::source::Source;
use crate::values::{
    ALTERNATIVES, Demand, Distribution, Ensemble, KINDS_OF_HALFWAY, KINDS_OF_HIDDEN, Magnitude, SpecialValues, tensor,
};
use hypatia_graph::instantiate::Numbers;
use hypatia_graph::{Env, Graph, GraphFacts, NodeId, NodeKind, Value};
use hypatia_optimize::numbers::{any_enlarges, has_numbers_of_a_body};
use hypatia_tensor::tensor::Tensor;

/// Why these choices gave no instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Reject(pub String);

pub(super) type Try<T> = Result<T, Reject>;

pub(super) fn reject<T>(why: impl Into<String>) -> Try<T> {
    Err(Reject(why.into()))
}

/// A left side over concrete tensors.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Inputs, constants and the nodes of the left side.
    pub graph: Graph,
    /// The bindings of the rule's variables.
    pub env: Env,
    /// The roots.
    pub left: Vec<Value>,
    /// Tensors of the inputs.
    pub inputs: Vec<(String, Tensor)>,
    /// Names of the constants that stand for variables.
    pub constants: Vec<(String, NodeId)>,
    /// The kind of values.
    pub distribution: Distribution,
    /// The alternatives of the pattern that were taken.
    pub branches: Vec<(usize, usize)>,
    /// The numbers behind the constants that stand for literals.
    pub numbers: Numbers,
}

/// The most elements of a tensor whose axes all have one size.
const MOST_OF_ALL: i64 = 1 << 16;
/// Sizes for the pool, simplest first.
const SIZES: [i64; 8] = [2, 3, 1, 5, 0, 7, 8, 16];
const SIZE_WEIGHTS: [u32; 8] = [20, 25, 15, 12, 8, 8, 8, 4];
/// Main element types, simplest first.
pub(super) const DTYPES: [DType; 11] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I64,
    DType::I32,
    DType::I8,
    DType::U8,
    DType::Bool,
    DType::F8E4M3,
    DType::F8E5M2,
];
const DTYPE_WEIGHTS: [u32; 11] = [24, 14, 14, 14, 10, 8, 5, 5, 6, 3, 3];

/// Sizes with their weights: the usual ones, then those of the rule. If a guard or a type names
/// unusual sizes, both groups are about equally likely.
fn candidates(constants: &Constants) -> (Vec<i64>, Vec<u32>) {
    let (mut sizes, mut weights) = (SIZES.to_vec(), SIZE_WEIGHTS.to_vec());
    let own: Vec<i64> = constants.sizes.iter().copied().filter(|n| !SIZES.contains(n)).collect();
    let total = if constants.largest > SIZES[3] { 90 } else { 12 };
    for (i, n) in own.iter().enumerate() {
        // Sizes that the rule states explicitly come first and weigh more.
        let share = total * 2 * (own.len() - i) as u32 / (own.len() * (own.len() + 1)) as u32;
        sizes.push(*n);
        weights.push(share.max(1));
    }
    (sizes, weights)
}

/// Sizes of ensembles: hundreds of elements in matrices, or long rows.
fn wide_candidates(constants: &Constants, kind: Ensemble) -> (Vec<i64>, Vec<u32>) {
    let mut sizes: Vec<i64> = if kind == Ensemble::LongRows { vec![512, 2, 3, 300] } else { vec![32, 16, 24, 12, 8] };
    let mut weights = if kind == Ensemble::LongRows { vec![40, 20, 20, 20] } else { vec![30, 30, 15, 15, 10] };
    for n in constants.sizes.iter().filter(|n| **n > 1) {
        sizes.push(*n);
        weights.push(4);
    }
    (sizes, weights)
}

/// Builds one instance.
struct Generator<'a, 's> {
    pub program: Arc<Program>,
    pub rule: &'a Rule,
    pub hints: &'a Hints<'a>,
    pub source: &'s mut Source,
    pub graph: Graph,
    pub env: Env,
    pub main: DType,
    pub pool: Vec<i64>,
    distribution: Distribution,
    /// A number of elements that tensors may have though it is beyond the usual ones.
    long: i64,
    /// See [`Sizes::Around`] and [`Focus::ends`].
    around: bool,
    ends: bool,
    /// See [`Sizes::Factors`].
    factored: bool,
    /// The size that all axes have but those of size 1.
    only: Option<i64>,
    made: Vec<(Value, String, Option<VarId>)>,
    branches: Vec<(usize, usize)>,
    /// What the product of bytes stores whose term is being made.
    stored: Option<DType>,
    numbers: Numbers,
    /// See [`Focus::unequal`].
    unequal: Option<(VarId, VarId, usize)>,
    /// The types that are being chosen are the rule's own, not those of an op's declaration.
    solving: bool,
    /// The preferred alternative, by the address of the pattern.
    wanted_branch: &'a dyn Fn(usize, usize) -> Option<usize>,
}

/// Facts that are known of few tensors but constants.
const OF_CONSTANTS: [Fact; 6] =
    [Fact::Const, Fact::Value, Fact::Uniform, Fact::Positive, Fact::NonNegative, Fact::Finite];

/// The ways to satisfy the guards, as an alternative: no pattern has this address.
pub const WAYS: usize = 1;

/// What an instance must have, where a caller does not leave it to chance.
#[derive(Clone, Copy, Debug, Default)]
pub struct Focus {
    /// The main element type.
    pub dtype: Option<DType>,
    /// The kind of values, in tensors of the sizes of statistics.
    pub ensemble: Option<Ensemble>,
    /// Small tensors in spite of the ensemble, for counterexamples.
    pub small: bool,
    /// The kind of values, in tensors of the usual sizes.
    pub distribution: Option<Distribution>,
    /// Which sizes there are.
    pub sizes: Sizes,
    /// An axis that has different sizes in these two operands.
    pub unequal: Option<(VarId, VarId, usize)>,
    /// Constants at the ends of what guards allow, and attributes beyond the usual ones.
    pub ends: bool,
}

/// The sizes of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sizes {
    /// The usual ones, and those of the rule.
    #[default]
    Usual,
    /// The same and 0.
    AlsoEmpty,
    /// The same and 1.
    AlsoOne,
    /// This one and 1.
    Long(i64),
    /// This one alone.
    All(i64),
    /// This one and small ones; a reshape to a list of sizes has factors above 1.
    Factors(i64),
    /// Four axes of different sizes where nothing else is known, of which views exchange two around
    /// a third, and others that broadcast have one or two.
    Around,
}

/// An instance of the rule's left side from these choices. `wanted_branch(pattern, n)` names an
/// alternative that was rarely taken so far.
pub fn instance(
    program: &Arc<Program>,
    rule: &Rule,
    hints: &Hints<'_>,
    source: &mut Source,
    focus: Focus,
    wanted_branch: &dyn Fn(usize, usize) -> Option<usize>,
) -> Try<Instance> {
    let (generator, left) = left_side(program, rule, hints, source, focus, wanted_branch)?;
    generator.finish(left)
}

/// The left side before its inputs have values: its roots, and what they were made with.
fn left_side<'a, 's>(
    program: &Arc<Program>,
    rule: &'a Rule,
    hints: &'a Hints<'a>,
    source: &'s mut Source,
    focus: Focus,
    wanted_branch: &'a dyn Fn(usize, usize) -> Option<usize>,
) -> Try<(Generator<'a, 's>, Vec<Value>)> {
    let way = (!hints.ways.is_empty()).then(|| match wanted_branch(WAYS, hints.ways.len()) {
        Some(wanted) => source.prefer(hints.ways.len(), wanted),
        None => source.pick(hints.ways.len()),
    });
    let hints = way.map_or(hints, |i| &hints.ways[i]);
    let main = focus.dtype.unwrap_or_else(|| DTYPES[source.weighted(&DTYPE_WEIGHTS)]);
    let distributions: &[u32] = if hints.folds() { &[18, 30, 12, 18, 22, 10, 20] } else { &[18, 30, 12, 18, 22, 10] };
    let distribution = match (focus.ensemble, focus.distribution) {
        (Some(kind), _) => Distribution::Ensemble(kind),
        (None, Some(distribution)) => distribution,
        (None, None) => Distribution::ALL[source.weighted(distributions)],
    };
    let pool = pool(&hints.constants, source, focus);
    let mut g = Generator {
        program: program.clone(),
        rule,
        hints,
        source,
        graph: Graph::new(program.clone()),
        env: Env::default(),
        main,
        pool,
        distribution,
        long: match focus.sizes {
            Sizes::Long(n) => n,
            Sizes::All(n) => n.saturating_mul(n).min(MOST_OF_ALL),
            _ => 0,
        },
        around: focus.sizes == Sizes::Around,
        ends: focus.ends,
        factored: matches!(focus.sizes, Sizes::Factors(_)),
        only: match focus.sizes {
            Sizes::Long(n) | Sizes::All(n) => Some(n),
            _ => None,
        },
        made: Vec::new(),
        branches: way.map(|i| (WAYS, i)).into_iter().collect(),
        stored: None,
        numbers: Numbers::new(),
        unequal: focus.unequal,
        solving: false,
        wanted_branch,
    };
    let mut left = Vec::new();
    for pat in &rule.lhs {
        match g.tensor(pat, &OpenType::default())? {
            Some(v) => left.push(v),
            None => return reject("a root is an absent operand"),
        }
    }
    // Variables that only other alternatives bind are absent.
    for (i, var) in rule.vars.iter().enumerate() {
        let id = VarId(i as u32);
        if var.sort == Sort::Tensor && !g.env.tensors.contains_key(&id) {
            g.env.absent.insert(id);
        }
    }
    Ok((g, left))
}

/// The few sizes that an instance's axes have.
fn pool(constants: &Constants, source: &mut Source, focus: Focus) -> Vec<i64> {
    let (sizes, weights) = match focus.ensemble.filter(|_| !focus.small) {
        Some(kind) => wide_candidates(constants, kind),
        None => candidates(constants),
    };
    let mut pool: Vec<i64> =
        (0..1 + source.weighted(&[30, 45, 25])).map(|_| sizes[source.weighted(&weights)]).collect();
    match focus.sizes {
        Sizes::Usual => {}
        Sizes::AlsoEmpty => pool.push(0),
        Sizes::AlsoOne => pool.push(1),
        Sizes::Long(n) => pool = vec![1, n, 1],
        Sizes::All(n) => pool = vec![n],
        Sizes::Factors(n) => pool = vec![n, 2, 1],
        Sizes::Around => pool = vec![2, 3, 5, 4],
    }
    pool
}

impl Generator<'_, '_> {
    /// Gives the inputs their values, then evaluates the guards.
    fn finish(mut self, left: Vec<Value>) -> Try<Instance> {
        let (mut inputs, mut constants) = (Vec::new(), Vec::new());
        let indexing = self.indexing();
        let mut far = self.far();
        let mut made = std::mem::take(&mut self.made);
        // Variables that a `let` reads come first: guards equate others with them.
        made.sort_by_key(|(_, _, var)| !var.is_some_and(|v| self.hints.is_read(v)));
        for (value, name, var) in made {
            self.bind_lets();
            let mut demand = self.demand(value, var)?;
            demand.small = indexing.contains(&name);
            self.suit_distribution(&mut demand, var, &mut far);
            let data = self.data(value, &demand)?;
            if self.becomes_constant(var) {
                self.graph.nodes[value.node.index()].kind = NodeKind::Const(Arc::new(data));
                self.graph.inputs.retain(|i| *i != value.node);
                self.spread_constant(value, var);
                constants.push((name, value.node));
            } else {
                inputs.push((name, data));
            }
        }
        self.refuse_broken_guards()?;
        if self.unequal.is_some_and(|pair| !apart(&self.graph, &self.env, pair)) {
            return reject("two sizes are to differ");
        }
        let Generator { graph, env, distribution, branches, numbers, .. } = self;
        Ok(Instance { graph, env, left, inputs, constants, distribution, branches, numbers })
    }

    /// Adds what the kind of values asks of an input to `demand`. `far` has the ranges that
    /// [`Generator::far`] chose and no input has taken.
    fn suit_distribution(&mut self, demand: &mut Demand, var: Option<VarId>, far: &mut Option<(Magnitude, Magnitude)>) {
        if let Distribution::Ensemble(_) = self.distribution {
            demand.small = true;
            let centred = self.distribution == Distribution::Ensemble(Ensemble::Offset) && self.is_folded(var);
            let alternatives = match self.distribution {
                // One number more often than none.
                Distribution::Ensemble(Ensemble::Near) => 2 * self.hints.constants.centres.len() + 1,
                _ => ALTERNATIVES,
            };
            demand.alternative = if centred { ALTERNATIVES - 1 } else { self.source.pick(alternatives) };
        }
        if self.distribution == Distribution::Halfway {
            demand.alternative = self.source.pick(KINDS_OF_HALFWAY);
        }
        if self.distribution == Distribution::Hidden {
            demand.alternative = self.source.pick(KINDS_OF_HIDDEN);
        }
        demand.last = self.distribution == Distribution::LastPlaces;
        if let Some((constants, operand)) = far {
            // Only one operand compensates for the constants: two of them would leave the range
            // together.
            demand.far = if self.is_folded(var) { *constants } else { std::mem::take(operand) };
        }
    }

    /// The elements of an input.
    fn data(&mut self, value: Value, demand: &Demand) -> Try<Tensor> {
        let ty = self.graph.ty(value).clone();
        let shape: Vec<usize> = sizes(&ty)?.into_iter().map(|d| d as usize).collect();
        let special = SpecialValues::of(self.distribution, ty.dtype, &self.hints.constants, &self.graph);
        tensor(self.source, self.distribution, ty.dtype, &shape, demand, &special)
            .ok_or_else(|| Reject("a tensor is too large".into()))
    }

    /// Chooses whether an input is a constant: often if a guard asks for what only constants have.
    fn becomes_constant(&mut self, var: Option<VarId>) -> bool {
        let asks = |f| var.is_some_and(|v| self.hints.asks(v, f));
        let must = OF_CONSTANTS.into_iter().any(asks);
        if self.distribution == Distribution::Far {
            self.is_folded(var)
        } else if must {
            self.source.weighted(&[1, 15]) == 1
        } else if var.is_some_and(|v| OF_CONSTANTS.into_iter().any(|f| self.hints.mentions(v, f))) {
            // `value(c) == 1` is false of another constant, and unknown of what is none.
            self.source.pick(2) == 1
        } else {
            self.source.weighted(&[4, 1]) == 1
        }
    }

    /// Refuses an instance for which a `let` has no value or a guard is not known to be true.
    fn refuse_broken_guards(&mut self) -> Try<()> {
        if !self.bind_lets() {
            return reject("a `let` has no value");
        }
        for (i, guard) in self.rule.requires.iter().enumerate() {
            let facts = GraphFacts { graph: &self.graph, env: &self.env };
            if eval_guard(guard, &self.env.attrs, &facts) != Some(true) {
                return reject(format!("guard {} of the rule does not hold", i + 1));
            }
        }
        for (condition, holds) in &self.hints.atoms {
            let facts = GraphFacts { graph: &self.graph, env: &self.env };
            if (eval_guard(condition, &self.env.attrs, &facts) == Some(true)) != *holds {
                return reject("the guards hold in another way");
            }
        }
        if has_numbers_of_a_body(self.rule) && any_enlarges(&self.graph) {
            return reject("a number enlarges what stands beside it");
        }
        Ok(())
    }

    /// Evaluates the `let`s whose value is known by now; false if one has no value.
    fn bind_lets(&mut self) -> bool {
        self.rule.lets.iter().all(|(var, e)| {
            let facts = GraphFacts { graph: &self.graph, env: &self.env };
            let value = eval(e, &self.env.attrs, &facts);
            value.map(|v| self.env.attrs.values.insert(*var, v)).is_some()
        })
    }

    /// The range of the constants, and the range of one operand that compensates for them, as their
    /// factor or divided by them.
    fn far(&mut self) -> Option<(Magnitude, Magnitude)> {
        let kinds = [
            (Magnitude::Small, Magnitude::AgainstSmall),
            (Magnitude::Large, Magnitude::AgainstLarge),
            (Magnitude::Small, Magnitude::AgainstLarge),
            (Magnitude::Large, Magnitude::AgainstSmall),
            // Of a sum, the operand takes away what two constants make too large.
            (Magnitude::Half, Magnitude::AgainstHalves),
        ];
        (self.distribution == Distribution::Far).then(|| kinds[self.source.weighted(&[4, 2, 1, 1, 2])])
    }

    /// True for a variable that a guard or a `let` requires to be constant.
    fn is_folded(&self, var: Option<VarId>) -> bool {
        var.is_some_and(|v| self.hints.asks(v, Fact::Const) || self.hints.asks(v, Fact::Value))
    }

    /// Integer inputs that are used as indices, also through other operations or inside an op.
    /// Large values would rarely be legal indices.
    fn indexing(&self) -> HashSet<String> {
        if !self.made.iter().any(|m| self.graph.ty(m.0).dtype.is_int()) {
            return HashSet::new();
        }
        let Ok(graph) = self.graph.inlined() else { return HashSet::new() };
        let mut used = vec![false; graph.nodes.len()];
        let mut names = HashSet::new();
        for (i, node) in graph.nodes.iter().enumerate().rev() {
            let indexed = match &node.kind {
                NodeKind::Op { op, .. } => matches!(
                    graph.program.op(*op).body,
                    OpBody::Builtin(
                        BuiltinOp::Gather | BuiltinOp::GatherElements | BuiltinOp::GatherNd | BuiltinOp::Scatter
                    )
                ),
                _ => false,
            };
            if let NodeKind::Input { name } = &node.kind
                && used[i]
            {
                names.insert(name.clone());
            }
            let all = used[i];
            let through = node.operands.iter().enumerate().filter(|(at, _)| all || (indexed && *at == 1));
            for operand in through.filter_map(|(_, o)| *o) {
                used[operand.node.index()] = true;
            }
        }
        names
    }

    /// What a value was before conversions.
    fn uncast(&self, mut value: Value) -> Value {
        loop {
            let node = self.graph.node(value.node);
            match (&node.kind, node.operands.first()) {
                (NodeKind::Op { op, .. }, Some(Some(operand)))
                    if self.program.op(*op).body == OpBody::Builtin(BuiltinOp::Cast) =>
                {
                    value = *operand;
                }
                _ => return value,
            }
        }
    }

    /// What a variable's elements must satisfy, from the guards and from its use as indices.
    fn demand(&mut self, value: Value, var: Option<VarId>) -> Try<Demand> {
        let mut demand = Demand::default();
        if let Some(v) = var {
            demand.positive = self.hints.asks(v, Fact::Positive);
            demand.nonnegative = self.hints.asks(v, Fact::NonNegative);
            demand.finite = self.hints.asks(v, Fact::Finite);
            demand.splat = self.hints.asks(v, Fact::Uniform);
            if self.hints.asks(v, Fact::Value) {
                demand.splat = true;
                let mut values = self.hinted_values(v);
                if values.is_empty() && self.ends {
                    values = self.bounds(v);
                }
                let value = if values.is_empty() { None } else { values.get(self.source.pick(values.len())) };
                demand.is = value.and_then(|v| match v {
                    AttrValue::Float(f) => Some(*f),
                    AttrValue::Dim(d) => d.as_const().map(|c| c as f64),
                    _ => None,
                });
                if values.is_empty() && self.hints.is_ranged(v) && self.source.pick(4) > 0 {
                    demand.is = self.within_range(v);
                }
                // -0 is 0, too.
                if demand.is == Some(0.0) && self.source.pick(4) == 1 {
                    demand.is = Some(-0.0);
                }
            } else if self.hints.mentions(v, Fact::Value) {
                demand.splat |= self.source.pick(2) == 1;
            }
        }
        for node in &self.graph.nodes {
            let NodeKind::Op { op, attrs, .. } = &node.kind else { continue };
            let OpBody::Builtin(builtin) = self.program.op(*op).body else { continue };
            if node.operands.get(1).copied().flatten().is_none_or(|v| self.uncast(v) != value) {
                continue;
            }
            let Some(Some(data)) = node.operands.first() else { continue };
            let data = sizes(self.graph.ty(*data))?;
            let at = match (builtin, attrs.first()) {
                (BuiltinOp::Gather | BuiltinOp::GatherElements, Some(AttrValue::Dim(axis))) => {
                    axis.as_const().and_then(|a| data.get(a as usize).copied())
                }
                (BuiltinOp::Scatter, _) => data.first().copied(),
                (BuiltinOp::GatherNd, _) => data.iter().copied().min(),
                _ => continue,
            };
            let Some(size) = at else { continue };
            if size == 0 && !sizes(self.graph.ty(value))?.contains(&0) {
                return reject("an empty axis is indexed");
            }
            demand.index = Some(demand.index.map_or(size, |d: i64| d.min(size)));
        }
        Ok(demand)
    }
}

/// Whether an axis has different sizes in two operands of the same rank.
pub fn apart(graph: &Graph, env: &Env, (a, b, axis): (VarId, VarId, usize)) -> bool {
    let shape = |v: VarId| env.tensors.get(&v).map(|v| &graph.ty(*v).shape);
    let (Some(a), Some(b)) = (shape(a), shape(b)) else { return false };
    a.len() == b.len() && a.get(axis) != b.get(axis)
}

/// The number of elements of a type.
pub(crate) fn elements(ty: &TensorType) -> usize {
    ty.shape.iter().map(|d| d.as_const().map_or(1, |n| n.max(0) as usize)).product()
}

/// The sizes of a type as numbers.
pub(super) fn sizes(ty: &TensorType) -> Try<Vec<i64>> {
    known(&ty.shape)
}

fn known(shape: &[Dim]) -> Try<Vec<i64>> {
    shape.iter().map(|d| d.as_const().ok_or_else(|| Reject("a symbolic size".into()))).collect()
}

/// A list of numbers.
pub(super) fn ints(list: &[AttrValue]) -> Option<Vec<i64>> {
    list.iter()
        .map(|v| match v {
            AttrValue::Dim(d) => d.as_const(),
            _ => None,
        })
        .collect()
}
