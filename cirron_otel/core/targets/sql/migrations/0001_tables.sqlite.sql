-- The tables of the schemas page ("Platform wire schemas"), the batches that their rows came in,
-- and in each table the column "extra": what the other columns do not say.

CREATE TABLE "TraceBatch" (
  "batchKey" INTEGER PRIMARY KEY AUTOINCREMENT,
  "name" TEXT NOT NULL,
  "hash" BLOB NOT NULL,
  "schemaVersion" INTEGER NOT NULL,
  "sdkVersion" TEXT NOT NULL,
  "batchId" TEXT NOT NULL,
  "createdNs" INTEGER NOT NULL,
  "storedNs" INTEGER NOT NULL,
  "workspaceId" TEXT NOT NULL,
  "runId" TEXT,
  "extra" TEXT,
  "body" BLOB,
  UNIQUE ("name", "hash")
);
CREATE INDEX "TraceBatch_createdNs" ON "TraceBatch" ("createdNs");

CREATE TABLE "TraceSpan" (
  "batchKey" INTEGER NOT NULL,
  "ordinal" INTEGER NOT NULL,
  "id" TEXT NOT NULL,
  "traceId" TEXT NOT NULL,
  "parentSpanId" TEXT,
  "name" TEXT NOT NULL,
  "index" INTEGER,
  "attrs" TEXT,
  "startNs" INTEGER NOT NULL,
  "endNs" INTEGER NOT NULL,
  "cpuNs" INTEGER,
  "gpuNs" INTEGER,
  "memoryPeakBytes" INTEGER,
  "threadId" INTEGER,
  "rank" INTEGER NOT NULL DEFAULT 0,
  "workspaceId" TEXT NOT NULL,
  "pipelineId" TEXT,
  "runId" TEXT NOT NULL,
  "deploymentId" TEXT,
  "modelId" TEXT,
  "extra" TEXT,
  PRIMARY KEY ("batchKey", "ordinal")
) WITHOUT ROWID;
CREATE INDEX "TraceSpan_run" ON "TraceSpan" ("workspaceId", "runId", "startNs");
CREATE INDEX "TraceSpan_pipeline" ON "TraceSpan" ("workspaceId", "pipelineId", "startNs");
CREATE INDEX "TraceSpan_deployment" ON "TraceSpan" ("workspaceId", "deploymentId", "startNs");
CREATE INDEX "TraceSpan_trace" ON "TraceSpan" ("traceId", "parentSpanId");
CREATE INDEX "TraceSpan_id" ON "TraceSpan" ("id");

CREATE TABLE "TraceMark" (
  "batchKey" INTEGER NOT NULL,
  "ordinal" INTEGER NOT NULL,
  "id" TEXT NOT NULL,
  "spanId" TEXT NOT NULL,
  "name" TEXT NOT NULL,
  "valueType" TEXT NOT NULL,
  "valueFloat" REAL,
  "valueInt" INTEGER,
  "valueString" TEXT,
  "valueBool" BOOLEAN,
  "attrs" TEXT,
  "tsNs" INTEGER NOT NULL,
  "kind" TEXT NOT NULL DEFAULT 'point',
  "extra" TEXT,
  PRIMARY KEY ("batchKey", "ordinal")
) WITHOUT ROWID;
CREATE INDEX "TraceMark_id" ON "TraceMark" ("id");
CREATE INDEX "TraceMark_span" ON "TraceMark" ("spanId");

CREATE TABLE "TraceSnapshot" (
  "batchKey" INTEGER NOT NULL,
  "ordinal" INTEGER NOT NULL,
  "id" TEXT NOT NULL,
  "spanId" TEXT NOT NULL,
  "tensorName" TEXT NOT NULL,
  "shape" TEXT NOT NULL,
  "dtype" TEXT NOT NULL,
  "mode" TEXT NOT NULL,
  "stats" TEXT,
  "blobUri" TEXT,
  "extra" TEXT,
  PRIMARY KEY ("batchKey", "ordinal")
) WITHOUT ROWID;
CREATE INDEX "TraceSnapshot_id" ON "TraceSnapshot" ("id");
CREATE INDEX "TraceSnapshot_span" ON "TraceSnapshot" ("spanId");
