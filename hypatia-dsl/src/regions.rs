//! Examples of the pointwise regions that a rule's variables match.
//!
//! In: a rule with variables of sort `Region`. Out: rules without them: each variable is replaced
//! by one function of its operands and of a further number or tensor. Invariant: what is true of
//! the rule is true of its examples, so that verifying these can refute the rule.

use crate::builtin::BuiltinScalar;
use crate::dtype::Kind;
use crate::ir::{
    Build, BuildArg, BuildNode, DTypePat, Head, InView, NodePat, ParamKind, Pat, Program, Rule, ScalarId, Sort,
    TypePat, Var, VarId,
};

/// The variable for the further operand, and whether it is more than a number.
#[derive(Clone, Copy)]
struct FurtherOperand {
    other: VarId,
    any_shape: bool,
}

/// The function that an example substitutes for a region.
#[derive(Clone)]
enum Sample {
    /// Operand `i`.
    Operand(usize),
    /// The further number or tensor.
    Other,
    Call(ScalarId, Vec<Sample>),
}

/// One example of a rule.
#[derive(Clone, Debug)]
pub struct Example {
    /// The rule with the region replaced.
    pub rule: Rule,
    /// Operands of the region that may have any shape. If the right side would then have a
    /// different type, or none, the rule does not apply.
    pub any_shape: Vec<VarId>,
}

/// The rule's examples; none if it has no such variable.
pub fn examples(program: &Program, rule: &Rule) -> Vec<Example> {
    let regions: Vec<VarId> =
        (0..rule.vars.len()).filter(|i| rule.vars[*i].sort == Sort::Region).map(|i| VarId(i as u32)).collect();
    if regions.is_empty() {
        return Vec::new();
    }
    let examples = (0..SAMPLES.len()).filter_map(|n| {
        let (rule, others) = example(program, rule, &regions, n)?;
        Some(Example { rule, any_shape: if n == ANY_SHAPE { others } else { Vec::new() } })
    });
    examples.collect()
}

/// Names of the examples.
const SAMPLES: [&str; 5] =
    ["one function", "with another operand", "used twice", "with another tensor", "operands in order"];
/// The index of the example whose further operand has any shape.
const ANY_SHAPE: usize = 3;

/// Example `n`, and the variables of the further operands.
fn example(program: &Program, rule: &Rule, regions: &[VarId], n: usize) -> Option<(Rule, Vec<VarId>)> {
    let (mut out, mut others) = (rule.clone(), Vec::new());
    out.name = format!("{} ({})", rule.name, SAMPLES[n]);
    for (k, v) in regions.iter().enumerate() {
        let operands = rule.lhs.iter().find_map(|p| operands(p, *v))?;
        out.lhs = out.lhs.into_iter().map(|p| with_names(p, *v, &mut out.vars)).collect();
        let other = VarId(out.vars.len() as u32);
        others.push(other);
        out.vars.push(Var { name: format!("{}_operand", rule.vars[v.index()].name), sort: Sort::Tensor });
        let mut sample = sample(program, (n, k), operands)?;
        if rule.lhs.iter().any(|p| is_condition(program, p, *v)) {
            sample = Sample::Call(program.builtin_scalar(BuiltinScalar::Lt)?, vec![sample, Sample::Other]);
        }
        let further = FurtherOperand { other, any_shape: n == ANY_SHAPE };
        out.lhs = out.lhs.into_iter().map(|p| in_pattern(p, *v, &sample, further)).collect();
        out.rhs = out.rhs.into_iter().map(|b| in_build(program, b, *v, &sample, other, false)).collect();
    }
    Some((out, others))
}

/// The number of operands of the region on the left side.
fn operands(p: &Pat, v: VarId) -> Option<usize> {
    match p {
        Pat::Bind(_, p) | Pat::Typed(p, _) => operands(p, v),
        Pat::OneOf(l) => l.iter().find_map(|p| operands(p, v)),
        Pat::Node(n) if n.head == Head::Region(v) => Some(n.args.len()),
        Pat::Node(n) => n.args.iter().find_map(|p| operands(p, v)),
        _ => None,
    }
}

/// Whether the region's result is a truth value: an operand of a function of truth values.
fn is_condition(program: &Program, p: &Pat, v: VarId) -> bool {
    let is_region = |p: &Pat| {
        let mut p = p;
        while let Pat::Bind(_, inner) | Pat::Typed(inner, _) = p {
            p = inner;
        }
        matches!(p, Pat::Node(n) if n.head == Head::Region(v))
    };
    match p {
        Pat::Bind(_, p) | Pat::Typed(p, _) => is_condition(program, p, v),
        Pat::OneOf(l) => l.iter().any(|p| is_condition(program, p, v)),
        Pat::Node(n) => {
            let truth = |i: usize| match n.head {
                Head::Scalar(s) => program.scalar(s).params.get(i).is_some_and(|p| p.1 == Kind::Bool),
                _ => false,
            };
            let of_operand = |(i, p): (usize, &Pat)| (truth(i) && is_region(p)) || is_condition(program, p, v);
            n.args.iter().enumerate().any(of_operand)
        }
        _ => false,
    }
}

/// The pattern with a name for each operand of the region, so that an example may use it twice.
fn with_names(p: Pat, v: VarId, vars: &mut Vec<Var>) -> Pat {
    match p {
        Pat::Bind(w, p) => Pat::Bind(w, Box::new(with_names(*p, v, vars))),
        Pat::Typed(p, t) => Pat::Typed(Box::new(with_names(*p, v, vars)), t),
        Pat::OneOf(l) => Pat::OneOf(l.into_iter().map(|p| with_names(p, v, vars)).collect()),
        Pat::Node(n) => {
            let of_region = n.head == Head::Region(v);
            let named = |p: Pat| match p {
                p @ Pat::Node(_) if of_region => {
                    let name = VarId(vars.len() as u32);
                    vars.push(Var { name: format!("operand_{}", vars.len()), sort: Sort::Tensor });
                    Pat::Bind(name, Box::new(p))
                }
                p => with_names(p, v, vars),
            };
            Pat::Node(NodePat { args: n.args.into_iter().map(named).collect(), ..n })
        }
        p => p,
    }
}

/// `tanh(x + y)`, `(x + y) * other`, `x * tanh(x)`, `(x + y) - other`, `x - tanh(x * y)`, over all
/// operands; `None` if an example says no more than the others. Where a truth value is wanted,
/// these are compared with the further operand.
///
/// The second region, and each second one behind it, has other functions, so that they do not
/// commute with those of the first: `sin` for `tanh`, a sum for the product and a product for the
/// difference.
fn sample(program: &Program, (n, k): (usize, usize), operands: usize) -> Option<Sample> {
    let id = |b| program.builtin_scalar(b);
    let (add, times, minus) = (id(BuiltinScalar::Add)?, id(BuiltinScalar::Mul)?, id(BuiltinScalar::Sub)?);
    let odd = k % 2 == 1;
    let tanh = id(if odd { BuiltinScalar::Sin } else { BuiltinScalar::Tanh })?;
    let (mul, sub) = if odd { (add, times) } else { (times, minus) };
    let sum =
        |add: ScalarId| (1..operands).fold(Sample::Operand(0), |a, i| Sample::Call(add, vec![a, Sample::Operand(i)]));
    Some(match n {
        0 => Sample::Call(tanh, vec![sum(add)]),
        1 => Sample::Call(mul, vec![sum(add), Sample::Other]),
        3 => Sample::Call(sub, vec![sum(add), Sample::Other]),
        4 if operands < 2 => return None,
        4 => (1..operands).fold(Sample::Operand(0), |a, i| {
            let product = Sample::Call(mul, vec![a.clone(), Sample::Operand(i)]);
            Sample::Call(sub, vec![a, Sample::Call(tanh, vec![product])])
        }),
        _ => Sample::Call(mul, vec![Sample::Operand(0), Sample::Call(tanh, vec![sum(add)])]),
    })
}

fn in_pattern(p: Pat, v: VarId, sample: &Sample, other: FurtherOperand) -> Pat {
    match p {
        Pat::Bind(w, p) => Pat::Bind(w, Box::new(in_pattern(*p, v, sample, other))),
        Pat::Typed(p, t) => Pat::Typed(Box::new(in_pattern(*p, v, sample, other)), t),
        Pat::OneOf(l) => Pat::OneOf(l.into_iter().map(|p| in_pattern(p, v, sample, other)).collect()),
        Pat::Node(n) if n.head == Head::Region(v) => pattern(sample, &n.args, other, &mut Vec::new()),
        Pat::Node(n) => {
            let args = n.args.into_iter().map(|p| in_pattern(p, v, sample, other)).collect();
            Pat::Node(NodePat { args, ..n })
        }
        other => other,
    }
}

/// The sample as a pattern. An operand that is used again is repeated by its name: the same
/// e-classes. `written` holds the operands that occur already.
fn pattern(sample: &Sample, args: &[Pat], further: FurtherOperand, written: &mut Vec<usize>) -> Pat {
    match sample {
        Sample::Operand(i) => match args.get(*i) {
            Some(Pat::Bind(name, _)) if written.contains(i) => Pat::Var(*name),
            Some(operand) => {
                written.push(*i);
                operand.clone()
            }
            None => Pat::Any,
        },
        Sample::Other if further.any_shape => Pat::Var(further.other),
        Sample::Other => {
            // Rank 0, so that it never broadcasts the result to a larger shape.
            let ty = TypePat { dtype: DTypePat::Any, prefix: vec![], rest: None, suffix: vec![] };
            Pat::Typed(Box::new(Pat::Var(further.other)), ty)
        }
        Sample::Call(s, parts) => {
            let args = parts.iter().map(|p| pattern(p, args, further, written)).collect();
            Pat::Node(NodePat { head: Head::Scalar(*s), args, rest: None, attrs: vec![], output: 0 })
        }
    }
}

/// Substitutes the sample into a right side; `term` is true inside an epilogue.
fn in_build(program: &Program, b: Build, v: VarId, sample: &Sample, other: VarId, term: bool) -> Build {
    let go = |b: Build, term: bool| in_build(program, b, v, sample, other, term);
    match b {
        Build::Else(w, b) => Build::Else(w, Box::new(go(*b, term))),
        Build::Frozen(b) => Build::Frozen(Box::new(go(*b, term))),
        Build::If(c, x, y) => Build::If(c, Box::new(go(*x, term)), Box::new(go(*y, term))),
        Build::Node(n) => {
            let in_term = |i: usize| match n.head {
                Head::Op(op) => program.op(op).operands().nth(i).is_some_and(|(_, p)| p.kind == ParamKind::Term),
                Head::In(_) => false,
                _ => term,
            };
            let operand = |(i, a): (usize, &BuildArg)| match a {
                BuildArg::One(b) => BuildArg::One(go(b.clone(), in_term(i))),
                other => other.clone(),
            };
            let args: Vec<BuildArg> = n.args.iter().enumerate().map(operand).collect();
            match n.head {
                Head::Region(w) if w == v => build(sample, &args, other, term),
                _ => Build::Node(BuildNode { args, ..n }),
            }
        }
        other => other,
    }
}

fn build(sample: &Sample, args: &[BuildArg], other: VarId, term: bool) -> Build {
    let node = |head, args| Build::Node(BuildNode { head, args, attrs: vec![], output: 0 });
    match sample {
        Sample::Operand(i) => match args.get(*i) {
            Some(BuildArg::One(b)) => b.clone(),
            _ => Build::Absent,
        },
        Sample::Other if term => node(Head::In(InView::Broadcast), vec![BuildArg::One(Build::Var(other))]),
        Sample::Other => Build::Var(other),
        Sample::Call(s, parts) => {
            node(Head::Scalar(*s), parts.iter().map(|p| BuildArg::One(build(p, args, other, term))).collect())
        }
    }
}
