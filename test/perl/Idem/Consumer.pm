# What a Kafka consumer really read: never what a producer or a table claims.

package Idem::Consumer;

use strict;
use warnings FATAL => 'all';

use Carp qw(croak);
use Exporter qw(import);
use IPC::Run ();
use JSON::PP ();

use Idem::Wait;

our @EXPORT = qw(read_topic header event_ids);

# read_topic($kafka, $topic) -> list of records, in the order of the offsets of
# each partition, from the beginning of the topic to its present end.
#
# A record: { topic, partition, offset, timestamp (milliseconds), key, value,
# headers => [[name, value], ...] }.  Keys, values and headers are bytes; undef
# is Kafka's null, and differs from the empty string.
sub read_topic
{
	my ($kafka, $topic) = @_;
	my ($output, $errors) = ('', '');

	IPC::Run::run(
		[
			'kcat', '-C', '-J', '-q', '-e', '-o', 'beginning',
			'-b', $kafka->brokers, '-t', $topic,
			'-X', 'fetch.wait.max.ms=10', '-X', 'check.crcs=true'
		],
		'<', \undef, '>', \$output, '2>', \$errors, IPC::Run::timeout($Idem::Wait::deadline))
	  or croak "could not read topic $topic: $errors";
	return map { _record($_) } split /\n/, $output;
}

# The values of a record's headers of that name, in their order.
sub header
{
	my ($record, $name) = @_;
	my @values = map { $_->[1] } grep { $_->[0] eq $name } @{ $record->{headers} };

	return wantarray ? @values : $values[0];
}

# The event ids of records, in their order.
sub event_ids
{
	return map { scalar header($_, 'ce_id') } @_;
}

# kcat writes the bytes of keys, values and headers into JSON strings as they
# are, be they UTF-8 or not, and escapes only what JSON must.  So the line is
# decoded as bytes.
sub _record
{
	my ($line) = @_;
	my $seen = JSON::PP->new->utf8(0)->decode($line);
	my @flat = @{ $seen->{headers} // [] };
	my @headers;

	push @headers, [ splice @flat, 0, 2 ] while @flat;
	return {
		topic => $seen->{topic},
		partition => $seen->{partition},
		offset => $seen->{offset},
		timestamp => $seen->{ts},
		key => $seen->{key},
		value => $seen->{payload},
		headers => \@headers,
	};
}

1;
