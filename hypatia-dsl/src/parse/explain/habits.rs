//! What other languages write where the parser stopped.
//!
//! In: the tokens up to the one that does not fit, and what would. Out: how the language spells
//! what was probably meant. Invariant: a hint is given only where the tokens around leave no doubt.

use super::{Site, is_digits, shorten};
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
            _ => return self.part(),
        })
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
