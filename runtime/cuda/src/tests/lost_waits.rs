//! Faults planted into the template of Hopper: a wait that is lost, a stage that is given back too
//! early. Sanitizers may miss such hazards of wgmma and of the copy engine, so repeating a product
//! under load and comparing bits must find them.
#![allow(clippy::unwrap_used)]
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::Tiling;
use hypatia_tensor::tensor::Tensor;

use super::tiled::{case, forced, source};
use super::{cases, gpu, planned};
use crate::Executor;
use crate::tuner::Tuner;
use hypatia_target::device::Device;

/// Texts of a source, and what stands there instead.
type Fault = &'static [(&'static str, &'static str)];

/// A product does not wait until a stage is loaded.
const LOST_WAIT: Fault = &[("barrier_wait(full(stage), parity);", "")];
/// A stage is given back while it is read.
const EARLY_RELEASE: Fault = &[
    ("multiplied<1>();\n        if (slice != 0) release(before);", "release(stage);"),
    ("multiplied<0>();\n      release(before);", "multiplied<0>();"),
];

/// What is planted at present.
static PLANTED: Mutex<Option<Fault>> = Mutex::new(None);

/// The sources with the present fault.
pub(crate) fn altered(sources: &[String]) -> Vec<String> {
    let fault = PLANTED.lock().unwrap().unwrap_or_default();
    let plant = |s: &String| fault.iter().fold(s.clone(), |text, (from, to)| text.replace(from, to));
    sources.iter().map(plant).collect()
}

/// Plants a fault until it is dropped. One at a time.
struct Plant(#[allow(dead_code)] MutexGuard<'static, ()>);

static ONE: Mutex<()> = Mutex::new(());

impl Plant {
    fn of(fault: Fault) -> Plant {
        let one = ONE.lock().unwrap();
        *PLANTED.lock().unwrap() = Some(fault);
        Plant(one)
    }
}

impl Drop for Plant {
    fn drop(&mut self) {
        *PLANTED.lock().unwrap() = None;
    }
}

const SHAPE: [usize; 4] = [1, 2048, 2048, 4096];

fn tilings() -> [Tiling; 3] {
    let of = |choices: &[(&str, i64)]| Tiling::named(choices).unwrap();
    [of(&[]), of(&[("pingpong", 1), ("tile_m", 64)]), of(&[("cluster_m", 2)])]
}

#[test]
fn faults_can_be_planted() {
    let plan = planned(&Device::named("h200").unwrap(), &case(DType::BF16, SHAPE, [false, true], "silu").0);
    for tiling in tilings() {
        let text = source(&plan, &tiling.words()).unwrap().text;
        for (from, _) in [LOST_WAIT, EARLY_RELEASE].into_iter().flatten() {
            assert_eq!(text.matches(from).count(), 1, "{from} of {tiling:?}");
        }
    }
}

#[test]
fn lost_waits_and_early_releases_are_found_by_repeating_on_a_gpu() {
    let runs = cases(60) as usize;
    let Some(gpu) = gpu(2 * tilings().len()) else { return };
    if gpu.profile().sm != 90 {
        return eprintln!("SKIPPED: faults of Hopper's template on another GPU");
    }
    let (graph, inputs) = case(DType::BF16, SHAPE, [false, true], "silu");
    let inputs: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
    let plan = planned(&gpu.profile(), &graph);
    for tiling in tilings() {
        let file = || forced(&gpu, &plan, &tiling.words()).unwrap();
        let executor = || {
            let mut tuner = Tuner::without_cache(Duration::ZERO).with_file(file());
            Executor::new(plan.clone(), gpu.clone(), &mut tuner).unwrap()
        };
        let results = |e: &Executor| -> Vec<Tensor> { (0..runs).map(|_| e.run(&inputs).unwrap().remove(0)).collect() };
        let right = results(&executor());
        assert!(right.iter().all(|r| r.bytes() == right[0].bytes()), "{tiling:?}: runs differ");
        for (what, fault) in [("lost wait", LOST_WAIT), ("early release", EARLY_RELEASE)] {
            let planted = Plant::of(fault);
            let wrong = results(&executor()).iter().filter(|r| r.bytes() != right[0].bytes()).count();
            drop(planted);
            println!("{what}, {tiling:?}: {wrong} of {runs} runs differ");
            assert!(wrong > 0, "{what}, {tiling:?}: not found in {runs} runs");
        }
    }
}
