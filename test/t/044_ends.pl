# A worker that dies again and again without having published anything pauses and
# names its rows, and goes on when it is told to.  And a database that is not there
# is not asked for each second.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Consumer;
use Idem::Kafka;
use Idem::Wait;

my $kafka = Idem::Kafka->new;
$kafka->create_topic('t', 1);
my $node = Idem::Cluster->start_new('main', kafka => $kafka, databases => 'postgres,later');
$node->wait_state('running');

sub times_in_log
{
	my ($what) = @_;
	my $n = () = slurp_file($node->logfile) =~ /$what/g;

	return $n;
}

# Ends the worker as a crash does, and waits for the next one.
sub kill_worker
{
	my $worker = $node->relay_status->{pid};

	kill 'KILL', $worker;
	return $node->wait_new_worker($worker);
}

sub published { return $node->value(q{SELECT count(*) FROM idem.outbox WHERE published_at IS NOT NULL}) }

# A crash with a mark behind it, and one without, is no reason to pause.
$node->emit('t', key => 'k', payload => '0');
$node->wait_published;
kill_worker();
$node->wait_up;
$node->emit('t', key => 'k', payload => '1');
$node->wait_published;
is($node->relay_status->{state}, 'running', 'a crash and a mark: the relay runs');

# Two ends without a mark: Kafka does not answer, so nothing can be marked.
$kafka->freeze;
$node->value(q{SELECT outbox_emit('t', 'k' || i, 'e', to_jsonb(i)) FROM generate_series(2, 4) AS i});
wait_until('rows are in flight', sub { my $seen = $node->relay_status->{in_flight}; return ($seen > 0, $seen) });
kill_worker();
$node->wait_up;
wait_until('rows are in flight again', sub { my $seen = eval { $node->relay_status->{in_flight} } // 0; return ($seen > 0, $seen) });
kill_worker();
$node->wait_up;
my $status = $node->wait_state('paused');
like($status->{last_error}, qr/died 2 times.*seq \d+ of outbox_\d\d/, 'the view names the rows that were in flight');
like($status->{hint}, qr/pg_terminate_backend/, 'and says how to go on');
$kafka->thaw;
$node->emit('t', key => 'k', payload => '5');
is_deeply([ map { published() } 1 .. 20 ], [ (2) x 20 ], 'a paused relay publishes nothing');

$node->value("SELECT pg_terminate_backend($status->{pid})");
$node->wait_new_worker($status->{pid});
$node->wait_published;
is(published(), 6, 'told to go on, it publishes all');
my %seen = map { $_->{value} => 1 } read_topic($kafka, 't');
is_deeply([ sort keys %seen ], [ 0 .. 5 ], 'and Kafka has all');

# Ends that are another's fault don't count: a process that dies takes the worker along.
$kafka->freeze;
$node->value(q{SELECT outbox_emit('t', 'k' || i, 'e', to_jsonb(i)) FROM generate_series(6, 8) AS i});
foreach my $end (1 .. 3)
{
	wait_until("rows are in flight for the ${end}th time", sub { my $seen = eval { $node->relay_status->{in_flight} } // 0; return ($seen > 0, $seen) });
	my $worker = $node->relay_status->{pid};
	my $session = $node->session;

	kill 'KILL', $session->pid;
	$node->wait_new_worker($worker);
	$node->wait_up;
	$session->quit;
}
wait_until('rows are in flight for the last time', sub { my $seen = eval { $node->relay_status } // {}; return (($seen->{in_flight} // 0) > 0, $seen) });
isnt($node->relay_status->{state}, 'paused', 'three ends that were not the fault of the worker: it goes on');
$kafka->thaw;
$node->wait_published;
is(published(), 9, 'and publishes all');

# The worker of a database that is not there tries less and less often.
my $before = times_in_log('database "later" does not exist');
wait_until('the worker of the missing database has tried again', sub { my $n = times_in_log('database "later" does not exist'); return ($n > $before, $n) });
my $start = time;
$before = times_in_log('database "later" does not exist');
wait_until('and once more', sub { my $n = times_in_log('database "later" does not exist'); return ($n > $before, $n) });
cmp_ok(time - $start, '>=', 2, 'a missing database is not asked for each second');
$node->value('CREATE DATABASE later');
wait_until('the database is found', sub { my $n = $node->value(q{SELECT count(*) FROM pg_stat_activity WHERE datname = 'later' AND backend_type = 'idem relay'}); return ($n > 0, $n) }, deadline => 90);
pass('and is found when it is there');

$node->stop;
done_testing;
