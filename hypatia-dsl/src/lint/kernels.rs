//! Lint for kernels that cannot be generated from the body of their op.

use crate::code;
use crate::diag::Diagnostic;
use crate::ir::{Backend, Program};
use crate::resolve::Resolved;

pub(super) fn lint(p: &Program, resolved: &Resolved, out: &mut Vec<Diagnostic>) {
    for kernel in p.kernels.iter().filter(|k| !resolved.trusts(k.origin.span)) {
        let (Some(span), Some(why)) = (kernel.origin.span, &kernel.not_generated) else { continue };
        let backend = if kernel.backend == Backend::Rowwise { "rowwise" } else { "pointwise" };
        out.push(
            Diagnostic::warning(
                code::KERNEL_BODY,
                format!("no `{backend}` kernel can be generated for `{}`", kernel.name),
                span,
            )
            .label(why.as_str())
            .note("the op then runs as the separate parts of its body, and the kernel saves nothing")
            .hint("remove from the body what does not fit, or use another backend"),
        );
    }
}
