//! Kernels from users' templates: what a template is filled in with.
//!
//! In: a `kernel ... { template "..."; }`, element types, a term for an open epilogue, tuning
//! values. Out: a [`Filled`], which prints itself. Holds always: a choice is one that the kernel
//! declares; the types are ones that its `requires` does not rule out.

use minijinja::Value;

use crate::cuda::problem::Wrong;
use crate::cuda::template::{Filling, TemplateTensor, emit, try_emit};
use crate::cuda::{CudaSource, EmitError};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{AttrValue, Backend, Fact, Kernel, Pat, Program, Sort, TemplateFile, VarId};
use hypatia_dsl::kernel::Operand;
use hypatia_dsl::program_print::show_aexpr;
use hypatia_dsl::scalar::{Term, TermNode};
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::{Bindings, Facts, NoFacts, TensorType, eval, eval_guard};

use super::{check_tuning, epilogue, op};

/// Combinations of tuning parameters that are generated at most; with more, the first choice of
/// each alone.
const MAX_CHOICES: usize = 16;

/// A template and its values.
#[derive(Clone, Debug, PartialEq)]
pub struct Filled {
    /// An identifier.
    pub name: String,
    /// What it is for.
    pub doc: String,
    template: TemplateFile,
    inputs: Vec<TemplateTensor>,
    outputs: Vec<TemplateTensor>,
    epilogue: Option<(Term, Vec<Operand>, DType)>,
    numbers: Vec<(String, AttrValue)>,
    launch: String,
    block: Option<u32>,
}

impl Filled {
    /// The same with a block of that many threads, where the declaration's depends on sizes.
    pub fn with_block(self, threads: u32) -> Filled {
        Filled { block: Some(threads), ..self }
    }

    /// Its CUDA C++.
    pub fn emit(&self, program: &Program) -> Result<CudaSource, EmitError> {
        self.filling(|filling| emit(program, filling))
    }

    fn filling<R>(&self, then: impl FnOnce(&Filling<'_>) -> R) -> R {
        let epilogue = self.epilogue.as_ref().map(|(t, o, acc)| (t, o.as_slice(), *acc));
        let numbers = self.numbers.iter().filter_map(|(n, v)| Some((n.clone(), number(v)?))).collect();
        let filling = Filling {
            name: self.name.clone(),
            doc: self.doc.clone(),
            file: &self.template.file,
            text: &self.template.text,
            inputs: self.inputs.clone(),
            outputs: self.outputs.clone(),
            epilogue,
            numbers,
            launch: self.launch.clone(),
            block: self.block,
        };
        then(&filling)
    }
}

/// What is wrong with a kernel's template where it is filled in as `gen` does it: for each element
/// type that its `requires` allows, and for each choice of tuning parameters. What has no instance
/// is no fault of the template.
pub(crate) fn problem(program: &Program, kernel: &Kernel) -> Option<Wrong> {
    let mut dtypes: Vec<DType> = vec![DType::F32];
    dtypes.extend(DType::ALL.into_iter().filter(|d| !matches!(d, DType::F32 | DType::Bool) && !d.only_stored()));
    let fails = |dtype: DType, tune: &[(&str, i64)]| {
        let filled = sample(program, kernel, &kernel.name, dtype, tune).ok()?;
        filled.filling(|filling| try_emit(program, filling)).ok()?.err()
    };
    let mut allowed = dtypes.into_iter().filter(|d| refused(kernel, *d).is_none());
    let first = allowed.next()?;
    let choices = choices(kernel);
    let plain = choices.first().map_or(&[] as &[(&str, i64)], Vec::as_slice);
    choices.iter().find_map(|tune| fails(first, tune)).or_else(|| allowed.find_map(|dtype| fails(dtype, plain)))
}

fn number(v: &AttrValue) -> Option<Value> {
    Some(match v {
        AttrValue::Dim(d) => Value::from(d.as_const()?),
        AttrValue::Float(f) => Value::from(*f),
        AttrValue::Bool(b) => Value::from(*b),
        AttrValue::DType(d) => Value::from(d.name()),
        AttrValue::List(l) => l.iter().map(number).collect::<Option<Vec<Value>>>()?.into(),
        AttrValue::Str(_) => return None,
    })
}

/// Every combination of tuning parameters, or the first choice of each if there are too many.
pub(super) fn choices(kernel: &Kernel) -> Vec<Vec<(&str, i64)>> {
    let count = kernel.tune.iter().try_fold(1usize, |n, (_, c)| n.checked_mul(c.len()));
    let all = count.is_some_and(|n| n <= MAX_CHOICES);
    let mut out: Vec<Vec<(&str, i64)>> = vec![Vec::new()];
    for (name, values) in &kernel.tune {
        let values = if all { values.as_slice() } else { &values[..values.len().min(1)] };
        out = out
            .into_iter()
            .flat_map(|c| values.iter().map(move |v| [c.as_slice(), &[(name.as_str(), *v)]].concat()))
            .collect();
    }
    out
}

/// `gemm_tiled_BM64`
pub(super) fn label(name: &str, tune: &[(&str, i64)]) -> String {
    let values: String = tune.iter().map(|(n, v)| format!("_{n}{v}").replace('-', "m")).collect();
    crate::cuda::identifier("", &format!("{name}{values}"))
}

/// The kernel as `gen` writes it: with its own epilogue, or the plain accumulator where it takes
/// any.
pub(super) fn sample(
    program: &Program,
    kernel: &Kernel,
    name: &str,
    dtype: DType,
    tune: &[(&str, i64)],
) -> Result<Filled, String> {
    let plain = || {
        let mut term = Term::empty();
        let root = term.add(TermNode::Acc);
        term.roots.push(root);
        term
    };
    let Some(pattern) = epilogue::gemm_epilogue(program, kernel) else {
        return of_op(program, kernel, name, dtype, tune);
    };
    let (term, inputs) = match pattern {
        Pat::Any => (plain(), Vec::new()),
        Pat::Var(v) if kernel.vars.get(v.index()).is_some_and(|v| v.sort == Sort::Term) => (plain(), Vec::new()),
        e => epilogue::epilogue_term(e)?.unwrap_or_else(|| (plain(), Vec::new())),
    };
    let operands: Vec<Operand> = inputs.into_iter().map(|access| Operand { dtype, access }).collect();
    let acc = dtype.accumulator();
    let name = format!("{name}_{dtype}");
    of_gemm(kernel, name, &term, &operands, [dtype, dtype, acc, dtype], tune).map_err(|e| e.to_string())
}

/// A matrix product for one epilogue. `types` are those of a, b, the accumulator and the result;
/// parameters that `tune` does not name take their first choice.
pub fn of_gemm(
    kernel: &Kernel,
    name: String,
    term: &Term,
    operands: &[Operand],
    types: [DType; 4],
    tune: &[(&str, i64)],
) -> Result<Filled, EmitError> {
    check_tuning(kernel, tune)?;
    let Backend::Template(template) = &kernel.backend else {
        return Err(EmitError::Malformed(format!("`{}` is made from no template", kernel.name)));
    };
    if template.text.is_empty() {
        return Err(EmitError::Template(format!("{}: the file is empty or not on disk", template.file)));
    }
    let reads = term.nodes.iter().filter_map(|n| match n {
        TermNode::In { input, .. } => Some(*input as usize),
        _ => None,
    });
    if reads.max().is_some_and(|i| i >= operands.len()) {
        return Err(EmitError::Malformed("the epilogue reads an operand that is not given".into()));
    }
    let [a, b, acc, out] = types;
    let tensor = |name: &str, dtype: DType| TemplateTensor { name: name.into(), dtype, rank: 3 };
    let (numbers, launch, block) = settings(kernel, tune);
    Ok(Filled {
        name,
        doc: epilogue::doc(&format!("kernel `{}`", kernel.name), &kernel.doc, &kernel.origin),
        template: template.clone(),
        inputs: vec![tensor("a", a), tensor("b", b)],
        outputs: vec![tensor("out", out)],
        epilogue: Some((term.clone(), operands.to_vec(), acc)),
        numbers,
        launch,
        block,
    })
}

/// An op with these operands and results. Parameters that `tune` does not name take their first
/// choice.
pub fn of_tensors(
    kernel: &Kernel,
    name: String,
    (inputs, outputs): (&[TensorType], &[TensorType]),
    attrs: Vec<(String, AttrValue)>,
    tune: &[(&str, i64)],
) -> Result<Filled, EmitError> {
    check_tuning(kernel, tune)?;
    let Backend::Template(template) = &kernel.backend else {
        return Err(EmitError::Malformed(format!("`{}` is made from no template", kernel.name)));
    };
    let tensors = |prefix: &str, types: &[TensorType]| {
        let tensor = |(i, t): (usize, &TensorType)| TemplateTensor {
            name: format!("{prefix}{i}"),
            dtype: t.dtype,
            rank: t.shape.len(),
        };
        types.iter().enumerate().map(tensor).collect()
    };
    let (mut numbers, launch, block) = settings(kernel, tune);
    numbers.extend(attrs);
    Ok(Filled {
        name,
        doc: epilogue::doc(&format!("kernel `{}`", kernel.name), &kernel.doc, &kernel.origin),
        template: template.clone(),
        inputs: tensors("in", inputs),
        outputs: tensors("out", outputs),
        epilogue: None,
        numbers,
        launch,
        block,
    })
}

/// A kernel for a defined op: operands `in0`, `in1`, ..., results `out0`, ...
fn of_op(program: &Program, kernel: &Kernel, name: &str, dtype: DType, tune: &[(&str, i64)]) -> Result<Filled, String> {
    let variants = op::variants(program, kernel);
    let variant = variants.first().ok_or("its pattern is no op with plain operands")?;
    let (operands, results, attrs) = variant.types(program, dtype)?;
    let inputs: Vec<TensorType> = operands.into_iter().flatten().collect();
    of_tensors(kernel, format!("{name}_{dtype}"), (&inputs, &results), attrs, tune).map_err(|e| e.to_string())
}

/// Tuning parameters with their values, the declared launch in words, and the block where it is a
/// number.
fn settings(kernel: &Kernel, tune: &[(&str, i64)]) -> (Vec<(String, AttrValue)>, String, Option<u32>) {
    let mut bindings = Bindings::default();
    let mut numbers = Vec::new();
    for (name, choices) in &kernel.tune {
        let chosen = tune.iter().find(|(n, _)| n == name).map(|(_, v)| *v).or(choices.first().copied());
        let value = AttrValue::Dim(Dim::from(chosen.unwrap_or(0)));
        if let Some(i) = kernel.vars.iter().position(|v| v.name == *name) {
            bindings.values.insert(VarId(i as u32), value.clone());
        }
        numbers.push((name.clone(), value));
    }
    let (mut words, mut block) = (Vec::new(), None);
    for (key, e) in &kernel.launch {
        let value = eval(e, &bindings, &NoFacts);
        let known = match &value {
            Some(AttrValue::Dim(d)) => d.as_const(),
            _ => None,
        };
        if key == "block" {
            block = known.and_then(|n| u32::try_from(n).ok());
        }
        let text = known.map_or_else(|| show_aexpr(&kernel.vars, e), |n| n.to_string());
        words.push(format!("{key} = {text}"));
    }
    let given = numbers.iter().filter_map(|(n, v)| Some(format!("{n} = {}", number(v)?)));
    if !kernel.tune.is_empty() && !words.is_empty() {
        words.push(format!("where {}", given.collect::<Vec<_>>().join(", ")));
    }
    let launch = if words.is_empty() { "not declared".into() } else { words.join("; ") };
    (numbers, launch, block)
}

/// Element types alone, every tensor of the pattern having the same.
struct OfType(DType);

impl Facts for OfType {
    fn fact(&self, fact: Fact, _: VarId) -> Option<AttrValue> {
        (fact == Fact::DType).then_some(AttrValue::DType(self.0))
    }
}

/// Why the kernel cannot have that element type, if its `requires` rules it out.
pub(super) fn refused(kernel: &Kernel, dtype: DType) -> Option<String> {
    let facts = OfType(dtype);
    let guard = kernel.requires.iter().find(|g| eval_guard(g, &Bindings::default(), &facts) == Some(false))?;
    Some(format!("its `requires {}` rules {dtype} out", show_aexpr(&kernel.vars, guard)))
}
