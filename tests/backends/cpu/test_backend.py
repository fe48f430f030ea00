"""The backend as a whole: its options, its choices, its memory, and the suite's cases on every provider."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from isoinfer.backends.cpu import backend as backend_module
from isoinfer.backends.cpu import plugin
from isoinfer.backends.cpu.weights import Experts, OneDnnLinear, PackedLinear
from isoinfer.backends.descriptor import BackendConfig
from isoinfer.backends.ops import LINEAR, RMS_NORM, DenseWeight, LinearSpec, NormSpec
from isoinfer.conformance.op_cases import run_op_cases
from isoinfer.errors import BackendError, StepError, UserError

DTYPES = (torch.float32, torch.bfloat16)


def create(**config: Any) -> Any:
    (device,) = plugin.isoinfer_backend_probe()
    return plugin.isoinfer_backend_create(device, BackendConfig(**{"threads": 1, **config}))


@pytest.mark.parametrize(
    "options",
    [{"linear": "native"}, {"linear": "onednn"}, {"native": "off"}, {"stream": "thread"}],
    ids=str,
)
@pytest.mark.parametrize("deterministic", [False, True])
def test_every_op_case_passes(open_backend: Any, options: dict[str, str], deterministic: bool) -> None:
    """One seed; the gate runs many."""
    results = run_op_cases(open_backend(deterministic=deterministic, **options), dtypes=DTYPES, seed=1)
    assert [(r.id, r.provider, r.reason) for r in results if r.status != "passed"] == []


def test_the_plugin_knows_one_device_and_claims_nothing_yet() -> None:
    (device,) = plugin.isoinfer_backend_probe()
    assert (device.id, device.available) == ("0", True)
    assert plugin.isoinfer_backend_descriptor().name == "cpu"
    assert plugin.isoinfer_backend_claims(device).profiles == ()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"options": {"streams": "thread"}}, "no option streams=thread"),
        ({"options": {"stream": "fast"}}, "no option stream=fast"),
        ({"assume": "epyc"}, "no chip 'epyc' to assume; leave --assume out"),
        ({"dtype": "float16"}, "computes in float32 or bfloat16, not float16"),
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"threads": 100_000}, "100000 threads on .* cores would only wait for each other; ask for fewer"),
    ],
)
def test_settings_it_does_not_know_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(BackendError, match=message):
        create(**config)


def test_the_message_of_a_wrong_option_lists_the_right_ones() -> None:
    with pytest.raises(BackendError, match=r"stream=inline\|thread; native=on\|off; linear=probe\|native\|onednn"):
        create(options={"x": "y"})


def test_its_default_type_is_what_the_machine_is_fast_at(monkeypatch: pytest.MonkeyPatch) -> None:
    real = backend_module.probe_host()
    for features, expected in ((("avx512_bf16",), "bfloat16"), (("avx2",), "float32")):
        host = type(real)(model=real.model, cores=2, features=features, memory_total=1, memory_free=1)
        monkeypatch.setattr(backend_module, "probe_host", lambda host=host: host)
        monkeypatch.setattr(backend_module, "load_native", lambda host: None)
        assert create(options={"native": "off"}).capabilities.default_dtype == expected
        assert create(options={"native": "off"}, dtype="float32").capabilities.default_dtype == "float32"


def test_the_thread_stream_leaves_a_core_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    real = backend_module.probe_host()
    for cores, stream, expected in ((8, "inline", 8), (8, "thread", 7), (1, "thread", 1)):
        host = type(real)(model="m", cores=cores, features=(), memory_total=1, memory_free=1)
        monkeypatch.setattr(backend_module, "probe_host", lambda host=host: host)
        monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
        backend = create(threads=None, options={"native": "off", "stream": stream})
        assert backend._threads == expected
        assert f"{expected} threads, {stream} stream" in backend.describe()[1]


def test_kv_memory_is_suggested_within_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, real = create(options={"native": "off"}), backend_module.probe_host()
    for free, expected in ((100 << 30, 4 << 30), (5 << 30, 2 << 30)):
        host = type(real)(model="m", cores=1, features=(), memory_total=128 << 30, memory_free=free)
        monkeypatch.setattr(backend_module, "probe_host", lambda host=host: host)
        memory = backend.memory()
        assert (memory.total, memory.free, memory.kv_default) == (128 << 30, free, expected)


def test_weights_are_prepared_for_who_reads_them(open_backend: Any, need_bfloat16: None) -> None:
    ours, theirs, plain = (
        open_backend(dtype="bfloat16", **options)
        for options in ({"linear": "native"}, {"linear": "onednn"}, {"native": "off"})
    )
    w = torch.randn(8, 64).bfloat16()
    assert isinstance(ours.prepare_weight("linear", w, None), PackedLinear)
    assert isinstance(theirs.prepare_weight("linear", w, None), OneDnnLinear)
    assert isinstance(theirs.prepare_weight("head", w, None), PackedLinear)
    assert isinstance(plain.prepare_weight("head", w, None), DenseWeight)
    assert isinstance(ours.prepare_weight("embedding", w, None), DenseWeight)
    assert ours.prepare_weight("vector", w[0], None).data_ptr() == w.data_ptr()
    experts = ours.prepare_weight("experts", torch.randn(3, 8, 64).bfloat16(), None)
    assert isinstance(experts, Experts)
    assert [type(linear) for linear in experts.linears] == [PackedLinear] * 3
    with pytest.raises(AssertionError):
        ours.prepare_weight("curtain", w, None)


@pytest.mark.parametrize("quant", ["int8", "int4"])
@pytest.mark.parametrize("native", ["on", "off"])
def test_what_prepare_packs_is_what_bind_reads(open_backend: Any, quant: str, native: str) -> None:
    """An odd width makes every kernel of ours refuse; both sides must then agree on another provider."""
    for inputs in (64, 96) if quant == "int4" else (64, 51):
        backend, x, w = open_backend(native=native), torch.randn(3, inputs), torch.randn(40, inputs)
        fields = {"in_features": inputs, "out_features": 40, "bias": False, "quant": quant}
        fn = backend.bind(LINEAR, LinearSpec(**fields, dtype="float32", out_dtype="float32"))
        out = fn(x, backend.prepare_weight("linear", w, quant), None)
        assert torch.nn.functional.cosine_similarity(out.flatten(), (x @ w.T).flatten(), 0) > 0.98


def test_int4_refuses_other_widths_with_a_way_out(open_backend: Any) -> None:
    with pytest.raises(UserError, match="multiple of 32 inputs, this model has one with 48; use int8"):
        open_backend().prepare_weight("linear", torch.randn(4, 48), "int4")


def test_copies_to_and_from_the_device_are_copies(open_backend: Any) -> None:
    backend = open_backend(stream="thread")
    stream, event = backend.stream(), backend.event()
    source, device, back = torch.arange(5), backend.empty((5,), torch.int64), backend.host_buffer((5,), torch.int64)
    backend.to_device(device, source, stream)
    backend.to_host(back, device, stream)
    event.record(stream)
    event.synchronize()
    source.zero_()
    assert device.tolist() == back.tolist() == [0, 1, 2, 3, 4]
    backend.to_device(device, torch.zeros(4, dtype=torch.int64), stream)
    event.record(stream)
    with pytest.raises(StepError):
        event.synchronize()


def test_a_capture_runs_again(open_backend: Any) -> None:
    out: list[int] = []
    graph = open_backend().capture(lambda base, *, add: out.append(base + add), 40, host_params=["add"])
    graph.replay({"add": 2})
    assert out == [42]


def test_graphs_are_asked_for_and_bring_a_scratch_block(open_backend: Any) -> None:
    for options, limit, scratch in (({}, 0, 0), ({"graphs": "off"}, 0, 0), ({"graphs": "on"}, 64, 1)):
        backend = open_backend(**options)
        assert (backend.capabilities.graph_limit, backend.kv_layout([]).num_scratch_blocks) == (limit, scratch)


def test_a_spec_of_another_op_is_a_programmer_error(open_backend: Any) -> None:
    with pytest.raises(AssertionError):
        open_backend().bind(LINEAR, NormSpec(hidden_size=4, eps=1e-5, dtype="float32"))


def test_whole_models_are_run_op_by_op(open_backend: Any) -> None:
    assert open_backend().bind_model(None) is None
    assert open_backend().supports(RMS_NORM, NormSpec(hidden_size=4, eps=1e-5, dtype="float32"))
