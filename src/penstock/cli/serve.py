"""`penstock serve`: run a broker until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from inspect import Parameter, Signature
from typing import Any, Final

import typer

from penstock import __version__
from penstock.cli.options import examples
from penstock.cli.signals import SignalTimes
from penstock.settings import BrokerConfig

_OBJECTS_PER_COLLECTION: Final = 20_000

EPILOG: Final = examples(
    "penstock serve : on 127.0.0.1:9092, data in ./data",
    "penstock serve --addr 0.0.0.0:9092 --advertise-addr broker.example:9092",
    "penstock serve --config penstock.toml --log-level debug",
    "PENSTOCK_DATA_DIR=/var/lib/penstock penstock serve",
    note=(
        "Every option is also a setting in the TOML file (data_dir) and, topic defaults aside, an "
        "environment variable (PENSTOCK_DATA_DIR). The command line wins over the environment, which "
        "wins over the file. "
        "SIGTERM or Ctrl-C stops cleanly: requests in flight are answered and the log is synced; "
        "a second one stops at once."
    ),
)


def command() -> Callable[..., None]:
    """The command function, its options made from the fields of `BrokerConfig`."""

    def serve(*, config: str | None, **flags: Any) -> None:
        """Run a broker until SIGTERM or Ctrl-C."""
        run(BrokerConfig.load(file=config, overrides=_given(flags)))

    parameters = [
        Parameter(
            "config",
            Parameter.KEYWORD_ONLY,
            default=typer.Option(
                None, "--config", "-c", metavar="FILE", help="TOML file with settings."
            ),
            annotation=str | None,
        ),
        *(_parameter(item) for item in fields(BrokerConfig)),
    ]
    serve.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    serve.__annotations__ = {item.name: item.annotation for item in parameters}
    return serve


def _parameter(item: Field[Any]) -> Parameter:
    """The option for one setting. Unset is None (or an empty list), so that file and environment hold."""
    flag = "--" + item.name.replace("_", "-")
    kind, declared, default = _shape(item, flag)
    text = item.metadata["help"] + (f" (default: {default})" if default else "")
    text = text.replace("[", r"\[")  # it is no markup
    return Parameter(
        item.name,
        Parameter.KEYWORD_ONLY,
        default=typer.Option(None, declared, help=text, show_default=False),
        annotation=kind,
    )


def _shape(item: Field[Any], flag: str) -> tuple[Any, str, str]:
    """The type, the flag and the shown default of an option."""
    if item.default is MISSING:
        return list[str] | None, flag.removesuffix("s"), ""
    if isinstance(item.default, bool):
        on, off = flag, f"--no-{flag[2:]}"
        return bool | None, f"{on}/{off}", on if item.default else off
    return type(item.default) | None, flag, str(item.default)


def _given(flags: Mapping[str, Any]) -> dict[str, Any]:
    from penstock.cli.values import pairs

    given = {name: value for name, value in flags.items() if value not in (None, [])}
    if "topic_defaults" in given:
        given["topic_defaults"] = pairs(given["topic_defaults"], "topic setting")
    return given


def run(config: BrokerConfig) -> None:
    """Serve on uvloop until a signal. Errors before the broker listens are raised."""
    import uvloop

    from penstock.telemetry import configure_logging

    configure_logging(config.log_level)
    raise_open_file_limit()
    gc.disable()  # until there is something that can be garbage
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config))


async def _serve(config: BrokerConfig) -> None:
    from penstock.kafka.server import KafkaServer

    stop = _stop_on_signals()
    starting = asyncio.ensure_future(KafkaServer.start(config))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        return
    server = await starting
    _collect_less_garbage()
    host, port = server.address
    _announce(f"{f'[{host}]' if ':' in host else host}:{port}", config.data_dir)
    await stopping
    await server.stop()


def _collect_less_garbage() -> None:
    """Keep the garbage collector away from what is never garbage, and from requests that come and go.

    What is made for a request is freed when it is answered, without the collector. By default that looks
    for cycles after every 700 objects, of which a fetch of a thousand partitions makes thousands; and
    sometimes among all that there are, which holds up everybody for as long as there are partitions.
    """
    gc.freeze()
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    gc.enable()


def _announce(address: str, data_dir: str) -> None:
    from penstock.cli.main import STARTED_S

    seconds = time.perf_counter() - STARTED_S
    with contextlib.suppress(BrokenPipeError):
        print(
            f"penstock {__version__} ready in {seconds:.2f} s: kafka at {address}, data in {data_dir}",
            flush=True,
        )


def _stop_on_signals() -> asyncio.Event:
    """An event that the first SIGTERM or SIGINT sets; a second one ends the process at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    times = SignalTimes()

    def on_signal(number: int) -> None:
        if not times.is_another():
            return
        if not stop.is_set():
            stop.set()
            return
        print("penstock: stopped at once by a second signal", file=sys.stderr, flush=True)
        os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    return stop


def raise_open_file_limit() -> None:
    """Let the process open as many files as the system allows it; each segment and client is one."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # macOS refuses an unlimited soft limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
