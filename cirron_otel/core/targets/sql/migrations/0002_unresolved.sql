-- Scopes that stand as "traceId" without being stored themselves: when one is, and has a parent,
-- the spans that name it are moved to their session.

CREATE TABLE "TraceUnresolved" ("id" TEXT PRIMARY KEY);
INSERT INTO "TraceUnresolved"
  SELECT DISTINCT s."traceId" FROM "TraceSpan" s
  WHERE NOT EXISTS (SELECT 1 FROM "TraceSpan" p WHERE p."id" = s."traceId");

-- Of programs whose batches do not name their session: the sessions that have ended, and the
-- spans without a parent beside them that no session was found for yet.

CREATE TABLE "TraceSession" (
  "id" TEXT NOT NULL, "workspaceId" TEXT NOT NULL, "pid" BIGINT NOT NULL, "rank" INTEGER NOT NULL,
  "startNs" BIGINT NOT NULL, "endNs" BIGINT NOT NULL
);
CREATE INDEX "TraceSession_pid" ON "TraceSession" ("pid");
CREATE TABLE "TraceLoose" (
  "id" TEXT NOT NULL, "workspaceId" TEXT NOT NULL, "pid" BIGINT NOT NULL, "rank" INTEGER NOT NULL,
  "startNs" BIGINT NOT NULL, "endNs" BIGINT NOT NULL
);
CREATE INDEX "TraceLoose_pid" ON "TraceLoose" ("pid");
