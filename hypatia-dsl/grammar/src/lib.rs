//! The grammar of the Hypatia language (`hyp.pest`), and the parser that pest makes of it.
//!
//! In: the text of one item. Out: pairs of [`Rule`]s, or where the grammar got stuck. `hypatia-dsl`
//! builds the tree and words the errors. It is a crate of its own so that the generated code is
//! compiled once, and optimised in dev builds too.

// The generated rules cannot carry doc comments.
#[allow(missing_docs)]
mod generated {
    #[derive(pest_derive::Parser)]
    #[grammar = "hyp.pest"]
    pub struct Grammar;
}

pub use generated::Rule;
use pest::Parser as _;
use pest::error::Error;
use pest::iterators::Pairs;

/// Parses one item; the pairs' offsets count from the start of `item`.
///
/// ```
/// assert!(hypatia_grammar::parse("scalar relu(x) = max(x, 0);").is_ok());
/// assert!(hypatia_grammar::parse("scalar relu(x) = ;").is_err());
/// ```
#[allow(clippy::result_large_err)] // pest's own type.
pub fn parse(item: &str) -> Result<Pairs<'_, Rule>, Error<Rule>> {
    generated::Grammar::parse(Rule::item, item)
}
