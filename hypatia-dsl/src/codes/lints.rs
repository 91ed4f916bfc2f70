//! H05xx: lints.

use super::Row;

/// In the order of their codes.
pub(super) const ROWS: &[Row] = &[];
