"""Keys of kernel cases: equal for equal cases, and different whenever compiled code may differ."""

from __future__ import annotations

from dataclasses import replace

from isoinfer.backends.kernel_case import KernelCase


def copy_kernel() -> None: ...


CASE = KernelCase(
    kernel=copy_kernel,
    signature=(("x_ptr", "*bf16:16"), ("size", "i32")),
    constants={"BLOCK": 64, "MASKED": True},
    options={"num_warps": 4},
)


def test_equal_cases_have_equal_keys_whatever_the_order_of_constants() -> None:
    same = replace(CASE, constants={"MASKED": True, "BLOCK": 64})
    assert same.key == CASE.key
    assert CASE.key.startswith("copy_kernel-")


def test_every_part_is_in_the_key() -> None:
    changed = [
        replace(CASE, signature=(("x_ptr", "*bf16"), ("size", "i32"))),
        replace(CASE, constants={"BLOCK": 128, "MASKED": True}),
        replace(CASE, constants={"BLOCK": 64, "MASKED": False}),
        replace(CASE, options={"num_warps": 8}),
    ]
    assert len({case.key for case in [CASE, *changed]}) == 5
