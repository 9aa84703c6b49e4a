"""Choose how weights get from one layout to another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from rpeg.plan.moves.base import Deployment, Move
from rpeg.plan.plan import Method, Plan, Transfer
from rpeg.plan.shipments import reshards
from rpeg.transforms.base import EffectClass, Reason

__all__ = ["Reshard"]

_BUCKET_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Reshard(Move):
    """Send ``data`` to the layout of ``reader`` by ``method``; BUCKETED has ``bucket`` bytes on their way at a time."""

    name: ClassVar[str] = "reshard"
    effect: ClassVar[EffectClass] = EffectClass.EXACT

    data: str
    reader: str
    method: Method = Method.P2P
    bucket: int = 0

    @classmethod
    def candidates(cls, deployment: Deployment) -> Iterator[Self]:
        """Yield the methods for every transfer that happens, apart from the one it has."""
        for shipment in reshards(deployment.graph, deployment.plan):
            now = shipment.how.method if shipment.how else Method.P2P
            for method in Method:
                if method is not now:
                    bucket = _BUCKET_BYTES if method is Method.BUCKETED else 0
                    yield cls(shipment.data, shipment.readers[0], method, bucket)

    def conditions(self, deployment: Deployment) -> Iterator[Reason]:
        """A transfer that happens, and a bucket where there are buckets; P4 says whether its buffers fit.

        That every tile has a holder needs no condition: the boxes of any layout cover the weights.
        """
        happening = reshards(deployment.graph, deployment.plan)
        found = next((s for s in happening if s.data == self.data and self.reader in s.readers), None)
        if found is None:
            known = ", ".join(f"{s.data} to {s.readers[0]}" for s in happening) or "none"
            yield Reason((self.data, self.reader), "no transfer from one to the other", f"there is {known}")
            return
        if (self.method is Method.BUCKETED) != (self.bucket > 0):
            yield Reason((self.data,), f"{self.method} with buckets of {self.bucket} bytes", "buckets are for bucketed")

    def rewrite(self, deployment: Deployment) -> Plan:
        """Say so in the plan."""
        others = [t for t in deployment.plan.transfers if (t.data, t.reader) != (self.data, self.reader)]
        transfer = Transfer(self.data, self.reader, self.method, self.bucket or None)
        return replace(deployment.plan, transfers=(*others, transfer))
