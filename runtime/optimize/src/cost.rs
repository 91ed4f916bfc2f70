//! The cost model: an estimate of time on a device.
//!
//! In: a node of the e-graph and a device. Out: picoseconds. Time is the maximum of arithmetic and
//! memory traffic, plus a launch. `flops`, `read` and `write` come from the op's declaration, or
//! else from its types. Invariant: views cost (next to) nothing; constants are computed when the
//! plan is made, and cost next to nothing; unknown sizes count as [`ASSUMED_SIZE`]. What a rule
//! states takes the place of an estimate (`stated`).

mod convolved;
mod refused;
mod stated;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use egg::{EClass, Id};
use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{
    AExpr, AttrPat, AttrValue, Backend, Kernel, KernelId, OpBody, OpDef, OpId, ParamKind, Pat, Program, ScalarBody,
    ScalarId, VarId,
};
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::{self, Bindings, NoFacts, TensorType};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use self::convolved::OfConvolution;
use super::analysis::EGraph;
use super::analysis::{Data, Sort, class_type};
use super::candidate::Candidate;
use super::facts::is_view;
use super::kernels::KernelPattern;
use super::language::{Node, Payload};
use super::matcher::{MatchFacts, application, match_application};
use super::{Options, kernels};
use hypatia_graph::CandidateFacts;
use hypatia_target::device::Device;

pub use super::savings::ASSUMED_SIZE;

/// Picoseconds.
pub type Cost = u64;

/// The cost of a nearly free node: fewer of them are still better.
const TRIFLE: Cost = 1;
/// A function inside an epilogue: the product's memory traffic hides it, but a shorter term is
/// preferred.
const EPILOGUE_STEP: Cost = 100;
/// An additional result of a product: more than the functions of an epilogue, less than any launch.
const EXTRA_RESULT: Cost = 100 * EPILOGUE_STEP;
/// The cost of a node that cannot run.
const IMPOSSIBLE: Cost = u64::MAX / 2;
/// Maximum number of steps to match a kernel's pattern.
const KERNEL_STEPS: usize = 20_000;

/// The time of a kernel of ours above the library's: one part in this many, and half a launch.
const TIMED_SHARE: Cost = 32;

/// Whether a kernel computes every application of its op.
fn is_unconditional(kernel: &Kernel) -> bool {
    let Some(pattern) = application(&kernel.pattern) else { return false };
    let any = |p: &Pat| matches!(p, Pat::Any | Pat::Var(_) | Pat::Optional(_));
    let free = |a: &AttrPat| matches!(a, AttrPat::Any | AttrPat::Var(_));
    kernel.requires.is_empty()
        && kernel.claims.is_empty()
        && pattern.args.iter().all(any)
        && pattern.attrs.iter().all(free)
}

/// The kernel that stores an epilogue's result directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stored {
    /// The library's, or the host's executor.
    Library,
    /// A kernel that is timed beside its fallback.
    Timed,
}

/// The work of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes read.
    pub read: f64,
    /// Bytes written.
    pub write: f64,
}

/// Cached costs of the nodes of one class.
type Known = SmallVec<[(Node, Cost); 1]>;

/// The cost of nodes on a device.
pub struct CostModel {
    program: Arc<Program>,
    device: Device,
    /// Kernels that compute an op with a term.
    epilogues: Vec<(KernelPattern, KernelId)>,
    /// Those of products, as they compute a convolution.
    convolutions: Vec<(KernelPattern, KernelId)>,
    /// Ops that have a kernel.
    has_kernel: Vec<bool>,
    /// Ops whose body runs as several launches.
    composed: Vec<bool>,
    /// For each op with a body, the kernels that may compute it, if each of them asks for
    /// something.
    conditional: Vec<Vec<(KernelPattern, KernelId)>>,
    /// For each op with a body, the library calls that compute it.
    calls: Vec<Vec<(KernelPattern, KernelId)>>,
    /// Ops with an epilogue.
    takes_term: Vec<bool>,
    scalar_steps: Vec<f64>,
    /// Cached costs of nodes that are not constant, by class. Costs that depend on more than the
    /// node's own types are not cached.
    known: RefCell<Vec<Known>>,
    /// Costs that follow from what rules save.
    stated: FxHashMap<Node, Cost>,
    /// What rules were measured to save, in microseconds.
    measured: BTreeMap<String, f64>,
}

impl CostModel {
    /// For the kernels of a program on a device.
    pub fn new(program: &Arc<Program>, options: &Options) -> CostModel {
        let device = &options.device;
        let all = || program.kernels.iter().enumerate().map(|(i, k)| (KernelId(i as u32), k));
        let epilogues = all().filter(|(_, k)| kernels::epilogue_pattern(program, k).is_some());
        let epilogues = epilogues.map(|(id, k)| (KernelPattern::of(program, k), id)).collect();
        let convolutions = all().filter_map(|(id, k)| Some((convolved::pattern(program, k)?, id))).collect();
        let call = |id: KernelId| (KernelPattern::of(program, &program.kernels[id.index()]), id);
        let calls = |op: OpId| kernels::calls(program, op).into_iter().map(call).collect();
        let implementing = |op: OpId| -> Vec<(KernelId, &Kernel)> {
            // The parts of an op with such a kernel must not be that op again.
            let parts =
                |k: &Kernel| matches!(k.backend, Backend::Composed | Backend::Cublaslt(_)) || k.backend.is_timed();
            // A kernel that cannot be generated would run as the parts of its body.
            let generated = |k: &Kernel| k.not_generated.is_none();
            // Guards that only ask about the device.
            let asked = CandidateFacts { operands: &[], known: &|_| None, device };
            let refuted = |g: &AExpr| typing::eval_guard(g, &Bindings::default(), &asked) == Some(false);
            let runs = |k: &Kernel| match k.backend {
                Backend::Template(_) => !device.is_host() && k.can_be_planned(),
                _ => true,
            };
            let possible = |k: &Kernel| runs(k) && !k.requires.iter().any(refuted);
            let kernels = all().filter(|(_, k)| (options.composed || !parts(k)) && generated(k) && possible(k));
            kernels.filter(|(_, k)| super::apply::implements(&k.pattern, op)).collect()
        };
        let kernels_of: Vec<Vec<(KernelId, &Kernel)>> =
            (0..program.ops.len()).map(|i| implementing(OpId(i as u32))).collect();
        let conditional = |kernels: &Vec<(KernelId, &Kernel)>| match kernels.iter().any(|(_, k)| is_unconditional(k)) {
            true => Vec::new(),
            false => kernels.iter().map(|(id, k)| (KernelPattern::of(program, k), *id)).collect(),
        };
        CostModel {
            program: program.clone(),
            device: device.clone(),
            known: RefCell::default(),
            stated: FxHashMap::default(),
            measured: options.measured.clone(),
            epilogues,
            convolutions,
            composed: (0..program.ops.len())
                .map(|i| {
                    !kernels::of_op(program, OpId(i as u32), |b| matches!(b, Backend::Composed | Backend::Tiled))
                        .is_empty()
                })
                .collect(),
            calls: (0..program.ops.len()).map(|i| calls(OpId(i as u32))).collect(),
            takes_term: program.ops.iter().map(|op| op.params.iter().any(|p| p.kind == ParamKind::Term)).collect(),
            has_kernel: kernels_of.iter().map(|k| !k.is_empty()).collect(),
            conditional: kernels_of.iter().map(conditional).collect(),
            scalar_steps: program
                .scalars
                .iter()
                .enumerate()
                .map(|(i, _)| steps(program, ScalarId(i as u32), 0))
                .collect(),
        }
    }

    /// The cost of a node in a class, without its children.
    pub fn node(&self, egraph: &EGraph, class: &EClass<Node, Data>, node: &Node) -> Cost {
        let stated = if self.stated.is_empty() { None } else { self.stated.get(node) };
        stated.copied().unwrap_or_else(|| self.estimate(egraph, class, node))
    }

    /// The estimate of a node's cost.
    fn estimate(&self, egraph: &EGraph, class: &EClass<Node, Data>, node: &Node) -> Cost {
        if let Some(cost) = fixed(&class.data, node) {
            return cost;
        }
        // Which kernel computes a term depends on everything in the term's class.
        if let Payload::Op(op, _) = node.payload
            && !self.device.is_host()
            && self.takes_term[op.index()]
        {
            return self.by_types(egraph, class.id, node);
        }
        let mut known = self.known.borrow_mut();
        let at = usize::from(class.id);
        if known.len() <= at {
            known.resize_with(egraph.nodes().len().max(at + 1), SmallVec::new);
        }
        if let Some((_, cost)) = known[at].iter().find(|(n, _)| n == node) {
            return *cost;
        }
        let cost = self.by_types(egraph, class.id, node);
        known[at].push((node.clone(), cost));
        cost
    }

    /// True for a 16-bit float as f32 on a GPU: what reads it converts it.
    fn widens(&self, egraph: &EGraph, class: Id, node: &Node) -> bool {
        let Payload::Op(op, _) = node.payload else { return false };
        let dtype = |c: Id| class_type(egraph, c).map(|t| t.dtype);
        let from = node.children.first().and_then(|c| dtype(*c));
        self.program.op(op).body == OpBody::Builtin(BuiltinOp::Cast)
            && !self.device.is_host()
            && matches!(from, Some(DType::F16 | DType::BF16))
            && dtype(class) == Some(DType::F32)
    }

    /// The additional cost of a node because its class is a result of the graph: a slice of another
    /// tensor that is not contiguous has to be copied, as have axes in another order, and a
    /// conversion is a launch.
    pub fn stored(&self, egraph: &EGraph, class: &EClass<Node, Data>, node: &Node) -> Cost {
        let cuts = |n: &Node| {
            let Payload::Op(op, attrs) = n.payload else { return false };
            let OpBody::Builtin(BuiltinOp::Slice | BuiltinOp::Split) = self.program.op(op).body else { return false };
            let attrs = egraph.analysis.attrs(attrs);
            let int = |i: usize| match attrs.get(i) {
                Some(AttrValue::Dim(d)) => d.as_const(),
                _ => None,
            };
            let strided = attrs.len() > 3 && int(3) != Some(1);
            let of = n.children.first().and_then(|c| class_type(egraph, *c));
            let Some((of, axis)) = of.zip(int(0)) else { return false };
            let axis = if axis < 0 { axis + of.shape.len() as i64 } else { axis };
            let before = usize::try_from(axis).ok().and_then(|a| of.shape.get(..a));
            strided || before.is_none_or(|b| b.iter().any(|d| d.as_const() != Some(1)))
        };
        let cut = match node.payload {
            Payload::Output(_) => node.children.iter().any(|c| egraph[*c].nodes.iter().any(cuts)),
            _ => cuts(node) || self.turns(egraph, node),
        };
        let converted = self.widens(egraph, class.id, node);
        let moved = match class_type(egraph, class.id).filter(|_| !class.data.constant) {
            Some(ty) if cut || converted => bytes(&concrete(ty)),
            _ => return 0,
        };
        self.time(Work { flops: 0.0, read: moved, write: moved }, self.device.vector)
    }

    /// True for a view whose axes, those of size 1 aside, are in another order, and for another
    /// shape of one.
    fn turns(&self, egraph: &EGraph, node: &Node) -> bool {
        let Payload::Op(op, attrs) = node.payload else { return false };
        let Some(of) = node.children.first() else { return false };
        match self.program.op(op).body {
            OpBody::Builtin(BuiltinOp::Transpose) => {}
            OpBody::Builtin(BuiltinOp::Reshape) => {
                let is_turned = |n: &Node| {
                    matches!(n.payload, Payload::Op(op, _)
                    if self.program.op(op).body == OpBody::Builtin(BuiltinOp::Transpose))
                };
                return egraph[*of].nodes.iter().any(|n| is_turned(n) && self.turns(egraph, n));
            }
            _ => return false,
        }
        let Some(AttrValue::List(perm)) = egraph.analysis.attrs(attrs).first() else { return false };
        let axis = |v: &AttrValue| match v {
            AttrValue::Dim(d) => d.as_const().and_then(|a| usize::try_from(a).ok()),
            _ => None,
        };
        let of = class_type(egraph, *of);
        let is_long = |a: &usize| of.and_then(|t| t.shape.get(*a)).is_some_and(|d| d.as_const() != Some(1));
        let order: Vec<usize> = perm.iter().filter_map(axis).filter(is_long).collect();
        !order.is_sorted()
    }

    /// The cost of a node by its types and those of its operands.
    fn by_types(&self, egraph: &EGraph, class: Id, node: &Node) -> Cost {
        match node.payload {
            Payload::Op(op, attrs) => self.op(egraph, class, node, op, egraph.analysis.attrs(attrs)),
            Payload::In(_) => self.bytes(class_type(egraph, node.children[0])),
            Payload::Scalar(s) => {
                let out = class_type(egraph, class);
                let steps = self.scalar_steps[s.index()];
                let work = self.pointwise(egraph, node, out, steps);
                // Memory traffic dominates; of two functions with the same traffic the simpler one
                // is better.
                self.time(work, self.device.vector).saturating_add(steps as Cost)
            }
            _ => 0,
        }
    }

    fn op(&self, egraph: &EGraph, class: Id, node: &Node, op: OpId, attrs: &[AttrValue]) -> Cost {
        let def = self.program.op(op);
        let builtin = match &def.body {
            OpBody::Builtin(b) => Some(*b),
            OpBody::Defined(_) if !self.has_kernel[op.index()] => return IMPOSSIBLE,
            OpBody::Defined(_) => None,
        };
        let called = !self.calls[op.index()].is_empty();
        if called && !self.may_call(egraph, class, node, op) {
            return IMPOSSIBLE;
        }
        if builtin.is_none() && !self.may_run(egraph, class, node, op) {
            return IMPOSSIBLE;
        }
        if builtin.is_some_and(is_view) || self.widens(egraph, class, node) {
            return TRIFLE;
        }
        let operands: Vec<Option<TensorType>> = node
            .children
            .iter()
            .filter(|c| !matches!(egraph[**c].data.sort, Sort::Term(_)))
            .map(|c| class_type(egraph, *c).map(concrete))
            .collect();
        let outs: Vec<TensorType> = match egraph[class].data.sort {
            Sort::Tensor(t) => vec![concrete(egraph.analysis.ty(t))],
            Sort::Tuple { first, count } => {
                egraph.analysis.tuple(first, count).iter().map(|t| concrete(egraph.analysis.ty(*t))).collect()
            }
            _ => Vec::new(),
        };
        let work = op_work(def, builtin, attrs, &operands, &outs);
        // Composed kernels and library calls spend most of their time in matrix products.
        let matrix = builtin.is_some_and(BuiltinOp::multiplies) || self.composed[op.index()] || called;
        let dtype = operands.iter().flatten().next().map_or(DType::F32, |t| t.dtype);
        let rate = if matrix { self.device.matrix_rate(dtype) } else { self.device.vector };
        let mut cost = self.time(work, rate);
        // Arithmetic hides the traffic of a product, but not that of what reads its result in f32
        // where 16 bits would do.
        if let Some(out) = outs.first().filter(|o| matrix && o.dtype == DType::F32 && dtype.size() < o.dtype.size()) {
            let more = elements(out) * (out.dtype.size() - dtype.size()) as f64;
            cost = cost.saturating_add(picoseconds(more / self.device.bandwidth));
        }
        if called {
            // An additional result is not free: an epilogue of several functions is preferred to
            // it.
            cost = cost.saturating_add(EXTRA_RESULT);
        }
        if builtin.is_some_and(BuiltinOp::is_pair) {
            return cost.saturating_add(self.pair(egraph, (class, node), cost, outs.first()));
        }
        if let Some((term, out)) = term_child(egraph, def, node).zip(outs.first()) {
            cost = cost.saturating_add(match self.implements_term(egraph, class, node, term) {
                Some(Stored::Library) => 0,
                // Less tuned than the library's kernels.
                Some(Stored::Timed) => cost / TIMED_SHARE + picoseconds(self.device.launch / 2.0),
                // The product stores its accumulator, and a second kernel reads it back.
                None => {
                    let accumulator = elements(out) * dtype.accumulator().size() as f64;
                    self.time(Work { flops: 0.0, read: accumulator, write: accumulator }, rate)
                }
            });
        }
        cost
    }

    /// The cost of two products of one left operand besides their arithmetic and operands.
    fn pair(&self, egraph: &EGraph, (class, node): (Id, &Node), cost: Cost, out: Option<&TensorType>) -> Cost {
        let dtype = node.children.first().and_then(|c| class_type(egraph, *c)).map(|t| t.dtype);
        let computes = |kernel| self.may_compute(egraph, kernel, (class, node), dtype);
        if !self.device.is_host() && self.epilogues.iter().any(computes) {
            // As for one product of ours: it is timed beside a product of ours and one of the
            // library.
            return cost / (2 * TIMED_SHARE) + picoseconds(self.device.launch / 2.0);
        }
        // Both products are stored, and a pass reads them: never better than these as nodes.
        let sums = out.map_or(0.0, |t| elements(t) * t.dtype.compute().size() as f64);
        let traffic = Work { flops: 0.0, read: 2.0 * sums, write: 2.0 * sums };
        let pass = self.time(traffic, self.device.vector);
        pass.saturating_add(picoseconds(self.device.launch)).saturating_add(EXTRA_RESULT)
    }

    /// Whether the target's library may have the call for an op.
    fn may_call(&self, egraph: &EGraph, class: Id, node: &Node, op: OpId) -> bool {
        let dtype = class_type(egraph, class).map(|t| t.dtype);
        let computes = |kernel| self.may_compute(egraph, kernel, (class, node), dtype);
        !self.device.is_host() && self.calls[op.index()].iter().any(computes)
    }

    /// Whether some kernel of an op may compute this application of it. Without one, the op would
    /// run as the parts of its body.
    fn may_run(&self, egraph: &EGraph, class: Id, node: &Node, op: OpId) -> bool {
        let conditional = &self.conditional[op.index()];
        let dtype = class_type(egraph, class).map(|t| t.dtype);
        conditional.is_empty() || conditional.iter().any(|k| self.may_compute(egraph, k, (class, node), dtype))
    }

    /// Whether a kernel may compute this application: its pattern matches, and no guard is known to
    /// be false.
    fn may_compute(
        &self,
        egraph: &EGraph,
        (pattern, id): &(KernelPattern, KernelId),
        application: (Id, &Node),
        dtype: Option<DType>,
    ) -> bool {
        let kernel = &self.program.kernels[id.index()];
        let convolution = matches!(application.1.payload, Payload::Op(op, _)
            if self.program.op(op).body == OpBody::Builtin(BuiltinOp::ConvGemm));
        match_application(egraph, &pattern.search(), application, KERNEL_STEPS).iter().any(|m| {
            let device = Some(&self.device);
            let facts = MatchFacts { egraph, bindings: &m.bindings, device, candidate: Candidate::none() };
            match convolution {
                true => kernels::permits(kernel, dtype, &m.values, &OfConvolution(&facts)),
                false => kernels::permits(kernel, dtype, &m.values, &facts),
            }
        })
    }

    /// Which kernel of the target stores the result of this epilogue directly, if one does; the
    /// library's if there are both.
    fn implements_term(&self, egraph: &EGraph, class: Id, node: &Node, term: Id) -> Option<Stored> {
        let is = |id: &Id, what: &dyn Fn(&Payload) -> bool| egraph[*id].nodes.iter().any(|n| what(&n.payload));
        let acc = |p: &Payload| *p == Payload::Acc;
        let number = |p: &Payload| matches!(p, Payload::Lit(bits) if f64::from_bits(*bits) != 0.0);
        let mul = self.program.builtin_scalar(BuiltinScalar::Mul);
        // Libraries scale the accumulator within the product.
        let scaled = |n: &Node| {
            let Payload::Call(scalar) = n.payload else { return false };
            let [a, b] = n.children.as_slice() else { return false };
            Some(scalar) == mul && (is(a, &acc) && is(b, &number) || is(a, &number) && is(b, &acc))
        };
        let plain = egraph[term].nodes.iter().any(|n| n.payload == Payload::Acc || scaled(n));
        // The host's executor runs any term on the blocks of a product.
        if plain || self.device.is_host() {
            return Some(Stored::Library);
        }
        let dtype = node.children.first().and_then(|c| class_type(egraph, *c)).map(|t| t.dtype);
        let is_timed = |id: KernelId| self.program.kernels[id.index()].backend.is_timed();
        let stored = |timed: bool| {
            let kernels = self.epilogues.iter().chain(&self.convolutions);
            let mut kernels = kernels.filter(|(_, id)| is_timed(*id) == timed);
            kernels.any(|kernel| self.may_compute(egraph, kernel, (class, node), dtype))
        };
        match () {
            () if stored(false) => Some(Stored::Library),
            () if stored(true) => Some(Stored::Timed),
            () => None,
        }
    }

    fn pointwise(&self, egraph: &EGraph, node: &Node, out: Option<&TensorType>, steps: f64) -> Work {
        let Some(out) = out.map(concrete) else { return Work::default() };
        let read = node.children.iter().filter_map(|c| class_type(egraph, *c)).map(|t| bytes(&concrete(t))).sum();
        Work { flops: steps * elements(&out), read, write: bytes(&out) }
    }

    fn bytes(&self, ty: Option<&TensorType>) -> Cost {
        let b = ty.map_or(0.0, |t| bytes(&concrete(t)));
        picoseconds(b / self.device.bandwidth) + EPILOGUE_STEP
    }

    fn time(&self, work: Work, rate: f64) -> Cost {
        let memory = (work.read + work.write) / self.device.bandwidth;
        picoseconds((work.flops / rate).max(memory) + self.device.launch)
    }
}

/// The cost of a node if it does not depend on types.
fn fixed(data: &Data, node: &Node) -> Option<Cost> {
    if data.sort == Sort::Invalid {
        return Some(IMPOSSIBLE);
    }
    match node.payload {
        Payload::Leaf(_) | Payload::Splat(..) | Payload::Absent | Payload::Acc | Payload::Lit(_) => Some(0),
        Payload::Output(_) => Some(TRIFLE),
        Payload::Call(_) | Payload::TermCast(_) => Some(EPILOGUE_STEP),
        Payload::Second => Some(TRIFLE),
        // Computed once, when the plan is made; an existing constant is still better.
        Payload::Op(..) | Payload::Scalar(_) if data.constant => Some(TRIFLE),
        Payload::In(_) | Payload::Op(..) | Payload::Scalar(_) => None,
    }
}

fn picoseconds(seconds: f64) -> Cost {
    // `as` saturates; a cost stays below the one that means impossible.
    ((seconds * 1e12).round() as Cost).min(IMPOSSIBLE / 1_000_000)
}

/// The term operand of a node.
fn term_child(egraph: &EGraph, def: &OpDef, node: &Node) -> Option<Id> {
    def.params.iter().any(|p| p.kind == ParamKind::Term).then_some(())?;
    node.children.iter().copied().find(|c| matches!(egraph[*c].data.sort, Sort::Term(_)))
}

/// The type with every symbolic size replaced by the assumed size.
fn concrete(ty: &TensorType) -> TensorType {
    let shape = ty.shape.iter().map(|d| Dim::from(d.eval(&|_| Some(ASSUMED_SIZE)).unwrap_or(ASSUMED_SIZE).max(0)));
    TensorType { dtype: ty.dtype, shape: shape.collect() }
}

fn elements(ty: &TensorType) -> f64 {
    ty.shape.iter().map(|d| d.as_const().unwrap_or(ASSUMED_SIZE) as f64).product()
}

fn bytes(ty: &TensorType) -> f64 {
    elements(ty) * ty.dtype.size() as f64
}

/// Number of operations of a scalar function, including those of its body.
fn steps(program: &Program, s: ScalarId, depth: usize) -> f64 {
    match &program.scalar(s).body {
        ScalarBody::Term(t) if depth < 32 => t
            .nodes
            .iter()
            .map(|n| match n {
                hypatia_dsl::scalar::TermNode::Call { scalar, .. } => steps(program, *scalar, depth + 1),
                _ => 0.0,
            })
            .sum(),
        ScalarBody::Term(_) => 1.0,
        ScalarBody::Builtin(b) => b.cost().operations,
    }
}

/// The work of an op by its formulas or, without them, by its types.
fn op_work(
    def: &OpDef,
    builtin: Option<BuiltinOp>,
    attrs: &[AttrValue],
    operands: &[Option<TensorType>],
    outs: &[TensorType],
) -> Work {
    let read: f64 = operands.iter().flatten().map(bytes).sum();
    let write: f64 = outs.iter().map(bytes).sum();
    let out_elements = outs.first().map_or(0.0, elements);
    let flops = match builtin.map(|b| b.accumulator().unwrap_or(b)) {
        Some(BuiltinOp::Matmul) => {
            let k = operands.first().and_then(Option::as_ref).and_then(|t| t.shape.last()).and_then(Dim::as_const);
            2.0 * out_elements * k.unwrap_or(1) as f64
        }
        Some(_) => operands.iter().flatten().map(elements).sum(),
        // A row-wise body: a few operations an element for each reduction in it.
        None => 8.0 * out_elements,
    };
    // A lookup reads only the elements that it finds, not the whole table.
    let looks_up = matches!(builtin, Some(BuiltinOp::Gather | BuiltinOp::GatherElements | BuiltinOp::GatherNd));
    let derived = Work { flops, read: if looks_up { read.min(2.0 * write) } else { read }, write };
    let formulas = &def.cost;
    if formulas.flops.is_none() && formulas.read.is_none() && formulas.write.is_none() {
        return derived;
    }
    let bindings = bind(def, attrs, operands, outs);
    let value = |f: &Option<AExpr>, otherwise: f64| {
        let v = f.as_ref().and_then(|e| typing::eval(e, &bindings, &NoFacts));
        match v {
            Some(AttrValue::Dim(d)) => d.as_const().filter(|c| *c >= 0).map_or(otherwise, |c| c as f64),
            Some(AttrValue::Float(v)) if v.is_finite() && v >= 0.0 => v,
            _ => otherwise,
        }
    };
    Work {
        flops: value(&formulas.flops, derived.flops),
        read: value(&formulas.read, derived.read),
        write: value(&formulas.write, derived.write),
    }
}

/// The variables of an op's types, its attributes, and `out`.
fn bind(def: &OpDef, attrs: &[AttrValue], operands: &[Option<TensorType>], outs: &[TensorType]) -> Bindings {
    let mut bindings = Bindings::default();
    bindings.values.extend(def.attrs().zip(attrs).map(|((i, _), v)| (VarId(i as u32), v.clone())));
    let mut next = operands.iter();
    for param in &def.params {
        if let ParamKind::Tensor { ty, variadic: false, .. } = &param.kind
            && let Some(Some(have)) = next.next()
        {
            let _ = typing::match_type(ty, have, &mut bindings);
        }
    }
    if let (Some(i), Some(out)) = (def.vars.iter().position(|v| v.name == "out"), outs.first()) {
        let shape = out.shape.iter().cloned().map(AttrValue::Dim).collect();
        bindings.values.get_or_insert(VarId(i as u32), AttrValue::List(shape));
    }
    bindings
}
