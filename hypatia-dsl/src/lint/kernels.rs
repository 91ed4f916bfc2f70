//! Lints for kernels that save less than they seem to: they cannot be generated from the body of
//! their op, no device admits them, or they become several launches.

use crate::builtin::BuiltinOp;
use crate::checker::KernelChecker;
use crate::code;
use crate::diag::Diagnostic;
use crate::ir::{
    AExpr, AttrValue, Backend, Build, BuildNode, DeviceFact, Fact, Head, Kernel, NodePat, OpBody, OpId, Pat, Program,
    VarId, walk_build,
};
use crate::resolve::Resolved;
use crate::typing::{Bindings, Facts, eval_guard, show_expr};
use hypatia_target::device::Device;

/// How deep the bodies of ops are read.
const MAX_DEPTH: usize = 32;
/// Compute capabilities of NVIDIA's GPUs.
const CAPABILITIES: [u32; 14] = [70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 110, 120, 121];

pub(super) fn lint(p: &Program, resolved: &Resolved, checker: &dyn KernelChecker, out: &mut Vec<Diagnostic>) {
    for kernel in p.kernels.iter().filter(|k| !resolved.trusts(k.origin.span)) {
        out.extend(not_generated(kernel));
        out.extend(never_admitted(kernel));
        out.extend(several_launches(p, kernel, checker));
    }
}

fn not_generated(kernel: &Kernel) -> Option<Diagnostic> {
    let (Some(span), Some(why)) = (kernel.origin.span, &kernel.not_generated) else { return None };
    let backend = match kernel.backend {
        Backend::Rowwise => "rowwise",
        Backend::Tiled => "tiled",
        _ => "pointwise",
    };
    let hint = match kernel.backend {
        Backend::Tiled => "for a product with an epilogue, `use fuse::*;` is enough; else use another backend",
        _ => "remove from the body what does not fit, or use another backend",
    };
    let message = format!("no `{backend}` kernel can be generated for `{}`", kernel.name);
    Some(
        Diagnostic::warning(code::KERNEL_BODY, message, span)
            .label(why.as_str())
            .note("the op then runs as the separate parts of its body, and the kernel saves nothing")
            .hint(hint),
    )
}

/// The results that a product can have in one launch.
const RESULTS_OF_A_PRODUCT: usize = 3;

/// A `composed` kernel of several results whose body is more than one launch: work of which a
/// kernel can be generated is joined into one in any plan, and so is a product with work on its
/// elements on a GPU.
fn several_launches(p: &Program, kernel: &Kernel, checker: &dyn KernelChecker) -> Option<Diagnostic> {
    let (Pat::Node(NodePat { head: Head::Op(op), .. }), Backend::Composed) = (&kernel.pattern, &kernel.backend) else {
        return None;
    };
    let results = p.op(*op).results.len();
    let span = kernel.origin.span.filter(|_| results > 1)?;
    let mut ops = Vec::new();
    builtins(p, *op, 0, &mut ops);
    let products = ops.iter().filter(|op| op.multiplies()).count();
    let on_elements = |op: &BuiltinOp| op.multiplies() || is_elementwise(*op);
    if products == 1 && results <= RESULTS_OF_A_PRODUCT && ops.iter().all(on_elements) {
        return None;
    }
    let why = |backend| checker.not_generated(p, &Kernel { backend, ..kernel.clone() });
    let why = why(Backend::Rowwise).filter(|_| why(Backend::Pointwise).is_some())?;
    let message = format!("the kernel `{}` of {results} results becomes several launches", kernel.name);
    Some(
        Diagnostic::warning(code::SEVERAL_LAUNCHES, message, span)
            .label(format!("no single kernel can be generated: {why}"))
            .note("`composed` runs the ops of the body, optimised by themselves, behind one name")
            .hint("if one launch is meant, remove from the body what does not fit, or write a template"),
    )
}

/// Builtin ops that move or change single elements.
fn is_elementwise(op: BuiltinOp) -> bool {
    use BuiltinOp::*;
    matches!(op, Cast | Reshape | Expand | Full | Transpose)
}

/// The builtin ops in the body of an op, and in those of the ops that it applies. What stands there
/// twice is computed once.
fn builtins(p: &Program, op: OpId, depth: usize, out: &mut Vec<BuiltinOp>) {
    match &p.op(op).body {
        OpBody::Builtin(b) => out.push(*b),
        OpBody::Defined(bodies) if depth < MAX_DEPTH => {
            let mut inner: Vec<BuildNode> = Vec::new();
            let mut add = |b: &Build, _| {
                if let Build::Node(node) = b
                    && !inner.contains(node)
                {
                    inner.push(node.clone());
                }
            };
            bodies.iter().for_each(|b| walk_build(b, &mut add, true));
            for node in inner {
                if let Head::Op(id) = node.head {
                    builtins(p, id, depth + 1, out);
                }
            }
        }
        OpBody::Defined(_) => {}
    }
}

/// A kernel whose `requires` are false on every device that its backend runs on.
fn never_admitted(kernel: &Kernel) -> Option<Diagnostic> {
    let refuted = |guard: &AExpr, device: &Device| eval_guard(guard, &Bindings::default(), &On(device)) == Some(false);
    let devices = devices(&kernel.backend);
    let admits = |device: &Device| !kernel.requires.iter().any(|g| refuted(g, device));
    let span = kernel.origin.span.filter(|_| !devices.iter().any(admits))?;
    let guards = kernel.requires.iter().filter(|g| devices.iter().any(|d| refuted(g, d)));
    let shown: Vec<String> = guards.map(|g| format!("`{}`", show_expr(&kernel.vars, g))).collect();
    let names: Vec<&str> = profiles(&kernel.backend).map(|d| d.name).collect();
    let only = if runs_on_hosts(&kernel.backend) { "" } else { "this backend runs on GPUs only; " };
    let where_run = format!("{only}tried: GPUs of every compute capability, and the profiles {}", names.join(", "));
    Some(
        Diagnostic::warning(code::NEVER_ADMITTED, format!("no device admits the kernel `{}`", kernel.name), span)
            .note(format!("false on every device: {}", shown.join(", ")))
            .note(where_run)
            .hint("correct the condition, or remove the kernel: an op without an admissible kernel is not chosen"),
    )
}

fn runs_on_hosts(backend: &Backend) -> bool {
    matches!(backend, Backend::Pointwise | Backend::Rowwise | Backend::Composed)
}

/// The devices that a backend runs on, as kernels see them.
fn devices(backend: &Backend) -> Vec<Device> {
    let gpus = CAPABILITIES.into_iter().filter_map(|sm| {
        let mut device = Device::named(if sm >= 90 { "h200" } else { "a100" })?;
        device.sm = sm;
        Some(device)
    });
    gpus.chain(profiles(backend)).collect()
}

/// The profiles of such devices.
fn profiles(backend: &Backend) -> impl Iterator<Item = Device> {
    let hosts = runs_on_hosts(backend);
    Device::names().filter_map(Device::named).filter(move |device| hosts || !device.is_host())
}

/// Facts about a device, and nothing else.
struct On<'d>(&'d Device);

impl Facts for On<'_> {
    fn fact(&self, _: Fact, _: VarId) -> Option<AttrValue> {
        None
    }

    fn device(&self, fact: DeviceFact) -> Option<AttrValue> {
        Some(match fact {
            DeviceFact::Sm => AttrValue::from(i64::from(self.0.sm)),
            DeviceFact::Name => AttrValue::from(self.0.name),
            // What no run asks for may still be asked for.
            DeviceFact::Tf32 => return None,
        })
    }
}
