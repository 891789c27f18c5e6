--
-- CREATE EXTENSION and DROP EXTENSION: what is there, for whom, and what is left
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS idem CASCADE;
RESET client_min_messages;

-- Everything else happens in a database that nobody else has touched.
SELECT current_database() AS home \gset
SET client_min_messages = error;
DROP DATABASE IF EXISTS idem_install_regression;
DROP ROLE IF EXISTS regress_idem_user;
RESET client_min_messages;
CREATE DATABASE idem_install_regression TEMPLATE template0;
\c idem_install_regression
CREATE VIEW objects AS
	SELECT (SELECT count(*) FROM pg_class) AS classes, (SELECT count(*) FROM pg_proc) AS functions, (SELECT count(*) FROM pg_type) AS types,
		   (SELECT count(*) FROM pg_namespace) AS schemas, (SELECT count(*) FROM pg_constraint) AS constraints, (SELECT count(*) FROM pg_depend) AS depends,
		   (SELECT count(*) FROM pg_description) AS comments, (SELECT count(*) FROM pg_init_privs) AS privileges;
CREATE TABLE objects_before (LIKE objects);
\set SHOW_CONTEXT never

--
-- 1. What is in the way is said, and nothing is left of the attempt
--
CREATE EXTENSION idem;
\echo :LAST_ERROR_SQLSTATE
SET client_min_messages = warning;
CREATE EXTENSION pgcrypto;
CREATE SCHEMA idem;
CREATE EXTENSION idem;
\echo :LAST_ERROR_SQLSTATE
CREATE EXTENSION idem SCHEMA idem;
\echo :LAST_ERROR_SQLSTATE
DROP SCHEMA idem;
CREATE EXTENSION idem SCHEMA nowhere;
\echo :LAST_ERROR_SQLSTATE
CREATE ROLE regress_idem_user;
GRANT CREATE ON DATABASE idem_install_regression TO regress_idem_user;
SET ROLE regress_idem_user;
CREATE EXTENSION idem;
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
SELECT count(*) AS left FROM pg_namespace WHERE nspname = 'idem';
SELECT superuser, trusted, relocatable, schema, requires FROM pg_available_extension_versions WHERE name = 'idem' AND version = '0.1.0';

--
-- 2. Installed into a schema of its own; what is there
--
INSERT INTO objects_before TABLE objects;
CREATE SCHEMA app;
CREATE EXTENSION idem SCHEMA app;
RESET client_min_messages;
SELECT extname, extversion, extrelocatable, extnamespace::regnamespace FROM pg_extension WHERE extname = 'idem';
ALTER EXTENSION idem SET SCHEMA public;
\echo :LAST_ERROR_SQLSTATE

CREATE VIEW member AS
	SELECT d.classid, d.objid, pg_describe_object(d.classid, d.objid, 0) AS what
	  FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
	 WHERE e.extname = 'idem' AND d.deptype = 'e';
-- leaves by their number, all else by name
SELECT regexp_replace(what, 'box_\d\d$', 'box_NN') AS member, count(*) FROM member GROUP BY 1 ORDER BY regexp_replace(what, 'box_\d\d$', 'box_NN') COLLATE "C";
-- functions: what they promise to the planner
SELECT p.oid::regprocedure AS function, provolatile AS volatile, proisstrict AS strict, proparallel AS parallel, prosecdef AS definer
  FROM pg_proc AS p JOIN member AS m ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid ORDER BY p.oid::regprocedure::text COLLATE "C";
-- functions: argument names and defaults, which callers use, and columns of results
SELECT p.oid::regproc AS function, pg_get_function_arguments(p.oid) AS arguments, pg_get_function_result(p.oid) AS result
  FROM pg_proc AS p JOIN member AS m ON m.classid = 'pg_proc'::regclass AND m.objid = p.oid
 WHERE p.pronamespace = 'app'::regnamespace ORDER BY p.oid::regprocedure::text COLLATE "C" \g (format=unaligned tuples_only=on fieldsep=' | ')
SELECT attrelid::regclass AS type, string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attnum) AS columns
  FROM pg_attribute WHERE attrelid IN ('idem.idem_claim'::regclass, 'idem.idem_http'::regclass) AND attnum > 0 GROUP BY 1 ORDER BY 1 \g (format=unaligned tuples_only=on)
-- everything in the schema idem, and nothing of it elsewhere, belongs to the extension
SELECT count(*) AS strangers FROM pg_class AS c
 WHERE relnamespace = 'idem'::regnamespace AND relkind IN ('r', 'p', 'v', 'S') AND NOT EXISTS (SELECT FROM member WHERE classid = 'pg_class'::regclass AND objid = c.oid);
SELECT DISTINCT relnamespace::regnamespace FROM pg_class AS c JOIN member ON classid = 'pg_class'::regclass AND objid = c.oid;
-- the rings: every leaf, its bound and its room
SELECT parent, count(*) AS leaves, bool_and(bound = format('FOR VALUES IN (''%s'')', slot) OR bound = format('FOR VALUES IN (%s)', slot)) AS bounds,
	   count(DISTINCT options) AS kinds, min(options::text) AS options, bool_and(persistence = 'p') AS permanent
  FROM (SELECT i.inhparent::regclass AS parent, right(c.relname, 2)::int AS slot, pg_get_expr(c.relpartbound, c.oid) AS bound, coalesce(c.reloptions, '{}') AS options,
			   c.relpersistence AS persistence
		  FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid AND c.relkind = 'r' WHERE i.inhparent IN ('idem.outbox'::regclass, 'idem.inbox'::regclass)) AS leaf
 GROUP BY parent ORDER BY parent;
-- records: their indexes, and keys of the "C" collation
SELECT indisprimary AS pk, pg_get_indexdef(indexrelid) AS index FROM pg_index WHERE indrelid = 'idem.idempotency'::regclass ORDER BY indexrelid::regclass::text COLLATE "C";
SELECT attrelid::regclass, attname, collname FROM pg_attribute JOIN pg_collation AS c ON c.oid = attcollation
 WHERE (attrelid, attname) IN (('idem.idempotency'::regclass, 'principal_id'), ('idem.idempotency'::regclass, 'idempotency_key'), ('idem.inbox'::regclass, 'consumer'), ('idem.outbox_once'::regclass, 'once_key'))
 ORDER BY 1, 2;
-- pg_dump takes along all that can hold rows, but not secrets, and the sequences
SELECT c.oid::regclass AS not_dumped FROM pg_class AS c JOIN member ON classid = 'pg_class'::regclass AND objid = c.oid
 WHERE relkind IN ('r', 'S') AND NOT EXISTS (SELECT FROM pg_extension WHERE extname = 'idem' AND c.oid = ANY (extconfig));
SELECT cardinality(extconfig) AS dumped, (SELECT string_agg(DISTINCT condition, ',') FROM unnest(extcondition) AS condition) AS conditions FROM pg_extension WHERE extname = 'idem';
-- no constraint can fail when a dump is restored in any order
SELECT conrelid::regclass, conname FROM pg_constraint WHERE contype = 'f' AND connamespace = 'idem'::regnamespace;

--
-- 3. Every object has a comment
--
SELECT what AS no_comment FROM member
 WHERE obj_description(objid, classid::regclass::name) IS NULL
   -- an array or row type is described with its element or table
   AND NOT (classid = 'pg_type'::regclass AND EXISTS (SELECT FROM pg_type AS t LEFT JOIN pg_class AS c ON c.oid = t.typrelid WHERE t.oid = objid AND (t.typelem <> 0 OR c.relkind <> 'c')))
   AND NOT (classid = 'pg_class'::regclass AND EXISTS (SELECT FROM pg_class AS c WHERE c.oid = objid AND relkind = 'c'))
   -- the sequence of an identity column is described with the column
   AND NOT (classid = 'pg_class'::regclass AND EXISTS (SELECT FROM pg_depend AS i WHERE i.classid = 'pg_class'::regclass AND i.objid = member.objid AND i.deptype = 'i' AND i.refobjsubid > 0));
-- columns of tables and views; a leaf's are those of its root
SELECT attrelid::regclass AS no_comment, attname FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
 WHERE c.relnamespace = 'idem'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition AND attnum > 0 AND NOT attisdropped
   AND col_description(attrelid, attnum) IS NULL;
-- indexes but those of primary keys and of leaves
SELECT indexrelid::regclass AS no_comment FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
 WHERE c.relnamespace = 'idem'::regnamespace AND NOT c.relispartition AND NOT indisprimary AND obj_description(indexrelid, 'pg_class') IS NULL;

--
-- 4. Nothing for PUBLIC
--
SELECT what AS open_to_public, privilege_type FROM (
	SELECT what, (aclexplode(coalesce(proacl, acldefault('f', proowner)))).* FROM member JOIN pg_proc AS p ON classid = 'pg_proc'::regclass AND objid = p.oid
	UNION ALL
	SELECT what, (aclexplode(coalesce(relacl, acldefault(CASE relkind WHEN 'S' THEN 's'::"char" ELSE 'r' END, relowner)))).* FROM member JOIN pg_class AS c ON classid = 'pg_class'::regclass AND objid = c.oid
	UNION ALL
	SELECT what, (aclexplode(coalesce(nspacl, acldefault('n', nspowner)))).* FROM member JOIN pg_namespace AS n ON classid = 'pg_namespace'::regclass AND objid = n.oid
	UNION ALL
	-- a type is open unless it is revoked; without the schema nobody can name it
	SELECT what, (aclexplode(typacl)).* FROM member JOIN pg_type AS t ON classid = 'pg_type'::regclass AND objid = t.oid) AS grants
 WHERE grantee = 0;
SET ROLE regress_idem_user;
SELECT app.idem_uuid7();
\echo :LAST_ERROR_SQLSTATE
RESET ROLE;
GRANT USAGE ON SCHEMA app TO regress_idem_user;
SET ROLE regress_idem_user;
\set VERBOSITY terse
SELECT app.idem_canonical('{}');
SELECT app.idem_hash('{}');
SELECT app.idem_uuid7();
SELECT app.idem_try_insert('p', 'k', sha256('one'));
SELECT app.idem_complete('p', 'k', 1, 201, '{}'::bytea);
SELECT app.idem_complete('p', 'k', 1, 201, '{}'::text);
SELECT app.idem_complete('p', 'k', 1, 201, '{}'::jsonb);
SELECT app.idem_try_insert_many('p', '{k}', ARRAY[sha256('one')]);
SELECT app.idem_before_call('p', 'k', 1, '1 s');
SELECT app.idem_mark_unknown('p', 'k', 1);
SELECT app.idem_yield('p', 'k', 1);
SELECT app.idem_resolve('p', 'k', 'completed', '{}', 201, '{}'::bytea);
SELECT app.idem_resolve('p', 'k', 'completed', '{}', 201, '{}'::text);
SELECT app.idem_resolve('p', 'k', 'completed', '{}', 201, '{}'::jsonb);
SELECT app.idem_claim_stale('pay');
SELECT app.idem_lookup('p', 'k');
SELECT app.idem_http_problem('operation_in_progress');
SELECT app.idem_key('k');
SELECT app.idem_step_key('saga', 'step');
SELECT app.idem_sweep();
SELECT app.idem_grant('application', 'regress_idem_user');
SELECT app.outbox_emit('topic', 'k', 't', '{}');
SELECT app.inbox_apply('c', '919108f7-52d1-4320-9bac-f847db4148a8');
SELECT app.idem_relay_sweep();
SELECT * FROM idem.idempotency;
SELECT * FROM idem.resolution;
SELECT * FROM idem.unresolved;
INSERT INTO idem.outbox (topic) VALUES ('t');
SELECT * FROM idem.relay_status;
SELECT NULL::idem.idem_claim;
\set VERBOSITY default
RESET ROLE;

--
-- 5. All of it works from a schema that no search path names
--
SET search_path = '';
SELECT outcome, attempt FROM app.idem_try_insert('p', 'k', pg_catalog.sha256('one')) \gset
SELECT changed FROM app.idem_complete('p', 'k', :attempt, 201, '{}'::jsonb);
SELECT changed FROM app.idem_complete('p', 'k', :attempt, 201, '{}'::text);
SELECT changed FROM app.idem_complete('p', 'k', :attempt, 201, '{}'::bytea);
SELECT outcome, status FROM app.idem_try_insert('p', 'k', pg_catalog.sha256('one'));
SELECT ord, outcome FROM app.idem_try_insert_many('p', '{k 2,k}', ARRAY[pg_catalog.sha256('one'), pg_catalog.sha256('one')]);
SELECT attempt FROM idem.idempotency WHERE idempotency_key = 'k 2' \gset
SELECT app.idem_before_call('p', 'k 2', :attempt, '1 s') IS NOT NULL AS marked;
SELECT changed, status FROM app.idem_yield('p', 'k 2', :attempt);
SELECT changed, status FROM app.idem_mark_unknown('p', 'k 2', :attempt, 'no answer');
SELECT state, unknown_reason FROM idem.unresolved;
UPDATE idem.idempotency SET call_deadline = pg_catalog.now() - interval '1 hour' WHERE idempotency_key = 'k 2';
SELECT changed, status FROM app.idem_resolve('p', 'k 2', 'completed', '{}', 201, '{}'::jsonb);
SELECT changed, status FROM app.idem_resolve('p', 'k 2', 'completed', '{}', 201, '{}'::text);
SELECT changed, status FROM app.idem_resolve('p', 'k 2', 'completed', '{}', 201, '{}'::bytea);
SELECT verdict, response_status FROM idem.resolution;
SELECT outcome, status FROM app.idem_lookup('p', 'k 2');
SELECT outcome FROM app.idem_claim_stale('pay');
SELECT status FROM app.idem_http_problem('operation_in_progress');
SELECT app.idem_key('"k"'), app.idem_step_key('saga', 'step') = pg_catalog.encode(pg_catalog.sha256('["saga","step",1]'), 'hex') AS step_key;
SELECT * FROM app.idem_sweep();
SELECT app.outbox_emit('topic', 'k', 't', '{}', once_key => 'once') IS NOT NULL AS emitted;
INSERT INTO idem.outbox (topic) VALUES ('plain');
SELECT app.inbox_apply('c', '919108f7-52d1-4320-9bac-f847db4148a8');
SELECT app.inbox_apply('c', '919108f7-52d1-4320-9bac-f847db4148a8');
SELECT app.idem_hash('{"b": 1.0, "a": []}') = pg_catalog.sha256('{"a":[],"b":1}') AS hash;
SELECT state FROM idem.relay_status;
-- what stands in the way of names does not change what is called
SET search_path = trap, pg_catalog;
CREATE SCHEMA trap;
CREATE FUNCTION trap.convert_to(text, name) RETURNS bytea LANGUAGE SQL AS $$ SELECT '\xbad0'::bytea $$;
CREATE FUNCTION trap.sha256(bytea) RETURNS bytea LANGUAGE SQL AS $$ SELECT '\xbad0'::bytea $$;
CREATE FUNCTION trap.clock_timestamp() RETURNS timestamptz LANGUAGE SQL AS $$ SELECT 'epoch'::timestamptz $$;
CREATE FUNCTION trap.nextval(regclass) RETURNS bigint LANGUAGE SQL AS $$ SELECT -7::bigint $$;
CREATE FUNCTION trap.always(text, text) RETURNS boolean LANGUAGE SQL AS $$ SELECT false $$;
CREATE OPERATOR trap.= (LEFTARG = text, RIGHTARG = text, FUNCTION = trap.always);
SELECT outcome, attempt FROM app.idem_try_insert('p', 'trapped', '\x00000000000000000000000000000000') \gset
SELECT :attempt > 0 AS from_the_sequence;
SELECT changed, body FROM app.idem_complete('p', 'trapped', :attempt, 201, '{}'::text);
SELECT outcome FROM app.idem_try_insert('p', 'trapped', '\x00000000000000000000000000000000');
SELECT outcome FROM app.idem_try_insert_many('p', '{trapped 2}', ARRAY['\x00000000000000000000000000000000'::bytea]);
SELECT app.idem_step_key('saga', 'step') OPERATOR(pg_catalog.=) pg_catalog.encode(pg_catalog.sha256('["saga","step",1]'), 'hex') AS step_key;
SELECT state FROM idem.unresolved;
SELECT app.idem_grant('operator', 'regress_idem_user');
SELECT pg_catalog.has_function_privilege('regress_idem_user', 'app.idem_sweep(integer)', 'EXECUTE') AS granted;
SELECT app.outbox_emit('topic', 'k', 't', '{}', once_key => 'trapped') = app.outbox_emit('topic', 'k', 't', '{}', once_key => 'trapped') AS same_id;
SELECT app.inbox_apply('trapped', '919108f7-52d1-4320-9bac-f847db4148a8'), app.inbox_apply('trapped', '919108f7-52d1-4320-9bac-f847db4148a8');
RESET search_path;
SET client_min_messages = warning;
DROP SCHEMA trap CASCADE;
RESET client_min_messages;

--
-- 6. Members can't be dropped by themselves; DROP EXTENSION leaves nothing
--
DROP TABLE idem.outbox_07;
\echo :LAST_ERROR_SQLSTATE
DROP EXTENSION pgcrypto;
\echo :LAST_ERROR_SQLSTATE
DROP OWNED BY regress_idem_user;
DROP VIEW member;
DROP EXTENSION idem;
DROP SCHEMA app;
SELECT now.classes - before.classes AS classes, now.functions - before.functions AS functions, now.types - before.types AS types, now.schemas - before.schemas AS schemas,
	   now.constraints - before.constraints AS constraints, now.depends - before.depends AS depends, now.comments - before.comments AS comments, now.privileges - before.privileges AS privileges
  FROM objects_before AS before, objects AS now;
-- and it can come back, also in the session that used it
CREATE EXTENSION idem;
SELECT outcome FROM idem_try_insert('p', 'k', sha256('one'));
SELECT outbox_emit('topic', 'k', 't', '{}', once_key => 'once') IS NOT NULL AS emitted, inbox_apply('c', '919108f7-52d1-4320-9bac-f847db4148a8');
DROP EXTENSION idem;

\c :home
DROP DATABASE idem_install_regression;
DROP ROLE regress_idem_user;
