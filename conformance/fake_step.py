"""Whole engine steps of every model family under FakeTensor: names, types, shapes and dtypes of real calls.

The backend's own code runs on fake tensors of its device: operators are checked against their schemas and
shape functions, kernel launches against the table of compiled cases, and nothing may make the host wait. No
number is computed: the evidence word is "schema-checked".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode, is_fake
from torch.utils._python_dispatch import TorchDispatchMode

from isoinfer.backends.interface import Backend, Event, Forward, Graph, KVCache, MemoryInfo, Stream
from isoinfer.backends.kernel_case import POINTERS, KernelCase, Launch
from isoinfer.backends.torch_device.runtime import HostRuntime
from isoinfer.engine.arena import ArenaSizes
from isoinfer.engine.plan import SamplePlan, StepPlan
from isoinfer.engine.runner import Runner, RunnerSpec
from isoinfer.models.registry import resolve

VOCAB, MAX_LEN = 512, 1024
_TINY: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": MAX_LEN,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
}
_MOE: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**_TINY, "architectures": ["LlamaForCausalLM"]},
    "qwen2": {
        **_TINY,
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": True,
        "sliding_window": 200,
        "max_window_layers": 1,
    },
    "qwen3": {**_TINY, "architectures": ["Qwen3ForCausalLM"]},
    "qwen3-moe": {**_TINY, **_MOE, "architectures": ["Qwen3MoeForCausalLM"], "norm_topk_prob": True},
    "gpt-oss": {
        **_TINY,
        "architectures": ["GptOssForCausalLM"],
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"],
        "attention_bias": True,
        "swiglu_limit": 7.0,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 256,
        },
    },
}
"""A small config of each, with head dims that fused attention takes."""

STEPS: dict[str, tuple[tuple[int, int], ...]] = {
    "prefill": ((0, 5), (0, 150)),
    "mixed": ((5, 1), (150, 1), (0, 40)),
    "decode": ((6, 1), (151, 1), (40, 1)),
}
"""(tokens computed before, tokens computed now) of each row."""


class HostSync(AssertionError):
    """Something made the host wait for the device."""


_SYNCS = (
    "_local_scalar_dense",
    "is_nonzero",
    "nonzero",
    "equal",
    "masked_select",
    "_unique2",
    "unique_dim",
    "bincount",
    "item",
)


class HostSyncTrap(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the operators that run, and raises at one that waits. Tokens leave by a copy that does not."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look, then run."""
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2]
        self.seen.add(func._schema.name)
        on_device = any(isinstance(arg, torch.Tensor) and arg.device.type != "cpu" for arg in args)
        if on_device and name in _SYNCS:
            raise HostSync(f"{name} waits for the device")
        if name == "copy_" and args[0].device.type == "cpu" and args[1].device.type != "cpu":
            waits = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
            if waits:
                raise HostSync("a copy to the host waits")
        result = func(*args, **kwargs)
        # `cpu`, `to` and whatever else has the device's values in a host tensor when it returns; copy_ was seen above
        if on_device and name != "copy_" and isinstance(result, torch.Tensor) and result.device.type == "cpu":
            raise HostSync(f"{name} brings a tensor to the host in a launched function")
        return result


class _TrappedStream:
    """Runs launched work on fake tensors, under the trap. The engine's own code around it stays real."""

    def __init__(self, mode: FakeTensorMode, trap: HostSyncTrap) -> None:
        self._mode, self._trap = mode, trap

    def launch(self, fn: Callable[..., None], *args: Any) -> None:
        """Run now. Host tensors are copied first: numpy may hold their memory, which a fake cannot take over."""
        own = [arg.clone() if isinstance(arg, torch.Tensor) and not is_fake(arg) else arg for arg in args]
        with self._mode, self._trap:
            fn(*own)

    def wait(self, event: Event) -> None:
        """Nothing runs apart."""

    def synchronize(self) -> None:
        """Nothing is pending."""


class _FakeEvent:
    """Reached at once: work ran at launch and raised there."""

    def record(self, stream: Stream) -> None:
        """Nothing to mark."""

    def query(self) -> bool:
        """Always."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""


class FakeRuntime:
    """A device of fake tensors. Host buffers are real, since the engine writes them with numpy."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.trap = device, HostSyncTrap()
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._host = HostRuntime(device)

    def stream(self) -> Stream:
        """A stream whose work is watched."""
        return _TrappedStream(self.mode, self.trap)

    def event(self) -> Event:
        """An event that is always reached."""
        return _FakeEvent()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A fake tensor of the device."""
        with self.mode:
            return self._host.empty(shape, dtype)

    def host_buffer(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Real memory."""
        return torch.zeros(tuple(shape), dtype=dtype)

    def memory(self) -> MemoryInfo:
        """Any."""
        return self._host.memory()

    def capture(self, fn: Callable[..., None], *args: Any, host_params: Sequence[str] = ()) -> Graph:
        """Graphs need a device."""
        raise NotImplementedError("fake tensors are not captured")


_POINTERS: dict[str, torch.dtype] = {kind: getattr(torch, name) for name, kind in POINTERS.items()}


@dataclass(slots=True)
class LaunchChecker:
    """A launcher that launches nothing: cases must be in the table, arguments must fit the signature.

    `compiled`: keys of the cases that are known to compile, or None where no table exists. `launched`: names.
    """

    compiled: frozenset[str] | None
    launched: set[str] = field(default_factory=set)

    def prepare(self, case: KernelCase) -> Launch:
        """AssertionError where the table lacks `case`."""
        assert self.compiled is None or case.key in self.compiled, f"{case.key} is not in the compiled table"

        def launch(grid: tuple[int, ...], *args: Any) -> None:
            assert all(type(size) is int and size > 0 for size in grid), (case.name, grid)
            assert len(args) == len(case.signature), (case.name, len(args), len(case.signature))
            for (name, kind), arg in zip(case.signature, args, strict=True):
                _check_argument(f"{case.name}: {name}", kind, arg)
            self.launched.add(case.name)

        return launch


def _check_argument(what: str, kind: str, arg: Any) -> None:
    plain, _, divisor = kind.partition(":")
    if plain in _POINTERS:
        assert isinstance(arg, torch.Tensor), (what, type(arg))
        assert arg.dtype == _POINTERS[plain], (what, arg.dtype, kind)
        assert arg.device.type != "cpu", (what, "is on the host")
        return
    if plain.startswith("i"):
        assert type(arg) is int, (what, type(arg))
        assert not divisor or arg % int(divisor) == 0, (what, arg, kind)
        return
    if plain.startswith("fp"):
        assert isinstance(arg, float | int), (what, type(arg))


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeRun:
    """What one family's steps used: operators of `namespace`, kernels, and providers by op."""

    operators: tuple[str, ...]
    kernels: tuple[str, ...]
    providers: Mapping[str, str]


def run_family(
    config: Mapping[str, Any],
    runtime: FakeRuntime,
    make_backend: Callable[[], Backend],
    launcher: LaunchChecker,
    namespace: str,
) -> FakeRun:
    """Build the model and run prefill, mixed and decode steps, greedy and with every sampling feature."""
    with runtime.mode:  # what is made at load lies on the device
        backend = make_backend()
        providers: dict[str, str] = {}

        def bind(op: Any, static: Any) -> Callable[..., Any]:
            providers[op.name] = backend.support(op, static).provider
            return backend.bind(op, static)

        forward, kv = _load(config, backend, bind)
    runner = _runner(config, backend, bind, forward, kv)
    numbers, groups = count(1), len(resolve(config).kv_specs(backend.capabilities.default_dtype))
    for rows in STEPS.values():
        for full in (False, True):
            _run_step(runner, _step_plan(next(numbers), rows, groups, full=full), rows, full=full)
    again = _step_plan(next(numbers), rows, groups, full=False)
    _run_step(runner, replace(again, remap_R=np.arange(len(rows), dtype=np.int32)), rows, full=False)
    prefix = f"{namespace}::"
    operators = sorted(name.removeprefix(prefix) for name in runtime.trap.seen if name.startswith(prefix))
    return FakeRun(
        operators=tuple(operators), kernels=tuple(sorted(launcher.launched)), providers=dict(sorted(providers.items()))
    )


def _load(config: Mapping[str, Any], backend: Backend, bind: Callable[..., Any]) -> tuple[Forward, KVCache]:
    model, dtype = resolve(config), backend.capabilities.default_dtype
    specs = model.kv_specs(dtype)
    block_size = backend.kv_layout(specs).block_size
    weights = {
        rule.name: backend.prepare_weight(rule.role, torch.empty(rule.shape, dtype=getattr(torch, dtype)), None)
        for rule in model.weight_rules()
    }

    def place(tensor: torch.Tensor) -> torch.Tensor:
        return backend.empty(tensor.shape, tensor.dtype).copy_(tensor)

    forward = model.build(bind, weights, dtype, block_size, MAX_LEN, place, None)
    return forward, backend.allocate_kv(specs, [4 * MAX_LEN // block_size] * len(specs))


def _runner(
    config: Mapping[str, Any], backend: Backend, bind: Callable[..., Any], forward: Forward, kv: KVCache
) -> Runner:
    model, dtype = resolve(config), backend.capabilities.default_dtype
    specs = model.kv_specs(dtype)
    block_size = backend.kv_layout(specs).block_size
    return Runner(
        backend,
        forward,
        kv,
        RunnerSpec(
            sizes=ArenaSizes(
                max_tokens=512, max_rows=8, max_blocks=MAX_LEN // block_size, num_groups=len(specs), depth=2
            ),
            block_size=block_size,
            vocab_size=model.config.vocab_size,
            hidden_size=model.config.hidden_size,
            dtype=dtype,
        ),
        bind,
    )


def _run_step(runner: Runner, plan: StepPlan, rows: Sequence[tuple[int, int]], *, full: bool) -> None:
    """`full`: temperatures, penalties, biases, masks, log-probabilities; otherwise greedy."""
    handle = runner.submit(plan)
    runner.sample(handle, _sample_plan(plan.step_id, rows, full=full))
    handle.done.synchronize()
    runner.abandon()


def _step_plan(number: int, rows: Sequence[tuple[int, int]], num_groups: int, *, full: bool) -> StepPlan:
    num_rows = len(rows)
    start_R, query_len_R = (np.array(column, dtype=np.int32) for column in zip(*rows, strict=True))
    places = np.array([0] if full and query_len_R[0] > 1 else [], dtype=np.int32)
    zeros_R, none_E = np.zeros(num_rows, dtype=np.int32), np.zeros(0, dtype=np.int32)
    return StepPlan(
        step_id=number,
        request_R=np.arange(num_rows, dtype=np.int64),
        epoch_R=zeros_R,
        slot_R=np.arange(num_rows, dtype=np.int32),
        start_R=start_R,
        uncertain_R=zeros_R,
        query_len_R=query_len_R,
        num_drafts_R=zeros_R,
        samples_R=np.ones(num_rows, dtype=np.bool_),
        remap_R=zeros_R - 1,
        floor_R=zeros_R,
        write_floor_R=zeros_R,
        block_tables=(1 + np.arange(num_rows * 4, dtype=np.int32).reshape(num_rows, 4),) * num_groups,
        predicted_RX=np.zeros((num_rows, 0), dtype=np.int32),
        num_predicted_R=zeros_R,
        entered_slot_E=none_E,
        entered_len_E=none_E,
        entered_tokens_T=none_E,
        token_ids_T=np.ones(int(query_len_R.sum()), dtype=np.int32),
        prompt_index_Q=places,
        prompt_target_Q=places,
        prompt_row_Q=places,
        prompt_position_Q=places + 1,
        num_prompt_logprobs=2 if places.size else -1,
    )


def _sample_plan(number: int, rows: Sequence[tuple[int, int]], *, full: bool) -> SamplePlan:
    num_rows, on = len(rows), np.float32(full)
    length_G = np.array([start + queries for start, queries in rows], dtype=np.int32)
    ones_G = np.ones(num_rows, dtype=np.float32)
    entries = [0] if full else []
    return SamplePlan(
        step_id=number,
        places_G=np.ones(num_rows, dtype=np.int32),
        temperature_P=ones_G * on,
        top_k_P=np.full(num_rows, 20, dtype=np.int32),
        top_p_P=ones_G * np.float32(0.9),
        min_p_P=ones_G * np.float32(0.1),
        seed_P=np.arange(num_rows, dtype=np.int64),
        position_P=length_G,
        history_PL=np.ones((num_rows, int(length_G.max()) if full else 0), dtype=np.int32),
        prompt_len_P=length_G,
        length_P=length_G,
        presence_P=ones_G,
        frequency_P=ones_G,
        repetition_P=ones_G,
        bias_row_M=np.array(entries, dtype=np.int32),
        bias_token_M=np.array(entries, dtype=np.int32),
        bias_value_M=np.array(entries, dtype=np.float32),
        mask_PW=np.full((num_rows, VOCAB // 32 if full else 0), -1, dtype=np.int32),
        num_logprobs=3 if full else -1,
    )
