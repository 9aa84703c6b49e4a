"""Where a user's own profiles and machines are: what ``rpeg calibrate`` writes, and what was put beside it by hand.

.. code-block:: text

    ~/.config/rpeg/profiles/        or $RPEG_PROFILES; empty: none are looked for
      systems/local.toml            machines, in the form of the catalogue
      devices/ links/ serving/ ...  constants, in the form of the shipped profiles
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["own_profiles"]

_VARIABLE = "RPEG_PROFILES"


def own_profiles() -> Path | None:
    """Return the folder of a user's own profiles, which need not be there; None where none is wanted."""
    named = os.environ.get(_VARIABLE)
    if named is not None:
        return Path(named) if named else None
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "rpeg" / "profiles"
