"""A folder of profiles: constants as TOML, all files written beside before any takes its place."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path

from rpeg.errors import Fault, ProfileError

__all__ = ["ProfileFile", "check_writable", "toml_text", "write_profiles"]


@dataclass(frozen=True, slots=True)
class ProfileFile:
    """One profile with what it says about itself."""

    kind: str
    name: str
    constants: object
    """A dataclass of constants."""
    fitted_on: str
    aliases: tuple[str, ...] = ()
    error_pct: Mapping[str, object] | None = None
    covers: Mapping[str, object] | None = None

    def text(self, version: str) -> str:
        """Return the file."""
        header = {"name": self.name, "aliases": list(self.aliases), "version": version, "fitted_on": self.fitted_on}
        assert is_dataclass(self.constants)
        assert not isinstance(self.constants, type)
        tables = {"error_pct": self.error_pct or {}, "covers": self.covers or {}}
        return toml_text({**header, **asdict(self.constants), **tables})


def check_writable(folder: Path) -> None:
    """Make the folder and see whether files can be written there.

    Raises:
        ProfileError: when they cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{os.getpid()}.tmp"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        remedy = "choose another folder with --out, or let yourself write there"
        raise ProfileError("profiles", [Fault(str(folder), f"cannot be written: {error.strerror}", remedy)]) from error


def write_profiles(folder: Path, files: Mapping[str, str]) -> None:
    """Replace files of a folder, named with their subfolders; when one cannot be written, all stay as they were."""
    drafts: dict[Path, Path] = {}
    try:
        for name, text in files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            draft = drafts[target] = target.with_name(f".{target.name}.{os.getpid()}.tmp")
            with draft.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        for target, draft in drafts.items():
            os.replace(draft, target)
    finally:
        for draft in drafts.values():
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)


def toml_text(table: Mapping[str, object], prefix: str = "") -> str:
    r"""Return a table as TOML: plain values first, then tables within; None and empty tuples are left out.

    >>> print(toml_text({"name": "a", "gemm": {"start_s": 4e-06}, "sizes": (1, 2)}), end="")
    name = "a"
    sizes = [1, 2]
    <BLANKLINE>
    [gemm]
    start_s = 4e-06
    """
    lines = [f"{_key(key)} = {_value(value)}\n" for key, value in _plain(table)]
    for key, value in table.items():
        if isinstance(value, Mapping):
            name = f"{prefix}{_key(key)}"
            inner = toml_text(value, f"{name}.")
            has_own = any(True for _ in _plain(value)) or not value
            lines.append(f"\n[{name}]\n{inner}" if has_own else inner)
    return "".join(lines)


def _plain(table: Mapping[str, object]) -> Iterable[tuple[str, object]]:
    found = ((key, value) for key, value in table.items() if not isinstance(value, Mapping))
    return ((key, value) for key, value in found if value is not None and value not in ((), []))


def _key(key: str) -> str:
    return key if key.isascii() and key.replace("_", "").replace("-", "").isalnum() else _quoted(key)


def _quoted(text: str) -> str:
    """Return a basic string; of what TOML wants escaped JSON leaves one character alone."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_value(each) for each in value)}]"
    assert isinstance(value, (int, float)), value
    return f"{value:.4g}" if isinstance(value, float) and value != int(value) else repr(value)
