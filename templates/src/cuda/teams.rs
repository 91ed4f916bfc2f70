//! How many threads share a row of known length, and where they keep it.
//!
//! In: a kernel, the number and length of its rows, and the limits of the device. Out: a [`Team`],
//! and for long rows a [`Stream`]. Invariant: the threads of a team cover a row; the resources of
//! its blocks fit the device.

use hypatia_dsl::kernel::{RowAccess, RowwiseKernel, SumSplit};

/// Maximum elements of a row of known length that one thread keeps.
const KEPT: u64 = 32;
/// Maximum elements that one of eight lanes keeps; above this a warp is faster.
const KEPT_BY_LANES: u64 = 16;
/// Threads per block in which each thread keeps up to this many elements, if packs are dense and
/// there are enough rows: two or three such blocks per multiprocessor have more loads in flight
/// than two blocks of twice the threads with half the elements.
const DENSE_BLOCK: u64 = 256;
const DENSE: u64 = 64;
/// Numbers of threads that may share a row of known length, with the threads per block.
const TEAMS: [(u64, u32); 5] = [(8, 128), (32, 128), (128, 128), (256, 256), (512, 512)];
/// The team for longer rows on devices without clusters.
const WIDE_TEAM: (u64, u32) = (1024, 1024);
/// Cluster sizes: blocks of 512 threads that may share a row. Every device with clusters supports
/// the largest.
const CLUSTERS: [u64; 3] = [2, 4, 8];
/// Threads that fill a device.
const FULL: u64 = 1 << 16;

/// Number of blocks of a stream from which each cluster loops over several rows.
const MANY_BLOCKS: u64 = 528;
/// Threads per block and blocks per cluster of a stream.
const STREAMS: [(u64, u64); 4] = [(256, 2), (256, 4), (256, 8), (512, 8)];
/// Shared memory of a multiprocessor, and what a block uses besides its rows.
const SHARED: u64 = 227 << 10;
const SHARED_BESIDE: u64 = 3 << 10;
/// Threads per block of a cluster that does not stream.
const CLUSTER_BLOCK: u64 = 512;

/// How the threads share rows.
pub(super) struct Team {
    /// Threads per block.
    pub block: u32,
    /// Threads that share a row, over all blocks of a cluster.
    pub threads: u64,
    /// Blocks that share a row.
    pub cluster: u64,
    /// Packs of a row that one thread keeps; `None` if the row is too long to be kept.
    pub chunks: Option<u64>,
    /// Blocks per multiprocessor that registers are reserved for; 0 lets the compiler choose.
    pub blocks: u32,
}

impl Team {
    /// The team for rows of `n` elements whose columns are added up: 512 threads a multiprocessor.
    pub fn of_sums(n: u64, vector: u64, split: SumSplit) -> Team {
        let (threads, block) = (split.threads as u64, split.block as u32);
        Team { block, threads, cluster: 1, chunks: Some(n.div_ceil(threads * vector).max(1)), blocks: 512 / block }
    }

    /// The same rows in blocks of at least that many threads: lanes share a row in them, too; a
    /// team of a whole block grows with it.
    pub fn in_blocks(self, block: u32, n: u64, vector: u64) -> Team {
        match u64::from(block) {
            _ if block <= self.block => self,
            _ if self.threads <= 32 => Team { block, ..self },
            threads => {
                Team { block, threads, chunks: self.chunks.map(|_| n.div_ceil(threads * vector).max(1)), ..self }
            }
        }
    }

    /// The team for rows that no thread keeps: the more blocks a row, the fewer rows there are. A
    /// thread has several packs.
    pub fn unkept([rows, n]: [u64; 2], vector: u64, clusters: bool) -> Team {
        /// Packs that a thread reads at a time, as a rule.
        const PACKS: u64 = 4;
        if !clusters {
            let (threads, block) = WIDE_TEAM;
            return Team { block, threads, cluster: 1, chunks: None, blocks: 1 };
        }
        let several =
            |c: &u64| rows.saturating_mul(c / 2 * CLUSTER_BLOCK) < FULL && c * CLUSTER_BLOCK * vector * PACKS <= n;
        let cluster = CLUSTERS.iter().copied().filter(several).max().unwrap_or(1);
        let block = CLUSTER_BLOCK as u32;
        Team { block, threads: CLUSTER_BLOCK * cluster, cluster, chunks: None, blocks: 2 }
    }

    /// The team for `rows` rows of `n` elements that are moved `vector` at a time; each thread
    /// keeps at most `most` elements. Chooses the smallest team that can keep a row, or a larger
    /// one if there are too few rows to fill a device. With `dense`, a thread may keep more than
    /// [`KEPT`], with that many blocks per multiprocessor.
    pub fn of([rows, n]: [u64; 2], vector: u64, most: u64, dense: Option<u32>, clusters: bool) -> Team {
        // As many blocks at a time as fit with 64 registers per thread: one computes while another
        // waits for memory.
        let blocks = |block: u32| if block >= 256 { 1024 / block } else { 0 };
        let one = |(threads, block): &(u64, u32)| Team {
            block: *block,
            threads: *threads,
            cluster: 1,
            chunks: None,
            blocks: blocks(*block),
        };
        let block = CLUSTER_BLOCK as u32;
        let several =
            |c: &u64| Team { block, threads: CLUSTER_BLOCK * c, cluster: *c, chunks: None, blocks: blocks(block) };
        let mut teams: Vec<Team> = TEAMS.iter().map(one).collect();
        match clusters {
            true => teams.extend(CLUSTERS.iter().map(several)),
            false => teams.push(one(&WIDE_TEAM)),
        }
        let kept = |t: &Team| n.div_ceil(t.threads * vector) * vector;
        let limit = |t: &Team| match t.threads {
            8 => KEPT_BY_LANES,
            DENSE_BLOCK if dense.is_some() && rows.saturating_mul(DENSE_BLOCK) >= FULL => DENSE,
            _ => KEPT,
        };
        let fits = |t: &Team| kept(t) <= most.min(limit(t)).max(vector);
        let small = |t: &Team| rows.saturating_mul(t.threads) < FULL && kept(t) > vector && t.threads < 256;
        let Some(first) = teams.iter().position(fits) else { return Team::unkept([rows, n], vector, clusters) };
        let mut at = first;
        while small(&teams[at]) && at + 1 < TEAMS.len() {
            at += 1;
        }
        let team = teams.swap_remove(at);
        let chunks = n.div_ceil(team.threads * vector).max(1);
        let blocks = dense.filter(|_| chunks * vector > KEPT).unwrap_or(team.blocks);
        Team { chunks: Some(chunks), blocks, ..team }
    }
}

/// Rows streamed through shared memory: while a cluster works on one row, the next one is loading.
pub(super) struct Stream {
    /// Dynamic shared memory of a block, in bytes.
    pub shared: u32,
    /// Per-element operands and their offsets in shared memory. Per-column operands stay there.
    pub operands: Vec<(usize, u64)>,
}

impl Stream {
    /// The stream and the team for `rows` rows of `n` elements, if the rows are long and many
    /// enough; `used` are the operands that are read.
    pub fn of(kernel: &RowwiseKernel, used: &[usize], [rows, n]: [u64; 2], vector: u64) -> Option<(Stream, Team)> {
        let streamed: Vec<usize> = used
            .iter()
            .copied()
            .filter(|i| matches!(kernel.inputs[*i].1, RowAccess::Full | RowAccess::PerColumn))
            .collect();
        let size = |i: &usize| kernel.inputs[*i].0.size() as u64;
        // A copy moves 16 bytes.
        if kernel.strided()
            || !kernel.gathers.is_empty()
            || streamed.iter().any(|i| !(size(i) * vector).is_multiple_of(16))
        {
            return None;
        }
        let all: u64 = streamed.iter().map(size).sum();
        streamed.iter().find(|i| kernel.inputs[**i].1 == RowAccess::Full)?;
        let kept = |threads: u64| n.div_ceil(threads * vector) * vector;
        let fits = |(block, cluster): &&(u64, u64)| {
            let kept = kept(block * cluster);
            kept <= KEPT && block * kept * all + SHARED_BESIDE <= SHARED
        };
        let (block, cluster) = STREAMS.iter().find(fits).copied()?;
        if rows.saturating_mul(cluster) < MANY_BLOCKS {
            return None;
        }
        let part = block * kept(block * cluster);
        let mut at = 0;
        let place = |i: usize| {
            let start = at;
            at += part * size(&i);
            (i, start)
        };
        let operands: Vec<(usize, u64)> = streamed.into_iter().map(place).collect();
        // Blocks that fit on a multiprocessor, with at least 64 registers per thread.
        let blocks = (1024 / block).min(SHARED / (at + SHARED_BESIDE)).max(1) as u32;
        let chunks = Some(kept(block * cluster) / vector);
        let team = Team { block: block as u32, threads: block * cluster, cluster, chunks, blocks };
        Some((Stream { shared: at as u32, operands }, team))
    }
}
