"""Layers of PyTorch that Hypatia computes where it is the faster side."""

from ._layers import FusedGatedMLP, FusedLayerNorm, FusedLinear, FusedMLP, FusedRMSNorm
from ._runtime import policy

__all__ = ["FusedGatedMLP", "FusedLayerNorm", "FusedLinear", "FusedMLP", "FusedRMSNorm", "policy"]
