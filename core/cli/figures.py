"""The closing line of figures of `generate` and `chat`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from isoinfer.outputs import RequestOutput


@dataclass(slots=True, kw_only=True)
class Figures:
    """Counts requests and tokens from its making on."""

    started: float = field(default_factory=time.monotonic)
    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0

    def add(self, output: RequestOutput | None, error: str | None) -> None:
        """Count one finished request."""
        self.requests += 1
        self.failed += error is not None
        if output is not None:
            self.prompt_tokens += len(output.prompt_token_ids)
            self.output_tokens += sum(len(completion.token_ids) for completion in output.outputs)

    def sentence(self, engine: str = "") -> str:
        """All of it in one line, and what the engine says of itself."""
        seconds = max(time.monotonic() - self.started, 1e-9)
        failed = f" ({self.failed} failed)" if self.failed else ""
        return (
            f"{self.requests} request{'' if self.requests == 1 else 's'}{failed}, {self.prompt_tokens} prompt tokens, "
            f"{self.output_tokens} output tokens in {seconds:.2f} s: {self.output_tokens / seconds:.1f} tokens/s"
            f"{'; ' if engine else ''}{engine}"
        )
