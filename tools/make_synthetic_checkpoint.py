"""Writes qwen3_5_moe checkpoints with seeded BF16 weights, shard by shard with little memory.

    python tools/make_synthetic_checkpoint.py --tiny DIR                    small dimensions, odd tails
    python tools/make_synthetic_checkpoint.py --names qwen3.6 --tiny DIR    the published model's 1,045 tensor names
    python tools/make_synthetic_checkpoint.py --names qwen3.6 --headers-only DIR    its true shapes, sparse files
    python tools/make_synthetic_checkpoint.py --true-geometry --layers 8 --vocab 32768 DIR
    python tools/make_synthetic_checkpoint.py --true-geometry --layers 40 --vocab 248320 --container DIR --recipe int8
    python tools/make_synthetic_checkpoint.py --true-geometry --layers 40 --vocab 248320 --gguf FILE --type Q4_0

With --true-geometry (or --tiny --chain) greedy decoding walks a known chain of tokens, chain.json, and routing behaves
like the real model's; tools/synthetic says how. Such a model can go straight into a container (--container) or a GGUF
file (--gguf) and never exist as a checkpoint. A tensor's values depend on the seed and its name alone, so order and
number of shards do not change them.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from sparseflow.errors import SparseFlowError
from synthetic.files import CHAIN_NAME, Plan, UnwrittenCheckpoint, write_checkpoint
from synthetic.layout import (
    TRUE_LAYERS,
    TRUE_VOCAB,
    assign_shards,
    mtp_tensors,
    text_config,
    text_tensors,
    visual_tensors,
)
from synthetic.routing import routing_facts
from synthetic.weights import ChainWeights

PUBLISHED_SHARDS = 26


def plan_checkpoint(options: argparse.Namespace) -> Plan:
    """What the options ask for, before anything is written."""
    is_published = options.names is not None
    layers = options.layers or (TRUE_LAYERS if is_published else 4 if options.tiny else 8)
    tiny_vocab = 512 if options.chain else 331
    vocab = options.vocab or (
        tiny_vocab if options.tiny else TRUE_VOCAB if is_published else 32_768
    )
    geometry = "medium" if options.medium else "true"
    if options.tiny:
        geometry = "tiny-chain" if options.chain else "tiny"
    text = text_config(layers, vocab, geometry)
    tensors = text_tensors(text, is_fused=not options.unfused)
    config: dict[str, Any] = {"architectures": ["Qwen3_5MoeForCausalLM"], **text}
    if is_published:
        tensors += visual_tensors(text, is_tiny=options.tiny) + mtp_tensors(text)
        config = {
            "architectures": ["Qwen3_5MoeForConditionalGeneration"],
            "model_type": "qwen3_5_moe",
            "text_config": text,
            "tie_word_embeddings": False,
        }
    num_shards = options.shards or (PUBLISHED_SHARDS if is_published else max(2, layers // 2))
    order = options.order or ("adversarial" if is_published else "natural")
    shards = assign_shards(tensors, num_shards, options.seed, is_adversarial=order == "adversarial")
    weights = None
    if options.chain and not options.headers_only:
        weights = ChainWeights(text, geometry, options.seed)
    return Plan(config, shards, options.seed, weights)


def make(options: argparse.Namespace) -> Path:
    """Writes what the options ask for, and returns where."""
    plan = plan_checkpoint(options)
    if options.container is not None:
        return make_container(plan, options.container, options.recipe)
    if options.gguf is not None:
        return make_gguf(plan, options.gguf, options.type)
    write_checkpoint(options.directory, plan, is_empty=options.headers_only)
    return Path(options.directory)


def make_container(plan: Plan, output: Path, recipe: str) -> Path:
    """Prepares a container from a checkpoint that is never written."""
    from sparseflow.cli.console import progress_bars
    from sparseflow.prepare.prepare import prepare

    with (
        tempfile.TemporaryDirectory() as directory,
        UnwrittenCheckpoint.write(Path(directory), plan) as checkpoint,
        progress_bars(quiet=False, in_bytes=True) as progress,
    ):
        return prepare(checkpoint, output, recipe, progress)


def make_gguf(plan: Plan, output: Path, expert_type: str) -> Path:
    """Writes a GGUF file of a checkpoint that is never written; its chain goes beside it."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
    from peers.gguf_writer import TYPES, write_gguf
    from sparseflow.cli.console import progress_bars
    from synthetic.blocks import PoolBlocks

    with (
        tempfile.TemporaryDirectory() as directory,
        UnwrittenCheckpoint.write(Path(directory), plan) as checkpoint,
        progress_bars(quiet=False, in_bytes=True) as progress,
    ):
        dims = checkpoint.dimensions
        blocks = PoolBlocks(
            checkpoint.weights,
            dims["num_experts"],
            dims["moe_intermediate_size"],
            dims["hidden_size"],
        )
        write_gguf(checkpoint, output, TYPES[expert_type], blocks, progress)
        shutil.copyfile(Path(directory) / CHAIN_NAME, output.with_suffix(".chain.json"))
    return output


def report_routing(weights: ChainWeights, config: dict[str, Any]) -> None:
    """Prints how the chain routes, beside the real model's ranges."""
    for fact in routing_facts(weights, config):
        print(f"{fact.name}: {fact.value:.3f} (real routes: {fact.low} to {fact.high})")


def parse_options(arguments: list[str]) -> argparse.Namespace:
    """The command line; refuses what would write the whole published model by accident."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, nargs="?", help="for the checkpoint")
    parser.add_argument("--tiny", action="store_true", help="small dimensions, odd tails")
    parser.add_argument("--medium", action="store_true", help="whole groups of 64 inputs")
    parser.add_argument(
        "--true-geometry", action="store_true", help="the published model's dimensions"
    )
    parser.add_argument(
        "--names",
        choices=["qwen3.6"],
        help="all tensors of the published model, vision and MTP too",
    )
    parser.add_argument(
        "--headers-only", action="store_true", help="sparse files: true sizes, no payload"
    )
    parser.add_argument(
        "--chain", action="store_true", help="a known greedy text; always with --true-geometry"
    )
    parser.add_argument("--layers", type=int, help="default 8; 4 if tiny; 40 with --names")
    parser.add_argument("--vocab", type=int, help="default 32768; 331 if tiny; 248320 with --names")
    parser.add_argument("--shards", type=int, help="default: half the layers; 26 with --names")
    parser.add_argument(
        "--order", choices=["natural", "adversarial"], help="adversarial: a layer's parts far apart"
    )
    parser.add_argument(
        "--unfused", action="store_true", help="a tensor for each expert and projection"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--container", type=Path, metavar="DIR", help="prepare this container, write no checkpoint"
    )
    parser.add_argument("--recipe", default="int4", help="of the container (int4)")
    parser.add_argument(
        "--gguf", type=Path, metavar="FILE", help="write this GGUF file, no checkpoint"
    )
    parser.add_argument(
        "--type", choices=["Q8_0", "Q4_0"], default="Q8_0", help="of the experts in the GGUF file"
    )
    parser.add_argument(
        "--report-routing", action="store_true", help="print how the chain routes, write nothing"
    )
    options = parser.parse_args(arguments)
    geometries = [options.tiny, options.medium, options.true_geometry]
    if sum(geometries) != 1 and not (options.names and options.headers_only):
        parser.error("choose --tiny, --medium or --true-geometry")
    if options.medium and (options.names or options.chain):
        parser.error("--medium has neither published names nor a chain")
    if options.names and not options.tiny and not options.headers_only:
        parser.error("--names at true shapes would write 67 GiB; add --tiny or --headers-only")
    options.chain = (options.chain or options.true_geometry) and not options.names
    outputs = [options.directory, options.container, options.gguf, options.report_routing or None]
    if sum(output is not None for output in outputs) != 1:
        parser.error("give a directory for the checkpoint, --container, --gguf or --report-routing")
    if options.directory is None and (not options.chain or options.headers_only):
        parser.error("only a model with a chain can do that: --true-geometry, or --tiny --chain")
    return options


def main(arguments: list[str]) -> int:
    """Exit code 1, with one line on stderr, if it cannot be done."""
    options = parse_options(arguments)
    try:
        if options.report_routing:
            plan = plan_checkpoint(options)
            assert plan.weights is not None
            report_routing(plan.weights, plan.config)
        else:
            print(make(options))
    except (ValueError, SparseFlowError) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
