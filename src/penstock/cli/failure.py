"""How a command fails: one line that says what is wrong, one that says what to do."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every command."""

    DONE = 0
    FAILED = 1  # the work was not done: broker unreachable, topic unknown, reader of a pipe gone…
    USAGE = 2  # the command line, a setting or the input is wrong
    INTERRUPTED = 130  # Ctrl-C, as shells report it


class CommandError(Exception):
    """Ends the command with `text` on stderr, `hint` below it, and the exit code."""

    def __init__(self, text: str, hint: str = "", code: Exit = Exit.FAILED) -> None:
        super().__init__(text)
        self.text = text
        self.hint = hint
        self.code = code


class UsageError(CommandError):
    """What was typed or given makes no sense."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text, hint, Exit.USAGE)
