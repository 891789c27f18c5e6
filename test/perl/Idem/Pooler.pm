# PgBouncer in transaction mode in front of a server, on a free port of
# 127.0.0.1, with its files in a temporary folder.
#
#	my $pooler = Idem::Pooler->new($node, 3);	three sessions with each database
#	$pooler->connstr('postgres')
#
# The sessions take turns: transactions that follow each other, of one client
# too, run in different ones.

package Idem::Pooler;

use strict;
use warnings FATAL => 'all';

use Carp qw(croak);
use File::Basename qw(basename);
use IO::Socket::INET ();
use POSIX qw(WNOHANG);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

use Idem::Wait;

my @all;

sub new
{
	my ($class, $node, $sessions) = @_;
	my $self = bless {
		port => PostgreSQL::Test::Cluster::get_free_port(),
		sessions => $sessions,
		folder => PostgreSQL::Test::Utils::tempdir('pgbouncer'),
		log => $PostgreSQL::Test::Utils::log_path . '/'
		  . basename($0, '.pl') . '_pgbouncer_' . scalar(@all) . '.log',
	}, $class;

	push @all, $self;
	$self->_configure($node);
	$self->_start;
	return $self;
}

sub connstr
{
	my ($self, $database) = @_;

	return "host=127.0.0.1 port=$self->{port} dbname=$database";
}

# min_pool_size is looked after once a second, and round robin does the rest.
sub _configure
{
	my ($self, $node) = @_;
	my $user = getpwuid $<;

	$self->{configuration} = "$self->{folder}/pgbouncer.ini";
	PostgreSQL::Test::Utils::append_to_file($self->{configuration}, <<EOF_CONFIGURATION);
[databases]
* = host=${\ $node->host} port=${\ $node->port} user=$user

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $self->{port}
unix_socket_dir =
auth_type = any
logfile = $self->{log}
pool_mode = transaction
default_pool_size = $self->{sessions}
min_pool_size = $self->{sessions}
server_round_robin = 1
ignore_startup_parameters = extra_float_digits
EOF_CONFIGURATION
	return;
}

# The kernel ends it when this process ends, however that happens.
sub _start
{
	my ($self) = @_;
	my $pid = fork // croak "fork: $!";

	if (!$pid)
	{
		open STDIN, '<', '/dev/null' or POSIX::_exit(127);
		open STDOUT, '>>', "$self->{log}.output" or POSIX::_exit(127);
		open STDERR, '>&', \*STDOUT or POSIX::_exit(127);
		exec 'setpriv', '--pdeathsig', 'KILL', '/usr/sbin/pgbouncer', $self->{configuration}
		  or POSIX::_exit(127);
	}
	$self->{pid} = $pid;
	wait_until(
		'PgBouncer is ready',
		sub {
			croak "PgBouncer ended at start, see $self->{log}" if waitpid($pid, WNOHANG) != 0;
			return IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $self->{port}) ? 1 : 0;
		});
	return;
}

sub stop
{
	my ($self) = @_;
	my $pid = delete $self->{pid} // return;

	kill 'KILL', $pid;
	waitpid $pid, 0;
	return;
}

END
{
	my $status = $?;

	$_->stop foreach @all;
	$? = $status;
}

1;
