"""A cluster of Ray on this machine that ends with the process that started it.

    this process ──starts──▶ keeper (`keep`) ──starts──▶ Ray's processes, all on the loopback address
    end of the keeper's standard input, however it comes about ──▶ Ray is shut down, its folder removed

The keeper has a session of its own, so that neither Ctrl-C nor a signal to the whole group ends Ray before the run. A
token that only this process and its children know keeps other users of the machine out.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import IO, Any

from rpeg.errors import RunFault, WaitLimit

__all__ = ["LocalCluster", "keep", "use_settings"]

_START = "import sys; sys.path[:] = {path!r}; from rpeg.runtime.homes.ray_cluster import keep; keep(*{arguments!r})"
_START_LIMIT_S = 120.0
"""Longest start of Ray; it takes two to four seconds on an idle machine."""
_STOP_LIMIT_S = 8.0
"""Longest orderly end of Ray; it takes one to two seconds."""
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a call after the end would start another cluster
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # the only way to have Ray listen on the loopback address alone
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a worker without a GPU of its own decides by run.device
    "RAY_worker_niceness": "0",  # else whatever runs beside a worker goes first
    "RAY_AUTH_MODE": "token",
}


class LocalCluster:
    """Ray on this machine."""

    def __init__(self, num_cpus: int) -> None:
        """Start it with room for so many workers of one CPU; GPUs are those that this process sees.

        Raises:
            RunFault: when Ray does not start, with what it said.
            WaitLimit: when it takes too long.
        """
        if "ray" in sys.modules and any(os.environ.get(name) != value for name, value in _SETTINGS.items()):
            raise RunFault("Ray was imported with other settings; start the run in a process of its own")
        use_settings()
        # Names of sockets are short, so the folder with Ray's is near the root.
        self._folder, self._said = tempfile.mkdtemp(prefix="rpeg-ray-"), tempfile.TemporaryFile()
        code = _START.format(path=sys.path, arguments=(num_cpus, self._folder))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._said}
        self._keeper = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, **pipes)
        try:
            self.address = self._wait()
            """Where to join it."""
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> str:
        assert self._keeper.stdout is not None
        is_there, _, _ = select.select([self._keeper.stdout], [], [], _START_LIMIT_S)
        if not is_there:
            raise WaitLimit(f"Ray has not started within {_START_LIMIT_S:.0f} s{_last_lines(self._said)}")
        line = self._keeper.stdout.readline()
        if not line:
            raise RunFault(f"Ray cannot be started on this machine{_last_lines(self._said)}")
        return json.loads(line)

    @property
    def pid(self) -> int:
        """The process that every one of Ray's is below."""
        return self._keeper.pid

    def stop(self) -> None:
        """End it; kill what takes longer than a few seconds."""
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        with suppress(BrokenPipeError):
            self._keeper.stdin.close()
        try:
            self._keeper.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._keeper.pid, signal.SIGKILL)  # its workers end with the raylet
            self._keeper.wait()
            _remove(self._folder)
        self._keeper.stdout.close()
        self._said.close()


def use_settings() -> None:
    """Set what Ray reads once, when it is imported; a token that is known already has to stay the same for that."""
    os.environ.update(_SETTINGS)
    os.environ.setdefault("RAY_AUTH_TOKEN", os.urandom(32).hex())


def keep(num_cpus: int, folder: str) -> None:
    """Start Ray, say where it is, and shut it down when standard input ends."""
    place: dict[str, Any] = {"_temp_dir": folder, "_node_ip_address": "127.0.0.1"}
    try:
        import ray

        ray.init("local", num_cpus=num_cpus, include_dashboard=False, log_to_driver=False, logging_level=40, **place)
        print(json.dumps(ray.get_runtime_context().gcs_address), flush=True)
        sys.stdin.read()
        ray.shutdown()
    finally:
        _remove(folder)


def _remove(folder: str) -> None:
    """Remove a folder that ending processes may still write into."""
    deadline_s = time.monotonic() + _STOP_LIMIT_S / 4
    while os.path.exists(folder) and time.monotonic() < deadline_s:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)


def _last_lines(said: IO[bytes]) -> str:
    """Return what a process said last, as the end of a message."""
    said.seek(0)
    lines = said.read().decode(errors="replace").strip().splitlines()[-5:]
    return "\n".join([":", *lines]) if lines else ""
