//! Extraction: chooses one node for each class, so that the whole graph costs least and a shared
//! value is paid for once.
//!
//! In: a problem (classes with costed nodes) and the roots. Out: a choice. Independent of e-graphs,
//! so that tests can compare it with brute force on small random problems. Invariant: the choice is
//! acyclic, gives every root, and never costs more than the choice it started from.
//!
//! Finding the optimum is NP-hard. The heuristic is that of logic synthesis: a first choice by tree
//! cost; passes by area flow (a shared node's cost is split among its users); passes by exact area
//! (what a switch really saves, by reference counts); then joint moves, which switch all users of a
//! node that pays off only if they all use it. A topological order of the whole choice is
//! maintained, so that a switch can be checked for cycles without a search of the graph.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::problem::{Candidate, Choice, IMPOSSIBLE, Problem};

/// The best choice found; `None` if a root cannot be extracted. The result is never worse than
/// `start`.
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
    if problem.roots.iter().any(|r| first[*r as usize].is_none()) {
        return None;
    }
    let mut flow = Search::new(problem, &users, first.clone(), order.clone());
    flow.area_flow_passes();
    flow.improve();
    consider(flow.choice);
    let mut plain = Search::new(problem, &users, first, order);
    plain.improve();
    consider(plain.choice);
    // Start from the given choice too: exact moves never make it worse.
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

/// Improves a good choice by exact moves only: enough between two rulesets. `None` if the
/// given choice is invalid.
pub fn refine(problem: &Problem, start: &Choice) -> Option<Choice> {
    let users = Users::of_problem(problem);
    let (choice, order) = completed(problem, &users, start)?;
    let mut given = Search::new(problem, &users, choice, order);
    given.improve();
    Some(given.choice)
}

/// For every class the node of least tree cost, and the order in which the classes were settled.
fn by_tree_cost(problem: &Problem, users: &Users) -> (Choice, Vec<u32>) {
    settle(problem, users, vec![None; problem.len()], Vec::new())
}

/// A choice for the needed classes, extended to all others by tree cost.
fn completed(problem: &Problem, users: &Users, start: &Choice) -> Option<(Choice, Vec<u32>)> {
    let order = problem.order(start)?;
    let mut choice = vec![None; problem.len()];
    order.iter().for_each(|c| choice[*c as usize] = start[*c as usize]);
    let needed = order.len();
    let (choice, order) = settle(problem, users, choice, order);
    // A class that is not needed is placed right after the last class that it needs: close to its
    // possible users.
    let mut place: Vec<u32> = vec![0; problem.len()];
    order[..needed].iter().zip(0..).for_each(|(class, i)| place[*class as usize] = i);
    let mut behind = vec![0u32; needed + 1];
    for class in &order[needed..] {
        let below = problem.chosen(&choice, *class as usize).map_or(&[][..], |n| problem.children(n));
        let last = below.iter().map(|c| place[*c as usize]).max().unwrap_or(0);
        place[*class as usize] = last;
        behind[last as usize] += 1;
    }
    // Sorted by place: each needed class, followed by the classes placed after it in the order in
    // which they were settled.
    let mut next: Vec<u32> = Vec::with_capacity(needed + 1);
    let mut at = 0;
    for (i, n) in behind.iter().enumerate() {
        next.push(at + u32::from(i < needed));
        at += n + u32::from(i < needed);
    }
    let mut sorted = vec![0; order.len()];
    for (i, class) in order.iter().enumerate() {
        let place = place[*class as usize] as usize;
        if i < needed {
            sorted[next[place] as usize - 1] = *class;
        } else {
            sorted[next[place] as usize] = *class;
            next[place] += 1;
        }
    }
    Some((choice, sorted))
}

/// Knuth's generalisation of Dijkstra's algorithm: settles classes cheapest first, each by a node
/// whose children are settled already. Classes in `order` are settled from the start.
fn settle(problem: &Problem, users: &Users, mut choice: Choice, mut order: Vec<u32>) -> (Choice, Vec<u32>) {
    // Tree costs are exponential in depth, so they are floats. The bits of non-negative floats sort
    // like the floats.
    let key = f64::to_bits;
    // Indexed by node; the nodes of a class are adjacent.
    let mut missing: Vec<u32> = Vec::with_capacity(problem.nodes());
    let mut total: Vec<f64> = Vec::with_capacity(problem.nodes());
    let mut heap = BinaryHeap::new();
    for (c, chosen) in choice.iter().enumerate() {
        for (i, node) in problem.class(c).iter().enumerate() {
            let children = problem.children(node).len();
            missing.push(children as u32);
            total.push(node.cost as f64);
            if children == 0 && chosen.is_none() {
                heap.push(Reverse((key(node.cost as f64), c as u32, i as u32)));
            }
        }
    }
    let mut settled: Vec<(u32, f64)> = order.iter().map(|c| (*c, 0.0)).collect();
    loop {
        while let Some((class, cost)) = settled.pop() {
            for (user, i) in users.of(class as usize) {
                if choice[*user as usize].is_some() {
                    continue;
                }
                let at = problem.range(*user as usize).start + *i as usize;
                missing[at] -= 1;
                total[at] += cost;
                if missing[at] == 0 {
                    heap.push(Reverse((key(total[at]), *user, *i)));
                }
            }
        }
        let Some(Reverse((_, class, i))) = heap.pop() else { break };
        let range = problem.range(class as usize);
        let at = range.start + i as usize;
        if choice[class as usize].is_none() && problem.class(class as usize)[i as usize].cost < IMPOSSIBLE {
            choice[class as usize] = Some(i);
            order.push(class);
            settled.push((class, total[at]));
        }
    }
    (choice, order)
}

/// A choice being improved.
struct Search<'p> {
    problem: &'p Problem,
    choice: Choice,
    /// Position of each class in `order`, [`NOWHERE`] without a choice; children precede users.
    position: Vec<u32>,
    order: Vec<u32>,
    /// How many chosen, needed nodes (and roots) use a class.
    refs: Vec<u32>,
    users: &'p Users,
    /// The last walk that visited the class.
    marks: Vec<u32>,
    /// Worklist of a walk. Reused, as most walks are short.
    work: Vec<u32>,
    epoch: u32,
    /// Number of classes that walks may still visit: bounds the time on any problem.
    effort: usize,
}

/// For each class, the classes that could use it, with the node that would.
struct Users {
    first: Vec<u32>,
    list: Vec<(u32, u32)>,
}

impl Users {
    fn of_problem(problem: &Problem) -> Users {
        let mut first = vec![0u32; problem.len() + 1];
        for class in 0..problem.len() {
            for node in problem.class(class) {
                problem.children(node).iter().for_each(|child| first[*child as usize + 1] += 1);
            }
        }
        for i in 1..first.len() {
            first[i] += first[i - 1];
        }
        let mut next = first.clone();
        let mut list = vec![(0, 0); first.last().copied().unwrap_or(0) as usize];
        for class in 0..problem.len() {
            for (i, node) in problem.class(class).iter().enumerate() {
                for child in problem.children(node) {
                    let next = &mut next[*child as usize];
                    list[*next as usize] = (class as u32, i as u32);
                    *next += 1;
                }
            }
        }
        Users { first, list }
    }

    fn of(&self, class: usize) -> &[(u32, u32)] {
        &self.list[self.first[class] as usize..self.first[class + 1] as usize]
    }
}

/// The position of a class without a choice.
const NOWHERE: u32 = u32::MAX;
/// Maximum number of passes of each kind; each kind stops earlier when a pass changes nothing.
const SWEEPS: usize = 12;
/// Maximum number of classes that the walks of one search visit: a constant plus a number for each
/// class of the problem. About ten times what deep models take.
const EFFORT: usize = 10_000_000;
const EFFORT_OF_CLASS: usize = 100;
/// Maximum number of users of a class that a joint move considers.
const MAX_JOINT: usize = 64;

impl<'p> Search<'p> {
    fn new(problem: &'p Problem, users: &'p Users, choice: Choice, order: Vec<u32>) -> Search<'p> {
        let n = problem.len();
        let mut position = vec![NOWHERE; n];
        order.iter().zip(0..).for_each(|(c, i)| position[*c as usize] = i);
        let mut search = Search {
            problem,
            choice,
            position,
            order,
            refs: vec![0; n],
            users,
            marks: vec![0; n],
            work: Vec::new(),
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

    fn chosen(&self, class: u32) -> Option<&'p Candidate> {
        self.problem.chosen(&self.choice, class as usize)
    }

    /// Counts a step of a walk.
    fn spend(&mut self) {
        self.problem.walk();
        self.effort = self.effort.saturating_sub(1);
    }

    /// Adds a use of a class. Returns the cost added if the class becomes needed.
    fn reference(&mut self, class: u32) -> u64 {
        let mut added = 0u64;
        self.work.push(class);
        while let Some(c) = self.work.pop() {
            self.spend();
            self.refs[c as usize] += 1;
            if self.refs[c as usize] == 1
                && let Some(node) = self.chosen(c)
            {
                added = added.saturating_add(node.cost);
                self.work.extend_from_slice(self.problem.children(node));
            }
        }
        added
    }

    /// Removes a use of a class. Returns the cost saved if the class is no longer needed.
    fn dereference(&mut self, class: u32) -> u64 {
        let mut saved = 0u64;
        self.work.push(class);
        while let Some(c) = self.work.pop() {
            self.spend();
            self.refs[c as usize] -= 1;
            if self.refs[c as usize] == 0
                && let Some(node) = self.chosen(c)
            {
                saved = saved.saturating_add(node.cost);
                self.work.extend_from_slice(self.problem.children(node));
            }
        }
        saved
    }

    /// Replaces the node of a class. References the new node before it dereferences the old one.
    /// Returns the change in total cost. `make_room` must have made the node legal.
    fn switch(&mut self, class: u32, to: u32) -> i128 {
        let from = self.chosen(class);
        if self.refs[class as usize] == 0 {
            self.choice[class as usize] = Some(to);
            return 0;
        }
        let new = &self.problem.class(class as usize)[to as usize];
        let mut delta = i128::from(new.cost);
        for child in self.problem.children(new) {
            delta += i128::from(self.reference(*child));
        }
        if let Some(old) = from {
            delta -= i128::from(old.cost);
            for child in self.problem.children(old) {
                delta -= i128::from(self.dereference(*child));
            }
        }
        self.choice[class as usize] = Some(to);
        delta
    }

    /// Moves the node's dependencies before the class in the order (Pearce and Kelly): only the
    /// late dependencies and the users of the class among them change places. Returns false and
    /// changes nothing if a dependency needs the class.
    fn make_room(&mut self, class: u32, node: u32) -> bool {
        let at = self.position[class as usize];
        let children = self.problem.children(&self.problem.class(class as usize)[node as usize]);
        if at == NOWHERE || children.iter().any(|c| self.choice[*c as usize].is_none() || *c == class) {
            return false;
        }
        let positions = children.iter().map(|c| self.position[*c as usize]);
        let Some(last) = positions.filter(|p| *p > at).max() else { return true };
        self.epoch += 1;
        // All dependencies of the late children that are after the class.
        let mut needed: Vec<u32> = Vec::new();
        let mut work: Vec<u32> = children.iter().copied().filter(|c| self.position[*c as usize] > at).collect();
        while let Some(c) = work.pop() {
            if c == class {
                return false;
            }
            if self.position[c as usize] > at && self.mark(c) {
                needed.push(self.position[c as usize]);
                work.extend(self.chosen(c).into_iter().flat_map(|n| self.problem.children(n)));
            }
        }
        // The class, and all its users before the last of them.
        let mut users: Vec<u32> = Vec::new();
        work.push(class);
        while let Some(c) = work.pop() {
            if !self.mark(c) {
                continue;
            }
            users.push(self.position[c as usize]);
            for (user, node) in self.users.of(c as usize) {
                if self.choice[*user as usize] == Some(*node) && self.position[*user as usize] <= last {
                    work.push(*user);
                }
            }
        }
        needed.sort_unstable();
        users.sort_unstable();
        let moved: Vec<u32> = needed.iter().chain(&users).map(|p| self.order[*p as usize]).collect();
        let mut places = needed;
        places.append(&mut users);
        places.sort_unstable();
        for (place, c) in places.into_iter().zip(moved) {
            self.order[place as usize] = c;
            self.position[c as usize] = place;
        }
        true
    }

    /// Marks a class in the present walk; false if it was marked.
    fn mark(&mut self, class: u32) -> bool {
        self.spend();
        let new = self.marks[class as usize] != self.epoch;
        self.marks[class as usize] = self.epoch;
        new
    }

    /// Area flow: passes in which a child's cost is split among its estimated users.
    fn area_flow_passes(&mut self) {
        let n = self.problem.len();
        let mut estimate: Vec<f64> = self.refs.iter().map(|r| f64::from((*r).max(1))).collect();
        for _ in 0..4 {
            let mut flow = vec![f64::INFINITY; n];
            let mut changed = false;
            for at in 0..self.order.len() {
                let class = self.order[at] as usize;
                let nodes = self.problem.class(class);
                let value = |s: &Search<'_>, node: &Candidate| {
                    s.problem.children(node).iter().fold(node.cost as f64, |sum, c| {
                        // A class after this one has no flow yet: it is not used in this pass.
                        let late = s.position[*c as usize] >= at as u32;
                        if late { f64::INFINITY } else { sum + flow[*c as usize] / estimate[*c as usize] }
                    })
                };
                let present = self.choice[class].map_or(f64::INFINITY, |i| value(self, &nodes[i as usize]));
                let mut best = (present, self.choice[class]);
                for (node, i) in nodes.iter().zip(0..) {
                    let v = value(self, node);
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

    /// Exact passes and joint moves until nothing improves.
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
        let mut order = Vec::new();
        for _ in 0..SWEEPS {
            let mut changed = false;
            order.clone_from(&self.order);
            for class in &order {
                let at = *class as usize;
                if self.effort > 0 && self.refs[at] > 0 && self.problem.class(at).len() > 1 {
                    changed |= self.improve_class(*class);
                }
            }
            any |= changed;
            if !changed {
                break;
            }
        }
        any
    }

    /// The exact area of a needed class: the cost of its present node and of everything that only
    /// it needs, capped at `limit`.
    fn worth(&mut self, class: u32, limit: u64) -> u64 {
        let Some(node) = self.chosen(class) else { return limit };
        let mut saved = node.cost;
        // A queue whose entries lose a use when they are reached.
        let mut work = std::mem::take(&mut self.work);
        work.extend_from_slice(self.problem.children(node));
        let mut reached = 0;
        while saved < limit
            && let Some(c) = work.get(reached).copied()
        {
            self.spend();
            reached += 1;
            self.refs[c as usize] -= 1;
            if self.refs[c as usize] == 0
                && let Some(node) = self.chosen(c)
            {
                saved = saved.saturating_add(node.cost);
                work.extend_from_slice(self.problem.children(node));
            }
        }
        work[..reached].iter().for_each(|c| self.refs[*c as usize] += 1);
        work.clear();
        self.work = work;
        saved.min(limit)
    }

    fn improve_class(&mut self, class: u32) -> bool {
        let nodes = self.problem.class(class as usize);
        let possible = nodes.iter().map(|n| n.cost).filter(|c| *c < IMPOSSIBLE);
        let limit = possible.max().map_or(0, |c| c + 1);
        let mut improved = false;
        let mut present = self.worth(class, limit);
        for (node, to) in nodes.iter().zip(0..) {
            // A node whose own cost reaches the exact area of the present one cannot be better.
            if Some(to) == self.choice[class as usize] || node.cost >= IMPOSSIBLE || node.cost >= present {
                continue;
            }
            let before = self.choice[class as usize];
            if !self.make_room(class, to) {
                continue;
            }
            if self.switch(class, to) < 0 {
                improved = true;
                present = self.worth(class, limit);
            } else if let Some(from) = before {
                // The old node is still legal: its dependencies were not moved after the class.
                self.make_room(class, from);
                self.switch(class, from);
            }
        }
        improved
    }

    /// For each class with several possible users: switches them all to it, and keeps the switch if
    /// it is cheaper.
    fn joint_moves(&mut self) -> bool {
        let mut any = false;
        for shared in 0..self.problem.len() {
            // Only worth trying if at least two needed users do not use it yet.
            let idle = |(class, node, _): &(u32, u32, u32)| {
                self.refs[*class as usize] > 0 && self.choice[*class as usize] != Some(*node)
            };
            let possible = self.effort > 0 && self.choice[shared].is_some();
            if possible && self.users_of(shared as u32).filter(idle).nth(1).is_some() {
                any |= self.joint_move(shared as u32);
            }
        }
        any
    }

    /// The nodes that use a class, each with its class and with what it uses: the class itself, or
    /// one that is not needed and would be computed from it, as a result of an op with several is.
    fn users_of(&self, shared: u32) -> impl Iterator<Item = (u32, u32, u32)> + use<'_, 'p> {
        let users = self.users;
        users.of(shared as usize).iter().flat_map(move |(class, node)| {
            let between = self.refs[*class as usize] == 0 && self.choice[*class as usize] == Some(*node);
            let further = if between { users.of(*class as usize) } else { &[] };
            std::iter::once((*class, *node, shared)).chain(further.iter().map(move |(c, n)| (*c, *n, *class)))
        })
    }

    fn joint_move(&mut self, shared: u32) -> bool {
        let mut undo: Vec<(u32, u32)> = Vec::new();
        let mut delta = 0i128;
        let mut seen = BTreeSet::new();
        let users: Vec<(u32, u32, u32)> = self.users_of(shared).take(MAX_JOINT).collect();
        for (class, node, used) in users {
            let Some(from) = self.chosen(class) else { continue };
            let before = self.choice[class as usize];
            if self.refs[class as usize] == 0 || before == Some(node) || !seen.insert(class) {
                continue;
            }
            let uses_it = self.problem.children(from).contains(&used);
            let dear = self.problem.class(class as usize)[node as usize].cost >= IMPOSSIBLE;
            if uses_it || dear || !self.make_room(class, node) {
                continue;
            }
            delta += self.switch(class, node);
            undo.extend(before.map(|from| (class, from)));
        }
        // The switches may have made some users unnecessary: undo the switches that gained nothing,
        // in reverse.
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

    /// Costs and children of nodes.
    type Nodes = Vec<(u64, Vec<u32>)>;

    fn problem(classes: &[Nodes], roots: &[u32]) -> Problem {
        let mut p = Problem::default();
        p.roots = roots.to_vec();
        for nodes in classes {
            nodes.iter().for_each(|(cost, children)| p.add_node(*cost, children.iter().copied()));
            p.end_class();
        }
        p
    }

    fn node(cost: u64, children: &[u32]) -> (u64, Vec<u32>) {
        (cost, children.to_vec())
    }

    #[test]
    fn all_results_of_an_op_are_switched_together() {
        // Two ops with two results each; both roots may view those of the second, cheaper one.
        let op = |cost| vec![node(cost, &[])];
        let result = |of: u32| vec![node(0, &[of])];
        let root = |old: u32, new: u32| vec![node(0, &[old]), node(1, &[new])];
        let classes = [op(10), op(7), result(0), result(0), result(1), result(1), root(2, 4), root(3, 5)];
        let p = problem(&classes, &[6, 7]);
        let start: Choice = vec![Some(0); classes.len()];
        let better = refine(&p, &start).unwrap();
        assert_eq!((p.cost(&start), p.cost(&better)), (Some(10), Some(9)));
    }

    /// The cheapest choice by brute force.
    fn brute_force(p: &Problem) -> Option<u64> {
        fn go(p: &Problem, todo: &mut Vec<u32>, choice: &mut Choice, cost: u64, best: &mut Option<u64>) {
            if best.is_some_and(|b| cost >= b) {
                return;
            }
            let Some(class) = todo.pop() else {
                if p.order(choice).is_some() {
                    *best = Some(cost);
                }
                return;
            };
            if choice[class as usize].is_some() {
                go(p, todo, choice, cost, best);
            } else {
                for (n, i) in p.class(class as usize).iter().zip(0..) {
                    choice[class as usize] = Some(i);
                    let len = todo.len();
                    todo.extend(p.children(n));
                    let saved = todo.clone();
                    go(p, todo, choice, cost + n.cost, best);
                    *todo = saved;
                    todo.truncate(len);
                }
                choice[class as usize] = None;
            }
            todo.push(class);
        }
        let mut best = None;
        go(p, &mut p.roots.clone(), &mut vec![None; p.len()], 0, &mut best);
        best
    }

    fn random(rng: &mut impl Rng) -> Problem {
        let n = rng.random_range(4..11);
        let classes: Vec<Nodes> = (0..n)
            .map(|c| {
                let mut nodes: Nodes = (0..rng.random_range(1..4))
                    .map(|_| {
                        // Some children occur twice: they are paid for once.
                        let any = (0..rng.random_range(0..4)).map(|_| rng.random_range(0..n));
                        let children: Vec<u32> = any.filter(|x| *x != c).collect();
                        (rng.random_range(1..30), children)
                    })
                    .collect();
                if c < 2 {
                    nodes.push((rng.random_range(1..60), vec![]));
                }
                nodes
            })
            .collect();
        let roots: BTreeSet<u32> = (0..rng.random_range(1..4)).map(|_| rng.random_range(0..n)).collect();
        problem(&classes, &roots.into_iter().collect::<Vec<_>>())
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
            let choice: Choice = (0..p.len()).map(|c| Some(rng.random_range(0..p.class(c).len() as u32))).collect();
            let Some(cost) = p.cost(&choice) else { continue };
            let found = p.cost(&extract(&p, Some(&choice)).unwrap()).unwrap();
            assert!(found <= cost);
        }
    }

    #[test]
    fn pays_shared_work_once() {
        // Two outputs of one expensive product: class 1 is shared; each user has an alternative
        // that is cheaper alone.
        let user = || vec![node(1, &[1]), node(80, &[0])];
        let p = problem(&[vec![node(0, &[])], vec![node(100, &[0])], user(), user(), user()], &[2, 3, 4]);
        assert_eq!(p.cost(&extract(&p, None).unwrap()), Some(103));
    }

    #[test]
    fn deep_sharing_does_not_drown() {
        // A chain in which every step uses the previous one twice: tree cost doubles at each step.
        let mut classes = vec![vec![node(5, &[])]];
        for i in 0..300 {
            classes.push(vec![node(3, &[i]), node(2, &[i]), node(4, &[i])]);
        }
        let p = problem(&classes, &[300]);
        assert_eq!(p.cost(&extract(&p, None).unwrap()), Some(605));
    }
}
