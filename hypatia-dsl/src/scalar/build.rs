//! Building terms: hash-consing, inlining of definitions, removal of dead nodes.
//!
//! In: nodes, terms, a Program. Out: terms in which equal nodes are deduped. Invariant: the size of
//! a term stays below a limit, so that a chain of definitions that doubles at each link ends in an
//! error.

use std::collections::HashMap;

use crate::builtin::BuiltinScalar;
use crate::ir::{Program, ScalarBody, ScalarId};

use super::{Literal, Term, TermId, TermNode};

/// Maximum number of nodes.
pub(super) const MAX_NODES: usize = 1 << 16;
/// Maximum depth of nested definitions.
pub(super) const MAX_DEPTH: u32 = 200;

/// Builds a term; equal nodes are shared.
#[derive(Default)]
pub struct TermBuilder {
    nodes: Vec<TermNode>,
    known: HashMap<TermNode, TermId>,
}

impl TermBuilder {
    /// An empty builder.
    pub fn new() -> TermBuilder {
        TermBuilder::default()
    }

    /// Adds the node, or returns the equal existing one.
    pub fn add(&mut self, node: TermNode) -> TermId {
        if let Some(id) = self.known.get(&node) {
            return *id;
        }
        let id = TermId(self.nodes.len() as u32);
        self.nodes.push(node.clone());
        self.known.insert(node, id);
        id
    }

    /// Adds a number.
    pub fn lit(&mut self, value: f64) -> TermId {
        self.add(TermNode::Lit(Literal(value)))
    }

    /// Adds a call of a scalar.
    pub fn call(&mut self, scalar: ScalarId, args: Vec<TermId>) -> TermId {
        self.add(TermNode::Call { scalar, args })
    }

    /// Adds a call of a builtin; `None` if the Program does not declare it.
    pub fn builtin(&mut self, program: &Program, f: BuiltinScalar, args: Vec<TermId>) -> Option<TermId> {
        Some(self.call(program.builtin_scalar(f)?, args))
    }

    /// Copies a term and replaces its parameters by `params` (parameters without a replacement
    /// stay). Returns the roots of the copy.
    pub fn append(&mut self, term: &Term, params: &[TermId]) -> Vec<TermId> {
        let mut map: Vec<TermId> = Vec::with_capacity(term.nodes.len());
        for node in &term.nodes {
            let id = match node {
                TermNode::Param(i) => match params.get(*i as usize) {
                    Some(id) => *id,
                    None => self.add(node.clone()),
                },
                node => self.add(node.map_args(|a| map[a.0 as usize])),
            };
            map.push(id);
        }
        term.roots.iter().map(|r| map[r.0 as usize]).collect()
    }

    /// The node of that id.
    pub fn node(&self, id: TermId) -> &TermNode {
        &self.nodes[id.0 as usize]
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True if there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The term with those results, without dead nodes.
    pub fn finish(self, roots: Vec<TermId>) -> Term {
        prune(&Term { nodes: self.nodes, roots })
    }
}

/// The term without dead nodes; equal nodes are deduped.
pub fn prune(term: &Term) -> Term {
    let mut needed = vec![false; term.nodes.len()];
    for root in &term.roots {
        needed[root.0 as usize] = true;
    }
    for (i, node) in term.nodes.iter().enumerate().rev() {
        if needed[i] {
            node.args().iter().for_each(|a| needed[a.0 as usize] = true);
        }
    }
    let mut out = TermBuilder::new();
    let mut map = vec![TermId(0); term.nodes.len()];
    for (i, node) in term.nodes.iter().enumerate().filter(|(i, _)| needed[*i]) {
        map[i] = out.add(node.map_args(|a| map[a.0 as usize]));
    }
    Term { nodes: out.nodes, roots: term.roots.iter().map(|r| map[r.0 as usize]).collect() }
}

/// Inlines every defined scalar, so that only builtins are called. An error if definitions go too
/// deep (they are recursive) or the result is too large.
pub fn expand(program: &Program, term: &Term) -> Result<Term, String> {
    let mut out = TermBuilder::new();
    let roots = inline(program, term, None, &mut out, 0)?;
    Ok(out.finish(roots))
}

/// Like [`expand`], into a builder; returns the roots there.
pub(super) fn inline(
    program: &Program,
    term: &Term,
    params: Option<&[TermId]>,
    out: &mut TermBuilder,
    depth: u32,
) -> Result<Vec<TermId>, String> {
    if depth > MAX_DEPTH {
        return Err(format!("scalar calls are nested more than {MAX_DEPTH} levels deep"));
    }
    let mut map: Vec<TermId> = Vec::with_capacity(term.nodes.len());
    for node in &term.nodes {
        if out.len() > MAX_NODES {
            return Err(format!("the term has more than {MAX_NODES} operations once its scalars are inlined"));
        }
        let id = match node {
            TermNode::Param(i) if params.is_some() => {
                let given = params.and_then(|p| p.get(*i as usize));
                *given.ok_or_else(|| format!("parameter {i} has no value"))?
            }
            TermNode::Call { scalar, args } => {
                let args: Vec<TermId> = args.iter().map(|a| map[a.0 as usize]).collect();
                let def = program.scalars.get(scalar.index()).ok_or("a term calls a scalar that does not exist")?;
                match &def.body {
                    ScalarBody::Builtin(_) => out.call(*scalar, args),
                    ScalarBody::Term(body) => *inline(program, body, Some(&args), out, depth + 1)?
                        .first()
                        .ok_or_else(|| format!("scalar `{}` has no result", def.name))?,
                }
            }
            node => out.add(node.map_args(|a| map[a.0 as usize])),
        };
        map.push(id);
    }
    Ok(term.roots.iter().map(|r| map[r.0 as usize]).collect())
}
