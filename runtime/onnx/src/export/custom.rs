//! Attributes of nodes of custom domains.
//!
//! In: an op and its attribute values. Out: ONNX attributes under the op's names. Invariant: what
//! is written is read again as the same value; a value that ONNX cannot hold is an error.

use hypatia_dsl::ir::{AttrValue, OpDef};

use super::body::{Attr, code};
use hypatia_dsl::typing::show_value;
use hypatia_tensor::error::{Error, Result};

/// Attribute values in ONNX's types.
pub(super) struct Values<'a>(Vec<(&'a str, Value<'a>)>);

enum Value<'a> {
    Int(i64),
    Ints(Vec<i64>),
    Float(f32),
    Floats(Vec<f32>),
    Text(&'a str),
}

impl<'a> Values<'a> {
    /// The values of an op's attributes.
    pub fn of(def: &'a OpDef, attrs: &'a [AttrValue]) -> Result<Values<'a>> {
        let named = def.attrs().zip(attrs).map(|((_, param), value)| {
            let wrong = || {
                let shown = show_value(value);
                Error::Input(format!("attribute `{} = {shown}` of `{}` has no ONNX type", param.name, def.name))
            };
            Ok((param.name.as_str(), converted(value).ok_or_else(wrong)?))
        });
        named.collect::<Result<_>>().map(Values)
    }

    /// The attributes of a node.
    pub fn attributes(&self) -> Vec<(&str, Attr<'_>)> {
        self.0.iter().map(|(name, value)| (*name, value.attr())).collect()
    }
}

impl Value<'_> {
    fn attr(&self) -> Attr<'_> {
        match self {
            Value::Int(i) => Attr::Int(*i),
            Value::Ints(l) => Attr::Ints(l),
            Value::Float(v) => Attr::Float(*v),
            Value::Floats(l) => Attr::Floats(l),
            Value::Text(t) => Attr::Text(t),
        }
    }
}

fn converted(value: &AttrValue) -> Option<Value<'_>> {
    Some(match value {
        AttrValue::Dim(d) => Value::Int(d.as_const()?),
        AttrValue::Bool(b) => Value::Int(i64::from(*b)),
        AttrValue::DType(d) => Value::Int(i64::from(code(*d))),
        AttrValue::Float(v) => Value::Float(*v as f32),
        AttrValue::Str(s) => Value::Text(s),
        AttrValue::List(l) if l.iter().any(|v| matches!(v, AttrValue::Float(_))) => {
            let number = |v: &AttrValue| if let AttrValue::Float(v) = v { Some(*v as f32) } else { None };
            Value::Floats(l.iter().map(number).collect::<Option<_>>()?)
        }
        AttrValue::List(l) => {
            let number = |v: &AttrValue| if let AttrValue::Dim(d) = v { d.as_const() } else { None };
            Value::Ints(l.iter().map(number).collect::<Option<_>>()?)
        }
    })
}
