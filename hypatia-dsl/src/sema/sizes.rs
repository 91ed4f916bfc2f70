//! Size limits of scalars once the scalars that they call are inlined.
//!
//! In: scalars with their bodies. Out: an error for each that would need too many operations per
//! element, or whose calls are nested too deeply. Invariant: the walk uses an explicit stack
//! instead of recursion; a rejected scalar counts as one operation for its callers, so that the
//! error is reported once.

use crate::diag::Diagnostic;
use crate::ir::{ScalarBody, ScalarId};
use crate::scalar::TermNode;

use super::{Sema, code};

/// Maximum number of operations of a scalar with its callees inlined: sixty scalars that each call
/// the one before twice are 2^60.
const MAX_OPERATIONS: u64 = 20_000;
/// Maximum length of a call chain of scalars.
const MAX_CALLS: u32 = 200;

/// Reports scalars that are too large.
pub(super) fn check(s: &mut Sema<'_>) {
    let callees: Vec<Vec<usize>> = s
        .program
        .scalars
        .iter()
        .map(|def| match &def.body {
            ScalarBody::Builtin(_) => Vec::new(),
            ScalarBody::Term(t) => {
                let called = |n: &TermNode| match n {
                    TermNode::Call { scalar, .. } => Some(scalar.index()),
                    _ => None,
                };
                t.nodes.iter().filter_map(called).collect()
            }
        })
        .collect();
    // Operations and depth of each scalar, once known.
    let mut known: Vec<Option<(u64, u32)>> = vec![None; callees.len()];
    for root in 0..callees.len() {
        let mut stack = vec![(root, 0)];
        while let Some((scalar, next)) = stack.pop() {
            if known[scalar].is_some() {
                continue;
            }
            if let Some(callee) = callees[scalar].get(next) {
                stack.push((scalar, next + 1));
                // Cycles were cut earlier; any that remain end here.
                if known[*callee].is_none() && !stack.iter().any(|(open, _)| open == callee) {
                    stack.push((*callee, 0));
                }
                continue;
            }
            let of = |c: &usize| known[*c].unwrap_or((1, 0));
            let operations = callees[scalar].iter().fold(1u64, |sum, c| sum.saturating_add(of(c).0));
            let depth = callees[scalar].iter().map(|c| of(c).1 + 1).max().unwrap_or(0);
            let good = operations <= MAX_OPERATIONS && depth <= MAX_CALLS;
            known[scalar] = Some(if good { (operations, depth) } else { (1, 0) });
            if !good {
                report(s, ScalarId(scalar as u32), operations);
            }
        }
    }
}

fn report(s: &mut Sema<'_>, scalar: ScalarId, operations: u64) {
    s.poisoned_scalars.insert(scalar);
    let def = s.program.scalar(scalar);
    let Some(span) = def.origin.span else { return };
    let why = match operations > MAX_OPERATIONS {
        true => format!("it takes more than {MAX_OPERATIONS} operations per element"),
        false => format!("scalar calls are nested more than {MAX_CALLS} levels deep"),
    };
    let message = format!("`{}` is too large once the scalars that it calls are inlined", def.name);
    s.diags.push(Diagnostic::error(code::TOO_LARGE, message, span).label(why).hint("compute it as an `op`, in steps"));
}
