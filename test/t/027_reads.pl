# Look first: an answer that changes nothing writes no WAL, takes no transaction
# id and works in a read-only transaction.  Each statement's own WAL is counted by
# the server.  The first reads after a change may prune the page or set hint bits,
# so it is the second that counts.

use strict;
use warnings FATAL => 'all';

use JSON::PP ();
use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;

my $node = Idem::Cluster->start_new('main', preload => 0, conf => "autovacuum = off\nwal_level = replica\nmax_wal_senders = 4\n");
my $session = $node->session;
my $hash = "decode(repeat('01', 32), 'hex')";

sub claim { return "idem_try_insert('p', '$_[0]', " . ($_[2] // $hash) . ($_[1] ? ", $_[1]" : '') . ')' }

# What a statement wrote itself: records of WAL.
sub wal_records
{
	my ($from) = @_;
	my $plan = $session->query("EXPLAIN (ANALYZE, WAL, FORMAT JSON) SELECT * FROM $from");

	return JSON::PP->new->decode($plan)->[0]{Plan}{'WAL Records'};
}

sub own { return "$_[0]('p', '$_[1]', (SELECT attempt FROM idem.idempotency WHERE idempotency_key = '$_[1]')" . ($_[2] ? ", $_[2]" : '') . ')' }

# A record in each state.
$session->query("SET idem.record_retention = '10 d'");
$session->query('SELECT outcome FROM ' . claim($_)) foreach qw(replayed large gone unknown alive);
$session->query('SELECT changed FROM ' . own('idem_complete', $_, q{201, repeat('x', 100)})) foreach qw(replayed gone);
$session->query('SET idem.max_response_bytes = 10');
$session->query('SELECT changed FROM ' . own('idem_complete', 'large', q{201, repeat('x', 100)}));
$session->query('RESET idem.max_response_bytes');
$session->query('SELECT changed FROM ' . own('idem_mark_unknown', 'unknown'));
$session->query("SELECT outcome FROM idem_try_insert('p', 'lost', $hash, lease => '1 us', call_timeout => '1 us')");
$session->query("UPDATE idem.idempotency SET response_expires_at = clock_timestamp() - interval '1 s' WHERE idempotency_key = 'gone'");
$session->query("SELECT count(*) FROM idem_try_insert_many('p', ARRAY(SELECT 'many ' || n FROM generate_series(1, 1000) AS n), array_fill($hash, ARRAY[1000]))");
$session->query("SELECT count(*) FROM idem.idempotency AS r, LATERAL idem_complete('p', r.idempotency_key, r.attempt, 201, 'done'::text) WHERE idempotency_key LIKE 'many %'");
my $drawn = $session->query('SELECT last_value FROM idem.attempt');

# The controls: what does write is seen to.
cmp_ok(wal_records(claim('control')), '>', 0, 'a claim writes WAL');
cmp_ok(wal_records(own('idem_complete', 'control', q{201, '{}'::text})), '>', 0, 'a completion writes WAL');
$drawn++;

my $many = "idem_try_insert_many('p', ARRAY(SELECT 'many ' || n FROM generate_series(1, 1000) AS n), array_fill($hash, ARRAY[1000]))";
my %reads = (
	'REPLAY' => claim('replayed'),
	'REPLAY without a body' => claim('large'),
	'RESULT_GONE' => claim('gone'),
	'UNKNOWN' => claim('unknown'),
	'IN_PROGRESS' => claim('alive'),
	'MISMATCH' => claim('replayed', '', "decode(repeat('02', 32), 'hex')"),
	'a hash that is also accepted' => claim('replayed', "also_accept => ARRAY[$hash]", "decode(repeat('02', 32), 'hex')"),
	'1,000 replays in one call' => $many,
	'idem_lookup' => "idem_lookup('p', 'replayed')",
	'idem_lookup of an overdue record' => "idem_lookup('p', 'lost')",
	'idem_lookup of nothing' => "idem_lookup('p', 'nothing')",
	'idem_http_problem' => "idem_http_problem('operation_in_progress')",
);
foreach my $what (sort keys %reads)
{
	my $from = $reads{$what};

	$session->query("SELECT count(*) FROM $from");
	is(wal_records($from), 0, "$what: the second writes no WAL");
	$session->query('BEGIN');
	my $first = $session->query("SELECT * FROM $from");
	is($session->query('SELECT pg_current_xact_id_if_assigned() IS NULL'), 't', "$what: no transaction id is taken");
	$session->query('COMMIT');
	$session->query('BEGIN READ ONLY');
	is($session->query("SELECT * FROM $from"), $first, "$what: the same in a read-only transaction");
	$session->query('COMMIT');
}
is($session->query('SELECT last_value FROM idem.attempt'), $drawn, 'no attempt number was used up');

# A record that would become UNKNOWN: in a read-only transaction it is said and not
# written down.
$session->query('SET idem.test_clock = 3600000');
$session->query('BEGIN READ ONLY');
is($session->query('SELECT outcome, changed FROM ' . claim('lost')), 'UNKNOWN|f', 'read-only: UNKNOWN is answered without writing');
$session->query('COMMIT');
$session->query('RESET idem.test_clock');
is($session->query("SELECT state FROM idem.idempotency WHERE idempotency_key = 'lost'"), 'IN_PROGRESS', 'read-only: the record is as it was');

# The whole server's WAL, over 10,000 replays; it may write a record of its own now
# and then, so the least of three counts.
my @bytes = map {
	my $before = $session->query('SELECT pg_current_wal_insert_lsn()');
	$session->query("SELECT count(c.outcome) FROM generate_series(1, 10000), LATERAL (SELECT * FROM @{[claim('replayed')]}) AS c");
	$session->query("SELECT pg_current_wal_insert_lsn() - '$before'");
} 1 .. 3;
is((sort { $a <=> $b } @bytes)[0], 0, '10,000 replays: not one byte of WAL');

# A replica answers what it knows, and never makes a claim of it.
$node->backup('copy');
my $replica = Idem::Cluster->new('replica');
$replica->init_from_backup($node, 'copy', has_streaming => 1);
$replica->start;
$node->wait_for_catchup($replica, 'replay', $node->lsn('write'));
is($replica->value('SELECT outcome FROM ' . claim('replayed')), 'REPLAY', 'replica: a replay');
is($replica->value('SELECT outcome FROM ' . claim('alive')), 'IN_PROGRESS', 'replica: in progress');
is($replica->value("SELECT outcome FROM idem_lookup('p', 'replayed')"), 'REPLAY', 'replica: idem_lookup');
my $refused = $replica->try('SELECT outcome FROM ' . claim('new'));
is($refused->{sqlstate}, '25006', 'replica: a new key is refused');
like($refused->{error}, qr/HINT/, 'replica: with a hint');

$session->quit;
$replica->stop;
$node->stop;
done_testing;
