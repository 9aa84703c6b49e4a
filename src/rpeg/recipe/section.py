"""What every section of a recipe is, and the kinds of numbers that occur in several."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Betas", "Section", "Share"]

Share = Annotated[float, Field(ge=0, le=1)]
"""A number from 0 to 1, ends included."""
_Decay = Annotated[float, Field(ge=0, lt=1)]
Betas = Annotated[tuple[_Decay, _Decay], Field(strict=False)]
"""Decay rates of AdamW's two averages."""


class Section(BaseModel):
    """A group of keys: unknown ones are refused, values are not converted, nothing changes after it is made."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
