//! What one element of each side of a rule is.
//!
//! In: a rule. Out: for each root, and for each choice of alternatives, both sides as terms; `None`
//! if a part of the rule has no such reading. Invariant: equal leaves are equal elements. An op
//! that is no function of single elements is a leaf that names the op with all that it reads, as
//! written: two of them are equal only if they are written alike.
//!
//! Functions broadcast, so an element of a result reads each operand at one place that the shapes
//! alone decide: the place in the operands of nested functions is the same as in one function.

use std::collections::HashMap;

use hypatia_dsl::ast::BinaryOp;
use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::ir::{
    AExpr, AttrPat, AttrValue, Build, BuildArg, Fact, Head, InView, OpBody, OpId, Pat, Program, Rule, ScalarBody,
    ScalarId, Sort, VarId,
};
use hypatia_dsl::scalar::TermNode;

use super::check::{STORE, Term, call};

/// The limit of combinations of alternatives.
const MOST_CHOICES: usize = 64;
/// The limit of a term's size, as a number of unfolded functions.
const MOST_UNFOLDED: usize = 400;

/// Both sides of each root, for each choice of alternatives.
pub(super) fn pairs(program: &Program, rule: &Rule) -> Option<Vec<(Term, Term)>> {
    let mut out = Vec::new();
    let (mut choices, mut tried) = (vec![0usize; 0], 0);
    loop {
        let mut reader = Reader {
            program,
            rule,
            bound: HashMap::new(),
            choices: &mut choices,
            at: 0,
            alternatives: Vec::new(),
            anonymous: 0,
            unfolded: 0,
        };
        let left = rule.lhs.iter().map(|p| reader.pat(p, None)).collect::<Option<Vec<_>>>()?;
        let right = rule.rhs.iter().map(|b| reader.build(b, None)).collect::<Option<Vec<_>>>()?;
        let alternatives = reader.alternatives;
        out.extend(left.into_iter().zip(right));
        tried += 1;
        // The next combination, as a number whose digits are the choices.
        choices.resize(alternatives.len(), 0);
        let mut at = alternatives.len();
        loop {
            if at == 0 {
                return Some(out);
            }
            at -= 1;
            choices[at] += 1;
            if choices[at] < alternatives[at] {
                break;
            }
            choices[at] = 0;
        }
        if tried >= MOST_CHOICES {
            return None;
        }
    }
}

/// Reads the operand of that position, with what its accumulator stands for.
type ReadOperand<'r, R> = &'r mut dyn FnMut(&mut R, usize, Option<&Term>) -> Option<Term>;

struct Reader<'a> {
    program: &'a Program,
    rule: &'a Rule,
    bound: HashMap<VarId, Term>,
    /// The alternative to take at each `|`, in the order of the walk.
    choices: &'a mut Vec<usize>,
    at: usize,
    /// How many there were.
    alternatives: Vec<usize>,
    anonymous: usize,
    unfolded: usize,
}

impl Reader<'_> {
    /// A variable's element: what a guard says it is, or a leaf.
    fn variable(&self, v: VarId) -> Term {
        let equal = |g: &AExpr| match g {
            AExpr::Binary(BinaryOp::Eq, a, b) => match (&**a, &**b) {
                // The value may be -0.
                (AExpr::Fact(Fact::Value, of), AExpr::Value(value)) if *of == v && !is_zero(value) => number(value),
                _ => None,
            },
            _ => None,
        };
        let said = self.rule.requires.iter().find_map(equal);
        said.or_else(|| self.bound.get(&v).cloned()).unwrap_or_else(|| Term::Leaf(format!("v{}", v.0)))
    }

    fn pat(&mut self, pat: &Pat, acc: Option<&Term>) -> Option<Term> {
        match pat {
            Pat::Any => {
                self.anonymous += 1;
                Some(Term::Leaf(format!("any{}", self.anonymous)))
            }
            Pat::Var(v) if self.rule.vars.get(v.index())?.sort == Sort::Term => term_variable(*v, acc),
            Pat::Var(v) => Some(self.variable(*v)),
            Pat::Bind(v, p) => {
                let term = self.pat(p, acc)?;
                self.bound.insert(*v, term.clone());
                Some(term)
            }
            Pat::Typed(p, _) => self.pat(p, acc),
            Pat::Lit { value, near: None } => Some(Term::Number(*value)),
            Pat::OneOf(pats) => {
                self.alternatives.push(pats.len());
                let taken = self.choices.get(self.at).copied().unwrap_or(0);
                self.at += 1;
                self.pat(pats.get(taken)?, acc)
            }
            Pat::Node(node) => {
                let attrs: Vec<String> = node.attrs.iter().map(attr).collect::<Option<_>>()?;
                match node.head {
                    Head::Op(op) if node.rest.is_none() => {
                        self.op(op, &attrs, node.output, node.args.len(), &mut |r, i, acc| r.pat(&node.args[i], acc))
                    }
                    Head::Op(_) | Head::Region(_) | Head::TermCast | Head::Second => None,
                    head => {
                        let args = node.args.iter().map(|p| self.pat(p, acc)).collect::<Option<Vec<_>>>()?;
                        self.function(head, args, acc)
                    }
                }
            }
            Pat::Lit { near: Some(_), .. } | Pat::Absent | Pat::Optional(_) => None,
        }
    }

    fn build(&mut self, build: &Build, acc: Option<&Term>) -> Option<Term> {
        match build {
            Build::Var(v) if self.rule.vars.get(v.index())?.sort == Sort::Term => term_variable(*v, acc),
            Build::Var(v) => Some(self.variable(*v)),
            Build::Number(e) => self.number(e),
            Build::Frozen(b) => self.build(b, acc),
            Build::Node(node) => {
                let one = |a: &BuildArg| match a {
                    BuildArg::One(b) => Some(b.clone()),
                    _ => None,
                };
                let args = node.args.iter().map(one).collect::<Option<Vec<Build>>>()?;
                match node.head {
                    Head::Op(op) => {
                        let attrs: Vec<String> = node.attrs.iter().map(|e| format!("{e:?}")).collect();
                        self.op(op, &attrs, node.output, args.len(), &mut |r, i, acc| r.build(&args[i], acc))
                    }
                    Head::Region(_) | Head::TermCast | Head::Second => None,
                    head => {
                        let args = args.iter().map(|b| self.build(b, acc)).collect::<Option<Vec<_>>>()?;
                        self.function(head, args, acc)
                    }
                }
            }
            Build::Else(..) | Build::Absent | Build::If(..) => None,
        }
    }

    /// An op: a product with the function that it stores, or a leaf.
    fn op(
        &mut self,
        op: OpId,
        attrs: &[String],
        output: u32,
        args: usize,
        read: ReadOperand<'_, Self>,
    ) -> Option<Term> {
        let product = match self.program.op(op).body {
            OpBody::Builtin(b) => b.accumulator().filter(|_| !b.is_pair()).and_then(|a| self.program.builtin_op(a)),
            OpBody::Defined(_) => None,
        };
        let operands = if product.is_some() { 2 } else { args };
        let mut said: Vec<String> = Vec::new();
        for i in 0..operands {
            said.push(format!("{:?}", read(self, i, None)?));
        }
        let leaf = |op: OpId, attrs: &[String]| Term::Leaf(format!("op{}.{output}{attrs:?}{said:?}", op.0));
        let Some(product) = product.filter(|_| args == 3) else { return Some(leaf(op, attrs)) };
        let (_, attrs) = attrs.split_last()?;
        let acc = leaf(product, attrs);
        let stored = read(self, 2, Some(&acc))?;
        Some(Term::Apply(STORE.into(), Box::new(stored)))
    }

    /// A function of elements.
    fn function(&mut self, head: Head, args: Vec<Term>, acc: Option<&Term>) -> Option<Term> {
        match head {
            Head::Acc => acc.cloned(),
            Head::In(InView::Col) => Some(Term::Leaf(format!("col{:?}", args.first()?))),
            Head::In(_) => args.into_iter().next(),
            Head::Scalar(s) => self.scalar(s, args),
            Head::Op(_) | Head::Region(_) | Head::TermCast | Head::Second => None,
        }
    }

    fn scalar(&mut self, scalar: ScalarId, args: Vec<Term>) -> Option<Term> {
        self.unfolded += 1;
        if self.unfolded > MOST_UNFOLDED {
            return None;
        }
        let program = self.program;
        let body = match &program.scalar(scalar).body {
            ScalarBody::Builtin(b) => return Some(Term::Call(*b, args)),
            ScalarBody::Term(body) => body,
        };
        let mut values: Vec<Term> = Vec::with_capacity(body.nodes.len());
        for node in &body.nodes {
            let value = match node {
                TermNode::Param(i) => args.get(*i as usize)?.clone(),
                TermNode::Lit(l) => Term::Number(l.0),
                TermNode::Call { scalar, args } => {
                    let args = args.iter().map(|a| values.get(a.0 as usize).cloned()).collect::<Option<Vec<_>>>()?;
                    self.scalar(*scalar, args)?
                }
                TermNode::Cast { to, arg } => {
                    Term::Apply(format!("cast {to:?}"), Box::new(values.get(arg.0 as usize)?.clone()))
                }
                TermNode::Acc | TermNode::Second | TermNode::In { .. } => return None,
            };
            values.push(value);
        }
        values.get(body.roots.first()?.0 as usize).cloned()
    }

    /// A number that is computed when the rule is applied, from values of constants.
    fn number(&self, e: &AExpr) -> Option<Term> {
        Some(match e {
            AExpr::Value(v) => number(v)?,
            AExpr::Fact(Fact::Value, v) => self.variable(*v),
            AExpr::Var(v) => match self.rule.lets.iter().find(|l| l.0 == *v) {
                Some((_, e)) => self.number(e)?,
                None => Term::Leaf(format!("v{}", v.0)),
            },
            AExpr::Neg(a) => call(BuiltinScalar::Neg, [self.number(a)?]),
            AExpr::Binary(op, a, b) => {
                let f = match op {
                    BinaryOp::Add => BuiltinScalar::Add,
                    BinaryOp::Sub => BuiltinScalar::Sub,
                    BinaryOp::Mul => BuiltinScalar::Mul,
                    BinaryOp::Div => BuiltinScalar::Div,
                    _ => return None,
                };
                call(f, [self.number(a)?, self.number(b)?])
            }
            _ => return None,
        })
    }
}

/// A variable that stands for a function of the accumulator.
fn term_variable(v: VarId, acc: Option<&Term>) -> Option<Term> {
    Some(Term::Apply(format!("v{}", v.0), Box::new(acc?.clone())))
}

fn is_zero(v: &AttrValue) -> bool {
    matches!(number(v), Some(Term::Number(n)) if n == 0.0)
}

fn number(v: &AttrValue) -> Option<Term> {
    match v {
        AttrValue::Float(f) => Some(Term::Number(*f)),
        AttrValue::Dim(d) => d.as_const().map(|c| Term::Number(c as f64)),
        AttrValue::Bool(b) => Some(Term::Number(f64::from(u8::from(*b)))),
        _ => None,
    }
}

/// An attribute of a pattern as text, in the form that a right side's has.
fn attr(pat: &AttrPat) -> Option<String> {
    match pat {
        AttrPat::Is(e) => Some(format!("{e:?}")),
        AttrPat::Var(v) => Some(format!("{:?}", AExpr::Var(*v))),
        _ => None,
    }
}
