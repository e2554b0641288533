"""Deliberately broken rules, one each. A simulation that does not notice them checks nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.cluster.controller import Controller
from penstock.cluster.following import Following
from penstock.cluster.leadership import Leadership
from penstock.cluster.local import BrokerTerm
from penstock.cluster.replica import Replica
from penstock.testing.simulation import broken_controllers as controllers
from penstock.testing.simulation import broken_replicas as replicas
from penstock.testing.simulation.world import Behaviour

__all__ = ["MUTANTS", "Mutant"]


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    broken: str  # what it does wrong
    behaviour: Behaviour
    focus: tuple[str, ...] = ()  # the faults it takes, if all of them together meet too rarely


def _leader(name: str, broken: type[Leadership], focus: tuple[str, ...] = ()) -> Mutant:
    class Broken(Replica):
        leadership_type = broken

    return Mutant(name, broken.__doc__ or "", Behaviour(replica=Broken), focus)


def _follower(name: str, broken: type[Following], focus: tuple[str, ...] = ()) -> Mutant:
    class Broken(Replica):
        following_type = broken

    return Mutant(name, broken.__doc__ or "", Behaviour(replica=Broken), focus)


def _replica(name: str, broken: type[Replica], focus: tuple[str, ...] = ()) -> Mutant:
    return Mutant(name, broken.__doc__ or "", Behaviour(replica=broken), focus)


def _term(name: str, broken: type[BrokerTerm], focus: tuple[str, ...] = ()) -> Mutant:
    return Mutant(name, broken.__doc__ or "", Behaviour(term=broken), focus)


def _controller(name: str, broken: type[Controller], focus: tuple[str, ...] = ()) -> Mutant:
    return Mutant(name, broken.__doc__ or "", Behaviour(controller=broken), focus)


MUTANTS: Final = (
    _leader("append-without-lease", replicas.AppendsWithoutLease),
    _leader("answer-without-lease", replicas.AnswersWithoutLease),
    _term("generous-lease", replicas.CountsLeaseGenerously),
    _term("answer-while-leaving", replicas.AnswersWhileLeaving),
    _leader("early-watermark", replicas.ShowsAtOnce),
    _leader("count-any-replica", replicas.CountsAnyReplica),
    _leader("forget-proposals", replicas.ForgetsProposals),
    _leader("forget-unknown", replicas.ForgetsUnknownProposals, focus=("slow_store", "isolate")),
    _leader("watermark-falls", replicas.LetsTheHighWatermarkFall),
    _leader("trust-own-log", replicas.TrustsItsOwnLogAtOnce),
    _replica("read-uncommitted", replicas.ReadsAboveTheHighWatermark),
    _follower("watermark-first", replicas.TakesTheHighWatermarkFirst),
    _leader("alone-unsynced", replicas.IsAloneWithoutSync),
    _leader("shrink-unsynced", replicas.ShrinksToOneWithoutSync),
    _leader("below-minimum", replicas.AnswersBelowTheMinimum),
    _leader("blind-proposal", replicas.ProposesWithoutCompare),
    _leader("ignore-epoch-start", replicas.IgnoresItsEpochsStart),
    _leader("join-at-watermark", replicas.TakesInAtItsHighWatermark),
    _leader("take-anyone-in", replicas.TakesInWhoeverFetches),
    _leader(
        "serve-old-epochs",
        replicas.ServesOldEpochs,
        focus=("flip", "bad_network", "cut_from_store"),
    ),
    _leader(
        "old-incarnations", replicas.BelievesOldIncarnations, focus=("lose_power", "bad_network")
    ),
    _replica("lead-after-restart", replicas.LeadsAfterARestart),
    _leader("append-unready", replicas.AppendsBeforeItIsReady),
    _leader("never-truncate", replicas.NeverDiverges),
    _leader("truncate-by-offset", replicas.DivergesByOffsetOnly),
    _leader("count-diverging", replicas.CountsADivergingFetch),
    _replica("truncate-to-watermark", replicas.TruncatesToItsHighWatermark),
    _follower("take-any-answer", replicas.TakesAnyAnswer),
    _controller("elect-outside-isr", controllers.ElectsOutsideTheIsr),
    _controller("trust-any-disk", controllers.TrustsAnyDisk),
    _controller("keep-epoch", controllers.KeepsTheEpoch),
    _controller(
        "remove-quietly",
        controllers.KeepsTheEpochWithoutAReplica,
        focus=("reassign", "bad_network"),
    ),
    _controller("blind-controller", controllers.DecidesWithoutCompare),
    _controller("controller-shrinks", controllers.ShrinksTheIsrItself),
    _controller("switch-early", controllers.SwitchesBeforeInSync),
)
