//! The child process of a trial: launches one kernel on memory of its own.
//!
//! In: a folder with a [`Request`]. Out: an [`Answer`] and the outputs, in the same folder.
//! Invariant: each buffer stands between two guards, which the kernel must leave alone, as it must
//! its inputs; it runs twice over differently poisoned outputs, so that what it does not write
//! shows.

use std::path::Path;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, CudaStream, result, sys};
use cudarc::nvrtc::Ptx;

use super::request::{self, Answer, Given, Request, VERSION};
use crate::driver::{failed, started};
use crate::memory::{DeviceMemory, bind};
use hypatia_tensor::error::{Error, Result};

/// Bytes before and after a buffer.
const GUARD: usize = 1 << 16;
/// What the guards contain.
const GUARD_BYTE: u8 = 0xa5;
/// What the outputs contain before each of the runs.
const POISONS: [u8; 2] = [0xff, 0x7e];

/// Runs the trial that a folder describes, and leaves the answer there.
///
/// # Errors
/// If the folder's files cannot be read or written.
pub fn run(folder: &Path) -> Result<()> {
    let answer = match read(folder).and_then(|request| attempt(folder, &request)) {
        Ok(answer) => answer,
        Err(e) => Answer::Unavailable(e.to_string()),
    };
    write_json(&request::answer(folder), &answer)
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_path_buf();
    move |source| Error::Io { path, source }
}

/// Writes a value to a file.
pub(super) fn write_json<T: serde::Serialize>(path: &Path, value: &T) -> Result<()> {
    let text = serde_json::to_vec(value).map_err(|e| Error::Internal(e.to_string()))?;
    std::fs::write(path, text).map_err(io(path))
}

fn read(folder: &Path) -> Result<Request> {
    let path = request::request(folder);
    let text = std::fs::read(&path).map_err(io(&path))?;
    let request: Request =
        serde_json::from_slice(&text).map_err(|e| Error::Input(format!("{}: {e}", path.display())))?;
    match request.version == VERSION {
        true => Ok(request),
        false => Err(Error::Input(format!("the command is version {VERSION}, but {} is asked for", request.version))),
    }
}

/// A buffer between its guards.
struct Guarded {
    memory: DeviceMemory,
    len: usize,
}

impl Guarded {
    fn new(stream: &Arc<CudaStream>, contents: &[u8]) -> Result<Guarded> {
        let memory = DeviceMemory::new(stream, contents.len() + 2 * GUARD)?;
        let guarded = Guarded { memory, len: contents.len() };
        guarded.refill(contents)?;
        Ok(guarded)
    }

    fn refill(&self, contents: &[u8]) -> Result<()> {
        let guard = [GUARD_BYTE; GUARD];
        self.memory.upload(&[&guard, contents, &guard].concat())
    }

    fn address(&self) -> u64 {
        self.memory.address() + GUARD as u64
    }

    /// The contents; `None` if a guard was overwritten.
    fn read(&self) -> Result<Option<Vec<u8>>> {
        let mut all = vec![0; self.len + 2 * GUARD];
        self.memory.download(0, &mut all)?;
        let behind = all.split_off(GUARD + self.len);
        let contents = all.split_off(GUARD);
        let intact = all.iter().chain(&behind).all(|b| *b == GUARD_BYTE);
        Ok(intact.then_some(contents))
    }
}

fn attempt(folder: &Path, request: &Request) -> Result<Answer> {
    started()?;
    let context = CudaContext::new(request.gpu).map_err(|e| failed("opening the GPU", e))?;
    // SAFETY: all work is on one stream.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream().map_err(|e| failed("cuStreamCreate", e))?;
    let code = std::fs::read(request::code(folder)).map_err(io(&request::code(folder)))?;
    let module = match context.load_module(Ptx::from_binary(code)) {
        Ok(module) => module,
        Err(e) => return Ok(Answer::Failed(format!("cannot be loaded: {e}"))),
    };
    let Ok(function) = module.load_function(&request.entry) else {
        return Ok(Answer::Failed(format!("has no entry point `{}`: name it `${{entry}}`", request.entry)));
    };
    let mut given = Vec::new();
    for i in 0..request.inputs.len() {
        let path = request::input(folder, i);
        given.push(std::fs::read(&path).map_err(io(&path))?);
    }
    let inputs: Vec<Guarded> = given.iter().map(|bytes| Guarded::new(&stream, bytes)).collect::<Result<_>>()?;
    let poisoned = |len: &usize| Guarded::new(&stream, &vec![POISONS[0]; *len]);
    let outputs: Vec<Guarded> = request.outputs.iter().map(poisoned).collect::<Result<_>>()?;
    let mut results: Vec<Vec<Vec<u8>>> = Vec::new();
    for poison in POISONS {
        outputs.iter().try_for_each(|o| o.refill(&vec![poison; o.len]))?;
        if let Err(why) = launch(&stream, &function, request, inputs.iter().chain(&outputs)) {
            return Ok(Answer::Failed(why));
        }
        let mut stored = Vec::new();
        for output in &outputs {
            let Some(bytes) = output.read()? else { return Ok(outside()) };
            stored.push(bytes);
        }
        results.push(stored);
        for (input, before) in inputs.iter().zip(&given) {
            match input.read()? {
                None => return Ok(outside()),
                Some(after) if after != *before => return Ok(Answer::Failed("changed an operand".into())),
                Some(_) => {}
            }
        }
    }
    for (i, (first, second)) in results[0].iter().zip(&results[1]).enumerate() {
        let unwritten = first.iter().zip(second).position(|(x, y)| [*x, *y] == POISONS);
        if let Some(at) = unwritten {
            return Ok(Answer::Failed(format!("did not write byte {at} of result {i}")));
        }
        let path = request::output(folder, i);
        std::fs::write(&path, second).map_err(io(&path))?;
    }
    Ok(Answer::Ran)
}

fn outside() -> Answer {
    Answer::Failed("wrote outside of its results".into())
}

/// Launches the kernel and waits for it; the error ends a sentence that begins with the kernel.
fn launch<'a>(
    stream: &Arc<CudaStream>,
    function: &CudaFunction,
    request: &Request,
    buffers: impl Iterator<Item = &'a Guarded>,
) -> std::result::Result<(), String> {
    let bases: Vec<u64> = buffers.map(Guarded::address).collect();
    let mut values: Vec<u64> = Vec::new();
    let mut starts = Vec::new();
    for argument in &request.arguments {
        starts.push(values.len());
        match argument {
            Given::Address(buffer, offset) => values.push(bases.get(*buffer).map_or(0, |b| b + *offset as u64)),
            Given::Integers(list) => values.extend(list.iter().map(|v| *v as u64)),
        }
    }
    if request.shared > 0 {
        let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let set = function.set_attribute(most, request.shared as i32);
        set.map_err(|e| format!("wants more shared memory than the device has: {e}"))?;
    }
    bind(stream).map_err(|e| e.to_string())?;
    let mut pointers: Vec<*mut std::ffi::c_void> = starts.iter().map(|at| (&raw mut values[*at]).cast()).collect();
    let (grid, block) = (request.grid, request.block);
    // SAFETY: the arguments are those that the kernel's source lists, and live until the call
    // returns. What the kernel does with them is what this process is for: it owns nothing else.
    let launched = unsafe {
        result::launch_kernel(
            function.cu_function(),
            grid.into(),
            block.into(),
            request.shared,
            stream.cu_stream(),
            &mut pointers,
        )
    };
    launched.map_err(|e| format!("could not be launched: {e}"))?;
    stream.synchronize().map_err(|e| format!("faulted: {e}"))
}
