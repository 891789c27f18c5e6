# A producer that lost its place: while others are under way, one request is answered
# with an error that ends an idempotent producer, or has it begin its sequences again,
# and the broker refuses those after it for the gap.  What was in flight is sent again
# in order: nothing is lost and nothing overtaken.
#
# The error is a proxy's (a broker gives it only when something is amiss); all else is
# a real broker, since it is its sequence numbers that matter.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Events;
use Idem::Kafka;
use Idem::Wait;

my $rounds = $ENV{IDEM_LONG} ? 20 : 3;
my $seed = $ENV{IDEM_SEED} // time;

srand $seed;
note "seed $seed";

my $window = 2500;
my %errors = (
	NOT_LEADER_FOR_PARTITION => 6,
	OUT_OF_ORDER_SEQUENCE_NUMBER => 45,
	INVALID_PRODUCER_EPOCH => 47,
	UNKNOWN_PRODUCER_ID => 59,
	PRODUCER_FENCED => 90);
my $kafka = Idem::Kafka->new(proxy => 1);
$kafka->create_topic('t', 3);
my $proxy = $kafka->{proxy};
my $node = Idem::Cluster->start_new('main', kafka => $kafka, conf => "idem.kafka_brokers = '" . $kafka->proxied . "'\n");
my $worker = $node->wait_state('running')->{pid};
my ($rows, $refused) = (0, 0);

sub rebuilds { return $node->value('SELECT rebuilds FROM idem.relay_status') }

# Under a load that takes some 30 requests, some of them refused, at random.
sub refuse_some
{
	my ($name, $code) = @_;
	my $times = 1 + int rand 3;

	$proxy->refuse($code, int rand 8) foreach 1 .. $times;
	$refused += $times;
	$node->value(q{INSERT INTO idem.outbox (topic, partition_key, payload) SELECT 't', 'key-' || i % 20, jsonb_build_object('n', i, 'text', repeat('x', 300)) FROM generate_series(1, 10000) AS i});
	$rows += 10000;
	wait_until("$name: $refused requests are refused", sub {
		my ($seen) = $proxy->refusals;

		return 1 if $seen == $refused;
		$node->emit('t', key => 'few', payload => '1');
		$rows++;
		return (0, $seen);
	});
	$node->wait_published;
	return $times;
}

# Producers that the library said were of no more use.
sub heard { return scalar(() = slurp_file($node->logfile) =~ /a Kafka producer ended and is made anew/g) }

foreach my $error (sort keys %errors)
{
	my ($before, $heard_before, $times) = (rebuilds(), heard(), 0);

	$times += refuse_some("$error, $_", $errors{$error}) foreach 1 .. $rounds;
	my ($ended, $heard) = (rebuilds() - $before, heard() - $heard_before);
	note "$error: $times requests refused, $ended producers made anew";
	cmp_ok($ended, '<=', $times, "$error: each ends one producer at most");
	next if $error =~ /LEADER|UNKNOWN/;
	cmp_ok($ended, '>', 0, "$error: it ends a producer");
	cmp_ok($heard, '>=', $ended, "$error: the library says so, and is heard");
}
my (undef, $most) = $proxy->refusals;
cmp_ok($most, '>=', 2, "as many as $most requests were under way before the one that was refused");

my $seen = compare($node, $kafka, 't');
delivered_ok($seen, 'requests refused', rows => $rows, published => $rows, repeats => $window * rebuilds());
is($node->value('SELECT count(*) FROM idem.outbox WHERE attempts > 0 OR parked_at IS NOT NULL'), 0, 'no attempt is used, nothing is parked');
is($node->value('SELECT order_violations FROM idem.relay_status'), 0, 'no violation of the order');
is($node->relay_status->{pid}, $worker, 'one worker did it all');
$node->stop;
done_testing;
