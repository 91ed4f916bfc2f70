//! Computes images with their channels last (NHWC), and convolutions as products of all pixels.
//!
//! In: a graph of builtin ops, for a device whose convolutions are products. Out: the same
//! function, up to the order in which sums are added: a convolution multiplies a row for each pixel
//! by the filters, and work between convolutions keeps that order of axes. Images whose channels
//! come first are few pixels a matrix, a batch of matrices, and rows of no whole access; with
//! channels last they are one matrix of long rows. Invariant: what is not known to keep its result
//! when axes are exchanged reads its operands with the channels where the graph has them. The graph
//! stays as it is where that would move more than a small share of what convolutions compute.

use hypatia_dsl::builtin::BuiltinOp;
use hypatia_dsl::ir::{AttrValue, InView};
use hypatia_dsl::kernel::{ChannelGroups, ChannelWindowsKernel, GroupWindowsKernel, WindowAxis};
use hypatia_dsl::scalar::{Term, TermNode};
use hypatia_dsl::shape::Dim;

use super::constants::constant_nodes;
use super::kinds::{builtin, is_pointwise};
use super::prim::{Prim, Window, sizes};
use super::replace::copy;
use super::{ConvSizes, Graph, Node, NodeId, NodeKind, Value};
use hypatia_target::device::Device;
use hypatia_tensor::error::{Error, Result};

mod pool;

/// Axes of an image from channels first to channels last, and back.
const LAST: [usize; 4] = [0, 2, 3, 1];
const FIRST: [usize; 4] = [0, 3, 1, 2];
/// Elements of 16 bits in the widest access: filters of other channels stay first.
const ACCESS: usize = 8;
/// The largest share of the convolutions' results that may be moved from one order to the other:
/// one of so many elements.
const MOVED: usize = 8;
/// The compute capability from which warps multiply in f16 and bf16.
const AMPERE: u32 = 80;
/// With fewer convolutions nothing lies between them.
const FEWEST: usize = 2;

/// True for a device whose warps multiply groups of channels where they lie.
pub fn multiplies_groups(device: &Device) -> bool {
    device.sm >= AMPERE
}

/// The graph with channels last around its convolutions on that device, if that pays.
///
/// # Errors
/// If a node cannot be built.
pub fn with_channels_last(graph: &Graph, device: &Device) -> Result<Option<Graph>> {
    let convolutions = graph.nodes.iter().filter(|n| graph.conv_of_image(n).is_some()).count();
    if convolutions < FEWEST {
        return Ok(None);
    }
    let mut pass = Channels {
        graph,
        constant: constant_nodes(graph),
        grouped: multiplies_groups(device),
        out: Graph::new(graph.program.clone()),
        map: Vec::with_capacity(graph.nodes.len()),
        convolved: 0,
        moved: 0,
    };
    for node in &graph.nodes {
        let start = pass.out.nodes.len();
        let made = pass.node(node)?;
        pass.out.nodes[start..].iter_mut().filter(|n| n.name.is_empty()).for_each(|n| n.name.clone_from(&node.name));
        pass.map.push(made);
    }
    for (name, v) in &graph.outputs {
        let value = pass.first(*v)?;
        pass.out.output(name.clone(), value);
    }
    pass.out.inputs = graph.inputs.iter().map(|id| pass.of(Value { node: *id, output: 0 }).value.node).collect();
    Ok((pass.convolved > 0 && pass.moved <= pass.convolved / MOVED).then_some(pass.out))
}

/// How a convolution of all channels, of groups or of single ones is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    /// As a product of pixels.
    Points,
    /// As a convolution that reads and stores channels last.
    Windows,
    /// As a convolution that reads channels first: too few for whole accesses.
    FewChannels,
    /// As a convolution by a kernel that reads channels first, and stores them last.
    Colours,
    /// As a convolution of single channels that a kernel reads and stores last.
    SingleChannels,
}

/// The order of a value's axes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Axes {
    /// As in the graph.
    Kept,
    /// An image with its channels last.
    Last,
    /// Windows on an image, whose channels are last: the value is the image.
    Windows,
}

/// A value of the new graph.
#[derive(Clone, Copy, Debug)]
struct Lies {
    value: Value,
    axes: Axes,
}

impl Lies {
    fn kept(value: Value) -> Lies {
        Lies { value, axes: Axes::Kept }
    }
}

struct Channels<'g> {
    graph: &'g Graph,
    constant: Vec<bool>,
    /// True if a kernel multiplies groups of channels.
    grouped: bool,
    out: Graph,
    /// What each node became.
    map: Vec<Vec<Lies>>,
    /// Elements of the results of convolutions with channels last, and of what changes its order,
    /// for each image of a batch.
    convolved: usize,
    moved: usize,
}

impl Channels<'_> {
    fn node(&mut self, node: &Node) -> Result<Vec<Lies>> {
        if let Some(made) = self.convolution(node)? {
            return Ok(vec![Lies { value: made, axes: Axes::Last }]);
        }
        if let Some(made) = self.exchanged(node) {
            return Ok(vec![made]);
        }
        let lie = |axes: Axes| node.operands.iter().flatten().any(|v| self.of(*v).axes == axes);
        let made = match builtin(self.graph, node) {
            _ if is_pointwise(self.graph, node) && lie(Axes::Last) && self.is_image(node) => {
                self.as_image(node, Node::clone)?
            }
            Some(op) if lie(Axes::Last) || lie(Axes::Windows) => self.of_image(op, node)?,
            _ => None,
        };
        match made {
            Some(made) => Ok(made),
            None => {
                let operands = node.operands.iter().map(|v| v.map(|v| self.first(v)).transpose());
                let operands = operands.collect::<Result<Vec<_>>>()?;
                Ok(copy(&mut self.out, node, &operands)?.into_iter().map(Lies::kept).collect())
            }
        }
    }

    /// True for a node whose result has the axes of an image.
    fn is_image(&self, node: &Node) -> bool {
        node.results.iter().all(|ty| ty.shape.len() == LAST.len())
    }

    /// A transposition that a model has from one order to the other: the value as it lies.
    fn exchanged(&self, node: &Node) -> Option<Lies> {
        let NodeKind::Op { attrs, .. } = &node.kind else { return None };
        let (Some(BuiltinOp::Transpose), [Some(v)]) = (builtin(self.graph, node), node.operands.as_slice()) else {
            return None;
        };
        let Lies { value, axes } = self.of(*v);
        let orders = |order: [usize; 4]| attrs.first() == Some(&order.map(|a| a as i64).into());
        match axes {
            Axes::Kept if orders(FIRST) => Some(Lies { value, axes: Axes::Last }),
            Axes::Last if orders(LAST) => Some(Lies { value, axes: Axes::Kept }),
            _ => None,
        }
    }

    /// An op on an image with channels last, or on windows of one; `None` if it is computed with
    /// channels first.
    fn of_image(&mut self, op: BuiltinOp, node: &Node) -> Result<Option<Vec<Lies>>> {
        use BuiltinOp::{Amax, Amin, Concat, Expand, Mean, Pad, Prod, Slice, Split, Sum, Windows};
        let NodeKind::Op { attrs, .. } = &node.kind else { return Ok(None) };
        let image = |v: &Value| self.graph.ty(*v).shape.len() == LAST.len();
        let first = node.operands.first().copied().flatten();
        let lies = first.map(|v| self.of(v));
        match (op, lies.map(|l| l.axes)) {
            (Sum | Mean | Amax | Amin, Some(Axes::Windows)) => pool::reduced(self, op, node),
            (Sum | Mean | Amax | Amin | Prod, Some(Axes::Last)) => self.reduced(node),
            (Windows, Some(Axes::Last)) => {
                let two = matches!(attrs.first(), Some(AttrValue::List(sizes)) if sizes.len() == 2);
                Ok(lies.filter(|_| two).map(|l| vec![Lies { axes: Axes::Windows, ..l }]))
            }
            (Concat, _) if node.operands.iter().flatten().all(image) => {
                let at = |node: &Node| with(node, 0, moved_axis);
                self.as_image(node, at)
            }
            (Slice | Split, Some(Axes::Last)) => self.as_image(node, |node| with(node, 0, moved_axis)),
            (Pad, Some(Axes::Last)) => self.as_image(node, |node| with(&with(node, 0, in_order), 1, in_order)),
            (Expand, Some(Axes::Last)) if self.is_image(node) => self.as_image(node, |node| with(node, 0, in_order)),
            _ => Ok(None),
        }
    }

    /// A node whose operands and results are images, with channels last. `changed` is the node with
    /// its attributes in that order.
    fn as_image(&mut self, node: &Node, changed: impl Fn(&Node) -> Node) -> Result<Option<Vec<Lies>>> {
        let operands = node.operands.iter().map(|v| v.map(|v| self.last(v)).transpose()).collect::<Result<Vec<_>>>()?;
        let made = copy(&mut self.out, &changed(node), &operands)?;
        Ok(Some(made.into_iter().map(|value| Lies { value, axes: Axes::Last }).collect()))
    }

    /// A reduction of an image; `None` if the axes that are left would change their order.
    fn reduced(&mut self, node: &Node) -> Result<Option<Vec<Lies>>> {
        let (Some(of), NodeKind::Op { attrs, .. }) = (node.operands.first().copied().flatten(), &node.kind) else {
            return Ok(None);
        };
        let (Some(AttrValue::List(axes)), Some(AttrValue::Bool(keeps))) = (attrs.first(), attrs.get(1)) else {
            return Ok(None);
        };
        let reduced: Option<Vec<usize>> = axes.iter().map(axis).collect();
        let Some(reduced) = reduced else { return Ok(None) };
        let left: Vec<usize> = LAST.into_iter().filter(|a| !reduced.contains(a)).collect();
        if !keeps && !left.is_sorted() {
            return Ok(None);
        }
        let of = self.last(of)?;
        let node = with(node, 0, |axes| match axes {
            AttrValue::List(axes) => {
                let mut places: Vec<i64> = axes.iter().filter_map(axis).map(|a| FIRST[a] as i64).collect();
                places.sort_unstable();
                places.as_slice().into()
            }
            other => other.clone(),
        });
        let made = copy(&mut self.out, &node, &[Some(of)])?;
        let axes = if *keeps { Axes::Last } else { Axes::Kept };
        Ok(Some(made.into_iter().map(|value| Lies { value, axes }).collect()))
    }

    /// A convolution of all channels, of groups or of single ones, with its result's channels last;
    /// `None` for another node.
    fn convolution(&mut self, node: &Node) -> Result<Option<Value>> {
        let Some((how, sizes)) = self.how(node) else { return Ok(None) };
        let [Some(x), Some(w), reads @ ..] = node.operands.as_slice() else { return Ok(None) };
        let made = match how {
            How::Points => self.points(node, [*x, *w], reads, &sizes)?,
            How::Windows => {
                let x = self.last(*x)?;
                let operands = [self.transposed(x, &FIRST)?, self.arranged(*w, &LAST)?];
                self.kept(node, operands, reads)?
            }
            How::SingleChannels => {
                let x = self.last(*x)?;
                let operands = [self.transposed(x, &FIRST)?, self.first(*w)?];
                self.kept(node, operands, reads)?
            }
            How::Colours => {
                let operands = [self.first(*x)?, self.arranged(*w, &LAST)?];
                self.kept(node, operands, reads)?
            }
            How::FewChannels => {
                let operands = [self.first(*x)?, self.arranged(*w, &[1, 2, 3, 0])?];
                self.kept(node, operands, reads)?
            }
        };
        self.convolved += sizes.groups * sizes.filters * sizes.columns();
        Ok(Some(made))
    }

    /// How such a convolution is computed; `None` for another node.
    fn how(&self, node: &Node) -> Option<(How, ConvSizes)> {
        let (sizes, axes) = self.graph.conv_of_image(node)?;
        let NodeKind::Op { attrs, term, .. } = &node.kind else { return None };
        let [strides, before, after, ..] = attrs.as_slice() else { return None };
        let all =
            |list: &AttrValue, value: i64| matches!(list, AttrValue::List(l) if l.iter().all(|a| *a == value.into()));
        let one = sizes.taps.iter().all(|t| *t == 1) && all(strides, 1) && all(before, 0) && all(after, 0);
        let products = sizes.groups == 1 && sizes.are_products();
        let dtype = node.operands.first().copied().flatten().map(|x| self.graph.ty(x).dtype)?;
        let fits = sizes.groups.is_multiple_of(ACCESS) && ChannelWindowsKernel::fits(axes, sizes.groups, dtype);
        let single = sizes.groups > 1 && [sizes.channels, sizes.filters] == [1, 1] && fits;
        let constant = node.operands.get(1).copied().flatten().is_some_and(|w| self.constant[w.node.index()]);
        let groups = ChannelGroups { count: sizes.groups, channels: sizes.channels, filters: sizes.filters };
        let by_warps = self.grouped && GroupWindowsKernel::computes(axes, groups, dtype);
        let grouped = by_warps && sizes.groups > 1;
        let how = match sizes.channels.is_multiple_of(ACCESS) {
            _ if single => How::SingleChannels,
            _ if grouped => How::Windows,
            false if by_warps => How::Colours,
            false => How::FewChannels,
            true if one => How::Points,
            true => How::Windows,
        };
        let broadcasts = term.as_ref().is_none_or(broadcasts);
        ((products || grouped || single) && broadcasts && constant).then_some((how, sizes))
    }

    /// A convolution of single pixels: a product of all of them by the filters.
    fn points(&mut self, node: &Node, [x, w]: [Value; 2], reads: &[Option<Value>], sizes: &ConvSizes) -> Result<Value> {
        let NodeKind::Op { term, .. } = &node.kind else { return Err(Error::Internal("no convolution".into())) };
        let (pixels, w) = (self.last(x)?, self.first(w)?);
        let filters = self.reshaped(w, [sizes.filters, sizes.channels].map(|d| Dim::from(d as i64)).to_vec())?;
        let mut operands = vec![Some(pixels), Some(self.transposed(filters, &[1, 0])?)];
        for read in reads {
            operands.push(read.map(|v| self.last(v)).transpose()?);
        }
        let gemm = self.graph.program.builtin_op(BuiltinOp::Gemm);
        let gemm = gemm.ok_or_else(|| Error::Internal("a program without products".into()))?;
        let term = term.clone().unwrap_or_else(super::Product::plain);
        let made = self.out.op(gemm, &operands, vec![AttrValue::DType(node.results[0].dtype)], Some(term))?;
        let made = made.first().copied().ok_or_else(|| Error::Internal("a product without a result".into()))?;
        self.out.nodes[made.node.index()].kernels = node.kernels.clone();
        Ok(made)
    }

    /// A convolution that stays one, on these views of its image and filters. Its readers read a
    /// view of the result.
    fn kept(&mut self, node: &Node, factors: [Value; 2], reads: &[Option<Value>]) -> Result<Value> {
        let mut operands = factors.map(Some).to_vec();
        for read in reads {
            let lies = read.map(|v| (v, self.of(v)));
            operands.push(match lies {
                Some((_, Lies { value, axes: Axes::Last })) => Some(self.transposed(value, &FIRST)?),
                Some((v, _)) => Some(self.first(v)?),
                None => None,
            });
        }
        let made = copy(&mut self.out, node, &operands)?;
        let made = made.first().copied().ok_or_else(|| Error::Internal("a convolution without a result".into()))?;
        self.transposed(made, &LAST)
    }

    /// A view of constant filters whose elements lie in that order of axes.
    fn arranged(&mut self, w: Value, order: &[usize; 4]) -> Result<Value> {
        let w = self.first(w)?;
        let w = self.transposed(w, order)?;
        // Views of constants stay views. A constant of its own is computed once.
        let w = self.one(BuiltinOp::Concat, &[w], vec![0i64.into()])?;
        let back: Vec<usize> = (0..order.len()).filter_map(|a| order.iter().position(|o| *o == a)).collect();
        self.transposed(w, &back)
    }

    /// What a value became.
    fn of(&self, v: Value) -> Lies {
        self.map[v.node.index()][v.output as usize]
    }

    /// A value with its axes as in the graph.
    fn first(&mut self, v: Value) -> Result<Value> {
        let Lies { value, axes } = self.of(v);
        match axes {
            Axes::Kept => Ok(value),
            Axes::Last => {
                self.moved += pixels_of(self.graph, v);
                self.transposed(value, &FIRST)
            }
            Axes::Windows => {
                self.moved += pixels_of(self.graph, v);
                let image = self.transposed(value, &FIRST)?;
                Ok(copy(&mut self.out, self.graph.node(v.node), &[Some(image)])?[0])
            }
        }
    }

    /// An image with its channels last, or what broadcasts to one.
    fn last(&mut self, v: Value) -> Result<Value> {
        let Lies { value, axes } = self.of(v);
        if axes == Axes::Last {
            return Ok(value);
        }
        let value = if axes == Axes::Windows { self.first(v)? } else { value };
        let shape = self.out.ty(value).shape.clone();
        if shape.is_empty() {
            return Ok(value);
        }
        // Constants are arranged once.
        self.moved += if self.constant[v.node.index()] { 0 } else { pixels_of(self.graph, v) };
        let missing = LAST.len().saturating_sub(shape.len());
        let wide = [vec![Dim::from(1); missing], shape].concat();
        let value = if missing > 0 { self.reshaped(value, wide)? } else { value };
        self.transposed(value, &LAST)
    }

    fn transposed(&mut self, v: Value, order: &[usize]) -> Result<Value> {
        let order: Vec<i64> = order.iter().map(|a| *a as i64).collect();
        self.one(BuiltinOp::Transpose, &[v], vec![order.as_slice().into()])
    }

    fn reshaped(&mut self, v: Value, shape: Vec<Dim>) -> Result<Value> {
        let shape = AttrValue::List(shape.into_iter().map(AttrValue::Dim).collect());
        self.one(BuiltinOp::Reshape, &[v], vec![shape])
    }

    /// A builtin op with one result.
    fn one(&mut self, op: BuiltinOp, operands: &[Value], attrs: Vec<AttrValue>) -> Result<Value> {
        let made = self.out.builtin(op, operands, attrs)?;
        made.first().copied().ok_or_else(|| Error::Internal(format!("{} without a result", op.name())))
    }
}

impl Graph {
    /// The sizes of a node that is a convolution of images, whose sizes but for the batch's are
    /// known, and how its windows lie along rows and columns. The batch counts as one image.
    fn conv_of_image(&self, node: &Node) -> Option<(ConvSizes, [WindowAxis; 2])> {
        let (op, NodeKind::Op { attrs, .. }) = (builtin(self, node)?, &node.kind) else { return None };
        let of = |shape: &[Dim]| {
            let (_, rest) = shape.split_first()?;
            Some([vec![1], sizes(rest, &|_| None).ok()?].concat())
        };
        let operand = |i: usize| node.operands.get(i).copied().flatten().map(|v| self.ty(v).shape.clone());
        let (x, filters, out) = (of(&operand(0)?)?, sizes(&operand(1)?, &|_| None).ok()?, of(&node.results[0].shape)?);
        match Prim::read(op, attrs, &|_| None, &[&x, &filters], &out).ok()? {
            Prim::Conv { groups, axes } => {
                let [rows, columns]: [Window; 2] = axes.try_into().ok()?;
                let axis = |w: Window, at: usize| {
                    let (image, out) = (*x.get(at)?, *out.get(at)?);
                    let Window { size, stride, dilation, before } = w;
                    Some(WindowAxis { image, out, size, stride, dilation, before }.plain())
                };
                Some((ConvSizes::new(groups, &filters, &out)?, [axis(rows, 2)?, axis(columns, 3)?]))
            }
            _ => None,
        }
    }

    /// True if all users of a convolution read its result with channels last.
    pub fn is_read_channels_last(&self, users: &[NodeId]) -> bool {
        let reads = |id: &NodeId| match &self.node(*id).kind {
            NodeKind::Op { attrs, .. } if builtin(self, self.node(*id)) == Some(BuiltinOp::Transpose) => {
                let last = [&LAST.map(|a| a as i64)[..], &[0, 2, 1]];
                last.iter().any(|order| attrs.first() == Some(&AttrValue::from(*order)))
            }
            _ => false,
        };
        !users.is_empty() && users.iter().all(reads)
    }
}

/// Elements of a value for each image, if it has pixels; a vector of channels moves for free.
fn pixels_of(graph: &Graph, v: Value) -> usize {
    let shape = &graph.ty(v).shape;
    let size = |d: &Dim| d.as_const().and_then(|d| usize::try_from(d).ok()).unwrap_or(1);
    let pixels: usize = shape.iter().skip(2).map(size).product();
    if pixels > 1 { pixels * shape.get(1).map_or(1, size) } else { 0 }
}

/// True if a term reads operands that broadcast, by no other view.
fn broadcasts(term: &Term) -> bool {
    let reads = |n: &TermNode| !matches!(n, TermNode::In { view, .. } if !matches!(view, InView::Broadcast));
    term.nodes.iter().all(reads)
}

/// The node with another attribute.
fn with(node: &Node, at: usize, change: impl Fn(&AttrValue) -> AttrValue) -> Node {
    let mut node = node.clone();
    if let NodeKind::Op { attrs, .. } = &mut node.kind
        && let Some(attr) = attrs.get_mut(at)
    {
        *attr = change(attr);
    }
    node
}

/// An axis, which is not negative in a typed graph.
fn axis(a: &AttrValue) -> Option<usize> {
    match a {
        AttrValue::Dim(axis) => axis.as_const().and_then(|a| usize::try_from(a).ok()).filter(|a| *a < LAST.len()),
        _ => None,
    }
}

/// The place of an axis with channels last.
fn moved_axis(a: &AttrValue) -> AttrValue {
    axis(a).map_or_else(|| a.clone(), |a| (FIRST[a] as i64).into())
}

/// A list with an entry for each axis, in the order with channels last.
fn in_order(a: &AttrValue) -> AttrValue {
    match a {
        AttrValue::List(list) if list.len() == LAST.len() => {
            AttrValue::List(LAST.iter().map(|a| list[*a].clone()).collect())
        }
        other => other.clone(),
    }
}
