//! Rules, patterns and right sides as text in `.hyp` syntax.
//!
//! In: parts of a [`Program`]. Out: text for `explain`, for messages and for tests. Invariant: the
//! text shows what the program means, with families expanded and patterns inlined.

use crate::builtin::{OVER_SECOND, SECOND};
use crate::dtype::Kind;
use crate::ir::{
    AExpr, AttrPat, AttrValue, Backend, Build, BuildArg, Class, Head, InView, Kernel, OpBody, OpDef, OpId, Origin,
    ParamKind, Pat, Program, Rule, ScalarBody, ScalarDef, ScalarId, Sort, Var, VarId,
};
use crate::scalar::{gradients, show_term, simplify};
use crate::typing::{attr_type_name, show_bound, show_expr, show_type_pat, show_value};

fn name(vars: &[Var], v: VarId) -> &str {
    vars.get(v.index()).map_or("?", |v| v.name.as_str())
}

fn head<'a>(p: &'a Program, vars: &'a [Var], h: Head) -> &'a str {
    match h {
        Head::Region(v) => name(vars, v),
        Head::Op(id) => &p.op(id).name,
        Head::Scalar(id) => &p.scalar(id).name,
        Head::Acc => "acc",
        Head::Second => OVER_SECOND,
        Head::In(InView::Broadcast) => "in",
        Head::In(InView::Row) => "row",
        Head::In(InView::Col) => "col",
        Head::In(InView::Full) => "full",
        Head::TermCast => "cast",
    }
}

fn attr_names(p: &Program, id: OpId) -> Vec<(&str, Option<&AttrValue>)> {
    p.op(id)
        .attrs()
        .map(|(_, a)| {
            let default = match &a.kind {
                ParamKind::Attr { default, .. } => default.as_ref(),
                _ => None,
            };
            (a.name.as_str(), default)
        })
        .collect()
}

fn number(v: f64) -> String {
    show_value(&AttrValue::Float(v))
}

/// A whole rule on one line, without empty clauses.
pub fn show_rule(p: &Program, rule: &Rule) -> String {
    rule_clauses(p, rule).join(" ")
}

/// A whole rule, each clause on its own line.
pub fn show_rule_lines(p: &Program, rule: &Rule) -> String {
    rule_clauses(p, rule).join("\n  ")
}

/// `rule a::b: left`, `=> right`, `requires ...`, `class ...;`.
fn rule_clauses(p: &Program, rule: &Rule) -> Vec<String> {
    let join = |parts: Vec<String>| if parts.len() == 1 { parts.concat() } else { format!("({})", parts.join(", ")) };
    let lhs = join(rule.lhs.iter().map(|x| show_pat(p, &rule.vars, x)).collect());
    let rhs = join(rule.rhs.iter().map(|x| show_build(p, &rule.vars, x)).collect());
    let regions = rule.vars.iter().filter(|v| v.sort == Sort::Region).map(|v| format!("{}: pointwise", v.name));
    let regions: Vec<String> = regions.collect();
    let binders = if regions.is_empty() { String::new() } else { format!("[{}]", regions.join(", ")) };
    let mut out = vec![format!("rule {}{binders}: {lhs}", rule.name), format!("=> {rhs}")];
    for (v, e) in &rule.lets {
        out.push(format!("let {} = {}", name(&rule.vars, *v), show_expr(&rule.vars, e)));
    }
    for (word, guards) in [("requires", &rule.requires), ("prefer", &rule.prefer)] {
        if !guards.is_empty() {
            let g: Vec<String> = guards.iter().map(|g| show_expr(&rule.vars, g)).collect();
            out.push(format!("{word} {}", g.join(", ")));
        }
    }
    if let Some(saves) = &rule.saves {
        out.push(format!("saves {} {}", show_expr(&rule.vars, &saves.amount), saves.unit.name()));
    }
    let claims: Vec<String> = rule
        .claims
        .iter()
        .map(|c| {
            let class = match c.class {
                Class::Exact => "exact".to_string(),
                Class::Finite => "finite".to_string(),
                Class::Rounds => "rounds".to_string(),
                Class::Within(steps) => format!("within({steps})"),
                Class::Ties => "ties".to_string(),
                Class::Approx { rel, abs } => format!("approx({rel:?}, {abs:?})"),
            };
            let dtypes: Vec<&str> = c.dtypes.iter().map(|d| d.name()).collect();
            if dtypes.is_empty() { class } else { format!("{class} for {}", dtypes.join(", ")) }
        })
        .collect();
    if !claims.is_empty() {
        out.push(format!("class {}", claims.join(", ")));
    }
    if let Some(last) = out.last_mut() {
        last.push(';');
    }
    out
}

/// An op's declaration without its body: `softmax<T: float>(x: T[..s], axis: axis = -1) -> T[..s]`.
pub fn show_op_signature(op: &OpDef) -> String {
    let bounds = op.bounds.iter().map(|(v, dtypes)| format!("{}: {}", name(&op.vars, *v), show_bound(dtypes)));
    let bounds: Vec<String> = bounds.collect();
    let generics = if bounds.is_empty() { String::new() } else { format!("<{}>", bounds.join(", ")) };
    let params: Vec<String> = op
        .params
        .iter()
        .map(|p| match &p.kind {
            ParamKind::Tensor { ty, optional, variadic } => {
                let (star, mark) = (if *variadic { "*" } else { "" }, if *optional { "?" } else { "" });
                format!("{star}{}: {}{mark}", p.name, show_type_pat(&op.vars, ty))
            }
            ParamKind::Term => format!("{}: scalar", p.name),
            ParamKind::Attr { ty, default } => {
                let default = default.as_ref().map_or(String::new(), |d| format!(" = {}", show_value(d)));
                format!("{}: {}{default}", p.name, attr_type_name(*ty))
            }
        })
        .collect();
    let results: Vec<String> = op.results.iter().map(|t| show_type_pat(&op.vars, t)).collect();
    let result = match (results.as_slice(), op.variadic_result) {
        ([one], true) => format!("*{one}"),
        ([one], false) => one.clone(),
        (several, _) => format!("({})", several.join(", ")),
    };
    format!("{}{generics}({}) -> {result}", op.name, params.join(", "))
}

/// A scalar's declaration without its body: `within(x, low, high) -> bool`.
pub fn show_scalar_signature(s: &ScalarDef) -> String {
    let kind = |k: Kind| if k == Kind::Bool { ": bool" } else { "" };
    let params: Vec<String> = s.params.iter().map(|(n, k)| format!("{n}{}", kind(*k))).collect();
    let result = if s.result == Kind::Bool { " -> bool" } else { "" };
    format!("{}({}){result}", s.name, params.join(", "))
}

/// Every declaration of a Program for which `wanted` is true, as the compiler understands it:
/// signatures with bodies, scalars simplified and with their derivatives, families expanded, the
/// class of each rule, kernels.
pub fn show_program(p: &Program, wanted: &dyn Fn(&Origin) -> bool) -> String {
    let mut out = String::new();
    for (i, s) in p.scalars.iter().enumerate().filter(|(_, s)| wanted(&s.origin)) {
        out.push_str(&show_scalar(p, ScalarId(i as u32), s));
    }
    for op in p.ops.iter().filter(|o| wanted(&o.origin)) {
        out.push_str(&format!("op {}", show_op_signature(op)));
        match &op.body {
            OpBody::Builtin(_) => out.push_str("\n  builtin;\n"),
            OpBody::Defined(bodies) => {
                let bodies: Vec<String> = bodies.iter().map(|b| show_build(p, &op.vars, b)).collect();
                out.push_str(&format!("\n  = {};\n", bodies.join(", ")));
            }
        }
        for (operand, b) in op.grad.iter().flat_map(|g| &g.of) {
            let vars = op.grad.as_ref().map_or(&op.vars, |g| &g.vars);
            out.push_str(&format!("  gradient of {} = {};\n", op.params[*operand].name, show_build(p, vars, b)));
        }
        op.requires.iter().for_each(|g| out.push_str(&format!("  requires {};\n", show_expr(&op.vars, g))));
    }
    for r in p.rulesets.iter().filter(|r| wanted(&r.origin)) {
        let until = r.iterations.map_or("until = fixpoint".to_string(), |n| format!("iterations = {n}"));
        let (fixed, per) = r.nodes;
        let steps = r.steps.map_or(String::new(), |(fixed, per)| format!(" steps = {fixed} + {per} * graph;"));
        out.push_str(&format!("ruleset {} {{ {until}; nodes = {fixed} + {per} * graph;{steps} }}\n", r.name));
    }
    for rule in p.rules.iter().filter(|r| wanted(&r.origin)) {
        let made = if rule.derived { "// made by the compiler\n" } else { "" };
        out.push_str(&format!("{made}{}\n", show_rule_lines(p, rule)));
        if rule.claims.is_empty() {
            out.push_str("  // nothing is written: class rounds\n");
        }
    }
    for k in p.kernels.iter().filter(|k| wanted(&k.origin)) {
        let how = match &k.backend {
            Backend::Cublaslt(epilogue) => format!("cublaslt {epilogue}"),
            Backend::Template(t) => format!("template {:?}", t.file),
            Backend::Pointwise => "pointwise".into(),
            Backend::Rowwise => "rowwise".into(),
            Backend::Composed => "composed".into(),
            Backend::Tiled => "tiled".into(),
        };
        let requires: String = k.requires.iter().map(|g| format!(" requires {};", show_expr(&k.vars, g))).collect();
        let values = |list: &[i64]| list.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
        let prefer: String = k.prefer.iter().map(|g| format!(" prefer {};", show_expr(&k.vars, g))).collect();
        let tune: String = k.tune.iter().map(|(n, list)| format!(" tune {n} in {{{}}};", values(list))).collect();
        out.push_str(&format!("{} {{ {how};{requires}{prefer}{tune} }}\n", show_kernel(p, k)));
    }
    out
}

/// A scalar with its simplified body and its derivatives.
fn show_scalar(p: &Program, id: ScalarId, s: &ScalarDef) -> String {
    let names: Vec<String> = s.params.iter().map(|(n, _)| n.clone()).collect();
    let mut out = format!("scalar {}", show_scalar_signature(s));
    match &s.body {
        ScalarBody::Builtin(_) => out.push_str(" builtin"),
        ScalarBody::Term(t) => out.push_str(&format!(" = {}", show_term(p, &simplify(p, t), &names))),
    }
    // Booleans have no derivatives; the library also leaves some out.
    if s.result == Kind::Number
        && let Ok(gradients) = gradients(p, id)
    {
        for ((name, kind), g) in s.params.iter().zip(&gradients) {
            if *kind == Kind::Number {
                out.push_str(&format!("\n  d/d{name} = {}", show_term(p, &simplify(p, g), &names)));
            }
        }
    }
    out + ";\n"
}

/// A kernel's first line.
pub fn show_kernel(p: &Program, k: &Kernel) -> String {
    format!("kernel {} for {}", k.name, show_pat(p, &k.vars, &k.pattern))
}

/// A pattern.
pub fn show_pat(p: &Program, vars: &[Var], pat: &Pat) -> String {
    match pat {
        Pat::Any => "_".to_string(),
        Pat::Var(v) => name(vars, *v).to_string(),
        Pat::Bind(v, inner) => format!("{} @ {}", name(vars, *v), show_pat(p, vars, inner)),
        Pat::Typed(inner, t) => format!("{}: {}", show_pat(p, vars, inner), show_type_pat(vars, t)),
        Pat::Lit { value, near: None } => number(*value),
        Pat::Lit { value, near: Some(t) } => format!("{} ~ {}", number(*value), number(*t)),
        Pat::OneOf(l) => {
            let l: Vec<String> = l.iter().map(|x| show_pat(p, vars, x)).collect();
            format!("({})", l.join(" | "))
        }
        Pat::Absent => "none".to_string(),
        Pat::Optional(v) => format!("{}?", name(vars, *v)),
        Pat::Node(n) => {
            let mut args: Vec<String> = n.args.iter().map(|a| show_pat(p, vars, a)).collect();
            args.extend(n.rest.as_ref().map(|rest| match &rest.each {
                None => format!("..{}", name(vars, rest.var)),
                Some(each) => format!(
                    "..[{} for {} in {}]",
                    show_pat(p, vars, &each.element),
                    name(vars, each.item),
                    name(vars, rest.var)
                ),
            }));
            match n.head {
                Head::Acc => return "acc".to_string(),
                Head::Second if args == ["acc"] => return SECOND.to_string(),
                Head::Op(id) => {
                    for ((attr, default), a) in attr_names(p, id).into_iter().zip(&n.attrs) {
                        let usual = matches!((a, default), (AttrPat::Is(AExpr::Value(v)), Some(d)) if v == d);
                        if !usual {
                            args.push(format!("{attr} = {}", show_attr(vars, a)));
                        }
                    }
                }
                _ => args.extend(n.attrs.iter().map(|a| format!("to = {}", show_attr(vars, a)))),
            }
            let call = format!("{}({})", head(p, vars, n.head), args.join(", "));
            with_output(p, n.head, n.output, call)
        }
    }
}

fn with_output(p: &Program, h: Head, output: u32, call: String) -> String {
    match h {
        Head::Op(id) if p.op(id).variadic_result || p.op(id).results.len() > 1 => format!("{call}.{output}"),
        _ => call,
    }
}

fn show_attr(vars: &[Var], a: &AttrPat) -> String {
    match a {
        AttrPat::Any => "_".to_string(),
        AttrPat::Var(v) => name(vars, *v).to_string(),
        AttrPat::Is(e) => show_expr(vars, e),
        AttrPat::List(l) => {
            let l: Vec<String> = l.iter().map(|a| show_attr(vars, a)).collect();
            format!("[{}]", l.join(", "))
        }
        AttrPat::Rest(None) => "..".to_string(),
        AttrPat::Rest(Some(v)) => format!("..{}", name(vars, *v)),
    }
}

/// A right side.
pub fn show_build(p: &Program, vars: &[Var], b: &Build) -> String {
    match b {
        Build::Var(v) => name(vars, *v).to_string(),
        Build::Number(e) => show_expr(vars, e),
        Build::Else(v, other) => format!("({} else {})", name(vars, *v), show_build(p, vars, other)),
        Build::Frozen(b) => format!("build({})", show_build(p, vars, b)),
        Build::Absent => "none".to_string(),
        Build::If(c, a, b) => {
            format!("if {} then {} else {}", show_expr(vars, c), show_build(p, vars, a), show_build(p, vars, b))
        }
        Build::Node(n) => {
            let mut args: Vec<String> = n
                .args
                .iter()
                .map(|a| match a {
                    BuildArg::One(b) => show_build(p, vars, b),
                    BuildArg::Spread(v) => format!("..{}", name(vars, *v)),
                    BuildArg::Each { element, item, over } => {
                        format!(
                            "..[{} for {} in {}]",
                            show_build(p, vars, element),
                            name(vars, *item),
                            name(vars, *over)
                        )
                    }
                })
                .collect();
            match n.head {
                Head::Acc => return "acc".to_string(),
                Head::Second if args == ["acc"] => return SECOND.to_string(),
                Head::Op(id) => {
                    for ((attr, default), a) in attr_names(p, id).into_iter().zip(&n.attrs) {
                        let usual = matches!((a, default), (AExpr::Value(v), Some(d)) if v == d);
                        if !usual {
                            args.push(format!("{attr} = {}", show_expr(vars, a)));
                        }
                    }
                }
                _ => args.extend(n.attrs.iter().map(|a| format!("to = {}", show_expr(vars, a)))),
            }
            let call = format!("{}({})", head(p, vars, n.head), args.join(", "));
            with_output(p, n.head, n.output, call)
        }
    }
}

/// An attribute expression or guard.
pub fn show_aexpr(vars: &[Var], e: &AExpr) -> String {
    show_expr(vars, e)
}
