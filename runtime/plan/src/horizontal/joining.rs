//! A part joined with what makes some of its reads.
//!
//! In: a part, and what a step makes that it reads. Out: one part. Invariant: a value is rounded as
//! it would be stored; the picks of what is made come before the part's own, which may read them.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::InView;
use hypatia_dsl::kernel::PICKED;
use hypatia_dsl::scalar::{Term, TermBuilder, TermId, TermNode};

use super::through::Through;
use super::{MOST_NODES, MOST_PICKS, MOST_READS, Part};
use crate::Pick;
use crate::view::View;

impl Part {
    /// The same with what `made` stores computed where it is read, rounded as it would be stored.
    pub(super) fn with(&self, made: &Part) -> Option<Part> {
        let place = |v: &View| made.writes.iter().position(|w| w.buffer == v.buffer);
        // A table is read where it is stored.
        if self.picks.iter().any(|p| place(&self.reads[p.table]).is_some()) {
            return None;
        }
        let mut joined = Joining { made, reads: Vec::new(), picks: Vec::new(), sources: Vec::new() };
        for view in &self.reads {
            let source = match place(view) {
                Some(place) => joined.made(view, place)?,
                None => Source::Read(joined.read(view.clone())),
            };
            joined.sources.push(source);
        }
        let first = joined.picks.len();
        for pick in &self.picks {
            let Source::Read(table) = joined.sources[pick.table] else { return None };
            let index = joined.term(&pick.index, first);
            joined.picks.push(Pick { index, table, ..pick.clone() });
        }
        let term = joined.term(&self.term, first);
        let Joining { reads, picks, .. } = joined;
        let nodes = term.nodes.len() + picks.iter().map(|p| p.index.nodes.len()).sum::<usize>();
        let fits = reads.len() <= MOST_READS && nodes <= MOST_NODES && picks.len() <= MOST_PICKS;
        fits.then(|| Part { term, reads, writes: self.writes.clone(), picks })
    }
}

/// What a read of a part becomes.
enum Source {
    /// This read.
    Read(usize),
    /// That result of what is made, of these reads and of the picks from `first` on; cast to the
    /// type that it would be stored in.
    Made { place: usize, reads: Vec<usize>, first: usize },
}

/// A part that is joined with what makes some of its reads.
struct Joining<'m> {
    made: &'m Part,
    reads: Vec<View>,
    picks: Vec<Pick>,
    /// What each read of the part becomes.
    sources: Vec<Source>,
}

impl Joining<'_> {
    fn read(&mut self, view: View) -> usize {
        self.reads.iter().position(|v| *v == view).unwrap_or_else(|| {
            self.reads.push(view);
            self.reads.len() - 1
        })
    }

    /// A view of a result of what is made.
    fn made(&mut self, view: &View, place: usize) -> Option<Source> {
        let made = self.made;
        let through = Through::of(view, &made.writes[place])?;
        let own: Vec<View> = made.reads.iter().map(|v| through.seen(v)).collect::<Option<_>>()?;
        let reads: Vec<usize> = own.into_iter().map(|v| self.read(v)).collect();
        let first = self.picks.len();
        for pick in &made.picks {
            let mut terms = TermBuilder::new();
            let roots = replaced(&mut terms, &pick.index, first, &|terms, at| input_of(terms, reads[at]));
            self.picks.push(Pick { index: terms.finish(roots), table: reads[pick.table], ..pick.clone() });
        }
        Some(Source::Made { place, reads, first })
    }

    /// A term of the part, whose picks are those from `first` on.
    fn term(&self, term: &Term, first: usize) -> Term {
        let mut terms = TermBuilder::new();
        let of = |terms: &mut TermBuilder, at: usize| match &self.sources[at] {
            Source::Read(at) => input_of(terms, *at),
            Source::Made { place, reads, first } => self.value(terms, *place, reads, *first),
        };
        let roots = replaced(&mut terms, term, first, &of);
        terms.finish(roots)
    }

    /// A result of what is made.
    fn value(&self, terms: &mut TermBuilder, place: usize, reads: &[usize], first: usize) -> TermId {
        let value = replaced(terms, &self.made.term, first, &|terms, at| input_of(terms, reads[at]))[place];
        let out = self.made.writes[place].dtype;
        // What has the type of the result in memory is not rounded, nor is a truth value.
        let table = |pick: u32| self.reads[self.picks[pick as usize].table].dtype;
        let exact = match terms.node(value) {
            TermNode::In { input, .. } => match input.checked_sub(PICKED) {
                Some(pick) => table(pick) == out,
                None => self.reads[*input as usize].dtype == out,
            },
            _ => out == DType::Bool,
        };
        if exact { value } else { terms.add(TermNode::Cast { to: out, arg: value }) }
    }
}

/// An element of an operand, or of a pick.
fn input_of(terms: &mut TermBuilder, input: usize) -> TermId {
    terms.add(TermNode::In { input: input as u32, view: InView::Broadcast })
}

/// The roots of a term in another one, where its picks are those from `first` on, and its other
/// inputs have these values.
fn replaced(
    terms: &mut TermBuilder,
    term: &Term,
    first: usize,
    value: &impl Fn(&mut TermBuilder, usize) -> TermId,
) -> Vec<TermId> {
    let mut moved: Vec<TermId> = Vec::with_capacity(term.nodes.len());
    for node in &term.nodes {
        let id = match node {
            TermNode::In { input, .. } => match input.checked_sub(PICKED) {
                Some(pick) => input_of(terms, PICKED as usize + first + pick as usize),
                None => value(terms, *input as usize),
            },
            node => terms.add(node.map_args(|a| moved[a.0 as usize])),
        };
        moved.push(id);
    }
    term.roots.iter().map(|root| moved[root.0 as usize]).collect()
}
