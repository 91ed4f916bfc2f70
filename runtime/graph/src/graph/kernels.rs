//! Kernel lists: the candidate kernels of a node, best first.
//!
//! In: written by the optimiser after it has chosen a graph. Out: read by the planner, which takes
//! the first candidate that fits the concrete sizes and strides (`fate`). Invariant: a candidate
//! keeps the match of its kernel's pattern, so nobody matches it again. No candidate is refuted by
//! what is known of the node. The last candidate has no guards. A node without a list runs on the
//! executor's own kernels, or as its op's body.

use std::sync::Arc;

use hypatia_dsl::ast::BinaryOp;
use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{
    AttrValue, Backend, DeviceFact, Fact, Guard, Head, InView, Kernel, KernelId, NodePat, OpBody, Pat, Program, VarId,
};
use hypatia_dsl::scalar::{Term, TermId, TermNode};
use hypatia_dsl::typing::{Bindings, Facts, TensorType, eval_guard, show_expr, type_fact};

use super::{Graph, Node, NodeId, NodeKind};
use hypatia_target::device::Device;

/// The candidates of a node for one device.
#[derive(Clone, Debug, Default)]
pub struct Kernels {
    /// The device profile for which they were chosen; empty if none were chosen.
    pub device: &'static str,
    /// Best first.
    pub list: Vec<Candidate>,
}

/// One way to compute a node.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// What is run.
    pub strategy: Strategy,
    /// The Program's kernel that it uses, with its match; `None` if it needs no kernel of a
    /// particular device.
    pub matched: Option<Matched>,
}

/// How a node is computed.
#[derive(Clone, Debug)]
pub enum Strategy {
    /// A product whose kernel applies the whole epilogue.
    Whole,
    /// A product with a part of its epilogue, then a pointwise pass over its result for the rest.
    Split(Split),
    /// One launch for the whole op: a library call, a tiled kernel, or a user's template.
    Call,
    /// One row-wise kernel.
    Rowwise,
    /// The op's body, optimised on its own. Its inputs are the op's operands, in order.
    Composed(Arc<Graph>),
    /// The op's body as declared.
    Body,
}

/// An epilogue split into two parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    /// What the product applies to its accumulator.
    pub head: Term,
    /// What the pass applies to the product's result, which it calls `acc`.
    pub rest: Term,
    /// Element type of the intermediate result.
    pub between: DType,
}

/// A kernel, and the bindings of its pattern's variables.
#[derive(Clone, Debug)]
pub struct Matched {
    /// The kernel.
    pub kernel: KernelId,
    /// For each tensor variable, the operand of the node.
    pub operands: Vec<(VarId, usize)>,
    /// Attributes, sizes and dtypes.
    pub bindings: Bindings,
    /// How the kernel reads the operands of the epilogue.
    pub reads: Vec<(usize, InView)>,
    /// Whether it is a candidate only where the kernel's preferences hold too.
    pub preferred: bool,
    /// Guards of the kernel that were neither proved nor refuted.
    pub undecided: Vec<usize>,
}

/// What a guard may ask about an operand.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its type.
    pub ty: TensorType,
    /// True if its value is known at plan time.
    pub constant: bool,
}

/// What guards may ask, given the operands that a kernel's variables are bound to.
pub struct CandidateFacts<'a> {
    /// For each tensor variable, the operand of the node.
    pub operands: &'a [(VarId, usize)],
    /// What is known about an operand.
    pub known: &'a dyn Fn(usize) -> Option<Known>,
    /// The device.
    pub device: &'a Device,
}

impl Facts for CandidateFacts<'_> {
    fn fact(&self, fact: Fact, var: VarId) -> Option<AttrValue> {
        let at = self.operands.iter().find(|(v, _)| *v == var).map(|(_, at)| *at);
        match (fact, at) {
            (Fact::Present, _) => Some(AttrValue::Bool(at.is_some())),
            (_, None) => None,
            (Fact::Const, Some(at)) => (self.known)(at).map(|k| AttrValue::Bool(k.constant)),
            (_, Some(at)) => type_fact(fact, &(self.known)(at)?.ty),
        }
    }

    fn device(&self, fact: DeviceFact) -> Option<AttrValue> {
        device_fact(self.device, fact)
    }
}

/// A property of a device.
pub fn device_fact(device: &Device, fact: DeviceFact) -> Option<AttrValue> {
    Some(match fact {
        DeviceFact::Sm => AttrValue::Dim((device.sm as i64).into()),
        DeviceFact::Name => AttrValue::Str(device.name.to_string()),
        DeviceFact::Tf32 => AttrValue::Bool(device.tf32),
    })
}

impl Matched {
    /// Evaluates all guards of the kernel; returns false if one is refuted. Guards that are not
    /// proved stay undecided.
    pub fn ask(&mut self, kernel: &Kernel, known: &dyn Fn(usize) -> Option<Known>, device: &Device) -> bool {
        let asked = CandidateFacts { operands: &self.operands, known, device };
        let verdicts = self.guards(kernel).map(|g| eval_guard(g, &self.bindings, &asked));
        let verdicts: Vec<Option<bool>> = verdicts.collect();
        self.undecided = (0..verdicts.len()).filter(|i| verdicts[*i] != Some(true)).collect();
        !verdicts.contains(&Some(false))
    }

    /// Whether the undecided guards hold for these operands.
    pub fn holds(&self, program: &Program, known: &dyn Fn(usize) -> Option<Known>, device: &Device) -> bool {
        let asked = CandidateFacts { operands: &self.operands, known, device };
        let kernel = &program.kernels[self.kernel.index()];
        let mut guards = self.undecided_guards(kernel);
        guards.all(|g| eval_guard(g, &self.bindings, &asked) == Some(true))
    }

    /// The guards of the kernel that `undecided` counts: those of the kernel, then its preferences.
    fn guards<'k>(&self, kernel: &'k Kernel) -> impl Iterator<Item = &'k Guard> + use<'k> {
        let preferences = if self.preferred { kernel.prefer.as_slice() } else { &[] };
        kernel.requires.iter().chain(preferences)
    }

    /// The guards of the kernel that were neither proved nor refuted.
    pub fn undecided_guards<'k>(&self, kernel: &'k Kernel) -> impl Iterator<Item = &'k Guard> {
        let undecided = &self.undecided;
        self.guards(kernel).enumerate().filter(move |(i, _)| undecided.contains(i)).map(|(_, g)| g)
    }
}

impl Candidate {
    /// The Program's kernel that it uses, if any.
    pub fn kernel(&self) -> Option<KernelId> {
        self.matched.as_ref().map(|m| m.kernel)
    }

    /// True for a launch that the device may lack, or that may be slower than other steps: it keeps
    /// these as its fallback, and is timed beside them.
    pub fn needs_fallback(&self, program: &Program) -> bool {
        let backend = self.kernel().map(|k| &program.kernels[k.index()].backend);
        match (&self.strategy, backend) {
            (Strategy::Call, _) => true,
            (Strategy::Whole, Some(backend)) => backend.needs_fallback(),
            _ => false,
        }
    }

    /// As text: `cublaslt BIAS + pointwise if shape(%w)[-1] % 8 == 0`; `name` gives the names of
    /// the operands.
    pub(crate) fn describe(&self, program: &Program, name: &dyn Fn(usize) -> String) -> String {
        let kernel = self.matched.as_ref().map(|m| (&program.kernels[m.kernel.index()], m));
        let what = match kernel.map(|(k, _)| &k.backend) {
            Some(Backend::Cublaslt(epilogue)) => format!("cublaslt {epilogue}"),
            Some(Backend::Tiled) => {
                let kind = match &self.strategy {
                    _ if kernel.is_some_and(|(k, _)| is_pair(program, &k.pattern)) => "tiled pair of products",
                    Strategy::Call => "tiled attention",
                    _ => "tiled product",
                };
                format!("{kind} {}", kernel.map_or("", |(k, _)| &k.name))
            }
            Some(Backend::Template(_)) => format!("template {}", kernel.map_or("", |(k, _)| &k.name)),
            Some(_) if matches!(self.strategy, Strategy::Rowwise) => "row-wise".to_string(),
            Some(_) => kernel.map_or(String::new(), |(k, _)| k.name.clone()),
            None => "product".to_string(),
        };
        let mut text = match &self.strategy {
            Strategy::Whole | Strategy::Call | Strategy::Rowwise => what,
            Strategy::Split(_) => format!("{what} + pointwise"),
            Strategy::Composed(_) => "its parts".to_string(),
            Strategy::Body => "its body".to_string(),
        };
        let conditions = kernel.into_iter().flat_map(|(k, m)| {
            let mut vars = k.vars.clone();
            for (var, operand) in &m.operands {
                vars[var.index()].name = name(*operand);
            }
            let shown = |g: &Guard| match (show_expr(&vars, g), g) {
                (text, Guard::Binary(BinaryOp::Or, ..)) => format!("({text})"),
                (text, _) => text,
            };
            m.undecided_guards(k).map(shown).collect::<Vec<_>>()
        });
        let conditions: Vec<String> = conditions.collect();
        if !conditions.is_empty() {
            text.push_str(&format!(" if {}", conditions.join(" and ")));
        }
        text
    }
}

/// True for a pattern of two products of one left operand.
pub(crate) fn is_pair(program: &Program, pattern: &Pat) -> bool {
    match pattern {
        Pat::Bind(_, inner) | Pat::Typed(inner, _) => is_pair(program, inner),
        Pat::Node(NodePat { head: Head::Op(op), .. }) => {
            matches!(program.op(*op).body, OpBody::Builtin(b) if b.is_pair())
        }
        _ => false,
    }
}

impl Graph {
    /// What is known of a node's operand.
    pub fn known(&self, node: &Node, operand: usize) -> Option<Known> {
        let v = node.operands.get(operand).copied().flatten()?;
        let constant = matches!(self.node(v.node).kind, NodeKind::Const(_));
        Some(Known { ty: self.ty(v).clone(), constant })
    }

    /// True for an op that runs as the nodes of its body, or as two products, unless a kernel
    /// computes it.
    pub fn needs_kernel(&self, node: NodeId) -> bool {
        let NodeKind::Op { op, .. } = self.node(node).kind else { return false };
        matches!(self.program.op(op).body, OpBody::Defined(_)) || self.is_pair(self.node(node))
    }

    /// The epilogue of a node.
    pub fn term(&self, node: NodeId) -> Option<&Term> {
        match &self.node(node).kind {
            NodeKind::Op { term, .. } => term.as_ref(),
            _ => None,
        }
    }
}

impl Kernels {
    /// True if sizes that are not known yet decide which candidate computes the node.
    pub fn is_undecided(&self) -> bool {
        self.list.iter().any(|c| c.matched.as_ref().is_some_and(|m| !m.undecided.is_empty()))
    }
}

/// A product with its epilogue and its types.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a> {
    /// The epilogue.
    pub term: &'a Term,
    /// Element type of the operands.
    pub from: DType,
    /// Element type of the result.
    pub to: DType,
}

impl Product<'_> {
    /// The term of a product without an epilogue.
    pub fn plain() -> Term {
        let mut t = Term::empty();
        let root = t.add(TermNode::Acc);
        t.roots.push(root);
        t
    }

    /// Element type of the accumulator.
    pub fn acc(&self) -> DType {
        self.from.accumulator()
    }

    /// True if a library can store the result directly: it writes the operand type or the
    /// accumulator type. Any other type needs a pass that rounds.
    pub fn is_direct(&self) -> bool {
        self.to == self.acc() || self.to == self.from
    }

    /// The element type of the intermediate result between a product and the pass that follows it.
    /// If the result is narrower than the accumulator, it was rounded before any fusion. It may
    /// then be rounded at the intermediate as well, which halves the traffic. If the term contains
    /// casts, the term says where it rounds, and the accumulator keeps its type.
    pub fn between(&self) -> DType {
        let converts = self.term.nodes.iter().any(|n| matches!(n, TermNode::Cast { .. }));
        if self.from == self.to && !converts { self.to } else { self.acc() }
    }

    /// The fallback of any device: a product without an epilogue, and the epilogue as a separate
    /// pass.
    pub fn without_kernel(&self, program: &Program) -> Strategy {
        match self.is_direct() && scale(program, self.term, self.acc()).is_some() {
            true => Strategy::Whole,
            false => {
                Strategy::Split(Split { head: Product::plain(), rest: self.term.clone(), between: self.between() })
            }
        }
    }
}

/// The factor of an epilogue that only multiplies the accumulator by a number: libraries apply it
/// in the product. A factor of 0 is excluded, because it would hide NaN and infinities.
pub fn scale(program: &Program, term: &Term, acc: DType) -> Option<f64> {
    let node = |id: TermId| term.nodes.get(id.0 as usize);
    let (scalar, args) = match node(term.root()) {
        Some(TermNode::Acc) => return Some(1.0),
        Some(TermNode::Call { scalar, args }) => (scalar, args),
        _ => return None,
    };
    let number = match (args.first().copied().and_then(node), args.get(1).copied().and_then(node)) {
        (Some(TermNode::Acc), Some(TermNode::Lit(number))) | (Some(TermNode::Lit(number)), Some(TermNode::Acc)) => {
            number.0
        }
        _ => return None,
    };
    let multiplies = program.builtin_scalar(BuiltinScalar::Mul) == Some(*scalar);
    let fits = acc.is_float() && number.is_finite() && (number as f32) != 0.0;
    (multiplies && args.len() == 2 && fits).then_some(number)
}
