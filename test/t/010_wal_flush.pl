# No ghosts: a row that Kafka was told of is in the table after a crash, also
# when its transaction did not wait for the disk.

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
# Unless somebody flushes, WAL stays in memory for ten seconds.
my $node = Idem::Cluster->start_new('main', kafka => $kafka, conf => <<'EOF_CONF');
synchronous_commit = off
wal_writer_delay = '10s'
autovacuum = off
EOF_CONF
$node->value('CREATE TABLE unflushed (round int)');

my ($lost, $before) = (0, 0);
foreach my $round (1 .. 4)
{
	my $locker = $node->session;
	my $writer = $node->session;

	# The worker stops before the mark, whose commit would flush as well.
	$node->wait_state('running');
	$locker->query(q{SELECT pg_advisory_lock(7357, hashtext('relay-before-mark'))});
	$node->set('idem.test_points' => 'relay-before-mark=wait');
	wait_until('the setting has arrived', sub { return $node->value('SHOW idem.test_points') ne '' });
	$writer->query("SELECT outbox_emit('t', 'k', 'round-$round', to_jsonb(i)) FROM generate_series(1, 5) AS i");
	my @read = wait_read($before + 5);
	$writer->query("INSERT INTO unflushed VALUES ($round)");
	$node->crash;
	$_->quit foreach $locker, $writer;
	$node->start;

	my %there = map { $_->{event_id} => 1 } $node->outbox;
	is_deeply([ grep { !$there{$_} } event_ids(@read) ], [], "round $round: each event that was read is in the table after the crash");
	$lost += $node->value("SELECT count(*) = 0 FROM unflushed WHERE round = $round") eq 't';

	# With the point still on, but nobody holding the lock, it goes on.
	$node->reset('idem.test_points');
	$node->wait_published;
	my %times;
	$times{$_}++ foreach event_ids(grep { header($_, 'ce_type') eq "round-$round" } read_topic($kafka, 't'));
	is(scalar keys %times, 5, "round $round: the same five events, sent again under their ids");
	$before = () = read_topic($kafka, 't');
}
cmp_ok($lost, '>', 0, "the crash lost $lost of 4 rows that nobody flushed");

sub wait_read
{
	my ($count) = @_;
	my @records;

	wait_until("$count records are in Kafka", sub { @records = read_topic($kafka, 't'); return (@records >= $count, scalar @records) });
	return @records;
}

$node->stop;
done_testing;
