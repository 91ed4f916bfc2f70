//! What a trial's child process is told, and what it answers.
//!
//! In: a folder. Out: the request and the answer as files in it. Invariant: both sides read only
//! files of that folder; sizes are checked before memory is taken.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The version that both sides must have.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// One launch of one kernel.
#[derive(Serialize, Deserialize)]
pub struct Request {
    /// [`VERSION`] of the side that asks.
    pub version: String,
    /// The GPU's ordinal.
    pub gpu: usize,
    /// The entry point.
    pub entry: String,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// The arguments in order.
    pub arguments: Vec<Given>,
    /// Buffers that the kernel reads: their contents are in [`input`].
    pub inputs: Vec<usize>,
    /// Buffers that the kernel writes: their bytes go to [`output`].
    pub outputs: Vec<usize>,
}

/// An argument.
#[derive(Serialize, Deserialize)]
pub enum Given {
    /// A byte of a buffer: the inputs' indices come first, then the outputs'.
    Address(usize, usize),
    /// Integers by value.
    Integers(Vec<i64>),
}

/// What happened.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
pub enum Answer {
    /// It ran; the outputs are in their files.
    Ran,
    /// The kernel did this, as the end of a sentence.
    Failed(String),
    /// The trial itself was not possible.
    Unavailable(String),
}

/// The file of the machine code.
pub fn code(folder: &Path) -> PathBuf {
    folder.join("kernel.cubin")
}

/// The file of the request.
pub fn request(folder: &Path) -> PathBuf {
    folder.join("request.json")
}

/// The file of the answer.
pub fn answer(folder: &Path) -> PathBuf {
    folder.join("answer.json")
}

/// The contents of an input.
pub fn input(folder: &Path, at: usize) -> PathBuf {
    folder.join(format!("input{at}.bin"))
}

/// The bytes of an output.
pub fn output(folder: &Path, at: usize) -> PathBuf {
    folder.join(format!("output{at}.bin"))
}
