"""Files and folders of a table, on a local disk or on a file system of Hadoop.

*Source*: docs/protocols K2, K5.
*Invariants*: `publish` renames a folder as a whole or not at all; `create` makes a file with its
whole content or not at all, and of several callers with one name at most one succeeds.

On an object store `publish` would copy file after file, so tables there use only `create`.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

_EXISTS = ("FileAlreadyExistsException",)
_MISSING = ("FileNotFoundException",)

_BY_RENAME = ("hdfs", "viewfs", "abfs", "abfss", "file")
"""Schemes of file systems that show a file from its first byte on, and rename it in one step.

On the others, object stores, a file appears when it is closed.
"""


class TableFiles(Protocol):
    """The files below one folder; names are relative to the folder.

    Attributes:
        uri: the folder's address for Spark.
    """

    uri: str

    def names(self, folder: str = "") -> list[str]:
        """The names in a folder, in order; none if the folder is missing."""
        ...

    def read(self, name: str) -> str:
        """The text of a file; raises OSError if there is none."""
        ...

    def modified_ms(self, name: str) -> int:
        """When a file was written, milliseconds since 1970; raises OSError if there is none."""
        ...

    def create(self, name: str, text: str) -> bool:
        """Makes a file; durable when the call returns. False: the name was taken (K5)."""
        ...

    def publish(self, staged: str, name: str) -> bool:
        """Renames a folder; durable when the call returns. False: the name was taken (K5)."""
        ...

    def remove(self, name: str) -> None:
        """Removes a file or folder, if there is one."""
        ...


class LocalFiles:
    """Files of a disk that driver and executors see under one path.

    Args:
        root: the folder; made when missing.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._root.mkdir(parents=True, exist_ok=True)
        self.uri = self._root.as_uri()

    def names(self, folder: str = "") -> list[str]:
        """The names in a folder."""
        path = self._root / folder
        return sorted(it.name for it in path.iterdir()) if path.is_dir() else []

    def read(self, name: str) -> str:
        """The text of a file."""
        return (self._root / name).read_text()

    def modified_ms(self, name: str) -> int:
        """When a file was written."""
        return (self._root / name).stat().st_mtime_ns // 1_000_000

    def create(self, name: str, text: str) -> bool:
        """Makes a file: a link to a finished file is made in one step, and fails if taken."""
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}-{uuid4().hex}")
        with draft.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        _sync(path.parent)
        return True

    def publish(self, staged: str, name: str) -> bool:
        """Renames a folder; its files are on the disk before."""
        source, target = self._root / staged, self._root / name
        for path in source.iterdir():
            _sync(path)
        _sync(source)
        try:
            source.rename(target)
        except OSError:
            if target.exists():
                return False
            raise
        _sync(self._root)
        return True

    def remove(self, name: str) -> None:
        """Removes a file or folder."""
        path = self._root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


class HadoopFiles:
    """Files of any file system that Spark's JVM knows, such as `hdfs://namenode/tables/orders`.

    Args:
        spark: the session.
        uri: the folder's address; the folder is made when something is written.
    """

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self._jvm: Any = spark._jvm  # noqa: SLF001 - PySpark offers no file systems
        self._gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - as above
        self._by_rename = urlsplit(self.uri).scheme in _BY_RENAME
        conf = spark._jsc.hadoopConfiguration()  # type: ignore[attr-defined]  # noqa: SLF001 - as above
        path = self._path("")
        self._files = path.getFileSystem(conf)
        self._context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
            path.toUri(), conf
        )

    def names(self, folder: str = "") -> list[str]:
        """The names in a folder."""
        try:
            statuses = self._files.listStatus(self._path(folder))
        except Py4JJavaError as error:
            if _is(error, _MISSING):
                return []
            raise
        return sorted(it.getPath().getName() for it in statuses)

    def read(self, name: str) -> str:
        """The text of a file."""
        try:
            stream = self._files.open(self._path(name))
            try:
                return bytes(stream.readAllBytes()).decode()
            finally:
                stream.close()
        except Py4JJavaError as error:
            raise OSError(f"{self.uri}/{name}: {error.java_exception.toString()}") from error

    def modified_ms(self, name: str) -> int:
        """When a file was written."""
        try:
            return int(self._files.getFileStatus(self._path(name)).getModificationTime())
        except Py4JJavaError as error:
            raise OSError(f"{self.uri}/{name}: {error.java_exception.toString()}") from error

    def create(self, name: str, text: str) -> bool:
        """Makes a file; a process that dies meanwhile leaves a draft, or nothing."""
        if not self._by_rename:
            return self._write(name, text)
        folder, slash, last = name.rpartition("/")
        draft = f"{folder}{slash}.{last}-{uuid4().hex}"
        self._write(draft, text)
        try:
            return self._rename(draft, name)
        finally:
            self.remove(draft)

    def publish(self, staged: str, name: str) -> bool:
        """Renames a folder; unlike `FileSystem.rename`, never into an existing one."""
        return not self._files.exists(self._path(name)) and self._rename(staged, name)

    def remove(self, name: str) -> None:
        """Removes a file or folder."""
        with suppress(FileNotFoundError):
            self._files.delete(self._path(name), True)

    def _write(self, name: str, text: str) -> bool:
        content = bytearray(text.encode())
        try:
            stream = self._files.create(self._path(name), False)
        except Py4JJavaError as error:
            if _is(error, _EXISTS):
                return False
            raise
        stream.write(content)
        stream.close()
        return True

    def _rename(self, draft: str, name: str) -> bool:
        """False: the name was taken."""
        options = self._gateway.new_array(
            getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename"), 0
        )
        try:
            self._context.rename(self._path(draft), self._path(name), options)
        except Py4JJavaError as error:
            if _is(error, _EXISTS):
                return False
            raise
        return True

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.uri}/{name}" if name else self.uri)


def _is(error: Py4JJavaError, marks: tuple[str, ...]) -> bool:
    return any(mark in str(error.java_exception.toString()) for mark in marks)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
