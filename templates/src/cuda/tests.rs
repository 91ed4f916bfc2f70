#![allow(clippy::unwrap_used)]

use super::*;
use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::compile::{FileLoader, compile};
use hypatia_dsl::dtype::Kind;
use hypatia_dsl::ir::{InView, Origin, ScalarBody, ScalarDef, ScalarId};
use hypatia_dsl::kernel::short::Shortener;
use hypatia_dsl::kernel::{
    Access, HorizontalKernel, HorizontalPart, Operand, Reduction, RowAccess, WindowAxis, WindowTile,
};
use hypatia_dsl::numerics::Allowed;
use hypatia_dsl::scalar::{Literal, Term, TermId, TermNode};
use hypatia_dsl::source::SourceFile;

/// The builtin scalars, and the rules about generated kernels.
fn builtins() -> Program {
    let text = "edition 1;\nuse core::*;\nuse short::*;\n".into();
    let root = SourceFile { name: "test.hyp".into(), path: None, text, embedded: false };
    compile(vec![root], &FileLoader { embedded: hypatia_rules::FILES, trees: hypatia_rules::TREES }, &crate::Checker)
        .program
        .unwrap()
}

/// The kernel with short functions wherever rules allow them.
fn shortened(p: &Program, k: &PointwiseKernel, tf32: bool) -> PointwiseKernel {
    let mut k = k.clone();
    Shortener::new(p, &Allowed::default()).pointwise(&mut k, tf32);
    k
}

/// Like `shortened`, for a row-wise kernel.
fn shortened_rows(p: &Program, k: &RowwiseKernel) -> RowwiseKernel {
    let mut k = k.clone();
    Shortener::new(p, &Allowed::default()).rowwise(&mut k);
    k
}

struct Build<'p>(&'p Program, Term);

impl Build<'_> {
    fn input(&mut self, input: u32) -> TermId {
        self.1.add(TermNode::In { input, view: InView::Broadcast })
    }
    fn lit(&mut self, v: f64) -> TermId {
        self.1.add(TermNode::Lit(Literal(v)))
    }
    fn call(&mut self, b: BuiltinScalar, args: &[TermId]) -> TermId {
        let scalar = self.0.builtin_scalar(b).unwrap();
        self.1.add(TermNode::Call { scalar, args: args.to_vec() })
    }
    fn done(mut self, roots: &[TermId]) -> Term {
        self.1.roots = roots.to_vec();
        self.1
    }
}

fn build(p: &Program) -> Build<'_> {
    Build(p, Term::empty())
}

fn kernel(name: &str, term: Term, inputs: &[(DType, Access)], outputs: &[DType]) -> PointwiseKernel {
    PointwiseKernel {
        name: name.into(),
        doc: "A test.".into(),
        inputs: inputs.iter().map(|(d, a)| Operand { dtype: *d, access: a.clone() }).collect(),
        outputs: outputs.to_vec(),
        rank: 2,
        term,
        acc: None,
    }
}

#[test]
fn a_bias_and_gelu_read_as_one_would_write_them() {
    use BuiltinScalar::*;
    let mut p = builtins();
    // gelu(x) = 0.5 * x * (1 + erf(x * 0.7071067811865476))
    let mut b = build(&p);
    let x = b.1.add(TermNode::Param(0));
    let (half, one, c) = (b.lit(0.5), b.lit(1.0), b.lit(std::f64::consts::FRAC_1_SQRT_2));
    let hx = b.call(Mul, &[half, x]);
    let xc = b.call(Mul, &[x, c]);
    let e = b.call(Erf, &[xc]);
    let e1 = b.call(Add, &[one, e]);
    let r = b.call(Mul, &[hx, e1]);
    let body = b.done(&[r]);
    p.scalars.push(ScalarDef {
        name: "gelu".into(),
        doc: "GELU by the error function.".into(),
        origin: Origin { file: "act.hyp".into(), line: 7, column: 1, span: None },
        params: vec![("x".into(), Kind::Number)],
        result: Kind::Number,
        body: ScalarBody::Term(body),
        grads: Vec::new(),
        device: None,
    });
    let gelu = ScalarId(p.scalars.len() as u32 - 1);
    let mut b = build(&p);
    let acc = b.1.add(TermNode::Acc);
    let bias = b.1.add(TermNode::In { input: 0, view: InView::Row });
    let s = b.call(Add, &[acc, bias]);
    let g = b.1.add(TermNode::Call { scalar: gelu, args: vec![s] });
    let mut k = kernel("linear_gelu", b.done(&[g]), &[(DType::BF16, Access::Row)], &[DType::BF16]);
    k.acc = Some(DType::F32);
    insta::assert_snapshot!(pointwise(&p, &shortened(&p, &k, false)).unwrap().text);
    // If 24 bits matter, each operation stays separate.
    k.outputs = vec![DType::F32];
    assert_eq!(shortened(&p, &k, false), k);
    assert!(pointwise(&p, &k).unwrap().text.contains("(1.0f + erff(x * 0.70710677f))"));
    assert!(pointwise(&p, &shortened(&p, &k, true)).unwrap().text.contains("one_plus_erf(t"));
}

#[test]
fn windows_of_a_plane_read_as_one_would_write_them() {
    use BuiltinScalar::*;
    let p = builtins();
    let mut b = build(&p);
    let (acc, bias, zero) = (b.1.add(TermNode::Acc), b.input(0), b.lit(0.0));
    let sum = b.call(Add, &[acc, bias]);
    let value = b.call(Max, &[sum, zero]);
    let axis = WindowAxis { image: 14, out: 14, size: 3, stride: 1, dilation: 1, before: 1 };
    let mut k = WindowsKernel {
        name: "depthwise".into(),
        doc: "A test.".into(),
        factors: [DType::BF16; 2],
        axes: [axis; 2],
        filters: 1,
        acc: DType::F32,
        term: b.done(&[value]),
        inputs: vec![Operand { dtype: DType::BF16, access: Access::Col }],
        output: DType::BF16,
        tile: WindowTile::of([axis; 2], [DType::BF16, DType::F32], 32 * 384).unwrap(),
    };
    insta::assert_snapshot!(windows(&p, &k).unwrap().text);
    k.tile.planes = 1000;
    assert!(windows(&p, &k).is_err());
}

/// A part of a launch: the sum of two operands, indexed like that.
fn part(p: &Program, dtype: DType, access: [Access; 3], vector: usize) -> HorizontalPart {
    let mut b = build(p);
    let (x, y) = (b.input(0), b.input(1));
    let sum = b.call(BuiltinScalar::Add, &[x, y]);
    let [first, second, stored] = access;
    let inputs = [first, second].map(|access| Operand { dtype, access });
    let (name, doc) = (String::new(), String::new());
    let kernel = PointwiseKernel {
        name,
        doc,
        inputs: inputs.to_vec(),
        outputs: vec![dtype],
        rank: 2,
        term: b.done(&[sum]),
        acc: None,
    };
    HorizontalPart { kernel, stored: vec![stored], picks: Vec::new(), vector, across: None }
}

#[test]
fn parts_of_a_launch_read_as_one_would_write_them() {
    let p = builtins();
    let whole = part(&p, DType::BF16, [Access::Full, Access::Splat, Access::Full], 8);
    let strided = part(&p, DType::F32, [Access::Strided, Access::Full, Access::Strided], 4);
    let k = HorizontalKernel::of("parts", [whole.clone(), strided, whole.clone()]);
    // Parts of one code share its function.
    assert_eq!((k.codes.len(), k.parts.as_slice()), (2, &[0, 1, 0][..]));
    insta::assert_snapshot!(horizontal(&p, &k).unwrap().text);
    let mut by_row = whole;
    by_row.kernel.inputs[0].access = Access::Row;
    assert!(horizontal(&p, &HorizontalKernel::of("parts", [by_row])).is_err());
    assert!(horizontal(&p, &HorizontalKernel::of("parts", [])).is_err());
}

fn softmax(p: &Program) -> RowwiseKernel {
    use BuiltinScalar::*;
    let mut b = build(p);
    let x = b.input(0);
    let max = b.done(&[x]);
    let exps = || {
        let mut b = build(p);
        let (x, m) = (b.input(0), b.input(1));
        let d = b.call(Sub, &[x, m]);
        let e = b.call(Exp, &[d]);
        (b, e)
    };
    let (b, e) = exps();
    let sum = b.done(&[e]);
    let (mut b, e) = exps();
    let s = b.input(2);
    let q = b.call(Div, &[e, s]);
    RowwiseKernel {
        name: "softmax".into(),
        doc: "Exponentials that sum to 1.".into(),
        inputs: vec![(DType::F16, RowAccess::Full)],
        steps: vec![(Reduction::Max, max), (Reduction::Sum, sum)],
        outputs: vec![(DType::F16, RowAccess::Full, b.done(&[q]))],
        axes: [1, 1],
        gathers: Vec::new(),
        sums: Vec::new(),
        groups: None,
    }
}

#[test]
fn softmax_reads_as_one_would_write_it() {
    let p = builtins();
    insta::assert_snapshot!(rowwise(&p, &shortened_rows(&p, &softmax(&p))).unwrap().text);
}

#[test]
fn rows_of_known_length_get_the_threads_that_they_need() {
    let p = builtins();
    let k = softmax(&p);
    let geometry = |rows: u64, n: u64, clusters: bool| {
        let source = rowwise_for(&p, &k, RowTarget::Length { rows, n, clusters }).unwrap();
        assert_eq!(source.entries.len(), 1);
        assert!(source.args.iter().all(|a| a.name != "n"), "the length is no argument");
        source.entries[0].geometry
    };
    let rows = |block, threads| Geometry::Rows { block, threads, up_to: None };
    assert_eq!(geometry(1 << 20, 100, true), rows(128, 8));
    assert_eq!(geometry(1 << 20, 1024, true), rows(128, 32));
    // Few rows do not fill a device unless more threads share one.
    assert_eq!(geometry(16, 1024, true), rows(128, 128));
    assert_eq!(geometry(8192, 8192, true), rows(256, 256));
    assert_eq!(geometry(4096, 10_240, true), rows(256, 256));
    assert_eq!(geometry(4096, 16_384, true), rows(256, 256));
    // Elements outside packs take a register each; few rows leave multiprocessors idle.
    assert_eq!(geometry(4096, 16_383, true), rows(512, 512));
    assert_eq!(geometry(200, 16_384, true), rows(512, 512));
    assert_eq!(geometry(64, 65_536, true), Geometry::Clusters { block: 512, blocks: 4, shared: 0 });
    // With enough rows, they stream through shared memory.
    assert_eq!(geometry(1024, 65_536, true), Geometry::Clusters { block: 256, blocks: 8, shared: 8192 * 2 });
    assert_eq!(geometry(1024, 32_768, false), rows(1024, 1024));
    // Too long to keep: every pass reads the row again, in more blocks if there are few rows.
    assert_eq!(geometry(1, 1 << 20, true), Geometry::Clusters { block: 512, blocks: 8, shared: 0 });
    assert_eq!(geometry(64, 1 << 20, true), Geometry::Clusters { block: 512, blocks: 2, shared: 0 });
    assert_eq!(geometry(4096, 1 << 20, true), rows(512, 512));
    assert_eq!(geometry(1, 1 << 20, false), rows(1024, 1024));
    let long = rowwise_for(&p, &k, RowTarget::Length { rows: 1024, n: 65_536, clusters: true }).unwrap();
    assert!(
        long.text.contains("__cluster_dims__(8, 1, 1)")
            && long.text.contains("cp.async")
            && long.text.contains("constexpr long long n = 65536;")
    );
    // Blocks signal each other; the cluster's own barrier, which waits for all stores, is used only
    // at the start.
    assert_eq!(long.text.matches("barrier.cluster.arrive").count(), 1);
    assert!(long.text.contains("st.async") && long.text.contains("mbarrier.try_wait"));
    // One barrier per row is for kernels with one reduction.
    let mut one = k.clone();
    one.steps.truncate(1);
    let mut b = build(&p);
    let (x, max) = (b.input(0), b.input(1));
    let d = b.call(BuiltinScalar::Sub, &[x, max]);
    one.outputs[0].2 = b.done(&[d]);
    let one = rowwise_for(&p, &one, RowTarget::Length { rows: 1024, n: 65_536, clusters: true }).unwrap();
    assert!(one.text.contains("*of_rank(values") && !one.text.contains("mbarrier"));
    // The blocks of a multiprocessor leave registers for 64 elements per thread.
    let dense = |k: &RowwiseKernel| {
        rowwise_for(&p, k, RowTarget::Length { rows: 4096, n: 16_384, clusters: true }).unwrap().text
    };
    assert!(dense(&k).contains("__launch_bounds__(256, 3)"));
    let mut scaled = k.clone();
    scaled.inputs.push((DType::F16, RowAccess::PerColumn));
    scaled.steps.truncate(1);
    let mut b = build(&p);
    let (x, w, max) = (b.input(0), b.input(1), b.input(2));
    let d = b.call(BuiltinScalar::Sub, &[x, max]);
    let y = b.call(BuiltinScalar::Mul, &[d, w]);
    scaled.outputs[0].2 = b.done(&[y]);
    assert!(dense(&scaled).contains("__launch_bounds__(256, 2)"));
}

/// Values that a pass over the row computes per element are kept for the results, if they are
/// expensive and fit the registers.
/// The sum of the exponentials below the largest element, of each row.
fn sums_below(p: &Program) -> RowwiseKernel {
    let mut k = softmax(p);
    let mut b = build(p);
    let sum = b.input(2);
    k.outputs = vec![(DType::F32, RowAccess::PerRow, b.done(&[sum]))];
    k
}

#[test]
fn sums_below_the_largest_element_are_found_in_its_pass() {
    let p = builtins();
    let k = sums_below(&p);
    let made =
        |k: &RowwiseKernel, n: u64| rowwise_for(&p, k, RowTarget::Length { rows: 4096, n, clusters: true }).unwrap();
    // Rows that are read once are not kept, unless they are short.
    let long = made(&k, 128_256);
    assert_eq!(long.entries[0].geometry, Geometry::Rows { block: 512, threads: 512, up_to: None });
    assert!(long.text.contains("r1 *= below1(before_r0, r0)"), "{}", long.text);
    assert!(!made(&k, 4096).text.contains("CHUNKS, false>(in0"));
    // Sums of something else are found in a pass of their own.
    let mut other = k.clone();
    let mut b = build(&p);
    let (x, top) = (b.input(0), b.input(1));
    let sum = b.call(BuiltinScalar::Add, &[x, top]);
    other.steps[1].1 = b.done(&[sum]);
    assert!(!made(&other, 128_256).text.contains("below1"));
    // So are those below the largest of other values, and below a smallest element.
    let mut other = k.clone();
    let mut b = build(&p);
    let x = b.input(0);
    let size = b.call(BuiltinScalar::Abs, &[x]);
    other.steps[0].1 = b.done(&[size]);
    assert!(!made(&other, 128_256).text.contains("below1"));
    let mut other = k;
    other.steps[0].0 = Reduction::Min;
    assert!(!made(&other, 128_256).text.contains("below1"));
}

#[test]
fn results_read_what_a_pass_has_computed() {
    use BuiltinScalar::*;
    let p = builtins();
    let text = |k: &RowwiseKernel, n: u64| {
        rowwise_for(&p, k, RowTarget::Length { rows: 1 << 16, n, clusters: true }).unwrap().text
    };
    let k = shortened_rows(&p, &softmax(&p));
    let kept = |text: &str| text.contains("const float e1 = stays(step1(in0_v.v[k], r0));");
    let short = text(&k, 8192);
    assert!(kept(&short) && short.contains("value0(r1, KEEP ? e1_kept[c].v[k] : step1(in0_v.v[k], r0))"), "{short}");
    // In the function of the step and in what scales sums of rows that are not kept; the results
    // have no copy.
    assert_eq!(short.matches("__expf").count(), 2, "{short}");
    assert!(short.contains("over_row(e1, r1)"), "{short}");
    // 64 elements as floats do not fit.
    assert!(!kept(&text(&k, 16_384)));
    // The compiler keeps wide floats itself.
    let mut wide = softmax(&p);
    wide.inputs[0].0 = DType::F32;
    wide.outputs[0].0 = DType::F32;
    assert!(!text(&wide, 8192).contains("_kept[c].v[k] = e1"));
    // x * softmax(x): together with the elements of x, 32 of them are too many, 16 are not.
    let mut more = k.clone();
    let mut b = Build(&p, more.outputs[0].2.clone());
    let root = b.1.root();
    let x = b.input(0);
    let y = b.call(Mul, &[root, x]);
    more.outputs[0].2 = b.done(&[y]);
    assert!(!kept(&text(&more, 8192)));
    assert!(kept(&text(&more, 512)));
    // exp(x + m) is a different value than exp(x - m), and x - m is cheaper to recompute than to
    // keep.
    let mut other = k.clone();
    let mut b = build(&p);
    let (x, m) = (b.input(0), b.input(1));
    let d = b.call(Add, &[x, m]);
    let e = b.call(Exp, &[d]);
    other.outputs[0].2 = b.done(&[e]);
    assert!(!kept(&text(&other, 8192)));
    let mut b = build(&p);
    let (x, m) = (b.input(0), b.input(1));
    let d = b.call(Sub, &[x, m]);
    other.steps[1].1 = b.done(&[d]);
    other.outputs[0].2 = k.outputs[0].2.clone();
    assert!(!kept(&text(&other, 8192)));
    // A missing operand is reported.
    let mut wrong = k.clone();
    let mut b = build(&p);
    let x = b.input(3);
    wrong.steps[0].1 = b.done(&[x]);
    let e = rowwise_for(&p, &wrong, RowTarget::Length { rows: 1, n: 8, clusters: true }).unwrap_err();
    assert!(e.to_string().contains("neither an input nor a step"), "{e}");
    // Two per-element results and one per-row result.
    let mut two = k.clone();
    let mut b = build(&p);
    let s = b.input(2);
    let log = b.call(Log, &[s]);
    two.outputs.push((DType::F16, RowAccess::PerRow, b.done(&[log])));
    two.outputs.push(k.outputs[0].clone());
    let two = text(&two, 4096);
    assert!(kept(&two) && two.matches("KEEP ? e1_kept[c].v[k]").count() == 2, "{two}");
}

#[test]
fn literals_keep_their_bits() {
    let p = builtins();
    for (v, ty, want) in [
        (0.1, DType::F32, "0.1f"),
        (1e-45, DType::F32, "1e-45f"),
        (1e300, DType::F32, "__int_as_float(0x7f800000)"),
        (f64::NAN, DType::F32, "__int_as_float(0x7fc00000)"),
        (-0.0, DType::F64, "-0.0"),
        (f64::NEG_INFINITY, DType::F64, "__longlong_as_double(0xfff0000000000000LL)"),
        (-3.0, DType::I64, "-3LL"),
    ] {
        let mut b = build(&p);
        let l = b.lit(v);
        let lowered = Functions::new(&p).lower(&b.done(&[l]), ty, &|_| None).unwrap();
        assert_eq!(lowered.roots[0].text, want);
    }
}

#[test]
fn integers_take_no_fractions_and_no_float_functions() {
    let p = builtins();
    let mut b = build(&p);
    let (x, h) = (b.input(0), b.lit(0.5));
    let m = b.call(BuiltinScalar::Mul, &[x, h]);
    let k = kernel("k", b.done(&[m]), &[(DType::I32, Access::Full)], &[DType::I32]);
    assert!(matches!(pointwise(&p, &k), Err(EmitError::Fraction { .. })));
    let mut b = build(&p);
    let x = b.input(0);
    let e = b.call(BuiltinScalar::Exp, &[x]);
    let k = kernel("k", b.done(&[e]), &[(DType::I32, Access::Full)], &[DType::I32]);
    assert!(matches!(pointwise(&p, &k), Err(EmitError::FloatOnly { .. })));
}

#[test]
fn hostile_names_stay_names() {
    let mut p = builtins();
    for name in ["float", "asm", "a*/\n# include \"/etc/passwd\"", &"y".repeat(10_000)] {
        let mut b = build(&p);
        let x = b.1.add(TermNode::Param(0));
        let n = b.call(BuiltinScalar::Neg, &[x]);
        p.scalars.push(ScalarDef {
            name: name.into(),
            doc: "*/ evil();\n# include <evil> \\".into(),
            origin: Origin { file: "a\"\n.hyp".into(), line: 1, column: 1, span: None },
            params: vec![("__CUDA_ARCH__".into(), Kind::Number)],
            result: Kind::Number,
            body: ScalarBody::Term(Term { roots: vec![n], ..b.1 }),
            grads: Vec::new(),
            device: None,
        });
        let mut b = build(&p);
        let x = b.input(0);
        let c = b.1.add(TermNode::Call { scalar: ScalarId(p.scalars.len() as u32 - 1), args: vec![x] });
        let k = kernel(name, b.done(&[c]), &[(DType::F32, Access::Full)], &[DType::F32]);
        let text = pointwise(&p, &k).unwrap().text;
        for line in text.lines().filter(|l| l.contains("evil") || l.contains("/etc")) {
            assert!(line.starts_with("// "), "{line}");
        }
        assert!(!text.contains("#include"), "an f32 kernel includes nothing");
        assert!(text.lines().all(|l| l.len() < 300));
    }
}

#[test]
fn deep_terms_and_long_chains_of_functions_are_bounded() {
    let mut p = builtins();
    // f0(x) = -x, f1(x) = f0(x) + f0(x), ...: 2^40 operations if everything were inlined.
    for i in 0..40u32 {
        let mut b = build(&p);
        let x = b.1.add(TermNode::Param(0));
        let call = match i {
            0 => b.call(BuiltinScalar::Neg, &[x]),
            _ => b.1.add(TermNode::Call { scalar: ScalarId(p.scalars.len() as u32 - 1), args: vec![x] }),
        };
        let sum = b.call(BuiltinScalar::Add, &[call, call]);
        p.scalars.push(ScalarDef {
            name: format!("f{i}"),
            doc: String::new(),
            origin: Origin::default(),
            params: vec![("x".into(), Kind::Number)],
            result: Kind::Number,
            body: ScalarBody::Term(Term { roots: vec![sum], ..b.1 }),
            grads: Vec::new(),
            device: None,
        });
    }
    let mut b = build(&p);
    let mut x = b.input(0);
    for _ in 0..5_000 {
        x = b.1.add(TermNode::Call { scalar: ScalarId(p.scalars.len() as u32 - 1), args: vec![x] });
    }
    let k = kernel("deep", b.done(&[x]), &[(DType::F32, Access::Full)], &[DType::F32]);
    let text = pointwise(&p, &k).unwrap().text;
    assert!(text.contains("__noinline__") && text.len() < 2_000_000);
    // A recursive scalar is an error, not an endless loop.
    let id = ScalarId(p.scalars.len() as u32);
    let body = Term {
        nodes: vec![TermNode::Param(0), TermNode::Call { scalar: id, args: vec![TermId(0)] }],
        roots: vec![TermId(1)],
    };
    p.scalars.push(ScalarDef {
        name: "loop".into(),
        body: ScalarBody::Term(body),
        ..p.scalars.last().unwrap().clone()
    });
    let mut b = build(&p);
    let x = b.input(0);
    let c = b.1.add(TermNode::Call { scalar: id, args: vec![x] });
    let k = kernel("k", b.done(&[c]), &[(DType::F32, Access::Full)], &[DType::F32]);
    assert!(matches!(pointwise(&p, &k), Err(EmitError::Malformed(_))));
}

#[test]
fn much_work_is_taken_two_packs_at_a_time_and_little_is_spread() {
    let p = builtins();
    let mut b = build(&p);
    let x = b.input(0);
    let e = b.call(BuiltinScalar::Exp, &[x]);
    let term = b.done(&[e]);
    let of_rows = |access: Access, elements: u64, row: u64| {
        let k = kernel("k", term.clone(), &[(DType::BF16, access)], &[DType::BF16]);
        let source = pointwise_for(&p, &k, &[], PointTarget { elements, row, threads: 1 << 18 }).unwrap();
        (source.entries[0].geometry, source.text.contains("U = 2;"))
    };
    let launch = |access: Access, elements: u64| of_rows(access, elements, 1 << 10);
    assert_eq!(launch(Access::Full, 1 << 10), (Geometry::Flat { block: 256, vector: 2 }, false));
    assert_eq!(launch(Access::Full, 1 << 18), (Geometry::Flat { block: 256, vector: 4 }, false));
    assert_eq!(launch(Access::Full, 1 << 20), (Geometry::Flat { block: 256, vector: 8 }, false));
    assert_eq!(launch(Access::Full, 1 << 22), (Geometry::Flat { block: 128, vector: 16 }, true));
    assert_eq!(launch(Access::Col, 1 << 10), (Geometry::Grid { block: 256, vector: 2 }, false));
    assert_eq!(launch(Access::Col, 1 << 22), (Geometry::Grid { block: 256, vector: 8 }, false));
    // Rows of whole packs of fewer elements are read in these.
    assert_eq!(of_rows(Access::Col, 1 << 22, 196), (Geometry::Grid { block: 256, vector: 4 }, false));
    assert_eq!(of_rows(Access::Col, 1 << 22, 49), (Geometry::Grid { block: 256, vector: 1 }, false));
    assert_eq!(of_rows(Access::Full, 1 << 22, 49), (Geometry::Flat { block: 128, vector: 16 }, true));
}

#[test]
fn geometry_covers_all_work() {
    for (rows, n) in [(0, 0), (1, 1), (7, 13), (100_000, 3), (3, 1 << 33)] {
        for g in [
            Geometry::Flat { block: 256, vector: 8 },
            Geometry::Grid { block: 256, vector: 8 },
            Geometry::Rows { block: 128, threads: 32, up_to: None },
        ] {
            let (grid, block) = g.launch(rows, n);
            assert!(
                grid.iter().chain(&block).all(|v| *v >= 1)
                    && grid[1] <= 65_535
                    && block.iter().product::<u32>() <= 1024
            );
        }
    }
}

/// A kernel may be launched while the one before it still runs, so each waits for that.
#[test]
fn every_entry_point_awaits_earlier_work() {
    let mut all = 0;
    for (name, text) in crate::TEMPLATES {
        for body in text.split("extern \"C\" __global__").skip(1) {
            all += 1;
            assert!(body.contains("  await_earlier_work();\n"), "{name}");
        }
    }
    assert!(all > 20);
}
