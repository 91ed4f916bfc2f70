//! Types of right sides: applies `typing` to each application, bottom-up.
//!
//! In: a [`Build`], types of its variables, values of its attributes. Out: the type of its result,
//! or why there is none. Invariant: `Ok(None)` means that the type depends on something unknown.

use crate::dtype::{DType, Kind};
use crate::ir::{
    AExpr, AttrValue, Build, BuildArg, BuildNode, Fact, Head, InView, OpBody, OpId, ParamKind, Program, VarId,
};
use crate::scalar::typed::{SUMS_OF_BYTES, lane, not_stored};
use crate::shape::{Dim, Shape, broadcast};
use crate::typing::{
    Bindings, Facts, TensorType, TypeError, apply_op, apply_scalar, codes, eval, eval_guard, normalise_attrs, type_fact,
};

/// Types of right sides over variables of known types.
pub(crate) struct Infer<'p> {
    program: &'p Program,
    lookup: &'p dyn Fn(VarId) -> Option<TensorType>,
    /// Values of attributes and sizes.
    pub bindings: Bindings,
    /// Absent optional operands: `present(x)` is false for them.
    pub absent: Vec<VarId>,
}

/// The types of tensor variables as facts.
struct TypeFacts<'p>(&'p dyn Fn(VarId) -> Option<TensorType>, &'p [VarId]);

impl Facts for TypeFacts<'_> {
    fn fact(&self, fact: Fact, var: VarId) -> Option<AttrValue> {
        if fact == Fact::Present {
            return Some(AttrValue::Bool(!self.1.contains(&var)));
        }
        type_fact(fact, &(self.0)(var)?)
    }
}

type Typed = Result<Option<TensorType>, TypeError>;

impl<'p> Infer<'p> {
    pub(crate) fn new(program: &'p Program, lookup: &'p dyn Fn(VarId) -> Option<TensorType>) -> Infer<'p> {
        Infer { program, lookup, bindings: Bindings::default(), absent: Vec::new() }
    }

    /// Evaluates an attribute expression.
    pub(crate) fn value(&self, e: &AExpr) -> Option<AttrValue> {
        eval(e, &self.bindings, &TypeFacts(self.lookup, &self.absent))
    }

    /// Whether a guard holds.
    pub(crate) fn holds(&self, e: &AExpr) -> Option<bool> {
        eval_guard(e, &self.bindings, &TypeFacts(self.lookup, &self.absent))
    }

    /// The type of a right side.
    pub(crate) fn build(&self, b: &Build) -> Typed {
        match b {
            Build::Var(v) => Ok((self.lookup)(*v)),
            Build::Number(_) | Build::Absent => Ok(None),
            Build::Else(v, other) => {
                if self.absent.contains(v) {
                    self.build(other)
                } else {
                    Ok((self.lookup)(*v))
                }
            }
            Build::Frozen(b) => self.build(b),
            Build::If(c, a, b) => match self.holds(c) {
                Some(true) => self.build(a),
                Some(false) => self.build(b),
                None => Ok(None),
            },
            Build::Node(n) => match n.head {
                Head::Scalar(_) => self.scalar(n),
                Head::Op(id) => self.op(id, n),
                Head::Acc | Head::Second | Head::In(_) | Head::TermCast | Head::Region(_) => Ok(None),
            },
        }
    }

    fn scalar(&self, n: &BuildNode) -> Typed {
        let Head::Scalar(id) = n.head else { return Ok(None) };
        let mut types = Vec::new();
        let mut numbers = 0;
        for a in &n.args {
            let BuildArg::One(b) = a else { return Ok(None) };
            if self.is_number(b) {
                numbers += 1;
                types.push(None);
            } else {
                match self.build(b)? {
                    Some(t) => types.push(Some(t)),
                    None => return Ok(None),
                }
            }
        }
        // A number is a splat of rank 0 with the dtype of the first sibling operand that is a
        // number.
        let kinds = &self.program.scalar(id).params;
        let first =
            types.iter().zip(kinds).filter(|(_, k)| k.1 == Kind::Number).find_map(|(t, _)| t.as_ref().map(|t| t.dtype));
        if numbers > 0 {
            let Some(dtype) = first else { return Ok(None) };
            n.args
                .iter()
                .try_for_each(|a| if let BuildArg::One(b) = a { self.check_number(b, dtype) } else { Ok(()) })?;
        }
        let types: Option<Vec<TensorType>> = types
            .into_iter()
            .map(|t| t.or_else(|| first.map(|dtype| TensorType { dtype, shape: Vec::new() })))
            .collect();
        match types {
            Some(t) => apply_scalar(self.program, id, &t).map(Some),
            None => Ok(None),
        }
    }

    /// True if it is a number, or the number that replaces an absent operand.
    fn is_number(&self, b: &Build) -> bool {
        match b {
            Build::Number(_) => true,
            Build::Else(v, other) => self.absent.contains(v) && self.is_number(other),
            Build::Frozen(b) => self.is_number(b),
            _ => false,
        }
    }

    /// Checks that an integer type can represent the numbers beside it exactly.
    fn check_number(&self, b: &Build, dtype: DType) -> Result<(), TypeError> {
        let value = match b {
            Build::Number(e) => self.value(e),
            Build::Else(v, other) if self.absent.contains(v) => return self.check_number(other, dtype),
            Build::Frozen(b) => return self.check_number(b, dtype),
            _ => None,
        };
        let number = match value {
            Some(AttrValue::Float(v)) => v,
            Some(AttrValue::Dim(d)) => match d.as_const() {
                Some(v) => v as f64,
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        if dtype.is_int() && dtype.round(number) != number {
            let message = format!("{dtype} cannot represent the number {number}");
            return Err(TypeError::new(crate::diag::Code(302), message));
        }
        Ok(())
    }

    fn op(&self, id: OpId, n: &BuildNode) -> Typed {
        let def = self.program.op(id);
        let params: Vec<&ParamKind> = def.operands().map(|(_, p)| &p.kind).collect();
        let mut types: Vec<Option<TensorType>> = Vec::new();
        let mut numbers: Vec<usize> = Vec::new();
        let mut terms: Vec<&Build> = Vec::new();
        for (i, a) in n.args.iter().enumerate() {
            let BuildArg::One(b) = a else { return Ok(None) };
            match params.get(i.min(params.len().saturating_sub(1))) {
                Some(ParamKind::Term) => terms.push(b),
                _ if matches!(b, Build::Absent) => types.push(None),
                _ if matches!(b, Build::Var(v) if self.absent.contains(v)) => types.push(None),
                _ if self.is_number(b) => {
                    numbers.push(types.len());
                    types.push(None);
                }
                _ => match self.build(b)? {
                    Some(t) => types.push(Some(t)),
                    None => return Ok(None),
                },
            }
        }
        if !numbers.is_empty() {
            let Some(dtype) = types.iter().flatten().map(|t| t.dtype).next() else { return Ok(None) };
            n.args
                .iter()
                .try_for_each(|a| if let BuildArg::One(b) = a { self.check_number(b, dtype) } else { Ok(()) })?;
            for i in numbers {
                types[i] = Some(TensorType { dtype, shape: Vec::new() });
            }
        }
        let attrs: Vec<Option<AttrValue>> = n.attrs.iter().map(|a| self.value(a)).collect();
        if attrs.iter().any(Option::is_none) {
            return Ok(None);
        }
        let rank = types.first().and_then(Option::as_ref).map(|t| t.shape.len());
        let attrs = normalise_attrs(def, &attrs, rank)?;
        let results = apply_op(self.program, id, &attrs, &types)?;
        let Some(out) = results.get(n.output as usize).cloned() else {
            return Err(TypeError::new(
                super::code::ARITY,
                format!("`{}` has {} results here, not {}", def.name, results.len(), n.output + 1),
            ));
        };
        let bytes = types.first().is_some_and(|t| t.as_ref().is_some_and(|t| t.dtype.is_byte()));
        for t in terms.into_iter().filter(|_| def.terms_read_results()) {
            self.term(t, &out)?;
            if bytes && matches!(def.body, OpBody::Builtin(_)) {
                self.stored(t, out.dtype)
                    .map_err(|(why, hint)| TypeError::new(codes::BYTES, format!("`{}`: {why}", def.name)).hint(hint))?;
            }
        }
        Ok(Some(out))
    }

    /// Checks that an epilogue over products of bytes gives what is stored, as far as that is
    /// known; else says why, and what to do.
    fn stored(&self, b: &Build, to: DType) -> Result<(), (String, String)> {
        const CAST: &str = "write `cast(acc, to = f32) * row(scale)`, or give operands of i32";
        let unfit = |e| (format!("{SUMS_OF_BYTES}, and the term does not fit: {e}"), CAST.to_string());
        let given = self.term_type(b).map_err(unfit)?;
        not_stored(given, to).map_or(Ok(()), |why| Err((why, format!("write `cast(.., to = {to})` around the term"))))
    }

    /// The element type that a term over sums in i32 computes with; none for a number, or if it is
    /// unknown.
    fn term_type(&self, b: &Build) -> Result<Option<DType>, String> {
        let Build::Node(n) = b else { return Ok(None) };
        let mut args = n.args.iter().filter_map(|a| if let BuildArg::One(b) = a { Some(b) } else { None });
        match n.head {
            Head::Acc | Head::Second => Ok(Some(DType::I32)),
            Head::In(_) => {
                let read = args.next().and_then(|a| self.build(a).ok().flatten());
                Ok(read.map(|t| lane(t.dtype)))
            }
            Head::TermCast => match n.attrs.first().and_then(|a| self.value(a)) {
                Some(AttrValue::DType(to)) => Ok(Some(lane(to))),
                _ => Ok(None),
            },
            Head::Scalar(s) => {
                let mut found = None;
                for arg in args {
                    let arg = self.term_type(arg)?.filter(|d| *d != DType::Bool);
                    if let (Some(x), Some(y)) = (found, arg)
                        && x != y
                    {
                        let name = &self.program.scalar(s).name;
                        return Err(format!("{name} of {x} and {y}"));
                    }
                    found = found.or(arg);
                }
                let decides = self.program.scalar(s).result == Kind::Bool;
                Ok(if decides { Some(DType::Bool) } else { found })
            }
            Head::Op(_) | Head::Region(_) => Ok(None),
        }
    }

    /// Checks that the tensors read by an epilogue broadcast to the output.
    fn term(&self, b: &Build, out: &TensorType) -> Result<(), TypeError> {
        let Build::Node(n) = b else { return Ok(()) };
        for a in &n.args {
            let BuildArg::One(a) = a else { continue };
            if let Head::In(view) = n.head {
                let Some(t) = self.build(a)? else { continue };
                let symbolic = t.shape.iter().chain(&out.shape).any(|d| d.as_const().is_none());
                // `col(v)` has one number for each row.
                let last = (view == InView::Col).then(|| Dim::from(1));
                let read: Shape = t.shape.iter().cloned().chain(last).collect();
                if broadcast(&out.shape, &read).as_ref() != Some(&out.shape) && !symbolic {
                    return Err(TypeError::new(
                        crate::diag::Code(304),
                        format!("the epilogue reads {t}, which does not broadcast to the output {out}"),
                    ));
                }
            } else {
                self.term(a, out)?;
            }
        }
        Ok(())
    }
}
