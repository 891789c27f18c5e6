# Settings: what is missing is said with a hint, what is malformed is refused,
# and what changes takes effect.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Consumer;
use Idem::Kafka;
use Idem::Wait;

my $hash = "decode(repeat('01', 32), 'hex')";

# Not preloaded; leftover lines in postgresql.conf are no error.
my $plain = Idem::Cluster->start_new(
	'plain', preload => 0,
	conf => "idem.databases = 'postgres'\nidem.kafka_brokers = '127.0.0.1:9092'\n");
my $status = $plain->relay_status;
is($status->{state}, 'not preloaded', 'not preloaded: the state says so');
like($status->{hint}, qr/shared_preload_libraries/, 'not preloaded: the hint names the setting');
is($status->{pid}, '', 'not preloaded: no worker');
is($plain->value('SELECT idem_relay_sweep()'), 'f', 'not preloaded: nobody hears a sweep');
is($plain->value("SELECT outcome FROM idem_try_insert('p', 'k', $hash)"), 'STARTED', 'not preloaded: a claim works');
is($plain->value(q{SELECT changed FROM idem_complete('p', 'k', (SELECT attempt FROM idem.idempotency), 200, 'done'::text)}),
	't', 'not preloaded: so does a completion');
is($plain->value(q{SELECT inbox_apply('c', idem_uuid7())}), 't', 'not preloaded: so does the inbox');
$plain->emit('t', payload => '1');
is($plain->value('SELECT count(*) FROM idem.outbox WHERE published_at IS NULL'), 1, 'not preloaded: events wait');
$plain->stop;

# Preloaded, and no brokers.
my $node = Idem::Cluster->start_new('main');
$node->value('CREATE DATABASE other');
$node->value('CREATE EXTENSION idem CASCADE', 'other');
$status = $node->wait_state('no brokers');
like($status->{hint}, qr/idem\.kafka_brokers/, 'no brokers: the hint names the setting');
$node->emit('t', payload => '"waits"');
is($node->value('SELECT idem_relay_sweep()'), 't', 'no brokers: a sweep is heard');
is($node->value('SELECT count(*) FROM idem.outbox WHERE published_at IS NULL'), 1, 'no brokers: events wait');
my @messages = slurp_file($node->logfile) =~ /(?:LOG|WARNING):  .*idem\.kafka_brokers.*\n.*HINT:  .*\w/g;
is(scalar @messages, 1, 'no brokers: the log says it once, with a hint') or diag "@messages";

# Another database.
$status = $node->relay_status('other');
is($status->{state}, 'not enabled', 'not enabled: the state says so');
like($status->{hint}, qr/idem\.databases/, 'not enabled: the hint names the setting');
is($node->value('SELECT idem_relay_sweep()', 'other'), 'f', 'not enabled: nobody hears a sweep');

# Malformed and out of range.
foreach my $case (
	[ 'idem.kafka_brokers', 'two words:9092' ],
	[ 'idem.kafka_brokers', ':9092' ],
	[ 'idem.kafka_brokers', 'host:' ],
	[ 'idem.kafka_brokers', 'host:port' ],
	[ 'idem.kafka_brokers', 'host:0' ],
	[ 'idem.kafka_brokers', 'host:65536' ],
	[ 'idem.kafka_brokers', 'host:9092,,other:9092' ],
	[ 'idem.kafka_brokers', 'kafka://host:9092' ],
	[ 'idem.databases', 'one,,two' ],
	[ 'idem.databases', '"one' ],
	[ 'idem.databases', 'one, two, one' ])
{
	my ($name, $value) = @$case;
	my $answer = $node->try("ALTER SYSTEM SET $name = '$value'");

	is($answer->{sqlstate}, '22023', "$name = '$value' is refused");
	like($answer->{error}, qr/(?:DETAIL|HINT):.*\w/, "$name = '$value': it is said why");
}
foreach my $case (
	[ 'idem.lease', '0' ], [ 'idem.lease', '2 days' ], [ 'idem.lease', 'soon' ],
	[ 'idem.call_margin', '-1' ], [ 'idem.max_tries', '0' ],
	[ 'idem.max_response_bytes', '-1' ], [ 'idem.response_retention', '0' ], [ 'idem.record_retention', '0' ])
{
	my ($name, $value) = @$case;

	is($node->try("SET $name = '$value'")->{sqlstate}, '22023', "$name = '$value' is refused");
}
is($node->value('SHOW idem.lease'), '30s', 'what was refused changed nothing');
is($node->try('SET idem.leese = 1')->{sqlstate}, '42602', 'a setting that does not exist is refused');

# Brokers that come, change and go with a reload.
my ($one, $two) = (Idem::Kafka->new, Idem::Kafka->new);
$_->create_topic('t', 1) foreach $one, $two;
$node->set('idem.kafka_brokers' => $one->brokers);
$node->wait_published;
$status = $node->wait_state('running');
is($status->{brokers}, $one->brokers, 'the view names the brokers in use');
is(scalar(read_topic($one, 't')), 1, 'a reload brings brokers: what waited is published');

# The worker, as operators see it.
my ($activity) = $node->rows(q{SELECT datname, application_name, backend_type, backend_xmin, xact_start, usename
	FROM pg_stat_activity WHERE backend_type = 'idem relay'});
is_deeply(
	{ map { $_ => $activity->{$_} } qw(datname application_name backend_xmin xact_start) },
	{ datname => 'postgres', application_name => 'idem relay', backend_xmin => undef, xact_start => undef },
	'the idle worker is in pg_stat_activity and holds no transaction');
is($node->value(q{SELECT count(*) FROM pg_locks AS l JOIN pg_stat_activity AS a USING (pid)
	WHERE a.backend_type = 'idem relay'}), 0, 'it holds no lock');

$node->set('idem.kafka_brokers' => $two->brokers);
wait_until('the worker uses the other brokers',
	sub { my $seen = $node->relay_status; return ($seen->{brokers} eq $two->brokers, $seen) });
$node->emit('t', payload => '"moved"');
$node->wait_published;
is(scalar(read_topic($two, 't')), 1, 'a reload with other brokers: events go there');
is(scalar(read_topic($one, 't')), 1, 'and no longer to the first');

# A line that is wrong leaves what was there.
$node->append_conf('postgresql.auto.conf', "idem.kafka_brokers = 'no broker at all'\n");
$node->reload;
wait_until('the server complains', sub { return slurp_file($node->logfile) =~ /invalid value for parameter "idem.kafka_brokers"/ });
$node->emit('t', payload => '"still"');
$node->wait_published;
is(scalar(read_topic($two, 't')), 2, 'a malformed line in the file changes nothing');
$node->set('idem.kafka_brokers' => '');
$node->wait_state('no brokers');
pass('an empty list: the relay waits again');

# Names of databases: quoted, not there.
$node->value('CREATE DATABASE "My, Shop"');
$node->value('CREATE EXTENSION idem CASCADE', 'My, Shop');
$node->value(q{ALTER SYSTEM SET idem.databases = 'postgres, "My, Shop", absent'});
$node->set('idem.kafka_brokers' => $one->brokers);
$node->restart;
$node->wait_state('running', 'My, Shop');
$node->wait_state('running');
$node->emit('t', payload => '"shop"', database => 'My, Shop');
$node->emit('t', payload => '"post"');
$node->wait_published($_) foreach 'My, Shop', 'postgres';
is(scalar(read_topic($one, 't')), 3, 'each database has a relay');
is($node->value(q{SELECT string_agg(datname, '; ' ORDER BY datname) FROM pg_stat_activity WHERE backend_type = 'idem relay' AND datname IS NOT NULL}),
	'My, Shop; postgres', 'and only one');
like(slurp_file($node->logfile), qr/database "absent" does not exist/, 'the log says which database is not there');

$node->stop;
done_testing;
