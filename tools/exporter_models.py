"""Small networks of the families that people export, node by node as PyTorch exports them.

Each function returns the nodes, inputs and initializers of one network with random weights.
tools/make_op_models.py adds them to tests/models/ops.npz with onnxruntime's outputs.
"""

import numpy as np
from onnx import helper, numpy_helper

RNG = np.random.default_rng(7)


class Net:
    """Nodes and initializers, numbered in the order of their creation."""

    def __init__(self):
        self.nodes, self.weights, self.inputs, self.count = [], {}, {}, 0

    def fresh(self, op):
        self.count += 1
        return f"{op.lower()}_{self.count}"

    def op(self, kind, *inputs, outputs=1, **attrs):
        names = [self.fresh(kind) for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=f"node_{names[0]}", **attrs))
        return names[0] if outputs == 1 else names

    def const(self, value, dtype=None):
        name = self.fresh("const")
        self.weights[name] = np.asarray(value, dtype)
        return name

    def ints(self, *values):
        return self.const(np.array(values, np.int64))

    def w(self, *shape, scale=None):
        scale = scale or 1 / np.sqrt(max(1, np.prod(shape[1:])))
        return self.const((RNG.standard_normal(shape) * scale).astype(np.float32))

    def input(self, name, array):
        self.inputs[name] = array
        return name

    def image(self, *shape):
        return self.input("x", RNG.standard_normal(shape).astype(np.float32))

    def conv(self, x, cin, cout, k=3, s=1, p=None, g=1, d=1, bias=True):
        p = (k - 1) * d // 2 if p is None else p
        args = [x, self.w(cout, cin // g, k, k)] + ([self.w(cout, scale=0.1)] if bias else [])
        return self.op("Conv", *args, kernel_shape=[k, k], strides=[s, s], pads=[p] * 4, group=g, dilations=[d, d])

    def bn(self, x, c):
        mean, var = self.w(c, scale=0.1), self.const((0.5 + RNG.random(c)).astype(np.float32))
        return self.op("BatchNormalization", x, self.w(c, scale=1.0), self.w(c, scale=0.1), mean, var, epsilon=1e-5)

    def linear(self, x, k, n):
        return self.op("Add", self.op("MatMul", x, self.w(k, n, scale=1 / np.sqrt(k))), self.w(n, scale=0.1))

    def gelu(self, x):
        e = self.op("Erf", self.op("Div", x, self.const(np.float32(1.4142135))))
        return self.op("Mul", self.op("Mul", x, self.op("Add", e, self.const(np.float32(1)))),
            self.const(np.float32(0.5)))

    def ln(self, x, c):
        return self.op("LayerNormalization", x, self.w(c, scale=1.0), self.w(c, scale=0.1), axis=-1, epsilon=1e-6)

    def softmax_attention(self, q, k, v, scale, mask=None):
        scores = self.op("MatMul", self.op("Mul", q, self.const(np.float32(scale))),
            self.op("Transpose", k, perm=[0, 1, 3, 2]))
        if mask:
            scores = self.op("Add", scores, mask)
        return self.op("MatMul", self.op("Softmax", scores, axis=-1), v)


def resnet():
    """Residual blocks with batch-norm, stride, projection, max-pool with padding, global pool."""
    n = Net()
    x = n.image(2, 3, 33, 33)
    x = n.op("Relu", n.bn(n.conv(x, 3, 8, k=7, s=2, bias=False), 8))
    x = n.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=0)
    for cin, cout, s in [(8, 8, 1), (8, 16, 2)]:
        y = n.op("Relu", n.bn(n.conv(x, cin, cout, s=s, bias=False), cout))
        y = n.bn(n.conv(y, cout, cout, bias=False), cout)
        short = x if s == 1 else n.bn(n.conv(x, cin, cout, k=1, s=s, bias=False), cout)
        x = n.op("Relu", n.op("Add", y, short))
    x = n.op("Flatten", n.op("GlobalAveragePool", x), axis=1)
    return n, [n.op("Gemm", x, n.w(5, 16), n.w(5), transB=1)]


def convnext():
    """Depth-wise 7x7, LayerNorm over channels between transposes, GELU, layer scale."""
    n = Net()
    x = n.conv(n.image(1, 3, 16, 16), 3, 12, k=4, s=4, p=0)
    for _ in range(2):
        y = n.conv(x, 12, 12, k=7, g=12)
        y = n.ln(n.op("Transpose", y, perm=[0, 2, 3, 1]), 12)
        y = n.linear(n.gelu(n.linear(y, 12, 48)), 48, 12)
        y = n.op("Transpose", n.op("Mul", n.w(12, scale=1.0), y), perm=[0, 3, 1, 2])
        x = n.op("Add", x, y)
    return n, [n.ln(n.op("ReduceMean", x, n.ints(2, 3), keepdims=0), 12)]


def efficientnet():
    """Inverted bottleneck, SiLU, squeeze and excitation."""
    n = Net()
    silu = lambda x: n.op("Mul", x, n.op("Sigmoid", x))
    x = silu(n.conv(n.image(2, 3, 15, 15), 3, 6, s=2))
    y = silu(n.conv(x, 6, 18, k=1))
    y = silu(n.conv(y, 18, 18, k=5, g=18))
    s = n.op("ReduceMean", y, n.ints(-1, -2), keepdims=1)
    s = n.op("Sigmoid", n.conv(silu(n.conv(s, 18, 4, k=1)), 4, 18, k=1))
    y = n.conv(n.op("Mul", s, y), 18, 6, k=1)
    return n, [n.op("Clip", n.op("Add", x, y), n.const(np.float32(-1)), n.const(np.float32(6)))]


def unet():
    """Down and up: transposed convolution, Resize (nearest and linear), concat, crop by slices."""
    n = Net()
    a = n.op("LeakyRelu", n.conv(n.image(1, 2, 12, 12), 2, 4), alpha=0.1)
    b = n.op("Relu", n.conv(n.op("MaxPool", a, kernel_shape=[2, 2], strides=[2, 2]), 4, 8))
    c = n.op("Relu", n.conv(n.op("AveragePool", b, kernel_shape=[2, 2], strides=[2, 2]), 8, 8))
    up = n.op("ConvTranspose", c, n.w(8, 8, 2, 2), n.w(8, scale=0.1), kernel_shape=[2, 2], strides=[2, 2])
    x = n.op("Relu", n.conv(n.op("Concat", up, b, axis=1), 16, 4))
    scales = n.const(np.array([1, 1, 2, 2], np.float32))
    near = n.op("Resize", x, "", scales, mode="nearest", coordinate_transformation_mode="asymmetric",
        nearest_mode="floor")
    smooth = n.op("Resize", x, "", scales, mode="linear", coordinate_transformation_mode="half_pixel")
    x = n.conv(n.op("Concat", near, smooth, a, axis=1), 12, 3, k=1)
    x = n.op("Slice", x, n.ints(1, 1), n.ints(-1, 2**63 - 1), n.ints(2, 3))
    return n, [n.op("Softmax", x, axis=1)]


def swin():
    """Shifted windows: roll by slices, 6-D transposes, relative bias, mask, roll back."""
    n = Net()
    h, w, c, m, heads = 8, 8, 8, 4, 2
    x = n.image(2, h * w, c)
    y = n.op("Reshape", n.ln(x, c), n.ints(2, h, w, c))
    y = n.op("Pad", y, n.ints(0, 0, 0, 0, 0, 0, 0, 0), n.const(np.float32(0)))

    def roll(v, shift, axis):
        end = n.ints(2**63 - 1)
        low = n.op("Slice", v, n.ints(shift), end, n.ints(axis))
        high = n.op("Slice", v, n.ints(0), n.ints(shift), n.ints(axis))
        return n.op("Concat", low, high, axis=axis)

    y = roll(roll(y, 2, 1), 2, 2)
    y = n.op("Transpose", n.op("Reshape", y, n.ints(2, h // m, m, w // m, m, c)), perm=[0, 1, 3, 2, 4, 5])
    y = n.op("Reshape", y, n.ints(-1, m * m, c))
    qkv = n.op("Reshape", n.linear(y, c, 3 * c), n.ints(-1, m * m, 3, heads, c // heads))
    qkv = n.op("Transpose", qkv, perm=[2, 0, 3, 1, 4])
    q, k, v = [n.op("Gather", qkv, n.const(np.int64(j)), axis=0) for j in range(3)]
    scores = n.op("MatMul", n.op("Mul", q, n.const(np.float32(0.5))), n.op("Transpose", k, perm=[0, 1, 3, 2]))
    table = n.w((2 * m - 1) ** 2, heads, scale=0.5)
    index = RNG.integers(0, (2 * m - 1) ** 2, m**4)
    bias = n.op("Reshape", n.op("Gather", table, n.const(index), axis=0), n.ints(m * m, m * m, heads))
    bias = n.op("Unsqueeze", n.op("Transpose", bias, perm=[2, 0, 1]), n.ints(0))
    scores = n.op("Add", scores, bias)
    mask = np.where(RNG.random((4, 1, m * m, m * m)) < 0.3, -100.0, 0.0).astype(np.float32)
    scores = n.op("Add", n.op("Reshape", scores, n.ints(2, 4, heads, m * m, m * m)), n.const(mask[None]))
    p = n.op("Softmax", n.op("Reshape", scores, n.ints(-1, heads, m * m, m * m)), axis=-1)
    y = n.op("Reshape", n.op("Transpose", n.op("MatMul", p, v), perm=[0, 2, 1, 3]), n.ints(-1, m * m, c))
    y = n.op("Reshape", n.linear(y, c, c), n.ints(-1, h // m, w // m, m, m, c))
    y = n.op("Reshape", n.op("Transpose", y, perm=[0, 1, 3, 2, 4, 5]), n.ints(2, h, w, c))
    y = roll(roll(y, h - 2, 1), w - 2, 2)
    x = n.op("Add", x, n.op("Reshape", y, n.ints(2, h * w, c)))
    # Patch merging: every second row and column.
    y = n.op("Reshape", x, n.ints(2, h, w, c))
    end, step = n.ints(2**63 - 1), n.ints(2)
    part = lambda a, b: n.op("Slice", n.op("Slice", y, n.ints(a), end, n.ints(1), step), n.ints(b), end, n.ints(2),
        step)
    y = n.op("Concat", part(0, 0), part(1, 0), part(0, 1), part(1, 1), axis=-1)
    return n, [n.op("MatMul", n.ln(n.op("Reshape", y, n.ints(2, -1, 4 * c)), 4 * c), n.w(4 * c, 2 * c))]


def mixer():
    """Token and channel mixing."""
    n = Net()
    x = n.image(2, 9, 8)
    y = n.op("Transpose", n.ln(x, 8), perm=[0, 2, 1])
    y = n.linear(n.gelu(n.linear(y, 9, 16)), 16, 9)
    x = n.op("Add", x, n.op("Transpose", y, perm=[0, 2, 1]))
    x = n.op("Add", x, n.linear(n.gelu(n.linear(n.ln(x, 8), 8, 24)), 24, 8))
    return n, [n.op("ReduceMean", n.ln(x, 8), n.ints(1), keepdims=0)]


def masked_encoder():
    """Token ids and a padding mask that becomes a bias, as exporters write attention masks."""
    n = Net()
    b, s, c, heads = 2, 5, 8, 2
    ids = n.input("input_ids", RNG.integers(0, 11, (b, s)))
    mask = n.input("attention_mask", np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]))
    x = n.op("Add", n.op("Gather", n.w(11, c, scale=1.0), ids),
        n.op("Slice", n.w(1, 16, c, scale=1.0), n.ints(0), n.ints(s), n.ints(1)))
    x = n.ln(x, c)
    m = n.op("Unsqueeze", n.op("Unsqueeze", mask, n.ints(1)), n.ints(2))
    m = n.op("Cast", n.op("Expand", m, n.ints(b, 1, s, s)), to=1)
    inverse = n.op("Sub", n.const(np.float32(1)), m)
    bias = n.op("Where", n.op("Cast", inverse, to=9), n.const(np.float32(np.finfo(np.float32).min)), inverse)
    split = lambda v: n.op("Transpose", n.op("Reshape", v, n.ints(b, s, heads, c // heads)), perm=[0, 2, 1, 3])
    q, k, v = split(n.linear(x, c, c)), split(n.linear(x, c, c)), split(n.linear(x, c, c))
    y = n.softmax_attention(q, k, v, (c // heads) ** -0.5, bias)
    y = n.op("Reshape", n.op("Transpose", y, perm=[0, 2, 1, 3]), n.ints(b, s, -1))
    x = n.ln(n.op("Add", n.linear(y, c, c), x), c)
    x = n.ln(n.op("Add", n.linear(n.gelu(n.linear(x, c, 16)), 16, c), x), c)
    first = n.op("Gather", x, n.const(np.int64(0)), axis=1)
    return n, [x, n.op("Tanh", n.op("Gemm", first, n.w(c, c), n.w(c), transB=1))]


def grouped_decoder():
    """RMS-norm, rotary embedding, two key heads for four, causal mask by Trilu, SwiGLU, top-k."""
    n = Net()
    b, s, heads, kv, d = 1, 6, 4, 2, 4
    c = heads * d
    ids = n.input("input_ids", RNG.integers(0, 13, (b, s)))
    table = n.w(13, c, scale=1.0)
    x = n.op("Gather", table, ids)

    def rms(v):
        mean = n.op("ReduceMean", n.op("Pow", v, n.const(np.float32(2))), n.ints(-1), keepdims=1)
        root = n.op("Sqrt", n.op("Add", mean, n.const(np.float32(1e-6))))
        return n.op("Mul", n.w(c, scale=1.0), n.op("Mul", v, n.op("Reciprocal", root)))

    position = n.op("Cast", n.op("Range", n.const(np.int64(0)), n.const(np.int64(s)), n.const(np.int64(1))), to=1)
    freq = n.const((10000.0 ** (-np.arange(0, d, 2) / d)).astype(np.float32)[None])
    angle = n.op("MatMul", n.op("Unsqueeze", position, n.ints(1)), freq)
    angle = n.op("Concat", angle, angle, axis=-1)
    cos, sin = n.op("Cos", angle), n.op("Sin", angle)

    def rotary(v):
        low = n.op("Slice", v, n.ints(0), n.ints(d // 2), n.ints(3))
        high = n.op("Slice", v, n.ints(d // 2), n.ints(2**63 - 1), n.ints(3))
        turned = n.op("Concat", n.op("Neg", high), low, axis=-1)
        return n.op("Add", n.op("Mul", v, cos), n.op("Mul", turned, sin))

    def split(v, count):
        return n.op("Transpose", n.op("Reshape", v, n.ints(b, s, count, d)), perm=[0, 2, 1, 3])

    def repeat(v):
        wide = n.op("Expand", n.op("Unsqueeze", v, n.ints(2)), n.ints(b, kv, heads // kv, s, d))
        return n.op("Reshape", wide, n.ints(b, heads, s, d))

    h = rms(x)
    q = rotary(split(n.op("MatMul", h, n.w(c, c)), heads))
    k = rotary(split(n.op("MatMul", h, n.w(c, kv * d)), kv))
    v = split(n.op("MatMul", h, n.w(c, kv * d)), kv)
    full = n.const(np.full((s, s), np.finfo(np.float32).min, np.float32))
    mask = n.op("Unsqueeze", n.op("Trilu", full, n.const(np.int64(1)), upper=1), n.ints(0, 1))
    y = n.softmax_attention(q, repeat(k), repeat(v), d**-0.5, mask)
    y = n.op("Reshape", n.op("Transpose", y, perm=[0, 2, 1, 3]), n.ints(b, s, c))
    x = n.op("Add", x, n.op("MatMul", y, n.w(c, c)))
    h = rms(x)
    gate = n.op("MatMul", h, n.w(c, 24))
    y = n.op("Mul", n.op("Mul", gate, n.op("Sigmoid", gate)), n.op("MatMul", h, n.w(c, 24)))
    x = rms(n.op("Add", x, n.op("MatMul", y, n.w(24, c))))
    logits = n.op("MatMul", x, n.op("Transpose", table, perm=[1, 0]))
    values, indices = n.op("TopK", logits, n.ints(3), axis=-1, outputs=2)
    return n, [logits, values, indices]


FAMILIES = [resnet, convnext, efficientnet, unet, swin, mixer, masked_encoder, grouped_decoder]
