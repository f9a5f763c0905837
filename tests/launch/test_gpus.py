"""How many GPUs are here, by device files and CUDA_VISIBLE_DEVICES."""

from pathlib import Path

import pytest

from atlas.gpus import visible_gpus


def machine(folder: Path, *files: str) -> Path:
    for name in files:
        (folder / name).touch()
    return folder


def test_device_files_are_counted_whatever_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus(machine(tmp_path, "null", "nvidiactl", "nvidia-uvm")) == 0
    assert visible_gpus(machine(tmp_path, "nvidia4", "nvidia5", "nvidia11")) == 3


def test_windows_has_one_file_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus(machine(tmp_path, "dxg")) == 1


@pytest.mark.parametrize(
    ("chosen", "count"),
    [
        ("", 0),
        ("-1", 0),
        ("NoDevFiles", 0),
        ("0", 1),
        ("3, 1", 2),
        ("0,-1,1", 1),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", 1),
        ("0,1,2,3,4,5,6,7", 4),
    ],
)
def test_the_variable_is_read_as_cuda_reads_it(
    chosen: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    here = machine(tmp_path, *(f"nvidia{i}" for i in range(4)))
    assert visible_gpus(here) == count
