"""What the study needs of a compressor: the `train` that its exemplar has anyway."""

from collections.abc import Iterator
from typing import Any, Protocol

from exemplars.runtime import World
from exemplars.workload import Step, Task


class Compressor(Protocol):
    """SGD in which all ranks apply one compressed mean of their gradients.

    - The sizes are keywords: `steps`, `local_batch`, `rate`, and its own settings.
    - The model is `task.model()`. In every step each rank calls `task.batch` once, and
      takes the gradient of `task.loss(model, x, y) / y.numel()`.
    - What is sent has the dtype of that gradient; random starts come from `w.randn`.
    - After the step all ranks hold the same weights, the old ones minus `rate` times
      what stands for the mean gradient. `Step.weights` are all of them, in the order
      of the model's parameters.

    The study never looks inside: it plays recorded gradients through `task`, and reads
    what was made of them off the weights.
    """

    def __call__(
        self,
        w: World,
        task: Task,
        *,
        steps: int,
        local_batch: int,
        rate: float,
        **settings: Any,
    ) -> Iterator[Step]:
        """Train the task's model; yield after every step."""
