from typing import Any

import numpy as np
from numpy.typing import NDArray

def isa_names() -> list[str]:
    """Instruction sets that this build has and this CPU can run, best first."""

def known_isa_names() -> list[str]:
    """Instruction sets that this build has, best first, whether or not this CPU can run them."""

class Matrix:
    """A weight matrix [rows, cols] in a format of kernel_table.h; keeps references to its arrays."""

    def __init__(
        self,
        format: str,
        rows: int,
        cols: int,
        codes: NDArray[np.uint8],
        scales: NDArray[np.float32] | NDArray[np.float16] | None = None,
    ) -> None: ...
    @property
    def format(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def has_clean_padding(self) -> bool:
        """Whether padded codes are the format's offset and padded scales zero, as prepare writes them."""

class AttentionLayer:
    """Constants of a (gated) attention layer; vectors are copied."""

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        inv_freq: NDArray[np.float32],
        q_norm: NDArray[np.float32] | None,
        k_norm: NDArray[np.float32] | None,
        eps: float,
        gated: bool,
    ) -> None: ...

class DeltaLayer:
    """Constants of a gated delta rule layer; vectors are copied."""

    def __init__(
        self,
        num_key_heads: int,
        num_value_heads: int,
        key_dim: int,
        value_dim: int,
        conv_weight: NDArray[np.float32],
        neg_exp_a: NDArray[np.float32],
        dt_bias: NDArray[np.float32],
        norm_weight: NDArray[np.float32],
        eps: float,
        scale: float,
    ) -> None: ...

class AttentionBlock:
    """x += out_proj(attention(in_proj(norm(x)))). in_proj: query (its gate with it), key and value."""

    def __init__(
        self,
        norm_weight: NDArray[np.float32],
        eps: float,
        in_proj: list[Matrix],
        layer: AttentionLayer,
        out_proj: Matrix,
    ) -> None: ...
    def forward(
        self,
        runtime: Runtime,
        x: NDArray[np.float32],
        position: int,
        keys: NDArray[Any],
        values: NDArray[Any],
    ) -> None:
        """Updates x [T, hidden_size] in place; writes keys and values [num_kv_heads, capacity, head_dim] at positions
        position to position + T - 1. Raises ConfigError if they do not fit.
        """

class DeltaBlock:
    """x += out_proj(gated_delta(in_proj(norm(x)))). in_proj: qkv, z, b and a."""

    def __init__(
        self,
        norm_weight: NDArray[np.float32],
        eps: float,
        in_proj: list[Matrix],
        layer: DeltaLayer,
        out_proj: Matrix,
    ) -> None: ...
    def forward(
        self,
        runtime: Runtime,
        x: NDArray[np.float32],
        conv_tail: NDArray[np.float32],
        state: NDArray[np.float32],
    ) -> None:
        """Updates x [T, hidden_size], conv_tail and state in place."""

class Router:
    """The norm before a layer's experts, and who chooses them."""

    def __init__(self, norm_weight: NDArray[np.float32], eps: float, gate: Matrix) -> None: ...
    def forward(
        self,
        runtime: Runtime,
        x: NDArray[np.float32],
        normed: NDArray[np.float32],
        ids: NDArray[np.int32],
        weights: NDArray[np.float32],
    ) -> None:
        """normed [T, hidden_size] = norm(x); ids and weights [T, k] of the experts that its rows choose.

        Raises ConfigError if a logit is not finite.
        """

class SampleParams:
    """How sample() chooses; temperature 0 is greedy, top_k 0, top_p 1 and min_p 0 are off."""

    def __init__(
        self,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        seed: int = 0,
    ) -> None: ...

class Runtime:
    """The kernels of one instruction set, a thread pool and scratch memory.

    Arrays are C-contiguous and of the dtype in the type; nothing is converted. A wrong shape raises ConfigError. The
    interpreter lock is released during a call; calls from several threads run one after another.
    """

    def __init__(self, isa: str = "auto", threads: int = 1) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def scratch_bytes(self) -> int:
        """Working memory held, grown to the largest call so far."""

    def take_times(self) -> dict[str, float]:
        """Seconds of native calls by part since the last time: embedding, norm, delta, attention, router, experts
        (waiting for reads included), head, sample, other.
        """

    def linear(
        self,
        weights: list[Matrix],
        x: NDArray[np.float32],
        outs: list[NDArray[np.float32]],
        part: str = "other",
    ) -> None:
        """outs[i] [T, rows_i] = x [T, cols] times weights[i] transposed; x is quantized once.

        part: what take_times books it on.
        """

    def rms_norm(
        self, x: NDArray[np.float32], weight: NDArray[np.float32], eps: float, out: NDArray[np.float32]
    ) -> None:
        """out [T, n] = x / sqrt(mean(x^2) + eps) * weight [n]; out may be x."""

    def add(self, x: NDArray[np.float32], y: NDArray[np.float32]) -> None:
        """x += y, of one shape."""

    def bf16_to_float(self, x: NDArray[np.uint16], out: NDArray[np.float32]) -> None:
        """Widens bfloat16 bit patterns to float32, of one shape."""

    def silu_multiply(
        self, gate: NDArray[np.float32], up: NDArray[np.float32], out: NDArray[np.float32]
    ) -> None:
        """out = silu(gate) * up, of one shape; out may be gate or up."""

    def attention(
        self,
        layer: AttentionLayer,
        query: NDArray[np.float32],
        key: NDArray[np.float32],
        value: NDArray[np.float32],
        position: int,
        keys: NDArray[Any],
        values: NDArray[Any],
        out: NDArray[np.float32],
    ) -> None:
        """Norms, rotary, append to the cache at position.., causal attention, output gate.

        query [T, heads * (2 if gated) * head_dim] (per head: query, then gate), key and value [T, kv_heads * head_dim],
        keys and values float32 or float16 [kv_heads, capacity, head_dim], out [T, heads * head_dim].
        """

    def gated_delta(
        self,
        layer: DeltaLayer,
        qkv: NDArray[np.float32],
        z: NDArray[np.float32],
        b: NDArray[np.float32],
        a: NDArray[np.float32],
        conv_tail: NDArray[np.float32],
        state: NDArray[np.float32],
        out: NDArray[np.float32],
    ) -> None:
        """Convolution, delta rule and gated norm over T tokens; conv_tail and state are updated.

        qkv [T, conv_dim], z [T, hv * dv], b and a [T, hv], conv_tail [conv_dim, kernel - 1], state [hv, dk, dv],
        out [T, hv * dv]; conv_dim = 2 * hk * dk + hv * dv, in the order q, k, v.
        """

    def route(
        self, logits: NDArray[np.float32], k: int, ids: NDArray[np.int32], weights: NDArray[np.float32]
    ) -> None:
        """The k largest of each row of logits [T, E], ties to the lower id; ids [T, k] ascending, with their weights."""

    def sample(
        self,
        logits: NDArray[np.float32],
        history: NDArray[np.int32],
        params: SampleParams,
        position: int,
        num_valid: int,
        num_prompt: int = 0,
    ) -> int:
        """The next id below num_valid, from logits [V].

        history [n]: all ids so far (repetition penalty); those from num_prompt on also get the presence penalty. Logits
        that are not finite raise ConfigError.
        """

    def exp(self, x: NDArray[np.float32], out: NDArray[np.float32]) -> None:
        """The contract's exponential, of one shape."""

    def is_finite(self, x: NDArray[np.float32]) -> bool:
        """True if no element of x (any shape) is infinite or not a number."""

def quantize_weights(
    format: str, weights: NDArray[np.float32] | NDArray[np.uint16], isa: str = "auto"
) -> tuple[NDArray[np.uint8], NDArray[np.float32] | NDArray[np.float16]]:
    """Codes and scales of an integer format, both 1-D in the order of docs/sfi_format.md.

    weights [rows, cols]: float32, or uint16 holding bfloat16. The same bytes with every isa and on every machine.
    ConfigError names the row of a weight that is not finite or beyond what the format can hold.
    """

def matrix_code_bytes(format: str, rows: int, cols: int) -> int:
    """Bytes of the codes of a matrix in that format, padding included."""

def matrix_scale_bytes(format: str, rows: int, cols: int) -> int:
    """Bytes of the scales of a matrix in that format, padding included."""

def philox_uniform(seed: int, position: int) -> float:
    """The random number in [0, 1) that sample() uses at a position."""

class SfiFile:
    """The checked header of one layer's .sfi file."""

    def __init__(self, path: str) -> None:
        """Reads and checks the header. ContainerError, UnsupportedError or StorageError."""
    @property
    def layer(self) -> int: ...
    @property
    def num_experts(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def moe_intermediate_size(self) -> int: ...
    @property
    def format(self) -> str: ...
    @property
    def group_size(self) -> int: ...
    @property
    def header_bytes(self) -> int: ...
    @property
    def blob_bytes(self) -> int: ...
    @property
    def payload_bytes(self) -> int: ...
    @property
    def sections(self) -> list[tuple[int, int]]:
        """(offset, nbytes) within a blob: gate codes, gate scales, up codes, up scales, down codes, down scales."""
    def check_expert(self, expert: int) -> None:
        """Reads one expert and checks hash, finite scales and padding. ContainerError or StorageError."""

def xxh3_64(data: bytes | NDArray[np.uint8]) -> int:
    """XXH3-64 with seed 0 of bytes or a one-dimensional uint8 array."""

class ReadEngine:
    """Reads files, several requests at a time."""

    @property
    def name(self) -> str: ...
    @property
    def queue_depth(self) -> int: ...

def create_read_engine(name: str, queue_depth: int = 8, direct_io: bool = True) -> ReadEngine:
    """An engine by its name; ConfigError names the known ones."""

def read_engine_names() -> list[str]: ...
def policy_names() -> list[str]: ...

def time_memory_passes(runtime: Runtime, nbytes: int, loop: str, passes: int) -> list[float]:
    """Seconds of each pass of all threads over anonymous memory, huge pages where the host gives them.

    loop: `read` (wide loads) or `dot` (every byte multiplied and added up).
    """

def measure_int8_rate(runtime: Runtime, seconds: float) -> float:
    """8-bit multiply-accumulates a second from registers, with the instructions of the runtime's table."""

def time_reads(
    engine: ReadEngine, paths: list[str], reads: list[tuple[int, int]], nbytes: int
) -> float:
    """Seconds for reads of nbytes each at (index into paths, offset), the engine's queue always full. StorageError."""

class testing:  # noqa: N801
    """Read engines that fail on command. For tests alone. A submodule."""

    class FaultScript:
        """What goes wrong in which read system call; `call` counts from now, 0 is the next."""

        def __init__(self) -> None: ...
        def fail(self, call: int, errno: int) -> None: ...
        def shorten(self, call: int, nbytes: int) -> None: ...
        def delay(self, call: int, seconds: float) -> None: ...
        def flip_bit(self, call: int) -> None: ...
        def always(
            self, errno: int = 0, nbytes: int = -1, seconds: float = 0.0, flip_bit: bool = False
        ) -> None:
            """Every call without a fault of its own, until clear()."""
        def clear(self) -> None: ...
        @property
        def num_calls(self) -> int: ...

    @staticmethod
    def fault_engine(
        script: testing.FaultScript,
        queue_depth: int = 8,
        direct_io: bool = True,
        engine: str = "pread",
    ) -> ReadEngine:
        """A pread or io_uring engine whose system calls follow the script."""
    @staticmethod
    def read_range(engine: ReadEngine, path: str, offset: int, nbytes: int) -> bytes:
        """One read through an engine. StorageError."""

    class EvictionPolicy:
        """Ranks experts; see eviction_policy.h."""

        @property
        def name(self) -> str: ...
        def observe(self, layer: int, experts: NDArray[np.int32]) -> None: ...
        def score(self, layer: int, expert: int) -> float: ...

    @staticmethod
    def create_policy(
        name: str, num_layers: int, num_experts: int
    ) -> testing.EvictionPolicy: ...

class ExpertCounters:
    """What a store did since it was opened."""

    @property
    def hits(self) -> int: ...
    @property
    def misses(self) -> int: ...
    @property
    def evictions(self) -> int: ...
    @property
    def reads(self) -> int: ...
    @property
    def failed_reads(self) -> int: ...
    @property
    def bytes_read(self) -> int: ...
    @property
    def read_wait_seconds(self) -> float: ...
    @property
    def wait_cpu_seconds(self) -> float: ...
    @property
    def read_busy_seconds(self) -> float: ...
    @property
    def read_flight_seconds(self) -> float: ...
    @property
    def preloaded(self) -> int: ...
    @property
    def ahead_reads(self) -> int: ...
    @property
    def ahead_hits(self) -> int: ...
    @property
    def shrinks(self) -> int: ...
    @property
    def grows(self) -> int: ...

class ArenaUse:
    """How much of an arena is in use, in bytes."""

    @property
    def full(self) -> int: ...
    @property
    def allowed(self) -> int: ...
    @property
    def held(self) -> int: ...
    @property
    def touched(self) -> int: ...
    @property
    def least(self) -> int: ...
    @property
    def segment(self) -> int: ...
    @property
    def open_segments(self) -> int: ...

class ExpertSource:
    """Where moe_forward gets experts from."""

    @property
    def num_layers(self) -> int: ...
    @property
    def num_experts(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def moe_intermediate_size(self) -> int: ...
    @property
    def format(self) -> str: ...
    @property
    def blob_bytes(self) -> int: ...
    @property
    def active_leases(self) -> int: ...
    @property
    def counters(self) -> ExpertCounters: ...

class StreamingSource(ExpertSource):
    """Experts leased from a bounded cache."""

    def __init__(
        self,
        paths: list[str],
        capacity_bytes: int,
        num_experts_per_tok: int,
        policy: str = "scored",
        queue_depth: int = 8,
        direct_io: bool = True,
        engine: str | ReadEngine = "pread",
    ) -> None:
        """paths: one .sfi file per layer. An engine given as an object has its own queue_depth and direct_io."""
    @property
    def capacity_slots(self) -> int: ...
    @property
    def arena_bytes(self) -> int: ...
    @property
    def transient_slots(self) -> int: ...
    @property
    def max_lease(self) -> int: ...
    @property
    def is_split_by_layer(self) -> bool: ...
    @property
    def layer_capacity(self) -> list[int]: ...
    @property
    def layer_reads(self) -> list[int]: ...
    @property
    def cached_experts(self) -> int: ...
    def cached_in(self, layer: int) -> list[int]: ...
    def resize(self, capacity_bytes: int) -> int:
        """Uses at most so much of the arena from now on, by whole segments; returns how much that is. From any thread,
        also while a layer computes.
        """
    @property
    def arena_use(self) -> ArenaUse: ...
    @property
    def is_direct(self) -> bool: ...
    @property
    def engine(self) -> str: ...
    def export_heat(self) -> NDArray[np.float32]:
        """Routing history, [num_layers, num_experts, 2]."""
    def import_heat(self, heat: NDArray[np.float32]) -> None: ...
    def preload(self) -> None:
        """Begins to read the experts of the best scores in the background. Returns at once."""
    def check_invariants(self) -> None:
        """RuntimeError naming a broken invariant. For tests."""

class ResidentSource(ExpertSource):
    """All experts in memory, once loaded."""

    def __init__(
        self,
        paths: list[str],
        queue_depth: int = 8,
        direct_io: bool = True,
        engine: str | ReadEngine = "pread",
    ) -> None: ...
    def load_layer(self, layer: int) -> None:
        """Reads and checks a layer's experts. StorageError, ContainerError or BudgetError."""
    @property
    def resident_bytes(self) -> int: ...
    @property
    def engine(self) -> str: ...
    @property
    def is_direct(self) -> bool: ...

class CacheSimulator:
    """The product's expert cache without experts: routes in, misses out."""

    def __init__(
        self,
        policy: str,
        num_layers: int,
        num_experts: int,
        num_experts_per_tok: int,
        num_slots: int,
    ) -> None:
        """num_slots: experts that are kept; slots for reads under way come on top."""
    def forward(self, experts: NDArray[np.int32]) -> int:
        """One pass over experts [num_tokens, num_layers, k], the most recent of a row last; returns the misses."""
    def export_heat(self) -> NDArray[np.float32]:
        """Routing history, [num_layers, num_experts, 2]."""
    def import_heat(self, heat: NDArray[np.float32]) -> None: ...
    def preload(self) -> None:
        """Fills the cache by falling heat."""
    @property
    def cached_experts(self) -> int: ...

class SharedExpert:
    """The expert that every token uses, scaled by sigmoid(gate_logit . x)."""

    def __init__(self, gate: Matrix, up: Matrix, down: Matrix, gate_logit: Matrix) -> None: ...

class LookAhead:
    """The next layer's router, to guess what it will choose: for a prompt, and with guesses_steps for single tokens."""

    def __init__(self, layer: int, router: Router, guesses_steps: bool = False) -> None: ...

def moe_forward(
    runtime: Runtime,
    source: ExpertSource,
    layer: int,
    x: NDArray[np.float32],
    topk_ids: NDArray[np.int32],
    topk_weights: NDArray[np.float32],
    shared: SharedExpert | None,
    residual: NDArray[np.float32],
    ahead: LookAhead | None = None,
) -> None:
    """One MoE layer: residual [T, H] += the experts of x [T, H], topk_ids and topk_weights [T, k] (ids ascending in
    each row).

    ahead: guess from the residual what the next layer will choose, so that it may be read meanwhile.

    StorageError or ContainerError if an expert cannot be read; no lease survives.
    """
