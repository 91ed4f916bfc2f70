//! Prologues: factors of a product that are computed where they are read.
//!
//! In: pointwise work whose result only a product reads, with the layout of its operands. Out: a
//! [`Prologue`], which the description of that product holds. Invariant: an element of the factor
//! is one term over elements of the operands, rounded once to the type that is multiplied, as if it
//! had been stored.

use crate::builtin::BuiltinScalar;
use crate::dtype::DType;
use crate::ir::{Program, ScalarBody};
use crate::scalar::{Term, TermId, TermNode, prune};

use super::gemm_sm80::Factor;

/// The widest access, in bytes.
const WIDEST: usize = 16;
/// Bytes of a word.
const WORD: usize = 4;
/// Elements that a thread computes side by side where a factor is stored in shared memory: 16 bytes
/// of 16-bit numbers.
pub const UNIT: usize = 8;

/// How an operand lies along k and along the lines of a factor: the rows of the left one, the
/// columns of the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FactorAccess {
    /// An element for each place.
    Each,
    /// An element for each place along k, the same for all lines.
    Along,
    /// An element for each group of places along k and each line.
    Group,
    /// An element for each line.
    Line,
    /// One element.
    Splat,
}

/// An operand of a prologue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FactorInput {
    /// Element type in memory.
    pub dtype: DType,
    /// How it lies.
    pub access: FactorAccess,
    /// Bytes at which each of its runs of neighbours begins: a power of two, at most 16.
    pub unit: usize,
}

/// How a factor is computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Prologue {
    /// What the term's `In` leaves read.
    pub inputs: Vec<FactorInput>,
    /// Elements of k in a group; those of all of k if nothing is read by groups.
    pub group: usize,
    /// An element of the factor.
    pub term: Term,
}

/// How a thread walks a factor in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walked {
    /// True if k is the factor's dense axis.
    pub by_k: bool,
    /// Lines that the thread has.
    pub lines: usize,
    /// Elements of k side by side.
    pub neighbours: usize,
}

impl Walked {
    /// A unit of a factor that is stored in shared memory.
    pub fn unit(by_k: bool) -> Walked {
        let (lines, neighbours) = if by_k { (1, UNIT) } else { (UNIT, 1) };
        Walked { by_k, lines, neighbours }
    }
}

/// The accesses with which a thread reads an operand: how many, and the elements of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accesses {
    /// Accesses.
    pub count: usize,
    /// Elements of an access, side by side.
    pub elements: usize,
}

impl FactorInput {
    /// What a thread reads for a step. What is the same in each step is counted as well.
    pub fn accesses(&self, Walked { by_k, lines, neighbours }: Walked) -> Accesses {
        let (count, elements) = match (self.access, by_k) {
            (FactorAccess::Each, true) => (lines, neighbours),
            (FactorAccess::Each, false) => (neighbours, lines),
            (FactorAccess::Along, true) => (1, neighbours),
            (FactorAccess::Along, false) => (neighbours, 1),
            (FactorAccess::Group | FactorAccess::Line, true) => (lines, 1),
            (FactorAccess::Group | FactorAccess::Line, false) => (1, lines),
            (FactorAccess::Splat, _) => (1, 1),
        };
        Accesses { count, elements }
    }

    /// True if it is read once for all steps.
    pub fn is_kept(&self) -> bool {
        matches!(self.access, FactorAccess::Line | FactorAccess::Splat)
    }

    /// Bytes of what a unit reads of it, at least a word.
    pub fn unit_bytes(&self, by_k: bool) -> usize {
        let Accesses { count, elements } = self.accesses(Walked::unit(by_k));
        count * (elements * self.dtype.size()).max(WORD)
    }

    /// Words of an access of so many elements.
    pub fn words(&self, elements: usize) -> usize {
        (elements * self.dtype.size()).div_ceil(WORD)
    }
}

impl Prologue {
    /// Words that a thread holds for a step, and those that stay.
    pub fn words(&self, walked: Walked) -> [usize; 2] {
        let mut words = [0; 2];
        for input in &self.inputs {
            let Accesses { count, elements } = input.accesses(walked);
            words[usize::from(input.is_kept())] += count * input.words(elements);
        }
        words
    }

    /// Bytes of what a unit is computed from.
    pub fn unit_bytes(&self, by_k: bool) -> usize {
        self.inputs.iter().map(|i| i.unit_bytes(by_k)).sum()
    }

    /// Bytes that are read for each element of the factor.
    pub fn bytes(&self) -> usize {
        self.inputs.iter().filter(|i| i.access == FactorAccess::Each).map(|i| i.dtype.size()).sum()
    }

    /// Why it cannot be computed for factors of type `half`, if it cannot.
    pub fn refusal(&self, half: DType) -> Option<&'static str> {
        let known = |d: DType| d == half || matches!(d, DType::F32 | DType::I8 | DType::U8);
        match () {
            () if !self.inputs.iter().all(|i| known(i.dtype)) => {
                Some("its factor is computed from other types than that of the factors, f32 and 8-bit integers")
            }
            () if !self.inputs.iter().any(|i| i.access == FactorAccess::Each) => {
                Some("no operand of its factor has its size")
            }
            () => None,
        }
    }

    /// Whether groups are whole accesses.
    pub fn has_whole_groups(&self, neighbours: usize) -> bool {
        let by_groups = self.inputs.iter().any(|i| i.access == FactorAccess::Group);
        !by_groups || self.group.is_multiple_of(neighbours)
    }

    /// Whether each access begins where one of its width may.
    pub fn fits(&self, walked: Walked) -> bool {
        let wide = |i: &FactorInput| {
            let bytes = i.accesses(walked).elements * i.dtype.size();
            i.unit >= bytes.min(WIDEST) && bytes.is_power_of_two()
        };
        self.has_whole_groups(walked.neighbours) && self.inputs.iter().all(wide)
    }

    /// True if what has the factor's size consists of bytes that can be read 16 at a time along k.
    pub fn has_bytes(&self) -> bool {
        let bytes = |i: &FactorInput| i.access != FactorAccess::Each || (i.dtype.size() == 1 && i.unit >= WIDEST);
        self.inputs.iter().all(bytes)
    }

    /// Why it cannot be stored in shared memory as the factor of `factor`, whose sums have `depth`
    /// terms and which has that many lines, if it cannot.
    pub fn unit_refusal(&self, factor: Factor, depth: usize, lines: usize) -> Option<&'static str> {
        let dense = if factor.dense_k { depth } else { lines };
        match () {
            () if !dense.is_multiple_of(UNIT) => Some("its computed factor has rows that are no whole units"),
            () if !self.fits(Walked::unit(factor.dense_k)) => {
                Some("what its factor is computed from does not begin where an access of a unit may")
            }
            () => self.refusal(factor.dtype),
        }
    }

    /// Forgets the operands that the term does not read. The places of the others are returned.
    pub fn drop_unread(&mut self) -> Vec<usize> {
        let kept: Vec<usize> = self.read_by(&self.term).collect();
        self.inputs = kept.iter().map(|i| self.inputs[*i]).collect();
        for node in &mut self.term.nodes {
            if let TermNode::In { input, .. } = node {
                *input = kept.iter().position(|i| *i == *input as usize).unwrap_or_default() as u32;
            }
        }
        kept
    }

    /// Takes the part of the term that is the same along k out of it: a factor of the whole. The
    /// sums are multiplied by it instead of each element, and it is not rounded. The rest must be
    /// bytes: another number may leave the range of `half` where its product with the factor does
    /// not.
    pub fn take_line(&mut self, program: &Program, half: DType) -> Option<Term> {
        let term = &self.term;
        let root = match term.node(term.root()) {
            TermNode::Cast { to, arg } if *to == half => *arg,
            _ => term.root(),
        };
        let TermNode::Call { scalar, args } = term.node(root) else { return None };
        let multiplies = matches!(program.scalar(*scalar).body, ScalarBody::Builtin(BuiltinScalar::Mul));
        let along = |id: TermId| {
            let kept = |node: &TermNode| match node {
                TermNode::In { input, .. } => self.inputs.get(*input as usize).is_some_and(FactorInput::is_kept),
                _ => true,
            };
            let alone = prune(&Term { nodes: term.nodes.clone(), roots: vec![id] });
            !alone.nodes.iter().all(kept)
        };
        let (of_element, of_line) = match args.as_slice() {
            [a, b] if multiplies && along(*a) && !along(*b) => (*a, *b),
            [a, b] if multiplies && along(*b) && !along(*a) => (*b, *a),
            _ => return None,
        };
        let part = |root: TermId| prune(&Term { nodes: term.nodes.clone(), roots: vec![root] });
        let (element, line) = (part(of_element), part(of_line));
        self.is_bytes(program, &element, half).then(|| {
            self.term = element;
            line
        })
    }

    /// True for a byte, and for the sum or the difference of two.
    fn is_bytes(&self, program: &Program, term: &Term, half: DType) -> bool {
        let (term, numbers) = self.as_numbers(term, half);
        let adds = |s| matches!(s, ScalarBody::Builtin(BuiltinScalar::Add | BuiltinScalar::Sub));
        let known = |node: &TermNode| match node {
            TermNode::In { input, .. } => numbers.get(*input as usize).copied().unwrap_or_default(),
            TermNode::Call { scalar, .. } => adds(program.scalar(*scalar).body.clone()),
            _ => false,
        };
        let calls = term.nodes.iter().filter(|n| matches!(n, TermNode::Call { .. })).count();
        calls <= 1 && term.nodes.iter().all(known)
    }

    /// The operands that a term reads.
    pub fn read_by<'p>(&'p self, term: &'p Term) -> impl Iterator<Item = usize> + 'p {
        let reads = |i: u32| term.nodes.iter().any(|n| matches!(n, TermNode::In { input, .. } if *input == i));
        (0..self.inputs.len()).filter(move |i| reads(*i as u32))
    }

    /// One of the terms, in which 8-bit integers that are only converted to floating-point numbers
    /// are such numbers, and for each operand whether it is one. `half`, to which the result is
    /// rounded, holds all of these exactly, as every type does to which they may be converted.
    pub fn as_numbers(&self, term: &Term, half: DType) -> (Term, Vec<bool>) {
        let narrow =
            |i: u32| self.inputs.get(i as usize).is_some_and(|input| matches!(input.dtype, DType::I8 | DType::U8));
        let mut number: Vec<bool> = (0..self.inputs.len()).map(|i| narrow(i as u32)).collect();
        let input = |id: &TermId| match term.node(*id) {
            TermNode::In { input, .. } if narrow(*input) => Some(*input as usize),
            _ => None,
        };
        let converts = |node: &TermNode| matches!(node, TermNode::Cast { to, .. } if to.is_float());
        for node in term.nodes.iter().filter(|n| !converts(n)) {
            node.args().iter().filter_map(&input).for_each(|i| number[i] = false);
        }
        term.roots.iter().filter_map(&input).for_each(|i| number[i] = false);
        // A conversion of such an operand is the operand; one of the result, to its own type, is
        // the rounding that follows anyhow.
        let mut out = Term::empty();
        let mut places: Vec<TermId> = Vec::with_capacity(term.nodes.len());
        for (at, node) in term.nodes.iter().enumerate() {
            let is_root = term.roots.contains(&TermId(at as u32));
            let place = match node {
                TermNode::Cast { to, arg } if to.is_float() && input(arg).is_some_and(|i| number[i]) => {
                    places[arg.0 as usize]
                }
                TermNode::Cast { to, arg } if *to == half && is_root => places[arg.0 as usize],
                node => out.add(node.map_args(|id| places[id.0 as usize])),
            };
            places.push(place);
        }
        out.roots = term.roots.iter().map(|r| places[r.0 as usize]).collect();
        (prune(&out), number)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::ir::InView;

    fn reading(term: &mut Term, input: u32) -> TermId {
        term.add(TermNode::In { input, view: InView::Broadcast })
    }

    fn input(dtype: DType, access: FactorAccess) -> FactorInput {
        FactorInput { dtype, access, unit: 16 }
    }

    #[test]
    fn bytes_that_are_only_converted_are_numbers() {
        let mut term = Term::empty();
        let (q, s) = (reading(&mut term, 0), reading(&mut term, 1));
        let q = term.add(TermNode::Cast { to: DType::BF16, arg: q });
        let both = term.add(TermNode::Call { scalar: crate::ir::ScalarId(0), args: vec![q, s] });
        let both = term.add(TermNode::Cast { to: DType::BF16, arg: both });
        term.roots.push(both);
        let inputs = vec![input(DType::I8, FactorAccess::Each), input(DType::I8, FactorAccess::Line)];
        let prologue = Prologue { inputs, group: 64, term };
        let (term, numbers) = prologue.as_numbers(&prologue.term, DType::BF16);
        // The second operand is used as the integer that it is.
        assert_eq!(numbers, [true, false]);
        assert!(!term.nodes.iter().any(|n| matches!(n, TermNode::Cast { .. })), "{term:?}");
        // Rounding to another type than that of the factors stays.
        let (term, _) = prologue.as_numbers(&prologue.term, DType::F16);
        assert_eq!(term.nodes.iter().filter(|n| matches!(n, TermNode::Cast { .. })).count(), 1);
    }

    #[test]
    fn what_is_the_same_along_k_multiplies_the_sums() {
        let program = crate::scalar::testing::library();
        let mul = program.builtin_scalar(BuiltinScalar::Mul).unwrap();
        let of = |first: DType, second: FactorAccess| {
            let mut term = Term::empty();
            let (q, s) = (reading(&mut term, 0), reading(&mut term, 1));
            let q = term.add(TermNode::Cast { to: DType::F16, arg: q });
            let both = term.add(TermNode::Call { scalar: mul, args: vec![s, q] });
            let both = term.add(TermNode::Cast { to: DType::F16, arg: both });
            term.roots.push(both);
            let inputs = vec![input(first, FactorAccess::Each), input(DType::F16, second)];
            let mut prologue = Prologue { inputs, group: 64, term };
            let line = prologue.take_line(&program, DType::F16);
            (prologue, line)
        };
        let (scaled, line) = of(DType::I8, FactorAccess::Line);
        assert_eq!(scaled.read_by(&scaled.term).collect::<Vec<_>>(), [0]);
        assert_eq!(scaled.read_by(&line.unwrap()).collect::<Vec<_>>(), [1]);
        let mut without = scaled.clone();
        assert_eq!((without.drop_unread(), without.inputs), (vec![0], scaled.inputs[..1].to_vec()));
        assert!(of(DType::I8, FactorAccess::Splat).1.is_some());
        assert!(of(DType::I8, FactorAccess::Group).1.is_none());
        // 1e6 is beyond the range of f16, and 1e6 times 1e-3 is not.
        assert!(of(DType::F32, FactorAccess::Line).1.is_none());
    }

    #[test]
    fn accesses_follow_from_the_dense_axis() {
        let each = input(DType::I8, FactorAccess::Each);
        let walked = |by_k: bool, neighbours: usize| Walked { by_k, lines: 4, neighbours };
        assert_eq!(each.accesses(walked(true, 16)), Accesses { count: 4, elements: 16 });
        assert_eq!(each.accesses(walked(false, 8)), Accesses { count: 8, elements: 4 });
        let mut term = Term::empty();
        let q = reading(&mut term, 0);
        term.roots.push(q);
        let scale = input(DType::F32, FactorAccess::Group);
        let mut p = Prologue { inputs: vec![each, scale], group: 12, term };
        assert_eq!((p.words(walked(true, 8)), p.words(walked(false, 8))), ([8 + 4, 0], [8 + 4, 0]));
        assert!(!p.fits(walked(true, 8)) && p.refusal(DType::F16).is_none());
        p.group = 8;
        assert!(p.fits(walked(true, 8)) && !p.fits(walked(true, 16)));
        p.inputs[0].unit = 4;
        assert!(!p.fits(walked(true, 8)) && p.fits(walked(false, 8)) && !p.has_bytes());
        let factor = |dense_k| Factor { dtype: DType::F16, dense_k, unit: 16 };
        assert!(p.unit_refusal(factor(true), 64, 40).is_some() && p.unit_refusal(factor(false), 64, 40).is_some());
        p.inputs[0].unit = 8;
        assert!(p.unit_refusal(factor(true), 64, 41).is_none() && p.unit_refusal(factor(true), 60, 40).is_some());
        p.inputs[1].unit = 16;
        assert!(p.unit_refusal(factor(false), 63, 40).is_none() && p.unit_refusal(factor(false), 64, 41).is_some());
        p.inputs[0].dtype = DType::BF16;
        assert!(p.refusal(DType::F16).is_some());
    }
}
