//! Bar charts of times: for each case a group of bars, one for each series in the file, such as
//! Hypatia with and without rules.
//!
//! In: the output of `--json`, or a file of docs/benchmarks. Out: an SVG. Invariant: a bar's length
//! is its time divided by that of the same case without rules (or by its longest time, if there is
//! none), so that cases of all sizes share one axis; the microseconds stand next to the bar; a
//! failed case keeps its place and is marked; equal times give equal bytes.

use hypatia_tensor::error::{Error, Result};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde_json::Value;

/// A timed series: its label in the legend, the path of its microseconds, and its colour
/// (distinguishable for colour-blind readers).
struct Series {
    label: &'static str,
    pointers: [&'static str; 2],
    color: RGBColor,
}

const fn series(label: &'static str, pointers: [&'static str; 2], color: [u8; 3]) -> Series {
    Series { label, pointers, color: RGBColor(color[0], color[1], color[2]) }
}

const SERIES: [Series; 6] = [
    series("Hypatia", ["/hypatia", "/with_rules/us"], [0, 114, 178]),
    series("Hypatia without rules", ["/hypatia_unfused", "/without_rules/us"], [86, 180, 233]),
    series("PyTorch eager in a graph", ["/eager", "/eager"], [230, 159, 0]),
    series("_addmm_activation in a graph", ["/addmm_activation", "/addmm_activation"], [0, 158, 115]),
    series("torch.compile", ["/compiled", "/compiled"], [204, 121, 167]),
    series("bare products in a graph", ["/bare_gemms", "/bare_gemms"], [120, 120, 120]),
];
/// The series that the others are compared with.
const WITHOUT_RULES: usize = 1;

/// A case: its name, and the microseconds of each series that was timed.
struct Case {
    name: String,
    times: Vec<(usize, f64)>,
}

impl Case {
    /// The divisor of all bars of the case.
    fn unit(&self) -> f64 {
        let without = self.times.iter().find(|t| t.0 == WITHOUT_RULES).map(|t| t.1);
        without.unwrap_or_else(|| self.times.iter().map(|t| t.1).fold(f64::MIN_POSITIVE, f64::max))
    }
}

/// Cases of a report whose names contain one of the texts; all, if there are no texts.
fn cases(report: &Value, wanted: &[String]) -> Result<Vec<Case>> {
    let rows = report.get("cases").or_else(|| report.get("rows")).and_then(Value::as_array);
    let rows = rows.ok_or_else(|| {
        Error::Input(
            "a plot needs a report of cases: this file has neither `cases` nor \
        `rows`"
                .into(),
        )
    })?;
    let mut cases = Vec::new();
    for row in rows {
        let Some(name) = row.get("case").and_then(Value::as_str) else { continue };
        if !wanted.is_empty() && !wanted.iter().any(|w| name.contains(w.as_str())) {
            continue;
        }
        let time = |c: &Series| c.pointers.iter().find_map(|p| row.pointer(p)?.as_f64().filter(|t| *t > 0.0));
        let times = SERIES.iter().enumerate().filter_map(|(i, c)| Some((i, time(c)?))).collect();
        cases.push(Case { name: name.to_string(), times });
    }
    match cases.is_empty() {
        true => Err(Error::Input("a plot needs at least one case: no name contains the text of --rows".into())),
        false => Ok(cases),
    }
}

const WIDTH: u32 = 960;
const BAR: f64 = 13.0;
const GAP: f64 = 10.0;
const TOP: u32 = 74;
const BOTTOM: u32 = 48;
/// A generous width of a letter in pixels, at the size of labels here. (Font sizes are those of
/// plotters: points of 0.8 pixels.)
const LETTER: f64 = 6.8;
const INK: RGBColor = RGBColor(40, 40, 40);

fn text(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

fn failed(e: impl std::fmt::Display) -> Error {
    Error::Internal(format!("drawing: {e}"))
}

/// Draws a report of many cases.
pub(super) fn svg(report: &Value, wanted: &[String]) -> Result<String> {
    let cases = cases(report, wanted)?;
    let height = |c: &Case| c.times.len().max(1) as f64 * BAR + GAP;
    let tall: f64 = cases.iter().map(height).sum();
    let mut out = String::new();
    {
        let size = (WIDTH, TOP + BOTTOM + tall.ceil() as u32);
        let root = SVGBackend::with_string(&mut out, size).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        heading(&root, report, &cases)?;
        bars(&root, &cases, tall)?;
        root.present().map_err(failed)?;
    }
    Ok(out)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Title, where and when, legend.
fn heading(root: &Area<'_>, report: &Value, cases: &[Case]) -> Result<()> {
    let draw = |words: &str, at: (i32, i32), size: u32| root.draw_text(words, &text(size), at).map_err(failed);
    let relative = cases.iter().all(|c| c.times.iter().any(|t| t.0 == WITHOUT_RULES));
    let unit = if relative { "the same without rules" } else { "the longest of the case" };
    draw(&format!("Time over that of {unit} (at the bars: microseconds; shorter is better)"), (14, 8), 19)?;
    let about = |pointer: &str| report.pointer(pointer).and_then(Value::as_str).filter(|v| *v != "unknown");
    let device = about("/about/device");
    let date = about("/about/date");
    let commit = about("/about/commit").map(|c| format!("commit {c}"));
    let parts: Vec<&str> = [device, date, commit.as_deref()].into_iter().flatten().collect();
    draw(&parts.join(", "), (14, 32), 14)?;
    let mut x = 14.0;
    for (i, c) in SERIES.iter().enumerate() {
        if !cases.iter().any(|case| case.times.iter().any(|t| t.0 == i)) {
            continue;
        }
        let at = x as i32;
        root.draw(&Rectangle::new([(at, 53), (at + 11, 63)], c.color.filled())).map_err(failed)?;
        draw(c.label, (at + 16, 52), 14)?;
        x += 34.0 + c.label.len() as f64 * LETTER;
    }
    Ok(())
}

/// Ticks from 0 to the longest bar, in readable steps; and their number of decimals.
fn ticks(longest: f64) -> (Vec<f64>, usize) {
    let steps = [0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 2.5, 5.0, 10.0, 20.0, 50.0, 100.0];
    let step = steps.into_iter().find(|s| longest / s <= 8.0).unwrap_or(longest / 8.0);
    let decimals = if step >= 1.0 && step.fract() == 0.0 {
        0
    } else if step == 0.25 {
        2
    } else {
        1
    };
    ((0..=(longest / step) as usize).map(|i| i as f64 * step).collect(), decimals)
}

fn bars(root: &Area<'_>, cases: &[Case], tall: f64) -> Result<()> {
    let longest = cases.iter().flat_map(|c| c.times.iter().map(|t| t.1 / c.unit())).fold(0.1, f64::max);
    let (ticks, decimals) = ticks(longest);
    let names = cases.iter().map(|c| c.name.chars().count()).max().unwrap_or(0) as f64 * LETTER;
    // Labels of cases on the left; on the right, room for the number next to the longest bar.
    let left = (names + 26.0).min(f64::from(WIDTH) / 2.0);
    let wide = f64::from(WIDTH) - left - 70.0;
    let x = |value: f64| (left + value / longest * wide).round() as i32;
    let (top, bottom) = (TOP as i32, (f64::from(TOP) + tall) as i32);
    for tick in &ticks {
        let grid = if *tick == 0.0 { INK } else { RGBColor(222, 222, 222) };
        root.draw(&PathElement::new([(x(*tick), top), (x(*tick), bottom)], grid)).map_err(failed)?;
        let style = text(13).pos(Pos::new(HPos::Center, VPos::Top));
        root.draw_text(&format!("{tick:.decimals$}"), &style, (x(*tick), bottom + 6)).map_err(failed)?;
    }
    let unit = text(14).pos(Pos::new(HPos::Center, VPos::Top));
    root.draw_text("relative time", &unit, (x(longest / 2.0), bottom + 24)).map_err(failed)?;
    let mut y = f64::from(TOP) + GAP / 2.0;
    for case in cases {
        let group = case.times.len().max(1) as f64 * BAR;
        let name = text(14).pos(Pos::new(HPos::Right, VPos::Center));
        root.draw_text(&case.name, &name, (left as i32 - 8, (y + group / 2.0) as i32)).map_err(failed)?;
        let beside = text(12).pos(Pos::new(HPos::Left, VPos::Center));
        if case.times.is_empty() {
            root.draw_text("failed", &beside, (left as i32 + 6, (y + BAR / 2.0) as i32)).map_err(failed)?;
        }
        for (i, (who, us)) in case.times.iter().enumerate() {
            let above = y + i as f64 * BAR;
            let corners = [(x(0.0), above as i32), (x(us / case.unit()), (above + BAR - 2.0) as i32)];
            root.draw(&Rectangle::new(corners, SERIES[*who].color.filled())).map_err(failed)?;
            let at = (corners[1].0 + 4, (above + BAR / 2.0 - 1.0) as i32);
            root.draw_text(&microseconds(*us), &beside, at).map_err(failed)?;
        }
        y += group + GAP;
    }
    Ok(())
}

/// Three or four digits.
fn microseconds(us: f64) -> String {
    match us {
        _ if us < 100.0 => format!("{us:.2}"),
        _ if us < 1000.0 => format!("{us:.1}"),
        _ => format!("{us:.0}"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    fn report() -> Value {
        json!({"about": {"device": "a device", "date": "2026-11-22", "commit": "unknown"}, "rows": [
            {"case": "first <one>", "hypatia": 3.0, "hypatia_unfused": 6.0, "eager": 7.5, "addmm_activation": null},
            {"case": "second", "with_rules": {"us": 1234.5}, "without_rules": {"us": 2469.0}},
            {"case": "third", "error": "no such kernel"},
        ]})
    }

    #[test]
    fn each_case_and_each_time_is_drawn() {
        let text = svg(&report(), &[]).unwrap();
        for wanted in
            ["first &lt;one&gt;", "second", "third", "failed", "3.00", "6.00", "7.50", "1234", "2469", "a device"]
        {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
        assert!(text.contains("PyTorch eager") && !text.contains("addmm") && !text.contains("commit"), "{text}");
        assert_eq!(text, svg(&report(), &[]).unwrap());
    }

    /// Half the time gives half the length, whatever the size of the case.
    #[test]
    fn lengths_are_shares() {
        let text = svg(&report(), &[]).unwrap();
        let color = |c: usize| {
            let RGBColor(r, g, b) = SERIES[c].color;
            format!("#{r:02X}{g:02X}{b:02X}")
        };
        let width = |line: &str| line.split("width=\"").nth(1)?.split('"').next()?.parse::<f64>().ok();
        let of = |c: usize| -> Vec<f64> {
            let lines = text.lines().filter(|l| l.contains("<rect") && l.contains(&color(c)));
            // The first is the legend's.
            lines.filter_map(width).skip(1).collect()
        };
        let (with, without) = (of(0), of(1));
        assert_eq!((with.len(), without.len()), (2, 2), "{text}");
        assert_eq!(with[0], with[1]);
        assert!((with[0] * 2.0 - without[0]).abs() <= 2.0, "{with:?} {without:?}");
    }

    #[test]
    fn rows_choose_and_nothing_is_an_error() {
        let text = svg(&report(), &["sec".to_string()]).unwrap();
        assert!(text.contains("second") && !text.contains("third"));
        assert!(svg(&report(), &["nowhere".to_string()]).is_err());
        assert!(svg(&json!({"x": 1}), &[]).is_err());
    }
}
