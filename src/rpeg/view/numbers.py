"""Numbers for people: the same few forms in the live view and in the report."""

from __future__ import annotations

__all__ = ["as_count", "as_decimal", "as_seconds", "as_share", "as_unit"]


def as_seconds(value: float) -> str:
    """Return a duration in the unit that suits it: ``4.2 ms``, ``0.83 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if value < 0.1:
        return f"{value * 1000:.1f} ms"
    if value < 10:
        return f"{value:.2f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def as_share(value: float) -> str:
    """Return a share of one in percent: 0.625 is ``62.5%``."""
    return f"{value:.1%}"


def as_count(value: float) -> str:
    """Return a whole number with thousands separators: ``12,800``."""
    return f"{round(value):,}"


def as_decimal(value: float) -> str:
    """Return a number with three digits that matter: ``0.431``, ``12.8``, ``2.00e-04``, ``12,800``."""
    size = abs(value)
    if size >= 1000:
        return as_count(value)
    if size == 0 or size >= 100:
        return f"{value:.0f}"
    if size < 0.001:
        return f"{value:.2e}"
    return f"{value:.1f}" if size >= 10 else f"{value:.3f}"


_FORMS = {"share": as_share, "count": as_count, "s": as_seconds, "versions": "{:.3g}".format}


def as_unit(value: float, unit: str) -> str:
    """Return a number in the form of its unit, one of those of `rpeg.observe.metrics.Metric`."""
    return _FORMS.get(unit, as_decimal)(value)
