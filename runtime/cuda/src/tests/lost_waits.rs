//! Faults planted into the template of Hopper: a wait that is lost, a stage that is given back too
//! early. Sanitizers may miss such hazards of wgmma and of the copy engine, so repeating a product
//! under load and comparing bits must find them.
#![allow(clippy::unwrap_used)]
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::Tiling;
use hypatia_tensor::tensor::Tensor;

use super::tiled::{case, forced, source};
use super::{cases, gpu, planned};
use crate::Executor;
use crate::device::Gpu;
use crate::tuner::Tuner;
use hypatia_target::device::Device;

/// Texts of a source, and what stands there instead.
type Fault = &'static [(&'static str, &'static str)];

/// A product does not wait until a stage is loaded.
const LOST_WAIT: Fault = &[("barrier_wait(full(stage), parity);", "")];
/// A stage is given back that is read two slices later. (One that is given back while it is read
/// shows in no run: the copy engine takes longer to fill it than its multiplication.)
const EARLY_RELEASE: Fault = &[
    ("if (slice != 0) release(before);", "release((stage + 2) % STAGES);"),
    ("fence_sums(sums[i]);\n      release(before);", "fence_sums(sums[i]);"),
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

const FAULTS: [(&str, Fault); 2] = [("lost wait", LOST_WAIT), ("early release", EARLY_RELEASE)];
const RUNS: u64 = 60;
const SHAPE: [usize; 4] = [1, 2048, 2048, 4096];

fn tilings() -> [Tiling; 3] {
    let of = |choices: &[(&str, i64)]| Tiling::named(choices).unwrap();
    let wide = ("tile_n", 256);
    [of(&[wide]), of(&[wide, ("pingpong", 1), ("tile_m", 64)]), of(&[wide, ("cluster_m", 2)])]
}

#[test]
fn faults_can_be_planted() {
    let plan = planned(&Device::named("h200").unwrap(), &case(DType::BF16, SHAPE, [false, true], "silu").0);
    for tiling in tilings() {
        let text = source(&plan, &tiling.words()).unwrap().text;
        for (from, _) in FAULTS.iter().flat_map(|f| f.1) {
            assert_eq!(text.matches(from).count(), 1, "{from} of {tiling:?}");
        }
    }
}

/// Which fault, and of which tiling, a process of its own runs.
const WANTED: &str = "HYPATIA_PLANTED";
/// A fault may keep a product from ending.
const PATIENCE: Duration = Duration::from_secs(60);

/// The results of repeated runs of the product by a tiling.
fn results(gpu: &Arc<Gpu>, tiling: &Tiling) -> Vec<Tensor> {
    let (graph, inputs) = case(DType::BF16, SHAPE, [false, true], "silu");
    let inputs: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
    let plan = planned(&gpu.profile(), &graph);
    let file = forced(gpu, &plan, &tiling.words()).unwrap();
    let mut tuner = Tuner::without_cache(Duration::ZERO).with_file(file);
    let executor = Executor::new(plan, gpu.clone(), &mut tuner).unwrap();
    (0..cases(RUNS)).map(|_| executor.run(&inputs).unwrap().remove(0)).collect()
}

/// Counts the runs with a fault that differ from those without.
#[test]
#[ignore = "a process of its own runs it, since a fault may kill its context"]
fn one_fault_on_a_gpu() {
    let Ok(wanted) = std::env::var(WANTED) else { return };
    let (fault, tiling) = wanted.split_once(' ').unwrap();
    let (fault, tiling) = (FAULTS[fault.parse::<usize>().unwrap()].1, &tilings()[tiling.parse::<usize>().unwrap()]);
    let gpu = gpu(1).unwrap();
    let right = results(&gpu, tiling);
    let planted = Plant::of(fault);
    let wrong = results(&gpu, tiling).iter().filter(|r| r.bytes() != right[0].bytes()).count();
    drop(planted);
    println!("{wrong} runs differ");
    assert!(wrong > 0);
}

/// How a planted fault showed; `None` if it did not.
fn found(fault: usize, tiling: usize) -> Option<String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "tests::lost_waits::one_fault_on_a_gpu", "--nocapture"])
        .env(WANTED, format!("{fault} {tiling}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            return Some("it never ends".into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let line = |what: &str| said.lines().find(|l| l.contains(what)).map(str::to_string);
    let differ = line(" runs differ").filter(|l| !l.starts_with("0 "));
    differ.or_else(|| line("CUDA_ERROR_LAUNCH_FAILED").map(|_| "the launch fails".into()))
}

#[test]
fn lost_waits_and_early_releases_are_found_by_repeating_on_a_gpu() {
    let Some(gpu) = gpu(FAULTS.len() * tilings().len()) else { return };
    if gpu.profile().sm != 90 {
        return eprintln!("SKIPPED: faults of Hopper's template on another GPU");
    }
    for tiling in tilings() {
        let right = results(&gpu, &tiling);
        assert!(right.iter().all(|r| r.bytes() == right[0].bytes()), "{tiling:?}: runs differ");
    }
    for (j, (what, _)) in FAULTS.iter().enumerate() {
        // Whether a stage is filled before it is read depends on how long a tiling multiplies it.
        let mut anywhere = false;
        for (i, tiling) in tilings().iter().enumerate() {
            let how = found(j, i);
            println!("{what}, {tiling:?}: {}", how.as_deref().unwrap_or("not found"));
            anywhere |= how.is_some();
        }
        assert!(anywhere, "{what}: not found in {RUNS} runs of any tiling");
    }
}
