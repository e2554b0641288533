"""What handlers say of their types."""

from __future__ import annotations

import inspect
import typing
from dataclasses import is_dataclass
from typing import Any

from penstock.broker import Broker
from penstock.kafka.api import Api


def response_type(api: Api[Any]) -> Any:
    """The dataclass that the handler returns, or promises."""
    module = inspect.getmodule(api.handle)
    hint = typing.get_type_hints(api.handle, {**vars(module), "Broker": Broker})["return"]
    return next(one for one in (hint, *typing.get_args(hint)) if is_dataclass(one))
