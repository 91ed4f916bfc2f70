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

/// What is generated for a declared kernel, and what is not.
fn declared(program: &Program, kernel: &Kernel, name: &str, dtypes: &[DType], out: &mut (Vec<Instance>, Vec<Skipped>)) {
    let skipped = |dtype: Option<DType>, reason: String| Skipped { kernel: name.into(), dtype, reason };
    let mut admitted = Vec::new();
    for dtype in dtypes {
        match template::refused(kernel, *dtype) {
            Some(reason) => out.1.push(skipped(Some(*dtype), reason)),
            None => admitted.push(*dtype),
        }
    }
    let declared = Declared { program, kernel, name, dtypes: admitted };
    let why = match &kernel.backend {
        Backend::Template(file) if file.text.is_empty() => format!("the template {:?} is not on disk", file.file),
        Backend::Template(_) => return declared.templates(out),
        _ if gemm_epilogue(program, kernel).is_some() => return declared.epilogues(out),
        Backend::Rowwise | Backend::Pointwise => return declared.derived(out),
        Backend::Composed => "its body is several launches, with kernels of their own".into(),
        Backend::Tiled => "`gen` writes no tiled kernels yet: plans compile them".into(),
        Backend::Cublaslt(_) => "a library call".into(),
    };
    out.1.push(skipped(None, why));
}

/// A declared kernel, and the element types that it admits.
struct Declared<'p> {
    program: &'p Program,
    kernel: &'p Kernel,
    name: &'p str,
    dtypes: Vec<DType>,
}

impl Declared<'_> {
    fn instance(&self, kernel: String, dtype: DType, kind: &'static str, body: Body) -> Instance {
        Instance { kernel, kind, origin: place(&self.kernel.origin), dtype, body }
    }

    /// Where the kernel stands, and its doc comment.
    fn about(&self) -> String {
        doc(&format!("kernel `{}`", self.kernel.name), &self.kernel.doc, &self.kernel.origin)
    }

    /// A user's template, with each of its tunings.
    fn templates(&self, out: &mut (Vec<Instance>, Vec<Skipped>)) {
        for &dtype in &self.dtypes {
            for tune in template::choices(self.kernel) {
                let label = template::label(self.name, &tune);
                match template::sample(self.program, self.kernel, &label, dtype, &tune) {
                    Ok(filled) => {
                        let body = Body::Template(Box::new(filled));
                        out.0.push(self.instance(label, dtype, "template", body));
                    }
                    Err(reason) => out.1.push(Skipped { kernel: label, dtype: Some(dtype), reason }),
                }
            }
        }
    }

    /// The pass after a product that computes the kernel's epilogue.
    fn epilogues(&self, out: &mut (Vec<Instance>, Vec<Skipped>)) {
        let Some(e) = gemm_epilogue(self.program, self.kernel) else { return };
        let (term, inputs) = match epilogue_term(e) {
            Ok(Some(found)) => found,
            other => {
                let stored = "the accumulator is stored as it is: no pass is needed".to_string();
                out.1.push(Skipped { kernel: self.name.into(), dtype: None, reason: other.err().unwrap_or(stored) });
                return;
            }
        };
        for &dtype in &self.dtypes {
            let description = PointwiseKernel {
                name: format!("{}_{dtype}", self.name),
                doc: self.about(),
                inputs: inputs.iter().map(|a| Operand { dtype, access: a.clone() }).collect(),
                outputs: vec![dtype],
                rank: 2,
                term: term.clone(),
                acc: Some(dtype.accumulator()),
            };
            out.0.push(self.instance(self.name.into(), dtype, "epilogue", Body::Pointwise(description)));
        }
    }

    /// A row-wise or pointwise kernel that is derived from the op's body, in all its variants.
    fn derived(&self, out: &mut (Vec<Instance>, Vec<Skipped>)) {
        let rowwise = self.kernel.backend == Backend::Rowwise;
        let kind = if rowwise { "rowwise" } else { "pointwise" };
        for variant in op::variants(self.program, self.kernel) {
            for &dtype in &self.dtypes {
                let label = format!("{}{}", self.name, variant.suffix);
                match variant.derive(self.program, dtype, rowwise) {
                    Ok(mut body) => {
                        let (of_body, about) = body.labels();
                        *of_body = format!("{label}_{dtype}");
                        *about = format!("{}{}", self.about(), variant.note);
                        out.0.push(self.instance(label, dtype, kind, body));
                    }
                    Err(reason) => out.1.push(Skipped { kernel: label, dtype: Some(dtype), reason }),
                }
            }
        }
    }
}
