"""Scalars on tensors of PyTorch, op by op: what runs where no plan does.

Invariant: as in Hypatia, f16 and bf16 are computed in f32 and rounded once, `max`, `min` and `sign`
keep NaN, and `max` and `min` pass no gradient to their first operand at a tie.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor

#: Functions that PyTorch has itself, by their names in the library.
NATIVE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": F.hardswish,
    "hard_tanh": F.hardtanh,
    "log_sigmoid": F.logsigmoid,
    "mish": F.mish,
    "softplus": F.softplus,
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
}

#: The builtin scalars of `core.hyp`.
BUILTIN: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": lambda x: torch.where(x != x, x, torch.sign(x)),
    "max": lambda a, b: torch.where((b < a) | (a != a), a, b),
    "min": lambda a, b: torch.where((a < b) | (a != a), a, b),
    "pow": torch.pow,
    "fmod": torch.fmod,
    "exp": torch.exp,
    "log": torch.log,
    "log1p": torch.log1p,
    "expm1": torch.expm1,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "erf": torch.erf,
    "tanh": torch.tanh,
    "sin": torch.sin,
    "cos": torch.cos,
    "atan": torch.atan,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
    "eq": torch.eq,
    "lt": torch.lt,
    "le": torch.le,
    "not": torch.logical_not,
    "and": torch.logical_and,
    "or": torch.logical_or,
    "xor": torch.logical_xor,
    "select": torch.where,
    "isnan": torch.isnan,
    "isinf": torch.isinf,
}

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def evaluate(body: tuple[tuple[Any, ...], ...], x: Tensor) -> Tensor:
    """Apply a scalar, given as its nodes in order (`Scalar.body`), to each element."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    start = x.to(wide)
    values: list[Tensor] = []
    for node in body:
        kind, *args = node
        if kind == "param":
            made = start
        elif kind == "number":
            made = torch.full((), args[0], dtype=wide, device=x.device)
        elif kind == "cast":
            made = values[args[1]].to(DTYPES[args[0]]).to(wide)
        else:
            made = BUILTIN[kind](*(values[i] for i in args))
        values.append(made)
    result = values[-1]
    return (result if result.shape == x.shape else result.expand(x.shape)).to(x.dtype)
