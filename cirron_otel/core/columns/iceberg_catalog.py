"""The tables in an Iceberg catalog (docs/columns.md, "Iceberg")."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

from ...errors import CirronOtelError, EndpointError, InputError, MissingExtraError, UsageError
from ..targets.sql.url import parse_url
from .arrow import schema_of
from .schema import FORMAT_VERSION, TABLES, VERSION_KEY

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog

NAMESPACE, WAREHOUSE = "namespace", "warehouse"
_DEFAULT_NAMESPACE = "cirron"
_NAMESPACE = re.compile(r"[\w-]+(\.[\w-]+)*", re.ASCII)
_EXPECTED = "expected tables that `cirron-otel convert SRC iceberg:URL` wrote"
_S3_PROPERTIES = {
    "s3.access-key-id": ("AWS_ACCESS_KEY_ID",),
    "s3.secret-access-key": ("AWS_SECRET_ACCESS_KEY",),
    "s3.session-token": ("AWS_SESSION_TOKEN",),
    "s3.region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "s3.endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
}
"""The settings of S3, and the variables that they come from, as for blobs."""


class CatalogPlace(NamedTuple):
    """A namespace of a catalog, from `iceberg:URL`."""

    uri: str
    """The URL for SQLAlchemy; it may contain a password."""
    warehouse: str
    """The location of new tables."""
    namespace: str
    shown: str
    """The catalog, without secrets."""
    file: Path | None
    """The file of a catalog in SQLite."""


def parse_catalog(url: str) -> CatalogPlace:
    """Parse `sqlite:///FILE` or `postgresql://…` with the parameters `warehouse` and `namespace`.

    `FILE` alone is a catalog in SQLite, too.

    Raises UsageError, whose message contains no password.
    """
    base, _, query = url.partition("?")
    if ":" not in base or base.startswith("/"):
        base = f"sqlite:///{base}"
    parameters = dict(parse_qsl(query))
    warehouse = parameters.pop(WAREHOUSE, "")
    namespace = parameters.pop(NAMESPACE, _DEFAULT_NAMESPACE)
    if not _NAMESPACE.fullmatch(namespace):
        raise UsageError(
            f"the namespace {namespace!a} is not names of a-z, 0-9, _ and -, with dots"
        )
    location = parse_url(base + (f"?{urlencode(parameters)}" if parameters else ""))
    if location.path is not None:
        path = location.path.absolute()
        return CatalogPlace(
            f"sqlite:///{path}",
            _as_url(warehouse or str(path.with_suffix("")) + "-warehouse"),
            namespace,
            location.shown,
            path,
        )
    if not warehouse:
        raise UsageError(
            f"{location.shown} has no warehouse: add ?warehouse=s3://BUCKET/PREFIX or"
            " ?warehouse=DIR, the location of the tables"
        )
    uri = "postgresql+psycopg://" + location.url.partition("://")[2]
    return CatalogPlace(uri, _as_url(warehouse), namespace, location.shown, None)


def _as_url(warehouse: str) -> str:
    scheme = warehouse.partition("://")[0]
    if scheme != warehouse and scheme not in ("s3", "file"):
        raise UsageError(
            f"the warehouse is at {scheme}://…: expected a directory or s3://BUCKET/PREFIX"
        )
    return warehouse if "://" in warehouse else Path(warehouse).absolute().as_uri()


class IcebergCatalog:
    """A namespace with the tables."""

    def __init__(self, url: str, *, creates: bool = True) -> None:
        """Connect to the catalog, which `creates` creates if it does not exist.

        Raises UsageError, MissingExtraError, EndpointError, and InputError for a missing file.
        """
        self.place = parse_catalog(url)
        if not creates and self.place.file is not None and not self.place.file.exists():
            raise InputError(f"{self.place.shown} does not exist: {_EXPECTED}")
        try:
            from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415 - an extra, and slow
        except ImportError:
            raise MissingExtraError("iceberg", "an Iceberg catalog") from None
        settings = {
            name: value
            for name, variables in _S3_PROPERTIES.items()
            if (value := next(filter(None, map(os.environ.get, variables)), None))
        }
        with self.errors():
            self._catalog: SqlCatalog = SqlCatalog(
                "cirron", uri=self.place.uri, warehouse=self.place.warehouse, **settings
            )

    def create(self) -> None:
        """Create the tables that do not exist. Raises UsageError for another format version."""
        with self.errors():
            self._catalog.create_namespace_if_not_exists(self.place.namespace)
            for table in TABLES:
                self._catalog.create_table_if_not_exists(
                    (self.place.namespace, table),
                    schema=schema_of(table),
                    properties={
                        VERSION_KEY: str(FORMAT_VERSION),
                        "write.parquet.compression-codec": "zstd",
                    },
                )
        self.check()

    def check(self) -> None:
        """Raise InputError if there are no tables, or if they have another format version."""
        for table in TABLES:
            found = self.table(table).properties.get(VERSION_KEY)
            if found != str(FORMAT_VERSION):
                raise InputError(
                    f"{self.place.shown}: the table {self.place.namespace}.{table} has the format"
                    f" version {found}: expected {FORMAT_VERSION}"
                )

    def table(self, name: str) -> Any:
        """Return a table in its current state. Raises InputError if it does not exist."""
        from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 - slow

        try:
            with self.errors():
                return self._catalog.load_table((self.place.namespace, name))
        except NoSuchTableError:
            raise InputError(
                f"{self.place.shown} has no table {self.place.namespace}.{name}: {_EXPECTED}"
            ) from None

    def connection(self) -> Any:
        """Return a connection of the database."""
        with self.errors():
            return self._catalog.engine.connect()

    def close(self) -> None:
        """Close all connections."""
        self._catalog.engine.dispose()

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Convert the errors of the catalog and of its files to EndpointErrors, without secrets."""
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415 - slow
        from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415

        try:
            yield
        except CirronOtelError:
            raise
        except ImportError:
            raise MissingExtraError("postgres", "a catalog in PostgreSQL") from None
        except CommitFailedException:
            raise EndpointError(
                f"{self.place.shown}: another process changed the tables at the same time; try"
                " again, which adds what is missing"
            ) from None
        except SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            raise EndpointError(
                f"{self.place.shown} cannot be used: {str(cause).splitlines()[0]}"
            ) from None
        except OSError as error:
            what = error.strerror or str(error).splitlines()[0]
            raise EndpointError(f"{self.place.warehouse} cannot be used: {what}") from None
