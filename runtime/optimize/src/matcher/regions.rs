//! Matches pointwise work as a variable: `f(gemm(a, b, e))`, where `f` is any work in between.
//!
//! In: a pattern whose head is a variable for pointwise work, and a class. Out: every way in which
//! the class is such work on the operands of the pattern. The work is returned as data, so that it
//! can be rebuilt on other operands. It is cut out of the present candidate, one node for each
//! class, from the class downwards to the operands; any other tensor that it reads becomes an
//! additional operand. Invariant: it has at least one step and at most [`MAX_STEPS`], is at most
//! [`MAX_DEPTH`] deep, contains no cast, and no value inside it is used outside.

use hypatia_dsl::ir::ScalarId;

use super::*;

/// Maximum nesting of scalar functions.
pub const MAX_DEPTH: usize = 16;
/// Maximum number of steps.
pub const MAX_STEPS: usize = 48;

/// Pointwise work.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// Its steps, each on earlier ones; the last one is the result.
    pub steps: Vec<Step>,
    /// The classes of its arguments.
    pub arguments: Vec<Id>,
}

impl Region {
    /// How many of its steps consume a class.
    pub fn consumers(&self, egraph: &EGraph, class: Id) -> usize {
        let is_class = |step: &Step| match step {
            Step::Argument(i) => self.arguments.get(*i).is_some_and(|c| egraph.find(*c) == class),
            Step::Operand(c) => egraph.find(*c) == class,
            Step::Call(..) => false,
        };
        let of: Vec<usize> = (0..self.steps.len()).filter(|i| is_class(&self.steps[*i])).collect();
        let consumes = |step: &&Step| matches!(step, Step::Call(_, args) if args.iter().any(|a| of.contains(a)));
        self.steps.iter().filter(consumes).count()
    }
}

/// A step of pointwise work.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// An operand of the pattern.
    Argument(usize),
    /// Another tensor.
    Operand(Id),
    /// A function of earlier steps.
    Call(ScalarId, Vec<usize>),
}

/// Work being cut out.
pub(super) struct Boundary {
    var: VarId,
    top: Id,
    arguments: Vec<Id>,
}

/// Classes that may be pointwise work on a class with a node of one of these heads.
pub(super) fn tops(egraph: &View<'_>, heads: &[Discriminant]) -> Vec<Id> {
    let candidate = egraph.candidate_of();
    let seeds = heads.iter().filter_map(|h| egraph.classes_for_op(h)).flatten().map(|c| egraph.find(c));
    let mut ring: Vec<Id> = seeds.collect();
    let mut seen: FxHashSet<Id> = FxHashSet::default();
    for _ in 0..MAX_DEPTH {
        let mut further = Vec::new();
        for class in ring {
            for parent in egraph[class].parents().map(|p| egraph.find(p)) {
                let Some(node) = candidate.pointwise(parent) else { continue };
                if node.children.iter().any(|c| egraph.find(*c) == class) && seen.insert(parent) {
                    // Work that ends in the parent may extend upwards, if the parent may be inside.
                    if candidate.is_inner(parent) {
                        further.push(parent);
                    }
                }
            }
        }
        ring = further;
    }
    let mut tops: Vec<Id> = seen.into_iter().collect();
    tops.sort_unstable();
    tops
}

impl<'r, 'e, H: Host> Matcher<'r, 'e, '_, H> {
    /// Matches pointwise work: searches the classes below for the operands of the pattern, nearest
    /// first.
    pub(super) fn region(&mut self, var: VarId, n: &'r NodePat, class: Id, context: Position, next: Goals) -> Flow {
        if !matches!(context, Position::Tensor) {
            return ON;
        }
        let below = self.below(class);
        if let Some(p) = n.args.iter().find(|p| !below.iter().any(|c| self.argument(p, *c))) {
            let leaves: Vec<Id> = below.iter().copied().filter(|c| self.step(*c).is_none()).collect();
            return self.miss(class, || MissReason::Region(var, p.clone(), leaves));
        }
        self.arguments(Boundary { var, top: class, arguments: Vec::new() }, n, &below, next)
    }

    /// Chooses a class for each operand in turn.
    fn arguments(&mut self, boundary: Boundary, n: &'r NodePat, below: &[Id], next: Goals) -> Flow {
        let Some(pat) = n.args.get(boundary.arguments.len()) else {
            let chosen = boundary.arguments.clone();
            let mark = self.goals.len();
            let mut goals = self.push(Goal::Boundary { boundary: Rc::new(boundary) }, next);
            for (pat, class) in n.args.iter().zip(chosen).rev() {
                goals = self.push(Goal::Class { pat, class, context: Position::Tensor }, goals);
            }
            return self.solve_and_forget(goals, mark);
        };
        for class in below {
            if !boundary.arguments.contains(class) && self.argument(pat, *class) {
                let mut arguments = boundary.arguments.clone();
                arguments.push(*class);
                self.arguments(Boundary { arguments, ..boundary }, n, below, next)?;
            }
        }
        ON
    }

    /// Whether a class may be an operand. A pattern that matches any tensor is bound only to a
    /// value that is not pointwise work itself.
    fn argument(&self, pat: &Pat, class: Id) -> bool {
        let inner = if let Pat::Typed(p, _) = pat { p } else { pat };
        let open = match inner {
            Pat::Var(v) => matches!(self.bindings.get(v.index()), Some(Binding::Unbound)),
            Pat::Any => true,
            _ => false,
        };
        let computed = self.step(class).is_some() || self.host.is_constant(class);
        !(open && computed) && self.could_be(pat, class, Position::Tensor)
    }

    /// The scalar function by which the candidate computes a class, if it does.
    fn step(&self, class: Id) -> Option<(ScalarId, &'e Node)> {
        let candidate = self.host.candidate();
        let node = match candidate.is_none() {
            true => self.host.nodes(class).iter().find(|n| matches!(n.payload, Payload::Scalar(_))),
            false => candidate.pointwise(class),
        }?;
        match node.payload {
            Payload::Scalar(s) if !self.host.is_constant(class) => Some((s, node)),
            _ => None,
        }
    }

    /// Operands of the step that computes a class.
    fn inputs(&self, class: Id) -> impl Iterator<Item = Id> + use<'e, H> {
        let host = self.host;
        self.step(class).into_iter().flat_map(|(_, n)| &n.children).map(move |c| host.find(*c))
    }

    /// Classes that are reachable downwards through scalar functions, nearest first.
    fn below(&self, top: Id) -> Vec<Id> {
        let mut out: Vec<Id> = Vec::new();
        let mut ring = vec![top];
        for _ in 0..MAX_DEPTH {
            let mut further = Vec::new();
            for child in ring.iter().flat_map(|class| self.inputs(*class)) {
                if child != top && !out.contains(&child) && out.len() < 2 * MAX_STEPS {
                    out.push(child);
                    if self.may_be_inside(child) {
                        further.push(child);
                    }
                }
            }
            ring = further;
        }
        out
    }

    /// All operands match: binds the variable to the work between them and the top.
    pub(super) fn within(&mut self, boundary: &Boundary, next: Goals) -> Flow {
        let mut work = Work { steps: Vec::new(), at: FxHashMap::default(), inside: Vec::new() };
        for (i, class) in boundary.arguments.iter().enumerate() {
            work.at.insert(self.host.find(*class), i);
            work.steps.push(Step::Argument(i));
        }
        let arguments = boundary.arguments.len();
        if self.add_step(boundary.top, 0, arguments, &mut work).is_none() {
            return ON;
        }
        let uses = |i: usize| work.steps.iter().any(|s| matches!(s, Step::Call(_, of) if of.contains(&i)));
        let closed = work.inside.iter().all(|c| *c == boundary.top || self.needed_inside(*c, &work.inside));
        if closed && (0..arguments).all(uses) {
            let region = Region { steps: work.steps, arguments: boundary.arguments.clone() };
            return self.bind(boundary.var, Binding::Region(Box::new(region)), boundary.top, next);
        }
        ON
    }

    /// The index of a class's step, which is added if an argument is below it; `None` past the
    /// limits.
    fn add_step(&self, class: Id, depth: usize, arguments: usize, work: &mut Work) -> Option<usize> {
        if let Some(i) = work.at.get(&class) {
            return Some(*i);
        }
        let step = match self.step(class) {
            Some((s, _)) if depth < MAX_DEPTH && self.reaches(class, depth, arguments, work) => {
                let inputs: Vec<Id> = self.inputs(class).collect();
                let of = inputs.into_iter().map(|c| self.add_step(c, depth + 1, arguments, work));
                let of = of.collect::<Option<Vec<usize>>>()?;
                work.inside.push(class);
                Step::Call(s, of)
            }
            _ if depth == 0 => return None,
            _ => Step::Operand(class),
        };
        if work.steps.len() >= MAX_STEPS {
            return None;
        }
        work.steps.push(step);
        work.at.insert(class, work.steps.len() - 1);
        Some(work.steps.len() - 1)
    }

    /// Whether an argument of the work is reachable below a class.
    fn reaches(&self, class: Id, depth: usize, arguments: usize, work: &Work) -> bool {
        let mut seen = vec![class];
        let mut ring = vec![class];
        for _ in depth..MAX_DEPTH {
            let mut further = Vec::new();
            for child in ring.iter().flat_map(|c| self.inputs(*c)) {
                if work.at.get(&child).is_some_and(|i| *i < arguments) {
                    return true;
                }
                if !seen.contains(&child) {
                    seen.push(child);
                    if self.may_be_inside(child) {
                        further.push(child);
                    }
                }
            }
            ring = further;
        }
        false
    }

    /// Whether all paths from a value pass through one function in the candidate (a
    /// post-dominator); other values cannot be inside.
    fn may_be_inside(&self, class: Id) -> bool {
        let candidate = self.host.candidate();
        candidate.is_none() || candidate.is_inner(class)
    }

    /// Whether all users of a value inside the work are inside too, in the candidate.
    fn needed_inside(&self, class: Id, inside: &[Id]) -> bool {
        let Some(uses) = self.host.candidate().uses(class) else { return true };
        inside.iter().filter(|c| self.inputs(**c).any(|child| child == class)).count() >= uses as usize
    }
}

/// Work being cut out.
struct Work {
    steps: Vec<Step>,
    /// The step of each class.
    at: FxHashMap<Id, usize>,
    /// The classes that it computes.
    inside: Vec<Id>,
}
