"""What a row of measured collectives says: the operation, the library, the bytes and the time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rpeg.perf.validate.communicator import Communicator, number, read_communicator
from rpeg.perf.validate.row import Skip

__all__ = ["CollectiveRow", "read_row"]

_OPERATIONS = (
    ("all_reduce", r"all_?reduce|barrier"),
    ("all_gather", r"all_?gather"),
    ("reduce_scatter", r"reduce_?scatter"),
    ("all_to_all", r"all_?(to|2)_?all|a2a|hyper_?cube"),
    ("broadcast", r"broad_?cast|bcast"),
    ("host_copy", r"host_?(to|2)_?|(device|gpu)_?(to|2)_?host|\bh_?2?t?o?_?d\b|\bd_?2?t?o?_?h\b|h2d|d2h|memcpy"),
    ("device_copy", r"copy|(device|gpu)_?(to|2)_?(device|gpu)|d2d"),
    ("stream", r"bw\b|bandwidth"),
    ("point_to_point", r"send|recv|pt2pt|p2p|point_?to_?point|ping|latency"),
    ("rooted", r"gather|scatter"),
    ("broadcast", r"reduce"),
)
_UNSIZED_BYTES = float(1 << 30)
"""What a bandwidth without a size was measured with: tests of bandwidth use large buffers."""
_LARGEST_BYTES = 1 << 45
_BUS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0, "rooted": 1.0}
"""The bus bandwidth of nccl-tests counts this many times (n - 1)/n of the bytes; of other operations the bytes."""


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """One measurement."""

    operation: str
    """A collective, or ``rooted``, ``stream``, ``device_copy``, ``host_copy``."""
    directions: int
    """2 where both directions are used at once and their bytes are counted together."""
    library: str
    """Whose constants count."""
    communicator: Communicator
    num_bytes: float
    """As nccl-tests counts them."""
    seconds: float
    is_sized: bool
    """Whether the row gives a size; else it is the bandwidth of large buffers."""
    is_timed: bool
    """Whether the row gives a time; else a bandwidth."""
    in_switch: bool
    """Whether the switches add up."""
    waits: bool
    """Whether the host waits for every call before it starts the next."""


def read_row(record: Mapping[str, str]) -> CollectiveRow:
    """Return what a row says.

    Raises:
        Skip: when it names no known operation, no machine, or neither time nor bandwidth.
    """
    operation, library = _operation(record["op"]), _library(record)
    communicator = read_communicator(record, is_alone=operation == "host_copy", is_flat=library.startswith("mpi"))
    size_bytes = _size_bytes(record)
    num_bytes = _counted_bytes(record, operation, size_bytes or _UNSIZED_BYTES, communicator.gpus)
    text = record.get("library", "").lower()
    return CollectiveRow(
        operation,
        2 if re.search(r"duplex|bidir|bibw", record["op"].lower()) else 1,
        "copy" if "copy" in operation else library,
        communicator,
        num_bytes,
        _seconds(record, operation, num_bytes, communicator.gpus),
        size_bytes > 0,
        number(record, "time_us") > 0,
        _in_switch(record),
        "torch" in text,
    )


def _size_bytes(record: Mapping[str, str]) -> float:
    """Return the size of a row; 0 where it gives a bandwidth without one."""
    size_bytes, text = number(record, "size_bytes"), record.get("size_bytes", "")
    if not 0 <= size_bytes <= _LARGEST_BYTES:
        raise Skip(f"size_bytes {size_bytes:g} is no size")
    if not size_bytes and number(record, "time_us") > 0:
        raise Skip(f"size_bytes is {text!r} beside a time")
    return size_bytes


def _operation(text: str) -> str:
    plain = re.sub(r"[\s\-./]+", "_", text.strip().lower())
    for name, pattern in _OPERATIONS:
        if re.search(pattern, plain):
            return name
    raise Skip(f"unknown operation {text!r}" if text else "no operation")


def _library(record: Mapping[str, str]) -> str:
    text, notes = record.get("library", "").lower(), record.get("notes", "").lower()
    if re.search(r"gloo", text):
        return "gloo"
    if not re.search(r"mpi|osu|ucx|ucc|libfabric", text):
        return "nccl"
    on_hosts = re.search(r"cpu|host[- ]to[- ]host|\bh h\b", notes) is not None
    return "mpi_host" if on_hosts else "mpi"


def _counted_bytes(record: Mapping[str, str], operation: str, size_bytes: float, gpus: int) -> float:
    """Return the bytes as nccl-tests counts them: OSU counts what goes between two ranks, or what one rank gives."""
    text = " ".join((record.get("library", ""), record.get("notes", ""))).lower()
    is_per_pair = "osu" in text or re.search(r"per[- ](pair|rank|peer|gpu) (message|size|buffer)", text) is not None
    return size_bytes * gpus if is_per_pair and operation in ("all_gather", "all_to_all", "rooted") else size_bytes


def _seconds(record: Mapping[str, str], operation: str, num_bytes: float, gpus: int) -> float:
    time_us, plain, bus = (number(record, name) for name in ("time_us", "algbw_GBps", "busbw_GBps"))
    if time_us:
        return time_us * 1e-6
    if plain:
        return num_bytes / (plain * 1e9)
    if bus:
        factor = _BUS[operation] * (gpus - 1) / gpus if operation in _BUS else 1.0
        return num_bytes * factor / (bus * 1e9)
    raise Skip("neither time nor bandwidth")


def _in_switch(record: Mapping[str, str]) -> bool:
    algorithm = record.get("algo", "").lower()
    if re.search(r"\boff\b|ring|tree|disabled|no nvls", algorithm):
        return False
    text = " ".join((algorithm, record.get("interconnect", ""), record.get("library", ""))).lower()
    return re.search(r"nvls|sharp", text) is not None
