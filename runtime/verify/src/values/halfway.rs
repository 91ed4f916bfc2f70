//! Operands whose results lie next to the middle between two numbers of a narrower type.
//!
//! In: an element type, and narrower ones. Out: numbers, the first of them factors. Invariant: of
//! one factor and one of its products, the quotient is next to such a middle, and so are simple
//! functions of other numbers.
//!
//! A quotient or a root that is rounded to f32 and then to f16 is rounded twice, which shows only
//! there: chance gives one in thousands.

use hypatia_dsl::dtype::DType;

use super::beside;

/// Factors that have as many digits as their type.
const FACTORS: [f64; 2] = [1.1, -13.3];
/// Which middles between 1 and 2, counted from 1.
const MIDDLES: [u32; 6] = [0, 1, 3, 4, 21, 60];
/// A part of the result that f64 holds and f32 does not.
const LITTLE: f64 = 9.3e-10;
/// The number of alternatives that a tensor has.
pub(super) const KINDS: usize = 4;

/// The numbers of one element type.
#[derive(Clone, Debug, Default)]
pub(super) struct Halfway {
    products: Vec<f64>,
    functions: Vec<f64>,
}

impl Halfway {
    /// Numbers of this type for those that are narrower; `own` are further factors.
    pub(super) fn of(dtype: DType, narrower: impl Iterator<Item = DType>, own: &[f64]) -> Halfway {
        let mut out = Halfway::default();
        for narrow in narrower {
            let step = narrow.epsilon();
            let middles = MIDDLES.into_iter().map(|k| 1.0 + (f64::from(k) + 0.5) * step).filter(|m| *m < 2.0);
            for m in middles {
                let near = [m, m * (1.0 + LITTLE), m * (1.0 - LITTLE)];
                for m in if dtype == DType::F64 { &near[..] } else { &near[..1] } {
                    out.products.extend([FACTORS[0] * m, FACTORS[0] / m, m / FACTORS[0]].map(|v| dtype.round(v)));
                    out.products.extend(own.iter().flat_map(|c| [c * m, m / c]).map(|v| dtype.round(v)));
                    let functions = [m * m, m.sqrt(), 1.0 / m, 1.0 / (m * m), m.ln(), m.exp(), *m];
                    let steps = functions.into_iter().flat_map(|v| [0, 1, -1].map(|s| beside(dtype, v, s)));
                    out.functions.extend(steps);
                }
            }
        }
        out
    }

    /// The number with this code, in a tensor of this kind.
    pub(super) fn number(&self, kind: usize, code: u32) -> f64 {
        let at = |list: &[f64], code: u32| list.get(code as usize % list.len().max(1)).copied().unwrap_or(1.0);
        match kind {
            0 => FACTORS[0],
            1 => at(&self.products, code),
            2 => at(&self.functions, code),
            _ if code.is_multiple_of(4) => at(&FACTORS, code / 4),
            _ if code.is_multiple_of(2) => at(&self.products, code / 4),
            _ => at(&self.functions, code / 4),
        }
    }
}
