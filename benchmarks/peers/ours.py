"""`cdc run`: a pipeline of its own for each run."""

from __future__ import annotations

from benchmarks.peers.peer import Peer, Run
from benchmarks.rig import Child, pipeline, set_up


def environment(run: Run) -> dict[str, str]:
    """Return the settings of the pipeline of a run."""
    own = {"CDC_NAME": f"ours_{run.name}", "CDC_TOPICS__ROUTE": f"ours.{run.name}.{{aggregatetype}}"}
    return {**run.rig.environment, **own}


def prepare(run: Run) -> None:
    """Do what `cdc init` does."""
    set_up(environment(run), skip=True)


def start(run: Run) -> Child:
    """Start it."""
    return pipeline(run.rig, environment(run))


OURS = Peer("ours", "cdc", start, prepare)
