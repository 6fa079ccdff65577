-- What a collector received, by its content, so that the same request is stored once, whichever
-- collectors of this database received it, and however they put it into batches.

CREATE TABLE "TraceDigest" ("digest" BLOB PRIMARY KEY, "batchKey" INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX "TraceDigest_batch" ON "TraceDigest" ("batchKey");
