//! What a rule's guards say about its variables, so that the generator need not guess.
//!
//! In: the `requires` and `let` of a rule. Out: for each variable, hints that make the guards more
//! likely to hold. These are only hints: the guards themselves are evaluated on each instance.
//! Where guards leave a choice (`or`, `not`, `if`), each way to satisfy them has hints of its own:
//! an instance that satisfies `a or b` by `a` alone shows what no instance of both does.

use std::collections::{BTreeSet, HashMap};

use hypatia_dsl::ast::BinaryOp;
use hypatia_dsl::ir::{AExpr, AFn, Fact, Program, Rule, VarId};

use super::constants::Constants;
use super::ways::{Way, is_plain, ways};

/// Which end of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The least value.
    Least,
    /// The largest value.
    Largest,
}

/// Hints of one rule.
#[derive(Default)]
pub struct Hints<'a> {
    /// Facts that guards require of a tensor.
    pub facts: HashMap<VarId, Vec<Fact>>,
    /// Facts that conditions read which need not hold.
    mentioned: HashMap<VarId, Vec<Fact>>,
    /// What holds of the guards' conditions, and what does not.
    pub atoms: Way<'a>,
    /// The ways to satisfy the guards, if there are several.
    pub ways: Vec<Hints<'a>>,
    /// `fact(x) == e` and `e == fact(x)`.
    pub equal_fact: Vec<(Fact, VarId, &'a AExpr)>,
    /// `dim(x, i) == e` and `e == dim(x, i)`.
    pub equal_dim: Vec<(VarId, &'a AExpr, &'a AExpr)>,
    /// `v == e` and `e == v` of attributes.
    pub equal_var: Vec<(VarId, &'a AExpr)>,
    /// `v in [..]`
    pub among: Vec<(VarId, &'a AExpr)>,
    /// `fact(x) in [..]`, also as `not (fact(x) not in [..])`
    pub among_facts: Vec<(Fact, VarId, &'a AExpr)>,
    /// `value(x) <= e`, `e < value(x)` and the like.
    pub bounds: Vec<(VarId, &'a AExpr)>,
    /// The same that hold, as the least or the largest value.
    pub ranges: Vec<(VarId, End, &'a AExpr)>,
    /// `v <= e`, `e < v` and the like of attributes, as the least or the largest value.
    pub attr_ranges: Vec<(VarId, End, &'a AExpr)>,
    /// Variables whose values a `let` reads.
    read: Vec<VarId>,
    /// Guards read elements of lists: `p[p[0]] == 0`.
    pub indexes: bool,
    /// The numbers in the rule's text.
    pub constants: Constants,
}

impl<'a> Hints<'a> {
    /// Whether guards give a constant's values two ends.
    pub fn is_ranged(&self, var: VarId) -> bool {
        let ends = |end: End| self.ranges.iter().any(|(v, e, _)| *v == var && *e == end);
        ends(End::Least) && ends(End::Largest)
    }

    /// The hints of a rule.
    pub fn of(program: &Program, rule: &'a Rule) -> Hints<'a> {
        let constants = Constants::of(program, rule);
        let whole = || rule.requires.iter().map(|g| (g, true)).collect();
        let mut found = ways(&rule.requires);
        if found.len() <= 1 {
            let only = found.pop().unwrap_or_default();
            return Hints { atoms: whole(), ..Hints::under(rule, &only, &constants) };
        }
        let each = found.iter().map(|w| Hints { atoms: w.clone(), ..Hints::under(rule, w, &constants) }).collect();
        // What any of them asks for.
        let all = found.concat();
        Hints { atoms: whole(), ways: each, ..Hints::under(rule, &all, &constants) }
    }

    /// The hints of these conditions.
    fn under(rule: &'a Rule, way: &[(&'a AExpr, bool)], constants: &Constants) -> Hints<'a> {
        let mut hints = Hints { constants: constants.clone(), ..Hints::default() };
        let (asking, other): (Way, Way) = way.iter().partition(|(e, holds)| *holds && is_plain(e));
        asking.iter().for_each(|(e, _)| hints.read(e, true, 0));
        for (e, holds) in &other {
            if let (false, AExpr::Binary(BinaryOp::NotIn, a, b)) = (holds, e)
                && let AExpr::Fact(f, v) = &**a
            {
                hints.facts.entry(*v).or_default().push(*f);
                hints.among_facts.push((*f, *v, b));
            }
        }
        let asked = std::mem::take(&mut hints.facts);
        other.iter().for_each(|(e, _)| hints.read(e, false, 0));
        hints.mentioned = std::mem::replace(&mut hints.facts, asked);
        // A `let` without a value gives no instance either: `let f = value(c)` requires a constant.
        let guards = hints.facts.clone();
        for (_, e) in &rule.lets {
            hints.read(e, false, 0);
        }
        let of_values = |(v, facts): (&VarId, &Vec<Fact>)| {
            let before = guards.get(v).map_or(0, Vec::len);
            facts[before..].contains(&Fact::Value).then_some(*v)
        };
        hints.read = hints.facts.iter().filter_map(of_values).collect();
        hints
    }

    /// True if a condition that need not hold reads this fact of the variable.
    pub fn mentions(&self, var: VarId, fact: Fact) -> bool {
        self.mentioned.get(&var).is_some_and(|f| f.contains(&fact))
    }

    /// True if a guard requires this fact of the variable.
    pub fn asks(&self, var: VarId, fact: Fact) -> bool {
        self.facts.get(&var).is_some_and(|f| f.contains(&fact))
    }

    /// True if a `let` reads the variable's value.
    pub fn is_read(&self, var: VarId) -> bool {
        self.read.contains(&var)
    }

    /// True if the rule requires constants, which may be folded before a run.
    pub fn folds(&self) -> bool {
        self.facts.values().flatten().any(|f| matches!(f, Fact::Const | Fact::Value))
    }

    fn read(&mut self, e: &'a AExpr, holds: bool, depth: usize) {
        if depth > 64 {
            return;
        }
        match e {
            AExpr::Index(list, i) => {
                self.indexes |= !matches!(**list, AExpr::Fact(..));
                self.read(list, false, depth + 1);
                self.read(i, false, depth + 1);
            }
            AExpr::Fact(f, v) => self.facts.entry(*v).or_default().push(*f),
            AExpr::Binary(op, a, b) => {
                if holds && *op == BinaryOp::Eq {
                    self.equation(a, b);
                    self.equation(b, a);
                }
                if let (true, BinaryOp::In, AExpr::Var(v)) = (holds, op, &**a) {
                    self.among.push((*v, b));
                }
                if let (true, BinaryOp::In, AExpr::Fact(f, v)) = (holds, op, &**a) {
                    self.among_facts.push((*f, *v, b));
                }
                if let BinaryOp::Lt | BinaryOp::Le | BinaryOp::Gt | BinaryOp::Ge = op {
                    self.comparison(*op, a, b, holds);
                }
                let holds = holds && *op == BinaryOp::And;
                self.read(a, holds, depth + 1);
                self.read(b, holds, depth + 1);
            }
            AExpr::Not(a) | AExpr::Neg(a) | AExpr::Spread(a) => self.read(a, false, depth + 1),
            AExpr::If(a, b, c) => [a, b, c].into_iter().for_each(|x| self.read(x, false, depth + 1)),
            AExpr::List(l) | AExpr::Call(_, l) => l.iter().for_each(|x| self.read(x, false, depth + 1)),
            AExpr::Comprehension { element, over, condition, .. } => {
                self.read(element, false, depth + 1);
                self.read(over, false, depth + 1);
                if let Some(c) = condition {
                    self.read(c, false, depth + 1);
                }
            }
            AExpr::Value(_) | AExpr::Var(_) | AExpr::SameAccumulator(..) | AExpr::Device(_) => {}
        }
    }

    fn comparison(&mut self, op: BinaryOp, a: &'a AExpr, b: &'a AExpr, holds: bool) {
        let (less, more) = if matches!(op, BinaryOp::Lt | BinaryOp::Le) { (a, b) } else { (b, a) };
        for (of, end, which) in [(less, more, End::Largest), (more, less, End::Least)] {
            match of {
                AExpr::Fact(Fact::Value, v) => {
                    self.bounds.push((*v, end));
                    if holds {
                        self.ranges.push((*v, which, end));
                    }
                }
                AExpr::Var(v) if holds => self.attr_ranges.push((*v, which, end)),
                _ => {}
            }
        }
        // `abs(v - e) < 0.001` holds where both are equal.
        if let AExpr::Call(AFn::Abs, of) = less
            && let ([AExpr::Binary(BinaryOp::Sub, a, b)], true) = (of.as_slice(), holds)
        {
            self.equation(a, b);
            self.equation(b, a);
        }
    }

    fn equation(&mut self, a: &'a AExpr, b: &'a AExpr) {
        match a {
            AExpr::Fact(f, v) => self.equal_fact.push((*f, *v, b)),
            AExpr::Var(v) => self.equal_var.push((*v, b)),
            AExpr::Index(list, i) => {
                if let AExpr::Fact(Fact::Shape, v) = &**list {
                    self.equal_dim.push((*v, i, b));
                }
            }
            _ => {}
        }
    }
}

/// Adds the variables that an expression reads.
pub(super) fn variables(e: &AExpr, out: &mut BTreeSet<VarId>) {
    match e {
        AExpr::Var(v) => drop(out.insert(*v)),
        AExpr::Binary(_, a, b) | AExpr::Index(a, b) => [a, b].into_iter().for_each(|e| variables(e, out)),
        AExpr::Neg(a) | AExpr::Not(a) | AExpr::Spread(a) => variables(a, out),
        AExpr::If(a, b, c) => [a, b, c].into_iter().for_each(|e| variables(e, out)),
        AExpr::List(l) | AExpr::Call(_, l) => l.iter().for_each(|e| variables(e, out)),
        AExpr::Comprehension { element, over, .. } => [element, over].into_iter().for_each(|e| variables(e, out)),
        AExpr::Value(_) | AExpr::Fact(..) | AExpr::SameAccumulator(..) | AExpr::Device(_) => {}
    }
}
