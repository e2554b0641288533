"""A real cluster for tests: etcd and brokers as processes of their own, gone with the test.

    with cluster() as c:                          # three brokers, all registered
        topic = c.create_topic(partitions=6)      # on all three, in sync
        producer = Producer({"bootstrap.servers": c.bootstrap, "acks": "all"})
        …
        old = c.leader_of(topic, 0)
        old.kill()                                # SIGKILL; .start() brings it back with its data
        c.leader_of(topic, 0, other_than=old)     # returns when another one leads
        old.start()
        c.wait_healthy()                          # returns when every replica is in sync

    with cluster(partitionable=True) as c:        # brokers meet each other and etcd through proxies
        c.isolate(0)                              # from the other brokers and from etcd
        c.heal()

Brokers are numbered from 0, and `c.brokers[i].id == i`. Every wait has a deadline; what it waited for in
vain is in the error, and the ends of the brokers' logs are in a note of any error that leaves the block.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from penstock.processes.broker import BrokerProcess
    from penstock.processes.inquiry import ClusterKnown, PartitionKnown
    from penstock.testing.etcd import EtcdCluster
    from penstock.testing.network import PartitionableNetwork

DEADLINE_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 20.0
_POLL_S: Final = 0.02
_ASK_TIMEOUT_S: Final = 2.0
_LOG_LINES_SHOWN: Final = 25

_Found = TypeVar("_Found")


class ClusterBroker:
    """One broker, on the same address and data in all of its lives. Not thread-safe."""

    __test__ = False

    def __init__(self, broker_id: int, address: str, process: BrokerProcess) -> None:
        self.id = broker_id
        self.address = address  # host:port for clients; with a partitionable network, of a proxy
        self.data_dir = process.data_dir
        self._process = process
        self._paused = False

    def __repr__(self) -> str:
        return f"<broker {self.id} at {self.address}>"

    @property
    def listens_at(self) -> str:
        """host:port of the broker itself, whatever the network does."""
        return self._process.address

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether its process is there, be it paused."""
        return self._process.running

    @property
    def responsive(self) -> bool:
        """Whether it runs and is not paused."""
        return self.running and not self._paused

    def kill(self) -> None:
        """`kill -9`. May be repeated."""
        self._process.kill()
        self._paused = False

    def pause(self) -> None:
        """Let it hang (SIGSTOP), past its lease if you wait: its connections stay. Returns when it does."""
        self._process.pause()
        self._paused = True

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        self._process.resume()
        self._paused = False

    def terminate(self) -> None:
        """Stop it cleanly (SIGTERM) and return when it has ended."""
        code = self._process.stop(_STOP_TIMEOUT_S)
        assert code == 0, f"broker {self.id} ended with exit code {code}; {self._log_end()}"

    def start(self, *, wait: bool = True) -> None:
        """Start it after it has ended, with the data it has. Returns when it serves, or at once."""
        self._process.launch()
        self._paused = False
        if wait:
            self.wait_ready()

    def wait_ready(self, timeout_s: float = DEADLINE_S) -> None:
        """Return when it serves. `PenstockError` with its log if it does not."""
        self._process.wait_ready(timeout_s)

    def restart(self) -> None:
        """Stop it cleanly and start it again."""
        self.terminate()
        self.start()

    def move(self, address: str, network: PartitionableNetwork | None = None) -> None:
        """Start it on another address, after it has ended."""
        self._process.move(address)
        if network is None:
            self.address = address
        else:
            network.set_target(self.id, address)
        self.start(wait=False)

    def known(self) -> ClusterKnown:
        """The cluster as this broker knows it now. `ClientError` if it does not tell."""
        from penstock.processes.inquiry import ask

        return ask(self.listens_at, timeout_s=_ASK_TIMEOUT_S)

    def log_text(self) -> str:
        """All that it logged in all of its lives."""
        return self._process.log_text()

    def _log_end(self) -> str:
        lines = self.log_text().splitlines()[-_LOG_LINES_SHOWN:]
        return "\n".join([f"the log of broker {self.id} ends with:", *lines])


class TestCluster:
    """Brokers and their etcd."""

    __test__ = False  # it is no test class, whatever its name

    def __init__(
        self,
        brokers: Sequence[ClusterBroker],
        etcd: EtcdCluster,
        network: PartitionableNetwork | None,
    ) -> None:
        self.brokers = tuple(brokers)
        self.etcd = etcd
        self._network = network

    @property
    def bootstrap(self) -> str:
        """Every broker's address, for clients."""
        return ",".join(broker.address for broker in self.brokers)

    # What there is

    def known(self) -> dict[int, ClusterKnown]:
        """The cluster as each broker that answers knows it."""
        from penstock.client.errors import ClientError

        answers = {}
        for broker in self.brokers:
            if broker.responsive:
                with contextlib.suppress(ClientError):
                    answers[broker.id] = broker.known()
        return answers

    def partition(self, topic: str, partition: int = 0) -> PartitionKnown | None:
        """What the broker with the newest news knows of a partition."""
        found = (known.partition(topic, partition) for known in self.known().values())
        return max(filter(None, found), key=lambda item: item.leader_epoch, default=None)

    def leader_of(
        self,
        topic: str,
        partition: int = 0,
        *,
        other_than: ClusterBroker | int | None = None,
        timeout_s: float = DEADLINE_S,
    ) -> ClusterBroker:
        """Who leads it; waits until somebody does, and it is not `other_than`."""
        unwanted = other_than.id if isinstance(other_than, ClusterBroker) else other_than

        def leader() -> ClusterBroker | None:
            known = self.partition(topic, partition)
            if known is None or not known.is_led or known.leader == unwanted:
                return None
            return self.brokers[known.leader]

        return self.wait_for(leader, f"a leader of {topic}-{partition}", timeout_s=timeout_s)

    def controller(self, *, timeout_s: float = DEADLINE_S) -> ClusterBroker:
        """The controller that all responsive brokers agree on; waits until they do."""

        def agreed() -> ClusterBroker | None:
            named = {known.controller for known in self.known().values()}
            return self.brokers[named.pop()] if len(named) == 1 and min(named) >= 0 else None

        return self.wait_for(agreed, "one controller", timeout_s=timeout_s)

    # Waiting

    def wait_for(
        self, found: Callable[[], _Found | None], what: str, *, timeout_s: float = DEADLINE_S
    ) -> _Found:
        """What `found` gives as soon as it is true. `TimeoutError` that names `what` if it never is."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            result = found()
            if result:
                return result
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"after {timeout_s:g} s there still is not {what}")
            time.sleep(_POLL_S)

    def wait_healthy(self, *, timeout_s: float = DEADLINE_S) -> None:
        """Return when every responsive broker knows all of them, every leader, and nobody out of sync.

        A broker that is dead or paused keeps its partitions from being healthy. What nobody has noticed
        yet is not waited for: before you resume a broker, wait for what its pause is to bring about.
        """
        from penstock.client.errors import ClientError

        deadline_s = time.monotonic() + timeout_s
        everybody = [broker.id for broker in self.brokers if broker.responsive]
        for broker in self.brokers:
            while broker.responsive:
                try:
                    known = broker.known()
                    trouble = known.trouble(everybody) or self._silent_replica(known)
                except ClientError as error:
                    trouble = str(error)
                if not trouble:
                    break
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"after {timeout_s:g} s, broker {broker.id}: {trouble}")
                time.sleep(_POLL_S)

    def _silent_replica(self, known: ClusterKnown) -> str:
        """A replica on a broker that is dead or paused, whether the others have noticed or not."""
        silent = {broker.id for broker in self.brokers if not broker.responsive}
        for item in known.partitions:
            for broker in silent.intersection(item.replicas):
                return f"{item.topic}-{item.partition} has a replica on broker {broker}, which is silent"
        return ""

    # Doing

    def create_topic(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        replicas: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic, and return its name when all brokers know it and all its replicas are in sync.

        The name is one that nobody else has, unless it is given; `replicas` unset: the default.
        """
        from penstock.cli.adminapi import AdminClient, NewTopic

        name = name or f"topic-{uuid.uuid4().hex[:12]}"
        new = NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=replicas or -1,
            config=dict(settings or {}),
        )
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.create_topics([new], operation_timeout=10, request_timeout=15)[name].result(
            timeout=20
        )
        self.wait_for(lambda: self._is_in_sync(name, partitions), f"{name} in sync everywhere")
        return name

    def _is_in_sync(self, topic: str, partitions: int) -> bool:
        answers = self.known().values()
        for known in answers:
            mine = [item for item in known.partitions if item.topic == topic]
            if len(mine) < partitions or any(
                not item.is_led or item.is_under_replicated for item in mine
            ):
                return False
        return bool(answers)

    # The network

    @property
    def network(self) -> PartitionableNetwork:
        assert self._network is not None, "ask for it: cluster(partitionable=True)"
        return self._network

    def isolate(
        self, broker: ClusterBroker | int, *, clients: bool = False, reset: bool = False
    ) -> None:
        """Cut a broker off from all other brokers and from etcd; with `clients`, from clients too.

        Bytes on existing connections are held back until `heal`; with `reset`, connections break.
        """
        self.network.isolate(_id(broker), clients=clients, reset=reset)

    def isolate_from_etcd(self, broker: ClusterBroker | int, *, reset: bool = False) -> None:
        """Cut a broker off from etcd alone."""
        self.network.isolate_from_etcd(_id(broker), reset=reset)

    def cut(
        self, one: ClusterBroker | int, other: ClusterBroker | int, *, reset: bool = False
    ) -> None:
        """Let two brokers no longer hear of each other; etcd hears of both."""
        self.network.cut(_id(one), _id(other), reset=reset)

    def heal(self) -> None:
        """Let everybody hear of everybody again. What was held back arrives, late."""
        self.network.heal()

    # The end

    def close(self) -> None:
        for broker in self.brokers:
            broker.kill()

    def log_ends(self) -> str:
        """The last lines of every broker's log."""
        return "\n\n".join(broker._log_end() for broker in self.brokers)


@contextlib.contextmanager
def cluster(
    brokers: int = 3,
    *,
    etcd_members: int = 1,
    partitionable: bool = False,
    racks: Sequence[str] = (),
    program: Sequence[str] = (sys.executable, "-m", "penstock"),
    **settings: Any,
) -> Iterator[TestCluster]:
    """A cluster whose brokers have all registered, with `BrokerConfig` fields as `settings` of each.

    They listen on free ports of 127.0.0.1 and keep their data in a temporary directory that is removed
    afterwards. `racks` are given to the brokers in turn. `program` is what runs as `penstock`.

    With `partitionable`, broker i listens on 127.0.0.(10+i) and tells everybody to come to a proxy on
    127.0.0.1, which knows by the address that a connection comes from who it is: brokers connect from
    the address they listen on. Linux only: other systems have one loopback address.
    """
    from penstock.testing.brokers import DEFAULTS
    from penstock.testing.etcd import etcd
    from penstock.testing.network import PartitionableNetwork

    scratch = tempfile.mkdtemp(prefix="penstock-cluster-")
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        running_etcd = stack.enter_context(etcd(members=etcd_members))
        network = None
        if partitionable:
            network = PartitionableNetwork(brokers, running_etcd.endpoints)
            stack.callback(network.close)
        started: list[ClusterBroker] = []
        running = TestCluster((), running_etcd, network)
        try:
            for number in range(brokers):
                mine = {**DEFAULTS, **settings}
                if racks:
                    mine["rack"] = racks[number % len(racks)]
                mine["etcd"] = ",".join(
                    running_etcd.endpoints if network is None else network.etcd_endpoints(number)
                )
                started.append(_launched(number, scratch, mine, network, program))
            running.brokers = tuple(started)
            for broker in started:
                _settle(broker, network)
            _wait_joined(running)
            yield running
        except BaseException as error:
            running.brokers = tuple(started)
            error.add_note(running.log_ends())
            raise
        finally:
            running.close()


def _launched(
    number: int,
    scratch: str,
    settings: dict[str, Any],
    network: PartitionableNetwork | None,
    program: Sequence[str],
) -> ClusterBroker:
    from penstock.processes.broker import BrokerProcess
    from penstock.processes.ports import free_port

    host = "127.0.0.1" if network is None else network.host(number)
    address = listens_at = f"{host}:{free_port()}"
    if network is not None:
        network.set_target(number, listens_at)
        address = network.address(number)
        settings["advertise_addr"] = address
    process = BrokerProcess(
        f"{scratch}/broker-{number}",
        f"{scratch}/broker-{number}.log",
        {**settings, "broker_id": number, "addr": listens_at},
        program,
    )
    process.launch()
    return ClusterBroker(number, address, process)


def _settle(broker: ClusterBroker, network: PartitionableNetwork | None) -> None:
    """Wait until a new broker serves; on another port, if somebody has taken its own meanwhile."""
    from penstock.errors import PenstockError
    from penstock.processes.ports import free_port, is_free

    for attempt in range(5):
        try:
            broker.wait_ready()
            return
        except PenstockError:
            host, _, port = broker.listens_at.rpartition(":")
            if attempt == 4 or is_free(int(port), host):
                raise
            broker.move(f"{host}:{free_port()}", network)


def _wait_joined(running: TestCluster) -> None:
    """Return when all brokers know each other and one controller."""
    everybody = {broker.id for broker in running.brokers}

    def joined() -> bool:
        answers = running.known()
        return answers.keys() == everybody and all(
            everybody <= known.brokers.keys() and known.controller in everybody
            for known in answers.values()
        )

    running.wait_for(joined, "a cluster of all brokers")


def _id(broker: ClusterBroker | int) -> int:
    return broker.id if isinstance(broker, ClusterBroker) else broker
