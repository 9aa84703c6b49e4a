"""Where the weights and states of a run come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Origin"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Folders that roles load from; plain values, so that they can be built in another process."""

    model: Path
    """Hugging Face folder of the policy's weights."""
    reference: Path
    """Hugging Face folder of the frozen reference policy."""
    checkpoint: Path | None
    """Folder of the checkpoint to go on from; None before the first."""
    version: int
    """Version of the weights: steps done."""

    def saved(self, name: str) -> Path | None:
        """Return what a role wrote under that name into the checkpoint, if it is there."""
        path = self.checkpoint / name if self.checkpoint is not None else None
        return path if path is not None and path.exists() else None
