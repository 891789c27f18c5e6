# What the relay does by itself for the sake of speed, and what has to come out
# as if a statement had done it: the text of JSON and of times, and marks.

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
$kafka->create_topic('moved', 1);
my $node = Idem::Cluster->start_new('main', kafka => $kafka);
$node->wait_state('running');

sub unpublished { return $node->value('SELECT count(*) FROM idem.outbox WHERE published_at IS NULL') }

# Rows that Kafka does not acknowledge before what is done to them is done.
sub while_in_flight
{
	my ($rows, $insert, $done) = @_;

	$kafka->freeze;
	$node->value($insert);
	wait_until("$rows rows are in flight", sub { my $seen = $node->relay_status->{in_flight}; return ($seen == $rows, $seen) });
	$done->();
	$kafka->thaw;
	return;
}

# Text: strings with each kind of character at each place of the eight that are
# looked at together, numbers, empty things, values that are no object.
$node->value(<<'EOF_SQL');
INSERT INTO idem.outbox (topic, partition_key, payload)
SELECT 't', 'text', jsonb_build_object(repeat('k', n) || c, ARRAY[repeat('v', n) || c || repeat('w', 17 - n), c || c])
  FROM generate_series(0, 17) AS n, unnest(ARRAY[E'\x01', E'\b', E'\f', E'\n', E'\r', E'\t', E'\x1f', ' ', '!', '"', '#', '/', '[', '\', ']', E'\x7f', U&'\0080', U&'\00e9', U&'\20ac', U&'\+01F600', 'x']) AS c;
INSERT INTO idem.outbox (topic, partition_key, payload)
SELECT 't', 'text', payload::jsonb
  FROM unnest(ARRAY['{}', '[]', '""', 'null', 'true', 'false', '0', '-0', '1.50', '1e400', '-1e-30', '12345678901234567890.000', '"a"', '[[]]', '[{}]', '[[], {}, [[1], []], null]',
	'{"a": {}, "b": [], "c": {"d": [{"e": null}]}}', '{"": ""}', '[1, "two", [3, {"four": [5]}], false]']) AS payload;
INSERT INTO idem.outbox (topic, partition_key, created_at)
SELECT 't', 'time', created_at::timestamptz
  FROM unnest(ARRAY['2026-11-30 12:00:00.000001+00', '2024-02-29 23:59:59.999999+00', '1970-01-01+00', '1969-12-31 23:59:59.5+00', '1999-12-31 23:59:59.999999+00', '2000-01-01+00', '0001-01-01+00', '1600-03-01 00:00:00.25+00']) AS created_at;
EOF_SQL
$node->wait_published;
my @rows = $node->outbox;
my %record = map { scalar header($_, 'ce_id') => $_ } read_topic($kafka, 't');
cmp_ok(scalar @rows, '>', 400, 'a lot of rows');
is(join("\n", map { $record{ $_->{event_id} }{value} // 'NULL' } @rows), join("\n", map { $_->{value} // 'NULL' } @rows), 'JSON is sent as jsonb::text has it');
is(join("\n", map { header($record{ $_->{event_id} }, 'ce_time') } @rows), join("\n", map { $_->{created_at} } @rows), 'ce_time is created_at in UTC');
is(join(' ', map { "$record{ $_->{event_id} }{partition}/$record{ $_->{event_id} }{offset}" } @rows), join(' ', map { "$_->{partition}/$_->{offset}" } @rows), 'rows are marked with the partition and the offset that they have');

# Marks of rows of an ordinary size are HOT updates, also those of one at a time.
sub updates_counted
{
	my ($expected) = @_;
	my $hot;

	wait_until("$expected updates are counted",
		sub {
			(my $all, $hot) = split /\|/, $node->value(q(SELECT sum(n_tup_upd), sum(n_tup_hot_upd) FROM pg_stat_user_tables WHERE relname ~ '^outbox_\d\d$'));
			return ($all == $expected, $all);
		});
	return $hot;
}
my $hot = updates_counted(scalar @rows);
$node->value(q(INSERT INTO idem.outbox (topic, payload) SELECT 't', to_jsonb(repeat('x', 200)) FROM generate_series(1, 100)));
$node->wait_published;
$node->emit('t', payload => '"' . 'y' x 200 . '"') && $node->wait_published foreach 1 .. 5;
is(updates_counted(@rows + 105) - $hot, 105, 'marks are HOT updates, and known to autovacuum');

# Rows that are changed, moved away, deleted or locked while they are in flight.
# The first row of a partition goes alone.
$node->emit('moved', payload => '0');
$node->wait_published;
while_in_flight(4, q(INSERT INTO idem.outbox (seq, topic, payload) SELECT 1000000 + i, 'moved', to_jsonb(i) FROM generate_series(1, 4) AS i),
	sub {
		$node->value(q(UPDATE idem.outbox SET aggregate_type = 'changed' WHERE seq = 1000001));
		$node->value(q(DELETE FROM idem.outbox WHERE seq = 1000002));
		$node->value(q(UPDATE idem.outbox SET published_at = 'epoch' WHERE seq = 1000003));
	});
$node->wait_published;
is($node->value(q(SELECT string_agg(seq || ' ' || (published_at = 'epoch') || ' ' || coalesce(kafka_offset::text, 'none'), ', ' ORDER BY seq) FROM idem.outbox WHERE topic = 'moved' AND seq > 1000000)),
	'1000001 false 1, 1000003 true none, 1000004 false 4', 'a row that was changed is marked, one that is marked already is left alone');

my $locker = $node->session;
while_in_flight(2, q(INSERT INTO idem.outbox (seq, topic, payload) SELECT 2000000 + i, 'moved', to_jsonb(i) FROM generate_series(1, 2) AS i),
	sub {
		$locker->query('BEGIN');
		$locker->query(q(UPDATE idem.outbox SET aggregate_type = 'changed' WHERE seq = 2000001));
	});
wait_until('the mark waits for the row',
	sub { my $seen = $node->value(q(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idem relay' AND wait_event_type = 'Lock')); return ($seen, $seen) });
$locker->query('COMMIT');
$node->wait_published;
is($node->value(q(SELECT count(*) FROM idem.outbox WHERE seq > 2000000 AND published_at IS NOT NULL AND kafka_offset IS NOT NULL)), '2', 'a row that another session changes meanwhile is marked');

# What the operator put on the table keeps its meaning.
$node->value(<<'EOF_SQL');
CREATE INDEX by_published_at ON idem.outbox (published_at);
CREATE TABLE seen (seq bigint, published_at timestamptz);
EOF_SQL
$node->emit('t', payload => '"indexed"');
$node->wait_published;
is($node->value(q(SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*) FROM idem.outbox WHERE published_at > now() - interval '1 day' AND payload = '"indexed"')), '1', 'an index on a column that a mark sets knows of the mark');
$node->value('DROP INDEX idem.by_published_at');

$node->value(<<'EOF_SQL');
CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO public.seen VALUES (NEW.seq, NEW.published_at); RETURN NEW; END $$;
CREATE TRIGGER see BEFORE UPDATE ON idem.outbox FOR EACH ROW EXECUTE FUNCTION see();
EOF_SQL
my $id = $node->emit('t', payload => '"triggered"');
$node->wait_published;
is($node->value("SELECT count(*) FROM seen JOIN idem.outbox USING (seq, published_at) WHERE event_id = '$id'"), '1', 'a trigger fires for a mark');
$node->value('DROP TRIGGER see ON idem.outbox');

$node->value(q(ALTER TABLE idem.outbox ADD CONSTRAINT never CHECK (event_type <> 'never' OR published_at IS NULL)));
$node->emit('t', key => 'never', event_type => 'never', payload => '1');
wait_until('the mark is refused', sub { my $seen = $node->relay_status->{last_error}; return (scalar($seen =~ /"never"/), $seen) });
is(unpublished(), '1', 'a constraint refuses a mark');
$node->value('ALTER TABLE idem.outbox DROP CONSTRAINT never');
$node->wait_published;
pass('and the row is marked when it no longer does');

$node->stop;
done_testing;
