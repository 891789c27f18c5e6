# librdkafka's mock broker, which answers with errors on request: test/mock.c.
#
#	my $mock = Idem::Mock->new('t', 2);		a topic with so many partitions
#	my $node = Idem::Cluster->start_new('main', kafka => $mock);
#	$mock->say('push INVALID_RECORD 1');
#
# For single errors that no real broker can be made to answer with; nothing of how a
# broker behaves otherwise is shown by it.

package Idem::Mock;

use strict;
use warnings FATAL => 'all';

use Carp qw(croak);
use IPC::Run ();
use PostgreSQL::Test::Utils;

sub new
{
	my ($class, $topic, $partitions) = @_;
	my $self = bless { in => '', out => '' }, $class;
	my $program = PostgreSQL::Test::Utils::tempdir() . '/mock';
	my $flags = `pkg-config --cflags --libs rdkafka`;
	my $said = '';

	IPC::Run::run([ 'cc', '-Wall', '-Wextra', '-Werror', '-o', $program, 'test/mock.c', split ' ', $flags ], '>&', \$said)
	  or croak "test/mock.c: $said";
	# The kernel ends it when this process ends, however that happens.
	$self->{process} = IPC::Run::start(
		[ 'setpriv', '--pdeathsig', 'KILL', $program, $topic, $partitions ],
		'<', \$self->{in}, '>', \$self->{out}, '2>', '/dev/null', IPC::Run::timeout(600));
	$self->{process}->pump until $self->{out} =~ /\n/;
	$self->{brokers} = $self->{out} =~ s/\n//r;
	return $self;
}

sub brokers { return $_[0]->{brokers} }

# Gives it a command, which it has carried out when this returns.
sub say
{
	my ($self, $command) = @_;

	@$self{qw(in out)} = ("$command\n", '');
	$self->{process}->pump until $self->{out} =~ /ok\n/;
	return;
}

# (In the end of perl itself the handles may be gone before this.)
sub DESTROY
{
	my ($self) = @_;

	$self->{process}->kill_kill if $self->{process} && ${^GLOBAL_PHASE} ne 'DESTRUCT';
	return;
}

1;
