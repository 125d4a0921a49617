"""Runs a GGUF file in a given build of llama.cpp: token ids in, greedy ids and seconds out.

    python benchmarks/peers/llama_cpp.py run --build PREFIX --gguf FILE --prompt IDS.json --new 64 --json OUT.json

PREFIX is a build tree or an install tree of llama.cpp. A small driver is compiled against it once and kept in the
user's cache directory; `build` does only that. The driver is a child: limits on this process hold for it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

DRIVER = Path(__file__).with_name("llama_driver.cc")


class PeerError(Exception):
    """What is wrong, and what to do, in one line."""


def find_headers(build: Path) -> list[Path]:
    """The include directories of a build tree, which names its sources, or of an install tree. Raises PeerError."""
    cache = build / "CMakeCache.txt"
    directories = [build / "include"]
    if cache.is_file():
        source = re.search(r"^CMAKE_HOME_DIRECTORY:\w+=(.+)$", cache.read_text(), re.MULTILINE)
        root = Path(source[1]) if source else build
        directories = [root / "include", root / "ggml" / "include"]
    if not (directories[0] / "llama.h").is_file():
        raise PeerError(
            f"{build}: no llama.h in {directories[0]}; give the build tree or the install prefix of llama.cpp"
        )
    return directories


def find_libraries(build: Path) -> Path:
    """The directory of libllama. Raises PeerError."""
    for name in ("bin", "lib", "lib64"):
        if (build / name / "libllama.so").exists():
            return build / name
    raise PeerError(
        f"{build}: no libllama.so in bin or lib; build llama.cpp with -DBUILD_SHARED_LIBS=ON"
    )


def build_driver(build: Path) -> Path:
    """The compiled driver for that llama.cpp, compiled if there is none yet. Raises PeerError."""
    build = build.resolve()
    headers, libraries = find_headers(build), find_libraries(build)
    library = libraries / "libllama.so"
    key = hashlib.sha256(DRIVER.read_bytes() + str(library.resolve()).encode())
    key.update(str(library.stat().st_mtime_ns).encode())
    driver = _cache_directory() / f"llama-driver-{key.hexdigest()[:16]}"
    if driver.exists():
        return driver
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        raise PeerError("no C++ compiler; install one, or name it in CXX")
    driver.parent.mkdir(parents=True, exist_ok=True)
    part = driver.with_suffix(f".{os.getpid()}")
    command = [compiler, "-O2", "-std=c++17", str(DRIVER), "-o", str(part)]
    command += [f"-I{directory}" for directory in headers]
    command += [f"-L{libraries}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{libraries}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        raise PeerError(
            f"the driver does not compile against {build}: {(errors or ['?'])[0]};"
            " a llama.cpp with ggml 0.25 is expected"
        )
    part.replace(driver)
    return driver


def _cache_directory() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "sparseflow" / "peers"


def run(options: argparse.Namespace) -> dict[str, Any]:
    """What the driver measured: load_seconds (context included), prefill_seconds (the prompt in one batch), and for
    each new token the seconds of the step that takes it in. Raises PeerError.
    """
    driver = build_driver(options.build)
    prompt = _read_prompt(options.prompt)
    if not options.gguf.is_file():
        raise PeerError(f"{options.gguf}: no such file; benchmarks/README.md says how to write one")
    words = [options.gguf, options.load, options.repack, options.threads, options.ubatch]
    done = subprocess.run(
        [str(word) for word in [driver, *words, options.warm, options.new]],
        input=" ".join(map(str, prompt)),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        end = f"signal {-done.returncode}" if done.returncode < 0 else "an error"
        raise PeerError(
            f"llama.cpp ended with {end}: {lines[-1] if lines else 'no message; out of memory?'}"
        )
    return {"prompt_tokens": len(prompt), **read_facts(done.stdout)}


def read_facts(output: str) -> dict[str, Any]:
    """The driver's lines as a document; `warm_ids` and `warm_seconds` are empty unless they were asked for."""
    facts: dict[str, Any] = {"ids": [], "token_seconds": [], "warm_ids": [], "warm_seconds": []}
    for line in output.splitlines():
        label, *words = line.split(" ")
        if label == "version":
            facts["version"] = " ".join(words)
        elif label in ("load", "prefill"):
            facts[f"{label}_seconds"] = float(words[0])
        elif label in ("token", "warm"):
            facts["ids" if label == "token" else "warm_ids"].append(int(words[0]))
            facts[f"{label}_seconds"].append(float(words[1]))
    return facts


def _read_prompt(path: Path) -> list[int]:
    """Token ids: a list, or a document with a list under `ids`."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as problem:
        raise PeerError(f"{path}: cannot be read as JSON: {problem}") from None
    ids = document.get("ids") if isinstance(document, dict) else document
    if not isinstance(ids, list) or not ids or not all(type(i) is int for i in ids):
        raise PeerError(f"{path}: holds no list of token ids")
    return ids


def parse_options(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    build_only = commands.add_parser("build", help="compile the driver, print where it is")
    one = commands.add_parser("run", help="one prompt, one greedy generation")
    for command in (build_only, one):
        command.add_argument("--build", type=Path, required=True, metavar="PREFIX")
    one.add_argument("--gguf", type=Path, required=True)
    one.add_argument("--prompt", type=Path, required=True, help="JSON: a list of token ids")
    one.add_argument("--new", type=int, default=64, help="tokens to generate")
    one.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    one.add_argument("--load", choices=["mmap", "none", "dio"], default="mmap")
    one.add_argument("--repack", choices=["0", "1"], default="0", help="repack weights at load")
    one.add_argument("--ubatch", type=int, default=512, help="tokens computed at once")
    one.add_argument("--warm", type=int, default=0, help="tokens generated before, not counted")
    one.add_argument("--json", type=Path, required=True)
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Exit code 1, with one line on stderr, if it did not work."""
    options = parse_options(arguments)
    try:
        if options.command == "build":
            print(build_driver(options.build))
        else:
            options.json.write_text(json.dumps(run(options), indent=1) + "\n")
    except PeerError as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
