\set ECHO none
--
-- pg_temp.refused(statement): runs a statement that must fail, and gives the
-- error as a client sees it, with SQLSTATE, detail and hint; N and ID stand for
-- numbers of attempts and for UUIDs, which differ from run to run.
--
CREATE FUNCTION pg_temp.refused(statement text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	state	text;
	message	text;
	detail	text;
	hint	text;
	uuid	CONSTANT text := '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}';
BEGIN
	EXECUTE statement;
	RETURN 'NOT REFUSED';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
		detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN state || ': ' || regexp_replace(message, 'attempt \d+', 'attempt N')
		|| coalesce(E'\n    detail: ' || regexp_replace(nullif(detail, ''), uuid, 'ID'), '')
		|| coalesce(E'\n    hint: ' || nullif(hint, ''), '');
END
$$;
\set ECHO all
