//! Diagnostics as text: for a terminal, as JSON, as GitHub annotations, as SARIF.
//!
//! In: diagnostics and the files they point into. Out: text that ends with a newline; empty if
//! there are no diagnostics. Invariant: diagnostics are sorted by file and position and deduped,
//! and no control character of a user's file reaches the terminal.

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet, normalize_untrusted_str};
use serde::Serialize;

use crate::codes;
use crate::diag::{Diagnostic, Severity};
use crate::source::{FileId, SourceMap, Span};

/// Maximum number of diagnostics shown in full; the summary counts all.
const MAX_SHOWN: usize = 100;

/// An output format for diagnostics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// For people: with underlined source.
    Full {
        /// With colours (ANSI escapes).
        color: bool,
    },
    /// One JSON object per line.
    Json,
    /// Workflow commands of GitHub Actions.
    Github,
    /// One SARIF 2.1.0 document.
    Sarif,
}

/// Sorts by file and position, errors before warnings at the same position, and dedupes.
pub fn sort(diagnostics: &mut Vec<Diagnostic>) {
    diagnostics.sort_by(|a, b| {
        let key = |d: &Diagnostic| (d.primary.span.file, d.primary.span.start, d.severity, d.code, d.primary.span.end);
        key(a).cmp(&key(b)).then_with(|| a.message.cmp(&b.message))
    });
    diagnostics.dedup();
}

/// Renders all of them in that format. Sorts and dedupes first.
pub fn render(sources: &SourceMap, diagnostics: &[Diagnostic], format: Format) -> String {
    let mut sorted = diagnostics.to_vec();
    sort(&mut sorted);
    match format {
        Format::Full { color } => full(sources, &sorted, color),
        Format::Json => lines(sorted.iter().map(|d| json(sources, d))),
        Format::Github => lines(sorted.iter().map(|d| github(sources, d))),
        Format::Sarif => sarif(sources, &sorted),
    }
}

/// `2 errors, 1 warning`; empty if there are none.
pub fn summary(diagnostics: &[Diagnostic]) -> String {
    let mut sorted = diagnostics.to_vec();
    sort(&mut sorted);
    let errors = sorted.iter().filter(|d| d.severity == Severity::Error).count();
    let plural = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    match (errors, sorted.len() - errors) {
        (0, 0) => String::new(),
        (n, 0) => plural(n, "error"),
        (0, n) => plural(n, "warning"),
        (e, w) => format!("{}, {}", plural(e, "error"), plural(w, "warning")),
    }
}

fn lines(all: impl Iterator<Item = String>) -> String {
    all.map(|l| l + "\n").collect()
}

fn full(sources: &SourceMap, diagnostics: &[Diagnostic], color: bool) -> String {
    let renderer = if color { Renderer::styled() } else { Renderer::plain() };
    let mut out = String::new();
    for d in diagnostics.iter().take(MAX_SHOWN) {
        out.push_str(&renderer.render(&[group(sources, d)]));
        out.push_str("\n\n");
    }
    if diagnostics.len() > MAX_SHOWN {
        out.push_str(&format!("... and {} more; fix these first\n\n", diagnostics.len() - MAX_SHOWN));
    }
    out
}

/// One diagnostic with a snippet for each file that it points into.
fn group<'a>(sources: &'a SourceMap, d: &'a Diagnostic) -> Group<'a> {
    let level = match d.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let mut files: Vec<FileId> = vec![d.primary.span.file];
    for label in &d.secondary {
        if !files.contains(&label.span.file) {
            files.push(label.span.file);
        }
    }
    let mut group = Group::with_title(level.primary_title(d.message.as_str()).id(d.code.to_string()));
    for file in files {
        let labels = std::iter::once((&d.primary, AnnotationKind::Primary))
            .chain(d.secondary.iter().map(|l| (l, AnnotationKind::Context)))
            .filter(|(l, _)| l.span.file == file);
        let all: Vec<_> = labels.collect();
        let source = &sources.file(file).text;
        // Pass only the surrounding lines: the renderer scans all of its input.
        let from = all.iter().map(|(l, _)| clamp(l.span, source).0).min().unwrap_or(0);
        let to = all.iter().map(|(l, _)| clamp(l.span, source).1).max().unwrap_or(0);
        let start = source[..from].rfind('\n').map_or(0, |n| n + 1);
        let end = source[to..].find('\n').map_or(source.len(), |n| to + n);
        let line = source[..start].matches('\n').count() + 1;
        let mut snippet = Snippet::source(&source[start..end]).line_start(line).path(sources.file(file).name.as_str());
        for (label, kind) in all {
            let (a, b) = clamp(label.span, source);
            let text = normalize_untrusted_str(&label.text);
            snippet = snippet.annotation(kind.span(a - start..b - start).label((!text.is_empty()).then_some(text)));
        }
        group = group.element(snippet);
    }
    for note in &d.notes {
        group = group.element(Level::NOTE.message(clean(note)));
    }
    for hint in &d.hints {
        group = group.element(Level::HELP.message(clean(hint)));
    }
    group
}

/// Removes escapes. Line breaks are allowed in a note.
fn clean(text: &str) -> String {
    text.lines().map(normalize_untrusted_str).collect::<Vec<_>>().join("\n")
}

/// The span's offsets, clamped to the text and to character boundaries.
fn clamp(span: Span, text: &str) -> (usize, usize) {
    let floor = |at: u32| (0..=(at as usize).min(text.len())).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
    let start = floor(span.start);
    (start, floor(span.end).max(start))
}

/// A source range. Lines and columns count from 1, columns in characters; the end is exclusive.
#[derive(Serialize)]
struct Location {
    file: String,
    line: usize,
    column: usize,
    end_line: usize,
    end_column: usize,
}

fn location(sources: &SourceMap, span: Span) -> Location {
    let file = sources.file(span.file);
    let (start, end) = clamp(span, &file.text);
    let at = |offset: usize| sources.line_column(Span { start: offset as u32, end: offset as u32, ..span });
    let ((line, column), (end_line, end_column)) = (at(start), at(end));
    Location { file: file.name.clone(), line, column, end_line, end_column }
}

/// A secondary location with its label.
#[derive(Serialize)]
struct Related {
    #[serde(flatten)]
    location: Location,
    message: String,
}

/// One line of `--output-format json`.
#[derive(Serialize)]
struct Line<'a> {
    /// `error` or `warning`.
    severity: &'static str,
    code: String,
    message: &'a str,
    #[serde(flatten)]
    location: Location,
    /// The text beside the underlined source.
    label: &'a str,
    related: Vec<Related>,
    notes: &'a [String],
    hints: &'a [String],
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}

fn related(sources: &SourceMap, d: &Diagnostic) -> Vec<Related> {
    d.secondary.iter().map(|l| Related { location: location(sources, l.span), message: l.text.clone() }).collect()
}

fn json(sources: &SourceMap, d: &Diagnostic) -> String {
    let line = Line {
        severity: word(d.severity),
        code: d.code.to_string(),
        message: &d.message,
        location: location(sources, d.primary.span),
        label: &d.primary.text,
        related: related(sources, d),
        notes: &d.notes,
        hints: &d.hints,
    };
    serde_json::to_string(&line).unwrap_or_default()
}

/// Message, label, notes and hints in one text.
fn long_message(d: &Diagnostic) -> String {
    let mut out = d.message.clone();
    if !d.primary.text.is_empty() {
        out.push_str(&format!("\n{}", d.primary.text));
    }
    for note in &d.notes {
        out.push_str(&format!("\nnote: {note}"));
    }
    for hint in &d.hints {
        out.push_str(&format!("\nhelp: {hint}"));
    }
    out
}

fn github(sources: &SourceMap, d: &Diagnostic) -> String {
    let data = |s: &str| s.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
    let property = |s: &str| data(s).replace(':', "%3A").replace(',', "%2C");
    let p = location(sources, d.primary.span);
    // GitHub accepts columns only if both ends are on one line.
    let columns = match p.line == p.end_line {
        true => format!(",col={},endColumn={}", p.column, p.end_column),
        false => String::new(),
    };
    format!(
        "::{} file={},line={},endLine={}{columns},title={}::{}",
        word(d.severity),
        property(&p.file),
        p.line,
        p.end_line,
        property(&d.code.to_string()),
        data(&long_message(d))
    )
}

fn sarif(sources: &SourceMap, diagnostics: &[Diagnostic]) -> String {
    let location = |span: Span, text: &str| {
        let p = location(sources, span);
        let mut location = serde_json::json!({
            "physicalLocation": {
                "artifactLocation": { "uri": p.file.replace('\\', "/").replace('%', "%25").replace(' ', "%20") },
                "region": {
                    "startLine": p.line, "startColumn": p.column, "endLine": p.end_line, "endColumn": p.end_column,
                },
            },
        });
        if !text.is_empty() {
            location["message"] = serde_json::json!({ "text": text });
        }
        location
    };
    let rules: Vec<&codes::Row> = codes::all().filter(|r| diagnostics.iter().any(|d| d.code == r.code)).collect();
    let described: Vec<_> = rules
        .iter()
        .map(|r| {
            serde_json::json!({
                "id": r.code.to_string(),
                "shortDescription": { "text": r.title },
                "fullDescription": { "text": r.text },
            })
        })
        .collect();
    let results: Vec<_> = diagnostics
        .iter()
        .map(|d| {
            let others: Vec<_> = d.secondary.iter().map(|l| location(l.span, &l.text)).collect();
            let mut result = serde_json::json!({
                "ruleId": d.code.to_string(),
                "level": word(d.severity),
                "message": { "text": long_message(d) },
                "locations": [location(d.primary.span, "")],
            });
            if let Some(i) = rules.iter().position(|r| r.code == d.code) {
                result["ruleIndex"] = i.into();
            }
            if !others.is_empty() {
                result["relatedLocations"] = others.into();
            }
            result
        })
        .collect();
    let document = serde_json::json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "hypatia",
                "version": env!("CARGO_PKG_VERSION"),
                "informationUri": "https://github.com/hypatia-compiler/hypatia",
                "rules": described,
            } },
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    });
    serde_json::to_string_pretty(&document).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::diag::Code;
    use crate::source::SourceFile;

    fn sample() -> (SourceMap, Vec<Diagnostic>) {
        let mut sources = SourceMap::new();
        let mut add = |name: &str, text: &str| {
            sources.add(SourceFile { name: name.into(), path: None, text: text.into(), embedded: false })
        };
        let a = add("a b.hyp", "edition 1;\nrule r: f(\u{e9}) => g;\n");
        let b = add("lib.hyp", "edition 1;\n\nscalar g(x) = x;\n");
        let second = Diagnostic::error(
            Code(101),
            "g takes 1 argument,\u{1b}[31m got 0: 100%",
            Span { file: a, start: 27, end: 28 },
        )
        .label("no arguments")
        .also(Span { file: b, start: 19, end: 20 }, "declared here")
        .note("a note")
        .hint("write `g(x)`");
        let first = Diagnostic::warning(Code(106), "strange", Span { file: a, start: 21, end: 23 });
        (sources, vec![second.clone(), first, second])
    }

    #[test]
    fn a_report_is_sorted_underlined_and_free_of_escapes() {
        let (sources, all) = sample();
        let text = render(&sources, &all, Format::Full { color: false });
        insta::assert_snapshot!(text);
        assert!(!text.contains('\u{1b}'));
        assert_eq!(summary(&all), "1 error, 1 warning");
        assert!(render(&sources, &all, Format::Full { color: true }).contains("\u{1b}["));
    }

    #[test]
    fn machine_formats() {
        let (sources, all) = sample();
        insta::assert_snapshot!("json", render(&sources, &all, Format::Json));
        insta::assert_snapshot!("github", render(&sources, &all, Format::Github));
        let sarif = render(&sources, &all, Format::Sarif);
        let value: serde_json::Value = serde_json::from_str(&sarif).unwrap();
        assert_eq!(value["runs"][0]["results"].as_array().unwrap().len(), 2);
        assert_eq!(value["runs"][0]["results"][1]["relatedLocations"][0]["physicalLocation"]["region"]["startLine"], 3);
        assert_eq!(value["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"]["startColumn"], 11);
    }

    #[test]
    fn spans_outside_the_text_are_no_danger() {
        let (sources, _) = sample();
        let wild = Diagnostic::error(Code(101), "wild", Span { file: FileId(0), start: 22, end: 9999 });
        for format in [Format::Full { color: false }, Format::Json, Format::Github, Format::Sarif] {
            assert!(!render(&sources, std::slice::from_ref(&wild), format).is_empty());
        }
    }
}
