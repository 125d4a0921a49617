"""Checks the object files of the kernels: one strong symbol each, the table, and no weak ones; and the encoding of the
dot product where there are two.

    python tools/check_isa_objects.py [--compiler g++]

An inline function that was compiled for AVX-512 is a weak symbol, and the linker may keep that copy for the whole
program, which then dies on an older CPU. Optimisation hides such symbols by inlining them, so the files are compiled
here at -O0, with the instruction-set flags that CMakeLists.txt gives them. Exits with 1 if a file breaks the rule.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
KERNELS = ROOT / "native" / "src" / "kernels"
DOT_PREFIXES = {"avx2_vnni": "c4", "avx2_vnni_evex": "62", "avx512_vnni": "62"}
"""First byte of vpdpbusd by folder: c4 is VEX, 62 is EVEX."""


def isa_flags(table: Path) -> list[str]:
    """The options of set_source_files_properties for this file, the warnings left out."""
    text = (ROOT / "CMakeLists.txt").read_text()
    name = re.escape(str(table.relative_to(ROOT)))
    own = re.search(rf'set_source_files_properties\({name}[^"]*"([^"]*)"', text)
    common = re.search(r"set\(SPARSEFLOW_ISA_FLAGS ([^)]*)\)", text)
    if own is None or common is None:
        raise SystemExit(f"CMakeLists.txt gives {table} no compile options")
    flags = own[1].replace("${SPARSEFLOW_ISA_FLAGS}", ";".join(common[1].split())).split(";")
    return [flag for flag in flags if not flag.startswith("-W")]


def compile_table(table: Path, compiler: str, target: Path) -> None:
    """Compiles one file as CMakeLists.txt does, but at -O0."""
    command = [compiler, "-std=c++20", "-O0", "-ffp-contract=off", "-fno-math-errno", "-fPIC"]
    command += [*isa_flags(table), f"-I{ROOT / 'native/include'}", f"-I{ROOT / 'native/src'}"]
    command += ["-isystem", str(ROOT / "native/third_party")]
    subprocess.run([*command, "-c", str(table), "-o", str(target)], check=True)


def global_symbols(target: Path) -> list[tuple[str, str]]:
    """(kind as nm prints it, name) of every symbol that the linker could share, plain references left out."""
    listing = subprocess.run(
        ["nm", "--extern-only", "--demangle", str(target)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    lines = [re.match(r"(?:[0-9a-f]+)?\s+([A-Za-z]) (.*)", line) for line in listing.splitlines()]
    return [(line[1], line[2]) for line in lines if line is not None and line[1] != "U"]


def problems(table: Path, compiler: str) -> list[str]:
    """What is wrong with one file, in words."""
    with tempfile.TemporaryDirectory() as directory:
        target = Path(directory) / "table.o"
        compile_table(table, compiler, target)
        return symbol_problems(table, target) + encoding_problems(table, target)


def encoding_problems(table: Path, target: Path) -> list[str]:
    """A CPU with AVX-VNNI alone knows vpdpbusd only with a VEX prefix, and no zmm register."""
    expected = DOT_PREFIXES.get(table.parent.name)
    listing = subprocess.run(
        ["objdump", "--disassemble", str(target)], check=True, capture_output=True, text=True
    ).stdout
    dots = re.findall(r":\t([0-9a-f]{2}) [0-9a-f ]+\t(?:{vex} )?vpdpbusd", listing)
    if expected is None:
        return [f"{table.parent.name}: has a dot product that it may not use"] if dots else []
    found = []
    if set(dots) != {expected}:
        found.append(f"{table.parent.name}: vpdpbusd begins with {set(dots)}, not {expected}")
    if expected == "c4" and "%zmm" in listing:
        found.append(f"{table.parent.name}: uses a zmm register")
    return found


def symbol_problems(table: Path, target: Path) -> list[str]:
    """Symbols of an object that the linker could share."""
    symbols = global_symbols(target)
    weak = [name for kind, name in symbols if kind in "wWvVu"]
    strong = [name for kind, name in symbols if kind not in "wWvVu"]
    found = [f"{table.parent.name}: weak symbol {name}" for name in weak]
    if len(strong) != 1 or not strong[0].endswith("Kernels"):
        found.append(f"{table.parent.name}: expected the table as the only symbol, found {strong}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--compiler", default="g++")
    compiler = parser.parse_args().compiler
    tables = sorted(KERNELS.glob("*/table.cc"))
    if platform.machine() not in {"x86_64", "AMD64"}:
        tables = [table for table in tables if table.parent.name == "portable"]
    found = [problem for table in tables for problem in problems(table, compiler)]
    for problem in found:
        sys.stderr.write(problem + "\n")
    sys.stdout.write(f"{len(tables)} kernel objects checked, {len(found)} problems\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
