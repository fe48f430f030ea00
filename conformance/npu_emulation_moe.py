"""The mixture-of-experts operators with their constraints. Suffixes: T tokens, E experts, X choices, P = T * X."""

from __future__ import annotations

import torch

from isoinfer.conformance.npu_emulation_rules import require, require_contiguous, require_dtype, require_same_dtype

HALVES = (torch.float16, torch.bfloat16)


def gate(
    x_TE: torch.Tensor, k: int, k_group: int, group_count: int, renorm: int, norm_type: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Softmax and top k, lower index first among equals."""
    require_dtype((torch.float32, *HALVES), x=x_TE)
    require_contiguous(x=x_TE)
    experts = x_TE.shape[-1]
    require(renorm == 0, "renorm supports only 0", renorm)
    require(norm_type == 0, "only softmax is emulated", norm_type)
    require(group_count == k_group == 1, "only one group is emulated", group_count)
    require(experts // group_count > 2 and experts <= 2048, "a group has more than 2 experts, in all 2048", experts)
    require(0 < k <= experts, "k must be 1 to the number of experts", k)
    weights_TE = torch.softmax(x_TE.float(), -1)
    ids_TX = torch.sort(weights_TE, dim=-1, descending=True, stable=True).indices[:, :k]
    return weights_TE.gather(-1, ids_TX).to(x_TE.dtype), ids_TX.to(torch.int32), torch.empty(0)


def route(
    x_TH: torch.Tensor, ids_TX: torch.Tensor, active: int, experts: int, active_range: list[int] | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows sorted by expert; `row_P[t * X + x]` is where the row of token t's choice x went."""
    require_dtype((torch.int32,), expert_idx=ids_TX)
    require_contiguous(x=x_TH, expert_idx=ids_TX)
    require(active == ids_TX.numel(), "active_num must be T * k where nothing is dropped", active, ids_TX.numel())
    require(active_range == [0, experts], "active_expert_range must be given", active_range)
    require(bool(((ids_TX >= 0) & (ids_TX < experts)).all()), "expert ids must be in range", experts)
    order_P = torch.sort(ids_TX.flatten(), stable=True).indices
    row_P = torch.empty_like(order_P)
    row_P[order_P] = torch.arange(order_P.numel())
    counts_E = torch.bincount(ids_TX.flatten().long(), minlength=experts)
    return x_TH[order_P // ids_TX.shape[1]], row_P.to(torch.int32), counts_E, torch.empty(0)


def grouped_matmul(
    x: list[torch.Tensor],
    weight: list[torch.Tensor],
    groups: torch.Tensor | None,
    split_item: int | None,
    group_type: int | None,
    group_list_type: int | None,
) -> list[torch.Tensor]:
    """Products of neighbouring rows with the weight `[E, K, N]` of their group."""
    require(len(x) == len(weight) == 1, "one x and one weight of three dims", len(x), len(weight))
    x_PK, weight_EKN = x[0], weight[0]
    require_dtype(HALVES, x=x_PK)
    require_same_dtype(x=x_PK, weight=weight_EKN)
    require_contiguous(x=x_PK)
    require(split_item in (2, 3) and group_type == 0, "rows are split with group_type 0, split_item 2 or 3")
    require(weight_EKN.dim() == 3 and weight_EKN.shape[1] == x_PK.shape[1], "weight must be [E, K, N]")
    turned = weight_EKN.is_contiguous() or weight_EKN.transpose(1, 2).is_contiguous()
    require(turned, "weight must be contiguous, or its transpose", weight_EKN.stride())
    require(max(weight_EKN.shape[1:]) < 65536, "inner axes are under 65536", weight_EKN.shape)
    require(weight_EKN.shape[0] <= 1024, "at most 1024 groups", weight_EKN.shape)
    require(isinstance(groups, torch.Tensor) and groups.dtype == torch.int64, "group_list must be an int64 tensor")
    assert groups is not None
    require(groups.numel() == weight_EKN.shape[0], "one group an expert", groups.numel(), weight_EKN.shape)
    require(group_list_type == 0 or groups.numel() != 1, "counts of a single group are not taken")
    counts = (groups if group_list_type == 1 else groups.diff(prepend=groups.new_zeros(1))).tolist()
    require(min(counts) >= 0 and sum(counts) == x_PK.shape[0], "groups must add up to the rows", counts, x_PK.shape)
    parts = [rows.float() @ w.float() for rows, w in zip(torch.split(x_PK, counts), weight_EKN, strict=True)]
    return [torch.cat(parts).to(x_PK.dtype)]


def unpermute(tokens_PH: torch.Tensor, row_P: torch.Tensor, probs_TX: torch.Tensor | None) -> torch.Tensor:
    """Sum over a token's choices of weight times row."""
    require_contiguous(permuted_tokens=tokens_PH, sorted_indices=row_P)
    require_dtype((torch.int32,), sorted_indices=row_P)
    require(probs_TX is not None and probs_TX.numel() == row_P.numel(), "one weight a sorted row")
    assert probs_TX is not None
    require(bool((row_P >= 0).all()), "sorted_indices must not be negative", row_P.tolist())
    rows_TXH = tokens_PH[row_P.long()].view(*probs_TX.shape, -1)
    return (rows_TXH.float() * probs_TX.float()[..., None]).sum(1).to(tokens_PH.dtype)
