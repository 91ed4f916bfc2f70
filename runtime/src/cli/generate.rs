//! `hypatia gen`: CUDA kernels, machine code and Rust from `.hyp` files or a model.

use std::path::PathBuf;
use std::sync::Arc;

use anstream::{eprintln, println};
use clap::{Args, ValueEnum};
use hypatia::cuda::nvrtc::Nvrtc;
use hypatia::error::{Error, Result};
use hypatia::generate::{Request, Scope, of_program, write};
use hypatia::library;
use hypatia_dsl::dtype::DType;

use super::{Exit, Global};

/// Generate CUDA kernels, machine code or Rust.
///
/// Writes one CUDA C++ file for each kernel and element type, machine code for each architecture where
/// NVRTC is installed (no GPU is needed), and manifest.json, which tells how each is called. Of a .hyp
/// file this is every `kernel` it declares and a pointwise kernel for every `scalar` it defines.
#[derive(Args)]
pub struct Gen {
    /// The .hyp files; the standard library where none is given.
    files: Vec<PathBuf>,
    /// The folder to write to; it is made if it is not there.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Element types.
    #[arg(long, value_delimiter = ',', default_value = "f32,f16,bf16", value_parser = dtype)]
    dtype: Vec<DType>,
    /// GPU architectures to compile for.
    #[arg(long, value_delimiter = ',', default_value = "sm_90a,sm_80", value_parser = arch)]
    arch: Vec<String>,
    /// What to write; without this, CUDA, and machine code where NVRTC is installed.
    #[arg(long, value_delimiter = ',', value_enum)]
    emit: Vec<Emit>,
}

/// What to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Emit {
    /// CUDA C++ sources.
    Cuda,
    /// Machine code; an error if NVRTC is not installed.
    Cubin,
}

fn dtype(text: &str) -> Result<DType, String> {
    let known: Vec<&str> = DType::ALL.iter().map(|d| d.name()).collect();
    DType::from_name(text).ok_or_else(|| format!("expected one of {}", known.join(", ")))
}

fn arch(text: &str) -> Result<String, String> {
    let digits = text.strip_prefix("sm_").map(|t| t.trim_end_matches(['a', 'f']));
    match digits {
        Some(d) if (2..=3).contains(&d.len()) && d.bytes().all(|b| b.is_ascii_digit()) => Ok(text.into()),
        _ => Err("expected an architecture such as sm_80 or sm_90a".into()),
    }
}

impl Gen {
    /// Runs the command.
    pub fn run(&self, global: &Global) -> Result<Exit> {
        let program = library::load(&self.files)?;
        let scope = match self.files.is_empty() {
            true => Scope::All,
            false => Scope::Files(self.files.iter().map(|f| f.display().to_string()).collect()),
        };
        let mut dtypes = self.dtype.clone();
        dtypes.dedup();
        let (instances, skipped) = of_program(&program, &scope, &dtypes);
        let nvrtc = self.compiler(global)?;
        let say = !global.quiet;
        let progress = move |done: usize, all: usize| {
            if say && (done.is_multiple_of(25) || done == all) {
                eprintln!("compiled {done} of {all}");
            }
        };
        let request = Request {
            program: &program,
            instances: &instances,
            skipped,
            cuda: self.emit.is_empty() || self.emit.contains(&Emit::Cuda),
            cubins: nvrtc.as_ref().map(|n| (&**n, &self.arch[..])),
            more: Vec::new(),
            progress: &progress,
        };
        let written = write(request, &self.output)?;
        for file in &written.files {
            println!("{}", file.display());
        }
        if say {
            for s in &written.manifest.skipped {
                let dtype = s.dtype.as_deref().map_or(String::new(), |d| format!(" for {d}"));
                eprintln!("note: no kernel of `{}`{dtype}: {}", s.kernel, s.reason);
            }
            if written.manifest.kernels.is_empty() {
                eprintln!("note: nothing in these files asks for a kernel: declare a `kernel` or a `scalar`");
            }
        }
        Ok(Exit::Ok)
    }

    /// NVRTC, if machine code is wanted; an error only if it was asked for by name.
    fn compiler(&self, global: &Global) -> Result<Option<Arc<Nvrtc>>> {
        if !self.emit.is_empty() && !self.emit.contains(&Emit::Cubin) {
            return Ok(None);
        }
        match Nvrtc::get() {
            Ok(n) => Ok(Some(n)),
            Err(e) if self.emit.contains(&Emit::Cubin) => Err(Error::from(e)),
            Err(_) => {
                if !global.quiet {
                    eprintln!(
                        "note: NVRTC is not installed: CUDA sources only (`hypatia doctor` tells where it was looked for)"
                    );
                }
                Ok(None)
            }
        }
    }
}
