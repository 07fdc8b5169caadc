"""The one exception for faults that the person at the keyboard can mend."""

from __future__ import annotations


class UserError(Exception):
    """A fault to be shown as one line: what happened, where, and what to do next.

    The command line prints the message without a traceback and exits with `exit_code`
    (2, "could not run", unless a caller says otherwise).
    """

    def __init__(self, what: str, *, next_step: str = "", exit_code: int = 2) -> None:
        super().__init__(f"{what}; {next_step}" if next_step else what)
        self.exit_code = exit_code
