//! Epilogue terms of random instances.
//!
//! In: the pattern of an epilogue and the type of the result it computes. Out: a term that matches,
//! with new tensors for its operands; variables of the pattern are bound. Like `generate`, this
//! makes what the matcher would find; it matches nothing.

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrPat, AttrValue, Head, InView, NodePat, Pat};
use hypatia_dsl::scalar::{Literal, Term, TermId, TermNode};
use hypatia_dsl::typing::TensorType;

use super::open_types::{OpenShape, OpenType};
use super::{Generator, Reject, Try, reject, sizes};
use hypatia_graph::BoundTerm;
use hypatia_graph::instantiate::{read_index, splice};

impl Generator<'_, '_> {
    /// An epilogue that matches the pattern, for a result of this type.
    pub(super) fn term(&mut self, pat: &Pat, result: &TensorType, into: &mut BoundTerm) -> Try<TermId> {
        match pat {
            Pat::Any => self.free_term(result, into),
            Pat::Var(v) => {
                if let Some(bound) = self.env.terms.get(v).cloned() {
                    return splice(&bound, into).map_err(|e| Reject(e.to_string()));
                }
                let mut bound = BoundTerm { term: Term::empty(), reads: Vec::new() };
                let root = self.free_term(result, &mut bound)?;
                bound.term.roots = vec![root];
                self.env.terms.insert(*v, bound.clone());
                splice(&bound, into).map_err(|e| Reject(e.to_string()))
            }
            Pat::Bind(v, p) => {
                let mut bound = BoundTerm { term: Term::empty(), reads: Vec::new() };
                let root = self.term(p, result, &mut bound)?;
                bound.term.roots = vec![root];
                self.env.terms.insert(*v, bound.clone());
                splice(&bound, into).map_err(|e| Reject(e.to_string()))
            }
            Pat::Lit { value, .. } => Ok(into.term.add(TermNode::Lit(Literal(*value)))),
            Pat::OneOf(pats) => {
                let pat = self.alternative(pats);
                self.term(pat, result, into)
            }
            Pat::Node(node) => self.term_node(node, result, into),
            Pat::Typed(..) | Pat::Absent | Pat::Optional(_) => reject("this pattern is not an epilogue term"),
        }
    }

    pub(super) fn term_node(&mut self, node: &NodePat, result: &TensorType, into: &mut BoundTerm) -> Try<TermId> {
        match node.head {
            Head::Acc => Ok(into.term.add(TermNode::Acc)),
            Head::Second => {
                let Some(arg) = node.args.first() else { return reject("a second accumulator of nothing") };
                let arg = self.term(arg, result, into)?;
                Ok(into.term.over_second(arg))
            }
            Head::In(view) => {
                let shape = sizes(result)?;
                let shape = match view {
                    InView::Broadcast => OpenShape::Into(shape),
                    InView::Full => OpenShape::Is(shape),
                    InView::Row => OpenShape::Is(shape.last().copied().into_iter().collect()),
                    InView::Col => OpenShape::Is(shape[..shape.len().saturating_sub(1)].to_vec()),
                };
                let want = OpenType { dtype: Some(result.dtype), shape };
                let Some(arg) = node.args.first() else { return reject("a read without an operand") };
                let Some(value) = self.tensor(arg, &want)? else { return reject("an epilogue reads nothing") };
                let input = read_index(value, into);
                Ok(into.term.add(TermNode::In { input, view }))
            }
            Head::Scalar(scalar) => {
                // Operands beside a cast have its type.
                let own = node.args.iter().find_map(|arg| self.cast_to(arg));
                let own = TensorType { dtype: own.unwrap_or(result.dtype), ..result.clone() };
                let mut args = Vec::with_capacity(node.args.len());
                for arg in &node.args {
                    args.push(self.term(arg, &own, into)?);
                }
                Ok(into.term.add(TermNode::Call { scalar, args }))
            }
            Head::TermCast => {
                let (Some(arg), Some(attr)) = (node.args.first(), node.attrs.first()) else {
                    return reject("a cast without an operand");
                };
                // Sums of bytes are i32 until they are cast.
                let inner = self.stored.map(|_| self.cast_to(arg).unwrap_or(DType::I32));
                let inner = TensorType { dtype: inner.unwrap_or(result.dtype), ..result.clone() };
                let arg = self.term(arg, &inner, into)?;
                let AttrValue::DType(to) = self.match_or_make(attr, AttrValue::DType(result.dtype))? else {
                    return reject("a cast to something that is no type");
                };
                Ok(into.term.add(TermNode::Cast { to, arg }))
            }
            Head::Op(_) => reject("an epilogue calls an op"),
            Head::Region(_) => reject("a pointwise region has no value here"),
        }
    }

    /// The type to which a part of an epilogue is cast, in products of bytes: their operands have
    /// several types.
    fn cast_to(&self, pat: &Pat) -> Option<DType> {
        let Pat::Node(node) = pat else { return None };
        self.stored?;
        match node.head {
            Head::TermCast => match node.attrs.first()? {
                AttrPat::Is(e) => match self.eval(e)? {
                    AttrValue::DType(d) => Some(d),
                    _ => None,
                },
                _ => None,
            },
            Head::Scalar(_) => node.args.iter().find_map(|arg| self.cast_to(arg)),
            _ => None,
        }
    }

    /// A random epilogue that gives what is stored.
    fn free_term(&mut self, result: &TensorType, into: &mut BoundTerm) -> Try<TermId> {
        let root = self.random_term(result, into, 0)?;
        match self.stored.filter(|to| *to != result.dtype) {
            Some(to) => Ok(into.term.add(TermNode::Cast { to, arg: root })),
            None => Ok(root),
        }
    }

    /// A random epilogue: `acc` in the simplest case.
    fn random_term(&mut self, result: &TensorType, into: &mut BoundTerm, depth: usize) -> Try<TermId> {
        let acc = into.term.add(TermNode::Acc);
        if depth > 2 {
            return Ok(acc);
        }
        let builtin = |s: BuiltinScalar| self.program.builtin_scalar(s);
        let float = result.dtype.is_float();
        match self.source.weighted(&[45, 15, 15, 15, 10]) {
            1 => {
                let Some(add) = builtin(BuiltinScalar::Add) else { return Ok(acc) };
                let inner = self.random_term(result, into, depth + 1)?;
                let want = OpenType { dtype: Some(result.dtype), shape: OpenShape::Into(sizes(result)?) };
                let t = self.fresh("t", None, &want)?;
                let input = read_index(t, into);
                let read = into.term.add(TermNode::In { input, view: InView::Broadcast });
                Ok(into.term.add(TermNode::Call { scalar: add, args: vec![inner, read] }))
            }
            2 => {
                let Some(mul) = builtin(BuiltinScalar::Mul) else { return Ok(acc) };
                let inner = self.random_term(result, into, depth + 1)?;
                let lit = into.term.add(TermNode::Lit(Literal(if float { 0.5 } else { 2.0 })));
                Ok(into.term.add(TermNode::Call { scalar: mul, args: vec![inner, lit] }))
            }
            3 if float => {
                let Some(tanh) = builtin(BuiltinScalar::Tanh) else { return Ok(acc) };
                let inner = self.random_term(result, into, depth + 1)?;
                Ok(into.term.add(TermNode::Call { scalar: tanh, args: vec![inner] }))
            }
            4 => {
                let Some(max) = builtin(BuiltinScalar::Max) else { return Ok(acc) };
                let inner = self.random_term(result, into, depth + 1)?;
                let lit = into.term.add(TermNode::Lit(Literal(0.0)));
                Ok(into.term.add(TermNode::Call { scalar: max, args: vec![inner, lit] }))
            }
            _ => Ok(acc),
        }
    }
}
