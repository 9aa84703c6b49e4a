"""The batch script with which Slurm starts a run: one process per worker, no Ray."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Job", "batch_script"]

_SAVE_S = 120
"""How long before the end of its time a job is told to save and end."""

_TEXT = """\
#!/bin/bash
# Written by rpeg launch --slurm, which overwrites it: keep a changed one under another name.
# One process per worker of the plan. Rank 0 is the controller, the others connect to it and end with it.
# {save_s} s before the time is over, and after scancel --signal=TERM JOB, the run saves and ends;
# rpeg launch ... --resume goes on.
{directives}

set -euo pipefail

# Rank 0 listens on the first node, at a port that differs from job to job.
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
export RPEG_ADDRESS="${{nodes[0]}}:$((20000 + SLURM_JOB_ID % 20000))"
# Nobody is let in without this secret of the job.
RPEG_TOKEN="$(od -An -vN32 -tx1 /dev/urandom | tr -d ' \\n')"
export RPEG_TOKEN

srun --kill-on-bad-exit=1 --distribution=block {command}
"""


@dataclass(frozen=True, slots=True)
class Job:
    """What to ask Slurm for, and what to run."""

    name: str
    command: Sequence[str]
    """What every process runs."""
    nodes: int
    tasks_per_node: int
    gpus_per_node: int = 0
    time: str | None = None
    """As Slurm reads it: ``12:00:00``."""
    partition: str | None = None
    account: str | None = None


def batch_script(job: Job) -> str:
    """Return the script of a job."""
    wanted: dict[str, object] = {
        "job-name": job.name,
        "output": f"{job.name}-%j.log",
        "nodes": job.nodes,
        "ntasks": job.nodes * job.tasks_per_node,
        "ntasks-per-node": job.tasks_per_node,
        "gpus-per-node": job.gpus_per_node or None,
        "time": job.time,
        "signal": f"TERM@{_SAVE_S}" if job.time else None,
        "partition": job.partition,
        "account": job.account,
    }
    directives = "\n".join(f"#SBATCH --{name}={value}" for name, value in wanted.items() if value is not None)
    return _TEXT.format(save_s=_SAVE_S, directives=directives, command=shlex.join(job.command))
