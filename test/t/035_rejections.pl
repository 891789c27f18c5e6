# Rows that Kafka rejects for good, among many: nothing overtakes them within
# their keys, they are parked with the reason, and the others arrive.
#
# The topics take no timestamps older than ten minutes, so a row with an older
# created_at is rejected by the broker, with all that is in its batch.
#
# The long form (IDEM_LONG) has 400,000 rows and 50 rejections.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Consumer;
use Idem::Events;
use Idem::Kafka;
use Idem::Wait;

my ($rows, $bad) = $ENV{IDEM_LONG} ? (400_000, 50) : (40_000, 5);
my $keys = 1000;
my $window = 2500;
my %old_is_bad = ('message.timestamp.before.max.ms' => 600_000, 'retention.ms' => -1);

my $kafka = Idem::Kafka->new;
$kafka->create_topic($_, 6, %old_is_bad) foreach qw(block skip first limit reconnect);
my $node = Idem::Cluster->start_new('main', kafka => $kafka, conf => "autovacuum_naptime = '1min'\n");
$node->value(q{INSERT INTO idem.topic (topic, on_failure, max_in_flight_per_key) VALUES ('skip', 'skip', 0), ('limit', 'block', 1)});
$node->wait_state('running');

# Rows of 1,000 keys in turn; $bad of them, each of another key, are too old.
sub write_rows
{
	my ($topic, $rows, $every) = @_;

	$node->value(<<"EOF_SQL");
INSERT INTO idem.outbox (topic, partition_key, payload, created_at)
SELECT '$topic', 'key-' || (i * 7919 + i / $every) % $keys, to_jsonb(repeat('x', 300)), clock_timestamp() - CASE WHEN i % $every = $every / 2 THEN interval '20 minutes' ELSE '0' END
FROM generate_series(1, $rows) AS i
EOF_SQL
	return;
}

# Waits until the only rows of a topic that are left are parked, or of the key of
# one that is parked and behind it.
sub wait_settled
{
	my ($topic, $parked) = @_;

	wait_until(
		"$topic: $parked rows are parked and all that can be is published",
		sub {
			my $seen = $node->value(<<"EOF_SQL");
WITH parked AS (SELECT partition_key, min(seq) AS seq FROM idem.outbox WHERE topic = '$topic' AND parked_at IS NOT NULL GROUP BY 1),
	waiting AS (SELECT seq, partition_key FROM idem.outbox WHERE topic = '$topic' AND published_at IS NULL AND parked_at IS NULL)
SELECT (SELECT count(*) FROM idem.outbox WHERE topic = '$topic' AND parked_at IS NOT NULL)
	|| ' parked, ' || (SELECT count(*) FROM waiting AS w WHERE NOT EXISTS (SELECT FROM parked AS p WHERE p.partition_key = w.partition_key AND p.seq < w.seq)) || ' left'
EOF_SQL
			return ($seen eq "$parked parked, 0 left", $seen);
		},
		deadline => $ENV{IDEM_LONG} ? 900 : 90);
	return;
}

sub reasons
{
	my ($topic) = @_;

	return $node->value("SELECT DISTINCT attempts || ' attempts: ' || last_error FROM idem.outbox WHERE topic = '$topic' AND parked_at IS NOT NULL");
}

sub violations { return $node->value(q{SELECT to_jsonb(s) ->> 'order_violations' FROM idem.relay_status AS s}) }

my $every = $rows / $bad;
my $few = $rows / 4;

# All at once, since a row that is rejected by itself is tried for a while.
write_rows('block', $rows, $every);
write_rows('skip', $few, $few / $bad);
write_rows('limit', $few, $few / $bad);
wait_settled($_, $bad) foreach qw(block skip limit);

# Block: what lies behind a parked row in its key waits.
my $seen = compare($node, $kafka, 'block');
my $behind = $node->value(<<'EOF_SQL');
SELECT count(*) FROM idem.outbox AS b JOIN idem.outbox AS p USING (topic, partition_key)
WHERE topic = 'block' AND p.parked_at IS NOT NULL AND b.seq > p.seq AND b.parked_at IS NULL
EOF_SQL
cmp_ok($behind, '>', $bad, 'block: there are rows behind those that are parked');
delivered_ok($seen, 'block', rows => $rows, parked => $bad, waiting => $behind, repeats => 3 * $bad * $window);
like(reasons('block'), qr/^5 attempts: .*timestamp.*$/i, 'block: parked after five attempts, with the reason');

# The cause is removed and the rows are released: they go first, the rest follows.
$kafka->configure_topic('block', 'message.timestamp.before.max.ms' => 86_400_000_000);
$node->value(q{UPDATE idem.outbox SET parked_at = NULL, attempts = 0, last_error = NULL WHERE topic = 'block' AND parked_at IS NOT NULL});
wait_settled('block', 0);
delivered_ok(compare($node, $kafka, 'block'), 'block, released', rows => $rows, published => $rows, repeats => 3 * $bad * $window);

# Skip: the key goes on, nothing waits.
delivered_ok(compare($node, $kafka, 'skip'), 'skip', rows => $few, published => $few - $bad, parked => $bad, waiting => 0, repeats => 3 * $bad * $window);
like(reasons('skip'), qr/timestamp/i, 'skip: parked with the reason');

# One row of a key at a time.
delivered_ok(compare($node, $kafka, 'limit'), 'one row of a key at a time', rows => $few, parked => $bad, repeats => 3 * $bad * $window);
is(violations(), 0, 'no violation of the order');

# The very first rows that partitions get, right after a start, and while the
# broker is killed and comes back.
$node->restart;
$node->value(q{INSERT INTO idem.outbox (topic, partition_key, payload, created_at)
	SELECT 'first', 'key-' || i % 20, to_jsonb(i), clock_timestamp() - CASE WHEN i < 20 THEN interval '20 minutes' ELSE '0' END FROM generate_series(0, 1999) AS i});
my $writer = $node->session;
$writer->send(qq{DO \$\$ BEGIN FOR i IN 1 .. 100 LOOP
	INSERT INTO idem.outbox (topic, partition_key, payload, created_at)
		SELECT 'reconnect', 'key-' || j % 50, to_jsonb(i * 100 + j), clock_timestamp() - CASE WHEN i % 20 = 10 AND j = i THEN interval '20 minutes' ELSE '0' END FROM generate_series(1, 100) AS j;
	COMMIT; END LOOP; END \$\$});
wait_until('some are published', sub { my $n = $node->value(q{SELECT count(*) FROM idem.outbox WHERE topic = 'reconnect' AND published_at IS NOT NULL}); return ($n > 200, $n) });
$kafka->kill9;
$writer->answer;
$kafka->start;
wait_settled('first', 20);
wait_settled('reconnect', 5);
delivered_ok(compare($node, $kafka, 'first'), 'first batch', rows => 2000, parked => 20, published => 0, waiting => 1980, repeats => 0);
delivered_ok(compare($node, $kafka, 'reconnect'), 'after a reconnect', rows => 10_000, parked => 5, repeats => 26 * $window);
is(violations(), 0, 'no violation of the order');
unlike(slurp_file($node->logfile), qr/idem relay.*(?:terminated by signal|exited with exit code [^01])|PANIC/, 'no worker crashed');

$writer->quit;
$node->stop;
done_testing;
