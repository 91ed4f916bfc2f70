//! Post-dominators: which classes of the candidate may be inside pointwise work, namely those whose
//! uses all pass through one function above.
//!
//! In: the candidate's classes, children first, their use counts, and its scalar functions. Out: a
//! set of classes. It is the tree of post-dominators (Cooper, Harvey and Kennedy, "A simple, fast
//! dominance algorithm") restricted to functions. Each class of that tree also has a jump pointer
//! to a distant ancestor (Myers, "An applicative random-access stack"), so that the nearest common
//! ancestor of two classes is found in a logarithmic number of steps. Invariant: the work is
//! proportional to the number of uses times a logarithm, however long a chain is and however many
//! members of it read one tensor.

use egg::Id;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::language::Node;

/// The classes that may be inside pointwise work.
pub fn inner(order: &[Id], uses: &FxHashMap<Id, u32>, pointwise: &FxHashMap<Id, Node>) -> FxHashSet<Id> {
    Tree::of(order, uses, pointwise).above.into_keys().collect()
}

/// The ancestors of a class in the tree.
#[derive(Clone, Copy)]
struct Ancestors {
    /// The nearest function that all uses pass through.
    parent: Id,
    /// A more distant ancestor.
    jump: Id,
    /// Number of ancestors.
    depth: u32,
}

/// The tree of post-dominators. Classes without ancestors are its roots.
struct Tree {
    above: FxHashMap<Id, Ancestors>,
    /// Number of steps upwards so far.
    steps: usize,
}

impl Tree {
    fn of(order: &[Id], uses: &FxHashMap<Id, u32>, pointwise: &FxHashMap<Id, Node>) -> Tree {
        let mut consumers: FxHashMap<Id, SmallVec<[Id; 4]>> = FxHashMap::default();
        for class in order {
            let Some(node) = pointwise.get(class) else { continue };
            for child in &node.children {
                let of_child = consumers.entry(*child).or_default();
                // `x * x` reads `x` once.
                if of_child.last() != Some(class) {
                    of_child.push(*class);
                }
            }
        }
        let mut tree = Tree { above: FxHashMap::default(), steps: 0 };
        for class in order.iter().rev() {
            let all = consumers.get(class).filter(|all| uses.get(class) == Some(&(all.len() as u32)));
            let Some((first, others)) = all.and_then(|all| all.split_first()) else { continue };
            if let Some(top) = others.iter().try_fold(*first, |a, b| tree.common(a, *b)) {
                tree.put(*class, top);
            }
        }
        tree
    }

    fn depth(&self, class: Id) -> u32 {
        self.above.get(&class).map_or(0, |p| p.depth)
    }

    /// Adds a class below its parent.
    fn put(&mut self, class: Id, parent: Id) {
        let far = |class: Id| self.above.get(&class).map_or(class, |p| p.jump);
        // If two consecutive jumps are equally long, the new jump spans both.
        let (next, last) = (far(parent), far(far(parent)));
        let even = self.depth(parent) - self.depth(next) == self.depth(next) - self.depth(last);
        let above = Ancestors { parent, jump: if even { last } else { parent }, depth: self.depth(parent) + 1 };
        self.above.insert(class, above);
    }

    /// The nearest common ancestor, which may be one of the two.
    fn common(&mut self, mut a: Id, mut b: Id) -> Option<Id> {
        if self.depth(a) < self.depth(b) {
            std::mem::swap(&mut a, &mut b);
        }
        let level = self.depth(b);
        while self.depth(a) > level {
            let above = self.above.get(&a)?;
            a = if self.depth(above.jump) >= level { above.jump } else { above.parent };
            self.steps += 1;
        }
        while a != b {
            // A root has no ancestors: two different roots have none in common.
            let (at_a, at_b) = (self.above.get(&a)?, self.above.get(&b)?);
            (a, b) = if at_a.jump == at_b.jump { (at_a.parent, at_b.parent) } else { (at_a.jump, at_b.jump) };
            self.steps += 1;
        }
        Some(a)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::language::Payload;

    fn node(children: &[usize]) -> Node {
        let children = children.iter().map(|c| Id::from(*c)).collect();
        Node { payload: Payload::Absent, children }
    }

    /// A candidate of functions by class, children first, some of which are outputs too.
    fn candidate(functions: &[Vec<usize>], outputs: &[usize]) -> (Vec<Id>, FxHashMap<Id, u32>, FxHashMap<Id, Node>) {
        let mut uses: FxHashMap<Id, u32> = FxHashMap::default();
        let mut pointwise = FxHashMap::default();
        for (class, children) in functions.iter().enumerate().filter(|(_, c)| !c.is_empty()) {
            let distinct: FxHashSet<usize> = children.iter().copied().collect();
            distinct.iter().for_each(|c| *uses.entry(Id::from(*c)).or_insert(0) += 1);
            pointwise.insert(Id::from(class), node(children));
        }
        outputs.iter().for_each(|o| *uses.entry(Id::from(*o)).or_insert(0) += 1);
        ((0..functions.len()).map(Id::from).collect(), uses, pointwise)
    }

    /// True if removing some function disconnects the class from all outputs.
    fn by_removal(functions: &[Vec<usize>], outputs: &[usize], class: usize) -> bool {
        let reaches = |without: usize| {
            let mut seen = vec![false; functions.len()];
            seen[class] = true;
            for (i, children) in functions.iter().enumerate().skip(class + 1) {
                seen[i] = i != without && children.iter().any(|c| seen[*c]);
            }
            outputs.iter().any(|o| seen[*o])
        };
        (class + 1..functions.len()).any(|without| !reaches(without))
    }

    #[test]
    fn is_what_removal_of_single_functions_tells() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(3);
        let mut counts = [0; 2];
        for _ in 0..300 {
            let n = rng.random_range(3..14);
            let mut operand = |i: usize| rng.random_range(0..i);
            let functions: Vec<Vec<usize>> =
                (0..n).map(|i| if i < 2 { vec![] } else { vec![operand(i), operand(i)] }).collect();
            let unread = |i: &usize| functions.iter().all(|f| !f.contains(i));
            let outputs: Vec<usize> = (0..n).filter(|i| unread(i) || rng.random_range(0..6) == 0).collect();
            let (order, uses, pointwise) = candidate(&functions, &outputs);
            let found = inner(&order, &uses, &pointwise);
            for class in 0..n {
                let told = found.contains(&Id::from(class));
                assert_eq!(
                    told,
                    by_removal(&functions, &outputs, class),
                    "class {class} of {functions:?}, {outputs:?}"
                );
                counts[usize::from(told)] += 1;
            }
        }
        assert!(counts.iter().all(|n| *n > 100), "{counts:?}");
    }

    #[test]
    fn long_chains_over_one_tensor_take_linear_work() {
        let steps = |n: usize| {
            let chain = (0..n).map(|i| if i < 2 { vec![] } else { vec![i - 1, 0] });
            let (order, uses, pointwise) = candidate(&chain.collect::<Vec<_>>(), &[n - 1]);
            let tree = Tree::of(&order, &uses, &pointwise);
            assert_eq!(tree.above.len(), n - 1);
            tree.steps as f64
        };
        let (small, large) = (steps(2_000), steps(8_000));
        assert!(large < 4.6 * small, "{small} steps become {large}");
    }
}
