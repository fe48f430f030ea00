"""What an engine has counted since it started, for people and for logs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Counts since start; the names are those of vLLM's metrics where it has one.

    `prefix_cache_queries` and `_hits`: prompt tokens that were looked up, and found. `num_draft_tokens`: drafts that
    were verified, `num_accepted_tokens` of them accepted. `num_wasted_rows`: rows computed for requests that had
    ended. `host_length_waits`: steps whose attention had to know on the host how many drafts were accepted.
    """

    num_steps: int
    num_scheduled_tokens: int
    num_preemptions: int
    num_failed_steps: int
    num_wasted_rows: int
    num_draft_tokens: int
    num_accepted_tokens: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    prefix_cache_evictions: int
    host_length_waits: int

    def sentence(self) -> str:
        """The parts that say something, in one line; empty if there are none."""
        parts = []
        if self.prefix_cache_hits:
            parts.append(f"prefix cache: {self.prefix_cache_hits} of {self.prefix_cache_queries} tokens")
        if self.num_draft_tokens:
            share = self.num_accepted_tokens / self.num_draft_tokens
            parts.append(f"drafts: {self.num_accepted_tokens} of {self.num_draft_tokens} accepted ({share:.0%})")
        if self.num_preemptions:
            parts.append(f"{self.num_preemptions} preemption{'' if self.num_preemptions == 1 else 's'}")
        if self.num_failed_steps:
            parts.append(f"{self.num_failed_steps} failed step{'' if self.num_failed_steps == 1 else 's'}")
        return "; ".join(parts)
