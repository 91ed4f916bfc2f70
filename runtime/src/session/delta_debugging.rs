//! Which rules to leave out where a fused plan differs from the unfused one.
//!
//! In: the rules that fired, and a judge of the plan without some of them. Out: rules without which
//! the plan agrees. Invariant: what is returned was judged; without all of them, the plan is the
//! unfused one, which needs no judge.

use hypatia_tensor::error::Result;

/// Looks for few rules without which the plan agrees: halves of those left out come back as long
/// as the plan agrees (delta debugging). `agrees` makes and judges a plan without the given rules,
/// at most `tries` times. `None` if only the plan without rules is known to agree.
pub(super) fn without<T>(
    rules: &[String],
    mut tries: usize,
    mut agrees: impl FnMut(&[String]) -> Result<Option<T>>,
) -> Result<Option<(Vec<String>, T)>> {
    let (mut found, mut pieces) = (None, 2);
    loop {
        let out = found.as_ref().map_or(rules, |(out, _): &(Vec<String>, T)| out);
        let size = out.len().div_ceil(pieces).max(1);
        let mut next = None;
        for first in (0..out.len()).step_by(size) {
            let rest = [&out[..first], &out[(first + size).min(out.len())..]].concat();
            if rest.is_empty() || tries == 0 {
                continue;
            }
            tries -= 1;
            if let Some(plan) = agrees(&rest)? {
                next = Some((rest, plan));
                break;
            }
        }
        match next {
            Some(better) => (found, pieces) = (Some(better), (pieces - 1).max(2)),
            None if size == 1 || tries == 0 => return Ok(found),
            None => pieces *= 2,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// What is found among ten rules where the plan agrees without `wrong`, and how often it asks.
    fn found(wrong: &[&str], tries: usize) -> (Option<Vec<String>>, usize) {
        let rules: Vec<String> = (0..10).map(|i| format!("r{i}")).collect();
        let mut asked = 0;
        let out = without(&rules, tries, |out| {
            asked += 1;
            Ok(wrong.iter().all(|w| out.iter().any(|o| o == w)).then_some(()))
        });
        (out.unwrap().map(|(out, ())| out), asked)
    }

    #[test]
    fn few_rules_are_left_out() {
        for i in 0..10 {
            let name = format!("r{i}");
            let (out, asked) = found(&[&name], 12);
            assert_eq!(out.unwrap(), [name]);
            assert!(asked <= 12, "{asked}");
        }
        assert_eq!(found(&["r1", "r8"], 40).0.unwrap(), ["r1", "r8"]);
    }

    #[test]
    fn what_was_not_judged_is_not_returned() {
        assert_eq!(found(&["r3"], 0), (None, 0));
        let (out, asked) = found(&["r3", "r7"], 3);
        assert_eq!(asked, 3);
        assert!(out.is_none_or(|out| out.contains(&"r3".to_string()) && out.contains(&"r7".to_string())));
        let all: Vec<String> = (0..10).map(|i| format!("r{i}")).collect();
        let names: Vec<&str> = all.iter().map(String::as_str).collect();
        assert_eq!(found(&names, 50).0, None);
    }
}
