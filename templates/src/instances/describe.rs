//! Which kernels a Program asks for.
//!
//! In: a Program with a scope. Out: [`Instance`]s, and what has none with the reason. Holds
//! always: each instance has a name of its own.

use std::collections::HashSet;

use crate::cuda::identifier;
use hypatia_dsl::dtype::{DType, Kind};
use hypatia_dsl::ir::{Backend, InView, Kernel, Program, ScalarBody, ScalarDef, ScalarId};
use hypatia_dsl::kernel::short::Shortener;
use hypatia_dsl::kernel::{Access, Operand, PointwiseKernel};
use hypatia_dsl::numerics::Allowed;
use hypatia_dsl::scalar::{Term, TermId, TermNode};

use super::epilogue::{doc, epilogue_term, gemm_epilogue, place};
use super::{Body, Instance, Scope, op, template};

/// A declaration of which no kernel is generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its name.
    pub kernel: String,
    /// The element type, if it is about one.
    pub dtype: Option<DType>,
    /// Why.
    pub reason: String,
}

/// The kernels that are declared in the scope or follow from it, for each element type.
pub fn of_program(program: &Program, scope: &Scope, dtypes: &[DType]) -> (Vec<Instance>, Vec<Skipped>) {
    let mut out = (Vec::new(), Vec::new());
    let mut names = HashSet::new();
    for kernel in program.kernels.iter().filter(|k| scope.holds(&k.origin)) {
        let name = unique(&mut names, &kernel.name);
        declared(program, kernel, &name, dtypes, &mut out);
    }
    for (i, def) in program.scalars.iter().enumerate() {
        if matches!(def.body, ScalarBody::Term(_)) && scope.holds(&def.origin) {
            let name = unique(&mut names, &def.name);
            for dtype in dtypes {
                out.0.push(of_scalar(def, ScalarId(i as u32), &name, *dtype));
            }
        }
    }
    let shortener = Shortener::new(program, &Allowed::default());
    for instance in &mut out.0 {
        instance.body.shorten(&shortener, false);
    }
    out
}

/// A name that is a file name and an identifier, and not taken.
fn unique(names: &mut HashSet<String>, name: &str) -> String {
    let base = identifier("", name);
    let mut out = base.clone();
    let mut i = 2;
    while !names.insert(out.to_ascii_lowercase()) {
        out = format!("{base}_{i}");
        i += 1;
    }
    out
}

/// The kernel that applies a scalar function to whole tensors.
fn of_scalar(def: &ScalarDef, id: ScalarId, name: &str, dtype: DType) -> Instance {
    let of_kind = |k: Kind| if k == Kind::Bool { DType::Bool } else { dtype };
    let inputs = def.params.iter().map(|(_, k)| Operand { dtype: of_kind(*k), access: Access::Full }).collect();
    let mut term = Term::empty();
    let args: Vec<TermId> =
        (0..def.params.len() as u32).map(|input| term.add(TermNode::In { input, view: InView::Broadcast })).collect();
    let root = term.add(TermNode::Call { scalar: id, args });
    term.roots.push(root);
    let kernel = PointwiseKernel {
        name: format!("{name}_{dtype}"),
        doc: doc(&format!("scalar `{}`", def.name), &def.doc, &def.origin),
        inputs,
        outputs: vec![of_kind(def.result)],
        rank: 2,
        term,
        acc: None,
    };
    Instance {
        kernel: name.into(),
        kind: "pointwise",
        origin: place(&def.origin),
        dtype,
        body: Body::Pointwise(kernel),
    }
}

fn declared(program: &Program, kernel: &Kernel, name: &str, dtypes: &[DType], out: &mut (Vec<Instance>, Vec<Skipped>)) {
    let from = doc(&format!("kernel `{}`", kernel.name), &kernel.doc, &kernel.origin);
    let instance = |dtype: DType, kind: &'static str, body: Body| Instance {
        kernel: name.into(),
        kind,
        origin: place(&kernel.origin),
        dtype,
        body,
    };
    let skipped = |dtype: Option<DType>, reason: String| Skipped { kernel: name.into(), dtype, reason };
    let dtypes: Vec<DType> = dtypes
        .iter()
        .copied()
        .filter(|dtype| {
            let refused = template::refused(kernel, *dtype);
            if let Some(reason) = refused {
                out.1.push(skipped(Some(*dtype), reason));
                return false;
            }
            true
        })
        .collect();
    if let Backend::Template(file) = &kernel.backend {
        if file.text.is_empty() {
            out.1.push(skipped(None, format!("the template {:?} is not on disk", file.file)));
            return;
        }
        for dtype in dtypes {
            for tune in template::choices(kernel) {
                let label = template::label(name, &tune);
                match template::sample(program, kernel, &label, dtype, &tune) {
                    Ok(filled) => {
                        let body = Body::Template(Box::new(filled));
                        out.0.push(Instance { kernel: label, ..instance(dtype, "template", body) });
                    }
                    Err(reason) => out.1.push(Skipped { kernel: label, dtype: Some(dtype), reason }),
                }
            }
        }
        return;
    }
    if let Some(e) = gemm_epilogue(program, kernel) {
        match epilogue_term(kernel, e) {
            Ok(Some((term, inputs))) => {
                for dtype in dtypes {
                    let description = PointwiseKernel {
                        name: format!("{name}_{dtype}"),
                        doc: from.clone(),
                        inputs: inputs.iter().map(|a| Operand { dtype, access: a.clone() }).collect(),
                        outputs: vec![dtype],
                        rank: 2,
                        term: term.clone(),
                        acc: Some(if dtype.is_float() { dtype.compute() } else { dtype }),
                    };
                    out.0.push(instance(dtype, "epilogue", Body::Pointwise(description)));
                }
            }
            Ok(None) => out.1.push(skipped(None, "the accumulator is stored as it is: no pass is needed".into())),
            Err(reason) => out.1.push(skipped(None, reason)),
        }
        return;
    }
    match &kernel.backend {
        Backend::Rowwise | Backend::Pointwise => {
            let rowwise = kernel.backend == Backend::Rowwise;
            for variant in op::variants(program, kernel) {
                for &dtype in &dtypes {
                    let label = format!("{name}{}", variant.suffix);
                    match variant.derive(program, dtype, rowwise) {
                        Ok(mut body) => {
                            let (of_body, about) = body.labels();
                            *of_body = format!("{label}_{dtype}");
                            *about = format!("{from}{}", variant.note);
                            let kind = if rowwise { "rowwise" } else { "pointwise" };
                            out.0.push(Instance { kernel: label, ..instance(dtype, kind, body) });
                        }
                        Err(reason) => out.1.push(Skipped { kernel: label, dtype: Some(dtype), reason }),
                    }
                }
            }
        }
        Backend::Composed => {
            out.1.push(skipped(None, "its body is several launches, with kernels of their own".into()))
        }
        Backend::Tiled => out.1.push(skipped(None, "`gen` writes no tiled kernels yet: plans compile them".into())),
        Backend::Cublaslt(_) => out.1.push(skipped(None, "a library call".into())),
        // Filled in above.
        Backend::Template(_) => {}
    }
}
