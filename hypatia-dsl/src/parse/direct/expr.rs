//! Expressions, types and paths; operators bind as in `parse::expr`.

use super::super::scan::Kind;
use super::Reader;
use crate::ast::*;

/// Whole numbers up to this are exact.
const EXACT: f64 = 9007199254740992.0;
/// How tight prefix operators bind, between the levels of [`infix`].
const NOT: u32 = 30;
const NEG: u32 = 70;

/// The operator that a token is, how tight it binds, and whether it groups to the right.
fn infix(word: &str, next: &str) -> Option<(BinaryOp, u32, bool)> {
    use BinaryOp::*;
    Some(match word {
        "or" => (Or, 10, false),
        "and" => (And, 20, false),
        "==" => (Eq, 40, false),
        "!=" => (Ne, 40, false),
        "<" => (Lt, 40, false),
        "<=" => (Le, 40, false),
        ">" => (Gt, 40, false),
        ">=" => (Ge, 40, false),
        "in" => (In, 40, false),
        "not" if next == "in" => (NotIn, 40, false),
        "+" => (Add, 50, false),
        "-" => (Sub, 50, false),
        "*" => (Mul, 60, false),
        "/" => (Div, 60, false),
        "%" => (Rem, 60, false),
        "**" => (Pow, 80, true),
        _ => return None,
    })
}

impl Reader<'_> {
    fn made(&self, from: usize, kind: ExprKind) -> Expr {
        Expr { kind, span: self.since(from) }
    }

    /// `a | b`
    pub(super) fn alternatives(&mut self) -> Option<Expr> {
        let from = self.at;
        let first = self.otherwise()?;
        if !self.is("|") {
            return Some(first);
        }
        let mut all = vec![first];
        while self.take("|") {
            all.push(self.otherwise()?);
        }
        Some(self.made(from, ExprKind::Alternatives(all)))
    }

    /// `b else 0`
    pub(super) fn otherwise(&mut self) -> Option<Expr> {
        let mut a = self.choice()?;
        while self.take("else") {
            let b = self.choice()?;
            let span = a.span.to(b.span);
            a = Expr { kind: ExprKind::Else(Box::new(a), Box::new(b)), span };
        }
        Some(a)
    }

    /// `if c then a else b`, or operators.
    fn choice(&mut self) -> Option<Expr> {
        let from = self.at;
        if !self.take("if") {
            return self.operation(0);
        }
        let c = self.choice()?;
        self.expect("then")?;
        let a = self.choice()?;
        self.expect("else")?;
        let b = self.choice()?;
        Some(self.made(from, ExprKind::If(Box::new(c), Box::new(a), Box::new(b))))
    }

    /// Operators that bind tighter than `least`.
    fn operation(&mut self, least: u32) -> Option<Expr> {
        let from = self.at;
        let prefix = match self.word(0) {
            "-" => Some((UnaryOp::Neg, NEG)),
            "not" => Some((UnaryOp::Not, NOT)),
            _ => None,
        };
        let mut a = match prefix {
            Some((op, level)) => {
                self.at += 1;
                let at = self.since(from);
                let e = self.operation(level - 1)?;
                let span = at.to(e.span);
                Expr { kind: ExprKind::Unary(op, Box::new(e)), span }
            }
            None => self.term()?,
        };
        while let Some((op, level, right)) = infix(self.word(0), self.word(1)) {
            if level <= least {
                break;
            }
            // A chain such as `a < b < c` is an error; `(a < b) == c` is none.
            let bracketed = self.at.checked_sub(1).is_some_and(|i| self.tokens[i].text(self.text) == ")");
            let chained = level == 40 && matches!(a.kind, ExprKind::Binary(first, ..) if is_comparison(first));
            if chained && !bracketed {
                return None;
            }
            self.at += if op == BinaryOp::NotIn { 2 } else { 1 };
            let b = self.operation(if right { level - 1 } else { level })?;
            let span = a.span.to(b.span);
            a = Expr { kind: ExprKind::Binary(op, Box::new(a), Box::new(b)), span };
        }
        Some(a)
    }

    fn term(&mut self) -> Option<Expr> {
        let from = self.at;
        if self.word(1) == "@" && self.is_name(0) {
            let name = self.name()?;
            self.expect("@")?;
            let inner = self.term()?;
            return Some(self.made(from, ExprKind::Bind(name, Box::new(inner))));
        }
        let mut e = self.primary()?;
        loop {
            let start = self.at;
            let kind = match self.word(0) {
                "." => {
                    self.at += 1;
                    let digits = self.token(0).filter(|t| t.kind == Kind::Number)?.text(self.text);
                    if !digits.bytes().all(|b| b.is_ascii_digit()) {
                        return None;
                    }
                    self.at += 1;
                    ExprKind::Result(Box::new(e), digits.parse().ok()?)
                }
                "[" => {
                    self.at += 1;
                    let index = self.alternatives()?;
                    self.expect("]")?;
                    ExprKind::Index(Box::new(e), Box::new(index))
                }
                ":" => {
                    self.at += 1;
                    let ty = self.type_expr()?;
                    ExprKind::Typed(Box::new(e), ty)
                }
                "~" => {
                    self.at += 1;
                    let tolerance = self.tolerance()?;
                    ExprKind::Near(Box::new(e), Box::new(tolerance))
                }
                _ => return Some(e),
            };
            let before = match &kind {
                ExprKind::Result(e, _) | ExprKind::Index(e, _) | ExprKind::Typed(e, _) | ExprKind::Near(e, _) => e.span,
                _ => return None,
            };
            e = Expr { kind, span: before.to(self.since(start)) };
        }
    }

    fn tolerance(&mut self) -> Option<Expr> {
        let from = self.at;
        if !self.take("-") {
            return self.primary();
        }
        let at = self.since(from);
        let e = self.primary()?;
        Some(Expr { span: at.to(e.span), kind: ExprKind::Unary(UnaryOp::Neg, Box::new(e)) })
    }

    fn primary(&mut self) -> Option<Expr> {
        let from = self.at;
        let token = self.token(0)?;
        let kind = match (token.kind, self.word(0)) {
            (Kind::Number, _) => {
                let (value, integer) = self.number()?;
                if value.is_infinite() || integer && value > EXACT {
                    return None;
                }
                ExprKind::Number { value, integer }
            }
            (Kind::Str, _) => ExprKind::Str(self.string()?.node),
            (Kind::Word, word @ ("true" | "false")) => self.taken(ExprKind::Bool(word == "true")),
            (Kind::Word, "inf") => self.taken(ExprKind::Number { value: f64::INFINITY, integer: false }),
            (Kind::Word, "nan") => self.taken(ExprKind::Number { value: f64::NAN, integer: false }),
            (Kind::Word, "none") => self.taken(ExprKind::Absent),
            (Kind::Word, "_") => self.taken(ExprKind::Hole),
            (Kind::Word, _) => self.named()?,
            (Kind::Sign, "[") => self.list()?,
            (Kind::Sign, "{") => {
                self.at += 1;
                ExprKind::Set(self.listed("}", Self::alternatives)?)
            }
            (Kind::Sign, "(") => return self.group(),
            _ => return None,
        };
        Some(self.made(from, kind))
    }

    fn taken(&mut self, kind: ExprKind) -> ExprKind {
        self.at += 1;
        kind
    }

    /// A call, `x?`, or a path.
    fn named(&mut self) -> Option<ExprKind> {
        let callee = if self.is("in") {
            let name = self.any();
            Path { span: name.span, parts: vec![name] }
        } else {
            self.path()?
        };
        if let Some((optional, types)) = self.before_arguments() {
            let args = self.listed(")", Self::arg)?;
            return Some(ExprKind::Call { callee, optional, types, args });
        }
        match <[Name; 1]>::try_from(callee.parts) {
            Ok([name]) if name.node == "in" => None,
            Ok([name]) if self.take("?") => Some(ExprKind::Optional(name)),
            Ok([name]) => Some(ExprKind::Path(Path { parts: vec![name], span: callee.span })),
            Err(parts) => Some(ExprKind::Path(Path { parts, span: callee.span })),
        }
    }

    /// `?`, `<f16>` and the bracket of a call; nothing is taken if it is none.
    fn before_arguments(&mut self) -> Option<(bool, Vec<Name>)> {
        let from = self.at;
        let optional = self.take("?");
        let types = if self.is("<") { self.type_args() } else { Some(Vec::new()) };
        if let Some(types) = types
            && self.take("(")
        {
            return Some((optional, types));
        }
        self.at = from;
        None
    }

    fn type_args(&mut self) -> Option<Vec<Name>> {
        self.expect("<")?;
        let types = self.several(Self::type_name)?;
        self.expect(">")?;
        Some(types)
    }

    /// A name or `_`.
    fn type_name(&mut self) -> Option<Name> {
        if self.is("_") { Some(self.any()) } else { self.name() }
    }

    fn arg(&mut self) -> Option<Arg> {
        let name = if self.word(1) == "=" && self.is_name(0) {
            let name = self.name()?;
            self.expect("=")?;
            Some(name)
        } else {
            None
        };
        Some(Arg { name, value: self.element()? })
    }

    /// An expression, or `..xs`.
    fn element(&mut self) -> Option<Expr> {
        if self.is("..") { self.spread() } else { self.alternatives() }
    }

    fn spread(&mut self) -> Option<Expr> {
        let from = self.at;
        self.expect("..")?;
        let inner = if matches!(self.word(0), "," | ")" | "]" | "}" | "for" | "") {
            None
        } else {
            Some(Box::new(self.otherwise()?))
        };
        Some(self.made(from, ExprKind::Spread(inner)))
    }

    /// `(e)` is `e` itself; `(a, b)` and `(a,)` are tuples.
    fn group(&mut self) -> Option<Expr> {
        let from = self.at;
        self.expect("(")?;
        let first = self.element()?;
        if self.take(")") {
            return Some(first);
        }
        self.expect(",")?;
        let mut all = vec![first];
        all.extend(self.listed(")", Self::element)?);
        Some(self.made(from, ExprKind::Tuple(all)))
    }

    fn list(&mut self) -> Option<ExprKind> {
        self.expect("[")?;
        if self.take("]") {
            return Some(ExprKind::List(Vec::new()));
        }
        let first = self.element()?;
        if self.take("for") {
            let name = self.name()?;
            self.expect("in")?;
            let over = Box::new(self.otherwise()?);
            let condition = if self.take("if") { Some(Box::new(self.otherwise()?)) } else { None };
            self.expect("]")?;
            return Some(ExprKind::Comprehension { element: Box::new(first), name, over, condition });
        }
        let mut all = vec![first];
        if !self.take("]") {
            self.expect(",")?;
            all.extend(self.listed("]", Self::element)?);
        }
        Some(ExprKind::List(all))
    }

    /// `a::b`
    pub(super) fn path(&mut self) -> Option<Path> {
        let from = self.at;
        let mut parts = vec![self.name()?];
        while self.take("::") {
            parts.push(self.name()?);
        }
        Some(Path { parts, span: self.since(from) })
    }

    /// `T[..s, k]`
    pub(super) fn type_expr(&mut self) -> Option<TypeExpr> {
        let from = self.at;
        let dtype = self.type_name()?;
        self.expect("[")?;
        let dims = self.listed("]", |r| {
            if !r.is("..") {
                return Some(DimExpr::Dim(r.otherwise()?));
            }
            let Expr { kind: ExprKind::Spread(inner), span } = r.spread()? else { return None };
            Some(DimExpr::Rest(inner.map(|e| *e), span))
        })?;
        Some(TypeExpr { dtype, dims, span: self.since(from) })
    }
}

fn is_comparison(op: BinaryOp) -> bool {
    use BinaryOp::*;
    matches!(op, Eq | Ne | Lt | Le | Gt | Ge | In | NotIn)
}
