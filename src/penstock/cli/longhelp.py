"""Help for a command with many options: each on a line of its own, its text below, none cut short."""

from __future__ import annotations

import shutil
from typing import Any

from typer.core import TyperCommand


class LongHelpCommand(TyperCommand):
    """Shows its options as a list instead of a table, which would cut long names on a narrow screen."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - click's signature
        from rich.console import Console
        from rich.padding import Padding
        from rich.text import Text

        out = Console(width=shutil.get_terminal_size().columns, highlight=False)
        out.print(Text.assemble(("Usage: ", "bold"), ctx.command_path, " [OPTIONS]"))
        out.print(Padding(Text(self.help or ""), (1, 0)))
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is not None:
                names, text = record
                out.print(Text(f"  {names}", "bold cyan"))
                out.print(Padding(Text.from_markup(text), (0, 0, 0, 6)))  # as typer escaped it
        out.print(Padding(self.epilog or "", (1, 0)))
