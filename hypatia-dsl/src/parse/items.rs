//! Grammar pairs to items.
//!
//! In: the pair of one item that the grammar accepted. Out: its `ItemKind`, with spans and names
//! as written. Invariant: a pair that the grammar cannot produce here is a `Bug`, never a panic.

use pest::iterators::Pair;

use super::{Bug, Builder, Built, Children, Rule};
use crate::ast::{self, *};
use crate::diag::{Code, Diagnostic};

impl Builder<'_> {
    /// The item inside `Rule::item`; `Err` for an edition, which is not an item.
    pub(super) fn item(&self, pair: Pair<'_, Rule>) -> Built<ItemKind> {
        Ok(match pair.as_rule() {
            Rule::use_item => ItemKind::Use(self.use_item(pair)?),
            Rule::ruleset => ItemKind::RuleSet(self.ruleset(pair)?),
            Rule::scalar => ItemKind::Scalar(self.scalar(pair)?),
            Rule::op => ItemKind::Op(self.op(pair)?),
            Rule::pattern => ItemKind::Pattern(self.pattern(pair)?),
            Rule::rule_item => ItemKind::Rule(self.rule(pair)?),
            Rule::kernel => ItemKind::Kernel(self.kernel(pair)?),
            Rule::test => ItemKind::Test(self.test(pair)?),
            Rule::family => {
                let mut kids = Children::of(pair);
                ItemKind::Family(Family { name: self.name(kids.first()?), members: self.expr(kids.first()?)? })
            }
            Rule::contract => ItemKind::Contract(self.contract(pair)?),
            other => return Err(Bug(other)),
        })
    }

    fn contract(&self, pair: Pair<'_, Rule>) -> Built<Contract> {
        let mut kids = Children::of(pair);
        let name = self.name(kids.first()?);
        let mut clauses = Vec::new();
        for p in kids {
            let must = p.as_rule() == Rule::must;
            let mut parts = Children::of(p);
            let mut clause = Clause { must, rule: self.path(parts.first()?)?, count: None, at: None };
            for p in parts {
                match p.as_rule() {
                    Rule::members => self.choose(&mut clause.rule, p),
                    Rule::sites => {
                        let number = Children::of(p).first()?;
                        let count = number.as_str().parse().unwrap_or(u64::MAX);
                        clause.count = Some(Spanned { node: count, span: self.span(&number) });
                    }
                    Rule::place => {
                        let node = Children::of(p).first()?;
                        clause.at = Some(Spanned { node: self.string(&node), span: self.span(&node) });
                    }
                    other => return Err(Bug(other)),
                }
            }
            clauses.push(clause);
        }
        Ok(Contract { name, clauses })
    }

    /// Turns the path of a family into that of one of its rules.
    fn choose(&self, rule: &mut Path, members: Pair<'_, Rule>) {
        let end = self.span(&members).end;
        rule.choose(&Children::of(members).map(|p| self.name(p)).collect::<Vec<_>>(), end);
    }

    fn use_item(&self, pair: Pair<'_, Rule>) -> Built<Use> {
        let mut parts: Vec<Name> = Vec::new();
        let mut glob = false;
        for p in Children::of(pair) {
            if glob {
                self.report(Diagnostic::error(Code(101), "nothing may follow `*` here", self.span(&p)));
            } else if p.as_rule() == Rule::star {
                glob = true;
            } else {
                parts.push(self.name(p));
            }
        }
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return Err(Bug(Rule::use_item)) };
        let span = first.span.to(last.span);
        if !glob && parts.len() == 1 {
            let name = &first.node;
            self.report(
                Diagnostic::error(Code(101), "this `use` does not say which names to import", span)
                    .hint(format!("write `use {name}::*;` for everything, or `use {name}::NAME;` for one name")),
            );
        }
        Ok(Use { path: Path { parts, span }, glob })
    }

    fn ruleset(&self, pair: Pair<'_, Rule>) -> Built<RuleSet> {
        let mut kids = Children::of(pair);
        Ok(RuleSet { name: self.name(kids.first()?), settings: kids.map(|s| self.setting(s)).collect::<Built<_>>()? })
    }

    fn setting(&self, pair: Pair<'_, Rule>) -> Built<Setting> {
        let mut kids = Children::of(pair);
        Ok(Setting { key: self.name(kids.first()?), value: self.expr(kids.first()?)? })
    }

    fn scalar(&self, pair: Pair<'_, Rule>) -> Built<Scalar> {
        let mut kids = Children::of(pair);
        let name = self.name(kids.first()?);
        let mut scalar = Scalar { name, params: Vec::new(), result: None, body: None, device: None, grads: Vec::new() };
        for p in kids {
            match p.as_rule() {
                Rule::scalar_param => {
                    let mut parts = Children::of(p);
                    let name = self.name(parts.first()?);
                    scalar.params.push(ScalarParam { name, kind: parts.next().map(|k| self.name(k)) });
                }
                Rule::scalar_result => scalar.result = Some(self.name(Children::of(p).first()?)),
                Rule::alternatives => scalar.body = Some(self.expr(p)?),
                Rule::device => {
                    let text = Children::of(p).first()?;
                    scalar.device = Some(Spanned { node: self.string(&text), span: self.span(&text) });
                }
                Rule::grads => scalar.grads = self.exprs(Children::of(p))?,
                other => return Err(Bug(other)),
            }
        }
        Ok(scalar)
    }

    fn op(&self, pair: Pair<'_, Rule>) -> Built<Op> {
        let mut kids = Children::of(pair);
        let mut op = Op {
            name: self.name(kids.first()?),
            generics: Vec::new(),
            params: Vec::new(),
            results: Vec::new(),
            body: None,
            lets: Vec::new(),
            grad: None,
            builtin: false,
            settings: Vec::new(),
            requires: Vec::new(),
        };
        for p in kids {
            match p.as_rule() {
                Rule::generics => {
                    for g in Children::of(p) {
                        let mut parts = Children::of(g);
                        let name = self.name(parts.first()?);
                        let bound = match parts.next() {
                            Some(b) => Some(self.expr(Children::of(b).first()?)?),
                            None => None,
                        };
                        op.generics.push(Generic { name, bound });
                    }
                }
                Rule::op_param => op.params.push(self.op_param(p)?),
                Rule::results => {
                    for r in Children::of(p) {
                        let mut parts = Children::of(r);
                        let first = parts.first()?;
                        let variadic = first.as_rule() == Rule::star;
                        let ty = self.type_expr(if variadic { parts.first()? } else { first })?;
                        op.results.push(ResultType { variadic, ty });
                    }
                }
                Rule::op_block => self.op_block(p, &mut op)?,
                Rule::op_body => {
                    for part in Children::of(p) {
                        match part.as_rule() {
                            Rule::op_block => self.op_block(part, &mut op)?,
                            Rule::let_clause => op.lets.extend(self.lets(part)?),
                            Rule::op_grad => op.grad = Some(self.op_grad(part)?),
                            _ => op.body = Some(self.expr(part)?),
                        }
                    }
                }
                other => return Err(Bug(other)),
            }
        }
        Ok(op)
    }

    fn op_grad(&self, pair: Pair<'_, Rule>) -> Built<OpGrad> {
        let (mut names, mut body, mut lets) = (Vec::new(), None, Vec::new());
        for p in Children::of(pair) {
            match p.as_rule() {
                Rule::alternatives => body = Some(self.expr(p)?),
                Rule::let_clause => lets.extend(self.lets(p)?),
                _ => names.push(self.name(p)),
            }
        }
        Ok(OpGrad { names, body: body.ok_or(Bug(Rule::op_grad))?, lets })
    }

    fn op_param(&self, pair: Pair<'_, Rule>) -> Built<OpParam> {
        let mut kids = Children::of(pair);
        let mut first = kids.first()?;
        let variadic = first.as_rule() == Rule::star;
        if variadic {
            first = kids.first()?;
        }
        let name = self.name(first);
        let ty = Children::of(kids.first()?).first()?;
        let ty = match ty.as_rule() {
            Rule::type_expr => ParamType::Tensor(self.type_expr(ty)?),
            _ => ParamType::Named(self.name(ty)),
        };
        let mut param = OpParam { variadic, name, ty, optional: false, default: None };
        for p in kids {
            match p.as_rule() {
                Rule::question => param.optional = true,
                Rule::default => param.default = Some(self.expr(Children::of(p).first()?)?),
                other => return Err(Bug(other)),
            }
        }
        Ok(param)
    }

    fn op_block(&self, pair: Pair<'_, Rule>, op: &mut Op) -> Built<()> {
        for p in Children::of(pair) {
            match p.as_rule() {
                Rule::builtin => op.builtin = true,
                Rule::setting => op.settings.push(self.setting(p)?),
                Rule::requires_statement => {
                    let requires = Children::of(p).first()?;
                    op.requires.extend(self.exprs(Children::of(requires))?);
                }
                other => return Err(Bug(other)),
            }
        }
        Ok(())
    }

    fn pattern(&self, pair: Pair<'_, Rule>) -> Built<Pattern> {
        let mut names = Vec::new();
        for p in Children::of(pair) {
            if p.as_rule() == Rule::alternatives {
                let body = self.expr(p)?;
                let mut names = names.into_iter();
                let name = names.next().ok_or(Bug(Rule::pattern))?;
                return Ok(Pattern { name, params: names.collect(), body });
            }
            names.push(self.name(p));
        }
        Err(Bug(Rule::pattern))
    }

    fn rule(&self, pair: Pair<'_, Rule>) -> Built<ast::Rule> {
        let mut kids = Children::of(pair);
        let path = self.path(kids.first()?)?;
        let mut binders = Vec::new();
        let mut next = kids.first()?;
        if next.as_rule() == Rule::binders {
            for b in Children::of(next) {
                let mut parts = Children::of(b);
                let name = self.name(parts.first()?);
                let family = parts.find(|p| p.as_rule() != Rule::op_in).ok_or(Bug(Rule::binder))?;
                binders.push(Binder { name, family: self.expr(family)? });
            }
            next = kids.first()?;
        }
        let lhs = self.expr(next)?;
        let both_ways = kids.first()?.as_rule() == Rule::both;
        let rhs = self.expr(kids.first()?)?;
        let (types, lets, requires) = (Vec::new(), Vec::new(), Vec::new());
        let (prefer, saves, classes) = (Vec::new(), Vec::new(), Vec::new());
        let mut rule = ast::Rule { path, binders, lhs, both_ways, rhs, types, lets, requires, prefer, saves, classes };
        for p in kids {
            let which = p.as_rule();
            if which == Rule::let_clause {
                rule.lets.extend(self.lets(p)?);
                continue;
            }
            let mut inner = Children::of(p);
            match which {
                Rule::saves => {
                    let amount = self.expr(inner.first()?)?;
                    rule.saves.push(ast::Saves { amount, unit: self.name(inner.first()?) });
                }
                Rule::where_clause => {
                    for typed in inner {
                        let mut parts = Children::of(typed);
                        rule.types.push((self.name(parts.first()?), self.type_expr(parts.first()?)?));
                    }
                }
                Rule::requires => rule.requires.extend(self.exprs(inner)?),
                Rule::prefer => rule.prefer.extend(self.exprs(inner)?),
                Rule::class_clause => {
                    for c in inner {
                        rule.classes.push(self.class(c)?);
                    }
                }
                other => return Err(Bug(other)),
            }
        }
        Ok(rule)
    }

    /// `let name = e, ...`
    fn lets(&self, pair: Pair<'_, Rule>) -> Built<Vec<(Name, Expr)>> {
        let binding = |pair| {
            let mut parts = Children::of(pair);
            Ok((self.name(parts.first()?), self.expr(parts.first()?)?))
        };
        Children::of(pair).map(binding).collect()
    }

    fn class(&self, pair: Pair<'_, Rule>) -> Built<ClassExpr> {
        let mut kids = Children::of(pair);
        let mut class = ClassExpr { class: self.name(kids.first()?), bounds: Vec::new(), dtypes: Vec::new() };
        for p in kids {
            match p.as_rule() {
                Rule::number => {
                    let value = p.as_str().parse().unwrap_or(f64::INFINITY);
                    class.bounds.push(Spanned { node: value, span: self.span(&p) });
                }
                Rule::class_dtypes => class.dtypes = Children::of(p).map(|d| self.name(d)).collect(),
                other => return Err(Bug(other)),
            }
        }
        Ok(class)
    }

    fn kernel(&self, pair: Pair<'_, Rule>) -> Built<Kernel> {
        let mut kids = Children::of(pair);
        let (name, pattern) = (self.name(kids.first()?), self.expr(kids.first()?)?);
        let (requires, prefer, tune) = (Vec::new(), Vec::new(), Vec::new());
        let (settings, classes) = (Vec::new(), Vec::new());
        let mut kernel = Kernel { name, pattern, backend: None, requires, prefer, tune, settings, classes };
        for p in kids {
            let span = self.span(&p);
            let which = p.as_rule();
            let mut inner = Children::of(p);
            let backend = match which {
                Rule::cublaslt => Backend::Cublaslt(self.name(inner.first()?)),
                Rule::template => {
                    let s = inner.first()?;
                    Backend::Template(Spanned { node: self.string(&s), span: self.span(&s) })
                }
                Rule::pointwise => Backend::Pointwise(span),
                Rule::rowwise => Backend::Rowwise(span),
                Rule::composed => Backend::Composed(span),
                Rule::tiled => Backend::Tiled(span),
                _ => {
                    self.kernel_statement(which, inner, &mut kernel)?;
                    continue;
                }
            };
            if kernel.backend.replace(backend).is_some() {
                let d = Diagnostic::error(Code(101), "a kernel has one backend only", span);
                self.report(
                    d.label("second backend").hint("write two kernels: Hypatia measures both and uses the faster one"),
                );
            }
        }
        Ok(kernel)
    }

    fn kernel_statement(&self, which: Rule, mut inner: Children<'_>, kernel: &mut Kernel) -> Built<()> {
        match which {
            Rule::requires_statement => {
                kernel.requires.extend(self.exprs(Children::of(inner.first()?))?);
            }
            Rule::prefer_statement => {
                kernel.prefer.extend(self.exprs(Children::of(inner.first()?))?);
            }
            Rule::tune => {
                kernel.tune.push((self.name(inner.first()?), self.expr(inner.first()?)?));
            }
            Rule::launch => {
                for s in inner {
                    kernel.settings.push(self.setting(s)?);
                }
            }
            Rule::class_statement => {
                for c in Children::of(inner.first()?) {
                    kernel.classes.push(self.class(c)?);
                }
            }
            Rule::setting => {
                kernel.settings.push(Setting { key: self.name(inner.first()?), value: self.expr(inner.first()?)? })
            }
            other => return Err(Bug(other)),
        }
        Ok(())
    }

    fn test(&self, pair: Pair<'_, Rule>) -> Built<Test> {
        let mut kids = Children::of(pair);
        let name = kids.first()?;
        let name = Spanned { node: self.string(&name), span: self.span(&name) };
        let mut test = Test { name, target: None, statements: Vec::new() };
        for p in kids {
            let which = p.as_rule();
            let constant = p.as_str().starts_with("const");
            if which == Rule::ident {
                test.target = Some(self.name(p));
                continue;
            }
            let mut inner = Children::of(p);
            test.statements.push(match which {
                Rule::input => TestStatement::Input {
                    constant,
                    name: self.name(inner.first()?),
                    ty: self.type_expr(inner.first()?)?,
                    value: inner.next().map(|e| self.expr(e)).transpose()?,
                },
                Rule::given => TestStatement::Given(self.exprs(inner)?),
                Rule::expect => TestStatement::Expect(self.expect(inner.first()?)?),
                other => return Err(Bug(other)),
            });
        }
        Ok(test)
    }

    fn expect(&self, pair: Pair<'_, Rule>) -> Built<Expect> {
        let which = pair.as_rule();
        let wanted = !pair.as_str().starts_with("not");
        if which == Rule::alternatives {
            return Ok(Expect::Compare(self.expr(pair)?));
        }
        let mut kids = Children::of(pair);
        let inner = kids.first()?;
        Ok(match which {
            Rule::expect_error => Expect::Error(self.name(inner)),
            Rule::expect_fires | Rule::expect_matches => {
                let mut rule = self.path(inner)?;
                if let Some(members) = kids.next() {
                    self.choose(&mut rule, members);
                }
                if which == Rule::expect_fires { Expect::Fires(rule, wanted) } else { Expect::Matches(rule, wanted) }
            }
            Rule::expect_equal => Expect::Equal(self.expr(inner)?),
            Rule::expect_becomes => Expect::Becomes(self.expr(inner)?),
            other => return Err(Bug(other)),
        })
    }
}
