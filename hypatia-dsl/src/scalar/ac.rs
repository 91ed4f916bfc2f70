//! Equality of terms modulo associativity and commutativity (AC).
//!
//! In: terms of one Program. Out: whether they are the same function after sums, products, `max`,
//! `min`, `and`, `or`, `xor` are flattened and sorted; and for patterns, which input of one
//! corresponds to which input of the other. Defined scalars are inlined first, so that `gelu(x)`
//! and its body are equal. Invariant: the cost is near linear in the term (values are interned and
//! never expanded as trees).

use std::collections::{BTreeMap, HashMap};

use crate::builtin::BuiltinScalar;
use crate::ir::{InView, Program, ScalarBody};

use super::build::expand;
use super::simplify::simplify;
use super::{Literal, Term, TermNode};

/// Maximum number of operands of a flattened sum or product; above it an operand is not flattened.
const MAX_CHILDREN: usize = 4096;
/// Maximum number of input assignments that a match tries.
const MAX_TRIALS: usize = 5040;

/// An operand of a sum or product: its value, and whether it is subtracted.
type Child = (u32, bool);

/// A value modulo associativity and commutativity.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Key {
    /// A leaf.
    Leaf(TermNode),
    /// A function with its arguments in order.
    Apply(BuiltinScalar, Vec<u32>),
    /// A cast.
    Cast(crate::dtype::DType, u32),
    /// Operands with their multiplicities.
    Many(BuiltinScalar, BTreeMap<Child, u64>),
}

/// An interning table of terms: equal values have equal numbers.
#[derive(Default)]
struct Table {
    keys: Vec<Key>,
    ids: HashMap<Key, u32>,
}

impl Table {
    fn intern(&mut self, key: Key) -> u32 {
        if let Some(id) = self.ids.get(&key) {
            return *id;
        }
        let id = self.keys.len() as u32;
        self.keys.push(key.clone());
        self.ids.insert(key, id);
        id
    }

    /// Interns an expanded term and returns the numbers of its roots; `input` renames its inputs.
    fn add(&mut self, program: &Program, term: &Term, input: &dyn Fn(u32) -> u32) -> Vec<u32> {
        let mut map: Vec<u32> = Vec::with_capacity(term.nodes.len());
        for node in &term.nodes {
            let id = match node {
                // The view of an operand follows from its type.
                TermNode::In { input: i, .. } => {
                    self.intern(Key::Leaf(TermNode::In { input: input(*i), view: InView::Broadcast }))
                }
                TermNode::Cast { to, arg } => self.intern(Key::Cast(*to, map[arg.0 as usize])),
                TermNode::Call { scalar, args } => {
                    let args: Vec<u32> = args.iter().map(|a| map[a.0 as usize]).collect();
                    match program.scalars.get(scalar.index()).map(|d| &d.body) {
                        Some(ScalarBody::Builtin(f)) => self.apply(*f, args),
                        _ => self.intern(Key::Leaf(node.clone())),
                    }
                }
                leaf => self.intern(Key::Leaf(leaf.clone())),
            };
            map.push(id);
        }
        term.roots.iter().map(|r| map[r.0 as usize]).collect()
    }

    fn apply(&mut self, f: BuiltinScalar, args: Vec<u32>) -> u32 {
        use BuiltinScalar::*;
        match (f, &args[..]) {
            (Add, &[a, b]) => self.many(Add, &[(a, false), (b, false)]),
            (Sub, &[a, b]) => self.many(Add, &[(a, false), (b, true)]),
            (Mul | Max | Min | And | Or | Xor, &[a, b]) => self.many(f, &[(a, false), (b, false)]),
            (Eq, &[a, b]) => self.intern(Key::Apply(Eq, vec![a.min(b), a.max(b)])),
            // A negated literal is a literal: only this makes `x + -1` equal to `x - 1`.
            (Neg, &[a]) => match &self.keys[a as usize] {
                Key::Leaf(TermNode::Lit(l)) => {
                    let negated = TermNode::Lit(Literal(-l.0));
                    self.intern(Key::Leaf(negated))
                }
                _ => self.intern(Key::Apply(Neg, args)),
            },
            _ => self.intern(Key::Apply(f, args)),
        }
    }

    /// A flattened application of an associative operator.
    fn many(&mut self, f: BuiltinScalar, operands: &[Child]) -> u32 {
        let mut children: BTreeMap<Child, u64> = BTreeMap::new();
        for &(mut id, mut minus) in operands {
            // `x + -y` is `x - y`.
            while let (BuiltinScalar::Add, Key::Apply(BuiltinScalar::Neg, inner)) = (f, &self.keys[id as usize]) {
                (id, minus) = (inner[0], !minus);
            }
            match &self.keys[id as usize] {
                Key::Many(g, inner) if *g == f && children.len() + inner.len() <= MAX_CHILDREN => {
                    for (&(child, sign), count) in inner {
                        let slot = children.entry((child, sign != minus)).or_insert(0);
                        *slot = slot.saturating_add(*count);
                    }
                }
                // `x - 2` is `x + -2`.
                Key::Leaf(TermNode::Lit(l)) if minus => {
                    let negated = TermNode::Lit(Literal(-l.0));
                    let id = self.intern(Key::Leaf(negated));
                    *children.entry((id, false)).or_insert(0) += 1;
                }
                _ => *children.entry((id, minus)).or_insert(0) += 1,
            }
        }
        self.intern(Key::Many(f, children))
    }
}

/// The term inlined and simplified; `None` if that is too large.
fn normal(program: &Program, term: &Term) -> Option<Term> {
    expand(program, term).ok().map(|t| simplify(program, &t))
}

/// True if the terms are equal modulo associativity and commutativity.
pub fn equal_modulo_ac(program: &Program, a: &Term, b: &Term) -> bool {
    let (Some(a), Some(b)) = (normal(program, a), normal(program, b)) else { return a == b };
    let mut table = Table::default();
    table.add(program, &a, &|i| i) == table.add(program, &b, &|i| i)
}

/// A key that is equal for terms that are equal modulo associativity and commutativity, for
/// grouping and caches. `None` if the term is too large.
pub fn canonical_key(program: &Program, term: &Term) -> Option<String> {
    let term = normal(program, term)?;
    let mut table = Table::default();
    let roots = table.add(program, &term, &|i| i);
    // Numbers depend on the order of interning; text does not. Long texts are hashed while they are
    // built, so that shared subterms do not multiply.
    let mut texts: Vec<String> = Vec::with_capacity(table.keys.len());
    for key in &table.keys {
        let at = |id: &u32| texts[*id as usize].clone();
        let text = match key {
            Key::Leaf(TermNode::Lit(l)) => format!("{:016x}", l.0.to_bits()),
            Key::Leaf(node) => format!("{node:?}"),
            Key::Cast(to, id) => format!("{to}({})", at(id)),
            Key::Apply(f, args) => {
                let mut args: Vec<String> = args.iter().map(at).collect();
                if f.commutes() {
                    args.sort();
                }
                format!("{}({})", f.name(), args.join(","))
            }
            Key::Many(f, children) => {
                let child =
                    |((id, minus), n): (&Child, &u64)| format!("{}{}*{n}", if *minus { "-" } else { "" }, at(id));
                let mut parts: Vec<String> = children.iter().map(child).collect();
                parts.sort();
                format!("{}[{}]", f.name(), parts.join(","))
            }
        };
        texts.push(if text.len() > 256 { digest(&text) } else { text });
    }
    let roots: Vec<&str> = roots.iter().map(|r| texts[*r as usize].as_str()).collect();
    Some(roots.join(";"))
}

/// 128 bits of FNV-1a: stable across runs and builds.
fn digest(text: &str) -> String {
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for byte in text.bytes() {
        hash = (hash ^ byte as u128).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    format!("#{hash:032x}")
}

/// Matches a kernel's epilogue against a term. Maps each input of `pattern` to an input of `term`,
/// such that both are equal modulo associativity and commutativity. `fits(p, t)` says whether input
/// `p` of the pattern may be mapped to input `t` of the term (its view and element type). The
/// mapping is injective, and it uses all inputs of the term.
pub fn match_modulo_ac(
    program: &Program,
    pattern: &Term,
    term: &Term,
    fits: &dyn Fn(u32, u32) -> bool,
) -> Option<Vec<u32>> {
    let (pattern, term) = (normal(program, pattern)?, normal(program, term)?);
    let mut wanted = inputs(&pattern);
    wanted.sort_unstable();
    let offered = inputs(&term);
    if wanted.len() != offered.len() {
        return None;
    }
    let mut table = Table::default();
    let goal = table.add(program, &term, &|i| i);
    let mut search =
        Search { program, pattern: &pattern, wanted: &wanted, offered: &offered, fits, goal, table, left: MAX_TRIALS };
    let mut chosen = Vec::new();
    if !search.extend(&mut chosen) {
        return None;
    }
    // Inputs that the pattern numbers but does not read are unmapped.
    let top = wanted.iter().max().map_or(0, |m| *m as usize + 1);
    let mut out = vec![u32::MAX; top];
    for (w, c) in wanted.iter().zip(&chosen) {
        out[*w as usize] = *c;
    }
    Some(out)
}

/// The inputs that a term reads, deduped.
fn inputs(term: &Term) -> Vec<u32> {
    let mut out = Vec::new();
    for node in &term.nodes {
        if let TermNode::In { input, .. } = node
            && !out.contains(input)
        {
            out.push(*input);
        }
    }
    out
}

struct Search<'a> {
    program: &'a Program,
    pattern: &'a Term,
    wanted: &'a [u32],
    offered: &'a [u32],
    fits: &'a dyn Fn(u32, u32) -> bool,
    goal: Vec<u32>,
    table: Table,
    left: usize,
}

impl Search<'_> {
    fn extend(&mut self, chosen: &mut Vec<u32>) -> bool {
        let Some(&next) = self.wanted.get(chosen.len()) else {
            self.left = self.left.saturating_sub(1);
            let (wanted, picked) = (self.wanted, chosen.clone());
            let rename = |i: u32| wanted.iter().position(|w| *w == i).map_or(i, |k| picked[k]);
            return self.table.add(self.program, self.pattern, &rename) == self.goal;
        };
        for &candidate in self.offered {
            if self.left == 0 {
                return false;
            }
            if chosen.contains(&candidate) || !(self.fits)(next, candidate) {
                continue;
            }
            chosen.push(candidate);
            if self.extend(chosen) {
                return true;
            }
            chosen.pop();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::testing::{library, term};
    use super::*;

    #[test]
    fn order_and_grouping_do_not_matter() {
        let p = library();
        let t = |text: &str| term(&p, &["x", "y", "z"], text);
        for (a, b) in [
            ("x + y + z", "z + (y + x)"),
            ("x - y + z", "z - (y - x)"),
            ("x - y", "x + -y"),
            ("x - (y + z)", "x + -(z + y)"),
            ("x - 2", "-2 + x"),
            ("x * (y * z)", "z * x * y"),
            ("max(x, max(y, z))", "max(max(z, y), x)"),
            ("gelu(x)", "x * 0.5 * (erf(0.7071067811865476 * x) + 1)"),
            ("gelu_tanh(x + y)", "gelu_tanh(y + x)"),
            ("relu(x)", "max(0, x)"),
            ("silu(x)", "sigmoid(x) * x"),
            ("x + x + y", "x + y + x"),
        ] {
            assert!(equal_modulo_ac(&p, &t(a), &t(b)), "{a} against {b}");
            assert_eq!(canonical_key(&p, &t(a)), canonical_key(&p, &t(b)));
        }
        for (a, b) in [
            ("x - y", "y - x"),
            ("x - x", "y - y"),
            ("x - x", "0"),
            ("x + y", "x * y"),
            ("x / y", "y / x"),
            ("gelu(x)", "gelu_tanh(x)"),
            ("x + x", "2 * x"),
            ("max(x, 0)", "max(x, -0.0)"),
            ("x + x + y", "x + y + y"),
            ("max(x, y)", "max(x, x)"),
        ] {
            assert!(!equal_modulo_ac(&p, &t(a), &t(b)), "{a} against {b}");
            assert_ne!(canonical_key(&p, &t(a)), canonical_key(&p, &t(b)), "{a} against {b}");
        }
    }

    #[test]
    fn doubling_terms_stay_small() {
        let p = library();
        let mut b = super::super::TermBuilder::new();
        let mut x = b.add(TermNode::Acc);
        for i in 0..200 {
            let f = if i % 2 == 0 { BuiltinScalar::Add } else { BuiltinScalar::Mul };
            x = b.builtin(&p, f, vec![x, x]).unwrap();
        }
        let t = b.finish(vec![x]);
        assert!(equal_modulo_ac(&p, &t, &t));
        assert!(canonical_key(&p, &t).unwrap().len() < 1000);
    }

    #[test]
    fn inputs_are_matched() {
        let p = library();
        let with_inputs = |text: &str, order: [u32; 2]| {
            let t = term(&p, &["acc", "a", "b"], text);
            let mut b = super::super::TermBuilder::new();
            let acc = b.add(TermNode::Acc);
            let x = b.add(TermNode::In { input: order[0], view: InView::Row });
            let y = b.add(TermNode::In { input: order[1], view: InView::Full });
            let roots = b.append(&t, &[acc, x, y]);
            b.finish(roots)
        };
        let pattern = with_inputs("relu(acc + a) * b", [0, 1]);
        let found = with_inputs("b * max(0, a + acc)", [1, 0]);
        assert_eq!(match_modulo_ac(&p, &pattern, &found, &|_, _| true), Some(vec![1, 0]));
        assert_eq!(match_modulo_ac(&p, &pattern, &found, &|w, t| w == t), None);
        let other = with_inputs("b + relu(acc + a)", [0, 1]);
        assert_eq!(match_modulo_ac(&p, &pattern, &other, &|_, _| true), None);
        let fewer = with_inputs("relu(acc + a)", [0, 1]);
        assert_eq!(match_modulo_ac(&p, &pattern, &fewer, &|_, _| true), None);
    }
}
