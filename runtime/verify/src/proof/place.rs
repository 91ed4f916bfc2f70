//! The checker of index maps: which elements of the variables an element of a result reads.
//!
//! In: two tensors over inputs whose sizes are polynomials, and a tree of cases. Out: whether every
//! element of both is the same function of the same elements. Invariant: the cases of a tree cover
//! every index; a step that cannot be shown refuses the proof.
//!
//! An element of an input is named by its place in row-major order, a polynomial over sizes and
//! indices: equal polynomials are equal places. A reshape keeps places. Where a place is divided by
//! a size, the rest must be shown to lie below it. If it cannot, the index is split:
//! `i = high * size + low`. Where a concatenation is read, the index is cut where a piece ends.

use std::collections::BTreeMap;

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::ir::{AttrValue, Program, ScalarBody, ScalarId};
use hypatia_dsl::scalar::TermNode;
use hypatia_dsl::shape::{Dim, DimFactor, Symbol, product};

use super::Proved;
use super::check::{self, Proof, Term};

/// A tensor of a rule, over tensors before it.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub shape: Vec<Dim>,
    pub kind: Kind,
}

/// What a tensor is.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// A variable.
    Input(String),
    /// A number everywhere.
    Number(f64),
    /// A function of elements, with broadcasting.
    Scalar(ScalarId, Vec<usize>),
    /// A result of a builtin op without a term.
    Op(BuiltinOp, Vec<AttrValue>, Vec<usize>, u32),
}

/// The cases of a proof.
#[derive(Clone, Debug)]
pub(super) enum Tree {
    /// Both sides are compared, after these steps.
    Equal(Proof),
    /// The index is `high * size + low`.
    Split(Symbol, Dim, Box<Tree>),
    /// The index lies below the place, or not.
    Cut(Symbol, Dim, Box<[Tree; 2]>),
}

/// What a comparison lacks.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Need {
    /// A split of an index by that size.
    Split(Symbol, Dim),
    /// A cut of an index at that place.
    Cut(Symbol, Dim),
    /// Nothing that is known here.
    Unknown,
}

type Read<T> = Result<T, Need>;

/// What is known of an index.
#[derive(Clone, Debug)]
enum Refined {
    Split(Dim),
    /// Below that place.
    Below(Dim),
    /// From that place on.
    From(Dim),
}

/// The cases that are assumed.
#[derive(Clone, Debug, Default)]
pub(super) struct Case(Vec<(Symbol, Refined)>);

impl Case {
    pub(super) fn split(&self, index: &Symbol, size: &Dim) -> Case {
        self.with(index, Refined::Split(size.clone()))
    }

    /// Both cases of a cut.
    pub(super) fn cut(&self, index: &Symbol, at: &Dim) -> [Case; 2] {
        [self.with(index, Refined::Below(at.clone())), self.with(index, Refined::From(at.clone()))]
    }

    fn with(&self, index: &Symbol, what: Refined) -> Case {
        let mut case = self.clone();
        case.0.push((index.clone(), what));
        case
    }
}

/// Whether the tree shows that both tensors are equal in this sense.
pub(super) fn holds(
    program: &Program,
    tensors: &[Tensor],
    sides: [usize; 2],
    tree: &Tree,
    case: &Case,
    sense: Proved,
) -> bool {
    match tree {
        Tree::Equal(proof) => match pair(program, tensors, sides, case) {
            Ok([left, right]) => check::holds(proof, &left, &right, sense),
            Err(_) => false,
        },
        Tree::Split(index, size, then) => holds(program, tensors, sides, then, &case.split(index, size), sense),
        Tree::Cut(index, at, both) => {
            let mut each = case.cut(index, at).into_iter().zip(both.iter());
            each.all(|(case, tree)| holds(program, tensors, sides, tree, &case, sense))
        }
    }
}

/// One element of both tensors, which have one shape, in a case.
pub(super) fn pair(program: &Program, tensors: &[Tensor], sides: [usize; 2], case: &Case) -> Read<[Term; 2]> {
    let [left, right] = sides.map(|s| &tensors[s].shape);
    if left.len() != right.len() || left.iter().zip(right).any(|(l, r)| l.known_eq(r) != Some(true)) {
        return Err(Need::Unknown);
    }
    if left.iter().any(|d| d.as_const() == Some(0)) {
        // No element at all.
        return Ok([Term::Number(0.0), Term::Number(0.0)]);
    }
    let mut reader = Reader { program, tensors, case, sizes: BTreeMap::new(), depth: 0, steps: 0 };
    let index = reader.bind_all("i", &left.clone())?;
    Ok([reader.element(sides[0], &index)?, reader.element(sides[1], &index)?])
}

/// The limit of elements that are read for one element.
const MOST_STEPS: usize = 4_000;

struct Reader<'a> {
    program: &'a Program,
    tensors: &'a [Tensor],
    case: &'a Case,
    /// Each index is below its size.
    sizes: BTreeMap<Symbol, Dim>,
    /// The number of enclosing sums, which names their indices.
    depth: usize,
    steps: usize,
}

fn add(a: &Dim, b: &Dim) -> Read<Dim> {
    a.checked_add(b).ok_or(Need::Unknown)
}

fn sub(a: &Dim, b: &Dim) -> Read<Dim> {
    a.checked_sub(b).ok_or(Need::Unknown)
}

fn mul(a: &Dim, b: &Dim) -> Read<Dim> {
    a.checked_mul(b).ok_or(Need::Unknown)
}

fn is_at_least_zero(d: &Dim) -> bool {
    d.lower_bound().is_some_and(|b| b >= 0)
}

impl Reader<'_> {
    /// Indices of these sizes, as the case refines them.
    fn bind_all(&mut self, name: &str, shape: &[Dim]) -> Read<Vec<Dim>> {
        let depth = self.depth;
        shape.iter().enumerate().map(|(axis, size)| self.bind(format!("{name}{depth}.{axis}").into(), size)).collect()
    }

    fn bind(&mut self, index: Symbol, size: &Dim) -> Read<Dim> {
        if size.as_const() == Some(1) {
            return Ok(Dim::from(0));
        }
        let part = |name: &str| Symbol::from(format!("{index}{name}"));
        match self.case.0.iter().find(|(i, _)| *i == index).map(|(_, r)| r.clone()) {
            None => {
                self.sizes.insert(index.clone(), size.clone());
                Ok(Dim::symbol(index))
            }
            Some(Refined::Split(low)) => {
                let high = size.div_exact(&low).ok_or(Need::Unknown)?;
                let (h, l) = (self.bind(part("h"), &high)?, self.bind(part("l"), &low)?);
                add(&mul(&h, &low)?, &l)
            }
            Some(Refined::Below(at)) if self.lies_in(&at, size) => self.bind(part("b"), &at),
            Some(Refined::From(at)) if self.lies_in(&at, size) => {
                let rest = self.bind(part("f"), &sub(size, &at)?)?;
                add(&at, &rest)
            }
            Some(_) => Err(Need::Unknown),
        }
    }

    /// Whether a place is known to lie between 0 and the size, both included.
    fn lies_in(&self, at: &Dim, size: &Dim) -> bool {
        is_at_least_zero(at) && sub(size, at).is_ok_and(|d| is_at_least_zero(&d))
    }

    /// The element of a tensor at an index.
    fn element(&mut self, tensor: usize, index: &[Dim]) -> Read<Term> {
        self.steps += 1;
        if self.steps > MOST_STEPS {
            return Err(Need::Unknown);
        }
        let tensors = self.tensors;
        let Tensor { shape, kind } = &tensors[tensor];
        match kind {
            Kind::Number(v) => Ok(Term::Number(*v)),
            Kind::Input(name) => Ok(Term::Leaf(format!("{name}@{}", place(shape, index)?))),
            Kind::Scalar(scalar, args) => {
                let args = args.iter().map(|a| self.broadcast(*a, shape, index)).collect::<Read<Vec<_>>>()?;
                self.scalar(*scalar, args)
            }
            Kind::Op(op, attrs, operands, output) => self.op(*op, attrs, operands, *output, shape, index),
        }
    }

    /// The element of an operand that broadcasts to a shape.
    fn broadcast(&mut self, operand: usize, shape: &[Dim], index: &[Dim]) -> Read<Term> {
        let own = self.tensors[operand].shape.clone();
        let skipped = shape.len().checked_sub(own.len()).ok_or(Need::Unknown)?;
        let index = own.iter().zip(&shape[skipped..]).zip(&index[skipped..]).map(|((own, size), i)| match own {
            own if own.as_const() == Some(1) => Ok(Dim::from(0)),
            own if own.known_eq(size) == Some(true) => Ok(i.clone()),
            _ => Err(Need::Unknown),
        });
        let index = index.collect::<Read<Vec<_>>>()?;
        self.element(operand, &index)
    }

    /// The element at a place in row-major order.
    fn flat(&mut self, tensor: usize, at: &Dim) -> Read<Term> {
        let tensors = self.tensors;
        let Tensor { shape, kind } = &tensors[tensor];
        match kind {
            Kind::Op(BuiltinOp::Reshape, _, operands, _) => return self.flat(operands[0], at),
            Kind::Input(name) => return Ok(Term::Leaf(format!("{name}@{at}"))),
            Kind::Scalar(scalar, args) if args.iter().all(|a| self.keeps_places(*a, shape)) => {
                let single = |d: &Dim| d.as_const() == Some(1);
                let args = args.iter().map(|a| match &tensors[*a].shape {
                    own if own.iter().all(single) => self.element(*a, &vec![Dim::from(0); own.len()]),
                    _ => self.flat(*a, at),
                });
                let args = args.collect::<Read<Vec<_>>>()?;
                return self.scalar(*scalar, args);
            }
            _ => {}
        }
        let (mut rest, mut index) = (at.clone(), Vec::with_capacity(shape.len()));
        for axis in 0..shape.len() {
            let stride = product(&shape[axis + 1..]).ok_or(Need::Unknown)?;
            let (high, low) = self.divide(&rest, &stride)?;
            index.push(high);
            rest = low;
        }
        self.element(tensor, &index)
    }

    /// Whether an operand that broadcasts to a shape has its places, or one element alone.
    fn keeps_places(&self, operand: usize, shape: &[Dim]) -> bool {
        let own = &self.tensors[operand].shape;
        let same = own.len() == shape.len() && own.iter().zip(shape).all(|(a, b)| a.known_eq(b) == Some(true));
        same || own.iter().all(|d| d.as_const() == Some(1))
    }

    /// The quotient and the rest of a division by a size that is not 0.
    fn divide(&self, e: &Dim, by: &Dim) -> Read<(Dim, Dim)> {
        let (mut quotient, mut rest, mut terms) = (Dim::from(0), Dim::from(0), Vec::new());
        for term in e.polynomial() {
            let term = Dim::from_polynomial(vec![term]);
            match term.div_exact(by) {
                Some(q) => quotient = add(&quotient, &q)?,
                None => {
                    rest = add(&rest, &term)?;
                    terms.push(term);
                }
            }
        }
        if rest.as_const() == Some(0) || (self.is_positive(&rest)? && self.is_below(&rest, by)?) {
            return Ok((quotient, rest));
        }
        for (index, size) in &self.sizes {
            let unit = Dim::symbol(index.clone());
            let factor = terms.iter().find_map(|t| t.div_exact(&unit));
            let low = factor.and_then(|f| by.div_exact(&f));
            if let Some(low) = low.filter(|l| size.div_exact(l).is_some_and(|h| h.as_const() != Some(1))) {
                return Err(Need::Split(index.clone(), low));
            }
        }
        Err(Need::Unknown)
    }

    /// Whether an expression over indices is known to be at least 0.
    fn is_positive(&self, e: &Dim) -> Read<bool> {
        Ok(is_at_least_zero(&self.bound(e, false)?))
    }

    /// Whether it is known to be below a size.
    fn is_below(&self, e: &Dim, size: &Dim) -> Read<bool> {
        Ok(is_at_least_zero(&sub(&sub(size, &Dim::from(1))?, &self.bound(e, true)?)?))
    }

    /// A bound over sizes alone: indices lie between 0 and their size less 1.
    fn bound(&self, e: &Dim, upper: bool) -> Read<Dim> {
        let mut sum = Dim::from(0);
        for (coefficient, factors) in e.polynomial() {
            let mut term = Dim::from(coefficient);
            for factor in factors {
                let DimFactor::Symbol(s) = factor else { return Err(Need::Unknown) };
                let factor = match self.sizes.get(&s) {
                    None => Dim::symbol(s),
                    Some(size) if (coefficient > 0) == upper => sub(size, &Dim::from(1))?,
                    Some(_) => Dim::from(0),
                };
                term = mul(&term, &factor)?;
            }
            sum = add(&sum, &term)?;
        }
        Ok(sum)
    }

    fn op(
        &mut self,
        op: BuiltinOp,
        attrs: &[AttrValue],
        operands: &[usize],
        output: u32,
        shape: &[Dim],
        index: &[Dim],
    ) -> Read<Term> {
        let first = operands.first().copied();
        let of = first.ok_or(Need::Unknown);
        match op {
            BuiltinOp::Reshape => self.flat(of?, &place(shape, index)?),
            BuiltinOp::Expand => self.broadcast(of?, shape, index),
            BuiltinOp::Transpose => {
                let mut inner = vec![Dim::from(0); index.len()];
                for (i, axis) in ints(attrs.first())?.into_iter().enumerate() {
                    *inner.get_mut(axis).ok_or(Need::Unknown)? = index[i].clone();
                }
                self.element(of?, &inner)
            }
            BuiltinOp::Slice => {
                let (axis, start, step) = (int(attrs.first())?, size(attrs.get(1))?, size(attrs.get(3))?);
                let mut inner = index.to_vec();
                inner[axis] = add(&start, &mul(&inner[axis], &step)?)?;
                self.element(of?, &inner)
            }
            BuiltinOp::Split => {
                let (axis, pieces) = (int(attrs.first())?, sizes(attrs.get(1))?);
                let mut inner = index.to_vec();
                for piece in pieces.get(..output as usize).ok_or(Need::Unknown)? {
                    inner[axis] = add(&inner[axis], piece)?;
                }
                self.element(of?, &inner)
            }
            BuiltinOp::Concat => self.concat(int(attrs.first())?, operands, index),
            BuiltinOp::Matmul => self.matmul(operands, shape, index),
            BuiltinOp::Sum | BuiltinOp::Mean | BuiltinOp::Amax | BuiltinOp::Amin | BuiltinOp::Prod => {
                self.reduction(op, attrs, of?, index)
            }
            BuiltinOp::Cast => {
                let x = self.element(of?, index)?;
                Ok(Term::Apply(format!("cast {:?}", attrs.first()), Box::new(x)))
            }
            BuiltinOp::Iota => Ok(Term::Leaf(format!("iota {:?} {}", attrs.get(2), index[int(attrs.get(1))?]))),
            BuiltinOp::Full => match attrs.get(1) {
                Some(AttrValue::Float(v)) => Ok(Term::Number(*v)),
                _ => Err(Need::Unknown),
            },
            _ => self.unknown(op, attrs, operands, output, index),
        }
    }

    /// The piece in which an index lies.
    fn concat(&mut self, axis: usize, operands: &[usize], index: &[Dim]) -> Read<Term> {
        let mut at = index[axis].clone();
        for (i, operand) in operands.iter().enumerate() {
            let piece = self.tensors[*operand].shape[axis].clone();
            let mut inner = index.to_vec();
            inner[axis] = at.clone();
            // The index lies in the whole, so it lies in the last piece if in none before.
            if i + 1 == operands.len() || self.is_below(&at, &piece)? {
                return self.element(*operand, &inner);
            }
            let behind = sub(&at, &piece)?;
            if !self.is_positive(&behind)? {
                return Err(self.cut(&at, &piece));
            }
            at = behind;
        }
        Err(Need::Unknown)
    }

    /// The cut that decides whether an index lies below a size.
    fn cut(&self, at: &Dim, size: &Dim) -> Need {
        let one = |index: &Symbol| -> Option<Need> {
            let rest = at.checked_sub(&Dim::symbol(index.clone()))?;
            (!rest.symbols().iter().any(|s| self.sizes.contains_key(s)))
                .then(|| size.checked_sub(&rest).map(|place| Need::Cut(index.clone(), place)))?
        };
        self.sizes.keys().find_map(one).unwrap_or(Need::Unknown)
    }

    fn matmul(&mut self, operands: &[usize], shape: &[Dim], index: &[Dim]) -> Read<Term> {
        let [a, b] = operands else { return Err(Need::Unknown) };
        let (a_shape, b_shape) = (self.tensors[*a].shape.clone(), self.tensors[*b].shape.clone());
        let batch = index.len() - 2;
        let inner = a_shape.last().ok_or(Need::Unknown)?.clone();
        if inner.as_const() == Some(0) {
            return Ok(Term::Leaf("product over nothing".into()));
        }
        let k = self.enter("k", std::slice::from_ref(&inner))?;
        let batches = |own: &[Dim]| -> Read<Vec<Dim>> {
            let own = &own[..own.len() - 2];
            let skipped = batch.checked_sub(own.len()).ok_or(Need::Unknown)?;
            let place = |(i, size): (usize, &Dim)| match size {
                size if size.as_const() == Some(1) => Ok(Dim::from(0)),
                size if size.known_eq(&shape[skipped + i]) == Some(true) => Ok(index[skipped + i].clone()),
                _ => Err(Need::Unknown),
            };
            own.iter().enumerate().map(place).collect()
        };
        let (mut at_a, mut at_b) = (batches(&a_shape)?, batches(&b_shape)?);
        at_a.extend([index[batch].clone(), k[0].clone()]);
        at_b.extend([k[0].clone(), index[batch + 1].clone()]);
        let factors = [self.element(*a, &at_a)?, self.element(*b, &at_b)?];
        let index = format!("k{}.", self.depth);
        self.depth -= 1;
        let summand = Term::Call(BuiltinScalar::Mul, factors.to_vec());
        Ok(Term::Sum(format!("product over {inner}, {index}"), index, Box::new(summand)))
    }

    fn reduction(&mut self, op: BuiltinOp, attrs: &[AttrValue], x: usize, index: &[Dim]) -> Read<Term> {
        let shape = self.tensors[x].shape.clone();
        let mut axes = ints(attrs.first())?;
        axes.sort_unstable();
        axes.dedup();
        let keeps = attrs.get(1) == Some(&AttrValue::Bool(true));
        let over: Vec<Dim> = axes.iter().map(|a| shape.get(*a).cloned().ok_or(Need::Unknown)).collect::<Read<_>>()?;
        if over.iter().any(|d| d.as_const() == Some(0)) {
            return Ok(Term::Leaf(format!("{op:?} over nothing")));
        }
        let inner = self.enter("r", &over)?;
        let mut outer = index.iter();
        let mut at = Vec::with_capacity(shape.len());
        for axis in 0..shape.len() {
            match axes.iter().position(|a| *a == axis) {
                Some(i) => {
                    at.push(inner[i].clone());
                    if keeps {
                        outer.next();
                    }
                }
                None => at.push(outer.next().ok_or(Need::Unknown)?.clone()),
            }
        }
        let x = Box::new(self.element(x, &at)?);
        let index = format!("r{}.", self.depth);
        self.depth -= 1;
        let name = format!("{op:?} over {over:?}, {index}");
        Ok(match op {
            BuiltinOp::Sum | BuiltinOp::Mean => Term::Sum(name, index, x),
            _ => Term::Apply(name, x),
        })
    }

    /// Indices of a sum, or of an operand as a whole, inside of which deeper ones have other names.
    fn enter(&mut self, name: &str, sizes: &[Dim]) -> Read<Vec<Dim>> {
        self.depth += 1;
        self.bind_all(name, sizes)
    }

    /// An op that nothing is assumed about: a function of its attributes, of its index, and of its
    /// operands as functions of theirs.
    fn unknown(
        &mut self,
        op: BuiltinOp,
        attrs: &[AttrValue],
        operands: &[usize],
        output: u32,
        index: &[Dim],
    ) -> Read<Term> {
        let mut said = Vec::with_capacity(operands.len());
        for operand in operands {
            let shape = self.tensors[*operand].shape.clone();
            let formal = self.enter("o", &shape)?;
            said.push(format!("{shape:?} {:?}", self.element(*operand, &formal)?));
            self.depth -= 1;
        }
        Ok(Term::Leaf(format!("{op:?}.{output} {attrs:?} {said:?} at {index:?} in {}", self.depth)))
    }

    fn scalar(&mut self, scalar: ScalarId, args: Vec<Term>) -> Read<Term> {
        self.steps += 1;
        if self.steps > MOST_STEPS {
            return Err(Need::Unknown);
        }
        let program = self.program;
        let body = match &program.scalar(scalar).body {
            ScalarBody::Builtin(b) => return Ok(Term::Call(*b, args)),
            ScalarBody::Term(body) => body,
        };
        let mut values: Vec<Term> = Vec::with_capacity(body.nodes.len());
        for node in &body.nodes {
            let value = match node {
                TermNode::Param(i) => args.get(*i as usize).cloned().ok_or(Need::Unknown)?,
                TermNode::Lit(l) => Term::Number(l.0),
                TermNode::Call { scalar, args } => {
                    let args = args.iter().map(|a| values.get(a.0 as usize).cloned()).collect::<Option<Vec<_>>>();
                    self.scalar(*scalar, args.ok_or(Need::Unknown)?)?
                }
                _ => return Err(Need::Unknown),
            };
            values.push(value);
        }
        let root = body.roots.first().ok_or(Need::Unknown)?;
        values.get(root.0 as usize).cloned().ok_or(Need::Unknown)
    }
}

/// The place of an index in row-major order.
fn place(shape: &[Dim], index: &[Dim]) -> Read<Dim> {
    shape.iter().zip(index).try_fold(Dim::from(0), |sum, (size, i)| add(&mul(&sum, size)?, i))
}

fn size(attr: Option<&AttrValue>) -> Read<Dim> {
    match attr {
        Some(AttrValue::Dim(d)) => Ok(d.clone()),
        _ => Err(Need::Unknown),
    }
}

fn sizes(attr: Option<&AttrValue>) -> Read<Vec<Dim>> {
    match attr {
        Some(AttrValue::List(l)) => l.iter().map(|d| size(Some(d))).collect(),
        _ => Err(Need::Unknown),
    }
}

fn int(attr: Option<&AttrValue>) -> Read<usize> {
    size(attr)?.as_const().and_then(|i| usize::try_from(i).ok()).ok_or(Need::Unknown)
}

fn ints(attr: Option<&AttrValue>) -> Read<Vec<usize>> {
    sizes(attr)?.into_iter().map(|d| int(Some(&AttrValue::Dim(d)))).collect()
}
