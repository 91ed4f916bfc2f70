//! Text, JSON and Graphviz of a [`Graph`].
//!
//! In: any graph, even an invalid one. Out: one line per node with its type and attributes, and
//! epilogue terms in the language's syntax. `opt`, `explain` and the tests print it.

use std::fmt::Write;
use std::sync::Arc;

use hypatia_dsl::ir::AttrValue;
use hypatia_dsl::typing::TensorType;

use super::{Candidate, Graph, Node, NodeId, NodeKind, Strategy, Value, facts::splat, show_term};

impl std::fmt::Display for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.to_text())
    }
}

impl Graph {
    /// One line per node: `%3 = gemm(%x, %w, gelu(acc + row(%b)), to = bf16) : bf16[128, 512]`. If
    /// sizes that are not known yet decide which kernel computes it, the candidates follow on the
    /// next line, best first.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        for i in 0..self.nodes.len() {
            let id = NodeId(i as u32);
            let node = &self.nodes[i];
            let types: Vec<String> = node.results.iter().map(TensorType::to_string).collect();
            let types = types.join(", ");
            let _ = match &node.kind {
                NodeKind::Input { .. } => {
                    write!(out, "input {} : {types}", self.value_name(Value { node: id, output: 0 }))
                }
                NodeKind::Const(t) => {
                    let value = splat(t).map_or(String::new(), |v| format!(" = {}", super::term::show_number(v)));
                    write!(out, "const %{i} : {types}{value}")
                }
                _ => write!(out, "%{i} = {} : {types}", self.expression(node)),
            };
            if !node.name.is_empty() && !matches!(node.kind, NodeKind::Input { .. }) {
                let _ = write!(out, "  // {}", node.name.replace(['\n', '\r'], " "));
            }
            out.push('\n');
            if node.kernels.is_undecided() {
                let _ = writeln!(out, "    kernels: {}", self.describe_kernels(node).join("; "));
            }
        }
        for (name, value) in &self.outputs {
            let _ = writeln!(out, "output {name} = {}", self.value_name(*value));
        }
        out
    }

    /// The candidate kernels of a node as text, best first.
    pub fn describe_kernels(&self, node: &Node) -> Vec<String> {
        node.kernels.list.iter().map(|c| self.describe_kernel(node, c)).collect()
    }

    /// A candidate kernel of a node as text.
    pub fn describe_kernel(&self, node: &Node, candidate: &Candidate) -> String {
        let name = |i: usize| node.operands.get(i).copied().flatten().map_or("?".into(), |v| self.value_name(v));
        candidate.describe(&self.program, &name)
    }

    /// The optimised bodies in the lists of kernels, each once, with the nodes that it may compute.
    /// Empty if there are none.
    pub fn bodies_to_text(&self) -> String {
        let mut bodies: Vec<(&Arc<Graph>, Vec<String>)> = Vec::new();
        for (i, node) in self.nodes.iter().enumerate() {
            let mut parts = node.kernels.list.iter().filter_map(|c| match &c.strategy {
                Strategy::Composed(parts) => Some(parts),
                _ => None,
            });
            // All candidates of a node that run its body run the same one.
            let Some(parts) = parts.next() else { continue };
            let name = format!("%{i} = {}", self.head_name(NodeId(i as u32)));
            match bodies.iter_mut().find(|(known, _)| Arc::ptr_eq(known, parts)) {
                Some((_, names)) => names.push(name),
                None => bodies.push((parts, vec![name])),
            }
        }
        let mut out = String::new();
        for (parts, names) in bodies {
            let _ = writeln!(out, "parts of {}:", names.join(", "));
            for line in parts.to_text().lines() {
                let _ = writeln!(out, "    {line}");
            }
        }
        out
    }

    /// `%3`, `%3.1` for a further result, `%x` for an input of that name.
    pub fn value_name(&self, value: Value) -> String {
        match self.nodes.get(value.node.index()).map(|n| &n.kind) {
            Some(NodeKind::Input { name }) => format!("%{name}"),
            _ if value.output > 0 => format!("%{}.{}", value.node.0, value.output),
            _ => format!("%{}", value.node.0),
        }
    }

    /// The op's or scalar's name, `input` or `const`.
    pub fn head_name(&self, id: NodeId) -> &str {
        match &self.nodes[id.index()].kind {
            NodeKind::Input { .. } => "input",
            NodeKind::Const(_) => "const",
            NodeKind::Op { op, .. } => self.program.ops.get(op.index()).map_or("?", |o| &o.name),
            NodeKind::Scalar(s) => self.program.scalars.get(s.index()).map_or("?", |s| &s.name),
        }
    }

    fn expression(&self, node: &Node) -> String {
        let operand = |v: &Option<Value>| v.map_or("none".to_string(), |v| self.value_name(v));
        let tensors = self.tensor_operands(node);
        let mut args: Vec<String> = node.operands[..tensors].iter().map(operand).collect();
        let name = match &node.kind {
            NodeKind::Scalar(s) => self.program.scalars.get(s.index()).map_or("?", |s| &s.name),
            NodeKind::Op { op, attrs, term } => {
                let Some(def) = self.program.ops.get(op.index()) else {
                    return "?".into();
                };
                if let Some(term) = term {
                    let read = |i: u32| node.operands.get(tensors + i as usize).map_or("?".into(), operand);
                    args.push(show_term(&self.program, term, &read));
                }
                for (value, (_, param)) in attrs.iter().zip(def.attrs()) {
                    args.push(format!("{} = {}", param.name, show_attr_short(value)));
                }
                &def.name
            }
            NodeKind::Input { .. } | NodeKind::Const(_) => "?",
        };
        format!("{name}({})", args.join(", "))
    }

    /// The graph in Graphviz's DOT language.
    pub fn to_dot(&self) -> String {
        let escape = |s: &str| s.replace('\\', "\\\\").replace('"', "\\\"").replace(['\n', '\r'], " ");
        let mut out = String::from("digraph {\n  node [shape=box, fontname=monospace];\n");
        for (i, node) in self.nodes.iter().enumerate() {
            let label = match &node.kind {
                NodeKind::Input { name } => name.clone(),
                NodeKind::Const(_) => "const".into(),
                _ => self.expression(node),
            };
            let types: Vec<String> = node.results.iter().map(TensorType::to_string).collect();
            let _ = writeln!(out, "  n{i} [label=\"{}\\n{}\"];", escape(&label), escape(&types.join(", ")));
            for v in node.operands.iter().flatten() {
                let _ = writeln!(out, "  n{} -> n{i};", v.node.0);
            }
        }
        for (i, (name, v)) in self.outputs.iter().enumerate() {
            let _ = writeln!(out, "  o{i} [label=\"{}\", shape=ellipse];\n  n{} -> o{i};", escape(name), v.node.0);
        }
        out.push_str("}\n");
        out
    }

    /// The graph as JSON: nodes with head, operands, attributes, term and types; outputs by name.
    pub fn to_json(&self) -> serde_json::Value {
        let reference = |v: &Value| serde_json::json!({ "node": v.node.0, "output": v.output });
        let nodes: Vec<serde_json::Value> = (0..self.nodes.len())
            .map(|i| {
                let node = &self.nodes[i];
                let mut o = serde_json::json!({
                    "id": i,
                    "head": self.head_name(NodeId(i as u32)),
                    "name": node.name,
                    "operands": node.operands.iter().map(|v| v.as_ref().map(reference)).collect::<Vec<_>>(),
                    "types": node.results.iter().map(TensorType::to_string).collect::<Vec<_>>(),
                });
                if node.kernels.is_undecided() {
                    o["kernels"] = self.describe_kernels(node).into();
                }
                if let NodeKind::Op { op, attrs, term } = &node.kind {
                    let names = self.program.ops.get(op.index()).map(|d| d.attrs().map(|(_, p)| p.name.clone()));
                    let attrs: serde_json::Map<String, serde_json::Value> =
                        names.into_iter().flatten().zip(attrs.iter().map(|a| show_attr(a).into())).collect();
                    o["attrs"] = attrs.into();
                    if let Some(term) = term {
                        let tensors = self.tensor_operands(node);
                        let read = |i: u32| match node.operands.get(tensors + i as usize) {
                            Some(Some(v)) => self.value_name(*v),
                            _ => "?".into(),
                        };
                        o["term"] = show_term(&self.program, term, &read).into();
                    }
                }
                o
            })
            .collect();
        let outputs: Vec<_> =
            self.outputs.iter().map(|(n, v)| serde_json::json!({ "name": n, "value": reference(v) })).collect();
        serde_json::json!({ "nodes": nodes, "outputs": outputs })
    }
}

/// An attribute's value for display: numbers that came from f32 are the shortest decimal that gives
/// the same f32.
pub(super) fn show_attr_short(value: &AttrValue) -> String {
    match value {
        AttrValue::Float(v) if f64::from(*v as f32) == *v => {
            // The shortest decimal of the f32, parsed as f64, is printed like all other numbers.
            let short = (*v as f32).to_string().parse().unwrap_or(*v);
            super::term::show_number(short)
        }
        AttrValue::List(l) => format!("[{}]", l.iter().map(show_attr_short).collect::<Vec<_>>().join(", ")),
        other => show_attr(other),
    }
}

/// An attribute's value in the language's syntax.
pub fn show_attr(value: &AttrValue) -> String {
    match value {
        AttrValue::Dim(d) => d.to_string(),
        AttrValue::Float(v) => super::term::show_number(*v),
        AttrValue::Bool(b) => b.to_string(),
        AttrValue::DType(d) => d.to_string(),
        AttrValue::Str(s) => format!("{s:?}"),
        AttrValue::List(l) => format!("[{}]", l.iter().map(show_attr).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_came_from_f32_are_short() {
        for (v, text) in
            [(f64::from(1e-6f32), "1e-6"), (f64::from(0.1f32), "0.1"), (0.1, "0.1"), (2.0, "2"), (1e-300, "1e-300")]
        {
            assert_eq!(show_attr_short(&AttrValue::Float(v)), text);
        }
        // The printed number must parse back to the same f64.
        assert_eq!(show_attr(&AttrValue::Float(f64::from(1e-6f32))), "9.999999974752427e-7");
    }
}
