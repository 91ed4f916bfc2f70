//! The README shows what the command prints: each command behind a `$` runs, on the CPU, and prints
//! the lines below it.
//!
//! In: README.md's blocks without a language. Out: each command whose output differs. A line of
//! dots alone stands for lines that are left out, dots at the end of a line for its rest. Figures
//! that depend on the machine are masked on both sides.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// A command, and the lines shown below it.
#[derive(Debug, PartialEq)]
struct Shown {
    command: String,
    lines: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The commands of a page whose output it shows.
fn shown(page: &str) -> Vec<Shown> {
    // Blocks and the text between them alternate.
    let blocks = page.split("```").skip(1).step_by(2).filter_map(|b| b.strip_prefix('\n'));
    blocks.filter(|b| b.starts_with("$ ")).flat_map(|b| commands(&b.replace("\\\n", ""))).collect()
}

fn commands(block: &str) -> Vec<Shown> {
    let mut out: Vec<Shown> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), out.last_mut()) {
            (Some(command), _) => out.push(Shown { command: command.into(), lines: Vec::new() }),
            (None, Some(last)) => last.lines.push(line.into()),
            (None, None) => {}
        }
    }
    out
}

/// The standard output of a command of the page.
fn printed(command: &str) -> String {
    let bin = Path::new(env!("CARGO_BIN_EXE_hypatia")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/readme");
    let mut shell = Command::new("bash");
    // Without a GPU, as the page says.
    shell.env("PATH", path).env("HYPATIA_CACHE", cache).env("CUDA_VISIBLE_DEVICES", "");
    let out = shell.arg("-c").arg(command).current_dir(root()).output().unwrap();
    String::from_utf8(out.stdout).unwrap()
}

/// A line with `#` for the figures that depend on the machine: times, and errors of rounding, which
/// are written with an exponent.
fn masked(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let is_time = |i: usize| {
        let unit = words.get(i + 1).map(|u| u.trim_end_matches([',', ';', ')']));
        words[i].parse::<f64>().is_ok() && unit.is_some_and(|u| ["s", "ms", "us"].contains(&u))
    };
    let is_rounding = |word: &str| {
        let number = word.trim_end_matches([',', ';']);
        number.contains('e') && number.starts_with(|c: char| c.is_ascii_digit()) && number.parse::<f64>().is_ok()
    };
    let mask = |(i, word): (usize, &&str)| match is_time(i) || is_rounding(word) {
        true => format!("#{}", &word[word.trim_end_matches([',', ';']).len()..]),
        false => word.to_string(),
    };
    words.iter().enumerate().map(mask).collect::<Vec<_>>().join(" ")
}

/// True if a printed line is the one that is shown.
fn same(shown: &str, printed: &str) -> bool {
    match shown.strip_suffix(" ...") {
        Some(start) => masked(printed).starts_with(&masked(start)),
        None => masked(shown) == masked(printed),
    }
}

/// The first line that is shown and not printed where it should be, if there is one.
fn missing(shown: &[String], printed: &[&str]) -> Option<String> {
    let parts: Vec<&[String]> = shown.split(|l| l == "...").collect();
    let mut at = 0;
    for (i, part) in parts.iter().enumerate() {
        let (first, last) = (i == 0, i + 1 == parts.len());
        let fits = |from: &usize| {
            let here = printed[*from..].iter().take(part.len());
            here.len() == part.len() && part.iter().zip(here).all(|(s, p)| same(s, p))
        };
        // Only dots leave out lines at the beginning, at the end and in between.
        let places = match (first, last && !part.is_empty()) {
            (true, _) => at..at + 1,
            (false, true) => printed.len().saturating_sub(part.len()).max(at)..printed.len() + 1,
            (false, false) => at..printed.len() + 1,
        };
        let Some(found) = places.into_iter().find(fits) else { return part.first().cloned() };
        at = found + part.len();
    }
    let more = parts.last().is_some_and(|p| !p.is_empty()) && at != printed.len();
    more.then(|| format!("nothing behind line {at}"))
}

#[test]
fn the_readme_shows_what_is_printed() {
    let page = std::fs::read_to_string(root().join("README.md")).unwrap();
    let all = shown(&page);
    assert!(all.len() >= 7, "{} commands", all.len());
    let wrong = all.iter().filter_map(|Shown { command, lines }| {
        let printed = printed(command);
        let line = missing(lines, &printed.lines().collect::<Vec<_>>())?;
        Some(format!("$ {command}\nthe README shows: {line}\nprinted is:\n{printed}"))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn other_output_is_found() {
    let lines = |text: &str| text.lines().map(String::from).collect::<Vec<_>>();
    let printed = ["a: 1", "b took 3.5 ms", "c", "d: 1.5e-3, e"];
    for right in ["a: 1\nb took 9 ms\nc\nd: 2e-6, e", "...\nd: 1e-3, e", "a: 1\n...", "a: ...\n...\nc\n...", "..."] {
        assert_eq!(missing(&lines(right), &printed), None, "{right}");
    }
    for wrong in ["a: 2\n...", "a: 1", "a: 1\nc\n...", "...\nc", "...\nb took 3.5 s or so\n...", "d: 1e-3, e\n..."] {
        assert!(missing(&lines(wrong), &printed).is_some(), "{wrong}");
    }
}

#[test]
fn commands_are_read_with_their_output() {
    let page = "text\n```\n$ a b \\\n  --c\nout\n...\n$ d\n```\ntext\n```\nno output\n```\n```rust\n$ e\n```\n";
    let want = [("a b   --c", vec!["out", "..."]), ("d", vec![])].map(|(command, lines)| Shown {
        command: command.into(),
        lines: lines.into_iter().map(String::from).collect(),
    });
    assert_eq!(shown(page), want);
}
