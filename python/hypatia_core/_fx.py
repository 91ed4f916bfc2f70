"""The importer of FX graphs with its whole table: every aten op that plans can compute.

In: nothing. Out: what the other modules import. Invariant: all rows are in the table, except those
of attention, which `_attention` adds.
"""

from __future__ import annotations

from . import _moves, _norms, _pointwise, _products
from ._importer import TABLE, Importer, Node, Value, name_of, read_outside, row, strides_of
from ._moves import SHAPED
from ._pointwise import BITS

__all__ = ["BITS", "SHAPED", "TABLE", "Importer", "Node", "Value", "name_of", "read_outside", "row", "strides_of"]

#: The modules with the rows.
ROWS = (_moves, _norms, _pointwise, _products)
