//! Plans as text, one step a line, and as JSON.
//!
//! In: a plan, and its executor's notes on steps. Out: text for people, JSON for programs.
//! Invariant: steps are printed in the order in which they run.

use std::fmt;

use hypatia_dsl::kernel::{Along, PICKED, Reduced};
use hypatia_dsl::scalar::{Term, TermNode};
use serde_json::{Value, json};

use super::{
    Action, CallStep, Called, ChainLayer, FactorFrom, GemmStep, HorizontalPart, HorizontalStep, Plan, PrologueStep,
    RowwiseStep, Step, Storage, View,
};
use hypatia_graph::show_term;

/// The text of these terms, or their number of operations if it is long.
fn abridged(text: String, terms: &[&Term]) -> String {
    let calls = || terms.iter().flat_map(|t| &t.nodes).filter(|n| matches!(n, TermNode::Call { .. })).count();
    if text.len() > 200 { format!("{} operations", calls()) } else { text }
}

/// That a product has several results, if it does, and what it reduces.
fn several(g: &GemmStep) -> String {
    let count = g.term.roots.len();
    let over = |r: &Reduced| match r.along {
        Along::Rows => format!("{} over rows", r.kind.name()),
        Along::Columns => format!("{} over columns", r.kind.name()),
        Along::All => format!("{} over all", r.kind.name()),
    };
    let reduced: Vec<String> = g.reduced.iter().map(over).collect();
    match (count, reduced.as_slice()) {
        (..=1, _) => String::new(),
        (_, []) => format!(" with {count} results"),
        (_, all) => format!(" with {count} results, of which the last are {}", all.join(", ")),
    }
}

impl Plan {
    fn location(&self, view: &View) -> String {
        let name = match self.buffers[view.buffer.index()].storage {
            Storage::Input(i) => self.inputs[i].name.clone(),
            Storage::Constant(i) => format!("const{i}"),
            Storage::Arena(offset) => format!("b{}@{offset}", view.buffer.0),
        };
        let window = if view.is_contiguous() { "" } else { "~" };
        format!("{name}{window}: {}{:?}", view.dtype, view.shape)
    }

    fn term(&self, term: &Term, reads: &[View]) -> String {
        self.with_picks(term, reads, &[])
    }

    /// The same of a term that reads picks, which are spelled so.
    fn with_picks(&self, term: &Term, reads: &[View], picks: &[String]) -> String {
        let name = |i: u32| match i.checked_sub(PICKED) {
            Some(pick) => picks.get(pick as usize).map_or("?".to_string(), String::clone),
            None => reads.get(i as usize).map_or("?".to_string(), |v| format!("b{}", v.buffer.0)),
        };
        let mut parts: Vec<String> = Vec::new();
        for root in &term.roots {
            let one = Term { nodes: term.nodes.clone(), roots: vec![*root] };
            parts.push(show_term(&self.program, &one, &name));
        }
        parts.join(", ")
    }

    /// Products in turn; `reads` begin with the first left operand.
    fn chain(&self, layers: &[ChainLayer], reads: &[View]) -> String {
        let mut first = 1;
        let terms = layers.iter().map(|layer| {
            let own = reads.get(first + 1..first + layer.reads).unwrap_or_default();
            first += layer.reads;
            self.term(&layer.product.term, own)
        });
        let terms: Vec<String> = terms.collect();
        format!("{} products in turn: {}", layers.len(), terms.join("; "))
    }

    /// A product with what computes its factors; `reads` are those of the launch.
    fn prologue(&self, p: &PrologueStep, reads: &[View]) -> String {
        let mut rest = reads;
        let mut factors = Vec::new();
        for (factor, count) in p.factors.iter().zip(p.reads()) {
            let (own, others) = rest.split_at(count.min(rest.len()));
            factors.push(match factor {
                FactorFrom::Term(f) => self.term(&f.term, own),
                FactorFrom::Memory => own.first().map_or_else(String::new, |v| format!("b{}", v.buffer.0)),
                FactorFrom::Windows(_) => {
                    own.first().map_or_else(String::new, |v| format!("windows of b{}", v.buffer.0))
                }
            });
            rest = others;
        }
        let what = if p.is_pair() { "two products" } else { "gemm" };
        format!("{what}{} of {}, {}", several(&p.product), factors.join(" and "), self.term(&p.product.term, rest))
    }

    /// Pointwise work of several index spaces.
    fn horizontal(&self, h: &HorizontalStep, reads: &[View]) -> String {
        let mut rest = reads;
        let mut terms = Vec::new();
        for p in &h.parts {
            let (own, others) = rest.split_at(p.step.strides.len().min(rest.len()));
            terms.push(self.part(p, own));
            rest = others;
        }
        let terms = abridged(terms.join("; "), &h.parts.iter().map(|p| &p.step.kernel.term).collect::<Vec<_>>());
        match h.parts.len() {
            1 => terms,
            n => format!("{n} parts: {terms}"),
        }
    }

    /// A part that reads these, with picks as elements of their tables.
    fn part(&self, p: &HorizontalPart, reads: &[View]) -> String {
        let mut names: Vec<String> = Vec::new();
        for pick in &p.picks {
            let index = self.with_picks(&pick.index, reads, &names);
            let table = reads.get(pick.table).map_or("?".into(), |v| format!("b{}", v.buffer.0));
            names.push(format!("{table}[{index}]"));
        }
        self.with_picks(&p.step.kernel.term, reads, &names)
    }

    fn action(&self, step: &Step) -> String {
        let reads = step.reads.as_slice();
        match &step.action {
            Action::Gemm(g) if g.is_plain() => "gemm".to_string(),
            Action::Gemm(g) => format!("gemm, {}", self.term(&g.term, reads.get(2..).unwrap_or_default())),
            Action::Call(CallStep { called: Called::Rows(parts), .. }) => {
                let part = |r: &RowwiseStep| format!("{} ({} rows of {})", r.kernel.name, r.rows, r.n);
                format!("row-wise {}", parts.iter().map(part).collect::<Vec<_>>().join(", "))
            }
            Action::Call(e) if step.kernel.is_none() => {
                let fallback: Vec<String> = e.fallback.iter().map(|s| self.action(s)).collect();
                format!("gemm without copies (fallback: {})", fallback.join("; "))
            }
            Action::Call(e) => {
                let read = |first: usize| reads.get(first..e.reads).unwrap_or_default();
                let what = match &e.called {
                    Called::Attention(a) => {
                        let score = format!("attention, score {}", self.term(&a.term, read(3)));
                        match a.is_plain() {
                            true => score,
                            false => format!("{score}, then {}", self.term(&a.finish, read(e.reads - a.beside))),
                        }
                    }
                    Called::AttentionGrad(a) => {
                        format!("gradients of attention, weight {}", self.term(&a.weight, read(4)))
                    }
                    Called::Chain(layers) => self.chain(layers, reads),
                    Called::Rows(_) => "row-wise".to_string(),
                    Called::Prologue(p) => self.prologue(p, reads.get(..e.reads).unwrap_or_default()),
                    Called::Pair(g) => format!("two products{}, {}", several(g), self.term(&g.term, read(3))),
                    Called::Template(_) => {
                        let kernel = step.kernel.map(|k| self.program.kernels[k.index()].name.as_str());
                        format!("template {}", kernel.unwrap_or_default())
                    }
                    Called::Product(g) if g.is_plain() && e.writes == 1 => "gemm".into(),
                    Called::Product(g) if g.is_plain() => format!("gemm with {} results", e.writes),
                    Called::Product(g) | Called::Sum(g) => {
                        format!("gemm{}, {}", several(g), self.term(&g.term, read(2)))
                    }
                };
                format!("{what} (fallback: {} steps)", e.fallback.len())
            }
            Action::Conv(c) => {
                let what = if c.channels_last { "conv, channels last" } else { "conv" };
                let term = self.term(&c.term, reads.get(2..).unwrap_or_default());
                if c.is_plain() { what.to_string() } else { format!("{what}, {term}") }
            }
            Action::Pointwise(p) => {
                format!("pointwise {}", abridged(self.term(&p.kernel.term, reads), &[&p.kernel.term]))
            }
            Action::Horizontal(h) => self.horizontal(h, reads),
            Action::Rowwise(r) => format!("row-wise {} ({} rows of {})", r.kernel.name, r.rows, r.n),
            Action::Copy => "copy".to_string(),
            Action::Concat(axis) => format!("concat along {axis}"),
            Action::Pad(before) => format!("pad from {before:?}"),
            Action::Unfold(u) => {
                let sizes: Vec<usize> = u.windows.iter().map(|w| w.size).collect();
                format!("windows of {sizes:?}{}", if u.channels_last { ", channels last" } else { "" })
            }
            Action::Pool(p) => {
                let sizes: Vec<usize> = p.windows.iter().map(|w| w.size).collect();
                // Channels that come first are images of one channel.
                let last = step.reads.first().is_some_and(|v| v.shape.last() != Some(&1));
                format!("{} of windows of {sizes:?}{}", p.kind.name(), if last { ", channels last" } else { "" })
            }
            Action::Gather(axis) => format!("gather along {axis}"),
            Action::GatherElements(axis) => format!("gather elements along {axis}"),
            Action::GatherNd(batch) => format!("gather n-d, {batch} batch axes"),
            Action::Scatter(reduction) => format!("scatter, {}", reduction.name()),
            Action::Argsort(axis, _) => format!("argsort along {axis}"),
            Action::Reduce(kind, axes) => format!("{} over {axes:?}", kind.name()),
            Action::Cumsum(how) => format!("cumsum along {}", how.axis),
            Action::Argmax(axis, _) => format!("argmax along {axis}"),
        }
    }
}

impl Plan {
    /// The launches, one line each: what each computes and, of a copy, what for.
    pub fn launch_list(&self) -> Vec<String> {
        let line = |(i, step): (usize, &Step)| {
            let what = match &step.action {
                Action::Copy => self.copied(i, step),
                _ => self.action(step),
            };
            let kernel = step.kernel.map_or(String::new(), |k| format!(" by {}", self.program.kernels[k.index()].name));
            let name = if step.name.is_empty() { String::new() } else { format!("  # {}", step.name) };
            format!("{}. {what}{kernel}{name}", i + 1)
        };
        self.steps.iter().enumerate().map(line).collect()
    }

    /// A copy in words: of what, how, and for whom.
    fn copied(&self, at: usize, step: &Step) -> String {
        let ([from, ..], [to, ..]) = (step.reads.as_slice(), step.writes.as_slice()) else { return "copy".into() };
        let makes = |s: &Step, view: &View| s.writes.iter().any(|w| w.buffer == view.buffer);
        let of = match self.buffers[from.buffer.index()].storage {
            Storage::Input(i) => format!("the input {}", self.inputs[i].name),
            Storage::Constant(_) => "a constant".to_string(),
            Storage::Arena(_) => match self.steps[..at].iter().rposition(|s| makes(s, from)) {
                Some(maker) => format!("the result of launch {}", maker + 1),
                None => "a result".to_string(),
            },
        };
        let reader = self.steps.iter().skip(at + 1).position(|s| s.reads.iter().any(|r| r.buffer == to.buffer));
        let output = self.outputs.iter().find(|(_, view)| view.buffer == to.buffer);
        let target = match (reader, output) {
            (_, Some((name, _))) => format!(", for the output {name}"),
            (Some(after), None) => format!(", for launch {}", at + after + 2),
            (None, None) => String::new(),
        };
        format!("copy of {of}{}{target}", layout(from))
    }
}

/// Whether a view has more elements than the memory from its first to its last one.
fn overlaps(view: &View) -> bool {
    let span: usize = view.shape.iter().zip(&view.strides).map(|(n, s)| n.saturating_sub(1) * s.unsigned_abs()).sum();
    view.shape.iter().product::<usize>() > span + 1
}

/// How a view lies in memory, in words.
fn layout(view: &View) -> &'static str {
    let mut order: Vec<usize> = (0..view.shape.len()).filter(|a| view.shape[*a] != 1).collect();
    order.sort_by_key(|a| std::cmp::Reverse(view.strides[*a]));
    let mut dense = 1;
    let is_dense = order.iter().rev().all(|a| {
        let same = view.strides[*a] == dense;
        dense *= view.shape[*a] as isize;
        same
    });
    match () {
        () if view.is_contiguous() => "",
        () if is_dense => ", its axes in another order",
        () if order.iter().any(|a| view.strides[*a] == 0) => ", repeated along an axis",
        () if overlaps(view) => ", windows over it",
        () => ", a part of it",
    }
}

/// An executor's note on a step: the step's index and one word.
pub type Note = (usize, &'static str);

/// A plan with its executor's notes on steps.
pub struct Noted<'a> {
    plan: &'a Plan,
    notes: &'a [Note],
}

impl Plan {
    /// The plan as it is run: with its executor's notes on steps.
    pub fn noted<'a>(&'a self, notes: &'a [Note]) -> Noted<'a> {
        Noted { plan: self, notes }
    }

    /// The plan for programs: its steps in order, with their reads and writes, and its executor's
    /// notes.
    pub fn to_json(&self, notes: &[Note]) -> Value {
        let list = |views: &[View]| views.iter().map(|v| self.location(v)).collect::<Vec<_>>();
        let steps = self.steps.iter().enumerate().map(|(i, step)| {
            json!({
                "name": step.name,
                "action": self.action(step),
                "note": note(notes, i),
                "kernel": step.kernel.map(|k| &self.program.kernels[k.index()].name),
                "reads": list(&step.reads),
                "writes": list(&step.writes),
            })
        });
        let outputs = self.outputs.iter().map(|(name, view)| json!({"name": name, "at": self.location(view)}));
        json!({
            "device": self.device.name,
            "launches": self.launches(),
            "arena_bytes": self.arena,
            "steps": steps.collect::<Vec<_>>(),
            "outputs": outputs.collect::<Vec<_>>(),
        })
    }
}

/// The note on a step.
pub fn note(notes: &[Note], step: usize) -> Option<&'static str> {
    notes.iter().find(|(at, _)| *at == step).map(|(_, word)| *word)
}

impl fmt::Display for Noted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = self.plan;
        let device = &plan.device.name;
        writeln!(f, "plan for {device}: {} launches, {} bytes of arena", plan.launches(), plan.arena)?;
        for (i, step) in plan.steps.iter().enumerate() {
            let list = |views: &[View]| views.iter().map(|v| plan.location(v)).collect::<Vec<_>>().join(", ");
            let kernel = step.kernel.map_or(String::new(), |k| format!(" by {}", plan.program.kernels[k.index()].name));
            let note = note(self.notes, i).map_or(String::new(), |word| format!(", {word}"));
            writeln!(f, "{i:4} {}{kernel}{note}  # {}", plan.action(step), step.name)?;
            writeln!(f, "       {} -> {}", list(&step.reads), list(&step.writes))?;
        }
        for (name, view) in &plan.outputs {
            writeln!(f, "     output {name} = {}", plan.location(view))?;
        }
        Ok(())
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.noted(&[]).fmt(f)
    }
}
