//! Which entry point a launcher takes, over which grid.
//!
//! In: a source's entry points, and where the number and the length of rows come from. Out: cases
//! of conditions and launches, as text of one of two languages. Holds always: the same case as
//! [`Geometry::launch`] and the plan's executor choose.

use minijinja::{Value, context};

use super::names::spelled;
use super::outer_axes;
use crate::cuda::{ArgKind, ArgRole, CudaSource, FEW_ELEMENTS, Geometry, MANY_ROWS};
use crate::instances::Body;

/// A language of launchers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    C,
    Python,
}

impl Language {
    /// What the names of helper functions begin with.
    fn prefix(self) -> &'static str {
        match self {
            Language::C => "hypatia_",
            Language::Python => "_",
        }
    }

    fn and(self) -> &'static str {
        match self {
            Language::C => " && ",
            Language::Python => " and ",
        }
    }

    /// A parameter that is an integer.
    fn integer(self, name: &str) -> String {
        match self {
            Language::C => format!("int64_t {name}"),
            Language::Python => name.to_string(),
        }
    }
}

/// Where the number of rows and their length come from.
pub(super) enum Rows {
    /// Arguments with these roles.
    Arguments,
    /// The product of the first axes of `sizes`, and that of the others.
    Sizes { outer: usize, axes: usize },
    /// The product of these arguments and of their tiles, each with the size of a tile.
    Tiles { batches: Vec<String>, tiles: Vec<(String, u32)> },
    /// The caller passes both.
    Caller,
    /// The kernel declares its launch.
    Declared,
}

/// The arguments of a tiled kernel whose product is the number of its problems, and those that it
/// divides into tiles, each with the size of a tile.
pub fn tile_counts(source: &CudaSource) -> (Vec<String>, Vec<(String, u32)>) {
    let has = |name: &str| source.args.iter().any(|a| a.name == name);
    let Some(Geometry::Tiles { rows, columns, .. }) = source.entries.first().map(|e| e.geometry) else {
        return (Vec::new(), Vec::new());
    };
    let batches = ["batches", "outer", "inner", "batch0", "batch1", "batch2", "chunks"];
    let tiles = [("rows", rows), ("queries", rows), ("columns", columns)];
    (
        batches.into_iter().filter(|n| has(n)).map(String::from).collect(),
        tiles.into_iter().filter(|(n, _)| has(n)).map(|(n, size)| (n.into(), size)).collect(),
    )
}

impl Rows {
    pub(super) fn of(body: &Body, source: &CudaSource) -> Rows {
        match source.entries.first().map(|e| e.geometry) {
            Some(Geometry::Declared) => Rows::Declared,
            Some(Geometry::Tiles { .. }) => {
                let (batches, tiles) = tile_counts(source);
                Rows::Tiles { batches, tiles }
            }
            _ if source.args.iter().any(|a| a.role == ArgRole::RowLength) => Rows::Arguments,
            _ => {
                let axes = source.args.iter().find_map(|a| match a.kind {
                    ArgKind::Sizes(axes) if a.name == "sizes" => Some(axes),
                    _ => None,
                });
                match axes.and_then(|axes| Some((outer_axes(body, axes)?, axes))) {
                    Some((outer, axes)) => Rows::Sizes { outer, axes },
                    None => Rows::Caller,
                }
            }
        }
    }

    /// Parameters that are no arguments of the kernel, with their meaning.
    pub(super) fn parameters(&self) -> &'static [(&'static str, &'static str)] {
        match self {
            Rows::Caller => &[
                ("rows", "rows of the work, as `steps` of manifest.json has them"),
                ("n", "elements of a row, likewise"),
            ],
            _ => &[],
        }
    }

    /// True if all elements count as one row.
    pub(super) fn is_flat(&self, source: &CudaSource) -> bool {
        matches!(self, Rows::Arguments) && !source.args.iter().any(|a| a.role == ArgRole::Rows)
    }

    /// Statements that compute the number and the length of rows.
    pub(super) fn derived(&self, language: Language) -> Vec<String> {
        let Rows::Sizes { outer, axes } = self else { return Vec::new() };
        match language {
            Language::C => vec![
                "int64_t rows = 1, n = 1;".into(),
                format!("for (int i = 0; i < {outer}; ++i) rows *= sizes[i];"),
                format!("for (int i = {outer}; i < {axes}; ++i) n *= sizes[i];"),
            ],
            Language::Python => {
                vec![format!("rows, n = math.prod(sizes[:{outer}]), math.prod(sizes[{outer}:])")]
            }
        }
    }
}

/// The cases of a choice.
pub(super) struct Choice {
    /// The names of the parameters of the function that chooses.
    names: Vec<String>,
    /// The same with their types.
    params: Vec<String>,
    /// What is passed for them.
    pub(super) call: Vec<String>,
    /// A condition, and the launch if it holds.
    cases: Vec<(Option<String>, String)>,
}

impl Choice {
    pub(super) fn of(source: &CudaSource, work: &Rows, language: Language) -> Choice {
        let mut params: Vec<(String, String)> = match work {
            Rows::Declared => Vec::new(),
            Rows::Tiles { batches, tiles } => {
                batches.iter().chain(tiles.iter().map(|(n, _)| n)).map(|n| (n.clone(), n.clone())).collect()
            }
            _ if work.is_flat(source) => vec![("n".into(), "n".into())],
            _ => ["rows", "n"].map(|n| (n.to_string(), n.to_string())).to_vec(),
        };
        // One thread a row pays where no operand's rows lie densely.
        if source.entries.iter().any(|e| matches!(e.geometry, Geometry::Columns { .. })) {
            let apart = source.args.iter().filter_map(|a| match a.kind {
                ArgKind::Sizes(count) if a.name.ends_with("_strides") => {
                    Some(format!("{}[{}] != 1", spelled(&a.name), count - 1))
                }
                _ => None,
            });
            params.push(("apart".into(), apart.collect::<Vec<_>>().join(language.and())));
        }
        let many = |e: &&crate::cuda::Entry| matches!(e.geometry, Geometry::Columns { .. });
        let columns = source.entries.iter().enumerate().filter(|(_, e)| many(e));
        let others = source.entries.iter().enumerate().filter(|(_, e)| !many(e));
        let mut cases: Vec<_> = columns.chain(others).map(|(i, e)| case(i, e.geometry, work, language)).collect();
        // The last resort has no condition.
        if let Some((condition, _)) = cases.last_mut() {
            *condition = None;
        }
        Choice {
            names: params.iter().map(|(name, _)| name.clone()).collect(),
            params: params.iter().map(|(name, _)| language.integer(name)).collect(),
            call: params.into_iter().map(|(_, value)| value).collect(),
            cases,
        }
    }

    /// For the templates. Cases after the first without a condition are never reached.
    pub(super) fn value(&self) -> Value {
        let end = self.cases.iter().position(|(c, _)| c.is_none()).map_or(self.cases.len(), |i| i + 1);
        let cases: Vec<Value> = self.cases[..end]
            .iter()
            .map(|(condition, launch)| context! { condition => condition.clone(), launch => launch.clone() })
            .collect();
        let text = |(c, l): &(Option<String>, String)| format!("{} {l}", c.as_deref().unwrap_or_default());
        let all: String = self.cases[..end].iter().map(text).collect();
        let words: Vec<&str> = all.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
        let unused: Vec<String> = self.names.iter().filter(|n| !words.contains(&n.as_str())).cloned().collect();
        context! { params => self.params.join(", "), call => self.call.join(", "), unused => unused, cases => cases }
    }
}

/// The condition under which an entry point is taken, and its launch.
fn case(entry: usize, geometry: Geometry, work: &Rows, language: Language) -> (Option<String>, String) {
    let f = language.prefix();
    let ceil = |what: &str, by: u32| match by {
        1 => what.to_string(),
        _ => format!("{f}ceil({what}, {by})"),
    };
    let line = |blocks: String, cluster: u32, block: u32| format!("{f}line({entry}, {blocks}, {cluster}, {block})");
    match geometry {
        Geometry::Flat { block, vector } => (None, line(ceil("n", block * vector), 1, block)),
        Geometry::Grid { block, vector } => (None, format!("{f}plane({entry}, rows, n, {block}, {vector})")),
        Geometry::Rows { block, threads, up_to } => {
            (up_to.map(|most| format!("n <= {most}")), line(ceil("rows", block / threads), 1, block))
        }
        Geometry::Columns { block } => {
            let either = match language {
                Language::C => format!("(n < {FEW_ELEMENTS} || apart)"),
                Language::Python => format!("(n < {FEW_ELEMENTS} or apart)"),
            };
            let condition = format!("rows >= {MANY_ROWS}{}{either}", language.and());
            (Some(condition), line(ceil("rows", block), 1, block))
        }
        Geometry::Clusters { block, blocks, .. } => (None, line("rows".into(), blocks, block)),
        Geometry::Tiles { block, cluster, .. } => {
            let Rows::Tiles { batches, tiles } = work else { return (None, line("1".into(), cluster, block)) };
            let of_tiles = tiles.iter().map(|(name, size)| ceil(name, *size));
            let factors: Vec<String> = batches.iter().cloned().chain(of_tiles).collect();
            (None, line(factors.join(" * "), cluster, block))
        }
        Geometry::Parts { block, parts } => (None, line(parts.to_string(), 1, block)),
        Geometry::Problems { block, .. } => (None, line(ceil("n", block), 1, block)),
        Geometry::Declared => (None, String::new()),
    }
}
