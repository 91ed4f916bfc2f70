//! Entries: what PyTorch calls for a part of a graph.
//!
//! In: arguments as PyTorch passes them. Out: the results of the call that is known for their
//! sizes, or of what was given for all other cases. Invariant: a call is taken here only if the
//! policy in force would take it; it counts at its plan.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyTuple};

use crate::call::Call;
use crate::dlpack;
use crate::errors::{is_wrong_input, wrong_input};

/// Which known calls are taken: none, those measured to be faster, or all.
static TRUSTED: AtomicU8 = AtomicU8::new(MEASURED);
const NONE: u8 = 0;
const MEASURED: u8 = 1;
const ALL: u8 = 2;

/// Says which calls entries take: `none`, those `measured` to be the faster side, or `all`.
#[pyfunction]
pub fn trust(calls: &str) -> PyResult<()> {
    let level = match calls {
        "none" => NONE,
        "measured" => MEASURED,
        "all" => ALL,
        _ => return Err(wrong_input(format!("trust: expected none, measured or all, not `{calls}`"))),
    };
    TRUSTED.store(level, Ordering::Relaxed);
    Ok(())
}

/// An argument's part of a key.
#[derive(PartialEq)]
enum Size {
    Number(i64),
    Shape(Vec<i64>),
}

/// A weight whose values a plan contains. The plan's owner holds its memory, so that no other
/// tensor comes to lie there.
struct Frozen {
    at: usize,
    address: usize,
    version: i64,
}

/// A call, and when it is taken.
struct Known {
    threads: usize,
    sizes: Vec<Size>,
    /// The plan's inputs among the arguments.
    tensors: Vec<usize>,
    frozen: Vec<Frozen>,
    call: Py<Call>,
    level: u8,
}

/// A value that an entry returns in a tuple.
#[derive(Clone, Copy)]
enum Value {
    Result(usize),
    Argument(usize),
    Nothing,
}

/// What an entry returns.
#[derive(Clone)]
enum Returns {
    /// The only result itself.
    Single,
    /// All results.
    Results,
    /// These.
    Values(Arc<[Value]>),
}

/// A function of a part's arguments. Threads may share it.
#[pyclass(frozen, weakref, module = "hypatia_core._native")]
pub struct Entry {
    /// The arguments that differ from call to call in more than their elements.
    varying: Vec<usize>,
    /// What is returned.
    returns: Returns,
    /// The number of threads that PyTorch uses now, if plans depend on it.
    threads: Option<Py<PyAny>>,
    /// Computes all other cases.
    otherwise: Py<PyAny>,
    /// The most recently used last.
    known: Arc<Mutex<Vec<Arc<Known>>>>,
}

#[pymethods]
impl Entry {
    /// An entry that knows no call yet. `varying` are indices of arguments, `threads` a function. A
    /// `single` entry returns the only result itself; else a tuple is returned, of all results or
    /// of the `values` that are listed: None, or whether it is a result, and its index among the
    /// results or the arguments.
    #[new]
    #[pyo3(signature = (varying, single, threads, otherwise, values = None))]
    fn new(
        varying: Vec<usize>,
        single: bool,
        threads: Option<Py<PyAny>>,
        otherwise: Py<PyAny>,
        values: Option<Vec<Option<(bool, usize)>>>,
    ) -> Entry {
        let value = |v: Option<_>| match v {
            Some((true, i)) => Value::Result(i),
            Some((false, i)) => Value::Argument(i),
            None => Value::Nothing,
        };
        let returns = match values {
            _ if single => Returns::Single,
            Some(values) => Returns::Values(values.into_iter().map(value).collect()),
            None => Returns::Results,
        };
        Entry { varying, returns, threads, otherwise, known: Arc::default() }
    }

    /// An entry that knows the same calls, now and later, with something else for all other cases.
    fn beside(&self, py: Python<'_>, otherwise: Py<PyAny>) -> Entry {
        Entry {
            varying: self.varying.clone(),
            returns: self.returns.clone(),
            threads: self.threads.as_ref().map(|t| t.clone_ref(py)),
            otherwise,
            known: self.known.clone(),
        }
    }

    /// Adds the call for a key: the number of threads, if it counts, and a size or shape for each
    /// varying argument. A key of anything else is left to the other cases. `tensors` are the
    /// arguments that are the plan's inputs; `frozen` those whose values it contains, each with
    /// address and version.
    fn add(
        &self,
        key: &Bound<'_, PyTuple>,
        tensors: Vec<usize>,
        frozen: Vec<(usize, usize, i64)>,
        call: Py<Call>,
        measured: bool,
    ) -> PyResult<()> {
        let mut sizes = Vec::with_capacity(key.len());
        for part in key.iter().skip(1) {
            sizes.push(if part.is_exact_instance_of::<PyInt>() {
                Size::Number(part.extract()?)
            } else if part.is_instance_of::<PyTuple>() {
                Size::Shape(part.extract()?)
            } else {
                return Ok(());
            });
        }
        let threads = if self.threads.is_some() { key.get_item(0)?.extract()? } else { 0 };
        let frozen = frozen.into_iter().map(|(at, address, version)| Frozen { at, address, version }).collect();
        let level = if measured { MEASURED } else { ALL };
        let added = Arc::new(Known { threads, sizes, tensors, frozen, call, level });
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let replaced = known.iter().position(|k| k.threads == threads && k.sizes == added.sizes);
        let replaced = replaced.map(|i| known.remove(i));
        known.push(added);
        drop(known);
        drop(replaced);
        Ok(())
    }

    /// Forgets all calls.
    fn clear(&self) {
        let dropped = std::mem::take(&mut *self.known.lock().unwrap_or_else(PoisonError::into_inner));
        drop(dropped);
    }

    #[pyo3(signature = (*args))]
    fn __call__<'py>(&self, py: Python<'py>, args: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        let Some(known) = self.taken(py, args)? else {
            return self.otherwise.bind(py).call1(args);
        };
        let call = known.call.get();
        let inputs = known.tensors.iter().map(|i| args.get_item(*i)).collect::<PyResult<Vec<_>>>()?;
        let results = match call.over(py, inputs) {
            // The other side says what is wrong, in PyTorch's words.
            Err(error) if is_wrong_input(py, &error) => return self.otherwise.bind(py).call1(args),
            made => made?,
        };
        call.plan().count();
        match &self.returns {
            Returns::Single => results.get_item(0),
            Returns::Results => Ok(results.into_any()),
            Returns::Values(values) => {
                let value = |v: &Value| match v {
                    Value::Result(i) => results.get_item(*i),
                    Value::Argument(i) => args.get_item(*i),
                    Value::Nothing => Ok(py.None().into_bound(py)),
                };
                Ok(PyTuple::new(py, values.iter().map(value).collect::<PyResult<Vec<_>>>()?)?.into_any())
            }
        }
    }
}

impl Entry {
    /// The call for these arguments, if one is known and taken.
    fn taken(&self, py: Python<'_>, args: &Bound<'_, PyTuple>) -> PyResult<Option<Arc<Known>>> {
        let trusted = TRUSTED.load(Ordering::Relaxed);
        let threads = match &self.threads {
            Some(threads) => threads.bind(py).call0()?.extract()?,
            None => 0,
        };
        // The lock is not held while Python runs.
        let count = self.known.lock().unwrap_or_else(PoisonError::into_inner).len();
        for i in (0..count).rev() {
            let one = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(i).cloned();
            let Some(one) = one.filter(|k| k.threads == threads && k.level <= trusted) else { continue };
            if !self.fits(&one, args)? || !one.call.get().plan().is_reachable() {
                continue;
            }
            if i + 1 < count {
                let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(at) = known.iter().position(|k| Arc::ptr_eq(k, &one)) {
                    known[at..].rotate_left(1);
                }
            }
            return Ok(Some(one));
        }
        Ok(None)
    }

    fn fits(&self, known: &Known, args: &Bound<'_, PyTuple>) -> PyResult<bool> {
        for (i, size) in self.varying.iter().zip(&known.sizes) {
            let arg = args.get_borrowed_item(*i)?;
            let same = match size {
                Size::Number(n) => arg.is_exact_instance_of::<PyInt>() && arg.extract::<i64>().is_ok_and(|a| a == *n),
                Size::Shape(shape) => dlpack::has_shape(&arg, shape)?,
            };
            if !same {
                return Ok(false);
            }
        }
        let version = intern!(args.py(), "_version");
        for one in &known.frozen {
            let arg = args.get_borrowed_item(one.at)?;
            let there = dlpack::borrow(&arg)?.is_some_and(|b| b.address.addr() == one.address);
            if !there || arg.getattr(version)?.extract::<i64>()? != one.version {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
