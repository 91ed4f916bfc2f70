//! H03xx: types and shapes.

use super::Row;

/// In the order of their codes.
pub(super) const ROWS: &[Row] = &[];
