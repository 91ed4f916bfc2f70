//! Copies of one part of a right side.
//!
//! In: a right side, and the same with one change. Out: the change in all copies of what changed.
//! Invariant: only applications have copies: what a `let` names stands wherever it is used, and is
//! one value; a number that occurs twice is written twice.

use hypatia_dsl::ir::{Build, BuildArg, BuildNode};

/// Repeats the change between both right sides in the copies of the largest part that has some.
pub(super) fn follow(original: &[Build], changed: &mut [Build]) {
    let differ = |(a, b): &(&Build, &Build)| a != b;
    let Some((mut from, mut to)) = original.iter().zip(&*changed).find(differ) else { return };
    let copies = |part: &Build| original.iter().map(|b| count(b, part)).sum::<usize>();
    while copies(from) < 2 {
        // Two parts that changed places are a change of what they are parts of.
        let mut changes = children(from).into_iter().zip(children(to)).filter(differ);
        let (Some(pair), None) = (changes.next(), changes.next()) else { return };
        (from, to) = pair;
    }
    if let (Build::Node(from), Build::Node(to)) = (from.clone(), to.clone()) {
        changed.iter_mut().for_each(|b| replace(b, &from, &to));
    }
}

/// True for the same application, whichever of its results is meant.
fn is_copy(a: &BuildNode, b: &BuildNode) -> bool {
    a.head == b.head && a.args == b.args && a.attrs == b.attrs
}

/// How often a part occurs.
fn count(build: &Build, part: &Build) -> usize {
    match (build, part) {
        (Build::Node(a), Build::Node(b)) if is_copy(a, b) => 1,
        _ => children(build).into_iter().map(|b| count(b, part)).sum(),
    }
}

fn replace(build: &mut Build, from: &BuildNode, to: &BuildNode) {
    match build {
        Build::Node(n) if is_copy(n, from) => *n = BuildNode { output: n.output, ..to.clone() },
        Build::Node(n) => n.args.iter_mut().for_each(|a| match a {
            BuildArg::One(b) | BuildArg::Each { element: b, .. } => replace(b, from, to),
            BuildArg::Spread(_) => {}
        }),
        Build::Else(_, b) | Build::Frozen(b) => replace(b, from, to),
        Build::If(_, a, b) => [a, b].into_iter().for_each(|b| replace(b, from, to)),
        Build::Number(_) | Build::Var(_) | Build::Absent => {}
    }
}

/// The parts directly inside a part.
fn children(build: &Build) -> Vec<&Build> {
    match build {
        Build::Node(n) => {
            let built = |a| match a {
                &BuildArg::One(ref b) | &BuildArg::Each { element: ref b, .. } => Some(b),
                BuildArg::Spread(_) => None,
            };
            n.args.iter().filter_map(built).collect()
        }
        Build::Else(_, b) | Build::Frozen(b) => vec![b],
        Build::If(_, a, b) => vec![a, b],
        Build::Number(_) | Build::Var(_) | Build::Absent => Vec::new(),
    }
}
