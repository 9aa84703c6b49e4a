"""YAML as recipes use it: the plain types of YAML 1.2, the line of every key, and no key twice.

PyYAML follows YAML 1.1, where ``2e-4`` is text, ``no`` is false, ``1:30`` is 90 and ``012`` is 10. Here numbers are
what they look like, only ``true`` and ``false`` are truth values, and everything else is text. Reading and writing
share one table, so that what is written reads back equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from rpeg.errors import Fault

__all__ = ["Document", "dump_yaml", "parse_value", "read_yaml"]

_TABLE = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:[0-9][0-9_]*\.[0-9]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+"
        r"|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    ("merge", r"<<", ["<"]),
)
"""Tag, pattern of the plain scalars that have it, first characters of those."""

_HINTS = (
    ("cannot start any token", "indent with spaces, not tabs"),
    ("mapping values are not allowed", "put text that holds ': ' in quotes, and check the indentation"),
    ("expected <block end>", "check that keys of one section begin in the same column"),
    ("could not find expected ':'", "write key: value, with a space after the colon"),
    ("expected a single document", "keep one recipe in a file"),
    ("while scanning a quoted scalar", "close the quotation mark"),
)


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the table above."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - overrides PyYAML's class attribute of this form


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe dumper with the table above."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - as above


for _tag, _pattern, _first in _TABLE:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first)


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML file, read."""

    tree: object
    """Its value: dictionaries, lists and plain values."""
    lines: dict[str, int]
    """Line, counted from 1, of every dotted key (``reward.functions.0.weight``)."""
    faults: tuple[Fault, ...]
    """Keys that occur twice."""


def read_yaml(text: str, name: str) -> Document:
    """Return the value of a YAML text; a syntax error becomes the one fault of an empty document.

    Args:
        text: the YAML.
        name: what faults call it: the file's name.
    """
    lines: dict[str, int] = {}
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        faults = tuple(_walk(node, "", lines))
        tree = None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, RecursionError) as error:  # the latter: an alias inside what it stands for
        return Document(None, {}, (_syntax_fault(error, name),))
    return Document(tree, lines, faults)


def parse_value(text: str) -> object:
    """Return the value of an override, typed as in a file.

    Raises:
        ValueError: the text is not YAML; the message says why in one line.
    """
    document = read_yaml(text, "")
    if document.faults:
        raise ValueError(document.faults[0].what)
    return document.tree


def dump_yaml(tree: object) -> str:
    """Return ``tree`` as YAML, keys in their order, text that looks like something else in quotes."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def _walk(node: yaml.Node | None, prefix: str, lines: dict[str, int]) -> Iterator[Fault]:
    """Note the line of every key below ``node`` and yield a fault for each key that a mapping has twice."""
    if isinstance(node, yaml.SequenceNode):
        for position, item in enumerate(node.value):
            lines[f"{prefix}{position}"] = item.start_mark.line + 1
            yield from _walk(item, f"{prefix}{position}.", lines)
    elif isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in seen and key_node.tag != "tag:yaml.org,2002:merge":
                what = f"the key stands twice, in lines {seen[key]} and {line}"
                yield Fault(prefix + key, what, "keep one of them")
            seen[key] = lines[prefix + key] = line
            yield from _walk(value_node, f"{prefix}{key}.", lines)


def _syntax_fault(error: Exception, name: str) -> Fault:
    """Return a YAML error in one line with its place and what usually helps."""
    mark = getattr(error, "problem_mark", None)
    where = f"{name}:{mark.line + 1}" if mark else name
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    context = getattr(error, "context", None) or ""
    hint = next((hint for sign, hint in _HINTS if sign in problem or sign in context), "correct the YAML there")
    column = f" at column {mark.column + 1}" if mark else ""
    return Fault(where, f"not YAML: {problem}{column}", hint)
