from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sparseflow.config import EngineConfig, SamplingParams
from sparseflow.engine.engine import Engine
from sparseflow.engine.generate import hash_logits
from sparseflow.engine.token import Token
from sparseflow.errors import BudgetError, ConfigError, ContainerError

CTX = 96
GREEDY = SamplingParams(temperature=0.0, max_new_tokens=12, ignore_eos=True)
PROMPT = "once upon a time"


@pytest.fixture(scope="module")
def engine(tiny_moe: Path) -> Iterator[Engine]:
    with Engine.open(tiny_moe, EngineConfig(ctx=CTX, threads=1)) as opened:
        yield opened


def text_of(tokens: list[Token]) -> str:
    return "".join(token.text for token in tokens)


def test_the_last_token_alone_says_why_it_ended(engine: Engine) -> None:
    tokens = list(engine.generate(PROMPT, GREEDY))
    assert [token.finish_reason for token in tokens] == [None] * 11 + ["length"]
    assert [token.position for token in tokens] == list(
        range(len(engine.tokenizer.encode(PROMPT)), CTX)
    )[:12]


def test_texts_join_to_the_decoding_of_the_ids(engine: Engine) -> None:
    tokens = list(engine.generate(PROMPT, GREEDY))
    assert text_of(tokens) == engine.tokenizer.decode([token.id for token in tokens])


def test_text_and_ids_are_the_same_prompt(engine: Engine) -> None:
    ids = engine.tokenizer.encode(PROMPT)
    from_ids = [token.id for token in engine.generate(ids, GREEDY)]
    assert from_ids == [token.id for token in engine.generate(PROMPT, GREEDY)]


def test_greedy_ids_are_the_largest_teacher_forced_logits(engine: Engine) -> None:
    prompt = engine.tokenizer.encode(PROMPT)
    tokens = list(engine.generate(prompt, GREEDY, hash_logits=True))
    logits = engine.logits([*prompt, *(token.id for token in tokens)])
    steps = logits[len(prompt) - 1 : -1]
    valid = steps[:, : engine.tokenizer.size]
    assert [token.id for token in tokens] == valid.argmax(axis=1).tolist()
    assert [token.logits_sha256 for token in tokens] == [hash_logits(step) for step in steps]


def test_ids_beyond_the_tokenizer_are_never_sampled(engine: Engine) -> None:
    hot = replace(GREEDY, temperature=50.0, max_new_tokens=80)
    ids = [token.id for seed in range(5) for token in engine.generate([1], replace(hot, seed=seed))]
    assert max(ids) < engine.tokenizer.size < engine.vocab_size
    assert len(set(ids)) > 100


def test_the_seed_decides(engine: Engine) -> None:
    def ids(seed: int) -> list[int]:
        params = replace(GREEDY, temperature=1.0, seed=seed)
        return [token.id for token in engine.generate(PROMPT, params)]

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


def test_a_stop_id_ends_the_text_and_shows_nothing(engine: Engine) -> None:
    params = replace(GREEDY, temperature=30.0, ignore_eos=False, max_new_tokens=90)
    for seed in range(20):
        tokens = list(engine.generate([1], replace(params, seed=seed)))
        if tokens[-1].finish_reason == "stop":
            break
    assert tokens[-1].finish_reason == "stop"
    assert tokens[-1].id in (0, 2)
    assert not any(token.id in (0, 2) for token in tokens[:-1])
    assert text_of(tokens) == engine.tokenizer.decode([token.id for token in tokens])


def test_a_stop_string_ends_the_text_before_itself(engine: Engine) -> None:
    whole = text_of(list(engine.generate(PROMPT, replace(GREEDY, max_new_tokens=40))))
    stop = whole[10:15]
    tokens = list(engine.generate(PROMPT, replace(GREEDY, max_new_tokens=40, stop=(stop,))))
    assert text_of(tokens) == whole[: whole.index(stop)]
    assert tokens[-1].finish_reason == "stop"


def test_the_context_ends_the_text(engine: Engine) -> None:
    ids = [5] * (CTX - 3)
    tokens = list(engine.generate(ids, SamplingParams(temperature=0.0, ignore_eos=True)))
    assert [token.finish_reason for token in tokens] == [None, None, "length"]


@pytest.mark.parametrize("length", [CTX, CTX + 40])
def test_a_prompt_without_room_is_refused_with_both_counts(engine: Engine, length: int) -> None:
    with pytest.raises(ConfigError, match=rf"{length} tokens.*{CTX}"):
        engine.generate([5] * length, GREEDY)


@pytest.mark.parametrize("wrong", [-1, 300, 2**31])
def test_an_unknown_id_is_refused_by_name(engine: Engine, wrong: int) -> None:
    with pytest.raises(ConfigError, match=f"token id {wrong}"):
        engine.generate([1, wrong], GREEDY)
    with pytest.raises(ConfigError, match=f"token id {wrong}"):
        engine.logits([1, wrong])


def test_an_empty_prompt_begins_with_the_bos_token(engine: Engine) -> None:
    tokens = list(engine.generate("", GREEDY))
    assert [t.id for t in tokens] == [t.id for t in engine.generate([0], GREEDY)]


def test_interleaved_requests_do_not_disturb_each_other(engine: Engine) -> None:
    alone = [token.id for token in engine.generate(PROMPT, GREEDY)]
    first, second = engine.generate(PROMPT, GREEDY), engine.generate([7, 8, 9], GREEDY)
    mixed = [next(first).id]
    for token in first:
        next(second)
        mixed.append(token.id)
    assert mixed == alone


def test_logits_chunks_join_to_the_whole(engine: Engine) -> None:
    ids = list(range(3, 60))
    whole = engine.logits(ids)
    assert whole.shape == (57, engine.vocab_size)
    np.testing.assert_array_equal(np.concatenate(list(engine.iter_logits(ids, 10))), whole)


def test_logits_that_do_not_fit_are_a_budget_error(engine: Engine) -> None:
    class Endless(list[int]):
        def __len__(self) -> int:
            return 2**60

    with pytest.raises(BudgetError, match="iter_logits"):
        engine.logits(Endless())


def test_teacher_forced_ids_beyond_the_context_are_refused(engine: Engine) -> None:
    with pytest.raises(ConfigError, match=f"{CTX + 1} tokens"):
        engine.logits([5] * (CTX + 1))
    with pytest.raises(ConfigError, match="no token ids"):
        engine.logits([])


def test_a_sequence_goes_on_from_its_snapshot(engine: Engine) -> None:
    ids = list(range(3, 43))
    whole = engine.logits(ids)
    sequence = engine.new_sequence()
    sequence.append(ids[:17])
    sequence.forward(17, "none")
    saved = sequence.snapshot()
    sequence.append([200] * 9)
    sequence.forward(9, "none")
    for target in (sequence, engine.new_sequence()):
        target.restore(saved)
        target.append(ids[17:])
        np.testing.assert_array_equal(target.forward(23, "all"), whole[17:])


def test_statistics_count_tokens_and_their_times_add_up(tiny_moe: Path) -> None:
    with Engine.open(tiny_moe, EngineConfig(ctx=CTX, threads=1, prefill_chunk=7)) as engine:
        list(engine.generate([5] * 20, GREEDY))
        stats = engine.stats()
    assert (stats.prompt_tokens, stats.new_tokens, stats.active_leases) == (20, 12, 0)
    tree = stats.to_dict()
    parts = [value for name, value in tree["times"].items() if name != "total_seconds"]
    assert sum(parts) == pytest.approx(tree["times"]["total_seconds"])
    assert min(tree["times"]["prefill_seconds"], tree["times"]["decode_seconds"]) > 0
    assert tree["memory"]["dense_bytes"] > 0
    assert (tree["recipe"], tree["store"], tree["threads"]) == ("int8", "resident", 1)


def test_progress_ends_complete(tiny_moe: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    config = EngineConfig(ctx=CTX, threads=1, prefill_chunk=8)
    with Engine.open(tiny_moe, config, progress=lambda *call: calls.append(call)) as engine:
        next(engine.generate([5] * 20, GREEDY))
    prefill = [done for what, done, _ in calls if what == "prefill"]
    assert prefill == sorted(prefill)
    assert prefill[3::4] == [8, 16, 20]  # the last of each chunk's 4 layers
    for what in {call[0] for call in calls} - {"load"}:
        last = [call for call in calls if call[0] == what][-1]
        assert last[1] == last[2]


def test_the_model_limits_the_context(tiny_moe: Path) -> None:
    with Engine.open(tiny_moe, EngineConfig(threads=1)) as engine:
        assert engine.config.ctx == 512


def test_a_closed_engine_refuses_work(tiny_moe: Path) -> None:
    engine = Engine.open(tiny_moe, EngineConfig(ctx=CTX, threads=1))
    engine.close()
    engine.close()
    with pytest.raises(ConfigError, match="closed"):
        engine.generate(PROMPT, GREEDY)
    with pytest.raises(ConfigError, match="closed"):
        engine.iter_logits([1])


def test_a_directory_that_is_no_container_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContainerError):
        Engine.open(tmp_path)
