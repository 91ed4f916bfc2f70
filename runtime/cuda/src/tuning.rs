//! Tuning files: choices that were measured on a device, as text that can be committed.
//!
//! In: lines of a tuning file, or choices. Out: choices, or lines. Invariant: one line per choice,
//! in sorted order, so that two files differ only where their choices differ; reading gives back
//! what was written; a modified line (its checksum differs) is an error that names the line and
//! states what was expected. A choice applies only to the [`Machine`] that it was measured on.
//! Nothing here needs a device.
//!
//! ```text
//! NVIDIA H200 (sm_90) | driver 13000 | cuBLASLt 130100 | Hypatia 0.1.0 | 64x64x64 ...
//!   | algorithm 1 0 ... | workspace 0 | 2.31 us | first 2.5 us | of 32 | sum 1a2b3c4d
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use hypatia_dsl::source::open_regular;
use sha2::{Digest, Sha256};

use hypatia_cache::{Key, KeyMaker};
use hypatia_tensor::error::{Error, Result};
use hypatia_tensor::file;

/// Prefix of the choice for a transposed weight. It also marks a product that reads one.
pub const PACKED: &str = "packed";
/// Prefix of what a rule with `saves` was measured to save.
const SAVES: &str = "saves ";
/// The name of the tuning file beside a model.
pub const BESIDE: &str = "hypatia.tune";
/// First line of a file.
const TITLE: &str = "# Hypatia tuning file, version 1";
const ABOUT: &str = "\
# Written by `hypatia tune`: do not edit it. One file may hold choices for several devices and versions.
# device | driver | library | Hypatia | product | algorithm | workspace | median | library's first guess \
| candidates | sum
";
/// The separator of a line's fields.
const BAR: &str = " | ";
/// Upper bound for the size of a tuning file, in bytes.
const LARGEST: u64 = 64 << 20;

/// A device and the versions of its software.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Machine {
    /// The device's name and architecture.
    pub device: String,
    /// CUDA version of the driver: 13000 is 13.0.
    pub driver: i32,
    /// Version of cuBLASLt: 130100 is 13.1.0.
    pub library: usize,
    /// Version of Hypatia.
    pub hypatia: String,
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = plain(&self.device);
        write!(f, "{device} | driver {} | cuBLASLt {} | Hypatia {}", self.driver, self.library, plain(&self.hypatia))
    }
}

/// Text that is valid as a field: no bar, no line break, no leading or trailing space.
fn plain(text: &str) -> String {
    let text: String = text.chars().map(|c| if c == '|' || c.is_control() { '/' } else { c }).collect();
    text.trim().to_string()
}

/// The chosen algorithm of a product.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The machine of the measurement.
    pub machine: Machine,
    /// The product.
    pub problem: String,
    /// The library's configuration of the algorithm.
    pub algorithm: [u64; 8],
    /// Bytes of workspace.
    pub workspace: usize,
    /// Median time in microseconds; `None` if it is an unmeasured guess of the library.
    pub us: Option<f64>,
    /// Time of the baseline in microseconds: see [`Choice::first`].
    pub first_us: Option<f64>,
    /// Number of candidates.
    pub candidates: usize,
}

impl Choice {
    /// The baseline as text: the library's first guess; or, if the choice is for the transposed
    /// weight, the product over the weight as stored, timed in the same race.
    pub fn first(&self) -> &'static str {
        if self.problem.starts_with(PACKED) { "as stored" } else { "first guess" }
    }

    /// What a rule with `saves` saves in a model: the times of the plans with and without it, and
    /// how often it fired.
    pub fn of_saving(machine: &Machine, rule: &str, [with, without]: [f64; 2], sites: usize) -> Choice {
        Choice {
            machine: machine.clone(),
            problem: format!("{SAVES}{rule}"),
            algorithm: [0; 8],
            workspace: 0,
            us: Some(with),
            first_us: Some(without),
            candidates: sites,
        }
    }

    /// The rule, and the microseconds that it saves for each firing, which may be negative; `None`
    /// if this is the choice of an algorithm.
    pub fn saving(&self) -> Option<(&str, f64)> {
        let rule = self.problem.strip_prefix(SAVES)?;
        let (with, without) = self.us.zip(self.first_us)?;
        Some((rule, (without - with) / self.candidates.max(1) as f64))
    }

    /// The tiling that was chosen, by its tuning parameters; `None` if it is none of ours.
    pub fn tiling(&self) -> Option<String> {
        let values = hypatia_dsl::kernel::parameters(&self.algorithm)?;
        Some(values.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", "))
    }

    /// Its cache key.
    pub fn key(machine: &Machine, problem: &str) -> Key {
        KeyMaker::default().part("choice 1").part(machine.to_string()).part(plain(problem)).key()
    }

    /// A line without its line break.
    pub fn to_line(&self) -> String {
        let words: Vec<String> = self.algorithm.iter().map(|w| format!("{w:x}")).collect();
        let time = |us: Option<f64>| us.map_or("not timed".to_string(), |us| format!("{us} us"));
        let text = format!(
            "{} | {} | algorithm {} | workspace {} | {} | first {} | of {}",
            self.machine,
            plain(&self.problem),
            words.join(" "),
            self.workspace,
            time(self.us),
            time(self.first_us),
            self.candidates
        );
        format!("{text} | sum {}", sum(&text))
    }

    /// Parses a line; the error states what was expected.
    pub fn from_line(line: &str) -> Result<Choice, String> {
        let fields: Vec<&str> = line.split(BAR).collect();
        let [device, driver, library, hypatia, problem, algorithm, workspace, us, first, of, given] = fields[..] else {
            let merge = ["<<<<<<<", "=======", ">>>>>>>"].iter().any(|m| line.starts_with(m));
            let hint = if merge { ": a merge that was not finished" } else { "" };
            return Err(format!("expected a choice, 11 fields with ` | ` between them, found {}{hint}", fields.len()));
        };
        let text = line.rsplit_once(BAR).map_or(line, |(text, _)| text);
        let choice = Choice {
            machine: Machine {
                device: named(device, "", "the device's name")?,
                driver: named(driver, "driver ", "the driver's version, such as `driver 13000`")?,
                library: named(library, "cuBLASLt ", "the library's version, such as `cuBLASLt 130100`")?,
                hypatia: named(hypatia, "Hypatia ", "the version of Hypatia, such as `Hypatia 0.1.0`")?,
            },
            problem: named(problem, "", "the product")?,
            algorithm: words(algorithm)?,
            workspace: named(workspace, "workspace ", "bytes of workspace, such as `workspace 0`")?,
            us: micros(us, "")?,
            first_us: micros(first, "first ")?,
            candidates: named(of, "of ", "the number of candidates, such as `of 32`")?,
        };
        if given.strip_prefix("sum ") != Some(sum(text).as_str()) {
            return Err(
                "the line was changed: its checksum does not match; restore the line that `hypatia tune` wrote, or \
                        remove it"
                    .into(),
            );
        }
        Ok(choice)
    }
}

/// An eight-digit checksum of the text.
fn sum(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(4).map(|b| format!("{b:02x}")).collect()
}

/// The value that follows a word.
fn named<T: std::str::FromStr>(field: &str, word: &str, what: &str) -> Result<T, String> {
    let value = field.strip_prefix(word).filter(|v| !v.is_empty()).and_then(|v| v.parse().ok());
    value.ok_or_else(|| format!("expected {what}, found `{field}`"))
}

fn micros(field: &str, word: &str) -> Result<Option<f64>, String> {
    let wrong = || format!("expected a time, such as `{word}2.31 us`, found `{field}`");
    let value = field.strip_prefix(word).ok_or_else(wrong)?;
    if value == "not timed" {
        return Ok(None);
    }
    let us: Option<f64> = value.strip_suffix(" us").and_then(|v| v.parse().ok());
    us.filter(|v| v.is_finite() && *v >= 0.0).map(Some).ok_or_else(wrong)
}

fn words(field: &str) -> Result<[u64; 8], String> {
    let wrong = || format!("expected `algorithm` and eight hexadecimal numbers, found `{field}`");
    let list = field.strip_prefix("algorithm ").ok_or_else(wrong)?;
    let words: Option<Vec<u64>> = list.split(' ').map(|w| u64::from_str_radix(w, 16).ok()).collect();
    words.and_then(|w| w.try_into().ok()).ok_or_else(wrong)
}

/// The contents of a tuning file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TuningFile {
    /// The path, for messages.
    pub path: PathBuf,
    /// By machine and product.
    choices: BTreeMap<(Machine, String), Choice>,
}

impl TuningFile {
    /// An empty file.
    pub fn empty(path: &Path) -> TuningFile {
        TuningFile { path: path.to_path_buf(), choices: BTreeMap::new() }
    }

    /// Reads a file.
    pub fn read(path: &Path) -> Result<TuningFile> {
        let io = |source| Error::Io { path: path.to_path_buf(), source };
        let file = open_regular(path).map_err(io)?;
        if file.metadata().map_err(io)?.len() > LARGEST {
            return Err(Error::Input(format!(
                "{}: this is not a tuning file: it is larger than 64 MiB",
                path.display()
            )));
        }
        let mut bytes = Vec::new();
        file.take(LARGEST).read_to_end(&mut bytes).map_err(io)?;
        let text = String::from_utf8(bytes).map_err(|e| {
            let line = 1 + e.as_bytes()[..e.utf8_error().valid_up_to()].iter().filter(|b| **b == b'\n').count();
            Error::Input(format!("{}:{line}: expected text in UTF-8", path.display()))
        })?;
        TuningFile::parse(path, &text)
    }

    /// The file beside a model, if there is one.
    pub fn beside(model: &Path) -> Option<PathBuf> {
        let path = model.with_file_name(BESIDE);
        path.is_file().then_some(path)
    }

    /// Reads the text of a file.
    pub fn parse(path: &Path, text: &str) -> Result<TuningFile> {
        let fail = |line: usize, what: String| Error::Input(format!("{}:{line}: {what}", path.display()));
        let mut lines = text.lines().enumerate();
        let (_, title) = lines.next().unwrap_or((0, ""));
        if title != TITLE {
            return Err(fail(1, format!("expected `{TITLE}`; this is not a tuning file, or its version differs")));
        }
        let mut choices: BTreeMap<(Machine, String), Choice> = BTreeMap::new();
        let mut numbers: BTreeMap<(Machine, String), usize> = BTreeMap::new();
        for (i, line) in lines.filter(|(_, l)| !l.starts_with('#') && !l.trim().is_empty()) {
            let choice = Choice::from_line(line).map_err(|what| fail(i + 1, what))?;
            if choice.us.is_none() {
                return Err(fail(i + 1, "expected a time, such as `2.31 us`, found `not timed`".into()));
            }
            let key = (choice.machine.clone(), choice.problem.clone());
            if let Some(before) = numbers.insert(key.clone(), i + 1) {
                return Err(fail(
                    i + 1,
                    format!("expected each product once; line {before} has the same product: remove one"),
                ));
            }
            choices.insert(key, choice);
        }
        Ok(TuningFile { path: path.to_path_buf(), choices })
    }

    /// The text of the file, for writing.
    pub fn to_text(&self) -> String {
        let lines = self.choices.values().map(Choice::to_line);
        lines.fold(format!("{TITLE}\n{ABOUT}"), |text, line| text + &line + "\n")
    }

    /// Fails if the file cannot be written, so that hours of measurement are not wasted, or if it
    /// is one of the inputs.
    pub fn writable(path: &Path, inputs: &[&Path]) -> Result<()> {
        file::check(path, inputs)
    }

    /// Writes the file whole, or not at all.
    pub fn write(&self, path: &Path) -> Result<()> {
        file::write(path, |out| out.write_all(self.to_text().as_bytes()))
    }

    /// The choice for a product on a machine.
    pub fn find(&self, machine: &Machine, problem: &str) -> Option<&Choice> {
        self.choices.get(&(machine.clone(), plain(problem)))
    }

    /// Adds a choice. It replaces a choice for the same product on the same machine.
    pub fn insert(&mut self, choice: Choice) {
        let choice = Choice { problem: plain(&choice.problem), ..choice };
        self.choices.insert((choice.machine.clone(), choice.problem.clone()), choice);
    }

    /// All choices, in file order.
    pub fn choices(&self) -> impl Iterator<Item = &Choice> {
        self.choices.values()
    }

    /// Number of choices that apply to a machine.
    pub fn fitting(&self, machine: &Machine) -> usize {
        self.choices.keys().filter(|(m, _)| m == machine).count()
    }

    /// The message for a file that has no choices for this machine.
    pub fn mismatch(&self, machine: &Machine) -> Option<String> {
        if self.fitting(machine) > 0 {
            return None;
        }
        let mut others: Vec<String> = self.choices.keys().map(|(m, _)| m.to_string()).collect();
        others.dedup();
        let of = match others.as_slice() {
            [] => "holds no choice".to_string(),
            [one] => format!("is for {one}"),
            [one, rest @ ..] => format!("is for {one} and {} more", rest.len()),
        };
        Some(format!(
            "{} {of}; this machine is {machine}: Hypatia measures as if there were no file",
            self.path.display()
        ))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn machine(device: &str, driver: i32) -> Machine {
        Machine { device: device.into(), driver, library: 130_100, hypatia: "0.1.0".into() }
    }

    fn choice(machine: Machine, problem: &str, us: f64) -> Choice {
        Choice {
            machine,
            problem: problem.into(),
            algorithm: [0x43, u64::MAX, 0, 7, 0, 0, 0, 1 << 63],
            workspace: 33_554_432,
            us: Some(us),
            first_us: Some(us * 1.37),
            candidates: 32,
        }
    }

    /// Three choices of two machines.
    fn file() -> TuningFile {
        let mut file = TuningFile { path: "m/hypatia.tune".into(), ..TuningFile::default() };
        file.insert(choice(machine("NVIDIA H200 (sm_90)", 13_000), "64x64x64 batch 1 f32->f32, warm", 2.3125));
        file.insert(choice(machine("NVIDIA A100 (sm_80)", 12_080), "64x64x64 batch 1 f32->f32, warm", 1.0 / 3.0));
        file.insert(choice(machine("NVIDIA H200 (sm_90)", 13_000), "128x8x1 batch 12 bf16->bf16, cold", 17.0));
        file
    }

    fn fails(text: &str, expected: &str) {
        let e = TuningFile::parse(Path::new("f.tune"), text).unwrap_err().to_string();
        assert!(e.starts_with("f.tune:") && e.contains(expected), "{e}");
    }

    #[test]
    fn a_saving_is_a_line_like_a_choice() {
        let measured = Choice::of_saving(&machine("NVIDIA H200 (sm_90)", 13000), "mine::fast", [10.0, 16.0], 3);
        assert_eq!(measured.saving(), Some(("mine::fast", 2.0)));
        let read = Choice::from_line(&measured.to_line()).unwrap();
        assert_eq!((&read, read.saving()), (&measured, Some(("mine::fast", 2.0))));
        let slower = Choice::of_saving(&measured.machine, "mine::slow", [16.0, 10.0], 1);
        assert_eq!(slower.saving(), Some(("mine::slow", -6.0)));
        assert_eq!(choice(measured.machine, "64x64x64", 2.0).saving(), None);
    }

    #[test]
    fn files_come_back_as_they_were_in_one_order() {
        let file = file();
        let text = file.to_text();
        assert_eq!(TuningFile::parse(&file.path, &text).unwrap(), file);
        let lines: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
        assert_eq!(lines.len(), 3, "one line a choice: {text}");
        assert!(lines.is_sorted() && lines[0].starts_with("NVIDIA A100"), "{text}");
        // The order of insertion does not matter; one more choice is one more line.
        let mut other = TuningFile { path: file.path.clone(), ..TuningFile::default() };
        file.choices().collect::<Vec<_>>().into_iter().rev().for_each(|c| other.insert(c.clone()));
        assert_eq!(other.to_text(), text);
        other.insert(choice(machine("NVIDIA H200 (sm_90)", 13_000), "1x1x1", 1.0));
        let more = other.to_text();
        assert_eq!(more.lines().filter(|l| !text.lines().any(|t| t == *l)).count(), 1);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(BESIDE);
        TuningFile::writable(&path, &[]).unwrap();
        assert!(TuningFile::writable(&folder.path().join("nowhere/hypatia.tune"), &[]).is_err());
        file.write(&path).unwrap();
        assert_eq!(TuningFile::read(&path).unwrap().to_text(), text);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(TuningFile::beside(&folder.path().join("model.onnx")), Some(path));
        assert_eq!(TuningFile::beside(Path::new("/nowhere/model.onnx")), None);
    }

    #[test]
    fn choices_say_what_they_were_measured_against() {
        let first = |problem: &str| choice(machine("GPU", 1), problem, 1.0).first();
        assert_eq!(["64x64x64 batch 1", "packed, 64x64x64 batch 1"].map(first), ["first guess", "as stored"]);
    }

    #[test]
    fn choices_say_which_tiling_they_are() {
        let of = |algorithm| Choice { algorithm, ..choice(machine("GPU", 1), "attention", 1.0) }.tiling();
        let split = hypatia_dsl::kernel::attention::AttentionTiling { keys: 64, consumers: 1, chunk: 256 };
        assert_eq!(of(split.words()).as_deref(), Some("tile_n 64, consumers 1, chunk 256"));
        assert_eq!([[2; 8], [4, 63, 1, 0, 0, 0, 0, 0], [4, 64, 1, 0, 1, 0, 0, 0]].map(of), [None, None, None]);
    }

    #[test]
    fn names_that_hold_bars_and_breaks_stay_one_field() {
        let mut file = TuningFile::default();
        file.insert(choice(machine(" A | B\nC ", 1), "x | y\n", 1.0));
        assert_eq!(TuningFile::parse(Path::new(""), &file.to_text()).unwrap().to_text(), file.to_text());
        assert!(file.find(&machine(" A | B\nC ", 1), "x | y\n").is_some());
    }

    #[test]
    fn choices_count_for_their_machine_alone() {
        let file = file();
        let here = machine("NVIDIA H200 (sm_90)", 13_000);
        let problem = "64x64x64 batch 1 f32->f32, warm";
        assert_eq!(file.find(&here, problem).unwrap().us, Some(2.3125));
        assert_eq!((file.fitting(&here), file.mismatch(&here)), (2, None));
        assert!(file.find(&here, "64x64x64 batch 1 f32->f32, cold").is_none());
        for other in [
            machine("NVIDIA H100 (sm_90)", 13_000),
            machine("NVIDIA H200 (sm_90)", 13_010),
            Machine { library: 1, ..here.clone() },
            Machine { hypatia: "0.2.0".into(), ..here.clone() },
        ] {
            assert!(file.find(&other, problem).is_none());
            assert_ne!(Choice::key(&other, problem), Choice::key(&here, problem));
            let why = file.mismatch(&other).unwrap();
            assert!(
                why.contains("m/hypatia.tune") && why.contains("A100") && why.contains(&other.to_string()),
                "{why}"
            );
        }
    }

    #[test]
    fn damaged_and_edited_files_name_the_line_and_what_was_expected() {
        let text = file().to_text();
        let at = |n: usize| text.lines().nth(n).unwrap();
        fails("", "1: expected `# Hypatia tuning file, version 1`");
        fails(&text.replace("version 1", "version 2"), "1: expected");
        fails(
            &text.replace("driver 12080", "driver new"),
            "4: expected the driver's version, such as `driver 13000`, found `driver new`",
        );
        fails(&text.replace("of 32", "of many"), "4: expected the number of candidates");
        fails(&text.replace("17 us", "17 ms"), "5: expected a time, such as `2.31 us`, found `17 ms`");
        fails(&text.replace("17 us", "NaN us"), "5: expected a time");
        fails(&text.replace("17 us", "18 us"), "5: the line was changed");
        fails(&text.replace("algorithm 43", "algorithm 44"), "4: the line was changed");
        fails(&text.replace("algorithm 43 ", "algorithm "), "4: expected `algorithm` and eight hexadecimal numbers");
        fails(&format!("{text}{}\n", at(4)), "7: expected each product once; line 5");
        fails(&text[..text.len() - 30], "6: expected a choice, 11 fields with ` | ` between them, found");
        fails(
            &format!("{text}<<<<<<< ours\n"),
            "7: expected a choice, 11 fields with ` | ` between them, found 1: a merge",
        );
        let guess = Choice { us: None, ..file().choices().next().unwrap().clone() };
        assert_eq!(Choice::from_line(&guess.to_line()), Ok(guess.clone()));
        fails(&format!("{text}{}\n", guess.to_line().replace("A100", "A10")), "7: the line was changed");
        fails(&format!("{TITLE}\n{}\n", guess.to_line()), "2: expected a time");
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t"), b"#\n\xff").unwrap();
        assert!(TuningFile::read(&folder.path().join("t")).unwrap_err().to_string().contains("t:2: expected text"));
    }

    #[test]
    fn every_changed_byte_of_a_choice_is_noticed() {
        let file = file();
        let line = file.choices().next().unwrap().to_line();
        for at in 0..line.len() {
            let mut bytes = line.clone().into_bytes();
            bytes[at] ^= 1;
            let changed = String::from_utf8(bytes).unwrap();
            assert!(Choice::from_line(&changed).is_err(), "byte {at}: {changed}");
            assert!(Choice::from_line(&line[..at]).is_err(), "cut at {at}");
        }
    }
}
