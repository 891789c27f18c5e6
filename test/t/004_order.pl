# 10,000 rows of 100 keys, written by ten sessions at once, arrive complete and
# for each key in the order of seq; also when workers end on the way.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Consumer;
use Idem::Kafka;
use Idem::Wait;

my $seed = $ENV{IDEM_SEED} // 1;
note "seed $seed";

my $kafka = Idem::Kafka->new;
$kafka->create_topic('calm', 6);
$kafka->create_topic('storm', 6);
$kafka->create_topic('crowd', 6);
my $node = Idem::Cluster->start_new('main', kafka => $kafka);
$node->wait_state('running');

# Each of ten clients has ten keys of its own: two transactions of one key that
# commit against the order of their seq have no order to keep.  Two transactions
# write 1 + 4 rows, 5 x 200 x 10 = 10,000 in all.
sub script
{
	my ($topic) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir() . "/$topic.sql";

	append_to_file($file, <<EOF_SQL);
\\set key :client_id * 10 + random(0, 9)
\\set other :client_id * 10 + random(0, 9)
SELECT outbox_emit('$topic', 'key-' || :key, 'e', jsonb_build_object('k', :key));
BEGIN;
INSERT INTO idem.outbox (topic, partition_key, payload)
	SELECT '$topic', 'key-' || (CASE WHEN i < 3 THEN :key ELSE :other END), to_jsonb(i) FROM generate_series(1, 3) AS i;
INSERT INTO idem.outbox (topic, payload) VALUES ('$topic', '"no key"');
END;
EOF_SQL
	return $file;
}

sub pgbench_command
{
	my ($topic, $clients, $transactions) = @_;

	return (
		'pgbench', '--no-vacuum', '--client', $clients, '--jobs', 2, '--transactions', $transactions,
		'--random-seed', $seed, '--file', script($topic), $node->connstr('postgres'));
}

# Complete, in order by seq for each key once repeats are removed, and each key
# in one partition.
sub check_topic
{
	my ($topic, $most) = @_;
	my @rows = grep { $_->{topic} eq $topic } $node->outbox;
	my %seq = map { $_->{event_id} => $_->{seq} } @rows;
	my (%times, %last, %partition, @overtaken, @split);

	foreach my $record (read_topic($kafka, $topic))
	{
		my $id = header($record, 'ce_id');
		my $key = $record->{key};

		next if $times{$id}++ || !defined $key;
		push @overtaken, "$key: $seq{$id} after $last{$key}" if ($last{$key} // 0) > $seq{$id};
		push @split, $key if ($partition{$key} //= $record->{partition}) != $record->{partition};
		$last{$key} = $seq{$id};
	}
	is(scalar @rows, 10_000, "$topic: 10,000 rows were written");
	is(scalar(grep { !defined $_->{key} } @rows), 2_000, "$topic: 2,000 of them without a key");
	is(scalar(grep { exists $times{ $_->{event_id} } } @rows), 10_000, "$topic: every row was read");
	is(scalar keys %times, 10_000, "$topic: and nothing else");
	is_deeply([ grep { $_ > $most } values %times ], [], "$topic: none more than $most times");
	is(scalar keys %last, 100, "$topic: of 100 keys");
	is_deeply(\@overtaken, [], "$topic: for each key in the order of seq");
	is_deeply(\@split, [], "$topic: each key in one partition");
	return;
}

system_or_bail(pgbench_command('calm', 10, 200));
$node->wait_published;
check_topic('calm', 1);
is($node->relay_status->{failed}, 0, 'no delivery failed');

# The same while workers are ended: the order holds, repeats are allowed.
my $pgbench = IPC::Run::start([ pgbench_command('storm', 10, 200) ], '>', '/dev/null', '2>', \my $errors);
my $ended = 0;
foreach my $part (1 .. 3)
{
	wait_until(
		"part $part of the rows is published",
		sub {
			my $n = $node->value(q{SELECT count(*) FROM idem.outbox WHERE topic = 'storm' AND published_at IS NOT NULL});
			return ($n >= 2000 * $part, $n);
		});
	$node->value('SELECT pg_terminate_backend(' . $node->wait_new_worker(0) . ')');
	$ended++;
}
ok($pgbench->finish, 'writers notice nothing') or diag $errors;
$node->wait_published;
is(scalar(() = slurp_file($node->logfile) =~ /idem relay[^\n]* exited with exit code 1/g), $ended, 'three workers were ended');
check_topic('storm', 4);

# Many more commits, because overtaking takes one that falls between the relay's
# look at the hints and its snapshot.  So many are compared where the marks say
# that Kafka has them.
system_or_bail(pgbench_command('crowd', 24, 600));
$node->wait_published;
is($node->value(<<'EOF_SQL'), 0, 'crowd: for each key in the order of seq');
SELECT count(*) FROM (
	SELECT seq, lag(seq) OVER (PARTITION BY partition_key ORDER BY kafka_offset) AS before
	FROM idem.outbox WHERE topic = 'crowd' AND partition_key IS NOT NULL) AS o
WHERE seq < before
EOF_SQL
is($node->value(q{SELECT count(DISTINCT (kafka_partition, kafka_offset)) FROM idem.outbox WHERE topic = 'crowd'}),
	24 * 600 * 5, 'crowd: every row has a place of its own in Kafka');

$node->stop;
done_testing;
