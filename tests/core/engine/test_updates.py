"""Cutting a step's log-probabilities to each request: own rows, own width, each prompt position once."""

from __future__ import annotations

from types import SimpleNamespace

from isoinfer.engine.updates import UpdateBuilder


def test_each_request_gets_its_own_rows_at_its_own_width(fake: SimpleNamespace) -> None:
    core = fake.make_core()
    core.add("wide", [1, 2, 3], num_logprobs=3, num_prompt_logprobs=0)
    core.add("none", [4, 5])
    core.add("own", [6, 7], num_logprobs=0, num_prompt_logprobs=2)
    wide, none, own = core.step()
    assert none.logprobs is None
    assert none.prompt_logprobs is None
    assert wide.logprobs.logprob_T.tolist() == [fake.logprob_of([1, 2, 3], wide.token_ids[0])]
    assert wide.logprobs.top_ids_TX.shape == wide.logprobs.top_logprobs_TX.shape == (1, 3)
    assert own.logprobs.logprob_T.tolist() == [fake.logprob_of([6, 7], own.token_ids[0])]
    assert own.logprobs.top_ids_TX.shape == (1, 0)
    assert wide.prompt_logprobs.logprob_T.tolist() == [fake.logprob_of([1], 2), fake.logprob_of([1, 2], 3)]
    assert wide.prompt_logprobs.top_ids_TX.shape == (2, 0)
    assert own.prompt_logprobs.logprob_T.tolist() == [fake.logprob_of([6], 7)]
    assert own.prompt_logprobs.top_ids_TX.shape == (1, 2)
    assert (wide.prompt_logprobs_start, own.prompt_logprobs_start) == (1, 1)


def test_a_prompt_chunk_without_news_gives_no_update(fake: SimpleNamespace) -> None:
    core = fake.make_core(max_num_batched_tokens=2)
    core.add("a", [1, 2, 3, 4, 5], num_prompt_logprobs=0)
    core.add("b", [1, 2, 3])
    updates = [core.step() for _ in range(5)]
    assert [[u.request_id for u in step] for step in updates] == [["a"], ["a"], ["a"], ["a"], ["a", "b"]]
    assert [len(u.prompt_logprobs.logprob_T) for step in updates[:2] for u in step] == [2, 2]
    assert updates[2][0].prompt_logprobs is None, "the prompt's last token predicts the first new one"


def test_several_tokens_of_a_step_come_together_with_a_logprob_each(fake: SimpleNamespace) -> None:
    core = fake.make_core(num_drafts=3)
    core.add("a", [1, 2, 3], max_tokens=30, num_logprobs=1)
    core.add("b", [4, 5], max_tokens=30, num_logprobs=0)
    core.run()
    for name, prompt in (("a", [1, 2, 3]), ("b", [4, 5])):
        history = list(prompt)
        for update in core.updates[name]:
            expected = [fake.logprob_of([*history, *update.token_ids[:i]], t) for i, t in enumerate(update.token_ids)]
            assert update.logprobs.logprob_T.tolist() == expected
            history += update.token_ids
        assert max(len(update.token_ids) for update in core.updates[name]) > 1, "no draft was accepted"


def test_the_stop_token_is_named_only_with_reason_stop(fake: SimpleNamespace) -> None:
    core = fake.make_core()
    core.add("a", [1])
    plan = core.scheduler.schedule()
    handle = core.runner.submit(plan)
    core.runner.sample(handle, core.scheduler.sample_plan(plan))
    result = core.runner.settle(handle)
    request = core.scheduler.residents.by_id["a"]
    for reason, stop_token in (("stop", 8), ("length", -1), ("", -1)):
        builder = UpdateBuilder(plan, result)
        builder.add(request, 0, (5, 8), 0, reason)
        (update,) = builder.updates
        assert (update.finish_reason, update.stop_token, update.token_ids) == (reason, stop_token, (5, 8))


def test_a_row_without_tokens_gives_no_update(fake: SimpleNamespace) -> None:
    core = fake.make_core()
    core.add("a", [1])
    plan = core.scheduler.schedule()
    handle = core.runner.submit(plan)
    core.runner.sample(handle, core.scheduler.sample_plan(plan))
    builder = UpdateBuilder(plan, core.runner.settle(handle))
    builder.add(core.scheduler.residents.by_id["a"], 0, (), 0, "")
    assert builder.updates == []
