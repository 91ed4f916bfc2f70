//! What a kernel's declaration says of its epilogue and of itself.
//!
//! In: a kernel of a Program. Out: the epilogue as a pattern and as a term with its operands, and
//! the comment for its source.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::ir::{AExpr, AttrPat, AttrValue, Head, InView, Kernel, NodePat, OpBody, Origin, Pat, Program, Sort};
use hypatia_dsl::kernel::Access;
use hypatia_dsl::scalar::{Literal, Term, TermId, TermNode};

/// Nesting of a pattern that is followed.
const MAX_DEPTH: usize = 500;

/// `file:line`
pub(super) fn place(origin: &Origin) -> String {
    if origin.line == 0 { String::new() } else { format!("{}:{}", origin.file, origin.line) }
}

/// The comment over a kernel's source: what it is for, and where it comes from.
pub(super) fn doc(what: &str, doc: &str, origin: &Origin) -> String {
    let place = place(origin);
    let from = if place.is_empty() { format!("From {what}.") } else { format!("From {what}, {place}.") };
    if doc.is_empty() { from } else { format!("{doc}\n{from}") }
}

/// The pattern of the epilogue, if the kernel implements a gemm.
pub(super) fn gemm_epilogue<'k>(program: &Program, kernel: &'k Kernel) -> Option<&'k Pat> {
    let Pat::Node(NodePat { head: Head::Op(op), args, .. }) = strip(&kernel.pattern) else { return None };
    (program.ops.get(op.index())?.body == OpBody::Builtin(BuiltinOp::Gemm)).then(|| args.get(2)).flatten()
}

/// The pattern under binders and type annotations.
fn strip(mut pat: &Pat) -> &Pat {
    loop {
        pat = match pat {
            Pat::Bind(_, p) | Pat::Typed(p, _) => p,
            _ => return pat,
        }
    }
}

/// The epilogue as a term, with the access of each operand; `None` if it is the accumulator alone.
#[allow(clippy::type_complexity)]
pub(super) fn epilogue_term(kernel: &Kernel, pat: &Pat) -> Result<Option<(Term, Vec<Access>)>, String> {
    let mut build = Epilogue { kernel, term: Term::empty(), inputs: Vec::new() };
    let root = build.add(pat, 0)?;
    build.term.roots.push(root);
    if *build.term.node(root) == TermNode::Acc {
        return Ok(None);
    }
    Ok(Some((build.term, build.inputs.into_iter().map(|(_, a)| a).collect())))
}

struct Epilogue<'k> {
    kernel: &'k Kernel,
    term: Term,
    /// The pattern's variable (or none) and the access of each operand.
    inputs: Vec<(Pat, Access)>,
}

impl Epilogue<'_> {
    fn add(&mut self, pat: &Pat, depth: usize) -> Result<TermId, String> {
        if depth > MAX_DEPTH {
            return Err("the epilogue is nested too deep".into());
        }
        let node = match strip(pat) {
            Pat::Lit { value, .. } => TermNode::Lit(Literal(*value)),
            Pat::Var(v) if self.kernel.vars.get(v.index()).is_some_and(|v| v.sort == Sort::Term) => {
                return Err("its epilogue is open: a plan instantiates it for each epilogue that it meets".into());
            }
            Pat::Node(n) => match n.head {
                Head::Acc => TermNode::Acc,
                Head::Second => return Err("its epilogue has two accumulators".into()),
                Head::Scalar(scalar) => {
                    let args = n.args.iter().map(|a| self.add(a, depth + 1)).collect::<Result<_, _>>()?;
                    TermNode::Call { scalar, args }
                }
                Head::In(view) => {
                    let operand = n.args.first().cloned().unwrap_or(Pat::Any);
                    TermNode::In { input: self.operand(operand, view), view }
                }
                Head::TermCast => {
                    let Some(AttrPat::Is(AExpr::Value(AttrValue::DType(to)))) = n.attrs.first() else {
                        return Err("it casts to an element type that is known only in a plan".into());
                    };
                    let arg = n.args.first().ok_or("a cast of nothing")?;
                    TermNode::Cast { to: *to, arg: self.add(arg, depth + 1)? }
                }
                Head::Op(_) => return Err("its epilogue holds an op on tensors".into()),
                Head::Region(_) => return Err("its epilogue holds a variable for pointwise work".into()),
            },
            _ => return Err("its epilogue has alternatives: a plan instantiates the one that it meets".into()),
        };
        Ok(self.term.add(node))
    }

    fn operand(&mut self, pat: Pat, view: InView) -> u32 {
        let access = match view {
            InView::Row => Access::Row,
            InView::Col => Access::Col,
            InView::Full => Access::Full,
            InView::Broadcast => Access::Strided,
        };
        let known = matches!(strip(&pat), Pat::Var(_));
        let at = self.inputs.iter().position(|(p, a)| known && *p == pat && *a == access);
        at.unwrap_or_else(|| {
            self.inputs.push((pat, access));
            self.inputs.len() - 1
        }) as u32
    }
}
