"""The catalogue of models: TOML files of sizes, one per family, each with its source.

.. code-block:: toml

    source = "config.json of Qwen/Qwen3-*"
    models = [
      { name = "Qwen3-8B", also = ["…"], layers = 36, hidden = 4096, heads = 32, ffn = 12288 },
    ]
    [defaults]            # what all models of the file have in common
    kv_heads = 8

Keys are the fields of `rpeg.shapes.model.ModelShape`. Left out, ``kv_heads`` is ``heads``, ``head_size`` is ``hidden /
heads``, and ``ffn`` is ``4 hidden``. ``also`` has further names; spellings need none (`rpeg.shapes.naming`).
"""

from __future__ import annotations

import tomllib
from collections import Counter
from functools import lru_cache
from importlib.resources import files
from typing import Any, cast

from rpeg.errors import Fault, ModelError
from rpeg.shapes.model import Experts, LatentAttention, LinearAttention, ModelShape, Norm
from rpeg.shapes.naming import best_match, nearest_names, words

__all__ = ["catalogue", "shape_of", "sources"]

_FOLDER = files("rpeg.shapes") / "catalog"


def catalogue() -> list[str]:
    """Return the names of the models, sorted."""
    return sorted({shape.name for shape in _shapes().values()})


def sources() -> dict[str, str]:
    """Return, for every file of the catalogue, where its sizes are from."""
    return {name: record["source"] for name, record in _records().items()}


@lru_cache(maxsize=4096)
def shape_of(name: str) -> ModelShape:
    """Return the sizes of the model that a text names, in any usual spelling.

    Raises:
        ModelError: when no model of the catalogue is meant; names the nearest ones.

    >>> shape_of("meta-llama/Llama-3.1-70B-Instruct").name, shape_of("LLAMA3_70B").layers
    ('Llama-3.1-70B', 80)
    """
    if (found := best_match(name, _words())) is not None:
        return _shapes()[found]
    near = nearest_names(name, catalogue())
    remedy = f"did you mean {', '.join(near)}? " if near else ""
    what = "is no model of the catalogue"
    raise ModelError("model", [Fault(name or "(empty)", what, f"{remedy}else give the folder of its config.json")])


@lru_cache(maxsize=1)
def _records() -> dict[str, dict[str, Any]]:
    found = (item for item in _FOLDER.iterdir() if item.name.endswith(".toml"))
    return {item.name: tomllib.loads(item.read_text("utf-8")) for item in sorted(found, key=lambda each: each.name)}


@lru_cache(maxsize=1)
def _shapes() -> dict[str, ModelShape]:
    """Return the models by all of their names."""
    found: dict[str, ModelShape] = {}
    for record in _records().values():
        for given in cast("list[dict[str, Any]]", record["models"]):
            shape = _shape({**cast("dict[str, Any]", record.get("defaults", {})), **given})
            for name in (shape.name, *given.get("also", ())):
                assert name not in found, f"{name} is there twice"
                found[name] = shape
    return found


@lru_cache(maxsize=1)
def _words() -> dict[str, Counter[str]]:
    return {name: words(name) for name in _shapes()}


def _shape(record: dict[str, Any]) -> ModelShape:
    fields = {key: value for key, value in record.items() if key != "also"}
    fields.setdefault("kv_heads", fields["heads"])
    fields.setdefault("head_size", fields["hidden"] // fields["heads"])
    fields.setdefault("ffn", 4 * fields["hidden"])
    fields["norm"] = Norm(fields.get("norm", Norm.RMS))
    for key, kind in (("experts", Experts), ("latent", LatentAttention), ("linear", LinearAttention)):
        if key in fields:
            given = {"q_rank": None, **fields[key]} if kind is LatentAttention else fields[key]
            fields[key] = kind(**given)
    return ModelShape(**fields)
