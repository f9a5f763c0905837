"""Links of known speed: what they carry, what is left of them, and the page."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import wired
from leftovers import wait_until
from wired import LINK, exchanging, networks

from atlas.launch import LaunchError, launch
from atlas.planner.accuracy import exchanges, nodes, wire
from atlas.planner.accuracy import shaped_study as study
from atlas.planner.accuracy.exchanges import EXCHANGES, SWAPS
from atlas.planner.accuracy.shaped import table, verdict
from atlas.planner.accuracy.shaped_study import Case
from atlas.planner.accuracy.timed import STEPS, timed
from atlas.planner.accuracy.wire import Wire
from atlas.site.shaped import findings, shaped_section
from atlas.taxonomy import find_root

MB = 1_000_000


# --- the wire


def test_a_full_frame_has_66_bytes_of_headers() -> None:
    assert (wire.FRAME, wire.PAYLOAD, wire.ACKNOWLEDGEMENT) == (1514, 1448, 66)
    assert LINK.sent(1448, 0) == 1514


def test_one_acknowledgement_answers_frames_that_came_together() -> None:
    assert LINK.together == 8
    assert LINK.sent(0, 8 * 1448) == 66
    assert LINK.beta(True) == LINK.beta(False) + 66 / 8 / 1448 * 8 / 100e6


@pytest.mark.parametrize("rate", study.RATES)
def test_frames_that_go_together_fit_into_the_bucket(rate: int) -> None:
    assert Wire(rate).together * wire.FRAME <= Wire(rate).burst
    assert Wire(rate).credit == pytest.approx(wire.BURST_SECONDS)
    assert Wire(rate).burst > study.SMALL


def test_a_rate_whose_bucket_holds_no_frame_is_refused() -> None:
    with pytest.raises(ValueError, match=r"9000000 bit/s: expected at least 12\.1"):
        Wire(9_000_000)


def test_the_commands_shape_the_way_out_of_a_node() -> None:
    said = [" ".join(command) for command in LINK.plug(1, "/proc/7/fd/8")]
    ends = "ip link add eth0 mtu 1500 type veth peer name port1 mtu 1500"
    assert f"{ends} netns /proc/7/fd/8" in said
    assert "ip address add 10.0.0.2/24 dev eth0" in said
    shaped = "tc qdisc add dev eth0 root tbf rate 100000000bit burst 12500b"
    assert any(line.startswith(shaped) for line in said)


# --- what is expected


def test_every_exchange_can_be_made() -> None:
    assert set(STEPS) == {*EXCHANGES, *SWAPS}


@pytest.mark.parametrize("name", EXCHANGES)
@pytest.mark.parametrize("p", study.NODES)
def test_nothing_is_received_that_was_not_sent(name: str, p: int) -> None:
    e = EXCHANGES[name]
    sent = sum(e.sent(p, r) for r in range(p))
    assert sent == pytest.approx(sum(e.received(p, r) for r in range(p)))


@pytest.mark.parametrize("name", EXCHANGES)
@pytest.mark.parametrize("p", study.NODES)
def test_no_exchange_is_quicker_than_its_busiest_node(name: str, p: int) -> None:
    e = EXCHANGES[name]
    busiest = max(e.wire_bytes(p, 4 * MB, LINK)) * 8 / LINK.rate
    credit = e.links(p) * LINK.credit
    assert e.predict(p, 4 * MB, LINK, 0.0) >= busiest - credit - 1e-9


@pytest.mark.parametrize("name", [*EXCHANGES, *SWAPS])
@pytest.mark.parametrize("p", study.NODES)
def test_taking_turns_is_never_quicker(name: str, p: int) -> None:
    e = {**EXCHANGES, **SWAPS}[name]
    turns = e.in_turns(p, 4 * MB, LINK, 0.0)
    # Nobody acknowledges while sending, so as much as that may be saved.
    assert turns is None or turns >= 0.99 * e.predict(p, 4 * MB, LINK, 0.0)


def test_an_all_reduce_is_predicted_by_the_oracle_and_the_declared_rate() -> None:
    said = EXCHANGES["all_reduce"].predict(4, 4 * MB, LINK, 0.006)
    on_wire = 1.5 * 4 * MB * (1514 + 66 / 8) / 1448
    assert said == pytest.approx(0.006 + on_wire * 8 / 100e6 - 0.001)


def test_the_root_of_gloos_tree_shares_its_link() -> None:
    assert [exchanges.children(4, r) for r in range(4)] == [2, 1, 0, 0]
    assert sum(exchanges.children(8, r) for r in range(8)) == 7
    link = exchanges.Link(0.0, 1.0)
    assert exchanges.shared_tree_seconds(2, 5.0, link) == 5.0
    assert exchanges.shared_tree_seconds(4, 5.0, link) == 15.0
    assert exchanges.tree_seconds(4, 5.0, link) == 10.0


def test_an_exchange_lasts_from_the_last_entry_to_the_last_exit() -> None:
    first, second = [(0.0, 5.0), (10.0, 12.0)], [(1.0, 4.0), (9.0, 13.0)]
    assert study.lasted([first, second]) == [4.0, 3.0]


def row(exchange: str = "all_reduce", factor: float = 1.0, p: int = 2) -> Any:
    """A row that took so many times what was said."""
    case = Case(exchange, p, LINK, (MB,))
    e = study.ALL[exchange]
    took = e.predict(p, MB, LINK, 0.001) * factor
    wires = e.wire_bytes(p, MB, LINK)
    return study.row(case, MB, [took, took, took], 0.001, wires)


def test_the_summary_counts_failures_too() -> None:
    rows = [row(factor=f) for f in (1.0, 1.25, 2.0)] + [row("ring", 2.0)]
    found = study.summary(rows)
    assert found["judged"]["rows"] == 3
    assert found["judged"]["median"] == pytest.approx(0.2, abs=1e-4)
    assert found["judged"]["worst"] == pytest.approx(0.5, abs=1e-4)
    assert found["judged"]["accuracy"] == pytest.approx((1 + 0.8 + 0.5) / 3, abs=1e-4)
    assert found["judged"]["wire_worst"] < 1e-5
    assert found["ours"]["turns"] == 1
    assert "not held" in verdict(found["judged"], 0.05)
    assert verdict(found["judged"], 0.2).endswith("held")


def test_a_reduce_scatter_is_an_all_reduce_and_said_to_be() -> None:
    found = row("reduce_scatter", p=4)
    assert found["payload"] == 2 * found["ideal"]
    assert found["error"] == 0
    assert found["named_error"] == pytest.approx(-0.5, abs=0.02)


def test_the_table_tells_who_took_turns() -> None:
    from rich.console import Console

    console = Console(width=120)
    with console.capture() as said:
        console.print(table([row("all_to_all"), row("all_to_all", 2.0)]))
    lines = said.get().splitlines()
    assert [line.rstrip().endswith("took turns") for line in lines] == [0, 0, 1]


def test_a_whole_study_takes_about_ten_minutes() -> None:
    cases = [*study.cases(), *study.swaps()]
    assert 300 < sum(case.seconds for case in cases) < 660


# --- the command line


def command(*arguments: str, env: dict[str, str] | None = None) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "atlas.planner.accuracy.shaped", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **(env or {})},
    )


def test_an_unknown_exchange_is_told_in_one_line() -> None:
    done = command("--only", "alltoall")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith('no exchange "alltoall": expected one of send, ')
    assert len(done.stderr.splitlines()) == 1


def test_a_machine_without_tc_is_told_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "ip").symlink_to("/bin/true")
    done = command("--quick", env={"PATH": str(tmp_path)})
    assert done.returncode == 1
    expected = "no `tc` here: install iproute2 (apt-get install iproute2)\n"
    assert done.stderr == expected


def test_a_kernel_that_refuses_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tool in ("ip", "tc"):
        script = tmp_path / tool
        script.write_text("#!/bin/sh\necho 'Error: not in this kernel.' >&2\nexit 2\n")
        script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = nodes.missing()
    assert found is not None
    assert "not in this kernel" in found or "not permitted" in found
    assert len(found.splitlines()) == 1


# --- for real


@pytest.fixture(scope="module")
def permitted() -> None:
    """Only where the machine lets us have networks of our own."""
    if lacking := nodes.missing():
        pytest.skip(lacking)


def interfaces() -> list[str]:
    """Of the machine's own network."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return [line.partition(":")[0].strip() for line in lines]


@pytest.mark.usefixtures("permitted")
def test_a_megabyte_crosses_the_wire_in_its_time() -> None:
    seen = launch(timed, 2, LINK, "all_reduce", [(1024, 5), (MB, 3)], 20.0, timeout=30)
    small, judged = zip(*seen, strict=True)
    took = study.lasted([node["times"] for node in judged])
    e = EXCHANGES["all_reduce"]
    for node, said in zip(judged, e.wire_bytes(2, MB, LINK), strict=True):
        # The payload cannot be less; headers and notices are told to half a percent.
        assert MB * 1514 / 1448 <= node["wire"] <= 1.02 * MB * 1514 / 1448
        assert node["wire"] == pytest.approx(said, rel=0.005)
        assert node["lost"] == 0
    wires = max(node["wire"] for node in judged)
    assert min(took) >= (wires - LINK.burst) * 8 / LINK.rate
    assert min(study.lasted([node["times"] for node in small])) < min(took)


def ready(folder: Path) -> tuple[list[int], set[str]]:
    """The processes of two nodes and their networks, as soon as they are at work."""
    places = [folder / f"ready.{r}" for r in range(2)]
    assert wait_until(lambda: all(p.exists() for p in places), 60), "no nodes"
    told = [json.loads(p.read_text()) for p in places]
    own = {name for _, names in told for name in names}
    assert len(own) == 3  # of two nodes and of the switch
    assert own <= networks()
    return [pid for pid, _ in told], own


def gone(pids: list[int], own: set[str]) -> bool:
    """Whether the processes have ended and no one has their networks any more."""
    ended = wait_until(lambda: not any(map(psutil.pid_exists, pids)), 5)
    return ended and wait_until(lambda: not own & networks(), 5)


@pytest.mark.usefixtures("permitted")
@pytest.mark.parametrize("killed", [False, True], ids=["in order", "killed"])
def test_nothing_is_left_of_nodes_that_end(killed: bool, tmp_path: Path) -> None:
    before = interfaces()
    with ThreadPoolExecutor() as threads:
        run = threads.submit(launch, exchanging, 2, str(tmp_path), timeout=60)
        pids, own = ready(tmp_path)
        if killed:
            os.kill(pids[1], signal.SIGKILL)
            with pytest.raises(LaunchError, match=r"^rank 1 was killed by SIGKILL"):
                run.result(timeout=20)
        else:
            (tmp_path / "enough").touch()
            assert run.result(timeout=20) == [None, None]
    assert gone(pids, own)
    assert interfaces() == before


@pytest.mark.usefixtures("permitted")
def test_nothing_is_left_when_the_launcher_is_killed(tmp_path: Path) -> None:
    before = interfaces()
    program = "import sys, wired; wired.launch(wired.exchanging, 2, sys.argv[1])"
    path = os.pathsep.join([str(find_root()), str(Path(wired.__file__).parent)])
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        # Spawned ranks import no more than they need.
        env={**os.environ, "PYTHONPATH": path, "ATLAS_SPAWN": "1"},
    ) as launcher:
        try:
            pids, own = ready(tmp_path)
        finally:
            launcher.kill()
    assert gone(pids, own)
    assert interfaces() == before


# --- the record and the page


def kept() -> Any:
    return json.loads((find_root() / study.PLACE).read_text())


def test_the_kept_study_is_whole_and_its_predictions_are_todays() -> None:
    found = kept()
    said = [
        (c.exchange, c.nodes, c.wire.rate, n) for c in study.cases() for n in c.sizes
    ]
    keys = ("exchange", "nodes", "rate", "bytes")
    assert [tuple(r[k] for k in keys) for r in found["rows"]] == said
    for part in ("rows", "swaps"):
        for r in found[part]:
            now = study.expected(r, study.ALL[r["exchange"]], Wire(r["rate"]))
            assert {k: r[k] for k in now} == now
            assert r["lost"] == 0
    assert found["summary"] == study.summary(found["rows"])
    assert found["given"] == json.loads(json.dumps(study.given()))


def test_the_promise_is_kept() -> None:
    assert kept()["summary"]["judged"]["median"] <= study.GOAL


def test_the_section_shows_every_row_of_the_record() -> None:
    found = kept()
    text = shaped_section(found)
    assert text.count("<tr>") == len(found["rows"]) + len(study.NODES)
    assert text.count("<circle") + text.count("<rect") == len(found["rows"])
    assert f"{found['summary']['judged']['median']:.1%}" in text
    for p in study.NODES:
        assert f"### {p} nodes" in text
    for e in EXCHANGES.values():
        assert e.says in text.replace("&#45;", "-")


def test_the_section_says_when_the_promise_is_broken() -> None:
    found = kept()
    found["summary"]["judged"]["median"] = 0.06
    assert '<span class="badge bad">not held</span>' in shaped_section(found)


def test_the_findings_follow_the_record() -> None:
    found = kept()
    text = "\n".join(findings(found))
    assert "gloo's reduce&#45;scatter on 4 nodes is an all&#45;reduce" in text
    assert "2 times the formula's bytes" in text
    none = [{k: v for k, v in r.items() if k != "turns"} for r in found["rows"]]
    assert "It is seen in" not in "\n".join(findings({**found, "rows": none}))
