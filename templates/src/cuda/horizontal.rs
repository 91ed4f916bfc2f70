//! Horizontal fusion: pointwise work of several index spaces in one launch.
//!
//! In: a [`HorizontalKernel`]. Out: its source: a function for each code, and an entry point that
//! divides the blocks among the parts. Invariant: a part's arguments are its operands, its outputs,
//! its sizes and their strides, in this order, those of the first part first. Rows of a part are
//! whole accesses.

use minijinja::{Value, context};

use super::pointwise::{Pointer, declarations, formulas, pointers, value_function};
use super::term::{Functions, inlining};
use super::{
    Arg, ArgKind, ArgRole, CudaSource, EmitError, Entry, Geometry, Header, SizeName, common, identifier, render,
    storage,
};
use hypatia_dsl::dtype::DType;
use hypatia_dsl::ir::Program;
use hypatia_dsl::kernel::{
    Access, Across, HORIZONTAL_AXES, HORIZONTAL_BLOCK, HorizontalKernel, HorizontalPart, PICKED, Pick, PointwiseKernel,
};
use hypatia_dsl::scalar::TermNode;

pub(super) fn emit(program: &Program, kernel: &HorizontalKernel) -> Result<CudaSource, EmitError> {
    check(kernel)?;
    let mut functions = Functions::new(program);
    functions.need("axes");
    let restrict = if kernel.in_place { "" } else { " __restrict__" };
    let mut bodies = Vec::new();
    let mut codes = Vec::new();
    for (at, code) in kernel.codes.iter().enumerate() {
        let uses = kernel.parts.iter().filter(|p| **p == at).count() as u64;
        let code = Code::of(code, at);
        if code.is_strided() && !kernel.narrow {
            functions.need("quotient");
        }
        let (texts, size) = code.functions(&mut functions)?;
        bodies.extend(texts);
        codes.push(code.context(inlining(size * code.part.vector as u64, uses), restrict));
    }
    let args = arguments(kernel);
    let names = |p: &Part| p.args(kernel).map(|a| a.name).collect::<Vec<_>>();
    let parts = parts(kernel);
    let calls = parts.iter().map(|p| context! { code => part_name(p.code), arguments => names(p) });
    let block = HORIZONTAL_BLOCK as u32;
    let geometry = match kernel.parts.as_slice() {
        [one] if kernel.codes[*one].across.is_none() => {
            Geometry::Accesses { block, vector: kernel.codes[*one].vector as u32 }
        }
        _ => Geometry::Blocks { block, shared: 0 },
    };
    let entries = vec![Entry { name: identifier("hypatia_", &kernel.name), geometry }];
    let formula: Vec<String> = parts
        .iter()
        .flat_map(|p| {
            let code = &kernel.codes[p.code].kernel;
            let name = |i: usize| ArgRole::Written(p.written + i).tensor_name();
            let outputs: Vec<(String, DType)> = code.outputs.iter().enumerate().map(|(i, d)| (name(i), *d)).collect();
            let mut picks: Vec<String> = Vec::new();
            for pick in &kernel.codes[p.code].picks {
                let leaf = |node: &TermNode| leaf(p, node, &picks);
                let index = super::term::formula(program, &pick.index, pick.index.root(), &leaf);
                picks.push(format!("{}[{index}]", ArgRole::Read(p.read + pick.table).tensor_name()));
            }
            formulas(program, code, &outputs, &|node| leaf(p, node, &picks))
        })
        .collect();
    let header = Header {
        name: &kernel.name,
        kind: if kernel.parts.len() > 1 { "pointwise work of several index spaces" } else { "a pointwise region" },
        doc: &kernel.doc,
        formula: &formula,
        args: &args,
        entries: &entries,
        in_place: kernel.in_place,
    };
    let aliased = |a: &Arg| kernel.in_place && matches!(a.kind, ArgKind::Input(_) | ArgKind::Output(_));
    let plain: Vec<String> = args.iter().filter(|a| aliased(a)).map(|a| a.name.clone()).collect();
    let types = |c: &HorizontalPart| c.kernel.inputs.iter().map(|o| o.dtype).chain(c.kernel.outputs.clone()).collect();
    let types: Vec<DType> = kernel.codes.iter().flat_map(|c| -> Vec<DType> { types(c) }).collect();
    let base = common(header, &functions, types.into_iter(), &bodies)?;
    let own = context! {
        entry => entries[0].name.clone(),
        block => HORIZONTAL_BLOCK,
        narrow => kernel.narrow,
        picks => kernel.codes.iter().any(|c| !c.picks.is_empty()),
        codes => codes.into_iter().collect::<Value>(),
        parts => calls.collect::<Value>(),
        args => declarations(&args, &plain),
    };
    let ctx = minijinja::value::merge_maps([own, base]);
    let text = render("horizontal.cu.j2", &format!("{}.cu", identifier("", &kernel.name)), ctx)?;
    Ok(CudaSource { name: kernel.name.clone(), formula: formula.join("; "), text, entries, args, launch: None })
}

/// What an input of a term is called in a formula.
fn leaf(part: &Part, node: &TermNode, picks: &[String]) -> Option<String> {
    let TermNode::In { input, .. } = node else { return None };
    match input.checked_sub(PICKED) {
        Some(pick) => picks.get(pick as usize).cloned(),
        None => Some(ArgRole::Read(part.read + *input as usize).tensor_name()),
    }
}

fn check(kernel: &HorizontalKernel) -> Result<(), EmitError> {
    let bad = |what: &str| Err(EmitError::Malformed(format!("kernel `{}`: {what}", kernel.name)));
    if kernel.parts.is_empty() || kernel.parts.iter().any(|p| *p >= kernel.codes.len()) {
        return bad("a part without code");
    }
    for c in &kernel.codes {
        let k = &c.kernel;
        let simple = |a: &Access| matches!(a, Access::Full | Access::Splat | Access::Strided);
        if k.acc.is_some() || k.outputs.is_empty() || k.outputs.len() != k.term.roots.len() {
            return bad("a part whose outputs are not those of its term");
        }
        if c.stored.len() != k.outputs.len() || !k.inputs.iter().all(|o| simple(&o.access)) {
            return bad("a part whose operands are indexed by rows or columns");
        }
        let strided = |p: &Pick| k.inputs.get(p.table).is_some_and(|o| o.access == Access::Strided);
        if !c.picks.iter().all(|p| strided(p) && p.index.roots.len() == 1) {
            return bad("a pick from a table without strides, or without an index");
        }
        let turned = |a: &Across| {
            let strided = |i: &usize| k.inputs.get(*i).is_some_and(|o| o.access == Access::Strided);
            a.axis + 1 < k.rank && a.operands.iter().all(strided) && c.picks.is_empty()
        };
        if !c.across.iter().all(turned) {
            return bad("operands across a part without strides, or beside picks");
        }
        if k.rank == 0 || k.rank > HORIZONTAL_AXES || c.vector == 0 {
            return bad("a part without axes, or of more than 16");
        }
    }
    if kernel.codes.iter().map(HorizontalPart::turned).sum::<usize>() > STATIC {
        return bad("tiles that shared memory does not hold");
    }
    Ok(())
}

/// Bytes of shared memory that a kernel has without asking.
const STATIC: usize = 48 << 10;

/// The name of a code's function.
fn part_name(code: usize) -> String {
    format!("part{code}")
}

/// A code as the template sees it. Its operands are counted from 0.
struct Code<'k> {
    at: usize,
    part: &'k HorizontalPart,
    /// Its operands, and behind them its picks.
    operands: Vec<Pointer>,
    outputs: Vec<(String, DType)>,
    /// Its values, and the index of each pick, as functions of all of these.
    values: PointwiseKernel,
    indices: Vec<PointwiseKernel>,
}

impl<'k> Code<'k> {
    fn of(part: &'k HorizontalPart, at: usize) -> Code<'k> {
        let outputs = part.kernel.outputs.iter().enumerate().map(|(i, d)| (format!("out{i}"), *d)).collect();
        let values = part.with_picks(&part.kernel.term, part.kernel.outputs.clone());
        let indices = part.picks.iter().map(|p| part.with_picks(&p.index, vec![DType::I64])).collect();
        Code { at, part, operands: pointers(&values), outputs, values, indices }
    }

    fn is_strided(&self) -> bool {
        let strided = |a: &Access| *a == Access::Strided;
        self.part.kernel.inputs.iter().any(|o| strided(&o.access)) || self.part.stored.iter().any(strided)
    }

    /// The name of the function of one element.
    fn value_name(&self) -> String {
        format!("value{}", self.at)
    }

    /// The name of the function of a pick's index.
    fn index_name(&self, pick: usize) -> String {
        format!("index{}_{pick}", self.at)
    }

    /// The functions of one element and of its indices, and their number of instructions.
    fn functions(&self, functions: &mut Functions<'_>) -> Result<(Vec<String>, u64), EmitError> {
        let mut texts = Vec::new();
        let mut instructions = 0;
        for (pick, index) in self.indices.iter().enumerate() {
            let outputs = [("at".to_string(), DType::I64)];
            let (text, _, size) = value_function(functions, &self.index_name(pick), index, &self.operands, &outputs)?;
            texts.push(text.replacen("// The value of one element.", "// Where one element lies in a table.", 1));
            instructions += size;
        }
        let name = self.value_name();
        let (text, _, size) = value_function(functions, &name, &self.values, &self.operands, &self.outputs)?;
        texts.push(text);
        Ok((texts, instructions + size))
    }

    /// The arguments of a function of element `k`: the operands that its term reads.
    fn arguments(&self, kernel: &PointwiseKernel) -> Vec<String> {
        let used = super::pointwise::used(kernel, &self.operands);
        let live = self.operands.iter().zip(&used).filter(|(_, used)| **used).map(|(o, _)| o);
        let value = |o: &Pointer| match o.access {
            "splat" => format!("{}_all", o.name),
            _ => format!("{}_v.v[k]", o.name),
        };
        live.map(value).collect()
    }

    /// A pick as the template sees it.
    fn pick(&self, at: usize, pick: &Pick) -> Value {
        let operand = |i: usize| self.operands.get(i).map_or_else(String::new, |o| o.name.clone());
        let arguments = [self.arguments(&self.indices[at]), vec!["at".into()]].concat();
        context! {
            name => operand(self.part.kernel.inputs.len() + at),
            table => operand(pick.table),
            type => self.operands.get(pick.table).map(|o| storage(o.dtype)),
            shared => pick.shared,
            index => format!("{}({})", self.index_name(at), arguments.join(", ")),
        }
    }

    fn context(&self, inline: &str, restrict: &str) -> Value {
        let used = self.used();
        let given = &self.operands[..self.part.kernel.inputs.len()];
        let live = || given.iter().zip(&used).enumerate().filter(|(_, (_, used))| **used).map(|(i, (o, _))| (i, o));
        let turned = |i: usize| self.part.across.as_ref().is_some_and(|a| a.operands.contains(&i));
        // A table may be an operand, too: its element at index 0.
        let mut read = super::pointwise::used(&self.values, &self.operands);
        for index in &self.indices {
            let of_index = super::pointwise::used(index, &self.operands);
            read.iter_mut().zip(of_index).for_each(|(all, own)| *all |= own);
        }
        let read: Vec<&str> = given.iter().zip(&read).filter(|(_, r)| **r).map(|(o, _)| o.name.as_str()).collect();
        let writes = self.outputs.iter().map(|(name, _)| format!("{name}_v.v[k]"));
        let call: Vec<String> = self.arguments(&self.values).into_iter().chain(writes).collect();
        let stored = |a: &Access| if *a == Access::Full { "full" } else { "strided" };
        context! {
            name => part_name(self.at),
            inline => inline,
            vector => self.part.vector,
            rank => self.part.kernel.rank,
            strided => self.is_strided(),
            axis => self.part.across.as_ref().map(|a| a.axis),
            params => self.params(restrict).into_iter().collect::<Value>(),
            operands => live().map(|(i, o)| context! {
                name => o.name.clone(), type => storage(o.dtype), access => o.access, turned => turned(i),
                read => read.contains(&o.name.as_str()),
            }).collect::<Value>(),
            picks => self.part.picks.iter().enumerate().map(|(i, p)| self.pick(i, p)).collect::<Value>(),
            outputs => self.outputs.iter().zip(&self.part.stored).map(|((name, d), a)| context! {
                name => name.clone(), type => storage(*d), access => stored(a),
            }).collect::<Value>(),
            call => format!("{}({})", self.value_name(), call.join(", ")),
        }
    }

    /// Whether a term reads each operand, or a pick is from it.
    fn used(&self) -> Vec<bool> {
        let mut used = super::pointwise::used(&self.values, &self.operands);
        for (index, pick) in self.indices.iter().zip(&self.part.picks) {
            let of_index = super::pointwise::used(index, &self.operands);
            used.iter_mut().zip(of_index).for_each(|(all, own)| *all |= own);
            used[pick.table] = true;
        }
        used
    }

    /// The parameters of its function, in the order of [`Part::args`].
    fn params(&self, restrict: &str) -> Vec<String> {
        let rank = self.part.kernel.rank;
        let axes = |name: &str| format!("const Axes<{rank}>& {name}_strides");
        let given = &self.operands[..self.part.kernel.inputs.len()];
        let strided = given.iter().filter(|o| o.access == "strided").map(|o| axes(&o.name));
        let picks = self.part.picks.len();
        let picked = (picks > 0).then(|| format!("const Axes<{}>& picks", 2 * picks));
        let reads = given.iter().map(|o| format!("const {}*{restrict} {}", storage(o.dtype), o.name));
        let writes = self.outputs.iter().map(|(name, d)| format!("{}*{restrict} {name}", storage(*d)));
        let scattered = self.outputs.iter().zip(&self.part.stored).filter(|(_, a)| **a == Access::Strided);
        reads
            .chain(writes)
            .chain([format!("const Axes<{rank}>& sizes")])
            .chain(picked)
            .chain(strided)
            .chain(scattered.map(|((name, _), _)| axes(name)))
            .collect()
    }
}

/// A part of a launch.
struct Part {
    /// Its place.
    at: usize,
    code: usize,
    /// Its first operand of the launch, and its first output.
    read: usize,
    written: usize,
}

fn parts(kernel: &HorizontalKernel) -> Vec<Part> {
    let (mut read, mut written) = (0, 0);
    let part = |(at, code): (usize, &usize)| {
        let own = &kernel.codes[*code].kernel;
        let part = Part { at, code: *code, read, written };
        (read, written) = (read + own.inputs.len(), written + own.outputs.len());
        part
    };
    kernel.parts.iter().enumerate().map(part).collect()
}

impl Part {
    /// The arguments that its function takes.
    fn args(&self, kernel: &HorizontalKernel) -> impl Iterator<Item = Arg> {
        let code = &kernel.codes[self.code];
        let rank = code.kernel.rank;
        let about = |access: &Access| match access {
            Access::Full if kernel.parts.len() == 1 => "all elements in row-major order".to_string(),
            Access::Full => format!("row-major, of sizes{}", self.at),
            Access::Splat => "one element".to_string(),
            _ => "with the strides of that name".to_string(),
        };
        let limit = if kernel.narrow { "; 32 bits count the elements and hold every reach" } else { "" };
        let steps = |of: ArgRole| Arg::strides(of, rank, "elements between neighbours along each axis");
        let mut args = Vec::new();
        let mut strides = Vec::new();
        for (i, o) in code.kernel.inputs.iter().enumerate() {
            args.push(Arg::read(self.read + i, o.dtype, about(&o.access)));
            strides.extend((o.access == Access::Strided).then(|| steps(ArgRole::Read(self.read + i))));
        }
        for (i, (d, access)) in code.kernel.outputs.iter().zip(&code.stored).enumerate() {
            args.push(Arg::written(self.written + i, *d, about(access)));
            strides.extend((*access == Access::Strided).then(|| steps(ArgRole::Written(self.written + i))));
        }
        args.push(match kernel.parts.len() {
            1 => Arg::axes(rank, format!("sizes of the axes; the last one is a multiple of {}{limit}", code.vector)),
            _ => Arg::sizes(SizeName::OfPart(self.at), rank, format!("sizes of the axes of part {}{limit}", self.at)),
        });
        if !code.picks.is_empty() {
            let about = "of each pick, elements between neighbours along its axis, and the axis' size";
            args.push(Arg::sizes(SizeName::Picks(self.at), 2 * code.picks.len(), about));
        }
        args.into_iter().chain(strides)
    }
}

fn arguments(kernel: &HorizontalKernel) -> Vec<Arg> {
    let mut args: Vec<Arg> = parts(kernel).iter().flat_map(|p| p.args(kernel)).collect();
    if kernel.parts.len() == 1 {
        return args;
    }
    let about = "blocks of the parts up to each one: ceil(ceil(its elements / elements of an access) / 256)";
    args.push(Arg::sizes(SizeName::Ends, kernel.parts.len(), about));
    args
}
