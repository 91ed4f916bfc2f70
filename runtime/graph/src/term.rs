//! Epilogue terms as parts of graph nodes: legality and text.
//!
//! In: a term, the shape of the result it computes, the types of the tensors it reads. Out: what is
//! wrong with it, or its text in the language's syntax. Invariant (for a checked term): arguments
//! come before users, kinds agree, and each operand is read as its view allows.

use hypatia_dsl::builtin::{BuiltinScalar, SECOND};
use hypatia_dsl::dtype::{DType, Kind};
use hypatia_dsl::ir::{InView, Program, ScalarBody, ScalarId};
use hypatia_dsl::scalar::typed::{SUMS_OF_BYTES, inlined, not_stored};
use hypatia_dsl::scalar::{Term, TermId, TermNode};
use hypatia_dsl::shape::{Dim, broadcast, show_shape};
use hypatia_dsl::typing::{TensorType, TypeError, codes};
use hypatia_tensor::error::TypeFault;

/// What is wrong with a term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TermFault {
    /// An operand cannot be read for a result of that shape.
    View(String),
    /// The term of a product of bytes does not give what is stored.
    Stored(String),
    /// The term itself is none.
    Malformed(String),
}

impl TermFault {
    /// The error about a term of that op.
    pub fn at(&self, op: &str) -> TypeFault {
        match self {
            TermFault::View(m) => TypeError::new(codes::SIZE, format!("`{op}`: {m}")).into(),
            TermFault::Stored(m) => TypeError::new(codes::BYTES, format!("`{op}`: {m}")).into(),
            TermFault::Malformed(m) => format!("`{op}`: {m}").into(),
        }
    }
}

impl From<String> for TermFault {
    fn from(message: String) -> TermFault {
        TermFault::Malformed(message)
    }
}

impl From<&str> for TermFault {
    fn from(message: &str) -> TermFault {
        TermFault::Malformed(message.to_string())
    }
}

/// Checks a term that computes elements of a tensor of that shape, if it is known, from `acc`, from
/// the second accumulator of a pair of products, and from these operands.
pub fn check_term(
    program: &Program,
    term: &Term,
    pair: bool,
    shape: Option<&[Dim]>,
    reads: &[TensorType],
) -> Result<(), TermFault> {
    let mut kinds: Vec<Kind> = Vec::with_capacity(term.nodes.len());
    for (i, node) in term.nodes.iter().enumerate() {
        let kind_of = |id: &TermId, kinds: &[Kind]| {
            kinds.get(id.0 as usize).copied().ok_or_else(|| format!("term node {i} reads a later one"))
        };
        kinds.push(match node {
            TermNode::Param(_) => return Err("an epilogue has no parameters".into()),
            TermNode::Second if !pair => {
                return Err(format!("the term reads `{SECOND}`, but there is one product, not two").into());
            }
            TermNode::Acc | TermNode::Second | TermNode::Lit(_) => Kind::Number,
            TermNode::In { input, view } => {
                let ty = reads
                    .get(*input as usize)
                    .ok_or_else(|| format!("the term reads operand {input} of {}", reads.len()))?;
                shape.map_or(Ok(()), |shape| check_view(*view, ty, shape)).map_err(TermFault::View)?;
                ty.dtype.kind()
            }
            TermNode::Call { scalar, args } => {
                let def = program.scalars.get(scalar.index()).ok_or("the term calls an unknown scalar")?;
                if def.params.len() != args.len() {
                    return Err(
                        format!("`{}` takes {} arguments, not {}", def.name, def.params.len(), args.len()).into()
                    );
                }
                for (arg, (name, kind)) in args.iter().zip(&def.params) {
                    if kind_of(arg, &kinds)? != *kind {
                        let wanted = if *kind == Kind::Bool { "a truth value" } else { "a number" };
                        return Err(format!("argument `{name}` of `{}` must be {wanted}", def.name).into());
                    }
                }
                def.result
            }
            TermNode::Cast { to, arg } => {
                kind_of(arg, &kinds)?;
                to.kind()
            }
        });
    }
    match term.roots.as_slice() {
        [root] if (root.0 as usize) < kinds.len() => Ok(()),
        [_] => Err("the term's result is not one of its nodes".into()),
        roots => Err(format!("an epilogue has one result, not {}", roots.len()).into()),
    }
}

/// Checks that a term over products of bytes gives what is stored: their sums are i32, and nothing
/// is converted without a cast. `reads` are the element types of its operands, `to` is the
/// result's.
pub fn check_stored(program: &Program, term: &Term, reads: &[DType], to: DType) -> Result<(), TermFault> {
    let acc = DType::I32;
    let term = term.reading_second(reads.len() as u32);
    let reads = [reads, &[acc]].concat();
    let typed = inlined(program, &term, Some(acc), &reads);
    let typed = typed.map_err(|e| TermFault::Stored(format!("{SUMS_OF_BYTES}, and the term does not fit: {e}")))?;
    let given = typed.roots.first().and_then(|r| typed.nodes.get(*r as usize)).map(|node| node.ty);
    not_stored(given, to).map_or(Ok(()), |why| Err(TermFault::Stored(format!("{why}: write `cast(.., to = {to})`"))))
}

/// Checks that an operand of that type may be read through that view for a result of that shape.
pub fn check_view(view: InView, ty: &TensorType, shape: &[Dim]) -> Result<(), String> {
    let fits = |s: &[Dim]| broadcast(s, shape).is_some_and(|b| b == shape);
    let ok = match view {
        InView::Broadcast => fits(&ty.shape),
        InView::Full => ty.shape == shape,
        InView::Row => ty.shape.len() == 1 && shape.last() == ty.shape.last(),
        InView::Col => {
            // `col(v)` has one value per row: v broadcasts with a trailing axis of size 1.
            let wide: Vec<Dim> = ty.shape.iter().cloned().chain([Dim::from(1)]).collect();
            !ty.shape.is_empty() && fits(&wide)
        }
    };
    if ok {
        return Ok(());
    }
    Err(format!("an epilogue operand {ty} cannot be read as `{}` of a result {}", view_name(view), show_shape(shape)))
}

/// The keyword of a view.
pub(super) fn view_name(view: InView) -> &'static str {
    match view {
        InView::Broadcast => "in",
        InView::Row => "row",
        InView::Col => "col",
        InView::Full => "full",
    }
}

/// Length at which the text of a term is cut. A term is a DAG and its text is a tree, so the text
/// can be much longer.
const MAX_TEXT: usize = 2000;

/// The term in the language's syntax; `operand(i)` names the tensor that input `i` reads.
pub fn show_term(program: &Program, term: &Term, operand: &dyn Fn(u32) -> String) -> String {
    // Texts of the nodes in order, each with its precedence (higher binds tighter).
    let mut texts: Vec<(String, u8)> = Vec::with_capacity(term.nodes.len());
    for node in &term.nodes {
        let (mut text, level) = show_node(program, node, operand, &texts);
        if text.len() > MAX_TEXT {
            text = "(…)".into();
        }
        texts.push((text, level));
    }
    let roots: Vec<&str> = term.roots.iter().map(|r| texts.get(r.0 as usize).map_or("?", |t| t.0.as_str())).collect();
    roots.join(", ")
}

const ATOM: u8 = 9;

fn show_node(
    program: &Program,
    node: &TermNode,
    operand: &dyn Fn(u32) -> String,
    texts: &[(String, u8)],
) -> (String, u8) {
    let arg = |id: &TermId| texts.get(id.0 as usize).cloned().unwrap_or_else(|| ("?".into(), ATOM));
    match node {
        TermNode::Param(i) => (format!("${i}"), ATOM),
        TermNode::Acc => ("acc".into(), ATOM),
        TermNode::Second => (SECOND.into(), ATOM),
        TermNode::In { input, view } => (format!("{}({})", view_name(*view), operand(*input)), ATOM),
        TermNode::Lit(v) => (show_number(v.0), if v.0.is_sign_negative() { 7 } else { ATOM }),
        TermNode::Cast { to, arg: a } => (format!("cast<{to}>({})", arg(a).0), ATOM),
        TermNode::Call { scalar, args } => show_call(program, *scalar, args.iter().map(arg).collect()),
    }
}

fn show_call(program: &Program, scalar: ScalarId, args: Vec<(String, u8)>) -> (String, u8) {
    let Some(def) = program.scalars.get(scalar.index()) else {
        return ("?".into(), ATOM);
    };
    let infix = match &def.body {
        ScalarBody::Builtin(BuiltinScalar::Add) => Some((" + ", 5)),
        ScalarBody::Builtin(BuiltinScalar::Sub) => Some((" - ", 5)),
        ScalarBody::Builtin(BuiltinScalar::Mul) => Some((" * ", 6)),
        ScalarBody::Builtin(BuiltinScalar::Div) => Some((" / ", 6)),
        _ => None,
    };
    let paren =
        |(text, level): &(String, u8), least: u8| if *level < least { format!("({text})") } else { text.clone() };
    match (infix, args.as_slice()) {
        (Some((sign, level)), [a, b]) => (format!("{}{sign}{}", paren(a, level), paren(b, level + 1)), level),
        _ => {
            let args: Vec<String> = args.into_iter().map(|a| a.0).collect();
            (format!("{}({})", def.name, args.join(", ")), ATOM)
        }
    }
}

/// A number that parses back to the same f64: `2`, `0.5`, `1e-5`, `inf`, `nan`.
pub fn show_number(v: f64) -> String {
    if v.is_nan() {
        "nan".into()
    } else if v.is_infinite() {
        if v > 0.0 { "inf".into() } else { "-inf".into() }
    } else if v == v.trunc() && v.abs() < 1e15 && !(v == 0.0 && v.is_sign_negative()) {
        format!("{v:.0}")
    } else if v != 0.0 && !(1e-4..1e15).contains(&v.abs()) {
        format!("{v:e}")
    } else {
        format!("{v:?}")
    }
}
