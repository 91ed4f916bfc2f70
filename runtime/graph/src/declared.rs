//! The launches that a template's kernel declares, for concrete operands.
//!
//! In: a kernel, what its variables stand for, and the operands. Out: for each combination of
//! tuning parameters, the grid, the block and the shared memory as numbers. Invariant: every launch
//! is one that CUDA can express; a combination whose `launch` is not known, negative or too large
//! has none.

use hypatia_dsl::ir::{AExpr, AttrValue, Kernel, VarId};
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::{Bindings, eval};
use hypatia_target::device::Device;

use crate::graph::kernels::{CandidateFacts, Known, Matched};
use crate::print::show_attr;

/// A launch, and the tuning parameters that it belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclaredLaunch {
    /// The tuning parameters by name.
    pub tune: Vec<(String, i64)>,
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
}

/// Combinations of tuning parameters that are considered at most.
const MAX_LAUNCHES: usize = 64;
/// The largest grid, by axis.
const MAX_GRID: [i64; 3] = [(1 << 31) - 1, 65_535, 65_535];
/// The most threads of a block, in all and by axis.
const MAX_THREADS: i64 = 1024;
const MAX_BLOCK: [i64; 3] = [1024, 1024, 64];
/// More shared memory than any device has, in bytes.
const MAX_SHARED: i64 = 1 << 20;

impl DeclaredLaunch {
    /// The launches of a kernel for these operands, in the order of its tuning parameters.
    pub fn all(
        kernel: &Kernel,
        matched: &Matched,
        known: &dyn Fn(usize) -> Option<Known>,
        device: &Device,
    ) -> Vec<DeclaredLaunch> {
        let facts = CandidateFacts { operands: &matched.operands, known, device };
        let launch = |tune: Vec<(String, i64)>| {
            let mut bindings = matched.bindings.clone();
            for (name, value) in &tune {
                let var = kernel.vars.iter().position(|v| v.name == *name)?;
                bindings.values.insert(VarId(var as u32), AttrValue::Dim(Dim::from(*value)));
            }
            let setting = |key: &str| kernel.launch.iter().find(|(k, _)| k == key).map(|(_, e)| e);
            let sizes = |key: &str| numbers(setting(key)?, &bindings, &facts);
            let grid = within(&sizes("grid")?, MAX_GRID)?;
            let block = within(&sizes("block")?, MAX_BLOCK)?;
            let threads: i64 = block.iter().map(|n| i64::from(*n)).product();
            let shared = match setting("shared") {
                Some(e) => *numbers(e, &bindings, &facts)?.first()?,
                None => 0,
            };
            let fits = threads <= MAX_THREADS && (0..=MAX_SHARED).contains(&shared);
            fits.then_some(DeclaredLaunch { tune, grid, block, shared: u32::try_from(shared).ok()? })
        };
        combinations(kernel).into_iter().filter_map(launch).collect()
    }

    /// Why a kernel has no launch for these operands, by its first choice of tuning parameters.
    pub(crate) fn why_none(
        kernel: &Kernel,
        matched: &Matched,
        known: &dyn Fn(usize) -> Option<Known>,
        device: &Device,
    ) -> String {
        let facts = CandidateFacts { operands: &matched.operands, known, device };
        let mut bindings = matched.bindings.clone();
        let mut chosen = Vec::new();
        for (name, value) in combinations(kernel).into_iter().next().unwrap_or_default() {
            if let Some(var) = kernel.vars.iter().position(|v| v.name == name) {
                bindings.values.insert(VarId(var as u32), AttrValue::Dim(Dim::from(value)));
            }
            chosen.push(format!("{name} = {value}"));
        }
        let with = if chosen.is_empty() { String::new() } else { format!(" with {}", chosen.join(", ")) };
        for (key, e) in &kernel.launch {
            let sizes = numbers(e, &bindings, &facts);
            let (most, possible) = match (key.as_str(), sizes.as_deref()) {
                ("grid", sizes) => (MAX_GRID, sizes.is_some_and(|s| within(s, MAX_GRID).is_some())),
                ("block", sizes) => (MAX_BLOCK, sizes.is_some_and(|s| within(s, MAX_BLOCK).is_some())),
                _ => continue,
            };
            if !possible {
                let shown = eval(e, &bindings, &facts).as_ref().map_or("not known".into(), show_attr);
                return format!(
                    "its `{key}` is {shown}{with}, and must be whole numbers from 1 to {most:?} (`/` does not round; \
                     `floor((n + 63) / 64)` does)"
                );
            }
        }
        format!("its block has more than {MAX_THREADS} threads{with}, or its shared memory is not possible")
    }
}

/// Every combination of tuning parameters, up to a limit.
fn combinations(kernel: &Kernel) -> Vec<Vec<(String, i64)>> {
    let mut out = vec![Vec::new()];
    for (name, choices) in &kernel.tune {
        let with = |c: &Vec<(String, i64)>| {
            choices.iter().map(|v| [c.as_slice(), &[(name.clone(), *v)]].concat()).collect::<Vec<_>>()
        };
        out = out.iter().flat_map(with).take(MAX_LAUNCHES).collect();
    }
    out
}

/// The value of a setting: one number or a list of them.
fn numbers(e: &AExpr, bindings: &Bindings, facts: &CandidateFacts<'_>) -> Option<Vec<i64>> {
    let number = |v: &AttrValue| match v {
        AttrValue::Dim(d) => d.as_const(),
        _ => None,
    };
    match eval(e, bindings, facts)? {
        AttrValue::List(list) => list.iter().map(number).collect(),
        one => Some(vec![number(&one)?]),
    }
}

/// Three sizes from one to three positive numbers, each within its limit.
fn within(sizes: &[i64], most: [i64; 3]) -> Option<[u32; 3]> {
    let mut out = [1; 3];
    if sizes.is_empty() || sizes.len() > out.len() {
        return None;
    }
    for ((slot, size), most) in out.iter_mut().zip(sizes).zip(most) {
        *slot = u32::try_from(*size).ok().filter(|n| *n > 0 && *size <= most)?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_cuda_cannot_express_have_no_launch() {
        assert_eq!(within(&[5], MAX_GRID), Some([5, 1, 1]));
        assert_eq!(within(&[5, 2, 3], MAX_GRID), Some([5, 2, 3]));
        for bad in [&[][..], &[0], &[-1], &[1, 65_536], &[1, 1, 1, 1], &[1 << 31]] {
            assert_eq!(within(bad, MAX_GRID), None, "{bad:?}");
        }
        assert_eq!(within(&[1, 1, 65], MAX_BLOCK), None);
    }
}
