//! The constants of a plan on the device.
//!
//! In: a plan and its launches. Out: the memory of the constants, in the orders in which they are
//! read: as stored, or transposed. Invariant: a constant is uploaded only if a launch reads it or
//! it is a result; a constant that launches read in both orders is stored twice.

use std::sync::Arc;

use super::address::Location;
use super::device::{Gpu, Weight};
use super::kernel::KernelLaunch;
use super::launch::Launch;
use hypatia_plan::{Plan, Storage};
use hypatia_tensor::error::Result;

/// Constants on the device, by their index in the plan.
pub(super) struct Constants {
    /// As stored.
    given: Vec<Option<Arc<Weight>>>,
    /// Transposed.
    transposed: Vec<Option<Arc<Weight>>>,
}

/// Constants in the order as stored, whose upload begins before it is known in which order they are
/// read.
pub(super) struct Prefetch(Vec<Option<Arc<Weight>>>);

impl Prefetch {
    /// Begins to upload the constants that the plan's steps read.
    pub fn upload(gpu: &Gpu, plan: &Plan) -> Result<Prefetch> {
        let mut read = vec![false; plan.constants.len()];
        for view in plan.steps.iter().flat_map(|step| &step.reads) {
            if let Storage::Constant(i) = plan.buffers[view.buffer.index()].storage {
                read[i] = true;
            }
        }
        let weights = plan.constants.iter().zip(read);
        let weights = weights.map(|(tensor, read)| read.then(|| gpu.weight(tensor, false)).transpose());
        Ok(Prefetch(weights.collect::<Result<_>>()?))
    }
}

impl Constants {
    /// Uploads the missing constants and waits for them. Constants in `prefetched` that are not
    /// read are freed.
    pub fn upload<'a>(
        gpu: &Gpu,
        plan: &Plan,
        launches: impl Iterator<Item = &'a Launch>,
        prefetched: Prefetch,
    ) -> Result<Constants> {
        let none = || (0..plan.constants.len()).map(|_| None).collect::<Vec<_>>();
        let mut constants = Constants { given: none(), transposed: none() };
        let mut wanted = vec![[false; 2]; plan.constants.len()];
        let results = plan.outputs.iter().map(|(_, view)| Location::of(plan, view).storage);
        for (place, transposed) in launches.flat_map(reads).chain(results.map(|place| (place, false))) {
            if let Storage::Constant(i) = place {
                wanted[i][usize::from(transposed)] = true;
            }
        }
        let mut prefetched = prefetched.0.into_iter();
        for (i, ([given, transposed], tensor)) in wanted.into_iter().zip(&plan.constants).enumerate() {
            // Kept alive until its transpose exists; then, one by one, freed unless something reads
            // it.
            let _prefetched = prefetched.next().flatten();
            constants.given[i] = given.then(|| gpu.weight(tensor, false)).transpose()?;
            constants.transposed[i] = transposed.then(|| gpu.weight(tensor, true)).transpose()?;
        }
        gpu.uploaded()?;
        Ok(constants)
    }

    /// The addresses of the constants as stored and transposed; 0 if unused.
    pub fn addresses(&self) -> [Vec<u64>; 2] {
        [&self.given, &self.transposed]
            .map(|all| all.iter().map(|w| w.as_ref().map_or(0, |w| w.memory.address())).collect())
    }

    /// A constant as stored, if something reads it in that order.
    pub fn given(&self, index: usize) -> Option<&Weight> {
        self.given.get(index)?.as_deref()
    }
}

/// The locations that a launch refers to, and whether each is read transposed.
fn reads(launch: &Launch) -> Vec<(Storage, bool)> {
    let locations: Vec<Location> = match launch {
        Launch::Kernel(kernel) | Launch::Once(kernel) => kernel.locations().copied().collect(),
        Launch::Checks(checks) => checks.all().flat_map(KernelLaunch::locations).copied().collect(),
        Launch::Zeros(at, _) => vec![*at],
        Launch::Product(p) => {
            let others = [&p.bias, &p.aux].into_iter().flatten().copied();
            let transposed = p.transposed_weight();
            let operands = p.calls.iter().flat_map(|call| call.iter().enumerate());
            let given = operands.filter(|(side, _)| transposed.is_none_or(|o| o.side != *side)).map(|(_, at)| *at);
            let locations: Vec<Location> = given.chain(others).collect();
            let transposed = transposed.map(|other| (Storage::Constant(other.constant), true));
            return locations.into_iter().map(|at| (at.storage, false)).chain(transposed).collect();
        }
    };
    locations.into_iter().map(|at| (at.storage, false)).collect()
}
