//! The pattern index: all left sides of a set of rules as one automaton, so that a class is tested
//! against all of them at once.
//!
//! In: left sides. Out: a number for each distinct pattern in them, with what a class must hold for
//! it. Parts that several rules share are one pattern. This is bottom-up tree pattern matching
//! (Hoffmann and O'Donnell, "Pattern Matching in Trees", 1982) over classes instead of trees.
//!
//! Invariant: where a pattern matches, its [`Shape`] holds; the converse is not true, as shapes
//! leave out names, types, attributes, repeated variables and the arity of a sum.

use hypatia_dsl::ir::{Head, NodePat, Pat, Program, ScalarBody};
use indexmap::IndexSet;
use rustc_hash::{FxBuildHasher, FxHashMap};
use smallvec::SmallVec;

use super::prepare::{Prepared, associative, is_term, terms, unnamed};
use super::{Discriminant, head_discriminant};
use crate::analysis::has_several_results;

/// The number of a pattern of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PatternId(u32);

impl PatternId {
    /// The pattern at a position.
    pub(super) fn at(position: usize) -> PatternId {
        PatternId(position as u32)
    }

    /// Its position among the patterns.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Patterns, in order.
pub(super) type Patterns = SmallVec<[PatternId; 4]>;

/// What a class must hold for a pattern to match there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Shape {
    /// This number, given by its bits, within this relative tolerance.
    Literal(u64, Option<u64>),
    /// A constant.
    Constant,
    /// A node of that head.
    Node(NodeShape),
    /// A sum (or product) of that head in which each of these patterns matches a term, at any
    /// depth.
    Sum(Discriminant, Patterns),
    /// One of these.
    OneOf(Patterns),
}

/// A node that a class must hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct NodeShape {
    pub head: Discriminant,
    /// Number of operands.
    pub operands: usize,
    /// It may have more.
    pub more: bool,
    /// Its two operands may stand in either order.
    pub commutes: bool,
    /// The operands that must match something, and what.
    pub restricted: SmallVec<[(u32, PatternId); 4]>,
}

/// All patterns of a set of rules. Operands have smaller numbers than what they are operands of.
#[derive(Debug, Default)]
pub struct PatternIndex {
    shapes: IndexSet<Shape, FxBuildHasher>,
    /// The patterns of a node or a sum of that head.
    of_head: FxHashMap<Discriminant, HeadPatterns>,
    /// The patterns that a class matches by its value: numbers and constants.
    of_value: Vec<PatternId>,
    /// For each pattern, the alternatives of which it is one.
    alternatives: Vec<Patterns>,
}

/// The patterns of one head. Only those whose key some operand matches need a look, so that time
/// does not grow with rules on other operands.
#[derive(Debug, Default)]
pub(super) struct HeadPatterns {
    /// The head is that of sums.
    pub is_sum: bool,
    /// Patterns whose operands may be anything.
    pub without_key: Vec<PatternId>,
    /// Patterns by their key: the operand with the greatest number, which few patterns share.
    with_key: FxHashMap<PatternId, Vec<PatternId>>,
    /// All keys, as bits.
    pub keys: Vec<u64>,
}

impl HeadPatterns {
    fn insert(&mut self, pattern: PatternId, key: Option<PatternId>) {
        let Some(key) = key else { return self.without_key.push(pattern) };
        self.with_key.entry(key).or_default().push(pattern);
        let word = key.index() / 64;
        if self.keys.len() <= word {
            self.keys.resize(word + 1, 0);
        }
        self.keys[word] |= 1 << (key.index() % 64);
    }

    pub fn with_key(&self, key: PatternId) -> &[PatternId] {
        self.with_key.get(&key).map_or(&[], Vec::as_slice)
    }
}

impl PatternIndex {
    /// Adds the left side of a rule, on tensors or on terms, and tells the rule the numbers of its
    /// roots.
    pub fn add_rule(&mut self, program: &Program, lhs: &[Pat], on_terms: bool, prepared: &mut Prepared) {
        let constant = std::mem::take(&mut prepared.constant);
        let roots = lhs.iter().map(|p| self.add(program, p, on_terms, &constant));
        prepared.roots = roots.collect();
        prepared.constant = constant;
    }

    /// The number of a pattern; `None` for one that matches anything. `constant` says by variable
    /// whether a guard wants a constant.
    fn add(&mut self, program: &Program, pat: &Pat, on_terms: bool, constant: &[bool]) -> Option<PatternId> {
        let shape = match unnamed(pat) {
            Pat::Lit { value, near } => Shape::Literal(value.to_bits(), near.map(f64::to_bits)),
            Pat::Var(v) if constant.get(v.index()) == Some(&true) => Shape::Constant,
            Pat::OneOf(choices) => {
                let choices: Option<Patterns> =
                    choices.iter().map(|p| self.add(program, p, on_terms, constant)).collect();
                Shape::OneOf(sorted(choices?))
            }
            Pat::Node(n) => self.application(program, n, on_terms, constant)?,
            _ => return None,
        };
        Some(self.insert(shape))
    }

    fn application(&mut self, program: &Program, n: &NodePat, on_terms: bool, constant: &[bool]) -> Option<Shape> {
        let head = head_discriminant(program, n.head, on_terms)?;
        if associative(program, n.head).is_some() && n.args.len() == 2 {
            let terms = terms(n);
            let terms = terms.into_iter().filter_map(|t| self.add(program, t, on_terms, constant)).collect();
            return Some(Shape::Sum(head, sorted(terms)));
        }
        let mut restricted = SmallVec::new();
        for (i, arg) in n.args.iter().enumerate() {
            let of = self.add(program, arg, is_term(program, n.head, i, on_terms), constant);
            restricted.extend(of.map(|of| (i as u32, of)));
        }
        let commutes = match n.head {
            Head::Scalar(s) if n.args.len() == 2 => {
                matches!(program.scalar(s).body, ScalarBody::Builtin(b) if b.commutes())
            }
            _ => false,
        };
        let own = NodeShape { head, operands: n.args.len(), more: n.rest.is_some(), commutes, restricted };
        match n.head {
            // The op itself is in the class of the operand.
            Head::Op(op) if has_several_results(program.op(op)) => {
                let op = self.insert(Shape::Node(NodeShape { head: Discriminant::Op(op), ..own }));
                let restricted = SmallVec::from_slice(&[(0, op)]);
                Some(Shape::Node(NodeShape { head, operands: 1, more: false, commutes: false, restricted }))
            }
            _ => Some(Shape::Node(own)),
        }
    }

    fn insert(&mut self, shape: Shape) -> PatternId {
        let (at, new) = self.shapes.insert_full(shape);
        let id = PatternId(at as u32);
        if !new {
            return id;
        }
        self.alternatives.push(Patterns::new());
        match &self.shapes[at] {
            Shape::Literal(..) | Shape::Constant => self.of_value.push(id),
            Shape::Node(n) => {
                let key = n.restricted.iter().map(|(_, p)| *p).max();
                self.of_head.entry(n.head).or_default().insert(id, key);
            }
            Shape::Sum(head, terms) => {
                let of_head = self.of_head.entry(*head).or_default();
                of_head.insert(id, terms.last().copied());
                of_head.is_sum = true;
            }
            Shape::OneOf(choices) => choices.iter().for_each(|c| self.alternatives[c.index()].push(id)),
        }
        id
    }

    /// Number of patterns.
    pub fn len(&self) -> usize {
        self.shapes.len()
    }

    /// True if no rule was added.
    pub fn is_empty(&self) -> bool {
        self.shapes.is_empty()
    }

    pub(super) fn shape(&self, pattern: PatternId) -> &Shape {
        &self.shapes[pattern.index()]
    }

    pub(super) fn of_head(&self, head: Discriminant) -> Option<&HeadPatterns> {
        self.of_head.get(&head)
    }

    pub(super) fn of_value(&self) -> &[PatternId] {
        &self.of_value
    }

    pub(super) fn alternatives(&self, pattern: PatternId) -> &[PatternId] {
        &self.alternatives[pattern.index()]
    }
}

fn sorted(mut patterns: Patterns) -> Patterns {
    patterns.sort_unstable();
    patterns.dedup();
    patterns
}
