//! Launches: what a step submits to the device.
//!
//! In: nothing; `steps` makes them. Out: what is captured and replayed. Invariant: a launch refers
//! to memory by [`Location`]s alone, so that it serves every instance of a plan.

use super::address::Location;
use super::kernel::KernelLaunch;
use super::lt::{self, Algorithm, Matmul};

/// A product and the locations of its operands, one set per call.
pub struct Product {
    /// The product to call.
    pub matmul: Matmul,
    /// The algorithms that can run it; the first one is used. Empty if the library has not been
    /// asked yet.
    pub algorithms: Vec<Algorithm>,
    /// True if the algorithm is not chosen yet: the library's first guess is raced, or none is
    /// known.
    pub guessed: bool,
    /// A, B, D of each call.
    pub calls: Vec<[Location; 3]>,
    /// Byte offset of its address lists among all lists of a graph.
    pub lists: u64,
    /// The bias, or the destination of its gradient.
    pub bias: Option<Location>,
    /// The second matrix of its epilogue.
    pub aux: Option<Location>,
    /// The matrix that it is added to.
    pub added: Option<Location>,
    /// The same product over the transposed weight.
    pub transposed: Option<TransposedProduct>,
}

impl Product {
    /// The weight that is read transposed, if there is one.
    pub fn transposed_weight(&self) -> Option<&TransposedProduct> {
        self.transposed.as_ref().filter(|t| t.taken)
    }
}

/// A launch of a step.
pub enum Launch {
    /// A generated kernel.
    Kernel(KernelLaunch),
    /// A generated kernel that is launched once for all runs: see [`crate::lowering::Work::once`].
    Once(KernelLaunch),
    /// Comparisons of products with their checksums.
    Checks(Comparisons),
    /// A cuBLASLt call.
    Product(Box<Product>),
    /// Zero-fills that many bytes: a product over no terms.
    Zeros(Location, usize),
}

impl Launch {
    /// Number of independent calls.
    pub fn calls(&self) -> usize {
        match self {
            Launch::Product(p) => p.calls.len(),
            Launch::Checks(checks) => checks.sums.len().max(checks.kernels.len()),
            Launch::Kernel(_) | Launch::Once(_) | Launch::Zeros(..) => 1,
        }
    }

    /// Number of kernels, where a call to the library counts as one.
    pub fn kernels(&self) -> usize {
        match self {
            Launch::Checks(checks) => checks.all().count(),
            Launch::Product(_) | Launch::Kernel(_) | Launch::Once(_) | Launch::Zeros(..) => 1,
        }
    }

    /// The steps that it is part of, if it is launched after that one.
    pub fn steps(&self, behind: usize) -> Vec<usize> {
        match self {
            Launch::Checks(checks) => checks.steps.clone(),
            Launch::Product(_) | Launch::Kernel(_) | Launch::Once(_) | Launch::Zeros(..) => vec![behind],
        }
    }
}

/// Comparisons of products with their checksums.
#[derive(Default)]
pub struct Comparisons {
    /// The steps of the plan whose products they are.
    pub steps: Vec<usize>,
    /// Sums of right factors that are no constants. They run at once.
    pub sums: Vec<KernelLaunch>,
    /// What compares. They run at once, after the sums.
    pub kernels: Vec<KernelLaunch>,
}

impl Comparisons {
    /// A kernel that compares, or sums that it needs.
    pub fn of(kernel: KernelLaunch) -> Comparisons {
        let mut checks = Comparisons::default();
        if kernel.reports() { &mut checks.kernels } else { &mut checks.sums }.push(kernel);
        checks
    }

    /// All kernels.
    pub fn all(&self) -> impl Iterator<Item = &KernelLaunch> {
        self.sums.iter().chain(&self.kernels)
    }
}

/// A product over the transposed weight.
pub(super) struct TransposedProduct {
    /// The weight, as its index among the operands: A or B.
    pub side: usize,
    /// The index of the constant in the plan.
    pub constant: usize,
    /// The product over the transposed weight; once that is taken, the product over the weight as
    /// stored.
    pub matmul: Matmul,
    /// True if the product reads the transposed weight.
    pub taken: bool,
}

impl TransposedProduct {
    /// The product's description.
    pub fn product(&self) -> &lt::Product {
        self.matmul.product()
    }
}
