"""The shape of a model from its Hugging Face ``config.json``.

Everything that is missing, no positive number or contradictory is reported together; nothing is guessed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from rpeg.errors import Fault, ModelError
from rpeg.shapes.families import FAMILIES, ROUTED, SIZES, Family, Mixture
from rpeg.shapes.model import Experts, LatentAttention, LinearAttention, ModelShape

__all__ = ["language_config", "read_config"]

_OPTIONAL = ("kv_heads", "head_size", "max_positions")
"""Sizes that follow from others, or are not needed, where the key is missing."""
_LATENT = {
    "kv_rank": "kv_lora_rank",
    "rope_size": "qk_rope_head_dim",
    "nope_size": "qk_nope_head_dim",
    "value_size": "v_head_dim",
}
_LINEAR = {
    "key_heads": "linear_num_key_heads",
    "value_heads": "linear_num_value_heads",
    "key_size": "linear_key_head_dim",
    "value_size": "linear_value_head_dim",
    "convolution": "linear_conv_kernel_dim",
}
_FULL_EVERY = 4
"""Of layers with a state, one in so many has attention, where neither key nor ``layer_types`` says (Qwen3-Next)."""


def read_config(config: Mapping[str, Any] | Path | str) -> ModelShape:
    """Return the sizes of the model that a configuration describes.

    Args:
        config: the content of a ``config.json``, or the path of it or of its folder. Of models that also see or hear,
            the language model alone is read (``text_config``).

    Raises:
        ModelError: with every fault: a needed key that is missing, numbers that are not positive or contradict each
            other, a ``model_type`` that is not known.

    >>> sizes = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
    >>> sizes |= {"intermediate_size": 14336, "vocab_size": 128256}
    >>> read_config({"model_type": "llama", **sizes}).head_size
    128
    """
    where, found = language_config(config)
    model_type = found.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ModelError(where, [_unknown(model_type)])
    reader = _Reader(found, FAMILIES[model_type])
    shape = reader.shape(_name(found, where))
    if reader.faults:
        raise ModelError(where, reader.faults)
    return shape


def language_config(config: Mapping[str, Any] | Path | str) -> tuple[str, Mapping[str, Any]]:
    """Return what to call a configuration in messages, and what it says of the language model.

    Raises:
        ModelError: when there is no such file, or no JSON object in it.
    """
    where, found = _content(config)
    text = found.get("text_config")
    if isinstance(text, dict):
        found = {**cast("dict[str, Any]", text), "_name_or_path": found.get("_name_or_path", "")}
    return where, found


def _content(config: Mapping[str, Any] | Path | str) -> tuple[str, Mapping[str, Any]]:
    """Return what to call the configuration in messages, and what is in it."""
    if isinstance(config, Mapping):
        return "config.json", config
    file = Path(config)
    file = file / "config.json" if file.is_dir() else file
    try:
        found = json.loads(file.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ModelError("model", [Fault(str(file), "does not exist", "give the folder of a model")]) from error
    except ValueError as error:
        raise ModelError("model", [Fault(str(file), f"is not JSON ({error})", "download it again")]) from error
    if not isinstance(found, dict):
        raise ModelError("model", [Fault(str(file), "is not a JSON object", "download it again")])
    return str(file), cast("dict[str, Any]", found)


def _name(config: Mapping[str, Any], where: str) -> str:
    given = config.get("_name_or_path")
    return given if isinstance(given, str) and given else Path(where).parent.name or str(config["model_type"])


def _unknown(model_type: object) -> Fault:
    near = get_close_matches(str(model_type), FAMILIES, n=1)
    known = f"known are {', '.join(sorted(FAMILIES))}"
    if not isinstance(model_type, str):
        return Fault("model_type", "is missing" if model_type is None else f"is {model_type!r}", known)
    return Fault("model_type", f"{model_type} is not known", f"did you mean {near[0]}? {known}" if near else known)


class _Reader:
    """Reads the keys of one configuration and collects faults; 1 stands for what is faulty, so that it can go on."""

    def __init__(self, config: Mapping[str, Any], family: Family) -> None:
        self._config, self._family = config, family
        self.faults: list[Fault] = []

    def shape(self, name: str) -> ModelShape:
        family, sizes = self._family, self._sizes()
        max_positions = sizes.pop("max_positions")
        window, global_every = self._window(sizes["layers"])
        is_tied = self._flag("tie_word_embeddings", family.is_tied)
        flags = {field: self._flag(key, usual) for field, (key, usual) in family.flags.items()}
        positions = self._size(family.positions) + family.more_positions if family.positions else 0
        return ModelShape(
            name=name,
            **sizes,
            **{**family.fixed, **flags},
            is_tied=is_tied,
            window=window,
            global_every=global_every,
            positions=positions,
            experts=self._experts(family.mixture, sizes["layers"]) if family.mixture else None,
            latent=self._latent() if family.has_latent else None,
            linear=self._linear(sizes["layers"]) if family.has_linear else None,
            max_positions=max_positions or None,
        )

    def _sizes(self) -> dict[str, int]:
        keys, usual = {**SIZES, **self._family.keys}, {**dict.fromkeys(_OPTIONAL, 0), **self._family.usual}
        usual |= {field: 0 for field, key in keys.items() if not key}
        if not self._family.fixed.get("is_gated", True):
            usual["ffn"] = 0  # four times the hidden size
        found = {field: self._size(key, usual.get(field)) for field, key in keys.items()}
        heads, hidden = found["heads"], found["hidden"]
        found["kv_heads"] = found["kv_heads"] or heads
        found["ffn"] = found["ffn"] or 4 * hidden
        if heads % found["kv_heads"] and self._are_sound(keys["heads"], keys["kv_heads"]):
            text = f"are {found['kv_heads']}, which does not divide {heads} heads"
            self._fault(keys["kv_heads"], text, f"a divisor of {keys['heads']}")
        is_derived = not found["head_size"] and not self._family.has_latent
        if is_derived and hidden % heads and self._are_sound(keys["heads"], keys["hidden"]):
            remedy = f"a divisor, or state {keys['head_size']}" if keys["head_size"] else "a divisor"
            self._fault(keys["heads"], f"are {heads}, which does not divide {keys['hidden']} {hidden}", remedy)
        found["head_size"] = found["head_size"] or self._head_size(hidden, heads)
        return found

    def _head_size(self, hidden: int, heads: int) -> int:
        if self._family.has_latent:
            return self._size(_LATENT["rope_size"]) + self._size(_LATENT["nope_size"])
        return max(1, hidden // heads)

    def _latent(self) -> LatentAttention:
        sizes = {field: self._size(key) for field, key in _LATENT.items()}
        return LatentAttention(q_rank=self._size("q_lora_rank", 0) or None, **sizes)

    def _linear(self, layers: int) -> LinearAttention:
        sizes = {field: self._size(key) for field, key in _LINEAR.items()}
        every = self._size("full_attention_interval", 0) or _FULL_EVERY
        kinds = self._layer_types(layers)
        full = kinds.count("full_attention") if kinds else layers // every
        return LinearAttention(full_every=_every(layers, full, every), **sizes)

    def _window(self, layers: int) -> tuple[int | None, int]:
        """Return the window, and which layers do not have it."""
        family = self._family
        if not family.window or (family.window_switch and not self._flag(family.window_switch, False)):
            return None, 1
        window = self._size(family.window, 0)
        if not window:
            return None, 1
        if kinds := self._layer_types(layers):
            full = kinds.count("full_attention")
            return (window, _every(layers, full, family.global_every)) if full < layers else (None, 1)
        return window, self._size("sliding_window_pattern", 0) or family.global_every

    def _layer_types(self, layers: int) -> Sequence[str]:
        found = self._config.get("layer_types")
        if not isinstance(found, list):
            return ()
        kinds = cast("list[str]", found)
        if len(kinds) != layers:
            text = f"has {len(kinds)} entries for {layers} layers"
            self._fault("layer_types", text, "one entry per layer")
        return kinds

    def _experts(self, mixture: Mixture, layers: int) -> Experts | None:
        key = next((each for each in ROUTED if each in self._config), None)
        if key is None:
            self._fault(" or ".join(ROUTED), "is missing", "state how many experts a layer has")
        count = self._size(key) if key else 1
        active, ffn = self._size("num_experts_per_tok"), self._size(mixture.ffn)
        if active > count and key:
            self._fault("num_experts_per_tok", f"is {active}, of {count} experts", f"at most {key}")
        shared = self._size(mixture.shared_ffn) if mixture.shared_ffn else 0
        if mixture.shared_count:
            shared = ffn * (1 if mixture.shared_count == "-1" else self._size(mixture.shared_count, 0))
        every = (self._size(mixture.every, 0) if mixture.every else 0) or 1
        dense = self._dense_layers(mixture.dense_layers, layers) if mixture.dense_layers else 0
        return Experts(count, active, ffn, shared, dense, every, **mixture.fixed)

    def _dense_layers(self, key: str, layers: int) -> int:
        found = self._config.get(key)
        if isinstance(found, list):
            listed = sorted(cast("list[int]", found))
            if listed != list(range(len(listed))):
                self._fault(key, f"names the layers {listed}", "only the first layers can be without experts here")
            return len(listed)
        dense = self._size(key, 0)
        if dense > layers:
            self._fault(key, f"is {dense}, of {layers} layers", "at most num_hidden_layers")
        return dense

    def _flag(self, key: str, usual: bool) -> bool:
        value = self._config.get(key)
        if value is None or isinstance(value, bool):
            return usual if value is None else value
        self._fault(key, f"is {value!r}", "true or false")
        return usual

    def _size(self, key: str, missing: int | None = None) -> int:
        """Return a positive whole number; ``missing`` where there is no such key, if that is allowed."""
        value = self._config.get(key) if key else None
        if missing is not None and (value is None or value == 0):
            return missing
        if value is None:
            self._fault(key, "is missing", "download the configuration again")
        elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self._fault(key, f"is {value!r}", "a positive whole number")
        else:
            return value
        return missing or 1

    def _are_sound(self, *keys: str) -> bool:
        return all(fault.where not in keys for fault in self.faults)

    def _fault(self, where: str, what: str, remedy: str) -> None:
        if self._are_sound(where):
            self.faults.append(Fault(where, what, remedy))


def _every(layers: int, full: int, usual: int) -> int:
    """Return the distance of ``full`` layers among ``layers``, 0 where there are none."""
    if not full:
        return 0
    fitting = [every for every in (usual, *range(1, layers + 1)) if every and layers // every == full]
    return fitting[0] if fitting else max(1, round(layers / full))
