//! Syntax errors in words: what was found, what was expected, and the likely mistake.
//!
//! In: the grammar's furthest failure in one item. Out: a diagnostic that mentions no grammar rule.

mod habits;

use pest::error::{Error, ErrorVariant, InputLocation};

use super::scan::{ITEM_WORDS, Kind, Token, opens_item};
use super::{Builder, Rule};
use crate::diag::{Code, Diagnostic};
use crate::foreign;
use crate::source::Span;
use crate::spell::closest;

/// Keywords that begin a statement of a kernel.
const KERNEL_WORDS: [&str; 11] = [
    "cublaslt",
    "template",
    "pointwise",
    "rowwise",
    "composed",
    "tiled",
    "requires",
    "prefer",
    "tune",
    "launch",
    "class",
];

/// Signs and keywords of fixed text, which add nothing to the tree.
const FIXED: &[(Rule, &str)] = &[
    (Rule::semi, ";"),
    (Rule::comma, ","),
    (Rule::colon, ":"),
    (Rule::sep, "::"),
    (Rule::assign, "="),
    (Rule::arrow, "->"),
    (Rule::lparen, "("),
    (Rule::rparen, ")"),
    (Rule::lbracket, "["),
    (Rule::rbracket, "]"),
    (Rule::lbrace, "{"),
    (Rule::rbrace, "}"),
    (Rule::langle, "<"),
    (Rule::rangle, ">"),
    (Rule::at, "@"),
    (Rule::tilde, "~"),
    (Rule::bar, "|"),
    (Rule::dots, ".."),
    (Rule::kw_edition, "edition"),
    (Rule::kw_use, "use"),
    (Rule::kw_ruleset, "ruleset"),
    (Rule::kw_scalar, "scalar"),
    (Rule::kw_op, "op"),
    (Rule::kw_pattern, "pattern"),
    (Rule::kw_rule, "rule"),
    (Rule::kw_kernel, "kernel"),
    (Rule::kw_test, "test"),
    (Rule::kw_family, "family"),
    (Rule::kw_contract, "contract"),
    (Rule::kw_must, "must"),
    (Rule::kw_never, "never"),
    (Rule::kw_count, "count"),
    (Rule::kw_at, "at"),
    (Rule::kw_builtin, "builtin"),
    (Rule::kw_device, "device"),
    (Rule::kw_grad, "grad"),
    (Rule::kw_requires, "requires"),
    (Rule::kw_prefer, "prefer"),
    (Rule::kw_saves, "saves"),
    (Rule::kw_class, "class"),
    (Rule::kw_let, "let"),
    (Rule::kw_where, "where"),
    (Rule::kw_for, "for"),
    (Rule::kw_on, "on"),
    (Rule::kw_if, "if"),
    (Rule::kw_then, "then"),
    (Rule::kw_else, "else"),
    (Rule::kw_in, "in"),
    (Rule::kw_cublaslt, "cublaslt"),
    (Rule::kw_template, "template"),
    (Rule::kw_pointwise, "pointwise"),
    (Rule::kw_rowwise, "rowwise"),
    (Rule::kw_composed, "composed"),
    (Rule::kw_tiled, "tiled"),
    (Rule::kw_tune, "tune"),
    (Rule::kw_launch, "launch"),
    (Rule::kw_input, "input"),
    (Rule::kw_const, "const"),
    (Rule::kw_given, "given"),
    (Rule::kw_expect, "expect"),
    (Rule::kw_error, "error"),
    (Rule::kw_fires, "fires"),
    (Rule::kw_matches, "matches"),
    (Rule::kw_equal, "equal"),
    (Rule::kw_becomes, "becomes"),
    (Rule::kw_not, "not"),
];

/// True for pairs whose text is always the same.
pub(super) fn is_fixed_text(rule: Rule) -> bool {
    rule == Rule::EOI || FIXED.iter().any(|(r, _)| *r == rule)
}

/// A grammar rule in words; `None` for an operator or an optional suffix.
fn words(rule: Rule) -> Option<Vec<String>> {
    if let Some((_, text)) = FIXED.iter().find(|(r, _)| *r == rule) {
        return (!matches!(rule, Rule::tilde | Rule::bar | Rule::at | Rule::dots)).then(|| vec![format!("`{text}`")]);
    }
    let quoted = |all: &[&str]| Some(all.iter().map(|w| format!("`{w}`")).collect());
    let plain = |text: &str| Some(vec![text.to_string()]);
    match rule {
        Rule::both => quoted(&["<=>"]),
        Rule::becomes => quoted(&["=>"]),
        Rule::star => quoted(&["*"]),
        Rule::question => quoted(&["?"]),
        Rule::EOI => None,
        Rule::ident
        | Rule::decl_name
        | Rule::word
        | Rule::path
        | Rule::scalar_param
        | Rule::generic
        | Rule::binder
        | Rule::let_binding
        | Rule::where_type
        | Rule::launch_setting
        | Rule::class_expr => plain("a name"),
        Rule::op_param => plain("a parameter such as `x: T[..s]`"),
        Rule::type_expr | Rule::result_type | Rule::results | Rule::param_type => plain("a type such as `T[..s, n]`"),
        Rule::type_name => plain("an element type"),
        Rule::dim | Rule::dim_rest => plain("a dimension"),
        Rule::bound => plain("a bound such as `float`"),
        Rule::number | Rule::integer => plain("a number"),
        Rule::digits => plain("a result number such as `.0`"),
        Rule::string => plain("a string in double quotes"),
        Rule::alternatives
        | Rule::otherwise
        | Rule::choice
        | Rule::operation
        | Rule::term
        | Rule::primary
        | Rule::group
        | Rule::set
        | Rule::list
        | Rule::call
        | Rule::binding
        | Rule::optional
        | Rule::arg
        | Rule::conditional
        | Rule::boolean
        | Rule::special
        | Rule::absent
        | Rule::hole
        | Rule::spread
        | Rule::in_term
        | Rule::in_word => plain("an expression"),
        Rule::setting => plain("a setting such as `nodes = 50;`"),
        Rule::builtin => quoted(&["builtin"]),
        Rule::requires | Rule::requires_statement => quoted(&["requires"]),
        Rule::prefer_statement => quoted(&["prefer"]),
        Rule::prefer => quoted(&["prefer"]),
        Rule::saves => quoted(&["saves"]),
        Rule::saves_unit => plain("a unit: `us` or `bytes`"),
        Rule::let_clause => quoted(&["let"]),
        Rule::where_clause => quoted(&["where"]),
        Rule::class_clause | Rule::class_statement => quoted(&["class"]),
        Rule::device => quoted(&["device"]),
        Rule::grads | Rule::op_grad => quoted(&["grad"]),
        Rule::cublaslt => quoted(&["cublaslt"]),
        Rule::template => quoted(&["template"]),
        Rule::pointwise => quoted(&["pointwise"]),
        Rule::rowwise => quoted(&["rowwise"]),
        Rule::composed => quoted(&["composed"]),
        Rule::tiled => quoted(&["tiled"]),
        Rule::tune => quoted(&["tune"]),
        Rule::launch => quoted(&["launch"]),
        Rule::input => quoted(&["input", "const"]),
        Rule::given => quoted(&["given"]),
        Rule::expect => quoted(&["expect"]),
        Rule::expect_error => quoted(&["error"]),
        Rule::expect_fires => quoted(&["fires"]),
        Rule::expect_matches => quoted(&["matches"]),
        Rule::expect_equal => quoted(&["equal"]),
        Rule::expect_becomes => quoted(&["becomes"]),
        Rule::must => quoted(&["must"]),
        Rule::never => quoted(&["never"]),
        Rule::sites => quoted(&["count"]),
        Rule::place => quoted(&["at"]),
        Rule::op_body | Rule::default => quoted(&["="]),
        Rule::op_block => quoted(&["{"]),
        Rule::scalar_result => quoted(&["->"]),
        Rule::binders | Rule::index | Rule::members => quoted(&["["]),
        Rule::generics | Rule::type_args => quoted(&["<"]),
        Rule::class_dtypes | Rule::comprehension => quoted(&["for"]),
        Rule::edition
        | Rule::use_item
        | Rule::ruleset
        | Rule::scalar
        | Rule::op
        | Rule::pattern
        | Rule::rule_item
        | Rule::kernel
        | Rule::test
        | Rule::family
        | Rule::contract
        | Rule::item => quoted(&ITEM_WORDS),
        _ => None,
    }
}

fn is_operator(rule: Rule) -> bool {
    words(rule).is_none() && rule != Rule::EOI
}

/// The diagnostic for an item that does not parse. `following` is the first token after it.
pub(super) fn syntax_error(
    error: &Error<Rule>,
    tokens: &[Token],
    following: Option<&Token>,
    builder: &Builder<'_>,
) -> Diagnostic {
    let (InputLocation::Pos(offset) | InputLocation::Span((offset, _))) = error.location;
    let at = builder.base + offset as u32;
    let i = tokens.iter().position(|t| t.end > at).unwrap_or(tokens.len());
    let expected: &[Rule] = match &error.variant {
        ErrorVariant::ParsingError { positives, .. } => positives,
        ErrorVariant::CustomError { .. } => &[],
    };
    let site = Site { builder, tokens, i, following, expected };
    let d = site
        .first_word()
        .or_else(|| site.number())
        .or_else(|| site.statement_word())
        .or_else(|| site.semicolon())
        .unwrap_or_else(|| site.general());
    match d.hints.is_empty() && site.text(0) == "contract" {
        true => d.hint("write `must RULE;`, `must RULE count = 2;`, `must RULE at \"NODE\";` or `never RULE;`"),
        false => d,
    }
}

/// Maximum number of expected things in a message.
const MOST_EXPECTED: usize = 7;

/// The place where the grammar failed.
struct Site<'a> {
    builder: &'a Builder<'a>,
    tokens: &'a [Token],
    /// The unexpected token; `tokens.len()` if the item ended too early.
    i: usize,
    following: Option<&'a Token>,
    expected: &'a [Rule],
}

impl Site<'_> {
    fn text(&self, i: usize) -> &str {
        self.tokens.get(i).map_or("", |t| t.text(self.builder.text))
    }

    fn previous(&self) -> &str {
        self.i.checked_sub(1).map_or("", |i| self.text(i))
    }

    fn span(&self, i: usize) -> Span {
        let token = self.tokens.get(i).or(self.tokens.last());
        let (start, end) = token.map_or((0, 0), |t| (t.start, t.end));
        Span { file: self.builder.file, start, end }
    }

    fn expects(&self, rule: Rule) -> bool {
        self.expected.contains(&rule)
    }

    /// The item does not begin with an item keyword.
    fn first_word(&self) -> Option<Diagnostic> {
        if self.i > 0 {
            return None;
        }
        let word = self.text(0);
        let d = Diagnostic::error(Code(111), format!("`{}` does not start an item", shorten(word)), self.span(0))
            .label("not an item");
        let d = match closest(word, ITEM_WORDS.into_iter()) {
            Some(w) => d.hint(format!("did you mean `{w}`?")),
            None => match word {
                "fn" | "def" | "func" | "function" => {
                    d.hint("declare a function of numbers with `scalar`, a function of tensors with `op`")
                }
                "import" | "include" | "from" => d.hint("write `use FILE::*;`"),
                "let" | "const" | "static" => {
                    d.hint("a number has no name of its own: write it where it is used, or in the `let` of a rule")
                }
                "requires" | "prefer" | "saves" | "class" | "grad" => {
                    d.hint("it belongs to the previous item: remove the `;` that ends that item too early")
                }
                "rewrite" => d.hint("write `rule NAME: PATTERN => RESULT;`"),
                "var" | "Var" | "Func" => d.hint(
                    "names are declared where they belong: operands of a `scalar` or an `op`, inputs of a `test`",
                ),
                _ if self.text(1) == "(" => d.hint(format!(
                    "a function of numbers is `scalar {word}(x) = ..;`, one of tensors `op {word}(x: T[..s]) -> \
                     T[..s] = ..;`",
                )),
                _ => d,
            },
        };
        Some(d.note(format!("an item starts with one of {}", list(&ITEM_WORDS.map(|w| format!("`{w}`"))))))
    }

    /// A number followed directly by letters, or without digits after its point.
    fn number(&self) -> Option<Diagnostic> {
        let token = self.tokens.get(self.i).filter(|t| t.kind == Kind::Number)?;
        let word = token.text(self.builder.text);
        if word.bytes().all(|b| b.is_ascii_digit()) || word.parse::<f64>().is_ok() {
            return None;
        }
        let d = Diagnostic::error(Code(109), format!("`{}` is not a number", shorten(word)), self.span(self.i));
        let split = word.find(|c: char| c.is_ascii_alphabetic() || c == '_').unwrap_or(word.len());
        Some(match (&word[..split], &word[split..]) {
            (_, rest) if rest.starts_with('_') => d.hint("write the digits without `_`"),
            ("0", rest) if rest.starts_with(['x', 'X', 'b', 'o']) => d.hint("write it in decimal"),
            (digits, unit @ ("us" | "bytes")) if self.previous() == "saves" => {
                d.hint(format!("write a space in front of the unit: `saves {digits} {unit}`"))
            }
            _ if let Some(digits) = without_suffix(word) => {
                d.hint(format!("write `{digits}`: a number has the element type of what it is combined with"))
            }
            (digits, name) => {
                d.hint(format!("write a product as `{digits} * {}`; a name cannot start with a digit", shorten(name)))
            }
        })
    }

    /// `rowise;` in a kernel, `require n > 0;` in an op: an unknown keyword begins the statement.
    fn statement_word(&self) -> Option<Diagnostic> {
        let at = self.i.checked_sub(1)?;
        let opens = at.checked_sub(1).is_some_and(|before| matches!(self.text(before), "{" | ";"));
        let (item, words): (_, &[&str]) = match self.text(0) {
            "kernel" => ("a kernel", &KERNEL_WORDS),
            "op" => ("the block of an op", &["requires", "flops", "read", "write", "builtin"]),
            _ => return None,
        };
        let word = self.text(at);
        if !opens || !self.expects(Rule::assign) || words.contains(&word) {
            return None;
        }
        let d = Diagnostic::error(
            Code(101),
            format!("{item} cannot contain the statement `{}`", shorten(word)),
            self.span(at),
        )
        .label("not expected here");
        Some(match closest(word, words.iter().copied()) {
            Some(near) => d.hint(format!("did you mean `{near}`?")),
            None => {
                let quoted: Vec<String> = words.iter().map(|w| format!("`{w}`")).collect();
                d.note(format!("its statements start with {}", list(&quoted))).hint(match item {
                    "a kernel" => "choose a backend: `rowwise;`, `pointwise;`, or `template \"file.cu.j2\";`",
                    _ => "write a condition as `requires n > 0;` and a cost as `flops = 2 * n;`",
                })
            }
        })
    }

    /// `x.exp()`, `x.shape`: another language's method or property.
    fn method(&self) -> Option<String> {
        let word = self.tokens.get(self.i).filter(|t| t.kind == Kind::Word)?.text(self.builder.text);
        if let Some(hint) = self.qualified(word) {
            return Some(hint);
        }
        let of = self.i.checked_sub(2).filter(|_| self.previous() == ".").and_then(|last| self.operand(last))?;
        let called = self.text(self.i + 1) == "(";
        let others = if called && self.text(self.i + 2) != ")" { ", ..." } else { "" };
        Some(match word {
            "T" if !called => format!("there are no properties: write `transpose({of}, perm = [1, 0])`"),
            "ndim" | "dim" if !called => format!("there are no properties: write `rank({of})`"),
            "size" | "numel" if !called => format!("there are no properties: write `numel({of})`"),
            _ => format!("there are no methods or properties: write `{}({of}{others})`", shorten(word)),
        })
    }

    /// The expression that ends with that token, of which a method is called: a name, or what
    /// parentheses enclose with the name in front of them.
    fn operand(&self, last: usize) -> Option<String> {
        let is_name = |i: usize| self.tokens.get(i).is_some_and(|t| t.kind == Kind::Word);
        if is_name(last) {
            return Some(shorten(self.text(last)));
        }
        let mut depth = 0;
        let first = (0..=last).rev().find(|i| {
            depth += i32::from(self.text(*i) == ")") - i32::from(self.text(*i) == "(");
            depth == 0
        })?;
        let called = first.checked_sub(1).filter(|i| is_name(*i));
        // `(x + 1)` needs no parentheses as an operand.
        let (from, to) = if let Some(name) = called { (name, last) } else { (first + 1, last.checked_sub(1)?) };
        let [start, end] = [self.tokens.get(from)?.start, self.tokens.get(to)?.end];
        let text = self.builder.text.get(start as usize..end as usize)?;
        Some(if text.len() > 40 || text.contains('\n') { "...".to_string() } else { text.to_string() })
    }

    /// `torch.nn.functional.relu(x)`, `math.exp(x)`: a module in front of a name.
    fn qualified(&self, word: &str) -> Option<String> {
        let first = self.i.checked_sub(2)?;
        let mut last = self.i;
        while self.text(last + 1) == "." && self.tokens.get(last + 2).is_some_and(|t| t.kind == Kind::Word) {
            last += 2;
        }
        let is_module = last > self.i || foreign::is_module(self.text(first));
        let name = if last > self.i { self.text(last) } else { word };
        if self.previous() == "." && is_module && self.text(last + 1) != "(" {
            return foreign::number(name);
        }
        if let Some(ours) = foreign::function(name).filter(|_| self.previous() == "." && is_module) {
            return Some(ours);
        }
        (self.previous() == "." && is_module && self.text(last + 1) == "(").then(|| {
            format!(
                "write `{}(...)`: no module stands in front of a name, `use` brings names into sight",
                shorten(name)
            )
        })
    }

    /// Keywords by which other languages begin a condition, instead of `requires` in a rule.
    fn condition(&self) -> Option<String> {
        let word = self.text(self.i);
        if self.i >= 2 && self.text(self.i - 2) == "where" && self.expects(Rule::colon) {
            return Some("write a condition as `requires ...`; `where` gives types: `where x: T[m, k]`".to_string());
        }
        let foreign = ["if", "iff", "when", "whenever", "provided", "assuming", "guard", "unless"];
        let clause = self.expected.iter().filter_map(|r| words(*r)).flatten().any(|w| w == "`requires`");
        if self.i == 0 || !clause || !foreign.contains(&word) {
            return None;
        }
        let not = if word == "unless" { "not " } else { "" };
        Some(format!("write a condition as `requires {not}...`"))
    }

    /// A conditional in another language's syntax: `b if c else a`, `if c: a else b`.
    fn choice(&self) -> Option<String> {
        let before = self.tokens.get(..self.i)?;
        let last = |word: &str| before.iter().rposition(|t| t.text(self.builder.text) == word);
        let python = self.text(self.i) == "if" && self.i > 0 && !self.expects(Rule::becomes);
        let no_then = last("if").is_some_and(|at| last("then").is_none_or(|then| then < at))
            && (self.text(self.i) == "else" || self.expects(Rule::kw_then));
        (python || no_then).then(|| {
            "write a choice as `if c then a else b`, and a default for an absent operand as `(b else 0)`".to_string()
        })
    }

    /// What a missing `;` should follow: the last word or sign, or the whole of a `use`, because
    /// `*` alone says little.
    fn ended(&self) -> &str {
        let read = self.tokens.get(..self.i).unwrap_or_default();
        match (read.first(), read.last()) {
            (Some(first), Some(last)) if first.text(self.builder.text) == "use" => {
                let text = self.builder.text.get(first.start as usize..last.end as usize);
                text.filter(|t| !t.contains('\n')).unwrap_or(self.previous())
            }
            _ => self.previous(),
        }
    }

    /// The item ends without `;`, or the next statement begins without one.
    fn semicolon(&self) -> Option<Diagnostic> {
        let new_line = self.tokens.get(self.i).is_none_or(|t| t.first || t.text(self.builder.text) == "}");
        if self.i == 0 || !self.expects(Rule::semi) || !new_line {
            return None;
        }
        // A misspelt clause keyword is the likelier mistake.
        if self.i < self.tokens.len() && (self.misspelled().is_some() || self.condition().is_some()) {
            return None;
        }
        let previous = self.span(self.i - 1);
        let d = Diagnostic::error(Code(112), "missing `;`", previous)
            .label("expected `;` after this")
            .hint(format!("write `{};`", shorten(self.ended())));
        let next = self.tokens.get(self.i).or(self.following);
        Some(match next {
            Some(t) => {
                let found = t.text(self.builder.text);
                let span = Span { file: self.builder.file, start: t.start, end: t.end };
                d.also(span, format!("found {} instead", describe(found)))
            }
            None => d.note("the file ends here"),
        })
        .map(|d| match self.quotient() {
            Some(hint) => d.hint(hint),
            None => d,
        })
    }

    /// `n // 2`: a comment, where other languages divide.
    fn quotient(&self) -> Option<&'static str> {
        let last = self.i.checked_sub(1).and_then(|i| self.tokens.get(i))?;
        let rest = self.builder.text.get(last.end as usize..)?.trim_start_matches(' ');
        let divisor = rest.strip_prefix("//")?.trim_start_matches(' ');
        let divides = divisor.starts_with(|c: char| c.is_ascii_digit());
        divides.then_some("`//` begins a comment; write a quotient as `a / b`")
    }

    /// An expected keyword that is close to the one found.
    fn misspelled(&self) -> Option<String> {
        if self.tokens.get(self.i)?.kind != Kind::Word {
            return None;
        }
        let keywords: Vec<String> = self.expected.iter().filter_map(|r| words(*r)).flatten().collect();
        let bare: Vec<&str> = keywords
            .iter()
            .map(|k| k.trim_matches('`'))
            .filter(|k| k.len() > 2 && k.chars().all(|c| c.is_ascii_lowercase()))
            .collect();
        closest(self.text(self.i), bare.into_iter()).map(str::to_string)
    }

    /// `expect equals x`: the word after `expect` is close to the name of an expectation.
    fn expectation_word(&self) -> Option<&'static str> {
        let before = self.i.checked_sub(2)?;
        let word = (self.text(before) == "expect").then(|| self.text(self.i - 1))?;
        closest(word, ["equal", "becomes", "fires", "error", "launches", "count"].into_iter())
    }

    /// A character that no editor shows, between the last two tokens before the error or in them:
    /// a no-break space, a space of no width.
    fn invisible(&self) -> Option<char> {
        let from = self.tokens.get(self.i.saturating_sub(2)).or(self.tokens.first())?.start;
        let to = self.tokens.get(self.i).or(self.tokens.last())?.end;
        let text = self.builder.text.get(from as usize..to as usize)?;
        let hidden = |c: &char| {
            (c.is_whitespace() && !c.is_ascii()) || matches!(*c, '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}')
        };
        text.split("//").next()?.chars().find(hidden)
    }

    fn general(&self) -> Diagnostic {
        let found = match self.tokens.get(self.i) {
            Some(t) => describe(t.text(self.builder.text)),
            None => "the end of the item".to_string(),
        };
        let expected = self.expectation();
        let code = if self.wrong_sign().is_some() { Code(113) } else { Code(101) };
        let span = self.span(self.i);
        let mut d = Diagnostic::error(code, format!("expected {expected}, found {found}"), span);
        d = d.label(if self.i < self.tokens.len() {
            "not expected here".to_string()
        } else {
            format!("expected {expected} after this")
        });
        if let Some(sign) = self.invisible() {
            return d.hint(format!("remove the invisible character U+{:04X} in front of this", u32::from(sign)));
        }
        if let Some(hint) = self.habit() {
            return d.hint(hint);
        }
        if let Some(hint) = self.wrong_sign() {
            return d.hint(hint);
        }
        if let Some(word) = self.expectation_word() {
            return d.hint(format!("did you mean `expect {word}`?"));
        }
        if let Some(hint) = self.method() {
            return d.hint(hint);
        }
        if let Some(hint) = self.condition() {
            return d.hint(hint);
        }
        if let Some(word) = self.misspelled() {
            return d.hint(format!("did you mean `{word}`?"));
        }
        if let Some(hint) = self.choice() {
            return d.hint(hint);
        }
        if let Some(hint) = self.negative() {
            return d.hint(hint);
        }
        if self.text(self.i) == "let" && self.text(0) == "scalar" {
            let name = self.text(self.i + 1);
            let name = if name.is_empty() { "part" } else { name };
            return d.hint(format!(
                "a scalar has no `let`: declare the part as a scalar of its own, `scalar {0}(x) = ...;`, and write \
                 `{0}(x)`",
                shorten(name)
            ));
        }
        if self.text(self.i) == "let" && self.text(0) == "test" {
            return d.hint("a test has no `let`: write the expression where it is used, in `given` and in `expect`");
        }
        if self.text(self.i) == "let" && self.i > 1 && self.text(0) == "rule" {
            return d.hint("`let` stands behind the right side: `relu(x + c) => max(x, z) let z = value(c) + 1.0`");
        }
        if self.text(self.i) == "let" && self.i > 1 && self.text(0) == "op" {
            return d.hint("write `let` after the expression that uses it: `= c * c let c = x - y;`");
        }
        if self.tokens.get(self.i).is_some_and(|t| t.kind == Kind::Word) && is_reserved(self.text(self.i)) {
            return d.note(format!("`{}` is a keyword and cannot be a name", self.text(self.i)));
        }
        if let Some(hint) = self.shape_of_item() {
            return d.hint(hint);
        }
        if let Some(hint) = self.no_operand() {
            return d.hint(hint);
        }
        if self.open_choice() {
            return d.hint("a choice has a value for both cases: write `if c then a else b`");
        }
        if opens_item(self.tokens, self.i, self.builder.text) && self.i > 0 {
            return d.hint("is there a `;` missing before it?");
        }
        d
    }

    /// `approx(-1, 0)`: a sign in front of a number that has none.
    fn negative(&self) -> Option<&'static str> {
        if self.text(self.i) != "-" || !self.expects(Rule::number) {
            return None;
        }
        let before = self.tokens.get(..self.i)?;
        let open = before.iter().rposition(|t| t.text(self.builder.text) == "(")?;
        let class = open.checked_sub(1).map(|at| self.text(at))?;
        matches!(class, "approx" | "within").then_some("write the bound of a class without a sign: it is at least 0")
    }

    /// `if c then x`: a choice that ends before its `else`.
    fn open_choice(&self) -> bool {
        let before = self.tokens.get(..self.i).unwrap_or_default();
        let last = before.iter().rev().map(|t| t.text(self.builder.text)).find(|w| matches!(*w, "then" | "else"));
        last == Some("then") && self.expects(Rule::kw_else)
    }

    /// `x + ;`, `x + * 2`: an operator without its operand.
    fn no_operand(&self) -> Option<String> {
        let operator =
            |w: &str| matches!(w, "+" | "-" | "*" | "/" | "%" | "**" | "==" | "!=" | "<" | ">" | "<=" | ">=");
        let (before, found) = (self.previous(), self.text(self.i));
        let ended = self.i >= self.tokens.len() || matches!(found, ";" | "," | ")" | "]" | "}");
        if operator(before) || matches!(before, "and" | "or" | "not") {
            return Some(if ended || operator(found) {
                format!("write the operand of `{before}` after it, or remove `{before}`")
            } else {
                format!("write an expression after `{before}`: a name, a number, a call, or `(...)`")
            });
        }
        (ended && matches!(before, "=" | "=>"))
            .then(|| format!("write an expression after `{before}`, such as `x + 1`"))
    }

    /// A hint about the enclosing item, if it uses another language's syntax.
    fn shape_of_item(&self) -> Option<String> {
        let token = self.tokens.get(self.i)?;
        let found = self.text(self.i);
        let before = || self.tokens.get(..self.i).unwrap_or_default().iter().map(|t| t.text(self.builder.text));
        let clauses = ["where", "let", "requires", "prefer", "saves", "class"];
        Some(match found {
            "," if self.text(0) == "ruleset" => {
                "a setting has one value: `before` and `after` name one ruleset, and another one says so itself".into()
            }
            word if self.text(0) == "rule" && self.expects(Rule::becomes) && clauses.contains(&word) => {
                format!("write `{word}` behind the right side: `f(x) => g(x) {word} ..`")
            }
            "," if self.text(0) == "rule" && clauses.contains(&self.text(self.i + 1)) => {
                "remove the `,`: the clauses of a rule follow each other without one".into()
            }
            ";" if self.text(0) == "rule" && self.expects(Rule::becomes) && before().any(|w| w == "==") => {
                "write `=>` between the two sides of a rule; `==` compares".into()
            }
            "(" if self.text(0) == "rule" && self.expects(Rule::colon) => {
                "a rule has no parameters, its left side binds the variables: `rule set::name: f(f(x)) => f(x);`".into()
            }
            _ if self.expects(Rule::saves_unit) => "write the unit: `saves 3 us`, `saves 4096 bytes`".into(),
            "." if self.previous() == ".." => "write two dots and a name: `..s`".into(),
            _ if self.previous() == "?" => {
                "write a choice as `if c then a else b`; `?` marks an optional name: `bias?`, `cast?(x)`".into()
            }
            _ if self.text(0) == "test" && self.expects(Rule::input) => {
                "declare operands, `input x: f32[4, 4];`, and say what is computed, `given exp(x);`".into()
            }
            _ if matches!(self.previous(), "const" | "value" | "shape" | "dtype" | "rank")
                && token.kind == Kind::Word =>
            {
                format!("write `{}({})`", self.previous(), shorten(found))
            }
            "{" if self.expects(Rule::assign) => "write the body after `=`, without braces: `f(x) = x + 1;`".into(),
            "," if is_digits(self.previous()) && is_digits(self.text(self.i + 1)) => {
                format!("a fraction is written with a point: `{}.{}`", self.previous(), self.text(self.i + 1))
            }
            "," if self.text(0) == "rule" && self.expects(Rule::becomes) => {
                "put several roots in parentheses: `(p, q) => (r, s)`".into()
            }
            "," if self.text(0) == "test" && self.expects(Rule::semi) && self.previous() == "]" => {
                "write one input after the other: `input x: f32[4]; input y: f32[4];`".into()
            }
            "," if self.text(0) == "test" && self.expects(Rule::semi) => {
                "put several results in parentheses: `expect equal (a, b);`".into()
            }
            "," | ")" if self.expects(Rule::colon) => "give the operand a type: `x: T[..s]`".into(),
            _ if token.kind == Kind::Str && self.text(0) == "use" => {
                let module = found.trim_matches('"').trim_end_matches(".hyp").replace('/', "::");
                format!("write the module without quotes: `use {}::*;`", shorten(&module))
            }
            _ if token.kind != Kind::Sign && self.expects(Rule::comma) => {
                format!("is there a `,` missing before {}?", describe(found))
            }
            _ => return None,
        })
    }

    /// A sign that other languages use for what was expected here.
    fn wrong_sign(&self) -> Option<String> {
        let operator = self.expected.iter().any(|r| *r == Rule::eq || *r == Rule::add);
        Some(match self.text(self.i) {
            "=>" | "->" if self.expects(Rule::assign) => "write `=` before the body".to_string(),
            "==" if self.expects(Rule::assign) => "write `=` here; `==` compares".to_string(),
            "->" | "=" | "==" if self.expects(Rule::becomes) => {
                "write `=>` between the two sides of a rule".to_string()
            }
            "=" if operator => "write `==` to compare; `=` names an argument or starts a body".to_string(),
            ":" if self.expects(Rule::assign) && self.expects(Rule::scalar_result) => {
                "write `=` before the body, or `->` before the result's type if it is not a number".to_string()
            }
            "=>" | ":" | "=" if self.expects(Rule::arrow) || self.expects(Rule::scalar_result) => {
                "write `->` before the result's type".to_string()
            }
            ":" if self.expects(Rule::assign) => "write `=` here".to_string(),
            "=" if self.expects(Rule::colon) && self.text(0) == "scalar" => {
                "parameters of a scalar have no defaults: write the number in the body, or pass it in each call".into()
            }
            "=" if self.expects(Rule::colon) => "write `:` here".to_string(),
            "|" if self.previous() == "|" => "write `or`; a single `|` separates alternatives".to_string(),
            "*" if self.previous() == "*" => "write `**` for a power".to_string(),
            "=>" if operator => "write `>=` to compare; `=>` separates the two sides of a rule".to_string(),
            ";" if self.expects(Rule::comma) && !self.expects(Rule::semi) => "separate them with `,`".to_string(),
            "?" if operator => {
                "write a choice as `if c then a else b`; `?` marks an optional name: `bias?`, `cast?(x)`".to_string()
            }
            _ => return None,
        })
    }

    /// The expected things in words, at most [`MOST_EXPECTED`]; operators only if there is nothing
    /// else.
    fn expectation(&self) -> String {
        let mut all: Vec<String> = Vec::new();
        for w in self.expected.iter().filter_map(|r| words(*r)).flatten() {
            if !all.contains(&w) {
                all.push(w);
            }
        }
        let operators = self.expected.iter().any(|r| is_operator(*r));
        // After a complete expression, postfix brackets are possible but unlikely to be meant.
        if operators && all.len() > 1 {
            all.retain(|w| !matches!(w.as_str(), "`[`" | "`(`" | "`<`" | "`::`" | "`?`" | "`else`" | "`:`"));
        }
        if all.contains(&"an expression".to_string()) {
            all.retain(|w| !matches!(w.as_str(), "`not`" | "`if`" | "a name" | "a number"));
        }
        if all.is_empty() {
            all.push("an operator".to_string());
        }
        if all.len() > MOST_EXPECTED && all.len() < ITEM_WORDS.len() {
            all.truncate(MOST_EXPECTED);
        }
        list(&all)
    }
}

fn describe(found: &str) -> String {
    match found.chars().next() {
        Some('"') => format!("the string {}", shorten(found)),
        Some(c) if c.is_ascii_digit() => format!("the number `{}`", shorten(found)),
        _ => format!("`{}`", shorten(found)),
    }
}

/// At most 40 characters of a token.
pub(super) fn shorten(text: &str) -> String {
    if text.chars().count() > 40 { text.chars().take(37).chain("...".chars()).collect() } else { text.to_string() }
}

fn is_reserved(word: &str) -> bool {
    const WORDS: [&str; 18] = [
        "and", "or", "not", "in", "if", "then", "else", "for", "true", "false", "none", "inf", "nan", "requires",
        "prefer", "class", "grad", "let",
    ];
    WORDS.contains(&word)
}

/// `a, b or c`
fn list(all: &[String]) -> String {
    match all {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// A number without the suffix that names its type in other languages: `1e-5f`.
fn without_suffix(word: &str) -> Option<&str> {
    let digits = word.strip_suffix(['f', 'F', 'd', 'D', 'h', 'H', 'l', 'L'])?;
    digits.parse::<f64>().is_ok().then_some(digits)
}

/// Whether a word is an integer.
fn is_digits(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit())
}
