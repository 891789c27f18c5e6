# What the kernel says of a process.

package Idem::Process;

use strict;
use warnings FATAL => 'all';

use Carp qw(croak);
use Exporter qw(import);
use POSIX ();
use PostgreSQL::Test::Utils;

our @EXPORT = qw(memory_of cpu_seconds);

# Private memory in kB: without the server's shared memory.
sub memory_of
{
	my ($pid) = @_;
	my $status = slurp_file("/proc/$pid/status");

	return $status =~ /^RssAnon:\s+(\d+) kB/m ? $1 : croak "process $pid has no RssAnon";
}

# Seconds of processor time that it has used.
sub cpu_seconds
{
	my ($pid) = @_;
	my @fields = split / /, slurp_file("/proc/$pid/stat") =~ s/^.*\) //sr;

	return ($fields[11] + $fields[12]) / POSIX::sysconf(POSIX::_SC_CLK_TCK());
}

1;
