//! The extraction problem: classes, their nodes with costs, and the roots.
//!
//! In: nodes, class by class. Out: numbers in flat tables, since an optimisation builds one after
//! every ruleset. Independent of e-graphs, so that tests can compare extraction with brute force on
//! small random problems. Invariant: the children of a node are classes, without duplicates.

use std::cell::Cell;

/// A node of a class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its own cost, without children.
    pub cost: u64,
    /// The range of its children in the problem's table.
    first: u32,
    end: u32,
}

/// Costs at or above this count as impossible.
pub const IMPOSSIBLE: u64 = u64::MAX / 4;

/// The index of the chosen node in each class; `None` for classes that cannot be extracted.
pub type Choice = Vec<Option<u32>>;

/// Classes, their nodes, and the roots.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// Classes that must be extracted.
    pub roots: Vec<u32>,
    /// The first node of each class; the last entry is the end of the last class.
    first: Vec<u32>,
    nodes: Vec<Candidate>,
    children: Vec<u32>,
    /// Number of classes that the walks of extraction visited.
    walked: Cell<usize>,
}

impl Default for Problem {
    fn default() -> Problem {
        Problem { roots: Vec::new(), first: vec![0], nodes: Vec::new(), children: Vec::new(), walked: Cell::new(0) }
    }
}

impl Problem {
    /// An empty problem, with capacity for this many classes and nodes.
    pub fn with_capacity(classes: usize, nodes: usize) -> Problem {
        let mut first = Vec::with_capacity(classes + 1);
        first.push(0);
        let (nodes, children) = (Vec::with_capacity(nodes), Vec::with_capacity(2 * nodes));
        Problem { roots: Vec::new(), first, nodes, children, walked: Cell::new(0) }
    }

    /// Adds a node to the open class. Duplicate children are allowed.
    pub fn add_node(&mut self, cost: u64, children: impl IntoIterator<Item = u32>) {
        let first = self.children.len();
        self.children.extend(children);
        let own = &mut self.children[first..];
        own.sort_unstable();
        let mut kept = 0;
        for i in 0..own.len() {
            if i == 0 || own[i] != own[i - 1] {
                own[kept] = own[i];
                kept += 1;
            }
        }
        self.children.truncate(first + kept);
        self.nodes.push(Candidate { cost, first: first as u32, end: self.children.len() as u32 });
    }

    /// Closes the open class and opens the next.
    pub fn end_class(&mut self) {
        self.first.push(self.nodes.len() as u32);
    }

    /// Counts a step of a walk.
    pub fn walk(&self) {
        self.walked.set(self.walked.get() + 1);
    }

    /// Number of steps of walks so far.
    pub fn walked(&self) -> usize {
        self.walked.get()
    }

    /// Number of classes.
    pub fn len(&self) -> usize {
        self.first.len() - 1
    }

    /// Whether there is no class.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of nodes of all classes.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The range of a class's nodes among all nodes.
    pub fn range(&self, class: usize) -> std::ops::Range<usize> {
        self.first[class] as usize..self.first[class + 1] as usize
    }

    /// The nodes of a class.
    pub fn class(&self, class: usize) -> &[Candidate] {
        &self.nodes[self.range(class)]
    }

    /// The chosen node of a class.
    pub fn chosen(&self, choice: &Choice, class: usize) -> Option<&Candidate> {
        choice[class].map(|i| &self.class(class)[i as usize])
    }

    /// The distinct classes that a node needs.
    pub fn children(&self, node: &Candidate) -> &[u32] {
        &self.children[node.first as usize..node.end as usize]
    }

    /// Makes all other nodes of a class impossible.
    pub fn keep_only(&mut self, class: usize, node: usize) {
        let range = self.range(class);
        for (i, n) in self.nodes[range].iter_mut().enumerate() {
            if i != node {
                n.cost = IMPOSSIBLE;
            }
        }
    }

    /// The cost of a choice: the nodes that the roots need, each once. `None` if a root has no node
    /// or the choice is cyclic.
    pub fn cost(&self, choice: &Choice) -> Option<u64> {
        Some(self.cost_of(&self.order(choice)?, choice))
    }

    /// The cost of the chosen nodes of these classes.
    pub fn cost_of(&self, order: &[u32], choice: &Choice) -> u64 {
        let costs = order.iter().filter_map(|c| self.chosen(choice, *c as usize)).map(|n| n.cost);
        costs.fold(0, u64::saturating_add)
    }

    /// Classes that the roots need under a choice, children first. `None` if it is cyclic or
    /// incomplete.
    pub fn order(&self, choice: &Choice) -> Option<Vec<u32>> {
        #[derive(Clone, Copy, PartialEq)]
        enum Mark {
            New,
            Open,
            Done,
        }
        let mut marks = vec![Mark::New; self.len()];
        let mut order = Vec::with_capacity(self.len());
        // Open classes, each with the range of its node's remaining children.
        let mut stack: Vec<(u32, u32, u32)> = Vec::new();
        let open = |class: u32| self.chosen(choice, class as usize).map(|n| (class, n.first, n.end));
        for root in &self.roots {
            if marks[*root as usize] == Mark::New {
                marks[*root as usize] = Mark::Open;
                stack.push(open(*root)?);
            }
            while let Some((class, next, end)) = stack.last_mut() {
                if next == end {
                    marks[*class as usize] = Mark::Done;
                    order.push(*class);
                    stack.pop();
                    continue;
                }
                let child = self.children[*next as usize];
                *next += 1;
                match marks[child as usize] {
                    Mark::Open => return None,
                    Mark::Done => {}
                    Mark::New => {
                        marks[child as usize] = Mark::Open;
                        stack.push(open(child)?);
                    }
                }
            }
        }
        Some(order)
    }
}
