"""Counts memory: every tensor's bytes, from birth to death, by category.

    with ledger(parameters=lambda: model.parameters()) as memory:
        loss(model(x)).backward()
    memory.peak             # {"parameters": 4096, "activations": 2048, ...}

Nothing is sampled. A dispatch mode sees every storage when it is made, and a
finalizer when it is freed; so the figures are the same on every run, and all
categories together are the live bytes. A storage's category may be known only
later (a gradient is nobody's gradient until backward ends), so the ledger
keeps the births and deaths and names them at each `mark` and at the end:

    the categories given, in the order given; then
    activations    what autograd saved for backward
    other          the rest

One moment is not ours to count: what was handed to a collective is let go of by
the backend's own thread, which may be late. So a peak that such a tensor is part
of, as those of `other` and of all together are, can differ between runs.
"""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from atlas.modes import Mode, uncompiled

Category = Callable[[], Iterable[Tensor | None]]


class Ledger(Mode):
    """Follows every storage made while it is open."""

    def __init__(self, categories: dict[str, Category]) -> None:
        super().__init__()
        self._categories = categories
        self._entries: list[tuple[int, int]] = []  # (account, +/- bytes)
        self._account: dict[int, int] = {}  # storage -> account, while alive
        self._size: list[int] = []
        self._name: dict[int, str] = {}
        self._marks: list[tuple[int, str]] = []
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._saved, lambda t: t)

    def __enter__(self) -> "Ledger":
        self._name_all()
        self._hooks.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        self._hooks.__exit__()
        self._name_all()
        self._account.clear()

    @uncompiled
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._see(leaf)
        return out

    def mark(self, label: str) -> None:
        """Name what is alive now, and remember this moment by a label."""
        self._name_all()
        self._marks.append((len(self._entries), label))

    def live(self, label: str | None = None) -> dict[str, int]:
        """Bytes alive by category: at a mark, or at the end."""
        if label is None:
            return self._sum(len(self._entries))
        return self._sum({name: n for n, name in self._marks}[label])

    @property
    def peak(self) -> dict[str, int]:
        """The most bytes each category ever held; `total` is of all at once."""
        now = dict.fromkeys([*self._names, "total"], 0)
        most = dict(now)
        for account, size in self._entries:
            for name in (self._name.get(account, "other"), "total"):
                now[name] += size
                most[name] = max(most[name], now[name])
        return most

    @property
    def series(self) -> list[dict[str, int]]:
        """Live bytes by category after every birth and death."""
        now = dict.fromkeys(self._names, 0)
        steps = []
        for account, size in self._entries:
            now[self._name.get(account, "other")] += size
            steps.append(dict(now))
        return steps

    @property
    def _names(self) -> list[str]:
        return [*self._categories, "activations", "other"]

    def _sum(self, upto: int) -> dict[str, int]:
        now = dict.fromkeys([*self._names, "total"], 0)
        for account, size in self._entries[:upto]:
            now[self._name.get(account, "other")] += size
            now["total"] += size
        return now

    def _see(self, tensor: Tensor) -> int:
        """The account of this tensor's storage, opened if it is new."""
        storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
        key = storage._cdata
        account = self._account.get(key)
        if account is None:
            account = self._account[key] = len(self._size)
            self._size.append(storage.nbytes())
            self._entries.append((account, storage.nbytes()))
            weakref.finalize(storage, self._gone, key, account)
        return account

    def _gone(self, key: int, account: int) -> None:
        if self._account.get(key) == account:
            del self._account[key]
            self._entries.append((account, -self._size[account]))

    def _saved(self, tensor: Tensor) -> Tensor:
        self._name.setdefault(self._see(tensor), "activations")
        return tensor

    def _name_all(self) -> None:
        for name, tensors in self._categories.items():
            for tensor in tensors():
                if tensor is not None:
                    account = self._see(tensor)
                    if self._name.get(account, "activations") == "activations":
                        self._name[account] = name


def ledger(**categories: Category) -> Ledger:
    """A ledger with these categories, to be opened by `with`."""
    return Ledger(categories)
