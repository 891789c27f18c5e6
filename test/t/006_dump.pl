# pg_dump and restore keep every row and every sequence, and the relay publishes
# in the restored database what the dump had unpublished.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Consumer;
use Idem::Kafka;
use Idem::Wait;

my $kafka = Idem::Kafka->new;
$kafka->create_topic('t', 2);
# No relay for the database that is dumped: its rows stay as they are.
my $node = Idem::Cluster->start_new('main', kafka => $kafka);
$node->value('CREATE DATABASE source');
$node->value('CREATE EXTENSION idem CASCADE', 'source');

# Rows in every table, in several leaves: an open and a completed record, one
# that is UNKNOWN, published, unpublished and parked events, once keys, ids with
# and without a time.
$node->value(<<'EOF_SQL', 'source');
SELECT idem_try_insert('p', 'open', decode(repeat('01', 32), 'hex'), 'pay', context => '{"a": 1}');
SELECT idem_try_insert('p', 'call', decode(repeat('02', 32), 'hex'), call_timeout => '1 ms');
SELECT idem_try_insert('p', 'done', decode(repeat('03', 32), 'hex'));
SELECT idem_complete('p', 'done', (SELECT attempt FROM idem.idempotency WHERE idempotency_key = 'done'), 201, '{"ok": true}'::jsonb);
SELECT outbox_emit('t', 'k', 'e', '{"n": 1}', '[["h", null]]', once_key => 'fact-1');
SELECT outbox_emit('t', NULL, 'e', NULL, payload_bytes => '\x00ff');
INSERT INTO idem.outbox (topic, partition_key, payload, slot) SELECT 't', 'k' || i, to_jsonb(i), i FROM generate_series(0, 63) AS i;
INSERT INTO idem.outbox (topic, published_at, kafka_partition, kafka_offset) VALUES ('t', now(), 0, 777);
INSERT INTO idem.outbox (topic, parked_at, last_error, attempts) VALUES ('t', now(), 'too large', 5);
INSERT INTO idem.topic VALUES ('t', 'skip', 1, 'send');
SELECT inbox_apply('c', idem_uuid7());
SELECT inbox_apply('c', (lpad(to_hex(86400000::bigint * (20000 + i)), 12, '0') || '70008000000000000000')::uuid) FROM generate_series(0, 70) AS i;
SELECT inbox_apply('c', gen_random_uuid()), inbox_apply('d', '00000000-0000-0000-0000-000000000000');
EOF_SQL

# What the tables that a dump takes along hold: { table => rows and their hash }.
sub contents
{
	my ($database) = @_;

	return { map { $_->{name} => $_->{contents} } $node->rows(<<'EOF_SQL', $database) };
SELECT c.oid::regclass::text AS name, (xpath('//contents/text()', query_to_xml(format(
	$$SELECT count(*) || ' ' || coalesce(md5(string_agg(r::text, chr(10) ORDER BY r::text)), '') AS contents FROM %s AS r$$,
	c.oid::regclass), false, true, '')))[1]::text AS contents
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'idem' AND c.relkind = 'r'
EOF_SQL
}

sub sequences
{
	my ($database) = @_;

	return { map { $_ => $node->value("SELECT last_value || ' ' || is_called FROM idem.$_", $database) } qw(attempt outbox_seq) };
}

my $source = contents('source');
is(scalar(grep { !/^0 / } values %$source), 64 + 65 + 3, 'every table and every leaf has rows in it');

my $folder = PostgreSQL::Test::Utils::tempdir;
my %restore = (
	plain => sub {
		$node->command_ok([ 'pg_dump', '-f', "$folder/plain.sql", 'source' ], 'pg_dump, plain');
		$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', "$folder/plain.sql", 'plain' ], 'psql restores it');
	},
	custom => sub {
		$node->command_ok([ 'pg_dump', '-Fc', '-f', "$folder/custom.dump", 'source' ], 'pg_dump, custom');
		$node->command_ok([ 'pg_restore', '--exit-on-error', '-d', 'custom', "$folder/custom.dump" ], 'pg_restore restores it');
	});

foreach my $format (sort keys %restore)
{
	$node->value("CREATE DATABASE $format");
	$restore{$format}->();
	is_deeply(contents($format), $source, "$format: every row is the same");
	is_deeply(sequences($format), sequences('source'), "$format: sequences stand where they stood");
	my $highest = $node->value('SELECT max(attempt) FROM idem.idempotency', $format);
	cmp_ok($node->value(q{SELECT attempt FROM idem_try_insert('p', 'new', decode(repeat('04', 32), 'hex'))}, $format),
		'>', $highest, "$format: attempts go on");
	$highest = $node->value('SELECT max(seq) FROM idem.outbox', $format);
	$node->emit('t', payload => '"after"', database => $format);
	is($node->value('SELECT max(seq) FROM idem.outbox', $format), $highest + 1, "$format: seq goes on");

	# What was remembered is still known.
	is($node->value(q{SELECT outcome || ' ' || convert_from(body, 'UTF8') FROM idem_try_insert('p', 'done', decode(repeat('03', 32), 'hex'))}, $format),
		'REPLAY {"ok": true}', "$format: a response is replayed");
	is($node->value(q{SELECT inbox_apply('d', '00000000-0000-0000-0000-000000000000')}, $format), 'f', "$format: an applied event is a repeat");
	is($node->value(q{SELECT outbox_emit('t', 'k', 'e', '{"n": 1}', '[["h", null]]', once_key => 'fact-1')
			= (SELECT event_id FROM idem.outbox_once)}, $format), 't', "$format: a fact is stated once");
}

# A dump of the copy is the dump of the source.
$node->value('CREATE DATABASE again');
$node->command_ok([ 'pg_dump', '-f', "$folder/custom.sql", 'custom' ], 'the copy can be dumped');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', "$folder/custom.sql", 'again' ], 'and restored');
is_deeply(contents('again'), contents('custom'), 'a second round keeps every row');

# The relay of a restored database publishes what is left to publish.
is(scalar(read_topic($kafka, 't')), 0, 'nothing was published so far');
$node->value(q{ALTER SYSTEM SET idem.databases = 'postgres, plain'});
$node->restart;
$node->wait_published('plain');
my %rows = map { $_->{event_id} => $_ } $node->outbox('plain');
my %read = map { $_ => 1 } event_ids(read_topic($kafka, 't'));
my $left = $node->rows(q{SELECT 1 FROM idem.outbox WHERE kafka_offset IS DISTINCT FROM 777 AND parked_at IS NULL}, 'plain');
is(scalar keys %read, $left, 'all that was unpublished arrived');
is_deeply([ grep { !$rows{$_} } keys %read ], [], 'and nothing else');
is($node->value('SELECT count(*) FROM idem.outbox WHERE parked_at IS NOT NULL AND published_at IS NULL', 'plain'), 1, 'the parked row stays parked');

$node->stop;
done_testing;
