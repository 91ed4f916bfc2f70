//! Scalar terms as C++: scalar functions of the Program, and the value of one element.
//!
//! In: a [`Term`] and what its leaves are called. Out: statements and expressions, and the functions
//! they call. Holds always: every operation is one C++ operation in the compute type, in the term's
//! order, but where few digits of the result count; literals are printed so that they
//! read back to the same bits; nesting is bounded, whatever the term's depth.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use indexmap::IndexMap;

use super::names::{comment_lines, file_name, identifier};
use super::{EmitError, MAX_TERM_NODES};
use hypatia_dsl::builtin::BuiltinScalar;
use hypatia_dsl::dtype::{DType, Kind};
use hypatia_dsl::ir::{InView, Program, ScalarBody, ScalarId};
use hypatia_dsl::scalar::{Term, TermId, TermNode, show_term_with};

/// Stands for a `#line` directive back into the generated file; its number is known at the end.
pub(super) const LINE_BACK: &str = "#line BACK";

/// Longest expression that is written in one piece; beyond it a name is given to a part.
const MAX_EXPRESSION: usize = 72;

/// Instructions, roughly, that a function may cost in all its copies: more is not inlined, so that
/// a kernel compiles in seconds.
const MAX_INLINE: u64 = 6_000;

/// The specifier of a function of that size that is written out so often.
pub(super) fn inlining(size: u64, copies: u64) -> &'static str {
    if size.saturating_mul(copies) > MAX_INLINE { "__noinline__" } else { "__forceinline__" }
}

/// Instructions of a builtin, roughly.
fn weight(b: BuiltinScalar) -> u64 {
    b.cost().instructions
}

/// The C++ name of a compute type.
pub fn compute_name(ty: DType) -> &'static str {
    match ty.compute() {
        DType::F64 => "double",
        DType::I64 => "long long",
        DType::Bool => "bool",
        _ => "float",
    }
}

/// Short name of a compute type in helper names.
fn tag(ty: DType) -> &'static str {
    ty.compute().name()
}

/// Binding strength of C++ operators, loosest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Prec {
    Ternary,
    Or,
    And,
    Equality,
    Relation,
    Sum,
    Product,
    Unary,
    Primary,
}

/// An expression with its type and how tight it binds.
#[derive(Clone, Debug)]
pub struct Expr {
    /// The text.
    pub text: String,
    prec: Prec,
    /// The compute type.
    pub ty: DType,
}

impl Expr {
    fn primary(text: impl Into<String>, ty: DType) -> Expr {
        Expr { text: text.into(), prec: Prec::Primary, ty }
    }

    /// In parentheses unless it binds at least so tight.
    fn at(&self, prec: Prec) -> String {
        if self.prec < prec { format!("({})", self.text) } else { self.text.clone() }
    }
}

/// A printed term.
#[derive(Clone, Debug, Default)]
pub struct Lowered {
    /// Declarations of named parts, in order.
    pub statements: Vec<String>,
    /// Each root.
    pub roots: Vec<Expr>,
    /// Instructions, roughly, those of called functions included.
    pub size: u64,
}

/// What a leaf (`Param`, `Acc`, `In`) is called, and its compute type.
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
    helpers: BTreeSet<String>,
    rounded: BTreeSet<DType>,
    /// Results are rounded to 11 bits at most in the end: what is computed on the way in f32 need not be right to 24. Each such
    /// function is off by less than 2^-16 of its value, but where that is next to nothing.
    pub coarse: bool,
    /// Everything that is read or written is f16 or bf16, and these operands have one value a row.
    narrow_rows: Option<Range<u32>>,
}

/// A node of `1 + f(x)` that is one function of the templates.
enum WithOne {
    /// The sum: that function's name, and `x`.
    Sum(&'static str, TermId),
    /// `f(x)`, which is not printed.
    Part,
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
    /// None yet.
    pub fn new(program: &'p Program) -> Functions<'p> {
        Functions {
            program,
            done: IndexMap::new(),
            names: HashMap::new(),
            helpers: BTreeSet::new(),
            rounded: BTreeSet::new(),
            coarse: false,
            narrow_rows: None,
        }
    }

    /// None yet, for a row-wise kernel that reads and writes f16 or bf16 alone; `of_row` are the operands with one value a row. What
    /// is divided by a number of the whole row is multiplied by its inverse there (see `over_row` in templates/prelude.cu.j2).
    pub fn of_narrow_rows(program: &'p Program, of_row: Range<usize>) -> Functions<'p> {
        let narrow_rows = Some(of_row.start as u32..of_row.end as u32);
        Functions { coarse: true, narrow_rows, ..Functions::new(program) }
    }

    /// The nodes of a term that have one value a row, where that is known.
    fn of_row(&self, term: &Term) -> Vec<bool> {
        let mut of_row: Vec<bool> = Vec::with_capacity(term.nodes.len());
        for node in &term.nodes {
            let known = match node {
                TermNode::Lit(_) => true,
                TermNode::In { input, .. } => self.narrow_rows.as_ref().is_some_and(|r| r.contains(input)),
                TermNode::Param(_) | TermNode::Acc => false,
                TermNode::Cast { arg, .. } => of_row[arg.0 as usize],
                TermNode::Call { args, .. } => args.iter().all(|a| of_row[a.0 as usize]),
            };
            of_row.push(known && self.narrow_rows.is_some());
        }
        of_row
    }

    /// The text of each function.
    pub fn texts(&self) -> Vec<String> {
        self.done.values().map(|f| f.text.clone()).collect()
    }

    /// Names of the helper functions of the templates that are called.
    pub fn helpers(&self) -> Vec<String> {
        self.helpers.iter().cloned().collect()
    }

    /// Types that a cast inside a term rounds to; their headers are needed.
    pub fn rounded_to(&self) -> impl Iterator<Item = DType> + Clone + '_ {
        self.rounded.iter().copied()
    }

    /// Asks for a helper function.
    pub fn need(&mut self, helper: impl Into<String>) {
        self.helpers.insert(helper.into());
    }

    /// Prints a term. `number` is the type of literals that no operand gives a type.
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

    /// A name of its own for a scalar's functions (overloads tell the compute types apart).
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

    /// Prints the function of a scalar, if all that it calls are printed.
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
        let value = self.convert(value, result)?.text;
        let mut name = self.name_of(id);
        if !def.params.iter().any(|(_, k)| *k == Kind::Number) {
            // Overloads cannot differ in their result alone.
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
        let uses = count_uses(term)?;
        let types = self.types(term, &uses, number, leaf)?;
        let of_row = self.of_row(term);
        let with_one = self.sums_with_one(term, &uses, &types)?;
        let mut out = Lowered::default();
        let mut exprs: Vec<Option<Expr>> = vec![None; term.nodes.len()];
        for (i, node) in term.nodes.iter().enumerate() {
            if uses[i] == 0 || matches!(with_one.get(&i), Some(WithOne::Part)) {
                continue;
            }
            let (expr, cost) = match node {
                // Printed where it is used, in the type that is asked for.
                TermNode::Lit(_) => continue,
                TermNode::Param(_) | TermNode::Acc | TermNode::In { .. } => {
                    let (text, ty) = leaf(node)
                        .ok_or_else(|| EmitError::Malformed(format!("{node:?} does not belong into this term")))?;
                    exprs[i] = Some(Expr::primary(text, ty));
                    continue;
                }
                TermNode::Cast { to, arg } => {
                    let arg = self.operand(term, &exprs, arg.0, types[arg.0 as usize])?;
                    (self.cast(arg, *to)?, 1)
                }
                TermNode::Call { .. } if let Some(WithOne::Sum(function, x)) = with_one.get(&i) => {
                    let x = self.operand(term, &exprs, x.0, Some(DType::F32))?;
                    (self.helper(function.to_string(), DType::F32, &[x]), weight(BuiltinScalar::Erf))
                }
                TermNode::Call { scalar, args } => {
                    let args: Vec<u32> = args.iter().map(|a| a.0).collect();
                    let by_row = args.len() == 2 && of_row[args[1] as usize] && !of_row[args[0] as usize];
                    self.call(term, &exprs, &types, (*scalar, by_row), &args, types[i])?
                }
            };
            out.size = out.size.saturating_add(cost);
            let named = uses[i] > 1 || expr.text.len() > MAX_EXPRESSION;
            exprs[i] = Some(if named && !term.roots.iter().all(|r| r.0 as usize == i && uses[i] == 1) {
                let name = format!("t{i}");
                out.statements.push(format!("const {} {name} = {};", compute_name(expr.ty), expr.text));
                Expr::primary(name, expr.ty)
            } else {
                expr
            });
        }
        for r in &term.roots {
            let ty = types[r.0 as usize].unwrap_or(number);
            let e = self.operand(term, &exprs, r.0, Some(ty))?;
            out.roots.push(e);
        }
        Ok(out)
    }

    /// The compute type of each node; `None` for literals, which take the type that is asked for.
    fn types(&self, term: &Term, uses: &[u32], number: DType, leaf: Leaf<'_>) -> Result<Vec<Option<DType>>, Stop> {
        let mut types: Vec<Option<DType>> = vec![None; term.nodes.len()];
        for (i, node) in term.nodes.iter().enumerate() {
            if uses[i] == 0 {
                continue;
            }
            types[i] = match node {
                TermNode::Lit(_) => None,
                TermNode::Param(_) | TermNode::Acc | TermNode::In { .. } => leaf(node).map(|(_, t)| t.compute()),
                TermNode::Cast { to, .. } => Some(to.compute()),
                TermNode::Call { scalar, args } => {
                    let def = self.scalar(*scalar)?;
                    let joined = join(args.iter().zip(&def.params).map(|(a, (_, k))| (types[a.0 as usize], *k)));
                    match (&def.body, def.result) {
                        (_, Kind::Bool) => Some(DType::Bool),
                        (ScalarBody::Builtin(_), Kind::Number) => joined,
                        (ScalarBody::Term(_), Kind::Number) => Some(joined.unwrap_or(number)),
                    }
                }
            };
        }
        // Arithmetic of literals alone takes the type of what uses it.
        let mut asked: Vec<Option<DType>> = vec![None; term.nodes.len()];
        for (i, node) in term.nodes.iter().enumerate().rev() {
            if uses[i] == 0 {
                continue;
            }
            let literal = matches!(node, TermNode::Lit(_));
            if types[i].is_none() && !literal {
                types[i] = Some(asked[i].unwrap_or(number));
            }
            if let TermNode::Call { scalar, args } = node {
                let def = self.scalar(*scalar)?;
                let want = join(args.iter().zip(&def.params).map(|(a, (_, k))| (types[a.0 as usize], *k)))
                    .or(types[i].filter(|t| *t != DType::Bool));
                for (a, (_, kind)) in args.iter().zip(&def.params) {
                    if *kind == Kind::Number {
                        let slot = &mut asked[a.0 as usize];
                        *slot = join([(*slot, Kind::Number), (want, Kind::Number)].into_iter());
                    }
                }
            }
        }
        Ok(types)
    }

    /// The sums `1 + erf(x)` and `1 + tanh(x)` in f32 whose second part nothing else uses, with the function that they are
    /// and `x`, and those parts: less work than both steps (see templates/prelude.cu.j2). Only where 24 bits do not count.
    fn sums_with_one(
        &self,
        term: &Term,
        uses: &[u32],
        types: &[Option<DType>],
    ) -> Result<HashMap<usize, WithOne>, EmitError> {
        let mut found = HashMap::new();
        let nodes: &[TermNode] = if self.coarse { &term.nodes } else { &[] };
        for (i, node) in nodes.iter().enumerate() {
            let TermNode::Call { scalar, args } = node else { continue };
            if uses[i] == 0
                || types[i] != Some(DType::F32)
                || !matches!(self.scalar(*scalar)?.body, ScalarBody::Builtin(BuiltinScalar::Add))
            {
                continue;
            }
            let [a, b] = args[..] else { continue };
            for (one, part) in [(a, b), (b, a)] {
                let at = part.0 as usize;
                let is_one = matches!(&term.nodes[one.0 as usize], TermNode::Lit(v) if v.0 == 1.0);
                let TermNode::Call { scalar, args } = &term.nodes[at] else { continue };
                let function = match self.scalar(*scalar)?.body {
                    ScalarBody::Builtin(BuiltinScalar::Erf) => "one_plus_erf",
                    ScalarBody::Builtin(BuiltinScalar::Tanh) => "one_plus_tanh",
                    _ => continue,
                };
                let alone = uses[at] == 1 && types[at] == Some(DType::F32);
                if let (true, true, [x]) = (is_one, alone, &args[..]) {
                    found.insert(i, WithOne::Sum(function, *x));
                    found.insert(at, WithOne::Part);
                }
            }
        }
        Ok(found)
    }

    fn scalar(&self, id: ScalarId) -> Result<&'p hypatia_dsl::ir::ScalarDef, EmitError> {
        let program = self.program;
        program.scalars.get(id.index()).ok_or_else(|| EmitError::Malformed(format!("no scalar {}", id.0)))
    }

    /// The expression of a node, in the type that is asked for.
    fn operand(
        &mut self,
        term: &Term,
        exprs: &[Option<Expr>],
        id: u32,
        want: Option<DType>,
    ) -> Result<Expr, EmitError> {
        if let TermNode::Lit(v) = &term.nodes[id as usize] {
            return literal(v.0, want.unwrap_or(DType::F64));
        }
        let expr = exprs[id as usize]
            .clone()
            .ok_or_else(|| EmitError::Malformed("an argument stands behind its use".into()))?;
        match want {
            Some(ty) => self.convert(expr, ty),
            None => Ok(expr),
        }
    }

    fn call(
        &mut self,
        term: &Term,
        exprs: &[Option<Expr>],
        types: &[Option<DType>],
        (id, by_row): (ScalarId, bool),
        args: &[u32],
        result: Option<DType>,
    ) -> Result<(Expr, u64), Stop> {
        let def = self.scalar(id)?;
        if args.len() != def.params.len() {
            return Err(EmitError::Malformed(format!("`{}` with {} arguments", def.name, args.len())).into());
        }
        let kinds = def.params.iter().map(|(_, k)| *k);
        let own = join(args.iter().zip(kinds.clone()).map(|(a, k)| (types[*a as usize], k)));
        let ty = own.or(result.filter(|t| *t != DType::Bool)).unwrap_or(DType::F64);
        let mut operands = Vec::with_capacity(args.len());
        for (a, kind) in args.iter().zip(kinds) {
            let want = if kind == Kind::Bool { DType::Bool } else { ty };
            operands.push(self.operand(term, exprs, *a, Some(want))?);
        }
        match &def.body {
            ScalarBody::Builtin(BuiltinScalar::Div) if by_row && ty == DType::F32 => {
                Ok((self.helper("over_row".into(), ty, &operands), weight(BuiltinScalar::Mul)))
            }
            ScalarBody::Builtin(b) => Ok((self.builtin(*b, ty, &operands)?, weight(*b))),
            ScalarBody::Term(_) => {
                let f = self.done.get(&(id, ty)).ok_or(Stop::Missing((id, ty)))?;
                let list: Vec<&str> = operands.iter().map(|e| e.text.as_str()).collect();
                Ok((Expr::primary(format!("{}({})", f.name, list.join(", ")), f.result), f.size.saturating_add(1)))
            }
        }
    }

    /// A builtin on operands of one compute type.
    fn builtin(&mut self, b: BuiltinScalar, ty: DType, args: &[Expr]) -> Result<Expr, EmitError> {
        use BuiltinScalar::*;
        if ty == DType::I64 && b.float_only() {
            return Err(EmitError::FloatOnly { scalar: b.name().into() });
        }
        let int = ty == DType::I64;
        let infix = |op: &str, prec: Prec, right: Prec, ty: DType| Expr {
            text: format!("{} {op} {}", args[0].at(prec), args[1].at(right)),
            prec,
            ty,
        };
        Ok(match b {
            Exp if ty == DType::F32 && self.coarse => function("__expf", ty, args),
            Add if !int => infix("+", Prec::Sum, Prec::Product, ty),
            Sub if !int => infix("-", Prec::Sum, Prec::Product, ty),
            Mul if !int => infix("*", Prec::Product, Prec::Unary, ty),
            Div if !int => infix("/", Prec::Product, Prec::Unary, ty),
            Neg if !int => Expr { text: format!("-{}", args[0].at(Prec::Primary)), prec: Prec::Unary, ty },
            Floor | Ceil | Round | Trunc if int => args[0].clone(),
            IsNan | IsInf if int => Expr::primary("false", DType::Bool),
            Max | Min if !int => self.helper(format!("{}_nan", b.name()), ty, args),
            Sign => self.helper(format!("{}_of", b.name()), ty, args),
            Add | Sub | Mul | Div | Neg | Abs | Pow | Fmod if int => self.helper(format!("int_{}", b.name()), ty, args),
            Round => function(if ty == DType::F64 { "rint" } else { "rintf" }, ty, args),
            IsNan | IsInf => function(b.name(), DType::Bool, args),
            Abs if ty == DType::F64 => function("fabs", ty, args),
            Abs => function("fabsf", ty, args),
            Max | Min => function(b.name(), ty, args),
            Eq => infix("==", Prec::Equality, Prec::Relation, DType::Bool),
            Lt => infix("<", Prec::Relation, Prec::Sum, DType::Bool),
            Le => infix("<=", Prec::Relation, Prec::Sum, DType::Bool),
            Not => Expr { text: format!("!{}", args[0].at(Prec::Primary)), prec: Prec::Unary, ty: DType::Bool },
            And => infix("&&", Prec::And, Prec::Equality, DType::Bool),
            Or => Expr {
                text: format!("{} || {}", args[0].at(Prec::Equality), args[1].at(Prec::Equality)),
                prec: Prec::Or,
                ty: DType::Bool,
            },
            Xor => Expr {
                text: format!("{} != {}", args[0].at(Prec::Relation), args[1].at(Prec::Relation)),
                prec: Prec::Equality,
                ty: DType::Bool,
            },
            Select => Expr {
                text: format!("{} ? {} : {}", args[0].at(Prec::Or), args[1].at(Prec::Or), args[2].at(Prec::Or)),
                prec: Prec::Ternary,
                ty,
            },
            // The rest has its C name, with an f behind it in single precision.
            _ => function(&format!("{}{}", b.name(), if ty == DType::F64 { "" } else { "f" }), ty, args),
        })
    }

    fn helper(&mut self, name: String, ty: DType, args: &[Expr]) -> Expr {
        self.helpers.insert(format!("{name}_{}", tag(ty)));
        function(&name, ty, args)
    }

    /// The value in another compute type.
    fn convert(&mut self, e: Expr, to: DType) -> Result<Expr, EmitError> {
        let to = to.compute();
        if e.ty.compute() == to {
            return Ok(e);
        }
        self.cast(e, to)
    }

    /// The value rounded or converted to an element type, widened to its compute type again.
    fn cast(&mut self, e: Expr, to: DType) -> Result<Expr, EmitError> {
        let from = e.ty.compute();
        if narrowed(&e, to).is_some() {
            return Ok(e);
        }
        self.rounded.insert(to);
        let plain =
            |text: &str| Expr { text: format!("({text}){}", e.at(Prec::Unary)), prec: Prec::Unary, ty: to.compute() };
        Ok(match to {
            DType::F64 | DType::F32 if from == to => e,
            DType::F64 => plain("double"),
            DType::F32 => plain("float"),
            DType::F16 | DType::BF16 if from == DType::Bool => plain("float"),
            DType::F16 | DType::BF16 => Expr::primary(widen(&self.narrow(&e, to), to), DType::F32),
            DType::Bool if from == DType::Bool => e,
            DType::Bool => {
                Expr { text: format!("{} != 0", e.at(Prec::Relation)), prec: Prec::Equality, ty: DType::Bool }
            }
            DType::I64 if from == DType::I64 => e,
            _ if from == DType::Bool => plain("long long"),
            DType::I64 => self.helper_to_int(&e, DType::I64),
            _ if from == DType::I64 => {
                let inner = format!("({})({})", super::storage(to), e.text);
                Expr { text: format!("(long long){inner}"), prec: Prec::Unary, ty: DType::I64 }
            }
            _ => self.helper_to_int(&e, to),
        })
    }

    fn helper_to_int(&mut self, e: &Expr, to: DType) -> Expr {
        self.helpers.insert(format!("to_{}_{}", to.name(), tag(e.ty)));
        self.helpers.insert(format!("to_i64_{}", tag(e.ty)));
        Expr::primary(format!("to_{}({})", to.name(), e.text), DType::I64)
    }

    /// The expression rounded once to half precision, in its storage type.
    fn narrow(&mut self, e: &Expr, to: DType) -> String {
        let half = to == DType::F16;
        let name = match (e.ty.compute(), half) {
            (DType::F64, true) => "__double2half",
            (DType::F64, false) => "__double2bfloat16",
            (DType::I64, true) => "__ll2half_rn",
            (DType::I64, false) => "__ll2bfloat16_rn",
            (_, true) => "__float2half_rn",
            (_, false) => "__float2bfloat16_rn",
        };
        format!("{name}({})", e.text)
    }

    /// A root in the storage type of an output: the one rounding at the store.
    pub fn store(&mut self, root: &Expr, to: DType) -> Result<String, EmitError> {
        let (e, ty) = (root.clone(), root.ty);
        Ok(match to {
            DType::F16 | DType::BF16 if ty.compute() == DType::Bool => {
                let e = self.cast(e, DType::F32)?;
                self.narrow(&e, to)
            }
            DType::F16 | DType::BF16 => self.narrow(&e, to),
            DType::I32 | DType::I8 | DType::U8 if ty.compute() == DType::I64 => match narrowed(&e, to) {
                Some(Some(inner)) => inner.to_string(),
                _ => format!("({}){}", super::storage(to), e.at(Prec::Unary)),
            },
            DType::I32 | DType::I8 | DType::U8 => {
                let e = self.cast(e, to)?;
                format!("({}){}", super::storage(to), e.at(Prec::Unary))
            }
            _ => self.cast(e, to)?.text,
        })
    }
}

/// A value that was converted to a small integer type already: doing so again changes nothing. `Some(Some(text))` if the text
/// is one of that type, widened.
fn narrowed(e: &Expr, to: DType) -> Option<Option<&str>> {
    if !matches!(to, DType::I32 | DType::I8 | DType::U8) || e.ty != DType::I64 {
        return None;
    }
    let small = e.text.strip_prefix("(long long)").filter(|t| t.starts_with(&format!("({})", super::storage(to))));
    match e.prec {
        Prec::Unary => small.map(Some),
        Prec::Primary => e.text.starts_with(&format!("to_{}(", to.name())).then_some(None),
        _ => None,
    }
}

/// A storage value as its compute type.
pub fn widen(text: &str, from: DType) -> String {
    match from {
        DType::F16 => format!("__half2float({text})"),
        DType::BF16 => format!("__bfloat162float({text})"),
        DType::I32 | DType::I8 | DType::U8 => format!("(long long){text}"),
        _ => text.into(),
    }
}

/// A parameter's name: one small letter as it is, else mangled so that it is no keyword or macro.
fn parameter(name: &str) -> String {
    match name.as_bytes() {
        [c] if c.is_ascii_lowercase() => name.into(),
        _ => identifier("p_", name),
    }
}

fn function(name: &str, ty: DType, args: &[Expr]) -> Expr {
    let list: Vec<&str> = args.iter().map(|a| a.text.as_str()).collect();
    Expr::primary(format!("{name}({})", list.join(", ")), ty)
}

/// The type that all number operands are brought to: integers to floats, f32 to f64.
fn join(operands: impl Iterator<Item = (Option<DType>, Kind)>) -> Option<DType> {
    let rank = |t: DType| match t {
        DType::Bool => 0,
        DType::I64 => 1,
        DType::F32 => 2,
        _ => 3,
    };
    let ty = operands.filter(|(_, k)| *k == Kind::Number).filter_map(|(t, _)| t).max_by_key(|t| rank(*t))?;
    // Truth values that stand for numbers count as integers.
    Some(if ty == DType::Bool { DType::I64 } else { ty })
}

fn count_uses(term: &Term) -> Result<Vec<u32>, EmitError> {
    let mut uses = vec![0u32; term.nodes.len()];
    let bad = || EmitError::Malformed("a node's argument stands behind it".into());
    for r in &term.roots {
        *uses.get_mut(r.0 as usize).ok_or_else(bad)? += 1;
    }
    for (i, node) in term.nodes.iter().enumerate().rev() {
        if uses[i] == 0 {
            continue;
        }
        let args: &[hypatia_dsl::scalar::TermId] = match node {
            TermNode::Call { args, .. } => args,
            TermNode::Cast { arg, .. } => std::slice::from_ref(arg),
            _ => &[],
        };
        for a in args {
            if a.0 as usize >= i {
                return Err(bad());
            }
            uses[a.0 as usize] = uses[a.0 as usize].saturating_add(1);
        }
    }
    Ok(uses)
}

/// A literal that reads back to the same bits.
fn literal(v: f64, ty: DType) -> Result<Expr, EmitError> {
    let (text, negative) = match ty.compute() {
        DType::Bool => (if v != 0.0 { "true" } else { "false" }.to_string(), false),
        DType::I64 => {
            if v.fract() != 0.0 || !(-9.2e18..=9.2e18).contains(&v) {
                return Err(EmitError::Fraction { literal: format!("{v:?}") });
            }
            (format!("{}LL", v as i64), v < 0.0)
        }
        DType::F64 if !v.is_finite() => (format!("__longlong_as_double(0x{:016x}LL)", v.to_bits()), false),
        DType::F64 => (format!("{v:?}"), v.is_sign_negative()),
        _ => {
            let v = v as f32;
            if v.is_finite() {
                (format!("{v:?}f"), v.is_sign_negative())
            } else {
                (format!("__int_as_float(0x{:08x})", v.to_bits()), false)
            }
        }
    };
    Ok(Expr { text, prec: if negative { Prec::Unary } else { Prec::Primary }, ty: ty.compute() })
}

/// The value with which a reduction over elements of that type begins: of a narrow integer type its own limits, as
/// they are the result where there are no elements.
pub fn identity_literal(v: f64, ty: DType) -> Result<String, EmitError> {
    let limits = match ty {
        DType::I32 => Some((i32::MIN as f64, i32::MAX as f64)),
        DType::I8 => Some((i8::MIN as f64, i8::MAX as f64)),
        DType::U8 => Some((u8::MIN as f64, u8::MAX as f64)),
        _ => None,
    };
    let v = limits.map_or(v, |(least, most)| v.clamp(least, most));
    Ok(match (ty.compute(), v) {
        (DType::I64, f64::NEG_INFINITY) => "-0x7fffffffffffffffLL - 1".into(),
        (DType::I64, f64::INFINITY) => "0x7fffffffffffffffLL".into(),
        _ => literal(v, ty)?.text,
    })
}

/// The term in the words of a `.hyp` file, for comments; long ones are cut. `leaf` names the leaves
/// that should not be called `acc` and `in0`.
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
