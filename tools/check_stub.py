"""Compares src/sparseflow/native/_ext.pyi with the built extension: every name, every parameter, every default.

    python tools/check_stub.py

The stub carries NumPy types and prose that nanobind's generator does not write, so it is not generated; this check
keeps it fresh. Exit code 1 names what differs.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import ModuleType

from nanobind.stubgen import StubGen

from sparseflow.native import _ext

STUB = Path(__file__).parent.parent / "src" / "sparseflow" / "native" / "_ext.pyi"


def main() -> int:
    built = built_signatures(_ext)
    written = signatures(STUB.read_text(encoding="utf-8"))
    differences = [f"only in the stub: {name}" for name in sorted(written.keys() - built.keys())]
    differences += [f"not in the stub: {name}" for name in sorted(built.keys() - written.keys())]
    for name in sorted(built.keys() & written.keys()):
        if built[name] != written[name]:
            differences.append(f"{name}: stub {written[name]}, extension {built[name]}")
    print("\n".join(differences) or f"_ext.pyi is fresh: {len(built)} names")
    return 1 if differences else 0


def built_signatures(module: ModuleType) -> dict[str, str]:
    """signatures() of a built module; a submodule stands in the stub as a class of static methods."""
    generator = StubGen(module=module)
    generator.put(module)
    found = signatures(generator.get())
    for name, member in vars(module).items():
        if isinstance(member, ModuleType):
            found[name] = "class"
            found |= {f"{name}.{inner}": text for inner, text in built_signatures(member).items()}
    return found


def signatures(source: str) -> dict[str, str]:
    """Dotted name -> parameters with defaults, for every function, method, property and class of a stub."""
    found: dict[str, str] = {}
    for node in ast.parse(source).body:
        _collect(node, "", found)
    return found


def _collect(node: ast.stmt, prefix: str, found: dict[str, str]) -> None:
    if isinstance(node, ast.ClassDef):
        found[prefix + node.name] = "class"
        for child in node.body:
            _collect(child, f"{prefix}{node.name}.", found)
    elif isinstance(node, ast.FunctionDef):
        arguments = node.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            argument.annotation = None
        names = ast.unparse(arguments).replace("/, ", "").replace(", /", "")
        found[prefix + node.name] = f"({names})"


if __name__ == "__main__":
    sys.exit(main())
