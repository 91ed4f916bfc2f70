//! The e-class analysis: what the e-graph knows of each class, and the tables that its nodes index.
//!
//! In: nodes as they are added. Out: type, sort, constness, splat value and numeric facts of every
//! class. Invariant: all nodes of a class have the same type. Facts only grow (they are joined when
//! classes merge), so a guard that was true stays true. Constants are merged only with constants of
//! the same bits.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use egg::{DidMerge, Id};
use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::dtype::{DType, Kind};
use hypatia_dsl::ir::{AttrValue, InView, OpBody, OpDef, OpId, Param, ParamKind, Program, ScalarBody, ScalarId};
use hypatia_dsl::scalar;
use hypatia_dsl::scalar::typed::{lane, not_stored};
use hypatia_dsl::shape::{Dim, Shape, broadcast, product};
use hypatia_dsl::typing::{self, TensorType};
use indexmap::IndexSet;
use rustc_hash::{FxBuildHasher, FxHashMap};

use super::facts::{self, NumericFacts};
use super::language::{AttrsId, Discriminant, LabelSet, LeafId, Node, Payload, ShapeId, TypeId};
use super::range_loss::Fold;
use hypatia_graph::{ConstantFolder, NodeId};
use hypatia_tensor::tensor::Tensor;

/// The e-graph of the optimiser.
pub type EGraph = egg::EGraph<Node, Context>;

/// What a class stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sort {
    /// A tensor of that type.
    Tensor(TypeId),
    /// The results of an op that has several, one type for each: `count` entries from `first` in
    /// the table of tuples.
    Tuple {
        /// Position in the table.
        first: u32,
        /// Number of results.
        count: u32,
    },
    /// A scalar term.
    Term(Kind),
    /// An absent optional operand.
    Absent,
    /// A node that does not type-check; it is never matched and never extracted.
    Invalid,
}

/// The analysis data of a class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Data {
    /// Its kind of value.
    pub sort: Sort,
    /// Computed when the plan is made.
    pub constant: bool,
    /// If all elements are equal, the bits of their value as f64.
    pub splat: Option<u64>,
    /// Facts that hold for all elements.
    pub facts: NumericFacts,
    /// For a term: the shapes of all tensors that it reads, broadcast.
    pub reads: ShapeId,
    /// The labels of its nodes. When they grow, parents are not updated: no other data depends on
    /// them.
    pub labels: LabelSet,
}

impl Data {
    fn new(sort: Sort) -> Data {
        Data {
            sort,
            constant: false,
            splat: None,
            facts: NumericFacts::UNKNOWN,
            reads: ShapeId::SCALAR,
            labels: LabelSet::default(),
        }
    }

    /// The number that all elements equal.
    pub fn value(&self) -> Option<f64> {
        self.splat.map(f64::from_bits)
    }

    fn with_splat(mut self, splat: Option<u64>) -> Data {
        if let Some(bits) = splat {
            self.splat = splat;
            self.facts = self.facts.or(NumericFacts::of(f64::from_bits(bits)));
        }
        self
    }
}

/// An input or a constant.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// Its type.
    pub ty: TypeId,
    /// Its node in the input graph.
    pub node: NodeId,
    /// False for inputs.
    pub constant: bool,
    /// Facts that hold for its elements.
    pub facts: NumericFacts,
    /// Its elements; `None` for inputs.
    pub tensor: Option<Arc<Tensor>>,
}

/// What is new in a class. No pattern that names none of these labels matches there anew.
#[derive(Clone, Copy)]
enum News {
    /// The class itself.
    Created,
    /// Its users see more nodes, with these labels.
    Nodes(LabelSet),
    /// Its data, or two values of which both have users are found to be equal.
    Anything,
}

/// The tables of an e-graph, and the log of its changes.
pub struct Context {
    /// The program that defines the ops and scalars of the nodes.
    pub program: Arc<Program>,
    /// Computes constants.
    pub folder: &'static dyn ConstantFolder,
    /// Inputs and constants.
    pub leaves: Vec<Leaf>,
    /// Every class that was created, merged or learned a fact, in order, with what is new there. An
    /// incremental search skips the entries that were there when the last search ended. Logged here
    /// because `egg` reports changes only to its analysis.
    pub dirty: Vec<(Id, LabelSet)>,
    /// What is new in the class that [`egg::Analysis::modify`] is about to be told of.
    news: Mutex<News>,
    /// The functions of constants whose loss was asked for, and whether their digits are kept.
    folds: Mutex<FxHashMap<Fold, bool>>,
    types: IndexSet<TensorType, FxBuildHasher>,
    shapes: IndexSet<Shape, FxBuildHasher>,
    tuples: Vec<TypeId>,
    attrs: IndexSet<Vec<AttrValue>, FxBuildHasher>,
    /// For each op, a bit for each of its first 64 operands that is a term.
    terms: Vec<u64>,
}

impl Context {
    /// Empty tables.
    pub fn new(program: Arc<Program>, folder: &'static dyn ConstantFolder) -> Context {
        let of_operand = |(i, p): (usize, &Param)| if p.kind == ParamKind::Term && i < 64 { 1 << i } else { 0 };
        let of_op = |op: &OpDef| op.operands().map(|(_, p)| p).enumerate().map(of_operand).sum();
        Context {
            terms: program.ops.iter().map(of_op).collect(),
            program,
            folder,
            leaves: Vec::new(),
            dirty: Vec::new(),
            news: Mutex::new(News::Created),
            folds: Mutex::default(),
            types: IndexSet::default(),
            shapes: [Shape::new()].into_iter().collect(),
            tuples: Vec::new(),
            attrs: IndexSet::default(),
        }
    }

    /// What is new. `egg` announces a union by a shared reference; nothing else holds the lock.
    fn news(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether that operand of an op is a term.
    pub fn takes_term(&self, op: OpId, operand: usize) -> bool {
        operand < 64 && self.terms.get(op.index()).is_some_and(|bits| bits >> operand & 1 == 1)
    }

    /// The id of a type.
    pub fn type_id(&mut self, ty: TensorType) -> TypeId {
        TypeId(self.types.insert_full(ty).0 as u32)
    }

    /// The type of that id.
    pub fn ty(&self, id: TypeId) -> &TensorType {
        &self.types[id.0 as usize]
    }

    /// The broadcast of two shapes; `NONE` if they do not broadcast.
    fn joined_shape(&mut self, a: ShapeId, b: ShapeId) -> ShapeId {
        if a == b || b == ShapeId::SCALAR {
            return a;
        }
        let both = self.shape(a).zip(self.shape(b)).and_then(|(x, y)| broadcast(x, y));
        both.map_or(ShapeId::NONE, |s| self.shape_id(s))
    }

    fn shape_id(&mut self, shape: Shape) -> ShapeId {
        ShapeId(self.shapes.insert_full(shape).0 as u32)
    }

    /// The shape of that id.
    pub fn shape(&self, id: ShapeId) -> Option<&Shape> {
        self.shapes.get_index(id.0 as usize)
    }

    /// The id of a list of attributes.
    pub fn attrs_id(&mut self, attrs: Vec<AttrValue>) -> AttrsId {
        AttrsId(self.attrs.insert_full(attrs).0 as u32)
    }

    /// The attributes of that id.
    pub fn attrs(&self, id: AttrsId) -> &[AttrValue] {
        &self.attrs[id.0 as usize]
    }

    /// The leaf of that id.
    pub fn leaf(&self, id: LeafId) -> &Leaf {
        &self.leaves[id.0 as usize]
    }

    /// Notes what was found of a function of constants.
    pub(super) fn note(&self, fold: Fold, kept: bool) {
        self.folds.lock().unwrap_or_else(PoisonError::into_inner).insert(fold, kept);
    }

    /// What was found of functions of constants: all that a rule asks about the elements of
    /// weights, beyond their facts.
    pub(super) fn folds(&self) -> Vec<(Fold, bool)> {
        let folds = self.folds.lock().unwrap_or_else(PoisonError::into_inner);
        folds.iter().map(|(fold, kept)| (fold.clone(), *kept)).collect()
    }

    /// The types of a tuple.
    pub fn tuple(&self, first: u32, count: u32) -> &[TypeId] {
        &self.tuples[first as usize..(first + count) as usize]
    }

    /// The type of a tensor class.
    pub fn data_type(&self, data: &Data) -> Option<&TensorType> {
        match data.sort {
            Sort::Tensor(t) => Some(self.ty(t)),
            _ => None,
        }
    }
}

/// True if the op returns a tuple, whose parts are `Output` nodes.
pub fn has_several_results(op: &OpDef) -> bool {
    op.variadic_result || op.results.len() != 1
}

/// The type of a tensor class.
pub fn class_type(egraph: &EGraph, id: Id) -> Option<&TensorType> {
    egraph.analysis.data_type(&egraph[id].data)
}

/// Types of an op's operands as `typing::apply_op` expects them, without terms.
fn operand_types(egraph: &EGraph, op: &OpDef, children: &[Id]) -> Result<Vec<Option<TensorType>>, String> {
    let mut out = Vec::with_capacity(children.len());
    let kinds: Vec<&ParamKind> = op.operands().map(|(_, p)| &p.kind).collect();
    for (i, child) in children.iter().enumerate() {
        let is_term = matches!(kinds.get(i), Some(ParamKind::Term));
        match egraph[*child].data.sort {
            Sort::Tensor(t) if !is_term => out.push(Some(egraph.analysis.ty(t).clone())),
            Sort::Absent if !is_term => out.push(None),
            Sort::Term(_) if is_term => {}
            _ => return Err(format!("operand {} of `{}` is not of the sort that it takes", i + 1, op.name)),
        }
    }
    Ok(out)
}

/// The types of a node's results.
pub fn node_types(egraph: &EGraph, node: &Node) -> Result<Vec<TensorType>, String> {
    let program = &egraph.analysis.program;
    match node.payload {
        Payload::Op(op, attrs) => {
            let def = program.op(op);
            let operands = operand_types(egraph, def, &node.children)?;
            let types =
                typing::apply_op(program, op, egraph.analysis.attrs(attrs), &operands).map_err(|e| e.to_string())?;
            check_term_kind(egraph, def, node, &types)?;
            let bytes = operands.first().is_some_and(|t| t.as_ref().is_some_and(|t| t.dtype.is_byte()));
            if bytes && matches!(def.body, OpBody::Builtin(_)) {
                check_stored(egraph, def, node, &types)?;
            }
            Ok(types)
        }
        Payload::Scalar(s) => {
            let operands: Option<Vec<TensorType>> =
                node.children.iter().map(|c| class_type(egraph, *c).cloned()).collect();
            let operands =
                operands.ok_or_else(|| format!("an operand of `{}` is not a tensor", program.scalar(s).name))?;
            typing::apply_scalar(program, s, &operands).map(|t| vec![t]).map_err(|e| e.to_string())
        }
        Payload::Leaf(l) => Ok(vec![egraph.analysis.ty(egraph.analysis.leaf(l).ty).clone()]),
        Payload::Splat(t, _) => Ok(vec![egraph.analysis.ty(t).clone()]),
        Payload::Output(i) => match egraph[node.children[0]].data.sort {
            Sort::Tuple { first, count } if i < count => {
                Ok(vec![egraph.analysis.ty(egraph.analysis.tuple(first, count)[i as usize]).clone()])
            }
            _ => Err(format!("there is no result {i}")),
        },
        _ => Err("a term has no tensor type".to_string()),
    }
}

/// A boolean term can be stored only as bool, and a numeric term only as numbers.
fn check_term_kind(egraph: &EGraph, op: &OpDef, node: &Node, types: &[TensorType]) -> Result<(), String> {
    for ((_, p), child) in op.operands().zip(&node.children) {
        if let (ParamKind::Term, Sort::Term(kind), Some(t)) = (&p.kind, egraph[*child].data.sort, types.first())
            && t.dtype.kind() != kind
        {
            return Err(format!("the term of `{}` does not give what {} holds", op.name, t.dtype));
        }
        if let (ParamKind::Term, Some(t), true) = (&p.kind, types.first(), op.terms_read_results()) {
            let reads = egraph.analysis.shape(egraph[*child].data.reads);
            if reads.and_then(|r| broadcast(r, &t.shape)).is_none_or(|s| s != t.shape) {
                return Err(format!("the term of `{}` reads a tensor that does not broadcast to {t}", op.name));
            }
        }
    }
    Ok(())
}

/// The term of a product of bytes, which are summed in i32, gives what is stored.
fn check_stored(egraph: &EGraph, op: &OpDef, node: &Node, types: &[TensorType]) -> Result<(), String> {
    let mut terms = op.operands().zip(&node.children).filter(|((_, p), _)| p.kind == ParamKind::Term);
    let (Some((_, term)), Some(to)) = (terms.next(), types.first().map(|t| t.dtype)) else { return Ok(()) };
    let given = term_type(egraph, *term, &mut Vec::new())?;
    not_stored(given, to).map_or(Ok(()), |why| Err(format!("`{}`: {why}", op.name)))
}

/// The element type that a term over sums in i32 gives; none for a number, or if a class is inside
/// itself.
fn term_type(egraph: &EGraph, id: Id, inside: &mut Vec<Id>) -> Result<Option<DType>, String> {
    let id = egraph.find(id);
    if inside.contains(&id) {
        return Ok(None);
    }
    inside.push(id);
    // Equal terms have the same type: the first node that says one does.
    let mut found = None;
    for node in &egraph[id].nodes {
        found = match node.payload {
            Payload::Acc => Some(DType::I32),
            Payload::Second => term_type(egraph, node.children[0], inside)?,
            Payload::In(_) => class_type(egraph, node.children[0]).map(|t| lane(t.dtype)),
            Payload::TermCast(to) => Some(lane(to)),
            Payload::Call(s) => {
                let mut args = None;
                for child in &node.children {
                    let arg = term_type(egraph, *child, inside)?.filter(|d| *d != DType::Bool);
                    if let (Some(x), Some(y)) = (args, arg)
                        && x != y
                    {
                        return Err(format!("a term computes with {x} and {y}"));
                    }
                    args = args.or(arg);
                }
                if egraph.analysis.program.scalar(s).result == Kind::Bool { Some(DType::Bool) } else { args }
            }
            _ => None,
        };
        if found.is_some() {
            break;
        }
    }
    inside.pop();
    Ok(found)
}

/// The kind of value of a term node, or why it is invalid.
pub fn term_kind(egraph: &EGraph, node: &Node) -> Result<Kind, String> {
    let program = &egraph.analysis.program;
    match node.payload {
        Payload::Acc | Payload::Lit(_) => Ok(Kind::Number),
        Payload::Second => match egraph[node.children[0]].data.sort {
            Sort::Term(kind) => Ok(kind),
            _ => Err("only a term can be read over the second accumulator".to_string()),
        },
        Payload::In(_) => class_type(egraph, node.children[0])
            .map(|t| t.dtype.kind())
            .ok_or_else(|| "only a tensor can be read in a term".to_string()),
        Payload::TermCast(to) => Ok(to.kind()),
        Payload::Call(s) => {
            let def = program.scalar(s);
            if def.params.len() != node.children.len() {
                return Err(format!("`{}` takes {} arguments", def.name, def.params.len()));
            }
            for ((_, kind), child) in def.params.iter().zip(&node.children) {
                if egraph[*child].data.sort != Sort::Term(*kind) {
                    return Err(format!("an argument of `{}` is of another kind", def.name));
                }
            }
            Ok(def.result)
        }
        _ => Err("a tensor is no term".to_string()),
    }
}

/// True if the payload belongs to terms.
pub fn is_term(payload: Payload) -> bool {
    matches!(
        payload,
        Payload::Acc | Payload::Second | Payload::In(_) | Payload::Lit(_) | Payload::Call(_) | Payload::TermCast(_)
    )
}

fn make_data(egraph: &mut EGraph, node: &Node) -> Data {
    if node.payload == Payload::Absent {
        return Data { constant: true, ..Data::new(Sort::Absent) };
    }
    if is_term(node.payload) {
        return term_data(egraph, node);
    }
    let Ok(types) = node_types(egraph, node) else { return Data::new(Sort::Invalid) };
    let several = matches!(node.payload, Payload::Op(op, _) if has_several_results(egraph.analysis.program.op(op)));
    if several {
        let constant = all_constant(egraph, node);
        let ids: Vec<TypeId> = types.into_iter().map(|t| egraph.analysis.type_id(t)).collect();
        // When a class is rebuilt, look up its tuple instead of growing the table.
        let tuples = &mut egraph.analysis.tuples;
        let first = tuples.windows(ids.len().max(1)).position(|w| w == ids.as_slice()).unwrap_or_else(|| {
            tuples.extend(&ids);
            tuples.len() - ids.len()
        });
        let sort = Sort::Tuple { first: first as u32, count: ids.len() as u32 };
        return Data { constant, ..Data::new(sort) };
    }
    let Some(ty) = types.into_iter().next() else { return Data::new(Sort::Invalid) };
    tensor_data(egraph, node, ty)
}

fn all_constant(egraph: &EGraph, node: &Node) -> bool {
    node.children.iter().all(|c| egraph[*c].data.constant)
}

fn term_data(egraph: &mut EGraph, node: &Node) -> Data {
    let Ok(kind) = term_kind(egraph, node) else { return Data::new(Sort::Invalid) };
    let mut data = Data::new(Sort::Term(kind));
    data.constant = node.payload != Payload::Acc && all_constant(egraph, node);
    data.reads = term_reads(egraph, node);
    let child = |i: usize| egraph[node.children[i]].data;
    match node.payload {
        Payload::Lit(bits) => data.with_splat(Some(bits)),
        Payload::In(_) => Data { facts: child(0).facts, ..data }.with_splat(child(0).splat),
        Payload::Call(s) => Data { facts: scalar_facts(egraph, s, node, DType::F32), ..data },
        Payload::TermCast(to) if to.is_float() => Data { facts: child(0).facts.narrowed(), ..data },
        _ => data,
    }
}

/// The shapes of all tensors that a term reads, broadcast.
fn term_reads(egraph: &mut EGraph, node: &Node) -> ShapeId {
    match node.payload {
        Payload::In(view) => {
            let Some(mut shape) = class_type(egraph, node.children[0]).map(|t| t.shape.clone()) else {
                return ShapeId::NONE;
            };
            if view == InView::Col {
                shape.push(Dim::from(1));
            }
            egraph.analysis.shape_id(shape)
        }
        _ => {
            let reads: Vec<ShapeId> = node.children.iter().map(|c| egraph[*c].data.reads).collect();
            reads.into_iter().fold(ShapeId::SCALAR, |a, b| egraph.analysis.joined_shape(a, b))
        }
    }
}

fn scalar_facts(egraph: &EGraph, s: ScalarId, node: &Node, dtype: DType) -> NumericFacts {
    if !dtype.is_float() {
        // Integers wrap: keep only the facts of every integer.
        return NumericFacts { nonneg: dtype == DType::Bool, ..NumericFacts::TRUTH };
    }
    let args: Vec<NumericFacts> = node.children.iter().map(|c| egraph[*c].data.facts).collect();
    let same: Vec<usize> = node.children.iter().map(|c| usize::from(egraph.find(*c))).collect();
    facts::apply_scalar(&egraph.analysis.program, s, &args, &same)
}

/// The value of a builtin scalar of known numbers, as a run computes it.
fn scalar_splat(egraph: &EGraph, s: ScalarId, node: &Node, from: DType, to: DType) -> Option<u64> {
    let ScalarBody::Builtin(f) = egraph.analysis.program.scalar(s).body else { return None };
    if !from.is_float() || from != to {
        return None;
    }
    let args = node.children.iter().map(|c| egraph[*c].data.value()).collect::<Option<Vec<f64>>>()?;
    if f.params().iter().all(|k| *k == Kind::Number) {
        let y = args.get(1).copied().unwrap_or(0.0);
        return Some(egraph.analysis.folder.scalar(f, to, [*args.first()?, y]).to_bits());
    }
    let args: Vec<scalar::Value> = args.into_iter().map(scalar::Value::F).collect();
    let value = scalar::apply(f, &args, scalar::Precision::F64);
    Some(to.round(value.to_f64()).to_bits())
}

fn tensor_data(egraph: &mut EGraph, node: &Node, ty: TensorType) -> Data {
    let concrete = ty.shape.iter().all(|d| d.as_const().is_some());
    let id = egraph.analysis.type_id(ty.clone());
    let mut data = Data::new(Sort::Tensor(id));
    data.constant = concrete && all_constant(egraph, node);
    if ty.dtype.is_int() || ty.dtype == DType::Bool {
        data.facts = NumericFacts { nonneg: matches!(ty.dtype, DType::U8 | DType::Bool), ..NumericFacts::TRUTH };
    }
    match node.payload {
        Payload::Leaf(l) => {
            let leaf = egraph.analysis.leaf(l);
            data.constant = leaf.constant;
            data.facts = data.facts.or(leaf.facts);
            data
        }
        Payload::Splat(_, bits) => {
            data.constant = true;
            data.with_splat(Some(bits))
        }
        Payload::Scalar(s) => {
            let of = class_type(egraph, node.children[0]).map_or(ty.dtype, |t| t.dtype);
            data.facts = data.facts.or(scalar_facts(egraph, s, node, if ty.dtype.is_float() { of } else { ty.dtype }));
            data.with_splat(scalar_splat(egraph, s, node, of, ty.dtype))
        }
        Payload::Op(op, attrs) => {
            let (facts, splat) = op_facts(egraph, op, attrs, node, &ty);
            data.facts = data.facts.or(facts);
            data.with_splat(splat)
        }
        Payload::Output(_) => {
            data.constant = egraph[node.children[0]].data.constant;
            data
        }
        _ => data,
    }
}

/// Facts of a sum of such elements.
fn summed(f: NumericFacts) -> NumericFacts {
    NumericFacts { not_nan: f.nonneg, nonneg: f.nonneg, ..NumericFacts::UNKNOWN }
}

/// Facts after a conversion.
fn cast_facts((facts, splat): (NumericFacts, Option<u64>), from: DType, to: DType) -> (NumericFacts, Option<u64>) {
    // Numbers of a narrower range may become infinite, or NaN.
    let widens = from.is_float() && to.is_float() && to.epsilon() <= from.epsilon() && to.largest() >= from.largest();
    let splat = splat.map(|b| to.round(f64::from_bits(b)).to_bits());
    match (to.is_float(), widens) {
        (true, true) => (facts, splat),
        (true, false) => (facts.narrowed(), splat),
        _ => (NumericFacts::UNKNOWN, splat),
    }
}

/// Facts of an op's result. Views and moves keep the facts of their elements.
fn op_facts(egraph: &EGraph, op: OpId, attrs: AttrsId, node: &Node, ty: &TensorType) -> (NumericFacts, Option<u64>) {
    let unknown = (NumericFacts::UNKNOWN, None);
    let OpBody::Builtin(builtin) = &egraph.analysis.program.op(op).body else { return unknown };
    let first = node.children.first().map(|c| egraph[*c].data);
    let of = |d: Option<Data>| d.map_or(unknown, |d| (d.facts, d.splat));
    let from = node.children.first().and_then(|c| class_type(egraph, *c));
    match builtin {
        BuiltinOp::Reshape
        | BuiltinOp::Transpose
        | BuiltinOp::Expand
        | BuiltinOp::Slice
        | BuiltinOp::Windows
        | BuiltinOp::Gather
        | BuiltinOp::GatherElements
        | BuiltinOp::GatherNd => of(first),
        BuiltinOp::Concat | BuiltinOp::Pad => {
            let parts: Vec<Data> = node
                .children
                .iter()
                .take(if *builtin == BuiltinOp::Pad { 2 } else { usize::MAX })
                .map(|c| egraph[*c].data)
                .collect();
            let Some((head, tail)) = parts.split_first() else { return unknown };
            let facts = tail.iter().fold(head.facts, |f, d| f.and(d.facts));
            (facts, head.splat.filter(|s| tail.iter().all(|d| d.splat == Some(*s))))
        }
        BuiltinOp::Cast => from.map_or(unknown, |from| cast_facts(of(first), from.dtype, ty.dtype)),
        // Sums of integers wrap.
        BuiltinOp::Sum | BuiltinOp::Mean if !ty.dtype.is_float() => unknown,
        BuiltinOp::Sum => (summed(of(first).0), None),
        BuiltinOp::Mean | BuiltinOp::Amax | BuiltinOp::Amin => {
            // Without elements the mean is NaN and the maximum is an infinity.
            let some = from.and_then(|t| product(&t.shape)).and_then(|n| n.as_const()).is_some_and(|n| n > 0);
            match (some, builtin) {
                (false, _) => unknown,
                (true, BuiltinOp::Mean) => (summed(of(first).0), None),
                (true, _) => (of(first).0, None),
            }
        }
        // Positions wrap, too.
        BuiltinOp::Iota if ty.dtype == DType::I8 => unknown,
        BuiltinOp::Iota | BuiltinOp::Size => {
            (NumericFacts { nonneg: true, not_nan: true, ..NumericFacts::UNKNOWN }, None)
        }
        BuiltinOp::Full => match egraph.analysis.attrs(attrs).get(1) {
            Some(AttrValue::Float(v)) => (NumericFacts::UNKNOWN, Some(ty.dtype.round(*v).to_bits())),
            Some(AttrValue::Dim(d)) => {
                (NumericFacts::UNKNOWN, d.as_const().map(|v| ty.dtype.round(v as f64).to_bits()))
            }
            _ => unknown,
        },
        BuiltinOp::Matmul
        | BuiltinOp::Gemm
        | BuiltinOp::Gemm2
        | BuiltinOp::Conv
        | BuiltinOp::ConvGemm
        | BuiltinOp::Scatter
        | BuiltinOp::Argsort
        | BuiltinOp::Split
        | BuiltinOp::Prod
        | BuiltinOp::Cumsum
        | BuiltinOp::Argmax => unknown,
    }
}

impl egg::Analysis<Node> for Context {
    type Data = Data;

    fn make(egraph: &mut EGraph, node: &Node, _id: Id) -> Data {
        *egraph.analysis.news() = News::Created;
        let data = make_data(egraph, node);
        // A class may have a value although none of its nodes is a splat.
        let value = data.splat.map(|_| Discriminant::Splat);
        Data { labels: value.into_iter().chain([node.payload.discriminant()]).collect(), ..data }
    }

    fn pre_union(egraph: &EGraph, a: Id, b: Id, _: &Option<egg::Justification>) {
        let (a, b) = (&egraph[a], &egraph[b]);
        let labels = |of: &Data| Data { labels: LabelSet::default(), ..*of };
        let used = |class: &egg::EClass<Node, Data>| class.parents().next().is_some();
        let news = match (used(a), used(b)) {
            _ if labels(&a.data) != labels(&b.data) => News::Anything,
            (true, true) => News::Anything,
            (true, false) => News::Nodes(b.data.labels),
            (false, true) => News::Nodes(a.data.labels),
            (false, false) => News::Nodes(LabelSet::default()),
        };
        *egraph.analysis.news() = news;
    }

    fn modify(egraph: &mut EGraph, id: Id) {
        let labels = match std::mem::replace(&mut *egraph.analysis.news(), News::Anything) {
            News::Created => egraph[id].data.labels,
            News::Nodes(labels) => labels,
            News::Anything => LabelSet::ALL,
        };
        egraph.analysis.dirty.push((id, labels));
    }

    fn merge(&mut self, a: &mut Data, mut b: Data) -> DidMerge {
        // Without a union, the data of a class is found anew.
        let mut news = self.news();
        if matches!(*news, News::Created) {
            *news = News::Anything;
        }
        drop(news);
        a.labels = a.labels.with(b.labels);
        b.labels = a.labels;
        let joined = Data {
            labels: a.labels,
            sort: if a.sort == Sort::Invalid { b.sort } else { a.sort },
            constant: a.constant || b.constant,
            splat: a.splat.or(b.splat),
            facts: a.facts.or(b.facts),
            reads: self.joined_shape(a.reads, b.reads),
        };
        let did = DidMerge(*a != joined, b != joined);
        *a = joined;
        did
    }
}

/// True for two constants that differ only by rounding: each is computed when the plan is made, and
/// neither is better.
pub fn rounded_apart(egraph: &EGraph, a: Id, b: Id) -> bool {
    let (da, db) = (egraph[a].data, egraph[b].data);
    let eps = egraph.analysis.data_type(&da).map_or(0.0, |t| t.dtype.epsilon());
    match (da.value(), db.value()) {
        (Some(x), Some(y)) => x != y && (x - y).abs() <= 4.0 * eps * x.abs().max(y.abs()),
        _ => false,
    }
}

/// The reason why two classes cannot be equal, if there is one.
pub fn conflict(egraph: &EGraph, a: Id, b: Id) -> Option<String> {
    let (da, db) = (egraph[a].data, egraph[b].data);
    match (da.sort, db.sort) {
        (Sort::Invalid, _) | (_, Sort::Invalid) => return Some("one of them does not type-check".to_string()),
        (Sort::Tensor(x), Sort::Tensor(y)) if x != y => {
            return Some(format!("{} and {}", egraph.analysis.ty(x), egraph.analysis.ty(y)));
        }
        (Sort::Term(x), Sort::Term(y)) if x != y => return Some("a truth value and a number".to_string()),
        (Sort::Tuple { first: f, count: n }, Sort::Tuple { first: g, count: m })
            if egraph.analysis.tuple(f, n) != egraph.analysis.tuple(g, m) =>
        {
            return Some("results of different types".to_string());
        }
        (x, y) if std::mem::discriminant(&x) != std::mem::discriminant(&y) => {
            return Some("a tensor and something that is none".to_string());
        }
        _ => {}
    }
    match (da.splat, db.splat) {
        (Some(x), Some(y)) if x != y => Some(format!("the constants {} and {}", f64::from_bits(x), f64::from_bits(y))),
        _ => None,
    }
}
