"""Runs that were published: what the oracle says of their layout, here and there."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from atlas import presets
from atlas.oracle.errors import OracleError
from atlas.oracle.predict import predict
from atlas.oracle.prediction import Prediction
from atlas.oracle.search import Plan
from atlas.oracle.strategy import Data, Strategy, parse
from atlas.oracle.train import PRECISIONS, Train
from atlas.oracle.units import seconds, size
from atlas.presets import RunSpec

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
            f"{self.run.seconds:g} s a step; the oracle says "
            f"{seconds(self.there.seconds)} ({self.off:+.1%}). On the devices and the "
            f"batch of this plan, {self.here.strategy}, recompute "
            f"{self.run.recompute}: {seconds(self.here.seconds)} a step, "
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
            recompute=run.recompute,
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
