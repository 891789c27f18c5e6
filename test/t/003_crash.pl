# Whatever is killed between reading a row and marking it: the event comes again
# under the same id, and none is lost.

use strict;
use warnings FATAL => 'all';

use List::Util qw(max);

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Consumer;
use Idem::Kafka;
use Idem::Wait;

use constant ROWS => 20;

my $kafka = Idem::Kafka->new;
my $node = Idem::Cluster->start_new('main', kafka => $kafka);

# Writes ROWS rows to a topic in one transaction, so that they are one batch.
sub write_rows
{
	my ($topic) = @_;

	return $node->value(
		"SELECT count(outbox_emit('$topic', 'k' || i % 3, 'e', to_jsonb(i))) FROM generate_series(1, @{[ROWS]}) AS i");
}

# How often each event id is in the topic; { id => times }.
sub times_read
{
	my ($topic) = @_;
	my %times;

	$times{$_}++ foreach event_ids(read_topic($kafka, $topic));
	return \%times;
}

# Nothing lost, nothing new, no more repeats than the deaths allow, and order by
# key once repeats are removed.
sub check_topic
{
	my ($topic, $least, $most) = @_;
	my @rows = grep { $_->{topic} eq $topic } $node->outbox;
	my @records = read_topic($kafka, $topic);
	my $times = times_read($topic);
	my %seq = map { $_->{event_id} => $_->{seq} } @rows;
	my %at = map { header($_, 'ce_id') . " $_->{partition} $_->{offset}" => 1 } @records;
	my (%seen, %last, @overtaken);

	is_deeply([ sort keys %$times ], [ sort keys %seq ], "$topic: the events of the outbox, and no other");
	is_deeply([ grep { $_ < $least || $_ > $most } values %$times ], [], "$topic: each $least to $most times");
	is_deeply([ grep { !$at{"$_->{event_id} $_->{partition} $_->{offset}"} } @rows ],
		[], "$topic: each mark names a record of its event");
	foreach my $record (grep { !$seen{ header($_, 'ce_id') }++ } @records)
	{
		my $seq = $seq{ header($record, 'ce_id') };

		push @overtaken, $seq if $seq < ($last{ $record->{key} } // 0);
		$last{ $record->{key} } = $seq;
	}
	is_deeply(\@overtaken, [], "$topic: in order of seq for each key");
	return;
}

sub deaths { return scalar(() = slurp_file($node->logfile) =~ /"idem relay[^"]*" \(PID \d+\) was terminated by signal 9/g) }

# A relay whose worker died twice without a mark pauses until it is told to go on.
sub go_on
{
	my $seen = $node->relay_status;

	$node->value("SELECT pg_terminate_backend($seen->{pid})") if $seen->{state} eq 'paused';
	return $seen->{state} eq 'running';
}

# The worker killed at a named point, as often as it gets there until the point
# is switched off: each death may repeat what was in flight.
sub kill_at
{
	my ($point, $least) = @_;
	my $before = deaths();

	$kafka->create_topic($point, 2);
	$node->wait_state('running');
	$node->set('idem.test_points' => "$point=kill");
	# the server may go down with the worker before it has answered
	eval { write_rows($point) };
	wait_until("the worker dies at $point", sub { my $n = deaths() - $before; return ($n > 0, $n) });
	# The server restarts all processes, again and again.
	wait_until("$point is switched off", sub { return eval { $node->reset('idem.test_points'); 1 } // (0, $@) });
	wait_until('the server stays up', sub { return eval { go_on() } // (0, $@) });
	$node->wait_published;

	check_topic($point, $least, 1 + deaths() - $before);
	return;
}

$node->wait_state('running');
# Nothing was produced yet.
kill_at('relay-read', 1);
# Handed to the library; whether it sent them before it died is open.
kill_at('relay-produced', 1);
# Kafka has some of them at least, and these come again; the mark is not written, or
# not committed.
foreach my $point ('relay-before-mark', 'relay-marked')
{
	kill_at($point, 1);
	cmp_ok(max(values %{ times_read($point) }), '>', 1, "$point: what was acknowledged and not marked came again");
}

# Ways to end the worker or the server between Kafka's acknowledgement and the
# mark.  A frozen broker gives the time to take a lock that lets the relay read
# and produce, but not mark.
sub end_in_window
{
	my ($name, $end) = @_;
	my $locker = $node->session;

	$kafka->create_topic($name, 2);
	$node->wait_state('running');
	$kafka->freeze;
	write_rows($name);
	wait_until("$name: rows are in flight",
		sub { my $seen = $node->relay_status; return ($seen->{in_flight} > 0, $seen) });
	$locker->query('BEGIN; LOCK TABLE idem.outbox IN SHARE MODE');
	$kafka->thaw;
	wait_until("$name: Kafka has all rows", sub { my $n = () = read_topic($kafka, $name); return ($n == ROWS, $n) });
	is(unpublished($name), ROWS, "$name: acknowledged and not marked");
	$end->();
	$locker->quit;
	$node->wait_up;
	$node->wait_published;
	check_topic($name, 2, 2);
	return;
}

sub unpublished
{
	my ($topic) = @_;

	return $node->value("SELECT count(*) FROM idem.outbox WHERE topic = '$topic' AND published_at IS NULL");
}

sub worker { return $node->wait_new_worker(0) }

end_in_window(
	'pg_terminate_backend',
	sub {
		my $old = worker();

		$node->value("SELECT pg_terminate_backend($old)");
		cmp_ok($node->wait_new_worker($old), '!=', $old, 'pg_terminate_backend: another worker takes over');
	});
end_in_window(
	'worker-killed',
	sub {
		my $died = deaths();

		kill 'KILL', worker();
		wait_until('the server notices', sub { return deaths() > $died });
	});
end_in_window('immediate-shutdown', sub { $node->stop('immediate'); $node->start });
end_in_window('server-killed', sub { $node->crash; $node->start });

# The server after kill -9 has its worker back by itself, and so has a worker
# that left with an error.
$kafka->create_topic('worker-error', 2);
my $before = worker();
$node->set('idem.test_points' => 'relay-before-mark=error');
write_rows('worker-error');
wait_until('the worker reports the error',
	sub { my $log = slurp_file($node->logfile); return ($log =~ /relay-before-mark/ ? 1 : 0) });
$node->reset('idem.test_points');
$node->wait_published;
my $times = times_read('worker-error');
is(scalar keys %$times, ROWS, 'an error in the marking transaction loses nothing');

$node->stop;
done_testing;
