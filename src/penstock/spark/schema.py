"""The columns: what a read has to offer, what a schema may select of it, and what a write takes."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.spark.errors import SchemaError

HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)

# As in Spark's Kafka connector, and in its order.
COLUMNS: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
}
_MAYBE_NULL: Final = {"key", "value", "headers"}

WRITABLE: Final[dict[str, tuple[DataType, ...]]] = {
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "topic": (StringType(),),
    "partition": (IntegerType(),),
    "headers": (HEADERS,),
}
# Columns of a read that a write passes over, so that what was read can be written as it is.
_PASSED_OVER: Final = {"offset", "timestamp", "timestampType"}


def read_schema(*, headers: bool) -> StructType:
    """All columns; `headers` only if asked for."""
    return StructType(
        [StructField(name, kind) for name, kind in COLUMNS.items() if headers or name != "headers"]
    )


def check_read_schema(schema: StructType) -> None:
    """A schema may have any of the columns in any order, with their own types."""
    if not schema.fields:
        raise SchemaError(f"the schema has no column; there are {', '.join(COLUMNS)}")
    seen = set()
    for field in schema.fields:
        kind = COLUMNS.get(field.name)
        if kind is None:
            raise SchemaError(f"there is no column {field.name!r}; there are {', '.join(COLUMNS)}")
        if not _same(kind, field.dataType):
            raise SchemaError(
                f"column {field.name} is of type {kind.simpleString()}, "
                f"not {field.dataType.simpleString()}; cast it after reading"
            )
        if not field.nullable and field.name in _MAYBE_NULL:
            raise SchemaError(f"column {field.name} can be null; take NOT NULL off the schema")
        if field.name in seen:
            raise SchemaError(f"column {field.name} is in the schema twice")
        seen.add(field.name)


def check_write_schema(schema: StructType, topic: str | None) -> None:
    """A write has a `value`, knows its topic, and has no column that would silently be dropped."""
    for field in schema.fields:
        kinds = WRITABLE.get(field.name)
        if kinds is None and field.name not in _PASSED_OVER:
            raise SchemaError(
                f"a record has no {field.name!r}: select only {', '.join(WRITABLE)} before writing"
            )
        if kinds is not None and not any(_same(kind, field.dataType) for kind in kinds):
            names = " or ".join(kind.simpleString() for kind in kinds)
            raise SchemaError(
                f"column {field.name} is of type {field.dataType.simpleString()}, it must be {names}"
            )
    names_there = schema.fieldNames()
    if len(set(names_there)) != len(names_there):
        raise SchemaError(f"a column is there twice: {', '.join(names_there)}")
    if "value" not in names_there:
        raise SchemaError(f"there is no column 'value', only {', '.join(names_there)}")
    if topic is None and "topic" not in names_there:
        raise SchemaError("no topic: set the option `topic`, or add a column of that name")


def _same(wanted: DataType, given: DataType) -> bool:
    """Whether two types are the same but for what may be null and for the collation of text."""
    if isinstance(wanted, StructType):
        return (
            isinstance(given, StructType)
            and given.fieldNames() == wanted.fieldNames()
            and all(
                _same(one.dataType, other.dataType)
                for one, other in zip(wanted.fields, given.fields, strict=True)
            )
        )
    if isinstance(wanted, ArrayType):
        return isinstance(given, ArrayType) and _same(wanted.elementType, given.elementType)
    return type(wanted) is type(given)
