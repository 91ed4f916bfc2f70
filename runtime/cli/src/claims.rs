//! Measures what rules with `saves` save in a model, and finds what was measured.
//!
//! In: a model with its options, inputs. Out: for each such rule that its plan uses, the times of
//! the plan with and without it, as a choice of a tuning file. Invariant: both plans run in turn on
//! the same inputs, and medians count; a difference that noise explains is none; only what was
//! measured on this device takes the place of a claim.

use std::collections::BTreeMap;
use std::time::Instant;

use hypatia::internal::host;
use hypatia::session::{Executor, Model, Options};
use hypatia_cuda::tuning::{Choice, Machine, TuningFile};
use hypatia_graph::Graph;
use hypatia_target::device::Device;
use hypatia_tensor::Tensor;
use hypatia_tensor::error::Result;

/// Pairs of runs for one rule, at most and at least, and the seconds after which no further pair
/// begins.
const PAIRS: usize = 200;
const FEWEST_PAIRS: usize = 6;
const SECONDS: f64 = 3.0;
/// Runs of a burst on a GPU.
const BURST: usize = 20;

/// This host as the machine of a measurement.
pub fn host_machine() -> Machine {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let device = format!("cpu {}", host(threads));
    Machine { device, driver: 0, library: 0, hypatia: env!("CARGO_PKG_VERSION").into() }
}

/// What was measured on machines with this profile, in microseconds for each firing of a rule.
pub fn measured(file: &TuningFile, device: &Device) -> BTreeMap<String, f64> {
    let plain = |text: &str| text.chars().filter(|c| c.is_alphanumeric()).collect::<String>().to_lowercase();
    let is_here = |machine: &Machine| match device.is_host() {
        true => *machine == host_machine(),
        false => plain(&machine.device).contains(&plain(device.name)),
    };
    let here = file.choices().filter(|c| is_here(&c.machine));
    here.filter_map(|c| c.saving()).map(|(rule, us)| (rule.to_string(), us)).collect()
}

/// Measures each rule with `saves` that the plan of a model uses. Also says of which rules nothing
/// was learnt.
pub fn measure(
    graph: &Graph,
    options: &Options,
    inputs: &[(String, Tensor)],
    machine: &Machine,
) -> Result<(Vec<Choice>, Vec<String>)> {
    let model = Model::new(graph.clone(), options.clone());
    let with = model.compile(inputs)?;
    let ordered = model.order(inputs)?;
    let (mut choices, mut unclear) = (Vec::new(), Vec::new());
    // Where another plan runs than the one that was asked for, nothing is learnt about the rule.
    let refused =
        |rule: &str| with.refusal.as_ref().is_some_and(|r| r.is_whole() || r.without.iter().any(|w| w == rule));
    for saving in with.report.savings.iter().filter(|s| s.sites > 0 && !refused(&s.rule)) {
        let mut options = options.clone();
        options.optimize.disabled.insert(saving.rule.clone());
        let without = Model::new(graph.clone(), options).compile(inputs)?;
        let times = in_turn([&with.executor, &without.executor], &ordered)?;
        let [us, first_us] = times.each_ref().map(|t| median(t));
        match differ(&times) {
            true => choices.push(Choice::of_saving(machine, &saving.rule, [us, first_us], saving.sites)),
            false => unclear.push(format!(
                "what {} saves is lost in noise ({us:.2} us with it, {first_us:.2} without): its claim stays",
                saving.rule
            )),
        }
    }
    Ok((choices, unclear))
}

/// Whether one plan is the faster one in more pairs than chance explains: two standard deviations
/// of a fair coin.
fn differ([a, b]: &[Vec<f64>; 2]) -> bool {
    let pairs = a.len().min(b.len()) as f64;
    let lead: f64 = a.iter().zip(b).map(|(a, b)| (b - a).total_cmp(&0.0) as i32 as f64).sum();
    lead * lead > 4.0 * pairs
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// The microseconds of each plan's runs, in pairs.
fn in_turn(plans: [&Executor; 2], inputs: &[Tensor]) -> Result<[Vec<f64>; 2]> {
    let [a, b] = plans;
    let mut timers = [a.timer(inputs)?, b.timer(inputs)?];
    let mut times: [Vec<f64>; 2] = Default::default();
    let started = Instant::now();
    // The first pair warms up.
    for pair in 0..=PAIRS {
        for ((plan, timer), times) in plans.iter().zip(&mut timers).zip(&mut times) {
            let us = match timer {
                Some(timer) => timer.replays(BURST)?,
                None => {
                    let begun = Instant::now();
                    plan.run(inputs)?;
                    begun.elapsed().as_secs_f64() * 1e6
                }
            };
            if pair > 0 {
                times.push(us);
            }
        }
        if pair >= FEWEST_PAIRS && started.elapsed().as_secs_f64() > SECONDS {
            break;
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_no_difference() {
        let times = |pairs: &[(f64, f64)]| [pairs.iter().map(|p| p.0).collect(), pairs.iter().map(|p| p.1).collect()];
        assert!(differ(&times(&[(1.0, 2.0); 6])) && differ(&times(&[(2.0, 1.0); 6])));
        // Four of six, and all of four, are chance.
        let mixed = [(1.0, 2.0), (1.0, 2.0), (1.0, 2.0), (1.0, 2.0), (2.0, 1.0), (2.0, 1.0)];
        assert!(!differ(&times(&mixed)) && !differ(&times(&[(1.0, 2.0); 4])) && !differ(&times(&[(1.0, 1.0); 99])));
        // A third of many is not.
        let many: Vec<(f64, f64)> = (0..99).map(|i| if i % 3 == 0 { (2.0, 1.0) } else { (1.0, 2.0) }).collect();
        assert!(differ(&times(&many)));
    }
}
