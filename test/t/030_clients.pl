# What was written is what clients in Python, Java and JavaScript read, byte for
# byte; and each key is in the partition where the Java client puts it.

use strict;
use warnings FATAL => 'all';
use utf8;

use IPC::Run ();
use JSON::PP ();
use PostgreSQL::Test::Utils;
use Test::More;

use Idem::Cluster;
use Idem::Kafka;
use Idem::Wait;

my $seed = $ENV{IDEM_SEED} // 1;
note "seed $seed";
srand $seed;

my $topic = 'Mixed.Case_Topic-1';
my $kafka = Idem::Kafka->new;
$kafka->create_topic($topic, 3);
$kafka->create_topic('mixed.case_topic-1', 1);
$kafka->create_topic($_, 7) foreach qw(keys-java keys-idem);
my $node = Idem::Cluster->start_new('main', kafka => $kafka);
$node->wait_state('running');

#
# Records of every kind
#

my @records = (
	{ key => 'json', payload => '{"b": 1.50, "a": "naïve € \\\\ 😀", "n": null, "big": 12345678901234567890.10}' },
	{ key => 'scalar', payload => '"just text"' },
	{ key => 'json null', payload => 'null' },
	{ key => 'all bytes', payload_bytes => unpack('H*', join '', map { chr } 0 .. 255) },
	{ key => 'schema registry', payload_bytes => '0000000007' . '0a0b' },
	{ key => 'empty value', payload_bytes => '' },
	{ key => 'tombstone' },
	{ key => '', payload => '"the key is empty"' },
	{ payload => '"there is no key"' },
	{},
	{ key => "schlüssel \x{20ac}", payload => '1', event_type => 'typ ü', aggregate_type => 'order', aggregate_id => "id \x{1F600}" },
	{ key => 'empty texts', payload => '1', event_type => '', aggregate_id => '' },
	{ key => 'headers', payload => '1', headers => [
		[ 'z', '1' ], [ 'a', '2' ], [ 'z', '3' ], [ 'null', undef ], [ 'empty', '' ], [ 'null', undef ], [ 'a', "\x{e9}\x{1F600}" ],
		[ "n\x{e4}me", 'v' ], [ 'traceparent', '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01' ],
		[ 'json', '{"not": "parsed"}' ], [ 'number', '007' ], [ 'long', 'x' x 5000 ] ] },
	{ key => 'no own headers', payload => '1', headers => [] },
	{ key => 'own ce_', payload => '1', headers => [ [ 'ce_custom', 'extension' ], [ 'ce_id', 'mine' ] ] },
	{ key => 'large', payload_bytes => '5a' x 900_000 },
	{ key => 'k' x 5000, payload => '1' },
	(map { { key => "key $_", payload => "{\"i\": $_}", headers => [ [ "h$_", "$_" ] ] } } 1 .. 20));

sub insert
{
	my ($record) = @_;
	my %columns = (topic => $topic, %$record);
	my $json = JSON::PP->new;

	$columns{partition_key} = delete $columns{key} if exists $columns{key};
	$columns{headers} = $json->encode($columns{headers}) if $columns{headers};
	$columns{payload_bytes} = "\\x$columns{payload_bytes}" if exists $columns{payload_bytes};
	my @names = sort keys %columns;
	my $sql = 'INSERT INTO idem.outbox (' . join(', ', @names) . ') VALUES ('
	  . join(', ', map { "'" . $columns{$_} =~ s/'/''/gr . "'" } @names) . ");\n";
	utf8::encode($sql);
	return $sql;
}

$node->value(join '', map { insert($_) } @records);
$node->value("INSERT INTO idem.outbox (topic, payload) VALUES ('mixed.case_topic-1', '\"other topic\"')");
$node->wait_published;

# What each row has to be as a record: hexadecimal, as the clients print it.
my %expected = map { ("$_->{partition}/$_->{offset}" => $_) } map { expected_record($_) } $node->rows(<<EOF_SQL);
SELECT kafka_partition, kafka_offset, floor(extract(epoch FROM created_at) * 1000)::bigint AS timestamp,
	encode(convert_to(partition_key, 'UTF8'), 'hex') AS key,
	encode(coalesce(payload_bytes, convert_to(payload::text, 'UTF8')), 'hex') AS value,
	headers, event_id, event_type, aggregate_id,
	to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS created_at
FROM idem.outbox WHERE topic = '$topic'
EOF_SQL
is(scalar keys %expected, scalar @records, 'each row has a place of its own in Kafka');

sub hex_of
{
	my ($text) = @_;

	return undef unless defined $text;
	utf8::encode($text);
	return unpack 'H*', $text;
}

sub expected_record
{
	my ($row) = @_;
	my $type = defined $row->{event_type} && $row->{event_type} ne '' ? $row->{event_type} : $topic;
	my @headers = (
		[ ce_specversion => '1.0' ], [ ce_id => $row->{event_id} ], [ ce_source => '/idem/postgres' ],
		[ ce_type => $type ], [ ce_time => $row->{created_at} ]);

	push @headers, [ ce_subject => $row->{aggregate_id} ] if ($row->{aggregate_id} // '') ne '';
	push @headers, @{ $row->{headers} // [] };
	return {
		partition => $row->{kafka_partition}, offset => $row->{kafka_offset}, timestamp => $row->{timestamp},
		key => $row->{key}, value => $row->{value},
		headers => [ map { [ hex_of($_->[0]), hex_of($_->[1]) ] } @headers ],
	};
}

# The headers as kafkajs can give them: by name.
sub by_name
{
	my (@headers) = @_;
	my (@names, %values);

	foreach my $header (@headers)
	{
		push @names, $header->[0] unless $values{ $header->[0] };
		push @{ $values{ $header->[0] } }, $header->[1];
	}
	return [ map { my $name = $_; map { [ $name, $_ ] } @{ $values{$name} } } @names ];
}

sub read_by
{
	my ($client, @command) = @_;
	my ($output, $errors) = ('', '');

	IPC::Run::run([ @command, $kafka->brokers, $topic ],
		'<', \undef, '>', \$output, '2>', \$errors, IPC::Run::timeout($Idem::Wait::deadline))
	  or BAIL_OUT("$client failed: $errors");
	return map { JSON::PP::decode_json($_) } split /\n/, $output;
}

sub same_as_written
{
	my ($client, @read) = @_;

	is(scalar @read, scalar @records, "$client: as many records as rows");
	foreach my $record (@read)
	{
		my $wanted = { %{ $expected{"$record->{partition}/$record->{offset}"} // {} } };
		my $create_time = delete $record->{create_time};

		$wanted->{headers} = by_name(@{ $wanted->{headers} }) if $client eq 'JavaScript';
		ok($create_time, "$client: the timestamp is that of the row") if defined $create_time && !$create_time;
		is_deeply($record, $wanted, "$client: " . (defined $record->{key} ? substr(pack('H*', $record->{key}), 0, 20) : 'no key'));
	}
	return;
}

same_as_written('Python', read_by('Python', '/usr/bin/python3', 'test/clients/read_topic.py'));
same_as_written('Java', map { JSON::PP::decode_json($_) } split /\n/, $kafka->run_java('ReadTopic', $kafka->brokers, $topic));
same_as_written('JavaScript', read_by('JavaScript', 'node', 'test/clients/read_topic.js', $ENV{IDEM_KAFKAJS}));

#
# Partitions
#

# Lengths around the four bytes that the hash takes at a time, characters of one
# to four bytes, bytes with the high bit set, and what chance brings.
my @alphabet = ((map { chr } 0x21 .. 0x7e), "\x{80}", "\x{ff}", "\x{e9}", "\x{7ff}", "\x{800}", "\x{20ac}", "\x{ffff}", "\x{10000}", "\x{1F600}", "\x{10ffff}");
my @keys = ('', (map { 'a' x $_ } 1 .. 9), (map { "\x{e9}" x $_ } 1 .. 5), "\x{1F600}", "\x{20ac}\x{20ac}", 'order-8812', "\x{7f}", "\x{80}",
	map { join '', map { $alphabet[ rand @alphabet ] } 0 .. rand 40 } 1 .. 200);
my %seen;
@keys = grep { !$seen{$_}++ } @keys;
my @hex = map { hex_of($_) } @keys;
my %java = map { my ($key, $partition) = split / /; $key eq '-' ? ('' => $partition) : ($key => $partition) }
  split /\n/, $kafka->run_java('PutKeys', $kafka->brokers, 'keys-java', map { $_ eq '' ? '-' : $_ } @hex);
is(scalar keys %java, scalar @hex, 'the Java client has placed ' . @hex . ' keys');

$node->value("INSERT INTO idem.outbox (topic, partition_key, payload) SELECT 'keys-idem', convert_from(decode(k, 'hex'), 'UTF8'), '1' FROM unnest('{"
	. join(',', map { "\"$_\"" } @hex) . "}'::text[]) AS k");
$node->wait_published;
my %idem = map { $_->{key} => $_->{kafka_partition} }
  $node->rows(q{SELECT encode(convert_to(partition_key, 'UTF8'), 'hex') AS key, kafka_partition FROM idem.outbox WHERE topic = 'keys-idem'});
is_deeply(\%idem, \%java, 'each key is in the partition that the Java client chose');
my %used = map { $_ => 1 } values %java;
is(scalar keys %used, 7, 'which are all of them');

# Rows without a key are spread.  The library takes another partition every 10 ms.
$node->value(q{DO $$ BEGIN FOR i IN 1 .. 300 LOOP
	INSERT INTO idem.outbox (topic, payload) VALUES ('keys-idem', to_jsonb(i)); COMMIT; END LOOP; END $$});
$node->wait_published;
cmp_ok($node->value(q{SELECT count(DISTINCT kafka_partition) FROM idem.outbox WHERE topic = 'keys-idem' AND partition_key IS NULL}),
	'>=', 3, 'rows without a key are spread over partitions');

is($node->relay_status->{failed}, 0, 'no delivery failed');
$node->stop;
done_testing;
