//! Patterns of scalar terms, as terms.
//!
//! In: the pattern of an epilogue, or the left side of a rule about terms. Out: a [`TermPattern`].
//! Users compare it as a whole ([`match_modulo_ac`](super::match_modulo_ac)), find it inside a term
//! ([`TermPattern::find`]), evaluate it or print it. Invariant: nothing else reads a [`Pat`] as one
//! term. What the term cannot say is an error, unless the constructor says that it is dropped. A
//! number stands for itself: a tolerance (`near`) is not used.

use std::fmt;

use crate::ir::{AExpr, AttrPat, AttrValue, Head, InView, NodePat, Pat, Program, ScalarBody, VarId};

use super::{Literal, Term, TermId, TermNode};

/// Nesting of a pattern that is followed; files allow less.
const MAX_DEPTH: usize = 500;

/// A pattern that is one term.
#[derive(Clone, Debug, PartialEq)]
pub struct TermPattern<'r> {
    /// The term. `Param(i)` is hole `i`, and `In { input: i, .. }` is read `i`.
    pub term: Term,
    /// What each hole binds: a variable, or nothing for `_`.
    pub holes: Vec<Option<VarId>>,
    /// The pattern of each tensor that is read, and the view that reads it first.
    pub reads: Vec<(&'r Pat, InView)>,
}

/// Why a pattern is not one term. As text it follows a subject: "its epilogue".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotOneTerm {
    /// It is nested too deep.
    TooDeep,
    /// A part stands for any term.
    Open,
    /// A part has a name or a type.
    Annotated,
    /// A part is one of several terms, or may be absent.
    Alternatives,
    /// A cast to a type that a match decides.
    OpenCast,
    /// A function lacks its operand.
    Incomplete,
    /// An op on tensors outside of reads.
    Op,
    /// A variable for pointwise work.
    Region,
}

impl fmt::Display for NotOneTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotOneTerm::TooDeep => "is nested too deep",
            NotOneTerm::Open => "is open: a plan instantiates it for each that it meets",
            NotOneTerm::Annotated => "names a part, or says its type",
            NotOneTerm::Alternatives => "has alternatives: a plan instantiates the one that it meets",
            NotOneTerm::OpenCast => "casts to an element type that is known only in a plan",
            NotOneTerm::Incomplete => "lacks an operand",
            NotOneTerm::Op => "holds an op on tensors",
            NotOneTerm::Region => "holds a variable for pointwise work",
        })
    }
}

impl std::error::Error for NotOneTerm {}

impl<'r> TermPattern<'r> {
    /// An epilogue's pattern. It has no holes: an error if a part stands for any term. Names and
    /// types of its parts are dropped.
    pub fn closed(pattern: &'r Pat) -> Result<TermPattern<'r>, NotOneTerm> {
        Reader::new(false).finish(|r| r.add(pattern, 0))
    }

    /// Like [`TermPattern::closed`], of an application.
    pub fn closed_node(pattern: &'r NodePat) -> Result<TermPattern<'r>, NotOneTerm> {
        Reader::new(false).finish(|r| r.node(pattern, 0))
    }

    /// The left side of a rule about terms. Its variables are holes. An error if a part has a name
    /// or a type: a match would have to keep to it.
    pub fn open(pattern: &'r Pat) -> Result<TermPattern<'r>, NotOneTerm> {
        Reader::new(true).finish(|r| r.add(pattern, 0))
    }

    /// The node of `term` that each hole stands for, if the pattern matches at the node `at`. The
    /// operands of commutative functions match in any order. `fits(node, inner)` says whether a
    /// call may be part of the match; `inner` is false for `at`. Reads and casts match nothing.
    pub fn find(
        &self,
        program: &Program,
        term: &Term,
        at: TermId,
        fits: &dyn Fn(TermId, bool) -> bool,
    ) -> Option<Vec<TermId>> {
        let mut search = Search { program, pattern: &self.term, term, fits, bound: Vec::new() };
        if !search.matches(self.term.root(), at, false) {
            return None;
        }
        (0..self.holes.len() as u32).map(|hole| search.of(hole)).collect()
    }
}

/// Reads a pattern.
struct Reader<'r> {
    /// Whether variables are holes.
    open: bool,
    out: TermPattern<'r>,
}

impl<'r> Reader<'r> {
    fn new(open: bool) -> Reader<'r> {
        Reader { open, out: TermPattern { term: Term::empty(), holes: Vec::new(), reads: Vec::new() } }
    }

    fn finish(
        mut self,
        read: impl FnOnce(&mut Reader<'r>) -> Result<TermId, NotOneTerm>,
    ) -> Result<TermPattern<'r>, NotOneTerm> {
        let root = read(&mut self)?;
        self.out.term.roots.push(root);
        Ok(self.out)
    }

    fn add(&mut self, pat: &'r Pat, depth: usize) -> Result<TermId, NotOneTerm> {
        if depth > MAX_DEPTH {
            return Err(NotOneTerm::TooDeep);
        }
        match pat {
            Pat::Lit { value, .. } => Ok(self.out.term.add(TermNode::Lit(Literal(*value)))),
            Pat::Typed(..) | Pat::Bind(..) if self.open => Err(NotOneTerm::Annotated),
            Pat::Typed(inner, _) | Pat::Bind(_, inner) => self.add(inner, depth + 1),
            Pat::Node(n) => self.node(n, depth),
            Pat::Var(_) | Pat::Any if !self.open => Err(NotOneTerm::Open),
            Pat::Var(v) => Ok(self.hole(Some(*v))),
            Pat::Any => Ok(self.hole(None)),
            Pat::OneOf(_) | Pat::Absent | Pat::Optional(_) => Err(NotOneTerm::Alternatives),
        }
    }

    fn node(&mut self, n: &'r NodePat, depth: usize) -> Result<TermId, NotOneTerm> {
        let first = || n.args.first().ok_or(NotOneTerm::Incomplete);
        let node = match n.head {
            Head::Acc => TermNode::Acc,
            Head::Second => {
                let arg = self.add(first()?, depth + 1)?;
                return Ok(self.out.term.over_second(arg));
            }
            Head::In(view) => TermNode::In { input: self.read(first()?, view), view },
            Head::Scalar(scalar) => {
                let args = n.args.iter().map(|p| self.add(p, depth + 1));
                TermNode::Call { scalar, args: args.collect::<Result<_, _>>()? }
            }
            Head::TermCast => {
                let Some(AttrPat::Is(AExpr::Value(AttrValue::DType(to)))) = n.attrs.first() else {
                    return Err(NotOneTerm::OpenCast);
                };
                TermNode::Cast { to: *to, arg: self.add(first()?, depth + 1)? }
            }
            Head::Op(_) => return Err(NotOneTerm::Op),
            Head::Region(_) => return Err(NotOneTerm::Region),
        };
        Ok(self.out.term.add(node))
    }

    /// The hole of that variable. Each `_` is a hole of its own.
    fn hole(&mut self, var: Option<VarId>) -> TermId {
        let holes = &mut self.out.holes;
        let before = holes.iter().position(|h| var.is_some() && *h == var);
        let at = before.unwrap_or_else(|| {
            holes.push(var);
            holes.len() - 1
        });
        self.out.term.add(TermNode::Param(at as u32))
    }

    /// The number of a read. Equal patterns are one tensor, except `_`.
    fn read(&mut self, operand: &'r Pat, view: InView) -> u32 {
        let reads = &mut self.out.reads;
        let before = reads.iter().position(|(p, _)| *p == operand && *operand != Pat::Any);
        let at = before.unwrap_or_else(|| {
            reads.push((operand, view));
            reads.len() - 1
        });
        at as u32
    }
}

/// A search for a pattern at one node of a term.
struct Search<'a> {
    program: &'a Program,
    pattern: &'a Term,
    term: &'a Term,
    fits: &'a dyn Fn(TermId, bool) -> bool,
    /// Holes with what they stand for, in the order in which they were met.
    bound: Vec<(u32, TermId)>,
}

impl Search<'_> {
    fn of(&self, hole: u32) -> Option<TermId> {
        self.bound.iter().find(|(h, _)| *h == hole).map(|(_, t)| *t)
    }

    fn matches(&mut self, pat: TermId, at: TermId, inner: bool) -> bool {
        let (pattern, term) = (self.pattern, self.term);
        match (pattern.node(pat), term.node(at)) {
            (TermNode::Param(hole), _) => match self.of(*hole) {
                Some(before) => before == at,
                None => {
                    self.bound.push((*hole, at));
                    true
                }
            },
            (TermNode::Lit(wanted), TermNode::Lit(found)) => wanted.0 == found.0,
            (TermNode::Call { scalar, args: wanted }, TermNode::Call { scalar: found, args }) => {
                if scalar != found || wanted.len() != args.len() || !(self.fits)(at, inner) {
                    return false;
                }
                let mark = self.bound.len();
                if self.all(wanted, args) {
                    return true;
                }
                self.bound.truncate(mark);
                let commutes = matches!(&self.program.scalar(*scalar).body, ScalarBody::Builtin(b) if b.commutes());
                match args[..] {
                    [a, b] if commutes => self.all(wanted, &[b, a]),
                    _ => false,
                }
            }
            _ => false,
        }
    }

    fn all(&mut self, pats: &[TermId], args: &[TermId]) -> bool {
        pats.iter().zip(args).all(|(p, a)| self.matches(*p, *a, true))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::testing::{compiled, library, term};
    use super::*;
    use crate::builtin::BuiltinScalar;
    use crate::dtype::DType;
    use crate::ir::OpId;

    /// A program with one rule, whose left side is that.
    fn rule(left: &str) -> Program {
        compiled(&format!("ruleset t {{ until = fixpoint; }}\nrule t::r: {left} => x class rounds;"))
    }

    /// The left side of the last rule.
    fn left(program: &Program) -> &Pat {
        &program.rules.iter().find(|r| r.base_name == "t::r").unwrap().lhs[0]
    }

    fn node(head: Head, args: Vec<Pat>, attrs: Vec<AttrPat>) -> Pat {
        Pat::Node(NodePat { head, args, rest: None, attrs, output: 0 })
    }

    fn acc() -> Pat {
        node(Head::Acc, vec![], vec![])
    }

    fn of(program: &Program, f: BuiltinScalar, args: Vec<Pat>) -> Pat {
        node(Head::Scalar(program.builtin_scalar(f).unwrap()), args, vec![])
    }

    #[test]
    fn variables_are_holes() {
        let p = rule("max(x * y, x) + _ + _");
        let pattern = TermPattern::open(left(&p)).unwrap();
        assert_eq!(pattern.holes.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false, false]);
        assert_eq!(pattern.term, term(&p, &["x", "y", "a", "b"], "max(x * y, x) + a + b"));
        assert_eq!(TermPattern::closed(left(&p)), Err(NotOneTerm::Open));
    }

    #[test]
    fn equal_operands_are_one_read() {
        let p = library();
        let read = |pat: Pat, view| node(Head::In(view), vec![pat], vec![]);
        let (x, y) = (Pat::Var(VarId(0)), Pat::Var(VarId(1)));
        let args = [(&x, InView::Row), (&y, InView::Full), (&x, InView::Full), (&Pat::Any, InView::Row)];
        let args = args.into_iter().chain([(&Pat::Any, InView::Row)]);
        let sum = args.fold(acc(), |sum, (pat, view)| of(&p, BuiltinScalar::Add, vec![sum, read(pat.clone(), view)]));
        let pattern = TermPattern::closed(&sum).unwrap();
        let reads = [(&x, InView::Row), (&y, InView::Full), (&Pat::Any, InView::Row), (&Pat::Any, InView::Row)];
        assert_eq!(pattern.reads, reads);
        let inputs = pattern.term.nodes.iter().filter_map(|n| match n {
            TermNode::In { input, view } => Some((*input, *view)),
            _ => None,
        });
        let (row, full) = (InView::Row, InView::Full);
        assert_eq!(inputs.collect::<Vec<_>>(), [(0, row), (1, full), (0, full), (2, row), (3, row)]);
    }

    #[test]
    fn what_is_not_one_term_says_why() {
        let p = library();
        let neg = |arg: Pat| of(&p, BuiltinScalar::Neg, vec![arg]);
        let deep = (0..MAX_DEPTH + 1).fold(acc(), |pat, _| neg(pat));
        let cast = |attr| node(Head::TermCast, vec![acc()], vec![attr]);
        let f16 = || AttrPat::Is(AExpr::Value(AttrValue::DType(DType::F16)));
        for (pat, why) in [
            (deep, NotOneTerm::TooDeep),
            (neg(Pat::Any), NotOneTerm::Open),
            (neg(Pat::OneOf(vec![acc(), acc()])), NotOneTerm::Alternatives),
            (neg(Pat::Absent), NotOneTerm::Alternatives),
            (cast(AttrPat::Any), NotOneTerm::OpenCast),
            (node(Head::TermCast, vec![], vec![f16()]), NotOneTerm::Incomplete),
            (node(Head::Second, vec![], vec![]), NotOneTerm::Incomplete),
            (node(Head::In(InView::Row), vec![], vec![]), NotOneTerm::Incomplete),
            (node(Head::Op(OpId(0)), vec![], vec![]), NotOneTerm::Op),
            (node(Head::Region(VarId(0)), vec![], vec![]), NotOneTerm::Region),
        ] {
            assert_eq!(TermPattern::closed(&pat), Err(why), "{pat:?}");
        }
        let second = node(Head::Second, vec![cast(f16())], vec![]);
        let pattern = TermPattern::closed(&second).unwrap();
        assert!(matches!(pattern.term.node(pattern.term.root()), TermNode::Cast { to: DType::F16, .. }));
        // A match of an open pattern would have to keep to what a part is called.
        let named = neg(Pat::Bind(VarId(0), Box::new(acc())));
        assert!(TermPattern::closed(&named).is_ok());
        assert_eq!(TermPattern::open(&named), Err(NotOneTerm::Annotated));
        assert_eq!(NotOneTerm::Op.to_string(), "holds an op on tensors");
    }

    #[test]
    fn patterns_are_found_in_terms() {
        for (pattern, text, found) in [
            ("1 + erf(x)", "erf(a) + 1", Some("a")),
            ("1 + erf(x)", "erf(a) + 2", None),
            ("1 + erf(x)", "1 - erf(a)", None),
            ("x - exp(y)", "a - exp(b)", Some("ab")),
            ("x - exp(y)", "exp(b) - a", None),
            ("x * exp(x)", "exp(a) * a", Some("a")),
            ("x * exp(x)", "exp(a) * b", None),
            ("exp(x) * (y + x)", "(a + b) * exp(a)", Some("ab")),
            ("exp(x) * (y + x)", "(a + b) * exp(b)", Some("ba")),
            ("tanh(x) + _", "a + tanh(b)", Some("ba")),
        ] {
            let p = rule(pattern);
            let t = term(&p, &["a", "b"], text);
            let holes = TermPattern::open(left(&p)).unwrap().find(&p, &t, t.root(), &|_, _| true);
            let name = |id: &TermId| match t.node(*id) {
                TermNode::Param(i) => ["a", "b"][*i as usize],
                other => panic!("{other:?}"),
            };
            let holes = holes.map(|h| h.iter().map(name).collect::<String>());
            assert_eq!(holes.as_deref(), found, "{pattern} in {text}");
        }
    }

    #[test]
    fn a_call_that_does_not_fit_is_no_part_of_a_match() {
        let p = rule("1 + erf(x)");
        let t = term(&p, &["a"], "1 + erf(a)");
        let find =
            |fits: &dyn Fn(TermId, bool) -> bool| TermPattern::open(left(&p)).unwrap().find(&p, &t, t.root(), fits);
        assert!(find(&|at, inner| inner == (at != t.root())).is_some());
        assert!(find(&|_, inner| inner).is_none());
        assert!(find(&|_, inner| !inner).is_none());
    }
}
