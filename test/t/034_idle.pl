# An idle relay runs no transaction, so it reads no table and no catalog; a look
# for rows that finds none costs the same while another session holds a snapshot
# under which nothing that was marked can be removed.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Kafka;
use Idem::Wait;

my $kafka = Idem::Kafka->new;
$kafka->create_topic('t', 1);
my $node = Idem::Cluster->start_new('main', kafka => $kafka, conf => "autovacuum = off\n");
my $worker = $node->wait_state('running')->{pid};

# Number of the transaction in which the worker reads: it counts all that it runs.
sub number_of_read
{
	my $locker = $node->session;

	$locker->query(q{SELECT pg_advisory_lock(7357, hashtext('relay-read'))});
	$node->set('idem.test_points' => 'relay-read=wait');
	$node->emit('t', payload => '1');
	my $number = wait_until(
		'the worker has read the row and stands still',
		sub {
			return $node->value(qq{SELECT split_part(virtualtransaction, '/', 2) FROM pg_locks
				WHERE pid = $worker AND locktype = 'advisory' AND NOT granted});
		});
	$node->reset('idem.test_points');
	$locker->quit;
	$node->wait_published;
	return $number;
}

sub comes_to_rest
{
	my ($looks) = @_;
	my ($last, $same) = ('', 0);

	wait_until(
		"the worker is idle at $looks looks",
		sub {
			my $now = $node->value("SELECT state, query_start, xact_start, backend_xid, backend_xmin, wait_event FROM pg_stat_activity WHERE pid = $worker");
			$same = $now eq $last && $now =~ /^idle\|/ ? $same + 1 : 0;
			$last = $now;
			return ($same >= $looks, $now);
		});
	return;
}

number_of_read();
my @busy = map { number_of_read() } 1 .. 2;
comes_to_rest(100);
$node->reload;
comes_to_rest(20);
my $idle = number_of_read();
is($idle - $busy[1], $busy[1] - $busy[0], 'no transaction was run while the worker was idle, also for a reload');

# Commits that wrote no event wake nobody.
$node->value('CREATE TABLE other (id int)');
my $session = $node->session;
$session->query('INSERT INTO other VALUES (1)') foreach 1 .. 50;
$session->query(q{BEGIN; INSERT INTO idem.outbox (topic, payload) VALUES ('t', '1'); ROLLBACK}) foreach 1 .. 50;
is(number_of_read() - $idle, $idle - $busy[1], 'nor for commits without events and events rolled back');

# What a read costs, in blocks of the outbox, of its indexes and TOAST: all
# sessions' together, for 50 single events.  Nobody else may look into the outbox
# meanwhile, so the relay's counter says what is published.
sub published { return $node->relay_status->{published} }

sub emit_one
{
	my $before = published();

	$session->query(q{SELECT outbox_emit('t', 'k', 'e', '1')});
	wait_until('it is published', sub { my $seen = published(); return ($seen == $before + 1, $seen) });
	return;
}

sub flush_statistics
{
	# The worker tells what it did at most once a second, at the end of a transaction.
	my $since = $node->value('SELECT clock_timestamp()');

	wait_until('a second passes', sub { return $node->value("SELECT clock_timestamp() > '$since'::timestamptz + '1.1 s'") eq 't' });
	emit_one();
	wait_until('a second passes', sub { return $node->value("SELECT clock_timestamp() > '$since'::timestamptz + '2.2 s'") eq 't' });
	return;
}

sub blocks
{
	return $node->value(q{SELECT sum(coalesce(heap_blks_read + heap_blks_hit, 0) + coalesce(idx_blks_read + idx_blks_hit, 0)
			+ coalesce(toast_blks_read + toast_blks_hit, 0) + coalesce(tidx_blks_read + tidx_blks_hit, 0))
		FROM pg_statio_all_tables WHERE schemaname = 'idem' AND relname LIKE 'outbox%'});
}

sub cost_of_50
{
	flush_statistics();
	my $before = blocks();
	emit_one() foreach 1 .. 50;
	flush_statistics();
	return (blocks() - $before) / 50;
}

# Rows that take hours at one a second; the indexes are as deep with more of them.
sub publish_many
{
	$node->value(q{INSERT INTO idem.outbox (topic, partition_key, payload) SELECT 't', 'k' || i % 100, to_jsonb(i) FROM generate_series(1, 20000) AS i});
	$node->wait_published;
	$node->value('VACUUM idem.outbox');
	return;
}

publish_many();
my $without = cost_of_50();
# None of their old versions can be removed, by vacuum or on the way.
my $holder = $node->session;
$holder->query('BEGIN ISOLATION LEVEL REPEATABLE READ');
$holder->query('SELECT count(*) FROM idem.outbox');
publish_many();
my $with = cost_of_50();
$holder->quit;
cmp_ok($with, '<=', $without * 1.1 + 1, sprintf 'an event costs %.1f blocks with a snapshot held, %.1f without', $with, $without);
cmp_ok($without, '<', 100, 'which are few');

$session->quit;
$node->stop;
done_testing;
