"""The core that every front door calls."""

from penstock.broker.core import Broker

__all__ = ["Broker"]
