//! Suggestions for misspelt names.
//!
//! In: a name that is not known, and the names that are. Out: the closest of these, if one is
//! close. Invariant: the name itself is never suggested.

use std::collections::HashSet;

/// The closest name: equal except for case, or with an edit distance of at most a third of its
/// length.
pub fn closest<'a>(name: &str, among: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let length = name.chars().count();
    let limit = (length / 3).max(1);
    let mut seen = HashSet::new();
    among
        .filter(|c| c.chars().count().abs_diff(length) <= limit && seen.insert(*c) && *c != name)
        .map(|c| (if length > 1 && c.eq_ignore_ascii_case(name) { 0 } else { distance(name, c) }, c))
        .filter(|(d, c)| *d <= limit && *d < c.chars().count())
        .min_by_key(|(d, _)| *d)
        .map(|(_, c)| c)
}

/// Edit distance of two words (insert, delete, replace, swap of neighbours).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().take(64).collect());
    let mut rows = vec![vec![0usize; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (rows[i - 1][j] + 1).min(rows[i][j - 1] + 1).min(rows[i - 1][j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestions_are_close() {
        assert_eq!(closest("rleu", ["relu", "gelu", "exp"].into_iter()), Some("relu"));
        assert_eq!(closest("Relu", ["gelu", "relu"].into_iter()), Some("relu"));
        assert_eq!(closest("transpse", ["transpose", "split"].into_iter()), Some("transpose"));
        assert_eq!(closest("x", ["abcdef"].into_iter()), None);
    }
}
