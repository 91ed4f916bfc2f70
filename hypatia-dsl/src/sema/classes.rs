//! Rounding classes, as rules and kernels claim them.
//!
//! In: the `class` of an item. Out: a [`Claim`] for each of its parts. Invariant: at most one class
//! is claimed for an element type, and a class of integers for integer types only.

use crate::ast::{self, Spanned};
use crate::diag::Diagnostic;
use crate::dtype::DType;
use crate::ir::{Claim, Class};
use crate::spell::closest;

use super::code;
use super::context::Cx;
use super::types::element_type_hint;

/// The claimed rounding classes.
pub(super) fn claims(cx: &mut Cx<'_>, classes: &[ast::ClassExpr]) -> Option<Vec<Claim>> {
    let mut out: Vec<Claim> = Vec::new();
    let mut good = true;
    for c in classes {
        let class = match (c.class.node.as_str(), c.bounds.as_slice()) {
            ("exact", []) => Some(Class::Exact),
            ("finite", []) => Some(Class::Finite),
            ("rounds", []) => Some(Class::Rounds),
            ("ties", []) => Some(Class::Ties),
            ("within", bounds) => within(cx, c, bounds),
            ("approx", bounds) => approx(cx, c, bounds),
            ("exact" | "finite" | "rounds" | "ties", [bound, ..]) => {
                let name = &c.class.node;
                let d = Diagnostic::error(code::CLASS, format!("class `{name}` takes no number"), bound.span);
                cx.report(d.hint(format!("write `class {name}`")))
            }
            _ => cx.report(no_class(&c.class)),
        };
        if c.dtypes.is_empty() && out.iter().any(|o| o.dtypes.is_empty()) {
            good = false;
            let d = Diagnostic::error(code::CLASS, "two classes are claimed for every element type", c.class.span)
                .label("the second one");
            cx.report::<()>(
                d.hint("keep one of them, or name the types of each: `class exact for f32, rounds for f16`"),
            );
        }
        let mut dtypes = Vec::new();
        for n in &c.dtypes {
            match cx.dtype_named(&n.node) {
                Some(d) if out.iter().any(|o| o.dtypes.contains(&d)) || dtypes.contains(&d) => {
                    good = false;
                    cx.error::<()>(code::CLASS, format!("`{}` has two classes", n.node), n.span);
                }
                Some(d) => {
                    good &= class.is_none_or(|class| of_integers(cx, class, d, n).is_some());
                    dtypes.push(d);
                }
                None => {
                    good = false;
                    let said = format!("there is no element type `{}`", n.node);
                    let d = Diagnostic::error(code::CLASS, said, n.span);
                    cx.report::<()>(match n.node.as_str() {
                        "float" => d.hint("name each of them: `for f64, f32, f16, bf16`; without `for`, all are meant"),
                        _ => element_type_hint(d, &n.node),
                    });
                }
            }
        }
        match class {
            Some(class) => out.push(Claim { class, dtypes }),
            None => good = false,
        }
    }
    good.then_some(out)
}

/// The class of integers that a rule claims without naming element types.
pub(super) fn untyped_of_integers(r: &ast::Rule) -> Option<&ast::Name> {
    let of_integers = |c: &&ast::ClassExpr| c.dtypes.is_empty() && matches!(c.class.node.as_str(), "within" | "ties");
    r.classes.iter().find(of_integers).map(|c| &c.class)
}

/// `approx(rel, abs)`. One number is the old spelling, which counted units in the last place.
fn approx(cx: &mut Cx<'_>, c: &ast::ClassExpr, bounds: &[Spanned<f64>]) -> Option<Class> {
    let valid = |b: &Spanned<f64>| b.node >= 0.0 && b.node.is_finite();
    match bounds {
        [rel, abs] if valid(rel) && valid(abs) => Some(Class::Approx { rel: rel.node, abs: abs.node }),
        [units] => {
            let said = "`approx` takes a relative and an absolute bound, no units in the last place";
            let d = Diagnostic::error(code::CLASS, said, units.span).label("one number");
            // A small number is a relative bound, whatever it was once.
            cx.report(match ast::counts_units(units.node) {
                true => d.hint("`hypatia fmt` turns `approx(units)` into `approx(rel, abs)`"),
                false => d.hint(format!("write both: `approx({}, 0)`", units.node)),
            })
        }
        _ => {
            let said = "`approx` takes a relative and an absolute bound";
            let d = Diagnostic::error(code::CLASS, said, c.class.span).hint("write `class approx(1e-6, 0)`");
            cx.report(d)
        }
    }
}

/// `within(steps)`
fn within(cx: &mut Cx<'_>, c: &ast::ClassExpr, bounds: &[Spanned<f64>]) -> Option<Class> {
    const MOST: f64 = 1e6;
    match bounds {
        [n] if n.node >= 1.0 && n.node <= MOST && n.node.fract() == 0.0 => Some(Class::Within(n.node as u32)),
        _ => {
            let said = format!("`within` takes the number of steps that an integer may be off: 1 to {MOST}");
            let at = bounds.first().map_or(c.class.span, |b| b.span);
            cx.report(Diagnostic::error(code::CLASS, said, at).hint("write `class within(1)`"))
        }
    }
}

/// Reports a class of integers that is claimed for a type that is none.
fn of_integers(cx: &mut Cx<'_>, class: Class, dtype: DType, name: &Spanned<String>) -> Option<()> {
    let (word, fits) = match class {
        Class::Within(_) => ("within", dtype.is_int()),
        Class::Ties => ("ties", dtype.is_int()),
        _ => return Some(()),
    };
    if fits {
        return Some(());
    }
    let said = format!("class `{word}` is about integers, and `{dtype}` is no integer type");
    let d = Diagnostic::error(code::CLASS, said, name.span);
    cx.report(d.hint("name integer types, or none: results of other types are then judged as `rounds`"))
}

/// The error for a class that does not exist.
fn no_class(name: &ast::Name) -> Diagnostic {
    let d = Diagnostic::error(code::CLASS, format!("there is no rounding class `{}`", name.node), name.span)
        .label("unknown class")
        .note("the classes are exact, finite, rounds, within(steps), ties and approx(rel, abs)");
    match closest(&name.node, ["exact", "finite", "rounds", "within", "ties", "approx"].into_iter()) {
        Some(s) => d.hint(format!("did you mean `{s}`?")),
        None => d.hint("write `class exact` for the same bits, `class rounds` for the same function"),
    }
}
