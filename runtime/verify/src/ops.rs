//! Defined ops: the body has the declared type, a row-wise kernel computes what the body means, and
//! a written `grad` is its derivative.
//!
//! In: a defined op. Out: an entry. Operands and attributes are generated as for a rule whose left
//! side is the op alone; the kernel is run as the CPU executor runs it.

use std::collections::BTreeSet;
use std::sync::Arc;

use hypatia_dsl::ir::{
    AttrPat, AttrValue, Backend, Claim, Class, Head, Kernel, NodePat, OpBody, OpId, ParamKind, Pat, Program, Rest,
    Rule, Sort, Var, VarId,
};
use hypatia_dsl::typing::{Bindings, codes, match_type};

use super::block::left_block;
use super::claim::claim_for;
use super::differ::{far_apart, position};
use super::generate::{Focus, Instance, Reject, elements, instance};
use super::hints::Hints;
use super::op_grads;
use super::options::{Options, seed_of};
use super::range::Meaning;
use super::report::{Counterexample, Entry, Status, Subject};
use super::skips::Skips;
use super::source::Source;
use super::values::Distribution;
use hypatia_cpu::Executor;
use hypatia_eval::{Mode, RefTensor, evaluate};
use hypatia_graph::{Graph, Node, NodeKind, show_number};
use hypatia_pipeline as pipeline;
use hypatia_plan as plan;
use hypatia_target::device::Device;
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

/// Attempts for each case.
const TRIES_PER_CASE: usize = 100;

/// What a search for a counterexample to an op has seen.
struct Searched {
    status: Status,
    /// Operands that were compared, those of them that hold elements, and elements of gradients.
    cases: usize,
    full: usize,
    compared: usize,
    skips: Skips,
    /// The first operands for which the body has no meaning, and why.
    meaningless: Option<(Instance, String)>,
    /// Why the last operands were not compared.
    last: String,
}

/// Checks op number `index`; returns nothing for builtin ops, and for those that take a term.
pub(super) fn verify_op(program: &Arc<Program>, index: usize, options: &Options) -> Vec<Entry> {
    let id = OpId(index as u32);
    let def = program.op(id);
    let has_term = def.params.iter().any(|p| p.kind == ParamKind::Term);
    if matches!(def.body, OpBody::Builtin(_)) || has_term {
        return Vec::new();
    }
    let Searched { mut status, cases, full, compared, skips, meaningless, last } = search(program, id, options);
    if cases == 0 {
        status = match meaningless {
            // The body is undefined for everything that the declaration accepts.
            Some((made, message)) if skips.hopeless() => wrong(&def.name, &made, "body", &message),
            _ => Status::NotExercised { reason: format!("the search found no operands that it accepts: {last}") },
        };
    }
    if cases > 0 && full == 0 && status == Status::Verified {
        let reason = "the search found only empty operands that it accepts".to_string();
        status = Status::NotExercised { reason };
    }
    if def.grad.is_some() && compared == 0 && status == Status::Verified {
        let reason = "no point was found where the derivative of the body is finite".to_string();
        status = Status::NotExercised { reason };
    }
    let (name, origin) = (def.name.clone(), def.origin.clone());
    let note = skips.note("its body").filter(|_| !matches!(status, Status::False(_)));
    vec![Entry {
        subject: Subject::Op,
        name,
        origin,
        cases,
        classes: Vec::new(),
        status,
        note,
        warnings: Vec::new(),
        proved: None,
        derived: false,
    }]
}

/// Looks for operands for which an op differs from its body, or a written gradient from the body's.
fn search(program: &Arc<Program>, id: OpId, options: &Options) -> Searched {
    let def = program.op(id);
    let rule = alone(program, id);
    let hints = Hints::of(program, &rule);
    let kernel = generated(program, id);
    let seed = seed_of(options, &def.name);
    let (status, skips, last) = (Status::Verified, Skips::default(), String::new());
    let mut seen = Searched { status, cases: 0, full: 0, compared: 0, skips, meaningless: None, last };
    let mut tries = 0;
    while seen.full < options.cases
        && seen.cases < 2 * options.cases
        && tries < options.cases * TRIES_PER_CASE
        && !seen.skips.hopeless()
    {
        tries += 1;
        let mut source = Source::random(seed.wrapping_add(tries as u64));
        let made = match instance(program, &rule, &hints, &mut source, Focus::default(), &|_, _| None) {
            Ok(i) => i,
            Err(Reject(why)) => {
                seen.last = why;
                continue;
            }
        };
        let dtype = made.left.first().map(|v| made.graph.ty(*v).dtype);
        match check(&made, kernel) {
            Verdict::Right if def.grad.is_some() => match gradients(&made, seed.wrapping_add(tries as u64)) {
                Ok(elements) => seen.compared += elements,
                Err(message) => {
                    seen.cases += 1;
                    let counterexample = Counterexample { message, kind: "gradient", test: String::new() };
                    seen.status = Status::False(Box::new(counterexample));
                    break;
                }
            },
            Verdict::Right => {}
            Verdict::NoMeaning(message) => {
                seen.skips.skip(dtype, &message);
                seen.last.clone_from(&message);
                seen.meaningless.get_or_insert((made, message));
                continue;
            }
            Verdict::Outside(message) => {
                seen.last = message;
                continue;
            }
            Verdict::Wrong(kind, message) => {
                seen.cases += 1;
                seen.status = wrong(&def.name, &made, kind, &message);
                break;
            }
        }
        seen.cases += 1;
        seen.full += usize::from(made.left.iter().any(|v| elements(made.graph.ty(*v)) > 0));
        seen.skips.compare(dtype);
    }
    seen
}

/// The kernel that is generated from the body of an op, if there is one.
fn generated(program: &Program, op: OpId) -> Option<&Kernel> {
    let of_op = |k: &&Kernel| matches!(&k.pattern, Pat::Node(n) if n.head == Head::Op(op));
    program.kernels.iter().filter(|k| k.backend == Backend::Rowwise).find(of_op)
}

/// What is wrong with the kernels that are generated for ops of a graph: whether they compute what
/// the bodies mean, under the classes that these kernels claim.
pub(super) fn wrong_kernels(graph: &Graph, inputs: &[(String, Tensor)]) -> Result<Option<String>> {
    let op = |n: &Node| if let NodeKind::Op { op, .. } = n.kind { Some(op) } else { None };
    let ops: BTreeSet<OpId> = graph.nodes.iter().filter_map(op).collect();
    let kernels: Vec<&Kernel> = ops.into_iter().filter_map(|op| generated(&graph.program, op)).collect();
    match kernels.is_empty() {
        true => Ok(None),
        false => kernel(graph, inputs, &kernels.iter().flat_map(|k| k.claims.clone()).collect::<Vec<_>>()),
    }
}

/// Compares the written gradients, unless the numbers are extreme. Returns the number of elements.
fn gradients(made: &Instance, seed: u64) -> std::result::Result<usize, String> {
    if !moderate(made) {
        return Ok(0);
    }
    op_grads::compare(made, seed).unwrap_or_else(|e| Err(format!("`grad` cannot be computed: {e}")))
}

fn moderate(made: &Instance) -> bool {
    !matches!(made.distribution, Distribution::Extreme | Distribution::Large | Distribution::Far)
}

fn wrong(name: &str, made: &Instance, kind: &'static str, message: &str) -> Status {
    let types: Vec<String> = made.inputs.iter().map(|(n, t)| format!("{n}: {}{:?}", t.dtype(), t.shape())).collect();
    let message = if types.is_empty() { message.to_string() } else { format!("{message} (for {})", types.join(", ")) };
    let test = left_block(
        &format!("{name} does not compute what its declaration says"),
        made,
        "equal",
        &message,
        kind == "body",
    );
    Status::False(Box::new(Counterexample { message, kind, test }))
}

/// A rule whose left side is the op over variables.
fn alone(program: &Program, op: OpId) -> Rule {
    let def = program.op(op);
    let mut vars = Vec::new();
    let mut var = |name: &str, sort: Sort| {
        vars.push(Var { name: name.to_string(), sort });
        VarId(vars.len() as u32 - 1)
    };
    let (mut args, mut rest) = (Vec::new(), None);
    for (_, param) in def.operands() {
        match &param.kind {
            ParamKind::Tensor { variadic: true, .. } => rest = Some(var(&param.name, Sort::Tensors)),
            ParamKind::Tensor { optional: true, .. } => args.push(Pat::Optional(var(&param.name, Sort::Tensor))),
            _ => args.push(Pat::Var(var(&param.name, Sort::Tensor))),
        }
    }
    let attrs = def.attrs().map(|_| AttrPat::Any).collect();
    let rest = rest.map(|var| Rest { var, each: None });
    let pattern = Pat::Node(NodePat { head: Head::Op(op), args, rest, attrs, output: 0 });
    Rule::of_pattern(&def.name, &def.origin, vars, pattern)
}

/// What an instance shows about an op.
enum Verdict {
    Right,
    /// Its body is undefined for an element type.
    NoMeaning(String),
    /// Its body has no value for these elements: an index is out of bounds.
    Outside(String),
    /// What is wrong: a stable identifier, and a sentence.
    Wrong(&'static str, String),
}

fn check(made: &Instance, with: Option<&Kernel>) -> Verdict {
    let mut graph = made.graph.clone();
    for (i, v) in made.left.iter().flat_map(|v| graph.results(v.node)).enumerate().collect::<Vec<_>>() {
        graph.output(format!("result{i}"), v);
    }
    match graph.inlined() {
        Ok(_) => {}
        Err(e) if e.code() == Some(codes::DTYPE) => return Verdict::NoMeaning(e.to_string()),
        Err(e) => return Verdict::Wrong("body", format!("{e}; {}", missing_guard(made))),
    }
    let Some(with) = with.filter(|_| moderate(made)) else { return Verdict::Right };
    // Operands for which the body itself has no value say nothing about the kernel.
    if let Err(e) = evaluate(&graph, &made.inputs, Mode::Exact) {
        return Verdict::Outside(e.to_string());
    }
    match kernel(&graph, &made.inputs, &with.claims) {
        Ok(None) => Verdict::Right,
        Ok(Some(message)) => Verdict::Wrong("kernel", message),
        Err(e) => Verdict::Wrong("kernel", format!("its kernel cannot be run: {e}")),
    }
}

/// What to write if an op has no meaning for such operands.
fn missing_guard(made: &Instance) -> String {
    let program = &made.graph.program;
    let node = made.left.first().map(|v| made.graph.node(v.node));
    let op = node.and_then(|n| if let NodeKind::Op { op, .. } = n.kind { Some((n, program.op(op))) } else { None });
    let empty: Vec<String> = op.map_or(Vec::new(), |(node, def)| {
        let mut scope = Bindings::default();
        for (operand, (_, param)) in node.operands.iter().zip(def.operands()) {
            if let (Some(v), ParamKind::Tensor { ty, .. }) = (operand, &param.kind) {
                let _ = match_type(ty, made.graph.ty(*v), &mut scope);
            }
        }
        let zero = |v: &AttrValue| matches!(v, AttrValue::Dim(d) if d.as_const() == Some(0));
        let found = |i: &usize| scope.values.get(&VarId(*i as u32)).is_some_and(zero);
        (0..def.vars.len()).filter(found).map(|i| format!("`{}`", def.vars[i].name)).collect()
    });
    match empty.as_slice() {
        [name] => format!("if it has no meaning there, write `requires {} > 0`", name.trim_matches('`')),
        [] => "if it has no meaning there, write a `requires` that excludes such operands".to_string(),
        names => format!(
            "if it has no meaning there, write a `requires` that excludes it: {} are 0 here",
            names.join(" and ")
        ),
    }
}

/// Compares the executor's results with the reference's.
fn kernel(graph: &Graph, inputs: &[(String, Tensor)], claims: &[Claim]) -> Result<Option<String>> {
    let plan = pipeline::plan(graph, &plan::Options::new(Device::cpu()))?;
    let ordered: Vec<Tensor> = plan
        .inputs
        .iter()
        .map(|i| inputs.iter().find(|(n, _)| *n == i.name).map(|t| t.1.clone()))
        .collect::<Option<_>>()
        .ok_or_else(|| Error::Internal("the plan has an input that the graph has not".into()))?;
    judge(graph, inputs, claims, &Executor::new(Arc::new(plan), 1)?.run(&ordered)?)
}

/// What is wrong with a kernel's results, if anything.
fn judge(graph: &Graph, inputs: &[(String, Tensor)], claims: &[Claim], got: &[Tensor]) -> Result<Option<String>> {
    let wanted = evaluate(graph, inputs, Mode::Rounded)?;
    let meaning = Meaning::of(graph, inputs)?;
    for (root, (g, w)) in got.iter().zip(&wanted).enumerate() {
        let g: RefTensor = RefTensor::from_tensor(g);
        // Integers may be off by the steps that the class allows: from what the body means, or from
        // what it gives where it rounds every step.
        let steps = match claim_for(claims, w.dtype) {
            Class::Within(steps) if w.dtype.is_int() => f64::from(steps),
            _ => 0.0,
        };
        // A kernel rounds and overflows less often than the body: a result closer to the meaning is
        // no error.
        let right = |i: usize| {
            let (g_i, w_i, x) = (g.at(i).f(), w.at(i).f(), meaning.at(root, i));
            let near = steps > 0.0 && ((g_i - x).abs() <= steps || (g_i - w_i).abs() <= steps);
            let undefined = g_i.is_nan() && x.is_nan();
            let nearer = w_i.is_finite() && (g_i - x).abs() <= (w_i - x).abs();
            near || undefined || nearer || meaning.excuses(root, i, &g)
        };
        if let Some(d) = far_apart(root, &g, w, &right) {
            return Ok(Some(format!(
                "element {} of result {root} is {} from the kernel, {} from the body",
                position(d.index, &g.shape),
                show_number(d.left),
                show_number(d.right)
            )));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use hypatia_dsl::dtype::DType;
    use hypatia_dsl::source::SourceFile;

    use super::*;
    use crate::test_runner::given;

    /// Rounding makes the sum 0, whose root is infinite when inverted; without rounding it is
    /// negative, and has none.
    #[test]
    fn kernels_may_say_that_there_is_no_result_where_there_is_none() {
        let text = "edition 1;\nuse core::*;\n\
            op inverse<T: float>(x: T[..s, n]) -> T[..s, n] = x * rsqrt(sum(x * x, axes = [-1]) - 1.0157);\n\
            kernel rows for inverse(x) { rowwise; }\n\
            test \"t\" { input x: bf16[1] = [1.0078125]; given inverse(x); expect launches == 1; }";
        let file = SourceFile { name: "t.hyp".into(), path: None, text: text.into(), embedded: false };
        let program = Arc::new(hypatia_library::check(vec![file]).program.unwrap());
        let (graph, inputs) = given(&program, &program.tests[0]).unwrap();
        let rounded = evaluate(&graph, &inputs, Mode::Rounded).unwrap();
        assert!(rounded[0].to_f64()[0].is_infinite(), "{:?}", rounded[0].to_f64());
        let judged = |value: f64| {
            let result = Tensor::from_f64(DType::BF16, &[1], &[value]).unwrap();
            judge(&graph, &inputs, &[], &[result]).unwrap()
        };
        assert_eq!(judged(f64::NAN), None);
        assert!(judged(1.0).is_some());
    }

    /// The squares in the body overflow f16 when every step is rounded. A kernel does not overflow,
    /// so it is compared with the meaning instead.
    #[test]
    fn wrong_kernels_are_caught_where_the_body_overflows() {
        let text = "edition 1;\nuse core::*;\n\
            op share<T: float>(x: T[..s, n]) -> T[..s, n]\n\
              = (x * 300) * (x * 300) / (1 + sum((x * 300) * (x * 300), axes = [-1]));\n\
            kernel rows for share(x) { rowwise; }\n\
            test \"t\" { input x: f16[2] = [5.0, 3.0]; given share(x); expect launches == 1; }";
        let file = SourceFile { name: "t.hyp".into(), path: None, text: text.into(), embedded: false };
        let program = Arc::new(hypatia_library::check(vec![file]).program.unwrap());
        let (graph, inputs) = given(&program, &program.tests[0]).unwrap();
        let rounded = evaluate(&graph, &inputs, Mode::Rounded).unwrap();
        assert!(rounded[0].to_f64().iter().all(|v| v.is_nan()), "the body does not overflow");
        assert_eq!(kernel(&graph, &inputs, &[]).unwrap(), None);
        let judged = |values: &[f64]| {
            let result = Tensor::from_f64(DType::F16, &[2], values).unwrap();
            judge(&graph, &inputs, &[], &[result]).unwrap()
        };
        assert_eq!(judged(&[25.0 / 34.0, 9.0 / 34.0]), None);
        for wrong in [[25.0 / 34.0, 9.5 / 34.0], [1.0, 1.0], [0.0, 9.0 / 34.0], [f64::INFINITY, 9.0 / 34.0]] {
            assert!(judged(&wrong).is_some(), "{wrong:?} passes");
        }
    }
}
