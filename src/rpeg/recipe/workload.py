"""What a plan is made for: an algorithm with its sizes, a model for every role, and how long prompts and answers are.

.. code-block:: yaml

    name: ppo-70b
    algorithm: {name: ppo, prompts: 1024, mini_batches: 4}    # what `rpeg show ppo` takes
    models: {actor: llama-3.1-70b, critic: llama-3.1-70b, ref: llama-3.1-70b, rm: llama-3.1-70b}
    prompt_tokens: {mean: 1024, cv: 0.6, cap: 4096}
    response_tokens: {mean: 1024, cv: 0.6, cap: 4096}

Such a file has no data, rewards or optimizer: it cannot be trained from, but it can be planned for any machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt, ValidationError

from rpeg.algorithms.catalog import ALGORITHMS
from rpeg.errors import Fault, RecipeError
from rpeg.graph.graph import Graph
from rpeg.recipe.algorithm import build
from rpeg.recipe.section import Section
from rpeg.recipe.source import read_source
from rpeg.recipe.yaml_text import parse_value

__all__ = ["AlgorithmChoice", "LengthSection", "WorkloadRecipe", "is_workload", "load_workload"]


class LengthSection(Section):
    """A distribution of lengths: lognormal, cut at a cap; constant without a spread."""

    mean: PositiveFloat = Field(examples=[1024])
    """Mean length in tokens, of what is left after the cap."""
    cv: NonNegativeFloat = 0.0
    """Standard deviation over mean; 0 = all the same."""
    cap: PositiveInt | None = None
    """Longest, in tokens; default: none."""


class AlgorithmChoice(Section):
    """An algorithm and its parameters: any that ``rpeg show NAME`` takes."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    name: Literal[tuple(ALGORITHMS)]  # pyright: ignore[reportInvalidTypeForm] - the names are data
    """One of the algorithms of ``rpeg show``."""


class WorkloadRecipe(Section):
    """What a plan is made for."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", examples=["ppo-70b"])
    """What plans and reports call it."""
    algorithm: AlgorithmChoice
    """The algorithm with its sizes."""
    models: dict[str, str]
    """Per role of the graph (actor, critic, ref, rm): a name of the catalogue, or a folder with a config.json."""
    prompt_tokens: LengthSection
    """How long prompts are."""
    response_tokens: LengthSection
    """How long answers are, all turns together."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Number format of arithmetic; weights that are trained have a float32 copy."""

    def graph(self) -> Graph:
        """Return the graph of the algorithm.

        Raises:
            GraphError: when a parameter is unknown or the sizes do not fit together.
        """
        extra = self.algorithm.model_extra or {}
        return build(self.algorithm.name, [f"{key}={_plain(value)}" for key, value in extra.items()])


def is_workload(path: Path) -> bool:
    """Whether a file describes a workload and not a run: it names models by role.

    Raises:
        RecipeError: when there is no such file, or it cannot be read.
    """
    tree = read_source(path).tree
    return tree is not None and "models" in tree and "data" not in tree


def load_workload(path: Path, overrides: Sequence[str] = ()) -> WorkloadRecipe:
    """Return a workload that was read, overridden and checked against the roles of its own graph.

    Raises:
        RecipeError: naming every fault with its key and what would be right.
        GraphError: when the algorithm refuses its parameters.
    """
    source = read_source(path)
    faults = [*source.faults]
    tree = _overridden(source.tree or {}, overrides, faults)
    if faults:
        raise RecipeError(source.name, faults)
    try:
        found = WorkloadRecipe.model_validate(tree)
    except ValidationError as error:
        raise RecipeError(source.name, _schema_faults(error)) from None
    if faults := list(_role_faults(found)):
        raise RecipeError(source.name, faults)
    return found


def _overridden(tree: dict[str, Any], overrides: Sequence[str], faults: list[Fault]) -> dict[str, Any]:
    config = OmegaConf.create(tree)
    for text in overrides:
        key, equals, value = text.partition("=")
        try:
            if not equals or not key:
                raise ValueError("has no '='")
            OmegaConf.update(config, key, parse_value(value), merge=False, force_add=True)
        except (OmegaConfBaseException, ValueError) as error:
            faults.append(Fault(f"override {text!r}", str(error).splitlines()[0], "write algorithm.prompts=1024"))
    container = OmegaConf.to_container(config, resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def _schema_faults(error: ValidationError) -> Iterator[Fault]:
    for item in error.errors(include_url=False):
        key = ".".join(str(part) for part in item["loc"])
        known = {"missing": "is missing", "extra_forbidden": "there is no such key"}
        what = known.get(item["type"]) or item["msg"][:1].lower() + item["msg"][1:]
        yield Fault(key, what, _meaning(item["loc"]))


def _meaning(location: tuple[int | str, ...]) -> str:
    """Return what the schema says about the innermost key that it knows, and which keys there are."""
    section: Any = WorkloadRecipe
    text = ""
    for part in location:
        fields = getattr(section, "model_fields", None)
        if fields is None:
            break
        if part not in fields:
            return f"the keys are {', '.join(fields)}"
        text, section = str(fields[part].description or ""), fields[part].annotation
    return text


def _role_faults(recipe: WorkloadRecipe) -> Iterator[Fault]:
    """Yield roles without a model and models without a role."""
    roles = list(dict.fromkeys(stage.model for stage in recipe.graph().stages if stage.model is not None))
    for role in roles:
        if role not in recipe.models:
            yield Fault(f"models.{role}", f"is missing: a stage of {recipe.algorithm.name} uses it", "name a model")
    for role in recipe.models:
        if role not in roles:
            yield Fault(f"models.{role}", "is no role of the graph", f"its roles are {', '.join(roles)}")


def _plain(value: object) -> str:
    """Return a value of YAML as the text that an algorithm's parameter is read from."""
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)
