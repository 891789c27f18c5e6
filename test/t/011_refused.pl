# What Kafka refuses is not marked: it waits, visibly, is sent again until Kafka
# takes it, and holds up nothing else.

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
$kafka->create_topic('small', 1, 'max.message.bytes' => 2000);
my $node = Idem::Cluster->start_new('main', kafka => $kafka);
my $worker = $node->wait_state('running')->{pid};

sub unpublished
{
	my ($topic) = @_;

	return $node->value("SELECT count(*) FROM idem.outbox WHERE topic = '$topic' AND published_at IS NULL");
}

# Events of another topic, written while one is refused, are published.
sub others_go_on
{
	my ($when) = @_;
	my $id = $node->emit('t', key => 'k', payload => '1');

	wait_until("$when: other topics go on",
		sub { return $node->value("SELECT published_at IS NOT NULL FROM idem.outbox WHERE event_id = '$id'") eq 't' });
	is(scalar(grep { $_ eq $id } event_ids(read_topic($kafka, 't'))), 1, "$when: other topics go on");
	return;
}

# A topic that is not there.
$node->value(q{SELECT outbox_emit('not-yet', 'k', 'e', to_jsonb(i)) FROM generate_series(1, 3) AS i});
wait_until('the relay says that the topic is missing',
	sub { my $seen = $node->relay_status; return (scalar($seen->{last_error} =~ /not-yet/), $seen) });
others_go_on('topic missing');
is(unpublished('not-yet'), 3, 'rows of a missing topic wait');
$kafka->create_topic('not-yet', 1);
$node->wait_published;
is(join(' ', map { $_->{value} } read_topic($kafka, 'not-yet')), '1 2 3', 'they are published, in order, when the topic is there');

# A record over the topic's limit; it does not compress.
$node->emit('small', key => 'a', payload => '"fits"');
$node->wait_published;
my $failed = $node->relay_status->{failed};
$node->value(q{INSERT INTO idem.outbox (topic, partition_key, payload_bytes)
	SELECT 'small', 'b', string_agg(sha512(i::text::bytea), '') FROM generate_series(1, 100) AS i});
wait_until('Kafka has refused the record',
	sub { my $seen = $node->relay_status; return ($seen->{failed} > $failed, $seen) });
like($node->relay_status->{last_error}, qr/small.*size/i, 'the view says which topic and why');
others_go_on('record too large');
is(unpublished('small'), 1, 'a refused record is not marked');
is(scalar(read_topic($kafka, 'small')), 1, 'nor is it in Kafka');
$kafka->configure_topic('small', 'max.message.bytes' => 100000);
$node->wait_published;
my ($large) = grep { ($_->{key} // '') eq 'b' } $node->outbox;
is((read_topic($kafka, 'small'))[1]{value}, $large->{value}, 'it is published once Kafka takes it');

is($node->relay_status->{pid}, $worker, 'it was the same worker all the time');
$node->stop;
done_testing;
