# The network is cut in the middle of answers, again and again: whether Kafka has
# stored the rows is not known then.  Nothing is lost and nothing overtaken.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Events;
use Idem::Kafka;
use Idem::Wait;

my $cuts = 20;
my $kafka = Idem::Kafka->new(proxy => 1);
$kafka->create_topic('t', 3);
my $proxied = $kafka->proxied;
my $node = Idem::Cluster->start_new('main', kafka => $kafka, conf => "idem.kafka_brokers = '$proxied'\n");
my $worker = $node->wait_state('running')->{pid};
is($node->relay_status->{brokers}, $proxied, 'the relay goes by way of the proxy');

my $writer = $node->session;
my $rows = 0;
foreach my $cut (1 .. $cuts)
{
	$writer->query(q{INSERT INTO idem.outbox (topic, partition_key, payload) SELECT 't', 'key-' || i % 50, to_jsonb(i) FROM generate_series(1, 500) AS i});
	$kafka->{proxy}->cut;
	# This one is under way when the answer to one of them is cut.
	$writer->query(q{INSERT INTO idem.outbox (topic, partition_key, payload) SELECT 't', 'key-' || i % 50, to_jsonb(i) FROM generate_series(1, 500) AS i});
	$rows += 1000;
	wait_until("answer $cut is cut", sub { my $n = $kafka->{proxy}->cuts; return ($n == $cut, $n) });
}
$node->wait_published;
is($kafka->{proxy}->cuts, $cuts, "$cuts answers were cut");
my $seen = compare($node, $kafka, 't');
delivered_ok($seen, 'answers cut', rows => $rows, published => $rows, repeats => $cuts * 2500);
is($node->value('SELECT count(*) FROM idem.outbox WHERE attempts > 0 OR parked_at IS NOT NULL'), 0, 'no attempt is used, nothing is parked');
is($node->relay_status->{pid}, $worker, 'one worker did it all');
is($node->value(q{SELECT to_jsonb(s) ->> 'order_violations' FROM idem.relay_status AS s}), 0, 'no violation of the order');

$writer->quit;
$node->stop;
done_testing;
