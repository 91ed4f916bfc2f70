//! Row-wise regions on the CPU: one launch each, and the results of the reference.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use hypatia_dsl::dtype::DType;

use super::Executor;
use hypatia_eval::{Mode, evaluate};
use hypatia_pipeline as pipeline;
use hypatia_plan::Options;
use hypatia_target::device::Device;
use hypatia_tensor::tensor::Tensor;
use hypatia_testing::rows::{integer_cases, row_cases};

#[test]
fn rows_are_one_launch_and_agree_with_the_reference() {
    let floats = [DType::F32, DType::F64, DType::BF16, DType::F16].into_iter().map(row_cases);
    let integers = [DType::I64, DType::I32, DType::I8, DType::U8].into_iter().map(integer_cases);
    for cases in floats.chain(integers) {
        for case in cases {
            let want = evaluate(&case.graph, &case.inputs, Mode::Rounded).unwrap();
            let plan = Arc::new(pipeline::plan(&case.graph, &Options::new(Device::cpu())).unwrap());
            assert_eq!(plan.launches(), case.launches, "{}\n{plan}", case.name);
            let inputs: Vec<Tensor> = case.inputs.iter().map(|(_, t)| t.clone()).collect();
            for threads in [1, 3] {
                let got = Executor::new(plan.clone(), threads).unwrap().poisoned().run(&inputs).unwrap();
                for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                    let what = format!("{}, output {i}, {threads} threads\n{plan}", case.name);
                    case.compare(got, &want.to_tensor().unwrap(), &what);
                }
            }
        }
    }
}
