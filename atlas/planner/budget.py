"""What a whole training costs: steps, hours, device-hours, money."""

import math
from dataclasses import dataclass

from atlas.planner.errors import OracleError
from atlas.planner.prediction import Prediction

__all__ = ["Cost", "cost"]


@dataclass(frozen=True)
class Cost:
    """A training of so many steps."""

    steps: int
    hours: float
    gpu_hours: float
    price: float | None  # of a device for an hour
    money: float | None
    currency: str


def cost(
    prediction: Prediction,
    *,
    tokens: float | None = None,
    epochs: float | None = None,
    samples: float | None = None,
    price: float | None = None,
) -> Cost:
    """The cost of one of three budgets; the cluster's own price unless one is given."""
    given = {"tokens": tokens, "epochs": epochs, "samples": samples}
    named = {name: value for name, value in given.items() if value is not None}
    if len(named) != 1:
        what = ", ".join(named) or "nothing"
        raise OracleError(
            f"a budget of {what}: expected one of tokens, epochs, samples"
        )
    name, amount = next(iter(named.items()))
    if amount <= 0:
        raise OracleError(f"{name} = {amount}: expected more than 0")
    if price is not None and price < 0:
        raise OracleError(f"price = {price}: expected 0 or more")
    model, cluster = prediction.model, prediction.cluster
    if name == "epochs" and model.epoch is None:
        raise OracleError(f"{model.name} has no data set: expected tokens or samples")
    of_one = {"tokens": 1 / model.tokens, "epochs": model.epoch or 0, "samples": 1}[
        name
    ]
    steps = math.ceil(amount * of_one / prediction.train.batch)
    hours = steps * prediction.seconds / 3600
    gpu_hours = hours * prediction.strategy.ranks
    rate = price if price is not None else cluster.price
    money = None if rate is None else rate * gpu_hours
    return Cost(steps, hours, gpu_hours, rate, money, cluster.currency)
