# Secrets of keyed hashes: nowhere but in their table, on every server that has
# the database, and in no dump of it.  What writes logs, plans and statistics is
# told to write as much as it can.

use strict;
use warnings FATAL => 'all';

use IPC::Run ();
use MIME::Base64 qw(encode_base64);
use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Wait;

my $folder = PostgreSQL::Test::Utils::tempdir;
my $node = Idem::Cluster->start_new('main', preload => 0, conf => <<'END');
shared_preload_libraries = 'pg_stat_statements, auto_explain'
wal_level = replica
max_wal_senders = 4
pg_stat_statements.track = all
END

$node->safe_psql('postgres', 'CREATE EXTENSION pg_stat_statements');
# What an extension is made of need not be in the log.
$node->append_conf('postgresql.conf', <<'END');
log_statement = all
log_min_duration_statement = 0
log_parameter_max_length = -1
log_parameter_max_length_on_error = -1
log_min_messages = debug2
log_min_error_statement = debug5
log_error_verbosity = verbose
debug_print_parse = on
debug_print_rewritten = on
debug_print_plan = on
auto_explain.log_min_duration = 0
auto_explain.log_nested_statements = on
auto_explain.log_analyze = on
auto_explain.log_verbose = on
auto_explain.log_triggers = on
auto_explain.log_settings = on
END
# From PostgreSQL 16 on it writes parameters of nested statements too.
$node->append_conf('postgresql.conf', 'auto_explain.log_parameter_max_length = -1') if $node->pg_version >= 16;
$node->reload;

# All that was shown to a client: what psql printed, results and errors.
my $shown = '';

controls();
life();
standby();
dump_and_restore();
nowhere();

$node->stop;
done_testing;

# What psql prints for a script, whatever fails in it.
sub show
{
	my ($sql, $database) = @_;
	my $output = '';

	IPC::Run::run([ 'psql', '-X', '-A', '-t', '-v', 'VERBOSITY=verbose', '-d', $node->connstr($database // 'postgres') ],
		'<', \$sql, '>&', \$output, IPC::Run::timeout($Idem::Wait::deadline));
	$shown .= $output;
	return $output;
}

# The ways in which bytes (in hexadecimal) may be written: a pattern for each.
sub forms
{
	my ($hex) = @_;
	my $bytes = pack 'H*', $hex;
	my $escape = join '', map { $_ eq '\\' ? '\\\\' : /[\x20-\x7e]/ ? $_ : sprintf '\\%03o', ord } split //, $bytes;
	my $encode = join '', map { $_ eq '\\' ? '\\\\' : /[\x01-\x7f]/ ? $_ : sprintf '\\%03o', ord } split //, $bytes;
	my $decimal = join '\s*', split //, join '', unpack 'c*', $bytes;
	my %forms = (
		hex => qr/\Q$hex\E/i,
		bytes => qr/\Q$bytes\E/,
		'bytea_output escape' => qr/\Q$escape\E/,
		'encode escape' => qr/\Q$encode\E/,
		# as a tree of a plan has them, broken into lines anywhere
		decimal => qr/$decimal/);

	# In base64 it depends on what stands before them: a part that doesn't.
	foreach my $before (0 .. 2)
	{
		my $text = substr encode_base64('x' x $before . $bytes, ''), $before ? 4 : 0, 36;
		$forms{"base64 after $before"} = qr/\Q$text\E/;
	}
	return %forms;
}

# Names of the forms of a secret that a text has.
sub seen
{
	my ($hex, $text) = @_;
	my %forms = forms($hex);

	return grep { $text =~ $forms{$_} } sort keys %forms;
}

sub server_log { return slurp_file($node->logfile) }

# That the search finds what is there: something that is as good as a secret,
# in every form, in a statement.
sub controls
{
	my $hex = 'f00d5c61' . '27' x 2 . unpack('H*', join '', map { chr(65 + $_) } 0 .. 25);
	my $bytes = "decode('$hex', 'hex')";
	my @forms = ('base64 after 0', 'base64 after 1', 'base64 after 2', 'bytea_output escape', 'decimal', 'encode escape', 'hex');

	show(<<"END");
DO \$\$ BEGIN
	RAISE LOG '%', encode($bytes, 'escape');
	RAISE LOG '% % %', encode($bytes, 'base64'), encode('x' || $bytes, 'base64'), encode('xx' || $bytes, 'base64');
	PERFORM set_config('bytea_output', 'escape', true);
	RAISE LOG '%', $bytes;
END \$\$;
SELECT '\\x$hex'::bytea;
SELECT encode($bytes, 'escape'), encode($bytes, 'base64'), encode('x' || $bytes, 'base64'), encode('xx' || $bytes, 'base64');
SET bytea_output = escape;
SELECT $bytes;
END
	is_deeply([ seen($hex, server_log()) ], \@forms, 'control: what a statement holds is in the log');
	is_deeply([ seen($hex, $shown) ], [ grep { $_ ne 'decimal' } @forms ], 'control: and in what psql printed');
	is_deeply([ seen($hex, "x\n" . pack 'H*', $hex) ], ['bytes'], 'control: bytes are found');
	$shown = '';
	return;
}

# Everything that can be done with keys, by every way of calling it.
sub life
{
	my $file = "$folder/secret";

	show(<<'END');
SELECT idem_hash_key_add('one');
PREPARE add(text) AS SELECT idem_hash_key_add($1);
EXECUTE add('two');
EXECUTE add('two');
SELECT idem_hash_key_add('three') FROM generate_series(1, 2);
DO $$ BEGIN PERFORM idem_hash_key_add('four'); END $$;
SELECT idem_request_hmac('one', 'POST', '/p', '{"n": 1}');
EXPLAIN (ANALYZE, VERBOSE, BUFFERS, SETTINGS) SELECT idem_request_hmac('one', 'POST', '/p', '{"n": 1}');
EXPLAIN (VERBOSE, FORMAT JSON) SELECT idem_request_hmac(k, 'POST', '/p', b) FROM (VALUES ('one', '{}'::jsonb)) AS v(k, b);
PREPARE hash(text, text) AS SELECT idem_request_hmac($1, 'POST', '/p', $2);
EXECUTE hash('one', '{"n": 1}');
EXPLAIN (ANALYZE, VERBOSE) EXECUTE hash('one', '{"n": 1}');
EXECUTE hash('nine', '{"n": 1}');
EXECUTE hash('one', '{"n": 1');
EXECUTE hash(NULL, '{}');
SELECT idem_request_hmac('one', 'POST', '/p', '{"n": 1}', '{m}');
SELECT count(*) FROM generate_series(1, 1000) AS n WHERE idem_request_hmac('two', 'POST', '/p', to_jsonb(n)) = '\x00';
SELECT outcome FROM idem_try_insert('p', 'k', idem_request_hmac('two', 'POST', '/p', '{"card": 4111}'), also_accept => ARRAY[idem_request_hmac('one', 'POST', '/p', '{"card": 4111}')]);
SELECT 1 / (length(idem_request_hmac('one', 'POST', '/p')) - 32);
DO $$ DECLARE h bytea; BEGIN h := idem_request_hmac('one', 'POST', '/p'); RAISE EXCEPTION 'with context'; END $$;
ANALYZE idem.hash_key;
SELECT * FROM idem.hash_keys;
SELECT * FROM pg_stats WHERE tablename = 'hash_key';
SELECT * FROM pg_statistic WHERE starelid = 'idem.hash_key'::regclass;
VACUUM (VERBOSE) idem.hash_key;
END
	like($shown, qr/42710: hash key "two" already exists/, 'a key that is there is not replaced');
	like($shown, qr/42704: hash key "nine" does not exist/, 'one that is not there is an error');

	# The extended protocol, with parameters.
	my ($out, $err) = run_command([ '/usr/bin/python3', '-c', <<'END', $node->connstr('postgres') ]);
import sys
import psycopg

with psycopg.connect(sys.argv[1], autocommit=True) as db:
    db.execute('SELECT idem_hash_key_add(%s)', ('driver',))
    for binary in (False, True):
        print(db.execute('SELECT idem_request_hmac(%s, %s, %s, %s)', ('driver', 'POST', '/p', '{}'), binary=binary).fetchone())
    for key in ('none', 'driver'):
        try:
            db.execute('SELECT idem_request_hmac(%s, %s, %s, %s)', (key, 'POST', '/p', '{'))
        except psycopg.Error as error:
            print(error, error.diag.message_detail, error.diag.context)
END
	is($err, '', 'a driver that binds parameters');
	$shown .= $out;

	# Two that add the same one at the same time.
	my ($first, $second) = ($node->session, $node->session);
	$first->query("BEGIN; SELECT idem_hash_key_add('race')");
	$second->send("SELECT idem_hash_key_add('race')");
	wait_until('the second waits for the first', sub { $node->value('SELECT count(*) FROM pg_locks WHERE NOT granted') eq '1' });
	$first->query('COMMIT');
	my $answer = $second->answer;
	is($answer->{sqlstate}, '23505', 'of two that add a key at once, the second is refused');
	$shown .= $answer->{error};

	# Secrets from files, good ones and bad ones.
	append_to_file($file, join '', map { chr(33 + rand 90) } 1 .. 48);
	append_to_file("$file.short", join '', map { chr(33 + rand 90) } 1 .. 31);
	chmod 0600, $file, "$file.short" or die $!;
	show(<<"END");
SELECT idem_hash_key_import('file', pg_read_binary_file('$file'));
SELECT idem_hash_key_import('file', pg_read_binary_file('$file'));
SELECT idem_hash_key_import('short', pg_read_binary_file('$file.short'));
EXPLAIN (ANALYZE, VERBOSE) SELECT idem_hash_key_import('explained', pg_read_binary_file('$file'));
BEGIN;
SELECT idem_hash_key_import('rolled back', pg_read_binary_file('$file'));
ROLLBACK;
DO \$\$ BEGIN PERFORM idem_hash_key_import('one', pg_read_binary_file('$file')); END \$\$;
SELECT idem_request_hmac('file', 'POST', '/p', '{}');
END
	like($shown, qr/22023: secret has 31 bytes/, 'a short secret is refused');
	is( $node->value("SELECT secret = pg_read_binary_file('$file') AND idem_request_hmac('file', 'POST', '/p') = hmac(idem_request_hash('POST', '/p'), secret, 'sha256') FROM idem.hash_key WHERE key_id = 'file'"),
		't', 'a secret of a file is the secret');
	is($node->value("SELECT string_agg(key_id, ' ' ORDER BY created_at) FROM idem.hash_keys"), 'one two four driver race file explained', 'these keys are there');
	return;
}

# A replica has the keys, and needs to write nothing.
sub standby
{
	my $standby = Idem::Cluster->new('standby');

	$node->backup('b');
	$standby->init_from_backup($node, 'b', has_streaming => 1);
	$standby->start;
	$node->value("SELECT idem_hash_key_add('later')");
	$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
	my $hashes = "SELECT string_agg(encode(idem_request_hmac(key_id, 'POST', '/p', '{}'), 'hex'), ' ' ORDER BY key_id) FROM idem.hash_keys";
	is($standby->value($hashes), $node->value($hashes), 'a standby makes the same hashes');
	is($standby->try("SELECT idem_hash_key_add('x')")->{sqlstate}, '25006', 'and no keys');
	unseen(slurp_file($standby->logfile), 'the log of the standby');
	$standby->stop;
	return;
}

sub psql_copy
{
	my ($direction, $format, $database, $data) = @_;
	my ($output, $error) = ('', '');

	IPC::Run::run([ 'psql', '-X', '-q', '-d', $node->connstr($database), '-c', "COPY idem.hash_key $direction ($format)" ],
		'<', \($data // ''), '>', \$output, '2>', \$error, IPC::Run::timeout($Idem::Wait::deadline));
	$shown .= $error;
	return ($output, $error);
}

# A dump has no secrets; a restored database asks for them, and gets them as the
# README says.
sub dump_and_restore
{
	my $claim = "SELECT outcome FROM idem_try_insert('p', 'dumped', idem_request_hmac('one', 'POST', '/p', '{\"card\": 4111}'))";
	my %dumps = (
		'pg_dump' => [ 'pg_dump', '-d', $node->connstr('postgres') ],
		'pg_dump --inserts' => [ 'pg_dump', '--inserts', '-d', $node->connstr('postgres') ],
		'pg_dump of the table' => [ 'pg_dump', '-t', 'idem.hash_key', '-d', $node->connstr('postgres') ],
		'pg_dump of the schema' => [ 'pg_dump', '-n', 'idem', '-d', $node->connstr('postgres') ],
		'pg_dumpall' => [ 'pg_dumpall', '-d', $node->connstr('postgres') ]);

	is($node->value($claim), 'STARTED', 'a claim');
	# Hundreds of statements on catalogs.
	local $ENV{PGOPTIONS} = join ' ', map { "-c debug_print_$_=off" } qw(parse rewritten plan);
	foreach my $what (sort keys %dumps)
	{
		my ($dump, $error) = run_command($dumps{$what});
		is($error, '', "$what: no error");
		cmp_ok(length $dump, '>', 200, "$what: says something");
		unseen($dump, $what);
		append_to_file("$folder/dump.sql", $dump) if $what eq 'pg_dump';
	}

	$node->value('CREATE DATABASE restored');
	$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', "$folder/dump.sql", '-d', $node->connstr('restored') ], 'the dump is restored');
	is($node->value('SELECT count(*) FROM idem.hash_key', 'restored'), '0', 'without keys');
	my $refused = $node->try($claim, 'restored');
	is($refused->{sqlstate}, '42704', 'without its key there is no hash');
	like($refused->{error}, qr/HINT: .*restored from a dump/, 'and the hint says why');

	my ($keys) = psql_copy('TO STDOUT', 'FORMAT binary', 'postgres');
	psql_copy('FROM STDIN', 'FORMAT binary', 'restored', $keys);
	is($node->value($claim, 'restored'), 'IN_PROGRESS', 'with the key of the old server the claim is known again');
	my (undef, $error) = psql_copy('FROM STDIN', 'FORMAT binary', 'restored', $keys);
	like($error, qr/duplicate key value/, 'to copy them twice is an error');

	# What is wrong in binary data is not written to the log; a line of the text
	# format is.  (That one is in a database with secrets of its own.)
	(undef, $error) = psql_copy('FROM STDIN', 'FORMAT binary', 'restored', substr($keys, 0, 19) . "\0\2" . substr $keys, 21);
	like($error, qr/row field count is 2, expected 3/, 'broken data are an error');
	$node->value('CREATE DATABASE other TEMPLATE restored');
	$node->value(q{TRUNCATE idem.hash_key; SELECT idem_hash_key_add('text')}, 'other');
	my ($text) = psql_copy('TO STDOUT', 'FORMAT text', 'other');
	($text) = psql_copy('FROM STDIN', 'FORMAT text', 'other', $text =~ s/\t[^\t]*$/\n/r);
	is_deeply([ seen($node->value(q{SELECT encode(secret, 'hex') FROM idem.hash_key}, 'other'), server_log()) ], ['hex'], 'control: broken text is in the log');

	# Retire all, in a database that still has them.
	is($node->value("SELECT count(idem_hash_key_retire(key_id)) FROM idem.hash_keys", 'restored'), '8', 'keys are retired');
	is($node->try($claim, 'restored')->{sqlstate}, '42704', 'and gone');
	return;
}

my %secrets;

# No text has a secret of the database, in any form.
sub unseen
{
	my ($text, $what) = @_;

	%secrets = map { split /\|/ } split /\n/, $node->value("SELECT key_id, encode(secret, 'hex') FROM idem.hash_key");
	cmp_ok(scalar keys %secrets, '>=', 7, "$what: there are secrets to be found");
	is_deeply({ map { my @forms = seen($secrets{$_}, $text); @forms ? ($_ => \@forms) : () } keys %secrets }, {}, "$what has none of them");
	return;
}

sub nowhere
{
	my $short = unpack 'H*', slurp_file("$folder/secret.short");
	my $log = server_log();

	like($log, qr/Query Text: SELECT secret FROM idem\.hash_key/, 'auto_explain wrote the nested statements');
	like($log, qr/parameters: \$1 = 'driver'/, 'parameters were written');
	like($log, qr/:constvalue/, 'plans were written as trees');
	unseen($log, 'the log');
	is_deeply([ seen($short, $log) ], [], 'the log has no secret that was refused');
	unseen($shown, 'what clients were shown');
	is_deeply([ seen($short, $shown) ], [], 'what clients were shown has no secret that was refused');

	my $statements = $node->value('SELECT query FROM pg_stat_statements');
	like($statements, qr/DELETE FROM idem\.hash_key/, 'pg_stat_statements has the nested statements');
	unseen($statements, 'pg_stat_statements');
	unseen($node->value('SELECT query FROM pg_stat_activity'), 'pg_stat_activity');
	unseen($node->value('SELECT s::text FROM pg_statistic AS s'), 'pg_statistic');
	return;
}
