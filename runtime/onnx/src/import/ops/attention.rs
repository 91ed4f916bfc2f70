//! Attention and rotary embedding, composed of products, masks and softmax.
//!
//! In: ONNX's `Attention` (opset 23 on) and `RotaryEmbedding`. Out: the same nodes that an exporter
//! writes for them, so that the rules for attention match one form. Invariant: a query whose keys
//! are all masked gives 0.

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::shape::{Dim, Shape, show_shape};

use super::super::context::{Bound, Ctx, Out, dims, int};
use super::super::symbolic::Sym;
use super::super::tensor;
use hypatia_graph::Value;

/// Splits the heads: `[b, s, heads * size]` as `[b, heads, s, size]`.
fn heads(ctx: &mut Ctx, x: Value, count: Option<i64>) -> Out<Value> {
    let shape = ctx.shape_of(x);
    match (&shape[..], count) {
        ([_, _, _, _], _) => Ok(x),
        ([b, s, width], Some(n)) => {
            let size = if n > 0 { width.div_exact(&Dim::from(n)) } else { None };
            let Some(size) = size else { return ctx.wrong(format!("{n} heads do not divide {width}")) };
            let x = ctx.reshape(x, &[b.clone(), s.clone(), Dim::from(n), size])?;
            ctx.transpose(x, &[0, 2, 1, 3])
        }
        ([_, _, _], None) => ctx.wrong("operands of rank 3 need q_num_heads and kv_num_heads"),
        _ => ctx.wrong(format!("operands should have rank 3 or 4, but one has rank {}", shape.len())),
    }
}

/// Repeats each head of keys or values for all queries that share it.
fn repeated(ctx: &mut Ctx, x: Value, queries: &Dim) -> Out<Value> {
    let shape = ctx.shape_of(x);
    if shape[1] == *queries {
        return Ok(x);
    }
    let Some(times) = queries.div_exact(&shape[1]) else {
        return ctx.wrong(format!("{} heads of keys do not divide {queries} heads of queries", shape[1]));
    };
    let wide = |n: Dim| [&shape[..2], &[n], &shape[2..]].concat();
    let x = ctx.reshape(x, &wide(Dim::from(1)))?;
    let x = ctx.expand(x, &wide(times))?;
    ctx.reshape(x, &[&shape[..1], std::slice::from_ref(queries), &shape[2..]].concat())
}

/// A size as a tensor of rank 0.
fn size(ctx: &mut Ctx, d: &Dim) -> Out<Value> {
    match Sym::new(DType::I64, vec![], vec![d.clone()]) {
        Some(s) => ctx.builder.materialise(&s.into()),
        None => ctx.unsupported("the formula of a size is too long"),
    }
}

fn iota(ctx: &mut Ctx, shape: &[Dim], axis: i64) -> Out<Value> {
    ctx.op(BuiltinOp::Iota, &[], vec![dims(shape), int(axis), AttrValue::DType(DType::I64)])
}

/// The masks. All shapes broadcast to `[b, heads, queries, keys]`.
struct Masks {
    /// Keys that a query may attend to.
    allowed: Vec<Value>,
    /// The bias added to the scores.
    bias: Option<Value>,
    /// Each query has a key that no mask hides.
    open: bool,
}

/// The number of keys before the first query, as i64 of shape `[]` or `[b, 1, 1, 1]`.
fn offset(ctx: &mut Ctx, queries: &Dim) -> Out<Option<Value>> {
    if ctx.has(4) {
        let past = ctx.ty(4)?.shape;
        let Some(past) = past.get(2).cloned() else { return ctx.wrong("past_key should have rank 4") };
        return size(ctx, &past).map(Some);
    }
    let Some(valid) = valid_keys(ctx)? else { return Ok(None) };
    let queries = size(ctx, queries)?;
    Ok(Some(ctx.builtin(BuiltinScalar::Sub, &[valid, queries])?))
}

/// `nonpad_kv_seqlen` as `[b, 1, 1, 1]`.
fn valid_keys(ctx: &mut Ctx) -> Out<Option<Value>> {
    if ctx.since < 24 {
        return Ok(None);
    }
    let Some(v) = ctx.maybe(6)? else { return Ok(None) };
    let v = ctx.cast(v, DType::I64)?;
    let [batch] = &ctx.shape_of(v)[..] else { return ctx.wrong("nonpad_kv_seqlen should be a vector") };
    let one = Dim::from(1);
    Ok(Some(ctx.reshape(v, &[batch.clone(), one.clone(), one.clone(), one])?))
}

fn masks(ctx: &mut Ctx, scores: &[Dim]) -> Out<Masks> {
    let (queries, keys) = (scores[2].clone(), scores[3].clone());
    let one = Dim::from(1);
    let mut masks = Masks { allowed: Vec::new(), bias: None, open: false };
    let causal = ctx.attrs.flag("is_causal", false)?;
    let window = |name| if ctx.since >= 25 { ctx.attrs.int_or(name, -1) } else { Ok(-1) };
    let (left, right) = (window("left_window_size")?, window("right_window_size")?);
    if left < -1 || right < -1 {
        return ctx.wrong("a window size should be at least -1");
    }
    if causal || left >= 0 || right >= 0 {
        let columns = iota(ctx, &[one.clone(), keys.clone()], 1)?;
        let mut rows = iota(ctx, &[queries.clone(), one.clone()], 0)?;
        if let Some(offset) = offset(ctx, &queries)? {
            rows = ctx.builtin(BuiltinScalar::Add, &[rows, offset])?;
        }
        if causal {
            masks.allowed.push(ctx.builtin(BuiltinScalar::Le, &[columns, rows])?);
        }
        if left >= 0 {
            let left = ctx.number(DType::I64, left as f64)?;
            let first = ctx.builtin(BuiltinScalar::Sub, &[rows, left])?;
            masks.allowed.push(ctx.builtin(BuiltinScalar::Le, &[first, columns])?);
        }
        if right >= 0 {
            let right = ctx.number(DType::I64, right as f64)?;
            let last = ctx.builtin(BuiltinScalar::Add, &[rows, right])?;
            masks.allowed.push(ctx.builtin(BuiltinScalar::Le, &[columns, last])?);
        }
    }
    if let Some(valid) = valid_keys(ctx)? {
        let columns = iota(ctx, &[one, keys.clone()], 1)?;
        masks.allowed.push(ctx.builtin(BuiltinScalar::Lt, &[columns, valid])?);
    }
    if let Some(mask) = ctx.maybe(3)? {
        let mask = widened(ctx, mask, &keys)?;
        ctx.fits(&ctx.shape_of(mask), scores, "attn_mask")?;
        match ctx.dtype_of(mask) {
            DType::Bool => masks.allowed.push(mask),
            _ => masks.bias = Some(mask),
        }
    }
    // A query attends to the first key, at least.
    let valid = ctx.since >= 24 && ctx.has(6);
    masks.open = causal && left < 0 && !valid && !ctx.has(3);
    Ok(masks)
}

/// Pads a mask that covers fewer keys: the remaining keys are masked.
fn widened(ctx: &mut Ctx, mask: Value, keys: &Dim) -> Out<Value> {
    let shape = ctx.shape_of(mask);
    let Some(last) = shape.last() else { return Ok(mask) };
    let missing = keys.checked_sub(last).and_then(|d| d.as_const());
    let Some(missing) = missing.filter(|m| *m > 0) else { return Ok(mask) };
    let dtype = ctx.dtype_of(mask);
    let fill = ctx.number(dtype, if dtype == DType::Bool { 0.0 } else { f64::NEG_INFINITY })?;
    let nothing = vec![Dim::from(0); shape.len()];
    let mut behind = nothing.clone();
    if let Some(b) = behind.last_mut() {
        *b = Dim::from(missing);
    }
    ctx.op(BuiltinOp::Pad, &[mask, fill], vec![dims(&nothing), dims(&behind)])
}

/// Keys or values, with the past ones before them.
fn cached(ctx: &mut Ctx, x: Value, past: usize) -> Out<Value> {
    match ctx.maybe(past)? {
        Some(p) => ctx.op(BuiltinOp::Concat, &[p, x], vec![int(2)]),
        None => Ok(x),
    }
}

/// Scaled dot-product attention.
pub fn attention(ctx: &mut Ctx) -> Out {
    ctx.arity(3, if ctx.since >= 24 { 7 } else { 6 }, 4)?;
    if ctx.has(4) != ctx.has(5) {
        return ctx.wrong("past_key and past_value must be given together");
    }
    let (q_heads, kv_heads) = (ctx.attrs.int("q_num_heads")?, ctx.attrs.int("kv_num_heads")?);
    let (q, k, v) = (ctx.value(0)?, ctx.value(1)?, ctx.value(2)?);
    let joined = ctx.shape_of(q).len() == 3;
    let (q, k, v) = (heads(ctx, q, q_heads)?, heads(ctx, k, kv_heads)?, heads(ctx, v, kv_heads)?);
    let (k, v) = (cached(ctx, k, 4)?, cached(ctx, v, 5)?);
    let dtype = ctx.dtype_of(q);
    let count = ctx.shape_of(q)[1].clone();
    let (all_k, all_v) = (repeated(ctx, k, &count)?, repeated(ctx, v, &count)?);
    let raw = scores(ctx, q, all_k)?;
    let shape = ctx.shape_of(raw);
    let capped = softcap(ctx, raw)?;
    let masks = masks(ctx, &shape)?;
    let biased = match masks.bias {
        Some(b) => ctx.builtin(BuiltinScalar::Add, &[capped, b])?,
        None => capped,
    };
    let masked = masked(ctx, biased, &masks.allowed)?;
    let weights = weights(ctx, masked, &masks, &shape)?;
    let y = ctx.op(BuiltinOp::Matmul, &[weights, all_v], vec![])?;
    let y = if joined { unsplit(ctx, y)? } else { y };
    let mut results: Vec<Bound> = vec![y.into(), k.into(), v.into()];
    if ctx.wanted(3) {
        let shown = match ctx.attrs.int_or("qk_matmul_output_mode", 0)? {
            0 => raw,
            1 => capped,
            2 => masked,
            3 => weights,
            other => return ctx.wrong(format!("there is no qk_matmul_output_mode {other}")),
        };
        results.push(ctx.cast(shown, dtype)?.into());
    } else {
        ctx.attrs.ignore("qk_matmul_output_mode");
    }
    Ok(results)
}

/// `q k^T`, with both operands scaled by the root of the scale, as ONNX specifies.
fn scores(ctx: &mut Ctx, q: Value, k: Value) -> Out<Value> {
    let size = ctx.shape_of(q).last().and_then(Dim::as_const);
    let scale = match (ctx.attrs.float("scale")?, size) {
        (Some(s), _) => f64::from(s),
        (None, Some(n)) if n > 0 => 1.0 / (n as f64).sqrt(),
        _ => return ctx.unsupported("heads of dynamic size without a scale"),
    };
    if scale < 0.0 {
        return ctx.unsupported("a negative scale");
    }
    let root = ctx.number(ctx.dtype_of(q), scale.sqrt())?;
    let q = ctx.builtin(BuiltinScalar::Mul, &[q, root])?;
    let k = ctx.transpose(k, &[0, 1, 3, 2])?;
    let k = ctx.builtin(BuiltinScalar::Mul, &[k, root])?;
    ctx.op(BuiltinOp::Matmul, &[q, k], vec![])
}

/// `cap * tanh(x / cap)`
fn softcap(ctx: &mut Ctx, x: Value) -> Out<Value> {
    let cap = f64::from(ctx.attrs.float_or("softcap", 0.0)?);
    if cap == 0.0 {
        return Ok(x);
    }
    let cap = ctx.number(ctx.dtype_of(x), cap)?;
    let x = ctx.builtin(BuiltinScalar::Div, &[x, cap])?;
    let x = ctx.builtin(BuiltinScalar::Tanh, &[x])?;
    ctx.builtin(BuiltinScalar::Mul, &[x, cap])
}

/// Combines all masks.
fn both(ctx: &mut Ctx, allowed: &[Value]) -> Out<Option<Value>> {
    let Some((first, rest)) = allowed.split_first() else { return Ok(None) };
    let mut all = *first;
    for mask in rest {
        all = ctx.builtin(BuiltinScalar::And, &[all, *mask])?;
    }
    Ok(Some(all))
}

/// Sets masked scores to -infinity.
fn masked(ctx: &mut Ctx, x: Value, allowed: &[Value]) -> Out<Value> {
    let Some(allowed) = both(ctx, allowed)? else { return Ok(x) };
    let low = ctx.number(ctx.dtype_of(x), f64::NEG_INFINITY)?;
    ctx.builtin(BuiltinScalar::Select, &[allowed, x, low])
}

/// Softmax of the scores; rows of queries whose keys are all masked are 0.
fn weights(ctx: &mut Ctx, x: Value, masks: &Masks, scores: &[Dim]) -> Out<Value> {
    let dtype = ctx.dtype_of(x);
    let wide = match ctx.attrs.int("softmax_precision")? {
        Some(code) => tensor::dtype(i32::try_from(code).unwrap_or(-1))?,
        None => dtype,
    };
    if !wide.is_float() {
        return ctx.wrong(format!("softmax_precision {wide} is not a float"));
    }
    let x = ctx.cast(x, wide)?;
    let name = ctx.name(0)?;
    let all = ctx.call(name, &[Some(x)], &[("axis", int(3))])?;
    let all = ctx.cast(all, dtype)?;
    if masks.open || masks.allowed.is_empty() && masks.bias.is_none() {
        return Ok(all);
    }
    // The bias decides which rows are masked, not the scores: they may be infinite themselves.
    let zero = ctx.number(dtype, 0.0)?;
    let bias = match masks.bias {
        Some(b) => b,
        None => zero,
    };
    let total = masked(ctx, bias, &masks.allowed)?;
    let keys = scores[3].clone();
    let total = if ctx.shape_of(total).last() == Some(&keys) { total } else { ctx.expand(total, scores)? };
    let axis = ctx.shape_of(total).len() as i64 - 1;
    let most = ctx.reduce(BuiltinOp::Amax, total, &[axis], true)?;
    let low = ctx.number(dtype, f64::NEG_INFINITY)?;
    let none = ctx.builtin(BuiltinScalar::Eq, &[most, low])?;
    ctx.builtin(BuiltinScalar::Select, &[none, zero, all])
}

/// Joins the heads: `[b, heads, s, size]` as `[b, s, heads * size]`.
fn unsplit(ctx: &mut Ctx, x: Value) -> Out<Value> {
    let [b, n, s, size] = &ctx.shape_of(x)[..] else { return ctx.wrong("operands should have rank 4") };
    let Some(width) = n.checked_mul(size) else { return ctx.wrong("the result is too large") };
    let shape: Shape = vec![b.clone(), s.clone(), width];
    let x = ctx.transpose(x, &[0, 2, 1, 3])?;
    ctx.reshape(x, &shape)
}

/// Rotates pairs of elements by angles given as cosines and sines.
pub fn rotary(ctx: &mut Ctx) -> Out {
    ctx.arity(3, 4, 1)?;
    let x = ctx.value(0)?;
    let original = ctx.shape_of(x);
    let count = ctx.attrs.int_or("num_heads", 0)?;
    let interleaved = ctx.attrs.flag("interleaved", false)?;
    let x = heads(ctx, x, (count > 0).then_some(count))?;
    let shape = ctx.shape_of(x);
    let Some(size) = shape[3].as_const() else { return ctx.unsupported("heads of dynamic size") };
    let turned = match ctx.attrs.int_or("rotary_embedding_dim", 0)? {
        0 => size,
        n if n > 0 && n <= size => n,
        n => return ctx.wrong(format!("rotary_embedding_dim {n} of heads of size {size}")),
    };
    if turned % 2 != 0 {
        return ctx.wrong(format!("{turned} elements cannot be split into pairs"));
    }
    let (cos, sin) = (angles(ctx, 1, &shape, turned)?, angles(ctx, 2, &shape, turned)?);
    let part = |ctx: &mut Ctx, x: Value, from: i64, to: i64, step: i64| {
        ctx.op(BuiltinOp::Slice, &[x], vec![int(3), int(from), int(to), int(step)])
    };
    let (a, b) = match interleaved {
        true => (part(ctx, x, 0, turned, 2)?, part(ctx, x, 1, turned, 2)?),
        false => (part(ctx, x, 0, turned / 2, 1)?, part(ctx, x, turned / 2, turned, 1)?),
    };
    let product = |ctx: &mut Ctx, x, y| ctx.builtin(BuiltinScalar::Mul, &[x, y]);
    let (ca, sb) = (product(ctx, a, cos)?, product(ctx, b, sin)?);
    let (sa, cb) = (product(ctx, a, sin)?, product(ctx, b, cos)?);
    let real = ctx.builtin(BuiltinScalar::Sub, &[ca, sb])?;
    let imaginary = ctx.builtin(BuiltinScalar::Add, &[sa, cb])?;
    let mut parts = vec![real, imaginary];
    if interleaved {
        let half = ctx.shape_of(real);
        let pair = [&half[..], &[Dim::from(1)]].concat();
        let (real, imaginary) = (ctx.reshape(real, &pair)?, ctx.reshape(imaginary, &pair)?);
        let both = ctx.op(BuiltinOp::Concat, &[real, imaginary], vec![int(4)])?;
        parts = vec![ctx.reshape(both, &[&half[..3], &[Dim::from(turned)]].concat())?];
    }
    if turned < size {
        parts.push(part(ctx, x, turned, size, 1)?);
    }
    let y = match parts[..] {
        [one] => one,
        _ => ctx.op(BuiltinOp::Concat, &parts, vec![int(3)])?,
    };
    let y = if original.len() == 3 { unsplit(ctx, y)? } else { y };
    Ok(vec![y.into()])
}

/// A cache of cosines or sines as `[b, 1, s, turned / 2]`: rows selected by the positions, or one
/// row per position.
fn angles(ctx: &mut Ctx, i: usize, shape: &[Dim], turned: i64) -> Out<Value> {
    let mut cache = ctx.value(i)?;
    if let Some(positions) = ctx.maybe(3)? {
        cache = ctx.op(BuiltinOp::Gather, &[cache, positions], vec![int(0)])?;
    }
    let have = ctx.shape_of(cache);
    if have.last() != Some(&Dim::from(turned / 2)) || have.len() != 3 {
        return ctx.wrong(format!(
            "a cache should have rank 3 and {} elements along its last axis, but is {}",
            turned / 2,
            show_shape(&have)
        ));
    }
    let wide = [have[0].clone(), Dim::from(1), have[1].clone(), have[2].clone()];
    ctx.fits(&wide, &[&shape[..3], &have[2..]].concat(), "the cache")?;
    ctx.reshape(cache, &wide)
}
