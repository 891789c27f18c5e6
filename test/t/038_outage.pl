# A broker that is away, or stands still, for long: no attempt is used, nothing
# is parked, the worker's memory stays as it is, writers notice nothing, and all
# is delivered when it is back.
#
# The long form (IDEM_LONG) has a broker away for ten minutes.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Events;
use Idem::Kafka;
use Idem::Process;
use Idem::Wait;

my $away = $ENV{IDEM_LONG} ? 600 : 15;
my $kafka = Idem::Kafka->new;
$kafka->create_topic('t', 6);
my $node = Idem::Cluster->start_new('main', kafka => $kafka);
my $worker = $node->wait_state('running')->{pid};
my $rows = 0;

sub write_rows
{
	my ($count) = @_;

	$node->value(qq{INSERT INTO idem.outbox (topic, partition_key, payload) SELECT 't', 'key-' || i % 997, to_jsonb(repeat('x', 400)) FROM generate_series(1, $count) AS i});
	$rows += $count;
	return;
}

sub count { return $node->value("SELECT count(*) FROM idem.outbox WHERE $_[0]") }

# Writes rows now and then until so many seconds have passed; gives the most
# memory that the worker had, and its processor time per second.
sub pass_seconds
{
	my ($seconds) = @_;
	my $end = $node->value("SELECT extract(epoch FROM clock_timestamp()) + $seconds");
	my ($most, $begun, $looks) = (0, cpu_seconds($worker), 0);

	wait_until(
		"$seconds s pass",
		sub {
			write_rows(10) if $looks++ % 20 == 0;
			my $memory = memory_of($worker);
			$most = $memory if $memory > $most;
			return $node->value("SELECT extract(epoch FROM clock_timestamp()) > $end") eq 't';
		},
		deadline => $seconds + 60);
	return ($most, (cpu_seconds($worker) - $begun) / $seconds);
}

# A full window first, so that the worker has all the memory that it takes.
write_rows(20_000);
$node->wait_published;

foreach my $case ([ 'away', sub { $kafka->kill9 }, sub { $kafka->start }, $away ], [ 'frozen', sub { $kafka->freeze }, sub { $kafka->thaw }, $ENV{IDEM_LONG} ? 120 : 15 ])
{
	my ($name, $go, $come, $seconds) = @$case;

	$go->();
	write_rows(30_000);
	# The window fills, and whatever else is allocated once.
	my ($first_most, $first_cpu) = pass_seconds(6);
	my $memory = memory_of($worker);
	my ($most, $cpu) = pass_seconds($seconds);
	note sprintf 'broker %s: %.0f %% of a core in the first 6 s, %.0f %% in %d s more; %d kB of memory, at most %d kB',
		$name, $first_cpu * 100, $cpu * 100, $seconds, $memory, $most;
	cmp_ok($most - $memory, '<', 4096, "$name: the worker's memory stays as it is ($memory kB, at most $most kB)");
	cmp_ok($most, '<', 100_000, "$name: and is under 100 MB");
	cmp_ok($cpu, '<', 0.5, "$name: the worker is not busy") if $name eq 'away';
	is(count('attempts > 0'), 0, "$name: no attempt is used");
	is(count('parked_at IS NOT NULL'), 0, "$name: nothing is parked");
	is($node->relay_status->{state}, 'waiting for broker', "$name: the view says so") if $name eq 'away';
	is($node->value(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idem relay' AND (xact_start IS NOT NULL OR backend_xmin IS NOT NULL)}),
		0, "$name: the worker holds no transaction");
	$come->();
	$node->wait_published(undef, deadline => 90);
	is($node->relay_status->{pid}, $worker, "$name: the same worker goes on");
	delivered_ok(compare($node, $kafka, 't'), $name, rows => $rows, published => $rows, repeats => $name eq 'away' ? 2500 : 7500);
}
is($node->value(q{SELECT to_jsonb(s) ->> 'order_violations' FROM idem.relay_status AS s}), 0, 'no violation of the order');

$node->stop;
done_testing;
