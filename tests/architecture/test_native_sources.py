"""What the kernel sources must not contain: anything that leaves the order or the rounding of operations open."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
NATIVE = ROOT / "native" / "src"
KERNELS = sorted([*(NATIVE / "kernels").rglob("*.h"), *(NATIVE / "kernels").rglob("*.cc")])
TOKEN_PATH = sorted([*KERNELS, *(NATIVE / "ops").glob("*.cc"), *(NATIVE / "moe").glob("*.cc")])
ISA_FILES = [path for path in KERNELS if path.parent.name != "kernels"]

BANNED_IN_KERNELS = {
    "an approximate reciprocal": r"\b_mm\w*_(rsqrt|rcp)\w*|\bvrsqrt|\bvrecp",
    "a reduction whose order the compiler chooses": r"\b_mm\w*_reduce_\w+|\bvaddvq_f",
    "a BF16 dot product": r"\b_mm\w*_dpbf16\w*|\bvbfdot",
    "a flush-to-zero switch": r"_MM_SET_FLUSH_ZERO|_MM_SET_DENORMALS",
}
LIBM = r"\b(?:std::)?(?:exp|exp2|expm1|log|log2|log1p|sin|cos|tan|tanh|pow)f?\("
OURS = r"runtime\.kernels\(\)\.exp\(|kernels\.exp\(|void exp\("
ALLOWED_INCLUDES = re.compile(
    r"<(cstddef|cstdint|immintrin\.h|emmintrin\.h|arm_neon\.h)>"
    r'|"(sparseflow/kernel_table\.h|kernels/.*|emulated_avx512\.h|xxhash/xxhash\.h)"'
)
"""xxhash.h is all static functions where it is inlined; tools/check_isa_objects.py looks at the symbols."""


def code(path: Path) -> str:
    """The file without its comments."""
    return re.sub(r"//[^\n]*", "", path.read_text())


def test_there_are_kernels_to_check() -> None:
    assert len(ISA_FILES) >= 10


@pytest.mark.parametrize("what", sorted(BANNED_IN_KERNELS))
def test_kernels_do_not_use(what: str) -> None:
    users = [path.name for path in KERNELS if re.search(BANNED_IN_KERNELS[what], code(path))]
    assert users == []


def test_the_token_path_does_not_call_the_math_library() -> None:
    for path in TOKEN_PATH:
        text = re.sub(OURS, "", code(path))
        assert re.search(LIBM, text) is None, path
        assert "<cmath>" not in text, path


@pytest.mark.parametrize("path", ISA_FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_files_of_an_instruction_set_include_nothing_with_inline_functions(path: Path) -> None:
    includes = re.findall(r"#include\s+(\S+)", path.read_text())
    assert [name for name in includes if not ALLOWED_INCLUDES.fullmatch(name)] == []


def test_no_source_turns_strict_arithmetic_off() -> None:
    build = (ROOT / "CMakeLists.txt").read_text()
    assert "-ffp-contract=off" in build
    for text in [build, *(path.read_text() for path in TOKEN_PATH)]:
        assert not re.search(r"fast-math|-Ofast|-march=native|associative-math", text)
