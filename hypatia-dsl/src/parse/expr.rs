//! Grammar pairs to expressions.
//!
//! In: the pair of an expression or of a type. Out: its tree. Invariant: this is the one place that
//! knows precedence.
//!
//! Precedence of operators, loosest first: `|`, `else`, `if`, `or`, `and`, `not`, comparisons and
//! `in`, `+ -`, `* / %`, unary `-`, `**`, then postfixes of an operand (`.0`, `[i]`, `: T[..]`, `~
//! tolerance`).

use std::sync::LazyLock;

use pest::iterators::Pair;
use pest::pratt_parser::{Assoc, Op, PrattParser};

use super::{Bug, Builder, Built, Children, Rule};
use crate::ast::*;
use crate::diag::{Code, Diagnostic};

static PRATT: LazyLock<PrattParser<Rule>> = LazyLock::new(|| {
    let left = |rule| Op::infix(rule, Assoc::Left);
    PrattParser::new()
        .op(left(Rule::or))
        .op(left(Rule::and))
        .op(Op::prefix(Rule::not_op))
        .op(left(Rule::eq)
            | left(Rule::ne)
            | left(Rule::lt)
            | left(Rule::le)
            | left(Rule::gt)
            | left(Rule::ge)
            | left(Rule::op_in)
            | left(Rule::not_in))
        .op(left(Rule::add) | left(Rule::sub))
        .op(left(Rule::mul) | left(Rule::div) | left(Rule::rem))
        .op(Op::prefix(Rule::neg))
        .op(Op::infix(Rule::pow, Assoc::Right))
});

fn binary(rule: Rule) -> Option<BinaryOp> {
    Some(match rule {
        Rule::or => BinaryOp::Or,
        Rule::and => BinaryOp::And,
        Rule::eq => BinaryOp::Eq,
        Rule::ne => BinaryOp::Ne,
        Rule::lt => BinaryOp::Lt,
        Rule::le => BinaryOp::Le,
        Rule::gt => BinaryOp::Gt,
        Rule::ge => BinaryOp::Ge,
        Rule::op_in => BinaryOp::In,
        Rule::not_in => BinaryOp::NotIn,
        Rule::add => BinaryOp::Add,
        Rule::sub => BinaryOp::Sub,
        Rule::mul => BinaryOp::Mul,
        Rule::div => BinaryOp::Div,
        Rule::rem => BinaryOp::Rem,
        Rule::pow => BinaryOp::Pow,
        _ => return None,
    })
}

fn is_comparison(op: BinaryOp) -> bool {
    use BinaryOp::*;
    matches!(op, Eq | Ne | Lt | Le | Gt | Ge | In | NotIn)
}

impl Builder<'_> {
    /// An expression of any rule.
    pub(super) fn expr(&self, pair: Pair<'_, Rule>) -> Built<Expr> {
        let span = self.span(&pair);
        let rule = pair.as_rule();
        let kind = match rule {
            Rule::alternatives => return self.alternatives(pair),
            Rule::otherwise => return self.otherwise(pair),
            Rule::choice | Rule::primary | Rule::dim => return self.expr(Children::of(pair).first()?),
            Rule::conditional => {
                let mut kids = Children::of(pair);
                let (c, a, b) = (self.expr(kids.first()?)?, self.expr(kids.first()?)?, self.expr(kids.first()?)?);
                ExprKind::If(Box::new(c), Box::new(a), Box::new(b))
            }
            Rule::operation => return self.operation(pair),
            Rule::term => return self.term(pair),
            Rule::binding => {
                let mut kids = Children::of(pair);
                ExprKind::Bind(self.name(kids.first()?), Box::new(self.expr(kids.first()?)?))
            }
            Rule::number => self.number(&pair),
            Rule::special => {
                let value = if pair.as_str() == "inf" { f64::INFINITY } else { f64::NAN };
                ExprKind::Number { value, integer: false }
            }
            Rule::string => ExprKind::Str(self.string(&pair)),
            Rule::boolean => ExprKind::Bool(pair.as_str() == "true"),
            Rule::absent => ExprKind::Absent,
            Rule::hole => ExprKind::Hole,
            Rule::optional => ExprKind::Optional(self.name(Children::of(pair).first()?)),
            Rule::path => ExprKind::Path(self.path(pair)?),
            Rule::call => self.call(pair)?,
            Rule::spread | Rule::dim_rest => {
                ExprKind::Spread(Children::of(pair).next().map(|e| self.expr(e)).transpose()?.map(Box::new))
            }
            Rule::set => ExprKind::Set(self.exprs(Children::of(pair))?),
            Rule::group => return self.group(pair),
            Rule::list => self.list(pair)?,
            _ => return Err(Bug(rule)),
        };
        Ok(Expr { kind, span })
    }

    /// All remaining pairs as expressions.
    pub(super) fn exprs(&self, kids: Children<'_>) -> Built<Vec<Expr>> {
        kids.map(|e| self.expr(e)).collect()
    }

    fn alternatives(&self, pair: Pair<'_, Rule>) -> Built<Expr> {
        let span = self.span(&pair);
        let mut all = self.exprs(Children::of(pair))?;
        Ok(match all.pop() {
            Some(only) if all.is_empty() => only,
            Some(last) => {
                all.push(last);
                Expr { kind: ExprKind::Alternatives(all), span }
            }
            None => return Err(Bug(Rule::alternatives)),
        })
    }

    fn otherwise(&self, pair: Pair<'_, Rule>) -> Built<Expr> {
        let mut kids = Children::of(pair);
        let first = self.expr(kids.first()?)?;
        kids.try_fold(first, |a, b| {
            let b = self.expr(b)?;
            let span = a.span.to(b.span);
            Ok(Expr { kind: ExprKind::Else(Box::new(a), Box::new(b)), span })
        })
    }

    fn operation(&self, pair: Pair<'_, Rule>) -> Built<Expr> {
        PRATT
            .map_primary(|p| self.expr(p))
            .map_prefix(|op, e| {
                let e = e?;
                let which = if op.as_rule() == Rule::neg { UnaryOp::Neg } else { UnaryOp::Not };
                let span = self.span(&op).to(e.span);
                Ok(Expr { kind: ExprKind::Unary(which, Box::new(e)), span })
            })
            .map_infix(|a, op, b| {
                let (a, b) = (a?, b?);
                let which = binary(op.as_rule()).ok_or(Bug(op.as_rule()))?;
                let span = a.span.to(b.span);
                // `(a < b) == c` is valid; only an unparenthesised chain is an error, so look at
                // the text after `a`.
                let bracketed = self.text[..(self.span(&op).start as usize)].trim_end().ends_with(')');
                let a = match a.kind {
                    ExprKind::Binary(left, x, y) if is_comparison(which) && is_comparison(left) && !bracketed => {
                        let d = Diagnostic::error(Code(110), "comparisons cannot be chained", self.span(&op));
                        let d = d.label("second comparison").also(a.span, "first comparison");
                        self.report(d.hint("write `a < b and b < c`, or use parentheses"));
                        // Continue with the likely meaning, so that no further error follows from
                        // this.
                        let second = Expr { kind: ExprKind::Binary(which, y.clone(), Box::new(b)), span };
                        let first = Expr { kind: ExprKind::Binary(left, x, y), span: a.span };
                        let kind = ExprKind::Binary(BinaryOp::And, Box::new(first), Box::new(second));
                        return Ok(Expr { kind, span });
                    }
                    kind => Expr { kind, span: a.span },
                };
                Ok(Expr { kind: ExprKind::Binary(which, Box::new(a), Box::new(b)), span })
            })
            .parse(Children::of(pair))
    }

    fn term(&self, pair: Pair<'_, Rule>) -> Built<Expr> {
        let mut kids = Children::of(pair);
        let first = self.expr(kids.first()?)?;
        kids.try_fold(first, |e, p| {
            let span = e.span.to(self.span(&p));
            let rule = p.as_rule();
            let mut inner = Children::of(p);
            let e = Box::new(e);
            let kind = match rule {
                Rule::result => {
                    let digits = inner.first()?;
                    let at = self.span(&digits);
                    let index = digits.as_str().parse().unwrap_or_else(|_| {
                        self.report(Diagnostic::error(Code(109), "no op has that many results", at));
                        0
                    });
                    ExprKind::Result(e, index)
                }
                Rule::index => ExprKind::Index(e, Box::new(self.expr(inner.first()?)?)),
                Rule::typed => ExprKind::Typed(e, self.type_expr(inner.first()?)?),
                Rule::near => ExprKind::Near(e, Box::new(self.near(inner)?)),
                _ => return Err(Bug(rule)),
            };
            Ok(Expr { kind, span })
        })
    }

    fn near(&self, mut kids: Children<'_>) -> Built<Expr> {
        let first = kids.first()?;
        if first.as_rule() != Rule::neg {
            return self.expr(first);
        }
        let e = self.expr(kids.first()?)?;
        Ok(Expr { span: self.span(&first).to(e.span), kind: ExprKind::Unary(UnaryOp::Neg, Box::new(e)) })
    }

    fn call(&self, pair: Pair<'_, Rule>) -> Built<ExprKind> {
        let mut kids = Children::of(pair);
        let callee = self.path(kids.first()?)?;
        let (mut optional, mut types, mut args) = (false, Vec::new(), Vec::new());
        for p in kids {
            match p.as_rule() {
                Rule::question => optional = true,
                Rule::type_args => types = Children::of(p).map(|t| self.name(t)).collect(),
                Rule::arg => {
                    let mut parts = Children::of(p);
                    let first = parts.first()?;
                    args.push(match first.as_rule() {
                        Rule::arg_name => Arg {
                            name: Some(self.name(Children::of(first).first()?)),
                            value: self.expr(parts.first()?)?,
                        },
                        _ => Arg { name: None, value: self.expr(first)? },
                    });
                }
                other => return Err(Bug(other)),
            }
        }
        Ok(ExprKind::Call { callee, optional, types, args })
    }

    /// `(e)` is `e` itself; `(a, b)` is a tuple.
    fn group(&self, pair: Pair<'_, Rule>) -> Built<Expr> {
        let span = self.span(&pair);
        let trailing = pair.as_str().trim_end().strip_suffix(')').is_some_and(|t| t.trim_end().ends_with(','));
        let mut all = self.exprs(Children::of(pair))?;
        match all.pop() {
            Some(only) if all.is_empty() && !trailing => Ok(only),
            Some(last) => {
                all.push(last);
                Ok(Expr { kind: ExprKind::Tuple(all), span })
            }
            None => Err(Bug(Rule::group)),
        }
    }

    fn list(&self, pair: Pair<'_, Rule>) -> Built<ExprKind> {
        let mut elements = Vec::new();
        for p in Children::of(pair) {
            if p.as_rule() != Rule::comprehension {
                elements.push(self.expr(p)?);
                continue;
            }
            let mut kids = Children::of(p);
            let name = self.name(kids.first()?);
            let over = Box::new(self.expr(kids.first()?)?);
            let condition = kids.next().map(|c| self.expr(c)).transpose()?.map(Box::new);
            let element = Box::new(elements.pop().ok_or(Bug(Rule::comprehension))?);
            return Ok(ExprKind::Comprehension { element, name, over, condition });
        }
        Ok(ExprKind::List(elements))
    }

    fn number(&self, pair: &Pair<'_, Rule>) -> ExprKind {
        let text = pair.as_str();
        let integer = text.bytes().all(|b| b.is_ascii_digit());
        let value: f64 = text.parse().unwrap_or(f64::INFINITY);
        let problem = if value.is_infinite() {
            Some(("this number is too large", "write `inf` if infinity is meant"))
        } else if integer && value > 9007199254740992.0 {
            Some((
                "this integer is too large to be exact",
                "integers are exact up to 2 ** 53; write a decimal point if an approximation is enough",
            ))
        } else {
            None
        };
        if let Some((message, hint)) = problem {
            self.report(Diagnostic::error(Code(109), message, self.span(pair)).hint(hint));
        }
        ExprKind::Number { value, integer }
    }

    /// The content of a string literal, unescaped.
    pub(super) fn string(&self, pair: &Pair<'_, Rule>) -> String {
        let quoted = pair.as_str();
        let mut out = String::new();
        let mut chars = quoted[1..quoted.len() - 1].chars();
        while let Some(c) = chars.next() {
            if c != '\\' {
                out.push(c);
                continue;
            }
            match chars.next() {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some(c @ ('\\' | '"')) => out.push(c),
                other => {
                    let shown = other.map_or(String::new(), |c| c.escape_debug().to_string());
                    let d = Diagnostic::error(
                        Code(105),
                        format!("unknown escape `\\{shown}` in a string"),
                        self.span(pair),
                    );
                    self.report(d.hint("the valid escapes are \\\\, \\\", \\n and \\t"));
                }
            }
        }
        out
    }

    /// `T[..s, k]`
    pub(super) fn type_expr(&self, pair: Pair<'_, Rule>) -> Built<TypeExpr> {
        let span = self.span(&pair);
        let mut kids = Children::of(pair);
        let dtype = self.name(kids.first()?);
        let dims = kids
            .map(|p| {
                let inner = Children::of(p).first()?;
                if inner.as_rule() != Rule::dim_rest {
                    return Ok(DimExpr::Dim(self.expr(inner)?));
                }
                let at = self.span(&inner);
                Ok(DimExpr::Rest(Children::of(inner).next().map(|e| self.expr(e)).transpose()?, at))
            })
            .collect::<Built<_>>()?;
        Ok(TypeExpr { dtype, dims, span })
    }

    /// `a::b`
    pub(super) fn path(&self, pair: Pair<'_, Rule>) -> Built<Path> {
        let span = self.span(&pair);
        let parts: Vec<Name> = Children::of(pair).map(|p| self.name(p)).collect();
        if parts.is_empty() { Err(Bug(Rule::path)) } else { Ok(Path { parts, span }) }
    }
}
