# Whoever calls, whatever their search_path, and whatever was added to the table
# of records: no outcome changes and no error is hidden.
#
# One script goes through the functions of an application, a consumer and an
# operator.  What it says as superuser, with nothing in its way, is what it must
# say in every other setting.

use strict;
use warnings FATAL => 'all';

use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Wait;

my $node = Idem::Cluster->start_new('main', preload => 0, conf => <<'END');
idem.call_margin = 0
idem.call_grace = 0
END
my @roles = qw(app consumer operator);

$node->safe_psql('postgres', "CREATE ROLE $_; SELECT idem_grant('" . ($_ eq 'app' ? 'application' : $_) . "', '$_')") foreach @roles;
$node->safe_psql('postgres', q(CREATE ROLE nobody; CREATE ROLE "odd role, 'quoted'"));

my $expected = life('baseline', as => [ ('postgres_none') x 3 ]);
like($expected, qr/STARTED.*MISMATCH.*REPLAY.*RESUMED.*UNKNOWN/s, 'the script goes through the outcomes');
unlike($expected, qr/ERROR:  (?!ID00[12]|22004|22023|ID005)/, 'and hears no error but those that it asks for');

same('roles', 'each in its role');
privileges();
row_security();
hostile_search_path();
other_parts();				# before there were more columns, which stay for ever
more_columns();
harmless_additions();
errors_are_seen();

$node->stop;
done_testing;

# What the script prints, with SQLSTATEs only.  The three roles take turns.
sub life
{
	my ($principal, %options) = @_;
	my ($app, $consumer, $operator) = map { $_ eq 'postgres_none' ? 'none' : $_ } @{ $options{as} // \@roles };
	my $output = '';
	my $script = ($options{before} // '') . <<"END";
\\set VERBOSITY sqlstate
\\pset null NULL
\\set p '$principal'
SET ROLE $app;
SELECT outcome, run, changed, attempt AS first, resource_id AS resource FROM public.idem_try_insert(:'p', 'k', pg_catalog.sha256('1'), :'p', context => '{"a": 1}') \\gset
SELECT :'outcome', :'run', :'changed';
SELECT outcome, run, changed, status, headers, pg_catalog.convert_from(body, 'UTF8') FROM public.idem_try_insert(:'p', 'k', pg_catalog.sha256('1'));
SELECT outcome, run, status FROM public.idem_try_insert(:'p', 'k', pg_catalog.sha256('2'));
SELECT outcome, run FROM public.idem_try_insert(:'p', 'k', pg_catalog.sha256('2'), also_accept => ARRAY[pg_catalog.sha256('1')]);
SELECT changed FROM public.idem_complete(:'p', 'k', 0, 200, 'x'::pg_catalog.text);
SELECT status, headers, body, changed FROM public.idem_complete(:'p', 'k', :first, 201, '{"b": 1}'::pg_catalog.jsonb);
SELECT changed FROM public.idem_complete(:'p', 'k', :first, 201, '{"b": 1}'::pg_catalog.text);
SELECT changed FROM public.idem_complete(:'p', 'k', :first, 201, '{}'::pg_catalog.bytea);
SELECT outcome, status, headers, body FROM public.idem_try_insert(:'p', 'k', pg_catalog.sha256('1'));
SELECT outcome, status, body FROM public.idem_lookup(:'p', 'k');
SELECT outcome FROM public.idem_lookup(:'p', 'never');
SELECT ord, idempotency_key, outcome FROM public.idem_try_insert_many(:'p', '{k,many,many}', ARRAY[pg_catalog.sha256('1'), pg_catalog.sha256('1'), pg_catalog.sha256('2')]);
SELECT outcome, attempt AS first FROM public.idem_try_insert(:'p', 'yield', pg_catalog.sha256('1')) \\gset
SELECT status, changed FROM public.idem_yield(:'p', 'yield', :first);
SELECT outcome, attempt AS second FROM public.idem_try_insert(:'p', 'yield', pg_catalog.sha256('1')) \\gset
SELECT :'outcome';
SELECT public.idem_before_call(:'p', 'yield', :first, '1 ms');
SELECT public.idem_before_call(:'p', 'yield', :second, '1 ms') IS NULL;
SELECT status, changed FROM public.idem_mark_unknown(:'p', 'yield', :second, 'no answer', 'ref');
SELECT status, changed FROM public.idem_mark_unknown(:'p', 'yield', :second);
SELECT outcome, changed, status FROM public.idem_try_insert(:'p', 'yield', pg_catalog.sha256('1'));
SELECT outcome FROM public.idem_try_insert(:'p', 'stale', pg_catalog.sha256('1'), :'p', lease => '1 us', context => '{"c": 1}');
SELECT outcome FROM public.idem_try_insert(:'p', 'lost', pg_catalog.sha256('1'), :'p', lease => '1 us', call_timeout => '1 us');
SELECT idempotency_key, outcome, changed, context FROM public.idem_claim_stale(:'p', 10) AS t ORDER BY idempotency_key USING OPERATOR(pg_catalog.<);
SELECT outcome FROM public.idem_try_insert(NULL, 'k', pg_catalog.sha256('1'));
SELECT outcome FROM public.idem_try_insert(:'p', '', pg_catalog.sha256('1'));
SELECT public.idem_key('"abc"'), public.idem_canonical('{"b": 1.0, "a": "x"}'), public.idem_hash('[1.0]'), public.idem_step_key('s', 't', 2);
SELECT status, body FROM public.idem_http_problem('idempotency_key_missing');
SELECT public.outbox_emit('t', :'p', 'e', '{"n": 1}', once_key => :'p') AS event \\gset
SELECT pg_catalog.uuid_eq(public.outbox_emit('t', :'p', 'e', '{"n": 1}', once_key => :'p'), :'event');
SELECT public.outbox_emit('t', :'p', 'e', '{"n": 2}', once_key => :'p');
INSERT INTO idem.outbox (topic, partition_key, headers) VALUES ('t', :'p', '[["a", "b"]]');
SET ROLE $consumer;
SELECT public.inbox_apply(:'p', '01890a5d-ac96-774b-bcce-b302099a8057');
SELECT public.inbox_apply(:'p', '01890a5d-ac96-774b-bcce-b302099a8057');
SET ROLE $operator;
SELECT idempotency_key, state, tries, unknown_reason, external_ref FROM idem.unresolved WHERE principal_id OPERATOR(pg_catalog.=) :'p' ORDER BY idempotency_key USING OPERATOR(pg_catalog.<);
SELECT status, changed FROM public.idem_resolve(:'p', 'yield', 'completed', '{"e": 1}', 201, '{"r": 1}'::pg_catalog.jsonb);
SELECT status, changed FROM public.idem_resolve(:'p', 'yield', 'completed', '{"e": 1}', 201, '{"r": 1}'::pg_catalog.text);
SELECT status, changed FROM public.idem_resolve(:'p', 'yield', 'not_applied', '{"e": 1}', 402, '{}'::pg_catalog.bytea);
SELECT status, changed FROM public.idem_resolve(:'p', 'k', 'completed', '{}', 200, ''::pg_catalog.bytea);
SELECT outcome, status, body FROM public.idem_lookup(:'p', 'yield');
SELECT idempotency_key, state, response_status FROM idem.idempotency WHERE principal_id OPERATOR(pg_catalog.=) :'p' ORDER BY idempotency_key USING OPERATOR(pg_catalog.<);
SELECT verdict, evidence, response_status FROM idem.resolution WHERE principal_id OPERATOR(pg_catalog.=) :'p';
SELECT pg_catalog.count(*) FROM idem.outbox WHERE partition_key OPERATOR(pg_catalog.=) :'p';
SELECT records FROM public.idem_sweep();
END

	IPC::Run::run([ 'psql', '-X', '-q', '-A', '-t', '-d', $node->connstr('postgres') ],
		'<', \$script, '>&', \$output, IPC::Run::timeout($Idem::Wait::deadline));
	$output =~ s/^psql:<stdin>:\d+: //gm;
	return $output =~ s/\Q$principal\E/PRINCIPAL/gr;
}

# Goes through it under a principal of its own, and compares.
sub same
{
	my ($principal, $what, %options) = @_;

	is(life($principal, %options), $expected, $what);
	return;
}

sub refused
{
	my ($role, $sql) = @_;

	return $node->try("SET ROLE \"$role\"; $sql")->{sqlstate};
}

# Nobody has what was not granted.
sub privileges
{
	my $functions = q(SELECT count(*) FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
		WHERE e.extname = 'idem' AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e');

	cmp_ok($node->value($functions), '>', 25, 'there are functions');
	is($node->value("$functions AND has_function_privilege('nobody', d.objid, 'EXECUTE')"), '0', 'a role that was granted nothing can call none of them');

	my @tables = split / /, $node->value("SELECT string_agg(oid::regclass::text, ' ') FROM pg_class WHERE relnamespace = 'idem'::regnamespace AND relkind IN ('r', 'p', 'v') AND NOT relispartition");
	foreach my $role ('app', 'consumer', 'nobody')
	{
		is_deeply([ grep { refused($role, "SELECT FROM $_") ne '42501' } @tables ], [], "$role reads no table");
	}
	my @forbidden = (
		[ app => "SELECT idem_resolve('p', 'k', 'completed', '{}', 200, ''::text)" ],
		[ app => 'SELECT idem_sweep()' ],
		[ app => "SELECT inbox_apply('c', gen_random_uuid())" ],
		[ app => "SELECT nextval('idem.attempt')" ],
		[ app => 'INSERT INTO idem.idempotency SELECT' ],
		[ app => 'UPDATE idem.outbox SET published_at = now()' ],
		[ app => 'DELETE FROM idem.outbox' ],
		[ consumer => "SELECT outbox_emit('t', 'k', 'e', '{}')" ],
		[ consumer => "SELECT idem_try_insert('p', 'k', sha256('1'))" ],
		[ operator => "SELECT idem_try_insert('p', 'k', sha256('1'))" ],
		[ operator => 'UPDATE idem.idempotency SET attempt = 1' ],
		[ operator => 'DELETE FROM idem.resolution' ],
		[ operator => 'TRUNCATE idem.outbox' ],
		map { [ $_ => "SELECT idem_grant('operator', '$_')" ] } @roles);
	is(refused(@$_), '42501', "$_->[0] must not: $_->[1]") foreach @forbidden;

	$node->safe_psql('postgres', q(SELECT idem_grant('application', '"odd role, ''quoted''"')));
	is(refused(q(odd role, 'quoted'), "SELECT idem_try_insert('odd', 'k', sha256('1'))"), '', 'a role with an odd name is granted the same');
	is($node->try("SELECT idem_grant('admin', 'app')")->{sqlstate}, '22023', 'a kind that there is not');
	is($node->try("SELECT idem_grant(NULL, 'app')")->{sqlstate}, '22004', 'no kind');
	is($node->try("SELECT idem_grant('operator', 'no_such_role')")->{sqlstate}, '42704', 'no such role');
	return;
}

# Policies that hide every row, and let none in, for all roles and the owner.
sub row_security
{
	my @tables = qw(idem.idempotency idem.outbox_once idem.inbox);

	foreach my $table (@tables)
	{
		$node->safe_psql('postgres', "ALTER TABLE $table ENABLE ROW LEVEL SECURITY; ALTER TABLE $table FORCE ROW LEVEL SECURITY;
			CREATE POLICY hidden ON $table USING (false) WITH CHECK (false); CREATE POLICY read ON $table FOR SELECT TO operator USING (true)");
	}
	same('policies', 'row security: policies that hide every row');
	# who may not bypass them, hears so when reading the table himself
	same('policies, row_security off', 'row security: the same with row_security = off', before => "SET row_security = off;\n", as => [qw(app consumer postgres_none)]);
	$node->safe_psql('postgres', "DROP POLICY hidden ON $_; DROP POLICY read ON $_; ALTER TABLE $_ NO FORCE ROW LEVEL SECURITY; ALTER TABLE $_ DISABLE ROW LEVEL SECURITY")
	  foreach @tables;
	return;
}

# A schema that shadows what pg_catalog has for the types that idem uses, each
# function and operator an error; and tables with the names of idem's.
sub hostile_search_path
{
	$node->safe_psql('postgres', <<'EOF_SQL');
CREATE SCHEMA evil AUTHORIZATION app;
SET ROLE app;
CREATE FUNCTION evil.hijack() RETURNS void LANGUAGE plpgsql AS
	$$ BEGIN RAISE EXCEPTION 'hijacked, as %', current_user USING ERRCODE = 'XX666'; END $$;
DO $do$
DECLARE
	types	CONSTANT regtype[] := '{text,name,bytea,boolean,smallint,integer,bigint,uuid,jsonb,interval,timestamptz,oid,xid8,numeric,text[],bytea[],regclass,regrole,regtype,char}';
	it		record;
BEGIN
	FOR it IN SELECT p.oid, p.proname, p.pronargs, p.proargtypes, p.prorettype FROM pg_proc AS p
		WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind = 'f' AND NOT proretset AND provariadic = 0
			AND prorettype = ANY (types) AND proargtypes::oid[] <@ types::oid[]
	LOOP
		EXECUTE format('CREATE FUNCTION evil.%I(%s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN PERFORM evil.hijack(); RETURN NULL; END $f$',
			it.proname, (SELECT string_agg(t::regtype::text, ', ' ORDER BY n) FROM unnest(it.proargtypes) WITH ORDINALITY AS a(t, n)), it.prorettype::regtype);
	END LOOP;
	FOR it IN SELECT o.oprname, o.oprleft, o.oprright, f.proname FROM pg_operator AS o JOIN pg_proc AS f ON f.oid = o.oprcode
		JOIN pg_proc AS e ON e.pronamespace = 'evil'::regnamespace AND e.proname = f.proname AND e.proargtypes = f.proargtypes
		WHERE o.oprnamespace = 'pg_catalog'::regnamespace AND o.oprkind = 'b'
	LOOP
		EXECUTE format('CREATE OPERATOR evil.%s (FUNCTION = evil.%I, LEFTARG = %s, RIGHTARG = %s)', it.oprname, it.proname, it.oprleft::regtype, it.oprright::regtype);
	END LOOP;
END
$do$;
CREATE TABLE evil.idempotency (principal_id text, idempotency_key text, attempt bigint);
CREATE TABLE evil.outbox (topic text);
CREATE TABLE evil.inbox (consumer text, event_id uuid);
CREATE DOMAIN evil.text AS pg_catalog.text CHECK (evil.length(VALUE) > 0);
GRANT ALL ON SCHEMA evil TO PUBLIC;
EOF_SQL
	my $path = 'SET search_path = evil, pg_catalog, public;';
	my $shadows = $node->value("SELECT (SELECT count(*) FROM pg_proc WHERE pronamespace = 'evil'::regnamespace), (SELECT count(*) FROM pg_operator WHERE oprnamespace = 'evil'::regnamespace)");

	cmp_ok($_, '>', 200, "hostile search_path: $_ functions or operators shadowed") foreach split /\|/, $shadows;
	is($node->try("$path SELECT length('abc'::pg_catalog.text)")->{sqlstate}, 'XX666', 'hostile search_path: a function is hijacked without a schema');
	is($node->try("$path SELECT 'abc'::pg_catalog.text = 'abc'::pg_catalog.text")->{sqlstate}, 'XX666', 'hostile search_path: and so is an operator');
	same('hostile', 'hostile search_path: nothing of idem is hijacked', before => "$path\n");
	same('hostile, no public', 'hostile search_path: nor without the schema of the functions', before => "SET search_path = evil, pg_catalog;\n");
	same('temporary', 'temporary tables that look like those of idem and of the catalog',
		before => "CREATE TEMP TABLE idempotency (n int); CREATE TEMP TABLE outbox (n int); CREATE TEMP TABLE pg_class (n int); CREATE TEMP TABLE pg_proc (n int);\n");
	$node->safe_psql('postgres', 'DROP OWNED BY app; DROP ROLE app; CREATE ROLE app');
	is(refused('app', "SELECT idem_try_insert('p', 'k', sha256('1'))"), '42501', 'DROP OWNED takes the rights back');
	$node->safe_psql('postgres', "SELECT idem_grant('application', 'app')");
	return;
}

# Triggers that watch, and constraints that hold.
sub harmless_additions
{
	$node->safe_psql('postgres', <<'END');
CREATE TABLE audit (what text, principal text, key text);
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
	INSERT INTO public.audit VALUES (TG_WHEN || ' ' || TG_OP, NEW.principal_id, NEW.idempotency_key);
	RETURN NEW;
END $$;
CREATE TRIGGER before BEFORE INSERT OR UPDATE ON idem.idempotency FOR EACH ROW EXECUTE FUNCTION audit();
CREATE TRIGGER after AFTER INSERT OR UPDATE ON idem.idempotency FOR EACH ROW EXECUTE FUNCTION audit();
CREATE CONSTRAINT TRIGGER later AFTER INSERT OR UPDATE ON idem.idempotency DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION audit();
ALTER TABLE idem.idempotency ADD CONSTRAINT no_card CHECK (context IS NULL OR NOT context ? 'card'),
	ADD CONSTRAINT one_resource UNIQUE (resource_id);
CREATE INDEX by_operation ON idem.idempotency (operation);
CREATE TABLE payment (principal_id text, idempotency_key text, FOREIGN KEY (principal_id, idempotency_key) REFERENCES idem.idempotency DEFERRABLE);
END
	same('additions', 'triggers, constraints, an index and a foreign key on the table of records');
	is($node->value("SELECT count(*) FROM audit WHERE what = 'BEFORE INSERT' AND principal = 'additions'"), '5', 'triggers see each new record');
	is($node->value("SELECT count(*) FILTER (WHERE what LIKE 'AFTER %') - 2 * count(*) FILTER (WHERE what LIKE 'BEFORE %') FROM audit"), '0', 'and no claim that came to nothing');
	$node->safe_psql('postgres', 'DROP TRIGGER before ON idem.idempotency; DROP TRIGGER after ON idem.idempotency; DROP TRIGGER later ON idem.idempotency');
	return;
}

# Columns of one's own, and an index on a function that not everyone may call.
sub more_columns
{
	$node->safe_psql('postgres', <<'END');
CREATE FUNCTION region(principal text) RETURNS text LANGUAGE sql IMMUTABLE RETURN upper(left(principal, 2));
REVOKE EXECUTE ON FUNCTION region FROM PUBLIC;
CREATE INDEX by_region ON idem.idempotency (region(principal_id));
ALTER TABLE idem.idempotency ADD COLUMN note text DEFAULT 'kept', ADD COLUMN length integer GENERATED ALWAYS AS (length(idempotency_key)) STORED;
END
	same('columns', 'columns behind idem\'s own, and an index on a function of one\'s own');
	is($node->value("SELECT count(*) FROM idem.idempotency WHERE region(principal_id) = 'CO' AND note = 'kept' AND length = length(idempotency_key)"), '5', 'they are filled, and the index finds the records');

	my $claim = "SELECT outcome FROM idem_try_insert('t', 'k', sha256('1'))";
	is(refused('app', "$claim; $claim"), '', 'before a column of idem\'s own is another');
	$node->safe_psql('postgres', 'ALTER TABLE idem.idempotency ALTER COLUMN response_status TYPE bigint');
	is(refused('app', $claim), '55000', 'a column of another type is an error where there is a record');
	is(refused('app', $claim =~ s/'k'/'new'/r), '55000', 'and where there is none');
	is($node->try('SELECT idem.record_valid(r) FROM idem.idempotency AS r')->{sqlstate}, '55000', 'and for the CHECK of the table');
	$node->safe_psql('postgres', 'ALTER TABLE idem.idempotency ALTER COLUMN response_status TYPE integer');
	is(refused('app', $claim), '', 'and no longer when it is as before');
	$node->safe_psql('postgres', 'DROP INDEX idem.by_region; ALTER TABLE idem.idempotency DROP COLUMN note, DROP COLUMN length');
	return;
}

# Others' functions in the place of idem's own CHECK or index: they run with the
# owner's rights, and so never with the caller's path.  And what the CHECK makes of
# rows that were made by hand.
sub other_parts
{
	my $path = sub { return $node->value("SET ROLE app; SET search_path = nowhere; SELECT outcome FROM public.idem_try_insert('o', '$_[0]', pg_catalog.sha256('1'), 'o'); SELECT pg_catalog.current_setting('test.path')") };

	$node->safe_psql('postgres', <<'END');
CREATE FUNCTION see_path(value text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS
	$$ BEGIN PERFORM pg_catalog.set_config('test.path', pg_catalog.current_setting('search_path'), false); RETURN value; END $$;
ALTER TABLE idem.idempotency DROP CONSTRAINT idempotency_valid, ADD CONSTRAINT mine CHECK (see_path(operation) IS NOT NULL) NOT VALID;
END
	is($path->('check'), "STARTED\npg_catalog, pg_temp", 'a CHECK in the place of idem\'s does not run with the caller\'s path');
	is(refused('app', "SELECT outcome FROM idem_try_insert('o', 'none', sha256('1'))"), '23514', 'and refuses what it refuses');
	$node->safe_psql('postgres', <<'END');
ALTER TABLE idem.idempotency DROP CONSTRAINT mine, ADD CONSTRAINT idempotency_valid CHECK (idem.record_valid(idempotency));
DROP INDEX idem.idempotency_sweep;
CREATE INDEX mine ON idem.idempotency (see_path(operation));
END
	is($path->('index'), "STARTED\npg_catalog, pg_temp", 'nor does an index in the place of one of idem\'s');
	$node->safe_psql('postgres', 'DROP INDEX idem.mine; CREATE INDEX idempotency_sweep ON idem.idempotency (sweep_at)');

	is($node->value("SELECT DISTINCT idem.record_valid(jsonb_populate_record(r, jsonb_build_object(name, NULL))) FROM idem.idempotency AS r, unnest('{request_hash,state,attempt}'::text[]) AS name WHERE principal_id = 'o'"), 'f', 'a row without what every record has is not valid');
	is($node->value('SELECT idem.record_valid(jsonb_populate_record(NULL::idem.idempotency, $${"state": "COMPLETED"}$$))'), 'f', 'nor one with a state and nothing else');
	return;
}

# What an addition refuses is an error, and nothing is written; never an outcome
# that is not so.
sub errors_are_seen
{
	my $claim = "SELECT outcome FROM idem_try_insert('e', 'KEY', sha256('1'), 'e', context => '{\"n\": 1}')";
	my $records = "SELECT count(*) FROM idem.idempotency WHERE principal_id = 'e'";
	my $emil = $node->value("SELECT attempt FROM idem_try_insert('e', 'mine', sha256('1'))");

	is(refused('app', "SELECT outcome FROM idem_try_insert('e', 'card', sha256('1'), context => '{\"card\": 4}')"), '23514', 'a constraint of one\'s own refuses a claim');

	# The same resource twice: another constraint than the one of the key.
	$node->safe_psql('postgres', <<'END');
CREATE FUNCTION same_resource() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	NEW.resource_id := (SELECT resource_id FROM idem.idempotency WHERE idempotency_key = 'mine');
	RETURN NEW;
END $$;
CREATE TRIGGER same BEFORE INSERT ON idem.idempotency FOR EACH ROW EXECUTE FUNCTION same_resource();
END
	is(refused('app', $claim), '23505', 'another unique constraint does not pass for the key\'s');
	$node->safe_psql('postgres', 'DROP TRIGGER same ON idem.idempotency; DROP FUNCTION same_resource()');

	# Triggers that swallow what is written.
	$node->safe_psql('postgres', <<'END');
SELECT outcome FROM idem_try_insert('due', 'k', sha256('1'));
UPDATE idem.idempotency SET expires_at = '2000-01-01', sweep_at = '2000-01-01' WHERE principal_id = 'due';
CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER swallow BEFORE INSERT OR UPDATE OR DELETE ON idem.idempotency FOR EACH ROW EXECUTE FUNCTION swallow();
END
	my %swallowed = (
		'a claim' => $claim,
		'a claim of many' => "SELECT outcome FROM idem_try_insert_many('e', '{a,b}', ARRAY[sha256('1'), sha256('1')])",
		'a completion' => "SELECT changed FROM idem_complete('e', 'mine', $emil, 201, '{}'::text)",
		'a yield' => "SELECT changed FROM idem_yield('e', 'mine', $emil)",
		'a call' => "SELECT idem_before_call('e', 'mine', $emil, '1 s')",
		'UNKNOWN' => "SELECT changed FROM idem_mark_unknown('e', 'mine', $emil)");
	foreach my $what (sort keys %swallowed)
	{
		isnt(refused('app', $swallowed{$what}), '', "$what that a trigger swallows is an error (" . refused('app', $swallowed{$what}) . ')');
	}
	is($node->value($records), '1', 'and nothing was written');
	is($node->value("SELECT state FROM idem.idempotency WHERE principal_id = 'e'"), 'IN_PROGRESS', 'nor changed');
	is($node->value('SELECT records, more FROM idem_sweep(1)'), '0|f', 'a sweep that comes to nothing is not called for more');
	$node->safe_psql('postgres', "DROP TRIGGER swallow ON idem.idempotency; DELETE FROM idem.idempotency WHERE principal_id = 'due'");

	# Triggers that raise, at once and at the commit.
	$node->safe_psql('postgres', <<'END');
CREATE FUNCTION raise() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = 'XX777'; END $$;
CREATE TRIGGER raise AFTER INSERT OR UPDATE ON idem.idempotency FOR EACH ROW EXECUTE FUNCTION raise();
END
	is(refused('app', $claim), 'XX777', 'an error of a trigger is the error of the claim');
	is(refused('app', $swallowed{'a completion'}), 'XX777', 'and of the completion');
	$node->safe_psql('postgres', 'DROP TRIGGER raise ON idem.idempotency;
		CREATE CONSTRAINT TRIGGER raise AFTER INSERT OR UPDATE ON idem.idempotency DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION raise()');
	is(refused('app', "BEGIN; $claim; COMMIT"), 'XX777', 'one at the commit as well');
	$node->safe_psql('postgres', 'DROP TRIGGER raise ON idem.idempotency');
	is($node->value($records), '1', 'and nothing was written');
	is(refused('app', $claim), '', 'without them it is claimed');

	# A sweep of what something refers to.
	$node->safe_psql('postgres', "INSERT INTO payment VALUES ('e', 'mine'); UPDATE idem.idempotency SET expires_at = '2000-01-01', sweep_at = '2000-01-01' WHERE idempotency_key = 'mine'");
	is(refused('operator', 'SELECT idem_sweep()'), '23503', 'a sweep of what a foreign key refers to is an error');
	$node->safe_psql('postgres', 'DELETE FROM payment');
	is($node->value('SET ROLE operator; SELECT records FROM idem_sweep()'), '1', 'and goes on without it');
	return;
}
