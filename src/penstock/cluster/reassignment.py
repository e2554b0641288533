"""Moving a partition to other brokers, one compare-and-swap at a time.

    begin      replicas = new ones and old ones      adding, removing are set         (controller)
    catch up   those being added join the ISR                                         (leader)
    hand over  one that stays leads, if the leader is to go                           (controller)
    shrink     those being removed leave the ISR, once all that stay are in it        (leader)
    finish     replicas = those that stay            adding, removing are empty       (controller)

Each step is taken from what the store holds, so it does not matter who takes it. Cancelling is a
reassignment back: those that were being added are removed the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.cluster.state import PartitionState
from penstock.errors import ApiError, ErrorCode

__all__ = ["begin", "cancel", "finish", "replicas_before"]


def begin(state: PartitionState, target: Sequence[int]) -> PartitionState:
    """Start to move to `target`, or change the course of a move that is under way."""
    if not target or len(set(target)) != len(target):
        raise ApiError(ErrorCode.invalid_replica_assignment, "replicas must differ, and be some")
    leaving = tuple(broker for broker in state.replicas if broker not in target)
    before = replicas_before(state)
    return replace(
        state,
        replicas=(*target, *leaving),
        adding=tuple(broker for broker in target if broker not in before),
        removing=leaving,
    )


def cancel(state: PartitionState) -> PartitionState:
    if not state.is_reassigning:
        raise ApiError(ErrorCode.no_reassignment_in_progress, "the partition is not being moved")
    return begin(state, replicas_before(state))


def finish(state: PartitionState) -> PartitionState:
    """The end of a move whose new replicas are all in sync and whose old ones are not; else as it is."""
    staying = state.target
    if not state.is_reassigning or not state.isr.keys() >= set(staying):
        return state
    if any(broker in state.isr for broker in state.removing):
        return state
    return replace(
        state,
        replicas=staying,
        adding=(),
        removing=(),
        ready=state.ready & set(staying),
        errors={broker: text for broker, text in state.errors.items() if broker in staying},
    )


def replicas_before(state: PartitionState) -> tuple[int, ...]:
    """The replicas without those that the move under way, if any, adds."""
    return tuple(broker for broker in state.replicas if broker not in state.adding)
