//! Trials: the first run of a kernel from a user's template, in a child process.
//!
//! In: a launch, and the launches that it may replace. Out: whether it computes the same. A CUDA
//! fault ends the context of the process that meets it, and a kernel that hangs holds it for ever;
//! so a kernel that nobody here wrote runs first where it can harm nothing. Invariant: a kernel
//! that faults, hangs, writes what it should not, or is wrong is quarantined by name.

pub mod child;
mod command;
mod request;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hypatia_cache::{Key, KeyMaker};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Kernel;
use hypatia_templates::cuda::CudaSource;
use hypatia_tensor::compare::{Comparison, Tolerance};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::tensor::Tensor;

use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

use crate::address::Location;
use crate::cubin;
use crate::device::Gpu;
use crate::driver::failed;
use crate::fallback::Scratch;
use crate::kernel::{Argument, KernelLaunch};
use crate::launch::Launch;
use crate::quarantine::Trials;
use hypatia_plan::{CallStep, Plan, Step, View};
use request::{Answer, Given, Request, VERSION};

/// How long a child may take, its start included.
const LIMIT: Duration = Duration::from_secs(20);

/// What a trial found.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// It computes what its fallback does.
    Passed,
    /// It did this, as the end of a sentence.
    Failed(String),
    /// It could not be tried.
    Unavailable(String),
}

/// Whether a launch of a template's kernel may be used: it passed its trial, now or earlier.
pub(crate) fn passes(
    gpu: &Arc<Gpu>,
    plan: &Plan,
    (step, call, kernel): (&Step, &CallStep, &Kernel),
    (source, launch): (&CudaSource, &Launch),
    fallback: &mut [Launch],
    trials: &mut Trials,
) -> Result<bool> {
    let (Launch::Kernel(launch), [entry, ..]) = (launch, source.entries.as_slice()) else { return Ok(false) };
    let code = cubin::code(gpu, &source.text)?;
    let key = key(gpu, plan, step, launch, &code);
    if trials.has_passed(&key) {
        return Ok(true);
    }
    let outcome = attempt(gpu, plan, (step, call), (&entry.name, launch, &code), fallback)?;
    match outcome {
        Outcome::Passed => trials.pass(key),
        Outcome::Failed(ref why) => trials.fail(kernel, gpu.name(), why.clone()),
        Outcome::Unavailable(ref why) => trials.disable(why.clone()),
    }
    Ok(outcome == Outcome::Passed)
}

/// The name of a launch in the cache.
fn key(gpu: &Gpu, plan: &Plan, step: &Step, launch: &KernelLaunch, code: &[u8]) -> Key {
    let views = step.reads.iter().chain(&step.writes);
    let sizes: Vec<_> = views.map(|v| (&v.shape, &v.strides, v.offset, plan.buffers[v.buffer.index()].len)).collect();
    let made = KeyMaker::default().part("trial").part(code).part(gpu.name()).part(gpu.driver().to_le_bytes());
    made.debug(&launch.shape()).debug(&sizes).key()
}

/// Tries a launch of a step beside the launches of its fallback.
fn attempt(
    gpu: &Arc<Gpu>,
    plan: &Plan,
    (step, call): (&Step, &CallStep),
    (entry, launch, code): (&str, &KernelLaunch, &[u8]),
    fallback: &mut [Launch],
) -> Result<Outcome> {
    let command = match command::find() {
        Ok(command) => command,
        Err(why) => return Ok(Outcome::Unavailable(why)),
    };
    let stream = gpu.context().new_stream().map_err(|e| failed("cuStreamCreate", e))?;
    let Some(mut scratch) = Scratch::of(&stream, plan, step)? else {
        return Ok(Outcome::Unavailable(format!("the operands of step `{}` are too large for a trial", step.name)));
    };
    let (reads, writes) = (&step.reads[..call.reads], &step.writes[..call.writes]);
    let given = contents(plan, call, reads);
    reads.iter().zip(&given).try_for_each(|(v, bytes)| scratch.write(plan, v, bytes))?;
    let given: Vec<Vec<u8>> = reads.iter().map(|v| scratch.read(plan, v)).collect::<Result<_>>()?;
    scratch.run(gpu, fallback)?;
    let wanted: Vec<Vec<u8>> = writes.iter().map(|v| scratch.read(plan, v)).collect::<Result<_>>()?;
    drop(scratch);
    let folder = tempfolder()?;
    describe(&folder.0, gpu, plan, (reads, writes), (entry, launch, code), &given)?;
    match run(&command, &folder.0)? {
        Answer::Failed(why) => Ok(Outcome::Failed(why)),
        Answer::Unavailable(why) => Ok(Outcome::Unavailable(why)),
        Answer::Ran => compare(&folder.0, writes, &wanted),
    }
}

/// Numbers for what a step reads, whole buffers: N(0, 1), and integers of 0 and 1, which index
/// anything. The left factor of a product is scaled so that its sums are N(0, 1) too: the rounding
/// of larger ones would say more about the fallback than about the kernel.
fn contents(plan: &Plan, call: &CallStep, reads: &[View]) -> Vec<Vec<u8>> {
    let of = |(i, view): (usize, &View)| {
        let (dtype, len) = (view.dtype, plan.buffers[view.buffer.index()].len);
        let scale = match call.product() {
            Some(g) if i == 0 => 1.0 / (g.k.max(1) as f64).sqrt(),
            _ => 1.0,
        };
        let mut rng = ChaCha8Rng::seed_from_u64(i as u64);
        let mut normal = || ((0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0) * scale;
        let few: Vec<f64> = (0..len.min(MOST)).map(|_| if dtype.is_float() { normal() } else { 0.0 }).collect();
        let integer = |i: usize| ((i * 7919) % 13 % 2) as f64;
        let value = |i: usize| if dtype.is_float() { few[i % few.len()] } else { integer(i) };
        let values: Vec<f64> = (0..len).map(value).collect();
        Tensor::from_f64(dtype, &[len], &values).map_or_else(Vec::new, |t| t.bytes().to_vec())
    };
    reads.iter().enumerate().map(of).collect()
}

/// Distinct random numbers of a buffer: a prime, so that rows differ.
const MOST: usize = 65_537;

/// A folder that is removed again.
struct Folder(std::path::PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is left to the system, which clears its folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A new folder that only the user can enter.
fn tempfolder() -> Result<Folder> {
    use std::os::unix::fs::DirBuilderExt;
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("hypatia-trial-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    // A leftover of another process with that number.
    let _ = std::fs::remove_dir_all(&path);
    let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
    made.map(|()| Folder(path.clone())).map_err(|source| Error::Io { path, source })
}

/// Writes the request.
fn describe(
    folder: &Path,
    gpu: &Gpu,
    plan: &Plan,
    (reads, writes): (&[View], &[View]),
    (entry, launch, code): (&str, &KernelLaunch, &[u8]),
    given: &[Vec<u8>],
) -> Result<()> {
    let (grid, block, shared) = launch.shape();
    let views: Vec<&View> = reads.iter().chain(writes).collect();
    let argument = |a: &Argument| match a {
        Argument::Address(at) => {
            let found = views.iter().position(|v| Location::of(plan, v) == *at);
            let at = found.ok_or_else(|| Error::Internal("an argument that is no operand".into()))?;
            Ok(Given::Address(at, views[at].offset * views[at].dtype.size()))
        }
        Argument::Size(v) => Ok(Given::Integers(vec![*v])),
        Argument::Sizes(list) => Ok(Given::Integers(list.clone())),
        Argument::Own(_) | Argument::Workspace(_) | Argument::Sums(_) | Argument::Report(_) | Argument::Map { .. } => {
            Err(Error::Internal("an argument that no template has".into()))
        }
    };
    let bytes = |v: &View| plan.buffers[v.buffer.index()].len * v.dtype.size();
    let request = Request {
        version: VERSION.to_string(),
        gpu: gpu.ordinal(),
        entry: entry.to_string(),
        grid,
        block,
        shared,
        arguments: launch.arguments().iter().map(argument).collect::<Result<_>>()?,
        inputs: reads.iter().map(bytes).collect(),
        outputs: writes.iter().map(bytes).collect(),
    };
    let put = |path: std::path::PathBuf, bytes: &[u8]| {
        std::fs::write(&path, bytes).map_err(|source| Error::Io { path, source })
    };
    put(request::code(folder), code)?;
    given.iter().enumerate().try_for_each(|(i, bytes)| put(request::input(folder, i), bytes))?;
    child::write_json(&request::request(folder), &request)
}

/// Runs the child and waits for it.
fn run(command: &Path, folder: &Path) -> Result<Answer> {
    let mut child = Command::new(command);
    child.arg("try-kernel").arg(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let spawned = child.spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(e) => return Ok(Answer::Unavailable(format!("{} cannot be started: {e}", command.display()))),
    };
    let end = Instant::now() + LIMIT;
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) | Err(_) => break None,
        }
    };
    let Some(status) = ended else {
        let _ = child.kill();
        let _ = child.wait();
        return Ok(Answer::Failed(format!("did not end within {} s", LIMIT.as_secs())));
    };
    let answer = std::fs::read(request::answer(folder)).ok().and_then(|text| serde_json::from_slice(&text).ok());
    Ok(answer.unwrap_or_else(|| match status.success() {
        true => Answer::Unavailable(format!("{} gave no answer", command.display())),
        false => Answer::Failed(format!("ended its process: {status}")),
    }))
}

/// Compares what the child's kernel stored with what the fallback did.
fn compare(folder: &Path, writes: &[View], wanted: &[Vec<u8>]) -> Result<Outcome> {
    for (i, (view, wanted)) in writes.iter().zip(wanted).enumerate() {
        let path = request::output(folder, i);
        let stored = std::fs::read(&path).map_err(|source| Error::Io { path, source })?;
        let tensor = |bytes: &[u8]| Tensor::from_bytes(view.dtype, &[view.len()], bytes);
        let (Some(got), Some(want)) = (tensor(&stored), tensor(wanted)) else {
            return Ok(Outcome::Failed(format!("stored no {} in result {i}", view.dtype)));
        };
        let compared = Comparison::of(&got, &want, Tolerance::of(view.dtype, 1))?;
        if !compared.ok {
            let (at, values) = (compared.worst, [got.to_f64(), want.to_f64()].map(|v| v[compared.worst]));
            let [got, want] = values;
            let what = if view.dtype == DType::Bool { "a truth value" } else { "a number" };
            return Ok(Outcome::Failed(format!(
                "stored {what} that is wrong: element {at} of result {i} is {got:?}, but its fallback gives {want:?}"
            )));
        }
    }
    Ok(Outcome::Passed)
}
