"""What tells that memory runs short, read from trees as both versions of control groups show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparseflow.host.pressure import read_pressure, read_stall

GIB, MIB = 1 << 30, 1 << 20
STALL = "some avg10=1.50 avg60=0.20 avg300=0.00 total=2500000\nfull avg10=0.75 avg60=0.10 avg300=0.00 total=1250000\n"
BASE = {
    "proc/meminfo": f"MemTotal: {16 * GIB // 1024} kB\nMemAvailable: {12 * GIB // 1024} kB\n",
    "proc/self/status": f"Name:\tpython\nRssAnon:\t {GIB // 1024} kB\nRssShmem:\t 4 kB\n",
    "proc/pressure/memory": STALL,
}


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in {**BASE, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return root


def test_every_limit_of_version_2_is_a_scope(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/slice"
    facts = read_pressure(
        _write(
            tmp_path,
            {
                "proc/self/cgroup": "0::/slice/job\n",
                "sys/fs/cgroup/cgroup.controllers": "memory\n",
                f"{group}/memory.max": f"{4 * GIB}\n",
                f"{group}/memory.current": f"{3 * GIB}\n",
                f"{group}/memory.stat": f"anon {2 * GIB}\ninactive_file {GIB // 2}\nactive_file {GIB // 4}\n",
                f"{group}/memory.events": "low 0\nhigh 0\nmax 17\noom 1\noom_kill 2\n",
                f"{group}/memory.pressure": STALL.replace("1.50", "9.00"),
                f"{group}/job/memory.max": "max\n",
            },
        )
    )
    machine, scope = facts.scopes
    assert (machine.name, machine.limit_bytes, machine.used_bytes) == ("machine", 16 * GIB, 4 * GIB)
    assert machine.stall is not None
    assert machine.stall.some_seconds == 2.5
    assert scope.name == str(tmp_path / group)
    assert (scope.limit_bytes, scope.used_bytes) == (4 * GIB, 3 * GIB - 3 * GIB // 4)
    assert (scope.failures, scope.oom_kills) == (17, 2)
    assert scope.stall is not None
    assert (scope.stall.some_avg10, scope.stall.full_avg10) == (9.0, 0.75)
    assert facts.own_bytes == GIB + 4096
    assert facts.available_bytes == scope.available_bytes == 4 * GIB - scope.used_bytes


def test_version_1_tells_failures_and_kills_and_no_stalls(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/job"
    facts = read_pressure(
        _write(
            tmp_path,
            {
                "proc/self/cgroup": "4:memory:/job\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                f"{group}/memory.limit_in_bytes": f"{2 * GIB}\n",
                f"{group}/memory.usage_in_bytes": f"{2 * GIB}\n",
                f"{group}/memory.stat": f"cache 1\ntotal_inactive_file {GIB}\ntotal_active_file 0\n",
                f"{group}/memory.failcnt": "5\n",
                f"{group}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
            },
        )
    )
    assert len(facts.scopes) == 2
    scope = facts.scopes[1]
    assert (scope.used_bytes, scope.failures, scope.oom_kills, scope.stall) == (GIB, 5, 1, None)


def test_a_limit_that_is_exceeded_leaves_nothing(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory"
    files = {
        "proc/self/cgroup": "4:memory:/\n",
        f"{group}/memory.limit_in_bytes": f"{GIB}\n",
        f"{group}/memory.usage_in_bytes": f"{GIB + MIB}\n",
    }
    assert read_pressure(_write(tmp_path, files)).available_bytes == 0


def test_without_control_groups_the_machine_is_the_only_scope(tmp_path: Path) -> None:
    assert [scope.name for scope in read_pressure(_write(tmp_path, {})).scopes] == ["machine"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "some\n",
        "some avg10=1 total=1\n",
        STALL.replace("=1.50", ""),
        STALL.replace("0.75", "x"),
    ],
)
def test_what_is_no_stall_information_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "memory"
    assert read_stall(path) is None
    path.write_text(text, encoding="ascii")
    assert read_stall(path) is None


def test_this_machine_tells(tmp_path: Path) -> None:
    facts = read_pressure()
    assert facts.own_bytes > 0
    assert all(scope.used_bytes > 0 for scope in facts.scopes)
    assert facts.available_bytes > 0
