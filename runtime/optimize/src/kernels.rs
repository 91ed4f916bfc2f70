//! Kernel choice: which kernels of the Program may compute a node.
//!
//! In: an extracted or given graph, and a device. Out: the same graph, each node with its list of
//! kernels (see [`hypatia_graph::Kernels`]), with a split epilogue made explicit. The cost model
//! calls this module too, for nodes of the e-graph. Invariant: a kernel is listed only if its
//! pattern matches the extracted term (modulo commutativity and association) and no guard of it is
//! known to be false; unknown guards are left to the planner. The order of kernels in a file
//! implies no preference. Kernels from users' templates come first: they are timed beside what
//! follows. So are tiled kernels where their `prefer` holds. Then, until measurements decide, a
//! kernel with a fixed epilogue comes before an open one, which computes any epilogue.

use std::collections::HashMap;
use std::sync::Arc;

use egg::Id;
use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{
    AExpr, AttrValue, Backend, Class, Head, InView, Kernel, KernelId, NodePat, OpBody, OpId, Param, ParamKind, Pat,
    Program, Rule, VarId,
};
use hypatia_dsl::kernel::attention::MAX_HEAD;
use hypatia_dsl::kernel::attention_grad::MAX_GRAD_HEAD;
use hypatia_dsl::numerics::Allowed;
use hypatia_dsl::scalar::{Term, TermId, TermNode, TermPattern, prune};
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::{Bindings, Facts, TensorType, eval_guard, show_expr};

use super::apply::implements;
use super::matcher::applied::Applied;
use super::matcher::prepare::Prepared;
use super::matcher::{Match, Searchable, application, match_at};
use super::report::{Choice, Considered, UndecidedKernel};
use super::{Options, optimize};
use hypatia_graph::fate::Fate;
use hypatia_graph::{
    Attention, AttentionGrad, Candidate, CandidateFacts, ConstantFolder, Graph, Kernels, Known, Matched, Node, NodeId,
    NodeKind, Product, Replacement, Split, Strategy, Value, constant_nodes,
};
use hypatia_target::device::Device;
use hypatia_tensor::error::Result;

/// Maximum number of steps to match a kernel's pattern with a node.
const MATCH_STEPS: usize = 20_000;

/// A kernel's pattern, prepared for the matcher.
pub(super) struct KernelPattern {
    rule: Rule,
    prepared: Prepared,
}

impl KernelPattern {
    /// Prepares the pattern of a kernel. Its guards are not part of it: they may stay undecided.
    pub(super) fn of(program: &Program, kernel: &Kernel) -> KernelPattern {
        let rule = Rule::of_pattern(&kernel.name, &kernel.origin, kernel.vars.clone(), kernel.pattern.clone());
        KernelPattern { prepared: Prepared::of(program, &rule, false), rule }
    }

    /// The form that the matcher takes.
    pub(super) fn search(&self) -> Searchable<'_> {
        Searchable { rule: &self.rule, terms: false, prepared: &self.prepared }
    }
}

/// The library calls that compute an op with a body.
pub(super) fn calls(program: &Program, op: OpId) -> Vec<KernelId> {
    if matches!(program.op(op).body, OpBody::Builtin(_)) {
        return Vec::new();
    }
    of_op(program, op, |b| matches!(b, Backend::Cublaslt(_)))
}

/// The kernels of such a kind that are declared for an op.
pub(super) fn of_op(program: &Program, op: OpId, kind: impl Fn(&Backend) -> bool) -> Vec<KernelId> {
    let kernels = program.kernels.iter().enumerate();
    let own = kernels.filter(|(_, k)| kind(&k.backend) && implements(&k.pattern, op));
    own.map(|(i, _)| KernelId(i as u32)).collect()
}

/// The pattern of a kernel that stores an epilogue.
pub(super) fn epilogue_pattern<'k>(program: &Program, kernel: &'k Kernel) -> Option<&'k NodePat> {
    let n = application(&kernel.pattern)?;
    let Head::Op(op) = n.head else { return None };
    (stores_epilogues(kernel) && program.op(op).params.iter().any(|p| p.kind == ParamKind::Term)).then_some(n)
}

/// Whether a kernel of a product may be listed.
fn stores_epilogues(kernel: &Kernel) -> bool {
    matches!(kernel.backend, Backend::Cublaslt(_) | Backend::Tiled | Backend::Template(_)) && kernel.can_be_planned()
}

/// True unless a kernel is refuted: by a guard, because it claims only an approximation for the
/// type of its operands, or because the library has none for it.
pub(super) fn permits(kernel: &Kernel, dtype: Option<DType>, bindings: &Bindings, facts: &dyn Facts) -> bool {
    let refuted = |g: &AExpr| eval_guard(g, bindings, facts) == Some(false);
    unfit(kernel, dtype).is_none() && !kernel.requires.iter().any(refuted)
}

/// Why no operands of that type are for a kernel, if none are.
pub(super) fn unfit(kernel: &Kernel, dtype: Option<DType>) -> Option<&'static str> {
    let speaks_of = |dtypes: &[DType]| dtypes.is_empty() || dtype.is_some_and(|d| dtypes.contains(&d));
    let claim = kernel.claims.iter().find(|c| speaks_of(&c.dtypes));
    match (&kernel.backend, claim.map(|c| c.class)) {
        (Backend::Cublaslt(_), _) if dtype.is_some_and(DType::is_int) => Some("multiplies no integers"),
        (_, Some(Class::Approx { .. })) => Some("claims only an approximation for this type"),
        _ => None,
    }
}

/// The graph to plan: each node that has a choice gets a list of kernels, and ops that only their
/// body computes are inlined. Existing lists for the same device are kept.
pub fn select(graph: &Graph, device: &Device, allowed: &Allowed, folder: &'static dyn ConstantFolder) -> Result<Graph> {
    let mut listed = graph.clone();
    attach(&mut listed, device, allowed, folder)?;
    let plain = |n: &Node| matches!(n.kernels.list.as_slice(), [Candidate { strategy: Strategy::Body, .. }]);
    if !listed.nodes.iter().any(plain) {
        return Ok(listed);
    }
    let mut out = listed.replaced(&|_, n| if plain(n) { Replacement::Body } else { Replacement::Itself })?;
    attach(&mut out, device, allowed, folder)?;
    Ok(out)
}

/// Gives each node that has a choice its list of kernels. Bodies of ops are optimised by the rules
/// that are allowed.
pub fn attach(
    graph: &mut Graph,
    device: &Device,
    allowed: &Allowed,
    folder: &'static dyn ConstantFolder,
) -> Result<()> {
    let constant = constant_nodes(graph);
    let patterns: Vec<KernelPattern> =
        graph.program.kernels.iter().map(|k| KernelPattern::of(&graph.program, k)).collect();
    let mut parts: HashMap<Option<Key>, Arc<Graph>> = HashMap::new();
    for i in 0..graph.nodes.len() {
        let node = &graph.nodes[i];
        // Constants are computed before any kernel runs.
        if constant[i] || node.kernels.device == device.name {
            continue;
        }
        let (exact, batch_invariant) = (allowed.is_exact(), allowed.batch_invariant);
        let chooser = Chooser { graph, node, constant: &constant, patterns: &patterns, device, exact, batch_invariant };
        let list = match &node.kind {
            NodeKind::Op { op, attrs, .. } => match graph.program.op(*op).body {
                OpBody::Builtin(b) if b.is_pair() => {
                    let mut parts = graph.two_products(node)?;
                    attach(&mut parts, device, allowed, folder)?;
                    chooser.pair(*op, attrs, Arc::new(parts))
                }
                OpBody::Builtin(b) if b.multiplies() && !device.is_host() => chooser.products(b),
                OpBody::Builtin(_) => Vec::new(),
                OpBody::Defined(_) => chooser.defined((*op, attrs), &mut |node| {
                    let key = key(graph, node);
                    if let Some(known) = parts.get(&key) {
                        return Ok(known.clone());
                    }
                    let options = Options {
                        device: device.clone(),
                        composed: false,
                        batch_invariant: allowed.batch_invariant,
                        numerics: allowed.numerics,
                        disabled: allowed.disabled.clone(),
                        ..Options::default()
                    };
                    let part = Arc::new(optimize(&graph.alone(node)?, &options, folder)?.graph);
                    parts.insert(key, part.clone());
                    Ok(part)
                })?,
            },
            _ => Vec::new(),
        };
        graph.nodes[i].kernels = Kernels { device: device.name, list };
    }
    Ok(())
}

/// The nodes whose kernel depends on sizes that are not known yet.
pub(super) fn undecided(graph: &Graph) -> Vec<UndecidedKernel> {
    let nodes = graph.nodes.iter().enumerate().filter(|(_, n)| n.kernels.is_undecided());
    let named = |i: usize, n: &Node| match n.name.is_empty() {
        true => graph.value_name(Value { node: NodeId(i as u32), output: 0 }),
        false => n.name.clone(),
    };
    nodes.map(|(i, n)| UndecidedKernel { node: named(i, n), kernels: graph.describe_kernels(n) }).collect()
}

/// The kernels of the Program that could compute a node in one launch, and what keeps each from it.
pub(super) fn refusals(graph: &Graph, node: NodeId, device: &Device) -> Vec<(KernelId, String)> {
    let program = &graph.program;
    let NodeKind::Op { op, attrs, term } = &graph.node(node).kind else { return Vec::new() };
    let constant = constant_nodes(graph);
    let patterns: Vec<KernelPattern> = program.kernels.iter().map(|k| KernelPattern::of(program, k)).collect();
    let of = graph.node(node);
    let chooser = Chooser {
        graph,
        node: of,
        constant: &constant,
        patterns: &patterns,
        device,
        exact: false,
        batch_invariant: false,
    };
    let application = match (&program.op(*op).body, program.builtin_op(BuiltinOp::Gemm)) {
        (OpBody::Defined(_), _) => Application::of_node(&chooser, *op, attrs),
        (OpBody::Builtin(b), _) if b.is_pair() => Application::of_pair(&chooser, *op, attrs),
        (OpBody::Builtin(b), Some(gemm)) => {
            let term = term.clone().unwrap_or_else(Product::plain);
            Application::of_product(&chooser, gemm, of_matrices(*b), (&term, of.results[0].dtype))
        }
        _ => return Vec::new(),
    };
    let dtype = of.results.first().map(|t| t.dtype);
    let all = (0..program.kernels.len()).map(|k| KernelId(k as u32));
    all.filter_map(|k| application.refusal(k, dtype).map(|why| (k, why))).collect()
}

/// The ways to compute the nodes of a graph on known sizes that have a choice, those of equal nodes
/// once. `predicted` gives the microseconds of a graph of one node.
pub fn considered(graph: &Graph, device: &Device, predicted: &dyn Fn(&Graph) -> Option<f64>) -> Vec<Choice> {
    let mut out: Vec<(Option<Key>, Choice)> = Vec::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        if node.kernels.list.is_empty() || node.kernels.device != device.name {
            continue;
        }
        let id = NodeId(i as u32);
        let name = match node.name.is_empty() {
            true => graph.value_name(Value { node: id, output: 0 }),
            false => node.name.clone(),
        };
        let key = key(graph, node);
        if let Some((_, known)) = out.iter_mut().find(|(k, _)| *k == key) {
            known.nodes.push(name);
            continue;
        }
        let candidates = candidates(graph, id, device, predicted);
        if candidates.len() > 1 {
            out.push((key, Choice { nodes: vec![name], candidates }));
        }
    }
    out.into_iter().map(|(_, choice)| choice).collect()
}

/// The candidates of a node, and the kernels that match it but may not compute it.
fn candidates(
    graph: &Graph,
    id: NodeId,
    device: &Device,
    predicted: &dyn Fn(&Graph) -> Option<f64>,
) -> Vec<Considered> {
    let node = graph.node(id);
    let mut out = Vec::new();
    let fates = graph.fates(node, device);
    for (at, (candidate, fate)) in node.kernels.list.iter().zip(fates).enumerate() {
        let fits = !matches!(fate, Fate::Refused(_));
        let alone = |mut alone: Graph| {
            let list = node.kernels.list[at..].to_vec();
            if let Some(last) = alone.nodes.last_mut() {
                last.kernels = Kernels { device: node.kernels.device, list };
            }
            alone
        };
        let predicted_us = graph.alone(node).ok().filter(|_| fits).and_then(|g| predicted(&alone(g)));
        out.push(Considered { kernel: graph.describe_kernel(node, candidate), predicted_us, fate });
    }
    let listed: Vec<KernelId> = node.kernels.list.iter().filter_map(Candidate::kernel).collect();
    let refused = refusals(graph, id, device).into_iter().filter(|(k, _)| !listed.contains(k));
    out.extend(refused.map(|(k, why)| Considered {
        kernel: graph.program.kernels[k.index()].name.clone(),
        predicted_us: None,
        fate: Fate::Refused(why),
    }));
    out
}

/// Cache key of an op's separately optimised body: the op, its attributes, its term, the types of
/// its operands.
type Key = (OpId, Vec<AttrValue>, Option<Term>, Vec<Option<TensorType>>);

fn key(graph: &Graph, node: &Node) -> Option<Key> {
    let NodeKind::Op { op, attrs, term } = &node.kind else { return None };
    let types = node.operands.iter().map(|v| v.map(|v| graph.ty(v).clone())).collect();
    Some((*op, attrs.clone(), term.clone(), types))
}

/// Optimises the body of a node's op.
type OptimizeBody<'a> = &'a mut dyn FnMut(&Node) -> Result<Arc<Graph>>;

/// Finds the kernels of a node.
struct Chooser<'a> {
    graph: &'a Graph,
    node: &'a Node,
    constant: &'a [bool],
    /// By kernel.
    patterns: &'a [KernelPattern],
    device: &'a Device,
    /// Only kernels that give the bits of the plan without rules.
    exact: bool,
    /// Only kernels that add up in an order that does not depend on how many rows there are.
    batch_invariant: bool,
}

impl Chooser<'_> {
    fn known(&self, operand: usize) -> Option<Known> {
        let v = self.node.operands.get(operand).copied().flatten()?;
        Some(Known { ty: self.graph.ty(v).clone(), constant: self.constant[v.node.index()] })
    }

    fn candidate(&self, strategy: Strategy, matched: Matched) -> Candidate {
        Candidate { strategy, matched: Some(matched) }
    }

    /// Whether a kernel may be used for any number of rows alike. The library chooses how it splits
    /// sums by their number, and of a user's template nothing is known.
    fn admits(&self, kernel: &Kernel) -> bool {
        !self.batch_invariant || !matches!(kernel.backend, Backend::Cublaslt(_) | Backend::Template(_))
    }

    /// The kernels of a node of a defined op.
    fn defined(&self, (op, attrs): (OpId, &[AttrValue]), optimize_body: OptimizeBody<'_>) -> Result<Vec<Candidate>> {
        let program = &self.graph.program;
        let application = Application::of_node(self, op, attrs);
        let dtype = self.node.results.first().map(|t| t.dtype);
        let declared = |kernel: KernelId| application.matched(kernel, dtype);
        let listed = |strategy: Strategy, kind: &dyn Fn(&Backend) -> bool| -> Vec<Candidate> {
            let called = matches!(strategy, Strategy::Call);
            let kernels = of_op(program, op, kind).into_iter().filter(|_| !(called && self.exact));
            let kernels = kernels.filter(|k| self.admits(&program.kernels[k.index()]));
            kernels.filter_map(|k| declared(k).map(|m| self.candidate(strategy.clone(), m))).collect()
        };
        let mut list = Vec::new();
        if !self.device.is_host() {
            list = listed(Strategy::Call, &|b| matches!(b, Backend::Template(_)));
            list.retain(|c| c.kernel().is_some_and(|k| program.kernels[k.index()].can_be_planned()));
        }
        if !calls(program, op).is_empty() {
            if !self.device.is_host() {
                list.extend(listed(Strategy::Call, &|b| matches!(b, Backend::Cublaslt(_))));
            }
            list.push(Candidate { strategy: Strategy::Composed(optimize_body(self.node)?), matched: None });
            return Ok(list);
        }
        let tiled = listed(Strategy::Call, &|b| *b == Backend::Tiled);
        let is_composed = of_op(program, op, |b| *b == Backend::Composed).into_iter().any(|k| declared(k).is_some());
        if is_composed || !tiled.is_empty() {
            let parts = optimize_body(self.node)?;
            let fits = |factors: &[Value], turned, most| fits(&parts, factors, turned, most);
            let attention = || Attention::of(&parts).is_some_and(|a| fits(&a.factors, a.factors[1], MAX_HEAD));
            let gradients = || AttentionGrad::of(&parts).is_some_and(|a| fits(&a.factors, a.factors[2], MAX_GRAD_HEAD));
            if attention() || gradients() {
                list.extend(tiled);
            }
            match is_composed {
                true => list.extend(listed(Strategy::Composed(parts), &|b| *b == Backend::Composed)),
                false => list.push(Candidate { strategy: Strategy::Composed(parts), matched: None }),
            }
        }
        let is_timed = !list.is_empty();
        list.extend(listed(Strategy::Rowwise, &|b| *b == Backend::Rowwise));
        // What a template's kernel is timed beside is as fast as we can make it.
        let last = if is_timed { Strategy::Composed(optimize_body(self.node)?) } else { Strategy::Body };
        list.push(Candidate { strategy: last, matched: None });
        Ok(list)
    }

    /// The kernels of two products of one left operand: one launch, or both products in turn.
    fn pair(&self, op: OpId, attrs: &[AttrValue], parts: Arc<Graph>) -> Vec<Candidate> {
        let application = Application::of_pair(self, op, attrs);
        let dtype = self.known(0).map(|k| k.ty.dtype);
        let kernels = of_op(&self.graph.program, op, |b| *b == Backend::Tiled).into_iter();
        let kernels = kernels.filter(|_| !self.exact && !self.device.is_host());
        let mut list: Vec<Candidate> =
            kernels.filter_map(|k| application.matched(k, dtype).map(|m| self.candidate(Strategy::Call, m))).collect();
        list.push(Candidate { strategy: Strategy::Composed(parts), matched: None });
        list
    }

    /// The kernels of a product with its epilogue on a device with a library.
    fn products(&self, op: BuiltinOp) -> Vec<Candidate> {
        let NodeKind::Op { term, .. } = &self.node.kind else { return Vec::new() };
        let Some(from) = self.known(0).map(|k| k.ty.dtype) else { return Vec::new() };
        let matrices = of_matrices(op);
        let term = term.clone().unwrap_or_else(Product::plain);
        let to = self.node.results[0].dtype;
        Products { of: self, matrices, product: Product { term: &term, from, to } }.list()
    }
}

/// Whether no size that is known keeps a tiled kernel from computing attention, or its gradients,
/// of these factors, whose heads have at most this many elements; `turned` has them along the axis
/// before the last one.
fn fits(graph: &Graph, factors: &[Value], turned: Value, most: usize) -> bool {
    let types = || factors.iter().map(|v| (*v, graph.ty(*v)));
    let first = types().next().map(|(_, t)| t.dtype);
    types().all(|(v, t)| {
        let size = |from_last: usize| t.shape.iter().rev().nth(from_last).and_then(Dim::as_const);
        let (head, rows) = if v == turned { (size(1), size(0)) } else { (size(0), size(1)) };
        Some(t.dtype) == first && head.is_none_or(|s| s > 0 && s <= most as i64) && rows != Some(0)
    })
}

/// Whether the operands of a product are the factors of a matrix product. A convolution becomes a
/// product of other matrices, which are known only when sizes are.
fn of_matrices(op: BuiltinOp) -> bool {
    matches!(op, BuiltinOp::Matmul | BuiltinOp::Gemm)
}

/// Finds the kernels of a product's epilogue.
struct Products<'a> {
    of: &'a Chooser<'a>,
    /// Its operands are those of the node.
    matrices: bool,
    product: Product<'a>,
}

impl Products<'_> {
    fn list(&self) -> Vec<Candidate> {
        let (program, term) = (&self.of.graph.program, self.product.term);
        let last = Candidate { strategy: self.product.without_kernel(program), matched: None };
        // A generated kernel says which types it stores.
        let stores =
            |m: &Matched| self.product.is_direct() || program.kernels[m.kernel.index()].backend == Backend::Tiled;
        let whole = self.kernels(term, self.product.to).into_iter().filter(stores);
        let mut list: Vec<Candidate> = whole.map(|m| self.of.candidate(Strategy::Whole, m)).collect();
        if matches!(last.strategy, Strategy::Whole) {
            list.push(last);
            return list;
        }
        let between = self.product.between();
        // The largest part of the epilogue that some kernel computes; at least the accumulator
        // itself.
        let acc = term.nodes.iter().position(|n| *n == TermNode::Acc);
        for at in (0..term.nodes.len()).rev() {
            if Some(at) != acc && !reaches_acc(term, at) {
                continue;
            }
            let Some(rest) = behind(term, at) else { continue };
            let mut head = term.clone();
            head.roots = vec![TermId(at as u32)];
            let head = prune(&head);
            // A launch that needs a fallback computes the whole epilogue or nothing.
            let alone = |m: &Matched| !program.kernels[m.kernel.index()].backend.needs_fallback();
            for matched in self.kernels(&head, between).into_iter().filter(alone) {
                let split = Split { head: head.clone(), rest: rest.clone(), between };
                list.push(self.of.candidate(Strategy::Split(split), matched));
            }
        }
        list.push(last);
        list
    }

    /// The kernels that store such a term in that type: users' templates first, since their author
    /// wants them tried; then those that prefer these sizes; then those with a fixed epilogue.
    fn kernels(&self, term: &Term, out: DType) -> Vec<Matched> {
        let program = &self.of.graph.program;
        let Some(gemm) = program.builtin_op(BuiltinOp::Gemm) else { return Vec::new() };
        // A library may choose another algorithm for each of its epilogues.
        if self.of.exact {
            return Vec::new();
        }
        let application = Application::of_product(self.of, gemm, self.matrices, (term, out));
        let kernels = program.kernels.iter().enumerate();
        let kernels = kernels.filter(|(_, k)| epilogue_pattern(program, k).is_some() && self.of.admits(k));
        let from = Some(self.product.from);
        let mut found: Vec<Matched> = Vec::new();
        for (i, kernel) in kernels {
            let id = KernelId(i as u32);
            // Of factors that are not matrices yet, nothing is known.
            let prefers = self.matrices && !kernel.prefer.is_empty();
            let preferred = if prefers { application.preferred(id, from) } else { None };
            if !preferred.as_ref().is_some_and(|m| m.undecided.is_empty()) {
                found.extend(application.matched(id, from));
            }
            found.extend(preferred);
        }
        found.sort_by_key(|m| {
            let kernel = &program.kernels[m.kernel.index()];
            (!matches!(kernel.backend, Backend::Template(_)), !m.preferred, !kernel.closed)
        });
        found
    }
}

/// An op applied to the operands of a node, for matching.
struct Application<'a> {
    of: &'a Chooser<'a>,
    host: Applied<'a>,
    /// What stands for each operand of the node.
    operands: Vec<Id>,
    results: Vec<Id>,
    /// Number of operands, from the first, of which nothing is known.
    unknown: usize,
}

impl<'a> Application<'a> {
    /// The operands of the chooser's node, not applied yet.
    fn of_operands(of: &'a Chooser<'a>, unknown: usize) -> Application<'a> {
        let mut host = Applied::new(&of.graph.program);
        // A variable that occurs twice stands for one value. What an epilogue reads is bound by its
        // position.
        let mut own: HashMap<Value, Id> = HashMap::new();
        let tensors = of.graph.tensor_operands(of.node);
        let mut operands = Vec::with_capacity(of.node.operands.len());
        for (i, value) in of.node.operands.iter().enumerate() {
            operands.push(match value {
                None => host.absent(),
                Some(_) if i < unknown => host.tensor(None),
                Some(v) if i < tensors => *own.entry(*v).or_insert_with(|| host.tensor(of.known(i))),
                Some(_) => host.tensor(of.known(i)),
            });
        }
        Application { of, host, operands, results: Vec::new(), unknown }
    }

    /// The node's own op.
    fn of_node(of: &'a Chooser<'a>, op: OpId, attrs: &[AttrValue]) -> Application<'a> {
        let mut out = Application::of_operands(of, 0);
        let declared = of.graph.program.op(op);
        let mut operands = out.operands.clone();
        // A term is one operand, over what it reads, which comes last in the node.
        let term = match &of.node.kind {
            NodeKind::Op { term: Some(term), .. } => {
                let read = operands.split_off(of.graph.tensor_operands(of.node));
                Some(out.host.term(term.clone(), read))
            }
            _ => None,
        };
        // Trailing optional operands may be left out.
        let tensors = declared.operands().count() - usize::from(term.is_some());
        let missing = tensors.saturating_sub(operands.len());
        let absent: Vec<Id> = (0..missing).map(|_| out.host.absent()).collect();
        out.operands.extend(absent.iter().filter(|_| term.is_none()));
        operands.extend(absent);
        if let (Some(term), Some(at)) = (term, declared.operands().position(|(_, p)| p.kind == ParamKind::Term)) {
            operands.insert(at, term);
        }
        out.results = out.host.op(op, attrs.to_vec(), &operands, &of.node.results);
        out
    }

    /// The node, which is two products with their term.
    fn of_pair(of: &'a Chooser<'a>, op: OpId, attrs: &[AttrValue]) -> Application<'a> {
        let mut out = Application::of_operands(of, 0);
        let (Some((factors, read)), NodeKind::Op { term: Some(term), .. }) =
            (out.operands.split_at_checked(3), &of.node.kind)
        else {
            return out;
        };
        let term = out.host.term(term.clone(), read.to_vec());
        let operands: Vec<Id> = factors.iter().copied().chain([term]).collect();
        out.results = out.host.op(op, attrs.to_vec(), &operands, &of.node.results);
        out
    }

    /// The product with that term that the node is, or becomes, stored in that type.
    fn of_product(of: &'a Chooser<'a>, gemm: OpId, matrices: bool, (term, to): (&Term, DType)) -> Application<'a> {
        let mut out = Application::of_operands(of, if matrices { 0 } else { 2 });
        let Some((product, read)) = out.operands.split_at_checked(2) else { return out };
        let term = out.host.term(term.clone(), read.to_vec());
        let shape = of.node.results.first().filter(|_| matrices).map(|t| t.shape.clone());
        let ty = shape.map(|shape| TensorType { dtype: to, shape });
        out.results = out.host.op(gemm, vec![AttrValue::DType(to)], &[product[0], product[1], term], ty.as_slice());
        out
    }

    /// The match of a kernel, if neither a guard nor a rounding class refutes it.
    fn matched(&self, id: KernelId, dtype: Option<DType>) -> Option<Matched> {
        self.matched_where(id, dtype, false)
    }

    /// The match of a kernel where its preferences hold too, if nothing refutes it.
    fn preferred(&self, id: KernelId, dtype: Option<DType>) -> Option<Matched> {
        self.matched_where(id, dtype, true)
    }

    fn matched_where(&self, id: KernelId, dtype: Option<DType>, preferred: bool) -> Option<Matched> {
        let kernel = &self.of.graph.program.kernels[id.index()];
        let pattern = self.of.patterns.get(id.index()).filter(|_| unfit(kernel, dtype).is_none())?;
        let matches = self.results.iter().flat_map(|r| match_at(&self.host, &pattern.search(), *r, MATCH_STEPS));
        matches.into_iter().find_map(|m| self.admitted(id, kernel, m, preferred))
    }

    /// What keeps a kernel that matches from computing the node.
    fn refusal(&self, id: KernelId, dtype: Option<DType>) -> Option<String> {
        let kernel = &self.of.graph.program.kernels[id.index()];
        let pattern = self.of.patterns.get(id.index())?;
        let found = |r: &Id| match_at(&self.host, &pattern.search(), *r, MATCH_STEPS).into_iter().next();
        let m = self.results.iter().find_map(found)?;
        if let Some(why) = unfit(kernel, dtype) {
            return Some(format!("kernel {} {why}", kernel.name));
        }
        let at = |v: VarId| self.operands.iter().position(|o| Some(*o) == m.class(v));
        let operands: Vec<(VarId, usize)> =
            (0..m.bindings.len()).filter_map(|v| Some((VarId(v as u32), at(VarId(v as u32))?))).collect();
        let known = |i: usize| match i < self.unknown {
            true => self.of.graph.seen_by_kernels(self.of.node, i),
            false => self.of.known(i),
        };
        let asked = CandidateFacts { operands: &operands, known: &known, device: self.of.device };
        let guard = kernel.requires.iter().find(|g| eval_guard(g, &m.values, &asked) != Some(true))?;
        Some(format!("kernel {} requires {}", kernel.name, show_expr(&kernel.vars, guard)))
    }

    /// The match in terms of the node, if no guard refutes it.
    fn admitted(&self, id: KernelId, kernel: &Kernel, m: Match, preferred: bool) -> Option<Matched> {
        let at = |v: VarId| self.operands.iter().position(|o| Some(*o) == m.class(v));
        let vars = (0..m.bindings.len()).map(|v| VarId(v as u32));
        let operands = vars.filter_map(|v| Some((v, at(v)?))).collect();
        let reads = reads(&self.of.graph.program, kernel);
        let reads = reads.into_iter().filter_map(|(v, view)| Some((at(v)?, view))).collect();
        let mut matched = Matched { kernel: id, operands, bindings: m.values, reads, preferred, undecided: Vec::new() };
        let known = |i: usize| self.of.known(i).filter(|_| i >= self.unknown);
        matched.ask(kernel, &known, self.of.device).then_some(matched)
    }
}

/// The variables that the epilogue of a kernel's pattern reads, and how.
fn reads(program: &Program, kernel: &Kernel) -> Vec<(VarId, InView)> {
    let Some(NodePat { head: Head::Op(op), args, .. }) = application(&kernel.pattern) else { return Vec::new() };
    let is_term = |(_, (_, param)): &(&Pat, (usize, &Param))| param.kind == ParamKind::Term;
    let term = args.iter().zip(program.op(*op).operands()).find(is_term);
    let Some((Pat::Node(epilogue), _)) = term else { return Vec::new() };
    let reads = TermPattern::closed_node(epilogue).map_or(Vec::new(), |e| e.reads);
    reads.into_iter().filter_map(|(pat, view)| Some((variable(pat)?, view))).collect()
}

/// The variable that a pattern of a tensor binds.
fn variable(pat: &Pat) -> Option<VarId> {
    match pat {
        Pat::Var(v) | Pat::Bind(v, _) => Some(*v),
        Pat::Typed(inner, _) => variable(inner),
        _ => None,
    }
}

/// True if that node depends on the accumulator.
fn reaches_acc(term: &Term, at: usize) -> bool {
    let mut reaches = vec![false; at + 1];
    for i in 0..=at {
        reaches[i] = match &term.nodes[i] {
            TermNode::Acc => true,
            TermNode::Call { args, .. } => args.iter().any(|a| reaches[a.0 as usize]),
            TermNode::Cast { arg, .. } => reaches[arg.0 as usize],
            _ => false,
        };
    }
    reaches[at]
}

/// The remaining term, with node `at` as its accumulator; `None` if it still needs the old
/// accumulator, or nothing remains.
fn behind(term: &Term, at: usize) -> Option<Term> {
    if term.root().0 as usize == at {
        return None;
    }
    let mut rest = term.clone();
    let was_acc = rest.nodes[at] == TermNode::Acc;
    if !was_acc {
        // Replace the old accumulator with a marker, to see whether it is still read.
        for node in rest.nodes.iter_mut().filter(|n| **n == TermNode::Acc) {
            *node = TermNode::Param(u32::MAX);
        }
        rest.nodes[at] = TermNode::Acc;
    }
    let rest = prune(&rest);
    (!rest.nodes.contains(&TermNode::Param(u32::MAX))).then_some(rest)
}
