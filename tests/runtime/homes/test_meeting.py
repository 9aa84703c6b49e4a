"""Ranks meet: who knows the token comes in, nobody else does, and no byte of a stranger is unpickled."""

from __future__ import annotations

import os
import pickle
import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from rpeg.errors import RecipeError, RunFault, WaitLimit
from rpeg.runtime.homes import meeting as meeting_module
from rpeg.runtime.homes.meeting import Meeting, Stranger, greet, join, open_meeting
from rpeg.runtime.homes.ranks import Rank

HERE = Rank(0, 2, 0, "n1", ("n1",), "7")
THERE = Rank(1, 2, 0, "n2", ("n1", "n2"), "7")
TOKEN = "s" * 32


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep files of meetings in a folder of the test's own, and waits short."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(meeting_module, "_JOIN_LIMIT_S", 0.5)
    monkeypatch.setattr(meeting_module, "_GREETING_S", 5.0)
    return tmp_path


def greeted(listening: socket.socket, token: bytes) -> list[object]:
    """Greet one connection on a thread; return its end, or what was raised, once joined."""
    found: list[object] = []

    def accept() -> None:
        end, _ = listening.accept()
        try:
            greet(end, token)
            found.append(end)
        except Stranger as error:
            end.close()
            found.append(error)

    thread = threading.Thread(target=accept)
    thread.start()
    found.append(thread)
    return found


def result(found: list[object]) -> object:
    thread, *_ = found
    assert isinstance(thread, threading.Thread)
    thread.join(20)
    return found[1]


def test_ranks_of_one_machine_meet_through_a_file_of_this_user(folder: Path) -> None:
    place, listening, file = open_meeting({}, HERE)
    with listening:
        assert file == folder / f"rpeg-{os.getuid()}-7.json"
        assert file.stat().st_mode & 0o777 == 0o600
        assert place.host == "127.0.0.1"
        assert listening.getsockname() == ("127.0.0.1", place.port)
        found = greeted(listening, place.token)
        with join({}, HERE) as end:
            theirs = result(found)
            assert isinstance(theirs, socket.socket)
            with theirs:
                theirs.sendall(b"x")
                assert end.recv(1) == b"x"
    file.chmod(0o644)  # others could have read the token
    assert Meeting.load(file) is None
    with pytest.raises(WaitLimit, match=r"^rank 0 on n1 has not found rank 0 at the address in .*-7.json within 0 s$"):
        join({}, HERE)


def test_a_wrong_token_is_refused_by_either_side(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address, listening, file = open_meeting({"RPEG_ADDRESS": "127.0.0.2:0", "RPEG_TOKEN": TOKEN}, THERE)
    assert (address.host, file) == ("127.0.0.2", None)
    with listening:
        host, port = listening.getsockname()
        assert host == "127.0.0.2"
        found = greeted(listening, TOKEN.encode())
        with pytest.raises(WaitLimit, match=rf"^rank 1 on n2 has not found rank 0 at 127.0.0.2:{port} within 0 s$"):
            join({"RPEG_ADDRESS": f"127.0.0.2:{port}", "RPEG_TOKEN": "t" * 32}, THERE)
        assert isinstance(result(found), Stranger)
        monkeypatch.setattr(meeting_module, "_JOIN_LIMIT_S", 20.0)
        # A listener that does not check and cannot prove anything: the joiner must not go on with it.
        threading.Thread(target=_pretend, args=(listening,), daemon=True).start()
        with pytest.raises(RunFault, match=rf"^who listens at 127.0.0.2:{port} is not rank 0"):
            join({"RPEG_ADDRESS": f"127.0.0.2:{port}", "RPEG_TOKEN": TOKEN}, THERE)


def _pretend(listening: socket.socket) -> None:
    while listening.fileno() >= 0:
        with suppress(OSError):
            end, _ = listening.accept()
            with end:
                end.sendall(b"0" * 32)
                end.recv(64, socket.MSG_WAITALL)
                end.sendall(b"1" * 32)


class Marker:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, int]]:
        return os.open, (str(self.path), os.O_CREAT)


def test_pickles_of_strangers_are_not_read(folder: Path) -> None:
    place, listening, _ = open_meeting({}, HERE)
    with listening:
        found = greeted(listening, place.token)
        with socket.create_connection((place.host, place.port)) as end:
            end.sendall(pickle.dumps(Marker(folder / "marker")).ljust(200, b"."))
            assert isinstance(result(found), Stranger)
    assert not (folder / "marker").exists()
    pickle.loads(pickle.dumps(Marker(folder / "marker")))  # it would have been there
    assert (folder / "marker").exists()


def test_several_machines_need_an_address_and_a_secret(folder: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        join({}, THERE)
    assert [str(fault).partition(";")[0] for fault in caught.value.faults] == [
        "RPEG_ADDRESS: is missing",
        "RPEG_TOKEN: is missing",
    ]
    with pytest.raises(RecipeError) as caught:
        open_meeting({"RPEG_ADDRESS": "n1", "RPEG_TOKEN": "short"}, THERE)
    assert [str(fault).partition(";")[0] for fault in caught.value.faults] == [
        "RPEG_ADDRESS: is 'n1', not host:port",
        "RPEG_TOKEN: has 5 characters, fewer than 32",
    ]
    with pytest.raises(RunFault, match=r"^rank 0 on n1 cannot listen at 192.0.2.77:9 \(RPEG_ADDRESS\): "):
        open_meeting({"RPEG_ADDRESS": "192.0.2.77:9", "RPEG_TOKEN": TOKEN}, HERE)
