//! The Python that makes a suite's models, exports them, and times their peers (peers.py).
//!
//! In: the name of a model. Out: its files in a folder, and the times of its peers. Invariant: a
//! process exports its model without the device, and then waits: only one measures at a time.
//! What Python wrote last says why it failed.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use hypatia_tensor::error::{Error, Result};
use serde_json::Value;

/// Makes, exports and times the models.
const SCRIPT: &str = include_str!("peers.py");
/// What it prints once a model is exported; then it waits for a line.
const EXPORTED: &str = "exported";
/// Where it writes warnings and errors.
const WORDS: &str = "stderr.txt";
/// What it needs.
const NEEDED: &str = "torch, transformers, torchvision, onnx and onnxscript";

/// A Python that has the peers, and the folder where its files lie.
pub(super) struct Python<'a> {
    command: &'a Path,
    script: PathBuf,
    folder: PathBuf,
}

impl Drop for Python<'_> {
    fn drop(&mut self) {
        // What is left in the system's folder for temporary files does no harm.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A new folder for temporary files.
fn own_folder() -> Result<PathBuf> {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    loop {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("hypatia-models-{}-{number}", std::process::id()));
        match std::fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            // Left by a process that was killed, or another user's.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) => return Err(io(&folder)(e)),
        }
    }
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_path_buf();
    move |source| Error::Io { path, source }
}

impl<'a> Python<'a> {
    pub fn new(command: &'a Path) -> Result<Python<'a>> {
        let folder = own_folder()?;
        let script = folder.join("peers.py");
        std::fs::write(&script, SCRIPT).map_err(io(&script))?;
        Ok(Python { command, script, folder })
    }

    /// The names of all models.
    pub fn models(&self) -> Result<Vec<String>> {
        let python = self.command.display();
        let done = Command::new(self.command).arg(&self.script).arg("--list").output();
        let listed = match done {
            Ok(done) if done.status.success() => return Ok(lines(&done.stdout)),
            Ok(done) => last_words(done.status, &done.stderr),
            Err(e) => format!("it cannot be started: {e}"),
        };
        Err(Error::Input(format!(
            "the suite `models` needs a Python with {NEEDED}, and `{python}` is none ({listed}); \
             install them (`pip install`), or name another Python with --python"
        )))
    }

    /// Begins to make and export a model.
    pub fn export(&self, model: &str, device: &str, peers: &[String]) -> Result<Exporting> {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let folder = self.folder.join(model.chars().map(plain).collect::<String>());
        std::fs::create_dir_all(&folder).map_err(io(&folder))?;
        let words = folder.join(WORDS);
        let words = std::fs::File::create(&words).map_err(io(&words))?;
        let mut command = Command::new(self.command);
        command.arg(&self.script).arg(model).arg(&folder).args(["--device", device, "--peers", &peers.join(",")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(words);
        let child = command.spawn().map_err(io(self.command))?;
        Ok(Exporting { child, folder })
    }
}

/// A model that is being exported. Dropped, it ends.
pub(super) struct Exporting {
    child: Child,
    /// The model's files.
    folder: PathBuf,
}

impl Drop for Exporting {
    fn drop(&mut self) {
        // It may have ended by itself; a model may take gigabytes.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Exporting {
    /// Waits until the model is exported, lets its peers be timed, and reads their times.
    pub fn times(&mut self) -> Result<Value> {
        let out = self.child.stdout.take().ok_or_else(|| Error::Internal("Python without an output".into()))?;
        let mut said = BufReader::new(out);
        let mut line = String::new();
        while line.trim() != EXPORTED {
            line.clear();
            if said.read_line(&mut line).unwrap_or(0) == 0 {
                break;
            }
        }
        // Where it ended already, its status says why.
        if let Some(mut stdin) = self.child.stdin.take() {
            let _ = stdin.write_all(b"\n");
        }
        let _ = std::io::copy(&mut said, &mut std::io::sink());
        let status = self.child.wait().map_err(io(&self.folder))?;
        if !status.success() {
            let words = std::fs::read(self.folder.join(WORDS)).unwrap_or_default();
            return Err(Error::Input(format!("PyTorch: {}", last_words(status, &words))));
        }
        let path = self.file("peers.json");
        let text = std::fs::read_to_string(&path).map_err(io(&path))?;
        serde_json::from_str(&text).map_err(|e| Error::Input(format!("{}: {e}", path.display())))
    }

    /// One of the model's files.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

fn lines(text: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(text).lines().map(str::to_string).collect()
}

/// How a process ended, and the last line that it wrote.
fn last_words(status: ExitStatus, stderr: &[u8]) -> String {
    let said = lines(stderr);
    let last = said.iter().rev().map(|l| l.trim()).find(|l| !l.is_empty()).unwrap_or("without a word");
    format!("it ended with {status}: {last}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_python_without_pytorch_is_named() {
        let missing = Path::new("/no/such/python");
        let error = Python::new(missing).unwrap().models().unwrap_err().to_string();
        assert!(error.contains("/no/such/python") && error.contains("--python"), "{error}");
    }

    /// A script in place of Python's: `sh` reads peers.py as its own program and fails.
    #[test]
    fn what_fails_says_why() {
        let shell = Path::new("/bin/sh");
        let python = Python::new(shell).unwrap();
        std::fs::write(&python.script, "echo out of luck >&2; exit 3\n").unwrap();
        let error = python.export("a model", "cpu", &[]).unwrap().times().unwrap_err().to_string();
        assert!(error.contains("out of luck") && error.contains('3'), "{error}");
    }

    #[test]
    fn a_model_waits_until_it_may_measure() {
        let python = Python::new(Path::new("/bin/sh")).unwrap();
        let script = "echo noise; echo exported; read go; echo '{\"us\": {\"eager\": 2}}' > \"$2/peers.json\"\n";
        std::fs::write(&python.script, script).unwrap();
        let mut exporting = python.export("a model", "cpu", &["eager".to_string()]).unwrap();
        assert!(!exporting.file("peers.json").exists());
        assert_eq!(exporting.times().unwrap()["us"]["eager"], 2);
        let folder = exporting.folder.clone();
        drop(exporting);
        assert!(!folder.exists());
    }
}
