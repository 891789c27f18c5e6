# The table of records is altered, or its indexes are built anew, while claims go
# on: they wait for the table like any statement, and then hear what is true.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Wait;

my $node = Idem::Cluster->start_new('main', preload => 0);
my ($owner, $client) = map { $node->session } 1 .. 2;
my $hash = "decode(repeat('01', 32), 'hex')";

sub claim { return "SELECT outcome FROM idem_try_insert('p', '$_[0]', $hash)" }

# Whether a session waits for a lock, or has its answer already.
sub stands
{
	my ($session) = @_;

	wait_until('the other session waits for a lock, or has answered', sub {
		$session->answered || $node->value('SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $session->pid) eq 'Lock';
	});
	return !$session->answered;
}

$node->safe_psql('postgres', "SELECT idem_complete('p', 'answered', (SELECT attempt FROM idem_try_insert('p', 'answered', $hash)), 200, 'x'::text)");

# ALTER TABLE writes every row anew, and a snapshot from before does not show them.
my %reads = (
	'idem_lookup' => [ '', "SELECT outcome FROM idem_lookup('p', 'answered')" ],
	'a replay in a read-only transaction' => [ 'BEGIN READ ONLY', claim('answered') ],
	'a replay' => [ '', claim('answered') ]);
foreach my $what (sort keys %reads)
{
	my ($before, $sql) = @{ $reads{$what} };

	$owner->query('BEGIN; ALTER TABLE idem.idempotency ALTER COLUMN response_size TYPE bigint USING response_size + 0');
	$client->query($before) if $before;
	$client->send($sql);
	ok(stands($client), "$what waits for ALTER TABLE");
	$owner->query('COMMIT');
	is($client->answer->{output}, 'REPLAY', "$what finds the record that was written anew");
	$client->query('ROLLBACK') if $before;
}

# REINDEX locks the table, then its indexes; a replay leaves no lock on one.
$client->query('BEGIN');
$client->query(claim('answered'));
$owner->send('REINDEX TABLE idem.idempotency');
stands($owner);
my $claim = $client->try(claim('new'));
is($claim->{sqlstate} || $claim->{output}, 'STARTED', 'a replay and a claim in one transaction don\'t deadlock with REINDEX');
$client->query('COMMIT');
is($owner->answer->{sqlstate}, '', 'nor does REINDEX with them');
is($node->value("SELECT count(*) FROM idem.idempotency"), '2', 'both records are there');

$_->quit foreach $owner, $client;
$node->stop;
done_testing;
