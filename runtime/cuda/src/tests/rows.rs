//! Row-wise regions against the reference: on a GPU, and emulated without one.
#![allow(clippy::unwrap_used)]

use hypatia_dsl::dtype::DType;
use hypatia_templates::cuda::{self, RowTarget};
use hypatia_templates::instances::Body;

use super::emulated::{self, Case};
use super::{executor, gpu};
use hypatia_eval::{Mode, evaluate};
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::rows::{RowCase, gpu_cases, integer_cases, row_cases, sum_cases};

fn all() -> Vec<RowCase> {
    let floats = [DType::F32, DType::F64, DType::BF16, DType::F16].into_iter().map(row_cases);
    let integers = [DType::I64, DType::I32, DType::I8, DType::U8].into_iter().map(integer_cases);
    floats.chain(integers).flatten().collect()
}

/// Sums over rows, and what else is for GPUs.
fn sums() -> Vec<RowCase> {
    let of = |dtype| sum_cases(dtype).into_iter().chain(gpu_cases(dtype));
    [DType::BF16, DType::F32, DType::F64, DType::F16].into_iter().flat_map(of).collect()
}

fn check(case: &RowCase, got: &[Tensor], plan: &hypatia_plan::Plan) {
    assert_eq!(plan.launches(), case.launches, "{}\n{plan}", case.name);
    let want = evaluate(&case.graph, &case.inputs, Mode::Rounded).unwrap();
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        case.compare(got, &want.to_tensor().unwrap(), &format!("{}, output {i}\n{plan}", case.name));
    }
}

#[test]
fn rows_are_one_launch_and_agree_with_the_reference_on_a_gpu() {
    on_a_gpu(&all(), "rows");
}

#[test]
fn sums_over_rows_agree_with_the_reference_on_a_gpu() {
    on_a_gpu(&sums(), "sums over rows");
}

fn on_a_gpu(cases: &[RowCase], what: &str) {
    let Some(gpu) = gpu(cases.len()) else { return };
    for case in cases {
        let (plan, executor) = executor(&gpu, &case.graph, true).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let inputs: Vec<Tensor> = case.inputs.iter().map(|(_, t)| t.clone()).collect();
        for _ in 0..2 {
            check(case, &executor.run(&inputs).unwrap_or_else(|e| panic!("{}: {e}", case.name)), &plan);
        }
    }
    println!("{} cases of {what} agree", cases.len());
}

/// Compilation is slow, so only every third case runs; neighbours differ in what they compute. All
/// rows that several warps share run, and all sums over rows in one type.
#[test]
fn emulated_rows_are_one_launch_and_agree_with_the_reference() {
    let adjacent = |c: &RowCase| c.name.contains("side by side");
    let some = all().into_iter().enumerate().filter(|(i, c)| i % 3 == 0 || adjacent(c)).map(|(_, c)| c);
    let cases: Vec<RowCase> = some.chain(sum_cases(DType::BF16)).chain(gpu_cases(DType::BF16)).collect();
    let list: Vec<Case> =
        cases.iter().map(|c| Case { what: c.name.clone(), graph: c.graph.clone(), inputs: c.inputs.clone() }).collect();
    let results = match emulated::run(&list) {
        Ok(results) => results,
        Err(why) => return eprintln!("SKIPPED {} emulated cases of rows: {why}", list.len()),
    };
    for (case, result) in cases.iter().zip(results) {
        let (plan, got) = result.unwrap_or_else(|| panic!("{} has a step without a kernel", case.name));
        check(case, &got, &plan);
    }
    println!("{} emulated cases of rows agree", list.len());
}

/// The meaning of a GPU plan with sums over rows, as the CPU runs it.
#[test]
fn sums_over_rows_mean_the_same_on_the_cpu() {
    let device = hypatia_target::device::Device::named("h200").unwrap();
    for case in sums() {
        let plan = super::planned(&device, &case.graph);
        let executor = hypatia_cpu::Executor::new(plan.clone(), 2).unwrap().poisoned();
        let inputs: Vec<Tensor> = case.inputs.iter().map(|(_, t)| t.clone()).collect();
        check(&case, &executor.run(&inputs).unwrap(), &plan);
    }
}

/// Rows of groups compile for each way to share a row: lanes, warps, blocks, clusters, groups that
/// lanes hold at once and not.
#[test]
fn rows_of_groups_compile() {
    let Some(compiler) = super::compiler() else { return };
    let device = hypatia_target::device::Device::named("h200").unwrap();
    for sizes in [[4096, 2, 32], [4096, 8, 128], [4096, 32, 128], [200, 128, 128], [64, 512, 128], [99, 40, 96]] {
        let case = hypatia_testing::rows::quantised_groups(DType::BF16, sizes);
        let plan = super::planned(&device, &case.graph);
        assert_eq!(plan.launches(), 1, "{sizes:?}\n{plan}");
        let (body, work) = crate::lowering::step_kernels(&plan.steps[0]).remove(0);
        let Body::Rowwise(kernel) = &body else { panic!("{body:?}") };
        let target = RowTarget::Length { rows: work.rows as u64, n: work.n as u64, clusters: true };
        for source in [cuda::rowwise_for(&plan.program, kernel, target).unwrap(), body.emit(&plan.program).unwrap()] {
            if let Ok(folder) = std::env::var("HYPATIA_SOURCES") {
                std::fs::write(format!("{folder}/rows_{}_{}.cu", work.n, source.entries.len()), &source.text).unwrap();
            }
            compiler.compile(&source.text, "k.cu", "sm_90").unwrap();
        }
    }
}

/// Times of a residual, a norm and the quantisation of its groups: a measurement, not a test.
#[test]
#[ignore = "a measurement"]
fn groups_of_rows_are_timed_on_a_gpu() {
    let Some(gpu) = gpu(1) else { return };
    for [rows, groups, size] in [[16384, 8, 128], [4096, 32, 128], [2048, 128, 128], [4096, 64, 64], [4096, 40, 96]] {
        let case = hypatia_testing::rows::quantised_groups(DType::BF16, [rows, groups, size]);
        let device = hypatia_target::device::Device::named("h200").unwrap();
        let plan = super::planned(&device, &case.graph);
        let mut tuner = crate::tuner::Tuner::without_cache(std::time::Duration::ZERO);
        let (launches, _) = crate::steps::prepare(&gpu, &plan, &mut tuner).unwrap();
        let mut variants = [launches.into_iter().map(|(_, launch)| launch).collect()];
        let times = crate::fallback::time(&gpu, &plan, &plan.steps[0], &mut variants).unwrap();
        let n = groups * size;
        let bytes = rows * n * (2 + 2 + 2 + 1) + rows * groups * 2;
        println!("{rows} rows of {groups} groups of {size}: {} launches, {bytes} bytes, {times:?} us", plan.launches());
    }
}
