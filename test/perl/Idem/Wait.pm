# Waiting for something to become true: the only place of the tests that pauses.

package Idem::Wait;

use strict;
use warnings FATAL => 'all';

use Carp qw(croak);
use Exporter qw(import);
use Time::HiRes qw(clock_gettime CLOCK_MONOTONIC);

our @EXPORT = qw(wait_until seconds_of);

# Generous, because it only costs time when a test fails.
our $deadline = 60;

use constant PAUSE => 0.03;

# wait_until($name, $check, deadline => seconds)
#
# Calls $check until it returns true, and gives that value back.  $check may
# return (true or false, what it saw); when the deadline passes, this dies with
# the name and with what was seen last.
sub wait_until
{
	my ($name, $check, %options) = @_;
	my $limit = $options{deadline} // $deadline;
	my $start = clock_gettime(CLOCK_MONOTONIC);

	while (1)
	{
		my ($done, @seen) = $check->();
		return $done if $done;

		my $elapsed = clock_gettime(CLOCK_MONOTONIC) - $start;
		croak sprintf("waited %.1f s in vain: %s; last seen: %s",
			$elapsed, $name, _show(@seen ? $seen[0] : $done))
		  if $elapsed > $limit;
		select(undef, undef, undef, PAUSE);
	}
}

# Runs $code and gives how many seconds it took.
sub seconds_of
{
	my ($code) = @_;
	my $start = clock_gettime(CLOCK_MONOTONIC);

	$code->();
	return clock_gettime(CLOCK_MONOTONIC) - $start;
}

sub _show
{
	my ($seen) = @_;

	return 'undef' unless defined $seen;
	return $seen unless ref $seen eq 'HASH';
	return join ', ', map { "$_=" . ($seen->{$_} // 'NULL') } sort keys %$seen;
}

1;
