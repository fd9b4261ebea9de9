"""Columns of what applications write into values: JSON and Protobuf, as typed columns.

*Invariants*: no record is dropped; a value that is not of the format is marked, never guessed.
"""

from typing import Any

from google.protobuf.message import DecodeError
from pyspark.errors import ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows
from pyspark.sql import types as T  # noqa: N812 - as above

from stilltide.connectors.errors import FatalError
from stilltide.connectors.spark.errors import check_argument

FAULTY = "faulty"
_CORRUPT = "_faulty_text"


def with_json(
    records: DataFrame, schema: T.StructType | str, *, column: str = "value", into: str = "data"
) -> DataFrame:
    """Adds the JSON of a column as a struct, and `faulty`.

    Args:
        records: a frame with a binary or text column.
        schema: the fields that are wanted, as a type or as DDL; others are passed over. A field
            that is absent is null.
        column: the column of JSON objects, in UTF-8.
        into: name of the struct; null where the column is null, or holds no such JSON.

    Raises:
        FatalError: `schema` is no schema.

    Returns:
        The frame with two more columns. `faulty` is true where the column is not null and is no
        JSON, or a field of it has another type.
    """
    check_argument("records", records, "DataFrame", "withColumn")
    wanted = _wanted(schema)
    marked = T.StructType([*wanted.fields, T.StructField(_CORRUPT, T.StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    parsed = F.from_json(F.col(column).cast("string"), marked, options)
    # The parser gives null for a text without any object, such as an empty one.
    bad = F.col(into).isNull() | F.col(into)[_CORRUPT].isNotNull()
    data = F.when(~F.col(FAULTY), F.col(into).dropFields(_CORRUPT))
    extended = records.withColumn(into, parsed)
    return extended.withColumn(FAULTY, F.col(column).isNotNull() & bad).withColumn(into, data)


def with_protobuf(
    records: DataFrame,
    message: type[Any],
    schema: T.StructType | str,
    *,
    column: str = "value",
    into: str = "data",
) -> DataFrame:
    """Adds the Protobuf message of a column as a struct, and `faulty`, as `with_json` does.

    Each value passes through Python, so tasks need Python with this package and the module of
    `message`, and take some ten times as long as for JSON.

    Args:
        records: a frame with a binary column.
        message: a generated class.
        schema: the fields that are wanted, under the names of the `.proto` file: scalars, messages
            as structs, repeated fields as arrays. A field that is not set has Protobuf's default.
        column: the column of messages.
        into: name of the struct.
    """
    check_argument("records", records, "DataFrame", "withColumn")
    check_argument("message", message, "class of Protobuf messages", "FromString")
    wanted = _wanted(schema)

    def decoded(value: bytes | bytearray | None) -> Any:
        if value is None:
            return None
        try:
            return _plain(message.FromString(bytes(value)), wanted)
        except DecodeError:
            return None

    parsed = records.withColumn(into, F.udf(decoded, wanted)(F.col(column)))
    return parsed.withColumn(FAULTY, F.col(column).isNotNull() & F.col(into).isNull())


def _wanted(schema: T.StructType | str) -> Any:
    try:
        wanted: Any = T.StructType.fromDDL(schema) if isinstance(schema, str) else schema
    except ParseException as error:
        raise FatalError(
            f"`schema` is {schema!r:.80}",
            detail=str(error).strip().splitlines()[0],
            hint="fields with their types: 'order string, cents bigint', for example",
        ) from error
    check_argument("schema", wanted, "StructType", "fields")
    return wanted


def _plain(value: Any, kind: T.DataType) -> Any:
    """A value of a message in the form that Spark takes for the type."""
    if isinstance(kind, T.StructType):
        return tuple(_plain(getattr(value, field.name), field.dataType) for field in kind.fields)
    if isinstance(kind, T.ArrayType):
        return [_plain(one, kind.elementType) for one in value]
    return value
