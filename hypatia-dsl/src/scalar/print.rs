//! Terms as text in `.hyp` syntax.
//!
//! In: a term and the names of its leaves. Out: an expression without redundant parentheses;
//! parsing it gives the same function (`a - 1` and a literal `-1` may come back as negations of
//! literals, which `simplify` folds). Shared subterms are repeated at each use.

use crate::builtin::{BuiltinScalar, SECOND};
use crate::ir::{InView, Program, ScalarBody};

use super::{Term, TermId, TermNode};

/// Longer text is truncated with `...`.
const MAX_TEXT: usize = 1 << 16;
/// Deeper nesting is truncated in the same way.
const MAX_DEPTH: u32 = 200;

/// The only root, with these parameter names. Operands are `in(t0)`, `row(t1)` and so on.
pub fn show_term(program: &Program, term: &Term, params: &[String]) -> String {
    show_term_with(program, term, &|node| match node {
        TermNode::Param(i) => params.get(*i as usize).cloned().unwrap_or_else(|| format!("p{i}")),
        TermNode::In { input, view } => format!("{}(t{input})", view_word(*view)),
        TermNode::Second => SECOND.into(),
        _ => "acc".into(),
    })
}

/// The only root; `leaf` names each leaf that is not a number.
pub fn show_term_with(program: &Program, term: &Term, leaf: &dyn Fn(&TermNode) -> String) -> String {
    let mut printer = Printer { program, term, leaf, out: String::new() };
    if let Some(root) = term.roots.first() {
        printer.write(*root, 0, 0);
    }
    printer.out
}

/// The keyword for an operand with that view.
fn view_word(view: InView) -> &'static str {
    match view {
        InView::Broadcast => "in",
        InView::Row => "row",
        InView::Col => "col",
        InView::Full => "full",
    }
}

/// A number in `.hyp` syntax: `2`, `0.5`, `1e-5`, `-0.0`, `inf`, `nan`.
pub fn show_number(value: f64) -> String {
    if value.is_nan() {
        "nan".into()
    } else if value.fract() == 0.0 && value.abs() < 1e15 && !(value == 0.0 && value.is_sign_negative()) {
        format!("{value:.0}")
    } else if value.abs() >= 1e15 && value.is_finite() {
        format!("{value:e}")
    } else {
        format!("{value:?}")
    }
}

/// Precedence of the grammar's operators.
mod level {
    pub const OR: u8 = 1;
    pub const AND: u8 = 2;
    pub const NOT: u8 = 3;
    pub const COMPARE: u8 = 4;
    pub const SUM: u8 = 5;
    pub const PRODUCT: u8 = 6;
    pub const NEG: u8 = 7;
    pub const POWER: u8 = 8;
    pub const ATOM: u8 = 9;
}

struct Printer<'a> {
    program: &'a Program,
    term: &'a Term,
    leaf: &'a dyn Fn(&TermNode) -> String,
    out: String,
}

impl<'a> Printer<'a> {
    fn builtin(&self, id: TermId) -> Option<(BuiltinScalar, &'a [TermId])> {
        let TermNode::Call { scalar, args } = self.term.node(id) else { return None };
        match self.program.scalars.get(scalar.index())?.body {
            ScalarBody::Builtin(f) if f.params().len() == args.len() => Some((f, args)),
            _ => None,
        }
    }

    fn write(&mut self, id: TermId, outer: u8, depth: u32) {
        if self.out.len() > MAX_TEXT || depth > MAX_DEPTH {
            self.out.push_str("...");
            return;
        }
        let depth = depth + 1;
        if let Some((f, args)) = self.builtin(id)
            && self.operator(f, args, outer, depth)
        {
            return;
        }
        match self.term.node(id).clone() {
            TermNode::Lit(l) => {
                let text = show_number(l.0);
                let parenthesised = text.starts_with('-') && outer > level::NEG;
                self.out.push_str(&if parenthesised { format!("({text})") } else { text });
            }
            TermNode::Call { scalar, args } => {
                let name = self.program.scalars.get(scalar.index()).map_or("?", |d| d.name.as_str()).to_string();
                self.call(&name, &args, depth);
            }
            TermNode::Cast { to, arg } => self.call(&format!("cast<{to}>"), &[arg], depth),
            node => {
                let text = (self.leaf)(&node);
                self.out.push_str(&text);
            }
        }
    }

    fn call(&mut self, name: &str, args: &[TermId], depth: u32) {
        self.out.push_str(name);
        self.out.push('(');
        for (i, arg) in args.iter().enumerate() {
            self.out.push_str(if i > 0 { ", " } else { "" });
            self.write(*arg, 0, depth);
        }
        self.out.push(')');
    }

    /// Writes an application as an operator; returns false if it has none.
    fn operator(&mut self, f: BuiltinScalar, args: &[TermId], outer: u8, depth: u32) -> bool {
        use BuiltinScalar::*;
        let (sign, own) = match f {
            Add => (" + ", level::SUM),
            Sub => (" - ", level::SUM),
            Mul => (" * ", level::PRODUCT),
            Div => (" / ", level::PRODUCT),
            Fmod => (" % ", level::PRODUCT),
            Pow => (" ** ", level::POWER),
            Eq => (" == ", level::COMPARE),
            Lt => (" < ", level::COMPARE),
            Le => (" <= ", level::COMPARE),
            And => (" and ", level::AND),
            Or => (" or ", level::OR),
            Neg => ("-", level::NEG),
            Not => ("not ", level::NOT),
            _ => return false,
        };
        let not_equal = match (f, args) {
            (Not, &[inner]) => match self.builtin(inner) {
                Some((Eq, pair)) => Some(pair.to_vec()),
                _ => None,
            },
            _ => None,
        };
        let own = if not_equal.is_some() { level::COMPARE } else { own };
        let parenthesised = own < outer;
        if parenthesised {
            self.out.push('(');
        }
        match (&not_equal, args) {
            (Some(pair), _) => self.infix(" != ", pair, own, depth),
            (None, &[a]) => {
                self.out.push_str(sign);
                // `--x` would parse, but the sign must not become part of a literal.
                let literal = matches!(self.term.node(a), TermNode::Lit(_));
                self.write(a, if literal { level::ATOM } else { own }, depth);
            }
            (None, pair) => self.infix(sign, pair, own, depth),
        }
        if parenthesised {
            self.out.push(')');
        }
        true
    }

    /// Operators are left-associative, except `**`.
    fn infix(&mut self, sign: &str, pair: &[TermId], own: u8, depth: u32) {
        let &[a, b] = pair else { return };
        let power = own == level::POWER;
        self.write(a, own + power as u8, depth);
        self.out.push_str(sign);
        self.write(b, own + !power as u8, depth);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::testing::{library, term};
    use super::*;

    #[test]
    fn parentheses_where_needed_only() {
        let p = library();
        for text in [
            "x + y * 2",
            "(x + y) * 2",
            "x - (y - x)",
            "x - y - x",
            "x / (y * x)",
            "-(x * y)",
            "-x * y",
            "-x ** 2",
            "(-x) ** 2",
            "2 ** x ** y",
            "(2 ** x) ** y",
            "x * -y",
            "select(x < y and not (x == 0 or y <= 1), 1, 0.5)",
            "select(not x < y, -x, inf)",
            "select(x != y, 1e-5, 12345)",
            "gelu(x + y) * sigmoid(x % y)",
            "cast<f16>(x) + 1e300",
        ] {
            let t = term(&p, &["x", "y"], text);
            let shown = show_term(&p, &t, &["x".into(), "y".into()]);
            assert_eq!(term(&p, &["x", "y"], &shown), t, "{text} printed as {shown}");
            assert!(shown.len() <= text.len(), "{text} printed as {shown}");
        }
    }

    #[test]
    fn numbers() {
        for (x, text) in [(-0.0, "-0.0"), (1e15, "1e15"), (0.1, "0.1"), (-3.0, "-3"), (f64::NEG_INFINITY, "-inf")] {
            assert_eq!(show_number(x), text);
        }
    }
}
