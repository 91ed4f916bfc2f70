//! Horizontally fused pointwise work: the elements of an access, the blocks of each part.
//!
//! In: a step of several parts, or pointwise work with strides, which is a step of one part. Out:
//! its kernel and the work. Invariant: rows of whole accesses begin where an access may, if the
//! memory of each tensor does; otherwise a kernel reads and writes single elements.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::{
    Access, Across, HORIZONTAL_AXES, HorizontalKernel, HorizontalPart, MOST_NARROW, PICKED, Pick, TILE_LANES,
};
use hypatia_dsl::scalar::{Term, TermNode};
use hypatia_templates::cuda::{ArgRole, SizeName, vector_width};
use hypatia_templates::instances::Body;

use super::Work;
use hypatia_plan::{HorizontalPart as Part, HorizontalStep, PointwiseStep, Step, View, row_major};

/// Threads that occupy a GPU: with fewer elements, each thread takes fewer.
const FEW_THREADS: usize = 1 << 16;

/// Elements along both axes of a tile, and of a part, from which tiles are worth their barriers;
/// and the most operands that are turned.
const SIDE: usize = 16;
const MANY: usize = 1 << 12;
const MOST_ACROSS: usize = 4;
/// Tiles that occupy a GPU.
const MANY_TILES: usize = 512;
/// Bytes of a block's tiles, at most.
const MOST_TURNED: usize = 40_960;
/// Bytes of a row that the caches turn as well.
const SHORT_ROW: usize = 128;

/// Pointwise work as one part, if an operand has strides.
pub(super) fn strided(p: &PointwiseStep, [reads, writes]: [&[View]; 2]) -> Option<(HorizontalKernel, Work)> {
    let strided = p.kernel.inputs.iter().any(|o| o.access == Access::Strided);
    let fits = p.kernel.acc.is_none() && p.shape.len() <= HORIZONTAL_AXES && !p.shape.contains(&0);
    if !strided || !fits {
        return None;
    }
    let mut own = p.clone();
    for o in &mut own.kernel.inputs {
        if matches!(o.access, Access::Row | Access::Col) {
            o.access = Access::Strided;
        }
    }
    own.kernel.rank = p.shape.len();
    let stored = vec![row_major(&p.shape); writes.len()];
    let part = Part { step: own, stored, picks: Vec::new() };
    let (mut kernel, work) = kernel(&[part], [reads, writes]);
    kernel.name.clone_from(&p.kernel.name);
    Some((kernel, work))
}

pub(super) fn horizontal(h: &HorizontalStep, step: &Step) -> (Body, Work) {
    let (kernel, work) = kernel(&h.parts, [&step.reads, &step.writes]);
    (Body::Horizontal(kernel), work)
}

/// The kernel of these parts, which read and write these views in turn.
fn kernel(parts: &[Part], [all_reads, all_writes]: [&[View]; 2]) -> (HorizontalKernel, Work) {
    let mut work = Work::default();
    let mut ends: Vec<usize> = Vec::new();
    let mut codes = Vec::new();
    let (mut read, mut written) = (0, 0);
    for (at, (part, code)) in parts.iter().zip(fitted(parts, [all_reads, all_writes])).enumerate() {
        let (reads, writes) = (part.step.strides.len(), part.stored.len());
        work = work.sizes(if parts.len() == 1 { SizeName::Axes } else { SizeName::OfPart(at) }, &part.step.shape);
        if !part.picks.is_empty() {
            let picks: Vec<usize> = part.picks.iter().flat_map(|p| [p.stride, p.size]).collect();
            work = work.sizes(SizeName::Picks(at), &picks);
        }
        let strided = |a: &Access| *a == Access::Strided;
        for (i, (o, strides)) in code.kernel.inputs.iter().zip(&part.step.strides).enumerate() {
            if strided(&o.access) {
                work = work.strides(ArgRole::Read(read + i), strides);
            }
        }
        for (i, (access, strides)) in code.stored.iter().zip(&part.stored).enumerate() {
            if strided(access) {
                work = work.strides(ArgRole::Written(written + i), strides);
            }
        }
        ends.push(ends.last().copied().unwrap_or(0) + code.blocks(&part.step.shape));
        codes.push(code);
        (read, written) = (read + reads, written + writes);
    }
    work = match parts {
        [one] if codes[0].across.is_none() => Work { rows: 1, n: one.len(), ..work },
        [_] => Work { rows: ends[0], n: 1, ..work },
        _ => Work { rows: ends.last().copied().unwrap_or(0), n: 1, ..work.sizes(SizeName::Ends, &ends) },
    };
    let narrow = parts.iter().all(is_narrow);
    (HorizontalKernel { narrow, ..HorizontalKernel::of("horizontal", codes) }, work)
}

/// The code of each part. Tiles of all codes of a launch lie beside each other in shared memory.
fn fitted(parts: &[Part], [mut reads, mut writes]: [&[View]; 2]) -> Vec<HorizontalPart> {
    let mut of_parts = Vec::new();
    for part in parts {
        let (own_reads, other_reads) = reads.split_at(part.step.strides.len());
        let (own_writes, other_writes) = writes.split_at(part.stored.len());
        of_parts.push((part, [own_reads, own_writes]));
        (reads, writes) = (other_reads, other_writes);
    }
    let mut codes: Vec<HorizontalPart> = of_parts.iter().map(|(part, views)| code(part, *views)).collect();
    loop {
        let different = HorizontalKernel::of("", codes.iter().cloned()).codes;
        if different.iter().map(HorizontalPart::turned).sum::<usize>() <= MOST_TURNED {
            return codes;
        }
        let Some(largest) = different.into_iter().max_by_key(HorizontalPart::turned) else { return codes };
        for (code, (part, views)) in codes.iter_mut().zip(&of_parts).filter(|(code, _)| **code == largest) {
            match code.vector {
                1 => *code = along(part, *views),
                _ => code.vector /= 2,
            }
        }
    }
}

/// Whether 32 bits count the elements of a part, and hold how far its operands and outputs reach.
fn is_narrow(part: &Part) -> bool {
    let shape = &part.step.shape;
    let reach = |strides: &Vec<isize>| {
        shape.iter().zip(strides).map(|(n, s)| (n - 1) as u64 * s.unsigned_abs() as u64).sum::<u64>()
    };
    let near = |s: &Vec<isize>| reach(s) <= MOST_NARROW;
    part.len() as u64 <= MOST_NARROW && part.step.strides.iter().chain(&part.stored).all(near)
}

/// The code of a part with these reads and writes, each of which reads an operand where it lies.
fn along(part: &Part, [reads, writes]: [&[View]; 2]) -> HorizontalPart {
    let mut kernel = part.step.kernel.clone();
    (kernel.name, kernel.doc) = (String::new(), String::new());
    let shape = &part.step.shape;
    let dense = row_major(shape);
    let stored = part.stored.iter().map(|s| if *s == dense { Access::Full } else { Access::Strided }).collect();
    let moved = kernel.inputs.iter().filter(|o| o.access != Access::Splat).map(|o| o.dtype);
    let mut vector = vector_width(moved.chain(kernel.outputs.iter().copied()).collect::<Vec<_>>().into_iter());
    let views = reads.iter().zip(&part.step.strides).chain(writes.iter().zip(&part.stored));
    let views: Vec<(usize, &[isize])> = views.map(|(v, s)| (v.offset, s.as_slice())).collect();
    let row = shape.last().copied().unwrap_or(1);
    // Rows of a table begin where the index says.
    let tables_even = |vector: usize| {
        let even =
            |p: &hypatia_plan::Pick| p.stride.is_multiple_of(vector) || ends_in_zero(&part.step.strides[p.table]);
        part.picks.iter().all(even)
    };
    while vector > 1
        && !(row.is_multiple_of(vector) && tables_even(vector) && views.iter().all(|v| is_even(*v, vector)))
    {
        vector /= 2;
    }
    while vector > 2 && part.len() / vector < FEW_THREADS {
        vector /= 2;
    }
    let mut picks: Vec<Pick> = Vec::new();
    for pick in &part.picks {
        let shared = is_shared(&pick.index, &part.step.strides, &picks);
        picks.push(Pick { index: pick.index.clone(), table: pick.table, shared });
    }
    HorizontalPart { kernel, stored, picks, vector, across: None }
}

/// The code of a part with these reads and writes.
fn code(part: &Part, [reads, writes]: [&[View]; 2]) -> HorizontalPart {
    let code = along(part, [reads, writes]);
    let Some(across) = across(part) else { return code };
    let vector = vector_across(part, &across, [reads, writes]);
    let mut code = HorizontalPart { vector, across: Some(across), ..code };
    // Smaller tiles, which are more blocks.
    let few = |code: &HorizontalPart| code.blocks(&part.step.shape) < MANY_TILES;
    while code.vector > 1 && (few(&code) || code.turned() > MOST_TURNED) {
        code.vector /= 2;
    }
    code
}

/// The operands of a part that lie across it, if tiles are worth their barriers.
fn across(part: &Part) -> Option<Across> {
    let shape = &part.step.shape;
    let last = shape.len().checked_sub(1)?;
    let long = |axis: usize| shape[axis] >= SIDE;
    if !part.picks.is_empty() || part.len() < MANY || !long(last) || !is_narrow(part) {
        return None;
    }
    let axis_of = |s: &Vec<isize>| (0..last).find(|a| s[*a] == 1 && long(*a)).filter(|_| s[last].unsigned_abs() > 1);
    let axis = part.step.strides.iter().find_map(axis_of)?;
    let lies = |(_, s): &(usize, &Vec<isize>)| axis_of(s) == Some(axis);
    let operands: Vec<usize> = part.step.strides.iter().enumerate().filter(lies).map(|(i, _)| i).collect();
    let bytes = |i: &usize| shape[last] * part.step.kernel.inputs[*i].dtype.size();
    if operands.iter().all(|i| bytes(i) <= SHORT_ROW) {
        return None;
    }
    (operands.len() <= MOST_ACROSS).then_some(Across { axis, operands })
}

/// Elements of an access of a part with such operands: eight bytes, as far as rows along both axes
/// are whole accesses, and as long as a side of a tile.
fn vector_across(part: &Part, across: &Across, [reads, writes]: [&[View]; 2]) -> usize {
    let (shape, types) = (&part.step.shape, &part.step.kernel);
    let moved = types.inputs.iter().filter(|o| o.access != Access::Splat).map(|o| o.dtype);
    let widest = moved.chain(types.outputs.iter().copied()).map(DType::size).max().unwrap_or(1);
    let turned = |i: usize| across.operands.contains(&i);
    let even = |vector: usize| {
        let of_read = |(i, (v, s)): (usize, (&View, &Vec<isize>))| match turned(i) {
            true => {
                let apart = s.iter().enumerate().filter(|(axis, _)| *axis != across.axis);
                v.offset.is_multiple_of(vector)
                    && apart.map(|(_, s)| s.unsigned_abs()).all(|s| s.is_multiple_of(vector))
            }
            false => is_even((v.offset, s), vector),
        };
        let reads = reads.iter().zip(&part.step.strides).enumerate().all(of_read);
        let whole = [across.axis, shape.len() - 1].iter().all(|axis| shape[*axis].is_multiple_of(vector));
        whole && reads && writes.iter().zip(&part.stored).all(|(v, s)| is_even((v.offset, s), vector))
    };
    let short = |vector: usize| [across.axis, shape.len() - 1].iter().any(|axis| shape[*axis] < TILE_LANES * vector);
    let mut vector = (8 / widest).clamp(1, 4);
    while vector > 1 && (!even(vector) || short(vector)) {
        vector /= 2;
    }
    vector
}

/// Whether an index is the same along the innermost axis: it reads only what is.
fn is_shared(index: &Term, strides: &[Vec<isize>], picks: &[Pick]) -> bool {
    let fixed = |input: u32| match input.checked_sub(PICKED) {
        // What is picked moves with its table.
        Some(pick) => picks.get(pick as usize).is_some_and(|p| p.shared && ends_in_zero(&strides[p.table])),
        None => ends_in_zero(&strides[input as usize]),
    };
    index.nodes.iter().all(|n| if let TermNode::In { input, .. } = n { fixed(*input) } else { true })
}

fn ends_in_zero(strides: &[isize]) -> bool {
    strides.last().is_none_or(|s| *s == 0)
}

/// True if rows that are read or written by whole accesses begin where one may. Elements that lie
/// apart are single accesses.
fn is_even((offset, strides): (usize, &[isize]), vector: usize) -> bool {
    let Some((1, outer)) = strides.split_last() else { return true };
    offset.is_multiple_of(vector) && outer.iter().all(|s| s.unsigned_abs().is_multiple_of(vector))
}
