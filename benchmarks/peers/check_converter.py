"""Compares what gguf_writer writes with what llama.cpp's own converter makes of the same checkpoint, tensor by tensor.

    python benchmarks/peers/check_converter.py LLAMA_CPP_SOURCE CHECKPOINT

Needs what the converter needs (torch, transformers). It cannot leave the tokenizer out, so that step is replaced.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
import tempfile
from pathlib import Path
from typing import Any

Tensors = dict[str, tuple[str, list[int], str]]
"""By name: type, shape, SHA-256 of the bytes."""


def read_tensors(path: Path) -> Tensors:
    """Every tensor of a GGUF file."""
    import gguf

    return {
        tensor.name: (
            tensor.tensor_type.name,
            tensor.shape.tolist(),
            hashlib.sha256(tensor.data.tobytes()).hexdigest(),
        )
        for tensor in gguf.GGUFReader(path).tensors
    }


def convert(checkpoint: Path, output: Path) -> None:
    """Runs convert_hf_to_gguf.py, which is importable, in this process."""
    converter: Any = importlib.import_module("convert_hf_to_gguf")
    importlib.import_module("conversion.qwen")

    def set_vocab(model: Any) -> None:
        model.gguf_writer.add_tokenizer_model("none")

    modules = [m for name, m in sys.modules.items() if name.split(".")[0] == "conversion"]
    for module in [converter, *modules]:
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if "set_vocab" in vars(kind):
                setattr(kind, "set_vocab", set_vocab)  # noqa: B010 - any class of theirs
    words = [str(checkpoint), "--outfile", str(output), "--outtype", "q8_0", "--no-nextn"]
    sys.argv = ["convert_hf_to_gguf.py", *words]
    converter.main()


def main(source: Path, checkpoint: Path) -> int:
    """Prints the tensors that differ; exit code 1 if any does."""
    # The converter needs the gguf package that came with it, so both sides use that one.
    peers = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(source), str(source / "gguf-py"), str(peers)]
    from peers.gguf_writer import TYPES, write_gguf
    from sparseflow.checkpoint.checkpoint import Checkpoint

    with tempfile.TemporaryDirectory() as directory:
        theirs, ours = Path(directory) / "theirs.gguf", Path(directory) / "ours.gguf"
        convert(checkpoint, theirs)
        with Checkpoint.open(checkpoint) as opened:
            write_gguf(opened, ours, TYPES["Q8_0"])
        expected, found = read_tensors(theirs), read_tensors(ours)
    differing = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
    for name in differing:
        print(f"{name}: {found.get(name)}; the converter: {expected.get(name)}")
    print(f"{len(expected)} tensors, {len(differing)} different")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
