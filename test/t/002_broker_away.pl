# A broker that is away costs time and nothing else: rows wait, the worker lives,
# the server stops quickly, and everything arrives once the broker is back.

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
$kafka->stop;

my $node = Idem::Cluster->start_new('main', kafka => $kafka);
my $expected = 0;

# Writes 50 rows; the broker may be away.
sub write_rows
{
	$node->value(q{SELECT outbox_emit('t', 'k' || i % 7, 'e', to_jsonb(i)) FROM generate_series(1, 50) AS i});
	$expected += 50;
	return;
}

sub unpublished { return $node->value('SELECT count(*) FROM idem.outbox WHERE published_at IS NULL') }

# Every row is in Kafka where its mark says, and each at most $repeats times.
sub all_arrived
{
	my ($when, $repeats) = @_;
	my (%places, %times);

	foreach my $record (read_topic($kafka, 't'))
	{
		my $id = header($record, 'ce_id');

		$times{$id}++;
		$places{$id}{"$record->{partition}/$record->{offset}"} = 1;
	}
	my @rows = $node->outbox;
	is(scalar @rows, $expected, "$when: the outbox has all rows");
	is_deeply([ grep { !$places{ $_->{event_id} }{"$_->{partition}/$_->{offset}"} } @rows ],
		[], "$when: each row is in Kafka at its partition and offset");
	is(scalar keys %times, $expected, "$when: Kafka has nothing else");
	is_deeply([ grep { $times{$_} > $repeats } keys %times ], [], "$when: no event more than $repeats times");
	return;
}

# Away when the server starts.  The relay learns that when it has rows to send.
write_rows();
my $status = $node->wait_state('waiting for broker');
like($status->{hint}, qr/\w/, 'the state comes with a hint');
my $worker = $status->{pid};
is(unpublished(), 50, 'rows wait while the broker is away');
is($node->relay_status->{pid}, $worker, 'the worker lives');
cmp_ok(seconds_of(sub { $node->stop('fast') }), '<', 5, 'the server stops quickly with the broker away');
$node->start;
$node->wait_state('waiting for broker');
$worker = $node->relay_status->{pid};
$kafka->start;
$node->wait_published;
is($node->wait_state('running')->{pid}, $worker, 'the same worker published when the broker came');
all_arrived('after a start without broker', 1);

# Killed while rows are being written.
my $writer = $node->session;
$writer->send(q{DO $$ BEGIN FOR i IN 1 .. 400 LOOP
	PERFORM outbox_emit('t', 'k' || i % 7, 'e', to_jsonb(i)); COMMIT; END LOOP; END $$});
$expected += 400;
wait_until('some of the rows are published',
	sub { my $n = $node->value('SELECT count(kafka_offset) FROM idem.outbox'); return ($n > 60, $n) });
$kafka->kill9;
is($writer->answer->{sqlstate}, '', 'writers notice nothing');
write_rows();
$node->wait_state('waiting for broker');
is($node->relay_status->{pid}, $worker, 'the worker lives');
cmp_ok(unpublished(), '>=', 50, 'rows wait');
is($node->value(q{SELECT count(*) FROM pg_stat_activity
	WHERE backend_type = 'idem relay' AND (xact_start IS NOT NULL OR backend_xmin IS NOT NULL)}),
	0, 'the worker holds no transaction while it waits for Kafka');
$kafka->start;
$node->wait_published;
is($node->relay_status->{pid}, $worker, 'the same worker went on');
# What was in flight at the kill may be there twice.
all_arrived('after kill -9', 2);

# Away when the server stops with rows in flight, and frozen instead of dead.
$kafka->freeze;
write_rows();
wait_until('rows are in flight', sub { my $seen = $node->relay_status; return ($seen->{in_flight} > 0, $seen) });
cmp_ok(seconds_of(sub { $node->stop('fast') }), '<', 5, 'the server stops quickly with rows in flight');
$kafka->thaw;
$node->start;
$node->wait_published;
all_arrived('after a frozen broker', 3);

unlike(slurp_file($node->logfile), qr/idem relay.*(?:terminated by signal|exited with exit code [^01])|PANIC/,
	'no worker crashed');
$writer->quit;
$node->stop;
done_testing;
