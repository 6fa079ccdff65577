"""The feature service: `uvicorn service:app`. It reads from PostgreSQL (DATABASE_URL).

The service is traced by OpenTelemetry's own SDK and does not depend on Cirron. The span of a
request continues the trace of the client, and each SQL statement is a child of that span.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import psycopg
from fastapi import FastAPI, HTTPException, Query
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.dbapi import trace_integration
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

DATABASE_URL = os.environ["DATABASE_URL"]
# For the walk-through: a request for sample SLOW_ID takes SLOW_SECONDS longer.
SLOW_ID = int(os.environ.get("SLOW_ID", "-1"))
SLOW_SECONDS = float(os.environ.get("SLOW_SECONDS", "0.6"))

provider = TracerProvider(resource=Resource.create({"service.name": "features"}))
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
trace_integration(psycopg, "connect", "postgresql", {"server.address": "info.host"})


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    """Export the remaining spans at the end: a signal ends uvicorn, and atexit does not run."""
    yield
    provider.shutdown()


app = FastAPI(lifespan=lifespan)
# Omit the spans of ASGI messages: they add nothing to the span of the request.
FastAPIInstrumentor.instrument_app(app, exclude_spans=["receive", "send"])


@app.get("/features")
def features(ids: Annotated[list[int], Query(max_length=1000)]) -> list[tuple[list[float], int]]:
    """Return the features and the kind of each sample, in the requested order."""
    # A busy service would use a connection pool.
    with psycopg.connect(DATABASE_URL) as connection, connection.cursor() as cursor:
        if SLOW_ID in ids:
            cursor.execute("SELECT pg_sleep(%s)", [SLOW_SECONDS])
        cursor.execute("SELECT id, numbers, kind FROM features WHERE id = ANY(%s)", [ids])
        rows = {id_: (numbers, kind) for id_, numbers, kind in cursor}
    if missing := [id_ for id_ in ids if id_ not in rows]:
        raise HTTPException(404, f"no features of {missing}")
    return [rows[id_] for id_ in ids]
