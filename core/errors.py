"""Exceptions of isoinfer.

    Exception
     |- ValueError
     |   `- UserError                 what the user gave cannot work; the message says what to do
     |       |- BackendError          no such backend, not available, or its plugin is broken
     |       |- CheckpointError       a model folder or file cannot be read or does not fit
     |       |- RequestError          one request is impossible; the others go on
     |       `- TemplateError         the chat template rejects these messages
     `- RuntimeError
         |- StepError                 one engine step failed: its requests fail, the engine lives
         `- DeviceLost                the device is gone: every request fails once, then a clean exit

Programmer errors are plain assertions and are never caught.
"""

from __future__ import annotations


class UserError(ValueError):
    """What the user gave cannot work. The message says what happened and what to do."""


class BackendError(UserError):
    """A backend is unknown, not available on this machine, or its plugin is broken."""


class CheckpointError(UserError):
    """A model folder or file is missing, damaged, or does not fit the architecture."""


class RequestError(UserError):
    """One request can never be served. Other requests are not affected."""


class TemplateError(UserError):
    """The chat template rejected the messages or is itself invalid."""


class StepError(RuntimeError):
    """One engine step failed on the device. Its requests fail; the engine lives."""


class DeviceLost(RuntimeError):
    """The device can no longer be used. Every request fails once."""
