# A row that can't be sent is parked with the reason, and nothing else is: not
# its neighbours in a batch, not the rows of other keys.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Events;
use Idem::Kafka;
use Idem::Process;
use Idem::Wait;

my $window = 2500;
my $kafka = Idem::Kafka->new;
$kafka->create_topic('one', 3, 'message.timestamp.before.max.ms' => 600_000, 'retention.ms' => -1);
$kafka->create_topic('small', 3, 'max.message.bytes' => 50_000);
$kafka->create_topic('shrunk', 1);
$kafka->create_topic('compacted', 2, 'cleanup.policy' => 'compact');
$kafka->create_topic('plain', 2);
$kafka->create_topic('roomy', 1, 'max.message.bytes' => 20_000_000);
my $node = Idem::Cluster->start_new('main', kafka => $kafka);
$node->wait_state('running');

# Waits until every row of a topic is published or parked.
sub wait_done
{
	my ($topic) = @_;

	wait_until(
		"$topic: every row is published or parked",
		sub {
			my $seen = $node->value(qq{SELECT count(*) FROM idem.outbox WHERE topic = '$topic' AND published_at IS NULL AND parked_at IS NULL});
			return ($seen eq '0', $seen);
		});
	return;
}

sub parked
{
	my ($topic) = @_;

	return $node->value(qq{SELECT coalesce(string_agg(coalesce(partition_key, 'no key') || ': ' || last_error, E'\\n' ORDER BY seq), '')
		FROM idem.outbox WHERE topic = '$topic' AND parked_at IS NOT NULL});
}

sub attempts { return $node->value("SELECT count(*) FROM idem.outbox WHERE topic = '$_[0]' AND attempts > 0 AND parked_at IS NULL") }

# A topic whose limit changes after the relay has learned it.
$node->emit('shrunk', key => 'before', payload => '1');
wait_done('shrunk');
$kafka->configure_topic('shrunk', 'max.message.bytes' => 20_000);

# All at once, since a row that is rejected by itself is tried for a while.
my $huge = '[' . join(',', ('1e131071') x 9000) . ']';
$node->value($_) foreach (
	q{INSERT INTO idem.outbox (topic, partition_key, payload, created_at)
		SELECT 'one', 'key-' || i, to_jsonb(i), clock_timestamp() - CASE WHEN i = 500 THEN interval '20 minutes' ELSE '0' END FROM generate_series(1, 1000) AS i},
	q{INSERT INTO idem.outbox (topic, partition_key, payload_bytes)
		SELECT 'small', CASE WHEN i % 5000 = 0 THEN 'large-' || i ELSE 'key-' || i % 100 END, decode(repeat('ab', CASE WHEN i % 5000 = 0 THEN 60000 ELSE 400 END), 'hex')
		FROM generate_series(1, 20000) AS i},
	q{INSERT INTO idem.outbox (topic, partition_key, payload_bytes)
		SELECT 'shrunk', CASE i WHEN 1000 THEN 'large' ELSE 'key-' || i % 10 END, decode(repeat('ab', CASE i WHEN 1000 THEN 30000 ELSE 400 END), 'hex')
		FROM generate_series(1, 2000) AS i},
	q{INSERT INTO idem.outbox (topic, partition_key, payload)
		SELECT 'compacted', CASE WHEN i <> 50 THEN 'key-' || i END, to_jsonb(i) FROM generate_series(1, 100) AS i},
	q{INSERT INTO idem.outbox (topic, partition_key) VALUES ('compacted', 'key-1')},
	qq{INSERT INTO idem.outbox (topic, partition_key, payload, payload_bytes) VALUES
		('plain', 'before', '1', NULL), ('plain', 'two megabytes', NULL, decode(repeat('ab', 2000000), 'hex')),
		('plain', 'huge JSON', '$huge', NULL), ('plain', 'after', '1', NULL)});
# Large in the table and small as text, large in both, and larger than all may be.
$node->value(q{INSERT INTO idem.outbox (topic, partition_key, payload) SELECT 'roomy', 'many numbers', jsonb_agg(i % 10) FROM generate_series(1, 1500000) AS i});
$node->value(q{INSERT INTO idem.outbox (topic, partition_key, payload_bytes) VALUES ('roomy', 'ten megabytes', decode(repeat('ab', 10000000), 'hex')), ('roomy', 'a lot', convert_to(repeat('z', 200000000), 'UTF8'))});
wait_done($_) foreach qw(one small shrunk compacted plain roomy);

# One bad row among 1,000 of as many keys.
delivered_ok(compare($node, $kafka, 'one'), 'one of 1,000', rows => 1000, published => 999, parked => 1, repeats => $window);
like(parked('one'), qr/^key-500: .*timestamp.*$/i, 'one of 1,000: the bad one is parked, with the reason');
is(attempts('one'), 0, 'one of 1,000: no other row has an attempt');

# A topic that takes less than a batch of what is waiting.  Only the rows that are
# too large by themselves are parked.
delivered_ok(compare($node, $kafka, 'small'), 'max.message.bytes', rows => 20_000, published => 19_996, parked => 4, repeats => 5 * $window);
is(scalar(() = parked('small') =~ /^large-\d+: .*\b(?:large|size)\b/mgi), 4, 'max.message.bytes: those that are too large by themselves, with the reason')
  or diag parked('small');
is(attempts('small'), 0, 'max.message.bytes: no other row has an attempt');

delivered_ok(compare($node, $kafka, 'shrunk'), 'a lower limit', rows => 2001, published => 2000, parked => 1, repeats => 5 * $window);
like(parked('shrunk'), qr/^large: /, 'a lower limit: the row that is too large is parked');
is(attempts('shrunk'), 0, 'a lower limit: no other row has an attempt');

# A record without a key has no place in a compacted topic.
delivered_ok(compare($node, $kafka, 'compacted'), 'compacted', rows => 101, published => 100, parked => 1, repeats => $window);
like(parked('compacted'), qr/^no key: /, 'compacted: the row without a key is parked');

# What the client library refuses, and what can't be made into a record.
delivered_ok(compare($node, $kafka, 'plain'), 'plain', rows => 4, published => 2, parked => 2, repeats => $window);
like(parked('plain'), qr/^two megabytes: .*(?:large|size).*\nhuge JSON: .*large/i, 'plain: each is parked with its reason');

is(parked('roomy'), 'a lot: payload of an event is too large to be sent', 'roomy: what is larger than 16 MB is parked');
delivered_ok(compare($node, $kafka, 'roomy'), 'roomy', rows => 3, published => 2, parked => 1, repeats => 3);
cmp_ok(memory_of($node->relay_status->{pid}), '<', 100_000, 'the worker is small after that');

# A parked row holds its key, and no other, also over a restart.
$node->emit('plain', key => 'two megabytes', payload => '"behind"');
$node->emit('plain', key => 'next', payload => '"next"');
wait_until('the row of another key is published',
	sub { return $node->value(q{SELECT count(*) FROM idem.outbox WHERE partition_key = 'next' AND published_at IS NOT NULL}) eq '1' });
$node->restart;
$node->emit('plain', key => 'after the restart', payload => '1');
wait_until('the row of another key is published',
	sub { return $node->value(q{SELECT count(*) FROM idem.outbox WHERE partition_key = 'after the restart' AND published_at IS NOT NULL}) eq '1' });
is($node->value(q{SELECT count(*) FROM idem.outbox WHERE payload = '"behind"' AND published_at IS NULL}), 1, 'the row behind it waits, also after a restart');

# A parked row lets its key go when it is given up by hand, in whatever way; and one
# that is parked by hand holds it.
sub left { return $node->value(q{SELECT count(*) FROM idem.outbox WHERE topic = 'one' AND published_at IS NULL AND parked_at IS NULL}) }
sub held_keys { return $node->value('SELECT held_keys FROM idem.relay_status') }

my $held = held_keys();
$node->value(q{INSERT INTO idem.outbox (topic, partition_key, payload, parked_at, last_error)
	SELECT 'one', 'by-hand-' || i, '1', now(), 'by hand' FROM generate_series(1, 2) AS i});
wait_until('the keys of rows that are parked by hand are held', sub { my $n = held_keys(); return ($n == $held + 2, $n) });
$node->value(q{INSERT INTO idem.outbox (topic, partition_key, payload) VALUES ('one', 'key-500', '1'), ('one', 'by-hand-1', '1'), ('one', 'by-hand-2', '1'), ('one', 'key-501', '1')});
wait_until('the row of another key is published', sub { my $n = left(); return ($n eq '3', $n) });
$node->value(q{DELETE FROM idem.outbox WHERE partition_key = 'key-500' AND parked_at IS NOT NULL});
wait_until('the row behind one that is deleted is published', sub { my $n = left(); return ($n eq '2', $n) });
$node->value(q{UPDATE idem.outbox SET published_at = now() WHERE partition_key = 'by-hand-1' AND parked_at IS NOT NULL});
wait_until('the row behind one that is marked by hand is published', sub { my $n = left(); return ($n eq '1', $n) });
$node->value(q{BEGIN; DELETE FROM idem.outbox WHERE partition_key = 'by-hand-2' AND parked_at IS NOT NULL; PREPARE TRANSACTION 'give up'});
$node->value(q{COMMIT PREPARED 'give up'});
wait_until('the row behind one whose deletion was prepared is published', sub { my $n = left(); return ($n eq '0', $n) });
pass('keys of parked rows that are deleted or marked by hand are let go');

# With another policy it goes on.
$node->value(q{INSERT INTO idem.topic (topic, on_failure) VALUES ('plain', 'skip')});
wait_done('plain');
pass('it goes out when the policy of the topic is skip');
is($node->value(q{SELECT to_jsonb(s) ->> 'order_violations' FROM idem.relay_status AS s}), 0, 'no violation of the order');

$node->value(q{DELETE FROM idem.topic});
$node->value(q{INSERT INTO idem.outbox (topic, partition_key, parked_at) VALUES ('one', 'held', now())});
wait_until('keys are held', sub { my $n = held_keys(); return ($n > 1, $n) });
$node->value('TRUNCATE idem.outbox');
wait_until('TRUNCATE lets all keys go', sub { my $n = held_keys(); return ($n == 0, $n) });
pass('TRUNCATE lets all keys go');

$node->stop;
done_testing;
