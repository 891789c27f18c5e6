# A PostgreSQL server with idem, from the staged tree that test/run made and put
# into PATH.
#
#	my $node = Idem::Cluster->start_new('main', kafka => $kafka);
#
# It is a PostgreSQL::Test::Cluster, with what the tests of idem need on top.

package Idem::Cluster;

use strict;
use warnings FATAL => 'all';

use Carp qw(croak);
use Cwd ();
use JSON::PP ();
use PostgreSQL::Test::Cluster;
# Nothing imported: its functions would hide the methods of the same names.
use PostgreSQL::Test::Utils ();

use Idem::Session;
use Idem::Wait;

use parent -norequire, 'PostgreSQL::Test::Cluster';

# Columns of idem.relay_status that tests look at.
my @status_columns = qw(pid state hint brokers in_flight published failed last_error);

# Makes, configures and starts a server.
#
#	kafka => $kafka		brokers of the relay; without it there are none
#	databases => 'a,b'	idem.databases, 'postgres' unless given
#	preload => 0		without shared_preload_libraries
#	extension => 0		without CREATE EXTENSION in the database postgres
#	conf => 'lines'		more of postgresql.conf, wins over ours
sub start_new
{
	my ($class, $name, %options) = @_;
	my $node = $class->new($name);

	# whatever the machine's locale is
	$node->init(extra => [ '--encoding=UTF8', '--locale=C.UTF-8' ]);
	$node->append_conf('postgresql.conf', _configuration(%options));
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION idem CASCADE')
	  unless defined $options{extension} && !$options{extension};
	return $node;
}

# A real server's durability: the tests kill servers and look at what is left.
sub _configuration
{
	my (%options) = @_;
	my $conf = <<EOF_CONF;
fsync = on
full_page_writes = on
restart_after_crash = on
max_connections = 60
max_prepared_transactions = 10
autovacuum = on
autovacuum_naptime = '5s'
log_min_duration_statement = -1
log_statement = none
EOF_CONF

	if (!defined $options{preload} || $options{preload})
	{
		my $databases = $options{databases} // 'postgres';

		$conf .= "shared_preload_libraries = 'idem'\nidem.databases = '$databases'\n";
		$conf .= "idem.kafka_brokers = '" . $options{kafka}->brokers . "'\n" if $options{kafka};
	}
	return $conf . ($options{conf} // '');
}

# One value or row of values, as psql prints it.
sub value
{
	my ($self, $sql, $database) = @_;

	return scalar $self->safe_psql($database // 'postgres', $sql);
}

# The rows of a query, as a list of hashes; bytes are best asked for as hex.
sub rows
{
	my ($self, $query, $database) = @_;
	my $json = $self->value(
		"SELECT coalesce(json_agg(row_to_json(q)), '[]') FROM ($query) AS q", $database);

	return @{ JSON::PP->new->utf8->decode($json) };
}

# The rows of the outbox by seq, each with key and value as the bytes (undef:
# NULL) that its Kafka record must have.
sub outbox
{
	my ($self, $database) = @_;
	my @rows = $self->rows(<<'EOF_SQL', $database);
SELECT seq, slot, event_id, topic, aggregate_id, event_type, headers,
	encode(convert_to(partition_key, 'UTF8'), 'hex') AS key,
	encode(coalesce(payload_bytes, convert_to(payload::text, 'UTF8')), 'hex') AS value,
	to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS created_at,
	floor(extract(epoch FROM created_at) * 1000)::bigint AS created_ms,
	published_at IS NOT NULL AS published, kafka_partition AS partition, kafka_offset AS offset
FROM idem.outbox ORDER BY seq
EOF_SQL

	foreach my $row (@rows)
	{
		defined $row->{$_} and $row->{$_} = pack 'H*', $row->{$_} foreach qw(key value);
	}
	return @rows;
}

# { output, sqlstate, error } of statements that may fail.
sub try
{
	my ($self, $sql, $database) = @_;
	my ($output, $error) = ('', '');

	$self->psql(
		$database // 'postgres', $sql,
		stdout => \$output, stderr => \$error,
		extra_params => [ '--set', 'VERBOSITY=verbose' ], on_error_stop => 1);
	return {
		output => $output,
		error => $error,
		sqlstate => $error =~ /(?:ERROR|FATAL):\s+([0-9A-Z]{5}):/ ? $1 : '',
	};
}

sub session
{
	my ($self, $database) = @_;

	return Idem::Session->new($self->connstr($database // 'postgres'));
}

# Settings of the running server, as ALTER SYSTEM and a reload set them.
sub set
{
	my ($self, %settings) = @_;

	$self->safe_psql('postgres', "ALTER SYSTEM SET $_ = '$settings{$_}'") foreach sort keys %settings;
	$self->reload;
	return;
}

sub reset
{
	my ($self, @names) = @_;

	$self->safe_psql('postgres', "ALTER SYSTEM RESET $_") foreach @names;
	$self->reload;
	return;
}

# idem.relay_status as a hash.
sub relay_status
{
	my ($self, $database) = @_;
	my $line = $self->value(
		'SELECT ' . join(', ', map { "replace(coalesce($_\:\:text, ''), '|', '/')" } @status_columns)
		  . ' FROM idem.relay_status',
		$database);
	my %status;

	@status{@status_columns} = split /\|/, $line, -1;
	return \%status;
}

sub wait_state
{
	my ($self, $state, $database) = @_;

	return wait_until(
		"relay is in state \"$state\"",
		sub { my $seen = $self->relay_status($database); return ($seen->{state} eq $state && $seen, $seen) });
}

# Waits for a worker other than the one with this process id.
sub wait_new_worker
{
	my ($self, $old) = @_;

	return wait_until(
		"another relay worker than process $old",
		sub {
			my $seen = eval { $self->relay_status } // return (0, $@);
			return ($seen->{pid} ne '' && $seen->{pid} ne $old && $seen->{pid}, $seen);
		});
}

# Writes an event; everything but the topic may be left out.
sub emit
{
	my ($self, $topic, %event) = @_;
	my @arguments = ("topic => " . _literal($topic));

	foreach my $name (qw(key event_type payload headers once_key aggregate_type aggregate_id))
	{
		push @arguments, "$name => " . _literal($event{$name})
		  if exists $event{$name} || $name =~ /^(?:key|event_type|payload)$/;
	}
	return $self->value('SELECT outbox_emit(' . join(', ', @arguments) . ')', $event{database});
}

# Waits until no row of the outbox is left unpublished.
sub wait_published
{
	my ($self, $database, %options) = @_;

	wait_until(
		'every row of the outbox is published',
		sub {
			my $left = eval {
				$self->value(
					'SELECT count(*) FROM idem.outbox WHERE published_at IS NULL AND parked_at IS NULL',
					$database);
			} // return (0, $@);
			my $seen = $left eq '0' ? {} : eval { $self->relay_status($database) } // {};
			return ($left eq '0', { %$seen, left => $left });
		},
		%options);
	return;
}

# Waits until the server takes connections again, after a crash of a backend.
sub wait_up
{
	my ($self) = @_;

	wait_until('the server takes connections', sub { return eval { $self->value('SELECT 1') eq '1' } // (0, $@) });
	return;
}

# Ends the server as a power failure does, as far as a test can: all processes
# stop at one moment, so that none writes out what it still had in memory.
# start() brings the server back.
sub crash
{
	my ($self) = @_;

	my @processes;

	kill 'STOP', $self->_processes;
	@processes = $self->_processes;
	kill 'KILL', @processes;
	$self->{_pid} = undef;
	# Also of the table of processes, or the next postmaster sees this one there.
	wait_until('the processes of the killed server are gone',
		sub { my @left = grep { kill 0, $_ } @processes; return (!@left, "@left") });
	return;
}

# Process ids of the postmaster and its children: whoever works in the data
# folder.
sub _processes
{
	my ($self) = @_;
	my $data = Cwd::realpath($self->data_dir);

	return map { /(\d+)$/ } grep { (readlink("$_/cwd") // '') eq $data } glob '/proc/[0-9]*';
}

sub _literal
{
	my ($text) = @_;

	return 'NULL' unless defined $text;
	return "'" . $text =~ s/'/''/gr . "'";
}

1;
