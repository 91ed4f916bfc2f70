//! What a kernel's declaration says of its epilogue and of itself.
//!
//! In: a kernel of a Program. Out: the epilogue as a pattern and as a term with its operands, and
//! the comment for its source.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::ir::{Head, InView, Kernel, NodePat, OpBody, Origin, Pat, Program};
use hypatia_dsl::kernel::Access;
use hypatia_dsl::scalar::{Term, TermNode, TermPattern};

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
/// The error says why it is not one term of one accumulator.
#[allow(clippy::type_complexity)]
pub(super) fn epilogue_term(pat: &Pat) -> Result<Option<(Term, Vec<Access>)>, String> {
    let mut term = TermPattern::closed(pat).map_err(|e| format!("its epilogue {e}"))?.term;
    if term.nodes.contains(&TermNode::Second) {
        return Err("its epilogue has two accumulators".into());
    }
    if *term.node(term.root()) == TermNode::Acc {
        return Ok(None);
    }
    // A tensor that is read in two ways is two operands.
    let mut operands: Vec<(u32, InView)> = Vec::new();
    for node in &mut term.nodes {
        let TermNode::In { input, view } = node else { continue };
        let read = (*input, *view);
        let at = operands.iter().position(|o| *o == read).unwrap_or_else(|| {
            operands.push(read);
            operands.len() - 1
        });
        *input = at as u32;
    }
    Ok(Some((term, operands.into_iter().map(|(_, view)| access(view)).collect())))
}

fn access(view: InView) -> Access {
    match view {
        InView::Row => Access::Row,
        InView::Col => Access::Col,
        InView::Full => Access::Full,
        InView::Broadcast => Access::Strided,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hypatia_dsl::ir::{AttrPat, ScalarId, VarId};

    use super::*;

    fn node(head: Head, args: Vec<Pat>) -> Pat {
        let attrs = if head == Head::TermCast { vec![AttrPat::Any] } else { vec![] };
        Pat::Node(NodePat { head, args, rest: None, attrs, output: 0 })
    }

    #[test]
    fn a_tensor_that_is_read_in_two_ways_is_two_operands() {
        let read = |v: u32, view| node(Head::In(view), vec![Pat::Var(VarId(v))]);
        let reads = [(0, InView::Row), (1, InView::Broadcast), (0, InView::Full), (0, InView::Row), (1, InView::Col)];
        let reads = reads.map(|(v, view)| read(v, view));
        let sum = reads
            .into_iter()
            .fold(node(Head::Acc, vec![]), |sum, read| node(Head::Scalar(ScalarId(0)), vec![sum, read]));
        let (term, operands) = epilogue_term(&sum).unwrap().unwrap();
        assert_eq!(operands, [Access::Row, Access::Strided, Access::Full, Access::Col]);
        let inputs =
            term.nodes.iter().filter_map(|n| if let TermNode::In { input, .. } = n { Some(*input) } else { None });
        assert_eq!(inputs.collect::<Vec<u32>>(), [0, 1, 2, 3]);
    }

    #[test]
    fn an_epilogue_of_which_no_kernel_is_made_says_why() {
        let acc = || node(Head::Acc, vec![]);
        assert_eq!(epilogue_term(&acc()), Ok(None));
        for (pat, why) in [
            (Pat::Var(VarId(0)), "its epilogue is open: a plan instantiates it for each that it meets"),
            (node(Head::Second, vec![acc()]), "its epilogue has two accumulators"),
            (node(Head::TermCast, vec![acc()]), "its epilogue casts to an element type that is known only in a plan"),
        ] {
            assert_eq!(epilogue_term(&pat), Err(why.into()));
        }
    }
}
