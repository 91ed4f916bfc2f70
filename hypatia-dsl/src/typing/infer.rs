//! Type inference for applications.
//!
//! In: an op or scalar, attribute values, operand types. Out: result types, or an error that says
//! what was expected and what was found. For defined ops the declared types decide; for builtin ops
//! the functions in `builtin`.

use crate::ast::BinaryOp;
use crate::builtin::BuiltinScalar;
use crate::dtype::{DType, Kind};
use crate::ir::{
    AExpr, AFn, AttrValue, DTypePat, DimPat, Fact, OpBody, OpDef, OpId, Param, ParamKind, Program, RestPat, ScalarBody,
    ScalarId, TypePat, Var, VarId,
};
use crate::scalar::{Term, TermNode};
use crate::shape::{self, Dim, Shape, show_shape};

use super::call::{Call, stored};
use super::eval::{as_dims, eval_guard};
use super::show::{BROADCAST_HINT, one_of};
use super::{
    Bindings, Facts, Mismatch, TensorType, TypeError, builtin, codes, eval, match_type_or_why, normalise_attrs,
    show_expr, show_type_pat, show_value,
};

/// Result types of an op. `attrs` has one entry for each attribute (defaults filled in). `operands`
/// has one entry for each tensor operand in order: absent optional operands are `None`, and
/// variadic operands come last. A term operand has no entry; operands of the term may follow. For
/// defined ops the declared types decide (they were checked against the body); for builtins the
/// built-in shape function.
pub fn apply_op(
    program: &Program,
    op: OpId,
    attrs: &[AttrValue],
    operands: &[Option<TensorType>],
) -> Result<Vec<TensorType>, TypeError> {
    let def = program.op(op);
    let ranges = assign(def, operands)?;
    let rank = operands.iter().flatten().next().map(|t| t.shape.len());
    let given: Vec<Option<AttrValue>> = attrs.iter().cloned().map(Some).collect();
    let attrs = normalise_attrs(def, &given, rank)?;
    let results = match def.body {
        OpBody::Builtin(b) => {
            let types: Vec<TensorType> = operands.iter().flatten().cloned().collect();
            builtin::apply(&Call { name: &def.name, params: &def.params, attrs: &attrs, operands: &types }, b)?
        }
        OpBody::Defined(_) => defined(def, &attrs, operands, &ranges)?,
    };
    for result in &results {
        if let Some(d) = result.shape.iter().find(|d| d.known_le(&Dim::from(-1)) == Some(true)) {
            let message = format!("{}: the result would be {result}, but a size cannot be {d}", def.name);
            return Err(TypeError::new(codes::RESULT, message));
        }
    }
    Ok(results)
}

/// For each tensor parameter, its index in `params` and the range of its operands.
type OperandRanges<'a> = Vec<(usize, &'a Param, std::ops::Range<usize>)>;

/// Assigns operands to parameters.
fn assign<'a>(def: &'a OpDef, operands: &[Option<TensorType>]) -> Result<OperandRanges<'a>, TypeError> {
    let has_term = def.params.iter().any(|p| p.kind == ParamKind::Term);
    let mut ranges: OperandRanges = Vec::new();
    let mut next = 0;
    let (mut fewest, mut any_number) = (0, has_term);
    for (i, param) in def.params.iter().enumerate() {
        let ParamKind::Tensor { optional, variadic, .. } = param.kind else { continue };
        let end = if variadic { operands.len().max(next) } else { next + 1 };
        any_number |= variadic;
        fewest += (!variadic && !optional) as usize;
        for k in next..end {
            if operands.get(k).is_none_or(Option::is_none) && !optional {
                return Err(wrong_count(def, operands, fewest, any_number));
            }
        }
        ranges.push((i, param, next..end.min(operands.len()).max(next)));
        next = end;
    }
    if operands.len() > next && !has_term {
        return Err(wrong_count(def, operands, fewest, any_number));
    }
    Ok(ranges)
}

fn wrong_count(def: &OpDef, operands: &[Option<TensorType>], fewest: usize, any_number: bool) -> TypeError {
    let names: Vec<String> = def
        .params
        .iter()
        .filter_map(|p| match p.kind {
            ParamKind::Tensor { variadic: true, .. } => Some(format!("*{}", p.name)),
            ParamKind::Tensor { optional: true, .. } => Some(format!("{}?", p.name)),
            ParamKind::Tensor { .. } => Some(p.name.clone()),
            _ => None,
        })
        .collect();
    let given = operands.iter().flatten().count();
    if given == operands.len() || any_number {
        let takes = if names.is_empty() { "no tensor".to_string() } else { format!("({})", names.join(", ")) };
        let plural = if given == 1 { "is" } else { "are" };
        let message = format!("{}: takes {takes}, but {given} operands {plural} given", def.name);
        return TypeError::new(codes::OPERANDS, message);
    }
    let missing = operands.iter().position(Option::is_none).unwrap_or(fewest);
    let name = names.get(missing).map_or("?", String::as_str);
    TypeError::new(codes::OPERANDS, format!("{}: operand `{name}` is absent, but it is required", def.name))
        .about(missing)
}

/// Facts that follow from the operands' types.
struct OperandFacts<'a> {
    operands: &'a [Option<TensorType>],
    ranges: &'a OperandRanges<'a>,
}

impl OperandFacts<'_> {
    fn range_of(&self, var: VarId) -> Option<&std::ops::Range<usize>> {
        self.ranges.iter().find(|(i, ..)| *i == var.index()).map(|(_, _, range)| range)
    }
}

impl Facts for OperandFacts<'_> {
    fn fact(&self, fact: Fact, var: VarId) -> Option<AttrValue> {
        let range = self.range_of(var)?;
        if fact == Fact::Count {
            return Some(AttrValue::Dim(Dim::from(range.len() as i64)));
        }
        if fact == Fact::Shapes {
            let types = self.operands.get(range.clone())?.iter();
            let shapes = types.map(|t| type_fact(Fact::Shape, t.as_ref()?)).collect::<Option<Vec<_>>>()?;
            return Some(AttrValue::List(shapes));
        }
        let operand = self.operands.get(range.start).and_then(Option::as_ref);
        if fact == Fact::Present {
            return Some(AttrValue::Bool(operand.is_some() && !range.is_empty()));
        }
        type_fact(fact, operand?)
    }
}

/// Facts that a type alone decides: shape, dtype, rank, numel, and that a tensor is present.
pub fn type_fact(fact: Fact, ty: &TensorType) -> Option<AttrValue> {
    match fact {
        Fact::Shape => Some(AttrValue::List(ty.shape.iter().cloned().map(AttrValue::Dim).collect())),
        Fact::DType => Some(AttrValue::DType(ty.dtype)),
        Fact::Rank => Some(AttrValue::Dim(Dim::from(ty.shape.len() as i64))),
        Fact::Numel => shape::product(&ty.shape).map(AttrValue::Dim),
        Fact::Present => Some(AttrValue::Bool(true)),
        Fact::Count => Some(AttrValue::Dim(Dim::from(1))),
        Fact::Shapes | Fact::Uniform => None,
        Fact::Const | Fact::Value | Fact::NonNegative | Fact::Positive | Fact::Finite | Fact::Uses => None,
    }
}

/// Binds an op's variables (attributes, sizes, element types) to these attribute values and
/// operands, and checks its bounds and requirements. The formulas in its body are evaluated with
/// these bindings.
pub fn bind_op(def: &OpDef, attrs: &[AttrValue], operands: &[Option<TensorType>]) -> Result<Bindings, TypeError> {
    bind(def, attrs, operands, &assign(def, operands)?)
}

fn defined(
    def: &OpDef,
    attrs: &[AttrValue],
    operands: &[Option<TensorType>],
    ranges: &OperandRanges,
) -> Result<Vec<TensorType>, TypeError> {
    let bindings = bind(def, attrs, operands, ranges)?;
    let facts = OperandFacts { operands, ranges };
    def.results.iter().map(|pat| result_type(def, pat, &bindings, &facts)).collect()
}

fn bind(
    def: &OpDef,
    attrs: &[AttrValue],
    operands: &[Option<TensorType>],
    ranges: &OperandRanges,
) -> Result<Bindings, TypeError> {
    let mut bindings = Bindings::default();
    bindings.values.extend(def.attrs().zip(attrs).map(|((i, _), value)| (VarId(i as u32), value.clone())));
    let mut unsure: Vec<(usize, &Param)> = Vec::new();
    for (_, param, range) in ranges {
        for k in range.clone() {
            if let Some(Some(ty)) = operands.get(k) {
                match match_operand(param, ty, &mut bindings) {
                    Ok(()) => {}
                    Err(why) if why.is_certain() => return Err(operand_error(def, param, k, ty, &why, &bindings)),
                    // A later operand may bind a variable that this operand's formula needs.
                    Err(_) => unsure.push((k, param)),
                }
            }
        }
    }
    for (k, param) in unsure {
        if let Some(Some(ty)) = operands.get(k)
            && let Err(why) = match_operand(param, ty, &mut bindings)
        {
            return Err(operand_error(def, param, k, ty, &why, &bindings));
        }
    }
    check_bounds(def, &bindings)?;
    let facts = OperandFacts { operands, ranges };
    check_requires(def, &bindings, &facts)?;
    Ok(bindings)
}

fn match_operand(param: &Param, ty: &TensorType, bindings: &mut Bindings) -> Result<(), Mismatch> {
    let ParamKind::Tensor { ty: pat, .. } = &param.kind else { return Ok(()) };
    let mut trial = bindings.clone();
    let outcome = match_type_or_why(pat, ty, &mut trial);
    if outcome.is_ok() {
        *bindings = trial;
    }
    outcome
}

/// The error for an operand that does not match its parameter's type.
fn operand_error(
    def: &OpDef,
    param: &Param,
    operand: usize,
    ty: &TensorType,
    why: &Mismatch,
    known: &Bindings,
) -> TypeError {
    let ParamKind::Tensor { ty: pat, .. } = &param.kind else {
        return TypeError::new(codes::OPERANDS, format!("{}: `{}` is not a tensor", def.name, param.name));
    };
    let (op, name) = (&def.name, &param.name);
    let expected = format!("{}{}", show_type_pat(&def.vars, pat), legend(&def.vars, pat, known));
    let maybe = |certain: bool| if certain { "is" } else { "may be" };
    let (code, why) = match why {
        Mismatch::Rank => (
            codes::RANK,
            match ty.shape.len() {
                1 => "it has 1 axis".to_string(),
                n => format!("it has {n} axes"),
            },
        ),
        Mismatch::DType(Some(d)) => (codes::DTYPE, format!("its elements are {}, not {d}", ty.dtype)),
        Mismatch::DType(None) => (codes::DTYPE, format!("its elements are {}", ty.dtype)),
        Mismatch::Size { axis, wanted: Some(w), certain } => {
            (codes::SIZE, format!("axis {axis} {} {}, not {w}", maybe(*certain), ty.shape[*axis]))
        }
        Mismatch::Size { axis, wanted: None, certain } => {
            let cannot = if *certain { "cannot be" } else { "cannot be shown to be" };
            (codes::SIZE, format!("axis {axis} = {} {cannot} of that form", ty.shape[*axis]))
        }
        Mismatch::Rest { wanted: Some(w), certain } => {
            let differ = if *certain { "differ" } else { "may differ" };
            (codes::SIZE, format!("the sizes {differ} from {}", show_shape(w)))
        }
        Mismatch::Rest { wanted: None, .. } => (codes::SIZE, "its sizes cannot be compared".to_string()),
    };
    let error = TypeError::new(code, format!("{op}: `{name}` must be {expected}, but is {ty}: {why}")).about(operand);
    if code == codes::DTYPE {
        error.hint("convert one operand with `cast`: there is no implicit promotion")
    } else {
        error
    }
}

/// ` with k = 256, T = f32`: the bindings of the pattern's variables.
fn legend(vars: &[Var], pat: &TypePat, known: &Bindings) -> String {
    let mut used: Vec<VarId> = Vec::new();
    if let DTypePat::Var(v) = pat.dtype {
        used.push(v);
    }
    if let Some(RestPat::Var(v)) = pat.rest {
        used.push(v);
    }
    for dim in pat.prefix.iter().chain(&pat.suffix) {
        match dim {
            DimPat::Var(v) => used.push(*v),
            DimPat::Expr(e) => expr_vars(e, &mut used),
            DimPat::Any => {}
        }
    }
    let mut parts: Vec<String> = Vec::new();
    for v in used {
        if let (Some(value), Some(var)) = (known.values.get(&v), vars.get(v.index())) {
            let part = format!("{} = {}", var.name, show_value(value));
            if !parts.contains(&part) {
                parts.push(part);
            }
        }
    }
    if parts.is_empty() { String::new() } else { format!(" with {}", parts.join(", ")) }
}

fn expr_vars(expr: &AExpr, out: &mut Vec<VarId>) {
    match expr {
        AExpr::Var(v) => out.push(*v),
        AExpr::List(items) | AExpr::Call(_, items) => items.iter().for_each(|e| expr_vars(e, out)),
        AExpr::Neg(a) | AExpr::Not(a) | AExpr::Spread(a) => expr_vars(a, out),
        AExpr::Binary(_, a, b) | AExpr::Index(a, b) => [a, b].into_iter().for_each(|e| expr_vars(e, out)),
        AExpr::If(a, b, c) => [a, b, c].into_iter().for_each(|e| expr_vars(e, out)),
        AExpr::Comprehension { over, .. } => expr_vars(over, out),
        AExpr::Value(_) | AExpr::Fact(..) | AExpr::SameAccumulator(..) | AExpr::Device(_) => {}
    }
}

fn check_bounds(def: &OpDef, bindings: &Bindings) -> Result<(), TypeError> {
    for (var, allowed) in &def.bounds {
        if let Some(AttrValue::DType(d)) = bindings.values.get(var)
            && !allowed.contains(d)
        {
            let name = def.vars.get(var.index()).map_or("?", |v| v.name.as_str());
            let message = format!("{}: the element type {name} must be {}, but is {d}", def.name, one_of(allowed));
            return Err(TypeError::new(codes::DTYPE, message).hint("convert the operand with `cast`"));
        }
    }
    Ok(())
}

fn check_requires(def: &OpDef, bindings: &Bindings, facts: &dyn Facts) -> Result<(), TypeError> {
    for guard in &def.requires {
        let shown = || show_expr(&def.vars, guard);
        match eval_guard(guard, bindings, facts) {
            Some(true) => {}
            Some(false) => {
                let message = format!("{}: requires {}, which is false", def.name, shown());
                let hint = format!("pass operands to `{}` for which it is true, or change its `requires`", def.name);
                return Err(TypeError::new(codes::REQUIRES, message).hint(hint));
            }
            // Guards that types cannot decide (constness, values) are checked where those facts are
            // known.
            None if asks_for_values(guard) => {}
            None => {
                let message = format!("{}: requires {}, which cannot be shown for these sizes", def.name, shown());
                let hint =
                    "a guard must hold for every value of a symbolic size: repeat the `requires` where the op is used";
                return Err(TypeError::new(codes::REQUIRES, message).hint(hint));
            }
        }
    }
    Ok(())
}

/// True if an expression uses a fact that does not follow from types.
fn asks_for_values(expr: &AExpr) -> bool {
    match expr {
        AExpr::Fact(f, _) => !matches!(
            f,
            Fact::Shape | Fact::Shapes | Fact::DType | Fact::Rank | Fact::Present | Fact::Numel | Fact::Count
        ),
        AExpr::SameAccumulator(..) | AExpr::Device(_) => true,
        AExpr::Value(_) | AExpr::Var(_) => false,
        AExpr::List(items) | AExpr::Call(_, items) => items.iter().any(asks_for_values),
        AExpr::Neg(a) | AExpr::Not(a) | AExpr::Spread(a) => asks_for_values(a),
        AExpr::Binary(_, a, b) | AExpr::Index(a, b) => asks_for_values(a) || asks_for_values(b),
        AExpr::If(a, b, c) => asks_for_values(a) || asks_for_values(b) || asks_for_values(c),
        AExpr::Comprehension { element, over, condition, .. } => {
            asks_for_values(element) || asks_for_values(over) || condition.as_deref().is_some_and(asks_for_values)
        }
    }
}

fn result_type(def: &OpDef, pat: &TypePat, bindings: &Bindings, facts: &dyn Facts) -> Result<TensorType, TypeError> {
    let unknown = |what: String| {
        let shown = show_type_pat(&def.vars, pat);
        let message = format!("{}: {what} of the result {shown} cannot be computed", def.name);
        TypeError::new(codes::RESULT, message)
            .hint("use it in the type of an operand or of an attribute of the op, so that each call determines it")
    };
    let dtype = match &pat.dtype {
        DTypePat::Is(d) => Some(*d),
        DTypePat::Any => None,
        DTypePat::Var(v) => as_dtype(bindings.values.get(v).cloned()),
        DTypePat::Expr(e) => as_dtype(eval(e, bindings, facts)),
    };
    let dtype = dtype.ok_or_else(|| unknown("the element type".into()))?;
    let dim = |d: &DimPat| {
        let value = match d {
            DimPat::Any => None,
            DimPat::Var(v) => bindings.values.get(v).cloned(),
            DimPat::Expr(e) => eval(e, bindings, facts),
        };
        match (value, d) {
            (Some(AttrValue::Dim(d)), _) => Ok(d),
            (_, DimPat::Expr(e)) => {
                Err(no_quotient(def, pat, e, &|e| eval(e, bindings, facts)).unwrap_or_else(|| unknown("a size".into())))
            }
            _ => Err(unknown("a size".into())),
        }
    };
    let mut shape: Shape = pat.prefix.iter().map(dim).collect::<Result<_, _>>()?;
    if let Some(rest) = &pat.rest {
        let value = match rest {
            RestPat::Any => None,
            RestPat::Var(v) => bindings.values.get(v).cloned(),
            RestPat::Expr(e) => eval(e, bindings, facts),
        };
        match value {
            Some(AttrValue::List(items)) => shape.extend(as_dims(&items).ok_or_else(|| unknown("a size".into()))?),
            _ => return Err(no_broadcast(def, rest, bindings).unwrap_or_else(|| unknown("the shape".into()))),
        }
    }
    for d in &pat.suffix {
        shape.push(dim(d)?);
    }
    Ok(TensorType { dtype, shape })
}

fn as_dtype(value: Option<AttrValue>) -> Option<DType> {
    match value {
        Some(AttrValue::DType(d)) => Some(d),
        _ => None,
    }
}

/// The error for a size `n / 2` where that is no integer.
fn no_quotient(
    def: &OpDef,
    pat: &TypePat,
    size: &AExpr,
    value: &dyn Fn(&AExpr) -> Option<AttrValue>,
) -> Option<TypeError> {
    let AExpr::Binary(op, a, b) = size else { return None };
    let number = |e: &AExpr| match value(e)? {
        AttrValue::Dim(d) => d.as_const(),
        _ => None,
    };
    if let (BinaryOp::Div, Some(x), Some(y)) = (op, number(a), number(b))
        && y != 0
        && x % y != 0
    {
        let of = |op| show_expr(&def.vars, &AExpr::Binary(op, a.clone(), b.clone()));
        let (shown, rest, quotient) = (show_type_pat(&def.vars, pat), of(BinaryOp::Rem), of(BinaryOp::Div));
        let message = format!("{}: a size of the result {shown} is no integer: {x} / {y}", def.name);
        let hint = format!("the op can say what it takes: `requires {rest} == 0`; or it rounds: `floor({quotient})`");
        return Some(TypeError::new(codes::RESULT, message).hint(hint));
    }
    no_quotient(def, pat, a, value).or_else(|| no_quotient(def, pat, b, value))
}

/// The error for `..broadcast(s, t)` where the shapes do not broadcast.
fn no_broadcast(def: &OpDef, rest: &RestPat, bindings: &Bindings) -> Option<TypeError> {
    let RestPat::Expr(AExpr::Call(AFn::Broadcast, args)) = rest else { return None };
    let shapes: Vec<String> =
        args.iter().filter_map(|a| eval(a, bindings, &super::NoFacts)).map(|v| show_value(&v)).collect();
    let message = format!("{}: the shapes {} do not broadcast", def.name, shapes.join(" and "));
    Some(TypeError::new(codes::BROADCAST, message).hint(BROADCAST_HINT))
}

/// The result type of a scalar on tensors: numpy broadcasting, one dtype for all numbers.
pub fn apply_scalar(program: &Program, scalar: ScalarId, operands: &[TensorType]) -> Result<TensorType, TypeError> {
    let def = program.scalar(scalar);
    if def.params.len() != operands.len() {
        let message = format!("{}: takes {} operands, but {} are given", def.name, def.params.len(), operands.len());
        return Err(TypeError::new(codes::OPERANDS, message));
    }
    let mut number: Option<(usize, DType)> = None;
    for (i, ((name, kind), ty)) in def.params.iter().zip(operands).enumerate() {
        if ty.dtype.kind() != *kind {
            let wanted = if *kind == Kind::Bool { "bool" } else { "a number" };
            let message = format!("{}: operand `{name}` must be {wanted}, but is {ty}", def.name);
            return Err(TypeError::new(codes::DTYPE, message).about(i));
        }
        if ty.dtype.only_stored() {
            return Err(stored(&def.name, name, ty).about(i));
        }
        if *kind == Kind::Number {
            match number {
                Some((first, d)) if d != ty.dtype => {
                    let message = format!(
                        "{}: all numbers must have the same element type, but `{}` is {} and `{name}` is {ty}",
                        def.name, def.params[first].0, operands[first]
                    );
                    return Err(TypeError::new(codes::DTYPE, message)
                        .about(i)
                        .hint("convert one operand with `cast`: there is no implicit promotion"));
                }
                Some(_) => {}
                None => number = Some((i, ty.dtype)),
            }
        }
    }
    if let Some((i, d)) = number
        && d.is_int()
        && needs_float(program, scalar, 0)
    {
        let message = format!("{}: needs a float element type, but `{}` is {}", def.name, def.params[i].0, operands[i]);
        let hint = "convert the operand with `cast`, or bound its type variable: `<T: float>`";
        return Err(TypeError::new(codes::DTYPE, message).about(i).hint(hint));
    }
    let dtype = match (def.result, number) {
        (Kind::Bool, _) => DType::Bool,
        (Kind::Number, Some((_, d))) => d,
        (Kind::Number, None) => {
            let message = format!("{}: returns a number, but no operand determines its element type", def.name);
            return Err(TypeError::new(codes::RESULT, message));
        }
    };
    let mut shape: Shape = Vec::new();
    for (i, ty) in operands.iter().enumerate() {
        shape = match shape::broadcast(&shape, &ty.shape) {
            Some(s) => s,
            None => {
                let all: Vec<String> = operands.iter().map(|t| show_shape(&t.shape)).collect();
                let message = format!("{}: the shapes {} do not broadcast", def.name, all.join(" and "));
                return Err(TypeError::new(codes::BROADCAST, message).about(i).hint(BROADCAST_HINT));
            }
        };
    }
    Ok(TensorType { dtype, shape })
}

/// Maximum length of a call chain of scalars.
const MAX_CALLS: u32 = 64;

/// True if a scalar is undefined on integers: it uses a float-only function or a non-integer
/// number.
fn needs_float(program: &Program, scalar: ScalarId, depth: u32) -> bool {
    match &program.scalar(scalar).body {
        ScalarBody::Builtin(b) => b.float_only() || matches!(b, BuiltinScalar::IsNan | BuiltinScalar::IsInf),
        ScalarBody::Term(term) => depth < MAX_CALLS && term_needs_float(program, term, depth),
    }
}

fn term_needs_float(program: &Program, term: &Term, depth: u32) -> bool {
    let mut seen: Vec<ScalarId> = Vec::new();
    term.nodes.iter().any(|node| match node {
        TermNode::Lit(v) => v.0.fract() != 0.0,
        TermNode::Call { scalar, .. } if !seen.contains(scalar) => {
            seen.push(*scalar);
            needs_float(program, *scalar, depth + 1)
        }
        _ => false,
    })
}
