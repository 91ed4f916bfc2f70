//! `tiled` kernels: what their declaration may say, and where they apply.
//!
//! In: a `kernel` item whose backend is `tiled`. Out: errors, and the guards that every such kernel
//! has. Invariant: the guards admit only what the generated kernel computes, so that costs, plans
//! and `expect launches` never count a kernel that cannot run.

use hypatia_target::dtype::DType;

use crate::ast::{self, BinaryOp};
use crate::builtin::BuiltinOp;
use crate::diag::Diagnostic;
use crate::ir::{AExpr, AttrPat, AttrValue, DeviceFact, Fact, NodePat, OpBody, OpDef, Pat, Sort, VarId};
use crate::kernel::attention::ATTENTION_TUNE;
use crate::kernel::attention_grad::{ATTENTION_GRAD_TUNE, AttentionGradTiling};
use crate::kernel::attention_sm80::{WARP_ATTENTION_TUNE, WarpAttentionTiling};
use crate::kernel::{GEMV_TUNE, TUNE, Tiling, WARP_TUNE, WarpTiling};
use crate::shape::Dim;
use crate::spell::closest;

use super::code;
use super::context::Cx;

/// The compute capability from which on products and attention are generated: Ampere, whose
/// instructions the templates of warps use.
const AMPERE_SM: i64 = 80;
/// The compute capability from which on the rest is generated: Hopper. Attention is, whose tuning
/// parameters name no tiling for warps.
const HOPPER_SM: i64 = 90;

/// Bytes of the words in which the template of warps reads factors.
const WORD: i64 = 4;

/// What a tiled kernel computes.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Product,
    Pair,
    Attention,
    /// The gradients of attention.
    AttentionGrad,
}

impl Kind {
    /// The tuning parameters, with the values that some template has.
    fn tune(self) -> Vec<(&'static str, Vec<i64>)> {
        let tables: &[_] = match self {
            Kind::Product | Kind::Pair => &[TUNE, WARP_TUNE, GEMV_TUNE],
            Kind::Attention => &[ATTENTION_TUNE, WARP_ATTENTION_TUNE],
            Kind::AttentionGrad => &[ATTENTION_GRAD_TUNE],
        };
        let mut out: Vec<(&str, Vec<i64>)> = Vec::new();
        for (name, values) in tables.iter().copied().flatten() {
            match out.iter_mut().find(|(n, _)| n == name) {
                Some((_, known)) => known.extend_from_slice(values),
                None => out.push((*name, values.to_vec())),
            }
        }
        for (_, values) in &mut out {
            values.sort_unstable();
            values.dedup();
        }
        out
    }
}

/// What a tiled kernel for that op computes; `None` if there is none.
fn kind(def: &OpDef) -> Option<Kind> {
    match &def.body {
        OpBody::Builtin(BuiltinOp::Gemm) => Some(Kind::Product),
        OpBody::Builtin(BuiltinOp::Gemm2) => Some(Kind::Pair),
        OpBody::Builtin(_) => None,
        // Attention may have the log-sum-exp of its scores as a second result.
        OpBody::Defined(results) => match results.len() {
            1 | 2 => Some(Kind::Attention),
            3 => Some(Kind::AttentionGrad),
            _ => None,
        },
    }
}

/// Checks that a tiled kernel is for a gemm with any epilogue, or for an op whose body may be
/// attention; that its tuning parameters name tilings, and that it sets no launch.
pub(super) fn check(
    cx: &mut Cx<'_>,
    k: &ast::Kernel,
    (def, closed): (&OpDef, bool),
    choices: &[(String, Vec<i64>)],
) -> Option<()> {
    let Some(kind) = kind(def) else {
        let message = format!("`tiled` generates products and attention, but the kernel is for `{}`", def.name);
        let d = Diagnostic::error(code::BACKEND, message, k.pattern.span).hint(
            "write `kernel name for gemm(a, b, e, to = d) { tiled; ... }`, or name an op whose body is \
             `matmul(softmax(..), v)`",
        );
        return cx.report(d);
    };
    if matches!(kind, Kind::Product | Kind::Pair) && closed {
        let message = "a tiled kernel computes any epilogue, but this pattern fixes it";
        let d = Diagnostic::error(code::BACKEND, message, k.pattern.span)
            .hint("use a variable for the epilogue, such as `e` in `gemm(a, b, e, to = d)`");
        return cx.report(d);
    }
    if let Some(setting) = k.settings.first() {
        let message = "a tiled kernel sets no launch: its tiling decides";
        let d = Diagnostic::error(code::KERNEL_SETTING, message, setting.key.span)
            .hint("remove it, and list tilings with `tune`");
        return cx.report(d);
    }
    tune(cx, k, kind, choices)
}

/// Checks the tuning parameters, whose choices are these.
fn tune(cx: &mut Cx<'_>, k: &ast::Kernel, kind: Kind, choices: &[(String, Vec<i64>)]) -> Option<()> {
    let table = kind.tune();
    for ((name, values), (_, list)) in k.tune.iter().zip(choices) {
        let names = || table.iter().map(|(n, _)| *n);
        let Some((_, known)) = table.iter().find(|(n, _)| *n == name.node) else {
            let message = format!("a tiled kernel has no tuning parameter `{}`", name.node);
            let hint = match closest(&name.node, names()) {
                Some(n) => format!("did you mean `{n}`?"),
                None => format!("its tuning parameters are {}", names().collect::<Vec<_>>().join(", ")),
            };
            return cx.report(Diagnostic::error(code::TUNE, message, name.span).hint(hint));
        };
        if let Some(wrong) = list.iter().find(|v| !known.contains(v)) {
            let known: Vec<String> = known.iter().map(i64::to_string).collect();
            let message = format!("`{}` of a tiled kernel cannot be {wrong}", name.node);
            let d = Diagnostic::error(code::TUNE, message, values.span)
                .hint(format!("its values are {}", known.join(", ")));
            return cx.report(d);
        }
    }
    let possible = match kind {
        Kind::Product => !Tiling::all(choices).is_empty() || !WarpTiling::all(choices).is_empty(),
        Kind::Pair => Tiling::all(choices).iter().any(Tiling::has_pairs) || !WarpTiling::all(choices).is_empty(),
        Kind::Attention => true,
        Kind::AttentionGrad => !AttentionGradTiling::all(choices).is_empty(),
    };
    if !possible {
        let message = format!("the tuning parameters of kernel `{}` allow no tiling", k.name.node);
        let limits = "on Hopper, a tile of a group has at most 128 x 128 or 64 x 256 elements, and `pingpong` \
                      takes two consumers";
        let d = Diagnostic::error(code::TUNE, message, k.name.span);
        let d = match kind {
            Kind::AttentionGrad => d
                .note("each warp has at least 16 rows of a tile")
                .hint("add smaller values of `warps`, or larger ones of `tile_m`"),
            _ => d
                .note(format!(
                    "{limits}; elsewhere, a warp's part has at least 16 x 16 and at most 4096 elements, and \
                     `tile_k` is a multiple of 32 `split_k`"
                ))
                .hint("add smaller values of `tile_m` or `tile_n`"),
        };
        return cx.report(d);
    }
    Some(())
}

/// The guards of a tiled kernel with these choices of tuning parameters. Operands of its pattern
/// that have no variable get one.
pub(super) fn limits(cx: &mut Cx<'_>, def: &OpDef, pattern: &mut Pat, choices: &[(String, Vec<i64>)]) -> Vec<AExpr> {
    let Some(gemm) = application(pattern) else { return Vec::new() };
    let kind = kind(def);
    if matches!(kind, Some(Kind::Attention | Kind::AttentionGrad)) {
        // Which operands are multiplied is known only once the body is built.
        let first = gemm.args.first_mut().map(|a| variable(cx, a));
        let types = first.map(|a| op(BinaryOp::In, AExpr::Fact(Fact::DType, a), half()));
        let for_warps = kind == Some(Kind::AttentionGrad) || !WarpAttentionTiling::all(choices).is_empty();
        let device = if for_warps { at_least(AMPERE_SM) } else { hopper() };
        return [device].into_iter().chain(types).collect();
    }
    let pair = kind == Some(Kind::Pair);
    let Some((factors, _)) = gemm.args.split_at_mut_checked(if pair { 3 } else { 2 }) else { return Vec::new() };
    let factors: Vec<VarId> = factors.iter_mut().map(|f| variable(cx, f)).collect();
    let a = factors[0];
    let to = match gemm.attrs.first() {
        Some(AttrPat::Var(v)) => AExpr::Var(*v),
        Some(AttrPat::Is(e)) => e.clone(),
        _ => {
            let v = cx.fresh("_to", Sort::DType, None);
            gemm.attrs = vec![AttrPat::Var(v)];
            AExpr::Var(v)
        }
    };
    let fact = AExpr::Fact;
    let of_floats = [
        vec![multiplied(fact(Fact::DType, a))],
        factors[1..].iter().map(|b| op(BinaryOp::Eq, fact(Fact::DType, *b), fact(Fact::DType, a))).collect(),
        // What is quantised is stored so.
        vec![match pair {
            true => op(BinaryOp::Eq, to.clone(), fact(Fact::DType, a)),
            false => op(BinaryOp::In, to.clone(), AExpr::List(stored_of(fact(Fact::DType, a)))),
        }],
    ];
    let of_types = match factors.as_slice() {
        [a, b] => vec![op(BinaryOp::Or, all(of_floats.concat()), all(of_bytes(*a, *b, to)))],
        _ => of_floats.concat(),
    };
    let mut guards = vec![at_least(AMPERE_SM)];
    guards.extend(of_types);
    guards.extend(factors.iter().map(|f| op(BinaryOp::Gt, fact(Fact::Numel, *f), number(0))));
    guards
}

fn number(n: i64) -> AExpr {
    AExpr::Value(AttrValue::Dim(Dim::from(n)))
}

fn op(op: BinaryOp, x: AExpr, y: AExpr) -> AExpr {
    AExpr::Binary(op, Box::new(x), Box::new(y))
}

/// A list of types.
fn types(list: &[DType]) -> AExpr {
    AExpr::List(list.iter().map(|d| AExpr::Value(AttrValue::DType(*d))).collect())
}

/// The types that attention multiplies.
fn half() -> AExpr {
    types(&[DType::F16, DType::BF16])
}

/// That products of that type are generated.
fn multiplied(dtype: AExpr) -> AExpr {
    op(BinaryOp::In, dtype, types(&[DType::F16, DType::BF16, DType::F32]))
}

/// The types that a product of floats stores: that of its factors, and bytes.
fn stored_of(factors: AExpr) -> Vec<AExpr> {
    let bytes = [DType::I8, DType::U8].map(|d| AExpr::Value(AttrValue::DType(d)));
    [factors].into_iter().chain(bytes).collect()
}

/// That both factors are integers of 8 bits whose sums are whole words, and the result is of a type
/// that the template stores.
fn of_bytes(a: VarId, b: VarId, to: AExpr) -> Vec<AExpr> {
    let stored = [DType::F32, DType::F16, DType::BF16, DType::I32, DType::I8, DType::U8];
    let bytes = |v| op(BinaryOp::In, AExpr::Fact(Fact::DType, v), types(&[DType::I8, DType::U8]));
    let depth = AExpr::Index(Box::new(AExpr::Fact(Fact::Shape, a)), Box::new(number(-1)));
    let whole = op(BinaryOp::Eq, op(BinaryOp::Rem, depth, number(WORD)), number(0));
    vec![bytes(a), bytes(b), op(BinaryOp::In, to, types(&stored)), whole]
}

/// All of these; there is at least one.
fn all(conditions: Vec<AExpr>) -> AExpr {
    let both = |x, y| op(BinaryOp::And, x, y);
    conditions.into_iter().reduce(both).unwrap_or(AExpr::Value(AttrValue::Bool(true)))
}

/// That the device has that compute capability.
fn at_least(sm: i64) -> AExpr {
    op(BinaryOp::Ge, AExpr::Device(DeviceFact::Sm), number(sm))
}

/// That the device is Hopper's: later ones lack its matrix instructions.
fn hopper() -> AExpr {
    op(BinaryOp::Eq, AExpr::Device(DeviceFact::Sm), number(HOPPER_SM))
}

/// The application at the top of a pattern.
fn application(pattern: &mut Pat) -> Option<&mut NodePat> {
    match pattern {
        Pat::Bind(_, inner) | Pat::Typed(inner, _) => application(inner),
        Pat::Node(n) => Some(n),
        _ => None,
    }
}

/// The variable that a pattern of an operand binds.
fn variable(cx: &mut Cx<'_>, pat: &mut Pat) -> VarId {
    match pat {
        Pat::Var(v) | Pat::Bind(v, _) => *v,
        Pat::Typed(inner, _) => variable(cx, inner),
        _ => {
            let v = cx.fresh("_operand", Sort::Tensor, None);
            *pat = match std::mem::replace(pat, Pat::Any) {
                Pat::Any => Pat::Var(v),
                other => Pat::Bind(v, Box::new(other)),
            };
            v
        }
    }
}
