//! The passes over a row: which steps are reduced together, and how.
//!
//! In: the steps of a row-wise kernel with their printed functions. Out: what the template knows of
//! each pass. Invariant: a pass reads results of earlier passes alone, but for sums below a largest
//! element ([`super::online`]), which a row that is not kept finds in one pass with it.

use std::collections::BTreeSet;

use minijinja::{Value, context};

use super::EmitError;
use super::online::Below;
use super::row_values::{Piece, Values, call, union};
use super::rowwise::{Load, loads};
use super::term::{Functions, compute_name, identity_literal};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{Reduction, RowAccess, RowwiseKernel};
use hypatia_dsl::scalar::TermNode;

/// The passes over rows, and those over groups: steps that are independent of each other share one.
pub(super) fn passes(
    program: &Program,
    values: &mut Values<'_, '_>,
    kernel: &RowwiseKernel,
    carried: &[usize],
    streamed: bool,
) -> Result<(Value, Value), EmitError> {
    let (mut over_rows, mut over_groups) = (Vec::new(), Vec::new());
    let passes = steps_of_passes(kernel, &values.steps);
    let below = below(program, kernel, &passes, &values.step_types);
    for pass in &passes {
        let mut steps = Vec::new();
        for &i in pass {
            let ty = (values.step_types[i], carried.contains(&i));
            steps.push(reduced(&mut values.functions, kernel, i, ty, &values.steps)?);
        }
        let about: Vec<String> = pass.iter().map(|i| format!("r{i}: {}", reduction_word(kernel, *i))).collect();
        let inputs = union(pass.iter().map(|i| &values.steps[*i]));
        let mut together = Vec::new();
        // Sums that are found with these, if rows are not kept.
        let sums: Vec<&(usize, Below)> = below.iter().filter(|(_, b)| pass.contains(&b.top)).collect();
        for (step, below) in &sums {
            values.print_factor(program, *step, below)?;
            let element = call(kernel, &values.steps[*step], &values.steps);
            together.push(context! {
                name => format!("r{step}"),
                top => format!("r{}", below.top),
                none => identity_literal(f64::NEG_INFINITY, DType::F32)?,
                factor => format!("below{step}"),
                element => element,
            });
        }
        let of_both = pass.iter().chain(sums.iter().map(|(step, _)| step));
        let of_both = union(of_both.map(|i| &values.steps[*i]));
        let tops: BTreeSet<String> = sums.iter().map(|(_, b)| format!("r{}", b.top)).collect();
        let out = if pass.iter().any(|i| *i >= kernel.row_steps()) { &mut over_groups } else { &mut over_rows };
        out.push(context! {
            about => about.into_iter().collect::<Value>(),
            steps => steps.into_iter().collect::<Value>(),
            loads => loads(kernel, &inputs, streamed).iter().map(Load::statement).collect::<Value>(),
            together => together.into_iter().collect::<Value>(),
            tops => tops.into_iter().collect::<Value>(),
            packs => loads(kernel, &of_both, streamed).iter().map(|l| l.pack(kernel)).collect::<Value>(),
            // Found with the pass before.
            found => pass.iter().all(|i| below.iter().any(|(step, _)| step == i)),
        });
    }
    Ok((over_rows.into_iter().collect(), over_groups.into_iter().collect()))
}

/// The sums that the pass before can find, each with what they lie below: all steps of their pass
/// are such sums.
fn below(program: &Program, kernel: &RowwiseKernel, passes: &[Vec<usize>], types: &[DType]) -> Vec<(usize, Below)> {
    let mut out = Vec::new();
    for pair in passes.windows(2).filter(|_| kernel.sums.is_empty()) {
        let of = |i: &usize| {
            let below = Below::of(program, kernel, *i)?;
            let alike = types[*i] == DType::F32 && types[below.top] == DType::F32;
            (alike && pair[0].contains(&below.top)).then_some((*i, below))
        };
        let found: Option<Vec<(usize, Below)>> = pair[1].iter().map(of).collect();
        out.extend(found.unwrap_or_default());
    }
    out
}

/// True if a row that is not kept is read once: its results are those of one pass, and of nothing
/// that takes elements of the row again.
pub(super) fn reads_once(program: &Program, kernel: &RowwiseKernel, steps: &[Piece], types: &[DType]) -> bool {
    let passes = steps_of_passes(kernel, steps);
    let below = below(program, kernel, &passes, types);
    let again = passes.iter().skip(1).any(|p| !p.iter().all(|i| below.iter().any(|(step, _)| step == i)));
    let of_rows = kernel.outputs.iter().all(|o| o.1 == RowAccess::PerRow);
    !again && !passes.is_empty() && of_rows && kernel.sums.is_empty() && kernel.groups.is_none()
}

/// The steps of each pass.
fn steps_of_passes(kernel: &RowwiseKernel, steps: &[Piece]) -> Vec<Vec<usize>> {
    let mut together: Vec<Vec<usize>> = Vec::new();
    for (i, piece) in steps.iter().enumerate() {
        match together.last_mut() {
            Some(pass) if i != kernel.row_steps() && !piece.steps.iter().any(|s| pass.contains(s)) => pass.push(i),
            _ => together.push(vec![i]),
        }
    }
    together
}

/// What the template knows of step `i`, a reduction of that type; its elements stay in registers if
/// it `carries` them.
fn reduced(
    functions: &mut Functions<'_>,
    kernel: &RowwiseKernel,
    i: usize,
    (ty, carries): (DType, bool),
    steps: &[Piece],
) -> Result<Value, EmitError> {
    let (kind, operand) = &kernel.steps[i];
    let combine = |f: &mut Functions<'_>, a: &str, b: &str| combine(f, *kind, ty, a, b);
    let name = format!("r{i}");
    let element = call(kernel, &steps[i], steps);
    let term = if carries { format!("e{i}") } else { element.clone() };
    // Integers are computed in 64 bits, but the element type sets the limits of an operand.
    let mut integers = kernel.inputs.iter().map(|i| i.0).filter(|d| d.is_int());
    let narrow = integers.next().filter(|d| integers.all(|e| e == *d)).unwrap_or(DType::I64);
    let bare = matches!(operand.nodes.get(operand.root().0 as usize), Some(TermNode::In { .. }));
    let grouped = i >= kernel.row_steps();
    let count = kernel.groups.filter(|_| grouped).map_or("n".to_string(), |g| g.size.to_string());
    let finish = if *kind == Reduction::Mean { format!("{name} = {name} / {count};") } else { String::new() };
    Ok(context! {
        name => name.clone(),
        type => compute_name(ty),
        identity => identity_literal(start(*kind), if ty == DType::I64 && bare { narrow } else { ty })?,
        element => carries.then(|| format!("const float e{i} = stays({element});")),
        carried => carries.then(|| format!("e{i}_kept[c].v[k] = e{i};")),
        accumulate => combine(functions, &name, &term),
        combine => combine(functions, "a", "b"),
        finish => finish,
    })
}

fn reduction_word(kernel: &RowwiseKernel, step: usize) -> String {
    let of = if step < kernel.row_steps() { "row" } else { "group" };
    match kernel.steps[step].0 {
        Reduction::Sum => format!("the sum over the {of}"),
        Reduction::Mean => format!("the mean over the {of}"),
        Reduction::Max => format!("the largest of the {of}"),
        Reduction::Min => format!("the smallest of the {of}"),
        Reduction::Prod => format!("the product over the {of}"),
    }
}

/// What a reduction of nothing is.
pub(super) fn start(kind: Reduction) -> f64 {
    match kind {
        Reduction::Sum | Reduction::Mean => 0.0,
        Reduction::Prod => 1.0,
        Reduction::Max => f64::NEG_INFINITY,
        Reduction::Min => f64::INFINITY,
    }
}

/// Combines two partial results.
pub(super) fn combine(functions: &mut Functions<'_>, kind: Reduction, ty: DType, a: &str, b: &str) -> String {
    let int = ty.compute() == DType::I64;
    let tag = ty.compute().name();
    let mut helper = |name: &str| {
        functions.need(format!("{name}_{tag}"));
        format!("{name}({a}, {b})")
    };
    match kind {
        Reduction::Sum | Reduction::Mean if int => helper("int_add"),
        Reduction::Prod if int => helper("int_mul"),
        Reduction::Sum | Reduction::Mean => format!("{a} + {b}"),
        Reduction::Prod => format!("{a} * {b}"),
        Reduction::Max if int => format!("{a} > {b} ? {a} : {b}"),
        Reduction::Min if int => format!("{a} < {b} ? {a} : {b}"),
        Reduction::Max => helper("max_nan"),
        Reduction::Min => helper("min_nan"),
    }
}
