# The relay where it is easily got wrong: several leaves at once, rows that take
# the place of others, rows that can't be sent, and errors at bad moments.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Consumer;
use Idem::Kafka;
use Idem::Wait;

my $kafka = Idem::Kafka->new;
$kafka->create_topic('t', 1);
my $node = Idem::Cluster->start_new('main', kafka => $kafka, conf => "autovacuum = off\n");
$node->wait_state('running');

# The worker sleeps when it has nothing to do: it begins no transaction between
# many looks at it.
sub comes_to_rest
{
	my ($when) = @_;
	my ($last, $same) = ('', 0);

	wait_until("$when: the worker comes to rest",
		sub {
			my $now = $node->value(q(SELECT state, query_start, wait_event FROM pg_stat_activity WHERE backend_type = 'idem relay'));
			$same = $now eq $last && $now =~ /^idle/ ? $same + 1 : 0;
			$last = $now;
			return ($same >= 10, $now);
		});
	pass("$when: the worker comes to rest");
	return;
}

sub values_read { return join(' ', map { $_->{value} // 'NULL' } read_topic($kafka, 't')) }

# Rows of several leaves go out in the order of seq, and the worker then rests.
$node->value(q(INSERT INTO idem.outbox (topic, partition_key, payload, slot)
	SELECT 't', 'k', to_jsonb(i), i % 2 + 10 FROM generate_series(1, 10) AS i));
$node->wait_published;
is(values_read(), join(' ', 1 .. 10), 'rows of two leaves are published in the order of seq');
comes_to_rest('two leaves');
$node->value(q(INSERT INTO idem.outbox (topic, partition_key, payload, slot)
	SELECT 't', 'k', to_jsonb(10 + i), (i * 37) % 64 FROM generate_series(1, 640) AS i));
$node->wait_published;
is(values_read(), join(' ', 1 .. 650), 'rows of all leaves are published in the order of seq');
comes_to_rest('all leaves');

# Far ends of seq.
my @far = ('9223372036854775807', '1000000000000', '-9223372036854775808', '0');
$node->value("INSERT INTO idem.outbox (seq, topic, payload) SELECT seq, 't', to_jsonb(seq) FROM unnest('{" . join(',', @far) . "}'::bigint[]) AS seq");
$node->wait_published;
is(join(' ', sort split / /, (values_read() =~ s/^.*? 650 //r)), join(' ', sort @far), 'the lowest and the highest seq are published');
comes_to_rest('far ends of seq');

# Other rows with the same seq and place, while the old ones are in flight.
my $before = scalar(read_topic($kafka, 't'));
$node->value('TRUNCATE idem.outbox');
$kafka->kill9;
$node->value(q(INSERT INTO idem.outbox (seq, topic, payload) SELECT i, 't', to_jsonb('old' || i) FROM generate_series(1, 3) AS i));
wait_until('the old rows are in flight', sub { my $seen = $node->relay_status->{in_flight}; return ($seen == 3, $seen) });
$node->value('TRUNCATE idem.outbox');
$node->value(q(INSERT INTO idem.outbox (seq, topic, payload) SELECT i, 't', to_jsonb('new' || i) FROM generate_series(1, 3) AS i));
wait_until('the new rows are in flight, too', sub { my $seen = $node->relay_status->{in_flight}; return ($seen == 6, $seen) });
$kafka->start;
$node->wait_published;
my @after = map { $_->{value} } read_topic($kafka, 't');
splice @after, 0, $before;
is(scalar(grep { $_ eq '"new1"' || $_ eq '"new2"' || $_ eq '"new3"' } @after), 3, 'rows that took the place of others are published');
is($node->value(q(SELECT count(*) FROM idem.outbox WHERE published_at IS NOT NULL AND kafka_offset IS NOT NULL)), '3', 'and marked once they were');

# A row that can't be made into a record: its text would take a gigabyte.
my $huge = '[' . join(',', ('1e131071') x 9000) . ']';
$node->value("INSERT INTO idem.outbox (topic, payload) VALUES ('t', '\"before\"'), ('t', '$huge'), ('t', '\"behind\"')");
wait_until('the rows around a broken one are published',
	sub { my $seen = $node->value('SELECT count(*) FROM idem.outbox WHERE published_at IS NULL'); return ($seen eq '1', $seen) });
$node->wait_state('retrying');
like($node->relay_status->{last_error}, qr/too large/, 'the view says why the broken row waits');
is($node->value(q(SELECT count(*) FROM idem.outbox WHERE payload = '"behind"' AND published_at IS NOT NULL)), '1', 'the row behind it is not held up');
my $rss = slurp_file('/proc/' . $node->relay_status->{pid} . '/status') =~ /VmHWM:\s+(\d+) kB/ ? $1 : die 'no VmHWM';
cmp_ok($rss, '<', 200_000, "the worker stays small ($rss kB)");
$node->value(q(DELETE FROM idem.outbox WHERE published_at IS NULL));
$node->wait_state('running');

# A cancelled worker goes on.
my $worker = $node->relay_status->{pid};
$node->value("SELECT pg_cancel_backend($worker)");
$node->emit('t', payload => '"cancelled"');
$node->wait_published;
is($node->relay_status->{pid}, $worker, 'pg_cancel_backend does not end the worker');

# A first read that fails is tried again, without another commit.
# A process that starts would wait for this lock itself if it had to load the catalogs:
# the file that saves it that is there after a connection, until a vacuum of a catalog.
my ($locker, $other) = ($node->session, $node->session);
$locker->query('BEGIN');
$locker->query('LOCK TABLE pg_catalog.pg_extension IN ACCESS EXCLUSIVE MODE');
$other->query("INSERT INTO idem.outbox (topic, payload) VALUES ('t', '\"late\"')");
$other->query("SELECT pg_terminate_backend($worker)");
wait_until('the new worker has failed to read',
	sub { my $log = slurp_file($node->logfile); return (scalar($log =~ /canceling statement due to lock timeout.*canceling statement due to lock timeout/s), substr($log, -300)) });
$locker->query('ROLLBACK');
$node->wait_published;
pass('a failed first read is tried again');

# A lock on the outbox delays marks; the acknowledgements are kept.
$kafka->freeze;
my $id = $node->emit('t', payload => '"acknowledged"');
wait_until('the row is in flight', sub { my $seen = $node->relay_status->{in_flight}; return ($seen == 1, $seen) });
$locker->query('BEGIN');
$locker->query('LOCK TABLE idem.outbox IN SHARE MODE');
$kafka->thaw;
$node->wait_state('retrying');
is($node->value("SELECT published_at FROM idem.outbox WHERE event_id = '$id'"), '', 'a row that is locked is not marked');
$locker->query('COMMIT');
$node->wait_published;
is(scalar(grep { $_ eq $id } event_ids(read_topic($kafka, 't'))), 1, 'it is marked later, and was sent once');

$node->stop;
done_testing;
