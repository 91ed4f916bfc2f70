//! Both sides of a rule on one instance, in one graph.
//!
//! In: an instance of a rule's left side. Out: [`Sides`], or why the right side cannot be compared
//! with the left one. Invariant: the roots of both sides have the same types.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::ir::{AttrValue, Build, BuildArg, Rule};
use hypatia_dsl::typing::{TensorType, codes};

use super::generate::Instance;
use hypatia_graph::instantiate::Numbers;
use hypatia_graph::{Graph, Instantiator, Value};
use hypatia_tensor::error::Error;

/// Both sides in one graph: outputs are the left roots, then the right ones.
pub struct Sides {
    /// The graph.
    pub graph: Graph,
    /// The left roots.
    pub left: Vec<Value>,
    /// The right roots.
    pub right: Vec<Value>,
    /// The numbers behind constants that stand for literals.
    pub numbers: Numbers,
}

/// Why a right side cannot be compared with the left one.
pub enum NotComparable {
    /// The right side is undefined for an element type of the instance.
    NoMeaning(String),
    /// The right side has no value for another reason, or its type differs from the left side's.
    Broken(String),
    /// The rule is not applied to this instance.
    NotApplied(String),
}

impl From<Error> for NotComparable {
    fn from(e: Error) -> NotComparable {
        let message = format!("the right side has no value here: {e}");
        match e.code() {
            Some(codes::DTYPE) => NotComparable::NoMeaning(message),
            // The right side would be a product of bytes that is stored without a cast.
            Some(codes::BYTES) => NotComparable::NotApplied(message),
            _ => NotComparable::Broken(message),
        }
    }
}

impl NotComparable {
    /// The reason.
    pub fn message(self) -> String {
        match self {
            NotComparable::NoMeaning(m) | NotComparable::Broken(m) | NotComparable::NotApplied(m) => m,
        }
    }
}

/// Builds the right side next to the left one.
pub fn sides(rule: &Rule, instance: &Instance) -> Result<Sides, NotComparable> {
    let sides = untyped_sides(rule, instance)?;
    for (l, r) in sides.left.iter().zip(&sides.right) {
        let (l, r) = (sides.graph.ty(*l), sides.graph.ty(*r));
        if l != r {
            return Err(NotComparable::Broken(differ(l, r)));
        }
    }
    Ok(sides)
}

/// Says that the sides have these types, and what may be meant where only the elements differ.
fn differ(left: &TensorType, right: &TensorType) -> String {
    let said = format!("the left side is {left}, the right side is {right}");
    match left.shape == right.shape {
        true => format!(
            "{said}; write `to = dtype(x)` for the type of an operand `x`, or let the rule require it: \
             `requires dtype(x) == {}`",
            right.dtype
        ),
        false => said,
    }
}

/// Like [`sides`], but accepts any type of the right side.
pub fn untyped_sides(rule: &Rule, instance: &Instance) -> Result<Sides, NotComparable> {
    let mut graph = instance.graph.clone();
    let mut right = Vec::new();
    let mut numbers = instance.numbers.clone();
    for (build, left) in rule.rhs.iter().zip(&instance.left) {
        frozen(rule, build, instance, false).map_err(NotComparable::Broken)?;
        let mut env = instance.env.clone();
        env.number = Some(graph.ty(*left).dtype);
        let mut into = Instantiator::new(&mut graph);
        let value = into.build(build, &env)?;
        numbers.extend(std::mem::take(&mut into.numbers));
        // A bare number takes the type of what it replaces.
        let value = match build {
            Build::Number(_) => {
                let shape = graph.ty(*left).shape.iter().cloned().map(AttrValue::Dim).collect();
                let filled = graph.builtin(BuiltinOp::Expand, &[value], vec![AttrValue::List(shape)]);
                filled.map_err(|e| NotComparable::Broken(e.to_string()))?[0]
            }
            _ => value,
        };
        right.push(value);
    }
    for (i, v) in instance.left.iter().enumerate() {
        graph.output(format!("left{i}"), *v);
    }
    for (i, v) in right.iter().enumerate() {
        graph.output(format!("right{i}"), *v);
    }
    Ok(Sides { graph, left: instance.left.clone(), right, numbers })
}

/// Fails if `build(..)` reads a run-time value: such a rule matches but cannot be applied.
fn frozen(rule: &Rule, build: &Build, instance: &Instance, inside: bool) -> Result<(), String> {
    match build {
        Build::Var(v) => match instance.env.tensors.get(v) {
            Some(value) if inside && !instance.graph.is_const(*value) => {
                let name = rule.vars.get(v.index()).map_or("an operand", |v| v.name.as_str());
                Err(format!(
                    "`build(..)` is computed when the plan is made, but `{name}` is known at run time only: \
                     require `const({name})`"
                ))
            }
            _ => Ok(()),
        },
        Build::Number(_) | Build::Absent => Ok(()),
        Build::Else(v, other) => match instance.env.tensors.contains_key(v) {
            true => frozen(rule, &Build::Var(*v), instance, inside),
            false => frozen(rule, other, instance, inside),
        },
        Build::Frozen(inner) => frozen(rule, inner, instance, true),
        Build::If(_, a, b) => frozen(rule, a, instance, inside).and(frozen(rule, b, instance, inside)),
        Build::Node(node) => node.args.iter().try_for_each(|arg| match arg {
            BuildArg::One(b) => frozen(rule, b, instance, inside),
            BuildArg::Each { .. } | BuildArg::Spread(_) => Ok(()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypatia_dsl::dtype::DType;
    use hypatia_dsl::shape::Dim;

    fn ty(dtype: DType, shape: &[i64]) -> TensorType {
        TensorType { dtype, shape: shape.iter().map(|d| Dim::from(*d)).collect() }
    }

    #[test]
    fn another_element_type_has_a_hint() {
        let narrow = ty(DType::F32, &[2, 2]);
        assert!(differ(&ty(DType::F64, &[2, 2]), &narrow).ends_with("`requires dtype(x) == f32`"));
        assert_eq!(differ(&ty(DType::F64, &[2]), &narrow), "the left side is f64[2], the right side is f32[2, 2]");
    }
}
