//! Kernel choice: which kernels of the Program may compute a node.
//!
//! In: an extracted or given graph, and a device. Out: the same graph, each node with its list of
//! kernels (see [`hypatia_graph::Kernels`]), with a split epilogue made explicit. The cost model
//! calls this module too, for nodes of the e-graph. Invariant: a kernel is listed only if its
//! pattern matches the extracted term (modulo commutativity and association) and no guard of it is
//! known to be false; unknown guards are left to the planner. The order of kernels in a file
//! implies no preference. Until measurements decide, a kernel with a fixed epilogue comes before an
//! open one, which computes any epilogue.

use std::collections::HashMap;
use std::sync::Arc;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{
    AExpr, AttrPat, AttrType, AttrValue, Backend, Class, Head, InView, Kernel, KernelId, NodePat, OpBody, OpDef, OpId,
    ParamKind, Pat, Program, Sort, VarId,
};
use hypatia_dsl::scalar::{Literal, Term, TermId, TermNode, match_modulo_ac, prune};
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::{Bindings, Facts, TensorType, eval, eval_guard, match_type};

use super::apply::implements;
use super::matcher::{attr_equal, normal_attr};
use super::report::Open;
use super::{Options, optimize};
use hypatia_graph::{
    Candidate, CandidateFacts, ConstantFolder, Graph, Kernels, Known, Matched, Node, NodeId, NodeKind, Product,
    Replacement, Split, Value, Way, constant_nodes,
};
use hypatia_target::device::Device;
use hypatia_tensor::error::Result;

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

/// The application at the top of a pattern.
pub(super) fn node_pattern(mut pat: &Pat) -> Option<&NodePat> {
    while let Pat::Bind(_, inner) | Pat::Typed(inner, _) = pat {
        pat = inner;
    }
    match pat {
        Pat::Node(n) => Some(n),
        _ => None,
    }
}

/// The pattern of a kernel that stores an epilogue. `None` for kernels made by a user's template:
/// they are not measured, so their declaration alone is not enough.
pub(super) fn epilogue_pattern<'k>(program: &Program, kernel: &'k Kernel) -> Option<&'k NodePat> {
    let n = node_pattern(&kernel.pattern)?;
    let Head::Op(op) = n.head else { return None };
    let stores = matches!(kernel.backend, Backend::Cublaslt(_) | Backend::Tiled);
    (stores && program.op(op).params.iter().any(|p| p.kind == ParamKind::Term)).then_some(n)
}

/// True unless a kernel is refuted: by a guard, or because it claims only an approximation for the
/// type of its operands.
pub(super) fn permits(kernel: &Kernel, dtype: Option<DType>, bindings: &Bindings, facts: &dyn Facts) -> bool {
    let refuted = |g: &AExpr| eval_guard(g, bindings, facts) == Some(false);
    is_precise(kernel, dtype) && !kernel.requires.iter().any(refuted)
}

/// Whether a kernel claims more than an approximation for that type.
fn is_precise(kernel: &Kernel, dtype: Option<DType>) -> bool {
    let speaks_of = |dtypes: &[DType]| dtypes.is_empty() || dtype.is_some_and(|d| dtypes.contains(&d));
    let claim = kernel.claims.iter().find(|c| speaks_of(&c.dtypes));
    !matches!(claim.map(|c| c.class), Some(Class::Approx(_)))
}

/// The graph to plan: each node that has a choice gets a list of kernels, and ops that only their
/// body computes are inlined. Existing lists for the same device are kept.
pub fn select(graph: &Graph, device: &Device, folder: &'static dyn ConstantFolder) -> Result<Graph> {
    let mut listed = graph.clone();
    attach(&mut listed, device, folder)?;
    let plain = |n: &Node| matches!(n.kernels.list.as_slice(), [Candidate { way: Way::Body, .. }]);
    if !listed.nodes.iter().any(plain) {
        return Ok(listed);
    }
    let mut out = listed.replaced(&|_, n| if plain(n) { Replacement::Body } else { Replacement::Itself })?;
    attach(&mut out, device, folder)?;
    Ok(out)
}

/// Gives each node that has a choice its list of kernels.
pub fn attach(graph: &mut Graph, device: &Device, folder: &'static dyn ConstantFolder) -> Result<()> {
    let constant = constant_nodes(graph);
    let mut parts: HashMap<Option<Key>, Arc<Graph>> = HashMap::new();
    for i in 0..graph.nodes.len() {
        let node = &graph.nodes[i];
        // Constants are computed before any kernel runs.
        if constant[i] || node.kernels.device == device.name {
            continue;
        }
        let chooser = Chooser { graph, node, constant: &constant, device };
        let list = match &node.kind {
            NodeKind::Op { op, .. } => match graph.program.op(*op).body {
                OpBody::Builtin(b) if b.multiplies() && !device.is_host() => chooser.products(b),
                OpBody::Builtin(_) => Vec::new(),
                OpBody::Defined(_) => chooser.defined(*op, &mut |node| {
                    let key = key(graph, node);
                    if let Some(known) = parts.get(&key) {
                        return Ok(known.clone());
                    }
                    let options = Options { device: device.clone(), composed: false, ..Options::default() };
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
pub(super) fn open(graph: &Graph) -> Vec<Open> {
    let nodes = graph.nodes.iter().enumerate().filter(|(_, n)| n.kernels.is_open());
    let named = |i: usize, n: &Node| match n.name.is_empty() {
        true => graph.value_name(Value { node: NodeId(i as u32), output: 0 }),
        false => n.name.clone(),
    };
    nodes.map(|(i, n)| Open { node: named(i, n), kernels: graph.describe_kernels(n) }).collect()
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
type Parts<'a> = &'a mut dyn FnMut(&Node) -> Result<Arc<Graph>>;

/// Finds the kernels of a node.
struct Chooser<'a> {
    graph: &'a Graph,
    node: &'a Node,
    constant: &'a [bool],
    device: &'a Device,
}

impl Chooser<'_> {
    fn known(&self, operand: usize) -> Option<Known> {
        let v = self.node.operands.get(operand).copied().flatten()?;
        Some(Known { ty: self.graph.ty(v).clone(), constant: self.constant[v.node.index()] })
    }

    fn candidate(&self, way: Way, matched: Matched) -> Candidate {
        Candidate { way, matched: Some(matched) }
    }

    /// The kernels of a node of a defined op.
    fn defined(&self, op: OpId, parts: Parts<'_>) -> Result<Vec<Candidate>> {
        let program = &self.graph.program;
        let mut list = Vec::new();
        let mut add = |way: Way, kind: &dyn Fn(&Backend) -> bool| {
            for kernel in of_op(program, op, kind) {
                list.extend(self.declared(kernel).map(|m| self.candidate(way.clone(), m)));
            }
        };
        if !calls(program, op).is_empty() {
            if !self.device.is_host() {
                add(Way::Call, &|b| matches!(b, Backend::Cublaslt(_)));
            }
            list.push(Candidate { way: Way::Parts(parts(self.node)?), matched: None });
            return Ok(list);
        }
        if of_op(program, op, |b| *b == Backend::Composed).into_iter().any(|k| self.declared(k).is_some()) {
            add(Way::Parts(parts(self.node)?), &|b| *b == Backend::Composed);
        }
        add(Way::Rowwise, &|b| *b == Backend::Rowwise);
        list.push(Candidate { way: Way::Body, matched: None });
        Ok(list)
    }

    /// The match of a kernel for a defined op, if nothing refutes it.
    fn declared(&self, id: KernelId) -> Option<Matched> {
        let NodeKind::Op { op, attrs, .. } = &self.node.kind else { return None };
        let (program, node) = (&self.graph.program, self.node);
        let kernel = &program.kernels[id.index()];
        let Pat::Node(NodePat { args, attrs: pats, .. }) = &kernel.pattern else { return None };
        let mut binder = Binder::default();
        let rank = node.operands.first().and_then(|v| *v).map(|v| self.graph.ty(v).shape.len());
        let operands = args.iter().enumerate().all(|(i, p)| {
            let ty = node.operands.get(i).copied().flatten().map(|v| self.graph.ty(v));
            binder.operand(p, ty.map(|ty| (i, Some(ty))))
        });
        if !operands || !binder.attrs(program.op(*op), pats, (attrs, rank), (&|i| self.known(i), self.device)) {
            return None;
        }
        binder.matched(id, kernel, Some(node.results[0].dtype), &|i| self.known(i), self.device)
    }

    /// The kernels of a product with its epilogue on a device with a library.
    fn products(&self, op: BuiltinOp) -> Vec<Candidate> {
        let NodeKind::Op { term, .. } = &self.node.kind else { return Vec::new() };
        let Some(from) = self.known(0).map(|k| k.ty.dtype) else { return Vec::new() };
        // A convolution becomes a product of other matrices, which are known only when it is
        // planned.
        let matrices = matches!(op, BuiltinOp::Matmul | BuiltinOp::Gemm);
        let term = term.clone().unwrap_or_else(Product::plain);
        let to = self.node.results[0].dtype;
        Products { of: self, matrices, product: Product { term: &term, from, to } }.list()
    }
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
        let last = Candidate { way: self.product.without_kernel(program), matched: None };
        let mut list = Vec::new();
        if self.product.is_direct() {
            list.extend(self.kernels(term, self.product.to).into_iter().map(|m| self.of.candidate(Way::Whole, m)));
            if matches!(last.way, Way::Whole) {
                list.push(last);
                return list;
            }
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
            // A tiled kernel computes the whole epilogue or nothing.
            let library = |m: &Matched| program.kernels[m.kernel.index()].backend != Backend::Tiled;
            for matched in self.kernels(&head, between).into_iter().filter(library) {
                let split = Split { head: head.clone(), rest: rest.clone(), between };
                list.push(self.of.candidate(Way::Split(split), matched));
            }
        }
        list.push(last);
        list
    }

    /// The kernels that store such a term in that type, those with a fixed epilogue first.
    fn kernels(&self, term: &Term, out: DType) -> Vec<Matched> {
        let kernels = self.of.graph.program.kernels.iter().enumerate();
        let mut found: Vec<Matched> =
            kernels.filter_map(|(i, _)| self.matched(KernelId(i as u32), term, out)).collect();
        found.sort_by_key(|m| !self.of.graph.program.kernels[m.kernel.index()].closed);
        found
    }

    fn matched(&self, id: KernelId, term: &Term, out: DType) -> Option<Matched> {
        let program = &self.of.graph.program;
        let kernel = &program.kernels[id.index()];
        let NodePat { head: Head::Op(op), args, attrs, .. } = epilogue_pattern(program, kernel)? else { return None };
        let def = program.op(*op);
        let [a, b, epilogue] = args.as_slice() else { return None };
        if def.body != OpBody::Builtin(BuiltinOp::Gemm) {
            return None;
        }
        let known = |i: usize| self.of.known(i).filter(|_| self.matrices);
        let (ka, kb) = (known(0), known(1));
        let mut binder = Binder::default();
        let bound = binder.operand(a, Some((0, ka.as_ref().map(|k| &k.ty))))
            && binder.operand(b, Some((1, kb.as_ref().map(|k| &k.ty))))
            && binder.attrs(def, attrs, (&[AttrValue::DType(out)], None), (&known, self.of.device));
        if !bound {
            return None;
        }
        if !matches!(epilogue, Pat::Var(v) if kernel.vars[v.index()].sort == Sort::Term) {
            let mut reads = Vec::new();
            let pattern = term_of(epilogue, &mut reads)?;
            let shape = &self.of.node.results[0].shape;
            let fits = |p: u32, t: u32| match (reads.get(p as usize), self.of.known(2 + t as usize)) {
                (Some((_, view)), Some(k)) => !self.matrices || may_be_read(*view, &k.ty.shape, shape),
                _ => false,
            };
            let chosen = match_modulo_ac(program, &pattern, term, &fits)?;
            for ((var, view), input) in reads.iter().zip(chosen) {
                binder.operands.push((*var, 2 + input as usize));
                binder.reads.push((2 + input as usize, *view));
            }
        }
        // The types of the epilogue's operands do not depend on the matrices.
        let known = |i: usize| self.of.known(i).filter(|_| self.matrices || i >= 2);
        binder.matched(id, kernel, Some(self.product.from), &known, self.of.device)
    }
}

/// Bindings of a kernel's pattern during matching.
#[derive(Default)]
struct Binder {
    operands: Vec<(VarId, usize)>,
    bindings: Bindings,
    reads: Vec<(usize, InView)>,
}

impl Binder {
    /// Matches the pattern of an operand: its position and type, where it is known. A type that is
    /// unknown, or could differ for other sizes, does not match.
    fn operand(&mut self, pat: &Pat, operand: Option<(usize, Option<&TensorType>)>) -> bool {
        match (pat, operand) {
            (Pat::Any, _) => true,
            (Pat::Absent, o) => o.is_none(),
            (Pat::Optional(_), None) => true,
            (Pat::Var(v) | Pat::Optional(v), Some((at, _))) => {
                self.operands.push((*v, at));
                true
            }
            (Pat::Bind(v, inner), Some((at, _))) => {
                self.operands.push((*v, at));
                self.operand(inner, operand)
            }
            (Pat::Typed(inner, ty), Some((_, Some(have)))) => {
                match_type(ty, have, &mut self.bindings) == Some(true) && self.operand(inner, operand)
            }
            (Pat::OneOf(any), o) => any.iter().any(|p| self.operand(p, o)),
            _ => false,
        }
    }

    fn attrs(
        &mut self,
        def: &OpDef,
        pats: &[AttrPat],
        (values, rank): (&[AttrValue], Option<usize>),
        (known, device): (&dyn Fn(usize) -> Option<Known>, &Device),
    ) -> bool {
        let operands = self.operands.clone();
        let facts = &CandidateFacts { operands: &operands, known, device };
        let types: Vec<AttrType> = def
            .attrs()
            .filter_map(|(_, p)| match p.kind {
                ParamKind::Attr { ty, .. } => Some(ty),
                _ => None,
            })
            .collect();
        pats.iter().zip(values).zip(types).all(|((pat, value), ty)| match pat {
            AttrPat::Any => true,
            AttrPat::Var(v) => match self.bindings.values.get(v) {
                Some(bound) => attr_equal(value, bound) == Some(true),
                None => {
                    self.bindings.values.insert(*v, value.clone());
                    true
                }
            },
            AttrPat::Is(expr) => {
                let wanted = eval(expr, &self.bindings, facts).map(|w| normal_attr(ty, w, rank));
                wanted.is_some_and(|w| attr_equal(value, &w) == Some(true))
            }
            AttrPat::List(_) | AttrPat::Rest(_) => false,
        })
    }

    /// The match, if neither a guard nor a rounding class refutes it.
    fn matched(
        self,
        id: KernelId,
        kernel: &Kernel,
        dtype: Option<DType>,
        known: &dyn Fn(usize) -> Option<Known>,
        device: &Device,
    ) -> Option<Matched> {
        let Binder { operands, bindings, reads } = self;
        let mut matched = Matched { kernel: id, operands, bindings, reads, open: Vec::new() };
        (is_precise(kernel, dtype) && matched.ask(kernel, known, device)).then_some(matched)
    }
}

/// False if an operand of that shape, broadcast to the output, is certainly not read with that
/// view.
fn may_be_read(view: InView, shape: &[Dim], out: &[Dim]) -> bool {
    // For an axis of the output, counted from the last: whether the operand is certainly broadcast
    // along it, and whether it certainly is not.
    let axis = |back: usize| {
        let size = |s: &[Dim]| s.len().checked_sub(back + 1).and_then(|i| s[i].as_const());
        let (missing, many) = (shape.len() <= back, size(out).is_some_and(|n| n > 1));
        let repeated = many && (missing || size(shape) == Some(1));
        (repeated, !missing && size(shape).is_some_and(|n| n > 1))
    };
    let mut lead = (1..out.len()).map(axis);
    match view {
        InView::Broadcast => true,
        InView::Full => !(0..out.len()).any(|back| axis(back).0),
        InView::Row => !axis(0).0 && !lead.any(|(_, varies)| varies),
        InView::Col => !axis(0).1 && !lead.any(|(repeated, _)| repeated),
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

/// The pattern of an epilogue as a term; its inputs in the order in which they are found.
fn term_of(pat: &Pat, reads: &mut Vec<(VarId, InView)>) -> Option<Term> {
    fn walk(pat: &Pat, reads: &mut Vec<(VarId, InView)>, term: &mut Term, depth: usize) -> Option<TermId> {
        if depth > 200 {
            return None;
        }
        let node = match pat {
            Pat::Lit { value, .. } => TermNode::Lit(Literal(*value)),
            Pat::Typed(inner, _) | Pat::Bind(_, inner) => return walk(inner, reads, term, depth + 1),
            Pat::Node(n) => match n.head {
                Head::Region(_) => return None,
                Head::Acc => TermNode::Acc,
                Head::In(view) => {
                    let mut operand = n.args.first()?;
                    while let Pat::Typed(inner, _) = operand {
                        operand = inner;
                    }
                    let Pat::Var(var) = operand else { return None };
                    let at = reads.iter().position(|(v, _)| v == var).unwrap_or_else(|| {
                        reads.push((*var, view));
                        reads.len() - 1
                    });
                    TermNode::In { input: at as u32, view }
                }
                Head::Scalar(scalar) => {
                    let args = n.args.iter().map(|p| walk(p, reads, term, depth + 1));
                    TermNode::Call { scalar, args: args.collect::<Option<_>>()? }
                }
                Head::TermCast => {
                    let arg = walk(n.args.first()?, reads, term, depth + 1)?;
                    match n.attrs.first()? {
                        AttrPat::Is(AExpr::Value(AttrValue::DType(to))) => TermNode::Cast { to: *to, arg },
                        _ => return None,
                    }
                }
                Head::Op(_) => return None,
            },
            _ => return None,
        };
        Some(term.add(node))
    }
    let mut term = Term::empty();
    let root = walk(pat, reads, &mut term, 0)?;
    term.roots.push(root);
    Some(term)
}
