# Hundreds of partitions of one topic, none of which knows the producer yet: each
# row is read about once all the same, and arrives once, in its order.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Events;
use Idem::Kafka;
use Idem::Wait;

my $partitions = 300;
my $rows = 10_000;
my $kafka = Idem::Kafka->new;
$kafka->create_topic('wide', $partitions);
# autovacuum would read the table as well
my $node = Idem::Cluster->start_new('main', kafka => $kafka, conf => "autovacuum = off\n");
my $worker = $node->wait_state('running')->{pid};

sub statistics
{
	my ($column) = @_;

	return $node->value(qq{SELECT coalesce(sum($column), 0) FROM pg_stat_all_tables WHERE schemaname = 'idem' AND relname LIKE 'outbox_%'});
}

# The server is told of the reads with the marks.
sub wait_told
{
	my ($marks) = @_;

	wait_until('the worker has told what it did', sub { my $n = statistics('n_tup_upd'); return ($n == $marks, $n) });
	return;
}

# The relay's figure says what is published, and only the worker reads the table.
sub publish
{
	my ($name, $key) = @_;
	my ($published, $marked, $read) = ($node->relay_status->{published}, statistics('n_tup_upd'), statistics('idx_tup_fetch'));

	$node->value(qq{INSERT INTO idem.outbox (topic, partition_key, event_type, payload)
		SELECT 'wide', $key, '$name', to_jsonb(i) FROM generate_series(1, $rows) AS i});
	wait_until(
		"$name: all rows are published",
		sub { my $seen = $node->relay_status; return ($seen->{published} >= $published + $rows, $seen) },
		deadline => 120);
	wait_told($marked + $rows);
	$read = statistics('idx_tup_fetch') - $read;
	cmp_ok($read, '<=', 1.5 * $rows, sprintf '%s: each row is read about once (%.2f times)', $name, $read / $rows);
	return;
}

# The broker makes its files, for as long as that takes; then no partition knows the
# worker again, which has looked at what is published when it marks a row.
$node->value(qq{INSERT INTO idem.outbox (topic, partition_key, payload) SELECT 'wide', 'key-' || i, '0' FROM generate_series(1, $rows) AS i});
$node->wait_published;
$node->value("SELECT pg_terminate_backend($worker)");
$worker = $node->wait_new_worker($worker);
$node->emit('wide', payload => '0');
$node->wait_published;
wait_told($rows + 1);

publish('keys', q{'key-' || i % 5000});
publish('no key', 'NULL');
publish('again', q{'key-' || i % 5000});
cmp_ok($node->value('SELECT count(DISTINCT kafka_partition) FROM idem.outbox'), '>', $partitions * 0.9, 'they went to all partitions');
delivered_ok(compare($node, $kafka, 'wide'), 'many partitions', rows => 4 * $rows + 1, published => 4 * $rows + 1, repeats => 0);
is($node->relay_status->{pid}, $worker, 'one worker did it all');
$node->stop;
done_testing;
