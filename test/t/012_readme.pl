# The code in README.md, run as it stands there: the minute of SQL, the two
# transactions in SQL, Python and Java, what operators do, and the privileges.

use strict;
use warnings FATAL => 'all';

use File::Basename;
use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;

use constant JDBC => '/usr/share/java/postgresql.jar';

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

# JDBC knows no Unix sockets.
my $node = Idem::Cluster->start_new('main', preload => 0, conf => <<'END');
listen_addresses = '127.0.0.1'
idem.call_grace = 0
END

# The first minute: every block in one session, and what it prints.
my @sql = blocks('Sixty seconds of SQL', 'sql');
is($node->value(shift @sql), 'STARTED|t|1|', 'the first request is to be run');
like($node->value(shift @sql), qr/^201\|\\x7b.*\n[0-9a-f-]{36}$/s, 'it is completed, and its event written');
is($node->value(shift @sql), qq(REPLAY|f|201|{"payment": "p-1"}\nMISMATCH|f|409), 'the retry is a replay, another request is refused');
is($node->value(shift @sql), "t\nf", 'the event is applied once');
is(scalar @sql, 0, 'no block is left untested');
is($node->value('SELECT count(*), min(topic) FROM idem.outbox'), '1|payments.payment-authorized', 'one event');

# Hashes of requests, plain and keyed.
my ($hashes) = blocks('The hash of a request', 'sql');
is($node->value($hashes), "STARTED|t\nIN_PROGRESS|f", 'the hash of a request leaves out what changes from one retry to the next');
my ($keyed, $rotation) = blocks('Keyed hashes', 'sql');
like($node->value($keyed), qr/^\nSTARTED\|\d+$/, 'a claim with a keyed hash');
is($node->value($rotation), "\nIN_PROGRESS\nIN_PROGRESS\n", 'a key is rotated, and the request stays the same');
is($node->value('SELECT key_id FROM idem.hash_keys'), '2027-01', 'the old key is gone');

# Privileges: what follows runs in the roles of the README.
$node->safe_psql('postgres', $_) foreach blocks('Privileges', 'sql');

# The two transactions, in SQL.
$node->safe_psql('postgres', $_) foreach blocks('Two transactions', 'sql');
$node->safe_psql('postgres', 'GRANT SELECT, INSERT, UPDATE ON payment TO shop_app, shop_operator');
my ($two) = blocks('In SQL', 'sql');
like($node->value("SET ROLE shop_app;\n$two"), qr/^201\|\[\["content-type", "application\/json"\]\]\|\\x7b[0-9a-f]+\n[0-9a-f-]{36}$/, 'In SQL: completed, with an event');
is( $node->value(<<'END'), 'AUTHORIZED|COMPLETED|t', 'In SQL: payment, record and event belong together');
SELECT p.state, r.state, e.payload = jsonb_build_object('payment', p.payment_id)
FROM payment AS p JOIN idem.idempotency AS r ON r.resource_id = p.payment_id
	JOIN idem.outbox AS e ON e.partition_key = p.payment_id::text
WHERE r.principal_id = 'asha' AND r.idempotency_key = 'key-2' AND p.idempotency_key = 'key-2'
END

# The same in two languages, each with a program around it that pays: approved,
# the same again, declined, no answer, and that once more.  What they print is
# "status replayed body", and the calls of the bank.
my %program = (Python => \&python, Java => \&java);
foreach my $language (sort keys %program)
{
	my $principal = lc $language;
	my $events = $node->value('SELECT count(*) FROM idem.outbox');
	my ($out, $err) = $program{$language}->(blocks("In $language", $principal), $principal);
	my @lines = split /\n/, $out;
	my @calls = split / /, (pop @lines) // '';
	my @ids = map { /"payment": "([^"]+)"/ ? $1 : () } @lines;

	is($err, '', "In $language: no error");
	like($lines[0], qr/^201 no \{"state": "AUTHORIZED", "payment": "[0-9a-f-]{36}"\}$/, "In $language: approved");
	is($lines[1], $lines[0] =~ s/no/yes/r, "In $language: the same bytes again, as a replay");
	like($lines[2], qr/^402 no \{"state": "DECLINED", "payment": "[0-9a-f-]{36}"\}$/, "In $language: declined");
	like($lines[3], qr/^503 no .*"code":"operation_in_progress"/, "In $language: no answer");
	like($lines[4], qr/^201 no .*"AUTHORIZED"/, "In $language: the retry resumes at once");
	is(scalar @lines, 5, "In $language: five answers");
	is_deeply(\@calls, [ @ids[0, 2, 3, 3] ], "In $language: the bank was called with the payments' ids, twice with the last");
	is($node->value('SELECT count(*) FROM idem.outbox') - $events, 2, "In $language: an event for each that was approved");
	is($node->value("SELECT string_agg(state, ' ' ORDER BY idempotency_key) FROM payment WHERE principal_id = '$principal'"),
		'AUTHORIZED DECLINED AUTHORIZED', "In $language: and the payments say so");

	# A lease that is over, and a bank that has forgotten the key by now.
	$node->safe_psql('postgres', <<"END");
SELECT idem_try_insert('$principal', 'k-4', idem_hash('{}'), call_timeout => '1 ms');
UPDATE idem.idempotency SET lease_expires_at = '2000-01-01' WHERE principal_id = '$principal' AND idempotency_key = 'k-4';
INSERT INTO payment SELECT resource_id, principal_id, idempotency_key, 'PENDING'
FROM idem.idempotency WHERE principal_id = '$principal' AND idempotency_key = 'k-4'
END
	($out) = $program{$language}->(blocks("In $language", $principal), $principal, 'k-4');
	like($out, qr/^202 no .*"code":"operation_uncertain".*\n$/, "In $language: the outcome is not known");
	is($node->value("SELECT state FROM payment WHERE principal_id = '$principal' AND idempotency_key = 'k-4'"),
		'UNKNOWN', "In $language: and the payment is marked");
}

sub python
{
	my ($block, @arguments) = @_;
	my $program = $block . <<'END';


import sys

dsn, principal, *keys = sys.argv[1:]
calls = []


def bank(verdict):
    def call(key, request):
        calls.append(key)
        if verdict is None:
            raise TimeoutError
        return verdict
    return call


def show(key, verdict=None):
    status, headers, body = pay(dsn, principal, key, '{}', bank(verdict))
    replayed = ['idempotent-replayed', 'true'] in headers
    print(status, 'yes' if replayed else 'no', body.decode())


if keys:
    show(keys[0])
else:
    show('k-1', True)
    show('k-1', True)
    show('k-2', False)
    show('k-3')
    show('k-3', True)
print(*calls)
END

	return run_command([ '/usr/bin/python3', '-c', $program, $node->connstr('postgres') . ' user=shop_app', @arguments ]);
}

sub java
{
	my ($block, @arguments) = @_;
	my $folder = PostgreSQL::Test::Utils::tempdir('java');
	my $url = 'jdbc:postgresql://127.0.0.1:' . $node->port . '/postgres?user=shop_app';

	append_to_file("$folder/Payments.java", $block);
	append_to_file("$folder/Main.java", <<'END');
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeoutException;

public class Main {
    static List<String> calls = new ArrayList<>();
    static Boolean verdict;

    static boolean call(java.util.UUID key, String request) throws TimeoutException {
        calls.add(key.toString());
        if (verdict == null) {
            throw new TimeoutException();
        }
        return verdict;
    }

    static void show(Payments payments, String principal, String key, Boolean verdict) throws Exception {
        Main.verdict = verdict;
        Payments.Answer answer = payments.pay(principal, key, "{}");
        boolean replayed = answer.headers().contains("[\"idempotent-replayed\", \"true\"]");
        System.out.println(answer.status() + (replayed ? " yes " : " no ")
            + new String(answer.body(), StandardCharsets.UTF_8));
    }

    public static void main(String[] arguments) throws Exception {
        var source = new org.postgresql.ds.PGSimpleDataSource();
        source.setUrl(arguments[0]);
        var payments = new Payments(source, Main::call);
        if (arguments.length > 2) {
            show(payments, arguments[1], arguments[2], null);
        } else {
            show(payments, arguments[1], "k-1", true);
            show(payments, arguments[1], "k-1", true);
            show(payments, arguments[1], "k-2", false);
            show(payments, arguments[1], "k-3", null);
            show(payments, arguments[1], "k-3", true);
        }
        System.out.println(String.join(" ", calls));
    }
}
END
	my ($out, $err) = run_command([ 'javac', '-cp', JDBC, '-d', $folder, "$folder/Payments.java", "$folder/Main.java" ]);
	return ($out, $err) if $err;
	return run_command([ 'java', '-cp', "$folder:" . JDBC, 'Main', $url, @arguments ]);
}

# What operators do.
$node->safe_psql('postgres', <<'END');
SELECT idem_try_insert('dana', 'key-9', idem_hash('{}'), 'payment', call_timeout => '1 ms');
INSERT INTO payment SELECT resource_id, 'dana', 'key-9', 'UNKNOWN' FROM idem.idempotency WHERE principal_id = 'dana';
SELECT idem_mark_unknown('dana', 'key-9', attempt, 'no answer') FROM idem.idempotency WHERE principal_id = 'dana';
DELETE FROM idem.idempotency WHERE idempotency_key = 'k-4';
SELECT idem_try_insert('emil', 'key-1', idem_hash('{}'), 'payment', lease => '1 ms', context => '{"order": 7}');
UPDATE idem.idempotency SET lease_expires_at = '2000-01-01' WHERE principal_id = 'emil';
UPDATE idem.idempotency SET expires_at = '2000-01-01', response_expires_at = '2000-01-01', sweep_at = '2000-01-01' WHERE principal_id = 'python';
GRANT EXECUTE ON FUNCTION outbox_emit TO shop_operator;
END
my ($list, $resolve, $oldest, $stale) = map { "SET ROLE shop_operator;\n$_" } blocks('Unresolved records', 'sql');
like($node->value($list), qr/^emil\|key-1\|IN_PROGRESS\|.*\ndana\|key-9\|UNKNOWN\|.*\|no answer$/, 'unresolved: the list');
like($node->value($oldest), qr/^00:00:/, 'unresolved: the age of the oldest');
my $before = $node->value('SELECT count(*) FROM idem.outbox');
like($node->value($resolve), qr/^201\|t\n[0-9a-f-]{36}$/, 'unresolved: settled, with an event');
is($node->value("SELECT state FROM payment WHERE principal_id = 'dana'"), 'AUTHORIZED', 'unresolved: and the payment');
is($node->value('SELECT count(*) FROM idem.outbox') - $before, 1, 'unresolved: one event');
is($node->value("SELECT outcome, status, convert_from(body, 'UTF8') FROM idem_try_insert('dana', 'key-9', idem_hash('{}'))"),
	'REPLAY|201|{"state": "AUTHORIZED"}', 'unresolved: the next retry gets the answer');
is($node->value('SELECT resolved_by, evidence FROM idem.resolution') =~ s/^.*?\|//r, '{"line": 17, "settlement file": "2026-11-30"}', 'unresolved: the evidence is kept');
is($node->value($oldest), '', 'unresolved: nothing is left');
like($node->value($stale), qr/^emil\|key-1\|RESUMED\|t\|\d+\|[0-9a-f-]{36}\|\{"order": 7\}$/, 'what a crash left behind is claimed');

my ($sweep) = blocks('Sweeping', 'sql');
is($node->value("SET ROLE shop_operator;\n$sweep") =~ s/\|\d+\|/|/r, '3|f', 'sweeping: what has expired is deleted');
is($node->value("SELECT count(*) FROM idem.idempotency WHERE principal_id = 'python'"), '0', 'sweeping: and is gone');

# The roles have what they need, and no more.
is( $node->value(
		q(SET ROLE shop_app;
		SELECT outcome, attempt FROM idem_try_insert('app', 'k', idem_hash('{}')) \gset
		SELECT :'outcome';
		SELECT outcome FROM idem_try_insert('app', 'k', idem_hash('{}'));
		SELECT changed FROM idem_complete('app', 'k', :attempt, 200, ''::text);
		SELECT outbox_emit('t', 'k', 'e', '{}', once_key => 'o') = outbox_emit('t', 'k', 'e', '{}', once_key => 'o');
		INSERT INTO idem.outbox (topic) VALUES ('t') RETURNING 1)),
	"STARTED\nIN_PROGRESS\nt\nt\n1",
	'the application role claims, completes and emits');
is($node->value("SET ROLE shop_consumer; SELECT inbox_apply('c', gen_random_uuid())"), 't', 'the consumer role applies');
my @refused = (
	[ 'shop_app', "SELECT inbox_apply('c', idem_uuid7())", 'consume' ],
	[ 'shop_app', 'SELECT * FROM idem.idempotency', 'read records' ],
	[ 'shop_app', "SELECT idem_resolve('app', 'k', 'completed', '{}', 200, ''::text)", 'resolve' ],
	[ 'shop_consumer', 'SELECT * FROM idem.outbox', 'read events' ],
	[ 'shop_consumer', "SELECT idem_hash('{}')", 'hash' ],
	[ 'shop_operator', "SELECT idem_try_insert('app', 'k', sha256('x'))", 'claim' ],
	[ 'shop_operator', 'DELETE FROM idem.idempotency', 'delete records' ]);
is($node->try("SET ROLE $_->[0]; $_->[1]")->{sqlstate}, '42501', "$_->[0] can't $_->[2]") foreach @refused;

done_testing();
