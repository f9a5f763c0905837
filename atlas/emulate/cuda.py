"""What torch.cuda needs in place of a driver, where the build has none.

torch.cuda is Python over functions that a CPU build of torch leaves out. Those
functions are supplied here, and torch.cuda's own Python runs on them. Streams and
events are inert, for here a kernel has finished when its call returns.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

_ops = torch.ops.atlas_emulate
_GIBIBYTE = 1 << 30


class Stream(torch.Stream):
    """A stream on which there is never anything left to do."""

    cuda_stream = 0
    priority = 0

    def __new__(cls, device: Any = None, priority: int = 0, **_: Any) -> "Stream":
        made: Stream = super().__new__(cls, device=torch.device("cuda", _index(device)))
        return made

    def __init__(self, *_: Any, **__: Any) -> None:
        """All is done in __new__, as in torch.cuda.Stream."""

    def wait_event(self, event: Any) -> None:
        """Return: the event has happened."""

    def wait_stream(self, stream: Any) -> None:
        """Return: the stream is empty."""

    def record_event(self, event: Any = None) -> Any:
        """Note the time in an event."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all work is done: always."""
        return True

    def synchronize(self) -> None:
        """Return: all work is done."""


class Event(torch.Event):
    """A moment; elapsed_time gives milliseconds of this machine's clock."""

    def __new__(cls, enable_timing: bool = False, **_: Any) -> "Event":
        made: Event = super().__new__(cls, "cuda", enable_timing=enable_timing)
        return made

    def __init__(self, *_: Any, **__: Any) -> None:
        """All is done in __new__, as in torch.cuda.Event."""

    def record(self, stream: Any = None) -> None:
        """Note the time."""
        self._at = time.perf_counter()

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to another."""
        return float(end_event._at - self._at) * 1e3

    def query(self) -> bool:
        """Whether it has happened: always."""
        return True

    def synchronize(self) -> None:
        """Return: the event has happened."""

    def wait(self, stream: Any = None) -> None:
        """Return: the event has happened."""


def current_stream(device: Any = None) -> Stream:
    """The one stream of a device."""
    return Stream(device)


@contextmanager
def use_stream(stream: Any) -> Iterator[None]:
    """What torch.cuda.stream does here: nothing, for there is one stream."""
    yield


def _index(device: Any) -> int:
    """The index that a device, its name, a number or None stands for."""
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return _current() if index is None else int(index)


def _current() -> int:
    return torch.accelerator.current_device_index()


def _exchange(index: int) -> int:
    before = _current()
    if index >= 0:
        torch.accelerator.set_device_index(index)
    return before


def _resize_storage(self: Any, size: int) -> Any:
    """UntypedStorage.resize_, which a CPU build has for CPU storages only."""
    if self.device.type != "cuda":
        return _resize_cpu_storage(self, size)
    whole = torch.empty(0, dtype=torch.uint8, device=self.device).set_(self)
    _ops.resize_storage(whole, size)
    return self


def _new_storage(cls: type, *args: Any, **kwargs: Any) -> Any:
    """torch.UntypedStorage(size, device="cuda"), as torch.load asks for it."""
    device = torch.device(kwargs.get("device") or "cpu")
    if device.type != "cuda":
        return torch._C.StorageBase.__new__(cls, *args, **kwargs)
    return torch.empty(args[0], dtype=torch.uint8, device=device).untyped_storage()


_resize_cpu_storage = torch.UntypedStorage.resize_


def _memory_stats(device: Any = None) -> dict[str, int]:
    live, peak = _ops.memory_live(_index(device)), _ops.memory_peak(_index(device))
    return {
        f"{what}_bytes.all.{when}": value
        for what in ("allocated", "active", "reserved", "requested")
        for when, value in (("current", live), ("peak", peak))
    }


def _properties(device: Any = None) -> SimpleNamespace:
    return SimpleNamespace(
        name="emulated GPU",
        major=9,
        minor=0,
        total_memory=_GIBIBYTE << 4,
        multi_processor_count=1,
        warp_size=32,
        gcnArchName="",
    )


def _nothing(*_: Any, **__: Any) -> None:
    """Stand in for what has no effect here."""


def _driver(devices: int) -> dict[str, Any]:
    """The functions of torch._C that a CPU build leaves out."""
    return {
        "_cuda_init": _nothing,
        "_cuda_getDeviceCount": lambda: devices,
        "_cuda_getDevice": _current,
        "_cuda_setDevice": torch.accelerator.set_device_index,
        "_cuda_exchangeDevice": _exchange,
        "_cuda_maybeExchangeDevice": _exchange,
        "_cuda_synchronize": _ops.synchronize,
        "_cuda_emptyCache": _nothing,
        "_cuda_getArchFlags": lambda: "sm_90",
        "_cuda_getCurrentRawStream": lambda device=0: 0,
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_nccl_version": lambda: (2 << 32) | (27 << 16) | 3,
        "_nccl_version_suffix": lambda: b"",
    }


def _module(devices: int) -> dict[str, Any]:
    """The names of torch.cuda that were bound at import to their absence."""
    return {
        "_initialized": True,
        "_exchange_device": _exchange,
        "_maybe_exchange_device": _exchange,
        "device_count": lambda: devices,
        "is_current_stream_capturing": lambda: False,
        "Stream": Stream,
        "Event": Event,
        "stream": use_stream,
        "set_stream": _nothing,
        "current_stream": current_stream,
        "default_stream": current_stream,
        "default_generators": tuple(_ops.default_generator(i) for i in range(devices)),
        "get_device_properties": _properties,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_name": lambda device=None: "emulated GPU",
        "is_bf16_supported": lambda including_emulation=True: True,
        "mem_get_info": lambda device=None: (_GIBIBYTE << 4, _GIBIBYTE << 4),
        "memory_stats": _memory_stats,
        "memory_allocated": lambda device=None: _ops.memory_live(_index(device)),
        "max_memory_allocated": lambda device=None: _ops.memory_peak(_index(device)),
        "memory_reserved": lambda device=None: _ops.memory_live(_index(device)),
        "max_memory_reserved": lambda device=None: _ops.memory_peak(_index(device)),
        "reset_peak_memory_stats": lambda d=None: _ops.reset_peak(_index(d)),
    }


def install(devices: int) -> None:
    """Give torch.cuda its pretend driver."""
    for name, value in _driver(devices).items():
        setattr(torch._C, name, value)
    for name, value in _module(devices).items():
        setattr(torch.cuda, name, value)
    for name, value in (("resize_", _resize_storage), ("__new__", _new_storage)):
        setattr(torch.UntypedStorage, name, value)
    torch.version.cuda = "12.8"
