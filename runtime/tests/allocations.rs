//! A run allocates its outputs and nothing that grows with the model or its sizes.

#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use hypatia::session::{Model, Options};
use hypatia_library as library;
use hypatia_tensor::npz;

/// Counts what passes through.
struct Counting;

static COUNT: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_run_allocates_its_outputs_and_little_else() {
    for name in ["digits", "ffn", "bert"] {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/models").join(name);
        let program = library::load(&[]).unwrap();
        let inputs = npz::read(&folder.join("inputs.npz")).unwrap();
        let options = Options { threads: 2, ..Options::default() };
        let model = Model::load_for(&folder.join("model.onnx"), program, options, &inputs).unwrap();
        let compiled = model.compile(&inputs).unwrap();
        let ordered = model.order(&inputs).unwrap();
        // Every thread has had each kind of work once.
        for _ in 0..20 {
            compiled.executor.run(&ordered).unwrap();
        }
        let before = (COUNT.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed));
        let results = compiled.executor.run(&ordered).unwrap();
        let count = COUNT.load(Ordering::Relaxed) - before.0;
        let bytes = BYTES.load(Ordering::Relaxed) - before.1;
        let outputs: usize = results.iter().map(|t| t.bytes().len()).sum();
        // For each output its shape, its words and what shares them, and the list of outputs.
        assert!(count <= 1 + 6 * results.len(), "{name}: {count} allocations in a run");
        assert!(bytes <= outputs + 512 * results.len() + 512, "{name}: {bytes} bytes for outputs of {outputs}");
    }
}
