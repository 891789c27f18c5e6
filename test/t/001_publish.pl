# What is committed to the outbox, and only that, is read by a Kafka consumer as
# it was written.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Consumer;
use Idem::Kafka;
use Idem::Wait;

my $kafka = Idem::Kafka->new;
$kafka->create_topic('events', 3);
$kafka->create_topic('java', 3);
$kafka->create_topic('late', 1);
my $node = Idem::Cluster->start_new('main', kafka => $kafka);
$node->wait_state('running');

# Every row of the outbox for $topic against the consumer's records, by event id.
sub matches_consumer
{
	my ($topic) = @_;
	my %read = map { header($_, 'ce_id') => $_ } read_topic($kafka, $topic);
	my @rows = grep { $_->{topic} eq $topic } $node->outbox;

	is(scalar keys %read, scalar @rows, "$topic: the consumer read as many events as there are rows");
	foreach my $row (@rows)
	{
		my $record = $read{ $row->{event_id} } // { headers => [] };
		is_deeply(
			{ map { $_ => $record->{$_} } qw(key value partition offset timestamp) },
			{
				(map { $_ => $row->{$_} } qw(key value partition offset)),
				timestamp => $row->{created_ms}
			},
			"$topic, seq $row->{seq}: key, value, partition, offset and timestamp");
	}
	return \%read;
}

# Each way of writing.
$node->emit(
	'events',
	key => 'order-1',
	event_type => 'order-placed',
	payload => '{"b": 1.50, "a": "naïve € \\\\ 😀", "n": null}',
	headers => '[["traceparent", "00-ab"], ["x", null], ["x", ""], ["x", "ü"]]',
	aggregate_type => 'order',
	aggregate_id => 'ord 1/ä');
$node->value(q{INSERT INTO idem.outbox (topic, partition_key, payload) VALUES ('events', 'order-2', '[1]')});
$node->value(q{INSERT INTO idem.outbox (topic, partition_key, payload)
	SELECT 'events', 'many-' || i, jsonb_build_object('i', i) FROM generate_series(1, 50) AS i});
$node->value(q{COPY idem.outbox (topic, partition_key, payload) FROM PROGRAM $$printf 'events\tcopy-1\t"a"\nevents\tcopy-2\t"b"\nevents\t\\N\t"c"\n'$$});

# What a value or a key may be: any bytes, empty, or none at all.
$node->value(q{INSERT INTO idem.outbox (topic, partition_key, payload_bytes) VALUES
	('events', 'bytes', decode(repeat('00ff0a225c7f80c3', 4), 'hex')),
	('events', 'all-bytes', (SELECT string_agg(set_byte('\x00', 0, i), '' ORDER BY i) FROM generate_series(0, 255) AS i)),
	('events', 'empty-value', ''),
	('events', 'tombstone', NULL),
	('events', '', 'the key is empty'),
	('events', NULL, 'there is no key')});
$node->value(q{SELECT outbox_emit('events', 'emitted-tombstone', 'gone', NULL)});
$node->value(q{SELECT outbox_emit('events', 'emitted-bytes', 'raw', NULL, payload_bytes => '\xfe00')});
$node->wait_published;

my $read = matches_consumer('events');
my ($order) = grep { ($_->{key} // '') eq 'order-1' } values %$read;
my ($row) = grep { ($_->{key} // '') eq 'order-1' } $node->outbox;
my %ce = map { $_ => scalar header($order, $_) } qw(ce_specversion ce_id ce_source ce_type ce_time ce_subject);
is_deeply(
	\%ce,
	{
		ce_specversion => '1.0',
		ce_id => $row->{event_id},
		ce_source => '/idem/postgres',
		ce_type => 'order-placed',
		ce_time => $row->{created_at},
		ce_subject => "ord 1/\xc3\xa4",
	},
	'the CloudEvents headers');
is_deeply(
	[ grep { $_->[0] !~ /^ce_/ } @{ $order->{headers} } ],
	[ [ 'traceparent', '00-ab' ], [ 'x', undef ], [ 'x', '' ], [ 'x', "\xc3\xbc" ] ],
	'own headers: order, repeats, null and empty kept');
my ($plain) = grep { ($_->{key} // '') eq 'order-2' } values %$read;
ok(!defined header($plain, 'ce_subject'), 'no ce_subject without an aggregate id');
my %by_key = map { ($_->{key} // 'no key') => $_ } values %$read;
ok(!defined $by_key{tombstone}{value} && !defined $by_key{'emitted-tombstone'}{value}, 'tombstones have a null value');
is($by_key{'empty-value'}{value}, '', 'an empty value is no tombstone');
is($by_key{'all-bytes'}{value}, join('', map { chr } 0 .. 255), 'payload_bytes arrive untouched');

# A key lands where a Java client puts it.
my @keys = map { "key-$_" } 1 .. 40;
$kafka->produce_with_java('java', map { [ $_, 'from java' ] } @keys);
$node->value("SELECT outbox_emit('java', k, 't', '1') FROM unnest('{" . join(',', @keys) . "}'::text[]) AS k");
$node->wait_published;
my %partitions;
push @{ $partitions{ $_->{key} } }, $_->{partition} foreach read_topic($kafka, 'java');
is_deeply([ grep { $partitions{$_}[0] != $partitions{$_}[1] || @{ $partitions{$_} } != 2 } @keys ],
	[], 'each key is in the partition that a Java client chooses');

# Rolled back: as a whole, to a savepoint, and when prepared.
my $session = $node->session;
$session->query(q{BEGIN; SELECT outbox_emit('late', 'k', 'aborted', '1')});
$session->query(q{INSERT INTO idem.outbox (topic, event_type, payload) VALUES ('late', 'aborted', '2')});
$session->query('ROLLBACK');
$session->query(q{BEGIN; SELECT outbox_emit('late', 'k', 'kept', '3')});
$session->query(q{SAVEPOINT s; SELECT outbox_emit('late', 'k', 'aborted', '4')});
$session->query(q{ROLLBACK TO s; SELECT outbox_emit('late', 'k', 'kept', '5'); COMMIT});
$session->query(q{BEGIN; SELECT outbox_emit('late', 'k', 'aborted', '6'); PREPARE TRANSACTION 'gone'});
$session->query(q{ROLLBACK PREPARED 'gone'});

# Committed later than a row with a higher seq, by COMMIT and COMMIT PREPARED.
$session->query(q{BEGIN; SELECT outbox_emit('late', 'k', 'slow', '7')});
my $other = $node->session;
$other->query(q{BEGIN; SELECT outbox_emit('late', 'k', 'slow', '8'); PREPARE TRANSACTION 'slow'});
$node->emit('late', key => 'k', event_type => 'quick', payload => '9');
$node->wait_published;
is_deeply([ types_read('late') ], [qw(kept kept quick)], 'open and prepared transactions are not published');
$session->query('COMMIT');
$node->wait_published;
is_deeply([ types_read('late') ], [qw(kept kept quick slow)], 'a row that commits later than a higher seq is published');
$other->query(q{COMMIT PREPARED 'slow'});
$node->wait_published;
is_deeply([ types_read('late') ], [qw(kept kept quick slow slow)], 'so is one of a prepared transaction');
matches_consumer('late');
my ($quick) = grep { ($_->{event_type} // '') eq 'quick' } $node->outbox;
my ($slow) = grep { ($_->{event_type} // '') eq 'slow' } $node->outbox;
cmp_ok($slow->{seq}, '<', $quick->{seq}, 'it had the lower seq');

# A mark taken back by hand is published again, under the same id.
$node->value("UPDATE idem.outbox SET published_at = NULL WHERE seq = $quick->{seq}");
$node->wait_published;
is(scalar(grep { $_ eq $quick->{event_id} } event_ids(read_topic($kafka, 'late'))),
	2, 'a row reset by hand is published again under its event id');

# Kafka is told nothing of a topic that it does not have, and nothing is lost.
$node->emit('events', key => 'last', payload => '1');
$node->wait_published;
is($node->relay_status->{failed}, 0, 'no delivery failed');
unlike(slurp_file($node->logfile), qr/idem relay.*(?:terminated|exited)|PANIC/, 'no worker died');

sub types_read
{
	return map { scalar header($_, 'ce_type') } read_topic($kafka, $_[0]);
}

$_->quit foreach $session, $other;
$node->stop;
done_testing;
