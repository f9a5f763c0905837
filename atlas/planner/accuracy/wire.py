"""A wire of known speed: what its frames carry, and the commands that make it.

    node 0 --eth0 [tbf]--,
    node 1 --eth0 [tbf]----bridge
    node 2 --eth0 [tbf]--'

Every node's own way out is shaped by a token bucket (tc-tbf), which counts whole
Ethernet frames. A full one has 1448 bytes of payload:

    14 Ethernet + 20 IP + 32 TCP with time stamps + 1448 = 1514

The kernel hands several frames of one connection on together. The bucket counts the
headers of each (the interface's own counter does not), and the receiver answers
them with one acknowledgement, 66 bytes on its own way out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

ETHERNET, IP, TCP = 14, 20, 32
MTU = 1500
PAYLOAD = MTU - IP - TCP
FRAME = ETHERNET + MTU
ACKNOWLEDGEMENT = ETHERNET + IP + TCP

#: Seconds of sending that a full bucket lets pass at once. Less would lose tokens
#: whenever the machine is late to look after the bucket.
BURST_SECONDS = 0.001
MOST_TOGETHER = 8  # frames
#: Bytes that may wait before the bucket: none is ever dropped.
LIMIT = 64 << 20

Command = Sequence[str]


@dataclass(frozen=True)
class Wire:
    """Every node's way out, in bits a second."""

    rate: int

    def __post_init__(self) -> None:
        if self.burst < FRAME:
            least = round(FRAME * 8 / BURST_SECONDS / 1e6, 1)
            raise ValueError(f"{self.rate} bit/s: expected at least {least} Mbit/s")

    @property
    def burst(self) -> int:
        """Bytes of a full bucket."""
        return int(self.rate / 8 * BURST_SECONDS)

    @property
    def credit(self) -> float:
        """Seconds that a full bucket saves whoever begins to send."""
        return self.burst * 8 / self.rate

    @property
    def together(self) -> int:
        """Frames that are handed on together: no more than a bucket holds."""
        return min(MOST_TOGETHER, self.burst // FRAME)

    def sent(self, payload: float, answered: float) -> float:
        """Bytes on the wire of a node that sends and meanwhile receives so much."""
        answers = answered / (self.together * PAYLOAD)
        return payload / PAYLOAD * FRAME + answers * ACKNOWLEDGEMENT

    def beta(self, both_ways: bool) -> float:
        """Seconds for a byte of payload, from the declared rate and the headers."""
        return self.sent(1.0, 1.0 if both_ways else 0.0) * 8 / self.rate

    def plug(self, node: int, switch: str) -> list[Command]:
        """Inside a node: its interface, shaped; the far end goes to the switch."""
        port = ["peer", "name", port_of(node), "mtu", str(MTU), "netns", switch]
        segments = ["gso_max_segs", str(self.together)]
        shape = ["rate", f"{self.rate}bit", "burst", f"{self.burst}b"]
        return [
            ["ip", "link", "set", "lo", "up"],
            ["ip", "link", "add", INTERFACE, "mtu", str(MTU), "type", "veth", *port],
            # no address of IPv6: its own chatter would be counted
            ["ip", "link", "set", INTERFACE, "addrgenmode", "none", *segments],
            ["ip", "address", "add", f"{address(node)}/24", "dev", INTERFACE],
            [*SHAPER, "add", *DEVICE, "root", "tbf", *shape, "limit", f"{LIMIT}b"],
            ["ip", "link", "set", INTERFACE, "up"],
        ]


INTERFACE = "eth0"
#: Of TCP in a node: what every kernel has, and full speed after a rest.
SETTINGS = {
    "tcp_congestion_control": "reno",
    "tcp_no_metrics_save": "1",
    "tcp_slow_start_after_idle": "0",
}
BRIDGE = "bridge"
SHAPER = ("tc", "qdisc")
DEVICE = ("dev", INTERFACE)
COUNTERS: Command = ("tc", "-s", "-j", "qdisc", "show", *DEVICE)


def address(node: int) -> str:
    """Of a node; private to its wire, so no two wires ever collide."""
    return f"10.0.0.{node + 1}"


def port_of(node: int) -> str:
    """The far end of a node's interface, on the switch."""
    return f"port{node}"


def switch() -> list[Command]:
    """Inside the switch: a bridge."""
    return [
        ["ip", "link", "add", BRIDGE, "type", "bridge"],
        ["ip", "link", "set", BRIDGE, "addrgenmode", "none", "up"],
    ]


def attach(node: int) -> Command:
    """Inside the switch: put a node's port on the bridge."""
    quiet = ["addrgenmode", "none", "up"]
    return ["ip", "link", "set", port_of(node), "master", BRIDGE, *quiet]
