-- Sessions and loose spans of a process are looked up by time: many processes have the same id, in
-- containers for instance, where each job is process 1.

DROP INDEX "TraceSession_pid";
DROP INDEX "TraceLoose_pid";
CREATE INDEX "TraceSession_pid_end" ON "TraceSession" ("pid", "endNs");
CREATE INDEX "TraceLoose_pid_start" ON "TraceLoose" ("pid", "startNs");
