//! `hypatia cache`: what is stored for the next start: machine code, measured choices, verdicts on
//! plans.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::{Args, Subcommand};
use hypatia::internal::Verdict;
use hypatia_cache::{Cache as Kept, Kind, State, Store, StoredFile, is_sealed};
use hypatia_cuda::tuning::Choice;
use hypatia_tensor::error::{Error, Result};
use serde_json::{Value, json};

use super::output::write_stdout;
use super::{Exit, Global, tune};

/// Inspect the cache of machine code, measured choices and verdicts on plans.
///
/// The cache is in HYPATIA_CACHE, otherwise in hypatia/ under XDG_CACHE_HOME or ~/.cache. You can
/// remove it at any time: missing and damaged entries are made again. A folder that is a link,
/// belongs to another user, or is writable by others is refused.
///
/// Exit codes: 0 success; 1 `verify` found an unusable entry, or the folder is refused.
#[derive(Args)]
pub struct Cache {
    #[command(subcommand)]
    action: Action,
    /// Print JSON.
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Subcommand)]
enum Action {
    /// List the entries.
    Ls,
    /// Check every entry; exit code 1 if one is damaged or does not belong to the cache.
    Verify,
    /// Remove the cache's files, and nothing else.
    Clear,
}

/// A file and its decoded content.
struct Entry {
    kind: Kind,
    seen: StoredFile,
    meaning: Meaning,
}

enum Meaning {
    /// Content that this command does not decode.
    None,
    Choice(Box<Choice>),
    Verdict(Verdict),
}

impl Entry {
    fn of(store: &Store, mut seen: StoredFile) -> Entry {
        let mut meaning = Meaning::None;
        if seen.state == State::Good && !matches!(store.kind(), Kind::Cubin | Kind::Trial) {
            let content = store.content(&seen.path);
            let content = content.as_deref();
            let found = match store.kind() {
                Kind::Verdict => content.and_then(Verdict::from_bytes).map(Meaning::Verdict),
                _ => content.and_then(choice).map(|c| Meaning::Choice(Box::new(c))),
            };
            match found {
                Some(found) => meaning = found,
                None => seen.state = State::Bad(format!("it does not contain a {}", store.kind().name())),
            }
        }
        Entry { kind: store.kind(), seen, meaning }
    }

    fn bad(&self) -> Option<&str> {
        match &self.seen.state {
            State::Bad(why) => Some(why),
            _ => None,
        }
    }

    fn to_json(&self) -> Value {
        let state = match &self.seen.state {
            State::Good => "good",
            State::Bad(_) => "bad",
            State::Partial => "part",
            State::Foreign => "foreign",
        };
        let written = self.seen.written.and_then(|t| t.duration_since(SystemTime::UNIX_EPOCH).ok());
        let mut value = json!({
            "kind": self.kind.name(),
            "file": self.seen.path.display().to_string(),
            "bytes": self.seen.bytes,
            "written": written.map(|d| d.as_secs()),
            "state": state,
        });
        if let Some(why) = self.bad() {
            value["why"] = why.into();
        }
        match &self.meaning {
            Meaning::None => {}
            Meaning::Choice(c) => value["choice"] = tune::to_json(c),
            Meaning::Verdict(Verdict::Agree) => value["verdict"] = json!({"agree": true}),
            Meaning::Verdict(Verdict::Differ(why, without)) => {
                value["verdict"] = json!({"agree": false, "why": why, "without": without});
            }
        }
        value
    }
}

fn choice(content: &[u8]) -> Option<Choice> {
    Choice::from_line(std::str::from_utf8(content).ok()?).ok()
}

impl Cache {
    /// Runs the command.
    pub fn run(&self, _: &Global) -> Result<Exit> {
        let kept = Kept::of_user().map_err(Error::Input)?;
        match self.action {
            Action::Ls => self.ls(&kept),
            Action::Verify => self.verify(&kept),
            Action::Clear => self.clear(&kept),
        }
    }

    fn ls(&self, kept: &Kept) -> Result<Exit> {
        let entries = entries(kept)?;
        let headers = kept.headers();
        if self.json {
            let headers: Vec<String> = headers.iter().map(|p| p.display().to_string()).collect();
            let list: Vec<Value> = entries.iter().map(Entry::to_json).collect();
            print_json(&json!({"folder": kept.folder.display().to_string(), "entries": list, "headers": headers}));
            return Ok(Exit::Ok);
        }
        let mut text =
            format!("{}\n{:<14} {:>7} {:>7} {:>9}  newest\n", kept.folder.display(), "", "entries", "bad", "KiB");
        for store in kept.stores() {
            let of_kind = || entries.iter().filter(|e| e.kind == store.kind() && e.seen.state != State::Foreign);
            let bytes: u64 = of_kind().map(|e| e.seen.bytes).sum();
            let (count, bad) = (of_kind().count(), of_kind().filter(|e| e.bad().is_some()).count());
            let newest = of_kind().filter_map(|e| e.seen.written).max().map_or("-".to_string(), age);
            let kib = bytes.div_ceil(1024);
            let _ = writeln!(text, "{:<14} {count:>7} {bad:>7} {kib:>9}  {newest}", title(store.kind()));
        }
        text.push_str(&headers_line(&headers));
        let mut machine = String::new();
        let mut choices: Vec<&Choice> = entries
            .iter()
            .filter_map(|e| match &e.meaning {
                Meaning::Choice(c) => Some(&**c),
                _ => None,
            })
            .collect();
        choices.sort_by(|a, b| (&a.machine, &a.problem).cmp(&(&b.machine, &b.problem)));
        for c in choices {
            let here = c.machine.to_string();
            if here != machine {
                let _ = writeln!(text, "choices on {here}");
                machine = here;
            }
            text.push_str(&tune::line(c));
        }
        for e in &entries {
            if let Meaning::Verdict(Verdict::Differ(why, without)) = &e.meaning {
                let rules = if without.is_empty() { String::new() } else { format!("{}: ", without.join(", ")) };
                let _ = writeln!(text, "refused plan   {rules}{why}");
            }
        }
        write_stdout(&text);
        Ok(Exit::Ok)
    }

    fn verify(&self, kept: &Kept) -> Result<Exit> {
        let entries = entries(kept)?;
        let ours: Vec<&Entry> = entries.iter().filter(|e| e.seen.state != State::Foreign).collect();
        let bad: Vec<&Entry> = ours.iter().copied().filter(|e| e.bad().is_some()).collect();
        let headers = kept.headers();
        let broken: Vec<&PathBuf> = headers.iter().filter(|p| !is_sealed(p)).collect();
        let (all, failed) = (ours.len() + headers.len(), bad.len() + broken.len());
        const BROKEN: &str = "its files have changed since they were written";
        if self.json {
            let folders = broken
                .iter()
                .map(|p| json!({"kind": "headers", "file": p.display().to_string(), "state": "bad", "why": BROKEN}));
            let list: Vec<Value> = bad.iter().map(|e| e.to_json()).chain(folders).collect();
            print_json(&json!({"folder": kept.folder.display().to_string(), "entries": all, "bad": list}));
        } else {
            let mut text = String::new();
            for e in &bad {
                let _ = writeln!(text, "{}: not used: {}", e.seen.path.display(), e.bad().unwrap_or_default());
            }
            broken.iter().for_each(|p| text.push_str(&format!("{}: not used: {BROKEN}\n", p.display())));
            let _ = writeln!(text, "{} of {all} entries are good", all - failed);
            write_stdout(&text);
        }
        Ok(if failed == 0 { Exit::Ok } else { Exit::Failed })
    }

    fn clear(&self, kept: &Kept) -> Result<Exit> {
        let mut text = String::new();
        let mut removed = serde_json::Map::new();
        for store in kept.stores() {
            let gone = store.clear().map_err(Error::Input)?;
            let bytes: u64 = gone.iter().map(|s| s.bytes).sum();
            let _ =
                writeln!(text, "removed {:>6} {:<14} {:>9} KiB", gone.len(), title(store.kind()), bytes.div_ceil(1024));
            removed.insert(store.kind().name().into(), json!({"files": gone.len(), "bytes": bytes}));
        }
        let headers = kept.clear_headers().map_err(Error::Input)?;
        headers.iter().for_each(|p| text.push_str(&format!("removed {}\n", p.display())));
        let left = left(&kept.folder);
        left.iter().for_each(|p| text.push_str(&format!("left    {}: not part of the cache\n", p.display())));
        if self.json {
            let paths = |list: &[PathBuf]| list.iter().map(|p| p.display().to_string()).collect::<Vec<_>>();
            let folder = kept.folder.display().to_string();
            print_json(&json!({
                "folder": folder, "removed": removed, "headers": paths(&headers), "left": paths(&left),
            }));
        } else {
            write_stdout(&text);
        }
        Ok(Exit::Ok)
    }
}

/// The row of CUDA's headers: a folder is one entry, as `verify` counts them.
fn headers_line(folders: &[PathBuf]) -> String {
    let files: Vec<std::fs::Metadata> = folders.iter().flat_map(|p| files(p)).collect();
    let kib = files.iter().map(std::fs::Metadata::len).sum::<u64>().div_ceil(1024);
    let bad = folders.iter().filter(|p| !is_sealed(p)).count();
    let newest = files.iter().filter_map(|m| m.modified().ok()).max().map_or("-".to_string(), age);
    format!("{:<14} {:>7} {bad:>7} {kib:>9}  {newest}\n", "CUDA headers", folders.len())
}

/// Metadata of the files in a folder and its subfolders; links are not followed.
fn files(folder: &Path) -> Vec<std::fs::Metadata> {
    let mut out = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        for path in hypatia_cache::children(&folder, "") {
            match std::fs::symlink_metadata(&path) {
                Ok(m) if m.is_dir() => open.push(path),
                Ok(m) => out.push(m),
                Err(_) => {}
            }
        }
    }
    out
}

fn print_json(value: &Value) {
    write_stdout(&format!("{value:#}\n"));
}

fn title(kind: Kind) -> &'static str {
    match kind {
        Kind::Cubin => "machine code",
        Kind::Choice => "choices",
        Kind::Verdict => "verdicts",
        Kind::Trial => "trials",
    }
}

fn entries(kept: &Kept) -> Result<Vec<Entry>> {
    let mut out = Vec::new();
    for store in kept.stores() {
        let seen = store.list().map_err(Error::Input)?;
        out.extend(seen.into_iter().map(|s| Entry::of(store, s)));
    }
    Ok(out)
}

/// Files that remain in the folder; for a folder of entries, its content.
fn left(folder: &Path) -> Vec<PathBuf> {
    let children = |folder: &Path| hypatia_cache::children(folder, "");
    let store =
        |p: &PathBuf| [Kind::Cubin, Kind::Choice, Kind::Verdict, Kind::Trial].iter().any(|k| p.ends_with(k.name()));
    let inside = |p: PathBuf| if store(&p) { children(&p) } else { vec![p] };
    children(folder).into_iter().flat_map(inside).collect()
}

/// The approximate age.
fn age(at: SystemTime) -> String {
    let seconds = SystemTime::now().duration_since(at).map_or(0, |d| d.as_secs());
    match seconds {
        0..60 => "now".to_string(),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..86_400 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}
