//! The space of axes that a body works over: which axes of different values are the same.
//!
//! In: shapes of operands, and how the body uses them. Out: for each axis of a value, the axes of
//! the common space that it is made of. Invariant: an axis of size 1 is made of no axes; axes are
//! only ever unified (if their sizes are equal) or split in two, so that earlier statements about a
//! value stay true. At the end, the caller must check whether two axes of one value were unified.

use crate::shape::Dim;

/// An axis of the space, under one of its names: it may be an alias of another axis, or split into
/// two.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(super) struct Axis(u32);

/// An axis of a value: the space axes that it is made of, outermost first.
pub(super) type Axes = Vec<Axis>;

/// Maximum number of splits and unifications for one query.
const MAX_CHANGES: usize = 64;

enum Node {
    /// A whole axis of this size.
    Whole(Dim),
    /// An alias of another axis.
    Same(Axis),
    /// Split into an outer and an inner axis.
    Cut(Axis, Axis),
}

/// The axes of a body: a union-find structure that can also split axes.
#[derive(Default)]
pub(super) struct Space {
    nodes: Vec<Node>,
}

impl Space {
    /// A new axis of this size.
    pub fn axis(&mut self, size: &Dim) -> Axes {
        if *size == Dim::from(1) { Vec::new() } else { vec![self.whole(size.clone())] }
    }

    fn whole(&mut self, size: Dim) -> Axis {
        self.nodes.push(Node::Whole(size));
        Axis(self.nodes.len() as u32 - 1)
    }

    /// Resolves aliases and splits: the current whole axes.
    pub fn now(&self, axes: &[Axis]) -> Axes {
        let mut out = Vec::with_capacity(axes.len());
        let mut stack: Vec<Axis> = axes.iter().rev().copied().collect();
        while let Some(axis) = stack.pop() {
            match self.nodes.get(axis.0 as usize) {
                Some(Node::Same(other)) => stack.push(*other),
                Some(Node::Cut(outer, inner)) => stack.extend([*inner, *outer]),
                _ => out.push(axis),
            }
        }
        out
    }

    /// The size of a whole axis.
    pub fn size(&self, axis: Axis) -> Dim {
        match self.nodes.get(axis.0 as usize) {
            Some(Node::Whole(size)) => size.clone(),
            _ => Dim::from(1),
        }
    }

    fn set(&mut self, axis: Axis, node: Node) {
        if let Some(slot) = self.nodes.get_mut(axis.0 as usize) {
            *slot = node;
        }
    }

    /// Splits an axis so that the outer one has this size; false if the size does not divide it.
    fn cut(&mut self, axis: Axis, outer: &Dim) -> bool {
        let Some(inner) = self.size(axis).div_exact(outer) else { return false };
        let (outer, inner) = (self.whole(outer.clone()), self.whole(inner));
        self.set(axis, Node::Cut(outer, inner));
        true
    }

    /// Unifies two axes of values; false if their sizes do not match.
    pub fn unify(&mut self, a: &[Axis], b: &[Axis]) -> bool {
        for _ in 0..MAX_CHANGES {
            let (a, b) = (self.now(a), self.now(b));
            let Some(at) = (0..a.len().max(b.len())).find(|i| a.get(*i) != b.get(*i)) else { return true };
            let (Some(x), Some(y)) = (a.get(at).copied(), b.get(at).copied()) else { return false };
            let (of_x, of_y) = (self.size(x), self.size(y));
            if of_x == of_y {
                self.set(y, Node::Same(x));
            } else if !self.cut(y, &of_x) && !self.cut(x, &of_y) {
                return false;
            }
        }
        false
    }

    /// The axes of a value after a row-major reshape; `None` if an axis of the new shape does not
    /// end where an axis of the space ends.
    pub fn reshape(&mut self, value: &[Axes], shape: &[Dim]) -> Option<Vec<Axes>> {
        let flat: Axes = value.iter().flatten().copied().collect();
        let (mut out, mut used) = (Vec::with_capacity(shape.len()), 0);
        for size in shape {
            let start = used;
            let (mut left, mut changes) = (size.clone(), 0);
            while left != Dim::from(1) {
                let axis = *self.now(&flat).get(used)?;
                let have = self.size(axis);
                let rest = if left == have { Some(Dim::from(1)) } else { left.div_exact(&have) };
                match rest {
                    Some(rest) => {
                        left = rest;
                        used += 1;
                    }
                    None => {
                        changes += 1;
                        if changes > MAX_CHANGES || !self.cut(axis, &left) {
                            return None;
                        }
                    }
                }
            }
            out.push(self.now(&flat)[start..used].to_vec());
        }
        (used == self.now(&flat).len()).then_some(out)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn dims(sizes: &[i64]) -> Vec<Dim> {
        sizes.iter().map(|d| Dim::from(*d)).collect()
    }

    fn value(s: &mut Space, sizes: &[i64]) -> Vec<Axes> {
        dims(sizes).iter().map(|d| s.axis(d)).collect()
    }

    fn sizes(s: &Space, value: &[Axes]) -> Vec<Vec<i64>> {
        value.iter().map(|p| s.now(p).iter().map(|a| s.size(*a).as_const().unwrap()).collect()).collect()
    }

    #[test]
    fn reshapes_merge_cut_and_drop() {
        let mut s = Space::default();
        let x = value(&mut s, &[2, 12, 5, 1]);
        let y = s.reshape(&x, &dims(&[2, 4, 15, 1, 1])).unwrap();
        assert_eq!(sizes(&s, &x), [vec![2], vec![4, 3], vec![5], vec![]]);
        assert_eq!(sizes(&s, &y), [vec![2], vec![4], vec![3, 5], vec![], vec![]]);
        let z = s.reshape(&y, &dims(&[2, 12, 5])).unwrap();
        assert_eq!(s.now(&z[1]), s.now(&x[1]));
        assert!(s.reshape(&x, &dims(&[5, 24])).is_none());
        let none = value(&mut s, &[3, 0]);
        assert!(s.reshape(&none, &dims(&[3, 1, 0])).is_some());
    }

    #[test]
    fn axes_cut_in_different_places_have_common_axes() {
        let mut s = Space::default();
        let (a, b) = (value(&mut s, &[12]), value(&mut s, &[12]));
        s.reshape(&a, &dims(&[2, 6])).unwrap();
        s.reshape(&b, &dims(&[4, 3])).unwrap();
        assert!(s.unify(&a[0], &b[0]));
        assert_eq!(sizes(&s, &a), [vec![2, 2, 3]]);
        assert_eq!(s.now(&a[0]), s.now(&b[0]));
        let c = value(&mut s, &[7]);
        assert!(!s.unify(&a[0], &c[0]));
    }
}
