//! Reductions beside a product: of a value of its epilogue, over rows, over columns, or over both.
//!
//! In: what is reduced, and the sizes of the product. Out: how many results there are, and how many
//! parts each consists of. Invariant: each tile reduces its own elements; a second launch joins the
//! parts in ascending order, so that results do not change from run to run.
//!
//! Gradients of biases are sums over rows; a scale for a quantised type is the largest magnitude
//! of a row or of all.

use super::Reduction;

/// Which axes a reduction removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Along {
    /// The rows of all products: one result a column.
    Rows,
    /// The columns: one result a row.
    Columns,
    /// All elements: one result.
    All,
}

/// A reduction beside a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reduced {
    /// How elements are joined: sum, largest or smallest.
    pub kind: Reduction,
    /// What it runs over.
    pub along: Along,
}

impl Reduced {
    /// True if tiles can compute it: parts of it are joined as its elements are.
    pub fn joins(kind: Reduction) -> bool {
        matches!(kind, Reduction::Sum | Reduction::Max | Reduction::Min)
    }

    /// The number of results, for so many products of so many rows and columns.
    pub fn results(&self, batches: usize, rows: usize, columns: usize) -> usize {
        match self.along {
            Along::Rows => columns,
            Along::Columns => batches * rows,
            Along::All => 1,
        }
    }

    /// The parts of a result, for tiles of so many rows and columns. Of all elements, each of the
    /// four warps of a tile has a part.
    pub fn parts(&self, [batches, rows, columns]: [usize; 3], [tile_rows, tile_columns]: [usize; 2]) -> usize {
        let (down, across) = (batches * rows.div_ceil(tile_rows), columns.div_ceil(tile_columns));
        match self.along {
            Along::Rows => down,
            Along::Columns => across,
            Along::All => down * across * 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tile_has_a_part() {
        let sizes = |along| {
            let r = Reduced { kind: Reduction::Sum, along };
            (r.results(2, 100, 300), r.parts([2, 100, 300], [64, 128]))
        };
        assert_eq!(sizes(Along::Rows), (300, 4));
        assert_eq!(sizes(Along::Columns), (200, 3));
        assert_eq!(sizes(Along::All), (1, 48));
    }
}
