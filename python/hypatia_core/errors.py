"""What can go wrong.

The text of an exception is what the command ``hypatia`` prints: for rules the rendered diagnostics,
for a model the file, the node and what was expected.
"""


class HypatiaError(Exception):
    """The base of all errors of Hypatia; raised itself only for a bug in Hypatia."""


class RulesError(HypatiaError, ValueError):
    """Rules did not compile. ``str()`` is the report, with the lines that are wrong.

    >>> import hypatia_core as hyp
    >>> try:
    ...     hyp.Rules.from_text("edition 1; use core::*; scalar f(x) = 30 * tanh(y / 30);")
    ... except hyp.RulesError as error:
    ...     print(error.diagnostics[0]["code"], error.diagnostics[0]["line"])
    H0401 1
    """

    def __init__(self, text: str, json_lines: str = "") -> None:
        """Args: the report, and the same as one JSON object a line."""
        super().__init__(text, json_lines)
        self._text = text
        self._json_lines = json_lines

    def __str__(self) -> str:
        """Return the report."""
        return self._text

    @property
    def diagnostics(self) -> "list[dict[str, object]]":
        """The same as data: a dict for each, as ``hypatia check --output-format json``."""
        import json

        return [json.loads(line) for line in self._json_lines.splitlines()]


class FileError(HypatiaError, OSError):
    """A file could not be read."""


class ModelError(HypatiaError, ValueError):
    """A model is damaged or inconsistent."""


class UnsupportedError(HypatiaError, NotImplementedError):
    """A model uses something that Hypatia does not support."""


class InputError(HypatiaError, ValueError):
    """An input is missing or unknown, or has the wrong type or shape."""


class ContractError(InputError):
    """A plan lacks a rule that it must have: no match, a guard, costs, or a failed comparison."""


class LimitError(HypatiaError, MemoryError):
    """A limit was exceeded: memory, size, time."""


class DeviceError(HypatiaError, RuntimeError):
    """No device, or a failed call of one."""
