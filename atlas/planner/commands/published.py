"""Runs that were published: what the oracle says of their layout, here and there."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from atlas.planner import presets
from atlas.planner.errors import OracleError
from atlas.planner.predict import predict
from atlas.planner.prediction import Prediction
from atlas.planner.presets import RunSpec
from atlas.planner.records import Recompute
from atlas.planner.search import Plan
from atlas.planner.strategy import Data, Strategy, parse
from atlas.planner.train import PRECISIONS, Train
from atlas.planner.units import seconds, size

__all__ = ["Published", "published"]


@dataclass(frozen=True)
class Published:
    """A published layout: as it was run, and on the devices of a plan."""

    run: RunSpec
    there: Prediction
    here: Prediction

    @property
    def off(self) -> float:
        """Of the published step, how much the prediction is off."""
        return self.there.seconds / self.run.seconds - 1

    def says(self) -> str:
        """Both in sentences."""
        held = self.here.memory
        state = held.parameters + held.gradients + held.optimizer
        return (
            f"[bold]As published[/bold] ({self.run.source}): {self.there.strategy} on "
            f"{self.there.strategy.ranks} devices, batch {self.run.batch}, took "
            f"{self.run.seconds:g} s per step; the oracle predicts "
            f"{seconds(self.there.seconds)} ({self.off:+.1%}). With the devices and "
            f"the batch of this plan, {self.here.strategy} with recompute "
            f"{self.run.recompute} takes {seconds(self.here.seconds)} per step, with "
            f"{size(state)} of model state and {size(held.activations)} of "
            f"activations on the fullest device."
        )

    def plain(self) -> dict[str, Any]:
        """The same for --json."""
        return {
            "source": self.run.source,
            "strategy": str(self.there.strategy),
            "batch": self.run.batch,
            "published_seconds": self.run.seconds,
            "predicted_seconds": self.there.seconds,
            "here": str(self.here.strategy),
            "seconds": self.here.seconds,
            "memory": self.here.memory._asdict(),
        }


def published(name: str, plan: Plan) -> list[Published]:
    """The runs of this model on this cluster whose layout fits the plan's devices."""
    if name not in presets.models():
        return []
    found = []
    for run in presets.runs(name):
        layout = parse(run.strategy)
        if run.cluster != plan.cluster.name or plan.gpus % layout.ranks:
            continue
        train = Train(
            run.batch,
            micro_batch=run.micro_batch,
            precision=PRECISIONS[run.precision],
            recompute=Recompute(run.recompute),
        )
        replicas = plan.gpus // layout.ranks
        wider = Data(replicas) * layout if replicas > 1 else layout
        try:
            there = predict(plan.model, layout, plan.cluster, train)
            here = _here(plan, wider, train)
        except OracleError:  # a batch that does not divide among them, say
            continue
        found.append(Published(run, there, here))
    return found


def _here(plan: Plan, strategy: Strategy, train: Train) -> Prediction:
    asked = dataclasses.replace(train, batch=plan.train.batch)
    return predict(plan.model, strategy, plan.cluster, asked)
