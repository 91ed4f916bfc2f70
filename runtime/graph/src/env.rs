//! What the variables of a rule, op or test stand for in a graph.
//!
//! In: a match, or the operands of an op. Out: the bindings that guards ask about and that
//! expressions are built from. Invariant: a variable of sort Tensor is in at most one of `tensors`
//! and `absent`.

use std::collections::{HashMap, HashSet};

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::VarId;
use hypatia_dsl::scalar::Term;
use hypatia_dsl::typing::Bindings;

use super::Value;

/// What the variables of a rule, op or test stand for.
#[derive(Clone, Debug, Default)]
pub struct Env {
    /// Tensors.
    pub tensors: HashMap<VarId, Value>,
    /// Absent optional operands.
    pub absent: HashSet<VarId>,
    /// Variadic operands.
    pub variadics: HashMap<VarId, Vec<Value>>,
    /// Epilogue terms.
    pub terms: HashMap<VarId, BoundTerm>,
    /// Attributes, sizes, shapes and dtypes.
    pub attrs: Bindings,
    /// The dtype of a number that stands alone: the dtype of the value it replaces.
    pub number: Option<DType>,
}

/// A term with the tensors that it reads.
#[derive(Clone, Debug)]
pub struct BoundTerm {
    /// The term.
    pub term: Term,
    /// Operand `i` of the term.
    pub reads: Vec<Value>,
}
