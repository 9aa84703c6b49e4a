"""Groups of devices as a person names them: where, which stages, and into how many parts models are split."""

from __future__ import annotations

from dataclasses import dataclass

from rpeg.plan.plan import Balance, Pipeline, Recompute

__all__ = ["DeviceGroup", "GroupLayout"]


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """How models lie on a group, and how its rows are worked on."""

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    """Ranks that experts are spread over: those of ``tp``, then of ``cp``, then others; 1 splits each by ``tp``."""
    zero: int = 0
    micro_rows: int = 1
    recompute: Recompute = Recompute.NONE
    pipeline: Pipeline | None = None
    is_packed: bool = True
    balance: Balance = Balance.TOKENS
    servers: int = 1

    def axes(self, num_devices: int) -> tuple[tuple[str, int], ...]:
        """Return the axes of a mesh of so many devices: neighbours share tensors, whatever is left works on other rows.

        >>> GroupLayout(tp=4, pp=2).axes(32)
        (('pp', 2), ('dp', 4), ('tp', 4))
        """
        spread = max(1, self.ep // (self.tp * self.cp if self._spans_cp else self.tp))
        rest = num_devices // (self.pp * spread * self.cp * self.tp)
        sizes = (("pp", self.pp), ("dp", rest), ("ep", spread), ("cp", self.cp), ("tp", self.tp))
        return tuple((name, size) for name, size in sizes if size > 1 or name == "dp")

    @property
    def _spans_cp(self) -> bool:
        return self.ep % (self.tp * self.cp) == 0

    @property
    def expert_axes(self) -> tuple[str, ...]:
        """The axes that experts are spread over."""
        sizes = dict(self.axes(self.pp * self.tp * self.cp * self.ep))
        names = ("ep", "cp", "tp") if self._spans_cp else ("ep", "tp")
        return tuple(name for name in names if self.ep > 1 and sizes.get(name, 1) > 1)


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Devices, what runs on them, and how."""

    name: str
    where: str
    """Region of the machine: ``rack[0].node[0:4]``."""
    stages: tuple[str, ...]
    layout: GroupLayout = GroupLayout()
