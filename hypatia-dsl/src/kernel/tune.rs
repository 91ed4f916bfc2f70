//! Tuning parameters of the tiled templates: their values, combinations and stored form.
//!
//! In: the `tune` block of a kernel, or a tiling of a tuning file. Out: values by name, from which
//! each template makes its own tiling. Invariant: a value that the template's table does not list
//! is no value, whether it was written by hand or read from a file.

use super::attention::{self, ATTENTION_TUNE};
use super::attention_grad::{self, ATTENTION_GRAD_TUNE};
use super::attention_sm80::{self, WARP_ATTENTION_TUNE};
use super::chain::{self, CHAIN_TUNE, WARP_CHAIN_TUNE};
use super::{GEMV_TUNE, TUNE, WARP_TUNE, gemm, gemm_sm80, gemv};

/// The parameters of a template, each with the values that the hardware has, in their stored order.
pub type Table = [(&'static str, &'static [i64])];

/// A tiling as a tuning file holds it: the number of its template, then its values.
pub type StoredTiling = [u64; 8];

/// The value of a parameter among these, or `otherwise` if it is missing; `None` if the table does
/// not list it.
pub(super) fn value(table: &Table, values: &[(&str, i64)], name: &str, otherwise: i64) -> Option<usize> {
    let value = values.iter().find(|(n, _)| *n == name).map_or(otherwise, |(_, v)| *v);
    let (_, known) = table.iter().find(|(n, _)| *n == name)?;
    usize::try_from(value).ok().filter(|_| known.contains(&value))
}

/// All combinations of the values that a `tune` block declares. Parameters of other templates have
/// no meaning here.
pub(super) fn combinations<'t>(table: &Table, tune: &'t [(String, Vec<i64>)]) -> Vec<Vec<(&'t str, i64)>> {
    let mut choices: Vec<Vec<(&str, i64)>> = vec![Vec::new()];
    for (name, values) in tune {
        let Some((_, known)) = table.iter().find(|(n, _)| n == name) else { continue };
        // Each value once, so that their product stays small.
        let values = known.iter().filter(|v| values.contains(v));
        let with = |c: Vec<(_, i64)>| values.clone().map(move |v| [&c[..], &[(name.as_str(), *v)]].concat());
        choices = choices.into_iter().flat_map(with).collect();
    }
    choices
}

/// Words of a stored tiling that hold values, and bits of a value: those that find no word of their
/// own share one with an earlier one.
const WORDS: usize = 7;
const BITS: usize = 32;

/// The stored form of a template's values, which stand in the order of its table.
pub(super) fn store(template: u64, values: &[usize]) -> StoredTiling {
    let mut out = [0; 8];
    out[0] = template;
    for (i, v) in values.iter().enumerate() {
        out[1 + i % WORDS] |= (*v as u64) << (BITS * (i / WORDS));
    }
    out
}

/// The parameters of a stored tiling, by name; `None` if it is of no template of ours.
pub fn parameters(words: &StoredTiling) -> Option<Vec<(&'static str, i64)>> {
    let tables: [(u64, &Table); 8] = [
        (gemm::STORED, TUNE),
        (gemm_sm80::STORED, WARP_TUNE),
        (gemv::STORED, GEMV_TUNE),
        (attention::STORED, ATTENTION_TUNE),
        (attention_sm80::STORED, WARP_ATTENTION_TUNE),
        (attention_grad::STORED, ATTENTION_GRAD_TUNE),
        (chain::STORED, CHAIN_TUNE),
        (chain::WARPS_STORED, WARP_CHAIN_TUNE),
    ];
    tables.into_iter().find_map(|(template, table)| {
        let values = stored(template, table, words)?;
        values.iter().all(|(name, v)| value(table, &values, name, *v).is_some()).then_some(values)
    })
}

/// The values that [`store`] stored, if it was for this template.
pub(super) fn stored(template: u64, table: &Table, words: &StoredTiling) -> Option<Vec<(&'static str, i64)>> {
    let value = |i: usize| (words[1 + i % WORDS] >> (BITS * (i / WORDS))) as u32;
    let known: Vec<_> = table.iter().enumerate().map(|(i, (name, _))| (*name, i64::from(value(i)))).collect();
    let values: Vec<usize> = (0..table.len()).map(|i| value(i) as usize).collect();
    (table.len() <= 2 * WORDS && store(template, &values) == *words).then_some(known)
}
