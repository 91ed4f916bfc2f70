//! Enumerates operand types that a declaration allows.
//!
//! In: an op's declaration. Out: types for its operands and values for its variables, and the
//! location of a type error in a body.

use std::collections::HashMap;

use crate::dtype::DType;
use crate::ir::{AttrType, AttrValue, Build, DTypePat, DimPat, OpDef, ParamKind, RestPat, Sort, TypePat, VarId};
use crate::shape::Dim;
use crate::source::Span;
use crate::typing::{Bindings, NoFacts, TensorType, TypeError, eval};

use super::infer::Infer;

/// One assignment of types and values to an op's operands and attributes.
pub(super) struct Instance {
    pub bindings: Bindings,
    pub types: HashMap<VarId, TensorType>,
    pub absent: Vec<VarId>,
}

/// Instances of an op: rests of 0, 1 and 2 sizes, with all optional operands present and with all
/// absent. `wanted` fixes the element type of a variable.
pub(super) fn instances(def: &OpDef, wanted: Option<(VarId, DType)>) -> Vec<Instance> {
    let rests: Vec<VarId> = vars_of(def, Sort::Shape).filter(|v| def.vars[v.index()].name != "out").collect();
    let free = rests.len().min(3);
    let mut out = Vec::new();
    let optional: Vec<VarId> = def
        .operands()
        .filter(|(_, p)| matches!(p.kind, ParamKind::Tensor { optional: true, .. }))
        .map(|(i, _)| VarId(i as u32))
        .collect();
    for absent in if optional.is_empty() { vec![vec![]] } else { vec![vec![], optional] } {
        for n in 0..3usize.pow(free as u32) {
            let mut bindings = Bindings::default();
            let mut n = n;
            for (i, v) in rests.iter().enumerate() {
                let len = if i < free { n % 3 } else { 1 };
                n /= 3;
                let name = &def.vars[v.index()].name;
                let list = (0..len).map(|k| AttrValue::Dim(Dim::symbol(format!("{name}{k}")))).collect();
                bindings.values.insert(*v, AttrValue::List(list));
            }
            out.extend(instance(def, bindings, absent.clone(), wanted));
        }
    }
    out
}

/// The operand types for notes: `x: f32[s0, k]`.
pub(super) fn describe(def_vars: &[crate::ir::Var], types: &HashMap<VarId, TensorType>, absent: &[VarId]) -> String {
    let mut vars: Vec<&VarId> = types.keys().collect();
    vars.sort();
    let shown: Vec<String> = vars
        .into_iter()
        .filter(|v| !def_vars[v.index()].name.starts_with('_'))
        .map(|v| {
            let name = &def_vars[v.index()].name;
            if absent.contains(v) { format!("{name} absent") } else { format!("{name}: {}", types[v]) }
        })
        .collect();
    shown.join(", ")
}

/// The innermost application that has no type.
pub(super) fn locate(infer: &Infer<'_>, nodes: &[(Build, Span)]) -> Option<(TypeError, Span)> {
    nodes.iter().find_map(|(b, span)| infer.build(b).err().map(|e| (e, *span)))
}

/// The concrete type of a pattern, once its variables have values.
pub(super) fn concrete(t: &TypePat, b: &Bindings) -> Option<TensorType> {
    let dtype = match &t.dtype {
        DTypePat::Any => DType::F32,
        DTypePat::Is(d) => *d,
        DTypePat::Var(v) => as_dtype(b.values.get(v)?)?,
        DTypePat::Expr(e) => as_dtype(&eval(e, b, &NoFacts)?)?,
    };
    let mut shape = Vec::new();
    let push = |d: &DimPat, shape: &mut Vec<Dim>| {
        shape.push(match d {
            DimPat::Any => Dim::from(2),
            DimPat::Var(v) => as_dim(b.values.get(v)?)?,
            DimPat::Expr(e) => as_dim(&eval(e, b, &NoFacts)?)?,
        });
        Some(())
    };
    t.prefix.iter().try_for_each(|d| push(d, &mut shape))?;
    let rest = match &t.rest {
        None | Some(RestPat::Any) => None,
        Some(RestPat::Var(v)) => Some(b.values.get(v)?.clone()),
        Some(RestPat::Expr(e)) => Some(eval(e, b, &NoFacts)?),
    };
    match rest {
        None => {}
        Some(AttrValue::List(l)) => {
            for d in &l {
                shape.push(as_dim(d)?);
            }
        }
        Some(_) => return None,
    }
    t.suffix.iter().try_for_each(|d| push(d, &mut shape))?;
    Some(TensorType { dtype, shape })
}

pub(super) fn as_dtype(v: &AttrValue) -> Option<DType> {
    if let AttrValue::DType(d) = v { Some(*d) } else { None }
}

pub(super) fn as_dim(v: &AttrValue) -> Option<Dim> {
    if let AttrValue::Dim(d) = v { Some(d.clone()) } else { None }
}

fn vars_of(def: &OpDef, sort: Sort) -> impl Iterator<Item = VarId> + '_ {
    def.vars.iter().enumerate().filter(move |(_, v)| v.sort == sort).map(|(i, _)| VarId(i as u32))
}

fn instance(
    def: &OpDef,
    mut bindings: Bindings,
    absent: Vec<VarId>,
    wanted: Option<(VarId, DType)>,
) -> Option<Instance> {
    for (i, p) in def.attrs() {
        let ParamKind::Attr { ty, default } = &p.kind else { continue };
        let value = default.clone().or(match ty {
            AttrType::Axis => Some(AttrValue::Dim(Dim::from(-1))),
            AttrType::Axes => Some(AttrValue::List(vec![AttrValue::Dim(Dim::from(-1))])),
            AttrType::Dim => Some(AttrValue::Dim(Dim::symbol(p.name.as_str()))),
            AttrType::DType => Some(AttrValue::DType(DType::F32)),
            AttrType::Float => Some(AttrValue::Float(1.0)),
            _ => None,
        });
        bindings.values.extend(value.map(|v| (VarId(i as u32), v)));
    }
    for v in vars_of(def, Sort::DType).filter(|v| v.index() >= def.params.len()) {
        let bound = def.bounds.iter().find(|(b, _)| *b == v).map(|(_, l)| l.clone());
        let list = bound.unwrap_or_else(|| vec![DType::F32]);
        let usual = if list.contains(&DType::F32) { DType::F32 } else { *list.first()? };
        let dtype = wanted.filter(|w| w.0 == v).map_or(usual, |w| w.1);
        bindings.values.insert(v, AttrValue::DType(dtype));
    }
    for v in vars_of(def, Sort::Attr).filter(|v| v.index() >= def.params.len()) {
        bindings.values.insert(v, AttrValue::Dim(Dim::symbol(def.vars[v.index()].name.as_str())));
    }
    let mut types = HashMap::new();
    for (i, p) in def.operands() {
        if let ParamKind::Tensor { ty, .. } = &p.kind {
            types.insert(VarId(i as u32), concrete(ty, &bindings)?);
        }
    }
    Some(Instance { bindings, types, absent })
}
