//! Types that a model declares, and whether they agree with inferred types.
//!
//! In: a `TypeProto`, and an inferred type. Out: the declared type, and how it contradicts the
//! inferred one. Invariant: a size that is not known contradicts nothing.

use hypatia_dsl::dtype::DType;
use hypatia_dsl::shape::{Dim, show_shape};
use hypatia_dsl::typing::TensorType;

use super::onnx::proto::tensor_shape_proto::dimension;
use super::onnx::proto::{TypeProto, type_proto};
use super::symbolic::known_eq;
use super::tensor::{TensorFault, dtype};

/// A declared size.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Size {
    /// A number.
    Is(i64),
    /// A name.
    Named(String),
    /// Not specified.
    Unknown,
}

/// A declared type.
pub(super) struct Declared {
    /// Element type.
    pub dtype: DType,
    /// Sizes; `None` if even the rank is unknown.
    pub shape: Option<Vec<Size>>,
}

/// Reads a declared type.
pub(super) fn declared(ty: Option<&TypeProto>) -> Result<Declared, TensorFault> {
    let kind =
        |what: &str| Err(TensorFault::Unsupported(format!("a value that is {what}; only tensors are supported")));
    let tensor = match ty.and_then(|t| t.value.as_ref()) {
        Some(type_proto::Value::TensorType(t)) => t,
        Some(type_proto::Value::SequenceType(_)) => return kind("a sequence"),
        Some(type_proto::Value::MapType(_)) => return kind("a map"),
        Some(type_proto::Value::OptionalType(_)) => return kind("optional"),
        Some(type_proto::Value::SparseTensorType(_)) => return kind("a sparse tensor"),
        Some(type_proto::Value::OpaqueType(_)) => return kind("opaque"),
        None => return Err(TensorFault::Damaged("its type is missing".into())),
    };
    let size = |d: &super::onnx::proto::tensor_shape_proto::Dimension| match &d.value {
        // Some exporters write -1 for an unknown size.
        Some(dimension::Value::DimValue(-1)) | None => Ok(Size::Unknown),
        Some(dimension::Value::DimValue(v)) if *v < 0 => Err(TensorFault::Damaged(format!("a size is {v}"))),
        Some(dimension::Value::DimValue(v)) => Ok(Size::Is(*v)),
        Some(dimension::Value::DimParam(p)) if p.is_empty() => Ok(Size::Unknown),
        Some(dimension::Value::DimParam(p)) => Ok(Size::Named(p.clone())),
    };
    let shape = match &tensor.shape {
        Some(s) => Some(s.dim.iter().map(size).collect::<Result<Vec<_>, _>>()?),
        None => None,
    };
    Ok(Declared { dtype: dtype(tensor.elem_type())?, shape })
}

/// How a declared type contradicts an inferred one.
pub(super) struct Contradiction {
    /// The description, which follows the name of the value.
    pub message: String,
    /// True if element types and ranks agree.
    pub sizes_only: bool,
}

/// How a declared type contradicts an inferred one, if it does. `lookup` gives the size of a name
/// that an input declares.
pub(super) fn contradiction(
    declared: &Declared,
    inferred: &TensorType,
    lookup: &dyn Fn(&str) -> Option<Dim>,
) -> Option<Contradiction> {
    let shown = || {
        let dims: Vec<String> = declared
            .shape
            .iter()
            .flatten()
            .map(|s| match s {
                Size::Is(v) => v.to_string(),
                Size::Named(n) => n.clone(),
                Size::Unknown => "?".into(),
            })
            .collect();
        format!("{}[{}]", declared.dtype, dims.join(", "))
    };
    let says = |what: &str, sizes_only: bool| {
        let message = format!("is declared as {}, but is {inferred}: {what}", shown());
        Some(Contradiction { message, sizes_only })
    };
    if declared.dtype != inferred.dtype {
        return says("the element types differ", false);
    }
    let shape = declared.shape.as_ref()?;
    if shape.len() != inferred.shape.len() {
        return says("the ranks differ", false);
    }
    for (axis, (d, i)) in shape.iter().zip(&inferred.shape).enumerate() {
        let d = match d {
            Size::Is(v) => Dim::from(*v),
            Size::Named(n) => match lookup(n) {
                Some(d) => d,
                None => continue,
            },
            Size::Unknown => continue,
        };
        if known_eq(&d, i) == Some(false) {
            return says(&format!("the sizes of axis {axis} differ ({})", show_shape(&[d, i.clone()])), true);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_certain_differences_are_contradictions() {
        let inferred = TensorType { dtype: DType::F32, shape: vec![Dim::symbol("batch"), Dim::from(4)] };
        let check = |dtype, shape: Option<Vec<Size>>| {
            let lookup = |n: &str| ["batch", "seq"].contains(&n).then(|| Dim::symbol(n));
            contradiction(&Declared { dtype, shape }, &inferred, &lookup).is_some()
        };
        let named = |n: &str| Size::Named(n.into());
        assert!(!check(DType::F32, None));
        assert!(!check(DType::F32, Some(vec![named("batch"), Size::Is(4)])));
        assert!(!check(DType::F32, Some(vec![named("seq"), Size::Unknown])));
        assert!(!check(DType::F32, Some(vec![Size::Is(7), named("made up")])));
        assert!(check(DType::F16, None));
        assert!(check(DType::F32, Some(vec![Size::Is(4)])));
        assert!(check(DType::F32, Some(vec![named("batch"), Size::Is(5)])));
    }
}
