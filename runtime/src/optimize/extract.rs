//! Choosing one node a class: the cheapest graph, in which what is shared is paid once.
//!
//! In: a problem, classes with costed nodes and the roots that are wanted. Out: a choice. Apart from e-graphs, so that
//! it is compared with brute force on small random problems. Holds always: the choice is acyclic, gives every
//! root, and never costs more than a choice that it was given to start from.
//!
//! Finding the optimum is NP-hard. What is done here is what logic synthesis does for the same problem: a first
//! choice by tree cost, passes by area flow (a shared node's cost is split among those who use it), then
//! passes by exact area (what would a switch really save, counting references), then joint moves, which switch all
//! users of a node that is worth it only if they all use it. A topological order of the whole choice is kept, so
//! that a switch is known to be acyclic without a search of the graph.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// A node of a class.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// What it costs by itself.
    pub cost: u64,
    /// Classes that it needs, each once.
    pub children: Vec<usize>,
}

/// Classes, their nodes, and what is wanted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Problem {
    /// Nodes by class.
    pub classes: Vec<Vec<Candidate>>,
    /// Classes that must be given.
    pub roots: Vec<usize>,
}

/// A node for each class; classes that cannot be given have none.
pub type Choice = Vec<Option<usize>>;

/// Costs at or above this count as impossible.
const IMPOSSIBLE: u64 = u64::MAX / 4;

impl Problem {
    /// What a choice costs: the nodes that the roots need, each once. `None` if a root is not given or the choice is cyclic.
    pub fn cost(&self, choice: &Choice) -> Option<u64> {
        let order = self.order(choice)?;
        Some(order.iter().filter_map(|c| choice[*c].map(|n| self.classes[*c][n].cost)).fold(0, u64::saturating_add))
    }

    /// Classes that the roots need under a choice, children first. `None` if it is cyclic or not complete.
    pub fn order(&self, choice: &Choice) -> Option<Vec<usize>> {
        #[derive(Clone, Copy, PartialEq)]
        enum Mark {
            New,
            Open,
            Done,
        }
        let mut marks = vec![Mark::New; self.classes.len()];
        let mut order = Vec::new();
        let mut stack: Vec<(usize, usize)> = Vec::new();
        for root in &self.roots {
            if marks[*root] == Mark::New {
                marks[*root] = Mark::Open;
                stack.push((*root, 0));
            }
            while let Some((class, next)) = stack.last_mut() {
                let children = &self.classes[*class][choice[*class]?].children;
                match children.get(*next) {
                    Some(child) => {
                        *next += 1;
                        match marks[*child] {
                            Mark::Open => return None,
                            Mark::Done => {}
                            Mark::New => {
                                marks[*child] = Mark::Open;
                                stack.push((*child, 0));
                            }
                        }
                    }
                    None => {
                        marks[*class] = Mark::Done;
                        order.push(*class);
                        stack.pop();
                    }
                }
            }
        }
        Some(order)
    }
}

/// The best choice found; `None` if a root cannot be given. `start` is a choice to be no worse than.
pub fn extract(problem: &Problem, start: Option<&Choice>) -> Option<Choice> {
    let mut best: Option<(u64, Choice)> = None;
    let users = Users::of_problem(problem);
    let (first, order) = by_tree_cost(problem, &users);
    let mut consider = |choice: Choice| {
        if let Some(cost) = problem.cost(&choice)
            && best.as_ref().is_none_or(|(b, _)| cost < *b)
        {
            best = Some((cost, choice));
        }
    };
    if problem.roots.iter().any(|r| first[*r].is_none()) {
        return None;
    }
    let mut flow = Search::new(problem, &users, first.clone(), order.clone());
    flow.area_flow_passes();
    flow.improve();
    consider(flow.choice);
    let mut plain = Search::new(problem, &users, first, order);
    plain.improve();
    consider(plain.choice);
    // From the given choice too: exact moves only ever improve it.
    if let Some(start) = start
        && problem.cost(start).is_some()
        && let Some((choice, order)) = completed(problem, &users, start)
    {
        consider(start.clone());
        let mut given = Search::new(problem, &users, choice, order);
        given.improve();
        consider(given.choice);
    }
    best.map(|(_, c)| c)
}

/// A choice by exact moves from a good one alone: what a run needs between its stages. `None` if the given one is no
/// choice.
pub fn refine(problem: &Problem, start: &Choice) -> Option<Choice> {
    let users = Users::of_problem(problem);
    let (choice, order) = completed(problem, &users, start)?;
    let mut given = Search::new(problem, &users, choice, order);
    given.improve();
    Some(given.choice)
}

/// For every class the node of least tree cost, and the order in which the classes were settled.
fn by_tree_cost(problem: &Problem, users: &Users) -> (Choice, Vec<usize>) {
    settle(problem, users, vec![None; problem.classes.len()], Vec::new())
}

/// A choice for the needed classes, extended to all others by tree cost.
fn completed(problem: &Problem, users: &Users, start: &Choice) -> Option<(Choice, Vec<usize>)> {
    let order = problem.order(start)?;
    let mut choice = vec![None; problem.classes.len()];
    order.iter().for_each(|c| choice[*c] = start[*c]);
    let needed = order.len();
    let (choice, mut order) = settle(problem, users, choice, order);
    // What is not needed stands right behind the last that it needs: near to those that may come to use it.
    let mut place: Vec<(usize, usize)> = vec![(0, 0); problem.classes.len()];
    for (i, class) in order.iter().enumerate() {
        let below = || choice[*class].map(|n| &problem.classes[*class][n].children);
        place[*class] = match i < needed {
            true => (i, 0),
            false => (below().into_iter().flatten().map(|c| place[*c].0).max().unwrap_or(0), i),
        };
    }
    order.sort_unstable_by_key(|c| place[*c]);
    Some((choice, order))
}

/// Knuth's generalisation of Dijkstra's algorithm: classes are settled cheapest first, each by a node whose children
/// are settled already. Those in `order` are settled from the start.
fn settle(problem: &Problem, users: &Users, mut choice: Choice, mut order: Vec<usize>) -> (Choice, Vec<usize>) {
    let n = problem.classes.len();
    // Tree costs are exponential in depth: floats, whose bits order as they do while they are not negative.
    let key = f64::to_bits;
    // Of all nodes, those of a class together.
    let mut first: Vec<usize> = Vec::with_capacity(n);
    let mut missing: Vec<u32> = Vec::with_capacity(2 * n);
    let mut total: Vec<f64> = Vec::with_capacity(2 * n);
    let mut heap = BinaryHeap::new();
    for (c, nodes) in problem.classes.iter().enumerate() {
        first.push(missing.len());
        missing.extend(nodes.iter().map(|k| k.children.len() as u32));
        total.extend(nodes.iter().map(|k| k.cost as f64));
        for (i, node) in nodes.iter().enumerate() {
            if node.children.is_empty() && choice[c].is_none() {
                heap.push(Reverse((key(node.cost as f64), c, i)));
            }
        }
    }
    let mut settled: Vec<(usize, f64)> = order.iter().map(|c| (*c, 0.0)).collect();
    loop {
        while let Some((class, cost)) = settled.pop() {
            for (user, i) in users.of(class) {
                let (user, i) = (*user as usize, *i as usize);
                let at = first[user] + i;
                missing[at] -= 1;
                total[at] += cost;
                if missing[at] == 0 && choice[user].is_none() {
                    heap.push(Reverse((key(total[at]), user, i)));
                }
            }
        }
        let Some(Reverse((_, class, i))) = heap.pop() else { break };
        if choice[class].is_none() && problem.classes[class][i].cost < IMPOSSIBLE {
            let cost = total[first[class] + i];
            choice[class] = Some(i);
            order.push(class);
            settled.push((class, cost));
        }
    }
    (choice, order)
}

/// A choice that is being improved.
struct Search<'p> {
    problem: &'p Problem,
    choice: Choice,
    /// Position of each class in `order`; children stand before users, for all classes that have a choice.
    position: Vec<usize>,
    order: Vec<usize>,
    /// How many chosen, needed nodes (and roots) use a class.
    refs: Vec<u32>,
    users: &'p Users,
    /// The last walk that came by a class.
    marks: Vec<u32>,
    epoch: u32,
    /// Classes that walks may still come by: what bounds the time, whatever the problem.
    effort: usize,
}

/// For each class the classes that could use it, with the node by which they would.
struct Users {
    first: Vec<u32>,
    list: Vec<(u32, u32)>,
}

impl Users {
    fn of_problem(problem: &Problem) -> Users {
        let mut first = vec![0u32; problem.classes.len() + 1];
        let edges = || {
            let nodes = problem.classes.iter().enumerate();
            nodes.flat_map(|(c, nodes)| nodes.iter().enumerate().map(move |(i, n)| (c, i, n)))
        };
        for (_, _, node) in edges() {
            node.children.iter().for_each(|ch| first[ch + 1] += 1);
        }
        for i in 1..first.len() {
            first[i] += first[i - 1];
        }
        let mut next = first.clone();
        let mut list = vec![(0, 0); first.last().copied().unwrap_or(0) as usize];
        for (c, i, node) in edges() {
            for child in &node.children {
                list[next[*child] as usize] = (c as u32, i as u32);
                next[*child] += 1;
            }
        }
        Users { first, list }
    }

    fn of(&self, class: usize) -> &[(u32, u32)] {
        &self.list[self.first[class] as usize..self.first[class + 1] as usize]
    }
}

/// Passes at most of each kind; each stops earlier when it changes nothing.
const SWEEPS: usize = 12;
/// Classes that the walks of one search come by at most, and so many more for each class of the problem: some ten times
/// what deep models take.
const EFFORT: usize = 10_000_000;
const EFFORT_OF_CLASS: usize = 100;
/// Users of a class that a joint move considers at most.
const MAX_JOINT: usize = 64;

impl<'p> Search<'p> {
    fn new(problem: &'p Problem, users: &'p Users, choice: Choice, order: Vec<usize>) -> Search<'p> {
        let n = problem.classes.len();
        let mut position = vec![usize::MAX; n];
        order.iter().enumerate().for_each(|(i, c)| position[*c] = i);
        let mut search = Search {
            problem,
            choice,
            position,
            order,
            refs: vec![0; n],
            users,
            marks: vec![0; n],
            epoch: 0,
            effort: 0,
        };
        search.count();
        search.effort = EFFORT + EFFORT_OF_CLASS * n;
        search
    }

    fn count(&mut self) {
        self.refs.iter_mut().for_each(|r| *r = 0);
        for root in &self.problem.roots {
            self.reference(*root);
        }
    }

    fn chosen(&self, class: usize) -> Option<&'p Candidate> {
        self.choice[class].map(|i| &self.problem.classes[class][i])
    }

    /// Counts a step of a walk.
    fn spend(&mut self) {
        self.effort = self.effort.saturating_sub(1);
    }

    /// One more use of a class; what its coming to be needed costs.
    fn reference(&mut self, class: usize) -> u64 {
        let mut added = 0u64;
        let mut work = vec![class];
        while let Some(c) = work.pop() {
            self.spend();
            self.refs[c] += 1;
            if self.refs[c] == 1
                && let Some(node) = self.chosen(c)
            {
                added = added.saturating_add(node.cost);
                work.extend(&node.children);
            }
        }
        added
    }

    /// One use less; what its no longer being needed saves.
    fn dereference(&mut self, class: usize) -> u64 {
        let mut saved = 0u64;
        let mut work = vec![class];
        while let Some(c) = work.pop() {
            self.spend();
            self.refs[c] -= 1;
            if self.refs[c] == 0
                && let Some(node) = self.chosen(c)
            {
                saved = saved.saturating_add(node.cost);
                work.extend(&node.children);
            }
        }
        saved
    }

    /// Puts another node into a class, the new one referenced before the old is dereferenced. Returns by how much the
    /// whole becomes dearer. The node must have been made legal by `make_room`.
    fn switch(&mut self, class: usize, to: usize) -> i128 {
        let from = self.choice[class];
        if self.refs[class] == 0 {
            self.choice[class] = Some(to);
            return 0;
        }
        let new = &self.problem.classes[class][to];
        let mut delta = i128::from(new.cost);
        for child in &new.children {
            delta += i128::from(self.reference(*child));
        }
        if let Some(old) = from.map(|i| &self.problem.classes[class][i]) {
            delta -= i128::from(old.cost);
            for child in &old.children {
                delta -= i128::from(self.dereference(*child));
            }
        }
        self.choice[class] = Some(to);
        delta
    }

    /// Moves whatever the node needs before the class in the order (Pearce and Kelly): only the late needs and the users of
    /// the class among them change places. False, and nothing changed, if the class is itself needed for it.
    fn make_room(&mut self, class: usize, node: usize) -> bool {
        let at = self.position[class];
        let children = &self.problem.classes[class][node].children;
        if at == usize::MAX || children.iter().any(|c| self.choice[*c].is_none() || *c == class) {
            return false;
        }
        let Some(last) = children.iter().map(|c| self.position[*c]).filter(|p| *p > at).max() else { return true };
        self.epoch += 1;
        // All that the late children need and that stands behind the class.
        let mut needed: Vec<usize> = Vec::new();
        let mut work: Vec<usize> = children.iter().copied().filter(|c| self.position[*c] > at).collect();
        while let Some(c) = work.pop() {
            if c == class {
                return false;
            }
            if self.position[c] > at && self.mark(c) {
                needed.push(self.position[c]);
                work.extend(self.chosen(c).into_iter().flat_map(|n| n.children.iter().copied()));
            }
        }
        // The class, and all that needs it and stands before the last of them.
        let mut users: Vec<usize> = Vec::new();
        work.push(class);
        while let Some(c) = work.pop() {
            if !self.mark(c) {
                continue;
            }
            users.push(self.position[c]);
            for (user, node) in self.users.of(c) {
                let (user, node) = (*user as usize, *node as usize);
                if self.choice[user] == Some(node) && self.position[user] <= last {
                    work.push(user);
                }
            }
        }
        needed.sort_unstable();
        users.sort_unstable();
        let moved: Vec<usize> = needed.iter().chain(&users).map(|p| self.order[*p]).collect();
        let mut places = needed;
        places.append(&mut users);
        places.sort_unstable();
        for (place, c) in places.into_iter().zip(moved) {
            self.order[place] = c;
            self.position[c] = place;
        }
        true
    }

    /// Marks a class in the present walk; false if it was.
    fn mark(&mut self, class: usize) -> bool {
        self.spend();
        let new = self.marks[class] != self.epoch;
        self.marks[class] = self.epoch;
        new
    }

    /// Passes in which a child's cost is split among its estimated users.
    fn area_flow_passes(&mut self) {
        let n = self.problem.classes.len();
        let mut estimate: Vec<f64> = self.refs.iter().map(|r| f64::from((*r).max(1))).collect();
        for _ in 0..4 {
            let mut flow = vec![f64::INFINITY; n];
            let mut changed = false;
            for class in self.order.clone() {
                let nodes = &self.problem.classes[class];
                let value = |s: &Search<'_>, i: usize| {
                    nodes[i].children.iter().fold(nodes[i].cost as f64, |sum, c| {
                        // A class behind this one has no flow yet: it is not used in this pass.
                        let late = s.position[*c] >= s.position[class];
                        if late { f64::INFINITY } else { sum + flow[*c] / estimate[*c] }
                    })
                };
                let present = self.choice[class].map_or(f64::INFINITY, |i| value(self, i));
                let mut best = (present, self.choice[class]);
                for (i, node) in nodes.iter().enumerate() {
                    let v = value(self, i);
                    if v < best.0 && node.cost < IMPOSSIBLE {
                        best = (v, Some(i));
                    }
                }
                changed |= best.1 != self.choice[class];
                self.choice[class] = best.1;
                flow[class] = best.0;
            }
            self.count();
            for (e, r) in estimate.iter_mut().zip(&self.refs) {
                *e = (*e + 2.0 * f64::from((*r).max(1))) / 3.0;
            }
            if !changed {
                break;
            }
        }
    }

    /// Exact passes and joint moves until nothing gets better.
    fn improve(&mut self) {
        for _ in 0..SWEEPS {
            let exact = self.exact_pass();
            let joint = self.joint_moves();
            if !exact && !joint {
                break;
            }
        }
    }

    fn exact_pass(&mut self) -> bool {
        let mut any = false;
        for _ in 0..SWEEPS {
            let mut changed = false;
            for class in self.order.clone() {
                if self.effort > 0 && self.refs[class] > 0 && self.problem.classes[class].len() > 1 {
                    changed |= self.improve_class(class);
                }
            }
            any |= changed;
            if !changed {
                break;
            }
        }
        any
    }

    /// What the present node of a needed class costs, with all that nothing else needs; `limit` if it is that or more.
    fn worth(&mut self, class: usize, limit: u64) -> u64 {
        let Some(node) = self.chosen(class) else { return limit };
        let mut saved = node.cost;
        let mut dropped = Vec::new();
        let mut work: Vec<usize> = node.children.clone();
        while let Some(c) = work.pop() {
            if saved >= limit {
                break;
            }
            self.spend();
            self.refs[c] -= 1;
            dropped.push(c);
            if self.refs[c] == 0
                && let Some(node) = self.chosen(c)
            {
                saved = saved.saturating_add(node.cost);
                work.extend(&node.children);
            }
        }
        dropped.into_iter().for_each(|c| self.refs[c] += 1);
        saved.min(limit)
    }

    fn improve_class(&mut self, class: usize) -> bool {
        let nodes = &self.problem.classes[class];
        let possible = nodes.iter().map(|n| n.cost).filter(|c| *c < IMPOSSIBLE);
        let limit = possible.max().map_or(0, |c| c + 1);
        let mut improved = false;
        let mut present = self.worth(class, limit);
        for (to, node) in nodes.iter().enumerate() {
            // A node that costs more by itself than all that the present one needs alone cannot be better.
            if Some(to) == self.choice[class] || node.cost >= IMPOSSIBLE || node.cost >= present {
                continue;
            }
            let before = self.choice[class];
            if !self.make_room(class, to) {
                continue;
            }
            if self.switch(class, to) < 0 {
                improved = true;
                present = self.worth(class, limit);
            } else if let Some(from) = before {
                // The old node is legal still: its needs were not moved behind the class.
                self.make_room(class, from);
                self.switch(class, from);
            }
        }
        improved
    }

    /// For each class that several could use: switch them all to it, keep what is cheaper.
    fn joint_moves(&mut self) -> bool {
        let mut any = false;
        for shared in 0..self.problem.classes.len() {
            let users = self.users.of(shared);
            // Switching is worth a thought only if two that are needed do not use it yet.
            let idle = |(class, node): &&(u32, u32)| {
                self.refs[*class as usize] > 0 && self.choice[*class as usize] != Some(*node as usize)
            };
            let possible = self.effort > 0 && self.choice[shared].is_some();
            if possible && users.iter().filter(idle).nth(1).is_some() {
                any |= self.joint_move(shared);
            }
        }
        any
    }

    fn joint_move(&mut self, shared: usize) -> bool {
        let mut undo: Vec<(usize, usize)> = Vec::new();
        let mut delta = 0i128;
        let mut seen = BTreeSet::new();
        for (class, node) in self.users.of(shared).iter().take(MAX_JOINT) {
            let (class, node) = (*class as usize, *node as usize);
            let Some(from) = self.choice[class] else { continue };
            if self.refs[class] == 0 || from == node || !seen.insert(class) {
                continue;
            }
            let uses_it = self.problem.classes[class][from].children.contains(&shared);
            if uses_it || self.problem.classes[class][node].cost >= IMPOSSIBLE || !self.make_room(class, node) {
                continue;
            }
            delta += self.switch(class, node);
            undo.push((class, from));
        }
        // Users of the shared class may have made each other needless: drop what gained nothing, in reverse.
        if undo.len() >= 2 && delta < 0 {
            return true;
        }
        for (class, from) in undo.into_iter().rev() {
            if self.make_room(class, from) {
                self.switch(class, from);
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rand::{Rng, SeedableRng};

    fn node(cost: u64, children: &[usize]) -> Candidate {
        Candidate { cost, children: children.to_vec() }
    }

    /// The cheapest choice by trying all.
    fn brute_force(p: &Problem) -> Option<u64> {
        fn go(p: &Problem, todo: &mut Vec<usize>, choice: &mut Choice, cost: u64, best: &mut Option<u64>) {
            if best.is_some_and(|b| cost >= b) {
                return;
            }
            let Some(class) = todo.pop() else {
                if p.order(choice).is_some() {
                    *best = Some(cost);
                }
                return;
            };
            if choice[class].is_some() {
                go(p, todo, choice, cost, best);
            } else {
                for (i, n) in p.classes[class].iter().enumerate() {
                    choice[class] = Some(i);
                    let len = todo.len();
                    todo.extend(&n.children);
                    let saved = todo.clone();
                    go(p, todo, choice, cost + n.cost, best);
                    *todo = saved;
                    todo.truncate(len);
                }
                choice[class] = None;
            }
            todo.push(class);
        }
        let mut best = None;
        go(p, &mut p.roots.clone(), &mut vec![None; p.classes.len()], 0, &mut best);
        best
    }

    fn random(rng: &mut impl Rng) -> Problem {
        let n = rng.random_range(4..11);
        let classes = (0..n)
            .map(|c| {
                let mut nodes: Vec<Candidate> = (0..rng.random_range(1..4))
                    .map(|_| {
                        let mut children: Vec<usize> =
                            (0..rng.random_range(0..4)).map(|_| rng.random_range(0..n)).filter(|x| *x != c).collect();
                        children.sort();
                        children.dedup();
                        Candidate { cost: rng.random_range(1..30), children }
                    })
                    .collect();
                if c < 2 {
                    nodes.push(Candidate { cost: rng.random_range(1..60), children: vec![] });
                }
                nodes
            })
            .collect();
        let roots = (0..rng.random_range(1..4)).map(|_| rng.random_range(0..n)).collect::<BTreeSet<_>>();
        Problem { classes, roots: roots.into_iter().collect() }
    }

    #[test]
    fn is_close_to_brute_force() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
        let (mut solved, mut optimal, mut sum, mut worst) = (0, 0, 0.0, 0.0f64);
        while solved < 200 {
            let p = random(&mut rng);
            let Some(best) = brute_force(&p) else {
                assert!(extract(&p, None).is_none());
                continue;
            };
            let found = p.cost(&extract(&p, None).unwrap()).unwrap();
            assert!(found >= best);
            let gap = found as f64 / best as f64 - 1.0;
            solved += 1;
            optimal += usize::from(found == best);
            sum += gap;
            worst = worst.max(gap);
        }
        let mean = 100.0 * sum / solved as f64;
        println!(
            "extraction against brute force: {optimal} of {solved} optimal, mean gap {mean:.2} %, worst {:.1} %",
            100.0 * worst
        );
        assert!(optimal >= 190 && mean < 0.5 && worst < 0.25, "{optimal} optimal, mean gap {mean} %, worst {worst}");
    }

    #[test]
    fn never_worse_than_its_start() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(11);
        for _ in 0..300 {
            let p = random(&mut rng);
            let choice: Choice = p.classes.iter().map(|c| Some(rng.random_range(0..c.len()))).collect();
            let Some(cost) = p.cost(&choice) else { continue };
            let found = p.cost(&extract(&p, Some(&choice)).unwrap()).unwrap();
            assert!(found <= cost);
        }
    }

    #[test]
    fn pays_shared_work_once() {
        // Two outputs of one dear product: class 1 is shared; each user has an alternative that is cheaper alone.
        let p = Problem {
            classes: vec![
                vec![node(0, &[])],
                vec![node(100, &[0])],
                vec![node(1, &[1]), node(80, &[0])],
                vec![node(1, &[1]), node(80, &[0])],
                vec![node(1, &[1]), node(80, &[0])],
            ],
            roots: vec![2, 3, 4],
        };
        assert_eq!(p.cost(&extract(&p, None).unwrap()), Some(103));
    }

    #[test]
    fn deep_sharing_does_not_drown() {
        // A chain in which every step uses the last twice: tree cost doubles each time.
        let mut classes = vec![vec![node(5, &[])]];
        for i in 0..300 {
            classes.push(vec![node(3, &[i]), node(2, &[i]), node(4, &[i])]);
        }
        let p = Problem { roots: vec![300], classes };
        assert_eq!(p.cost(&extract(&p, None).unwrap()), Some(605));
    }
}
