"""An explanation, and the answer to a what-if, as text and as plain data for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, cast

from rpeg.observe.json_files import plain
from rpeg.search.answer import Answer, Outlook
from rpeg.search.compare import Difference
from rpeg.search.explain import Explanation, Rival
from rpeg.search.sensitivity import Margin
from rpeg.search.sentence import CycleLine, seconds_text
from rpeg.search.single_changes import Effect, Leave

__all__ = ["answer_json", "answer_text", "as_json", "as_text", "difference_lines"]

_LITTLE = 5e-4
"""A share, an elasticity or seconds of a stage that are not shown."""
_MOST_LINES = 12
_MOST_REFUSED = 3
_WIDTH = 72
_LONG = 160
_LEAVES = {
    Leave.FREE: "yours to take",
    Leave.LEARNING: "changes what is learned",
    Leave.MACHINE: "takes another machine",
}


def as_json(found: Explanation) -> dict[str, Any]:
    """Return an explanation as plain data; seconds and shares as they are, None for what has no end."""
    record = {**asdict(found), "best_changes": [asdict(each) for each in found.best_changes]}
    return cast("dict[str, Any]", plain(record))


def answer_json(found: Answer) -> dict[str, Any]:
    """Return an answer as plain data."""
    return cast("dict[str, Any]", plain({**asdict(found), "ratio": found.ratio}))


def as_text(found: Explanation) -> str:
    """Return an explanation as text for a terminal."""
    parts = (
        _head(found),
        _cycle(found.cycle),
        _stages(found.stages),
        _tokens(found),
        _figures(found),
        _changes(found),
        _rivals(found),
    )
    return "\n\n".join("\n".join(lines) for part in parts if (lines := list(part)))


def _head(found: Explanation) -> Iterator[str]:
    gap = max(0.0, 1.0 - found.bound_s / found.step_s) if found.step_s else 0.0
    yield f"step time  {seconds_text(found.step_s)} on {found.devices} devices of {found.system}"
    yield f"bound      no plan that is allowed takes less than {seconds_text(found.bound_s)} (gap {gap:.1%})"
    yield f"structure  {_structure(found.rewrites, found.staleness)}"
    yield f"why        {found.text}"


def _structure(rewrites: Sequence[str], staleness: int) -> str:
    made = ", ".join(rewrites) or "the algorithm's own graph"
    if not staleness:
        return f"{made}; samples of the newest weights"
    return f"{made}; samples up to {staleness} step{'s' if staleness > 1 else ''} old"


def _cycle(lines: Sequence[CycleLine]) -> Iterator[str]:
    if not lines:
        return
    yield "the cycle that limits, in the order of time"
    if len(lines) > _MOST_LINES:
        lines = _folded(lines)
    width = max(len(line.stage) for line in lines)
    for line in lines:
        fires = f"x{line.firings}" if line.firings > 1 else ""
        tail = f" + {seconds_text(line.tail_s)} until its last sample" if line.tail_s else ""
        later = f", {line.tokens} step{'s' if line.tokens != 1 else ''} later" if line.tokens else ""
        took = f"{seconds_text(line.seconds):>8}{tail}"
        yield f"  {line.stage.ljust(width)} {fires:>3} {took} -> {line.reason}{later}"


def _folded(lines: Sequence[CycleLine]) -> list[CycleLine]:
    """Return one line per stage, where it first stands, with all that it takes."""
    found: dict[str, CycleLine] = {}
    for line in lines:
        before = found.get(line.stage)
        found[line.stage] = line if before is None else before.joined(line)
    return list(found.values())


def _stages(stages: Sequence[Margin]) -> Iterator[str]:
    """Yield every stage that takes time, and of the others how many there are."""
    shown = [each for each in stages if each.occupancy_s + each.tail_s > _LITTLE]
    if not shown:
        return
    width = max(len("stage"), *(len(each.stage) for each in shown))
    yield f"{'stage'.ljust(width)}  firings    each   of cycle  a second more costs  slack of each"
    for each in shown:
        share = f"{each.share:.1%}" if each.share else "-"
        cost = f"{each.worth:g} s" if each.worth else "-"
        yield (
            f"{each.stage.ljust(width)}  {each.firings:7}  {seconds_text(each.occupancy_s):>8}  {share:>8}  "
            f"{cost:>18}  {_slack(each.slack_s, each.worth):>13}"
        )
        if each.tail_s:
            cost = f"{each.tail_worth:g} s" if each.tail_worth else "-"
            slack = _slack(each.tail_slack_s, each.tail_worth)
            yield f"{'  tail'.ljust(width)}  {'':7}  {seconds_text(each.tail_s):>8}  {'':8}  {cost:>18}  {slack:>13}"


def _slack(slack_s: float, worth: float) -> str:
    return "none" if worth else "any" if slack_s == float("inf") else seconds_text(slack_s)


def _tokens(found: Explanation) -> Iterator[str]:
    helping = [each for each in found.tokens if each.step_s < found.step_s * (1 - _LITTLE)]
    if helping:
        yield "one more token on the arcs of the cycle, the order of work as it is"
        for each in helping:
            yield f"  {each.reason}: {each.tokens} now, {seconds_text(each.step_s)} with one more"


def _figures(found: Explanation) -> Iterator[str]:
    yield "a percent more of each makes the step longer by (priced again)"
    width = max((len(each.figure) for each in found.figures), default=0)
    for each in found.figures:
        if abs(each.elasticity) >= _LITTLE:
            yield f"  {each.figure:{width}} {each.elasticity:+.3f} %"
    if small := [each.figure for each in found.figures if abs(each.elasticity) < _LITTLE]:
        yield f"  nothing: {', '.join(small)}"


def _changes(found: Explanation) -> Iterator[str]:
    yield "single changes, each computed anew"
    for number, effect in enumerate(found.helping, 1):
        yield f"  {number}. {_effect(effect, found.step_s)}"
        if number <= len(found.best_changes):
            yield f"       then {effect.limit}"
    if rest := [each.change for each in found.changes if each not in found.helping]:
        yield f"  no help: {', '.join(rest)}"


def _effect(effect: Effect, now_s: float) -> str:
    option = f" ({effect.option})" if effect.option else ""
    less = 1.0 - effect.step_s / now_s
    saved = f"{seconds_text(effect.step_s)}, {less:.1%} less"
    return f"{effect.change}{option}: {saved}; {_LEAVES[effect.leave]}; {effect.how}"


def _rivals(found: Explanation) -> Iterator[str]:
    if found.rivals:
        yield "other structures, and why they are not it"
        for rival in found.rivals:
            yield f"  {seconds_text(rival.step_s):>8}  {_structure(rival.rewrites, rival.staleness)}"
            yield f"            {_verdict(rival, found)}"
    for text in found.refused[:_MOST_REFUSED]:
        yield f"  refused   {text if len(text) <= _LONG else text[:_LONG] + '…'}"
    if (more := len(found.refused) - _MOST_REFUSED) > 0:
        yield f"            and {more} more"


def _verdict(rival: Rival, found: Explanation) -> str:
    if rival.ratio > 1.0 + _LITTLE:
        return f"{rival.ratio - 1.0:.1%} slower: {rival.reason}"
    if rival.ratio < 1.0 - _LITTLE:
        return f"{1.0 - rival.ratio:.1%} faster: rpeg plan finds it; {rival.reason}"
    older = rival.staleness > found.staleness
    return f"as fast{', and its samples are older' if older else ''}: {rival.reason}"


def answer_text(found: Answer) -> str:
    """Return an answer as text for a terminal."""
    lines = [f"what if    {', '.join(found.changes)} ({found.how})"]
    lines += [*_outlook("now", found.before), *_outlook("then", found.after)]
    lines.append(f"ratio      {found.ratio:.3f} of the step, {_devices_text(found)}")
    shown = list(difference_lines(found.differences, ("now", "then")))
    return "\n".join([*lines, "", *shown] if shown else lines)


def _outlook(name: str, found: Outlook) -> Iterator[str]:
    structure = _structure(found.rewrites, found.staleness)
    yield f"{name:10} {seconds_text(found.step_s)} on {found.devices} devices, {structure}"
    yield f"           {found.text}"


def _devices_text(found: Answer) -> str:
    ratio = found.ratio * found.after.devices / found.before.devices
    return f"{ratio:.3f} of the device-seconds"


def difference_lines(found: Sequence[Difference], names: tuple[str, str]) -> Iterator[str]:
    """Yield differences as lines, what is long on two of them."""
    a, b = names
    for each in found:
        if len(each.a) + len(each.b) <= _WIDTH:
            yield f"{each.part}: {each.a} -> {each.b}"
        else:
            yield f"{each.part}:"
            yield f"  {a}: {each.a}"
            yield f"  {b}: {each.b}"
