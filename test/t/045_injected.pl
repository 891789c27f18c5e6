# What no real broker can be made to do when a test wants it, from librdkafka's mock
# broker: a request is refused and those after it are not, one that is slow is waited for;
# topics by the thousand.
#
# (test/long/injected.pl has each error of the README's table.)

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Events;
use Idem::Mock;
use Idem::Wait;

my $window = 2500;
my $mock = Idem::Mock->new('t', 2);
my $node = Idem::Cluster->start_new('main', kafka => $mock);
my $worker = $node->wait_state('running')->{pid};
my $rows = 0;

sub write_rows
{
	my ($count) = @_;

	$node->value(qq{INSERT INTO idem.outbox (topic, partition_key, payload) SELECT 't', 'key-' || i % 20, to_jsonb(i) FROM generate_series(1, $count) AS i});
	$rows += $count;
	return;
}

sub rebuilds { return $node->value('SELECT rebuilds FROM idem.relay_status') }

sub in_order
{
	my ($name, $repeats) = @_;

	$node->wait_published;
	delivered_ok(compare($node, $mock, 't'), $name, rows => $rows, published => $rows, repeats => $repeats);
	is($node->value('SELECT count(*) FROM idem.outbox WHERE attempts > 0 OR parked_at IS NOT NULL'), 0, "$name: no attempt is used, nothing is parked");
	return;
}

write_rows(100);
in_order('no error', 0);

# A request is refused, and the one after it is stored: the mock has no sequence numbers,
# like a partition that does not know the producer.  The library then takes the first one
# for stored, too; the relay does not.
# (Its order is of no use then.)
my $made = rebuilds();
$mock->say('topic inferred 1');
$mock->say('rtt 100');
$node->emit('inferred', key => 'k', payload => '1');
$node->wait_published;
$mock->say('push UNKNOWN_PRODUCER_ID 1');
$node->emit('inferred', key => 'k', payload => '1') foreach 1 .. 5;
$node->wait_published;
$mock->say('rtt 0');
my $inferred = compare($node, $mock, 'inferred');
is_deeply([ @$inferred{qw(missing misplaced unknown)} ], [ [], [], [] ], 'stored by inference: each published row is where its mark says');
is($inferred->{published}, 6, 'stored by inference: all are published');
cmp_ok(rebuilds() - $made, '>', 0, 'stored by inference: a new producer sends what is not known to be stored');

# A broker that takes three seconds to answer is no reason to send anything again.
my $before = rebuilds();
$mock->say('rtt 3000');
write_rows(1000);
$node->wait_published;
is(rebuilds(), $before, 'a slow broker: no producer is made anew');
$mock->say('rtt 0');
in_order('a slow broker', 4 * $window);

# More topics than the relay tells apart: those that are too many count as one, with
# whatever number of partitions.
$mock->say("topic topic-$_ " . (1 + $_ % 3)) foreach 1 .. 1100;
$node->value(q{INSERT INTO idem.outbox (topic, partition_key, payload) SELECT 'topic-' || t, 'key-' || i % 2, to_jsonb(i) FROM generate_series(1, 6) AS i, generate_series(1, 1100) AS t ORDER BY t, i});
$node->wait_published;
is($node->value(<<'EOF_SQL'), '0', '1,100 topics: each key is in one partition and in order');
SELECT count(*) FROM (SELECT seq, kafka_partition AS p, lag(seq) OVER w AS seq_before, lag(kafka_partition) OVER w AS p_before
	FROM idem.outbox WHERE topic LIKE 'topic-%' WINDOW w AS (PARTITION BY topic, partition_key ORDER BY kafka_offset)) AS x
WHERE seq < seq_before OR p <> p_before
EOF_SQL
foreach my $topic ('topic-1', 'topic-1023', 'topic-1024', 'topic-1100')
{
	delivered_ok(compare($node, $mock, $topic), $topic, rows => 6, published => 6, repeats => 0);
}

is($node->value('SELECT order_violations FROM idem.relay_status'), 0, 'no violation of the order');
is($node->relay_status->{pid}, $worker, 'one worker did it all');
$node->stop;
done_testing;
