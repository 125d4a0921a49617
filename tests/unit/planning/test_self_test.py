"""The self-test passes here, and a kernel that is wrong in one bit does not get through it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sparseflow.cli.main import main
from sparseflow.native import _ext
from sparseflow.planning import self_test as module
from sparseflow.planning.doctor import check_self_test
from sparseflow.planning.self_test import digest, find_differences, run_cases, self_test


@pytest.fixture(scope="module")
def portable() -> dict[str, bytes]:
    return run_cases(_ext.Runtime("portable", 1))


def test_every_instruction_set_of_this_cpu_passes() -> None:
    result = self_test()
    assert result.findings == ()
    assert result.isas == tuple(_ext.isa_names())
    assert check_self_test(result).verdict == "ok"


def test_bytes_do_not_depend_on_threads(portable: dict[str, bytes]) -> None:
    assert run_cases(_ext.Runtime("portable", 3)) == portable


def test_results_are_numbers_that_differ(portable: dict[str, bytes]) -> None:
    """A case whose output is constant or not finite would compare equal whatever the kernels do."""
    for name, result in portable.items():
        if len(result) % 4 == 0 and not name.startswith(("quantizer", "router", "attention f")):
            values = np.frombuffer(result, np.float32)
            assert np.isfinite(values).all(), name
            assert len(np.unique(values)) > len(values) // 10, name


@pytest.mark.parametrize("name", ["norm", "gated delta", "linear int4-g32-v1, 7 tokens"])
def test_one_wrong_bit_of_one_instruction_set_is_named(
    portable: dict[str, bytes], name: str
) -> None:
    wrong = bytearray(portable[name])
    wrong[17] ^= 1
    outputs = {"avx2": {**portable, name: bytes(wrong)}, "portable": portable}
    assert find_differences(outputs) == [f"avx2: {name} differs from portable"]


def test_wrong_bit_of_all_instruction_sets_alike_is_found_by_the_recorded_hash(
    portable: dict[str, bytes],
) -> None:
    wrong = {**portable, "norm": bytes(len(portable["norm"]))}
    (finding,) = find_differences({"avx2": wrong, "portable": wrong})
    assert finding == "portable: differs from what every machine must give"


def test_better_scales_of_a_quantizer_do_not_change_the_recorded_hash(
    portable: dict[str, bytes],
) -> None:
    names = [name for name in portable if name.startswith("quantizer")]
    assert names
    assert digest({**portable, **dict.fromkeys(names, b"")}) == digest(portable)


def test_a_wrong_kernel_fails_the_self_test_and_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    best = _ext.isa_names()[0]
    right = module._CASES["norm"]

    def wrong(runtime: _ext.Runtime) -> Sequence[NDArray[Any]]:
        (out,) = right(runtime)
        if runtime.isa == best:
            out.view(np.uint32)[0, 0] ^= 1
        return (out,)

    monkeypatch.setitem(module._CASES, "norm", wrong)
    (finding,) = self_test().findings
    assert finding.startswith(f"{best}: ")
    assert main(["doctor"]) == 1
    output = capsys.readouterr().out
    assert finding in output
    assert "1 fail" in output
