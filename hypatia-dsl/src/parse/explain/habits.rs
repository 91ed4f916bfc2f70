//! What other languages write where the parser stopped.
//!
//! In: the tokens up to the one that does not fit, and what would. Out: how the language spells
//! what was probably meant. Invariant: a hint is given only where the tokens around leave no doubt.

use super::{Rule, Site, is_digits, shorten};
use crate::dtype::DType;
use crate::parse::scan::Kind;

/// The words that begin a clause of a rule.
const CLAUSES: [&str; 6] = ["where", "let", "requires", "prefer", "saves", "class"];

impl Site<'_> {
    /// How to write what the token here begins, if it is another language's.
    pub(super) fn habit(&self) -> Option<String> {
        let (found, before) = (self.text(self.i), self.previous());
        let back = |n: usize| self.i.checked_sub(n).map_or("", |i| self.text(i));
        let next = self.text(self.i + 1);
        Some(match found {
            "," if is_digits(before) => return grouped(before, next),
            "." if next.starts_with(|c: char| c.is_ascii_digit()) && !ends_operand(before) => {
                format!("write a digit in front of the point: `0.{}`", shorten(next))
            }
            ":" if self.text(0) == "scalar" && before == ")" => {
                "write `=` before the body: `scalar f(x) = x + 1;`".into()
            }
            "@" if before == ")" => {
                "a product is `matmul(relu(x), w)`; in front of `@` stands a name: `y @ relu(x)`".into()
            }
            "(" if DType::ALL.iter().any(|d| d.name() == before) => {
                format!("write the sizes in brackets: `{before}[{}]`", self.listed())
            }
            word if DType::ALL.iter().any(|d| d.name() == word) && before == "(" && is_class(back(2)) => {
                format!("write `{0} for {1}`: `class {0} for {1}`", back(2), shorten(word))
            }
            word if CLAUSES.contains(&word) && before == "," && self.text(0) == "rule" => {
                format!("remove the `,` before `{word}`: the clauses of a rule follow each other without one")
            }
            "as" if ends_operand(before) && self.text(0) != "use" => {
                format!("write a conversion as `cast({}, to = {})`", shorten(before), type_or(next))
            }
            "mod" if ends_operand(before) => format!("write a remainder as `{} % {}`", shorten(before), shorten(next)),
            "div" if ends_operand(before) => format!("write a quotient as `{} / {}`", shorten(before), shorten(next)),
            word if before == ")" && self.converts() => {
                format!("write a conversion as `cast({}, to = {})`", shorten(word), back(2))
            }
            "*" if matches!(before, "[" | ",") && self.expects(Rule::rbracket) => {
                "write `..s` for any number of sizes, `_` for one of any value".into()
            }
            "::" if before == "[" => "a list has no slices: write its elements, `[p[1], p[0]]`".into(),
            "<" | "[" | "=" | ";" | ")" | "," | "{" if self.expects(Rule::lbracket) && is_tensor_word(before) => {
                "write the element type and the sizes: `f32[n, m]`, `T[..s]` for any; `f32[]` is one number".into()
            }
            _ => return self.declared().or_else(|| self.part()),
        })
    }

    /// `(f32) x`: an element type in parentheses in front of an operand.
    fn converts(&self) -> bool {
        let at = |n: usize| self.i.checked_sub(n).map_or("", |i| self.text(i));
        at(3) == "("
            && DType::from_name(at(2)).is_some()
            && self.tokens.get(self.i).is_some_and(|t| t.kind == Kind::Word)
    }

    /// The form of an item that is declared in another way.
    fn declared(&self) -> Option<String> {
        let (item, found) = (self.text(0), self.text(self.i));
        let is_word = self.tokens.get(self.i).is_some_and(|t| t.kind == Kind::Word);
        let hint = match item {
            "use" if self.tokens.get(self.i).is_none_or(|t| t.kind != Kind::Str) => {
                "write `use core::*;` for all names of a file, or `use core::exp;` for one"
            }
            "edition" => "write `edition 1;`",
            "family" if found == "," => "write the members in braces: `family smooth = {gelu, silu};`",
            "scalar" if self.expects(Rule::lparen) && matches!(found, "=" | ":") => {
                "write the parameters in parentheses: `scalar f(x) = x + 1;`"
            }
            "op" if found == ";" && self.expects(Rule::assign) => {
                "write what it computes, `= relu(x);`, or the name of a builtin"
            }
            "rule" if found == "." && self.i == 2 => {
                "write `::` between the ruleset and the rule's name: `rule mine::square: ..`"
            }
            "rule" if self.i == 4 && is_word && self.expects(Rule::colon) => {
                "write `:` behind the rule's name: `rule mine::square: x * x => square(x);`"
            }
            "rule" if found == "<" && self.expects(Rule::colon) => {
                "write the members of a family in brackets: `rule mine::each[g in unary]: ..`"
            }
            "rule" if found == "if" && self.expects(Rule::becomes) => {
                "write a condition behind the right side: `relu(x) => x requires rank(x) == 2`"
            }
            "rule" if found == ":" && self.previous() == "class" => "write the class without a `:`: `class exact`",
            "kernel" if found == "{" && self.i == 1 => {
                "give the kernel a name, and say what it computes: `kernel rows for softmax(x) { rowwise; }`"
            }
            "kernel" if found == "(" && self.i == 2 => {
                "write no parameters: they are those of the pattern behind `for`, `kernel rows for softmax(x) ..`"
            }
            "rule" if found == "]" && self.expects(Rule::colon) => {
                "name the family whose members it stands for: `rule mine::each[g in unary]: ..`"
            }
            "rule" if self.expects(Rule::becomes) && (found == ";" || CLAUSES.contains(&found)) => {
                let before = self.tokens.get(..self.i).unwrap_or_default();
                let sign = before.iter().map(|t| t.text(self.builder.text)).find(|w| matches!(*w, "==" | "<="))?;
                return Some(format!("write `=>` between the two sides of a rule; `{sign}` compares"));
            }
            "test" if found == "{" && self.i == 1 => "give the test a name: `test \"it fuses\" { .. }`",
            _ => return None,
        };
        Some(hint.into())
    }

    /// `x[0:4]`: a part of a tensor.
    fn part(&self) -> Option<String> {
        let number = |i: Option<usize>| i.is_some_and(|i| is_digits(self.text(i)));
        let colon = (1..=2).filter_map(|n| self.i.checked_sub(n)).find(|i| self.text(*i) == ":");
        let at = colon.or_else(|| Some(self.i).filter(|i| self.text(*i) == ":"))?;
        let start = at.checked_sub(1);
        let open = at.checked_sub(if number(start) { 2 } else { 1 }).filter(|i| self.text(*i) == "[")?;
        let name = open.checked_sub(1).filter(|i| self.tokens.get(*i).is_some_and(|t| t.kind == Kind::Word))?;
        let first = start.filter(|_| number(start)).map_or("0", |i| self.text(i));
        let last = Some(at + 1).filter(|i| number(Some(*i))).map_or("n", |i| self.text(i));
        let name = shorten(self.text(name));
        Some(format!("write a part of a tensor as `slice({name}, axis = 0, start = {first}, stop = {last})`"))
    }

    /// What parentheses from here on enclose, if they close on the same line.
    fn listed(&self) -> String {
        let behind = self.tokens.get(self.i + 1..).unwrap_or_default();
        let texts = behind.iter().map(|t| t.text(self.builder.text)).take_while(|t| !matches!(*t, ")" | ";" | "}"));
        shorten(&texts.take(12).collect::<Vec<_>>().join(" ").replace(" ,", ","))
    }
}

/// Whether what stands before may have a result of that number.
fn ends_operand(before: &str) -> bool {
    before == ")" || before == "]" || before.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// An element type, or a word that others use for a tensor.
fn is_tensor_word(word: &str) -> bool {
    DType::from_name(word).is_some() || matches!(word, "Tensor" | "tensor" | "Array" | "array")
}

fn type_or(word: &str) -> &str {
    if DType::from_name(word).is_some() { word } else { "f32" }
}

fn is_class(word: &str) -> bool {
    matches!(word, "exact" | "finite" | "rounds")
}

/// `1,000` and `1,000.5`: groups of digits.
fn grouped(before: &str, next: &str) -> Option<String> {
    let (digits, rest) = next.split_at(next.find(|c: char| !c.is_ascii_digit()).unwrap_or(next.len()));
    if digits.len() != 3 || before.len() > 3 {
        return None;
    }
    Some(match rest {
        "" => format!("write `{before}{digits}` without a `,`, or a fraction with a point: `{before}.{digits}`"),
        rest => format!("write the number without a `,`: `{before}{digits}{}`", shorten(rest)),
    })
}
