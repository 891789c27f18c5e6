# A database session of its own, so that a test can hold transactions open and
# let statements of several sessions run at the same time.
#
#	my $session = $node->session;
#	$session->query('BEGIN');				output; dies on an error
#	my $answer = $session->try('SELECT 1');	never dies for an SQL error
#	$session->send('SELECT slow()');		does not wait
#	my $answer = $session->answer;			waits for what send() began
#
# An answer: { output, sqlstate ('' when all went well), error (all that psql
# said about errors and notices), lost (true when the connection broke) }.

package Idem::Session;

use strict;
use warnings FATAL => 'all';

use Carp qw(croak);
use IPC::Run ();

use Idem::Wait;

sub new
{
	my ($class, $connstr) = @_;
	my $self = bless { connstr => $connstr, in => '', out => '', err => '', asked => 0 }, $class;

	# A pump without news comes back when the timer expires, and throws.
	$self->{timer} = IPC::Run::timeout($Idem::Wait::deadline, name => 'deadline');
	$self->{psql} = IPC::Run::start(
		[
			'psql', '--no-psqlrc', '--no-align', '--tuples-only', '--quiet',
			'--set', 'VERBOSITY=verbose', '--dbname', $connstr
		],
		'<', \$self->{in}, '>', \$self->{out}, '2>', \$self->{err}, $self->{timer});
	$self->{pid} = $self->query('SELECT pg_backend_pid()');
	return $self;
}

# Process id of the server's backend.
sub pid { return $_[0]->{pid} }

sub query
{
	my ($self, $sql) = @_;
	my $answer = $self->try($sql);

	croak "\"$sql\" failed: $answer->{error}" if $answer->{sqlstate} || $answer->{lost};
	return $answer->{output};
}

sub try
{
	my ($self, $sql) = @_;

	$self->send($sql);
	return $self->answer;
}

sub send
{
	my ($self, $sql) = @_;

	croak 'the session has not answered yet' if $self->{busy};
	$self->{busy} = $sql;
	$self->{asked}++;
	# Both channels say when they are through: they come in no common order.
	$self->{in} .= "$sql\n;\n\\echo answered-$self->{asked}\n\\warn answered-$self->{asked}\n";
	$self->{psql}->pump_nb;
	return;
}

# True when the answer to send() is there.
sub answered
{
	my ($self) = @_;

	$self->{psql}->pump_nb;
	return $self->_complete;
}

sub answer
{
	my ($self) = @_;
	my $sql = delete $self->{busy} // croak 'the session was not asked anything';
	my $mark = qr/answered-$self->{asked}\n/;
	my %answer;

	$self->{timer}->start($Idem::Wait::deadline);
	while (!$self->_complete)
	{
		last unless $self->{psql}->pumpable;
		eval { $self->{psql}->pump; 1 }
		  or croak "no answer to \"$sql\" within $Idem::Wait::deadline s: $@";
	}
	$self->{timer}->reset;

	%answer = (
		output => $self->{out} =~ s/$mark.*//sr,
		error => $self->{err} =~ s/$mark.*//sr,
		lost => !$self->_complete);
	chomp $answer{output};
	$answer{sqlstate} = $answer{error} =~ /(?:ERROR|FATAL|PANIC):\s+([0-9A-Z]{5}):/ ? $1 : '';
	@$self{qw(out err)} = ('', '');
	return \%answer;
}

sub quit
{
	my ($self) = @_;

	# A server that has died took psql with it.
	$self->{in} .= "\\q\n" if $self->{psql}->pumpable;
	eval { $self->{psql}->finish; 1 } or $self->{psql}->kill_kill;
	return;
}

sub _complete
{
	my ($self) = @_;
	my $mark = qr/^answered-$self->{asked}$/m;

	return $self->{out} =~ $mark && $self->{err} =~ $mark;
}

1;
