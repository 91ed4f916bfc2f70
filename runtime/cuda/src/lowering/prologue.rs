//! Products whose factors are computed where they are read, or are windows of an image.
//!
//! In: such a product, and the views of what its factors and its epilogue read. Out: the product as
//! each template takes it that computes it: that of few rows, that of warps, Hopper's; none if an
//! operand would have to be copied. Invariant: a factor lies as what has its size does, and all of
//! that lies alike.

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{InView, Program};
use hypatia_dsl::kernel::{FactorAccess, FactorInput, Prologue};
use hypatia_dsl::scalar::{Term, TermBuilder, TermId, TermNode};
use hypatia_plan::{BufferId, FactorFrom, FactorTerm, GemmStep, Plan, PrologueStep, View, row_major};
use hypatia_target::device::HOPPER;
use hypatia_templates::cuda::ArgRole;

use super::gemv::GemvProduct;
use super::tiled::TiledProduct;
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

/// A factor as it is computed.
struct Described {
    prologue: Prologue,
    /// Whether k is its dense axis.
    by_k: bool,
    /// Its operands, and their strides.
    reads: Vec<View>,
    strides: Vec<[isize; 2]>,
}

impl Described {
    /// Takes out of it what is the same along k, over the operands of the factor.
    fn take_line(&mut self, program: &Program, half: DType) -> Option<Term> {
        let line = self.prologue.take_line(program, half)?;
        let kept = self.prologue.drop_unread();
        self.reads = kept.iter().map(|i| self.reads[*i].clone()).collect();
        self.strides = kept.iter().map(|i| self.strides[*i]).collect();
        Some(line)
    }
}

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
    let prologue = Prologue { inputs, group: factor.group, term: factor.term.clone() };
    Some(Described { prologue, by_k, reads: reads.to_vec(), strides })
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

/// The view of an operand that a factor reads by lines alone, as one of the epilogue, which has an
/// element for each row or each column of the result.
fn beside_result(view: &View, g: &GemmStep, left: bool) -> View {
    let shape = [&g.batch[..], &[g.m, g.n]].concat();
    let mut strides = vec![0; shape.len()];
    if left {
        let rows = row_major(&shape[..shape.len() - 1]);
        strides.iter_mut().zip(rows).for_each(|(s, row)| *s = view.strides[0] * row);
    } else {
        strides[shape.len() - 1] = view.strides[2];
    }
    View { shape, strides, ..view.clone() }
}

/// A product and its factors.
struct Factors {
    /// The product, whose epilogue multiplies its sums by what was taken out of the factors.
    product: GemmStep,
    /// The factors as they lie in memory, or as if they did.
    views: Vec<View>,
    /// How each is computed, if it is.
    computed: Vec<Option<Described>>,
    /// What the epilogue reads: its own operands, then those that were taken out of factors.
    beside: Vec<View>,
}

impl Factors {
    fn of(program: &Program, p: &PrologueStep, reads: &[View]) -> Option<Factors> {
        let (mut views, mut computed, mut rest) = (Vec::new(), Vec::new(), reads);
        let mut lines: Vec<(usize, Term, Vec<View>)> = Vec::new();
        for (i, (factor, count)) in p.factors.iter().zip(p.reads()).enumerate() {
            let (own, others) = rest.split_at_checked(count)?;
            rest = others;
            let mut described = match factor.term() {
                Some(f) => Some(described(f, own, i == 0)?),
                None => None,
            };
            views.push(match (factor.term(), &described) {
                (Some(f), Some(d)) => stand_in(&p.product, f, i == 0, d.by_k),
                _ => own.first()?.clone(),
            });
            let half = views[i].dtype;
            if let Some(line) = described.as_mut().and_then(|d| d.take_line(program, half)) {
                lines.push((i, line, own.iter().map(|v| beside_result(v, &p.product, i == 0)).collect()));
            }
            computed.push(described);
        }
        let mut factors = Factors { product: p.product.clone(), views, computed, beside: rest.to_vec() };
        for (i, line, operands) in &lines {
            factors.multiply(program, *i, line, operands)?;
        }
        Some(factors)
    }

    /// Multiplies the sums of a factor by a term over these operands.
    fn multiply(&mut self, program: &Program, factor: usize, line: &Term, operands: &[View]) -> Option<()> {
        let mut terms = TermBuilder::new();
        let mut of_line: Vec<TermId> = Vec::new();
        for node in &line.nodes {
            let node = match node {
                TermNode::In { input, .. } => {
                    self.beside.push(operands.get(*input as usize)?.clone());
                    TermNode::In { input: self.beside.len() as u32 - 1, view: InView::Broadcast }
                }
                node => node.map_args(|a| of_line[a.0 as usize]),
            };
            of_line.push(terms.add(node));
        }
        let by = *of_line.get(line.root().0 as usize)?;
        // The left factor is one of both sums.
        let is_multiplied = |node: &TermNode| match node {
            TermNode::Acc => factor < 2,
            TermNode::Second => factor != 1,
            _ => false,
        };
        let mut moved: Vec<TermId> = Vec::new();
        for node in &self.product.term.nodes {
            let mut id = terms.add(node.map_args(|a| moved[a.0 as usize]));
            if is_multiplied(node) {
                id = terms.builtin(program, BuiltinScalar::Mul, vec![id, by])?;
            }
            moved.push(id);
        }
        let roots = self.product.term.roots.iter().map(|r| moved[r.0 as usize]).collect();
        self.product.term = terms.finish(roots);
        Some(())
    }

    /// The operands of all factors.
    fn reads(&self) -> impl Iterator<Item = &View> {
        self.views.iter().zip(&self.computed).flat_map(|(view, computed)| match computed {
            Some(d) => d.reads.as_slice(),
            None => std::slice::from_ref(view),
        })
    }

    /// How the left factor and the right ones are computed.
    fn prologues(&self) -> [Option<Prologue>; 2] {
        [0, 1].map(|i| self.computed[i].as_ref().map(|d| d.prologue.clone()))
    }

    /// The product of the left factor and that right one, as if both lay in memory.
    fn product(&self, right: usize, out: &View) -> Option<WarpProduct> {
        let views = [&[self.views[0].clone(), self.views.get(right)?.clone()], &self.beside[..]].concat();
        WarpProduct::of(&self.product, &views, std::slice::from_ref(out))
    }

    /// What a kernel is given of each operand, behind those of the factors: of these, `of_factor`
    /// has what is given of a factor that lies in memory, by its number.
    fn renumbered<T: Clone>(
        &self,
        given: &[(ArgRole, T)],
        of_factor: impl Fn(usize) -> Option<T>,
        of_operand: impl Fn([isize; 2]) -> Option<T>,
    ) -> Vec<(ArgRole, T)> {
        let mut out: Vec<(ArgRole, T)> = Vec::new();
        let mut at = 0;
        for (i, computed) in self.computed.iter().enumerate() {
            let own: Vec<Option<T>> = match computed {
                Some(d) => d.strides.iter().map(|s| of_operand(*s)).collect(),
                None => vec![of_factor(i)],
            };
            for value in own {
                out.extend(value.map(|value| (ArgRole::Read(at), value)));
                at += 1;
            }
        }
        out.extend(given.iter().map(|(role, value)| (*role, value.clone())));
        out
    }

    /// The kernel's operands: the step has them at other places.
    fn operands(&self) -> Vec<(ArgRole, View)> {
        let all = self.reads().chain(&self.beside).enumerate();
        all.map(|(i, view)| (ArgRole::Read(i), view.clone())).collect()
    }

    /// As the template of few rows takes it. The strides are those of a product with these factors
    /// as operands; `second` is the product of the second right factor.
    fn few_rows(&self, product: &WarpProduct, second: Option<&WarpProduct>) -> Option<GemvProduct> {
        GemvProduct::with_prologues(&self.strided(product, second)?, second.is_some(), self.prologues())
    }

    /// A product of warps with the arguments of one whose factors are computed.
    fn strided(&self, product: &WarpProduct, second: Option<&WarpProduct>) -> Option<WarpProduct> {
        let of_factor = |i: usize| {
            let (of, i) = if i == 2 { (second?, 1) } else { (product, i) };
            of.strides.iter().find(|(role, _)| *role == ArgRole::Read(i)).map(|(_, values)| values.clone())
        };
        let beside = others(&product.strides, 2, self.reads().count());
        let of_operand = |own: [isize; 2]| Some(own.map(|s| s as i64).to_vec());
        let strides = self.renumbered(&beside, of_factor, of_operand);
        Some(WarpProduct { strides, views: self.operands(), ..product.clone() })
    }

    /// As the template of warps takes it.
    fn warps(&self, product: &WarpProduct) -> Option<WarpProduct> {
        let mut product = self.strided(product, None)?;
        product.kernel.prologues = self.prologues();
        (product.kernel.refusal().is_none() && self.has_units(&product)).then_some(product)
    }

    /// Whether the factors of a product consist of whole units, as they are stored in shared
    /// memory.
    fn has_units(&self, product: &WarpProduct) -> bool {
        let [.., m, n, k] = product.sizes;
        let all = self.prologues().into_iter().zip(product.kernel.factors).zip([m, n]);
        all.into_iter().all(|((p, factor), lines)| p.is_none_or(|p| p.unit_refusal(factor, k, lines).is_none()))
    }

    /// As Hopper's template takes it. `as_warps` is the same product as that of warps takes it.
    fn hopper(&self, as_warps: &WarpProduct, out: &View) -> Option<TiledProduct> {
        let views = [&self.views[..], &self.beside[..]].concat();
        let outs = std::slice::from_ref(out);
        let product = if self.views.len() > 2 {
            TiledProduct::of_pair(&self.product, &views, outs)?
        } else {
            TiledProduct::of(&self.product, &views, outs)?
        };
        let factors = self.views.len();
        let map = |i: usize| product.maps.iter().find(|(role, _)| *role == ArgRole::Read(i)).map(|(_, map)| *map);
        let maps = self.renumbered(&others(&product.maps, factors, self.reads().count()), map, |_| None);
        let strides = others(&product.strides, factors, self.reads().count());
        let strides = self.renumbered(&strides, |_| None, |own| Some(own.map(|s| s as i64).to_vec()));
        let mut product = TiledProduct { maps, strides, views: self.operands(), ..product };
        product.kernel.prologues = self.prologues();
        (product.kernel.refusal().is_none() && self.has_units(as_warps)).then_some(product)
    }
}

/// What is given of results and of the epilogue's operands, which come after `factors` factors and
/// shall come after `reads` operands.
fn others<T: Clone>(given: &[(ArgRole, T)], factors: usize, reads: usize) -> Vec<(ArgRole, T)> {
    let renumbered = |(role, value): &(ArgRole, T)| match role {
        ArgRole::Read(i) if *i < factors => None,
        ArgRole::Read(i) => Some((ArgRole::Read(i - factors + reads), value.clone())),
        role => Some((*role, value.clone())),
    };
    given.iter().filter_map(renumbered).collect()
}

/// A product with computed factors, or with windows for one, by each template that computes it.
pub(super) struct Computed {
    pub(super) hopper: Option<TiledProduct>,
    pub(super) warps: Option<WarpProduct>,
    pub(super) few_rows: Option<GemvProduct>,
}

impl Computed {
    /// `None` if no template computes the product of that step of a plan.
    pub(super) fn of(plan: &Plan, p: &PrologueStep, reads: &[View], outs: &[View]) -> Option<Computed> {
        if let Some(windows) = p.windows() {
            let left = matches!(p.factors.first(), Some(FactorFrom::Windows(_)));
            let hopper = match left && plan.device.sm == HOPPER {
                true => TiledProduct::of_windows(&p.product, windows, reads, outs),
                false => None,
            };
            let warps = WarpProduct::of_windows(&p.product, (windows, left), reads, outs);
            let warps = warps.map(|w| w.rounded(plan.device.tf32));
            let any = hopper.is_some() || warps.is_some();
            return any.then_some(Computed { hopper, warps, few_rows: None });
        }
        let [out] = outs else { return None };
        let factors = Factors::of(&plan.program, p, reads)?;
        let product = factors.product(1, out)?;
        let second = if p.is_pair() { Some(factors.product(2, out)?) } else { None };
        // Both right factors lie alike.
        let alike = second.as_ref().is_none_or(|s| s.kernel.factors == product.kernel.factors);
        let [outer, inner, ..] = product.sizes;
        if (outer, inner) != (1, 1) || !alike {
            return None;
        }
        let few_rows = factors.few_rows(&product, second.as_ref());
        let warps = if p.is_pair() { None } else { factors.warps(&product) };
        let hopper = if plan.device.sm == HOPPER { factors.hopper(&product, out) } else { None };
        let any = few_rows.is_some() || warps.is_some() || hopper.is_some();
        any.then_some(Computed { hopper, warps, few_rows })
    }
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
