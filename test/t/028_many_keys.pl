# A thousand keys in one call: files in opposite order don't deadlock, and a lock
# table that is too small is a clear error that leaves nothing behind.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Wait;

use constant KEYS => 1000;

sub file
{
	my ($name, $keys, $order) = @_;

	return "SELECT outcome, count(*) FROM idem_try_insert_many('p', ARRAY(SELECT '$name ' || n FROM generate_series(1, $keys) AS n ORDER BY n $order),"
	  . " array_fill(decode(repeat('01', 32), 'hex'), ARRAY[$keys])) GROUP BY 1 ORDER BY 1";
}

# Two files of the same keys in opposite order, at the same time.
my $node = Idem::Cluster->start_new('main', preload => 0, conf => "max_locks_per_transaction = 128\n");
my ($first, $second) = ($node->session, $node->session);
my ($both, $slowest) = (0, 0);

foreach my $round (1 .. 10)
{
	my @answers;

	$slowest = (sort { $b <=> $a } $slowest, seconds_of(sub {
		$first->send(file("round $round", KEYS, 'ASC'));
		$second->send(file("round $round", KEYS, 'DESC'));
		@answers = ($first->answer, $second->answer);
	}))[0];
	my %sum;
	foreach my $answer (@answers)
	{
		is($answer->{sqlstate}, '', "round $round: no error");
		$sum{$1} += $2 while $answer->{output} =~ /^(\w+)\|(\d+)$/mg;
	}
	is_deeply(\%sum, { STARTED => KEYS, IN_PROGRESS => KEYS }, "round $round: one owner for each key");
	$both++ if 2 == grep { $_->{output} =~ /STARTED/ } @answers;
}
is($node->value("SELECT count(DISTINCT attempt) FROM idem.idempotency"), 10 * KEYS, 'an attempt number for each');
is($node->value("SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'"), 0, 'no deadlock');
cmp_ok($both, '>', 0, "in $both rounds of 10 both got some of the keys");
note("the slowest round of two files took $slowest s");

# Transactions left open, so that locks are held until their end.
$_->query('BEGIN') foreach $first, $second;
like($first->query(file('open', KEYS, 'ASC')), qr/^STARTED\|1000$/, 'a file is claimed');
is($first->query("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), KEYS, 'each claim holds a lock');
like($second->query(file('open', KEYS, 'DESC')), qr/^IN_PROGRESS\|1000$/, 'the other hears IN_PROGRESS');
is($first->query("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), KEYS, 'and holds no lock');
$_->query('ROLLBACK') foreach $first, $second;
$_->quit foreach $first, $second;
$node->stop;

# A small lock table, once the extension is there: the call fails as a whole, says
# which setting, and the server goes on.
my $small = Idem::Cluster->start_new('small', preload => 0);
$small->append_conf('postgresql.conf', <<'EOF_CONF');
max_locks_per_transaction = 10
max_connections = 5
superuser_reserved_connections = 0
max_worker_processes = 0
autovacuum_max_workers = 1
max_prepared_transactions = 0
EOF_CONF
$small->restart;
my $session = $small->session;

$session->query("SELECT outcome FROM idem_try_insert('p', 'before', decode(repeat('01', 32), 'hex'))");
$session->query('BEGIN');
$session->query("SELECT outcome FROM idem_try_insert('p', 'same transaction', decode(repeat('01', 32), 'hex'))");
my $answer = $session->try(file('overflow', KEYS, 'ASC'));
is($answer->{sqlstate}, '53200', 'lock table full: 53200');
like($answer->{error}, qr/HINT: .*max_locks_per_transaction/, 'lock table full: the hint names the setting');
$session->query('COMMIT');
is($session->query('SELECT string_agg(idempotency_key, $$,$$) FROM idem.idempotency'), 'before', 'lock table full: nothing of the transaction is written');
is($session->query("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), 0, 'lock table full: no lock is left');
like($session->query(file('smaller', 50, 'ASC')), qr/^STARTED\|50$/, 'a smaller file passes');
like($session->query("SELECT outcome FROM idem_try_insert('p', 'after', decode(repeat('01', 32), 'hex'))"), qr/^STARTED$/, 'and so does a single claim');

$session->quit;
$small->stop;
done_testing;
