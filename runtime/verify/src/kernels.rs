//! Kernels: does the library compute what the kernel's pattern means, and do generated kernels give
//! the bits that they claim?
//!
//! In: a kernel bound to a cuBLASLt epilogue, for a gemm or for an op. Out: an entry. It compares
//! the pattern with what the library documents for that epilogue, and each result of the op with
//! what the library documents to store there, like the two sides of a rule. Invariant: no GPU is
//! needed, so this checks what is documented, not what a device does.

use std::sync::Arc;

use hypatia_dsl::ast::BinaryOp;
use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{
    AExpr, AFn, AttrPat, AttrValue, Backend, Build, BuildArg, BuildNode, Class, DTypePat, Fact, Head, InView, Kernel,
    NodePat, ParamKind, Pat, Program, Rule, VarId,
};
use hypatia_target::cublaslt::{Epilogue, ExtraTensor};

use super::claim::claim_for;
use super::epilogue::over_floats;
use super::options::Options;
use super::report::{Counterexample, Entry, Status, Subject};
use super::rules::verify_as;

/// The entry of a kernel; nothing for most kernels that Hypatia generates itself: those of ops are
/// checked with their ops. They keep f32 inside, so that a claim to have the bits of the body in
/// f16 or bf16 is judged.
pub(super) fn verify_kernel(program: &Arc<Program>, kernel: &Kernel, options: &Options) -> Vec<Entry> {
    if let Some(rule) = in_f32(program, kernel) {
        let mut entry = verify_as(program, &rule, Subject::Kernel, options);
        if let Status::False(c) = &mut entry.status {
            c.message = format!("the kernel keeps f32 inside, where the body rounds: {}", c.message);
        }
        return vec![entry];
    }
    let Backend::Cublaslt(epilogue) = &kernel.backend else { return Vec::new() };
    match as_rule(program, kernel, *epilogue) {
        Ok(rule) => {
            let mut entry = verify_as(program, &rule, Subject::Kernel, options);
            if let Status::False(c) = &mut entry.status {
                c.message = format!("the pattern does not describe cuBLASLt's {epilogue}: {}", c.message);
            }
            vec![entry]
        }
        Err(message) => {
            let wrong = Counterexample { message, kind: "kernel", test: String::new() };
            let (name, origin) = (kernel.name.clone(), kernel.origin.clone());
            let status = Status::False(Box::new(wrong));
            vec![Entry {
                subject: Subject::Kernel,
                name,
                origin,
                cases: 0,
                classes: Vec::new(),
                status,
                note: None,
                warnings: Vec::new(),
                proved: None,
                derived: false,
            }]
        }
    }
}

/// `pattern => cast(the op in f32)`, for a generated kernel that claims to have the same bits in
/// f16 or bf16; `None` if it claims less, or its operands are no variables.
fn in_f32(program: &Program, kernel: &Kernel) -> Option<Rule> {
    let narrow = [DType::F16, DType::BF16];
    let strict = |d: &DType| matches!(claim_for(&kernel.claims, *d), Class::Exact | Class::Finite);
    let claimed: Vec<DType> = narrow.into_iter().filter(strict).collect();
    let (Backend::Rowwise | Backend::Pointwise, Pat::Node(node), false) =
        (&kernel.backend, &kernel.pattern, claimed.is_empty() || kernel.claims.is_empty())
    else {
        return None;
    };
    let (Head::Op(op), cast) = (node.head, program.builtin_op(BuiltinOp::Cast)?) else { return None };
    let def = program.op(op);
    if def.results.len() != 1 {
        return None;
    }
    let cast = |b: Build, to: AExpr| {
        let args = vec![BuildArg::One(b)];
        Build::Node(BuildNode { head: Head::Op(cast), args, attrs: vec![to], output: 0 })
    };
    let wide = AExpr::Value(AttrValue::DType(DType::F32));
    let mut operands = Vec::new();
    for (pat, (_, param)) in node.args.iter().zip(def.operands()) {
        let own = Build::Var(variable(pat)?);
        let of_variable = matches!(&param.kind, ParamKind::Tensor { ty, .. } if matches!(ty.dtype, DTypePat::Var(_)));
        operands.push(BuildArg::One(if of_variable { cast(own, wide.clone()) } else { own }));
    }
    let attr = |a: &AttrPat| match a {
        AttrPat::Var(v) => Some(AExpr::Var(*v)),
        AttrPat::Is(e) => Some(e.clone()),
        _ => None,
    };
    let attrs = node.attrs.iter().map(attr).collect::<Option<Vec<AExpr>>>()?;
    let first = node.args.first().and_then(variable)?;
    let result = Build::Node(BuildNode { head: node.head, args: operands, attrs, output: 0 });
    let rhs = vec![cast(result, AExpr::Fact(Fact::DType, first))];
    let types = claimed.iter().map(|d| AExpr::Value(AttrValue::DType(*d))).collect();
    let dtype = Box::new(AExpr::Fact(Fact::DType, first));
    let halves = AExpr::Binary(BinaryOp::In, dtype, Box::new(AExpr::List(types)));
    let requires = kernel.requires.iter().filter(|g| !asks_device(g)).cloned().chain([halves]).collect();
    let rule = Rule::of_pattern(&kernel.name, &kernel.origin, kernel.vars.clone(), kernel.pattern.clone());
    let lhs = vec![Pat::Node(node.clone())];
    Some(Rule { lhs, rhs, requires, claims: kernel.claims.clone(), ..rule })
}

/// `pattern => gemm(a, b, what the library computes)`; one such pair for each result.
fn as_rule(program: &Program, kernel: &Kernel, epilogue: Epilogue) -> Result<Rule, String> {
    let whole = "a cuBLASLt kernel is for `gemm(a, b, epilogue, to = d)` with variables for a, b and d, or for an op \
                 whose operands are variables";
    let (Pat::Node(node), Some(gemm)) = (&kernel.pattern, program.builtin_op(BuiltinOp::Gemm)) else {
        return Err(whole.into());
    };
    let [a, b, rest @ ..] = node.args.as_slice() else { return Err(whole.into()) };
    let (Some(a), Some(b)) = (variable(a), variable(b)) else { return Err(whole.into()) };
    let mut reads = Vec::new();
    let results = match node.head {
        Head::Op(op) if op == gemm => {
            rest.iter().for_each(|term| operands(term, &mut reads));
            1
        }
        Head::Op(op) => {
            let view = if epilogue.reads() == Some(ExtraTensor::Vector) { InView::Row } else { InView::Full };
            let present = rest.iter().filter(|p| **p != Pat::Absent);
            for pat in present {
                reads.push((variable(pat).ok_or(whole)?, view));
            }
            program.op(op).results.len()
        }
        _ => return Err(whole.into()),
    };
    // The only attribute: the type of a gemm's result, or whether sums keep the axis that they
    // reduce.
    let attr = match node.attrs.as_slice() {
        [] => None,
        [AttrPat::Var(v)] => Some(AExpr::Var(*v)),
        [AttrPat::Is(e)] => Some(e.clone()),
        _ => return Err(whole.into()),
    };
    let (to, keepdims) = match (attr, node.head == Head::Op(gemm)) {
        (Some(to), true) => (to, None),
        (keepdims, false) => (AExpr::Fact(Fact::DType, a), keepdims),
        (None, true) => return Err(whole.into()),
    };
    let wanted = 1 + usize::from(epilogue.stores().is_some());
    if results != wanted {
        return Err(format!("cuBLASLt's {epilogue} stores {wanted} results, but the kernel has {results}"));
    }
    let library = Library { program };
    let product = |meaning: Build| library.apply(Head::Op(gemm), vec![Build::Var(a), Build::Var(b), meaning], vec![to]);
    let result = product(library.epilogue(epilogue, &reads)?);
    let rule = Rule::of_pattern(&kernel.name, &kernel.origin, kernel.vars.clone(), kernel.pattern.clone());
    let beside = library.beside(epilogue, &reads, [a, b], &result, keepdims)?;
    let lhs = (0..results).map(|i| Pat::Node(NodePat { output: i as u32, ..node.clone() })).collect();
    let rhs = [result].into_iter().chain(beside).collect();
    // Requirements on the device do not affect what is computed.
    let requires = kernel.requires.iter().filter(|g| !asks_device(g)).cloned().chain([over_floats(a)]).collect();
    Ok(Rule { lhs, rhs, requires, claims: kernel.claims.clone(), ..rule })
}

fn variable(pat: &Pat) -> Option<VarId> {
    match pat {
        Pat::Var(v) | Pat::Bind(v, _) => Some(*v),
        Pat::Typed(p, _) => variable(p),
        _ => None,
    }
}

/// The operands of the epilogue and their views, in order.
fn operands(pat: &Pat, out: &mut Vec<(VarId, InView)>) {
    match pat {
        Pat::Node(NodePat { head: Head::In(view), args, .. }) => {
            let read = args.first().and_then(variable).map(|v| (v, *view));
            out.extend(read.filter(|r| !out.contains(r)));
        }
        Pat::Node(n) => n.args.iter().for_each(|p| operands(p, out)),
        Pat::Bind(_, p) | Pat::Typed(p, _) => operands(p, out),
        _ => {}
    }
}

fn asks_device(e: &AExpr) -> bool {
    match e {
        AExpr::Device(_) => true,
        AExpr::Binary(_, a, b) => asks_device(a) || asks_device(b),
        AExpr::Not(a) | AExpr::Neg(a) => asks_device(a),
        _ => false,
    }
}

/// The numbers in GELU's tanh form: the square root of 2 / pi, and the factor of the cube.
const ROOT: f64 = 0.797_884_560_802_865_4;
const CUBIC: f64 = 0.044715;

/// The epilogues as cuBLASLt documents them.
struct Library<'a> {
    program: &'a Program,
}

impl Library<'_> {
    /// The term of an epilogue; the bias is the only operand of those that have one.
    fn epilogue(&self, epilogue: Epilogue, reads: &[(VarId, InView)]) -> Result<Build, String> {
        use Epilogue::*;
        let acc = || self.apply(Head::Acc, Vec::new(), Vec::new());
        let read = |v: VarId, view: InView| self.apply(Head::In(view), vec![Build::Var(v)], Vec::new());
        let biased = || match reads {
            [(bias, InView::Row)] => self.call(BuiltinScalar::Add, vec![acc(), read(*bias, InView::Row)]),
            _ => Err(format!(
                "cuBLASLt's {epilogue} adds one value a column: the pattern must read one operand, as `row(bias)`"
            )),
        };
        // What is stored besides the result does not change it.
        match epilogue {
            Default | BgradA | BgradB => Ok(acc()),
            Bias => biased(),
            Relu | ReluAux => self.relu(acc()),
            ReluBias | ReluAuxBias => self.relu(biased()?),
            Drelu | DreluBgrad => match reads {
                [(bits, _)] => {
                    let kept = self.apply(Head::In(InView::Full), vec![self.unpacked(*bits)?], Vec::new());
                    self.call(BuiltinScalar::Select, vec![kept, acc(), number(0.0)])
                }
                _ => Err(format!("cuBLASLt's {epilogue} reads one matrix of bits: the pattern must read one operand")),
            },
            Gelu | GeluAux => self.gelu(acc()),
            GeluBias | GeluAuxBias => self.gelu(biased()?),
            Dgelu | DgeluBgrad => match reads {
                [(pre, InView::Full)] => {
                    let slope = self.gelu_slope(read(*pre, InView::Full))?;
                    self.call(BuiltinScalar::Mul, vec![acc(), slope])
                }
                _ => Err(format!(
                    "cuBLASLt's {epilogue} reads one matrix: the pattern must read one operand, as `full(pre)`"
                )),
            },
        }
    }

    /// The auxiliary output of an epilogue.
    fn beside(
        &self,
        epilogue: Epilogue,
        reads: &[(VarId, InView)],
        [a, b]: [VarId; 2],
        result: &Build,
        keepdims: Option<AExpr>,
    ) -> Result<Option<Build>, String> {
        let sum = |of: Build| {
            let keepdims = keepdims.clone().unwrap_or(AExpr::Value(AttrValue::Bool(false)));
            Ok::<_, String>(Some(self.op(BuiltinOp::Sum, vec![of], vec![ints(&[0]), keepdims])?))
        };
        let before = |gemm: &BuildNode| {
            let before = self.epilogue(if reads.is_empty() { Epilogue::Default } else { Epilogue::Bias }, reads)?;
            let args = gemm.args[..2].iter().cloned().chain([BuildArg::One(before)]).collect();
            Ok::<_, String>(BuildNode { args, ..gemm.clone() })
        };
        match (epilogue, result) {
            // The bits are those of the accumulator, which is not rounded.
            (Epilogue::ReluAux | Epilogue::ReluAuxBias, Build::Node(gemm)) => {
                let whole = vec![AExpr::Value(AttrValue::DType(DType::F32))];
                Ok(Some(self.packed(Build::Node(BuildNode { attrs: whole, ..before(gemm)? }), [a, b])?))
            }
            (Epilogue::GeluAux | Epilogue::GeluAuxBias, Build::Node(gemm)) => Ok(Some(Build::Node(before(gemm)?))),
            (Epilogue::DreluBgrad | Epilogue::DgeluBgrad, _) => sum(result.clone()),
            // Our right operand is the library's A.
            (Epilogue::BgradA, _) => sum(Build::Var(b)),
            (Epilogue::BgradB, _) => sum(self.op(BuiltinOp::Transpose, vec![Build::Var(a)], vec![ints(&[1, 0])])?),
            _ => Ok(None),
        }
    }

    /// One bit for each element of a product of `a` and `b`: set where the element is not negative.
    fn packed(&self, product: Build, [a, b]: [VarId; 2]) -> Result<Build, String> {
        let bytes = AExpr::Call(AFn::Floor, vec![binary(BinaryOp::Div, last(b), int(8))]);
        let groups = AExpr::List(vec![leading(a), bytes, int(8)]);
        let x = self.op(BuiltinOp::Reshape, vec![product], vec![groups])?;
        let negative = self.call(BuiltinScalar::Lt, vec![x, number(0.0)])?;
        let bits = self.call(BuiltinScalar::Select, vec![negative, number(0.0), self.powers()?])?;
        self.op(BuiltinOp::Sum, vec![bits], vec![ints(&[-1]), AExpr::Value(AttrValue::Bool(false))])
    }

    /// The bits of a matrix of bytes, as truth values.
    fn unpacked(&self, bits: VarId) -> Result<Build, String> {
        let shape = |items: Vec<AExpr>| vec![AExpr::List(items)];
        let each = shape(vec![AExpr::Spread(Box::new(AExpr::Fact(Fact::Shape, bits))), int(1)]);
        let bytes = self.op(BuiltinOp::Reshape, vec![Build::Var(bits)], each)?;
        let shifted = self.call(BuiltinScalar::Div, vec![bytes, self.powers()?])?;
        let lowest = self.call(BuiltinScalar::Fmod, vec![shifted, number(2.0)])?;
        let set = self.call(BuiltinScalar::Eq, vec![lowest, number(1.0)])?;
        let rows = shape(vec![leading(bits), binary(BinaryOp::Mul, last(bits), int(8))]);
        self.op(BuiltinOp::Reshape, vec![set], rows)
    }

    /// The weights of the bits of a byte, the lowest bit first.
    fn powers(&self) -> Result<Build, String> {
        let attrs = vec![ints(&[8]), int(0), AExpr::Value(AttrValue::DType(DType::U8))];
        let place = self.op(BuiltinOp::Iota, Vec::new(), attrs)?;
        self.call(BuiltinScalar::Pow, vec![number(2.0), place])
    }

    /// NaN becomes 0.
    fn relu(&self, x: Build) -> Result<Build, String> {
        let positive = self.call(BuiltinScalar::Lt, vec![number(0.0), x.clone()])?;
        self.call(BuiltinScalar::Select, vec![positive, x, number(0.0)])
    }

    /// The form with tanh, not the one with erf.
    fn gelu(&self, x: Build) -> Result<Build, String> {
        let tanh = self.gelu_tanh(&x)?;
        self.mul(self.mul(number(0.5), x)?, self.add(number(1.0), tanh)?)
    }

    /// The derivative of [`Self::gelu`].
    fn gelu_slope(&self, x: Build) -> Result<Build, String> {
        let tanh = self.gelu_tanh(&x)?;
        let square = self.mul(x.clone(), x.clone())?;
        let inner = self.mul(number(ROOT), self.add(number(1.0), self.mul(number(3.0 * CUBIC), square)?)?)?;
        let tanh_slope = self.call(BuiltinScalar::Sub, vec![number(1.0), self.mul(tanh.clone(), tanh.clone())?])?;
        let left = self.mul(number(0.5), self.add(number(1.0), tanh)?)?;
        let right = self.mul(self.mul(self.mul(number(0.5), x)?, tanh_slope)?, inner)?;
        self.add(left, right)
    }

    /// The hyperbolic tangent in GELU.
    fn gelu_tanh(&self, x: &Build) -> Result<Build, String> {
        let cube = self.mul(self.mul(x.clone(), x.clone())?, x.clone())?;
        let inner = self.mul(number(ROOT), self.add(x.clone(), self.mul(number(CUBIC), cube)?)?)?;
        self.call(BuiltinScalar::Tanh, vec![inner])
    }

    fn mul(&self, a: Build, b: Build) -> Result<Build, String> {
        self.call(BuiltinScalar::Mul, vec![a, b])
    }

    fn add(&self, a: Build, b: Build) -> Result<Build, String> {
        self.call(BuiltinScalar::Add, vec![a, b])
    }

    fn call(&self, scalar: BuiltinScalar, args: Vec<Build>) -> Result<Build, String> {
        let id = self.program.builtin_scalar(scalar).ok_or("the builtin scalars are not declared: `use core::*;`")?;
        Ok(self.apply(Head::Scalar(id), args, Vec::new()))
    }

    fn op(&self, op: BuiltinOp, args: Vec<Build>, attrs: Vec<AExpr>) -> Result<Build, String> {
        let id = self.program.builtin_op(op).ok_or("the builtin ops are not declared: `use core::*;`")?;
        Ok(self.apply(Head::Op(id), args, attrs))
    }

    fn apply(&self, head: Head, args: Vec<Build>, attrs: Vec<AExpr>) -> Build {
        let args = args.into_iter().map(BuildArg::One).collect();
        Build::Node(BuildNode { head, args, attrs, output: 0 })
    }
}

fn number(v: f64) -> Build {
    Build::Number(AExpr::Value(AttrValue::Float(v)))
}

fn int(i: i64) -> AExpr {
    AExpr::Value(AttrValue::Dim(i.into()))
}

fn ints(list: &[i64]) -> AExpr {
    AExpr::List(list.iter().map(|i| int(*i)).collect())
}

fn binary(op: BinaryOp, a: AExpr, b: AExpr) -> AExpr {
    AExpr::Binary(op, Box::new(a), Box::new(b))
}

/// The size of a tensor's last axis.
fn last(x: VarId) -> AExpr {
    AExpr::Index(Box::new(AExpr::Fact(Fact::Shape, x)), Box::new(int(-1)))
}

/// The sizes of the axes before the last one, for a list.
fn leading(x: VarId) -> AExpr {
    let count = binary(BinaryOp::Sub, AExpr::Fact(Fact::Rank, x), int(1));
    AExpr::Spread(Box::new(AExpr::Call(AFn::Slice, vec![AExpr::Fact(Fact::Shape, x), int(0), count])))
}
