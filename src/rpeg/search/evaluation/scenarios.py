"""The scenarios S1 to S11: which algorithm, models, lengths and machines.

=====  ==============================================================================
name   question
=====  ==============================================================================
S1-3   PPO with small, mixed and large models
S4-6   GRPO with long answers, from 7B to 72B
S7     PPO with long answers
S8     GRPO with the smallest models, on one or two nodes
S9     how much staleness helps, by the spread of lengths
S10    what it costs that nodes are scattered over racks
S11    larger models on more devices, with as much work for each
=====  ==============================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rpeg.errors import Fault, PlanError
from rpeg.search.evaluation.ladder import ASYNCHRONY, PARALLELISM
from rpeg.search.evaluation.load import Lengthy, Load, Machine

__all__ = ["SCENARIOS", "Column", "Scenario", "scenarios_named", "shortened"]

_SHORT = Lengthy(1024, 0.6, 4096)
_QUESTION, _LONG, _LONGER = Lengthy(512, 0.6, 2048), Lengthy(4096, 0.9, 16384), Lengthy(8192, 1.0, 32768)
_SMALL_QUESTION, _SMALL_ANSWER = Lengthy(256, 0.6, 1024), Lengthy(512, 0.6, 2048)
_CVS = (0.3, 0.6, 0.9, 1.2, 1.5)
_STALENESS = (0, 1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: a load on a machine."""

    label: str
    load: Load
    machine: Machine


@dataclass(frozen=True, slots=True)
class Scenario:
    """One part of the evaluation."""

    name: str
    title: str
    columns: tuple[Column, ...]
    against: tuple[str, ...] | None = None
    """Baselines that are shown; None: all of them."""
    rungs: tuple[str, ...] | None = None
    """Rungs of this system that are shown; None: all of them."""
    sweep: tuple[int, ...] = ()
    """Staleness to look at one by one; empty where systems are compared instead."""


def _sizes(load: Load, gpus: Sequence[int]) -> tuple[Column, ...]:
    return tuple(Column(f"{count} GPUs", load, Machine(count)) for count in gpus)


def _ppo(
    actor: str, critic: str, prompts: int, lengths: tuple[Lengthy, Lengthy] = (_SHORT, _SHORT), group: int = 1
) -> Load:
    models = {"actor": actor, "critic": critic, "ref": actor, "rm": critic}
    return Load("ppo", models, prompts, group, *lengths)


def _grpo(model: str, prompts: int, group: int, question: Lengthy = _QUESTION, answer: Lengthy = _LONG) -> Load:
    return Load("grpo", {"actor": model}, prompts, group, question, answer)


_LLAMA_8B, _LLAMA_70B = "llama-3.1-8b", "llama-3.1-70b"
_PPO_8B, _PPO_70B = _ppo(_LLAMA_8B, _LLAMA_8B, 512), _ppo(_LLAMA_70B, _LLAMA_70B, 1024)
_GRPO_7B = _grpo("qwen2.5-7b", 512, 16)
_PPO_LONG = replace(_ppo("qwen2.5-7b", "qwen2.5-7b", 512), group=8, prompt_tokens=_QUESTION, response_tokens=_LONG)
_GROWING = (("qwen2.5-7b", 8, 64), ("qwen2.5-14b", 32, 128), ("qwen2.5-32b", 64, 128), ("qwen2.5-72b", 256, 256))


def _smallest() -> Iterator[Column]:
    for model in ("qwen2.5-0.5b", "qwen2.5-1.5b"):
        load = _grpo(model, 256, 8, _SMALL_QUESTION, _SMALL_ANSWER)
        yield from (replace(each, label=f"{model[8:].upper()}, {each.label}") for each in _sizes(load, (4, 8)))


def _spreads() -> Iterator[Column]:
    for cv in _CVS:
        load = replace(_GRPO_7B, response_tokens=replace(_LONG, cv=cv))
        yield Column(f"variation {cv:g}", load, Machine(64))


def _scattered() -> Iterator[Column]:
    for name, load in (("8B", _PPO_8B), ("70B", _PPO_70B)):
        yield Column(f"{name}, one rack", load, Machine(256))
        for taper in (1, 2, 4):
            yield Column(f"{name}, 4 racks 1:{taper}", load, Machine(256, 4, taper))


def _growing() -> Iterator[Column]:
    for model, gpus, prompts in _GROWING:
        yield Column(f"{model[8:].upper()}, {gpus} GPUs", _grpo(model, prompts, 16), Machine(gpus))


SCENARIOS: Mapping[str, Scenario] = {
    each.name: each
    for each in (
        Scenario("S1", "PPO, Llama-3.1 8B in all roles", _sizes(_PPO_8B, (8, 16, 32, 64))),
        Scenario(
            "S2",
            "PPO, 70B actor and reference, 8B critic and reward model",
            _sizes(_ppo(_LLAMA_70B, _LLAMA_8B, 1024), (64, 128, 256)),
        ),
        Scenario("S3", "PPO, Llama-3.1 70B in all roles", _sizes(_PPO_70B, (128, 256))),
        Scenario("S4", "GRPO, Qwen2.5 7B", _sizes(_GRPO_7B, (16, 32, 64, 128, 256))),
        Scenario("S5", "GRPO, Qwen2.5 32B", _sizes(_grpo("qwen2.5-32b", 512, 16), (64, 128, 256))),
        Scenario("S6", "GRPO, Qwen2.5 72B", _sizes(_grpo("qwen2.5-72b", 256, 16, _QUESTION, _LONGER), (128, 256))),
        Scenario(
            "S7",
            "PPO with long answers, Qwen2.5 7B in all roles",
            _sizes(_PPO_LONG, (32, 128)),
        ),
        Scenario("S8", "GRPO, the smallest models", tuple(_smallest())),
        Scenario("S9", "Staleness and the spread of lengths: GRPO, Qwen2.5 7B", tuple(_spreads()), sweep=_STALENESS),
        Scenario(
            "S10",
            "Nodes side by side and scattered over racks: PPO, Llama-3.1 8B and 70B",
            tuple(_scattered()),
            ("real-heuristic", "verl", "verl-one-step-off"),
            (PARALLELISM, ASYNCHRONY),
        ),
        Scenario("S11", "Weak scaling: GRPO, Qwen2.5 7B to 72B", tuple(_growing())),
    )
}
"""All of them, in order."""


def scenarios_named(names: Sequence[str], where: str = "--only") -> tuple[Scenario, ...]:
    """Return scenarios by name, in any case, each once, in order; all where no name is given.

    Raises:
        PlanError: with every name that there is not.
    """
    asked = [name.upper() for name in names]
    known = f"there is {', '.join(SCENARIOS)}"
    faults = [Fault(name, "is no scenario", known) for name in dict.fromkeys(names) if name.upper() not in SCENARIOS]
    if faults:
        raise PlanError(where, faults)
    return tuple(each for name, each in SCENARIOS.items() if not asked or name in asked)


def shortened(scenario: Scenario) -> Scenario:
    """Return a scenario with its first column only, of a sweep with its first two rows."""
    return replace(scenario, columns=scenario.columns[:1], sweep=scenario.sweep[:2])
