# Claims: one owner, nobody waits, a zombie is turned away, and what was claimed
# or completed is on disk.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Wait;

# Nobody waits for a claim: an answer takes no longer than this.
use constant AT_ONCE => 0.2;

# Unless told to flush, nothing of this server reaches the disk for ten seconds.
my $node = Idem::Cluster->start_new('main', preload => 0, conf => "wal_writer_delay = '10s'\nautovacuum = off\n");
$node->value('CREATE TABLE payment (attempt bigint, amount int); CREATE TABLE unflushed (round int)');
my ($first, $second) = ($node->session, $node->session);

# A claim whose answer is "outcome|attempt".
sub claim
{
	my ($key, $more) = @_;

	return "SELECT outcome, attempt FROM idem_try_insert('p', '$key', decode(repeat('01', 32), 'hex')"
	  . ($more ? ", $more" : '') . ')';
}

sub complete
{
	my ($key, $attempt) = @_;

	return "SELECT changed FROM idem_complete('p', '$key', $attempt, 201, '{\"paid\": true}'::jsonb)";
}

# What a session hears, once it was made sure that it heard it at once.
sub hears
{
	my ($session, $sql, $when) = @_;
	my $answer;
	my $seconds = seconds_of(sub { $answer = $session->try($sql) });

	cmp_ok($seconds, '<', AT_ONCE, "$when: an answer at once");
	return $answer->{sqlstate} || ($answer->{output} =~ s/\|.*//r);
}

# An open claim, seen from every isolation level, and then its end.
foreach my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	my $key = "open $level";

	$first->query('BEGIN');
	like($first->query(claim($key)), qr/^STARTED/, "$level: the first owns the key");
	$second->query("BEGIN ISOLATION LEVEL $level");
	is(hears($second, claim($key), "$level, winner open"), 'IN_PROGRESS', "$level: the second hears IN_PROGRESS");
	$first->query('COMMIT');
	my $heard = hears($second, claim($key), "$level, winner committed");
	like($heard, $level eq 'READ COMMITTED' ? qr/^IN_PROGRESS$/ : qr/^(?:IN_PROGRESS|40001)$/, "$level: and after its commit no other ($heard)");
	$second->query('ROLLBACK');

	$first->query('BEGIN');
	$first->query(claim("$key, given up"));
	is(hears($second, claim("$key, given up"), "$level, winner open"), 'IN_PROGRESS', "$level: IN_PROGRESS while it is open");
	$first->query('ROLLBACK');
	is(hears($second, claim("$key, given up"), "$level, winner gone"), 'STARTED', "$level: after its rollback the key is free");
}

# A claim in a prepared transaction, over a restart too.
foreach my $end ('COMMIT', 'ROLLBACK')
{
	my $key = "prepared $end";

	$first->query('BEGIN');
	$first->query(claim($key));
	$first->query("PREPARE TRANSACTION 'claim'");
	is(hears($second, claim($key), 'winner prepared'), 'IN_PROGRESS', 'prepared: the second hears IN_PROGRESS');
	$_->quit foreach $first, $second;
	$node->crash;
	$node->start;
	($first, $second) = ($node->session, $node->session);
	is(hears($second, claim($key), 'winner prepared, server crashed'), 'IN_PROGRESS', 'prepared: so it does after a crash');
	$first->query("$end PREPARED 'claim'");
	is(hears($second, claim($key), "after $end PREPARED"), $end eq 'COMMIT' ? 'IN_PROGRESS' : 'STARTED', "prepared: after $end PREPARED");
}

# A take-over and a completion that are not committed yet.
my $old = ($first->query(claim('taken over', "lease => '1 ms'")) =~ s/.*\|//r);
my $taken = '';
$second->query('BEGIN');
wait_until('the lease is over', sub { $taken = $second->query(claim('taken over')); return (scalar($taken =~ /^RESUMED/), $taken) });
is(hears($first, claim('taken over'), 'take-over open'), 'IN_PROGRESS', 'take-over: another hears IN_PROGRESS');
$second->query('COMMIT');
my $new = $taken =~ s/.*\|//r;
cmp_ok($new, '>', $old, 'take-over: attempts grow');

# The zombie: the owner that lost its claim wakes up.
$first->query("BEGIN; INSERT INTO payment VALUES ($old, 100)");
my $answer = $first->try(complete('taken over', $old));
is($answer->{sqlstate}, 'ID001', 'zombie: its completion is an error');
like($answer->{error}, qr/HINT/, 'zombie: with a hint');
$first->query('COMMIT');
is($node->value('SELECT count(*) FROM payment'), 0, 'zombie: its rows are gone');
$second->query("BEGIN; INSERT INTO payment VALUES ($new, 100)");
is($second->query(complete('taken over', $new)), 't', 'the owner completes');
is(hears($first, claim('taken over'), 'completion open'), 'IN_PROGRESS', 'completion: another hears IN_PROGRESS');
$second->query('COMMIT');
is(hears($first, claim('taken over'), 'completed'), 'REPLAY', 'completion: then the response');
is($first->try(complete('taken over', $old))->{sqlstate}, 'ID001', 'zombie: still an error');
is($first->query(complete('taken over', $new)), 'f', 'an identical completion changes nothing');
is($node->value('SELECT string_agg(attempt::text, $$ $$) FROM payment'), $new, 'one payment, by the owner');

# A late completion, open while the lease is over: whoever would take over does
# not wait for it either.
my $late = $first->query(claim('late', "lease => '1 ms'")) =~ s/.*\|//r;
wait_until('the lease is over',
	sub { return $node->value("SELECT lease_expires_at <= clock_timestamp() FROM idem.idempotency WHERE attempt = $late") eq 't' });
$first->query('BEGIN');
is($first->query(complete('late', $late)), 't', 'late: the owner completes after its lease');
$second->query("SET statement_timeout = '5s'");
is(hears($second, claim('late'), 'late completion open'), 'IN_PROGRESS', 'late: another hears IN_PROGRESS');
$first->query('COMMIT');
is(hears($second, claim('late'), 'late completion committed'), 'REPLAY', 'late: then the response');

# Twenty keys, eight sessions at once: one owner each.
my @sessions = map { $node->session } 1 .. 8;
my (%owners, %others);
foreach my $key (map { "race $_" } 1 .. 20)
{
	$_->send(claim($key)) foreach @sessions;
	foreach my $session (@sessions)
	{
		my $outcome = $session->answer->{output} =~ s/\|.*//r;

		$outcome eq 'STARTED' ? $owners{$key}++ : $others{$outcome}++;
	}
}
is_deeply([ values %owners ], [ (1) x 20 ], 'race: one owner for each key');
is_deeply(\%others, { IN_PROGRESS => 140 }, 'race: all others hear IN_PROGRESS');
$_->quit foreach @sessions;

# Killed inside the claim and inside the completion: as if they had not been.
my $attempt = $first->query(claim('killed', "lease => '1 hour'")) =~ s/.*\|//r;
foreach my $case ([ 'claim-inserted', claim('killed before commit') ], [ 'complete-updated', complete('killed', $attempt) ])
{
	my ($point, $sql) = @$case;
	my $victim = $node->session;

	$victim->query("SET idem.test_points = '$point=kill'");
	ok($victim->try($sql)->{lost}, "$point: the server process is killed");
	$_->quit foreach $victim, $first, $second;
	$node->wait_up;
	($first, $second) = ($node->session, $node->session);
}
is(hears($first, claim('killed before commit'), 'after the crash'), 'STARTED', 'a claim that died uncommitted left no record');
is($first->query(complete('killed', $attempt)), 't', 'a completion that died uncommitted can be made again');

# On disk with synchronous_commit = off, which a row written after them is not:
# the control that shows that the crash loses what was not flushed.
my $lost = 0;
foreach my $round (1 .. 3)
{
	$first->query('SET synchronous_commit = off');
	my $claimed = $first->query(claim("claimed $round")) =~ s/.*\|//r;
	$first->query("INSERT INTO unflushed VALUES ($round)");
	$_->quit foreach $first, $second;
	$node->crash;
	$node->start;
	($first, $second) = ($node->session, $node->session);
	is($first->query("SELECT attempt FROM idem.idempotency WHERE idempotency_key = 'claimed $round'"),
		$claimed, "round $round: the claim survives kill -9");
	$lost += $first->query("SELECT count(*) = 0 FROM unflushed WHERE round = $round") eq 't';

	$first->query('SET synchronous_commit = off');
	is($first->query(complete("claimed $round", $claimed)), 't', "round $round: the owner completes");
	$_->quit foreach $first, $second;
	$node->crash;
	$node->start;
	($first, $second) = ($node->session, $node->session);
	is(hears($first, claim("claimed $round"), "round $round, after the crash"), 'REPLAY', "round $round: the completion survives kill -9");
	cmp_ok($first->query("SELECT attempt FROM idem_try_insert('p', 'next $round', decode(repeat('01', 32), 'hex'))"),
		'>', $claimed, "round $round: attempts grow over a crash");
}
cmp_ok($lost, '>', 0, "the crash lost $lost of 3 rows that were not flushed");

$_->quit foreach $first, $second;
$node->stop;
done_testing;
