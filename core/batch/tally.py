"""The figures of a batch job: counted while it runs, shown by the progress bar, printed at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, kw_only=True)
class Tally:
    """`resumed` lines were in the output file before this run; `failed` counts theirs too. Tokens and seconds
    are of this run. `total` lines of the input, None if it cannot be counted beforehand.
    """

    total: int | None = None
    resumed: int = 0
    written: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0

    @property
    def lines(self) -> int:
        """Lines in the output file."""
        return self.resumed + self.written

    @property
    def lines_per_second(self) -> float:
        return self.written / self.seconds if self.seconds > 0 else 0.0

    @property
    def output_tokens_per_second(self) -> float:
        return self.output_tokens / self.seconds if self.seconds > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For machines."""
        return {
            "lines": self.lines,
            "succeeded": self.lines - self.failed,
            "failed": self.failed,
            "resumed": self.resumed,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "seconds": round(self.seconds, 3),
            "lines_per_second": round(self.lines_per_second, 3),
            "output_tokens_per_second": round(self.output_tokens_per_second, 3),
        }

    def sentence(self) -> str:
        """The closing line."""
        earlier = f", {self.resumed} of them from an earlier run" if self.resumed else ""
        return (
            f"{self.lines} lines ({self.lines - self.failed} answered, {self.failed} failed{earlier}) in "
            f"{self.seconds:.1f} s: {self.lines_per_second:.1f} lines/s, {self.output_tokens} output tokens, "
            f"{self.output_tokens_per_second:.1f} tokens/s"
        )
