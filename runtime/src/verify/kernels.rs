//! Kernels of a library: does it compute what the kernel's pattern means?
//!
//! In: a kernel that is bound to an epilogue of cuBLASLt, for a gemm or for an op. Out: an entry: the pattern against what the
//! library documents for that epilogue, each result of the op against what is stored there, compared like the two sides of a rule. Holds always: no GPU is needed, so this is about what is
//! documented, not about what a device does.

use std::sync::Arc;

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::cublaslt::{Beside, Form};
use hypatia_dsl::ir::{
    AExpr, AttrPat, AttrValue, Backend, Build, BuildArg, BuildNode, Fact, Head, InView, Kernel, NodePat, Pat, Program,
    Rule, VarId,
};

use super::Options;
use super::epilogue::over_floats;
use super::report::{Counterexample, Entry, Status, Subject};
use super::rules::verify_as;

/// The entry of a kernel; nothing for kernels that Hypatia writes itself: those of ops are checked with their ops.
pub(super) fn verify_kernel(program: &Arc<Program>, kernel: &Kernel, options: &Options) -> Vec<Entry> {
    let Backend::Cublaslt(epilogue) = &kernel.backend else { return Vec::new() };
    match as_rule(program, kernel, epilogue) {
        Ok(rule) => {
            let mut entry = verify_as(program, &rule, Subject::Kernel, options);
            if let Status::False(c) = &mut entry.status {
                c.message = format!("cuBLASLt's {epilogue} is not what the pattern says: {}", c.message);
            }
            vec![entry]
        }
        Err(message) => {
            let wrong = Counterexample { message, kind: "kernel", test: String::new() };
            let (name, origin) = (kernel.name.clone(), kernel.origin.clone());
            let status = Status::False(Box::new(wrong));
            vec![Entry { subject: Subject::Kernel, name, origin, cases: 0, classes: Vec::new(), status, note: None }]
        }
    }
}

/// `pattern => gemm(a, b, what the library computes)`; one such pair for each result.
fn as_rule(program: &Program, kernel: &Kernel, epilogue: &str) -> Result<Rule, String> {
    let form = Form::named(epilogue).ok_or_else(|| format!("cuBLASLt's {epilogue} is not known"))?;
    let whole = "a cuBLASLt kernel is for `gemm(a, b, epilogue, to = d)` with variables for a, b and d, or for an op whose \
                 operands are variables";
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
            let view = if form.reads == Some(Beside::Full) { InView::Full } else { InView::Row };
            let present = rest.iter().filter(|p| **p != Pat::Absent);
            for pat in present {
                reads.push((variable(pat).ok_or(whole)?, view));
            }
            program.op(op).results.len()
        }
        _ => return Err(whole.into()),
    };
    // The one attribute: the type of a gemm's result, or whether sums keep the axis that they run over.
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
    let wanted = 1 + usize::from(form.stores.is_some());
    if results != wanted {
        return Err(format!("cuBLASLt's {epilogue} stores {wanted} results, and the kernel is for {results}"));
    }
    let library = Library { program };
    let product = |meaning: Build| library.apply(Head::Op(gemm), vec![Build::Var(a), Build::Var(b), meaning], vec![to]);
    let result = product(library.epilogue(epilogue, &reads)?);
    let rule = Rule::of_pattern(&kernel.name, &kernel.origin, kernel.vars.clone(), kernel.pattern.clone());
    let beside = library.beside(epilogue, &reads, [a, b], &result, keepdims)?;
    let lhs = (0..results).map(|i| Pat::Node(NodePat { output: i as u32, ..node.clone() })).collect();
    let rhs = [result].into_iter().chain(beside).collect();
    // What the device must be says nothing about what is computed.
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

/// What the epilogue reads, and how, in order.
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

/// The numbers in GELU's tanh form: the root of 2 / pi, and the factor of the cube.
const ROOT: f64 = 0.797_884_560_802_865_4;
const CUBIC: f64 = 0.044715;

/// What cuBLASLt documents of its epilogues.
struct Library<'a> {
    program: &'a Program,
}

impl Library<'_> {
    /// The term of an epilogue; the bias is the only operand of those that have one.
    fn epilogue(&self, name: &str, reads: &[(VarId, InView)]) -> Result<Build, String> {
        // What is stored beside the result changes nothing about it.
        let plain = name.replace("_AUX", "").replace("_BGRAD", "");
        let acc = || self.apply(Head::Acc, Vec::new(), Vec::new());
        let read = |v: VarId, view: InView| self.apply(Head::In(view), vec![Build::Var(v)], Vec::new());
        let biased = || match reads {
            [(bias, InView::Row)] => self.call(BuiltinScalar::Add, vec![acc(), read(*bias, InView::Row)]),
            _ => Err(format!(
                "cuBLASLt's {name} adds one value a column: the pattern must read one operand, as `row(bias)`"
            )),
        };
        match plain.as_str() {
            "DEFAULT" | "BGRADA" | "BGRADB" => Ok(acc()),
            "BIAS" => biased(),
            "RELU" => self.relu(acc()),
            "RELU_BIAS" => self.relu(biased()?),
            "GELU" => self.gelu(acc()),
            "GELU_BIAS" => self.gelu(biased()?),
            "DGELU" => match reads {
                [(pre, InView::Full)] => {
                    let slope = self.gelu_slope(read(*pre, InView::Full))?;
                    self.call(BuiltinScalar::Mul, vec![acc(), slope])
                }
                _ => Err(format!(
                    "cuBLASLt's {name} reads one matrix: the pattern must read one operand, as `full(pre)`"
                )),
            },
            _ => Err(format!("nothing is documented of cuBLASLt's {name}")),
        }
    }

    /// What an epilogue stores beside the result.
    fn beside(
        &self,
        name: &str,
        reads: &[(VarId, InView)],
        [a, b]: [VarId; 2],
        result: &Build,
        keepdims: Option<AExpr>,
    ) -> Result<Option<Build>, String> {
        let op = |op: BuiltinOp| {
            self.program.builtin_op(op).ok_or("the builtin ops are not declared: `use core::*;`").map(Head::Op)
        };
        let ints = |list: &[i64]| AExpr::List(list.iter().map(|i| AExpr::Value(AttrValue::Dim((*i).into()))).collect());
        let sum = |of: Build| {
            let keepdims = keepdims.clone().unwrap_or(AExpr::Value(AttrValue::Bool(false)));
            Ok::<_, String>(Some(self.apply(op(BuiltinOp::Sum)?, vec![of], vec![ints(&[0]), keepdims])))
        };
        match (name, result) {
            ("GELU_AUX" | "GELU_AUX_BIAS", Build::Node(gemm)) => {
                let before = self.epilogue(if reads.is_empty() { "DEFAULT" } else { "BIAS" }, reads)?;
                let args = gemm.args[..2].iter().cloned().chain([BuildArg::One(before)]).collect();
                Ok(Some(Build::Node(BuildNode { args, ..gemm.clone() })))
            }
            ("DGELU_BGRAD", _) => sum(result.clone()),
            // Our right operand is the library's A.
            ("BGRADA", _) => sum(Build::Var(b)),
            ("BGRADB", _) => sum(self.apply(op(BuiltinOp::Transpose)?, vec![Build::Var(a)], vec![ints(&[1, 0])])),
            _ => Ok(None),
        }
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

    /// Its derivative.
    fn gelu_slope(&self, x: Build) -> Result<Build, String> {
        let tanh = self.gelu_tanh(&x)?;
        let square = self.mul(x.clone(), x.clone())?;
        let inner = self.mul(number(ROOT), self.add(number(1.0), self.mul(number(3.0 * CUBIC), square)?)?)?;
        let tanh_slope = self.call(BuiltinScalar::Sub, vec![number(1.0), self.mul(tanh.clone(), tanh.clone())?])?;
        let left = self.mul(number(0.5), self.add(number(1.0), tanh)?)?;
        let right = self.mul(self.mul(self.mul(number(0.5), x)?, tanh_slope)?, inner)?;
        self.add(left, right)
    }

    /// The hyperbolic tangent in it.
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

    fn apply(&self, head: Head, args: Vec<Build>, attrs: Vec<AExpr>) -> Build {
        let args = args.into_iter().map(BuildArg::One).collect();
        Build::Node(BuildNode { head, args, attrs, output: 0 })
    }
}

fn number(v: f64) -> Build {
    Build::Number(AExpr::Value(AttrValue::Float(v)))
}
