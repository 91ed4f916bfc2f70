//! Launchers of a kernel: a C header for CUDA's driver API, and a module for PyTorch.
//!
//! In: a kernel with its [`CudaSource`], and the names of its files. Out: the text of both. Holds
//! always: the choice of the entry point, its grid and its block are those of
//! [`Geometry::launch`], so that a kernel runs as a plan runs it; the arguments follow from the
//! source's own list.

mod choice;
mod names;

use minijinja::{Value, context};

use hypatia_dsl::dtype::DType;
use hypatia_dsl::kernel::{Move, RowAccess, WindowBounds};

use crate::cuda::{
    Arg, ArgKind, ArgRole, CudaSource, EmitError, Geometry, SizeName, comment_lines, identifier, render_plain,
};
use crate::instances::Body;
pub use choice::tile_counts;
use choice::{Choice, Language, Rows};
use names::spelled;

/// The text of both launchers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// What the C functions and the Python module are called.
    pub name: String,
    /// A C header.
    pub header: String,
    /// A Python module.
    pub module: String,
}

/// The launchers of a kernel whose files are called `stem`.
///
/// # Errors
/// If a template of this crate is wrong.
pub fn launcher(body: &Body, source: &CudaSource, stem: &str) -> Result<Launcher, EmitError> {
    let name = identifier("", stem);
    let work = Rows::of(body, source);
    Ok(Launcher {
        header: header(body, source, (stem, &name), &work)?,
        module: module(body, source, (stem, &name), &work)?,
        name,
    })
}

/// What both templates need.
fn common(source: &CudaSource, stem: &str, name: &str) -> Value {
    let entry = |(symbol, geometry): (&str, Geometry)| {
        let (block, cluster) = match geometry {
            Geometry::Flat { block, .. } | Geometry::Grid { block, .. } | Geometry::Columns { block } => (block, 1),
            Geometry::Rows { block, .. } | Geometry::Parts { block, .. } | Geometry::Problems { block, .. } => {
                (block, 1)
            }
            Geometry::Blocks { block, .. } | Geometry::Accesses { block, .. } => (block, 1),
            Geometry::Clusters { block, blocks, .. } => (block, blocks),
            Geometry::Tiles { block, cluster, .. } => (block, cluster),
            Geometry::Declared => (0, 1),
        };
        context! { symbol => symbol, block => block, cluster => cluster, shared => geometry.shared() }
    };
    let entries: Vec<Value> = source.entries.iter().map(|e| entry((&e.name, e.geometry))).collect();
    let shared: Vec<String> = source.entries.iter().map(|e| e.geometry.shared().to_string()).collect();
    let prescribed = source.entries.iter().any(|e| e.geometry.is_prescribed());
    let maps = source.args.iter().any(|a| matches!(a.kind, ArgKind::Map { .. }));
    context! {
        name => name,
        guard => name.to_ascii_uppercase(),
        stem => stem,
        version => env!("CARGO_PKG_VERSION"),
        formula => comment_lines(&source.formula, 92),
        count => entries.len(),
        entries => entries,
        shared => shared.join(", "),
        maps => maps,
        map_rank => map_rank(source),
        image => image(source),
        resident => source.entries.iter().any(|e| e.geometry.shared() > 0) && !prescribed,
        prescribed => prescribed,
        declared => declared(source),
        grids => match prescribed {
            true => "This grid and no other is correct.",
            false => "Any grid is correct; this one is fast.",
        },
    }
}

/// True if the kernel declares its launch itself: the caller passes it.
fn declared(source: &CudaSource) -> bool {
    source.entries.iter().any(|e| e.geometry == Geometry::Declared)
}

/// The axes of the tensors that the copy engine moves: attention has three of a batch.
fn map_rank(source: &CudaSource) -> usize {
    if source.args.iter().any(|a| a.kind == ArgKind::Size(SizeName::Batch2)) { 5 } else { 3 }
}

/// Where the windows of an image begin, if an operand is one whose windows the copy engine reads.
fn image(source: &CudaSource) -> Option<Value> {
    let bounds = source.args.iter().find_map(|a| match a.kind {
        ArgKind::Map { windows, .. } => windows,
        _ => None,
    })?;
    let list = |[x, y]: [i64; 2]| format!("{x}, {y}");
    Some(context! {
        lower => list(bounds.lower.map(i64::from)),
        upper => list(bounds.upper.map(i64::from)),
        steps => list(bounds.steps.map(i64::from)),
    })
}

/// What makes a descriptor of a tensor, or of an image whose windows are loaded.
fn descriptor(windows: Option<WindowBounds>) -> &'static str {
    if windows.is_some() { "windows" } else { "map" }
}

/// The name of the tensor of an argument: a descriptor is made of it.
fn tensor(arg: &Arg) -> String {
    spelled(arg.name.strip_suffix("_map").filter(|_| matches!(arg.kind, ArgKind::Map { .. })).unwrap_or(&arg.name))
}

/// What a parameter is, for people.
fn about(arg: &Arg) -> String {
    let what = comment_lines(&arg.about, 200).join(" ");
    match arg.kind {
        ArgKind::Input(d) => format!("{d}, read: {what}"),
        ArgKind::Output(d) => format!("{d}, written: {what}"),
        ArgKind::Map { dtype, tf32, .. } => {
            let how = match (&arg.role, tf32) {
                (ArgRole::Written(_), _) => "written",
                (_, true) => "read and rounded to TF32",
                _ => "read",
            };
            format!("{dtype}, {how}: {what}")
        }
        ArgKind::Size(_) | ArgKind::Sizes { .. } | ArgKind::Strides { .. } => what,
    }
}

/// The parameters of the launch that a kernel declares itself, in both languages.
fn of_declared(source: &CudaSource) -> Vec<(&'static str, String)> {
    let launch = comment_lines(source.launch.as_deref().unwrap_or_default(), 200).join(" ");
    vec![
        ("grid", format!("blocks along x, y and z, as the kernel declares: {launch}")),
        ("block", "threads of a block along x, y and z".into()),
        ("shared", "bytes of dynamic shared memory of a block".into()),
    ]
}

/// What `CUtensorMapDataType` calls a type, and its number.
fn map_type(dtype: DType, tf32: bool) -> Result<(&'static str, u32), EmitError> {
    match dtype {
        DType::F32 if tf32 => Ok(("CU_TENSOR_MAP_DATA_TYPE_TFLOAT32", 11)),
        // Bits are moved as they are.
        DType::I8 | DType::U8 => Ok(("CU_TENSOR_MAP_DATA_TYPE_UINT8", 0)),
        DType::I32 => Ok(("CU_TENSOR_MAP_DATA_TYPE_INT32", 4)),
        DType::F16 => Ok(("CU_TENSOR_MAP_DATA_TYPE_FLOAT16", 6)),
        DType::F32 => Ok(("CU_TENSOR_MAP_DATA_TYPE_FLOAT32", 7)),
        DType::BF16 => Ok(("CU_TENSOR_MAP_DATA_TYPE_BFLOAT16", 9)),
        other => Err(EmitError::Malformed(format!("a descriptor of a tensor of {other}"))),
    }
}

/// A parameter of the C function.
struct Parameter {
    name: String,
    declaration: String,
    about: String,
    /// True for a tensor of which a descriptor is made: callers pass its address.
    described: bool,
}

impl Parameter {
    /// One that is passed as it is.
    fn plain(name: &str, declaration: String, about: String) -> Parameter {
        Parameter { name: name.into(), declaration, about, described: false }
    }
}

fn header(body: &Body, source: &CudaSource, (stem, name): (&str, &str), work: &Rows) -> Result<String, EmitError> {
    let mut params: Vec<Parameter> = Vec::new();
    let mut values = Vec::new();
    let (mut maps, mut map_names) = (Vec::new(), Vec::new());
    for a in &source.args {
        let own = tensor(a);
        let declaration = match a.kind {
            ArgKind::Input(_) | ArgKind::Output(_) => format!("CUdeviceptr {own}"),
            ArgKind::Size(_) => format!("int64_t {own}"),
            ArgKind::Sizes { count, .. } | ArgKind::Strides { axes: count, .. } => {
                format!("const int64_t {own}[{count}]")
            }
            ArgKind::Map { .. } => format!("const hypatia_tensor *{own}"),
        };
        values.push(match a.kind {
            ArgKind::Sizes { .. } | ArgKind::Strides { .. } => format!("(void *){own}"),
            ArgKind::Map { .. } => format!("&{}", spelled(&a.name)),
            _ => format!("(void *)&{own}"),
        });
        if let ArgKind::Map { dtype, tf32, inner, axes, in_parts, windows } = a.kind {
            let kind = map_type(dtype, tf32)?.0;
            let map = spelled(&a.name);
            map_names.push(map.clone());
            maps.push(context! {
                name => map,
                tensor => own.clone(),
                type => kind,
                inner => inner[0],
                outer => inner[1],
                how => descriptor(windows),
                rank => map_rank(source) + usize::from(in_parts),
                axes => axes.map(|axes| axes.map(|a| a.name())),
            });
        }
        let described = matches!(a.kind, ArgKind::Map { .. });
        params.push(Parameter { name: own, declaration, about: about(a), described });
    }
    for (own, what) in work.parameters() {
        params.push(Parameter::plain(own, format!("int64_t {own}"), (*what).into()));
    }
    if declared(source) {
        for (own, what) in of_declared(source) {
            let declaration =
                if own == "shared" { "unsigned shared".into() } else { format!("const unsigned {own}[3]") };
            params.push(Parameter::plain(own, declaration, what));
        }
    }
    let pass = |p: &Parameter| if p.described { format!("&{}", p.name) } else { p.name.clone() };
    let only = body.only_arch().unwrap_or("sm_80");
    let choice = Choice::of(source, work, Language::C);
    let ctx = context! {
        cubin => format!("{stem}.{only}.cubin"),
        call => params.iter().map(pass).collect::<Vec<_>>().join(", "),
        map_names => map_names.join(", "),
        descriptors => maps,
        values => values.join(", "),
        params => params.iter().map(|p| context! {
            name => &p.name, declaration => &p.declaration, about => &p.about,
        }).collect::<Vec<_>>(),
        choice => choice.value(),
        derived => work.derived(Language::C),
        ..common(source, stem, name)
    };
    render_plain("launcher.h.j2", ctx)
}

fn module(body: &Body, source: &CudaSource, (stem, name): (&str, &str), work: &Rows) -> Result<String, EmitError> {
    let mut tensors = Vec::new();
    let mut values = Vec::new();
    let mut params: Vec<(String, Option<String>, String)> = Vec::new();
    let mut derived = Vec::new();
    for a in &source.args {
        let own = tensor(a);
        values.push(python_value(a)?);
        if let ArgKind::Input(d) | ArgKind::Output(d) | ArgKind::Map { dtype: d, .. } = a.kind {
            tensors.push(context! { name => own.clone(), torch => torch_type(d) });
        }
        let by_default = by_default(a, shaped(body, source), work.is_flat(source));
        if let Some(value) = &by_default {
            derived.push(format!("{own} = {value} if {own} is None else {own}"));
        }
        let note = by_default.map(|value| format!("by default {value}"));
        params.push((own, note, about(a)));
    }
    params.extend(work.parameters().iter().map(|(own, what)| (own.to_string(), None, what.to_string())));
    if declared(source) {
        params.extend(of_declared(source).into_iter().map(|(own, what)| (own.into(), None, what)));
    }
    derived.extend(work.derived(Language::Python));
    let choice = Choice::of(source, work, Language::Python);
    let launched = match declared(source) {
        true => "Launch(0, tuple(grid), tuple(block)), shared".to_string(),
        false => {
            derived.push(format!("launch = choose({})", choice.call.join(", ")));
            "launch, ENTRIES[launch.entry].shared".to_string()
        }
    };
    let required = params.iter().filter(|(_, default, _)| default.is_none()).map(|(own, ..)| own.clone());
    let ctx = context! {
        call => required.collect::<Vec<_>>().join(", "),
        first => tensors.first().and_then(|t: &Value| t.get_attr("name").ok()),
        tensors => tensors,
        values => values,
        params => params.iter().map(|(own, default, what)| context! {
            declaration => if default.is_some() { format!("{own}=None") } else { own.clone() },
            name => own,
            about => default.as_ref().map_or(what.clone(), |d| format!("{what}; {d}")),
        }).collect::<Vec<_>>(),
        product => work.multiplies(),
        axes => source.args.iter().any(|a| matches!(a.kind, ArgKind::Sizes { .. } | ArgKind::Strides { .. })),
        derived => derived,
        launched => launched,
        choice => choice.value(),
        ..common(source, stem, name)
    };
    render_plain("launcher.py.j2", ctx)
}

/// What Python passes for an argument.
fn python_value(arg: &Arg) -> Result<String, EmitError> {
    let own = tensor(arg);
    Ok(match arg.kind {
        ArgKind::Input(_) | ArgKind::Output(_) => format!("ctypes.c_void_p({own}.data_ptr())"),
        ArgKind::Size(_) => format!("ctypes.c_longlong({own})"),
        ArgKind::Sizes { count, .. } | ArgKind::Strides { axes: count, .. } => {
            format!("_axes({own}, {count}, \"{own}\")")
        }
        ArgKind::Map { dtype, tf32, inner: [inner, outer], axes, in_parts, windows } => {
            let kind = map_type(dtype, tf32)?.1;
            let checked =
                axes.map_or(String::new(), |[a, b]| format!(", {{\"{0}\": {0}, \"{1}\": {1}}}", a.name(), b.name()));
            let parts = if in_parts { ", parts=1" } else { "" };
            format!("kernel.{}({own}, {kind}, {inner}, {outer}{checked}{parts})", descriptor(windows))
        }
    })
}

/// The number or the length of rows, where they follow from the shape of `whole`, a tensor of whole
/// rows; all of its elements count as one row if the work is flat.
fn by_default(arg: &Arg, whole: Option<String>, flat: bool) -> Option<String> {
    let whole = whole?;
    match arg.role {
        ArgRole::RowLength if flat => Some(format!("{whole}.numel()")),
        ArgRole::RowLength => Some(format!("{whole}.shape[-1]")),
        ArgRole::Rows => Some(format!("{whole}.numel() // max(1, {whole}.shape[-1])")),
        _ => None,
    }
}

/// A tensor of whole rows, from which the number and the length of rows follow.
fn shaped(body: &Body, source: &CudaSource) -> Option<String> {
    let role = match body {
        Body::Pointwise(_) | Body::InPlace(..) => ArgRole::Written(0),
        Body::Rowwise(k) => {
            let input = k.inputs.iter().position(|(_, a)| *a == RowAccess::Full).map(ArgRole::Read);
            let output = || k.outputs.iter().position(|o| o.1 == RowAccess::Full).map(ArgRole::Written);
            input.or_else(output)?
        }
        _ => return None,
    };
    source.args.iter().find(|a| a.role == role).map(|a| a.name.clone())
}

/// PyTorch's name of an element type.
fn torch_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "float64",
        DType::F32 => "float32",
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        DType::F8E4M3 => "float8_e4m3fn",
        DType::F8E5M2 => "float8_e5m2",
        DType::I64 => "int64",
        DType::I32 => "int32",
        DType::I8 => "int8",
        DType::U8 => "uint8",
        DType::Bool => "bool",
    }
}

/// The leading axes of `sizes` that number the rows of a kernel.
fn outer_axes(body: &Body, axes: usize) -> Option<usize> {
    match body {
        Body::Pointwise(_) | Body::InPlace(..) => Some(axes - 1),
        // All elements count as one row; tiles that are turned are counted by the caller.
        Body::Horizontal(k) if k.parts.len() == 1 && k.codes.iter().all(|c| c.across.is_none()) => Some(0),
        Body::Rowwise(k) => Some(k.axes[0]),
        Body::Argmax(k) => Some(k.outer),
        Body::Move(k) => Some(match k.moves {
            Move::Gather { .. } | Move::GatherNd { .. } => 2,
            Move::Concat { .. } | Move::Pad { .. } | Move::GatherElements { .. } => axes - 1,
        }),
        _ => None,
    }
}
