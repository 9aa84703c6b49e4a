"""What this process has of the memory, where the system says it: Linux."""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path

__all__ = ["is_told", "peak_bytes", "restart_peak", "settled_bytes"]

_PROCESS = Path("/proc/self")
_RESET_PEAK = "5"
"""What ``clear_refs`` takes to make the peak what is there now; see proc(5)."""


def is_told() -> bool:
    """Whether this system tells the peak of a part of a process's life."""
    return sys.platform == "linux" and (_PROCESS / "clear_refs").exists()


def settled_bytes() -> int:
    """Return the resident bytes after everything unused was given back."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc; others give back by themselves
    if trim is not None:
        trim(0)
    return _status("VmRSS")


def restart_peak() -> None:
    """Let the peak begin at what is there now."""
    (_PROCESS / "clear_refs").write_text(_RESET_PEAK)


def peak_bytes() -> int:
    """Return the most resident bytes since `restart_peak`."""
    return _status("VmHWM")


def _status(name: str) -> int:
    lines = (_PROCESS / "status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
