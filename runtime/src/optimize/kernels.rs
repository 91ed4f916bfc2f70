//! Which kernel of the Program computes an op.
//!
//! In: ops of a graph, gemms with their epilogues. Out: a kernel, or how to split the work. Holds always:
//! a kernel is chosen only if its pattern matches the extracted term (modulo commutativity and
//! association), and all of its `requires` are known to hold on the concrete shapes and the device. Of
//! several kernels none is preferred by its place in a file; until measurements decide, a closed one is
//! taken before an open one, which computes any epilogue.

use std::collections::HashMap;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::cublaslt::Form;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{
    AttrPat, AttrType, AttrValue, Backend, Class, DeviceFact, Fact, Head, InView, Kernel, KernelId, NodePat, OpBody,
    OpDef, ParamKind, Pat, Sort, VarId,
};
use hypatia_dsl::kernel::derive_rowwise_over;
use hypatia_dsl::scalar::{Literal, Term, TermNode, match_modulo_ac, prune};
use hypatia_dsl::typing::{Bindings, Facts, TensorType, eval, eval_guard, match_type, type_fact};

use super::rows::Rows;
use super::view::View;
use super::{GemmStep, Place, Plan};
use crate::device::Device;
use crate::graph::prim::sizes;
use crate::graph::{Graph, Node, NodeKind};
use crate::optimize::apply::implements;
use crate::optimize::matcher::{attr_equal, normal_attr};

/// How a gemm with an epilogue is computed.
pub(super) enum Choice {
    /// In one launch, by this kernel, or by the executor itself.
    Whole(Option<KernelId>),
    /// The product with part of the epilogue, then a pass over its result for the rest.
    Split {
        /// The kernel of the product.
        kernel: Option<KernelId>,
        /// What it does with the accumulator.
        head: Term,
        /// What the pass does with the result, which it calls `acc`.
        rest: Term,
        /// Element type of the result between the two.
        between: DType,
    },
}

/// What a guard may ask of an operand.
#[derive(Clone)]
pub(super) struct Known {
    /// Its type.
    pub ty: TensorType,
    /// True if it is known when the plan is made.
    pub constant: bool,
}

/// Variables of a kernel's pattern while it is matched.
struct Bound<'a> {
    tensors: HashMap<VarId, Known>,
    bindings: Bindings,
    device: &'a Device,
}

impl Facts for Bound<'_> {
    fn fact(&self, fact: Fact, var: VarId) -> Option<AttrValue> {
        let known = self.tensors.get(&var);
        match (fact, known) {
            (Fact::Present, _) => Some(AttrValue::Bool(known.is_some())),
            (Fact::Const, Some(k)) => Some(AttrValue::Bool(k.constant)),
            (_, Some(k)) => type_fact(fact, &k.ty),
            (_, None) => None,
        }
    }

    fn device(&self, fact: DeviceFact) -> Option<AttrValue> {
        Some(match fact {
            DeviceFact::Sm => AttrValue::Dim((self.device.sm as i64).into()),
            DeviceFact::Name => AttrValue::Str(self.device.name.to_string()),
        })
    }
}

impl Bound<'_> {
    fn new(device: &Device) -> Bound<'_> {
        Bound { tensors: HashMap::new(), bindings: Bindings::default(), device }
    }

    /// Matches the pattern of an operand.
    fn operand(&mut self, pat: &Pat, known: Option<&Known>) -> bool {
        match (pat, known) {
            (Pat::Any, _) => true,
            (Pat::Absent, k) => k.is_none(),
            (Pat::Optional(_), None) => true,
            (Pat::Var(v) | Pat::Optional(v), Some(k)) => {
                self.tensors.insert(*v, k.clone());
                true
            }
            (Pat::Bind(v, inner), Some(k)) => {
                self.tensors.insert(*v, k.clone());
                self.operand(inner, Some(k))
            }
            (Pat::Typed(inner, ty), Some(k)) => {
                match_type(ty, &k.ty, &mut self.bindings) == Some(true) && self.operand(inner, Some(k))
            }
            (Pat::OneOf(any), k) => any.iter().any(|p| self.operand(p, k)),
            _ => false,
        }
    }

    fn attrs(&mut self, def: &OpDef, pats: &[AttrPat], values: &[AttrValue], rank: Option<usize>) -> bool {
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
                let wanted = eval(expr, &self.bindings, self).map(|w| normal_attr(ty, w, rank));
                wanted.is_some_and(|w| attr_equal(value, &w) == Some(true))
            }
            AttrPat::List(_) | AttrPat::Rest(_) => false,
        })
    }

    fn allowed(&self, kernel: &Kernel, dtype: DType) -> bool {
        let claim = kernel.claims.iter().find(|c| c.dtypes.is_empty() || c.dtypes.contains(&dtype));
        let precise = !matches!(claim.map(|c| c.class), Some(Class::Approx(_)));
        precise && kernel.requires.iter().all(|g| eval_guard(g, &self.bindings, self) == Some(true))
    }
}

/// Whether the Program declares a kernel of that kind for a node of a defined op.
pub(super) fn declares(graph: &Graph, node: &Node, backend: &Backend, device: &Device) -> bool {
    declared(graph, node, &|b| b == backend, device).is_some()
}

/// The library's call that computes a node of a defined op on that device.
pub(super) fn called(graph: &Graph, node: &Node, device: &Device) -> Option<KernelId> {
    let call = |b: &Backend| matches!(b, Backend::Cublaslt(_));
    if device.is_host() { None } else { declared(graph, node, &call, device) }
}

/// Whether a library has a call for a defined op on some device.
pub(super) fn is_callable(graph: &Graph, node: &Node) -> bool {
    let NodeKind::Op { op, .. } = &node.kind else { return false };
    let call = |k: &Kernel| matches!(k.backend, Backend::Cublaslt(_)) && implements(&k.pattern, *op);
    matches!(graph.program.op(*op).body, OpBody::Defined(_)) && graph.program.kernels.iter().any(call)
}

/// A kernel of such a kind for a node of a defined op.
fn declared(graph: &Graph, node: &Node, kind: &dyn Fn(&Backend) -> bool, device: &Device) -> Option<KernelId> {
    let NodeKind::Op { op, attrs, .. } = &node.kind else { return None };
    let def = graph.program.op(*op);
    if matches!(def.body, OpBody::Builtin(_)) {
        return None;
    }
    let known = |v: &Option<crate::graph::Value>| {
        v.map(|v| Known { ty: graph.ty(v).clone(), constant: matches!(graph.node(v.node).kind, NodeKind::Const(_)) })
    };
    let at = graph.program.kernels.iter().position(|kernel| {
        let Pat::Node(NodePat { head: Head::Op(head), args, attrs: pats, .. }) = &kernel.pattern else { return false };
        if head != op || !kind(&kernel.backend) {
            return false;
        }
        let mut bound = Bound::new(device);
        let rank = node.operands.first().and_then(|v| *v).map(|v| graph.ty(v).shape.len());
        let mut have = node.operands.iter().map(known).chain(std::iter::repeat(None));
        args.iter().all(|p| bound.operand(p, have.next().flatten().as_ref()))
            && bound.attrs(def, pats, attrs, rank)
            && bound.allowed(kernel, node.results[0].dtype)
    });
    at.map(|i| KernelId(i as u32))
}

/// The row-wise kernel that computes a node of a defined op, if the Program declares one for it.
pub(super) fn rowwise(graph: &Graph, node: &Node, device: &Device) -> Option<Rows> {
    let NodeKind::Op { op, attrs, .. } = &node.kind else { return None };
    if !declares(graph, node, &Backend::Rowwise, device) {
        return None;
    }
    let operands: Vec<Option<TensorType>> = node.operands.iter().map(|v| v.map(|v| graph.ty(v).clone())).collect();
    let (kernel, space) = derive_rowwise_over(&graph.program, *op, attrs, &operands, &node.results).ok()?;
    let sizes = sizes(&space.sizes, &|_| None).ok()?;
    Some(Rows { kernel, space, sizes })
}

/// A gemm that looks for a kernel.
pub(super) struct Gemm<'a> {
    /// The plan so far.
    pub plan: &'a Plan,
    /// The product and its epilogue.
    pub step: &'a GemmStep,
    /// The operands as they are, the term's behind a and b.
    pub known: Vec<Known>,
    /// The term's operands, broadcast to the output.
    pub reads: &'a [View],
    /// Element type of the result.
    pub out: DType,
    /// Calls that a library may lack are left out.
    pub sure: bool,
}

/// How to compute a gemm. On the CPU the executor computes any epilogue while the tile is warm.
pub(super) fn gemm(gemm: &Gemm<'_>) -> Choice {
    if gemm.plan.device.sm == 0 {
        return Choice::Whole(None);
    }
    let term = &gemm.step.term;
    // The library writes the type of its operands or of the accumulator; a pass rounds to any other.
    let direct = gemm.out == gemm.step.acc || gemm.known.first().is_some_and(|a| a.ty.dtype == gemm.out);
    if direct {
        if let Some(kernel) = gemm.find(term, gemm.out) {
            return Choice::Whole(Some(kernel));
        }
        if gemm.step.scale(&gemm.plan.program).is_some() {
            return Choice::Whole(None);
        }
    }
    let between = gemm.between();
    // The largest part of the epilogue that some kernel computes; at least the accumulator itself.
    let acc = term.nodes.iter().position(|n| *n == TermNode::Acc);
    for at in (0..term.nodes.len()).rev() {
        if Some(at) != acc && !reaches_acc(term, at) {
            continue;
        }
        let Some(rest) = behind(term, at) else { continue };
        let mut head = term.clone();
        head.roots = vec![hypatia_dsl::scalar::TermId(at as u32)];
        let head = prune(&head);
        if let Some(kernel) = gemm.find(&head, between) {
            return Choice::Split { kernel: Some(kernel), head, rest, between };
        }
    }
    Choice::Split { kernel: None, head: super::lower::plain(), rest: term.clone(), between }
}

/// True if the accumulator has a part in that node.
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

/// The term with node `at` as its accumulator; `None` if it needs the old one too, or nothing is left.
fn behind(term: &Term, at: usize) -> Option<Term> {
    if term.root().0 as usize == at {
        return None;
    }
    let mut rest = term.clone();
    let was_acc = rest.nodes[at] == TermNode::Acc;
    if !was_acc {
        // The old accumulator becomes something that no term holds, to see whether it is still read.
        for node in rest.nodes.iter_mut().filter(|n| **n == TermNode::Acc) {
            *node = TermNode::Param(u32::MAX);
        }
        rest.nodes[at] = TermNode::Acc;
    }
    let rest = prune(&rest);
    (!rest.nodes.contains(&TermNode::Param(u32::MAX))).then_some(rest)
}

impl Gemm<'_> {
    /// The element type of the accumulator between a product and the pass behind it. A result that is narrower than the
    /// accumulator was rounded there before anything fused, so it may be rounded there again: half the traffic. Where a
    /// term converts, it says itself where it rounds, and the accumulator stays whole.
    fn between(&self) -> DType {
        let converts = self.step.term.nodes.iter().any(|n| matches!(n, TermNode::Cast { .. }));
        let narrow = self.known.first().is_some_and(|a| a.ty.dtype == self.out);
        if narrow && !converts { self.out } else { self.step.acc }
    }

    fn find(&self, term: &Term, out: DType) -> Option<KernelId> {
        let kernels = self.plan.program.kernels.iter().enumerate();
        let fitting = kernels.filter(|(_, k)| self.matches(k, term, out));
        fitting.min_by_key(|(_, k)| !k.closed).map(|(i, _)| KernelId(i as u32))
    }

    fn matches(&self, kernel: &Kernel, term: &Term, out: DType) -> bool {
        let program = &self.plan.program;
        // What a template makes was not measured, and is not chosen on its word alone.
        if matches!(kernel.backend, Backend::Template(_)) || self.sure && is_tried(kernel) {
            return false;
        }
        let Pat::Node(NodePat { head: Head::Op(op), args, attrs, .. }) = &kernel.pattern else { return false };
        let def = program.op(*op);
        if def.body != OpBody::Builtin(BuiltinOp::Gemm) {
            return false;
        }
        let ([a, b, epilogue], [ka, kb, inputs @ ..]) = (args.as_slice(), self.known.as_slice()) else { return false };
        let mut bound = Bound::new(&self.plan.device);
        if !bound.operand(a, Some(ka)) || !bound.operand(b, Some(kb)) {
            return false;
        }
        if !bound.attrs(def, attrs, &[AttrValue::DType(out)], None) {
            return false;
        }
        if !matches!(epilogue, Pat::Var(v) if kernel.vars[v.index()].sort == Sort::Term) {
            let mut reads = Vec::new();
            let Some(pattern) = term_of(epilogue, &mut reads) else { return false };
            let fits = |p: u32, t: u32| match (reads.get(p as usize), self.reads.get(t as usize)) {
                (Some((_, view)), Some(read)) => reads_as(*view, read),
                _ => false,
            };
            let Some(chosen) = match_modulo_ac(program, &pattern, term, &fits) else { return false };
            for ((var, _), input) in reads.iter().zip(chosen) {
                if let Some(known) = inputs.get(input as usize) {
                    bound.tensors.insert(*var, known.clone());
                }
            }
        }
        bound.allowed(kernel, ka.ty.dtype)
    }
}

/// True for a library's call that may be lacking, or slower than what it stands for.
pub(super) fn is_tried(kernel: &Kernel) -> bool {
    matches!(&kernel.backend, Backend::Cublaslt(name) if Form::named(name).is_some_and(Form::is_tried))
}

/// True if an operand, broadcast to the output, is read in that way.
fn reads_as(view: InView, read: &View) -> bool {
    let Some((last, lead)) = read.strides.split_last() else { return true };
    let columns = read.shape.last().copied().unwrap_or(1);
    match view {
        InView::Broadcast => true,
        InView::Full => read.is_contiguous(),
        InView::Row => lead.iter().all(|s| *s == 0) && (*last == 1 || columns == 1),
        InView::Col => {
            let rows = View { shape: read.shape[..lead.len()].to_vec(), strides: lead.to_vec(), ..read.clone() };
            (*last == 0 || columns == 1) && rows.is_contiguous()
        }
    }
}

/// The pattern of an epilogue as a term; its inputs in the order in which they are found.
fn term_of(pat: &Pat, reads: &mut Vec<(VarId, InView)>) -> Option<Term> {
    fn walk(
        pat: &Pat,
        reads: &mut Vec<(VarId, InView)>,
        term: &mut Term,
        depth: usize,
    ) -> Option<hypatia_dsl::scalar::TermId> {
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
                        AttrPat::Is(hypatia_dsl::ir::AExpr::Value(AttrValue::DType(to))) => {
                            TermNode::Cast { to: *to, arg }
                        }
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

/// What is known of an operand that lies behind a view.
pub(super) fn known(plan: &Plan, view: &View) -> Known {
    let shape = view.shape.iter().map(|d| (*d as i64).into()).collect();
    let constant = matches!(plan.buffers[view.buffer.index()].place, Place::Constant(_));
    Known { ty: TensorType { dtype: view.dtype, shape }, constant }
}
