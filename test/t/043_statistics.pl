# The server learns what the worker writes, so that autovacuum looks after the
# outbox; and the worker's memory does not grow with the events that it publishes.
#
# The long form (IDEM_LONG) publishes five million.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Kafka;
use Idem::Process;
use Idem::Wait;

my $events = $ENV{IDEM_LONG} ? 5_000_000 : 150_000;
my $kafka = Idem::Kafka->new(cpu => $ENV{IDEM_LONG}, conf => "log.retention.bytes=50000000\nlog.segment.bytes=20000000\n");
$kafka->create_topic("t$_", 3) foreach 1 .. 3;
my $node = Idem::Cluster->start_new('main', kafka => $kafka, conf => <<'EOF_CONF');
autovacuum_naptime = '1s'
autovacuum_vacuum_scale_factor = 0
autovacuum_vacuum_threshold = 5000
autovacuum_vacuum_insert_threshold = -1
max_wal_size = '2GB'
EOF_CONF
my $worker = $node->wait_state('running')->{pid};

# Rows of many keys, of three topics, some with headers and long values.
sub publish
{
	my ($count) = @_;

	$node->value(qq{INSERT INTO idem.outbox (topic, partition_key, payload, headers)
		SELECT 't' || 1 + i % 3, 'key-' || i % 5000, to_jsonb(repeat('x', CASE i % 100 WHEN 0 THEN 5000 ELSE 200 END)), CASE i % 2 WHEN 0 THEN '[["a", "b"]]'::jsonb END
		FROM generate_series(1, $count) AS i});
	$node->wait_published(undef, deadline => 300);
	return;
}

sub statistics
{
	my ($column) = @_;

	return $node->value(qq{SELECT coalesce(sum($column), 0) FROM pg_stat_all_tables WHERE schemaname = 'idem' AND relname LIKE 'outbox_%'});
}

# All updates are marks: nobody else writes.
publish(20_000);
wait_until('the worker has told what it wrote', sub { my $n = statistics('n_tup_upd'); return ($n == 20_000, $n) });
is(statistics('n_tup_upd'), 20_000, 'each mark is counted');
cmp_ok(statistics('n_tup_hot_upd'), '>', 19_000, 'nearly all of them are HOT');
wait_until('autovacuum has come for them', sub { my $n = statistics('autovacuum_count'); return ($n > 0, $n) });
pass('autovacuum comes when only the worker writes');

# The first events make whatever is made once.
my $published = 0;
my @memory;
while ($published < $events)
{
	publish(50_000);
	$published += 50_000;
	push @memory, memory_of($worker);
	# As time does by expiry.
	$node->value('TRUNCATE idem.outbox') if $published % 500_000 == 0;
}
note "memory of the worker after each 50,000 events, kB: @memory";
is($node->relay_status->{pid}, $worker, 'one worker published them');
cmp_ok($memory[-1] - $memory[0], '<', 2048, "memory is the same after $events events as after 70,000");
cmp_ok($memory[-1], '<', 100_000, 'and under 100 MB');

$node->stop;
done_testing;
