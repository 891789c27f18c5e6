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

# it is 3 ms, less the time until the client knows of the commit and asks for the clock
my $linger_ms = 2;
my $kafka = Idem::Kafka->new;
$kafka->create_topic($_, 3) foreach qw(t limited);
my $node = Idem::Cluster->start_new('main', kafka => $kafka);
my $worker = $node->wait_state('running')->{pid};
my $session = $node->session;
my $rows = 0;

# The quickest of some lone events, in milliseconds from its commit to its mark.
sub quickest
{
	my ($topic, $times) = @_;

	return min map {
		my $seq = $session->query(qq{INSERT INTO idem.outbox (topic, partition_key, payload) VALUES ('$topic', 'lone', '1') RETURNING seq});
		my $committed = $session->query('SELECT clock_timestamp()');

		$rows++ if $topic eq 't';
		wait_until('a lone event is published', sub {
			return $session->query("SELECT 1000 * extract(epoch FROM published_at - '$committed') FROM idem.outbox WHERE seq = $seq AND published_at IS NOT NULL");
		});
	} 1 .. $times;
}

sub load
{
	my ($topic, $keys) = @_;
	my $end = time + 3;
	my $n = 0;

	while (time < $end)
	{
		$session->query(qq{INSERT INTO idem.outbox (topic, partition_key, payload) SELECT '$topic', 'key-' || i % $keys, to_jsonb(i) FROM generate_series(1, 200) AS i});
		$n += 200;
	}
	$rows += $n if $topic eq 't';
	return;
}

quickest('t', 5);
cmp_ok(quickest('t', 20), '<', $linger_ms, 'lone events are sent at once');
load('t', 1000);
cmp_ok(quickest('t', 5), '>=', $linger_ms, 'under load the relay gathers');
wait_until('lone events are sent at once again', sub { my $ms = quickest('t', 3); return ($ms < $linger_ms, $ms) });
load('t', 1000);
cmp_ok(quickest('t', 5), '>=', $linger_ms, 'and again');

$node->value(q{INSERT INTO idem.topic (topic, max_in_flight_per_key) VALUES ('limited', 1)});
wait_until('lone events are sent at once again', sub { my $ms = quickest('t', 3); return ($ms < $linger_ms, $ms) });
load('limited', 50);
$node->wait_published;
cmp_ok(quickest('limited', 5), '<', $linger_ms, 'rows that wait for others of their key are not made to wait longer');

my $seen = compare($node, $kafka, 't');
delivered_ok($seen, 'changes', rows => $rows, published => $rows, repeats => 0);
is($node->relay_status->{pid}, $worker, 'one worker did it all');
is($node->value(q{SELECT rebuilds || ' ' || order_violations FROM idem.relay_status}), '0 0', 'no producer failed, and no violation of the order');

$session->quit;
$node->stop;
done_testing;
