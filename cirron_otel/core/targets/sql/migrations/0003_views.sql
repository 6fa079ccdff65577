-- The questions that users ask across ranks. Times are nanoseconds. Written so that SQLite and
-- PostgreSQL read it alike, and so that no value that a column may hold makes a view fail.

CREATE VIEW "TraceRun" AS
SELECT
  "workspaceId", "runId",
  MIN("pipelineId") AS "pipelineId", MIN("deploymentId") AS "deploymentId",
  MIN("modelId") AS "modelId",
  COUNT(DISTINCT "traceId") AS "sessions",
  SUM(CASE WHEN "name" = 'cirron.session' AND "parentSpanId" IS NULL THEN 1 ELSE 0 END)
    AS "endedSessions",
  COUNT(DISTINCT "rank") AS "ranks",
  SUM(CASE WHEN "name" = 'epoch' THEN 1 ELSE 0 END) AS "epochs",
  SUM(CASE WHEN "name" = 'step' THEN 1 ELSE 0 END) AS "steps",
  COUNT(*) AS "spans",
  MIN("startNs") AS "startNs", MAX("endNs") AS "endNs"
FROM "TraceSpan"
GROUP BY "workspaceId", "runId";

CREATE VIEW "TraceStep" AS
SELECT
  s."workspaceId", s."runId", s."traceId", s."rank",
  (SELECT MIN(e."index") FROM "TraceSpan" e
    WHERE e."id" = s."parentSpanId" AND e."name" = 'epoch' AND e."workspaceId" = s."workspaceId")
    AS "epoch",
  s."index" AS "step", s."id", s."startNs", s."endNs",
  CASE WHEN s."startNs" >= 0 AND s."endNs" >= s."startNs" THEN s."endNs" - s."startNs" END
    AS "durationNs",
  s."batchKey", s."ordinal"
FROM "TraceSpan" s
WHERE s."name" = 'step' AND s."startNs" >= 0 AND s."endNs" >= s."startNs";

CREATE VIEW "TraceStepByRank" AS
WITH "Placed" AS (
  SELECT
    "workspaceId", "runId", "rank", "endNs" - "startNs" AS "durationNs",
    CUME_DIST() OVER (
      PARTITION BY "workspaceId", "runId", "rank" ORDER BY "endNs" - "startNs"
    ) AS "share"
  FROM "TraceSpan"
  WHERE "name" = 'step' AND "startNs" >= 0 AND "endNs" >= "startNs"
)
SELECT
  "workspaceId", "runId", "rank",
  COUNT(*) AS "steps",
  SUM(CAST("durationNs" AS DOUBLE PRECISION)) AS "totalNs",
  AVG(CAST("durationNs" AS DOUBLE PRECISION)) AS "meanNs",
  MIN("durationNs") AS "minNs",
  MIN(CASE WHEN "share" >= 0.5 THEN "durationNs" END) AS "p50Ns",
  MIN(CASE WHEN "share" >= 0.95 THEN "durationNs" END) AS "p95Ns",
  MAX("durationNs") AS "maxNs"
FROM "Placed"
GROUP BY "workspaceId", "runId", "rank";

CREATE VIEW "TraceSlowestStep" AS
SELECT
  t."workspaceId", t."runId",
  ROW_NUMBER() OVER (
    PARTITION BY t."workspaceId", t."runId"
    ORDER BY t."durationNs" DESC, t."startNs", t."batchKey", t."ordinal"
  ) AS "place",
  t."rank", t."epoch", t."step", t."durationNs",
  CAST(t."durationNs" AS DOUBLE PRECISION) / NULLIF(r."p50Ns", 0) AS "timesMedian",
  t."startNs", t."id", t."traceId"
FROM "TraceStep" t
JOIN "TraceStepByRank" r
  ON r."workspaceId" = t."workspaceId" AND r."runId" = t."runId" AND r."rank" = t."rank";

CREATE VIEW "TracePhaseByRank" AS
WITH "Phase" AS (
  SELECT
    c."workspaceId", c."runId", c."rank", c."name" AS "phase",
    COUNT(*) AS "count",
    SUM(CAST(c."endNs" - c."startNs" AS DOUBLE PRECISION)) AS "totalNs",
    AVG(CAST(c."endNs" - c."startNs" AS DOUBLE PRECISION)) AS "meanNs",
    MAX(c."endNs" - c."startNs") AS "maxNs"
  FROM "TraceSpan" c
  WHERE c."startNs" >= 0 AND c."endNs" >= c."startNs" AND EXISTS (
    SELECT 1 FROM "TraceSpan" p
    WHERE p."id" = c."parentSpanId" AND p."name" = 'step' AND p."workspaceId" = c."workspaceId"
  )
  GROUP BY c."workspaceId", c."runId", c."rank", c."name"
),
"Steps" AS (
  SELECT
    "workspaceId", "runId", "rank",
    SUM(CAST("endNs" - "startNs" AS DOUBLE PRECISION)) AS "totalNs"
  FROM "TraceSpan"
  WHERE "name" = 'step' AND "startNs" >= 0 AND "endNs" >= "startNs"
  GROUP BY "workspaceId", "runId", "rank"
)
SELECT
  p."workspaceId", p."runId", p."rank", p."phase", p."count", p."totalNs", p."meanNs", p."maxNs",
  p."totalNs" / NULLIF(s."totalNs", 0) AS "shareOfSteps"
FROM "Phase" p
LEFT JOIN "Steps" s
  ON s."workspaceId" = p."workspaceId" AND s."runId" = p."runId" AND s."rank" = p."rank";

-- A mark belongs to the run of its scope; where that is not stored, to the run of the spans below
-- it; else to the run of its batch, if that has one.
CREATE VIEW "TraceMarkSeries" AS
SELECT
  COALESCE(s."workspaceId", b."workspaceId") AS "workspaceId",
  COALESCE(
    s."runId",
    (SELECT MIN(t."runId") FROM "TraceSpan" t WHERE t."traceId" = m."spanId"),
    b."runId"
  ) AS "runId",
  COALESCE(
    s."rank", (SELECT MIN(t."rank") FROM "TraceSpan" t WHERE t."traceId" = m."spanId")
  ) AS "rank",
  m."name", m."kind", m."tsNs",
  COALESCE(
    m."valueFloat",
    CAST(m."valueInt" AS DOUBLE PRECISION),
    CASE WHEN m."valueBool" THEN 1.0 WHEN NOT m."valueBool" THEN 0.0 END
  ) AS "value",
  m."valueString", m."valueType",
  m."spanId", s."name" AS "scope", s."index" AS "scopeIndex",
  m."id", m."batchKey", m."ordinal"
FROM "TraceMark" m
JOIN "TraceBatch" b ON b."batchKey" = m."batchKey"
LEFT JOIN "TraceSpan" s ON s."id" = m."spanId" AND NOT EXISTS (
  SELECT 1 FROM "TraceSpan" d
  WHERE d."id" = s."id" AND (d."batchKey", d."ordinal") < (s."batchKey", s."ordinal")
);
