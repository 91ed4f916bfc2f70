//! Products of few rows whose factors are computed where they are read.
//!
//! In: such a product, and the views of what its factors and its epilogue read. Out: the product as
//! the template of few rows takes it; none if an operand would have to be copied. Invariant: a
//! factor lies as what has its size does, and all of that lies alike.

use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{FactorAccess, FactorInput, Prologue};
use hypatia_plan::{BufferId, FactorTerm, GemmStep, PrologueStep, View, row_major};
use hypatia_templates::cuda::ArgRole;

use super::gemv::GemvProduct;
use super::warp_tiled::{WarpProduct, unit};

/// An operand of a factor: its strides between groups of k, between elements of a group, and
/// between lines, and how many of each there are.
struct Lies {
    strides: [isize; 3],
    sizes: [usize; 3],
}

impl Lies {
    /// Of the left factor a view is `[lines, groups, elements]`, of a right one `[groups, elements,
    /// lines]`.
    fn of(view: &View, left: bool) -> Option<Lies> {
        let order = if left { [1, 2, 0] } else { [0, 1, 2] };
        let all = view.shape.len() == 3 && view.strides.len() == 3;
        all.then(|| Lies { strides: order.map(|i| view.strides[i]), sizes: order.map(|i| view.shape[i]) })
    }

    fn is_fixed(&self, axis: usize) -> bool {
        self.strides[axis] == 0 || self.sizes[axis] == 1
    }

    /// True if all lines have one element. What has a single line has its size.
    fn is_shared(&self) -> bool {
        self.strides[2] == 0 && self.sizes[2] != 1
    }

    /// How the operand is read and its two strides, if k is the factor's dense axis or its lines
    /// are. `None` if no access of neighbours reads it.
    fn access(&self, by_k: bool) -> Option<(FactorAccess, [isize; 2])> {
        let [group, element, line] = self.strides;
        let of_line = if self.is_shared() { 0 } else { line };
        let side_by_side = by_k || line == 1;
        let evenly = self.sizes[0] == 1 || group == element * self.sizes[1] as isize;
        let along = match (self.is_fixed(1), self.is_fixed(0)) {
            (true, true) => None,
            (true, false) => Some((FactorAccess::Group, group)),
            (false, _) if evenly => Some((FactorAccess::Each, element)),
            (false, _) => return None,
        };
        let access = match (along, self.is_shared()) {
            (None, true) => (FactorAccess::Splat, 0),
            (None, false) => (FactorAccess::Line, 0),
            (Some((FactorAccess::Each, step)), true) => (FactorAccess::Along, step),
            (Some((access, step)), _) => (access, step),
        };
        let fits = match access.0 {
            FactorAccess::Splat => true,
            FactorAccess::Along => !by_k || element == 1,
            FactorAccess::Each => {
                if by_k {
                    element == 1
                } else {
                    line == 1
                }
            }
            FactorAccess::Line | FactorAccess::Group => side_by_side,
        };
        fits.then_some((access.0, [access.1, of_line]))
    }

    /// Whether neighbours along k lie side by side, of what has an element for each place.
    fn by_k(&self) -> Option<bool> {
        let each = !self.is_fixed(1) && !self.is_shared();
        each.then_some(self.strides[1] == 1)
    }
}

/// A factor as it is computed, whether k is its dense axis, and the strides of its operands.
type Described = (Prologue, bool, Vec<[isize; 2]>);

fn described(factor: &FactorTerm, reads: &[View], left: bool) -> Option<Described> {
    let lies: Vec<Lies> = reads.iter().map(|v| Lies::of(v, left)).collect::<Option<_>>()?;
    let by_k = lies.iter().find_map(Lies::by_k)?;
    if left && !by_k {
        return None;
    }
    let mut inputs = Vec::with_capacity(reads.len());
    let mut strides = Vec::with_capacity(reads.len());
    for (view, lies) in reads.iter().zip(&lies) {
        let (access, own) = lies.access(by_k)?;
        // Runs of neighbours begin at each of these.
        let places = lies.sizes[0] * lies.sizes[1];
        let steps = if by_k { [(own[1], lies.sizes[2]), (0, 1)] } else { [(own[0], places), (0, 1)] };
        inputs.push(FactorInput { dtype: view.dtype, access, unit: unit(view, &steps) });
        strides.push(own);
    }
    Some((Prologue { inputs, group: factor.group, term: factor.term.clone(), line: None }, by_k, strides))
}

/// A factor that has the size and the order of one that is computed.
fn stand_in(g: &GemmStep, factor: &FactorTerm, left: bool, by_k: bool) -> View {
    let sizes = if left { [g.m, g.k] } else { [g.k, g.n] };
    let shape = [&g.batch[..], &sizes].concat();
    let mut strides = row_major(&shape);
    if !left {
        strides.fill(0);
        let lead = g.batch.len();
        (strides[lead], strides[lead + 1]) = if by_k { (1, g.k as isize) } else { (g.n as isize, 1) };
    }
    View { buffer: BufferId(0), dtype: factor.dtype, offset: 0, shape, strides }
}

/// The factors of a product.
struct Factors<'v> {
    /// As they lie in memory, or as if they did.
    views: Vec<View>,
    /// How each is computed, if it is.
    computed: Vec<Option<Described>>,
    /// What the epilogue reads.
    beside: &'v [View],
}

impl Factors<'_> {
    fn of<'v>(p: &PrologueStep, reads: &'v [View]) -> Option<Factors<'v>> {
        let (mut views, mut computed, mut beside) = (Vec::new(), Vec::new(), reads);
        for (i, (factor, count)) in p.factors.iter().zip(p.reads()).enumerate() {
            let (own, others) = beside.split_at_checked(count)?;
            beside = others;
            let described = match factor {
                Some(f) => Some(described(f, own, i == 0)?),
                None => None,
            };
            views.push(match (factor, &described) {
                (Some(f), Some((_, by_k, _))) => stand_in(&p.product, f, i == 0, *by_k),
                _ => own.first()?.clone(),
            });
            computed.push(described);
        }
        Some(Factors { views, computed, beside })
    }

    /// The product of the left factor and that right one.
    fn product(&self, g: &GemmStep, right: usize, out: &View) -> Option<WarpProduct> {
        let views = [&[self.views[0].clone(), self.views.get(right)?.clone()], self.beside].concat();
        WarpProduct::of(g, &views, std::slice::from_ref(out))
    }

    /// The strides that the kernel is given: of the operands of all factors, then of the others,
    /// which a product with these factors as operands has. `second` is the product of the second
    /// right factor.
    fn strides(&self, product: &WarpProduct, second: Option<&WarpProduct>) -> Option<Vec<(ArgRole, Vec<i64>)>> {
        let of_factor = |product: &WarpProduct, i: usize| {
            product.strides.iter().find(|(role, _)| *role == ArgRole::Read(i)).map(|(_, values)| values.clone())
        };
        let mut of_factors: Vec<Vec<i64>> = Vec::new();
        for (i, computed) in self.computed.iter().enumerate() {
            match computed {
                Some((.., own)) => of_factors.extend(own.iter().map(|s| s.map(|s| s as i64).to_vec())),
                None if i == 2 => of_factors.push(of_factor(second?, 1)?),
                None => of_factors.push(of_factor(product, i)?),
            }
        }
        let count = of_factors.len();
        let others = product.strides.iter().filter_map(|(role, values)| match role {
            ArgRole::Read(0 | 1) => None,
            ArgRole::Read(i) => Some((ArgRole::Read(i - 2 + count), values.clone())),
            role => Some((*role, values.clone())),
        });
        let of_factors = of_factors.into_iter().enumerate().map(|(at, values)| (ArgRole::Read(at), values));
        Some(of_factors.chain(others).collect())
    }
}

/// The product of a step by the template of few rows, if that computes it.
pub(super) fn product(program: &Program, p: &PrologueStep, reads: &[View], out: &View) -> Option<GemvProduct> {
    let factors = Factors::of(p, reads)?;
    let product = factors.product(&p.product, 1, out)?;
    let second = if p.is_pair() { Some(factors.product(&p.product, 2, out)?) } else { None };
    // Both right factors lie alike.
    let alike = second.as_ref().is_none_or(|s| s.kernel.factors == product.kernel.factors);
    let [outer, inner, ..] = product.sizes;
    if (outer, inner) != (1, 1) || !alike {
        return None;
    }
    let strides = factors.strides(&product, second.as_ref())?;
    let right_type = factors.views[1].dtype;
    let mut computed = factors.computed.into_iter().map(|c| c.map(|(prologue, ..)| prologue));
    let [left, right] = [computed.next()?, computed.next()?];
    let prologues = [left, right.map(|right| right.with_line(program, right_type))];
    GemvProduct::with_prologues(&WarpProduct { strides, ..product }, p.is_pair(), prologues)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(sizes: [usize; 3], strides: [isize; 3], by_k: bool) -> Option<FactorAccess> {
        Lies { strides, sizes }.access(by_k).map(|(access, _)| access)
    }

    #[test]
    fn operands_are_read_as_they_lie() {
        use FactorAccess::{Along, Each, Group, Line, Splat};
        let whole = [1, 256, 40];
        assert_eq!(access(whole, [0, 1, 256], true), Some(Each));
        assert_eq!(access(whole, [0, 1, 256], false), None);
        assert_eq!(access(whole, [0, 40, 1], false), Some(Each));
        assert_eq!(access(whole, [0, 40, 1], true), None);
        assert_eq!(access(whole, [0, 0, 1], true), Some(Line));
        assert_eq!(access(whole, [0, 0, 3], true), Some(Line));
        assert_eq!(access(whole, [0, 0, 3], false), None);
        assert_eq!(access(whole, [0, 1, 0], true), Some(Along));
        assert_eq!(access(whole, [0, 2, 0], false), Some(Along));
        assert_eq!(access(whole, [0, 0, 0], false), Some(Splat));
        let groups = [4, 64, 40];
        assert_eq!(access(groups, [64, 1, 256], true), Some(Each));
        assert_eq!(access(groups, [1, 0, 4], true), Some(Group));
        assert_eq!(access(groups, [40, 0, 1], false), Some(Group));
        assert_eq!(access(groups, [1, 0, 0], true), Some(Group));
        assert_eq!(access(groups, [1, 0, 0], false), None);
        // A single row.
        assert_eq!(access([1, 256, 1], [0, 1, 0], true), Some(Each));
        assert_eq!(access([1, 256, 1], [0, 0, 0], true), Some(Line));
        // Groups that lie apart.
        assert_eq!(access(groups, [80, 1, 320], true), None);
    }
}
