//! Old spellings that the formatter rewrites.
//!
//! In: a file without syntax errors. Out: its text, with `approx(units)` in `class` clauses written
//! as `approx(rel, abs)`. Invariant: other tokens stay as they are; a file without old spellings
//! stays the same.

use std::borrow::Cow;

use crate::ast::counts_units;
use crate::dtype::DType;
use crate::parse::scan::{self, Kind};

/// Rewrites `approx(units)`, which counted units in the last place of the type that is computed in.
pub(super) fn migrated(text: &str) -> Cow<'_, str> {
    let tokens: Vec<_> = scan::tokens(text).into_iter().filter(|t| !t.is_comment()).collect();
    let word = |i: usize| tokens.get(i).map_or("", |t| t.text(text));
    let mut out = String::new();
    let mut copied = 0;
    let mut inside = false;
    for i in 0..tokens.len() {
        match word(i) {
            "class" => inside = true,
            ";" | "}" => inside = false,
            _ => {}
        }
        let number = tokens.get(i + 2).filter(|t| t.kind == Kind::Number);
        let old = inside && word(i) == "approx" && word(i + 1) == "(" && word(i + 3) == ")";
        let Some(number) = number.filter(|_| old && i > 0 && matches!(word(i - 1), "class" | ",")) else { continue };
        let Some(units) = number.text(text).parse::<f64>().ok().filter(|n| counts_units(*n)) else { continue };
        let unit = unit(&mut (i + 4..tokens.len()).map(word));
        out.push_str(&text[copied..number.start as usize]);
        out.push_str(&format!("{}, 0", rounded_up(units * unit)));
        copied = number.end as usize;
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[copied..]);
    Cow::Owned(out)
}

/// The unit of the coarsest float type in `for T, U`, and of f32 where there is none.
fn unit(after: &mut dyn Iterator<Item = &str>) -> f64 {
    let mut named = None;
    if after.next() == Some("for") {
        let words = after.take_while(|w| *w == "," || DType::from_name(w).is_some());
        named = words.filter_map(DType::from_name).filter(|d| d.is_float()).map(DType::epsilon).reduce(f64::max);
    }
    named.unwrap_or(DType::F32.epsilon())
}

/// A number of two digits that is not below `v`.
fn rounded_up(v: f64) -> String {
    let near = format!("{v:.1e}");
    let more = if near.parse::<f64>().is_ok_and(|n| n >= v) { near } else { format!("{:.1e}", v * 1.05) };
    more.replace(".0e", "e").trim_end_matches("e0").to_string()
}
