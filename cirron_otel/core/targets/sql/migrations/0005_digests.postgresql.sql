-- What a collector received, by its content, so that the same request is stored once, whichever
-- collectors of this database received it, and however they put it into batches.

CREATE TABLE "TraceDigest" ("digest" bytea PRIMARY KEY, "batchKey" bigint NOT NULL);
CREATE INDEX "TraceDigest_batch" ON "TraceDigest" ("batchKey");
