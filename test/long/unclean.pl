# A worker that dies twice without a mark between would go on so for ever, and take
# the server with it each time: it pauses, names the rows, and goes on when it is
# told to.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Consumer;
use Idem::Events;
use Idem::Kafka;
use Idem::Wait;

my $kafka = Idem::Kafka->new;
$kafka->create_topic('t', 1);
my $node = Idem::Cluster->start_new('main', kafka => $kafka);
$node->wait_state('running');

sub died { return scalar(() = slurp_file($node->logfile) =~ /background worker "idem relay"[^\n]* was terminated by signal 9/g) }

# Has the worker die at its next mark, of each start, until the point is taken away.
sub dies_at_marks { $node->set('idem.test_points' => 'relay-before-mark=kill'); return }

sub lives
{
	$node->wait_up;
	$node->reset('idem.test_points');
	return;
}

# Once is no reason: it marks what it sent before, and that wipes the slate.  The
# worker stands still before its mark, held by a lock that goes with the server.
foreach my $round (1 .. 3)
{
	my $before = died();
	my $locker = $node->session;

	$locker->query(q{SELECT pg_advisory_lock(7357, hashtext('relay-before-mark'))});
	$node->set('idem.test_points' => 'relay-before-mark=wait');
	$node->emit('t', key => 'k', payload => $round);
	my $pid = wait_until("round $round: the worker is about to mark", sub { return $node->value(q{SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted}) || (0, 'no') });
	kill KILL => $pid;
	wait_until("round $round: the worker has died", sub { my $n = died(); return ($n > $before, $n) });
	$locker->quit;
	lives();
	$node->wait_published;
	is($node->relay_status->{state}, 'running', "round $round: the worker died and went on");
	is(died(), $before + 1, "round $round: once");
}

# Twice, with rows in flight.
my $repeats = compare($node, $kafka, 't')->{repeats};
dies_at_marks();
eval { $node->value(q{INSERT INTO idem.outbox (topic, partition_key, payload) SELECT 't', 'key-' || i, to_jsonb(i) FROM generate_series(1, 200) AS i}) };
my $status = wait_until('the relay pauses', sub { my $seen = eval { $node->relay_status } // return (0, $@); return ($seen->{state} eq 'paused' && $seen, $seen) });
my $dead = died();
like($status->{hint}, qr/died/, 'the view says what to do');
my ($lowest, $leaf) = split /\|/, $node->value(q{SELECT min(seq), min(tableoid::regclass::text) FROM idem.outbox WHERE published_at IS NULL});
my $name = $leaf =~ s/^idem\.//r;
like($status->{last_error}, qr/seq $lowest of $name\b/, 'and names the rows that were in flight');
like(slurp_file($node->logfile), qr/WARNING:  idem relay: paused/, 'so does the log');

# It does nothing more, and the server is up.
my $read = () = read_topic($kafka, 't');
$node->emit('t', key => 'later', payload => '1');
is($node->value('SELECT count(*) FROM idem.outbox WHERE published_at IS NULL'), 201, 'rows wait');
is(scalar(() = read_topic($kafka, 't')), $read, 'nothing more is sent');
is(died(), $dead, 'and nothing more dies');
cmp_ok($read, '<=', 3 + 2 + 200 + 200 + 20 + $repeats, "the second time few rows were sent ($read records in all)");

# Until it is told to try again.
lives();
$node->value('SELECT pg_terminate_backend(' . $node->relay_status->{pid} . ')');
$node->wait_published;
is($node->relay_status->{state}, 'running', 'ended by hand, it goes on');
delivered_ok(compare($node, $kafka, 't'), 'unclean ends', published => $node->value('SELECT count(*) FROM idem.outbox'), repeats => 2 * 2500);
is($node->value(q{SELECT to_jsonb(s) ->> 'order_violations' FROM idem.relay_status AS s}), 0, 'no violation of the order');

$node->stop;
done_testing;
