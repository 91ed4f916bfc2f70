//! The e-graph's nodes: tensors and scalar terms, as data instead of one Rust type for each op.
//!
//! In: graphs, and the right sides of rules. Out: nodes that `egg` hashes, sorts and merges. There
//! are two sorts of classes: tensors (and tuples of them, for ops with several results), and terms,
//! the epilogues of products. Invariant: a node's payload holds everything except its children.
//! Attributes are part of the payload, so two different attribute values can never become equal.
//! Constants compare by their bits.

use egg::{Id, Language};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{InView, OpId, ScalarId};
use smallvec::SmallVec;

macro_rules! table_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        pub struct $name(pub u32);
    };
}
table_id!(
    /// A type in the tables of a [`Context`](super::analysis::Context).
    TypeId
);
table_id!(
    /// A shape in the tables of a [`Context`](super::analysis::Context).
    ShapeId
);
impl ShapeId {
    /// Rank 0.
    pub const SCALAR: ShapeId = ShapeId(0);
    /// No shape: the operands do not broadcast.
    pub const NONE: ShapeId = ShapeId(u32::MAX);
}
table_id!(
    /// A list of attribute values in the tables of a [`Context`](super::analysis::Context).
    AttrsId
);
table_id!(
    /// An input or a constant that is not a splat, in the tables of a
    /// [`Context`](super::analysis::Context).
    LeafId
);

/// Everything in a node except its children.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Payload {
    /// An input, or a constant whose elements differ.
    Leaf(LeafId),
    /// A constant with equal elements: the bits of their value as f64.
    Splat(TypeId, u64),
    /// An absent optional operand.
    Absent,
    /// An op; its children are its operands in declaration order, including terms.
    Op(OpId, AttrsId),
    /// A scalar function on tensors.
    Scalar(ScalarId),
    /// One result of an op with several; its child is the op's node.
    Output(u32),
    /// The accumulator.
    Acc,
    /// Its child, a term, with the second accumulator in place of the first.
    Second,
    /// A tensor read inside a term; its child is the tensor.
    In(InView),
    /// A number inside a term, given by its bits.
    Lit(u64),
    /// A scalar function on terms.
    Call(ScalarId),
    /// A rounding or conversion inside a term.
    TermCast(DType),
}

/// The key by which classes are looked up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Discriminant {
    /// See [`Payload::Leaf`].
    Leaf,
    /// See [`Payload::Splat`].
    Splat,
    /// See [`Payload::Absent`].
    Absent,
    /// Any node of that op.
    Op(OpId),
    /// See [`Payload::Scalar`].
    Scalar(ScalarId),
    /// Any result of an op with several results.
    Output,
    /// See [`Payload::Acc`].
    Acc,
    /// See [`Payload::Second`].
    Second,
    /// Any view.
    In,
    /// Any number inside a term.
    Lit,
    /// See [`Payload::Call`].
    Call(ScalarId),
    /// Any rounding.
    TermCast,
}

impl Discriminant {
    /// Its index in a table of all discriminants of programs with this many ops and scalars.
    pub fn index(self, ops: usize, scalars: usize) -> usize {
        use Discriminant::*;
        match self {
            Leaf => 0,
            Splat => 1,
            Absent => 2,
            Output => 3,
            Acc => 4,
            In => 5,
            Lit => 6,
            TermCast => 7,
            Second => 8,
            Op(op) => 9 + op.index(),
            Scalar(s) => 9 + ops + s.index(),
            Call(s) => 9 + ops + scalars + s.index(),
        }
    }
}

/// A set of discriminants, some of which share a bit (a Bloom filter): membership may be a false
/// positive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LabelSet(u64);

impl LabelSet {
    /// Of values whose labels are not known.
    pub const ALL: LabelSet = LabelSet(u64::MAX);

    /// A set with one member.
    pub fn of(head: Discriminant) -> LabelSet {
        // Ops, scalars of tensors and scalars of terms are each numbered from 0. The offsets keep
        // the first of each, the builtins, on different bits.
        LabelSet(1 << (head.index(21, 18) % 64))
    }

    /// The union.
    pub fn with(self, other: LabelSet) -> LabelSet {
        LabelSet(self.0 | other.0)
    }

    /// False if the sets certainly have no member in common.
    pub fn meets(self, other: LabelSet) -> bool {
        self.0 & other.0 != 0
    }

    /// False if some member of the other set is certainly not in this one.
    pub fn include(self, other: LabelSet) -> bool {
        self.0 & other.0 == other.0
    }
}

impl FromIterator<Discriminant> for LabelSet {
    fn from_iter<I: IntoIterator<Item = Discriminant>>(heads: I) -> LabelSet {
        heads.into_iter().fold(LabelSet::default(), |all, head| all.with(LabelSet::of(head)))
    }
}

impl Payload {
    /// The key by which classes with such a node are looked up.
    pub fn discriminant(self) -> Discriminant {
        match self {
            Payload::Leaf(_) => Discriminant::Leaf,
            Payload::Splat(..) => Discriminant::Splat,
            Payload::Absent => Discriminant::Absent,
            Payload::Op(op, _) => Discriminant::Op(op),
            Payload::Scalar(s) => Discriminant::Scalar(s),
            Payload::Output(_) => Discriminant::Output,
            Payload::Acc => Discriminant::Acc,
            Payload::Second => Discriminant::Second,
            Payload::In(_) => Discriminant::In,
            Payload::Lit(_) => Discriminant::Lit,
            Payload::Call(s) => Discriminant::Call(s),
            Payload::TermCast(_) => Discriminant::TermCast,
        }
    }
}

/// A node of the e-graph.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Node {
    /// Its payload.
    pub payload: Payload,
    /// Its operands.
    pub children: SmallVec<[Id; 4]>,
}

impl Node {
    /// A node.
    pub fn new(payload: Payload, children: impl IntoIterator<Item = Id>) -> Node {
        Node { payload, children: children.into_iter().collect() }
    }

    /// A node without children.
    pub fn leaf(payload: Payload) -> Node {
        Node { payload, children: SmallVec::new() }
    }
}

impl Language for Node {
    type Discriminant = Discriminant;

    fn discriminant(&self) -> Discriminant {
        self.payload.discriminant()
    }

    fn matches(&self, other: &Node) -> bool {
        self.payload == other.payload && self.children.len() == other.children.len()
    }

    fn children(&self) -> &[Id] {
        &self.children
    }

    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.children
    }
}
