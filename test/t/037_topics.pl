# A topic that is not there, or may not be written to, waits by itself: no row of
# it has an attempt or is parked, other topics go on, and it goes on by itself
# when it can.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Events;
use Idem::Kafka;
use Idem::Wait;

my $window = 2500;
# The brokers would create topics: that the relay does not is its own doing.
my $kafka = Idem::Kafka->new(acl => 1, conf => "auto.create.topics.enable=true\n");
$kafka->create_topic($_, 2) foreach qw(other denied hidden deleted);
my $node = Idem::Cluster->start_new('main', kafka => $kafka);
my $worker = $node->wait_state('running')->{pid};
my %rows;

sub write_rows
{
	my ($topic, $count) = @_;

	$node->value(qq{INSERT INTO idem.outbox (topic, partition_key, payload) SELECT '$topic', 'key-' || i % 7, to_jsonb(i) FROM generate_series(1, $count) AS i});
	$rows{$topic} += $count;
	return;
}

sub left { return $node->value("SELECT count(*) FROM idem.outbox WHERE topic = '$_[0]' AND published_at IS NULL") }

sub wait_published
{
	my ($topic, $name) = @_;

	wait_until("$name: every row of topic $topic is published",
		sub { my $left = left($topic); return ($left eq '0', { %{ $node->relay_status }, left => $left }) }, deadline => 90);
	return;
}

# Rows of the topic wait, with what is said about it; other topics go on, and no
# row has an attempt.
sub waits
{
	my ($topic, $name, $said) = @_;

	write_rows($topic, 300);
	write_rows('other', 300);
	wait_published('other', $name);
	wait_until("$name: the view says so",
		sub { my $seen = $node->relay_status; return (scalar($seen->{last_error} =~ $said), $seen) });
	write_rows('other', 300);
	my $seconds = seconds_of(sub { wait_published('other', $name) });
	cmp_ok($seconds, '<', 10, "$name: other topics go on");
	cmp_ok(left($topic), '>=', 300, "$name: its rows wait");
	is($node->value('SELECT count(*) FROM idem.outbox WHERE attempts > 0 OR parked_at IS NOT NULL'), 0, "$name: no attempt is used, nothing is parked");
	return;
}

# It goes on by itself, with what came meanwhile, in order.
sub goes_on
{
	my ($topic, $name, $earlier) = @_;

	write_rows($topic, 10);
	wait_published($topic, $name);
	my $seen = compare($node, $kafka, $topic);
	if ($earlier)
	{
		# What was published before lies in a topic that is gone.
		@$seen{qw(missing misplaced)} = ([], []);
		cmp_ok($seen->{read}, '>=', $rows{$topic} - $earlier, "$name: what was not published before is in the new topic");
	}
	delivered_ok($seen, $name, rows => $rows{$topic}, published => $rows{$topic}, repeats => 2 * $window);
	is($node->relay_status->{pid}, $worker, "$name: the same worker went on");
	return;
}

# Not there yet.
waits('unknown', 'unknown topic', qr/unknown/i);
$kafka->create_topic('unknown', 2);
goes_on('unknown', 'unknown topic');

# Authorisation withdrawn and given back: to write, and to see it at all.
foreach my $case ([ denied => 'Write' ], [ hidden => 'Describe' ])
{
	my ($topic, $operation) = @$case;

	write_rows($topic, 100);
	wait_published($topic, "$operation allowed");
	$kafka->deny($operation, $topic);
	waits($topic, "$operation denied", qr/authori[sz]|unknown/i);
	$kafka->allow($operation, $topic);
	goes_on($topic, "$operation allowed again");
}

# What others are published while one topic is refused, its first refusals and the
# new producer included: as many in a second as without, by the best of three rounds,
# or of some more, since the machine does other things as well.
sub pace
{
	my ($type) = @_;

	$node->value(qq{INSERT INTO idem.outbox (topic, partition_key, event_type, payload)
		SELECT CASE WHEN i % 100 = 0 AND '$type' LIKE 'denied%' THEN 'denied' ELSE 'other' END, 'key-' || i % 7, '$type', to_jsonb(i) FROM generate_series(1, 100000) AS i});
	$rows{denied} += 1000 if $type =~ /^denied/;
	$rows{other} += $type =~ /^denied/ ? 99_000 : 100_000;
	wait_published('other', $type);
	return $node->value(qq{SELECT count(*) / extract(epoch FROM max(published_at) - min(published_at)) FROM idem.outbox WHERE event_type = '$type' AND topic = 'other'});
}

my ($usual, $beside) = (0, 0);
foreach my $round (1 .. 8)
{
	last if $round > 3 && $beside >= 0.9 * $usual;
	my $pace = pace("allowed $round");

	$usual = $pace if $pace > $usual;
	$kafka->deny('Write', 'denied');
	$pace = pace("denied $round");
	$beside = $pace if $pace > $beside;
	cmp_ok(left('denied'), '==', 1000, "denied, round $round: its rows wait");
	$kafka->allow('Write', 'denied');
	wait_published('denied', "allowed again, round $round");
}
cmp_ok($beside, '>=', 0.9 * $usual, sprintf 'others keep their pace beside a topic that is refused (%.0f rows/s, %.0f usually)', $beside, $usual);

# Deleted under load, and created anew.
write_rows('deleted', 500);
wait_published('deleted', 'before it is deleted');
my $earlier = $rows{deleted};
$kafka->delete_topic('deleted');
waits('deleted', 'deleted topic', qr/unknown/i);
$kafka->create_topic('deleted', 3);
goes_on('deleted', 'topic created anew', $earlier);

# No right to anything: a new producer is not even let in, and is made anew, less and
# less often, until it is.
my $before = $node->value('SELECT rebuilds FROM idem.relay_status');
$kafka->deny('IDEMPOTENT_WRITE', 'kafka-cluster');
$kafka->deny('Write', '*');
write_rows('other', 300);
write_rows('hidden', 300);
wait_until('the view says that no producer is let in',
	sub { my $seen = $node->relay_status; return (scalar($seen->{last_error} =~ /cluster authori[sz]ation/i), $seen) });
wait_until('producers were made anew', sub { my $n = $node->value('SELECT rebuilds FROM idem.relay_status') - $before; return ($n >= 3, $n) });
is($node->value('SELECT count(*) FROM idem.outbox WHERE attempts > 0 OR parked_at IS NOT NULL'), 0, 'no right to anything: no attempt is used, nothing is parked');
cmp_ok(left('other') + left('hidden'), '==', 600, 'no right to anything: rows wait');
$kafka->allow('Write', '*');
$kafka->allow('IDEMPOTENT_WRITE', 'kafka-cluster');
wait_published($_, 'rights given back') foreach qw(other hidden);
is($node->relay_status->{pid}, $worker, 'rights given back: the same worker goes on');

# Repeats come of producers that were made anew, and no more than a window each time.
my $rebuilds = $node->value('SELECT rebuilds FROM idem.relay_status');
my $repeats = 0;
foreach my $topic (sort keys %rows)
{
	my $seen = compare($node, $kafka, $topic);

	$repeats += $seen->{repeats};
	delivered_ok($seen, "topic $topic in the end", rows => $rows{$topic}, published => $rows{$topic}, repeats => $rebuilds * $window) if $topic ne 'deleted';
}
cmp_ok($repeats, '<=', $rebuilds * $window, "$repeats repeats by $rebuilds producers made anew");
cmp_ok($rebuilds, '<=', 12, 'which are not many');
is($node->value(q{SELECT to_jsonb(s) ->> 'order_violations' FROM idem.relay_status AS s}), 0, 'no violation of the order');
unlike(slurp_file($node->logfile), qr/idem relay.*(?:terminated by signal|exited with exit code)|PANIC/, 'no worker ended');

$node->stop;
done_testing;
