//! Items.

use super::Reader;
use crate::ast::*;

impl Reader<'_> {
    pub(super) fn item(&mut self) -> Option<ItemKind> {
        let word = self.word(0);
        self.at += 1;
        Some(match word {
            "use" => ItemKind::Use(self.use_item()?),
            "ruleset" => ItemKind::RuleSet(self.ruleset()?),
            "scalar" => ItemKind::Scalar(self.scalar()?),
            "op" => ItemKind::Op(self.op()?),
            "pattern" => ItemKind::Pattern(self.pattern()?),
            "rule" => ItemKind::Rule(self.rule()?),
            "kernel" => ItemKind::Kernel(self.kernel()?),
            "test" => ItemKind::Test(self.test()?),
            "family" => {
                let name = self.name()?;
                self.expect("=")?;
                let members = self.alternatives()?;
                self.expect(";")?;
                ItemKind::Family(Family { name, members })
            }
            _ => return None,
        })
    }

    fn use_item(&mut self) -> Option<Use> {
        let mut parts = vec![self.name()?];
        let mut glob = false;
        while !glob && self.take("::") {
            glob = self.take("*");
            if !glob {
                parts.push(self.name()?);
            }
        }
        self.expect(";")?;
        let span = parts.first()?.span.to(parts.last()?.span);
        (glob || parts.len() > 1).then_some(Use { path: Path { parts, span }, glob })
    }

    fn ruleset(&mut self) -> Option<RuleSet> {
        let name = self.name()?;
        self.expect("{")?;
        let mut settings = Vec::new();
        while !self.take("}") {
            settings.push(self.setting()?);
        }
        Some(RuleSet { name, settings })
    }

    /// `key = value;`
    fn setting(&mut self) -> Option<Setting> {
        let out = self.keyed()?;
        self.expect(";")?;
        Some(out)
    }

    /// `key = value`
    fn keyed(&mut self) -> Option<Setting> {
        let key = self.name()?;
        self.expect("=")?;
        Some(Setting { key, value: self.alternatives()? })
    }

    fn scalar(&mut self) -> Option<Scalar> {
        let name = if matches!(self.word(0), "and" | "or" | "not") { self.any() } else { self.name()? };
        self.expect("(")?;
        let params = self.listed(")", |r| {
            let name = r.name()?;
            let kind = if r.take(":") { Some(r.name()?) } else { None };
            Some(ScalarParam { name, kind })
        })?;
        let result = if self.take("->") { Some(self.name()?) } else { None };
        let body = if self.take("builtin") {
            None
        } else {
            self.expect("=")?;
            Some(self.alternatives()?)
        };
        let device = if self.take("device") { Some(self.string()?) } else { None };
        let grads = if self.take("grad") { self.several(Self::alternatives)? } else { Vec::new() };
        self.expect(";")?;
        Some(Scalar { name, params, result, body, device, grads })
    }

    fn op(&mut self) -> Option<Op> {
        let name = self.name()?;
        let generics = if self.is("<") { self.generics()? } else { Vec::new() };
        self.expect("(")?;
        let params = self.listed(")", Self::op_param)?;
        self.expect("->")?;
        let results = if self.take("(") {
            let all = self.listed(")", Self::result_type)?;
            (!all.is_empty()).then_some(all)?
        } else {
            vec![self.result_type()?]
        };
        let (settings, requires) = (Vec::new(), Vec::new());
        let mut op = Op { name, generics, params, results, body: None, builtin: false, settings, requires };
        if self.take("=") {
            op.body = Some(self.alternatives()?);
            if self.take(";") {
                return Some(op);
            }
        }
        self.expect("{")?;
        while !self.take("}") {
            if self.is("builtin") && self.word(1) == ";" {
                self.at += 2;
                op.builtin = true;
            } else if self.take("requires") {
                op.requires.extend(self.several(Self::alternatives)?);
                self.expect(";")?;
            } else {
                op.settings.push(self.setting()?);
            }
        }
        Some(op)
    }

    fn generics(&mut self) -> Option<Vec<Generic>> {
        self.expect("<")?;
        let all = self.several(|r| {
            let name = r.name()?;
            if !r.take(":") {
                return Some(Generic { name, bound: None });
            }
            let from = r.at;
            let kind =
                if r.take("{") { ExprKind::Set(r.listed("}", Self::alternatives)?) } else { ExprKind::Path(r.path()?) };
            Some(Generic { name, bound: Some(Expr { kind, span: r.since(from) }) })
        })?;
        self.expect(">")?;
        Some(all)
    }

    fn op_param(&mut self) -> Option<OpParam> {
        let variadic = self.take("*");
        let name = self.name()?;
        self.expect(":")?;
        let ty =
            if self.word(1) == "[" { ParamType::Tensor(self.type_expr()?) } else { ParamType::Named(self.name()?) };
        let optional = self.take("?");
        let default = if self.take("=") { Some(self.alternatives()?) } else { None };
        Some(OpParam { variadic, name, ty, optional, default })
    }

    fn result_type(&mut self) -> Option<ResultType> {
        let variadic = self.take("*");
        Some(ResultType { variadic, ty: self.type_expr()? })
    }

    fn pattern(&mut self) -> Option<Pattern> {
        let name = self.name()?;
        self.expect("(")?;
        let params = self.listed(")", Self::name)?;
        self.expect("=")?;
        let body = self.alternatives()?;
        self.expect(";")?;
        Some(Pattern { name, params, body })
    }

    fn rule(&mut self) -> Option<Rule> {
        let path = self.path()?;
        let mut binders = Vec::new();
        if self.take("[") {
            binders = self.listed("]", |r| {
                let name = r.name()?;
                if !r.take("in") {
                    r.expect(":")?;
                }
                Some(Binder { name, family: r.alternatives()? })
            })?;
            if binders.is_empty() {
                return None;
            }
        }
        self.expect(":")?;
        let lhs = self.alternatives()?;
        let both_ways = self.take("<=>");
        if !both_ways {
            self.expect("=>")?;
        }
        let rhs = self.alternatives()?;
        let (lets, requires, prefer, classes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut rule = Rule { path, binders, lhs, both_ways, rhs, lets, requires, prefer, classes };
        while !self.take(";") {
            if self.take("let") {
                rule.lets.extend(self.several(|r| {
                    let Setting { key, value } = r.keyed()?;
                    Some((key, value))
                })?);
            } else if self.take("requires") {
                rule.requires.extend(self.several(Self::alternatives)?);
            } else if self.take("prefer") {
                rule.prefer.extend(self.several(Self::alternatives)?);
            } else {
                self.expect("class")?;
                rule.classes.extend(self.several(Self::class)?);
            }
        }
        Some(rule)
    }

    /// `exact for f64, f32`: a comma goes on with element types until a class follows.
    fn class(&mut self) -> Option<ClassExpr> {
        let class = self.name()?;
        let mut ulp = None;
        if self.take("(") {
            let from = self.at;
            let (value, _) = self.number()?;
            ulp = Some(Spanned { node: value, span: self.since(from) });
            self.expect(")")?;
        }
        let mut dtypes = Vec::new();
        if self.take("for") {
            dtypes.push(self.name()?);
            while self.is(",") && self.is_name(1) && !self.class_follows() {
                self.at += 1;
                dtypes.push(self.name()?);
            }
        }
        Some(ClassExpr { class, ulp, dtypes })
    }

    fn class_follows(&self) -> bool {
        matches!(self.word(1), "exact" | "finite" | "rounds" | "approx") || matches!(self.word(2), "for" | "(")
    }

    fn kernel(&mut self) -> Option<Kernel> {
        let name = self.name()?;
        self.expect("for")?;
        let pattern = self.alternatives()?;
        self.expect("{")?;
        let (requires, tune, settings, classes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut kernel = Kernel { name, pattern, backend: None, requires, tune, settings, classes };
        while !self.take("}") {
            if self.is_name(0) && self.word(1) == "=" {
                kernel.settings.push(self.setting()?);
            } else {
                self.kernel_statement(&mut kernel)?;
            }
        }
        Some(kernel)
    }

    fn kernel_statement(&mut self, kernel: &mut Kernel) -> Option<()> {
        let from = self.at;
        let word = self.word(0);
        self.at += 1;
        let mut backend = None;
        match word {
            "requires" => kernel.requires.extend(self.several(Self::alternatives)?),
            "class" => kernel.classes.extend(self.several(Self::class)?),
            "launch" => kernel.settings.extend(self.several(Self::keyed)?),
            "tune" => {
                let name = self.name()?;
                self.expect("in")?;
                kernel.tune.push((name, self.alternatives()?));
            }
            "cublaslt" => backend = Some(Backend::Cublaslt(self.name()?)),
            "template" => backend = Some(Backend::Template(self.string()?)),
            "pointwise" | "rowwise" | "composed" => {}
            _ => return None,
        }
        self.expect(";")?;
        let backend = match word {
            "pointwise" => Some(Backend::Pointwise(self.since(from))),
            "rowwise" => Some(Backend::Rowwise(self.since(from))),
            "composed" => Some(Backend::Composed(self.since(from))),
            _ => backend,
        };
        // A second one is an error.
        match (kernel.backend.is_some(), backend) {
            (true, Some(_)) => None,
            (false, Some(b)) => {
                kernel.backend = Some(b);
                Some(())
            }
            (_, None) => Some(()),
        }
    }

    fn test(&mut self) -> Option<Test> {
        let name = self.string()?;
        let target = if self.take("on") { Some(self.name()?) } else { None };
        self.expect("{")?;
        let mut statements = Vec::new();
        while !self.take("}") {
            statements.push(self.statement()?);
        }
        Some(Test { name, target, statements })
    }

    fn statement(&mut self) -> Option<TestStatement> {
        let word = self.word(0);
        self.at += 1;
        let out = match word {
            "input" | "const" => {
                let name = self.name()?;
                self.expect(":")?;
                let ty = self.type_expr()?;
                let value = if self.take("=") { Some(self.alternatives()?) } else { None };
                TestStatement::Input { constant: word == "const", name, ty, value }
            }
            "given" => TestStatement::Given(self.several(Self::alternatives)?),
            "expect" => TestStatement::Expect(self.expectation()?),
            _ => return None,
        };
        self.expect(";")?;
        Some(out)
    }

    fn expectation(&mut self) -> Option<Expect> {
        if self.is("fires") || self.is("not") && self.word(1) == "fires" {
            let positive = !self.take("not");
            self.expect("fires")?;
            let mut rule = self.path()?;
            if self.take("[") {
                let members = self.several(Self::name)?;
                self.expect("]")?;
                let end = self.since(self.at.saturating_sub(1)).end;
                rule.choose(&members, end);
            }
            return Some(Expect::Fires(rule, positive));
        }
        let word = self.word(0);
        if word == "error" && self.is_name(1) {
            self.at += 1;
            return Some(Expect::Error(self.name()?));
        }
        if matches!(word, "equal" | "becomes") {
            self.at += 1;
            let e = self.alternatives()?;
            return Some(if word == "equal" { Expect::Equal(e) } else { Expect::Becomes(e) });
        }
        Some(Expect::Compare(self.alternatives()?))
    }
}
