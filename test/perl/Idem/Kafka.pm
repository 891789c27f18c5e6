# A real Apache Kafka of one node (KRaft: broker and controller in one process)
# on free ports of 127.0.0.1, with its data in a temporary folder.
#
#	my $kafka = Idem::Kafka->new;		started, ready, no topics
#	$kafka->brokers						"127.0.0.1:PORT", the same over restarts
#	$kafka->create_topic('t', 3, 'max.message.bytes' => 1000)
#	$kafka->stop; $kafka->kill9; $kafka->start
#	$kafka->freeze; $kafka->thaw		SIGSTOP and SIGCONT
#
# The environment variable IDEM_KAFKA_JARS names the folder with Kafka's jars.

package Idem::Kafka;

use strict;
use warnings FATAL => 'all';

use Carp qw(croak);
use File::Basename qw(basename);
use IPC::Run ();
use POSIX qw(WNOHANG);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

use Idem::Wait;

my @all;

# Small and quick to start: these brokers live for seconds.
my @java = qw(java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx512m);

# start => 0 leaves the broker down, for tests that need one that is away.
sub new
{
	my ($class, %options) = @_;
	my $self = bless {
		port => PostgreSQL::Test::Cluster::get_free_port(),
		controller_port => PostgreSQL::Test::Cluster::get_free_port(),
		folder => PostgreSQL::Test::Utils::tempdir('kafka'),
		log => $PostgreSQL::Test::Utils::log_path . '/'
		  . basename($0, '.pl') . '_kafka_' . scalar(@all) . '.log',
	}, $class;

	croak 'IDEM_KAFKA_JARS is not set: run the tests with test/run'
	  unless $ENV{IDEM_KAFKA_JARS};
	push @all, $self;
	$self->_configure;
	$self->_format;
	$self->start unless defined $options{start} && !$options{start};
	return $self;
}

sub brokers { return "127.0.0.1:$_[0]->{port}" }

sub start
{
	my ($self) = @_;

	croak 'Kafka is running already' if $self->{pid};
	$self->{pid} = $self->_spawn('kafka.Kafka', $self->{properties});
	wait_until(
		'Kafka is ready',
		sub {
			croak "Kafka ended at start, see $self->{log}" unless $self->_alive;
			return $self->_answers;
		});
	return;
}

# Ends it properly, as an operator does.
sub stop
{
	my ($self) = @_;

	$self->_end('TERM');
	return;
}

# Ends it as a power failure does.
sub kill9
{
	my ($self) = @_;

	$self->_end('KILL');
	return;
}

sub freeze { return kill 'STOP', $_[0]->{pid} }
sub thaw { return kill 'CONT', $_[0]->{pid} }

sub create_topic
{
	my ($self, $topic, $partitions, %settings) = @_;

	$self->_tool(
		'org.apache.kafka.tools.TopicCommand',
		'--bootstrap-server', $self->brokers, '--create', '--topic', $topic,
		'--partitions', $partitions // 1, '--replication-factor', 1,
		map { ('--config', "$_=$settings{$_}") } sort keys %settings);
	wait_until(
		"topic $topic has leaders",
		sub {
			my $seen = $self->_metadata;
			return ($seen =~ /topic "\Q$topic\E" with/ && $seen !~ /leader -1|Leader not available/, $seen);
		});
	return;
}

# Changes settings of a topic.
sub configure_topic
{
	my ($self, $topic, %settings) = @_;

	$self->_tool(
		'kafka.admin.ConfigCommand',
		'--bootstrap-server', $self->brokers, '--alter', '--topic', $topic,
		'--add-config', join(',', map { "$_=$settings{$_}" } sort keys %settings));
	return;
}

# Writes [key, value] pairs with Kafka's own Java producer.
sub produce_with_java
{
	my ($self, $topic, @pairs) = @_;

	$self->_tool_with(
		join('', map { "$_->[0]\t$_->[1]\n" } @pairs),
		'org.apache.kafka.tools.ConsoleProducer',
		'--bootstrap-server', $self->brokers, '--topic', $topic, '--reader-property', 'parse.key=true');
	return;
}

# auto.create.topics.enable is off: an event for a topic that is not there must
# not bring it into being.  The session is short because after kill9 the
# controller lets the broker in again only when the old session is over.
sub _configure
{
	my ($self) = @_;

	$self->{properties} = "$self->{folder}/server.properties";
	PostgreSQL::Test::Utils::append_to_file($self->{properties}, <<EOF_PROPERTIES);
process.roles=broker,controller
node.id=1
controller.quorum.voters=1\@127.0.0.1:$self->{controller_port}
listeners=BROKER://127.0.0.1:$self->{port},CONTROLLER://127.0.0.1:$self->{controller_port}
advertised.listeners=BROKER://127.0.0.1:$self->{port}
listener.security.protocol.map=BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=BROKER
controller.listener.names=CONTROLLER
log.dirs=$self->{folder}/data
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=2000
EOF_PROPERTIES
	return;
}

sub _format
{
	my ($self) = @_;

	# Any 22 letters are a cluster id.
	$self->_tool('kafka.tools.StorageTool', 'format', '-t',
		'idem-tests-cluster-001', '-c', $self->{properties});
	return;
}

sub _jars { return ('-cp', "$ENV{IDEM_KAFKA_JARS}/*") }

# Runs a tool of Kafka to its end; its output goes to the log.
sub _tool
{
	my ($self, @command) = @_;

	return $self->_tool_with('', @command);
}

sub _tool_with
{
	my ($self, $input, @command) = @_;
	my $output = '';
	my $done = IPC::Run::run(
		[ @java, '-Dorg.slf4j.simpleLogger.defaultLogLevel=warn', _jars(), @command ],
		'<', \$input, '>&', \$output, IPC::Run::timeout($Idem::Wait::deadline));

	PostgreSQL::Test::Utils::append_to_file($self->{log}, $output);
	croak "@command failed: $output" unless $done;
	return;
}

# The kernel ends the broker when this process ends, however that happens.
sub _spawn
{
	my ($self, @command) = @_;
	my $pid = fork // croak "fork: $!";

	return $pid if $pid;
	open STDIN, '<', '/dev/null' or POSIX::_exit(127);
	open STDOUT, '>>', $self->{log} or POSIX::_exit(127);
	open STDERR, '>&', \*STDOUT or POSIX::_exit(127);
	exec 'setpriv', '--pdeathsig', 'KILL', @java, _jars(), @command
	  or POSIX::_exit(127);
}

sub _alive
{
	my ($self) = @_;

	return waitpid($self->{pid}, WNOHANG) == 0;
}

# What kcat tells of the cluster; empty when it gets no answer.
sub _metadata
{
	my ($self) = @_;
	my $output = '';

	IPC::Run::run([ 'kcat', '-L', '-m', 5, '-b', $self->brokers ],
		'<', \undef, '>', \$output, '2>', '/dev/null');
	return $output;
}

# Ready means: the broker answers, and each partition that it has is led.
sub _answers
{
	my ($self) = @_;
	my $seen = $self->_metadata;

	return ($seen =~ /^ 1 brokers:/m && $seen !~ /leader -1|Leader not available/, $seen);
}

sub _end
{
	my ($self, $signal) = @_;
	my $pid = delete $self->{pid} // return;

	kill $signal, $pid;
	# A frozen process takes SIGTERM only once it goes on.
	kill 'CONT', $pid;
	wait_until("Kafka ends after SIG$signal", sub { return waitpid($pid, WNOHANG) != 0 });
	return;
}

END
{
	my $status = $?;

	$_->kill9 foreach @all;
	$? = $status;
}

1;
