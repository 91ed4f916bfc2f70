//! Kernel descriptions evaluated in f64: the oracle of whatever runs or prints them.
//!
//! In: a description and its inputs as f64. Out: its outputs as f64, one value for each element or
//! row. Slow and plain.

use crate::dtype::DType;
use crate::ir::Program;
use crate::scalar::{Leaves, Precision, Term, Value, eval};

use super::{Reduction, RowAccess, RowwiseKernel};

/// The outputs of a row-wise kernel on `rows` rows of `n` elements: `rows * n` values for a full
/// output, `rows` for one value a row. An empty row sums to 0, multiplies to 1, has the largest
/// element -inf, the smallest inf, and mean NaN. An error if an input has another length than its
/// access says.
pub fn interpret_rowwise(
    program: &Program,
    kernel: &RowwiseKernel,
    inputs: &[&[f64]],
    rows: usize,
    n: usize,
) -> Result<Vec<Vec<f64>>, String> {
    if inputs.len() != kernel.inputs.len() {
        return Err(format!("{} takes {} inputs, not {}", kernel.name, kernel.inputs.len(), inputs.len()));
    }
    for (i, ((_, access), data)) in kernel.inputs.iter().zip(inputs).enumerate() {
        let wanted = match access {
            RowAccess::Full => rows * n,
            RowAccess::PerColumn => n,
            RowAccess::PerRow => rows,
            RowAccess::Splat => 1,
        };
        if data.len() != wanted {
            return Err(format!("input {i} of {} has {} elements, not {wanted}", kernel.name, data.len()));
        }
    }
    let mut outputs: Vec<Vec<f64>> = vec![Vec::new(); kernel.outputs.len()];
    for row in 0..rows {
        let mut steps: Vec<Value> = Vec::with_capacity(kernel.steps.len());
        for (reduction, term) in &kernel.steps {
            let values = (0..n).map(|column| element(program, kernel, inputs, &steps, term, (row, column, n)));
            let reduced = fold(*reduction, values.collect::<Result<Vec<f64>, String>>()?);
            steps.push(Value::F(reduced));
        }
        for (out, (_, access, term)) in outputs.iter_mut().zip(&kernel.outputs) {
            let columns = if *access == RowAccess::Full { n } else { 1 };
            for column in 0..columns {
                out.push(element(program, kernel, inputs, &steps, term, (row, column, n))?);
            }
        }
    }
    Ok(outputs)
}

fn element(
    program: &Program,
    kernel: &RowwiseKernel,
    inputs: &[&[f64]],
    steps: &[Value],
    term: &Term,
    (row, column, n): (usize, usize, usize),
) -> Result<f64, String> {
    let mut leaves: Vec<Value> = Vec::with_capacity(inputs.len() + steps.len());
    for ((dtype, access), data) in kernel.inputs.iter().zip(inputs) {
        let index = match access {
            RowAccess::Full => row * n + column,
            RowAccess::PerColumn => column,
            RowAccess::PerRow => row,
            RowAccess::Splat => 0,
        };
        // A value a row of an empty row reads no column.
        let x = data.get(index).copied().unwrap_or(f64::NAN);
        leaves.push(match dtype {
            DType::Bool => Value::B(x != 0.0),
            d if d.is_int() => Value::I(x as i64),
            _ => Value::F(x),
        });
    }
    leaves.extend_from_slice(steps);
    let values = eval(program, term, Leaves { inputs: &leaves, ..Leaves::default() }, Precision::F64);
    let values = values.map_err(|e| e.0)?;
    values.first().map(|v| v.to_f64()).ok_or_else(|| "a term has no result".to_string())
}

fn fold(reduction: Reduction, values: Vec<f64>) -> f64 {
    use crate::builtin::BuiltinScalar::{Max, Min};
    use crate::scalar::float;
    match reduction {
        // Not `sum()`: that of nothing is -0.
        Reduction::Sum => values.iter().fold(0.0, |a, b| a + b),
        Reduction::Mean => values.iter().sum::<f64>() / values.len() as f64,
        Reduction::Max => values.iter().fold(f64::NEG_INFINITY, |a, b| float(Max, a, *b)),
        Reduction::Min => values.iter().fold(f64::INFINITY, |a, b| float(Min, a, *b)),
        Reduction::Prod => values.iter().product(),
    }
}
