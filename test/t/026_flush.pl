# On disk before the client hears of it: the commit of everything that permits a
# call or a reply is flushed, with synchronous_commit = off too.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;

# Unless somebody flushes, WAL stays in memory for ten seconds.
my $node = Idem::Cluster->start_new('main', preload => 0, conf => <<'EOF_CONF');
synchronous_commit = off
wal_writer_delay = '10s'
wal_writer_flush_after = 0
autovacuum = off
EOF_CONF
my $session = $node->session;
my $hash = "decode(repeat('01', 32), 'hex')";

$node->value('CREATE EXTENSION pg_walinspect; CREATE TABLE plain (n int)');

# Runs a statement in a transaction of its own and says whether its commit record
# was on disk at the moment when the client had heard of the commit.
sub flushed
{
	my ($sql) = @_;
	my $start = $session->query('SELECT pg_current_wal_insert_lsn()');
	my $xid = $session->query("BEGIN; $sql; SELECT 'xid', pg_current_xact_id()") =~ /xid\|(\d+)/ && $1;
	$session->query('COMMIT');
	my $flushed = $session->query('SELECT pg_current_wal_flush_lsn()');

	# A commit that does wait takes all before it to the disk, where it can be read.
	$session->query('SET synchronous_commit = on; INSERT INTO plain VALUES (0); SET synchronous_commit = off');
	my $end = $session->query(
		"SELECT end_lsn FROM pg_get_wal_records_info('$start', pg_current_wal_flush_lsn()) WHERE resource_manager = 'Transaction' AND record_type = 'COMMIT' AND xid = '$xid'");
	BAIL_OUT("no commit record of transaction $xid") if $end eq '';
	return $session->query("SELECT '$end'::pg_lsn <= '$flushed'::pg_lsn");
}

sub attempt { return $session->query("SELECT attempt FROM idem.idempotency WHERE idempotency_key = '$_[0]'") }

# Something in flight, without and with an unrepeatable call, both overdue.
sub in_progress
{
	my ($key, $more) = @_;

	$session->query("SELECT outcome FROM idem_try_insert('p', '$key', $hash, 'flush', lease => '1 us'" . ($more // '') . ')');
	return attempt($key);
}

# The control: an ordinary transaction is not on disk yet.
is(flushed("INSERT INTO plain VALUES ($_)"), 'f', 'an insert is not flushed') foreach 1, 2;

is(flushed("SELECT outcome FROM idem_try_insert('p', 'claim', $hash)"), 't', 'a claim is flushed');
is(flushed("SELECT outcome FROM idem_try_insert('p', 'call', $hash, call_timeout => '1 h')"), 't', 'a claim with a call mark is flushed');
is(flushed("SELECT count(*) FROM idem_try_insert_many('p', '{many 1,many 2}', ARRAY[$hash, $hash])"), 't', 'claims of many keys are flushed');
is(flushed("SAVEPOINT s; SELECT outcome FROM idem_try_insert('p', 'savepoint', $hash); RELEASE SAVEPOINT s"), 't', 'a claim in a savepoint is flushed');
in_progress('taken over');
is(flushed("SELECT outcome FROM idem_try_insert('p', 'taken over', $hash)"), 't', 'a take-over is flushed');
in_progress('expired', ", retention => '1 us'");
is(flushed("SELECT outcome FROM idem_try_insert('p', 'expired', $hash)"), 't', 'the renewal of an expired record is flushed');
in_progress('stale');
is(flushed("SELECT count(*) FROM idem_claim_stale('flush', 1)"), 't', "a sweeper's claim is flushed");
my $marked = in_progress('marked');
is(flushed("SELECT idem_before_call('p', 'marked', $marked, '1 h')"), 't', 'a call mark is flushed');
is(flushed("SELECT changed FROM idem_complete('p', 'marked', $marked, 201, '{}'::text)"), 't', 'a completion is flushed');
my $unknown = in_progress('unknown');
is(flushed("SELECT changed FROM idem_mark_unknown('p', 'unknown', $unknown)"), 't', 'UNKNOWN, marked by the owner, is flushed');
is(flushed("SELECT changed FROM idem_resolve('p', 'unknown', 'completed', '{}', 201, '{}'::text)"), 't', 'a verdict is flushed');
# a claim that finds the lease over, of a call that can't be repeated
$session->query('SET idem.test_clock = 10800000');
is(flushed("SELECT outcome FROM idem_try_insert('p', 'call', $hash, call_timeout => '1 h')"), 't', 'UNKNOWN, found out by a claim, is flushed');
is($session->query("SELECT state FROM idem.idempotency WHERE idempotency_key = 'call'"), 'UNKNOWN', 'it was that');

# What says nothing that others could rely on does not flush, and the setting is
# left as it was.
is(flushed('INSERT INTO plain VALUES (3)'), 'f', 'the next insert is not flushed');
is(flushed("SELECT outcome FROM idem_try_insert('p', 'marked', $hash); INSERT INTO plain VALUES (4)"), 'f', 'nor one with a replay in its transaction');
is($session->query('SHOW synchronous_commit'), 'off', 'the setting is as it was');

$session->quit;
$node->stop;
done_testing;
