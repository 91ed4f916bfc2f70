//! What a size is called, where a kernel's source asks for it and where a launch binds it.
//!
//! In: nothing. Out: a [`SizeName`], and its spelling in sources and in manifest.json. Invariant: a
//! kernel's argument and the work of its launch mean the same size by the same name; a name that no
//! kernel has does not compile.

use super::ArgRole;

/// The name of a size, or of a list of sizes, that a kernel takes as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeName {
    /// The sizes of the axes of the work.
    Axes,
    /// The sizes of the axes of a part of horizontally fused work.
    OfPart(usize),
    /// The elements between neighbours along the axis of each pick of a part, and its size.
    Picks(usize),
    /// The sizes of the tensor of that role, in a user's template.
    Tensor(ArgRole),
    /// Rows.
    Rows,
    /// Columns.
    Columns,
    /// Channels of an image.
    Channels,
    /// Rows of a product of a user's template.
    M,
    /// Elements of a row, or columns of a product of a user's template.
    N,
    /// Terms of a product's sum, of integers or of a user's template.
    K,
    /// Terms of a product's sum.
    Depth,
    /// Products of a user's template, or elements of a batch that is indexed.
    Batch,
    /// Products.
    Batches,
    /// The first axis of an attention's batch.
    Batch0,
    /// The second one.
    Batch1,
    /// The third one.
    Batch2,
    /// Outer products, or lines that lie one after the other.
    Outer,
    /// Inner products of each outer one, or lines that lie side by side.
    Inner,
    /// Queries of each head.
    Queries,
    /// Keys of each head.
    Keys,
    /// Heads whose keys and values stay in the cache together.
    Section,
    /// Chunks of keys, or of a line.
    Chunks,
    /// Elements of a chunk of a line.
    Length,
    /// Elements of a sorted run.
    Run,
    /// The size of an axis that is indexed or summed along.
    Size,
    /// Where each operand of a concatenation ends, or the blocks of each part of a launch.
    Ends,
    /// Elements before a padded operand, along each axis.
    Before,
    /// The sizes of a padded operand.
    Data,
    /// The sizes of the axes that tuples index.
    Dims,
    /// Elements between neighbours along these axes.
    Steps,
    /// Parts of a sum.
    Parts,
    /// Parts of a row in a block of columns.
    PartsOfBlock,
    /// Blocks of columns.
    Blocks,
    /// Columns of a block.
    Width,
}

impl SizeName {
    /// Its spelling in sources and in manifest.json.
    pub fn name(self) -> String {
        let word = match self {
            SizeName::Tensor(role) => return format!("{}_sizes", role.tensor_name()),
            SizeName::OfPart(part) => return format!("sizes{part}"),
            SizeName::Picks(part) => return format!("picks{part}"),
            SizeName::Axes => "sizes",
            SizeName::Rows => "rows",
            SizeName::Columns => "columns",
            SizeName::Channels => "channels",
            SizeName::M => "m",
            SizeName::N => "n",
            SizeName::K => "k",
            SizeName::Depth => "depth",
            SizeName::Batch => "batch",
            SizeName::Batches => "batches",
            SizeName::Batch0 => "batch0",
            SizeName::Batch1 => "batch1",
            SizeName::Batch2 => "batch2",
            SizeName::Outer => "outer",
            SizeName::Inner => "inner",
            SizeName::Queries => "queries",
            SizeName::Keys => "keys",
            SizeName::Section => "section",
            SizeName::Chunks => "chunks",
            SizeName::Length => "length",
            SizeName::Run => "run",
            SizeName::Size => "size",
            SizeName::Ends => "ends",
            SizeName::Before => "before",
            SizeName::Data => "data",
            SizeName::Dims => "dims",
            SizeName::Steps => "steps",
            SizeName::Parts => "parts",
            SizeName::PartsOfBlock => "parts_of_block",
            SizeName::Blocks => "blocks",
            SizeName::Width => "width",
        };
        word.into()
    }
}
