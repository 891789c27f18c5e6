# The README's table of errors against the relay's own, for every error that the
# client library knows.

use strict;
use warnings FATAL => 'all';

use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;

# The table: { error => class }, from its rows.
my %table;
my $readme = slurp_file('README.md');
my ($rows) = $readme =~ /^\| Class \| Errors \|.*?\n(.*?)\n\n/ms or BAIL_OUT('the README has no table of errors');
foreach my $row (split /\n/, $rows)
{
	my (undef, $class, $errors) = split /\s*\|\s*/, $row;

	next if $class =~ /^-+$/;
	foreach my $error ($errors =~ /`(\w+)`/g)
	{
		ok(!exists $table{$error}, "$error is in the table once");
		$table{$error} = $class;
	}
}
cmp_ok(scalar keys %table, '>', 50, 'the table was read');
like($rows, qr/^\| transient \|.*every error that is not in this table/m, 'what is not in it is transient');

my $program = PostgreSQL::Test::Utils::tempdir() . '/errors';
my $flags = `pkg-config --cflags --libs rdkafka`;
my ($output, $errors) = ('', '');
IPC::Run::run([ 'cc', '-Wall', '-Wextra', '-Werror', '-I', 'bgworker', '-o', $program, 'test/errors.c', 'bgworker/relay_errors.c', split ' ', $flags ],
	'>&', \$errors) or BAIL_OUT("test/errors.c: $errors");
IPC::Run::run([$program], '>', \$output) or BAIL_OUT('test/errors.c failed');

my %relay = map { split / / } split /\n/, $output;
cmp_ok(scalar keys %relay, '>', 150, 'the library names its errors');
foreach my $error (sort keys %relay)
{
	is($relay{$error}, $table{$error} // 'transient', "$error: " . ($table{$error} // 'not in the table'));
}
is_deeply([ grep { !exists $relay{$_} } sort keys %table ], [], 'the table has no error that nobody knows');

done_testing;
