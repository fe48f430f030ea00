"""The simulated backend through the seam and through its plugin."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from isoinfer.backends.descriptor import BACKEND_API, BackendConfig, DeviceInfo
from isoinfer.backends.interface import AttentionBatch
from isoinfer.backends.ops import ALL_OPS, ARGMAX, GATHER_ROWS, LINEAR, GatherSpec, LinearSpec, LogitsSpec
from isoinfer.backends.plugin import Plugin
from isoinfer.backends.plugin_source import PluginSource
from isoinfer.backends.registry_choice import choose_best, choose_device
from isoinfer.backends.registry_records import PluginRecord
from isoinfer.backends.sim.backend import SimBackend
from isoinfer.backends.sim.chips import CHIPS
from isoinfer.errors import BackendError

SOURCE = PluginSource(name="sim", value="isoinfer.backends.sim.plugin", distribution="isoinfer", version="")


def ids(*blocks):
    return np.array(blocks, dtype=np.int32)


@pytest.fixture
def record():
    from isoinfer.backends.probe_result import probe_plugin

    return PluginRecord(source=SOURCE, result=probe_plugin(SOURCE))


def test_the_plugin_offers_itself_and_every_chip_as_simulated(record):
    assert record.error is None
    assert record.descriptor.api == BACKEND_API
    assert [device.id for device in record.devices] == ["0", *CHIPS]
    assert all(device.description.startswith("simulated") for device in record.devices)
    assert choose_device(record, None).spec == "sim:0"
    assert choose_device(record, "b200").spec == "sim:b200"


def test_auto_prefers_anything_that_is_real(record):
    real = PluginSource(name="real", value="real", distribution="real", version="")
    device = DeviceInfo(id="0", description="", score=0)
    from isoinfer.backends.probe_result import ProbeResult

    other = PluginRecord(source=real, result=ProbeResult(descriptor=record.descriptor, devices=(device,)))
    assert choose_best([record, other]).name == "real"


def test_the_plugin_creates_it_and_claims_nothing():
    plugin = Plugin(SOURCE)
    (plain, b200, *_) = plugin.probe()
    backend = plugin.create(b200, BackendConfig())
    assert isinstance(backend, SimBackend)
    assert backend.describe()[0].startswith("sim: SIMULATED device")
    assert "roofline of 1 x NVIDIA B200" in backend.describe()[0]
    assert "5 ms a step" in plugin.create(plain, BackendConfig(options={"step_ms": "5"})).describe()[0]
    assert plugin.claims(plain).profiles == ()


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (BackendConfig(assume="b200"), "name the chip as its device: sim:b200"),
        (BackendConfig(dtype="int8"), "counts bytes of bfloat16, float16, float32, not of int8"),
        (BackendConfig(options={"what": "1"}), "no option 'what'"),
    ],
)
def test_what_cannot_be_is_refused(config, text):
    with pytest.raises(BackendError, match=text):
        SimBackend(DeviceInfo(id="0", description="", score=-1), config)


def test_capabilities_follow_the_options(make_backend):
    plain = make_backend().capabilities
    assert (plain.overlap_pays, plain.host_lengths, plain.max_in_flight, plain.graph_limit) == (True, False, 2, 0)
    other = make_backend(overlap_pays="off", host_lengths="on", max_in_flight=3, block_size=128).capabilities
    assert (other.overlap_pays, other.host_lengths, other.max_in_flight) == (False, True, 3)
    assert other.kernel_block_sizes == (128,)
    assert make_backend(graphs="on").capabilities.graph_limit == 64
    assert plain.default_dtype == "bfloat16"


def test_memory_is_the_chips(make_backend):
    assert make_backend("h200", count=2).memory().total == 2 * 141 * 10**9
    assert make_backend("h200", memory=1000).memory().free == 1000
    assert make_backend().memory().total == 4 << 30


def test_layout_has_the_bytes_of_the_real_model(make_driver):
    driver = make_driver(None, 6)
    layout = driver.backend.kv_layout(driver.spec.kv_specs)
    assert (layout.block_size, layout.bytes_per_block, layout.num_scratch_blocks) == (4, (256, 256), 0)
    assert make_driver(None, graphs="on").backend.kv_layout(driver.spec.kv_specs).num_scratch_blocks == 1


def test_blocks_are_copied_exported_and_imported(make_driver, row):
    driver = make_driver(None, 6)
    step = row(tokens=(1, 2, 3), start=0, tables=((4,), (5,)))
    want = driver.answers(step)
    driver.backend.copy_blocks(driver.kv, 0, ids(4), ids(9), driver.stream)
    driver.backend.copy_blocks(driver.kv, 1, ids(5), ids(8), driver.stream)
    driver.stream.synchronize()
    last = step.but(tokens=(3,), start=2, tables=((9,), (8,)))
    assert driver.answers(last) == want
    other = make_driver(None, 6)
    for layer, block in ((0, 4), (1, 5)):
        k, v = driver.backend.export_blocks(driver.kv, layer, ids(block))
        assert (k.shape, k.dtype) == ((1, 4, 1, 1), torch.int64)
        other.backend.import_blocks(other.kv, layer, ids(block), k, v)
    assert other.answers(last.but(tables=((4,), (5,)))) == want


def test_exact_host_lengths_are_demanded_and_checked_where_the_device_needs_them(make_driver, row):
    driver = make_driver(None, host_lengths="on")
    step = row(tokens=(1, 2, 3), start=0, tables=((4,),))
    driver.hidden(step)
    batch = driver.batch([step])
    batch.groups[0].plan.kv_len_device_R[0] = 4
    batch.groups[0].plan.kv_len_upper_R[0] = 9
    with pytest.raises(Exception, match="exact host lengths"):
        driver.forward.hidden(batch, driver.kv)
    attention = AttentionBatch(
        query_len_R=ids(1),
        kv_len_upper_R=ids(1),
        kv_len_device_R=torch.tensor([1], dtype=torch.int32),
        block_table_RB=torch.ones((1, 1), dtype=torch.int32),
        block_size=4,
    )
    with pytest.raises(AssertionError, match="exact host KV lengths are absent"):
        driver.backend.plan_attention(attention, driver.stream)
    make_driver(None).backend.plan_attention(attention, driver.stream)


def test_a_graph_is_replayed_with_the_lengths_of_its_step(make_driver, row):
    step = row(tokens=(1, 2, 3), start=0, tables=((4,),))
    plan = make_driver(None, host_lengths="on").batch([step]).groups[0].plan
    assert list(plan.host_params) == ["kv_len_host_R"]
    assert make_driver(None).batch([step]).groups[0].plan.host_params == {}
    seen = []
    graph = make_driver(None, graphs="on").backend.capture(seen.append, 5)
    assert seen == []
    graph.replay({})
    assert seen == [5]


def test_ops_without_weights_are_served_and_others_refused(make_backend):
    backend = make_backend()
    hidden = torch.arange(6, dtype=torch.int64)[:, None] << 40
    gather = backend.bind(GATHER_ROWS, GatherSpec(width=8, dtype="float32"))
    assert torch.equal(gather(hidden, torch.tensor([5, 1], dtype=torch.int32)), hidden[[5, 1]])
    argmax = backend.bind(ARGMAX, LogitsSpec(vocab_size=5))
    assert argmax(torch.tensor([[0.0, 2, 1, 2, 0]])).tolist() == [1]
    static = LinearSpec(in_features=4, out_features=4, bias=False, quant=None, dtype="float32", out_dtype="float32")
    assert backend.support(LINEAR, static).status == "unsupported"
    with pytest.raises(BackendError, match="runs as a whole"):
        backend.bind(LINEAR, static)
    with pytest.raises(BackendError, match="no weights"):
        backend.prepare_weight("linear", torch.ones(2, 2), None)


def test_every_op_that_a_step_needs_beside_the_model_is_served(make_backend):
    backend = make_backend()
    for op in ALL_OPS.values():
        if op.family in ("logits", "sample", "gather", "remap", "verify"):
            static = next(iter(op.samples(torch.float32, 0))).static
            assert backend.support(op, static).status == "supported", op.name
