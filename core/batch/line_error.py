"""Why one line of a batch file gets an error record instead of an answer. The job goes on."""

from __future__ import annotations

from isoinfer.errors import UserError


class LineError(UserError):
    """`code` for programs, the message for people, `param`: the field at fault.

    `status`: the HTTP status that the online API would give, or None where no request could be made of
    the line at all (its record then has no response).
    """

    def __init__(self, code: str, message: str, *, param: str | None = None, status: int | None = 400) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.status = status


def unreadable(code: str, number: int, message: str) -> LineError:
    """An error of the line itself, before its body. The line number is in the message: the id may be missing."""
    return LineError(code, f"Line {number}: {message}", status=None)
