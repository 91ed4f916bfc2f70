//! Masks whose rows are intervals: causal masks, sliding windows, blocks, padding that is known.
//!
//! In: the term of an attention's scores, and a constant that it reads. Out: for each query the
//! interval of keys that are not hidden, and what the mask is elsewhere, so that terms need not
//! read it. `None` if the constant is no such mask. Invariant: where the mask hides a key, the
//! score is so low whatever the product is that its weight is 0; elsewhere the term without the
//! mask gives the same score.

use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::ir::{Program, ScalarBody};
use hypatia_dsl::scalar::{Literal, Term, TermBuilder, TermId, TermNode, prune};
use hypatia_tensor::tensor::Tensor;

/// A score at most this large has a weight of 0 beside any other: no score of finite operands
/// comes near it.
const LOWEST: f64 = -1e30;
/// Different elements that a mask may have.
const MAX_VALUES: usize = 4;

/// A half-open range of keys.
pub type Interval = [i32; 2];

/// What is known of a value in a term.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Known {
    Nothing,
    /// The value.
    Is(f64),
    /// Far below any score; minus infinity if true.
    Low(bool),
}

impl Known {
    fn of(value: f64) -> Known {
        if value <= LOWEST { Known::Low(value == f64::NEG_INFINITY) } else { Known::Is(value) }
    }

    fn is_low(self) -> bool {
        matches!(self, Known::Low(_))
    }

    /// True for a number that could lift a low score.
    fn is_high(self) -> bool {
        matches!(self, Known::Is(n) if n.is_nan() || n >= -LOWEST / 10.0)
    }
}

/// Elements of a mask.
pub struct Mask<'a> {
    /// The constant.
    pub tensor: &'a Tensor,
    /// The first element.
    pub offset: usize,
    /// Strides in elements along the axes of the batch, queries and keys.
    pub strides: [isize; AXES],
    /// Sizes of these axes.
    pub sizes: [usize; AXES],
}

/// The axes of a mask: three of the batch, queries, keys.
pub const AXES: usize = 5;

impl Mask<'_> {
    /// The offsets of the masks of the batch; one if it has but one.
    fn heads(&self) -> Vec<isize> {
        let mut out = vec![self.offset as isize];
        for axis in 0..AXES - 2 {
            let steps = if self.strides[axis] == 0 { 1 } else { self.sizes[axis] };
            out = out.iter().flat_map(|at| (0..steps).map(move |i| at + i as isize * self.strides[axis])).collect();
        }
        out
    }

    /// The number whose bytes are these.
    fn number(&self, bytes: &[u8]) -> Option<f64> {
        Tensor::from_bytes(self.tensor.dtype(), &[], bytes)?.to_f64().first().copied()
    }
}

/// The classes of a mask's elements.
struct Classes<'a> {
    program: &'a Program,
    term: &'a Term,
    input: u32,
    /// Each with its bytes, its number, and whether it hides a key, by infinity if true.
    all: Vec<(Vec<u8>, f64, Option<bool>)>,
}

impl Classes<'_> {
    /// The class of an element; `None` if there are too many.
    fn of(&mut self, mask: &Mask<'_>, bytes: &[u8]) -> Option<usize> {
        if let Some(known) = self.all.iter().position(|(b, ..)| b == bytes) {
            return Some(known);
        }
        let number = mask.number(bytes).filter(|_| self.all.len() < MAX_VALUES)?;
        let hides = match known(self.program, self.term, self.input, number) {
            Known::Low(infinite) => Some(infinite),
            _ => None,
        };
        self.all.push((bytes.to_vec(), number, hides));
        Some(self.all.len() - 1)
    }

    /// The keys that each query of a head attends to.
    fn rows(&mut self, mask: &Mask<'_>, head: isize) -> Option<Vec<Interval>> {
        let [.., queries, keys] = mask.sizes;
        let [.., row, column] = mask.strides;
        let (bytes, size) = (mask.tensor.bytes(), mask.tensor.dtype().size());
        let rows = if row == 0 { queries.min(1) } else { queries };
        let mut out: Vec<Interval> = Vec::with_capacity(queries);
        let mut last: Option<(&[u8], usize)> = None;
        for i in 0..rows {
            let mut interval: Option<Interval> = None;
            let mut infinite = true;
            for j in 0..keys {
                let at = usize::try_from(head + i as isize * row + j as isize * column).ok()? * size;
                let element = bytes.get(at..at + size)?;
                let class = match last {
                    Some((same, class)) if same == element => class,
                    _ => self.of(mask, element)?,
                };
                last = Some((element, class));
                match (self.all[class].2, &mut interval) {
                    (Some(by_infinity), _) => infinite &= by_infinity,
                    (None, None) => interval = Some([j as i32, j as i32 + 1]),
                    (None, Some([_, end])) if *end == j as i32 => *end += 1,
                    (None, Some(_)) => return None,
                }
            }
            // The weights of a row that finite numbers hide are not 0.
            if interval.is_none() && !infinite {
                return None;
            }
            out.push(interval.unwrap_or([0, 0]));
        }
        if let ([first], true) = (out.as_slice(), rows < queries) {
            out = vec![*first; queries];
        }
        Some(out)
    }
}

/// What a mask hides, in the same way for all heads.
pub struct Hidden {
    /// The keys that each query attends to.
    pub rows: Vec<Interval>,
    /// The mask's element where a key is not hidden.
    pub shown: f64,
    /// Its elements elsewhere.
    pub hidden: Vec<f64>,
}

/// What a mask, which a score reads as its operand `input`, hides.
pub fn of(program: &Program, term: &Term, input: u32, mask: &Mask<'_>) -> Option<Hidden> {
    let mut classes = Classes { program, term, input, all: Vec::new() };
    let heads = mask.heads();
    let (first, others) = heads.split_first()?;
    let rows = classes.rows(mask, *first)?;
    for head in others {
        if classes.rows(mask, *head)? != rows {
            return None;
        }
    }
    let mut shown = classes.all.iter().filter(|(.., hides)| hides.is_none());
    // If nothing is shown, any element serves.
    let shown = match (shown.next(), shown.next()) {
        (Some((_, value, _)), None) => *value,
        (None, _) => classes.all.first()?.1,
        _ => return None,
    };
    let hidden = classes.all.iter().filter(|(.., hides)| hides.is_some()).map(|(_, number, _)| *number).collect();
    Some(Hidden { rows, shown, hidden })
}

/// Whether a term is 0 where one of its inputs has that value, and all others are finite.
pub fn is_zero(program: &Program, term: &Term, input: u32, value: f64) -> bool {
    known(program, term, input, value) == Known::Is(0.0)
}

/// What is known of a term where one of its inputs has that value.
fn known(program: &Program, term: &Term, input: u32, value: f64) -> Known {
    let mut all: Vec<Known> = Vec::with_capacity(term.nodes.len());
    for node in &term.nodes {
        all.push(match node {
            TermNode::In { input: i, .. } if *i == input => Known::of(value),
            TermNode::Lit(Literal(n)) => Known::of(*n),
            TermNode::Cast { to, arg } if to.is_float() => all[arg.0 as usize],
            TermNode::Call { scalar, args } => match &program.scalar(*scalar).body {
                ScalarBody::Builtin(b) => call(*b, &args.iter().map(|a| all[a.0 as usize]).collect::<Vec<_>>()),
                ScalarBody::Term(_) => Known::Nothing,
            },
            _ => Known::Nothing,
        });
    }
    all[term.root().0 as usize]
}

fn call(scalar: BuiltinScalar, args: &[Known]) -> Known {
    use BuiltinScalar as S;
    match (scalar, args) {
        (S::Select, [Known::Is(c), a, b]) => {
            if *c == 0.0 {
                *b
            } else {
                *a
            }
        }
        (S::Select, [_, a, b]) if a == b => *a,
        (S::Not, [Known::Is(c)]) => Known::Is(f64::from(u8::from(*c == 0.0))),
        (S::Add, [Known::Is(a), Known::Is(b)]) => Known::of(a + b),
        (S::Sub, [Known::Is(a), Known::Is(b)]) => Known::of(a - b),
        (S::Mul, [Known::Is(a), Known::Is(b)]) => Known::of(a * b),
        (S::Mul, [Known::Is(0.0), _] | [_, Known::Is(0.0)]) => Known::Is(0.0),
        (S::Exp, [low]) if low.is_low() => Known::Is(0.0),
        (S::Add, [a, b]) if a.is_low() && b.is_low() => Known::Low(*a == Known::Low(true) || *b == Known::Low(true)),
        (S::Add, [low, other] | [other, low]) if low.is_low() && !other.is_high() => *low,
        (S::Sub, [low, other]) if low.is_low() && !other.is_low() => *low,
        _ => Known::Nothing,
    }
}

/// The term where an input has one value, which it then does not read. `None` if the value would
/// have to be written as a truth value.
pub fn without(program: &Program, term: &Term, input: u32, value: f64) -> Option<Term> {
    /// A node of the new term, or a number that is not written yet.
    #[derive(Clone, Copy)]
    enum New {
        Node(TermId),
        Number(f64),
    }
    let mut terms = TermBuilder::new();
    let mut map: Vec<New> = Vec::with_capacity(term.nodes.len());
    for node in &term.nodes {
        let new = match node {
            TermNode::In { input: i, .. } if *i == input => New::Number(value),
            TermNode::Cast { arg, to } if to.is_float() && matches!(map[arg.0 as usize], New::Number(_)) => {
                map[arg.0 as usize]
            }
            TermNode::Call { scalar, args } => {
                let builtin = match &program.scalar(*scalar).body {
                    ScalarBody::Builtin(b) => Some(*b),
                    ScalarBody::Term(_) => None,
                };
                let given: Vec<New> = args.iter().map(|a| map[a.0 as usize]).collect();
                match (builtin, given.as_slice()) {
                    (Some(BuiltinScalar::Select), [New::Number(c), a, b]) => {
                        if *c == 0.0 {
                            *b
                        } else {
                            *a
                        }
                    }
                    (Some(BuiltinScalar::Not), [New::Number(c)]) => New::Number(f64::from(u8::from(*c == 0.0))),
                    (Some(BuiltinScalar::Add), [x, New::Number(0.0)] | [New::Number(0.0), x]) => *x,
                    _ => {
                        let written = |new: &New, terms: &mut TermBuilder| match new {
                            New::Node(id) => *id,
                            New::Number(n) => terms.add(TermNode::Lit(Literal(*n))),
                        };
                        let ids: Vec<TermId> = given.iter().map(|n| written(n, &mut terms)).collect();
                        New::Node(terms.add(TermNode::Call { scalar: *scalar, args: ids.as_slice().into() }))
                    }
                }
            }
            node => {
                let mut lost = false;
                let mapped = node.map_args(|a| match map[a.0 as usize] {
                    New::Node(id) => id,
                    New::Number(_) => {
                        lost = true;
                        TermId(0)
                    }
                });
                if lost {
                    return None;
                }
                New::Node(terms.add(mapped))
            }
        };
        map.push(new);
    }
    match map[term.root().0 as usize] {
        New::Node(root) => Some(prune(&terms.finish(vec![root]))),
        New::Number(_) => None,
    }
}
