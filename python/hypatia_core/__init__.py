"""Hypatia: a declarative fusion compiler for neural networks.

Rules, ONNX models, ``explain`` and ``verify`` need NumPy alone. The layers in ``nn``, ``fuse_`` and
``report`` need PyTorch, which is imported when they are first used.

>>> import hypatia_core as hyp
>>> hyp.verify(hyp.scalar("softcap", "30 * tanh(x / 30)").rules, cases=10).passed
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._model import Explanation, Model, explain
from ._native import __version__
from ._rules import Entry, Rules, Scalar, Verification, scalar, verify
from .errors import (
    ContractError,
    DeviceError,
    FileError,
    HypatiaError,
    InputError,
    LimitError,
    ModelError,
    RulesError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from . import fused_modules, nn
    from ._optimize import optimize
    from .fuse import Fusions, fuse_
    from .nn._runtime import Report, report, reset_report, wait_for_plans

__all__ = [
    "ContractError",
    "DeviceError",
    "Entry",
    "Explanation",
    "FileError",
    "Fusions",
    "HypatiaError",
    "InputError",
    "LimitError",
    "Model",
    "ModelError",
    "Report",
    "Rules",
    "RulesError",
    "Scalar",
    "UnsupportedError",
    "Verification",
    "__version__",
    "explain",
    "fuse_",
    "fused_modules",
    "nn",
    "optimize",
    "report",
    "reset_report",
    "scalar",
    "verify",
    "wait_for_plans",
]

_OF_TORCH = {
    "Fusions": "fuse",
    "Report": "nn._runtime",
    "fuse_": "fuse",
    "fused_modules": "",
    "nn": "",
    "optimize": "_optimize",
    "report": "nn._runtime",
    "reset_report": "nn._runtime",
    "wait_for_plans": "nn._runtime",
}


def __getattr__(name: str) -> Any:
    """Import what needs PyTorch when it is used."""
    if name not in _OF_TORCH:
        raise AttributeError(f"module 'hypatia_core' has no attribute {name!r}")
    import importlib

    try:
        if not _OF_TORCH[name]:
            return importlib.import_module(f".{name}", __name__)
        return getattr(importlib.import_module(f".{_OF_TORCH[name]}", __name__), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"hypatia_core.{name} needs PyTorch: pip install 'hypatia-core[torch]'") from error


def __dir__() -> list[str]:
    """All names, those that need PyTorch too."""
    return sorted(__all__)
