"""The calculator in a real browser: choices, formulas, permalinks, a file, a phone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atlas.planner import answers, presets
from atlas.planner.units import seconds
from atlas.site import calculator

pytestmark = pytest.mark.browser

AXE = Path(__file__).resolve().parent.parent / "vendor" / "axe-core" / "axe.min.js"
HERE = "calculator/"
LIGHT = 900_000
CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "vocab_size": 128256,
}


def step(page: Any) -> str:
    """The time of a step that the page shows."""
    text: str = page.locator("#calc-out .figures .number").first.inner_text()
    return text


def expected(**choice: Any) -> str:
    made = {**calculator.FIRST, **choice}
    model = presets.model(made["model"])
    cluster = presets.cluster(made["cluster"])
    return seconds(answers.ask(model, cluster, made).seconds)


def test_the_page_begins_with_the_example_and_follows_its_sliders(
    watched: Callable[..., Any],
) -> None:
    page = watched(HERE).page
    assert step(page) == expected()
    assert page.locator("#calc-example").is_hidden()
    page.locator('input[name="tensor"]').focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator('[data-axis="tensor"] output').inner_text() == "4"
    assert step(page) == expected(tensor=4)
    assert "tensor=4" in page.url


def test_a_permalink_opens_what_was_shared(watched: Callable[..., Any]) -> None:
    page = watched(
        f"{HERE}?model=vgg-16&cluster=a100-80g&gpus=16&batch=256&filter=4"
    ).page
    assert "Filter(4)" in page.locator("#calc-out .strategy").inner_text()
    assert page.locator('[data-axis="tensor"]').is_hidden()
    assert page.locator('select[name="micro"]').input_value() == "64"  # all of a share
    page.locator('select[name="replicas"]').select_option("zero1")
    assert "Zero(1, 4) * Filter(4)" in page.locator("#calc-out .strategy").inner_text()
    page.go_back()
    assert "Data(4) * Filter(4)" in page.locator("#calc-out .strategy").inner_text()


def test_a_number_opens_its_formula_and_escape_closes_it(
    watched: Callable[..., Any],
) -> None:
    page = watched(HERE).page
    for button in page.locator("#calc-out button.number").all():
        button.click()
        panel = page.locator("#calc-why")
        panel.locator(".katex").first.wait_for()  # fetched with the first formula
        assert not panel.locator(".katex-error").count()
        assert "undefined" not in panel.inner_text()
        page.keyboard.press("Escape")
        assert panel.is_hidden()
        assert button.evaluate("b => b === document.activeElement")


def test_what_cannot_be_is_refused_in_one_line(watched: Callable[..., Any]) -> None:
    page = watched(HERE).page
    page.locator('input[name="batch"]').fill("1000")
    page.locator('input[name="batch"]').press("Tab")
    refused = page.locator("#calc-out .refused")
    assert refused.inner_text().startswith("batch 1000 for 16 replicas: expected")
    page.locator('input[name="batch"]').fill("1024")
    page.locator('input[name="batch"]').press("Tab")
    assert refused.count() == 0


def test_a_config_is_read_here_and_sent_nowhere(
    watched: Callable[..., Any], tmp_path: Path
) -> None:
    page = watched(f"{HERE}?model=gpt2-medium&cluster=a100-80g&gpus=8&batch=64").page
    sent: list[str] = []
    page.on("request", lambda r: sent.append(r.url) if r.method != "GET" else None)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    page.locator('input[name="config"]').set_input_files(str(path))
    page.get_by_text("llama-2048 (config.json)").wait_for(state="attached")
    page.locator("#calc-out summary", has_text="Megatron").click()
    flags = page.locator("#calc-out details", has_text="Megatron").inner_text()
    assert "--num-layers 16" in flags
    assert "--hidden-size 2048" in flags
    path.write_text('{"model_type": "t5"}')
    page.locator('input[name="config"]').set_input_files(str(path))
    assert "model_type t5" in page.locator("#calc-out .refused").inner_text()
    assert not sent


def test_the_command_is_the_command_lines(watched: Callable[..., Any]) -> None:
    page = watched(HERE).page
    shown = page.locator("#calc-out .copyable code").first.inner_text()
    assert shown.startswith(calculator.command(calculator.example()))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_a_phone_and_can_be_read_by_everyone(
    scheme: str, watched: Callable[..., Any]
) -> None:
    phone = {"width": 390, "height": 844}
    page = watched(HERE, viewport=phone, color_scheme=scheme).page
    page.locator("#calc-out table.parts button.number").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.add_script_tag(path=str(AXE))
    found = page.evaluate("axe.run(document.querySelector('article'))")
    wrong = [f"{v['id']}: {v['nodes'][0]['html']}" for v in found["violations"]]
    assert not wrong, "\n".join(wrong)


def test_without_scripts_there_is_an_example(watched: Callable[..., Any]) -> None:
    page = watched(HERE, java_script_enabled=False).page
    assert page.locator("#calc-form").is_hidden()
    assert (
        "atlas predict --model gpt3-175b" in page.locator("#calc-example").inner_text()
    )
    assert page.locator("#calc-example table").count() == 2


def test_the_page_stays_light(weights: Callable[..., dict[str, int]]) -> None:
    assert weights([HERE])[HERE] <= LIGHT


def test_the_page_works_from_a_file(watched: Callable[..., Any], offline: Path) -> None:
    home = f"file://{offline}/"
    page = watched("calculator.html", home=home).page
    assert step(page) == expected()
    page.locator('select[name="recompute"]').select_option("full")
    assert step(page) == expected(recompute="full")


def test_how_the_oracle_computes_is_shown(watched: Callable[..., Any]) -> None:
    page = watched("oracle/").page
    assert page.locator(".arithmatex .katex").count() > 15
    assert not page.locator(".katex-error").count()
    for anchor in ("analytic-oracle", "alpha-beta-cost-model", "ps-sizing"):
        assert page.locator(f"#{anchor}").count() == 1
