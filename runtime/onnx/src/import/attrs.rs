//! Attributes of an ONNX node, read with their types checked.
//!
//! In: a node's `AttributeProto`s. Out: numbers, lists and strings. Invariant: every attribute that
//! a handler reads is marked, and [`Attrs::unread`] finds the others, so no attribute is silently
//! ignored.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};

use hypatia_dsl::spell::closest;

use super::onnx::proto::attribute_proto::AttributeType;
use super::onnx::proto::{AttributeProto, TensorProto};

/// The attributes of one node.
pub(super) struct Attrs<'a> {
    list: Vec<&'a AttributeProto>,
    read: RefCell<HashSet<&'a str>>,
    /// What handlers have asked for: the attributes that the op has.
    asked: RefCell<BTreeSet<String>>,
}

/// The error describes what is wrong with an attribute.
type Reading<T> = Result<T, String>;

impl<'a> Attrs<'a> {
    /// Rejects duplicate names.
    pub fn new(list: impl IntoIterator<Item = &'a AttributeProto>) -> Reading<Attrs<'a>> {
        let list: Vec<_> = list.into_iter().collect();
        let mut names = HashSet::new();
        for a in &list {
            if !names.insert(a.name()) {
                return Err(format!("the attribute `{}` is given twice", a.name()));
            }
        }
        Ok(Attrs { list, read: RefCell::default(), asked: RefCell::default() })
    }

    fn find(&self, name: &str, ty: AttributeType) -> Reading<Option<&'a AttributeProto>> {
        self.asked.borrow_mut().insert(name.to_string());
        let Some(a) = self.list.iter().find(|a| a.name() == name) else { return Ok(None) };
        self.read.borrow_mut().insert(a.name());
        // Files of IR version 1 omit the type.
        if a.r#type.is_some_and(|t| t != ty as i32 && t != 0) {
            let have = a.r#type().as_str_name();
            return Err(format!("the attribute `{name}` should be {}, but is {have}", ty.as_str_name()));
        }
        Ok(Some(a))
    }

    /// Whether the node has an attribute.
    pub fn has(&self, name: &str) -> bool {
        self.list.iter().any(|a| a.name() == name)
    }

    /// An integer.
    pub fn int(&self, name: &str) -> Reading<Option<i64>> {
        Ok(self.find(name, AttributeType::Int)?.map(|a| a.i()))
    }

    /// An integer, or the default.
    pub fn int_or(&self, name: &str, default: i64) -> Reading<i64> {
        Ok(self.int(name)?.unwrap_or(default))
    }

    /// A boolean stored as an integer: 0 or 1.
    pub fn flag(&self, name: &str, default: bool) -> Reading<bool> {
        match self.int(name)? {
            None => Ok(default),
            Some(0) => Ok(false),
            Some(1) => Ok(true),
            Some(other) => Err(format!("the attribute `{name}` should be 0 or 1, but is {other}")),
        }
    }

    /// A number, or the default.
    pub fn float_or(&self, name: &str, default: f32) -> Reading<f32> {
        Ok(self.find(name, AttributeType::Float)?.map_or(default, |a| a.f()))
    }

    /// A number.
    pub fn float(&self, name: &str) -> Reading<Option<f32>> {
        Ok(self.find(name, AttributeType::Float)?.map(|a| a.f()))
    }

    /// Integers.
    pub fn ints(&self, name: &str) -> Reading<Option<&'a [i64]>> {
        Ok(self.find(name, AttributeType::Ints)?.map(|a| a.ints.as_slice()))
    }

    /// Numbers.
    pub fn floats(&self, name: &str) -> Reading<Option<&'a [f32]>> {
        Ok(self.find(name, AttributeType::Floats)?.map(|a| a.floats.as_slice()))
    }

    /// A string, or the default.
    pub fn text_or(&self, name: &str, default: &str) -> Reading<String> {
        match self.find(name, AttributeType::String)? {
            None => Ok(default.to_string()),
            Some(a) => String::from_utf8(a.s().to_vec()).map_err(|_| format!("the attribute `{name}` is not UTF-8")),
        }
    }

    /// A tensor.
    pub fn tensor(&self, name: &str) -> Reading<Option<&'a TensorProto>> {
        Ok(self.find(name, AttributeType::Tensor)?.and_then(|a| a.t.as_ref()))
    }

    /// Marks an attribute that does not affect the result as read.
    pub fn ignore(&self, name: &str) {
        self.asked.borrow_mut().insert(name.to_string());
        if let Some(a) = self.list.iter().find(|a| a.name() == name) {
            self.read.borrow_mut().insert(a.name());
        }
    }

    /// What is wrong with the first attribute that nothing has read.
    pub fn unread(&self) -> Option<String> {
        let name = self.list.iter().map(|a| a.name()).find(|n| !self.read.borrow().contains(n))?;
        let asked = self.asked.borrow();
        let known: Vec<&str> = asked.iter().map(String::as_str).collect();
        Some(match closest(name, known.iter().copied()) {
            Some(near) => format!("it has no attribute `{name}`; did you mean `{near}`?"),
            None if known.is_empty() => format!("it has no attribute `{name}`, nor any other"),
            None => format!("it has no attribute `{name}`; it has `{}`", known.join("`, `")),
        })
    }
}
