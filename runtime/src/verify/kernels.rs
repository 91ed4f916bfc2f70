//! Kernels of a library: does it compute what the kernel's pattern means?
//!
//! In: a kernel that is bound to an epilogue of cuBLASLt. Out: an entry: the pattern against what the library documents
//! for that epilogue, compared like the two sides of a rule. Holds always: no GPU is needed, so this is about what is
//! documented, not about what a device does.

use std::sync::Arc;

use hypatia_dsl::builtin::{BuiltinOp, BuiltinScalar};
use hypatia_dsl::ir::{
    AExpr, AttrPat, AttrValue, Backend, Build, BuildArg, BuildNode, Head, InView, Kernel, NodePat, Pat, Program, Rule,
    VarId,
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

/// `pattern => gemm(a, b, what the library computes)`.
fn as_rule(program: &Program, kernel: &Kernel, epilogue: &str) -> Result<Rule, String> {
    let whole = "a cuBLASLt kernel is for `gemm(a, b, epilogue, to = d)` with variables for a, b and d";
    let (Pat::Node(node), Some(gemm)) = (&kernel.pattern, program.builtin_op(BuiltinOp::Gemm)) else {
        return Err(whole.into());
    };
    let ([a, b, term], [to]) = (node.args.as_slice(), node.attrs.as_slice()) else { return Err(whole.into()) };
    let (Some(a), Some(b)) = (variable(a), variable(b)) else { return Err(whole.into()) };
    let to = match to {
        AttrPat::Var(v) => AExpr::Var(*v),
        AttrPat::Is(e) => e.clone(),
        _ => return Err(whole.into()),
    };
    let mut reads = Vec::new();
    operands(term, &mut reads);
    let meaning = Library { program }.epilogue(epilogue, &reads)?;
    let args = [Build::Var(a), Build::Var(b), meaning];
    let right = BuildNode {
        head: Head::Op(gemm),
        args: args.into_iter().map(BuildArg::One).collect(),
        attrs: vec![to],
        output: 0,
    };
    let rule = Rule::of_pattern(&kernel.name, &kernel.origin, kernel.vars.clone(), kernel.pattern.clone());
    // What the device must be says nothing about what is computed.
    let requires = kernel.requires.iter().filter(|g| !asks_device(g)).cloned().chain([over_floats(a)]).collect();
    Ok(Rule { rhs: vec![Build::Node(right)], requires, claims: kernel.claims.clone(), ..rule })
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

/// What cuBLASLt documents of its epilogues.
struct Library<'a> {
    program: &'a Program,
}

impl Library<'_> {
    /// The term of an epilogue; the bias is the only operand of those that have one.
    fn epilogue(&self, name: &str, reads: &[(VarId, InView)]) -> Result<Build, String> {
        // The pre-activation that the AUX forms store beside the result changes nothing about the result.
        let plain = name.replace("_AUX", "");
        let acc = || Ok(self.apply(Head::Acc, Vec::new()));
        let biased = || match reads {
            [(bias, InView::Row)] => {
                let row = self.apply(Head::In(InView::Row), vec![Build::Var(*bias)]);
                self.call(BuiltinScalar::Add, vec![self.apply(Head::Acc, Vec::new()), row])
            }
            _ => Err(format!(
                "cuBLASLt's {name} adds one value a column: the pattern must read one operand, as `row(bias)`"
            )),
        };
        match plain.as_str() {
            "DEFAULT" => acc(),
            "BIAS" => biased(),
            "RELU" => self.relu(acc()?),
            "RELU_BIAS" => self.relu(biased()?),
            "GELU" => self.gelu(acc()?),
            "GELU_BIAS" => self.gelu(biased()?),
            _ => Err(format!(
                "cuBLASLt's {name} is part of a derivative: no pattern over one gemm says what it computes"
            )),
        }
    }

    /// NaN becomes 0.
    fn relu(&self, x: Build) -> Result<Build, String> {
        let positive = self.call(BuiltinScalar::Lt, vec![number(0.0), x.clone()])?;
        self.call(BuiltinScalar::Select, vec![positive, x, number(0.0)])
    }

    /// The form with tanh, not the one with erf.
    fn gelu(&self, x: Build) -> Result<Build, String> {
        let mul = |a, b| self.call(BuiltinScalar::Mul, vec![a, b]);
        let add = |a, b| self.call(BuiltinScalar::Add, vec![a, b]);
        let cube = mul(mul(x.clone(), x.clone())?, x.clone())?;
        let inner = mul(number((2.0 / std::f64::consts::PI).sqrt()), add(x.clone(), mul(number(0.044715), cube)?)?)?;
        let tanh = self.call(BuiltinScalar::Tanh, vec![inner])?;
        mul(mul(number(0.5), x)?, add(number(1.0), tanh)?)
    }

    fn call(&self, scalar: BuiltinScalar, args: Vec<Build>) -> Result<Build, String> {
        let id = self.program.builtin_scalar(scalar).ok_or("the builtin scalars are not declared: `use core::*;`")?;
        Ok(self.apply(Head::Scalar(id), args))
    }

    fn apply(&self, head: Head, args: Vec<Build>) -> Build {
        let args = args.into_iter().map(BuildArg::One).collect();
        Build::Node(BuildNode { head, args, attrs: Vec::new(), output: 0 })
    }
}

fn number(v: f64) -> Build {
    Build::Number(AExpr::Value(AttrValue::Float(v)))
}
