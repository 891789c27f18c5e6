# The record functions against the model in test/model: every state × event, and
# every order of the statements of small histories.

use strict;
use warnings FATAL => 'all';

use File::Basename;
use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;

my $model = dirname(__FILE__) . '/../model';
my $seed = $ENV{IDEM_SEED} // 1;

# Thousands of small transactions; what is on disk is for other tests.
my $node = Idem::Cluster->start_new('main', preload => 0, conf => "fsync = off\nautovacuum = off\n");

# Runs a program of the model; returns how many of what it counted.
sub model
{
	my ($program, $counted, @arguments) = @_;
	my ($out, $err) = run_command([ '/usr/bin/python3', "$model/$program", $node->connstr('postgres'), @arguments ]);
	my ($count) = $out =~ /(\d+) $counted\b.* 0 differ/;

	is($err, '', "$program raises no error");
	ok($count, "$program: nothing differs from the model") or diag($out);
	note($out);
	return $count // 0;
}

# With a clock ten days ahead, so that a function that reads another one is seen.
cmp_ok(model('states', 'cases', '--clock', 10 * 24 * 60 * 60 * 1000), '>', 15_000, 'enough cases of the state table');
cmp_ok(model('interleave', 'orders', '--seconds', 8, '--seed', $seed), '>', 5_000, 'enough orders of statements');

# The same where somebody has added a trigger: records are written by statements then.
$node->safe_psql('postgres', <<'EOF_SQL');
CREATE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER watch AFTER INSERT OR UPDATE ON idem.idempotency FOR EACH ROW EXECUTE FUNCTION watch();
EOF_SQL
cmp_ok(model('states', 'cases', '--clock', 10 * 24 * 60 * 60 * 1000), '>', 15_000, 'with a trigger: enough cases of the state table');
cmp_ok(model('interleave', 'orders', '--seconds', 4, '--seed', $seed + 1), '>', 2_000, 'with a trigger: enough orders of statements');

# Each program notices when the rules are not what the model says.
$node->safe_psql('postgres', <<'EOF_SQL');
CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.attempt := OLD.attempt;
	RETURN NEW;
END
$$;
CREATE TRIGGER meddle BEFORE UPDATE ON idem.idempotency FOR EACH ROW EXECUTE FUNCTION meddle();
EOF_SQL
foreach my $program ([ 'states', '--only', 'lease over × claim, same' ], [ 'interleave', '--only', 'over: claim and complete RC RC' ])
{
	my ($name, @arguments) = @$program;
	my ($out, $err) = run_command([ '/usr/bin/python3', "$model/$name", $node->connstr('postgres'), @arguments ]);

	like($out, qr/^\d+ (?:cases|histories).* [1-9]\d* differ/m, "$name sees that an attempt number is used twice");
}

done_testing();
