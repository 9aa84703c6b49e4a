"""Conversations: who wrote what, why they end, and that tool tokens are trained on by nobody."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
import torch
from tests.runtime.conftest import TINY, tiny_recipe
from tests.runtime.test_run import assert_same, untimed

from rpeg.environments.base import Environment
from rpeg.environments.calculator import CHARACTERS, CalculatorTask, calculated
from rpeg.environments.problem import Problem
from rpeg.errors import DataError
from rpeg.numerics.model import scratch_model
from rpeg.numerics.parallel.peers import Peers
from rpeg.numerics.sampler import Sampler
from rpeg.numerics.samples import Sampled, SamplingParams
from rpeg.numerics.scores import response_scores
from rpeg.numerics.tokenizer import character_tokenizer
from rpeg.observe.run_folder import RunFolder
from rpeg.recipe.graph import build_graph
from rpeg.runtime.conversation import Ending, converse, stop_id, turn_metrics
from rpeg.runtime.prepare import scratch_spec
from rpeg.runtime.warmup import _batch

Run = Callable[..., RunFolder]

TOKENIZER = character_tokenizer(CHARACTERS)
END = cast(int, TOKENIZER.eos_token_id)
PROBLEM = Problem("p", "1+1+1=", "3", {"answer": "3"})
TOOL = CalculatorTask({}, 0)
SECTIONS: dict[str, Any] = {
    "model": {"scratch": {**TINY["model"]["scratch"], "characters": CHARACTERS}},
    "data": {"task": "calculator", "max_turns": 3},
    "sampling": {"max_new_tokens": 24},
}


def ids(text: str) -> list[int]:
    """Return the tokens of a text, one a character; ``!`` is the end token."""
    return [END if c == "!" else TOKENIZER(c, add_special_tokens=False)["input_ids"][0] for c in text]


class Script:
    """A sampler that says what is written for every sample, turn by turn, and notes what it was given."""

    def __init__(self, *turns: list[str]) -> None:
        self.turns = [iter(each) for each in turns]
        self.calls: list[tuple[list[list[int]], list[int], list[int] | None]] = []

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        group: int,
        params: SamplingParams,
        seeds: Sequence[int],
        written: Sequence[int] | None = None,
    ) -> Iterator[Sampled]:
        """Answer in reverse, as real samples end in any order."""
        self.calls.append(([list(p) for p in prompts], list(seeds), None if written is None else list(written)))
        for index in reversed(range(len(seeds))):
            said = ids(next(self.turns[seeds[index]]))
            ended = said[-1] in params.end_ids
            yield Sampled(index, said, [-0.5] * len(said), ended, [0] * len(said), [0.25] * len(said))


def talk(script: Script, max_new_tokens: int = 40, max_turns: int = 4, group: int = 1, environment: Any = TOOL) -> Any:
    """Let a script talk about one problem, with a sample for each of its parts."""
    params = SamplingParams(1.0, max_new_tokens, (END,))
    seeds = list(range(len(script.turns)))
    prompts = [ids("1+1+1=")] * (len(seeds) // group)
    return converse(
        cast(Sampler, script), TOKENIZER, environment, max_turns, prompts, lambda place: PROBLEM, group, params, seeds
    )


def test_turns_are_put_together_as_they_are() -> None:
    script = Script(["[1+1]", "[2+1]", "#3.!"], ["#3.!"])
    long, short = talk(script, group=2)
    assert long.ids == ids("[1+1]2;[2+1]3;#3.!")
    assert "".join("x" if own else "." for own in long.mask) == "xxxxx..xxxxx..xxxx"
    assert long.logps == [-0.5 if own else 0.0 for own in long.mask]
    assert long.values == [0.25 if own else 0.0 for own in long.mask]
    assert (long.num_turns, long.ending, long.finished) == (3, Ending.FINISHED, True)
    assert (short.ids, short.mask, short.num_turns) == (ids("#3.!"), [True] * 4, 1)
    # The first turns are sampled together; then only who goes on, from all there is, counted from the prompt.
    assert [(seeds, written) for _, seeds, written in script.calls] == [([0, 1], None), ([0], [7]), ([0], [14])]
    assert script.calls[2][0] == [ids("1+1+1=[1+1]2;[2+1]3;")]
    assert turn_metrics([long, short], Peers()) == {
        "turns/mean": 2.0,
        "turns/max": 3.0,
        "turns/cut": 0.0,
        "length/tool": 2.0,
    }


def test_a_call_that_cannot_be_read_is_answered_too() -> None:
    (answer,) = talk(Script(["[1+]", "#3.!"]))
    assert answer.ids == ids("[1+]?;#3.!")


def test_a_conversation_ends_at_the_limits() -> None:
    tokens, turns, no_room = talk(Script(["#####"], ["[1+1]", "[2+1]"], ["[1+1]", "1" * 5 + "[1+1]"]), 19, max_turns=2)
    assert (tokens.ending, tokens.finished) == (Ending.LENGTH, False)
    assert (turns.ending, turns.ids) == (Ending.TURNS, ids("[1+1]2;[2+1]"))
    assert (no_room.ending, no_room.num_turns) == (Ending.TURNS, 2)
    assert turn_metrics([tokens, turns], Peers())["turns/cut"] == 0.5
    # By hand: 5 tokens and "2;" fill 7 of 7, which leaves no room for a word; with 8 there is room for one.
    (full,) = talk(Script(["[1+1]"]), 7)
    assert (full.ending, full.ids) == (Ending.LENGTH, ids("[1+1]"))
    (room,) = talk(Script(["[1+1]", "#"]), 8)
    assert (room.ending, room.ids) == (Ending.LENGTH, ids("[1+1]2;#"))


class Silent(CalculatorTask):
    """A calculator that ends the conversation at the first call."""

    def reset(self, problem: Problem) -> Any:
        return self

    def turn(self, said: str) -> None:
        return None


def test_an_environment_may_end_the_conversation() -> None:
    (answer,) = talk(Script(["[1+1]"]), environment=Silent({}, 0))
    assert (answer.ids, answer.ending) == (ids("[1+1]"), Ending.FINISHED)


def test_without_an_environment_an_answer_is_one_turn() -> None:
    (answer,) = talk(Script(["[1+1]#2.!"]), environment=None)
    assert (answer.ids, answer.mask, answer.ending) == (ids("[1+1]#2.!"), [True] * 9, Ending.FINISHED)


@pytest.mark.parametrize(
    ("stop", "what"),
    [("[]", "which is 2 tokens of the model's tokenizer"), ("!", "which the model's tokenizer does not")],
)
def test_a_stop_that_is_not_one_token_is_refused(stop: str, what: str) -> None:
    class Other(CalculatorTask):
        pass

    other = Other({}, 0)
    other.stop = stop
    assert stop_id(TOOL, TOKENIZER) == ids("]")[0]
    with pytest.raises(DataError, match=rf"data\.task: a turn ends with '.*', {what}"):
        stop_id(other, TOKENIZER)


def test_recorded_scores_are_those_of_the_whole_row() -> None:
    # A model with random weights stops often enough for several turns; its scores are checked in one forward pass.
    scratch = tiny_recipe(**SECTIONS).model.scratch
    assert scratch is not None
    model = scratch_model(scratch_spec(scratch), TOKENIZER, 3)
    sampler = Sampler(model, 8, cast(int, TOKENIZER.pad_token_id))
    params = SamplingParams(0.7, 30, (END,))
    prompts = [ids("1+1+1="), ids("12-3=")]
    answers = converse(sampler, TOKENIZER, TOOL, 5, prompts, lambda place: PROBLEM, 8, params, list(range(16)))
    again = converse(sampler, TOKENIZER, TOOL, 5, prompts, lambda place: PROBLEM, 8, params, list(range(16)))
    assert [answer.ids for answer in answers] == [answer.ids for answer in again]
    assert max(answer.num_turns for answer in answers) >= 3
    assert all(len(answer.ids) <= 30 for answer in answers)
    for number, answer in enumerate(answers):
        prompt = prompts[number // 8]
        tokens_1T = torch.tensor([prompt + answer.ids])
        mask_1T = torch.tensor([[False] * len(prompt) + answer.mask])
        logps_1T = response_scores(model, tokens_1T, mask_1T, 0.7).logps_BT
        recorded = torch.tensor([[0.0] * len(prompt) + answer.logps])
        torch.testing.assert_close(logps_1T.detach(), recorded, atol=1e-5, rtol=0)


def test_warm_up_imitates_what_is_written_and_not_what_the_tool_answers() -> None:
    class One(CalculatorTask):
        def demonstration(self, index: int) -> tuple[str, ...]:
            return ("1+1+1=", *self._worked("1+1+1"))

    tokens_BT, mask_BT = _batch(One({}, 0), TOKENIZER, 0, 1)
    assert tokens_BT.tolist() == [ids("1+1+1=[1+1]2;[2+1]3;#3.!")]
    assert "".join("x" if own else "." for own in mask_BT[0].tolist()) == "......xxxxx..xxxxx..xxxx"


def trained(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the samples of training."""
    found = [json.loads(line) for line in folder.samples.read_text().splitlines()]
    return [sample for sample in found if not sample["held_out"]]


def test_a_run_trains_on_the_policy_and_shows_the_tool(run_tiny: Run) -> None:
    folder = run_tiny("turns", **SECTIONS)
    rows = untimed(folder)[1:]
    assert all(row["turns/max"] > 1 and row["length/tool"] > 0 for row in rows)
    assert all(row["rows/trained"] > 0 for row in rows)
    assert rows[0]["correction/ratio_max"] == pytest.approx(1.0, abs=1e-5)
    whole = [sample for sample in trained(folder) if ";" in sample["response"]]
    asked = [sample for sample in whole if "]?;" in sample["response"]]
    assert asked  # a model with random weights calls for nonsense, and that is answered
    for sample in asked:
        assert sample["length"] <= 24 - 2 * sample["response"].count("]?;")
    assert "turn x turns" in folder.graph_text.read_text()


@pytest.mark.parametrize("staleness", [0, 1])
def test_resumed_equals_uninterrupted(run_tiny: Run, staleness: int) -> None:
    sections = {**SECTIONS, "algorithm": {"staleness": staleness}}
    whole = run_tiny("whole", **sections)
    run_tiny("parts", run={"steps": 2}, **sections)
    assert_same(whole, run_tiny("parts", resume=True, **sections), 4)


def test_turns_may_stream_into_training(run_tiny: Run) -> None:
    sections = {**SECTIONS, "run": {"steps": 1}, "evaluation": {"every_steps": 0}}
    whole = run_tiny("whole", **sections)
    parts = run_tiny("parts", algorithm={"rewrites": ["stream{producer=gen,firings=2}"]}, **sections)
    answers = [[sample["response"] for sample in trained(folder)] for folder in (whole, parts)]
    assert answers[1] == answers[0][: len(answers[1])] != []


def test_the_graph_of_a_task_with_a_tool_loops_over_turns() -> None:
    graph = build_graph(tiny_recipe(**SECTIONS))
    (body,) = [stage.body for stage in graph.stages if stage.body is not None]
    assert (body.index, graph.contract.algorithm) == ("turn", "grpo")


def test_the_calculator_answers_equal_words_equally() -> None:
    assert isinstance(TOOL, Environment)
    episode = TOOL.reset(PROBLEM)
    assert [episode.turn("[1+2]") for _ in range(2)] == [calculated("[1+2]")] * 2 == ["3;", "3;"]
