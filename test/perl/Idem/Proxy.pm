# A proxy before a broker, which can cut a connection in the middle of an answer, and
# refuse requests to produce in the broker's place.
#
#	my $proxy = Idem::Proxy->new($port, $target);	both on 127.0.0.1
#	$proxy->cut				the next answer is passed on by half, then both ends are closed
#	$proxy->cuts			how often that has happened
#	$proxy->refuse($error, $skip)	after $skip requests to produce, one is not passed on
#							and is answered with that error code in all its partitions
#	$proxy->refusals		how often that has happened, and how many requests to
#							produce of the connection had no answer then, at most
#
# What comes after a request that was refused is the broker's to judge, which has
# sequence numbers: that no mock has.

package Idem::Proxy;

use strict;
use warnings FATAL => 'all';

use Carp qw(croak);
use IO::Handle ();
use IO::Select ();
use IO::Socket::INET ();
use List::Util qw(max);
use POSIX ();
use PostgreSQL::Test::Utils;

my @all;

sub new
{
	my ($class, $port, $target) = @_;
	my $self = bless { target => $target, log => PostgreSQL::Test::Utils::tempdir() . '/proxy' }, $class;

	PostgreSQL::Test::Utils::append_to_file($self->{log}, '');
	$self->{listener} = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 100, ReuseAddr => 1)
	  or croak "port $port: $!";
	pipe my $commands, $self->{say} or croak "pipe: $!";
	$self->{say}->autoflush(1);
	$self->{pid} = fork // croak "fork: $!";
	$self->_serve($commands) unless $self->{pid};
	push @all, $self;
	return $self;
}

sub _say
{
	my ($self, $command) = @_;

	print { $self->{say} } "$command\n" or croak "the proxy is gone: $!";
	return;
}

sub cut { return $_[0]->_say('cut') }
sub refuse { my ($self, $error, $skip) = @_; return $self->_say("refuse $error " . ($skip // 0)) }

sub _told
{
	my ($self, $what) = @_;

	return PostgreSQL::Test::Utils::slurp_file($self->{log}) =~ /^$what ?(.*)$/mg;
}

sub cuts { my @told = $_[0]->_told('cut'); return scalar @told }

sub refusals
{
	my ($self) = @_;
	my @told = $self->_told('refused');

	return (scalar @told, max(0, @told));
}

# ---- in the process of the proxy ----

# A connection is two sockets: { client, broker }, what has come from each and is no
# whole message yet, and which answers are to come, in the order of the requests:
# undef for the broker's, bytes for one that is ours.
sub _serve
{
	my ($self, $commands) = @_;
	my $select = IO::Select->new($self->{listener}, $commands);
	my %connections;

	$self->{refuse} = [];
	local $SIG{PIPE} = 'IGNORE';
	while (getppid != 1)
	{
		# A command that is there counts for what has come as well.
		foreach my $socket (sort { ($b == $commands) <=> ($a == $commands) } $select->can_read(1))
		{
			if (!$socket->opened)
			{
				next;    # of a connection that has just ended
			}
			elsif ($socket == $commands)
			{
				$self->_obey($commands);
			}
			elsif ($socket == $self->{listener})
			{
				my $connection = $self->_accept or next;

				$connections{ fileno $_ } = $connection foreach @$connection{qw(client broker)};
				$select->add(@$connection{qw(client broker)});
			}
			elsif (my $connection = $connections{ fileno $socket })
			{
				next if $self->_pass($connection, $socket);
				delete @connections{ map { fileno $_ } @$connection{qw(client broker)} };
				$select->remove(@$connection{qw(client broker)});
				close $_ foreach @$connection{qw(client broker)};
			}
		}
	}
	POSIX::_exit(0);
}

sub _obey
{
	my ($self, $commands) = @_;

	sysread $commands, my $text, 4096 or POSIX::_exit(0);
	$self->{cutting} = 1 if $text =~ /^cut$/m;
	push @{ $self->{refuse} }, [ $1, $2 ] while $text =~ /^refuse (\d+) (\d+)$/mg;
	return;
}

sub _accept
{
	my ($self) = @_;
	my $client = $self->{listener}->accept or return;
	my $broker = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $self->{target});

	return { client => $client, broker => $broker, request => '', answer => '', answers => [] } if $broker;
	close $client;
	return;
}

# Passes on what has come; false: the connection has ended.
sub _pass
{
	my ($self, $connection, $socket) = @_;
	my $from = $socket == $connection->{client} ? 'request' : 'answer';

	return 0 unless sysread $socket, $connection->{$from}, 65536, length $connection->{$from};
	if ($from eq 'answer' && $self->{cutting})
	{
		$self->{cutting} = 0;
		PostgreSQL::Test::Utils::append_to_file($self->{log}, "cut\n");
		_write($connection->{client}, substr $connection->{answer}, 0, length($connection->{answer}) / 2);
		return 0;
	}
	while (length $connection->{$from} >= 4 && length $connection->{$from} >= 4 + unpack 'N', $connection->{$from})
	{
		my $message = substr $connection->{$from}, 0, 4 + unpack('N', $connection->{$from}), '';

		if ($from eq 'request')
		{
			my $refusal = $self->_refusal($message, $connection);

			_write($connection->{broker}, $message) unless defined $refusal;
			push @{ $connection->{answers} }, $refusal;
		}
		else
		{
			_write($connection->{client}, $message);
			shift @{ $connection->{answers} };
		}
		_write($connection->{client}, shift @{ $connection->{answers} }) while defined $connection->{answers}[0];
	}
	return 1;
}

sub _write
{
	my ($socket, $data) = @_;

	for (my $written = 0; $written < length $data;)
	{
		$written += syswrite($socket, $data, length($data) - $written, $written) // last;
	}
	return;
}

# The answer to a request that is not to be passed on; undef for others.  Produce
# requests of versions 3 to 8, as the Kafka protocol has them.
sub _refusal
{
	my ($self, $message, $connection) = @_;
	my ($length, $key, $version, $correlation, $client, $data) = unpack 'N n n N n/a a*', $message;

	return if $key != 0 || !@{ $self->{refuse} } || $self->{refuse}[0][1]-- > 0;
	croak "no produce request of version $version is known" if $version < 3 || $version > 8;
	my ($error) = @{ shift @{ $self->{refuse} } };
	my $answer = pack('N', $correlation) . _answer($data, $version, $error);

	PostgreSQL::Test::Utils::append_to_file($self->{log}, 'refused ' . @{ $connection->{answers} } . "\n");
	return pack 'N/a', $answer;
}

# The body of that answer: the same topics and partitions, each with the error.  (A
# producer without transactions has no name for them: two bytes.)
sub _answer
{
	my ($data, $version, $error) = @_;
	my ($topics, $at) = (unpack('x8 N', $data), 12);
	my $answer = pack 'N', $topics;

	foreach (1 .. $topics)
	{
		my ($name, $partitions) = unpack "x$at n/a N", $data;

		$answer .= pack 'n/a N', $name, $partitions;
		$at += 6 + length $name;
		foreach (1 .. $partitions)
		{
			my ($partition, $bytes) = unpack "x$at N N", $data;

			# no offset, no timestamp; where the log begins since version 5
			$answer .= pack 'N n q> q>', $partition, $error, -1, -1;
			$answer .= pack 'q>', 0 if $version >= 5;
			$answer .= pack 'N n', 0, 0xffff if $version >= 8;
			$at += 8 + $bytes;
		}
	}
	return $answer . pack 'N', 0;
}

END
{
	my $status = $?;

	kill 'KILL', $_->{pid} foreach @all;
	waitpid $_->{pid}, 0 foreach @all;
	$? = $status;
}

1;
