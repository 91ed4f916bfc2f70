//! Rules: `.hyp` files and the library as one Program.
//!
//! In: texts and paths. Out: a checked Program, its scalars by name, reports of `verify`.
//! Invariant: a [`Rules`] has no error; an error is an exception whose text is the report of
//! `check`.

use std::path::PathBuf;
use std::sync::Arc;

use hypatia_dsl::compile::Compilation;
use hypatia_dsl::ir::{Program, ScalarBody};
use hypatia_dsl::render::{Format, render};
use hypatia_dsl::scalar::{Term, TermNode, expand};
use hypatia_dsl::source::SourceFile;
use hypatia_library as library;
use hypatia_tensor::Error;
use hypatia_verify as verify;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::errors::{raised, wrong_input};

/// Rules and scalars: texts of `.hyp` files together with the standard library.
#[pyclass(frozen, module = "hypatia_core._native")]
pub struct Rules {
    pub program: Arc<Program>,
    sources: Vec<SourceFile>,
    /// Rendered warnings.
    #[pyo3(get)]
    warnings: String,
}

/// The name of a text, its path if it is a file, and the text.
type Source = (String, Option<PathBuf>, String);

#[pymethods]
impl Rules {
    /// Compiles texts: tuples of a name, a path (or None) and the text.
    #[new]
    fn new(py: Python<'_>, sources: Vec<Source>) -> PyResult<Rules> {
        let files: Vec<SourceFile> = sources
            .into_iter()
            .map(|(name, path, text)| SourceFile { name, path, text: text.into(), embedded: false })
            .collect();
        py.detach(|| compiled(files)).map_err(raised)
    }

    /// Reads and compiles files.
    #[staticmethod]
    fn from_files(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<Rules> {
        let read = |path: &PathBuf| SourceFile::read(path).map_err(|source| Error::Io { path: path.clone(), source });
        py.detach(|| compiled(paths.iter().map(read).collect::<Result<_, _>>()?)).map_err(raised)
    }

    /// The texts that were compiled, without those that they use.
    #[getter]
    fn sources(&self) -> Vec<Source> {
        self.sources.iter().map(|s| (s.name.clone(), s.path.clone(), s.text.to_string())).collect()
    }

    /// Names of the rules; without the library's if `own`.
    fn rules(&self, own: bool) -> Vec<&str> {
        let all = self.program.rules.iter().filter(|r| !own || self.is_own(&r.origin.file));
        all.map(|r| r.name.as_str()).collect()
    }

    /// Name, number of parameters and description of each scalar; without the library's if `own`.
    fn scalars(&self, own: bool) -> Vec<(&str, usize, &str)> {
        let all = self.program.scalars.iter().filter(|s| !own || self.is_own(&s.origin.file));
        all.map(|s| (s.name.as_str(), s.params.len(), s.doc.trim())).collect()
    }

    /// The body of a scalar, in builtin scalars alone: its nodes in order, the last of which is the
    /// result. A node is ("param", i), ("number", x), ("cast", element type, node) or
    /// (name, node, ...).
    fn body<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyList>> {
        let program = &self.program;
        let id = program.find_scalar(name).ok_or_else(|| wrong_input(format!("no scalar is called `{name}`")))?;
        let def = program.scalar(id);
        let term = match &def.body {
            ScalarBody::Builtin(_) => {
                let mut term = Term::empty();
                let args = (0..def.params.len() as u32).map(|i| term.add(TermNode::Param(i))).collect();
                term.roots = vec![term.add(TermNode::Call { scalar: id, args })];
                term
            }
            ScalarBody::Term(term) => expand(program, term).map_err(wrong_input)?,
        };
        let nodes = term.nodes.iter().map(|node| described(py, program, node)).collect::<PyResult<Vec<_>>>()?;
        let root = term.root().0 as usize;
        PyList::new(py, &nodes[..=root])
    }

    /// Searches for counterexamples to what these texts declare. Returns the report as text and as
    /// JSON.
    #[pyo3(signature = (cases, seed))]
    fn verify(&self, py: Python<'_>, cases: usize, seed: u64) -> (String, String) {
        py.detach(|| {
            let options = verify::Options { cases, seed };
            let report = verify::verify(&self.program, &|o| self.is_own(&o.file), &options, &mut |_, _, _| {});
            (report.to_text(), report.to_json().to_string())
        })
    }
}

impl Rules {
    fn is_own(&self, file: &str) -> bool {
        self.sources.iter().any(|s| s.name == file)
    }
}

fn compiled(files: Vec<SourceFile>) -> Result<Rules, Error> {
    let mut compilation: Compilation = library::compile_sources(files.clone());
    match compilation.program.take() {
        Some(program) => {
            let warnings = render(&compilation.sources, &compilation.diagnostics, Format::Full { color: false });
            Ok(Rules { program: Arc::new(program), sources: files, warnings })
        }
        None => Err(library::rejected(&compilation)),
    }
}

fn described<'py>(py: Python<'py>, program: &Program, node: &TermNode) -> PyResult<Bound<'py, PyTuple>> {
    match node {
        TermNode::Param(i) => ("param", *i).into_pyobject(py),
        TermNode::Lit(v) => ("number", v.0).into_pyobject(py),
        TermNode::Cast { to, arg } => ("cast", to.name(), arg.0).into_pyobject(py),
        TermNode::Call { scalar, args } => {
            let name = program.scalar(*scalar).name.as_str().into_pyobject(py)?.into_any();
            let args = args.iter().map(|a| Ok(a.0.into_pyobject(py)?.into_any()));
            PyTuple::new(py, std::iter::once(Ok(name)).chain(args).collect::<PyResult<Vec<_>>>()?)
        }
        TermNode::Acc | TermNode::Second | TermNode::In { .. } => {
            Err(wrong_input("this is part of an epilogue, not of a scalar"))
        }
    }
}
