"""Groups: one call for all ranks of a mesh, one outcome, and one error that names the rank it comes from."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

from rpeg.algorithms.grpo import grpo
from rpeg.errors import RunFault, WorkerDied
from rpeg.graph.graph import Graph
from rpeg.graph.stage import StageKind
from rpeg.plan.bind import bind_local
from rpeg.plan.plan import Home as Rest
from rpeg.plan.plan import Mesh, Plan
from rpeg.runtime.group import Groups, worker_names
from rpeg.runtime.rows import Rows
from rpeg.runtime.task import Outcome, Task
from rpeg.runtime.worker import WorkerSpec
from rpeg.runtime.world import Place, Rendezvous, places_of, slot_of, slots

GRAPH = grpo(4, 2)


def wide(graph: Graph, ranks: int, axes: tuple[tuple[str, int], ...] = ()) -> Plan:
    """Return the plan on one mesh of ``ranks`` ranks, beside the host."""
    plan = bind_local(graph)
    meshes = tuple(
        mesh if mesh.name == "host" else Mesh(mesh.name, f"local.slot[0:{ranks}]", axes or (("dp", ranks),))
        for mesh in plan.meshes
    )
    return replace(plan, meshes=meshes)


class FakeHome:
    """Workers that are a function; each on a thread of its own."""

    address = "127.0.0.1"

    def __init__(self, work: Callable[[str, Task], Outcome]) -> None:
        self.work = work
        self.specs: dict[str, WorkerSpec] = {}
        self.threads: dict[str, ThreadPoolExecutor] = {}
        self.times: dict[str, tuple[float, float]] = {}
        self.let_go: list[tuple[str, tuple[str, ...]]] = []
        self.is_closed = False

    def spawn(self, name: str, spec: WorkerSpec) -> Future[Any]:
        self.specs[name] = spec
        return self._thread(name).submit(lambda: None)

    def call(self, name: str, method: str, *args: Any) -> Future[Any]:
        if method == "save":
            return self._thread(name).submit(lambda: self.work(name, args[0]))
        if method == "let_go":
            return self._thread(name).submit(lambda: self.let_go.append((name, args[0])))
        times = self.times.get(name, (0.0, 1.0))
        return self._thread(name).submit(lambda: (self.work(name, args[0]), *times))

    def _thread(self, name: str) -> ThreadPoolExecutor:
        return self.threads.setdefault(name, ThreadPoolExecutor(1))

    def close(self) -> None:
        self.is_closed = True
        for thread in self.threads.values():
            thread.shutdown()


def _task(stage: str = "train", kind: StageKind = StageKind.TRAIN) -> Task:
    return Task(stage, kind, 0, 0, Rows({}), Rows({"n": torch.arange(8)}), {})


def test_the_ranks_of_a_mesh_are_numbered_and_one_alone_keeps_its_name() -> None:
    assert worker_names(Mesh("trn", "local.slot[0:1]")) == ["trn"]
    assert worker_names(Mesh("trn", "local.slot[0:4]", (("dp", 2), ("tp", 2)))) == ["trn/0", "trn/1", "trn/2", "trn/3"]


def test_rows_are_dealt_over_dp_and_come_back_in_order() -> None:
    """Ranks 0 and 1 differ along tp only, so they see the same rows; what the first of them says is taken."""

    def work(name: str, task: Task) -> Outcome:
        rank = int(name.rpartition("/")[2])
        return Outcome(Rows({"n": task.samples.tensor("n") * 10 + rank}), metrics={"rank": rank}, num_rows=4)

    home = FakeHome(work)
    groups = Groups(home, GRAPH, wide(GRAPH, 4, (("dp", 2), ("tp", 2))))
    home.times = {"all/0": (1.0, 4.0), "all/3": (0.5, 2.0)}
    ran = groups.run(_task()).result(10)
    outcome = ran.outcome
    assert outcome.rows is not None
    assert outcome.rows.tensor("n").tolist() == [0, 10, 20, 30, 42, 52, 62, 72]
    assert (outcome.num_rows, outcome.metrics) == (8, {"rank": 0})
    assert ran.times == {"all/0": (1.0, 4.0), "all/1": (0.0, 1.0), "all/2": (0.0, 1.0), "all/3": (0.5, 2.0)}
    groups.close()


def test_a_mesh_of_one_rank_is_called_with_the_task_as_it_is() -> None:
    seen: list[tuple[str, Task]] = []
    home = FakeHome(lambda name, task: seen.append((name, task)) or Outcome())
    groups = Groups(home, GRAPH, bind_local(GRAPH))
    task = _task()
    assert groups.run(task).result(10).times == {"all": (0.0, 1.0)}
    assert seen == [("all", task)]
    groups.close()


def test_all_ranks_save() -> None:
    saved: list[str] = []
    groups = Groups(FakeHome(lambda name, _: saved.append(name) or Outcome()), GRAPH, wide(GRAPH, 2))
    groups.save("all", __file__).result(10)  # type: ignore[arg-type]
    assert sorted(saved) == ["all/0", "all/1"]
    groups.close()


def test_every_rank_moves_its_own_part() -> None:
    asked: list[tuple[str, object]] = []

    def work(name: str, data: object) -> Outcome:
        asked.append((name, data))
        return Outcome(num_bytes=10 + len(asked))

    home = FakeHome(work)  # type: ignore[arg-type]
    groups = Groups(home, GRAPH, wide(GRAPH, 2))
    home.times = {"all/1": (2.0, 3.0)}
    ran = groups.move("all", "actor.moments", Rest.HOST).result(10)
    assert sorted(asked) == [("all/0", "actor.moments"), ("all/1", "actor.moments")]
    assert (ran.outcome.num_bytes, ran.times) == (11 + 12, {"all/0": (0.0, 1.0), "all/1": (2.0, 3.0)})
    assert groups.let_go("all", ("ref.weights",)).result(10) is None  # type: ignore[func-returns-value]
    assert sorted(home.let_go) == [("all/0", ("ref.weights",)), ("all/1", ("ref.weights",))]
    groups.close()


def test_the_error_of_a_rank_has_its_name_and_does_not_wait_for_the_others() -> None:
    release = threading.Event()

    def work(name: str, task: Task) -> Outcome:
        if name == "all/1":
            raise RunFault("gradient norm is nan")
        release.wait(30)  # in a collective that the other never comes to
        return Outcome()

    groups = Groups(FakeHome(work), GRAPH, wide(GRAPH, 2))
    with pytest.raises(RunFault, match="worker all/1: gradient norm is nan"):
        groups.run(_task()).result(20)
    release.set()
    groups.close()


def test_a_worker_that_died_is_the_cause_of_what_others_say_before() -> None:
    others_failed = threading.Event()

    def work(name: str, task: Task) -> Outcome:
        if name == "all/0":
            others_failed.set()
            raise RunFault("worker all/0: RuntimeError: Connection closed by peer")
        others_failed.wait(30)
        time.sleep(0.1)
        raise WorkerDied("worker all/1 was killed by SIGKILL when it was to do train of step 1")

    groups = Groups(FakeHome(work), GRAPH, wide(GRAPH, 2))
    with pytest.raises(WorkerDied, match="all/1 was killed by SIGKILL"):
        groups.run(_task()).result(20)
    groups.close()


def _spec(places: dict[str, list[Place | None]]) -> Callable[[str, Place | None], WorkerSpec]:
    def spec(mesh: str, place: Place | None) -> WorkerSpec:
        places.setdefault(mesh, []).append(place)
        return WorkerSpec(None, GRAPH, (), None, 1, place=place)  # type: ignore[arg-type]

    return spec


def test_those_with_a_model_find_each_other_on_loopback_and_the_port_is_given_back() -> None:
    places: dict[str, list[Place | None]] = {}
    groups = Groups(FakeHome(lambda name, task: Outcome()), GRAPH, wide(GRAPH, 2))
    groups.spawn(_spec(places), 60.0)
    assert places["host"] == [None]
    first, second = places["all"]
    assert first is not None
    assert second is not None
    assert [(p.world_rank, p.world_size, p.rank) for p in (first, second)] == [(0, 2, 0), (1, 2, 1)]
    with socket.create_connection(first.store, 10) as end:
        assert end.getpeername()[0] == "127.0.0.1"
    groups.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(first.store, 10)


def test_meshes_of_one_rank_need_no_world() -> None:
    places: dict[str, list[Place | None]] = {}
    groups = Groups(FakeHome(lambda name, task: Outcome()), GRAPH, bind_local(GRAPH))
    groups.spawn(_spec(places), 60.0)
    assert places == {"all": [None], "host": [None]}
    groups.close()


def test_the_store_does_not_listen_to_other_machines() -> None:
    store = Rendezvous("127.0.0.1")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", store.address[1]), 5)
    store.close()


def test_places_count_through_the_meshes_and_ranks_know_their_devices() -> None:
    meshes = (Mesh("gen", "local.slot[2:4]", (("dp", 2),)), Mesh("trn", "local.slot[0,1]", (("dp", 2),)))
    plan = replace(bind_local(GRAPH), meshes=(*meshes, Mesh("host", "local.host")))
    found = places_of(plan, ["gen", "trn"], ("127.0.0.1", 1), 60.0)
    named = plan.mesh_named
    assert [(p.mesh, p.world_rank, slot_of(named[p.mesh], p.rank)) for ranks in found.values() for p in ranks] == [
        ("gen", 0, 2),
        ("gen", 1, 3),
        ("trn", 2, 0),
        ("trn", 3, 1),
    ]
    assert slots(Mesh("host", "local.host")) == ()
    assert slot_of(Mesh("host", "local.host"), 0) == 0
    assert slots(Mesh("all", "local", (("dp", 3),))) == (0, 1, 2)
