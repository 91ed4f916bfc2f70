//! Every kernel x element type x architecture compiles with NVRTC. This needs no GPU; without NVRTC
//! the instances are counted as skipped, with the reason.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use hypatia_cuda::generate::{Body, Instance};
use hypatia_cuda::nvrtc::Nvrtc;
use hypatia_dsl::builtin::{BuiltinScalar, SCATTER_REDUCTIONS, ScatterReduction};
use hypatia_dsl::dtype::{DType, Kind};
use hypatia_dsl::ir::{InView, Origin, Program, ScalarBody, ScalarDef};
use hypatia_dsl::kernel::{
    Access, ArgmaxKernel, ChannelGroups, CumsumKernel, GroupTile, GroupWindowsKernel, HorizontalKernel, HorizontalPart,
    Move, MoveKernel, Operand, PointwiseKernel, ProductKernel, Reduction, RowAccess, RowwiseKernel, Running,
    ScatterKernel, SortKernel, Sorting, WindowAxis, WindowTile, WindowsKernel,
};
use hypatia_dsl::scalar::{Literal, Term, TermId, TermNode};
use hypatia_templates::cuda::{RowTarget, rowwise_for};

const ARCHS: [&str; 2] = ["sm_90a", "sm_80"];

/// Every builtin scalar.
fn builtins() -> Program {
    let scalars = BuiltinScalar::ALL
        .iter()
        .map(|b| ScalarDef {
            name: b.name().into(),
            doc: String::new(),
            origin: Origin::default(),
            params: b.params().iter().enumerate().map(|(i, k)| (format!("p{i}"), *k)).collect(),
            result: b.result(),
            body: ScalarBody::Builtin(*b),
            grads: Vec::new(),
            device: None,
        })
        .collect();
    Program { scalars, ..Program::default() }
}

fn input(t: &mut Term, input: u32) -> TermId {
    t.add(TermNode::In { input, view: InView::Broadcast })
}

fn call(p: &Program, t: &mut Term, b: BuiltinScalar, args: Vec<TermId>) -> TermId {
    let scalar = p.builtin_scalar(b).unwrap();
    t.add(TermNode::Call { scalar, args })
}

/// One kernel with a result for every builtin that supports the element type, and every cast.
fn all_functions(p: &Program, dtype: DType) -> Instance {
    let mut t = Term::empty();
    let mut outputs = Vec::new();
    let numbers = [input(&mut t, 0), input(&mut t, 1)];
    let bools = [input(&mut t, 2), input(&mut t, 3)];
    let (mut n, mut roots) = (0, Vec::new());
    for b in BuiltinScalar::ALL.iter().filter(|b| dtype.is_float() || !b.float_only()) {
        let (mut number, mut truth) = (numbers.iter().cycle(), bools.iter().cycle());
        let args = b
            .params()
            .iter()
            .map(|k| if *k == Kind::Bool { *truth.next().unwrap() } else { *number.next().unwrap() })
            .collect();
        roots.push(call(p, &mut t, *b, args));
        outputs.push(if b.result() == Kind::Bool { DType::Bool } else { dtype });
        n += 1;
    }
    for to in compiled() {
        roots.push(t.add(TermNode::Cast { to, arg: numbers[0] }));
        outputs.push(to);
        roots.push(t.add(TermNode::Cast { to, arg: bools[0] }));
        outputs.push(to);
    }
    for v in [0.0, -0.0, 1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e-320, f64::MAX, f64::MIN_POSITIVE] {
        if dtype.is_float() || v == 1.0 {
            let l = t.add(TermNode::Lit(Literal(v)));
            roots.push(call(p, &mut t, BuiltinScalar::Add, vec![numbers[0], l]));
            outputs.push(dtype);
        }
    }
    t.roots = roots;
    let of = |dtype| Operand { dtype, access: Access::Full };
    let kernel = PointwiseKernel {
        name: format!("functions_{dtype}_{n}"),
        doc: String::new(),
        inputs: vec![of(dtype), of(dtype), of(DType::Bool), of(DType::Bool)],
        outputs,
        rank: 2,
        term: t,
        acc: None,
    };
    Instance {
        kernel: "functions".into(),
        kind: "pointwise",
        origin: String::new(),
        dtype,
        body: Body::Pointwise(kernel),
    }
}

/// Every way to read an operand, with and without a preceding product.
fn accesses(p: &Program, dtype: DType, rank: usize, acc: bool) -> Instance {
    let mut t = Term::empty();
    let mut list = vec![Access::Full, Access::Splat, Access::Row, Access::Col];
    if rank > 2 {
        list.push(Access::Strided);
        list.push(Access::Strided);
    }
    let mut sum = if acc { t.add(TermNode::Acc) } else { input(&mut t, 0) };
    for i in 0..list.len() {
        let x = input(&mut t, i as u32);
        sum = call(p, &mut t, BuiltinScalar::Max, vec![sum, x]);
    }
    t.roots = vec![sum];
    let kernel = PointwiseKernel {
        name: format!("accesses_{dtype}"),
        doc: String::new(),
        inputs: list.into_iter().map(|access| Operand { dtype, access }).collect(),
        outputs: vec![dtype],
        rank,
        term: t,
        acc: acc.then(|| dtype.compute()),
    };
    Instance {
        kernel: format!("accesses{rank}"),
        kind: "pointwise",
        origin: String::new(),
        dtype,
        body: Body::Pointwise(kernel),
    }
}

/// Parts of a launch: each way to index operands and results, by single elements and by several.
fn parts(p: &Program, dtype: DType) -> Instance {
    let part = |rank: usize, access: Access, stored: Access, vector: usize| {
        let Body::Pointwise(mut kernel) = accesses(p, dtype, 2, false).body else { panic!("a pointwise kernel") };
        kernel.rank = rank;
        (kernel.name, kernel.inputs) = (String::new(), Vec::new());
        for access in [Access::Full, Access::Splat, access.clone(), access] {
            kernel.inputs.push(Operand { dtype, access });
        }
        HorizontalPart { kernel, stored: vec![stored], picks: Vec::new(), vector, across: None }
    };
    let several = 16 / dtype.size().min(8);
    let parts = [
        part(1, Access::Full, Access::Full, several),
        part(3, Access::Strided, Access::Full, several),
        part(3, Access::Strided, Access::Strided, several),
        part(4, Access::Strided, Access::Strided, 1),
        part(1, Access::Full, Access::Full, several),
    ];
    Instance {
        kernel: "parts".into(),
        kind: "pointwise",
        origin: String::new(),
        dtype,
        body: Body::Horizontal(HorizontalKernel::of(&format!("parts_{dtype}"), parts)),
    }
}

/// The same kernel with the result in the accumulator's memory.
fn in_place(instance: Instance) -> Instance {
    let Body::Pointwise(kernel) = instance.body else { panic!("a pointwise kernel") };
    let shared = kernel.inputs.len();
    Instance { body: Body::InPlace(kernel, vec![shared]), ..instance }
}

/// Every reduction over every kind of operand; with `strided`, also the full reduction and the
/// result along any axes.
fn reductions(p: &Program, dtype: DType, strided: bool) -> Instance {
    let full = || {
        let mut t = Term::empty();
        let (a, b, c, d) = (input(&mut t, 0), input(&mut t, 1), input(&mut t, 2), input(&mut t, 3));
        let ab = call(p, &mut t, BuiltinScalar::Add, vec![a, b]);
        let cd = call(p, &mut t, BuiltinScalar::Add, vec![c, d]);
        let all = call(p, &mut t, BuiltinScalar::Mul, vec![ab, cd]);
        (t, all)
    };
    let mut kinds = vec![Reduction::Sum, Reduction::Max, Reduction::Min, Reduction::Prod];
    if dtype.is_float() {
        kinds.push(Reduction::Mean);
    }
    if strided {
        kinds.truncate(2);
    }
    let mut steps = Vec::new();
    for (i, kind) in kinds.into_iter().enumerate() {
        let (mut t, mut root) = full();
        if i % 2 == 1 {
            let earlier = input(&mut t, 4 + i as u32 - 1);
            root = call(p, &mut t, BuiltinScalar::Sub, vec![root, earlier]);
        }
        t.roots = vec![root];
        steps.push((kind, t));
    }
    let (mut t, root) = full();
    let last = input(&mut t, 4 + steps.len() as u32 - 1);
    let out = call(p, &mut t, BuiltinScalar::Max, vec![root, last]);
    t.roots = vec![out];
    let mut row = Term::empty();
    let (r, c) = (input(&mut row, 4), input(&mut row, 2));
    let s = call(p, &mut row, BuiltinScalar::Add, vec![r, c]);
    row.roots = vec![s];
    let kernel = RowwiseKernel {
        name: format!("reductions_{dtype}"),
        doc: String::new(),
        inputs: vec![
            (dtype, if strided { RowAccess::Strided } else { RowAccess::Full }),
            (dtype, RowAccess::PerColumn),
            (dtype, RowAccess::PerRow),
            (dtype, RowAccess::Splat),
        ],
        steps,
        outputs: vec![
            (dtype, if strided { RowAccess::Strided } else { RowAccess::Full }, t),
            (dtype, RowAccess::PerRow, row),
        ],
        axes: if strided { [2, 1 + dtype.size() % 2] } else { [1, 1] },
        gathers: Vec::new(),
        sums: Vec::new(),
        groups: None,
    };
    Instance { kernel: "reductions".into(), kind: "rowwise", origin: String::new(), dtype, body: Body::Rowwise(kernel) }
}

/// Every data movement, and argmax.
fn moves(dtype: DType) -> Vec<Instance> {
    let index = if dtype.size() == 4 { DType::I32 } else { DType::I64 };
    let kinds = [
        Move::Concat { count: 3, axis: 1, rank: 2 },
        Move::Concat { count: 1, axis: 0, rank: 3 },
        Move::Pad { rank: 4 },
        Move::Gather { index },
        Move::GatherElements { index, axis: 1, rank: 3 },
        Move::GatherNd { index, width: 2 },
    ];
    let instance =
        |kind: &'static str, body: Body| Instance { kernel: kind.into(), kind, origin: String::new(), dtype, body };
    let moved = kinds.into_iter().map(|moves| {
        instance("move", Body::Move(MoveKernel { name: format!("move_{dtype}"), doc: String::new(), moves, dtype }))
    });
    let found = [false, true].into_iter().map(|last| {
        let outer = 1 + last as usize;
        let kernel = ArgmaxKernel { name: format!("argmax_{dtype}"), doc: String::new(), dtype, outer, last };
        instance("search", Body::Argmax(kernel))
    });
    moved.chain(found).collect()
}

/// Windows on planes of several sizes, read and stored in accesses of any width, in one tile and in
/// several, with operands of every kind.
fn windows(p: &Program, dtype: DType) -> Vec<Instance> {
    let accesses = [Access::Col, Access::Full, Access::Splat, Access::Strided];
    let mut term = Term::empty();
    let mut root = term.add(TermNode::Acc);
    for i in 0..accesses.len() as u32 {
        let other = input(&mut term, i);
        root = call(p, &mut term, BuiltinScalar::Add, vec![root, other]);
    }
    term.roots = vec![root];
    let shapes = [(56, 7, 1, 3072), (7, 7, 1, 24_576), (13, 3, 2, 5), (112, 3, 2, 2048), (225, 5, 1, 64)];
    let instance = |(image, size, stride, planes): (usize, usize, usize, usize)| {
        let before = size / 2;
        let out = (image + 2 * before - size) / stride + 1;
        let axes = [WindowAxis { image, out, size, stride, dilation: 1, before }; 2];
        let kernel = WindowsKernel {
            name: format!("windows_{image}_{size}_{dtype}"),
            doc: String::new(),
            factors: [dtype; 2],
            axes,
            filters: 1 + planes % 2,
            acc: dtype.compute(),
            term: term.clone(),
            inputs: accesses.iter().map(|access| Operand { dtype, access: access.clone() }).collect(),
            output: dtype,
            tile: WindowTile::of(axes, [dtype, dtype.compute()], planes).unwrap(),
        };
        let body = Body::Windows(kernel);
        Instance { kernel: "windows".into(), kind: "windows", origin: String::new(), dtype, body }
    };
    shapes.into_iter().map(instance).chain(group_windows(p, dtype)).collect()
}

/// Windows of groups of channels of several widths, in whole blocks and with a ragged one, of small
/// images and of large ones.
fn group_windows(p: &Program, dtype: DType) -> Vec<Instance> {
    let accesses = [Access::Row, Access::Full, Access::Splat, Access::Strided];
    let mut term = Term::empty();
    let mut root = term.add(TermNode::Acc);
    for i in 0..accesses.len() as u32 {
        let other = input(&mut term, i);
        root = call(p, &mut term, BuiltinScalar::Add, vec![root, other]);
    }
    term.roots = vec![root];
    let shapes = [(56, 3, 1, [32, 4, 4]), (28, 3, 2, [5, 8, 8]), (14, 5, 1, [4, 12, 12]), (7, 3, 1, [2, 64, 48])];
    let instance = |(image, size, stride, [count, channels, filters]): (usize, usize, usize, [usize; 3])| {
        let before = size / 2;
        let out = (image + 2 * before - size) / stride + 1;
        let axes = [WindowAxis { image, out, size, stride, dilation: 1, before }; 2];
        let groups = ChannelGroups { count, channels, filters };
        let kernel = GroupWindowsKernel {
            name: format!("groups_{image}_{filters}_{dtype}"),
            doc: String::new(),
            factors: dtype,
            axes,
            groups,
            term: term.clone(),
            inputs: accesses.iter().map(|access| Operand { dtype, access: access.clone() }).collect(),
            output: dtype,
            tile: GroupTile::of(axes, groups, 32).unwrap(),
        };
        let body = Body::GroupWindows(kernel);
        Instance { kernel: "group windows".into(), kind: "windows", origin: String::new(), dtype, body }
    };
    let half = matches!(dtype, DType::F16 | DType::BF16);
    shapes.into_iter().filter(|_| half).map(instance).collect()
}

/// Products of integers, running sums, sorts and scatters.
fn lines(dtype: DType) -> Vec<Instance> {
    let (name, doc) = (|what: &str| format!("{what}_{dtype}"), String::new);
    let mut bodies = Vec::new();
    if dtype.is_int() {
        bodies.extend([1, 3].map(|batch| {
            Body::Product(ProductKernel { name: name("product"), doc: doc(), factors: [dtype; 2], dtype, batch })
        }));
    }
    for (i, role) in [Running::Whole, Running::Sums, Running::Chunks].into_iter().enumerate() {
        for columns in [false, true] {
            let (name, exclusive, reverse) = (name("cumsum"), (i > 0) == columns, i == 1);
            bodies.push(Body::Cumsum(CumsumKernel { name, doc: doc(), dtype, exclusive, reverse, role, columns }));
        }
    }
    for role in [Sorting::Tiles, Sorting::Merge] {
        for (descending, indices, outer) in [(false, false, 1), (true, false, 2), (false, true, 1)] {
            if dtype.is_int() || !indices {
                let name = name("sort");
                bodies.push(Body::Sort(SortKernel { name, doc: doc(), dtype, outer, descending, indices, role }));
            }
        }
    }
    if dtype == DType::Bool {
        bodies.clear();
    }
    for (reduction, index) in SCATTER_REDUCTIONS.iter().map(|(_, reduction)| *reduction).zip([
        DType::I64,
        DType::I32,
        DType::I8,
        DType::U8,
        DType::I64,
    ]) {
        if dtype != DType::Bool || reduction == ScatterReduction::Replace {
            bodies.push(Body::Scatter(ScatterKernel { name: name("scatter"), doc: doc(), dtype, index, reduction }));
        }
    }
    let instance = |body: Body| Instance { kernel: "lines".into(), kind: "lines", origin: String::new(), dtype, body };
    bodies.into_iter().map(instance).collect()
}

/// What every kernel asks for the architecture: whether there is an instruction to await earlier
/// work. It is compiled for both, in other kernels.
const ASKED_BY_ALL: &str = "#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900";

/// Compiles all instances and prints their number; one failure fails the test. A source that does
/// not ask for the architecture otherwise is compiled for one of them, in turn.
fn compile_all(what: &str, program: &Program, instances: &[Instance]) {
    let sources = instances.iter().enumerate().flat_map(|(n, i)| {
        let text = i.emit(program).unwrap().text;
        let asks = text.replace(ASKED_BY_ALL, "").contains("__CUDA_ARCH__");
        let archs = ARCHS.into_iter().enumerate().filter(move |(k, _)| asks || n % ARCHS.len() == *k);
        archs.map(move |(_, arch)| (format!("{} for {}", i.kernel, i.dtype), text.clone(), arch))
    });
    let sources: Vec<_> = sources.collect();
    assert!(instances.len() < 20 || sources.len() < 2 * instances.len(), "all kernels ask for the architecture");
    compile_sources(what, &sources);
}

/// Compiles sources, each for an architecture, and prints their number; one failure fails the test.
fn compile_sources(what: &str, sources: &[(String, String, &str)]) {
    let count = sources.len();
    let local = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/nvrtc");
    let nvrtc = match Nvrtc::find(&[local]) {
        Ok(n) => n,
        Err(e) => {
            println!("CUDA {what}: {count} instances SKIPPED: {}", e.to_string().lines().next().unwrap());
            return;
        }
    };
    let (next, failures, times) = (AtomicUsize::new(0), Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some((name, text, arch)) = sources.get(i) else { return };
                    let started = Instant::now();
                    let compiled = nvrtc.compile(text, name, arch);
                    times.lock().unwrap().push((started.elapsed(), format!("{name}, {arch}")));
                    match compiled {
                        Ok(c) if c.log.is_empty() => {}
                        // A loop over the other lanes of a single thread is unreachable: NVRTC
                        // reports that and drops it.
                        Ok(c) if !c.log.contains("error") && c.log.contains("#128-D") => {}
                        Ok(c) => failures.lock().unwrap().push(format!("{name} for {arch} warns:\n{}", c.log)),
                        Err(e) => failures.lock().unwrap().push(e.to_string()),
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    println!("CUDA {what}: {count} instances compiled with {nvrtc:?}, {} failed", failures.len());
    let mut times = times.into_inner().unwrap();
    times.sort_by(|a, b| b.cmp(a));
    for (time, name) in times.iter().take(5) {
        println!("  {:.1} s: {name}", time.as_secs_f64());
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

/// The element types that kernels are generated for.
fn compiled() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|d| !d.only_stored())
}

#[test]
fn every_builtin_access_and_reduction_compiles() {
    let p = builtins();
    let mut instances = Vec::new();
    for dtype in compiled().filter(|d| *d != DType::Bool) {
        instances.push(all_functions(&p, dtype));
        instances.push(accesses(&p, dtype, 2, false));
        instances.push(accesses(&p, dtype, 4, false));
        instances.push(accesses(&p, dtype, 2, true));
        instances.push(parts(&p, dtype));
        instances.push(reductions(&p, dtype, false));
        instances.push(reductions(&p, dtype, true));
        if dtype.is_float() {
            instances.extend(windows(&p, dtype));
        }
    }
    instances.push(in_place(accesses(&p, DType::BF16, 2, true)));
    for dtype in compiled() {
        instances.extend(moves(dtype));
        instances.extend(lines(dtype));
    }
    compile_all("templates", &p, &instances);
}

#[test]
fn every_kernel_and_scalar_of_the_library_compiles() {
    let program = hypatia_library::load(&[]).unwrap();
    let dtypes = [DType::F32, DType::F16, DType::BF16];
    let (instances, skipped) =
        hypatia_cuda::generate::of_program(&program, &hypatia_cuda::generate::Scope::All, &dtypes);
    for s in &skipped {
        println!("CUDA library: no kernel of {}: {}", s.kernel, s.reason);
    }
    for kind in ["pointwise", "epilogue", "rowwise"] {
        assert!(instances.iter().any(|i| i.kind == kind), "no {kind} kernel");
    }
    compile_all("library", &program, &instances);
}

/// Row-wise kernels as in a plan, for rows of one length: a lane, a warp, several blocks or a
/// cluster per row; lengths that divide into packs and lengths that do not; rows that are too long
/// to keep.
#[test]
fn rows_of_known_length_compile() {
    let program = hypatia_library::load(&[]).unwrap();
    let (instances, _) =
        hypatia_cuda::generate::of_program(&program, &hypatia_cuda::generate::Scope::All, &[DType::F32, DType::BF16]);
    let mut kernels: Vec<(DType, RowwiseKernel)> = Vec::new();
    for i in instances {
        if let (Body::Rowwise(k), true) = (i.body, ["softmax_row", "add_layer_norm_row"].contains(&i.kernel.as_str())) {
            kernels.push((i.dtype, k));
        }
    }
    assert!(kernels.len() >= 4, "{} kernels", kernels.len());
    for strided in [false, true] {
        let Body::Rowwise(k) = reductions(&program, DType::F16, strided).body else { unreachable!() };
        kernels.push((DType::F16, k));
    }
    let mut sources = Vec::new();
    for (dtype, kernel) in &kernels {
        for (rows, n) in
            // Rows of the second-to-last case pass through shared memory.
            [
                (1, 0),
                (9, 1),
                (1 << 20, 96),
                (4096, 197),
                (1024, 768),
                (1, 8192),
                (64, 65_536),
                (1024, 65_536),
                (3, 1 << 20),
            ]
        {
            for (arch, clusters) in [("sm_90a", true), ("sm_80", false)] {
                let source = rowwise_for(&program, kernel, RowTarget::Length { rows, n, clusters }).unwrap();
                assert_eq!(source.entries.len(), 1);
                sources.push((format!("{} for {dtype}, rows of {n}", kernel.name), source.text, arch));
            }
        }
        if kernel.strided() {
            let source = rowwise_for(&program, kernel, RowTarget::Columns).unwrap();
            sources.push((format!("{} for {dtype}, columns", kernel.name), source.text, "sm_90a"));
        }
    }
    compile_sources("rows of known length", &sources);
}

/// The worked example of docs/language.md: every choice of its parameters, with its own epilogue
/// and with any other.
#[test]
fn templates_of_users_compile() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("templates/tiled_gemm.hyp");
    let program = hypatia_library::load(std::slice::from_ref(&file)).unwrap();
    let scope = hypatia_cuda::generate::Scope::Files(vec![file.display().to_string()]);
    let (instances, skipped) =
        hypatia_cuda::generate::of_program(&program, &scope, &[DType::F32, DType::F16, DType::BF16]);
    let names: Vec<String> = instances.iter().map(|i| format!("{} {}", i.kernel, i.dtype)).collect();
    for wanted in ["tiled_gemm_TILE16 f16", "tiled_gemm_TILE32 bf16", "tiled_silu_TILE16 f32", "shares_warp f32"] {
        assert!(names.iter().any(|n| n == wanted), "{wanted} is not among {names:?}");
    }
    // `requires` excludes f16.
    assert!(skipped.iter().any(|s| s.kernel == "tiled_silu" && s.dtype == Some(DType::F16)), "{skipped:?}");
    compile_all("users' templates", &program, &instances);

    let mut term = Term::empty();
    let acc = term.add(TermNode::Acc);
    let mut root = acc;
    for _ in 0..200 {
        let row = input(&mut term, 0);
        root = call(&program, &mut term, BuiltinScalar::Max, vec![root, row]);
        root = call(&program, &mut term, BuiltinScalar::Tanh, vec![root]);
    }
    term.roots.push(root);
    let operands = [Operand { dtype: DType::F16, access: Access::Strided }];
    let made = |tune: &[(&str, i64)]| {
        let of = hypatia_templates::instances::instantiate;
        of(&program, "tiled_gemm", &term, DType::F32, &operands, DType::BF16, tune)
    };
    assert!(made(&[("TILE", 32)]).unwrap().text.contains("in0_strides"));
    assert!(made(&[("TILE", 48)]).is_err());
    assert!(made(&[("BM", 16)]).is_err());
}
