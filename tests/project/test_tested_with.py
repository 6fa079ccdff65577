"""docs/tested-with.md lists each program and service that the pages name: tested, or not tried."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tested-with.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| program ")  # nor the lines of dashes
]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "recipes").glob("*.md")),
    *(ROOT / folder / "README.md" for folder in ("deploy", "docker", "collector-config")),
]
_NAMES = """
OpenTelemetry Collector, Jaeger, Tempo, Prometheus, Mimir, Grafana Cloud, Grafana, Honeycomb,
Datadog, New Relic, Dynatrace, SigNoz, Splunk, Elasticsearch, OpenSearch, Cassandra, Zipkin,
X-Ray, Kafka, Redpanda, Pulsar, RabbitMQ, NATS, Kinesis, SQLite, PostgreSQL, PgBouncer, MySQL,
MariaDB, ClickHouse, Snowflake, BigQuery, Redshift, Athena, Databricks, versitygw, MinIO, Ceph,
GCS, Google Cloud Storage, Azure, DuckDB, pyarrow, pandas, Polars, Jupyter, Iceberg, Delta Lake,
Hudi, Spark, Trino, Presto, Flink, Dremio, DataFusion, torchrun, Slurm, Open MPI, PMIx,
Kubernetes, Kubeflow, systemd, Docker, Podman, Perfetto, Speedscope, chrome://tracing
"""
_ANY_NAME = "|".join(re.escape(" ".join(name.split())) for name in _NAMES.split(","))
NAMES = re.compile(rf"\b(?:{_ANY_NAME})\b")
"""Names of programs and services that a page could promise."""
VERSIONS = {
    "DuckDB": "duckdb", "pyarrow": "pyarrow", "pandas": "pandas", "Polars": "polars",
    "Jupyter": "ipykernel", "Iceberg": "pyiceberg",
}  # fmt: skip


def test_the_tables_are_complete() -> None:
    assert len(ROWS) > 25
    for program, started, tests, not_tried in ROWS:
        assert program
        assert started
        assert tests or not_tried or "no target" in started, program


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_name_is_in_the_tables(page: Path) -> None:
    listed = {name for row in ROWS for cell in row for name in NAMES.findall(cell)}
    assert {*NAMES.findall(page.read_text())} - listed == set()


def test_the_tests_exist() -> None:
    named = {name for row in ROWS for name in re.findall(r"`([^`]+)`", row[2] if row[2:] else "")}
    assert len(named) > 12
    for name in named:
        path = ROOT / "tests" / name
        assert path.is_dir() if name.endswith("/") else path.is_file(), name


def test_documented_versions_match_the_pins() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    for program, package in VERSIONS.items():
        (row,) = (row for row in ROWS if row[0] == program)
        assert pins[package] in row[1], program
    assert pins["duckdb-cli"] in PAGE
    manifest = (ROOT / "collector-config" / "manifest.yaml").read_text()
    (collector,) = (row for row in ROWS if row[0] == "OpenTelemetry Collector")
    assert f"version: {collector[1].partition(',')[0]}.0" in manifest
    jaeger = (ROOT / "collector-config" / "jaeger" / "go.mod").read_text()
    assert "jaegertracing/jaeger v1.76.0" in jaeger
