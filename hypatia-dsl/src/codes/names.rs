//! H02xx: names and files.

use super::Row;

/// In the order of their codes.
pub(super) const ROWS: &[Row] = &[];
