//! What a rule's guards say about its variables, so that the generator need not guess.
//!
//! In: the `requires` and `let` of a rule. Out: for each variable, hints that make the guards more
//! likely to hold. These are only hints: the guards themselves are evaluated on each instance.

use std::collections::{BTreeSet, HashMap};

use hypatia_dsl::ast::BinaryOp;
use hypatia_dsl::ir::{AExpr, Fact, Program, Rule, VarId};

use super::constants::Constants;

/// Hints of one rule.
#[derive(Default)]
pub struct Hints<'a> {
    /// Facts that guards require of a tensor.
    pub facts: HashMap<VarId, Vec<Fact>>,
    /// `fact(x) == e` and `e == fact(x)`.
    pub equal_fact: Vec<(Fact, VarId, &'a AExpr)>,
    /// `dim(x, i) == e` and `e == dim(x, i)`.
    pub equal_dim: Vec<(VarId, &'a AExpr, &'a AExpr)>,
    /// `v == e` and `e == v` of attributes.
    pub equal_var: Vec<(VarId, &'a AExpr)>,
    /// `v in [..]`
    pub among: Vec<(VarId, &'a AExpr)>,
    /// Variables whose values a `let` reads.
    read: Vec<VarId>,
    /// Guards read elements of lists: `p[p[0]] == 0`.
    pub indexes: bool,
    /// The numbers in the rule's text.
    pub constants: Constants,
}

impl<'a> Hints<'a> {
    /// The hints of a rule.
    pub fn of(program: &Program, rule: &'a Rule) -> Hints<'a> {
        let mut hints = Hints { constants: Constants::of(program, rule), ..Hints::default() };
        for guard in &rule.requires {
            hints.read(guard, true, 0);
        }
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
                let holds = holds && matches!(op, BinaryOp::And | BinaryOp::Or);
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
