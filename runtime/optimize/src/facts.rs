//! Facts about numbers that hold for every element: not NaN, finite, at least 0, above 0.
//!
//! In: facts of operands. Out: facts of the results of builtin scalars and ops. Invariant: a fact
//! that is claimed is true of the value as rounded to its dtype, whatever the inputs; "unknown" is
//! the safe answer.

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AExpr, AttrPat, Build, BuildArg, Fact, OpBody, Pat, Program, Rule, ScalarBody, ScalarId};
use hypatia_dsl::scalar::{Term, TermNode};

use hypatia_tensor::tensor::Tensor;

/// True if the op only says how its operand's elements are found.
pub fn is_view(op: BuiltinOp) -> bool {
    use BuiltinOp::*;
    matches!(op, Reshape | Transpose | Expand | Slice | Windows | Split | Size)
}

/// A set of facts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NumericFacts {
    /// No element is NaN.
    pub not_nan: bool,
    /// No element is NaN or infinite.
    pub finite: bool,
    /// Every element is at least 0 and not NaN.
    pub nonneg: bool,
    /// Every element is above 0 and not NaN.
    pub positive: bool,
}

impl NumericFacts {
    /// Nothing is known.
    pub const UNKNOWN: NumericFacts = NumericFacts { not_nan: false, finite: false, nonneg: false, positive: false };
    /// Facts of booleans read as numbers.
    pub const TRUTH: NumericFacts = NumericFacts { not_nan: true, finite: true, nonneg: true, positive: false };

    /// Facts of one number.
    pub fn of(v: f64) -> NumericFacts {
        NumericFacts { not_nan: !v.is_nan(), finite: v.is_finite(), nonneg: v >= 0.0, positive: v > 0.0 }
    }

    /// Facts that hold for both: for a value that is one or the other.
    pub fn and(self, o: NumericFacts) -> NumericFacts {
        NumericFacts {
            not_nan: self.not_nan && o.not_nan,
            finite: self.finite && o.finite,
            nonneg: self.nonneg && o.nonneg,
            positive: self.positive && o.positive,
        }
    }

    /// The union of what is known of the same value.
    pub fn or(self, o: NumericFacts) -> NumericFacts {
        NumericFacts {
            not_nan: self.not_nan || o.not_nan,
            finite: self.finite || o.finite,
            nonneg: self.nonneg || o.nonneg,
            positive: self.positive || o.positive,
        }
    }

    /// Facts that remain after rounding to a narrower float: large values overflow, small ones
    /// underflow.
    pub fn narrowed(self) -> NumericFacts {
        NumericFacts { finite: false, positive: false, ..self }
    }
}

/// Whether a program asks for facts of numbers anywhere: if not, no weight has to be scanned.
pub fn are_asked(program: &Program) -> bool {
    let guards = |r: &Rule| r.requires.iter().chain(&r.prefer).chain(r.lets.iter().map(|(_, e)| e)).any(asks);
    program.rules.iter().any(|r| guards(r) || r.lhs.iter().any(pattern_asks) || r.rhs.iter().any(build_asks))
        || program.kernels.iter().any(|k| k.requires.iter().any(asks) || pattern_asks(&k.pattern))
        || program.ops.iter().any(|op| matches!(&op.body, OpBody::Defined(bodies) if bodies.iter().any(build_asks)))
}

fn asks(e: &AExpr) -> bool {
    asks_for(e, &|fact| matches!(fact, Fact::NonNegative | Fact::Positive | Fact::Finite))
}

/// Whether an expression asks for such a fact.
pub fn asks_for(e: &AExpr, wanted: &dyn Fn(Fact) -> bool) -> bool {
    let asks = |e: &AExpr| asks_for(e, wanted);
    match e {
        AExpr::Fact(fact, _) => wanted(*fact),
        AExpr::Value(_) | AExpr::Var(_) | AExpr::SameAccumulator(..) | AExpr::Device(_) => false,
        AExpr::List(l) | AExpr::Call(_, l) => l.iter().any(asks),
        AExpr::Spread(a) | AExpr::Neg(a) | AExpr::Not(a) => asks(a),
        AExpr::Index(a, b) | AExpr::Binary(_, a, b) => asks(a) || asks(b),
        AExpr::If(a, b, c) => asks(a) || asks(b) || asks(c),
        AExpr::Comprehension { element, over, condition, .. } => {
            asks(element) || asks(over) || condition.as_deref().is_some_and(asks)
        }
    }
}

fn pattern_asks(p: &Pat) -> bool {
    fn attr_asks(a: &AttrPat) -> bool {
        match a {
            AttrPat::Is(e) => asks(e),
            AttrPat::List(l) => l.iter().any(attr_asks),
            AttrPat::Any | AttrPat::Var(_) | AttrPat::Rest(_) => false,
        }
    }
    match p {
        Pat::Bind(_, p) | Pat::Typed(p, _) => pattern_asks(p),
        Pat::OneOf(ps) => ps.iter().any(pattern_asks),
        Pat::Node(n) => n.operands().any(pattern_asks) || n.attrs.iter().any(attr_asks),
        Pat::Any | Pat::Var(_) | Pat::Lit { .. } | Pat::Absent | Pat::Optional(_) => false,
    }
}

fn build_asks(b: &Build) -> bool {
    match b {
        Build::Number(e) => asks(e),
        Build::Node(n) => {
            let arg = |a: &BuildArg| match a {
                BuildArg::One(b) | BuildArg::Each { element: b, .. } => build_asks(b),
                BuildArg::Spread(_) => false,
            };
            n.args.iter().any(arg) || n.attrs.iter().any(asks)
        }
        Build::Else(_, b) | Build::Frozen(b) => build_asks(b),
        Build::If(guard, a, b) => asks(guard) || build_asks(a) || build_asks(b),
        Build::Var(_) | Build::Absent => false,
    }
}

/// Facts of a tensor's elements, in one pass over their bits.
pub fn of_tensor(tensor: &Tensor) -> NumericFacts {
    // For all floats: whether one is NaN or infinite (its exponent is all ones), below 0, or 0.
    macro_rules! scan {
        ($bits:ty, $exponent:expr) => {{
            let sign: $bits = 1 << (<$bits>::BITS - 1);
            let (mut nan, mut special, mut negative, mut zero) = (false, false, false, false);
            for e in tensor.bytes().chunks_exact(size_of::<$bits>()) {
                let bits = e.try_into().map_or(0, <$bits>::from_le_bytes);
                let magnitude = bits & !sign;
                nan |= magnitude > $exponent;
                special |= magnitude >= $exponent;
                negative |= bits > sign;
                zero |= magnitude == 0;
            }
            let nonneg = !nan && !negative;
            NumericFacts { not_nan: !nan, finite: !special, nonneg, positive: nonneg && !zero }
        }};
    }
    if tensor.bytes().is_empty() {
        return NumericFacts::UNKNOWN;
    }
    match tensor.dtype() {
        DType::F32 => scan!(u32, 0xff << 23),
        DType::F64 => scan!(u64, 0x7ff << 52),
        DType::F16 => scan!(u16, 0x1f << 10),
        DType::BF16 => scan!(u16, 0xff << 7),
        _ => tensor.to_f64().into_iter().map(NumericFacts::of).reduce(NumericFacts::and).unwrap_or_default(),
    }
}

/// Facts of a scalar's result from those of its arguments; `same[i]` is equal for arguments that
/// are the same value.
pub fn apply_scalar(program: &Program, scalar: ScalarId, args: &[NumericFacts], same: &[usize]) -> NumericFacts {
    scalar_at_depth(program, scalar, args, same, 0)
}

/// Maximum nesting of scalar bodies. Sema rejects recursion; this limit guards against handmade
/// programs.
const MAX_DEPTH: usize = 32;

fn scalar_at_depth(
    program: &Program,
    scalar: ScalarId,
    args: &[NumericFacts],
    same: &[usize],
    depth: usize,
) -> NumericFacts {
    if depth > MAX_DEPTH {
        return NumericFacts::UNKNOWN;
    }
    match &program.scalar(scalar).body {
        ScalarBody::Builtin(b) => builtin(*b, args, same.len() == 2 && same[0] == same[1]),
        ScalarBody::Term(term) => body(program, term, args, depth),
    }
}

fn body(program: &Program, term: &Term, args: &[NumericFacts], depth: usize) -> NumericFacts {
    let mut known = Vec::with_capacity(term.nodes.len());
    for node in &term.nodes {
        let facts = match node {
            TermNode::Param(i) => args.get(*i as usize).copied().unwrap_or_default(),
            TermNode::Lit(l) => NumericFacts::of(l.0),
            TermNode::Call { scalar, args } => {
                let facts: Vec<_> = args.iter().map(|a| known[a.0 as usize]).collect();
                let same: Vec<_> = args.iter().map(|a| a.0 as usize).collect();
                scalar_at_depth(program, *scalar, &facts, &same, depth + 1)
            }
            TermNode::Cast { arg, .. } => known[arg.0 as usize].narrowed(),
            TermNode::Acc | TermNode::Second | TermNode::In { .. } => NumericFacts::UNKNOWN,
        };
        known.push(facts);
    }
    // The result is rounded once more to the tensor's dtype, where a tiny positive value may
    // underflow to 0.
    term.roots.first().map_or(NumericFacts::UNKNOWN, |r| known[r.0 as usize].narrowed())
}

fn builtin(s: BuiltinScalar, args: &[NumericFacts], same: bool) -> NumericFacts {
    use BuiltinScalar::*;
    let get = |i: usize| args.get(i).copied().unwrap_or_default();
    let (a, b) = (get(0), get(1));
    let both = a.and(b);
    let nothing = NumericFacts::UNKNOWN;
    match s {
        Add => NumericFacts {
            not_nan: both.finite || both.nonneg,
            nonneg: both.nonneg,
            positive: both.nonneg && (a.positive || b.positive),
            finite: false,
        },
        Sub => NumericFacts { not_nan: both.finite, ..nothing },
        // The product of two positive numbers may underflow to 0.
        Mul => {
            let nonneg = (same && a.not_nan) || (both.nonneg && both.finite) || both.positive;
            NumericFacts { not_nan: nonneg || both.finite, nonneg, ..nothing }
        }
        Div => {
            let nonneg = a.nonneg && a.finite && b.positive;
            NumericFacts { not_nan: nonneg, nonneg, ..nothing }
        }
        Neg => NumericFacts { not_nan: a.not_nan, finite: a.finite, ..nothing },
        Abs => NumericFacts { not_nan: a.not_nan, finite: a.finite, nonneg: a.not_nan, positive: a.positive },
        Sign => NumericFacts { finite: a.not_nan, ..a },
        Max => NumericFacts {
            not_nan: both.not_nan,
            finite: both.finite,
            nonneg: both.not_nan && (a.nonneg || b.nonneg),
            positive: both.not_nan && (a.positive || b.positive),
        },
        Min => both,
        Exp => NumericFacts { not_nan: a.not_nan, nonneg: a.not_nan, ..nothing },
        Sqrt => {
            NumericFacts { not_nan: a.nonneg, finite: a.nonneg && a.finite, nonneg: a.nonneg, positive: a.positive }
        }
        Rsqrt => NumericFacts { not_nan: a.positive, nonneg: a.positive, ..nothing },
        Log1p => NumericFacts { not_nan: a.nonneg, finite: a.nonneg && a.finite, nonneg: a.nonneg, positive: false },
        Expm1 => NumericFacts { not_nan: a.not_nan, nonneg: a.nonneg, ..nothing },
        Erf | Tanh | Atan => NumericFacts { not_nan: a.not_nan, finite: a.not_nan, nonneg: a.nonneg, positive: false },
        Sin | Cos => NumericFacts { not_nan: a.finite, finite: a.finite, ..nothing },
        Floor | Ceil | Round | Trunc => NumericFacts { positive: false, ..a },
        Select => get(1).and(get(2)),
        Eq | Lt | Le | Not | And | Or | Xor | IsNan | IsInf => NumericFacts::TRUTH,
        Pow | Fmod | Log => nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use BuiltinScalar::*;

    /// Values at the limits of the floats.
    const VALUES: [f64; 12] = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f64::MIN_POSITIVE,
        5e-324,
        f64::MAX,
        -f64::MAX,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        0.5,
    ];

    fn check(s: BuiltinScalar, f: impl Fn(f64, f64) -> f64) {
        for a in VALUES {
            for b in VALUES {
                let (fa, fb) = (NumericFacts::of(a), NumericFacts::of(b));
                let claims = [builtin(s, &[fa, fb], false), builtin(s, &[fa, fa], true)];
                for (claim, r) in claims.into_iter().zip([f(a, b), f(a, a)]) {
                    let truth = NumericFacts::of(r);
                    assert_eq!(claim.and(truth), claim, "{s:?}({a}, {b}) = {r}: claimed {claim:?}");
                }
            }
        }
    }

    #[test]
    fn a_pass_over_bits_tells_what_the_numbers_do() {
        for dtype in DType::ALL {
            for pair in VALUES.iter().flat_map(|a| VALUES.iter().map(move |b| [*a, *b])) {
                let Some(t) = Tensor::from_f64(dtype, &[2], &pair) else { continue };
                let told = t.to_f64().into_iter().map(NumericFacts::of).reduce(NumericFacts::and);
                assert_eq!(Some(of_tensor(&t)), told, "{dtype} {pair:?}");
            }
        }
    }

    #[test]
    fn claims_are_true_at_the_edges() {
        check(Add, |a, b| a + b);
        check(Sub, |a, b| a - b);
        check(Mul, |a, b| a * b);
        check(Div, |a, b| a / b);
        check(Neg, |a, _| -a);
        check(Abs, |a, _| a.abs());
        check(Exp, |a, _| a.exp());
        check(Sqrt, |a, _| a.sqrt());
        check(Rsqrt, |a, _| 1.0 / a.sqrt());
        check(Log1p, |a, _| a.ln_1p());
        check(Expm1, |a, _| a.exp_m1());
        check(Tanh, |a, _| a.tanh());
        check(Sin, |a, _| a.sin());
        check(Floor, |a, _| a.floor());
        check(Ceil, |a, _| a.ceil());
        check(Max, |a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) });
        check(Min, |a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) });
        check(Sign, |a, _| if a.is_nan() || a == 0.0 { a } else { a.signum() });
    }
}
