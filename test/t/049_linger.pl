# Under load the relay gathers rows into larger batches (linger.ms is 3): a lone
# event right after it takes that long.  When the load is over, and where rows wait
# for others of their key, they are sent at once.

use strict;
use warnings FATAL => 'all';

use List::Util qw(min);
use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Events;
use Idem::Kafka;
use Idem::Wait;

# The relay gathers for 3 ms; an event that is sent at once takes a fraction of one.
my $gathered_ms = 1.5;
my $kafka = Idem::Kafka->new;
$kafka->create_topic($_, 3) foreach qw(t limited);
my $node = Idem::Cluster->start_new('main', kafka => $kafka);
my $worker = $node->wait_state('running')->{pid};
my $session = $node->session;
my $rows = 0;

$session->query(q{
	CREATE PROCEDURE lone(INOUT number bigint, INOUT committed timestamptz) LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO idem.outbox (topic, partition_key, payload) VALUES ('t', 'lone', '1') RETURNING seq INTO number;
		COMMIT;
		committed := clock_timestamp();
	END $$});

# The quickest of some lone events, in milliseconds from its commit to its mark.
sub quickest
{
	my ($times) = @_;

	return min map {
		my ($seq, $committed) = split /\|/, $session->query('CALL lone(NULL, NULL)');

		$rows++;
		wait_until('a lone event is published', sub {
			return $session->query("SELECT 1000 * extract(epoch FROM published_at - '$committed') FROM idem.outbox WHERE seq = $seq AND published_at IS NOT NULL");
		});
	} 1 .. $times;
}

# No event that was gathered is as quick.
sub wait_at_once
{
	wait_until('lone events are sent at once', sub { my $ms = quickest(5); return ($ms < $gathered_ms, $ms) });
	return;
}

# Three seconds of many rows of "t", and so many of "limited" with each 200 of them.
sub load
{
	my ($limited) = @_;
	my $end = time + 3;

	while (time < $end)
	{
		$session->query(qq{INSERT INTO idem.outbox (topic, partition_key, payload) SELECT 't', 'key-' || i % 1000, to_jsonb(i) FROM generate_series(1, 200) AS i});
		$session->query(qq{INSERT INTO idem.outbox (topic, partition_key, payload) SELECT 'limited', 'one', to_jsonb(i) FROM generate_series(1, $limited) AS i})
			if $limited > 0;
		$rows += 200;
	}
	return;
}

wait_at_once();
load(0);
cmp_ok(quickest(8), '>=', $gathered_ms, 'under load the relay gathers');
wait_at_once();
load(0);
cmp_ok(quickest(8), '>=', $gathered_ms, 'and again');

$node->value(q{INSERT INTO idem.topic (topic, max_in_flight_per_key) VALUES ('limited', 1)});
wait_at_once();
load(2);
cmp_ok(quickest(15), '<', $gathered_ms, 'rows that wait for others of their key are not made to wait longer');

$node->wait_published;

my $seen = compare($node, $kafka, 't');
delivered_ok($seen, 'changes', rows => $rows, published => $rows, repeats => 0);
is($node->relay_status->{pid}, $worker, 'one worker did it all');
is($node->value(q{SELECT rebuilds || ' ' || order_violations FROM idem.relay_status}), '0 0', 'no producer failed, and no violation of the order');

$session->quit;
$node->stop;
done_testing;
