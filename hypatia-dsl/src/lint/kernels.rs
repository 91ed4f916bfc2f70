//! Lints for kernels that save less than they seem to: they cannot be generated from the body of
//! their op, no device admits them, or they become several launches.

use crate::code;
use crate::diag::Diagnostic;
use crate::ir::{AExpr, AttrValue, Backend, DeviceFact, Fact, Head, Kernel, NodePat, Pat, Program, VarId};
use crate::resolve::Resolved;
use crate::typing::{Bindings, Facts, eval_guard, show_expr};
use hypatia_target::device::Device;

/// Compute capabilities of NVIDIA's GPUs.
const CAPABILITIES: [u32; 14] = [70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 110, 120, 121];

pub(super) fn lint(p: &Program, resolved: &Resolved, out: &mut Vec<Diagnostic>) {
    for kernel in p.kernels.iter().filter(|k| !resolved.trusts(k.origin.span)) {
        out.extend(not_generated(kernel));
        out.extend(never_admitted(kernel));
        out.extend(several_launches(p, kernel));
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

/// A `composed` kernel of several results: each result is a launch at least.
fn several_launches(p: &Program, kernel: &Kernel) -> Option<Diagnostic> {
    let (Pat::Node(NodePat { head: Head::Op(op), .. }), Backend::Composed) = (&kernel.pattern, &kernel.backend) else {
        return None;
    };
    let results = p.op(*op).results.len();
    let span = kernel.origin.span.filter(|_| results > 1)?;
    let message = format!("the kernel `{}` of {results} results becomes several launches", kernel.name);
    Some(
        Diagnostic::warning(code::SEVERAL_LAUNCHES, message, span)
            .note("`composed` runs the ops of the body, optimised by themselves, behind one name")
            .hint("if one launch is meant, use `rowwise;`, `pointwise;` or a template, which compute all results"),
    )
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
        })
    }
}
