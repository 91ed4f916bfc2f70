//! GPU plans on a host without a GPU: generated kernels are compiled with the host's C++ compiler,
//! and their threads run one after another.
//!
//! In: graphs whose steps all have generated kernels, with inputs. Out: their results. Invariant:
//! arguments, grids and blocks are those that a GPU would get; out-of-bounds accesses, signed
//! overflow, and threads that meet at different barriers are failures.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fmt::Write;
use std::process::Command;

use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::StoredTiling;
use hypatia_templates::cuda::{self, Arg, ArgKind, CudaSource, Geometry, RowTarget, storage};
use hypatia_templates::instances::Body;

use crate::address::Location;
use crate::kernel::{Argument, arguments, entry, rows_are_strided};
use crate::lowering::timed::{self, Timed};
use crate::lowering::{Work, step_kernels};
use crate::steps::{elementwise, operand};
use hypatia_graph::Graph;
use hypatia_pipeline as pipeline;
use hypatia_plan::{Action, Options, Plan, Step, Storage, View};
use hypatia_target::device::Device;
use hypatia_tensor::tensor::Tensor;

/// A graph, its inputs, and its name.
pub struct Case {
    /// The name in messages.
    pub what: String,
    /// The graph.
    pub graph: Graph,
    /// Its inputs.
    pub inputs: Vec<(String, Tensor)>,
}

/// The plan of a case and its results.
pub type Ran = (Plan, Vec<Tensor>);

/// What stands on a host for instructions of warps, by the beginning of the instruction.
const OF_WARPS: [(&str, &str); 24] = [
    ("ld.global.L1::no_allocate", "std::memcpy(r, p, sizeof r);"),
    ("prefetch.global.L2", "emu_fetch(p);"),
    ("cp.async.cg.", "emu_copy(to, from, BYTES, exist);"),
    ("cp.async.ca.", "emu_copy(to, from, BYTES, exist);"),
    ("cp.async.commit_group", "emu_commit();"),
    ("cp.async.wait_group", "emu_wait(PENDING);"),
    ("st.shared.b32", "emu_write(address, value);"),
    ("ld.shared.b32", "emu_read(r, address);"),
    ("ld.shared.v2.b32", "emu_read(r, address);"),
    ("ld.shared.v4.b32", "emu_read(r, address);"),
    ("st.shared.v4.b32", "for (int i = 0; i < 4; ++i) emu_write(address + 4 * i, v[i]);"),
    ("ldmatrix.sync.aligned.m8n8.x4.shared", "emu_matrices(r, address, false);"),
    ("ldmatrix.sync.aligned.m8n8.x4.trans", "emu_matrices(r, address, true);"),
    ("mma.sync.aligned.m16n8k16.row.col.f32.bf16", "emu_multiply(d, a, b0, b1, true);"),
    ("mma.sync.aligned.m16n8k16.row.col.f32.f16", "emu_multiply(d, a, b0, b1, false);"),
    ("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8", "emu_multiply_bytes(d, a, b0, b1, true, true);"),
    ("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8", "emu_multiply_bytes(d, a, b0, b1, true, false);"),
    ("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8", "emu_multiply_bytes(d, a, b0, b1, false, true);"),
    ("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8", "emu_multiply_bytes(d, a, b0, b1, false, false);"),
    ("cvt.rn.bf16x2", "r = emu_pair(a, b, true);"),
    ("cvt.rn.f16x2", "r = emu_pair(a, b, false);"),
    ("fma.rn.bf16x2", "r = emu_sums(a, b, true);"),
    ("add.rn.f16x2", "r = emu_sums(a, b, false);"),
    ("cvt.f32.f16", "r = __half2float({x});"),
];

/// A source whose instructions of warps are calls of the emulator.
fn without_instructions_of_warps(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("asm") {
        let (before, from) = rest.split_at(at);
        let instruction = from.split('"').nth(1).unwrap_or_default();
        let end = from.find(");").map_or(from.len(), |end| end + 2);
        let host = OF_WARPS.iter().find(|(name, _)| instruction.starts_with(name)).map(|(_, host)| *host);
        out.extend([before, host.unwrap_or(&from[..end])]);
        rest = &from[end..];
    }
    out + rest
}

/// A program under construction that runs cases.
#[derive(Default)]
struct Source {
    /// How calls that are timed are computed; the others keep a program from running.
    tiling: Option<StoredTiling>,
    /// The kernels, each in a namespace, and their numbers.
    kernels: String,
    known: HashMap<String, usize>,
    /// The statements of `main`.
    main: String,
    /// The program's input data.
    given: Vec<u8>,
}

impl Source {
    fn kernel(&mut self, text: &str) -> usize {
        let count = self.known.len();
        if let Some(at) = self.known.get(text) {
            return *at;
        }
        self.known.insert(text.into(), count);
        let host = without_instructions_of_warps(text)
            .replace("extern __shared__ unsigned char dynamic[];", "unsigned char* const dynamic = emu_dynamic;")
            .replace("extern \"C\" ", "")
            .replace("asm(\"max.NaN.f32 %0, %1, %2;\" : \"=f\"(r) : \"f\"(a), \"f\"(b));", "r = emu_max(a, b);")
            .replace("asm(\"min.NaN.f32 %0, %1, %2;\" : \"=f\"(r) : \"f\"(a), \"f\"(b));", "r = emu_min(a, b);")
            .replace("asm(\"\" : \"+f\"(x));", "")
            .replace("__expf(", "emu_expf(")
            .replace("asm(\"ex2.approx.ftz.f32 %0, %1;\" : \"=f\"(r) : \"f\"(a));", "r = exp2f(a);")
            .replace("asm(\"cvt.rn.bf16.f32 %0, %1;\" : \"=h\"(r) : \"f\"(x));", "r = __float2bfloat16_rn(x).bits;")
            .replace("asm(\"cvt.rn.f16.f32 %0, %1;\" : \"=h\"(r) : \"f\"(x));", "r = __float2half_rn(x).bits;")
            .replace("asm(\"rcp.approx.ftz.f32 %0, %1;\" : \"=f\"(r) : \"f\"(y));", "r = 1 / y;")
            .replace("asm(\"tanh.approx.f32 %0, %1;\" : \"=f\"(r) : \"f\"(x));", "r = tanhf(x);");
        let lines: Vec<&str> = host.lines().filter(|l| !l.starts_with("#include") && !l.starts_with("#line")).collect();
        writeln!(self.kernels, "namespace k{count} {{\n{}\n}}", lines.join("\n")).unwrap();
        count
    }

    fn launch(&mut self, plan: &Plan, step: &Step, source: &CudaSource, work: &Work) {
        let (at, mut grid, block) = entry(source, work).unwrap();
        let number = self.kernel(&source.text);
        if let Geometry::Tiles { shared, .. } = source.entries[at].geometry {
            // Few blocks, so that each computes several tiles.
            grid[0] = grid[0].min(3);
            writeln!(self.main, "  dynamic_bytes({shared});").unwrap();
        }
        if let Geometry::Blocks { shared: shared @ 1.., .. } = source.entries[at].geometry {
            writeln!(self.main, "  dynamic_bytes({shared});").unwrap();
        }
        let tiles = matches!(source.entries[at].geometry, Geometry::Tiles { .. });
        let data = |arg: &Arg| work.data.iter().find(|(role, _)| *role == arg.role);
        let nowhere = Location { storage: Storage::Arena(0), outside: None, bytes: 0 };
        let known = |arg: &Arg| (data(arg).is_some() || operand(step, work, arg).is_some()).then_some(nowhere);
        let values = arguments(source, work, &[], &known).unwrap();
        let list = |v: &[i64]| v.iter().map(|v| format!("{v}LL")).collect::<Vec<_>>().join(", ");
        let values = source.args.iter().zip(&values).map(|(arg, value)| match (arg.kind, value) {
            (ArgKind::Input(_), _) if data(arg).is_some() => {
                let (_, values) = data(arg).unwrap();
                let values: Vec<i64> = values.iter().map(|v| i64::from(*v)).collect();
                let own = format!("{}_{}", arg.name, self.given.len() + self.main.len());
                writeln!(self.main, "  static const int {own}[] = {{{}}};", list(&values)).unwrap();
                own
            }
            (ArgKind::Input(dtype) | ArgKind::Output(dtype), _) => {
                let view = operand(step, work, arg).unwrap();
                assert_eq!(view.dtype, dtype, "{} of {}", arg.name, source.text);
                assert!(view.is_empty() || view.offset < plan.buffers[view.buffer.index()].len);
                let of = if tiles { plain_storage(dtype) } else { storage(dtype) };
                format!("({of}*)b[{}] + {}", view.buffer.0, view.offset)
            }
            (_, Argument::Sizes(v)) => format!("k{number}::Axes<{}>{{{{{}}}}}", v.len(), list(v)),
            (_, Argument::Size(v)) => format!("{v}LL"),
            _ => panic!("{arg:?}"),
        });
        let values: Vec<String> = values.collect();
        let three = |v: [u32; 3]| format!("Dim{{{}, {}, {}}}", v[0], v[1], v[2]);
        let call = format!("k{number}::{}({})", source.entries[at].name, values.join(", "));
        writeln!(self.main, "  launch({}, {}, [&] {{ {call}; }});", three(grid), three(block)).unwrap();
    }

    /// Adds a case; returns false if a step of its plan has no generated kernel.
    fn case(&mut self, case: &Case, plan: &Plan) -> bool {
        let written = |s: &&Step| !s.writes.iter().all(View::is_empty);
        let steps: Vec<&Step> = plan.steps.iter().filter(written).collect();
        let tiling = self.tiling;
        let kernels = |step: &Step| {
            let of_call = || {
                let Action::Call(call) = &step.action else { return None };
                let timed = Timed::of(plan, (step, call, timed::kernel(plan, step)?))?;
                Some(timed.launches(&tiling?))
            };
            of_call().unwrap_or_else(|| step_kernels(step))
        };
        if steps.iter().any(|s| kernels(s).is_empty()) {
            return false;
        }
        writeln!(self.main, "  std::fprintf(stderr, \"%s\\n\", {:?});\n  {{", case.what).unwrap();
        writeln!(self.main, "  void* b[{}];", plan.buffers.len().max(1)).unwrap();
        for (i, buffer) in plan.buffers.iter().enumerate() {
            let bytes = buffer.len * buffer.dtype.size();
            let filled = match buffer.storage {
                Storage::Input(at) => Some(case.inputs[at].1.bytes()),
                Storage::Constant(at) => Some(plan.constants[at].bytes()),
                Storage::Arena(_) => None,
            };
            self.given.extend(filled.unwrap_or_default());
            writeln!(self.main, "  b[{i}] = buffer({bytes}, {});", filled.is_some()).unwrap();
        }
        for step in steps {
            for (body, work) in kernels(step) {
                // Alternates between a device that few elements fill and one that they do not, and
                // between rows of any length and of this one.
                let odd = self.known.len() % 2;
                let (rows, n) = (work.rows as u64, work.n as u64);
                let shared = match &body {
                    Body::Rowwise(kernel) if rows_are_strided(&work) => cuda::slices(kernel, [rows, n], 1 << 12),
                    _ => None,
                };
                let length = (odd == 1).then_some(RowTarget::Length { rows, n, clusters: false });
                let source = match (&body, shared.or(length)) {
                    (Body::Rowwise(kernel), Some(target)) => cuda::rowwise_for(&plan.program, kernel, target).unwrap(),
                    (body, _) => elementwise(&plan.program, body, &work, [4, 1 << 20][odd]).unwrap(),
                };
                self.launch(plan, step, &source, &work);
            }
        }
        for (_, view) in &plan.outputs {
            let (at, size) = (view.buffer.0, view.dtype.size());
            let (from, bytes) = (view.offset * size, view.len() * size);
            writeln!(self.main, "  std::fwrite((char*)b[{at}] + {from}, 1, {bytes}, made);").unwrap();
        }
        writeln!(self.main, "  for (void* p : b) std::free(p);\n  }}").unwrap();
        true
    }
}

/// The type in memory as kernels of tiles have it.
fn plain_storage(dtype: DType) -> &'static str {
    if matches!(dtype, DType::F16 | DType::BF16) { "unsigned short" } else { storage(dtype) }
}

/// Runs a kernel alone, over these contents of the memory that it reads; returns the result of its
/// single output, which has that many bytes. An error with the reason if there is no compiler.
pub fn alone(source: &CudaSource, work: &Work, reads: &[(&str, &[u8])], bytes: usize) -> Result<Vec<u8>, String> {
    has_compiler()?;
    let mut program = Source::default();
    let number = program.kernel(&source.text);
    let (at, grid, block) = entry(source, work).unwrap();
    let nowhere = Location { storage: Storage::Arena(0), outside: None, bytes: 0 };
    let values = arguments(source, work, &[], &|_| Some(nowhere)).unwrap();
    writeln!(program.main, "  void* made_here = buffer({bytes}, false);").unwrap();
    let mut given = Vec::new();
    for (arg, value) in source.args.iter().zip(&values) {
        let list = |v: &[i64]| v.iter().map(|v| format!("{v}LL")).collect::<Vec<_>>().join(", ");
        given.push(match (arg.kind, value) {
            (ArgKind::Output(_), _) => "Memory{made_here}".to_string(),
            (ArgKind::Input(dtype), _) => {
                let (_, contents) = reads.iter().find(|(name, _)| *name == arg.name).unwrap();
                program.given.extend_from_slice(contents);
                writeln!(program.main, "  void* {} = buffer({}, true);", arg.name, contents.len()).unwrap();
                format!("({}*){}", storage(dtype), arg.name)
            }
            (_, Argument::Sizes(v)) => format!("k{number}::Axes<{}>{{{{{}}}}}", v.len(), list(v)),
            (_, Argument::Size(v)) => format!("{v}LL"),
            _ => panic!("{arg:?}"),
        });
    }
    let [grid, block] = [grid, block].map(|v| format!("Dim{{{}, {}, {}}}", v[0], v[1], v[2]));
    let call = format!("k{number}::{}({})", source.entries[at].name, given.join(", "));
    writeln!(program.main, "  launch({grid}, {block}, [&] {{ {call}; }});").unwrap();
    writeln!(program.main, "  std::fwrite(made_here, 1, {bytes}, made);").unwrap();
    Ok(execute(&program))
}

/// An error if the host has no compiler.
fn has_compiler() -> Result<(), String> {
    let found = Command::new("c++").arg("--version").output().is_ok_and(|o| o.status.success());
    if found { Ok(()) } else { Err("no C++ compiler".into()) }
}

/// Runs the cases in one program. `None` for a case with a step that has no generated kernel; an
/// error with the reason if there is no compiler.
pub fn run(cases: &[Case]) -> Result<Vec<Option<Ran>>, String> {
    run_with(cases, &Options::new(Device::named("h200").unwrap()))
}

/// As [`run`], planned with these options.
pub fn run_with(cases: &[Case], options: &Options) -> Result<Vec<Option<Ran>>, String> {
    run_tiled(cases, options, None)
}

/// As [`run_with`]; calls that are timed have this tiling.
pub fn run_tiled(cases: &[Case], options: &Options, tiling: Option<StoredTiling>) -> Result<Vec<Option<Ran>>, String> {
    has_compiler()?;
    let mut source = Source { tiling, ..Source::default() };
    let plans = cases.iter().map(|case| {
        let plan = pipeline::plan(&case.graph, options).unwrap_or_else(|e| panic!("{}: {e}", case.what));
        let runs = source.case(case, &plan);
        runs.then_some(plan)
    });
    let plans: Vec<Option<Plan>> = plans.collect();
    let made = execute(&source);
    let mut rest = made.as_slice();
    let outputs = plans.into_iter().map(|plan| {
        plan.map(|plan| {
            let read = |(_, v): &(String, View)| {
                let (bytes, behind) = rest.split_at(v.len() * v.dtype.size());
                rest = behind;
                Tensor::from_bytes(v.dtype, &v.shape, bytes).unwrap_or_else(|| panic!("a bool that is none"))
            };
            let tensors = plan.outputs.iter().map(read).collect();
            (plan, tensors)
        })
    });
    let outputs = outputs.collect();
    assert!(rest.is_empty());
    Ok(outputs)
}

/// Compiles the program and runs it.
fn execute(source: &Source) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let text = format!(
        "{}\n{}\nint main(int, char** names) {{\n  given = std::fopen(names[1], \"rb\");\n  \
         made = std::fopen(names[2], \"wb\");\n{}  \
         return std::fclose(made);\n}}\n",
        include_str!("emulator.h"),
        source.kernels,
        source.main
    );
    std::fs::write(path("run.cpp"), &text).unwrap();
    std::fs::write(path("given"), &source.given).unwrap();
    if let Some(kept) = std::env::var_os("HYPATIA_EMULATED") {
        std::fs::write(kept, &text).unwrap();
    }
    let flags = "-std=c++17 -O1 -g1 -w -fsanitize=address,undefined -fno-sanitize-recover=all \
                 -ffp-contract=off -U_FORTIFY_SOURCE";
    let mut compiler = Command::new("c++");
    compiler.args(flags.split(' ')).arg(path("run.cpp")).arg("-o").arg(path("run"));
    let done = compiler.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    // What a search for leaks reports while threads' stacks are switched depends on the machine.
    let mut run = Command::new(path("run"));
    run.env("ASAN_OPTIONS", "detect_leaks=0").arg(path("given")).arg(path("made"));
    let done = run.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    std::fs::read(path("made")).unwrap()
}
