# No session state: the regression files and the life of records, through
# PgBouncer in transaction mode, where each transaction of a client runs in
# another session than the one before.
#
# The files have session state of their own, which is not what is tested here.
# It is replaced, in the script and in the output that is expected of it:
#
#	pg_temp.f(), temporary tables	a schema and tables in the file's own database
#	SET and RESET					said once to each session of the pool
#
# Left out: canonical (it goes to databases of other encodings), settings (what a
# session may set), hash_key (which prepares statements), install and status (which call nothing that claims, emits or
# applies).

use strict;
use warnings FATAL => 'all';

use File::Basename;
use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Pooler;
use Idem::Session;
use Idem::Wait;

use constant SESSIONS => 3;

my $root = dirname(__FILE__) . '/../..';
my %left_out = map { $_ => 1 } qw(canonical hash_key install settings status);
my @files = grep { !$left_out{$_} } map { basename($_, '.sql') } sort glob "$root/test/sql/*.sql";

my $node = Idem::Cluster->start_new('main', preload => 0, conf => "max_connections = 200\n");
my $pooler = Idem::Pooler->new($node, SESSIONS);

foreach my $needed (qw(record inbox outbox))
{
	ok((grep { $_ eq $needed } @files), "$needed is one of the files");
}
regress($_) foreach @files;

my @clients = map { client('postgres') } 1 .. 6;
my %sessions = map { $clients[0]->query('SELECT pg_backend_pid()') => 1 } 1 .. SESSIONS;
is(scalar keys %sessions, SESSIONS, 'the transactions of one client run in different sessions');
races();
rolled_back();
resumed();
uncertain();
nothing_left();

$_->quit foreach @clients;
$node->stop;
done_testing;

# Runs a file of test/sql as pg_regress does, and compares with its output.
sub regress
{
	my ($file) = @_;
	my $script = portable(slurp_file("$root/test/sql/$file.sql"));
	my $expected = portable(slurp_file("$root/expected/$file.out"));
	my $output = '';

	$node->safe_psql('postgres', "CREATE DATABASE $file");
	$node->safe_psql('postgres', "ALTER DATABASE $file SET $_")
	  foreach "timezone = 'PST8PDT'", "datestyle = 'Postgres, MDY'", "intervalstyle = 'postgres_verbose'";
	$node->safe_psql($file, 'CREATE SCHEMA pooled; GRANT USAGE ON SCHEMA pooled TO PUBLIC');
	$script =~ s/^((?:SET|RESET) .*\n)/$1 x SESSIONS/gem;

	my $client = client($file);
	local $ENV{PG_ABS_SRCDIR} = folder_of_includes();
	IPC::Run::run([ 'psql', '-X', '-a', '-q', '-d', $pooler->connstr($file) ],
		'<', \$script, '>&', \$output, IPC::Run::timeout(2 * $Idem::Wait::deadline));
	$client->quit;

	s/^(?:SET|RESET) .*\n//gm foreach $output, $expected;
	ok($output eq $expected, "$file: the output is the one expected") or diag(difference($expected, $output));
	return;
}

# Helper functions, views and tables that every session sees.
sub portable
{
	my ($text) = @_;

	return $text =~ s/\bpg_temp\./pooled./gr =~ s/\bCREATE TEMP TABLE\b/CREATE TABLE/gr;
}

# What the files include, in a folder as they expect it.
sub folder_of_includes
{
	my $folder = PostgreSQL::Test::Utils::tempdir('regress');

	mkdir "$folder/$_" foreach 'sql', 'sql/include';
	append_to_file("$folder/sql/include/" . basename($_), portable(slurp_file($_)))
	  foreach glob "$root/test/sql/include/*.sql";
	return $folder;
}

sub difference
{
	my ($expected, $found) = @_;
	my $folder = PostgreSQL::Test::Utils::tempdir('difference');
	my $text = '';

	append_to_file("$folder/expected", $expected);
	append_to_file("$folder/found", $found);
	IPC::Run::run([ 'diff', '-U3', "$folder/expected", "$folder/found" ], '>', \$text);
	return substr $text, 0, 4000;
}

# A client of the pooler.  From here on the pool has all of its sessions, which
# take turns.
sub client
{
	my ($database) = @_;
	my $session = Idem::Session->new($pooler->connstr($database));

	wait_until(
		"all sessions of the pool with database $database",
		sub {
			my $count = $node->value("SELECT count(*) FROM pg_stat_activity WHERE datname = '$database'", 'template1');
			return ($count == SESSIONS, $count);
		});
	return $session;
}

sub claim
{
	my ($key, $more) = @_;

	return "SELECT outcome, attempt FROM idem_try_insert('p', '$key', sha256('$key')" . ($more ? ", $more" : '') . ')';
}

sub complete
{
	my ($key, $attempt) = @_;

	return "SELECT status, changed FROM idem_complete('p', '$key', $attempt, 201, '{\"key\": \"$key\"}'::text)";
}

# The answer that a claim gives, as text.
sub replay
{
	my ($key) = @_;

	return "SELECT outcome, status, convert_from(body, 'UTF8') FROM idem_try_insert('p', '$key', sha256('$key'))";
}

# Every client claims every key at once; who owns it completes in one
# transaction with its event; everyone gets the answer.
sub races
{
	my (%heard, %owners, %completed, %replayed);

	foreach my $key (map { "race $_" } 1 .. 20)
	{
		my %attempts;

		$_->send(claim($key)) foreach @clients;
		foreach my $client (0 .. $#clients)
		{
			my ($outcome, $attempt) = split /\|/, $clients[$client]->answer->{output};

			$heard{$outcome}++;
			$attempts{$client} = $attempt if $attempt;
		}
		$owners{$key} = join ' ', map { 'owner' } keys %attempts;
		my ($owner) = keys %attempts;
		$clients[$owner]->query('BEGIN');
		$completed{ $clients[$owner]->query(complete($key, $attempts{$owner})) }++;
		$clients[$owner]->query("SELECT outbox_emit('t', '$key', 'paid', '{}', once_key => '$key')");
		$clients[$owner]->query('COMMIT');
		$replayed{ $_->query(replay($key)) =~ s/\Q$key\E/KEY/r }++ foreach @clients;
	}
	is_deeply([ values %owners ], [ ('owner') x 20 ], 'races: one owner for each key');
	is_deeply(\%heard, { STARTED => 20, IN_PROGRESS => 100 }, 'races: the others hear IN_PROGRESS');
	is_deeply(\%completed, { '201|t' => 20 }, 'races: the owner completes, in whichever session');
	is_deeply(\%replayed, { 'REPLAY|201|{"key": "KEY"}' => 120 }, 'races: all get the answer');
	is($node->value('SELECT count(*), count(DISTINCT partition_key) FROM idem.outbox'), '20|20', 'races: an event for each key');
	return;
}

# An open claim is seen by others as long as its transaction runs, and no longer.
sub rolled_back
{
	$clients[0]->query('BEGIN');
	my $attempt = $clients[0]->query(claim('rolled back')) =~ s/.*\|//r;
	is($clients[1]->query(claim('rolled back')), 'IN_PROGRESS|', 'rolled back: others hear IN_PROGRESS');
	$clients[0]->query('ROLLBACK');
	# in each of the sessions, the one of the claim too
	is($_->try(complete('rolled back', $attempt))->{sqlstate}, 'ID001', 'rolled back: its attempt owns nothing')
	  foreach @clients[ 0 .. SESSIONS - 1 ];
	like($clients[2]->query(claim('rolled back')), qr/^STARTED/, 'rolled back: the key is free');
	return;
}

sub resumed
{
	my $attempt = $clients[0]->query(claim('resumed', "call_timeout => '10 s', dedup_window => '1 h'")) =~ s/.*\|//r;

	is($clients[0]->query("SELECT status, changed FROM idem_yield('p', 'resumed', $attempt)"), '503|t', 'resumed: the lease is given up');
	my $next = $clients[1]->query(claim('resumed', "call_timeout => '10 s', dedup_window => '1 h'"));
	like($next, qr/^RESUMED/, 'resumed: by another client');
	is($clients[0]->try(complete('resumed', $attempt))->{sqlstate}, 'ID001', 'resumed: the first is fenced off');
	is($clients[1]->query(complete('resumed', $next =~ s/.*\|//r)), '201|t', 'resumed: the second completes');
	return;
}

sub uncertain
{
	my $attempt = $clients[0]->query(claim('uncertain', "call_timeout => '1 ms'")) =~ s/.*\|//r;

	is($clients[0]->query("SELECT status, changed FROM idem_mark_unknown('p', 'uncertain', $attempt)"), '202|t', 'uncertain: UNKNOWN');
	like($clients[1]->query(replay('uncertain')), qr/^UNKNOWN\|202\|/, 'uncertain: for all');
	# idem.call_grace is 0 where the transaction says so
	is( $clients[2]->query(<<'END'), '402|t', 'uncertain: resolved');
BEGIN;
SET LOCAL idem.call_grace = 0;
SELECT status, changed FROM idem_resolve('p', 'uncertain', 'not_applied', '{}', 402, '{"key": "uncertain"}'::text);
COMMIT
END
	is($_->query(replay('uncertain')), 'REPLAY|402|{"key": "uncertain"}', 'uncertain: all get the answer') foreach @clients[ 0, 1 ];
	return;
}

# What a session of the server has once every function has run in it: no setting,
# no lock, no prepared statement and no table of its own.
sub nothing_left
{
	my $everything = <<'END';
BEGIN;
SELECT attempt FROM idem_try_insert('p', 'KEY', sha256('1'), 'p') \gset
SELECT FROM idem_try_insert_many('p', '{KEY,KEY 2}', ARRAY[sha256('1'), sha256('1')]);
SELECT FROM idem_before_call('p', 'KEY', :attempt, '1 s', '1 h');
SELECT FROM idem_mark_unknown('p', 'KEY', :attempt);
SELECT attempt FROM idem_try_insert('p', 'KEY 3', sha256('1')) \gset
SELECT FROM idem_yield('p', 'KEY 3', :attempt);
SELECT FROM idem_complete('p', 'KEY 3', :attempt, 200, '{}'::jsonb);
SELECT FROM idem_lookup('p', 'KEY 3');
SELECT FROM idem_claim_stale('p', 10);
SELECT FROM outbox_emit('t', 'k', 'e', '{}', once_key => 'KEY');
SELECT FROM inbox_apply('c', idem_uuid7());
SELECT FROM idem_sweep();
SELECT FROM idem_key('"k"'), idem_http_problem('idempotency_key_missing'), idem_step_key('s', 't'), idem_hash('{}'), idem_canonical('{}');
SELECT pg_backend_pid();
COMMIT
END
	my $left = q(SELECT pg_backend_pid(),
		(SELECT count(*) FROM pg_settings WHERE source = 'session' AND name NOT IN ('client_encoding', 'DateStyle', 'TimeZone', 'standard_conforming_strings', 'application_name')),
		(SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype NOT IN ('relation', 'virtualxid')),
		(SELECT count(*) FROM pg_prepared_statements),
		(SELECT count(*) FROM pg_class WHERE relnamespace = pg_my_temp_schema()),
		(SELECT count(*) FROM pg_listening_channels()));
	my %used = map { $clients[0]->query($everything =~ s/KEY/all $_/gr) => 1 } 1 .. SESSIONS;
	my %left = map { split /\|/, $clients[0]->query($left), 2 } 1 .. SESSIONS;

	is(scalar keys %used, SESSIONS, 'every function ran in every session');
	is_deeply([ values %left ], [ ('0|0|0|0|0') x SESSIONS ], 'and left nothing there');
	return;
}
