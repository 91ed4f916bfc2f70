//! Instances that are skipped: what they would be compared with has no meaning for an element type.
//!
//! In: instances, skipped and compared ones. Out: a note for the report. Holds always: an element type is listed only if
//! nothing of it was compared; of `bool` alone nothing is said, as `check` says nothing of it either.

use std::collections::BTreeSet;

use hypatia_dsl::dtype::DType;

/// Skips in a row, before anything was compared, that show a meaning for no element type.
const HOPELESS: usize = 200;

/// What was skipped, and what was not.
#[derive(Default)]
pub(super) struct Skips {
    count: usize,
    skipped: BTreeSet<DType>,
    compared: BTreeSet<DType>,
    why: Option<String>,
}

impl Skips {
    /// An instance of that element type was skipped.
    pub(super) fn skip(&mut self, dtype: Option<DType>, why: &str) {
        self.count += 1;
        self.skipped.extend(dtype);
        self.why.get_or_insert_with(|| why.to_string());
    }

    /// An instance of that element type was compared.
    pub(super) fn compare(&mut self, dtype: Option<DType>) {
        self.compared.extend(dtype);
    }

    /// True if so much was skipped that there is a meaning for no element type.
    pub(super) fn hopeless(&self) -> bool {
        self.compared.is_empty() && self.count >= HOPELESS
    }

    /// What was skipped, if it is worth a word. `what` is the side that has no meaning.
    pub(super) fn note(&self, what: &str) -> Option<String> {
        let why = self.why.as_ref()?;
        let never: Vec<DType> = self.skipped.difference(&self.compared).copied().collect();
        match never.as_slice() {
            [] => Some(format!("{} instances were skipped, where {what} has no meaning: {why}", self.count)),
            [DType::Bool] => None,
            some => {
                let names: Vec<&str> = some.iter().map(|d| d.name()).collect();
                Some(format!("{what} has no meaning for {}: skipped", names.join(", ")))
            }
        }
    }
}
