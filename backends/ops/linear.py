"""Matrix product with a prepared weight, and the canonical weights that references understand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from isoinfer.backends.ops.dtypes import compute_dtype, dtype_name, torch_dtype
from isoinfer.backends.ops.spec import ErrorModel, OpSpec, Sample
from isoinfer.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSpec:
    """`quant` is the weight's format (None, "int8" or "int4"), `dtype` that of x, `out_dtype` that of the result."""

    in_features: int
    out_features: int
    bias: bool
    quant: str | None
    dtype: str
    out_dtype: str


@dataclass(frozen=True, slots=True)
class DenseWeight:
    """A weight as the checkpoint has it: `[N, K]`, `[V, H]`, or `[E, N, K]` for experts."""

    tensor_NK: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.tensor_NK.nbytes

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """The values in `dtype`."""
        return self.tensor_NK.to(dtype)


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """Symmetric int8 with one float32 scale per output row: w = q * scale."""

    q_NK: torch.Tensor
    scale_N: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.q_NK.nbytes + self.scale_N.nbytes

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """The values in `dtype`."""
        return self.q_NK.to(dtype) * self.scale_N.to(dtype)[:, None]


def quantize_int8(w_NK: torch.Tensor) -> Int8Weight:
    """Symmetric rounding to -127..127 per output row. Quantising a dequantised weight returns the same integers."""
    w = w_NK.to(torch.float32)
    scale_N = w.abs().amax(dim=1) / 127
    safe_N = torch.where(scale_N > 0, scale_N, torch.ones_like(scale_N))
    return Int8Weight(torch.round(w / safe_N[:, None]).clamp(-127, 127).to(torch.int8), scale_N)


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """Unsigned 4 bit in groups of 32 inputs with a float16 scale and minimum each: w = q * scale + min.

    This is what GGUF's Q4_1 holds, whose values it keeps exactly. Suffix G: K / 32 groups.
    """

    q_NK: torch.Tensor
    scale_NG: torch.Tensor
    min_NG: torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.q_NK.nbytes + self.scale_NG.nbytes + self.min_NG.nbytes

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """The values in `dtype`."""
        scale_NK, min_NK = (side.to(dtype).repeat_interleave(INT4_GROUP, 1) for side in (self.scale_NG, self.min_NG))
        return self.q_NK.to(dtype) * scale_NK + min_NK


INT4_GROUP = 32
QuantizedWeight = Int8Weight | Int4Weight


def quantize_int4(w_NK: torch.Tensor) -> Int4Weight:
    """Round to 0..15 between each group's minimum and maximum. K must be a multiple of 32.

    Quantising a dequantised weight whose groups reach 0 and 15 returns the same integers. UserError for
    other K.
    """
    if w_NK.shape[1] % INT4_GROUP:
        raise UserError(
            f"int4 needs weights with a multiple of {INT4_GROUP} inputs, this model has one with {w_NK.shape[1]}; "
            "use int8"
        )
    w_NGX = w_NK.to(torch.float32).reshape(w_NK.shape[0], -1, INT4_GROUP)
    low_NG, high_NG = w_NGX.amin(2), w_NGX.amax(2)
    scale_NG, min_NG = ((high_NG - low_NG) / 15).half(), low_NG.half()
    safe_NG = torch.where(scale_NG > 0, scale_NG, torch.ones_like(scale_NG)).float()
    q_NGX = ((w_NGX - min_NG.float()[:, :, None]) / safe_NG[:, :, None]).round().clamp(0, 15)
    return Int4Weight(q_NGX.to(torch.uint8).flatten(1), scale_NG, min_NG)


def linear_reference(
    static: LinearSpec, x_TK: torch.Tensor, weight: DenseWeight | QuantizedWeight, bias_N: torch.Tensor | None
) -> torch.Tensor:
    """x @ w.T + bias, rounded once to `out_dtype`."""
    x = x_TK.to(compute_dtype(x_TK))
    y = x @ weight.dense(x.dtype).T
    if bias_N is not None:
        y = y + bias_N.to(x.dtype)
    return y if x_TK.dtype == torch.float64 else y.to(torch_dtype(static.out_dtype))


def _condition(
    static: LinearSpec, x_TK: torch.Tensor, weight: DenseWeight | QuantizedWeight, bias_N: torch.Tensor | None
) -> torch.Tensor:
    size_NK = weight.dense(x_TK.dtype).abs()
    if isinstance(weight, Int4Weight):  # providers may sum q * scale and min apart
        size_NK = size_NK + 2 * weight.min_NG.to(x_TK.dtype).abs().repeat_interleave(INT4_GROUP, 1)
    size_TN = x_TK.abs() @ size_NK.T
    return size_TN if bias_N is None else size_TN + bias_N.abs()


def _samples(dtype: torch.dtype, seed: int) -> Iterator[Sample]:
    gen = torch.Generator().manual_seed(seed)
    name = dtype_name(dtype)
    cases = (
        ("one-token", 1, 64, 96, False, None, name),
        ("odd-bias", 7, 51, 33, True, None, name),
        ("rows-33", 33, 256, 40, False, None, name),
        ("logits-float32", 3, 128, 301, False, None, "float32"),
        ("int8", 5, 128, 64, False, "int8", name),
        ("int8-bias-one-token", 1, 192, 48, True, "int8", name),
        ("int4", 9, 128, 72, False, "int4", name),
        ("int4-bias-one-token", 1, 192, 48, True, "int4", name),
        ("int4-logits-float32", 2, 96, 65, False, "int4", "float32"),
    )
    for label, T, K, N, bias, quant, out_dtype in cases:
        x = torch.randn(T, K, generator=gen).to(dtype)
        weight = _weight(N, K, quant, dtype, gen)
        static = LinearSpec(in_features=K, out_features=N, bias=bias, quant=quant, dtype=name, out_dtype=out_dtype)
        yield Sample(
            label=label, static=static, args=(x, weight, torch.randn(N, generator=gen).to(dtype) if bias else None)
        )


def _weight(
    num_outputs: int, num_inputs: int, quant: str | None, dtype: torch.dtype, gen: torch.Generator
) -> DenseWeight | QuantizedWeight:
    if quant is not None:
        return (_int8 if quant == "int8" else _int4)(num_outputs, num_inputs, gen)
    return DenseWeight((torch.randn(num_outputs, num_inputs, generator=gen) / num_inputs**0.5).to(dtype))


def _int4(num_outputs: int, num_inputs: int, gen: torch.Generator) -> Int4Weight:
    """Every group reaches 0 and 15, scales are powers of two: any backend quantises back to these."""
    groups = num_inputs // INT4_GROUP
    q_NK = torch.randint(0, 16, (num_outputs, num_inputs), generator=gen).to(torch.uint8)
    q_NK[:, ::INT4_GROUP], q_NK[:, 1::INT4_GROUP] = 0, 15
    scale_NG = torch.ldexp(torch.ones(num_outputs, groups), torch.randint(-8, -5, (num_outputs, groups), generator=gen))
    return Int4Weight(q_NK, scale_NG.half(), (-8 * scale_NG).half())


def _int8(num_outputs: int, num_inputs: int, gen: torch.Generator) -> Int8Weight:
    """Integers with scales that are powers of two: exact in every dtype, so any backend quantises back to these."""
    q_NK = torch.randint(-127, 128, (num_outputs, num_inputs), generator=gen).to(torch.int8)
    q_NK[:, 0] = 127
    exponent_N = torch.randint(-12, -8, (num_outputs,), generator=gen)
    return Int8Weight(q_NK, torch.ldexp(torch.ones(num_outputs), exponent_N))


def _in_features(static: LinearSpec) -> int:
    return static.in_features


LINEAR = OpSpec(
    name="linear",
    family="linear",
    signature="linear(x_TK, weight, bias_N) -> out_TN",
    static_type=LinearSpec,
    reference=linear_reference,
    samples=_samples,
    error=ErrorModel(kind="float", reduction=_in_features, condition=_condition),
    required=True,
)
