//! Gives each reader of a wide value, or of a small one, a value of its own.
//!
//! In: a graph. Out: the same function, in which values that are cheap to compute again, from
//! narrower ones, have one reader each. A value is wide if it is cast to a wider type, or computed
//! from wide values and from operands that are small beside it. What is cast back is as good as
//! wide if it is computed from one value and no reader needs it in memory: a product stores it
//! anyway, and of two values readers would read twice as much. A value is small if all its readers
//! are pointwise and have more elements, and it is one instruction of one value and of others that
//! are small beside it, so that readers read no more than before. Invariant: what is neither is
//! computed once, as before. Regions may then compute a wide value where it is read, and store what
//! it is computed from ([`crate::cluster_rows`]); where they do not, equal nodes of a region are
//! one value of its kernel.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::shape::Dim;

use super::kinds::{builtin, is_light, is_pointwise, is_reduction};
use super::replace::copy;
use super::{Graph, Value};
use hypatia_tensor::error::Result;

/// The most functions between a wide value and a narrower one.
const DEEPEST: usize = 6;
/// The most copies of a value.
const MOST: usize = 8;
/// An operand is small if it has at most one element for this many of the result.
const SMALL: i64 = 8;

/// The graph with wide values that have one reader each.
///
/// # Errors
/// If a node cannot be built again.
pub fn with_own_wide_values(graph: &Graph) -> Result<Graph> {
    let wide = wide(graph);
    let mut out = Graph::new(graph.program.clone());
    let mut map: Vec<Vec<Value>> = vec![Vec::new(); graph.nodes.len()];
    for (i, node) in graph.nodes.iter().enumerate() {
        if !wide[i] {
            map[i] = own(graph, &wide, &map, i, &mut out)?;
            name(&mut out, &map[i], &node.name);
        }
    }
    for (text, v) in &graph.outputs {
        let made = &map[v.node.index()];
        let made = if made.is_empty() { own(graph, &wide, &map, v.node.index(), &mut out)? } else { made.clone() };
        out.output(text.clone(), made[v.output as usize]);
    }
    out.inputs = graph.inputs.iter().map(|id| map[id.index()][0].node).collect();
    Ok(out)
}

/// Builds a node, on wide operands of its own.
fn own(graph: &Graph, wide: &[bool], map: &[Vec<Value>], at: usize, out: &mut Graph) -> Result<Vec<Value>> {
    let node = &graph.nodes[at];
    let mut operands = Vec::with_capacity(node.operands.len());
    for v in &node.operands {
        operands.push(match v {
            Some(v) if wide[v.node.index()] => {
                let made = own(graph, wide, map, v.node.index(), out)?;
                name(out, &made, &graph.node(v.node).name);
                Some(made[v.output as usize])
            }
            Some(v) => Some(map[v.node.index()][v.output as usize]),
            None => None,
        });
    }
    copy(out, node, &operands)
}

fn name(out: &mut Graph, made: &[Value], text: &str) {
    if let Some(v) = made.first() {
        out.nodes[v.node.index()].name = text.to_string();
    }
}

/// Which nodes make wide values of which there may be several.
fn wide(graph: &Graph) -> Vec<bool> {
    let elements = |v: Value| graph.ty(v).shape.iter().map(Dim::as_const).try_fold(1i64, |n, d| n.checked_mul(d?));
    let mut depth = vec![0usize; graph.nodes.len()];
    // What wide values are computed from.
    let mut sources: Vec<Vec<Value>> = vec![Vec::new(); graph.nodes.len()];
    let users = graph.users();
    let in_memory = |i: usize| {
        let computes = |u: &super::NodeId| {
            let user = graph.node(*u);
            is_pointwise(graph, user) || is_reduction(graph, user)
        };
        !users[i].iter().all(computes) || graph.outputs.iter().any(|(_, v)| v.node.index() == i)
    };
    for (i, node) in graph.nodes.iter().enumerate().filter(|(_, n)| is_pointwise(graph, n)) {
        let result = Value { node: super::NodeId(i as u32), output: 0 };
        let Some(own) = elements(result) else { continue };
        let large = |v: &&Value| elements(**v).is_none_or(|n| n.saturating_mul(SMALL) > own);
        let operands: Vec<Value> = node.operands.iter().flatten().filter(large).copied().collect();
        let narrower = |v: &Value| graph.ty(*v).dtype.size() < graph.ty(result).dtype.size();
        depth[i] = match operands.as_slice() {
            [of] if builtin(graph, node) == Some(BuiltinOp::Cast) && narrower(of) => 1,
            [] => 0,
            all if all.iter().all(|v| depth[v.node.index()] > 0) => {
                1 + all.iter().map(|v| depth[v.node.index()]).max().unwrap_or(0)
            }
            _ => 0,
        };
        if depth[i] == 1 {
            sources[i].clone_from(&operands);
        } else {
            for v in operands.iter().flat_map(|v| sources[v.node.index()].clone()).collect::<Vec<_>>() {
                if !sources[i].contains(&v) {
                    sources[i].push(v);
                }
            }
        }
        let size = |v: Value| graph.ty(v).dtype.size();
        let narrow = sources[i].iter().any(|v| size(*v) >= size(result));
        if depth[i] > DEEPEST || (narrow && (sources[i].len() > 1 || in_memory(i))) {
            depth[i] = 0;
        }
    }
    for (i, node) in graph.nodes.iter().enumerate().filter(|(_, n)| is_pointwise(graph, n) && is_light(graph, n)) {
        let own = elements(Value { node: super::NodeId(i as u32), output: 0 });
        let large = |v: &&Value| elements(**v).zip(own).is_none_or(|(n, own)| n.saturating_mul(SMALL) > own);
        if node.operands.iter().flatten().filter(large).count() > 1 {
            continue;
        }
        let broadcasts = |u: &super::NodeId| {
            let more = elements(Value { node: *u, output: 0 }).zip(own).is_some_and(|(all, own)| all > own);
            more && is_pointwise(graph, graph.node(*u))
        };
        if users[i].iter().all(broadcasts) && !graph.outputs.iter().any(|(_, v)| v.node.index() == i) {
            depth[i] = depth[i].max(1);
        }
    }
    // How often a node would be built: once for each reader, as often as that is built.
    let mut copies = vec![0usize; graph.nodes.len()];
    graph.outputs.iter().for_each(|(_, v)| copies[v.node.index()] += 1);
    for (i, node) in graph.nodes.iter().enumerate().rev() {
        if !(2..=MOST).contains(&copies[i]) {
            depth[i] = 0;
        }
        let each = if depth[i] > 0 { copies[i] } else { 1 };
        node.operands.iter().flatten().for_each(|v| copies[v.node.index()] += each);
    }
    depth.into_iter().map(|d| d > 0).collect()
}
