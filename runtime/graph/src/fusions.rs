//! Which nodes of a graph become one kernel.
//!
//! In: a graph without constant expressions. Out: groups of nodes in an order in which they can
//! run; fusions have a name and a text. Invariant: a fusion does the work of at least two
//! operations. It is a product with an epilogue, a defined op, a region of pointwise nodes, or a
//! scalar function with a body.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::ir::{OpBody, Program, ScalarBody};
use hypatia_dsl::scalar::{Term, TermNode};
use serde::Serialize;

use super::print::show_attr_short;
use crate::{Graph, Node, NodeKind, cluster, constant_nodes, show_term};
use hypatia_tensor::error::Result;

/// A fused kernel of a graph.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fusion {
    /// Its name among the functions of an exported model.
    pub name: String,
    /// What it computes, in the language's syntax.
    pub formula: String,
    /// Number of calls.
    pub calls: usize,
}

/// Nodes that run as one kernel.
pub struct Group {
    /// Indices of the nodes, ascending.
    pub nodes: Vec<usize>,
    /// Its name and formula, if it is a fusion.
    pub fused: Option<(String, String)>,
}

/// Maximum length of a function's name.
const MAX_NAME: usize = 48;

/// The groups of a graph.
pub fn groups(graph: &Graph) -> Result<Vec<Group>> {
    let constant = constant_nodes(graph);
    let pointwise: Vec<bool> = graph
        .nodes
        .iter()
        .zip(&constant)
        .map(|(node, constant)| !constant && (matches!(node.kind, NodeKind::Scalar(_)) || is_cast(graph, node)))
        .collect();
    let groups = cluster(graph, &pointwise)?;
    Ok(groups.into_iter().map(|nodes| Group { fused: fused(graph, &nodes), nodes }).collect())
}

fn is_cast(graph: &Graph, node: &Node) -> bool {
    matches!(&node.kind, NodeKind::Op { op, .. } if graph.program.op(*op).body == OpBody::Builtin(BuiltinOp::Cast))
}

/// Name and formula of a group that does more than one operation.
fn fused(graph: &Graph, nodes: &[usize]) -> Option<(String, String)> {
    let program = &graph.program;
    if let [one] = nodes {
        let node = &graph.nodes[*one];
        return match &node.kind {
            NodeKind::Op { op, term: Some(term), .. } => {
                let product = program.op(*op).name.as_str();
                let from = node.operands.first().copied().flatten().map(|v| graph.ty(v).dtype);
                if is_plain(term) && from == node.results.first().map(|t| t.dtype) {
                    return None;
                }
                let name = joined(product, called(program, term));
                let factors = if graph.is_pair(node) { "a, b, c" } else { "a, b" };
                Some((name, format!("{product}({factors}, {})", show_term(program, term, &|i| format!("t{i}")))))
            }
            NodeKind::Op { op, attrs, .. } => {
                let def = program.op(*op);
                matches!(def.body, OpBody::Defined(_)).then(|| {
                    let attrs = def.attrs().zip(attrs);
                    let attrs: String =
                        attrs.map(|((_, p), v)| format!(", {} = {}", p.name, show_attr_short(v))).collect();
                    let operands: Vec<&str> = def.operands().map(|(_, p)| p.name.as_str()).collect();
                    (identifier(&def.name), format!("{}({}{attrs})", def.name, operands.join(", ")))
                })
            }
            NodeKind::Scalar(s) => {
                let def = program.scalar(*s);
                let params: Vec<&str> = def.params.iter().map(|(n, _)| n.as_str()).collect();
                matches!(def.body, ScalarBody::Term(_))
                    .then(|| (identifier(&def.name), format!("{}({})", def.name, params.join(", "))))
            }
            _ => None,
        };
    }
    let names: Vec<&str> = nodes.iter().map(|n| graph.head_name(crate::NodeId(*n as u32))).collect();
    Some((joined("pointwise", names.iter().map(|n| n.to_string())), names.join(", ")))
}

fn is_plain(term: &Term) -> bool {
    let root = term.roots.first().and_then(|r| term.nodes.get(r.0 as usize));
    matches!(root, Some(TermNode::Acc))
}

/// Names of the scalars that a term calls.
fn called<'a>(program: &'a Program, term: &'a Term) -> impl Iterator<Item = String> + 'a {
    term.nodes.iter().filter_map(|n| match n {
        TermNode::Call { scalar, .. } => Some(program.scalar(*scalar).name.clone()),
        TermNode::Cast { to, .. } => Some(to.name().to_string()),
        _ => None,
    })
}

/// `gemm_add_gelu`: consecutive duplicates appear once.
fn joined(first: &str, others: impl Iterator<Item = String>) -> String {
    let mut out = identifier(first);
    let mut last = String::new();
    for name in others {
        let name = identifier(&name);
        if name == last {
            continue;
        }
        if out.len() + name.len() > MAX_NAME {
            break;
        }
        out = format!("{out}_{name}");
        last = name;
    }
    out
}

/// Letters, digits and `_`.
fn identifier(name: &str) -> String {
    hypatia_dsl::ident::identifier("", name)
}
