"""How a network is trained: batch, precision, optimizer, recomputation."""

from dataclasses import dataclass

from atlas.planner.errors import OracleError, nearest
from atlas.planner.records import Recipe, Recompute

__all__ = [
    "OPTIMIZERS",
    "PRECISIONS",
    "RECOMPUTE",
    "SEARCHED",
    "Optimizer",
    "Precision",
    "Train",
]

RECOMPUTE: tuple[Recompute, ...] = tuple(Recompute)
#: Those that a search tries; per operation is one framework's, and is asked for.
SEARCHED: tuple[Recompute, ...] = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)


@dataclass(frozen=True)
class Precision:
    """Bytes of one element, and the arithmetic that the device does with it."""

    name: str
    weight: int
    gradient: int
    activation: int
    master: int  # bytes of the 32-bit copy that the optimizer keeps, 0: none
    arithmetic: str  # a key of Device.flops


#: Source: Rajbhandari et al. 2020, section 3.1 (2 + 2 + 4 + 8 with Adam);
#: Megatron-LM adds gradients up in 32 bits (2 + 4 + 4 + 8).
PRECISIONS = {
    p.name: p
    for p in (
        Precision("fp32", 4, 4, 4, 0, "fp32"),
        Precision("tf32", 4, 4, 4, 0, "tf32"),
        Precision("fp64", 8, 8, 8, 0, "fp64"),
        Precision("mixed", 2, 2, 2, 4, "bf16"),
        Precision("mixed-fp32-gradients", 2, 4, 2, 4, "bf16"),
        Precision("fp8", 2, 2, 2, 4, "fp8"),  # products alone; the rest is in 16 bits
    )
}


@dataclass(frozen=True)
class Optimizer:
    """Numbers that an optimizer keeps for each parameter."""

    name: str
    moments: int


OPTIMIZERS = {
    o.name: o
    for o in (Optimizer("sgd", 0), Optimizer("momentum", 1), Optimizer("adam", 2))
}


@dataclass(frozen=True)
class Train:
    """One step of training. Sizes are samples; of a transformer, sequences."""

    batch: int
    micro_batch: int | None = None  # None: the whole share of a replica
    precision: Precision = PRECISIONS["mixed"]
    optimizer: Optimizer = OPTIMIZERS["adam"]
    recompute: Recompute = Recompute.NONE
    flash: bool = False  # attention never stores its scores (Dao et al. 2022)
    lean: bool = False  # the loss is computed on scores in 16 bits, in place
    eager: bool = False  # no kernels are fused: more is saved, and moved
    stops: bool = False  # recomputing a unit stops before its last product
    woven: bool = False  # exchanges inside layers hide too, behind their products
    overlap: bool = True  # exchanges between replicas hide behind computation
    bucket: int = 25 * 2**20  # bytes of gradients sent at a time; 0: all at once

    def __post_init__(self) -> None:
        for name in ("batch", "micro_batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OracleError(f"{name} = {value}: expected 1 or more")
        if self.recompute not in RECOMPUTE:
            raise OracleError(
                f'recompute "{self.recompute}": expected '
                + nearest(self.recompute, RECOMPUTE)
            )

    @property
    def state(self) -> int:
        """Bytes that the optimizer keeps for a parameter, its master included."""
        width = self.precision.master or self.precision.weight
        return self.precision.master + self.optimizer.moments * width

    def recipe(self, recompute: str | None = None) -> Recipe:
        """The same in numbers."""
        p = self.precision
        kept = 0 if p.master else p.weight  # without a master the weight is read too
        return Recipe(
            weight=p.weight,
            gradient=p.gradient,
            activation=p.activation,
            state=self.state,
            stepped=p.gradient + 2 * self.state + p.weight + kept,
            recompute=Recompute(recompute or self.recompute),
            lean=self.lean,
            eager=self.eager,
            stops=self.stops,
            woven=self.woven,
            flash=self.flash,
            overlap=self.overlap,
            bucket=self.bucket,
        )
