# Rows that logical replication's apply worker writes are published by the relay
# of the subscriber: copied at the start, applied one by one, and of prepared
# transactions, which the apply worker commits without a statement.

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
# The publisher has no relay; another cluster's does the publishing.
my $source = Idem::Cluster->start_new('source', preload => 0, conf => "wal_level = logical\nmax_wal_senders = 10\nmax_replication_slots = 10\n");
my $target = Idem::Cluster->start_new('target', kafka => $kafka);
$target->wait_state('running');
my $connection = $source->connstr . ' dbname=postgres';

sub types_read { return join ' ', map { header($_, 'ce_type') } read_topic($kafka, 't') }

sub wait_rows
{
	my ($type, $rows) = @_;

	wait_until("$rows rows \"$type\" have come to the subscriber",
		sub { my $n = $target->value("SELECT count(*) FROM idem.outbox WHERE event_type = '$type'"); return ($n eq $rows, $n) });
	$target->wait_published;
	return;
}

sub emit
{
	my ($type, $wrapper) = @_;

	return $source->value(sprintf $wrapper // '%s', "INSERT INTO idem.outbox (topic, partition_key, event_type, payload) VALUES ('t', 'k', '$type', '1')");
}

# Copied when the subscription starts, then applied.
emit('copied');
emit('copied');
$source->value(q{CREATE PUBLICATION outbox FOR TABLE idem.outbox, idem.topic WITH (publish_via_partition_root = true)});
$target->value("CREATE SUBSCRIPTION outbox CONNECTION '$connection' PUBLICATION outbox");
wait_rows('copied', 2);
emit('applied');
emit('applied', "BEGIN; %s; SAVEPOINT s; INSERT INTO idem.outbox (topic, event_type, payload) VALUES ('t', 'rolled back', '1'); ROLLBACK TO s; COMMIT");
emit('rolled back', 'BEGIN; %s; ROLLBACK');
wait_rows('applied', 2);
is(types_read(), 'copied copied applied applied', 'rows that the apply worker copies and applies are published');

# Below the relay's position.  (Sequences are not replicated.)
$target->value(q{SELECT setval('idem.outbox_seq', 1000)});
$target->emit('t', event_type => 'own', payload => '1') foreach 1 .. 10;
$target->wait_published;
$source->value(q{INSERT INTO idem.outbox (seq, topic, event_type, payload) VALUES (-7, 't', 'lower', '1')});
wait_rows('lower', 1);
is((types_read() =~ s/^.*own //r), 'lower', 'so is one with a lower seq than was read');

# Settings of a topic come the same way.
$source->value(q{INSERT INTO idem.topic (topic, timestamp_type) VALUES ('t', 'send')});
wait_until('the setting has come', sub { return $target->value('SELECT count(*) FROM idem.topic') eq '1' });
$source->value(q{INSERT INTO idem.outbox (topic, event_type, payload, created_at) VALUES ('t', 'send', '1', '2020-01-01')});
wait_rows('send', 1);
cmp_ok((read_topic($kafka, 't'))[-1]->{timestamp}, '>', 1_600_000_000_000, 'the relay follows a setting that is replicated');

# Prepared transactions: there as such from the start, so that the apply worker
# commits them.
$target->value('DROP SUBSCRIPTION outbox');
$target->value("CREATE SUBSCRIPTION outbox CONNECTION '$connection' PUBLICATION outbox WITH (copy_data = false, two_phase = true)");
wait_until('two-phase commit is on', sub { my $seen = $target->value('SELECT subtwophasestate FROM pg_subscription'); return ($seen eq 'e', $seen) });

sub prepared
{
	my ($count) = @_;

	return wait_until("$count transactions are prepared at the subscriber",
		sub { my $n = $target->value('SELECT count(*) FROM pg_prepared_xacts'); return ($n eq $count, $n) });
}

my $before = types_read();
emit('prepared', "BEGIN; %s; PREPARE TRANSACTION 'p'");
prepared(1);
emit('not prepared');
wait_rows('not prepared', 1);
is(types_read(), "$before not prepared", 'a prepared transaction is not published');
my $published = $target->relay_status->{published};
$source->value(q{COMMIT PREPARED 'p'});
wait_rows('prepared', 1);
is(types_read(), "$before not prepared prepared", 'it is once the apply worker commits it, with no other commit');

emit('rolled back', "BEGIN; %s; PREPARE TRANSACTION 'r'");
prepared(1);
$source->value(q{ROLLBACK PREPARED 'r'});
prepared(0);

# Another apply worker than the one that prepared it, and another server.
foreach my $restart (
	[ 'apply worker' => sub { $target->value(q{SELECT pg_terminate_backend(pid) FROM pg_stat_subscription WHERE pid IS NOT NULL}) } ],
	[ 'subscriber' => sub { $target->restart } ])
{
	my ($what, $how) = @$restart;

	emit("$what restarts", "BEGIN; %s; PREPARE TRANSACTION 'q'");
	prepared(1);
	$how->();
	wait_until('the apply worker is back',
		sub { return $target->value(q{SELECT count(*) FROM pg_stat_subscription WHERE pid IS NOT NULL AND received_lsn IS NOT NULL}) eq '1' });
	$target->emit('t', event_type => 'own', payload => '1');
	$target->wait_published;
	unlike(types_read(), qr/$what restarts/, "$what restarts: not published while it is prepared");
	$source->value(q{COMMIT PREPARED 'q'});
	wait_rows("$what restarts", 1);
	like(types_read(), qr/$what restarts/, "$what restarts: published when it is committed");
}
unlike(types_read(), qr/rolled back/, 'nothing that was rolled back is published');

$target->value('DROP SUBSCRIPTION outbox');
$_->stop foreach $target, $source;
done_testing;
