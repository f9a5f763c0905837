"""The operators of torch.distributed: their names, and what each must send."""

from fractions import Fraction


class MeterError(Exception):
    """An operation was seen that the meter cannot count."""


#: c10d operator -> (public name, index of the argument with this rank's payload)
OPERATORS: dict[str, tuple[str, int | None]] = {
    "c10d::allreduce_": ("all_reduce", 0),
    "c10d::allreduce_coalesced_": ("all_reduce", 0),
    "c10d::broadcast_": ("broadcast", 0),
    "c10d::reduce_": ("reduce", 0),
    "c10d::allgather_": ("all_gather", 1),
    "c10d::_allgather_base_": ("all_gather", 1),
    "c10d::allgather_coalesced_": ("all_gather", 1),
    "c10d::allgather_into_tensor_coalesced_": ("all_gather", 1),
    "c10d::reduce_scatter_": ("reduce_scatter", 1),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 1),
    "c10d::reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "c10d::alltoall_": ("all_to_all", 1),
    "c10d::alltoall_base_": ("all_to_all", 1),
    "c10d::gather_": ("gather", 1),
    "c10d::scatter_": ("scatter", 1),
    "c10d::barrier": ("barrier", None),
    "c10d::monitored_barrier_": ("barrier", None),
    "c10d::send": ("send", 0),
    "c10d::recv_": ("recv", 0),
    "c10d::recv_any_source_": ("recv", 0),
    "_c10d_functional::all_reduce": ("all_reduce", 0),
    "_c10d_functional::all_reduce_": ("all_reduce", 0),
    "_c10d_functional::all_reduce_coalesced": ("all_reduce", 0),
    "_c10d_functional::all_reduce_coalesced_": ("all_reduce", 0),
    "_c10d_functional::all_gather_into_tensor": ("all_gather", 0),
    "_c10d_functional::all_gather_into_tensor_out": ("all_gather", 0),
    "_c10d_functional::all_gather_into_tensor_coalesced": ("all_gather", 0),
    "_c10d_functional::reduce_scatter_tensor": ("reduce_scatter", 0),
    "_c10d_functional::reduce_scatter_tensor_coalesced": ("reduce_scatter", 0),
    "_c10d_functional::all_to_all_single": ("all_to_all", 0),
    "_c10d_functional::broadcast": ("broadcast", 0),
    "_c10d_functional::broadcast_": ("broadcast", 0),
}
#: Messages between two ranks; all else is a collective.
POINT_TO_POINT = ("send", "recv")


def wire_bytes(op: str, payload: int, p: int, is_root: bool = False) -> Fraction:
    """What one rank of p must send, if the algorithm is bandwidth-optimal.

    One-to-all and all-to-one operations are taken as a pipelined chain, in
    which every rank passes the payload on once. The root of a gather sends nothing.
    """
    match op:
        case "gather" if is_root:
            return Fraction(0)
        case "all_reduce":
            return Fraction(2 * (p - 1) * payload, p)
        case "all_gather":
            return Fraction((p - 1) * payload)
        case "reduce_scatter" | "all_to_all" | "scatter":
            return Fraction((p - 1) * payload, p)
        case "send" | "broadcast" | "reduce" | "gather":
            return Fraction(payload if p > 1 else 0)
        case "recv" | "barrier":
            return Fraction(0)
    raise MeterError(f"no wire bytes are known for {op!r}")
