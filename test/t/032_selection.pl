# A row is published whatever way it came into the outbox, once, and a row that
# was rolled back is not.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Consumer;
use Idem::Kafka;
use Idem::Wait;

my $kafka = Idem::Kafka->new;
$kafka->create_topic('t', 3);
my $node = Idem::Cluster->start_new('main', kafka => $kafka);
$node->wait_state('running');

# The row that lies behind all the others: with it the relay's position is far
# ahead of what comes later with a lower seq.
$node->value(q{SELECT setval('idem.outbox_seq', 1000000)});
$node->emit('t', event_type => 'first', payload => '0');
$node->wait_published;

# Ways of writing: [statements, rows to be published, their event type if it is
# another].  What is not to be published has the type "rolled back".
my %ways = (
	'INSERT ... SELECT' => [
		q{INSERT INTO idem.outbox (topic, event_type, payload) SELECT 't', 'INSERT ... SELECT', to_jsonb(i) FROM generate_series(1, 3000) AS i}, 3000 ],
	'COPY' => [ q{COPY idem.outbox (topic, event_type, payload) FROM PROGRAM $$yes 't	COPY	1' | head -n 3000$$}, 3000 ],
	'COPY with seq' => [ q{COPY idem.outbox (seq, topic, event_type, payload) FROM PROGRAM $$seq -f '%.0f	t	COPY with seq	1' 500000 500099$$}, 100 ],
	'lower seq' => [ q{INSERT INTO idem.outbox (seq, topic, event_type, payload) VALUES (1, 't', 'lower seq', '1'), (-5, 't', 'lower seq', '1'), (0, 't', 'lower seq', '1')}, 3 ],
	'higher seq' => [ q{INSERT INTO idem.outbox (seq, topic, event_type, payload) VALUES (9000000000, 't', 'higher seq', '1')}, 1 ],
	'highest seq' => [ q{INSERT INTO idem.outbox (seq, topic, event_type, payload) VALUES (9223372036854775807, 't', 'highest seq', '1')}, 1 ],
	'below the higher seq' => [ q{INSERT INTO idem.outbox (seq, topic, event_type, payload) VALUES (8999999999, 't', 'below the higher seq', '1')}, 1 ],
	'another leaf' => [ q{INSERT INTO idem.outbox (topic, event_type, payload, slot) SELECT 't', 'another leaf', to_jsonb(i), i FROM generate_series(0, 63) AS i}, 64 ],
	'savepoints' => [ q{BEGIN;
		INSERT INTO idem.outbox (topic, event_type, payload) VALUES ('t', 'savepoints', '1');
		SAVEPOINT a; INSERT INTO idem.outbox (seq, topic, event_type, payload) VALUES (-100, 't', 'rolled back', '1');
		SAVEPOINT b; INSERT INTO idem.outbox (topic, event_type, payload) VALUES ('t', 'rolled back', '1'); RELEASE b; ROLLBACK TO a;
		SAVEPOINT c; INSERT INTO idem.outbox (seq, topic, event_type, payload) VALUES (-50, 't', 'savepoints', '1'); RELEASE c; COMMIT}, 2 ],
	'subtransactions' => [ q{DO $$ BEGIN FOR i IN 1 .. 100 LOOP BEGIN
		INSERT INTO idem.outbox (topic, event_type, payload) VALUES ('t', CASE WHEN i % 2 = 0 THEN 'subtransactions' ELSE 'rolled back' END, to_jsonb(i));
		IF i % 2 = 1 THEN RAISE EXCEPTION 'no'; END IF; EXCEPTION WHEN raise_exception THEN NULL; END; END LOOP; END $$}, 50 ],
	'only rolled back' => [ q{BEGIN; INSERT INTO idem.outbox (seq, topic, event_type, payload) VALUES (-200, 't', 'rolled back', '1'); ROLLBACK}, 0 ],
	'commits inside' => [ q{DO $$ BEGIN FOR i IN 1 .. 20 LOOP
		INSERT INTO idem.outbox (topic, event_type, payload) VALUES ('t', CASE WHEN i % 2 = 0 THEN 'commits inside' ELSE 'rolled back' END, to_jsonb(i));
		IF i % 2 = 0 THEN COMMIT; ELSE ROLLBACK; END IF; END LOOP; END $$}, 10 ],
	'deferred trigger' => [ q{CREATE TABLE business (id int);
		CREATE FUNCTION write_event() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO idem.outbox (topic, event_type, payload) VALUES ('t', 'deferred trigger', to_jsonb(NEW.id)); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER late AFTER INSERT ON business DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION write_event();
		INSERT INTO business SELECT generate_series(1, 7)}, 7 ],
	'prepared' => [ q{BEGIN; INSERT INTO idem.outbox (topic, event_type, payload) VALUES ('t', 'prepared', '1'), ('t', 'prepared', '2');
		PREPARE TRANSACTION 'p'; COMMIT PREPARED 'p'}, 2 ],
	'prepared, deferred' => [ q{BEGIN; INSERT INTO business VALUES (8); PREPARE TRANSACTION 'd'; COMMIT PREPARED 'd'}, 1, 'deferred trigger' ],
	'rolled back prepared' => [ q{BEGIN; INSERT INTO idem.outbox (topic, event_type, payload) VALUES ('t', 'rolled back', '1');
		PREPARE TRANSACTION 'r'; ROLLBACK PREPARED 'r'}, 0 ],
	'cached sequence' => [ q{ALTER SEQUENCE idem.outbox_seq CACHE 100}, 0 ],
	'moved to another leaf' => [ q{BEGIN; ALTER TABLE idem.outbox DISABLE TRIGGER USER;
		INSERT INTO idem.outbox (topic, event_type, payload, slot) VALUES ('t', 'moved to another leaf', '1', 7);
		UPDATE idem.outbox SET slot = 40 WHERE event_type = 'moved to another leaf'; ALTER TABLE idem.outbox ENABLE TRIGGER USER; COMMIT}, 1 ],
	'a trigger on the outbox' => [ q{CREATE FUNCTION rename() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			NEW.event_type := 'a trigger on the outbox'; NEW.seq := -NEW.seq; RETURN NEW; END $$;
		CREATE TRIGGER rename BEFORE INSERT ON idem.outbox FOR EACH ROW WHEN (NEW.event_type = 'rename') EXECUTE FUNCTION rename();
		INSERT INTO idem.outbox (topic, event_type, payload) VALUES ('t', 'rename', '1');
		DROP TRIGGER rename ON idem.outbox}, 1 ],
	'replica role' => [ q{SET session_replication_role = replica;
		INSERT INTO idem.outbox (seq, topic, event_type, payload) VALUES (-300, 't', 'replica role', '1'); RESET session_replication_role}, 1 ],
	'no default of slot' => [ q{INSERT INTO idem.outbox_33 (topic, event_type, payload, slot) VALUES ('t', 'no default of slot', '1', 33)}, 1 ]);

# Order matters for a few: a table that another one uses, a higher seq.
my @order = ('deferred trigger', 'higher seq', grep { $_ ne 'deferred trigger' && $_ ne 'higher seq' } sort keys %ways);
my %expected = (first => 1);
my $session = $node->session;

foreach my $way (@order)
{
	my ($sql, $rows, $type) = @{ $ways{$way} };

	$session->query($sql);
	$expected{ $type // $way } += $rows if $rows;
	# Each by itself, so that none is found by a sweep that another asked for.
	$node->wait_published;
}

# A session with a cached sequence takes its numbers before another's, and writes
# after it; a transaction that is open meanwhile commits last.
my ($early, $late) = map { $node->session } 1 .. 2;
$early->query(q{INSERT INTO idem.outbox (topic, event_type, payload) VALUES ('t', 'cached', '1')});
$late->query(q{INSERT INTO idem.outbox (topic, event_type, payload) VALUES ('t', 'cached', '2')});
$node->wait_published;
$late->query(q{BEGIN; INSERT INTO idem.outbox (topic, event_type, payload) VALUES ('t', 'cached', '3')});
$early->query(q{INSERT INTO idem.outbox (topic, event_type, payload) VALUES ('t', 'cached', '4')});
wait_until('the later row is published',
	sub { return $node->value(q{SELECT count(*) FROM idem.outbox WHERE event_type = 'cached' AND published_at IS NOT NULL}) eq '3' });
$late->query('COMMIT');
$expected{cached} = 4;
$node->wait_published;

# A prepared transaction is visible a moment before the relay can be told of it.
# Rows of a key that were written in that moment don't go before its own.
my $locker = $node->session;
$locker->query(q{SELECT pg_advisory_lock(7357, hashtext('sweep-noted'))});
$node->set('idem.test_points' => 'sweep-noted=wait');
wait_until('the setting has arrived', sub { return $late->query('SHOW idem.test_points') ne '' });
$early->query(q{BEGIN; INSERT INTO idem.outbox (seq, topic, partition_key, event_type, payload) VALUES (-5000, 't', 'k', 'visible', '1'); PREPARE TRANSACTION 'v'});
$late->send(q{COMMIT PREPARED 'v'});
wait_until('it is visible', sub { return $node->value(q{SELECT count(*) FROM idem.outbox WHERE event_type = 'visible'}) eq '1' });
$early->query(q{INSERT INTO idem.outbox (topic, partition_key, event_type, payload) VALUES ('t', 'k', 'visible', '2')});
wait_until('the later row is published',
	sub { return $node->value(q{SELECT count(*) FROM idem.outbox WHERE payload = '2' AND event_type = 'visible' AND published_at IS NOT NULL}) eq '1' });
$locker->quit;
$late->answer;
$node->reset('idem.test_points');
$node->wait_published;
is($node->value(q{SELECT string_agg(payload::text, ' ' ORDER BY kafka_offset) FROM idem.outbox WHERE event_type = 'visible'}), '1 2',
	'rows of a prepared transaction go before those that were written when it was visible');
$expected{visible} = 2;

# Many sessions, half of whose transactions are rolled back, with savepoints.
my $script = PostgreSQL::Test::Utils::tempdir() . '/mixed.sql';
append_to_file($script, <<'EOF_SQL');
\set half random(0, 1)
BEGIN;
INSERT INTO idem.outbox (topic, event_type, payload) VALUES ('t', CASE :half WHEN 0 THEN 'mixed' ELSE 'rolled back' END, '1');
SAVEPOINT s;
INSERT INTO idem.outbox (topic, event_type, payload) VALUES ('t', 'rolled back', '1');
ROLLBACK TO s;
\if :half
ROLLBACK;
\else
COMMIT;
\endif
EOF_SQL
system_or_bail('pgbench', '--no-vacuum', '--client', 8, '--jobs', 2, '--transactions', 100, '--file', $script, $node->connstr('postgres'));
$node->wait_published;
$expected{mixed} = $node->value(q{SELECT count(*) FROM idem.outbox WHERE event_type = 'mixed'});

# By hand: rows that were published, and one that was parked, are to go again.
$session->query(q{UPDATE idem.outbox SET published_at = NULL WHERE event_type IN ('lower seq', 'prepared', 'subtransactions')});
$expected{again} = 3 + 2 + 50;
$node->wait_published;
$session->query(q{INSERT INTO idem.outbox (topic, event_type, payload, parked_at, last_error) VALUES ('t', 'parked', '1', now(), 'by hand')});
$node->emit('t', event_type => 'behind the parked one', payload => '1');
$node->wait_published;
is($node->value(q{SELECT count(*) FROM idem.outbox WHERE event_type = 'parked' AND published_at IS NULL}), 1, 'a parked row is not published');
$session->query(q{UPDATE idem.outbox SET parked_at = NULL, last_error = NULL WHERE event_type = 'parked'});
$node->wait_published;
@expected{ 'parked', 'behind the parked one' } = (1, 1);

# Rows that were written while the library was not preloaded, and by nobody who
# could have told the relay.
$_->quit foreach $session, $early, $late;
my $preload = "shared_preload_libraries = 'idem'";
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;
is($node->relay_status->{state}, 'not preloaded', 'the library is not preloaded');
$node->value(q{INSERT INTO idem.outbox (seq, topic, event_type, payload) VALUES (-1000, 't', 'not preloaded', '1'), (77, 't', 'not preloaded', '2')});
$node->emit('t', event_type => 'not preloaded', payload => '3');
$node->append_conf('postgresql.conf', $preload);
$node->restart;
$expected{'not preloaded'} = 3;
$node->wait_published;

# What was read: as often as there are rows, and nothing that was rolled back.
my (%read, %times);
foreach my $record (read_topic($kafka, 't'))
{
	$read{again}++, next if $times{ header($record, 'ce_id') }++;
	$read{ header($record, 'ce_type') }++;
}
is_deeply(\%read, \%expected, 'what was committed was read, each row once, and nothing else');
is($node->relay_status->{failed}, 0, 'no delivery failed');

$node->stop;
done_testing;
