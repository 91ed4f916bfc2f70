//! Instances that are skipped because their reference is undefined for an element type.
//!
//! In: instances, skipped and compared ones. Out: a note for the report. Invariant: an element type
//! is listed only if no instance of it was compared; `bool` alone is not reported, as in `check`,
//! and types in which nothing computes never are.

use std::collections::BTreeSet;

use hypatia_dsl::dtype::DType;

/// If this many instances are skipped before any is compared, the reference is undefined for every
/// element type.
const HOPELESS: usize = 200;

/// The skipped and the compared instances.
#[derive(Default)]
pub(super) struct Skips {
    count: usize,
    skipped: BTreeSet<DType>,
    compared: BTreeSet<DType>,
    why: Option<String>,
}

impl Skips {
    /// Records that an instance of this element type was skipped.
    pub(super) fn skip(&mut self, dtype: Option<DType>, why: &str) {
        self.count += 1;
        self.skipped.extend(dtype);
        self.why.get_or_insert_with(|| why.to_string());
    }

    /// Records that an instance of this element type was compared.
    pub(super) fn compare(&mut self, dtype: Option<DType>) {
        self.compared.extend(dtype);
    }

    /// True if so many were skipped that the reference is undefined for every element type.
    pub(super) fn hopeless(&self) -> bool {
        self.compared.is_empty() && self.count >= HOPELESS
    }

    /// The skipped element types, if they are worth reporting. `what` names the side that is
    /// undefined.
    pub(super) fn note(&self, what: &str) -> Option<String> {
        let why = self.why.as_ref()?;
        if self.skipped.is_subset(&self.compared) {
            return Some(format!("{} instances were skipped because {what} is undefined there: {why}", self.count));
        }
        let never = self.skipped.difference(&self.compared).copied();
        match never.filter(|d| !d.only_stored()).collect::<Vec<_>>().as_slice() {
            [] | [DType::Bool] => None,
            some => {
                let names: Vec<&str> = some.iter().map(|d| d.name()).collect();
                Some(format!("{what} is undefined for {}: skipped", names.join(", ")))
            }
        }
    }
}
