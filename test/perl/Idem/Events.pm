# The outbox of a cluster against what a consumer read, for many rows.
#
#	my $seen = compare($node, $kafka, 't');
#	delivered_ok($seen, 'name', repeats => 2500);
#
# compare gives what is wrong and how much there was; delivered_ok asserts on it:
# each published row is in Kafka where its mark says, nothing else is, no row that
# was parked, and after removing repeats the rows of a key are in the order of seq.

package Idem::Events;

use strict;
use warnings FATAL => 'all';

use Carp qw(croak);
use Exporter qw(import);
use IPC::Run ();
use Test::More ();

use Idem::Wait;

our @EXPORT = qw(compare delivered_ok delivered);

# What is in a topic, as [partition, offset, key, event id], by partition and
# offset.  (A null key reads as an empty one.)
sub delivered
{
	my ($kafka, $topic) = @_;
	my ($output, $errors) = ('', '');

	IPC::Run::run(
		[
			'kcat', '-C', '-q', '-e', '-o', 'beginning', '-b', $kafka->brokers, '-t', $topic,
			'-f', '%p\t%o\t%k\t%h\n', '-X', 'fetch.wait.max.ms=10'
		],
		'<', \undef, '>', \$output, '2>', \$errors, IPC::Run::timeout(5 * $Idem::Wait::deadline))
	  or croak "could not read topic $topic: $errors";
	return map { [ (split /\t/)[ 0 .. 2 ], /ce_id=([^,]*)/ ] } split /\n/, $output;
}

# The rows of the topic: { event id => [seq, key, state, partition, offset] }.
sub _rows
{
	my ($node, $topic) = @_;
	my %rows;

	foreach my $line (split /\n/, $node->value(<<"EOF_SQL"))
SELECT concat_ws('|', event_id, seq, coalesce(partition_key, ''),
	CASE WHEN published_at IS NOT NULL THEN 'published' WHEN parked_at IS NOT NULL THEN 'parked' ELSE 'waiting' END,
	coalesce(kafka_partition, -1), coalesce(kafka_offset, -1))
FROM idem.outbox WHERE topic = '$topic'
EOF_SQL
	{
		my ($id, @row) = split /\|/, $line;

		$rows{$id} = \@row;
	}
	return \%rows;
}

sub compare
{
	my ($node, $kafka, $topic) = @_;
	my $rows = _rows($node, $topic);
	my %seen = (rows => scalar keys %$rows, read => 0, repeats => 0, map { $_ => [] } qw(unknown overtaken misplaced missing leaked));
	my (%times, %last, %places);

	$seen{$_} = 0 foreach qw(published parked waiting);
	foreach my $record (delivered($kafka, $topic))
	{
		my ($partition, $offset, $key, $id) = @$record;
		my $row = $rows->{$id};

		$seen{read}++;
		$places{$id}{"$partition/$offset"} = 1;
		$seen{repeats}++, next if $times{$id}++;
		push(@{ $seen{unknown} }, $id), next unless $row;
		next if $key eq '';
		push @{ $seen{overtaken} }, "$key: $row->[0] after $last{$key}" if defined $last{$key} && $last{$key} > $row->[0];
		$last{$key} = $row->[0];
	}
	while (my ($id, $row) = each %$rows)
	{
		my ($seq, $key, $state, $partition, $offset) = @$row;

		$seen{$state}++;
		push @{ $seen{missing} }, $seq if $state eq 'published' && !$times{$id};
		push @{ $seen{misplaced} }, $seq if $state eq 'published' && !$places{$id}{"$partition/$offset"};
		push @{ $seen{leaked} }, $seq if $state eq 'parked' && $times{$id};
	}
	return \%seen;
}

sub delivered_ok
{
	my ($seen, $name, %options) = @_;
	my $most = $options{repeats} // 0;

	foreach my $kind (qw(missing misplaced unknown overtaken), $options{requeued} ? () : 'leaked')
	{
		my @bad = @{ $seen->{$kind} };

		Test::More::is(scalar @bad, 0, "$name: none $kind") or Test::More::diag(join "\n", splice @bad, 0, 5);
	}
	Test::More::cmp_ok($seen->{repeats}, '<=', $most, "$name: $seen->{repeats} repeats, at most $most");
	foreach my $state (grep { defined $options{$_} } qw(rows published parked waiting))
	{
		Test::More::is($seen->{$state}, $options{$state}, "$name: $state");
	}
	return;
}

1;
