-- A partition for each day. The day is part of "batchKey", so all rows of a batch are in partitions
-- of the same day: 100000000000 times the day of "createdNs" (since 1970, UTC), plus a number. Keys
-- below 100000000000 are in the partitions "…_other": the rows of earlier versions, which stay where
-- they are, and batches of other times than the last month.

DO $check$ BEGIN
  IF current_setting('server_version_num')::integer < 140000 THEN
    RAISE 'PostgreSQL % is too old: use version 14 or newer', current_setting('server_version')
      USING ERRCODE = '0A000';
  END IF;
END $check$;

-- The days that have partitions. A writer locks the rows of its days (FOR SHARE) until it commits.
-- The partitions of a day that "isExpired" are being removed: no writer uses them any more.
CREATE TABLE "TraceDay" ("day" integer PRIMARY KEY, "isExpired" boolean NOT NULL DEFAULT false);

-- The names of all batches: a unique index of a partitioned table must include the day.
CREATE TABLE "TraceName" ("name" text, "hash" bytea, "batchKey" bigint NOT NULL);
INSERT INTO "TraceName" SELECT "name", "hash", "batchKey" FROM "TraceBatch";
ALTER TABLE "TraceName" ADD PRIMARY KEY ("name", "hash");
CREATE INDEX "TraceName_batch" ON "TraceName" ("batchKey");

CREATE SEQUENCE "TraceBatch_number" MAXVALUE 99999999999;
SELECT setval('"TraceBatch_number"', MAX("batchKey")) FROM "TraceBatch" HAVING COUNT(*) > 0;

CREATE FUNCTION "TraceBatch_add"() RETURNS trigger LANGUAGE plpgsql AS $add$ BEGIN
  INSERT INTO "TraceName" VALUES (NEW."name", NEW."hash", NEW."batchKey") ON CONFLICT DO NOTHING;
  RETURN CASE WHEN FOUND THEN NEW END;
END $add$;
CREATE FUNCTION "TraceBatch_remove"() RETURNS trigger LANGUAGE plpgsql AS $remove$ BEGIN
  DELETE FROM "TraceName"
    WHERE "name" = OLD."name" AND "hash" = OLD."hash" AND "batchKey" = OLD."batchKey";
  RETURN NULL;
END $remove$;

DO $days$
DECLARE
  tables CONSTANT text[] := ARRAY['TraceBatch', 'TraceSpan', 'TraceMark', 'TraceSnapshot'];
  views text[];
  drops text[];
  statements text[];
  of_table text;
  other text;
  statement text;
BEGIN
  -- Views are bound to a table, not to its name: they are created again, with their privileges.
  WITH RECURSIVE dependent (oid, depth) AS (
    SELECT format('%I', t)::regclass::oid, 0 FROM unnest(tables) t
    UNION
    SELECT r.ev_class, d.depth + 1 FROM dependent d
    JOIN pg_depend p ON p.refclassid = 'pg_class'::regclass AND p.refobjid = d.oid
      AND p.classid = 'pg_rewrite'::regclass
    JOIN pg_rewrite r ON r.oid = p.objid AND r.ev_class <> d.oid
  ), sorted AS (
    SELECT oid, MAX(depth) AS depth FROM dependent WHERE depth > 0 GROUP BY oid
  )
  SELECT
    array_agg(oid::regclass::text || CASE relkind WHEN 'm' THEN ' (materialized)' ELSE '' END),
    array_agg(format('DROP VIEW %s', oid::regclass) ORDER BY depth DESC),
    array_agg(
      format(
        'CREATE VIEW %s%s AS %s', oid::regclass,
        ' WITH (' || array_to_string(reloptions, ', ') || ')', pg_get_viewdef(oid)
      ) ORDER BY depth
    )
  INTO views, drops, statements
  FROM sorted JOIN pg_class USING (oid);
  IF array_to_string(views, ', ') LIKE '% (materialized)%' THEN
    RAISE 'the tables are used by materialized views, which must be dropped first: %', views
      USING ERRCODE = '0A000';
  END IF;
  SELECT statements || array_agg(
    format(
      'GRANT %s ON %s TO %s%s', a.privilege_type, c.oid::regclass,
      CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END,
      CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END
    )
  )
  INTO statements
  FROM pg_class c, aclexplode(c.relacl) a
  WHERE a.grantee <> c.relowner AND c.oid::regclass::text = ANY (views || (
    SELECT array_agg(format('%I', t)::regclass::text) FROM unnest(tables) t
  ));
  SELECT statements || array_agg(
    format(
      'GRANT %s ON "TraceName", "TraceDay" TO %s', a.privilege_type,
      CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
    )
  ) || array_agg(
    format(
      'GRANT USAGE ON SEQUENCE "TraceBatch_number" TO %s',
      CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
    )
  )
  INTO statements
  FROM pg_class c, aclexplode(c.relacl) a
  WHERE a.grantee <> c.relowner AND c.oid = '"TraceBatch"'::regclass;

  FOREACH statement IN ARRAY drops LOOP
    EXECUTE statement;
  END LOOP;
  ALTER TABLE "TraceBatch" DROP CONSTRAINT "TraceBatch_name_hash_key";
  ALTER TABLE "TraceBatch" ALTER "batchKey" DROP IDENTITY;
  FOREACH of_table IN ARRAY tables LOOP
    other := of_table || '_other';
    EXECUTE format('ALTER TABLE %I RENAME TO %I', of_table, other);
    EXECUTE format(
      'CREATE TABLE %I (LIKE %I INCLUDING ALL) PARTITION BY RANGE ("batchKey")', of_table, other
    );
    EXECUTE format(
      'ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (MINVALUE) TO (100000000000)',
      of_table, other
    );
  END LOOP;
  FOREACH statement IN ARRAY statements LOOP
    EXECUTE statement;
  END LOOP;
END $days$;

-- Writers of version 5 that are connected go on: their batches get small keys.
ALTER TABLE "TraceBatch" ALTER "batchKey" SET DEFAULT nextval('"TraceBatch_number"');
CREATE INDEX "TraceBatch_name" ON "TraceBatch" ("name", "batchKey");
CREATE TRIGGER "TraceBatch_add" BEFORE INSERT ON "TraceBatch"
  FOR EACH ROW EXECUTE FUNCTION "TraceBatch_add"();
CREATE TRIGGER "TraceBatch_remove" AFTER DELETE ON "TraceBatch"
  FOR EACH ROW EXECUTE FUNCTION "TraceBatch_remove"();
