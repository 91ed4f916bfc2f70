//! The test runner: `test` blocks of `.hyp` files.
//!
//! In: a Program, and which of its tests to run. Out: for each test whether it passed, and for a
//! failure what was expected and what came, with values. Holds always: random inputs are the same in
//! every run; `expect equal` compares the meaning of both expressions in f64, both rounded as their types
//! say, and the optimised graph as it is executed.

use std::collections::HashMap;
use std::sync::Arc;

use hypatia_dsl::ast::BinaryOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{Build, Expect, Head, Program, Test, TestInput, VarId};
use hypatia_dsl::scalar::canonical_key;
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::TensorType;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::cpu::Executor;
use crate::cpu::reference::{Mode, RefTensor, evaluate};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::graph::instantiate::Numbers;
use crate::graph::{Env, Graph, Instantiator, NodeKind, Symbols, Value, show_number};
use crate::optimize::{Optimized, Options, optimize};
use crate::plan::{self, Plan};
use crate::tensor::Tensor;
use crate::verify::check::{Difference, same_meaning};

/// The size that a symbol has where a test is executed.
const SYMBOL: i64 = 6;

/// How a test went: the reasons why it failed, none if it passed.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// One line each, or several with values.
    pub failures: Vec<String>,
}

/// Runs one test.
pub fn run_test(program: &Arc<Program>, test: &Test) -> Outcome {
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
    match (Case::new(program, test), wanted_error) {
        (Err(e), Some(c)) if e.to_string().contains(&c.to_string()) => {}
        (Err(e), _) => failures.push(format!("the given expression has no graph: {e}")),
        (Ok(_), Some(c)) => failures.push(format!("expected the error {c}, but the given expression is accepted")),
        (Ok(case), None) => {
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

/// A test with its graphs.
struct Case<'a> {
    program: &'a Arc<Program>,
    test: &'a Test,
    device: Device,
    /// Inputs only: each expression is built upon this.
    inputs: Graph,
    env: Env,
    optimized: Optimized,
}

impl<'a> Case<'a> {
    fn new(program: &'a Arc<Program>, test: &'a Test) -> Result<Case<'a>> {
        let device = match &test.target {
            None => Device::cpu(),
            Some(name) => Device::named(name).ok_or_else(|| {
                let names: Vec<&str> = Device::names().collect();
                Error::Input(format!("there is no device profile `{name}`; there are {}", names.join(", ")))
            })?,
        };
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
        let options = Options { device: device.clone(), ..Options::default() };
        let optimized = optimize(&given, &options)?;
        Ok(Case { program, test, device, inputs, env, optimized })
    }

    /// Why the expectation is not met.
    fn expect(&self, expect: &Expect) -> Result<Option<String>> {
        Ok(match expect {
            Expect::Error(_) => None,
            Expect::Launches(op, n) => {
                let launches = self.launches()?;
                (!compares(*op, launches, *n)).then(|| {
                    format!(
                        "expected launches {} {n}, but on {} there are {launches}:\n{}",
                        sign(*op),
                        self.device.name,
                        self.graph_text()
                    )
                })
            }
            Expect::Count(head, op, n) => {
                let count = self.count(*head);
                (!compares(*op, count, *n)).then(|| {
                    let name = match head {
                        Head::Op(o) => &self.program.op(*o).name,
                        Head::Scalar(s) => &self.program.scalar(*s).name,
                        _ => "?",
                    };
                    format!("expected count({name}) {} {n}, but there are {count}:\n{}", sign(*op), self.graph_text())
                })
            }
            Expect::Fires(rule, wanted) => {
                let fired = self.optimized.report.fired(rule);
                (fired != *wanted).then(|| {
                    let word = if *wanted { "did not fire" } else { "fired" };
                    let mut names: Vec<&str> =
                        self.optimized.report.firings.iter().filter(|f| f.kept).map(|f| f.rule.as_str()).collect();
                    names.dedup();
                    let others = if names.is_empty() { "none".to_string() } else { names.join(", ") };
                    format!("{rule} {word}; rules that have a part in the result: {others}\n{}", self.graph_text())
                })
            }
            Expect::Equal(builds) => self.equal(builds)?,
            Expect::Becomes(builds) => self.becomes(builds)?,
        })
    }

    fn graph_text(&self) -> String {
        indent(&self.optimized.graph.to_text())
    }

    fn launches(&self) -> Result<i64> {
        Ok(Plan::build(&self.concrete()?, &plan::Options::new(self.device.clone()))?.launches() as i64)
    }

    fn count(&self, head: Head) -> i64 {
        let matches = |kind: &NodeKind| match (kind, head) {
            (NodeKind::Op { op, .. }, Head::Op(wanted)) => *op == wanted,
            (NodeKind::Scalar(s), Head::Scalar(wanted)) => *s == wanted,
            _ => false,
        };
        self.optimized.graph.pruned().nodes.iter().filter(|n| matches(&n.kind)).count() as i64
    }

    /// Tensors of the inputs; symbolic sizes are [`SYMBOL`].
    fn tensors(&self) -> Result<Vec<(String, Tensor)>> {
        let inputs = self.test.inputs.iter().filter(|i| !i.constant);
        inputs.map(|i| Ok((i.name.clone(), data(i)?))).collect()
    }

    /// The graph whose first outputs are those of `given`, the others those of `builds`.
    fn pair(&self, builds: &[Build]) -> Result<(Graph, Numbers)> {
        let mut graph = self.inputs.clone();
        let mut numbers = build_into(&mut graph, &self.test.given, &self.env)?;
        numbers.extend(build_into(&mut graph, builds, &self.env)?);
        let symbols: Symbols = graph.symbols().into_iter().map(|s| (s, SYMBOL)).collect();
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
        let tensors = self.tensors()?;
        if let Some(d) = same_meaning(&graph, &numbers, &tensors, roots)? {
            return Ok(Some(format!("not equal: {}", self.show(&graph, &d))));
        }
        let rounded = evaluate(&graph, &tensors, Mode::Rounded)?;
        let (given, expected) = rounded.split_at(roots);
        for root in 0..roots {
            if let Some(d) = far_apart(root, &given[root], &expected[root]) {
                return Ok(Some(format!("not equal in {}: {}", given[root].dtype, self.show(&graph, &d))));
            }
        }
        self.executed(given, &tensors)
    }

    /// The optimised graph, symbolic sizes replaced by [`SYMBOL`].
    fn concrete(&self) -> Result<Graph> {
        let graph = &self.optimized.graph;
        let symbols: Symbols = graph.symbols().into_iter().map(|s| (s, SYMBOL)).collect();
        graph.specialize(&symbols)
    }

    /// The optimised graph's results, as it is executed, against those of the given expression.
    fn executed(&self, given: &[RefTensor], tensors: &[(String, Tensor)]) -> Result<Option<String>> {
        let plan = Plan::build(&self.concrete()?, &plan::Options::new(Device::cpu()))?;
        let inputs: Vec<Tensor> = plan
            .inputs
            .iter()
            .map(|i| tensors.iter().find(|(n, _)| *n == i.name).map(|t| t.1.clone()))
            .collect::<Option<_>>()
            .ok_or_else(|| Error::Internal("the plan has an input that the test has not".into()))?;
        let results = Executor::new(Arc::new(plan), 1)?.run(&inputs)?;
        let results: Vec<RefTensor> = results.iter().map(RefTensor::from_tensor).collect();
        for (root, (a, b)) in results.iter().zip(given).enumerate() {
            if let Some(d) = far_apart(root, a, b) {
                return Ok(Some(format!(
                    "the optimised graph gives {} where the given expression gives {} (element {} of output {root}):\n{}",
                    show_number(d.left),
                    show_number(d.right),
                    d.index,
                    self.graph_text()
                )));
            }
        }
        Ok(None)
    }

    fn show(&self, graph: &Graph, d: &Difference) -> String {
        let shape: Vec<i64> = graph.ty(graph.outputs[d.root].1).shape.iter().filter_map(Dim::as_const).collect();
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
        let got = table.outputs(&self.optimized.graph);
        // An op that no kernel implements never stands in an optimised graph: its body does.
        let met = got == table.outputs(&expected) || got == table.outputs(&expected.unfold()?);
        Ok((!met).then(|| {
            let expected = indent(&expected.pruned().to_text());
            format!("the optimised graph has another form; expected\n{expected}but it is\n{}", self.graph_text())
        }))
    }
}

/// Builds expressions as further outputs of a graph.
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

/// The tensor of an input: its values, or random ones that depend on its name alone.
fn data(input: &TestInput) -> Result<Tensor> {
    let shape: Vec<usize> = input.shape.iter().map(|d| d.as_const().unwrap_or(SYMBOL).max(0) as usize).collect();
    let n = shape.iter().try_fold(1usize, |a, d| a.checked_mul(*d)).filter(|n| *n <= 1 << 26);
    let n = n.ok_or_else(|| Error::Limit(format!("input `{}` is too large for a test", input.name)))?;
    let values = match &input.value {
        Some(v) if v.len() == 1 => vec![v[0]; n],
        Some(v) => v.clone(),
        None => random(input, n),
    };
    Tensor::from_f64(input.dtype, &shape, &values).ok_or_else(|| {
        Error::Input(format!("input `{}` has {} values, but its shape holds {n}", input.name, values.len()))
    })
}

fn random(input: &TestInput, n: usize) -> Vec<f64> {
    let seed =
        input.name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ b as u64).wrapping_mul(0x0000_0100_0000_01b3));
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..n)
        .map(|_| match input.dtype {
            DType::Bool => rng.random_range(0..2) as f64,
            d if d.is_float() => rng.random_range(-1.0..1.0),
            _ => rng.random_range(0..4) as f64,
        })
        .collect()
}

/// The first element that is further off than the element type's rounding allows: some units in the
/// last place of the largest element.
pub(crate) fn far_apart(root: usize, got: &RefTensor, wanted: &RefTensor) -> Option<Difference> {
    let (a, b) = (got.to_f64(), wanted.to_f64());
    let largest = b.iter().filter(|v| v.is_finite()).fold(0.0f64, |m, v| m.max(v.abs()));
    let units = match wanted.dtype {
        DType::F64 => 256.0,
        DType::F32 => 64.0,
        _ => 8.0,
    };
    let tolerance = units * wanted.dtype.epsilon() * largest;
    let same = |l: f64, r: f64| l == r || (l.is_nan() && r.is_nan()) || (l - r).abs() <= tolerance;
    let index = a.iter().zip(&b).position(|(l, r)| !same(*l, *r))?;
    Some(Difference { root, index, left: a[index], right: b[index] })
}

/// `[1, 2]` from a row-major index.
fn position(index: usize, shape: &[i64]) -> String {
    let mut rest = index as i64;
    let mut at: Vec<i64> = shape
        .iter()
        .rev()
        .map(|d| {
            let i = rest % (*d).max(1);
            rest /= (*d).max(1);
            i
        })
        .collect();
    at.reverse();
    format!("{at:?}")
}

fn indent(text: &str) -> String {
    text.lines().map(|l| format!("    {l}\n")).collect()
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

/// Forms of graphs, shared by number, so that two graphs compare by structure: names and the order of
/// nodes do not matter, nor does the order of a commutative scalar's operands.
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
                    let term =
                        term.as_ref().map(|t| canonical_key(&graph.program, t).unwrap_or_else(|| format!("{t:?}")));
                    format!("op {} {attrs:?} {term:?}", op.0)
                }
            };
            let key = format!("{head}({})", operands.join(", "));
            let next = self.known.len();
            forms.push(*self.known.entry(key).or_insert(next));
        }
        graph.outputs.iter().map(|(_, v)| (forms[v.node.index()], v.output)).collect()
    }
}
