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
use hypatia_dsl::kernel::MOST_NARROW;

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
    /// The product of the first axes of `sizes`, and that of the others; whether 32 bits count all.
    Sizes { outer: usize, axes: usize, narrow: bool },
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
    let Some(Geometry::Tiles { rows, columns, .. }) = source.entries.first().map(|e| e.geometry) else {
        return (Vec::new(), Vec::new());
    };
    let of_role = |role| source.args.iter().filter(move |a| a.role == role).map(|a| a.name.clone());
    let tiles = [(ArgRole::TiledRows, rows), (ArgRole::TiledColumns, columns)];
    let tiles = tiles.into_iter().flat_map(|(role, size)| of_role(role).map(move |name| (name, size)));
    (of_role(ArgRole::Problems).collect(), tiles.collect())
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
                let axes = source.args.iter().find_map(|a| match (a.role, a.kind) {
                    (ArgRole::Axes, ArgKind::Sizes { count, .. }) => Some(count),
                    _ => None,
                });
                match axes.and_then(|axes| Some((outer_axes(body, axes)?, axes))) {
                    Some((outer, axes)) => {
                        let narrow = matches!(body, Body::Horizontal(k) if k.narrow);
                        Rows::Sizes { outer, axes, narrow }
                    }
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

    /// True if the number and the length of rows are products of sizes.
    pub(super) fn multiplies(&self) -> bool {
        matches!(self, Rows::Sizes { .. })
    }

    /// Statements that compute the number and the length of rows.
    pub(super) fn derived(&self, language: Language) -> Vec<String> {
        let Rows::Sizes { outer, axes, narrow } = self else { return Vec::new() };
        let mut lines: Vec<String> = match language {
            Language::C => vec![
                "int64_t rows = 1, n = 1;".into(),
                format!("for (int i = 0; i < {outer}; ++i) rows *= sizes[i];"),
                format!("for (int i = {outer}; i < {axes}; ++i) n *= sizes[i];"),
            ],
            Language::Python => {
                vec![format!("rows, n = math.prod(sizes[:{outer}]), math.prod(sizes[{outer}:])")]
            }
        };
        if *narrow {
            lines.extend(match language {
                Language::C => vec![format!("if (n > {MOST_NARROW}) return CUDA_ERROR_INVALID_VALUE;")],
                Language::Python => vec![
                    format!("if n > {MOST_NARROW}:"),
                    format!("    raise ValueError(f\"{{STEM}}: 32 bits count the elements, and {{n}} are too many\")"),
                ],
            });
        }
        lines
    }
}

/// What a choice depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Quantity {
    /// The number of rows.
    Rows,
    /// The length of a row.
    Length,
    /// Whether no operand's rows lie densely.
    Apart,
    /// The argument of that name: a number of problems, or a size that is divided into tiles.
    Count(String),
}

impl Quantity {
    /// Its name in the function that chooses.
    fn name(&self) -> &str {
        match self {
            Quantity::Rows => "rows",
            Quantity::Length => "n",
            Quantity::Apart => "apart",
            Quantity::Count(name) => name,
        }
    }
}

/// An expression, and the quantities that it reads.
struct Expression {
    text: String,
    reads: Vec<Quantity>,
}

/// An entry point: the launch, and the condition under which it is taken.
struct Case {
    condition: Option<Expression>,
    launch: Expression,
}

/// The cases of a choice.
pub(super) struct Choice {
    language: Language,
    /// The parameters of the function that chooses.
    params: Vec<Quantity>,
    /// What is passed for them.
    pub(super) call: Vec<String>,
    /// The cases, in order.
    cases: Vec<Case>,
}

impl Choice {
    pub(super) fn of(source: &CudaSource, work: &Rows, language: Language) -> Choice {
        let mut params: Vec<Quantity> = match work {
            Rows::Declared => Vec::new(),
            Rows::Tiles { batches, tiles } => counts(batches, tiles),
            _ if work.is_flat(source) => vec![Quantity::Length],
            _ => vec![Quantity::Rows, Quantity::Length],
        };
        let mut call: Vec<String> = params.iter().map(|p| p.name().to_string()).collect();
        // One thread a row pays where no operand's rows lie densely.
        if source.entries.iter().any(|e| matches!(e.geometry, Geometry::Columns { .. })) {
            let apart = source.args.iter().filter_map(|a| match a.kind {
                ArgKind::Strides { axes, .. } => Some(format!("{}[{}] != 1", spelled(&a.name), axes - 1)),
                _ => None,
            });
            params.push(Quantity::Apart);
            call.push(apart.collect::<Vec<_>>().join(language.and()));
        }
        let many = |e: &&crate::cuda::Entry| matches!(e.geometry, Geometry::Columns { .. });
        let columns = source.entries.iter().enumerate().filter(|(_, e)| many(e));
        let others = source.entries.iter().enumerate().filter(|(_, e)| !many(e));
        let mut cases: Vec<_> = columns.chain(others).map(|(i, e)| case(i, e.geometry, work, language)).collect();
        // The last resort has no condition.
        if let Some(last) = cases.last_mut() {
            last.condition = None;
        }
        Choice { language, params, call, cases }
    }

    /// For the templates. Cases after the first without a condition are never reached.
    pub(super) fn value(&self) -> Value {
        let end = self.cases.iter().position(|c| c.condition.is_none()).map_or(self.cases.len(), |i| i + 1);
        let reached = &self.cases[..end];
        let expressions = reached.iter().flat_map(|c| c.condition.iter().chain([&c.launch]));
        let read: Vec<&Quantity> = expressions.flat_map(|e| &e.reads).collect();
        let unused: Vec<_> = self.params.iter().filter(|p| !read.contains(p)).map(|p| p.name().to_string()).collect();
        let params: Vec<String> = self.params.iter().map(|p| self.language.integer(p.name())).collect();
        let text = |e: &Expression| e.text.clone();
        let case = |c: &Case| context! { condition => c.condition.as_ref().map(text), launch => text(&c.launch) };
        let cases: Vec<Value> = reached.iter().map(case).collect();
        context! { params => params.join(", "), call => self.call.join(", "), unused => unused, cases => cases }
    }
}

/// The numbers of problems, and the sizes that are divided into tiles.
fn counts(batches: &[String], tiles: &[(String, u32)]) -> Vec<Quantity> {
    batches.iter().chain(tiles.iter().map(|(name, _)| name)).cloned().map(Quantity::Count).collect()
}

/// When an entry point is taken, and its launch.
fn case(entry: usize, geometry: Geometry, work: &Rows, language: Language) -> Case {
    use Quantity::{Apart, Length, Rows as Count};
    let f = language.prefix();
    let ceil = |what: &str, by: u32| match by {
        1 => what.to_string(),
        _ => format!("{f}ceil({what}, {by})"),
    };
    let line = |blocks: String, cluster: u32, block: u32| format!("{f}line({entry}, {blocks}, {cluster}, {block})");
    let always = |text: String, reads: Vec<Quantity>| Case { condition: None, launch: Expression { text, reads } };
    match geometry {
        Geometry::Flat { block, vector } | Geometry::Accesses { block, vector } => {
            always(line(ceil("n", block * vector), 1, block), vec![Length])
        }
        Geometry::Grid { block, vector } => {
            always(format!("{f}plane({entry}, rows, n, {block}, {vector})"), vec![Count, Length])
        }
        Geometry::Rows { block, threads, up_to } => Case {
            condition: up_to.map(|most| Expression { text: format!("n <= {most}"), reads: vec![Length] }),
            ..always(line(ceil("rows", block / threads), 1, block), vec![Count])
        },
        Geometry::Blocks { block, .. } => always(line("rows".into(), 1, block), vec![Count]),
        Geometry::Columns { block } => {
            let either = match language {
                Language::C => format!("(n < {FEW_ELEMENTS} || apart)"),
                Language::Python => format!("(n < {FEW_ELEMENTS} or apart)"),
            };
            let text = format!("rows >= {MANY_ROWS}{}{either}", language.and());
            let condition = Some(Expression { text, reads: vec![Count, Length, Apart] });
            Case { condition, ..always(line(ceil("rows", block), 1, block), vec![Count]) }
        }
        Geometry::Clusters { block, blocks, .. } => always(line("rows".into(), blocks, block), vec![Count]),
        Geometry::Tiles { block, cluster, .. } => {
            let Rows::Tiles { batches, tiles } = work else {
                return always(line("1".into(), cluster, block), Vec::new());
            };
            let of_tiles = tiles.iter().map(|(name, size)| ceil(name, *size));
            let factors: Vec<String> = batches.iter().cloned().chain(of_tiles).collect();
            always(line(factors.join(" * "), cluster, block), counts(batches, tiles))
        }
        Geometry::Parts { block, parts } => always(line(parts.to_string(), 1, block), Vec::new()),
        Geometry::Problems { block, .. } => always(line(ceil("n", block), 1, block), vec![Length]),
        Geometry::Declared => always(String::new(), Vec::new()),
    }
}
