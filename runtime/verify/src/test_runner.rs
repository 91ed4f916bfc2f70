//! The test runner: `test` blocks of `.hyp` files.
//!
//! In: a Program, and which of its tests to run. Out: for each test whether it passed and, for a
//! failure, the expected and the actual result with values. Invariant: random inputs are the same
//! in every run. `expect equal` compares the meaning of both expressions in f64, both expressions
//! rounded to their types, and the optimised graph as it is executed. If both are the same, it also
//! compares the kernels that are generated for the ops in it with their bodies.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::Arc;

use hypatia_dsl::ast::BinaryOp;
use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{Build, Expect, Head, OpBody, Program, Test, TestInput, VarId};
use hypatia_dsl::scalar::{Term, TermNode, canonical_key};
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::TensorType;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::check::same_meaning;
use crate::differ::{Difference, far_apart, position};
use crate::ops::wrong_kernels;
use crate::range::{Meaning, leaves_range_outside};
use hypatia_cpu::Executor;
use hypatia_eval::{Mode, RefTensor, evaluate};
use hypatia_graph::instantiate::Numbers;
use hypatia_graph::{Env, Graph, Instantiator, NodeId, NodeKind, Symbols, Value, show_number};
use hypatia_optimize::cost::ASSUMED_SIZE;
use hypatia_optimize::explain::no_such_rule;
use hypatia_optimize::{Firing, Optimized, Options};
use hypatia_pipeline as pipeline;
use hypatia_plan as plan;
use hypatia_target::device::Device;
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::memory;
use hypatia_tensor::tensor::Tensor;

/// Lines of a graph that a failing test shows.
const MAX_LINES: usize = 60;
/// The largest number of elements of a test input.
const MAX_INPUT: usize = 1 << 26;
/// Limits of the cost of `expect equal`, which evaluates both sides several times, element by
/// element: elements of all values together, and multiplications of all products.
const MAX_ELEMENTS: f64 = (1 << 22) as f64;
const MAX_PRODUCTS: f64 = (1 << 26) as f64;

/// The result of a test: the reasons for its failure, none if it passed.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// One line each, or several lines with values.
    pub failures: Vec<String>,
}

/// Runs one test.
pub fn run_test(program: &Arc<Program>, test: &Test) -> Outcome {
    run_test_with(program, test, &Options::default())
}

/// A difference of integers or truth values that sums decide about, where these are rounded after
/// each summand, as a device does.
fn orders_apart(graph: &Graph, tensors: &[(String, Tensor)], roots: usize) -> Result<Option<Difference>> {
    let whole = |root: &usize| !graph.ty(graph.outputs[*root].1).dtype.is_float();
    if !(0..roots).any(|root| whole(&root)) {
        return Ok(None);
    }
    let found = evaluate(graph, tensors, Mode::Accumulated)?;
    let (given, expected) = found.split_at(roots);
    Ok((0..roots).filter(whole).find_map(|root| far_apart(root, &given[root], &expected[root], &|_| false)))
}

/// Runs one test with these optimiser options; the device is the test's own.
pub fn run_test_with(program: &Arc<Program>, test: &Test, options: &Options) -> Outcome {
    let mut failures = Vec::new();
    let wanted_error = test.expect.iter().find_map(|e| if let Expect::Error(c) = e { Some(*c) } else { None });
    if let Some((code, message)) = &test.error {
        match wanted_error {
            Some(c) if c == *code => {}
            Some(c) => failures.push(format!("expected the error {c}, but the error is {code}: {message}")),
            None => failures.push(format!("the given expression is rejected: {message} [{code}]")),
        }
        return Outcome { failures };
    }
    match (Case::new(program, test, options), wanted_error) {
        (Err(e), Some(c)) if e.code() == Some(c) => {}
        (Err(e @ Error::Limit(_)), _) => failures.push(e.to_string()),
        (Err(e), _) => failures.push(format!("the given expression has no graph: {e}")),
        (Ok(case), Some(c)) => match case.optimized() {
            Err(e) if e.code() == Some(c) => {}
            Err(e) => failures.push(format!("the given expression has no graph: {e}")),
            Ok(_) => failures.push(format!("expected the error {c}, but the given expression is accepted")),
        },
        (Ok(case), None) => {
            // Without an expectation, the rules must still take it.
            if let (true, Err(e)) = (test.expect.is_empty(), case.optimized()) {
                failures.push(format!("the given expression has no graph: {e}"));
            }
            for expect in &test.expect {
                match case.expect(expect) {
                    Ok(None) => {}
                    Ok(Some(why)) => failures.push(why),
                    Err(e) => failures.push(format!("the expectation cannot be evaluated: {e}")),
                }
            }
        }
    }
    Outcome { failures }
}

/// The `given` expressions of a test as a graph, and its inputs; `data` makes each tensor of the
/// requested shape.
pub fn given_with(
    program: &Arc<Program>,
    test: &Test,
    mut data: impl FnMut(&TestInput) -> Result<Tensor>,
) -> Result<(Graph, Vec<(String, Tensor)>)> {
    if let Some((code, text)) = &test.error {
        return Err(Error::Input(format!("test \"{}\": {code}: {text}", test.name)));
    }
    let mut graph = Graph::new(program.clone());
    let mut env = Env::default();
    let mut tensors = Vec::new();
    for (i, input) in test.inputs.iter().enumerate() {
        let tensor = data(input)?;
        let value = if input.constant {
            graph.constant(tensor)
        } else {
            tensors.push((input.name.clone(), tensor));
            graph.input(input.name.clone(), TensorType { dtype: input.dtype, shape: input.shape.clone() })
        };
        env.tensors.insert(VarId(i as u32), value);
    }
    build_into(&mut graph, &test.given, &env)?;
    Ok((graph.pruned(), tensors))
}

/// The `given` expressions of a test, with values from its file or random ones.
pub fn given(program: &Arc<Program>, test: &Test) -> Result<(Graph, Vec<(String, Tensor)>)> {
    given_with(program, test, data)
}

/// The device that a test is for.
pub fn target(test: &Test) -> Result<Device> {
    let Some(name) = &test.target else { return Ok(Device::cpu()) };
    Device::named(name).ok_or_else(|| {
        let names: Vec<&str> = Device::names().collect();
        Error::Input(format!("there is no device profile `{name}`; there are {}", names.join(", ")))
    })
}

/// A test with its graphs.
struct Case<'a> {
    program: &'a Arc<Program>,
    test: &'a Test,
    device: Device,
    /// Inputs only: every expression is built on top of this graph.
    inputs: Graph,
    env: Env,
    given: Graph,
    options: Options,
    /// What the rules make of it, once an expectation asks.
    optimized: OnceCell<Optimized>,
}

impl<'a> Case<'a> {
    fn new(program: &'a Arc<Program>, test: &'a Test, options: &Options) -> Result<Case<'a>> {
        let device = target(test)?;
        let mut inputs = Graph::new(program.clone());
        let mut env = Env::default();
        for (i, input) in test.inputs.iter().enumerate() {
            let value = if input.constant {
                inputs.constant(data(input)?)
            } else {
                let ty = TensorType { dtype: input.dtype, shape: input.shape.clone() };
                inputs.input(input.name.clone(), ty)
            };
            env.tensors.insert(VarId(i as u32), value);
        }
        let mut given = inputs.clone();
        build_into(&mut given, &test.given, &env)?;
        let given = given.pruned();
        let options = Options { device: device.clone(), ..options.clone() };
        Ok(Case { program, test, device, inputs, env, given, options, optimized: OnceCell::new() })
    }

    /// What the rules make of the given expressions.
    fn optimized(&self) -> Result<&Optimized> {
        if let Some(optimized) = self.optimized.get() {
            return Ok(optimized);
        }
        let optimized = pipeline::optimize(&self.given, &self.options)?;
        Ok(self.optimized.get_or_init(|| optimized))
    }

    /// Why the expectation fails, or `None` if it holds.
    fn expect(&self, expect: &Expect) -> Result<Option<String>> {
        Ok(match expect {
            Expect::Error(_) => None,
            Expect::Launches(op, n) => {
                let launches = self.launches()?;
                (!compares(*op, launches, *n)).then(|| {
                    format!(
                        "expected launches {} {n}, but on {} there are {launches}:\n{}  of the graph\n{}",
                        sign(*op),
                        self.device.name,
                        self.launch_text(),
                        self.graph_text()
                    )
                })
            }
            Expect::Count(head, op, n) => {
                let count = self.count(*head)?;
                (!compares(*op, count, *n)).then(|| {
                    let name = match head {
                        Head::Op(o) => &self.program.op(*o).name,
                        Head::Scalar(s) => &self.program.scalar(*s).name,
                        _ => "?",
                    };
                    format!("expected count({name}) {} {n}, but there are {count}:\n{}", sign(*op), self.graph_text())
                })
            }
            Expect::Fires(rule, _) | Expect::Matches(rule, _)
                if !self.program.rules.iter().any(|r| r.name == *rule || r.base_name == *rule) =>
            {
                Some(no_such_rule(self.program, rule))
            }
            Expect::Fires(rule, true) if self.optimized()?.report.fired(rule) => None,
            Expect::Fires(rule, true) => Some(format!("{rule} did not fire\n{}", self.why_not(rule)?)),
            Expect::Fires(rule, false) => {
                let fired = self.optimized()?.report.matches(rule).filter(|f| f.in_result);
                self.unwanted(rule, "fired", fired.collect())
            }
            Expect::Matches(rule, wanted) => {
                let matches: Vec<&Firing> = self.optimized()?.report.matches(rule).collect();
                let lost = self.lost_plan(rule)?;
                match wanted {
                    true if matches.is_empty() && !lost => {
                        Some(format!("{rule} does not match\n{}", self.why_not(rule)?))
                    }
                    true => None,
                    false if lost => Some(format!("{rule} matches\n{}", self.why_not(rule)?)),
                    false => self.unwanted(rule, "matches", matches),
                }
            }
            Expect::Equal(builds) => self.equal(builds)?,
            Expect::Becomes(builds) => self.becomes(builds)?,
        })
    }

    /// True for a rule that matched, and was left out since the plan without it is quicker.
    fn lost_plan(&self, rule: &str) -> Result<bool> {
        let report = &self.optimized()?.report;
        let lost = |base: &str| report.settled.iter().any(|s| !s.used && s.rule == base);
        Ok(self.program.rules.iter().any(|r| (r.name == rule || r.base_name == rule) && lost(&r.base_name)))
    }

    /// Why a rule is not part of the result, and which rules are.
    fn why_not(&self, rule: &str) -> Result<String> {
        let why = pipeline::why_not(&self.given, &self.options, rule, None)?;
        let mut names: Vec<&str> =
            self.optimized()?.report.firings.iter().filter(|f| f.kept).map(|f| f.rule.as_str()).collect();
        names.dedup();
        let others = if names.is_empty() { "none".to_string() } else { names.join(", ") };
        let (why, graph) = (indent(why.to_string().trim_end()), self.graph_text());
        Ok(format!("{why}  rules that contributed to the result: {others}\n{graph}"))
    }

    /// Fails if a rule did what it must not.
    fn unwanted(&self, rule: &str, did: &str, firings: Vec<&Firing>) -> Option<String> {
        let mut nodes: Vec<&str> = firings.iter().flat_map(|f| &f.nodes).map(String::as_str).collect();
        nodes.dedup();
        let at = if nodes.is_empty() { String::new() } else { format!(" at {}", nodes.join(", ")) };
        (!firings.is_empty()).then(|| format!("{rule} {did}{at}\n{}", self.graph_text()))
    }

    fn graph_text(&self) -> String {
        let text = self.optimized().map(|o| o.graph.to_text()).unwrap_or_default();
        let mut shown: Vec<&str> = text.lines().take(MAX_LINES).collect();
        let more = text.lines().count().saturating_sub(MAX_LINES);
        let rest = format!("... and {more} more lines");
        if more > 0 {
            shown.push(&rest);
        }
        indent(&shown.join("\n"))
    }

    /// The launches, one line each.
    fn launch_text(&self) -> String {
        let list = || pipeline::launch_list(&self.optimized()?.graph, &pipeline::planned_as(&self.options));
        let lines = list().unwrap_or_default();
        let more = lines.len().saturating_sub(MAX_LINES);
        let more = (more > 0).then(|| format!("... and {more} more"));
        let shown: Vec<String> = lines.into_iter().take(MAX_LINES).chain(more).collect();
        indent(&shown.join("\n"))
    }

    fn launches(&self) -> Result<i64> {
        Ok(pipeline::launches_as(&self.optimized()?.graph, &pipeline::planned_as(&self.options))? as i64)
    }

    fn count(&self, head: Head) -> Result<i64> {
        let matches = |kind: &NodeKind| match (kind, head) {
            (NodeKind::Op { op, .. }, Head::Op(wanted)) => *op == wanted,
            (NodeKind::Scalar(s), Head::Scalar(wanted)) => *s == wanted,
            _ => false,
        };
        Ok(self.optimized()?.graph.pruned().nodes.iter().filter(|n| matches(&n.kind)).count() as i64)
    }

    /// Tensors of the inputs; symbolic sizes are [`ASSUMED_SIZE`].
    fn tensors(&self) -> Result<Vec<(String, Tensor)>> {
        let inputs = self.test.inputs.iter().filter(|i| !i.constant);
        inputs.map(|i| Ok((i.name.clone(), data(i)?))).collect()
    }

    /// A graph whose first outputs are those of `given`, followed by those of `builds`.
    fn pair(&self, builds: &[Build]) -> Result<(Graph, Numbers)> {
        let mut graph = self.inputs.clone();
        let mut numbers = build_into(&mut graph, &self.test.given, &self.env)?;
        numbers.extend(build_into(&mut graph, builds, &self.env)?);
        let symbols: Symbols = graph.symbols().into_iter().map(|s| (s, ASSUMED_SIZE)).collect();
        Ok((graph.specialize(&symbols)?, numbers))
    }

    fn equal(&self, builds: &[Build]) -> Result<Option<String>> {
        if builds.len() != self.test.given.len() {
            return Ok(Some(format!("{} values are given, {} expected", self.test.given.len(), builds.len())));
        }
        let roots = builds.len();
        let (graph, numbers) = self.pair(builds)?;
        for i in 0..roots {
            let (a, b) = (graph.ty(graph.outputs[i].1), graph.ty(graph.outputs[i + roots].1));
            if a != b {
                return Ok(Some(format!("the given expression is {a}, the expected one {b}")));
            }
        }
        affordable(&graph)?;
        let tensors = self.tensors()?;
        if let Some(d) = same_meaning(&graph, &numbers, &tensors, roots)? {
            return Ok(Some(format!("not equal: {}", self.show(&graph, &d))));
        }
        let rounded = evaluate(&graph, &tensors, Mode::Rounded)?;
        let (given, expected) = rounded.split_at(roots);
        // If an element type is too small for an intermediate value of a float, only the meaning is
        // compared. Values computed from constants alone do not count: they are computed before any
        // run. An integer or a truth value is right or wrong.
        let overflow = OnceCell::new();
        let lost = |_| *overflow.get_or_init(|| leaves_range_outside(&graph, &tensors, 0).unwrap_or(false));
        for root in 0..roots {
            // An infinity or NaN is a value, whatever left its range on the way.
            let float = given[root].dtype.is_float();
            let finite = |i: usize| float && given[root].at(i).f().is_finite() && expected[root].at(i).f().is_finite();
            if let Some(d) = far_apart(root, &given[root], &expected[root], &|i| finite(i) && lost(i)) {
                return Ok(Some(format!("not equal in {}: {}", given[root].dtype, self.show(&graph, &d))));
            }
        }
        if let Some(d) = orders_apart(&graph, &tensors, roots)? {
            return Ok(Some(format!("not equal where each sum is rounded: {}", self.show(&graph, &d))));
        }
        if let Some(why) = self.executed(&graph, given, &tensors)? {
            return Ok(Some(why));
        }
        // What is expected to equal itself is asked about its kernels: the optimiser may have
        // chosen others.
        if builds != self.test.given {
            return Ok(None);
        }
        let symbols: Symbols = self.given.symbols().into_iter().map(|s| (s, ASSUMED_SIZE)).collect();
        wrong_kernels(&self.given.specialize(&symbols)?, &tensors)
    }

    /// The optimised graph with symbolic sizes replaced by [`ASSUMED_SIZE`].
    fn concrete(&self) -> Result<Graph> {
        let graph = &self.optimized()?.graph;
        let symbols: Symbols = graph.symbols().into_iter().map(|s| (s, ASSUMED_SIZE)).collect();
        graph.specialize(&symbols)
    }

    /// Compares the executed results of the optimised graph with those of the given expression,
    /// which are the first outputs of the graph.
    fn executed(&self, pair: &Graph, given: &[RefTensor], tensors: &[(String, Tensor)]) -> Result<Option<String>> {
        let plan = pipeline::plan(&self.concrete()?, &plan::Options::new(Device::cpu()))?;
        let inputs: Vec<Tensor> = plan
            .inputs
            .iter()
            .map(|i| tensors.iter().find(|(n, _)| *n == i.name).map(|t| t.1.clone()))
            .collect::<Option<_>>()
            .ok_or_else(|| Error::Internal("the plan has an input that the test has not".into()))?;
        let results = Executor::new(Arc::new(plan), 1)?.run(&inputs)?;
        let results: Vec<RefTensor> = results.iter().map(RefTensor::from_tensor).collect();
        let meaning = Meaning::of(pair, tensors)?;
        for (root, (a, b)) in results.iter().zip(given).enumerate() {
            if let Some(d) = far_apart(root, a, b, &|i| meaning.excuses(root, i, a)) {
                return Ok(Some(format!(
                    "the optimised graph gives {} where the given expression gives {} (element {} of \
                     output {root}):\n{}",
                    show_number(d.left),
                    show_number(d.right),
                    position(d.index, &a.shape),
                    self.graph_text()
                )));
            }
        }
        Ok(None)
    }

    fn show(&self, graph: &Graph, d: &Difference) -> String {
        let dims = graph.ty(graph.outputs[d.root].1).shape.iter();
        let shape: Vec<usize> = dims.filter_map(Dim::as_const).filter_map(|d| usize::try_from(d).ok()).collect();
        format!(
            "element {} of output {} is {}, expected {}",
            position(d.index, &shape),
            d.root,
            show_number(d.left),
            show_number(d.right)
        )
    }

    fn becomes(&self, builds: &[Build]) -> Result<Option<String>> {
        let mut expected = self.inputs.clone();
        build_into(&mut expected, builds, &self.env)?;
        let mut table = Forms::default();
        let got = table.outputs(&self.optimized()?.graph);
        // An optimised graph never contains an op without a kernel; it contains the op's body
        // instead.
        let met = got == table.outputs(&expected) || got == table.outputs(&expected.inlined()?);
        Ok((!met).then(|| {
            let expected = indent(&expected.pruned().to_text());
            format!("the optimised graph is not the expected one; expected\n{expected}but got\n{}", self.graph_text())
        }))
    }
}

/// Builds expressions as additional outputs of a graph.
fn build_into(graph: &mut Graph, builds: &[Build], env: &Env) -> Result<Numbers> {
    let mut into = Instantiator::new(graph);
    let values: Vec<Value> = builds.iter().map(|b| into.build(b, env)).collect::<Result<_>>()?;
    let numbers = std::mem::take(&mut into.numbers);
    for value in values {
        let name = format!("out{}", graph.outputs.len());
        graph.output(name, value);
    }
    Ok(numbers)
}

/// Fails if evaluating the graph element by element would take too long.
fn affordable(graph: &Graph) -> Result<()> {
    let size = |v: Value| graph.ty(v).shape.iter().map(|d| d.as_const().unwrap_or(1) as f64).product::<f64>();
    let (mut elements, mut products) = (0.0, 0.0);
    for (i, node) in graph.nodes.iter().enumerate() {
        let results: f64 = graph.results(NodeId(i as u32)).into_iter().map(size).sum();
        elements += results;
        if let NodeKind::Op { op, .. } = &node.kind
            && matches!(graph.program.op(*op).body, OpBody::Builtin(BuiltinOp::Matmul | BuiltinOp::Gemm))
        {
            let k = node.operands.first().and_then(|v| *v).and_then(|v| graph.ty(v).shape.last().cloned());
            products += results * k.and_then(|d| d.as_const()).unwrap_or(1) as f64;
        }
    }
    if elements <= MAX_ELEMENTS && products <= MAX_PRODUCTS {
        return Ok(());
    }
    Err(Error::Limit(format!(
        "`equal` evaluates both sides in f64, one element at a time: {elements:.0} elements and {products:.0} \
         multiplications of products are too many (limits: {MAX_ELEMENTS:.0}, {MAX_PRODUCTS:.0}); give the inputs \
         smaller shapes"
    )))
}

/// The tensor of an input: its values, or random ones that depend only on its name.
fn data(input: &TestInput) -> Result<Tensor> {
    let shape: Vec<usize> =
        input.shape.iter().map(|d| d.eval(&|_| Some(ASSUMED_SIZE)).unwrap_or(0).max(0) as usize).collect();
    let n = shape.iter().try_fold(1usize, |a, d| a.checked_mul(*d));
    let fits = |n: &usize| *n <= MAX_INPUT && n.saturating_mul(input.dtype.size()) <= memory::budget();
    let n = n.filter(fits).ok_or_else(|| {
        let (kind, hint) = match input.constant {
            true => ("constant", ", or declare it as an `input`, whose values only `equal` needs"),
            false => ("input", ""),
        };
        Error::Limit(format!(
            "{kind} `{}` is too large for a test: it may have at most {MAX_INPUT} elements; give it a smaller \
             shape{hint}",
            input.name
        ))
    })?;
    let wrong =
        |have: usize| Error::Input(format!("input `{}` has {have} values, but its shape holds {n}", input.name));
    let Some(values) = &input.value else {
        return random(input, &shape).ok_or_else(|| Error::Internal("a random tensor".into()));
    };
    let splat = if let [one] = values.as_slice() { Some(vec![*one; n]) } else { None };
    Tensor::from_f64(input.dtype, &shape, splat.as_ref().unwrap_or(values)).ok_or_else(|| wrong(values.len()))
}

/// Elements generated at a time: in f64 they need more memory than the tensor.
const CHUNK: usize = 1 << 16;

fn random(input: &TestInput, shape: &[usize]) -> Option<Tensor> {
    let seed =
        input.name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ b as u64).wrapping_mul(0x0000_0100_0000_01b3));
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut element = || match input.dtype {
        DType::Bool => rng.random_range(0..2) as f64,
        d if d.is_float() => rng.random_range(-1.0..1.0),
        _ => rng.random_range(0..4) as f64,
    };
    let mut tensor = Tensor::zeros(input.dtype, shape)?;
    for chunk in tensor.bytes_mut().chunks_mut(CHUNK * input.dtype.size()) {
        let values: Vec<f64> = (0..chunk.len() / input.dtype.size()).map(|_| element()).collect();
        chunk.copy_from_slice(Tensor::from_f64(input.dtype, &[values.len()], &values)?.bytes());
    }
    Some(tensor)
}

fn indent(text: &str) -> String {
    text.lines().map(|l| if l.trim().is_empty() { "\n".to_string() } else { format!("    {l}\n") }).collect()
}

fn compares(op: BinaryOp, a: i64, b: i64) -> bool {
    match op {
        BinaryOp::Eq => a == b,
        BinaryOp::Ne => a != b,
        BinaryOp::Lt => a < b,
        BinaryOp::Le => a <= b,
        BinaryOp::Gt => a > b,
        BinaryOp::Ge => a >= b,
        _ => false,
    }
}

fn sign(op: BinaryOp) -> &'static str {
    match op {
        BinaryOp::Eq => "==",
        BinaryOp::Ne => "!=",
        BinaryOp::Lt => "<",
        BinaryOp::Le => "<=",
        BinaryOp::Gt => ">",
        BinaryOp::Ge => ">=",
        _ => "?",
    }
}

/// Hash-consed graph structures: two graphs compare by structure. Names, the order of nodes and the
/// order of a commutative scalar's operands do not matter.
#[derive(Default)]
struct Forms {
    known: HashMap<String, usize>,
}

impl Forms {
    fn outputs(&mut self, graph: &Graph) -> Vec<(usize, u32)> {
        let mut forms: Vec<usize> = Vec::with_capacity(graph.nodes.len());
        for node in &graph.nodes {
            let mut operands: Vec<String> = node
                .operands
                .iter()
                .map(|v| v.map_or("none".into(), |v| format!("{}.{}", forms[v.node.index()], v.output)))
                .collect();
            let head = match &node.kind {
                NodeKind::Input { name } => format!("input {name}"),
                NodeKind::Const(t) => format!("const {} {:?} {:?}", t.dtype(), t.shape(), t.bytes()),
                NodeKind::Scalar(s) => {
                    if let hypatia_dsl::ir::ScalarBody::Builtin(b) = graph.program.scalar(*s).body
                        && b.commutes()
                    {
                        operands.sort();
                    }
                    format!("scalar {}", s.0)
                }
                NodeKind::Op { op, attrs, term } => {
                    let term = term.as_ref().map(|t| {
                        let reads = operands.split_off(graph.tensor_operands(node));
                        let t = self.reading(t, &reads);
                        canonical_key(&graph.program, &t).unwrap_or_else(|| format!("{t:?}"))
                    });
                    format!("op {} {attrs:?} {term:?}", op.0)
                }
            };
            let key = format!("{head}({})", operands.join(", "));
            let next = self.known.len();
            forms.push(*self.known.entry(key).or_insert(next));
        }
        graph.outputs.iter().map(|(_, v)| (forms[v.node.index()], v.output)).collect()
    }

    /// A term that refers to its operands by structure rather than by position, so that the order
    /// of an op's operands does not matter.
    fn reading(&mut self, term: &Term, reads: &[String]) -> Term {
        let mut term = term.clone();
        for node in &mut term.nodes {
            if let TermNode::In { input, .. } = node
                && let Some(form) = reads.get(*input as usize)
            {
                let next = self.known.len();
                *input = *self.known.entry(format!("read {form}")).or_insert(next) as u32;
            }
        }
        term
    }
}
