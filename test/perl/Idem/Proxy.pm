# A proxy before a broker, which can cut a connection in the middle of an answer.
#
#	my $proxy = Idem::Proxy->new($port, $target);	both on 127.0.0.1
#	$proxy->cut			the next answer is passed on by half, then both ends are closed
#	$proxy->cuts		how often that has happened

package Idem::Proxy;

use strict;
use warnings FATAL => 'all';

use Carp qw(croak);
use IO::Select ();
use IO::Socket::INET ();
use POSIX ();
use PostgreSQL::Test::Utils;

my @all;

sub new
{
	my ($class, $port, $target) = @_;
	my $self = bless { target => $target, log => PostgreSQL::Test::Utils::tempdir() . '/cuts' }, $class;

	PostgreSQL::Test::Utils::append_to_file($self->{log}, '');
	$self->{listener} = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 100, ReuseAddr => 1)
	  or croak "port $port: $!";
	$self->{pid} = fork // croak "fork: $!";
	$self->_serve unless $self->{pid};
	push @all, $self;
	return $self;
}

sub cut { return kill 'USR1', $_[0]->{pid} }
sub cuts { return -s $_[0]->{log} }

sub _serve
{
	my ($self) = @_;
	my $select = IO::Select->new($self->{listener});
	my ($cutting, %peer, %answers) = (0);

	local $SIG{USR1} = sub { $cutting = 1 };
	local $SIG{PIPE} = 'IGNORE';
	while (getppid != 1)
	{
		foreach my $socket ($select->can_read(1))
		{
			if ($socket == $self->{listener})
			{
				my $client = $self->{listener}->accept or next;
				my $broker = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $self->{target}) or (close $client, next);

				@peer{ fileno $client, fileno $broker } = ($broker, $client);
				$answers{ fileno $broker } = 1;
				$select->add($client, $broker);
				next;
			}
			my $other = $peer{ fileno $socket } or next;
			my $bytes = sysread $socket, my $data, 65536;
			my $half = $bytes && $cutting && $answers{ fileno $socket };

			if ($half)
			{
				$data = substr $data, 0, $bytes / 2;
				PostgreSQL::Test::Utils::append_to_file($self->{log}, '.');
				$cutting = 0;
			}
			for (my $written = 0; $bytes && $written < length $data;)
			{
				$written += syswrite($other, $data, length($data) - $written, $written) // last;
			}
			next if $bytes && !$half;
			delete @peer{ fileno $socket, fileno $other };
			delete @answers{ fileno $socket, fileno $other };
			$select->remove($socket, $other);
			close $_ foreach $socket, $other;
		}
	}
	POSIX::_exit(0);
}

END
{
	my $status = $?;

	kill 'KILL', $_->{pid} foreach @all;
	waitpid $_->{pid}, 0 foreach @all;
	$? = $status;
}

1;
