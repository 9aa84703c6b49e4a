"""One problem: what the model is asked, what is right, and everything a reward function may want to see."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ROLES", "Message", "Problem"]

ROLES = ("system", "user", "assistant", "tool")
"""The speakers a chat template knows."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str
    """Who speaks: one of `ROLES`."""
    content: str
    """What is said."""

    def as_dict(self) -> dict[str, str]:
        """Return ``{"role": ..., "content": ...}``, the form chat templates and TRL's reward functions take."""
        return {"role": self.role, "content": self.content}


@dataclass(frozen=True, slots=True)
class Problem:
    """One row of a task; two rows with the same prompt are two problems, because ``row_id`` tells them apart."""

    row_id: str
    """Unique within a run: file and line (``gsm8k.jsonl:17``) or task, stream and number (``arithmetic/train/17``)."""
    prompt: str | tuple[Message, ...]
    """Plain text, or the turns of a conversation that a chat template will render."""
    answer: str
    """The reference answer as text; empty when the row has none."""
    columns: Mapping[str, object] = field(default_factory=dict)
    """The row's other columns, handed to reward functions by name."""

    @property
    def text(self) -> str:
        """The prompt as one string: equal exactly when two prompts are equal; also what logs show."""
        if isinstance(self.prompt, str):
            return self.prompt
        return json.dumps([message.as_dict() for message in self.prompt], ensure_ascii=False)
