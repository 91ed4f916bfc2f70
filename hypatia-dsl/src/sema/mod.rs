//! Semantic analysis: from resolved files to a checked [`Program`].
//!
//! In: syntax trees and scopes. Out: a Program, and every error of every item. An item with an
//! error is left out and does not hide errors in other items. The work is done in passes, each of
//! which needs the one before: declarations get ids (`declare`), ops their signatures (`ops`),
//! scalars their bodies (`scalars`), ops their bodies, then rules, kernels and tests (`rules`,
//! `kernels`, `test_blocks`), and last the derived rules (`derive`). Position determines how an
//! expression is read: `patterns` for left sides, `build` for right sides and bodies, `guards` for
//! attributes.

mod applications;
mod args;
mod attrs;
mod bounds;
mod build;
mod check;
mod classes;
mod context;
mod contracts;
mod contradictions;
mod derive;
mod families;
mod guards;
pub(crate) mod hygiene;
pub(crate) mod infer;
mod inline;
mod instances;
mod kernels;
mod lets;
pub(crate) mod mentions;
mod op_grads;
mod ops;
mod patterns;
mod recursion;
mod rules;
mod rulesets;
mod saves;
mod scalars;
mod sizes;
mod test_blocks;
mod tiled;
pub(crate) mod tiled_body;
mod types;
pub(crate) mod walk;

use std::collections::{HashMap, HashSet};

use crate::ast::{self, ItemKind};
use crate::code;
use crate::diag::{Code, Diagnostic};
use crate::ir::{
    CostFormulas, Head, Kernel, OpBody, OpDef, OpGrad, OpId, Origin, Param, ParamKind, Program, Rule, RuleSetId,
    ScalarBody, ScalarId, Test,
};
use crate::parallel::side_by_side;
use crate::resolve::{ItemRef, Resolved, Space};
use crate::source::{SourceMap, Span};

use context::Cx;

/// The meaning of a name in the namespace of values.
#[derive(Clone, Copy, Debug)]
enum Decl {
    Scalar(ScalarId),
    Op(OpId),
    Pattern,
    Family,
}

/// The tables that all checks of declarations read.
struct Sema<'a> {
    resolved: &'a Resolved,
    sources: &'a SourceMap,
    program: Program,
    decls: HashMap<ItemRef, Decl>,
    families: HashMap<ItemRef, Result<Vec<Head>, ()>>,
    ruleset_ids: HashMap<ItemRef, RuleSetId>,
    /// Ops with an error in the signature: their uses report no further errors.
    poisoned_ops: HashSet<OpId>,
    /// Scalars with an error in the body: no rule is derived from them.
    poisoned_scalars: HashSet<ScalarId>,
    /// Patterns with a recursive definition.
    poisoned_items: HashSet<ItemRef>,
    diags: Vec<Diagnostic>,
}

/// Checks all files. The Program is complete only if no diagnostic is an error.
pub fn analyse(resolved: &Resolved, sources: &SourceMap) -> (Program, Vec<Diagnostic>) {
    let mut s = Sema {
        resolved,
        sources,
        program: Program::default(),
        decls: HashMap::new(),
        families: HashMap::new(),
        ruleset_ids: HashMap::new(),
        poisoned_ops: HashSet::new(),
        poisoned_scalars: HashSet::new(),
        poisoned_items: HashSet::new(),
        diags: Vec::new(),
    };
    s.declare();
    s.signatures();
    recursion::check(&mut s);
    s.scalar_bodies();
    sizes::check(&mut s);
    s.family_members();
    s.op_bodies();
    rulesets::collect(&mut s);
    s.rules_kernels_tests();
    s.named_patterns();
    derive::derive(&mut s);
    s.expected_rules();
    contracts::collect(&mut s);
    (s.program, s.diags)
}

/// Names of scalars and ops that are in use.
#[derive(Default)]
struct Names {
    taken: HashSet<String>,
    /// How often a name of a module was requested again: the next attempt starts there.
    again: HashMap<(String, String), usize>,
}

impl Names {
    /// A unique name: if the name is in use, it is qualified by its module, then numbered.
    fn unique(&mut self, module: &str, name: &str) -> String {
        if self.taken.insert(name.to_string()) {
            return name.to_string();
        }
        let i = self.again.entry((module.to_string(), name.to_string())).or_insert(0);
        loop {
            *i += 1;
            let n = if *i == 1 { format!("{module}::{name}") } else { format!("{module}::{name}'{i}") };
            if self.taken.insert(n.clone()) {
                return n;
            }
        }
    }
}

impl<'a> Sema<'a> {
    /// Items of all files in dependency order: used files first.
    fn items(&self) -> Vec<(ItemRef, &'a ast::Item)> {
        let resolved = self.resolved;
        let mut out = Vec::new();
        for &file in &resolved.order {
            for (item, node) in resolved.files[file].items.iter().enumerate() {
                out.push((ItemRef { file, item }, node));
            }
        }
        out
    }

    fn origin(&self, span: Span) -> Origin {
        let (line, column) = self.sources.line_column(span);
        Origin {
            file: self.sources.file(span.file).name.clone(),
            line: line as u32,
            column: column as u32,
            span: Some(span),
        }
    }

    fn head_name(&self, head: Head) -> &str {
        match head {
            Head::Op(id) => &self.program.op(id).name,
            Head::Scalar(id) => &self.program.scalar(id).name,
            _ => "?",
        }
    }

    /// Assigns ids to scalars and ops. A name that another file already uses is qualified by its
    /// module.
    fn declare(&mut self) {
        let mut names = Names::default();
        for (at, item) in self.items() {
            let module = &self.resolved.names[at.file];
            match &item.kind {
                ItemKind::Scalar(sc) => {
                    let mut def = scalars::declare(sc, &mut self.diags);
                    def.doc = item.doc.clone();
                    def.origin = self.origin(sc.name.span);
                    if let ScalarBody::Builtin(b) = def.body {
                        self.once(
                            self.program.builtin_scalar(b).map(|i| self.program.scalar(i).origin.clone()),
                            sc.name.span,
                        );
                    }
                    def.name = names.unique(module, &sc.name.node);
                    self.decls.insert(at, Decl::Scalar(ScalarId(self.program.scalars.len() as u32)));
                    self.program.scalars.push(def);
                }
                ItemKind::Op(op) => {
                    let id = OpId(self.program.ops.len() as u32);
                    self.decls.insert(at, Decl::Op(id));
                    let name = names.unique(module, &op.name.node);
                    // Poisoned until its signature has been read.
                    self.poisoned_ops.insert(id);
                    self.program.ops.push(OpDef {
                        name,
                        doc: item.doc.clone(),
                        origin: self.origin(op.name.span),
                        vars: Vec::new(),
                        params: Vec::new(),
                        bounds: Vec::new(),
                        results: Vec::new(),
                        variadic_result: false,
                        requires: Vec::new(),
                        body: OpBody::Defined(Vec::new()),
                        grad: None,
                        cost: CostFormulas::default(),
                        domain: None,
                    });
                }
                ItemKind::Pattern(_) => {
                    self.decls.insert(at, Decl::Pattern);
                }
                ItemKind::Family(_) => {
                    self.decls.insert(at, Decl::Family);
                }
                _ => {}
            }
        }
    }

    /// Reports a builtin that is declared more than once.
    fn once(&mut self, first: Option<Origin>, span: Span) {
        if let Some(first) = first {
            let mut d = Diagnostic::error(code::DUPLICATE, "this builtin is already declared", span)
                .hint("remove this declaration and write `use core::*;`");
            if let Some(s) = first.span {
                d = d.also(s, "first declared here");
            }
            self.diags.push(d);
        }
    }

    fn signatures(&mut self) {
        for (at, item) in self.items() {
            let (ItemKind::Op(op), Some(Decl::Op(id))) = (&item.kind, self.decls.get(&at).copied()) else { continue };
            let (def, diags) = {
                let mut cx = Cx::new(self, at.file);
                let def = ops::signature(&mut cx, op);
                (def, cx.diags)
            };
            self.diags.extend(diags);
            let Some(mut def) = def else { continue };
            if let OpBody::Builtin(b) = def.body {
                let first = self.program.builtin_op(b).map(|i| self.program.op(i).origin.clone());
                self.once(first, op.name.span);
            }
            let slot = &mut self.program.ops[id.index()];
            def.name = slot.name.clone();
            def.doc = slot.doc.clone();
            def.origin = slot.origin.clone();
            *slot = def;
            self.poisoned_ops.remove(&id);
        }
    }

    fn scalar_bodies(&mut self) {
        for (at, item) in self.items() {
            let (ItemKind::Scalar(sc), Some(Decl::Scalar(id))) = (&item.kind, self.decls.get(&at).copied()) else {
                continue;
            };
            let (term, grads, diags) = {
                let mut cx = Cx::new(self, at.file);
                let (term, grads) = scalars::body(&mut cx, id, sc);
                (term, grads, cx.diags)
            };
            if !diags.is_empty() {
                self.poisoned_scalars.insert(id);
            }
            self.diags.extend(diags);
            let def = &mut self.program.scalars[id.index()];
            if let Some(t) = term {
                def.body = ScalarBody::Term(t);
            }
            def.grads = grads.unwrap_or_default();
        }
    }

    /// The members of a family; `None` if the name is not a family, `Err` if an error was reported.
    fn family_of(&self, file: usize, path: &ast::Path) -> Option<Result<Vec<Head>, ()>> {
        if let Some(item) = self.resolved.find(file, Space::Value, path) {
            return match self.decls.get(&item)? {
                Decl::Family => Some(self.families.get(&item).cloned().unwrap_or(Err(()))),
                _ => None,
            };
        }
        // Predefined families, which include the user's own scalars.
        match path.text().as_str() {
            "unary" => Some(Ok(families::of_arity(self, 1))),
            "binary" => Some(Ok(families::of_arity(self, 2))),
            _ => None,
        }
    }

    /// The families that a file can name, the predefined ones too.
    fn visible_families(&self, file: usize) -> Vec<&str> {
        let named = self.resolved.in_sight(file, Space::Value);
        let families = named.filter(|(_, item)| matches!(self.decls.get(item), Some(Decl::Family)));
        families.map(|(name, _)| name).chain(["unary", "binary"]).collect()
    }

    /// Reports expectations of unknown rules: such a test would pass or fail for no reason. If
    /// there are other errors, rules may be missing because of them; then nothing is reported about
    /// declared names.
    fn expected_rules(&mut self) {
        let known: HashSet<&str> =
            self.program.rules.iter().flat_map(|r| [r.name.as_str(), r.base_name.as_str()]).collect();
        let declared = self.declared_rules();
        let mut found = Vec::new();
        for (at, item) in self.items() {
            let ItemKind::Test(t) = &item.kind else { continue };
            for st in &t.statements {
                let ast::TestStatement::Expect(ast::Expect::Fires(path, _) | ast::Expect::Matches(path, _)) = st else {
                    continue;
                };
                let name = path.text();
                let lost = |d: &HashSet<String>| self.may_be_lost(at.file, &name, d);
                if known.contains(name.as_str()) || declared.as_ref().is_some_and(lost) {
                    continue;
                }
                found.push(self.no_rule(code::EXPECTATION, &name, path.span));
            }
        }
        self.diags.extend(found);
    }

    /// Whether a rule of that name may be missing because of an error: `declared` has the names of
    /// all that are declared.
    fn may_be_lost(&self, file: usize, name: &str, declared: &HashSet<String>) -> bool {
        let base = name.split('[').next().unwrap_or_default();
        let excused = |n: &str| self.resolved.excused(file, n);
        declared.contains(base) || excused(base) || excused(ast::UNKNOWN_ITEM)
    }

    fn no_rule(&self, code: Code, name: &str, span: Span) -> Diagnostic {
        let declared = self.declared_rules();
        let known = self.program.rules.iter().flat_map(|r| [r.name.as_str(), r.base_name.as_str()]);
        let mut names: Vec<&str> = known.chain(declared.iter().flatten().map(String::as_str)).collect();
        if code == code::CONTRACT {
            names.extend(self.resolved.library.rules());
        }
        names.sort_unstable();
        names.dedup();
        let d = Diagnostic::error(code, format!("there is no rule `{name}`"), span).label("unknown rule");
        if let Some(why) = self.not_folded(name) {
            return d.hint(why);
        }
        if let Some(hint) = self.no_single_rule(code, name) {
            return d.hint(hint);
        }
        if let Some(module) = self.declares_rule(name).filter(|_| self.is_of_unused_module(name)) {
            return d.hint(format!("module `{module}` declares it: add `use {module}::*;` at the top of the file"));
        }
        match crate::spell::closest(name, names.into_iter()) {
            Some(s) => d.hint(format!("did you mean `{s}`?")),
            None if !self.rules_beside(name).is_empty() => {
                let set = name.split("::").next().unwrap_or_default();
                d.hint(format!("the rules of `{set}` in sight are {}", self.rules_beside(name)))
            }
            None => {
                let of_the_library = if code == code::CONTRACT { ", and those of the library" } else { "" };
                let what = if code == code::CONTRACT { "contract" } else { "test" };
                d.hint(format!(
                    "a {what} sees only the rules of this file and of the files that it uses{of_the_library}: is a \
                     `use` missing?"
                ))
            }
        }
    }

    /// The rules in sight of the ruleset that a name begins with, if they are few.
    fn rules_beside(&self, name: &str) -> String {
        const FEW: usize = 8;
        let Some((set, _)) = name.split_once("::") else { return String::new() };
        let own = |r: &&Rule| self.program.rulesets[r.ruleset.index()].name == set;
        let mut names: Vec<String> =
            self.program.rules.iter().filter(own).map(|r| format!("`{}`", r.base_name)).collect();
        names.dedup();
        if names.len() > FEW { String::new() } else { names.join(", ") }
    }

    /// What to write where a ruleset or a module is named instead of a rule.
    fn no_single_rule(&self, code: Code, name: &str) -> Option<String> {
        let in_sight = self.program.rulesets.iter().any(|r| r.name == name);
        let home = self.resolved.library.module_of(Space::RuleSet, name).filter(|_| !in_sight);
        if code == code::EXPECTATION && (in_sight || home.is_some()) {
            let first = self.program.rules.iter().find(|r| self.program.rulesets[r.ruleset.index()].name == name);
            let example = first.map(|r| format!(", such as `{}`", r.base_name)).unwrap_or_default();
            let import = home.map(|m| format!(", and add `use {m}::*;` at the top of the file")).unwrap_or_default();
            return Some(format!("`{name}` is a ruleset: name one of its rules{example}{import}"));
        }
        let is_module = self.resolved.names.iter().any(|n| n == name) || self.resolved.library.has_module(name);
        (is_module && home.is_none()).then(|| {
            format!(
                "`{name}` is a module, and declares no ruleset of this name: name a rule, such as `fuse::start` or \
                 `fold::softmax`"
            )
        })
    }

    /// Whether a file of the library that is not used here declares the rule or ruleset.
    pub(super) fn is_of_unused_module(&self, name: &str) -> bool {
        let base = name.split('[').next().unwrap_or_default();
        self.declares_rule(name).is_some() && !self.program.rules.iter().any(|r| r.base_name == base)
    }

    /// The module of the library that declares a rule, a ruleset, or what a rule is derived from.
    fn declares_rule(&self, name: &str) -> Option<&'static str> {
        let library = &self.resolved.library;
        let base = name.split('[').next().unwrap_or_default();
        let of = Rule::derived_from(base).and_then(|name| library.module_of(Space::Value, name));
        of.or_else(|| library.module_of_rule(base)).or_else(|| library.module_of(Space::RuleSet, base))
    }

    /// Reports names that named patterns do not find. A rule reads the patterns that it uses, so
    /// this is about those that no rule uses: what their parameters stand for is not known here, so
    /// nothing else is reported.
    fn named_patterns(&mut self) {
        if crate::diag::has_errors(&self.diags) {
            return;
        }
        let mut found = Vec::new();
        for (at, item) in self.items() {
            let ItemKind::Pattern(pattern) = &item.kind else { continue };
            if !self.resolved.trusted[at.file] {
                let mut cx = context::Cx::new(self, at.file);
                cx.pattern(&pattern.body, context::ValueSort::Tensor);
                found.extend(cx.diags.into_iter().filter(|d| d.code == code::UNKNOWN_NAME));
            }
        }
        self.diags.extend(found);
    }

    /// Names of declared rules, if some of them may be missing because of an error. Includes the
    /// names of all rules that may be derived. `None` if there is no error.
    fn declared_rules(&self) -> Option<HashSet<String>> {
        let unread = |f: &ast::File| !f.broken.is_empty();
        if !crate::diag::has_errors(&self.diags) && !self.resolved.files.iter().any(unread) {
            return None;
        }
        let name = |item: &ast::Item| match &item.kind {
            ItemKind::Rule(r) => Some(r.path.text()),
            ItemKind::Scalar(s) => Some(Rule::derived_name(&s.name.node)),
            ItemKind::Op(o) => Some(Rule::derived_name(&o.name.node)),
            _ => None,
        };
        let broken = self.resolved.files.iter().flat_map(|f| &f.broken).map(|n| Rule::derived_name(n));
        Some(self.items().iter().filter_map(|(_, i)| name(i)).chain(broken).collect())
    }

    /// Why no rule `fold::name` is derived from the declaration of that name, if there is such a
    /// declaration.
    fn not_folded(&self, rule: &str) -> Option<String> {
        let name = Rule::derived_from(rule)?;
        if self.program.scalars.iter().any(|s| s.name == name) {
            return Some(format!(
                "remove this expectation: a body of one operation has no fold rule, because `{name}` is already one \
                 node in the graph"
            ));
        }
        let op = self.program.ops.iter().position(|o| o.name == name)?;
        Some(derive::why_not_folded(self, OpId(op as u32)))
    }

    fn family_members(&mut self) {
        // A family may name one that is declared further down: as many rounds as there are families
        // resolve them all.
        let items: Vec<(ItemRef, &ast::Family)> = self
            .items()
            .into_iter()
            .filter_map(|(at, i)| match &i.kind {
                ItemKind::Family(f) => Some((at, f)),
                _ => None,
            })
            .collect();
        let order = recursion::family_order(self, &items);
        for i in order {
            let (at, f) = items[i];
            let (heads, diags) = {
                let mut cx = Cx::new(self, at.file);
                let heads = families::family(&mut cx, &f.members);
                (heads, cx.diags)
            };
            self.diags.extend(diags);
            if let Some(h) = &heads {
                let scalars: Vec<ScalarId> =
                    h.iter().filter_map(|h| if let Head::Scalar(s) = h { Some(*s) } else { None }).collect();
                self.program.families.push((f.name.node.clone(), scalars));
            }
            self.families.insert(at, heads.ok_or(()));
        }
        for (name, n) in [("unary", 1), ("binary", 2)] {
            if !self.program.families.iter().any(|(f, _)| f == name) {
                let scalars = families::of_arity(self, n)
                    .into_iter()
                    .filter_map(|h| if let Head::Scalar(s) = h { Some(s) } else { None })
                    .collect();
                self.program.families.push((name.to_string(), scalars));
            }
        }
    }

    fn op_bodies(&mut self) {
        let mut bodies = Vec::new();
        for (at, item) in self.items() {
            let (ItemKind::Op(op), Some(Decl::Op(id))) = (&item.kind, self.decls.get(&at).copied()) else { continue };
            if op.body.is_none() || self.poisoned_ops.contains(&id) {
                continue;
            }
            let def = self.program.op(id).clone();
            let (body, vars, nodes, diags) = {
                let mut cx = Cx::new(self, at.file);
                let body = ops::body(&mut cx, op, &def);
                (body, cx.vars, cx.nodes, cx.diags)
            };
            if !self.resolved.trusted[at.file] {
                bodies.push((id, op, nodes));
            }
            self.diags.extend(diags);
            let grad = self.op_grad(at, op, &def);
            if let Some(b) = body {
                let slot = &mut self.program.ops[id.index()];
                slot.grad = grad.map(Box::new);
                slot.body = OpBody::Defined(b);
                slot.vars = vars;
            }
        }
        let s: &Sema<'_> = self;
        let found = side_by_side(&bodies, BODIES_A_THREAD, None, |(id, op, nodes)| match &s.program.op(*id).body {
            OpBody::Defined(b) if !s.poisoned_ops.contains(id) => {
                check::body(&s.program, s.program.op(*id), op, b, nodes)
            }
            _ => None,
        });
        self.diags.extend(found.into_iter().flatten());
    }

    /// The gradients that an op writes, type-checked. `def` is its signature.
    fn op_grad(&mut self, at: ItemRef, op: &ast::Op, def: &OpDef) -> Option<OpGrad> {
        op.grad.as_ref()?;
        let (grad, nodes, diags) = {
            let mut cx = Cx::new(self, at.file);
            let grad = op_grads::read(&mut cx, op, def);
            (grad, cx.nodes, cx.diags)
        };
        self.diags.extend(diags);
        let grad = grad?;
        if !self.resolved.trusted[at.file] {
            self.diags.extend(check::gradients(&self.program, def, op, &grad, &nodes));
        }
        Some(grad)
    }

    /// Reports tests of one file that have the same name: a failure could be either's.
    fn tests_named_twice(&mut self, items: &[(ItemRef, &ast::Item)]) {
        let mut names: HashMap<(usize, &str), Span> = HashMap::new();
        for (at, item) in items {
            let ItemKind::Test(t) = &item.kind else { continue };
            let Some(first) = names.insert((at.file, &t.name.node), t.name.span) else { continue };
            let said = format!("test \"{}\" is declared twice", t.name.node);
            let d = Diagnostic::error(code::DUPLICATE, said, t.name.span).label("declared again here");
            self.diags.push(d.also(first, "first declared here").hint("rename one of them"));
        }
    }

    /// Rules, kernels and tests are independent of each other, so they are checked in parallel.
    fn rules_kernels_tests(&mut self) {
        let mut names: HashMap<String, Span> = HashMap::new();
        let mut items = self.items();
        items.retain(|(_, item)| match &item.kind {
            ItemKind::Rule(r) => match names.insert(r.path.text(), r.path.span) {
                Some(first) => {
                    self.diags.push(
                        Diagnostic::error(
                            code::DUPLICATE,
                            format!("rule `{}` is declared twice", r.path.text()),
                            r.path.span,
                        )
                        .label("declared again here")
                        .also(first, "first declared here")
                        .hint("rename one of them"),
                    );
                    false
                }
                None => true,
            },
            ItemKind::Kernel(_) | ItemKind::Test(_) => true,
            _ => false,
        });
        self.tests_named_twice(&items);
        let s: &Sema<'_> = self;
        let made = side_by_side(&items, ITEMS_A_THREAD, None, |(at, item)| CheckedItem::from(s, *at, item));
        for (made, diags) in made {
            self.diags.extend(diags);
            match made {
                CheckedItem::Rules(rules) => self.program.rules.extend(rules),
                CheckedItem::Kernel(kernel) => self.program.kernels.extend(kernel.map(|k| *k)),
                CheckedItem::Test(test) => self.program.tests.extend(test.map(|t| *t)),
            }
        }
    }
}

/// Minimum number of op bodies per thread.
const BODIES_A_THREAD: usize = 10;

/// Minimum number of rules, kernels and tests per thread: about a millisecond of work.
const ITEMS_A_THREAD: usize = 40;

/// The result of checking an item.
enum CheckedItem {
    Rules(Vec<Rule>),
    Kernel(Option<Box<Kernel>>),
    Test(Option<Box<Test>>),
}

impl CheckedItem {
    fn from(s: &Sema<'_>, at: ItemRef, item: &ast::Item) -> (CheckedItem, Vec<Diagnostic>) {
        let mut cx = Cx::new(s, at.file);
        let made = match &item.kind {
            ItemKind::Rule(r) => {
                let (rules, diags) = rules::rules(s, at.file, r, &item.doc);
                return (CheckedItem::Rules(rules), diags);
            }
            ItemKind::Kernel(k) => CheckedItem::Kernel(kernels::kernel(&mut cx, k, &item.doc).map(Box::new)),
            ItemKind::Test(t) => CheckedItem::Test(test_blocks::test(&mut cx, t).map(Box::new)),
            _ => CheckedItem::Rules(Vec::new()),
        };
        (made, cx.diags)
    }
}

/// A tensor operand's type, if the parameter is one.
fn tensor_param(p: &Param) -> Option<&crate::ir::TypePat> {
    match &p.kind {
        ParamKind::Tensor { ty, .. } => Some(ty),
        _ => None,
    }
}
