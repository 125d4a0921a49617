"""Runs the command behind each claim of docs/acceptance.md and prints what it measured beside the threshold.

    python tools/acceptance.py            # all but the slow ones
    python tools/acceptance.py ladder qemu

Exit code 1 if a claim does not hold.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SPARSEFLOW = [sys.executable, "-m", "sparseflow.cli.main"]
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]


@dataclass(frozen=True, slots=True)
class Result:
    """What a check found. `measured` and `threshold` are for people."""

    measured: str
    threshold: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Done:
    """A finished command."""

    code: int
    output: str
    seconds: float


def run(command: list[str], directory: Path = ROOT) -> Done:
    """Runs a command and shows its last lines, so that the log says what was measured."""
    print("$", " ".join(command).replace(sys.executable, "python"), flush=True)
    start = time.monotonic()
    done = subprocess.run(
        command,
        cwd=directory,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    print("\n".join(done.stdout.splitlines()[-6:]), flush=True)
    return Done(done.returncode, done.stdout, time.monotonic() - start)


def pytest_passes(*arguments: str, limit_seconds: float | None = None) -> Result:
    """The tests pass, within a time where one is promised."""
    done = run([*PYTEST, *arguments])
    last = done.output.strip().splitlines()[-1].strip("= ")
    is_quick = limit_seconds is None or done.seconds <= limit_seconds
    threshold = "all pass" if limit_seconds is None else f"all pass in {limit_seconds:.0f} s"
    return Result(last, threshold, done.code == 0 and is_quick)


def json_of(*arguments: str, prefix: tuple[str, ...] = ()) -> tuple[int, dict[str, Any]]:
    """Exit code and report of a command that knows --json."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        done = run([*prefix, *SPARSEFLOW, *arguments, f"--json={report}"])
        document = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
        return done.code, document


def check_install() -> Result:
    with tempfile.TemporaryDirectory() as directory:
        start = time.monotonic()
        run([sys.executable, "-m", "venv", f"{directory}/venv"])
        installed = run([f"{directory}/venv/bin/pip", "install", "-q", "."])
        home = {**os.environ, "SPARSEFLOW_HOME": directory}
        text = subprocess.run(
            [f"{directory}/venv/bin/sparseflow", "run", "demo", "Once upon a time"],
            env=home, capture_output=True, text=True, check=False,
        )  # fmt: skip
        print(text.stdout)
        seconds = time.monotonic() - start
    words = len(re.findall(r"[a-z]{2,}", text.stdout))
    holds = installed.code == 0 and text.returncode == 0 and words >= 50
    return Result(f"{words} words after {seconds:.0f} s", "readable text", holds)


def check_pytest() -> Result:
    return pytest_passes(limit_seconds=300)


def check_golden() -> Result:
    return pytest_passes("tests/golden", "-rP")


def check_reference() -> Result:
    return pytest_passes("-m", "reference")


def check_perplexity() -> Result:
    recipes = ("bf16", "int8", "int4", "int4-small")
    _, report = json_of("eval", "perplexity", *(f"demo:{recipe}" for recipe in recipes))
    lines = dict(zip(recipes, report["results"], strict=True))
    measured = ", ".join(
        f"{recipe} {line['perplexity']:.4f} ({line['ratio']:.5f})" for recipe, line in lines.items()
    )
    is_close = abs(lines["int8"]["ratio"] - 1) <= 0.01
    return Result(measured, "int8 within 1 % of bf16", is_close)


def check_ladder() -> Result:
    code, report = json_of("verify", "demo", "--ladder", "--quiet")
    return Result(report.get("verdict", "no report"), "one hash, exit code 0", code == 0)


def check_wrong_kernel() -> Result:
    command = ["tests/identity/wrong_kernel.py", "verify", "demo", "--ladder", "--quick", "--quiet"]
    done = run([sys.executable, *command])
    line = done.output.strip().splitlines()[-1]
    return Result(
        f"exit {done.code}, {line}", "exit 1, names the step", done.code == 1 and "step" in line
    )


def check_qemu() -> Result:
    arguments = ("verify", "demo", "--ladder", "--quick", "--quiet")
    hashes: dict[str, set[str]] = {}
    for cpu in ("", "Nehalem", "Haswell"):
        prefix = ("qemu-x86_64", "-cpu", cpu) if cpu else ()
        code, report = json_of(*arguments, prefix=prefix)
        rows = report.get("rows", [])
        hashes[cpu or "here"] = (
            {r["sha256"] for r in rows if r["sha256"]} if code == 0 else {f"exit {code}"}
        )
    measured = ", ".join(
        f"{cpu} {' '.join(h[:12] for h in found)}" for cpu, found in hashes.items()
    )
    distinct = set().union(*hashes.values())
    return Result(measured, "no SIGILL, the same hash", len(distinct) == 1)


def check_inspect() -> Result:
    with tempfile.TemporaryDirectory() as directory:
        run(
            [
                sys.executable,
                "tools/make_synthetic_checkpoint.py",
                "--names",
                "qwen3.6",
                "--tiny",
                f"{directory}/d",
            ]
        )
        done = run([*SPARSEFLOW, "inspect", f"{directory}/d"])
        prepared = run([*SPARSEFLOW, "prepare", f"{directory}/d", "--output", f"{directory}/c"])
    (line,) = re.findall(r"^.*classified.*$", done.output, flags=re.MULTILINE)
    names = re.findall(r"not carried: (\d+ \w+)", prepared.output)
    holds = line == "1045 tensors classified, 0 unknown" and len(names) >= 2
    return Result(
        f"{line}; not carried: {', '.join(names)}", "1045 classified, 0 unknown; both named", holds
    )


def check_expert_slices() -> Result:
    return pytest_passes("tests/unit/checkpoint", "tests/unit/cli")


def check_kill() -> Result:
    return pytest_passes("-m", "slow", "tests/regressions/test_prepare_killed.py", "-rP")


def check_soak() -> Result:
    done = run([sys.executable, "benchmarks/soak.py"])
    last = done.output.strip().splitlines()[-1]
    return Result(last, "10,000 steps, memory within 1 %", done.code == 0)


def check_pressure() -> Result:
    done = run([sys.executable, "benchmarks/pressure.py", "demo", "--take=128M", "--new=2000"])
    last = done.output.strip().splitlines()[-1]
    return Result(last, "shrinks, grows back, same hash, nobody killed", done.code == 0)


def check_malformed() -> Result:
    done = run([*PYTEST, "tests/malformed", "-rP"])
    found = re.search(r"(\d+ hostile files); at most ([\d.]+) MiB", done.output)
    measured = f"{found[1]} refused, at most {found[2]} MiB" if found else "no measurement"
    return Result(measured, "all refused, at most 64 MiB", done.code == 0 and found is not None)


def check_chain_decides() -> Result:
    return pytest_passes("tests/unit/tools/test_synthetic_chain.py")


def check_gguf() -> Result:
    return pytest_passes("tests/unit/benchmarks")


def check_faults() -> Result:
    return pytest_passes("tests/identity/test_faults.py")


def check_routes() -> Result:
    """Recorded routes lie in SPARSEFLOW_TEST_DATA, or beside the checkout."""
    shared = Path(os.environ.get("SPARSEFLOW_TEST_DATA", ROOT.parent / "shared"))
    routes = str(shared / "data" / "routes" / "routes_qwen36.npz")
    _, cold = json_of("replay", routes, "--capacity=13.3%", "--capacity=25%")
    _, warm = json_of("replay", routes, "--capacity=50%", "--heat-from-others")
    _, lru = json_of("replay", routes, "--capacity=13.3%", "--policy=lru")
    if not (cold and warm and lru):
        return Result(f"no routes in {shared}", "31.0, 19.3 and 7.5 %", False)
    rates = [row["miss_rate"] for row in cold["replays"] + warm["replays"]]
    counts = [session["misses"] for session in lru["replays"][0]["sessions"]]
    limits = (0.310, 0.193, 0.075)
    holds = all(rate <= limit for rate, limit in zip(rates, limits, strict=True))
    measured = ", ".join(f"{rate:.1%}" for rate in rates) + f"; LRU {counts}"
    is_reference = counts == [2601, 2908, 3089, 3551, 3681]
    return Result(
        measured, "at most 31.0, 19.3 and 7.5 %; LRU as published", holds and is_reference
    )


def check_one_pass() -> Result:
    return pytest_passes("tests/unit/engine/test_prefill.py")


def check_heat() -> Result:
    return pytest_passes("tests/unit/experts/test_heat.py")


def check_engines() -> Result:
    return pytest_passes("tests/contracts/test_read_engines.py")


def check_hub_resume() -> Result:
    return pytest_passes("-m", "slow", "tests/regressions/test_hub_resume.py", "-rP")


def check_counters() -> Result:
    code, document = json_of("bench", "demo:bf16", "--check-counters", "--prompt=256", "--new=8")
    differences = [each["difference"] for each in document.get("counters", [])]
    measured = f"at most {max(differences):.2%}" if differences else "no measurement"
    return Result(measured, "within 3 %", code == 0)


def check_floor() -> Result:
    """The demo's floor is accepted, one byte less is refused, with about the memory of a command that does nothing."""
    _, document = json_of("plan", "demo", "--machine=ram=8GiB")
    floor = document["recipes"][0]["floor"]["total_bytes"]
    words = [*SPARSEFLOW, "run", "demo", "a", "--quiet", "--max-new-tokens=1"]
    fits = run([*words, f"--ram={floor}"])
    refused = run([*words, f"--ram={floor - 1}"])
    holds = fits.code == 0 and refused.code == 15 and str(floor) in refused.output
    return Result(f"exit codes {fits.code} and {refused.code}", "0 and 15, with the sum", holds)


def check_plan() -> Result:
    """Qwen3.6-35B-A3B from headers, for three sizes of memory."""
    with tempfile.TemporaryDirectory() as directory:
        run(
            [
                sys.executable,
                "tools/make_synthetic_checkpoint.py",
                "--names=qwen3.6",
                "--headers-only",
                directory,
            ]
        )
        stores = []
        for ram in (8, 16, 32):
            machine = f"--machine=ram={ram}GiB,disk=1.9GB/s,memory=35GB/s"
            _, document = json_of("plan", directory, machine)
            rows = {row["recipe"]: row for row in document["recipes"]}
            stores.append((document["chosen"], rows[document["chosen"]]["store"]))
    expected = [("int4", "streaming"), ("int4", "streaming"), ("int4", "resident")]
    return Result(str(stores), "streams in 8 and 16 GiB, resident in 32", stores == expected)


CHECKS: dict[str, Callable[[], Result]] = {
    name.removeprefix("check_").replace("_", "-"): value
    for name, value in dict(globals()).items()
    if name.startswith("check_")
}
SLOW = ("install", "reference", "kill", "soak", "hub-resume")


def main(names: list[str]) -> int:
    chosen = names or [name for name in CHECKS if name not in SLOW]
    unknown = [name for name in chosen if name not in CHECKS]
    if unknown:
        print(f"unknown: {unknown[0]}; known: {', '.join(CHECKS)}")
        return 2
    if "qemu" in chosen and shutil.which("qemu-x86_64") is None:
        print("qemu-x86_64 is missing; install Debian's qemu-user")
        return 2
    results = {name: CHECKS[name]() for name in chosen}
    print("\n| claim | measured | threshold | holds |\n|---|---|---|---|")
    for name, result in results.items():
        verdict = "yes" if result.holds else "NO"
        print(f"| {name} | {result.measured} | {result.threshold} | {verdict} |")
    return 0 if all(result.holds for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
