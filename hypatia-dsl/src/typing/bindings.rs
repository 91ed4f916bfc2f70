//! Bindings: the values of the variables of a rule, an op or a kernel during the evaluation of
//! types, attributes and guards.
//!
//! In: variables and their values, one at a time. Out: the value of a variable. Invariant: a
//! variable has at most one value. Bindings made since a [`mark`](Values::mark) can be undone
//! together, so that a backtracking search copies nothing.

use crate::ir::{AttrValue, VarId};

/// The values of variables.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bindings {
    /// Values by variable: attributes, dims, shapes (as lists) and dtypes.
    pub values: Values,
}

/// A map from variables to values. Declarations have few variables, so a linear scan is faster than
/// any table.
#[derive(Clone, Debug, Default)]
pub struct Values {
    /// In binding order.
    entries: Vec<(VarId, AttrValue)>,
}

impl Values {
    /// The value of a variable.
    pub fn get(&self, var: &VarId) -> Option<&AttrValue> {
        self.entries.iter().find(|(v, _)| v == var).map(|(_, value)| value)
    }

    /// Whether a variable is bound.
    pub fn contains_key(&self, var: &VarId) -> bool {
        self.get(var).is_some()
    }

    /// Whether no variable is bound.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Binds a variable; replaces its earlier value.
    pub fn insert(&mut self, var: VarId, value: AttrValue) {
        match self.entries.iter_mut().find(|(v, _)| *v == var) {
            Some((_, old)) => *old = value,
            None => self.entries.push((var, value)),
        }
    }

    /// Returns the value of a variable; binds it to `value` first if it is unbound.
    pub fn get_or_insert(&mut self, var: VarId, value: AttrValue) -> &AttrValue {
        let at = self.entries.iter().position(|(v, _)| *v == var).unwrap_or_else(|| {
            self.entries.push((var, value));
            self.entries.len() - 1
        });
        &self.entries[at].1
    }

    /// All values, in binding order.
    pub fn values(&self) -> impl Iterator<Item = &AttrValue> {
        self.entries.iter().map(|(_, value)| value)
    }

    /// All variables and values, in binding order.
    pub fn iter(&self) -> impl Iterator<Item = (&VarId, &AttrValue)> {
        self.entries.iter().map(|(v, value)| (v, value))
    }

    /// A checkpoint for [`forget_since`](Values::forget_since).
    pub fn mark(&self) -> usize {
        self.entries.len()
    }

    /// Unbinds the variables that were bound since the mark. Variables bound earlier keep their
    /// current values, even if those changed since.
    pub fn forget_since(&mut self, mark: usize) {
        self.entries.truncate(mark);
    }
}

impl Extend<(VarId, AttrValue)> for Values {
    fn extend<I: IntoIterator<Item = (VarId, AttrValue)>>(&mut self, values: I) {
        values.into_iter().for_each(|(v, value)| self.insert(v, value));
    }
}

/// Equal if the same variables have the same values, in any binding order.
impl PartialEq for Values {
    fn eq(&self, other: &Values) -> bool {
        self.entries.len() == other.entries.len() && self.iter().all(|(v, value)| other.get(v) == Some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(n: i64) -> AttrValue {
        AttrValue::Dim(n.into())
    }

    #[test]
    fn what_was_bound_since_a_mark_is_forgotten() {
        let (a, b, c) = (VarId(0), VarId(1), VarId(2));
        let mut values = Values::default();
        values.insert(a, number(1));
        let mark = values.mark();
        values.extend([(b, number(2)), (c, number(3))]);
        assert_eq!(values.get_or_insert(b, number(9)), &number(2));
        values.forget_since(mark);
        assert_eq!((values.get(&a), values.contains_key(&b), values.values().count()), (Some(&number(1)), false, 1));
    }

    #[test]
    fn the_order_of_binding_makes_no_difference() {
        let (mut one, mut other) = (Values::default(), Values::default());
        one.extend([(VarId(0), number(1)), (VarId(1), number(2))]);
        other.extend([(VarId(1), number(2)), (VarId(0), number(5)), (VarId(0), number(1))]);
        assert_eq!(one, other);
        other.insert(VarId(1), number(3));
        assert_ne!(one, other);
    }
}
