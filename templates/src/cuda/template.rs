//! Kernels from users' own templates.
//!
//! In: a template's text and the values to render it with: element types, tuning parameters,
//! attributes, the epilogue. Out: a [`CudaSource`]. Invariant: the host interface is Hypatia's
//! (`params` is the parameter list), whatever the template does with it; an epilogue reaches the
//! source only through the expression grammar; rendering is bounded in steps and in size; a
//! template reads no other file when it is rendered, and only NVRTC's own headers when it is
//! compiled. docs/language.md describes the variables.

use std::io::Write;

use minijinja::value::Rest;
use minijinja::{Value, context};

use super::growth::{self, bounded};
use super::limits::{FUEL, MAX_SOURCE};
use super::pointwise::{declarations, default_type};
use super::problem::{Problem, Wrong};
use super::term::{Functions, compute_name, inlining, widen};
use super::{
    Arg, ArgKind, ArgRole, CudaSource, EmitError, Entry, Geometry, Header, SizeName, common, configure, identifier,
    render, storage, tidy,
};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{Head, Kernel, Pat, Program};
use hypatia_dsl::kernel::{Access, Operand};
use hypatia_dsl::scalar::{Term, TermNode};

/// Variables of every template, besides its tuning parameters and the attributes of its op.
const VARIABLES: &[&str] =
    &["entry", "params", "prelude", "inputs", "outputs", "a", "b", "out", "acc", "epilogue", "block", "dtype"];
/// Fields of a tensor.
const OF_TENSOR: &[&str] = &["name", "type", "compute", "dtype", "rank"];
/// Fields of some variables, to detect a misspelt one: `acc.typ`.
pub(crate) const FIELDS: &[(&str, &[&str])] =
    &[("a", OF_TENSOR), ("b", OF_TENSOR), ("out", OF_TENSOR), ("acc", &["type", "dtype"])];
/// Helpers that a template may call, by what it writes.
const HELPERS: &[(&str, &[&str])] = &[
    ("quotient", &["quotient"]),
    ("max_nan", &["max_nan_f32", "max_nan_f64"]),
    ("min_nan", &["min_nan_f32", "min_nan_f64"]),
];
/// Functions of the template language.
const LANGUAGE: &[&str] = &["range", "loop", "cat"];

/// The names that a template uses and does not set; or its syntax error.
pub(crate) fn variables(name: &str, text: &str) -> Result<Vec<String>, Wrong> {
    let text = &bounded(text)?;
    let mut env = growth::environment();
    configure(&mut env)?;
    let found = env.template_from_named_str(name, text)?.undeclared_variables(false);
    let mut out: Vec<String> = found.into_iter().filter(|v| !LANGUAGE.contains(&v.as_str())).collect();
    out.sort();
    Ok(out)
}

/// The names that a kernel's template may use.
pub(crate) fn known_variables(program: &Program, kernel: &Kernel) -> Vec<String> {
    let mut out: Vec<String> = VARIABLES.iter().map(|v| v.to_string()).collect();
    out.extend(kernel.tune.iter().map(|t| t.0.clone()));
    let mut pat = &kernel.pattern;
    while let Pat::Bind(_, p) | Pat::Typed(p, _) = pat {
        pat = p;
    }
    if let Pat::Node(n) = pat
        && let Head::Op(op) = n.head
        && let Some(def) = program.ops.get(op.index())
    {
        out.extend(def.attrs().map(|(_, p)| p.name.clone()));
    }
    out
}

/// Refuses preprocessor lines that could read one of the user's files: NVRTC's messages quote what
/// it reads. Headers must be named plainly, `<cuda_fp16.h>` or `"mma.h"`. The error has the line,
/// counted from 1.
pub(crate) fn safe_includes(text: &str) -> Result<(), Wrong> {
    // A backslash continues a line; each is reported with its first line.
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut open = false;
    for (i, line) in text.lines().enumerate() {
        let (body, continued) = match line.trim_end().strip_suffix('\\') {
            Some(body) => (body, true),
            None => (line, false),
        };
        match lines.last_mut().filter(|_| open) {
            Some((_, whole)) => whole.push_str(body),
            None => lines.push((i + 1, body.to_string())),
        }
        open = continued;
    }
    for (at, line) in lines {
        let directive = ["#", "%:", "??="].iter().any(|mark| line.contains(mark));
        let reads = ["include", "import", "embed"].iter().any(|word| line.contains(word));
        let opens = line.trim_start().starts_with(['#', '%', '?']) && line.contains("/*") && !line.contains("*/");
        if directive && (opens || reads && !plain_include(&line)) {
            return Err(Wrong { line: Some(at), problem: Problem::Include });
        }
    }
    Ok(())
}

/// `#include <name>` or `#include "name"`, or a template's own line.
fn plain_include(line: &str) -> bool {
    let Some(rest) = line.trim().strip_prefix('#').map(str::trim_start) else {
        return line.trim_start().starts_with("//%") || line.trim_start().starts_with("//#");
    };
    let Some(rest) = rest.strip_prefix("include").map(str::trim) else { return false };
    let rest = rest.split("//").next().unwrap_or_default().trim();
    let inner = rest.strip_prefix('<').and_then(|r| r.strip_suffix('>'));
    let inner = inner.or_else(|| rest.strip_prefix('"').and_then(|r| r.strip_suffix('"')));
    inner.is_some_and(|name| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-/+".contains(c);
        !name.is_empty() && name.chars().all(plain) && !name.starts_with('/') && !name.contains("..")
    })
}

/// A tensor that a template's kernel reads or writes.
#[derive(Clone, Debug, PartialEq)]
pub struct TemplateTensor {
    /// Its name in the source.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Number of axes, which is the number of strides passed.
    pub rank: usize,
}

/// The values to render a template with.
#[derive(Clone, Debug)]
pub struct Filling<'a> {
    /// The kernel's name, an identifier.
    pub name: String,
    /// The kernel's purpose.
    pub doc: String,
    /// The template's file name and text.
    pub file: &'a str,
    /// Its text.
    pub text: &'a str,
    /// Operands; `a` and `b` for a matrix product.
    pub inputs: Vec<TemplateTensor>,
    /// Results; `out` for a matrix product.
    pub outputs: Vec<TemplateTensor>,
    /// For a matrix product: the epilogue, the operands of its `In` leaves, and the accumulator's
    /// element type.
    pub epilogue: Option<(&'a Term, &'a [Operand], DType)>,
    /// Tuning parameters and attributes by name.
    pub numbers: Vec<(String, Value)>,
    /// The declared launch, in words.
    pub launch: String,
    /// Threads of a block, if they are declared and known.
    pub block: Option<u32>,
}

/// A writer with a byte limit.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_SOURCE {
            return Err(std::io::Error::other(Problem::SourceTooLarge));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Renders a template.
pub fn emit(program: &Program, filling: &Filling<'_>) -> Result<CudaSource, EmitError> {
    try_emit(program, filling)?.map_err(|w| {
        let line = w.line.map_or(String::new(), |l| format!(":{l}"));
        EmitError::Template(format!("{}{line}: {}", filling.file, w.problem))
    })
}

/// Renders a template; the inner error is an error in the template itself.
pub(crate) fn try_emit(program: &Program, filling: &Filling<'_>) -> Result<Result<CudaSource, Wrong>, EmitError> {
    if let Err(wrong) = safe_includes(filling.text) {
        return Ok(Err(wrong));
    }
    let mut functions = Functions::new(program);
    functions.need("axes");
    // Helpers that docs/language.md promises; the compiler warns of those that nobody calls.
    for (name, helpers) in HELPERS {
        helpers.iter().filter(|_| filling.text.contains(name)).for_each(|h| functions.need(*h));
    }
    let args = arguments(filling);
    let (body, formula) = epilogue_function(program, &mut functions, filling)?;
    let entry = Entry { name: identifier("hypatia_", &filling.name), geometry: Geometry::Declared };
    let entries = vec![entry];
    let header = Header {
        name: &filling.name,
        kind: "from a template of the user's",
        doc: &filling.doc,
        formula: &formula,
        args: &args,
        entries: &entries,
        in_place: false,
    };
    let operands = filling.epilogue.map_or(&[] as &[Operand], |e| e.1);
    let tensors = filling.inputs.iter().chain(&filling.outputs).map(|t| t.dtype);
    let dtypes: Vec<DType> = tensors.chain(operands.iter().map(|o| o.dtype)).collect();
    let base = common(header, &functions, dtypes.into_iter(), &body)?;
    let prelude = render("prelude.cu.j2", "prelude.cu", base)?;
    let text = match fill(filling, &entries[0].name, &args, prelude) {
        Ok(text) => text,
        Err(wrong) => return Ok(Err(wrong)),
    };
    // The rendered text must obey the same rule as the template.
    if let Err(wrong) = safe_includes(&text) {
        return Ok(Err(Wrong { line: None, ..wrong }));
    }
    Ok(Ok(CudaSource {
        name: filling.name.clone(),
        formula: formula.join("; "),
        text,
        entries,
        args,
        launch: Some(filling.launch.clone()),
    }))
}

fn fill(filling: &Filling<'_>, entry: &str, args: &[Arg], prelude: String) -> Result<String, Wrong> {
    let tensor = |t: &TemplateTensor| {
        context! { name => t.name.clone(), type => storage(t.dtype), compute => compute_name(t.dtype),
        dtype => t.dtype.name(), rank => t.rank }
    };
    let mut values: Vec<(String, Value)> = filling.numbers.clone();
    let mut put = |name: &str, value: Value| values.push((name.to_string(), value));
    put("entry", entry.into());
    put("prelude", prelude.into());
    let params: Vec<String> = declarations(args, &[])
        .try_iter()
        .map(|items| items.filter_map(|d| d.get_attr("declaration").ok()).map(|d| d.to_string()).collect())
        .unwrap_or_default();
    put("params", params.join(", ").into());
    put("inputs", filling.inputs.iter().map(tensor).collect());
    put("outputs", filling.outputs.iter().map(tensor).collect());
    put("dtype", filling.outputs.first().map_or("", |t| t.dtype.name()).into());
    if let Some(block) = filling.block {
        put("block", block.into());
    }
    if let Some((_, operands, acc)) = filling.epilogue {
        for t in filling.inputs.iter().chain(&filling.outputs) {
            put(&t.name, tensor(t));
        }
        put("acc", context! { type => compute_name(acc), dtype => acc.name() });
        let calls: Vec<(usize, Access)> = operands.iter().map(|o| o.access.clone()).enumerate().collect();
        let call = move |given: Rest<String>| match given.as_slice() {
            [value, row, col] => Ok(epilogue_call(&calls, value, row, col)),
            _ => Err(Problem::EpilogueArguments.raise()),
        };
        put("epilogue", Value::from_function(call));
    }
    let text = bounded(filling.text)?;
    let mut env = growth::environment();
    configure(&mut env)?;
    env.set_fuel(Some(FUEL));
    env.set_recursion_limit(50);
    let mut out = Bounded(Vec::new());
    env.template_from_named_str(filling.file, &text)?.render_captured_to(Value::from_pairs(values), &mut out)?;
    Ok(tidy(&String::from_utf8_lossy(&out.0), filling.file))
}

/// `epilogue(value, in0[col], ...)`
fn epilogue_call(operands: &[(usize, Access)], value: &str, row: &str, col: &str) -> String {
    let mut list = vec![value.to_string()];
    for (i, access) in operands {
        list.push(match access {
            Access::Full => format!("in{i}[({row}) * n + ({col})]"),
            Access::Row => format!("in{i}[{col}]"),
            Access::Col => format!("in{i}[{row}]"),
            Access::Splat => format!("in{i}[0]"),
            Access::Strided => format!(
                "in{i}[({row}) / m * in{i}_strides.at[0] + ({row}) % m * in{i}_strides.at[1] \
                 + ({col}) * in{i}_strides.at[2]]"
            ),
        });
    }
    format!("epilogue({})", list.join(", "))
}

fn arguments(filling: &Filling<'_>) -> Vec<Arg> {
    let mut out: Vec<Arg> = Vec::new();
    let input = |i: usize| if filling.epilogue.is_some() { ArgRole::Factor(i) } else { ArgRole::Read(i) };
    for (i, t) in filling.inputs.iter().enumerate() {
        let about = format!("{} axes, with their strides", t.rank);
        out.push(Arg::with(input(i), &t.name, ArgKind::Input(t.dtype), about));
    }
    let operands = filling.epilogue.map_or(&[] as &[Operand], |e| e.1);
    for (i, o) in operands.iter().enumerate() {
        let about = match o.access {
            Access::Full => "batch x m x n, row-major",
            Access::Row => "n elements, one a column",
            Access::Col => "one element a row",
            Access::Splat => "one element",
            Access::Strided => "read with its strides",
        };
        out.push(Arg::read(i, o.dtype, about));
    }
    for (i, t) in filling.outputs.iter().enumerate() {
        out.push(Arg::with(ArgRole::Written(i), &t.name, ArgKind::Output(t.dtype), "row-major"));
    }
    if filling.epilogue.is_some() {
        for (name, about) in [
            (SizeName::Batch, "matrix products"),
            (SizeName::M, "rows of each"),
            (SizeName::N, "columns of each"),
            (SizeName::K, "length of the sums"),
        ] {
            out.push(Arg::size(name, about));
        }
    }
    let results = if filling.epilogue.is_some() { &[] } else { filling.outputs.as_slice() };
    let read = filling.inputs.iter().enumerate().map(|(i, t)| (input(i), t));
    let written = results.iter().enumerate().map(|(i, t)| (ArgRole::Written(i), t));
    for (role, t) in read.chain(written) {
        // A value of rank 0 has no axis.
        let axes = t.rank.max(1);
        if filling.epilogue.is_none() {
            out.push(Arg::sizes(SizeName::Tensor(role), axes, format!("sizes of {}", t.name)));
        }
        let about = format!("elements between neighbours along each axis of {}", t.name);
        out.push(Arg::strides(role, axes, about));
    }
    for (i, _) in operands.iter().enumerate().filter(|(_, o)| o.access == Access::Strided) {
        let about = format!("elements of in{i} between neighbouring products, rows and columns");
        out.push(Arg::strides(ArgRole::Read(i), 3, about));
    }
    out
}

/// The device function of the epilogue: takes the accumulator and the operands, returns an element
/// of the result.
fn epilogue_function(
    program: &Program,
    functions: &mut Functions<'_>,
    filling: &Filling<'_>,
) -> Result<(Vec<String>, Vec<String>), EmitError> {
    let (Some((term, operands, acc)), Some(out)) = (filling.epilogue, filling.outputs.first()) else {
        return Ok((Vec::new(), vec![filling.doc.lines().next().unwrap_or_default().to_string()]));
    };
    let number = default_type(operands.iter().map(|o| o.dtype).chain([acc, out.dtype]));
    let leaf = |node: &TermNode| match node {
        TermNode::Acc => Some(("acc".to_string(), acc.compute())),
        TermNode::In { input, .. } => {
            let o = operands.get(*input as usize)?;
            let name = format!("in{input}");
            let widened = widen(&name, o.dtype) != name;
            Some((if widened { format!("x{input}") } else { name }, o.dtype.compute()))
        }
        _ => None,
    };
    let lowered = functions.lower(term, number, &leaf)?;
    let Some(root) = lowered.roots.first() else {
        return Err(EmitError::Malformed("an epilogue without a value".into()));
    };
    let mut params = vec![format!("const {} acc", compute_name(acc))];
    params.extend(operands.iter().enumerate().map(|(i, o)| format!("const {} in{i}", storage(o.dtype))));
    let inline = inlining(lowered.size, 16);
    let mut text = format!(
        "// What becomes of an element of the product.\nstatic __device__ {inline} {} epilogue({}) {{\n",
        storage(out.dtype),
        params.join(", ")
    );
    for (i, o) in operands.iter().enumerate() {
        let name = format!("in{i}");
        if widen(&name, o.dtype) != name {
            text.push_str(&format!("  const {} x{i} = {};\n", compute_name(o.dtype), widen(&name, o.dtype)));
        }
    }
    for s in &lowered.statements {
        text.push_str(&format!("  {s}\n"));
    }
    let root = root.clone();
    text.push_str(&format!("  return {};\n}}\n", functions.store(&root, out.dtype)));
    let formula = super::term::formula(program, term, term.root(), &|_| None);
    Ok((vec![text], vec![format!("out = {formula}, where acc is the product of a and b")]))
}
