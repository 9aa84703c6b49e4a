"""Where the ranks of a run meet: one address, a token that only they know, and a handshake before anything is read.

    rank 0   ── nonce a ──▶                        the others
             ◀── nonce b, HMAC(token, join a b) ──
             ── HMAC(token, accept a b) ──▶         then messages

Address and token are `RPEG_ADDRESS` and `RPEG_TOKEN`, which `rpeg launch` sets. Without them ranks on one machine meet
on the loopback address, and a file that only this user can read has both. A connection that does not know the token is
closed after 96 bytes at most, none of which is unpickled. The messages that follow are not encrypted.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import socket
import stat
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rpeg.errors import Fault, RecipeError, RunFault, WaitLimit
from rpeg.runtime.homes.home import LOOPBACK
from rpeg.runtime.homes.ranks import Rank

__all__ = ["Meeting", "Stranger", "greet", "join", "open_meeting"]

_BYTES = 32
_GREETING_S = 10.0
"""How long a handshake may take."""
_JOIN_LIMIT_S = 300.0
"""How long ranks look for rank 0, which checks the recipe before it listens."""


class Stranger(Exception):
    """Whoever connected does not know the token."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where to meet, and what to know."""

    host: str
    port: int
    token: bytes

    def save(self, path: Path) -> None:
        """Write it to where only this user can read it."""
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w") as file:
            json.dump({"host": self.host, "port": self.port, "token": self.token.hex()}, file)

    @classmethod
    def load(cls, path: Path) -> Meeting | None:
        """Read it; None while it is not there, or if somebody else could have written or read it."""
        with suppress(OSError, ValueError, KeyError):
            found = path.lstat()
            if found.st_uid == os.getuid() and stat.S_ISREG(found.st_mode) and not found.st_mode & 0o077:
                read = json.loads(path.read_text())
                return cls(read["host"], read["port"], bytes.fromhex(read["token"]))
        return None


def _told(environment: Mapping[str, str], rank: Rank) -> Meeting | None:
    """Return the meeting that the environment names.

    Raises:
        RecipeError: when it names half of one, or none and the ranks are on several machines.
    """
    address, token = environment.get("RPEG_ADDRESS", ""), environment.get("RPEG_TOKEN", "")
    if not address and not token and rank.is_on_one_host:
        return None
    host, _, port = address.rpartition(":")
    faults = []
    if not host or not port.isdecimal():
        text = f"is {address!r}, not host:port" if address else "is missing"
        faults.append(Fault("RPEG_ADDRESS", text, "set it for every rank to where rank 0 is, as rpeg launch does"))
    if len(token) < _BYTES:
        text = f"has {len(token)} characters, fewer than {_BYTES}" if token else "is missing"
        remedy = "set it for every rank to the same secret, as rpeg launch does: openssl rand -hex 32"
        faults.append(Fault("RPEG_TOKEN", text, remedy))
    if faults:
        raise RecipeError("launcher", faults)
    return Meeting(host, int(port), token.encode())


def _path(rank: Rank) -> Path:
    start = re.sub(r"[^\w.-]", "_", rank.start)
    return Path(tempfile.gettempdir(), f"rpeg-{os.getuid()}-{start}.json")


def open_meeting(environment: Mapping[str, str], rank: Rank) -> tuple[Meeting, socket.socket, Path | None]:
    """Return the meeting of rank 0, the socket it listens at, and the file to remove once all have come."""
    told = _told(environment, rank)
    host, port = (told.host, told.port) if told else (LOOPBACK, 0)
    try:
        listening = socket.create_server((host, port), backlog=rank.size + 16)
    except OSError as error:
        text = f"rank 0 on {rank.node} cannot listen at {host}:{port} (RPEG_ADDRESS): {error.strerror}"
        raise RunFault(text) from error
    if told:
        return told, listening, None
    meeting = Meeting(host, listening.getsockname()[1], os.urandom(_BYTES).hex().encode())
    meeting.save(_path(rank))
    return meeting, listening, _path(rank)


def greet(end: socket.socket, token: bytes) -> None:
    """Find out that a connection knows the token, and show that we do.

    Raises:
        Stranger: when it does not.
    """
    end.settimeout(_GREETING_S)
    ours = os.urandom(_BYTES)
    try:
        end.sendall(ours)
        answer = _exactly(end, 2 * _BYTES)
        theirs, proof = answer[:_BYTES], answer[_BYTES:]
        if not hmac.compare_digest(proof, _proof(token, b"join", ours, theirs)):
            raise Stranger
        end.sendall(_proof(token, b"accept", ours, theirs))
    except OSError as error:
        raise Stranger from error
    end.settimeout(None)
    _keep_alive(end)


def join(environment: Mapping[str, str], rank: Rank) -> socket.socket:
    """Connect to rank 0.

    Raises:
        WaitLimit: when it is not there in time.
        RunFault: when who is there does not know the token.
    """
    deadline_s = time.monotonic() + _JOIN_LIMIT_S
    told = _told(environment, rank)
    while time.monotonic() < deadline_s:
        meeting = told or Meeting.load(_path(rank))
        try:
            if meeting is not None:
                return _greeted(socket.create_connection((meeting.host, meeting.port), _GREETING_S), meeting)
        except OSError:
            pass  # rank 0 does not listen yet
        except RunFault:
            if told:
                raise  # else the file is that of an earlier run, whose port somebody else has now
        time.sleep(0.1)
    where = environment.get("RPEG_ADDRESS") or f"the address in {_path(rank)}"
    raise WaitLimit(f"{rank.text_of(rank.number)} has not found rank 0 at {where} within {_JOIN_LIMIT_S:.0f} s")


def _greeted(end: socket.socket, meeting: Meeting) -> socket.socket:
    """Show that we know the token, and find out that the other end does."""
    try:
        theirs, ours = _exactly(end, _BYTES), os.urandom(_BYTES)
        end.sendall(ours + _proof(meeting.token, b"join", theirs, ours))
        proof = _exactly(end, _BYTES)
    except BaseException:
        end.close()
        raise
    if not hmac.compare_digest(proof, _proof(meeting.token, b"accept", theirs, ours)):
        end.close()
        raise RunFault(f"who listens at {meeting.host}:{meeting.port} is not rank 0: it does not know RPEG_TOKEN")
    end.settimeout(None)
    _keep_alive(end)
    return end


def _proof(token: bytes, what: bytes, a: bytes, b: bytes) -> bytes:
    return hmac.digest(token, what + a + b, "sha256")


def _exactly(end: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        more = end.recv(num_bytes - len(data))
        if not more:
            raise ConnectionAbortedError
        data += more
    return data


def _keep_alive(end: socket.socket) -> None:
    """Send small messages at once, and hear within half a minute that a machine is gone."""
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000)):
        if hasattr(socket, name):  # not on every system
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
