# Events of a key that many transactions write at once: ordered, they are
# published in the order of their seq, which is the order of the commits.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Events;
use Idem::Kafka;
use Idem::Wait;

my $kafka = Idem::Kafka->new;
$kafka->create_topic($_, 2) foreach qw(ordered unordered);
my $node = Idem::Cluster->start_new('main', kafka => $kafka);
$node->wait_state('running');

# Three keys; between the event and the commit there is some work to do, of a
# length that differs.
foreach my $topic (qw(unordered ordered))
{
	my $script = PostgreSQL::Test::Utils::tempdir() . "/$topic.sql";
	my $ordered = $topic eq 'ordered' ? 'true' : 'false';

	append_to_file($script, <<"EOF_SQL");
\\set key random(1, 3)
\\set work random(1, 20000)
BEGIN;
SELECT outbox_emit('$topic', 'key-' || :key, 'e', '1', ordered => $ordered);
SELECT count(*) FROM generate_series(1, :work);
COMMIT;
EOF_SQL
	system_or_bail('pgbench', '--no-vacuum', '--client', 12, '--jobs', 2, '--transactions', 100, '--file', $script, $node->connstr('postgres'));
	$node->wait_published;
}
delivered_ok(compare($node, $kafka, 'ordered'), 'ordered', rows => 1200, published => 1200, repeats => 0);
my $overtaken = @{ compare($node, $kafka, 'unordered')->{overtaken} };
cmp_ok($overtaken, '>', 0, "without it, $overtaken of 1,200 came behind a higher seq of their key: the transactions committed so");
is($node->value(q{SELECT to_jsonb(s) ->> 'order_violations' FROM idem.relay_status AS s}), 0,
	'which are no violations of what the relay promises');

$node->stop;
done_testing;
