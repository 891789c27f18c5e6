# The inbox: an event's effect happens once, whatever order two deliveries of it
# come in.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Wait;

my $node = Idem::Cluster->start_new('main', preload => 0);
$node->value('CREATE TABLE seat (event_id uuid, delivery text)');
my ($first, $second) = ($node->session, $node->session);

# One delivery: the inbox row and, when it is new, its effect.
sub apply
{
	my ($id, $delivery) = @_;

	return "INSERT INTO seat SELECT '$id', '$delivery' WHERE inbox_apply('enrollment', '$id') RETURNING 'applied'";
}

sub effects { return $node->value("SELECT string_agg(delivery, ' ' ORDER BY delivery) FROM seat WHERE event_id = '$_[0]'") }

sub waits_for_lock
{
	my ($session) = @_;

	wait_until(
		'the second delivery waits for the first',
		sub { my $seen = $node->value('SELECT wait_event_type FROM pg_stat_activity WHERE pid = ' . $session->pid); return ($seen eq 'Lock', $seen) });
	return;
}

# One after the other, for ids of every kind.
my %ids = (
	'version 7' => $node->value('SELECT idem_uuid7()'),
	'version 4' => $node->value('SELECT gen_random_uuid()'),
	'nil' => '00000000-0000-0000-0000-000000000000',
	'version 7 of 1970' => '00000000-0000-7000-8000-000000000000',
	'version 7 of the year 10889' => 'ffffffff-ffff-7fff-bfff-ffffffffffff');
foreach my $kind (sort keys %ids)
{
	is($first->query(apply($ids{$kind}, 'first')), 'applied', "$kind: the first delivery is applied");
	is($second->query(apply($ids{$kind}, 'second')), '', "$kind: the second is a repeat");
	is($first->query(apply($ids{$kind}, 'third')), '', "$kind: so is a third");
	is(effects($ids{$kind}), 'first', "$kind: one effect");
}
is($first->query("SELECT inbox_apply('other', '$ids{nil}')"), 't', 'another consumer applies it for itself');

# At once, the first commits.
my $id = $node->value('SELECT idem_uuid7()');
$first->query('BEGIN');
is($first->query(apply($id, 'first')), 'applied', 'two at once: the first is applied');
$second->query('BEGIN');
$second->send(apply($id, 'second'));
waits_for_lock($second);
$first->query('COMMIT');
is($second->answer->{output}, '', 'first commits: the second is a repeat');
$second->query('COMMIT');
is(effects($id), 'first', 'one effect');

# At once, the first rolls back.
$id = $node->value('SELECT idem_uuid7()');
$first->query('BEGIN');
$first->query(apply($id, 'first'));
$second->query('BEGIN');
$second->send(apply($id, 'second'));
waits_for_lock($second);
$first->query('ROLLBACK');
is($second->answer->{output}, 'applied', 'first rolls back: the second is applied');
$second->query('COMMIT');
is(effects($id), 'second', 'one effect');

# At once, the second does not want to wait for ever.
$id = $node->value('SELECT idem_uuid7()');
$first->query('BEGIN');
$first->query(apply($id, 'first'));
is($second->try("SET lock_timeout = '50ms'; " . apply($id, 'second'))->{sqlstate}, '55P03', 'lock_timeout ends the wait');
$second->query('RESET lock_timeout');
$first->query('ROLLBACK');
is($second->query(apply($id, 'again')), 'applied', 'a later delivery is applied');

# With a snapshot from before the other delivery committed, the answer can't be
# told: an error that says to run again.
foreach my $level ('REPEATABLE READ', 'SERIALIZABLE')
{
	$id = $node->value('SELECT idem_uuid7()');
	$second->query("BEGIN ISOLATION LEVEL $level; SELECT count(*) FROM seat");
	$first->query(apply($id, 'first'));
	my $answer = $second->try(apply($id, 'second'));
	is($answer->{sqlstate}, '40001', "$level: the other delivery committed meanwhile");
	like($answer->{error}, qr/HINT/, "$level: with a hint");
	$second->query('ROLLBACK');
	is(effects($id), 'first', "$level: one effect");
}

# A crash forgets what was not committed, and only that.
my $kept = $node->value('SELECT idem_uuid7()');
$id = $node->value('SELECT idem_uuid7()');
$first->query(apply($kept, 'first'));
$first->query('BEGIN');
$first->query(apply($id, 'first'));
$node->crash;
$_->quit foreach $first, $second;
$node->start;
is($node->value(apply($kept, 'second')), '', 'after a crash: what was committed is a repeat');
is($node->value(apply($id, 'second')), 'applied', 'after a crash: what was not is applied');
is(effects($kept) . ' ' . effects($id), 'first second', 'one effect each');

$node->stop;
done_testing;
