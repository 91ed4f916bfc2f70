//! Instances of a rule with symbolic sizes.
//!
//! In: a rule. Out: both sides as tensors whose sizes are polynomials, for each choice of ranks,
//! axes, orders and alternatives. Invariant: the choices cover every instance of operands up to
//! that many axes that satisfies the guards. Where that cannot be shown, there is no answer.
//!
//! A guard is used where it decides, or where it can be solved for a symbol: `c <= dim(x, a)` makes
//! that size `c + t` for any t. What is left of the guards is not used, so more is proved than the
//! rule says. Element types are unknown: a guard about them is not used either.

mod ops;

use std::collections::{HashMap, HashSet};

use hypatia_dsl::ast::BinaryOp;
use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::interpret::{Item, build_tensor};
use hypatia_dsl::ir::{
    AExpr, AttrPat, AttrValue, DimPat, Fact, Head, NodePat, OpBody, OpId, ParamKind, Pat, Program, RestPat, Rule,
    ScalarId, Sort, TypePat, VarId,
};
use hypatia_dsl::shape::{Dim, DimFactor, Symbol, broadcast, product};
use hypatia_dsl::typing::{Bindings, Facts, eval, eval_guard, match_dims};

use self::ops::{Builder, axis_of};
use super::place::{Kind, Tensor};

/// The limit of instances.
const MOST_INSTANCES: usize = 3_000;

/// Both sides of each root.
pub(super) struct Instance {
    pub tensors: Vec<Tensor>,
    pub roots: Vec<[usize; 2]>,
}

impl Instance {
    /// True if no root has an element.
    fn is_empty(&self) -> bool {
        let none = |t: usize| self.tensors[t].shape.iter().any(|d| d.as_const() == Some(0));
        self.roots.iter().all(|r| none(r[0]))
    }
}

/// Why a choice gives no instance.
enum Stop {
    /// There is none: the choice breaks a guard, or a type.
    Skip,
    /// It is not known.
    Fail,
}

type Made<T> = Result<T, Stop>;

/// Calls `each` for every instance whose variables have at most `axes` axes; false if one of them
/// cannot be made or is refused.
pub(super) fn every_instance(
    program: &Program,
    rule: &Rule,
    axes: usize,
    each: &mut dyn FnMut(&Instance) -> bool,
) -> bool {
    let mut choices = Vec::new();
    let mut some = false;
    for _ in 0..MOST_INSTANCES {
        let mut maker = Maker {
            program,
            rule,
            axes,
            tensors: Vec::new(),
            scope: Scope::default(),
            choices: &choices,
            alternatives: Vec::new(),
            fresh: 0,
        };
        let made = match maker.instance() {
            // What no guard admits need not be made.
            Err(Stop::Fail) if maker.is_refuted() => Err(Stop::Skip),
            made => made,
        };
        let alternatives = maker.alternatives;
        match made {
            Ok(instance) => {
                some |= !instance.is_empty();
                if !each(&instance) {
                    return false;
                }
            }
            Err(Stop::Skip) => {}
            Err(Stop::Fail) => return false,
        }
        // The next combination, as a number whose digits are the choices.
        choices.resize(alternatives.len(), 0);
        loop {
            let Some(last) = choices.last_mut() else { return some };
            *last += 1;
            if *last < alternatives[choices.len() - 1] {
                break;
            }
            choices.pop();
        }
    }
    false
}

/// What the variables of a rule, or of an op's body, stand for.
#[derive(Clone, Default)]
struct Scope {
    tensors: HashMap<VarId, usize>,
    absent: HashSet<VarId>,
    lists: HashMap<VarId, Vec<usize>>,
    attrs: Bindings,
}

/// What the surroundings of a pattern want of its shape.
#[derive(Clone)]
enum Want {
    Free,
    Is(Vec<Dim>),
    /// It broadcasts with that one.
    Beside(Vec<Dim>),
}

struct Maker<'a> {
    program: &'a Program,
    rule: &'a Rule,
    axes: usize,
    tensors: Vec<Tensor>,
    scope: Scope,
    choices: &'a [usize],
    /// How many alternatives each choice had.
    alternatives: Vec<usize>,
    fresh: usize,
}

struct ShapeFacts<'a> {
    tensors: &'a [Tensor],
    scope: &'a Scope,
    items: &'a [Item<Option<usize>>],
}

impl Facts for ShapeFacts<'_> {
    fn fact(&self, fact: Fact, var: VarId) -> Option<AttrValue> {
        if fact == Fact::Count {
            return self.scope.lists.get(&var).map(|l| AttrValue::from(l.len() as i64));
        }
        let item = self.items.iter().rev().find(|i| i.0 == var).and_then(|i| i.1);
        let tensor = item.or_else(|| self.scope.tensors.get(&var).copied());
        if fact == Fact::Present {
            return match tensor {
                Some(_) => Some(AttrValue::Bool(true)),
                None => self.scope.absent.contains(&var).then_some(AttrValue::Bool(false)),
            };
        }
        let shape = &self.tensors[tensor?].shape;
        Some(match fact {
            Fact::Shape => AttrValue::from(shape.clone()),
            Fact::Rank => AttrValue::from(shape.len() as i64),
            Fact::Numel => AttrValue::Dim(product(shape)?),
            _ => return None,
        })
    }
}

fn list(value: &AttrValue) -> Made<Vec<Dim>> {
    let AttrValue::List(items) = value else { return Err(Stop::Fail) };
    items.iter().map(dim).collect()
}

fn dim(value: &AttrValue) -> Made<Dim> {
    match value {
        AttrValue::Dim(d) => Ok(d.clone()),
        _ => Err(Stop::Fail),
    }
}

fn minus(a: &Dim, b: &Dim) -> Made<Dim> {
    a.checked_sub(b).ok_or(Stop::Fail)
}

fn plus(a: &Dim, b: &Dim) -> Made<Dim> {
    a.checked_add(b).ok_or(Stop::Fail)
}

fn holds(d: &Dim) -> bool {
    d.lower_bound().is_some_and(|b| b >= 0)
}

/// The symbol, if the size is nothing else.
fn symbol(d: &Dim) -> Option<Symbol> {
    match d.polynomial().as_slice() {
        [(1, factors)] => match factors.as_slice() {
            [DimFactor::Symbol(s)] => Some(s.clone()),
            _ => None,
        },
        _ => None,
    }
}

/// The symbols of a product of symbols.
fn symbols_of_product(d: &Dim) -> Option<Vec<Symbol>> {
    let [(_, factors)] = &d.polynomial()[..] else { return None };
    let names = factors.iter().map(|f| match f {
        DimFactor::Symbol(s) => Some(s.clone()),
        _ => None,
    });
    let mut names = names.collect::<Option<Vec<_>>>()?;
    names.dedup();
    Some(names)
}

impl Maker<'_> {
    fn instance(&mut self) -> Made<Instance> {
        let rule = self.rule;
        let mut left = Vec::new();
        for pat in &rule.lhs {
            left.push(self.pat(pat, &Want::Free)?.ok_or(Stop::Skip)?);
        }
        self.all_absent();
        self.bind_lets();
        for guard in &rule.requires {
            self.assume(guard)?;
        }
        self.bind_lets();
        self.name_types();
        let scope = self.scope.clone();
        let mut roots = Vec::new();
        for (build, left) in rule.rhs.iter().zip(left) {
            let mut builder = Builder::new(self, scope.clone());
            let right = build_tensor(&mut builder, build, Some(DType::F32))?.ok_or(Stop::Fail)?;
            roots.push([left, right]);
        }
        Ok(Instance { tensors: std::mem::take(&mut self.tensors), roots })
    }

    /// Whether what is bound by now refutes a guard.
    fn is_refuted(&self) -> bool {
        let facts = ShapeFacts { tensors: &self.tensors, scope: &self.scope, items: &[] };
        self.rule.requires.iter().any(|g| eval_guard(g, &self.scope.attrs, &facts) == Some(false))
    }

    /// Variables that only other alternatives bind are absent.
    fn all_absent(&mut self) {
        for (i, var) in self.rule.vars.iter().enumerate() {
            let id = VarId(i as u32);
            if var.sort == Sort::Tensor && !self.scope.tensors.contains_key(&id) {
                self.scope.absent.insert(id);
            }
        }
    }

    fn bind_lets(&mut self) {
        for (var, e) in &self.rule.lets {
            if let Some(v) = self.eval(e) {
                self.scope.attrs.values.insert(*var, v);
            }
        }
    }

    /// Right sides may name element types, which nothing is known about; guards have been read.
    fn name_types(&mut self) {
        for (i, var) in self.rule.vars.iter().enumerate() {
            if var.sort == Sort::DType {
                self.scope.attrs.values.insert(VarId(i as u32), AttrValue::Str(var.name.clone()));
            }
        }
    }

    // ---- choices and symbols ----------------------------------------------------------------

    fn choose(&mut self, n: usize) -> Made<usize> {
        if n == 0 {
            return Err(Stop::Skip);
        }
        let taken = self.choices.get(self.alternatives.len()).copied().unwrap_or(0);
        self.alternatives.push(n);
        Ok(taken)
    }

    fn symbol(&mut self) -> Dim {
        self.fresh += 1;
        Dim::symbol(format!("s{}", self.fresh))
    }

    fn symbols(&mut self, n: usize) -> Vec<Dim> {
        (0..n).map(|_| self.symbol()).collect()
    }

    fn substitute(&mut self, name: &Symbol, by: &Dim) -> Made<()> {
        let put = |d: &Dim| d.substitute(&|s| (s == &**name).then(|| by.clone())).ok_or(Stop::Fail);
        fn value(v: &AttrValue, put: &dyn Fn(&Dim) -> Made<Dim>) -> Made<AttrValue> {
            Ok(match v {
                AttrValue::Dim(d) => AttrValue::Dim(put(d)?),
                AttrValue::List(l) => AttrValue::List(l.iter().map(|v| value(v, put)).collect::<Made<_>>()?),
                other => other.clone(),
            })
        }
        for tensor in &mut self.tensors {
            tensor.shape = tensor.shape.iter().map(put).collect::<Made<_>>()?;
            if let Kind::Op(_, attrs, ..) = &mut tensor.kind {
                *attrs = attrs.iter().map(|v| value(v, &put)).collect::<Made<_>>()?;
            }
        }
        let bound: Vec<(VarId, AttrValue)> = self.scope.attrs.values.iter().map(|(k, v)| (*k, v.clone())).collect();
        for (var, v) in bound {
            self.scope.attrs.values.insert(var, value(&v, &put)?);
        }
        Ok(())
    }

    /// Makes two sizes equal; false if that is neither known nor can be solved.
    fn equal(&mut self, a: &Dim, b: &Dim) -> Made<bool> {
        match a.known_eq(b) {
            Some(true) => return Ok(true),
            Some(false) => return Err(Stop::Skip),
            None => {}
        }
        for apart in [minus(a, b)?, minus(b, a)?] {
            if self.vanish(&apart)? {
                return Ok(true);
            }
            for name in apart.symbols() {
                // `apart = name - value`
                let value = minus(&Dim::symbol(name.clone()), &apart)?;
                if !value.symbols().contains(&name) && holds(&value) {
                    self.substitute(&name, &value)?;
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Makes a sum of sizes 0; false if it is none.
    fn vanish(&mut self, sum: &Dim) -> Made<bool> {
        let single = |(c, factors): &(i64, Vec<DimFactor>)| match factors.as_slice() {
            [DimFactor::Symbol(s)] if *c > 0 => Some(s.clone()),
            _ => None,
        };
        let Some(names) = sum.polynomial().iter().map(single).collect::<Option<Vec<_>>>() else { return Ok(false) };
        names.iter().try_for_each(|name| self.substitute(name, &Dim::from(0)))?;
        Ok(true)
    }

    /// Makes the first size no larger than the second; false if that is neither known nor can be
    /// solved.
    fn at_most(&mut self, a: &Dim, b: &Dim) -> Made<bool> {
        let room = minus(b, a)?;
        if holds(&room) {
            return Ok(true);
        }
        if holds(&minus(&minus(a, b)?, &Dim::from(1))?) {
            return Err(Stop::Skip);
        }
        if self.vanish(&minus(a, b)?)? {
            return Ok(true);
        }
        for name in room.symbols() {
            let unit = Dim::symbol(name.clone());
            // `room = name - less`, and `less` is a size: `name` is any size from there on.
            let less = minus(&unit, &room)?;
            if !less.symbols().contains(&name) && holds(&less) {
                let more = self.symbol();
                self.substitute(&name, &plus(&less, &more)?)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn eval(&self, e: &AExpr) -> Option<AttrValue> {
        let facts = ShapeFacts { tensors: &self.tensors, scope: &self.scope, items: &[] };
        eval(e, &self.scope.attrs, &facts)
    }

    /// Uses a guard, as far as it decides or can be solved.
    fn assume(&mut self, guard: &AExpr) -> Made<()> {
        let facts = ShapeFacts { tensors: &self.tensors, scope: &self.scope, items: &[] };
        match eval_guard(guard, &self.scope.attrs, &facts) {
            Some(true) => return Ok(()),
            Some(false) => return Err(Stop::Skip),
            None => {}
        }
        let AExpr::Binary(op, a, b) = guard else { return Ok(()) };
        if *op == BinaryOp::And {
            self.assume(a)?;
            return self.assume(b);
        }
        let (Some(a), Some(b)) = (self.eval(a), self.eval(b)) else { return Ok(()) };
        match (op, &a, &b) {
            (BinaryOp::Eq, AttrValue::Dim(a), AttrValue::Dim(b)) => drop(self.equal(a, b)?),
            (BinaryOp::Eq, AttrValue::List(l), AttrValue::List(m)) if l.len() == m.len() => {
                for i in 0..l.len() {
                    // An earlier element may have put other sizes for these symbols.
                    let AExpr::Binary(_, a, b) = guard else { return Ok(()) };
                    let (Some(AttrValue::List(l)), Some(AttrValue::List(m))) = (self.eval(a), self.eval(b)) else {
                        return Ok(());
                    };
                    if let (Some(AttrValue::Dim(a)), Some(AttrValue::Dim(b))) = (l.get(i), m.get(i)) {
                        self.equal(a, b)?;
                    }
                }
            }
            (BinaryOp::Le, AttrValue::Dim(a), AttrValue::Dim(b))
            | (BinaryOp::Ge, AttrValue::Dim(b), AttrValue::Dim(a)) => drop(self.at_most(a, b)?),
            (BinaryOp::Lt, AttrValue::Dim(a), AttrValue::Dim(b))
            | (BinaryOp::Gt, AttrValue::Dim(b), AttrValue::Dim(a)) => {
                let next = plus(a, &Dim::from(1))?;
                self.at_most(&next, b)?;
            }
            _ => {}
        }
        Ok(())
    }

    // ---- patterns ---------------------------------------------------------------------------

    fn add(&mut self, shape: Vec<Dim>, kind: Kind) -> usize {
        self.tensors.push(Tensor { shape, kind });
        self.tensors.len() - 1
    }

    fn open(&self, pat: &Pat) -> bool {
        match pat {
            Pat::Any | Pat::Lit { .. } | Pat::Absent => true,
            Pat::Var(v) | Pat::Optional(v) => !self.scope.tensors.contains_key(v) && !self.scope.absent.contains(v),
            Pat::Bind(_, p) => self.open(p),
            Pat::Typed(..) | Pat::Node(_) | Pat::OneOf(_) => false,
        }
    }

    fn input(&mut self, name: String, want: &Want) -> Made<usize> {
        let shape = match want {
            Want::Free => {
                let rank = self.choose(self.axes + 1)?;
                self.symbols(rank)
            }
            Want::Is(shape) => shape.clone(),
            Want::Beside(shape) => self.beside(shape)?,
        };
        Ok(self.add(shape, Kind::Input(name)))
    }

    /// A shape that broadcasts with this one.
    fn beside(&mut self, shape: &[Dim]) -> Made<Vec<Dim>> {
        let rank = self.choose(self.axes + 1)?;
        let mut out = self.symbols(rank.saturating_sub(shape.len()));
        let shared = rank - out.len();
        for size in &shape[shape.len() - shared..] {
            if size.as_const() == Some(1) {
                out.push(self.symbol());
                continue;
            }
            match self.choose(3)? {
                0 => out.push(size.clone()),
                1 => out.push(Dim::from(1)),
                _ => {
                    self.one(size)?;
                    out.push(self.symbol());
                }
            }
        }
        Ok(out)
    }

    /// Makes a size 1.
    fn one(&mut self, size: &Dim) -> Made<()> {
        if size.as_const().is_some_and(|c| c != 1) {
            return Err(Stop::Skip);
        }
        if size.polynomial().first().is_some_and(|t| t.0 != 1) {
            return Err(Stop::Fail);
        }
        let names = symbols_of_product(size).ok_or(Stop::Fail)?;
        names.iter().try_for_each(|name| self.substitute(name, &Dim::from(1)))
    }

    fn pat(&mut self, pat: &Pat, want: &Want) -> Made<Option<usize>> {
        match pat {
            Pat::Any => {
                let name = format!("any{}", self.tensors.len());
                self.input(name, want).map(Some)
            }
            Pat::Absent => Ok(None),
            Pat::Lit { value, near: None } => Ok(Some(self.add(Vec::new(), Kind::Number(*value)))),
            Pat::Lit { near: Some(_), .. } => Err(Stop::Fail),
            Pat::Var(v) | Pat::Optional(v) => self.variable(*v, matches!(pat, Pat::Optional(_)), want),
            Pat::Bind(v, p) => {
                let made = self.pat(p, want)?;
                if let Some(made) = made
                    && *self.scope.tensors.entry(*v).or_insert(made) != made
                {
                    return Err(Stop::Fail);
                }
                Ok(made)
            }
            Pat::Typed(p, ty) => self.typed(p, ty),
            Pat::OneOf(pats) => {
                let taken = self.choose(pats.len())?;
                self.pat(&pats[taken], want)
            }
            Pat::Node(node) => match node.head {
                Head::Scalar(s) => self.scalar(s, node).map(Some),
                Head::Op(op) => self.op(op, node).map(Some),
                _ => Err(Stop::Fail),
            },
        }
    }

    fn variable(&mut self, v: VarId, optional: bool, want: &Want) -> Made<Option<usize>> {
        if let Some(made) = self.scope.tensors.get(&v) {
            return Ok(Some(*made));
        }
        if self.scope.absent.contains(&v) {
            return Ok(None);
        }
        if self.rule.vars.get(v.index()).is_none_or(|v| v.sort != Sort::Tensor) {
            return Err(Stop::Fail);
        }
        if optional && self.choose(2)? == 1 {
            self.scope.absent.insert(v);
            return Ok(None);
        }
        let made = self.input(format!("v{}", v.0), want)?;
        self.scope.tensors.insert(v, made);
        Ok(Some(made))
    }

    fn typed(&mut self, pat: &Pat, ty: &TypePat) -> Made<Option<usize>> {
        if self.open(pat) {
            let mut own = std::mem::take(&mut self.scope.attrs);
            let shape = self.shape_of(ty, &mut own, &Want::Free);
            self.scope.attrs = own;
            return self.pat(pat, &Want::Is(shape?));
        }
        let made = self.pat(pat, &Want::Free)?;
        let Some(at) = made else { return Err(Stop::Skip) };
        let mut own = std::mem::take(&mut self.scope.attrs);
        let matched = match_dims(ty, &self.tensors[at].shape.clone(), &mut own);
        self.scope.attrs = own;
        match matched {
            Ok(()) => Ok(made),
            Err(why) if why.is_certain() => Err(Stop::Skip),
            Err(_) => Err(Stop::Fail),
        }
    }

    /// A shape of this type; the sizes of a rest broadcast with those that are wanted.
    fn shape_of(&mut self, ty: &TypePat, own: &mut Bindings, rest: &Want) -> Made<Vec<Dim>> {
        let mut one = |maker: &mut Self, d: &DimPat| match d {
            DimPat::Any => Ok(Some(maker.symbol())),
            DimPat::Var(v) => {
                if !own.values.contains_key(v) {
                    let made = maker.symbol();
                    own.values.insert(*v, AttrValue::Dim(made));
                }
                own.values.get(v).map(dim).transpose()
            }
            DimPat::Expr(_) => Ok(None),
        };
        let prefix = ty.prefix.iter().map(|d| one(self, d)).collect::<Made<Vec<_>>>()?;
        let suffix = ty.suffix.iter().map(|d| one(self, d)).collect::<Made<Vec<_>>>()?;
        let room = self.axes.saturating_sub(prefix.len() + suffix.len());
        let middle = match &ty.rest {
            None => Vec::new(),
            Some(RestPat::Expr(_)) => return Err(Stop::Fail),
            Some(RestPat::Var(v)) if own.values.contains_key(v) => own.values.get(v).map_or(Err(Stop::Fail), list)?,
            Some(pat) => {
                let made = match rest {
                    Want::Beside(shape) => {
                        let made = self.beside(shape)?;
                        if made.len() > room {
                            return Err(Stop::Skip);
                        }
                        made
                    }
                    _ => {
                        let rank = self.choose(room + 1)?;
                        self.symbols(rank)
                    }
                };
                if let RestPat::Var(v) = pat {
                    own.values.insert(*v, AttrValue::from(made.clone()));
                }
                made
            }
        };
        let facts = ShapeFacts { tensors: &self.tensors, scope: &self.scope, items: &[] };
        let known = |d: Option<Dim>, pat: &DimPat| match (d, pat) {
            (Some(d), _) => Ok(d),
            (None, DimPat::Expr(e)) => eval(e, own, &facts).as_ref().map_or(Err(Stop::Fail), dim),
            _ => Err(Stop::Fail),
        };
        let mut out = Vec::new();
        for (d, pat) in prefix.into_iter().zip(&ty.prefix) {
            out.push(known(d, pat)?);
        }
        out.extend(middle);
        for (d, pat) in suffix.into_iter().zip(&ty.suffix) {
            out.push(known(d, pat)?);
        }
        Ok(out)
    }

    fn scalar(&mut self, scalar: ScalarId, node: &NodePat) -> Made<usize> {
        let mut args: Vec<Option<usize>> = vec![None; node.args.len()];
        let mut joint: Option<Vec<Dim>> = None;
        for open in [false, true] {
            for (i, arg) in node.args.iter().enumerate() {
                if args[i].is_some() || self.open(arg) != open {
                    continue;
                }
                let want = joint.clone().map_or(Want::Free, Want::Beside);
                let made = self.pat(arg, &want)?.ok_or(Stop::Skip)?;
                args[i] = Some(made);
                joint = Some(self.joint(&args)?);
            }
        }
        // A variable may have been bound by an operand beside it.
        for (i, arg) in node.args.iter().enumerate() {
            if args[i].is_none() {
                args[i] = self.pat(arg, &Want::Free)?;
            }
        }
        let args: Vec<usize> = args.into_iter().collect::<Option<_>>().ok_or(Stop::Fail)?;
        let shape = self.joint(&args.iter().map(|a| Some(*a)).collect::<Vec<_>>())?;
        Ok(self.add(shape, Kind::Scalar(scalar, args)))
    }

    /// The shape to which these operands broadcast.
    fn joint(&self, args: &[Option<usize>]) -> Made<Vec<Dim>> {
        let mut shapes = args.iter().flatten().map(|a| &self.tensors[*a].shape);
        shapes.try_fold(Vec::new(), |joint: Vec<Dim>, s| broadcast(&joint, s).ok_or(Stop::Fail))
    }

    fn op(&mut self, op: OpId, node: &NodePat) -> Made<usize> {
        let def = self.program.op(op);
        let builtin = if let OpBody::Builtin(b) = def.body { Some(b) } else { None };
        let params: Vec<&ParamKind> = def.operands().map(|(_, p)| &p.kind).collect();
        let mut own = Bindings::default();
        let mut operands: Vec<Option<Option<usize>>> = vec![None; node.args.len()];
        for open in [false, true] {
            for (i, arg) in node.args.iter().enumerate() {
                if operands[i].is_some() || self.open(arg) != open {
                    continue;
                }
                let Some(ParamKind::Tensor { ty, optional, variadic }) = params.get(i).or(params.last()) else {
                    return Err(Stop::Fail);
                };
                let others: Vec<usize> = operands.iter().flatten().flatten().copied().collect();
                let want = match others.first() {
                    _ if !open => Want::Free,
                    Some(first) if *variadic => Want::Is(self.piece(node, *first)?),
                    other => {
                        let batch = |at: &usize| {
                            let shape = &self.tensors[*at].shape;
                            Want::Beside(shape[..shape.len().saturating_sub(2)].to_vec())
                        };
                        let product = builtin == Some(BuiltinOp::Matmul);
                        let rest = other.filter(|_| product).map_or(Want::Free, batch);
                        Want::Is(self.shape_of(ty, &mut own, &rest)?)
                    }
                };
                let made = self.pat(arg, &want)?;
                match made {
                    None if !optional => return Err(Stop::Skip),
                    Some(at) if !*variadic => match match_dims(ty, &self.tensors[at].shape, &mut own) {
                        Ok(()) => {}
                        Err(why) if why.is_certain() => return Err(Stop::Skip),
                        Err(_) => return Err(Stop::Fail),
                    },
                    _ => {}
                }
                operands[i] = Some(made);
            }
        }
        let mut operands: Vec<Option<usize>> = operands.into_iter().collect::<Option<_>>().ok_or(Stop::Fail)?;
        if let Some(rest) = &node.rest {
            // A pattern for each operand is only tested.
            if rest.each.is_some() {
                return Err(Stop::Fail);
            }
            operands.extend(self.rest(node, rest.var, operands.first().copied().flatten())?.into_iter().map(Some));
        }
        let attrs = self.attrs(op, builtin, node, &operands)?;
        let Some(builtin) = builtin else { return self.apply(op, &operands, &attrs, node.output) };
        // What is solved may stand in the attributes: they are kept where it is replaced.
        let kept = self.add(Vec::new(), Kind::Op(builtin, attrs, Vec::new(), 0));
        for guard in &self.rule.requires {
            self.assume(guard)?;
        }
        self.make_legal(builtin, kept, &operands)?;
        let attrs = self.kept(kept);
        self.apply(op, &operands, &attrs, node.output)
    }

    /// A further operand of a concatenation.
    fn piece(&mut self, node: &NodePat, first: usize) -> Made<Vec<Dim>> {
        let mut shape = self.tensors[first].shape.clone();
        let axis = match node.attrs.first() {
            Some(AttrPat::Var(v)) if !self.scope.attrs.values.contains_key(v) => {
                let axis = self.choose(shape.len())?;
                self.scope.attrs.values.insert(*v, AttrValue::from(axis as i64));
                axis
            }
            Some(AttrPat::Var(v)) => {
                self.scope.attrs.values.get(v).and_then(|v| axis_of(v, shape.len())).ok_or(Stop::Fail)?
            }
            Some(AttrPat::Is(e)) => self.eval(e).and_then(|v| axis_of(&v, shape.len())).ok_or(Stop::Fail)?,
            _ => return Err(Stop::Fail),
        };
        *shape.get_mut(axis).ok_or(Stop::Skip)? = self.symbol();
        Ok(shape)
    }

    fn rest(&mut self, node: &NodePat, rest: VarId, first: Option<usize>) -> Made<Vec<usize>> {
        if let Some(made) = self.scope.lists.get(&rest) {
            return Ok(made.clone());
        }
        let Some(first) = first else { return Err(Stop::Fail) };
        let count = self.choose(3)?;
        let mut made = Vec::new();
        for i in 0..count {
            let shape = self.piece(node, first)?;
            made.push(self.add(shape, Kind::Input(format!("v{}.{i}", rest.0))));
        }
        self.scope.lists.insert(rest, made.clone());
        Ok(made)
    }
}
