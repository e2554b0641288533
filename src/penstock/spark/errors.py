"""What the data source raises, all of it words for the person whose query failed.

PenstockError
├── ConfigError
│   ├── OptionError      an option is unknown, missing or has an impossible value
│   └── SchemaError      a schema asks for columns or types that records do not have
├── MissingTopicError    a topic that was named is not there
└── DataLossError        records that should have been read are gone; it names their range
"""

from __future__ import annotations

from penstock.errors import ConfigError, PenstockError


class OptionError(ConfigError):
    """An option of a read or write is unknown, missing, or has a value that makes no sense."""


class SchemaError(ConfigError):
    """A schema asks for columns or types that records do not have. Nothing was read or written."""


class MissingTopicError(PenstockError):
    """A topic that a query names is not there."""


class DataLossError(PenstockError):
    """Records that the query should have read are gone, and `failOnDataLoss` is true."""
