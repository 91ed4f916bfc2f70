//! Chains of matrix products with their epilogues, whose intermediates stay in the multiprocessor.
//!
//! In: a [`ChainKernel`] whose tiling fits. Out: its source, from the template for Hopper's groups
//! or from that of warps. Invariant: each epilogue is one inlined function of the accumulator and
//! its operands, in the compute types; its result is rounded once, as if it were stored.

use minijinja::{Value, context};

use super::term::{Functions, compute_name};
use super::tiles::{FLOATS, OnTiles, Tiles, loaded};
use super::{Arg, ArgRole, CudaSource, EmitError, Geometry, SizeName};
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::chain::{ChainKernel, ChainLayer, ChainTiling, GROUP_ROWS, MAX_WIDTH, padded};
use hypatia_dsl::kernel::{Access, TILE_K};

/// A chain with what its template is told of it.
struct Printed<'k> {
    kernel: &'k ChainKernel,
    /// The index of each layer's weight among the step's reads; its epilogue's operands follow it.
    weights: Vec<usize>,
    /// Where each row of an epilogue lies: its layer, its place among the layer's operands, and its
    /// offset, in bytes for groups and in elements for warps.
    rows: Vec<(usize, usize, usize)>,
}

pub(super) fn emit(program: &Program, kernel: &ChainKernel) -> Result<CudaSource, EmitError> {
    let malformed = |what: &str| EmitError::Malformed(format!("chain of products {}: {what}", kernel.name));
    if let Some(why) = kernel.refusal() {
        return Err(malformed(why));
    }
    if !kernel.fits() {
        return Err(malformed("its tiles do not fit into shared memory or registers"));
    }
    let printed = Printed::of(kernel);
    let mut functions = Functions::bare(program);
    let mut bodies = Vec::new();
    let mut formulas = Vec::new();
    let copies = match kernel.tiling {
        ChainTiling::Groups { .. } => MAX_WIDTH / 2,
        ChainTiling::Warps { .. } => 2,
    };
    for (l, layer) in kernel.layers.iter().enumerate() {
        let (weight, last) = (printed.weights[l], kernel.layers.len() - 1);
        let on = OnTiles { term: &layer.term, pair: false, inputs: &layer.inputs, factors: weight + 1, types: FLOATS };
        let comment = format!("What becomes of an element of product {}.", l + 1);
        bodies.push(on.function(
            &mut functions,
            (&format!("epilogue{l}"), &comment),
            &[kernel.factor],
            copies as u64,
        )?);
        let left = if l == 0 { "in0".to_string() } else { format!("h{l}") };
        let to = if l == last { "out0".to_string() } else { format!("h{}", l + 1) };
        formulas.push(format!("{to} = {}, where acc = {left} in{weight}", on.formula(program)));
    }
    let (template, own) = match kernel.tiling {
        ChainTiling::Groups { groups, stages, ring } => ("mlp_fused.cu.j2", printed.groups([groups, stages, ring])),
        ChainTiling::Warps { rows, cluster } => ("mlp_cluster.cu.j2", printed.warps([rows, cluster])),
    };
    let tiles = Tiles {
        name: &kernel.name,
        doc: &kernel.doc,
        kind: "a chain of matrix products with their epilogues",
        formula: formulas.join("; "),
        args: printed.arguments(),
        geometry: printed.geometry(),
        bodies,
        template,
    };
    tiles.render(&functions, own)
}

impl<'k> Printed<'k> {
    fn of(kernel: &'k ChainKernel) -> Printed<'k> {
        let mut weights = Vec::new();
        let mut next = 1;
        for layer in &kernel.layers {
            weights.push(next);
            next += 1 + layer.inputs.len();
        }
        let mut at = 0;
        let mut rows = Vec::new();
        for (l, i) in kernel.rows() {
            rows.push((l, i, at));
            at += match kernel.tiling {
                ChainTiling::Groups { .. } => padded(kernel.layers[l].columns) * 4,
                ChainTiling::Warps { cluster, .. } => kernel.columns_of_block(l, cluster),
            };
        }
        Printed { kernel, weights, rows }
    }

    fn geometry(&self) -> Geometry {
        let (rows, cluster) = match self.kernel.tiling {
            ChainTiling::Groups { groups, ring, .. } => (GROUP_ROWS * if ring > 0 { groups } else { 1 }, 1),
            ChainTiling::Warps { rows, cluster } => (rows, cluster),
        };
        Geometry::Tiles {
            block: self.kernel.threads() as u32,
            cluster: cluster as u32,
            rows: rows as u32,
            columns: MAX_WIDTH as u32,
            shared: self.kernel.shared() as u32,
        }
    }

    fn arguments(&self) -> Vec<Arg> {
        let k = self.kernel;
        let weight = |l: &ChainLayer| if l.by_k { "columns x k" } else { "k x columns" };
        let layers = || k.layers.iter().enumerate().zip(&self.weights);
        let [input, result] = ["rows x the first layer's k", "rows x the last layer's columns"];
        let mut out = Vec::new();
        match k.tiling {
            ChainTiling::Groups { ring, .. } => {
                let map =
                    |i: usize, lead, about| Arg::map(format!("in{i}_map"), ArgRole::Read(i), k.factor, lead, about);
                out.push(map(0, [TILE_K, GROUP_ROWS], input));
                for ((l, layer), at) in layers() {
                    let depth = if ring > 0 { TILE_K } else { padded(k.depth(l)) };
                    let outer = if layer.by_k { padded(layer.columns) } else { depth };
                    out.push(map(*at, [TILE_K, outer], weight(layer)));
                }
                let lead = [TILE_K, GROUP_ROWS];
                out.push(Arg::map("out0_map".into(), ArgRole::Written(0), k.factor, lead, result));
            }
            ChainTiling::Warps { .. } => {
                out.push(Arg::read(0, k.factor, input));
                out.extend(layers().map(|((_, layer), at)| Arg::read(*at, k.factor, weight(layer))));
                out.push(Arg::written(0, k.factor, result));
            }
        }
        for ((_, layer), at) in layers() {
            let about = |a: &Access| if *a == Access::Row { "one element a column" } else { "one element" };
            let beside = layer.inputs.iter().enumerate();
            out.extend(beside.map(|(i, o)| Arg::read(at + 1 + i, o.dtype, about(&o.access))));
        }
        out.push(Arg::size_of(ArgRole::TiledRows, SizeName::Rows, "rows of the input and of the result"));
        out
    }

    /// The operands of an epilogue that are single numbers.
    fn splats(&self) -> Value {
        let all = self.kernel.layers.iter().zip(&self.weights);
        let of = |(layer, at): (&ChainLayer, &usize)| {
            let splats = layer.inputs.iter().enumerate().filter(|(_, o)| o.access == Access::Splat);
            let number = |(i, o): (usize, &hypatia_dsl::kernel::Operand)| {
                let index = at + 1 + i;
                context! { index, compute => compute_name(o.dtype), first => loaded(o.dtype, &format!("in{index}[0]")) }
            };
            splats.map(number).collect::<Vec<Value>>()
        };
        all.flat_map(of).collect()
    }

    /// An element of a row's operand.
    fn element(&self, (l, i): (usize, usize), column: &str) -> String {
        let at = self.weights[l] + 1 + i;
        loaded(self.kernel.layers[l].inputs[i].dtype, &format!("in{at}[{column}]"))
    }

    /// What an epilogue is called with after its accumulator.
    fn inputs(&self, l: usize, row: &dyn Fn(usize) -> String) -> Vec<String> {
        let mut of_row = 0;
        let mut value = |(i, o): (usize, &hypatia_dsl::kernel::Operand)| match o.access {
            Access::Row => {
                of_row += 1;
                row(of_row - 1)
            }
            _ => format!("in{}_all", self.weights[l] + 1 + i),
        };
        self.kernel.layers[l].inputs.iter().enumerate().map(&mut value).collect()
    }

    /// The offsets of a layer's rows.
    fn offsets(&self, layer: usize) -> Vec<usize> {
        self.rows.iter().filter(|(l, ..)| *l == layer).map(|(.., at)| *at).collect()
    }

    fn groups(&self, [groups, stages, ring]: [usize; 3]) -> Value {
        let k = self.kernel;
        let mut offset = 0;
        let mut layers = Vec::new();
        for (l, layer) in k.layers.iter().enumerate() {
            let [boxes, bytes] = k.boxes(l);
            layers.push(context! {
                k => padded(k.depth(l)),
                n => padded(layer.columns),
                columns => layer.columns,
                by_k => layer.by_k,
                // In a ring, a box of a weight that is dense along its columns holds 64 of them.
                boxes => if ring > 0 && !layer.by_k { layer.columns.div_ceil(64) } else { boxes },
                box_bytes => bytes,
                bytes => boxes * bytes,
                offset => offset,
                factor => self.weights[l],
                rows => self.offsets(l),
                inputs => self.inputs(l, &|j| format!("row{j}[q / 2][e]")),
            });
            offset += boxes * bytes;
        }
        let row = |(l, i, at): &(usize, usize, usize)| {
            let columns = k.layers[*l].columns;
            context! { padded => padded(columns), columns, offset => at, element => self.element((*l, *i), "i") }
        };
        let row_bytes: usize = self.rows.iter().map(|(l, ..)| padded(k.layers[*l].columns) * 4).sum();
        let [input, result] = k.chunks();
        context! {
            half => k.factor.name(),
            axes => 2,
            groups, stages, ring,
            in_chunks => input,
            out_chunks => result,
            tile_chunks => input.max(result),
            slot_bytes => k.slot(),
            weight_bytes => k.weights(ring),
            row_bytes,
            rows => self.rows.iter().map(row).collect::<Vec<Value>>(),
            splats => self.splats(),
            layers,
        }
    }

    fn warps(&self, [rows, cluster]: [usize; 2]) -> Value {
        let k = self.kernel;
        let layer = |(l, layer): (usize, &ChainLayer)| {
            let own_columns = k.columns_of_block(l, cluster);
            let access = if layer.by_k { 8 } else { (own_columns / 8).min(8) };
            // Rows of whole accesses, so that each is inside or outside.
            let whole = if layer.by_k { k.depth(l) } else { layer.columns }.is_multiple_of(access);
            let offsets = self.offsets(l);
            context! {
                own_columns,
                depth => k.depth(l),
                columns => layer.columns,
                by_k => layer.by_k,
                factor => self.weights[l],
                row => layer.stride,
                wide => super::attention::flag(whole && layer.vector.is_multiple_of(access)),
                inputs => self.inputs(l, &|j| format!("columns_at[{} + c + e]", offsets[j])),
            }
        };
        let row = |(l, i, at): &(usize, usize, usize)| {
            let (own_columns, columns) = (k.columns_of_block(*l, cluster), k.layers[*l].columns);
            context! { own_columns, columns, offset => at, element => self.element((*l, *i), "column") }
        };
        let [left, sums] = k.row_steps(cluster);
        context! {
            half => k.factor.name(),
            rows_of_tile => rows,
            cluster,
            warps => k.warps(),
            left_bytes => rows * left,
            sum_bytes => k.warps() * rows * sums * 4,
            left_row => left,
            sum_row => sums,
            in_row => k.stride,
            in_wide => super::attention::flag(k.width.is_multiple_of(8) && k.vector.is_multiple_of(8)),
            rows => self.rows.iter().map(row).collect::<Vec<Value>>(),
            splats => self.splats(),
            layers => k.layers.iter().enumerate().map(layer).collect::<Vec<Value>>(),
        }
    }
}
