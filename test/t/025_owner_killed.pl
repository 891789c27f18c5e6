# An owner that is killed: before its claim commits, there is no claim; after it,
# the next one resumes or, where the call can't be repeated, hears UNKNOWN.  Attempt
# numbers grow over all of it.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Wait;

my $node = Idem::Cluster->start_new('main', preload => 0);
my $client = $node->session;
my $attempts = 0;

sub claim { return "SELECT outcome, coalesce(attempt, 0) FROM idem_try_insert('p', '$_[0]', decode(repeat('01', 32), 'hex')" . ($_[1] ? ", $_[1]" : '') . ')' }

# The outcome of a claim; an attempt that it gives is greater than all before.
sub outcome
{
	my ($session, $key, $more, $name) = @_;
	my ($outcome, $attempt) = split /\|/, $session->query(claim($key, $more));

	if ($attempt)
	{
		cmp_ok($attempt, '>', $attempts, "$name: attempt $attempt is a new one");
		$attempts = $attempt;
	}
	return $outcome;
}

# Kills the server process of a session as an operator's kill -9 does; the server
# restarts all of them.
sub kill_session
{
	my ($victim) = @_;

	kill 'KILL', $victim->pid;
	$_->quit foreach $victim, $client;
	$node->wait_up;
	$client = $node->session;
	return;
}

# Time passes for the client; an hour is more than any lease here.
sub later { return $client->query("SET idem.test_clock = $_[0]") }

sub state { return $client->query("SELECT state FROM idem.idempotency WHERE idempotency_key = '$_[0]'") }

# Killed between the claim and its commit, with and without a call mark.
foreach my $more ('', "call_timeout => '10 s'")
{
	my $name = 'killed before the commit' . ($more ? ', with a call mark' : '');
	my $victim = $node->session;

	$victim->query('BEGIN');
	is(outcome($victim, $name, $more, $name), 'STARTED', "$name: the victim owns the key");
	is(outcome($client, $name, $more, $name), 'IN_PROGRESS', "$name: nobody else does");
	kill_session($victim);
	is(state($name), '', "$name: there is no record");
	is(outcome($client, $name, $more, $name), 'STARTED', "$name: the next claim starts");
}

# Killed after the commit: the lease protects it for as long as it may be at work.
my %after = ('no call' => [ '', 'RESUMED' ], 'a call that the far side honours' => [ "call_timeout => '10 s', dedup_window => '1 day'", 'RESUMED' ], 'a call that can not be repeated' => [ "call_timeout => '10 s'", 'UNKNOWN' ]);
foreach my $what (sort keys %after)
{
	my ($more, $next) = @{ $after{$what} };
	my $name = "killed after the commit, $what";
	my $victim = $node->session;

	is(outcome($victim, $name, $more, $name), 'STARTED', "$name: the victim owns the key");
	$victim->query('BEGIN; SELECT 1');
	kill_session($victim);
	is(state($name), 'IN_PROGRESS', "$name: the record is there");
	is(outcome($client, $name, $more, $name), 'IN_PROGRESS', "$name: while the lease is alive nobody takes it over");
	later(3600000);
	is(outcome($client, $name, $more, $name), $next, "$name: then the next claim is $next");
	later(0);
}

# Killed in the transaction of the completion, in that of the mark, in a take-over.
foreach my $case (
	[ 'completion', q{SELECT changed FROM idem_complete('p', 'KEY', ATTEMPT, 201, '{}'::text)}, 'RESUMED' ],
	[ 'call mark', q{SELECT idem_before_call('p', 'KEY', ATTEMPT, '10 s')}, 'RESUMED' ],
	[ 'mark as unknown', q{SELECT changed FROM idem_mark_unknown('p', 'KEY', ATTEMPT)}, 'RESUMED' ],
	[ 'yield', q{SELECT changed FROM idem_yield('p', 'KEY', ATTEMPT)}, 'RESUMED' ])
{
	my ($name, $sql, $next) = @$case;
	my $victim = $node->session;

	$name = "killed before the commit of the $name";
	is(outcome($victim, $name, "lease => '1 us'", $name), 'STARTED', "$name: the victim owns the key");
	$sql =~ s/KEY/$name/;
	$sql =~ s/ATTEMPT/$attempts/;
	$victim->query("BEGIN; $sql");
	is(outcome($client, $name, '', $name), 'IN_PROGRESS', "$name: nobody takes it over meanwhile");
	kill_session($victim);
	is($client->query("SELECT state, call_started_at IS NULL, tries FROM idem.idempotency WHERE idempotency_key = '$name'"), 'IN_PROGRESS|t|0', "$name: the record is as before");
	is(outcome($client, $name, '', $name), $next, "$name: the next claim is $next");
}

# Over expiry, take-over, sweep, savepoint and a crash of the server.
is(outcome($client, 'grows', "lease => '1 us', retention => '1 us'", 'first claim'), 'STARTED', 'a claim');
is(outcome($client, 'grows', "lease => '1 us', retention => '1 us'", 'expiry'), 'STARTED', 'after its expiry another');
is($client->query('SELECT records > 0 FROM idem_sweep(1000)'), 't', 'the record is swept');
is(outcome($client, 'grows', "lease => '1 us'", 'sweep'), 'STARTED', 'after the sweep another');
is(outcome($client, 'grows', "lease => '1 us'", 'take-over'), 'RESUMED', 'and a take-over');
$client->query('BEGIN; SAVEPOINT s');
is(outcome($client, 'grows', "lease => '1 us'", 'take-over in a savepoint'), 'RESUMED', 'a take-over that is rolled back to a savepoint');
$client->query('ROLLBACK TO SAVEPOINT s');
is(outcome($client, 'grows', '', 'after the savepoint'), 'RESUMED', 'and one in its place');
$client->query('ROLLBACK');
is($client->query("SELECT tries FROM idem.idempotency WHERE idempotency_key = 'grows'"), 1, 'none of the two is there');
$client->quit;
$node->crash;
$node->start;
$client = $node->session;
is(outcome($client, 'grows', "lease => '1 us'", 'crash of the server'), 'RESUMED', 'after a crash of the server a take-over');

$client->quit;
$node->stop;
done_testing;
