# DROP and CREATE EXTENSION, TRUNCATE and VACUUM FULL under a running relay: they
# never wait long, rows with a seq that was there before are published, and no
# row is marked that was not sent.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Consumer;
use Idem::Kafka;
use Idem::Wait;

use constant PATIENCE => 5;

my $kafka = Idem::Kafka->new;
$kafka->create_topic('t', 1);
my $node = Idem::Cluster->start_new('main', kafka => $kafka, extension => 0);

# The view goes with the extension; this looks into the same shared memory.
$node->value(<<'EOF_SQL');
CREATE FUNCTION look(OUT pid integer, OUT state text, OUT hint text, OUT brokers text, OUT librdkafka text,
	OUT started_at timestamptz, OUT in_flight bigint, OUT published bigint, OUT failed bigint,
	OUT last_published_at timestamptz, OUT last_error text, OUT last_error_at timestamptz)
	RETURNS record AS '$libdir/idem', 'relay_state' LANGUAGE C
EOF_SQL

sub wait_no_extension
{
	my ($when) = @_;

	return wait_until("$when: state \"no extension\"",
		sub { my ($seen) = $node->rows('SELECT * FROM look()'); return ($seen->{state} eq 'no extension' && $seen, $seen) });
}

sub quickly
{
	my ($name, $sql) = @_;

	cmp_ok(seconds_of(sub { $node->value($sql) }), '<', PATIENCE, "$name does not wait");
	return;
}

sub write_rows
{
	my ($type) = @_;

	$node->value("SELECT outbox_emit('t', 'k' || i % 3, '$type', to_jsonb(i)) FROM generate_series(1, 20) AS i");
	return;
}

# Each marked row is in Kafka at the place its mark names: none was marked
# because an older row with its seq or its ctid was acknowledged.
sub marks_are_true
{
	my ($when) = @_;
	my %at = map { header($_, 'ce_id') . " $_->{partition} $_->{offset}" => 1 } read_topic($kafka, 't');
	my @marked = grep { $_->{published} } $node->outbox;

	is_deeply([ grep { !$at{"$_->{event_id} $_->{partition} $_->{offset}"} } @marked ],
		[], "$when: each mark names a record of its event");
	return scalar @marked;
}

# No row is ever marked at its first sight: count them while they can't be sent.
sub none_marked
{
	my ($when) = @_;

	is($node->value('SELECT count(*) FROM idem.outbox WHERE published_at IS NOT NULL'), 0, "$when: none is marked");
	return;
}

# The worker starts before the extension is there.
my $worker = wait_no_extension('before CREATE EXTENSION')->{pid};
like(wait_no_extension('before CREATE EXTENSION')->{hint}, qr/CREATE EXTENSION/, 'the hint says what to do');
quickly('CREATE EXTENSION', 'CREATE EXTENSION idem CASCADE');
write_rows('first');
$node->wait_published;
is(marks_are_true('first'), 20, 'rows are published once the extension is there');

# Dropped and made again while the relay is idle.
quickly('DROP EXTENSION', 'DROP EXTENSION idem');
wait_no_extension('after DROP EXTENSION');
quickly('CREATE EXTENSION', 'CREATE EXTENSION idem');
write_rows('second');
is(($node->outbox)[0]{seq}, 1, 'seq starts anew');
$node->wait_published;
is(marks_are_true('second'), 20, 'rows with a seq that was there before are published');
quickly('DROP and CREATE EXTENSION in one transaction', 'BEGIN; DROP EXTENSION idem; CREATE EXTENSION idem; COMMIT');
write_rows('third');
$node->wait_published;
is(marks_are_true('third'), 20, 'also when dropped and created in one transaction');

# Where the rows are: leaf, ctid and seq.
sub places
{
	return $node->value(q{SELECT string_agg(concat_ws(' ', tableoid::regclass, ctid, seq), ', ' ORDER BY seq) FROM idem.outbox});
}

# The same with rows in flight that Kafka acknowledges only after new rows have
# taken the place of the old ones, with the same leaf and ctid, and the same seq
# where it starts anew.
sub with_rows_in_flight
{
	my ($name, $sql, $same_places) = @_;

	$node->value('TRUNCATE idem.outbox; ALTER SEQUENCE idem.outbox_seq RESTART');
	$kafka->freeze;
	write_rows("$name-old");
	my $before = places();
	wait_until("$name: rows are in flight",
		sub { my $seen = $node->relay_status; return ($seen->{in_flight} == 20, $seen) });
	quickly("$name with rows in flight", $sql);
	write_rows("$name-new");
	is(places(), $before, "$name: new rows are where the old ones were") if $same_places;
	none_marked("$name, broker frozen");
	$kafka->thaw;
	$node->wait_published;
	is(marks_are_true($name), 20, "$name: the new rows are published");
	return;
}

with_rows_in_flight('drop-create', 'DROP EXTENSION idem; CREATE EXTENSION idem', 1);
with_rows_in_flight('drop-create-at-once', 'BEGIN; DROP EXTENSION idem; CREATE EXTENSION idem; COMMIT', 1);
with_rows_in_flight('truncate', 'TRUNCATE idem.outbox');
with_rows_in_flight('truncate-restart', 'TRUNCATE idem.outbox; ALTER SEQUENCE idem.outbox_seq RESTART', 1);
with_rows_in_flight('delete', 'DELETE FROM idem.outbox');

# Dropped with the broker away, and left so for a while.
$kafka->kill9;
write_rows('away');
$node->wait_state('waiting for broker');
quickly('DROP EXTENSION with the broker away', 'DROP EXTENSION idem');
wait_no_extension('broker away');
quickly('CREATE EXTENSION with the broker away', 'CREATE EXTENSION idem');
write_rows('back');
none_marked('broker away');
$kafka->start;
$node->wait_published;
is(marks_are_true('broker away'), 20, 'the new rows are published when the broker is back');

# The sharpest case: the worker stands before the mark, with Kafka's reports for
# old rows in hand, while new rows take their places unseen.
my $locker = $node->session;

sub before_the_mark
{
	my ($type) = @_;

	$locker->query(q{SELECT pg_advisory_lock(7357, hashtext('relay-before-mark'))});
	$node->set('idem.test_points' => 'relay-before-mark=wait');
	write_rows($type);
	wait_until(
		'the worker stands before the mark',
		sub {
			return $node->value(q{SELECT count(*) FROM pg_stat_activity
				WHERE backend_type = 'idem relay' AND wait_event = 'advisory'});
		});
	return;
}

sub go_on
{
	$locker->query('SELECT pg_advisory_unlock_all()');
	$node->reset('idem.test_points');
	$node->wait_published;
	return;
}

sub with_reports_in_hand
{
	my ($name, $sql) = @_;

	$node->value('TRUNCATE idem.outbox; ALTER SEQUENCE idem.outbox_seq RESTART');
	before_the_mark("$name-old");
	my $before = places();
	quickly("$name with reports in hand", $sql);
	write_rows("$name-new");
	is(places(), $before, "$name: new rows are where the old ones were");
	go_on();
	is(marks_are_true($name), 20, "$name: the new rows are published");
	return;
}

with_reports_in_hand('hand-drop-create', 'DROP EXTENSION idem; CREATE EXTENSION idem');
with_reports_in_hand('hand-truncate', 'TRUNCATE idem.outbox; ALTER SEQUENCE idem.outbox_seq RESTART');

# Rows that move between reading and marking are found by their seq.
$node->value('DELETE FROM idem.outbox WHERE seq % 2 = 0');
before_the_mark('moved');
quickly('VACUUM FULL before the mark', 'VACUUM FULL idem.outbox');
go_on();
is(marks_are_true('moved'), 30, 'rows that VACUUM FULL moved are marked');
my %times;
$times{$_}++ foreach event_ids(grep { header($_, 'ce_type') eq 'moved' } read_topic($kafka, 't'));
is_deeply([ values %times ], [ (1) x 20 ], 'and were sent once');

is($node->relay_status->{pid}, $worker, 'it was the same worker all the time');
$locker->quit;
$node->stop;
done_testing;
