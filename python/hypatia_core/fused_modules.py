"""Fused modules by the names that other packages use."""

from __future__ import annotations

from typing import Any

import torch

from .nn import FusedLinear

__all__ = ["HypatiaFusedLinearReLU"]


class HypatiaFusedLinearReLU(FusedLinear):
    """``relu(x @ weight.T + bias)``; see :class:`hypatia_core.nn.FusedLinear`.

    >>> import torch
    >>> from hypatia_core.fused_modules import HypatiaFusedLinearReLU
    >>> HypatiaFusedLinearReLU(4, 2)(torch.ones(3, 4)).shape
    torch.Size([3, 2])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make the layer; the arguments are those of ``nn.Linear``."""
        super().__init__(in_features, out_features, bias, "relu", device=device, dtype=dtype)
