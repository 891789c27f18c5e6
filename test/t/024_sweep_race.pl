# The sweep against renewals: a record whose owner was told that it may call is
# still there afterwards, however close the sweep was.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;

use constant RECORDS => 1000;

my $node = Idem::Cluster->start_new('main', preload => 0, conf => "autovacuum = off\n");
my ($owner, $sweeper, $other) = ($node->session, $node->session, $node->session);

$node->value('CREATE TABLE todo (idempotency_key text, attempt bigint); CREATE TABLE called (idempotency_key text, attempt bigint); CREATE TABLE turned_away (idempotency_key text); CREATE TABLE swept (records int)');

# Every record in progress has expired by the clock of the sweepers, who are ten
# days ahead, and is alive by that of its owners.
$_->query('SET idem.test_clock = 864000000') foreach $sweeper, $other;

# 1. One record, and the renewal between the sweep's look and its lock.  A strict
# level has the look at the transaction's first statement.
foreach my $level ('REPEATABLE READ', 'SERIALIZABLE')
{
	my $attempt = $owner->query(q{SELECT attempt FROM idem_try_insert('p', 'one', decode(repeat('01', 32), 'hex'))});

	$sweeper->query("BEGIN ISOLATION LEVEL $level");
	is($sweeper->query('SELECT count(*) FROM idem.idempotency'), 1, "$level: the sweep sees an expired record");
	$owner->query("SELECT idem_before_call('p', 'one', $attempt, '10 s')");
	my $answer = $sweeper->try('SELECT records FROM idem_sweep()');
	is($answer->{sqlstate}, '40001', "$level: it does not sweep what changed since");
	like($answer->{error}, qr/HINT: .*again/, "$level: and says what to do");
	$sweeper->query('ROLLBACK');
	is($sweeper->query('SELECT records FROM idem_sweep()'), 0, "$level: nor the next time");
	is($owner->query("SELECT state FROM idem.idempotency WHERE attempt = $attempt AND call_started_at IS NOT NULL"),
		'IN_PROGRESS', "$level: the record is there");
	$owner->query('DELETE FROM idem.idempotency');
}

# 2. Many records: an owner renews one after the other, several in a transaction,
# while two sweepers come from the other end; they meet in the middle.
$owner->query("SELECT count(*) FROM generate_series(1, @{[RECORDS]}) AS n, LATERAL idem_try_insert('p', 'k' || n, decode(repeat('01', 32), 'hex'), 'race')");
$owner->query('INSERT INTO todo SELECT idempotency_key, attempt FROM idem.idempotency');
$owner->send(q{
DO $$
DECLARE
	r record;
BEGIN
	FOR r IN SELECT idempotency_key AS key, attempt FROM todo ORDER BY attempt DESC LOOP
		BEGIN
			PERFORM idem_before_call('p', r.key, r.attempt, '1 h');
			INSERT INTO called VALUES (r.key, r.attempt);
		EXCEPTION WHEN SQLSTATE 'ID001' THEN
			INSERT INTO turned_away VALUES (r.key);
		END;
		IF r.attempt % 10 = 0 THEN
			COMMIT;
		END IF;
	END LOOP;
END
$$});
my $records = RECORDS;
$_->send(<<"EOF_SQL") foreach $sweeper, $other;
DO \$\$
DECLARE
	n bigint;
BEGIN
	LOOP
		SELECT records INTO n FROM idem_sweep(1);
		INSERT INTO swept VALUES (n);
		COMMIT;
		EXIT WHEN n = 0 AND (SELECT count(*) FROM called) + (SELECT count(*) FROM turned_away) = $records;
	END LOOP;
END
\$\$
EOF_SQL
is($_->answer->{sqlstate}, '', 'no session had an error') foreach $owner, $sweeper, $other;

my ($called, $away, $swept) = map { $node->value($_) } 'SELECT count(*) FROM called', 'SELECT count(*) FROM turned_away', 'SELECT sum(records) FROM swept';
is($called + $away, RECORDS, 'each owner was told to call, or that its record is gone');
is($swept, $away, 'as many records were swept as owners were turned away');
is($node->value(q{SELECT count(*) FROM called WHERE NOT EXISTS (SELECT FROM idem.idempotency AS r WHERE r.idempotency_key = called.idempotency_key AND r.attempt = called.attempt AND r.state = 'IN_PROGRESS' AND r.call_started_at IS NOT NULL)}),
	0, 'whoever was told to call has its record, with the mark');
is($node->value('SELECT count(*) FROM idem.idempotency'), $called, 'and there is no other');
cmp_ok($called, '>', 0, "$called owners were in time");
cmp_ok($swept, '>', 0, "$swept records were swept first");

# By the clock of the sweepers they have all expired long ago; none goes.
is($sweeper->query('SELECT records FROM idem_sweep(10000)'), 0, 'what may have been called is never swept');

$_->quit foreach $owner, $sweeper, $other;
$node->stop;
done_testing;
