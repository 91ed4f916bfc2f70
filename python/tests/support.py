"""What the tests share."""

from pathlib import Path

from hypatia_core import Model, Rules, _native
from hypatia_core._model import settings

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests" / "models"


def graph_model(inputs, build, rules=None, **given):
    """A model of a graph: `inputs` maps names to (element type, shape)."""
    graph = _native.Graph((rules or Rules())._native)
    values = [graph.input(name, dtype, list(shape)) for name, (dtype, shape) in inputs.items()]
    for name, value in build(graph, *values).items():
        graph.output(name, value)
    model = Model.__new__(Model)
    model._start(graph.model(**settings(**given)))
    return model
