//! Evaluates kernel descriptions in f64: the oracle for everything that runs or prints them.
//!
//! In: a description, the layout of its operands, and its inputs as f64. Out: its outputs as f64.
//! Slow and simple.

use crate::dtype::DType;
use crate::ir::Program;
use crate::scalar::{Leaves, Precision, Term, Value, eval};

use super::{Reduction, RowAccess, RowLayout, RowwiseKernel};

/// The outputs of a row-wise kernel under a layout, then its sums over all rows. Each output has as
/// many elements as the layout spans, at the places that the layout gives them. In an empty row the
/// sum is 0, the product 1, the maximum -inf, the minimum inf, and the mean NaN. It is an error if
/// there are fewer inputs, or a shorter input, than the layout needs.
pub fn interpret_rowwise(
    program: &Program,
    kernel: &RowwiseKernel,
    inputs: &[&[f64]],
    layout: &RowLayout,
) -> Result<Vec<Vec<f64>>, String> {
    if inputs.len() != kernel.inputs.len()
        || layout.strides.len() != inputs.len() + kernel.outputs.len() + kernel.sums.len()
    {
        return Err(format!("{} takes {} inputs, not {}", kernel.name, kernel.inputs.len(), inputs.len()));
    }
    let (rows, n) = (layout.rows(), layout.n());
    let mut outputs: Vec<Vec<f64>> = Vec::new();
    for (i, (_, access, _)) in kernel.outputs.iter().enumerate() {
        let per_row = kernel.stored(*access, n);
        outputs.push(vec![f64::NAN; layout.extent(inputs.len() + i).max(if rows == 0 { 0 } else { per_row })]);
    }
    let groups = if kernel.sums.is_empty() { 1 } else { layout.groups_of_sums() };
    let mut sums = vec![vec![0.0; groups * n]; kernel.sums.len()];
    for row in 0..rows {
        let mut steps: Vec<Value> = Vec::with_capacity(kernel.steps.len());
        let reduced = |steps: &[Value], (reduction, term): &(Reduction, Term), columns: std::ops::Range<usize>| {
            let values = columns.map(|column| element(program, kernel, inputs, steps, term, layout, (row, column)));
            Ok::<_, String>(fold(*reduction, &values.collect::<Result<Vec<Value>, String>>()?))
        };
        for step in &kernel.steps[..kernel.row_steps()] {
            let value = reduced(&steps, step, 0..n)?;
            steps.push(value);
        }
        // A row without groups is one group, without steps of its own.
        let size = kernel.groups.map_or(n, |g| g.size).max(1);
        for first in (0..n.max(1)).step_by(size) {
            steps.truncate(kernel.row_steps());
            for step in &kernel.steps[kernel.row_steps()..] {
                let value = reduced(&steps, step, first..(first + size).min(n))?;
                steps.push(value);
            }
            for (i, (out, (_, access, term))) in outputs.iter_mut().zip(&kernel.outputs).enumerate() {
                let columns = match access {
                    RowAccess::PerRow => first..usize::from(first == 0),
                    RowAccess::PerGroup => first..(first + 1).min(n),
                    _ => first..(first + size).min(n),
                };
                for column in columns {
                    let value = element(program, kernel, inputs, &steps, term, layout, (row, column))?;
                    let at = layout.index(inputs.len() + i, row, column);
                    *out.get_mut(at).ok_or("an output lies outside of its memory")? = value.to_f64();
                }
            }
        }
        for (sum, (_, term)) in sums.iter_mut().zip(&kernel.sums) {
            let group = row * groups / rows;
            for (column, sum) in sum[group * n..][..n].iter_mut().enumerate() {
                *sum += element(program, kernel, inputs, &steps, term, layout, (row, column))?.to_f64();
            }
        }
    }
    outputs.append(&mut sums);
    Ok(outputs)
}

fn element(
    program: &Program,
    kernel: &RowwiseKernel,
    inputs: &[&[f64]],
    steps: &[Value],
    term: &Term,
    layout: &RowLayout,
    (row, column): (usize, usize),
) -> Result<Value, String> {
    let mut leaves: Vec<Value> = Vec::with_capacity(inputs.len() + steps.len());
    for (i, ((dtype, _), data)) in kernel.inputs.iter().zip(inputs).enumerate() {
        // An unused operand may have no elements.
        let at = match kernel.gathers.iter().find(|g| g.table == i) {
            Some(g) => {
                let place = inputs[g.index].get(layout.index(g.index, row, column)).copied().unwrap_or(f64::NAN);
                let place = if place < 0.0 { place + g.rows as f64 } else { place };
                place as usize * g.width + layout.index(i, row, column)
            }
            None => layout.index(i, row, column),
        };
        let x = data.get(at).copied().unwrap_or(f64::NAN);
        leaves.push(match dtype {
            DType::Bool => Value::B(x != 0.0),
            d if d.is_int() => Value::I(x as i64),
            _ => Value::F(x),
        });
    }
    leaves.extend_from_slice(steps);
    let values = eval(program, term, Leaves { inputs: &leaves, ..Leaves::default() }, Precision::F64);
    let values = values.map_err(|e| e.0)?;
    values.first().copied().ok_or_else(|| "a term has no result".to_string())
}

fn fold(reduction: Reduction, values: &[Value]) -> Value {
    use crate::builtin::BuiltinScalar::{Max, Min};
    use crate::scalar::float;
    let int = |v: &Value| match v {
        Value::I(v) => Some(*v),
        Value::B(v) => Some(i64::from(*v)),
        Value::F(_) => None,
    };
    if let (true, Some(ints)) = (!values.is_empty(), values.iter().map(int).collect::<Option<Vec<i64>>>()) {
        let ints = ints.into_iter();
        return Value::I(match reduction {
            Reduction::Sum | Reduction::Mean => ints.fold(0, i64::wrapping_add),
            Reduction::Max => ints.fold(i64::MIN, i64::max),
            Reduction::Min => ints.fold(i64::MAX, i64::min),
            Reduction::Prod => ints.fold(1, i64::wrapping_mul),
        });
    }
    let values: Vec<f64> = values.iter().map(|v| v.to_f64()).collect();
    Value::F(match reduction {
        // Not `sum()`: the sum of no elements would be -0.
        Reduction::Sum => values.iter().fold(0.0, |a, b| a + b),
        Reduction::Mean => values.iter().sum::<f64>() / values.len() as f64,
        Reduction::Max => values.iter().fold(f64::NEG_INFINITY, |a, b| float(Max, a, *b)),
        Reduction::Min => values.iter().fold(f64::INFINITY, |a, b| float(Min, a, *b)),
        Reduction::Prod => values.iter().product(),
    })
}
