//! Chains of products: which tilings compute one in place, and how.
//!
//! In: the products of a step in turn, the views of their operands, the device. Out: the tilings
//! that fit, the one with the shortest predicted time first, and for each the kernel and its
//! [`Work`]. Invariant: no operand is copied; groups take what the copy engine can move, warps any
//! rows on every GPU from Ampere on.

use hypatia_dsl::kernel::chain::{ChainKernel, ChainLayer, ChainTiling, GROUP_ROWS, padded};
use hypatia_dsl::kernel::{Access, Operand, StoredTiling};
use hypatia_templates::cuda::{ArgRole, SizeName};
use hypatia_templates::instances::Body;

use super::map_shape::MapShape;
use super::{Work, fastest_first};
use hypatia_plan::chain::{is_number, rows};
use hypatia_plan::{ChainLayer as Layer, View, matrix_layout};
use hypatia_target::device::Device;
use hypatia_target::device::HOPPER;

/// Blocks of a cluster where there are none: clusters exist from Hopper on.
const NO_CLUSTER: usize = 1;

/// A chain that some template computes in place.
#[derive(Clone, Debug)]
pub struct GeneratedChain {
    rows: usize,
    /// Without its tiling.
    kernel: ChainKernel,
    /// The shapes for the copy engine; `None` if it cannot move an operand or the result.
    maps: Option<Vec<(ArgRole, MapShape)>>,
    hopper: bool,
}

/// The widest access, of at most 8 elements, at which all rows of a matrix begin.
fn vector(view: &View, stride: usize) -> usize {
    [8, 4, 2].into_iter().find(|v| view.offset.is_multiple_of(*v) && stride.is_multiple_of(*v)).unwrap_or(1)
}

impl GeneratedChain {
    /// The chain of a step on a device; `None` if an operand would have to be copied.
    pub fn of(device: &Device, layers: &[Layer], reads: &[View], out: &View) -> Option<GeneratedChain> {
        let [x, beside @ ..] = reads else { return None };
        let (count, stride) = rows(x)?;
        let width = layers.first()?.product.k;
        let map =
            |role: ArgRole, view: &View, sizes: [usize; 2], ld: usize| Some((role, MapShape::of(view, &sizes, &[ld])?));
        let mut maps = vec![map(ArgRole::Read(0), x, [width, count], stride)];
        let (mut rest, mut at) = (beside, 1);
        let mut described = Vec::with_capacity(layers.len());
        for layer in layers {
            let (own, others) = rest.split_at_checked(layer.reads)?;
            let [weight, terms @ ..] = own else { return None };
            let (k, n) = (layer.product.k, layer.product.n);
            let [.., of_k, of_n] = weight.strides.as_slice() else { return None };
            let (by_k, ld) = matrix_layout(k, n, *of_k, *of_n)?;
            maps.push(map(ArgRole::Read(at), weight, if by_k { [k, n] } else { [n, k] }, ld));
            let operand =
                |v: &View| Operand { dtype: v.dtype, access: if is_number(v) { Access::Splat } else { Access::Row } };
            described.push(ChainLayer {
                columns: n,
                by_k,
                stride: ld,
                vector: vector(weight, ld),
                inputs: terms.iter().map(operand).collect(),
                term: layer.product.term.clone(),
            });
            (rest, at) = (others, at + layer.reads);
        }
        let last = described.last()?.columns;
        maps.push(map(ArgRole::Written(0), out, [last, count], last));
        let kernel = ChainKernel {
            name: "chain".into(),
            doc: String::new(),
            factor: x.dtype,
            width,
            stride,
            vector: vector(x, stride),
            layers: described,
            tiling: ChainTiling::Warps { rows: 16, cluster: NO_CLUSTER },
        };
        let hopper = device.sm == HOPPER;
        let found = GeneratedChain { rows: count, kernel, maps: maps.into_iter().collect(), hopper };
        (found.kernel.refusal().is_none() && count > 0 && i32::try_from(count).is_ok()).then_some(found)
    }

    /// The tilings that fit, the one with the best prediction first, for a device with that many
    /// multiprocessors.
    pub fn plausible(&self, multiprocessors: usize) -> Vec<StoredTiling> {
        let all = ChainTiling::all().into_iter().filter(|t| self.takes(*t));
        fastest_first(all, |t| self.cycles(*t, multiprocessors)).iter().map(ChainTiling::words).collect()
    }

    /// Whether the device and the operands' layout allow a tiling, and it fits.
    fn takes(&self, tiling: ChainTiling) -> bool {
        let moved = matches!(tiling, ChainTiling::Warps { .. }) || self.maps.is_some();
        let device = self.hopper || !tiling.is_hopper();
        moved && device && ChainKernel { tiling, ..self.kernel.clone() }.fits()
    }

    /// The kernel with that tiling, and its arguments; `None` if the tiling does not fit.
    pub fn tiled(&self, words: &StoredTiling) -> Option<(Body, Work)> {
        let tiling = ChainTiling::of_words(words).filter(|t| self.takes(*t))?;
        let mut work = Work::new(self.rows, self.kernel.layers.last()?.columns).size(SizeName::Rows, self.rows);
        if matches!(tiling, ChainTiling::Groups { .. }) {
            work.maps.clone_from(self.maps.as_ref()?);
        }
        Some((Body::Chain(ChainKernel { tiling, ..self.kernel.clone() }), work))
    }

    /// Predicted cycles of a multiprocessor. Rough: it only ranks tilings.
    fn cycles(&self, tiling: ChainTiling, multiprocessors: usize) -> f64 {
        /// Products and sums per cycle, and bytes per cycle from the L2 cache.
        const RATE: f64 = 2048.0 * 0.85;
        const BYTES: f64 = 40.0;
        let k = &self.kernel;
        let sizes: Vec<[f64; 3]> = k
            .layers
            .iter()
            .enumerate()
            .map(|(l, layer)| {
                let instructions = layer.term.nodes.len() as f64 * 2.0 + 1.0;
                [padded(k.depth(l)) as f64, padded(layer.columns) as f64, instructions]
            })
            .collect();
        let weights: f64 = sizes.iter().map(|[k, n, _]| k * n * 2.0).sum();
        match tiling {
            ChainTiling::Groups { groups, stages, ring } => {
                let rows = GROUP_ROWS as f64;
                let product: f64 = sizes.iter().map(|[k, n, _]| rows * k * n / RATE).sum();
                let epilogue: f64 = sizes.iter().map(|[_, n, calls]| n / 2.0 * calls).sum();
                // A group alone waits for every layer, and issues half of the time.
                let alone = product + epilogue * 2.0 + k.layers.len() as f64 * 200.0;
                let together = groups as f64 * product.max(epilogue) / if groups > 1 { 1.0 } else { 0.9 };
                let wait = if stages == 1 { 400.0 } else { 0.0 };
                let rounds = self.rows.div_ceil(GROUP_ROWS).div_ceil(multiprocessors * groups) as f64;
                let streamed = if ring > 0 { weights / BYTES } else { 0.0 };
                let start = 2500.0 + if ring > 0 { 0.0 } else { weights / 64.0 } + (stages * groups) as f64 * 20.0;
                start + rounds * (alone.max(together).max(streamed) + wait)
            }
            ChainTiling::Warps { rows, cluster } => {
                let issue: f64 = (0..k.layers.len())
                    .map(|l| k.columns_of_block(l, cluster) as f64 * rows as f64 / 16.0 * (4.0 + sizes[l][2] / 8.0))
                    .sum();
                let exchange = if cluster == NO_CLUSTER { 250.0 } else { 900.0 };
                let of_tile = issue + k.layers.len() as f64 * (350.0 + exchange);
                let clusters = (multiprocessors / cluster).max(1);
                let start = 1800.0 + weights / cluster as f64 / 48.0 + if cluster == NO_CLUSTER { 0.0 } else { 800.0 };
                start + self.rows.div_ceil(rows).div_ceil(clusters) as f64 * of_tile
            }
        }
    }

    /// Widths from the input to the result, and rows, for people.
    pub fn name(&self) -> String {
        let widths = [self.kernel.width].into_iter().chain(self.kernel.layers.iter().map(|l| l.columns));
        let widths: Vec<String> = widths.map(|w| w.to_string()).collect();
        format!("chain {} rows {}", widths.join("x"), self.rows)
    }
}
