"""A row of a table of reinforcement-learning runs: which system, models, devices, layouts and modes it tells of.

| Left open | Filled with |
|---|---|
| how devices are split | colocated where the mode is synchronous, else half and half |
| staleness | 1 where the mode is asynchronous |
| layouts | see `rpeg.perf.validate.rl_layouts` |
| lengths | see `rpeg.perf.validate.rl_lengths` |
| group size | 8, of PPO 1 |
| optimizer updates | 1 |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil

from rpeg.errors import HardwareError
from rpeg.hardware.catalog import part_of
from rpeg.hardware.naming import named
from rpeg.hardware.topology import System
from rpeg.perf.lengths import Lengths
from rpeg.perf.profile import read_table
from rpeg.perf.validate.rl_layouts import SideLayout, gen_layout, train_layout
from rpeg.perf.validate.rl_lengths import LengthConstants, responses_of, said_of
from rpeg.perf.validate.rl_text import number, text_of
from rpeg.perf.validate.row import Skip
from rpeg.shapes.columns import shape_from_columns
from rpeg.shapes.model import ModelShape

__all__ = ["RlRun", "machine_of", "run_of", "software_of"]

_SYSTEMS = ("verl", "nemo-rl", "prime-rl", "openrlhf", "areal", "slime", "trl", "roll", "rlinf", "real")
_IN_FLIGHT = r"in-?flight|partial|interrupt|fully"
_BATCH_ROWS = 8


@dataclass(frozen=True, slots=True)
class RlRun:
    """What a row tells of a run, with everything it leaves open filled in."""

    system: System
    software: str
    shape: ModelShape
    algorithm: str
    """``ppo`` or ``grpo``."""
    has_reference: bool
    recomputes_logprobs: bool
    train_devices: int
    gen_devices: int
    is_colocated: bool
    staleness: int
    is_in_flight: bool
    """Whether new weights do not wait for samples under way."""
    prompts: int
    group: int
    updates: int
    prompt_lengths: Lengths
    response_lengths: Lengths
    gen: SideLayout
    train: SideLayout
    budget_tokens: float
    """Of a micro-batch."""
    assumed: str

    @property
    def num_devices(self) -> int:
        """Devices of both sides."""
        return self.train_devices if self.is_colocated else self.train_devices + self.gen_devices


def software_of(record: Mapping[str, str]) -> str:
    """Return the profile of the system that a row names, ``generic`` where it names none that has one.

    >>> software_of({"system": "NeMo-RL", "version": "v0.4"}), software_of({"system": "verl V1 separate_async"})
    ('nemo-rl', 'verl')
    """
    for keys in (("system",), ("source",), ("notes",)):
        text = text_of(record, *keys).replace("nemo rl", "nemo-rl").replace("nemo/rl", "nemo-rl")
        found = next((name for name in _SYSTEMS if re.search(rf"(?<![a-z]){name}(?![a-z])", text)), None)
        if found is not None:
            return found
    return "generic"


def machine_of(record: Mapping[str, str], num_devices: int) -> tuple[System, str]:
    """Return the devices of a row as a system, and what had to be assumed.

    Raises:
        Skip: when no device can be told.
    """
    try:
        found = named(record.get("hardware", ""))
    except HardwareError as error:
        raise Skip(error.faults[0].what) from error
    whole = found.system
    count = max(1, num_devices)
    while True:  # a run on a number of devices that fills no nodes lies in the next whole ones
        try:
            return part_of(whole, count), found.assumed
        except HardwareError:
            count += 1
            if count > whole.num_devices:
                raise Skip(f"{num_devices} devices are more than {whole.name} has") from None


def run_of(record: Mapping[str, str]) -> RlRun:
    """Return the run of a row.

    Raises:
        Skip: when no model, device or batch can be told.
    """
    shape = shape_from_columns(record)
    if shape is None:
        raise Skip(f"unknown model {record.get('model', '')!r}")
    count = int(number(record, "gpus"))
    if not count:
        raise Skip("no number of devices")
    system, assumed = machine_of(record, count)
    text, software = text_of(record, "mode", "parallelism", "algorithm", "notes"), software_of(record)
    is_ppo = re.search(r"(?<![a-z])ppo(?![a-z_])", text_of(record, "algorithm")) is not None
    trained, sampled, is_colocated = _sides(text_of(record, "mode", "parallelism"), system, count)
    constants = read_table("rl", "mathematics", LengthConstants).constants
    said, staleness = said_of(record), 0 if is_colocated else _staleness(text_of(record, "mode"))
    prompts, responses, guessed = responses_of(said, record.get("model", ""), constants)
    batch, group, updates, filled = _batch(record, is_ppo)
    gen = gen_layout(record, shape, system, sampled, software)
    train = train_layout(record, shape, system, trained, software)
    longest = said.cap_total_tokens or said.cap_tokens + said.prompt_tokens or responses.max_tokens
    notes = (assumed, shape.note, guessed, filled)
    return RlRun(
        system=system,
        software=software,
        shape=shape,
        algorithm="ppo" if is_ppo else "grpo",
        has_reference=_has_reference(text_of(record, "algorithm", "mode"), software, is_ppo),
        recomputes_logprobs=re.search(r"bypass|no (?:old[_ ]?)?log-?prob", text) is None,
        train_devices=trained,
        gen_devices=sampled,
        is_colocated=is_colocated,
        staleness=staleness,
        # Whoever runs two steps ahead interrupts samples for new weights, rather than keep several versions.
        is_in_flight=staleness > 1 or re.search(_IN_FLIGHT, text_of(record, "mode", "parallelism")) is not None,
        prompts=batch,
        group=group,
        updates=updates,
        prompt_lengths=prompts,
        response_lengths=responses,
        gen=gen,
        train=train,
        budget_tokens=min(longest, 32768.0),
        assumed=", ".join(filter(None, notes)),
    )


def _has_reference(text: str, software: str, is_ppo: bool) -> bool:
    """Whether a reference is asked: in PPO, and in systems whose GRPO has it by default; DAPO has none."""
    if re.search(r"no (?:kl|ref)|dapo", text):
        return False
    return is_ppo or software in ("nemo-rl", "verl", "trl", "openrlhf")


def _sides(text: str, system: System, count: int) -> tuple[int, int, bool]:
    """Return the devices that train, those that sample, and whether they are the same."""
    per_node = system.levels[-1].count
    for trained, sampled in _pairs(text):
        for unit in (1, per_node):
            if (trained + sampled) * unit == count:
                return trained * unit, sampled * unit, False
        if trained + sampled == 100:
            share = min(count - 1, max(1, round(count * trained / 100)))
            return share, count - share, False
    is_apart = re.search(r"async|disaggregat|separat|off[- ]policy|one[- ]step|decoupled|pipelin", text) is not None
    if is_apart and "colocat" not in text and count > 1:
        return count - count // 2, count // 2, False
    return count, count, True


def _pairs(text: str) -> Iterator[tuple[int, int]]:
    """Yield what may be the devices that train and those that sample: ``train 8 : gen 8``, ``16 rollout + 48 train``.

    >>> list(_pairs("75:25 generation:training")), list(_pairs("8+2 nodes"))
    ([(25, 75)], [(8, 2)])
    """
    train, sample, by = r"(?:train|actor|learn)\w*", r"(?:gen|roll|infer|sampl|vllm|sglang)\w*", r"\s*[:+/,&]\s*"
    number, unit = r"(\d+)", r"\s*(?:gpus?|nodes?|cards?)?\s*"
    for first, last, is_swapped in ((train, sample, False), (sample, train, True)):
        for pattern in (
            rf"{first}\s*[=:]?\s*{number}{unit}{by}{last}\s*[=:]?\s*{number}",
            rf"{number}{unit}{first}{unit}{by}{number}{unit}{last}",
            rf"{number}{by}{number}{unit}{first}{by}{last}",
        ):
            for match in re.finditer(pattern, text):
                yield (int(match[2]), int(match[1])) if is_swapped else (int(match[1]), int(match[2]))
                return
    for match in re.finditer(r"(?<![\d\[,=.])(\d+)\s*[:+]\s*(\d+)(?![\d,\]])", text):
        yield int(match[1]), int(match[2])


def _staleness(mode: str) -> int:
    """Return how many steps the generator may run ahead."""
    found = re.search(r"(\d+)[- ]steps?[- ]off|(?:staleness|age|lag|off-?policy\w*|eta)\D{0,12}(\d+(?:\.\d+)?)", mode)
    if found:
        return max(1, ceil(float(found[1] or found[2])))
    return 1 if re.search(r"async|one[- ]step|off[- ]by|pipelin", mode) else 0


def _batch(record: Mapping[str, str], is_ppo: bool) -> tuple[int, int, int, str]:
    """Return prompts, samples of each, optimizer updates, and what had to be assumed.

    Raises:
        Skip: when no batch can be told.
    """
    notes = text_of(record, "notes", "parallelism", "mode")
    group, assumed = int(number(record, "group_size")), list[str]()
    if not group:
        group = 1 if is_ppo else _BATCH_ROWS
        assumed.append(f"groups of {group}")
    rows = re.search(r"generation global batch (\d+)|rollout batch(?: size)? (\d+)", notes)
    prompts = int(number(record, "batch_prompts")) or (int(rows[1] or rows[2]) // group if rows else 0)
    if not prompts:
        raise Skip("no batch size")
    trained = re.search(r"train(?:ing)? global batch\D{0,3}(\d+)", notes)
    mini = re.search(r"mini[_ -]?batch(?:[_ ]size)?\D{0,3}(\d+)|(\d+) (?:ppo )?mini-?batches", notes)
    updates = 1
    if trained:
        updates = max(1, prompts * group // int(trained[1]))
    elif mini:
        updates = max(1, int(mini[2])) if mini[2] else max(1, prompts // int(mini[1]))
    else:
        assumed.append("one update")
    return prompts, group, updates, ", ".join(assumed)
