"""`atlas predict`: what one strategy costs on a cluster, before it is run."""

from typing import Annotated

import typer

from atlas.commands import common
from atlas.commands.common import Json
from atlas.planner.commands import forecast, given
from atlas.planner.commands.given import needed
from atlas.planner.errors import OracleError
from atlas.planner.explain import explain
from atlas.planner.predict import predict as predicted
from atlas.planner.prediction import Prediction
from atlas.planner.strategy import AXES, parse
from atlas.planner.units import count, seconds, size

StrategyOption = Annotated[
    str | None,
    typer.Option(
        help=f"Axes joined by *, outermost first: {', '.join(AXES)}.",
        metavar="STRATEGY",
    ),
]


def predict(
    model: given.ModelOption = None,
    cluster: given.ClusterOption = None,
    strategy: StrategyOption = None,
    batch: given.BatchOption = None,
    micro_batch: given.MicroOption = None,
    precision: given.PrecisionOption = None,
    optimizer: given.OptimizerOption = "adam",
    recompute: given.RecomputeOption = None,
    seq: given.SeqOption = None,
    flash: given.FlashOption = True,
    eager: given.EagerOption = False,
    tokens: given.TokensOption = None,
    epochs: given.EpochsOption = None,
    price: given.PriceOption = None,
    json: Json = False,
) -> None:
    """Predict the time, traffic, memory and limits of one training step.

    Examples:

    \b
    atlas predict --model gpt3-175b --cluster a100-80g --batch 1536
      --strategy "Data(16) * Pipeline(8) * Tensor(8)" --recompute full
    atlas predict --model resnet-50 --cluster abci-v100 --batch 2048
      --strategy "Data(64)" --precision fp32 --optimizer momentum --epochs 90
    atlas predict --model path/to/config.json --cluster my.yaml --batch 64
      --strategy "Zero(3, 64)" --json
    """
    where = given.cluster_of(needed(cluster, "--cluster"))
    train = given.train_of(
        needed(batch, "--batch"),
        where,
        micro_batch=micro_batch,
        precision=precision,
        optimizer=optimizer,
        recompute=recompute or "none",
        flash=flash,
        eager=eager,
    )
    what, how = needed(model, "--model"), needed(strategy, "--strategy")
    try:
        found = predicted(given.model_of(what, seq), parse(how), where, train)
    except OracleError:
        raise
    except ValueError as error:  # a formula's own range
        raise OracleError(f"{how} for {what}: {error}") from None
    spent = forecast.cost(found, tokens, epochs, price)
    if json:
        money = forecast.plain_cost(found, tokens, epochs, price)
        common.print_json(
            {**forecast.plain(found), "cost": money, "explain": explain(found)}
        )
        return
    show(found)
    if spent:
        common.out().print(f"\n[bold]Whole training[/bold]: {spent}")


def show(p: Prediction) -> None:
    """The whole prediction."""
    out = common.out()
    many = "micro-batch" if p.micro_batches == 1 else "micro-batches"
    out.print(
        f"[bold]{p.model.name}[/bold] ({count(p.model.parameters)} parameters) with "
        f"[bold]{p.strategy}[/bold] on {p.strategy.ranks} devices of {p.cluster.name}, "
        f"batch {p.train.batch}: {p.micro_batches} {many} of {p.micro_batch}"
    )
    out.print(f"\n[bold]Time[/bold]    {forecast.headline(p)}")
    times = forecast.times_of(p)
    out.print(forecast.stacked([t for _, t in times], p.seconds))
    out.print(forecast.parts(times, p.seconds, seconds))
    out.print(f"\n[bold]Memory[/bold]  {forecast.room(p)}")
    held = forecast.memory_of(p)
    out.print(forecast.stacked([n for _, n in held], max(p.capacity, sum(p.memory))))
    out.print(forecast.parts(held, p.capacity, size))
    if p.collectives:
        out.print("\n[bold]Collectives per step, on one rank[/bold]")
        out.print(forecast.collectives(p))
    if p.findings:
        out.print("[bold]Limits and bottlenecks[/bold]")
        for finding in p.findings:
            out.print(f"  {finding.kind}: {finding.says}")
    out.print("\n[bold]Summary[/bold]")
    out.print(explain(p))
