//! Launchers on a machine without a GPU: the C header and the Python module of every kind of kernel
//! launch it over a driver that only tells what it is asked. They must ask for what the executor
//! asks for.
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::attention_grad::GradSide;
use hypatia_graph::Graph;
use hypatia_optimize as optimize;
use hypatia_pipeline as pipeline;
use hypatia_plan::{Action, Options, Plan, Step};
use hypatia_target::device::Device;
use hypatia_templates::cuda::{ArgKind, CudaSource, Geometry};
use hypatia_templates::instances::Body;
use hypatia_templates::launcher::{Launcher, launcher};
use hypatia_testing::random::Random;
use hypatia_testing::{list, ty};

use super::tiled::case;
use super::{across, attention_grad, joint_rows, pair, reductions, reordered, results, windows_groups};
use crate::address::Location;
use crate::kernel::{Argument, arguments, entry};
use crate::lowering::timed::{Timed, kernel};
use crate::lowering::{Work, step_kernels};
use hypatia_plan::Storage;

/// Blocks that the mock's device runs at a time, and clusters.
const BLOCKS: u32 = 10;
const CLUSTERS: u32 = 7;

/// A launch: of which kernel, and what a plan passes.
struct Asked {
    source: CudaSource,
    launcher: Launcher,
    work: Work,
    values: Vec<Argument>,
}

/// The kernels and the work of a step.
fn kernels(plan: &Plan, step: &Step) -> Vec<(Body, Work)> {
    let Action::Call(call) = &step.action else { return step_kernels(step) };
    let timed = kernel(plan, step).and_then(|k| Some((k, Timed::of(plan, (step, call, k))?)));
    // Row-wise work of several tensors is a kernel of its own.
    let Some((kernel, timed)) = timed else { return step_kernels(step) };
    // One with clusters, and one that owns keys, if there are such.
    let all: Vec<_> = timed.plausible(kernel, 132).iter().flat_map(|w| timed.launches(w)).collect();
    let clustered = all.iter().find(|(body, _)| matches!(body, Body::Gemm(k) if k.tiling.blocks() > 1)).cloned();
    let of_keys = |body: &Body| matches!(body, Body::AttentionGrad(k) if k.side == GradSide::Keys);
    let of_keys = all.iter().find(|(body, _)| of_keys(body)).cloned();
    all.into_iter().next().into_iter().chain(clustered).chain(of_keys).collect()
}

fn planned(graph: &Graph, device: &str) -> Plan {
    let device = Device::named(device).unwrap();
    let options = optimize::Options { device: device.clone(), ..optimize::Options::default() };
    let graph = pipeline::optimize(graph, &options).unwrap().graph;
    pipeline::plan(&graph, &Options::new(device)).unwrap()
}

/// The plans whose kernels are launched: tiled products of both templates, two at once, attention,
/// and random graphs.
fn plans() -> Vec<Plan> {
    let mut out = Vec::new();
    for epilogue in ["bias, gelu", "gate, residual", "column", "number, select"] {
        for (shape, device) in [([2, 200, 264, 72], "h200"), ([1, 65, 131, 75], "h200"), ([3, 48, 64, 32], "a100")] {
            out.push(planned(&case(DType::BF16, shape, [false, true], epilogue).0, device));
        }
    }
    out.extend(pair::plans());
    out.extend(results::plans());
    out.extend(reductions::plans());
    out.extend(windows_groups::plans());
    out.extend(reordered::plans());
    out.extend(joint_rows::plans());
    out.extend(across::plans());
    let mut g = Graph::new(hypatia_library::load(&[]).unwrap());
    let heads = [2, 3, 130, 64];
    let [q, k, v] = ["q", "k", "v"].map(|name| g.input(name, ty(DType::F16, &heads)));
    let mask = g.input("mask", ty(DType::F16, &[130, 130]));
    let y = g.call("attention", &[q, k, v, mask], &[]);
    if let Ok(y) = y {
        g.output("y", y[0]);
        out.push(planned(&g, "h200"));
    }
    // Few queries, whose keys are split: two launches.
    let mut g = Graph::new(hypatia_library::load(&[]).unwrap());
    let q = g.input("q", ty(DType::BF16, &[1, 2, 4, 1, 64]));
    let [k, v] = ["k", "v"].map(|name| g.input(name, ty(DType::BF16, &[1, 2, 1, 2000, 64])));
    let y = g.call("attention", &[q, k, v], &[]).unwrap()[0];
    g.output("y", y);
    out.push(planned(&g, "h200"));
    // Gradients of attention: one kernel's tiles are of queries, the other's of keys.
    out.push(planned(&attention_grad::case(DType::BF16, [1, 2, 70, 200, 64, 64], true, "none").0, "a100"));
    // Many rows that lie side by side.
    let mut g = Graph::new(hypatia_library::load(&[]).unwrap());
    let x = g.input("x", ty(DType::F32, &[40, 5000]));
    let y = g.builtin(BuiltinOp::Amax, &[x], vec![list(&[0]), false.into()]).unwrap()[0];
    g.output("y", y);
    out.push(planned(&g, "h200"));
    for seed in 0..60 {
        let mut random = Random::new(seed);
        random.build(false);
        out.push(planned(&random.graph, "h200"));
    }
    out
}

/// An address for each argument.
fn address(i: usize) -> u64 {
    (i as u64 + 1) << 20
}

/// The launches of all plans, one for each source.
fn asked() -> Vec<Asked> {
    let mut out: BTreeMap<String, Asked> = BTreeMap::new();
    let nowhere = Location { storage: Storage::Arena(0), outside: None, bytes: 0 };
    for plan in plans() {
        for (body, work) in plan.steps.iter().flat_map(|step| kernels(&plan, step)) {
            let source = body.emit(&plan.program).unwrap();
            let values = arguments(&source, &work, &[], &|_| Some(nowhere)).unwrap();
            let stem = format!("k{}", out.len());
            let launcher = launcher(&body, &source, &stem).unwrap();
            out.entry(source.text.clone()).or_insert(Asked { source, launcher, work, values });
        }
    }
    out.into_values().collect()
}

impl Asked {
    /// The words of each argument.
    fn words(&self) -> Vec<Vec<i64>> {
        let of = |(i, (arg, value)): (usize, (&hypatia_templates::cuda::Arg, &Argument))| match (value, arg.kind) {
            (Argument::Size(v), _) => vec![*v],
            (Argument::Sizes(v), _) => v.clone(),
            (Argument::Map { dtype, tf32, shape, inner, .. }, _) => {
                let kind = match dtype {
                    DType::I8 | DType::U8 => 0,
                    DType::I32 => 4,
                    DType::F16 => 6,
                    DType::F32 if *tf32 => 11,
                    DType::F32 => 7,
                    _ => 9,
                };
                let mut words = vec![0; 16];
                let rank = shape.sizes().len();
                // The swizzle spans a row of the box.
                let swizzle = match inner[0] as usize * dtype.size() {
                    32 => 1,
                    64 => 2,
                    _ => 3,
                };
                (words[0], words[1]) = (kind | (rank as i64) << 8 | swizzle << 16 | 3 << 24, address(i) as i64);
                shape.sizes().iter().enumerate().for_each(|(i, s)| words[2 + i] = *s as i64);
                shape.strides().iter().enumerate().for_each(|(i, s)| words[7 + i] = *s as i64);
                words[11] = i64::from(inner[0]) | i64::from(inner[1]) << 32;
                words[12] = rank as i64;
                words
            }
            _ => vec![address(i) as i64],
        };
        self.source.args.iter().zip(&self.values).enumerate().map(of).collect()
    }

    /// What the executor asks for.
    fn expected(&self) -> String {
        let (at, mut grid, block) = entry(&self.source, &self.work).unwrap();
        let geometry = self.source.entries[at].geometry;
        if let Geometry::Tiles { cluster, .. } = geometry {
            let resident = if cluster == 1 { BLOCKS } else { CLUSTERS * cluster };
            grid[0] = grid[0].min(resident);
        }
        let mut line = self.source.entries[at].name.clone();
        for number in grid.iter().chain(&block).chain([&geometry.shared()]) {
            write!(line, " {number}").unwrap();
        }
        self.words().concat().iter().for_each(|word| write!(line, " {word}").unwrap());
        line
    }

    /// True if the launcher asks its caller for the number and the length of rows.
    fn asks_for_rows(&self) -> bool {
        self.launcher.header.contains("rows of the work")
    }

    fn in_c(&self) -> String {
        let (name, words) = (&self.launcher.name, self.words());
        let list = |v: &[i64]| v.iter().map(|v| format!("{v}")).collect::<Vec<_>>().join(", ");
        let bytes: Vec<i64> = words.iter().map(|w| 8 * w.len() as i64).collect();
        let mut text = format!("  {{\n    const int bytes[] = {{{}}};\n", list(&bytes));
        let mut given = Vec::new();
        for (i, (arg, words)) in self.source.args.iter().zip(&words).enumerate() {
            given.push(match arg.kind {
                ArgKind::Sizes { .. } | ArgKind::Strides { .. } => {
                    writeln!(text, "    const int64_t a{i}[] = {{{}}};", list(words)).unwrap();
                    format!("a{i}")
                }
                ArgKind::Map { .. } => {
                    let (sizes, strides) = (list(&words[2..7]), list(&words[7..11]));
                    writeln!(text, "    const hypatia_tensor a{i} = {{{}, {{{sizes}}}, {{{strides}}}}};", words[1])
                        .unwrap();
                    format!("&a{i}")
                }
                _ => words[0].to_string(),
            });
        }
        if self.asks_for_rows() {
            given.extend([self.work.rows.to_string(), self.work.n.to_string()]);
        }
        writeln!(text, "    {name}_kernel kernel;\n    mock_arguments({}, bytes);", bytes.len()).unwrap();
        writeln!(text, "    if ({name}_load(&kernel, \"\") != CUDA_SUCCESS) return 1;").unwrap();
        writeln!(text, "    if ({name}_launch(&kernel, NULL, {}) != CUDA_SUCCESS) return 1;", given.join(", "))
            .unwrap();
        writeln!(text, "    if ({name}_unload(&kernel) != CUDA_SUCCESS) return 1;\n  }}").unwrap();
        text
    }

    fn in_python(&self) -> String {
        let (name, words) = (&self.launcher.name, self.words());
        let torch = |d: DType| match d {
            DType::F64 => "float64",
            DType::F32 => "float32",
            DType::F16 => "float16",
            DType::BF16 => "bfloat16",
            DType::I64 => "int64",
            DType::I32 => "int32",
            DType::I8 => "int8",
            DType::U8 => "uint8",
            DType::Bool => "bool",
            DType::F8E4M3 => "float8_e4m3fn",
            DType::F8E5M2 => "float8_e5m2",
        };
        let mut given = Vec::new();
        for ((i, arg), words) in self.source.args.iter().enumerate().zip(&words) {
            given.push(match arg.kind {
                ArgKind::Input(d) | ArgKind::Output(d) => format!("Tensor({}, {:?})", address(i), torch(d)),
                ArgKind::Sizes { .. } | ArgKind::Strides { .. } => format!("{words:?}"),
                ArgKind::Size(_) => words[0].to_string(),
                ArgKind::Map { dtype, .. } => {
                    let rank = (words[0] >> 8 & 255) as usize;
                    let shape: Vec<i64> = words[2..2 + rank].iter().rev().copied().collect();
                    let dense = std::iter::once(dtype.size() as i64).chain(words[7..6 + rank].iter().copied());
                    let mut strides: Vec<i64> = dense.map(|s| s / dtype.size() as i64).collect();
                    strides.reverse();
                    format!("Tensor({}, {:?}, {shape:?}, {strides:?})", address(i), torch(dtype))
                }
            });
        }
        if self.asks_for_rows() {
            given.extend([self.work.rows.to_string(), self.work.n.to_string()]);
        }
        let bytes: Vec<usize> = words.iter().map(|w| 8 * w.len()).collect();
        format!("arguments({bytes:?})\nfrom {name} import {name}\n{name}({})\n", given.join(", "))
    }
}

fn ran(command: &mut Command) -> String {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// Compiles the mock driver, as a library that also Python finds.
fn driver(folder: &Path) {
    for (name, text) in [
        ("cuda.h", include_str!("driver/cuda.h")),
        ("driver.c", include_str!("driver/driver.c")),
        ("torch.py", include_str!("driver/torch.py")),
    ] {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let flags = ["-shared", "-fPIC", "-O1", "driver.c", "-o", "libcuda.so.1"];
    ran(Command::new("cc").args(flags).current_dir(folder));
}

#[test]
fn launchers_ask_the_driver_for_what_plans_ask_for() {
    let has = |what: &str| Command::new(what).arg("--version").output().is_ok_and(|o| o.status.success());
    if !has("cc") || !has("python3") {
        eprintln!("SKIPPED launchers: no C compiler or no Python");
        return;
    }
    let all = asked();
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    driver(at);
    let mut expected = String::new();
    let (mut includes, mut main) = (String::new(), String::new());
    let mut python = String::from(
        "import ctypes\nfrom torch import Tensor\n\n\ndef arguments(sizes):\n    \
         ctypes.CDLL(\"libcuda.so.1\").mock_arguments(len(sizes), (ctypes.c_int * len(sizes))(*sizes))\n\n\n",
    );
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for one in &all {
        let name = &one.launcher.name;
        std::fs::write(at.join(format!("{name}.h")), &one.launcher.header).unwrap();
        std::fs::write(at.join(format!("{name}.py")), &one.launcher.module).unwrap();
        std::fs::write(at.join(format!("{name}.sm_90a.cubin")), "").unwrap();
        writeln!(includes, "#include \"{name}.h\"").unwrap();
        main.push_str(&one.in_c());
        python.push_str(&one.in_python());
        writeln!(expected, "{}", one.expected()).unwrap();
        let (chosen, ..) = entry(&one.source, &one.work).unwrap();
        let kind = match one.source.entries[chosen].geometry {
            Geometry::Flat { .. } => "flat",
            Geometry::Accesses { .. } => "accesses",
            Geometry::Grid { .. } => "grid",
            Geometry::Rows { .. } => "rows",
            Geometry::Columns { .. } => "columns",
            Geometry::Blocks { .. } => "blocks",
            Geometry::Clusters { .. } => "clusters",
            Geometry::Tiles { cluster: 1, .. } => "tiles",
            Geometry::Tiles { .. } => "clusters of tiles",
            Geometry::Parts { .. } => "parts",
            Geometry::Problems { .. } => "problems",
            Geometry::Declared => "declared",
        };
        *kinds.entry(kind).or_default() += 1;
    }
    println!("{} kernels: {kinds:?}", all.len());
    for kind in ["flat", "accesses", "grid", "rows", "columns", "tiles"] {
        assert!(kinds.contains_key(kind), "no kernel of {kind}");
    }
    std::fs::write(at.join("run.c"), format!("{includes}\nint main(void)\n{{\n{main}  return 0;\n}}\n")).unwrap();
    std::fs::write(at.join("run.py"), &python).unwrap();
    if let Some(kept) = std::env::var_os("HYPATIA_LAUNCHERS") {
        ran(Command::new("cp").arg("-r").arg(at).arg(kept));
    }
    let lines = |text: String| text.lines().map(str::to_string).collect::<Vec<_>>();
    let expected = lines(expected);
    for (compiler, standard) in [("cc", "-std=c99"), ("c++", "-std=c++11")] {
        let language = if compiler == "cc" { "c" } else { "c++" };
        let warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-x", language];
        let mut command = Command::new(compiler);
        command.arg(standard).args(warnings).args(["run.c", "-x", "none", "-I.", "libcuda.so.1", "-o", "run"]);
        ran(command.current_dir(at));
        let got = lines(ran(Command::new(at.join("run")).env("LD_LIBRARY_PATH", at).current_dir(at)));
        assert_eq!(got.len(), expected.len());
        got.iter().zip(&expected).for_each(|(got, expected)| assert_eq!(got, expected));
    }
    let mut command = Command::new("python3");
    command.arg("run.py").env("LD_LIBRARY_PATH", at).env("PYTHONPATH", at).env("PYTHONDONTWRITEBYTECODE", "1");
    let got = lines(ran(command.current_dir(at)));
    assert_eq!(got.len(), expected.len());
    got.iter().zip(&expected).for_each(|(got, expected)| assert_eq!(got, expected));
}

/// CUDA's headers take tenths of a second to compile: tiled kernels need none, the others only
/// those of a type that they name.
#[test]
fn sources_include_only_what_they_use() {
    let headers = [("cuda_fp16.h", "__half"), ("cuda_bf16.h", "__nv_bfloat16")];
    let mut without = 0;
    for one in asked() {
        let (text, name) = (&one.source.text, &one.source.name);
        let lines: Vec<&str> = text.lines().filter(|l| l.trim_start().starts_with("#include")).collect();
        let needed = |line: &&str| headers.iter().any(|(file, ty)| line.contains(file) && text.contains(ty));
        assert!(lines.iter().all(needed), "{name} includes {lines:?}");
        let tiled = one.source.entries.iter().any(|e| matches!(e.geometry, Geometry::Tiles { .. }));
        assert!(!tiled || lines.is_empty(), "{name} includes {lines:?}");
        without += usize::from(lines.is_empty());
    }
    assert!(without > 50, "{without}");
}
