# The code in README.md, run as it stands there: the two minutes of SQL and
# Python, and the privileges.

use strict;
use warnings FATAL => 'all';

use File::Basename;
use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;

my $readme = slurp_file(dirname(__FILE__) . '/../../README.md');

# The blocks of a language below a heading, in their order.
sub blocks
{
	my ($heading, $language) = @_;
	my ($section) = $readme =~ /^#+ \Q$heading\E\n(.*?)(?=^##|\z)/ms;
	my @blocks = ($section // '') =~ /^```$language\n(.*?)^```$/msg;

	die "README.md has no $language below \"$heading\"" unless @blocks;
	return @blocks;
}

my $node = Idem::Cluster->start_new('main', preload => 0);

# SQL: every block in one session, and what it prints.
my @sql = blocks('Sixty seconds of SQL', 'sql');
is($node->value(shift @sql), 'STARTED|t|1|', 'the first request is to be run');
like($node->value(shift @sql), qr/^201\|\\x7b.*\n[0-9a-f-]{36}$/s, 'it is completed, and its event written');
is($node->value(shift @sql), qq(REPLAY|f|201|{"payment": "p-1"}\nMISMATCH|f|409), 'the retry is a replay, another request is refused');
is($node->value(shift @sql), "t\nf", 'the event is applied once');
is(scalar @sql, 0, 'no block is left untested');
is($node->value('SELECT count(*), min(topic) FROM idem.outbox'), '1|payments.payment-authorized', 'one event');

# Python: two requests under one key, one declined one.
my ($python) = blocks('Sixty seconds of Python', 'python');
my $program = $python . <<'END';


import sys

calls = []


def bank(verdict):
    def call(key, request):
        calls.append(key)
        return verdict
    return call


def show(answer):
    status, headers, body = answer
    print(status, headers, body.decode())


request = '{"offering": 7, "amount": 49.90}'
show(pay(sys.argv[1], 'bela', 'key-1', request, bank(True)))
show(pay(sys.argv[1], 'bela', 'key-1', request, bank(True)))
show(pay(sys.argv[1], 'bela', 'key-2', request, bank(False)))
print('calls:', *calls)
END
my ($out, $err) = run_command([ '/usr/bin/python3', '-c', $program, $node->connstr('postgres') ]);
is($err, '', 'the Python program raises no error');
my $json = "[['content-type', 'application/json']]";
my $replayed = "[['content-type', 'application/json'], ['idempotent-replayed', 'true']]";
my $body = qr/\{"payment": "[0-9a-f-]{36}"\}/;
like($out, qr/^201 \Q$json\E ($body)\n201 \Q$replayed\E \g1\n402 \Q$json\E $body\ncalls: key-1 key-2$/, 'one call, the same bytes, and a decline');
is($node->value('SELECT count(*) FROM idem.outbox'), '2', 'one more event, none for the decline');

# Privileges: a role with what the README grants can do all of it, and no more.
$node->safe_psql('postgres', $_) foreach blocks('Privileges', 'sql');
is( $node->value(
		q(SET ROLE shop_app;
		SELECT outcome FROM idem_try_insert('app', 'k', idem_hash('{}'));
		SELECT outcome FROM idem_try_insert('app', 'k', idem_hash('{}'));
		SELECT changed FROM idem_complete('app', 'k', (SELECT attempt FROM idem.idempotency WHERE principal_id = 'app'), 200, ''::text);
		SELECT outbox_emit('t', 'k', 'e', '{}', once_key => 'o') = outbox_emit('t', 'k', 'e', '{}', once_key => 'o');
		INSERT INTO idem.outbox (topic) VALUES ('t') RETURNING 1)),
	"STARTED\nIN_PROGRESS\nt\nt\n1",
	'the application role claims, completes and emits');
is($node->try("SET ROLE shop_app; SELECT inbox_apply('c', idem_uuid7())")->{sqlstate}, '42501', 'and does not consume');
$node->safe_psql('postgres', q(CREATE ROLE shop_consumer;
	GRANT USAGE ON SCHEMA idem TO shop_consumer;
	GRANT SELECT, INSERT ON idem.inbox TO shop_consumer;
	GRANT EXECUTE ON FUNCTION inbox_apply, idem.inbox_slot TO shop_consumer));
is($node->value("SET ROLE shop_consumer; SELECT inbox_apply('c', gen_random_uuid())"), 't', 'the consumer role applies');
is($node->try('SET ROLE shop_consumer; SELECT * FROM idem.outbox')->{sqlstate}, '42501', 'and reads no events');

done_testing();
