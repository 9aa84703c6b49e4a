"""The keys of a recipe as data: which exist, what may stand there, and which one somebody meant."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo

from rpeg.environments.suggest import listed
from rpeg.recipe.schema import Recipe
from rpeg.recipe.section import Section

__all__ = ["Place", "all_keys", "expected", "find", "kind", "stand_in", "suggestion"]

_ELSEWHERE = {
    "batch_size": "algorithm.prompts",
    "beta": "algorithm.kl_coefficient",
    "clip_ratio_high": "algorithm.clip_high",
    "clip_ratio_low": "algorithm.clip_low",
    "cliprange": "algorithm.clip_low",
    "epsilon": "algorithm.clip_low",
    "epsilon_high": "algorithm.clip_high",
    "kl_coef": "algorithm.kl_coefficient",
    "learning_rate": "optimizer.lr",
    "loss_agg_mode": "algorithm.normalise",
    "mask_truncated_completions": "algorithm.mask_truncated",
    "max_completion_length": "sampling.max_new_tokens",
    "max_grad_norm": "optimizer.clip_norm",
    "max_num_gen_batches": "algorithm.dynamic_sampling.max_rounds",
    "max_prompt_length": "data.max_prompt_tokens",
    "max_response_length": "sampling.max_new_tokens",
    "max_steps": "run.steps",
    "model_name_or_path": "model.path",
    "n_samples_per_prompt": "algorithm.group_size",
    "num_generations": "algorithm.group_size",
    "num_iterations": "algorithm.updates_per_step",
    "num_ppo_epochs": "algorithm.passes",
    "overlong_buffer": "reward.overlong_buffer_tokens",
    "ppo_epochs": "algorithm.passes",
    "response_length": "sampling.max_new_tokens",
    "reward_funcs": "reward.functions",
    "reward_weights": "reward.functions",
    "rollout_n": "algorithm.group_size",
    "save_steps": "run.checkpoint_every_steps",
    "scale_rewards": "algorithm.std_normalise",
    "total_steps": "run.steps",
    "train_batch_size": "algorithm.prompts",
}
"""What other tools (TRL, verl, OpenRLHF) call it, and our key."""


@dataclass(frozen=True, slots=True)
class Place:
    """What may stand at one key."""

    annotation: Any
    """The type: a section, ``int``, ``tuple[float, float]``, ..., without Annotated and Optional."""
    bounds: tuple[object, ...]
    """Ge, Gt, Le, Lt, MinLen of the value."""
    optional: bool
    """Whether null may stand there."""
    info: FieldInfo | None
    """The field, or None for an element of a list."""

    @property
    def section(self) -> type[Section] | None:
        """The section, if one stands there."""
        return self.annotation if isinstance(self.annotation, type) and issubclass(self.annotation, Section) else None

    @property
    def is_open(self) -> bool:
        """Whether any key may stand below."""
        return get_origin(self.annotation) is dict


def find(key: str) -> Place | None:
    """Return what may stand at a dotted key, or None when there is no such key."""
    place: Place | None = Place(Recipe, (), False, None)
    for part in key.split("."):
        if place is None:
            return None
        if place.is_open:
            return Place(Any, (), True, None)
        place = _below(place, part)
    return place


def _below(place: Place, part: str) -> Place | None:
    """Return what may stand at one key or list position below ``place``."""
    if place.section is not None:
        info = place.section.model_fields.get(part)
        return None if info is None else _place(info.annotation, tuple(info.metadata), info)
    if get_origin(place.annotation) is tuple and part.isdigit():
        items = get_args(place.annotation)
        return _place(items[min(int(part), 0 if items[-1] is Ellipsis else len(items) - 1)], (), None)
    return None


def _place(annotation: Any, bounds: tuple[object, ...], info: FieldInfo | None) -> Place:
    """Return a place with Annotated and Optional taken off its type."""
    optional = False
    while get_origin(annotation) in (Annotated, Union, types.UnionType):
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            for item in more:
                bounds += tuple(item.metadata) if isinstance(item, FieldInfo) else (item,)
        else:
            optional = True
            annotation = next(kind for kind in get_args(annotation) if kind is not types.NoneType)
    return Place(annotation, bounds, optional, info)


def all_keys(section: type[Section] = Recipe, prefix: str = "") -> Iterator[str]:
    """Yield every dotted key of the schema, sections included (``reward.functions`` but not its elements)."""
    for name in section.model_fields:
        key = prefix + name
        yield key
        place = find(key)
        assert place is not None
        if place.section is not None:
            yield from all_keys(place.section, f"{key}.")


def suggestion(key: str) -> str:
    """Return which key was probably meant by an unknown one, else the keys that may stand in its section."""
    parent, _, last = key.rpartition(".")
    place, bare = find(parent), key.lstrip("+~-")
    if parent and place is not None and place.section is None:
        return f"did you mean {parent}?"
    if bare != key and find(bare) is not None:  # the signs that Hydra and others put before a key
        return f"did you mean {bare}?"
    siblings = _children(parent)
    spelt_alike = get_close_matches(last, siblings, n=1, cutoff=0.6)
    if spelt_alike:
        return f"did you mean {_join(parent, spelt_alike[0])}?"
    keys = [known for known in all_keys() if known != parent]
    elsewhere = [known for known in keys if known.rpartition(".")[2] == last]
    if last in _ELSEWHERE:
        elsewhere = [_ELSEWHERE[last]]
    if not elsewhere:
        elsewhere = get_close_matches(key, keys, n=1, cutoff=0.75)
    if not elsewhere:
        leaves = {known.rpartition(".")[2]: known for known in keys}
        elsewhere = [leaves[leaf] for leaf in get_close_matches(last, leaves, n=1, cutoff=0.8)]
    if elsewhere:
        return f"did you mean {' or '.join(elsewhere)}?"
    return f"{parent or 'a recipe'} has the keys {listed(siblings, limit=20)}" if siblings else "remove it"


def _children(parent: str) -> list[str]:
    """Return the names that may stand directly below a dotted key."""
    place = find(parent) if parent else Place(Recipe, (), False, None)
    return list(place.section.model_fields) if place is not None and place.section is not None else []


def _join(parent: str, name: str) -> str:
    """Return the dotted key."""
    return f"{parent}.{name}" if parent else name


def expected(place: Place) -> str:
    """Return what should stand at a place, in words: ``a whole number of at least 1``."""
    return kind(place) + _detail(place) + _range(place) + (", or null" if place.optional else "")


def kind(place: Place) -> str:
    """Return what should stand at a place in a word or two: ``a whole number``."""
    origin, arguments = get_origin(place.annotation), get_args(place.annotation)
    if place.section is not None or origin is dict:
        return "a section"
    if origin is tuple:
        return "a list"
    if origin is Literal:
        return f"{arguments[0]}, the only choice yet" if len(arguments) == 1 else f"one of {', '.join(arguments)}"
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return names.get(place.annotation, "a value")


def _detail(place: Place) -> str:
    """Return what a section or a list holds."""
    arguments = get_args(place.annotation)
    if place.section is not None:
        return f" with the keys {listed(place.section.model_fields, limit=20)}"
    if get_origin(place.annotation) is not tuple:
        return ""
    section = _place(arguments[0], (), None).section
    if section is not None:
        return f" of {{{', '.join(section.model_fields)}}}"
    return " of texts" if arguments[-1] is Ellipsis else f" of {len(arguments)} numbers"


def _range(place: Place) -> str:
    """Return the range of a place in words."""
    whole = place.annotation is int
    words: list[str] = []
    for bound in place.bounds:
        match bound:
            case Ge(ge=limit):
                words.append(f"of at least {limit}")
            case Gt(gt=int(limit)) if whole:
                words.append(f"of at least {limit + 1}")
            case Gt(gt=limit):
                words.append(f"above {limit}")
            case Le(le=limit):
                words.append(f"of at most {limit}")
            case Lt(lt=limit):
                words.append(f"below {limit}")
            case MinLen(min_length=1):
                words.append("that is not empty")
            case _:
                pass
    return f" {' and '.join(words)}" if words else ""


def stand_in(place: Place) -> object:
    """Return a value that may stand at a required place: the field's example, or a section made of examples."""
    if place.info is not None and place.info.examples:
        return place.info.examples[0]
    assert place.section is not None
    required = {name: info for name, info in place.section.model_fields.items() if info.is_required()}
    return {name: stand_in(_place(info.annotation, (), info)) for name, info in required.items()}
