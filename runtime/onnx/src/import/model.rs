//! The traversal of a model: inputs, initializers, nodes in order, model-local functions, outputs.
//!
//! In: a decoded model. Out: an [`Import`], or why it failed. Invariant: each name is defined once,
//! before its use. Each node's outputs agree with the types that the model declares for them.

mod inputs;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use hypatia_dsl::ir::{OpId, Program};
use hypatia_dsl::shape::Dim;
use hypatia_dsl::typing::TensorType;

use super::attrs::Attrs;
use super::blame::{NodeFailure, Numbers, Undecided, with_hint};
use super::context::{Bound, Builder, Ctx, Fail};
use super::onnx::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
};
use super::ops::custom;
use super::symbolic::{LARGEST, Sym};
use super::tables;
use super::types::{Declared, contradiction, declared};
use super::{Import, Options, tensor};
use hypatia_graph::{ConstantFolder, Graph};
use hypatia_tensor::error::{Error, Result};

/// Supported opset versions of the default domain.
const OPSETS: std::ops::RangeInclusive<i64> = 7..=28;
/// Maximum number of nodes, with functions expanded.
const NODES: usize = 400_000;
/// Maximum nesting of function calls.
const FUNCTION_DEPTH: usize = 16;
/// Maximum rank.
const RANK: usize = 32;
/// Maximum `Dim::complexity`.
const COMPLEX: usize = 256;

/// What a name refers to.
enum Definition<'a> {
    Bound(Bound),
    /// Converted on first use.
    Initializer(&'a TensorProto),
}

/// The scope of a graph, or of one function call.
struct Scope<'a> {
    values: HashMap<&'a str, Definition<'a>>,
    /// Names of initializers and of outputs of nodes without inputs: the constants of the model.
    constants: HashSet<&'a str>,
    /// Version of the default domain.
    opset: i64,
    /// Enclosing function calls, for names in messages.
    prefix: String,
    depth: usize,
}

impl Scope<'_> {
    fn new(opset: i64, prefix: String, depth: usize) -> Self {
        Scope { values: HashMap::new(), constants: HashSet::new(), opset, prefix, depth }
    }
}

struct Importer<'a> {
    builder: Builder,
    file: &'a str,
    dir: Option<&'a Path>,
    functions: HashMap<(&'a str, &'a str, &'a str), &'a FunctionProto>,
    nodes_left: usize,
    /// Types that the main graph declares, by value name.
    declared: HashMap<&'a str, Declared>,
    /// Names of the main graph's outputs.
    outputs: HashSet<&'a str>,
    /// Contradictions in the model that do not change what it computes.
    warnings: Vec<String>,
    /// Sizes, by the names that inputs declare.
    symbols: BTreeMap<String, Dim>,
    types: Vec<(String, TensorType)>,
    /// The opsets of all domains that the model imports.
    opsets: HashMap<&'a str, i64>,
    /// The node that failed.
    blame: Option<NodeFailure>,
    /// Set if dynamic sizes may have caused the failure.
    undecided: Option<Undecided>,
}

/// The outcome of one traversal.
pub(super) enum Attempt {
    Done(Box<Import>),
    Failed(Box<Failure>),
}

/// Why a traversal failed.
pub(super) struct Failure {
    pub error: Error,
    /// The node that failed, if a node failed.
    pub blame: Option<NodeFailure>,
    /// Set if dynamic sizes may have caused the failure.
    pub undecided: Option<Undecided>,
    /// The names of the inputs' dynamic sizes.
    pub symbols: Vec<String>,
}

/// Traverses a model with these numbers for dynamic sizes.
pub(super) fn attempt(
    model: &ModelProto,
    file: &str,
    dir: Option<&Path>,
    program: (Arc<Program>, &'static dyn ConstantFolder),
    options: &Options,
) -> Result<Attempt> {
    let damaged = |message: String| Error::Model { file: file.into(), message };
    let graph = model.graph.as_ref().ok_or_else(|| damaged("it contains no graph".into()))?;
    let opset = opset(&model.opset_import).map_err(damaged)?;
    if !OPSETS.contains(&opset) {
        let message = format!(
            "opsets 13 to {} are, and of those from {} on the ops that have not changed since; convert the model with \
             onnx.version_converter",
            OPSETS.end(),
            OPSETS.start()
        );
        return Err(Error::Unsupported {
            file: file.into(),
            node: String::new(),
            op: "the model".into(),
            opset,
            message,
        });
    }
    let mut functions = HashMap::new();
    for f in &model.functions {
        if functions.insert((domain(f.domain()), f.name(), f.overload()), f).is_some() {
            return Err(damaged(format!("the function `{}` is defined twice", f.name())));
        }
    }
    let mut importer = Importer {
        builder: Builder::new(Graph::new(program.0), program.1),
        file,
        dir,
        functions,
        nodes_left: NODES,
        declared: HashMap::new(),
        outputs: graph.output.iter().map(|o| o.name()).collect(),
        warnings: Vec::new(),
        symbols: BTreeMap::new(),
        types: Vec::new(),
        opsets: model.opset_import.iter().map(|o| (domain(o.domain()), o.version())).collect(),
        blame: None,
        undecided: None,
    };
    Ok(match importer.graph(graph, opset, options) {
        Ok(()) => Attempt::Done(Box::new(Import {
            graph: importer.builder.graph.pruned(),
            types: importer.types,
            warnings: importer.warnings,
        })),
        Err(error) => {
            let symbols = importer.symbols_of_inputs();
            let Importer { blame, undecided, .. } = importer;
            Attempt::Failed(Box::new(Failure { error, blame, undecided, symbols }))
        }
    })
}

/// The default domain has two names.
fn domain(name: &str) -> &str {
    if name == "ai.onnx" { "" } else { name }
}

/// The opset of the default domain. Some exporters list a domain twice, which harms nothing if both
/// entries have one version.
fn opset(imports: &[OperatorSetIdProto]) -> Result<i64, String> {
    let mut default = None;
    for import in imports.iter().filter(|i| domain(i.domain()).is_empty()) {
        if let Some(other) = default.replace(import.version()).filter(|other| *other != import.version()) {
            let version = import.version();
            return Err(format!("the default opset is imported twice, as versions {other} and {version}"));
        }
    }
    match default {
        None if imports.is_empty() => Err("no opset is imported".into()),
        // The model uses ops of other domains only.
        None => Ok(*OPSETS.end()),
        Some(v) => Ok(v),
    }
}

impl<'a> Importer<'a> {
    fn damaged(&self, message: impl Into<String>) -> Error {
        Error::Model { file: self.file.into(), message: message.into() }
    }

    /// Adds the node, the op and the opset to a failure.
    fn fail(&self, fail: Fail, node: &str, op: &str, opset: i64) -> Error {
        let place = |message: &str| format!("node `{node}` ({op}, opset {opset}): {message}");
        match fail {
            Fail::Model(m) => self.damaged(place(&m)),
            Fail::Unsupported(message) => {
                Error::Unsupported { file: self.file.into(), node: node.into(), op: op.into(), opset, message }
            }
            Fail::Other(Error::Type(fault)) => self.damaged(place(&fault.message)),
            Fail::Other(Error::Input(m)) => self.damaged(place(&m)),
            Fail::Other(e) => e,
        }
    }

    fn graph(&mut self, graph: &'a GraphProto, opset: i64, options: &Options) -> Result<()> {
        let mut scope = Scope::new(opset, String::new(), 0);
        self.initializers(graph, &mut scope)?;
        self.inputs(graph, &mut scope, options)?;
        self.declare(graph, scope.opset)?;
        self.survey(graph, scope.opset)?;
        self.nodes(&graph.node, &|node| node.attribute.iter().map(Cow::Borrowed).collect(), &mut scope)?;
        self.outputs(graph, &mut scope)
    }

    /// Records declared types of inner values and outputs, which are checked when the values are
    /// bound.
    fn declare(&mut self, graph: &'a GraphProto, opset: i64) -> Result<()> {
        for info in &graph.value_info {
            // An unreadable type is reported when its node is imported, if it matters there.
            if let Ok(ty) = declared(info.r#type.as_ref()) {
                self.declared.insert(info.name(), ty);
            }
        }
        for output in &graph.output {
            let Some(ty) = &output.r#type else { continue };
            if ty.value.is_none() {
                continue;
            }
            let ty = declared(Some(ty)).map_err(|b| self.fail(b.into(), output.name(), "output", opset))?;
            self.declared.insert(output.name(), ty);
        }
        Ok(())
    }

    /// Checks for unsupported ops before any other work, and lists all of them.
    fn survey(&self, graph: &'a GraphProto, opset: i64) -> Result<()> {
        let mut first: Option<(usize, &NodeProto, String)> = None;
        let mut kinds: Vec<String> = Vec::new();
        for (i, node) in graph.node.iter().enumerate() {
            if self.function(node).is_some() {
                continue;
            }
            if self.custom(node).is_some() {
                continue;
            }
            let Err(why) = tables::find(domain(node.domain()), node.op_type(), opset) else { continue };
            let why = self.missing_custom(node).unwrap_or(why);
            let kind = shown_op(node);
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
            first.get_or_insert((i, node, why));
        }
        let Some((i, node, mut why)) = first else { return Ok(()) };
        kinds.remove(0);
        if !kinds.is_empty() {
            kinds.truncate(20);
            why = format!("{why}; other unsupported ops of this model: {}", kinds.join(", "));
        }
        let opset = self.opset_of(node, opset);
        Err(self.fail(Fail::Unsupported(why), &node_name(node, i, ""), &shown_op(node), opset))
    }

    fn function(&self, node: &NodeProto) -> Option<&'a FunctionProto> {
        self.functions.get(&(domain(node.domain()), node.op_type(), node.overload())).copied()
    }

    /// The op that a node of a custom domain stands for.
    fn custom(&self, node: &NodeProto) -> Option<OpId> {
        match domain(node.domain()) {
            "" => None,
            domain => self.builder.graph.program.op_of_domain(domain, node.op_type()),
        }
    }

    /// Why a node of a custom domain stands for no op, if the file of that domain has ops.
    fn missing_custom(&self, node: &NodeProto) -> Option<String> {
        let domain = domain(node.domain());
        let ops = self.builder.graph.program.ops.iter().filter(|op| op.domain.as_deref() == Some(domain));
        let names: Vec<&str> = ops.map(|op| op.name.as_str()).collect();
        (!names.is_empty()).then(|| {
            format!(
                "the file of the domain `{domain}` declares no op `{}`; it has {}",
                node.op_type(),
                names.join(", ")
            )
        })
    }

    /// Imports nodes in order. `attrs` gives the attributes of a node, with those of the enclosing
    /// function substituted.
    fn nodes(
        &mut self,
        nodes: &'a [NodeProto],
        attrs: &dyn Fn(&'a NodeProto) -> Vec<Cow<'a, AttributeProto>>,
        scope: &mut Scope<'a>,
    ) -> Result<()> {
        for (i, node) in nodes.iter().enumerate() {
            self.nodes_left = self
                .nodes_left
                .checked_sub(1)
                .ok_or_else(|| Error::Limit(format!("{}: more than {NODES} nodes, functions expanded", self.file)))?;
            let name = node_name(node, i, &scope.prefix);
            let op = shown_op(node);
            let opset = self.opset_of(node, scope.opset);
            let inputs = self.operands(node, &name, nodes, i, scope)?;
            let before = self.builder.graph.nodes.len();
            let dynamic = self.dynamic_sizes(&inputs);
            let given = attrs(node);
            let numbers = match dynamic.is_empty() {
                true => Numbers::default(),
                false => self.numbers(&inputs, &given),
            };
            let results = match self.function(node) {
                Some(f) => self.call(f, inputs, &given, &name, scope),
                None => {
                    let results = self.apply(node, inputs, &given, scope);
                    results.map_err(|f| self.fail_at(f, (&dynamic, numbers), &name, &op, opset))
                }
            }?;
            for n in self.builder.graph.nodes[before..].iter_mut().filter(|n| n.name.is_empty()) {
                n.name.clone_from(&name);
            }
            if node.input.is_empty() {
                scope.constants.extend(node.output.iter().map(String::as_str));
            }
            for (output, bound) in node.output.iter().zip(results) {
                self.bind(output, bound, scope).map_err(|f| self.fail(f, &name, &op, opset))?;
            }
        }
        Ok(())
    }

    /// Adds the location to a node's failure, and a hint about dynamic sizes.
    fn fail_at(
        &mut self,
        fail: Fail,
        (dynamic, numbers): (&[String], Numbers),
        node: &str,
        op: &str,
        opset: i64,
    ) -> Error {
        self.blame = Some(NodeFailure::of(&fail, node));
        match with_hint(&fail, dynamic) {
            None => self.fail(fail, node, op, opset),
            Some(hinted) => {
                self.undecided = Some(Undecided { plain: self.fail(fail, node, op, opset), numbers });
                self.fail(hinted, node, op, opset)
            }
        }
    }

    /// The names of the inputs' dynamic sizes.
    fn symbols_of_inputs(&self) -> Vec<String> {
        let graph = &self.builder.graph;
        let types = graph.inputs.iter().flat_map(|id| &graph.node(*id).results);
        let mut names: Vec<String> =
            types.flat_map(|t| t.shape.iter().flat_map(Dim::symbols)).map(|s| s.to_string()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// The opset that the model imports for the node's domain; `default` is the opset of the
    /// default domain.
    fn opset_of(&self, node: &NodeProto, default: i64) -> i64 {
        match domain(node.domain()) {
            "" => default,
            other => self.opsets.get(other).copied().unwrap_or(default),
        }
    }

    /// The numbers that occur in a node.
    fn numbers(&self, operands: &[Option<Bound>], attributes: &[Cow<AttributeProto>]) -> Numbers {
        let operands = operands.iter().flatten().map(|b| (b, self.builder.ty(b)));
        Numbers::of(operands, attributes.iter().map(|a| a.as_ref()))
    }

    /// The names of dynamic sizes in the types of operands.
    fn dynamic_sizes(&self, operands: &[Option<Bound>]) -> Vec<String> {
        let types = operands.iter().flatten().map(|b| self.builder.ty(b));
        let mut names: Vec<String> =
            types.flat_map(|t| t.shape.into_iter().flat_map(|d| d.symbols())).map(|s| s.to_string()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// The values of a node's inputs; an empty name means absent.
    fn operands(
        &mut self,
        node: &'a NodeProto,
        name: &str,
        nodes: &'a [NodeProto],
        at: usize,
        scope: &mut Scope<'a>,
    ) -> Result<Vec<Option<Bound>>> {
        let mut out = Vec::with_capacity(node.input.len());
        for input in &node.input {
            if input.is_empty() {
                out.push(None);
                continue;
            }
            match self.lookup(input, scope)? {
                Some(b) => out.push(Some(b)),
                None => {
                    let later = nodes[at..].iter().any(|n| n.output.contains(input));
                    let why = if later { "is computed later, or depends on this node" } else { "does not exist" };
                    return Err(self.damaged(format!("node `{name}` ({}): its input `{input}` {why}", shown_op(node))));
                }
            }
        }
        Ok(out)
    }

    /// The value of a name; an initializer becomes a constant on first use.
    fn lookup(&mut self, name: &str, scope: &mut Scope<'a>) -> Result<Option<Bound>> {
        let t = match scope.values.get(name) {
            None => return Ok(None),
            Some(Definition::Bound(b)) => return Ok(Some(b.clone())),
            Some(Definition::Initializer(t)) => *t,
        };
        let bound = self.constant(t, t.name()).map_err(|f| self.fail(f, name, "initializer", scope.opset))?;
        scope.values.insert(t.name(), Definition::Bound(bound.clone()));
        Ok(Some(bound))
    }

    /// A constant; small integer tensors stay symbolic until they are needed.
    fn constant(&mut self, t: &TensorProto, name: &str) -> Result<Bound, Fail> {
        let tensor = tensor::read(t, self.dir)?;
        if tensor.len() <= LARGEST
            && let Some(sym) = Sym::from_tensor(&tensor)
        {
            return Ok(sym.into());
        }
        let value = self.builder.graph.constant(tensor);
        self.builder.graph.name_node(value, name);
        Ok(value.into())
    }

    /// Imports one node through its row in the table.
    fn apply(
        &mut self,
        node: &NodeProto,
        inputs: Vec<Option<Bound>>,
        attrs: &[Cow<AttributeProto>],
        scope: &Scope<'a>,
    ) -> Result<Vec<Bound>, Fail> {
        let found = match self.custom(node) {
            Some(op) => Found::Custom(op),
            None => {
                let found = tables::find(domain(node.domain()), node.op_type(), scope.opset);
                let (row, since) = found.map_err(Fail::Unsupported)?;
                Found::Standard(row, since)
            }
        };
        if let Some(a) = attrs.iter().find(|a| !a.ref_attr_name().is_empty()) {
            return Err(Fail::Model(format!(
                "the attribute `{}` refers to a function's attribute, but the node is \
                not in a function",
                a.name()
            )));
        }
        let mut ctx = Ctx {
            builder: &mut self.builder,
            inputs,
            given: node.input.iter().map(|i| scope.constants.contains(i.as_str())).collect(),
            outputs: node.output.iter().map(|o| !o.is_empty()).collect(),
            attrs: Attrs::new(attrs.iter().map(|a| a.as_ref()))?,
            since: match &found {
                Found::Standard(_, since) => *since,
                Found::Custom(_) => 1,
            },
            names: match &found {
                Found::Standard(row, _) => row.names,
                Found::Custom(_) => &[],
            },
            dir: self.dir,
        };
        let results = match found {
            Found::Standard(row, _) => row.target.apply(&mut ctx)?,
            Found::Custom(op) => custom::apply(&mut ctx, op)?,
        };
        if let Some(wrong) = ctx.attrs.unread() {
            return Err(Fail::Unsupported(wrong));
        }
        let wanted = ctx.outputs.iter().rposition(|w| *w).map_or(0, |i| i + 1);
        if results.len() < wanted {
            return Err(Fail::Unsupported(format!("output number {wanted}; {} are given", results.len())));
        }
        Ok(results)
    }

    /// Inlines a call of a model-local function: imports its nodes in a new scope.
    fn call(
        &mut self,
        f: &'a FunctionProto,
        inputs: Vec<Option<Bound>>,
        attrs: &[Cow<AttributeProto>],
        name: &str,
        outer: &Scope<'a>,
    ) -> Result<Vec<Bound>> {
        let here = |m: String| format!("node `{name}`, function `{}`: {m}", f.name());
        if outer.depth >= FUNCTION_DEPTH {
            return Err(self.damaged(here(format!("function calls are nested more than {FUNCTION_DEPTH} levels deep"))));
        }
        if inputs.len() > f.input.len() {
            return Err(self.damaged(here(format!(
                "the call gives {} inputs, but the function has {}",
                inputs.len(),
                f.input.len()
            ))));
        }
        let opset = opset(&f.opset_import).map_err(|m| self.damaged(here(m)))?;
        let mut scope = Scope::new(opset, format!("{name}/"), outer.depth + 1);
        for (formal, actual) in f.input.iter().zip(inputs) {
            if let Some(b) = actual {
                scope.values.insert(formal, Definition::Bound(b));
            }
        }
        // An attribute that the caller omits and that has no default is omitted inside as well.
        let put_in = |a: &'a AttributeProto| {
            let outer = a.ref_attr_name();
            if outer.is_empty() {
                return Some(Cow::Borrowed(a));
            }
            let given = attrs.iter().map(|g| g.as_ref()).find(|g| g.name() == outer);
            let mut found = given.or_else(|| f.attribute_proto.iter().find(|d| d.name() == outer))?.clone();
            found.name = Some(a.name().to_string());
            Some(Cow::Owned(found))
        };
        self.nodes(&f.node, &|node| node.attribute.iter().filter_map(put_in).collect(), &mut scope)?;
        let mut results = Vec::new();
        for output in &f.output {
            match self.lookup(output, &mut scope)? {
                Some(b) => results.push(b),
                None => return Err(self.damaged(here(format!("its output `{output}` does not exist")))),
            }
        }
        Ok(results)
    }

    /// Binds a name to its value, checked against the declared type.
    fn bind(&mut self, name: &'a str, bound: Bound, scope: &mut Scope<'a>) -> Result<(), Fail> {
        if name.is_empty() {
            return Ok(());
        }
        let ty = self.builder.ty(&bound);
        if ty.shape.len() > RANK {
            return Err(Fail::Unsupported(format!(
                "its output `{name}` has rank {}; the limit is {RANK}",
                ty.shape.len()
            )));
        }
        if ty.shape.iter().any(|d| d.complexity() > COMPLEX) {
            return Err(Fail::Other(Error::Limit(format!(
                "{}: the formula of a size of `{name}` is too long",
                self.file
            ))));
        }
        if scope.depth == 0 {
            let lookup = |n: &str| self.symbols.get(n).cloned();
            if let Some(d) = self.declared.get(name)
                && let Some(found) = contradiction(d, &ty, &lookup)
                // The sizes of an output are checked once, when it is added.
                && !(found.sizes_only && self.outputs.contains(name))
            {
                return Err(Fail::Model(format!("its output `{name}` {}", found.message)));
            }
            self.types.push((name.into(), ty));
        }
        if scope.values.insert(name, Definition::Bound(bound)).is_some() {
            return Err(Fail::Model(format!("its output `{name}` has the name of another value")));
        }
        Ok(())
    }

    fn outputs(&mut self, graph: &'a GraphProto, scope: &mut Scope<'a>) -> Result<()> {
        if graph.output.is_empty() {
            return Err(self.damaged("the graph has no outputs"));
        }
        let mut names = HashSet::new();
        for output in &graph.output {
            let name = output.name();
            if !names.insert(name) {
                return Err(self.damaged(format!("the output `{name}` is given twice")));
            }
            let Some(bound) = self.lookup(name, scope)? else {
                return Err(self.damaged(format!("no node computes the output `{name}`")));
            };
            let opset = scope.opset;
            let value = self.builder.materialise(&bound).map_err(|f| self.fail(f, name, "output", opset))?;
            let lookup = |n: &str| self.symbols.get(n).cloned();
            // Inputs and initializers that are outputs are not results of a node, so their types
            // are checked here. Exporters leave the sizes of the example input in the outputs of
            // dynamic models: nothing depends on them.
            if let Some(d) = self.declared.get(name)
                && let Some(found) = contradiction(d, self.builder.graph.ty(value), &lookup)
            {
                let message = format!("the output `{name}` {}", found.message);
                if !found.sizes_only {
                    return Err(self.damaged(message));
                }
                self.warnings.push(format!("{}: {message}; the declared sizes are ignored", self.file));
            }
            self.builder.graph.output(name, value);
        }
        Ok(())
    }
}

/// What a node is imported as.
enum Found {
    /// A standard op: its row in the table, and the opset that defined it.
    Standard(&'static tables::Row, i64),
    /// An op of a `.hyp` file.
    Custom(OpId),
}

/// The op as printed in messages.
fn shown_op(node: &NodeProto) -> String {
    match domain(node.domain()) {
        "" => node.op_type().to_string(),
        d => format!("{d}.{}", node.op_type()),
    }
}

/// A node's name: its own, else its first output's, else its number.
fn node_name(node: &NodeProto, index: usize, prefix: &str) -> String {
    let own = Some(node.name()).filter(|n| !n.is_empty());
    match own.or(node.output.iter().map(String::as_str).find(|n| !n.is_empty())) {
        Some(n) => format!("{prefix}{n}"),
        None => format!("{prefix}#{index}"),
    }
}
