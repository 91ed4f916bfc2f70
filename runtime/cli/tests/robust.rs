//! Truncated, corrupted and absurd inputs: each run ends within ten seconds and one gibibyte of
//! address space, with a message and an exit code that says whose fault it is; never with a panic,
//! a signal or an internal error.
#![allow(clippy::unwrap_used)]

mod onnx;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use onnx::{Model, Tensor, node};

const TIME: Duration = Duration::from_secs(if cfg!(debug_assertions) { 60 } else { 10 });
const MEMORY_KIB: usize = 1 << 20;
/// Longer messages are not read.
const MESSAGE: u64 = 64 << 10;

/// The result of a run of the binary.
struct Ended {
    code: Option<i32>,
    text: String,
}

/// Runs the binary within its limits. Its output goes to files, so that nothing blocks on a pipe.
fn hypatia(folder: &Path, args: &[&str]) -> Result<Ended, String> {
    let log = tempfile::NamedTempFile::new().unwrap();
    let write = || Stdio::from(log.reopen().unwrap());
    let limited = format!("ulimit -v {MEMORY_KIB}; ulimit -c 0; exec \"$0\" \"$@\"");
    let mut child = Command::new("sh")
        .args(["-c", &limited, env!("CARGO_BIN_EXE_hypatia")])
        .args(args)
        .env("HYPATIA_CACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"))
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(write())
        .stderr(write())
        .spawn()
        .unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > TIME {
            child.kill().unwrap();
            child.wait().unwrap();
            return Err(format!("{args:?} took more than {TIME:?}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    if log.as_file().metadata().unwrap().len() > MESSAGE {
        return Err(format!("{args:?} said more than {MESSAGE} bytes"));
    }
    let text = String::from_utf8_lossy(&std::fs::read(log.path()).unwrap()).into_owned();
    Ok(Ended { code: status.code(), text })
}

/// Runs the binary on a bad input. It may be accepted if it is legal after all.
fn survives(folder: &Path, args: &[&str]) -> Option<String> {
    let ended = match hypatia(folder, args) {
        Ok(e) => e,
        Err(why) => return Some(why),
    };
    let good = match ended.code {
        Some(0) => true,
        // 1: the input is wrong; 4: the model needs something unsupported.
        Some(1 | 4) => !ended.text.trim().is_empty(),
        _ => false,
    };
    let words = ["panicked", "internal error", "stack overflow", "RUST_BACKTRACE"];
    let calm = !words.iter().any(|w| ended.text.contains(w));
    (!good || !calm).then(|| format!("{args:?} ended with {:?}:\n{}", ended.code, ended.text))
}

/// Runs the binary on an input that must be refused.
fn refused(folder: &Path, args: &[&str]) -> Option<String> {
    survives(folder, args).or_else(|| match hypatia(folder, args) {
        Ok(Ended { code: Some(0), .. }) => Some(format!("{args:?} is accepted")),
        _ => None,
    })
}

fn none_fell(falls: Vec<String>) {
    assert!(falls.is_empty(), "{} fell:\n{}", falls.len(), falls.join("\n---\n"));
}

/// Pseudo-random numbers, the same in every run.
fn numbers(mut state: u64) -> impl FnMut(usize) -> usize {
    move |n| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 33) as usize) % n
    }
}

const HEAD: &str = "edition 1;\nuse core::*;\n";
const RULES: &str = "edition 1;\nuse core::*;\nruleset r { until = fixpoint; }\n";

/// `n` definitions, each of which calls the previous one twice.
fn doubling(first: &str, next: impl Fn(usize) -> String, n: usize) -> String {
    let rest: String = (1..n).map(next).collect();
    format!("{HEAD}{first}\n{rest}")
}

fn absurd_files() -> Vec<(&'static str, String)> {
    let parens = |n: usize| format!("{HEAD}scalar f(x) = {}x{};", "(".repeat(n), ")".repeat(n));
    let crossing = |n: usize, family: &str| {
        let binders: Vec<String> = (0..n).map(|i| format!("g{i} in {family}")).collect();
        let calls: String = (0..n).map(|i| format!("g{i}(")).collect();
        format!("{RULES}rule r::a[{}]: {calls}x{} => x;", binders.join(", "), ")".repeat(n))
    };
    let test = |body: &str| format!("{HEAD}test \"t\" {{ {body} }}");
    let guard = |g: &str| format!("{RULES}rule r::a: neg(x) => x requires {g};");
    vec![
        ("parens", parens(100_000)),
        ("half_of_parens", format!("{HEAD}scalar f(x) = {}x;", "(".repeat(100_000))),
        ("lists", format!("{RULES}rule r::a: transpose(x, perm = {}) => x;", "[".repeat(50_000))),
        ("long_name", format!("{HEAD}scalar f(x) = {}(x);", "a".repeat(1 << 20 >> 1))),
        ("long_string", test(&"a".repeat(100_000)).replace("\"t\"", &format!("\"{}\"", "t".repeat(100_000)))),
        ("alternatives", format!("{HEAD}pattern p(x) = {}x;", "neg(x) | ".repeat(100_000))),
        ("crossing_3", crossing(3, "unary")),
        ("crossing_40", crossing(40, "unary")),
        ("large_number", format!("{HEAD}scalar f(x) = x + 1{};", "0".repeat(400))),
        ("large_exponent", format!("{HEAD}scalar f(x) = x + 1e{};", "9".repeat(200))),
        ("large_integer", format!("{RULES}rule r::a: transpose(x, perm = [99999999999999999999]) => x;")),
        ("size_to_a_power", format!("{HEAD}op f(x: T[n ** 1000000000]) -> T[n] = x;")),
        ("sum_to_a_power", format!("{HEAD}op f(x: T[a, b, c, d]) -> T[(a + b + c + d + 1) ** 60] = x;")),
        ("tower", format!("{HEAD}op f(x: T[n]) -> T[9 ** 9 ** 9 ** 9] = x;")),
        ("long_range", guard("len(range(10000000000)) == 3")),
        ("nested_ranges", guard(&format!("{}1{} == 3", "sum([".repeat(12), " for i in range(100)])".repeat(12)))),
        ("smallest_integer", guard("(-9223372036854775807 - 1) / -1 == 1, (-9223372036854775807 - 1) % -1 == 0")),
        ("division_by_zero", guard("1 / 0 == 1, 5 % 0 == 2")),
        (
            "doubling_scalars",
            doubling(
                "scalar d_0(x) = x * x;",
                |i| format!("scalar d_{i}(x) = d_{}(x) * d_{}(x + 1);\n", i - 1, i - 1),
                60,
            ) + "test \"t\" { input x: f32[4]; given d_59(x); expect launches == 1; expect equal d_59(x); }",
        ),
        (
            "nesting_scalars",
            doubling(
                "scalar d_0(x) = exp(x) * sin(x);",
                |i| format!("scalar d_{i}(x) = d_{}(d_{}(x));\n", i - 1, i - 1),
                40,
            ),
        ),
        (
            "doubling_ops",
            doubling(
                "op d_0(x: T[n]) -> T[n] = x * x;",
                |i| format!("op d_{i}(x: T[n]) -> T[n] = d_{}(x) * d_{}(x + 1);\n", i - 1, i - 1),
                60,
            ) + "test \"t\" { input x: f32[4]; given d_59(x); expect launches == 1; }",
        ),
        (
            "doubling_patterns",
            doubling(
                "pattern p0(x) = neg(x) | abs(x);",
                |i| format!("pattern p{i}(x) = p{}(p{}(x));\n", i - 1, i - 1),
                40,
            ),
        ),
        ("chain_of_families", {
            let rest: String = (1..2_000).map(|i| format!("family d_{i} = {{d_{}}};\n", i - 1)).collect();
            format!("{HEAD}family d_0 = {{neg}};\n{rest}")
        }),
        ("chain_of_scalars", {
            let rest: String = (1..1_000).map(|i| format!("scalar d_{i}(x) = d_{}(x) + 1;\n", i - 1)).collect();
            format!("{HEAD}scalar d_0(x) = x;\n{rest}")
        }),
        ("circle_of_scalars", format!("{HEAD}scalar f(x) = g(x);\nscalar g(x) = f(x);")),
        ("circle_of_ops", format!("{HEAD}op f(x: T[n]) -> T[n] = g(x);\nop g(x: T[n]) -> T[n] = f(x);")),
        (
            "circle_of_patterns",
            format!("{RULES}pattern p(x) = neg(q(x));\npattern q(x) = p(x);\nrule r::a: p(x) => x;"),
        ),
        ("circle_of_families", format!("{HEAD}family a = {{b}};\nfamily b = {{a}};")),
        (
            "many_errors",
            HEAD.to_string() + &(0..3_000).map(|i| format!("scalar s{i}(x) = y{i};\n")).collect::<String>(),
        ),
        ("many_uses", "edition 1;\n".to_string() + &(0..2_000).map(|i| format!("use m{i}::*;\n")).collect::<String>()),
        (
            "grows",
            format!(
                "{RULES}rule r::a: neg(x) => neg(neg(neg(x)));\n\
                 test \"t\" {{ input x: f32[4]; given neg(x); expect launches == 1; }}"
            ),
        ),
        ("large_input", test("input x: f32[1000000, 1000000]; given exp(x); expect equal exp(x);")),
        ("larger_input", test("input x: f32[3000000000, 3000000000, 3000000000]; given exp(x); expect launches == 1;")),
        ("large_product", test("input x: f32[8000, 8000]; given matmul(x, x); expect equal matmul(x, x);")),
        (
            "large_constant",
            test("const x: f32[1]; given exp(expand(x, shape = [100000, 100000])); expect launches == 1;"),
        ),
        ("rank", test(&format!("input x: f32[{}1]; given exp(x); expect launches == 1;", "1, ".repeat(1_000)))),
        ("negative_size", test("input x: f32[-4]; given exp(x); expect launches == 1;")),
        (
            "far_slice",
            test(
                "input x: f32[4]; given slice(x, axis = 0, start = 9007199254740991, end = 9007199254740991, \
                 step = 9007199254740991); expect launches == 1;",
            ),
        ),
        (
            "far_pad",
            test(
                "input x: f32[4]; const z: f32[]; given pad(x, z, before = [9007199254740991], \
                 after = [9007199254740991]); expect launches == 1;",
            ),
        ),
        ("outside_template", format!("{HEAD}kernel k for gemm(a, b, e) {{ template \"/etc/passwd\"; }}")),
        ("nul", "edition 1;\n\0\0\0".into()),
        ("nothing", String::new()),
    ]
}

#[test]
fn absurd_files_are_no_danger() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let mut falls = Vec::new();
    for (name, text) in absurd_files() {
        let file = format!("{name}.hyp");
        std::fs::write(at.join(&file), &text).unwrap();
        falls.extend(survives(at, &["check", &file]));
        if text.contains("test \"") {
            falls.extend(survives(at, &["test", &file]));
        }
    }
    none_fell(falls);
}

/// A `use`, and an argument, that names something that is not a file.
#[cfg(unix)]
#[test]
fn what_is_no_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::create_dir(at.join("dir.hyp")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", at.join("zero.hyp")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", at.join("zero.onnx")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", at.join("zero.npz")).unwrap();
    std::fs::File::create(at.join("huge.hyp")).unwrap().set_len(1 << 40).unwrap();
    std::fs::File::create(at.join("huge.onnx")).unwrap().set_len(1 << 40).unwrap();
    std::fs::File::create(at.join("huge.npz")).unwrap().set_len(1 << 40).unwrap();
    assert!(
        Command::new("mkfifo").args(["fifo.hyp", "fifo.onnx", "fifo.npz"]).current_dir(at).status().unwrap().success()
    );
    std::fs::write(at.join("model.onnx"), Model::unary("Relu", &[2, 3]).bytes()).unwrap();
    let mut falls = Vec::new();
    for what in ["dir", "zero", "huge", "fifo", "missing"] {
        std::fs::write(at.join("uses.hyp"), format!("edition 1;\nuse {what}::*;\n")).unwrap();
        falls.extend(refused(at, &["check", "uses.hyp"]));
        if what != "dir" {
            falls.extend(refused(at, &["check", &format!("{what}.hyp")]));
        }
        falls.extend(refused(at, &["run", &format!("{what}.onnx")]));
        falls.extend(refused(at, &["run", "model.onnx", "--inputs", &format!("{what}.npz")]));
        falls.extend(refused(at, &["run", "model.onnx", "--rules", &format!("{what}.hyp")]));
    }
    none_fell(falls);
}

/// A model of the repository, truncated at many places and with changed bytes.
#[test]
fn damaged_models_are_no_danger() {
    let whole =
        std::fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/digits/model.onnx")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let mut below = numbers(7);
    let mut falls = Vec::new();
    let mut damaged: Vec<Vec<u8>> = (0..12).map(|i| whole[..whole.len() * i / 12 + i].to_vec()).collect();
    // The part after the weights: the nodes.
    for round in 0..24 {
        let mut bytes = whole.clone();
        for _ in 0..1 + round % 5 {
            let i = if round % 2 == 0 { below(bytes.len().min(4_000)) } else { below(bytes.len()) };
            bytes[i] = below(256) as u8;
        }
        damaged.push(bytes);
    }
    for bytes in damaged {
        std::fs::write(at.join("m.onnx"), bytes).unwrap();
        falls.extend(survives(at, &["run", "-q", "m.onnx"]));
    }
    none_fell(falls);
}

fn absurd_models() -> Vec<(&'static str, Model)> {
    let x = &[2, 3][..];
    let fed = |op: &str, shape: &[i64]| {
        Model::new(vec![node(op, &["s"], &["c"]), node("Add", &["x", "c"], &["y"])], x).with(Tensor::ints("s", shape))
    };
    let with = |op: &str, shape: &[i64]| {
        Model::new(vec![node(op, &["x", "s"], &["c"]), node("Exp", &["c"], &["y"])], x).with(Tensor::ints("s", shape))
    };
    let range = |to: i64| {
        let nodes = vec![node("Range", &["a", "b", "d"], &["c"]), node("Neg", &["c"], &["y"])];
        Model::new(nodes, x)
            .with(Tensor::ints("a", &[]).value(0))
            .with(Tensor::ints("b", &[]).value(to))
            .with(Tensor::ints("d", &[]).value(1))
    };
    let weight = |t: Tensor| Model::new(vec![node("MatMul", &["x", "w"], &["y"])], x).with(t);
    let external = |key: &str, value: &str| weight(Tensor::floats("w", &[3, 4]).external(key, value));
    let chain = |op: &str, n: usize| {
        let name = |i: usize| if i == 0 { "x".to_string() } else { format!("v{i}") };
        let mut nodes: Vec<Vec<u8>> = (0..n).map(|i| node(op, &[&name(i)], &[&name(i + 1)])).collect();
        nodes.push(node("Relu", &[&name(n)], &["y"]));
        Model::new(nodes, x)
    };
    let twice = |op: &str, n: usize| {
        let name = |i: usize| if i == 0 { "x".to_string() } else { format!("v{i}") };
        let mut nodes: Vec<Vec<u8>> = (0..n).map(|i| node(op, &[&name(i), &name(i)], &[&name(i + 1)])).collect();
        nodes.push(node("Relu", &[&name(n)], &["y"]));
        Model::new(nodes, x)
    };
    let many: Vec<&str> = vec!["x"; 4_000];
    vec![
        ("huge dims", Model::unary("Relu", &[1 << 62, 1 << 62])),
        ("large input", Model::unary("Relu", &[100_000, 100_000])),
        ("negative dim", Model::unary("Relu", &[-5, 3])),
        ("rank", Model::unary("Relu", &[1; 500])),
        (
            "cycle",
            Model::new(
                vec![node("Add", &["x", "b"], &["a"]), node("Add", &["x", "a"], &["b"]), node("Relu", &["b"], &["y"])],
                x,
            ),
        ),
        ("reads itself", Model::new(vec![node("Add", &["x", "y"], &["y"])], x)),
        ("missing initializer", Model::new(vec![node("MatMul", &["x", "w"], &["y"])], x)),
        ("missing output", Model::new(vec![node("Relu", &["x"], &["z"])], x)),
        ("two of a name", Model::new(vec![node("Relu", &["x"], &["y"]), node("Neg", &["x"], &["y"])], x)),
        ("no such op", Model::unary("Frobnicate", x)),
        ("a loop", Model::new(vec![node("Loop", &["x", "x", "x"], &["y"])], x)),
        ("an if", Model::new(vec![node("If", &["x"], &["y"])], x)),
        ("fill of 2^40", fed("ConstantOfShape", &[1 << 20, 1 << 20])),
        ("fill of 2^27", fed("ConstantOfShape", &[1 << 26, 2, 1])),
        ("negative fill", fed("ConstantOfShape", &[-1])),
        ("expand to 2^40", with("Expand", &[1 << 20, 1 << 20, 2, 3])),
        ("expand to 2^28", with("Expand", &[1 << 26, 2, 3])),
        ("tile to 2^62", with("Tile", &[1 << 31, 1 << 31])),
        ("pad by 2^40", with("Pad", &[1 << 40; 4])),
        ("reshape", with("Reshape", &[1 << 62, 1 << 62])),
        ("range to 2^40", range(1 << 40)),
        ("range to 2^27", range(1 << 27)),
        ("short weight", weight(Tensor::floats("w", &[3, 4]).raw(40))),
        ("long weight", weight(Tensor::floats("w", &[3, 4]).raw(400))),
        ("weight of 2^80", weight(Tensor::floats("w", &[1 << 40, 1 << 40]).raw(0))),
        ("weight of 2^64", weight(Tensor::floats("w", &[1 << 32, 1 << 32]).raw(0))),
        ("negative weight", weight(Tensor::floats("w", &[-3, 4]).raw(48))),
        ("no such type", weight(Tensor::floats("w", &[3, 4]).raw(48).kind(99))),
        ("weight outside", external("location", "../../../etc/passwd")),
        ("weight at a path", external("location", "/etc/passwd")),
        ("weight in a folder", external("location", ".")),
        ("weight in a pipe", external("location", "pipe")),
        ("weight far away", external("offset", "18446744073709551615")),
        ("weight before", external("offset", "-4")),
        ("long chain", chain("Neg", 10_000)),
        ("chain of transposes", chain("Transpose", 3_000)),
        ("doubling", twice("Add", 2_000)),
        ("doubling size", twice("Concat", 60)),
        ("many operands", Model::new(vec![node("Sum", &many, &["y"])], x)),
    ]
}

#[test]
fn absurd_models_are_no_danger() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    assert!(Command::new("mkfifo").arg("pipe").current_dir(at).status().unwrap().success());
    let mut falls = Vec::new();
    for (name, model) in absurd_models() {
        let file = format!("{}.onnx", name.replace(' ', "_"));
        std::fs::write(at.join(&file), model.bytes()).unwrap();
        falls.extend(survives(at, &["run", "-q", &file]));
    }
    // Nested messages, unterminated lengths, and bytes that are not a message.
    let deep = (0..5_000).fold(Vec::new(), |inner, _| onnx::field(7, &inner));
    let raw: [(&str, Vec<u8>); 4] = [
        ("deep", deep),
        ("endless", vec![0x3a, 255, 255, 255, 255, 255, 255, 255, 255, 127]),
        ("zeros", vec![0; 4096]),
        ("ones", vec![255; 4096]),
    ];
    for (name, bytes) in raw {
        let file = format!("{name}.onnx");
        std::fs::write(at.join(&file), bytes).unwrap();
        falls.extend(refused(at, &["run", "-q", &file]));
    }
    none_fell(falls);
}

/// Archives that claim large contents and hold little.
#[test]
fn bombs_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(at.join("m.onnx"), Model::unary("Relu", &[2, 3]).bytes()).unwrap();
    let npy = |shape: &str, data: usize| {
        let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
        header.push_str(&" ".repeat(117 - header.len() % 64));
        let mut out = b"\x93NUMPY\x01\x00".to_vec();
        out.extend((header.len() as u16).to_le_bytes());
        out.extend(header.as_bytes());
        out.resize(out.len() + data, 0);
        out
    };
    let archive = |name: &str, data: &[u8]| {
        let mut zip = zip::ZipWriter::new(std::fs::File::create(at.join(name)).unwrap());
        zip.start_file("x.npy", zip::write::SimpleFileOptions::default()).unwrap();
        std::io::Write::write_all(&mut zip, data).unwrap();
        zip.finish().unwrap();
    };
    archive("short.npz", &npy("(2, 3)", 20));
    archive("huge.npz", &npy("(1099511627776, 1099511627776)", 24));
    archive("negative.npz", &npy("(-2, 3)", 24));
    archive("bomb.npz", &npy("(16777216, 4)", 256 << 20));
    archive("wrong.npz", &npy("(3, 2)", 24));
    archive("no_numpy.npz", b"hello");
    std::fs::write(at.join("no_zip.npz"), b"PK\x03\x04 and so on").unwrap();
    let whole = std::fs::read(at.join("wrong.npz")).unwrap();
    std::fs::write(at.join("cut.npz"), &whole[..whole.len() / 2]).unwrap();
    let mut falls = Vec::new();
    for name in ["short", "huge", "negative", "bomb", "wrong", "no_numpy", "no_zip", "cut"] {
        falls.extend(refused(at, &["run", "-q", "m.onnx", "--inputs", &format!("{name}.npz")]));
        falls.extend(refused(at, &["run", "-q", "m.onnx", "--check", &format!("{name}.npz")]));
    }
    none_fell(falls);
}
