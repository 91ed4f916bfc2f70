//! Sets of patterns, which hold a few of very many.
//!
//! In: the numbers of patterns. Out: sets as the words of their bits that are not 0, and one
//! collector with all words. Invariant: time and memory of a set do not grow with the number of
//! patterns that are not in it.

use smallvec::SmallVec;

use super::pattern_index::PatternId;

/// A set of patterns: the words of its bits that are not 0, by their position, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PatternSet(SmallVec<[(u32, u64); 6]>);

fn word(pattern: PatternId) -> (usize, u64) {
    (pattern.index() / 64, 1 << (pattern.index() % 64))
}

/// The members of a word.
fn members((at, word): (usize, u64)) -> impl Iterator<Item = PatternId> {
    let mut rest = word;
    std::iter::from_fn(move || {
        let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
        rest &= rest - 1;
        Some(PatternId::at(64 * at + bit))
    })
}

impl PatternSet {
    pub(super) fn of(patterns: impl Iterator<Item = PatternId>) -> PatternSet {
        let mut set = PatternSet::default();
        patterns.for_each(|p| set.insert(p));
        set
    }

    pub(super) fn insert(&mut self, pattern: PatternId) {
        let (at, bit) = word(pattern);
        match self.0.binary_search_by_key(&at, |(i, _)| *i as usize) {
            Ok(found) => self.0[found].1 |= bit,
            Err(place) => self.0.insert(place, (at as u32, bit)),
        }
    }

    pub(super) fn has(&self, pattern: PatternId) -> bool {
        let (at, bit) = word(pattern);
        self.0.iter().find(|(i, _)| *i as usize >= at).is_some_and(|(i, w)| *i as usize == at && w & bit != 0)
    }

    /// The patterns that are in both.
    pub(super) fn both<'a>(&'a self, other: &'a PatternSet) -> impl Iterator<Item = PatternId> + use<'a> {
        let mut rest = &other.0[..];
        let words = self.0.iter().filter_map(move |(at, word)| {
            while let [(i, _), further @ ..] = rest
                && i < at
            {
                rest = further;
            }
            rest.first().filter(|(i, _)| i == at).map(|(_, other)| (*at as usize, word & other))
        });
        words.flat_map(members)
    }
}

/// A set that is being collected.
#[derive(Debug, Default)]
pub(super) struct Collector {
    words: Vec<u64>,
    /// The words that are not 0, as bits.
    used: Vec<u64>,
}

impl Collector {
    /// For patterns with numbers below that.
    pub(super) fn of_size(patterns: usize) -> Collector {
        let words = patterns.div_ceil(64);
        Collector { words: vec![0; words], used: vec![0; words.div_ceil(64)] }
    }

    pub(super) fn clear(&mut self) {
        for (i, used) in self.used.iter_mut().enumerate() {
            while *used != 0 {
                self.words[64 * i + used.trailing_zeros() as usize] = 0;
                *used &= *used - 1;
            }
        }
    }

    fn join_word(&mut self, at: usize, word: u64) {
        self.words[at] |= word;
        self.used[at / 64] |= 1 << (at % 64);
    }

    pub(super) fn join(&mut self, set: &PatternSet) {
        set.0.iter().for_each(|(at, word)| self.join_word(*at as usize, *word));
    }

    pub(super) fn insert(&mut self, pattern: PatternId) {
        let (at, bit) = word(pattern);
        self.join_word(at, bit);
    }

    pub(super) fn has(&self, pattern: PatternId) -> bool {
        let (at, bit) = word(pattern);
        self.words[at] & bit != 0
    }

    /// The words that are not 0, with their positions.
    fn used(&self) -> impl Iterator<Item = (usize, u64)> {
        let all = self.used.iter().enumerate().flat_map(|(i, used)| members((i, *used)));
        all.map(|at| (at.index(), self.words[at.index()]))
    }

    /// Its members among some patterns, given as bits.
    pub(super) fn among(&self, wanted: &[u64]) -> impl Iterator<Item = PatternId> {
        self.used().map_while(|(at, word)| Some((at, word & wanted.get(at)?))).flat_map(members)
    }

    /// Writes the collected patterns to a set of which it has all. Returns whether that grows.
    pub(super) fn extend(&self, known: &mut PatternSet) -> bool {
        let grows = !self.used().eq(known.0.iter().map(|(at, word)| (*at as usize, *word)));
        if grows {
            known.0.clear();
            known.0.extend(self.used().map(|(at, word)| (at as u32, word)));
        }
        grows
    }

    /// Adds the members of a set, and returns those that are new.
    pub(super) fn absorb(&mut self, set: &PatternSet, new: &mut Vec<PatternId>) {
        for (at, word) in set.0.iter().map(|(at, word)| (*at as usize, *word)) {
            new.extend(members((at, word & !self.words[at])));
            self.join_word(at, word);
        }
    }
}
