//! Kernels that implement a defined op: its body on operands of symbolic sizes.
//!
//! In: a `kernel ... for op(...)` of a Program. Out: the kernel of each form that its pattern
//! allows (an optional operand is there or not), in an element type. Holds always: attributes that
//! the pattern leaves open take their defaults, and the kernel's comment says so.

use std::collections::HashMap;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::{
    AttrPat, AttrType, AttrValue, Backend, Build, BuildNode, DTypePat, DimPat, Head, Kernel, OpBody, OpDef, OpId,
    ParamKind, Pat, Program, RestPat, TypePat, VarId, walk_build,
};
use hypatia_dsl::kernel::{derive_pointwise, derive_rowwise, fits_a_kernel};
use hypatia_dsl::shape::{Dim, Shape};
use hypatia_dsl::typing::{Bindings, NoFacts, TensorType, apply_op, eval, normalise_attrs};

use super::Body;

/// Ops that are defined by each other, at most.
const MAX_DEPTH: usize = 32;
/// Optional operands of which both forms are made.
const MAX_OPTIONAL: usize = 3;

/// One form of an op that a kernel implements.
pub(super) struct Variant {
    op: OpId,
    attrs: Vec<Option<AttrValue>>,
    present: Vec<bool>,
    /// Behind the kernel's name: `_without_bias`.
    pub suffix: String,
    /// Behind the kernel's comment: the values that open attributes took.
    pub note: String,
}

/// Every form; none if the pattern is not an op with plain operands.
pub(super) fn variants(program: &Program, kernel: &Kernel) -> Vec<Variant> {
    let mut pat = &kernel.pattern;
    while let Pat::Bind(_, p) | Pat::Typed(p, _) = pat {
        pat = p;
    }
    let Pat::Node(node) = pat else { return Vec::new() };
    let Head::Op(op) = node.head else { return Vec::new() };
    let Some(def) = program.ops.get(op.index()) else { return Vec::new() };
    let mut note = String::new();
    let attrs = def
        .attrs()
        .zip(&node.attrs)
        .map(|((_, param), pat)| {
            let ParamKind::Attr { ty, default } = &param.kind else { return None };
            let given = match pat {
                AttrPat::Is(e) => eval(e, &Bindings::default(), &NoFacts),
                _ => None,
            };
            if given.is_some() {
                return given;
            }
            let value = default.clone().or_else(|| (*ty == AttrType::Axis).then(|| AttrValue::Dim(Dim::from(-1))));
            if let Some(v) = &value {
                note.push_str(&format!("\nWith {} = {}, which a plan may set otherwise.", param.name, show(v)));
            }
            value
        })
        .collect::<Vec<_>>();
    let optional: Vec<(usize, &str)> = def
        .operands()
        .enumerate()
        .filter(|(slot, _)| matches!(node.args.get(*slot), Some(Pat::Optional(_)) | Some(Pat::OneOf(_))))
        .filter(|(_, (_, p))| matches!(p.kind, ParamKind::Tensor { optional: true, .. }))
        .map(|(slot, (_, p))| (slot, p.name.as_str()))
        .take(MAX_OPTIONAL)
        .collect();
    let mut out = Vec::new();
    for mask in 0..1u32 << optional.len() {
        let mut present: Vec<bool> = def
            .operands()
            .enumerate()
            .map(|(slot, _)| !matches!(node.args.get(slot), Some(Pat::Absent) | None))
            .collect();
        let mut suffix = String::new();
        for (bit, (slot, name)) in optional.iter().enumerate() {
            if mask >> bit & 1 == 1 {
                present[*slot] = false;
                suffix.push_str(&format!("_without_{}", crate::cuda::identifier("", name)));
            }
        }
        out.push(Variant { op, attrs: attrs.clone(), present, suffix, note: note.clone() });
    }
    out
}

fn show(v: &AttrValue) -> String {
    match v {
        AttrValue::Dim(d) => d.to_string(),
        AttrValue::Float(f) => format!("{f:?}"),
        AttrValue::Bool(b) => b.to_string(),
        AttrValue::DType(d) => d.to_string(),
        AttrValue::Str(s) => s.clone(),
        AttrValue::List(l) => format!("[{}]", l.iter().map(show).collect::<Vec<_>>().join(", ")),
    }
}

impl Variant {
    /// The types of operands and results, and the attributes, in that element type.
    #[allow(clippy::type_complexity)]
    pub(super) fn types(
        &self,
        program: &Program,
        dtype: DType,
    ) -> Result<(Vec<Option<TensorType>>, Vec<TensorType>, Vec<(String, AttrValue)>), String> {
        let def = program.op(self.op);
        let main = main_type(def);
        if def.bounds.iter().any(|(v, allowed)| Some(*v) == main && !allowed.contains(&dtype)) {
            return Err(format!("`{}` is not declared for {dtype}", def.name));
        }
        let operands = operands(def, &self.present, dtype)?;
        let rank = operands.iter().flatten().next().map(|t| t.shape.len());
        let attrs = normalise_attrs(def, &self.attrs, rank).map_err(|e| e.message)?;
        let results = apply_op(program, self.op, &attrs, &operands).map_err(|e| e.message)?;
        let named = def.attrs().map(|(_, p)| p.name.clone()).zip(attrs).collect();
        Ok((operands, results, named))
    }

    /// The kernel in that element type, or why there is none.
    pub(super) fn derive(&self, program: &Program, dtype: DType, rowwise: bool) -> Result<Body, String> {
        let (operands, results, attrs) = self.types(program, dtype)?;
        let attrs: Vec<AttrValue> = attrs.into_iter().map(|(_, v)| v).collect();
        if rowwise {
            derive_rowwise(program, self.op, &attrs, &operands, &results).map(Body::Rowwise)
        } else {
            derive_pointwise(program, self.op, &attrs, &operands, &results).map(Body::Pointwise)
        }
    }
}

/// The element type that a kernel is made for: that of the first result, else of the first operand.
fn main_type(def: &OpDef) -> Option<VarId> {
    let of = |ty: &TypePat| match ty.dtype {
        DTypePat::Var(v) => Some(v),
        _ => None,
    };
    def.results.first().and_then(of).or_else(|| {
        def.operands().find_map(|(_, p)| match &p.kind {
            ParamKind::Tensor { ty, .. } => of(ty),
            _ => None,
        })
    })
}

/// Why no kernel can be generated from the body of the op that a `rowwise` or `pointwise` kernel is
/// for, in any element type and form; `None` if one can, or if it is no such kernel.
pub fn not_generated(program: &Program, kernel: &Kernel) -> Option<String> {
    let rowwise = match kernel.backend {
        Backend::Rowwise => true,
        Backend::Pointwise => false,
        _ => return None,
    };
    let mut why = None;
    for variant in variants(program, kernel) {
        let def = program.op(variant.op);
        if matches!(def.body, OpBody::Builtin(_)) {
            return None;
        }
        for dtype in [DType::F32, DType::F16, DType::I32, DType::Bool] {
            // What has no type with sizes and attributes made up here may well have one in a model.
            if variant.types(program, dtype).is_err() {
                why = why.or_else(|| foreign(program, def, 0));
                continue;
            }
            match variant.derive(program, dtype, rowwise) {
                Ok(_) => return None,
                Err(reason) if why.is_none() => why = Some(reason),
                Err(_) => {}
            }
        }
    }
    why
}

/// The first op of a body, written out, that no generated kernel can hold, whatever the sizes.
fn foreign(program: &Program, def: &OpDef, depth: usize) -> Option<String> {
    let OpBody::Defined(bodies) = &def.body else { return None };
    let mut found = None;
    for body in bodies.iter().filter(|_| depth < MAX_DEPTH) {
        walk_build(
            body,
            &mut |b, _| {
                let Build::Node(BuildNode { head: Head::Op(id), .. }) = b else { return };
                let inner = program.op(*id);
                if found.is_none() {
                    found = match inner.body {
                        OpBody::Builtin(b) if !fits_a_kernel(b) => Some(format!("it uses `{}`", inner.name)),
                        _ => foreign(program, inner, depth + 1),
                    };
                }
            },
            true,
        );
    }
    found
}

/// A type for each operand: sizes are symbols, a rest of dimensions is `rows`, or `rows` and `n`
/// where nothing names the last axis.
fn operands(def: &OpDef, present: &[bool], dtype: DType) -> Result<Vec<Option<TensorType>>, String> {
    let patterns: Vec<Option<&TypePat>> = def
        .operands()
        .zip(present)
        .map(|((_, p), there)| match &p.kind {
            ParamKind::Tensor { ty, variadic: false, .. } => Ok(there.then_some(ty)),
            _ => Err(format!("operand `{}` is not a single tensor", p.name)),
        })
        .collect::<Result<_, _>>()?;
    // What a rest stands for depends on whether anything after it names the last axis.
    let mut rests: HashMap<Option<VarId>, Shape> = HashMap::new();
    for ty in patterns.iter().flatten() {
        let key = match &ty.rest {
            Some(RestPat::Var(v)) => Some(*v),
            _ => None,
        };
        let rows = Dim::symbol("rows");
        let shape = if ty.suffix.is_empty() { vec![rows, Dim::symbol("n")] } else { vec![rows] };
        let slot = rests.entry(key).or_insert_with(|| shape.clone());
        if shape.len() < slot.len() {
            *slot = shape;
        }
    }
    let dim = |d: &DimPat| match d {
        DimPat::Var(v) => Ok(Dim::symbol(def.vars.get(v.index()).map_or("d", |v| v.name.as_str()))),
        DimPat::Any => Ok(Dim::symbol("any")),
        DimPat::Expr(e) => match eval(e, &Bindings::default(), &NoFacts) {
            Some(AttrValue::Dim(d)) => Ok(d),
            _ => Err("a size in its type depends on other sizes".to_string()),
        },
    };
    patterns
        .into_iter()
        .map(|ty| {
            let Some(ty) = ty else { return Ok(None) };
            let mut shape = ty.prefix.iter().map(dim).collect::<Result<Vec<_>, _>>()?;
            match &ty.rest {
                None => {}
                Some(RestPat::Var(v)) => shape.extend(rests.get(&Some(*v)).cloned().unwrap_or_default()),
                Some(RestPat::Any) => shape.extend(rests.get(&None).cloned().unwrap_or_default()),
                Some(RestPat::Expr(_)) => return Err("the shape of an operand depends on others".into()),
            }
            for d in &ty.suffix {
                shape.push(dim(d)?);
            }
            let dtype = match &ty.dtype {
                DTypePat::Is(d) => *d,
                // Indices beside floats have a type of their own.
                DTypePat::Var(v) => {
                    let allowed = def.bounds.iter().find(|(b, _)| b == v).map(|(_, l)| l);
                    allowed.filter(|l| !l.contains(&dtype)).and_then(|l| l.first().copied()).unwrap_or(dtype)
                }
                _ => dtype,
            };
            Ok(Some(TensorType { dtype, shape }))
        })
        .collect()
}
