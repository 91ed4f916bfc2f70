//! A rule about scalar terms as two terms.
//!
//! In: a rule of a Program. Out: its left side as a pattern, its right side as a term over what the
//! pattern's holes stand for. Invariant: each side is read once, when the rule is made ready; a
//! right side is a [`Build`](crate::ir::Build), so the interpreter reads it.

use std::convert::Infallible;

use crate::dtype::DType;
use crate::interpret::{Application, Host, Item, build_term};
use crate::ir::{AExpr, AttrValue, Program, Rule, ScalarId, VarId};
use crate::scalar::{Term, TermBuilder, TermId, TermNode, TermPattern};
use crate::typing::{Bindings, NoFacts, eval};

/// Nesting of a right side that is followed.
const MAX_DEPTH: usize = 500;

/// A rule whose sides are one term each.
pub struct TermRule<'p> {
    /// The rule.
    pub rule: &'p Rule,
    /// Its left side.
    pub left: TermPattern<'p>,
    /// Its right side. `Param(i)` is what hole `i` of the left side stands for.
    pub right: Term,
}

impl<'p> TermRule<'p> {
    /// Reads both sides. The error says which side is not one term, and why.
    pub fn of(program: &'p Program, rule: &'p Rule) -> Result<TermRule<'p>, String> {
        let ([left], [right]) = (rule.lhs.as_slice(), rule.rhs.as_slice()) else {
            return Err("it has several roots".into());
        };
        let left = TermPattern::open(left).map_err(|e| format!("its left side {e}"))?;
        let mut side = Side { program, left: &left, terms: TermBuilder::new(), deeper: MAX_DEPTH };
        let root = build_term(&mut side, right).map_err(|e| format!("its right side is not one term: {e}"))?;
        let right = side.terms.finish(vec![root]);
        Ok(TermRule { rule, left, right })
    }

    /// Those of the values that the holes stand for which the right side reads.
    pub(super) fn read<'b>(&self, bound: &'b [TermId]) -> impl Iterator<Item = TermId> + use<'_, 'b, 'p> {
        let read = |hole: usize| self.right.nodes.contains(&TermNode::Param(hole as u32));
        bound.iter().enumerate().filter(move |(hole, _)| read(*hole)).map(|(_, t)| *t)
    }
}

/// The right side of a rule as a host of the interpreter: it has terms, and no tensors.
struct Side<'p, 'l> {
    program: &'p Program,
    left: &'l TermPattern<'p>,
    terms: TermBuilder,
    /// How much deeper expressions may go.
    deeper: usize,
}

fn no_tensors<T>() -> Result<T, String> {
    Err("it uses a tensor".into())
}

impl<'p> Host for Side<'p, '_> {
    type Value = Infallible;
    type Term = TermId;
    type Epilogue = TermId;
    type Error = String;
    type Program = &'p Program;

    fn program(&self) -> &&'p Program {
        &self.program
    }

    fn ill_typed(message: String) -> String {
        message
    }

    fn descend(&mut self) -> Result<(), String> {
        self.deeper = self.deeper.checked_sub(1).ok_or("it is nested too deep")?;
        Ok(())
    }

    fn ascend(&mut self) {
        self.deeper += 1;
    }

    fn term_variable(&mut self, v: VarId) -> Result<Option<TermId>, String> {
        let hole = self.left.holes.iter().position(|h| *h == Some(v)).ok_or("the left side binds no such variable")?;
        Ok(Some(self.terms.add(TermNode::Param(hole as u32))))
    }

    fn end_term(&mut self, root: Result<TermId, String>) -> Result<TermId, String> {
        root
    }

    fn literal(&mut self, _: &AExpr, value: f64) -> Result<TermId, String> {
        Ok(self.terms.lit(value))
    }

    fn call(&mut self, scalar: ScalarId, args: &[TermId]) -> Result<TermId, String> {
        Ok(self.terms.call(scalar, args.to_vec()))
    }

    fn cast(&mut self, to: DType, arg: TermId) -> Result<TermId, String> {
        Ok(self.terms.add(TermNode::Cast { to, arg }))
    }

    fn eval(&self, expr: &AExpr, _: &[Item<Infallible>]) -> Option<AttrValue> {
        eval(expr, &Bindings::default(), &NoFacts)
    }

    fn variable(&mut self, _: VarId) -> Result<Infallible, String> {
        no_tensors()
    }

    fn is_absent(&self, _: VarId) -> bool {
        false
    }

    fn variables(&self, _: VarId) -> Result<Vec<Infallible>, String> {
        no_tensors()
    }

    fn dtype(&self, value: Infallible) -> Option<DType> {
        match value {}
    }

    fn absent(&mut self) -> Result<Infallible, String> {
        no_tensors()
    }

    fn number(&mut self, _: &AExpr, _: f64, _: DType) -> Result<Infallible, String> {
        no_tensors()
    }

    fn scalar(&mut self, _: ScalarId, _: &[Infallible]) -> Result<Infallible, String> {
        no_tensors()
    }

    fn op(&mut self, _: Application<'_, Self>) -> Result<Infallible, String> {
        no_tensors()
    }
}
