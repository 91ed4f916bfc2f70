//! `hypatia explain`: explains a diagnostic code, the builtins, the fusions of a model, or why a
//! rule did not fire.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use hypatia_cuda::tuning::TuningFile;
use hypatia_dsl::ir::{OpBody, Program, ScalarBody, Test};
use hypatia_dsl::program_print::{show_op_signature, show_scalar_signature};
use hypatia_graph::Graph;
use hypatia_library as library;
use hypatia_onnx::import::{Supported, supported};
use hypatia_optimize::{Options, contract};
use hypatia_pipeline as pipeline;
use hypatia_tensor::error::{Error, Result};
use hypatia_verify::test_runner::{given, target};
use serde_json::{Value, json};

use super::device::Precision;
use super::inputs::warn_if_wrong;
use super::model::{ModelOptions, tell_assumed};
use super::output::write_stdout;
use super::{Exit, Global, claims, files, tune};

/// Explain an error code, a model's fusions, or why a rule did not fire.
///
/// `hypatia explain H0304` explains a code, `hypatia explain codes` lists all codes, `hypatia
/// explain builtins` lists the built-in ops and scalars, and `hypatia explain onnx` the ONNX ops
/// that can be imported. For a model it shows which rules fired where, the graph before and after,
/// and the cost of both, and warns if rules of your own change what the model computes. For a
/// `.hyp` file it shows the same of what each of its tests gives. --why-not shows how close a rule
/// came to firing.
#[derive(Args)]
pub struct Explain {
    /// A code such as H0304, `codes`, `builtins`, `onnx`, a model, or a file with tests.
    #[arg(value_name = "CODE|MODEL.onnx|FILE.hyp")]
    what: PathBuf,
    #[command(flatten)]
    options: ModelOptions,
    /// A rule (fuse::unary[relu]) or a family of rules (fuse::unary): why did it not fire?
    #[arg(long, value_name = "RULE")]
    why_not: Option<String>,
    /// Only at this node, given by its name in the model or by its number in the graph before
    /// optimisation (%12).
    #[arg(long, value_name = "NODE", requires = "why_not")]
    node: Option<String>,
    /// Also list the choices of algorithms in this file, which `hypatia tune` wrote; by default
    /// hypatia.tune beside the model, if it exists.
    #[arg(long, value_name = "FILE")]
    tuning: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

impl Explain {
    /// Runs the command.
    pub fn run(&self, global: &Global) -> Result<Exit> {
        if let Some(done) = self.what.to_str().and_then(|what| super::explain_code::run(what, self.json)) {
            return done;
        }
        if self.what.as_os_str() == "builtins" {
            write_stdout(&builtins(self.json)?);
            return Ok(Exit::Ok);
        }
        if self.what.as_os_str() == "onnx" {
            write_stdout(&onnx_ops(self.json)?);
            return Ok(Exit::Ok);
        }
        if !self.what.exists() && self.what.extension().is_none_or(|e| e != "hyp") {
            return Err(Error::Input(format!(
                "`{}` is not an error code (H0304), not `codes`, `builtins` or `onnx`, and not a model's file",
                self.what.display()
            )));
        }
        if self.what.extension().is_some_and(|e| e == "hyp") {
            return self.tests();
        }
        let (graph, mut options) = self.options.load(&self.what)?;
        let tuning = self.tuning.clone().or_else(|| TuningFile::beside(&self.what));
        let tuning = tuning.map(|path| TuningFile::read(&path)).transpose()?;
        options.measured = tuning.iter().flat_map(|file| claims::measured(file, &options.device)).collect();
        let mut unmet = None;
        let mut text = match &self.why_not {
            Some(rule) => {
                let answer = pipeline::why_not(&graph, &options, rule, self.node.as_deref())?;
                if self.json { json(&answer)? } else { answer.to_string() }
            }
            None => {
                // User rules may be wrong: the result is run once and compared with the graph
                // without rules.
                if !self.options.rules.is_empty() && !options.no_rules {
                    warn_if_wrong(&graph, &options, self.options.memory, global.quiet)?;
                }
                let mut optimized = pipeline::optimize_anyway(&graph, &options)?;
                unmet = contract::unmet(&optimized.report.contract);
                if let Some(memory) = self.options.memory.bytes() {
                    pipeline::must_fit(&optimized.graph, &options, memory)?;
                }
                pipeline::count_launches(&mut optimized, &graph, &options);
                if !options.no_rules {
                    pipeline::list_choices(&mut optimized, &options);
                }
                match (self.json, &tuning) {
                    (false, _) => optimized.report.to_string(),
                    (true, None) => json(&optimized.report)?,
                    (true, Some(file)) => {
                        let mut value =
                            serde_json::to_value(&optimized.report).map_err(|e| Error::Internal(e.to_string()))?;
                        value["tuning"] = file.choices().map(tune::to_json).collect();
                        json(&value)?
                    }
                }
            }
        };
        if let Some(file) = tuning.filter(|_| !self.json && self.why_not.is_none()) {
            text.push_str(&choices(&file));
        }
        write_stdout(&text);
        tell_assumed(self.options.target.as_deref(), &options.device, global.quiet || unmet.is_some());
        unmet.map_or(Ok(Exit::Ok), Err)
    }

    /// The report of what each test of a `.hyp` file gives, with the rules that its tests see.
    fn tests(&self) -> Result<Exit> {
        let of_a_model = [
            ("--rules", !self.options.rules.is_empty()),
            ("--inputs", self.options.inputs.is_some()),
            ("--dim", !self.options.sizes.dim.is_empty()),
            ("--target", self.options.target.is_some()),
            ("--precision", self.options.precision != Precision::F32),
            ("--costs", self.options.costs.costs.is_some()),
            ("--memory", self.options.memory.memory.is_some()),
            ("--node", self.node.is_some()),
            ("--tuning", self.tuning.is_some()),
        ];
        if let Some((name, _)) = of_a_model.iter().find(|(_, given)| *given) {
            return Err(Error::Input(format!("{name} is for a model; the tests of a file say what they are about")));
        }
        let programs = files::programs(std::slice::from_ref(&self.what), false)?;
        let (mut reports, mut failed) = (Vec::new(), false);
        for (program, names) in &programs {
            for test in program.tests.iter().filter(|t| names.contains(&t.origin.file)) {
                let report = self.test(program, test).unwrap_or_else(|e| {
                    failed = true;
                    let origin = &test.origin;
                    let text = format!("error: {e}\n  --> {}:{}", origin.file, origin.line);
                    (text, json!({ "error": e.to_string() }))
                });
                reports.push((test.name.clone(), report));
            }
        }
        if reports.is_empty() {
            let p = self.what.display();
            return Err(Error::Input(format!(
                "{p} has no tests: there is nothing that its rules could be explained on"
            )));
        }
        write_stdout(&match self.json {
            true => {
                let tests = reports.iter().map(|(name, (_, json))| json!({"test": name, "report": json}));
                json(&json!({"tests": tests.collect::<Vec<Value>>()}))?
            }
            false => {
                let tests = reports.iter().map(|(name, (text, _))| format!("test {name}\n{}\n", text.trim_end()));
                tests.collect::<Vec<String>>().join("\n")
            }
        });
        Ok(if failed { Exit::Failed } else { Exit::Ok })
    }

    /// The report of what one test gives.
    fn test(&self, program: &Arc<Program>, test: &Test) -> Result<(String, Value)> {
        let graph = given(program, test)?.0;
        let no_rules = self.options.no_rules;
        let mut options = Options { device: target(test)?, no_rules, ..Options::default() };
        self.options.firing.apply(program, &mut options)?;
        self.report(&graph, &options)
    }

    /// What the optimiser did, or why a rule did not fire, as text and as data.
    fn report(&self, graph: &Graph, options: &Options) -> Result<(String, Value)> {
        if let Some(rule) = &self.why_not {
            let answer = pipeline::why_not(graph, options, rule, None)?;
            return Ok((answer.to_string(), data(&answer)?));
        }
        let mut optimized = pipeline::optimize_anyway(graph, options)?;
        pipeline::count_launches(&mut optimized, graph, options);
        let (mut text, mut value) = (optimized.report.to_string(), data(&optimized.report)?);
        // Why the launches cannot be listed is among the warnings.
        if let Ok(list) = pipeline::launch_list(&optimized.graph, &pipeline::planned_as(options)) {
            text.push_str(&format!("\nlaunches\n  {}\n", list.join("\n  ")));
            value["steps"] = list.into();
        }
        Ok((text, value))
    }
}

/// The choices of a tuning file, by device.
fn choices(file: &TuningFile) -> String {
    let mut text = String::new();
    let mut machine = None;
    for c in file.choices() {
        if machine != Some(&c.machine) {
            text.push_str(&format!("choices of {} on {}\n", file.path.display(), c.machine));
            machine = Some(&c.machine);
        }
        text.push_str(&tune::line(c));
    }
    text
}

fn data(value: &impl serde::Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(|e| Error::Internal(e.to_string()))
}

fn json(value: &impl serde::Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Error::Internal(e.to_string()))?;
    Ok(text + "\n")
}

/// The builtin ops and scalars, with their types and meaning.
fn builtins(as_json: bool) -> Result<String> {
    let program = library::load(&[])?;
    let scalars = program.scalars.iter().filter(|s| matches!(s.body, ScalarBody::Builtin(_)));
    let scalars: Vec<(String, &str)> = scalars.map(|s| (show_scalar_signature(s), first_line(&s.doc))).collect();
    let ops = program.ops.iter().filter(|o| matches!(o.body, OpBody::Builtin(_)));
    let ops: Vec<(String, &str)> = ops.map(|o| (show_op_signature(o), first_line(&o.doc))).collect();
    if as_json {
        let list = |all: &[(String, &str)]| -> Vec<Value> {
            all.iter().map(|(signature, doc)| json!({"signature": signature, "doc": doc})).collect()
        };
        return json(&json!({"scalars": list(&scalars), "ops": list(&ops)}));
    }
    let mut out = String::new();
    for (signature, doc) in scalars {
        out.push_str(&format!("{:<32} {doc}\n", format!("scalar {signature}")));
    }
    out.push('\n');
    for (signature, doc) in ops {
        out.push_str(&format!("op {signature}\n    {doc}\n"));
    }
    Ok(out)
}

/// The supported ONNX ops, with the opsets whose definitions are known.
fn onnx_ops(as_json: bool) -> Result<String> {
    let all = supported();
    if as_json {
        let all: Vec<Value> = all.iter().map(|s| json!({"op": s.op, "since": s.since})).collect();
        return json(&json!({ "ops": all }));
    }
    let line = |s: &Supported| {
        let since: Vec<String> = s.since.iter().map(i64::to_string).collect();
        format!("{:<24} since opset {}\n", s.op, since.join(", "))
    };
    Ok(all.iter().map(line).collect())
}

fn first_line(doc: &str) -> &str {
    doc.trim().lines().next().unwrap_or_default()
}
