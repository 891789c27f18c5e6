# Marking fails: rows that Kafka has acknowledged are kept and marked later, and
# none of them is sent again.  The window bounds what is kept so.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Events;
use Idem::Kafka;
use Idem::Wait;

my $window = 2500;
my $kafka = Idem::Kafka->new;
$kafka->create_topic('t', 2);
my $node = Idem::Cluster->start_new('main', kafka => $kafka, conf => "autovacuum = off\n");
my $worker = $node->wait_state('running')->{pid};
my $rows = 0;
my $log_from = 0;

sub write_rows
{
	my ($count, $blocks) = @_;

	# Blocks of 16 bytes that can't be compressed.
	$blocks //= 5;
	$node->value(qq{INSERT INTO idem.outbox (topic, partition_key, payload_bytes)
		SELECT 't', 'key-' || i % 50, (SELECT decode(string_agg(md5(i || '/' || j), ''), 'hex') FROM generate_series(1, $blocks) AS j)
		FROM generate_series(1, $count) AS i});
	$rows += $count;
	return;
}

sub left { return $node->value('SELECT count(*) FROM idem.outbox WHERE published_at IS NULL') }

# Rows that are acknowledged and can't be marked: they stay so, no more than the
# window of them, and the view says why.
sub kept
{
	my ($name, $said) = @_;

	write_rows(4000);
	$node->wait_state('retrying');
	wait_until("$name: the window is full of acknowledged rows",
		sub { my $seen = $node->relay_status; my @read = delivered($kafka, 't'); return (@read >= $rows - left() + $window, { %$seen, read => scalar @read }) });
	like($node->relay_status->{last_error}, $said, "$name: the view says why");
	my $read = () = delivered($kafka, 't');
	wait_until("$name: it has been tried several times", sub { my $n = tried($said); return ($n >= 3, $n) });
	is(scalar(() = delivered($kafka, 't')), $read, "$name: meanwhile nothing is sent twice, and no more than the window holds");
	cmp_ok($node->relay_status->{in_flight}, '<=', $window, "$name: the window holds them");
	return;
}

# How often it has been tried since the last case.
sub tried
{
	my ($said) = @_;

	return scalar(() = substr(slurp_file($node->logfile), $log_from) =~ /ERROR:[^\n]*$said/g);
}

sub marked_later
{
	my ($name) = @_;

	$node->wait_published;
	is($node->relay_status->{pid}, $worker, "$name: the same worker marks them");
	is($node->value('SELECT count(*) FROM idem.outbox WHERE attempts > 0 OR parked_at IS NOT NULL'), 0, "$name: no attempt is used, nothing is parked");
	delivered_ok(compare($node, $kafka, 't'), $name, rows => $rows, published => $rows, repeats => 0);
	$log_from = -s $node->logfile;
	return;
}

# A lock, taken while the rows are in flight: it keeps out writers as well.
write_rows(100);
$node->wait_published;
my $locker = $node->session;
$kafka->freeze;
write_rows(4000);
wait_until('rows are in flight', sub { my $seen = $node->relay_status; return ($seen->{in_flight} > 0, $seen) });
$locker->query('BEGIN; LOCK TABLE idem.outbox IN SHARE MODE');
$kafka->thaw;
$node->wait_state('retrying');
wait_until('lock: the window is full of acknowledged rows', sub { my @read = delivered($kafka, 't'); return (@read >= 100 + $window, scalar @read) });
wait_until('lock: it has been tried several times', sub { my $n = tried(qr/lock timeout/); return ($n >= 3, $n) });
is(scalar(() = delivered($kafka, 't')), 100 + $window, 'lock: meanwhile nothing is sent twice, and no more than the window holds');
$locker->query('COMMIT');
marked_later('lock');

# A trigger that raises.
$node->value(<<'EOF_SQL');
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no marks today'; END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON idem.outbox FOR EACH ROW EXECUTE FUNCTION refuse();
EOF_SQL
kept('trigger', qr/no marks today/);
$node->value('DROP TRIGGER refuse ON idem.outbox');
marked_later('trigger');

# A disk on which no file can grow, for the worker: full pages make each mark need
# a new one.  (What it gets from the system is "File too large".)
$node->value('DELETE FROM idem.outbox');
$node->value('VACUUM idem.outbox');
$rows = 0;
$kafka->administrate('truncate', 't');
my $holder = $node->session;
$holder->query('BEGIN ISOLATION LEVEL REPEATABLE READ');
$holder->query('SELECT count(*) FROM pg_class');
$kafka->freeze;
write_rows(6000, 100);
wait_until('rows are in flight', sub { my $seen = $node->relay_status; return ($seen->{in_flight} > 0, $seen) });
# Fills what the fillfactor left free; the snapshot keeps the old versions there.
$node->value(q{UPDATE idem.outbox SET aggregate_type = 'a'});
my $leaf = $node->value(q{SELECT max(tableoid::regclass::text) FROM idem.outbox});
my $size = $node->value("SELECT pg_relation_size('$leaf')");
cmp_ok($size, '>', 17 * 1024 * 1024, 'disk full: the table is larger than a segment of WAL');
system_or_bail('prlimit', '--pid', $worker, "--fsize=$size:unlimited");
$kafka->thaw;
$node->wait_state('retrying');
like($node->relay_status->{last_error}, qr/could not (?:extend|write)/, 'disk full: the view says why');
wait_until('disk full: the window is full of acknowledged rows', sub { my @read = delivered($kafka, 't'); return (@read >= $window, scalar @read) });
wait_until('disk full: it has been tried several times', sub { my $n = tried(qr/could not (?:extend|write)/); return ($n >= 3, $n) });
cmp_ok(scalar(() = delivered($kafka, 't')), '<=', $window, 'disk full: meanwhile nothing is sent twice');
cmp_ok(left(), '>', 0, 'disk full: rows wait for their marks');
system_or_bail('prlimit', '--pid', $worker, '--fsize=unlimited:unlimited');
marked_later('disk full');

# The window is what its settings say, and the view shows it: in bytes, and in rows,
# which bound the repeats when the worker dies with all of it acknowledged.
sub window_is
{
	my ($rows) = @_;

	return wait_until("the view shows a window of $rows rows", sub { my $n = $node->value('SELECT window_rows FROM idem.relay_status'); return ($n eq $rows, $n) });
}

$_->quit foreach $locker, $holder;
$node->set('idem.relay_window_rows' => 200, 'idem.relay_window_bytes' => '1MB');
window_is(200);
$kafka->freeze;
write_rows(50, 6250);
wait_until('large rows are in flight', sub { my $seen = $node->relay_status; return ($seen->{in_flight} > 5, $seen) });
is(join(' ', grep { $_ > 1 + 1048576 / 100_000 } map { $node->relay_status->{in_flight} } 1 .. 20), '', 'no more rows of 100 kB are in flight than 1 MB has, and one');
$kafka->thaw;
$node->wait_published;
delivered_ok(compare($node, $kafka, 't'), 'a window of 1 MB', rows => $rows, published => $rows, repeats => 0);

$node->value('CREATE TRIGGER refuse BEFORE UPDATE ON idem.outbox FOR EACH ROW EXECUTE FUNCTION refuse()');
my $read = () = delivered($kafka, 't');
write_rows(1000);
wait_until('a window of 200 rows is full of acknowledged ones', sub { my $n = $node->value('SELECT unmarked FROM idem.relay_status'); return ($n == 200, $n) });
is(scalar(() = delivered($kafka, 't')), $read + 200, 'no more of them were sent');
kill 'KILL', $worker;
$node->wait_new_worker($worker);
$node->wait_up;
$node->value('DROP TRIGGER refuse ON idem.outbox');
$node->wait_published;
window_is(200);
delivered_ok(compare($node, $kafka, 't'), 'a worker that dies with 200 rows acknowledged', rows => $rows, published => $rows, repeats => 200);

$node->stop;
done_testing;
