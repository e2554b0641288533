"""The `penstock` command: a broker, and a Kafka client for people and scripts.

Command modules import what they need inside their functions, so that `penstock serve` is ready soon
and `--help` answers at once.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from typing import Final, NoReturn

from penstock.cli.failure import CommandError, Exit

STARTED_S: Final = time.perf_counter()


def main() -> NoReturn:
    """Run the command line and exit with the code that `Exit` lists."""
    # kio prepares test strategies as soon as hypothesis can be imported: 150 ms of start-up that only
    # a machine with our development tools would pay. This process runs no property tests.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    _open_streams()
    signal.signal(signal.SIGTERM, _terminate)
    code: int = Exit.DONE
    try:
        from penstock.cli.app import app

        app()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else Exit.DONE
    except CommandError as error:
        code = _report(error.text, error.hint, error.code)
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    except Exception as error:
        code = _report(*_known(error))
    sys.exit(_flushed(code))


def _open_streams() -> None:
    """Put something in the place of streams that our starter closed, lest a file of ours gets their number.

    What the encoding of stdout does not have is escaped, as it is on stderr.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _terminate(number: int, _frame: object) -> NoReturn:
    """Unwind, so that consumers leave their groups and temporary brokers end."""
    sys.exit(128 + number)


def _known(error: Exception) -> tuple[str, str, Exit]:
    """Words for an error that no command translated; a bug of ours is raised again."""
    from penstock.errors import ConfigError, PenstockError

    if isinstance(error, ConfigError):
        return str(error), "`penstock serve --help` lists every setting.", Exit.USAGE
    if isinstance(error, PenstockError | OSError):
        return str(error), "", Exit.FAILED
    from confluent_kafka import KafkaError, KafkaException

    if isinstance(error, KafkaException) and isinstance(error.args[0], KafkaError):
        return error.args[0].str(), "", Exit.FAILED
    raise error


def _report(text: str, hint: str, code: Exit) -> Exit:
    from rich.text import Text

    from penstock.cli.output import console

    out = console(stderr=True)
    out.print(Text.assemble(("error: ", "bold red"), text), soft_wrap=True)
    if hint:
        out.print(Text(hint, "dim"), soft_wrap=True)
    return code


def _flushed(code: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    return code


if __name__ == "__main__":
    main()
