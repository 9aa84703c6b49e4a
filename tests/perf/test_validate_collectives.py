"""Rows of measured collectives: what is read from them, and how far off a few of them are."""

from __future__ import annotations

import pytest

from rpeg.perf.validate.collective_row import read_row
from rpeg.perf.validate.collectives import COLUMNS, price
from rpeg.perf.validate.row import Skip

NODE = {"system": "h100_sxm", "gpu": "NVIDIA H100 80GB HBM3", "level": "intra-node", "interconnect": "NVLink 4"}
ALPS = {
    "system": "Alps (CSCS), quad-GH200 nodes",
    "gpu": "GH200 96GB",
    "level": "inter-node",
    "interconnect": "NVLink 4 in node + Slingshot-11 200Gb/s per GPU (aws-ofi-nccl)",
}
TABLE = {"library": "NCCL table 2.27.3", "nodes": "1", "source": "ai-dynamo/aiconfigurator"}


def row(base: dict[str, str], **more: object) -> dict[str, str]:
    columns = dict.fromkeys(("op", "library", "interconnect", "size_bytes", "time_us", "algo", "notes"), "")
    return columns | base | {name: str(value) for name, value in more.items()}


# Measured: ai-dynamo/aiconfigurator, NCCL 2.27.3, H100-SXM (operation, GPUs, bytes, microseconds).
NODE_ROWS = [
    ("all_reduce", 8, 1048576, 29.055),
    ("all_reduce", 2, 134217728, 486.675),
    ("all_gather", 8, 67108864, 207.78),
    ("reduce_scatter", 8, 4194304, 29.735),
    ("alltoall", 8, 16777216, 72.39),
    ("alltoall", 2, 536870912, 962.63),
]
# Measured: eth-cscs/cscs-docs, NCCL all-reduce over 2 nodes of 4 GH200 (bytes, microseconds).
ALPS_ROWS = [(8, 17.93), (16384, 37.29), (262144, 127.0), (8388608, 344.5), (134217728, 1916.4)]


def test_error_within_a_node_is_below_its_bar() -> None:
    errors = []
    for operation, gpus, num_bytes, time_us in NODE_ROWS:
        (found,) = price(row(NODE | TABLE, op=operation, gpus=gpus, size_bytes=num_bytes, time_us=time_us))
        assert found.set == "collectives in a node, 64 KB-512 MB"
        assert found.unit == "us"
        assert found.measured == pytest.approx(time_us)
        assert found.extrapolates == ""
        assert found.ideal < found.predicted
        errors.append(abs(found.predicted / found.measured - 1))
    assert sum(errors) / len(errors) < 0.10


def test_error_over_slingshot_is_below_its_bar() -> None:
    errors = []
    for num_bytes, time_us in ALPS_ROWS:
        given = row(ALPS, op="all_reduce", library="NCCL", nodes=2, gpus=8, size_bytes=num_bytes, time_us=time_us)
        (found,) = price(given)
        assert found.set == "collectives over Slingshot"
        errors.append(abs(found.predicted / found.measured - 1))
    assert sum(errors) / len(errors) < 0.05


@pytest.mark.parametrize(
    ("spelled", "operation"),
    [
        ("all_reduce_perf", "all_reduce"),
        ("AllReduce", "all_reduce"),
        ("all-gather", "all_gather"),
        ("osu_allgather", "all_gather"),
        ("reduce_scatter", "reduce_scatter"),
        ("ReduceScatter", "reduce_scatter"),
        ("alltoall", "all_to_all"),
        ("all_to_all", "all_to_all"),
        ("a2a", "all_to_all"),
        ("alltoallv", "all_to_all"),
        ("bcast", "broadcast"),
        ("broadcast_perf", "broadcast"),
        ("reduce_perf", "broadcast"),
        ("gather", "rooted"),
        ("scatter_perf", "rooted"),
        ("sendrecv_perf", "point_to_point"),
        ("pt2pt", "point_to_point"),
        ("osu_latency", "point_to_point"),
        ("pt2pt_bw", "stream"),
        ("osu_bw", "stream"),
        ("pairwise_copy_unidir", "device_copy"),
        ("host_to_device", "host_copy"),
        ("D2H", "host_copy"),
    ],
)
def test_operations_by_many_names(spelled: str, operation: str) -> None:
    given = row(NODE | TABLE, op=spelled, gpus=8, size_bytes=1 << 20, time_us=10)
    assert read_row(given).operation == operation
    (found,) = price(given)
    assert found.predicted > 0


def test_bandwidth_stands_for_a_missing_time() -> None:
    """Bus bandwidth of an all-reduce over 8: 1.75 times the bytes per second."""
    by_bus = read_row(row(NODE | TABLE, op="all_reduce", gpus=8, size_bytes=8 << 30, busbw_GBps=350))
    by_plain = read_row(row(NODE | TABLE, op="all_reduce", gpus=8, size_bytes=8 << 30, algbw_GBps=200))
    assert by_bus.seconds == pytest.approx(by_plain.seconds) == pytest.approx((8 << 30) / 200e9)
    (found,) = price(row(NODE | TABLE, op="all_reduce", gpus=8, size_bytes=8 << 30, busbw_GBps=350))
    assert (found.unit, found.better, found.measured) == ("GB/s", "high", pytest.approx(200))
    assert found.set == "small and large collectives in a node"


def test_bandwidth_of_unsized_copies() -> None:
    given = row(NODE, op="host_to_device", library="nvbandwidth", level="host-link", gpus=1, algbw_GBps=55.43)
    (found,) = price(given)
    assert found.set == "host link"
    assert found.predicted == pytest.approx(55.2, rel=0.01)
    assert found.ideal == pytest.approx(63)


def test_duplex_copies_count_both_directions() -> None:
    one, both = (
        price(row(NODE, op=op, library="nvbandwidth", gpus=2, algbw_GBps=700))[0].predicted
        for op in ("pairwise_copy_unidir", "pairwise_copy_duplex")
    )
    assert both == pytest.approx(2 * one, rel=0.01)


def test_osu_counts_messages_per_pair() -> None:
    given = row(ALPS, op="alltoall", library="OpenMPI OSU osu_alltoall", nodes=2, gpus=8, size_bytes=1024, time_us=22)
    assert read_row(given).num_bytes == 8 * 1024


def test_mpi_goes_over_the_network_unless_a_row_says_otherwise() -> None:
    given = row(ALPS, op="alltoall", library="OpenMPI", nodes=2, gpus=8, size_bytes=1024, time_us=22)
    flat = read_row(given | {"interconnect": "Slingshot-11 200Gb/s per GPU"}).communicator.group
    assert [(link.kind, count) for link, count in flat.levels] == [("slingshot", 8)]
    nested = read_row(given).communicator.group
    assert [(link.kind, count) for link, count in nested.levels] == [("nvlink4", 4), ("slingshot", 2)]


def test_buffers_on_hosts_have_their_own_constants() -> None:
    given = row(ALPS, op="pt2pt_bw", library="OpenMPI OSU osu_bw", nodes=2, gpus=2, size_bytes=1024, time_us=1.06)
    assert read_row(given | {"notes": "CPU-to-CPU inter-node"}).library == "mpi_host"
    assert read_row(given | {"notes": "GPU-to-GPU inter-node"}).library == "mpi"


def test_switches_add_up_where_a_row_says_so() -> None:
    given = row(NODE, op="all_reduce", library="nccl-tests", gpus=8, size_bytes=1 << 30, time_us=4000)
    assert read_row(given | {"interconnect": "NVLink 4 NVSwitch (NVLS)"}).in_switch
    assert read_row(given | {"algo": "NVLS"}).in_switch
    assert not read_row(given | {"algo": "Ring (NVLS off)", "interconnect": "NVLink 4 + SHARP"}).in_switch
    assert not read_row(given).in_switch


def test_what_was_not_fitted_is_flagged() -> None:
    given = row(TABLE, op="all_gather", gpu="NVIDIA B200", interconnect="NVLink 5", size_bytes=1 << 20, time_us=10)
    (found,) = price(given | {"gpus": "8", "level": "intra-node"})
    assert found.extrapolates == "kind nvlink5 new"
    (found,) = price(given | {"gpu": "Quux-9000", "gpus": "4"})
    assert found.extrapolates.startswith("'Quux-9000' unknown: its links as named")
    (found,) = price(given | {"gpu": "Quux-9000", "gpus": "4", "interconnect": "string"})
    assert found.extrapolates.startswith("'Quux-9000' unknown: links of unknown make, 450 GB/s each")
    assert "no links profile of string" in found.extrapolates


@pytest.mark.parametrize(
    ("machine", "interconnect", "nodes", "gpus", "expected"),
    [
        ("GB200", "NVLink 5 NVL72", 18, 72, [("nvlink5", 72, 900)]),
        ("GB200", "InfiniBand NDR 400Gb/s per GPU", 2, 8, [("nvlink5", 4, 900), ("infiniband", 2, 50)]),
        ("DGX-H100", "InfiniBand 8x NDR400", 16, 128, [("nvlink4", 8, 450), ("infiniband", 16, 50)]),
        ("A100-80GB", "RoCE 8x200Gb/s per node", 2, 16, [("nvlink3", 8, 300), ("roce", 2, 25)]),
        ("A100-80GB", "Slingshot-11", 2, 8, [("nvlink3", 4, 300), ("slingshot", 2, 25)]),
        ("MI300X", "Infinity Fabric", 1, 2, [("xgmi3", 2, 64)]),
        ("L40S", "PCIe 4", 1, 4, [("pcie4", 4, 31)]),
        ("H100", "", "", "", [("nvlink4", 8, 450), ("infiniband", 2, 50)]),
    ],
)
def test_how_ranks_are_joined(
    machine: str, interconnect: str, nodes: object, gpus: object, expected: list[tuple[str, int, float]]
) -> None:
    level = "intra-node" if nodes == 1 else "inter-node"
    given = row({"gpu": machine, "level": level}, op="all_gather", interconnect=interconnect, nodes=nodes, gpus=gpus)
    group = read_row(given | {"size_bytes": "1024", "time_us": "10"}).communicator.group
    assert [(link.kind, count, link.bytes_per_s / 1e9) for link, count in group.levels] == expected


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"op": "meditate"}, "unknown operation 'meditate'"),
        ({"op": ""}, "no operation"),
        ({"time_us": ""}, "neither time nor bandwidth"),
        ({"gpu": "", "system": "", "interconnect": ""}, "names neither a machine nor an interconnect"),
        ({"size_bytes": "1e20"}, "size_bytes 1e.20 is no size"),
    ],
)
def test_rows_without_a_price_say_why(more: dict[str, str], reason: str) -> None:
    given = row(NODE | TABLE, op="all_reduce", gpus=8, size_bytes=1 << 20, time_us=29)
    with pytest.raises(Skip, match=reason):
        price(given | more)


def test_columns_tell_the_kind() -> None:
    assert set(row(NODE)) >= COLUMNS
