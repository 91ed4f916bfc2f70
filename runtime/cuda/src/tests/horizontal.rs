//! Horizontally fused work against the reference: concatenations and paddings with work on their
//! parts and results, independent work of several shapes; ragged rows, axes in another order, cut
//! edges, several results, types of all sizes.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::AttrValue;
use hypatia_graph::{Graph, Value};
use hypatia_plan::Action;
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::{int, list, ty};

use super::emulated::{self, Case};
use super::{agrees, gpu};
use hypatia_eval::{Mode, evaluate};

/// A graph under construction, with the contents of its inputs.
pub(super) struct Made {
    pub graph: Graph,
    pub dtype: DType,
    inputs: Vec<(String, Tensor)>,
}

impl Made {
    pub(super) fn new(dtype: DType) -> Made {
        Made { graph: Graph::new(hypatia_library::load(&[]).unwrap()), dtype, inputs: Vec::new() }
    }

    pub(super) fn input(&mut self, shape: &[usize]) -> Value {
        let (name, count) = (format!("x{}", self.inputs.len()), shape.iter().product::<usize>());
        let values: Vec<f64> = (0..count).map(|i| ((i * 7 + self.inputs.len()) % 23) as f64 - 11.0).collect();
        self.inputs.push((name.clone(), Tensor::from_f64(self.dtype, shape, &values).unwrap()));
        self.graph.input(name, ty(self.dtype, shape))
    }

    pub(super) fn call(&mut self, name: &str, args: &[Value]) -> Value {
        self.graph.call(name, args, &[]).unwrap()[0]
    }

    pub(super) fn builtin(&mut self, op: BuiltinOp, args: &[Value], attrs: Vec<AttrValue>) -> Value {
        self.graph.builtin(op, args, attrs).unwrap()[0]
    }

    fn concat(&mut self, parts: &[Value], axis: i64) -> Value {
        self.builtin(BuiltinOp::Concat, parts, vec![int(axis)])
    }

    fn pad(&mut self, x: Value, before: &[i64], after: &[i64]) -> Value {
        let fill = self.builtin(BuiltinOp::Full, &[], vec![list(&[]), int(3), AttrValue::DType(self.dtype)]);
        let ints = |values: &[i64]| AttrValue::List(values.iter().map(|v| int(*v)).collect());
        self.builtin(BuiltinOp::Pad, &[x, fill], vec![ints(before), ints(after)])
    }

    pub(super) fn case(mut self, what: &str, outputs: &[Value]) -> Case {
        for (i, v) in outputs.iter().enumerate() {
            self.graph.output(format!("y{i}"), *v);
        }
        Case { what: format!("{what} of {}", self.dtype), graph: self.graph, inputs: self.inputs }
    }
}

/// Parts of these shapes with work on each, side by side, then work on all with another operand.
fn around(dtype: DType, shapes: &[&[usize]], axis: i64) -> Case {
    let mut g = Made::new(dtype);
    let parts: Vec<Value> = shapes.iter().map(|shape| g.input(shape)).collect();
    let worked: Vec<Value> = parts.iter().enumerate().map(|(i, v)| g.call(["abs", "neg"][i % 2], &[*v])).collect();
    let whole = g.concat(&worked, axis);
    let mut shape = shapes[0].to_vec();
    shape[axis as usize] = shapes.iter().map(|s| s[axis as usize]).sum();
    let beside = g.input(&shape);
    let row = g.input(&shape[shape.len() - 1..]);
    let sum = g.call("add", &[whole, beside]);
    let y = g.call("max", &[sum, row]);
    g.case(&format!("work around {shapes:?} along {axis}"), &[y])
}

/// A padded image with work on it.
fn padded(dtype: DType, shape: &[usize], before: &[i64], after: &[i64]) -> Case {
    let mut g = Made::new(dtype);
    let x = g.input(shape);
    let x = g.call("abs", &[x]);
    let x = g.pad(x, before, after);
    let y = g.call("neg", &[x]);
    g.case(&format!("{shape:?} with {before:?} before and {after:?} behind"), &[y])
}

impl Made {
    /// Indices into an axis of that size, some from its end.
    pub(super) fn indices(&mut self, dtype: DType, shape: &[usize], size: i64) -> Value {
        let name = format!("i{}", self.inputs.len());
        let count = shape.iter().product::<usize>() as i64;
        let values: Vec<f64> = (0..count).map(|i| ((i * 5 + 1) % (2 * size) - size) as f64).collect();
        self.inputs.push((name.clone(), Tensor::from_f64(dtype, shape, &values).unwrap()));
        self.graph.input(name, ty(dtype, shape))
    }

    pub(super) fn gather(&mut self, table: Value, indices: Value, axis: i64) -> Value {
        self.builtin(BuiltinOp::Gather, &[table, indices], vec![int(axis)])
    }

    fn gather_elements(&mut self, table: Value, indices: Value, axis: i64) -> Value {
        self.builtin(BuiltinOp::GatherElements, &[table, indices], vec![int(axis)])
    }
}

/// Gathers with work in front and behind: one launch each.
fn gathers(dtype: DType) -> Vec<Case> {
    let mut out = Vec::new();
    // Rows of a table at computed indices, with work on them.
    for columns in [64, 7, 1] {
        let mut g = Made::new(dtype);
        let (table, row) = (g.input(&[11, columns]), g.input(&[columns]));
        // With two more, they are within the table's 11 rows.
        let i = g.indices(DType::I64, &[3, 5], 9);
        let two = g.builtin(BuiltinOp::Full, &[], vec![list(&[]), int(2), AttrValue::DType(DType::I64)]);
        let i = g.call("add", &[i, two]);
        let rows = g.gather(table, i, 0);
        let y = g.call("mul", &[rows, row]);
        out.push(g.case(&format!("rows of {columns}"), &[y]));
    }
    // Along an inner axis, in another order.
    let mut g = Made::new(dtype);
    let table = g.input(&[4, 9, 8]);
    let i = g.indices(DType::I32, &[6], 9);
    let y = g.gather(table, i, 1);
    let y = g.call("neg", &[y]);
    let y = g.builtin(BuiltinOp::Transpose, &[y], vec![list(&[1, 2, 0])]);
    out.push(g.case("an inner axis", &[y]));
    // Several tables side by side, whose indices are columns of a matrix.
    let mut g = Made::new(dtype);
    let i = g.indices(DType::I64, &[5, 3], 4);
    let parts: Vec<Value> = (0..3)
        .map(|at| {
            let table = g.input(&[4, 16]);
            let attrs = vec![int(1), int(at), int(at + 1), int(1)];
            let column = g.builtin(BuiltinOp::Slice, &[i], attrs);
            let column = g.builtin(BuiltinOp::Reshape, &[column], vec![list(&[5])]);
            g.gather(table, column, 0)
        })
        .collect();
    let dense = g.input(&[5, 8]);
    let y = g.concat(&[&parts[..], &[dense]].concat(), 1);
    out.push(g.case("tables side by side", &[y]));
    // Single elements, one between two.
    let mut g = Made::new(dtype);
    let (table, part) = (g.input(&[3, 10]), g.input(&[3, 6]));
    let (i, j) = (g.indices(DType::I64, &[3, 6], 10), g.indices(DType::I32, &[3, 6], 10));
    let (a, b) = (g.gather_elements(table, i, 1), g.gather_elements(table, j, 1));
    let difference = g.call("sub", &[b, a]);
    let y = g.call("mul", &[difference, part]);
    let y = g.call("add", &[a, y]);
    out.push(g.case("between elements", &[y]));
    // A table that is an operand, too.
    let mut g = Made::new(dtype);
    let table = g.input(&[1, 16]);
    let i = g.indices(DType::I64, &[5], 1);
    let rows = g.gather(table, i, 0);
    let y = g.call("max", &[rows, table]);
    let y = g.call("neg", &[y]);
    out.push(g.case("a table that is an operand", &[y]));
    // An index that is looked up itself.
    let mut g = Made::new(dtype);
    let table = g.input(&[12, 24]);
    let (map, i) = (g.indices(DType::I64, &[8], 12), g.indices(DType::I64, &[4], 8));
    let i = g.gather(map, i, 0);
    let rows = g.gather(table, i, 0);
    let y = g.call("abs", &[rows]);
    out.push(g.case("an index of an index", &[y]));
    out
}

impl Made {
    fn slice(&mut self, x: Value, [axis, start, stop]: [i64; 3]) -> Value {
        self.builtin(BuiltinOp::Slice, &[x], vec![int(axis), int(start), int(stop), int(1)])
    }

    /// Rotates an axis of that size by so many places.
    fn roll(&mut self, x: Value, axis: i64, by: i64, size: i64) -> Value {
        let (front, back) = (self.slice(x, [axis, 0, by]), self.slice(x, [axis, by, size]));
        self.concat(&[back, front], axis)
    }
}

/// Moves in turn: one launch each.
fn moves(dtype: DType) -> Vec<Case> {
    let mut out = Vec::new();
    // A roll along two axes and a partition into windows; and back, with a sum.
    for [side, window, by, c] in [[6, 3, 1, 8], [8, 4, 2, 3], [4, 2, 2, 1]] {
        let (n, parts) = (2, side / window);
        let sizes = |l: &[i64]| vec![list(&l.iter().map(|n| *n as usize).collect::<Vec<_>>())];
        let mut g = Made::new(dtype);
        let x = g.input(&[n as usize, side as usize, side as usize, c as usize]);
        let x = g.roll(x, 1, by, side);
        let x = g.roll(x, 2, by, side);
        let x = g.builtin(BuiltinOp::Reshape, &[x], sizes(&[n, parts, window, parts, window, c]));
        let y = g.builtin(BuiltinOp::Transpose, &[x], vec![list(&[0, 1, 3, 2, 4, 5])]);
        out.push(g.case(&format!("a roll of {side} by {by}, and windows of {window} by {c}"), &[y]));
        // Rows of whole accesses.
        let c = 16;
        let mut g = Made::new(dtype);
        let shape = [n, parts, parts, window, window, c].map(|n| n as usize);
        let (x, beside) = (g.input(&shape), g.input(&[n as usize, side as usize, side as usize, c as usize]));
        let x = g.builtin(BuiltinOp::Transpose, &[x], vec![list(&[0, 1, 3, 2, 4, 5])]);
        let x = g.builtin(BuiltinOp::Reshape, &[x], sizes(&[n, side, side, c]));
        let x = g.roll(x, 1, by, side);
        let x = g.roll(x, 2, by, side);
        let y = g.call("add", &[x, beside]);
        out.push(g.case(&format!("windows of {window} by {c}, a roll of {side} by {by}, a sum"), &[y]));
    }
    // A part of a padded concatenation beside another operand.
    let mut g = Made::new(dtype);
    let (x, y, z) = (g.input(&[3, 5, 8]), g.input(&[3, 2, 8]), g.input(&[3, 4, 8]));
    let whole = g.concat(&[x, y], 1);
    let whole = g.pad(whole, &[0, 2, 0], &[0, 1, 0]);
    let part = g.slice(whole, [1, 1, 9]);
    let y = g.concat(&[z, part], 1);
    out.push(g.case("a part of a padded concatenation", &[y]));
    out
}

/// Work that slices alone read, and small values that several parts read: one launch each.
fn at_their_readers(dtype: DType) -> Vec<Case> {
    let mut out = Vec::new();
    // Operands that vary along the axis, and one that does not; a part that nobody reads, parts of
    // other sizes, every second element.
    let mut g = Made::new(dtype);
    let (x, row, column) = (g.input(&[6, 24]), g.input(&[24]), g.input(&[6, 1]));
    let (cell, other) = (g.input(&[6, 8]), g.input(&[6, 4]));
    let all = g.call("add", &[x, row]);
    let all = g.call("max", &[all, column]);
    let all = g.call("neg", &[all]);
    let (first, second) = (g.slice(all, [1, 1, 9]), g.slice(all, [1, 12, 16]));
    let third = g.builtin(BuiltinOp::Slice, &[all], vec![int(1), int(16), int(24), int(2)]);
    let a = g.call("add", &[first, cell]);
    let b = g.call("add", &[second, other]);
    let c = g.call("abs", &[third]);
    out.push(g.case("work behind slices", &[a, b, c]));
    let mut g = Made::new(dtype);
    let (x, y, row) = (g.input(&[9, 16]), g.input(&[2, 5, 16]), g.input(&[16]));
    let small = g.call("neg", &[row]);
    let (a, b) = (g.call("max", &[x, small]), g.call("add", &[y, small]));
    out.push(g.case("a small value of two readers", &[a, b]));
    out
}

/// Cases whose work is one launch.
fn single() -> Vec<Case> {
    let mut out: Vec<Case> = [DType::F32, DType::BF16, DType::I32, DType::I8]
        .into_iter()
        .flat_map(|d| gathers(d).into_iter().chain(moves(d)).chain(at_their_readers(d)))
        .collect();
    for dtype in [DType::F32, DType::BF16, DType::I32, DType::I8] {
        out.push(around(dtype, &[&[3, 8], &[3, 16]], 1));
        out.push(around(dtype, &[&[2, 5, 7], &[2, 1, 7], &[2, 3, 7]], 1));
        out.push(around(dtype, &[&[4, 24], &[1, 24]], 0));
        out.push(around(dtype, &[&[1], &[6]], 0));
        out.push(around(dtype, &[&[2, 3, 64], &[2, 3, 40]], 2));
        out.push(padded(dtype, &[2, 3, 7, 9], &[0, 0, 1, 1], &[0, 0, 1, 2]));
        out.push(padded(dtype, &[2, 40], &[0, 8], &[1, 16]));
        out.push(padded(dtype, &[3, 40], &[-1, -3], &[1, 2]));
        out.push(padded(dtype, &[4, 3], &[1, -3], &[0, 2]));
    }
    // Work in front alone, and work behind alone, on operands whose axes lie in another order.
    let mut g = Made::new(DType::F16);
    let [x, y] = [g.input(&[6, 4]), g.input(&[3, 6])];
    let x = g.builtin(BuiltinOp::Transpose, &[x], vec![list(&[1, 0])]);
    let x = g.call("neg", &[x]);
    let whole = g.concat(&[x, y], 0);
    out.push(g.case("work in front", &[whole]));
    let mut g = Made::new(DType::F64);
    let [x, y, z] = [g.input(&[6, 4]), g.input(&[3, 6]), g.input(&[6, 7])];
    let x = g.builtin(BuiltinOp::Transpose, &[x], vec![list(&[1, 0])]);
    let whole = g.concat(&[x, y], 0);
    let z = g.builtin(BuiltinOp::Transpose, &[z], vec![list(&[1, 0])]);
    let sum = g.call("add", &[whole, z]);
    let negative = g.call("neg", &[sum]);
    out.push(g.case("two results of work behind", &[sum, negative]));
    // Independent work: other shapes, other types, the same code twice.
    let mut g = Made::new(DType::BF16);
    let [x, y, z, w] = [g.input(&[5, 64]), g.input(&[33]), g.input(&[7, 3]), g.input(&[128])];
    let [a, b] = [g.call("neg", &[x]), g.call("neg", &[w])];
    let c = g.builtin(BuiltinOp::Cast, &[y], vec![AttrValue::DType(DType::F32)]);
    let d = g.builtin(BuiltinOp::Transpose, &[z], vec![list(&[1, 0])]);
    out.push(g.case("independent work", &[a, b, c, d]));
    // Truth values, and a result that is read again.
    let mut g = Made::new(DType::F32);
    let [x, y] = [g.input(&[9, 5]), g.input(&[2, 5])];
    let [p, q] = [g.call("lt", &[x, x]), g.call("le", &[y, y])];
    let whole = g.concat(&[p, q], 0);
    let y = g.call("not", &[whole]);
    out.push(g.case("truth values", &[y]));
    out
}

/// Empty tables and results are planned like any other.
#[test]
fn what_is_empty_is_planned() {
    let mut cases = Vec::new();
    for elements in [false, true] {
        let mut g = Made::new(DType::F32);
        let (table, i) = (g.input(&[0, 4]), g.indices(DType::I64, if elements { &[2, 4] } else { &[2] }, 1));
        let rows = if elements { g.gather_elements(table, i, 0) } else { g.gather(table, i, 0) };
        let y = g.call("neg", &[rows]);
        cases.push(g.case("an empty table", &[y]));
    }
    let mut g = Made::new(DType::F32);
    let (x, y) = (g.input(&[0, 4]), g.input(&[0, 3]));
    let whole = g.concat(&[x, y], 1);
    let y = g.call("neg", &[whole]);
    cases.push(g.case("an empty concatenation", &[y]));
    let mut g = Made::new(DType::F32);
    let x = g.input(&[0, 4]);
    let whole = g.pad(x, &[0, 1], &[0, 1]);
    let y = g.call("neg", &[whole]);
    cases.push(g.case("an empty padding", &[y]));
    for case in cases {
        // Development builds check plans.
        let plan = super::planned(&hypatia_target::device::Device::named("h200").unwrap(), &case.graph);
        assert!(plan.validate().is_ok(), "{}\n{plan}", case.what);
    }
}

#[test]
fn emulated_horizontal_work_agrees_with_the_reference() {
    let cases = single();
    let results = match emulated::run(&cases) {
        Ok(results) => results,
        Err(why) => return eprintln!("SKIPPED {} emulated cases: {why}", cases.len()),
    };
    for (case, ran) in cases.iter().zip(results) {
        let (plan, made) = ran.unwrap_or_else(|| panic!("{}: no kernel", case.what));
        assert!(matches!(plan.steps[..], [hypatia_plan::Step { action: Action::Horizontal(_), .. }]), "{plan}");
        let want = evaluate(&case.graph, &case.inputs, Mode::Rounded).unwrap();
        // A host runs such a plan, too.
        let inputs: Vec<Tensor> = case.inputs.iter().map(|(_, t)| t.clone()).collect();
        let text = plan.to_string();
        let on_host = hypatia_cpu::Executor::new(Arc::new(plan), 2).unwrap().poisoned().run(&inputs).unwrap();
        for ((made, host), want) in made.iter().zip(&on_host).zip(&want) {
            let want = want.to_tensor().unwrap();
            assert_eq!((made.shape(), made.bytes()), (want.shape(), want.bytes()), "{}\n{text}", case.what);
            assert_eq!(host.bytes(), want.bytes(), "{} on a host\n{text}", case.what);
        }
    }
    println!("{} emulated cases of horizontal work agree", cases.len());
}

#[test]
fn horizontal_work_agrees_with_the_reference_on_a_gpu() {
    let cases = single();
    let Some(gpu) = gpu(cases.len()) else { return };
    for case in cases {
        agrees(&gpu, &case.graph, &case.inputs, &case.what).unwrap();
    }
}
