# The timestamp of a record, by the settings of its topic and the age of the row.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Consumer;
use Idem::Kafka;
use Idem::Wait;

my $hour = 3_600_000;
my $kafka = Idem::Kafka->new;
$kafka->create_topic($_, 1, 'retention.ms' => -1) foreach qw(created send);
$kafka->create_topic('kept-10h', 1, 'retention.ms' => 10 * $hour);
$kafka->create_topic('compacted', 1, 'cleanup.policy' => 'compact', 'retention.ms' => 10 * $hour);
$kafka->create_topic('changed', 1, 'retention.ms' => -1);
my $node = Idem::Cluster->start_new('main', kafka => $kafka);
$node->value(q{INSERT INTO idem.topic (topic, timestamp_type) VALUES ('send', 'send')});
$node->wait_state('running');

# Writes a row that was created so long ago, by its age as an interval, and gives
# its record, with the row and the times before it was written and after it was read.
sub published
{
	my ($topic, $created_at) = @_;
	my $before = now();
	my $id = $node->value("INSERT INTO idem.outbox (topic, partition_key, payload, created_at) VALUES ('$topic', 'k', '1', $created_at) RETURNING event_id");

	$node->wait_published;
	my ($record) = grep { header($_, 'ce_id') eq $id } read_topic($kafka, $topic);
	my ($row) = grep { $_->{event_id} eq $id } $created_at =~ /infinity/ ? () : $node->outbox;
	# (JSON has no number for infinity, and it is to be read no more.)
	$node->value(q{DELETE FROM idem.outbox WHERE NOT isfinite(created_at)});
	return { %$record, row => $row, before => $before, after => now() };
}

sub now { return $node->value('SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint') }

sub is_created
{
	my ($record, $name) = @_;

	is($record->{timestamp}, $record->{row}{created_ms}, "$name: created_at");
	is(header($record, 'ce_time'), $record->{row}{created_at}, "$name: ce_time is created_at");
	return;
}

sub is_sent
{
	my ($record, $name, %options) = @_;

	cmp_ok($record->{timestamp}, '>=', $record->{before}, "$name: not before it was written");
	cmp_ok($record->{timestamp}, '<=', $record->{after}, "$name: nor after it was read");
	is(header($record, 'ce_time'), $record->{row}{created_at}, "$name: ce_time is created_at") unless $options{no_time};
	return;
}

# A topic's retention is asked for when there is an old row, and not waited for.
foreach my $topic ('created', 'kept-10h', 'compacted', 'changed')
{
	wait_until("the relay has learned the retention of topic $topic",
		sub { my $record = published($topic, q(now() - interval '2 h')); return ($record->{timestamp} == $record->{row}{created_ms}, $record->{timestamp}) });
}

is_created(published('created', 'clock_timestamp()'), 'now');
is_created(published('created', q(now() - interval '30 days')), 'old');
is_sent(published('created', q('1960-01-01')), 'before Unix time began');
is_sent(published('created', q(now() + interval '5 days')), 'of a clock that runs ahead');
is_sent(published('created', q('infinity')), 'infinity', no_time => 1);
like(header(published('created', q('infinity')), 'ce_time'), qr/^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$/, 'infinity: ce_time is a time all the same');
like(header(published('created', q('-infinity')), 'ce_time'), qr/^20\d\d-/, 'so it is for minus infinity');
is_sent(published('send', q(now() - interval '30 days')), 'time of sending');

# Kafka deletes by the timestamp: a row that is old already would be gone at once.
is_created(published('kept-10h', q(now() - interval '4 h')), 'less than half the retention');
is_sent(published('kept-10h', q(now() - interval '6 h')), 'more than half the retention');
is_sent(published('kept-10h', q(now() - interval '60 days')), 'more than all of it');

is_created(published('compacted', q(now() - interval '6 h')), 'compacted, where age deletes nothing');

# The setting of idem.topic is followed with the next row.
is_created(published('changed', q(now() - interval '1 day')), 'before the change');
$node->value(q{INSERT INTO idem.topic (topic, timestamp_type) VALUES ('changed', 'send')});
is_sent(published('changed', q(now() - interval '1 day')), 'after the change');
$node->value(q{UPDATE idem.topic SET timestamp_type = 'created'});
is_created(published('changed', q(now() - interval '1 day')), 'after the change back');
$node->value(q{UPDATE idem.topic SET timestamp_type = 'send'});
$node->value(q{BEGIN; DELETE FROM idem.topic; ROLLBACK});
is_sent(published('changed', q(now() - interval '1 day')), 'after a change that was rolled back');
$node->value(q{TRUNCATE idem.topic});
is_created(published('changed', q(now() - interval '1 day')), 'after TRUNCATE');
$node->value(q{BEGIN; INSERT INTO idem.topic (topic, timestamp_type) VALUES ('changed', 'send'); PREPARE TRANSACTION 'change'});
is_created(published('changed', q(now() - interval '1 day')), 'while the change is prepared');
$node->value(q{COMMIT PREPARED 'change'});
is_sent(published('changed', q(now() - interval '1 day')), 'when it is committed');

$node->stop;
done_testing;
