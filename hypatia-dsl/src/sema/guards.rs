//! Attribute expressions: guards, `let`s, attribute values, dimensions and cost formulas.
//!
//! In: an expression and the place where it occurs. Out: an [`AExpr`] over the variables of the
//! declaration. Invariant: facts that may change as the e-graph grows are allowed in `prefer` only,
//! device facts in kernels only.

use crate::ast::{BinaryOp, Expr, ExprKind, Name, Path, UnaryOp};
use crate::diag::Diagnostic;
use crate::dtype::DType;
use crate::ir::{AExpr, AFn, AttrType, AttrValue, DeviceFact, Fact, Sort, VarId};
use crate::shape::Dim;
use crate::source::Span;
use crate::spell::closest;

use super::code;
use super::context::{AttrContext, Cx, Definition};
use super::types::single;

const SAME_ACCUMULATOR: &str = "same_accumulator";
const DIM: &str = "dim";

impl<'a> Cx<'a> {
    /// An attribute expression.
    pub(super) fn aexpr(&mut self, e: &'a Expr) -> Option<AExpr> {
        self.enter(e.span)?;
        let r = self.aexpr_inner(e);
        self.leave();
        r
    }

    fn aexpr_inner(&mut self, e: &'a Expr) -> Option<AExpr> {
        match &e.kind {
            ExprKind::Number { value, integer } => Some(AExpr::Value(number(*value, *integer))),
            ExprKind::Str(s) => Some(AExpr::Value(AttrValue::Str(s.clone()))),
            ExprKind::Bool(b) => Some(AExpr::Value(AttrValue::Bool(*b))),
            ExprKind::Path(p) => self.aexpr_path(p),
            ExprKind::Call { callee, optional: false, types, args } if types.is_empty() => {
                let named = args.iter().find_map(|a| a.name.as_ref());
                if let Some(name) = named {
                    let span = name.span;
                    return self.error(code::ARGUMENT_NAME, "attribute functions take no named arguments", span);
                }
                let values: Vec<&'a Expr> = args.iter().map(|a| &a.value).collect();
                self.aexpr_call(e.span, callee, &values)
            }
            ExprKind::List(items) | ExprKind::Set(items) => self.aexpr_list(items),
            ExprKind::Spread(Some(inner)) => Some(AExpr::Spread(Box::new(self.aexpr(inner)?))),
            ExprKind::Index(list, i) => {
                let (list, i) = (self.aexpr(list), self.aexpr(i));
                Some(AExpr::Index(Box::new(list?), Box::new(i?)))
            }
            ExprKind::Comprehension { element, name, over, condition } => {
                self.aexpr_comprehension(element, name, over, condition.as_deref())
            }
            ExprKind::Unary(UnaryOp::Neg, a) => Some(match self.aexpr(a)? {
                AExpr::Value(AttrValue::Float(v)) => AExpr::Value(AttrValue::Float(-v)),
                AExpr::Value(AttrValue::Dim(d)) if d.as_const().is_some_and(|c| c != 0) => {
                    AExpr::Value(AttrValue::Dim(Dim::from(-d.as_const()?)))
                }
                other => AExpr::Neg(Box::new(other)),
            }),
            ExprKind::Unary(UnaryOp::Not, a) => Some(AExpr::Not(Box::new(self.guard(a)?))),
            ExprKind::Binary(op, a, b) => self.aexpr_binary(*op, a, b, e.span),
            ExprKind::If(c, a, b) => {
                let (c, a, b) = (self.guard(c), self.aexpr(a), self.aexpr(b));
                Some(AExpr::If(Box::new(c?), Box::new(a?), Box::new(b?)))
            }
            _ => self.misplaced(e, "in an expression over attributes"),
        }
    }

    /// `[element for name in over if condition]`. Its variable hides another one of that name.
    fn aexpr_comprehension(
        &mut self,
        element: &'a Expr,
        name: &Name,
        over: &'a Expr,
        condition: Option<&'a Expr>,
    ) -> Option<AExpr> {
        let several = single(over).and_then(|n| match self.definition(&n.node) {
            Some(Definition::Var(v)) if self.sort(*v) == Sort::Tensors => Some(*v),
            _ => None,
        });
        let over = match several {
            Some(v) => AExpr::Fact(Fact::Shapes, v),
            None => self.aexpr(over)?,
        };
        let sort = if several.is_some() { Sort::Shape } else { Sort::Attr };
        let v = self.fresh(name.node.clone(), sort, Some(name.span));
        self.info[v.index()].item = several.is_some();
        self.info[v.index()].kind = self.has_numbers(&over).then_some(AKind::Number);
        let scope = self.scope;
        let hidden = self.scopes[scope].names.insert(name.node.clone(), Definition::Var(v));
        let element = self.aexpr(element);
        let condition = condition.map(|c| self.guard(c));
        match hidden {
            Some(before) => self.scopes[scope].names.insert(name.node.clone(), before),
            None => self.scopes[scope].names.remove(&name.node),
        };
        let condition = match condition {
            Some(c) => Some(Box::new(c?)),
            None => None,
        };
        Some(AExpr::Comprehension { element: Box::new(element?), var: v, over: Box::new(over), condition })
    }

    fn aexpr_list(&mut self, items: &'a [Expr]) -> Option<AExpr> {
        for name in items.iter().filter_map(single) {
            if let Some(Definition::Var(v)) = self.definition(&name.node)
                && self.sort(*v) == Sort::Shape
            {
                return self.several_sizes(&name.node, name.span);
            }
        }
        let items: Vec<Option<AExpr>> = items.iter().map(|i| self.aexpr(i)).collect();
        let items: Vec<AExpr> = items.into_iter().collect::<Option<_>>()?;
        let values: Option<Vec<AttrValue>> =
            items.iter().map(|i| if let AExpr::Value(v) = i { Some(v.clone()) } else { None }).collect();
        Some(match values {
            Some(v) => AExpr::Value(AttrValue::List(v)),
            None => AExpr::List(items),
        })
    }

    fn aexpr_binary(&mut self, op: BinaryOp, a: &'a Expr, b: &'a Expr, span: Span) -> Option<AExpr> {
        use BinaryOp::*;
        let (x, y) = match op {
            And | Or => (self.guard(a), self.guard(b)),
            _ => (self.aexpr(a), self.aexpr(b)),
        };
        let (x, y) = (x?, y?);
        let (kx, ky) = (self.akind(&x), self.akind(&y));
        match op {
            Add | Sub | Mul | Div | Rem | Pow | Lt | Le | Gt | Ge => {
                for (k, e) in [(kx, a), (ky, b)] {
                    // `+` concatenates lists.
                    let fits = matches!(k, AKind::Number | AKind::Unknown) || (op == Add && k == AKind::List);
                    if !fits {
                        let d = Diagnostic::error(
                            code::ATTRIBUTE_TYPE,
                            format!("found {}, expected a number", k.words()),
                            e.span,
                        )
                        .label("expected a number or a size");
                        let compares = matches!(&e.kind, ExprKind::Binary(Lt | Le | Gt | Ge, ..));
                        let d = match compares && matches!(op, Lt | Le | Gt | Ge) {
                            true => d.hint("write two comparisons: `0 < n and n < 4`"),
                            false => d,
                        };
                        return self.report(d);
                    }
                }
            }
            Eq | Ne if !kx.fits(ky) => {
                let d = Diagnostic::error(
                    code::ATTRIBUTE_TYPE,
                    format!("{} is never equal to {}", kx.words(), ky.words()),
                    span,
                )
                .label("these two values cannot be compared");
                let d = match (kx, ky) {
                    (AKind::List, AKind::Number) | (AKind::Number, AKind::List) => {
                        d.hint("compare a list with a list, `shape(x) == [4]`, or one size, `dim(x, 0) == 4`")
                    }
                    _ => d,
                };
                return self.report(d);
            }
            In | NotIn if !matches!(ky, AKind::List | AKind::Unknown) => {
                let d = Diagnostic::error(
                    code::ATTRIBUTE_TYPE,
                    format!("`in` needs a set or a list, but this is {}", ky.words()),
                    b.span,
                )
                .hint("write `a in {x, y}`");
                return self.report(d);
            }
            _ => {}
        }
        if matches!(op, Div | Rem) && matches!(&y, AExpr::Value(AttrValue::Dim(d)) if d.as_const() == Some(0)) {
            let d = Diagnostic::error(code::ZERO_DIVISOR, "this divides by zero", b.span)
                .label("always zero")
                .hint("divide by a size or a number other than 0");
            return self.report(d);
        }
        Some(AExpr::Binary(op, Box::new(x), Box::new(y)))
    }

    /// A guard: a boolean attribute expression.
    pub(super) fn guard(&mut self, e: &'a Expr) -> Option<AExpr> {
        let g = self.aexpr(e)?;
        match self.akind(&g) {
            AKind::Bool | AKind::Unknown => Some(g),
            other => {
                let d = Diagnostic::error(
                    code::NOT_BOOLEAN,
                    format!("a condition must be a boolean, but this is {}", other.words()),
                    e.span,
                )
                .label("not a boolean")
                .hint("compare it with a value: `== 1`, `% 8 == 0`, `in {f16, bf16}`");
                self.report(d)
            }
        }
    }

    fn aexpr_path(&mut self, p: &'a Path) -> Option<AExpr> {
        let [one] = p.parts.as_slice() else {
            return self.error(code::MISPLACED, format!("`{}` is not an attribute or a size", p.text()), p.span);
        };
        let name = one.node.as_str();
        match self.definition(name).cloned() {
            Some(Definition::Var(v)) => match self.sort(v) {
                Sort::Attr | Sort::Shape | Sort::DType => Some(AExpr::Var(v)),
                _ => self.wrong_sort(name, v, Sort::Attr, p.span),
            },
            Some(Definition::Param { expr, scope, .. }) => {
                let here = std::mem::replace(&mut self.scope, scope);
                let r = self.aexpr(expr);
                self.scope = here;
                r
            }
            None => match self.bound_later(one) {
                Some(d) => self.report(d),
                None => self.aexpr_free_name(name, p),
            },
        }
    }

    fn aexpr_free_name(&mut self, name: &str, p: &Path) -> Option<AExpr> {
        if let Some(d) = self.dtype_named(name) {
            return Some(AExpr::Value(AttrValue::DType(d)));
        }
        let device = match name {
            "sm" => Some(DeviceFact::Sm),
            "device" => Some(DeviceFact::Name),
            "tf32" => Some(DeviceFact::Tf32),
            _ => None,
        };
        if let Some(f) = device {
            if self.context == AttrContext::Kernel {
                return Some(AExpr::Device(f));
            }
            let d = Diagnostic::error(
                code::FACT_PLACE,
                format!("`{name}` is a fact about the device, which only kernels can read"),
                p.span,
            )
            .label("not allowed here")
            .hint("move it to the `requires` of the kernel: the meaning of a rule must not depend on the device");
            return self.report(d);
        }
        if DType::known_elsewhere_as(name).is_some() || is_like_element_type(name) {
            return self.no_element_type(name, p.span);
        }
        let scope = &self.scopes[self.scope];
        let near = closest(name, scope.names.keys().map(String::as_str)).map(str::to_string);
        let mut d =
            Diagnostic::error(code::UNBOUND, format!("`{name}` is not bound"), p.span).label("unknown variable");
        let word = ["true", "false", "none"].into_iter().find(|w| name.eq_ignore_ascii_case(w));
        if let Some(word) = word {
            d = d.hint(format!("write `{word}`, in lower case"));
        } else if let Some(s) = near {
            d = d.hint(format!("did you mean `{s}`?"));
        } else if Fact::from_name(name).is_some() {
            d = d.hint(format!("say of which operand: `{name}(x)`"));
        } else if name.starts_with(|c: char| c.is_ascii_uppercase()) && self.context != AttrContext::Test {
            // Element types have capital names.
            d = d.hint(format!("bind an element type in the type of an operand: `x: {name}[..s]`"));
        } else if matches!(
            self.context,
            AttrContext::Requires | AttrContext::Prefer | AttrContext::Let | AttrContext::Right
        ) {
            d = d.hint(format!("bind a size on the left side with a type: `x: T[..s, {name}]`"));
        } else if self.context == AttrContext::Test {
            d = d.hint("a test has no size variables: write a number, or read the size of an input, `dim(x, 0)`");
        } else {
            d = d.hint(format!("bind sizes and shapes in the types of the operands: `x: T[..s, {name}]`"));
        }
        self.report(d)
    }

    fn aexpr_call(&mut self, span: Span, callee: &'a Path, args: &[&'a Expr]) -> Option<AExpr> {
        let name = callee.text();
        if name == SAME_ACCUMULATOR {
            let [t, a, b] = args else { return self.wrong_count(&name, span, 3, 3, args.len()) };
            if self.context != AttrContext::Prefer {
                return self.misplaced_fact(&name, span);
            }
            let (t, a, b) = (self.tensor_arg(&name, t), self.tensor_arg(&name, a), self.tensor_arg(&name, b));
            return Some(AExpr::SameAccumulator(t?, a?, b?));
        }
        if let Some(item) = args.first().and_then(|a| self.item(a)) {
            return self.item_fact(&name, item, args, span);
        }
        if name == DIM {
            let [x, i] = args else { return self.wrong_count(&name, span, 2, 2, args.len()) };
            let (x, i) = (self.tensor_arg(&name, x), self.aexpr(i));
            return Some(AExpr::Index(Box::new(AExpr::Fact(Fact::Shape, x?)), Box::new(i?)));
        }
        if let Some(f) = Fact::from_name(&name) {
            return self.fact_call(f, args, span);
        }
        let Some(f) = AFn::from_name(&name) else { return self.unknown_function(&name, callee.span) };
        let (lo, hi) = counts(f);
        if args.len() < lo || args.len() > hi {
            return self.wrong_count(&name, span, lo, hi, args.len());
        }
        let values: Vec<Option<AExpr>> = args.iter().map(|a| self.aexpr(a)).collect();
        let values = values.into_iter().collect::<Option<Vec<_>>>()?;
        let of_type = matches!(f, AFn::SizeOf | AFn::IsFloat | AFn::FloatMin | AFn::FloatMax);
        if let ([value], [arg], true) = (values.as_slice(), args, of_type) {
            let kind = self.akind(value);
            if kind != AKind::Unknown && kind != AKind::DType {
                return self.no_type_inside(&name, arg);
            }
        }
        Some(AExpr::Call(f, values))
    }

    /// Reports a function of an element type that is called with something else.
    fn no_type_inside<T>(&mut self, name: &str, arg: &Expr) -> Option<T> {
        let message = format!("`{name}` is a function of an element type, and this is none");
        let mut d = Diagnostic::error(code::BAD_TYPE, message, arg.span).label("expected `dtype(x)` or a type's name");
        if name == AFn::SizeOf.name() {
            d = d.hint("a size is a number already: write its name alone; the op of that name is `size(value = n)`");
        }
        self.report(d)
    }

    /// A fact of an operand, such as its rank.
    fn fact_call(&mut self, f: Fact, args: &[&'a Expr], span: Span) -> Option<AExpr> {
        let name = f.name();
        let [x] = args else { return self.wrong_count(name, span, 1, 1, args.len()) };
        if f == Fact::Uses && self.context != AttrContext::Prefer {
            return self.misplaced_fact(name, span);
        }
        let v = match self.term_arg(x) {
            Some(v) if matches!(f, Fact::Shape | Fact::Rank | Fact::Numel) => v,
            _ => self.tensor_arg(name, x)?,
        };
        let of_several = matches!(f, Fact::Count | Fact::Shapes);
        if (self.sort(v) == Sort::Tensors) != of_several {
            let wanted = if of_several { Sort::Tensors } else { Sort::Tensor };
            let shown = self.vars[v.index()].name.clone();
            return self.wrong_sort(&shown, v, wanted, x.span);
        }
        Some(AExpr::Fact(f, v))
    }

    fn unknown_function<T>(&mut self, name: &str, span: Span) -> Option<T> {
        let functions = AFn::ALL.iter().map(|f| f.name());
        let names = functions.chain(Fact::ALL.iter().map(|f| f.name())).chain([DIM, SAME_ACCUMULATOR]);
        let mut d =
            Diagnostic::error(code::UNKNOWN_NAME, format!("there is no fact or attribute function `{name}`"), span)
                .label("not found");
        d = match closest(name, names.clone()) {
            Some(s) => d.hint(format!("did you mean `{s}`?")),
            None => {
                let mut names: Vec<&str> = names.collect();
                names.sort_unstable();
                d.note(format!("the known names are {}", names.join(", "))).hint(
                    "only these compute with sizes, attributes and facts; scalars and ops are functions of tensors",
                )
            }
        };
        self.report(d)
    }

    /// The variable of `[.. for x in xs]` over several operands: it has the sizes of one of them.
    fn item(&self, e: &Expr) -> Option<VarId> {
        match self.definition(&single(e)?.node) {
            Some(Definition::Var(v)) if self.info[v.index()].item => Some(*v),
            _ => None,
        }
    }

    fn item_fact(&mut self, name: &str, item: VarId, args: &[&'a Expr], span: Span) -> Option<AExpr> {
        let sizes = AExpr::Var(item);
        match (name, args) {
            (DIM, [_, i]) => Some(AExpr::Index(Box::new(sizes), Box::new(self.aexpr(i)?))),
            ("shape", [_]) => Some(sizes),
            ("rank", [_]) => Some(AExpr::Call(AFn::Len, vec![sizes])),
            ("numel", [_]) => Some(AExpr::Call(AFn::Prod, vec![sizes])),
            _ => {
                let shown = self.vars[item.index()].name.clone();
                let d = Diagnostic::error(code::SORT, format!("`{name}` cannot be applied to `{shown}`"), span)
                    .label("one of several operands")
                    .hint("for one of several operands, use `shape`, `dim`, `rank` or `numel`");
                self.report(d)
            }
        }
    }

    fn wrong_count<T>(&mut self, name: &str, span: Span, lo: usize, hi: usize, have: usize) -> Option<T> {
        let wanted = if lo == hi { format!("{lo}") } else { format!("{lo} or {hi}") };
        let s = if hi == 1 { "" } else { "s" };
        let d = Diagnostic::error(code::ARITY, format!("`{name}` takes {wanted} argument{s}, not {have}"), span)
            .label(format!("{have} given"));
        self.report(d)
    }

    fn misplaced_fact<T>(&mut self, name: &str, span: Span) -> Option<T> {
        let d = Diagnostic::error(code::FACT_PLACE, format!("`{name}` is allowed in `prefer` only"), span)
            .label("this fact can change")
            .note("rules change how often a value is used: soundness must not depend on it, profit may")
            .hint("move this condition to `prefer`");
        self.report(d)
    }

    /// The variable of sort `Term` that the expression names.
    fn term_arg(&self, e: &Expr) -> Option<VarId> {
        let ExprKind::Path(p) = &e.kind else { return None };
        let [one] = p.parts.as_slice() else { return None };
        match self.definition(&one.node) {
            Some(Definition::Var(v)) if self.sort(*v) == Sort::Term => Some(*v),
            _ => None,
        }
    }

    /// The tensor variable that is the argument of a fact.
    fn tensor_arg(&mut self, what: &str, e: &'a Expr) -> Option<VarId> {
        if let ExprKind::Path(p) = &e.kind
            && let [one] = p.parts.as_slice()
        {
            return match self.definition(&one.node).cloned() {
                Some(Definition::Var(v)) if matches!(self.sort(v), Sort::Tensor | Sort::Tensors) => Some(v),
                Some(Definition::Var(v)) => self.wrong_sort(&one.node, v, Sort::Tensor, e.span),
                Some(Definition::Param { expr, scope, var, .. }) => {
                    if let Some(v) = var {
                        return Some(v);
                    }
                    let here = std::mem::replace(&mut self.scope, scope);
                    let r = self.tensor_arg(what, expr);
                    self.scope = here;
                    r
                }
                None if let Some(d) = self.bound_later(one) => self.report(d),
                None => {
                    let near = closest(&one.node, self.scopes[self.scope].names.keys().map(String::as_str))
                        .map(str::to_string);
                    let mut d = Diagnostic::error(code::UNBOUND, format!("`{}` is not bound", one.node), e.span)
                        .label("unknown variable");
                    d = d.hint(match near {
                        Some(s) => format!("did you mean `{s}`?"),
                        None => format!(
                            "name an operand that is already bound here; the whole left side gets a name with \
                             `{} @ ...`",
                            one.node
                        ),
                    });
                    self.report(d)
                }
            };
        }
        let d = Diagnostic::error(code::SORT, format!("`{what}` needs a variable"), e.span)
            .label("not a variable")
            .hint(format!("bind it on the left side with `y @ ...`, and write `{what}(y)`"));
        self.report(d)
    }

    /// The kind of an attribute expression, as far as it is known without values.
    pub(super) fn akind(&self, e: &AExpr) -> AKind {
        match e {
            AExpr::Value(v) => value_kind(v),
            AExpr::Var(v) => self.kind_of_var(*v),
            AExpr::List(_) | AExpr::Comprehension { .. } => AKind::List,
            AExpr::Index(list, _) if self.has_numbers(list) => AKind::Number,
            AExpr::Spread(_) | AExpr::Index(..) => AKind::Unknown,
            AExpr::Neg(_) => AKind::Number,
            AExpr::Not(_) => AKind::Bool,
            AExpr::Binary(BinaryOp::Add, a, b) => match (self.akind(a), self.akind(b)) {
                (AKind::List, _) | (_, AKind::List) => AKind::List,
                (AKind::Number, _) | (_, AKind::Number) => AKind::Number,
                _ => AKind::Unknown,
            },
            AExpr::Binary(op, ..) => match op {
                BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div | BinaryOp::Rem | BinaryOp::Pow => AKind::Number,
                _ => AKind::Bool,
            },
            AExpr::If(_, a, b) => match self.akind(a) {
                AKind::Unknown => self.akind(b),
                k => k,
            },
            AExpr::Call(f, _) => kind_of_call(*f),
            AExpr::Fact(f, _) => kind_of_fact(*f),
            AExpr::SameAccumulator(..) => AKind::Bool,
            AExpr::Device(DeviceFact::Sm) => AKind::Number,
            AExpr::Device(DeviceFact::Name) => AKind::Str,
            AExpr::Device(DeviceFact::Tf32) => AKind::Bool,
        }
    }

    fn kind_of_var(&self, v: VarId) -> AKind {
        let info = &self.info[v.index()];
        match (self.sort(v), info.kind, info.several) {
            (Sort::Shape, ..) => AKind::List,
            (Sort::DType, ..) => AKind::DType,
            (_, Some(kind), _) => kind,
            (Sort::Attr, None, Some(true)) => AKind::List,
            (Sort::Attr, None, Some(false)) => AKind::Number,
            _ => AKind::Unknown,
        }
    }

    /// True for a list of numbers: all lists but that of the shapes of several operands.
    fn has_numbers(&self, list: &AExpr) -> bool {
        match list {
            AExpr::Fact(f, _) => *f == Fact::Shape,
            AExpr::Var(v) => self.kind_of_var(*v) == AKind::List,
            _ => false,
        }
    }
}

/// The minimum and maximum number of arguments of a function.
fn counts(f: AFn) -> (usize, usize) {
    match f {
        AFn::Min | AFn::Max => (1, 2),
        AFn::Broadcast | AFn::Permute | AFn::IndexOf => (2, 2),
        AFn::Reduce | AFn::Slice => (3, 3),
        _ => (1, 1),
    }
}

/// `1` as a size, `1.0` as a number.
pub(super) fn number(value: f64, integer: bool) -> AttrValue {
    // Up to 2^53 every integer is exact in f64.
    if integer && value.abs() <= 9_007_199_254_740_992.0 {
        AttrValue::Dim(Dim::from(value as i64))
    } else {
        AttrValue::Float(value)
    }
}

/// The coarse type of an attribute expression.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AKind {
    Number,
    Bool,
    DType,
    Str,
    List,
    Unknown,
}

impl AKind {
    pub(super) fn words(self) -> &'static str {
        match self {
            AKind::Number => "a number",
            AKind::Bool => "a boolean",
            AKind::DType => "an element type",
            AKind::Str => "a string",
            AKind::List => "a list",
            AKind::Unknown => "something",
        }
    }

    fn fits(self, other: AKind) -> bool {
        self == other || self == AKind::Unknown || other == AKind::Unknown
    }
}

fn kind_of_call(f: AFn) -> AKind {
    match f {
        AFn::Range
        | AFn::Broadcast
        | AFn::Permute
        | AFn::Reduce
        | AFn::Inverse
        | AFn::Sort
        | AFn::Reverse
        | AFn::Slice => AKind::List,
        AFn::IsPermutation | AFn::IsFloat => AKind::Bool,
        // `min` and `max` of a list give an element, which is a number wherever they apply.
        _ => AKind::Number,
    }
}

fn kind_of_fact(f: Fact) -> AKind {
    match f {
        Fact::Shape | Fact::Shapes => AKind::List,
        Fact::DType => AKind::DType,
        Fact::Rank | Fact::Value | Fact::Uses | Fact::Numel | Fact::Count => AKind::Number,
        Fact::Const | Fact::Uniform | Fact::NonNegative | Fact::Positive | Fact::Finite | Fact::Present => AKind::Bool,
    }
}

/// What an attribute of a type is.
pub(super) fn kind_of_type(ty: AttrType) -> AKind {
    match ty {
        AttrType::Int | AttrType::Axis | AttrType::Float | AttrType::Dim => AKind::Number,
        AttrType::Ints | AttrType::Axes | AttrType::Dims | AttrType::Floats => AKind::List,
        AttrType::Bool => AKind::Bool,
        AttrType::DType => AKind::DType,
        AttrType::Str => AKind::Str,
    }
}

fn value_kind(v: &AttrValue) -> AKind {
    match v {
        AttrValue::Dim(_) | AttrValue::Float(_) => AKind::Number,
        AttrValue::Bool(_) => AKind::Bool,
        AttrValue::DType(_) => AKind::DType,
        AttrValue::Str(_) => AKind::Str,
        AttrValue::List(_) => AKind::List,
    }
}

/// Converts a value to the attribute's type (`1` to `1.0`); `None` if its type is another.
pub(super) fn coerce(ty: AttrType, value: AttrValue) -> Option<AttrValue> {
    let element = |ty, list: Vec<AttrValue>| {
        list.into_iter().map(|v| coerce(ty, v)).collect::<Option<Vec<_>>>().map(AttrValue::List)
    };
    match (ty, value) {
        (AttrType::Int | AttrType::Axis, v @ AttrValue::Dim(_)) => Some(v),
        (AttrType::Dim, v @ AttrValue::Dim(_)) => Some(v),
        (AttrType::Float, AttrValue::Dim(d)) => {
            Some(d.as_const().map_or(AttrValue::Dim(d), |c| AttrValue::Float(c as f64)))
        }
        (AttrType::Float, v @ AttrValue::Float(_)) => Some(v),
        (AttrType::Bool, v @ AttrValue::Bool(_)) => Some(v),
        (AttrType::DType, v @ AttrValue::DType(_)) => Some(v),
        (AttrType::Str, v @ AttrValue::Str(_)) => Some(v),
        (AttrType::Ints | AttrType::Axes, AttrValue::List(l)) => element(AttrType::Int, l),
        (AttrType::Dims, AttrValue::List(l)) => element(AttrType::Dim, l),
        (AttrType::Floats, AttrValue::List(l)) => element(AttrType::Float, l),
        _ => None,
    }
}

/// True if an expression of that kind can be a value of the attribute's type.
pub(super) fn kind_fits(ty: AttrType, kind: AKind) -> bool {
    kind == AKind::Unknown || kind == kind_of_type(ty)
}

/// True for a name that is made like that of an element type: `f13`, `bf8`.
pub(super) fn is_like_element_type(name: &str) -> bool {
    let bits = ["bf", "fp", "f", "i", "u"].iter().find_map(|kind| name.strip_prefix(kind));
    bits.is_some_and(|b| b.len() == 2 && b.bytes().all(|c| c.is_ascii_digit()))
}
