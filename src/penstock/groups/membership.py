"""Who is in a group, who leads it, and what assignment protocol its members agree on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from penstock.groups import consumer_protocol
from penstock.groups.messages import JoinedMember, Member

__all__ = ["Membership"]


class Membership:
    """The members of one group, in the order they came. Pure data: knows no states and no time.

    Invariant: while there are members, at least one protocol is supported by all of them. Whoever adds
    or updates a member has asked `supports_any` before.
    """

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._static: dict[str, str] = {}  # group instance id -> member id, both members
        self._support: Counter[str] = Counter()  # protocol -> how many members support it
        self.leader: str | None = None  # None exactly when there are no members

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def __getitem__(self, member_id: str) -> Member:
        return self._members[member_id]

    def all(self) -> tuple[Member, ...]:
        return tuple(self._members.values())

    def static_member_id(self, group_instance_id: str) -> str | None:
        return self._static.get(group_instance_id)

    def add(self, member: Member) -> None:
        assert member.member_id not in self._members
        self._members[member.member_id] = member
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self._static
            self._static[member.group_instance_id] = member.member_id
        self._count(member, 1)
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> Member:
        member = self._members.pop(member_id)
        if member.group_instance_id is not None:
            del self._static[member.group_instance_id]
        self._count(member, -1)
        if self.leader == member_id:
            self.leader = next(iter(self._members), None)
        return member

    def update(self, member: Member) -> None:
        """Put `member` in the place of the one with its id."""
        self._count(self._members[member.member_id], -1)
        self._members[member.member_id] = member
        self._count(member, 1)

    def rename(self, old_id: str, member: Member) -> None:
        """Put a static `member` with a new id in the place, and the lead, of `old_id`."""
        leads = self.leader == old_id
        old = self.remove(old_id)
        assert old.group_instance_id == member.group_instance_id is not None
        self.add(member)
        if leads:
            self.leader = member.member_id

    def with_assignments(self, assignments: Mapping[str, bytes]) -> tuple[Member, ...]:
        """The members as `assign` would make them."""
        return tuple(
            replace(member, assignment=assignments.get(member.member_id, b""))
            for member in self._members.values()
        )

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """Give every member its assignment; those not mentioned get an empty one."""
        self._members = {m.member_id: m for m in self.with_assignments(assignments)}

    def supports_any(self, protocols: Iterable[str]) -> bool:
        """Whether one of `protocols` is supported by all members."""
        return any(self._support[name] == len(self._members) for name in protocols)

    def select_protocol(self) -> str:
        """Each member votes for its first choice among those all support; most votes win."""
        candidates = {name for name, count in self._support.items() if count == len(self._members)}
        votes = Counter(
            next(offer.name for offer in member.protocols if offer.name in candidates)
            for member in self._members.values()
        )
        return votes.most_common(1)[0][0]

    def elect_leader(self, joined: Container[str]) -> bool:
        """Keep the leader if it is among `joined`, else take the first who is. False: nobody is."""
        if self.leader is not None and self.leader in joined:
            return True
        for member_id in self._members:
            if member_id in joined:
                self.leader = member_id
                return True
        return False

    def rebalance_timeout_s(self) -> float:
        """The longest that any member asks the others to wait for it."""
        longest = max((m.rebalance_timeout_ms for m in self._members.values()), default=0)
        return max(longest, 0) / 1000

    def for_leader(self, protocol: str | None) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata(protocol),
            )
            for member in self._members.values()
        )

    def subscribed_topics(
        self, protocol_type: str | None, protocol: str | None
    ) -> frozenset[str] | None:
        """The topics that members subscribe to; None if that cannot be told."""
        if protocol_type != consumer_protocol.PROTOCOL_TYPE:
            return None
        topics: set[str] = set()
        for member in self._members.values():
            mine = consumer_protocol.subscribed_topics(member.metadata(protocol))
            if mine is None:
                return None
            topics |= mine
        return frozenset(topics)

    def _count(self, member: Member, by: int) -> None:
        for name in {offer.name for offer in member.protocols}:
            self._support[name] += by
            if not self._support[name]:
                del self._support[name]
