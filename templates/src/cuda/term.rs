//! Scalar terms as C++: scalar functions of the Program, and the value of one element.
//!
//! In: a [`Term`] and the names of its leaves. Out: statements and expressions, and the functions
//! they call. Invariant: every operation is one C++ operation in the compute type, in the term's
//! order; nesting is bounded, whatever the term's depth.

use std::collections::{HashMap, HashSet};

use indexmap::IndexMap;

use super::expr::{Expr, Needs, function, literal, tag, weight};
pub use super::expr::{compute_name, identity_literal, widen};
use super::names::{comment_lines, file_name, identifier};
use super::{EmitError, MAX_TERM_NODES};
use hypatia_dsl::dtype::{DType, Kind};
use hypatia_dsl::ir::{InView, Program, ScalarBody, ScalarId};
use hypatia_dsl::scalar::typed::{Call, Source, Typed, TypedOp, Untypable, source, with_calls};
use hypatia_dsl::scalar::{Term, TermId, TermNode, show_term_with};

/// Placeholder for a `#line` directive back into the generated file, whose line number is known
/// only at the end.
pub(super) const LINE_BACK: &str = "#line BACK";

/// Maximum length of one expression; parts of a longer one are bound to names.
const MAX_EXPRESSION: usize = 72;

/// Maximum cost of a function, in approximate instructions over all its copies, to be inlined:
/// above it a kernel would not compile in seconds.
const MAX_INLINE: u64 = 6_000;

/// Approximate instructions of a short device function.
const DEVICE_FUNCTION: u64 = 12;

/// The inlining specifier of a function of that size with that many copies.
pub(super) fn inlining(size: u64, copies: u64) -> &'static str {
    if size.saturating_mul(copies) > MAX_INLINE { "__noinline__" } else { "__forceinline__" }
}

/// A printed term.
#[derive(Clone, Debug, Default)]
pub struct Lowered {
    /// Declarations of named parts, in order.
    pub statements: Vec<String>,
    /// The roots.
    pub roots: Vec<Expr>,
    /// Approximate number of instructions, including called functions.
    pub size: u64,
}

/// The name of a leaf (`Param`, `Acc`, `In`), and its compute type.
pub type Leaf<'a> = &'a dyn Fn(&TermNode) -> Option<(String, DType)>;

/// A scalar function in one compute type.
type Key = (ScalarId, DType);

struct Function {
    name: String,
    text: String,
    result: DType,
    size: u64,
}

/// The functions that a translation unit needs, each printed once, callees first.
pub struct Functions<'p> {
    program: &'p Program,
    done: IndexMap<Key, Function>,
    names: HashMap<String, ScalarId>,
    needs: Needs,
}

/// Why a term could not be printed yet.
enum Stop {
    Missing(Key),
    Fail(EmitError),
}

impl From<EmitError> for Stop {
    fn from(e: EmitError) -> Stop {
        Stop::Fail(e)
    }
}

impl<'p> Functions<'p> {
    /// An empty set.
    pub fn new(program: &'p Program) -> Functions<'p> {
        Functions { program, done: IndexMap::new(), names: HashMap::new(), needs: Needs::default() }
    }

    /// None yet, for GPUs from Ampere on, whose instructions round without the headers of 16-bit
    /// types.
    pub fn bare(program: &'p Program) -> Functions<'p> {
        let mut functions = Functions::new(program);
        functions.needs.bare = true;
        functions
    }

    /// The Program whose scalars these are.
    pub fn program(&self) -> &'p Program {
        self.program
    }

    /// The text of each function.
    pub fn texts(&self) -> Vec<String> {
        self.done.values().map(|f| f.text.clone()).collect()
    }

    /// Names of the template helper functions that are called.
    pub fn helpers(&self) -> Vec<String> {
        self.needs.helpers.iter().cloned().collect()
    }

    /// Types that a cast inside a term rounds to, whose headers are needed.
    pub fn rounded_to(&self) -> impl Iterator<Item = DType> + Clone + '_ {
        self.needs.rounded.iter().copied()
    }

    /// Requests a helper function.
    pub fn need(&mut self, helper: impl Into<String>) {
        self.needs.helpers.insert(helper.into());
    }

    /// Prints a term. `number` is the type of literals that take none from an operand.
    pub fn lower(&mut self, term: &Term, number: DType, leaf: Leaf<'_>) -> Result<Lowered, EmitError> {
        let mut waiting: Vec<Key> = Vec::new();
        loop {
            let attempt = match waiting.last().copied() {
                None => match self.try_lower(term, number, leaf) {
                    Ok(done) => return Ok(done),
                    Err(stop) => Err(stop),
                },
                Some(key) => self.try_function(key).map(|f| {
                    self.done.insert(key, f);
                }),
            };
            match attempt {
                Ok(()) => {
                    waiting.pop();
                }
                Err(Stop::Fail(e)) => return Err(e),
                Err(Stop::Missing(key)) if waiting.contains(&key) => {
                    let name = &self.program.scalar(key.0).name;
                    return Err(EmitError::Malformed(format!("scalar `{name}` is defined by itself")));
                }
                Err(Stop::Missing(key)) => waiting.push(key),
            }
        }
    }

    /// A unique name for a scalar's functions (overloads distinguish the compute types).
    fn name_of(&mut self, id: ScalarId) -> String {
        let base = identifier("s_", &self.program.scalar(id).name);
        let mut name = base.clone();
        let mut i = 2;
        while *self.names.entry(name.clone()).or_insert(id) != id {
            name = format!("{base}_{i}");
            i += 1;
        }
        name
    }

    /// Prints the function of a scalar, if all its callees are printed.
    fn try_function(&mut self, (id, ty): Key) -> Result<Function, Stop> {
        let program = self.program;
        let def = program.scalar(id);
        let ScalarBody::Term(body) = &def.body else {
            return Err(EmitError::Malformed(format!("`{}` has no body", def.name)).into());
        };
        let mut taken = HashSet::new();
        let mut params = Vec::new();
        for (i, (name, kind)) in def.params.iter().enumerate() {
            let mut text = parameter(name);
            if !taken.insert(text.clone()) {
                text = format!("{text}_{i}");
                taken.insert(text.clone());
            }
            params.push((text, if *kind == Kind::Bool { DType::Bool } else { ty }));
        }
        let leaf = |n: &TermNode| match n {
            TermNode::Param(i) => params.get(*i as usize).cloned(),
            _ => None,
        };
        let lowered = self.try_lower(body, ty, &leaf)?;
        let Some(value) = lowered.roots.first().cloned() else {
            return Err(EmitError::Malformed(format!("`{}` has no value", def.name)).into());
        };
        let result = if def.result == Kind::Bool { DType::Bool } else { ty };
        let value = self.needs.convert(value, result).text;
        let mut name = self.name_of(id);
        if !def.params.iter().any(|(_, k)| *k == Kind::Number) {
            // Overloads cannot differ in their result type alone.
            name = format!("{name}_{}", tag(ty));
        }
        let list: Vec<String> = params.iter().map(|(n, t)| format!("const {} {n}", compute_name(*t))).collect();
        let inline = inlining(lowered.size, 30);
        let mut text = String::new();
        for line in comment_lines(&def.doc, 100) {
            text.push_str(&format!("// {line}\n"));
        }
        let declared = comment_lines(&def.name, 60).join(" ");
        let names: Vec<String> = def.params.iter().map(|(n, _)| comment_lines(n, 40).join(" ")).collect();
        let named = |n: &TermNode| match n {
            TermNode::Param(i) => names.get(*i as usize).cloned(),
            _ => None,
        };
        let meaning = formula(program, body, body.root(), &named);
        text.push_str(&format!("// scalar {declared}({}) = {meaning}\n", names.join(", ")));
        if def.origin.line > 0 {
            text.push_str(&format!("#line {} \"{}\"\n", def.origin.line, file_name(&def.origin.file)));
        }
        text.push_str(&format!("static __device__ {inline} {} {name}({}) {{\n", compute_name(result), list.join(", ")));
        for s in &lowered.statements {
            text.push_str(&format!("  {s}\n"));
        }
        text.push_str(&format!("  return {value};\n}}\n"));
        if def.origin.line > 0 {
            text.push_str(LINE_BACK);
            text.push('\n');
        }
        Ok(Function { name, text, result, size: lowered.size })
    }

    fn try_lower(&mut self, term: &Term, number: DType, leaf: Leaf<'_>) -> Result<Lowered, Stop> {
        if term.nodes.len() > MAX_TERM_NODES {
            return Err(EmitError::TooLarge { nodes: term.nodes.len() }.into());
        }
        let typed = with_calls(self.program, term, number, &|node| leaf(node).map(|(_, ty)| ty)).map_err(untypable)?;
        let names: HashMap<Source, String> =
            term.nodes.iter().filter_map(|node| Some((source(node)?, leaf(node)?.0))).collect();
        let uses = uses(&typed);
        let mut out = Lowered::default();
        let mut exprs: Vec<Expr> = Vec::with_capacity(typed.nodes.len());
        for (i, node) in typed.nodes.iter().enumerate() {
            let args: Vec<u32> = typed.args(node);
            let operands: Vec<Expr> = args.iter().map(|a| exprs[*a as usize].clone()).collect();
            let (expr, cost) = match &node.op {
                TypedOp::Lit(v) => {
                    exprs.push(literal(v.0, node.ty)?);
                    continue;
                }
                TypedOp::Load(source) => {
                    exprs.push(Expr::primary(names.get(source).cloned().unwrap_or_default(), node.ty));
                    continue;
                }
                TypedOp::Convert(_) => (self.needs.convert(operands[0].clone(), node.ty), 1),
                TypedOp::Round(to, _) => (self.needs.round(&operands[0], *to), 1),
                TypedOp::Apply(b, args) => {
                    let ty = if b.params().first() == Some(&Kind::Bool) {
                        node.ty
                    } else {
                        typed.nodes[args[0] as usize].ty
                    };
                    (self.needs.builtin(*b, ty, &operands)?, weight(*b))
                }
                TypedOp::Call(call) => self.call(call, &operands)?,
            };
            out.size = out.size.saturating_add(cost);
            let named = uses[i] > 1 || expr.text.len() > MAX_EXPRESSION;
            let alone = typed.roots.iter().all(|r| *r as usize == i && uses[i] == 1);
            exprs.push(if named && !alone {
                let name = format!("t{i}");
                out.statements.push(format!("const {} {name} = {};", compute_name(expr.ty), expr.text));
                Expr::primary(name, expr.ty)
            } else {
                expr
            });
        }
        out.roots = typed.roots.iter().map(|r| exprs[*r as usize].clone()).collect();
        Ok(out)
    }

    /// A call of a defined scalar's function, or of the device function that it names.
    fn call(&mut self, call: &Call, operands: &[Expr]) -> Result<(Expr, u64), Stop> {
        let key = (call.scalar, call.number);
        if let (Some(name), DType::F32) = (&self.program.scalar(call.scalar).device, call.number) {
            return Ok((self.needs.helper(name.clone(), DType::F32, operands), DEVICE_FUNCTION));
        }
        let f = self.done.get(&key).ok_or(Stop::Missing(key))?;
        Ok((function(&f.name, f.result, operands), f.size.saturating_add(1)))
    }

    /// Converts a root to the storage type of an output: the single rounding at the store.
    pub fn store(&mut self, root: &Expr, to: DType) -> String {
        self.needs.store(root, to)
    }
}

fn untypable(e: Untypable) -> EmitError {
    EmitError::Malformed(e.to_string())
}

/// The number of uses of each step.
fn uses(typed: &Typed<Call>) -> Vec<u32> {
    let mut uses = vec![0u32; typed.nodes.len()];
    let args = typed.nodes.iter().flat_map(|node| typed.args(node));
    args.chain(typed.roots.iter().copied()).for_each(|a| uses[a as usize] += 1);
    uses
}

/// A parameter's name: a single lower-case letter is kept, others are mangled so that they are no
/// keyword or macro.
fn parameter(name: &str) -> String {
    match name.as_bytes() {
        [c] if c.is_ascii_lowercase() => name.into(),
        _ => identifier("p_", name),
    }
}

/// The term in `.hyp` syntax, for comments; long ones are truncated. `leaf` overrides the names
/// `acc` and `in0` of leaves.
pub fn formula(program: &Program, term: &Term, root: TermId, leaf: &dyn Fn(&TermNode) -> Option<String>) -> String {
    const LONGEST: usize = 160;
    let term = Term { nodes: term.nodes.clone(), roots: vec![root] };
    let text = show_term_with(program, &term, &|node| {
        leaf(node).unwrap_or_else(|| match node {
            TermNode::Param(i) => format!("p{i}"),
            TermNode::In { input, view: InView::Row } => format!("row(in{input})"),
            TermNode::In { input, view: InView::Col } => format!("col(in{input})"),
            TermNode::In { input, view: InView::Full } => format!("full(in{input})"),
            TermNode::In { input, .. } => format!("in{input}"),
            _ => "acc".into(),
        })
    });
    let mut line = comment_lines(&text, usize::MAX).into_iter().next().unwrap_or_default();
    if let Some((end, _)) = line.char_indices().nth(LONGEST) {
        line.truncate(end);
        line.push_str("...");
    }
    line
}
