# Each error that a broker can answer a produce request with, once, from
# librdkafka's mock broker: whatever its class, the row arrives and nothing is
# parked, and no attempt is used unless it is the row's own fault.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Mock;
use Idem::Wait;

# Names and classes, from the README; the library's own errors have an underscore.
my ($table) = slurp_file('README.md') =~ /^\| Class \| Errors \|.*?\n(.*?)\n\n/ms or BAIL_OUT('the README has no table of errors');
my %errors;
foreach my $row (split /\n/, $table)
{
	my (undef, $class, $names) = split /\s*\|\s*/, $row;

	$errors{$_} = $class foreach grep { !/^_/ } $names =~ /`(\w+)`/g;
}

my $mock = Idem::Mock->new('t', 2);
my $node = Idem::Cluster->start_new('main', kafka => $mock);
$node->wait_state('running');
$node->emit('t', key => 'first', payload => '1');
$node->wait_published;

foreach my $error (sort { $errors{$a} cmp $errors{$b} || $a cmp $b } keys %errors)
{
	my $failed = $node->relay_status->{failed};

	$mock->say("push $error 1");
	$node->emit('t', key => $error, payload => '1');
	$node->wait_published;
	$mock->say('clear');
	my $row = ($node->rows("SELECT attempts, parked_at, last_error, kafka_offset FROM idem.outbox WHERE partition_key = '$error'"))[0];
	is($row->{attempts}, 0, "$error ($errors{$error}): no attempt is used") unless $errors{$error} eq 'row';
	is($row->{parked_at}, undef, "$error ($errors{$error}): the row is not parked");
	ok(defined $row->{kafka_offset}, "$error ($errors{$error}): it has arrived");
}

# Again and again, for the row alone: one of the topic's, one of the row's.
foreach my $case ([ 'TOPIC_AUTHORIZATION_FAILED', 'waiting' ], [ 'INVALID_RECORD', 'parked' ])
{
	my ($error, $fate) = @$case;

	$mock->say("push $error 1000");
	$node->emit('t', key => "again $error", payload => '1');
	if ($fate eq 'parked')
	{
		wait_until("$error: the row is parked",
			sub { return $node->value("SELECT count(*) FROM idem.outbox WHERE partition_key = 'again $error' AND parked_at IS NOT NULL AND attempts = 5 AND last_error <> ''") eq '1' });
		pass("$error: the row is parked after five attempts");
		$mock->say('clear');
	}
	else
	{
		wait_until("$error: it has been tried three times",
			sub { my $seen = $node->relay_status->{failed}; return ($seen >= 3, $seen) });
		is($node->value('SELECT count(*) FROM idem.outbox WHERE attempts > 0 AND published_at IS NULL OR parked_at IS NOT NULL'), 0, "$error: no attempt is used");
		$mock->say('clear');
		$node->wait_published;
		pass("$error: the row arrives when it is over");
	}
}
$node->emit('t', key => 'last', payload => '1');
$node->wait_published;

$node->stop;
done_testing;
