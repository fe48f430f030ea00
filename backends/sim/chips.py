"""Chips that the simulated device can pretend to be: peak numbers from public datasheets, not measurements.

Sources: NVIDIA's datasheets of H100 SXM, H200 SXM and HGX B200 (dense figures; the sparse ones are twice these),
Huawei's published figures of Ascend 910C and 950 as the press and vendor pages repeat them. `cpu2` is assumed:
two cores of an x86 server with AVX512_BF16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

TERA, GIGA = 1e12, 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """`flops`: dense peak by width of the operands in bits, 16, 8 or 4; a width it lacks runs as the next wider.

    `bandwidth` in bytes a second, `memory` in bytes, `launch_s`: fixed time of a step (launches, synchronisation).
    """

    description: str
    flops: Mapping[int, float]
    bandwidth: float
    memory: int
    launch_s: float

    def peak(self, bits: int) -> float:
        """Operations a second on operands of `bits` bits."""
        return self.flops[min(width for width in self.flops if width >= bits)]


CHIPS: Mapping[str, Chip] = MappingProxyType(
    {
        "b200": Chip(
            description="NVIDIA B200 (HGX)",
            flops={16: 2250 * TERA, 8: 4500 * TERA, 4: 9000 * TERA},
            bandwidth=8000 * GIGA,
            memory=180 * 10**9,
            launch_s=50e-6,
        ),
        "h200": Chip(
            description="NVIDIA H200 SXM",
            flops={16: 989 * TERA, 8: 1979 * TERA},
            bandwidth=4800 * GIGA,
            memory=141 * 10**9,
            launch_s=50e-6,
        ),
        "h100": Chip(
            description="NVIDIA H100 SXM",
            flops={16: 989 * TERA, 8: 1979 * TERA},
            bandwidth=3350 * GIGA,
            memory=80 * 10**9,
            launch_s=50e-6,
        ),
        "ascend910c": Chip(
            description="Ascend 910C, both dies",
            flops={16: 752 * TERA, 8: 1504 * TERA},
            bandwidth=3200 * GIGA,
            memory=128 * 10**9,
            launch_s=100e-6,
        ),
        "ascend950pr": Chip(
            description="Ascend 950PR",
            flops={16: 500 * TERA, 8: 1000 * TERA, 4: 2000 * TERA},
            bandwidth=1600 * GIGA,
            memory=128 * 10**9,
            launch_s=100e-6,
        ),
        "ascend950dt": Chip(
            description="Ascend 950DT",
            flops={16: 500 * TERA, 8: 1000 * TERA, 4: 2000 * TERA},
            bandwidth=4000 * GIGA,
            memory=144 * 10**9,
            launch_s=100e-6,
        ),
        "cpu2": Chip(
            description="two x86 cores",
            flops={16: 0.4 * TERA},
            bandwidth=25 * GIGA,
            memory=8 * 10**9,
            launch_s=20e-6,
        ),
    }
)
