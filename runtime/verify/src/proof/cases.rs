//! The search for the cases of an index map.
//!
//! In: two tensors. Out: a tree of cases, as the comparison asks for them. Invariant: nothing here
//! decides; a tree that proves nothing is refused by the checker.

use hypatia_dsl::ir::Program;

use super::Proved;
use super::place::{Case, Need, Tensor, Tree, pair};
use super::search;

/// The limit of cases.
const MOST_CASES: usize = 64;

/// The cases in which both tensors can be compared.
pub(super) fn tree(program: &Program, tensors: &[Tensor], sides: [usize; 2], sense: Proved) -> Option<Tree> {
    Search { program, tensors, sides, sense, left: MOST_CASES }.tree(&Case::default())
}

struct Search<'a> {
    program: &'a Program,
    tensors: &'a [Tensor],
    sides: [usize; 2],
    sense: Proved,
    left: usize,
}

impl Search<'_> {
    fn tree(&mut self, case: &Case) -> Option<Tree> {
        self.left = self.left.checked_sub(1)?;
        match pair(self.program, self.tensors, self.sides, case) {
            Ok([left, right]) => Some(Tree::Equal(search::proof(&left, &right, self.sense))),
            Err(Need::Split(index, size)) => {
                let then = self.tree(&case.split(&index, &size))?;
                Some(Tree::Split(index, size, Box::new(then)))
            }
            Err(Need::Cut(index, at)) => {
                let [below, from] = case.cut(&index, &at);
                let both = [self.tree(&below)?, self.tree(&from)?];
                Some(Tree::Cut(index, at, Box::new(both)))
            }
            Err(Need::Unknown) => None,
        }
    }
}
