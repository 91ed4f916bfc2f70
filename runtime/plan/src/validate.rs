//! Validates the invariants of every plan.
//!
//! In: a plan. Out: nothing, or the first invariant that it breaks, as an internal error. Invariant
//! of every plan that passes: a step reads only inputs, constants and results of earlier steps;
//! views are inside their buffers; writes are whole buffers of the arena, or all parts of one by
//! one step, each written once;
//! buffers that are live at the same time do not overlap, except where a step declares that it
//! works in place; shapes of actions fit their reads and writes; results are contiguous.
//!
//! Debug builds check each plan that is made. A plan whose buffers are not placed yet cannot be
//! checked.

use super::arena::last_uses;
use super::{
    ALIGNMENT, Action, AttentionGradStep, AttentionStep, BufferId, Called, ChainLayer, ConvStep, Divided, FactorFrom,
    GemmStep, HorizontalPart, HorizontalStep, Pick, Plan, PointwiseStep, PrologueStep, RowwiseStep, Step, Storage,
    View,
};
use hypatia_dsl::kernel::{Access, Operand, Reduced};
use hypatia_tensor::error::{Error, Result};

/// Elements of a buffer that are marked one by one, at most, where parts of it are written: that
/// takes as long as running the step.
const MOST_MARKED: usize = 1 << 18;

/// The error, without the step's name.
type Checked = std::result::Result<(), String>;

/// Fails with this message unless the condition holds.
fn ensure(holds: bool, words: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(words()) }
}

impl Plan {
    /// Fails if the plan breaks an invariant: a bug in the planner, not in a model.
    pub fn validate(&self) -> Result<()> {
        let internal = |m: String| Error::Internal(format!("an illegal plan: {m}"));
        self.check_buffers().map_err(internal)?;
        let mut written = vec![false; self.buffers.len()];
        for (i, step) in self.steps.iter().enumerate() {
            self.check_step(step, &mut written).map_err(|m| internal(format!("step {i} `{}`: {m}", step.name)))?;
        }
        self.check_lifetimes().map_err(internal)?;
        for (name, view) in &self.outputs {
            let outcome = self
                .check_read(view, &written)
                .and_then(|()| ensure(view.is_contiguous(), || "it is not contiguous".into()));
            outcome.map_err(|m| internal(format!("output `{name}`: {m}")))?;
        }
        Ok(())
    }

    /// Bytes of a buffer; `None` if they overflow.
    fn bytes(&self, buffer: usize) -> Option<usize> {
        let b = &self.buffers[buffer];
        b.len.checked_mul(b.dtype.size())
    }

    /// Buffers of inputs and constants match them; offsets in the arena are aligned.
    fn check_buffers(&self) -> Checked {
        for (i, b) in self.buffers.iter().enumerate() {
            let fits = match b.storage {
                Storage::Input(at) => self
                    .inputs
                    .get(at)
                    .is_some_and(|input| input.dtype == b.dtype && input.shape.iter().product::<usize>() == b.len),
                Storage::Constant(at) => {
                    self.constants.get(at).is_some_and(|t| t.dtype() == b.dtype && t.len() == b.len)
                }
                Storage::Arena(offset) => offset.is_multiple_of(ALIGNMENT),
            };
            ensure(fits, || format!("buffer {i} does not match {:?}", b.storage))?;
        }
        Ok(())
    }

    /// The elements of a view are inside its buffer.
    fn check_view(&self, view: &View) -> Checked {
        let Some(buffer) = self.buffers.get(view.buffer.index()) else {
            return Err(format!("there is no buffer {}", view.buffer.0));
        };
        ensure(view.dtype == buffer.dtype, || format!("{} is read as {}", buffer.dtype, view.dtype))?;
        ensure(view.shape.len() == view.strides.len(), || {
            "the number of strides of a view differs from its rank".into()
        })?;
        if view.is_empty() {
            return Ok(());
        }
        let (mut first, mut last) = (view.offset as i128, view.offset as i128);
        for (size, stride) in view.shape.iter().zip(&view.strides) {
            let reach = (*size as i128 - 1) * *stride as i128;
            if reach < 0 { first += reach } else { last += reach }
        }
        ensure(first >= 0 && last < buffer.len as i128, || {
            format!("a view of {first}..={last} leaves its buffer of {} elements", buffer.len)
        })
    }

    fn check_read(&self, view: &View, written: &[bool]) -> Checked {
        self.check_view(view)?;
        let arena = matches!(self.buffers[view.buffer.index()].storage, Storage::Arena(_));
        ensure(!arena || written[view.buffer.index()], || {
            format!("buffer {} is read before it is written", view.buffer.0)
        })
    }

    /// A whole buffer of the arena; with `any_order`, its axes may be permuted.
    fn check_write(&self, view: &View, any_order: bool) -> Checked {
        self.check_view(view)?;
        let buffer = &self.buffers[view.buffer.index()];
        ensure(matches!(buffer.storage, Storage::Arena(_)), || "an input or a constant is written".into())?;
        let mut axes: Vec<usize> = (0..view.shape.len()).collect();
        if any_order {
            axes.sort_by_key(|a| std::cmp::Reverse(view.strides[*a]));
        }
        let dense = view.transposed(&axes).is_contiguous();
        ensure(view.offset == 0 && view.len() == buffer.len && dense, || {
            format!("a part of buffer {} is written", view.buffer.0)
        })
    }

    /// Parts of one buffer of the arena, which write each of its elements once.
    fn check_parts(&self, parts: &[&View]) -> Checked {
        parts.iter().try_for_each(|v| self.check_view(v))?;
        let buffer = &self.buffers[parts[0].buffer.index()];
        ensure(matches!(buffer.storage, Storage::Arena(_)), || "an input or a constant is written".into())?;
        let all = parts.iter().map(|v| v.len()).sum::<usize>() == buffer.len;
        ensure(all, || format!("parts of buffer {} have more or fewer elements than it", parts[0].buffer.0))?;
        if buffer.len > MOST_MARKED {
            return Ok(());
        }
        let mut seen = vec![false; buffer.len];
        let mut once = true;
        for part in parts {
            let mut at: Vec<usize> = vec![part.offset];
            for (size, stride) in part.shape.iter().zip(&part.strides) {
                let step = |at: usize| (0..*size as isize).map(move |i| (at as isize + i * stride) as usize);
                at = at.into_iter().flat_map(step).collect();
            }
            at.into_iter().for_each(|i| once &= !std::mem::replace(&mut seen[i], true));
        }
        ensure(once && seen.iter().all(|s| *s), || {
            format!("parts of buffer {} overlap, or leave elements out", parts[0].buffer.0)
        })
    }

    fn check_step(&self, step: &Step, written: &mut [bool]) -> Checked {
        step.reads.iter().try_for_each(|v| self.check_read(v, written))?;
        let any_order = match &step.action {
            Action::Call(e) => {
                step.kernel.is_none() && !matches!(e.called, Called::Rows(_))
                    || matches!(e.called, Called::Attention(_) | Called::AttentionGrad(_) | Called::Product(_))
            }
            Action::Horizontal(_) => true,
            _ => false,
        };
        for (i, view) in step.writes.iter().enumerate() {
            let parts: Vec<&View> = step.writes.iter().filter(|w| w.buffer == view.buffer).collect();
            let in_parts = step.kernel.is_some() || matches!(step.action, Action::Horizontal(_));
            let together = parts.len() > 1 && any_order && in_parts;
            match together {
                true => self.check_parts(&parts)?,
                false => self.check_write(view, any_order)?,
            }
            let before = !together && step.writes[..i].iter().any(|w| w.buffer == view.buffer);
            ensure(!before && !written[view.buffer.index()], || format!("buffer {} is written twice", view.buffer.0))?;
        }
        self.check_action(step)?;
        if let Action::Call(call) = &step.action {
            self.check_fallback(step, &call.fallback, written)?;
        }
        step.writes.iter().for_each(|v| written[v.buffer.index()] = true);
        Ok(())
    }

    /// The fallback steps of a call: they read what the step reads and what they computed, and
    /// write everything that it writes.
    fn check_fallback(&self, step: &Step, fallback: &[Step], written: &[bool]) -> Checked {
        let mut inside = written.to_vec();
        let known = |v: &View, among: &[View]| among.iter().any(|w| w.buffer == v.buffer);
        for (i, part) in fallback.iter().enumerate() {
            let earlier: Vec<View> = fallback[..i].iter().flat_map(|s| s.writes.clone()).collect();
            for view in &part.reads {
                ensure(known(view, &step.reads) || known(view, &earlier), || {
                    format!("the fallback reads buffer {}, which the step does not read", view.buffer.0)
                })?;
            }
            let strange = part.writes.iter().find(|v| !known(v, &step.writes));
            ensure(strange.is_none(), || "the fallback writes a buffer that the step does not write".into())?;
            self.check_step(part, &mut inside).map_err(|m| format!("part {i}: {m}"))?;
        }
        ensure(step.writes.iter().all(|v| inside[v.buffer.index()]), || {
            "the fallback does not write every result".into()
        })
    }

    /// No two buffers that are live during one step overlap, except an operand and the result that
    /// reuses its memory.
    fn check_lifetimes(&self) -> Checked {
        let last = last_uses(self);
        // Live buffers with their bytes in the arena.
        let mut alive: Vec<(BufferId, std::ops::Range<usize>)> = Vec::new();
        for (i, step) in self.steps.iter().enumerate() {
            let mut over: Vec<(BufferId, BufferId)> = Vec::new();
            ensure(step.in_place.len() == step.writes.len(), || {
                format!("step {i} does not say for each write whether it is in place")
            })?;
            for (write, read) in step.writes.iter().zip(&step.in_place) {
                if let Some(read) = read {
                    let dies = step.reads.get(*read).is_some_and(|r| last[r.buffer.index()] == i);
                    self.check_in_place(step, write, *read, dies)?;
                    over.push((write.buffer, step.reads[*read].buffer));
                }
            }
            for (j, write) in step.writes.iter().enumerate() {
                if step.writes[..j].iter().any(|w| w.buffer == write.buffer) {
                    continue;
                }
                let Storage::Arena(from) = self.buffers[write.buffer.index()].storage else { continue };
                let end = self.bytes(write.buffer.index()).and_then(|b| from.checked_add(b));
                let to = end
                    .filter(|to| *to <= self.arena)
                    .ok_or_else(|| format!("buffer {} does not end inside the arena", write.buffer.0))?;
                let clash = alive
                    .iter()
                    .find(|(other, at)| from < at.end && at.start < to && !over.contains(&(write.buffer, *other)));
                if let Some((other, _)) = clash {
                    return Err(format!(
                        "step {i} `{}`: buffer {} overlaps buffer {}",
                        step.name, write.buffer.0, other.0
                    ));
                }
                alive.push((write.buffer, from..to));
            }
            alive.retain(|(buffer, _)| last[buffer.index()] > i);
        }
        Ok(())
    }

    /// A pointwise result may reuse the memory of an operand that dies there and is read at the
    /// index that is written.
    fn check_in_place(&self, step: &Step, write: &View, read: usize, dies: bool) -> Checked {
        let Some(view) = step.reads.get(read) else {
            return Err("a result reuses the memory of an operand that the step does not have".into());
        };
        let alone = step.reads.iter().filter(|r| r.buffer == view.buffer).count() == 1;
        let place = |v: &View| self.buffers[v.buffer.index()].storage;
        let same = view.dtype == write.dtype && view.shape == write.shape && view.is_contiguous() && view.offset == 0;
        let pointwise = matches!(step.action, Action::Pointwise(_));
        ensure(pointwise && alone && dies && same && place(view) == place(write), || {
            format!("buffer {} may not reuse the memory of buffer {}", write.buffer.0, view.buffer.0)
        })
    }

    /// The shapes of a step's reads and writes are those of its action.
    fn check_action(&self, step: &Step) -> Checked {
        let (reads, writes) = (step.reads.as_slice(), step.writes.as_slice());
        ensure(!writes.is_empty(), || "nothing is written".into())?;
        let fits = match &step.action {
            Action::Gemm(g) => gemm(g, reads, writes),
            Action::Call(e) => {
                let (Some(own), Some(stored)) = (reads.get(..e.reads), writes.get(..e.writes)) else {
                    return Err("the call reads or stores more than the step".into());
                };
                match &e.called {
                    Called::Product(g) => own.len() >= 2 && results(g, stored) && placed(g, own, &stored[0]),
                    Called::Sum(g) => own.len() >= 3 && stored.len() == 1 && factors(g, own, &stored[0]),
                    Called::Pair(g) => results(g, stored) && pair(g, own, stored),
                    Called::Chain(layers) => chain(layers, own, stored),
                    Called::Rows(parts) => rows(parts, own, stored),
                    Called::Prologue(p) => prologue(p, own, stored),
                    Called::Attention(a) => attention(a, own, stored),
                    Called::AttentionGrad(a) => attention_grad(a, own, stored),
                    Called::Template(t) => {
                        let factors =
                            |g: &GemmStep| own.len() >= 2 && !stored.is_empty() && factors(g, own, &stored[0]);
                        step.kernel.is_some() && !t.launches.is_empty() && t.product.as_ref().is_none_or(factors)
                    }
                }
            }
            Action::Conv(c) => conv(c, reads, writes),
            Action::Pointwise(p) => pointwise(p, reads, writes),
            Action::Horizontal(h) => horizontal(h, reads, writes),
            Action::Rowwise(r) => rowwise(r, reads, writes),
            other => moves(other, reads, &writes[0]),
        };
        ensure(fits, || {
            let shapes = |views: &[View]| views.iter().map(|v| format!("{}{:?}", v.dtype, v.shape)).collect::<Vec<_>>();
            let (reads, writes) = (shapes(reads).join(", "), shapes(writes).join(", "));
            format!("{} of {reads} into {writes} does not fit its action", step.kind())
        })
    }
}

/// The two operands of a product, and its result.
fn factors(g: &GemmStep, reads: &[View], out: &View) -> bool {
    let shaped = |v: &View, rows: usize, columns: usize| v.shape == [&g.batch[..], &[rows, columns]].concat();
    shaped(&reads[0], g.m, g.k) && shaped(&reads[1], g.k, g.n) && shaped(out, g.m, g.n)
}

/// The operands of a product, and its result; both may have their axes in another order.
fn placed(g: &GemmStep, reads: &[View], out: &View) -> bool {
    let divided = || {
        let [a, b, beside @ ..] = reads else { return false };
        let all: Vec<&View> = [a, b, out].into_iter().chain(beside).collect();
        let shaped = b.shape == [&g.batch[..], &[g.k, g.n]].concat();
        shaped && Divided::of(g, &all).is_some()
    };
    factors(g, reads, out) || divided()
}

/// A product's results: one for each root of its term if there are several. Those that are stored
/// have one shape; those of reductions follow. A library's call may store more than the value of
/// its term.
fn results(g: &GemmStep, writes: &[View]) -> bool {
    match g.term.roots.len() {
        0 => false,
        1 => !writes.is_empty() && g.reduced.is_empty(),
        count => {
            let Some(stored) = count.checked_sub(g.reduced.len()).filter(|n| *n > 0) else { return false };
            let Some((stored, reduced)) = writes.split_at_checked(stored) else { return false };
            let batches = g.batch.iter().product();
            let fits = |(w, r): (&View, &Reduced)| w.len() == r.results(batches, g.m, g.n);
            writes.len() == count
                && stored.iter().all(|w| w.shape == stored[0].shape)
                && reduced.iter().zip(&g.reduced).all(fits)
        }
    }
}

/// The operands of two products of one left operand, and their first result.
fn pair(g: &GemmStep, reads: &[View], writes: &[View]) -> bool {
    let ([a, b, c, beside @ ..], [out, ..]) = (reads, writes) else { return false };
    let both = [b, c].into_iter().all(|right| factors(g, &[a.clone(), right.clone()], out));
    both && beside.iter().all(|view| view.shape == out.shape)
}

/// The operands of a product with factors that are computed, and its result.
fn prologue(p: &PrologueStep, reads: &[View], writes: &[View]) -> bool {
    let (g, [out, ..]) = (&p.product, writes) else { return false };
    let rows = g.batch.iter().product::<usize>() * g.m;
    let shaped = |v: &View, rows: usize, columns: usize| v.shape == [&g.batch[..], &[rows, columns]].concat();
    let mut rest = reads;
    for (i, (factor, count)) in p.factors.iter().zip(p.reads()).enumerate() {
        let Some((own, others)) = rest.split_at_checked(count) else { return false };
        let fits = |v: &View| match factor {
            FactorFrom::Term(f) => {
                let of_k = [g.k / f.group.max(1), f.group];
                v.shape == if i == 0 { [&[rows], &of_k[..]].concat() } else { [&of_k[..], &[g.n]].concat() }
            }
            FactorFrom::Windows(w) => w.of_product(g, i == 0, v).is_some(),
            FactorFrom::Memory if i == 0 => shaped(v, g.m, g.k),
            FactorFrom::Memory => shaped(v, g.k, g.n),
        };
        if !own.iter().all(fits) {
            return false;
        }
        rest = others;
    }
    p.factors.len() > 1 && results(g, writes) && shaped(out, g.m, g.n) && rest.iter().all(|v| v.shape == out.shape)
}

/// The operands of products in turn, each the left operand of the next, and the last result.
fn chain(layers: &[ChainLayer], reads: &[View], writes: &[View]) -> bool {
    let ([x, beside @ ..], [out], Some(last)) = (reads, writes, layers.last()) else { return false };
    let rows = |g: &GemmStep| g.batch.iter().product::<usize>() * g.m;
    let mut rest = beside;
    for (i, layer) in layers.iter().enumerate() {
        let g = &layer.product;
        let Some((own, others)) = rest.split_at_checked(layer.reads) else { return false };
        let [weight, terms @ ..] = own else { return false };
        let shaped = |v: &View, m: usize, n: usize| v.shape == [&g.batch[..], &[m, n]].concat();
        let left = if i == 0 { shaped(x, g.m, g.k) } else { layers[i - 1].product.n == g.k };
        if !left || !shaped(weight, g.k, g.n) || !terms.iter().all(|v| shaped(v, g.m, g.n)) {
            return false;
        }
        rest = others;
    }
    let same = layers.iter().all(|l| rows(&l.product) == rows(&last.product));
    rest.is_empty() && same && out.len() == rows(&last.product) * last.product.n
}

fn attention(a: &AttentionStep, reads: &[View], writes: &[View]) -> bool {
    let ([q, k, v, beside @ ..], [out, lse @ ..]) = (reads, writes) else { return false };
    let shaped = |view: &View, rows: usize, columns: usize| view.shape == [&a.batch[..], &[rows, columns]].concat();
    let Some((masks, beside)) = beside.split_at_checked(beside.len().wrapping_sub(a.beside)) else { return false };
    let second = lse.len() == usize::from(a.lse) && lse.iter().all(|l| shaped(l, a.queries, 1));
    shaped(q, a.queries, a.head)
        && shaped(k, a.keys, a.head)
        && shaped(v, a.keys, a.value)
        && shaped(out, a.queries, a.value)
        && second
        && masks.iter().all(|view| shaped(view, a.queries, a.keys))
        && beside.iter().all(|view| shaped(view, a.queries, a.value))
}

fn attention_grad(a: &AttentionGradStep, reads: &[View], writes: &[View]) -> bool {
    let ([q, k, v, dy, beside @ ..], [dq, dk, dv]) = (reads, writes) else { return false };
    let shaped = |view: &View, rows: usize, columns: usize| view.shape == [&a.batch[..], &[rows, columns]].concat();
    [q, dq].into_iter().all(|x| shaped(x, a.queries, a.head))
        && [k, dk].into_iter().all(|x| shaped(x, a.keys, a.head))
        && [v, dv].into_iter().all(|x| shaped(x, a.keys, a.value))
        && shaped(dy, a.queries, a.value)
        && beside.iter().all(|view| shaped(view, a.queries, a.keys))
}

fn gemm(g: &GemmStep, reads: &[View], writes: &[View]) -> bool {
    let [_, _, beside @ ..] = reads else { return false };
    factors(g, reads, &writes[0]) && writes.len() == 1 && beside.iter().all(|v| v.shape == writes[0].shape)
}

fn conv(c: &ConvStep, reads: &[View], writes: &[View]) -> bool {
    let ([x, w, beside @ ..], [out]) = (reads, writes) else { return false };
    let rank = c.windows.len() + 2;
    let channels = |v: &View| if c.channels_last { v.shape.last() } else { v.shape.get(1) }.copied();
    [x, w, out].iter().all(|v| v.shape.len() == rank)
        && x.shape[0] == out.shape[0]
        && channels(x) == w.shape[1].checked_mul(c.groups)
        && channels(out) == Some(w.shape[0])
        && beside.iter().all(|v| v.shape == out.shape)
}

fn pointwise(p: &PointwiseStep, reads: &[View], writes: &[View]) -> bool {
    let len: usize = p.shape.iter().product();
    let (given, acc) = (p.kernel.inputs.len(), usize::from(p.kernel.acc.is_some()));
    let inputs = p.kernel.inputs.iter().map(|i| i.dtype).chain(p.kernel.acc);
    reads.len() == given + acc
        && p.strides.len() == reads.len()
        && p.strides.iter().all(|s| s.len() == p.shape.len())
        && inputs.zip(reads).all(|(dtype, v)| dtype == v.dtype)
        && reads.iter().chain(writes).all(|v| v.len() == len)
        && p.kernel.outputs.len() == writes.len()
        && p.kernel.outputs.iter().zip(writes).all(|(dtype, v)| *dtype == v.dtype)
}

/// A pick has one index, and its table is read with strides.
fn picks(pick: &Pick, part: &HorizontalPart, reads: &[View]) -> bool {
    let strided = |o: &Operand| o.access == Access::Strided;
    let table = part.step.kernel.inputs.get(pick.table).is_some_and(strided) && pick.table < reads.len();
    table && pick.index.roots.len() == 1
}

/// Each part fits the next reads and writes.
fn horizontal(h: &HorizontalStep, reads: &[View], writes: &[View]) -> bool {
    let (mut reads, mut writes) = (reads, writes);
    let fits = |p: &HorizontalPart| {
        let own = reads.split_at_checked(p.step.strides.len()).zip(writes.split_at_checked(p.stored.len()));
        let Some(((own_reads, other_reads), (own_writes, other_writes))) = own else { return false };
        (reads, writes) = (other_reads, other_writes);
        let strided = |strides: &[Vec<isize>]| strides.iter().all(|s| s.len() == p.step.shape.len());
        let simple = |o: &Operand| matches!(o.access, Access::Full | Access::Splat | Access::Strided);
        strided(&p.stored)
            && p.picks.iter().all(|pick| picks(pick, p, own_reads))
            && p.step.kernel.acc.is_none()
            && p.step.kernel.inputs.iter().all(simple)
            && pointwise(&p.step, own_reads, own_writes)
    };
    h.parts.iter().all(fits) && reads.is_empty() && writes.is_empty()
}

/// Each part fits the next reads and writes.
fn rows(parts: &[RowwiseStep], reads: &[View], writes: &[View]) -> bool {
    let (mut reads, mut writes) = (reads, writes);
    let fits = |r: &RowwiseStep| {
        let own = reads.split_at_checked(r.kernel.inputs.len()).zip(writes.split_at_checked(r.kernel.outputs.len()));
        let Some(((own_reads, other_reads), (own_writes, other_writes))) = own else { return false };
        (reads, writes) = (other_reads, other_writes);
        rowwise(r, own_reads, own_writes)
    };
    parts.iter().all(fits) && reads.is_empty() && writes.is_empty()
}

fn rowwise(r: &RowwiseStep, reads: &[View], writes: &[View]) -> bool {
    let inputs = &r.kernel.inputs;
    let made = r.kernel.outputs.iter().map(|o| o.0).chain(r.kernel.sums.iter().map(|s| s.0));
    let layout = &r.layout;
    inputs.len() == reads.len()
        && made.clone().count() + usize::from(r.kernel.sum_type().is_some()) == writes.len()
        && inputs.iter().zip(reads).all(|((dtype, _), v)| *dtype == v.dtype)
        && made.clone().zip(writes).all(|(dtype, v)| dtype == v.dtype)
        && layout.strides.len() == reads.len() + made.clone().count()
        && layout.strides.iter().all(|s| s.len() == layout.sizes.len())
        && (layout.rows(), layout.n()) == (r.rows, r.n)
}

/// Checks actions that move or reduce elements.
fn moves(action: &Action, reads: &[View], out: &View) -> bool {
    let counts = match action {
        Action::Concat(_) => 1..=usize::MAX,
        Action::Pad(_) | Action::Gather(_) | Action::GatherElements(_) | Action::GatherNd(_) => 2..=2,
        Action::Scatter(_) => 3..=3,
        _ => 1..=1,
    };
    let Some(x) = reads.first().filter(|_| counts.contains(&reads.len())) else { return false };
    let keeps_type = !matches!(action, Action::Argsort(..) | Action::Argmax(..));
    if keeps_type && x.dtype != out.dtype {
        return false;
    }
    // Sizes along all other axes are equal.
    let beside = |a: &View, b: &View, axis: usize| {
        a.shape.len() == b.shape.len()
            && axis < a.shape.len()
            && (0..a.shape.len()).all(|i| i == axis || a.shape[i] == b.shape[i])
    };
    match action {
        Action::Copy => x.shape == out.shape,
        Action::Concat(axis) => {
            reads.iter().all(|v| v.dtype == out.dtype && beside(v, out, *axis))
                && reads.iter().map(|v| v.shape[*axis]).sum::<usize>() == out.shape[*axis]
        }
        Action::Unfold(u) => {
            let axes = u.windows.len();
            if [x.shape.len(), out.shape.len()] != [2 + axes, 2 + 2 * axes] {
                return false;
            }
            let [_, places, _] = u.axes();
            let [from, to] = u.channels([x.shape.len(), out.shape.len()]);
            let sizes: Vec<usize> = u.windows.iter().map(|w| w.size).collect();
            let alike = x.shape[0] == out.shape[0] && x.shape[from] == out.shape[to];
            x.is_contiguous() && alike && out.shape[places] == sizes
        }
        Action::Pool(p) => {
            let ends = |v: &View| [v.shape.first().copied(), v.shape.last().copied()];
            [x.shape.len(), out.shape.len(), p.windows.len()] == [4, 4, 2]
                && x.is_contiguous()
                && ends(x) == ends(out)
                && !out.shape.contains(&0)
        }
        Action::Pad(before) => {
            before.len() == out.shape.len() && x.shape.len() == out.shape.len() && reads[1].len() == 1
        }
        Action::Gather(axis) => {
            *axis < x.shape.len() && out.shape == [&x.shape[..*axis], &reads[1].shape, &x.shape[*axis + 1..]].concat()
        }
        Action::GatherElements(_) => reads[1].shape == out.shape,
        Action::Scatter(_) | Action::Cumsum(_) => x.shape == out.shape,
        Action::Argsort(axis, _) => x.shape == out.shape && *axis < x.shape.len(),
        Action::Reduce(_, axes) => {
            let kept = (0..x.shape.len()).filter(|a| !axes.contains(a)).map(|a| x.shape[a]);
            axes.iter().all(|a| *a < x.shape.len()) && kept.product::<usize>() == out.len()
        }
        Action::Argmax(axis, _) => {
            let kept = (0..x.shape.len()).filter(|a| a != axis).map(|a| x.shape[a]);
            *axis < x.shape.len() && kept.product::<usize>() == out.len()
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
    use hypatia_dsl::dtype::DType;

    use super::*;
    use crate::Options;
    use crate::testing::planned;
    use hypatia_graph::Graph;
    use hypatia_target::device::Device;
    use hypatia_testing::{list, program, ty};

    /// Two products, sums of their elements, and a pointwise chain that works in place.
    fn sound() -> Plan {
        let mut g = Graph::new(program());
        let x = g.input("x", ty(DType::F32, &[8, 16]));
        let w = g.input("w", ty(DType::F32, &[16, 16]));
        let a = g.builtin(BuiltinOp::Matmul, &[x, w], vec![]).unwrap()[0];
        let b = g.builtin(BuiltinOp::Matmul, &[a, w], vec![]).unwrap()[0];
        let c = g.builtin_scalar(BuiltinScalar::Exp, &[b]).unwrap();
        let d = g.builtin(BuiltinOp::Transpose, &[c], vec![list(&[1, 0])]).unwrap()[0];
        let e = g.builtin(BuiltinOp::Concat, &[d, d], vec![0.into()]).unwrap()[0];
        g.output("y", e);
        g.output("a", a);
        planned(&g, &Options::new(Device::cpu())).unwrap()
    }

    fn refused(why: &str, plant: impl FnOnce(&mut Plan)) {
        let mut plan = sound();
        plant(&mut plan);
        let error = plan.validate().unwrap_err().to_string();
        assert!(error.contains(why), "{error}\n{plan}");
    }

    fn at(plan: &Plan, is: fn(&Action) -> bool) -> usize {
        plan.steps.iter().position(|s| is(&s.action)).unwrap()
    }

    #[test]
    fn every_planted_fault_is_found() {
        sound().validate().unwrap();
        let pointwise = |p: &Plan| at(p, |a| matches!(a, Action::Pointwise(_)));
        let concat = |p: &Plan| at(p, |a| matches!(a, Action::Concat(_)));
        assert!(sound().steps[pointwise(&sound())].in_place[0].is_some(), "nothing works in place");
        refused("is read before it is written", |p| p.steps.swap(0, 1));
        refused("leaves its buffer", |p| p.steps[1].reads[0].offset += 1);
        refused("is read as", |p| p.steps[0].reads[0].dtype = DType::F16);
        refused("a part of buffer", |p| p.steps[0].writes[0].shape[0] -= 1);
        refused("an input or a constant is written", |p| p.steps[0].writes[0] = p.steps[0].reads[1].clone());
        refused("is written twice", |p| {
            let first = p.steps[0].clone();
            p.steps.insert(1, first);
        });
        refused("does not fit its action", |p| {
            let Action::Gemm(g) = &mut p.steps[0].action else { panic!() };
            g.k += 1;
        });
        refused("does not fit its action", |p| {
            let i = concat(p);
            p.steps[i].action = Action::Concat(1);
        });
        refused("overlaps", |p| {
            let (first, second) = (p.steps[0].writes[0].buffer.index(), p.steps[1].writes[0].buffer.index());
            p.buffers[second].storage = p.buffers[first].storage;
        });
        refused("overlaps", |p| {
            let i = pointwise(p);
            p.steps[i].in_place[0] = None;
        });
        refused("may not reuse the memory", |p| {
            let i = concat(p);
            p.steps[i].in_place[0] = Some(0);
        });
        refused("does not match", |p| {
            let buffer = p.steps[0].writes[0].buffer.index();
            p.buffers[buffer].storage = Storage::Arena(ALIGNMENT / 2);
        });
        refused("does not end inside the arena", |p| p.arena -= ALIGNMENT);
        refused("it is not contiguous", |p| {
            let view = &mut p.outputs[0].1;
            *view = view.transposed(&[1, 0]);
        });
        refused("does not say for each write", |p| p.steps[0].in_place.clear());
    }
}
