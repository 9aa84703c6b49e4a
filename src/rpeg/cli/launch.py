"""``rpeg launch``: start the processes of a run by hand, or have Slurm start them."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time as clock
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rpeg.cli.batch_script import Job, batch_script
from rpeg.errors import Fault, RecipeError, RunFault

if TYPE_CHECKING:
    from types import FrameType

    from rpeg.plan.plan import Plan

__all__ = ["launch"]

_END_S = 15.0
"""How long the other processes may take to end after rank 0."""


def launch(
    recipe: Annotated[str, typer.Argument(help="Recipe file (YAML).", metavar="RECIPE")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Dotted overrides, as for rpeg train.", metavar="[KEY=VALUE]...")
    ] = None,
    slurm: Annotated[bool, typer.Option("--slurm", help="Write a batch script for Slurm.")] = False,
    local: Annotated[int | None, typer.Option(min=2, help="Start so many processes on this machine.")] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the job.")] = 1,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=0, help="GPUs of each; else one per process with run.device=cuda, or none.")
    ] = None,
    tasks_per_node: Annotated[
        int | None, typer.Option(min=1, help="Processes of each; else one per GPU, or as many as the plan needs.")
    ] = None,
    time: Annotated[str | None, typer.Option(help="Longest run of the job: 12:00:00.")] = None,
    partition: Annotated[str | None, typer.Option(help="Partition of the job.")] = None,
    account: Annotated[str | None, typer.Option(help="Account of the job.")] = None,
    out: Annotated[Path | None, typer.Option(help="Batch script; else <name>.sbatch.")] = None,
    submit: Annotated[bool, typer.Option("--submit", help="Submit the script with sbatch.")] = False,
    run_dir: Annotated[Path | None, typer.Option(help="Run folder; else runs/<name>-<time>.")] = None,
    plan: Annotated[Path | None, typer.Option(help="Run as this plan says, which rpeg plan --out has written.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint of the run.")] = False,
) -> None:
    """Start one process per worker of RECIPE's plan: on this machine, or with a batch script for Slurm."""
    from rpeg.cli.train import graph_and_plan
    from rpeg.recipe.load import load_recipe

    if slurm == (local is not None):
        raise RecipeError("rpeg launch", [Fault("--slurm, --local", "one of them is needed", "rpeg launch --help")])
    said = [*(overrides or []), "run.home=processes"]
    loaded = load_recipe(Path(recipe), said)
    build, bind = graph_and_plan(loaded, plan)
    options = {"--run-dir": run_dir, "--plan": plan}
    given = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    command = [sys.executable, "-m", "rpeg", "train", recipe, *said, *given, *(["--resume"] if resume else [])]
    workers = _workers_with_devices(bind(build(loaded)))
    per_node = local or tasks_per_node or gpus_per_node or max(1, workers // nodes)
    gpus = (per_node if loaded.run.device.startswith("cuda") else 0) if gpus_per_node is None else gpus_per_node
    _check_numbers(workers, nodes if slurm else 1, per_node, gpus)
    if local is not None:
        raise typer.Exit(_start(command, local))
    job = Job(loaded.name, command, nodes, per_node, gpus, time, partition, account)
    script = out or Path(f"{loaded.name}.sbatch")
    script.write_text(batch_script(job))
    typer.echo(_submit(script) if submit else f"{script}: submit it with sbatch {script}")


def _workers_with_devices(plan: Plan) -> int:
    """Return how many workers of a plan have a device: the ranks of all meshes but those of hosts."""
    from rpeg.plan.mesh import num_ranks

    return sum(num_ranks(mesh) for mesh in plan.meshes if not mesh.where.startswith("local.host"))


def _check_numbers(workers: int, nodes: int, per_node: int, gpus: int) -> None:
    """Refuse another number of processes than there are workers with a device, and fewer GPUs than processes.

    Raises:
        RecipeError: with both numbers.
    """
    if 0 < gpus < per_node:
        text = f"is {gpus}, and every node has {per_node} processes, which take one each"
        raise RecipeError("rpeg launch", [Fault("--gpus-per-node", text, "ask for as many, or for 0: run.device=cpu")])
    if workers != nodes * per_node:
        text = f"{nodes} x {per_node} processes, and the plan has {workers} workers with a device"
        remedy = "start as many, or choose another plan (algorithm.staleness=1 has two workers)"
        raise RecipeError("rpeg launch", [Fault("nodes x processes", text, remedy)])


def _submit(script: Path) -> str:
    """Return what sbatch said.

    Raises:
        RunFault: when there is none, or it refuses.
    """
    if shutil.which("sbatch") is None:
        raise RunFault(f"{script} is written, but there is no sbatch on this machine; submit it where Slurm is")
    done = subprocess.run(["sbatch", str(script)], capture_output=True, text=True)
    if done.returncode:
        raise RunFault(f"sbatch {script} ended with status {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()


def _start(command: list[str], number: int) -> int:
    """Start the processes on this machine and return the status of rank 0, once all have ended."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    shared = {"RPEG_ADDRESS": address, "RPEG_TOKEN": secrets.token_hex(32)}
    shared |= {"WORLD_SIZE": str(number), "LOCAL_WORLD_SIZE": str(number)}
    ranks = [
        subprocess.Popen(command, env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(number)
    ]

    def forward(signum: int, _: FrameType | None) -> None:
        """Tell rank 0, which saves and ends; Ctrl-C has reached all by itself."""
        if signum == signal.SIGTERM:
            ranks[0].send_signal(signum)

    before = {signum: signal.signal(signum, forward) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        status = ranks[0].wait()
        deadline_s = clock.monotonic() + _END_S
        for other in ranks[1:]:
            _end(other, deadline_s)
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    return status if status >= 0 else 128 - status


def _end(process: subprocess.Popen[bytes], deadline_s: float) -> None:
    """Wait for a process that ends by itself, or else end it; one that never met rank 0 is still looking for it."""
    try:
        process.wait(max(0.0, deadline_s - clock.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
